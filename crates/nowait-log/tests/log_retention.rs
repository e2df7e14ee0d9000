//! What a log gives up by itself, what readers keep of it, and what becomes of the files.

#[path = "../../nowait/tests/common/mod.rs"]
mod common;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use common::{Watchdog, counted_by_system, eventually, mounts, on};
use nowait::ErrorKind;
use nowait::sim::{Faults, Sim};
use nowait_log::{Durability, Event, Log, Options, Retention, Strategy, Submitter, SyncPolicy, inspect, inspect_in};

const DIR: &str = "/log";
const SEGMENT_BYTES: u64 = 64 << 10;

fn options() -> Options {
    let strategy = Strategy { durability: Durability::Write, by: Submitter::Call, depth: 1 };
    Options::new().create(true).segment_bytes(SEGMENT_BYTES).sync(SyncPolicy::Fixed(strategy))
}

fn simulated(sim: &Sim) -> Options {
    options().instance(&on(sim)).segment_bytes(16 << 10).maintenance(false)
}

fn commit(log: &Log, length: usize) -> u64 {
    log.append(&vec![7; length]).wait().unwrap().wait().unwrap()
}

fn first_lsn(log: &Log) -> u64 {
    let mut first = 1;
    while let Err(error) = log.reader(first).next().wait() {
        assert_eq!(error.kind(), ErrorKind::NoSuchRecord);
        first += 1;
    }
    first
}

