//! One wait for many records.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::ticket::Ticket;
use nowait::Result;

/// Set of appended records. Await it, or [`wait`](Tickets::wait) for it: one wait and one wake-up
/// for any number of records.
///
/// A record is durable only with every record before it. So the set keeps only the last ticket of
/// each log, and adding a ticket takes no memory. The set may contain tickets of several logs,
/// whose writes are then in flight together.
///
/// ```
/// # use nowait_log::{Log, Options, Tickets};
/// # fn main() -> nowait::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let (log, _) = Log::open(dir.path().join("log"), &Options::new().create(true).segment_bytes(1 << 20)).wait()?;
/// let mut tickets = Tickets::new();
/// for line in ["one", "two", "three"] {
///     tickets.add(log.append(line.as_bytes()).wait()?);
/// }
/// tickets.wait()?; // all three are durable
/// assert_eq!(log.durable_lsn(), 3);
/// # log.close().wait()
/// # }
/// ```
///
/// Dropping the set has no effect: the records are still written.
#[derive(Debug, Default)]
#[must_use = "no record is known to be durable until `Tickets` reports it"]
pub struct Tickets {
    /// The last ticket of each log.
    last: Vec<Ticket>,
}

impl Tickets {
    /// Makes an empty set, which is ready at once.
    pub fn new() -> Tickets {
        Tickets::default()
    }

    /// Adds a record to the set.
    pub fn add(&mut self, ticket: Ticket) {
        let Some(last) = self.last.iter_mut().find(|last| Arc::ptr_eq(&last.shared, &ticket.shared)) else {
            self.last.push(ticket);
            return;
        };
        // A cut of the log's end makes later records reuse LSNs. Records appended before the cut
        // are durable. So if two records are not durable, the one with the higher LSN was appended
        // later.
        if last.is_durable() || (!ticket.is_durable() && ticket.lsn() > last.lsn()) {
            *last = ticket;
        }
    }

    /// Returns true if all records are durable. Takes no lock, and starts no write.
    pub fn is_durable(&self) -> bool {
        self.last.iter().all(Ticket::is_durable)
    }

    /// Returns the result of [`Tickets::wait`] if it is known, without blocking; see
    /// [`Ticket::try_result`].
    pub fn try_result(&self) -> Option<Result<()>> {
        let mut is_pending = false;
        for ticket in &self.last {
            match ticket.try_result() {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Some(Err(error)),
                None => is_pending = true,
            }
        }
        (!is_pending).then_some(Ok(()))
    }

    /// Blocks until all records are durable. Writes pending records, if no other thread does.
    ///
    /// # Errors
    /// Those of [`Ticket::wait`], for the last record of a log that failed. The records of such a
    /// log up to [`Log::durable_lsn`](super::Log::durable_lsn) are still durable.
    pub fn wait(mut self) -> Result<()> {
        let Some(first) = self.last.pop() else { return Ok(()) };
        // Other logs write while this thread writes one.
        self.last.iter().for_each(Ticket::begin);
        let first = first.wait();
        // Waits for all, so that the result does not depend on which log fails first.
        self.last.into_iter().map(Ticket::wait).fold(first, |answer, next| answer.and(next)).map(drop)
    }
}

impl Extend<Ticket> for Tickets {
    fn extend<T: IntoIterator<Item = Ticket>>(&mut self, tickets: T) {
        tickets.into_iter().for_each(|ticket| self.add(ticket));
    }
}

impl FromIterator<Ticket> for Tickets {
    fn from_iter<T: IntoIterator<Item = Ticket>>(tickets: T) -> Tickets {
        let mut all = Tickets::new();
        all.extend(tickets);
        all
    }
}

impl Future for Tickets {
    type Output = Result<()>;

    /// Ready when all records are durable, or one log has failed.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let mut answer = Poll::Ready(Ok(()));
        for ticket in &mut self.last {
            match Pin::new(ticket).poll(context) {
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => answer = Poll::Pending,
            }
        }
        answer
    }
}
