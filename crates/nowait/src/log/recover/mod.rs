//! What a log holds after whatever happened to it: reads all of it, changes nothing.
//!
//! The rules are those of `docs/log-format.md`: the chain of segments is found by their headers, blocks are read as long as each goes
//! on where the one before ended, and whether the place where they stop is a torn tail or damage is decided by watermarks alone.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::Strategy;
use super::dir::{Behind, Blocks, CONTROL, Contents, Folder, Run, Unreadable, Window, aside_number, is_direct};
use super::format::{BadControl, BlockHeader, CONTROL_BYTES, Control, End, HeaderPage, PAGE, SegmentHeader};
use crate::error::{Error, ErrorKind, ErrorOp, Result};
use crate::file::{Advice, File, OpenOptions};

/// What was found in a log's directory.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub struct Recovery {
    /// LSN of the oldest record that is there; one more than `last_lsn` when there is none.
    pub first_lsn: u64,
    /// LSN of the last record before any damage; 0 in a log that never had one. Of a log that a salvage left with a gap at its end, the last
    /// of the records that were lost.
    pub last_lsn: u64,
    /// LSN of the record that is appended next. More than one after `last_lsn` only where records were lost: their numbers are not
    /// used again.
    pub next_lsn: u64,
    /// Records that were lost to damage, and left out by a salvage. Readers go on behind them.
    pub gaps: Vec<Range<u64>>,
    /// The epoch that was found; the log goes on in the next.
    pub epoch: u64,
    /// Segments that hold records.
    pub segments: usize,
    /// The log was closed, and nothing came after.
    pub closed: bool,
    /// A write that was cut off before it was acknowledged: where it lies.
    pub torn: Option<Place>,
    /// What was durable once and cannot be read. With [`Options::salvage`](super::Options::salvage) the log goes on without.
    pub damage: Vec<Damage>,
    /// Records beside the damage that are whole, and not among `first_lsn` to `last_lsn`. [`read`](super::read) gives them; a salvage
    /// puts the files that hold them aside.
    pub behind: Vec<Range<u64>>,
    /// What the device cannot read, whatever was there.
    pub unreadable: Vec<Unreadable>,
    /// Pages that are not whole, and of which there is a copy that is.
    pub from_copy: Vec<Place>,
    /// The control file is gone, or both of its copies are; what it said was taken from the segments.
    pub control_lost: bool,
    /// The files that hold what cannot be kept for damage. [`Options::salvage`](super::Options::salvage) puts them aside; of the segment
    /// that the log goes on from, a copy.
    pub lost: Vec<PathBuf>,
    /// What salvages put aside: files that are not part of the log any more.
    pub aside: Vec<PathBuf>,
    /// There was no log, and this call made one.
    pub created: bool,
    /// How the log is written.
    pub strategy: Strategy,
    /// It is written past the page cache.
    pub direct: bool,
    /// Bytes of each segment.
    pub segment_bytes: u64,
    /// What was read.
    pub bytes_read: u64,
    /// How long it took.
    pub elapsed: Duration,
}

/// A place in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The segment's file.
    pub path: PathBuf,
    /// In bytes.
    pub offset: u64,
}

/// Records that were acknowledged and cannot be read.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The segment's file.
    pub path: PathBuf,
    /// Bytes of it between which the damage lies.
    pub bytes: Range<u64>,
    /// The records that are known to have been there; more may have been.
    pub lsns: Range<u64>,
    /// What is wrong, and how that is known.
    pub what: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Damage { path, bytes, lsns, what } = self;
        write!(f, "{}, bytes {} to {}: {what}", path.display(), bytes.start, bytes.end)?;
        if !lsns.is_empty() {
            write!(f, "; records {} to {} are lost", lsns.start, lsns.end - 1)?;
        }
        Ok(())
    }
}

impl Damage {
    pub(super) fn error(&self) -> Error {
        let path = Arc::from(self.path.as_path());
        let length = self.bytes.end.saturating_sub(self.bytes.start);
        Error::new(ErrorOp::Recover, ErrorKind::Damaged)
            .at(&path)
            .range(self.bytes.start, length)
            .detail(self.to_string())
    }
}

