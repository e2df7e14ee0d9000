//! Full scan of a log's directory: the chain of segments, its blocks, and records after damage.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use super::control::missing_behind;
use super::runs::{in_order, is_of, joined, stand_in, within};
use super::{Damage, Found, Place, Recovery};
use crate::dir::{Blocks, Broken, LogDir, Orphans, Run, Segment, Unreadable, Window, is_direct};
use crate::format::{BLOCK_HEADER_BYTES, BlockHeader, Control, End, HeaderPage, LogId, PAGE, SegmentHeader};
use crate::options::{Calibration, Scan, Strategy};
use crate::os;
use nowait::{Advice, ErrorKind, File, Result, embed};

/// Maximum number of threads that read first pages.
const READ_AT_ONCE: usize = 16;
/// Minimum number of files for each thread.
const FILES_MIN: usize = 4;

/// A recovery in progress.
pub(crate) struct Survey<'a> {
    pub(crate) dir: &'a LogDir,
    pub(crate) control: Control,
    pub(crate) writer: bool,
    pub(crate) is_control_lost: bool,
    /// Oldest segment according to the control file; headers may name a newer one.
    pub(crate) recorded_oldest: u64,
    pub(crate) bytes_read: u64,
    pub(crate) damage: Vec<Damage>,
    pub(crate) unreadable: Vec<Unreadable>,
    pub(crate) from_copy: Vec<Place>,
    /// Segments that were read, and that no watermark proves durable yet.
    pub(crate) to_sync: Vec<(Segment, File)>,
}

/// Segment files by the state of their first page, in order of their numbers.
#[derive(Default)]
pub(super) struct Files {
    valid: Vec<SegmentHeader>,
    pub(super) unused: Vec<u64>,
    pub(super) bad: Vec<u64>,
    /// Files of `bad` whose first page the device cannot read.
    unreadable: Vec<u64>,
    /// Files of `unused` with the header of another segment, each with that header.
    pub(super) others: Vec<(u64, SegmentHeader)>,
    /// Number of the oldest segment of the log. Files of older, removed segments may exist.
    oldest: u64,
}

impl Files {
    fn get(&self, number: u64) -> Option<&SegmentHeader> {
        let at = self.valid.binary_search_by_key(&number, |header| header.number).ok()?;
        self.valid.get(at)
    }

    /// Epoch and number of the newest valid header.
    pub(super) fn head(&self) -> (u64, u64) {
        self.head_before(u64::MAX).map_or((0, 0), |head| (head.epoch, head.number))
    }

    /// Returns the newest valid header before `number`.
    fn head_before(&self, number: u64) -> Option<&SegmentHeader> {
        let before = self.valid.iter().take_while(|header| header.number < number);
        let before = before.filter(|header| header.number >= self.oldest);
        before.max_by_key(|header| (header.epoch, header.number))
    }
}

/// First page of a file.
struct First {
    page: HeaderPage,
    /// The header was taken from its copy.
    is_copy: bool,
    unreadable: Vec<Unreadable>,
    bytes_read: u64,
}

impl First {
    fn read(file: File, log_id: &LogId, number: u64) -> Result<First> {
        let mut window = Window::past_errors(file).by_page();
        let mut page = SegmentHeader::decode(window.at(0, PAGE)?, log_id, number);
        let unreadable = window.take_unreadable();
        if !unreadable.is_empty() {
            page = HeaderPage::Bad;
        }
        let mut is_copy = false;
        if !matches!(page, HeaderPage::Valid(_)) {
            if let Some(header) = SegmentHeader::decode_copy(window.at(PAGE as u64, PAGE)?, log_id, number) {
                (page, is_copy) = (HeaderPage::Valid(header), true);
            }
        }
        Ok(First { page, is_copy, unreadable, bytes_read: window.bytes_read })
    }
}

