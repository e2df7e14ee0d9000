//! Threads that are held up while they write for others: stopped, or without processor time.

#[path = "../../nowait/tests/common/mod.rs"]
mod common;

use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use common::{Watchdog, eventually};
use nowait::sim::{Faults, Sim};
use nowait::{Engine, ErrorKind, Nowait};
use nowait_log::{Durability, Log, Options, Strategy, Submitter, SyncPolicy, Ticket, read_in};

const DIR: &str = "/log";
const HELD_UP: &str = "held up";
/// Much longer than a log is patient, and much shorter than a thread is held up.
const SOON: Duration = Duration::from_secs(30);

/// The maintenance thread.
const MAINTENANCE: &str = "nowait-log";
/// The thread that writes for many.
const WRITER: &str = "nowait-log-writer";
/// Threads with many waiters.
const MANY: &str = "many";

/// Stops threads in their first write, until it is opened: those called [`HELD_UP`] or [`WRITER`],
/// and maintenance while the flag is set. Counts the writes of threads called [`MANY`].
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<(usize, bool)>, Condvar)>, Arc<AtomicBool>, Arc<AtomicU32>);

impl Gate {
    fn pass(&self) {
        match thread::current().name() {
            Some(HELD_UP | WRITER) => {}
            Some(MANY) => {
                self.2.fetch_add(1, Relaxed);
                return;
            }
            Some(MAINTENANCE) if self.1.load(Relaxed) => {}
            _ => return,
        }
        let mut state = self.0.0.lock().unwrap();
        state.0 += 1;
        self.0.1.notify_all();
        while !state.1 {
            state = self.0.1.wait(state).unwrap();
        }
    }

    /// Waits until a thread is held up.
    fn is_reached(&self) {
        let mut state = self.0.0.lock().unwrap();
        while state.0 == 0 {
            state = self.0.1.wait(state).unwrap();
        }
    }

    fn open(&self) {
        self.0.0.lock().unwrap().1 = true;
        self.0.1.notify_all();
    }
}

struct Rig {
    sim: Sim,
    instance: Nowait,
    log: Log,
    gate: Gate,
}

impl Rig {
    fn new(maintenance: bool, durability: Durability) -> Rig {
        Rig::of(Options::new().maintenance(maintenance), durability)
    }

    fn with(options: Options) -> Rig {
        Rig::of(options, Durability::Write)
    }

    fn of(options: Options, durability: Durability) -> Rig {
        let sim = Sim::new(1);
        let instance = Nowait::builder().engine(Engine::Sim(sim.clone())).build().unwrap();
        let strategy = Strategy { durability, by: Submitter::Call, depth: 1 };
        let options = options.create(true).instance(&instance).segment_bytes(64 << 10);
        let options = options.sync(SyncPolicy::Fixed(strategy));
        let log = Log::open(DIR, &options).wait().unwrap().0;
        let gate = Gate::default();
        let at = gate.clone();
        sim.watch(move |_| at.pass());
        Rig { sim, instance, log, gate }
    }

    /// Appends a record on a thread that is held up in its write; returns the thread's answer, to
    /// come.
    fn hold_up(&self) -> Receiver<nowait::Result<u64>> {
        let log = self.log.clone();
        let answer = on_a_thread(HELD_UP, move || log.append(b"held up").wait()?.wait());
        self.gate.is_reached();
        answer
    }

    /// Records that were found by another opening.
    fn records(&self) -> Vec<Vec<u8>> {
        let (mut reader, _) = read_in(&self.instance, DIR, 1).wait().unwrap();
        let mut records = Vec::new();
        while let Some(record) = reader.next().wait().unwrap() {
            records.push(record.bytes.to_vec());
        }
        records
    }
}

fn on_a_thread<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (told, hear): (Sender<T>, _) = mpsc::channel();
    let work = move || {
        // The test may have ended.
        let _ = told.send(work());
    };
    thread::Builder::new().name(name.into()).spawn(work).unwrap();
    hear
}

fn append_and_wait(log: &Log, record: &'static [u8]) -> Receiver<nowait::Result<u64>> {
    let log = log.clone();
    on_a_thread("another", move || log.append(record).wait()?.wait())
}

#[test]
fn another_thread_writes_what_one_that_is_held_up_does_not() {
    let _watchdog = Watchdog::new("a log whose thread is held up", 120);
    for (maintenance, durability) in
        [(true, Durability::Write), (false, Durability::Write), (false, Durability::WriteAndSync)]
    {
        let rig = Rig::new(maintenance, durability);
        let held_up = rig.hold_up();
        let another = append_and_wait(&rig.log, b"another's");
        assert_eq!(another.recv_timeout(SOON).expect("not in time").unwrap(), 2);
        assert_eq!(rig.log.durable_lsn(), 2);
        assert!(rig.log.stats().rescues >= 1);
        // It goes on, and is held up no more: its write changes nothing.
        rig.gate.open();
        assert_eq!(held_up.recv_timeout(SOON).unwrap().unwrap(), 1);
        rig.log.append(b"the last").wait().unwrap().wait().unwrap();
        rig.log.clone().close().wait().unwrap();
        assert_eq!(rig.records(), [b"held up".as_slice(), b"another's", b"the last"]);
    }
}

