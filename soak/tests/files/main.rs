//! Tasks of every kind of executor change and read the same files in every way of calling, and give
//! up what they started, for `NOWAIT_SOAK_SECONDS` in each environment. Every byte that is read
//! must be one that some order of the changes explains, and nothing may hang.

#[path = "../../../crates/nowait/tests/common/mod.rs"]
mod common;
mod model;
mod step;
mod world;

use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use common::mounts::{self, Kind, Mount};
use common::{child, rng::Rng};
use nowait::{Engine, Nowait};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use world::{Executor, World};

/// A task that has not ended an operation for so long hangs.
const HANG: Duration = Duration::from_secs(30);

#[test]
fn with_a_ring() {
    child::play("ring");
}

#[test]
fn without_io_uring() {
    child::play("refused");
}

/// Requests are in flight when io_uring is refused.
#[test]
fn without_io_uring_from_some_time_on() {
    child::play("refused later");
}

#[test]
fn with_libaio() {
    child::play("libaio");
}

#[test]
fn with_the_pool() {
    child::play("pool");
}

#[test]
fn strict() {
    child::play("strict");
}

/// No descriptor is free for half of the time.
#[test]
fn with_few_descriptors() {
    child::play("few descriptors");
}

/// No thread can be started from some time on.
#[test]
fn without_more_threads() {
    child::play("no threads");
}

#[test]
fn on_xfs() {
    on(Kind::Xfs);
}

#[test]
fn on_btrfs() {
    on(Kind::Btrfs);
}

#[test]
fn on_ext4_with_a_journal() {
    on(Kind::Ext4);
}

#[test]
fn on_tmpfs() {
    on(Kind::Tmpfs);
}

fn on(kind: Kind) {
    let Some(mount) = Mount::or_skip(kind) else { return };
    child::play_at("mounted", mount.path());
}

#[test]
fn child() {
    let Some(role) = child::role() else { return };
    let nowait = Nowait::builder().write_bytes_max(256 << 10, 1 << 20).pool_threads_max(6);
    let nowait = match &*role {
        "libaio" => nowait.engine(Engine::Aio),
        "pool" => nowait.engine(Engine::Pool),
        "strict" => nowait.strict(true),
        "refused" => {
            refuse_io_uring();
            nowait
        }
        _ => nowait,
    };
    let nowait = nowait.build().unwrap();
    let trouble = match &*role {
        "refused later" => Trouble::NoRing,
        "few descriptors" => Trouble::FewDescriptors,
        "no threads" => Trouble::NoThreads,
        _ => Trouble::None,
    };
    if role == "mounted" {
        return torture(&nowait, &child::path(), trouble);
    }
    torture(&nowait, mounts::temp_dir().path(), trouble);
}

/// What happens to the process while its tasks run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trouble {
    None,
    /// io_uring is refused after a third of the time.
    NoRing,
    /// No descriptor is free, every other moment.
    FewDescriptors,
    /// No thread can be started after a third of the time.
    NoThreads,
}

/// Refuses io_uring to all threads of this process from now on.
fn refuse_io_uring() {
    refuse(&[libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register], libc::EPERM);
}

/// Answers `errno` to system calls of all threads of this process from now on.
fn refuse(calls: &[libc::c_long], errno: libc::c_int) {
    let filter = SeccompFilter::new(
        calls.iter().map(|call| (*call, vec![])).collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(errno as u32),
        std::env::consts::ARCH.try_into().unwrap(),
    );
    let program: BpfProgram = filter.unwrap().try_into().unwrap();
    seccompiler::apply_filter_all_threads(&program).unwrap();
}

/// Takes the descriptors that are free, until it is dropped.
struct NoDescriptors(Rlimit);

impl NoDescriptors {
    fn new() -> NoDescriptors {
        let limit = getrlimit(Resource::Nofile);
        let lowest = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
        setrlimit(Resource::Nofile, Rlimit { current: Some(lowest), ..limit }).unwrap();
        NoDescriptors(limit)
    }
}

impl Drop for NoDescriptors {
    fn drop(&mut self) {
        setrlimit(Resource::Nofile, self.0).unwrap();
    }
}

