//! Where io_uring is refused, everything works without it, and says why. Each refusal is real, in a
//! process of its own.

use std::collections::BTreeMap;

use crate::common::{
    Sample, Watchdog, aio_instance, assert_settled, child, mounts, open_direct, read_pages_in_every_way,
};
use crate::promises::{Ctx, keeps_every_promise};
use futures::future::join_all;
use nowait::{Buf, Engine, ErrorKind, Nowait, Route};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// The filter comes when the rings exist and are in use.
const LATE: &str = "late";

/// As late, to a pool of one thread.
const ONE_THREAD: &str = "one thread";

const LOCKED_MEMORY: &str = "locked memory";

const DURABLE: &str = "durable";
const DURABLE_TOGETHER: &str = "durable together";
const LATE_FLAGS: &str = "late flags";
const NO_THREAD: &str = "no thread";
const EXPLAINED: &str = "explained";
const FEW_DESCRIPTORS: &str = "few descriptors";
const FEW_FOR_LIBAIO: &str = "few descriptors for libaio";

/// Other interfaces that are refused, in a process without io_uring.
const NO_RING: &str = "no ring";
const NO_CONTEXT: &str = "no context";
const NO_CONTEXT_LEFT: &str = "no context left";
const NO_SUBMISSION: &str = "no submission";
const NO_ROOM: &str = "no room";
const NO_ROOM_FOR_MANY: &str = "no room for many";
const LATE_SUBMISSION: &str = "late submission";

/// Errnos of a seccomp filter, each with a word by which the reason is known.
const ANSWERS: [(i32, &str); 6] = [
    (libc::EPERM, "forbidden"),
    (libc::EACCES, "forbidden"),
    (libc::ENOSYS, "not in this kernel"),
    (libc::ENOMEM, "ulimit -l"),
    (libc::EINVAL, "refused"),
    (libc::EOPNOTSUPP, "refused"),
];

#[test]
fn by_a_filter() {
    for (errno, _) in ANSWERS {
        child::play(&errno.to_string());
    }
}

#[test]
fn by_a_filter_that_comes_late() {
    child::play(LATE);
}

/// Symptom: `pool_threads_max` did not bound operations that a ring handed on: a pool of the whole
/// process took them. Now the pool is that of the file's instance, and outlives it.
#[test]
fn handed_on_to_a_pool_of_one_thread() {
    child::play(ONE_THREAD);
}

/// Symptom: an instance that was made, or a watcher that was first wanted, while descriptors were short
/// never had a ring.
#[test]
fn by_a_shortage_of_descriptors_that_passes() {
    child::play(FEW_DESCRIPTORS);
}

/// Symptom: an instance whose first direct read was made while descriptors were short never used libaio.
#[test]
fn libaio_by_a_shortage_of_descriptors_that_passes() {
    child::play(FEW_FOR_LIBAIO);
}

#[test]
fn by_a_limit_on_locked_memory() {
    child::play(LOCKED_MEMORY);
}

/// Direct I/O goes to libaio then, and to the pool where that is refused also.
#[test]
fn with_libaio_or_without() {
    for role in [NO_RING, NO_CONTEXT, NO_CONTEXT_LEFT, NO_SUBMISSION, NO_ROOM, NO_ROOM_FOR_MANY, LATE_SUBMISSION] {
        child::play(role);
    }
}

