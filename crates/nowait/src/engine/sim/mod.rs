//! A simulator: a disk in memory, with faults by seed, and which can crash. For tests of what is built on this crate, this crate's own
//! included.
//!
//! It answers attempts with "not now", short, or empty results, completes what was submitted in a seeded order, cuts
//! transfers short and fails them, all with chances that can be set. The same seed and the same sequence of operations give the
//! same faults. Completions come from a thread of the simulator's, or, with [`Sim::manual`], when [`Sim::step`] is called.
//!
//! [`Sim::crash`] gives the disk that is there when the power comes back. It may do what any real file system may do, and more:
//!
//! * A write is durable when a sync of its file that began after it was complete has succeeded; at once, if it was made durable, alone or
//!   by `O_DSYNC`. Until then each of its sectors of 512 bytes is kept or lost, whatever becomes of the others and of other writes;
//!   also those of a write that is under way, a durable one too. What is durable is never undone by an earlier write that is kept.
//! * The length is a change of its own, durable as a write is. If it is lost, a sector that is kept beyond the end still extends the
//!   file, with zeros between; if it is kept, what is lost reads as zeros. A cut that is lost brings back what was there.
//! * A name that was created, removed or renamed is durable after a sync of its directory (of both, for a rename from one to the other),
//!   and of no file. Until then it is kept or lost; of a rename, old or new is there, never neither. With a directory goes what is in
//!   it. Changes of names and lengths that are under way are not made yet.
//! * A write that fails by [`Faults::write_error`] has changed some of its sectors. A sync that fails by [`Faults::sync_error`] has made
//!   some of what was written durable; the rest never will be, also if a later sync succeeds, though it is still read until the page cache
//!   is dropped ([`Advice::DontNeed`](crate::Advice::DontNeed) for the whole file).
//!
//! Directories need not be made before files are created in them, and are then there as long as these. Direct I/O is not refused, and goes the same way.

mod disk;

use std::collections::HashSet;
use std::path::Path as FsPath;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{Advice, FallocateFlags, OFlags};
use rustix::io::Errno;

pub use self::disk::Unsynced;
use self::disk::{FILE_MAX, Image, Node, Store, UnderWay, plain};
use super::Engine;
use crate::buf::lock;
use crate::direct::Directness;
use crate::op::{
    Backlog, Done, FileQueues, Handle, Outcome, Owner, QueueKind, Request, SHARE, Slot, Step, Transfer, Waiter, Work,
    in_queues, step,
};
use crate::stats::Count;
use crate::sys::{Wait, WriteFlags};

/// Chances of faults, each from 0 to 1, for each call.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// An attempt finds nothing cached.
    pub not_now: f64,
    /// An attempt answers with no bytes although there are some, as some kernels did (5.9, 5.10).
    pub empty_now: f64,
    /// An attempt is served in part.
    pub short_now: f64,
    /// A call that may wait is served in part.
    pub short: f64,
    /// A call that may wait is interrupted.
    pub interrupted: f64,
    /// A call that may wait fails with EIO, and moves nothing.
    pub io_error: f64,
    /// A read that may wait fails with EIO.
    pub read_error: f64,
    /// A write that may wait fails with EIO, and has written some of its sectors.
    pub write_error: f64,
    /// A write that extends its file, an allocation or the creation of a file fails with ENOSPC.
    pub no_space: f64,
    /// A sync fails with EIO: of a file, or of a directory.
    pub sync_error: f64,
    /// After a write to the page cache the disk fails to write back some of what is not durable. Reads go on showing it. The next
    /// sync, `sync_range` or durable write of the file is told (EIO), and nobody after that.
    pub writeback_error: f64,
    /// [`File::close`](crate::File::close) fails with EIO, as where a server is told of writes when
    /// the file is closed. The file is closed all the same.
    pub close_error: f64,
    /// Attempts are refused for good (EOPNOTSUPP), as on tmpfs, overlayfs and FUSE.
    pub nowait_refused: bool,
    /// Allocation is refused (EOPNOTSUPP), as on file systems that know none.
    pub allocate_refused: bool,
    /// Files that are opened for direct I/O go through the page cache all the same, and say so, as on file systems without it.
    pub direct_refused: bool,
}

