//! Reports on each file system, against the kernel's tracepoint, against what is known of that file
//! system, and against what the library does.

#[path = "../../nowait/tests/common/mod.rs"]
mod common;

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use common::child::{self, play_at};
use common::mounts::{self, Kind, LoopDevice, Mount, Zram, or_skip};
use common::{cold, contents, is_slow};
use nowait::ErrorKind;
use nowait_probe::{Case, Evidence, Options, Outcome, Rates, Reason, Report, Row, Subject, watch};

/// Ten cases of so many are more than 2000 requests: two are left out where pages cannot be
/// dropped.
const MANY: u32 = 208;
/// Of a device there are four cases.
const MANY_OF_A_DEVICE: u32 = 520;

fn probe_many(path: &Path, requests: u32) -> Report {
    // An emulated processor takes minutes for the other depths and sizes.
    let report = Options::new().requests(requests).shallow(is_slow()).run(path).unwrap();
    print(&report);
    report
}

/// The matrix, for whoever reads the log; `docs/measurements` has it from here.
fn print(report: &Report) {
    let place = &report.place;
    println!("{} {:?} {:?}", report.path.display(), place.file_system, place.attributes);
    for row in report.scratch.iter().chain(&report.file) {
        let ring = match &row.ring {
            Outcome::Seen(rates) => format!(
                "{:4} inline {:4} async {:4} worker {:4} unclear {:2} slept {:4}  {}",
                rates.requests,
                rates.inline,
                rates.asynchronous,
                rates.worker,
                rates.unclear,
                rates.slept,
                row.reason.map_or("", |reason| reason.name())
            ),
            other => format!("{other:?}"),
        };
        println!("  {:<20} {ring}", row.case.name());
        if let Some(served) = &row.nowait {
            println!(
                "  {:<20} {:4} inline {:4} ring  {:4} pool   {:4} worker  {:4} failed  {:4}",
                "  nowait", served.requests, served.inline, served.ring, served.pool, served.worker, served.failed
            );
        }
    }
    for row in report.scratch.iter().chain(&report.file) {
        for sentence in row.changes() {
            println!("  {:<20} {sentence}", row.case.name());
        }
    }
    println!("  controls {:?}, traced {:?}, {:?}", report.controls, report.traced(), report.steps_missing);
}

fn seen(row: &Row) -> &Rates {
    match &row.ring {
        Outcome::Seen(rates) => rates,
        other => panic!("{}: {other:?}", row.case.name()),
    }
}

fn rates(report: &Report, case: Case) -> &Rates {
    seen(report.row(case).unwrap_or_else(|| panic!("no row of {}", case.name())))
}

/// Checks that counts and observations fit together, and that the kernel has seen the same, where
/// it can be asked.
fn is_sound(report: &Report, least: u32) {
    assert!(report.controls.is_some_and(|controls| controls.hold()), "{:?}", report.controls);
    for row in report.scratch.iter().chain(&report.file) {
        let Outcome::Seen(rates) = &row.ring else { continue };
        let sum = rates.inline + rates.asynchronous + rates.worker + rates.unclear;
        assert_eq!(sum, rates.requests, "{}: {rates:?}", row.case.name());
        let few = if is_slow() { 5 } else { 50 };
        assert!(rates.unclear * few <= rates.requests.max(few), "{}: {rates:?}", row.case.name());
        assert_eq!(rates.failed, 0, "{}: {rates:?}", row.case.name());
        assert_eq!(rates.submissions, rates.requests, "{}: {rates:?}", row.case.name());
        tells_the_same(row, rates);
        for step in &row.steps {
            let rates = match &step.ring {
                Outcome::Seen(rates) => rates,
                Outcome::NotInState => continue,
                other => panic!("{} {}x{}: {other:?}", row.case.name(), step.depth, step.bytes),
            };
            let sum = rates.inline + rates.asynchronous + rates.worker + rates.unclear;
            assert_eq!((sum, rates.failed), (rates.requests, 0), "{}: {step:?}", row.case.name());
            assert!(rates.requests <= rates.submissions * step.depth && rates.slept <= rates.submissions, "{step:?}");
        }
    }
    match report.evidence.as_ref().unwrap() {
        Evidence::ThreadsAndTracepoint => {
            let traced = report.traced().unwrap();
            assert_eq!(traced.agreed, traced.requests, "the kernel says otherwise");
            assert!(traced.requests >= least, "{traced:?}");
        }
        Evidence::Tracepoint => eprintln!("skipped: no workers to compare with the tracepoint before Linux 5.12"),
        // tracefs has one place, which is not a test's to mount.
        Evidence::Threads { untraced } if untraced.contains("not mounted") => eprintln!("skipped: {untraced}"),
        Evidence::Threads { untraced } if child::is_root() => {
            or_skip::<()>("the tracepoint", Err(untraced.clone()));
        }
        other => eprintln!("skipped: the tracepoint: {other:?}"),
    }
}

