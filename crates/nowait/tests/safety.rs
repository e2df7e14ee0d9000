//! Futures dropped and leaked anywhere, full queues, threads that end, signals, forks, panics:
//! nothing is written to that was given back, nothing hangs, and the counters' law holds.

mod common;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use common::rng::Rng;
use common::{
    Sample, Watchdog, aio_instance, assert_settled, at_most, child, contents, eventually, expected, open, open_direct,
    poll_once, read_pages_in_every_way,
};
use futures::future::join_all;
use nowait::sim::{Faults, Sim};
use nowait::{Engine, File, Nowait, Route};

const PAGE: usize = 4096;

/// A simulated disk that moves only when told to, with a file "a", opened.
fn manual(seed: u64, bytes: &[u8], set: impl FnOnce(&mut Faults)) -> (Sim, Nowait, File) {
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
enum End {
    Drop,
    Leak,
}

impl End {
    fn of<T>(self, future: T) {
        match self {
            End::Drop => drop(future),
            End::Leak => std::mem::forget(future),
        }
    }
}

#[test]
fn dropped_or_leaked_after_every_step() {
    for end in [End::Drop, End::Leak] {
        let mut steps = 0;
        for finished in [false, true] {
            loop {
                let (sim, nowait, file) = manual(3, &contents(64, 1), |faults| {
                    (faults.not_now, faults.short, faults.interrupted) = (1.0, 0.9, 0.3);
                });
                let mut read = Box::pin(file.read_at(vec![0; 64], 0));
                end.of(file.read_at(vec![0; 64], 0));
                assert!(poll_once(read.as_mut()).is_pending());
                for _ in 0..steps {
                    sim.step();
                }
                let done = sim.pending() == 0;
                end.of(read);
                assert_settled(&nowait);
                assert_eq!(nowait.stats().ended(), if steps == 0 && finished { 0 } else { 2 });
                steps += 1;
                if done || finished {
                    break;
                }
            }
        }
        assert!(steps > 3, "{end:?}: a read with faults takes several steps, not {steps}");
    }
}

#[test]
fn dropped_or_leaked_in_random_interleavings() {
    let mut rng = Rng::for_test();
    let bytes = contents(5000, 2);
    for round in 0..3000 {
        let chance = |rng: &mut Rng| [0.0, 0.3, 0.9][rng.below(3)];
        let (sim, nowait, file) = manual(rng.next(), &bytes, |faults| {
            (faults.not_now, faults.empty_now, faults.short_now) =
                (chance(&mut rng), chance(&mut rng), chance(&mut rng));
            (faults.short, faults.interrupted) = (chance(&mut rng), chance(&mut rng));
            faults.nowait_refused = rng.below(5) == 0;
        });
        sim.set_depth(1 + rng.below(4));
        let mut live = Vec::new();
        for _ in 0..60 {
            let chosen = rng.below(live.len().max(1));
            match rng.below(8) {
                0..3 => {
                    let (offset, len) = (rng.below(5200) as u64, rng.below(800));
                    live.push((offset, len, Box::pin(file.read_at(vec![0; len], offset))));
                }
                3..5 if !live.is_empty() => {
                    let (offset, len, read) = &mut live[chosen];
                    if let Poll::Ready(result) = poll_once(read.as_mut()) {
                        let (n, buffer) = result.unwrap();
                        assert!(buffer[..n] == *expected(&bytes, *offset, *len), "round {round}");
                        drop(live.swap_remove(chosen));
                    }
                }
                5..7 => drop(sim.step()),
                7 if !live.is_empty() => {
                    [End::Drop, End::Leak][rng.below(2)].of(live.swap_remove(chosen));
                }
                _ => {}
            }
        }
        // Those that are left finish.
        for (offset, len, mut read) in live {
            let (n, buffer) = loop {
                match poll_once(read.as_mut()) {
                    Poll::Ready(result) => break result.unwrap(),
                    Poll::Pending => assert!(sim.step(), "round {round}: nothing is under way, and the read not ready"),
                }
            };
            assert!(buffer[..n] == *expected(&bytes, offset, len), "round {round}");
        }
        assert_settled(&nowait);
        assert_eq!(sim.pending(), 0);
    }
}

#[test]
fn line_is_first_come_first_served() {
    let (sim, _nowait, file) = manual(5, &contents(1000, 3), |faults| faults.not_now = 1.0);
    sim.set_depth(1);
    let mut reads: Vec<_> = (0..200).map(|i| Box::pin(file.read_range(i, 1))).collect();
    reads.iter_mut().for_each(|read| assert!(poll_once(read.as_mut()).is_pending()));
    while !reads.is_empty() {
        assert!(sim.step());
        assert!(poll_once(reads.remove(0).as_mut()).is_ready());
        assert!(reads.first_mut().is_none_or(|read| poll_once(read.as_mut()).is_pending()));
    }
}

#[test]
fn abandoned_waiters_do_not_pile_up() {
    // glibc before 2.38 does not find the holes of aligned memory again, and takes 800 MiB for 11.
    if !common::has_memory(1 << 30) {
        return;
    }
    let (sim, nowait, file) = manual(6, &contents(1000, 4), |faults| faults.not_now = 1.0);
    sim.set_depth(1);
    let mut wanted = Vec::new();
    for i in 0..100_000 {
        let mut read = Box::pin(file.read_range(i % 1000, 1));
        assert!(poll_once(read.as_mut()).is_pending());
        if i % 1000 == 0 {
            wanted.push(read);
        }
        assert!(sim.pending() < 1000, "{} pending", sim.pending());
    }
    while sim.step() {}
    wanted.iter_mut().for_each(|read| assert!(poll_once(read.as_mut()).is_ready()));
    assert_settled(&nowait);
}

fn forced(route: Route) -> Nowait {
    Nowait::builder().route(Some(route)).build().unwrap()
}

/// Polls reads of cold data once and gives them up.
async fn give_up(file: &File, rng: &mut Rng, count: usize, end: End) {
    let len = file.size().await.unwrap() as usize;
    for _ in 0..count {
        let offset = rng.below(len - PAGE) as u64;
        let mut read = Box::pin(file.read_at(vec![0; PAGE], offset));
        let _ = std::future::poll_fn(|context| Poll::Ready(read.as_mut().poll(context))).await;
        end.of(read);
    }
}

#[test]
fn memory_of_abandoned_reads_stays_with_the_kernel() {
    let _watchdog = Watchdog::new("memory_of_abandoned_reads_stays_with_the_kernel", 60);
    const LEN: usize = 16 << 20;
    let mut rng = Rng::for_test();
    let sample = Sample::new(LEN);
    for route in [Route::Ring, Route::Pool] {
        let nowait = forced(route);
        let file = sample.open(&nowait);
        for round in 0..24 {
            sample.cool();
            let canaries = std::thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    let reads = give_up(&file, &mut rng, 150, [End::Drop, End::Leak][round / 2 % 2]);
                    match round % 2 {
                        0 => futures::executor::block_on(reads),
                        _ => nowait::block_on(reads),
                    }
                    // Freed memory of that size would be given out again here.
                    (0..300).map(|_| vec![0x5a; PAGE]).collect::<Vec<_>>()
                });
                thread.join().unwrap()
            });
            assert_settled(&nowait);
            assert!(canaries.iter().flatten().all(|byte| *byte == 0x5a), "{route:?}, round {round}");
        }
    }
}

