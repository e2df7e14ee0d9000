//! A device that never answers stops its own files, and no others of the same instance.

mod common;

use std::future::Future;
use std::path::Path as FsPath;
use std::pin::Pin;

use common::{Watchdog, Way, assert_settled, poll_once};
use nowait::sim::Sim;
use nowait::{Buf, Engine, File, Nowait, OpenOptions, Path};

/// More than any queue to the kernel, or pool, holds.
const HUNG: u64 = 300;

type Hung<'f> = Pin<Box<dyn Future<Output = ()> + Send + 'f>>;

/// Reads and writes of a file that hangs, polled once: on an executor of others, and in this thread's own queue.
fn hang(file: &File) -> Vec<Hung<'_>> {
    let mut hung: Vec<Hung<'_>> = Vec::new();
    for i in 0..HUNG {
        hung.push(Box::pin(async move { drop(file.read_at(Buf::zeroed(4096), i * 4096).await) }));
        hung.push(Box::pin(async move { drop(file.write_at(Buf::zeroed(1 << 20), i << 20).await) }));
    }
    hung.iter_mut().for_each(|operation| assert!(poll_once(operation.as_mut()).is_pending()));
    hung
}

/// What others do meanwhile, however they call.
fn works(nowait: &Nowait, path: &FsPath) {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    for way in Way::ALL {
        let file = way.run(options.open_in(nowait, path)).unwrap();
        for i in 0..40 {
            way.run(file.write_all_at(Buf::zeroed(4096), i * 8192)).unwrap();
            way.run(file.read_exact_at((i + 1) * 4096, 4096)).unwrap();
        }
        let many = (0..40).map(|i| file.read_exact_at(i * 4096, 4096));
        way.run_future(futures::future::join_all(many)).into_iter().for_each(|read| drop(read.unwrap()));
        let many = (0..40).map(|i| file.write_all_at(Buf::zeroed(4096), i * 4096));
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
