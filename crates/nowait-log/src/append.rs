//! Appends: copies records into the open block, and waits for room if the log has none.

use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Instant;

use super::commit::{Group, Incoming, NoRoom, Shared};
use super::event::Event;
use super::format::FRAME_BYTES;
use super::os;

use nowait::{Error, ErrorKind, Result, embed};

impl Shared {
    /// Appends records as one batch; waits for room if `may_wait`. Returns the LSN of the last
    /// record, and the group of its block.
    pub(super) fn append(
        self: &Arc<Self>,
        mut records: Incoming<'_>,
        may_wait: bool,
        from_reserve: bool,
    ) -> Result<(u64, Arc<Group>)> {
        let mut stalled: Option<Instant> = None;
        loop {
            match self.try_append(&mut records, from_reserve) {
                Ok(appended) => {
                    stalled.inspect(|since| self.stalled(*since));
                    return Ok(appended);
                }
                Err(no_room) => {
                    stalled = stalled.or_else(|| Some(Instant::now()));
                    self.make_way(no_room, may_wait)?;
                }
            }
        }
    }

    /// Appends records if there is room; otherwise registers `waker`. `stalled` is the time since
    /// which the append has waited.
    pub(super) fn poll_append(
        self: &Arc<Self>,
        mut records: Incoming<'_>,
        from_reserve: bool,
        stalled: &mut Option<Instant>,
        waker: &Waker,
    ) -> Poll<Result<(u64, Arc<Group>)>> {
        loop {
            match self.try_append(&mut records, from_reserve) {
                Ok(appended) => {
                    stalled.inspect(|since| self.stalled(*since));
                    return Poll::Ready(Ok(appended));
                }
                Err(NoRoom::Refused(error)) => return Poll::Ready(Err(error)),
                Err(_) => *stalled = stalled.or_else(|| Some(Instant::now())),
            }
            // If room became available in between, the next try finds it.
            match self.poll_room(records.payload(), from_reserve, waker) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Counts an append that has waited for room.
    fn stalled(&self, since: Instant) {
        let elapsed = since.elapsed();
        self.stalls.record(elapsed);
        self.tell_event(|| Event::Stalled { elapsed });
    }

    fn try_append(
        &self,
        records: &mut Incoming<'_>,
        from_reserve: bool,
    ) -> std::result::Result<(u64, Arc<Group>), NoRoom<Error>> {
        if self.is_forked() {
            return Err(NoRoom::Refused(self.forked()));
        }
        let payload = self.checked_payload_of(records).map_err(NoRoom::Refused)?;
        let mut state = self.state();
        let appended = state.append(records, payload, from_reserve, || embed::now(&self.dir.instance));
        if appended.is_ok() {
            self.wake_maintenance(&mut state);
        }
        drop(state);
        self.refused(appended)
    }

    fn checked_payload_of(&self, records: &Incoming<'_>) -> Result<usize> {
        let payload = records.payload();
        if records.records() == 0 {
            return Err(self.error(os::APPEND, ErrorKind::InvalidInput, "a batch has at least one record"));
        }
        self.check_payload(payload).map(|()| payload)
    }

    /// Returns zeroed memory for a record of `bytes` bytes.
    pub(super) fn memory_for(&self, bytes: usize) -> Result<Vec<u8>> {
        self.check_payload(bytes.saturating_add(FRAME_BYTES))?;
        let mut memory = Vec::new();
        memory.try_reserve_exact(bytes).map_err(|_| os::no_memory(os::APPEND, &self.dir.path))?;
        memory.resize(bytes, 0);
        Ok(memory)
    }

    /// Waits for room, after which the caller tries again, or returns the reason for refusal. If
    /// the append must not wait, starts the work that makes room, and returns `WouldBlock`. In a
    /// callback of the log no append waits: it would delay later callbacks.
    fn make_way(self: &Arc<Self>, no_room: NoRoom<Error>, may_wait: bool) -> Result<()> {
        let in_callback = self.calls.is_here();
        // A thread that holds the lock of the names is preparing a segment: it would wait for
        // itself.
        let may_wait = may_wait && !in_callback && !self.names.is_mine();
        match no_room {
            NoRoom::Refused(error) => return Err(error),
            NoRoom::Budget if may_wait => {
                // This thread writes the oldest pending block, unless another thread does.
                let oldest = self.durable() + 1;
                let group = self.state().group_of(oldest);
                if let Some(group) = group {
                    // A failure is reported when the append is tried again.
                    let _ = self.wait(oldest, &group);
                }
                return Ok(());
            }
            NoRoom::NoSpare if may_wait => {
                self.wait_for_spare();
                return Ok(());
            }
            NoRoom::Budget => self.carry_all(),
            NoRoom::NoSpare => self.begin_spare()?,
        }
        let why = match no_room {
            NoRoom::NoSpare => "the segment is full, and the next one is being prepared".to_owned(),
            _ => format!("pending_bytes_max ({} bytes) is reached", self.rules.pending_bytes_max),
        };
        let advice = match in_callback {
            true => "an append inside a callback of the log never waits: await `room` outside of it, then try again",
            false => "await `room`, then try again",
        };
        Err(self.error(os::APPEND, ErrorKind::WouldBlock, format!("{why}; {advice}")))
    }

    /// Ready when `payload` bytes can be appended, or never can; wakes `waker` otherwise.
    pub(super) fn poll_room(self: &Arc<Self>, payload: usize, from_reserve: bool, waker: &Waker) -> Poll<Result<()>> {
        if self.is_forked() {
            return Poll::Ready(Err(self.forked()));
        }
        if let Err(error) = self.check_payload(payload) {
            return Poll::Ready(Err(error));
        }
        // Cloning a waker runs user code, so no lock is held.
        let waker = waker.clone();
        let mut state = self.state();
        let no_room = match self.refused(state.has_room(payload, from_reserve, || embed::now(&self.dir.instance))) {
            Ok(()) => return Poll::Ready(Ok(())),
            Err(NoRoom::Refused(error)) => return Poll::Ready(Err(error)),
            Err(no_room) => no_room,
        };
        if !state.room_wakers.iter().any(|known| known.will_wake(&waker)) {
            state.room_wakers.push(waker);
        }
        drop(state);
        match no_room {
            NoRoom::NoSpare => {
                if let Err(error) = self.begin_spare() {
                    return Poll::Ready(Err(error));
                }
            }
            _ => self.carry_all(),
        }
        Poll::Pending
    }
}
