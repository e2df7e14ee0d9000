//! The commands that everybody has: `dd`, past the page cache, `cat` and `cp`, through it. Depth
//! means nothing to them, and `cat` and `cp` choose the size of their requests.
//!
//! `cp-reflink-never` moves the bytes, in calls of its own. `cp-reflink-auto`, the usual one, has
//! the file system share the blocks if it can (btrfs, xfs), and so copies nothing; else the kernel
//! moves them (`copy_file_range(2)`). Neither bytes read nor bytes written tell which: the source's
//! pages in the cache afterwards do, of which shared blocks leave none.
//!
//! The clock runs from the start of the process to its end, and its processor time is counted as
//! that of a worker. The files are the standard input and output of the process: ours have no names
//! that it could be told. What `dd` writes without reading a file is `/dev/zero`, which costs it
//! something, and other ways nothing.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::measure::meter::{Round, Tally};
use crate::measure::options::Direction;
use crate::measure::work::{Route, Stream};
use crate::ways::{StreamWay, Way, Written};

pub(crate) struct Dd;
pub(crate) struct Cat;
pub(crate) struct Cp {
    name: &'static str,
    reflink: &'static str,
}

pub(crate) const CP: Cp = Cp { name: "cp-reflink-never", reflink: "--reflink=never" };
pub(crate) const CP_REFLINK: Cp = Cp { name: "cp-reflink-auto", reflink: "--reflink=auto" };

/// Interval at which the wait for a command checks for an interrupt.
const ASKED_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

impl Way for Dd {
    fn name(&self) -> &'static str {
        "dd"
    }

    fn refused(&self) -> Option<String> {
        not_installed(Command::new("dd").args(["if=/dev/null", "of=/dev/null"]))
    }
}

impl StreamWay for Dd {
    fn direct(&self) -> bool {
        true
    }

    fn has_depth(&self) -> bool {
        false
    }

    fn written(&self) -> Written {
        Written::Zeros
    }

    fn stream(&self, job: &Stream<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let mut dd = Command::new("dd");
        dd.arg(format!("bs={}", job.block)).arg("status=none");
        match job.route {
            Route::Write { .. } => dd.args(["if=/dev/zero", "iflag=count_bytes"]).arg(format!("count={}", job.size)),
            Route::Read { .. } | Route::Copy { .. } => dd.args(["if=/proc/self/fd/0", "iflag=direct"]),
        };
        match job.route {
            Route::Read { .. } if round.tally.verifies() => {}
            Route::Read { .. } => drop(dd.arg("of=/dev/null")),
            _ => drop(dd.args(["of=/proc/self/fd/1", "oflag=direct", "conv=fdatasync"])),
        }
        let child = dd.stdin(input(job)?).stdout(output(job, round)?);
        round.start();
        finish(child, job, buffer, &mut round.tally)?;
        round.stop();
        Ok(())
    }
}

impl Way for Cat {
    fn name(&self) -> &'static str {
        "cat"
    }

    fn refused(&self) -> Option<String> {
        not_installed(&mut Command::new("cat"))
    }
}

impl StreamWay for Cat {
    fn direct(&self) -> bool {
        false
    }

    fn has_depth(&self) -> bool {
        false
    }

    fn suits(&self, direction: Direction) -> bool {
        direction.reads()
    }

    fn stream(&self, job: &Stream<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        through_the_cache(&mut Command::new("cat"), job, buffer, round)
    }
}

impl Way for Cp {
    fn name(&self) -> &'static str {
        self.name
    }

    /// Others than that of GNU do not know `--reflink`, or do not say whether they do.
    fn refused(&self) -> Option<String> {
        let mut cp = Command::new("cp");
        cp.args([self.reflink, "--version"]);
        let knows = |status: ExitStatus| (!status.success()).then(|| format!("this cp does not know {}", self.reflink));
        tried(&mut cp).map_or_else(Some, knows)
    }
}

impl StreamWay for Cp {
    fn direct(&self) -> bool {
        false
    }

    fn has_depth(&self) -> bool {
        false
    }

    fn suits(&self, direction: Direction) -> bool {
        direction == Direction::Copy
    }

    fn stream(&self, job: &Stream<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let mut cp = Command::new("cp");
        through_the_cache(cp.args([self.reflink, "/proc/self/fd/0", "/proc/self/fd/1"]), job, buffer, round)
    }
}