#[test]
fn thread_ends_with_abandoned_operations() {
    let _watchdog = Watchdog::new("thread_ends_with_abandoned_operations", 60);
    const LEN: usize = 16 << 20;
    let sample = Sample::new(LEN);
    let nowait = forced(Route::Ring);
    let file = sample.cool().open(&nowait);
    let start = Instant::now();
    for round in 0..20 {
        let file = file.clone();
        // More than the ring takes, so that some wait in line.
        let thread = std::thread::spawn(move || nowait::block_on(give_up(&file, &mut Rng::new(round), 400, End::Drop)));
        thread.join().unwrap();
    }
    assert_settled(&nowait);
    assert!(start.elapsed() < at_most(Duration::from_secs(20)), "{:?}", start.elapsed());
}

#[test]
fn full_queues_finish_in_full() {
    if !common::has_memory(128 << 20) {
        return;
    }
    let _watchdog = Watchdog::new("full_queues_finish_in_full", 60);
    const READS: usize = 5000;
    const LEN: usize = 20 << 20;
    let sample = Sample::new(LEN);
    for route in [None, Some(Route::Ring), Some(Route::Pool)] {
        for own in [false, true] {
            let nowait = Nowait::builder().route(route).build().unwrap();
            let file = sample.cool().open(&nowait);
            let offset = |i: usize| ((i * 7919 * PAGE) % LEN) as u64;
            let reads = join_all((0..READS).map(|i| file.read_range(offset(i), PAGE)));
            let results = if own { nowait::block_on(reads) } else { futures::executor::block_on(reads) };
            for (i, result) in results.into_iter().enumerate() {
                assert!(*result.unwrap() == *sample.expected(offset(i), PAGE), "{route:?}: read {i}");
            }
            assert_settled(&nowait);
            assert!(!own || route != Some(Route::Ring) || !nowait.has_ring() || nowait.stats().queued > 0);
        }
    }
}

/// The kernel goes on with a request in the thread that submitted it, and gives it up when that
/// thread is gone. Whoever waits must not see that.
#[test]
fn submitting_thread_ends_before_its_reads() {
    let _watchdog = Watchdog::new("submitting_thread_ends_before_its_reads", 60);
    const LEN: usize = 16 << 20;
    let sample = Sample::new(LEN);
    let nowait = forced(Route::Ring);
    let file = sample.open(&nowait);
    for round in 0..40u64 {
        sample.cool();
        let offset = |i: u64| (i * 7919 * PAGE as u64 + round) % (LEN - PAGE) as u64;
        let mut reads: Vec<_> = (0..100).map(|i| Box::pin(file.read_range(offset(i), PAGE))).collect();
        let submitted = std::thread::scope(|scope| {
            let submit = || {
                reads.retain_mut(|read| poll_once(read.as_mut()).is_pending());
                reads
            };
            scope.spawn(submit).join().unwrap()
        });
        let results = futures::executor::block_on(join_all(submitted));
        for result in results {
            assert_eq!(result.unwrap().len(), PAGE);
        }
    }
    assert_settled(&nowait);
}

/// A direct read waits for the device whatever it is told: it must not do so on the caller's
/// thread.
#[test]
fn direct_reads_are_never_inline() {
    direct_reads_wait_elsewhere(Sample::new(4 << 20));
}

/// Symptom: overlayfs refuses `RWF_NOWAIT`; files that do were taken to lie in memory, and direct
/// reads held up the caller until the stall budget was spent.
#[test]
fn direct_reads_of_files_that_refuse_attempts_are_never_inline() {
    if let Some(mount) = common::mounts::Mount::or_skip(common::mounts::Kind::Overlay) {
        direct_reads_wait_elsewhere(Sample::new_in(mount.path(), 4 << 20));
    }
}

fn direct_reads_wait_elsewhere(sample: Sample) {
    let nowait = Nowait::builder().build().unwrap();
    let mut options = nowait::OpenOptions::new();
    options.read(true).custom_flags(libc::O_DIRECT);
    let file = match options.open_in(&nowait, &sample.path).wait() {
        Ok(file) => file,
        Err(error) => return eprintln!("skipped: direct I/O: {error}"),
    };
    if file.direct() == nowait::DirectIo::Refused {
        return eprintln!("skipped: direct I/O: the file lies in memory");
    }
    let before = nowait.stats();
    let reads = join_all((0..64).map(|i| file.read_range(i * 16384, PAGE)));
    for (i, read) in futures::executor::block_on(reads).into_iter().enumerate() {
        assert!(*read.unwrap() == *sample.expected(i as u64 * 16384, PAGE), "read {i}");
    }
    let gathered =
        futures::executor::block_on(file.gather([(0, PAGE), (65536, PAGE)]).into_buffer(nowait::Buf::zeroed(2 * PAGE)));
    assert!(gathered.unwrap().iter().all(|range| range.unwrap().len() == PAGE));
    let stats = nowait.stats();
    assert_eq!((stats.inline, stats.attempts), (before.inline, before.attempts), "{stats:?}");
}

