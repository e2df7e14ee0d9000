//! Writing a log: what callbacks may do, what an append finds that must not wait, and when
//! watermark blocks are written.

#[path = "../../nowait/tests/common/mod.rs"]
mod common;

use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use common::mounts::{self, Kind, Mount};
use common::{Watchdog, eventually, on};
use nowait::ErrorKind;
use nowait::sim::{Faults, Sim, Unsynced};
use nowait_log::{Durability, Log, Options, Recovery, Strategy, Submitter, SyncPolicy, inspect, inspect_in};

const DIR: &str = "/log";
const PATIENCE: Duration = Duration::from_secs(30);

fn strategy(by: Submitter, depth: u32) -> SyncPolicy {
    SyncPolicy::Fixed(Strategy { durability: Durability::Write, by, depth })
}

fn small() -> Options {
    Options::new().create(true).segment_bytes(16 << 10).sync(strategy(Submitter::Ring, 2))
}

fn on_sim(sim: &Sim, depth: u32) -> Options {
    Options::new()
        .create(true)
        .instance(&on(sim))
        .segment_bytes(64 << 10)
        .sync(strategy(Submitter::Call, depth))
        .maintenance(false)
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    common::poll_once(future)
}

/// Turns a bit of the last record in a log's directory: gives its file.
fn rot_last_record(files: impl IntoIterator<Item = (PathBuf, Vec<u8>)>) -> (PathBuf, Vec<u8>) {
    let u64_at = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let mut last: Option<(u64, usize, PathBuf, Vec<u8>)> = None;
    for (path, bytes) in files {
        for at in (4096..bytes.len()).step_by(4096).filter(|at| bytes[*at..].starts_with(b"nwbk")) {
            let (lsn, records) = (u64_at(&bytes, at + 24), bytes[at + 44]);
            if records > 0 && last.as_ref().is_none_or(|(known, ..)| lsn > *known) {
                last = Some((lsn, at, path.clone(), bytes.clone()));
            }
        }
    }
    let (_, at, path, mut bytes) = last.unwrap();
    bytes[at + 70] ^= 1;
    (path, bytes)
}

fn rot_on_disk(dir: &Path) {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let segments = names.filter(|path| path.extension().is_some_and(|end| end == "seg"));
    let (path, bytes) = rot_last_record(segments.map(|path| (path.clone(), fs::read(path).unwrap())));
    fs::write(path, bytes).unwrap();
}

fn rot_in(sim: &Sim) {
    let names = on(sim).fs().read_dir_names(DIR).wait().unwrap();
    let paths = names.iter().map(|name| Path::new(DIR).join(name));
    let segments = paths.filter(|path| path.extension().is_some_and(|end| end == "seg"));
    let (path, bytes) = rot_last_record(segments.map(|path| (path.clone(), sim.contents(&path).unwrap())));
    sim.create(path, bytes);
}

#[track_caller]
fn assert_damaged(found: &Recovery) {
    assert!(!found.damage.is_empty(), "what was acknowledged is taken for torn: {found:?}");
}

// Records that are filled.

