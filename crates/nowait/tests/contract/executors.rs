//! The same reads on every executor and on none, and what executors do to futures: move them, wake
//! them from elsewhere, nest them, end under them.

use std::future::Future;
use std::sync::mpsc;
use std::task::Poll;
use std::time::Duration;

use crate::common::{Sample, Watchdog, assert_settled, contents, descriptors_of, eventually, poll_once};
use crate::promises::mix::*;
use futures::future::{join_all, maybe_done};
#[cfg(feature = "tokio")]
use nowait::Engine;
use nowait::stream::{Reader, Writer};
use nowait::{File, Nowait, OpenOptions, Wait};
use tokio::runtime;

#[test]
fn tokio_multi_thread() {
    on_each_instance("tokio_multi_thread", |file, sample, runtimes| {
        let runtime = runtimes.multi_thread();
        read_mix_in(&runtime, &file, sample, 4);
    });
}

/// A ring for each worker, first in the watcher and then others in the reactor: a worker that went on
/// with the one it knows would be noticed all the same, so this tells only that nothing is lost.
#[test]
fn tokio_with_many_workers_is_attached_later() {
    const WORKERS: usize = 24;
    let _watchdog = Watchdog::new("tokio_with_many_workers_is_attached_later", 60);
    let sample = Sample::leaked(LEN);
    for nowait in instances() {
        let file = sample.open(&nowait);
        let runtime = runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build().unwrap();
        let read = || {
            let barrier = std::sync::Arc::new(std::sync::Barrier::new(WORKERS));
            let task = |_| {
                let (file, barrier) = (file.clone(), barrier.clone());
                runtime.spawn(async move {
                    // Each worker has one.
                    barrier.wait();
                    read_mix(&file, sample).await
                })
            };
            let tasks: Vec<_> = (0..WORKERS).map(task).collect();
            runtime.block_on(join_all(tasks)).into_iter().for_each(Result::unwrap);
        };
        read();
        #[cfg(feature = "tokio")]
        {
            let _entered = runtime.enter();
            nowait.attach_tokio().unwrap();
        }
        read();
        drop(runtime);
        drop(file);
        assert_settled(&nowait);
    }
    std::fs::remove_dir_all(sample.path.parent().unwrap()).unwrap();
}

#[test]
fn tokio_current_thread() {
    on_each_instance("tokio_current_thread", |file, sample, runtimes| {
        let runtime = runtimes.current_thread();
        // The root future first, then a task.
        runtime.block_on(read_mix(&file, sample));
        let clone = file.clone();
        let task = runtime.spawn(async move { read_mix(&clone, sample).await });
        runtime.block_on(task).unwrap();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async move {
            tokio::task::spawn_local(async move { read_mix(&file, sample).await }).await.unwrap();
        });
    });
}

const TASKS: usize = 8;
const RECORDS: usize = 50;