/// The loser of a race is not waited for.
#[test]
fn block_on_lets_go_of_what_its_future_left_behind() {
    let sample = Sample::new(4 << 20);
    let nowait = forced(Route::Ring);
    let file = sample.cool().open(&nowait);
    let mut read = Some(Box::pin(file.read_range(0, PAGE)));
    nowait::block_on(std::future::poll_fn(move |context| {
        assert!(read.as_mut().unwrap().as_mut().poll(context).is_pending());
        Poll::Ready(())
    }));
    if nowait.has_ring() {
        assert_eq!(nowait.stats().ended(), 1, "only the open: the read is still under way, and nobody's");
    }
    nowait.drain();
    let stats = nowait.stats();
    assert_eq!((stats.cancelled, stats.ended()), (1, stats.started), "`drain` sees to this thread's own ring");
}

#[test]
fn dropped_instances_take_their_threads_with_them() {
    child::play("instances");
}

fn instances_come_and_go() {
    let sample = Sample::new(1 << 20);
    let before = common::resources();
    for round in 0..300 {
        let nowait = forced(Route::Ring);
        let file = sample.open(&nowait);
        if round % 2 == 0 {
            futures::executor::block_on(file.read_range(0, 10)).unwrap();
        }
        #[cfg(feature = "tokio")]
        {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_io().build().unwrap();
            if round % 3 == 0 {
                let _entered = runtime.enter();
                nowait.attach_tokio().unwrap();
            }
            let clone = file.clone();
            runtime.block_on(runtime.spawn(async move { clone.read_range(0, 10).await.unwrap() })).unwrap();
            runtime.shutdown_background();
        }
    }
    let gone = || common::resources().0 <= before.0 + 8 && common::resources().1 <= before.1 + 8;
    assert!(eventually(gone), "{before:?} before, {:?} after", common::resources());
}

#[test]
fn file_and_instance_dropped_with_work_in_flight() {
    let _watchdog = Watchdog::new("file_and_instance_dropped_with_work_in_flight", 60);
    const LEN: usize = 8 << 20;
    let sample = Sample::new(LEN);
    for round in 0..60 {
        let nowait = forced([Route::Ring, Route::Pool][round % 2]);
        let file = sample.cool().open(&nowait);
        let clone = file.clone();
        let mut rng = Rng::new(round as u64);
        futures::executor::block_on(give_up(&clone, &mut rng, 300, End::Drop));
        let start = Instant::now();
        match round % 3 {
            0 => drop((nowait, file, clone)),
            1 => drop((clone, file, nowait)),
            _ => {
                clone.close().unwrap();
                drop(nowait);
                file.close().unwrap();
            }
        }
        assert!(start.elapsed() < at_most(Duration::from_secs(1)), "dropping waits for nobody");
    }
    assert!(
        eventually(|| common::descriptors_of(&sample.path) == 0),
        "{} are open",
        common::descriptors_of(&sample.path)
    );
}

/// A leaked future leaks memory. The descriptor is the operation's only until it is complete.
#[test]
fn leaked_futures_do_not_keep_files_open() {
    let sample = Sample::new(1 << 20);
    for route in [Route::Ring, Route::Pool] {
        let nowait = forced(route);
        let file = sample.cool().open(&nowait);
        futures::executor::block_on(give_up(&file, &mut Rng::new(1), 10, End::Leak));
        nowait.drain();
        drop((file, nowait));
        let open = || common::descriptors_of(&sample.path);
        assert!(eventually(|| open() == 0), "{route:?}: {} open", open());
    }
}

/// `drain` also waits for what a ring hands on: unaligned direct reads, which it cannot do.
#[test]
fn drain_waits_for_what_was_handed_on() {
    let _watchdog = Watchdog::new("drain_waits_for_what_was_handed_on", 60);
    let sample = Sample::new(1 << 20);
    let nowait = forced(Route::Ring);
    let mut options = nowait::OpenOptions::new();
    options.read(true).custom_flags(libc::O_DIRECT);
    let file = match options.open_in(&nowait, &sample.path).wait() {
        Ok(file) => file,
        Err(error) => return eprintln!("skipped: direct I/O: {error}"),
    };
    for round in 0..200 {
        futures::executor::block_on(give_up(&file, &mut Rng::new(round), 20, End::Drop));
        nowait.drain();
        let stats = nowait.stats();
        assert_eq!(stats.started, stats.ended(), "round {round}: {stats:?}");
    }
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker that panics, on purpose");
    }
}

/// Polls with a waker that panics when it is woken.
fn poll_with_panic<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(&Waker::from(Arc::new(Panics))))
}

