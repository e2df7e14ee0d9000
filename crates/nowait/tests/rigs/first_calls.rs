//! Unknown does not count as possible: the first plain call of a device, a size
//! and a submission never sleep on the thread of a task, and take no worker of the kernel.
//!
//! Each test runs in its own process: all files of a device share its evidence.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use crate::common::fuse::Stalling;
use crate::common::mounts::{self, Frozen, Kind, Mount};
use crate::common::{Watchdog, assert_settled, child, eventually, poll_once};
use crate::promises::maps::map;
use nowait::{Buf, File, Nowait, OpenOptions};

type Begun = Pin<Box<dyn Future<Output = ()> + Send>>;

const ROLES: [(&str, fn()); 6] = [
    ("reads", reads_and_writes_of_a_server_that_hangs),
    ("frozen", writes_of_a_frozen_file_system),
    ("sizes", sizes_of_a_server_that_hangs),
    ("maps", failures_of_a_map_of_a_server_that_hangs),
    ("submitted", submitted_reads_of_a_server_that_hangs),
    ("many", many_small_files),
];

#[test]
fn of_a_server_that_hangs() {
    child::play("reads");
}

#[test]
fn of_a_file_system_that_is_frozen() {
    child::play("frozen");
}

#[test]
fn that_ask_for_a_size() {
    child::play("sizes");
}

#[test]
fn that_explain_a_failure_of_a_map() {
    child::play("maps");
}

#[test]
fn that_are_submitted() {
    child::play("submitted");
}

#[test]
fn of_many_small_files() {
    child::play("many");
}

#[test]
fn child() {
    match child::role().as_deref() {
        None => {}
        Some(role) => ROLES.iter().find(|(name, _)| *name == role).unwrap().1(),
    }
}

fn instances() -> [Nowait; 2] {
    [false, true].map(|strict| Nowait::builder().strict(strict).build().unwrap())
}

fn open(nowait: &Nowait, path: &Path, direct: bool) -> File {
    OpenOptions::new().read(true).write(true).direct(direct).open_in(nowait, path).wait().unwrap()
}

fn begin(operation: impl Future<Output = ()> + Send + 'static) -> Begun {
    let mut operation: Begun = Box::pin(operation);
    assert!(poll_once(operation.as_mut()).is_pending());
    operation
}

fn read(file: &File, offset: u64) -> impl Future<Output = ()> + Send + 'static {
    let file = file.clone();
    async move { drop(file.read_range(offset, 4096).await.unwrap()) }
}

fn write(file: &File, offset: u64) -> impl Future<Output = ()> + Send + 'static {
    let file = file.clone();
    async move { drop(file.write_all_at(Buf::zeroed(4096), offset).await.unwrap()) }
}

/// A call that sleeps here is the watchdog's.
fn reads_and_writes_of_a_server_that_hangs() {
    let _watchdog = Watchdog::new("first calls of a server that hangs", 30);
    for nowait in instances() {
        for direct in [false, true] {
            let Some(mut stalling) = Stalling::or_skip(Duration::ZERO) else { return };
            let file = open(&nowait, &stalling.file(), direct);
            stalling.hang();
            let read = begin(read(&file, 64 << 20));
            let write = begin(write(&file, 1 << 20));
            stalling.go_on();
            futures::executor::block_on(futures::future::join(read, write));
        }
        assert_settled(&nowait);
    }
}

fn writes_of_a_frozen_file_system() {
    let _watchdog = Watchdog::new("first writes of a frozen file system", 60);
    for nowait in instances() {
        // Of its own: a write that begins after the thaw returns soon.
        let Some(mount) = mounts::or_skip("ext4", Mount::new(Kind::Ext4)) else { return };
        for direct in [true, false] {
            let path = mount.path().join("file");
            std::fs::write(&path, vec![1; 1 << 20]).unwrap();
            let file = open(&nowait, &path, direct);
            let frozen = Frozen::new(&mount);
            let write = begin(write(&file, 4096));
            drop(frozen);
            futures::executor::block_on(write);
        }
        assert_settled(&nowait);
    }
}

/// Symptom: the poll that returned the error asked the server for the file's size.
fn failures_of_a_map_of_a_server_that_hangs() {
    let _watchdog = Watchdog::new("a map of a server that hangs", 120);
    for nowait in instances() {
        let Some(mut stalling) = Stalling::or_skip(Duration::ZERO) else { return };
        let file = open(&nowait, &stalling.file(), false);
        let map = map(&file, ..1 << 20).unwrap();
        stalling.fail_reads();
        let failed = futures::executor::block_on(map.gather([0..4096, 8192..12288]));
        assert_eq!(failed.unwrap_err().kind(), nowait::ErrorKind::Io);
        stalling.go_on();
    }
}

