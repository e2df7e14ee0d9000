//! Limits of a process and of a user: the length of files, memory, and what may not be read or
//! changed.

use std::future::Future;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake};
use std::time::Duration;

use crate::common::fuse::Stalling;
use crate::common::mounts::temp_dir;
use crate::common::{
    Sample, Watchdog, Way, assert_settled, child, contents, create, eventually, names, open, open_direct, page_of,
    poll_once, writing_instances,
};
use crate::promises::maps::map;
use futures::stream::{FuturesUnordered, StreamExt};
use nowait::embed::LoopRing;
use nowait::{Buf, Engine, ErrorKind, File, Nowait, OpenOptions, Started, Written, fs};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const LIMIT: usize = 100_000;

#[test]
fn file_that_may_not_grow_further_is_too_large() {
    child::play("limit");
    child::play("limit past the cache");
}

fn under_a_limit() {
    let limit = Some(LIMIT as u64);
    setrlimit(Resource::Fsize, Rlimit { current: limit, maximum: limit }).unwrap();
    let folder = temp_dir();
    for nowait in writing_instances() {
        for way in Way::ALL {
            let path = folder.path().join("file");
            let file = create(&nowait, &path);
            let (half, data) = (LIMIT as u64 / 2, contents(LIMIT, 2));
            let error = way.run(file.write_all_at(data.clone(), half)).unwrap_err();
            assert!(error.buffer == data);
            let error = error.error;
            assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::FileTooLarge, Some(libc::EFBIG)), "{error}");
            assert_eq!(error.bytes_written(), Some(Written::First(half)), "{way:?}: {error}");
            let (n, _) = way.run(file.write_at(data.clone(), half)).unwrap();
            assert_eq!(n as u64, half, "a part is a success where it may be one");
            assert!(std::fs::read(&path).unwrap()[half as usize..] == data[..half as usize]);
            let error = way.run(file.append(data.clone())).unwrap_err().error;
            assert_eq!((error.kind(), error.bytes_written()), (ErrorKind::FileTooLarge, Some(Written::First(0))));
            let error = way.run(file.set_len(2 * LIMIT as u64)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::FileTooLarge);
            // Of those that continue each other, the one that did not get in is to blame.
            let writes: Vec<_> = (0..4).map(|i| (LIMIT as u64 - 250 + i * 100, vec![3; 100])).collect();
            let many = file.write_many(writes);
            let error = if way == Way::Waited { many.wait() } else { way.run_future(many) }.unwrap_err();
            assert_eq!(error.buffer, vec![vec![3; 100]; 4]);
            let error = error.error;
            assert_eq!((error.kind(), error.range_index()), (ErrorKind::FileTooLarge, Some(2)), "{error}");
            assert_eq!((error.offset(), error.bytes_written()), (Some(LIMIT as u64 - 50), Some(Written::First(50))));
            drop(file);
            std::fs::remove_file(path).unwrap();
        }
    }
}

/// Symptom: a direct write across the limit failed with EINVAL, since the kernel cuts it there
/// before it checks the length. The file then assumed a larger alignment than the device needs.
fn under_a_limit_past_the_cache() {
    let limit = Some(LIMIT as u64);
    setrlimit(Resource::Fsize, Rlimit { current: limit, maximum: limit }).unwrap();
    let folder = temp_dir();
    let path = folder.path().join("file");
    for engine in [Engine::Auto, Engine::Aio, Engine::Pool] {
        let Ok(nowait) = Nowait::builder().engine(engine.clone()).build() else { continue };
        for way in Way::ALL {
            for (offset, length) in [(0, 204_800), (65_536, 65_536), (98_304, 4096), (5, 150_000), (99_999, 512)] {
                std::fs::write(&path, b"").unwrap();
                let Some(file) = open_direct(&nowait, &path) else { return };
                let (before, data) = (file.direct(), contents(length, 2));
                let mut buffer = Buf::zeroed(length);
                buffer.copy_from_slice(&data);
                let room = LIMIT - offset;
                let what = format!("{engine:?}, {way:?}, {length} at {offset}");
                let error = way.run(file.write_all_at(buffer, offset as u64)).unwrap_err().error;
                assert_eq!(
                    (error.kind(), error.raw_os_error()),
                    (ErrorKind::FileTooLarge, Some(libc::EFBIG)),
                    "{what}"
                );
                assert_eq!(error.bytes_written(), Some(Written::First(room as u64)), "{what}: {error}");
                assert_eq!(file.direct(), before, "{what}: this tells nothing of the device");
                let there = std::fs::read(&path).unwrap();
                assert!(there.len() == LIMIT && there[offset..] == data[..room], "{what}");
                let error = way.run(file.write_all_at(Buf::zeroed(4096), 102_400)).unwrap_err().error;
                assert_eq!((error.kind(), error.bytes_written()), (ErrorKind::FileTooLarge, Some(Written::First(0))));
                let error = file.write_all_from(&data, offset as u64).unwrap_err();
                assert_eq!((error.kind(), file.direct()), (ErrorKind::FileTooLarge, before), "{what}: {error}");
                // Below the limit all is as before.
                way.run(file.write_all_at(Buf::zeroed(4096), 4096)).unwrap();
                assert_settled(&nowait);
            }
        }
    }
}