/// A blocking gather inside `block_on` runs the wakers of what else its thread has in flight, while
/// the kernel, or a thread, still fills the borrowed memory. The panic of one of them is reported,
/// and stays where it was.
#[test]
fn panicking_waker_inside_a_blocking_gather() {
    const LEN: usize = 32 << 20;
    let sample = Sample::new(LEN);
    let ring = forced(Route::Ring);
    if let Some(refusal) = ring.ring_refusal() {
        // On a thread of the pool the read would be complete before anyone gathers.
        return eprintln!("skipped: {refusal}");
    }
    let pool = Nowait::builder().route(Some(Route::Pool)).pool_threads_max(1).build().unwrap();
    let staged = sample.open(&ring);
    for (name, nowait) in [("ring", &ring), ("pool", &pool)] {
        let _watchdog = Watchdog::new(format!("panicking_waker_inside_a_blocking_gather, {name}"), 20);
        let file = sample.open(nowait);
        let ranges: Vec<_> = (0..8).map(|i| (i * (4 << 20), 1 << 20)).collect();
        for round in 0..20u64 {
            sample.cool();
            let mut memory = vec![0u8; 8 << 20];
            nowait::block_on(std::future::poll_fn(|_| {
                let mut read = Box::pin(staged.read_range((2 << 20) + round * 100_000, 100));
                assert!(poll_with_panic(read.as_mut()).is_pending());
                assert!(file.gather_into(&ranges, &mut memory).unwrap().is_empty());
                for ((offset, len), range) in ranges.iter().zip(memory.chunks(1 << 20)) {
                    assert!(range == sample.expected(*offset, *len), "{name}, round {round}");
                }
                // The memory is its owner's again.
                memory.fill(0x5a);
                Poll::Ready(())
            }));
            std::thread::sleep(Duration::from_millis(10));
            assert!(
                memory.iter().all(|byte| *byte == 0x5a),
                "{name}, round {round}: written to after it was given back"
            );
        }
        assert_settled(nowait);
    }
}

#[test]
fn panicking_wakers_harm_nobody_else() {
    const LEN: usize = 4 << 20;
    let sample = Sample::new(LEN);
    for (name, nowait) in [
        ("ring", forced(Route::Ring)),
        ("pool", Nowait::builder().route(Some(Route::Pool)).pool_threads_max(1).build().unwrap()),
    ] {
        let _watchdog = Watchdog::new(format!("panicking_wakers_harm_nobody_else, {name}"), 20);
        let file = sample.open(&nowait);
        for round in 0..10 {
            sample.cool();
            let mut reads: Vec<_> = (0..64).map(|i| Box::pin(file.read_range(i * 60_000 + round, 100))).collect();
            for (i, read) in reads.iter_mut().enumerate() {
                // Completions may be dealt with, and wakers run, at any submission.
                let _ = catch_unwind(AssertUnwindSafe(|| match i % 8 {
                    0 => poll_with_panic(read.as_mut()).is_ready(),
                    _ => poll_once(read.as_mut()).is_ready(),
                }));
            }
            drop(reads);
            let reads = join_all((0..64).map(|i| file.read_range(i * 60_000 + 9000, 100)));
            futures::executor::block_on(reads).into_iter().for_each(|read| assert_eq!(read.unwrap().len(), 100));
        }
        assert_settled(&nowait);
    }
}

/// Reads that were announced to the kernel are under way without a thread each: few threads collect
/// them.
#[test]
fn announced_reads_share_threads() {
    child::play("announced reads");
}

fn announced() {
    const LEN: usize = 32 << 20;
    let sample = Sample::new(LEN);
    let threads = |strict| {
        let nowait = Nowait::builder().engine(Engine::Pool).strict(strict).build().unwrap();
        let file = sample.cool().open(&nowait);
        let before = common::resources().1;
        let reads = join_all((0..64).map(|i| file.read_range((i * 7919 * PAGE as u64) % LEN as u64, PAGE)));
        for read in futures::executor::block_on(reads) {
            assert_eq!(read.unwrap().len(), PAGE);
        }
        assert_settled(&nowait);
        common::resources().1 - before
    };
    // Strict forbids to announce on the caller's thread: the call may wait.
    let (announced, alone) = (threads(false), threads(true));
    let told = format!("{announced} threads for announced reads, {alone} for others");
    // Where starting a thread takes longer than a read, few are started for any; and where all
    // takes long, a collector may be waited for until another is started.
    const FEW: usize = 20;
    assert!(announced <= FEW || common::is_slow() && announced <= alone, "{told}");
    assert!(announced < alone || alone <= FEW || common::is_slow(), "{told}");
}

#[test]
fn signals() {
    child::play("signals");
}

#[test]
fn fork_of_a_process_that_used_rings_and_pools() {
    child::play("fork");
}

#[test]
fn fork_of_a_process_that_used_libaio() {
    child::play("fork with libaio");
}

#[test]
fn fork_while_a_thread_writes_and_syncs() {
    child::play("fork while a thread syncs");
}

#[test]
fn fork_while_other_threads_read() {
    child::play("fork while others read");
}

#[test]
fn fork_while_a_value_is_made() {
    child::play("fork while a value is made");
}

#[test]
fn forked_thread_ends() {
    child::play("forked thread ends");
}

/// A child starts a driver of its own, and neither ends, drops nor polls what the parent started.
#[test]
fn fork_with_started_steps() {
    child::play("fork with started steps");
}

fn forked_with_started_steps() {
    let bytes = contents(2 * PAGE, 5);
    let (sim, _nowait, slow) = manual(5, &bytes, |faults| faults.not_now = 1.0);
    let sample = Sample::new(1 << 20);
    let file = sample.open(Nowait::shared());
    let ranges = [(100, 10), (512 << 10, 10)];
    let gather = || sample.cool().expected(100, 10) == file.gather(ranges).start().wait().unwrap().get(0).unwrap();
    assert!(gather());
    let mut pending = (0..4).map(|_| slow.gather([(0, 10), (5000, 10)]).start()).collect::<Vec<_>>();
    assert!(eventually(|| sim.pending() == 8));
    in_fork(|| {
        assert!(poll_once(Pin::new(&mut pending[0])).is_pending());
        pending.pop().into_iter().for_each(|started| started.on_complete(|_| panic!("called in the child")));
        pending.clear();
        (0..3).for_each(|_| assert!(gather()));
    });
    while sim.step() {}
    for started in pending {
        assert_eq!(started.wait().unwrap().get(1).unwrap(), expected(&bytes, 5000, 10));
    }
    assert!(gather());
}

/// Memory that drops with a note.
struct Noted(Vec<u8>, Arc<AtomicBool>);

impl AsMut<[u8]> for Noted {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        self.1.store(true, SeqCst);
    }
}

