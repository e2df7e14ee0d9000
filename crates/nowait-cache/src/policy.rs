//! Replacement: which page is evicted for the next one.
//!
//! S3-FIFO (Yang et al., SOSP 2023) over frame numbers. A new page enters a small queue. At its
//! end, pages with two hits or a pin move to the main queue; others are evicted and leave a ghost
//! entry. A page that returns while it has a ghost entry enters the main queue. So a scan passes
//! through the small queue, and displaces no page that is read repeatedly.
//!
//! The queues are lists over frame numbers in memory of a fixed size. A hit does not change them:
//! it only raises the score in the frame's state word.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::frame::{Frames, table};
use crate::inode::Inode;
use crate::word::Doomed;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    Free = 0,
    Small = 1,
    Main = 2,
    /// In no queue: being filled, or doomed and pinned.
    Absent = 3,
    /// Given up by a smaller capacity.
    Retired = 4,
}

#[derive(Clone, Copy)]
struct Link {
    before: u32,
    after: u32,
    queue: Queue,
}

#[derive(Clone, Copy)]
struct Ends {
    /// The oldest.
    first: u32,
    last: u32,
    len: u32,
}

/// Ghost entries of evicted pages: one fingerprint in each place. A later eviction overwrites an
/// earlier one whose page has the same place.
struct Ghosts(Box<[u32]>);

impl Ghosts {
    fn place(&self, inode: u64, page: u64) -> (usize, u32) {
        // Multiplication by odd constants spreads consecutive pages.
        let hash = (inode.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ page).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let hash = (hash ^ hash >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        ((hash >> 32) as usize % self.0.len(), hash as u32 | 1)
    }

    fn add(&mut self, inode: u64, page: u64) {
        let (place, fingerprint) = self.place(inode, page);
        self.0[place] = fingerprint;
    }

    fn take(&mut self, inode: u64, page: u64) -> bool {
        let (place, fingerprint) = self.place(inode, page);
        let is_known = self.0[place] == fingerprint;
        if is_known {
            self.0[place] = 0;
        }
        is_known
    }
}

pub(crate) struct Policy {
    links: Box<[Link]>,
    queues: [Ends; 5],
    ghosts: Ghosts,
    /// File of each filled frame.
    inodes: Box<[Option<Arc<Inode>>]>,
    /// Number of frames that may contain pages; below the total if the capacity was lowered.
    usable: u32,
    /// Frames whose memory was, or is being, returned to the system.
    given_up: u32,
    /// Pages evicted, for other pages or by a smaller capacity.
    pub(crate) evictions: u64,
}

impl Policy {
    /// `None` if memory is short.
    pub(crate) fn new(frames: u32) -> Option<Policy> {
        let mut policy = Policy {
            links: table(frames, |_| Link { before: NONE, after: NONE, queue: Queue::Absent })?,
            queues: [Ends { first: NONE, last: NONE, len: 0 }; 5],
            ghosts: Ghosts(table(frames, |_| 0)?),
            inodes: table(frames, |_| None)?,
            usable: frames,
            given_up: 0,
            evictions: 0,
        };
        (0..frames).for_each(|frame| policy.append(Queue::Free, frame));
        Some(policy)
    }

    fn append(&mut self, queue: Queue, frame: u32) {
        let ends = &mut self.queues[queue as usize];
        let before = std::mem::replace(&mut ends.last, frame);
        ends.len += 1;
        match before {
            NONE => ends.first = frame,
            before => self.links[before as usize].after = frame,
        }
        self.links[frame as usize] = Link { before, after: NONE, queue };
    }

    fn remove(&mut self, frame: u32) {
        let Link { before, after, queue } = self.links[frame as usize];
        self.links[frame as usize].queue = Queue::Absent;
        if queue == Queue::Absent {
            return;
        }
        let ends = &mut self.queues[queue as usize];
        ends.len -= 1;
        match before {
            NONE => ends.first = after,
            before => self.links[before as usize].after = after,
        }
        match after {
            NONE => self.queues[queue as usize].last = before,
            after => self.links[after as usize].before = before,
        }
    }

    fn ends(&self, queue: Queue) -> Ends {
        self.queues[queue as usize]
    }

    /// Takes a frame for a page: a free one, or that of another page. Returns `None` if every page is
    /// pinned, or after it has skipped `pinned_max` pinned pages.
    pub(crate) fn take(&mut self, frames: &Frames, pinned_max: u32) -> Option<u32> {
        let free = self.ends(Queue::Free).first;
        if free != NONE {
            self.remove(free);
            return Some(free);
        }
        self.evict(frames, pinned_max)
    }

