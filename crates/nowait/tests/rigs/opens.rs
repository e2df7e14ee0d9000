//! Opens, and reads of whole files: where a future makes them on its own thread, and where not.

use std::fs as std_fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use crate::common::fuse::Stalling;
use crate::common::mounts::{self, Kind, Mount, temp_dir};
use crate::common::{Sample, Watchdog, Way, assert_settled, child, eventually, poll_once};
use nowait::sim::Sim;
use nowait::{Engine, Error, File, Nowait, OpenOptions, Route};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx};
use rustix::io::Errno;

const FILES: u64 = 50;

/// Whose calls on the caller's thread are never too slow for it.
fn patient() -> nowait::Builder {
    Nowait::builder().stall_budget(Duration::from_secs(60))
}

fn open<'n>(nowait: &'n Nowait, path: &Path) -> nowait::Operation<'n, nowait::Result<File>> {
    OpenOptions::new().read(true).open_in(nowait, path)
}

/// The kernel's answer to a walk along cached names.
fn walk(path: &Path) -> Result<(), Errno> {
    openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::CACHED).map(drop)
}

/// Whether this kernel can be asked for cached names, and has numbers of mounts that do not come
/// again; says so where not.
fn has_cached_walks() -> bool {
    const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
    let dir = temp_dir();
    let walked = walk(dir.path());
    let stat = statx(CWD, dir.path(), AtFlags::empty(), MNT_ID_UNIQUE);
    let is_unique = stat.is_ok_and(|stat| stat.stx_mask & MNT_ID_UNIQUE.bits() != 0);
    if walked.is_err() || !is_unique {
        eprintln!("skipped: RESOLVE_CACHED: {walked:?}, STATX_MNT_ID_UNIQUE: {is_unique}");
    }
    walked.is_ok() && is_unique
}

/// Operations that were served inline, and by a thread of the pool, while `work` was done.
fn counted(nowait: &Nowait, work: impl FnOnce()) -> (u64, u64) {
    let before = nowait.stats();
    work();
    assert_settled(nowait);
    let after = nowait.stats();
    assert_eq!((after.ring, after.failed), (before.ring, before.failed));
    (after.inline - before.inline, after.pool - before.pool)
}

/// Asserts that `work` is served as `right` says in one of a few rounds: a walk along cached names
/// also fails while anything is mounted, unmounted or renamed, and the kernel drops names at will.
fn assert_served(nowait: &Nowait, right: (u64, u64), what: &str, mut work: impl FnMut()) {
    let mut served = Vec::new();
    while served.len() < 20 && served.last() != Some(&right) {
        served.push(counted(nowait, &mut work));
    }
    assert_eq!(served.last(), Some(&right), "{what}: (inline, pool) of each round: {served:?}");
}

/// Fifty small files, each opened and read without a switch to another thread. Not opened so
/// on overlayfs: one of its layers may be a server's.
fn cached_files_need_no_thread(kind: Kind) {
    let Some(mount) = has_cached_walks().then(|| Mount::or_skip(kind)).flatten() else { return };
    let nowait = patient().build().unwrap();
    let paths: Vec<_> = (0..FILES).map(|number| mount.path().join(format!("file {number}"))).collect();
    for (number, path) in paths.iter().enumerate() {
        std_fs::write(path, crate::common::contents(1 + 300 * number, number as u64)).unwrap();
    }
    // The first open on a file system finds out which it is.
    open(&nowait, &paths[0]).wait().unwrap();
    for way in [Way::Awaited, Way::Driven] {
        let opened_by_pool = if kind == Kind::Overlay { FILES } else { 0 };
        let right = (2 * FILES - opened_by_pool, opened_by_pool);
        assert_served(&nowait, right, &format!("{way:?} on {kind:?}"), || {
            for (number, path) in paths.iter().enumerate() {
                let right = crate::common::contents(1 + 300 * number, number as u64);
                assert!(way.run_future(nowait.fs().read(path)).unwrap() == right, "{path:?}");
            }
        });
    }
}

mounts::on_every_file_system!(cached_files_need_no_thread);

