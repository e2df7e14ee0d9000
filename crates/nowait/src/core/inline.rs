//! Reads, writes and opens on the caller's thread: non-blocking attempts (`RWF_NOWAIT`,
//! `RESOLVE_CACHED`), and plain calls that are expected to be cheap.
//!
//! The file's selector, or the instance's for opens, chooses between the two, or neither
//! (`policy.rs`). This file makes and times the calls, reports their outcomes to the selector, and
//! counts them.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::buf::{Buf, Direction};
use crate::core::dispatch::Target;
use crate::core::instance::Instance;
use crate::core::policy::{Choice, Route};
use crate::core::writeback;
use crate::engine::{Engine, lend_out, read_blocking, read_now};
use crate::op::outstanding::Turn;
use crate::op::{Done, END_UNKNOWN, Handle, OpenFile, Outcome, QueueKind, Request};
use crate::stats::Count;
use crate::sys::{self, AsFd, Errno, OFlags, WaitMode, WriteFlags};
use crate::turn;

/// How a read or write on the caller's thread ended.
pub(crate) enum Tried {
    /// A non-blocking attempt moved all of it.
    Hit,
    /// An attempt moved this number of bytes (0: no attempt was made). The slow route moves the
    /// rest.
    Part(usize),
    /// A plain call ran to its end.
    Called(Result<usize, Errno>),
}

/// Returns the number of this thread's attempt, counted from zero.
#[inline]
fn attempt_number() -> u32 {
    thread_local!(static ATTEMPTS: Cell<u32> = const { Cell::new(0) });
    // A thread that is being torn down times each attempt.
    ATTEMPTS.try_with(|attempts| attempts.replace(attempts.get().wrapping_add(1))).unwrap_or(0)
}

/// Makes one attempt at a request of `length` bytes, or, allowed to wait, runs it to its end.
#[inline]
fn transfer(
    engine: &dyn Engine,
    file: &OpenFile,
    request: &mut Request,
    length: usize,
    wait: WaitMode,
) -> Result<usize, Errno> {
    match wait {
        WaitMode::Never => engine.try_now(&file.handle, request, wait),
        // The request knows how much was moved.
        WaitMode::Allowed => engine.run_on(file, request).map(|_| length),
    }
}

/// Whether a read could sleep for a place in the queue of a full device: also an attempt begins to
/// read what is not cached.
#[inline]
pub(crate) fn may_sleep(file: &OpenFile, offset: impl FnOnce() -> u64, length: usize) -> bool {
    #[cold]
    fn is_cached(file: &OpenFile, offset: u64, length: usize) -> bool {
        file.handle.descriptor().is_ok_and(|fd| sys::is_cached(fd, offset, length))
    }
    file.device().is_full() && !is_cached(file, offset(), length)
}

/// Turn of a write that an attempt made in part. The engine that makes the rest takes it over.
pub(crate) type NotNow<'f> = Option<Turn<'f>>;

impl<'f> Target<'f> {
    /// Serves a request other than a write on this thread if it should not block. Bytes that an
    /// attempt moved are not moved again.
    #[inline]
    pub(crate) fn try_now(&self, request: &mut Request) -> Option<Outcome> {
        let Some(file) = self.file else { return self.try_open(request) };
        let length = match request {
            Request::Read(transfer) => transfer.left(),
            _ => return self.try_other_now(file, request),
        };
        if length == 0 {
            return Some(self.answered(Ok(Done::Nothing)));
        }
        let offset = || if let Request::Read(transfer) = &*request { transfer.position() } else { 0 };
        // Direct I/O bypasses the cache, and with `RWF_NOWAIT` it still waits for the device.
        if file.direct.is_some() || may_sleep(file, offset, length) {
            return None;
        }
        let engine = &*self.instance.engines().pool;
        let tried = self.try_read(length, |wait| transfer(engine, file, request, length, wait));
        match tried {
            Tried::Part(1..) if self.is_at_end(file, request) => Some(self.answered(Ok(Done::Nothing))),
            tried => self.ended(tried),
        }
    }