#[test]
fn memory_of_a_dropped_gather_is_kept_until_its_reads_have_ended() {
    let (sim, nowait, file) = manual(6, &contents(4 * PAGE, 6), |faults| faults.not_now = 1.0);
    for is_called_back in [false, true] {
        let freed = Arc::new(AtomicBool::new(false));
        let memory = nowait::Lent::new(Noted(vec![0; 200], freed.clone()));
        let gather = file.gather([(0, 100), (2 * PAGE as u64, 100)]).into_buffer(memory);
        if is_called_back {
            gather.on_complete(drop);
            assert!(eventually(|| sim.pending() == 2));
        } else {
            let started = gather.start();
            assert!(eventually(|| sim.pending() == 2));
            drop(started);
        }
        assert!(!freed.load(SeqCst), "called back: {is_called_back}");
        while sim.step() {}
        assert!(eventually(|| freed.load(SeqCst)), "called back: {is_called_back}");
    }
    assert_settled(&nowait);
}

/// Symptom: each callback of a cached read ran inside the one before, until the stack was used up.
#[test]
fn a_long_chain_of_callbacks_needs_little_stack() {
    const READS: u64 = 100_000;
    thread_local!(static DEPTH: std::cell::Cell<u32> = const { std::cell::Cell::new(0) });
    fn next(file: nowait::File, left: u64, done: std::sync::mpsc::Sender<bool>) {
        let again = file.clone();
        file.read_range(left % 16 * PAGE as u64, PAGE).on_complete(move |page| {
            let depth = DEPTH.replace(1);
            // It lies on the stack while the next read begins.
            let mut copied = [0u8; 2 * PAGE];
            copied[..PAGE].copy_from_slice(&page.unwrap());
            if left == 0 || depth > 0 {
                done.send(depth == 0).unwrap();
            } else {
                next(again, left - 1, done);
            }
            std::hint::black_box(&copied);
            DEPTH.set(depth);
        });
    }
    for builder in [Nowait::builder(), Nowait::builder().route(Some(Route::Pool))] {
        let nowait = builder.build().unwrap();
        let sample = Sample::new(16 * PAGE);
        let file = sample.open(&nowait);
        file.read_range(0, 16 * PAGE).wait().unwrap();
        let (done, ended) = std::sync::mpsc::channel();
        next(file, READS, done);
        assert!(ended.recv_timeout(std::time::Duration::from_secs(100)).unwrap(), "a callback inside another");
    }
}

/// Signals are for the program's own threads, apart from those that an instruction raises.
#[test]
fn threads_of_the_library_block_signals() {
    let nowait = Nowait::builder().build().unwrap();
    let sample = Sample::new(1 << 20);
    let file = sample.open(&nowait);
    sample.cool();
    file.gather([(0, 10), (512 << 10, 10)]).start().wait().unwrap();
    futures::executor::block_on(join_all((0..8).map(|page| file.read_range(page * 64 * PAGE as u64, PAGE))));
    let blocked = |task: &std::path::Path| -> Option<(String, u64)> {
        let name = std::fs::read_to_string(task.join("comm")).ok()?;
        let status = std::fs::read_to_string(task.join("status")).ok()?;
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"))?;
        Some((name.trim().to_owned(), u64::from_str_radix(mask.trim(), 16).unwrap()))
    };
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let all: Vec<_> = tasks.filter_map(|task| blocked(&task.path())).collect();
    let ours: Vec<_> = all.iter().filter(|(name, _)| name.starts_with("nowait-")).collect();
    let has = |mask: u64, signal: i32| mask >> (signal - 1) & 1 == 1;
    for (name, mask) in &ours {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGCHLD, libc::SIGALRM, libc::SIGUSR1] {
            assert!(has(*mask, signal), "{name} takes signal {signal}");
        }
        assert!(!has(*mask, libc::SIGSEGV) && !has(*mask, libc::SIGBUS), "{name}");
    }
    assert!(ours.iter().any(|(name, _)| name == "nowait-driver"), "{all:?}");
    // The thread that started them takes signals as before.
    assert!(!has(blocked("/proc/thread-self".as_ref()).unwrap().1, libc::SIGINT));
}

/// Symptom: a pool stayed on the processor, and at the real-time priority, of the thread that needed it first.
#[test]
fn threads_of_the_library_inherit_from_the_process() {
    fn here() -> (libc::c_long, String) {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let processors = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        // SAFETY: the call takes no pointer.
        let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
        (policy, processors.trim().to_owned())
    }
    let status = std::fs::read_to_string(format!("/proc/self/task/{}/status", std::process::id())).unwrap();
    let processors = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    let plain = (libc::c_long::from(libc::SCHED_OTHER), processors.to_owned());
    let special = || {
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        let mut one = rustix::thread::CpuSet::new();
        one.set((0..rustix::thread::CpuSet::MAX_CPU).find(|number| allowed.is_set(*number)).unwrap());
        rustix::thread::sched_setaffinity(None, &one).unwrap();
        let priority: libc::c_int = 1;
        // SAFETY: the kernel reads a `struct sched_param`, which is one int.
        let set = unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_RR, &raw const priority) };
        assert!(set == 0 && here().0 == libc::c_long::from(libc::SCHED_RR) || set == -1, "{:?}", here());
        let nowait = Nowait::builder().route(Some(Route::Pool)).build().unwrap();
        let sample = Sample::new(PAGE);
        let (send, receive) = std::sync::mpsc::channel();
        let called = move |_| send.send((std::thread::current().name().map(str::to_owned), here())).unwrap();
        sample.open(&nowait).read_range(0, PAGE).on_complete(called);
        let pool = receive.recv_timeout(Duration::from_secs(50)).unwrap();
        let spawned = nowait::embed::spawn("other", here).unwrap().join().unwrap();
        let scoped =
            std::thread::scope(|scope| nowait::embed::spawn_scoped(scope, "scoped", here).unwrap().join().unwrap());
        (here().1.parse::<u32>().is_ok(), pool, spawned, scoped)
    };
    let (is_on_one, pool, spawned, scoped) = std::thread::spawn(special).join().unwrap();
    assert!(is_on_one);
    assert_eq!(pool, (Some("nowait-pool".to_owned()), plain.clone()));
    assert_eq!([spawned, scoped], [plain.clone(), plain]);
}

