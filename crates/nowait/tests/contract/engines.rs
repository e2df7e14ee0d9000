//! The contract on every engine, path and simulated disk; and the counters that say which way was
//! taken.

use crate::common::{Sample, assert_settled, cold, mounts, poll_once};
use crate::promises::{Ctx, keeps_every_promise};
use futures::FutureExt;
use futures::future::BoxFuture;
use nowait::sim::{Faults, Sim};
use nowait::{Engine, ErrorKind, Nowait, OpenOptions, Route, Stats};

fn builder(engine: Engine) -> nowait::Builder {
    Nowait::builder().engine(engine)
}

#[test]
fn every_promise_is_named() {
    crate::promises::are_all_named();
}

#[test]
fn auto() {
    keeps_every_promise(&Ctx::new(Nowait::builder()));
}

#[test]
fn shared() {
    keeps_every_promise(&Ctx::with(Nowait::shared().clone(), mounts::temp_dir()));
}

#[test]
fn direct() {
    keeps_every_promise(&Ctx::new(Nowait::builder()).direct());
}

#[test]
fn direct_by_the_pool() {
    keeps_every_promise(&Ctx::new(builder(Engine::Pool)).direct());
}

#[test]
fn direct_by_libaio() {
    match builder(Engine::Aio).build() {
        Ok(nowait) => {
            keeps_every_promise(&Ctx::with(nowait.clone(), mounts::temp_dir()).direct());
            assert_eq!(nowait.stats().ring, 0);
        }
        Err(error) => eprintln!("skipped: {error}"),
    }
}

#[test]
fn strict() {
    keeps_every_promise(&Ctx::new(Nowait::builder().strict(true)));
}

#[test]
fn ring() {
    match builder(Engine::Uring).build() {
        Ok(nowait) => keeps_every_promise(&Ctx::with(nowait, mounts::temp_dir())),
        Err(error) => eprintln!("skipped: {error}"),
    }
}

#[test]
fn ring_for_all() {
    match builder(Engine::Uring).route(Some(Route::Ring)).build() {
        Ok(nowait) => keeps_every_promise(&Ctx::with(nowait, mounts::temp_dir())),
        Err(error) => eprintln!("skipped: {error}"),
    }
}

/// Its files are read through the page cache: the pool's. (`aio.rs` has those that are not.)
#[test]
fn aio() {
    match builder(Engine::Aio).build() {
        Ok(nowait) => {
            keeps_every_promise(&Ctx::with(nowait.clone(), mounts::temp_dir()));
            assert_eq!((nowait.stats().aio, nowait.stats().ring), (0, 0));
        }
        Err(error) => eprintln!("skipped: {error}"),
    }
}

#[test]
fn aio_for_all() {
    match builder(Engine::Aio).route(Some(Route::Ring)).build() {
        Ok(nowait) => keeps_every_promise(&Ctx::with(nowait, mounts::temp_dir())),
        Err(error) => eprintln!("skipped: {error}"),
    }
}

#[test]
fn pool() {
    keeps_every_promise(&Ctx::new(builder(Engine::Pool)));
}

#[test]
fn pool_for_all() {
    keeps_every_promise(&Ctx::new(Nowait::builder().route(Some(Route::Pool))));
}

#[test]
fn pool_of_one_thread() {
    keeps_every_promise(&Ctx::new(builder(Engine::Pool).route(Some(Route::Pool)).pool_threads_max(1)));
}

#[test]
fn inline_where_possible() {
    keeps_every_promise(&Ctx::new(Nowait::builder().route(Some(Route::Inline))));
}

#[test]
fn simulator_without_faults() {
    keeps_every_promise(&Ctx::simulated(Nowait::builder(), Faults::default()));
}

/// Fields are set one by one, since more may come.
fn faults(set: impl FnOnce(&mut Faults)) -> Faults {
    let mut faults = Faults::default();
    set(&mut faults);
    faults
}

fn every_fault_but_errors() -> Faults {
    faults(|faults| {
        (faults.not_now, faults.empty_now, faults.short_now) = (0.3, 0.3, 0.3);
        (faults.short, faults.interrupted) = (0.3, 0.3);
    })
}

#[test]
fn simulator_with_faults() {
    keeps_every_promise(&Ctx::simulated(Nowait::builder(), every_fault_but_errors()));
}

#[test]
fn simulator_with_faults_and_forced_paths() {
    for route in [Route::Inline, Route::Ring, Route::Pool] {
        keeps_every_promise(&Ctx::simulated(Nowait::builder().route(Some(route)), every_fault_but_errors()));
    }
}

#[test]
fn simulator_that_refuses_attempts() {
    let refused = faults(|faults| (faults.nowait_refused, faults.short) = (true, 0.3));
    for strict in [false, true] {
        keeps_every_promise(&Ctx::simulated(Nowait::builder().strict(strict), refused));
    }
}