/// A segment of the chain, and where it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) header: SegmentHeader,
    /// Behind the last block that counts.
    pub(super) end: u64,
    pub(super) last_lsn: u64,
}

impl Segment {
    pub(super) fn is_empty(&self) -> bool {
        self.last_lsn < self.header.first_lsn()
    }
}

pub(super) struct Found {
    pub(super) control: Control,
    pub(super) recovery: Recovery,
    /// Oldest first.
    pub(super) chain: Vec<Segment>,
    pub(super) end: End,
    /// What is whole beside the damage, by LSN.
    pub(super) runs: Vec<Run>,
    /// The highest number that a file has.
    pub(super) number_max: u64,
    /// Files that hold nothing of the log: prepared, or cut off.
    pub(super) free: Vec<u64>,
    /// Files that hold what is lost.
    pub(super) lost: Vec<u64>,
    /// The segment of the chain in which something is lost.
    pub(super) holed: Option<u64>,
}

impl Found {
    /// The first damage, as an error.
    pub(super) fn check(&self) -> Result<()> {
        self.recovery.damage.first().map_or(Ok(()), |damage| Err(damage.error()))
    }
}

/// None where there is no log. `writer`: the log is locked, and goes on from here: what is read must last.
pub(super) fn recover(folder: &Folder, writer: bool) -> Result<Option<Found>> {
    let started = Instant::now();
    let contents = folder.contents()?;
    let Contents { numbers, has_control, aside, .. } = &contents;
    if !has_control && numbers.is_empty() {
        return Ok(None);
    }
    let mut control_file = read_control(folder)?;
    let control = match control_file.control {
        Some(control) => control,
        None if !has_control && is_unfinished(folder, numbers)? => return Ok(None),
        None => rebuild_control(folder, numbers)?,
    };
    let mut scan = Scan {
        folder,
        control,
        writer,
        bytes_read: 0,
        damage: Vec::new(),
        unreadable: std::mem::take(&mut control_file.unreadable),
        from_copy: control_file.bad_copy.into_iter().collect(),
        to_sync: Vec::new(),
    };
    let mut found = scan.run(numbers)?;
    if numbers.is_empty() {
        let what = "the log has no segment; one is there from the moment when a log is made";
        found.recovery.damage.push(Damage {
            path: folder.path.to_path_buf(),
            bytes: 0..0,
            lsns: 0..0,
            what: what.into(),
        });
    }
    // Numbers that were put aside are not used again, either.
    found.number_max = aside.iter().filter_map(|name| aside_number(name)).fold(found.number_max, u64::max);
    found.recovery.aside = aside.iter().map(|name| folder.join(name)).collect();
    found.recovery.control_lost = control_file.control.is_none();
    found.recovery.elapsed = started.elapsed();
    Ok(Some(found))
}

/// What is left of a control file.
#[derive(Default)]
struct ControlFile {
    control: Option<Control>,
    bad_copy: Option<Place>,
    unreadable: Vec<Unreadable>,
}

fn read_control(folder: &Folder) -> Result<ControlFile> {
    let path = folder.join(CONTROL);
    let file = match folder.open_file(OpenOptions::new().read(true), CONTROL) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(ControlFile::default()),
        other => other?,
    };
    let mut window = Window::past_errors(file);
    let bytes = window.at(0, CONTROL_BYTES)?;
    let bad_copy = Control::bad_copy(bytes).map(|offset| Place { path: path.clone(), offset });
    match Control::decode(bytes) {
        Ok(control) if is_plausible(&control) => {
            Ok(ControlFile { control: Some(control), bad_copy, unreadable: window.take_unreadable() })
        }
        Err(BadControl::Version(version)) => {
            let text = format!("the log is of version {version} of the format, this library knows 1; use a later one");
            let error = Error::new(ErrorOp::Recover, ErrorKind::Unsupported).at(&Arc::from(path));
            Err(error.range(0, CONTROL_BYTES as u64).explained(text))
        }
        Ok(_) | Err(BadControl::Damaged) => {
            Ok(ControlFile { unreadable: window.take_unreadable(), ..ControlFile::default() })
        }
    }
}

