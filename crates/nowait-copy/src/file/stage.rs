//! The new file, before it gets the target's name.
//!
//! A file without a name (`O_TMPFILE`) disappears if the process ends. If the target's name is
//! free, it is also faster: 5,000 short files took 0.7 to 0.9 of the time on ext4, xfs, btrfs and
//! tmpfs. To replace a file, the new file needs a temporary name, since only a rename replaces. A
//! short file that replaces another has a temporary name from the start, and so has every file if
//! files without names are refused. The name is removed if the copy fails. If the process was
//! killed, a later copy to the directory removes it ([`temporary`](crate::os::temporary)).

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::Mode;
use rustix::io::Errno;

use crate::error::{Failure, FailureKind, Operation, Result};
use crate::os::name;
use crate::shared::{Ability, Shared};

/// From this size on, a file has no name until it is complete, even if it replaces another.
const UNNAMED_BYTES_MIN: u64 = 1 << 20;

/// Directory and final name of a staged file.
#[derive(Clone, Copy)]
pub(crate) struct Destination<'a> {
    pub(crate) directory: BorrowedFd<'a>,
    /// Device of the directory.
    pub(crate) device: u64,
    pub(crate) name: &'a CStr,
    pub(crate) path: &'a Path,
    /// The name must be free; an existing name is an error.
    pub(crate) is_new: bool,
    /// Mode of the file at its creation, if it has no name until it is complete.
    pub(crate) unnamed_mode: Mode,
    /// Returns a name in the directory that no other copy uses.
    pub(crate) temporary_name: &'a dyn Fn() -> CString,
}

/// A staged file.
pub(crate) struct Stage<'a> {
    shared: &'a Shared,
    place: Destination<'a>,
    file: OwnedFd,
    /// Temporary name; `None` if the file has no name.
    temporary: Option<CString>,
    /// If the copy fails, the name stays for a later run.
    is_kept: bool,
}

impl<'a> Stage<'a> {
    /// Creates a file that only this process's user can open.
    pub(crate) fn new(shared: &'a Shared, place: Destination<'a>, size: u64) -> Result<Self> {
        let failed = |errno| Failure::from_errno(Operation::Stage, place.path, errno);
        let devices = (place.device, place.device);
        let suits = (place.is_new || size >= UNNAMED_BYTES_MIN) && shared.has_proc;
        if suits && !shared.learned.is_refused(Ability::TemporaryFile, devices) {
            match name::create_unnamed(place.directory, place.unnamed_mode) {
                Ok(file) => return Ok(Stage { shared, place, file, temporary: None, is_kept: false }),
                // Kernels and file systems without unnamed files try to open the directory for
                // writing.
                Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL | Errno::NOSYS) => {
                    shared.learned.refuse(Ability::TemporaryFile, devices);
                }
                Err(errno) => return Err(failed(errno)),
            }
        }
        let temporary = (place.temporary_name)();
        let file = name::create_new(place.directory, &temporary).map_err(failed)?;
        Ok(Stage { shared, place, file, temporary: Some(temporary), is_kept: false })
    }

    /// Uses a file for `resume`, which an earlier run may have left.
    pub(crate) fn kept(shared: &'a Shared, place: Destination<'a>, file: OwnedFd, name: CString) -> Self {
        Stage { shared, place, file, temporary: Some(name), is_kept: true }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Marks the file for removal, even if it was kept for a later run.
    pub(crate) fn is_worthless(&mut self) {
        self.is_kept = false;
    }

    /// Gives the file its final name atomically: the name refers to the old file or to this one.
    pub(crate) fn publish(mut self) -> Result<()> {
        let Destination { directory, name, path, is_new, .. } = self.place;
        let failed = |errno| failed_to_name(path, is_new, errno);
        if self.temporary.is_none() {
            match self.link(name) {
                Ok(()) => return Ok(()),
                Err(Errno::EXIST) if !is_new => {
                    // Only a rename replaces.
                    let temporary = (self.place.temporary_name)();
                    self.link(&temporary).map_err(failed)?;
                    self.temporary = Some(temporary);
                }
                Err(errno) => return Err(failed(errno)),
            }
        }
        let Some(temporary) = &self.temporary else { return Ok(()) };
        if is_new && self.rename_new(temporary).map_err(failed)? {
            self.temporary = None;
            return Ok(());
        }
        name::rename(directory, temporary, name).map_err(failed)?;
        self.temporary = None;
        Ok(())
    }

    /// Renames to a name that must be free; false if the file system does not support
    /// `RENAME_NOREPLACE`.
    fn rename_new(&self, temporary: &CStr) -> std::result::Result<bool, Errno> {
        let devices = (self.place.device, self.place.device);
        if self.shared.learned.is_refused(Ability::RenameNew, devices) {
            return Ok(false);
        }
        match name::rename_new(self.place.directory, temporary, self.place.name) {
            Ok(()) => Ok(true),
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                self.shared.learned.refuse(Ability::RenameNew, devices);
                Ok(false)
            }
            Err(errno) => Err(errno),
        }
    }

    /// Links an unnamed file: by its descriptor alone if the kernel allows that (Linux 6.10, or a
    /// capability), otherwise through `/proc`.
    fn link(&self, name: &CStr) -> std::result::Result<(), Errno> {
        let devices = (self.place.device, self.place.device);
        let (learned, file, directory) = (&self.shared.learned, self.file.as_fd(), self.place.directory);
        if !learned.is_refused(Ability::LinkByDescriptor, devices) {
            match name::link_descriptor(file, directory, name) {
                Err(Errno::NOENT | Errno::INVAL | Errno::PERM) => {
                    learned.refuse(Ability::LinkByDescriptor, devices);
                }
                result => return result,
            }
        }
        name::link_by_proc(file, directory, name)
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        if let Some(temporary) = self.temporary.take().filter(|_| !self.is_kept) {
            // Only the first failure is reported.
            let _ = name::remove(self.place.directory, &temporary);
        }
    }
}

fn failed_to_name(path: &Path, is_new: bool, errno: Errno) -> Failure {
    let failure = Failure::from_errno(Operation::Rename, path, errno);
    if !is_new || errno != Errno::EXIST {
        return failure;
    }
    failure.of_kind(FailureKind::NameCollision).with_detail(
        "two names of the source are one name in the target's file system, or another process created this name",
    )
}
