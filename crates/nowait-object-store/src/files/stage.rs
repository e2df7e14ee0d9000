//! Files that are not objects yet: their names, and how they get an object's.
//!
//! These calls block; they are made by [`Files::blocking`](super::Files). What is dropped does not.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::path::{Path, PathBuf};

use nowait::embed::fork_generation;
use nowait::{Error, ErrorKind, ErrorOp, Nowait, Result};
use walkdir::WalkDir;

use super::{Stat, failed, system};

/// Bytes of the object's name in that of its staged file: the whole is a name of 255 bytes at most.
const NAME_BYTES_MAX: usize = 230;

/// A name that is `LocalFileSystem`'s for uploads under way, too: digits after the first `#`.
/// Neither store lists such files, or lets them be addressed.
pub(crate) fn is_staged(name: &[u8]) -> bool {
    let digits = name.iter().position(|byte| *byte == b'#').map(|at| &name[at + 1..]);
    digits.is_some_and(|digits| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit))
}

/// A staged file's name. Dropped, the file is removed by a thread of the pool.
#[derive(Debug)]
pub(crate) struct Staged {
    nowait: Nowait,
    /// None once the name is gone.
    path: Option<PathBuf>,
    /// Fork generation of the process that made it: a forked child must not remove it.
    generation: u64,
}

