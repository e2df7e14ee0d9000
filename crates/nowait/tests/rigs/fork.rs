//! Processes that fork, that get signals, and whose instances end: nothing hangs, a child uses nothing
//! of its parent, and threads and descriptors go.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use crate::common::rng::Rng;
use crate::common::{
    End, Sample, Watchdog, aio_instance, assert_settled, child, contents, eventually, expected, forced, give_up,
    manual, open_direct, pending, poll_once, read_pages_in_every_way,
};
use futures::future::join_all;
use nowait::{Engine, File, Nowait, Route};

const PAGE: usize = 4096;

#[test]
fn dropped_instances_take_their_threads_with_them() {
    child::play("instances");
}

fn instances_come_and_go() {
    let sample = Sample::new(1 << 20);
    let before = crate::common::resources();
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
    let gone = || crate::common::resources().0 <= before.0 + 8 && crate::common::resources().1 <= before.1 + 8;
    assert!(eventually(gone), "{before:?} before, {:?} after", crate::common::resources());
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
        let before = crate::common::resources().1;
        let reads = join_all((0..64).map(|i| file.read_range((i * 7919 * PAGE as u64) % LEN as u64, PAGE)));
        for read in futures::executor::block_on(reads) {
            assert_eq!(read.unwrap().len(), PAGE);
        }
        assert_settled(&nowait);
        crate::common::resources().1 - before
    };
    // Strict forbids to announce on the caller's thread: the call may wait.
    let (announced, alone) = (threads(false), threads(true));
    let told = format!("{announced} threads for announced reads, {alone} for others");
    // Where starting a thread takes longer than a read, few are started for any; and where all
    // takes long, a collector may be waited for until another is started.
    const FEW: usize = 20;
    assert!(announced <= FEW || crate::common::is_slow() && announced <= alone, "{told}");
    assert!(announced < alone || alone <= FEW || crate::common::is_slow(), "{told}");
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

/// Symptom: a child that was forked during the library's first call in its parent waited in its own
/// first call without end.
#[test]
fn fork_during_the_first_call() {
    child::play("fork during the first call");
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
    let Some(file) = crate::common::open_direct(&nowait, &sample.path) else { return };
    let hot = sample.open(&nowait);
    assert_eq!(hot.read_range(0, PAGE).wait().unwrap().len(), PAGE);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let task = async move {
        for i in 0..4 {
            file.read_range(i << 12, PAGE).await.unwrap();
        }
        let reads = pending((0..20).map(|i| Box::pin(file.read_range(i << 12, PAGE))).collect());
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
    // Symptom: a child that dropped a runtime of its parent ended by SIGSEGV: it entered a ring whose
    // memory it does not have.
    let mut runtime = Some(runtime);
    in_fork(|| drop(runtime.take()));
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
        Some("fork during the first call") => forked_during_the_first_call(),
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
    let folder = crate::common::mounts::temp_dir();
    let path = |name: &str| folder.path().join(name);
    let nowait = Nowait::shared();
    for round in 0..crate::common::rounds(20) {
        let way = crate::common::Way::ALL[round as usize % 3];
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
    let bound = crate::common::at_most(Duration::from_secs(seconds));
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
    let folder = crate::common::mounts::temp_dir();
    let nowait = Nowait::builder().route(Some(Route::Pool)).write_bytes_max(1 << 20, 1 << 20).build().unwrap();
    let mut options = nowait::OpenOptions::new();
    let file = options.write(true).create(true).open_in(&nowait, folder.path().join("file")).wait().unwrap();
    for _ in 0..5 {
        (0..16).for_each(|i| file.write_all_from(&vec![1; 1 << 20], i << 20).unwrap());
        let mut sync = Box::pin(file.sync_all());
        let mut write = Box::pin(file.write_all_at(vec![2; 1 << 20], 0));
        let (_, _) = (crate::common::poll_once(sync.as_mut()), crate::common::poll_once(write.as_mut()));
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
        let reads = (0..50).map(|i| Box::pin(file.read_range(i * 50_000, PAGE))).collect();
        sample.cool();
        let mut reads = pending(reads);
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
    let reads = pending((0..50).map(|i| Box::pin(file.read_range(i * 8192, PAGE))).collect());
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
        // A read may end as it is submitted; few do.
        let reads = pending((0..50).map(|_| Box::pin(file.read_range(0, PAGE))).collect());
        in_fork(|| {
            read_pages_in_every_way(&file, &sample, 100);
            in_fork(|| read_pages_in_every_way(&file, &sample, 20));
        });
        for read in reads {
            assert!(*read.await.unwrap() == *sample.expected(0, PAGE));
        }
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

/// libc holds its lock of fork handlers from before a fork until after it. Here the fork waits in
/// between, for the list of open streams, until the library's first call waits for that lock.
fn forked_during_the_first_call() {
    unsafe extern "C" {
        fn flockfile(stream: *mut libc::FILE);
        fn funlockfile(stream: *mut libc::FILE);
    }
    // SAFETY: two strings that outlive the call.
    let stream = unsafe { libc::fopen(c"/dev/null".as_ptr(), c"w".as_ptr()) };
    assert!(!stream.is_null());
    // SAFETY: the stream stays open.
    unsafe { flockfile(stream) };
    let steps: [fn(); 3] = [
        // It locks the list of open streams, and then each stream.
        // SAFETY: without a stream, it flushes all of them.
        || assert_eq!(unsafe { libc::fflush(std::ptr::null_mut()) }, 0),
        || in_fork(|| _ = nowait::embed::fork_generation()),
        || _ = nowait::embed::fork_generation(),
    ];
    let threads: Vec<_> = steps
        .into_iter()
        .map(|step| {
            let (tell, told) = std::sync::mpsc::channel();
            let thread = std::thread::spawn(move || {
                tell.send(rustix::thread::gettid().as_raw_nonzero()).unwrap();
                step();
            });
            let call = format!("/proc/self/task/{}/syscall", told.recv().unwrap());
            let waits_for = libc::SYS_futex.to_string();
            assert!(eventually(|| std::fs::read_to_string(&call).unwrap().split(' ').next() == Some(&waits_for)));
            thread
        })
        .collect();
    // SAFETY: this thread has locked the stream.
    unsafe { funlockfile(stream) };
    threads.into_iter().for_each(|thread| thread.join().unwrap());
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
