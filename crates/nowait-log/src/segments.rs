//! Prepares the next segments of a log, reuses or removes old ones, and records their numbers in
//! the control file.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::commit::{Live, Pipeline, Retired, Shared, SpareFailure};
use super::dir::fill;
use super::event::Event;
use super::format::PAGE;
use super::os;
use super::retention::{Rule, first_needed};
use nowait::{ErrorKind, File, Result, embed};

/// Pause between pieces of a segment, while the log has enough room.
const PAUSE: Duration = Duration::from_millis(1);
/// Time after which retention is applied again while the log is written.
const AGAIN: Duration = Duration::from_secs(1);

impl Shared {
    /// Waits until the next segment is ready or cannot be prepared. Prepares it if no other thread
    /// does. The caller must not hold `names`.
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

    /// Lets another thread prepare the next segment, which then notifies waiters for room.
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
            shared.apply_retention();
            if let Some(names) = shared.names.lock() {
                shared.make_spare_alone();
                // A failed replacement is repeated with the next segment.
                let _ = shared.record();
                drop(names);
            }
            // Before waiters are notified, since they may need another segment.
            shared.preparer.is_done();
            shared.serve_calls();
            shared.tell_of_room();
        };
        self.preparer.start(prepare).map_err(|error| {
            let text = "no thread can be started that prepares the next segment";
            os::thread_error(os::APPEND, &error, &self.dir.path, text)
        })
    }

    /// Retires segments by the retention rule, if a segment has ended or time has passed, and those
    /// that pins have released.
    pub(super) fn apply_retention(&self) {
        let mut state = self.state();
        let now = embed::now(&self.dir.instance);
        let has_ended = std::mem::take(&mut state.upkeep.has_ended);
        let is_later = now.saturating_duration_since(state.upkeep.applied) >= AGAIN;
        let lsn = match &self.retention.0 {
            Rule::Bytes(bytes) if has_ended => state.lsn_by_bytes(*bytes),
            Rule::Age(age) => state.lsn_by_age(*age, now),
            Rule::Before(first) if has_ended || is_later => {
                state.upkeep.applied = now;
                drop(state);
                let lsn = first_needed(&**first);
                state = self.state();
                lsn
            }
            _ => 0,
        };
        if state.retire_before(lsn) {
            self.handover.publish(&state);
            // The file system may have space again.
            state.spare_failure = None;
        }
    }

    /// Time after which retention by age removes a segment of an idle log.
    pub(super) fn next_expiry(&self, state: &Pipeline) -> Option<Duration> {
        match &self.retention.0 {
            Rule::Age(age) if state.segments.len() > 1 => state.next_expiry(*age, embed::now(&self.dir.instance)),
            _ => None,
        }
    }

    /// Prepares the next segment on this thread, from a retired one if possible. False if none was
    /// prepared.
    pub(super) fn make_spare(self: &Arc<Self>) -> bool {
        if self.names.is_mine() {
            return false;
        }
        // Retention first, since retired segments are reused.
        self.apply_retention();
        // A thread that holds `names` is already preparing a segment.
        let Some(names) = self.names.lock() else { return false };
        let is_made = self.make_spare_alone();
        drop(names);
        self.serve_calls();
        self.tell_of_room();
        if is_made {
            // After the waiters for room were notified. A failure is retried later.
            let _ = self.record();
        }
        is_made
    }

    /// As [`Shared::make_spare`], with `names` held and without notifying waiters.
    fn make_spare_alone(self: &Arc<Self>) -> bool {
        let mut state = self.state();
        if !state.wants_spare() || state.poison.is_some() {
            return false;
        }
        let bytes = state.next_bytes();
        state.upkeep.was_missed = false;
        let small = state.take_small_spare();
        // Numbers are consecutive, also after a failure: a missing number looks like damage.
        let number = state.upkeep.newest + 1;
        drop(state);
        let is_new = small.is_none();
        let began = Instant::now();
        let (made, small) = match small {
            None => (self.next_segment(number, bytes), None),
            Some(small) => match self.fill_up(&small.file, small.bytes, bytes) {
                Ok(()) => (Ok((Live::new(small.number, bytes, small.file), false)), None),
                Err(error) => (Err(error), Some(small)),
            },
        };
        if made.is_err() && is_new {
            // If only the sync of the directory failed, the file already has its name.
            let _ = self.dir.remove(number);
        }
        let is_made = made.is_ok();
        let prepared = made.as_ref().map(|(live, is_recycled)| (live.number, live.bytes, *is_recycled));
        let prepared = prepared.map_err(Clone::clone);
        let mut state = self.state();
        match made {
            Ok((made, _)) if is_new => {
                state.upkeep.newest = number;
                state.spares.push_back(made);
            }
            Ok((made, _)) => state.spares.push_front(made),
            Err(error) => state.spare_failure = Some(SpareFailure { error, at: embed::now(&self.dir.instance) }),
        }
        if let Some(small) = small {
            state.spares.push_front(small);
        }
        if is_made {
            state.spare_failure = None;
        }
        drop(state);
        match prepared {
            Ok((number, bytes, is_recycled)) => {
                let elapsed = began.elapsed();
                self.tell_event(|| Event::SegmentPrepared { number, bytes, is_recycled, elapsed });
            }
            // The segment is no longer needed.
            Err(error) if error.kind() == ErrorKind::Closed => {}
            Err(error) => self.tell_event(|| Event::SegmentFailed { error }),
        }
        is_made
    }

    /// Makes segment `number`; returns true if it reuses a retired one.
    fn next_segment(self: &Arc<Self>, number: u64, bytes: u64) -> Result<(Live<File>, bool)> {
        let state = self.state();
        let retired = state.reusable();
        let is_named = retired.is_some_and(|old| state.is_named(old.number));
        drop(state);
        if let Some(old) = retired.filter(|_| !is_named || self.record().is_ok()) {
            // If the reuse fails, the old segment is removed later, and a new one is made.
            if let Ok(reused) = self.reuse(old, number, bytes) {
                let mut state = self.state();
                state.retired.retain(|known| *known != old);
                if let Some(live) = reused {
                    state.numbers.segments_recycled += 1;
                    return Ok((live, true));
                }
            }
        }
        let file = self.dir.prepare(number, bytes, self.control.direct, || self.pause(bytes))?;
        let mut state = self.state();
        state.numbers.segments_prepared += 1;
        state.numbers.zeroed_bytes += bytes;
        drop(state);
        Ok((Live::new(number, bytes, file), false))
    }

    /// Renumbers a retired segment and enlarges it to at least `bytes`. None if its file is missing
    /// or unsuitable; an unsuitable file is removed.
    fn reuse(self: &Arc<Self>, old: Retired, number: u64, bytes: u64) -> Result<Option<Live<File>>> {
        let (dir, direct) = (&self.dir, self.control.direct);
        let file = match dir.open(old.number, true, direct) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let there = file.size().wait()?;
        if there > self.control.segment_bytes || there < old.bytes || there % PAGE as u64 != 0 {
            dir.remove(old.number)?;
            return Ok(None);
        }
        self.fill_up(&file, there, bytes)?;
        dir.set_segment_mode(&file)?;
        drop(file);
        dir.renumber(old.number, number)?;
        dir.sync()?;
        Ok(Some(Live::new(number, there.max(bytes), dir.open(number, true, direct)?)))
    }

    /// Enlarges a segment that contains nothing of the log.
    fn fill_up(self: &Arc<Self>, file: &File, there: u64, bytes: u64) -> Result<()> {
        if there >= bytes {
            return Ok(());
        }
        fill(file, there..bytes, || self.pause(bytes))?;
        self.state().numbers.zeroed_bytes += bytes - there;
        Ok(())
    }

    /// Called between pieces of a segment of `bytes`: writes due records, and lets commits use the
    /// disk. An error if the log is closing.
    fn pause(self: &Arc<Self>, bytes: u64) -> Result<()> {
        let state = self.state();
        if state.is_closing {
            return Err(os::error(os::APPEND, ErrorKind::Closed, &self.dir.path));
        }
        let hurry = state.room_is_wanted() || state.room_left() < bytes / 2;
        let now = embed::now(&self.dir.instance);
        let (is_due, lacks_head) = (state.has_pending() && state.is_due(now), state.lacks_head(now));
        drop(state);
        self.rescue();
        if lacks_head {
            // The maintenance thread is busy with the segment, so the control file is replaced
            // here. A failure is retried later.
            let _ = self.record();
        }
        if is_due {
            self.write_all_here();
        }
        if !hurry && self.rules.has_maintenance {
            // The log has enough room meanwhile.
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Removes the oldest retired segment. The next one may be removed only when this removal is
    /// durable.
    pub(super) fn remove_oldest(&self) -> Result<()> {
        let Some(names) = self.names.lock() else { return Ok(()) };
        let oldest = self.state().reusable();
        let removed = oldest.map_or(Ok(()), |oldest| {
            self.record()?;
            self.dir.remove(oldest.number)
        });
        if let (Ok(()), Some(oldest)) = (&removed, oldest) {
            let mut state = self.state();
            state.retired.retain(|known| *known != oldest);
            state.numbers.segments_removed += 1;
            drop(state);
            self.tell_event(|| Event::SegmentRemoved { number: oldest.number, bytes: oldest.bytes });
        }
        drop(names);
        self.serve_calls();
        removed
    }

    /// Records in the control file which segments exist, and which of them hold the log. Recovery
    /// treats a missing segment between the oldest and the newest as damage. So the oldest is
    /// recorded before a file is removed or reused, the newest when its name is durable, and the
    /// head when its header is durable.
    pub(super) fn record(&self) -> Result<()> {
        self.replace_control(Pipeline::is_unrecorded)
    }

    /// As [`Shared::record`], for a log that ends. Also records the last durable record.
    pub(super) fn record_end(&self) -> Result<()> {
        self.replace_control(Pipeline::is_end_unrecorded)
    }

    fn replace_control(&self, is_wanted: impl Fn(&Pipeline) -> bool) -> Result<()> {
        // One replacement at a time, so that none overwrites a newer one.
        let Some(recording) = self.recording.lock() else { return Ok(()) };
        let state = self.state();
        let (control, is_closing) = (state.to_record(), state.is_closing);
        if !is_wanted(&state) {
            return Ok(());
        }
        drop(state);
        let written = self.dir.write_control(&control);
        if written.is_ok() && !is_closing {
            // Without a reserve, the next replacement may fail on a full disk, and is retried.
            let _ = self.dir.reserve_control();
        }
        let mut state = self.state();
        match written {
            Ok(()) => (state.upkeep.recorded, state.upkeep.record_failed) = (control, None),
            Err(_) => state.upkeep.record_failed = Some(embed::now(&self.dir.instance)),
        }
        drop((state, recording));
        self.serve_calls();
        written
    }

    /// Wakes appends that wait for room, when the next segment is ready or cannot be prepared.
    fn tell_of_room(&self) {
        let rooms = std::mem::take(&mut self.state().room_wakers);
        self.handover.room.notify_all();
        self.wake_all(rooms);
    }
}