#[test]
fn simulator_whose_attempts_are_always_empty_or_short() {
    for set in [|faults: &mut Faults| faults.empty_now = 1.0, |faults: &mut Faults| faults.short_now = 1.0] {
        keeps_every_promise(&Ctx::simulated(Nowait::builder(), faults(set)));
    }
}

#[test]
fn simulated_io_error_is_reported_with_the_buffer() {
    let ctx = Ctx::simulated(Nowait::builder(), faults(|faults| (faults.not_now, faults.io_error) = (1.0, 1.0)));
    let file = ctx.file(&[1; 100]);
    let error = futures::executor::block_on(file.read_at(vec![9; 50], 25)).unwrap_err();
    assert_eq!((error.error.kind(), error.error.raw_os_error()), (ErrorKind::Io, Some(crate::common::errno::EIO)));
    assert_eq!((error.error.offset(), error.error.length(), error.buffer.len()), (Some(25), Some(50), 50));
    assert_eq!(file.read_range(0, 10).wait().unwrap_err().kind(), ErrorKind::Io);
    assert_settled(&ctx.nowait);
    assert_eq!(ctx.nowait.stats().failed, 2);
}

/// Returns what a piece of work adds to an instance's counters.
fn counted(nowait: &Nowait, work: impl FnOnce()) -> Stats {
    assert_settled(nowait);
    let before = nowait.stats();
    work();
    assert_settled(nowait);
    let after = nowait.stats();
    let mut stats = Stats::default();
    (stats.started, stats.inline) = (after.started - before.started, after.inline - before.inline);
    (stats.blocking, stats.ring) = (after.blocking - before.blocking, after.ring - before.ring);
    stats.announced = after.announced - before.announced;
    (stats.pool, stats.failed) = (after.pool - before.pool, after.failed - before.failed);
    (stats.cancelled, stats.attempts) = (after.cancelled - before.cancelled, after.attempts - before.attempts);
    stats
}

const READS: u64 = 100;

/// Reads a cached sample in two ways; gives what each counted.
#[cfg(target_os = "linux")]
fn awaited_and_waited(nowait: &Nowait) -> (Stats, Stats) {
    let sample = Sample::new(1 << 20);
    let file = sample.open(nowait);
    let awaited = counted(nowait, || {
        (0..READS).for_each(|i| drop(futures::executor::block_on(file.read_range(i, 100)).unwrap()));
    });
    let waited = counted(nowait, || (0..READS).for_each(|i| drop(file.read_range(i, 100).wait().unwrap())));
    (awaited, waited)
}

#[cfg(target_os = "linux")]
#[test]
fn counters_tell_the_way() {
    // The sample's file system is not known: where attempts are refused, one is enough to know.
    // Hits are timed: on a busy machine some look like reads of the device, and on an interpreted
    // processor copying alone takes as long.
    let least = if crate::common::is_slow() { 1 } else { READS - 2 };
    let all_inline = crate::common::eventually(|| {
        let (awaited, waited) = awaited_and_waited(&Nowait::builder().build().unwrap());
        assert_eq!((awaited.started, waited.started, waited.blocking), (READS, READS, READS));
        awaited.inline >= least
    });
    assert!(all_inline, "cached reads are served inline");

    let (awaited, waited) = awaited_and_waited(&builder(Engine::Pool).route(Some(Route::Pool)).build().unwrap());
    assert_eq!((awaited.pool, waited.pool, awaited.attempts), (READS, READS, 0));

    match builder(Engine::Uring).route(Some(Route::Ring)).build() {
        Ok(ring) => {
            let (awaited, waited) = awaited_and_waited(&ring);
            assert_eq!((awaited.ring, waited.ring, awaited.attempts), (READS, READS, 0));
        }
        Err(error) => eprintln!("skipped: ring: {error}"),
    }
}

#[cfg(target_os = "linux")]
#[test]
fn tries_are_counted_if_they_succeed() {
    let sample = Sample::new(1 << 20);
    // As in `counters_tell_the_way`.
    let most_succeed = crate::common::eventually(|| {
        let nowait = Nowait::builder().build().unwrap();
        let file = sample.open(&nowait);
        let mut served = 0;
        let cached = counted(&nowait, || {
            for i in 0..READS {
                let mut bytes = [0; 100];
                if let Some(read) = file.try_read_into(&mut bytes, i) {
                    assert_eq!(read.unwrap(), 100);
                    assert_eq!(bytes[..], *sample.expected(i, 100));
                    served += 1;
                }
            }
        });
        assert_eq!((cached.started, cached.inline), (served, served));
        served >= if crate::common::is_slow() { 1 } else { READS - 2 }
    });
    assert!(most_succeed, "cached reads are served inline");

    let sim = Sim::manual(1);
    sim.set_faults(faults(|faults| faults.not_now = 1.0));
    sim.create("a", vec![1; 100]);
    let nowait = builder(Engine::Sim(sim.clone())).build().unwrap();
    let file = OpenOptions::new().read(true).write(true).open_in(&nowait, "a").wait().unwrap();
    let refused = counted(&nowait, || {
        assert!(file.try_read_into(&mut [0; 10], 0).is_none());
        assert!(file.try_write_from(&[0; 10], 0).is_none());
    });
    assert_eq!(refused.started, 0, "{refused:?}");
}

