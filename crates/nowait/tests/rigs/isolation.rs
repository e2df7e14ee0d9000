//! A device that never answers stops its own files, and no others of the same instance.

use std::future::Future;
use std::path::Path as FsPath;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::common::fuse::Stalling;
use crate::common::mounts::{self, LoopDevice};
use crate::common::{Watchdog, Way, assert_settled, at_most, child, eventually, poll_once};
use crate::promises::mix::Runtimes;
use nowait::sim::Sim;
use nowait::{Buf, Engine, File, Nowait, OpenOptions, Route};

/// More than any queue to the kernel, or pool, holds.
const HUNG: u64 = 300;
/// Behind what is written, and what the kernel may have read when a device was made of it.
pub(crate) const READS_AT: u64 = 512 << 20;

pub(crate) type Hung<'f> = Pin<Box<dyn Future<Output = ()> + Send + 'f>>;

/// Reads and writes of a file that hangs, polled once: on an executor of others, and in this
/// thread's own queue.
fn hang(file: &File) -> Vec<Hung<'_>> {
    // Pages that were read before may be cached, behind a device too.
    static READS_FROM: AtomicU64 = AtomicU64::new(READS_AT);
    let reads_from = READS_FROM.fetch_add(16 << 20, SeqCst);
    let mut hung: Vec<Hung<'_>> = Vec::new();
    for i in 0..HUNG {
        hung.push(Box::pin(async move { drop(file.read_at(Buf::zeroed(4096), reads_from + i * 4096).await) }));
        hung.push(Box::pin(async move { drop(file.write_at(Buf::zeroed(1 << 20), i << 20).await) }));
    }
    hung.iter_mut().for_each(|operation| assert!(poll_once(operation.as_mut()).is_pending()));
    hung
}

/// Other files' work meanwhile, by every way of calling.
pub(crate) fn works(nowait: &Nowait, path: &FsPath) {
    for (way, direct) in Way::ALL.into_iter().flat_map(|way| [(way, false), (way, true)]) {
        let mut options = OpenOptions::new();
        let file = way.run(options.read(true).write(true).direct(direct).open_in(nowait, path)).unwrap();
        for i in 0..40 {
            way.run(file.write_all_at(Buf::zeroed(4096), i * 8192)).unwrap();
            way.run(file.read_range((i + 1) * 4096, 4096)).unwrap();
        }
        let many = (0..40).map(|i| file.read_range(i * 4096, 4096));
        way.run_future(futures::future::join_all(many)).into_iter().for_each(|read| drop(read.unwrap()));
        // Beyond the end, where a direct write has to wait for blocks.
        let end = way.run(file.size()).unwrap();
        let many = (0..40).map(|i| file.write_all_at(Buf::zeroed(4096), end + i * 4096));
        way.run_future(futures::future::join_all(many)).into_iter().for_each(|write| drop(write.unwrap()));
        way.run(file.sync_data()).unwrap();
    }
}

#[test]
fn in_the_simulator() {
    let _watchdog = Watchdog::new("isolation in the simulator", 60);
    for (depth, route) in [(64, None), (4, Some(Route::Pool))] {
        let sim = Sim::new(1);
        sim.set_depth(depth);
        sim.create("hung", vec![0; 1 << 20]);
        sim.create("other", vec![0; 1 << 20]);
        let nowait =
            Nowait::builder().engine(Engine::Sim(sim.clone())).route(route.or(Some(Route::Pool))).build().unwrap();
        let file = OpenOptions::new().read(true).write(true).open_in(&nowait, "hung").wait().unwrap();
        sim.set_hung("hung", true);
        let hung = hang(&file);
        works(&nowait, FsPath::new("other"));
        sim.set_hung("hung", false);
        futures::executor::block_on(futures::future::join_all(hung));
        assert_settled(&nowait);
    }
}

