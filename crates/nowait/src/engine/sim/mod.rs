//! A simulator: a disk in memory, with faults by seed, and which can crash. For tests of what is
//! built on this crate, this crate's own included.
//!
//! It answers attempts with "not now", short, or empty results, completes what was submitted in a
//! seeded order, cuts transfers short and fails them, all with chances that can be set. The same
//! seed and the same sequence of operations give the same faults. Completions come from a thread of
//! the simulator's, or, with [`Sim::manual`], when [`Sim::step`] is called.
//!
//! [`Sim::crash`] gives the disk that is there when the power comes back. It may do what any real
//! file system may do, and more:
//!
//! * A write is durable when a sync of its file that began after it was complete has succeeded; at
//!   once, if it was made durable, alone or by `O_DSYNC`. Until then each of its sectors of 512
//!   bytes is kept or lost, whatever becomes of the others and of other writes; also those of a
//!   write that is under way, a durable one too. What is durable is never undone by an earlier
//!   write that is kept.
//! * The length is a change of its own, durable as a write is. If it is lost, a sector that is kept
//!   beyond the end still extends the file, with zeros between; if it is kept, what is lost reads
//!   as zeros. A cut that is lost brings back what was there.
//! * A name that was created, removed or renamed is durable after a sync of its directory (of both,
//!   for a rename from one to the other), and of no file. Until then it is kept or lost; of a
//!   rename, old or new is there, never neither. With a directory goes what is in it. Changes of
//!   names and lengths that are under way are not made yet.
//! * A write that fails by [`Faults::write_error`] has changed some of its sectors. A sync that
//!   fails by [`Faults::sync_error`] has made some of what was written durable; the rest never will
//!   be, also if a later sync succeeds, though it is still read until the page cache is dropped
//!   ([`Advice::DontNeed`](crate::Advice::DontNeed) for the whole file).
//!
//! Directories need not be made before files are created in them, and are then there as long as
//! these. Direct I/O is not refused, and goes the same way.

mod change;
mod disk;
mod engine;
mod image;
mod world;

use std::collections::HashSet;
use std::path::Path as FsPath;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use self::change::Node;
pub use self::change::Unsynced;
use self::disk::{FILE_MAX, Store, plain};
use self::engine::{Disk, SimEngine};
use self::world::{Random, World};
use super::Engine;
use crate::buf::lock;
use crate::op::Backlog;

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
    /// After a write to the page cache the disk fails to write back some of what is not durable.
    /// Reads go on showing it. The next sync, `sync_range` or durable write of the file is told
    /// (EIO), and nobody after that.
    pub writeback_error: f64,
    /// [`File::close`](crate::File::close) fails with EIO, as where a server is told of writes when
    /// the file is closed. The file is closed all the same.
    pub close_error: f64,
    /// Attempts are refused for good (EOPNOTSUPP), as on tmpfs, overlayfs and FUSE.
    pub nowait_refused: bool,
    /// Allocation is refused (EOPNOTSUPP), as on file systems that know none.
    pub allocate_refused: bool,
    /// Files that are opened for direct I/O go through the page cache all the same, and say so, as
    /// on file systems without it.
    pub direct_refused: bool,
}

/// How many operations a disk takes at a time.
const DEPTH: usize = 64;

/// Wall clock of a new disk, in milliseconds since 1970: 2026-01-01.
const CLOCK_MS: i64 = 1_767_225_600_000;

/// A simulated disk. Clones are the same disk.
#[derive(Clone)]
pub struct Sim(Arc<Disk>);

impl Sim {
    /// A disk whose thread completes operations by itself, in an order given by `seed`.
    pub fn new(seed: u64) -> Sim {
        Sim::with(seed, false, Store::new(), DEPTH)
    }

