//! Instances, files, runtimes and threads that come and go at random, with operations in flight: each
//! operation that somebody waits for ends, with the right bytes, and nothing is left behind.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::common::mounts::temp_dir;
use crate::common::rng::Rng;
use crate::common::{Watchdog, child, contents, descriptors_of, eventually, expected, poll_once, resources};
use crate::promises::mix::Runtimes;
use nowait::{Advice, Buf, Engine, File, Nowait, OpenOptions, Result, Route, Started};
use tokio::runtime;

const PAGE: usize = 4096;
/// Reads end here, and writes begin here: no test reads what another writes.
const READ_BYTES: usize = 2 << 20;
const ALL_BYTES: usize = 2 * READ_BYTES;

/// A read that another thread waits for.
struct Left {
    read: Started<Result<Buf>>,
    offset: usize,
    length: usize,
}

#[derive(Clone)]
struct Churn {
    bytes: Arc<[u8]>,
    send: mpsc::Sender<Left>,
    operations: Arc<AtomicU64>,
}

fn time() -> Duration {
    match std::env::var("NOWAIT_MODEL_SECONDS") {
        Ok(text) => Duration::from_secs(text.parse().expect("NOWAIT_MODEL_SECONDS is a number")),
        Err(_) => Duration::from_secs(3),
    }
}

impl Churn {
    fn is_right(&self, page: &[u8], offset: usize, length: usize) {
        assert_eq!(page, expected(&self.bytes, offset as u64, length), "{length} bytes at {offset}");
    }

    /// One operation at random. It may be left to another thread, or given up.
    async fn operate(&self, file: &File, rng: &mut Rng) {
        self.operations.fetch_add(1, SeqCst);
        let (offset, length) = (rng.below(READ_BYTES - 4 * PAGE), 1 + rng.below(2 * PAGE));
        let behind = (READ_BYTES + offset) as u64;
        let mut read = file.read_range(offset as u64, length);
        match rng.below(12) {
            0 => drop(self.send.send(Left { read: read.submit(), offset, length })),
            1 => {
                let mut read = read.start();
                if futures::poll!(&mut read).is_pending() {
                    drop(self.send.send(Left { read, offset, length }));
                }
            }
            2 => drop(read.submit()),
            3 => drop(futures::poll!(&mut read)),
            4 => self.is_right(&read.await.unwrap(), offset, length),
            5 => self.is_right(&read.wait().unwrap(), offset, length),
            6 => drop(poll_once(Box::pin(file.write_all_at(vec![1; length], behind)).as_mut())),
            7 => drop(file.write_all_at(vec![1; length], behind).await.unwrap()),
            8 if rng.below(10) == 0 => file.write_all_at(vec![1; PAGE], behind).durable().submit().detach(),
            8 if rng.below(4) == 0 => file.sync_data().await.unwrap(),
            9 => {
                let gathered = file.gather([(offset as u64, length), (offset as u64 + 9000, 100)]).await.unwrap();
                self.is_right(&gathered.into_buffer()[..length], offset, length);
            }
            10 => drop(file.gather([(offset as u64, length), (behind, 100)]).start()),
            _ => file.advise(0, 0, Advice::DontNeed).await.unwrap(),
        }
    }

    async fn work(self, files: Vec<File>, mut rng: Rng, count: usize) {
        for _ in 0..count {
            self.operate(&files[rng.below(files.len())], &mut rng).await;
            if rng.below(4) == 0 {
                tokio::task::yield_now().await;
            }
        }
    }

    /// A runtime that ends in the middle of its tasks.
    fn run(&self, nowait: &Nowait, files: &[File], rng: &mut Rng) {
        let runtimes = &Runtimes::of(nowait)[rng.below(2)];
        let is_single = rng.below(2) == 0;
        let mut builder = match is_single {
            true => runtime::Builder::new_current_thread(),
            false => runtime::Builder::new_multi_thread(),
        };
        let runtime = runtimes.make(builder.worker_threads(1 + rng.below(3)).enable_all());
        for _ in 0..1 + rng.below(6) {
            runtime.spawn(self.clone().work(files.to_vec(), Rng::new(rng.next()), 10_000));
        }
        let length = Duration::from_millis(rng.below(20) as u64);
        match is_single {
            true => runtime.block_on(async { tokio::time::sleep(length).await }),
            false => std::thread::sleep(length),
        }
        match rng.below(3) {
            0 => drop(runtime),
            1 => runtime.shutdown_background(),
            _ => runtime.shutdown_timeout(Duration::from_millis(5)),
        }
    }

    /// A thread that drives its own futures, and ends; the test may go on before.
    fn drive(&self, files: &[File], rng: &mut Rng) -> std::thread::JoinHandle<()> {
        let (churn, files, mut rng) = (self.clone(), files.to_vec(), Rng::new(rng.next()));
        std::thread::spawn(move || {
            for _ in 0..1 + rng.below(4) {
                let count = rng.below(40);
                let works =
                    (0..1 + rng.below(4)).map(|_| churn.clone().work(files.clone(), Rng::new(rng.next()), count));
                let works: Vec<_> = works.collect();
                nowait::block_on(futures::future::join_all(works));
            }
        })
    }
}

