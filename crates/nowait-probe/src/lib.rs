//! How a file is served: asked of the kernel, request by request, and of this library.
//!
//! What a file system claims to support says little, so nothing here is looked up. A scratch file beside the one that is asked about,
//! with the same attributes, is brought into a state; then single requests go through a ring that shows what became of each: complete
//! when its submission returned, completed later, or given to a kernel worker. The same requests are then made through a [`File`] of
//! `nowait` on another such file, and its counters say which way it took: the very code that chooses for every file, with what it
//! learned there. There is no second table of rules, and the library does not ask here before it chooses: it learns the same of each file
//! from the file's own operations, where it also sees what happened to that file before.
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
//! Scratch files have no name and are gone when they are closed. Of the file itself some pages are read, which puts them into the page
//! cache; nothing is written to it, nothing dropped from the cache unless [`Options::evict`] says so, and its access time stays where
//! the kernel lets it (`O_NOATIME`). A direct read has the kernel write back what is dirty of those pages first.
//!
//! # What it cannot see
//!
//! * Blocks that say where a file's data is are cached for a new file. Where they are not, a ring's submission sleeps for them.
//! * What happened to a file before: on btrfs one that ever had space allocated ahead is written inline, its twin is not.
//! * Whether the controls hold tells whether the rest can be believed. They are requests whose way is known: some that are forced on a
//!   worker, and some that need none. Where they fail, the verdict is that it cannot be told.

mod kernel;
mod place;
mod reach;
mod ring;
mod single;
mod twin;
mod watch;
mod workers;

