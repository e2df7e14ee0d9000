//! Probes how the kernel serves each kind of file request at a path, and by which route `nowait`
//! sends it.
//!
//! A file system may claim support that it lacks, so the probe tries each request. It creates a
//! scratch file beside the examined one, with the same attributes, and brings it into the required
//! state. It then submits single requests to a ring. Each request was complete when its submission
//! returned, completed later, or went to a kernel worker. The probe repeats this with batches and
//! with larger requests ([`Row::steps`]): above some depth a device's queue is full, and
//! submissions sleep.
//!
//! Finally the probe makes single requests through a [`File`] of `nowait` on another scratch file,
//! and reads the route from its counters. This runs the library's own selector, not a second set of
//! rules. The library does not use the probe: it learns from the operations of each file.
//!
//! ```
//! # fn main() -> nowait::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path();
//! use nowait_probe::Outcome;
//!
//! let report = nowait_probe::probe(path)?;
//! for row in &report.scratch {
//!     if let Outcome::Seen(rates) = &row.ring {
//!         println!("{}: {} of {} by a kernel worker", row.case.name(), rates.worker, rates.requests);
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Side effects
//!
//! Scratch files have no name, and disappear when closed. The probe reads some pages of the
//! examined file, which puts them into the page cache. A direct read first makes the kernel write
//! back those pages if they are dirty. The probe never writes to the file, and drops no pages from
//! the cache unless [`Options::evict`] is set. The access time does not change if the kernel
//! permits (`O_NOATIME`).
//!
//! # Limits
//!
//! * The metadata of a scratch file is cached. On a file with uncached metadata, a submission may
//!   sleep to read it.
//! * A scratch file lacks the examined file's history. On btrfs, a file that once had preallocated
//!   space is written inline, but its scratch file is not.
//!
//! # Reliability
//!
//! Controls are requests whose handling is known: some are forced onto a worker, others need none.
//! If the probe does not observe this handling, its verdict is "cannot tell". It also compares each
//! request with the kernel's tracepoints ([`Traced`]), if they can be counted. Otherwise
//! [`Report::unconfirmed`] returns the reason and the next step.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod abilities;
mod case;
mod depth;
#[cfg(feature = "json")]
mod json;
mod kernel;
mod observer;
mod place;
mod reach;
mod reason;
mod report;
mod ring;
mod summary;
mod tracepoints;
mod twin;
mod verdict;
mod watch;
mod workers;

use std::fs::{self, File as StdFile};
use std::io::{Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{Advice, IFlags, Mode, OFlags};
use rustix::io::Errno;

pub use abilities::Abilities;
pub use case::Case;
use kernel::{PAGE, page_is_cached};
use nowait::{Buf, Error, ErrorKind, ErrorOp, File, Nowait, OpenOptions, Result};
use observer::{Blind, Observer};
pub use place::{AtomicWrites, Device, Place};
pub use reach::Reach;
pub use reason::Reason;
pub use report::{Controls, Evidence, Outcome, Rates, Report, Row, Served, Spread, Step, Subject, Traced};
use twin::errno_of;
pub use verdict::{Verdict, Way};
pub use watch::{KernelThread, Watched, watch};
use workers::Workers;

/// Value of [`Error::operation`] for a probe.
pub const PROBE: ErrorOp = ErrorOp::Other("probe");

const REQUESTS: u32 = 32;
const REQUESTS_MAX: u32 = 4096;

/// Probes how files are served at `path`: a file, a directory, or a block device. See
/// [`Options::run`].
///
/// # Errors
/// See [`Options::run`].
pub fn probe(path: impl AsRef<Path>) -> Result<Report> {
    Options::new().run(path)
}

/// Options of a probe.
#[derive(Clone, Debug)]
pub struct Options {
    requests: u32,
    evict: bool,
    shallow: bool,
    /// True to defer completions if the kernel supports it. False behaves like a kernel before 6.1.
    defer: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options::new()
    }
}

