//! System calls: pages in the cache, CPU time, context switches and kernel workers of a round,
//! mappings of files, and child processes for disturbances.
//!
//! `unsafe` is used only where no safe interface exists: for mappings (`mincore`, and reads of
//! mapped bytes), `getrusage` and `fork`.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr;

use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::{Advice as Expected, SeekFrom, fadvise, seek};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::random::Random;

pub const PAGE: u64 = 4096;

/// Returns for each page of the file's first `len` bytes whether it is in the page cache.
///
/// Uses `mincore`, since `cachestat` always reports 0 on overlayfs. `mincore` reports all pages as
/// cached to a caller who neither owns the file nor may write it.
pub fn residency(file: &File, len: u64) -> io::Result<Vec<bool>> {
    if len == 0 {
        return Ok(Vec::new());
    }
    // The mapping is never touched, so it has no page table entries that would keep pages in the
    // cache.
    let map = Mapping::new(file, len)?;
    let mut pages = vec![0u8; len.div_ceil(PAGE) as usize];
    // SAFETY: mincore requires a page-aligned mapped range, which `map` is, and one byte for each
    // of its pages, which `pages` has.
    let status = unsafe { libc::mincore(map.0.as_mut_ptr().cast(), map.0.len(), pages.as_mut_ptr()) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(pages.into_iter().map(|page| page & 1 != 0).collect())
}

/// A file's first bytes as memory, read-only and shared. For reads, shared and private are the
/// same.
///
/// The bytes are only copied, never referenced, since another process may write to the file. If a
/// process truncates the file, the next access beyond its end kills this process by SIGBUS.
#[derive(Debug)]
pub struct Mapping(MmapRaw);

impl Mapping {
    pub fn new(file: &File, len: u64) -> io::Result<Self> {
        let len = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        MmapOptions::new().len(len).map_raw_read_only(file).map(Self)
    }

    /// Disables readahead of page faults.
    pub fn expect_random(&self) -> io::Result<()> {
        self.0.advise(Advice::Random)
    }

    // Inlined into the loop over cached pages, where a call takes as long as the copy.
    #[inline]
    pub fn copy(&self, offset: u64, to: &mut [u8]) {
        let end = offset + to.len() as u64;
        assert!(end <= self.0.len() as u64, "{offset}..{end} is not mapped");
        // SAFETY: the source lies within the mapping, and `to` is separate memory. Another process
        // may write the bytes meanwhile: any value is valid, and the run compares them.
        unsafe { ptr::copy_nonoverlapping(self.0.as_ptr().add(offset as usize), to.as_mut_ptr(), to.len()) };
    }
}

/// Returns the number of unwritten bytes in the file's first `len`: holes, and allocated extents
/// without data. Reads of them do not use the disk. Drops the file's pages from the cache first,
/// since clean pages of such extents count as data.
pub fn unwritten(file: &File, len: u64) -> io::Result<u64> {
    drop_cache(file)?;
    let (mut at, mut unwritten) = (0, 0);
    while at < len {
        let data = match seek(file, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => len,
            data => data?.min(len),
        };
        unwritten += data - at;
        at = if data < len { seek(file, SeekFrom::Hole(data))? } else { len };
    }
    Ok(unwritten)
}

/// Requests the drop of the file's pages from the cache. The caller verifies it with [`residency`].
pub fn drop_cache(file: &File) -> io::Result<()> {
    drop_cache_of(file, 0, 0)
}

/// Requests the drop of a range of whole pages; a length of 0 means to the end of the file.
pub fn drop_cache_of(file: &File, offset: u64, len: u64) -> io::Result<()> {
    Ok(fadvise(file, offset, NonZeroU64::new(len), Expected::DontNeed)?)
}

/// Disables readahead on this open file, so that a read of 4 KiB loads only 4 KiB.
pub fn expect_random(file: &File) -> io::Result<()> {
    Ok(fadvise(file, 0, None, Expected::Random)?)
}

/// Starts reading a range into the cache without waiting for it.
pub fn will_need(file: &File, offset: u64, len: usize) -> io::Result<()> {
    Ok(fadvise(file, offset, NonZeroU64::new(len as u64), Expected::WillNeed)?)
}

/// Work of a disturbing process.
#[derive(Debug, Clone, Copy)]
pub enum Errand<'a> {
    Compute,
    /// Reads blocks at random offsets, drawn by `seed`.
    Read {
        file: &'a File,
        blocks: u64,
        bytes: usize,
        seed: u64,
    },
}