/// A record that is filled is the one that would have been given, whatever its length; one whose
/// filling panics is not there, and holds nothing up.
#[test]
fn a_record_that_is_filled_is_like_one_that_is_given() {
    let _watchdog = Watchdog::new("records that are filled", 60);
    let sim = Sim::new(1);
    let (log, _) = Log::open(DIR, &on_sim(&sim, 1)).wait().unwrap();
    let mut expected = Vec::new();
    for bytes in [0_usize, 1, 12, 4096, 20_000] {
        let (kind, record) = (bytes as u8, Vec::from_iter((0..bytes).map(|at| at as u8)));
        let appended = log.append_kind_with(kind, bytes, |room| {
            assert!(room.iter().all(|byte| *byte == 0) && room.len() == bytes);
            // It may use the log.
            log.append(b"inside").wait().unwrap().wait().unwrap();
            room.copy_from_slice(&record);
        });
        expected.extend([(0, b"inside".to_vec()), (kind, record.clone())]);
        let lsn = if bytes % 2 == 0 { appended.wait() } else { nowait::block_on(appended) }.unwrap().lsn();
        assert_eq!(lsn, expected.len() as u64);
        let panics = std::panic::AssertUnwindSafe(|| drop(log.append_with(bytes, |_| panic!("on purpose"))));
        std::panic::catch_unwind(panics).unwrap_err();
        drop(log.append_with(bytes, |room| room.fill(1)));
    }
    let mut called = false;
    let too_large = [usize::MAX, 1 << 20].map(|bytes| {
        let answers = [log.append_with(bytes, |_| called = true).wait().map(drop)];
        answers.map(|answer| answer.unwrap_err().kind())
    });
    assert_eq!(too_large, [[ErrorKind::InvalidInput]; 2]);
    assert_eq!(nowait::block_on(log.append_with(1 << 20, |_| ())).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(!called, "what does not fit need not be filled");
    log.wait_durable(log.last_lsn()).wait().unwrap();
    let mut reader = log.reader(1);
    for (kind, bytes) in expected {
        let found = reader.next().wait().unwrap().unwrap();
        assert_eq!((found.kind, found.bytes), (kind, &bytes[..]));
    }
    assert!(reader.next().wait().unwrap().is_none());
}

// Stamps.

/// A log that was dropped had no watermark block that speaks of its last block: damage there looked
/// like a write that was cut off.
#[test]
fn what_is_damaged_after_a_drop_is_damage() {
    let _watchdog = Watchdog::new("a log that is dropped", 60);
    for maintenance in [true, false] {
        for depth in [1, 3] {
            let dir = mounts::temp_dir();
            let path = dir.path().join("log");
            let options =
                small().segment_bytes(64 << 10).sync(strategy(Submitter::Ring, depth)).maintenance(maintenance);
            let (log, _) = Log::open(&path, &options).wait().unwrap();
            for _ in 0..9 {
                log.append(&[1; 100]).wait().unwrap().wait().unwrap();
            }
            // Nobody waits for the last ones.
            (0..3).for_each(|_| drop(log.append(&[2; 100]).wait().unwrap()));
            drop(log);
            // It has let go of its directory when all is written.
            let lock = nowait::File::open(path.join("lock")).wait().unwrap();
            assert!(eventually(|| lock.try_lock().is_ok()));
            assert_eq!(inspect(&path).wait().unwrap().last_lsn, 12);
            rot_on_disk(&path);
            assert_damaged(&inspect(&path).wait().unwrap());
        }
    }
}

/// The watermark block that closes a log left beside other blocks, so that it did not speak of
/// them.
#[test]
fn what_is_damaged_after_a_close_is_damage_whatever_was_in_flight() {
    for depth in 1..=4 {
        let _watchdog = Watchdog::new("closing with writes in flight", 60);
        let sim = Sim::manual(depth.into());
        let (log, _) = Log::open(DIR, &on_sim(&sim, depth)).wait().unwrap();
        log.append(&[1; 100]).wait().unwrap().wait().unwrap();
        let mut tickets: Vec<_> = (1..depth).map(|_| log.append(&[2; 100]).wait().unwrap()).collect();
        for ticket in &mut tickets {
            assert!(poll(Pin::new(ticket)).is_pending());
        }
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(SeqCst) {
                    if !sim.step() {
                        std::thread::yield_now();
                    }
                }
            });
            log.close().wait().unwrap();
            is_over.store(true, SeqCst);
        });
        for ticket in &mut tickets {
            assert!(matches!(poll(Pin::new(ticket)), Poll::Ready(Ok(_))));
        }
        let found = inspect_in(&on(&sim), DIR).wait().unwrap();
        assert!(found.closed && found.last_lsn == u64::from(depth), "{found:?}");
        rot_in(&sim);
        assert_damaged(&inspect_in(&on(&sim), DIR).wait().unwrap());
    }
}

/// Also of a segment that is full to the last page that records may take, when no other can be had.
#[test]
fn a_full_log_is_closed_with_a_watermark_block() {
    for closes in [true, false] {
        let sim = Sim::new(1);
        let options = on_sim(&sim, 1).segment_bytes(16 << 10);
        let (log, _) = Log::open(DIR, &options).wait().unwrap();
        sim.set_capacity(1);
        while let Ok(ticket) = log.append(&[1; 3000]).wait() {
            ticket.wait().unwrap();
        }
        let last = log.durable_lsn();
        assert!(last > 0);
        match closes {
            true => log.close().wait().unwrap(),
            false => drop(log),
        }
        let found = inspect_in(&on(&sim), DIR).wait().unwrap();
        assert_eq!((found.last_lsn, found.closed), (last, closes));
        rot_in(&sim);
        assert_damaged(&inspect_in(&on(&sim), DIR).wait().unwrap());
    }
}

