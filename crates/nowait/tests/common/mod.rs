//! Shared by the tests: contents to check against, places to put files, a watchdog, children, one
//! poll at a time.

// Each test binary uses its own part of this.
#![allow(dead_code)]

pub(crate) mod child;
#[cfg(target_os = "linux")]
pub(crate) mod cold;
#[cfg(not(target_os = "linux"))]
#[path = "cold_elsewhere.rs"]
pub(crate) mod cold;
pub(crate) mod errno;
#[cfg(target_os = "linux")]
pub(crate) mod fuse;
#[cfg(target_os = "linux")]
pub(crate) mod mounts;
#[cfg(not(target_os = "linux"))]
#[path = "mounts_elsewhere.rs"]
pub(crate) mod mounts;
pub(crate) mod rng;
mod wine;

use std::future::Future;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use nowait::sim::{Faults, Sim};
use nowait::{Buf, Engine, ErrorKind, File, Nowait, OpenOptions, Operation, Route, Started};
use rng::Rng;
use tempfile::TempDir;

#[allow(unused_imports)] // Not every test binary meets what Wine lacks.
pub(crate) use self::wine::is_lacking_in_wine;

const PAGE: usize = 4096;

/// Bytes that tell a wrong offset: no 8 of them repeat.
pub(crate) fn contents(len: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| rng.next().to_le_bytes()).collect();
    bytes.truncate(len);
    bytes
}

/// Returns what a read of `len` bytes from `offset` gives: the part that exists.
pub(crate) fn expected(contents: &[u8], offset: u64, len: usize) -> &[u8] {
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(contents.len());
    let end = start.saturating_add(len).min(contents.len());
    &contents[start..end]
}

/// An instance on a simulated disk.
pub(crate) fn on(sim: &Sim) -> Nowait {
    Nowait::builder().engine(Engine::Sim(sim.clone())).build().unwrap()
}

/// Opens a file for reading on an instance.
pub(crate) fn open(nowait: &Nowait, path: &Path) -> File {
    OpenOptions::new().read(true).open_in(nowait, path).wait().unwrap()
}

/// Opens a file for reading and writing on an instance.
pub(crate) fn writable(nowait: &Nowait, path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open_in(nowait, path).wait().unwrap()
}

/// Who waits for an operation: an executor that knows nothing of us, its caller, our own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Awaited,
    Waited,
    Driven,
}

impl Way {
    pub(crate) const ALL: [Way; 3] = [Way::Awaited, Way::Waited, Way::Driven];

    pub(crate) fn run<'f, T>(self, operation: impl Into<Operation<'f, T>>) -> T {
        let operation = operation.into();
        match self {
            Way::Waited => operation.wait(),
            way => way.run_future(operation),
        }
    }

    /// For what has begun.
    pub(crate) fn end<T>(self, started: Started<T>) -> T {
        match self {
            Way::Waited => started.wait(),
            way => way.run_future(started),
        }
    }

    /// For what can only be awaited.
    pub(crate) fn run_future<F: Future>(self, future: F) -> F::Output {
        match self {
            Way::Awaited | Way::Waited => futures::executor::block_on(future),
            Way::Driven => nowait::block_on(future),
        }
    }
}

/// Overwrites bytes of a file, and nothing else of it.
pub(crate) fn overwrite(path: &Path, offset: u64, bytes: &[u8]) {
    use std::io::{Seek as _, SeekFrom};
    let mut file = std::fs::File::options().write(true).open(path).unwrap();
    file.seek(SeekFrom::Start(offset)).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
}

/// Returns the number after `field` at the start of a line, in a file of `/proc`. Prints `skipped:` and
/// returns None if there is no such file.
pub(crate) fn counted_by_system(file: &str, field: &str) -> Option<u64> {
    match std::fs::read_to_string(file) {
        Ok(text) => {
            let number = text.lines().find_map(|line| line.strip_prefix(field)?.split_whitespace().next());
            Some(number.unwrap().parse().unwrap())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: bounds on counters of {file}: no such file");
            None
        }
        Err(error) => panic!("{file}: {error}"),
    }
}

