//! What a log holds after whatever happened to it: reads all of it, changes nothing.
//!
//! The rules are those of `docs/log-format.md`: the chain of segments is found by their headers, blocks are read as long as each goes
//! on where the one before ended, and whether the place where they stop is a torn tail or damage is decided by watermarks alone.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Strategy;
use super::folder::{Blocks, CONTROL, Folder, Proof, Window, is_direct};
use super::format::{BadControl, BlockHeader, CONTROL_BYTES, Control, End, HeaderPage, PAGE, SegmentHeader};
use crate::error::{Error, ErrorKind, Operation as Name, Result};
use crate::file::{Advice, File, OpenOptions};

/// What was found in a log's directory.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub struct Recovery {
    /// LSN of the oldest record that is there; one more than `last_lsn` when there is none.
    pub first_lsn: u64,
    /// LSN of the last record; 0 in a log that never had one.
    pub last_lsn: u64,
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
    /// The files that hold what cannot be kept for damage; [`Options::salvage`](super::Options::salvage) puts them aside.
    pub lost: Vec<PathBuf>,
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
    fn error(&self) -> Error {
        let path = Arc::from(self.path.as_path());
        let length = self.bytes.end - self.bytes.start;
        Error::new(Name::Recover, ErrorKind::Damaged).at(&path).range(self.bytes.start, length).detail(self.to_string())
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
    /// The highest number that a file has.
    pub(super) number_max: u64,
    /// Files that hold nothing of the log: prepared, or cut off.
    pub(super) free: Vec<u64>,
    /// Files that hold what is lost.
    pub(super) lost: Vec<u64>,
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
    let (numbers, any) = folder.segments()?;
    if !any {
        return Ok(None);
    }
    let Some(control) = read_control(folder)? else {
        return if is_unfinished(folder, &numbers)? { Ok(None) } else { Err(no_control(folder)) };
    };
    let mut scan = Scan { folder, control, writer, bytes_read: 0, damage: Vec::new() };
    let mut found = scan.run(&numbers)?;
    if numbers.is_empty() {
        let what = "the log has no segment; one is there from the moment when a log is made";
        found.recovery.damage.push(Damage {
            path: folder.path.to_path_buf(),
            bytes: 0..0,
            lsns: 0..0,
            what: what.into(),
        });
    }
    found.recovery.elapsed = started.elapsed();
    Ok(Some(found))
}

/// None if there is none.
pub(super) fn read_control(folder: &Folder) -> Result<Option<Control>> {
    let path = folder.join(CONTROL);
    let file = match OpenOptions::new().read(true).open_in(&folder.instance, &path).wait() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let mut bytes = vec![0; CONTROL_BYTES];
    let n = file.read_into(&mut bytes, 0)?;
    let error = |kind, text: String| {
        Error::new(Name::Recover, kind).at(&Arc::from(path.as_path())).range(0, CONTROL_BYTES as u64).explained(text)
    };
    match Control::decode(&bytes[..n]) {
        Ok(control) if is_plausible(&control) => Ok(Some(control)),
        Err(BadControl::Version(version)) => {
            let text = format!("the log is of version {version} of the format, this library knows 1; use a later one");
            Err(error(ErrorKind::Unsupported, text))
        }
        Ok(_) | Err(BadControl::Damaged) => {
            let text =
                "both copies of the control file are damaged; it is the same as when the log was made: restore it";
            Err(error(ErrorKind::Damaged, text.into()))
        }
    }
}

fn is_plausible(control: &Control) -> bool {
    control.segment_bytes >= 2 * PAGE as u64 && control.segment_bytes % PAGE as u64 == 0 && control.depth > 0
}

/// The making of a log was cut off: its control file comes last.
fn is_unfinished(folder: &Folder, numbers: &[u64]) -> Result<bool> {
    for &number in numbers {
        let (page, _) = Blocks::header(folder.open(number, false, true)?, &[0; 16], number)?;
        if page != HeaderPage::Unused {
            return Ok(false);
        }
    }
    Ok(true)
}

fn no_control(folder: &Folder) -> Error {
    let path = Arc::from(folder.join(CONTROL));
    Error::new(Name::Recover, ErrorKind::Damaged)
        .at(&path)
        .explained("there are segments, but no control file; it is the same as when the log was made: restore it")
}

struct Scan<'a> {
    folder: &'a Folder,
    control: Control,
    writer: bool,
    bytes_read: u64,
    damage: Vec<Damage>,
}

/// The files, by what their first page says.
#[derive(Default)]
struct Files {
    valid: Vec<SegmentHeader>,
    unused: Vec<u64>,
    bad: Vec<u64>,
}

impl Files {
    fn get(&self, number: u64) -> Option<&SegmentHeader> {
        self.valid.iter().find(|header| header.number == number)
    }