/// Tasks that append records to one file, write them to their places in another, and sync both;
/// then what is there.
fn tokio_writes(name: &str, runtime: fn(&Runtimes) -> runtime::Runtime) {
    /// The number, as many times as makes lengths differ.
    fn record(number: usize) -> Vec<u8> {
        let mut record = (number as u16).to_le_bytes().to_vec();
        record.resize(2 + number % 3 * 1000, number as u8);
        record
    }
    let _watchdog = Watchdog::new(name, 60);
    let folder = crate::common::mounts::temp_dir();
    for (nowait, runtimes) in
        instances().into_iter().flat_map(|nowait| Runtimes::of(&nowait).map(|of| (nowait.clone(), of)))
    {
        let [log, table] = ["log", "table"].map(|name| {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).open_in(&nowait, folder.path().join(name)).wait().unwrap()
        });
        let runtime = runtime(&runtimes);
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let (log, table) = (log.clone(), table.clone());
                runtime.spawn(async move {
                    // In an order that leaves gaps, which others fill.
                    for i in 0..RECORDS {
                        let number = i * 7 % RECORDS * TASKS + task;
                        assert!(log.append(record(number)).await.unwrap() == record(number));
                        let page = vec![number as u8; PAGE];
                        assert!(table.write_all_at(page.clone(), (number * PAGE) as u64).await.unwrap() == page);
                        if i % 20 == 0 {
                            log.sync_data().await.unwrap();
                        }
                    }
                })
            })
            .collect();
        runtime.block_on(join_all(tasks)).into_iter().for_each(Result::unwrap);

        // Syncs that are asked for together share calls. On a busy machine a thread may end each before
        // the next one begins: they are repeated.
        let before = nowait.stats();
        while nowait.stats().joined == before.joined {
            let sync = |table: &File| {
                let table = table.clone();
                runtime.spawn(async move { table.sync_data().await })
            };
            let syncs: Vec<_> = (0..4 * TASKS).map(|_| sync(&table)).collect();
            runtime.block_on(join_all(syncs)).into_iter().for_each(|sync| sync.unwrap().unwrap());
        }

        let pages = std::fs::read(table.path()).unwrap();
        assert_eq!(pages.len(), TASKS * RECORDS * PAGE);
        assert!(pages.chunks(PAGE).enumerate().all(|(number, page)| page == [number as u8; PAGE]));
        let bytes = std::fs::read(log.path()).unwrap();
        let (mut rest, mut found) = (&bytes[..], Vec::new());
        while !rest.is_empty() {
            let number = u16::from_le_bytes([rest[0], rest[1]]) as usize;
            rest = rest.strip_prefix(&record(number)[..]).expect("a whole record");
            found.push(number);
        }
        found.sort_unstable();
        assert!(found.into_iter().eq(0..TASKS * RECORDS), "every record is there once");
        assert_settled(&nowait);
    }
}

#[test]
fn tokio_multi_thread_writes() {
    tokio_writes("tokio_multi_thread_writes", Runtimes::multi_thread);
}

#[test]
fn tokio_current_thread_writes() {
    tokio_writes("tokio_current_thread_writes", Runtimes::current_thread);
}

#[test]
fn tokio_merely_entered() {
    on_each_instance("tokio_merely_entered", |file, sample, runtimes| {
        for runtime in [runtimes.multi_thread(), runtimes.current_thread()] {
            let _entered = runtime.enter();
            futures::executor::block_on(read_mix(&file, sample));
            nowait::block_on(read_mix(&file, sample));
            assert_eq!(file.read_range(0, PAGE).wait().unwrap().len(), PAGE);
        }
    });
}

#[test]
fn tokio_entered_but_ended() {
    on_each_instance("tokio_entered_but_ended", |file, sample, runtimes| {
        for runtime in [runtimes.multi_thread(), runtimes.current_thread()] {
            let handle = runtime.handle().clone();
            let _entered = handle.enter();
            drop(runtime);
            futures::executor::block_on(read_mix(&file, sample));
        }
    });
}

/// Symptom: the error said "not supported for this file", and gave the same advice for each cause.
/// Guarantee: it names the cause, and the next step.
#[cfg(feature = "tokio")]
#[test]
fn a_runtime_that_is_not_attached_is_advised_of() {
    let Ok(nowait) = Nowait::builder().engine(Engine::Uring).build() else {
        return eprintln!("skipped: there is no ring");
    };
    let sample = Sample::leaked(LEN);
    let file = sample.open(&nowait);
    let runtime = Runtimes(None).multi_thread();
    let read = || {
        let file = file.clone();
        runtime.block_on(runtime.spawn(async move { file.read_range(0, 4096).submit().await })).unwrap().unwrap();
    };
    let is_advised = || nowait.advice().iter().any(|sentence| sentence.contains("attach_tokio"));
    assert!(!is_advised(), "no runtime was used");
    read();
    assert!(is_advised());
    runtime.block_on(async { nowait.attach_tokio().unwrap() });
    read();
    assert!(!is_advised(), "it is attached");
    std::fs::remove_dir_all(sample.path.parent().unwrap()).unwrap();
}