/// On every kernel a report says what told whether a worker ran, or why nothing can: nothing is
/// told that was not seen.
#[test]
fn what_told_it_is_said() {
    let folder = mounts::temp_dir();
    let report = nowait_probe::probe(folder.path()).unwrap();
    if let Some(refusal) = &report.reach.refusal {
        return eprintln!("skipped: {refusal}");
    }
    print(&report);
    let sync = &report.row(Case::Sync).unwrap().ring;
    match (&report.evidence, sync) {
        (Some(_), Outcome::Seen(rates)) => {
            assert!(report.controls.is_some_and(|controls| controls.hold()), "{:?}", report.controls);
            assert_eq!(rates.worker + rates.unclear, rates.requests, "a ring gives every fsync to a worker: {rates:?}");
            let tracefs = std::path::Path::new("/sys/kernel/tracing/events").exists();
            if let Some(Evidence::Threads { untraced }) = &report.evidence {
                let words = [
                    "not mounted: mount -t tracefs",
                    "for root only",
                    "perf_event_open",
                    "no tracepoint",
                    "no tracefs",
                ];
                let said = words.iter().find(|word| untraced.contains(*word));
                assert!(said.is_some_and(|word| !tracefs || !word.contains("mounted")), "{untraced}");
            }
        }
        (None, Outcome::CannotTell(why)) => {
            let words = ["tracefs", "perf_event_open", "no tracepoint"];
            assert!(words.iter().any(|word| why.contains(word)), "{why}");
        }
        other => panic!("{other:?}"),
    }
}

/// The library is served as the probe says: what it gives to a ring goes to a kernel worker where
/// all requests of this kind do, and does not where none does. And it gives to no ring what would
/// only be read by a worker.
fn tells_the_same(row: &Row, rates: &Rates) {
    let Some(served) = &row.nowait else { return };
    assert_eq!(served.failed, 0, "{}: {served:?}", row.case.name());
    let ended = served.inline + served.ring + served.aio + served.pool;
    assert_eq!(ended, served.requests, "{}: {served:?}", row.case.name());
    if rates.worker == 0 {
        assert!(served.worker * 20 <= served.requests, "{}: {rates:?}, {served:?}", row.case.name());
    }
    if rates.worker == rates.requests {
        assert!(served.worker * 20 >= served.ring * 19, "{}: {rates:?}, {served:?}", row.case.name());
        assert!(!row.case.name().ends_with("read") || served.ring == 0, "{}: {served:?}", row.case.name());
    }
}

fn all_by_workers(report: &Report, cases: &[Case]) {
    for case in cases {
        let rates = rates(report, *case);
        assert_eq!(rates.worker + rates.unclear, rates.requests, "{}: {rates:?}", case.name());
        assert!(report.row(*case).unwrap().reason.is_some(), "{}", case.name());
    }
}

