//! Changes of files and names that a crash may lose: what each does, and what it is called.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::image::{Image, in_sector, sectors};

/// Change that a crash may lose; see [`Sim::unsynced`](super::Sim::unsynced). A file is identified
/// by its last name.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unsynced {
    /// Bytes of a file; each sector is kept or lost.
    Write {
        /// The file.
        path: PathBuf,
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        length: usize,
        /// False while the write is in flight.
        complete: bool,
    },
    /// A file extended with zeros, or truncated.
    Length {
        /// The file.
        path: PathBuf,
        /// Old length, in bytes.
        from: u64,
        /// New length, in bytes.
        to: u64,
        /// False while the extending write is in flight.
        complete: bool,
    },
    /// A new file or directory.
    Created {
        /// Name of the file or directory.
        path: PathBuf,
    },
    /// A removed name of a file.
    Removed {
        /// Name of the file or directory.
        path: PathBuf,
    },
    /// A renamed file, which replaces any file of the new name.
    Renamed {
        /// The old name.
        from: PathBuf,
        /// The new name.
        to: PathBuf,
    },
}

impl Unsynced {
    /// Returns the number of sectors that [`Sim::crash`](super::Sim::crash) decides on: those that
    /// a write touches, or one for any other change.
    pub fn sectors(&self) -> usize {
        match self {
            Unsynced::Write { offset, length, .. } => sectors(*offset as usize, *length),
            _ => 1,
        }
    }
}

/// A named thing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Node {
    /// A place in the list of files, where it stays.
    File(usize),
    Directory,
}

pub(super) type Names = BTreeMap<PathBuf, Node>;

/// A change of one file.
#[derive(Clone)]
pub(super) enum DiskChange {
    Bytes { start: usize, bytes: Arc<Vec<u8>> },
    Length { from: usize, to: usize },
}

impl DiskChange {
    pub(super) fn sectors(&self) -> usize {
        match self {
            DiskChange::Bytes { start, bytes } => sectors(*start, bytes.len()),
            DiskChange::Length { .. } => 1,
        }
    }

    pub(super) fn make(&self, image: &mut Image) {
        match self {
            DiskChange::Bytes { start, bytes } => image.put(*start, bytes),
            _ => self.make_sector(image, 0),
        }
    }

    pub(super) fn make_sector(&self, image: &mut Image, sector: usize) {
        match self {
            DiskChange::Bytes { start, bytes } => {
                let range = in_sector(*start, bytes.len(), sector);
                image.put(start + range.start, &bytes[range]);
            }
            // If the cut before this extension was lost, the file is long enough already.
            DiskChange::Length { from, to } if to > from => image.resize(image.len().max(*to)),
            DiskChange::Length { to, .. } => image.resize(image.len().min(*to)),
        }
    }

    pub(super) fn unsynced(&self, path: &Path, complete: bool) -> Unsynced {
        let path = path.to_path_buf();
        match self {
            DiskChange::Bytes { start, bytes } => {
                Unsynced::Write { path, offset: *start as u64, length: bytes.len(), complete }
            }
            DiskChange::Length { from, to } => Unsynced::Length { path, from: *from as u64, to: *to as u64, complete },
        }
    }
}

/// A change of names.
#[derive(Clone)]
pub(super) enum Naming {
    Created(PathBuf, Node),
    Removed(PathBuf, usize),
    Renamed { from: PathBuf, to: PathBuf, file: usize },
}

impl Naming {
    pub(super) fn make(&self, names: &mut Names) {
        match self {
            Naming::Created(path, node) => {
                names.insert(path.clone(), *node);
            }
            Naming::Removed(path, file) => {
                if names.get(path) == Some(&Node::File(*file)) {
                    names.remove(path);
                }
            }
            Naming::Renamed { to, file, .. } => {
                // Whatever it was called: an earlier change of its name may have been lost.
                names.retain(|_, node| *node != Node::File(*file));
                names.insert(to.clone(), Node::File(*file));
            }
        }
    }

    pub(super) fn unsynced(&self) -> Unsynced {
        match self.clone() {
            Naming::Created(path, _) => Unsynced::Created { path },
            Naming::Removed(path, _) => Unsynced::Removed { path },
            Naming::Renamed { from, to, .. } => Unsynced::Renamed { from, to },
        }
    }
}