#[cfg(feature = "tokio")]
#[test]
fn what_is_no_runtime_is_not_attached() {
    let unsupported = |nowait: &Nowait, parts: [&str; 2]| {
        let error = nowait.attach_tokio().unwrap_err();
        assert_eq!(error.kind(), nowait::ErrorKind::Unsupported);
        let text = error.to_string();
        assert!(parts.iter().all(|part| text.contains(part)) && !text.contains("file"), "{text}");
    };
    let Ok(nowait) = Nowait::builder().engine(Engine::Uring).build() else {
        return eprintln!("skipped: there is no ring");
    };
    unsupported(&nowait, ["in no tokio runtime", "block_on"]);
    let handle = Runtimes(None).multi_thread().handle().clone();
    let _entered = handle.enter();
    unsupported(&nowait, ["shutdown", "has not ended"]);
    // Without a ring there is nothing to attach.
    Nowait::builder().engine(Engine::Pool).build().unwrap().attach_tokio().unwrap();
}

/// Symptom: tokio's panic named neither the call nor the alternative.
#[cfg(feature = "tokio")]
#[test]
fn a_runtime_without_an_io_driver_is_not_attached_and_is_served() {
    let Ok(nowait) = Nowait::builder().engine(Engine::Uring).build() else {
        return eprintln!("skipped: there is no ring");
    };
    let sample = Sample::new(LEN);
    let file = sample.open(&nowait);
    let multi_thread = runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let current_thread = runtime::Builder::new_current_thread().build().unwrap();
    for runtime in [multi_thread, current_thread] {
        let error = runtime.block_on(async { nowait.attach_tokio().unwrap_err() });
        assert_eq!(error.kind(), nowait::ErrorKind::Unsupported);
        let text = error.to_string();
        for part in ["attach_tokio", "enable_io", "enable_all", "also work without it"] {
            assert!(text.contains(part), "{text}");
        }
        sample.cool();
        let file = file.clone();
        let read = runtime.spawn(async move { file.read_range(0, PAGE).submit().await });
        assert_eq!(runtime.block_on(read).unwrap().unwrap().len(), PAGE);
    }
}

/// A blocking thread of a runtime that nobody drives: `tokio::fs` works there, and so must we.
#[test]
fn tokio_blocking_thread_of_an_idle_runtime() {
    on_each_instance("tokio_blocking_thread_of_an_idle_runtime", |file, sample, runtimes| {
        for runtime in [runtimes.multi_thread(), runtimes.current_thread()] {
            let (done, result) = mpsc::channel();
            let file = file.clone();
            runtime.spawn_blocking(move || {
                futures::executor::block_on(read_mix(&file, sample));
                done.send(()).unwrap();
            });
            result.recv().unwrap();
        }
    });
}

/// Blocking inside a task is bad manners, but our own ways of blocking need nothing from the
/// runtime.
#[test]
fn tokio_task_that_blocks() {
    on_each_instance("tokio_task_that_blocks", |file, sample, runtimes| {
        for runtime in [runtimes.multi_thread(), runtimes.current_thread()] {
            let file = file.clone();
            let task = runtime.spawn(async move {
                nowait::block_on(read_mix(&file, sample));
                // The task's budget is used up by cached reads; waiting must not depend on it.
                let cached = sample.open(Nowait::shared());
                for i in 0..300 {
                    cached.read_range(i, 1).wait().unwrap();
                    file.read_range(i, 1).wait().unwrap();
                    assert!(nowait::block_on(cached.read_range(i, 1)).unwrap().len() == 1);
                }
            });
            runtime.block_on(task).unwrap();
        }
    });
}

/// While each worker blocks in a nested executor, none polls the reactor. A glance detects this within
/// 100 ms; later reads do not wait for another glance.
#[cfg(feature = "tokio")]
#[test]
fn reads_in_a_nested_executor_wait_once_for_help() {
    const READS: u32 = 40;
    let Ok(nowait) = Nowait::builder().engine(Engine::Uring).build() else {
        return eprintln!("skipped: there is no ring");
    };
    let sample = Sample::new(LEN);
    let file = sample.open(&nowait);
    let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let task = runtime.spawn(async move {
        nowait.attach_tokio().unwrap();
        let begun = std::time::Instant::now();
        for _ in 0..READS {
            sample.cool();
            futures::executor::block_on(file.read_range(0, PAGE)).unwrap();
        }
        begun.elapsed()
    });
    let elapsed = runtime.block_on(task).unwrap();
    assert!(elapsed < READS * Duration::from_millis(50), "{READS} reads took {elapsed:?}");
}

