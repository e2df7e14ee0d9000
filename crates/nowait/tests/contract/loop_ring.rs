//! Rings of event loops: completions are noticed by whoever looks, and by a thread of the library
//! where nobody does.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Sample, Watchdog, assert_settled, eventually, open_direct};
use nowait::embed::LoopRing;
use nowait::{Buf, Engine, File, Nowait, Result, Started};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const PAGE: usize = 4096;

/// Counts wake-ups, and those on the thread that looks.
#[derive(Default)]
struct Wakes {
    all: AtomicU32,
    here: AtomicU32,
}

thread_local!(static LOOKS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.all.fetch_add(1, SeqCst);
        self.here.fetch_add(LOOKS.get().into(), SeqCst);
    }
}

/// A file whose reads all go to a ring, and a ring of a loop.
struct Fixture {
    nowait: Nowait,
    file: File,
    ring: LoopRing,
    sample: Sample,
    _watchdog: Watchdog,
}

impl Fixture {
    /// None where there are no rings, or no direct I/O.
    fn or_skip(name: &str) -> Option<Fixture> {
        let skip = |error: &nowait::Error| eprintln!("skipped: {error}");
        let ring = LoopRing::new().inspect_err(skip).ok()?;
        let nowait = Nowait::builder().engine(Engine::Uring).build().inspect_err(skip).ok()?;
        let sample = Sample::new(1 << 20);
        // A direct read of what is not written back has to wait, and goes to the pool.
        let file = open_direct(&nowait, &sample.cool().path)?;
        Some(Fixture { nowait, file, ring, sample, _watchdog: Watchdog::new(name.to_owned(), 60) })
    }

    fn read(&self, page: usize) -> Started<Result<Buf>> {
        self.file.read_range((page * PAGE) as u64, PAGE).start()
    }

    /// Looks when the descriptor is readable, or after a while: a thread of the library may have come
    /// before, which a waker would tell.
    fn look(&self) {
        let while_ = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        poll(&mut [PollFd::new(&self.ring, PollFlags::IN)], Some(&while_)).unwrap();
        LOOKS.set(true);
        self.ring.notice();
        LOOKS.set(false);
    }
}

