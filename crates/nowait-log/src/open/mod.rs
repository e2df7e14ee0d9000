//! Opens a log: creates or recovers it, and continues it in a new epoch. Ends a log that is closed
//! or dropped.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::calibrate;
use super::commit::{Live, Retired, Rules, Shared, Start};
use super::dir::{Ages, CONTROL_TEMPORARY, Contents, DirLock, LogDir, Segment, is_direct, lsn_by_bytes};
use super::event::Event;
use super::format::{Control, End, Epochs, LogId, Measured, NUMBER_MAX, SegmentHeader};
use super::maintenance::{self, Done};
use super::options::{Durability, Options, SEGMENT_BYTES_MIN, Scan, Strategy, Submitter, SyncPolicy};
use super::os::{self, lock};
use super::recover::{Found, Recovery, epochs_of, recover};
use super::retention::{Rule, first_needed};
use nowait::{Error, ErrorKind, ErrorOp, Nowait, Result, embed};

/// A log that is open for appending, until its last handle is dropped.
pub(super) struct OpenLog {
    pub(super) shared: Arc<Shared>,
    maintenance: Mutex<Option<JoinHandle<()>>>,
    /// Held until no write of this log is in flight. The maintenance thread holds it, too.
    lock: Mutex<Option<Arc<DirLock>>>,
}

impl OpenLog {
    /// Opens or creates the log in `path`.
    pub(super) fn new(path: &Path, options: &Options) -> Result<(OpenLog, Recovery)> {
        let instance = options.instance.clone().unwrap_or_else(|| Nowait::shared().clone());
        options.check(path)?;
        let mut is_new = false;
        if options.create {
            match instance.fs().create_dir(path).wait() {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => is_new = made.map(|()| true)?,
            }
        }
        let mut dir = open_dir(&instance, path)?;
        dir.made_with = options.mode;
        if let Some(mode) = options.mode.filter(|_| is_new) {
            dir.set_dir_mode(mode)?;
        }
        // Before anything is written, so that a directory without a log stays unchanged.
        let contents = dir.contents()?;
        if !contents.has_control && contents.numbers.is_empty() {
            may_make(&dir, options, contents)?;
        }
        let dir_lock = Arc::new(DirLock::take(&dir)?);
        // A salvage needs a full scan, which alone finds records after damage.
        let scan = if options.salvage { Scan::All } else { options.scan };
        let found = match recover(&dir, true, scan)? {
            Some(found) => found,
            None => {
                may_make(&dir, options, dir.contents()?)?;
                make(&dir, options)?;
                let mut found = recover(&dir, true, scan)?.ok_or_else(|| no_log(&dir.path))?;
                found.recovery.created = true;
                found
            }
        };
        if !options.salvage {
            found.check()?;
        }
        dir.clean()?;
        let (shared, recovery) = begin_epoch(dir, &dir_lock, options, found)?;
        shared.preparer.lend(dir_lock.clone());
        let maintenance = match options.maintenance {
            true => Some(start_maintenance(&shared, dir_lock.clone())?),
            false => None,
        };
        let open = OpenLog { shared, maintenance: Mutex::new(maintenance), lock: Mutex::new(Some(dir_lock)) };
        Ok((open, recovery))
    }

    /// Ends the threads of a closed log, and releases its directory.
    pub(super) fn end(&self) {
        // A separate statement, so that the thread is not joined under the lock.
        let maintenance = lock(&self.maintenance).take();
        if let Some(thread) = maintenance {
            if thread.thread().id() != std::thread::current().id() {
                // The thread does not panic; after a panic there would be nothing to do.
                let _ = thread.join();
            }
        }
        self.shared.preparer.end(true);
        if lock(&self.lock).is_some() {
            // The file reserves space for a replacement, which is no longer needed.
            let _ = self.shared.dir.remove_file(CONTROL_TEMPORARY);
        }
        lock(&self.lock).take();
    }