    /// Evicts a page; returns its frame. Returns `None` in the same cases as [`Policy::take`].
    fn evict(&mut self, frames: &Frames, pinned_max: u32) -> Option<u32> {
        let mut found = 0;
        // Pinned pages seen in a row in the main queue. At the queue's length, all of them are pinned.
        let mut pinned = 0;
        loop {
            let (small, main) = (self.ends(Queue::Small), self.ends(Queue::Main));
            let is_small = small.len > 0 && (small.len > self.usable / 10 || pinned >= main.len);
            if !is_small && pinned >= main.len {
                return None;
            }
            let frame = if is_small { small.first } else { main.first };
            let word = frames.word(frame);
            self.remove(frame);
            if word.is_pinned() {
                // A page that is in use is not new any more.
                pinned += u32::from(!is_small);
                self.append(Queue::Main, frame);
                found += 1;
                if found >= pinned_max {
                    return None;
                }
                continue;
            }
            let is_unused = word.is_unused_ahead();
            let stays = if is_small { word.score() > 1 } else { word.lower_score() > 0 };
            let hits = if stays { None } else { word.try_evict() };
            let Some(hits) = hits else {
                pinned = 0;
                self.append(Queue::Main, frame);
                continue;
            };
            if let Some(inode) = self.inodes[frame as usize].as_ref().filter(|_| is_unused && hits == 0) {
                inode.counters.read_ahead_unused.fetch_add(1, Ordering::Relaxed);
            }
            self.leave_directory(frame, frames, hits, is_small);
            self.evictions += 1;
            return Some(frame);
        }
    }

    /// Removes the page of a frame, which is in no queue, from its directory.
    fn leave_directory(&mut self, frame: u32, frames: &Frames, hits: u64, leaves_ghost: bool) {
        if let Some(inode) = self.inodes[frame as usize].take() {
            inode.counters.hits.fetch_add(hits, Ordering::Relaxed);
            let page = frames.record(frame).page();
            inode.pages.clear(page, frame);
            if leaves_ghost {
                self.ghosts.add(inode.number, page);
            }
        }
    }

    /// Records that a frame was filled with a page of this file.
    pub(crate) fn filled(&mut self, frame: u32, page: u64, inode: &Arc<Inode>) {
        let queue = if self.ghosts.take(inode.number, page) { Queue::Main } else { Queue::Small };
        self.inodes[frame as usize] = Some(inode.clone());
        self.append(queue, frame);
    }

    /// Removes a page that left the directory from its queue. The caller, or its last pin, frees
    /// the frame.
    pub(crate) fn forget(&mut self, frame: u32) {
        self.remove(frame);
        self.inodes[frame as usize] = None;
    }

    /// Takes back a frame that contains nothing. Returns false if the capacity was cut: the caller
    /// discards its memory, and then [retires](Policy::retire) it.
    pub(crate) fn give_back(&mut self, frame: u32) -> bool {
        let is_kept = self.len() - self.given_up <= self.usable;
        if is_kept {
            self.append(Queue::Free, frame);
        } else {
            self.given_up += 1;
        }
        is_kept
    }

    /// Stores a frame that was given up, after its memory was discarded. Returns true if the
    /// capacity was restored meanwhile: the frame is free.
    pub(crate) fn retire(&mut self, frame: u32) -> bool {
        let is_needed = self.len() - self.given_up < self.usable;
        if is_needed {
            self.given_up -= 1;
        }
        self.append(if is_needed { Queue::Free } else { Queue::Retired }, frame);
        is_needed
    }

    /// Sets the number of frames that may contain pages. Returns the frames that are given up now.
    /// Pinned pages leave their directories; their frames, and those that are being filled, follow
    /// when they are given back.
    pub(crate) fn set_usable(&mut self, usable: u32, frames: &Frames) -> Vec<u32> {
        self.usable = usable;
        let mut given_up = Vec::new();
        while self.present() > usable {
            let Some(frame) = self.take(frames, u32::MAX) else { break };
            self.given_up += 1;
            given_up.push(frame);
        }
        let mut excess = self.present().saturating_sub(usable);
        while excess > 0 {
            // In use for the longest time, since all are pinned.
            let frame = match (self.ends(Queue::Small).first, self.ends(Queue::Main).first) {
                (NONE, NONE) => break,
                (NONE, main) => main,
                (small, _) => small,
            };
            excess -= 1;
            self.remove(frame);
            let word = frames.word(frame);
            self.leave_directory(frame, frames, word.take_hits(), false);
            if word.doom() == Doomed::Free {
                self.given_up += 1;
                given_up.push(frame);
            }
        }
        while self.len() - self.given_up < usable && self.ends(Queue::Retired).len > 0 {
            let frame = self.ends(Queue::Retired).first;
            self.remove(frame);
            self.given_up -= 1;
            self.append(Queue::Free, frame);
        }
        given_up
    }

    /// Marks all pinned pages as wanted. Returns true if a frame is free or a cached page is not pinned.
    pub(crate) fn want_all(&self, frames: &Frames) -> bool {
        let is_cached = |frame: &u32| matches!(self.links[*frame as usize].queue, Queue::Small | Queue::Main);
        let marked = (0..self.len()).filter(is_cached).filter(|frame| frames.word(*frame).want()).count();
        marked < self.cached() as usize || self.ends(Queue::Free).len > 0
    }

    fn len(&self) -> u32 {
        self.links.len() as u32
    }

    pub(crate) fn usable(&self) -> u32 {
        self.usable
    }

    /// Number of frames that are free or contain a page of a directory.
    fn present(&self) -> u32 {
        self.ends(Queue::Free).len + self.cached()
    }

    /// False if a page that was read must not enter its directory, since the capacity was cut meanwhile.
    pub(crate) fn has_room(&self) -> bool {
        self.present() < self.usable
    }

    /// Number of pages in the cache.
    pub(crate) fn cached(&self) -> u32 {
        self.ends(Queue::Small).len + self.ends(Queue::Main).len
    }
}