    /// The newest of those before `number`.
    fn head_before(&self, number: u64) -> Option<&SegmentHeader> {
        let before = self.valid.iter().filter(|header| header.number < number);
        before.max_by_key(|header| (header.epoch, header.number))
    }
}

impl Scan<'_> {
    fn run(&mut self, numbers: &[u64]) -> Result<Found> {
        let mut files = Files::default();
        for &number in numbers {
            let (page, window) = self.header(number)?;
            self.bytes_read += window.bytes_read;
            match page {
                HeaderPage::Valid(header) => files.valid.push(header),
                HeaderPage::Unused => files.unused.push(number),
                HeaderPage::Bad => files.bad.push(number),
            }
        }
        let (headers, broken) = self.chain(&files);
        let epoch = headers.last().map_or(0, |header| header.epoch);
        // What follows a broken link is lost, whatever it holds.
        let newest = headers.last().map_or(0, |header| header.number);
        let beyond: Vec<u64> =
            files.valid.iter().map(|header| header.number).filter(|number| *number > newest).collect();

        let mut watermark = headers.iter().map(|header| header.watermark).max().unwrap_or(0);
        let mut evidence = None;
        let mut chain: Vec<Segment> = Vec::new();
        let (mut end, mut closed, mut torn) = (End::default(), false, None);
        if let Some(oldest) = headers.first() {
            end = End { segment: 0, offset: 0, lsn: oldest.previous.lsn };
        }
        for (index, header) in headers.iter().enumerate() {
            let next = headers.get(index + 1).map(|next| next.previous);
            let mut blocks = Blocks::new(self.window(header.number)?, header).reading_ahead();
            (closed, torn) = (false, None);
            while next.is_none_or(|next| blocks.offset < next.offset) {
                let Some((block, _)) = blocks.next()? else { break };
                watermark = watermark.max(block.watermark);
                closed = block.closed;
            }
            let last_lsn = blocks.next_lsn - 1;
            // Where the log was cut, a block may hold more than counts.
            let complete = next.filter(|next| blocks.offset == next.offset && last_lsn >= next.lsn);
            end = match complete {
                Some(next) => next,
                None => End { segment: header.number, offset: blocks.offset, lsn: last_lsn },
            };
            chain.push(Segment { header: *header, end: end.offset, last_lsn: end.lsn });
            if complete.is_some() {
                self.bytes_read += blocks.bytes_read();
                continue;
            }
            if blocks.is_begun()? {
                torn = Some(Place { path: self.folder.segment_path(header.number), offset: end.offset });
            }
            if let Some(Proof { watermark: proof, offset, .. }) = blocks.proof_behind(header.epoch)? {
                torn = torn.or(Some(Place { path: self.folder.segment_path(header.number), offset: end.offset }));
                if proof > watermark {
                    (watermark, evidence) = (proof, Some((header.number, offset)));
                }
            }
            self.bytes_read += blocks.bytes_read();
            // In flight with what is missing here.
            for later in &headers[index + 1..] {
                self.look_behind(later, &mut watermark, &mut evidence)?;
            }
            break;
        }
        let last = chain.last().map_or(0, |segment| segment.header.number);
        let cut_off: Vec<u64> = headers.iter().map(|header| header.number).filter(|number| *number > last).collect();
        // The header of the newest segment may be what is damaged.
        let nameless = files.bad.iter().chain(&files.unused).copied().filter(|number| *number > newest);
        let mut headless = None;
        let mut witnesses = Vec::new();
        for number in nameless {
            let previous = End { lsn: end.lsn, ..End::default() };
            let bytes = self.control.segment_bytes;
            let header = SegmentHeader { log_id: self.control.log_id, number, epoch, bytes, watermark: 0, previous };
            if let Some(proof) = self.look_behind(&header, &mut watermark, &mut evidence)? {
                witnesses.push(number);
                headless = headless.or(proof.beyond_first.then_some(number));
            }
        }

        if self.writer {
            self.make_durable(&chain, watermark)?;
        }
        if let Some(broken) = self.damage.last_mut() {
            // The chain ends where the link is broken.
            broken.lsns.start = end.lsn + 1;
            torn = None;
        } else if let Some(number) = headless {
            let path = self.folder.segment_path(number);
            let what = "the segment's header is not whole, and was, since no block but the first is written beside it";
            let lsns = end.lsn + 1..watermark.max(end.lsn) + 1;
            self.damage.push(Damage { path, bytes: 0..PAGE as u64, lsns, what: what.into() });
            torn = None;
        } else if watermark > end.lsn {
            let what = match evidence {
                Some((number, offset)) => {
                    format!("no whole block is here, but the one at {offset} of segment {number} says that one was")
                }
                None => "no whole block is here, but one that was written later says that one was".into(),
            };
            let number = end.segment.max(last);
            let bytes = end.offset..match evidence {
                Some((at, offset)) if at == number && offset > end.offset => offset,
                _ => self.control.segment_bytes.max(end.offset),
            };
            let path = self.folder.segment_path(number);
            self.damage.push(Damage { path, bytes, lsns: end.lsn + 1..watermark + 1, what });
            torn = None;
        }
        let chained = |number: &u64| chain.iter().any(|segment| segment.header.number == *number);
        let mut lost: Vec<u64> = Vec::new();
        if !self.damage.is_empty() {
            let named = chain.first().map(|segment| segment.header.previous.segment);
            let headers_gone = files.unused.iter().filter(|number| Some(**number) == named || broken == Some(**number));
            lost.extend(cut_off.iter().chain(&beyond).chain(&files.bad).chain(&witnesses).chain(headers_gone));
            lost.sort_unstable();
            lost.dedup();
        }
        let free = numbers.iter().copied().filter(|number| !chained(number) && !lost.contains(number)).collect();
        let first_lsn = chain.first().map_or(1, |segment| segment.header.first_lsn());
        Ok(Found {
            control: self.control,
            recovery: Recovery {
                first_lsn,
                last_lsn: end.lsn,
                epoch: files.valid.iter().map(|header| header.epoch).max().unwrap_or(0),
                segments: chain.iter().filter(|segment| !segment.is_empty()).count(),
                closed,
                torn,
                damage: std::mem::take(&mut self.damage),
                lost: lost.iter().map(|number| self.folder.segment_path(*number)).collect(),
                strategy: super::strategy(&self.control),
                direct: self.control.direct,
                segment_bytes: self.control.segment_bytes,
                bytes_read: self.bytes_read,
                elapsed: Duration::ZERO,
            },
            chain,
            end,
            number_max: numbers.last().copied().unwrap_or(0),
            free,
            lost,
        })
    }

    fn window(&mut self, number: u64) -> Result<Window> {
        Ok(Window::new(self.file(number)?))
    }

    fn file(&self, number: u64) -> Result<File> {
        let file = self.folder.open(number, false, self.control.direct)?;
        if !(self.control.direct && is_direct(&file)) {
            // After a write-back that failed the page cache shows what the disk has not. (Where pages cannot be dropped, they are the disk.)
            if self.writer {
                file.sync_data().wait()?;
            }
            file.advise(0, 0, Advice::DontNeed).wait()?;
        }
        Ok(file)
    }

    /// What was read is what the application goes on from: none of it must be in the device's cache alone. What lies before a record
    /// that a watermark speaks of is not. (A stamp behind the last such record may be, and the next header says that the log goes on
    /// behind it.)
    fn make_durable(&self, chain: &[Segment], watermark: u64) -> Result<()> {
        for segment in chain.iter().filter(|segment| segment.last_lsn >= watermark || segment.is_empty()) {
            self.folder.open(segment.header.number, true, self.control.direct)?.sync_data().wait()?;
        }
        self.folder.sync()
    }

    fn header(&self, number: u64) -> Result<(HeaderPage, Window)> {
        Blocks::header(self.file(number)?, &self.control.log_id, number)
    }

    fn look_behind(
        &mut self,
        header: &SegmentHeader,
        watermark: &mut u64,
        evidence: &mut Option<(u64, u64)>,
    ) -> Result<Option<Proof>> {
        let file = self.folder.open(header.number, false, self.control.direct)?;
        let mut blocks = Blocks::new(Window::new(file), header).reading_ahead();
        let found = blocks.proof_behind(header.epoch)?;
        if let Some(Proof { watermark: proof, offset, .. }) = found {
            if proof > *watermark {
                (*watermark, *evidence) = (proof, Some((header.number, offset)));
            }
        }
        self.bytes_read += blocks.bytes_read();
        Ok(found)
    }

    /// Headers from the oldest to the newest, each of which names the one before.
    /// And the segment that the last of them names in vain.
    fn chain(&mut self, files: &Files) -> (Vec<SegmentHeader>, Option<u64>) {
        let mut broken = None;
        let mut chain: Vec<SegmentHeader> = Vec::new();
        let mut link = files.head_before(u64::MAX).copied();
        while let Some(header) = link {
            chain.push(header);
            let before = header.previous.segment;
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
                    broken = Some(before);
                    self.damage.push(Damage {
                        path: self.folder.segment_path(before),
                        bytes: 0..if is_bad { self.control.segment_bytes } else { 0 },
                        lsns: header.first_lsn()..header.first_lsn(),
                        what: format!("{what}; segment {} goes on from it", header.number),
                    });
                    if older.is_some() {
                        // What is whole from the oldest record on is what can be kept.
                        chain.clear();
                    }
                    older
                }
            };
        }
        chain.reverse();
        (chain, broken)
    }
}

impl Blocks {
    /// A block of this segment and epoch was begun where none is whole.
    fn is_begun(&mut self) -> Result<bool> {
        let (offset, epoch) = (self.offset, self.epoch());
        let header = BlockHeader::peek(self.page()?, offset);
        Ok(header.is_some_and(|header| header.epoch == epoch))
    }
}