use std::fmt;
use std::fs::{self, File as StdFile};
use std::io::{Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{Advice, IFlags, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use kernel::{PAGE, page_is_cached};
use nowait::{Buf, DirectIo, Error, ErrorKind, ErrorOp, File, Nowait, OpenOptions, Result};
pub use place::{AtomicWrites, Device, Place};
pub use reach::Reach;
use single::{Ask, Blind, Seen, Single, Took};
use twin::errno_of;
pub use watch::{KernelThread, Watched, watch};
use workers::Workers;

const REQUESTS: u32 = 32;
const REQUESTS_MAX: u32 = 4096;

/// Finds out how files are served at `path`: a file, a directory, or a block device. See [`Options::run`].
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

    /// The file's pages may be dropped from the page cache, so that cold reads of it can be made for certain. Default: no.
    pub fn evict(mut self, evict: bool) -> Self {
        self.evict = evict;
        self
    }

    /// Probes. Of a directory, scratch files in it; of a file, scratch files beside it, and reads of it; of a block device, reads of
    /// it. Takes about a second, on a thread of its own, whose kernel workers are nobody else's.
    ///
    /// # Errors
    /// Those of `stat(2)`; [`ErrorKind::NotSeekable`] for a FIFO, a socket or a terminal; those of `open(2)` for a block device that
    /// may not be read. What else cannot be done is in the report.
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
            // To the end and no further: a read that comes short is made again, to see that it is the end.
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

/// What is asked for, in which state.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Case {
    /// A page that is cached is read.
    CachedRead,
    /// A page that is not cached is read.
    ColdRead,
    /// A page that is cached, and has its place on the device, is overwritten.
    CachedOverwrite,
    /// A part of a page that is not cached is overwritten.
    ColdPartialWrite,
    /// A page is written at the end.
    Append,
    /// A page is written at the end, where space has been allocated.
    AppendAllocated,
    /// A page is read past the page cache.
    DirectRead,
    /// A page is overwritten past the page cache.
    DirectOverwrite,
    /// A page is written at the end past the page cache.
    DirectAppend,
    /// A page is written past the page cache, into space that is allocated and was never written.
    DirectUnwritten,
    /// What was written is put on stable storage.
    Sync,
    /// A control: a cached page is read, by a kernel worker because it is forced to.
    ForcedRead,
}

impl Case {
    /// All of them, in the order of a report.
    pub const ALL: [Case; 12] = [
        Case::CachedRead,
        Case::ColdRead,
        Case::CachedOverwrite,
        Case::ColdPartialWrite,
        Case::Append,
        Case::AppendAllocated,
        Case::DirectRead,
        Case::DirectOverwrite,
        Case::DirectAppend,
        Case::DirectUnwritten,
        Case::Sync,
        Case::ForcedRead,
    ];

    /// For people and programs, such as `cold-read`.
    pub fn name(self) -> &'static str {
        match self {
            Case::CachedRead => "cached-read",
            Case::ColdRead => "cold-read",
            Case::CachedOverwrite => "cached-overwrite",
            Case::ColdPartialWrite => "cold-partial-write",
            Case::Append => "append",
            Case::AppendAllocated => "append-allocated",
            Case::DirectRead => "direct-read",
            Case::DirectOverwrite => "direct-overwrite",
            Case::DirectAppend => "direct-append",
            Case::DirectUnwritten => "direct-unwritten",
            Case::Sync => "sync",
            Case::ForcedRead => "forced-read",
        }
    }

    fn is_cold(self) -> bool {
        matches!(self, Case::ColdRead | Case::ColdPartialWrite | Case::DirectRead | Case::DirectOverwrite)
    }

    fn is_direct(self) -> bool {
        matches!(self, Case::DirectRead | Case::DirectOverwrite | Case::DirectAppend | Case::DirectUnwritten)
    }

    fn is_read(self) -> bool {
        matches!(self, Case::CachedRead | Case::ColdRead | Case::DirectRead | Case::ForcedRead)
    }

    fn grows(self) -> bool {
        matches!(self, Case::Append | Case::AppendAllocated | Case::DirectAppend | Case::DirectUnwritten)
    }

    fn ask(self, offset: u64, length: usize) -> Ask {
        match self {
            Case::Sync => Ask::Sync,
            case if case.is_read() => Ask::Read { offset, length, forced: case == Case::ForcedRead },
            _ => Ask::Write { offset, length },
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
        // Only a ring has workers. Who looks after each request that needed none would slow down the next: caches go cold.
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

/// What was found out.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct Report {
    /// What was asked about.
    pub path: PathBuf,
    /// What that is.
    pub subject: Subject,
    /// Whether io_uring can be had.
    pub reach: Reach,
    /// Where the file is.
    pub place: Place,
    /// What it can do, by trying.
    pub abilities: Abilities,
    /// What told whether a kernel worker ran; `None` where nothing could be watched.
    pub evidence: Option<Evidence>,
    /// What became of the controls; `None` where nothing could be watched.
    pub controls: Option<Controls>,
    /// How scratch files in the same directory are served.
    pub scratch: Vec<Row>,
    /// Why there could be no scratch files, or not all.
    pub scratch_error: Option<Error>,
    /// How reads of the file, or device, itself are served.
    pub file: Vec<Row>,
    /// Why it could not be read.
    pub file_error: Option<Error>,
}

impl Report {
    /// The row of a case: of scratch files, or, where there is none, of the file itself.
    pub fn row(&self, case: Case) -> Option<&Row> {
        self.scratch.iter().chain(&self.file).find(|row| row.case == case)
    }

    /// What the kernel's tracepoint said of all requests together; `None` where it could not be asked, or alone was.
    pub fn traced(&self) -> Option<Traced> {
        let rows = self.scratch.iter().chain(&self.file);
        let all = rows.filter_map(|row| match &row.ring {
            Outcome::Seen(rates) => rates.traced,
            _ => None,
        });
        all.reduce(|a, b| Traced { requests: a.requests + b.requests, agreed: a.agreed + b.agreed })
    }

    /// Takes back what cannot be told, and says why things are as they are.
    fn judge(&mut self) {
        let Report { controls, scratch, file, place, abilities, .. } = self;
        let failed = match controls {
            Some(controls) if !controls.hold() => Some(controls.to_string()),
            _ => None,
        };
        for row in scratch.iter_mut().chain(file) {
            let Outcome::Seen(rates) = &row.ring else { continue };
            let forced_fails = row.case == Case::ForcedRead && rates.worker + rates.unclear < rates.requests;
            if let Some(why) = &failed {
                row.ring = Outcome::CannotTell(why.clone());
            } else if forced_fails {
                row.ring =
                    Outcome::CannotTell("reads that were forced on a kernel worker were not seen there".to_owned());
            } else {
                row.reason = Reason::of(row.case, rates, abilities, place);
            }
        }
    }
}

/// What tells whether a request was given to a kernel worker.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The workers' threads, and what the kernel's tracepoint says: see [`Report::traced`].
    ThreadsAndTracepoint,
    /// The workers' threads alone.
    Threads {
        /// Why the tracepoint could not be counted: tracefs is not mounted, say.
        untraced: String,
    },
    /// The tracepoint alone. Before Linux 5.12 workers are no threads of the process.
    Tracepoint,
}

/// What a path leads to.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A directory: only scratch files in it are looked at.
    Directory,
    /// A file, and scratch files beside it.
    File,
    /// A block device; nothing is written to it.
    Device,
}