/// Symptoms: a forked child that dropped its copies removed the parent's temporary file, and
/// appended once more what the parent's writer held.
#[test]
fn forked_child_drops_what_writes() {
    child::play("forked writers");
}

fn forked_writers() {
    use std::io::Write;
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let (path, log) = (folder.path().join("file"), folder.path().join("log"));
    let mut replaced = nowait::stream::AtomicWriter::create(&path).wait().unwrap();
    replaced.writer().write_all(b"the parent's").unwrap();
    let file = nowait::OpenOptions::new().append(true).create(true).open(&log).wait().unwrap();
    let mut writer = nowait::stream::Writer::new(&file, 0);
    writer.write_all(b"once").unwrap();
    // SAFETY: as in `in_fork`, with copies that the child drops.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            alarm(10);
            let end = catch_unwind(AssertUnwindSafe(|| {
                drop((replaced, writer));
                Nowait::shared().drain();
            }));
            exit_now(i32::from(end.is_err()));
        }
        child => {
            assert_child_succeeds(child);
            replaced.commit().wait().unwrap();
            writer.finish().wait().unwrap();
        }
    }
    assert_eq!(std::fs::read(&path).unwrap(), b"the parent's");
    assert_eq!(std::fs::read(&log).unwrap(), b"once");
}

/// Symptom: a task's thread that had forked looked at its ring in the child, too, and took the
/// parent's completions.
#[cfg(feature = "tokio")]
#[test]
fn fork_of_a_thread_that_notices_completions() {
    child::play("fork in a runtime");
}

#[cfg(feature = "tokio")]
fn forked_in_a_runtime() {
    let nowait = Nowait::builder().route(None).build().unwrap();
    let sample = Sample::new(4 << 20);
    let Some(file) = common::open_direct(&nowait, &sample.path) else { return };
    let hot = sample.open(&nowait);
    assert_eq!(hot.read_range(0, PAGE).wait().unwrap().len(), PAGE);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let task = async move {
        for i in 0..4 {
            file.read_range(i << 12, PAGE).await.unwrap();
        }
        let mut reads: Vec<_> = (0..20).map(|i| Box::pin(file.read_range(i << 12, PAGE))).collect();
        reads.retain_mut(|read| poll_once(read.as_mut()).is_pending());
        // They lie in the ring of the runtime, which looks at nothing before this returns.
        std::thread::sleep(Duration::from_millis(20));
        in_fork(|| {
            futures::executor::block_on(async {
                for _ in 0..100 {
                    assert_eq!(hot.read_range(0, PAGE).await.unwrap().len(), PAGE);
                }
            })
        });
        for read in join_all(reads).await {
            assert_eq!(read.unwrap().len(), PAGE);
        }
    };
    runtime.block_on(async {
        nowait.attach_tokio().unwrap();
        tokio::spawn(task).await.unwrap();
    });
}

#[test]
fn child() {
    match child::role().as_deref() {
        None => {}
        Some("signals") => pelted(),
        Some("announced reads") => announced(),
        Some("instances") => instances_come_and_go(),
        Some("fork") => forked(),
        Some("fork with libaio") => forked_with_libaio(),
        Some("fork while a thread syncs") => forked_while_a_thread_syncs(),
        Some("fork while others read") => forked_while_others_read(),
        Some("fork while a value is made") => forked_while_a_value_is_made(),
        Some("forked thread ends") => forked_thread(),
        Some("forked writers") => forked_writers(),
        Some("fork with started steps") => forked_with_started_steps(),
        #[cfg(feature = "tokio")]
        Some("fork in a runtime") => forked_in_a_runtime(),
        Some(other) => unreachable!("{other}"),
    }
}

/// Reads in every way; another executor has a thread of its own, as it must inside `block_on`.
fn read_in_every_way(file: &File, sample: &Sample, count: u64) {
    let offset = |i: u64| (i * 7919 * 4099) % (sample.bytes.len() - PAGE) as u64;
    let right = |i: u64, read: nowait::Result<nowait::Buf>| {
        assert!(*read.unwrap() == *sample.expected(offset(i), PAGE), "read {i}");
    };
    let all = || join_all((0..count).map(|i| file.read_range(offset(i), PAGE)));
    sample.cool();
    let other = std::thread::scope(|scope| scope.spawn(|| futures::executor::block_on(all())).join().unwrap());
    (0..).zip(other).for_each(|(i, read)| right(i, read));
    sample.cool();
    (0..).zip(nowait::block_on(all())).for_each(|(i, read)| right(i, read));
    sample.cool();
    (0..count).for_each(|i| right(i, file.read_range(offset(i), PAGE).wait()));
    let mut memory = vec![0; PAGE];
    file.read_exact_into(&mut memory, offset(1)).unwrap();
    assert!(memory == sample.expected(offset(1), PAGE));
}

fn instances() -> Vec<Nowait> {
    let builders =
        [None, Some(Route::Ring), Some(Route::Pool)].map(|route| Nowait::builder().route(route).build().unwrap());
    builders.into_iter().chain([Nowait::shared().clone()]).collect()
}

/// An instance with libaio, and a file for it.
fn aio_file(sample: &Sample) -> Option<(Nowait, File)> {
    let nowait = aio_instance()?;
    let file = open_direct(&nowait, &sample.path)?;
    Some((nowait, file))
}

