//! State word of a frame: the number of its pins, and whether a page can be pinned there.
//!
//! A reader pins with one addition, and looks at the state only afterwards. So pins of readers that
//! will find nothing are possible in every state; they read no bytes and end at once.

use crate::sync::{AtomicU64, Ordering};

/// The frame contains a page of the directory. Nothing changes its bytes, its page or its length.
const READY: u64 = 1;
/// The page left the directory while it was pinned. The removal of the last pin frees the frame.
const DOOMED: u64 = 2;
/// The cache was dropped. The removal of the last pin of the last frame frees the arena.
const ORPHAN: u64 = 4;
/// A future waits for a frame: the removal of the last pin wakes one.
const WANTED: u64 = 8;
/// The page was read ahead, and no read joined. The page is unused if the word also counts no hits.
const AHEAD: u64 = 1 << 6;
/// Score of the page, [`SCORE_MAX`] at most. A hit raises it, except consecutive hits of one
/// reader; a pass of the eviction through the main queue lowers it.
const SCORE: u64 = 16;
const SCORE_MAX: u64 = 3;
const SCORE_MASK: u64 = SCORE_MAX * SCORE;
/// Number of hits since the page was filled, or since they were [taken](Word::take_hits). Counted by the
/// addition that pins: another store would cost as much as that, since the end of a pin waits for it.
const HIT: u64 = 1 << 8;
const HITS_MASK: u64 = 0xffff * HIT;
/// Highest bit of the hits. Once it is set, call [`Word::take_hits`]: 0x8000 more hits fit.
const HITS_MANY: u64 = 0x8000 * HIT;
/// 40 bits for pins: leaked leases cannot fill them.
const PIN: u64 = 1 << 24;

/// Result of [`Word::unpin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unpinned {
    /// The pin is removed, and the caller must not touch the cache any more.
    Done,
    /// The last pin of this frame was removed, and the cache was dropped.
    Orphan,
    /// It is the last pin and remains: another thread waits for a frame. Clear the mark, then unpin.
    Wanted,
    /// It is the last pin and remains: free the frame, then unpin.
    Doomed,
}

/// Result of [`Word::doom`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doomed {
    /// Nothing pins the frame: it is free.
    Free,
    /// The last pin frees it.
    Pinned,
}

/// True if a frame with this word contains a page of the directory.
#[inline]
pub(crate) fn is_ready(word: u64) -> bool {
    word & READY != 0
}

/// True if the frame is ready, and a hit changes nothing else: the score is at its maximum, and the
/// hits need not be taken. One comparison, since a hit has few instructions.
#[inline]
pub(crate) fn is_plain(word: u64) -> bool {
    word & (READY | SCORE_MASK | HITS_MANY) == READY | SCORE_MASK
}

/// True if the score is at its maximum.
pub(crate) fn is_popular(word: u64) -> bool {
    word & SCORE_MASK == SCORE_MASK
}

/// True if [`Word::take_hits`] is to be called.
pub(crate) fn has_many_hits(word: u64) -> bool {
    word & HITS_MANY != 0
}

pub(crate) struct Word(AtomicU64);

impl Word {
    pub(crate) fn new() -> Word {
        Word(AtomicU64::new(0))
    }

    /// Pins the frame and counts a hit; returns the word. Unless it [is ready](is_ready), the hit
    /// is to be [undone](Word::undo_hit) and the pin removed.
    #[inline]
    pub(crate) fn pin(&self) -> u64 {
        // Acquire: the bytes, the page and the length were stored before READY.
        self.0.fetch_add(PIN + HIT, Ordering::Acquire) + PIN + HIT
    }

    /// Pins the frame as [`Word::pin`], and counts nothing.
    pub(crate) fn pin_uncounted(&self) -> u64 {
        self.0.fetch_add(PIN, Ordering::Acquire) + PIN
    }

    /// Undoes the hit of a pin that found another page.
    #[cold]
    pub(crate) fn undo_hit(&self) {
        self.change_hits(|hits| hits.saturating_sub(1));
    }

    /// Returns the hits, and sets them to zero.
    #[cold]
    pub(crate) fn take_hits(&self) -> u64 {
        self.clear_ahead();
        self.change_hits(|_| 0)
    }

