//! A durable log: many small records, each on stable storage when its [`Ticket`] says so, read back after a crash.
//!
//! ```
//! use nowait::log::{Log, Options};
//!
//! # fn main() -> nowait::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let dir = dir.path().join("log");
//! let options = Options::new().create(true).segment_bytes(1 << 20);
//! let (log, recovery) = Log::open(&dir, &options)?;
//! println!("{} records found", recovery.last_lsn);
//! let first = log.append(b"one record")?;
//! let batch = log.append_batch([b"two of them, ".as_slice(), b"both or none"])?;
//! // Durable: nothing that can happen to the process or the machine takes it away again.
//! batch.wait()?;
//! assert!(log.durable_lsn() >= first.lsn());
//! log.close()?;
//!
//! let (log, recovery) = Log::open(&dir, &options)?;
//! assert_eq!(recovery.last_lsn, 3);
//! let mut reader = log.reader(1);
//! while let Some(record) = reader.next()? {
//!     println!("{}: {} bytes", record.lsn, record.bytes.len());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What is durable when
//!
//! A record is durable when its ticket is ready, and then so is every record before it. Until then it may be there after a crash or
//! not; what is there is always a prefix of what was appended, and a batch is there as a whole or not at all. Readers show
//! durable records only.
//!
//! The first write or sync that fails poisons the log. What was on its way then is [`Indeterminate`](crate::ErrorKind::Indeterminate), what
//! was only appended was not written ([`Poisoned`](crate::ErrorKind::Poisoned)), nothing more is acknowledged, and the way on is to open
//! the log anew. A full disk is found out when the next segment is prepared, so that an append is refused
//! ([`NoSpace`](crate::ErrorKind::NoSpace)) before it has an LSN. (On file systems that copy on write, such as btrfs, and on thinly provisioned
//! devices, a write may need room all the same; one that gets none poisons the log.)
//!
//! # Who writes
//!
//! No thread of the log's: whoever waits. [`Ticket::wait`] writes what everybody has appended, in one write, and waits for the device
//! in the call that submits it; others who come meanwhile share the next. Awaited, or with a callback, the write is the ring's (or the
//! pool's), and whoever notices completions there goes on. A thread named `nowait-log` prepares segments, and sleeps while the log
//! is idle. Callbacks have a thread of their own, while there are any.
//!
//! # Where it is
//!
//! On disk a log is a directory of its own; `docs/log-format.md` in the repository has its layout. The directory is held open: a log
//! goes on where it is when the directory is renamed or the process changes its working directory.
//!
//! A log is only made when [`Options::create`] asks for it, and only in a directory that is new or empty. Ask for it where the
//! application is set up. An application that expects its log then gets [`NotFound`](crate::ErrorKind::NotFound), not an empty log, when
//! the volume that holds it is not mounted.

mod calibrate;
mod commit;
mod dir;
mod format;
mod maintenance;
mod reader;
mod recover;
mod room;
mod stats;

use std::future::Future;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::buf::lock;
use crate::core::instance::Nowait;
use crate::engine::local;
use crate::error::{Error, ErrorKind, ErrorOp, Result};
use crate::file::{File, OpenOptions};
use commit::{Group, Limits, Live, Shared};
use dir::{Blocks, CONTROL, CONTROL_TEMPORARY, Contents, Folder, LOCK, is_direct};
use format::{Control, End, NUMBER_MAX, PAGE, SegmentHeader};
use maintenance::Tended;
use recover::{Found, Segment};

pub use dir::Unreadable;
pub use reader::{Reader, Record};
pub use recover::{Damage, Place, Recovery};
pub use room::Room;
pub use stats::{LogStats, Percentiles};

/// How blocks get to stable storage.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SyncPolicy {
    /// Measured when the log is made, in some 200 ms, and kept with it.
    #[default]
    Auto,
    /// As told.
    Fixed(Strategy),
}

/// A way to get blocks to stable storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strategy {
    /// What makes a block durable.
    pub durability: Durability,
    /// Who asks the kernel for it, when a thread waits.
    pub by: Submitter,
    /// Blocks in flight at most, from 1 to 64.
    pub depth: u32,
}

/// What makes a block durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The write itself (`RWF_DSYNC`, Linux 4.7).
    Write,
    /// A write, and `fdatasync(2)` after it.
    WriteAndSync,
}

/// Who asks the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitter {
    /// The waiting thread's own ring: one sleep for the write and the flush of the device's cache.
    Ring,
    /// A system call of the waiting thread.
    Call,
}

impl Durability {
    fn of(code: u32) -> Durability {
        if code == 2 { Durability::WriteAndSync } else { Durability::Write }
    }

    fn code(self) -> u32 {
        match self {
            Durability::Write => 1,
            Durability::WriteAndSync => 2,
        }
    }
}

impl Submitter {
    fn of(code: u32) -> Submitter {
        if code == 2 { Submitter::Call } else { Submitter::Ring }
    }

    fn code(self) -> u32 {
        match self {
            Submitter::Ring => 1,
            Submitter::Call => 2,
        }
    }
}

