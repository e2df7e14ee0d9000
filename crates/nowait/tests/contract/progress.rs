//! No operation's progress depends on what another thread does with its time: a thread that
//! computes, or blocks on the very one that waits for it, holds up nothing but itself.

use std::future::Future;
use std::path::Path as FsPath;
use std::pin::Pin;
use std::sync::mpsc;
use std::task::Poll;
use std::thread;

use crate::common::mounts::temp_dir;
use crate::common::{Watchdog, assert_settled, descriptors_of, eventually, poll_once};
use futures::future::{join_all, maybe_done};
use futures::stream::{FuturesUnordered, StreamExt};
use nowait::{Buf, Builder, Engine, File, Nowait, OpenOptions};

const PAGE: usize = 4096;

/// A file of a megabyte, past the page cache where that can be, with each engine that has queues of
/// threads.
fn on_each(builder: impl Fn() -> Builder, test: impl Fn(&Nowait, &File)) {
    for engine in [Engine::Uring, Engine::Aio, Engine::Pool] {
        let nowait = match builder().engine(engine.clone()).build() {
            Ok(nowait) => nowait,
            Err(error) => {
                eprintln!("skipped: {error}");
                continue;
            }
        };
        eprintln!("{engine:?}");
        let _watchdog = Watchdog::new(format!("progress with {engine:?}"), 60);
        let folder = temp_dir();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![1; 1 << 20]).unwrap();
        test(&nowait, &direct(&nowait, &path));
        assert_settled(&nowait);
    }
}

fn direct(nowait: &Nowait, path: &FsPath) -> File {
    OpenOptions::new().read(true).write(true).direct(true).open_in(nowait, path).wait().unwrap()
}

fn page(value: u8) -> Buf {
    let mut page = Buf::zeroed(PAGE);
    page.fill(value);
    page
}

/// Polls a write on this thread's own queue, and leaves it there.
fn begun<'f>(file: &'f File, offset: u64) -> Pin<Box<dyn Future<Output = ()> + 'f>> {
    let mut write: Pin<Box<dyn Future<Output = ()>>> =
        Box::pin(maybe_done(async move { drop(file.write_all_at(page(2), offset).await.unwrap()) }));
    let _ = poll_once(write.as_mut());
    write
}

/// Whether something else comes to its end while this thread, which has a write under way, blocks
/// on it.
fn ends_meanwhile(file: &File, something: impl FnOnce() + Send) {
    thread::scope(|scope| {
        nowait::block_on(async {
            let write = begun(file, 0);
            scope.spawn(something).join().unwrap();
            drop(write);
        });
    });
}

#[test]
fn an_overlapping_write_of_a_thread_that_is_waited_for() {
    on_each(Nowait::builder, |_, file| {
        for way in crate::common::Way::ALL {
            ends_meanwhile(file, || drop(way.run(file.write_all_at(page(3), 0)).unwrap()));
            // Part of a block, through the page cache: no other write may be beside it.
            ends_meanwhile(file, || drop(way.run(file.write_all_at(vec![4; 100], 50_000)).unwrap()));
            ends_meanwhile(file, || way.run(file.set_len(1 << 20)).unwrap());
            ends_meanwhile(file, || way.run(file.sync_data()).unwrap());
        }
        ends_meanwhile(file, || file.write_all_from(&[5; 300], 10).unwrap());
        ends_meanwhile(file, || file.settled().wait());
        ends_meanwhile(file, || futures::executor::block_on(file.settled()));
    });
}

#[test]
fn a_sync_beside_a_durable_write_of_a_thread_that_waits_for_it() {
    on_each(Nowait::builder, |_, file| {
        for way in crate::common::Way::ALL {
            thread::scope(|scope| {
                nowait::block_on(async {
                    let mut write = Box::pin(file.write_all_at(page(2), 0).durable());
                    let _ = poll_once(write.as_mut());
                    scope.spawn(|| way.run(file.sync_data()).unwrap()).join().unwrap();
                });
            });
        }
    });
}