    /// A disk on which operations complete only in [`Sim::step`]. (Callers that wait run theirs
    /// themselves, here as anywhere.)
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
            clock_ms: AtomicI64::new(CLOCK_MS),
        }))
    }

    /// Lets time pass: for what is due after a while, such as the watermark block of an idle log.
    /// On a disk of [`Sim::manual`] none passes otherwise.
    pub fn advance(&self, time: Duration) {
        let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0.advanced_ns.fetch_add(time_ns, Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> Instant {
        let now = if self.0.manual { self.0.began } else { Instant::now() };
        now + Duration::from_nanos(self.0.advanced_ns.load(Ordering::Relaxed))
    }

    /// Sets the wall clock to a time since 1970. The clock jumps, and continues from there. It
    /// starts at 2026-01-01, and advances with [`Sim::advance`].
    pub fn set_clock(&self, since_1970: Duration) {
        let since_1970_ms = i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX);
        self.0.clock_ms.store(since_1970_ms.saturating_sub(self.passed_ms()), Ordering::Relaxed);
    }

    pub(crate) fn wall_clock(&self) -> Duration {
        let clock_ms = self.0.clock_ms.load(Ordering::Relaxed).saturating_add(self.passed_ms());
        Duration::from_millis(u64::try_from(clock_ms).unwrap_or(0))
    }

    fn passed_ms(&self) -> i64 {
        let passed = self.now().saturating_duration_since(self.0.began);
        i64::try_from(passed.as_millis()).unwrap_or(i64::MAX)
    }

    /// Sets the chances of faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        lock(&self.0.world).faults = faults;
    }

    /// Sets how many operations the disk takes at a time; more wait in line, and it knows nothing
    /// of them. Default: 64.
    pub fn set_depth(&self, depth: usize) {
        lock(&self.0.world).depth = depth.max(1);
    }

    /// Has operations on the file at `path`, which must be there, never end, as on a device that
    /// does not answer; or has them end again. Those that are under way included.
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

    /// Sets how long all files that have a name may be together; beyond it there is no space
    /// (ENOSPC). A write that does not fit is made as far as it does. Default: no limit.
    pub fn set_capacity(&self, bytes: u64) {
        lock(&self.0.world).store.capacity = bytes;
    }

    /// Puts a file there, in place of one of the same name; durable.
    pub fn create(&self, path: impl AsRef<FsPath>, contents: impl Into<Vec<u8>>) {
        // In place of: a handle that is open keeps the old contents, as with rename(2).
        lock(&self.0.world).store.create(&plain(path.as_ref()), &contents.into(), true);
    }

    /// Spoils sectors of a file, those that `bytes` touch: reads of them fail with EIO, also after
    /// a crash, until they are written. False when there is no such file.
    pub fn spoil(&self, path: impl AsRef<FsPath>, bytes: std::ops::Range<u64>) -> bool {
        let mut world = lock(&self.0.world);
        let Some(Node::File(file)) = world.store.node(&plain(path.as_ref())) else { return false };
        let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(FILE_MAX);
        world.store.spoil(file, place(bytes.start)..place(bytes.end));
        true
    }

    /// The bytes of a file, as reads see them; none if there is no file of that name.
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

    /// The changes that a crash may lose, in the order in which they were made; at last those under
    /// way.
    pub fn unsynced(&self) -> Vec<Unsynced> {
        lock(&self.0.world).store.crash().unsynced()
    }

    /// The disk after a crash now, with the same limits, without faults. This one goes on as it
    /// was.
    ///
    /// `keep` is asked, in the order of [`Sim::unsynced`], what is kept: of a write for each of its
    /// sectors, the first of which has number zero; of anything else once.
    pub fn crash(&self, keep: impl FnMut(&Unsynced, usize) -> bool) -> Sim {
        let seed = lock(&self.0.world).random.0;
        self.crash_to(seed, keep)
    }

    /// The disk after a crash now of which `seed` says what it keeps: all, nothing, or what is
    /// between; whole changes or single sectors.
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
        let crashed = Sim::with(seed, self.0.manual, crash.decide(keep), depth);
        crashed.set_clock(self.wall_clock());
        crashed
    }

    /// Has `look` called before each call by which a caller that waits changes the disk, with the
    /// write under way if it is one: a place to crash at, since such calls are never submitted. On
    /// the caller's thread.
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