impl Staged {
    /// Makes a file or link at a staged name by `make`, and the directories above it if they are
    /// missing.
    pub(super) fn create<T>(
        nowait: &Nowait,
        path: &Path,
        durable: bool,
        mut make: impl FnMut(&Path) -> Result<T>,
    ) -> Result<(T, Staged)> {
        /// Others may have the name.
        const TRIES: u32 = 8;
        let mut tries = 0;
        loop {
            let staged = name_beside(path);
            tries += 1;
            match with_parents(path, durable, || make(&staged)) {
                Ok(made) => {
                    let (nowait, path, generation) = (nowait.clone(), Some(staged), fork_generation());
                    return Ok((made, Staged { nowait, path, generation }));
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists && tries < TRIES => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.path.clone().unwrap_or_default()
    }

    /// Describes the object that is to have the name `path`. The file is closed: Windows sets its time of
    /// modification only then.
    pub(super) fn stat(&self, path: &Path) -> Result<Stat> {
        let metadata = fs::symlink_metadata(self.path()).map_err(failed(ErrorOp::Metadata, path))?;
        Ok(Stat::of(&metadata))
    }

    /// Renames the file to the object's name, in one step. After an error the file is removed.
    pub(super) fn publish(mut self, path: &Path, replace: bool, durable: bool) -> Result<()> {
        let Some(staged) = self.path.take() else { return Ok(()) };
        if let Err(error) = rename(&staged, path, replace) {
            let _ = system::remove_file(&staged);
            return Err(failed(ErrorOp::Rename, path)(error));
        }
        if durable { sync_name(path) } else { Ok(()) }
    }

    /// Removes the file.
    pub(super) fn remove(mut self) -> Result<()> {
        let Some(staged) = self.path.take() else { return Ok(()) };
        system::remove_file(&staged).map_err(failed(ErrorOp::Remove, &staged))
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Some(path) = self.path.take().filter(|_| self.generation == fork_generation()) {
            self.nowait.fs().remove_file(path).submit().detach();
        }
    }
}

/// Returns a name for a staged file beside `path`, which nothing else uses.
fn name_beside(path: &Path) -> PathBuf {
    // Locations are Unicode.
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // The part of the name ends at its first `#`, since only digits may follow that; and with a whole character,
    // since macOS refuses parts of one.
    let end = name.find('#').unwrap_or(name.len()).min(NAME_BYTES_MAX);
    let end = (0..=end).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    // Each hasher has random keys.
    let number = RandomState::new().build_hasher().finish();
    path.with_file_name(format!("{}#{number}", &name[..end]))
}

/// Makes a name at `path` by `make`, and the directories above it if they are missing.
pub(super) fn with_parents<T>(path: &Path, durable: bool, mut make: impl FnMut() -> Result<T>) -> Result<T> {
    /// Others may remove the directories between two calls (`Options::automatic_cleanup`). A broken
    /// symbolic link above `path` ends here, too.
    const TRIES: u32 = 100;
    let mut tries = 0;
    loop {
        let made = make();
        tries += 1;
        if made.as_ref().err().is_none_or(|error| error.kind() != ErrorKind::NotFound) || tries > TRIES {
            return made;
        }
        match create_parents(path, durable) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists) && tries < TRIES => {}
            made => made?,
        }
    }
}

/// Makes the directories above `path`, durably if asked.
fn create_parents(path: &Path, durable: bool) -> Result<()> {
    let Some(parent) = path.parent() else { return Ok(()) };
    // Directories whose entries change: those that are made, and the one above them.
    let mut changed = Vec::new();
    if durable {
        changed.extend(parent.ancestors().take_while(|dir| !dir.exists()).filter_map(Path::parent));
    }
    if let Err(error) = fs::create_dir_all(parent) {
        // Below a file, Windows reports NotFound.
        if parent.ancestors().any(Path::is_file) {
            return Err(Error::new(ErrorOp::CreateDir, ErrorKind::NotADirectory).at(path));
        }
        return Err(failed(ErrorOp::CreateDir, parent)(error));
    }
    changed.into_iter().try_for_each(sync_dir)
}

/// Makes the names in a directory durable.
pub(super) fn sync_dir(dir: &Path) -> Result<()> {
    system::sync_dir(dir).map_err(failed(ErrorOp::Sync, dir))
}

/// Makes the name `path` durable.
pub(super) fn sync_name(path: &Path) -> Result<()> {
    match path.parent().map_or(Ok(()), sync_dir) {
        // Others have removed the object, and its directory.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        synced => synced,
    }
}

/// True if both paths are one name in one directory, which symbolic links may lead to. Different names are one
/// where case or the form of characters does not count: then the directory has only one of them.
pub(super) fn is_one_name(one: &Path, other: &Path) -> io::Result<bool> {
    let [dir, other_dir] = [one, other].map(|path| path.parent().unwrap_or(path));
    if !system::is_one_dir(dir, other_dir)? {
        return Ok(false);
    }
    let names = [one.file_name(), other.file_name()];
    if names[0] == names[1] {
        return Ok(true);
    }
    let mut listed = 0;
    for entry in fs::read_dir(dir)? {
        listed += usize::from(names.contains(&Some(&*entry?.file_name())));
    }
    Ok(listed < 2)
}

/// Renames, and replaces the object that has the name, or fails if there is one. Directories that
/// deletes left empty at the name are removed: they are not objects.
pub(super) fn rename(from: &Path, to: &Path, replace: bool) -> io::Result<()> {
    rename_onto(from, to, replace).or_else(|error| {
        if system::is_in_the_way(&error, to) && remove_empty_tree(to) {
            rename_onto(from, to, replace)
        } else {
            Err(error)
        }
    })
}

fn rename_onto(from: &Path, to: &Path, replace: bool) -> io::Result<()> {
    if replace { system::rename(from, to) } else { system::rename_new(from, to) }
}

/// Removes a directory that contains only directories, all of them empty. Returns whether `path` is
/// gone. Never removes a file: `rmdir` fails if one appears meanwhile.
fn remove_empty_tree(path: &Path) -> bool {
    // Checked first, so that a tree with a file keeps its empty directories.
    let walk = || WalkDir::new(path).follow_root_links(false).contents_first(true).into_iter();
    walk().all(|entry| entry.is_ok_and(|entry| entry.file_type().is_dir()))
        && walk().all(|entry| entry.is_ok_and(|entry| fs::remove_dir(entry.path()).is_ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_staged_name_is_one_and_fits() {
        for name in ["a", "a#b", "a#1b#", "#", &"x".repeat(255), &"é".repeat(127), &"日".repeat(85)] {
            let staged = name_beside(&Path::new("/dir").join(name));
            let file_name = staged.file_name().unwrap().as_encoded_bytes();
            assert!(is_staged(file_name) && file_name.len() <= 255, "{name}: {staged:?}");
            assert!(staged.to_str().is_some(), "{staged:?} is cut within a character");
            assert_eq!(staged.parent(), Some(Path::new("/dir")));
            assert!(!is_staged(name.as_bytes()), "{name}");
        }
    }

    /// Symptom: where case does not count, as on macOS, a rename of a copy from `object` to `Object` removed the
    /// object: both names led to the file, and were taken for two of its links.
    #[test]
    fn names_are_two_only_if_the_directory_has_both() {
        let dir = tempfile::tempdir().unwrap();
        let [old, new] = ["object", "Object"].map(|name| dir.path().join(name));
        fs::write(&new, "contents").unwrap();
        assert!(is_one_name(&old, &new).unwrap() && is_one_name(&new, &new).unwrap());
        let other = dir.path().join("other");
        fs::hard_link(&new, &other).unwrap();
        assert!(!is_one_name(&other, &new).unwrap());
        fs::create_dir(dir.path().join("dir")).unwrap();
        let elsewhere = dir.path().join("dir/Object");
        fs::hard_link(&new, &elsewhere).unwrap();
        assert!(!is_one_name(&elsewhere, &new).unwrap());
    }
}
