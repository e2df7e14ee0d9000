//! The target of operations: an instance, and mostly a file. A request runs on its caller's thread
//! to its end, or goes to the engine that suits it.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use crate::core::instance::{Engines, Instance};
use crate::core::policy::Route;
use crate::direct::{self, Direct};
use crate::engine::{local, read_blocking, write_blocking};
use crate::op::outstanding::Turn;
use crate::op::{Change, Direction, Notify, OpenFile, Outcome, Owner, Permit, QueueKind, Request, Slot, Transfer};
use crate::stats::Count;
use crate::sys::{Advice, Errno, IoVec, WriteFlags};

/// The instance and file of an operation. The file is absent while there is none yet.
#[derive(Clone, Copy)]
pub(crate) struct Target<'f> {
    pub(crate) instance: &'f Arc<Instance>,
    pub(crate) file: Option<&'f Arc<OpenFile>>,
}

impl Instance {
    /// The target of an operation without a file.
    #[inline]
    pub(crate) fn target(self: &Arc<Self>) -> Target<'_> {
        Target { instance: self, file: None }
    }
}

/// Shares of a target, for an operation that borrows nothing.
pub(crate) struct OwnTarget {
    instance: Arc<Instance>,
    file: Option<Arc<OpenFile>>,
}

impl OwnTarget {
    pub(crate) fn get(&self) -> Target<'_> {
        Target { instance: &self.instance, file: self.file.as_ref() }
    }

    /// Lets go of the file, on a thread that may notice completions.
    pub(crate) fn let_go(self) {
        self.file.into_iter().for_each(OpenFile::let_go);
    }
}

/// A write must wait for its turn, after others.
pub(crate) struct Busy;

