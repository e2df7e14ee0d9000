//! The end of an operation: what it holds is dropped where that harms nobody, whatever a user's
//! destructor does, and before anybody can see the result, so that `File::close` closes.

use std::path::Path as FsPath;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::task::Poll;

use crate::common::mounts::temp_dir;
use crate::common::{Sample, Watchdog, Way, aio_instance, assert_settled, eventually, open_direct, poll_once};
use nowait::sim::{Faults, Sim};
use nowait::{Buf, Closed, Engine, ErrorKind, ErrorOp, File, Nowait, OpenOptions, Route};

const PAGE: usize = 4096;

/// An instance for each way in which an operation can end.
fn instances() -> Vec<(&'static str, Nowait)> {
    let forced = |route| Nowait::builder().route(Some(route)).build().unwrap();
    let one = Nowait::builder().engine(Engine::Pool).route(Some(Route::Pool)).pool_threads_max(1).build().unwrap();
    let sim = Nowait::builder().engine(Engine::Sim(Sim::new(1))).route(Some(Route::Ring)).build().unwrap();
    let auto = Nowait::builder().build().unwrap();
    let instances = [("ring", forced(Route::Ring)), ("pool", one), ("sim", sim), ("auto", auto)];
    instances.into_iter().chain(aio_instance().map(|aio| ("aio", aio))).collect()
}

/// A new file of 1 MiB, buffered and, where that can be, direct.
fn files(nowait: &Nowait, folder: &FsPath) -> Vec<File> {
    let path = folder.join("file");
    let mut options = OpenOptions::new();
    let buffered = options.read(true).write(true).create(true).open_in(nowait, &path).wait().unwrap();
    buffered.write_all_at(vec![7; 1 << 20], 0).wait().unwrap();
    let direct = if path.exists() { open_direct(nowait, &path) } else { None };
    [Some(buffered), direct].into_iter().flatten().collect()
}

/// Keeps the processors busy while it lives.
struct Load(Arc<AtomicBool>, Vec<std::thread::JoinHandle<()>>);