/// A segment of the chain.
#[derive(Clone, Copy)]
pub(super) struct Link {
    pub(super) header: SegmentHeader,
    /// End from which the next segment continues; None if there is no next segment, or if one in
    /// between is missing.
    pub(super) limit: Option<End>,
    /// Last valid record, bounded by newer epochs in the control file, even if the chain lacks
    /// their segments.
    last_lsn: u64,
}

/// The chain from the newest segment to the oldest.
#[derive(Default)]
pub(super) struct Chain {
    /// From the oldest segment to the first broken link, oldest first.
    pub(super) kept: Vec<Link>,
    /// Segments after the broken link.
    pub(super) severed: Vec<Link>,
    /// Segments without a valid header that a later segment names, each with the place from which
    /// that one continues.
    bad: Vec<(u64, End)>,
    /// Index of the damage between the two parts.
    severed_by: usize,
}

/// Evidence that records were durable.
struct Evidence {
    watermark: u64,
    /// Segment and offset of the block with the highest watermark.
    block: Option<(u64, u64)>,
}

impl Evidence {
    /// Adds the watermark found in `behind`. Records after `limit`, from which the next segment
    /// continues, were cut off, so the watermark counts only up to there.
    fn add(&mut self, segment: u64, behind: &Orphans, limit: Option<End>) {
        let Some((watermark, offset)) = behind.proof else { return };
        let watermark = limit.map_or(watermark, |limit| watermark.min(limit.lsn));
        if watermark > self.watermark {
            *self = Evidence { watermark, block: Some((segment, offset)) };
        }
    }
}

/// The kept part of the chain, read to the last block that continues it.
struct KeptChain {
    chain: Vec<Segment>,
    end: End,
    closed: bool,
    torn: Option<Place>,
    /// Reading stopped at an unreadable page.
    is_unreadable: bool,
    /// Reading stopped in a shortened file. A crash never causes that, since all bytes of a segment
    /// are durable before its header is written.
    is_short: bool,
    /// Reading stopped at a damaged block with an intact header.
    broken: Option<Broken>,
    gaps: Vec<Range<u64>>,
    runs: Vec<Run>,
}

/// Segments that are newer than the chain and have no valid header.
#[derive(Default)]
struct Headless {
    /// A segment that is proven to have had a valid header.
    proven: Option<u64>,
    /// Segments that contain blocks.
    numbers: Vec<u64>,
    runs: Vec<Run>,
}

/// Result of a scan.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) chain: Vec<Segment>,
    pub(super) end: End,
    pub(super) next_lsn: u64,
    pub(super) closed: bool,
    pub(super) torn: Option<Place>,
    pub(super) gaps: Vec<Range<u64>>,
    pub(super) runs: Vec<Run>,
    pub(super) is_damaged: bool,
    /// Segments that contain lost records.
    pub(super) lost: Vec<u64>,
    pub(super) holed: Option<u64>,
}