fn is_plausible(control: &Control) -> bool {
    (2 * PAGE as u64..=super::SEGMENT_BYTES_MAX).contains(&control.segment_bytes)
        && control.segment_bytes % PAGE as u64 == 0
        && control.depth > 0
}

/// The making of a log was cut off: it makes one segment, of zeros, and the control file comes last.
fn is_unfinished(folder: &Folder, numbers: &[u64]) -> Result<bool> {
    let [number @ 1] = *numbers else { return Ok(numbers.is_empty()) };
    let mut window = Window::new(folder.open(number, false, true)?);
    Ok(window.at(0, PAGE)?.iter().all(|byte| *byte == 0))
}

/// What a control file said, as far as the headers of segments repeat it; else the slowest way of writing, which works everywhere.
fn rebuild_control(folder: &Folder, numbers: &[u64]) -> Result<Control> {
    let mut rebuilt: Option<Control> = None;
    for &number in numbers {
        let file = folder.open(number, false, true)?;
        let direct = is_direct(&file);
        let header = SegmentHeader::decode_unknown(Window::past_errors(file).at(0, PAGE)?, number);
        let Some(header) = header else { continue };
        let control = Control {
            log_id: header.log_id,
            segment_bytes: header.bytes,
            sync: super::Durability::WriteAndSync.code(),
            caller: super::Submitter::Call.code(),
            depth: 1,
            direct,
        };
        let is_other = |known: &Control| (known.log_id, known.segment_bytes) != (control.log_id, control.segment_bytes);
        if rebuilt.as_ref().is_some_and(is_other) {
            return Err(no_control(folder, "its segments are of several logs"));
        }
        rebuilt = rebuilt.or(Some(control));
    }
    rebuilt.filter(is_plausible).ok_or_else(|| no_control(folder, "no segment's header is whole"))
}

fn no_control(folder: &Folder, why: &str) -> Error {
    let path = Arc::from(folder.join(CONTROL));
    let text = format!("the control file is lost, and {why}; it is the same as when the log was made: restore it");
    Error::new(ErrorOp::Recover, ErrorKind::Damaged).at(&path).range(0, CONTROL_BYTES as u64).explained(text)
}

/// What is whole in the files that salvages put aside, by LSN. None where there is no log.
pub(super) fn recover_aside(folder: &Folder) -> Result<Option<(Control, Vec<Run>)>> {
    let Contents { numbers, has_control, aside, .. } = folder.contents()?;
    if !has_control && numbers.is_empty() {
        return Ok(None);
    }
    let control = match read_control(folder)?.control {
        Some(control) => control,
        None => rebuild_control(folder, &numbers)?,
    };
    let mut runs = Vec::new();
    for name in aside {
        let Some(number) = aside_number(&name) else { continue };
        let file = folder.open_file(OpenOptions::new().read(true), &name)?;
        let mut blocks = Blocks::new(Window::past_errors(file), &stand_in(&control, number, 0)).reading_ahead();
        let name: Arc<str> = Arc::from(name);
        let found = blocks.behind(|_| true)?.runs.into_iter();
        runs.extend(found.map(|run| Run { aside: Some(name.clone()), ..run }));
    }
    Ok(Some((control, in_order(runs, 0..0, u64::MAX - 1))))
}

/// For a segment without a header.
fn stand_in(control: &Control, number: u64, lsn: u64) -> SegmentHeader {
    let Control { log_id, segment_bytes: bytes, .. } = *control;
    let previous = End { lsn, ..End::default() };
    SegmentHeader { log_id, number, epoch: 0, bytes, watermark: 0, previous }
}

struct Scan<'a> {
    folder: &'a Folder,
    control: Control,
    writer: bool,
    bytes_read: u64,
    damage: Vec<Damage>,
    unreadable: Vec<Unreadable>,
    from_copy: Vec<Place>,
    /// Segments that were read, of which no watermark spoke by then.
    to_sync: Vec<(Segment, File)>,
}

/// The files, by what their first page says. By number.
#[derive(Default)]
struct Files {
    valid: Vec<SegmentHeader>,
    unused: Vec<u64>,
    bad: Vec<u64>,
    /// Those of them whose first page cannot be read.
    unreadable: Vec<u64>,
}

