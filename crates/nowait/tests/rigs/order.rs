//! Writes that overlap are made in the order in which they began, whatever became of their futures.
//!
//! A thread begins writes to random places, awaits some, keeps some under way, and drops some after
//! a poll or a timeout. The oracle: a byte is of the last write to it that was acknowledged, or of
//! one that began later and was dropped.

use std::future::Future;
use std::os::fd::AsRawFd;
use std::pin::{Pin, pin};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::common::mounts::{Frozen, Kind, Mount, temp_dir};
use crate::common::rng::Rng;
use crate::common::{Watchdog, assert_settled, eventually, faulty_sim, open_direct, poll_once, rounds, writable};
use futures::future::{Either, join_all, select};
use nowait::sim::{Faults, Sim};
use nowait::{Allocate, Buf, Builder, Engine, File, Nowait, OpenOptions, Route};

const LEN: usize = 4 << 20;
/// Bytes are compared at this distance.
const CELL: usize = 512;

/// How long one file is worked on.
fn time() -> Duration {
    match std::env::var("NOWAIT_MODEL_SECONDS") {
        Ok(text) => Duration::from_secs(text.parse().expect("NOWAIT_MODEL_SECONDS is a number")),
        Err(_) => Duration::from_millis(400),
    }
}

/// A write that has begun.
struct Begun {
    start: usize,
    end: usize,
    value: u8,
    dropped: bool,
}

/// Returns what is left of a write's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Awaited,
    Kept,
    Dropped,
    /// Dropped if it is not through by then.
    TimedOut,
    Waited,
    Borrowed,
    Many,
}

const FATES: [Fate; 7] =
    [Fate::Awaited, Fate::Kept, Fate::Dropped, Fate::TimedOut, Fate::Waited, Fate::Borrowed, Fate::Many];

struct Order {
    file: File,
    rng: Rng,
    begun: Vec<Begun>,
    before: Vec<u8>,
}

type Kept<'f> = Pin<Box<dyn Future<Output = ()> + 'f>>;

impl Order {
    /// Where a write goes: one place in two is that of the write before, and one in three suits no
    /// device.
    fn place(&mut self) -> (usize, usize) {
        let length = match self.rng.below(6) {
            0 => 1 << 20,
            1 => 4096 * (1 + self.rng.below(64)),
            2 => 512 * (1 + self.rng.below(40)),
            _ => 4096,
        };
        let start = match self.begun.last() {
            Some(last) if self.rng.below(2) == 0 => last.start.min(LEN - length),
            _ => self.rng.below(LEN - length),
        };
        let unit = if self.rng.below(3) == 0 { CELL } else { 4096 };
        (start / unit * unit, length)
    }

    async fn round(&mut self) {
        self.begun.clear();
        let file = self.file.clone();
        let mut kept: Vec<Kept<'_>> = Vec::new();
        let mut log = String::new();
        for n in 0..1 + self.rng.below(24) {
            let (start, length) = self.place();
            let fate = FATES[self.rng.below(FATES.len())];
            let durable = self.rng.below(8) == 0;
            let value = n as u8 + 1;
            self.begun.push(Begun { start, end: start + length, value, dropped: false });
            log += &format!("{n}: {fate:?} {start}+{length}{}\n", if durable { " durable" } else { "" });
            let mut data = Buf::zeroed(length);
            data.fill(value);
            let offset = start as u64;
            let write = |data| {
                let write = file.write_all_at(data, offset);
                let write = if durable { write.durable() } else { write };
                Box::pin(async { drop(write.await.unwrap()) }) as Kept<'_>
            };
            let dropped = match fate {
                Fate::Awaited => {
                    write(data).await;
                    false
                }
                Fate::Kept => {
                    let mut write = write(data);
                    if poll_once(write.as_mut()).is_pending() {
                        kept.push(write);
                    }
                    false
                }
                Fate::Dropped => poll_once(write(data).as_mut()).is_pending(),
                Fate::TimedOut => {
                    let until = Instant::now() + Duration::from_micros(self.rng.below(300) as u64);
                    let timeout = std::future::poll_fn(|context: &mut std::task::Context<'_>| {
                        if Instant::now() >= until {
                            return std::task::Poll::Ready(());
                        }
                        context.waker().wake_by_ref();
                        std::task::Poll::Pending
                    });
                    matches!(select(write(data), Box::pin(timeout)).await, Either::Right(_))
                }
                Fate::Waited if durable => {
                    file.write_all_at(data, offset).durable().wait().unwrap();
                    false
                }
                Fate::Waited => {
                    file.write_all_at(data, offset).wait().unwrap();
                    false
                }
                Fate::Borrowed => {
                    file.write_all_from(&data, offset).unwrap();
                    false
                }
                Fate::Many => {
                    let mut halves = vec![(offset, data)];
                    if length > 4096 {
                        let mut second = Buf::zeroed(length - 4096);
                        second.fill(value);
                        halves[0].1.truncate(4096);
                        halves.push((offset + 4096, second));
                    }
                    drop(file.write_many(halves).await.unwrap());
                    false
                }
            };
            if let Some(last) = self.begun.last_mut() {
                last.dropped = dropped;
            }
        }
        join_all(kept).await;
        match self.rng.below(2) {
            0 => file.settled().await,
            _ => file.settled().wait(),
        }
        self.check(&log);
    }

    fn check(&mut self, log: &str) {
        let mut now = vec![0; LEN];
        assert_eq!(self.file.read_into(&mut now, 0).unwrap(), LEN);
        for at in (0..LEN).step_by(CELL) {
            let covering = || self.begun.iter().filter(|write| (write.start..write.end).contains(&at));
            let acknowledged = covering().rposition_of(|write| !write.dropped);
            let mut allowed: Vec<u8> = covering().skip(acknowledged.unwrap_or(0)).map(|write| write.value).collect();
            if acknowledged.is_none() {
                allowed.push(self.before[at]);
            }
            assert!(allowed.contains(&now[at]), "byte {at} is {} and not one of {allowed:?}, after\n{log}", now[at]);
        }
        self.before = now;
    }
}