    /// Returns whether a ring is expected to serve a batch of reads of `length` bytes at least as fast
    /// as attempts: it copies cached data in the call that submits the batch.
    pub(crate) fn reads_batches_by_ring(&self, length: usize) -> bool {
        let Some(file) = self.file else { return false };
        let accepts = file.direct.is_none() && file.reads.nowait_accepted() == Some(true);
        accepts
            && self.instance.engines().has_ring
            && file.reads.slow_route(&self.instance.policy, length) == Route::Ring
    }

    /// Returns whether a short attempt has reached the end of the file. A file that accepts
    /// attempts ends at its size (`filemap_read`, mm/filemap.c). A size below the bytes read is no
    /// bound: /dev/zero reports zero.
    #[cold]
    fn is_at_end(&self, file: &OpenFile, request: &Request) -> bool {
        match (request, &file.handle) {
            (Request::Read(transfer), Handle::Descriptor(fd)) if !self.instance.policy.strict => {
                sys::size(fd.as_fd()) == Ok(transfer.position())
            }
            _ => false,
        }
    }

    /// Opens a file for reading on this thread, if its name is cached. As for a transfer, only the
    /// slow route reports errors.
    #[cold]
    fn try_open(&self, request: &Request) -> Option<Outcome> {
        /// All others may do more than open: create, truncate, copy the file to another layer of
        /// overlayfs; and direct I/O is tried by a read.
        const HARMLESS: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(sys::NOATIME);
        let Instance { policy, counters, opens, .. } = &**self.instance;
        let (path, flags) = match request {
            Request::Open { path, flags, direct: false, .. } if HARMLESS.contains(*flags) => (path, *flags),
            _ => return None,
        };
        if !opens.allows(policy) {
            return None;
        }
        // Made on first use, which is not the open's time.
        let engine = &*self.instance.engines().pool;
        let begun = Instant::now();
        let outcome = engine.open_now(path, flags);
        let elapsed_ns = begun.elapsed().as_nanos() as u64;
        turn::charge(elapsed_ns);
        if opens.tried(policy, elapsed_ns) {
            counters.add(Count::Stalls);
        }
        match outcome {
            Ok(done) => Some(self.called(Ok(done))),
            Err(errno) => {
                if errno == Errno::OPNOTSUPP {
                    opens.refused();
                }
                None
            }
        }
    }

