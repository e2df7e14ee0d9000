//! Simulator: a disk in memory with seeded faults and crashes, for tests of this crate and of
//! crates that use it.
//!
//! The simulator completes requests in a seeded order. With set probabilities it refuses
//! non-blocking attempts, shortens transfers, and fails calls. The same seed and the same sequence
//! of operations produce the same faults. A thread of the simulator completes requests; with
//! [`Sim::manual`], [`Sim::step`] completes them.
//!
//! [`Sim::crash`] returns the disk after a power failure. It may lose anything that a real file
//! system may lose, and more:
//!
//! * A write is durable once a sync of its file succeeds that began after the write completed. A
//!   durable or `O_DSYNC` write is durable on completion. Until then each of its 512-byte sectors
//!   is kept or lost independently, also while the write is in flight. An earlier write that is
//!   kept never undoes a durable one.
//! * A change of length is separate from the write, and durable by the same rule. If it is lost, a
//!   kept sector beyond the end still extends the file, with zeros between. If it is kept, lost
//!   sectors read as zeros. If a truncation is lost, the old bytes reappear.
//! * A creation, removal or rename is durable after a sync of its directory, or of both
//!   directories. A sync of a file does not cover it. Until then the change is kept or lost; after
//!   a rename either the old or the new name exists. If a directory is lost, so are its contents.
//!   Changes of names and lengths in flight are not made yet.
//! * A write that fails by [`Faults::write_error`] has changed some of its sectors. A sync that
//!   fails by [`Faults::sync_error`] has made a part of the written data durable. The rest never
//!   becomes durable, even if a later sync succeeds. Reads return it until the page cache is
//!   dropped ([`Advice::DontNeed`](crate::Advice::DontNeed) for the whole file).
//!
//! Creating a file also creates its missing directories, which exist as long as the file does.
//! Direct I/O is granted, and served like any other.

mod change;
mod disk;
mod engine;
mod image;
mod world;

use std::collections::HashSet;
use std::ffi::c_int;
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
use crate::op::{Backlog, Handle};
use crate::sync::lock;
use crate::sys;

/// Probabilities of faults, from 0 to 1, for each call.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// An attempt finds nothing cached.
    pub not_now: f64,
    /// An attempt returns no bytes although the file has some, as on kernels 5.9 and 5.10.
    pub empty_now: f64,
    /// An attempt is served in part.
    pub short_now: f64,
    /// A blocking call is served in part.
    pub short: f64,
    /// A blocking call is interrupted.
    pub interrupted: f64,
    /// A blocking call fails with EIO, and transfers nothing.
    pub io_error: f64,
    /// A blocking read fails with EIO.
    pub read_error: f64,
    /// A blocking write fails with EIO after writing some of its sectors.
    pub write_error: f64,
    /// A write that extends its file, an allocation or the creation of a file fails with ENOSPC.
    pub no_space: f64,
    /// A sync of a file or directory fails with EIO.
    pub sync_error: f64,
    /// After a write to the page cache the disk fails to write back some of the file's data. Reads
    /// still return it. Only the next sync, `sync_range` or durable write of the file fails with
    /// EIO.
    pub writeback_error: f64,
    /// [`File::close`](crate::File::close) fails with EIO, as on a network file system that writes
    /// back on close. The file is closed nevertheless.
    pub close_error: f64,
    /// All attempts fail with EOPNOTSUPP, as on tmpfs, overlayfs and FUSE.
    pub nowait_refused: bool,
    /// Allocation fails with EOPNOTSUPP, as on file systems that do not support it.
    pub allocate_refused: bool,
    /// Direct I/O is refused, as on file systems without it: such files use the page cache, and
    /// report so.
    pub direct_refused: bool,
}

/// State of a simulated file; see [`File::simulated`](crate::File::simulated).
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Unique in the process; a crash makes a disk with another number.
    pub disk: u64,
    /// Unique on the disk; a rename keeps it.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Increases with each change of what reads return.
    pub version: u64,
    /// Open flags (`open(2)`).
    pub flags: c_int,
}

/// How many operations a disk takes at a time.
const DEPTH: usize = 64;

/// Wall clock of a new disk, in milliseconds since 1970: 2026-01-01.
const CLOCK_MS: i64 = 1_767_225_600_000;

/// Simulated disk. Clones share the disk.
#[derive(Clone)]
pub struct Sim(Arc<Disk>);

impl Sim {
    /// Makes a disk with a thread that completes operations, in an order that `seed` determines.
    pub fn new(seed: u64) -> Sim {
        Sim::with(seed, false, Store::new(), DEPTH)
    }