/// How to open a log.
#[derive(Clone, Debug)]
pub struct Options {
    instance: Option<Nowait>,
    create: bool,
    segment_bytes: u64,
    pending_bytes_max: u64,
    reserve_bytes: u64,
    sync: SyncPolicy,
    salvage: bool,
    maintenance: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

const SEGMENT_BYTES_MIN: u64 = 16 << 10;
const SEGMENT_BYTES_MAX: u64 = 1 << 40;
const DEPTH_MAX: u32 = 64;
/// More than any disk has.
const RESERVE_BYTES_MAX: u64 = 1 << 60;

impl Options {
    /// A log that is there already. Segments of 64 MiB, if one is to be made.
    pub fn new() -> Options {
        Options {
            instance: None,
            create: false,
            segment_bytes: 64 << 20,
            pending_bytes_max: 16 << 20,
            reserve_bytes: 0,
            sync: SyncPolicy::Auto,
            salvage: false,
            maintenance: true,
        }
    }

    /// The instance whose engines are used. Default: the one that the process shares.
    pub fn instance(mut self, instance: &Nowait) -> Self {
        self.instance = Some(instance.clone());
        self
    }

    /// Whether a log is made where there is none: in a directory that does not exist yet or is empty. (What counts as empty: nothing
    /// but `lost+found` and what the making of a log left that was cut off.) [`Recovery::created`] tells whether one was made.
    /// Default: no. The mount point of a volume that is not mounted is an empty directory.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Bytes of a segment of a log that is made; one that is there keeps its own. A multiple of 4096, at least 16 KiB; a batch has to
    /// fit into one. Two are on the disk at least. Default: 64 MiB.
    pub fn segment_bytes(mut self, bytes: u64) -> Self {
        self.segment_bytes = bytes;
        self
    }

    /// Bytes that are appended and not durable yet, at most: then [`Log::append`] waits. Default: 16 MiB.
    pub fn pending_bytes_max(mut self, bytes: u64) -> Self {
        self.pending_bytes_max = bytes;
        self
    }

    /// Room that is kept, prepared, for [`Log::append_from_reserve`] when the disk is full, so that a checkpoint can be logged.
    /// Default: none.
    pub fn reserve_bytes(mut self, bytes: u64) -> Self {
        self.reserve_bytes = bytes;
        self
    }

    /// How blocks get to stable storage, in a log that is made; one that is there keeps its own, unless it is told here. Default: measured.
    pub fn sync(mut self, sync: SyncPolicy) -> Self {
        self.sync = sync;
        self
    }

    /// Opens a log that is damaged, too: it goes on after the last record before the damage. What comes after is put aside, in files
    /// whose names end in `.damaged`; [`Recovery::damage`] tells what it was. Default: such a log is refused.
    pub fn salvage(mut self, salvage: bool) -> Self {
        self.salvage = salvage;
        self
    }

    /// Whether the log has a thread that prepares segments, writes what nobody waits for, and stamps the log when it is idle. Without
    /// one an append that needs a new segment prepares it, [`Log::maintain`] does the rest, and a log that is dropped rather than closed
    /// leaves what is on its way to the engine. Default: yes.
    pub fn maintenance(mut self, maintenance: bool) -> Self {
        self.maintenance = maintenance;
        self
    }

