//! Options for opening a log, and strategies for making its blocks durable.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::event::{Event, Observer};
use super::format::{Control, Measured, PAGE};
use super::os;
use super::retention::Retention;
use super::sealed::{BlockHook, BlockHooks, SealedBlock};
use nowait::{ErrorKind, ErrorOp, Nowait, Result};

/// Choice of the strategy by which a log makes its blocks durable.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SyncPolicy {
    /// Measures the strategies when the log is created, and stores the fastest in the log. This
    /// takes about 200 ms, or 2 s on a spinning disk. Measures again if the log is opened on
    /// another device. If the last measurement is a month old, the idle log measures again, and
    /// uses the result from the next opening on.
    #[default]
    Auto,
    /// Uses the given strategy.
    Fixed(Strategy),
}

/// Method of making blocks durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strategy {
    /// Operation that makes a block durable.
    pub durability: Durability,
    /// Method by which a waiting thread submits it.
    pub by: Submitter,
    /// Maximum number of blocks in flight, from 1 to 64.
    pub depth: u32,
}

/// Measurement by which a log's strategy was chosen.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calibration {
    /// Time of the measurement.
    pub at: SystemTime,
    /// Strategies that were measured, each with the lower quartile of the times until a page was
    /// durable. (On a busy machine, longer times are noise.) The first strategy is the simplest, a
    /// system call. Another one is chosen only if it is 10 % faster, or 20 % with two blocks in
    /// flight.
    pub candidates: Vec<(Strategy, Duration)>,
}

/// Ways to make a page durable, the simplest first, each with its index in `Measured::page_ns`.
pub(super) const WAYS: [(Durability, Submitter, usize); 3] = [
    (Durability::Write, Submitter::Call, 1),
    (Durability::Write, Submitter::Ring, 0),
    (Durability::WriteAndSync, Submitter::Call, 2),
];
/// Index of the time with two pages in flight.
pub(super) const TWO: usize = 3;

impl Calibration {
    /// The measurement that a control file records.
    pub(super) fn of(control: &Control) -> Option<Calibration> {
        let Measured { at, page_ns, .. } = control.measured;
        if at == 0 {
            return None;
        }
        let at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(at))?;
        let alone = |(durability, by, place)| (Strategy { durability, by, depth: 1 }, page_ns[place]);
        let two = (Strategy { depth: 2, ..Strategy::of(control) }, page_ns[TWO]);
        let tried = WAYS.into_iter().map(alone).chain([two]).filter(|(_, page_ns)| *page_ns > 0);
        let candidates = tried.map(|(strategy, page_ns)| (strategy, Duration::from_nanos(page_ns.into()))).collect();
        Some(Calibration { at, candidates })
    }
}

/// Operation that makes a block durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The write itself (`RWF_DSYNC`, Linux 4.7).
    Write,
    /// A write, then `fdatasync(2)`.
    WriteAndSync,
}

/// Method by which a waiting thread submits a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitter {
    /// The waiting thread's own ring: one sleep for the write and the flush of the device's cache.
    Ring,
    /// A system call of the waiting thread.
    Call,
}

impl Durability {
    pub(super) fn of(code: u32) -> Durability {
        if code == 2 { Durability::WriteAndSync } else { Durability::Write }
    }

    pub(super) fn code(self) -> u32 {
        match self {
            Durability::Write => 1,
            Durability::WriteAndSync => 2,
        }
    }
}

impl Submitter {
    pub(super) fn of(code: u32) -> Submitter {
        if code == 2 { Submitter::Call } else { Submitter::Ring }
    }

    pub(super) fn code(self) -> u32 {
        match self {
            Submitter::Ring => 1,
            Submitter::Call => 2,
        }
    }
}

impl Strategy {
    /// The strategy that a control file records.
    pub(super) fn of(control: &Control) -> Strategy {
        Strategy {
            durability: Durability::of(control.sync),
            by: Submitter::of(control.caller),
            depth: control.depth.clamp(1, DEPTH_MAX),
        }
    }
}

/// Part of a log that is read when the log is opened.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Scan {
    /// All of the log: every record is verified, and any damage is found.
    #[default]
    All,
    /// The segment headers, and the blocks at the end that no later watermark covers. The time does
    /// not depend on the size of the log.
    ///
    /// Records covered by a watermark were durable, and are not verified. Their damage is found by
    /// a reader, by [`inspect`](super::inspect), and by a full scan. Missing segments and damaged
    /// segment headers are found as by a full scan. If anything cannot result from a crash alone,
    /// all of the log is read. [`Recovery::scan`](super::Recovery::scan) returns which part was
    /// read.
    ///
    /// The scan searches for the end of the newest segment. If the headers of all blocks in 1 MiB
    /// or more are destroyed, the records after them are not found, and the log continues before
    /// them.
    Tail,
}