/// How many operations a disk takes at a time.
const DEPTH: usize = 64;

/// A simulated disk. Clones are the same disk.
#[derive(Clone)]
pub struct Sim(Arc<Disk>);

struct Disk {
    world: Mutex<World>,
    work: Condvar,
    quiet: Condvar,
    manual: bool,
    began: Instant,
    advanced_ns: AtomicU64,
}

struct World {
    random: Random,
    faults: Faults,
    store: Store,
    /// And the numbers under which they began.
    in_flight: Vec<(u64, Arc<Slot>)>,
    line: Backlog,
    /// Files whose operations never end.
    hung: HashSet<usize>,
    depth: usize,
    settling: usize,
    engines: usize,
    watcher: Option<Watcher>,
}

type Watcher = Arc<dyn Fn(&Sim) + Send + Sync>;

impl Sim {
    /// A disk whose thread completes operations by itself, in an order given by `seed`.
    pub fn new(seed: u64) -> Sim {
        Sim::with(seed, false, Store::new(), DEPTH)
    }

    /// A disk on which operations complete only in [`Sim::step`]. (Callers that wait run theirs themselves, here as anywhere.)
    pub fn manual(seed: u64) -> Sim {
        Sim::with(seed, true, Store::new(), DEPTH)
    }

    fn with(seed: u64, manual: bool, store: Store, depth: usize) -> Sim {
        let world = World {
            random: Random(seed),
            faults: Faults::default(),
            store,
            in_flight: Vec::new(),
            line: Backlog::default(),
            hung: HashSet::new(),
            depth,
            settling: 0,
            engines: 0,
            watcher: None,
        };
        Sim(Arc::new(Disk {
            world: Mutex::new(world),
            work: Condvar::new(),
            quiet: Condvar::new(),
            manual,
            began: Instant::now(),
            advanced_ns: AtomicU64::new(0),
        }))
    }