impl Options {
    /// Returns the defaults: 32 single requests of each kind, then batches and larger requests; no
    /// page is dropped from the page cache.
    pub fn new() -> Self {
        Options { requests: REQUESTS, evict: false, shallow: false, defer: true }
    }

    /// Sets the number of single requests of each kind, up to 4096. A scratch file contains 16 KiB
    /// for each request. Default: 32.
    pub fn requests(mut self, requests: u32) -> Self {
        self.requests = requests.clamp(1, REQUESTS_MAX);
        self
    }

    /// Allows the probe to drop the file's pages from the page cache, which ensures cold reads.
    /// Default: false.
    pub fn evict(mut self, evict: bool) -> Self {
        self.evict = evict;
        self
    }

    /// Makes only single requests of at most one page. Default: false, which adds batches of 32,
    /// 256 and 1024 requests, and requests of 128 KiB and 1 MiB at depths 1 and 32
    /// ([`Row::steps`]). The batches and larger requests need 33 MiB of disk and of memory, and
    /// write about 300 MiB.
    pub fn shallow(mut self, shallow: bool) -> Self {
        self.shallow = shallow;
        self
    }

    /// Runs the probe, which takes a few seconds, or about one if [`shallow`](Options::shallow). It
    /// runs on a new thread with separate kernel workers. The path determines what is examined:
    ///
    /// * a directory: scratch files in it;
    /// * a file: scratch files beside it, and reads of the file;
    /// * a block device: reads of the device.
    ///
    /// # Errors
    /// Those of `stat(2)`; [`ErrorKind::NotSeekable`] for a FIFO, a socket or a terminal; those of
    /// `open(2)` for a block device that may not be read. The report contains all other errors.
    pub fn run(&self, path: impl AsRef<Path>) -> Result<Report> {
        let path: Arc<Path> = Arc::from(path.as_ref());
        let failed = |error: std::io::Error| Error::from_raw_os_error(PROBE, errno_of(&error).raw_os_error()).at(&path);
        std::thread::scope(|scope| {
            let thread = nowait::embed::spawn_scoped(scope, "nowait-probe", || self.run_here(&path)).map_err(failed)?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn run_here(&self, path: &Arc<Path>) -> Result<Report> {
        let failed = |error: &std::io::Error| Error::from_raw_os_error(PROBE, errno_of(error).raw_os_error()).at(path);
        let kind = fs::metadata(&**path).map_err(|error| failed(&error))?.file_type();
        let subject = match kind {
            kind if kind.is_dir() => Subject::Directory,
            kind if kind.is_file() => Subject::File,
            kind if kind.is_block_device() => Subject::Device,
            _ => return Err(Error::new(PROBE, ErrorKind::NotSeekable).at(path)),
        };
        let real = fs::canonicalize(&**path).map_err(|error| failed(&error))?;
        let nowait = Nowait::builder().build()?;
        let mut reach = Reach::of(&nowait);
        let file = match (subject, open_quietly(&real)) {
            (Subject::Directory, file) => {
                file.map_err(|errno| Error::from_raw_os_error(ErrorOp::Open, errno.raw_os_error()).at(path)).map(Some)
            }
            (_, file) => {
                file.map(Some).map_err(|errno| Error::from_raw_os_error(ErrorOp::Open, errno.raw_os_error()).at(path))
            }
        };
        let (file, mut file_error) = match file {
            Ok(file) => (file, None),
            Err(error) if subject == Subject::File => (None, Some(error)),
            Err(error) => return Err(error),
        };
        let dir = match subject {
            Subject::Directory => Some(real.clone()),
            Subject::File => real.parent().map(Path::to_owned),
            Subject::Device => None,
        };
        let attributes = file.as_ref().map_or(IFlags::empty(), |opened| twin::attributes(&opened.file));
        let mut place = file.as_ref().map_or_else(Place::default, |opened| Place::of(&opened.file));
        place.attributes = twin::attribute_names(attributes);

        let mut eye = Eye::open(if self.shallow { 1 } else { depth::DEPTH_MAX }, self.defer);
        reach.defers = eye.defers();
        let mut abilities = Abilities::default();
        let (mut scratch, mut scratch_error) = (Vec::new(), None);
        if let Some(dir) = &dir {
            match self.scratch(dir, attributes, &nowait, &mut eye, &mut abilities) {
                Ok(rows) => scratch = rows,
                Err(error) => {
                    let error = Error::from_raw_os_error(PROBE, errno_of(&error).raw_os_error()).at(dir);
                    let text = "no scratch file can be made and filled there; name a directory that takes new files";
                    scratch_error = Some(error.with_advice(text));
                }
            }
        }
        let (mut rows, mut size_of_reads) = (Vec::new(), None);
        if let (Some(opened), true) = (&file, subject != Subject::Directory) {
            match self.reads(opened, &nowait, &mut eye, &mut abilities) {
                Ok((size, read)) => (size_of_reads, rows) = (Some(size), read),
                Err(error) => file_error = Some(failed(&error)),
            }
        }
        let mut steps_missing = self.shallow.then(|| "only one request at a time was asked for".to_owned());
        if !self.shallow {
            if let (Some(dir), None) = (&dir, &scratch_error) {
                steps_missing = depth::of_scratch(dir, attributes, &mut eye, &mut scratch);
            }
            if let (Some(opened), Some(size)) = (&file, size_of_reads) {
                let missing = depth::of_file(&opened.file, size, &mut eye, &mut rows);
                steps_missing = steps_missing.or(missing);
            }
        }
        let evidence = eye.evidence();
        let controls = eye.close();
        let mut report = Report {
            path: path.to_path_buf(),
            subject,
            reach,
            place,
            abilities,
            evidence,
            controls,
            scratch,
            scratch_error,
            file: rows,
            file_error,
            steps_missing,
        };
        report.judge();
        Ok(report)
    }

    /// Returns a row for each case, on scratch files.
    fn scratch(
        &self,
        dir: &Path,
        attributes: IFlags,
        nowait: &Nowait,
        eye: &mut Eye,
        abilities: &mut Abilities,
    ) -> std::io::Result<Vec<Row>> {
        abilities.try_writes(dir, attributes, nowait)?;
        let mut rows = Vec::new();
        for case in Case::ALL {
            let make = || twin::make(dir, attributes, case, self.requests);
            let tested = match make() {
                Ok(tested) => tested,
                // The file system lacks direct I/O or preallocation.
                Err(error) if case.is_direct() || case == Case::AppendAllocated => {
                    rows.push(Row::refused(case, &error));
                    continue;
                }
                Err(error) => return Err(error),
            };
            let ring = eye.look(case, &tested, 1);
            drop(tested);
            let tested = make()?;
            rows.push(Row {
                case,
                ring,
                nowait: serve(nowait, eye.workers(), case, &tested, false, abilities),
                reason: None,
                steps: Vec::new(),
            });
        }
        Ok(rows)
    }

    /// Returns the file's size, and a row for each case that only reads, on the file itself.
    fn reads(
        &self,
        opened: &Opened,
        nowait: &Nowait,
        eye: &mut Eye,
        abilities: &mut Abilities,
    ) -> std::io::Result<(u64, Vec<Row>)> {
        let file = &opened.file;
        // A seek also returns the size of a block device.
        let size = (&*file).seek(SeekFrom::End(0))?;
        if size == 0 {
            return Ok((size, Vec::new()));
        }
        abilities.atomic_writes = abilities.atomic_writes.or_else(|| AtomicWrites::of(file));
        rustix::fs::fadvise(file, 0, None, Advice::Random)?;
        if self.evict {
            rustix::fs::fadvise(file, 0, None, Advice::DontNeed)?;
        }
        let pages = size / PAGE as u64;
        let count = (2 * u64::from(self.requests)).min(pages.max(1));
        let places: Vec<u64> = (0..count).map(|number| number * (pages / count).max(1) * PAGE as u64).collect();
        let cold: Vec<u64> =
            places.iter().copied().filter(|offset| !page_is_cached(file.as_fd(), *offset).unwrap_or(true)).collect();
        let mut rows = Vec::new();
        // Cold reads first, since they leave their pages cached.
        for case in [Case::ColdRead, Case::CachedRead, Case::DirectRead, Case::ForcedRead] {
            let direct = match case.is_direct().then(|| twin::direct(file)) {
                Some(Err(error)) => {
                    rows.push(Row::refused(case, &error));
                    continue;
                }
                direct => direct.and_then(std::result::Result::ok),
            };
            let offsets = if case == Case::ColdRead { &cold } else { &places };
            // The ring reads every second offset, and the library the others; if there is one page,
            // both read it.
            let half = |which: usize| {
                let offsets = offsets.iter().skip(if offsets.len() > 1 { which } else { 0 }).step_by(2);
                offsets.copied().take(self.requests as usize).collect::<Vec<u64>>()
            };
            // Reads do not reach beyond the end: the library repeats a short read to verify the
            // end.
            let length = if case.is_direct() { PAGE } else { size.min(PAGE as u64) as usize };
            let mut tested = Tested { file: file.try_clone()?, direct, offsets: half(0), length };
            let ring = eye.look(case, &tested, 1);
            tested.offsets = half(1);
            let served = serve(nowait, eye.workers(), case, &tested, opened.quietly, abilities);
            rows.push(Row { case, ring, nowait: served, reason: None, steps: Vec::new() });
        }
        rows.sort_by_key(|row| Case::ALL.iter().position(|case| *case == row.case));
        Ok((size, rows))
    }
}

/// A file that is open for reading.
struct Opened {
    file: StdFile,
    /// True if reads do not change its access time.
    quietly: bool,
}

fn open_quietly(path: &Path) -> std::result::Result<Opened, Errno> {
    let open = |flags| {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | flags;
        rustix::io::retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty()))
    };
    // Only the owner may set the flag.
    match open(OFlags::NOATIME) {
        Ok(fd) => Ok(Opened { file: fd.into(), quietly: true }),
        Err(_) => Ok(Opened { file: open(OFlags::empty())?.into(), quietly: false }),
    }
}

/// A file in the state that a case requires, and the offsets of its requests.
struct Tested {
    file: StdFile,
    direct: Option<StdFile>,
    offsets: Vec<u64>,
    /// Length of a request: less than a page if the file is shorter.
    length: usize,
}

impl Tested {
    fn descriptor(&self) -> &StdFile {
        self.direct.as_ref().unwrap_or(&self.file)
    }

