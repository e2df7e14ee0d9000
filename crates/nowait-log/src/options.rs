//! How a log is opened, and how its blocks get to stable storage.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::event::{Event, Observer};
use super::format::{Control, Measured, PAGE};
use super::os;
use super::retention::Retention;
use super::sealed::{BlockHook, BlockHooks, SealedBlock};
use nowait::{ErrorKind, ErrorOp, Nowait, Result};

/// How a log that is made decides how its blocks get to stable storage.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SyncPolicy {
    /// Measures the strategies when the log is made, in some 200 ms (on a disk that spins in two
    /// seconds), and records the fastest in the log. Measures again when the log is found on another device, and, while the log is idle, when
    /// the last measurement is a month old: what that finds is used from the next opening on.
    #[default]
    Auto,
    /// Uses the given strategy.
    Fixed(Strategy),
}

/// A way to get blocks to stable storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strategy {
    /// Operation that makes a block durable.
    pub durability: Durability,
    /// How a thread that waits submits it.
    pub by: Submitter,
    /// Most blocks in flight at a time, from 1 to 64.
    pub depth: u32,
}

/// Measurement by which a log's strategy was chosen.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calibration {
    /// Time of the measurement.
    pub at: SystemTime,
    /// Strategies that were tried, each with the time until a page was durable: a quarter of the
    /// writes took no longer. (A busy machine makes the others slower by chance.) The first is the
    /// simplest, a system call: a later one has to be faster by a tenth, and two blocks in flight by
    /// a fifth.
    pub candidates: Vec<(Strategy, Duration)>,
}

/// Ways to make a page durable, the simplest first, and the place of each in `Measured::page_ns`.
pub(super) const WAYS: [(Durability, Submitter, usize); 3] = [
    (Durability::Write, Submitter::Call, 1),
    (Durability::Write, Submitter::Ring, 0),
    (Durability::WriteAndSync, Submitter::Call, 2),
];
/// Place of the time with two in flight.
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

/// How a thread that waits submits a block.
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

/// Extent of what is read when a log is opened.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Scan {
    /// All of it: every record is verified, and damage anywhere is found.
    #[default]
    All,
    /// The headers of its segments, and the blocks at its end that no later watermark covers. It
    /// takes as long for a large log as for a small one.
    ///
    /// Not verified are records that a watermark covers: those were durable. Bytes of theirs that
    /// have changed since are found by the reader that comes upon them, by
    /// [`inspect`](super::inspect), and by a full scan. Missing segments, and segment headers that
    /// are not whole, are found as by a full scan: where anything is not as a crash leaves it, all
    /// of the log is read. [`Recovery::scan`](super::Recovery::scan) tells what was.
    ///
    /// The end of the newest segment is searched for. Records behind 1 MiB or more in which the
    /// header of every block was destroyed are not found, and the log goes on before them.
    Tail,
}

/// Options to open a log with.
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
/// More than any disk has.
const RESERVE_BYTES_MAX: u64 = 1 << 60;

impl Options {
    /// Opens an existing log; segments of up to 64 MiB where [`create`](Options::create) makes one.
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