/// Instances that never block their caller, by each engine.
fn instances() -> Vec<Nowait> {
    [Engine::Auto, Engine::Aio, Engine::Pool]
        .map(|engine| Nowait::builder().engine(engine).strict(true).build().unwrap())
        .into()
}

#[test]
fn behind_a_file_system_that_stalls() {
    let _watchdog = Watchdog::new("isolation from a file system that stalls", 120);
    let Some(mut stalling) = stalling(0) else { return };
    let dir = mounts::temp_dir();
    let other = dir.path().join("other");
    std::fs::write(&other, vec![0; 1 << 20]).unwrap();
    for direct in [false, true] {
        for nowait in instances() {
            let mut options = OpenOptions::new();
            options.read(true).write(true).direct(direct);
            let file = options.open_in(&nowait, stalling.file()).wait().unwrap();
            stalling.hang();
            let hung = hang(&file);
            works(&nowait, &other);
            stalling.go_on();
            futures::executor::block_on(futures::future::join_all(hung));
            assert_settled(&nowait);
        }
    }
}

#[test]
fn behind_a_device_that_stalls() {
    let _watchdog = Watchdog::new("isolation from a device that stalls", 120);
    let Some(mut stalling) = stalling(0) else { return };
    let device = LoopDevice::over(&stalling.file(), 512, None);
    let Some(device) = mounts::or_skip("a loop device", device) else { return };
    let dir = mounts::temp_dir();
    let other = dir.path().join("other");
    std::fs::write(&other, vec![0; 1 << 20]).unwrap();
    for nowait in instances() {
        let mut options = OpenOptions::new();
        options.read(true).write(true).direct(true);
        let file = options.open_in(&nowait, device.path()).wait().unwrap();
        stalling.hang();
        let hung = hang(&file);
        works(&nowait, &other);
        // Those that are given up have no device any more when it answers.
        drop(hung);
        works(&nowait, &other);
        stalling.go_on();
        assert_settled(&nowait);
    }
}

/// A queue that is full of what hangs, and a read of another file that is in line there, since that
/// has much under way elsewhere.
#[test]
fn what_is_in_line_behind_a_device_that_stalls() {
    let _watchdog = Watchdog::new("a line behind a device that stalls", 120);
    let (Some(mut stalling), Some(mut other)) = (stalling(0), stalling(0)) else { return };
    let device = |stalling: &Stalling| mounts::or_skip("a loop device", LoopDevice::over(&stalling.file(), 512, None));
    // Each takes 128 requests, and a queue 256.
    let full: Vec<_> = (0..3).filter_map(|_| device(&stalling)).collect();
    let Some(busy) = device(&other) else { return };
    let nowait = Nowait::builder().strict(true).build().unwrap();
    let open = |device: &LoopDevice| {
        OpenOptions::new().read(true).direct(true).open_in(&nowait, device.path()).wait().unwrap()
    };
    let (full, busy): (Vec<_>, _) = (full.iter().map(open).collect(), open(&busy));
    let read = |file: &File, i: u64| {
        let file = file.clone();
        let mut read: Hung<'static> =
            Box::pin(async move { drop(file.read_at(Buf::zeroed(4096), READS_AT + i * 4096).await.unwrap()) });
        assert!(poll_once(read.as_mut()).is_pending());
        read
    };
    for (round, driven) in [false, true].into_iter().enumerate() {
        stalling.hang();
        other.hang();
        // Pages that were read before are cached behind the devices.
        let read = |file, i| read(file, round as u64 * 10_000 + i);
        let elsewhere: Vec<_> =
            std::thread::scope(|scope| scope.spawn(|| (0..100).map(|i| read(&busy, i)).collect()).join().unwrap());
        let here = async {
            let full: Vec<_> = full.iter().flat_map(|file| (0..128).map(|i| read(file, i))).collect();
            let last = read(&busy, 100);
            other.go_on();
            last.await;
            futures::future::join_all(elsewhere).await;
            stalling.go_on();
            futures::future::join_all(full).await;
        };
        if driven {
            nowait::block_on(here)
        } else {
            futures::executor::block_on(here)
        }
        assert_settled(&nowait);
    }
}