/// Where one thread has to wait, another has learned of the file system.
#[test]
fn a_mount_is_learned_by_the_first_open_there() {
    let Some(mount) = has_cached_walks().then(|| Mount::or_skip(Kind::Tmpfs)).flatten() else { return };
    let nowait = patient().build().unwrap();
    let path = mount.path().join("file");
    std_fs::write(&path, "words").unwrap();
    let ways = counted(&nowait, || drop(futures::executor::block_on(open(&nowait, &path)).unwrap()));
    assert_eq!(ways, (0, 1));
    assert_served(&nowait, (1, 0), "learned", || drop(futures::executor::block_on(open(&nowait, &path)).unwrap()));
}

#[test]
fn opens_that_may_do_more_go_to_the_pool() {
    let sample = Sample::new(10_000);
    let nowait = patient().build().unwrap();
    sample.open(&nowait);
    type Kind = fn(&mut OpenOptions) -> &mut OpenOptions;
    let kinds: [(&str, Kind); 6] = [
        ("write", |options| options.write(true)),
        ("append", |options| options.append(true)),
        ("create", |options| options.write(true).create(true)),
        ("truncate", |options| options.write(true).truncate(true)),
        ("direct", |options| options.read(true).direct(true)),
        ("not followed", |options| options.read(true).custom_flags(libc::O_NOFOLLOW)),
    ];
    for (name, kind) in kinds {
        let ways = counted(&nowait, || {
            futures::executor::block_on(kind(&mut OpenOptions::new()).open_in(&nowait, &sample.path)).unwrap();
        });
        assert_eq!(ways, (0, 1), "{name}");
    }
}

#[test]
fn instances_that_choose_no_way_open_in_the_pool() {
    let sample = Sample::new(10_000);
    let forced = |route| patient().route(Some(route));
    for builder in [patient().strict(true), forced(Route::Pool), forced(Route::Ring), forced(Route::Inline)] {
        let nowait = builder.build().unwrap();
        sample.open(&nowait);
        let ways = counted(&nowait, || drop(futures::executor::block_on(open(&nowait, &sample.path)).unwrap()));
        assert_eq!(ways, (0, 1), "{nowait:?}");
    }
    let sim = Sim::new(1);
    sim.create("a", [7; 100]);
    let nowait = Nowait::builder().engine(Engine::Sim(sim)).build().unwrap();
    let inline = nowait.stats().inline;
    futures::executor::block_on(open(&nowait, "a".as_ref())).unwrap();
    assert_eq!(nowait.stats().inline, inline);
}