    /// Lets time pass: for what is due after a while, such as the stamp of a log that has become idle. On a disk of
    /// [`Sim::manual`] none passes otherwise.
    pub fn advance(&self, time: Duration) {
        let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0.advanced_ns.fetch_add(time_ns, Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> Instant {
        let now = if self.0.manual { self.0.began } else { Instant::now() };
        now + Duration::from_nanos(self.0.advanced_ns.load(Ordering::Relaxed))
    }

    /// Sets the chances of faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        lock(&self.0.world).faults = faults;
    }

    /// Sets how many operations the disk takes at a time; more wait in line, and it knows nothing of them. Default: 64.
    pub fn set_depth(&self, depth: usize) {
        lock(&self.0.world).depth = depth.max(1);
    }

    /// Has operations on the file at `path`, which must be there, never end, as on a device that does not answer; or has them end
    /// again. Those that are under way included.
    pub fn set_hung(&self, path: impl AsRef<FsPath>, hangs: bool) {
        let mut world = lock(&self.0.world);
        if let Some(Node::File(file)) = world.store.node(&plain(path.as_ref())) {
            if hangs {
                world.hung.insert(file);
            } else {
                world.hung.remove(&file);
            }
        }
        drop(world);
        self.0.work.notify_all();
    }

    /// Sets how long all files that have a name may be together; beyond it there is no space (ENOSPC). A write that does not fit is
    /// made as far as it does. Default: no limit.
    pub fn set_capacity(&self, bytes: u64) {
        lock(&self.0.world).store.capacity = bytes;
    }

    /// Puts a file there, in place of one of the same name; durable.
    pub fn create(&self, path: impl AsRef<FsPath>, contents: impl Into<Vec<u8>>) {
        // In place of: a handle that is open keeps the old contents, as with rename(2).
        lock(&self.0.world).store.create(&plain(path.as_ref()), &contents.into(), true);
    }

    /// Spoils sectors of a file, those that `bytes` touch: reads of them fail with EIO, also after a crash, until they are written. False
    /// when there is no such file.
    pub fn spoil(&self, path: impl AsRef<FsPath>, bytes: std::ops::Range<u64>) -> bool {
        let mut world = lock(&self.0.world);
        let Some(Node::File(file)) = world.store.node(&plain(path.as_ref())) else { return false };
        let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(FILE_MAX);
        world.store.spoil(file, place(bytes.start)..place(bytes.end));
        true
    }

    /// What a file holds, as reads see it; None if there is none of that name.
    pub fn contents(&self, path: impl AsRef<FsPath>) -> Option<Vec<u8>> {
        let world = lock(&self.0.world);
        match world.store.node(&plain(path.as_ref()))? {
            Node::File(file) => world.store.contents(file).map(|contents| contents.get(0..contents.len())),
            Node::Directory => None,
        }
    }

    /// Number of operations that are submitted and not complete.
    pub fn pending(&self) -> usize {
        let world = lock(&self.0.world);
        world.in_flight.len() + world.line.len() + world.settling
    }

    /// Gives one operation in flight one result. False when there is none.
    pub fn step(&self) -> bool {
        self.0.step()
    }

    /// What a crash may lose, in the order in which it was made, and at last what is under way.
    pub fn unsynced(&self) -> Vec<Unsynced> {
        lock(&self.0.world).store.crash().unsynced()
    }

    /// The disk after a crash now, with the same limits, without faults. This one goes on as it was.
    ///
    /// `keep` is asked, in the order of [`Sim::unsynced`], what is kept: of a write for each of its sectors, the first of which has number
    /// zero; of anything else once.
    pub fn crash(&self, keep: impl FnMut(&Unsynced, usize) -> bool) -> Sim {
        let seed = lock(&self.0.world).random.0;
        self.crash_to(seed, keep)
    }

    /// The disk after a crash now of which `seed` says what it keeps: all, nothing, or what is between; whole changes or single sectors.
    pub fn crash_at_random(&self, seed: u64) -> Sim {
        let mut random = Random(seed);
        let next = random.next();
        let probability = match random.next() % 8 {
            0 => 0.0,
            1 => 1.0,
            _ => random.uniform(),
        };
        let by_sector = random.next() % 2 == 0;
        let mut kept = false;
        self.crash_to(next, |_, sector| {
            if sector == 0 || by_sector {
                kept = random.chance(probability);
            }
            kept
        })
    }

    fn crash_to(&self, seed: u64, keep: impl FnMut(&Unsynced, usize) -> bool) -> Sim {
        let world = lock(&self.0.world);
        let (crash, depth) = (world.store.crash(), world.depth);
        // Whoever is asked may look at this disk.
        drop(world);
        Sim::with(seed, self.0.manual, crash.decide(keep), depth)
    }

    /// Has `look` called before each call by which a caller that waits changes the disk, with the write under way if it is one: a place to
    /// crash at, since such calls are never submitted. On the caller's thread.
    pub fn watch(&self, look: impl Fn(&Sim) + Send + Sync + 'static) {
        lock(&self.0.world).watcher = Some(Arc::new(look));
    }

    pub(crate) fn engine(&self) -> Arc<dyn Engine> {
        if !self.0.manual {
            lock(&self.0.world).engines += 1;
            let disk = self.0.clone();
            let thread = std::thread::Builder::new().name("nowait-sim".into());
            // Without a thread operations still complete: by `step`, or in `drain`.
            let _ = thread.spawn(move || disk.serve());
        }
        Arc::new(SimEngine(self.0.clone()))
    }
}

impl std::fmt::Debug for Sim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sim").field("pending", &self.pending()).field("manual", &self.0.manual).finish()
    }
}