/// Reads of a file, begun, that wait for its device: each of other pages.
fn begin_reads(file: &File, count: u64) -> Vec<Hung<'static>> {
    (0..count).map(|i| begin(read_of(file, READS_AT + (i << 20)))).collect()
}

pub(crate) fn read_of(file: &File, offset: u64) -> Hung<'static> {
    let file = file.clone();
    Box::pin(async move { drop(file.read_at(Buf::zeroed(4096), offset).await.unwrap()) })
}

fn begin(mut operation: Hung<'static>) -> Hung<'static> {
    assert!(poll_once(operation.as_mut()).is_pending());
    operation
}

/// Whether an operation ends by itself, whoever waits for it.
pub(crate) fn ends(operation: &mut Hung<'static>) -> bool {
    let until = Instant::now() + at_most(Duration::from_secs(10));
    loop {
        if poll_once(operation.as_mut()).is_ready() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn stalling(delay_ms: u64) -> Option<Stalling> {
    Stalling::or_skip(Duration::from_millis(delay_ms))
}

pub(crate) fn open_at(nowait: &Nowait, path: &FsPath, direct: bool) -> File {
    OpenOptions::new().read(true).write(true).direct(direct).open_in(nowait, path).wait().unwrap()
}

pub(crate) fn other_file() -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = mounts::temp_dir();
    let path = dir.path().join("other");
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    (dir, path)
}

/// Enough that all threads of a pool hang.
const ALL_THREADS: u64 = 100;

#[test]
fn a_slow_file_beside_one_that_hangs() {
    let _watchdog = Watchdog::new("a slow file beside one that hangs", 60);
    let (Some(mut hangs), Some(slow)) = (stalling(0), stalling(20)) else { return };
    let nowait = Nowait::builder().engine(Engine::Pool).strict(true).build().unwrap();
    let (hung, slow) = (open_at(&nowait, &hangs.file(), false), open_at(&nowait, &slow.file(), false));
    hangs.hang();
    let waiting = begin_reads(&hung, ALL_THREADS);
    futures::executor::block_on(slow.sync_data()).unwrap();
    let begun = Instant::now();
    futures::executor::block_on(futures::future::join_all(begin_reads(&slow, 100)));
    // By eight threads a quarter of a second; by eight a second, if nobody sees that one is free,
    // twelve.
    let took = begun.elapsed();
    assert!(took < at_most(Duration::from_secs(8)), "{took:?}");
    hangs.go_on();
    futures::executor::block_on(futures::future::join_all(waiting));
}

#[test]
fn a_file_that_is_busy_in_a_ring_and_needs_a_thread() {
    let _watchdog = Watchdog::new("a busy file that needs a thread", 60);
    let (Some(mut hangs), Some(slow)) = (stalling(0), stalling(10)) else { return };
    let Some(device) = mounts::or_skip("a loop device", LoopDevice::over(&slow.file(), 512, None)) else { return };
    let nowait = Nowait::builder().strict(true).build().unwrap();
    let (hung, busy) = (open_at(&nowait, &hangs.file(), false), open_at(&nowait, device.path(), true));
    hangs.hang();
    let waiting = begin_reads(&hung, ALL_THREADS);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let reads = async |first: u64| {
                let mut at = first;
                while !stop.load(SeqCst) {
                    drop(busy.read_range(at % 100_000 * 4096, 4096).await.unwrap());
                    at += 3777;
                }
            };
            futures::executor::block_on(futures::future::join_all((0..32).map(reads)));
        });
        let file = busy.clone();
        let mut large: Hung<'static> = Box::pin(async move { drop(file.read_range(READS_AT, 4 << 20).await.unwrap()) });
        let ended = ends(&mut large);
        stop.store(true, SeqCst);
        assert!(ended, "a read that is too large for a ring waits for the reads of another file");
    });
    hangs.go_on();
    futures::executor::block_on(futures::future::join_all(waiting));
}