fn bytes_of(dir: &Path) -> u64 {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

#[test]
fn five_openings_leave_a_few_mib() {
    let dir = mounts::temp_dir();
    let path = dir.path().join("log");
    let options = options().segment_bytes(64 << 20);
    for opening in 1..=5 {
        let (log, recovery) = Log::open(&path, &options).wait().unwrap();
        assert_eq!(recovery.last_lsn, opening - 1);
        commit(&log, 100);
        log.close().wait().unwrap();
        assert!(bytes_of(&path) <= (opening + 3) << 20, "{} after {opening}", bytes_of(&path));
    }
    // A record of any size that the largest segment holds is taken all the same.
    let (log, _) = Log::open(&path, &options).wait().unwrap();
    for length in [3 << 20, 100, 30 << 20, 63 << 20] {
        commit(&log, length);
    }
    assert_eq!(log.append(&vec![0; 64 << 20]).wait().unwrap_err().kind(), ErrorKind::InvalidInput);
    log.close().wait().unwrap();
    let found = inspect(&path).wait().unwrap();
    assert!(found.damage.is_empty() && found.last_lsn == 9, "{found:?}");
}

#[test]
fn a_log_retains_bytes() {
    let sim = Sim::new(1);
    const BYTES: u64 = 100_000;
    for maintained in [true, false] {
        let options = simulated(&sim).retain(Retention::bytes(BYTES)).recycle_bytes(0);
        let (log, _) = Log::open(DIR, &options).wait().unwrap();
        for _ in 0..200 {
            commit(&log, 3000);
            while maintained && log.maintain() {}
        }
        let stats = log.stats();
        // Two records a segment, and its header.
        let held = stats.segments as u64 * 12288;
        assert!(stats.rotations > 40 && (BYTES..BYTES + 3 * 12288).contains(&held), "{stats:?}");
        let (first, last) = (first_lsn(&log), log.last_lsn());
        assert!((last - first) * 6144 >= BYTES - (16 << 10), "{first} to {last}");
        log.close().wait().unwrap();
        let found = inspect_in(&on(&sim), DIR).wait().unwrap();
        assert!(found.damage.is_empty() && (found.first_lsn, found.last_lsn) == (first, last), "{found:?}");
    }
}

#[test]
fn a_log_retains_an_age() {
    const AGE: Duration = Duration::from_secs(3600);
    let sim = Sim::manual(1);
    let (log, _) = Log::open(DIR, &simulated(&sim).retain(Retention::age(AGE))).wait().unwrap();
    for _ in 0..20 {
        commit(&log, 3000);
        while log.maintain() {}
    }
    assert_eq!(first_lsn(&log), 1);
    sim.advance(AGE / 2);
    for _ in 0..20 {
        commit(&log, 3000);
        while log.maintain() {}
    }
    assert_eq!(first_lsn(&log), 1);
    sim.advance(AGE / 2);
    while log.maintain() {}
    let first = first_lsn(&log);
    assert!((15..=21).contains(&first), "{first}");
    sim.advance(AGE);
    while log.maintain() {}
    assert_eq!(log.stats().segments, 1, "the segment that is written stays, whatever its age");
    log.close().wait().unwrap();
}

const DAY: Duration = Duration::from_secs(86_400);

/// A closed log of 40 records, each of which was written a day after the one before.
fn of_forty_days(sim: &Sim) {
    let (log, _) = Log::open(DIR, &simulated(sim)).wait().unwrap();
    for _ in 0..40 {
        commit(&log, 3000);
        while log.maintain() {}
        sim.advance(DAY);
    }
    log.close().wait().unwrap();
}

/// Opens a log that retains `days`, and tells its first record then, and its doubts of the clock.
fn retaining(sim: &Sim, days: u32) -> (u64, u64) {
    let told = Arc::new(AtomicU64::new(0));
    let to = told.clone();
    let options = simulated(sim).retain(Retention::age(days * DAY)).on_event(move |event| {
        if let Event::ClockDoubted { steps, .. } = event {
            to.store(*steps, Relaxed);
        }
    });
    let (log, recovery) = Log::open(DIR, &options).wait().unwrap();
    assert_eq!((recovery.first_lsn, recovery.last_lsn), (1, 40));
    while log.maintain() {}
    let (first, doubts) = (first_lsn(&log), log.stats().clock_doubts);
    assert!(eventually(|| told.load(Relaxed) == doubts));
    log.close().wait().unwrap();
    (first, doubts)
}

/// Symptom: an opening took the files' times for those of the records, and a clock of 1970 gave up
/// records of a second ago.
#[test]
fn the_age_of_records_does_not_depend_on_a_clock_that_was_set() {
    let logged = || {
        let sim = Sim::manual(1);
        of_forty_days(&sim);
        sim
    };
    // As the clock says: records 30 to 40 are younger than eleven days.
    let (first, doubts) = retaining(&logged(), 11);
    assert!((25..=30).contains(&first) && doubts == 0, "{first}");
    // The last segment with records stays, however old it is.
    let sim = logged();
    sim.advance(300 * DAY);
    let (first, doubts) = retaining(&sim, 11);
    assert!((30..=40).contains(&first) && doubts == 0, "{first}");
    // A clock that is not set, or set back by days.
    for since_1970 in [Duration::ZERO, DAY, Duration::from_secs(1_767_225_600) + 5 * DAY] {
        let sim = logged();
        sim.set_clock(since_1970);
        let (first, doubts) = retaining(&sim, 11);
        assert!(first == 1 && doubts > 0, "{since_1970:?}: {first} {doubts}");
    }
    // Decades ahead: what passed while the log was written counts, and no more.
    let sim = logged();
    sim.set_clock(Duration::from_secs(4_000_000_000));
    let (first, doubts) = retaining(&sim, 11);
    assert!((25..=30).contains(&first) && doubts == 1, "{first} {doubts}");
    // Written with a clock of 1970, which is right since.
    let sim = Sim::manual(1);
    sim.set_clock(DAY);
    of_forty_days(&sim);
    sim.set_clock(Duration::from_secs(1_800_000_000));
    let (first, doubts) = retaining(&sim, 100);
    assert!(first == 1 && doubts == 1, "{first} {doubts}");
}

/// A clock that jumps while the log is open does nothing at all.
#[test]
fn an_open_log_ages_by_the_time_that_passes() {
    let sim = Sim::manual(1);
    let (log, _) = Log::open(DIR, &simulated(&sim).retain(Retention::age(10 * DAY))).wait().unwrap();
    for _ in 0..20 {
        commit(&log, 3000);
        while log.maintain() {}
    }
    for since_1970 in [0, 4_000_000_000, 1_700_000_000] {
        sim.set_clock(Duration::from_secs(since_1970));
        sim.advance(2 * DAY);
        while log.maintain() {}
        assert_eq!(first_lsn(&log), 1, "{since_1970}");
    }
    sim.advance(5 * DAY);
    while log.maintain() {}
    assert_eq!(log.stats().segments, 1);
    log.close().wait().unwrap();
}

/// The thread of an idle log wakes when a segment is old enough, and sleeps when none is.
#[test]
fn an_idle_log_gives_up_what_has_become_old() {
    let dir = mounts::temp_dir();
    let path = dir.path().join("log");
    let age = Duration::from_millis(300);
    let options = options().segment_bytes(16 << 10).retain(Retention::age(age));
    let (log, _) = Log::open(&path, &options).wait().unwrap();
    for _ in 0..20 {
        commit(&log, 3000);
    }
    // Beside the segment of the last record there may be one for a watermark block.
    assert!(eventually(|| log.stats().segments <= 2));
    log.close().wait().unwrap();
    // Of an earlier opening the last segment with records stays beside the empty one.
    let (log, recovery) = Log::open(&path, &options).wait().unwrap();
    assert_eq!(recovery.last_lsn, 20);
    assert!(eventually(|| log.stats().segments == 2));
    log.close().wait().unwrap();
}

#[test]
fn a_log_asks_what_is_needed_with_nothing_locked() {
    let _watchdog = Watchdog::new("a callback", 60);
    let dir = mounts::temp_dir();
    for maintenance in [true, false] {
        let needed = Arc::new(AtomicU64::new(1));
        let handle: Arc<Mutex<Option<Log>>> = Arc::default();
        let (asked, to) = (needed.clone(), handle.clone());
        let before = move || {
            // It may use the log, and panic.
            let durable = to.lock().unwrap().as_ref().map_or(0, |log| {
                log.truncate_prefix(1);
                log.stats().pending_records + log.durable_lsn()
            });
            let lsn = asked.load(Relaxed);
            assert!(lsn > 0 || durable == u64::MAX, "on purpose");
            lsn
        };
        let options = options().segment_bytes(16 << 10).maintenance(maintenance).retain(Retention::before(before));
        let (log, _) = Log::open(dir.path().join(format!("log-{maintenance}")), &options).wait().unwrap();
        *handle.lock().unwrap() = Some(log.clone());
        let go_on = || {
            for _ in 0..20 {
                commit(&log, 3000);
            }
            while log.maintain() {}
        };
        go_on();
        assert_eq!(first_lsn(&log), 1);
        needed.store(0, Relaxed);
        go_on();
        assert_eq!(first_lsn(&log), 1, "a panic gives up nothing");
        needed.store(15, Relaxed);
        go_on();
        assert!(eventually(|| (12..=15).contains(&first_lsn(&log))), "{}", first_lsn(&log));
        // No more than is durable, whatever it says.
        needed.store(u64::MAX, Relaxed);
        go_on();
        assert_eq!(log.append(b"next").wait().unwrap().wait().unwrap(), 81);
        drop(handle.lock().unwrap().take());
        log.close().wait().unwrap();
    }
}

#[test]
fn a_reader_keeps_what_it_has_pinned() {
    let sim = Sim::new(1);
    let options = simulated(&sim).retain(Retention::bytes(0));
    let (log, _) = Log::open(DIR, &options).wait().unwrap();
    commit(&log, 3000);
    let (mut pinned, mut free) = (log.reader(1), log.reader(1));
    pinned.pin().unwrap();
    for _ in 0..50 {
        commit(&log, 3000);
        while log.maintain() {}
    }
    log.truncate_prefix(40);
    while log.maintain() {}
    assert!(free.next().wait().unwrap().is_some(), "another reader profits from it");
    for lsn in 1..=30 {
        assert_eq!(pinned.next().wait().unwrap().unwrap().lsn, lsn);
        while log.maintain() {}
    }
    assert_eq!(free.next().wait().unwrap_err().kind(), ErrorKind::NoSuchRecord);
    assert_eq!(free.pin().unwrap_err().kind(), ErrorKind::NoSuchRecord);
    assert!((27..=31).contains(&first_lsn(&log)));
    drop(pinned);
    while log.maintain() {}
    assert!(log.stats().segments <= 2);
    log.close().wait().unwrap();
}

/// Bytes that this process has written to disks; None if the system does not count them.
fn device_bytes() -> Option<u64> {
    counted_by_system("/proc/self/io", "write_bytes: ")
}

/// Of 45 segments 6 were used again: mostly there was none to use when the next one was prepared,
/// and what was given up later was removed.
#[test]
fn steady_retention_uses_files_again() {
    const ROUNDS: u64 = 400;
    for by_hand in [true, false] {
        let dir = mounts::temp_dir();
        let retention = if by_hand { Retention::all() } else { Retention::bytes(4 * SEGMENT_BYTES) };
        let (log, _) = Log::open(dir.path().join("log"), &options().retain(retention)).wait().unwrap();
        let mut before = None;
        for round in 0..ROUNDS {
            let lsn = commit(&log, 8000);
            if by_hand && round % 10 == 0 {
                log.truncate_prefix(lsn.saturating_sub(40));
            }
            if round == ROUNDS / 4 {
                before = Some((log.stats(), device_bytes()));
            }
        }
        let (then, device_then) = before.unwrap();
        let (now, device) = (log.stats(), device_bytes().zip(device_then).map(|(now, then)| now - then));
        let recycled = now.segments_recycled - then.segments_recycled;
        let rotations = now.rotations - then.rotations;
        let (written, zeroed) = (now.written_bytes - then.written_bytes, now.zeroed_bytes - then.zeroed_bytes);
        println!(
            "{recycled} of {rotations} used again; {written} bytes of blocks, {zeroed} of zeros, {device:?} on the device (with those of other tests)"
        );
        // Now and then a segment is full before the one that may go is known.
        assert!(recycled * 10 >= rotations * 9, "{recycled} of {rotations}");
        assert!(written + zeroed <= written + written / 5);
        log.close().wait().unwrap();
    }
}

#[test]
fn segments_that_are_kept_are_bounded_and_grow_when_they_are_used_again() {
    let sim = Sim::new(1);
    let options = simulated(&sim).segment_bytes(128 << 10).first_segment_bytes(16 << 10);
    let (log, _) = Log::open(DIR, &options.clone().recycle_bytes(100 << 10)).wait().unwrap();
    for _ in 0..100 {
        let lsn = commit(&log, 3000);
        log.truncate_prefix(lsn);
        while log.maintain() {}
    }
    let stats = log.stats();
    assert!(stats.segments_recycled > 2 && stats.segments_kept <= 6, "{stats:?}");
    // A log that keeps none.
    log.close().wait().unwrap();
    let (log, _) = Log::open(DIR, &options.recycle_bytes(0)).wait().unwrap();
    for _ in 0..200 {
        let lsn = commit(&log, 3000);
        while log.maintain() {}
        log.truncate_prefix(lsn);
        while log.maintain() {}
    }
    let stats = log.stats();
    assert!(stats.segments_kept == 0 && stats.segments_removed > 4, "{stats:?}");
    log.close().wait().unwrap();
    let found = inspect_in(&on(&sim), DIR).wait().unwrap();
    assert!(found.damage.is_empty() && found.last_lsn == 300, "{found:?}");
}

/// On a full disk the control file has to be replaced before a segment may go.
#[test]
fn a_full_disk_is_made_room_on() {
    let sim = Sim::new(1);
    let (log, _) = Log::open(DIR, &simulated(&sim).recycle_bytes(0)).wait().unwrap();
    for _ in 0..30 {
        commit(&log, 3000);
        while log.maintain() {}
    }
    let mut faults = Faults::default();
    faults.no_space = 1.0;
    sim.set_faults(faults);
    let files = || on(&sim).fs().read_dir_names(DIR).wait().unwrap().len();
    let before = files();
    while log.try_append(&[7; 3000]).is_ok_and(|ticket| ticket.wait().is_ok()) {}
    log.truncate_prefix(u64::MAX);
    sim.set_faults(Faults::default());
    while log.maintain() {}
    assert!(files() < before);
    commit(&log, 3000);
    log.close().wait().unwrap();
}

#[test]
fn events_are_told_elsewhere() {
    let _watchdog = Watchdog::new("events", 60);
    let dir = mounts::temp_dir();
    let (told, hear) = mpsc::channel();
    let on_event = move |event: &Event| {
        assert_eq!(std::thread::current().name(), Some("nowait-log-calls"));
        told.send(event.clone()).unwrap();
        panic!("on purpose");
    };
    let options = options().segment_bytes(16 << 10).recycle_bytes(0).on_event(on_event).maintenance(false);
    let (log, _) = Log::open(dir.path().join("log"), &options).wait().unwrap();
    for _ in 0..20 {
        let lsn = commit(&log, 3000);
        log.truncate_prefix(lsn);
    }
    while log.maintain() {}
    let stats = log.stats();
    assert!(stats.stalls > 0 && stats.stalled > Duration::ZERO && stats.spares_missed > 0, "{stats:?}");
    assert!(stats.written_buckets.iter().map(|(_, count)| count).sum::<u64>() == stats.blocks, "{stats:?}");
    log.close().wait().unwrap();
    let (mut prepared, mut stalled) = (0, 0);
    while prepared + stalled < stats.segments_prepared + stats.segments_recycled + stats.stalls {
        match hear.recv().unwrap() {
            Event::SegmentPrepared { bytes, .. } => {
                assert_eq!(bytes, 16 << 10);
                prepared += 1;
            }
            Event::Stalled { .. } => stalled += 1,
            _ => {}
        }
    }
    assert_eq!(stalled, stats.stalls);
}