/// The runtime that would notice the read is the one that the wait blocks.
#[test]
fn tokio_task_waits_for_what_it_began() {
    on_each_instance("tokio_task_waits_for_what_it_began", |file, sample, runtimes| {
        let runtime = runtimes.current_thread();
        let file = file.clone();
        let task = runtime.spawn(async move {
            // So that the runtime is known to run here.
            read_mix(&file, sample).await;
            for i in 0..20 {
                sample.cool();
                let mut read = Box::pin(file.read_range(i * 60_000, PAGE));
                if poll_once(read.as_mut()).is_pending() {
                    std::pin::Pin::into_inner(read).wait().unwrap();
                }
            }
        });
        runtime.block_on(task).unwrap();
    });
}

#[test]
fn tokio_ends_with_reads_in_flight() {
    let _watchdog = Watchdog::new("tokio_ends_with_reads_in_flight", 60);
    let sample = Sample::new(LEN);
    for nowait in instances() {
        let file = sample.open(&nowait);
        for round in 0..20 {
            sample.cool();
            let runtimes = &Runtimes::of(&nowait)[round / 4 % 2];
            let runtime = if round % 2 == 0 { runtimes.multi_thread() } else { runtimes.current_thread() };
            for i in 0..50 {
                let file = file.clone();
                runtime.spawn(async move { drop(file.read_range(i * 4099 * 7, PAGE).await.unwrap()) });
            }
            runtime.block_on(tokio::task::yield_now());
            match round % 4 {
                0 | 1 => drop(runtime),
                2 => runtime.shutdown_background(),
                _ => runtime.shutdown_timeout(Duration::from_millis(1)),
            }
        }
        assert_settled(&nowait);
        assert_eq!(futures::executor::block_on(file.read_range(0, 100)).unwrap().len(), 100);
    }
}

/// A future that was submitted on one runtime finishes on another after the first one's end.
#[test]
fn future_outlives_its_runtime() {
    let _watchdog = Watchdog::new("future_outlives_its_runtime", 60);
    let sample = Sample::new(LEN);
    for nowait in instances() {
        let file = sample.open(&nowait);
        for runtime in Runtimes::of(&nowait).iter().flat_map(|of| [of.multi_thread(), of.current_thread()]) {
            sample.cool();
            let reads: Vec<_> = (0..64)
                .map(|i| {
                    let file = file.clone();
                    async move { file.read_at(vec![0; PAGE], i * 32_768).await.unwrap().1 }
                })
                .map(|read| Box::pin(maybe_done(read)))
                .collect();
            let task = runtime.spawn(async move {
                let mut reads = reads;
                for read in &mut reads {
                    let _ = poll_once(read.as_mut());
                }
                reads
            });
            let mut reads = runtime.block_on(task).unwrap();
            drop(runtime);
            futures::executor::block_on(join_all(reads.iter_mut().map(|read| read.as_mut())));
            for (i, read) in reads.iter_mut().enumerate() {
                assert!(read.as_mut().take_output().unwrap() == sample.expected(i as u64 * 32_768, PAGE));
            }
        }
    }
}

#[test]
fn smol_and_its_executor() {
    on_each_instance("smol_and_its_executor", |file, sample, _| {
        smol::block_on(read_mix(&file, sample));
        let executor = smol::Executor::new();
        let tasks: Vec<_> = (0..4).map(|_| executor.spawn(read_mix(&file, sample))).collect();
        smol::block_on(executor.run(join_all(tasks)));
    });
}

#[test]
fn futures_executor_and_our_own() {
    on_each_instance("futures_executor_and_our_own", |file, sample, _| {
        futures::executor::block_on(read_mix(&file, sample));
        nowait::block_on(read_mix(&file, sample));
        let mut pool = futures::executor::LocalPool::new();
        pool.run_until(read_mix(&file, sample));
    });
}

