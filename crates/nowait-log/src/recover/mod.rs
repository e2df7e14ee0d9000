//! Recovery: reads a log, damaged or not, and changes nothing.
//!
//! It follows `docs/log-format.md`. Segment headers define the chain of segments. Blocks are read
//! as long as each continues the previous one. Only watermarks decide whether the end of these
//! blocks is a torn tail or damage.

mod control;
mod runs;
mod scan;
mod tail;

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::dir::{Blocks, Contents, LogDir, Orphans, Run, Segment, Unreadable, Window, aside_number};
use super::format::{Control, End, Epochs, HeaderPage, PAGE, SegmentHeader};
use super::options::{Calibration, Scan, Strategy};
use super::os;
pub(crate) use control::read_control;
use control::{is_unfinished, rebuild_control};
use nowait::{Error, OpenOptions, Result};
use runs::{count, in_order, stand_in};
use scan::Survey;

/// Result of a recovery: the contents of a log's directory.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub struct Recovery {
    /// LSN of the oldest record; `last_lsn` + 1 if the log has no records.
    pub first_lsn: u64,
    /// LSN of the last record before any damage; 0 if the log never had a record. If a salvage left
    /// a gap at the end of the log, this is the LSN of the last lost record.
    pub last_lsn: u64,
    /// LSN of the next record to be appended. It is greater than `last_lsn` + 1 only if records
    /// were lost: their LSNs are not reused.
    pub next_lsn: u64,
    /// LSNs of records that were lost to damage and left out by a salvage. Readers skip them.
    pub gaps: Vec<Range<u64>>,
    /// Epoch of the log; opening it for writing begins the next.
    pub epoch: u64,
    /// Number of segments that hold records.
    pub segments: usize,
    /// True if the log was closed, and not written to since.
    pub closed: bool,
    /// Place of a torn write, which was never acknowledged.
    pub torn: Option<Place>,
    /// Durable records that cannot be read. With [`Options::salvage`](super::Options::salvage) the
    /// log continues without them.
    pub damage: Vec<Damage>,
    /// LSNs of intact records beyond damage, outside of `first_lsn` to `last_lsn`.
    /// [`read`](super::read) returns these records; a salvage renames the files that contain them.
    pub behind: Vec<Range<u64>>,
    /// Pages that the device cannot read, in use or not.
    pub unreadable: Vec<Unreadable>,
    /// Damaged pages of which the second copy was read instead.
    pub from_copy: Vec<Place>,
    /// True if the control file is missing, or both copies in it are damaged. Its contents were
    /// rebuilt from the segments.
    pub control_lost: bool,
    /// Files with records that a salvage does not keep.
    /// [`Options::salvage`](super::Options::salvage) renames them, but copies the segment from
    /// which the log continues.
    pub lost: Vec<PathBuf>,
    /// Files that salvages put aside; they are no longer part of the log.
    pub aside: Vec<PathBuf>,
    /// True if this call created the log.
    pub created: bool,
    /// Part of the log that was read: [`Scan::Tail`] only if it was requested and sufficient.
    pub scan: Scan,
    /// Strategy by which the log is written.
    pub strategy: Strategy,
    /// Measurement by which the strategy was chosen; `None` for a fixed strategy.
    pub calibration: Option<Calibration>,
    /// True if the log is written by direct I/O.
    pub direct: bool,
    /// Maximum segment size in bytes; the first segments after each opening are smaller.
    pub segment_bytes: u64,
    /// Bytes read by this recovery.
    pub bytes_read: u64,
    /// Time that this recovery took.
    pub elapsed: Duration,
}

/// Place in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The segment's file.
    pub path: PathBuf,
    /// Offset in bytes.
    pub offset: u64,
}

/// Records that were acknowledged and cannot be read.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The segment's file.
    pub path: PathBuf,
    /// Byte range that contains the damage.
    pub bytes: Range<u64>,
    /// LSNs of records known to be lost; further records may be lost, too.
    pub lsns: Range<u64>,
    /// Description of the fault, and of the evidence for it.
    pub what: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Damage { path, bytes, .. } = self;
        write!(f, "{}, bytes {} to {}: {}", path.display(), bytes.start, bytes.end, self.finding())
    }
}

impl Damage {
    /// Describes the fault and the lost records, without the place.
    fn finding(&self) -> String {
        let Damage { lsns, what, .. } = self;
        match lsns.end.saturating_sub(lsns.start) {
            0 => what.clone(),
            1 => format!("{what}; record {} is lost", lsns.start),
            _ => format!("{what}; records {} to {} are lost", lsns.start, lsns.end - 1),
        }
    }

    pub(crate) fn error(&self) -> Error {
        let length = self.bytes.end.saturating_sub(self.bytes.start);
        os::damaged(&self.path, self.bytes.start, length, self.finding())
    }
}