/// SplitMix64: the whole state is one word, which is the seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn chance(&mut self, probability: f64) -> bool {
        // Drawn also when the probability is zero, so that one fault's setting does not shift the others.
        self.uniform() < probability
    }
}

/// The file of a handle.
fn file_of(handle: Option<&Handle>) -> Result<usize, Errno> {
    match handle {
        Some(Handle::Simulated { file, .. }) => Ok(*file),
        _ => Err(Errno::BADF),
    }
}

/// Whether a write goes to the end of the file, whatever its offset.
fn appends(handle: Option<&Handle>, flags: WriteFlags) -> bool {
    flags.contains(WriteFlags::APPEND)
        || matches!(handle, Some(Handle::Simulated { flags, .. }) if flags.contains(OFlags::APPEND))
}

/// What the disk has of a request, if it is a write.
fn under_way(handle: Option<&Handle>, request: &Request) -> Option<UnderWay> {
    let Request::Write(transfer, flags) = request else { return None };
    let file = file_of(handle).ok()?;
    let start = usize::try_from(transfer.position()).unwrap_or(usize::MAX);
    let mut bytes = vec![0; transfer.left()];
    transfer.copy_to(&mut bytes);
    Some(UnderWay { file, start: (!appends(handle, *flags)).then_some(start), bytes: Arc::new(bytes) })
}

impl World {
    fn contents(&self, file: usize) -> Result<&Image, Errno> {
        self.store.contents(file).ok_or(Errno::BADF)
    }

    /// The disk takes an operation.
    fn hangs(&self, handle: Option<&Handle>) -> bool {
        !self.hung.is_empty() && file_of(handle).is_ok_and(|file| self.hung.contains(&file))
    }

    /// Places in `in_flight` of what may end.
    fn may_end(&self) -> Vec<usize> {
        let ends = |slot: &Arc<Slot>| slot.with(|_, owner| !self.hangs(owner.handle())) != Some(false);
        self.in_flight.iter().enumerate().filter(|(_, (_, slot))| ends(slot)).map(|(place, _)| place).collect()
    }

    /// The disk takes an operation: of a file that has little under way, whatever others have.
    fn has_room_for(&self, slot: &Slot) -> bool {
        self.in_flight.len() < self.depth || slot.is_below(SHARE) && !self.hung.is_empty()
    }

    fn admit(&mut self, slot: Arc<Slot>) {
        let write = slot.begin(|request, owner| under_way(owner.handle(), request));
        self.in_flight.push((self.store.begin(write), slot));
    }

    /// One call that may wait, of what began under `number`. None when the rest has to be asked for.
    fn call(&mut self, handle: Option<&Handle>, request: &mut Request, number: u64) -> Option<Outcome> {
        let (transfer, flags) = match request {
            Request::Read(transfer) => (transfer, None),
            Request::Write(transfer, flags) => (transfer, Some(*flags)),
            request => return Some(self.other(handle, request, number)),
        };
        let result = self.transfer(handle, transfer, flags, Wait::Allowed);
        match step(transfer, result) {
            Step::Again => None,
            Step::Finish(end) => Some(end.map(|()| Done::Nothing)),
        }
    }

