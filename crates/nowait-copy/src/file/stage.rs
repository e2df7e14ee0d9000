//! The file that is to have the target's name, until it has it.
//!
//! A file without a name (`O_TMPFILE`) leaves nothing behind, whatever ends the process. Where the
//! target's name is free, it is also the faster way: 5,000 short files took 0.7 to 0.9 of the time
//! on ext4, xfs, btrfs and tmpfs. To replace a file, the new file needs a temporary name, since
//! only a rename replaces. Then a short file has one from the start, like every file if files
//! without names are refused. The name is removed if the copy fails, and by a later copy to the
//! directory if the process was killed ([`temporary`](crate::os::temporary)).

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;

use crate::error::{Failure, FailureKind, Operation, Result};
use crate::os::name;
use crate::shared::{Ability, Shared};

/// From this size on, a file has no name until it is complete, even if it replaces another.
const UNNAMED_BYTES_MIN: u64 = 1 << 20;

/// Directory and name that a staged file gets.
#[derive(Clone, Copy)]
pub(crate) struct Destination<'a> {
    pub(crate) directory: BorrowedFd<'a>,
    /// Device of the directory.
    pub(crate) device: u64,
    pub(crate) name: &'a CStr,
    pub(crate) path: &'a Path,
    /// Nothing has the name yet; if something has it after all, that is an error.
    pub(crate) is_new: bool,
    /// Returns a name in the directory that no other copy uses.
    pub(crate) temporary_name: &'a dyn Fn() -> CString,
}

/// A staged file.
pub(crate) struct Stage<'a> {
    shared: &'a Shared,
    place: Destination<'a>,
    file: OwnedFd,
    /// None if it has no name.
    temporary: Option<CString>,
    /// The name stays if the copy fails, so that a later run continues there.
    is_kept: bool,
}

impl<'a> Stage<'a> {
    /// Creates a file that only this process's user can open.
    pub(crate) fn new(shared: &'a Shared, place: Destination<'a>, size: u64) -> Result<Self> {
        let failed = |errno| Failure::from_errno(Operation::Stage, place.path, errno);
        let devices = (place.device, place.device);
        let suits = (place.is_new || size >= UNNAMED_BYTES_MIN) && shared.has_proc;
        if suits && !shared.learned.is_refused(Ability::TemporaryFile, devices) {
            match name::create_unnamed(place.directory) {
                Ok(file) => return Ok(Stage { shared, place, file, temporary: None, is_kept: false }),
                // Kernels and file systems without them try to open the directory for writing.
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

    /// Takes over a file that an earlier run may have left.
    pub(crate) fn kept(shared: &'a Shared, place: Destination<'a>, file: OwnedFd, name: CString) -> Self {
        Stage { shared, place, file, temporary: Some(name), is_kept: true }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Gives the file up also where it was to be kept.
    pub(crate) fn is_worthless(&mut self) {
        self.is_kept = false;
    }

    /// Gives the file its name: in one step, so that the name has the old file or this one.
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

    /// Renames to a name that has to be free; false if the file system cannot say whether it is.
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

    /// Names a file without a name. By its descriptor alone where the kernel allows it (Linux 6.10,
    /// or a capability), else by way of `/proc`.
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
