//! The amount of dirty data at which the kernel blocks writers: reads it, and lowers it
//! temporarily.
//!
//! On a machine with much memory the limit is several gigabytes, which a benchmark never reaches. A
//! lower limit affects every program on the machine. So it is set only for the table that needs it,
//! and restored at its end, also after an error or Ctrl-C. After SIGKILL it stays low, and the next
//! run would take it for the usual value.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use rustix::fs::{FlockOperation, flock};

use crate::sys::{PAGE, number_of};

/// Returns the dirty bytes at which writers are throttled (`nr_dirty_threshold` of `/proc/vmstat`);
/// `None` if that cannot be read.
pub fn bytes() -> Option<u64> {
    Some(number_of("/proc/vmstat", "nr_dirty_threshold ")? * PAGE)
}

/// The previous limits, which drop restores.
#[derive(Debug)]
pub struct Lowered {
    saved: Vec<(PathBuf, String)>,
    /// Held until the values are restored. Without the lock, the second of two overlapping runs
    /// would restore the values that the first had lowered.
    _lock: File,
}

impl Lowered {
    /// Sets the limits: writers sleep from `limit` bytes on, and write-back begins at `background`.
    /// After an error the limits are unchanged. Returns `WouldBlock` if another run has lowered
    /// them.
    pub fn new(limit: u64, background: u64) -> io::Result<Self> {
        Self::in_folder("/proc/sys/vm".into(), limit, background)
    }

    fn in_folder(folder: PathBuf, limit: u64, background: u64) -> io::Result<Self> {
        let lock = File::open(folder.join("dirty_bytes"))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        let mut lowered = Self { saved: Vec::new(), _lock: lock };
        // The background limit first, since it must stay below the other one at any time.
        for (name, value) in [("dirty_background", background), ("dirty", limit)] {
            let (in_bytes, in_percent) = (folder.join(format!("{name}_bytes")), folder.join(format!("{name}_ratio")));
            let bytes = fs::read_to_string(&in_bytes)?;
            let percent = fs::read_to_string(&in_percent)?;
            fs::write(&in_bytes, value.to_string())?;
            // One of the two values is in force; writing one zeroes the other.
            let saved = if bytes.trim() == "0" { (in_percent, percent) } else { (in_bytes, bytes) };
            lowered.saved.push(saved);
        }
        Ok(lowered)
    }
}

impl Drop for Lowered {
    fn drop(&mut self) {
        for (path, value) in self.saved.drain(..).rev() {
            if let Err(error) = fs::write(&path, value.trim()) {
                let (path, value) = (path.display(), value.trim());
                eprintln!("nowait: cannot write {value} back to {path}: {error}; write it there yourself");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_that_was_in_force_is_put_back() {
        let folder = std::env::temp_dir().join(format!("nowait-bench-limits-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let before = [
            ("dirty_bytes", "0\n"),
            ("dirty_ratio", "20\n"),
            ("dirty_background_bytes", "4096\n"),
            ("dirty_background_ratio", "0\n"),
        ];
        for (name, value) in before {
            fs::write(folder.join(name), value).unwrap();
        }
        let lowered = Lowered::in_folder(folder.clone(), 2000, 1000).unwrap();
        let second = Lowered::in_folder(folder.clone(), 2, 1);
        assert!(second.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock));
        let value = |name: &str| fs::read_to_string(folder.join(name)).unwrap().trim().to_owned();
        assert_eq!((value("dirty_bytes"), value("dirty_background_bytes")), ("2000".into(), "1000".into()));
        fs::write(folder.join("dirty_ratio"), "0").unwrap();
        drop(lowered);
        assert_eq!((value("dirty_ratio"), value("dirty_background_bytes")), ("20".into(), "4096".into()));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_limit_can_be_read() {
        assert!(bytes().is_some_and(|bytes| bytes > 0));
    }
}
