//! Futures of a log: an append, an appended record, the durability of any record, and room for an
//! append.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use super::commit::{Fate, Group, Incoming, Shared};
use super::format::Entry;
use super::open::OpenLog;
use super::os::polled_too_often;
use nowait::embed::turn;
use nowait::{Error, Result, block_on};

/// Append that has not begun: await it, or [`wait`](Append::wait) for it. It is ready when the
/// records are in the log's memory. Its result, a [`Ticket`], is ready when they are durable.
///
/// If dropped before it is ready, it appends nothing. Appends that wait for room are not served in
/// order: small records may delay a large one for long.
#[must_use = "nothing is appended until the future is awaited, or `wait` is called"]
pub struct Append<'a> {
    pub(super) log: &'a Arc<Shared>,
    pub(super) records: Records<'a>,
    pub(super) from_reserve: bool,
    /// Time since which the append waits for room.
    pub(super) stalled: Option<Instant>,
    pub(super) is_ready: bool,
}

/// Records to append; a single one needs no allocation.
pub(super) enum Records<'a> {
    One([Entry<'a>; 1]),
    Batch(Vec<Entry<'a>>),
    /// One record, in memory of the append.
    Filled {
        kind: u8,
        bytes: Vec<u8>,
    },
    Refused(Error),
}

impl Records<'_> {
    #[inline]
    fn with<R>(&mut self, append: impl FnOnce(Incoming<'_>) -> Result<R>) -> Result<R> {
        match self {
            Records::One(record) => append(Incoming::Copied(record)),
            Records::Batch(records) => append(Incoming::Copied(records)),
            Records::Filled { kind, bytes } => append(Incoming::Given { kind: *kind, bytes }),
            Records::Refused(error) => Err(error.clone()),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Records::One([record]) => record.bytes.len(),
            Records::Batch(records) => records.iter().map(|record| record.bytes.len()).sum(),
            Records::Filled { bytes, .. } => bytes.len(),
            Records::Refused(_) => 0,
        }
    }
}

impl Append<'_> {
    /// Appends the records; blocks until the log has room. Writes pending records meanwhile, if no
    /// other thread does.
    ///
    /// # Errors
    /// Those of the append; [`ErrorKind::WouldBlock`](nowait::ErrorKind::WouldBlock) in a callback
    /// of the log, if it would have to wait: see [`Ticket::on_durable`].
    #[inline]
    pub fn wait(mut self) -> Result<Ticket> {
        let appended = self.records.with(|records| self.log.append(records, true, self.from_reserve))?;
        Ok(Ticket::new(self.log, appended))
    }
}

impl Future for Append<'_> {
    type Output = Result<Ticket>;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Ticket>> {
        if self.is_ready {
            // A further poll would append again.
            polled_too_often();
        }
        if turn::ends(context) {
            return Poll::Pending;
        }
        let Append { log, records, from_reserve, stalled, .. } = &mut *self;
        let appended = records.with(|records| {
            Ok(match log.poll_append(records, *from_reserve, stalled, context.waker()) {
                Poll::Ready(appended) => Some(appended?),
                Poll::Pending => None,
            })
        });
        self.is_ready = !matches!(appended, Ok(None));
        // Memory that moved to the log is copied by another thread.
        turn::copied(if matches!(appended, Ok(Some(_))) { self.records.bytes() } else { 0 });
        match appended {
            Ok(Some(appended)) => Poll::Ready(Ok(Ticket::new(self.log, appended))),
            Ok(None) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl std::fmt::Debug for Append<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Append").field("log", &self.log.dir.path).finish_non_exhaustive()
    }
}

/// Appended record. Await it, [`wait`](Ticket::wait) for it, or set a
/// [callback](Ticket::on_durable), to learn when it is durable. Dropping a ticket has no effect:
/// the record is still written.
#[must_use = "the record is not known to be durable until the ticket is ready"]
pub struct Ticket {
    pub(super) shared: Arc<Shared>,
    group: Arc<Group>,
    lsn: u64,
    place: Option<usize>,
}

impl Ticket {
    #[inline]
    pub(super) fn new(log: &Arc<Shared>, (lsn, group): (u64, Arc<Group>)) -> Ticket {
        Ticket { shared: log.clone(), group, lsn, place: None }
    }

    /// Returns the LSN of the record, or of the last record of a batch.
    pub fn lsn(&self) -> u64 {
        self.lsn
    }

    /// Returns true if the record is durable. Takes no lock, and starts no write.
    pub fn is_durable(&self) -> bool {
        // The durable LSN is published before the group ends. The group's fate stays valid if the
        // record is cut off later.
        self.group.fate() == Some(Fate::Durable) || self.shared.durable() >= self.lsn
    }

    /// Returns the result of [`Ticket::wait`] if it is known, without blocking. A thread can poll
    /// many tickets with it. Starts no write: if no caller waits for a ticket, the maintenance
    /// thread writes the record some milliseconds later.
    pub fn try_result(&self) -> Option<Result<u64>> {
        if self.is_durable() {
            return Some(Ok(self.lsn));
        }
        if self.shared.is_forked() {
            return Some(Err(self.shared.forked()));
        }
        self.shared.answer(self.lsn, &self.group)
    }

    /// Blocks until the record is durable; returns its LSN. Writes pending records, if no other
    /// thread does.
    ///
    /// # Errors
    /// [`ErrorKind::Indeterminate`](nowait::ErrorKind::Indeterminate) if the log failed while the
    /// record was in flight; [`ErrorKind::Poisoned`](nowait::ErrorKind::Poisoned) if it failed
    /// before.
    pub fn wait(self) -> Result<u64> {
        self.shared.wait(self.lsn, &self.group)
    }

    /// Starts the write of pending records, for a thread that waits for another log first.
    pub(super) fn begin(&self) {
        if !self.is_durable() && !self.shared.is_forked() {
            self.shared.carry_all();
        }
    }

    /// Calls `callback` when the record is durable or the log has failed.
    ///
    /// Callbacks of a log are called one after the other, in unspecified order, on the log's thread
    /// `nowait-log-calls`. A blocking callback delays only later callbacks. A panic ends only that
    /// callback. Callbacks may be called after [`Log::close`](super::Log::close) has returned. In a
    /// forked child, which lacks that thread, the callback receives an error at once.
    ///
    /// A callback may use the log. An append in a callback never waits for room: it fails with
    /// [`ErrorKind::WouldBlock`](nowait::ErrorKind::WouldBlock), see
    /// [`Log::room`](super::Log::room). [`Ticket::wait`], [`Log::close`](super::Log::close) and
    /// other blocking calls may be made in a callback.
    pub fn on_durable(self, callback: impl FnOnce(Result<u64>) + Send + 'static) {
        self.shared.call_back(self.lsn, &self.group, Box::new(callback));
    }
}

impl Future for Ticket {
    type Output = Result<u64>;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<u64>> {
        let Ticket { shared, group, lsn, place } = &mut *self;
        if shared.is_forked() {
            return Poll::Ready(Err(shared.forked()));
        }
        // A block that is left to the log's own thread needs no submission.
        if group.register(place, context.waker()) && !group.is_served() {
            shared.carry_all();
        }
        match shared.answer(*lsn, group) {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // In a forked child, a thread that does not exist there may hold the lock.
        if let Some(place) = self.place.filter(|_| !self.shared.is_forked()) {
            self.group.unregister(place);
        }
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").field("lsn", &self.lsn).finish()
    }
}

/// Future of [`Log::wait_durable`](super::Log::wait_durable).
#[must_use = "a wait does nothing until it is awaited, or `wait` is called"]
pub struct Durable {
    shared: Arc<Shared>,
    lsn: u64,
}

impl Durable {
    pub(super) fn new(shared: &Arc<Shared>, lsn: u64) -> Durable {
        Durable { shared: shared.clone(), lsn }
    }

    /// Blocks until the record is durable; returns the LSN of the last durable record.
    ///
    /// # Errors
    /// As [`Ticket::wait`]; [`ErrorKind::Closed`](nowait::ErrorKind::Closed) if the log is closed
    /// before.
    pub fn wait(self) -> Result<u64> {
        if self.shared.is_forked() {
            return Err(self.shared.forked());
        }
        if self.shared.durable() >= self.lsn {
            return Ok(self.shared.durable());
        }
        let group = self.shared.state().group_of(self.lsn);
        match group {
            Some(group) => self.shared.wait(self.lsn, &group).map(|_| self.shared.durable()),
            None => {
                self.shared.watch_all();
                block_on(self)
            }
        }
    }
}

impl std::fmt::Debug for Durable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Durable").field("lsn", &self.lsn).finish_non_exhaustive()
    }
}

impl Future for Durable {
    type Output = Result<u64>;
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<u64>> {
        if self.shared.watch(self.lsn, context.waker())? {
            self.shared.carry_all();
        }
        let durable = self.shared.durable();
        if durable >= self.lsn { Poll::Ready(Ok(durable)) } else { Poll::Pending }
    }
}

/// Future of [`Log::room`](super::Log::room).
#[must_use = "a wait does nothing until it is awaited, or `wait` is called"]
pub struct Room {
    pub(super) log: Arc<OpenLog>,
    /// Bytes, frames included.
    pub(super) payload: usize,
}

impl Room {
    /// Blocks until the log has room.
    ///
    /// # Errors
    /// As [`Log::room`](super::Log::room).
    pub fn wait(self) -> Result<()> {
        self.log.shared.watch_all();
        block_on(self)
    }
}

impl Future for Room {
    type Output = Result<()>;
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.log.shared.poll_room(self.payload, false, context.waker())
    }
}

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Room").field("log", &self.log.shared.dir.path).finish_non_exhaustive()
    }
}
