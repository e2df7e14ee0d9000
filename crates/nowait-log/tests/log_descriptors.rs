//! A log in a process that has no descriptor left. In a separate file, since the limit is that of the
//! process.
#![cfg(all(feature = "tokio", target_os = "linux"))]

#[path = "../../nowait/tests/common/mod.rs"]
mod common;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

use common::{Watchdog, mounts};
use nowait::{Nowait, OpenOptions};
use nowait_log::{Durability, Log, Options, Strategy, Submitter, SyncPolicy};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A thread that cannot have a ring of its own, and blocks the runtime to whose ring its blocks go
/// instead, waits for the device and not for a glance of a watcher.
#[test]
fn a_thread_that_blocks_its_runtime_commits_without_a_ring_of_its_own() {
    const COMMITS: u32 = 40;
    let _watchdog = Watchdog::new("commits without a ring of the thread's own", 60);
    let dir = mounts::temp_dir();
    let path = dir.path().join("log");
    let nowait = Nowait::builder().build().unwrap();
    let strategy = Strategy { durability: Durability::Write, by: Submitter::Ring, depth: 1 };
    let options = Options::new().create(true).instance(&nowait).sync(SyncPolicy::Fixed(strategy));
    // On another thread: this one is not to have a ring from it.
    let (log, _) = thread::spawn(move || Log::open(&path, &options).wait()).join().unwrap().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (committing, beside) = (log.clone(), dir.path().join("other"));
    // The root future is served by a watcher, a task by the runtime's ring.
    let task = runtime.spawn(async move {
        nowait.attach_tokio().unwrap();
        std::fs::write(&beside, [1; 4096]).unwrap();
        let file = OpenOptions::new().read(true).open_in(&nowait, &beside).await.unwrap();
        file.read_range(0, 4096).submit().await.unwrap();
        tokio::task::yield_now().await;
        let plain = File::options().write(true).open(&beside).unwrap();
        let time = |work: &dyn Fn()| {
            let began = Instant::now();
            work();
            began.elapsed()
        };
        let least = |work: &dyn Fn()| (0..COMMITS).map(|_| time(work)).min().unwrap();
        let device = least(&|| plain.write_all_at(b"a record", 0).and_then(|()| plain.sync_data()).unwrap());
        let limit = getrlimit(Resource::Nofile);
        let lowest = File::open("/dev/null").unwrap().as_raw_fd() as u64;
        setrlimit(Resource::Nofile, Rlimit { current: Some(lowest), ..limit }).unwrap();
        let commit = least(&|| _ = committing.append(b"a record").wait().unwrap().wait().unwrap());
        setrlimit(Resource::Nofile, limit).unwrap();
        (commit, device)
    });
    let (commit, device) = runtime.block_on(task).unwrap();
    // One that waits for a glance would make all wait for 50 ms; a busy machine holds up some.
    let what = format!("the fastest of {COMMITS} commits took {commit:?}, and a plain write and sync {device:?}");
    assert!(commit < device + Duration::from_millis(25), "{what}");
    log.close().wait().unwrap();
}
