//! How a file is served: asked of the kernel, request by request, and of this library.
//!
//! A file system that claims support may lack it, so nothing here is looked up. A scratch file
//! beside the one that is asked about, with the same attributes, is brought into a state; then
//! single requests go through a ring that shows what became of each: complete when its submission
//! returned, completed later, or given to a kernel worker. The same requests are then made through
//! a [`File`] of `nowait` on another such file, and its counters say which way it took: the very
//! code that chooses for every file, with what it learned there. There is no second table of rules,
//! and the library does not ask here before it chooses: it learns the same of each file from the
//! file's own operations, where it also sees what happened to that file before.
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
//! # What it leaves alone
//!
//! Scratch files have no name and are gone when they are closed. Of the file itself some pages are
//! read, which puts them into the page cache; nothing is written to it, nothing dropped from the
//! cache unless [`Options::evict`] says so, and its access time stays where the kernel lets it
//! (`O_NOATIME`). A direct read has the kernel write back what is dirty of those pages first.
//!
//! # What it cannot see
//!
//! * Blocks that say where a file's data is are cached for a new file. Where they are not, a ring's
//!   submission sleeps for them.
//! * What happened to a file before: on btrfs one that ever had space allocated ahead is written
//!   inline, its twin is not.
//! * Whether the controls hold tells whether the rest can be believed. They are requests whose way
//!   is known: some that are forced on a worker, and some that need none. Where they fail, the
//!   verdict is that it cannot be told.

mod abilities;
mod case;
mod kernel;
mod place;
mod reach;
mod reason;
mod report;
mod ring;
mod single;
mod twin;
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
pub use place::{AtomicWrites, Device, Place};
pub use reach::Reach;
pub use reason::Reason;
pub use report::{Controls, Evidence, Outcome, Rates, Report, Row, Served, Spread, Subject, Traced};
use single::{Blind, Single};
use twin::errno_of;
pub use watch::{KernelThread, Watched, watch};
use workers::Workers;

const REQUESTS: u32 = 32;
const REQUESTS_MAX: u32 = 4096;

/// Finds out how files are served at `path`: a file, a directory, or a block device. See
/// [`Options::run`].
///
/// # Errors
/// See [`Options::run`].
pub fn probe(path: impl AsRef<Path>) -> Result<Report> {
    Options::new().run(path)
}

/// How to probe.
#[derive(Clone, Debug)]
pub struct Options {
    requests: u32,
    evict: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options::new()
    }
}

impl Options {
    /// 32 requests of each kind, and nothing is dropped from the page cache.
    pub fn new() -> Self {
        Options { requests: REQUESTS, evict: false }
    }

    /// How many requests of each kind, up to 4096. A scratch file has 16 KiB for each.
    pub fn requests(mut self, requests: u32) -> Self {
        self.requests = requests.clamp(1, REQUESTS_MAX);
        self
    }

    /// The file's pages may be dropped from the page cache, so that cold reads of it can be made
    /// for certain. Default: no.
    pub fn evict(mut self, evict: bool) -> Self {
        self.evict = evict;
        self
    }