/// System calls that a kernel, an emulator or a filter may lack, and the promises that rely on them.
const OPTIONAL: [(&str, i64, &[&str]); 22] = [
    ("pwritev2", libc::SYS_pwritev2, WRITES),
    ("preadv2", libc::SYS_preadv2, READS),
    ("sync_file_range", libc::SYS_sync_file_range, WRITES),
    ("renameat2", libc::SYS_renameat2, NAMES),
    ("statx", libc::SYS_statx, NAMES),
    ("openat2", libc::SYS_openat2, NAMES),
    ("copy_file_range", libc::SYS_copy_file_range, NAMES),
    ("fallocate", libc::SYS_fallocate, WRITES),
    ("fadvise64", libc::SYS_fadvise64, HINTS),
    ("madvise", libc::SYS_madvise, MAPS),
    ("mincore", libc::SYS_mincore, MAPS),
    ("process_vm_writev", libc::SYS_process_vm_writev, MAPS),
    ("io_uring_enter", libc::SYS_io_uring_enter, READS),
    ("io_uring_register", libc::SYS_io_uring_register, READS),
    ("io_setup", libc::SYS_io_setup, READS),
    ("eventfd2", libc::SYS_eventfd2, READS),
    ("epoll_create1", libc::SYS_epoll_create1, READS),
    ("sched_getaffinity", libc::SYS_sched_getaffinity, READS),
    ("fstatfs", libc::SYS_fstatfs, WRITES),
    ("getrandom", libc::SYS_getrandom, NAMES),
    ("prctl", libc::SYS_prctl, READS),
    ("clone3", libc::SYS_clone3, READS),
];

const READS: &[&str] = &["read_at_gives", "vectored_reads", "size_and_advice", "cold_and", "many_in_flight_complete"];
const WRITES: &[&str] = &[
    "at_random_places",
    "cold_pages",
    "many_writes_at",
    "append",
    "length_is",
    "syncs",
    "durable",
    "allocation",
    "for_reading",
];
const NAMES: &[&str] = &["renamed", "replaced", "missing"];
/// Those that drop no pages to begin with.
const HINTS: &[&str] = &["read_at_gives", "vectored_reads", "size_and_advice"];
/// Of [`without`] alone: the promises look at pages by the same call.
const MAPS: &[&str] = &[];

/// Refuses each optional system call by ENOSYS and by EPERM. Other calls serve all operations, or
/// the error names the missing call.
#[test]
fn any_optional_call() {
    for (name, ..) in OPTIONAL {
        for errno in [libc::ENOSYS, libc::EPERM] {
            // glibc takes another way to make a thread after ENOSYS only.
            if (name, errno) != ("clone3", libc::EPERM) {
                child::play(&format!("optional {name} {errno}"));
            }
        }
    }
}

#[test]
fn a_durable_write_without_flags_reports_its_sync() {
    child::play(DURABLE);
}

#[test]
fn durable_writes_outlive_a_shared_sync_that_fails() {
    child::play(DURABLE_TOGETHER);
}

#[test]
fn appends_go_on_when_their_call_is_refused() {
    child::play(LATE_FLAGS);
}

#[test]
fn a_thread_that_waits_helps_itself_where_no_other_can() {
    child::play(NO_THREAD);
}

#[test]
fn refusals_without_another_way_are_explained() {
    child::play(EXPLAINED);
}

fn without(call: &str) {
    let (name, errno) = call.split_once(' ').unwrap();
    let errno = errno.parse().unwrap();
    let (_, number, promises) = *OPTIONAL.iter().find(|optional| optional.0 == name).unwrap();
    let _watchdog = Watchdog::new(format!("without {call}"), 60);
    let folders = [mounts::temp_dir(), mounts::temp_dir()];
    filter(errno, &[number]);
    let chosen = |of: &str| promises.iter().any(|word| of.contains(word));
    for (direct, folder) in [false, true].into_iter().zip(folders) {
        let ctx = Ctx::with(Nowait::builder().build().unwrap(), folder);
        let ctx = if direct { ctx.direct() } else { ctx };
        let kept = crate::promises::keeps_promises(&ctx, chosen);
        assert!(kept >= 2 || promises.is_empty(), "few promises are about {name}");
        whole_files_maps_and_streams(&ctx);
    }
}