/// How one kind of request is served.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct Row {
    /// The kind.
    pub case: Case,
    /// By io_uring.
    pub ring: Outcome,
    /// By this library; `None` where it could not be asked, and for the control.
    pub nowait: Option<Served>,
    /// Why io_uring does as it does, where that is known and not as one would wish.
    pub reason: Option<Reason>,
}

impl Row {
    fn refused(case: Case, error: &std::io::Error) -> Row {
        Row { case, ring: Outcome::Refused(errno_of(error).raw_os_error()), nowait: None, reason: None }
    }
}

/// What became of requests to io_uring.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// This was seen.
    Seen(Rates),
    /// The kernel answers with this errno: the file cannot do it.
    Refused(i32),
    /// The state that is asked about cannot be had: pages stay in memory, or all of them were cached already.
    NotInState,
    /// It cannot be told, for this reason.
    CannotTell(String),
}

/// How many requests took which way through io_uring. Each is counted once as inline, asynchronous, worker or unclear.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Requests made.
    pub requests: u32,
    /// Complete when the submission returned. Where the kernel does not keep completions back ([`Reach::defers`]), also what the
    /// device completed before.
    pub inline: u32,
    /// Completed later, without a worker.
    pub asynchronous: u32,
    /// Given to a kernel worker.
    pub worker: u32,
    /// A worker ran that need not have been for this one.
    pub unclear: u32,
    /// The submission slept. Also counted as one of the above.
    pub slept: u32,
    /// Ended in an error. Also counted as one of the above.
    pub failed: u32,
    /// How long submissions took.
    pub submit_ns: Spread,
    /// How long requests took, from submission to completion. They come one at a time, with a look at the workers between them, during
    /// which caches go cold: a figure to compare with those of other cases, and with none of [`Served`].
    pub total_ns: Spread,
    /// What the kernel's tracepoint says.
    pub traced: Option<Traced>,
}

impl Rates {
    fn add(&mut self, seen: &Seen) {
        self.requests += 1;
        self.slept += u32::from(seen.slept);
        *match seen.took {
            Took::Inline => &mut self.inline,
            Took::Async => &mut self.asynchronous,
            Took::Worker => &mut self.worker,
            Took::Unclear => &mut self.unclear,
        } += 1;
        if let (Some(traced), Some(to_worker), true) = (&mut self.traced, seen.traced, seen.took != Took::Unclear) {
            traced.requests += 1;
            traced.agreed += u32::from(to_worker == (seen.took == Took::Worker));
        }
    }

    /// Whether more than half of them were given to a kernel worker, or had their submission sleep. (A few are on some file systems, once
    /// a clock tick: the slower they come, the larger their share.)
    pub fn is_waited_for(&self) -> bool {
        (self.worker + self.slept) * 2 > self.requests
    }
}

/// Requests of which the kernel's tracepoint (`io_uring_queue_async_work`) was asked whether they went to a worker.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traced {
    /// How many.
    pub requests: u32,
    /// How many of them it said the same of as was seen without it.
    pub agreed: u32,
}

/// A median and the most.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// Half of them are no more than this.
    pub median: u64,
    /// The most.
    pub max: u64,
}

impl Spread {
    fn of(mut values: Vec<u64>) -> Spread {
        values.sort_unstable();
        Spread { median: values.get(values.len() / 2).copied().unwrap_or(0), max: values.last().copied().unwrap_or(0) }
    }
}

/// Where this library's own counters say that requests went, one at a time, as futures under [`block_on`](nowait::block_on).
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Served {
    /// Requests made.
    pub requests: u32,
    /// On the caller's thread.
    pub inline: u32,
    /// By a ring.
    pub ring: u32,
    /// By libaio.
    pub aio: u32,
    /// By a thread of the library.
    pub pool: u32,
    /// Given by a ring to a kernel worker. Also counted as one of the above.
    pub worker: u32,
    /// Ended in an error.
    pub failed: u32,
    /// How long they took.
    pub total_ns: Spread,
}

