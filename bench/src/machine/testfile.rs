//! The test file, and its state in the page cache: cold, warm or half-cached, always verified. Also
//! the free space of a file system.
//!
//! A created test file contains random data, since storage that compresses would seem faster. It is
//! written and synced, since the kernel answers reads of unwritten extents without the disk. It has
//! no name, and is reopened through `/proc/self/fd`. So it disappears however this process ends.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::fs::fstatvfs;

use crate::error::{Error, ErrorKind, Result};
use crate::random::Random;
use crate::report::figures::whole_size_of;
use crate::sys::{self, PAGE};

/// Minimum file size. In a smaller file, offsets at depth 128 are not random.
pub const SMALLEST: u64 = 1 << 20;

const CHUNK: usize = 1 << 20;
/// Bytes between syncs, so that the shown progress is accurate and an interrupt takes effect at
/// once.
const SYNC_EVERY: u64 = 64 << 20;
/// Attempts to bring pages into a state, with increasing pauses. While the cache is filled, the
/// kernel may drop pages (memory pressure, a `drop_caches`). Dirty pages, and pages in another
/// processor's list, may stay cached for a while.
const ATTEMPTS: u32 = 6;

#[derive(Debug)]
pub struct TestFile {
    /// The file without readahead.
    random: File,
    /// The file with direct I/O, if the ways bypass the page cache.
    direct: Option<File>,
    path: PathBuf,
    size: u64,
    /// Seed of the contents; `None` for a user's file, whose contents are compared with the result
    /// of `pread`.
    seed: Option<u64>,
    origin: String,
    /// Keeps the unlinked file alive.
    _keeper: Option<File>,
}

/// The first bytes of each page, by which a timed round identifies a page in some nanoseconds.
/// Unknown for a user's file.
#[derive(Debug, Clone, Copy)]
pub struct Marks(Option<u64>);

impl Marks {
    /// Returns whether `page` begins as the file does at `offset`, a multiple of the page size.
    #[inline]
    pub fn hold(self, offset: u64, page: &[u8]) -> bool {
        let Some(seed) = self.0 else { return true };
        page.starts_with(&Random::at(seed, offset / 8).number().to_le_bytes())
    }
}

impl TestFile {
    /// Creates the file in `dir`. `progress` receives the number of bytes of each step.
    pub fn make(dir: &Path, size: u64, seed: u64, cancel: &AtomicBool, mut progress: impl FnMut(u64)) -> Result<Self> {
        require_room(size, "--size", dir)?;
        let mut keeper = create_nameless(dir)?;
        write_seeded(&mut keeper, dir, size, seed, cancel, &mut progress)?;
        Self::over(
            PathBuf::from(format!("/proc/self/fd/{}", keeper.as_raw_fd())),
            size,
            Some(seed),
            "made for this run, random data, written and synced".to_owned(),
            Some(keeper),
        )
    }

    /// Uses a user's file, read-only.
    pub fn existing(path: &Path) -> Result<Self> {
        let size = fs::metadata(path).and_then(|about| match about.len() {
            _ if about.is_dir() => Err(io::Error::other("it is a directory")),
            _ if !about.is_file() => Err(io::Error::other("it is not a regular file")),
            small if small < SMALLEST => Err(io::Error::other(format!("it has only {small} bytes"))),
            size => File::open(path).map(|_| size),
        });
        let size = size.map_err(|why| {
            let denied = why.kind() == io::ErrorKind::PermissionDenied;
            let kind = if denied { ErrorKind::NotWritable } else { ErrorKind::BadFile };
            let (path, least) = (path.display(), SMALLEST >> 20);
            let text =
                format!("cannot measure {path}: {why}; give a regular file of at least {least} MiB, or omit --file");
            Error::new(kind, text)
        })?;
        Self::over(path.to_owned(), size, None, format!("{}, read-only", path.display()), None)
    }

    fn over(path: PathBuf, size: u64, seed: Option<u64>, origin: String, keeper: Option<File>) -> Result<Self> {
        let random = File::open(&path).map_err(|error| Error::io("open", &path, &error))?;
        sys::expect_random(&random).map_err(|error| Error::io("fadvise RANDOM on", &path, &error))?;
        Ok(Self { random, direct: None, path, size, seed, origin, _keeper: keeper })
    }

