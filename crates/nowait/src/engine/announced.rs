//! Buffered reads of one file of which a ring has one, and the kernel an announcement of each
//! other: `POSIX_FADV_WILLNEED` begins to read them. When the first has ended, others have arrived,
//! or the oldest of them is the new first.
//!
//! An entry for each costs more: the kernel keeps the request where it can wait for its page, and
//! does work in the context of the thread that submitted it when the page has arrived.
//!
//! This file tells which read is the first. The queue that has them makes the entries. A thread's
//! own collects others by attempts, a few at a time (`local/queue/announced.rs`). One of a tokio
//! runtime makes an entry of the next (`shard.rs`), which ends in the call that submits it if its
//! page has arrived.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// If the first takes longer than this, the others become entries, too: part of a device may hang.
pub(super) const FIRST_MAX: Duration = Duration::from_millis(10);

/// Reads that become entries where announcements do nothing: some file systems read nothing ahead,
/// and one read would wait for the other there.
pub(super) const REST: u32 = 4096;

/// The first and the others, in the terms of their queue.
pub(super) struct Announced<T> {
    /// The address of their file, which their slots keep open.
    file: usize,
    /// None while others are collected.
    first: Option<First>,
    /// Oldest first.
    others: VecDeque<T>,
    /// Some were collected since the first ended.
    has_any: bool,
    /// How often in a row the oldest had not arrived when the first had ended.
    missed: u32,
    /// Reads that become entries before one is announced again.
    rest: u32,
}

/// The read that the queue waits for before it looks at the others.
struct First {
    /// The user data of its entry.
    user_data: u64,
    since: Instant,
}

impl<T> Default for Announced<T> {
    fn default() -> Self {
        let others = VecDeque::new();
        Announced { file: 0, first: None, others, has_any: false, missed: 0, rest: 0 }
    }
}

impl<T> Announced<T> {
    /// Whether a read of the file at this address may be announced, and needs no entry then.
    pub(super) fn accepts(&self, file: usize) -> bool {
        self.rest == 0 && self.is_waiting() && self.file == file
    }

    /// Takes note of a buffered read of the file at this address. True if it needs no entry for now,
    /// and is to be [added](Announced::add).
    pub(super) fn takes(&mut self, user_data: u64, file: usize, is_announced: bool) -> bool {
        if self.rest > 0 {
            self.rest -= 1;
            return false;
        }
        let is_waiting = self.is_waiting();
        if !is_waiting {
            self.file = file;
            self.begin(user_data);
        }
        is_waiting && self.file == file && is_announced
    }

    pub(super) fn add(&mut self, read: T) {
        self.others.push_back(read);
    }

    fn is_waiting(&self) -> bool {
        self.first.is_some() || !self.others.is_empty()
    }

    /// Whether there are others than the first.
    pub(super) fn has_others(&self) -> bool {
        !self.others.is_empty()
    }

    /// Whether some may have arrived that were not looked at yet.
    pub(super) fn has_uncollected(&self) -> bool {
        self.first.is_none() && self.has_others()
    }

    /// Whether the first takes so long that the others must not wait for it.
    pub(super) fn is_late(&self) -> bool {
        self.has_others() && self.first.as_ref().is_some_and(|first| first.since.elapsed() > FIRST_MAX)
    }

    /// Takes note of the entry that is waited for from now on.
    pub(super) fn begin(&mut self, user_data: u64) {
        self.has_any = false;
        self.first = Some(First { user_data, since: Instant::now() });
    }

    /// Takes note of the end of an entry. Returns how long it took if it is the first.
    pub(super) fn ended(&mut self, user_data: u64) -> Option<Duration> {
        let first = self.first.take_if(|first| first.user_data == user_data)?;
        Some(first.since.elapsed())
    }

    /// Takes the oldest, to make an attempt at it, if the first has ended.
    pub(super) fn next(&mut self) -> Option<T> {
        if self.first.is_some() { None } else { self.others.pop_front() }
    }

    /// Takes note that one has arrived.
    pub(super) fn collected(&mut self) {
        self.has_any = true;
    }

    /// Takes note that the oldest becomes an entry: if none was collected since the first ended, it
    /// has not arrived. True if that was so `max` times in a row: the others become entries, too.
    pub(super) fn misses(&mut self, max: u32) -> bool {
        self.missed = if self.has_any { 0 } else { self.missed + 1 };
        let is_useless = self.missed == max;
        if is_useless {
            (self.missed, self.rest) = (0, REST);
        }
        is_useless
    }

    /// Takes the oldest, to make an entry of it.
    pub(super) fn pop(&mut self) -> Option<T> {
        self.others.pop_front()
    }

    /// Forgets all, and returns those that have no entry.
    pub(super) fn take(&mut self) -> VecDeque<T> {
        std::mem::take(self).others
    }
}