/// Requests whose way is known beforehand.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Controls {
    /// Forced on a kernel worker,
    pub forced: u32,
    /// and seen there.
    pub forced_seen: u32,
    /// In no need of one,
    pub plain: u32,
    /// and seen to be complete at once.
    pub plain_seen: u32,
}

impl Controls {
    fn add(&mut self, single: &mut Single) -> std::result::Result<(), Errno> {
        let more = single.control()?;
        self.forced += more.forced;
        self.forced_seen += more.forced_seen;
        self.plain += more.plain;
        self.plain_seen += more.plain_seen;
        Ok(())
    }

    /// Whether all were seen as they are; one in eight may be unclear on a busy machine.
    pub fn hold(&self) -> bool {
        (self.forced_seen * 8 >= self.forced * 7) && (self.plain_seen * 8 >= self.plain * 7)
    }
}

impl fmt::Display for Controls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "of {} requests forced on a kernel worker {} were seen there, of {} others {} were seen inline",
            self.forced, self.forced_seen, self.plain, self.plain_seen
        )
    }
}

/// What a file can do, found out by trying. `None`: not tried, or without an answer.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Abilities {
    /// Reads that do not wait (`RWF_NOWAIT`), through the page cache.
    pub nowait_reads: Option<bool>,
    /// Writes that do not wait, through the page cache.
    pub nowait_writes: Option<bool>,
    /// Reads that do not wait, past the page cache. A device that works on requests in their submission has none.
    pub nowait_direct_reads: Option<bool>,
    /// Writes that leave nothing in the page cache (`RWF_DONTCACHE`).
    pub uncached_writes: Option<bool>,
    /// Direct I/O, and the alignment that this library keeps to.
    pub direct: Option<DirectIo>,
    /// Writes that are not torn, if the file says that it has any.
    pub atomic_writes: Option<AtomicWrites>,
    /// Overwriting takes a new place on the device (btrfs, without the attribute `C`).
    copies_on_write: bool,
}

impl Abilities {
    /// Tries writes on a scratch file.
    fn try_writes(&mut self, dir: &Path, attributes: IFlags, nowait: &Nowait) -> std::io::Result<()> {
        let tested = twin::make(dir, attributes, Case::CachedOverwrite, 1)?;
        let page = [0; PAGE];
        let slices = [std::io::IoSlice::new(&page)];
        self.nowait_writes = accepted(rustix::io::pwritev2(&tested.file, &slices, 0, ReadWriteFlags::NOWAIT).map(drop));
        self.atomic_writes = AtomicWrites::of(&tested.file);
        self.copies_on_write = !twin::attributes(&tested.file).contains(IFlags::NOCOW);
        let mut options = OpenOptions::new();
        let opened = options.read(true).write(true).open_in(nowait, twin::path_of(&tested.file)).wait();
        self.uncached_writes =
            opened.ok().and_then(|file| match file.write_at(Buf::zeroed(PAGE), 0).uncached().wait() {
                Ok(_) => Some(true),
                Err(error) if error.error.kind() == ErrorKind::Unsupported => Some(false),
                Err(_) => None,
            });
        Ok(())
    }

    /// What an open file of this library has found out on its way.
    fn learn(&mut self, case: Case, file: &File) {
        if case == Case::CachedRead {
            self.nowait_reads = file.nowait_reads();
        }
        if case == Case::DirectRead {
            self.direct = Some(file.direct());
            if let (DirectIo::Granted { .. }, Some(fd)) = (file.direct(), file.descriptor()) {
                let mut page = Buf::zeroed(PAGE);
                let mut slices = [std::io::IoSliceMut::new(&mut page)];
                let read = rustix::io::preadv2(fd, &mut slices, 0, ReadWriteFlags::NOWAIT);
                self.nowait_direct_reads = accepted(read.map(drop));
            }
        }
    }
}

/// What an answer says of whether requests that do not wait are taken.
fn accepted(answer: std::result::Result<(), Errno>) -> Option<bool> {
    match answer {
        Ok(()) | Err(Errno::AGAIN) => Some(true),
        Err(Errno::OPNOTSUPP) => Some(false),
        Err(_) => None,
    }
}