/// A forked child that repeats an errand until this is dropped or the parent ends.
#[derive(Debug)]
pub struct Child(Pid);

impl Child {
    /// Forks the child. Fails if the limit of processes is reached.
    pub fn start(errand: Errand<'_>) -> io::Result<Self> {
        let parent = rustix::process::getpid();
        // Allocated before the fork, since the child must not allocate. Aligned for direct reads of
        // any disk.
        let bytes = if let Errand::Read { bytes, .. } = errand { bytes } else { 1 };
        let mut buffer = memmap2::MmapMut::map_anon(bytes)?;
        // SAFETY: the child has only this thread, and locks that other threads held at the fork
        // stay locked. So the child may only make calls that are safe in a signal handler:
        // `disturb` makes system calls and computes, and neither allocates nor panics nor returns.
        match unsafe { libc::fork() } {
            0 => disturb(parent, errand, &mut buffer),
            id => Pid::from_raw(id).filter(|_| id > 0).map(Self).ok_or_else(io::Error::last_os_error),
        }
    }

    pub fn id(&self) -> i32 {
        self.0.as_raw_nonzero().get()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // The child's number is not reused before the wait, even if the child has ended.
        let _ = kill_process(self.0, Signal::KILL);
        while let Err(Errno::INTR) = waitpid(Some(self.0), WaitOptions::empty()) {}
    }
}

/// Runs in the forked child, under the rules in [`Child::start`].
fn disturb(parent: Pid, errand: Errand<'_>, buffer: &mut [u8]) -> ! {
    const STEPS: u64 = 1 << 16;
    let mut number: u64 = 0;
    while rustix::process::getppid() == Some(parent) {
        number = number.wrapping_add(1);
        match errand {
            Errand::Compute => {
                for step in 0..STEPS {
                    number = std::hint::black_box(number ^ step);
                }
            }
            Errand::Read { file, blocks, bytes, seed } => {
                let block = Random::at(seed, number).below(blocks);
                // After a read error, the tenant ends.
                if rustix::io::pread(file, &mut *buffer, block * bytes as u64).is_err() {
                    break;
                }
            }
        }
    }
    // SAFETY: ends the process at once, without running destructors.
    unsafe { libc::_exit(0) }
}

/// Returns a path by which this process can reopen a file without a name.
pub fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Returns the bytes that a process (its number, or `self`) has read from storage so far, including
/// its rings' kernel workers. `None` if the kernel does not count them.
pub fn read_bytes(process: impl fmt::Display) -> Option<u64> {
    number_of(format!("/proc/{process}/io"), "read_bytes:")
}

/// Returns the number after a name at the start of a line, in a file of `/proc`.
pub fn number_of(path: impl AsRef<Path>, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// CPU time and context switches so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    pub user_us: f64,
    pub system_us: f64,
    pub switches: f64,
}

impl Usage {
    /// Returns the usage of all threads of the process, including ended threads and `iou-wrk`
    /// threads.
    pub fn of_process() -> Self {
        Self::of(libc::RUSAGE_SELF)
    }

    pub fn of_this_thread() -> Self {
        Self::of(libc::RUSAGE_THREAD)
    }

    fn of(who: libc::c_int) -> Self {
        // SAFETY: all fields of `rusage` are integers, for which zero bytes are valid.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: getrusage fills only the given struct. With the constants used here it cannot
        // fail.
        unsafe { libc::getrusage(who, &mut usage) };
        let microseconds = |t: libc::timeval| t.tv_sec as f64 * 1e6 + t.tv_usec as f64;
        Self {
            user_us: microseconds(usage.ru_utime),
            system_us: microseconds(usage.ru_stime),
            switches: (usage.ru_nvcsw + usage.ru_nivcsw) as f64,
        }
    }

    pub fn cpu_us(&self) -> f64 {
        self.user_us + self.system_us
    }

    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            user_us: self.user_us - earlier.user_us,
            system_us: self.system_us - earlier.system_us,
            switches: self.switches - earlier.switches,
        }
    }
}

/// Runs of each `iou-wrk` thread of this process, and their time. A request that io_uring hands to
/// a worker (a punt) makes a worker run, so the increase counts the punts: exactly at depth 1, and
/// a lower bound if one wake-up serves several requests.
#[derive(Debug, Clone, Default)]
pub struct RingWorkers(Option<HashMap<String, Runs>>);

/// A thread's runs on a processor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Runs {
    pub count: u64,
    pub time_ns: u64,
}

