//! Locks that an operation takes, where many threads would wait for them: `make locks`, which builds
//! the library so that it counts them.

use std::future::Future;
use std::pin::Pin;

use crate::common::{Sample, open_direct, writable};
use futures::executor::block_on;
use futures::future::join_all;
use nowait::{Buf, File, Nowait};

const PAGE: usize = 4096;
const COUNT: u64 = 320;

/// Makes `COUNT` operations, `depth` at a time, after as many that warm up; each takes at most `own`
/// locks on this thread and `all` on all threads, the watchers' included.
fn count<'f, F: Future + 'f>(name: &str, depth: u64, (own, all): (f64, f64), operation: impl Fn(u64) -> F) {
    let round = |first: u64| {
        for at in (0..COUNT).step_by(depth as usize) {
            let some: Vec<Pin<Box<F>>> = (at..at + depth).map(|i| Box::pin(operation(first + i))).collect();
            block_on(join_all(some));
        }
    };
    round(0);
    let before = nowait::embed::locks();
    round(COUNT);
    let after = nowait::embed::locks();
    let each = |before: u64, after: u64| (after - before) as f64 / COUNT as f64;
    let found = (each(before.0, after.0), each(before.1, after.1));
    eprintln!("{name:48} {:6.2} {:6.2}", found.0, found.1);
    assert!(found.0 <= own && found.1 <= all, "{name}: {found:?} locks, not {:?}", (own, all));
}

#[test]
fn locks_of_each_operation() {
    // Each page once, warm-up included.
    let sample = Sample::new(2 * COUNT as usize * PAGE);
    let nowait = Nowait::builder().stall_budget(std::time::Duration::from_secs(10)).build().unwrap();
    std::fs::read(&sample.path).unwrap();
    let file = sample.open(&nowait);
    eprintln!("{:48} {:>6} {:>6}", "locks of an operation", "own", "all");
    let block = std::cell::RefCell::new(Buf::zeroed(PAGE));
    let at = |i: u64| i * PAGE as u64;
    if crate::common::takes_attempts(&sample.path) {
        count("cached read_at, a future", 1, (0.0, 0.0), async |i| {
            let buffer = block.take();
            *block.borrow_mut() = file.read_at(buffer, at(i)).await.unwrap().1;
        });
        count("cached read_range, a future", 1, (0.0, 0.0), async |i| {
            drop(file.read_range(at(i), PAGE).await.unwrap())
        });
        count("cached read_range, waited for", 1, (0.0, 0.0), async |i| {
            drop(file.read_range(at(i), PAGE).wait().unwrap())
        });
    }
    let file = writable(&nowait, &sample.path);
    let write = async |file: &File, i: u64| {
        let buffer = block.take();
        *block.borrow_mut() = file.write_all_at(buffer, at(i)).await.unwrap();
    };
    // One in a hundred finds out whether others would continue it.
    count("buffered write, a future", 1, (2.1, 2.5), |i| write(&file, i));
    // The 320 writes outlast some glances of the watcher, each with a lock or two.
    count("durable write, a future", 1, (10.0, 20.5), async |i| {
        let buffer = block.take();
        *block.borrow_mut() = file.write_all_at(buffer, at(i)).durable().await.unwrap();
    });
    let Some(direct) = open_direct(&nowait, &sample.path) else { return };
    if !nowait.has_ring() {
        return eprintln!("skipped: no io_uring");
    }
    for depth in [1, 32] {
        count(&format!("cold direct read, a future, depth {depth}"), depth, (11.0, 18.0), async |i| {
            drop(direct.read_range(at(i), PAGE).await.unwrap())
        });
    }
    // One of them is for reading completions: a helper may do that in this thread's place.
    count("cold direct read, our block_on, depth 1", 1, (10.5, 11.0), async |i| {
        drop(nowait::block_on(direct.read_range(at(i), PAGE)).unwrap())
    });
    // The own share depends on who reaps: at depth 32 it is nearly all where the watcher comes late.
    for depth in [1, 32] {
        count(&format!("direct write, a future, depth {depth}"), depth, (18.0, 26.0), async |i| {
            drop(direct.write_all_at(Buf::zeroed(PAGE), at(i)).await.unwrap())
        });
    }
}
