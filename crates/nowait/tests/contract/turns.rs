//! Turns: a task that is served inline lets others run, on whatever executor, and completions are noticed meanwhile.
//!
//! Nothing here looks at a clock: what is charged is counted, and a task that never yields never lets its neighbour count.

use std::future::{Future, poll_fn};
use std::path::Path;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
#[cfg(feature = "tokio")]
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Poll;

use crate::common::mounts::temp_dir;
use crate::common::{Sample, Watchdog, contents, forced, open_direct, writable};
use futures::FutureExt;
#[cfg(feature = "tokio")]
use nowait::stream::{Reader, TokioIo, Writer};
use nowait::{File, Nowait, Route};

const PAGE: usize = 4096;
const LEN: usize = 1 << 20;
/// Pieces of work that a task is served in a row: some milliseconds, many turns.
const PIECES: usize = 10_000;
/// A call is charged with 0.4 µs at least, and a turn is 5 at most.
const YIELDS_MIN: usize = PIECES / 13 / 2;

/// A file in the page cache.
struct Cached {
    sample: Sample,
    file: File,
}

impl Cached {
    fn new() -> Cached {
        Cached::of(&Nowait::builder().build().unwrap())
    }

    fn of(nowait: &Nowait) -> Cached {
        let sample = Sample::new(LEN);
        let file = sample.open(nowait);
        let cached = Cached { sample, file };
        assert_eq!(cached.file.read_exact_at(vec![0; LEN], 0).wait().unwrap().len(), LEN);
        cached
    }

    fn offset(i: usize) -> u64 {
        (i * 7919 * PAGE % LEN) as u64
    }

    async fn reads(&self, count: usize) {
        for i in 0..count {
            let page = self.file.read_range(Self::offset(i), PAGE).await.unwrap();
            assert!(*page == *self.sample.expected(Self::offset(i), PAGE));
        }
    }
}

fn empty(folder: &Path) -> File {
    let path = folder.join("file");
    std::fs::write(&path, []).unwrap();
    writable(&inline(), &path)
}

/// Serves inline also while attempts take long, as on a busy machine: what is queued is not charged.
fn inline() -> Nowait {
    forced(Route::Inline)
}

/// Returns how often `task` lets another future of the same task run.
async fn yields(task: impl Future<Output = ()>) -> usize {
    let mut task = pin!(task);
    let mut pending = 0;
    poll_fn(|context| {
        let polled = task.as_mut().poll(context);
        pending += usize::from(polled.is_pending());
        polled
    })
    .await;
    pending
}

/// Runs a future on each executor.
fn everywhere(run: impl Fn(&'static str) -> Pin<Box<dyn Future<Output = ()>>>) {
    nowait::block_on(run("block_on"));
    futures::executor::block_on(run("futures"));
    smol::block_on(run("smol"));
    let single = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    single.block_on(run("tokio's block_on"));
    single.block_on(tokio::task::LocalSet::new().run_until(async move {
        tokio::task::spawn_local(run("a task of tokio")).await.unwrap();
    }));
}

fn each_yields(name: &'static str, task: impl Fn(Rc<Cached>) -> Pin<Box<dyn Future<Output = ()>>> + 'static) {
    let _watchdog = Watchdog::new(name, 60);
    let cached = Rc::new(Cached::of(&inline()));
    let task = Rc::new(task);
    everywhere(|executor| {
        let (cached, task) = (cached.clone(), task.clone());
        Box::pin(async move {
            let yields = yields(task(cached)).await;
            assert!(yields >= YIELDS_MIN, "{name} under {executor}: {yields} yields");
        })
    });
}

#[test]
fn reads() {
    each_yields("reads", |cached| Box::pin(async move { cached.reads(PIECES).await }));
}

#[test]
fn sizes_empty_reads_and_refusals() {
    each_yields("sizes", |cached| {
        Box::pin(async move {
            for _ in 0..PIECES / 2 {
                assert_eq!(cached.file.size().await.unwrap(), LEN as u64);
                assert!(cached.file.read_range(0, 0).await.unwrap().is_empty());
                cached.file.read_range(u64::MAX, 1).await.unwrap_err();
            }
        })
    });
}

#[test]
fn gathers_of_many_ranges_and_many_gathers() {
    each_yields("gathers", |cached| {
        Box::pin(async move {
            // Too few bytes for a second thread.
            let ranges: Vec<_> = (0..PIECES / 2).map(|i| (Cached::offset(i), 50)).collect();
            let gathered = cached.file.gather(&*ranges).await.unwrap();
            for (i, range) in gathered.iter().enumerate() {
                assert!(range.unwrap() == cached.sample.expected(Cached::offset(i), 50));
            }
            for _ in 0..PIECES / 2 {
                assert_eq!(cached.file.gather([(5, 10)]).await.unwrap().len(), 1);
            }
        })
    });
}

#[test]
fn writes_one_by_one_and_together() {
    each_yields("writes", |_| {
        Box::pin(async move {
            let folder = temp_dir();
            let file = empty(folder.path());
            let page = contents(PAGE, 3);
            for i in 0..PIECES / 2 {
                file.write_all_at(page.clone(), (i % 64 * PAGE) as u64).await.unwrap();
            }
            // Every second page, so that none is merged with the next.
            let writes = (0..PIECES / 2).map(|i| ((i % 64 * 2 * PAGE) as u64, page.clone()));
            file.write_many(writes.collect()).await.unwrap();
            assert!(*file.read_range(126 * PAGE as u64, PAGE).await.unwrap() == *page);
        })
    });
}

#[cfg(feature = "tokio")]
#[test]
fn streams() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    each_yields("streams", |cached| {
        Box::pin(async move {
            let folder = temp_dir();
            let file = empty(folder.path());
            let mut buffer = [0; 100];
            let mut writer = Writer::new(&file, 0);
            for i in 0..PIECES {
                let mut reader = Reader::new(&cached.file, Cached::offset(i));
                TokioIo(&mut reader).read_exact(&mut buffer).await.unwrap();
                assert!(buffer == cached.sample.expected(Cached::offset(i), 100));
                TokioIo(&mut writer).write_all(&buffer).await.unwrap();
            }
            writer.finish().await.unwrap();
            assert_eq!(file.size().await.unwrap(), 100 * PIECES as u64);
        })
    });
}