/// Every thread is interrupted all the time, in every system call that can be.
fn pelted() {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler = nothing as extern "C" fn(libc::c_int);
    // SAFETY: a zeroed sigaction has no flags (no SA_RESTART) and an empty mask; the handler does
    // nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let own = rustix::thread::gettid().as_raw_pid();
            while !done.load(SeqCst) {
                for entry in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
                    let thread: i32 = entry.file_name().to_str().unwrap().parse().unwrap();
                    if thread != own {
                        // SAFETY: a signal with a handler, to a thread of this process; one that
                        // has ended is no harm.
                        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR1) };
                    }
                }
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        // Also when what follows panics.
        let _done = OnDrop(|| done.store(true, SeqCst));
        let _watchdog = Watchdog::new("calls under signals", 60);
        let sample = Sample::new(16 << 20);
        for nowait in instances() {
            let file = sample.open(&nowait);
            (0..3).for_each(|_| read_in_every_way(&file, &sample, 300));
            assert_settled(&nowait);
        }
        if let Some((nowait, file)) = aio_file(&sample) {
            (0..20).for_each(|_| read_pages_in_every_way(&file, &sample, 300));
            assert_settled(&nowait);
        }
        copy_names_and_files(&sample);
    });
}

/// Calls its function when it is dropped.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        self.0();
    }
}

/// Symptom: a copy failed with EINTR when a signal arrived, on its caller's thread or on a pool
/// thread. Every operation on names must survive signals.
fn copy_names_and_files(sample: &Sample) {
    let folder = common::mounts::temp_dir();
    let path = |name: &str| folder.path().join(name);
    let nowait = Nowait::shared();
    for round in 0..common::rounds(20) {
        let way = common::Way::ALL[round as usize % 3];
        assert_eq!(way.run(nowait.fs().copy(&sample.path, path("copy"))).unwrap(), sample.bytes.len() as u64);
        assert!(std::fs::read(path("copy")).unwrap() == sample.bytes, "round {round}");
        way.run_future(nowait.fs().write_atomic(path("whole"), "whole")).unwrap();
        way.run(nowait.fs().create_dir_all(path("a/b"))).unwrap();
        way.run(nowait.fs().hard_link(path("whole"), path("a/hard"))).unwrap();
        way.run(nowait.fs().symlink("hard", path("a/soft"))).unwrap();
        way.run(nowait.fs().rename(path("a/soft"), path("a/b/soft"))).unwrap();
        assert_eq!(way.run(nowait.fs().metadata(path("a/hard"))).unwrap().len(), 5);
        assert_eq!(way.run(nowait.fs().read_dir(path("a"))).unwrap().len(), 2);
        way.run(nowait.fs().sync_dir(path("a"))).unwrap();
        way.run(nowait.fs().remove_dir_all(path("a"))).unwrap();
    }
    assert_settled(nowait);
}

/// Forks; the child does `work` and exits. Fails when the child panics, crashes or takes too long.
fn in_fork(work: impl FnOnce()) {
    // SAFETY: the child uses what libc and this crate allow after a fork, and leaves by `_exit`.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            alarm(10);
            let end = catch_unwind(AssertUnwindSafe(work));
            exit_now(i32::from(end.is_err()));
        }
        child => assert_child_succeeds(child),
    }
}

/// Ends this process after some seconds, by a signal; a slow machine gets more.
fn alarm(seconds: u64) {
    let bound = common::at_most(Duration::from_secs(seconds));
    // SAFETY: it only sets a timer.
    unsafe { libc::alarm(bound.as_secs() as u32) };
}

fn exit_now(code: i32) -> ! {
    // SAFETY: it runs no code of ours.
    unsafe { libc::_exit(code) }
}

fn assert_child_succeeds(child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: it writes to `status` only.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    let why =
        if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGALRM { "it hangs" } else { "it failed" };
    assert_eq!(status, 0, "forked child: {why}");
}

/// The child finds the file's lines as if nobody were at work there: that thread is not in the
/// child.
fn forked_while_a_thread_syncs() {
    let folder = common::mounts::temp_dir();
    let nowait = Nowait::builder().route(Some(Route::Pool)).write_bytes_max(1 << 20, 1 << 20).build().unwrap();
    let mut options = nowait::OpenOptions::new();
    let file = options.write(true).create(true).open_in(&nowait, folder.path().join("file")).wait().unwrap();
    for _ in 0..5 {
        (0..16).for_each(|i| file.write_all_from(&vec![1; 1 << 20], i << 20).unwrap());
        let mut sync = Box::pin(file.sync_all());
        let mut write = Box::pin(file.write_all_at(vec![2; 1 << 20], 0));
        let (_, _) = (common::poll_once(sync.as_mut()), common::poll_once(write.as_mut()));
        std::thread::sleep(Duration::from_millis(1));
        in_fork(|| {
            file.sync_data().wait().unwrap();
            futures::executor::block_on(file.write_all_at(vec![3; 1 << 20], 1 << 20)).unwrap();
            futures::executor::block_on(file.sync_data()).unwrap();
        });
        nowait.drain();
    }
}

fn forked() {
    let sample = Sample::new(4 << 20);
    for nowait in instances() {
        let file = sample.open(&nowait);
        read_in_every_way(&file, &sample, 100);
        // In flight, in both kinds of ring, when the fork comes.
        let mut reads: Vec<_> = (0..50).map(|i| Box::pin(file.read_range(i * 50_000, PAGE))).collect();
        sample.cool();
        reads.retain_mut(|read| poll_once(read.as_mut()).is_pending());
        in_fork(|| read_in_every_way(&file, &sample, 100));
        for read in &mut reads {
            assert_eq!(futures::executor::block_on(read.as_mut()).unwrap().len(), PAGE);
        }
        drop(reads);
        nowait::block_on(async {
            give_up(&file, &mut Rng::new(1), 50, End::Drop).await;
            in_fork(|| {
                read_in_every_way(&file, &sample, 100);
                // A child of a child, and the drop of what the parent made.
                in_fork(|| read_in_every_way(&file, &sample, 20));
            });
            assert_eq!(file.read_range(0, 10).await.unwrap().len(), 10);
        });
        read_in_every_way(&file, &sample, 100);
        // The child may drop what is the parent's.
        let mut owned = Some((file, nowait));
        in_fork(|| drop(owned.take()));
        let (file, nowait) = owned.unwrap();
        read_in_every_way(&file, &sample, 20);
        assert_settled(&nowait);
    }
}

