//! Group commit: one thread writes the pending records of all.
//!
//! An append copies its records into the open block ([`state`]). A waiting thread writes a block,
//! or sleeps until another thread has written it ([`handover`], `wait.rs`). For many waiters, a
//! thread of the log writes. For futures and
//! callbacks no thread waits in a system call: their block is submitted with a callback, which
//! submits the next block (`write.rs`).

mod block;
mod calls;
mod group;
mod handover;
mod hooks;
mod marks;
mod state;
mod sync;
mod tail;
mod wait;
mod watermark;
mod write;

use std::sync::atomic::AtomicU64;
use std::sync::{OnceLock, Weak};
use std::thread::ThreadId;
use std::time::Instant;

use super::dir::{DirLock, LogDir, Names};
use super::event::{Event, Observer};
use super::format::Control;
use super::os;
use super::preparer::Preparer;
use super::retention::Retention;
use super::sealed::BlockHooks;
use super::stats::{LogStats, Powers, Stalls};
use nowait::{Error, ErrorKind, ErrorOp, File, Result, embed};

pub(crate) use block::{Incoming, Live};
pub(crate) use group::{Fate, Group};
pub(crate) use marks::BlockPlace;
#[cfg(test)]
pub(crate) use state::fixture;
pub(crate) use state::{NoRoom, RETRY, Retired, Rules, SpareFailure, Start, TICK};
pub(crate) use sync::MutexGuard;
pub(crate) use tail::CachedBlock;

use calls::{Call, Calls};
use handover::Handover;
use hooks::Hooks;
use marks::Marks;
use state::{Poison, Refusal};

/// The blocks of a log on files.
pub(crate) type Pipeline = state::Pipeline<File>;

/// State of an open log that its handles, futures and threads share.
pub(crate) struct Shared {
    pub(crate) dir: LogDir,
    pub(crate) control: Control,
    pub(crate) rules: Rules,
    pub(crate) retention: Retention,
    observer: Option<Observer>,
    pub(crate) handover: Handover<File>,
    pub(crate) marks: Marks,
    pub(crate) woken: Powers,
    pub(crate) stalls: Stalls,
    /// Lock for changes of names in the directory; taken before the state's lock.
    pub(crate) names: Names,
    /// Lock for replacing the control file; taken after `names`, and before the state's lock.
    pub(crate) recording: Names,
    pub(crate) calls: Calls,
    /// Wakers that threads holding `names` pass on.
    pub(crate) wakes: Calls,
    /// Passes blocks to the application's hooks.
    pub(crate) hooks: Hooks,
    /// Prepares segments if there is no maintenance thread.
    pub(crate) preparer: Preparer,
    /// Lock of the directory. A writing thread holds a share, so that no other process can open the
    /// log while a write of this process is still possible.
    pub(crate) dir_lock: Weak<DirLock>,
    /// The maintenance thread, which must not wait for itself.
    pub(crate) maintenance: OnceLock<ThreadId>,
    /// Time when the last block with records was made, in milliseconds since 1970 by the wall
    /// clock; 0 if that is not known.
    time_ms: AtomicU64,
    /// Generation of the process that opened the log. A forked child has none of the log's threads,
    /// and must not write.
    generation: u64,
}

impl Shared {
    pub(crate) fn new(
        dir: LogDir,
        control: Control,
        rules: Rules,
        (retention, observer, hooks): (Retention, Option<Observer>, BlockHooks),
        dir_lock: Weak<DirLock>,
        start: impl FnOnce(Instant) -> Start<File>,
    ) -> Shared {
        let start = start(embed::now(&dir.instance));
        let time_ms = start.segments.iter().rev().map(|segment| segment.time_ms).find(|time_ms| *time_ms > 0);
        let state = Pipeline::new(rules, start);
        Shared {
            dir,
            control,
            rules,
            retention,
            observer,
            handover: Handover::new(state, rules.tail_bytes),
            marks: Marks::default(),
            woken: Powers::default(),
            stalls: Stalls::default(),
            names: Names::default(),
            recording: Names::default(),
            calls: Calls::new("nowait-log-calls"),
            wakes: Calls::new("nowait-log-wakes"),
            hooks: Hooks::new(hooks),
            preparer: Preparer::default(),
            dir_lock,
            maintenance: OnceLock::new(),
            time_ms: AtomicU64::new(time_ms.unwrap_or(0)),
            generation: embed::fork_generation(),
        }
    }

