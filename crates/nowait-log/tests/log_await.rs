//! A log that is awaited: no future of it blocks the executor's thread.

#[path = "../../nowait/tests/common/mod.rs"]
mod common;

use std::fs;
use std::future::{Future, poll_fn};
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use common::{Watchdog, mounts};
use nowait::sim::{Faults, Sim};
use nowait::{Engine, ErrorKind, Nowait, Wait, block_on};
use nowait_log::{Durability, Event, Log, Options, Strategy, Submitter, SyncPolicy, Tickets, inspect, read};

const DIR: &str = "/log";

fn strategy(by: Submitter) -> SyncPolicy {
    SyncPolicy::Fixed(Strategy { durability: Durability::Write, by, depth: 1 })
}

fn on_sim(sim: &Sim) -> Options {
    let instance = Nowait::builder().engine(Engine::Sim(sim.clone())).build().unwrap();
    Options::new()
        .create(true)
        .instance(&instance)
        .segment_bytes(64 << 10)
        .sync(strategy(Submitter::Call))
        .maintenance(false)
}

/// Counts its wakes.
#[derive(Default)]
struct Wakes(AtomicU64);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl Wakes {
    fn poll<F: Future + Unpin>(self: &Arc<Self>, future: &mut F) -> Poll<F::Output> {
        Pin::new(future).poll(&mut Context::from_waker(&Waker::from(self.clone())))
    }

    fn count(&self) -> u64 {
        self.0.load(SeqCst)
    }
}