/// A child has none of its parent's contexts, and those that it makes are its own.
fn forked_with_libaio() {
    let sample = Sample::new(4 << 20);
    let Some((nowait, file)) = aio_file(&sample) else { return };
    read_pages_in_every_way(&file, &sample, 100);
    // In flight, in both kinds of context, when the fork comes.
    let mut reads: Vec<_> = (0..50).map(|i| Box::pin(file.read_range(i * 8192, PAGE))).collect();
    reads.retain_mut(|read| poll_once(read.as_mut()).is_pending());
    in_fork(|| {
        read_pages_in_every_way(&file, &sample, 100);
        // Its own are kept for later, and serve later threads.
        std::thread::scope(|scope| {
            (0..3).for_each(|_| drop(scope.spawn(|| read_pages_in_every_way(&file, &sample, 10))));
        });
    });
    for read in reads {
        assert_eq!(futures::executor::block_on(read).unwrap().len(), PAGE);
    }
    nowait::block_on(async {
        let mut read = Box::pin(file.read_range(0, PAGE));
        assert!(poll_once(read.as_mut()).is_pending());
        in_fork(|| {
            read_pages_in_every_way(&file, &sample, 100);
            in_fork(|| read_pages_in_every_way(&file, &sample, 20));
        });
        assert!(*read.await.unwrap() == *sample.expected(0, PAGE));
    });
    // The child may drop what is the parent's, and its thread may end.
    let mut owned = Some((file, nowait));
    in_fork(|| drop(owned.take()));
    let (file, nowait) = owned.unwrap();
    std::thread::scope(|scope| {
        let ends = scope.spawn(|| {
            nowait::block_on(file.read_range(0, PAGE)).unwrap();
            in_fork(|| nowait.drain());
        });
        ends.join().unwrap();
    });
    read_pages_in_every_way(&file, &sample, 20);
    assert_settled(&nowait);
}

/// The child must not wait for a thread that it does not have.
fn forked_while_a_value_is_made() {
    static VALUE: nowait::embed::PerProcess<u32> = nowait::embed::PerProcess::new();
    let (begins, ends) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    let make = || {
        begins.wait();
        ends.wait();
        1
    };
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(*VALUE.get(make), 1));
        begins.wait();
        in_fork(|| assert_eq!(*VALUE.get(|| 2), 2));
        ends.wait();
    });
}

/// The locks of this crate may be held by threads that do not exist in the child.
fn forked_while_others_read() {
    let sample = Sample::new(1 << 20);
    let nowait = Nowait::builder().build().unwrap();
    let file = sample.open(&nowait);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(SeqCst) {
                    let reads = (0..50).map(|i| file.read_range(i * 1000, PAGE).wait().unwrap());
                    drop(reads.collect::<Vec<_>>());
                    futures::executor::block_on(file.read_range(0, PAGE)).unwrap();
                }
            });
        }
        let result = catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..150 {
                in_fork(|| {
                    for i in 0..20 {
                        assert_eq!(file.read_range(i * 1000, PAGE).wait().unwrap().len(), PAGE);
                        assert_eq!(futures::executor::block_on(file.read_range(i, PAGE)).unwrap().len(), PAGE);
                        assert_eq!(nowait::block_on(file.read_range(i, PAGE)).unwrap().len(), PAGE);
                    }
                });
            }
        }));
        done.store(true, SeqCst);
        result.unwrap();
    });
}

/// Memory that the child mapped where the parent had a ring, checked when the thread's other
/// destructors have run.
struct Mapped(Vec<(usize, usize)>);

impl Drop for Mapped {
    fn drop(&mut self) {
        for (start, len) in &self.0 {
            let mut resident = vec![0; len / PAGE];
            // SAFETY: it asks about addresses and writes to `resident`, which has a byte for each
            // page.
            if unsafe { libc::mincore(*start as *mut libc::c_void, *len, resident.as_mut_ptr()) } != 0 {
                eprintln!("the end of a forked thread has unmapped memory that is not its own");
                exit_now(1);
            }
        }
        if !self.0.is_empty() {
            exit_now(0);
        }
    }
}

/// Start and length of each ring's memory in this process.
fn ring_mappings() -> Vec<(usize, usize)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let rings = maps.lines().filter(|line| line.contains("io_uring"));
    let number = |text: &str| usize::from_str_radix(text, 16).unwrap();
    rings
        .map(|line| {
            let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            (number(start), number(end) - number(start))
        })
        .collect()
}

/// Maps memory at an address where there is none.
fn map_at(start: usize, len: usize) -> bool {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: a new mapping that replaces none.
    unsafe { mmap_anonymous(start as *mut libc::c_void, len, ProtFlags::READ, flags) }.is_ok()
}

/// A thread of the child ends without having used its (the parent's) ring: what lies at the ring's
/// addresses by now is not the ring's.
fn forked_thread() {
    thread_local!(static MAPPED: std::cell::RefCell<Mapped> = const { std::cell::RefCell::new(Mapped(Vec::new())) });
    let sample = Sample::new(1 << 20);
    let file = sample.open(&forced(Route::Ring));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // First touched, last dropped.
            MAPPED.with(|_| {});
            nowait::block_on(file.read_range(0, PAGE)).unwrap();
            let mappings = ring_mappings();
            // SAFETY: as in `in_fork`; this thread's destructors run in the child, the last of
            // which exits.
            match unsafe { libc::fork() } {
                -1 => panic!("fork: {}", std::io::Error::last_os_error()),
                0 => {
                    alarm(10);
                    if !mappings.iter().all(|(start, len)| map_at(*start, *len)) {
                        exit_now(2);
                    }
                    MAPPED.with(|mapped| mapped.borrow_mut().0 = mappings);
                }
                child => assert_child_succeeds(child),
            }
        });
    });
}