    /// Writes the pending records of a log without maintenance thread, on a new thread, since the
    /// thread that drops a handle must not block.
    fn finish(&self) {
        let held = lock(&self.lock).take();
        if !held.as_ref().is_some_and(|lock| lock.is_held()) {
            // A simulated log: no other process waits for its end.
            maintenance::run_once(&self.shared);
            return;
        }
        // The lock is held, so that no other process opens the log while a write is in flight.
        let finish = |shared: &Arc<Shared>, _held: Option<Arc<DirLock>>| {
            while matches!(maintenance::run_once(shared), Done::Nothing(_)) {
                shared.watch_all();
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        let for_thread = (self.shared.clone(), held.clone());
        let run = move || finish(&for_thread.0, for_thread.1);
        if embed::spawn("nowait-log-end", run).is_err() {
            finish(&self.shared, held);
        }
    }
}

impl Drop for OpenLog {
    fn drop(&mut self) {
        if self.shared.is_forked() {
            // The thread and the lock belong to the parent process.
            std::mem::forget((lock(&self.maintenance).take(), lock(&self.lock).take()));
            return;
        }
        let is_open = !self.shared.state().is_closing;
        // The maintenance thread writes the block, or `finish` below.
        let _ = self.shared.begin_closing(false);
        self.shared.preparer.end(false);
        if is_open && !self.shared.rules.has_maintenance {
            self.finish();
        }
    }
}

/// Opens a log's directory.
pub(super) fn open_dir(instance: &Nowait, path: &Path) -> Result<LogDir> {
    LogDir::open_dir(instance, path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => no_log(path),
        _ => error,
    })
}

pub(super) fn no_log(path: &Path) -> Error {
    os::error(ErrorOp::Open, ErrorKind::NotFound, path).with_advice(
        "the directory contains no log; check that its volume is mounted, or create a log with the option `create`",
    )
}

/// Refuses to create a log in a directory with other contents, or without [`Options::create`].
fn may_make(dir: &LogDir, options: &Options, contents: Contents) -> Result<()> {
    let Some(other) = contents.other else {
        return if options.create { Ok(()) } else { Err(no_log(&dir.path)) };
    };
    if !options.create {
        let text = format!(
            "the directory contains other files, such as {}, but no log; check the path",
            Path::new(&other).display()
        );
        return Err(os::error(ErrorOp::Open, ErrorKind::NotFound, &dir.path).with_advice(text));
    }
    let text = format!(
        "the directory contains other files, such as {}, but no log; name a directory that is empty or does not exist",
        Path::new(&other).display()
    );
    Err(os::error(ErrorOp::Open, ErrorKind::InvalidInput, &dir.path).with_advice(text))
}

fn start_maintenance(shared: &Arc<Shared>, lock: Arc<DirLock>) -> Result<JoinHandle<()>> {
    let for_thread = shared.clone();
    let run = move || {
        let _held = lock;
        maintenance::run(&for_thread);
    };
    embed::spawn("nowait-log", run).map_err(|error| {
        os::thread_error(ErrorOp::Open, &error, &shared.dir.path, "the log's thread cannot be started")
    })
}

/// Creates an empty log. The control file is written last: a directory without it contains no log.
fn make(dir: &LogDir, options: &Options) -> Result<()> {
    dir.clean()?;
    for number in dir.contents()?.numbers {
        dir.remove(number)?;
    }
    // This segment only shows that one can be created; the first opening begins the next one.
    let file = dir.prepare(1, SEGMENT_BYTES_MIN, true, || Ok(()))?;
    let direct = is_direct(&file);
    drop(file);
    // The strategy if none is measured: slow, but works everywhere.
    let safe = Strategy { durability: Durability::WriteAndSync, by: Submitter::Call, depth: 1 };
    let strategy = if let SyncPolicy::Fixed(strategy) = options.sync { strategy } else { safe };
    let mut control = Control {
        log_id: new_id(),
        segment_bytes: options.segment_bytes,
        sync: strategy.durability.code(),
        caller: strategy.by.code(),
        depth: strategy.depth,
        direct,
        oldest: 1,
        newest: 1,
        measured: Measured::default(),
        head: 0,
        watermark: 0,
        epochs: Epochs::default(),
    };
    if options.sync == SyncPolicy::Auto {
        calibrate::choose(dir, &mut control, || true)?;
    }
    // The directory must be durable before the control file, which makes it a log.
    dir.sync_parent()?;
    dir.write_control(&control)
}

fn new_id() -> LogId {
    use std::hash::{BuildHasher, Hasher};
    // Each hasher has random keys.
    let random = || std::collections::hash_map::RandomState::new().build_hasher().finish();
    let mut id = [0; 16];
    id[..8].copy_from_slice(&random().to_le_bytes());
    id[8..].copy_from_slice(&random().to_le_bytes());
    id
}

/// Continues after the recovered records in a new segment of a new epoch, so that no existing
/// segment is written again.
fn begin_epoch(dir: LogDir, lock: &Arc<DirLock>, options: &Options, found: Found) -> Result<(Arc<Shared>, Recovery)> {
    let Found { mut control, mut recorded, number_max, mut chain, mut end, mut recovery, free, lost, holed, .. } =
        found;
    for (what, last) in [("segment", number_max), ("epoch", recovery.epoch), ("record", recovery.next_lsn)] {
        // The remaining half is enough, so that no increment passes the last number.
        if last > NUMBER_MAX / 2 {
            let text = format!("{what} number {last} is out of range; move the file out of the log's directory");
            return Err(os::error(os::RECOVER, ErrorKind::Damaged, &dir.path).with_advice(text));
        }
    }
    match options.sync {
        SyncPolicy::Fixed(strategy) => {
            (control.sync, control.caller, control.depth) =
                (strategy.durability.code(), strategy.by.code(), strategy.depth);
        }
        SyncPolicy::Auto if recovery.control_lost || calibrate::is_elsewhere(&dir, &control.measured) => {
            calibrate::choose(&dir, &mut control, || true)?;
            recorded = Control { direct: recorded.direct, ..control.clone() };
        }
        SyncPolicy::Auto => {}
    }
    if recovery.control_lost {
        // The log's existing segments may be smaller.
        control.segment_bytes = control.segment_bytes.max(options.segment_bytes);
        recorded = control.clone();
        dir.write_control(&recorded)?;
    }
    // Drop trailing empty segments, so that reopening does not accumulate them.
    let mut empty = Vec::new();
    while chain.len() > 1 && chain.last().is_some_and(Segment::is_empty) {
        let Some(segment) = chain.pop() else { break };
        end = segment.header.previous;
        empty.insert(0, Retired { number: segment.header.number, bytes: segment.header.bytes });
    }
    if !recovery.damage.is_empty() {
        // Lost records keep their numbers.
        end = End { lsn: recovery.next_lsn - 1, lost_from: end.last_there() + 1, ..end };
    }
    if let Some(last) = chain.last_mut() {
        (last.end, last.last_lsn) = (end.offset, end.last_there());
    }
    let number = number_max + 1;
    let wanted = options.first_segment_bytes.min(control.segment_bytes);
    let prepare = |bytes| dir.prepare(number, bytes, control.direct, || Ok(())).map(|file| (file, bytes));
    let is_full = |made: &Result<_>| made.as_ref().is_err_and(|error: &Error| error.kind() == ErrorKind::NoSpace);
    // Free segments contain nothing of the log. Their files are not reused, since a write of a
    // killed process may still be in flight there.
    let mut made = prepare(wanted);
    if is_full(&made) && !chain.is_empty() {
        // The chain is not empty, so the log keeps a segment. The names stay until the new epoch is
        // durable: before, a missing number would look like damage.
        free.iter().try_for_each(|number| dir.empty(*number))?;
        made = prepare(wanted);
    }
    if is_full(&made) && recovery.damage.is_empty() {
        let lsn = retained_from(&dir, &options.retention.0, &chain);
        if dir.give_up_before(lsn, &mut recorded, &mut chain)? {
            control.oldest = recorded.oldest;
            recovery.first_lsn = chain.first().map_or(end.lsn + 1, |segment| segment.header.first_lsn());
            recovery.segments = chain.iter().filter(|segment| !segment.is_empty()).count();
            made = prepare(wanted);
        }
    }
    if is_full(&made) {
        made = prepare(SEGMENT_BYTES_MIN);
    }
    let (file, bytes) = made.map_err(|error| match error.kind() {
        ErrorKind::NoSpace => {
            let text = format!(
                "opening a log creates a segment of at least {SEGMENT_BYTES_MIN} bytes: make space, or remove the \
                 oldest records by `nowait log truncate {} --before LSN`, in a program by truncate_prefix",
                dir.path.display()
            );
            error.with_advice(text)
        }
        _ => error,
    })?;
    // The log may have been copied from a file system with direct I/O.
    control.direct &= is_direct(&file);
    if !control.direct {
        // Through the page cache, only a write and a sync, one at a time, prove that a block is
        // durable: see `Shared::durability`.
        (control.sync, control.depth) = (Durability::WriteAndSync.code(), 1);
    }
    if let Some(number) = holed {
        // The segment stays, for the records before the hole. A copy is put aside, since the file
        // will be reused later.
        let is_holed = |segment: &&Segment| segment.header.number == number;
        let bytes = chain.iter().find(is_holed).map_or(control.segment_bytes, |segment| segment.header.bytes);
        dir.copy_aside(number, bytes, control.direct)?;
    }
    dir.sync()?;
    let epoch = recovery.epoch + 1;
    let mut epochs = epochs_of(&recorded, &chain);
    epochs.begin(epoch, end.last_there());
    let header = SegmentHeader {
        log_id: control.log_id,
        number,
        epoch,
        bytes,
        previous: end,
        oldest: chain.first().map_or(number, |oldest| oldest.header.number),
        // Watermark and times are set when the header is written.
        ..SegmentHeader::default()
    };
    let mut segments = chain;
    segments.push(Segment { header, end: u64::MAX, last_lsn: u64::MAX, time_ms: 0 });
    let rules = Rules {
        log_id: control.log_id,
        segment_bytes: control.segment_bytes,
        pending_bytes_max: options.pending_bytes_max,
        reserve_bytes: options.reserve_bytes,
        tail_bytes: options.tail_bytes,
        recycle_bytes: options.recycle_bytes.unwrap_or(2 * control.segment_bytes),
        depth: Strategy::of(&control).depth as usize,
        has_maintenance: options.maintenance,
        is_measured: options.sync == SyncPolicy::Auto,
    };
    let current = Live::new(number, bytes, file);
    let Ages { segments: ages, doubts } = match (&options.retention.0, segments.split_last()) {
        // The current segment has no age yet.
        (Rule::Age(_), Some((_, older))) => ages(&dir, older),
        _ => Ages::default(),
    };
    let start = |now| Start { epoch, current, segments, recorded, epochs, ages, now };
    let retention = (options.retention.clone(), options.observer.clone(), options.hooks.clone());
    let shared = Arc::new(Shared::new(dir, control, rules, retention, Arc::downgrade(lock), start));
    // Makes the segment, and so its epoch, durable.
    shared.write_watermark().map_err(|no_room| shared.no_room(no_room))?;
    for number in &free {
        shared.dir.remove(*number)?;
    }
    match shared.record() {
        // Maintenance tries again. Until then, recovery detects fewer missing segments.
        Err(error) if error.kind() == ErrorKind::NoSpace && lost.is_empty() => {}
        recorded => recorded?,
    }
    // Only after the new epoch is durable and the control file is replaced: until then, these files
    // are part of the log. (If this is interrupted, the new segment's header shows that they must
    // be put aside.)
    for number in &lost {
        shared.dir.put_aside(*number)?;
    }
    if !lost.is_empty() {
        shared.dir.sync()?;
    }
    let mut state = shared.state();
    state.retired = empty;
    state.numbers.clock_doubts = doubts;
    drop(state);
    if doubts > 0 {
        shared.tell_event(|| Event::ClockDoubted { steps: doubts });
    }
    Ok((shared, recovery))
}

/// Returns the first record that retention keeps in a log that is not open yet.
fn retained_from(dir: &LogDir, rule: &Rule, chain: &[Segment]) -> u64 {
    match rule {
        Rule::All => 0,
        Rule::Bytes(bytes) => lsn_by_bytes(chain, 0, *bytes).unwrap_or(u64::MAX),
        Rule::Age(age) => ages(dir, chain).lsn_by_age(chain, *age),
        Rule::Before(first) => first_needed(&**first),
    }
}

fn ages(dir: &LogDir, segments: &[Segment]) -> Ages {
    Ages::of(segments, u64::try_from(embed::wall_clock(&dir.instance).as_millis()).unwrap_or(u64::MAX))
}