/// Tests operations outside of the promises: whole files, maps, streams, and descriptors that
/// others opened.
fn whole_files_maps_and_streams(ctx: &Ctx) {
    let (nowait, bytes) = (&ctx.nowait, crate::common::contents(300_000, 5));
    let (path, copy) = (ctx.create(&bytes), ctx.path());
    assert_eq!(nowait.fs().copy(&path, &copy).wait().unwrap(), bytes.len() as u64);
    assert!(futures::executor::block_on(nowait.fs().read(&copy)).unwrap() == bytes);
    nowait.fs().write_atomic(&copy, bytes[1..].to_vec()).wait().unwrap();
    assert!(std::fs::read(&copy).unwrap() == bytes[1..]);
    let file = crate::common::open(nowait, &path);
    // SAFETY: nobody writes to the file while it is mapped.
    let map = unsafe { nowait::map::Map::new(&file, ..) }.unwrap();
    let populated = futures::executor::block_on(map.populate(..).start().unwrap()).unwrap();
    assert!(populated.bytes > 0 && populated.stopped.is_none(), "{populated:?}");
    for range in [0..10, 100_000..200_000] {
        futures::executor::block_on(map.gather([range.clone()])).unwrap();
        assert!(map[range.clone()] == bytes[range]);
    }
    drop(map);
    let (target, mut streamed) = (ctx.path(), Vec::new());
    let target = ctx.options().write(true).create(true).open_in(nowait, &target).wait().unwrap();
    let mut writer = nowait::stream::Writer::new(&target, 0);
    std::io::Write::write_all(&mut writer, &bytes).unwrap();
    writer.sync_data().wait().unwrap();
    drop(writer);
    std::io::Read::read_to_end(&mut nowait::stream::Reader::new(&target, 0), &mut streamed).unwrap();
    assert!(streamed == bytes);
    // Each write of these waits for the device, or appends, by the descriptor's own flags.
    for (flags, appends) in [(libc::O_DSYNC, false), (libc::O_SYNC, false), (libc::O_DSYNC | libc::O_APPEND, true)] {
        let path = ctx.create(&bytes);
        let file = ctx.options().write(true).custom_flags(flags).open_in(nowait, &path).wait().unwrap();
        let mut expected = bytes.clone();
        for (place, way) in
            [(77, crate::common::Way::Awaited), (5000, crate::common::Way::Waited), (0, crate::common::Way::Driven)]
        {
            way.run(file.write_all_at(vec![place as u8; 4321], place)).unwrap();
            let at = if appends { expected.len() as u64 } else { place };
            crate::common::put(&mut expected, at, &[place as u8; 4321]);
        }
        file.sync_all().wait().unwrap();
        assert!(std::fs::read(&path).unwrap() == expected, "{flags:#x}");
    }
    assert_settled(nowait);
}

/// Without `pwritev2` a durable write is a write and a sync. The error of that sync is the write's,
/// and every later sync reports it.
fn durable_without_flags() {
    let folder = mounts::temp_dir();
    filter(libc::ENOSYS, &[libc::SYS_pwritev2]);
    filter(libc::EIO, &[libc::SYS_fdatasync]);
    for way in crate::common::Way::ALL {
        let nowait = Nowait::builder().build().unwrap();
        let path = folder.path().join("file");
        let file = nowait::OpenOptions::new().write(true).create(true).open_in(&nowait, &path).wait().unwrap();
        way.run(file.write_all_at(vec![1; 5000], 0)).unwrap();
        let failed = way.run(file.write_all_at(vec![2; 5000], 100).durable()).unwrap_err().error;
        assert_eq!(failed.raw_os_error(), Some(libc::EIO), "{failed}");
        assert_eq!(way.run(file.sync_all()).unwrap_err().kind(), ErrorKind::SyncFailed);
        assert!(file.acknowledge_sync_failure().is_some());
        way.run(file.sync_all()).unwrap();
    }
}

/// If the sync that durable writes share fails, each is made durable by a call of its own, and the
/// failure stays known.
fn durable_together() {
    let folder = mounts::temp_dir();
    filter(libc::EIO, &[libc::SYS_fdatasync]);
    let mut shared = 0;
    for _ in 0..50 {
        let nowait = Nowait::builder().pool_threads_max(1).build().unwrap();
        let path = folder.path().join("file");
        let file = nowait::OpenOptions::new().write(true).create(true).open_in(&nowait, &path).wait().unwrap();
        let writes = (0..16).map(|i| file.write_all_at(vec![2; 5000], i * 9000).durable());
        let written = futures::executor::block_on(futures::future::join_all(writes));
        written.into_iter().for_each(|written| drop(written.unwrap()));
        assert_eq!(nowait.stats().joined, 0);
        if let Err(error) = file.sync_all().wait() {
            assert_eq!(error.kind(), ErrorKind::SyncFailed, "{error}");
            shared += 1;
        }
    }
    assert!(shared > 0, "no writes met in the queue");
}