#[test]
fn a_pool_thread_that_lets_a_write_in_and_hangs() {
    let _watchdog = Watchdog::new("a pool thread that lets a write in", 60);
    let (Some(mut hangs), Some(mut slow)) = (stalling(0), stalling(20)) else { return };
    let Some(device) = mounts::or_skip("a loop device", LoopDevice::over(&slow.file(), 512, None)) else { return };
    let nowait = Nowait::builder().strict(true).build().unwrap();
    let (hung, file) = (open_at(&nowait, &hangs.file(), false), open_at(&nowait, device.path(), true));
    let write = |offset: u64, length: usize| -> Hung<'static> {
        let file = file.clone();
        Box::pin(async move { drop(file.write_all_at(Buf::zeroed(length), offset).await.unwrap()) })
    };
    slow.hang();
    hangs.hang();
    // Not whole blocks: a thread's, and it has the file to itself. What overlaps waits for it.
    let mut first = begin(write(READS_AT + 10, 100));
    let waiting = begin_reads(&hung, 2 * ALL_THREADS);
    let mut second = begin(write(READS_AT, 4096));
    slow.go_on();
    assert!(ends(&mut first) && ends(&mut second), "a ring's request ends when the thread that submitted it wakes");
    hangs.go_on();
    futures::executor::block_on(futures::future::join_all(waiting));
}

#[test]
fn a_submission_that_sleeps_holds_up_no_write_of_others() {
    let _watchdog = Watchdog::new("a submission that sleeps", 60);
    let Some(mut hangs) = stalling(0) else { return };
    let Some(device) = mounts::or_skip("a loop device", LoopDevice::over(&hangs.file(), 512, None)) else { return };
    // libaio waits for a place in the device's queue.
    let Ok(nowait) = Nowait::builder().engine(Engine::Aio).build() else { return eprintln!("skipped: no libaio") };
    let (_dir, other) = other_file();
    let (hung, other) = (open_at(&nowait, device.path(), true), open_at(&nowait, &other, false));
    hangs.hang();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let write = |i: u64| hung.write_all_at(Buf::zeroed(4096), READS_AT + (i << 16));
            drop(futures::executor::block_on(futures::future::join_all((0..300).map(write))));
        });
        // The device takes 128.
        eventually(|| nowait.stats().started >= 129);
        let mut write: Hung<'static> =
            Box::pin(async move { drop(other.write_all_at(Buf::zeroed(4096), 2 << 20).await.unwrap()) });
        let ended = ends(&mut write);
        hangs.go_on();
        assert!(ended);
    });
}

/// Symptom: the ninth read of 1 MiB slept in `io_submit`: the kernel splits each into many requests.
#[test]
fn large_transfers_do_not_overfill_a_device() {
    let _watchdog = Watchdog::new("large transfers of a device that hangs", 120);
    let Some(mut hangs) = stalling(0) else { return };
    let Some(device) = mounts::or_skip("a loop device", LoopDevice::over(&hangs.file(), 512, None)) else { return };
    let Ok(nowait) = Nowait::builder().engine(Engine::Aio).build() else { return eprintln!("skipped: no libaio") };
    let hung = open_at(&nowait, device.path(), true);
    hangs.hang();
    let read = move |i: u64| -> Hung<'static> {
        let file = hung.clone();
        Box::pin(async move { drop(file.read_range(i << 20, 1 << 20).await.unwrap()) })
    };
    let (begun, waiting) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || begun.send((0..90).map(|i| begin(read(i))).collect::<Vec<_>>()).is_ok());
    let polled = waiting.recv_timeout(at_most(Duration::from_secs(10)));
    hangs.go_on();
    assert!(thread.join().unwrap());
    futures::executor::block_on(futures::future::join_all(polled.expect("a submission sleeps")));
}