impl Load {
    fn new() -> Load {
        let done = Arc::new(AtomicBool::new(false));
        let spin = |_| {
            let done = done.clone();
            std::thread::spawn(move || {
                while !done.load(SeqCst) {
                    std::hint::spin_loop();
                }
            })
        };
        let threads = (0..4).map(spin).collect();
        Load(done, threads)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
        self.1.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

/// Symptom: `close` answered Ok with the descriptor open, and lost the error of close(2). Cause: an
/// operation's result could be seen before the operation's share of the file was dropped.
/// Guaranteed: once all results are there, `close` closes.
#[test]
fn close_closes_once_every_result_is_there() {
    let _watchdog = Watchdog::new("close_closes_once_every_result_is_there", 120);
    let _load = Load::new();
    for (name, nowait) in instances() {
        let folder = temp_dir();
        let path = folder.path().join("file");
        for round in 0..100 {
            for (number, file) in files(&nowait, folder.path()).into_iter().enumerate() {
                let way = Way::ALL[round % 3];
                way.run_future(async {
                    let writes = (0..4).map(|i| file.write_all_at(Buf::zeroed(PAGE), i * 2 * PAGE as u64));
                    for write in futures::future::join_all(writes).await {
                        write.unwrap();
                    }
                });
                way.run(file.read_range(0, PAGE)).unwrap();
                way.run(file.write_all_at(Buf::zeroed(PAGE), 0)).unwrap();
                way.run(file.write_all_at(Buf::zeroed(PAGE), PAGE as u64).durable()).unwrap();
                way.run(file.sync_data()).unwrap();
                assert_eq!(file.close().unwrap(), Closed::Now, "{name}, {way:?}, round {round}, file {number}");
            }
            assert_eq!(crate::common::descriptors_of(&path), 0, "{name}, round {round}");
        }
        assert_settled(&nowait);
    }
}

/// The same for a caller that is not told, but looks all the time.
#[test]
fn close_closes_for_a_caller_that_looks_all_the_time() {
    let _watchdog = Watchdog::new("close_closes_for_a_caller_that_looks_all_the_time", 120);
    let _load = Load::new();
    for (name, nowait) in instances().into_iter().filter(|(name, _)| *name != "sim") {
        let folder = temp_dir();
        let path = folder.path().join("file");
        std::fs::write(&path, [7; PAGE]).unwrap();
        let open = || open_direct(&nowait, &path);
        for round in 0..300 {
            let Some(file) = open() else { return };
            let mut write = Box::pin(file.write_all_at(Buf::zeroed(PAGE), 0));
            let written = loop {
                if let Poll::Ready(written) = poll_once(write.as_mut()) {
                    break written;
                }
            };
            written.unwrap();
            drop(write);
            assert_eq!(file.close().unwrap(), Closed::Now, "{name}, round {round}");
        }
    }
}

/// The same of a write that one thread collects, and another waits for.
#[test]
fn close_closes_on_a_thread_that_did_not_write() {
    let _watchdog = Watchdog::new("close_closes_on_a_thread_that_did_not_write", 120);
    let _load = Load::new();
    let nowait = Nowait::builder().build().unwrap();
    let folder = temp_dir();
    let path = folder.path().join("file");
    let (send, receive) = std::sync::mpsc::channel::<futures::future::BoxFuture<'static, Closed>>();
    let closer =
        std::thread::spawn(move || receive.into_iter().map(futures::executor::block_on).collect::<Vec<Closed>>());
    nowait::block_on(async {
        for _ in 0..1000 {
            let mut options = OpenOptions::new();
            let file = options.write(true).create(true).open_in(&nowait, &path).wait().unwrap();
            let mut closing: futures::future::BoxFuture<'static, Closed> = Box::pin(async move {
                file.write_all_at(vec![1; PAGE], 0).await.unwrap();
                file.close().unwrap()
            });
            // It waits for company, until this thread has nothing else to poll.
            if futures::poll!(&mut closing).is_pending() {
                send.send(closing).unwrap();
            }
            // A turn.
            let mut polled = false;
            std::future::poll_fn(|context| {
                context.waker().wake_by_ref();
                if std::mem::replace(&mut polled, true) { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
    });
    drop(send);
    let closed = closer.join().unwrap();
    assert!(closed.len() > 500, "{} were collected", closed.len());
    assert!(closed.iter().all(|closed| *closed == Closed::Now));
}

#[test]
fn close_says_that_a_clone_or_an_operation_uses_the_file() {
    for (name, nowait) in instances() {
        let folder = temp_dir();
        let path = folder.path().join("file");
        for file in files(&nowait, folder.path()) {
            assert_eq!(file.clone().close().unwrap(), Closed::Later, "{name}: it has a clone");
            let error = file.read_range(0, 1).wait().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Closed);
        }
        assert_eq!(crate::common::descriptors_of(&path), 0, "{name}: the clone was the last use");
    }
    let sim = Sim::manual(1);
    let mut faults = Faults::default();
    faults.not_now = 1.0;
    sim.set_faults(faults);
    let nowait = Nowait::builder().engine(Engine::Sim(sim.clone())).build().unwrap();
    for drains in [false, true] {
        sim.create("a", [7; 10]);
        let file = OpenOptions::new().read(true).open_in(&nowait, "a").wait().unwrap();
        let mut read = Box::pin(file.read_at(vec![0; 10], 0));
        assert!(poll_once(read.as_mut()).is_pending());
        drop(read);
        if drains {
            nowait.drain();
        }
        let closed = file.close().unwrap();
        assert_eq!(closed, if drains { Closed::Now } else { Closed::Later }, "the read was dropped under way");
        assert_settled(&nowait);
    }
}

/// Two clones that are closed at a time: one of them closes.
#[test]
fn one_of_several_that_close_at_a_time_closes() {
    let nowait = Nowait::builder().build().unwrap();
    let folder = temp_dir();
    drop(files(&nowait, folder.path()));
    const THREADS: usize = 2;
    const ROUNDS: usize = 500;
    let (barrier, slots) = (Barrier::new(THREADS), Mutex::new(Vec::new()));
    let (ready, closed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    if barrier.wait().is_leader() {
                        let file = crate::common::open(&nowait, &folder.path().join("file"));
                        slots.lock().unwrap().extend(vec![file; THREADS]);
                    }
                    barrier.wait();
                    let mine = slots.lock().unwrap().pop().unwrap();
                    // At the very same time.
                    ready.fetch_add(1, SeqCst);
                    while ready.load(SeqCst) < (round + 1) * THREADS {
                        std::hint::spin_loop();
                    }
                    if mine.close().unwrap() == Closed::Now {
                        closed.fetch_add(1, SeqCst);
                    }
                }
            });
        }
    });
    assert_eq!(closed.into_inner(), ROUNDS, "one of two closes");
}