    /// Makes all ways bypass the page cache. Excludes a partial last page, whose length is not
    /// aligned.
    pub fn past_the_cache(mut self) -> Result<Self> {
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&self.path);
        let direct = direct.map_err(|error| {
            let text = format!("cannot read {} past the page cache: {error}; omit --direct", self.name());
            Error::new(ErrorKind::BadFile, text)
        })?;
        self.direct = Some(direct);
        self.size -= self.size % PAGE;
        self.origin.push_str(", past the page cache");
        Ok(self)
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Returns a path by which this process can reopen the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the open file for all ways, without readahead.
    pub fn open(&self) -> &File {
        self.direct.as_ref().unwrap_or(&self.random)
    }

    /// Returns the open file that uses the page cache.
    pub fn through_the_cache(&self) -> &File {
        &self.random
    }

    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Compares `bytes` with the file's contents at `offset`.
    pub fn matches(&self, offset: u64, bytes: &[u8]) -> bool {
        if offset + bytes.len() as u64 > self.size {
            return false;
        }
        self.bytes(offset, bytes.len()).is_ok_and(|expected| expected == bytes)
    }

    /// Returns the checksum (CRC-32C) of `len` bytes at `offset`.
    pub fn checksum(&self, offset: u64, len: usize) -> Result<u32> {
        Ok(crc32c::crc32c(&self.bytes(offset, len)?))
    }

    fn bytes(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        match self.seed {
            Some(seed) => fill(seed, offset, &mut bytes),
            None => {
                let read = self.random.read_exact_at(&mut bytes, offset);
                read.map_err(|error| Error::io("read", &self.path, &error))?;
            }
        }
        Ok(bytes)
    }

    pub fn marks(&self) -> Marks {
        Marks(self.seed)
    }

    /// Drops every page of the file from the cache and verifies that (all but one in a thousand)
    /// are gone.
    pub fn make_cold(&self) -> Result<()> {
        let mut cached = 0;
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                let _ = self.random.sync_data();
                pause(attempt);
            }
            sys::drop_cache(&self.random).map_err(|error| Error::io("fadvise DONTNEED on", &self.path, &error))?;
            cached = self.cached_pages()?;
            if cached <= self.pages() / 1000 {
                return Ok(());
            }
        }
        let advice = match self.seed {
            Some(_) => "choose a --dir on a disk: tmpfs keeps its files in memory",
            None => {
                "end the programs that map it, run as its owner (to others mincore reports all pages as cached), \
                 or omit --file"
            }
        };
        Err(self.not_cold(cached, self.pages(), advice))
    }

    /// Returns the number of the file's pages in the page cache.
    pub fn cached_pages(&self) -> Result<u64> {
        Ok(self.residency()?.into_iter().filter(|&page| page).count() as u64)
    }

    /// Reads the whole file into the cache and verifies that it stayed there.
    pub fn make_warm(&self) -> Result<()> {
        self.make_mixed(std::iter::once((0..self.pages(), true)))
    }

    /// Leaves exactly the first half of each block at `offsets` in the cache, and verifies that.
    /// Blocks must not overlap.
    pub fn make_half_cached(&self, offsets: &[u64], block: usize) -> Result<()> {
        let half = block as u64 / 2 / PAGE;
        let halves = |&offset: &u64| {
            let start = offset / PAGE;
            [(start..start + half, true), (start + half..start + 2 * half, false)]
        };
        self.make_mixed(offsets.iter().flat_map(halves))
    }

    /// Brings runs of pages into the cache or out of it, and verifies the state of all of them.
    /// Correct runs are left alone: after a round, only the few pages that it has read must be
    /// changed for the next one.
    pub fn make_mixed(&self, runs: impl Iterator<Item = (Range<u64>, bool)> + Clone) -> Result<()> {
        let (mut missing, mut surplus, mut hot, mut cold) = (0, 0, 0, 0);
        for attempt in 0..ATTEMPTS {
            if attempt > 1 {
                pause(attempt);
            }
            let pages = self.residency()?;
            (missing, surplus, hot, cold) = (0, 0, 0, 0);
            let mut wrong = Vec::new();
            for (run, is_hot) in runs.clone() {
                let of_run = &pages[run.start as usize..run.end as usize];
                let others = of_run.iter().filter(|&&page| page != is_hot).count() as u64;
                let (of_kind, all) = if is_hot { (&mut missing, &mut hot) } else { (&mut surplus, &mut cold) };
                *of_kind += others;
                *all += of_run.len() as u64;
                if others > 0 {
                    wrong.push((run, is_hot));
                }
            }
            if missing == 0 && surplus == 0 {
                return Ok(());
            }
            if attempt > 0 && surplus > 0 {
                // A large folio that belongs to two runs is only dropped with the whole file:
                // mm/truncate.c, mapping_try_invalidate(). The written file may have such folios.
                self.make_cold()?;
                wrong = runs.clone().filter(|(_, is_hot)| *is_hot).collect();
            }
            wrong.iter().try_for_each(|(run, is_hot)| self.put(run, *is_hot))?;
        }
        if missing > 0 {
            return Err(self.not_cached(missing, hot));
        }
        let advice = "readahead cannot be turned off on this file system; choose another --dir";
        Err(self.not_cold(surplus, cold, advice))
    }

    /// Brings a run of pages into the cache or out of it.
    fn put(&self, run: &Range<u64>, cached: bool) -> Result<()> {
        let (start, end) = (run.start * PAGE, self.size.min(run.end * PAGE));
        if cached {
            let mut buffer = vec![0; CHUNK.min((end - start) as usize)];
            return (start..end).step_by(CHUNK).try_for_each(|offset| {
                let read = self.random.read_exact_at(&mut buffer[..CHUNK.min((end - offset) as usize)], offset);
                read.map_err(|error| Error::io("read", &self.path, &error))
            });
        }
        let dropped = sys::drop_cache_of(&self.random, start, (run.end - run.start) * PAGE);
        dropped.map_err(|error| Error::io("fadvise DONTNEED on", &self.path, &error))
    }

    pub fn pages(&self) -> u64 {
        self.size.div_ceil(PAGE)
    }

    fn residency(&self) -> Result<Vec<bool>> {
        sys::residency(&self.random, self.size).map_err(|error| Error::io("mincore of", &self.path, &error))
    }

    fn not_cold(&self, cached: u64, pages: u64, advice: &str) -> Error {
        let name = self.name();
        let text = format!("cannot make {name} cold: {cached} of {pages} pages still cached; {advice}");
        Error::new(ErrorKind::NotCold, text)
    }

    fn not_cached(&self, missing: u64, pages: u64) -> Error {
        let name = self.name();
        let text = format!(
            "cannot keep {name} in the page cache: {missing} of {pages} pages are gone after reading; \
             use a smaller --size, or end the program that drops caches"
        );
        Error::new(ErrorKind::Other, text)
    }

    /// Returns the name for messages.
    pub fn name(&self) -> String {
        if self.seed.is_some() { "the test file".to_owned() } else { self.path.display().to_string() }
    }
}