fn sizes_of_a_server_that_hangs() {
    let _watchdog = Watchdog::new("sizes of a server that hangs", 60);
    for nowait in instances() {
        for is_known in [false, true] {
            let Some(mut stalling) = Stalling::or_skip(Duration::ZERO) else { return };
            let file = open(&nowait, &stalling.file(), false);
            if is_known {
                futures::executor::block_on(read(&file, 0));
            }
            stalling.hang();
            let of = file.clone();
            let size = begin(async move { assert_eq!(of.size().await.unwrap(), 1 << 30) });
            // Whose reads have returned soon, may be read on the spot, but for the size.
            let streamed = (!is_known).then(|| {
                let of = file.clone();
                begin(async move { drop(nowait::stream::Reader::new(&of, 64 << 20).chunk().await.unwrap()) })
            });
            stalling.go_on();
            futures::executor::block_on(futures::future::join_all([size].into_iter().chain(streamed)));
        }
        assert_settled(&nowait);
    }
    // A file system that keeps attributes in memory is asked on the spot.
    let dir = mounts::temp_dir();
    let path = dir.path().join("file");
    std::fs::write(&path, [1; 10]).unwrap();
    let nowait = Nowait::builder().build().unwrap();
    let file = open(&nowait, &path, false);
    if crate::common::takes_attempts(&path) {
        assert!(poll_once(std::pin::pin!(file.size())).is_ready());
    }
}

/// More than the kernel has workers for a thread.
const SUBMITTED: u64 = 100;

fn submitted_reads_of_a_server_that_hangs() {
    let _watchdog = Watchdog::new("submitted reads of a server that hangs", 60);
    let Some(tmpfs) = mounts::or_skip("tmpfs", Mount::new(Kind::Tmpfs)) else { return };
    let path = tmpfs.path().join("file");
    std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    for nowait in instances() {
        for own in [false, true] {
            let Some(mut stalling) = Stalling::or_skip(Duration::ZERO) else { return };
            let hung: Vec<_> = (0..SUBMITTED).map(|_| open(&nowait, &stalling.file(), false)).collect();
            let before = nowait.stats();
            stalling.hang();
            let meanwhile = || {
                let started: Vec<_> =
                    (0..).zip(&hung).map(|(i, file)| file.read_range(i << 20, 4096).submit()).collect();
                for _ in 0..10 {
                    let other = open(&nowait, &path, false);
                    let reads: Vec<_> = (0..20).map(|i| other.read_range(i * 4096, 4096).submit()).collect();
                    reads.into_iter().for_each(|read| assert_eq!(read.wait().unwrap()[0], 7));
                    assert_eq!(other.nowait_reads(), Some(false));
                }
                started
            };
            let started = if own { nowait::block_on(async { meanwhile() }) } else { meanwhile() };
            assert_eq!(nowait.stats().ring, before.ring);
            stalling.go_on();
            started.into_iter().for_each(|read| drop(read.wait().unwrap()));
        }
        assert!(eventually(|| nowait.stats().pool >= 2 * (SUBMITTED + 200)));
        assert_settled(&nowait);
    }
}

/// The first call of a device goes to a thread; its files are read, and written, on the spot then.
fn many_small_files() {
    const FILES: u64 = 1000;
    for kind in [Kind::Tmpfs, Kind::Overlay] {
        let Some(mount) = mounts::or_skip("a file system", Mount::new(kind)) else { continue };
        let nowait = Nowait::builder().stall_budget(Duration::from_secs(1)).build().unwrap();
        let path = |i: u64| mount.path().join(i.to_string());
        (0..FILES).for_each(|i| std::fs::write(path(i), [1; 4096]).unwrap());
        let ends = |operation| futures::executor::block_on::<Begun>(Box::pin(operation));
        for i in 0..FILES {
            ends(read(&open(&nowait, &path(i), false), 0));
        }
        let stats = nowait.stats();
        // Opens are made elsewhere.
        assert!(stats.inline >= FILES * 9 / 10, "{kind:?}: {stats:?}");
        assert!(stats.pool >= 1, "{kind:?}: {stats:?}");
    }
}