    /// Makes a log where there is none: in a directory that does not exist yet or is empty.
    /// `lost+found`, and what the making of a log left that was cut off, do not count.
    /// [`Recovery::created`](super::Recovery::created) tells whether one was made. Default: no. The
    /// mount point of a volume that is not mounted is an empty directory.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Sets the permission bits of a new log, whatever the umask is. A directory that is created
    /// for the log gets these bits. Files get them without the execute bits: 0o750 makes files of
    /// 0o640. Default: the umask determines the mode of the directory, and the directory that of
    /// its files.
    ///
    /// Existing modes are kept: a new segment gets the mode of the newest segment, and a new
    /// control file the mode of the old one. To change them use chmod(1), also while the log is
    /// open.
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = Some(mode);
        self
    }

    /// Sets the size of the largest segments in a log that is made; an existing log keeps its own.
    /// A multiple of 4096, at least 16 KiB. At least two segments are on disk. A segment holds one
    /// record of its size less 8265 bytes, and a batch must fit into one segment. Default: 64 MiB.
    pub fn segment_bytes(mut self, bytes: u64) -> Self {
        self.segment_bytes = bytes;
        self
    }

    /// Sets the size of the first segment of each opening. The next has twice the size, and so on
    /// up to [`segment_bytes`](Options::segment_bytes): a log that is little used stays small. A
    /// larger one is prepared at once for a record that needs it. A multiple of 4096, at least
    /// 16 KiB. Default: 1 MiB.
    pub fn first_segment_bytes(mut self, bytes: u64) -> Self {
        self.first_segment_bytes = bytes;
        self
    }

    /// Keeps up to `bytes` of segments that are no longer needed, to use them again: a segment that
    /// is used again is not filled with zeros anew. On a full disk they are used again first.
    /// Default: two of the largest segments.
    pub fn recycle_bytes(mut self, bytes: u64) -> Self {
        self.recycle_bytes = Some(bytes);
        self
    }

    /// Limits the bytes that are appended and not durable yet: beyond,
    /// [`Log::append`](super::Log::append) waits. Default: 16 MiB.
    pub fn pending_bytes_max(mut self, bytes: u64) -> Self {
        self.pending_bytes_max = bytes;
        self
    }

    /// Keeps up to `bytes` of the last durable blocks in memory while there is a reader of the open
    /// log ([`Log::reader`](super::Log::reader)). One that follows the end of the log is served from
    /// them, and reads nothing from the device. What is older, such as for a reader that falls
    /// behind, is read from the segments. Default: 4 MiB.
    pub fn tail_bytes(mut self, bytes: u64) -> Self {
        self.tail_bytes = bytes;
        self
    }

    /// Keeps prepared room for [`Log::append_from_reserve`](super::Log::append_from_reserve), so
    /// that a checkpoint can be logged when the disk is full. Default: none.
    pub fn reserve_bytes(mut self, bytes: u64) -> Self {
        self.reserve_bytes = bytes;
        self
    }

    /// Sets which records the log gives up by itself. Default: none.
    pub fn retain(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// Has events told, such as a segment that was prepared or an append that waited. `observe` is
    /// called as callbacks of tickets are: one call after the other, on a thread of the log's own
    /// (`nowait-log-calls`), so that it delays no commit. It may use the log; a panic ends with the
    /// call. For what happens with each block see [`Log::stats`](super::Log::stats).
    pub fn on_event(mut self, observe: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.observer = Some(Observer(Arc::new(observe)));
        self
    }

    /// Hands over blocks before they are durable, such as to send them to replicas while the disk
    /// works. `hook` is called for each block that holds records, in their order, one call after the
    /// other, on a thread of the log's own (`nowait-log-blocks`). No commit waits for it: blocks
    /// that it has not had yet stay in memory, so a hook that may be slower than the disk should
    /// drop what it cannot keep, and read it later ([`Log::reader`](super::Log::reader)). A panic
    /// ends with the call. Some calls may come after [`Log::close`](super::Log::close) has returned.
    ///
    /// A block that was handed over need not become durable: after a crash, or when a write failed,
    /// the log may end before it. What it was then given up for has a later
    /// [`epoch`](SealedBlock::epoch).
    pub fn on_sealed(mut self, hook: impl Fn(&SealedBlock) + Send + Sync + 'static) -> Self {
        self.hooks.sealed = Some(BlockHook(Arc::new(hook)));
        self
    }

    /// Hands over blocks when they are durable, with all before them; else as
    /// [`Options::on_sealed`]. Both may be set; their calls share a thread.
    pub fn on_durable(mut self, hook: impl Fn(&SealedBlock) + Send + Sync + 'static) -> Self {
        self.hooks.durable = Some(BlockHook(Arc::new(hook)));
        self
    }

    /// Sets how blocks get to stable storage: [`SyncPolicy::Fixed`] in any log;
    /// [`SyncPolicy::Auto`] in one that is made, and in one whose strategy was measured. A log that
    /// was made with a fixed strategy keeps that. Default: measured.
    pub fn sync(mut self, sync: SyncPolicy) -> Self {
        self.sync = sync;
        self
    }

    /// Opens a damaged log, too: it goes on after the last record before the damage. Files that
    /// hold later records are put aside, under names that end in `.damaged`;
    /// [`Recovery::damage`](super::Recovery::damage) describes the damage. Default: a damaged log
    /// is refused.
    pub fn salvage(mut self, salvage: bool) -> Self {
        self.salvage = salvage;
        self
    }

    /// Sets what is read when the log is opened. Default: [`Scan::All`]. A salvage reads all.
    pub fn scan(mut self, scan: Scan) -> Self {
        self.scan = scan;
        self
    }

    /// Runs a maintenance thread (`nowait-log`): it prepares segments, writes records for which
    /// nothing waits, and writes the watermark block of an idle log. Default: yes.
    ///
    /// Without it an append that needs a new segment prepares it,
    /// [`Log::maintain`](super::Log::maintain) does the rest, and a log that is dropped rather than
    /// closed leaves what is in flight to the engine. Threads that wait look after one that is held up
    /// while it writes for them; where only tasks wait, or callbacks, nobody does.
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
            format!("the mode is {mode:o}; give permission bits that leave the owner all rights, such as 0o750")
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