    /// One call on one transfer, with what may go wrong. Writes have flags.
    fn transfer(
        &mut self,
        handle: Option<&Handle>,
        transfer: &mut Transfer,
        flags: Option<WriteFlags>,
        wait: Wait,
    ) -> Result<usize, Errno> {
        let file = file_of(handle)?;
        let length = self.contents(file)?.len();
        if transfer.left() == 0 {
            return Ok(0);
        }
        let faults = self.faults;
        let position = usize::try_from(transfer.position()).unwrap_or(usize::MAX);
        let start = match flags {
            Some(flags) if appends(handle, flags) => length,
            Some(_) => position,
            None => position.min(length),
        };
        let mut n = if flags.is_some() { transfer.left() } else { (length - start).min(transfer.left()) };
        let extends = flags.is_some() && start.saturating_add(n) > length;
        let (read_error, write_error) =
            if flags.is_some() { (0.0, faults.write_error) } else { (faults.read_error, 0.0) };
        let full = self.random.chance(faults.no_space) && extends;
        let mut fails = false;
        let short = match wait {
            Wait::Never if faults.nowait_refused => return Err(Errno::OPNOTSUPP),
            _ if full => return Err(Errno::NOSPC),
            Wait::Never if self.random.chance(faults.not_now) => return Err(Errno::AGAIN),
            Wait::Never if self.random.chance(faults.empty_now) => return Ok(0),
            Wait::Never => self.random.chance(faults.short_now),
            Wait::Allowed if self.random.chance(faults.io_error) => return Err(Errno::IO),
            Wait::Allowed if self.random.chance(read_error) => return Err(Errno::IO),
            Wait::Allowed if self.random.chance(faults.interrupted) => return Err(Errno::INTR),
            Wait::Allowed => {
                fails = self.random.chance(write_error);
                self.random.chance(faults.short)
            }
        };
        if short && n > 1 {
            n = 1 + (self.random.next() % (n as u64 - 1)) as usize;
        }
        let Some(flags) = flags else {
            let readable = self.store.readable(file, start..start + n);
            if readable == 0 && n > 0 {
                return Err(Errno::IO);
            }
            return Ok(transfer.fill(&self.contents(file)?.get(start..start + readable)));
        };
        if start.checked_add(n).is_none_or(|end| end > FILE_MAX) {
            return Err(Errno::FBIG);
        }
        if start + n > length {
            let room = usize::try_from(self.store.room()).unwrap_or(usize::MAX);
            n = n.min(length.saturating_add(room).saturating_sub(start));
            if n == 0 {
                return Err(Errno::NOSPC);
            }
        }
        let mut bytes = vec![0; n];
        transfer.copy_to(&mut bytes);
        if fails {
            let World { store, random, .. } = self;
            let probability = random.uniform();
            store.fail_write(file, start, &bytes, || random.chance(probability));
            return Err(Errno::IO);
        }
        let durable = flags.contains(WriteFlags::DURABLE);
        self.store.write(file, start, bytes, durable);
        if durable {
            self.report(file)?;
        } else if self.random.chance(faults.writeback_error) {
            let World { store, random, .. } = self;
            let probability = random.uniform();
            store.fail_write_back(file, || random.chance(probability));
        }
        Ok(n)
    }

    /// Tells of a failed write-back, once.
    fn report(&mut self, file: usize) -> Result<(), Errno> {
        if self.store.take_report(file) { Err(Errno::IO) } else { Ok(()) }
    }