fn ready<T>(started: &mut Started<T>, wakes: &Arc<Wakes>) -> Option<T> {
    match Pin::new(started).poll(&mut Context::from_waker(&Waker::from(wakes.clone()))) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

/// Reads 64 pages, and counts wake-ups: all, and those on the thread that looks.
fn wake_ups(fixture: &Fixture) -> (u32, u32) {
    let wakes: Arc<Wakes> = Arc::default();
    let mut reads = fixture.ring.submit(|| (0..64).map(|page| (page, fixture.read(page))).collect::<Vec<_>>());
    reads.retain_mut(|(_, read)| ready(read, &wakes).is_none());
    while !reads.is_empty() {
        fixture.look();
        reads.retain_mut(|(page, read)| match ready(read, &wakes) {
            Some(result) => {
                assert_eq!(result.unwrap()[..], *fixture.sample.expected((*page * PAGE) as u64, PAGE));
                false
            }
            None => true,
        });
    }
    assert_settled(&fixture.nowait);
    (wakes.all.load(SeqCst), wakes.here.load(SeqCst))
}

/// A machine may be so busy that a thread of the library helps this loop in one round; it is not
/// in every round.
#[test]
fn the_thread_that_looks_notices() {
    let Some(fixture) = Fixture::or_skip("the thread that looks") else { return };
    let noticed = eventually(|| {
        let (all, here) = wake_ups(&fixture);
        all > 0 && here * 2 > all
    });
    assert!(noticed, "in no round did the thread that looks make most wake-ups");
    assert!(fixture.nowait.stats().ring > 32, "{:?}", fixture.nowait.stats());
}

#[test]
fn what_a_loop_does_not_notice_a_thread_does() {
    let Some(fixture) = Fixture::or_skip("nobody looks") else { return };
    for round in 0..3 {
        let wakes: Arc<Wakes> = Arc::default();
        let mut read = fixture.ring.submit(|| fixture.read(round));
        assert!(ready(&mut read, &wakes).is_none(), "a direct read is pending until somebody has looked");
        assert!(eventually(|| wakes.all.load(SeqCst) > 0), "nobody came");
        assert_eq!(
            ready(&mut read, &wakes).unwrap().unwrap()[..],
            *fixture.sample.expected((round * PAGE) as u64, PAGE)
        );
        // The loop takes its ring back.
        let mut read = fixture.ring.submit(|| fixture.read(round + 3));
        let wakes: Arc<Wakes> = Arc::default();
        let mut result = ready(&mut read, &wakes);
        while result.is_none() {
            fixture.ring.notice();
            result = ready(&mut read, &wakes);
        }
        result.unwrap().unwrap();
    }
    assert_settled(&fixture.nowait);
}

/// Symptom that it looks for: a thread waits for an operation which only it could notice.
#[test]
fn a_loop_that_blocks_is_helped_at_once() {
    let Some(fixture) = Fixture::or_skip("the loop blocks") else { return };
    let page = || Buf::zeroed(PAGE);
    // The same operations, with nothing in the loop's ring.
    let alone = |round: usize| {
        fixture.read(round).wait().unwrap();
        (0..2).for_each(|_| drop(fixture.file.write_all_at(page(), 0).wait().unwrap()));
        fixture.read(0).wait().unwrap();
    };
    let blocked = |round: usize| {
        // On the operation itself.
        fixture.ring.submit(|| fixture.read(round)).wait().unwrap();
        // On another that has to come after it.
        let first = fixture.ring.submit(|| fixture.file.write_all_at(page(), 0).start());
        fixture.file.write_all_at(page(), 0).wait().unwrap();
        drop(first);
        // On a callback, which never is the loop's.
        let (sender, receiver) = std::sync::mpsc::channel();
        let tell = move |result: Result<Buf>| sender.send(result.is_ok()).unwrap();
        fixture.ring.submit(|| fixture.file.read_range(0, PAGE).on_complete(tell));
        assert!(receiver.recv_timeout(Duration::from_secs(30)).unwrap());
    };
    let fastest = |work: &dyn Fn(usize)| {
        let time = |round| {
            let begun = Instant::now();
            work(round);
            begun.elapsed()
        };
        (0..50).map(time).min().unwrap()
    };
    let (usual, helped) = (fastest(&alone), fastest(&blocked));
    // Unasked, help comes after 50 ms and more, in every round. A busy machine holds up some.
    assert!(helped < usual + Duration::from_millis(50), "the fastest rounds: {helped:?}, {usual:?} alone");
    assert_settled(&fixture.nowait);
}

#[test]
fn many_threads_submit_and_look() {
    let Some(fixture) = Fixture::or_skip("many threads") else { return };
    thread::scope(|scope| {
        for thread in 0..4 {
            let fixture = &fixture;
            scope.spawn(move || {
                for round in 0..200 {
                    let page = (thread * 50 + round) % 256;
                    let wakes: Arc<Wakes> = Arc::default();
                    let mut reads = fixture.ring.submit(|| [fixture.read(page), fixture.read(255 - page)]);
                    for (read, page) in reads.iter_mut().zip([page, 255 - page]) {
                        let bytes = loop {
                            match ready(read, &wakes) {
                                Some(bytes) => break bytes.unwrap(),
                                None => fixture.ring.notice(),
                            }
                        };
                        assert_eq!(bytes[..], *fixture.sample.expected((page * PAGE) as u64, PAGE));
                    }
                }
            });
        }
    });
    assert!(fixture.nowait.stats().ring > 4 * 200, "{:?}", fixture.nowait.stats());
    assert_settled(&fixture.nowait);
}

/// More than the ring has places for.
#[test]
fn a_full_ring_has_a_line() {
    let Some(fixture) = Fixture::or_skip("a full ring") else { return };
    let wakes: Arc<Wakes> = Arc::default();
    let mut reads = fixture.ring.submit(|| (0..1000).map(|read| fixture.read(read % 256)).collect::<Vec<_>>());
    while !reads.is_empty() {
        reads.retain_mut(|read| ready(read, &wakes).map(|result| result.unwrap()).is_none());
        fixture.ring.notice();
    }
    assert_settled(&fixture.nowait);
}

#[test]
fn a_ring_that_is_dropped_lets_go_of_what_it_has() {
    let Some(fixture) = Fixture::or_skip("a dropped ring") else { return };
    for round in 0..20 {
        let ring = LoopRing::new().unwrap();
        let kept = ring.submit(|| fixture.read(round));
        drop(ring.submit(|| fixture.read(round + 1)));
        drop(ring);
        kept.wait().unwrap();
    }
    // The thread that sees them through holds no file.
    assert!(eventually(|| fixture.nowait.stats().ended() == fixture.nowait.stats().started));
    assert_settled(&fixture.nowait);
}

/// One read is tried where it begins. Many are left to the ring, whose one call copies cached data.
#[test]
fn many_reads_are_left_to_the_ring_and_single_ones_are_tried() {
    let Some(Fixture { nowait, ring, sample, .. }) = Fixture::or_skip("many reads") else { return };
    let file = sample.open(&nowait);
    let read = |page: usize| file.read_range((page * PAGE) as u64, PAGE);
    (0..16).for_each(|page| drop(read(page).wait().unwrap()));
    nowait::block_on(read(0)).unwrap();
    if file.nowait_reads() != Some(true) {
        return eprintln!("skipped: the file system has no non-blocking reads");
    }
    let attempts = || nowait.stats().attempts;
    // Other tests may fill the device, whose reads the ring then hands on.
    let left = || nowait.stats().ring + nowait.stats().handed_on;
    let is_right = |page: usize, started: Started<Result<Buf>>| {
        *started.wait().unwrap() == *sample.expected((page * PAGE) as u64, PAGE)
    };
    for round in 0..3 {
        let before = (attempts(), left());
        let started = ring.submit_many(|| (0..8).map(|page| read(page).start()).collect::<Vec<_>>());
        assert!(started.into_iter().enumerate().all(|(page, started)| is_right(page, started)));
        assert_eq!((attempts(), left()), (before.0, before.1 + 8), "round {round}");
        // A panic within it ends it, too.
        let panics = std::panic::AssertUnwindSafe(|| ring.submit_many(|| panic!("on purpose")));
        assert!(std::panic::catch_unwind(panics).is_err());
        let tried = ring.submit(|| read(3).start());
        assert_eq!(attempts(), before.0 + 1, "round {round}");
        assert!(is_right(3, tried));
    }
    assert_settled(&nowait);
}

#[test]
fn a_panic_within_a_submission_leaves_the_ring_in_order() {
    let Some(fixture) = Fixture::or_skip("a panic") else { return };
    let mut read = None;
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        fixture.ring.submit(|| {
            read = Some(fixture.read(7));
            std::panic::resume_unwind(Box::new(()));
        })
    }));
    assert!(panicked.is_err());
    let (mut read, wakes) = (read.unwrap(), Arc::default());
    while ready(&mut read, &wakes).is_none() {
        fixture.ring.notice();
    }
    // Not in the loop's ring.
    fixture.read(8).wait().unwrap();
    assert_settled(&fixture.nowait);
}