#[test]
fn a_log_closes_while_a_thread_is_held_up() {
    let _watchdog = Watchdog::new("a log whose thread is held up", 60);
    let rig = Rig::new(true, Durability::Write);
    let held_up = rig.hold_up();
    let log = rig.log.clone();
    on_a_thread("closes", move || log.close().wait()).recv_timeout(SOON).expect("not in time").unwrap();
    assert_eq!(rig.records(), [b"held up"]);
    rig.gate.open();
    assert_eq!(held_up.recv_timeout(SOON).unwrap().unwrap(), 1, "it was durable before");
    assert_eq!(rig.records(), [b"held up"]);
}

/// The disk may have lost what it had: a write that fails has touched it.
#[test]
fn a_late_write_that_fails_poisons_the_log() {
    let _watchdog = Watchdog::new("a log whose thread is held up", 60);
    let rig = Rig::new(true, Durability::Write);
    let held_up = rig.hold_up();
    append_and_wait(&rig.log, b"another's").recv_timeout(SOON).expect("not in time").unwrap();
    let mut faults = Faults::default();
    faults.write_error = 1.0;
    rig.sim.set_faults(faults);
    rig.gate.open();
    held_up.recv_timeout(SOON).unwrap().expect("it was durable before");
    assert_eq!(rig.log.append(b"no more").wait().unwrap_err().kind(), ErrorKind::Poisoned);
}

/// Polls until it is ready.
fn drive<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn futures_and_callbacks_are_told_while_a_thread_is_held_up() {
    let _watchdog = Watchdog::new("a log whose thread is held up", 60);
    let rig = Rig::new(true, Durability::Write);
    let held_up = rig.hold_up();
    let ticket = rig.log.append(b"a future's").wait().unwrap();
    let future = on_a_thread("a future", move || drive(ticket.into_future()));
    let (told, callback) = mpsc::channel();
    rig.log.append(b"a callback's").wait().unwrap().on_durable(move |answer| told.send(answer).unwrap());
    assert_eq!(future.recv_timeout(SOON).expect("not in time").unwrap(), 2);
    assert_eq!(callback.recv_timeout(SOON).expect("not in time").unwrap(), 3);
    rig.gate.open();
    held_up.recv_timeout(SOON).unwrap().unwrap();
}