    /// Brings the page at `offset` into the state that the case requires. False if that is
    /// impossible.
    fn is_ready(&self, case: Case, offset: u64) -> bool {
        let start = offset - offset % PAGE as u64;
        match case {
            Case::ColdRead | Case::ColdPartialWrite => !page_is_cached(self.file.as_fd(), start).unwrap_or(true),
            Case::CachedRead | Case::CachedOverwrite => {
                let mut bytes = vec![0; self.length.max(PAGE)];
                self.file.read_at(&mut bytes, start).is_ok()
            }
            Case::Sync => self.file.write_all_at(&[0; PAGE], start).is_ok(),
            _ => true,
        }
    }
}

/// Observes the handling of requests, or contains the reason why it cannot.
enum Eye {
    Open { observer: Box<Observer>, controls: Controls },
    Blind(String),
}

impl Eye {
    fn open(depth: u32, defer: bool) -> Eye {
        let mut observer = match Observer::new(depth, defer) {
            Ok(observer) => Box::new(observer),
            Err(Blind::Refused(errno)) => return Eye::Blind(format!("io_uring is refused: {errno}")),
            Err(Blind::Broken(errno)) => return Eye::Blind(format!("the ring cannot be used: {errno}")),
            Err(Blind::NoWorkers(why)) => {
                let text = "kernel workers cannot be seen in /proc/self/task, as before Linux 5.12, or not told apart; and the \
                            kernel's tracepoints cannot be counted";
                return Eye::Blind(format!("{text}: {why}"));
            }
        };
        let mut controls = Controls::default();
        match controls.add(&mut observer) {
            Ok(()) => Eye::Open { observer, controls },
            Err(errno) => Eye::Blind(format!("the ring cannot be used: {errno}")),
        }
    }