#[test]
fn counters_of_cold_reads_and_of_failures() {
    let sample = Sample::new(4 << 20);
    for engine in [Engine::Auto, Engine::Pool] {
        let nowait = builder(engine.clone()).build().unwrap();
        let file = sample.cool().open(&nowait);
        let cold = counted(&nowait, || {
            for i in 0..READS {
                let read = file.read_range((i * 7919 % 1024) * 4096, 4096);
                drop(futures::executor::block_on(read).unwrap());
            }
        });
        let slow = if nowait.has_ring() && crate::common::takes_attempts(&sample.path) { cold.ring } else { cold.pool };
        assert_eq!(slow + cold.inline, READS, "{engine:?}: {cold:?}");
        // On other systems, pages cannot be dropped.
        let is_cold = cfg!(target_os = "linux");
        assert!((slow > 0 || !is_cold) && cold.attempts < READS, "a cold scan stops trying: {cold:?}");
        let failures = counted(&nowait, || {
            drop(OpenOptions::new().read(true).open_in(&nowait, "/nowhere/to/be/found").wait().unwrap_err());
            drop(futures::executor::block_on(file.read_at(vec![0; 1], u64::MAX)).unwrap_err());
            drop(file.read_at(vec![0; 1], u64::MAX).wait().unwrap_err());
        });
        assert_eq!((failures.started, failures.failed), (3, 3), "{engine:?}");
    }
}

/// Makes cold reads, many at a time, in a future that `run` brings to its end on its executor. Some
/// of them are announced.
fn cold_reads_are_announced(run: impl Fn(&Nowait, BoxFuture<'static, ()>)) {
    let sample = Sample::leaked(4 << 20);
    let nowait = builder(Engine::Auto).build().unwrap();
    if !nowait.has_ring() || cold::is_in_memory(&sample.path) || !crate::common::takes_attempts(&sample.path) {
        return eprintln!("skipped: these reads would go to threads, or are never cold");
    }
    let file = sample.open(&nowait);
    let cold = counted(&nowait, || {
        for round in 0..20 {
            sample.cool();
            let file = file.clone();
            let reads = async move {
                let offset = |i: u64| (i * 7919 + round) % 1024 * 4096;
                let all = futures::future::join_all((0..64).map(|i| file.read_range(offset(i), 4096))).await;
                for (i, read) in (0..64).zip(all) {
                    assert!(*read.unwrap() == *sample.expected(offset(i), 4096));
                }
            };
            run(&nowait, reads.boxed());
        }
    });
    assert!(cold.announced > 0 && cold.announced < cold.ring, "{cold:?}");
    drop(file);
    assert_settled(&nowait);
    std::fs::remove_dir_all(sample.path.parent().unwrap()).unwrap();
}

#[test]
fn cold_reads_beside_one_in_the_ring_are_announced() {
    cold_reads_are_announced(|_, reads| nowait::block_on(reads));
}

#[cfg(feature = "tokio")]
#[test]
fn cold_reads_of_tasks_beside_one_in_a_ring_are_announced() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    cold_reads_are_announced(|nowait, reads| {
        let _entered = runtime.enter();
        nowait.attach_tokio().unwrap();
        runtime.block_on(runtime.spawn(reads)).unwrap();
    });
}

#[test]
fn counters_of_dropped_operations() {
    let sim = Sim::manual(1);
    sim.set_faults(faults(|faults| faults.not_now = 1.0));
    sim.create("a", vec![1; 100]);
    let nowait = builder(Engine::Sim(sim.clone())).build().unwrap();
    let file = crate::common::open(&nowait, "a".as_ref());
    let dropped = counted(&nowait, || {
        drop(file.read_range(0, 10));
        let mut read = Box::pin(file.read_range(0, 10));
        assert!(poll_once(read.as_mut()).is_pending());
        drop(read);
    });
    assert_eq!((dropped.started, dropped.cancelled), (1, 1), "an operation starts when it is first polled");
}

#[cfg(target_os = "linux")]
#[test]
fn cold_is_cold() {
    let sample = Sample::new(1 << 20);
    if cold::is_in_memory(&sample.path) {
        return eprintln!("skipped: a file in memory is never cold");
    }
    assert!(cold::cached_pages(&sample.path) > 0);
    sample.cool();
    assert_eq!(cold::cached_pages(&sample.path), 0);
}