    /// Makes a disk whose submitted operations complete only in [`Sim::step`]. A blocking caller
    /// executes its operation itself, as on any engine. Operations in flight keep the disk in memory,
    /// so a test of many disks calls `while sim.step() {}` at the end of each.
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
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        Sim(Arc::new(Disk {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            world: Mutex::new(world),
            work: Condvar::new(),
            quiet: Condvar::new(),
            manual,
            began: Instant::now(),
            advanced_ns: AtomicU64::new(0),
            clock_ms: AtomicI64::new(CLOCK_MS),
        }))
    }

    /// Advances the clock, so that timed work becomes due, such as the watermark block of an idle
    /// log. On a disk of [`Sim::manual`], time advances only by this call.
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

    /// Sets the number of operations that the disk accepts at a time; further ones wait in the
    /// engine's queue. Default: 64.
    pub fn set_depth(&self, depth: usize) {
        lock(&self.0.world).depth = depth.max(1);
    }

    /// Makes operations on the file at `path` hang, as on a device that does not respond, or lets
    /// them complete again. Applies to operations in flight, too. The file must exist.
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

    /// Limits the total length in bytes of all files with a name. A write beyond the limit is made
    /// in part, or fails with ENOSPC. Default: no limit.
    pub fn set_capacity(&self, bytes: u64) {
        lock(&self.0.world).store.capacity = bytes;
    }

    /// Creates a durable file with these contents; replaces a file of the same name.
    pub fn create(&self, path: impl AsRef<FsPath>, contents: impl Into<Vec<u8>>) {
        // In place of: a handle that is open keeps the old contents, as with rename(2).
        lock(&self.0.world).store.create(&plain(path.as_ref()), &contents.into(), true);
    }

    /// Damages all sectors of a file that the range `bytes` touches. Until these sectors are
    /// written again, reads of them fail with EIO, also after a crash. Returns false if the file
    /// does not exist.
    pub fn spoil(&self, path: impl AsRef<FsPath>, bytes: std::ops::Range<u64>) -> bool {
        let mut world = lock(&self.0.world);
        let Some(Node::File(file)) = world.store.node(&plain(path.as_ref())) else { return false };
        let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(FILE_MAX);
        world.store.spoil(file, place(bytes.start)..place(bytes.end));
        true
    }

    /// Returns the bytes of a file, as reads see them, or `None` if no file has that name.
    pub fn contents(&self, path: impl AsRef<FsPath>) -> Option<Vec<u8>> {
        let world = lock(&self.0.world);
        match world.store.node(&plain(path.as_ref()))? {
            Node::File(file) => world.store.contents(file).map(|contents| contents.get(0..contents.len())),
            Node::Directory => None,
        }
    }

    /// Returns the number of operations that are submitted and not complete.
    pub fn pending(&self) -> usize {
        let world = lock(&self.0.world);
        world.in_flight.len() + world.line.len() + world.settling
    }

    /// Returns one result, possibly short, to an operation in flight. Returns false if none is in
    /// flight.
    pub fn step(&self) -> bool {
        self.0.step()
    }

    /// Returns the changes that a crash may lose, in the order in which they were made; those in
    /// flight are last.
    pub fn unsynced(&self) -> Vec<Unsynced> {
        lock(&self.0.world).store.crash().unsynced()
    }

    /// Returns the disk after a crash at this moment, with the same limits, without faults. This
    /// disk is not affected.
    ///
    /// `keep` returns whether a change is kept; it is called in the order of [`Sim::unsynced`]. It
    /// is called once for each sector of a write, with the sector's number from 0, and once for any
    /// other change.
    pub fn crash(&self, keep: impl FnMut(&Unsynced, usize) -> bool) -> Sim {
        let seed = lock(&self.0.world).random.0;
        self.crash_to(seed, keep)
    }

    /// Returns the disk after a crash at this moment. `seed` determines whether it keeps
    /// everything, nothing, some changes, or single sectors.
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
        // With nothing locked: `keep` may look at this disk.
        drop(world);
        let crashed = Sim::with(seed, self.0.manual, crash.decide(keep), depth);
        crashed.set_clock(self.wall_clock());
        crashed
    }

    /// Calls `look` on the caller's thread before each blocking call that changes the disk. A
    /// blocking call is never submitted, so only `look` can crash the disk during it. `look` sees a
    /// write as in flight.
    pub fn watch(&self, look: impl Fn(&Sim) + Send + Sync + 'static) {
        lock(&self.0.world).watcher = Some(Arc::new(look));
    }

    /// Returns the state of an open file. Waits for no operation.
    pub(crate) fn stat(&self, handle: &Handle) -> Option<Stat> {
        let Handle::Simulated { file, flags } = handle else { return None };
        let world = lock(&self.0.world);
        let size = world.store.contents(*file)?.len() as u64;
        let version = world.store.changed(*file);
        Some(Stat { disk: self.0.number, inode: *file as u64, size, version, flags: flags.bits() as c_int })
    }

    pub(crate) fn engine(&self) -> Arc<dyn Engine> {
        if !self.0.manual {
            lock(&self.0.world).engines += 1;
            let disk = self.0.clone();
            // Without a thread operations still complete: by `step`, or in `drain`.
            let _ = sys::spawn_service("nowait-sim", move || disk.serve());
        }
        Arc::new(SimEngine(self.0.clone()))
    }
}

impl std::fmt::Debug for Sim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sim").field("pending", &self.pending()).field("manual", &self.0.manual).finish()
    }
}
