//! Modes of the files that a log creates. They follow the modes of existing files, which an
//! administrator may have changed.

use super::{CONTROL, LogDir, segment_name};
use crate::os;
use nowait::{ErrorOp, File, OpenOptions, Result};

/// Bits of a directory's mode that its files inherit.
const FILE_BITS: u32 = 0o666;

impl LogDir {
    /// Creates or opens a file with this mode, whatever the umask is.
    pub(super) fn make_file(&self, options: &OpenOptions, name: &str, mode: Option<u32>) -> Result<File> {
        let mut options = options.clone();
        // The mode is set at creation, so that it is never wider than `mode`.
        mode.map(|mode| options.mode(mode));
        let file = self.open_file(&options, name)?;
        match mode.map_or(Ok(()), |mode| os::set_mode(&file, mode)) {
            Err(error) if !os::has_no_modes(&error) => Err(os::system_error(ErrorOp::Metadata, &error, file.path())),
            _ => Ok(file),
        }
    }

    /// Returns the mode for a new control file: that of the existing one, else the mode for files
    /// of the directory. None on a simulator.
    pub(super) fn control_mode(&self) -> Option<u32> {
        self.mode_of(CONTROL).or_else(|| self.file_mode())
    }

    pub(super) fn segment_mode(&self) -> Option<u32> {
        self.descriptor()?;
        let newest = self.contents().ok().and_then(|contents| contents.numbers.last().copied());
        newest.and_then(|newest| self.mode_of(&segment_name(newest))).or_else(|| self.file_mode())
    }

    /// Returns the mode for files of the directory, from the directory's mode or the option of a
    /// new log.
    pub(super) fn file_mode(&self) -> Option<u32> {
        let here = self.descriptor()?;
        let mode = self.made_with.or_else(|| os::mode_of_dir(here))?;
        Some(mode & FILE_BITS)
    }

    fn mode_of(&self, name: &str) -> Option<u32> {
        os::mode_at(self.descriptor()?, name)
    }

    /// Sets the mode of a segment on a file that becomes one.
    pub(crate) fn set_segment_mode(&self, file: &File) -> Result<()> {
        let set = self.segment_mode().map_or(Ok(()), |mode| os::set_mode(file, mode));
        set.map_err(|error| os::system_error(ErrorOp::Metadata, &error, file.path()))
    }

    /// Sets the mode of a directory that was created for a log.
    pub(crate) fn set_dir_mode(&self, mode: u32) -> Result<()> {
        let Some(here) = self.descriptor() else { return Ok(()) };
        let set = os::set_mode_of_dir(here, mode);
        set.map_err(|error| os::system_error(ErrorOp::Metadata, &error, &self.path))
    }
}