/// Creates a file in `dir` without a name.
pub(crate) fn create_nameless(dir: &Path) -> Result<File> {
    tempfile::tempfile_in(dir).map_err(|error| cannot_write("create the test file", dir, &error))
}

/// Returns the free bytes of the file system.
pub fn free_bytes(dir: &Path) -> Result<u64> {
    // Fails if the directory is not writable.
    let probe = create_nameless(dir)?;
    let about = fstatvfs(probe).map_err(|error| Error::io("statvfs", dir, &error.into()))?;
    Ok(about.f_bavail.saturating_mul(about.f_frsize))
}

/// Returns an error if `bytes` do not fit. `option` reduces the required space.
pub fn require_room(bytes: u64, option: &str, dir: &Path) -> Result<()> {
    let free = free_bytes(dir)?;
    if bytes <= free { Ok(()) } else { Err(no_room(bytes, option, dir, &format!("{} are free", whole_size_of(free)))) }
}

pub fn no_room(bytes: u64, option: &str, dir: &Path, why: &str) -> Error {
    let (size, dir) = (whole_size_of(bytes), dir.display());
    let text = format!("no room to write {size} in {dir}: {why}; use a smaller {option} or another --dir");
    Error::new(ErrorKind::NoRoom, text)
}

fn write_seeded(
    file: &mut File,
    dir: &Path,
    size: u64,
    seed: u64,
    cancel: &AtomicBool,
    progress: &mut impl FnMut(u64),
) -> Result<()> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => no_room(size, "--size", dir, &error.to_string()),
        _ => cannot_write("write the test file", dir, &error),
    };
    let mut buffer = vec![0; CHUNK];
    for offset in (0..size).step_by(CHUNK) {
        if cancel.load(Ordering::Relaxed) {
            return Err(Error::interrupted());
        }
        let chunk = &mut buffer[..CHUNK.min((size - offset) as usize)];
        fill(seed, offset, chunk);
        file.write_all(chunk).map_err(failed)?;
        if (offset + CHUNK as u64) % SYNC_EVERY == 0 {
            file.sync_data().map_err(failed)?;
        }
        progress(chunk.len() as u64);
    }
    file.sync_all().map_err(failed)
}

