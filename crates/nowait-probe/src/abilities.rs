//! Abilities of a file, determined by trial.

use std::path::Path;

use nowait::{Buf, DirectIo, ErrorKind, File, Nowait, OpenOptions};
use rustix::fs::IFlags;
use rustix::io::{Errno, ReadWriteFlags};

use crate::case::Case;
use crate::kernel::PAGE;
use crate::place::AtomicWrites;
use crate::twin;

/// Abilities of a file, determined by trial. `None` means not tried, or undetermined.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Abilities {
    /// Non-blocking reads (`RWF_NOWAIT`) through the page cache.
    pub nowait_reads: Option<bool>,
    /// Non-blocking writes through the page cache.
    pub nowait_writes: Option<bool>,
    /// Non-blocking direct reads. A device that processes requests during their submission has
    /// none.
    pub nowait_direct_reads: Option<bool>,
    /// Writes that leave nothing in the page cache (`RWF_DONTCACHE`).
    pub uncached_writes: Option<bool>,
    /// Direct I/O, with the alignment that this library uses.
    pub direct: Option<DirectIo>,
    /// Atomic writes (`RWF_ATOMIC`), if `statx(2)` reports them.
    pub atomic_writes: Option<AtomicWrites>,
    /// Overwritten data moves to new blocks (btrfs, without the attribute `C`).
    pub(crate) copies_on_write: bool,
}

impl Abilities {
    /// Determines abilities by writes to a scratch file.
    pub(crate) fn try_writes(&mut self, dir: &Path, attributes: IFlags, nowait: &Nowait) -> std::io::Result<()> {
        let tested = twin::make(dir, attributes, Case::CachedOverwrite, 1)?;
        let page = [0; PAGE];
        let slices = [std::io::IoSlice::new(&page)];
        self.nowait_writes = accepted(rustix::io::pwritev2(&tested.file, &slices, 0, ReadWriteFlags::NOWAIT).map(drop));
        self.atomic_writes = AtomicWrites::of(&tested.file);
        self.copies_on_write = !twin::attributes(&tested.file).contains(IFlags::NOCOW);
        let mut options = OpenOptions::new();
        let opened = options.read(true).write(true).open_in(nowait, twin::path_of(&tested.file)).wait();
        self.uncached_writes =
            opened.ok().and_then(|file| match file.write_at(Buf::zeroed(PAGE), 0).uncached().wait() {
                Ok(_) => Some(true),
                Err(error) if error.error.kind() == ErrorKind::Unsupported => Some(false),
                Err(_) => None,
            });
        Ok(())
    }

    /// Records the findings of this library's selectors for an open file.
    pub(crate) fn learn(&mut self, case: Case, file: &File) {
        if case == Case::CachedRead {
            self.nowait_reads = file.nowait_reads();
        }
        if case == Case::DirectRead {
            self.direct = Some(file.direct());
            if let (DirectIo::Granted { .. }, Some(fd)) = (file.direct(), file.descriptor()) {
                let mut page = Buf::zeroed(PAGE);
                let mut slices = [std::io::IoSliceMut::new(&mut page)];
                let read = rustix::io::preadv2(fd, &mut slices, 0, ReadWriteFlags::NOWAIT);
                self.nowait_direct_reads = accepted(read.map(drop));
            }
        }
    }
}

/// Returns whether the result of a non-blocking request shows support; `None` if it does not show
/// that.
pub(crate) fn accepted(answer: std::result::Result<(), Errno>) -> Option<bool> {
    match answer {
        Ok(()) | Err(Errno::AGAIN) => Some(true),
        Err(Errno::OPNOTSUPP) => Some(false),
        Err(_) => None,
    }
}