/// Symptom: appends failed with ENOSYS after `pwritev2` was refused, if one of the file had been made by
/// it before.
fn late_without_flags() {
    let (nowait, folder) = (Nowait::builder().build().unwrap(), mounts::temp_dir());
    let files: Vec<_> =
        [false, true].into_iter().flat_map(|direct| crate::common::Way::ALL.map(|way| (direct, way))).collect();
    let open = |(n, (direct, way)): (usize, &(bool, crate::common::Way))| {
        let mut options = nowait::OpenOptions::new();
        let path = folder.path().join(n.to_string());
        let file = options.read(true).write(true).create(true).direct(*direct).open_in(&nowait, path).wait().unwrap();
        (*way, file)
    };
    let files: Vec<_> = files.iter().enumerate().map(open).collect();
    let write = |value| {
        for (way, file) in &files {
            way.run(file.append(vec![value; 100])).unwrap();
            way.run(file.append(vec![value; 100]).durable()).unwrap();
            way.run(file.write_all_at(vec![value; 10], u64::from(value)).durable()).unwrap();
        }
    };
    write(1);
    filter(libc::EPERM, &[libc::SYS_pwritev2]);
    write(2);
    write(3);
    let mut expected = [[1; 200], [2; 200], [3; 200]].concat();
    expected[2..12].fill(2);
    expected[3..13].fill(3);
    for n in 0..files.len() {
        assert!(std::fs::read(folder.path().join(n.to_string())).unwrap() == expected, "file {n}");
    }
    assert_settled(&nowait);
}

/// Symptom: a thread slept for good behind a write in its own queue, if no other thread could be started
/// to help. Or if none could be when help was asked for first: it was not asked for again.
fn without_threads() {
    let _watchdog = Watchdog::new("no thread can be started", 60);
    let folder = mounts::temp_dir();
    let path = folder.path().join("file");
    std::fs::write(&path, vec![1; 1 << 20]).unwrap();
    let (other, work) = std::sync::mpsc::channel::<Box<dyn FnOnce() + Send>>();
    std::thread::spawn(move || work.into_iter().for_each(|work| work()));
    filter(libc::EAGAIN, &[libc::SYS_clone, libc::SYS_clone3]);
    for engine in [Engine::Uring, Engine::Aio] {
        let Ok(nowait) = Nowait::builder().engine(engine.clone()).build() else {
            eprintln!("skipped: {engine:?}");
            continue;
        };
        let mut options = nowait::OpenOptions::new();
        let file = options.read(true).write(true).direct(true).open_in(&nowait, &path).wait().unwrap();
        if file.direct() == nowait::DirectIo::Refused {
            return eprintln!("skipped: direct I/O");
        }
        let begun = || drop(crate::common::poll_once(Box::pin(file.write_all_at(Buf::zeroed(4096), 0)).as_mut()));
        let durable = || Box::pin(file.write_all_at(Buf::zeroed(4096), 0).durable());
        nowait::block_on(async {
            for _ in 0..20 {
                begun();
                file.settled().wait();
                begun();
                file.write_all_from(&[5; 300], 10).unwrap();
                begun();
                file.set_len(1 << 20).wait().unwrap();
                let mut write = durable();
                let _ = crate::common::poll_once(write.as_mut());
                file.sync_all().wait().unwrap();
            }
        });
        // Also behind the queue of a thread that waits for this one.
        for way in [crate::common::Way::Waited, crate::common::Way::Driven] {
            let (end, ended) = std::sync::mpsc::channel();
            nowait::block_on(async {
                let mut write = durable();
                let _ = crate::common::poll_once(write.as_mut());
                let file = file.clone();
                let later = move || {
                    way.run(file.write_all_at(Buf::zeroed(4096), 0)).unwrap();
                    end.send(()).unwrap();
                };
                other.send(Box::new(later)).unwrap();
                ended.recv().unwrap();
            });
        }
        // Several steps are made by the thread that starts them; an embedder gets the error.
        let ranges = [(0, 10), (512 << 10, 10)];
        assert_eq!(file.gather(ranges).start().wait().unwrap().len(), 2);
        file.write_many(vec![(0, vec![1; 10]), (8192, vec![1; 10])]).start().wait().unwrap();
        let (called, calls) = std::sync::mpsc::channel();
        file.gather(ranges).on_complete(move |gathered| called.send(gathered.unwrap().len()).unwrap());
        assert_eq!(calls.try_recv(), Ok(2));
        nowait.fs().write(&path, vec![1; 1 << 20]).start().wait().unwrap();
        let error = nowait::embed::start(async {}).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EAGAIN));
        assert_settled(&nowait);
    }
    let ours = ["nowait-watch-0", "nowait-watch-1", "nowait-watch-2", "nowait-driver"];
    assert_eq!(ours.map(threads), [0; 4]);
}