/// Errors are those of a caller that waits, whether the kernel knows the name or not.
#[test]
fn errors_are_those_of_the_plain_call() {
    let dir = temp_dir();
    let at = |name: &str| dir.path().join(name);
    rustix::fs::mknodat(CWD, at("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    std_fs::write(at("file"), "words").unwrap();
    symlink(at("loop"), at("loop")).unwrap();
    symlink(at("nowhere"), at("broken")).unwrap();
    symlink(at("fifo"), at("to a fifo")).unwrap();
    symlink(at("file"), at("link")).unwrap();
    let nowait = patient().build().unwrap();
    let _watchdog = Watchdog::new("opens that fail", 60);
    let long = "n".repeat(300);
    for name in ["missing", "fifo", "", "loop", "broken", "to a fifo", "file/below", "zero\0byte", long.as_str()] {
        let told = |error: Error| (error.kind(), error.raw_os_error(), error.operation(), error.to_string());
        let right = told(open(&nowait, &at(name)).wait().unwrap_err());
        for round in 0..2 {
            for way in [Way::Awaited, Way::Driven] {
                let error = way.run_future(open(&nowait, &at(name))).unwrap_err();
                assert_eq!(error.path(), Some(&*at(name)));
                assert_eq!(told(error), right, "{name:?}, {way:?}, round {round}");
            }
        }
    }
    // While a link is as old as its last use, every walk along it writes the time of that use, and
    // leaves the cached names for it (relatime). The clock of these times has ticks of up to 10 ms.
    std::thread::sleep(Duration::from_millis(50));
    // None of these answers says that the kernel cannot be asked.
    assert_eq!(futures::executor::block_on(nowait.fs().read(at("link"))).unwrap(), b"words");
    if has_cached_walks() {
        assert_served(&nowait, (1, 0), "link", || {
            drop(futures::executor::block_on(open(&nowait, &at("link"))).unwrap());
        });
    }
}

#[test]
fn a_name_that_is_not_cached_is_opened_by_the_pool() {
    if !child::is_root() || !has_cached_walks() {
        return eprintln!("skipped: only root may drop names from the kernel's cache");
    }
    let nowait = patient().build().unwrap();
    let sample = Sample::new(10_000);
    sample.open(&nowait);
    // Names that were used lately stay, once or twice.
    for _ in 0..20 {
        std_fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
        if walk(&sample.path) == Err(Errno::AGAIN) {
            let ways = counted(&nowait, || drop(futures::executor::block_on(open(&nowait, &sample.path)).unwrap()));
            // Another program may have looked there meanwhile.
            if ways == (0, 1) {
                assert!(futures::executor::block_on(nowait.fs().read(&sample.path)).unwrap() == sample.bytes);
                return;
            }
        }
    }
    panic!("a name that is not cached was never opened by the pool");
}

/// A read that meets the end of a cached file has all that there is: no thread looks again.
#[test]
fn a_cached_read_across_the_end_needs_no_thread() {
    let sample = Sample::new(10_000);
    if !crate::common::takes_attempts(&sample.path) {
        return eprintln!("skipped: attempts are refused here");
    }
    let nowait = patient().build().unwrap();
    let file = sample.open(&nowait);
    let read = |offset: u64| {
        let (n, buffer) = futures::executor::block_on(file.read_at(vec![0; 20_000], offset)).unwrap();
        assert!(buffer[..n] == *sample.expected(offset, 20_000));
    };
    read(0);
    let ways = counted(&nowait, || [0, 5_000, 9_999].into_iter().for_each(read));
    assert_eq!(ways, (3, 0));
    // Where only a part is cached the rest is read.
    sample.cool();
    read(0);
}

/// A server that does not answer an open stops no thread that polls. The kernel has the name.
#[test]
fn a_server_that_does_not_answer_stops_no_executor() {
    let _watchdog = Watchdog::new("an open that is not answered", 60);
    let nowait = patient().build().unwrap();
    // The next file system without a device gets the number of this one.
    if let Some(mount) = Mount::or_skip(Kind::Tmpfs) {
        std_fs::write(mount.path().join("file"), "words").unwrap();
        open(&nowait, &mount.path().join("file")).wait().unwrap();
    }
    let Some(mut stalling) = Stalling::or_skip(Duration::ZERO) else { return };
    let path = stalling.file();
    open(&nowait, &path).wait().unwrap();
    if has_cached_walks() {
        // Refused while any test mounts, unmounts or renames something.
        assert!(eventually(|| walk(&path).is_ok()), "the kernel has no such name");
    }
    stalling.hang();
    let mut opening = Box::pin(open(&nowait, &path));
    let answer = poll_once(opening.as_mut());
    assert!(answer.is_pending(), "{answer:?}");
    stalling.go_on();
    futures::executor::block_on(opening).unwrap();
}

/// Filters of old container runtimes answer EPERM to what they do not know.
#[test]
fn where_the_walk_is_refused() {
    for errno in [libc::EPERM, libc::ENOSYS, libc::EINVAL] {
        child::play(&errno.to_string());
    }
}

#[test]
fn child() {
    match child::role().as_deref() {
        None => {}
        Some(errno) => without_cached_walks(errno.parse().unwrap()),
    }
}

fn without_cached_walks(errno: i32) {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
    let rules = [(libc::SYS_openat2, Vec::new())].into();
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno as u32), arch).unwrap();
    seccompiler::apply_filter_all_threads(&BpfProgram::try_from(filter).unwrap()).unwrap();
    let sample = Sample::new(10_000);
    let nowait = patient().build().unwrap();
    sample.open(&nowait);
    let (_, pool) = counted(&nowait, || {
        for _ in 0..5 {
            assert!(futures::executor::block_on(nowait.fs().read(&sample.path)).unwrap() == sample.bytes);
        }
    });
    assert!(pool >= 5, "{pool}");
}