impl<'f> Target<'f> {
    /// The file, for those operations that have one.
    #[inline]
    pub(crate) fn open(self) -> &'f Arc<OpenFile> {
        match self.file {
            Some(file) => file,
            None => unreachable!("this operation is one of an open file"),
        }
    }

    pub(crate) fn to_owned(self) -> OwnTarget {
        OwnTarget { instance: self.instance.clone(), file: self.file.cloned() }
    }

    /// Runs a request to its end on this thread, for a caller that waits: after changes that it
    /// overlaps. A direct write has its permit already.
    #[inline]
    pub(crate) fn run_here(&self, request: &mut Request) -> Outcome {
        match (self.file, &*request) {
            // Changes nothing, and takes no report of a failure.
            (Some(file), Request::Read(_)) => self.instance.engines().pool.run_on(file, request),
            _ => self.run_change(request),
        }
    }

    fn run_change(&self, request: &mut Request) -> Outcome {
        let change = match self.file {
            Some(file) if file.direct.is_none() || !matches!(request, Request::Write(..)) => file.change(request),
            _ => None,
        };
        let _turn = change.zip(self.file).map(|(change, file)| file.outstanding().enter(change.span));
        self.run_in_turn(request)
    }

    /// The same, for a request that overlaps nothing. One that may take the kernel's report of a
    /// failed write-back has its turn in the queue of syncs.
    fn run_in_turn(&self, request: &mut Request) -> Outcome {
        let pool = &self.instance.engines().pool;
        let Some(file) = self.file else { return pool.run(None, request) };
        if file.queue(request) == Some(QueueKind::Syncs) {
            file.queues().of(QueueKind::Syncs).enter_in_turn();
            return self.run_in_queue(file, request);
        }
        let outcome = pool.run_on(file, request);
        file.note_answer(request, &outcome);
        outcome
    }

    /// Runs a request that may take the kernel's report of a failed write-back on this thread,
    /// which has claimed the queue of syncs, and gives the queue up.
    pub(crate) fn run_in_queue(&self, file: &Arc<OpenFile>, request: &mut Request) -> Outcome {
        let pool = &self.instance.engines().pool;
        let outcome = {
            let _syncing = file.begin_sync(|wait| wait());
            match request {
                Request::Sync { .. } => file.synced(|| pool.run_on(file, request)),
                _ => pool.run_on(file, request),
            }
        };
        file.note_answer(request, &outcome);
        pool.resume(file, QueueKind::Syncs);
        outcome
    }

    /// Runs a request to its end on this thread.
    pub(crate) fn run(&self, mut request: Request) -> Outcome {
        let file = self.file.ok_or(Errno::BADF)?;
        self.instance.engines().pool.run_on(file, &mut request)
    }

    /// Announces a read to the kernel, which begins it, if it will be collected: by a thread of the
    /// pool, of which few keep the device busy then, or beside a read that a ring has.
    fn announce(&self, engines: &Engines, request: &mut Request, route: Route) {
        let (Request::Read(transfer), Some(file)) = (request, self.file) else { return };
        let reads = &file.reads;
        let policy = &self.instance.policy;
        let length = transfer.left();
        if file.direct.is_some() || !reads.may_announce(policy, length) || file.device().is_full() {
            return;
        }
        let is_for_pool = route == Route::Pool || !engines.has_ring;
        let is_collected = || local::takes_announced(file) || engines.ring.takes_announced(file);
        if !is_for_pool && (transfer.is_long() || !is_collected()) {
            return;
        }
        let advice = Advice::WillNeed;
        let begun = Instant::now();
        let done = self.run(Request::Advise { offset: transfer.position(), length: length as u64, advice });
        if reads.announced(policy, begun.elapsed().as_nanos() as u64) {
            self.instance.counters.add(Count::Stalls);
        }
        transfer.announced = done.is_ok();
    }

    /// Fills a borrowed slice on this thread, waiting as long as it takes. A forced route is
    /// ignored: it would need a slot, which owns its memory.
    pub(crate) fn read_blocking(&self, slice: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let file = self.file.ok_or(Errno::BADF)?;
        read_blocking(&*self.instance.engines().pool, file, slice, offset)
    }

    /// Writes a borrowed slice on this thread, waiting as long as it takes. Returns how much was
    /// written, and why no more.
    pub(crate) fn write_blocking(&self, slice: &[u8], offset: u64) -> (usize, Outcome) {
        let Some(file) = self.file else { return (0, Err(Errno::BADF)) };
        if let Some(direct) = &file.direct {
            return self.write_direct(file, direct, slice, offset);
        }
        let flags = file.write_flags();
        let _turn = file.outstanding().enter(file.span(offset, slice.len(), flags));
        write_blocking(file, slice, offset, flags, |request| self.run_in_turn(request))
    }

    /// Writes a slice with direct I/O. A slice that does not suit the device is copied, and the
    /// copies go to an engine, one after the other.
    fn write_direct(&self, file: &Arc<OpenFile>, direct: &Direct, slice: &[u8], offset: u64) -> (usize, Outcome) {
        let (flags, alignment) = (file.write_flags(), direct.alignment());
        let appends = flags.contains(WriteFlags::APPEND);
        let segment = IoVec { iov_base: slice.as_ptr().cast_mut().cast(), iov_len: slice.len() };
        let span = file.span(offset, slice.len(), flags);
        if !appends && alignment.suits(offset, &[segment]) {
            let bytes = slice.len() as u64;
            let change = Change { span, bytes, alone: false, durable: flags.contains(WriteFlags::DURABLE) };
            if let Some(_permit) = self.instance.engines().throttle.enter(file, change) {
                return write_blocking(file, slice, offset, flags, |request| self.run_in_turn(request));
            }
        }
        let mut turn = file.outstanding().enter(span);
        direct::write_copies(alignment, slice, offset, flags, |request| {
            let slot = self.submit(request, Notify::Waker(Waker::noop().clone()), Some(&mut turn));
            local::drive(poll_fn(|context| slot.poll(context)))
        })
    }

    /// Admits a request of a caller that waits to its thread. A direct write needs a permit beside
    /// others of its file.
    pub(crate) fn enter(&self, request: &Request) -> Result<Option<Permit>, Busy> {
        match (request, self.file) {
            (Request::Write(..), Some(file)) if file.direct.is_some() => match file.change(request) {
                Some(change) if !change.alone => {
                    self.instance.engines().throttle.enter(file, change).map(Some).ok_or(Busy)
                }
                _ => Err(Busy),
            },
            _ => Ok(None),
        }
    }

    /// Submits a request to the engine that suits it. If the request is a part of a change that
    /// this thread makes, `turn` is the turn of that change.
    pub(crate) fn submit(&self, mut request: Request, notify: Notify, turn: Option<&mut Turn<'_>>) -> Arc<Slot> {
        // Before it is made ready for its device, which may move its place to that of a block.
        let change = self.file.and_then(|file| file.change(&request));
        if let Some(file) = self.file {
            file.measure_device();
        }
        let engines = self.instance.engines();
        let route = match (&mut request, self.file.map(|file| (file, &file.direct))) {
            (Request::Read(transfer), Some((file, Some(direct)))) => {
                self.direct_route(engines.has_ring, file, direct, transfer, Direction::Read)
            }
            (Request::Write(..), Some((_, Some(_)))) if change.is_some_and(|change| change.alone) => Route::Pool,
            (Request::Write(_, flags), Some((file, Some(_)))) if self.is_lone_durable(file, *flags) => Route::Pool,
            (Request::Write(transfer, _), Some((file, Some(direct)))) => {
                self.direct_route(engines.has_ring, file, direct, transfer, Direction::Write)
            }
            (Request::Read(transfer), Some((file, None))) => {
                match file.reads.slow_route(&self.instance.policy, transfer.left()) {
                    // A kernel worker would make it.
                    Route::Ring if !self.may_ring(file) => Route::Pool,
                    route => route,
                }
            }
            // A ring hands each buffered write that blocks, and each sync, to a kernel worker.
            // io_uring runs statx and nearly all advice there, too (io_uring/{statx,advise}.c,
            // 6.12), and an open must be followed by an fstat in any case.
            _ => Route::Pool,
        };
        self.announce(engines, &mut request, route);
        let owner = match self.file {
            Some(file) => Owner::File(file.clone()),
            None => Owner::Nobody(self.instance.counters.clone(), self.instance.pools.clone()),
        };
        let slot = Slot::new(request, owner, notify);
        let engine = match (route, self.file) {
            (Route::Pool, _) => &engines.pool,
            (_, Some(file)) if file.direct.is_some() => engines.direct(),
            _ => &engines.ring,
        };
        match (change, self.file) {
            // In its turn.
            (Some(change), Some(file)) => engines.throttle.submit(slot.clone(), file, engine, change, turn),
            _ => engine.submit(slot.clone()),
        }
        slot
    }

    /// Chooses the route of a direct transfer, and makes it ready for a ring.
    fn direct_route(
        &self,
        has_ring: bool,
        file: &OpenFile,
        direct: &Direct,
        transfer: &mut Transfer,
        direction: Direction,
    ) -> Route {
        // A ring is asked not to wait. libaio waits in the submission.
        if !has_ring && direction == Direction::Read && !self.may_ring(file) {
            return Route::Pool;
        }
        direct::route(&self.instance.policy, has_ring, file, direct, transfer, direction, || self.end_of(file))
    }

    /// True for a durable direct write alone in flight, unless this thread will wait in its own
    /// ring. After a write from a ring, a kernel work queue flushes the device (docs/kernel.md).
    /// Beside programs that compute, that worker may wait for a scheduler tick. A pool thread
    /// flushes in its own call. With several writes in flight, a ring is faster.
    fn is_lone_durable(&self, file: &OpenFile, flags: WriteFlags) -> bool {
        flags.contains(WriteFlags::DURABLE)
            && file.on_their_way() == 0
            && self.instance.policy.forced.is_none()
            && !local::is_driving()
    }

    /// Whether a queue to the kernel serves reads of the file, and no thread of the kernel.
    fn may_ring(&self, file: &OpenFile) -> bool {
        self.instance.policy.forced.is_some() || self.accepts_nowait(file)
    }
}