/// Ten milliseconds after the last commit a watermark block is written, once; from then on nothing
/// can be taken for torn.
#[test]
fn an_idle_log_is_written_in_the_disks_own_time() {
    let sim = Sim::manual(1);
    let (log, _) = Log::open(DIR, &on_sim(&sim, 1)).wait().unwrap();
    log.append(&[1; 100]).wait().unwrap().wait().unwrap();
    while log.maintain() {}
    assert_eq!(log.stats().watermark_blocks, 0);
    sim.advance(Duration::from_millis(9));
    assert!(!log.maintain());
    sim.advance(Duration::from_millis(1));
    assert!(log.maintain() && !log.maintain());
    assert_eq!(log.stats().watermark_blocks, 1);
    // As it is when it is killed now.
    let killed = sim.crash(|_, _| false);
    assert_eq!(inspect_in(&on(&killed), DIR).wait().unwrap().last_lsn, 1);
    rot_in(&killed);
    assert_damaged(&inspect_in(&on(&killed), DIR).wait().unwrap());
    sim.advance(Duration::from_secs(1));
    assert!(!log.maintain(), "a second watermark block says nothing new");
}

/// A kill leaves no more records without a watermark than the blocks that may be in flight,
/// whatever came before.
#[test]
fn what_a_kill_leaves_without_a_watermark_is_bounded() {
    for depth in 1..=4u32 {
        let sim = Sim::manual(depth.into());
        let (log, _) = Log::open(DIR, &on_sim(&sim, depth)).wait().unwrap();
        let mut tickets = Vec::new();
        for _ in 0..12 {
            while log.last_lsn() - log.durable_lsn() == u64::from(depth) {
                assert!(sim.step());
            }
            // Each leaves at once, in a block of its own.
            let mut ticket = log.append(&[1; 100]).wait().unwrap();
            assert!(poll(Pin::new(&mut ticket)).is_pending());
            tickets.push(ticket);
        }
        while sim.step() {}
        assert_eq!(log.durable_lsn(), 12);
        let killed = sim.crash(|_, _| true);
        let names = on(&killed).fs().read_dir_names(DIR).wait().unwrap();
        let mut watermark = 0;
        for name in names {
            let bytes = killed.contents(Path::new(DIR).join(name)).unwrap();
            for block in bytes.chunks(4096).filter(|block| block.starts_with(b"nwbk")) {
                watermark = watermark.max(u64::from_le_bytes(block[32..40].try_into().unwrap()));
            }
        }
        assert_eq!(log.stats().blocks, 1 + 12);
        assert!(watermark < 12 && 12 - watermark <= u64::from(depth), "depth {depth}: watermark {watermark}");
    }
}

/// The process was killed when its last watermark block was written and not durable. The log went
/// on behind it, and a power cut that took it took what came after.
#[test]
fn a_watermark_block_that_was_read_is_made_durable() {
    let sim = Sim::manual(1);
    let strategy = Strategy { durability: Durability::WriteAndSync, by: Submitter::Call, depth: 1 };
    let options = || on_sim(&sim, 1).sync(SyncPolicy::Fixed(strategy));
    let (log, _) = Log::open(DIR, &options()).wait().unwrap();
    let mut ticket = log.append(b"first").wait().unwrap();
    assert!(poll(Pin::new(&mut ticket)).is_pending());
    // The watermark block follows the record: a write and a sync of each, of which the last is not
    // done.
    drop(log);
    assert!(sim.step() && sim.step() && matches!(poll(Pin::new(&mut ticket)), Poll::Ready(Ok(1))));
    assert!(sim.step());
    let is_complete = |change: &Unsynced| matches!(change, Unsynced::Write { complete: true, .. });
    assert!(sim.unsynced().iter().any(is_complete), "{:?}", sim.unsynced());

    let (log, recovery) = Log::open(DIR, &options()).wait().unwrap();
    assert!(recovery.last_lsn == 1 && recovery.torn.is_none(), "{recovery:?}");
    assert_eq!(log.append(b"second").wait().unwrap().wait().unwrap(), 2);
    let crashed = sim.crash(|_, _| false);
    let found = inspect_in(&on(&crashed), DIR).wait().unwrap();
    assert!(found.last_lsn == 2 && found.damage.is_empty(), "{found:?}");
    drop(log);
    while sim.step() {}
}

