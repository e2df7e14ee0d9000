//! Competing programs while a way is measured: busy processors, and a reader of the same disk. They
//! are separate processes, so that a way's figures do not include their work.

use std::fs::OpenOptions;
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;

use crate::sys::{self, Child, Errand};

/// Size of the tenant's reads.
pub const TENANT_BLOCK: usize = 128 << 10;
/// Number of the tenant's reads in flight.
pub const TENANT_DEPTH: usize = 4;

/// Programs that run until this is dropped, or the process ends.
#[derive(Debug)]
pub struct Programs {
    children: Vec<Child>,
    reads: bool,
}

impl Programs {
    /// Keeps all processors busy that this process may use.
    pub fn busy() -> io::Result<Self> {
        let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let children = (0..processors).map(|_| Child::start(Errand::Compute)).collect::<io::Result<_>>()?;
        Ok(Self { children, reads: false })
    }

    /// Reads blocks at random offsets of this file, past the page cache. An error if its file
    /// system has no direct I/O.
    pub fn tenant(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?;
        let blocks = file.metadata()?.len() / TENANT_BLOCK as u64;
        if blocks == 0 {
            let text = format!("it is smaller than a tenant's read of {TENANT_BLOCK} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let errand = |seed| Errand::Read { file: &file, blocks, bytes: TENANT_BLOCK, seed };
        let children = (0..TENANT_DEPTH as u64).map(|seed| Child::start(errand(seed))).collect::<io::Result<_>>()?;
        Ok(Self { children, reads: true })
    }

    /// Returns the number of the tenant's reads so far. `None` for programs that do not read, or if
    /// the kernel does not count reads.
    pub fn reads(&self) -> Option<u64> {
        let bytes = self.children.iter().map(|child| sys::read_bytes(child.id()));
        let sum: u64 = bytes.sum::<Option<u64>>()?;
        self.reads.then_some(sum / TENANT_BLOCK as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::{Duration, Instant};

    fn soon(done: impl Fn() -> bool) -> bool {
        let began = Instant::now();
        while !done() && began.elapsed() < Duration::from_secs(20) {
            thread::sleep(Duration::from_millis(5));
        }
        done()
    }

    /// Processor time of a process so far, in ticks (proc_pid_stat(5)).
    fn ticks(id: i32) -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        text.rsplit(") ").next()?.split(' ').nth(11)?.parse().ok()
    }

    #[test]
    fn busy_programs_compute_until_they_are_dropped() {
        let programs = Programs::busy().unwrap();
        let ids: Vec<i32> = programs.children.iter().map(Child::id).collect();
        assert!(!ids.is_empty() && programs.reads().is_none());
        assert!(soon(|| ids.iter().all(|id| ticks(*id).is_some_and(|ticks| ticks > 2))), "{ids:?}");
        drop(programs);
        assert!(ids.iter().all(|id| ticks(*id).is_none()), "{ids:?} are still there");
    }

    #[test]
    fn a_tenant_reads_from_the_disk() {
        let path = std::env::temp_dir().join(format!("nowait-bench-tenant-{}", std::process::id()));
        fs::write(&path, vec![7; 4 * TENANT_BLOCK + 100]).unwrap();
        match Programs::tenant(&path) {
            Ok(programs) => assert!(soon(|| programs.reads().is_none_or(|reads| reads > 50)), "{:?}", programs.reads()),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{error}"),
        }
        fs::write(&path, [7; 100]).unwrap();
        assert!(Programs::tenant(&path).is_err() && Programs::tenant(&path.join("none")).is_err());
        fs::remove_file(path).unwrap();
    }
}