#[test]
fn close_reports_the_error_of_close() {
    let _watchdog = Watchdog::new("close_reports_the_error_of_close", 60);
    let _load = Load::new();
    let sim = Sim::new(3);
    let mut faults = Faults::default();
    (faults.close_error, faults.not_now) = (1.0, 0.5);
    sim.set_faults(faults);
    let nowait = Nowait::builder().engine(Engine::Sim(sim)).build().unwrap();
    for round in 0..300 {
        let way = Way::ALL[round % 3];
        let mut options = OpenOptions::new();
        let file = way.run(options.write(true).create(true).open_in(&nowait, "file")).unwrap();
        way.run(file.write_all_at(vec![1; 10], 0)).unwrap();
        let error = file.close().unwrap_err();
        assert_eq!((error.kind(), error.operation()), (ErrorKind::Io, ErrorOp::Close), "{way:?}, round {round}");
        assert_eq!(error.path(), Some(FsPath::new("file")));
    }
}

/// Populating knows the map for moments only, which are over when its end is heard of.
#[cfg(unix)]
#[test]
fn close_closes_once_a_map_was_populated_and_dropped() {
    let _load = Load::new();
    let sample = Sample::new(1 << 20);
    let nowait = Nowait::builder().build().unwrap();
    for round in 0..300 {
        let way = Way::ALL[round % 3];
        let file = sample.open(&nowait);
        // SAFETY: nobody changes the file.
        let map = unsafe { nowait::map::Map::new(&file, ..) }.unwrap();
        let populate = map.populate(..);
        let populated = match way {
            Way::Waited => populate.wait(),
            way => way.run_future(populate.into_future()),
        };
        assert_eq!(populated.unwrap().bytes, 1 << 20);
        drop(map);
        assert_eq!(file.close().unwrap(), Closed::Now, "{way:?}, round {round}");
    }
}

/// Symptom: a read that was given up inside `block_on` kept its file open until the thread came
/// back. Guaranteed: it does not.
#[test]
fn a_read_given_up_in_block_on_keeps_no_descriptor() {
    let sample = Sample::new(8 << 20);
    let ring = Nowait::builder().route(Some(Route::Ring)).build().unwrap();
    for nowait in [Some(ring), aio_instance()].into_iter().flatten() {
        for count in [1, 20] {
            // On a busy machine the device can be quicker than this thread: then once more.
            let mut under_way = false;
            for _ in 0..100 {
                let Some(file) = open_direct(&nowait, &sample.path) else { return };
                nowait::block_on(async {
                    for i in 0..count {
                        let mut read = Box::pin(file.read_range(i * 65536, PAGE));
                        // Ready already, if the watcher was quicker than this poll.
                        let _ = futures::poll!(&mut read);
                    }
                });
                under_way = nowait.stats().ended() < nowait.stats().started;
                drop(file);
                // This thread does nothing for its ring meanwhile.
                assert!(
                    eventually(|| crate::common::descriptors_of(&sample.path) == 0),
                    "{count}: {}",
                    crate::common::descriptors_of(&sample.path)
                );
                if under_way {
                    break;
                }
            }
            assert!(under_way, "{count}: no read was given up under way");
            assert_settled(&nowait);
        }
    }
}

#[cfg(feature = "bytes")]
mod destructors {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::common::rng::Rng;
    use bytes::Bytes;

    /// Memory of a user, who does something when it is dropped.
    struct Owner<F: FnMut()>(Vec<u8>, F);

    impl<F: FnMut()> AsMut<[u8]> for Owner<F> {
        fn as_mut(&mut self) -> &mut [u8] {
            &mut self.0
        }
    }

    impl<F: FnMut()> AsRef<[u8]> for Owner<F> {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl<F: FnMut()> Drop for Owner<F> {
        fn drop(&mut self) {
            (self.1)();
        }
    }

    fn buffer(bytes: usize, dropped: impl FnMut() + Send + 'static) -> Bytes {
        Bytes::from_owner(Owner(vec![7; bytes], dropped))
    }

    fn panics() {
        panic!("a buffer's destructor, on purpose");
    }

