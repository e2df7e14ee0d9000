//! Writes that overlap are made in the order in which they began, whatever became of their futures.
//!
//! A thread begins writes to random places, awaits some, keeps some under way, and drops some after
//! a poll or a timeout. The oracle: a byte is of the last write to it that was acknowledged, or of
//! one that began later and was dropped.

mod common;

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use common::mounts::temp_dir;
use common::rng::Rng;
use common::{Watchdog, assert_settled, eventually, poll_once};
use futures::future::{Either, join_all, select};
use nowait::sim::{Faults, Sim};
use nowait::{Buf, Builder, Engine, File, Nowait, OpenOptions, Route};

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
    let mut faults = Faults::default();
    (faults.not_now, faults.short_now, faults.short, faults.interrupted) = (0.5, 0.3, 0.3, 0.1);
    let sim = Sim::new(rng.next());
    sim.set_faults(faults);
    sim.create("file", vec![0; LEN]);
    let nowait = Nowait::builder().engine(Engine::Sim(sim)).build().unwrap();
    let file = OpenOptions::new().read(true).write(true).open_in(&nowait, "file").wait().unwrap();
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
