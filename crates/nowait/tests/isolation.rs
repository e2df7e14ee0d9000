//! A device that never answers stops its own files, and no others of the same instance.

mod common;

use std::future::Future;
use std::path::Path as FsPath;
use std::pin::Pin;

use common::fuse::Stalling;
use common::mounts::{self, LoopDevice};
use common::{Watchdog, Way, assert_settled, child, poll_once};
use nowait::sim::Sim;
use nowait::{Buf, Engine, File, Nowait, OpenOptions, Path};

/// More than any queue to the kernel, or pool, holds.
const HUNG: u64 = 300;
/// Behind what is written, and what the kernel may have read when a device was made of it.
const READS_AT: u64 = 512 << 20;

type Hung<'f> = Pin<Box<dyn Future<Output = ()> + Send + 'f>>;

/// Reads and writes of a file that hangs, polled once: on an executor of others, and in this thread's own queue.
fn hang(file: &File) -> Vec<Hung<'_>> {
    let mut hung: Vec<Hung<'_>> = Vec::new();
    for i in 0..HUNG {
        hung.push(Box::pin(async move { drop(file.read_at(Buf::zeroed(4096), READS_AT + i * 4096).await) }));
        hung.push(Box::pin(async move { drop(file.write_at(Buf::zeroed(1 << 20), i << 20).await) }));
    }
    hung.iter_mut().for_each(|operation| assert!(poll_once(operation.as_mut()).is_pending()));
    hung
}

/// What others do meanwhile, however they call.
fn works(nowait: &Nowait, path: &FsPath) {
    for (way, direct) in Way::ALL.into_iter().flat_map(|way| [(way, false), (way, true)]) {
        let mut options = OpenOptions::new();
        let file = way.run(options.read(true).write(true).direct(direct).open_in(nowait, path)).unwrap();
        for i in 0..40 {
            way.run(file.write_all_at(Buf::zeroed(4096), i * 8192)).unwrap();
            way.run(file.read_exact_at((i + 1) * 4096, 4096)).unwrap();
        }
        let many = (0..40).map(|i| file.read_exact_at(i * 4096, 4096));
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
    for (depth, path) in [(64, None), (4, Some(Path::Pool))] {
        let sim = Sim::new(1);
        sim.set_depth(depth);
        sim.create("hung", vec![0; 1 << 20]);
        sim.create("other", vec![0; 1 << 20]);
        let nowait =
            Nowait::builder().engine(Engine::Sim(sim.clone())).path(path.or(Some(Path::Pool))).build().unwrap();
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
    let Some(mut stalling) = mounts::or_skip("a file system of our own (FUSE)", Stalling::new()) else { return };
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
    let Some(mut stalling) = mounts::or_skip("a file system of our own (FUSE)", Stalling::new()) else { return };
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

/// A queue that is full of what hangs, and a read of another file that is in line there, since that has much under way elsewhere.
#[test]
fn what_is_in_line_behind_a_device_that_stalls() {
    let _watchdog = Watchdog::new("a line behind a device that stalls", 120);
    let made = || mounts::or_skip("a file system of our own (FUSE)", Stalling::new());
    let (Some(mut stalling), Some(mut other)) = (made(), made()) else { return };
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
        // What was read before is cached behind the devices.
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

#[test]
fn child() {
    match child::role().as_deref() {
        None => {}
        Some("fuse") => common::fuse::serve(),
        Some(other) => unreachable!("{other}"),
    }
}