/// Applies a write to a file's contents.
pub(crate) fn put(contents: &mut Vec<u8>, offset: u64, data: &[u8]) {
    if !data.is_empty() {
        let start = offset as usize;
        contents.resize(contents.len().max(start + data.len()), 0);
        contents[start..start + data.len()].copy_from_slice(data);
    }
}

/// How much of a write is in the file that was dropped before it was ready: none, its first bytes,
/// or all; `now` is what is there where `old` was and `new` was to be. With `pages`, only whole
/// pages of the file. None: it is something else.
pub(crate) fn kept_of_dropped(old: &[u8], new: &[u8], now: &[u8], offset: u64, pages: bool) -> Option<usize> {
    let first = now.iter().zip(new).take_while(|(a, b)| a == b).count();
    let last = now.iter().rev().zip(old.iter().rev()).take_while(|(a, b)| a == b).count();
    // The most of it, where bytes that are the same leave a choice.
    (now.len() - last..=first).rev().find(|k| !pages || *k == 0 || *k == new.len() || (offset as usize + k) % 4096 == 0)
}

/// A file in a folder of its own, and its contents.
pub(crate) struct Sample {
    pub(crate) path: PathBuf,
    pub(crate) bytes: Vec<u8>,
    _dir: TempDir,
}

impl Sample {
    pub(crate) fn new(len: usize) -> Sample {
        Sample::made(mounts::temp_dir(), len)
    }

    /// Returns a sample that tasks may keep. (`tools/sanitizers/leaks` names this function.)
    #[allow(dead_code)] // Not every test binary has tasks.
    #[inline(never)]
    pub(crate) fn leaked(len: usize) -> &'static Sample {
        Box::leak(Box::new(Sample::new(len)))
    }

    /// On another file system than the others' one.
    #[allow(dead_code)] // Not every test binary mounts one.
    pub(crate) fn new_in(folder: &Path, len: usize) -> Sample {
        Sample::made(tempfile::tempdir_in(folder).unwrap(), len)
    }

    fn made(dir: TempDir, len: usize) -> Sample {
        let path = dir.path().join("sample");
        let bytes = contents(len, 7);
        std::fs::write(&path, &bytes).unwrap();
        Sample { path, bytes, _dir: dir }
    }

    /// Drops the file's pages from the cache.
    pub(crate) fn cool(&self) -> &Sample {
        cold::drop_pages(&self.path);
        self
    }

    pub(crate) fn expected(&self, offset: u64, len: usize) -> &[u8] {
        expected(&self.bytes, offset, len)
    }

    pub(crate) fn open(&self, nowait: &Nowait) -> File {
        open(nowait, &self.path)
    }
}

/// Whether a file's file system takes `RWF_NOWAIT`. Where it does not (tmpfs, overlayfs, FUSE), a
/// ring would use a kernel worker, and a thread of ours makes the call.
#[cfg(target_os = "linux")]
pub(crate) fn takes_attempts(path: &Path) -> bool {
    let file = std::fs::File::open(path).unwrap();
    let mut byte = [0];
    let mut buffers = [std::io::IoSliceMut::new(&mut byte)];
    let read = rustix::io::preadv2(&file, &mut buffers, 0, rustix::io::ReadWriteFlags::NOWAIT);
    read != Err(rustix::io::Errno::OPNOTSUPP)
}

/// Other systems have no non-blocking attempts.
#[cfg(not(target_os = "linux"))]
pub(crate) fn takes_attempts(_: &Path) -> bool {
    false
}

/// How much slower than the machines that bounds were chosen on this one is: an interpreted
/// processor, some 10 times.
fn slowness() -> f64 {
    match std::env::var("NOWAIT_TEST_SLOWNESS") {
        Ok(factor) => factor.parse().expect("NOWAIT_TEST_SLOWNESS is a number"),
        Err(_) => 1.0,
    }
}