/// The library's driver runs any future, which may wait for anything; dropped, it goes at once.
#[test]
fn the_driver_runs_futures_of_embedders() {
    let _watchdog = Watchdog::new("futures of embedders", 60);
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..100).map(|_| futures::channel::oneshot::channel()).unzip();
    let start = |receiver: futures::channel::oneshot::Receiver<usize>| nowait::embed::start(receiver).unwrap();
    let mut started: Vec<_> = receivers.into_iter().map(start).collect();
    drop(started.pop());
    assert!(eventually(|| senders[99].is_canceled()));
    let from_others = std::thread::spawn(|| senders.into_iter().enumerate().for_each(|(i, sender)| _ = sender.send(i)));
    let ended = futures::executor::block_on(join_all(started));
    assert!(ended.into_iter().enumerate().all(|(i, sent)| sent == Ok(i)));
    from_others.join().unwrap();
}

/// Blocks until an operation has completed, or awaits it.
fn end<W: Wait>(awaits: bool, operation: W) -> W::Output {
    if awaits { futures::executor::block_on(operation.into_future()) } else { operation.wait() }
}

#[test]
fn each_future_is_awaited_or_waited_for_by_the_same_code() {
    let _watchdog = Watchdog::new("a function over `Wait`", 60);
    let sample = Sample::new(LEN);
    for awaits in [false, true] {
        let path = sample.path.with_extension(if awaits { "awaited" } else { "waited" });
        end(awaits, nowait::fs::write(&path, sample.bytes.clone())).unwrap();
        let file = end(awaits, OpenOptions::new().read(true).write(true).open(&path)).unwrap();
        assert_eq!(*end(awaits, file.read_range(5, PAGE)).unwrap(), *sample.expected(5, PAGE));
        assert_eq!(*end(awaits, file.read_range(7, PAGE).start()).unwrap(), *sample.expected(7, PAGE));
        assert_eq!(*end(awaits, file.gather([(0, 3)])).unwrap().into_buffer(), *sample.expected(0, 3));
        assert_eq!(*end(awaits, file.gather_exact([(1, 3)])).unwrap().into_buffer(), *sample.expected(1, 3));
        let mut each = Vec::new();
        end(awaits, file.gather([(2, 3)]).each(|_, range| each.extend_from_slice(range.unwrap()))).unwrap();
        assert_eq!(each, sample.expected(2, 3));
        end(awaits, file.write_all_at(vec![1; PAGE], 0)).unwrap();
        end(awaits, file.write_many(vec![(PAGE as u64, vec![2; PAGE])])).unwrap();
        end(awaits, file.settled());
        let mut writer = Writer::new(&file, 2 * PAGE as u64);
        end(awaits, writer.put(vec![3; PAGE])).unwrap();
        end(awaits, writer.put_slice(&[4; PAGE])).unwrap();
        end(awaits, writer.finish()).unwrap();
        #[cfg(unix)]
        {
            // SAFETY: nothing truncates the file, and nothing reads the map.
            let map = unsafe { nowait::map::Map::new(&file, ..) }.unwrap();
            end(awaits, map.populate(..)).unwrap();
            end(awaits, map.populate(..).start().unwrap()).unwrap();
        }
        let mut reader = Reader::new(&file, 0);
        let mut chunk = end(awaits, reader.chunk()).unwrap().unwrap().to_vec();
        chunk.truncate(4 * PAGE);
        let pages: Vec<u8> = (1..=4).flat_map(|page| [page; PAGE]).collect();
        assert!(pages.starts_with(&chunk) && !chunk.is_empty(), "awaits: {awaits}");
    }
}

#[test]
fn waits_in_many_threads() {
    on_each_instance("waits_in_many_threads", |file, sample, _| {
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let file = &file;
                scope.spawn(move || {
                    for i in 0..100 {
                        let offset = ((thread * 100 + i) * 7919) % (LEN - PAGE);
                        let read = file.read_range(offset as u64, PAGE).wait().unwrap();
                        assert!(*read == *sample.expected(offset as u64, PAGE));
                    }
                });
            }
        });
    });
}

