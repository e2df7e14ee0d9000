//! A device's requirements on a request's place, length and memory; and whether a file has direct
//! I/O.

use std::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::ahead::Ahead;
use crate::buf::{BUF_ALIGNMENT, Buf};
use crate::sync::locking;
use crate::sys::{self, AsFd, BorrowedFd, Errno, IoVec, OFlags, OwnedFd, WaitMode, WriteOnce};

/// Required multiples, of addresses and of places and lengths. Powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Alignment {
    pub(crate) memory: u32,
    pub(crate) offset: u32,
}

/// Enough for every device met so far, and for one that says less than it needs.
const ENOUGH: Alignment = Alignment { memory: BUF_ALIGNMENT as u32, offset: BUF_ALIGNMENT as u32 };

/// Alignment for the page cache, which requires none.
const NONE: Alignment = Alignment { memory: 1, offset: 1 };

impl Alignment {
    /// Whether a request of these segments at `offset` can be made as it is.
    pub(crate) fn suits(self, offset: u64, segments: &[IoVec]) -> bool {
        let places = segments.iter().fold(offset, |all, segment| all | segment.iov_len as u64);
        let addresses = segments.iter().fold(0, |all, segment| all | segment.iov_base as usize);
        places % u64::from(self.offset) == 0 && addresses % self.memory as usize == 0
    }

    /// Whether a request is of whole blocks.
    pub(crate) fn suits_place(self, offset: u64, length: usize) -> bool {
        (offset | length as u64) % u64::from(self.offset) == 0
    }

    /// The start of the block that `offset` lies in.
    pub(crate) fn down(self, offset: u64) -> u64 {
        offset - offset % u64::from(self.offset)
    }

    /// The end of the block that ends with or after `offset`.
    pub(crate) fn up(self, offset: u64) -> u64 {
        offset.next_multiple_of(u64::from(self.offset))
    }
}

/// Direct I/O of one open file.
#[derive(Debug)]
pub(crate) struct Direct {
    memory: AtomicU32,
    offset: AtomicU32,
    /// True after a request that suits every device was refused. The descriptor then uses the page
    /// cache.
    refused: AtomicBool,
    /// The same file through the page cache, opened on first use.
    cached: WriteOnce<OwnedFd>,
    pub(crate) ahead: Ahead,
    /// Held to write past the page cache (shared) or through it (alone) on a thread: a write may
    /// turn into the other kind on its way, when the device turns out to need more.
    turn: RwLock<()>,
}

impl Direct {
    pub(crate) fn new(alignment: Alignment) -> Direct {
        let Alignment { memory, offset } = alignment;
        let (memory, offset, refused) = (memory.into(), offset.into(), AtomicBool::new(false));
        let (cached, ahead, turn) = (WriteOnce::new(), Ahead::default(), RwLock::new(()));
        Direct { memory, offset, refused, cached, ahead, turn }
    }

    pub(crate) fn alignment(&self) -> Alignment {
        if self.is_refused() {
            return NONE;
        }
        Alignment { memory: self.memory.load(Relaxed), offset: self.offset.load(Relaxed) }
    }

    /// Notes that the device refused (EINVAL) a request that met its stated needs; false if that
    /// was known.
    pub(crate) fn learn(&self) -> bool {
        if self.is_refused() {
            return false;
        }
        let Alignment { memory, offset } = ENOUGH;
        let before = (self.memory.fetch_max(memory, Relaxed), self.offset.fetch_max(offset, Relaxed));
        before.0 < memory || before.1 < offset
    }

