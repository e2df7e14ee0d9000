//! Work that no commit should wait for: preparing the next segment, removing segments that are no
//! longer needed, and writing records without a waiter and the watermark block of an idle log.
//!
//! Each open log has one thread for this, which sleeps while the log is idle. Without the thread,
//! callers of `Log::maintain` do the work.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nowait::embed;

use super::calibrate;
use super::commit::{Pipeline, RETRY, Shared, TICK};
use super::format::Control;

/// Time after which an interrupted measurement is repeated.
const MEASURE_AGAIN: Duration = Duration::from_secs(60);

/// Result of one maintenance task.
pub(super) enum Done {
    Something,
    /// No task was due; one may be due later.
    Nothing(Later),
    /// The log is closing, and everything is written.
    Closed,
}

pub(super) enum Later {
    /// After this time.
    In(Duration),
    /// When woken, or after this time.
    WhenWoken(Option<Duration>),
}

/// Runs on the maintenance thread until the log is closed.
pub(super) fn run(shared: &Arc<Shared>) {
    // Only this thread sets it.
    let _ = shared.maintenance.set(std::thread::current().id());
    let mut has_writer = false;
    loop {
        if !has_writer && shared.state().wants_writer() {
            let for_thread = shared.clone();
            // A failed start is repeated in the next round.
            has_writer = embed::spawn("nowait-log-writer", move || for_thread.serve()).is_ok();
        }
        let later = match run_once(shared) {
            Done::Something => continue,
            Done::Closed => {
                shared.handover.wake_writer();
                return;
            }
            Done::Nothing(later) => later,
        };
        let mut state = shared.state();
        let now = embed::now(&shared.dir.instance);
        match later {
            // An append may have waited since, or the log may be closing.
            Later::In(_) if state.room_is_wanted() && state.lacks_spare(now) => {}
            Later::In(time) => {
                let time = if state.is_closing { TICK } else { time };
                drop(shared.handover.work.wait_timeout(state, time));
            }
            // Checked again under the lock.
            Later::WhenWoken(time) if !state.is_closing && is_idle(&state, now) => {
                state.maintenance_sleeps = true;
                let work = &shared.handover.work;
                let mut state = match time {
                    Some(time) => work.wait_timeout(state, time).unwrap_or_else(|poisoned| poisoned.into_inner()).0,
                    None => work.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner()),
                };
                state.maintenance_sleeps = false;
            }
            Later::WhenWoken(_) => {}
        }
    }
}

/// Performs one maintenance task, if any is due.
pub(super) fn run_once(shared: &Arc<Shared>) -> Done {
    if shared.is_forked() {
        return Done::Closed;
    }
    let now = || embed::now(&shared.dir.instance);
    shared.rescue();
    let mut state = shared.state();
    if state.has_old_in_flight(now(), TICK) {
        drop(state);
        shared.watch_all();
        state = shared.state();
    }
    if state.poison.is_some() {
        return if state.is_closing { Done::Closed } else { Done::Nothing(Later::In(RETRY)) };
    }
    if state.is_closing {
        let (pending, quiet) = (state.has_pending(), state.is_quiet());
        drop(state);
        if pending {
            shared.write_all_here();
        }
        if quiet {
            // `Log::close` tries again, and returns the error.
            let _ = shared.record_end();
        }
        return if quiet { Done::Closed } else { Done::Nothing(Later::In(TICK)) };
    }
    if state.is_due(now()) && state.has_pending() {
        drop(state);
        if shared.write_all_here() {
            return Done::Something;
        }
        // The maximum number of writes is in flight.
        state = shared.state();
    }
    drop(state);
    shared.apply_retention();
    state = shared.state();
    // Unless appends wait for a segment, before preparing one, which may take long.
    if state.lacks_head(now()) && !state.room_is_wanted() {
        drop(state);
        if shared.record().is_ok() {
            return Done::Something;
        }
        state = shared.state();
    }
    // Before the watermark block, which may need the segment.
    if state.lacks_spare(now()) {
        drop(state);
        if shared.make_spare() {
            return Done::Something;
        }
        state = shared.state();
    }
    if state.is_due(now()) && state.is_quiet() && state.lacks_watermark(state.durable) {
        drop(state);
        if shared.write_watermark().is_ok() {
            shared.state().numbers.watermark_blocks += 1;
            return Done::Something;
        }
        return Done::Nothing(Later::In(RETRY));
    }
    let maintained = if state.has_surplus() {
        drop(state);
        Some(shared.remove_oldest())
    } else if state.lacks_record(now()) {
        drop(state);
        Some(shared.record())
    } else {
        drop(state);
        None
    };
    match maintained {
        Some(Ok(())) => return Done::Something,
        Some(Err(_)) => return Done::Nothing(Later::In(RETRY)),
        None => {}
    }
    let mut state = shared.state();
    if is_idle(&state, now()) && wants_measurement(&state, now()) {
        let recorded = state.upkeep.settings.clone();
        state.upkeep.measured = Some(now());
        drop(state);
        measure(shared, recorded);
        return Done::Something;
    }
    match is_idle(&state, now()) {
        true if state.spare_failure.is_some() || state.is_unrecorded() => Done::Nothing(Later::In(RETRY)),
        true => Done::Nothing(Later::WhenWoken(shared.next_expiry(&state))),
        false => Done::Nothing(Later::In(TICK)),
    }
}

