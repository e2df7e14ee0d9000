//! Limits of a process and of a user: the length of files, memory, and what may not be read or
//! changed.

use std::os::fd::AsRawFd;

use crate::common::fuse::Stalling;
use crate::common::mounts::temp_dir;
use crate::common::{
    Sample, Watchdog, Way, assert_settled, child, contents, create, eventually, names, open, open_direct, page_of,
    poll_once, writing_instances,
};
use crate::promises::maps::map;
use nowait::{Buf, Engine, ErrorKind, File, Nowait, OpenOptions, Written, fs};
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
    let (end, ended) = std::sync::mpsc::channel();
    let limit = getrlimit(Resource::As);
    let lifts = std::thread::spawn(move || {
        for () in ended {
            std::thread::sleep(std::time::Duration::from_millis(200));
            setrlimit(Resource::As, limit).unwrap();
        }
    });
    // A watcher runs beside a ring. Without, the thread that waits is the only one.
    for engine in [Engine::Pool, Engine::Auto] {
        let Some(mut stalling) = Stalling::or_skip(std::time::Duration::ZERO) else { return };
        let nowait = Nowait::builder().engine(engine.clone()).build().unwrap();
        let [hangs, goes_on] = [(); 2].map(|()| open(&nowait, &stalling.file()));
        if nowait.has_ring() {
            let sample = Sample::new(100_000);
            let file = sample.cool().open(&nowait);
            futures::executor::block_on(file.read_range(0, 4096).submit()).unwrap();
        }
        stalling.hang_closes();
        let read = hangs.read_range(0, 4096).submit();
        drop(hangs);
        // The thread that makes it closes the file.
        read.detach();
        allow_no_stack();
        let mut read = goes_on.read_range(4096, 4096).submit();
        assert!(poll_once(std::pin::Pin::new(&mut read)).is_pending());
        end.send(()).unwrap();
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
    child::play("no stack");
    child::play("no stack, direct");
}

fn leave_a_write(resource: Resource) {
    // Without a ring, no watcher has a descriptor yet.
    let nowait = Nowait::builder().engine(Engine::Pool).build().unwrap();
    let folder = temp_dir();
    let path = folder.path().join("file");
    let file = create(&nowait, &path);
    is_made_while_its_thread_is_busy(&file, resource);
}

/// The same, of an entry that a thread has staged in its own ring.
fn stage_a_write() {
    let folder = temp_dir();
    let path = folder.path().join("file");
    std::fs::write(&path, [0; 4096]).unwrap();
    let nowait = Nowait::builder().build().unwrap();
    let Some(file) = open_direct(&nowait, &path) else { return };
    is_made_while_its_thread_is_busy(&file, Resource::As);
}

/// Polls a write once while a resource is short. Then its thread does something else.
fn is_made_while_its_thread_is_busy(file: &File, resource: Resource) {
    let _watchdog = Watchdog::new("a write that nobody watches", 120);
    nowait::block_on(async {
        let mut write = Box::pin(file.write_all_at(page_of(7), 0));
        let limit = getrlimit(resource);
        match resource {
            Resource::Nofile => {
                let next = rustix::io::dup(file.descriptor().unwrap()).unwrap().as_raw_fd();
                setrlimit(resource, Rlimit { current: Some(next as u64), ..limit }).unwrap();
            }
            _ => allow_no_stack(),
        }
        let polled = poll_once(write.as_mut());
        setrlimit(resource, limit).unwrap();
        let is_made = || std::fs::read(file.path()).unwrap() == *page_of(7);
        assert!(eventually(is_made), "it waits for its thread");
        match polled {
            std::task::Poll::Ready(written) => drop(written.unwrap()),
            std::task::Poll::Pending => drop(write.await.unwrap()),
        }
    });
}

/// Sets a limit, below which there is no memory for the stack of another thread.
fn allow_no_stack() {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    let used = pages * rustix::param::page_size() as u64;
    setrlimit(Resource::As, Rlimit { current: Some(used + (1 << 20)), ..getrlimit(Resource::As) }).unwrap();
    assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "the limit has no effect");
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
        Some("no descriptor") => leave_a_write(Resource::Nofile),
        Some("no stack") => leave_a_write(Resource::As),
        Some("no stack, direct") => stage_a_write(),
        Some(other) => unreachable!("{other}"),
    }
}