/// Why io_uring gives requests to a worker, or sleeps in their submission.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// io_uring gives every one of these to a worker.
    Always,
    /// It was asked to.
    Forced,
    /// The file takes no requests that do not wait.
    NoNowait,
    /// It takes no writes through the page cache that do not wait.
    NoNowaitWrites,
    /// The device takes no requests that do not wait.
    Device,
    /// Overwritten data gets a new place.
    CopyOnWrite,
    /// The file gains blocks, or notes that they are in use.
    Grows,
    /// What is around it has to be read first.
    ReadsFirst,
    /// Once a clock tick the file's times change.
    Times,
}

impl Reason {
    fn of(case: Case, rates: &Rates, abilities: &Abilities, place: &Place) -> Option<Reason> {
        if case == Case::ForcedRead {
            return Some(Reason::Forced);
        }
        let mostly = |count: u32| count * 2 > rates.requests;
        if !mostly(rates.worker) {
            return match case {
                Case::ColdPartialWrite if mostly(rates.slept) => Some(Reason::ReadsFirst),
                case if rates.worker > 0 && !case.is_read() => Some(Reason::Times),
                _ => None,
            };
        }
        let refuses = |ability: Option<bool>| ability == Some(false);
        let copies_on_write = place.file_system.as_deref() == Some("btrfs") && abilities.copies_on_write;
        let is_device = place.file_system.is_none();
        Some(match case {
            Case::Sync => Reason::Always,
            _ if refuses(abilities.nowait_reads) && !is_device => Reason::NoNowait,
            case if case.is_direct() && refuses(abilities.nowait_direct_reads) => Reason::Device,
            case if !case.is_direct() && !case.is_read() && refuses(abilities.nowait_writes) => Reason::NoNowaitWrites,
            case if !case.is_read() && copies_on_write => Reason::CopyOnWrite,
            Case::ColdPartialWrite => Reason::ReadsFirst,
            case if case.grows() => Reason::Grows,
            _ => return None,
        })
    }

    /// In a few words.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Always => "always by a worker",
            Reason::Forced => "a control",
            Reason::NoNowait => "no requests that do not wait",
            Reason::NoNowaitWrites => "no writes that do not wait",
            Reason::Device => "the device waits",
            Reason::CopyOnWrite => "copy-on-write",
            Reason::Grows => "the file gains blocks",
            Reason::ReadsFirst => "reads the page first",
            Reason::Times => "the file's times, once a tick",
        }
    }

    /// In full.
    pub fn explanation(self) -> &'static str {
        match self {
            Reason::Always => {
                "io_uring gives every sync to a kernel worker, whatever the file system. This library takes a thread of its own, and \
                 syncs at the same time share one call."
            }
            Reason::Forced => "These reads were forced on a kernel worker, to see that one can be seen.",
            Reason::NoNowait => {
                "The file refuses RWF_NOWAIT (EOPNOTSUPP): overlayfs, tmpfs and FUSE have no requests that do not wait, so that io_uring \
                 gives each to a kernel worker, cached or not. This library makes plain calls while they are quick, and else takes a \
                 thread of its own. A volume that is bound into a container is not under its overlay."
            }
            Reason::NoNowaitWrites => {
                "The file system has no writes through the page cache that do not wait (EOPNOTSUPP), so that io_uring gives each to a \
                 kernel worker. This library makes a plain call where that is not expected to wait."
            }
            Reason::Device => {
                "The device works on requests in their submission, or is made of parts of which one does (RAM disks, zram, some of device \
                 mapper): it takes none that do not wait, and io_uring gives each to a kernel worker."
            }
            Reason::CopyOnWrite => {
                "btrfs writes data to a new place, and has to reserve it first. Files with the attribute C (chattr +C, on an empty file or \
                 on the directory), or that had space allocated, are overwritten in place."
            }
            Reason::Grows => {
                "The file gains blocks, or space that was allocated becomes data: the file system changes its own records for that, which \
                 may wait. Files that were written once, with zeros, do not."
            }
            Reason::ReadsFirst => {
                "A part of a page is written, and the page is not cached: the rest of it is read from the device first."
            }
            Reason::Times => {
                "A write changes the file's times, at most once a clock tick. The first one after a tick cannot do that without waiting, and \
                 goes to a kernel worker."
            }
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The guide's examples, as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/probe.md")]
struct Guide;
