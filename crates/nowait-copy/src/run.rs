//! Runs a copy, from its start to its report.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Instant;

use nowait::embed;
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::error::{Failure, FailureKind, Operation, Result};
use crate::file;
use crate::options::{Follow, Options, Reflink, Sparse, SyncPolicy};
use crate::report::{Progress, Report};
use crate::shared::Shared;
use crate::tree::{Filter, Top, Tree, stat_argument};

/// Number of threads for each processor: some wait for a disk while others copy.
const THREADS_PER_PROCESSOR: usize = 2;

/// Copies a file or a tree, and blocks until it is done. If the target is a directory, the copy is
/// created in it under the source's name, as by `cp`.
///
/// Returns an error only for invalid arguments, before any change. If a file cannot be copied, the
/// copy continues, and the report lists it in [`failures`](Report::failures).
pub fn copy(source: impl AsRef<Path>, target: impl AsRef<Path>, options: &Options) -> Result<Report> {
    copy_all(&[source], target, options)
}

/// Copies several files and trees to a directory: see [`copy`].
pub fn copy_all<P: AsRef<Path>>(sources: &[P], target: impl AsRef<Path>, options: &Options) -> Result<Report> {
    Plan::new(sources, target.as_ref(), options)?.run()
}

/// Starts copying on a new thread: see [`copy_all`].
pub fn start<P: AsRef<Path>>(sources: &[P], target: impl AsRef<Path>, options: &Options) -> Result<Started> {
    let plan = Plan::new(sources, target.as_ref(), options)?;
    let shared = plan.shared.clone();
    let end = Arc::new(Completion::default());
    let guard = CompletesOnDrop(end.clone());
    let work = embed::spawn("nowait-copy", move || {
        let _guard = guard;
        plan.run()
    });
    let thread = work.map_err(|error| Failure::from_io(Operation::Copy, target.as_ref(), &error))?;
    Ok(Started { shared, thread, end })
}

/// Copy in progress. Dropping it does not stop the copy.
pub struct Started {
    shared: Arc<Shared>,
    thread: JoinHandle<Result<Report>>,
    end: Arc<Completion>,
}

impl Started {
    /// Returns the progress; makes no system call.
    pub fn progress(&self) -> Progress {
        self.shared.meter.progress()
    }

    /// Cancels the copy. Each file in progress stops after at most one block, and its old target
    /// stays. With [`Options::resume`] the copied part is kept. Returns at once;
    /// [`wait`](Started::wait) waits for the end.
    pub fn cancel(&self) {
        self.shared.meter.cancel();
    }

    /// Returns a closure that another thread can call to get the progress.
    pub fn watcher(&self) -> impl Fn() -> Progress + Send + Sync + 'static {
        let shared = self.shared.clone();
        move || shared.meter.progress()
    }

    /// Returns true if [`wait`](Started::wait) would not block.
    pub fn is_finished(&self) -> bool {
        self.end.lock().is_over
    }

    /// Returns a future that is ready when the copy has ended, for event loops and executors. There
    /// may be several such futures; dropping one does not stop the copy.
    pub fn ended(&self) -> Ended {
        self.end.new_future()
    }

    /// Blocks until the copy has ended; returns its report.
    pub fn wait(self) -> Result<Report> {
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl std::fmt::Debug for Started {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Started").field("progress", &self.progress()).finish_non_exhaustive()
    }
}

/// End of a copy, and the futures that wait for it.
#[derive(Default)]
struct Completion(Mutex<Waiters>);

#[derive(Default)]
struct Waiters {
    is_over: bool,
    /// Wakers of waiting futures, each with the future's number.
    wakers: Vec<(u64, Waker)>,
    numbered: u64,
}

impl Completion {
    fn lock(&self) -> MutexGuard<'_, Waiters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn new_future(self: &Arc<Self>) -> Ended {
        let mut waiters = self.lock();
        waiters.numbered += 1;
        Ended { end: self.clone(), number: waiters.numbered }
    }
}

/// Reports the end of the copy when the copy's thread drops it.
struct CompletesOnDrop(Arc<Completion>);