/// Ways in which the same thread waits, in the middle of its own turn.
#[test]
fn a_thread_that_blocks_on_its_own_queue() {
    on_each(Nowait::builder, |_, file| {
        nowait::block_on(async {
            for _ in 0..20 {
                drop(begun(file, 0));
                file.settled().wait();
                drop(begun(file, 0));
                file.write_all_from(&[5; 300], 10).unwrap();
                drop(begun(file, 0));
                file.set_len(1 << 20).wait().unwrap();
                let mut write = Box::pin(file.write_all_at(page(2), 0).durable());
                let _ = poll_once(write.as_mut());
                file.sync_all().wait().unwrap();
            }
        });
    });
}

/// Symptom: a write that another's completion let in went to the queue of the thread that noticed
/// the completion, and waited there until that thread had time.
#[test]
fn a_write_that_is_let_in_by_another_thread() {
    on_each(
        || Nowait::builder().write_bytes_max(4096, 1 << 20),
        |_, file| {
            let (go, went) = mpsc::channel::<()>();
            let (done, is_done) = mpsc::channel();
            let other = file.clone();
            let thread = thread::spawn(move || {
                went.recv().unwrap();
                futures::executor::block_on(other.write_all_at(page(3), 8192)).unwrap();
                done.send(()).unwrap();
            });
            nowait::block_on(async {
                let mut write = Box::pin(file.write_all_at(page(2), 0));
                let is_pending = poll_once(write.as_mut()).is_pending();
                go.send(()).unwrap();
                // Time to come behind ours; if it does not, this is no test of it, and right all
                // the same.
                thread::sleep(std::time::Duration::from_millis(5));
                if is_pending {
                    write.await.unwrap();
                }
                // No other poll of ours.
                is_done.recv().unwrap();
            });
            thread.join().unwrap();
        },
    );
}

/// Symptom: `block_on` went on serving the writes of others, ten thousand of them.
#[test]
fn block_on_returns_when_its_future_is_ready() {
    on_each(
        || Nowait::builder().write_bytes_max(64 << 10, 64 << 20),
        |_, file| {
            let (go, went) = mpsc::channel::<()>();
            let other = file.clone();
            let (stop, stopped) = mpsc::channel::<()>();
            let writer = thread::spawn(move || {
                went.recv().unwrap();
                let mut written = 0;
                loop {
                    let many = (0..64).map(|i| other.write_all_at(page(3), (i % 64) * PAGE as u64));
                    written += futures::executor::block_on(join_all(many)).len();
                    if stopped.try_recv().is_ok() {
                        return written;
                    }
                }
            });
            nowait::block_on(async {
                let writes = (0..16).map(|i| file.write_all_at(page(2), (128 + i) * PAGE as u64));
                let mut writes: FuturesUnordered<_> = writes.collect();
                let _ = futures::poll!(writes.next());
                go.send(()).unwrap();
                while let Some(write) = writes.next().await {
                    write.unwrap();
                }
            });
            // The other writes on until it is told.
            stop.send(()).unwrap();
            assert!(writer.join().unwrap() > 0);
        },
    );
}

/// A future that was begun on one thread, and ends on another for which the first waits.
#[test]
fn a_future_that_is_moved() {
    on_each(Nowait::builder, |_, file| {
        thread::scope(|scope| {
            nowait::block_on(async {
                let mut read = Box::pin(file.read_range(0, 64 << 10));
                if poll_once(read.as_mut()).is_pending() {
                    let end = scope.spawn(|| futures::executor::block_on(read).unwrap().len());
                    assert_eq!(end.join().unwrap(), 64 << 10);
                }
                let ranges: Vec<_> = (0..50).map(|i| (i * 16_384, 4096)).collect();
                let mut gather = Box::pin(file.gather(ranges));
                if poll_once(gather.as_mut()).is_pending() {
                    let all = || futures::executor::block_on(gather).unwrap().iter().all(|row| row.is_ok());
                    assert!(scope.spawn(all).join().unwrap());
                }
                let many = (0..20).map(|i| (i * 32_768, page(6))).collect();
                let mut many = Box::pin(file.write_many(many));
                if poll_once(many.as_mut()).is_pending() {
                    let all = || futures::executor::block_on(many).unwrap().len();
                    assert_eq!(scope.spawn(all).join().unwrap(), 20);
                }
            });
        });
    });
}

