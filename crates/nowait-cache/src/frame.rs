//! Frames: the memory of pages, and a record of each outside of it.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::arena::Arena;
use crate::word::Word;

/// One line of 64 bytes: a hit on another frame does not disturb it.
#[repr(align(64))]
struct Record {
    word: Word,
    /// Number of the page's inode in this cache.
    inode: AtomicU64,
    page: AtomicU64,
    /// Bytes of the page; fewer than its size at the end of the file.
    valid: AtomicU32,
}

pub(crate) struct Frames {
    records: Box<[Record]>,
    arena: Arena,
}

impl Frames {
    pub(crate) fn new(arena: Arena) -> Frames {
        let record = || Record {
            word: Word::new(),
            inode: AtomicU64::new(0),
            page: AtomicU64::new(0),
            valid: AtomicU32::new(0),
        };
        Frames { records: (0..arena.frames()).map(|_| record()).collect(), arena }
    }

    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    #[inline]
    pub(crate) fn word(&self, frame: u32) -> &Word {
        &self.records[frame as usize].word
    }

    /// Page of a frame that its owner, or a pin, keeps in place.
    pub(crate) fn page(&self, frame: u32) -> u64 {
        self.records[frame as usize].page.load(Ordering::Relaxed)
    }

    /// Length of a pinned page.
    #[inline]
    pub(crate) fn valid(&self, frame: u32) -> usize {
        self.records[frame as usize].valid.load(Ordering::Relaxed) as usize
    }

    /// True if a pinned frame contains this page.
    #[inline]
    pub(crate) fn contains(&self, frame: u32, inode: u64, page: u64) -> bool {
        let record = &self.records[frame as usize];
        record.page.load(Ordering::Relaxed) == page && record.inode.load(Ordering::Relaxed) == inode
    }

    /// Names the page of a frame that is about to be published, and its length.
    pub(crate) fn name(&self, frame: u32, inode: u64, page: u64, valid: u32) {
        let record = &self.records[frame as usize];
        record.inode.store(inode, Ordering::Relaxed);
        record.page.store(page, Ordering::Relaxed);
        record.valid.store(valid, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn address(&self, frame: u32) -> NonNull<u8> {
        self.arena.address(frame)
    }

    pub(crate) fn len(&self) -> u32 {
        self.arena.frames()
    }
}
