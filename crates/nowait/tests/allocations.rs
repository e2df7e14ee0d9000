//! A read that is cached allocates nothing, in whatever way it is made.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::Sample;
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

/// Allocations in a hundred calls of `read`, after some that may fill pools and make what is made once.
fn allocations(mut read: impl FnMut(u64)) -> u64 {
    (0..10).for_each(&mut read);
    let before = ALLOCATIONS.get();
    (0..100).for_each(&mut read);
    ALLOCATIONS.get() - before
}

#[test]
fn cached_reads_allocate_nothing() {
    let sample = Sample::new(1 << 20);
    let nowait = Nowait::builder().build().unwrap();
    let file = sample.open(&nowait);
    std::fs::read(&sample.path).unwrap();
    let (mut slice, mut buffer) = ([0; 4096], Some(vec![0; 4096]));
    assert_eq!(allocations(|i| file.read_exact_into(&mut slice, i * 4096).unwrap()), 0, "read_exact_into");
    assert_eq!(
        allocations(|i| drop(file.read_exact_at(i * 4096, 4096).wait().unwrap())),
        0,
        "read_exact_at, waited for"
    );
    let mut read_at = |i: u64| {
        let (n, back) = futures::executor::block_on(file.read_at(buffer.take().unwrap(), i * 4096)).unwrap();
        assert_eq!(n, 4096);
        buffer = Some(back);
    };
    assert_eq!(allocations(&mut read_at), 0, "read_at, awaited");
    let exact = |i: u64| drop(futures::executor::block_on(file.read_exact_at(i * 4096, 4096)).unwrap());
    assert_eq!(allocations(exact), 0, "read_exact_at, awaited");
    let mut memory = vec![0; 64 * 100];
    let ranges: Vec<(u64, usize)> = (0..64).map(|i| (i * 5000, 100)).collect();
    assert_eq!(allocations(|_| assert!(file.gather_into(&ranges, &mut memory).unwrap().is_empty())), 0, "gather_into");
    assert_eq!(nowait.stats().ring + nowait.stats().pool, 0, "all of it was cached");
}