/// Such a set polls only those of its futures that were woken, so that nothing tells that it has
/// moved.
#[test]
fn a_set_of_futures_that_is_moved() {
    on_each(Nowait::builder, |_, file| {
        for _ in 0..5 {
            nowait::block_on(async {
                let mut set: FuturesUnordered<_> = (0..4).map(|i| file.read_range(i * 8192, 4096)).collect();
                let first = futures::poll!(set.next());
                let rest = move || futures::executor::block_on(set.map(|read| read.unwrap().len()).collect::<Vec<_>>());
                let rest = thread::scope(|scope| scope.spawn(rest).join().unwrap());
                assert_eq!(rest.len() + usize::from(first.is_ready()), 4);
            });
        }
    });
}

/// Operations that a thread leaves behind are let go without it: it does something else, or is
/// gone.
#[test]
fn a_file_is_closed_whose_reads_were_given_up() {
    on_each(Nowait::builder, |nowait, file| {
        let path = file.path().with_extension("other");
        std::fs::copy(file.path(), &path).unwrap();
        let open = || descriptors_of(&path);
        let give_up = || {
            let file = direct(nowait, &path);
            nowait::block_on(async {
                let mut reads: Vec<_> = (0..20).map(|i| Box::pin(file.read_range(i * 4096, 4096))).collect();
                reads.iter_mut().for_each(|read| drop(poll_once(read.as_mut())));
            });
        };
        give_up();
        assert!(eventually(|| open() == 0), "{} descriptors are open", open());
        thread::spawn({
            let (nowait, path) = (nowait.clone(), path.clone());
            move || {
                let file = direct(&nowait, &path);
                let mut reads: Vec<_> = (0..20).map(|i| Box::pin(file.read_range(i * 4096, 4096))).collect();
                nowait::block_on(async { reads.iter_mut().for_each(|read| drop(poll_once(read.as_mut()))) });
            }
        })
        .join()
        .unwrap();
        assert!(eventually(|| open() == 0), "{} descriptors are open", open());
    });
}

/// A runtime that one of its tasks blocks.
#[cfg(feature = "tokio")]
#[test]
fn a_runtime_that_is_blocked() {
    on_each(Nowait::builder, |_, file| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let file = file.clone();
        let task = async move {
            for round in 0..20 {
                let write = begun(&file, 0);
                let (other, way) = (file.clone(), crate::common::Way::ALL[round % 3]);
                let ends = move || match round % 4 {
                    0 => drop(way.run(other.write_all_at(page(3), 0)).unwrap()),
                    1 => way.run(other.set_len(1 << 20)).unwrap(),
                    2 => drop(way.run(other.write_all_at(vec![4; 100], 50_000)).unwrap()),
                    _ => other.settled().wait(),
                };
                thread::spawn(ends).join().unwrap();
                drop(write);
                tokio::task::yield_now().await;
            }
        };
        runtime.block_on(runtime.spawn(task)).unwrap();
    });
}

/// A runtime that nobody drives any more, on the thread that now awaits its operations elsewhere.
#[cfg(feature = "tokio")]
#[test]
fn a_runtime_that_is_left() {
    on_each(Nowait::builder, |nowait, file| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (nowait, file) = (nowait.clone(), file.clone());
        for round in 0..3 {
            let (nowait, file) = (nowait.clone(), file.clone());
            let reads = move || {
                let read = |i: u64| file.read_range(i * 4096, 4096).submit();
                (0..100).map(read).collect::<Vec<_>>()
            };
            let task = runtime.spawn(async move {
                nowait.attach_tokio().unwrap();
                // The ring's own tasks run.
                reads().remove(0).await.unwrap();
                tokio::task::yield_now().await;
                reads()
            });
            let reads = runtime.block_on(task).unwrap();
            match round {
                0 => futures::executor::block_on(join_all(reads)).into_iter().for_each(|read| drop(read.unwrap())),
                1 => reads.into_iter().for_each(|read| drop(read.wait().unwrap())),
                _ => drop(nowait::block_on(join_all(reads))),
            }
        }
    });
}