/// All that a log does.
async fn everything(path: &Path) {
    const LAST: u64 = 3000;
    let bytes = |lsn: u64| vec![lsn as u8; 100 + (lsn % 300) as usize];
    let options = Options::new().create(true).segment_bytes(64 << 10).pending_bytes_max(20_000);
    let mut opening = Log::open(path, &options);
    // Made with a calibration, which takes 200 ms.
    assert!(futures::poll!(&mut opening).is_pending(), "the thread did nothing else while the log was opened");
    let (log, recovery) = opening.await.unwrap();
    assert!(recovery.created);
    let mut tickets = Vec::new();
    for lsn in 1..=LAST {
        // More than may be pending, and through several segments: for both it waits here.
        let record = bytes(lsn);
        let ticket = match lsn % 3 {
            0 => log.append_batch([record.as_slice()]).await,
            _ => log.append(&record).await,
        };
        tickets.push(ticket.unwrap());
    }
    for (lsn, ticket) in (1..).zip(tickets) {
        assert_eq!(ticket.await.unwrap(), lsn);
    }
    log.truncate_suffix(LAST - 10).await.unwrap();
    let error = log.truncate_suffix(LAST).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSuchRecord);
    let mut reader = log.reader(1);
    let mut last = 0;
    while let Some(record) = reader.next().await.unwrap() {
        assert!(record.lsn == last + 1 && record.bytes == bytes(record.lsn), "record {}", record.lsn);
        last = record.lsn;
    }
    assert_eq!(last, LAST - 10);
    log.clone().close().await.unwrap();
    assert_eq!(log.append(b"late").await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(log.close().await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(inspect(path).await.unwrap().last_lsn, last);
    let (mut reader, _) = read(path, last).await.unwrap();
    assert_eq!(reader.next().await.unwrap().unwrap().lsn, last);
    assert!(reader.next().await.unwrap().is_none());
    let (log, recovery) = Log::open(path, &options).await.unwrap();
    assert!(!recovery.created && recovery.closed && recovery.last_lsn == last, "{recovery:?}");
    assert_eq!(log.append(b"again").await.unwrap().await.unwrap(), last + 1);
    log.close().await.unwrap();
}

/// Runs `everything` beside a task that wakes up each millisecond, on one thread.
async fn beside_a_clock<S: Future>(path: &Path, sleep: impl Fn(Duration) -> S) {
    let clock = async {
        loop {
            sleep(Duration::from_millis(1)).await;
        }
    };
    futures::future::select(pin!(everything(path)), pin!(clock)).await;
}

#[test]
fn on_one_thread_of_any_executor() {
    let _watchdog = Watchdog::new("a log that is awaited", 120);
    let dir = mounts::temp_dir();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(beside_a_clock(&dir.path().join("tokio"), tokio::time::sleep));
    smol::block_on(beside_a_clock(&dir.path().join("smol"), smol::Timer::after));
    block_on(beside_a_clock(&dir.path().join("block_on"), smol::Timer::after));
}

/// Blocks until an operation has completed, or awaits it.
fn end<W: Wait>(awaits: bool, operation: W) -> W::Output {
    if awaits { block_on(operation.into_future()) } else { operation.wait() }
}

#[test]
fn each_future_is_awaited_or_waited_for_by_the_same_code() {
    let _watchdog = Watchdog::new("a function over `Wait`", 60);
    for awaits in [false, true] {
        let dir = mounts::temp_dir();
        let options = Options::new().create(true).segment_bytes(64 << 10);
        let (log, _) = end(awaits, Log::open(dir.path(), &options)).unwrap();
        end(awaits, log.room(10)).unwrap();
        let first = end(awaits, log.append(b"one")).unwrap();
        let second = end(awaits, log.append(b"two")).unwrap();
        assert_eq!(end(awaits, first).unwrap(), 1);
        end(awaits, Tickets::from_iter([second])).unwrap();
        assert_eq!(end(awaits, log.wait_durable(2)).unwrap(), 2);
        let mut reader = log.reader(1);
        assert_eq!(end(awaits, reader.next()).unwrap().unwrap().bytes, b"one");
        assert_eq!(end(awaits, reader.tail()).unwrap().bytes, b"two");
        end(awaits, log.close()).unwrap();
    }
}

/// An append that finds no room waits without the thread; dropped, it has appended nothing.
#[test]
fn appends_wait_for_room() {
    let _watchdog = Watchdog::new("appends that are awaited", 60);
    let sim = Sim::manual(1);
    let (log, _) = Log::open(DIR, &on_sim(&sim).pending_bytes_max(4000)).wait().unwrap();
    let wakes = Arc::new(Wakes::default());
    let Poll::Ready(Ok(first)) = wakes.poll(&mut log.append(&[1; 3000])) else { panic!("there is room") };
    assert_eq!(first.lsn(), 1);
    let (mut dropped, records) = (log.append(&[2; 3000]), [[3; 1400]; 2]);
    let mut batch = log.append_batch(records.iter().map(<[u8; 1400]>::as_slice));
    assert!(wakes.poll(&mut dropped).is_pending() && wakes.poll(&mut batch).is_pending());
    let Poll::Ready(Ok(small)) = wakes.poll(&mut log.append(&[4; 10])) else { panic!("a small one has room") };
    drop(dropped);
    assert_eq!((log.last_lsn(), wakes.count()), (2, 0));
    while wakes.count() == 0 {
        assert!(sim.step(), "what is pending is written though nothing waits for it");
    }
    let Poll::Ready(Ok(batch)) = wakes.poll(&mut batch) else { panic!("there is room again") };
    assert_eq!(batch.lsn(), 4);
    while sim.step() {}
    assert_eq!(batch.wait().unwrap(), 4);
    assert_eq!((first.wait().unwrap(), small.wait().unwrap()), (1, 2));

    let mut never = log.append(&[5; 1 << 20]);
    assert!(
        matches!(wakes.poll(&mut never), Poll::Ready(Err(error)) if error.kind() == ErrorKind::InvalidInput),
        "a record that never fits"
    );
    let mut none = log.append_batch([] as [&[u8]; 0]);
    assert!(matches!(wakes.poll(&mut none), Poll::Ready(Err(error)) if error.kind() == ErrorKind::InvalidInput));
    // Those who wait are told that the log fails.
    drop(log.append(&[6; 3000]).wait().unwrap());
    let mut waits = log.append(&[7; 3000]);
    assert!(wakes.poll(&mut waits).is_pending());
    let mut faults = Faults::default();
    faults.write_error = 1.0;
    sim.set_faults(faults);
    let before = wakes.count();
    while wakes.count() == before {
        assert!(sim.step());
    }
    assert!(matches!(wakes.poll(&mut waits), Poll::Ready(Err(error)) if error.kind() == ErrorKind::Poisoned));
}

/// A full disk refuses an awaited append as it does any; the reserve is there for the one that may
/// use it.
#[test]
fn a_full_disk_is_told() {
    let _watchdog = Watchdog::new("awaited appends on a full disk", 60);
    let sim = Sim::new(1);
    sim.set_capacity(400 << 10);
    let (log, _) = Log::open(DIR, &on_sim(&sim).reserve_bytes(32 << 10)).wait().unwrap();
    let error = block_on(async {
        loop {
            match log.append(&[7; 3000]).await {
                Ok(ticket) => drop(ticket.await.unwrap()),
                Err(error) => return error,
            }
        }
    });
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    let last = log.last_lsn();
    assert_eq!(block_on(async { log.append_from_reserve(b"checkpoint").await?.await }).unwrap(), last + 1);
}

/// A future of a reader that is dropped leaves the reader where it was, and reads are not lost.
#[test]
fn a_reader_whose_future_is_dropped_goes_on() {
    let _watchdog = Watchdog::new("readers that are dropped", 60);
    let dir = mounts::temp_dir();
    let path = dir.path().join("log");
    let options = Options::new().create(true).segment_bytes(64 << 10).sync(strategy(Submitter::Ring));
    let (log, _) = Log::open(&path, &options).wait().unwrap();
    const LAST: u64 = 600;
    for lsn in 1..=LAST {
        drop(log.append(&vec![lsn as u8; 500]).wait().unwrap());
    }
    log.wait_durable(LAST).wait().unwrap();
    let mut reader = log.reader(1);
    let wakes = Arc::new(Wakes::default());
    let mut pending = 0;
    for lsn in 1..=LAST {
        let mut patience = 0;
        loop {
            match wakes.poll(&mut reader.next()) {
                Poll::Ready(found) => {
                    let found = found.unwrap().unwrap();
                    assert!(found.lsn == lsn && found.bytes == vec![lsn as u8; 500], "record {}", found.lsn);
                    break;
                }
                Poll::Pending if patience > 100 => {
                    assert_eq!(reader.next().wait().unwrap().unwrap().lsn, lsn);
                    break;
                }
                Poll::Pending => {
                    pending += 1;
                    patience += 1;
                    thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }
    assert!(pending > 0, "no future was dropped under way");
    assert!(reader.next().wait().unwrap().is_none());
}

/// A reader that waited never ended at the end of a file that was shorter than its segment.
#[test]
fn a_segment_that_was_cut_short_on_disk_is_damage() {
    for (bytes, found, waits) in
        [20_480, 20_000].iter().flat_map(|bytes| [(bytes, true, true), (bytes, true, false), (bytes, false, true)])
    {
        let what = format!("cut to {bytes} bytes, of a recovery {found}, by waiting {waits}");
        let _watchdog = Watchdog::new(what.clone(), 60);
        let dir = mounts::temp_dir();
        let path = dir.path().join("log");
        let options = Options::new().create(true).segment_bytes(64 << 10).sync(strategy(Submitter::Call));
        let (log, _) = Log::open(&path, &options).wait().unwrap();
        for lsn in 1..=20 {
            log.append(&vec![lsn as u8; 1500]).wait().unwrap().wait().unwrap();
        }
        let mut reader = if found { read(&path, 1).wait().unwrap().0 } else { log.reader(1) };
        let names = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
        let first = names.filter(|path| path.extension().is_some_and(|e| e == "seg")).min().unwrap();
        fs::OpenOptions::new().write(true).open(first).unwrap().set_len(*bytes).unwrap();
        let mut records = 0;
        let error = loop {
            let next = if waits { reader.next().wait() } else { block_on(reader.next()) };
            match next {
                Ok(found) => assert_eq!(found.map(|record| record.lsn), Some(records + 1), "{what}"),
                Err(error) => break error,
            }
            records += 1;
        };
        // Each record has a page, behind those of the header and of the first watermark block; of
        // the third one's, a part is enough.
        assert_eq!((error.kind(), records), (ErrorKind::Damaged, 3), "{what}: {error}");
    }
}

#[test]
#[should_panic(expected = "polled after it was ready")]
fn an_append_is_made_once() {
    let (log, _) = Log::open(DIR, &on_sim(&Sim::new(1))).wait().unwrap();
    let mut append = log.append(b"once");
    let wakes = Arc::new(Wakes::default());
    assert!(wakes.poll(&mut append).is_ready());
    drop(wakes.poll(&mut append));
}

/// Whoever prepares a segment writes what is due meanwhile, and left the waking to the thread of
/// callbacks: a callback that waits for that segment waited for itself.
#[test]
fn a_callback_may_wait_for_room() {
    for (maintenance, appends) in [(false, true), (false, false), (true, true)] {
        let _watchdog = Watchdog::new(format!("a callback, maintenance {maintenance}, appends {appends}"), 120);
        let dir = mounts::temp_dir();
        let options = Options::new().create(true).segment_bytes(32 << 20).sync(strategy(Submitter::Call));
        let options = options.maintenance(maintenance).pending_bytes_max(1 << 30);
        let (log, _) = Log::open(dir.path().join("log"), &options).wait().unwrap();
        let large = vec![1; 1 << 20];
        // Until the next segment is needed, and being prepared.
        let refusal = loop {
            match log.try_append(&large) {
                Ok(ticket) => drop(ticket.wait().unwrap()),
                Err(error) => break error,
            }
        };
        assert_eq!(refusal.kind(), ErrorKind::WouldBlock);
        let (told, hear) = mpsc::channel();
        let inside = log.clone();
        log.append(&[2; 100]).wait().unwrap().on_durable(move |_| {
            // A record for which nothing waits, then one that needs the segment.
            let due = inside.try_append(&[3; 100]).map(drop);
            let answer = match appends {
                true => block_on(inside.append(&large)).map(drop),
                false => inside.room(large.len()).wait(),
            };
            told.send((due, answer)).unwrap();
        });
        let (_, answer) = hear.recv().unwrap();
        answer.unwrap();
        log.close().wait().unwrap();
    }
}

/// Returns a future's output, and how often it let others run.
async fn counted<T>(future: impl Future<Output = T>) -> (T, usize) {
    let (mut future, mut pending) = (pin!(future), 0);
    let output = poll_fn(|context| {
        let polled = future.as_mut().poll(context);
        pending += usize::from(polled.is_pending());
        polled
    });
    (output.await, pending)
}

/// Symptom: a task that appended, or read records that are in memory, never let another run.
#[test]
fn appends_and_records_in_memory_yield() {
    let _watchdog = Watchdog::new("a log's turns", 60);
    // Each is charged with 51 ns, and a turn is 5 µs. Blocks of all of them are few.
    const RECORDS: u64 = 100_000;
    const YIELDS_MIN: usize = RECORDS as usize / 100 / 2;
    let options = on_sim(&Sim::new(7)).segment_bytes(16 << 20).pending_bytes_max(16 << 20);
    let (log, _) = Log::open(DIR, &options).wait().unwrap();
    block_on(async {
        let appends = async {
            let mut last = None;
            for _ in 0..RECORDS {
                last = Some(log.append(&[1; 10]).await.unwrap());
            }
            last
        };
        let (last, yields) = counted(appends).await;
        assert!(yields >= YIELDS_MIN, "appends yielded {yields} times");
        assert_eq!(last.unwrap().await.unwrap(), RECORDS);
        let reads = async {
            let mut reader = log.reader(1);
            for lsn in 1..=RECORDS {
                let record = reader.next().await.unwrap().unwrap();
                assert!(record.lsn == lsn && record.bytes == [1; 10]);
            }
        };
        let ((), yields) = counted(reads).await;
        assert!(yields >= YIELDS_MIN, "reads yielded {yields} times");
    });
}

/// An append that is awaited, and waits for room, is a stall as one that blocks its thread.
#[test]
fn awaited_appends_that_wait_are_counted_as_stalls() {
    let _watchdog = Watchdog::new("stalls of a task", 60);
    for is_awaited in [true, false] {
        let (told, hear) = mpsc::channel();
        let on_event = move |event: &Event| {
            if let Event::Stalled { elapsed, .. } = event {
                told.send(*elapsed).unwrap();
            }
        };
        let options = on_sim(&Sim::new(7)).pending_bytes_max(100).on_event(on_event);
        let (log, _) = Log::open(DIR, &options).wait().unwrap();
        // The first finds room; each other one when those before it are durable.
        for _ in 0..5 {
            let append = log.append(&[1; 90]);
            let _ticket = if is_awaited { block_on(append) } else { append.wait() }.unwrap();
        }
        let stats = log.stats();
        assert_eq!(stats.stalls, 4, "awaited: {is_awaited}, {stats:?}");
        assert!(stats.stalled > Duration::ZERO);
        // One that was given up, or refused, was not made, and is none.
        let wakes = Arc::new(Wakes::default());
        let mut given_up = log.append(&[1; 90]);
        let _ = is_awaited.then(|| wakes.poll(&mut given_up).map(drop));
        drop(given_up);
        log.close().wait().unwrap();
        let told: Duration = (0..4).map(|_| hear.recv().unwrap()).sum();
        assert_eq!(told, stats.stalled);
    }
}