/// Options for opening a log.
#[derive(Clone, Debug)]
pub struct Options {
    pub(super) instance: Option<Nowait>,
    pub(super) create: bool,
    pub(super) mode: Option<u32>,
    pub(super) segment_bytes: u64,
    pub(super) first_segment_bytes: u64,
    pub(super) recycle_bytes: Option<u64>,
    pub(super) retention: Retention,
    pub(super) observer: Option<Observer>,
    pub(super) hooks: BlockHooks,
    pub(super) pending_bytes_max: u64,
    pub(super) tail_bytes: u64,
    pub(super) reserve_bytes: u64,
    pub(super) sync: SyncPolicy,
    pub(super) salvage: bool,
    pub(super) scan: Scan,
    pub(super) maintenance: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

pub(super) const SEGMENT_BYTES_MIN: u64 = 16 << 10;
pub(super) const SEGMENT_BYTES_MAX: u64 = 1 << 40;
const DEPTH_MAX: u32 = 64;
/// More than the size of any disk.
const RESERVE_BYTES_MAX: u64 = 1 << 60;

impl Options {
    /// Returns the defaults: opens an existing log; a log that [`create`](Options::create) makes
    /// has segments of up to 64 MiB.
    pub fn new() -> Options {
        Options {
            instance: None,
            create: false,
            mode: None,
            segment_bytes: 64 << 20,
            first_segment_bytes: 1 << 20,
            recycle_bytes: None,
            retention: Retention::all(),
            observer: None,
            hooks: BlockHooks::default(),
            pending_bytes_max: 16 << 20,
            tail_bytes: 4 << 20,
            reserve_bytes: 0,
            sync: SyncPolicy::Auto,
            salvage: false,
            scan: Scan::All,
            maintenance: true,
        }
    }

    /// Uses the engines of `instance`. Default: the instance that the process shares.
    pub fn instance(mut self, instance: &Nowait) -> Self {
        self.instance = Some(instance.clone());
        self
    }

    /// Creates a log if none exists, in a directory that is missing or empty. The directory may
    /// contain what systems create in volumes, such as `lost+found` and `.DS_Store`, and the remains
    /// of an interrupted creation.
    /// [`Recovery::created`](super::Recovery::created) returns whether a log was created. Default:
    /// false, since the mount point of an unmounted volume is an empty directory, too.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Sets the permission bits of a new log, regardless of the umask. A directory created for the
    /// log gets these bits. Files get these bits without the execute bits: 0o750 results in files
    /// of 0o640. Default: the umask determines the mode of the directory, and the directory's mode
    /// that of its files.
    ///
    /// Existing modes are kept: a new segment gets the mode of the newest segment, and a new
    /// control file the mode of the old one. To change them use chmod(1), also while the log is
    /// open.
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = Some(mode);
        self
    }

    /// Sets the maximum segment size of a new log, in bytes; an existing log keeps its own. It must
    /// be a multiple of 4096, and at least 16 KiB. The largest record is 8265 bytes smaller than a
    /// segment, and a batch must fit into one segment. At least two segments are on disk. Default:
    /// 64 MiB.
    pub fn segment_bytes(mut self, bytes: u64) -> Self {
        self.segment_bytes = bytes;
        self
    }

    /// Sets the size of the first segment after each opening, in bytes. The next segment is as
    /// large as the newest one. It is twice as large, up to
    /// [`segment_bytes`](Options::segment_bytes), if the log has written at least four times the
    /// size of the newest one since it was opened, or if an append found no segment. So a rarely
    /// used log stays small. With a [reserve](Options::reserve_bytes), each segment is twice as
    /// large as the one before. A record that needs a larger segment gets one. The size must be a
    /// multiple of 4096, and at least 16 KiB. Default: 1 MiB.
    pub fn first_segment_bytes(mut self, bytes: u64) -> Self {
        self.first_segment_bytes = bytes;
        self
    }

    /// Keeps up to `bytes` of segments that are no longer needed, for reuse: a reused segment need
    /// not be filled with zeros. On a full disk they are reused first. Default: two of the largest
    /// segments.
    pub fn recycle_bytes(mut self, bytes: u64) -> Self {
        self.recycle_bytes = Some(bytes);
        self
    }

    /// Limits the bytes that are appended and not yet durable; above the limit,
    /// [`Log::append`](super::Log::append) waits. Default: 16 MiB.
    pub fn pending_bytes_max(mut self, bytes: u64) -> Self {
        self.pending_bytes_max = bytes;
        self
    }

    /// Keeps up to `bytes` of the last durable blocks in memory while the open log has a reader
    /// ([`Log::reader`](super::Log::reader)). A reader at the end of the log is served from memory,
    /// without device reads. A reader that falls behind reads older blocks from the segments.
    /// Default: 4 MiB.
    pub fn tail_bytes(mut self, bytes: u64) -> Self {
        self.tail_bytes = bytes;
        self
    }