/// Symptom: a direct stream reserved space beyond the limit, so that SIGXFSZ ended a process all of
/// whose writes fit.
#[test]
fn a_stream_reserves_nothing_beyond_the_limit() {
    child::finish("stream below a limit", child::mortal("stream below a limit"));
}

fn stream_below_a_limit() {
    const LENGTH: usize = 18 << 20;
    let folder = temp_dir();
    for (n, room) in [0, 1, 4096, 3 << 20, 64 << 20].into_iter().enumerate() {
        let limit = Some((LENGTH + room) as u64);
        setrlimit(Resource::Fsize, Rlimit { current: limit, ..getrlimit(Resource::Fsize) }).unwrap();
        let path = folder.path().join(n.to_string());
        std::fs::write(&path, b"").unwrap();
        let Some(file) = open_direct(Nowait::shared(), &path) else { return };
        let mut writer = nowait::stream::Writer::new(&file, 0);
        for _ in 0..LENGTH >> 20 {
            writer.put(Buf::zeroed(1 << 20)).wait().unwrap();
        }
        writer.finish().wait().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), LENGTH as u64);
    }
}

#[test]
fn atomic_write_into_a_folder_that_takes_none() {
    child::play("read-only folder");
}

fn read_only_folder() {
    use std::os::unix::fs::PermissionsExt;
    if child::is_root() {
        child::become_nobody();
    }
    let folder = temp_dir();
    let path = folder.path().join("file");
    std::fs::write(&path, b"old").unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o500)).unwrap();
    let error = futures::executor::block_on(fs::write_atomic(&path, vec![1; 100])).unwrap_err();
    assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::PermissionDenied, Some(libc::EACCES)));
    assert_eq!((std::fs::read(&path).unwrap(), names(folder.path())), (b"old".to_vec(), vec!["file".to_string()]));
    let other = folder.path().join("other");
    for way in Way::ALL {
        assert_eq!(way.run(fs::rename(&path, &other)).unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert_eq!(way.run(fs::remove_file(&path)).unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).unwrap();
}

#[test]
fn unreadable_file() {
    child::play("unreadable");
}

fn unreadable() {
    if child::is_root() {
        child::become_nobody();
    }
    let sample = Sample::new(10);
    std::fs::set_permissions(&sample.path, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
    for engine in [Engine::Auto, Engine::Pool] {
        let nowait = Nowait::builder().engine(engine).build().unwrap();
        let mut options = OpenOptions::new();
        options.read(true);
        let results = [
            options.open_in(&nowait, &sample.path).wait(),
            futures::executor::block_on(options.open_in(&nowait, &sample.path)),
        ];
        for result in results {
            let error = result.unwrap_err();
            assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::PermissionDenied, Some(libc::EACCES)));
        }
    }
}

#[test]
fn an_address_space_that_is_too_small_is_an_error() {
    let dir = temp_dir();
    let path = dir.path().join("large");
    std::fs::File::create(&path).unwrap().set_len(8 << 30).unwrap();
    child::play_at("small", &path);
}

fn small_address_space() {
    let file = File::open(child::path()).wait().unwrap();
    let limit = rustix::process::Rlimit { current: Some(4 << 30), maximum: Some(4 << 30) };
    rustix::process::setrlimit(rustix::process::Resource::As, limit).unwrap();
    let error = map(&file, ..).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(error.to_string().contains("ulimit -v"), "{error}");
    assert_eq!(map(&file, ..1 << 20).unwrap().populate(..).wait().unwrap().bytes, 1 << 20);
}

/// Symptom: while the only thread of a pool hung and no other could be started, work was left in its
/// queue, and stayed there after the limit on threads was gone.
#[test]
fn a_limit_on_threads_that_passes_is_not_remembered() {
    child::play("threads");
}