trait RPositionOf<T> {
    fn rposition_of(self, is: impl FnMut(&T) -> bool) -> Option<usize>;
}

impl<T, I: Iterator<Item = T>> RPositionOf<T> for I {
    /// The place of the last one that is so.
    fn rposition_of(self, mut is: impl FnMut(&T) -> bool) -> Option<usize> {
        self.enumerate().filter(|(_, item)| is(item)).last().map(|(place, _)| place)
    }
}

fn work(nowait: &Nowait, file: File, rng: Rng) {
    let before = vec![0; LEN];
    let mut order = Order { file, rng, begun: Vec::new(), before };
    let until = Instant::now() + time();
    let mut rounds = 0;
    while Instant::now() < until || rounds < 3 {
        let _watchdog = Watchdog::new("order", 60);
        if rounds % 2 == 0 {
            futures::executor::block_on(order.round());
        } else {
            nowait::block_on(order.round());
        }
        rounds += 1;
    }
    eprintln!("{rounds} rounds");
    assert_settled(nowait);
}

fn on(builder: Builder) {
    let folder = temp_dir();
    let nowait = match builder.build() {
        Ok(nowait) => nowait,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    for direct in [false, true] {
        let path = folder.path().join(format!("file-{direct}"));
        std::fs::write(&path, vec![0; LEN]).unwrap();
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).direct(direct).open_in(&nowait, path).wait().unwrap();
        work(&nowait, file, Rng::for_test());
    }
}

#[test]
fn auto() {
    on(Nowait::builder());
}

#[test]
fn ring() {
    on(Nowait::builder().engine(Engine::Uring).route(Some(Route::Ring)));
}

#[test]
fn libaio() {
    on(Nowait::builder().engine(Engine::Aio));
}

#[test]
fn pool() {
    on(Nowait::builder().engine(Engine::Pool).route(Some(Route::Pool)));
}

#[test]
fn little_room() {
    on(Nowait::builder().write_bytes_max(64 << 10, 256 << 10));
}

#[test]
fn simulator() {
    let mut rng = Rng::for_test();
    let (nowait, file) = faulty_sim(&mut rng, LEN);
    work(&nowait, file, rng);
}