    fn observer(&self) -> Option<&Observer> {
        match self {
            Eye::Open { observer, .. } => Some(observer),
            Eye::Blind(_) => None,
        }
    }

    fn workers(&self) -> Option<&Workers> {
        self.observer()?.workers.as_ref()
    }

    fn evidence(&self) -> Option<Evidence> {
        self.observer().map(Observer::evidence)
    }

    fn defers(&self) -> bool {
        self.observer().is_some_and(Observer::defers)
    }

    /// Maximum number of requests of one submission; zero if requests cannot be observed.
    fn depth_max(&self) -> u32 {
        self.observer().map_or(0, Observer::depth_max)
    }

    /// Makes the requests of a case, `depth` of them per submission.
    fn look(&mut self, case: Case, tested: &Tested, depth: u32) -> Outcome {
        let observer = match self {
            Eye::Open { observer, .. } => observer,
            Eye::Blind(why) => return Outcome::CannotTell(why.clone()),
        };
        let is_compared = !matches!(observer.evidence(), Evidence::Threads { .. });
        let mut rates = Rates { traced: is_compared.then(Traced::default), ..Rates::default() };
        let (mut submits_ns, mut totals_ns) = (Vec::new(), Vec::new());
        for offsets in tested.offsets.chunks(depth.max(1) as usize) {
            let ready = offsets.iter().filter(|offset| tested.is_ready(case, **offset));
            let asks: Vec<_> = ready.map(|offset| case.ask(*offset, tested.length)).collect();
            // A submission of far fewer requests would be one of another depth.
            if asks.len() * 8 < offsets.len() * 7 || asks.is_empty() {
                continue;
            }
            let seen = match observer.ask(tested.descriptor().as_fd(), &asks) {
                Ok(seen) => seen,
                Err(errno) => {
                    *self = Eye::Blind(format!("the ring cannot be used any more: {errno}"));
                    return Outcome::CannotTell(format!("the ring was given up: {errno}"));
                }
            };
            match seen.errno {
                Some(errno) if rates.requests == 0 && seen.failed as usize == asks.len() => {
                    return Outcome::Refused(errno.raw_os_error());
                }
                Some(_) => {}
                None => {
                    submits_ns.push(seen.submit_ns);
                    totals_ns.push(seen.total_ns);
                }
            }
            rates.add(asks.len() as u32, &seen);
        }
        (rates.submit_ns, rates.total_ns) = (Spread::of(submits_ns), Spread::of(totals_ns));
        if rates.requests == 0 { Outcome::NotInState } else { Outcome::Seen(rates) }
    }