    pub(crate) fn hits(&self) -> u64 {
        (self.0.load(Ordering::Relaxed) & HITS_MASK) / HIT
    }

    /// Returns the hits before the change.
    fn change_hits(&self, new: impl Fn(u64) -> u64) -> u64 {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let hits = (word & HITS_MASK) / HIT;
            let changed = (word & !HITS_MASK) | (new(hits) * HIT);
            match self.0.compare_exchange_weak(word, changed, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return hits,
                Err(now) => word = now,
            }
        }
    }

    /// Adds a pin to a frame that is pinned.
    #[inline]
    pub(crate) fn pin_again(&self) {
        self.0.fetch_add(PIN, Ordering::Relaxed);
    }

    /// Removes a pin, unless it is the last one and there is something to do. That is done with the
    /// pin in place, since it keeps the cache in memory.
    #[inline]
    pub(crate) fn unpin(&self) -> Unpinned {
        let word = self.0.load(Ordering::Relaxed);
        // Release: reads of the bytes come before the frame is filled again.
        if word & (DOOMED | ORPHAN | WANTED) == 0
            && self.0.compare_exchange_weak(word, word - PIN, Ordering::Release, Ordering::Relaxed).is_ok()
        {
            return Unpinned::Done;
        }
        self.unpin_marked()
    }

    /// Slow path of [`Word::unpin`], for frames that are doomed, orphaned or wanted.
    #[cold]
    fn unpin_marked(&self) -> Unpinned {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let is_last = word < 2 * PIN;
            if is_last && word & (DOOMED | WANTED) != 0 && word & ORPHAN == 0 {
                return if word & WANTED != 0 { Unpinned::Wanted } else { Unpinned::Doomed };
            }
            // Release: as above. Acquire: an orphan's memory is freed after all other pins were removed.
            match self.0.compare_exchange_weak(word, word - PIN, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if is_last && word & ORPHAN != 0 => return Unpinned::Orphan,
                Ok(_) => return Unpinned::Done,
                Err(now) => word = now,
            }
        }
    }

    /// Marks a pinned frame as wanted; false if nothing pins it.
    pub(crate) fn want(&self) -> bool {
        let mut word = self.0.load(Ordering::Relaxed);
        while word >= PIN {
            match self.0.compare_exchange_weak(word, word | WANTED, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Clears the mark of [`Word::want`]; true for one caller.
    pub(crate) fn clear_wanted(&self) -> bool {
        self.0.fetch_and(!WANTED, Ordering::Relaxed) & WANTED != 0
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= PIN
    }

    /// Counts an access, unless the score is at its maximum or another thread changes the word.
    #[inline]
    pub(crate) fn raise_score(&self) {
        let word = self.0.load(Ordering::Relaxed);
        if word & SCORE_MASK != SCORE_MASK {
            let _ = self.0.compare_exchange(word, word + SCORE, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Returns the score, and lowers it by one unless it is zero.
    pub(crate) fn lower_score(&self) -> u64 {
        let mut word = self.0.load(Ordering::Relaxed);
        while word & SCORE_MASK != 0 {
            match self.0.compare_exchange_weak(word, word - SCORE, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return (word & SCORE_MASK) / SCORE,
                Err(now) => word = now,
            }
        }
        0
    }

    pub(crate) fn score(&self) -> u64 {
        (self.0.load(Ordering::Relaxed) & SCORE_MASK) / SCORE
    }

    /// Marks the page as read ahead. The caller owns the frame.
    pub(crate) fn mark_ahead(&self) {
        self.0.fetch_or(AHEAD, Ordering::Relaxed);
    }

    pub(crate) fn clear_ahead(&self) {
        if self.0.load(Ordering::Relaxed) & AHEAD != 0 {
            self.0.fetch_and(!AHEAD, Ordering::Relaxed);
        }
    }

    /// True if the page was read ahead, and no read has used it.
    pub(crate) fn is_unused_ahead(&self) -> bool {
        self.0.load(Ordering::Relaxed) & (AHEAD | HITS_MASK) == AHEAD
    }

    pub(crate) fn is_cached(&self) -> bool {
        is_ready(self.0.load(Ordering::Relaxed))
    }

    /// Makes a filled frame ready, or doomed at once, with a pin of the caller.
    pub(crate) fn publish(&self, is_doomed: bool, is_wanted: bool) {
        self.0.fetch_add(PIN, Ordering::Relaxed);
        let flags = if is_doomed { DOOMED } else { READY } | if is_wanted { WANTED } else { 0 };
        self.0.fetch_or(flags, Ordering::Release);
    }

    /// Takes a frame whose page nothing pins. Returns the page's hits if the frame belongs to the
    /// caller.
    pub(crate) fn try_evict(&self) -> Option<u64> {
        let mut word = self.0.load(Ordering::Relaxed);
        while word & READY != 0 && word < PIN {
            // Acquire: reads through removed pins came before.
            match self.0.compare_exchange_weak(word, 0, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some((word & HITS_MASK) / HIT),
                Err(now) => word = now,
            }
        }
        None
    }

    /// Claims the page of a ready frame that nothing pins, to change its bytes: pins it, and keeps
    /// readers away.
    pub(crate) fn try_claim(&self) -> bool {
        let mut word = self.0.load(Ordering::Relaxed);
        while word & READY != 0 && word < PIN {
            // Acquire: reads through removed pins came before.
            match self.0.compare_exchange_weak(word, (word & !READY) + PIN, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Ends a claim: the page can be pinned again, unless it was doomed meanwhile. The pin remains.
    pub(crate) fn end_claim(&self) {
        let mut word = self.0.load(Ordering::Relaxed);
        while word & DOOMED == 0 {
            match self.0.compare_exchange_weak(word, word | READY, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }

    /// Marks a ready frame as not ready; it is free now, or when its last pin is removed. One
    /// thread calls this at a time.
    pub(crate) fn doom(&self) -> Doomed {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let kept = word & !(READY | AHEAD | SCORE_MASK);
            let (new, doomed) = if word < PIN { (kept, Doomed::Free) } else { (kept | DOOMED, Doomed::Pinned) };
            match self.0.compare_exchange_weak(word, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return doomed,
                Err(now) => word = now,
            }
        }
    }

    /// Frees a doomed frame that only the caller pins; true if the frame belongs to the caller, who
    /// then removes the pin.
    pub(crate) fn try_free(&self) -> bool {
        let mut word = self.0.load(Ordering::Relaxed);
        while word & DOOMED != 0 && word < 2 * PIN {
            match self.0.compare_exchange_weak(word, PIN | word & ORPHAN, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Marks the frame of a dropped cache; true if it is pinned. No reader pins it any more.
    pub(crate) fn orphan(&self) -> bool {
        self.0.fetch_or(ORPHAN, Ordering::AcqRel) >= PIN
    }
}

#[cfg(all(test, not(nowait_cache_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_page_is_neither_evicted_nor_freed() {
        let word = Word::new();
        assert_eq!((is_ready(word.pin()), word.unpin()), (false, Unpinned::Done));
        word.publish(false, false);
        assert_eq!(word.try_evict(), None);
        assert_eq!((word.unpin(), is_ready(word.pin())), (Unpinned::Done, true));
        assert_eq!(word.doom(), Doomed::Pinned);
        assert!(!is_ready(word.pin()), "a doomed page cannot be leased");
        assert!(!word.try_free(), "pinned twice");
        assert_eq!((word.unpin(), word.unpin()), (Unpinned::Done, Unpinned::Doomed));
        assert!(word.try_free() && !word.try_free());
        assert_eq!(word.unpin(), Unpinned::Done);
        word.publish(false, false);
        assert_eq!((word.unpin(), word.doom()), (Unpinned::Done, Doomed::Free));
        word.publish(false, false);
        assert_eq!(word.unpin(), Unpinned::Done);
        assert_eq!((word.try_evict(), word.try_evict()), (Some(0), None));
        word.publish(true, false);
        assert_eq!((is_ready(word.pin()), word.unpin(), word.unpin()), (false, Unpinned::Done, Unpinned::Doomed));
    }

    #[test]
    fn the_last_pin_of_a_wanted_frame_is_noticed() {
        let word = Word::new();
        word.publish(false, false);
        word.pin_again();
        assert!(word.want());
        assert_eq!((word.unpin(), word.unpin()), (Unpinned::Done, Unpinned::Wanted));
        assert!(word.clear_wanted() && !word.clear_wanted());
        assert_eq!(word.unpin(), Unpinned::Done);
        assert!(!word.want());
    }

    #[test]
    fn a_page_read_ahead_is_unused_until_a_read_uses_it() {
        let word = Word::new();
        let read_ahead = || {
            word.mark_ahead();
            word.publish(false, false);
            assert_eq!((word.unpin(), word.is_unused_ahead()), (Unpinned::Done, true));
        };
        read_ahead();
        assert_eq!((is_ready(word.pin()), word.unpin(), word.is_unused_ahead()), (true, Unpinned::Done, false));
        assert_eq!((word.take_hits(), word.is_unused_ahead(), word.try_evict()), (1, false, Some(0)));
        read_ahead();
        word.clear_ahead();
        assert!(!word.is_unused_ahead());
        // Dooming or evicting the page clears the mark.
        word.mark_ahead();
        assert_eq!((word.doom(), word.is_unused_ahead()), (Doomed::Free, false));
        read_ahead();
        assert_eq!((word.try_evict(), word.is_unused_ahead()), (Some(0), false));
    }

    #[test]
    fn hits_are_counted_and_taken() {
        let word = Word::new();
        word.publish(false, false);
        for _ in 0..100 {
            assert!(is_ready(word.pin()));
            word.pin_again();
            assert_eq!((word.unpin(), word.unpin()), (Unpinned::Done, Unpinned::Done));
        }
        word.pin_uncounted();
        assert_eq!((word.hits(), word.take_hits(), word.hits()), (100, 100, 0));
        word.undo_hit();
        assert_eq!(word.hits(), 0);
        let many = (0..0xffff).find(|_| has_many_hits(word.pin()));
        assert_eq!((many, word.hits()), (Some(0x7fff), 0x8000));
    }

    #[test]
    fn scores_stay_within_their_bits() {
        let word = Word::new();
        word.publish(false, false);
        (0..10).for_each(|_| word.raise_score());
        assert_eq!(word.score(), 3);
        assert_eq!([0; 5].map(|_| word.lower_score()), [3, 2, 1, 0, 0]);
        assert!(!is_popular(word.pin()));
    }

    #[test]
    fn the_last_pin_of_a_dropped_cache_is_noticed() {
        let word = Word::new();
        assert!(!word.orphan());
        word.publish(false, true);
        word.pin_again();
        assert!(word.orphan());
        assert_eq!((word.unpin(), word.unpin()), (Unpinned::Done, Unpinned::Orphan));
        // While the last pin frees a doomed frame.
        let word = Word::new();
        word.publish(true, false);
        assert_eq!(word.unpin(), Unpinned::Doomed);
        assert!(word.orphan() && word.try_free());
        assert_eq!(word.unpin(), Unpinned::Orphan);
    }
}

#[cfg(all(test, nowait_cache_loom))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    use super::*;

    fn check(test: impl Fn() + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        // Enough to interrupt each thread between any two of its steps.
        model.preemption_bound = Some(3);
        model.check(test);
    }

    /// A frame whose bytes are its key, in memory that loom watches for races.
    struct Frame {
        word: Word,
        key: AtomicU64,
        bytes: UnsafeCell<u64>,
    }

    impl Frame {
        fn ready(key: u64) -> Arc<Frame> {
            let frame = Frame { word: Word::new(), key: AtomicU64::new(key), bytes: UnsafeCell::new(key) };
            frame.word.publish(false, false);
            assert_eq!(frame.word.unpin(), Unpinned::Done);
            Arc::new(frame)
        }

        /// Reads a page, as a lease does; the end of the pin.
        fn read(&self, key: u64) -> Unpinned {
            if is_ready(self.word.pin()) && self.key.load(Ordering::Relaxed) == key {
                // SAFETY: pinned; loom reports a race.
                self.bytes.with(|bytes| assert_eq!(unsafe { *bytes }, key));
            }
            self.word.unpin()
        }

        /// Fills the frame with another page. The caller owns it.
        fn fill(&self, key: u64) {
            // SAFETY: owned; loom reports a race.
            self.bytes.with_mut(|bytes| unsafe { *bytes = key });
            self.key.store(key, Ordering::Relaxed);
            self.word.publish(false, false);
        }
    }

    #[test]
    fn a_frame_is_not_refilled_while_it_is_read() {
        check(|| {
            let frame = Frame::ready(1);
            let readers = [1, 2].map(|key| {
                let frame = frame.clone();
                thread::spawn(move || assert_eq!(frame.read(key), Unpinned::Done))
            });
            if frame.word.try_evict().is_some() {
                frame.fill(2);
                assert_eq!(frame.word.unpin(), Unpinned::Done);
            }
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
    }

    #[test]
    fn a_page_is_not_changed_while_it_is_read() {
        check(|| {
            let frame = Frame::ready(1);
            let readers = [(); 2].map(|()| {
                let frame = frame.clone();
                thread::spawn(move || {
                    let key = frame.key.load(Ordering::Relaxed);
                    // The key changes with the bytes: a pin finds both, old or new.
                    if is_ready(frame.word.pin()) && frame.key.load(Ordering::Relaxed) == key {
                        // SAFETY: pinned; loom reports a race.
                        frame.bytes.with(|bytes| assert_eq!(unsafe { *bytes }, key));
                    }
                    assert_eq!(frame.word.unpin(), Unpinned::Done);
                })
            });
            let is_claimed = frame.word.try_claim();
            if is_claimed {
                // SAFETY: claimed; loom reports a race.
                frame.bytes.with_mut(|bytes| unsafe { *bytes = 2 });
                frame.key.store(2, Ordering::Relaxed);
                frame.word.end_claim();
                assert_eq!(frame.word.unpin(), Unpinned::Done);
            }
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
    }

    #[test]
    fn a_claimed_page_that_is_doomed_is_freed_once() {
        check(|| {
            let frame = Frame::ready(1);
            let doomer = frame.clone();
            let doomer = thread::spawn(move || doomer.word.doom() == Doomed::Free);
            let mut is_freed = false;
            if frame.word.try_claim() {
                // SAFETY: claimed; loom reports a race.
                frame.bytes.with_mut(|bytes| unsafe { *bytes = 2 });
                frame.word.end_claim();
                while frame.word.unpin() == Unpinned::Doomed {
                    is_freed |= frame.word.try_free();
                }
            }
            let is_free = doomer.join().unwrap();
            assert!(is_free != is_freed, "{is_free}, {is_freed}");
            assert!(!is_ready(frame.word.pin()));
        });
    }

    #[test]
    fn a_doomed_frame_is_freed_once() {
        check(|| {
            let frame = Frame::ready(1);
            assert!(is_ready(frame.word.pin()));
            let end = |frame: &Frame, mut unpinned: Unpinned| {
                let mut freed = 0;
                while unpinned == Unpinned::Doomed {
                    if frame.word.try_free() {
                        freed += 1;
                        // SAFETY: no other thread may look at it; loom reports a race.
                        frame.bytes.with_mut(|bytes| unsafe { *bytes = 9 });
                    }
                    unpinned = frame.word.unpin();
                }
                freed
            };
            let other = frame.clone();
            let reader = thread::spawn(move || end(&other, other.read(1)));
            let doomer = frame.clone();
            let doomer = thread::spawn(move || u32::from(doomer.word.doom() == Doomed::Free));
            let freed = end(&frame, frame.word.unpin());
            let (read, doomed) = (reader.join().unwrap(), doomer.join().unwrap());
            assert_eq!(freed + read + doomed, 1);
        });
    }

    #[test]
    fn a_thread_that_waits_for_a_frame_is_called() {
        check(|| {
            let frame = Frame::ready(1);
            assert!(is_ready(frame.word.pin()));
            let called = Arc::new((Mutex::new(false), Condvar::new()));
            let (other, call) = (frame.clone(), called.clone());
            let waiter = thread::spawn(move || {
                while other.word.try_evict().is_none() {
                    if other.word.want() {
                        let mut is_called = call.0.lock().unwrap();
                        while !*is_called {
                            is_called = call.1.wait(is_called).unwrap();
                        }
                        *is_called = false;
                    }
                }
                other.fill(2);
            });
            let end = |mut unpinned: Unpinned| {
                let mut calls = false;
                while unpinned == Unpinned::Wanted {
                    calls |= frame.word.clear_wanted();
                    unpinned = frame.word.unpin();
                }
                if calls {
                    *called.0.lock().unwrap() = true;
                    called.1.notify_one();
                }
            };
            end(frame.word.unpin());
            waiter.join().unwrap();
        });
    }
}