/// Once the file is settled, a dropped write is in it or never will be; on a simulated disk that
/// does nothing by itself.
#[test]
fn settled_waits_for_what_was_abandoned() {
    let sim = Sim::manual(1);
    sim.create("file", vec![0; LEN]);
    let nowait = Nowait::builder().engine(Engine::Sim(sim.clone())).route(Some(Route::Pool)).build().unwrap();
    let file = OpenOptions::new().read(true).write(true).open_in(&nowait, "file");
    let file = std::thread::scope(|scope| {
        let opened = scope.spawn(|| file.wait());
        while !opened.is_finished() {
            sim.step();
        }
        opened.join().unwrap().unwrap()
    });
    assert!(poll_once(Box::pin(file.settled()).as_mut()).is_ready(), "nothing is under way");
    let mut write = Box::pin(file.write_all_at(vec![1; 4096], 0));
    assert!(poll_once(write.as_mut()).is_pending());
    drop(write);
    let mut settled = Box::pin(file.settled());
    assert!(poll_once(settled.as_mut()).is_pending());
    // One that begins later is not waited for.
    let mut later = Box::pin(file.write_all_at(vec![2; 4096], 1 << 20));
    assert!(poll_once(later.as_mut()).is_pending());
    assert!(eventually(|| !sim.step()));
    assert!(poll_once(settled.as_mut()).is_ready() && poll_once(later.as_mut()).is_ready());
    file.settled().wait();
}

const PAGE: usize = 4096;

/// A way in which a thread makes a change itself.
#[derive(Clone, Copy, Debug)]
enum Call {
    Polled,
    Started,
    Many,
    Collected,
    Waited,
    Borrowed,
    Appended,
    Cut,
    Reserved,
}

impl Call {
    const ALL: [Call; 9] = [
        Call::Polled,
        Call::Started,
        Call::Many,
        Call::Collected,
        Call::Waited,
        Call::Borrowed,
        Call::Appended,
        Call::Cut,
        Call::Reserved,
    ];

    fn make(self, file: &File) {
        let write = |page: usize| file.write_all_at(vec![1; PAGE], (page * PAGE) as u64);
        match self {
            Call::Polled => drop(futures::executor::block_on(write(0)).unwrap()),
            Call::Started => drop(write(0).start().wait().unwrap()),
            Call::Many => drop(futures::executor::block_on(file.write_many(vec![(0, vec![1; PAGE])])).unwrap()),
            Call::Collected => {
                let (first, second) = nowait::block_on(futures::future::join(write(0), write(1)));
                drop((first.unwrap(), second.unwrap()));
            }
            Call::Waited => drop(write(0).wait().unwrap()),
            Call::Borrowed => file.write_all_from(&[1; PAGE], 0).unwrap(),
            Call::Appended => drop(file.append(vec![1; PAGE]).wait().unwrap()),
            Call::Cut => file.set_len(PAGE as u64).wait().unwrap(),
            Call::Reserved => file.allocate(Allocate::Reserve, 0, 4 * PAGE as u64).wait().unwrap(),
        }
    }
}

/// Returns whether a thread of this process is in uninterruptible sleep.
fn hangs(thread: rustix::thread::Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().starts_with('D')
}

/// Mounts ext4 with a file of two zero pages. The file is open on an instance that makes writes on
/// the caller's thread, however long they take.
fn on_ext4(mount: &Mount, name: &str) -> File {
    let path = mount.path().join(name);
    std::fs::write(&path, [0; 2 * PAGE]).unwrap();
    let nowait = Nowait::builder().stall_budget(Duration::from_secs(600)).build().unwrap();
    let file = writable(&nowait, &path);
    // Until a plain call has returned soon, threads of the pool make them.
    let write = || futures::executor::block_on(file.write_all_at(vec![0; PAGE], 0)).unwrap();
    assert!(crate::common::eventually(|| {
        write();
        nowait.stats().inline > 0
    }));
    file
}

/// Symptom: a change that a thread made itself was not in the order while the kernel had it. So
/// `settled` returned early, and later writes of other threads overtook the change.
#[test]
fn settled_waits_for_calls_that_other_threads_make() {
    let _watchdog = Watchdog::new("settled beside calls of other threads", 120);
    let Some(mount) = Mount::or_skip(Kind::Ext4) else { return };
    for call in Call::ALL {
        let file = on_ext4(&mount, "file");
        let frozen = Frozen::new(&mount);
        let (send, receive) = mpsc::channel();
        let of_thread = file.clone();
        let thread = std::thread::spawn(move || {
            send.send(rustix::thread::gettid()).unwrap();
            call.make(&of_thread);
        });
        let id = receive.recv().unwrap();
        assert!(eventually(|| hangs(id)), "{call:?} is made by its thread");
        let mut settled = pin!(file.settled());
        assert!(poll_once(settled.as_mut()).is_pending(), "{call:?} is under way");
        // It overlaps all of them.
        let mut cut = pin!(file.set_len(0));
        assert!(poll_once(cut.as_mut()).is_pending());
        drop(frozen);
        futures::executor::block_on(settled);
        futures::executor::block_on(cut).unwrap();
        file.settled().wait();
        assert_eq!(file.size().wait().unwrap(), 0, "{call:?} came after what overlaps it");
        thread.join().unwrap();
    }
}