/// Runs a command that knows no `fdatasync(2)`, and makes it for it.
fn through_the_cache(
    command: &mut Command,
    job: &Stream<'_>,
    buffer: &mut [u8],
    round: &mut Round<'_>,
) -> io::Result<()> {
    let written = job.destination().map(|path| OpenOptions::new().write(true).open(path)).transpose()?;
    let child = command.stdin(input(job)?).stdout(output(job, round)?);
    round.start();
    finish(child, job, buffer, &mut round.tally)?;
    if let Some(written) = written {
        written.sync_data()?;
    }
    round.stop();
    Ok(())
}

pub(in crate::ways) fn not_installed(command: &mut Command) -> Option<String> {
    tried(command).err()
}

/// Runs it once, for its status.
pub(in crate::ways) fn tried(command: &mut Command) -> Result<ExitStatus, String> {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let name = command.get_program().to_string_lossy();
    status.map_err(|error| format!("{name} cannot be started: {error}; install it, or put its folder into PATH"))
}

fn input(job: &Stream<'_>) -> io::Result<Stdio> {
    job.source().map_or(Ok(Stdio::null()), |path| File::open(path).map(Stdio::from))
}

/// A round that checks the bytes of what is read gets them through a pipe.
fn output(job: &Stream<'_>, round: &Round<'_>) -> io::Result<Stdio> {
    match job.destination() {
        // To append is refused by `copy_file_range(2)`, with which cat would write nothing where
        // files can share their blocks.
        Some(path) => OpenOptions::new().append(true).open(path).map(Stdio::from),
        None if round.tally.verifies() => Ok(Stdio::piped()),
        None => Ok(Stdio::null()),
    }
}

/// Runs it to its end, or until the user wants to stop.
fn finish(command: &mut Command, job: &Stream<'_>, buffer: &mut [u8], tally: &mut Tally<'_>) -> io::Result<()> {
    let mut running = Running::start(command)?;
    let checked = running.0.stdout.take().map_or(Ok(()), |bytes| check(bytes, job, buffer, tally));
    running.end(job.cancel)?;
    tally.moved_elsewhere(job.blocks(), job.size);
    checked
}

/// Runs a command that reads and writes files by their names to its end, or until the user wants
/// to stop.
pub(in crate::ways) fn ended(command: &mut Command, cancel: &AtomicBool) -> io::Result<()> {
    Running::start(command.stdin(Stdio::null()).stdout(Stdio::null()))?.end(cancel)
}

fn check(mut bytes: impl Read, job: &Stream<'_>, buffer: &mut [u8], tally: &mut Tally<'_>) -> io::Result<()> {
    for offset in job.each_offset() {
        let block = &mut buffer[..job.len_at(offset)];
        bytes.read_exact(block)?;
        tally.verify(offset, block);
    }
    Ok(())
}

/// A command that does not outlive us after an error.
struct Running(Child);

impl Running {
    /// In English, so that a full disk is known by its message. In a group of its own, so that
    /// Ctrl-C is not taken for its failure.
    fn start(command: &mut Command) -> io::Result<Self> {
        command.env("LC_ALL", "C").process_group(0).stderr(Stdio::piped()).spawn().map(Self)
    }

    fn end(&mut self, cancel: &AtomicBool) -> io::Result<()> {
        let child = &mut self.0;
        // Where there is no such descriptor, the user has to wait until the command ends.
        if let Ok(ended) = pidfd_open(Pid::from_child(child), PidfdFlags::empty()) {
            let mut polled = [PollFd::new(&ended, PollFlags::IN)];
            while matches!(poll(&mut polled, Some(&ASKED_EVERY)), Ok(0) | Err(Errno::INTR)) {
                if cancel.load(Ordering::Relaxed) {
                    return Err(io::ErrorKind::Interrupted.into());
                }
            }
        }
        let mut message = String::new();
        child.stderr.take().map_or(Ok(0), |mut errors| errors.read_to_string(&mut message))?;
        let status = child.wait()?;
        if !status.success() {
            let full = message.contains("No space left on device");
            let kind = if full { io::ErrorKind::StorageFull } else { io::ErrorKind::Other };
            return Err(io::Error::new(kind, format!("{status}: {}", message.trim())));
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Of one that has been waited for, these do nothing.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
