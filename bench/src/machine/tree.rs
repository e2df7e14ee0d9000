//! Many small files in a separate directory of the run.
//!
//! Ways open them by name, so unlike the test file they have names. They are removed at the end of
//! the run, also after an error or Ctrl-C. The next run in the same directory removes what a killed
//! run left ([`sweep`]).

use std::fs::{self, File};
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::machine::testfile;
use crate::random::Random;
use crate::sys::{self, PAGE};

const PREFIX: &str = ".nowait-bench-files-";
/// Number of files in each directory.
const ABREAST: u64 = 1000;
const ATTEMPTS: u32 = 4;

#[derive(Debug)]
pub struct Tree {
    folder: PathBuf,
    files: u64,
    lengths: RangeInclusive<u64>,
    seed: u64,
}

impl Tree {
    /// Makes `files` files in `dir`, of lengths drawn by seed, and syncs them. `progress` receives the
    /// bytes of each.
    pub fn make(
        dir: &Path,
        files: u64,
        lengths: RangeInclusive<u64>,
        seed: u64,
        cancel: &AtomicBool,
        mut progress: impl FnMut(u64),
    ) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let folder = dir.join(format!("{PREFIX}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir(&folder).map_err(|error| cannot_write(dir, &error))?;
        // From here on, drop removes the files.
        let tree = Self { folder, files, lengths, seed };
        for number in 0..files {
            if cancel.load(Ordering::Relaxed) {
                return Err(Error::interrupted());
            }
            let path = tree.path(number);
            let made = if number % ABREAST == 0 { path.parent().map_or(Ok(()), fs::create_dir) } else { Ok(()) };
            let bytes = tree.bytes(Self::place(number), tree.len_of(number) as usize);
            made.and_then(|()| fs::write(&path, &bytes)).map_err(|error| cannot_write(dir, &error))?;
            progress(bytes.len() as u64);
        }
        let synced = File::open(&tree.folder).and_then(|folder| Ok(rustix::fs::syncfs(folder)?));
        synced.map_err(|error| cannot_write(dir, &error))?;
        Ok(tree)
    }

    pub fn files(&self) -> u64 {
        self.files
    }

    pub fn path(&self, number: u64) -> PathBuf {
        self.folder.join((number / ABREAST).to_string()).join((number % ABREAST).to_string())
    }

    pub fn len_of(&self, number: u64) -> u64 {
        let spread = self.lengths.end() - self.lengths.start() + 1;
        self.lengths.start() + Random::at(self.seed, number).below(spread)
    }

    /// Returns the place of a file's start, in one number. The places of its bytes follow.
    pub fn place(number: u64) -> u64 {
        number << 32
    }

    fn bytes(&self, place: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        testfile::fill(self.seed, place, &mut bytes);
        bytes
    }

    /// Returns whether `bytes` are the complete contents of the file that starts at `place`.
    pub fn matches(&self, place: u64, bytes: &[u8]) -> bool {
        let number = place >> 32;
        let whole = number < self.files && bytes.len() as u64 == self.len_of(number);
        whole && bytes == self.bytes(place, bytes.len())
    }

    /// Returns the CRC-32C of bytes at a place.
    pub fn checksum(&self, place: u64, len: usize) -> u32 {
        crc32c::crc32c(&self.bytes(place, len))
    }

    fn open(&self, number: u64) -> Result<File> {
        let path = self.path(number);
        File::open(&path).map_err(|error| Error::io("open", &path, &error))
    }

    /// Drops the pages of these files from the page cache, and verifies that (all but one in a
    /// thousand) are gone.
    pub fn make_cold(&self, numbers: impl Iterator<Item = u64> + Clone) -> Result<()> {
        let (mut cached, mut pages) = (0, 0);
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                // A page just read may sit in another CPU's list for a moment.
                thread::sleep(Duration::from_millis(10 << attempt));
            }
            (cached, pages) = (0, 0);
            for number in numbers.clone() {
                let (here, all) = self.drop_pages(number)?;
                cached += here;
                pages += all;
            }
            if cached <= pages / 1000 {
                return Ok(());
            }
        }
        let text = format!(
            "cannot make small files cold: {cached} of {pages} pages still cached; choose a --dir on a disk: tmpfs \
             keeps its files in memory"
        );
        Err(Error::new(ErrorKind::NotCold, text))
    }

    /// Returns the number of pages that stayed, and of all pages.
    fn drop_pages(&self, number: u64) -> Result<(u64, u64)> {
        let (file, len) = (self.open(number)?, self.len_of(number));
        let left = sys::drop_cache(&file).and_then(|()| sys::residency(&file, len));
        let left = left.map_err(|error| Error::io("drop the pages of", &self.path(number), &error))?;
        Ok((left.into_iter().filter(|&page| page).count() as u64, len.div_ceil(PAGE)))
    }

    /// Drops the cached inodes, names and metadata of these files, and of all other files of the
    /// machine. Verifies the drop by the number of inodes in memory. Requires root.
    pub fn forget_inodes(&self, numbers: impl Iterator<Item = u64> + Clone) -> Result<()> {
        let caches = Path::new("/proc/sys/vm/drop_caches");
        let files = numbers.clone().count() as u64;
        // Loads all inodes, so that the drop of each is counted.
        for number in numbers {
            let path = self.path(number);
            fs::metadata(&path).map_err(|error| Error::io("stat", &path, &error))?;
        }
        // An inode with a changed access time stays until it is written.
        File::open(&self.folder)
            .and_then(|folder| Ok(rustix::fs::syncfs(folder)?))
            .map_err(|error| Error::io("syncfs", &self.folder, &error))?;
        let before = inodes()?;
        let mut forgotten = 0;
        // The first drop only marks recently used objects, and the kernel stops when a pass over
        // its lists frees little.
        for _ in 0..ATTEMPTS {
            fs::write(caches, "3").map_err(|error| Error::io("write 3 to", caches, &error))?;
            forgotten = before.saturating_sub(inodes()?);
            if forgotten >= files - files / 20 {
                return Ok(());
            }
        }
        let text = format!(
            "cannot make inodes cold: drop_caches dropped {forgotten} inodes of {files} files; \
             end what keeps them open, or give no root"
        );
        Err(Error::new(ErrorKind::NotCold, text))
    }

    /// Reads these files completely into the page cache.
    pub fn make_hot(&self, numbers: impl Iterator<Item = u64>) -> Result<()> {
        for number in numbers {
            let path = self.path(number);
            let bytes = fs::read(&path).map_err(|error| Error::io("read", &path, &error))?;
            if bytes.len() as u64 != self.len_of(number) {
                let text = format!("{} has another length; another program wrote to it", path.display());
                return Err(Error::new(ErrorKind::Other, text));
            }
        }
        Ok(())
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            eprintln!("nowait: cannot remove {}: {error}; remove it yourself", self.folder.display());
        }
    }
}