/// Whether a thread of a pool is in an uninterruptible sleep, in a call for this file.
fn a_thread_of_a_pool_sleeps(file: &File) -> bool {
    let descriptor = format!("{:#x}", file.descriptor().unwrap().as_raw_fd());
    std::fs::read_dir("/proc/self/task").unwrap().flatten().any(|task| {
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        // Its number, and then its arguments (proc_pid_syscall(5)).
        let is_call = read("syscall").split(' ').nth(1) == Some(&descriptor);
        let stat = read("stat");
        is_call
            && stat.rsplit_once(')').is_some_and(|(name, rest)| name.contains("nowait-pool") && rest.starts_with(" D"))
    })
}

type Collected = Vec<Pin<Box<dyn Future<Output = ()> + Send>>>;

/// Has a thread poll two writes of neighbours under `block_on`, which are left to be made together.
/// Passes their futures, the thread's number and a sender to `give_up`. A message continues the thread.
fn collect(file: &File, give_up: impl FnOnce(Collected, rustix::thread::Pid, mpsc::Sender<()>)) {
    let (send, receive) = mpsc::channel();
    let (goes_on, go_on) = mpsc::channel();
    let (ends, end) = futures::channel::oneshot::channel::<()>();
    let of_thread = file.clone();
    let thread = std::thread::spawn(move || {
        nowait::block_on(async {
            let write = |page: usize| {
                let file = of_thread.clone();
                Box::pin(async move { drop(file.write_all_at(vec![1; PAGE], (page * PAGE) as u64).await) })
                    as Pin<Box<_>>
            };
            let mut writes: Collected = vec![write(0), write(1)];
            writes.iter_mut().for_each(|write| assert!(poll_once(write.as_mut()).is_pending(), "it is left"));
            send.send((writes, rustix::thread::gettid())).unwrap();
            go_on.recv().unwrap();
            let _ = end.await;
        });
    });
    let (writes, id) = receive.recv().unwrap();
    give_up(writes, id, goes_on);
    drop(ends);
    thread.join().unwrap();
}

fn pages(file: &File) -> [u8; 2] {
    let mut bytes = [0; 2 * PAGE];
    file.read_exact_into(&mut bytes, 0).unwrap();
    [bytes[0], bytes[PAGE]]
}

/// Symptom: after a dropped write had settled, a retry was acknowledged, and then overwritten by
/// the dropped write.
#[test]
fn a_write_that_was_given_up_and_settled_never_follows_its_retry() {
    let _watchdog = Watchdog::new("writes that were given up", 120);
    let Some(mount) = Mount::or_skip(Kind::Ext4) else { return };
    let file = on_ext4(&mount, "file");
    let frozen = Frozen::new(&mount);
    collect(&file, |writes, _, goes_on| {
        goes_on.send(()).unwrap();
        // A watcher calls a thread of the pool, which sleeps in the call.
        assert!(eventually(|| a_thread_of_a_pool_sleeps(&file)), "they are being made");
        drop(writes);
        let settled = pin!(file.settled());
        drop(frozen);
        futures::executor::block_on(settled);
        drop(futures::executor::block_on(file.write_all_at(vec![2; 2 * PAGE], 0)).unwrap());
    });
    assert_eq!(pages(&file), [2, 2]);
}

/// A busy thread does not keep others from learning what is in the file. On a busy machine the helper
/// may make the writes before they are given up.
#[test]
fn a_collected_write_that_was_given_up_is_made_before_it_has_settled_or_never() {
    let dir = temp_dir();
    let path = dir.path().join("file");
    std::fs::write(&path, [0; 2 * PAGE]).unwrap();
    let file = writable(&Nowait::builder().build().unwrap(), &path);
    let mut settled = [0; 2];
    collect(&file, |writes, _, goes_on| {
        drop(writes);
        file.settled().wait();
        settled = pages(&file);
        drop(futures::executor::block_on(file.write_all_at(vec![2; PAGE], 0)).unwrap());
        goes_on.send(()).unwrap();
    });
    assert_eq!(pages(&file), [2, settled[1]]);
}

