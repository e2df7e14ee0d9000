//! Counts of the kernel's tracepoints for one thread: requests given to workers, requests completed
//! within a submission, and sleeps of the thread.

use std::fs;
use std::path::Path;

use rustix::io::Errno;

use super::kernel::Passes;

/// Mount points of tracefs, or its automatic mount in debugfs (Documentation/trace/ftrace.rst).
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

const PUNT: &str = "io_uring/io_uring_queue_async_work";
const COMPLETION: &str = "io_uring/io_uring_complete";
const SWITCH: &str = "sched/sched_switch";
/// Filter for switches of a thread that stops running. A thread that is only preempted has
/// `TASK_REPORT_MAX`, 256 (`__trace_sched_switch_state`, include/trace/events/sched.h).
const SLEEPS: &str = "prev_state & 255";

/// Three tracepoints, counted for one thread.
#[derive(Debug)]
pub(super) struct Tracepoints {
    punts: Passes,
    completions: Passes,
    sleeps: Passes,
}

/// Number of times each was passed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    pub(super) punts: u64,
    pub(super) completions: u64,
    pub(super) sleeps: u64,
}

impl Tracepoints {
    /// Begins to count for a thread; zero means the calling thread. An error states the
    /// requirements.
    pub(super) fn count(thread: i32) -> Result<Tracepoints, String> {
        Ok(Tracepoints {
            punts: count_punts(thread)?,
            completions: passes(COMPLETION, thread, None)?,
            sleeps: passes(SWITCH, thread, Some(SLEEPS))?,
        })
    }

    pub(super) fn so_far(&self) -> Option<Counts> {
        Some(Counts {
            punts: self.punts.so_far().ok()?,
            completions: self.completions.so_far().ok()?,
            sleeps: self.sleeps.so_far().ok()?,
        })
    }
}

/// Counts the requests that a thread gives to workers. An error states the requirements.
pub(super) fn count_punts(thread: i32) -> Result<Passes, String> {
    passes(PUNT, thread, None)
}

fn passes(name: &str, thread: i32, filter: Option<&str>) -> Result<Passes, String> {
    let number = tracepoint(&TRACEFS.map(Path::new), name, Path::new("/proc/filesystems"))?;
    Passes::count(number, thread, filter).map_err(|errno| match errno {
        Errno::ACCESS | Errno::PERM => {
            format!("perf_event_open is refused ({errno}): run as root, or with CAP_PERFMON and a readable tracefs")
        }
        errno => format!("perf_event_open cannot count {name} ({errno}): check the kernel log"),
    })
}

/// Returns the number of a tracepoint, from the first of these directories that contains it.
fn tracepoint(roots: &[&Path], name: &str, file_systems: &Path) -> Result<u64, String> {
    let mut why = None;
    for root in roots {
        match fs::read_to_string(root.join("events").join(name).join("id")) {
            Ok(text) => match text.trim().parse() {
                Ok(number) => return Ok(number),
                Err(_) => why = Some(format!("{} has a tracepoint without a number", root.display())),
            },
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                why = Some("tracefs is for root only: run as root".to_owned());
            }
            // Without tracefs the directory exists, but is empty.
            Err(_) if root.join("events").exists() => {
                let name = name.rsplit('/').next().unwrap_or(name);
                why = Some(format!(
                    "this kernel has no tracepoint {name}: take one that is built with CONFIG_FTRACE and CONFIG_IO_URING"
                ));
            }
            Err(_) => {}
        }
    }
    Err(why.unwrap_or_else(|| {
        let known = fs::read_to_string(file_systems);
        if known.is_ok_and(|known| !known.lines().any(|line| line.ends_with("tracefs"))) {
            return "this kernel has no tracefs: take one that is built with CONFIG_FTRACE".to_owned();
        }
        let and_root = if rustix::process::geteuid().is_root() { "" } else { ", and run as root" };
        format!("tracefs is not mounted: mount -t tracefs tracefs /sys/kernel/tracing{and_root}")
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tracepoint_that_cannot_be_counted_says_what_it_takes() {
        let dir = tempfile::tempdir().unwrap();
        let [empty, other, full, with, without] =
            ["empty", "other", "full", "with", "without"].map(|name| dir.path().join(name));
        fs::create_dir(&empty).unwrap();
        fs::create_dir_all(other.join("events/sched")).unwrap();
        let event = full.join("events").join(PUNT);
        fs::create_dir_all(&event).unwrap();
        fs::write(event.join("id"), "1234\n").unwrap();
        fs::write(&with, "nodev\ttracefs\n\text4\n").unwrap();
        fs::write(&without, "\text4\n").unwrap();

        let missing = dir.path().join("missing");
        let refusal = |roots: &[&Path], known: &Path| tracepoint(roots, PUNT, known).unwrap_err();
        assert!(refusal(&[&empty, &missing], &with).contains("not mounted: mount -t tracefs"));
        let root = rustix::process::geteuid().is_root();
        assert_eq!(refusal(&[&empty], &with).contains("run as root"), !root);
        // If /proc shows nothing, the message states the likelier cause.
        assert!(refusal(&[&empty], &missing).contains("not mounted"));
        assert!(refusal(&[&empty], &without).contains("no tracefs"));
        assert!(refusal(&[&empty, &other], &with).contains("no tracepoint io_uring_queue_async_work"));
        assert_eq!(tracepoint(&[&empty, &full], PUNT, &with), Ok(1234));
    }

    /// The filter and getrusage(2) must count the same sleeps.
    #[test]
    fn sleeps_are_counted_and_nothing_else() {
        let tracepoints = match Tracepoints::count(0) {
            Ok(tracepoints) => tracepoints,
            Err(why) => return eprintln!("skipped: {why}"),
        };
        let counts = || (tracepoints.so_far().unwrap().sleeps, super::super::kernel::sleeps());
        let before = counts();
        for _ in 0..10 {
            std::thread::sleep(std::time::Duration::from_micros(100));
            // Yields the processor, but stays runnable.
            std::thread::yield_now();
        }
        let after = counts();
        assert!(after.0 >= before.0 + 10, "{before:?}, {after:?}");
        assert_eq!(after.0 - before.0, after.1 - before.1);
    }
}