/// A stream's small reads of what it has in memory make no call.
#[cfg(feature = "tokio")]
#[test]
fn small_reads_from_memory() {
    use tokio::io::AsyncReadExt;
    let _watchdog = Watchdog::new("small reads", 60);
    let cached = Rc::new(Cached::new());
    let yields = nowait::block_on(yields(async {
        let mut reader = TokioIo(Reader::new(&cached.file, 0));
        for at in 0..LEN {
            assert_eq!(reader.read_u8().await.unwrap(), cached.sample.expected(at as u64, 1)[0]);
        }
    }));
    // A poll is charged with 50 ns.
    assert!(yields >= LEN / 100 / 2, "{yields}");
}

/// Its caller polls once, and takes "not yet" for an answer.
#[test]
fn what_is_polled_once_is_not_told_to_yield() {
    let cached = Cached::new();
    let ranges: Vec<_> = (0..1000).map(|i| (Cached::offset(i), 100)).collect();
    for i in 0..PIECES {
        let page = cached.file.read_range(Cached::offset(i), PAGE).now_or_never().expect("it is cached").unwrap();
        assert!(*page == *cached.sample.expected(Cached::offset(i), PAGE));
        if i % 100 == 0 {
            assert_eq!(cached.file.gather(&*ranges).now_or_never().expect("they are cached").unwrap().len(), 1000);
        }
    }
}

/// A runtime whose thread asks its reactor and its timers only when no task is ready.
#[cfg(feature = "tokio")]
fn never_looks_up() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().event_interval(u32::MAX).build().unwrap()
}

/// The reactor is never asked: only the task that reads from the cache can notice the others'
/// completion.
#[cfg(feature = "tokio")]
#[test]
fn completions_are_noticed_on_the_way() {
    let _watchdog = Watchdog::new("completions on the way", 60);
    let nowait = Nowait::builder().build().unwrap();
    if !nowait.has_ring() {
        return eprintln!("skipped: no io_uring here");
    }
    let sample = Sample::new(LEN);
    let cached = sample.open(&nowait);
    cached.read_exact_at(vec![0; LEN], 0).wait().unwrap();
    let Some(direct) = open_direct(&nowait, &sample.path) else { return eprintln!("skipped: no direct I/O here") };
    never_looks_up().block_on(async {
        nowait.attach_tokio().unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let flag = is_over.clone();
        let reads = tokio::spawn(async move {
            for i in 0..100 {
                direct.read_range(Cached::offset(i), PAGE).await.unwrap();
            }
            flag.store(true, Relaxed);
        });
        let hog = tokio::spawn(async move {
            while !is_over.load(Relaxed) {
                cached.read_range(0, PAGE).await.unwrap();
            }
        });
        reads.await.unwrap();
        hog.await.unwrap();
    });
}

/// As above, of a thread that drives a future which is never pending. (A helper notices what such a
/// thread does not, ten times a second: 300 would take longer than the watchdog lets them.)
#[test]
fn completions_are_noticed_while_a_future_goes_on() {
    let _watchdog = Watchdog::new("completions while a future goes on", 20);
    let cached = Cached::new();
    let Some(direct) = open_direct(&Nowait::builder().build().unwrap(), &cached.sample.path) else {
        return eprintln!("skipped: no direct I/O here");
    };
    let mut reads = pin!(async {
        for i in 0..300 {
            direct.read_range(Cached::offset(i), PAGE).await.unwrap();
        }
    });
    let mut hog = pin!(async {
        loop {
            cached.reads(1).await;
        }
    });
    nowait::block_on(poll_fn(|context| {
        while reads.as_mut().poll(context).is_pending() {
            let _: Poll<()> = hog.as_mut().poll(context);
        }
        Poll::Ready(())
    }));
}

