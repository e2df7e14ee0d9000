//! Futures dropped and leaked anywhere, full queues, threads that end, panics:
//! nothing is written to that was given back, nothing hangs, and the counters' law holds.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::common::rng::Rng;
use crate::common::{
    End, Sample, Watchdog, assert_settled, at_most, contents, eventually, expected, forced, give_up, manual,
    pending_after_their_thread, poll_once,
};
use futures::future::join_all;
use nowait::{Nowait, Route};

const PAGE: usize = 4096;

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
    if !crate::common::has_memory(1 << 30) {
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

/// Works on its files, in every way, when its thread ends.
#[cfg(not(windows))]
struct WorksAtTheEnd(Vec<nowait::File>);

#[cfg(not(windows))]
impl Drop for WorksAtTheEnd {
    fn drop(&mut self) {
        for file in &self.0 {
            let read = nowait::block_on(file.read_range(16_384, PAGE)).unwrap();
            assert!(*read == contents(1 << 20, 1)[16_384..][..PAGE]);
            let small = (0..4).map(|i| file.write_all_at(vec![1; 10], i * 10));
            nowait::block_on(join_all(small)).into_iter().for_each(|write| drop(write.unwrap()));
            file.read_range(8192, PAGE).submit().wait().unwrap();
            file.write_all_at(vec![2; 5000], 77).durable().wait().unwrap();
            file.gather([(0, 10), (40_000, 500)]).wait().unwrap();
            drop(file.read_range(12_288, PAGE).submit());
            nowait::block_on(async { _ = poll_once(std::pin::pin!(file.read_range(0, PAGE))) });
            file.settled().wait();
        }
        ENDED.fetch_add(1, SeqCst);
    }
}

#[cfg(not(windows))]
static ENDED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

/// Destructors of thread-locals run in the reverse order of first use: before those of the library, and
/// after them.
///
/// Not on Windows, which runs them while it holds the loader lock. A new thread needs this lock to start, so
/// a destructor that waits for a new pool thread never returns ("Dynamic-Link Library Best Practices").
#[cfg(not(windows))]
#[test]
fn destructors_of_thread_locals_work_on_files() {
    type End = std::cell::RefCell<Option<WorksAtTheEnd>>;
    thread_local!(static BEFORE: End = const { std::cell::RefCell::new(None) });
    thread_local!(static AFTER: End = const { std::cell::RefCell::new(None) });
    let _watchdog = Watchdog::new("destructors_of_thread_locals_work_on_files", 60);
    let sample = Sample::new(1 << 20);
    std::fs::write(&sample.path, contents(1 << 20, 1)).unwrap();
    let nowait = Nowait::builder().build().unwrap();
    let direct = crate::common::open_direct(&nowait, &sample.path);
    let files: Vec<_> = [crate::common::writable(&nowait, &sample.path)].into_iter().chain(direct).collect();
    for (before, uses, after) in [(true, true, true), (false, true, true), (true, false, false)] {
        let files = files.clone();
        let at_end = || Some(WorksAtTheEnd(files.clone()));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                BEFORE.set(before.then(at_end).flatten());
                if uses {
                    files.iter().for_each(|file| _ = nowait::block_on(file.read_range(4096, PAGE)).unwrap());
                }
                AFTER.set(after.then(at_end).flatten());
            });
        });
    }
    // Destructors may run after the scope has ended.
    assert!(eventually(|| ENDED.load(SeqCst) == 4));
    drop(files);
    assert_settled(&nowait);
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
    if !crate::common::has_memory(128 << 20) {
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
        let reads = (0..100).map(|i| Box::pin(file.read_range(offset(i), PAGE))).collect();
        let submitted = pending_after_their_thread(reads);
        let results = futures::executor::block_on(join_all(submitted));
        for result in results {
            assert_eq!(result.unwrap().len(), PAGE);
        }
    }
    assert_settled(&nowait);
}

/// A direct read waits for the device, with RWF_NOWAIT too: it must not wait on the caller's thread.
#[cfg(target_os = "linux")]
#[test]
fn direct_reads_are_never_inline() {
    crate::promises::mix::direct_reads_wait_elsewhere(Sample::new(4 << 20));
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
        assert!(start.elapsed() < at_most(Duration::from_secs(10)), "dropping waits for nobody");
    }
    assert!(
        eventually(|| crate::common::descriptors_of(&sample.path) == 0),
        "{} are open",
        crate::common::descriptors_of(&sample.path)
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
        let open = || crate::common::descriptors_of(&sample.path);
        assert!(eventually(|| open() == 0), "{route:?}: {} open", open());
    }
}

/// `drain` also waits for what a ring hands on: unaligned direct reads, which it cannot do.
#[cfg(target_os = "linux")]
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
        let mut in_flight = 0;
        for round in 0..20u64 {
            sample.cool();
            let mut memory = vec![0u8; 8 << 20];
            nowait::block_on(std::future::poll_fn(|_| {
                let mut read = Box::pin(staged.read_range((2 << 20) + round * 100_000, 100));
                in_flight += usize::from(poll_with_panic(read.as_mut()).is_pending());
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
        // The pool has the read, and may end it at once, while others fill the device's queue.
        assert!(in_flight > 0, "{name}: no read was in flight in any round");
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
#[cfg(target_os = "linux")]
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
#[cfg(target_os = "linux")]
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