fn none_by_workers(report: &Report, cases: &[Case]) {
    for case in cases {
        let rates = rates(report, *case);
        assert_eq!(rates.worker, 0, "{}: {rates:?}", case.name());
    }
}

/// Once a clock tick, and so the more of them the slower they come.
fn some_by_workers(report: &Report, cases: &[Case]) {
    for case in cases {
        let rates = rates(report, *case);
        assert!(rates.worker < rates.requests, "{}: {rates:?}", case.name());
    }
}

/// Checks what is certain on Linux 6.18. On later kernels this test shows what has changed.
fn on(kind: Kind) {
    use Case::*;
    let Some(mount) = Mount::or_skip(kind) else { return };
    let report = probe_many(mount.path(), MANY);
    assert_eq!(report.subject, Subject::Directory);
    assert!(report.scratch_error.is_none() && report.file.is_empty());
    is_sound(&report, 2000);
    assert_eq!(fs::read_dir(mount.path()).unwrap().filter(|entry| is_ours(entry.as_ref().unwrap())).count(), 0);
    all_by_workers(&report, &[Sync, ForcedRead]);
    match kind {
        Kind::Ext4 => {
            none_by_workers(&report, &[CachedRead, ColdRead, DirectRead, DirectOverwrite, DirectUnwritten]);
            all_by_workers(&report, &[CachedOverwrite, ColdPartialWrite, Append, AppendAllocated, DirectAppend]);
        }
        Kind::Xfs => {
            none_by_workers(&report, &[CachedRead, ColdRead, DirectRead]);
            let once_a_tick = [CachedOverwrite, Append, AppendAllocated, DirectOverwrite, DirectUnwritten];
            some_by_workers(&report, &once_a_tick);
            all_by_workers(&report, &[ColdPartialWrite, DirectAppend]);
            assert!(report.abilities.atomic_writes.is_some_and(|atomic| atomic.bytes_max >= 4096));
        }
        Kind::Btrfs => {
            none_by_workers(&report, &[CachedRead, ColdRead, DirectRead]);
            all_by_workers(&report, &[CachedOverwrite, Append, DirectOverwrite, DirectAppend, DirectUnwritten]);
        }
        Kind::Tmpfs | Kind::Overlay => {
            let reads_and_writes = [CachedRead, CachedOverwrite, Append, AppendAllocated, DirectRead, DirectOverwrite];
            all_by_workers(&report, &reads_and_writes);
            assert_eq!(report.abilities.nowait_reads, Some(false));
        }
    }
    sums_up(&report, kind);
    let name = report.place.file_system.as_deref();
    assert_eq!(name, Some(["ext4", "xfs", "btrfs", "tmpfs", "overlay"][kind as usize]));
}

/// The summary is true of the counters, and names what is special here.
fn sums_up(report: &Report, kind: Kind) {
    let text = report.summary();
    println!("  {text}");
    let by_workers = "io_uring would hand each request to a kernel worker, so cached reads";
    match kind {
        Kind::Tmpfs => assert!(text.starts_with(&format!("Here pages stay in memory, and {by_workers}")), "{text}"),
        Kind::Overlay => assert!(text.starts_with(&format!("Here {by_workers}")), "{text}"),
        Kind::Ext4 | Kind::Xfs | Kind::Btrfs => {
            assert!(text.starts_with("Cached reads") && text.contains("cold reads"), "{text}");
            assert!(text.contains("use io_uring"), "{text}");
        }
    }
    assert_eq!(text.contains("cold reads"), kind != Kind::Tmpfs, "{text}");
    let served = report.scratch.iter().filter_map(|row| row.nowait);
    let by_worker: u32 = served.map(|served| served.worker).sum();
    assert_eq!(text.ends_with("None of these needs a kernel worker."), by_worker == 0, "{text}");
}

fn is_ours(entry: &fs::DirEntry) -> bool {
    entry.file_name().to_string_lossy().starts_with(".nowait-probe")
}