/// A task that yields wakes another worker of tokio, which finds nothing and may take the task.
#[cfg(feature = "tokio")]
#[test]
fn a_task_beside_an_idle_worker_yields_seldom_and_lets_those_run_whom_it_woke() {
    let _watchdog = Watchdog::new("a task beside an idle worker", 60);
    let reads = || async {
        let cached = Cached::of(&inline());
        yields(cached.reads(PIECES)).await
    };
    let single = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let often = single.block_on(async { tokio::spawn(reads()).await.unwrap() });
    assert!(often >= YIELDS_MIN);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    // A turn is 2.5 to 5 µs, a round 160. On a busy machine the other worker may be about to park, for
    // long: that run is repeated.
    loop {
        let seldom = runtime.block_on(async { tokio::spawn(reads()).await.unwrap() });
        assert!(seldom > 0);
        if seldom < often / 8 {
            break;
        }
    }
    runtime.block_on(async {
        let (wake, woken) = futures::channel::oneshot::channel();
        let ran = Arc::new(AtomicBool::new(false));
        let sets = ran.clone();
        tokio::spawn(async move {
            let () = woken.await.unwrap();
            sets.store(true, Relaxed);
        });
        let task = tokio::spawn(async move {
            let cached = Cached::new();
            wake.send(()).unwrap();
            while !ran.load(Relaxed) {
                cached.reads(1).await;
            }
        });
        task.await.unwrap();
    });
}

/// Futures of an executor inside a task of tokio do not wait for that task's worker, which runs
/// nothing else meanwhile.
#[test]
fn an_executor_inside_a_task_goes_on() {
    let _watchdog = Watchdog::new("an executor inside a task", 60);
    let cached = Arc::new(Cached::new());
    let single = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let runs: [fn(&Cached); 4] = [
        |cached| nowait::block_on(cached.reads(PIECES)),
        |cached| futures::executor::block_on(cached.reads(PIECES)),
        |cached| smol::block_on(cached.reads(PIECES)),
        |cached| {
            let reads = (0..40).map(|_| cached.reads(PIECES / 40));
            futures::executor::block_on(futures::future::join_all(reads));
        },
    ];
    for run in runs {
        let (inside, beside) = (cached.clone(), cached.clone());
        single.block_on(async {
            let beside = tokio::spawn(async move { beside.reads(PIECES).await });
            tokio::spawn(async move { run(&inside) }).await.unwrap();
            beside.await.unwrap();
        });
    }
}

/// Symptom: tasks of a `LocalSet` within `block_on`, in a task of tokio, were left to a worker that
/// waited for them.
#[cfg(feature = "tokio")]
#[test]
fn local_tasks_of_an_executor_inside_a_task_go_on() {
    let _watchdog = Watchdog::new("local tasks inside a task", 60);
    let cached = Arc::new(Cached::new());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // Twice, as above.
    for _ in 0..2 {
        let inside = cached.clone();
        runtime.block_on(runtime.spawn(async move { inside.reads(PIECES).await })).unwrap();
        let inside = cached.clone();
        let waits = runtime.spawn(async move {
            let local = tokio::task::LocalSet::new();
            nowait::block_on(local.run_until(async {
                let reads = |_| {
                    let inside = inside.clone();
                    tokio::task::spawn_local(async move { inside.reads(PIECES / 4).await })
                };
                for task in [0, 1].map(reads) {
                    task.await.unwrap();
                }
            }));
        });
        runtime.block_on(waits).unwrap();
    }
}

/// Symptom: after each gather's reads a task that was served gave way as often as it may, since a
/// gather's task was never seen to run.
#[cfg(feature = "tokio")]
#[test]
fn a_task_gives_way_to_a_gather_until_that_has_run() {
    let _watchdog = Watchdog::new("beside gathers", 60);
    let cached = Cached::new();
    let other = Sample::new(4 << 20);
    let nowait = Nowait::builder().build().unwrap();
    let Some(direct) = open_direct(&nowait, &other.path) else { return eprintln!("skipped: no direct I/O") };
    let single = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    single.block_on(async {
        nowait.attach_tokio().unwrap();
        let gathers = tokio::spawn(async move {
            loop {
                let ranges: Vec<_> = (0..64).map(|i| (i * 7919 % 1024 * PAGE as u64, PAGE)).collect();
                drop(direct.gather(&*ranges).await.unwrap());
            }
        });
        let served = tokio::spawn(async move { yields(cached.reads(5 * PIECES)).await });
        let yields = served.await.unwrap();
        gathers.abort();
        assert!(yields < 5 * PIECES / 2, "{yields} yields of {} reads", 5 * PIECES);
    });
}