/// Time for twenty small writes of a healthy file, each with a sync.
fn synced_writes(file: &File) -> Duration {
    let begun = Instant::now();
    for _ in 0..20 {
        futures::executor::block_on(file.write_all_at(vec![1; 4096], 0)).unwrap();
        futures::executor::block_on(file.sync_data()).unwrap();
    }
    begun.elapsed()
}

#[test]
fn a_slow_device_takes_no_thread_of_another() {
    let _watchdog = Watchdog::new("a slow device beside a healthy one", 90);
    // Less than the time after which a pool takes its threads for hung.
    let Some(slow) = stalling(900) else { return };
    let (_dir, path) = other_file();
    for nowait in instances() {
        let (slow, healthy) = (open_at(&nowait, &slow.file(), false), open_at(&nowait, &path, false));
        let alone = synced_writes(&healthy);
        let reads = begin_reads(&slow, 2 * ALL_THREADS);
        let took = synced_writes(&healthy);
        // Behind its reads, each of the 20 would wait 0.9 s and more.
        assert!(took < at_most(Duration::from_secs(8)) + 3 * alone, "{took:?}, {alone:?} alone");
        drop(reads);
    }
}

#[test]
fn files_of_a_device_that_hangs_take_no_thread_of_another() {
    let _watchdog = Watchdog::new("320 files that hang", 90);
    let Some(mut hangs) = stalling(0) else { return };
    let (_dir, path) = other_file();
    for nowait in instances() {
        let files: Vec<_> = (0..320).map(|_| open_at(&nowait, &hangs.file(), false)).collect();
        let healthy = open_at(&nowait, &path, false);
        let alone = synced_writes(&healthy);
        hangs.hang();
        static AT: AtomicU64 = AtomicU64::new(READS_AT);
        let of = |file: &File| begin(read_of(file, AT.fetch_add(1 << 20, SeqCst) % (1 << 30)));
        let waiting: Vec<_> = files.iter().map(of).collect();
        let took = synced_writes(&healthy);
        // A pool whose threads all hang lets others come after a second each.
        assert!(took < at_most(Duration::from_secs(8)) + 3 * alone, "{took:?}, {alone:?} alone");
        hangs.go_on();
        futures::executor::block_on(futures::future::join_all(waiting));
    }
}