// Callbacks.

/// `append` in a callback waited for what only the thread could bring about that it ran on.
#[test]
fn a_callback_that_appends_is_refused_rather_than_waits() {
    for maintenance in [true, false] {
        let _watchdog = Watchdog::new(format!("callbacks that append, maintenance {maintenance}"), 120);
        let dir = mounts::temp_dir();
        let options = small().segment_bytes(64 << 10).maintenance(maintenance).pending_bytes_max(5000);
        let (log, _) = Log::open(dir.path().join("log"), &options).wait().unwrap();
        let (again, refused) = mpsc::channel();
        let refusals = Arc::new(AtomicU64::new(0));
        fn go(log: &Log, left: u64, again: &mpsc::Sender<u64>, refusals: &Arc<AtomicU64>) {
            if left == 0 {
                return again.send(0).unwrap();
            }
            match log.append(&[0; 3000]).wait() {
                Ok(ticket) => {
                    let (log, again, refusals) = (log.clone(), again.clone(), refusals.clone());
                    ticket.on_durable(move |result| {
                        result.unwrap();
                        go(&log, left - 1, &again, &refusals);
                    });
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                    assert!(error.to_string().contains("callback"), "{error}");
                    refusals.fetch_add(1, SeqCst);
                    again.send(left).unwrap();
                }
            }
        }
        for _ in 0..8 {
            go(&log, 20, &again, &refusals);
        }
        let mut ended = 0;
        while ended < 8 {
            match refused.recv().unwrap() {
                0 => ended += 1,
                left => {
                    log.room(3000).wait().unwrap();
                    go(&log, left, &again, &refusals);
                }
            }
        }
        assert_eq!(log.last_lsn(), 160);
        assert!(refusals.load(SeqCst) > 0, "none found the log full");
        log.close().wait().unwrap();
    }
}

/// It ran where the segment was prepared that it waited for.
#[test]
fn a_callback_that_comes_while_a_segment_is_prepared_may_append() {
    let _watchdog = Watchdog::new("a callback within a preparation", 60);
    let sim = Sim::new(1);
    let (log, _) = Log::open(DIR, &on_sim(&sim, 1).segment_bytes(16 << 10)).wait().unwrap();
    let ticket = Mutex::new(Some(log.append(&[1; 3000]).wait().unwrap()));
    let (told, hear) = mpsc::channel();
    let other = log.clone();
    sim.watch(move |sim| {
        let is_write = |change: &Unsynced, part: &str| match change {
            Unsynced::Write { complete: false, path, .. } => path.to_str().unwrap().contains(part),
            _ => false,
        };
        let changes = sim.unsynced();
        if changes.iter().any(|change| is_write(change, "prepare")) {
            // The record becomes due, and is written in between.
            sim.advance(Duration::from_millis(10));
        } else if changes.iter().any(|change| is_write(change, ".seg")) {
            let Some(ticket) = ticket.lock().unwrap().take() else { return };
            let (other, told) = (other.clone(), told.clone());
            ticket.on_durable(move |result| {
                result.unwrap();
                told.send(other.append(&[2; 7900]).wait().map(drop)).unwrap();
            });
        }
    });
    while log.maintain() {}
    match hear.recv_timeout(PATIENCE).unwrap() {
        Err(error) => assert_eq!((error.kind(), log.durable_lsn()), (ErrorKind::WouldBlock, 1), "{error}"),
        // Its own record may have been written by now.
        Ok(()) => assert!((1..=2).contains(&log.durable_lsn())),
    }
}