impl Drop for CompletesOnDrop {
    fn drop(&mut self) {
        let mut waiters = self.0.lock();
        waiters.is_over = true;
        let wakers = std::mem::take(&mut waiters.wakers);
        drop(waiters);
        wakers.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

/// Future of [`Started::ended`].
#[must_use = "a future does nothing until it is awaited"]
pub struct Ended {
    end: Arc<Completion>,
    number: u64,
}

impl Ended {
    /// Replaces the registered waker; returns true if the copy has ended.
    fn leave(&self, waker: Option<Waker>) -> bool {
        let mut waiters = self.end.lock();
        let is_over = waiters.is_over;
        let at = waiters.wakers.iter().position(|(number, _)| *number == self.number);
        let old = at.map(|at| waiters.wakers.swap_remove(at));
        waiters.wakers.extend(waker.filter(|_| !is_over).map(|waker| (self.number, waker)));
        drop(waiters);
        // Dropping a waker runs user code, so the lock is not held.
        drop(old);
        is_over
    }
}

impl Clone for Ended {
    fn clone(&self) -> Ended {
        self.end.new_future()
    }
}

impl Future for Ended {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.leave(Some(context.waker().clone())) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.leave(None);
    }
}

impl std::fmt::Debug for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ended").field("is_over", &self.end.lock().is_over).finish()
    }
}

/// Sources and target, checked before any change.
struct Plan {
    shared: Arc<Shared>,
    filter: Filter,
    tops: Vec<Top>,
}

impl Plan {
    fn new<P: AsRef<Path>>(sources: &[P], target: &Path, options: &Options) -> Result<Self> {
        let wrong =
            |detail: &'static str| Err(Failure::new(Operation::Copy, target, FailureKind::Usage).with_detail(detail));
        if sources.is_empty() {
            return wrong("no source is given");
        }
        if options.no_target_directory && sources.len() > 1 {
            return wrong("several sources cannot have the same name");
        }
        if options.reflink == Reflink::Always && options.sparse != Sparse::Auto {
            return wrong("blocks that are shared keep the holes of the source; leave out the choice of holes");
        }
        let is_directory = match rustix::fs::stat(target) {
            // On a simulated disk, the target is always the name of a file.
            _ if options.instance.is_some() => false,
            Ok(stat) => FileType::from_raw_mode(stat.st_mode).is_dir(),
            // The copy itself reports the cause.
            Err(_) => false,
        };
        let into_directory = is_directory && !options.no_target_directory;
        if !into_directory && sources.len() > 1 {
            return Err(Failure::new(Operation::Copy, target, FailureKind::Usage)
                .with_detail("with several sources, the target must be a directory")
                .with_missing(target, "create it first"));
        }
        let top = |source: &P| match into_directory {
            true => Top::into_directory(source.as_ref(), target),
            false if options.replace_target_link => Top::as_target(source.as_ref(), target),
            false => Top::as_target(source.as_ref(), &followed(source.as_ref(), target, options.follow)?),
        };
        let mut tops = sources.iter().map(top).collect::<Result<Vec<Top>>>()?;
        Top::put_in_rounds(&mut tops);
        Ok(Plan { filter: Filter::new(options)?, tops, shared: Arc::new(Shared::new(options.clone())) })
    }

    fn run(self) -> Result<Report> {
        let Plan { shared, filter, tops } = self;
        let began = Instant::now();
        if shared.options.instance.is_some() {
            return Ok(by_instance(&shared, &tops));
        }
        let threads = match tops.as_slice() {
            [only] if !only.is_directory(shared.options.follow) => 1,
            _ => threads(&shared.options),
        };
        let totals = shared.options.count_first;
        let tree = Tree::new(&shared, filter, tops, threads, totals);
        std::thread::scope(|scope| {
            if totals {
                // Without this thread, only the totals and the time left are unknown.
                _ = embed::spawn_scoped(scope, "nowait-count", || tree.count_all());
            }
            for round in 0.. {
                if !tree.begin_round(round) {
                    break;
                }
                std::thread::scope(|scope| {
                    for thread in 1..threads {
                        let (tree, name) = (&tree, format!("nowait-copy-{thread}"));
                        // A failed spawn only slows the copy down.
                        _ = embed::spawn_scoped(scope, &name, move || tree.work(thread));
                    }
                    tree.work(0);
                });
            }
        });
        if shared.options.sync == SyncPolicy::All {
            tree.sync_all();
        }
        let is_walked = shared.meter.progress().is_walked || !shared.meter.is_cancelled();
        shared.meter.walked();
        let mut report = tree.into_report();
        if let Some(panic) = shared.take_panic() {
            std::panic::resume_unwind(panic);
        }
        report.files_found = is_walked.then(|| shared.meter.progress().files_found);
        report.is_cancelled |= shared.meter.is_cancelled();
        report.elapsed = began.elapsed();
        Ok(report)
    }
}

/// Returns the target of a regular file. If it is a symbolic link to a file, returns that file.
fn followed(source: &Path, target: &Path, follow: Follow) -> Result<PathBuf> {
    let is_link = |path: &Path| rustix::fs::lstat(path).map(|stat| FileType::from_raw_mode(stat.st_mode).is_symlink());
    // A link or a directory replaces a link at the target.
    let is_file = stat_argument(source, follow).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file());
    if !is_file || is_link(target) != Ok(true) {
        return Ok(target.to_path_buf());
    }
    match std::fs::canonicalize(target) {
        // Links in a circle lead to no file: the copy replaces the link.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => Ok(target.to_path_buf()),
        found => found.map_err(|error| {
            Failure::from_io(Operation::Open, target, &error)
                .with_detail("it is a broken symbolic link")
                .with_advice("remove the link, or create the file that it refers to")
        }),
    }
}

