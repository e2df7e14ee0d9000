//! Modes of the files that a log makes: those that an administrator gave the others stay.

use rustix::fs::{AtFlags, Mode, Stat, fchmod, fstat, statat};
use rustix::io::Errno;

use super::{CONTROL, LogDir, segment_name};
use crate::os;
use nowait::{ErrorOp, File, OpenOptions, Result};

/// Bits of a file's mode that its directory's mode gives.
const FILE_BITS: u32 = 0o666;
const MODE_BITS: u32 = 0o7777;

fn mode(about: &Stat) -> u32 {
    about.st_mode & MODE_BITS
}

impl LogDir {
    /// Opens a file that the log makes, with this mode whatever the process's mask is.
    pub(super) fn make_file(&self, options: &OpenOptions, name: &str, mode: Option<u32>) -> Result<File> {
        let mut options = options.clone();
        // Never wider, also for a moment.
        mode.map(|mode| options.mode(mode));
        let file = self.open_file(&options, name)?;
        match mode.map_or(Ok(()), |mode| set_mode(&file, mode)) {
            // A file system without modes.
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS) | Ok(()) => Ok(file),
            Err(errno) => Err(os::system_error(ErrorOp::Metadata, errno, file.path())),
        }
    }

    /// Mode of the control file, of a segment, or of another file that belongs to them: that of the
    /// newest of its kind, else what the directory's mode says. None on a simulator.
    pub(super) fn control_mode(&self) -> Option<u32> {
        self.mode_of(CONTROL).or_else(|| self.file_mode())
    }

    pub(super) fn segment_mode(&self) -> Option<u32> {
        self.descriptor()?;
        let newest = self.contents().ok().and_then(|contents| contents.numbers.last().copied());
        newest.and_then(|newest| self.mode_of(&segment_name(newest))).or_else(|| self.file_mode())
    }

    /// What the directory's mode says, or the mode that a log is made with.
    pub(super) fn file_mode(&self) -> Option<u32> {
        let here = self.descriptor()?;
        let mode = self.made_with.or_else(|| fstat(here).ok().as_ref().map(mode))?;
        Some(mode & FILE_BITS)
    }

    fn mode_of(&self, name: &str) -> Option<u32> {
        statat(self.descriptor()?, name, AtFlags::SYMLINK_NOFOLLOW).ok().as_ref().map(mode)
    }

    /// Gives a file that becomes a new segment the mode of one.
    pub(crate) fn set_segment_mode(&self, file: &File) -> Result<()> {
        let set = self.segment_mode().map_or(Ok(()), |mode| set_mode(file, mode));
        set.map_err(|errno| os::system_error(ErrorOp::Metadata, errno, file.path()))
    }

    /// Gives a directory that was made for a log its mode.
    pub(crate) fn set_dir_mode(&self, mode: u32) -> Result<()> {
        let Some(here) = self.descriptor() else { return Ok(()) };
        fchmod(here, Mode::from_raw_mode(mode)).map_err(|errno| os::system_error(ErrorOp::Metadata, errno, &self.path))
    }
}

fn set_mode(file: &File, wanted: u32) -> std::result::Result<(), Errno> {
    let Some(here) = file.descriptor() else { return Ok(()) };
    if mode(&fstat(here)?) == wanted { Ok(()) } else { fchmod(here, Mode::from_raw_mode(wanted)) }
}
