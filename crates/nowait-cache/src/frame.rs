//! Frames: the memory of pages, and a record of each outside of it.
//!
//! `unsafe` here: addresses of frames, shared by threads.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::arena::Arena;
use crate::word::Word;

/// One cache line (64 bytes): no false sharing between hits on different frames.
#[repr(align(64))]
pub(crate) struct Record {
    pub(crate) word: Word,
    /// Address of the frame.
    start: NonNull<u8>,
    /// State of the cache, for the thread that removes the last pin.
    cache: AtomicPtr<()>,
    /// Number of the page's inode in this cache.
    inode: AtomicU64,
    page: AtomicU64,
    /// Bytes of the page; fewer than its size at the end of the file.
    valid: AtomicU32,
}

// SAFETY: the record does not access the bytes; the state word decides which thread may.
unsafe impl Send for Record {}
// SAFETY: as above.
unsafe impl Sync for Record {}

impl Record {
    /// True if the frame, which is pinned, contains this page.
    #[inline]
    pub(crate) fn contains(&self, inode: u64, page: u64) -> bool {
        self.page.load(Ordering::Relaxed) == page && self.inode.load(Ordering::Relaxed) == inode
    }

    /// True if the frame contains, or contained last, a page of this inode.
    pub(crate) fn is_of(&self, inode: u64) -> bool {
        self.inode.load(Ordering::Relaxed) == inode
    }

    /// Page of a frame that its owner, or a pin, keeps in place.
    pub(crate) fn page(&self) -> u64 {
        self.page.load(Ordering::Relaxed)
    }

    /// Names the page of a frame that is about to be published, and its length.
    pub(crate) fn name(&self, inode: u64, page: u64, valid: u32) {
        self.inode.store(inode, Ordering::Relaxed);
        self.page.store(page, Ordering::Relaxed);
        self.valid.store(valid, Ordering::Relaxed);
    }

    /// Length of a pinned page.
    #[inline]
    pub(crate) fn valid(&self) -> usize {
        self.valid.load(Ordering::Relaxed) as usize
    }

    /// Sets the length of a page whose frame belongs to the caller.
    pub(crate) fn set_valid(&self, valid: usize) {
        self.valid.store(valid as u32, Ordering::Relaxed);
    }

    /// Copies bytes into the frame.
    ///
    /// # Safety
    /// The frame belongs to the caller. The bytes fit in it, and are not its own.
    pub(crate) unsafe fn write(&self, at: usize, bytes: &[u8]) {
        // SAFETY: as the caller promises.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(at), bytes.len()) };
    }

    /// Zeroes a range of the frame; nothing if the range ends before its start.
    ///
    /// # Safety
    /// The frame belongs to the caller, and contains the range.
    pub(crate) unsafe fn zero(&self, range: Range<usize>) {
        // SAFETY: as the caller promises.
        unsafe { std::ptr::write_bytes(self.start.as_ptr().add(range.start), 0, range.len()) };
    }

    #[inline]
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Address of the cache's state.
    pub(crate) fn cache(&self) -> *mut () {
        self.cache.load(Ordering::Relaxed)
    }

    /// Names the cache, before the frame is used.
    pub(crate) fn set_cache(&self, cache: *mut ()) {
        self.cache.store(cache, Ordering::Relaxed);
    }
}

pub(crate) struct Frames {
    records: Box<[Record]>,
    arena: Arena,
}

/// Makes a table with an entry for each frame; `None` if memory is short.
pub(crate) fn table<T>(frames: u32, entry: impl FnMut(u32) -> T) -> Option<Box<[T]>> {
    let mut table = Vec::new();
    table.try_reserve_exact(frames as usize).ok()?;
    table.extend((0..frames).map(entry));
    Some(table.into_boxed_slice())
}

impl Frames {
    /// `None` if memory is short.
    pub(crate) fn new(arena: Arena) -> Option<Frames> {
        let record = |frame| Record {
            word: Word::new(),
            start: arena.address(frame),
            cache: AtomicPtr::new(std::ptr::null_mut()),
            inode: AtomicU64::new(0),
            page: AtomicU64::new(0),
            valid: AtomicU32::new(0),
        };
        Some(Frames { records: table(arena.frames(), record)?, arena })
    }

    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    #[inline]
    pub(crate) fn get(&self, frame: u32) -> Option<&Record> {
        self.records.get(frame as usize)
    }

    /// Record of a frame that exists.
    pub(crate) fn record(&self, frame: u32) -> &Record {
        &self.records[frame as usize]
    }

    pub(crate) fn word(&self, frame: u32) -> &Word {
        &self.record(frame).word
    }

    pub(crate) fn records(&self) -> &[Record] {
        &self.records
    }

    /// Number of the frame of a record.
    pub(crate) fn number(&self, record: &Record) -> u32 {
        let bytes = (record as *const Record).addr() - self.records.as_ptr().addr();
        (bytes / size_of::<Record>()) as u32
    }

    pub(crate) fn len(&self) -> u32 {
        self.arena.frames()
    }
}