/// True if no task will be due until the log is used again.
fn is_idle(state: &Pipeline, now: Instant) -> bool {
    state.is_quiet()
        && !state.has_untold()
        && !state.lacks_watermark(state.durable)
        && !state.lacks_spare(now)
        && !state.has_surplus()
        && !state.lacks_record(now)
}

/// True if the measurement of the strategy is old, and was not just tried again.
fn wants_measurement(state: &Pipeline, now: Instant) -> bool {
    let is_new = |measured: Instant| now.saturating_duration_since(measured) < MEASURE_AGAIN;
    state.is_measured()
        && calibrate::is_old(&state.upkeep.settings.measured)
        && !state.upkeep.measured.is_some_and(is_new)
}

/// Measures the strategies again, for the next opening; the open log keeps its strategy. Ends
/// without a result when the log is used.
fn measure(shared: &Arc<Shared>, mut control: Control) {
    let goes_on = || {
        let state = shared.state();
        !state.is_closing && is_idle(&state, embed::now(&shared.dir.instance))
    };
    // A failed attempt is repeated.
    if calibrate::choose(&shared.dir, &mut control, goes_on).is_ok_and(|is_measured| is_measured) {
        shared.state().upkeep.settings = control;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::commit::NoRoom;
    use super::super::{Durability, Log, Options, Strategy, Submitter, SyncPolicy};
    use super::*;
    use nowait::sim::{Faults, Sim};
    use nowait::{Engine, ErrorKind, Nowait};

    fn log_on(sim: &Sim) -> Log {
        log_with(sim, false)
    }

    fn log_with(sim: &Sim, maintenance: bool) -> Log {
        let instance = Nowait::builder().engine(Engine::Sim(sim.clone())).build().unwrap();
        let strategy = Strategy { durability: Durability::Write, by: Submitter::Call, depth: 1 };
        let options =
            Options::new().create(true).instance(&instance).segment_bytes(32 << 10).sync(SyncPolicy::Fixed(strategy));
        Log::open("/log", &options.maintenance(maintenance)).wait().unwrap().0
    }

    #[test]
    fn the_writer_starts_with_many_waiters_and_ends_with_the_log() {
        let log = log_with(&Sim::new(1), true);
        assert!(!log.0.shared.state().has_writer());
        while !log.0.shared.state().has_writer() {
            let tickets = [0; 20].map(|_| log.append(b"one of many").wait().unwrap());
            tickets.into_iter().for_each(|ticket| ticket.on_durable(|answer| _ = answer.unwrap()));
            log.append(b"the last").wait().unwrap().wait().unwrap();
        }
        let shared = Arc::downgrade(&log.0.shared);
        log.close().wait().unwrap();
        while shared.upgrade().is_some() {
            std::thread::yield_now();
        }
    }

    /// Symptom: a watermark block begun just after the log failed or began to close never ended,
    /// and maintenance waited for it.
    #[test]
    fn no_watermark_block_is_begun_where_none_ends() {
        let sim = Sim::new(1);
        let log = log_on(&sim);
        let mut faults = Faults::default();
        faults.write_error = 1.0;
        sim.set_faults(faults);
        assert_eq!(log.append(b"x").wait().unwrap().wait().unwrap_err().kind(), ErrorKind::Indeterminate);
        assert_eq!(refusal(&log.0.shared), Some(ErrorKind::Poisoned));

        let log = log_on(&Sim::new(1));
        log.append(b"x").wait().unwrap().wait().unwrap();
        let shared = log.0.shared.clone();
        log.close().wait().unwrap();
        assert_eq!(refusal(&shared), Some(ErrorKind::Closed));
    }

    /// Returns the kind of the refusal; None if the call does not return in time.
    fn refusal(shared: &Arc<Shared>) -> Option<ErrorKind> {
        let (told, hear) = std::sync::mpsc::channel();
        let shared = shared.clone();
        std::thread::spawn(move || {
            // The receiver was dropped if the result is late.
            let _ = told.send(match shared.write_watermark() {
                Err(NoRoom::Refused(error)) => Some(error.kind()),
                _ => None,
            });
        });
        hear.recv_timeout(Duration::from_secs(20)).ok().flatten()
    }
}
