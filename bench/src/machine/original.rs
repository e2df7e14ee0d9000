//! Sources of copies: a large file, or a tree of small ones. With names, as commands take no
//! descriptors.
//!
//! The folder is removed at the end of the run, after an error and Ctrl-C too. What a killed run
//! leaves, the next one in the same directory removes.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::error::{Error, ErrorKind, Result};
use crate::machine::tree::{Tree, sweep};
use crate::sys::{self, PAGE};

const PREFIX: &str = ".nowait-bench-copy-";
const CHUNK: u64 = 1 << 20;
/// Places of a copy that are compared after a timed round, about.
const SAMPLED: u64 = 64;

/// A folder of this run's own.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    pub fn make(dir: &Path) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        sweep(dir, PREFIX, |left| fs::remove_dir_all(left));
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = dir.join(format!("{PREFIX}{}-{number}", std::process::id()));
        fs::create_dir(&folder).map_err(|error| cannot_write(dir, &error))?;
        // Commands of other directories get this name.
        let folder = fs::canonicalize(&folder).map_err(|error| Error::io("look for", &folder, &error))?;
        Ok(Self(folder))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("nowait: cannot remove {}: {error}; remove it yourself", self.0.display());
        }
    }
}

fn cannot_write(dir: &Path, error: &io::Error) -> Error {
    let text = format!("cannot make files in {}: {error}; use another --dir, or --to", dir.display());
    Error::new(ErrorKind::of_write(error), text)
}

/// The source of a copy, as it was made: a tree, or the only file of one.
#[derive(Debug)]
pub struct Original {
    tree: Tree,
    is_file: bool,
}

impl Original {
    /// Makes a file of random bytes in `dir`, and syncs it. `progress` is told the bytes of each
    /// step.
    pub fn file(dir: &Path, size: u64, seed: u64, cancel: &AtomicBool, progress: impl FnMut(u64)) -> Result<Self> {
        Ok(Self { tree: Tree::make(dir, 1, size..=size, seed, cancel, progress)?, is_file: true })
    }

    pub fn tree(tree: Tree) -> Self {
        Self { tree, is_file: false }
    }

    /// The file, or the folder of the tree.
    pub fn path(&self) -> PathBuf {
        if self.is_file { self.tree.path(0) } else { self.tree.folder().to_owned() }
    }

    pub fn files(&self) -> u64 {
        self.tree.files()
    }

    pub fn bytes(&self) -> u64 {
        (0..self.files()).map(|number| self.tree.len_of(number)).sum()
    }

    /// A file of the source, or of a copy at `root`.
    fn file_at(&self, root: &Path, number: u64) -> PathBuf {
        if self.is_file { root.to_owned() } else { root.join(Tree::below(number)) }
    }

    /// Drops its pages from the page cache, and verifies that they are gone; `inodes` drops those
    /// of a tree, and names, too, which takes root.
    pub fn make_cold(&self, inodes: bool) -> Result<()> {
        self.tree.make_cold(0..self.files())?;
        if inodes && !self.is_file { self.tree.forget_inodes(0..self.files()) } else { Ok(()) }
    }

    /// Has all of it in the page cache.
    pub fn make_hot(&self) -> Result<()> {
        self.tree.make_hot(0..self.files())
    }

    /// Pages in the page cache of all files at `root`: of the source, or of a copy.
    pub fn cached_pages(&self, root: &Path) -> Result<u64> {
        let mut cached = 0;
        for number in 0..self.files() {
            let path = self.file_at(root, number);
            let pages = File::open(&path).and_then(|file| sys::residency(&file, self.tree.len_of(number)));
            let pages = pages.map_err(|error| Error::io("count the cached pages of", &path, &error))?;
            cached += pages.into_iter().filter(|&page| page).count() as u64;
        }
        Ok(cached)
    }