mounts::on_every_file_system!(on);

/// The scratch files have the attributes of the file that they stand for.
#[test]
fn btrfs_without_copy_on_write() {
    use Case::*;
    let Some(mount) = Mount::or_skip(Kind::Btrfs) else { return };
    let path = mount.path().join("file");
    let file = File::create_new(&path).unwrap();
    rustix::fs::ioctl_setflags(&file, rustix::fs::IFlags::NOCOW).unwrap();
    fs::write(&path, contents(1 << 20, 1)).unwrap();
    let report = probe_many(&path, MANY);
    assert_eq!(report.place.attributes, ["no copy-on-write"]);
    is_sound(&report, 2000);
    none_by_workers(&report, &[CachedRead, CachedOverwrite, Append, AppendAllocated, DirectOverwrite]);
    all_by_workers(&report, &[Sync, DirectAppend]);
    // The page is read inside the submission, which says that it is inline.
    let partial = rates(&report, ColdPartialWrite);
    assert!(partial.slept + partial.worker >= partial.requests / 2, "{partial:?}");
}

#[test]
fn a_block_device() {
    let bytes = contents(8 << 20, 1);
    let Some(device) = or_skip("a loop device", LoopDevice::new(&bytes, 512)) else { return };
    let report = probe_many(device.path(), MANY_OF_A_DEVICE);
    assert_eq!(report.subject, Subject::Device);
    assert!(report.scratch.is_empty() && report.scratch_error.is_none());
    is_sound(&report, 2000);
    none_by_workers(&report, &[Case::CachedRead, Case::ColdRead, Case::DirectRead]);
    assert!(report.place.device.is_some_and(|device| device.name.starts_with("loop")));
    assert!(fs::read(device.path()).unwrap() == bytes);
}

/// Its requests are served in their submission, and io_uring is not told that they will be quick.
#[test]
fn a_disk_in_memory() {
    let Some(zram) = or_skip("zram", Zram::new(8 << 20)) else { return };
    let report = probe_many(zram.path(), MANY_OF_A_DEVICE);
    is_sound(&report, 2000);
    all_by_workers(&report, &[Case::DirectRead]);
    assert_eq!(report.abilities.nowait_direct_reads, Some(false));
    assert_eq!(report.row(Case::DirectRead).unwrap().reason, Some(Reason::Device));
}

#[test]
fn the_file_itself_is_left_alone() {
    let folder = mounts::temp_dir();
    let path = folder.path().join("file");
    let bytes = contents(3 << 20, 1);
    fs::write(&path, &bytes).unwrap();
    cold::drop_pages(&path);
    // A part of it is cached.
    fs::File::open(&path).map(|file| std::os::unix::fs::FileExt::read_at(&file, &mut [0; 4096], 0)).unwrap().unwrap();
    let (before, cached) = (fs::metadata(&path).unwrap(), cold::cached_pages(&path));
    let report = Options::new().run(&path).unwrap();
    let after = fs::metadata(&path).unwrap();
    let times = |about: &fs::Metadata| (about.atime_nsec(), about.mtime_nsec(), about.ctime_nsec(), about.len());
    assert_eq!(times(&before), times(&after));
    assert!(cold::cached_pages(&path) >= cached);
    assert!(fs::read(&path).unwrap() == bytes);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    assert_eq!(report.subject, Subject::File);
    let names: Vec<_> = report.file.iter().map(|row| row.case.name()).collect();
    assert_eq!(names, ["cached-read", "cold-read", "direct-read", "forced-read"]);
    for row in &report.file {
        assert!(matches!(row.ring, Outcome::Seen(_)), "{row:?}");
    }
    // Now that all of it is cached, only on request.
    let cold = |options: Options| {
        let report = options.run(&path).unwrap();
        report.file.into_iter().find(|row| row.case == Case::ColdRead).unwrap().ring
    };
    fs::read(&path).unwrap();
    assert_eq!(cold(Options::new()), Outcome::NotInState);
    assert!(matches!(cold(Options::new().evict(true)), Outcome::Seen(_)));
}