/// The error of an operation without a substitute names the refused call.
fn refusals_are_explained() {
    let folder = mounts::temp_dir();
    filter(libc::EPERM, &[libc::SYS_pwritev2, libc::SYS_renameat2, libc::SYS_fallocate, libc::SYS_fadvise64]);
    let nowait = Nowait::builder().build().unwrap();
    let (directory, other) = (folder.path().join("directory"), folder.path().join("other"));
    nowait.fs().create_dir(&directory).wait().unwrap();
    let error = nowait.fs().rename_new(&directory, &other).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("renameat2") && error.to_string().contains("use rename"), "{error}");
    nowait.fs().rename(&directory, &other).wait().unwrap();
    let path = folder.path().join("file");
    let mut options = nowait::OpenOptions::new();
    let file = options.read(true).write(true).create(true).open_in(&nowait, &path).wait().unwrap();
    let errors = [
        file.write_at(vec![1; 4096], 0).uncached().wait().unwrap_err().error,
        file.allocate(nowait::Allocate::Reserve, 0, 4096).wait().unwrap_err(),
        file.advise(0, 0, nowait::Advice::Random).wait().unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        eprintln!("{error}");
    }
    // EPERM of the file itself is reported: the file is append-only.
    if child::is_root() && std::process::Command::new("chattr").arg("+a").arg(&path).status().is_ok_and(|s| s.success())
    {
        let kept = nowait.fs().rename_new(&path, folder.path().join("third")).wait().unwrap_err();
        let cleared = std::process::Command::new("chattr").arg("-a").arg(&path).status();
        assert!(cleared.is_ok_and(|status| status.success()));
        assert!(!folder.path().join("third").exists() && path.exists(), "{kept}");
    } else {
        eprintln!("skipped: a file that may only be appended to");
    }
}

#[test]
fn child() {
    let Some(role) = child::role() else { return };
    if let Some(call) = role.strip_prefix("optional ") {
        return without(call);
    }
    if role == DURABLE {
        return durable_without_flags();
    }
    if role == DURABLE_TOGETHER {
        return durable_together();
    }
    if role == FEW_DESCRIPTORS {
        return with_few_descriptors();
    }
    if role == FEW_FOR_LIBAIO {
        return libaio_with_few_descriptors();
    }
    if role == NO_THREAD {
        return without_threads();
    }
    if role == LATE_FLAGS {
        return late_without_flags();
    }
    if role == EXPLAINED {
        return refusals_are_explained();
    }
    if role.parse::<i32>().is_err() && ![LOCKED_MEMORY, LATE, ONE_THREAD].contains(&&*role) {
        return direct(&role);
    }
    if role == ONE_THREAD {
        return one_thread();
    }
    if role == LOCKED_MEMORY {
        return without_locked_memory();
    }
    if role == LATE {
        return late();
    }
    let errno = role.parse().unwrap();
    filter(errno, &[libc::SYS_io_uring_setup]);
    let word = ANSWERS.iter().find(|answer| answer.0 == errno).unwrap().1;
    check(Nowait::shared(), errno, word);
}