    /// Everything but transfers is done in one call; it began under `number`.
    fn other(&mut self, handle: Option<&Handle>, request: &Request, number: u64) -> Outcome {
        match request {
            Request::Open { path, flags, direct, .. } => {
                let path = plain(&path.path);
                let file = match self.store.node(&path) {
                    Some(_) if flags.contains(OFlags::CREATE | OFlags::EXCL) => return Err(Errno::EXIST),
                    Some(Node::Directory) => return Err(Errno::ISDIR),
                    Some(Node::File(file)) => file,
                    None if !flags.contains(OFlags::CREATE) => return Err(Errno::NOENT),
                    None if self.random.chance(self.faults.no_space) => return Err(Errno::NOSPC),
                    None => self.store.create(&path, &[], false),
                };
                if flags.contains(OFlags::TRUNC) {
                    self.store.set_len(file, 0);
                }
                let refused = *direct && self.faults.direct_refused;
                let directness = if refused { Directness::Refused } else { Directness::NotAsked };
                Ok(Done::Opened(Handle::Simulated { file, flags: *flags }, directness))
            }
            Request::Size => self.contents(file_of(handle)?).map(|contents| Done::Size(contents.len() as u64)),
            Request::SetLen(length) => {
                let length = usize::try_from(*length).ok().filter(|length| *length <= FILE_MAX).ok_or(Errno::FBIG)?;
                let file = file_of(handle)?;
                self.make_room(file, length)?;
                self.store.set_len(file, length);
                Ok(Done::Nothing)
            }
            Request::Sync { .. } => {
                let file = file_of(handle)?;
                if self.random.chance(self.faults.sync_error) {
                    let World { store, random, .. } = self;
                    let probability = random.uniform();
                    store.fail_sync(file, number, || random.chance(probability));
                    return Err(Errno::IO);
                }
                self.store.sync(file, number);
                self.report(file)?;
                Ok(Done::Nothing)
            }
            // Names are found by their paths alone: nothing here is moved while it is held.
            Request::OpenDir(path) => match self.store.node(&plain(path)).ok_or(Errno::NOENT)? {
                Node::File(_) => Err(Errno::NOTDIR),
                Node::Directory => {
                    let handle = Handle::Simulated { file: usize::MAX, flags: OFlags::empty() };
                    Ok(Done::Opened(handle, Directness::NotAsked))
                }
            },
            Request::SyncDir(path) => {
                let path = plain(&path.path);
                match self.store.node(&path) {
                    None => Err(Errno::NOENT),
                    Some(Node::File(_)) => Err(Errno::NOTDIR),
                    // What it had to make durable stays to be lost.
                    Some(Node::Directory) if self.random.chance(self.faults.sync_error) => Err(Errno::IO),
                    Some(Node::Directory) => {
                        self.store.sync_directory(&path, number);
                        Ok(Done::Nothing)
                    }
                }
            }
            // There is nothing that could be mapped, or that a call of std would find.
            Request::Fault { .. } | Request::Call(_) => Err(Errno::OPNOTSUPP),
            Request::CreateDir(path) => {
                let path = plain(path);
                if self.store.node(&path).is_some() {
                    return Err(Errno::EXIST);
                }
                self.store.create_directory(&path);
                Ok(Done::Nothing)
            }
            Request::List(path) => {
                let path = plain(&path.path);
                match self.store.node(&path).ok_or(Errno::NOENT)? {
                    Node::File(_) => Err(Errno::NOTDIR),
                    Node::Directory => Ok(Done::Names(self.store.list(&path))),
                }
            }
            Request::Rename { from, to, replace } => {
                let (from, to) = (plain(&from.path), plain(&to.path));
                match (self.store.node(&from).ok_or(Errno::NOENT)?, self.store.node(&to)) {
                    (_, Some(_)) if !replace => Err(Errno::EXIST),
                    // Not simulated.
                    (Node::Directory, _) => Err(Errno::OPNOTSUPP),
                    (_, Some(Node::Directory)) => Err(Errno::ISDIR),
                    (Node::File(file), _) => {
                        self.store.rename(&from, &to, file);
                        Ok(Done::Nothing)
                    }
                }
            }
            Request::Remove(path) => {
                let path = plain(&path.path);
                match self.store.node(&path).ok_or(Errno::NOENT)? {
                    Node::Directory => Err(Errno::ISDIR),
                    Node::File(file) => {
                        self.store.remove(&path, file);
                        Ok(Done::Nothing)
                    }
                }
            }
            Request::Allocate { .. } if self.faults.allocate_refused => Err(Errno::OPNOTSUPP),
            Request::Allocate { mode, offset, length } => {
                let end = offset.checked_add(*length).and_then(|end| usize::try_from(end).ok());
                let end = end.filter(|end| *end <= FILE_MAX).ok_or(Errno::FBIG)?;
                let start = *offset as usize;
                if start == end {
                    return Err(Errno::INVAL);
                }
                if self.random.chance(self.faults.no_space) {
                    return Err(Errno::NOSPC);
                }
                let file = file_of(handle)?;
                if !mode.contains(FallocateFlags::KEEP_SIZE) {
                    self.make_room(file, end)?;
                    self.store.extend(file, end, false);
                }
                if mode.intersects(FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE) {
                    let end = end.min(self.contents(file)?.len());
                    self.store.write(file, start, vec![0; end.saturating_sub(start)], false);
                }
                Ok(Done::Nothing)
            }
            Request::Close(_) if self.random.chance(self.faults.close_error) => Err(Errno::IO),
            Request::SyncRange { .. } => self.report(file_of(handle)?).map(|()| Done::Nothing),
            Request::Advise { advice: Advice::DontNeed, offset: 0, length: 0 } => {
                self.store.drop_cache(file_of(handle)?);
                Ok(Done::Nothing)
            }
            Request::Advise { .. } | Request::Close(_) | Request::Read(_) | Request::Write(..) => Ok(Done::Nothing),
        }
    }