#[test]
fn what_cannot_be_probed_says_so() {
    let folder = mounts::temp_dir();
    let fifo = folder.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    for (path, kind) in [(folder.path().join("missing"), ErrorKind::NotFound), (fifo, ErrorKind::NotSeekable)] {
        let error = nowait_probe::probe(&path).unwrap_err();
        assert_eq!(error.kind(), kind);
        assert_eq!(error.path(), Some(&*path));
    }
    let empty = folder.path().join("empty");
    fs::write(&empty, "").unwrap();
    let report = nowait_probe::probe(&empty).unwrap();
    assert!(report.file.is_empty() && report.scratch.len() == Case::ALL.len(), "{report:?}");
}

/// Beside a thread whose kernel workers are always busy, the probe's own are told apart.
#[test]
fn others_at_work_do_not_count() {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    let Some(mount) = Mount::or_skip(Kind::Tmpfs) else { return };
    let (path, done) = (mount.path().join("file"), AtomicBool::new(false));
    fs::write(&path, [0; 4096]).unwrap();
    let folder = mounts::temp_dir();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // A ring hands reads on tmpfs to kernel workers.
            let nowait = nowait::Nowait::builder().route(Some(nowait::Route::Ring)).build().unwrap();
            let file = common::open(&nowait, &path);
            while !done.load(Relaxed) {
                nowait::block_on(file.read_range(0, 4096)).unwrap();
            }
        });
        let report = Options::new().run(folder.path()).unwrap();
        done.store(true, Relaxed);
        print(&report);
        is_sound(&report, 0);
    });
}

/// Depths and sizes that a kind of request is asked for at, those between two depths left out.
fn steps(row: &Row) -> Vec<(u32, u32)> {
    let steps = row.steps.iter().map(|step| (step.depth, step.bytes));
    steps.filter(|(depth, _)| [1, 32, 256, 1024].contains(depth)).collect()
}

/// With the kernel's tracepoints, which say the same of every request, alone or with others.
#[test]
fn each_depth_and_size_is_confirmed_by_tracepoints() {
    let folder = mounts::temp_dir();
    with_tracefs(folder.path());
    let Some(mount) = Mount::or_skip(Kind::Tmpfs) else { return };
    with_tracefs(mount.path());
}

/// Plays a role where tracefs is mounted: in a mount namespace of its own, if it is not everywhere.
fn with_tracefs(path: &Path) {
    const NO_TRACEFS: i32 = 77;
    let script = "[ -e /sys/kernel/tracing/events ] || mount -t tracefs tracefs /sys/kernel/tracing || exit 77\n\
                  exec \"$0\" \"$@\"";
    let inner = child::command_at(TRACED, path);
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(inner.get_program()).args(inner.get_args());
    command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => return eprintln!("skipped: unshare: {error}"),
    };
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.code() == Some(NO_TRACEFS) || text.starts_with("unshare: ") {
        return eprintln!("skipped: {text}");
    }
    assert!(output.status.success(), "{text}");
    println!("{text}");
}