/// Whether this machine is so slow that time tells nothing: neither what is cached nor what a
/// device did.
pub(crate) fn is_slow() -> bool {
    slowness() > 1.0
}

/// Whether a test that takes so many bytes can be run; says so where not.
#[cfg(target_os = "linux")]
pub(crate) fn has_memory(bytes: u64) -> bool {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let field = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB"));
    let available = field.unwrap().parse::<u64>().unwrap() << 10;
    if available < bytes {
        eprintln!("skipped: it takes {} MiB of memory, and {} are available", bytes >> 20, available >> 20);
    }
    available >= bytes
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn has_memory(_: u64) -> bool {
    true
}

/// Stretches an upper bound on elapsed time by `NOWAIT_TEST_SLOWNESS`. Lower bounds and durations
/// of work stay as they are.
pub(crate) fn at_most(bound: Duration) -> Duration {
    bound.mul_f64(slowness())
}

/// Fewer rounds, by `NOWAIT_TEST_SLOWNESS`, of what is repeated for luck; at least one.
pub(crate) fn rounds(count: u32) -> u32 {
    (f64::from(count) / slowness()).ceil() as u32
}

/// Time for which a busy disk alone may hold up the calls of a test, and more.
const HELD_UP_MAX: Duration = Duration::from_secs(120);

/// Describes what each thread of this process does in the kernel.
fn threads() -> String {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let threads = tasks.map(|task| {
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        // The stack is shown to root only.
        format!("{} in {}: {}", read("comm").trim(), read("wchan"), read("stack").trim().replace('\n', " < "))
    });
    format!("its threads:\n{}", threads.collect::<Vec<_>>().join("\n"))
}

/// Ends the process, saying why, when it is not dropped in time: a hang must fail, and say where.
pub(crate) struct Watchdog(Option<mpsc::Sender<()>>);

impl Watchdog {
    pub(crate) fn new(name: impl Into<String>, seconds: u64) -> Watchdog {
        let name = name.into();
        let (alive, watched) = mpsc::channel();
        // Beside the time that a wait of the test may take.
        let bound = at_most(Duration::from_secs(seconds).max(HELD_UP_MAX + Duration::from_secs(60)));
        std::thread::spawn(move || {
            if watched.recv_timeout(bound) == Err(RecvTimeoutError::Timeout) {
                // To the real stderr: captured output would be lost with the abort.
                let _ = writeln!(std::io::stderr(), "watchdog: {name} hangs: no end after {bound:?}; {}", threads());
                std::process::abort();
            }
        });
        Watchdog(Some(alive))
    }
}

/// Polls once, and wakes nobody later.
pub(crate) fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls each once, and returns those that are pending.
pub(crate) fn pending<F: Future>(mut futures: Vec<Pin<Box<F>>>) -> Vec<Pin<Box<F>>> {
    futures.retain_mut(|future| poll_once(future.as_mut()).is_pending());
    futures
}

/// As [`pending`], on a thread that ends then.
pub(crate) fn pending_after_their_thread<F: Future + Send>(futures: Vec<Pin<Box<F>>>) -> Vec<Pin<Box<F>>> {
    std::thread::scope(|scope| scope.spawn(|| pending(futures)).join().unwrap())
}

/// Asks again and again until `done` or the time is up. Asks no more once it is done: the question may
/// have effects.
pub(crate) fn eventually(done: impl Fn() -> bool) -> bool {
    let until = Instant::now() + at_most(HELD_UP_MAX);
    while !done() {
        if Instant::now() >= until {
            eprintln!("waited in vain for {HELD_UP_MAX:?}; {}", threads());
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// The law of the counters, once nothing is in flight.
pub(crate) fn assert_settled(nowait: &Nowait) {
    nowait.drain();
    // Operations that were handed on, or staged by other threads, are not waited for by `drain`; and
    // the driver may begin more.
    let is_settled = || {
        let stats = nowait.stats();
        stats.started == stats.ended()
    };
    assert!(eventually(is_settled), "every operation that starts ends once: {:?}", nowait.stats());
}

/// Open descriptors and threads of this process.
#[cfg(target_os = "linux")]
pub(crate) fn resources() -> (usize, usize) {
    let count = |dir| std::fs::read_dir(dir).unwrap().count();
    (count("/proc/self/fd"), count("/proc/self/task"))
}

/// Descriptors of this process that are open on `path`.
#[cfg(target_os = "linux")]
pub(crate) fn descriptors_of(path: &Path) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    links.filter(|link| std::fs::read_link(link.path()).is_ok_and(|target| target == path)).count()
}

/// Descriptors of this process that are open on the file at `path`; none if it is gone.
#[cfg(target_os = "macos")]
pub(crate) fn descriptors_of(path: &Path) -> usize {
    use std::os::fd::BorrowedFd;
    let identity = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
    let Ok(wanted) = rustix::fs::stat(path).map(identity) else { return 0 };
    let open = std::fs::read_dir("/dev/fd").unwrap().flatten();
    let numbers = open.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_it = |number: &i32| {
        // SAFETY: the call fails for a closed number. A reused number may be miscounted, but its file is
        // not touched.
        let fd = unsafe { BorrowedFd::borrow_raw(*number) };
        rustix::fs::fstat(fd).is_ok_and(|stat| identity(stat) == wanted)
    };
    numbers.filter(is_it).count()
}

/// One if another handle of the file is open, which excludes a handle that shares nothing.
#[cfg(windows)]
pub(crate) fn descriptors_of(path: &Path) -> usize {
    use std::os::windows::fs::OpenOptionsExt;
    const ERROR_SHARING_VIOLATION: i32 = 32;
    match std::fs::File::options().read(true).share_mode(0).open(path) {
        Ok(_) => 0,
        Err(error) if error.raw_os_error() == Some(ERROR_SHARING_VIOLATION) => 1,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

/// Opens a file past the page cache, for reading and writing; says so where that cannot be.
pub(crate) fn open_direct(nowait: &Nowait, path: &Path) -> Option<File> {
    let file = open_as_direct(nowait, path)?;
    if file.direct() == nowait::DirectIo::Refused {
        eprintln!("skipped: direct I/O: the file lies in memory");
        return None;
    }
    Some(file)
}

/// The same, also where the page cache is used nevertheless: tmpfs takes the flag (6.6).
#[cfg(target_os = "linux")]
pub(crate) fn open_as_direct(nowait: &Nowait, path: &Path) -> Option<File> {
    let mut options = OpenOptions::new();
    match options.read(true).write(true).custom_flags(libc::O_DIRECT).open_in(nowait, path).wait() {
        Ok(file) => Some(file),
        Err(error) => {
            eprintln!("skipped: direct I/O: {error}");
            None
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn open_as_direct(_: &Nowait, _: &Path) -> Option<File> {
    eprintln!("skipped: direct I/O: this system has no flag for it");
    None
}

/// An instance whose direct I/O goes to libaio, wherever else a ring would do; says so where that
/// cannot be.
pub(crate) fn aio_instance() -> Option<Nowait> {
    match Nowait::builder().engine(nowait::Engine::Aio).route(Some(nowait::Route::Ring)).build() {
        Ok(nowait) => Some(nowait),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

/// Reads pages past the page cache, `count` at a time, for each kind of caller. Another executor
/// has a thread of its own, as it must inside `block_on`.
pub(crate) fn read_pages_in_every_way(file: &File, sample: &Sample, count: u64) {
    let pages = (sample.bytes.len() / PAGE) as u64;
    let offset = |i: u64| (i * 7919 % pages) * PAGE as u64;
    let right = |(i, read): (u64, nowait::Result<nowait::Buf>)| {
        assert!(*read.unwrap() == *sample.expected(offset(i), PAGE), "page {i}");
    };
    let all = || futures::future::join_all((0..count).map(|i| file.read_range(offset(i), PAGE)));
    let other = std::thread::scope(|scope| scope.spawn(|| futures::executor::block_on(all())).join().unwrap());
    (0..).zip(other).for_each(right);
    (0..).zip(nowait::block_on(all())).for_each(right);
    (0..count.min(50)).map(|i| (i, file.read_range(offset(i), PAGE).wait())).for_each(right);
}

/// A simulated disk whose attempts and calls are refused, shortened and interrupted, with one file.
pub(crate) fn faulty_sim(rng: &mut Rng, length: usize) -> (Nowait, File) {
    let mut faults = Faults::default();
    (faults.not_now, faults.short_now, faults.short, faults.interrupted) = (0.5, 0.3, 0.3, 0.1);
    let sim = Sim::new(rng.next());
    sim.set_faults(faults);
    sim.create("file", vec![0; length]);
    let nowait = Nowait::builder().engine(Engine::Sim(sim)).build().unwrap();
    let file = OpenOptions::new().read(true).write(true).open_in(&nowait, "file").wait().unwrap();
    (nowait, file)
}

/// Instances that write on the caller's thread where they can, and such that never do.
pub(crate) fn writing_instances() -> [Nowait; 3] {
    let pool = Nowait::builder().engine(Engine::Pool).route(Some(Route::Pool));
    [Nowait::builder(), Nowait::builder().strict(true), pool].map(|builder| builder.build().unwrap())
}

pub(crate) fn create(nowait: &Nowait, path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).open_in(nowait, path).wait().unwrap()
}

/// Every sync of every clone fails, until that is acknowledged.
pub(crate) fn assert_syncs_fail(file: &File, errno: i32) {
    for clone in [file.clone(), file.clone()] {
        for way in Way::ALL {
            for result in [way.run(clone.sync_data()), way.run(clone.sync_all())] {
                let error = result.unwrap_err();
                assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::SyncFailed, Some(errno)), "{way:?}");
                assert!(error.to_string().contains("acknowledge_sync_failure"), "{error}");
            }
        }
    }
}

pub(crate) fn assert_syncs_succeed(file: &File) {
    Way::ALL.into_iter().for_each(|way| way.run(file.sync_data()).unwrap());
}

pub(crate) fn page_of(byte: u8) -> Buf {
    let mut page = Buf::zeroed(PAGE);
    page.fill(byte);
    page
}

/// Returns the contents of a folder, by name.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = std::fs::read_dir(folder).unwrap().map(name).collect();
    names.sort();
    names
}

/// A simulated disk that moves only when told to, with a file "a", opened.
pub(crate) fn manual(seed: u64, bytes: &[u8], set: impl FnOnce(&mut Faults)) -> (Sim, Nowait, File) {
    let sim = Sim::manual(seed);
    let mut faults = Faults::default();
    set(&mut faults);
    sim.set_faults(faults);
    sim.create("a", bytes);
    let nowait = Nowait::builder().engine(Engine::Sim(sim.clone())).build().unwrap();
    let file = open(&nowait, "a".as_ref());
    (sim, nowait, file)
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Drop,
    Leak,
}

impl End {
    pub(crate) fn of<T>(self, future: T) {
        match self {
            End::Drop => drop(future),
            End::Leak => std::mem::forget(future),
        }
    }
}

pub(crate) fn forced(route: Route) -> Nowait {
    Nowait::builder().route(Some(route)).build().unwrap()
}

/// Polls reads of cold data once and gives them up.
pub(crate) async fn give_up(file: &File, rng: &mut Rng, count: usize, end: End) {
    let len = file.size().await.unwrap() as usize;
    for _ in 0..count {
        let offset = rng.below(len - PAGE) as u64;
        let mut read = Box::pin(file.read_at(vec![0; PAGE], offset));
        let _ = std::future::poll_fn(|context| Poll::Ready(read.as_mut().poll(context))).await;
        end.of(read);
    }
}

/// An empty file past the page cache; says so where there are none, as on tmpfs before Linux 6.6.
pub(crate) fn create_direct(nowait: &Nowait, path: &Path) -> Option<File> {
    std::fs::write(path, []).unwrap();
    open_direct(nowait, path)
}
