//! Overlapping writes of one file by several threads and executors: each byte holds the last write that
//! was submitted. A lock of the test makes the order of submissions a total one.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::mounts::temp_dir;
use crate::common::rng::Rng;
use crate::common::{Watchdog, assert_settled, faulty_sim, poll_once};
use crate::promises::mix::Runtimes;
use nowait::{Buf, Builder, Engine, File, Nowait, OpenOptions, Route};

const LEN: usize = 256 << 10;
/// Length and place of a write are multiples of this.
const UNIT: usize = 512;

type Pending = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A write, by what it writes in each byte.
struct Written {
    start: usize,
    length: usize,
    value: u8,
}

#[derive(Clone)]
struct Writer {
    file: File,
    order: Arc<Mutex<Vec<Written>>>,
}

impl Writer {
    /// Submits a write in one of the ways, and returns what is left to wait for.
    fn begin(&self, rng: &mut Rng) -> Option<Pending> {
        let units_max = [1, 8, 8, 64][rng.below(4)];
        let length = UNIT * (1 + rng.below(units_max));
        // A few places are hot.
        let place = if rng.below(2) == 0 { rng.below(16) } else { rng.below((LEN - length) / UNIT) };
        let (start, offset) = (place * UNIT, (place * UNIT) as u64);
        let way = rng.below(9);
        let mut order = self.order.lock().unwrap();
        let value = (order.len() % 255) as u8 + 1;
        order.push(Written { start, length, value });
        let data = |length: usize| {
            let mut data = Buf::zeroed(length);
            data.fill(value);
            data
        };
        let write = || self.file.write_all_at(data(length), offset);
        let begun: Pending = match way {
            0 => Box::pin(wait_for(write().submit())),
            1 => Box::pin(wait_for(write().start())),
            2 => Box::pin(wait_for(write().durable().submit())),
            3 => {
                let half = length / 2 / UNIT * UNIT;
                let many = vec![(offset, data(half)), (offset + half as u64, data(length - half))];
                Box::pin(wait_for(self.file.write_many(many).start()))
            }
            4 => {
                write().submit().detach();
                return None;
            }
            5 => {
                write().wait().unwrap();
                return None;
            }
            6 => {
                self.file.write_all_from(&data(length), offset).unwrap();
                return None;
            }
            // As a future, of which some are left to be made with their neighbours.
            _ => {
                let (file, data) = (self.file.clone(), data(length));
                let mut write: Pending = Box::pin(async move { drop(file.write_all_at(data, offset).await.unwrap()) });
                if poll_once(write.as_mut()).is_ready() {
                    return None;
                }
                write
            }
        };
        Some(begun)
    }

    async fn work(self, mut rng: Rng) {
        let mut pending = Vec::new();
        for _ in 0..20 {
            pending.extend(self.begin(&mut rng));
            match rng.below(6) {
                0 => futures::future::join_all(pending.drain(..)).await.into_iter().for_each(drop),
                1 if !pending.is_empty() => pending.swap_remove(rng.below(pending.len())).await,
                _ => {}
            }
        }
        futures::future::join_all(pending).await;
    }
}

async fn wait_for<T, E: std::fmt::Debug>(begun: impl Future<Output = Result<T, E>>) {
    drop(begun.await.unwrap());
}

/// All of them at a time, each on its executor.
fn round(nowait: &Nowait, file: &File, before: &mut [u8], rng: &mut Rng) {
    let writer = Writer { file: file.clone(), order: Arc::default() };
    let mut work = || writer.clone().work(Rng::new(rng.next()));
    let (driven, also_driven, foreign) = (work(), work(), work());
    let tasks = [work(), work()];
    let attached = rng.below(2);
    std::thread::scope(|scope| {
        scope.spawn(|| nowait::block_on(driven));
        scope.spawn(|| nowait::block_on(also_driven));
        scope.spawn(|| futures::executor::block_on(foreign));
        let runtime = Runtimes::of(nowait)[attached].multi_thread();
        let tasks = tasks.map(|task| runtime.spawn(task));
        runtime.block_on(futures::future::join_all(tasks)).into_iter().for_each(|task| task.unwrap());
    });
    file.settled().wait();
    for Written { start, length, value } in writer.order.lock().unwrap().iter() {
        before[*start..start + length].fill(*value);
    }
    let now = file.read_range(0, LEN).wait().unwrap();
    for (place, (now, right)) in now.chunks(UNIT).zip(before.chunks(UNIT)).enumerate() {
        assert!(now == right, "block {place} holds {} and not {}", now[0], right[0]);
    }
}

fn work(nowait: &Nowait, file: &File, rng: &mut Rng) {
    let (mut before, until) = (vec![0; LEN], Instant::now() + time());
    let mut rounds = 0;
    while Instant::now() < until || rounds < 3 {
        let _watchdog = Watchdog::new("overlapping writes", 60);
        round(nowait, file, &mut before, rng);
        rounds += 1;
    }
    eprintln!("{rounds} rounds");
    assert_settled(nowait);
}

fn time() -> Duration {
    match std::env::var("NOWAIT_MODEL_SECONDS") {
        Ok(text) => Duration::from_secs(text.parse().expect("NOWAIT_MODEL_SECONDS is a number")),
        Err(_) => Duration::from_millis(500),
    }
}

fn on(builder: Builder) {
    let folder = temp_dir();
    let nowait = match builder.build() {
        Ok(nowait) => nowait,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let mut rng = Rng::for_test();
    for direct in [false, true] {
        let path = folder.path().join(format!("file-{direct}"));
        std::fs::write(&path, vec![0; LEN]).unwrap();
        let file = OpenOptions::new().read(true).write(true).direct(direct).open_in(&nowait, path).wait().unwrap();
        work(&nowait, &file, &mut rng);
    }
}

#[test]
fn auto() {
    on(Nowait::builder());
}

#[test]
fn strict() {
    on(Nowait::builder().strict(true));
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
    on(Nowait::builder().engine(Engine::Pool).pool_threads_max(2));
}

#[test]
fn little_room() {
    on(Nowait::builder().write_bytes_max(32 << 10, 64 << 10));
}

#[test]
fn simulator() {
    let mut rng = Rng::for_test();
    let (nowait, file) = faulty_sim(&mut rng, LEN);
    work(&nowait, &file, &mut rng);
}