/// Neither does one that waits for other records, closes the log, or lets go of its last clone.
#[test]
fn a_callback_that_blocks_or_panics_stops_nothing_else() {
    for maintenance in [true, false] {
        let _watchdog = Watchdog::new(format!("callbacks that block, maintenance {maintenance}"), 60);
        let dir = mounts::temp_dir();
        let path = dir.path().join("log");
        let (log, _) = Log::open(&path, &small().maintenance(maintenance)).wait().unwrap();
        let (free, blocked) = mpsc::channel::<()>();
        let (told, hear) = mpsc::channel();
        let ticket = log.append(b"first").wait().unwrap();
        ticket.on_durable(move |_| assert!(blocked.recv().is_err()));
        for lsn in 2..=50 {
            let told = told.clone();
            let ticket = log.append(&[3; 1000]).wait().unwrap();
            assert_eq!(ticket.lsn(), lsn);
            ticket.on_durable(move |result| {
                told.send(result.unwrap()).unwrap();
                assert!(lsn % 7 != 0, "on purpose");
            });
            // Those who wait go on meanwhile: over segments' ends, too.
            assert_eq!(log.wait_durable(lsn).wait().unwrap(), lsn);
        }
        assert_eq!(hear.try_recv(), Err(mpsc::TryRecvError::Empty), "the first one holds up the others");
        drop(free);
        let mut heard: Vec<u64> = (2..=50).map(|_| hear.recv_timeout(PATIENCE).unwrap()).collect();
        heard.sort_unstable();
        assert_eq!(heard, (2..=50).collect::<Vec<_>>());

        let (told, hear) = mpsc::channel();
        let inside = log.clone();
        log.append(b"waits inside").wait().unwrap().on_durable(move |_| {
            // An append that found no room would be refused here.
            inside.room(100).wait().unwrap();
            let waited = inside.append(b"and its own").wait().unwrap().wait();
            let closed = inside.close().wait();
            told.send((waited, closed)).unwrap();
        });
        let (waited, closed) = hear.recv_timeout(PATIENCE).unwrap();
        assert_eq!(waited.unwrap(), 52);
        closed.unwrap();
        drop(log);
        let (log, recovery) = Log::open(&path, &small().maintenance(maintenance)).wait().unwrap();
        assert!(recovery.last_lsn == 52 && recovery.closed, "{recovery:?}");
        let (told, hear) = mpsc::channel();
        let ticket = log.append(b"lets go inside").wait().unwrap();
        ticket.on_durable(move |_| {
            drop(log);
            told.send(()).unwrap();
        });
        hear.recv_timeout(PATIENCE).unwrap();
        assert!(eventually(|| Log::open(&path, &small()).wait().is_ok_and(|(_, found)| found.last_lsn == 53)));
    }
}

/// One that is asked for when the record is durable already is called there, too, and not within
/// the call that asks.
#[test]
fn callbacks_are_called_elsewhere() {
    let dir = mounts::temp_dir();
    let (log, _) = Log::open(dir.path().join("log"), &small()).wait().unwrap();
    let (told, hear) = mpsc::channel();
    for _ in 0..3 {
        let ticket = log.append(b"x").wait().unwrap();
        log.wait_durable(ticket.lsn()).wait().unwrap();
        let told = told.clone();
        ticket.on_durable(move |_| told.send(std::thread::current().name().map(str::to_owned)).unwrap());
        assert_eq!(hear.recv_timeout(PATIENCE).unwrap().as_deref(), Some("nowait-log-calls"));
    }
    log.close().wait().unwrap();
}

/// A value dropped with a waker or a callback may use the log: nothing of the log is locked then.
#[test]
fn what_is_dropped_may_use_the_log() {
    struct Uses(Log, Arc<AtomicU64>);
    impl Drop for Uses {
        fn drop(&mut self) {
            let _ = (self.0.try_append(b"while it is dropped"), self.0.last_lsn(), self.0.maintain());
            self.1.fetch_add(1, SeqCst);
        }
    }
    impl Wake for Uses {
        fn wake(self: Arc<Self>) {}
    }
    let _watchdog = Watchdog::new("dropping what uses the log", 60);
    let sim = Sim::manual(1);
    let (log, _) = Log::open(DIR, &on_sim(&sim, 1).pending_bytes_max(5000)).wait().unwrap();
    let drops = Arc::new(AtomicU64::new(0));
    let uses = || Uses(log.clone(), drops.clone());
    // With one waker, then with another.
    fn begin<F: Future + Unpin>(future: &mut F, uses: impl Fn() -> Uses) {
        for _ in 0..2 {
            let waker = Waker::from(Arc::new(uses()));
            assert!(Pin::new(&mut *future).poll(&mut Context::from_waker(&waker)).is_pending());
        }
    }
    let mut dropped = log.append(&[1; 4000]).wait().unwrap();
    begin(&mut dropped, uses);
    drop(dropped);
    let (mut later, mut room) = (log.wait_durable(1000), log.room(4000));
    begin(&mut later, uses);
    begin(&mut room, uses);
    let held = uses();
    log.append(&[1; 100]).wait().unwrap().on_durable(move |_| drop(held));
    while sim.step() {}
    assert!(eventually(|| sim.pending() == 0 && drops.load(SeqCst) >= 5), "{drops:?}");
    sim.set_faults({
        let mut faults = Faults::default();
        faults.write_error = 1.0;
        faults
    });
    let held = uses();
    let mut fails = log.append(&[1; 100]).wait().unwrap();
    begin(&mut fails, uses);
    log.append(&[1; 100]).wait().unwrap().on_durable(move |_| drop(held));
    while sim.step() {}
    assert!(matches!(poll(Pin::new(&mut fails)), Poll::Ready(Err(_))));
    drop((later, room, fails));
    assert!(log.clone().close().wait().is_err());
    // Two wakers of each future, and both callbacks' own.
    assert!(eventually(|| drops.load(SeqCst) == 10), "{drops:?}");
}