    /// Compares a copy: all of it, or some places. `None` if it is right, else what is wrong.
    pub fn difference(&self, copy: &Path, all: bool) -> Result<Option<String>> {
        let files = self.files();
        let every = if all { 1 } else { (files / SAMPLED).max(1) };
        for number in (0..files).step_by(every as usize) {
            let path = self.file_at(copy, number);
            let difference = File::open(&path).and_then(|file| self.first_wrong(&file, number, all));
            if let Some(at) = difference.map_err(|error| Error::io("read the copy", &path, &error))? {
                return Ok(Some(format!("its copy {} is wrong from byte {at}", path.display())));
            }
        }
        Ok(None)
    }

    fn first_wrong(&self, file: &File, number: u64, all: bool) -> io::Result<Option<u64>> {
        let (size, wanted) = (file.metadata()?.len(), self.tree.len_of(number));
        if size != wanted {
            return Ok(Some(size.min(wanted)));
        }
        let step = if all { CHUNK } else { (wanted / SAMPLED).next_multiple_of(PAGE).max(PAGE) };
        let len = if all { CHUNK } else { PAGE };
        let (mut found, mut expected) = (vec![0; len as usize], vec![0; len as usize]);
        for offset in (0..wanted).step_by(step as usize) {
            let len = len.min(wanted - offset) as usize;
            let (found, expected) = (&mut found[..len], &mut expected[..len]);
            file.read_exact_at(found, offset)?;
            self.tree.fill(number, offset, expected);
            if found != expected {
                return Ok(Some(offset));
            }
        }
        Ok(None)
    }

    /// Whether a copy has the modes, owners and modification times of its files and folders.
    pub fn keeps_metadata(&self, copy: &Path) -> io::Result<bool> {
        let facts = |path: &Path| {
            let about = fs::symlink_metadata(path)?;
            Ok::<_, io::Error>((about.mode(), about.uid(), about.gid(), about.mtime(), about.mtime_nsec()))
        };
        let root = self.path();
        for number in 0..self.files() {
            let (from, to) = (self.file_at(&root, number), self.file_at(copy, number));
            if facts(&from)? != facts(&to)? {
                return Ok(false);
            }
            // The folder of a file, whose time a later entry would have changed.
            if let (false, Some(from), Some(to)) = (self.is_file, from.parent(), to.parent()) {
                if facts(from)? != facts(to)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR"))
    }

    fn file(size: u64) -> Original {
        Original::file(dir(), size, 7, &AtomicBool::new(false), |_| {}).unwrap()
    }

    #[test]
    fn a_copy_is_compared_and_the_folder_is_gone_in_the_end() {
        let original = file(3 * CHUNK + 5);
        let copies = Folder::make(dir()).unwrap();
        let copy = copies.path().join("copy");
        fs::copy(original.path(), &copy).unwrap();
        assert_eq!(original.difference(&copy, true).unwrap(), None);
        assert_eq!(original.difference(&copy, false).unwrap(), None);
        assert!(!original.keeps_metadata(&copy).unwrap(), "its time is another");
        let handle = File::options().write(true).open(&copy).unwrap();
        handle.write_all_at(b"x", 2 * CHUNK + 3).unwrap();
        assert!(original.difference(&copy, true).unwrap().unwrap().ends_with(&format!("byte {}", 2 * CHUNK)));
        handle.set_len(3 * CHUNK).unwrap();
        assert!(original.difference(&copy, false).unwrap().unwrap().ends_with(&format!("byte {}", 3 * CHUNK)));
        let folders = [original.tree.folder().to_owned(), copies.path().to_owned()];
        drop((original, copies));
        assert!(folders.iter().all(|folder| !folder.exists()));
    }

    #[test]
    fn what_a_killed_run_left_is_removed() {
        let left = dir().join(format!("{PREFIX}4294967294-0"));
        fs::create_dir(&left).unwrap();
        fs::write(left.join("original"), "x").unwrap();
        drop(Folder::make(dir()).unwrap());
        assert!(!left.exists());
    }
}