#[test]
fn a_device_is_probed_at_each_depth_and_size() {
    let bytes = contents(40 << 20, 1);
    let Some(device) = or_skip("a loop device", LoopDevice::new(&bytes, 512)) else { return };
    let report = Options::new().run(device.path()).unwrap();
    print(&report);
    is_sound(&report, 0);
    let row = report.row(Case::DirectRead).unwrap();
    let (page, long, longest) = (4096, 128 << 10, 1 << 20);
    let all = [(32, page), (256, page), (1024, page), (1, long), (32, long), (1, longest), (32, longest)];
    assert_eq!(steps(row), all);
    // Nothing else is read of a device, whose pages would be cached then.
    assert!(report.file.iter().filter(|row| row.case != Case::DirectRead).all(|row| row.steps.is_empty()));
    assert!(fs::read(device.path()).unwrap() == bytes);
    // One that is shorter is asked for less; and for none, if that is said.
    let bytes = contents(1 << 20, 1);
    let Some(device) = or_skip("a loop device", LoopDevice::new(&bytes, 512)) else { return };
    let report = Options::new().run(device.path()).unwrap();
    let row = report.row(Case::DirectRead).unwrap();
    assert!(steps(row).contains(&(32, page)) && !steps(row).contains(&(1024, page)), "{:?}", steps(row));
    let report = Options::new().shallow(true).run(device.path()).unwrap();
    assert!(report.file.iter().all(|row| row.steps.is_empty() && row.changes().is_empty()));
    assert!(report.steps_missing.is_some());
}

const NOBODY: &str = "nobody";
const TRACED: &str = "traced";
const NO_RING: &str = "no ring";
const NO_RING_HERE: &str = "no ring here";

/// Without privilege the tracepoint cannot be asked; all else is as before.
#[test]
fn for_anybody() {
    let folder = open_folder();
    play_at(NOBODY, folder.path());
}

#[test]
fn where_io_uring_is_refused() {
    let folder = open_folder();
    play_at(NO_RING, folder.path());
    play_at(NO_RING_HERE, folder.path());
}

/// In which anybody may make files.
fn open_folder() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let folder = mounts::temp_dir();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

#[test]
fn child() {
    let Some(role) = child::role() else { return };
    let folder = child::path();
    match &*role {
        NOBODY => {
            if child::is_root() {
                child::become_nobody();
            }
            let report = nowait_probe::probe(&folder).unwrap();
            assert!(report.scratch_error.is_none(), "{:?}", report.scratch_error);
            is_sound(&report, 0);
            all_by_workers(&report, &[Case::Sync, Case::ForcedRead]);
        }
        TRACED => {
            let report = Options::new().run(&folder).unwrap();
            print(&report);
            match &report.evidence {
                Some(Evidence::ThreadsAndTracepoint | Evidence::Tracepoint) => {}
                other => return eprintln!("skipped: the tracepoints: {other:?}"),
            }
            is_sound(&report, 10_000);
            assert_eq!(report.unconfirmed(), None, "{:?}", report.traced());
            let seen = |case| {
                let row = report.row(case).unwrap();
                let outcomes = [&row.ring].into_iter().chain(row.steps.iter().map(|step| &step.ring));
                outcomes.filter_map(|outcome| if let Outcome::Seen(rates) = outcome { Some(rates) } else { None })
            };
            assert!(seen(Case::CachedRead).all(|rates| rates.is_confirmed() == Some(true)));
            // tmpfs has no requests that do not wait, at any depth and size: all are counted.
            if report.abilities.nowait_reads == Some(false) {
                assert!(seen(Case::CachedRead).all(|rates| rates.worker + rates.unclear == rates.requests));
                assert!(report.scratch.iter().all(|row| row.changes().is_empty()));
            }
            let row = report.row(Case::CachedRead).unwrap();
            assert!(report.steps_missing.is_some() || steps(row).len() == 7, "{:?}", steps(row));
        }
        NO_RING => {
            forbid(libc::SYS_io_uring_setup);
            let report = nowait_probe::probe(&folder).unwrap();
            assert_eq!(report.reach.refusal.as_ref().map(|refusal| refusal.raw_os_error()), Some(libc::EPERM));
            let remedy = report.reach.remedy.as_deref().unwrap();
            assert!(remedy.contains("seccomp"), "{remedy}");
            cannot_tell(&report);
            let text = report.summary();
            assert!(text.contains("Here io_uring is refused, so cached reads"), "{text}");
            assert!(!text.contains("use io_uring") && !text.contains("kernel worker"), "{text}");
        }
        // The ring can be made, and the first worker cannot be seen.
        NO_RING_HERE => {
            forbid(libc::SYS_io_uring_enter);
            cannot_tell(&nowait_probe::probe(&folder).unwrap());
        }
        other => panic!("no role {other:?}"),
    }
}