/// Threads that read a healthy file with direct I/O, each by futures of its own, and count.
struct Readers {
    stop: Arc<AtomicBool>,
    counts: Vec<Arc<AtomicU64>>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Readers {
    fn start(nowait: &Nowait, path: &FsPath, threads: usize) -> Readers {
        let stop = Arc::new(AtomicBool::new(false));
        let counts: Vec<_> = (0..threads).map(|_| Arc::new(AtomicU64::new(0))).collect();
        let start = |count: &Arc<AtomicU64>| {
            let (file, stop, count) = (open_at(nowait, path, true), stop.clone(), count.clone());
            std::thread::spawn(move || {
                while !stop.load(SeqCst) {
                    let at = count.fetch_add(1, SeqCst) % 256 * 4096;
                    drop(futures::executor::block_on(file.read_range(at, 4096)).unwrap());
                }
            })
        };
        let threads = counts.iter().map(start).collect();
        Readers { stop, counts, threads }
    }

    /// Every one of them makes progress.
    fn go_on(&self) -> bool {
        self.counts.iter().all(|count| {
            let before = count.load(SeqCst);
            eventually(|| count.load(SeqCst) > before + 10)
        })
    }

    fn end(self) {
        self.stop.store(true, SeqCst);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// A submission of a buffered read sleeps for a place in its device's queue, with the ring's lock in
/// the kernel.
#[test]
fn more_buffered_reads_than_a_device_holds() {
    let _watchdog = Watchdog::new("more buffered reads than a device holds", 60);
    let Some(mut hangs) = stalling(0) else { return };
    let Some(device) = mounts::or_skip("a loop device", LoopDevice::over(&hangs.file(), 512, None)) else { return };
    let (_dir, path) = other_file();
    let nowait = Nowait::builder().strict(true).build().unwrap();
    let hung = OpenOptions::new().read(true).open_in(&nowait, device.path()).wait().unwrap();
    hung.advise(0, 0, nowait::Advice::Random).wait().unwrap();
    let readers = Readers::start(&nowait, &path, 6);
    assert!(readers.go_on());
    hangs.hang();
    // It takes 128. They are polled here, by an executor of others.
    let waiting: Vec<_> = (0..400).map(|i| begin(read_of(&hung, READS_AT + (i << 20)))).collect();
    assert!(readers.go_on(), "a device that hangs stops reads of another");
    let mut own: Hung<'_> = Box::pin(async {
        let reads = (400..500).map(|i| begin(read_of(&hung, READS_AT + (i << 20) % (500 << 20))));
        drop(reads.collect::<Vec<_>>());
    });
    assert!(poll_once(own.as_mut()).is_ready());
    assert!(readers.go_on());
    readers.end();
    hangs.go_on();
    futures::executor::block_on(futures::future::join_all(waiting));
}

/// The same by tasks of tokio, attached or not: neither worker sleeps.
#[test]
fn more_buffered_reads_than_a_device_holds_by_tasks() {
    let _watchdog = Watchdog::new("more buffered reads than a device holds, by tasks", 120);
    let Some(mut hangs) = stalling(0) else { return };
    let Some(device) = mounts::or_skip("a loop device", LoopDevice::over(&hangs.file(), 512, None)) else { return };
    let (_dir, path) = other_file();
    let nowait = Nowait::builder().strict(true).build().unwrap();
    let (hung, healthy) = (open_at(&nowait, device.path(), false), open_at(&nowait, &path, true));
    hung.advise(0, 0, nowait::Advice::Random).wait().unwrap();
    for (round, runtimes) in Runtimes::of(&nowait).into_iter().enumerate() {
        let runtime = runtimes.multi_thread();
        hangs.hang();
        let offset = |i: u64| READS_AT + (i << 20) + ((round as u64) << 16);
        let waiting: Vec<_> = (0..400).map(|i| runtime.spawn(read_of(&hung, offset(i)))).collect();
        let read = |i: u64| runtime.spawn(read_of(&healthy, i % 256 * 4096));
        let reads = async { futures::future::join_all((0..300).map(read)).await };
        runtime.block_on(reads).into_iter().for_each(|read| read.unwrap());
        hangs.go_on();
        runtime.block_on(futures::future::join_all(waiting)).into_iter().for_each(|read| read.unwrap());
    }
    assert_settled(&nowait);
}

/// Reads of a file, each begun by the callback of the one before it.
struct Chain {
    file: File,
    /// How many it reads, and from where.
    pages: u64,
    from: u64,
    read: AtomicU64,
    ends: AtomicBool,
}

impl Chain {
    fn start(file: File, (pages, from): (u64, u64), count: u64) -> Arc<Chain> {
        let chain = Arc::new(Chain { file, pages, from, read: AtomicU64::new(0), ends: AtomicBool::new(false) });
        (0..count).for_each(|_| chain.clone().go_on());
        chain
    }

    fn go_on(self: Arc<Self>) {
        /// Each page once, far from the last one.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let page = NEXT.fetch_add(40_503, SeqCst) % self.pages;
        self.file.clone().read_range(self.from + page * 4096, 4096).on_complete(move |page| {
            drop(page.unwrap());
            self.read.fetch_add(1, SeqCst);
            if !self.ends.load(SeqCst) {
                self.go_on();
            }
        });
    }