fn torture(nowait: &Nowait, dir: &Path, trouble: Trouble) {
    let seed = nowait_soak::seed();
    eprintln!("{}: NOWAIT_TEST_SEED={seed}", dir.display());
    let world = World::new(nowait, dir);
    let mut rng = Rng::new(seed);
    // Takes smol's own descriptors and threads before there are none.
    smol::block_on(smol::Timer::after(Duration::from_millis(1)));
    let mut tasks = Tasks::start(&world, &mut rng);
    let (begun, duration) = (Instant::now(), Duration::from_secs(nowait_soak::seconds()));
    let mut later = matches!(trouble, Trouble::NoRing | Trouble::NoThreads);
    while begun.elapsed() < duration && !world.hangs(HANG) {
        {
            // The executors have theirs by then.
            let takes = trouble == Trouble::FewDescriptors && begun.elapsed() > Duration::from_secs(2);
            let _none_free = takes.then(NoDescriptors::new);
            std::thread::sleep(Duration::from_millis(100));
        }
        std::thread::sleep(Duration::from_millis(100));
        if later && begun.elapsed() > duration / 3 {
            later = false;
            if trouble == Trouble::NoRing {
                refuse_io_uring();
            } else {
                world.may_spawn.store(false, Relaxed);
                // A task may be about to start one.
                std::thread::sleep(Duration::from_secs(1));
                refuse(&[libc::SYS_clone, libc::SYS_clone3], libc::EAGAIN);
            }
        }
    }
    world.stop.store(true, Relaxed);
    tasks.wait(&world);
    world.check_at_the_end(dir);
    eprintln!("{} operations, {} given up: {:?}", world.operations(), world.given_up.load(Relaxed), nowait.stats());
    world.assert_no_fault();
}

/// The threads that run tasks.
struct Tasks(Vec<std::thread::JoinHandle<()>>);

impl Tasks {
    /// Starts 12 tasks each on an attached and another tokio runtime, 4 on a current-thread one, 8
    /// on smol, 6 each on 3 threads of `block_on`, and 3 threads that run one alone.
    fn start(world: &Arc<World>, rng: &mut Rng) -> Tasks {
        let mut number = 0;
        let mut tasks = |executor: Executor, count: usize| -> Vec<_> {
            let task = |_| {
                number += 1;
                step::run(world.clone(), executor, number, Rng::new(rng.next()))
            };
            (0..count).map(task).collect()
        };
        let mut threads = Vec::new();
        let mut thread = |run: Box<dyn FnOnce() + Send>| threads.push(std::thread::spawn(run));
        for (workers, attached) in [(3, true), (2, false)] {
            let (nowait, tasks) = (world.nowait.clone(), tasks(Executor::Tokio, 12));
            thread(Box::new(move || {
                let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build();
                runtime.unwrap().block_on(async {
                    if attached {
                        nowait.attach_tokio().unwrap();
                    }
                    let tasks: Vec<_> = tasks.into_iter().map(tokio::spawn).collect();
                    futures::future::join_all(tasks).await.into_iter().for_each(|task| task.unwrap());
                });
            }));
        }
        let single = tasks(Executor::CurrentThread, 4);
        thread(Box::new(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime, async {
                let tasks = single.into_iter().enumerate();
                let tasks =
                    tasks.map(|(i, task)| if i % 2 == 0 { tokio::spawn(task) } else { tokio::task::spawn_local(task) });
                let tasks: Vec<_> = tasks.collect();
                futures::future::join_all(tasks).await.into_iter().for_each(|task| task.unwrap());
            });
        }));
        let on_smol: Vec<_> = tasks(Executor::Other, 8).into_iter().map(smol::spawn).collect();
        thread(Box::new(move || drop(smol::block_on(futures::future::join_all(on_smol)))));
        for _ in 0..3 {
            let together = tasks(Executor::Other, 6);
            thread(Box::new(move || drop(nowait::block_on(futures::future::join_all(together)))));
            let alone = tasks(Executor::Alone, 1);
            thread(Box::new(move || drop(futures::executor::block_on(futures::future::join_all(alone)))));
        }
        Tasks(threads)
    }

    fn wait(&mut self, world: &World) {
        let until = Instant::now() + 3 * HANG;
        while self.0.iter().any(|thread| !thread.is_finished()) {
            if world.hangs(HANG) || Instant::now() > until {
                world.fault("tasks do not end".into());
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        for thread in self.0.drain(..) {
            if thread.join().is_err() {
                world.fault("a task has panicked".into());
            }
        }
    }
}