    /// Probes. Of a directory, scratch files in it; of a file, scratch files beside it, and reads
    /// of it; of a block device, reads of it. Takes about a second, on a thread of its own, whose
    /// kernel workers are nobody else's.
    ///
    /// # Errors
    /// Those of `stat(2)`; [`ErrorKind::NotSeekable`] for a FIFO, a socket or a terminal; those of
    /// `open(2)` for a block device that may not be read. What else cannot be done is in the
    /// report.
    pub fn run(&self, path: impl AsRef<Path>) -> Result<Report> {
        let path: Arc<Path> = Arc::from(path.as_ref());
        let failed =
            |error: std::io::Error| Error::from_raw_os_error(ErrorOp::Probe, errno_of(&error).raw_os_error()).at(&path);
        std::thread::scope(|scope| {
            let named = std::thread::Builder::new().name("nowait-probe".to_owned());
            let thread = named.spawn_scoped(scope, || self.run_here(&path)).map_err(failed)?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn run_here(&self, path: &Arc<Path>) -> Result<Report> {
        let failed =
            |error: &std::io::Error| Error::from_raw_os_error(ErrorOp::Probe, errno_of(error).raw_os_error()).at(path);
        let kind = fs::metadata(&**path).map_err(|error| failed(&error))?.file_type();
        let subject = match kind {
            kind if kind.is_dir() => Subject::Directory,
            kind if kind.is_file() => Subject::File,
            kind if kind.is_block_device() => Subject::Device,
            _ => return Err(Error::new(ErrorOp::Probe, ErrorKind::NotSeekable).at(path)),
        };
        let real = fs::canonicalize(&**path).map_err(|error| failed(&error))?;
        let nowait = Nowait::builder().build()?;
        let reach = Reach::of(&nowait);
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

        let mut eye = Eye::open();
        let mut abilities = Abilities::default();
        let (mut scratch, mut scratch_error) = (Vec::new(), None);
        if let Some(dir) = &dir {
            match self.scratch(dir, attributes, &nowait, &mut eye, &mut abilities) {
                Ok(rows) => scratch = rows,
                Err(error) => {
                    let error = Error::from_raw_os_error(ErrorOp::Probe, errno_of(&error).raw_os_error())
                        .at(&Arc::from(&**dir));
                    let text = "no scratch file can be made and filled there; name a directory that takes new files";
                    scratch_error = Some(error.with_advice(text));
                }
            }
        }
        let mut rows = Vec::new();
        if let (Some(opened), true) = (&file, subject != Subject::Directory) {
            match self.reads(opened, &nowait, &mut eye, &mut abilities) {
                Ok(read) => rows = read,
                Err(error) => file_error = Some(failed(&error)),
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
        };
        report.judge();
        Ok(report)
    }

    /// A row for each case, on scratch files.
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
                // Without direct I/O, or without allocating ahead.
                Err(error) if case.is_direct() || case == Case::AppendAllocated => {
                    rows.push(Row::refused(case, &error));
                    continue;
                }
                Err(error) => return Err(error),
            };
            let ring = eye.look(case, &tested);
            drop(tested);
            let tested = make()?;
            rows.push(Row {
                case,
                ring,
                nowait: serve(nowait, eye.workers(), case, &tested, false, abilities),
                reason: None,
            });
        }
        Ok(rows)
    }

    /// A row for each case that only reads, of the file itself.
    fn reads(
        &self,
        opened: &Opened,
        nowait: &Nowait,
        eye: &mut Eye,
        abilities: &mut Abilities,
    ) -> std::io::Result<Vec<Row>> {
        let file = &opened.file;
        // Of a block device, too.
        let size = (&*file).seek(SeekFrom::End(0))?;
        if size == 0 {
            return Ok(Vec::new());
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
        // Those that are cold first: they are cached then.
        for case in [Case::ColdRead, Case::CachedRead, Case::DirectRead, Case::ForcedRead] {
            let direct = match case.is_direct().then(|| twin::direct(file)) {
                Some(Err(error)) => {
                    rows.push(Row::refused(case, &error));
                    continue;
                }
                direct => direct.and_then(std::result::Result::ok),
            };
            let offsets = if case == Case::ColdRead { &cold } else { &places };
            // Half of them are the ring's, half the library's; of one page both read the same.
            let half = |which: usize| {
                let offsets = offsets.iter().skip(if offsets.len() > 1 { which } else { 0 }).step_by(2);
                offsets.copied().take(self.requests as usize).collect::<Vec<u64>>()
            };
            // To the end and no further: a read that comes short is made again, to see that it is
            // the end.
            let length = if case.is_direct() { PAGE } else { size.min(PAGE as u64) as usize };
            let mut tested = Tested { file: file.try_clone()?, direct, offsets: half(0), length };
            let ring = eye.look(case, &tested);
            tested.offsets = half(1);
            let served = serve(nowait, eye.workers(), case, &tested, opened.quietly, abilities);
            rows.push(Row { case, ring, nowait: served, reason: None });
        }
        rows.sort_by_key(|row| Case::ALL.iter().position(|case| *case == row.case));
        Ok(rows)
    }
}

/// A file, opened for reading.
struct Opened {
    file: StdFile,
    /// Its access time stays as it is.
    quietly: bool,
}

fn open_quietly(path: &Path) -> std::result::Result<Opened, Errno> {
    let open = |flags| {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | flags;
        rustix::io::retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty()))
    };
    // Only its owner may say so.
    match open(OFlags::NOATIME) {
        Ok(fd) => Ok(Opened { file: fd.into(), quietly: true }),
        Err(_) => Ok(Opened { file: open(OFlags::empty())?.into(), quietly: false }),
    }
}

/// A file in the state that a case asks for, and where its requests go.
struct Tested {
    file: StdFile,
    direct: Option<StdFile>,
    offsets: Vec<u64>,
    /// Of a request: less than a page where there is less in all.
    length: usize,
}

impl Tested {
    fn descriptor(&self) -> &StdFile {
        self.direct.as_ref().unwrap_or(&self.file)
    }