impl Files {
    fn get(&self, number: u64) -> Option<&SegmentHeader> {
        let at = self.valid.binary_search_by_key(&number, |header| header.number).ok()?;
        self.valid.get(at)
    }

    /// The newest of those before `number`.
    fn head_before(&self, number: u64) -> Option<&SegmentHeader> {
        let before = self.valid.iter().take_while(|header| header.number < number);
        before.max_by_key(|header| (header.epoch, header.number))
    }
}

/// A segment that others lead to.
#[derive(Clone, Copy)]
struct Link {
    header: SegmentHeader,
    /// Where the next goes on from it; None if there is none, or the one between them is missing.
    limit: Option<End>,
}

/// What led from the newest segment to the oldest.
#[derive(Default)]
struct Chain {
    /// From the oldest segment to the first that the next one names in vain. Oldest first.
    kept: Vec<Link>,
    /// Those behind it.
    severed: Vec<Link>,
    /// Segments that others name in vain, though there are files of these numbers; and where the others go on.
    bad: Vec<(u64, End)>,
    /// The damage that lies between both parts, by its place in the list.
    severed_by: usize,
}

/// What speaks of records that are durable.
struct Evidence {
    watermark: u64,
    /// The block that says the most: its segment and place.
    block: Option<(u64, u64)>,
}

impl Evidence {
    fn add(&mut self, segment: u64, behind: &Behind) {
        if let Some((watermark, offset)) = behind.proof.filter(|(watermark, _)| *watermark > self.watermark) {
            *self = Evidence { watermark, block: Some((segment, offset)) };
        }
    }
}

/// The kept part of the chain, read to where it stops.
struct Kept {
    chain: Vec<Segment>,
    end: End,
    closed: bool,
    torn: Option<Place>,
    /// What stopped it cannot be read.
    is_unreadable: bool,
    gaps: Vec<Range<u64>>,
    runs: Vec<Run>,
}

/// What segments hold that are newer than the chain, and have no header.
#[derive(Default)]
struct Headless {
    /// One of them had one.
    proven: Option<u64>,
    /// Those that hold something.
    numbers: Vec<u64>,
    runs: Vec<Run>,
}

