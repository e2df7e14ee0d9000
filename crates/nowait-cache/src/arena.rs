//! The memory of a cache's frames: one anonymous mapping of a fixed size.
//!
//! `unsafe` here: the mapping, and advice that discards its contents.

use std::ffi::c_void;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Size of a huge page on x86-64 and aarch64.
const HUGE: usize = 2 << 20;

pub(crate) struct Arena {
    mapping: NonNull<u8>,
    mapped: usize,
    /// Start of the frames: a multiple of [`HUGE`] in large arenas.
    start: NonNull<u8>,
    frame: usize,
    frames: u32,
}

// SAFETY: the mapping belongs to the arena, and its address is valid in all threads. The state
// words of the frames decide which thread may access which bytes.
unsafe impl Send for Arena {}
// SAFETY: as above; the arena only computes addresses.
unsafe impl Sync for Arena {}

impl Arena {
    /// Reserves `frames` frames of `frame` bytes. The kernel assigns memory when a frame is filled
    /// for the first time.
    ///
    /// # Errors
    /// Those of `mmap(2)`.
    pub(crate) fn new(frames: u32, frame: usize) -> Result<Arena, Errno> {
        let bytes = (frames as usize).checked_mul(frame).ok_or(Errno::NOMEM)?;
        let aligns = bytes >= HUGE;
        let mapped = if aligns { bytes.checked_add(HUGE).ok_or(Errno::NOMEM)? } else { bytes };
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let mapping = unsafe {
            mmap_anonymous(std::ptr::null_mut(), mapped, ProtFlags::READ | ProtFlags::WRITE, flags)?.cast::<u8>()
        };
        let skipped = if aligns { mapping.align_offset(HUGE) } else { 0 };
        let start = mapping.wrapping_add(skipped);
        let (Some(mapping), Some(start)) = (NonNull::new(mapping), NonNull::new(start)) else {
            return Err(Errno::NOMEM);
        };
        let arena = Arena { mapping, mapped, start, frame, frames };
        // A child that shared the pages would make the kernel copy those that a direct read fills,
        // and the parent would lose what was read. The child sees zeros at the same addresses, so
        // that a lease of the parent never points to other memory of the child.
        arena.advise(Advice::LinuxWipeOnFork)?;
        // Without huge pages the arena works, too.
        if aligns {
            let _ = arena.advise(Advice::LinuxHugepage);
        }
        Ok(arena)
    }

    fn advise(&self, advice: Advice) -> Result<(), Errno> {
        // SAFETY: the arena's own mapping; neither advice changes its contents.
        unsafe { madvise(self.mapping.as_ptr().cast::<c_void>(), self.mapped, advice) }
    }

    /// Number of frames.
    pub(crate) fn frames(&self) -> u32 {
        self.frames
    }

    /// Address of a frame.
    #[inline]
    pub(crate) fn address(&self, frame: u32) -> NonNull<u8> {
        assert!(frame < self.frames);
        // SAFETY: within the mapping, which holds `frames` frames from `start` on.
        unsafe { self.start.add(frame as usize * self.frame) }
    }

    /// Returns the memory of a frame to the system. Its contents are zeros afterwards.
    ///
    /// # Safety
    /// No lease, no read in flight and no reference uses the frame.
    pub(crate) unsafe fn discard(&self, frame: u32) {
        let start = self.address(frame).as_ptr().cast::<c_void>();
        // SAFETY: the frame lies in the mapping, and nothing uses its contents. If the system
        // refuses, the memory stays assigned.
        let _ = unsafe { madvise(start, self.frame, Advice::LinuxDontNeed) };
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the arena's own mapping, which nothing uses after the arena.
        let _ = unsafe { munmap(self.mapping.as_ptr().cast::<c_void>(), self.mapped) };
    }
}

#[cfg(all(test, not(nowait_cache_loom)))]
mod tests {
    use super::*;

    #[test]
    fn frames_are_aligned_and_do_not_overlap() {
        let arena = Arena::new(1024, 4096).unwrap();
        assert_eq!(arena.address(0).as_ptr().addr() % HUGE, 0);
        for frame in [0, 1, 1023] {
            // SAFETY: the frame's own bytes.
            unsafe { arena.address(frame).write_bytes((frame as u8).wrapping_add(1), 4096) };
        }
        // SAFETY: as above.
        let first = |frame| unsafe { *arena.address(frame).as_ptr() };
        assert_eq!([0, 1, 1023].map(first), [1, 2, 0]);
        // SAFETY: nothing uses the frame.
        unsafe { arena.discard(1) };
        assert_eq!([0, 1, 2].map(first), [1, 0, 0]);
    }
}