fn cannot_write(operation: &str, dir: &Path, error: &io::Error) -> Error {
    // procfs refuses a new name with the errno of a missing directory.
    let why = match (pseudo_file_system(dir), dir.try_exists()) {
        (Some(name), _) => format!("{name} is a pseudo file system, and takes no files"),
        (None, Ok(false)) => "there is no such directory".to_owned(),
        (None, _) => error.to_string(),
    };
    let text = format!(
        "cannot {operation} in {}: {why}; use --dir with a directory that can be written, or --file",
        dir.display()
    );
    Error::new(ErrorKind::of_write(error), text)
}

/// Returns the name of the file system that contains the path, or its nearest ancestor, if programs
/// cannot create files there.
fn pseudo_file_system(path: &Path) -> Option<String> {
    let path = std::path::absolute(path).ok()?;
    let ancestor = path.ancestors().find_map(|path| File::open(path).ok())?;
    nowait_probe::Place::of(&ancestor).file_system.filter(|name| ["proc", "sysfs", "cgroup2"].contains(&name.as_str()))
}

/// Fills `buffer` with the seeded contents at `offset`.
pub(crate) fn fill(seed: u64, offset: u64, buffer: &mut [u8]) {
    let mut random = Random::at(seed, offset / 8);
    let head = (offset % 8) as usize;
    let mut rest = buffer;
    if head != 0 {
        let word = random.number().to_le_bytes();
        let (start, after) = rest.split_at_mut(rest.len().min(8 - head));
        start.copy_from_slice(&word[head..head + start.len()]);
        rest = after;
    }
    for piece in rest.chunks_mut(8) {
        piece.copy_from_slice(&random.number().to_le_bytes()[..piece.len()]);
    }
}

/// Waits before another attempt.
fn pause(attempt: u32) {
    thread::sleep(Duration::from_millis(10 << attempt));
}

/// Returns whether the file system supports `O_DIRECT`.
pub fn allows_direct(path: &Path) -> io::Result<bool> {
    match OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn content_depends_on_the_offset_alone() {
        let mut whole = vec![0; 100];
        fill(9, 0, &mut whole);
        for (offset, len) in [(0, 3), (1, 2), (5, 40), (8, 8), (13, 1), (93, 7)] {
            let mut part = vec![0; len];
            fill(9, offset as u64, &mut part);
            assert_eq!(part, whole[offset..offset + len], "{offset}+{len}");
        }
    }

    #[test]
    fn the_file_has_no_name_and_its_content_is_known() {
        let file = TestFile::make(&std::env::temp_dir(), SMALLEST + 5, 1, &AtomicBool::new(false), |_| {}).unwrap();
        assert_eq!(file.open().metadata().unwrap().nlink(), 0);
        let mut tail = vec![0; 10];
        assert_eq!(File::open(file.path()).unwrap().read_at(&mut tail, SMALLEST).unwrap(), 5);
        assert!(file.matches(SMALLEST, &tail[..5]));
        assert!(!file.matches(SMALLEST - 1, &tail[..5]));
        assert!(!file.matches(SMALLEST + 1, &tail[..5]), "beyond the end");
    }

    #[test]
    fn cancelled_while_it_is_made() {
        let made = TestFile::make(&std::env::temp_dir(), SMALLEST, 1, &AtomicBool::new(true), |_| {});
        assert_eq!(made.unwrap_err().kind(), ErrorKind::Interrupted);
    }

    #[test]
    fn unusable_files_say_so() {
        for path in ["/nonexistent", "/tmp", "/dev/null", "/etc/hostname"] {
            assert_eq!(TestFile::existing(Path::new(path)).unwrap_err().kind(), ErrorKind::BadFile, "{path}");
        }
    }

    #[test]
    fn a_directory_that_takes_no_file_is_told_from_one_that_is_missing() {
        for (dir, words) in [
            ("/proc", "proc is a pseudo file system"),
            ("/proc/xx/yy", "proc is a pseudo file system"),
            ("/sys", "sysfs is a pseudo file system"),
            ("/tmp/no-such-directory", "there is no such directory"),
            ("/etc/hostname", "Not a directory"),
        ] {
            let text = create_nameless(Path::new(dir)).unwrap_err().to_string();
            assert!(text.contains(words) && text.contains(&format!(" in {dir}: ")), "{text}");
        }
    }

    #[test]
    fn a_file_system_without_direct_access_is_told_from_a_file_that_is_not_there() {
        assert!(!allows_direct(Path::new("/proc/self/status")).unwrap());
        assert!(allows_direct(Path::new("/nonexistent")).is_err());
    }
}