impl RingWorkers {
    pub fn now() -> Self {
        Self::of(Path::new("/proc/self"))
    }

    /// Reads the runs from this directory of a process. Empty if the kernel does not count runs
    /// (CONFIG_SCHED_INFO): `schedstat` is then missing, or shows zero runs for the calling thread.
    fn of(process: &Path) -> Self {
        let counts = Runs::of(&process.join("schedstat")).is_some_and(|runs| runs.count > 0);
        let threads = fs::read_dir(process.join("task")).ok().filter(|_| counts);
        Self(threads.map(|threads| threads.filter_map(|thread| Self::of_thread(&thread.ok()?)).collect()))
    }

    /// Returns whether the kernel counts the runs of threads.
    pub fn are_told(&self) -> bool {
        self.0.is_some()
    }

    fn of_thread(thread: &fs::DirEntry) -> Option<(String, Runs)> {
        let comm = fs::read_to_string(thread.path().join("comm")).ok()?;
        if !comm.starts_with("iou-wrk-") {
            return None;
        }
        let runs = Runs::of(&thread.path().join("schedstat"))?;
        Some((thread.file_name().to_string_lossy().into_owned(), runs))
    }

    /// Returns the sum of the runs since `earlier`. A worker that did not exist then counts from 0.
    pub fn since(&self, earlier: &Self) -> Option<Runs> {
        let (now, earlier) = (self.0.as_ref()?, earlier.0.as_ref()?);
        Some(now.iter().fold(Runs::default(), |sum, (id, runs)| {
            let before = earlier.get(id).copied().unwrap_or_default();
            Runs {
                count: sum.count + runs.count.saturating_sub(before.count),
                time_ns: sum.time_ns + runs.time_ns.saturating_sub(before.time_ns),
            }
        }))
    }
}

impl Runs {
    /// Reads the first and third number of a thread's `schedstat`
    /// (Documentation/scheduler/sched-stats.rst, "/proc/<pid>/schedstat").
    fn of(schedstat: &Path) -> Option<Self> {
        let text = fs::read_to_string(schedstat).ok()?;
        let mut numbers = text.split_whitespace().map(str::parse);
        Some(Self { time_ns: numbers.next()?.ok()?, count: numbers.nth(1)?.ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn new_workers_count_from_zero_and_ended_ones_not_at_all() {
        let runs = |count, time_ns| Runs { count, time_ns };
        let before = RingWorkers(Some([("1".into(), runs(5, 100)), ("2".into(), runs(9, 900))].into()));
        let after = RingWorkers(Some([("1".into(), runs(7, 130)), ("3".into(), runs(4, 50))].into()));
        assert_eq!(after.since(&before), Some(runs(6, 80)));
    }

    #[test]
    fn a_kernel_without_scheduler_info_is_found_out() {
        assert!(RingWorkers::now().are_told());
        let folder = std::env::temp_dir().join(format!("nowait-bench-proc-{}", std::process::id()));
        fs::create_dir_all(folder.join("task")).unwrap();
        assert!(!RingWorkers::of(&folder).are_told(), "no schedstat");
        fs::write(folder.join("schedstat"), "0 0 0\n").unwrap();
        assert!(!RingWorkers::of(&folder).are_told(), "never run");
        fs::write(folder.join("schedstat"), "1 0 3\n").unwrap();
        assert!(RingWorkers::of(&folder).are_told());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn usage_grows() {
        let before = Usage::of_process();
        while Usage::of_process().since(&before).cpu_us() < 1000.0 {}
        assert!(Usage::of_this_thread().cpu_us() > 0.0);
    }

    #[test]
    fn what_is_mapped_is_what_the_file_holds() {
        let file = File::open("/proc/self/exe").unwrap();
        let mut expected = vec![0; 3 * PAGE as usize + 5];
        file.read_exact_at(&mut expected, 0).unwrap();
        let len = expected.len() as u64;
        let map = Mapping::new(&file, len).unwrap();
        let mut found = vec![0; expected.len() - 7];
        map.copy(7, &mut found);
        assert_eq!(found, expected[7..]);
        assert!(std::panic::catch_unwind(|| map.copy(len - 1, &mut [0; 2])).is_err());
    }

    #[test]
    fn a_file_just_read_is_resident() {
        let file = File::open("/proc/self/exe").unwrap();
        let pages = residency(&file, 8192).unwrap();
        assert_eq!(pages.len(), 2);
        assert!(pages[0]);
    }
}