impl Scan<'_> {
    fn run(&mut self, numbers: &[u64]) -> Result<Found> {
        let files = self.files(numbers)?;
        let links = self.chain(&files);
        let headers = || links.kept.iter().chain(&links.severed).map(|link| link.header);
        let watermark = headers().map(|header| header.watermark).max().unwrap_or(0);
        let mut evidence = Evidence { watermark, block: None };
        let Kept { chain, end, closed, torn, is_unreadable, gaps, mut runs } = self.kept(&links.kept, &mut evidence)?;
        let headless = self.headless(&files, &links, end, &mut evidence)?;
        self.make_durable(evidence.watermark)?;

        let stopped = chain.last().map_or(0, |segment| segment.header.number);
        let path = |number| self.folder.segment_path(number);
        let is_severed = !links.severed.is_empty();
        let Evidence { watermark, block } = evidence;
        // The first of these says what stopped it.
        let reason = if is_severed {
            None
        } else if let Some(number) = headless.proven {
            let what = "the segment's header is not whole, and was, since no block but the first is written beside it";
            Some((number, what.to_owned()))
        } else if let (true, Some((number, offset))) = (watermark > end.lsn, block) {
            let what = format!("no whole block is here, but the one at {offset} of segment {number} says that one was");
            Some((stopped, what))
        } else if watermark > end.lsn {
            Some((stopped, "no whole block is here, but one that was written later says that one was".to_owned()))
        } else if is_unreadable {
            Some((stopped, "this cannot be read, and may have been the log's last records".to_owned()))
        } else {
            None
        };
        let is_damaged = reason.is_some() || !self.damage.is_empty();
        let mut next_lsn = end.lsn + 1;
        let mut holed = None;
        if is_damaged {
            for link in &links.severed {
                runs.extend(self.look_behind(link, &mut evidence)?);
            }
            for (number, limit) in &links.bad {
                let (found, limit) = (self.look_anywhere(*number)?, Some(*limit));
                evidence.add(*number, &found);
                runs.extend(found.runs.into_iter().filter_map(|run| within(run, limit)));
            }
            runs.extend(headless.runs);
            let watermark = evidence.watermark;
            let first = chain.first().map_or(1, |segment| segment.header.first_lsn());
            runs = in_order(runs, first..end.lsn + 1, watermark);
            let last_known = runs.last().map_or(0, |run| run.lsns.end - 1).max(watermark);
            next_lsn = headers().map(|header| header.previous.lsn).fold(last_known.max(end.lsn), u64::max) + 1;
            let behind = || runs.iter().filter(|run| run.lsns.start > end.lsn);
            let lsns = end.lsn + 1..behind().next().map_or(watermark + 1, |run| run.lsns.start).max(end.lsn + 1);
            if let Some((number, what)) = reason {
                let place = if number == stopped { end.offset } else { 0 };
                let next = behind().find(|run| run.segment == number && run.bytes.start > place);
                let until = match (next, block) {
                    _ if number != stopped => PAGE as u64,
                    (Some(run), _) => run.bytes.start,
                    (None, Some((at, offset))) if at == number && offset > place => offset,
                    _ => self.control.segment_bytes.max(place),
                };
                // Zero: the chain is empty, and no segment has a hole.
                holed = (number == stopped && stopped != 0).then_some(number);
                self.damage.push(Damage { path: path(number), bytes: place..until, lsns, what });
            } else if is_severed {
                self.damage[links.severed_by].lsns = lsns;
            }
            let between = self.holes(behind().cloned().collect(), watermark);
            self.damage.extend(between);
            if behind().any(|run| run.segment == stopped) {
                holed = Some(stopped);
            }
        } else {
            runs.clear();
        }
        // What no salvage may remove, also when an earlier one was cut off before it had put it aside.
        let salvaged = chain.iter().filter(|segment| segment.header.previous.lost_from != 0);
        let salvaged = salvaged.map(|segment| segment.header.number).max().unwrap_or(0);
        let is_named = |number: &u64| links.bad.iter().any(|(bad, _)| bad == number);
        let is_lost = |number: &u64| match is_damaged {
            false => *number < salvaged,
            true if files.get(*number).is_some() => *number > stopped,
            true => files.bad.contains(number) || headless.numbers.contains(number) || is_named(number),
        };
        let is_chained = |number: &u64| chain.iter().any(|segment| segment.header.number == *number);
        let (lost, free): (Vec<u64>, Vec<u64>) =
            numbers.iter().copied().filter(|number| !is_chained(number)).partition(is_lost);
        let mut lost_paths: Vec<PathBuf> = holed.iter().chain(&lost).map(|number| path(*number)).collect();
        lost_paths.sort_unstable();
        Ok(Found {
            control: self.control,
            recovery: Recovery {
                first_lsn: chain.first().map_or(1, |segment| segment.header.first_lsn()),
                last_lsn: end.lsn,
                next_lsn,
                gaps,
                epoch: files.valid.iter().map(|header| header.epoch).max().unwrap_or(0),
                segments: chain.iter().filter(|segment| !segment.is_empty()).count(),
                closed,
                torn: torn.filter(|_| !is_damaged),
                damage: std::mem::take(&mut self.damage),
                behind: joined(&runs),
                unreadable: std::mem::take(&mut self.unreadable),
                from_copy: std::mem::take(&mut self.from_copy),
                control_lost: false,
                lost: lost_paths,
                aside: Vec::new(),
                created: false,
                strategy: super::strategy(&self.control),
                direct: self.control.direct,
                segment_bytes: self.control.segment_bytes,
                bytes_read: self.bytes_read,
                elapsed: Duration::ZERO,
            },
            chain,
            end,
            runs,
            number_max: numbers.last().copied().unwrap_or(0),
            free,
            lost,
            holed,
        })
    }

    /// Reads the first page of each file, or the copy of what should be there.
    fn files(&mut self, numbers: &[u64]) -> Result<Files> {
        let mut files = Files::default();
        let Control { log_id, segment_bytes, .. } = self.control;
        for &number in numbers {
            let mut window = Window::past_errors(self.file(number)?).by_page();
            let mut page = SegmentHeader::decode(window.at(0, PAGE)?, &log_id, number);
            let unreadable = window.take_unreadable();
            if !unreadable.is_empty() {
                page = HeaderPage::Bad;
                files.unreadable.push(number);
            }
            if !matches!(page, HeaderPage::Valid(_)) {
                if let Some(header) = SegmentHeader::decode_copy(window.at(PAGE as u64, PAGE)?, &log_id, number) {
                    page = HeaderPage::Valid(header);
                    self.from_copy.push(Place { path: self.folder.segment_path(number), offset: 0 });
                }
            }
            self.bytes_read += window.bytes_read;
            self.unreadable.extend(unreadable);
            match page {
                HeaderPage::Valid(header) if header.bytes == segment_bytes => files.valid.push(header),
                HeaderPage::Unused => files.unused.push(number),
                HeaderPage::Valid(_) | HeaderPage::Bad => files.bad.push(number),
            }
        }
        Ok(files)
    }

    /// Follows the headers from the newest segment back, each of which names the one before.
    fn chain(&mut self, files: &Files) -> Chain {
        let mut chain = Chain::default();
        let mut limit = None;
        let mut link = files.head_before(u64::MAX).copied();
        while let Some(header) = link {
            chain.kept.push(Link { header, limit });
            let before = header.previous.segment;
            limit = Some(header.previous);
            link = match files.get(before) {
                _ if before == 0 => None,
                Some(previous) => Some(*previous),
                None => {
                    // Zeros, too: a segment that another goes on from was used.
                    let is_bad = files.bad.contains(&before) || files.unused.contains(&before);
                    let older = files.head_before(before).copied();
                    if !is_bad && older.is_none() {
                        // The log's beginning was removed.
                        break;
                    }
                    let what = if is_bad { "the segment's header is not whole" } else { "the segment is missing" };
                    self.damage.push(Damage {
                        path: self.folder.segment_path(before),
                        bytes: 0..if is_bad { self.control.segment_bytes } else { 0 },
                        lsns: header.first_lsn()..header.first_lsn(),
                        what: format!("{what}; segment {} goes on from it", header.number),
                    });
                    if is_bad {
                        chain.bad.push((before, header.previous));
                    }
                    if older.is_some() {
                        // What is whole from the oldest record on is what can be kept.
                        chain.severed.append(&mut chain.kept);
                        chain.severed_by = self.damage.len() - 1;
                        limit = None;
                    }
                    older
                }
            };
        }
        chain.kept.reverse();
        chain.severed.reverse();
        chain
    }

    fn kept(&mut self, links: &[Link], evidence: &mut Evidence) -> Result<Kept> {
        let end = End { lsn: links.first().map_or(0, |oldest| oldest.header.previous.lsn), ..End::default() };
        let mut kept = Kept {
            chain: Vec::new(),
            end,
            closed: false,
            torn: None,
            is_unreadable: false,
            gaps: Vec::new(),
            runs: Vec::new(),
        };
        for (index, Link { header, limit }) in links.iter().enumerate() {
            let file = self.file(header.number)?;
            let mut blocks = Blocks::new(Window::past_errors(file.clone()), header).reading_ahead();
            kept.closed = false;
            while limit.is_none_or(|limit| blocks.offset < limit.offset) {
                let Some((block, _)) = blocks.next()? else { break };
                evidence.watermark = evidence.watermark.max(block.watermark);
                kept.closed = block.closed;
            }
            let last_lsn = blocks.next_lsn - 1;
            // Where the log was cut, a block may hold more than counts.
            let complete = limit.filter(|limit| blocks.offset == limit.offset && last_lsn >= limit.last_there());
            kept.end = match complete {
                Some(limit) => limit,
                None => End { segment: header.number, offset: blocks.offset, lsn: last_lsn, lost_from: 0 },
            };
            let segment = Segment { header: *header, end: kept.end.offset, last_lsn: kept.end.last_there() };
            kept.chain.push(segment);
            self.to_sync.push((segment, file));
            let writer = self.writer;
            self.to_sync.retain(|(segment, _)| is_unspoken(segment, evidence.watermark, writer));
            if complete.is_some() {
                kept.gaps.extend(Some(kept.end.lost()).filter(|lost| !lost.is_empty()));
                self.done(blocks);
                continue;
            }
            kept.is_unreadable = blocks.is_unreadable()?;
            let is_begun = blocks.is_begun()?;
            let behind = blocks.behind(|block| is_of(header, block))?;
            if is_begun || behind.proof.is_some() {
                kept.torn = Some(Place { path: self.folder.segment_path(header.number), offset: kept.end.offset });
            }
            evidence.add(header.number, &behind);
            kept.runs.extend(behind.runs.into_iter().filter_map(|run| within(run, *limit)));
            self.done(blocks);
            // In flight with what is missing here.
            for later in &links[index + 1..] {
                kept.runs.extend(self.look_behind(later, evidence)?);
            }
            break;
        }
        Ok(kept)
    }

    /// The header of the newest segment may be what is damaged.
    fn headless(&mut self, files: &Files, links: &Chain, end: End, evidence: &mut Evidence) -> Result<Headless> {
        let mut headless = Headless::default();
        let headers = links.kept.iter().chain(&links.severed).map(|link| link.header);
        let head = headers.max_by_key(|header| (header.epoch, header.number));
        let (newest, epoch, first_lsn) = head.map_or((0, 0, 0), |head| (head.number, head.epoch, head.first_lsn()));
        for number in files.bad.iter().chain(&files.unused).copied().filter(|number| *number > newest) {
            let mut blocks = self.any_blocks(number, end.lsn)?;
            // What the file held before it was used again is older than the newest segment.
            let behind =
                blocks.behind(|block| block.epoch > epoch || (block.epoch == epoch && block.first_lsn >= first_lsn))?;
            // A write that was cut off leaves nothing that cannot be read. What a first block said is not known then.
            let is_unknown =
                files.unreadable.contains(&number) && (behind.proof.is_some() || blocks.is_unreadable()?);
            self.done(blocks);
            evidence.add(number, &behind);
            if behind.proof.is_some() || is_unknown {
                headless.numbers.push(number);
            }
            if behind.beyond_first || is_unknown {
                headless.proven = headless.proven.or(Some(number));
            }
            headless.runs.extend(behind.runs);
        }
        Ok(headless)
    }

    fn file(&mut self, number: u64) -> Result<File> {
        let file = self.folder.open(number, false, self.control.direct)?;
        if !(self.control.direct && is_direct(&file)) {
            // The log may have been copied here from where it was.
            self.control.direct = false;
            // After a write-back that failed the page cache shows what the disk has not. (Where pages cannot be dropped, they are the disk.)
            if self.writer {
                file.sync_data().wait()?;
            }
            file.advise(0, 0, Advice::DontNeed).wait()?;
        }
        Ok(file)
    }

    /// What was read is what the application goes on from: none of it must be in a cache alone. What a watermark speaks of is not.
    fn make_durable(&self, watermark: u64) -> Result<()> {
        for (segment, file) in &self.to_sync {
            if !is_unspoken(segment, watermark, self.writer) {
                continue;
            }
            match file.sync_data().wait() {
                // Nothing is on its way to where nothing can be written.
                Err(error) if !self.writer && error.raw_os_error() == Some(Errno::ROFS.raw_os_error()) => {}
                other => other?,
            }
        }
        if self.writer { self.folder.sync() } else { Ok(()) }
    }

    /// Whole blocks of a segment that is not read in order.
    fn look_behind(&mut self, Link { header, limit }: &Link, evidence: &mut Evidence) -> Result<Vec<Run>> {
        let file = self.file(header.number)?;
        let mut blocks = Blocks::new(Window::past_errors(file), header).reading_ahead();
        let found = blocks.behind(|block| is_of(header, block))?;
        self.done(blocks);
        evidence.add(header.number, &found);
        Ok(found.runs.into_iter().filter_map(|run| within(run, *limit)).collect())
    }

    /// Whole blocks of a segment that has no header.
    fn look_anywhere(&mut self, number: u64) -> Result<Behind> {
        let mut blocks = self.any_blocks(number, 0)?;
        let found = blocks.behind(|_| true)?;
        self.done(blocks);
        Ok(found)
    }

    fn any_blocks(&mut self, number: u64, lsn: u64) -> Result<Blocks> {
        let header = stand_in(&self.control, number, lsn);
        Ok(Blocks::new(Window::past_errors(self.file(number)?), &header).reading_ahead())
    }

    fn done(&mut self, mut blocks: Blocks) {
        self.bytes_read += blocks.bytes_read();
        for new in blocks.take_unreadable() {
            if !self.unreadable.contains(&new) {
                self.unreadable.push(new);
            }
        }
    }

    /// Records that are known to have been between, and behind, those that are whole.
    fn holes(&self, runs: Vec<Run>, watermark: u64) -> Vec<Damage> {
        let mut holes = Vec::new();
        for (index, run) in runs.iter().enumerate() {
            let next = runs.get(index + 1);
            let lsns = run.lsns.end..next.map_or(watermark + 1, |next| next.lsns.start);
            if lsns.is_empty() {
                continue;
            }
            let next = next.filter(|next| next.segment == run.segment && next.bytes.start >= run.bytes.end);
            holes.push(Damage {
                path: self.folder.segment_path(run.segment),
                bytes: run.bytes.end..next.map_or(self.control.segment_bytes, |next| next.bytes.start),
                lsns,
                what: "no whole block is here, behind one that is".into(),
            });
        }
        holes
    }
}