    /// Sees to it that what a request at `offset` needs is so. False: it is not, and cannot be had.
    fn is_ready(&self, case: Case, offset: u64) -> bool {
        let start = offset - offset % PAGE as u64;
        let mut page = [0; PAGE];
        match case {
            Case::ColdRead | Case::ColdPartialWrite => !page_is_cached(self.file.as_fd(), start).unwrap_or(true),
            Case::CachedRead | Case::CachedOverwrite => self.file.read_at(&mut page, start).is_ok(),
            Case::Sync => self.file.write_all_at(&page, start).is_ok(),
            _ => true,
        }
    }
}

/// Sees what becomes of single requests, where that can be seen.
enum Eye {
    Open { single: Box<Single>, controls: Controls },
    Blind(String),
}

impl Eye {
    fn open() -> Eye {
        let mut single = match Single::new(PAGE) {
            Ok(single) => Box::new(single),
            Err(Blind::Refused(errno)) => return Eye::Blind(format!("io_uring is refused: {errno}")),
            Err(Blind::Broken(errno)) => return Eye::Blind(format!("the ring cannot be used: {errno}")),
            Err(Blind::NoWorkers(why)) => {
                let text = "kernel workers cannot be seen in /proc/self/task, as before Linux 5.12, or not told apart; and the \
                            kernel's tracepoint cannot be counted";
                return Eye::Blind(format!("{text}: {why}"));
            }
        };
        let mut controls = Controls::default();
        match controls.add(&mut single) {
            Ok(()) => Eye::Open { single, controls },
            Err(errno) => Eye::Blind(format!("the ring cannot be used: {errno}")),
        }
    }

    fn workers(&self) -> Option<&Workers> {
        match self {
            Eye::Open { single, .. } => single.workers.as_ref(),
            Eye::Blind(_) => None,
        }
    }

    fn evidence(&self) -> Option<Evidence> {
        match self {
            Eye::Open { single, .. } => Some(single.evidence()),
            Eye::Blind(_) => None,
        }
    }

    fn look(&mut self, case: Case, tested: &Tested) -> Outcome {
        let single = match self {
            Eye::Open { single, .. } => single,
            Eye::Blind(why) => return Outcome::CannotTell(why.clone()),
        };
        let mut rates = Rates { traced: single.is_confirmed().then(Traced::default), ..Rates::default() };
        let (mut submits_ns, mut totals_ns) = (Vec::new(), Vec::new());
        for offset in &tested.offsets {
            if !tested.is_ready(case, *offset) {
                continue;
            }
            let seen = match single.ask(tested.descriptor().as_fd(), case.ask(*offset, tested.length)) {
                Ok(seen) => seen,
                Err(errno) => {
                    *self = Eye::Blind(format!("the ring cannot be used any more: {errno}"));
                    return Outcome::CannotTell(format!("the ring was given up: {errno}"));
                }
            };
            match seen.result {
                Err(errno) if rates.requests == 0 => return Outcome::Refused(errno.raw_os_error()),
                Err(_) => rates.failed += 1,
                Ok(_) => {
                    submits_ns.push(seen.submit_ns);
                    totals_ns.push(seen.total_ns);
                }
            }
            rates.add(&seen);
        }
        (rates.submit_ns, rates.total_ns) = (Spread::of(submits_ns), Spread::of(totals_ns));
        if rates.requests == 0 { Outcome::NotInState } else { Outcome::Seen(rates) }
    }

    /// The controls once more: what held at first may not any longer.
    fn close(self) -> Option<Controls> {
        let Eye::Open { mut single, mut controls } = self else { return None };
        controls.add(&mut single).ok()?;
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
        // Only a ring has workers. To look after each request that needed none would slow down the
        // next: caches go cold.
        if let (Some(workers), true) = (workers, after.ring > before.ring) {
            served.worker += u32::from(at_rest.is_some_and(|before| workers.ran_since(&before)));
            at_rest = workers.at_rest();
        }
    }
    served.total_ns = Spread::of(totals_ns);
    abilities.learn(case, &file);
    (served.requests > 0).then_some(served)
}

/// Whether it was done.
async fn request(file: &File, case: Case, offset: u64, length: usize) -> bool {
    match case {
        Case::Sync => file.sync_data().await.is_ok(),
        Case::Append | Case::AppendAllocated | Case::DirectAppend => file.append(Buf::zeroed(length)).await.is_ok(),
        case if case.is_read() => file.read_at(Buf::zeroed(length), offset).await.is_ok(),
        _ => file.write_all_at(Buf::zeroed(length), offset).await.is_ok(),
    }
}

/// The guide's examples, as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/probe.md")]
struct Guide;
