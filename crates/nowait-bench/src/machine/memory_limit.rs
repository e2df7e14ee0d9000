//! A memory cgroup of our own: a process in it has page cache for so many bytes.
//!
//! The whole process moves in, and back when that is dropped, after an error and Ctrl-C too. (Not
//! after SIGKILL. The empty cgroup that it leaves is taken away by the next one.)

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::machine::tree::sweep;

const PREFIX: &str = "nowait-bench-";
const PROCESSES: &str = "cgroup.procs";

/// In the cgroup from `new` on; back where the process was when dropped.
#[derive(Debug)]
pub struct Limited {
    group: PathBuf,
    home: PathBuf,
}

impl Limited {
    /// Allows this process `bytes`, or says why that cannot be. What it holds already is not
    /// counted.
    pub fn new(bytes: u64) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("a memory cgroup takes root".to_owned());
        }
        let groups = fs::read_to_string("/proc/self/cgroup").map_err(|error| format!("/proc/self/cgroup: {error}"))?;
        let Place { home, parent, limit } = Place::of(&groups).ok_or("there is no memory controller")?;
        // A cgroup's own files go with it.
        sweep(&parent, PREFIX, |group| fs::remove_dir(group));
        let group = parent.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&group).map_err(|error| format!("create {}: {error}", group.display()))?;
        let limited = Self { group, home };
        limited.set(limit, bytes)?;
        limited.set(PROCESSES, std::process::id().into())?;
        Ok(limited)
    }

    fn set(&self, name: &str, value: u64) -> Result<(), String> {
        let path = self.group.join(name);
        fs::write(&path, value.to_string()).map_err(|error| format!("write {value} to {}: {error}", path.display()))
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let moved = fs::write(self.home.join(PROCESSES), std::process::id().to_string());
        let mut removed = fs::remove_dir(&self.group);
        // A thread that ends a moment ago may still be in it.
        for _ in 0..100 {
            if removed.is_ok() {
                break;
            }
            thread::sleep(Duration::from_millis(10));
            removed = fs::remove_dir(&self.group);
        }
        if let Err(error) = moved.and(removed) {
            eprintln!("nowait: cannot leave and remove {}: {error}; remove it yourself", self.group.display());
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Place {
    /// The cgroup that this process is in.
    home: PathBuf,
    /// Parent of a cgroup of ours.
    parent: PathBuf,
    /// The name of the file with the limit.
    limit: &'static str,
}

impl Place {
    /// From the text of `/proc/self/cgroup`.
    fn of(groups: &str) -> Option<Self> {
        let lines = || groups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
        let below = |root: &str, path: &str| Path::new(root).join(path.trim_start_matches('/'));
        if let Some((_, path)) = lines().find(|(controllers, _)| controllers.split(',').any(|name| name == "memory")) {
            let home = below("/sys/fs/cgroup/memory", path);
            return Some(Self { parent: home.clone(), home, limit: "memory.limit_in_bytes" });
        }
        // Version 2: a cgroup with processes in it gives its children no memory controller, so ours
        // is its neighbour (cgroup-v2.rst of the kernel's documentation, "No Internal Process
        // Constraint").
        let (_, path) = lines().find(|(controllers, _)| controllers.is_empty())?;
        let home = below("/sys/fs/cgroup", path);
        let parent = if path == "/" { home.clone() } else { home.parent()?.to_owned() };
        Some(Self { home, parent, limit: "memory.max" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_have_their_place() {
        let place = |groups| Place::of(groups).map(|Place { home, parent, limit }| (home, parent, limit));
        let expected = |home: &str, parent: &str, limit| Some((PathBuf::from(home), PathBuf::from(parent), limit));
        let first = "5:devices:/\n4:hugetlb,memory:/a/b\n0::/c\n";
        let group = "/sys/fs/cgroup/memory/a/b";
        assert_eq!(place(first), expected(group, group, "memory.limit_in_bytes"));
        assert_eq!(
            place("1:name=systemd:/\n0::/a/b\n"),
            expected("/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "memory.max")
        );
        assert_eq!(place("0::/\n"), expected("/sys/fs/cgroup/", "/sys/fs/cgroup/", "memory.max"));
        assert_eq!(place("1:cpu:/\n"), None);
    }

    #[test]
    fn the_process_is_in_it_and_then_back_and_it_is_gone() {
        let own = || fs::read_to_string("/proc/self/cgroup").unwrap();
        let before = own();
        match Limited::new(256 << 20) {
            Ok(limited) => {
                assert!(own().contains(&format!("/{PREFIX}{}", std::process::id())), "{}", own());
                let group = limited.group.clone();
                assert!(group.exists());
                drop(limited);
                assert!(!group.exists());
            }
            Err(why) => eprintln!("skipped: {why}"),
        }
        assert_eq!(own(), before);
    }
}