/// Lets no further descriptor be opened. Returns the limit as it was.
fn take_descriptors() -> rustix::process::Rlimit {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::os::fd::AsRawFd;
    let old = getrlimit(Resource::Nofile);
    let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(next), ..old }).unwrap();
    old
}

fn with_few_descriptors() {
    let _watchdog = Watchdog::new("few descriptors", 60);
    let sample = Sample::new(1 << 20);
    let before = Nowait::builder().route(Some(Route::Ring)).build().unwrap();
    if is_refused_already(&before) {
        return;
    }
    // Opened while descriptors are there; their watcher is wanted first when they are not.
    let file = sample.open(&before);
    let shared = |file: &nowait::File, i: u64| {
        let read = futures::executor::block_on(file.read_range(i * 4096, 4096)).unwrap();
        assert!(*read == *sample.expected(i * 4096, 4096));
    };
    #[cfg(feature = "tokio")]
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let limit = take_descriptors();
    #[cfg(feature = "tokio")]
    {
        let error = runtime.block_on(async { before.attach_tokio() }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooManyFiles);
        let text = error.to_string();
        assert!(text.starts_with("attach_tokio: too many open files") && text.contains("ulimit"), "{text}");
    }
    let made = Nowait::builder().route(Some(Route::Ring)).build().unwrap();
    assert!(!made.has_ring());
    let refusal = made.ring_refusal().unwrap();
    assert_eq!(refusal.raw_os_error(), libc::EMFILE);
    assert!(made.advice()[0].contains(&refusal.to_string()), "{:?}", made.advice());
    let error = Nowait::builder().engine(Engine::Uring).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::EngineUnavailable);
    shared(&file, 0);
    assert_eq!((before.stats().ring, before.stats().handed_on), (0, 1));
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    assert!(crate::common::eventually(|| {
        shared(&file, 1);
        before.stats().ring > 0
    }));
    assert!(crate::common::eventually(|| made.has_ring()) && made.ring_refusal().is_none());
    assert!(made.advice().is_empty());
    shared(&sample.open(&made), 2);
    assert_eq!(made.stats().ring, 1);
    assert_settled(&before);
    assert_settled(&made);
}

fn libaio_with_few_descriptors() {
    let _watchdog = Watchdog::new("few descriptors for libaio", 60);
    filter(libc::EPERM, &[libc::SYS_io_uring_setup]);
    if aio_instance().is_none() {
        return;
    }
    let sample = Sample::new(1 << 20);
    let nowait = Nowait::builder().build().unwrap();
    let Some(file) = open_direct(&nowait, &sample.path) else { return };
    let read = |i: u64| {
        let page = futures::executor::block_on(file.read_range(i * 4096, 4096)).unwrap();
        assert!(*page == *sample.expected(i * 4096, 4096));
    };
    let limit = take_descriptors();
    read(0);
    let refusal = nowait.aio_refusal().unwrap();
    assert_eq!((refusal.raw_os_error(), nowait.stats().aio), (libc::EMFILE, 0));
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    assert!(crate::common::eventually(|| {
        read(1);
        nowait.aio_refusal().is_none()
    }));
    read(2);
    assert!(nowait.stats().aio > 0, "{:?}", nowait.stats());
    assert_settled(&nowait);
}