/// A waker is the user's code. Where it does not return, the thread that called it tells nobody else.
#[test]
fn a_waker_that_does_not_return_holds_up_no_other() {
    struct Stuck(Gate);
    impl Wake for Stuck {
        fn wake(self: Arc<Self>) {
            let gate = self.0.clone();
            let mut state = gate.0.0.lock().unwrap();
            while !state.1 {
                state = gate.0.1.wait(state).unwrap();
            }
        }
    }
    let _watchdog = Watchdog::new("a log whose thread is held up", 60);
    let rig = Rig::new(true, Durability::Write);
    // Both belong to a block that cannot leave before the one of the thread that is held up.
    let held_up = rig.hold_up();
    let tickets: Vec<Ticket> = (0..2).map(|_| rig.log.append(b"a future's").wait().unwrap()).collect();
    let stuck = Gate::default();
    let [first, second] = <[Ticket; 2]>::try_from(tickets).ok().unwrap();
    let waker = Waker::from(Arc::new(Stuck(stuck.clone())));
    let mut first = pin!(first.into_future());
    assert!(first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let second = on_a_thread("a future", move || drive(second.into_future()));
    thread::sleep(Duration::from_millis(5));
    // The thread that ends the block calls the waker.
    rig.gate.open();
    assert_eq!(second.recv_timeout(SOON).expect("not in time").unwrap(), 3);
    stuck.open();
    held_up.recv_timeout(SOON).unwrap().unwrap();
}

/// Maintenance may be busy, or held up in the write that it has begun in another's place. Those that
/// sleep look after it, however many they are and however often they have looked.
#[test]
fn those_that_wait_look_after_maintenance_too() {
    let _watchdog = Watchdog::new("a log whose thread is held up", 60);
    let rig = Rig::new(true, Durability::Write);
    rig.gate.1.store(true, Relaxed);
    let held_up = rig.hold_up();
    let others: Vec<_> = (0..12).map(|_| append_and_wait(&rig.log, b"another's")).collect();
    for other in others {
        other.recv_timeout(SOON).expect("not in time").unwrap();
    }
    rig.gate.open();
    held_up.recv_timeout(SOON).unwrap().unwrap();
}

/// A hook is not held up by a task's waker, either.
#[test]
fn blocks_are_handed_over_while_a_waker_does_not_return() {
    struct Stuck(Gate);
    impl Wake for Stuck {
        fn wake(self: Arc<Self>) {
            let mut state = self.0.0.0.lock().unwrap();
            while !state.1 {
                state = self.0.0.1.wait(state).unwrap();
            }
        }
    }
    let _watchdog = Watchdog::new("a log whose thread is held up", 60);
    let (told, handed_over) = mpsc::channel();
    let rig = Rig::with(Options::new().on_durable(move |block| told.send(block.lsns().end).unwrap()));
    let held_up = rig.hold_up();
    let stuck = Gate::default();
    let mut first = pin!(rig.log.append(b"a future's").wait().unwrap().into_future());
    let waker = Waker::from(Arc::new(Stuck(stuck.clone())));
    assert!(first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    // The thread that ends its block calls the waker.
    rig.gate.open();
    assert!(eventually(|| rig.log.durable_lsn() == 2));
    append_and_wait(&rig.log, b"the last").recv_timeout(SOON).expect("not in time").unwrap();
    let ends = [(); 3].map(|()| handed_over.recv_timeout(SOON).expect("not in time"));
    assert_eq!(ends, [2, 3, 4]);
    stuck.open();
    held_up.recv_timeout(SOON).unwrap().unwrap();
}

/// Appends records with enough waiters for the log's own writer, until told to stop; returns the
/// number of records.
fn append_with_waiters(log: &Log, stop: &Arc<AtomicBool>) -> Receiver<u64> {
    let (log, stop) = (log.clone(), stop.clone());
    on_a_thread(MANY, move || {
        let mut records = 0;
        while !stop.load(Relaxed) {
            let tickets = [0; 20].map(|_| log.append(b"one of many").wait().unwrap());
            tickets.into_iter().for_each(|ticket| ticket.on_durable(|answer| _ = answer.unwrap()));
            log.append(b"the last").wait().unwrap().wait().unwrap();
            records += 21;
        }
        records
    })
}

fn makes_progress(log: &Log) -> bool {
    let before = log.durable_lsn();
    eventually(|| log.durable_lsn() >= before + 200)
}

#[test]
fn the_logs_own_writer_may_be_held_up() {
    let _watchdog = Watchdog::new("a log whose writer is held up", 120);
    let rig = Rig::new(true, Durability::Write);
    let stop = Arc::new(AtomicBool::new(false));
    let threads = [0; 3].map(|_| append_with_waiters(&rig.log, &stop));
    rig.gate.is_reached();
    let before = rig.gate.2.load(Relaxed);
    assert!(eventually(|| rig.gate.2.load(Relaxed) >= before + 10), "those that wait write in its place");
    rig.gate.open();
    assert!(makes_progress(&rig.log), "with the writer");
    stop.store(true, Relaxed);
    let records: u64 = threads.iter().map(|thread| thread.recv_timeout(SOON).expect("not in time")).sum();
    rig.log.clone().close().wait().unwrap();
    assert_eq!(rig.records().len() as u64, records);
}

#[test]
fn a_waker_may_hold_up_the_logs_own_writer() {
    struct Stuck(Gate, Arc<AtomicBool>);
    impl Wake for Stuck {
        fn wake(self: Arc<Self>) {
            if thread::current().name() == Some(WRITER) {
                self.1.store(true, Relaxed);
                self.0.pass();
            }
        }
    }
    let _watchdog = Watchdog::new("a log whose writer is held up", 120);
    let rig = Rig::new(true, Durability::Write);
    // Holds up no write.
    rig.gate.open();
    let stop = Arc::new(AtomicBool::new(false));
    let threads = [0; 3].map(|_| append_with_waiters(&rig.log, &stop));
    let (stuck, is_stuck) = (Gate::default(), Arc::new(AtomicBool::new(false)));
    let waker = Waker::from(Arc::new(Stuck(stuck.clone(), is_stuck.clone())));
    let told = eventually(|| {
        let ticket = rig.log.append(b"a future's").wait().unwrap();
        let lsn = ticket.lsn();
        let mut ticket = pin!(ticket.into_future());
        let _ = ticket.as_mut().poll(&mut Context::from_waker(&waker));
        eventually(|| rig.log.durable_lsn() >= lsn);
        is_stuck.load(Relaxed)
    });
    assert!(told, "the writer calls wakers");
    assert!(makes_progress(&rig.log), "while the waker holds up the writer");
    stuck.open();
    assert!(makes_progress(&rig.log), "with the writer");
    stop.store(true, Relaxed);
    threads.iter().for_each(|thread| _ = thread.recv_timeout(SOON).expect("not in time"));
}