// Room.

/// Without maintenance nothing prepared the next segment: `try_append` was refused for ever.
#[test]
fn room_comes_at_a_segments_end() {
    for maintenance in [true, false] {
        let _watchdog = Watchdog::new(format!("room, maintenance {maintenance}"), 120);
        let dir = mounts::temp_dir();
        let (log, _) = Log::open(dir.path().join("log"), &small().maintenance(maintenance)).wait().unwrap();
        let mut refusals = 0;
        for lsn in 1..=60 {
            let ticket = loop {
                match log.try_append(&[7; 3000]) {
                    Ok(ticket) => break ticket,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                        assert!(error.to_string().contains("the next one is being prepared"), "{error}");
                        assert!(error.to_string().contains("room"), "{error}");
                        refusals += 1;
                    }
                }
                match lsn % 3 {
                    0 => log.room(3000).wait().unwrap(),
                    1 => futures::executor::block_on(log.room(3000)).unwrap(),
                    _ => nowait::block_on(log.room(3000)).unwrap(),
                }
            };
            assert_eq!(ticket.wait().unwrap(), lsn);
        }
        // A waiter finds room: no other thread appends.
        assert!((1..=60).contains(&refusals) || maintenance, "{refusals} refusals");
        assert!(refusals <= 60, "{refusals} refusals");
        log.close().wait().unwrap();
    }
}

/// Whoever only tries again and again gets in, too, in the time that a segment takes.
#[test]
fn a_refusal_begins_what_makes_room() {
    let _watchdog = Watchdog::new("trying again", 60);
    let dir = mounts::temp_dir();
    let options = small().maintenance(false).pending_bytes_max(8000);
    let (log, _) = Log::open(dir.path().join("log"), &options).wait().unwrap();
    for lsn in 1..=40 {
        // Nobody waits for tickets either.
        while let Err(error) = log.try_append(&[7; 3000]) {
            assert_eq!(error.kind(), ErrorKind::WouldBlock, "record {lsn}: {error}");
            std::thread::yield_now();
        }
    }
    assert_eq!(log.last_lsn(), 40);
    log.close().wait().unwrap();
}

