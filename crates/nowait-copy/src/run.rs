//! A copy from its start to its report.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::fs::FileType;
use rustix::io::Errno;

use crate::error::{Failure, FailureKind, Operation, Result};
use crate::file;
use crate::options::{Follow, Options, Sync};
use crate::report::{Progress, Report};
use crate::shared::Shared;
use crate::tree::{Filter, Top, Tree, stat_argument};

/// Threads for each processor: some wait for a disk while others copy.
const THREADS_PER_PROCESSOR: usize = 2;

/// Copies a file or a tree, and blocks until it is done. A target that is a directory gets the
/// copy under the source's name, as with `cp`.
///
/// An error means that nothing was begun: the arguments make no sense together. A file that cannot
/// be copied does not end the copy; it is one of the [`failures`](Report::failures) of the report.
pub fn copy(source: impl AsRef<Path>, target: impl AsRef<Path>, options: &Options) -> Result<Report> {
    copy_all(&[source], target, options)
}

/// Copies several files and trees to a directory: see [`copy`].
pub fn copy_all<P: AsRef<Path>>(sources: &[P], target: impl AsRef<Path>, options: &Options) -> Result<Report> {
    Plan::new(sources, target.as_ref(), options)?.run()
}

/// Starts copying on a thread of its own: see [`copy_all`].
pub fn start<P: AsRef<Path>>(sources: &[P], target: impl AsRef<Path>, options: &Options) -> Result<Started> {
    let plan = Plan::new(sources, target.as_ref(), options)?;
    let shared = plan.shared.clone();
    let work = std::thread::Builder::new().name("nowait-copy".into()).spawn(move || plan.run());
    let thread = work.map_err(|error| Failure::from_io(Operation::Copy, target.as_ref(), &error))?;
    Ok(Started { shared, thread })
}

/// A copy that runs. Dropping it lets it run on.
pub struct Started {
    shared: Arc<Shared>,
    thread: JoinHandle<Result<Report>>,
}

impl Started {
    /// How far it is; costs no system call.
    pub fn progress(&self) -> Progress {
        self.shared.meter.progress()
    }

    /// Ends it: each file within a block, which leaves its old target, and with
    /// [`Options::resume`] what was copied so far. Returns at once; [`wait`](Started::wait) returns
    /// when it is over.
    pub fn cancel(&self) {
        self.shared.meter.cancel();
    }

    /// A function that [cancels](Started::cancel) it, for a signal handler's thread.
    pub fn canceller(&self) -> impl Fn() + Send + std::marker::Sync + 'static {
        let shared = self.shared.clone();
        move || shared.meter.cancel()
    }

    /// A function that returns how far it is, for a thread that shows it.
    pub fn watcher(&self) -> impl Fn() -> Progress + Send + std::marker::Sync + 'static {
        let shared = self.shared.clone();
        move || shared.meter.progress()
    }

    /// True if [`wait`](Started::wait) need not wait.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the end.
    pub fn wait(self) -> Result<Report> {
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl std::fmt::Debug for Started {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Started").field("progress", &self.progress()).finish_non_exhaustive()
    }
}

/// Sources and target, checked as far as that is possible without touching them.
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
            return wrong("no source is named");
        }
        if options.no_target_directory && sources.len() > 1 {
            return wrong("several sources cannot get one name");
        }
        let is_directory = match rustix::fs::stat(target) {
            // On a simulated disk a target is a name.
            _ if options.instance.is_some() => false,
            Ok(stat) => FileType::from_raw_mode(stat.st_mode).is_dir(),
            Err(Errno::LOOP) => return Err(Failure::from_errno(Operation::Open, target, Errno::LOOP)),
            // Whatever it is shows where the copy is made.
            Err(_) => false,
        };
        let into_directory = is_directory && !options.no_target_directory;
        if !into_directory && sources.len() > 1 {
            return Err(Failure::new(Operation::Copy, target, FailureKind::Usage)
                .with_detail("several sources need a target that is a directory")
                .with_advice("make it first"));
        }
        let top = |source: &P| match into_directory {
            true => Top::into_directory(source.as_ref(), target),
            false => Top::as_target(source.as_ref(), &followed(source.as_ref(), target, options.follow)?),
        };
        let mut tops = sources.iter().map(top).collect::<Result<Vec<Top>>>()?;
        Top::mark_repeated(&mut tops);
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
                // Without the totals there is no time left: nothing else is lost.
                _ = std::thread::Builder::new().name("nowait-count".into()).spawn_scoped(scope, || tree.count_all());
            }
            for thread in 1..threads {
                let (tree, name) = (&tree, format!("nowait-copy-{thread}"));
                // With fewer threads it takes longer.
                _ = std::thread::Builder::new().name(name).spawn_scoped(scope, move || tree.work(thread));
            }
            tree.work(0);
        });
        if shared.options.sync == Sync::All {
            tree.sync_all();
        }
        shared.meter.walked();
        let mut report = tree.into_report();
        report.is_cancelled |= shared.meter.is_cancelled();
        report.elapsed = began.elapsed();
        Ok(report)
    }
}

/// The target of a regular file: if it is a symbolic link, what it leads to.
fn followed(source: &Path, target: &Path, follow: Follow) -> Result<PathBuf> {
    let is_link = |path: &Path| rustix::fs::lstat(path).map(|stat| FileType::from_raw_mode(stat.st_mode).is_symlink());
    // A link, or a directory, takes the place of a link.
    let is_file = stat_argument(source, follow).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file());
    if !is_file || is_link(target) != Ok(true) {
        return Ok(target.to_path_buf());
    }
    std::fs::canonicalize(target).map_err(|error| {
        Failure::from_io(Operation::Open, target, &error)
            .with_detail("it is a symbolic link that leads nowhere")
            .with_advice("remove the link, or name what it is to lead to")
    })
}

/// Copies files by the operations of one instance.
fn by_instance(shared: &Shared, tops: &[Top]) -> Report {
    let mut report = Report::default();
    for top in tops {
        match file::copy_by_instance(shared, &top.source(), &top.target()) {
            Ok(outcome) => {
                report.files += 1;
                report.bytes += outcome.bytes;
                report.verified += u64::from(outcome.is_verified);
                report.warnings.extend(outcome.warnings);
            }
            Err(failure) => report.failures.push(failure),
        }
    }
    report.is_cancelled = shared.meter.is_cancelled();
    report
}

fn threads(options: &Options) -> usize {
    match options.jobs {
        Some(jobs) => jobs as usize,
        None => std::thread::available_parallelism().map_or(2, |processors| processors.get()) * THREADS_PER_PROCESSOR,
    }
}