/// Findings of a recovery, with what the writer needs to continue.
pub(crate) struct Found {
    pub(crate) control: Control,
    /// Contents of the control file, or its rebuilt contents.
    pub(crate) recorded: Control,
    pub(crate) recovery: Recovery,
    /// Segments that contain the log, oldest first.
    pub(crate) chain: Vec<Segment>,
    pub(crate) end: End,
    /// Intact blocks outside of the chain, by LSN.
    pub(crate) runs: Vec<Run>,
    /// The highest segment number in use.
    pub(crate) number_max: u64,
    /// Segments that contain nothing of the log: prepared or cut off.
    pub(crate) free: Vec<u64>,
    /// Segments that contain lost records.
    pub(crate) lost: Vec<u64>,
    /// The segment of the chain with lost records.
    pub(crate) holed: Option<u64>,
}

impl Found {
    /// Returns the first damage as an error.
    pub(crate) fn check(&self) -> Result<()> {
        self.recovery.damage.first().map_or(Ok(()), |damage| Err(damage.error()))
    }
}

/// Reads the log in `dir`; None if there is none. If `writer`, the log is locked and will be
/// continued, so the records that were read are made durable.
pub(crate) fn recover(dir: &LogDir, writer: bool, scan: Scan) -> Result<Option<Found>> {
    let started = Instant::now();
    let contents = dir.contents()?;
    let Contents { numbers, has_control, aside, .. } = &contents;
    if !has_control && numbers.is_empty() {
        return Ok(None);
    }
    let control_file = read_control(dir)?;
    let is_control_lost = control_file.control.is_none();
    let control = match control_file.control {
        Some(control) => control,
        None if !has_control && is_unfinished(dir, numbers)? => return Ok(None),
        None => rebuild_control(dir, numbers)?,
    };
    let survey = |bytes_read| Survey {
        dir,
        control: control.clone(),
        writer,
        is_control_lost,
        recorded_oldest: control.oldest,
        bytes_read,
        damage: Vec::new(),
        unreadable: control_file.unreadable.clone(),
        from_copy: control_file.bad_copy.iter().cloned().collect(),
        to_sync: Vec::new(),
    };
    let mut tail = survey(0);
    let found = match scan {
        Scan::Tail if !is_control_lost => tail.run_tail(numbers)?,
        Scan::Tail | Scan::All => None,
    };
    let mut found = match found {
        Some(found) => found,
        None => survey(tail.bytes_read).run(numbers)?,
    };
    if numbers.is_empty() && found.recovery.damage.is_empty() {
        let what = "the log has no segment, although a new log already has one";
        found.recovery.damage.push(Damage { path: dir.path.to_path_buf(), bytes: 0..0, lsns: 0..0, what: what.into() });
    }
    // The contents on disk, since the scan may change `direct`.
    found.recorded = control;
    // Numbers of files put aside are not reused.
    found.number_max = aside.iter().filter_map(|name| aside_number(name)).fold(found.number_max, u64::max);
    found.recovery.aside = aside.iter().map(|name| dir.join(name)).collect();
    found.recovery.control_lost = is_control_lost;
    found.recovery.elapsed = started.elapsed();
    Ok(Some(found))
}

/// Returns the epochs in the control file and in the chain: the control file may be outdated or
/// lost.
pub(crate) fn epochs_of(recorded: &Control, chain: &[Segment]) -> Epochs {
    let mut epochs = recorded.epochs.clone();
    for Segment { header, .. } in chain {
        if header.epoch > epochs.newest() {
            epochs.begin(header.epoch, header.previous.last_there());
        }
    }
    epochs
}

/// Finds intact blocks in the files that salvages put aside, by LSN. None if there is no log.
pub(crate) fn recover_aside(dir: &LogDir) -> Result<Option<(Control, Vec<Run>)>> {
    let Contents { numbers, has_control, aside, .. } = dir.contents()?;
    if !has_control && numbers.is_empty() {
        return Ok(None);
    }
    let control = match read_control(dir)?.control {
        Some(control) => control,
        None => rebuild_control(dir, &numbers)?,
    };
    let (mut runs, mut watermark) = (Vec::new(), 0);
    for name in aside {
        let Some(number) = aside_number(&name) else { continue };
        let file = dir.open_file(OpenOptions::new().read(true), &name)?;
        let mut window = Window::past_errors(file);
        if let HeaderPage::Valid(header) = SegmentHeader::decode(window.at(0, PAGE)?, &control.log_id, number) {
            watermark = watermark.max(header.watermark);
        }
        let mut blocks = Blocks::new(window, &stand_in(&control, number, 0)).reading_ahead();
        let name: Arc<str> = Arc::from(name);
        let Orphans { proof, runs: found, .. } = blocks.behind(|_| Some(u64::MAX))?;
        watermark = watermark.max(proof.map_or(0, |(watermark, _)| watermark));
        runs.extend(found.into_iter().map(|run| Run { aside: Some(name.clone()), ..run }));
    }
    count(&mut runs, watermark);
    Ok(Some((control, in_order(runs, 0..0, u64::MAX - 1))))
}