/// Nothing is said of io_uring, and all that the library does without it.
fn cannot_tell(report: &Report) {
    assert!(report.controls.is_none() && report.traced().is_none());
    for row in &report.scratch {
        assert!(matches!(row.ring, Outcome::CannotTell(_)), "{row:?}");
        let Some(served) = &row.nowait else { continue };
        assert_eq!((served.failed, served.ring, served.worker), (0, 0, 0), "{row:?}");
        assert!(served.requests > 0 && served.inline + served.aio + served.pool == served.requests, "{row:?}");
    }
}

/// Lets the kernel answer EPERM to a system call, in all threads from now on.
fn forbid(call: i64) {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let answer = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new([(call, Vec::new())].into(), SeccompAction::Allow, answer, arch).unwrap();
    seccompiler::apply_filter_all_threads(&BpfProgram::try_from(filter).unwrap()).unwrap();
}

/// A program that reads where every read takes a worker is seen to.
#[test]
fn a_running_program_is_watched() {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    let Some(mount) = Mount::or_skip(Kind::Tmpfs) else { return };
    let (path, done) = (mount.path().join("file"), AtomicBool::new(false));
    fs::write(&path, [0; 4096]).unwrap();
    let process = std::process::id();
    let watched = std::thread::scope(|scope| {
        scope.spawn(|| {
            let nowait = nowait::Nowait::builder().route(Some(nowait::Route::Ring)).build().unwrap();
            let file = common::open(&nowait, &path);
            while !done.load(Relaxed) {
                nowait::block_on(file.read_range(0, 4096)).unwrap();
            }
        });
        assert!(common::eventually(|| !watch(process, Duration::ZERO).unwrap().threads.is_empty()));
        // A busy machine may let it run a few times only.
        let mut watched = watch(process, Duration::from_millis(300)).unwrap();
        for _ in 0..100 {
            if watched.threads.iter().any(|thread| thread.runs > 10) && watched.punts.is_none_or(|punts| punts > 10) {
                break;
            }
            watched = watch(process, Duration::from_millis(300)).unwrap();
        }
        done.store(true, Relaxed);
        watched
    });
    let busiest = watched.threads.iter().max_by_key(|thread| thread.runs).unwrap();
    assert!(busiest.runs > 10 && busiest.name.starts_with("iou-wrk-"), "{watched:?}");
    assert!(busiest.on_processor > Duration::ZERO && watched.elapsed >= Duration::from_millis(300), "{watched:?}");
    match watched.punts {
        Some(punts) => assert!(punts > 10, "{watched:?}"),
        None => eprintln!("skipped: the tracepoint: not to be had here"),
    }
    assert_eq!(watch(u32::MAX, Duration::ZERO).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn public_types_are_sent_shared_and_formatted() {
    fn shared<T: Send + Sync + std::fmt::Debug>() {}
    shared::<(nowait_probe::Abilities, nowait_probe::AtomicWrites, nowait_probe::Case, nowait_probe::Controls)>();
    shared::<(nowait_probe::Device, nowait_probe::Evidence, nowait_probe::KernelThread, nowait_probe::Options)>();
    shared::<(nowait_probe::Outcome, nowait_probe::Place, nowait_probe::Rates, nowait_probe::Reach)>();
    shared::<(nowait_probe::Reason, nowait_probe::Report, nowait_probe::Row, nowait_probe::Served)>();
    shared::<(nowait_probe::Spread, nowait_probe::Step, nowait_probe::Subject, nowait_probe::Traced)>();
    shared::<(nowait_probe::Verdict, nowait_probe::Watched, nowait_probe::Way)>();
}
