//! What is cached allocates nothing, in whatever way it is read or written; what a queue has, a slot.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use crate::common::{Sample, open_direct, writable};
use nowait::Nowait;

thread_local!(static ALLOCATIONS: Cell<u64> = const { Cell::new(0) });

/// Counts the allocations of each thread.
struct Counting;

// SAFETY: everything is left to `System`.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations in a hundred calls of `work`, after some that may fill pools and make what is made
/// once. The fewest of several rounds: a read that a busy machine holds up counts as one that waited
/// for the device, and the next goes to a queue.
fn allocations(mut work: impl FnMut(u64)) -> u64 {
    let mut round = || {
        (0..10).for_each(&mut work);
        let before = ALLOCATIONS.get();
        (0..100).for_each(&mut work);
        ALLOCATIONS.get() - before
    };
    (0..20).map(|_| round()).min().unwrap_or(u64::MAX)
}

#[test]
fn block_on_of_a_ready_future_allocates_nothing() {
    assert_eq!(allocations(|i| assert_eq!(nowait::block_on(async { i }), i)), 0);
}

#[test]
fn cached_reads_allocate_nothing() {
    let sample = Sample::new(1 << 20);
    let nowait = Nowait::builder().build().unwrap();
    let file = sample.open(&nowait);
    std::fs::read(&sample.path).unwrap();
    let (mut slice, mut buffer) = ([0; 4096], Some(vec![0; 4096]));
    assert_eq!(allocations(|i| file.read_exact_into(&mut slice, i * 4096).unwrap()), 0, "read_exact_into");
    assert_eq!(allocations(|i| drop(file.read_range(i * 4096, 4096).wait().unwrap())), 0, "read_range, waited for");
    let mut read_at = |i: u64| {
        let (n, back) = futures::executor::block_on(file.read_at(buffer.take().unwrap(), i * 4096)).unwrap();
        assert_eq!(n, 4096);
        buffer = Some(back);
    };
    assert_eq!(allocations(&mut read_at), 0, "read_at, awaited");
    let exact = |i: u64| drop(futures::executor::block_on(file.read_range(i * 4096, 4096)).unwrap());
    assert_eq!(allocations(exact), 0, "read_range, awaited");
    let mut memory = vec![0; 64 * 100];
    let ranges: Vec<(u64, usize)> = (0..64).map(|i| (i * 5000, 100)).collect();
    assert_eq!(allocations(|_| assert!(file.gather_into(&ranges, &mut memory).unwrap().is_empty())), 0, "gather_into");
}

#[test]
fn cached_writes_allocate_nothing() {
    let sample = Sample::new(1 << 20);
    // A machine with other work may take its time: no write goes to a thread for that.
    let nowait = Nowait::builder().stall_budget(std::time::Duration::from_secs(10)).build().unwrap();
    let file = writable(&nowait, &sample.path);
    std::fs::read(&sample.path).unwrap();
    let page = [7; 4096];
    assert_eq!(allocations(|i| file.write_all_from(&page, i * 4096).unwrap()), 0, "write_all_from");
    let mut buffer = Some(vec![7; 4096]);
    let mut waited = |i: u64| buffer = Some(file.write_all_at(buffer.take().unwrap(), i * 4096).wait().unwrap());
    assert_eq!(allocations(&mut waited), 0, "write_all_at, waited for");
    let mut awaited = |i: u64| {
        let write = file.write_all_at(buffer.take().unwrap(), i * 4096);
        buffer = Some(futures::executor::block_on(write).unwrap());
    };
    assert_eq!(allocations(&mut awaited), 0, "write_all_at, awaited");
    // Under a `block_on` of ours a write is kept now and then, to see if others continue it; that
    // takes a slot, and a list.
    let driven = nowait::block_on(async {
        let mut before = 0;
        for i in 0..2000 {
            if i == 1000 {
                before = ALLOCATIONS.get();
            }
            let (n, back) = file.write_at(buffer.take().unwrap(), i % 200 * 4096).await.unwrap();
            assert_eq!(n, 4096);
            buffer = Some(back);
        }
        ALLOCATIONS.get() - before
    });
    assert!(driven <= 40, "{driven} allocations of 1000 writes that come alone, driven by our own block_on");
    assert_eq!(nowait.stats().ring + nowait.stats().pool, 0, "all of it was done here");
}

#[test]
fn queued_reads_and_writes_allocate_their_slots() {
    let sample = Sample::new(1 << 20);
    let nowait = Nowait::builder().build().unwrap();
    let Some(file) = open_direct(&nowait, &sample.path) else { return };
    if !nowait.has_ring() {
        return eprintln!("skipped: no io_uring");
    }
    // A list may grow once more.
    let one_each = |found: u64, name: &str| assert!((100..105).contains(&found), "{found} of a hundred {name}");
    let read = |i: u64| file.read_range(i % 200 * 4096, 4096);
    let write = |i: u64| file.write_all_at(nowait::Buf::zeroed(4096), i % 200 * 4096);
    one_each(allocations(|i| drop(futures::executor::block_on(read(i)).unwrap())), "read, awaited");
    one_each(allocations(|i| drop(nowait::block_on(read(i)).unwrap())), "read, driven");
    one_each(allocations(|i| drop(futures::executor::block_on(write(i)).unwrap())), "write, awaited");
    one_each(allocations(|i| drop(nowait::block_on(write(i)).unwrap())), "write, driven");
}