    fn reads_more(&self, count: u64) -> bool {
        let before = self.read.load(SeqCst);
        eventually(|| self.read.load(SeqCst) > before + count)
    }
}

/// Symptom: a thread that called back submitted the next read of a device that hung, and slept there;
/// no future and no callback of other files was served.
#[test]
fn callbacks_that_begin_reads_of_a_device_that_stalls() {
    let _watchdog = Watchdog::new("callbacks beside a device that stalls", 120);
    let Some(mut hangs) = stalling(0) else { return };
    let Some(device) = mounts::or_skip("a loop device", LoopDevice::over(&hangs.file(), 512, None)) else { return };
    let (_dir, path) = other_file();
    for (strict, direct) in [(false, false), (true, false), (true, true)] {
        let nowait = Nowait::builder().strict(strict).build().unwrap();
        let hung = open_at(&nowait, device.path(), direct);
        hung.advise(0, 0, nowait::Advice::Random).wait().unwrap();
        // More than the device takes.
        let hung = Chain::start(hung, (1 << 17, READS_AT), 300);
        let healthy = Chain::start(open_at(&nowait, &path, true), (256, 0), 4);
        let readers = Readers::start(&nowait, &path, 6);
        let go_on = || readers.go_on() && healthy.reads_more(10);
        assert!(go_on() && hung.reads_more(1000));
        hangs.hang();
        assert!(go_on(), "a device that hangs stops others: strict {strict}, direct {direct}");
        works(&nowait, &path);
        assert!(go_on());
        [&hung, &healthy].iter().for_each(|chain| chain.ends.store(true, SeqCst));
        hangs.go_on();
        readers.end();
        assert_settled(&nowait);
    }
}

#[test]
fn what_is_left_of_other_files_is_let_go() {
    child::play("leftovers");
}

fn leave_files() {
    let _watchdog = Watchdog::new("leftovers of other files", 60);
    let Some(mut hangs) = stalling(0) else { return };
    let Some(device) = mounts::or_skip("a loop device", LoopDevice::over(&hangs.file(), 512, None)) else { return };
    let nowait = Nowait::builder().strict(true).build().unwrap();
    let (_dir, other) = other_file();
    let hung = open_at(&nowait, device.path(), true);
    hangs.hang();
    // More than the device takes: the rest is with threads.
    let waiting: Vec<_> = (0..400).map(|i| begin(read_of(&hung, READS_AT + i * 4096))).collect();
    assert!(eventually(|| nowait.stats().handed_on > 0));
    for i in 0..50 {
        let file = open_at(&nowait, &other, true);
        assert!(crate::common::descriptors_of(&other) > 0);
        let _ = poll_once(read_of(&file, i * 4096).as_mut());
    }
    // Others may come meanwhile: those of the threads that notice completions.
    assert!(
        eventually(|| crate::common::descriptors_of(&other) == 0),
        "{} are open",
        crate::common::descriptors_of(&other)
    );
    hangs.go_on();
    futures::executor::block_on(futures::future::join_all(waiting));
}

#[test]
fn what_a_thread_of_the_pool_finds_abandoned_before_it_hangs() {
    let _watchdog = Watchdog::new("abandoned reads before one that hangs", 60);
    let (Some(mut first), Some(mut second)) = (stalling(0), stalling(0)) else { return };
    let nowait = Nowait::builder().engine(Engine::Pool).strict(true).pool_threads_max(1).build().unwrap();
    let (_dir, path) = other_file();
    let [first_file, second_file] = [&first, &second].map(|stalling| open_at(&nowait, &stalling.file(), false));
    let other = open_at(&nowait, &path, true);
    first.hang();
    second.hang();
    let before = begin(read_of(&first_file, READS_AT));
    // Their own device may answer within the poll.
    (0..10).for_each(|i| _ = poll_once(read_of(&other, i * 4096).as_mut()));
    let after = begin(read_of(&second_file, READS_AT));
    first.go_on();
    let all_but_one_ended = || nowait.stats().started == nowait.stats().ended() + 1;
    assert!(eventually(all_but_one_ended), "they wait for another file: {:?}", nowait.stats());
    second.go_on();
    futures::executor::block_on(futures::future::join(before, after));
}

#[test]
fn an_accepted_write_of_an_instance_that_goes() {
    let _watchdog = Watchdog::new("an accepted write of an instance that goes", 60);
    let Some(mut hangs) = stalling(0) else { return };
    let (_dir, path) = other_file();
    let nowait = Nowait::builder().engine(Engine::Pool).strict(true).build().unwrap();
    let (hung, other) = (open_at(&nowait, &hangs.file(), false), open_at(&nowait, &path, false));
    hangs.hang();
    let waiting = begin_reads(&hung, ALL_THREADS);
    drop(other.try_write_at(vec![1; 4096], 0).unwrap());
    drop((waiting, hung, other, nowait));
    assert!(eventually(|| std::fs::read(&path).unwrap()[0] == 1), "it waits for another file");
}

#[test]
fn a_relief_that_waits_in_its_turn() {
    child::play("relief");
}

/// A sync waits for a durable direct write; the thread of the pool that would wait lets another
/// come.
fn relieve_and_wait() {
    let _watchdog = Watchdog::new("a relief that waits", 60);
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    std::panic::set_hook(Box::new(|_| _ = PANICS.fetch_add(1, SeqCst)));
    let (Some(mut hangs), Some(mut slow)) = (stalling(0), stalling(0)) else { return };
    let Some(device) = mounts::or_skip("a loop device", LoopDevice::over(&slow.file(), 512, None)) else { return };
    let nowait = Nowait::builder().strict(true).build().unwrap();
    let (hung, file) = (open_at(&nowait, &hangs.file(), false), open_at(&nowait, device.path(), true));
    slow.hang();
    hangs.hang();
    let writer = file.clone();
    let durable =
        begin(Box::pin(async move { drop(writer.write_all_at(Buf::zeroed(4096), READS_AT).durable().await) }));
    let waiting = begin_reads(&hung, ALL_THREADS);
    let sync = begin(Box::pin(async move { drop(file.sync_data().await) }));
    // It is a relief's after a second. The others then have nothing to do, and go after five.
    std::thread::sleep(Duration::from_secs(3));
    hangs.go_on();
    futures::executor::block_on(futures::future::join_all(waiting));
    std::thread::sleep(Duration::from_secs(6));
    slow.go_on();
    futures::executor::block_on(futures::future::join(durable, sync));
    assert_eq!(PANICS.load(SeqCst), 0, "threads are counted wrongly");
}

#[test]
fn a_watcher_ends_with_its_queues_whoever_asks_for_help() {
    child::play("watchers");
}

fn make_instances() {
    let _watchdog = Watchdog::new("instances that go", 120);
    let comm = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    let tasks = || std::fs::read_dir("/proc/self/task").unwrap().flatten().map(comm);
    let watchers = || tasks().filter(|name| name.starts_with("nowait-watch")).count();
    let (_dir, path) = other_file();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Polled by two threads: each asks for help.
            let nowait = Nowait::builder().build().unwrap();
            let file = open_at(&nowait, &path, true);
            while !stop.load(SeqCst) {
                let mut read = read_of(&file, 4096);
                if poll_once(read.as_mut()).is_pending() {
                    std::thread::scope(|inner| drop(inner.spawn(|| futures::executor::block_on(read))));
                }
            }
        });
        for _ in 0..500 {
            let nowait = Nowait::builder().build().unwrap();
            futures::executor::block_on(read_of(&open_at(&nowait, &path, true), 8192));
        }
        stop.store(true, SeqCst);
    });
    assert!(eventually(|| watchers() == 0), "{} watchers are left", watchers());
}

#[test]
fn child() {
    match child::role().as_deref() {
        None => {}
        Some("leftovers") => leave_files(),
        Some("relief") => relieve_and_wait(),
        Some("watchers") => make_instances(),
        Some(other) => unreachable!("{other}"),
    }
}