fn instance(rng: &mut Rng) -> Nowait {
    let builder = Nowait::builder().strict(rng.below(3) == 0);
    let builder = match rng.below(5) {
        0 => builder.engine(Engine::Pool).pool_threads_max(1 + rng.below(4)),
        1 => builder.engine(Engine::Aio),
        2 => builder.route(Some([Route::Ring, Route::Pool][rng.below(2)])),
        _ => builder,
    };
    // Where io_uring is refused, a ring cannot be forced.
    builder.build().unwrap_or_else(|_| Nowait::builder().build().unwrap())
}

fn open(nowait: &Nowait, path: &Path, direct: bool) -> File {
    OpenOptions::new().read(true).write(true).direct(direct).open_in(nowait, path).wait().unwrap()
}

#[test]
fn instances_files_runtimes_and_threads_come_and_go() {
    child::play("churn");
}

/// Threads that wait for what others have left, each in its way.
fn waiters(receive: mpsc::Receiver<Left>, churn: &Churn, waited: &Arc<AtomicU64>) -> Vec<std::thread::JoinHandle<()>> {
    let receive = Arc::new(Mutex::new(receive));
    let bytes = churn.bytes.clone();
    let wait = |way: usize| {
        let (receive, bytes, waited) = (receive.clone(), bytes.clone(), waited.clone());
        std::thread::spawn(move || {
            loop {
                let Ok(Left { read, offset, length }) = receive.lock().unwrap().recv() else { return };
                let page = match way {
                    0 => read.wait(),
                    1 => futures::executor::block_on(read),
                    _ => nowait::block_on(read),
                };
                assert_eq!(page.unwrap()[..], *expected(&bytes, offset as u64, length), "{length} at {offset}");
                waited.fetch_add(1, SeqCst);
            }
        })
    };
    (0..3).map(wait).collect()
}

fn come_and_go(rng: &mut Rng, path: &Path, bytes: &Arc<[u8]>, time: Duration) {
    let (send, receive) = mpsc::channel();
    let (operations, waited) = (Arc::default(), Arc::default());
    let churn = Churn { bytes: bytes.clone(), send, operations };
    let waiters = waiters(receive, &churn, &waited);
    let (mut threads, mut count) = (Vec::new(), [0; 3]);
    let (until, kept) = (Instant::now() + time, Nowait::builder().build().unwrap());
    while Instant::now() < until {
        // Dropped with what they have in flight.
        let nowait = if rng.below(2) == 0 { kept.clone() } else { instance(rng) };
        let files: Vec<File> = (0..1 + rng.below(3)).map(|i| open(&nowait, path, i == 1)).collect();
        count[0] += 1;
        for _ in 0..rng.below(3) {
            if rng.below(2) == 0 {
                churn.run(&nowait, &files, rng);
                count[1] += 1;
            } else {
                threads.push(churn.drive(&files, rng));
                count[2] += 1;
            }
        }
        if rng.below(2) == 0 {
            threads.drain(..).for_each(|thread| thread.join().unwrap());
        }
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let operations = churn.operations.clone();
    drop(churn);
    waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    kept.drain();
    assert!(eventually(|| kept.stats().started == kept.stats().ended()), "{:?}", kept.stats());
    let [instances, runtimes, threads] = count;
    let (operations, waited) = (operations.load(SeqCst), waited.load(SeqCst));
    eprintln!(
        "{instances} instances, {runtimes} runtimes, {threads} threads, {operations} operations, {waited} waited for"
    );
    assert!(waited > 0);
}

/// Lists the process's descriptors and threads.
fn open_now() -> Vec<String> {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten().map(|fd| std::fs::read_link(fd.path()));
    let names = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = names.map(|task| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default());
    links.flatten().map(|link| link.display().to_string()).chain(names).collect()
}

#[test]
fn child() {
    let Some(_) = child::role() else { return };
    let (time, mut rng, dir) = (time(), Rng::for_test(), temp_dir());
    let _watchdog = Watchdog::new("churn", 60 + time.as_secs());
    let (path, bytes) = (dir.path().join("file"), contents(ALL_BYTES, 7).into());
    std::fs::write(&path, &bytes).unwrap();
    come_and_go(&mut rng, &path, &bytes, Duration::from_millis(100));
    let nothing_open = || descriptors_of(&path) == 0;
    assert!(eventually(nothing_open));
    let before = resources();
    come_and_go(&mut rng, &path, &bytes, time);
    assert!(eventually(nothing_open), "{} descriptors of the file", descriptors_of(&path));
    // Threads of pools stay for seconds. Those of the process stay, and some may have come since.
    const SERVICE: usize = 8;
    let kept = || resources().0 <= before.0 + SERVICE && resources().1 <= before.1 + SERVICE;
    assert!(eventually(kept), "descriptors and threads: {before:?} before, {:?} after: {:?}", resources(), open_now());
}