/// Both kinds of ring are used, then forbidden: what follows is served without them.
fn late() {
    let sample = Sample::new(1 << 20);
    // Also what happens to be cached goes to a ring, so that both are used for certain.
    let nowait = Nowait::builder().route(Some(Route::Ring)).build().unwrap();
    if is_refused_already(&nowait) {
        return;
    }
    let file = sample.open(&nowait);
    let reads = || join_all((0..300).map(|i| file.read_range(i * 3000, 4096)));
    let read_all = || {
        let _watchdog = Watchdog::new("reads after a late filter", 20);
        for own in [true, false] {
            sample.cool();
            let results = if own { nowait::block_on(reads()) } else { futures::executor::block_on(reads()) };
            for (i, result) in results.into_iter().enumerate() {
                assert!(*result.unwrap() == *sample.expected(i as u64 * 3000, 4096), "read {i}");
            }
        }
    };
    read_all();
    let before = nowait.stats();
    filter(libc::EPERM, &[libc::SYS_io_uring_setup, libc::SYS_io_uring_enter]);
    read_all();
    read_all();
    let stats = nowait.stats();
    assert!(before.ring > 0 && stats.ring == before.ring && stats.pool > before.pool, "{before:?}, then {stats:?}");
    assert_settled(&nowait);
}

/// Everything is handed on, first with the instance at hand, then after it was dropped.
fn one_thread() {
    const LENGTH: usize = 1 << 20;
    if !crate::common::has_memory(128 << 20) {
        return;
    }
    let _watchdog = Watchdog::new("a pool of one thread", 60);
    let sample = Sample::new(2 * LENGTH);
    let nowait = Nowait::builder().route(Some(Route::Ring)).pool_threads_max(1).build().unwrap();
    if is_refused_already(&nowait) {
        return;
    }
    let file = sample.open(&nowait);
    let offsets = || (0..64).map(|i| i * 4096);
    let read = |offset| file.read_at(vec![0; LENGTH], offset);
    // Makes both kinds of ring.
    nowait::block_on(join_all(offsets().take(4).map(read)));
    futures::executor::block_on(join_all(offsets().take(4).map(read)));
    filter(libc::EPERM, &[libc::SYS_io_uring_setup, libc::SYS_io_uring_enter]);
    for own in [true, false] {
        let reads = join_all(offsets().map(read));
        let results = if own { nowait::block_on(reads) } else { futures::executor::block_on(reads) };
        for (offset, result) in offsets().zip(results) {
            assert!(*result.unwrap().1 == *sample.expected(offset, LENGTH), "read at {offset}");
        }
    }
    assert_eq!(nowait.stats().handed_on, 128);
    // Idle threads stay for seconds: these are all that there were, for the open and for the device.
    assert_eq!(threads("nowait-pool"), 2);
    assert_settled(&nowait);
    let started: Vec<_> = offsets().map(|offset| read(offset).start()).collect();
    drop(file);
    drop(nowait);
    for (offset, read) in offsets().zip(started) {
        assert!(*read.wait().unwrap().1 == *sample.expected(offset, LENGTH), "read at {offset}");
    }
    assert!(crate::common::eventually(|| threads("nowait-pool") == 0), "a pool without an instance ends");
}

/// Threads of this process that have this name.
fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|of| of.trim_end() == name).count()
}