/// Removes directories of ended runs. Their names consist of `.nowait-bench-`, a purpose, and the
/// process's number.
pub fn sweep(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let parts = name.to_str().and_then(|name| name.strip_prefix(".nowait-bench-")).map(|rest| rest.split('-'));
        let maker = parts.and_then(|mut parts| parts.nth(1)?.parse::<u32>().ok());
        if maker.is_some_and(|maker| !Path::new(&format!("/proc/{maker}")).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Returns the number of inodes in the kernel's memory.
fn inodes() -> Result<u64> {
    let path = Path::new("/proc/sys/fs/inode-nr");
    let text = fs::read_to_string(path).map_err(|error| Error::io("read", path, &error))?;
    let all = text.split_whitespace().next().and_then(|number| number.parse().ok());
    all.ok_or_else(|| Error::io("read", path, &io::ErrorKind::InvalidData.into()))
}

fn cannot_write(dir: &Path, error: &io::Error) -> Error {
    Error::new(
        ErrorKind::of_write(error),
        format!("cannot make small files in {}: {error}; use another --dir", dir.display()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_their_bytes_and_are_gone_in_the_end() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut made = 0;
        let tree = Tree::make(dir, 1002, 10..=50, 7, &AtomicBool::new(false), |bytes| made += bytes).unwrap();
        assert_eq!(made, (0..1002).map(|number| tree.len_of(number)).sum::<u64>());
        let mut lengths = std::collections::HashSet::new();
        for number in [0, 1, 999, 1000, 1001] {
            let bytes = fs::read(tree.path(number)).unwrap();
            let place = Tree::place(number);
            assert!(tree.matches(place, &bytes) && !tree.matches(place, &bytes[..bytes.len() - 1]));
            assert!(!tree.matches(Tree::place(number ^ 1), &bytes));
            assert_eq!(tree.checksum(place + 3, bytes.len() - 3), crc32c::crc32c(&bytes[3..]));
            lengths.insert(bytes.len());
        }
        assert!(lengths.len() > 1, "{lengths:?}");
        assert!(!tree.matches(Tree::place(1002), &[]));
        let folder = tree.folder.clone();
        drop(tree);
        assert!(!folder.exists());
    }

    #[test]
    fn an_interrupt_leaves_nothing() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR"));
        let error = Tree::make(dir, 5, 10..=50, 7, &AtomicBool::new(true), |_| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted);
        let own = format!("{PREFIX}{}-", std::process::id());
        let mut entries = fs::read_dir(dir).unwrap().flatten().filter_map(|entry| entry.file_name().into_string().ok());
        // Other directories belong to other tests.
        assert!(entries.all(|name| !name.starts_with(&own) || dir.join(name).join("0").exists()));
    }
}