/// Copies files by the operations of one instance.
fn by_instance(shared: &Shared, tops: &[Top]) -> Report {
    let mut report = Report::default();
    for top in tops {
        match file::copy_by_instance(shared, &top.source(), &top.target()) {
            Ok(outcome) => {
                report.files += 1;
                report.bytes += outcome.bytes;
                report.resumed_bytes += outcome.resumed_bytes;
                report.verified += u64::from(outcome.is_verified);
                report.warnings.extend(outcome.warnings);
            }
            Err(failure) => report.failures.push(failure),
        }
    }
    report.is_cancelled = shared.meter.is_cancelled();
    report.files_found = (!report.is_cancelled).then_some(tops.len() as u64);
    report
}

fn threads(options: &Options) -> usize {
    match options.jobs {
        Some(jobs) => jobs as usize,
        None => std::thread::available_parallelism().map_or(2, |processors| processors.get()) * THREADS_PER_PROCESSOR,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicU32);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn the_end_wakes_each_future_that_waits_once() {
        let end = Arc::new(Completion::default());
        let futures: Vec<(Ended, Arc<Wakes>)> = (0..3).map(|_| (end.new_future(), Arc::default())).collect();
        let polls = |(future, wakes): &(Ended, Arc<Wakes>)| future.leave(Some(Waker::from(wakes.clone())));
        assert!(!futures.iter().any(polls));
        assert!(!futures.iter().any(polls));
        let mut futures = futures;
        let (_, dropped) = futures.pop().unwrap();
        assert_eq!(Arc::strong_count(&dropped), 1, "a future that is gone has left no waker");
        drop(CompletesOnDrop(end.clone()));
        assert!(futures.iter().all(|(_, wakes)| wakes.0.load(Ordering::SeqCst) == 1));
        assert!(futures.iter().all(polls));
        assert_eq!(end.lock().wakers.len(), 0);
    }

    /// Symptom: a task that awaited a copy was never woken after the copy's thread panicked.
    #[test]
    fn a_panic_ends_a_copy() {
        let end = Arc::new(Completion::default());
        let guard = CompletesOnDrop(end.clone());
        let ended = end.new_future();
        let thread = std::thread::spawn(move || {
            let _guard = guard;
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(thread.join().is_err());
        assert!(ended.leave(None));
    }

    /// Symptoms: the other threads of a copy waited for the end of the task that had panicked; and the
    /// payload was that of the observer or of `std::thread::scope`, depending on the thread that panicked.
    /// The copy ends as after a cancellation, and `copy` and `wait` panic with the first payload.
    #[test]
    fn a_panic_of_an_observer_ends_a_copy() {
        use std::os::unix::fs::PermissionsExt;
        use std::panic::{AssertUnwindSafe, catch_unwind};
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("source");
        std::fs::create_dir(&source).unwrap();
        std::fs::set_permissions(&source, std::fs::Permissions::from_mode(0o755)).unwrap();
        (0..400).for_each(|number| std::fs::write(source.join(number.to_string()), "whole").unwrap());
        for round in 0..20 {
            let target = dir.path().join(format!("target{round}"));
            let panics = Arc::new(AtomicU32::new(0));
            let counted = panics.clone();
            let options = Options::new().jobs(4).on_event(move |event| {
                if matches!(event, crate::Event::Copied { .. }) {
                    std::panic::resume_unwind(Box::new(counted.fetch_add(1, Ordering::SeqCst)));
                }
            });
            let copied = match round % 2 {
                0 => catch_unwind(AssertUnwindSafe(|| copy(&source, &target, &options))),
                _ => catch_unwind(AssertUnwindSafe(|| start(&[&source], &target, &options)?.wait())),
            };
            let payload = copied.unwrap_err();
            let number = payload.downcast_ref::<u32>().copied();
            assert!(number.is_some_and(|number| number < panics.load(Ordering::SeqCst)), "{round}: {number:?}");
            let files: Vec<_> = std::fs::read_dir(&target).unwrap().map(|entry| entry.unwrap().path()).collect();
            assert!(files.iter().all(|file| std::fs::read(file).unwrap() == b"whole"), "{round}: {files:?}");
            assert!(files.len() < 400, "{round}: the copy went on to its end");
            assert_eq!(std::fs::metadata(&target).unwrap().permissions().mode() & 0o7777, 0o755, "{round}");
        }
    }
}