#[test]
fn room_is_waited_for_while_too_much_is_pending() {
    let _watchdog = Watchdog::new("room in the budget", 60);
    let sim = Sim::manual(1);
    let (log, _) = Log::open(DIR, &on_sim(&sim, 1).pending_bytes_max(4000)).wait().unwrap();
    drop(log.try_append(&[1; 3000]).unwrap());
    let error = log.try_append(&[1; 3000]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(error.to_string().contains("pending_bytes_max (4000 bytes) is reached"), "{error}");
    let mut room = Box::pin(log.room(3000));
    assert!(poll(room.as_mut()).is_pending());
    assert!(poll(Box::pin(log.room(10)).as_mut()).is_ready(), "a smaller one has room");
    // Nobody waits for the record.
    assert!(sim.step());
    assert!(matches!(poll(room.as_mut()), Poll::Ready(Ok(()))));
    drop(log.try_append(&[1; 3000]).unwrap());
    // One that is dropped leaves nothing behind.
    let mut other = Box::pin(log.room(3000));
    assert!(poll(other.as_mut()).is_pending());
    drop(other);
    assert_eq!(log.room(1 << 20).wait().unwrap_err().kind(), ErrorKind::InvalidInput);
    while sim.step() {}
    let mut room = Box::pin(log.room(3000));
    log.clone().close().wait().unwrap();
    assert!(matches!(poll(room.as_mut()), Poll::Ready(Err(error)) if error.kind() == ErrorKind::Closed));
}

/// Those who wait for room are told that it does not come.
#[test]
fn room_that_cannot_be_had_is_told() {
    let Some(mount) = Mount::sized_or_skip(Kind::Tmpfs, 256 << 10) else { return };
    for maintenance in [true, false] {
        let _watchdog = Watchdog::new(format!("no room, maintenance {maintenance}"), 60);
        let path = mount.path().join(format!("log {maintenance}"));
        let (log, _) = Log::open(&path, &small().maintenance(maintenance)).wait().unwrap();
        let error = loop {
            match log.try_append(&[7; 3000]) {
                Ok(ticket) => drop(ticket.wait().unwrap()),
                Err(error) if error.kind() != ErrorKind::WouldBlock => break error,
                Err(_) => match log.room(3000).wait() {
                    Ok(()) => {}
                    Err(error) => break error,
                },
            }
        };
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        log.truncate_prefix(log.durable_lsn());
        log.room(3000).wait().unwrap();
        log.try_append(&[8; 3000]).unwrap().wait().unwrap();
        log.truncate_prefix(log.durable_lsn());
        log.close().wait().unwrap();
        fs::remove_dir_all(&path).unwrap();
    }
}

/// Without maintenance nothing tried again when others had made space.
#[test]
fn space_that_others_make_is_found() {
    let sim = Sim::manual(1);
    let (log, _) = Log::open(DIR, &on_sim(&sim, 1).segment_bytes(16 << 10)).wait().unwrap();
    sim.set_capacity(1);
    let fill = || {
        let error = loop {
            match log.append(&[1; 3000]).wait() {
                Ok(ticket) => drop(ticket.wait().unwrap()),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    };
    fill();
    sim.set_capacity(u64::MAX);
    sim.advance(Duration::from_secs(1));
    log.append(&[1; 3000]).wait().unwrap().wait().unwrap();
    sim.set_capacity(1);
    fill();
}

// Ends.

/// Whatever goes on meanwhile, closing ends, and what was acknowledged is there.
#[test]
fn closing_ends_whatever_goes_on() {
    let mut rng = common::rng::Rng::for_test();
    let started = Instant::now();
    let mut round = 0;
    while round < 40 && started.elapsed() < Duration::from_secs(15) {
        round += 1;
        let _watchdog = Watchdog::new(format!("closing, round {round}"), 60);
        let dir = mounts::temp_dir();
        let path = dir.path().join("log");
        let maintenance = rng.below(2) == 0;
        let options = small()
            .maintenance(maintenance)
            .pending_bytes_max(10_000)
            .sync(strategy(Submitter::Ring, 1 + rng.below(3) as u32));
        let (log, _) = Log::open(&path, &options).wait().unwrap();
        let acknowledged = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..6)
            .map(|kind| {
                let (log, acknowledged) = (log.clone(), acknowledged.clone());
                std::thread::spawn(move || {
                    let note = |result: nowait::Result<u64>| {
                        result.map(|lsn| acknowledged.fetch_max(lsn, SeqCst)).is_ok_and(|_| true)
                    };
                    loop {
                        let ticket = match kind {
                            0..4 => log.append(&[kind; 900]).wait(),
                            _ => log.try_append(&[kind; 900]),
                        };
                        match ticket {
                            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                                if log.room(900).wait().is_err() {
                                    return;
                                }
                            }
                            Err(error) => return assert_eq!(error.kind(), ErrorKind::Closed, "{error}"),
                            Ok(mut ticket) => match kind {
                                0 => assert!(note(ticket.wait())),
                                1 => assert!(note(futures::executor::block_on(ticket))),
                                2 => ticket.on_durable(|result| assert!(result.is_ok())),
                                3 => drop(poll(Pin::new(&mut ticket))),
                                4 => drop(log.maintain()),
                                _ => drop(ticket),
                            },
                        }
                    }
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(rng.below(20) as u64));
        log.close().wait().unwrap();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let found = inspect(&path).wait().unwrap();
        assert!(found.closed && found.damage.is_empty(), "{found:?}");
        assert!(found.last_lsn >= acknowledged.load(SeqCst), "{found:?}");
    }
}