/// Direct I/O without io_uring, with more or less of libaio.
fn direct(role: &str) {
    let _watchdog = Watchdog::new(format!("direct I/O, {role}"), 20);
    filter(libc::EPERM, &[libc::SYS_io_uring_setup]);
    let refusal = match role {
        NO_CONTEXT => Some((libc::ENOSYS, libc::SYS_io_setup, "not in this kernel")),
        NO_CONTEXT_LEFT => Some((libc::EAGAIN, libc::SYS_io_setup, "fs.aio-max-nr")),
        NO_SUBMISSION => Some((libc::EACCES, libc::SYS_io_submit, "forbidden")),
        _ if aio_instance().is_none() => return,
        _ => None,
    };
    if let Some((errno, call, _)) = refusal {
        filter(errno, &[call]);
    }
    let sample = Sample::new(1 << 20);
    let nowait = Nowait::shared();
    let Some(file) = open_direct(nowait, &sample.path) else { return };
    read_pages_in_every_way(&file, &sample, 300);
    assert_settled(nowait);
    let stats = nowait.stats();
    // Two of the three callers; the third makes plain calls.
    let (aio, pool) =
        if refusal.is_none() && crate::common::takes_attempts(&sample.path) { (600, 0) } else { (0, 600) };
    assert_eq!((stats.aio, stats.pool, stats.ring), (aio, pool, 0), "{stats:?}");
    assert!(nowait.ring_refusal().is_some());
    let text = nowait.aio_refusal().map(ToString::to_string);
    assert_eq!(text.is_some(), refusal.is_some(), "{text:?}");
    if let (Some(text), Some((errno, _, word))) = (text, refusal) {
        for part in [word, "io_setup with", &format!("os error {errno}")] {
            assert!(text.contains(part), "{part:?} is missing in {text:?}");
        }
        let error = Nowait::builder().engine(Engine::Aio).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::EngineUnavailable);
        assert!(error.to_string().contains(&text), "{error}");
    }
    // Contexts are there, and of no use any more.
    if let NO_ROOM | LATE_SUBMISSION = role {
        filter(if role == NO_ROOM { libc::EAGAIN } else { libc::EPERM }, &[libc::SYS_io_submit]);
        read_pages_in_every_way(&file, &sample, 300);
        assert_settled(nowait);
        let stats = nowait.stats();
        assert_eq!((stats.aio, stats.pool), (aio, pool + 600), "{stats:?}");
    }
    // A thread's submissions of more than one wait for a completion, as long as one will come.
    if role == NO_ROOM_FOR_MANY {
        let more_than_one = SeccompCondition::new(1, SeccompCmpArgLen::Qword, SeccompCmpOp::Gt, 1).unwrap();
        let rule = SeccompRule::new(vec![more_than_one]).unwrap();
        apply(libc::EAGAIN, [(libc::SYS_io_submit, vec![rule])].into());
        read_pages_in_every_way(&file, &sample, 300);
        assert_settled(nowait);
        let stats = nowait.stats();
        assert!(stats.aio + stats.pool == 1200 && (stats.aio > 900 || aio == 0), "{stats:?}");
    }
}

/// Lets the kernel answer `errno` to some system calls, in all threads from now on.
fn filter(errno: i32, calls: &[i64]) {
    apply(errno, calls.iter().map(|call| (*call, Vec::new())).collect());
}

fn apply(errno: i32, rules: BTreeMap<i64, Vec<SeccompRule>>) {
    let answer = SeccompAction::Errno(errno as u32);
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, answer, arch).unwrap();
    seccompiler::apply_filter_all_threads(&BpfProgram::try_from(filter).unwrap()).unwrap();
}

fn check(nowait: &Nowait, errno: i32, word: &str) {
    assert!(!nowait.has_ring());
    let refusal = nowait.ring_refusal().unwrap();
    assert_eq!(refusal.raw_os_error(), errno);
    let text = refusal.to_string();
    for part in [word, "io_uring_setup", &format!("os error {errno}")] {
        assert!(text.contains(part), "{part:?} is missing in {text:?}");
    }
    let error = Nowait::builder().engine(Engine::Uring).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::EngineUnavailable);
    assert!(error.to_string().contains(&text), "{error}");
    keeps_every_promise(&Ctx::with(nowait.clone(), mounts::temp_dir()));
    assert_eq!(nowait.stats().ring, 0);
    assert!(nowait.stats().pool > 0);
}

/// A sysctl, or another's filter: a test of its own refusal has nothing to show then, and says so.
fn is_refused_already(nowait: &Nowait) -> bool {
    let refusal = nowait.ring_refusal();
    if let Some(refusal) = refusal {
        eprintln!("skipped: {refusal}");
    }
    refusal.is_some()
}

fn without_locked_memory() {
    if is_refused_already(&Nowait::builder().build().unwrap()) {
        return;
    }
    if child::is_root() {
        // Root is exempt from the limit.
        child::become_nobody();
    }
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is only read.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &none) }, 0);
    match Nowait::shared().ring_refusal() {
        Some(_) => check(Nowait::shared(), libc::ENOMEM, "ulimit -l"),
        None => eprintln!("skipped: {LOCKED_MEMORY}: this kernel grants a ring without any"),
    }
}