/// Small writes are left until a task is polled, which does not happen while the thread blocks.
#[test]
fn a_small_write_that_its_own_thread_waits_for() {
    let _watchdog = Watchdog::new("a small write that its own thread waits for", 60);
    let folder = temp_dir();
    let path = &*folder.path().join("file");
    let nowait = Nowait::builder().build().unwrap();
    let file = OpenOptions::new().write(true).create(true).open_in(&nowait, path).wait().unwrap();
    for moved in [true, false] {
        let kept = file.clone();
        let mut write = Box::pin(async move { drop(kept.write_all_at(vec![7; PAGE], 0).await.unwrap()) });
        nowait::block_on(async move {
            assert!(poll_once(write.as_mut()).is_pending());
            if moved {
                thread::spawn(move || futures::executor::block_on(write)).join().unwrap();
            } else {
                // No other thread polls it: a watcher finds it at a glance.
                assert!(eventually(|| std::fs::read(path).unwrap() == [7; PAGE]));
            }
        });
        assert_eq!(std::fs::read(path).unwrap(), [7; PAGE]);
        file.set_len(0).wait().unwrap();
    }
    assert_settled(&nowait);
}

/// The same as a poll that is never followed by another.
#[test]
fn a_future_that_is_polled_once_and_kept() {
    on_each(Nowait::builder, |_, file| {
        let (kept,) = nowait::block_on(async { (begun(file, 0),) });
        file.write_all_at(page(3), 0).wait().unwrap();
        assert!(file.read_range(0, PAGE).wait().unwrap().iter().all(|byte| *byte == 3));
        let mut kept = kept;
        assert!(matches!(poll_once(kept.as_mut()), Poll::Ready(())));
    });
}

/// Bytes that the kernel has begun to read from devices for this thread (`proc(5)`).
#[cfg(target_os = "linux")]
fn read_by_this_thread() -> Option<u64> {
    let told = std::fs::read_to_string("/proc/thread-self/io").ok()?;
    told.lines().find_map(|line| line.strip_prefix("read_bytes: "))?.parse().ok()
}

/// A task computes in the poll in which another begins a long read: the device has the read
/// meanwhile.
#[cfg(target_os = "linux")]
#[test]
fn a_long_read_is_under_way_while_a_task_of_its_thread_computes() {
    use std::time::{Duration, Instant};
    let _watchdog = Watchdog::new("a long read beside a task that computes", 60);
    let folder = temp_dir();
    let path = folder.path().join("file");
    std::fs::write(&path, vec![1; 1 << 20]).unwrap();
    let nowait = Nowait::builder().build().unwrap();
    let file = direct(&nowait, &path);
    let (Some(_), true) = (read_by_this_thread(), nowait.has_ring() && file.direct() != nowait::DirectIo::Refused)
    else {
        return eprintln!("skipped: no ring, no direct I/O, or reads are not counted");
    };
    // A direct read would have to wait until the pages are written.
    file.sync_all().wait().unwrap();
    file.advise(0, 1 << 20, nowait::Advice::DontNeed).wait().unwrap();
    // The pool has the read while other tests fill the device's queue, and a worker of the kernel
    // while the device has no request left.
    let both = || async {
        let until = Instant::now() + crate::common::at_most(Duration::from_secs(30));
        loop {
            let before = read_by_this_thread();
            let computes = async { read_by_this_thread() >= before.map(|bytes| bytes + (1 << 20)) };
            let (read, is_under_way) = futures::join!(file.read_range(0, 1 << 20), computes);
            assert_eq!(read.unwrap().len(), 1 << 20);
            if is_under_way {
                return;
            }
            assert!(Instant::now() < until, "the device never has the read meanwhile");
        }
    };
    nowait::block_on(both());
    #[cfg(feature = "tokio")]
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        nowait.attach_tokio().unwrap();
        both().await;
    });
    assert_settled(&nowait);
}