    /// Whether the disk takes a file of this length.
    fn make_room(&self, file: usize, length: usize) -> Result<(), Errno> {
        let more = length.saturating_sub(self.contents(file)?.len());
        if more as u64 > self.store.room() { Err(Errno::NOSPC) } else { Ok(()) }
    }
}

impl Disk {
    fn step(&self) -> bool {
        let mut world = lock(&self.world);
        let chosen = if world.hung.is_empty() {
            if world.in_flight.is_empty() {
                return false;
            }
            (world.random.next() % world.in_flight.len() as u64) as usize
        } else {
            let may_end = world.may_end();
            if may_end.is_empty() {
                return false;
            }
            may_end[(world.random.next() % may_end.len() as u64) as usize]
        };
        let (number, slot) = world.in_flight.swap_remove(chosen);
        world.settling += 1;
        // Not under the lock: one that was abandoned gives back a permit, which lets others in.
        drop(world);
        let work = slot.take_work();
        // What may take a file's report has its turn, beside threads that block.
        let file = work.as_ref().and_then(|work| Some((work.owner.file()?, &work.request)));
        let file = file.filter(|(file, request)| file.queue(request) == Some(QueueKind::Syncs));
        let queue = file.map(|(file, _)| file.queues().clone());
        let waits = queue.as_ref().is_some_and(|queues| !queues.of(QueueKind::Syncs).enter());
        let work = match work {
            Some(work) if waits => {
                slot.put_back(work);
                None
            }
            work => work,
        };
        let mut world = lock(&self.world);
        let mut rest = None;
        let end = work.and_then(|mut work| {
            let Work { request, owner } = &mut work;
            let end = match request {
                Request::Sync { .. } => Some(owner.synced(|| world.other(owner.handle(), request, number))),
                _ => world.call(owner.handle(), request, number),
            };
            match (&end, owner) {
                (None, owner) => rest = under_way(owner.handle(), request),
                // Before anybody else asks the disk.
                (Some(outcome), Owner::File(file)) => file.record_writeback_error(request, outcome),
                (Some(_), Owner::Nobody(_)) => {}
            }
            slot.put_back(work);
            if end.is_none() {
                world.in_flight.push((number, slot.clone()));
            }
            end
        });
        world.store.set_under_way(number, rest);
        loop {
            let next = match world.in_flight.len() < world.depth {
                true => world.line.pop(),
                false if world.hung.is_empty() => None,
                false => world.line.pop_below(SHARE, in_queues),
            };
            let Some(next) = next else { break };
            world.admit(next);
        }
        let shed = world.line.take_shed();
        drop(world);
        match queue {
            // It waits in the queue, unless that has just become free.
            Some(queues) if waits && !queues.of(QueueKind::Syncs).join(slot.clone()) => {}
            Some(queues) => self.give_up(&queues),
            None => {}
        }
        // A completion wakes whom it may, with nothing locked.
        if let Some(outcome) = end {
            drop(slot.finish(outcome, Count::Ring));
        }
        drop(slot);
        let discarded = discard(shed);
        let mut world = lock(&self.world);
        world.line.discarded(discarded);
        world.settling -= 1;
        if world.in_flight.is_empty() && world.settling == 0 {
            self.quiet.notify_all();
        }
        true
    }