#[test]
fn futures_are_send_and_files_are_shared() {
    fn send<T: Send>(_: &T) {}
    fn shared<T: Send + Sync + Clone + 'static>() {}
    shared::<File>();
    shared::<Nowait>();
    let sample = Sample::new(10);
    let file = sample.open(Nowait::shared());
    send(&File::open("x"));
    send(&file.read_at(vec![0u8; 1], 0));
    send(&file.read_vectored_at(vec![vec![0u8; 1]], 0));
    send(&file.read_range(0, 1));
    send(&file.size());
    send(&file.advise(0, 0, nowait::Advice::Normal));
    send(&async { file.read_range(0, 1).await });
}

#[test]
fn future_moves_between_threads() {
    let _watchdog = Watchdog::new("future_moves_between_threads", 60);
    let sample = Sample::new(LEN);
    for nowait in instances() {
        let file = sample.open(&nowait);
        for round in 0..50 {
            sample.cool();
            let offset = round * 8209;
            let clone = file.clone();
            let read = async move { clone.read_at(vec![0; PAGE], offset).await.unwrap().1 };
            let mut read = Box::pin(maybe_done(read));
            let (to_other, other) = mpsc::channel();
            let first = std::thread::spawn(move || {
                nowait::block_on(std::future::poll_fn(|context| {
                    let _ = read.as_mut().poll(context);
                    Poll::Ready(())
                }));
                to_other.send(read).unwrap();
            });
            let mut read = other.recv().unwrap();
            match round % 2 {
                0 => nowait::block_on(read.as_mut()),
                _ => futures::executor::block_on(read.as_mut()),
            }
            assert!(read.as_mut().take_output().unwrap() == sample.expected(offset, PAGE));
            first.join().unwrap();
        }
    }
}

/// Sends `()` from another thread after a while.
fn later() -> futures::channel::oneshot::Receiver<()> {
    let (sender, receiver) = futures::channel::oneshot::channel();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(2));
        let _ = sender.send(());
    });
    receiver
}

#[test]
fn foreign_waker_wakes_a_sleeper() {
    let _watchdog = Watchdog::new("foreign_waker_wakes_a_sleeper", 60);
    let sample = Sample::new(LEN);
    for nowait in instances() {
        let file = sample.open(&nowait);
        for round in 0..50u64 {
            nowait::block_on(later()).unwrap();
            sample.cool();
            let reads = join_all((0..8).map(|i| file.read_range(round * 20_000 + i * 100_000, PAGE)));
            let (signal, reads) = nowait::block_on(futures::future::join(later(), reads));
            signal.unwrap();
            reads.into_iter().for_each(|read| assert_eq!(read.unwrap().len(), PAGE));
        }
    }
}

#[test]
fn nested_blocking() {
    let _watchdog = Watchdog::new("nested_blocking", 60);
    let sample = Sample::new(LEN);
    for nowait in instances() {
        let file = sample.cool().open(&nowait);
        let inner = async |i: u64| {
            let first = file.read_range(i * 50_000, PAGE).wait().unwrap();
            let second = nowait::block_on(file.read_range(i * 50_000 + 9000, PAGE)).unwrap();
            futures::executor::block_on(async {
                assert!(*first == *sample.expected(i * 50_000, PAGE));
                nowait::block_on(later()).unwrap();
            });
            let third = file.read_range(i * 50_000 + 20_000, PAGE).await.unwrap();
            (second, third)
        };
        let results = nowait::block_on(join_all((0..20).map(inner)));
        for (i, (second, third)) in results.into_iter().enumerate() {
            assert!(*second == *sample.expected(i as u64 * 50_000 + 9000, PAGE));
            assert!(*third == *sample.expected(i as u64 * 50_000 + 20_000, PAGE));
        }
    }
}