    /// Returns whether requests go through the page cache because the file was found to have no
    /// direct I/O.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused.load(Acquire)
    }

    /// Sends all requests of this file and its clones through the page cache. Called after a
    /// request that suits every device failed with EINVAL. overlayfs over a file system without
    /// direct I/O accepts the flag by fcntl(2), and then fails every request with EINVAL
    /// (`ovl_change_flags`, fs/overlayfs/file.c).
    ///
    /// Returns false if another request did so first.
    ///
    /// In this order: a request that finds the refusal also finds the page cache, and not EINVAL.
    pub(crate) fn refuse(&self, fd: BorrowedFd<'_>) -> bool {
        sys::set_direct(fd, false);
        !self.refused.swap(true, AcqRel)
    }

    /// Undoes [`Direct::refuse`]: the request failed through the page cache, too.
    pub(crate) fn trust(&self, fd: BorrowedFd<'_>) {
        self.refused.store(false, Release);
        sys::set_direct(fd, true);
    }

    /// Excludes writes through the page cache while held.
    pub(crate) fn beside(&self) -> RwLockReadGuard<'_, ()> {
        locking();
        self.turn.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Excludes all writes by other threads while held.
    pub(crate) fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        locking();
        self.turn.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether a thread holds [`Direct::alone`].
    #[cfg(test)]
    pub(crate) fn excludes_writes(&self) -> bool {
        self.turn.try_read().is_err()
    }

    /// The file through the page cache, for writing.
    pub(crate) fn cached(&self, fd: BorrowedFd<'_>) -> Result<BorrowedFd<'_>, Errno> {
        if let Some(cached) = self.cached.get() {
            return Ok(cached.as_fd());
        }
        let flags = sys::flags(fd)?;
        // A descriptor that may not write must not be given one that may.
        if flags & OFlags::RWMODE == OFlags::RDONLY {
            return Err(Errno::BADF);
        }
        let opened = sys::reopen(fd, flags & (OFlags::APPEND | sys::OPEN_FLAGS_KEPT))?;
        Ok(self.cached.get_or_init(|| opened).as_fd())
    }
}

/// The outcome of asking for direct I/O.
#[derive(Debug)]
pub(crate) enum Directness {
    NotAsked,
    /// The file has no direct I/O: it is in memory, or its file system lacks it.
    Refused,
    Granted {
        direct: Direct,
        /// The device cannot be asked without waiting, so that a ring would hand every request to a
        /// kernel worker. (Those that complete in the submission: zram, RAM disks, some of device
        /// mapper.)
        only_waits: bool,
    },
}

/// Looks at a descriptor, without reading.
pub(crate) fn look(fd: BorrowedFd<'_>) -> Directness {
    if !sys::is_direct(fd) {
        return Directness::NotAsked;
    }
    match sys::direct_alignment(fd) {
        Some((memory, offset)) => {
            let alignment = careful(Alignment { memory, offset });
            Directness::Granted { direct: Direct::new(alignment), only_waits: false }
        }
        None => give_up(fd),
    }
}

/// Looks at a descriptor, and tries: reads a block if the file has one. May wait for the device.
pub(crate) fn examine(fd: BorrowedFd<'_>) -> Directness {
    let found = look(fd);
    let Directness::Granted { direct, .. } = &found else { return found };
    let Some(mut block) = Buf::uncleared(BUF_ALIGNMENT) else { return found };
    let mut read = |length: u32, wait| {
        let segment = IoVec { iov_base: block.as_mut_ptr().cast(), iov_len: length as _ };
        // SAFETY: a part of `block`, which is borrowed for the call.
        unsafe { sys::read_at(fd, &[segment], 0, wait) }
    };
    let mut answer = read(direct.alignment().offset, WaitMode::Never);
    // The file has no non-blocking reads, or the call is refused. Nothing was tried yet.
    let only_waits = answer == Err(Errno::OPNOTSUPP);
    let wait = if only_waits { WaitMode::Allowed } else { WaitMode::Never };
    if only_waits {
        answer = read(direct.alignment().offset, wait);
    }
    if answer == Err(Errno::INVAL) && direct.learn() {
        answer = read(direct.alignment().offset, wait);
    }
    match (answer, found) {
        (Err(Errno::INVAL), _) => give_up(fd),
        // This includes files that are empty or open for writing only.
        (_, Directness::Granted { direct, .. }) => Directness::Granted { direct, only_waits },
        (_, other) => other,
    }
}

/// The file is used through the page cache.
fn give_up(fd: BorrowedFd<'_>) -> Directness {
    sys::set_direct(fd, false);
    Directness::Refused
}

/// Aligns memory to blocks where these are of a page. zram takes memory at any multiple of 512, and
/// then copies to and from the start of a page (seen on 6.18): over memory that is not the
/// caller's.
fn careful(alignment: Alignment) -> Alignment {
    let Alignment { memory, offset } = alignment;
    Alignment { memory: if offset >= ENOUGH.offset { memory.max(ENOUGH.memory) } else { memory }, offset }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECTOR: Alignment = Alignment { memory: 4, offset: 512 };

    #[test]
    fn a_device_that_lies_is_believed_once() {
        let direct = Direct::new(SECTOR);
        assert!(direct.learn() && !direct.learn());
        assert_eq!(direct.alignment(), ENOUGH);
    }
}