    /// As [`Target::try_now`], for a write.
    pub(crate) fn try_write_now(&self, request: &mut Request) -> Result<Outcome, NotNow<'f>> {
        let Some(file) = self.file else { return Err(None) };
        let (offset, length, appends) = match request {
            Request::Write(transfer, _) if transfer.left() == 0 => return Ok(self.answered(Ok(Done::Nothing))),
            Request::Write(..) if file.direct.is_some() => return Err(None),
            Request::Write(transfer, WriteFlags::NONE) => (transfer.position(), transfer.left(), false),
            Request::Write(transfer, WriteFlags::APPEND) => (transfer.position(), transfer.left(), true),
            // Other flags ask for what waits for the device.
            _ => return Err(None),
        };
        let (engine, order) = (&*self.instance.engines().pool, file.outstanding());
        let call = |wait| transfer(engine, file, request, length, wait);
        let flags = if appends { WriteFlags::APPEND } else { WriteFlags::NONE };
        // None if the write would overtake an earlier change.
        let enter = || order.try_enter(file.span(offset, length, flags));
        let (tried, turn) = self.try_write(file, offset, length, appends, false, enter, call);
        self.ended(tried).ok_or(turn)
    }

    /// As [`Target::try_now`], into a borrowed slice. A part is no answer.
    pub(crate) fn try_read_slice(&self, slice: &mut [u8], offset: u64) -> Option<Result<usize, Errno>> {
        let file = self.file?;
        if slice.is_empty() {
            return Some(Ok(0));
        }
        if file.direct.is_some() || may_sleep(file, || offset, slice.len()) {
            return None;
        }
        let (engine, length) = (&*self.instance.engines().pool, slice.len());
        let tried = self.try_read(length, |wait| match wait {
            WaitMode::Never => read_now(engine, &file.handle, slice, offset, wait),
            WaitMode::Allowed => read_blocking(engine, file, slice, offset),
        });
        let read = if let Tried::Called(Ok(n)) = tried { n } else { length };
        self.ended(tried).map(|outcome| outcome.map(|_| read))
    }

    /// As [`Target::try_write_now`], from a borrowed slice: how much was written, and the outcome.
    /// A part is no answer.
    pub(crate) fn try_write_slice(&self, slice: &[u8], offset: u64) -> Option<(usize, Outcome)> {
        let flags = self.file?.write_flags();
        let (written, outcome) = lend_out(slice, offset, flags, 0, |request| self.try_write_now(request).ok());
        outcome.map(|outcome| (written, outcome))
    }

    /// As [`Target::try_now`], for requests other than reads and writes.
    fn try_other_now(&self, file: &OpenFile, request: &mut Request) -> Option<Outcome> {
        match request {
            // A size that the kernel knows may be an old one where a server has the file.
            Request::Size if !self.instance.policy.strict && self.accepts_nowait(file) => {
                let engine = &*self.instance.engines().pool;
                Some(self.answered(engine.run(Some(&file.handle), request)))
            }
            _ => None,
        }
    }

    #[inline]
    fn ended(&self, tried: Tried) -> Option<Outcome> {
        match tried {
            Tried::Hit => {
                self.instance.counters.add(Count::InlineAttempt);
                Some(Ok(Done::Nothing))
            }
            Tried::Called(result) => Some(self.called(result.map(|_| Done::Nothing))),
            Tried::Part(_) => None,
        }
    }

    /// A call that moves no data.
    fn answered(&self, outcome: Outcome) -> Outcome {
        turn::called(0);
        self.called(outcome)
    }

    fn called(&self, outcome: Outcome) -> Outcome {
        self.instance.counters.add(if outcome.is_ok() { Count::InlineCall } else { Count::FailedAtOnce });
        outcome
    }

    /// Whether plain calls of the file's device are known to return. The first goes to a thread that
    /// may wait.
    #[inline]
    fn may_call(&self, file: &OpenFile, direction: Direction) -> bool {
        file.device().answers(direction) || self.instance.policy.forced.is_some()
    }

    /// Whether the file accepts non-blocking reads, which need no kernel worker in a ring. Such a file
    /// is a local one: its attributes are in memory. If that is not known yet, the kernel is asked,
    /// by a read far behind any end.
    pub(super) fn accepts_nowait(&self, file: &OpenFile) -> bool {
        /// A multiple of every block.
        const FAR: u64 = i64::MAX as u64 >> 24 << 24;
        if let (None, Handle::Descriptor(_)) = (file.reads.nowait_accepted(), &file.handle) {
            let block = file.direct.as_ref().map_or(1, |direct| direct.alignment().offset as usize);
            let Some(mut block) = Buf::uncleared(block) else { return false };
            let engine = &*self.instance.engines().pool;
            match read_now(engine, &file.handle, &mut block, FAR, WaitMode::Never) {
                Ok(_) | Err(Errno::AGAIN) => file.reads.attempt_accepted(),
                Err(Errno::OPNOTSUPP) => file.reads.attempt_refused(),
                // No answer, as of a file that is open for writing only.
                Err(_) => return false,
            }
        }
        // A simulated file needs no evidence.
        file.reads.nowait_accepted() != Some(false)
    }

    /// Reads `length` bytes on this thread if that should not block. `call` makes one attempt, or,
    /// allowed to wait, reads to the end.
    #[inline]
    pub(crate) fn try_read(&self, length: usize, mut call: impl FnMut(WaitMode) -> Result<usize, Errno>) -> Tried {
        let Some(file) = self.file else { return Tried::Part(0) };
        let reads = &file.reads;
        let Instance { policy, counters, .. } = &**self.instance;
        match reads.choose(policy, length) {
            Choice::Slow => return Tried::Part(0),
            Choice::Budgeted if !self.may_call(file, Direction::Read) => return Tried::Part(0),
            Choice::Budgeted => {}
            Choice::Attempt => {
                let begun = reads.is_timed(attempt_number()).then(Instant::now);
                match call(WaitMode::Never) {
                    // Zero is never the end of the file: kernels 5.9 and 5.10 answered so before it
                    // (tokio-rs/tokio#3803).
                    Ok(n) if n > 0 => {
                        let elapsed_ns = begun.map(|begun| begun.elapsed().as_nanos() as u64);
                        turn::served(n, elapsed_ns);
                        reads.attempt_hit(n, elapsed_ns);
                        if n == length {
                            return Tried::Hit;
                        }
                        counters.add(Count::ShortAttempts);
                        return Tried::Part(n);
                    }
                    Err(Errno::OPNOTSUPP) => {
                        reads.attempt_refused();
                        if reads.choose(policy, length) != Choice::Budgeted || !self.may_call(file, Direction::Read) {
                            return Tried::Part(0);
                        }
                    }
                    // Any other error is reported by the slow route.
                    answer => {
                        if answer == Err(Errno::AGAIN) {
                            reads.attempt_accepted();
                        }
                        turn::called(0);
                        counters.add(Count::Misses);
                        reads.attempt_missed();
                        return Tried::Part(0);
                    }
                }
            }
        }
        let begun = Instant::now();
        let result = call(WaitMode::Allowed);
        let elapsed_ns = begun.elapsed().as_nanos() as u64;
        turn::charge(elapsed_ns);
        if reads.budgeted(policy, length, elapsed_ns) {
            file.device().stalled(Direction::Read);
            counters.add(Count::Stalls);
        }
        Tried::Called(result)
    }

    /// Writes `length` bytes on this thread if that should not block. `enter` returns the write's
    /// turn in the order of the file's changes, or `None` if an earlier change is in flight. If
    /// this thread `owns` the file's queue of writes, no other write can delay it. `call` makes one
    /// attempt with `WaitMode::Never`; otherwise it writes everything. The turn is returned if
    /// bytes were moved or a plain call was made.
    #[inline]
    #[expect(clippy::too_many_arguments)]
    pub(crate) fn try_write<T>(
        &self,
        file: &OpenFile,
        offset: u64,
        length: usize,
        appends: bool,
        owns: bool,
        enter: impl FnOnce() -> Option<T>,
        mut call: impl FnMut(WaitMode) -> Result<usize, Errno>,
    ) -> (Tried, Option<T>) {
        let not_now = || (Tried::Part(0), None);
        let Instance { policy, counters, .. } = &**self.instance;
        let writes = &file.writes;
        // Even a non-blocking attempt waits while the file system is frozen (`file_start_write`,
        // include/linux/fs.h).
        if !self.may_call(file, Direction::Write) {
            return not_now();
        }
        let is_cheap = || self.writes_cheaply(file, offset, length, appends, owns);
        // Half an append by an attempt would leave room for another before the rest.
        let mut choice = writes.choose(policy, length, !appends, is_cheap);
        if choice == Choice::Slow {
            return not_now();
        }
        let Some(turn) = enter() else { return not_now() };
        if choice == Choice::Attempt {
            // The call is not timed: it does not wait for a device, and one write teaches nothing
            // about other causes of delay.
            let answer = call(WaitMode::Never);
            turn::called(answer.unwrap_or(0));
            match answer {
                Ok(n) if n > 0 => {
                    writes.attempt_hit();
                    if n == length {
                        return (Tried::Hit, Some(turn));
                    }
                    counters.add(Count::ShortAttempts);
                    return (Tried::Part(n), Some(turn));
                }
                Err(Errno::OPNOTSUPP) => {
                    writes.attempt_refused();
                    choice = writes.choose(policy, length, !appends, is_cheap);
                }
                _ => {
                    counters.add(Count::Misses);
                    writes.attempt_missed();
                    choice = writes.instead(policy, is_cheap);
                }
            }
        }
        if choice != Choice::Budgeted {
            return not_now();
        }
        let begun = Instant::now();
        let result = call(WaitMode::Allowed);
        let elapsed_ns = begun.elapsed().as_nanos() as u64;
        turn::charge(elapsed_ns);
        if writes.budgeted(policy, length, elapsed_ns) {
            file.device().stalled(Direction::Write);
            writeback::slept(elapsed_ns);
            counters.add(Count::Stalls);
        }
        (Tried::Called(result), Some(turn))
    }

    /// Whether a plain write should not block: it covers whole pages, its edges are cached or past
    /// the end of the file, no other write of the file is in the way, and the kernel is not about
    /// to throttle writers.
    fn writes_cheaply(&self, file: &OpenFile, offset: u64, length: usize, appends: bool, owns: bool) -> bool {
        const PAGE: u64 = crate::buf::BUF_ALIGNMENT as u64;
        let end = offset + length as u64;
        let edge_is_cached = |place: u64| place % PAGE == 0 || self.page_is_cached(file, place - place % PAGE);
        // Only the call under way can delay this write, not those that wait in the file's queue. An
        // append must not overtake another: the order of submission determines its offset.
        let queue = file.queues().of(QueueKind::Writes);
        let may_overtake = || !appends && !queue.is_in_long_call() && writeback::is_calm();
        (owns || file.on_their_way() == 0 || may_overtake())
            && (appends
                || ((offset == file.written_to.load(Relaxed) || edge_is_cached(offset))
                    && (end / PAGE == offset / PAGE && offset % PAGE != 0 || edge_is_cached(end))))
            && writeback::allows(length)
    }

    /// Where the file was last known to end.
    pub(super) fn end_of(&self, file: &OpenFile) -> Option<u64> {
        if file.end.load(Relaxed) == END_UNKNOWN {
            file.end.store(self.known_size()?, Relaxed);
        }
        Some(file.end.load(Relaxed))
    }

    /// The size as the kernel knows it, without a question to a server: a hint.
    pub(crate) fn known_size(&self) -> Option<u64> {
        let handle = &self.file?.handle;
        match handle {
            Handle::Descriptor(fd) => sys::known_size(fd.as_fd()).ok(),
            Handle::Simulated { .. } => match self.instance.engines().pool.run(Some(handle), &mut Request::Size) {
                Ok(Done::Size(size)) => Some(size),
                _ => None,
            },
        }
    }

    /// A write into the page at `start` need not read it first. Asking begins to read it, where it
    /// is not cached.
    fn page_is_cached(&self, file: &OpenFile, start: u64) -> bool {
        let engine = &*self.instance.engines().pool;
        match self.end_of(file) {
            Some(end) if start >= end => return true,
            Some(_) => {}
            None => return false,
        }
        match read_now(engine, &file.handle, &mut [0], start, WaitMode::Never) {
            Ok(n) => n > 0,
            // In memory (tmpfs), or for the stall budget to judge.
            Err(errno) => errno == Errno::OPNOTSUPP,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use crate::buf::Direction;
    use crate::core::instance::Nowait;
    use crate::file::OpenOptions;
    use crate::op::QueueKind;

    /// Symptom: once more than 64 KiB of a file's small writes waited for a thread, all later ones
    /// joined them, though each of these calls ended soon.
    #[test]
    fn writes_that_wait_for_a_thread_delay_no_small_one() {
        let nowait = Nowait::builder().build().unwrap();
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = folder.path().join("file");
        let file = OpenOptions::new().write(true).create(true).open_in(&nowait, &path).wait().unwrap();
        let open = file.target().file.unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !open.device().answers(Direction::Write) {
            assert!(Instant::now() < deadline, "each call took long");
            file.write_all_at(vec![1; 4096], 0).wait().unwrap();
        }
        let queue = open.queues().of(QueueKind::Writes);
        assert!(queue.enter());
        let large = file.write_all_at(vec![2; 4 << 20], 4096).start();
        assert_eq!(open.on_their_way(), 4 << 20);

        let small = |block: u64| file.write_all_at(vec![3; 4096], (5 << 20) + 4096 * block).start();
        let mut waiting = vec![large];
        // As long as the kernel is near to throttling writers, it waits for a thread all the same.
        loop {
            let before = open.on_their_way();
            waiting.push(small(waiting.len() as u64));
            if open.on_their_way() == before {
                break;
            }
            assert!(Instant::now() < deadline, "it joined the others");
            std::thread::sleep(Duration::from_millis(100));
        }
        // Beside a call that holds the file's lock for long, it waits for a thread.
        for (bytes, lasts_ms) in [(4 << 20, 0), (4096, 100)] {
            let before = open.on_their_way();
            let beside = queue.call(bytes, || {
                std::thread::sleep(Duration::from_millis(lasts_ms));
                small(waiting.len() as u64)
            });
            waiting.push(beside);
            assert_eq!(open.on_their_way(), before + 4096);
        }

        file.target().instance.engines().pool.resume(open, QueueKind::Writes);
        waiting.into_iter().for_each(|write| drop(write.wait().unwrap()));
    }
}