    /// Repeats the controls, since observation may have stopped working meanwhile.
    fn close(self) -> Option<Controls> {
        let Eye::Open { mut observer, mut controls } = self else { return None };
        controls.add(&mut observer).ok()?;
        Some(controls)
    }
}

/// Makes the requests of a case through this library.
fn serve(
    nowait: &Nowait,
    workers: Option<&Workers>,
    case: Case,
    tested: &Tested,
    quietly: bool,
    abilities: &mut Abilities,
) -> Option<Served> {
    if case == Case::ForcedRead {
        return None;
    }
    let mut options = OpenOptions::new();
    options.read(true).write(!case.is_read()).direct(case.is_direct());
    if quietly {
        options.custom_flags(libc::O_NOATIME);
    }
    let file = options.open_in(nowait, twin::path_of(&tested.file)).wait().ok()?;
    file.advise(0, 0, nowait::Advice::Random).wait().ok()?;
    let mut served = Served::default();
    let mut totals_ns = Vec::new();
    let mut at_rest = workers.and_then(Workers::at_rest);
    for offset in &tested.offsets {
        if !tested.is_ready(case, *offset) {
            continue;
        }
        let before = nowait.stats();
        let begun = Instant::now();
        let done = nowait::block_on(request(&file, case, *offset, tested.length));
        totals_ns.push(begun.elapsed().as_nanos() as u64);
        let after = nowait.stats();
        served.requests += 1;
        served.failed += u32::from(!done);
        served.inline += (after.inline - before.inline) as u32;
        served.ring += (after.ring - before.ring) as u32;
        served.aio += (after.aio - before.aio) as u32;
        served.pool += (after.pool - before.pool) as u32;
        // Only a ring has workers. Examining the workers after each other request would slow down
        // the next one, since caches go cold.
        if let (Some(workers), true) = (workers, after.ring > before.ring) {
            served.worker += u32::from(at_rest.is_some_and(|before| !workers.ran_since(&before).is_empty()));
            at_rest = workers.at_rest();
        }
    }
    served.total_ns = Spread::of(totals_ns);
    abilities.learn(case, &file);
    (served.requests > 0).then_some(served)
}

/// Makes a request through the library; returns true if it succeeded.
async fn request(file: &File, case: Case, offset: u64, length: usize) -> bool {
    match case {
        Case::Sync => file.sync_data().await.is_ok(),
        Case::Append | Case::AppendAllocated | Case::DirectAppend => file.append(Buf::zeroed(length)).await.is_ok(),
        case if case.is_read() => file.read_at(Buf::zeroed(length), offset).await.is_ok(),
        _ => file.write_all_at(Buf::zeroed(length), offset).await.is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the whole probe as on Linux 5.10 and 5.15, on a ring without SINGLE_ISSUER and
    /// DEFER_TASKRUN.
    #[test]
    fn a_kernel_that_keeps_no_completions_back_is_probed() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let report = Options { defer: false, ..Options::new() }.run(dir.path()).unwrap();
        if report.evidence.is_none() {
            return eprintln!("skipped: {:?}", report.row(Case::Sync));
        }
        assert!(!report.reach.defers);
        assert!(report.controls.is_some_and(|controls| controls.hold()), "{:?}", report.controls);
        assert!(report.scratch_error.is_none(), "{:?}", report.scratch_error);
        for row in &report.scratch {
            let steps = row.steps.iter().map(|step| &step.ring);
            for ring in [&row.ring].into_iter().chain(steps) {
                let Outcome::Seen(rates) = ring else { continue };
                let sum = rates.inline + rates.asynchronous + rates.worker + rates.unclear;
                assert_eq!((sum, rates.failed), (rates.requests, 0), "{}: {rates:?}", row.case.name());
                if let Some(traced) = rates.traced {
                    assert_eq!(traced.inline_differs, 0, "what is inline is not compared here: {rates:?}");
                    assert_eq!(traced.worker_differs, 0, "{}: {rates:?}", row.case.name());
                }
            }
        }
        for case in [Case::Sync, Case::ForcedRead] {
            let Some(Outcome::Seen(rates)) = report.row(case).map(|row| &row.ring) else { panic!("{}", case.name()) };
            assert_eq!(rates.worker + rates.unclear, rates.requests, "{}: {rates:?}", case.name());
        }
    }
}

/// The guide's examples, as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/probe.md")]
struct Guide;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