/// The same with a call that blocks its thread: a simulated disk does not answer.
#[test]
fn a_call_that_is_held_has_its_place_before_those_that_overlap_it() {
    let _watchdog = Watchdog::new("a call that is held", 60);
    let sim = Sim::new(1);
    sim.create("file", vec![0; 2 * PAGE]);
    let nowait = Nowait::builder().engine(Engine::Sim(sim.clone())).build().unwrap();
    let file = OpenOptions::new().read(true).write(true).open_in(&nowait, "file").wait().unwrap();
    let calls: [fn(&File); 3] = [
        |file| file.write_all_from(&[1; PAGE], 0).unwrap(),
        |file| drop(file.write_all_at(vec![1; PAGE], 0).wait().unwrap()),
        |file| file.set_len(0).wait().unwrap(),
    ];
    for call in calls {
        sim.set_hung("file", true);
        std::thread::scope(|scope| {
            scope.spawn(|| call(&file));
            // Nothing else is under way.
            assert!(eventually(|| poll_once(pin!(file.settled())).is_pending()));
            let mut overlaps = pin!(file.write_all_at(vec![2; 2 * PAGE], 0));
            assert!(poll_once(overlaps.as_mut()).is_pending());
            let mut beside = pin!(file.settled());
            assert!(poll_once(beside.as_mut()).is_pending());
            sim.set_hung("file", false);
            drop(futures::executor::block_on(overlaps).unwrap());
            futures::executor::block_on(beside);
        });
        assert_eq!(pages(&file), [2, 2]);
    }
    assert_settled(&nowait);
}

/// Has two threads write `length` bytes at a time, `count` times, each from its place. What both
/// wrote is all of one of them.
fn write_at_a_time(count: u32, places: [u64; 2], length: usize, file: &File, write: impl Fn(&[u8], u64) + Sync) {
    let (barrier, mixed) = (std::sync::Barrier::new(2), std::sync::OnceLock::new());
    let work = |number: usize| {
        let bytes = vec![number as u8 + 1; length];
        let mut now = vec![0; length - (places[1] - places[0]) as usize];
        for round in 0..count {
            barrier.wait();
            // Both threads end: one would wait for the other.
            if mixed.get().is_some() {
                return;
            }
            write(&bytes, places[number]);
            barrier.wait();
            if number == 0 {
                file.read_exact_into(&mut now, places[1]).unwrap();
                let other = now.iter().position(|byte| *byte != now[0]);
                if now[0] == 0 || other.is_some() {
                    let _ = mixed.set(format!("round {round}: byte 0 is {}, and {other:?} is not", now[0]));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| work(1));
        work(0);
    });
    assert_eq!(mixed.get(), None);
}

/// Symptom: another thread's overlapping write came between the part of a write that an attempt
/// moved and the rest. Here attempts of both threads end in the middle.
#[test]
fn no_write_comes_between_an_attempt_and_its_rest() {
    let _watchdog = Watchdog::new("attempts that end in the middle", 120);
    let mut faults = Faults::default();
    (faults.short_now, faults.short) = (0.7, 0.3);
    let sim = Sim::new(Rng::for_test().next());
    sim.set_faults(faults);
    sim.create("file", vec![0; PAGE]);
    let nowait = Nowait::builder().engine(Engine::Sim(sim)).build().unwrap();
    let file = OpenOptions::new().read(true).write(true).open_in(&nowait, "file").wait().unwrap();
    write_at_a_time(rounds(4000), [0, 0], PAGE, &file, |bytes, offset| {
        drop(futures::executor::block_on(file.write_all_at(bytes.to_vec(), offset)).unwrap());
    });
    assert_settled(&nowait);
}

/// Symptom: a borrowed slice that does not suit the device was written as several copies, each with
/// another place in the order.
#[test]
fn no_write_comes_between_the_copies_of_another() {
    let _watchdog = Watchdog::new("slices in copies", 120);
    let dir = temp_dir();
    let path = dir.path().join("file");
    std::fs::write(&path, vec![0; LEN]).unwrap();
    let nowait = Nowait::builder().build().unwrap();
    let Some(file) = open_direct(&nowait, &path) else { return };
    // Copies of one do not begin where those of the other do.
    let places = [100, 100 + (1 << 19)];
    write_at_a_time(rounds(40), places, 3 << 20, &file, |bytes, offset| file.write_all_from(bytes, offset).unwrap());
    assert_settled(&nowait);
}