    /// Locks the state.
    pub(crate) fn state(&self) -> MutexGuard<'_, Pipeline> {
        self.handover.lock()
    }

    pub(crate) fn durable(&self) -> u64 {
        self.handover.durable()
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.handover.epoch()
    }

    /// Queues an event for the log's callback thread. The caller holds no lock but `names`.
    pub(crate) fn tell_event(&self, event: impl FnOnce() -> Event) {
        if let Some(observer) = &self.observer {
            self.calls.add([Call::Event(observer.clone(), event())]);
            self.serve_calls();
        }
    }

    pub(crate) fn stats(&self) -> LogStats {
        let (woken, stalls) = (self.woken.percentiles(), self.stalls.count());
        LogStats { woken, stalls, stalled: self.stalls.time(), ..self.state().stats() }
    }

    /// Hands completions that only the calling thread would notice to a watcher, before the thread
    /// sleeps.
    pub(crate) fn watch_all(&self) {
        embed::notice_by_thread();
    }

    /// True if this thread holds `names` or `recording`, and so must not run user code.
    pub(crate) fn holds_names(&self) -> bool {
        self.names.is_mine() || self.recording.is_mine()
    }

    pub(crate) fn is_forked(&self) -> bool {
        embed::fork_generation() != self.generation
    }

    // Errors.

    pub(crate) fn error(&self, operation: ErrorOp, kind: ErrorKind, text: impl Into<String>) -> Error {
        os::error(operation, kind, &self.dir.path).with_advice(text)
    }

    pub(crate) fn forked(&self) -> Error {
        let text = "the log was opened before the fork and belongs to the parent; open another one in the child";
        self.error(os::APPEND, ErrorKind::InvalidInput, text)
    }

    /// The error of a record that was not acknowledged.
    fn failure(&self, poison: &Poison, lsn: u64) -> Error {
        let (kind, text) = if lsn <= poison.submitted {
            let text = format!(
                "record {lsn} was being written when a write of the log failed, and may or may not exist; open the log again"
            );
            (ErrorKind::Indeterminate, text)
        } else {
            let text =
                format!("record {lsn} was not written, because an earlier write of the log failed; open the log again");
            (ErrorKind::Poisoned, text)
        };
        self.error(os::APPEND, kind, format!("{text} ({})", poison.error))
    }

    /// The error of a log that has failed or is closing; for appends.
    pub(crate) fn check_open(&self, state: &Pipeline) -> Result<()> {
        state.check_open().map_err(|refusal| self.refusal(refusal))
    }

    /// The error of a log that has failed.
    pub(crate) fn poisoned(&self, state: &Pipeline) -> Option<Error> {
        let poison = state.poison.as_ref()?;
        Some(self.refusal(Refusal::Poisoned(poison.error.clone())))
    }

    #[cold]
    fn refusal(&self, refusal: Refusal) -> Error {
        match refusal {
            Refusal::Poisoned(cause) => {
                let text = format!(
                    "an earlier write of the log failed, so it accepts no more records; open the log again ({cause})"
                );
                self.error(os::APPEND, ErrorKind::Poisoned, text)
            }
            Refusal::Closed => self.error(os::APPEND, ErrorKind::Closed, "the log was closed; open it again"),
            Refusal::NoSpace { left, is_reserved, cause } => {
                let why = if is_reserved { ", some of them reserved for others" } else { ", too few" };
                let text = format!(
                    "no segment can be prepared, and the prepared ones have {left} bytes left{why}; \
                     free space, for example with truncate_prefix ({cause})"
                );
                self.error(os::APPEND, ErrorKind::NoSpace, text)
            }
            Refusal::NoMemory => os::no_memory(os::APPEND, &self.dir.path),
        }
    }

    /// The same with the refusal as an error.
    pub(crate) fn refused<T>(
        &self,
        answer: std::result::Result<T, NoRoom<Refusal>>,
    ) -> std::result::Result<T, NoRoom<Error>> {
        answer.map_err(|no_room| match no_room {
            NoRoom::Budget => NoRoom::Budget,
            NoRoom::NoSpare => NoRoom::NoSpare,
            NoRoom::Refused(refusal) => NoRoom::Refused(self.refusal(refusal)),
        })
    }

    /// The error of a watermark block without room; such a block never waits for room.
    pub(crate) fn no_room(&self, no_room: NoRoom<Error>) -> Error {
        match no_room {
            NoRoom::Refused(error) => error,
            NoRoom::Budget | NoRoom::NoSpare => self.error(os::APPEND, ErrorKind::NoSpace, "the segment has no room"),
        }
    }

    /// Refuses records that do not fit into any segment.
    pub(crate) fn check_payload(&self, payload: usize) -> Result<()> {
        if self.rules.fits_segment(payload) {
            return Ok(());
        }
        let text = format!(
            "a segment of {} bytes holds a record of {} at most, or a batch of less in all; append less at a time, or make the \
             log with larger segments",
            self.rules.segment_bytes,
            self.rules.record_bytes_max()
        );
        Err(self.error(os::APPEND, ErrorKind::InvalidInput, text))
    }

    /// Wakes the maintenance thread if it sleeps.
    pub(crate) fn wake_maintenance(&self, state: &mut Pipeline) {
        if state.wake_maintenance() {
            self.handover.work.notify_one();
        }
    }
}