/// No watermark speaks of all of it: that it can be read proves that it was written, not that it is durable. To a writer a stamp behind
/// the last record counts, too: its next header will say that the log goes on behind that.
fn is_unspoken(segment: &Segment, watermark: u64, writer: bool) -> bool {
    let last = if writer { segment.last_lsn + 1 } else { segment.last_lsn };
    last > watermark || segment.is_empty()
}

/// A block of the segment, not what its file held before.
fn is_of(header: &SegmentHeader, block: &BlockHeader) -> bool {
    block.epoch == header.epoch && block.first_lsn >= header.first_lsn()
}

/// What of it counts, where the log goes on elsewhere.
fn within(mut run: Run, limit: Option<End>) -> Option<Run> {
    if let Some(limit) = limit {
        run.lsns.end = run.lsns.end.min(limit.last_there() + 1);
        if run.bytes.start >= limit.offset {
            return None;
        }
    }
    (!run.lsns.is_empty()).then_some(run)
}

/// Runs by LSN, of which none holds what another does, or what is `kept`; of what is there twice the newer. What no watermark speaks of
/// counts where it goes on from what does.
fn in_order(mut runs: Vec<Run>, kept: Range<u64>, watermark: u64) -> Vec<Run> {
    runs.sort_by_key(|run| (run.lsns.start, run.epoch));
    let mut ordered: Vec<Run> = Vec::new();
    for mut run in runs {
        if run.lsns.start < kept.start {
            run.lsns.end = run.lsns.end.min(kept.start);
        } else if run.lsns.start < kept.end {
            continue;
        }
        let before = ordered.last().map_or(kept.end, |last| last.lsns.end.max(kept.end));
        if run.lsns.start > watermark + 1 && run.lsns.start > before {
            break;
        }
        match ordered.last_mut().filter(|last| last.lsns.end > run.lsns.start) {
            Some(last) if last.epoch >= run.epoch => continue,
            Some(last) => last.lsns.end = run.lsns.start,
            None => {}
        }
        ordered.retain(|run| !run.lsns.is_empty());
        ordered.push(run);
    }
    ordered
}

/// The numbers of their records.
fn joined(runs: &[Run]) -> Vec<Range<u64>> {
    let mut joined: Vec<Range<u64>> = Vec::new();
    for run in runs {
        match joined.last_mut().filter(|last| last.end == run.lsns.start) {
            Some(last) => last.end = run.lsns.end,
            None => joined.push(run.lsns.clone()),
        }
    }
    joined
}
