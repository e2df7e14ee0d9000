//! Room for appends: what becomes of one that finds none, and a future for those who do not wait.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::Log;
use super::commit::{NoRoom, Shared};
use super::format::FRAME_BYTES;
use crate::engine::local;
use crate::error::{ErrorKind, ErrorOp, Result};

/// Result of [`Log::room`] in the making.
#[must_use = "nothing waits until it is awaited or waited for"]
pub struct Room {
    log: Log,
    payload: usize,
}

impl Log {
    /// Waits until a record of `bytes` bytes can be appended at once: await it, or [`wait`](Room::wait) for it, where
    /// [`Log::try_append`] answered that it would have to wait. (For a batch: the bytes of all, and 4 more for each record but one.)
    ///
    /// It reserves nothing: others may append first, and then `try_append` refuses again. What is in the way is written, and the next
    /// segment prepared, while it waits. Dropped, it changes nothing. It keeps the log open as a clone does.
    ///
    /// # Errors
    /// Those of [`Log::append`]: [`ErrorKind::NoSpace`] when the next segment cannot be prepared, [`ErrorKind::Poisoned`],
    /// [`ErrorKind::Closed`], [`ErrorKind::InvalidInput`] for a record that never fits.
    pub fn room(&self, bytes: usize) -> Room {
        Room { log: self.clone(), payload: bytes.saturating_add(FRAME_BYTES) }
    }
}

impl Room {
    /// Blocks until there is room.
    ///
    /// # Errors
    /// As [`Log::room`].
    pub fn wait(self) -> Result<()> {
        self.log.0.shared.watch_all();
        local::drive(self)
    }
}

impl Future for Room {
    type Output = Result<()>;
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.log.0.shared.poll_room(self.payload, context.waker())
    }
}

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Room").field("log", &self.log).finish_non_exhaustive()
    }
}

impl Shared {
    /// What an append does that finds no room: waits, so that it may try again, or is refused. One that must not wait has had begun
    /// what makes room. In a callback of the log none waits: the callbacks behind it would, too.
    pub(super) fn make_way(self: &Arc<Self>, no_room: NoRoom, may_wait: bool) -> Result<()> {
        let in_callback = self.calls.is_here();
        // This thread prepares the segment that it would wait for.
        let may_wait = may_wait && !in_callback && !self.names.is_mine();
        match no_room {
            NoRoom::Refused(error) => return Err(error),
            NoRoom::Budget if may_wait => {
                // Somebody has to write what is in the way.
                let oldest = self.durable() + 1;
                let group = self.core().group_of(oldest);
                if let Some(group) = group {
                    // Its failure is told by the next round.
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
            _ => format!("{} bytes may be pending at most, and are", self.limits.pending_bytes_max),
        };
        let advice = match in_callback {
            true => "no append waits in a callback of the log: await `room` elsewhere and try again",
            false => "await `room` and try again",
        };
        Err(self.error(ErrorOp::Append, ErrorKind::WouldBlock, format!("{why}; {advice}")))
    }

    fn poll_room(self: &Arc<Self>, payload: usize, waker: &Waker) -> Poll<Result<()>> {
        if self.is_forked() {
            return Poll::Ready(Err(self.forked()));
        }
        if let Err(error) = self.check_payload(payload) {
            return Poll::Ready(Err(error));
        }
        // A waker's clone may run anything: not under a lock.
        let waker = waker.clone();
        let mut core = self.core();
        let no_room = match self.has_room(&core, payload) {
            Ok(()) => return Poll::Ready(Ok(())),
            Err(NoRoom::Refused(error)) => return Poll::Ready(Err(error)),
            Err(no_room) => no_room,
        };
        if !core.rooms.iter().any(|known| known.will_wake(&waker)) {
            core.rooms.push(waker);
        }
        drop(core);
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