    /// Gives up a file's queue of syncs, which this thread owns. Slots that waited in it are in flight again.
    fn give_up(&self, queues: &FileQueues) {
        let queue = queues.of(QueueKind::Syncs);
        while queue.leave() {
            let first = queue.lock().waiters.pop_front();
            if let Some(slot) = first.and_then(Waiter::into_slot) {
                self.submit(slot);
            }
        }
    }

    fn submit(&self, slot: Arc<Slot>) {
        let mut world = lock(&self.world);
        if world.has_room_for(&slot) {
            world.admit(slot);
        } else {
            slot.count(Count::Queued);
            world.line.push(slot);
        }
        drop(world);
        self.work.notify_all();
    }

    fn serve(&self) {
        loop {
            while self.step() {}
            let mut world = lock(&self.world);
            while world.in_flight.is_empty() || !world.hung.is_empty() && world.may_end().is_empty() {
                if world.engines == 0 {
                    return;
                }
                world = self.work.wait(world).unwrap_or_else(|poisoned| poisoned.into_inner());
            }
        }
    }
}

/// Ends what the line has shed; gives how many that were. With nothing locked.
fn discard(shed: Vec<Arc<Slot>>) -> usize {
    shed.iter().for_each(|slot| drop(slot.discard()));
    shed.len()
}

struct SimEngine(Arc<Disk>);

impl SimEngine {
    /// Shows the disk to whoever watches it, as it is when a call has begun.
    fn look(&self, handle: Option<&Handle>, request: &Request, number: u64) {
        let mut world = lock(&self.0.world);
        let Some(watcher) = world.watcher.clone() else { return };
        world.store.set_under_way(number, under_way(handle, request));
        drop(world);
        watcher(&Sim(self.0.clone()));
    }
}

impl Drop for SimEngine {
    fn drop(&mut self) {
        let mut world = lock(&self.0.world);
        world.engines = world.engines.saturating_sub(1);
        self.0.work.notify_all();
    }
}

impl Engine for SimEngine {
    fn try_now(&self, handle: &Handle, request: &mut Request, wait: Wait) -> Result<usize, Errno> {
        let (transfer, flags) = match request {
            Request::Read(transfer) => (transfer, None),
            Request::Write(transfer, flags) => (transfer, Some(*flags)),
            _ => return Err(Errno::INVAL),
        };
        let n = lock(&self.0.world).transfer(Some(handle), transfer, flags, wait)?;
        transfer.advance(n);
        Ok(n)
    }

    fn run(&self, handle: Option<&Handle>, request: &mut Request) -> Outcome {
        let number = lock(&self.0.world).store.begin(None);
        loop {
            let changes_nothing = matches!(
                request,
                Request::Read(_)
                    | Request::Size
                    | Request::List(_)
                    | Request::OpenDir(_)
                    | Request::Advise { .. }
                    | Request::Close(_)
            );
            if !changes_nothing {
                self.look(handle, request, number);
            }
            let mut world = lock(&self.0.world);
            while world.hangs(handle) {
                world = self.0.work.wait(world).unwrap_or_else(|poisoned| poisoned.into_inner());
            }
            let end = world.call(handle, request, number);
            world.store.set_under_way(number, None);
            if let Some(outcome) = end {
                return outcome;
            }
        }
    }

    fn submit(&self, slot: Arc<Slot>) {
        self.0.submit(slot);
    }

    fn resume(&self, queues: &Arc<FileQueues>, kind: QueueKind) {
        if kind == QueueKind::Syncs {
            self.0.give_up(queues);
        }
    }

    fn drain(&self) {
        if self.0.manual {
            while self.0.step() {}
            return;
        }
        let mut world = lock(&self.0.world);
        while !world.in_flight.is_empty() || world.settling > 0 {
            world = self.0.quiet.wait(world).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }
}