    /// Reserves `bytes` of prepared space for
    /// [`Log::append_from_reserve`](super::Log::append_from_reserve), so that a checkpoint can be
    /// logged on a full disk. Default: 0.
    pub fn reserve_bytes(mut self, bytes: u64) -> Self {
        self.reserve_bytes = bytes;
        self
    }

    /// Sets which old records the log removes automatically. Default: none.
    pub fn retain(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// Calls `observe` for each event, such as a prepared segment or an append that waited. Calls
    /// are made one after the other, on the log's thread `nowait-log-calls`, so they delay no
    /// commit. `observe` may use the log. A panic ends only that call.
    /// [`Log::stats`](super::Log::stats) counts blocks, which are not events.
    pub fn on_event(mut self, observe: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.observer = Some(Observer(Arc::new(observe)));
        self
    }

    /// Calls `hook` for each block with records before it is durable, for example to send it to
    /// replicas during the write. Calls are made in order, one after the other, on the log's thread
    /// `nowait-log-blocks`. A panic ends only that call. Calls may still be made after
    /// [`Log::close`](super::Log::close) has returned.
    ///
    /// No commit waits for the hook; blocks queue in memory until it has taken them. A hook that
    /// may be slower than the disk should skip blocks, and read their records later
    /// ([`Log::reader`](super::Log::reader)).
    ///
    /// Such a block may never become durable: after a crash or a failed write, the log may end
    /// before it. Blocks that replace it have a later [`epoch`](SealedBlock::epoch).
    pub fn on_sealed(mut self, hook: impl Fn(&SealedBlock) + Send + Sync + 'static) -> Self {
        self.hooks.sealed = Some(BlockHook(Arc::new(hook)));
        self
    }

    /// Calls `hook` for each block once it and all earlier blocks are durable; otherwise as
    /// [`Options::on_sealed`]. Both may be set; their calls share a thread.
    pub fn on_durable(mut self, hook: impl Fn(&SealedBlock) + Send + Sync + 'static) -> Self {
        self.hooks.durable = Some(BlockHook(Arc::new(hook)));
        self
    }

    /// Sets the strategy by which blocks are made durable. [`SyncPolicy::Fixed`] applies to any
    /// log. [`SyncPolicy::Auto`] applies to new logs, and to logs created with it; a log created
    /// with a fixed strategy keeps that. Default: `Auto`.
    pub fn sync(mut self, sync: SyncPolicy) -> Self {
        self.sync = sync;
        self
    }

    /// Opens a damaged log, too, which then continues after the last record before the damage.
    /// Files with later records are renamed, to names that end in `.damaged`.
    /// [`Recovery::damage`](super::Recovery::damage) describes the damage. Default: false, a
    /// damaged log is refused.
    pub fn salvage(mut self, salvage: bool) -> Self {
        self.salvage = salvage;
        self
    }

    /// Sets which part of the log is read at opening. Default: [`Scan::All`]. A salvage always
    /// reads all of it.
    pub fn scan(mut self, scan: Scan) -> Self {
        self.scan = scan;
        self
    }

    /// Runs a maintenance thread (`nowait-log`). It prepares segments, writes records for which no
    /// caller waits, and writes the watermark block of an idle log. Default: true.
    ///
    /// Without the thread:
    ///
    /// * an append that needs a new segment prepares it;
    /// * [`Log::maintain`](super::Log::maintain) does the other tasks;
    /// * dropping an unclosed log leaves writes in flight to the engine;
    /// * a stalled writing thread is replaced only by other waiting threads, not for futures or
    ///   callbacks.
    pub fn maintenance(mut self, maintenance: bool) -> Self {
        self.maintenance = maintenance;
        self
    }

    pub(super) fn check(&self, dir: &Path) -> Result<()> {
        let depth = match self.sync {
            SyncPolicy::Auto => 1,
            SyncPolicy::Fixed(strategy) => strategy.depth,
        };
        let is_size = |bytes: u64| bytes % PAGE as u64 == 0 && (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&bytes);
        let text = if !is_size(self.segment_bytes) {
            format!("segment_bytes is {}; give a multiple of 4096 from 16 KiB to 1 TiB", self.segment_bytes)
        } else if !is_size(self.first_segment_bytes) {
            let bytes = self.first_segment_bytes;
            format!("first_segment_bytes is {bytes}; give a multiple of 4096 from 16 KiB to 1 TiB")
        } else if let Some(mode) = self.mode.filter(|mode| mode & 0o700 != 0o700 || *mode > 0o7777) {
            format!("the mode is {mode:#o}; give permission bits that grant the owner all rights, such as 0o750")
        } else if !(1..=DEPTH_MAX).contains(&depth) {
            format!("the depth is {depth}; give 1 to {DEPTH_MAX} blocks in flight")
        } else if self.reserve_bytes > RESERVE_BYTES_MAX {
            format!("reserve_bytes is {}; give 1 EiB at most", self.reserve_bytes)
        } else {
            return Ok(());
        };
        Err(os::error(ErrorOp::Open, ErrorKind::InvalidInput, dir).with_advice(text))
    }
}