fn short_of_threads() {
    let _watchdog = Watchdog::new("a limit on threads that passes", 120);
    let (end, ended) = channel();
    let lifts = std::thread::spawn(move || {
        for limit in ended {
            std::thread::sleep(Duration::from_millis(200));
            setrlimit(Resource::Nproc, limit).unwrap();
        }
    });
    // A watcher runs beside a ring. Without, the thread that waits is the only one.
    for engine in [Engine::Pool, Engine::Auto] {
        let Some(mut stalling) = Stalling::or_skip(Duration::ZERO) else { return };
        let nowait = Nowait::builder().engine(engine.clone()).build().unwrap();
        let [hangs, goes_on] = [(); 2].map(|()| open(&nowait, &stalling.file()));
        if nowait.has_ring() {
            let sample = Sample::new(100_000);
            let file = sample.cool().open(&nowait);
            futures::executor::block_on(file.read_range(0, 4096).submit()).unwrap();
        }
        // A thread of the pool runs, and no read has shown that the server answers.
        futures::executor::block_on(hangs.sync_data()).unwrap();
        let no_threads = NoThreads::new();
        stalling.hang();
        hangs.read_range(4096, 4096).submit().detach();
        drop(hangs);
        // The thread that makes it closes the file.
        stalling.hang_closes();
        let mut read = goes_on.read_range(4096, 4096).submit();
        assert!(poll_once(std::pin::Pin::new(&mut read)).is_pending());
        end.send(no_threads.limit).unwrap();
        let waits = if matches!(engine, Engine::Pool) { read.wait() } else { futures::executor::block_on(read) };
        assert_eq!(waits.unwrap().len(), 4096);
        stalling.go_on();
    }
    drop(end);
    lifts.join().unwrap();
}

/// Symptom: a small write that was left for others to join was not made while its thread was busy, if
/// descriptors or threads had been short when it was left.
#[test]
fn a_write_that_nobody_watches_is_made_at_once() {
    child::play("no descriptor");
    child::play("no thread");
    child::play("no thread, direct");
    child::play("no thread, event loop");
}

fn leave_a_write(short: Short) {
    // Without a ring, no watcher has a descriptor yet.
    let nowait = Nowait::builder().engine(Engine::Pool).build().unwrap();
    let folder = temp_dir();
    let path = folder.path().join("file");
    let file = create(&nowait, &path);
    nowait::block_on(is_made_while_its_thread_is_busy(&file, short));
}

/// The same, of an entry that a thread has staged in its own ring, or in that of its event loop.
fn stage_a_write(in_loop: bool) {
    let folder = temp_dir();
    let path = folder.path().join("file");
    std::fs::write(&path, [0; 4096]).unwrap();
    let nowait = Nowait::builder().build().unwrap();
    let Some(file) = open_direct(&nowait, &path) else { return };
    let is_made = is_made_while_its_thread_is_busy(&file, Short::OfThreads);
    if !in_loop {
        return nowait::block_on(is_made);
    }
    match LoopRing::new() {
        Ok(ring) => ring.submit(|| futures::executor::block_on(is_made)),
        Err(error) => eprintln!("skipped: {error}"),
    }
}

enum Short {
    OfDescriptors,
    OfThreads,
}

/// Polls a write once during a shortage. Then its thread does something else.
async fn is_made_while_its_thread_is_busy(file: &File, short: Short) {
    let _watchdog = Watchdog::new("a write that nobody watches", 120);
    let mut write = Box::pin(file.write_all_at(page_of(7), 0));
    let polled = match short {
        Short::OfDescriptors => {
            let limit = getrlimit(Resource::Nofile);
            let next = rustix::io::dup(file.descriptor().unwrap()).unwrap().as_raw_fd();
            setrlimit(Resource::Nofile, Rlimit { current: Some(next as u64), ..limit }).unwrap();
            let polled = poll_once(write.as_mut());
            setrlimit(Resource::Nofile, limit).unwrap();
            polled
        }
        Short::OfThreads => {
            let _no_threads = NoThreads::new();
            poll_once(write.as_mut())
        }
    };
    let is_made = || std::fs::read(file.path()).unwrap() == *page_of(7);
    assert!(eventually(is_made), "it waits for its thread");
    match polled {
        std::task::Poll::Ready(written) => drop(written.unwrap()),
        std::task::Poll::Pending => drop(write.await.unwrap()),
    }
}

/// Symptom: a thread that waited for another's reads slept on after their completion, if no thread
/// could be started when they were submitted.
#[test]
fn a_set_of_reads_that_nobody_watches_is_noticed_by_the_thread_that_waits() {
    child::play("no thread, moved");
    child::play("no thread, then moved");
}

/// `early`: the reads are submitted, and glances begin, before threads are short.
fn move_a_set_of_reads(early: bool) {
    let _watchdog = Watchdog::new("a set of reads that nobody watches", 120);
    let sample = Sample::new(1 << 20);
    let nowait = Nowait::builder().build().unwrap();
    let Some(file) = open_direct(&nowait, &sample.cool().path) else { return };
    let (give, given) = channel::<FuturesUnordered<Started<nowait::Result<Buf>>>>();
    let thread = std::thread::spawn(move || {
        let mut set = given.recv().unwrap();
        nowait::block_on(async {
            while let Some(read) = set.next().await {
                drop(read.unwrap());
            }
        });
    });
    nowait::block_on(async {
        let reads = || (0..4).map(|i| file.read_range(i << 16, 1 << 16).start()).collect::<FuturesUnordered<_>>();
        let early = early.then(reads);
        let _no_threads = NoThreads::new();
        let mut set = early.unwrap_or_else(reads);
        _ = futures::poll!(set.next());
        give.send(set).unwrap();
        thread.join().unwrap();
    });
}

