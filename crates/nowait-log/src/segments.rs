//! The next segments of a log: prepared ahead, made from segments that are no longer needed, and
//! removed.

use std::sync::Arc;
use std::time::Duration;

use super::commit::{Live, Shared, SpareFailure};
use super::dir::LogDir;
use super::os;
use nowait::{ErrorKind, ErrorOp, File, Result};

/// Pause between pieces of a segment that is prepared while there is room for long.
const PAUSE: Duration = Duration::from_millis(1);

/// Removes a segment, durably.
pub(super) fn remove(dir: &LogDir, number: u64) -> Result<()> {
    match dir.remove(number) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => dir.sync(),
    }
}

impl Shared {
    /// Waits until the next segment is ready or cannot be prepared; prepares it where no other
    /// thread does. Not for a thread that holds the names.
    pub(super) fn wait_for_spare(self: &Arc<Self>) {
        if !self.rules.has_maintenance || self.maintenance.get() == Some(&std::thread::current().id()) {
            self.make_spare();
            return;
        }
        let mut state = self.state();
        state.wake_maintenance();
        self.handover.work.notify_one();
        state.appends_wait += 1;
        while state.wants_spare() && state.spare_failure.is_none() && state.check_open().is_ok() {
            state = self.handover.room.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        state.appends_wait -= 1;
    }

    /// Has another thread prepare the next segment; those that wait for room are told.
    pub(super) fn begin_spare(self: &Arc<Self>) -> Result<()> {
        if self.rules.has_maintenance {
            let mut state = self.state();
            self.wake_maintenance(&mut state);
            drop(state);
            self.handover.work.notify_one();
            return Ok(());
        }
        let shared = self.clone();
        let prepare = move || {
            if let Some(names) = shared.names.lock() {
                shared.make_spare_alone();
                drop(names);
            }
            // Before waiters are told: they may need another segment.
            shared.preparer.is_done();
            shared.serve_calls();
            shared.tell_of_room();
        };
        self.preparer.start(prepare).map_err(|error| {
            let text = "no thread can be started that prepares the next segment";
            os::thread_error(ErrorOp::Append, &error, &self.dir.path, text)
        })
    }

    /// Prepares the next segment on this thread, from one that is no longer needed if there is one.
    /// False when none was made.
    pub(super) fn make_spare(self: &Arc<Self>) -> bool {
        // A thread that holds the names prepares a segment already.
        let Some(names) = self.names.lock() else { return false };
        let is_made = self.make_spare_alone();
        drop(names);
        self.serve_calls();
        self.tell_of_room();
        is_made
    }

    /// As [`Shared::make_spare`], with the names held and without telling waiters.
    fn make_spare_alone(self: &Arc<Self>) -> bool {
        let mut state = self.state();
        if !state.wants_spare() || state.poison.is_some() {
            return false;
        }
        state.number_max += 1;
        let number = state.number_max;
        let retired = state.retired.first().copied();
        drop(state);
        let made = self.next_segment(number, retired);
        let is_made = made.is_ok();
        let mut state = self.state();
        match made {
            Ok(file) => {
                state.spares.push_back(Live { number, file });
                state.spare_failure = None;
            }
            Err(error) => state.spare_failure = Some(SpareFailure { error, at: self.dir.instance.now() }),
        }
        is_made
    }

    fn next_segment(self: &Arc<Self>, number: u64, retired: Option<u64>) -> Result<File> {
        let (bytes, direct) = (self.control.segment_bytes, self.control.direct);
        if let Some(old) = retired {
            // One that cannot be reused stays in line to be removed, and a new one is made.
            if let Ok(reused) = reuse(&self.dir, bytes, direct, old, number) {
                self.state().retired.retain(|known| *known != old);
                if let Some(file) = reused {
                    return Ok(file);
                }
            }
        }
        self.dir.prepare(number, bytes, direct, || {
            let state = self.state();
            if state.is_closing {
                return Err(os::error(ErrorOp::Append, ErrorKind::Closed, &self.dir.path));
            }
            let hurry = state.room_is_wanted() || state.room_left(self.rules.usable_end()) < bytes / 2;
            let is_due = state.has_pending() && state.is_due(self.dir.instance.now());
            drop(state);
            if is_due {
                self.write_all_here();
            }
            if !hurry && self.rules.has_maintenance {
                // There is room for long: leave the disk to commits.
                std::thread::sleep(PAUSE);
            }
            Ok(())
        })
    }

    /// Removes the oldest segment that is no longer needed. The next is touched only when this one
    /// is gone for good: a segment left before a gap would make the gap look like damage.
    pub(super) fn remove_oldest(&self) -> Result<()> {
        let Some(names) = self.names.lock() else { return Ok(()) };
        let oldest = self.state().retired.first().copied();
        let removed = oldest.map_or(Ok(()), |number| remove(&self.dir, number));
        if removed.is_ok() {
            self.state().retired.retain(|known| Some(*known) != oldest);
        }
        drop(names);
        self.serve_calls();
        removed
    }

    /// Wakes appends that wait for room: the next segment is ready, or cannot be prepared.
    fn tell_of_room(&self) {
        let rooms = std::mem::take(&mut self.state().room_wakers);
        self.handover.room.notify_all();
        self.wake_all(rooms);
    }
}

/// Gives a segment that is no longer needed a new number. None when it is not worth it, and gone.
fn reuse(dir: &LogDir, bytes: u64, direct: bool, old: u64, number: u64) -> Result<Option<File>> {
    let file = match dir.open(old, true, direct) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    if file.size().wait()? != bytes {
        remove(dir, old)?;
        return Ok(None);
    }
    dir.renumber(old, number)?;
    dir.sync()?;
    dir.open(number, true, direct).map(Some)
}