impl Survey<'_> {
    pub(crate) fn run(&mut self, numbers: &[u64]) -> Result<Found> {
        let files = self.files(numbers)?;
        let links = self.chain(&files);
        let headers = || links.kept.iter().chain(&links.severed).map(|link| link.header);
        let recorded = self.recorded_watermark(&links);
        let watermark = headers().map(|header| header.watermark).fold(recorded, u64::max);
        let mut evidence = Evidence { watermark, block: None };
        let lost_head = self.lost_head(&files);
        let KeptChain { mut chain, mut end, closed, torn, is_unreadable, is_short, broken, gaps, mut runs } =
            self.kept(&links.kept, &mut evidence)?;
        let headless = self.headless(&files, &links, end, &mut evidence)?;
        let head = headers().map(|header| header.number).chain(headless.numbers.iter().copied()).max();
        if lost_head.is_none() {
            self.look_for_newest(numbers, head.unwrap_or(0));
        }
        let renamed = self.renamed(&files, &links);
        self.make_durable(evidence.watermark)?;

        let stopped = chain.last().map_or(0, |segment| segment.header.number);
        let path = |number| self.dir.segment_path(number);
        let is_severed = !links.severed.is_empty();
        let Evidence { watermark, block } = evidence;
        // A damaged block that was durable is kept up to its first damaged record. Any other
        // incomplete block is a torn write, which is dropped.
        let is_proven = watermark > end.lsn;
        let broken = broken.filter(|_| is_proven);
        let missing_at = broken.as_ref().map_or(end.offset, |broken| broken.whole_until.1);
        if let Some(Broken { header, whole_until: (lsn, _) }) = broken.as_ref().filter(|_| stopped != 0) {
            if *lsn > header.first_lsn {
                (end.offset, end.lsn) = (header.padded_end(), lsn - 1);
                if let Some(last) = chain.last_mut() {
                    (last.end, last.last_lsn) = (end.offset, end.lsn);
                }
            }
        }
        let missing = match broken.is_some() {
            true => format!("record {} is damaged", end.lsn + 1),
            false => "no intact block is here".to_owned(),
        };
        // The first reason that applies explains the end of the log.
        let reason = if is_severed {
            None
        } else if let Some(number) = headless.proven {
            let what = "the segment's header is damaged: it was durable before the blocks that follow it were written";
            Some((number, what.to_owned()))
        } else if let Some(number) = lost_head {
            let what = match numbers.contains(&number) {
                true => "the segment's header is damaged",
                false => "the segment is missing",
            };
            Some((number, format!("{what}, and the control file says that it contained the newest records")))
        } else if is_short {
            let what = "the file was shortened, and may have contained the last records";
            Some((stopped, what.to_owned()))
        } else if let (true, Some((number, offset))) = (is_proven, block) {
            let what =
                format!("{missing}, although the block at {offset} of segment {number} says that it was durable");
            Some((stopped, what))
        } else if is_proven {
            let what = match watermark > recorded {
                true => "a segment that was written later says that it was durable",
                false => "the control file says that it was durable",
            };
            Some((stopped, format!("{missing}, although {what}")))
        } else if is_unreadable {
            Some((stopped, "these bytes cannot be read, and may have been the last records".to_owned()))
        } else {
            None
        };
        let is_damaged = reason.is_some() || !self.damage.is_empty() || !renamed.is_empty();
        let mut next_lsn = end.lsn + 1;
        let mut holed = None;
        if is_damaged {
            for link in &links.severed {
                runs.extend(self.look_behind(link, &mut evidence)?);
            }
            for (number, limit) in &links.bad {
                let (found, limit) = (self.look_anywhere(*number)?, Some(*limit));
                evidence.add(*number, &found, limit);
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
                let place = if number == stopped { missing_at } else { 0 };
                let next = behind().find(|run| run.segment == number && run.bytes.start > place);
                let until = match (next, block) {
                    _ if number != stopped => PAGE as u64,
                    (Some(run), _) => run.bytes.start,
                    (None, Some((at, offset))) if at == number && offset > place => offset,
                    _ => self.bytes_of(&files, number).max(place),
                };
                // Bounded by the block, if it contained all lost records.
                let of_block =
                    broken.as_ref().filter(|broken| number == stopped && lsns.end <= broken.header.lsns().end);
                let until = of_block.map_or(until, |Broken { header, .. }| {
                    until.min(header.offset + BLOCK_HEADER_BYTES as u64 + u64::from(header.length))
                });
                // If zero, the chain is empty, and no segment has a hole.
                holed = (number == stopped && stopped != 0).then_some(number);
                self.damage.push(Damage { path: path(number), bytes: place..until, lsns, what });
            } else if is_severed {
                self.damage[links.severed_by].lsns = lsns;
            }
            if let Some(number) = lost_head.filter(|_| is_severed) {
                let what = "the newest records are missing; the control file says that they were here";
                self.damage.push(Damage { path: path(number), bytes: 0..0, lsns: 0..0, what: what.into() });
            }
            let between = self.holes(&files, behind().cloned().collect(), watermark);
            self.damage.extend(between);
            if behind().any(|run| run.segment == stopped) {
                holed = Some(stopped);
            }
        } else {
            runs.clear();
        }
        let is_named = |number: &u64| links.bad.iter().any(|(bad, _)| bad == number);
        let is_renamed = |number: &u64| renamed.iter().any(|(other, _)| other == number);
        let is_lost = |number: &u64| match files.get(*number) {
            Some(_) => *number > stopped,
            None => {
                files.bad.contains(number)
                    || headless.numbers.contains(number)
                    || is_named(number)
                    || is_renamed(number)
                    || lost_head == Some(*number)
            }
        };
        let lost = numbers.iter().copied().filter(|number| is_damaged && is_lost(number)).collect();
        // Listed first, since its text names the remedy.
        self.damage.splice(0..0, renamed.into_iter().map(|(_, damage)| damage));
        let torn = torn.filter(|_| !is_damaged);
        let outcome = Outcome { chain, end, next_lsn, closed, torn, gaps, runs, is_damaged, lost, holed };
        Ok(self.found(&files, numbers, outcome))
    }

    /// Combines the findings.
    pub(super) fn found(&mut self, files: &Files, numbers: &[u64], outcome: Outcome) -> Found {
        let Outcome { chain, end, next_lsn, closed, torn, gaps, runs, is_damaged, lost, holed } = outcome;
        // Files that no salvage may remove, even if an earlier salvage was interrupted before it
        // put them aside.
        let salvaged = chain.iter().filter(|segment| segment.header.previous.lost_from != 0);
        let salvaged = salvaged.map(|segment| segment.header.number).max().unwrap_or(0);
        let oldest = self.control.oldest;
        let is_lost = |number: &u64| match is_damaged {
            // (Files of removed segments may go.)
            false => *number < salvaged && !(*number < oldest && files.get(*number).is_some()),
            true => lost.contains(number),
        };
        let is_chained = |number: &u64| chain.iter().any(|segment| segment.header.number == *number);
        let (lost, free): (Vec<u64>, Vec<u64>) =
            numbers.iter().copied().filter(|number| !is_chained(number)).partition(is_lost);
        let lost_paths = holed.iter().chain(&lost).map(|number| self.dir.segment_path(*number));
        let mut lost_paths: Vec<PathBuf> = lost_paths.collect();
        lost_paths.sort_unstable();
        Found {
            control: self.control.clone(),
            recorded: self.control.clone(),
            recovery: Recovery {
                first_lsn: chain.first().map_or(1, |segment| segment.header.first_lsn()),
                last_lsn: end.lsn,
                next_lsn,
                gaps,
                epoch: files.head().0.max(self.control.epochs.newest()),
                segments: chain.iter().filter(|segment| !segment.is_empty()).count(),
                closed,
                torn,
                damage: std::mem::take(&mut self.damage),
                behind: joined(&runs),
                unreadable: std::mem::take(&mut self.unreadable),
                from_copy: std::mem::take(&mut self.from_copy),
                control_lost: false,
                lost: lost_paths,
                aside: Vec::new(),
                created: false,
                scan: Scan::All,
                strategy: Strategy::of(&self.control),
                calibration: Calibration::of(&self.control),
                direct: self.control.direct,
                segment_bytes: self.control.segment_bytes,
                bytes_read: self.bytes_read,
                elapsed: Duration::ZERO,
            },
            chain,
            end,
            runs,
            number_max: numbers.last().copied().unwrap_or(0).max(self.control.newest),
            free,
            lost,
            holed,
        }
    }

    /// Reads the segment header of each file, or its copy.
    pub(super) fn files(&mut self, numbers: &[u64]) -> Result<Files> {
        let mut files = Files { oldest: self.control.oldest, ..Files::default() };
        let Control { log_id, segment_bytes, .. } = self.control;
        let mut firsts = self.first_pages(numbers).into_iter();
        for &number in numbers {
            let First { page, is_copy, unreadable, bytes_read } = match firsts.next() {
                Some(first) => first,
                None => First::read(self.file(number)?, &log_id, number)?,
            };
            if !unreadable.is_empty() {
                files.unreadable.push(number);
            }
            if is_copy {
                self.from_copy.push(Place { path: self.dir.segment_path(number), offset: 0 });
            }
            self.bytes_read += bytes_read;
            self.unreadable.extend(unreadable);
            match page {
                HeaderPage::Valid(header) if header.bytes <= segment_bytes => files.valid.push(header),
                HeaderPage::Unused => files.unused.push(number),
                HeaderPage::Other(header) => {
                    files.unused.push(number);
                    files.others.push((number, header));
                }
                HeaderPage::Valid(_) | HeaderPage::Bad => files.bad.push(number),
            }
        }
        Ok(files)
    }

    /// Reads the first pages of files in parallel. Each file waits for the device twice, since
    /// opening tries a direct read. Returns nothing if that is impossible, or any file cannot be
    /// read in this way.
    fn first_pages(&self, numbers: &[u64]) -> Vec<First> {
        // On a simulator the caller reads segments in order.
        if !self.control.direct || self.dir.descriptor().is_none() || numbers.len() < 2 * FILES_MIN {
            return Vec::new();
        }
        let (dir, log_id) = (self.dir, self.control.log_id);
        let read = |number: &u64| {
            let file = dir.open(*number, false, true).ok().filter(is_direct)?;
            First::read(file, &log_id, *number).ok()
        };
        let read_part = |part: &[u64]| part.iter().map_while(read).collect::<Vec<First>>();
        let firsts: Vec<First> = std::thread::scope(|scope| {
            let parts = numbers.chunks(numbers.len().div_ceil(READ_AT_ONCE).max(FILES_MIN));
            let spawn = |part| embed::spawn_scoped(scope, "nowait-log-scan", move || read_part(part)).ok();
            let threads: Vec<_> = parts.map(spawn).collect();
            threads.into_iter().flatten().flat_map(|thread| thread.join().unwrap_or_default()).collect()
        });
        // All files succeeded, and the pages are in order.
        if firsts.len() == numbers.len() { firsts } else { Vec::new() }
    }

    /// Follows the chain from the newest segment back: each header names the segment before.
    pub(super) fn chain(&mut self, files: &Files) -> Chain {
        let mut chain = Chain::default();
        let mut limit = None;
        let mut link = files.head_before(u64::MAX).copied();
        while let Some(header) = link {
            let before = header.previous.segment;
            let last_lsn = self.control.epochs.last_of(header.epoch);
            self.control.oldest = self.control.oldest.max(header.oldest);
            if limit.is_none() && last_lsn < header.first_lsn() && files.get(before).is_some() {
                // The whole segment was cut off, and the segment after the cut is missing.
                link = files.get(before).copied();
                continue;
            }
            chain.kept.push(Link { header, limit, last_lsn });
            limit = Some(header.previous);
            link = match files.get(before) {
                // Older segments were removed from the log, whether or not their files exist.
                _ if before == 0 || before < self.control.oldest => None,
                Some(previous) => Some(*previous),
                None => {
                    // Zeros are damage, too: a segment that another one continues was used.
                    let is_bad = files.bad.contains(&before) || files.unused.contains(&before);
                    let oldest = self.control.oldest;
                    let older = files.head_before(before).filter(|older| older.number >= oldest).copied();
                    if !is_bad && older.is_none() && self.recorded_oldest == 0 {
                        // Without a control file, the log's beginning may have been removed.
                        break;
                    }
                    let what = if is_bad { "the segment's header is damaged" } else { "the segment is missing" };
                    self.damage.push(Damage {
                        path: self.dir.segment_path(before),
                        bytes: 0..if is_bad { self.bytes_of(files, before) } else { 0 },
                        lsns: header.first_lsn()..header.first_lsn(),
                        what: format!("{what}; segment {} continues it", header.number),
                    });
                    if is_bad {
                        chain.bad.push((before, header.previous));
                    }
                    if older.is_some() {
                        // A prefix from the oldest record on is kept, so segments after a broken
                        // link are severed.
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

    /// Returns the last record that was durable when the control file was written, and was not cut
    /// off later.
    pub(super) fn recorded_watermark(&self, links: &Chain) -> u64 {
        let headers = links.kept.iter().chain(&links.severed).map(|link| link.header);
        let newer = headers.filter(|header| header.epoch > self.control.epochs.newest());
        newer.map(|header| header.previous.lsn).fold(self.control.watermark, u64::min)
    }

    /// Returns the head of the log if its header is lost. The control file names a head after its
    /// header is durable, and every later header would be newer. Without a control file, returns a
    /// newer segment in a state that a crash cannot cause.
    pub(super) fn lost_head(&self, files: &Files) -> Option<u64> {
        let recorded = (self.control.epochs.newest(), self.control.head);
        let (epoch, newest) = files.head();
        if self.is_control_lost {
            return files.bad.iter().copied().filter(|number| *number > newest).min();
        }
        (self.control.head > 0 && (epoch, newest) < recorded).then_some(self.control.head)
    }

    /// Finds files with the name of another segment. This excludes reused files: their header is
    /// that of a removed or cut-off segment, and their number is higher.
    pub(super) fn renamed(&self, files: &Files, links: &Chain) -> Vec<(u64, Damage)> {
        let chain = || links.kept.iter().chain(&links.severed).map(|link| link.header);
        // The previous segment may be missing because of its name.
        let is_of_log = |number: &u64| self.recorded_oldest > 0 && *number >= self.control.oldest;
        let oldest =
            chain().next().map_or(0, |oldest| Some(oldest.previous.segment).filter(is_of_log).unwrap_or(oldest.number));
        let epoch = files.head().0.max(self.control.epochs.newest());
        let is_renamed = |(number, header): &&(u64, SegmentHeader)| {
            header.number > *number || (header.epoch == epoch && header.number >= oldest)
        };
        let damage = |(number, header): &(u64, SegmentHeader)| {
            let what = format!("the file contains segment {}; if it was renamed, rename it back", header.number);
            let path = self.dir.segment_path(*number);
            (*number, Damage { path, bytes: 0..PAGE as u64, lsns: 0..0, what })
        };
        files.others.iter().filter(is_renamed).map(damage).collect()
    }

    /// Reports a missing segment after `head`, the newest one with contents.
    fn look_for_newest(&mut self, numbers: &[u64], head: u64) {
        if let Some(number) = missing_behind(&self.control, numbers, head) {
            let newest = self.control.newest;
            let what = format!("the segment is missing; the control file names {newest} as the newest one");
            self.damage.push(Damage { path: self.dir.segment_path(number), bytes: 0..0, lsns: 0..0, what });
        }
    }

    /// Reads the kept part of the chain, as long as blocks continue it.
    fn kept(&mut self, links: &[Link], evidence: &mut Evidence) -> Result<KeptChain> {
        let end = End { lsn: links.first().map_or(0, |oldest| oldest.header.previous.lsn), ..End::default() };
        let mut kept = KeptChain {
            chain: Vec::new(),
            end,
            closed: false,
            torn: None,
            is_unreadable: false,
            is_short: false,
            broken: None,
            gaps: Vec::new(),
            runs: Vec::new(),
        };
        let epochs = self.control.epochs.clone();
        for (index, Link { header, limit, last_lsn: cut_at }) in links.iter().enumerate() {
            let file = self.file(header.number)?;
            // If the log was cut, a block may contain more than the valid records.
            let last_there = limit.map_or(*cut_at, |limit| limit.last_there());
            let mut blocks = Blocks::new(Window::past_errors(file.clone()), header).reading_ahead().up_to(last_there);
            kept.closed = false;
            let mut time_ms = 0;
            while limit.map_or(blocks.next_lsn <= *cut_at, |limit| blocks.offset < limit.offset) {
                let Some((block, _)) = blocks.next()? else { break };
                evidence.watermark = evidence.watermark.max(block.watermark);
                kept.closed = block.closed;
                time_ms = if block.records > 0 { block.time_ms } else { time_ms };
            }
            let last_lsn = (blocks.next_lsn - 1).min(last_there.max(header.previous.lsn));
            // Blocks missing between the last record and the limit hold no records.
            let complete = limit.filter(|limit| blocks.offset <= limit.offset && last_lsn >= limit.last_there());
            kept.end = match complete {
                Some(limit) => limit,
                None => End { segment: header.number, offset: blocks.offset, lsn: last_lsn, lost_from: 0 },
            };
            let (end, last_lsn) = (blocks.offset, kept.end.last_there());
            let segment = Segment { header: *header, end, last_lsn, time_ms };
            kept.chain.push(segment);
            self.to_sync.push((segment, file.clone()));
            let writer = self.writer;
            self.to_sync.retain(|(segment, _)| is_unspoken(segment, evidence.watermark, writer));
            if complete.is_some() {
                kept.gaps.extend(Some(kept.end.lost()).filter(|lost| !lost.is_empty()));
                self.done(blocks);
                continue;
            }
            if limit.is_none() && blocks.next_lsn > *cut_at {
                // All later records were cut off.
                kept.closed = false;
                self.done(blocks);
                break;
            }
            kept.is_unreadable = blocks.is_unreadable()?;
            // After the block of a close, no bytes were written.
            kept.is_short = !kept.closed && file.size().wait()? < header.bytes;
            let is_begun = blocks.is_begun()?;
            kept.broken = blocks.broken()?;
            let behind = blocks.behind(|block| is_of(header, block).then(|| epochs.last_of(block.epoch)))?;
            if is_begun || behind.proof.is_some() {
                kept.torn = Some(Place { path: self.dir.segment_path(header.number), offset: kept.end.offset });
            }
            evidence.add(header.number, &behind, *limit);
            kept.runs.extend(behind.runs.into_iter().filter_map(|run| within(run, *limit)));
            self.done(blocks);
            // Later blocks may have been in flight together with the missing ones.
            for later in &links[index + 1..] {
                kept.runs.extend(self.look_behind(later, evidence)?);
            }
            break;
        }
        Ok(kept)
    }

    /// Searches newer segments without a valid header, since the newest header may be damaged.
    fn headless(&mut self, files: &Files, links: &Chain, end: End, evidence: &mut Evidence) -> Result<Headless> {
        let mut headless = Headless::default();
        let epochs = self.control.epochs.clone();
        let headers = links.kept.iter().chain(&links.severed).map(|link| link.header);
        let head = headers.max_by_key(|header| (header.epoch, header.number));
        let (newest, epoch, first_lsn) = head.map_or((0, 0, 0), |head| (head.number, head.epoch, head.first_lsn()));
        for number in files.bad.iter().chain(&files.unused).copied().filter(|number| *number > newest) {
            let mut blocks = self.any_blocks(number, end.lsn)?;
            // Earlier contents of a reused file are older than the newest segment.
            let is_newer =
                |block: &BlockHeader| block.epoch > epoch || (block.epoch == epoch && block.first_lsn >= first_lsn);
            let behind = blocks.behind(|block| is_newer(block).then(|| epochs.last_of(block.epoch)))?;
            // An interrupted write leaves no unreadable page. An unreadable first block may have
            // contained records.
            let is_unknown =
                files.unreadable.contains(&number) && (behind.proof.is_some() || blocks.is_unreadable()?);
            self.done(blocks);
            evidence.add(number, &behind, None);
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

    pub(super) fn file(&mut self, number: u64) -> Result<File> {
        let file = self.dir.open(number, false, self.control.direct)?;
        if !(self.control.direct && is_direct(&file)) {
            // The log may have been copied from a file system with direct I/O.
            self.control.direct = false;
            // After a failed write-back the page cache may hold data the disk never got. (On tmpfs
            // the pages are the storage.)
            if self.writer {
                file.sync_data().wait()?;
            }
            if os::DROPS_PAGES {
                file.advise(0, 0, Advice::DontNeed).wait()?;
            }
        }
        Ok(file)
    }

    /// Syncs segments that were read: the application continues from their records, so none may
    /// exist only in a cache. Records covered by a watermark are durable.
    pub(super) fn make_durable(&self, watermark: u64) -> Result<()> {
        for (segment, file) in &self.to_sync {
            if !is_unspoken(segment, watermark, self.writer) {
                continue;
            }
            match file.sync_data().wait() {
                // A read-only file system has no dirty pages.
                Err(error) if !self.writer && error.kind() == ErrorKind::ReadOnlyFilesystem => {}
                other => other?,
            }
        }
        if self.writer { self.dir.sync() } else { Ok(()) }
    }

    /// Finds intact blocks of a segment that is not read in order.
    fn look_behind(&mut self, Link { header, limit, .. }: &Link, evidence: &mut Evidence) -> Result<Vec<Run>> {
        let epochs = self.control.epochs.clone();
        let file = self.file(header.number)?;
        let mut blocks = Blocks::new(Window::past_errors(file), header).reading_ahead();
        let found = blocks.behind(|block| is_of(header, block).then(|| epochs.last_of(block.epoch)))?;
        self.done(blocks);
        evidence.add(header.number, &found, *limit);
        Ok(found.runs.into_iter().filter_map(|run| within(run, *limit)).collect())
    }

    /// Finds intact blocks of a segment without a header.
    fn look_anywhere(&mut self, number: u64) -> Result<Orphans> {
        let mut blocks = self.any_blocks(number, 0)?;
        let epochs = self.control.epochs.clone();
        let found = blocks.behind(|block| Some(epochs.last_of(block.epoch)))?;
        self.done(blocks);
        Ok(found)
    }

    pub(super) fn any_blocks(&mut self, number: u64, lsn: u64) -> Result<Blocks> {
        let header = stand_in(&self.control, number, lsn);
        Ok(Blocks::new(Window::past_errors(self.file(number)?), &header).reading_ahead())
    }

    pub(super) fn done(&mut self, mut blocks: Blocks) {
        self.bytes_read += blocks.bytes_read();
        for new in blocks.take_unreadable() {
            if !self.unreadable.contains(&new) {
                self.unreadable.push(new);
            }
        }
    }

    /// Size of a segment; without a header, the log's maximum segment size.
    fn bytes_of(&self, files: &Files, number: u64) -> u64 {
        files.get(number).map_or(self.control.segment_bytes, |header| header.bytes)
    }

    /// Finds records known to be missing between and after intact runs.
    fn holes(&self, files: &Files, runs: Vec<Run>, watermark: u64) -> Vec<Damage> {
        let mut holes = Vec::new();
        for (index, run) in runs.iter().enumerate() {
            let next = runs.get(index + 1);
            let lsns = run.lsns.end..next.map_or(watermark + 1, |next| next.lsns.start);
            if lsns.is_empty() {
                continue;
            }
            let next = next.filter(|next| next.segment == run.segment && next.bytes.start >= run.bytes.end);
            holes.push(Damage {
                path: self.dir.segment_path(run.segment),
                bytes: run.bytes.end..next.map_or(self.bytes_of(files, run.segment), |next| next.bytes.start),
                lsns,
                what: match run.is_part {
                    true => format!("record {} is damaged, and an intact one precedes it", run.lsns.end),
                    false => "no intact block is here, and one precedes it".into(),
                },
            });
        }
        holes
    }
}

/// True if no watermark covers all of a segment: reading a block proves that it was written, not
/// that it is durable. For a writer, a watermark block after the last record must be durable, too,
/// since the next segment's header will refer to its end.
fn is_unspoken(segment: &Segment, watermark: u64, writer: bool) -> bool {
    let last = if writer { segment.last_lsn + 1 } else { segment.last_lsn };
    last > watermark || segment.is_empty()
}