    fn check(&self, dir: &Arc<Path>) -> Result<()> {
        let depth = match self.sync {
            SyncPolicy::Auto => 1,
            SyncPolicy::Fixed(strategy) => strategy.depth,
        };
        let sound = self.segment_bytes % PAGE as u64 == 0
            && (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&self.segment_bytes)
            && (1..=DEPTH_MAX).contains(&depth)
            && self.reserve_bytes <= RESERVE_BYTES_MAX;
        if sound {
            return Ok(());
        }
        let text = "a segment is a multiple of 4096 bytes, 16 KiB to 1 TiB; 1 to 64 blocks are in flight; a reserve has 1 EiB at most";
        Err(Error::new(ErrorOp::Open, ErrorKind::InvalidInput).at(dir).explained(text))
    }
}

/// A log that is open for appending. Clones are the same log; any thread may use any of them.
///
/// A log whose last clone is dropped writes what was appended, and the stamp that says so, in its own time; [`Log::close`] waits for that.
#[derive(Clone)]
pub struct Log(Arc<Open>);

struct Open {
    shared: Arc<Shared>,
    keeper: Mutex<Option<std::thread::JoinHandle<()>>>,
    /// Held until nothing of this log is on its way: by the keeper, too.
    lock: Mutex<Option<Arc<Lock>>>,
}

impl Log {
    /// Opens the log in `dir` for appending. Makes one if there is none and [`Options::create`] asks for it. Reads all of it first;
    /// the caller does that again, with [`Log::reader`], for what is in it. Blocks the thread.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`] when another process, or this one, has it open. [`ErrorKind::Damaged`] when something that was durable cannot
    /// be read: see [`Options::salvage`] and [`inspect`]. [`ErrorKind::NotFound`] when there is no log and none is to be made;
    /// [`ErrorKind::InvalidInput`] when one is to be made in a directory that holds something else. [`ErrorKind::NoSpace`],
    /// [`ErrorKind::Unsupported`] for a later version of the format; those of files.
    pub fn open(dir: impl AsRef<Path>, options: &Options) -> Result<(Log, Recovery)> {
        let instance = options.instance.clone().unwrap_or_else(|| Nowait::shared().clone());
        let path: Arc<Path> = Arc::from(dir.as_ref());
        options.check(&path)?;
        if options.create {
            match instance.create_dir(&path).wait() {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        let folder = open_folder(&instance, &path)?;
        // Before anything is written: a directory without a log stays as it is.
        let contents = folder.contents()?;
        if !contents.has_control && contents.numbers.is_empty() {
            may_make(&folder, options, contents)?;
        }
        let lock = Arc::new(Lock::take(&folder)?);
        let found = match recover::recover(&folder, true)? {
            Some(found) => found,
            None => {
                may_make(&folder, options, folder.contents()?)?;
                make(&folder, options)?;
                let mut found = recover::recover(&folder, true)?.ok_or_else(|| no_log(&folder.path))?;
                found.recovery.created = true;
                found
            }
        };
        if !options.salvage {
            found.check()?;
        }
        folder.clean()?;
        let recovery = found.recovery.clone();
        let shared = begin_epoch(folder, options, found)?;
        shared.lend(lock.clone());
        let keeper = match options.maintenance {
            true => Some(start_keeper(&shared, lock.clone())?),
            false => None,
        };
        let open = Open { shared, keeper: Mutex::new(keeper), lock: Mutex::new(Some(lock)) };
        Ok((Log(Arc::new(open)), recovery))
    }

    /// Appends a record: copies it, and gives its number. Nothing waits for the disk, but that an append waits for others to become
    /// durable while [`Options::pending_bytes_max`] are not, and for the next segment when that is not ready. Nothing is written before
    /// somebody waits for a ticket, or some milliseconds have passed.
    ///
    /// # Errors
    /// The record is not in the log then. [`ErrorKind::NoSpace`], [`ErrorKind::Poisoned`] after a write failed, [`ErrorKind::Closed`],
    /// [`ErrorKind::InvalidInput`] when it does not fit into a segment. [`ErrorKind::WouldBlock`] in a callback of this log, when it would
    /// have to wait: see [`Ticket::on_durable`].
    pub fn append(&self, record: &[u8]) -> Result<Ticket> {
        self.append_records(&[record], true, false)
    }

    /// Appends records that are there after a crash all together or not at all. The ticket is that of the last.
    ///
    /// # Errors
    /// As [`Log::append`], also for a batch of nothing.
    pub fn append_batch<'r>(&self, records: impl IntoIterator<Item = &'r [u8]>) -> Result<Ticket> {
        let records: Vec<&[u8]> = records.into_iter().collect();
        self.append_records(&records, true, false)
    }

    /// As [`Log::append`], and never waits.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] when it would have to: too much is pending, or the next segment is not ready. What makes room has been
    /// begun then; wait for [`Log::room`], and try again.
    pub fn try_append(&self, record: &[u8]) -> Result<Ticket> {
        self.append_records(&[record], false, false)
    }

    /// As [`Log::append`], and takes the room that was reserved when no more can be had.
    ///
    /// # Errors
    /// As [`Log::append`].
    pub fn append_from_reserve(&self, record: &[u8]) -> Result<Ticket> {
        self.append_records(&[record], true, true)
    }

    fn append_records(&self, records: &[&[u8]], may_wait: bool, from_reserve: bool) -> Result<Ticket> {
        let shared = &self.0.shared;
        loop {
            let no_room = match shared.append(records, from_reserve) {
                Ok((lsn, group)) => return Ok(Ticket { shared: shared.clone(), group, lsn, place: None }),
                Err(no_room) => no_room,
            };
            shared.make_way(no_room, may_wait)?;
        }
    }

    /// The last record that is durable, with all before it; 0 when there is none.
    pub fn durable_lsn(&self) -> u64 {
        self.0.shared.durable()
    }

    /// The last record that was appended; 0 when there is none.
    pub fn last_lsn(&self) -> u64 {
        if self.0.shared.is_forked() {
            return self.durable_lsn();
        }
        self.0.shared.core().next_lsn - 1
    }

    /// Waits until record `lsn` is durable, which may be appended later.
    pub fn wait_durable(&self, lsn: u64) -> Durable {
        durable(&self.0.shared, lsn)
    }

    /// Reads durable records from `lsn` on, while the log is written. [`Reader::tail`] waits for those to come.
    pub fn reader(&self, lsn: u64) -> Reader {
        Reader::of_live(self.0.shared.clone(), lsn)
    }

    /// Gives up records before `lsn`: whole segments that hold no others are used again, or removed. So some may be there still, also after
    /// the log is opened again.
    pub fn truncate_prefix(&self, lsn: u64) {
        let shared = &self.0.shared;
        if shared.is_forked() {
            return;
        }
        let mut core = shared.core();
        // The last segment that stands stays: a crash would find a log without records, whose numbers begin anew.
        while !core.closing
            && core.poison.is_none()
            && core.standing() > 1
            && core.segments[1].header.first_lsn() <= lsn.min(shared.durable() + 1)
        {
            let gone = core.segments.remove(0);
            core.retired.push(gone.header.number);
        }
        (core.no_spare, core.no_spare_since) = (None, None);
        core.wake_keeper(&shared.work);
    }

    /// Gives up all records after `lsn`, durably; the next one that is appended is `lsn + 1`. Waits until what was appended is durable
    /// first. Blocks the thread, and all appends meanwhile.
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchRecord`] when `lsn` is not in the log any more, or not yet; [`ErrorKind::NoSpace`], since the log goes on in
    /// a new segment; those of writes.
    pub fn truncate_suffix(&self, lsn: u64) -> Result<()> {
        truncate_suffix(&self.0.shared, lsn)
    }

    /// Writes what was appended, and a stamp that says that all of it is durable, and ends the log: appends are refused from here on. It
    /// can be opened again when this is done. Tickets keep their answers. After a close that succeeded no damage can be taken for a
    /// torn tail.
    ///
    /// # Errors
    /// Those of writes, and of a log that has failed before.
    pub fn close(self) -> Result<()> {
        let shared = &self.0.shared;
        if shared.is_forked() {
            return Ok(());
        }
        let Some(stamp) = shared.begin_closing(true) else {
            return Err(shared.error(ErrorOp::Append, ErrorKind::Closed, "the log was closed already"));
        };
        let result = stamp.and_then(|group| shared.wait(0, &group).map(drop));
        self.0.end();
        result
    }

    /// What was done since the log was opened.
    pub fn stats(&self) -> LogStats {
        if self.0.shared.is_forked() {
            return LogStats::default();
        }
        let core = self.0.shared.core();
        LogStats { spares: core.spares.len(), woken: self.0.shared.woken.percentiles(), ..core.numbers.stats() }
    }

    /// How blocks get to stable storage here.
    pub fn strategy(&self) -> Strategy {
        strategy(&self.0.shared.control)
    }

    /// Blocks go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.0.shared.control.direct
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.0.shared.folder.path
    }

    /// Does one thing of what a log without a thread has to have done now and then: prepares the next segment, removes one that is not
    /// needed, writes what nobody waits for, or stamps a log that has become idle. False when there is nothing to do. Blocks for that.
    pub fn maintain(&self) -> bool {
        matches!(maintenance::tend(&self.0.shared), Tended::Something)
    }
}

impl Open {
    /// Ends the keeper, and gives the directory free.
    fn end(&self) {
        // A statement of its own: not to be joined under the lock.
        let keeper = lock(&self.keeper).take();
        if let Some(keeper) = keeper {
            if keeper.thread().id() != std::thread::current().id() {
                // It does not panic; if it did, there is nothing left to do for it.
                let _ = keeper.join();
            }
        }
        self.shared.end_preparing(true);
        lock(&self.lock).take();
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.shared.is_forked() {
            // The parent's: neither its thread nor its lock is ours.
            std::mem::forget((lock(&self.keeper).take(), lock(&self.lock).take()));
            return;
        }
        let is_open = !self.shared.core().closing;
        // Written by the keeper, or below.
        let _ = self.shared.begin_closing(false);
        self.shared.end_preparing(false);
        // Nobody else may open it while something is on its way. (On the simulator everybody is alone.)
        let is_locked = lock(&self.lock).as_ref().is_some_and(|lock| lock.file.descriptor().is_some());
        if is_open && !self.shared.limits.has_keeper {
            while matches!(maintenance::tend(&self.shared), Tended::Nothing(_)) && is_locked {
                self.shared.watch_all();
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").field("path", &self.path()).field("durable_lsn", &self.durable_lsn()).finish()
    }
}

/// The lock of the directory, given up when it is dropped: also when a child of the process has the descriptors, too.
///
/// Two locks: that of the file `lock`, which every version of this library takes, and that of the directory itself, which holds also
/// when somebody removes the file. On the simulator everybody is alone.
struct Lock {
    file: File,
    folder: Folder,
}

impl Lock {
    fn take(folder: &Folder) -> Result<Lock> {
        let mut options = OpenOptions::new();
        let file = folder.open_file(options.read(true).write(true).create(true), LOCK)?;
        let lock = Lock { file, folder: folder.clone() };
        if let Some(fd) = lock.file.descriptor() {
            lock_one(fd, folder)?.map_err(|errno| Error::from_errno(ErrorOp::Open, errno).at(&lock.file.0.path))?;
        }
        if let Some(fd) = folder.descriptor() {
            // A directory cannot be locked everywhere: over NFS flock(2) is a lock of bytes, which asks for a file that is open for
            // writing (fs/nfs/file.c, nfs_flock). The other lock has to do there.
            let _ = lock_one(fd, folder)?;
        }
        Ok(lock)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        for fd in [self.folder.descriptor(), self.file.descriptor()].into_iter().flatten() {
            // Closing the descriptor does the same, unless somebody has a copy.
            let _ = rustix::fs::flock(fd, FlockOperation::Unlock);
        }
    }
}

/// Takes one lock; what the kernel says if it has no such lock.
fn lock_one(fd: BorrowedFd<'_>, folder: &Folder) -> Result<std::result::Result<(), Errno>> {
    // The descriptors of a process that was killed live on for a moment, while its rings are taken down.
    const TRIES: u32 = 6;
    const BETWEEN: Duration = Duration::from_millis(50);
    for last in (0..TRIES).rev() {
        match crate::sys::retry(|| rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive)) {
            Err(Errno::WOULDBLOCK) if last > 0 => std::thread::sleep(BETWEEN),
            Err(Errno::WOULDBLOCK) => break,
            answer => return Ok(answer),
        }
    }
    let error = Error::new(ErrorOp::Open, ErrorKind::Locked).at(&folder.path);
    Err(error.explained("the log is open for writing, here or in another process; close it there first"))
}

fn open_folder(instance: &Nowait, path: &Arc<Path>) -> Result<Folder> {
    Folder::open_dir(instance, path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => no_log(path),
        _ => error,
    })
}

fn no_log(path: &Arc<Path>) -> Error {
    Error::new(ErrorOp::Open, ErrorKind::NotFound).at(path).explained(
        "there is no log here; see whether the volume that should hold it is mounted, or have one made with create(true)",
    )
}

/// Whether a log may be made in a directory that holds none.
fn may_make(folder: &Folder, options: &Options, contents: Contents) -> Result<()> {
    if !options.create {
        return Err(no_log(&folder.path));
    }
    let Some(other) = contents.other else { return Ok(()) };
    let text = format!(
        "there is no log in this directory, and something else, such as {}; name one that is empty or does not exist",
        Path::new(&other).display()
    );
    Err(Error::new(ErrorOp::Open, ErrorKind::InvalidInput).at(&folder.path).explained(text))
}

fn start_keeper(shared: &Arc<Shared>, lock: Arc<Lock>) -> Result<std::thread::JoinHandle<()>> {
    let for_thread = shared.clone();
    let thread = std::thread::Builder::new().name("nowait-log".into());
    let run = move || {
        let _held = lock;
        maintenance::run(&for_thread);
    };
    thread.spawn(run).map_err(|error| {
        let errno = error.raw_os_error().map_or(Errno::AGAIN, Errno::from_raw_os_error);
        Error::from_errno(ErrorOp::Open, errno).at(&shared.folder.path).detail("the log's thread cannot be started")
    })
}

/// Makes a log of nothing. The control file comes last: what has none was not made.
fn make(folder: &Folder, options: &Options) -> Result<()> {
    folder.clean()?;
    for number in folder.contents()?.numbers {
        folder.remove(number)?;
    }
    let file = folder.prepare(1, options.segment_bytes, true, || Ok(()))?;
    let direct = is_direct(&file);
    drop(file);
    let strategy = match options.sync {
        SyncPolicy::Auto => calibrate::choose(folder, direct)?,
        SyncPolicy::Fixed(strategy) => strategy,
    };
    let control = Control {
        log_id: new_id(),
        segment_bytes: options.segment_bytes,
        sync: strategy.durability.code(),
        caller: strategy.by.code(),
        depth: strategy.depth,
        direct,
    };
    // The directory itself must last, too, and before what says that the log is made.
    folder.sync_parent()?;
    write_control(folder, &control)
}

/// As `fs::write_atomic`, which is for futures, on this thread.
fn write_control(folder: &Folder, control: &Control) -> Result<()> {
    let mut options = OpenOptions::new();
    let file = folder.open_file(options.write(true).create(true).truncate(true), CONTROL_TEMPORARY)?;
    file.write_all_from(&control.encode(), 0)?;
    file.sync_all().wait()?;
    drop(file);
    folder.replace_control()
}

fn new_id() -> format::LogId {
    use std::hash::{BuildHasher, Hasher};
    // Each hasher has random keys.
    let random = || std::collections::hash_map::RandomState::new().build_hasher().finish();
    let mut id = [0; 16];
    id[..8].copy_from_slice(&random().to_le_bytes());
    id[8..].copy_from_slice(&random().to_le_bytes());
    id
}

fn strategy(control: &Control) -> Strategy {
    Strategy {
        durability: Durability::of(control.sync),
        by: Submitter::of(control.caller),
        depth: control.depth.clamp(1, DEPTH_MAX),
    }
}

/// Goes on after what was found: in a new segment of a new epoch, so that nothing that is there is written again.
fn begin_epoch(folder: Folder, options: &Options, found: Found) -> Result<Arc<Shared>> {
    let Found { mut control, number_max, mut chain, mut end, recovery, free, lost, holed, .. } = found;
    for (what, last) in [("segment", number_max), ("epoch", recovery.epoch), ("record", recovery.next_lsn)] {
        // So many are left that none is counted past the last.
        if last > NUMBER_MAX / 2 {
            let text = format!("the {what} number {last} was not given by a log: move what bears it away");
            return Err(Error::new(ErrorOp::Recover, ErrorKind::Damaged).at(&folder.path).explained(text));
        }
    }
    let chosen = match options.sync {
        SyncPolicy::Fixed(strategy) => Some(strategy),
        SyncPolicy::Auto if recovery.control_lost => Some(calibrate::choose(&folder, control.direct)?),
        SyncPolicy::Auto => None,
    };
    if let Some(strategy) = chosen {
        (control.sync, control.caller, control.depth) =
            (strategy.durability.code(), strategy.by.code(), strategy.depth);
    }
    if recovery.control_lost {
        write_control(&folder, &control)?;
    }
    // What no record came into is not gone on from, so that they do not add up.
    let mut empty = Vec::new();
    while chain.len() > 1 && chain.last().is_some_and(Segment::is_empty) {
        let Some(segment) = chain.pop() else { break };
        end = segment.header.previous;
        empty.insert(0, segment.header.number);
    }
    if !recovery.damage.is_empty() {
        // What is lost keeps its numbers.
        end = End { lsn: recovery.next_lsn - 1, lost_from: end.last_there() + 1, ..end };
    }
    if let Some(last) = chain.last_mut() {
        (last.end, last.last_lsn) = (end.offset, end.last_there());
    }
    let (number, number_max) = (number_max + 1, number_max + 1);
    let prepare = || folder.prepare(number, control.segment_bytes, control.direct, || Ok(()));
    // They hold nothing, and say nothing. Not used again: a write of a process that was killed may still be on its way there.
    let remove = || free.iter().try_for_each(|number| maintenance::remove(&folder, *number));
    let file = match prepare() {
        // A log has a segment at any time.
        Err(error) if error.kind() == ErrorKind::NoSpace && !chain.is_empty() => {
            remove()?;
            prepare()?
        }
        file => {
            let file = file?;
            remove()?;
            file
        }
    };
    // The log may have been copied here from where it was.
    control.direct &= is_direct(&file);
    if !control.direct {
        // See `Shared::durability`: through the page cache nothing else proves that a block is durable.
        (control.sync, control.depth) = (Durability::WriteAndSync.code(), 1);
    }
    if let Some(number) = holed {
        // The segment stays, for what is before the hole. A copy: the file is used again in time.
        folder.copy_aside(number, control.segment_bytes, control.direct)?;
    }
    folder.sync()?;
    let epoch = recovery.epoch + 1;
    let header = SegmentHeader {
        log_id: control.log_id,
        number,
        epoch,
        bytes: control.segment_bytes,
        watermark: end.lsn,
        previous: end,
    };
    let mut segments = chain;
    segments.push(Segment { header, end: u64::MAX, last_lsn: u64::MAX });
    let limits = Limits {
        pending_bytes_max: options.pending_bytes_max,
        reserve_bytes: options.reserve_bytes,
        depth: strategy(&control).depth as usize,
        has_keeper: options.maintenance,
    };
    let live = Live { number, file };
    let shared = Arc::new(Shared::new(folder, control, limits, epoch, live, segments, number_max));
    // With it the segment, and its epoch, is durable.
    shared.stamp().map_err(|no_room| no_room.into_error(&shared))?;
    // Not before the new epoch stands: until then they may say something. (Then it says that they are to be put aside.)
    for number in &lost {
        shared.folder.put_aside(*number)?;
    }
    if !lost.is_empty() {
        shared.folder.sync()?;
    }
    shared.core().retired = empty;
    Ok(shared)
}

fn truncate_suffix(shared: &Arc<Shared>, lsn: u64) -> Result<()> {
    if shared.is_forked() {
        return Err(shared.forked());
    }
    loop {
        let last = shared.core().next_lsn - 1;
        let pending = shared.core().group_of(last);
        if let Some(group) = pending {
            shared.wait(last, &group)?;
        }
        let mut core = shared.core();
        if let Some(error) = shared.poisoned(&core) {
            return Err(error);
        }
        if core.closing {
            return Err(shared.error(ErrorOp::Append, ErrorKind::Closed, "the log was closed; open it anew"));
        }
        let first = core.segments.first().map_or(1, |segment| segment.header.first_lsn());
        if lsn + 1 < first || lsn >= core.next_lsn {
            let text = format!("the log has records {first} to {}, and {lsn} is not among them", core.next_lsn - 1);
            return Err(shared.error(ErrorOp::Append, ErrorKind::NoSuchRecord, text));
        }
        if !core.is_quiet() {
            // A stamp is on its way, or what was appended since.
            drop(core);
            std::thread::yield_now();
            continue;
        }
        if lsn == core.next_lsn - 1 {
            return Ok(());
        }
        if core.spares.is_empty() {
            match &core.no_spare {
                Some(error) => return Err(error.clone()),
                None => {
                    drop(core);
                    shared.wait_for_spare();
                }
            }
            continue;
        }
        let place = place_behind(shared, &core.segments, lsn)?;
        let cut_off = core.cut(shared, place);
        // Behind nothing, and before whatever is appended from now on.
        let group = shared.begin_stamp(&mut core).map_err(|no_room| no_room.into_error(shared))?;
        drop(core);
        shared.wait(lsn, &group)?;
        // Not before: until the new epoch stands they are the log's end.
        let mut core = shared.core();
        core.retired.extend(cut_off);
        (core.no_spare, core.no_spare_since) = (None, None);
        core.wake_keeper(&shared.work);
        return Ok(());
    }
}

/// Behind the block that holds `lsn`, or at the beginning of the log.
fn place_behind(shared: &Shared, segments: &[Segment], lsn: u64) -> Result<End> {
    // Where a segment begins, its header has it.
    if let Some(next) = segments.iter().find(|segment| segment.header.previous.lsn == lsn) {
        return Ok(next.header.previous);
    }
    let Some(segment) = segments.iter().rev().find(|segment| segment.header.first_lsn() <= lsn) else {
        return Ok(End::default());
    };
    if lsn > segment.last_lsn {
        let text = format!("record {lsn} was lost, and left out by a salvage; cut after record {}", segment.last_lsn);
        return Err(shared.error(ErrorOp::Append, ErrorKind::NoSuchRecord, text));
    }
    let number = segment.header.number;
    let file = shared.folder.open(number, false, shared.control.direct)?;
    let mut blocks = Blocks::new(dir::Window::new(file), &segment.header);
    while blocks.next_lsn <= lsn {
        if blocks.next()?.is_none() {
            return Err(shared.folder.damage(number, blocks.offset, 0, format!("record {lsn} cannot be found")));
        }
    }
    Ok(End { segment: number, offset: blocks.offset, lsn, lost_from: 0 })
}

/// A record on its way. Await it, [`wait`](Ticket::wait) for it, or have something called. Dropped, it changes nothing: the record is
/// written all the same.
#[must_use = "nothing is known to be durable until the ticket is ready"]
pub struct Ticket {
    shared: Arc<Shared>,
    group: Arc<Group>,
    lsn: u64,
    place: Option<usize>,
}

impl Ticket {
    /// Number of the record; of the last of a batch.
    pub fn lsn(&self) -> u64 {
        self.lsn
    }

    /// Blocks until the record is durable; gives its number. Writes what is pending, if nobody does.
    ///
    /// # Errors
    /// [`ErrorKind::Indeterminate`] when the log failed while it was on its way, [`ErrorKind::Poisoned`] when it failed before.
    pub fn wait(self) -> Result<u64> {
        self.shared.wait(self.lsn, &self.group)
    }

    /// Has `callback` called when the record is durable or the log has failed.
    ///
    /// Callbacks of a log are called one after the other, in no promised order, on a thread of the log's own (`nowait-log-calls`). One
    /// that blocks holds up those behind it and nothing else; a panic ends with the callback. Some may be called after
    /// [`Log::close`] has returned. In a forked child, where that thread is not, the callback is told so at once.
    ///
    /// A callback may use the log. An append that finds no room there is refused ([`ErrorKind::WouldBlock`]) rather than waits, see
    /// [`Log::room`]. [`Ticket::wait`], [`Log::close`] and all else that says that it blocks does so, and ends.
    pub fn on_durable(self, callback: impl FnOnce(Result<u64>) + Send + 'static) {
        self.shared.call_back(self.lsn, &self.group, Box::new(callback));
    }
}

impl Future for Ticket {
    type Output = Result<u64>;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<u64>> {
        let Ticket { shared, group, lsn, place } = &mut *self;
        if shared.is_forked() {
            return Poll::Ready(Err(shared.forked()));
        }
        if shared.register(group, place, context.waker()) {
            shared.carry_all();
        }
        match group.is_over() {
            true => Poll::Ready(shared.answer(*lsn, group)),
            false => Poll::Pending,
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // A child of a fork has nobody to take a waker from.
        if let Some(place) = self.place.filter(|_| !self.shared.is_forked()) {
            self.shared.unregister(&self.group, place);
        }
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").field("lsn", &self.lsn).finish()
    }
}

/// Result of [`Log::wait_durable`] in the making.
#[must_use = "nothing waits until it is awaited or waited for"]
pub struct Durable {
    shared: Arc<Shared>,
    lsn: u64,
}

fn durable(shared: &Arc<Shared>, lsn: u64) -> Durable {
    Durable { shared: shared.clone(), lsn }
}

impl Durable {
    /// Blocks until the record is durable; gives what is durable by then.
    ///
    /// # Errors
    /// As [`Ticket::wait`]; [`ErrorKind::Closed`] when the log is closed before.
    pub fn wait(self) -> Result<u64> {
        if self.shared.is_forked() {
            return Err(self.shared.forked());
        }
        let group = {
            let core = self.shared.core();
            if self.shared.durable() >= self.lsn { None } else { core.group_of(self.lsn) }
        };
        match group {
            Some(group) => self.shared.wait(self.lsn, &group).map(|_| self.shared.durable()),
            None => {
                self.shared.watch_all();
                local::drive(self)
            }
        }
    }
}

impl Future for Durable {
    type Output = Result<u64>;
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<u64>> {
        if self.shared.watch(self.lsn, context.waker())? {
            self.shared.carry_all();
        }
        let durable = self.shared.durable();
        if durable >= self.lsn { Poll::Ready(Ok(durable)) } else { Poll::Pending }
    }
}

/// Reads all of the log in `dir` and says what is there, changing nothing; of one that is being written, what was there a moment ago.
/// What it says is durable: where no later block proves that, the segment is synced.
///
/// # Errors
/// [`ErrorKind::NotFound`] when there is no log; [`ErrorKind::Damaged`] when neither its control file nor a segment's header says what it
/// is; [`ErrorKind::WouldBlock`] when it is written so quickly that no look at it is like the one before; those of files. Damage of
/// segments is no error here, nor is what the device cannot read: see [`Recovery::damage`] and [`Recovery::unreadable`].
pub fn inspect(dir: impl AsRef<Path>) -> Result<Recovery> {
    inspect_in(Nowait::shared(), dir)
}

/// Reads the log in `dir` without opening it for appending: what is in it, and its records from `from_lsn` on. Changes nothing.
///
/// Of a damaged log the reader gives an error at each place where records are missing, and then what is whole behind it. (If that is
/// before `first_lsn`, [`Recovery::behind`] says where to begin.)
///
/// # Errors
/// As [`inspect`].
pub fn read(dir: impl AsRef<Path>, from_lsn: u64) -> Result<(Reader, Recovery)> {
    read_in(Nowait::shared(), dir, from_lsn)
}

/// As [`read`], on an instance.
///
/// # Errors
/// As [`inspect`].
pub fn read_in(instance: &Nowait, dir: impl AsRef<Path>, from_lsn: u64) -> Result<(Reader, Recovery)> {
    let (folder, found) = find(instance, dir.as_ref())?;
    let recovery = found.recovery.clone();
    Ok((Reader::of_found(folder, found, from_lsn), recovery))
}

/// Reads what is whole in the files that salvages put aside in `dir` ([`Recovery::aside`]): records that are not part of the log any
/// more, in order, and passes over what is not there. Of a number that two of them have it gives the one that was written last.
///
/// # Errors
/// As [`inspect`].
pub fn read_aside(dir: impl AsRef<Path>) -> Result<Reader> {
    read_aside_in(Nowait::shared(), dir)
}

/// As [`read_aside`], on an instance.
///
/// # Errors
/// As [`inspect`].
pub fn read_aside_in(instance: &Nowait, dir: impl AsRef<Path>) -> Result<Reader> {
    let folder = open_folder(instance, &Arc::from(dir.as_ref()))?;
    let (control, runs) = recover::recover_aside(&folder)?.ok_or_else(|| no_log(&folder.path))?;
    Ok(Reader::of_aside(folder, control, runs))
}

/// As [`inspect`], on an instance.
///
/// # Errors
/// As [`inspect`].
pub fn inspect_in(instance: &Nowait, dir: impl AsRef<Path>) -> Result<Recovery> {
    find(instance, dir.as_ref()).map(|(_, found)| found.recovery)
}

fn find(instance: &Nowait, dir: &Path) -> Result<(Folder, Found)> {
    let folder = open_folder(instance, &Arc::from(dir))?;
    // A log that is being written changes while it is read: what is found missing may have come since, and is believed when the
    // next look misses it, too. That look begins when everything that spoke of it had been written.
    const LOOKS: u32 = 50;
    let mut before: Vec<(PathBuf, u64)> = Vec::new();
    for last in (0..LOOKS).rev() {
        let mut found = match recover::recover(&folder, false) {
            Ok(Some(found)) => found,
            Ok(None) => {
                return Err(no_log(&folder.path));
            }
            Err(error) if error.kind() == ErrorKind::NotFound && last > 0 => continue,
            Err(error) => return Err(error),
        };
        let Recovery { damage, from_copy, unreadable, .. } = &mut found.recovery;
        let damaged = damage.iter().map(|damage| (damage.path.clone(), damage.bytes.start));
        // (The control file is never written in place.)
        let control = folder.join(CONTROL);
        let copied = from_copy.iter().filter(|place| place.path != control);
        let copied = copied.map(|place| (place.path.clone(), place.offset));
        let doubts: Vec<(PathBuf, u64)> = damaged.chain(copied).collect();
        // What a device cannot read does not come of being written meanwhile.
        if !unreadable.is_empty() || doubts.iter().all(|doubt| before.contains(doubt)) {
            return Ok((folder, found));
        }
        before = doubts;
    }
    let error = Error::new(ErrorOp::Recover, ErrorKind::WouldBlock).at(&folder.path);
    Err(error.explained("the log is written so quickly that no look at it is like the one before; look again later"))
}