/// Symptom: glances never began again after no thread could take the place of one that hung.
#[test]
fn a_thread_that_glances_and_hangs_is_replaced_when_threads_are_allowed_again() {
    child::play("no thread, stuck");
}

/// Its call begins, and ends when the sender is dropped.
struct Blocks(AtomicBool, Mutex<Receiver<()>>);

impl Wake for Blocks {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
        _ = self.1.lock().unwrap().recv();
    }
}

fn glance_in_a_waker_that_blocks() {
    /// More than the times after which a thread is stuck, and after which a start is tried again.
    const A_WHILE: Duration = Duration::from_millis(1500);
    let _watchdog = Watchdog::new("glances of a thread that hangs", 120);
    let sample = Sample::new(1 << 20);
    let nowait = Nowait::builder().build().unwrap();
    let Some(file) = open_direct(&nowait, &sample.cool().path) else { return };
    let ring = match LoopRing::new() {
        Ok(ring) => ring,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let (_blocks, blocked) = channel();
    let blocks = Arc::new(Blocks(AtomicBool::new(false), Mutex::new(blocked)));
    let (give, given) = channel::<FuturesUnordered<Started<nowait::Result<Buf>>>>();
    // An executor of others never asks for help.
    let thread = std::thread::spawn(move || futures::executor::block_on(given.recv().unwrap().count()));
    nowait::block_on(async {
        let read = |i: u64| file.read_range(i << 16, 1 << 16).start();
        // A thread that is in a queue hangs with it: the other reads have another.
        let mut first = ring.submit(|| read(0));
        let no_threads = NoThreads::new();
        let is_pending = Pin::new(&mut first).poll(&mut Context::from_waker(&blocks.clone().into())).is_pending();
        assert!(!is_pending || eventually(|| blocks.0.load(SeqCst)), "no thread noticed it");
        std::thread::sleep(A_WHILE);
        // No thread can take the place of the one that hangs.
        drop(read(1));
        drop(no_threads);
        std::thread::sleep(A_WHILE);
        let mut set: FuturesUnordered<_> = (2..6).map(read).collect();
        let count = usize::from(futures::poll!(set.next()).is_ready());
        give.send(set).unwrap();
        assert_eq!(count + thread.join().unwrap(), 4);
    });
}

/// While this lives, or until its limit is set again, no thread can be started.
struct NoThreads {
    limit: Rlimit,
    is_root: bool,
}

impl NoThreads {
    fn new() -> NoThreads {
        const NOBODY: u32 = 65534;
        let (limit, is_root) = (getrlimit(Resource::Nproc), child::is_root());
        if is_root {
            // The limit is none for root.
            set_user(NOBODY);
        }
        setrlimit(Resource::Nproc, Rlimit { current: Some(0), ..limit }).unwrap();
        assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "the limit has no effect");
        NoThreads { limit, is_root }
    }
}

impl Drop for NoThreads {
    fn drop(&mut self) {
        setrlimit(Resource::Nproc, self.limit).unwrap();
        if self.is_root {
            set_user(0);
        }
    }
}

/// Gives all threads another user, from whom root returns.
fn set_user(user: u32) {
    // SAFETY: no memory is involved; libc applies it to every thread.
    let result = unsafe { libc::setresuid(user, user, 0) };
    assert_eq!(result, 0, "setresuid: {}", std::io::Error::last_os_error());
}

#[test]
fn child() {
    match child::role().as_deref() {
        None => {}
        Some("limit") => under_a_limit(),
        Some("limit past the cache") => under_a_limit_past_the_cache(),
        Some("stream below a limit") => stream_below_a_limit(),
        Some("read-only folder") => read_only_folder(),
        Some("unreadable") => unreadable(),
        Some("small") => small_address_space(),
        Some("threads") => short_of_threads(),
        Some("no descriptor") => leave_a_write(Short::OfDescriptors),
        Some("no thread") => leave_a_write(Short::OfThreads),
        Some("no thread, direct") => stage_a_write(false),
        Some("no thread, event loop") => stage_a_write(true),
        Some("no thread, moved") => move_a_set_of_reads(false),
        Some("no thread, then moved") => move_a_set_of_reads(true),
        Some("no thread, stuck") => glance_in_a_waker_that_blocks(),
        Some(other) => unreachable!("{other}"),
    }
}