    /// How an operation comes to be nobody's.
    #[derive(Clone, Copy, Debug)]
    enum GivenUp {
        Polled,
        PolledInBlockOn,
        Vectored,
        Started,
    }

    /// Polls a write of memory whose destructor panics, and gives it up. The panic is the caller's
    /// own where it drops the buffer.
    fn give_up(file: &File, how: GivenUp, offset: u64) {
        let _ = catch_unwind(AssertUnwindSafe(|| match how {
            GivenUp::Polled => {
                let mut write = Box::pin(file.write_at(buffer(PAGE, panics), offset));
                let _ = poll_once(write.as_mut());
            }
            GivenUp::PolledInBlockOn => nowait::block_on(async {
                let mut write = Box::pin(file.write_at(buffer(PAGE, panics), offset));
                let _ = futures::poll!(&mut write);
            }),
            GivenUp::Vectored => {
                // One of them: a thread that drops both, the caller's if the write has ended, must not
                // panic twice at a time.
                let buffers = vec![buffer(PAGE, panics), buffer(PAGE, || ())];
                let _ = poll_once(Box::pin(file.write_vectored_at(buffers, offset)).as_mut());
            }
            GivenUp::Started => {
                let mut write = Box::pin(file.write_at(buffer(PAGE, panics), offset).durable());
                let _ = poll_once(write.as_mut());
            }
        }));
    }

    /// Symptom: a panic in a buffer's destructor ended a thread of the pool with its file claimed,
    /// or the one that notices completions. Guaranteed: the panic is reported, and harms no other
    /// operation.
    #[test]
    fn a_panic_harms_no_other_operation() {
        let mut rng = Rng::for_test();
        for (name, nowait) in instances() {
            let _watchdog = Watchdog::new(format!("a_panic_harms_no_other_operation, {name}"), 60);
            let folder = temp_dir();
            for (number, file) in files(&nowait, folder.path()).into_iter().enumerate() {
                use GivenUp::*;
                for how in [Polled, PolledInBlockOn, Vectored, Started] {
                    for _ in 0..6 {
                        give_up(&file, how, (rng.below(200) * PAGE) as u64);
                    }
                    for way in Way::ALL {
                        let (n, _) = way.run(file.write_at(vec![1; PAGE], 0)).unwrap();
                        assert_eq!(n, PAGE, "{name}, file {number}, {how:?}, {way:?}");
                        way.run(file.write_all_at(vec![1; PAGE], 0).durable()).unwrap();
                        way.run(file.sync_all()).unwrap();
                        way.run(file.read_range(0, PAGE)).unwrap();
                    }
                    assert_settled(&nowait);
                }
                assert_eq!(file.close().unwrap(), Closed::Now, "{name}, file {number}");
            }
        }
    }

    /// A user's destructor may take its time: not on the thread that notices completions.
    #[test]
    fn none_runs_on_a_thread_that_notices_completions() {
        let _watchdog = Watchdog::new("none_runs_on_a_thread_that_notices_completions", 60);
        for (name, nowait) in instances() {
            let folder = temp_dir();
            for file in files(&nowait, folder.path()) {
                let threads = Arc::new(Mutex::new(Vec::new()));
                for i in 0..20 {
                    let threads = threads.clone();
                    let note = move || {
                        threads.lock().unwrap().push(std::thread::current().name().map(str::to_owned));
                    };
                    let mut write = Box::pin(file.write_at(buffer(PAGE, note), i * PAGE as u64));
                    let _ = poll_once(write.as_mut());
                }
                for started in 0..20 {
                    let threads = threads.clone();
                    let note = move || {
                        threads.lock().unwrap().push(std::thread::current().name().map(str::to_owned));
                    };
                    if file.path().is_file() {
                        crate::common::cold::drop_pages(file.path());
                    }
                    let memory = nowait::Lent::new(Owner(vec![0; PAGE], note));
                    drop(file.gather([(started, 10), (100 << 10, 10)]).into_buffer(memory).start());
                }
                assert!(eventually(|| threads.lock().unwrap().len() == 40));
                let threads = threads.lock().unwrap();
                let notices = |thread: &&String| thread.starts_with("nowait-watch") || *thread == "nowait-driver";
                let noticing = threads.iter().flatten().find(notices);
                assert_eq!(noticing, None, "{name}: {threads:?}");
            }
            assert_settled(&nowait);
        }
    }
}