#[test]
fn open_futures_that_are_dropped_leave_no_descriptors() {
    let nowait = Nowait::builder().build().unwrap();
    let folder = crate::common::mounts::temp_dir();
    let path = folder.path().join("a");
    std::fs::write(&path, contents(10, 1)).unwrap();
    let held = || descriptors_of(&path);
    for _ in 0..300 {
        let mut open = Box::pin(nowait::OpenOptions::new().read(true).open_in(&nowait, &path));
        let _ = poll_once(open.as_mut());
    }
    assert_settled(&nowait);
    assert!(eventually(|| held() == 0), "{} descriptors", held());
}

/// Symptom: under tokio's paused clock a timeout of any length expired before an operation that
/// waited for its device or a thread: the clock jumped when the runtime had nothing to run.
#[cfg(feature = "tokio-test-util")]
#[test]
fn a_paused_clock_stands_still_while_operations_are_under_way() {
    use nowait::stream::{Reader, Writer};
    use tokio::time::{Instant, sleep, timeout};
    const LIMIT: Duration = Duration::from_secs(100);
    for attached in [false, true] {
        for nowait in instances() {
            let _watchdog = Watchdog::new(format!("paused clock, attached: {attached}"), 60);
            let sample = Sample::new(LEN);
            let runtime = runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
            runtime.block_on(async {
                if attached {
                    nowait.attach_tokio().unwrap();
                }
                let begun = Instant::now();
                let file = timeout(LIMIT, OpenOptions::new().read(true).write(true).open_in(&nowait, &sample.path));
                let file = file.await.expect("an open").unwrap();
                timeout(LIMIT, read_mix(&file, &sample)).await.expect("reads");
                let in_task = {
                    let (file, sample) = (file.clone(), Sample::new(LEN));
                    tokio::spawn(timeout(LIMIT, async move { read_mix(&file, &sample).await }))
                };
                in_task.await.unwrap().expect("reads of a task");
                sample.cool();
                let streams = async {
                    let mut reader = Reader::new(&file, 0);
                    while reader.chunk().await.unwrap().is_some() {}
                    let mut writer = Writer::new(&file, 0);
                    writer.put(sample.bytes.clone()).await.unwrap();
                    writer.sync_data().await.unwrap();
                    file.write_many(vec![(0, vec![1; PAGE]), (1 << 20, vec![2; PAGE])]).await.unwrap();
                };
                timeout(LIMIT, streams).await.expect("streams");
                sample.cool();
                let gather = || file.gather((0..64).map(|page| (page * 8192, PAGE)).collect::<Vec<_>>());
                timeout(LIMIT, gather().start()).await.expect("a started gather").unwrap();
                sample.cool();
                let (called, waits) = tokio::sync::oneshot::channel();
                gather().on_complete(move |gathered| called.send(gathered).unwrap());
                timeout(LIMIT, waits).await.expect("a gather's callback").unwrap().unwrap();
                let written = nowait.fs().write_atomic(sample.path.with_extension("started"), "contents").start();
                timeout(LIMIT, written).await.expect("started steps").unwrap();
                let names = nowait.fs().write_atomic(sample.path.with_extension("new"), "contents");
                timeout(LIMIT, names).await.expect("names").unwrap();
                // No timeout expires, however long the operation takes.
                let long = nowait::embed::blocking(&nowait, nowait::ErrorOp::List, &sample.path, |_| {
                    std::thread::sleep(Duration::from_millis(30));
                });
                timeout(LIMIT, long).await.expect("a long call").unwrap();
                // An operation that begins in another's callback, on a thread of the library.
                let (ended, waits) = tokio::sync::oneshot::channel();
                let next = file.clone();
                file.sync_data().on_complete(move |synced| {
                    synced.unwrap();
                    next.sync_all().on_complete(move |synced| ended.send(synced).unwrap());
                });
                timeout(LIMIT, waits).await.expect("a callback").unwrap().unwrap();
                assert_eq!(begun.elapsed(), Duration::ZERO, "attached: {attached}");
                // The clock runs free again, and jumps.
                sleep(LIMIT).await;
                assert!(begun.elapsed() >= LIMIT);
            });
            drop(runtime);
            assert_settled(&nowait);
        }
    }
}
