//! The blocks of a segment: in order, and behind a place where the order breaks.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::window::{PIECE_BYTES, Unreadable, Window};
use crate::format::{
    BlockHeader, Control, End, LogId, PAGE, SegmentHeader, begin_checksum, checksum, checksum_beside, seed,
};
use crate::os;
use nowait::{Error, ErrorKind, ErrorOp, Result};

/// Reads in flight beside the piece that is checked, so that the disk works meanwhile.
const AHEAD: usize = 2;

/// A segment of the chain, and where it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) header: SegmentHeader,
    /// End of the last block that counts.
    pub(crate) end: u64,
    pub(crate) last_lsn: u64,
}

impl Segment {
    pub(crate) fn is_empty(&self) -> bool {
        self.last_lsn < self.header.first_lsn()
    }
}

/// Whole blocks behind a place where the order breaks.
#[derive(Debug, Default)]
pub(crate) struct Behind {
    /// The highest watermark among them, and the offset of its block.
    pub(crate) proof: Option<(u64, u64)>,
    /// True if one of them is not the first block of the segment.
    pub(crate) beyond_first: bool,
    /// Their records, by offset.
    pub(crate) runs: Vec<Run>,
}

/// Consecutive blocks: each continues the one before in offset and LSN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) segment: u64,
    /// Name of the file, where a salvage has put it aside.
    pub(crate) aside: Option<Arc<str>>,
    pub(crate) epoch: u64,
    pub(crate) bytes: Range<u64>,
    pub(crate) lsns: Range<u64>,
}

impl Behind {
    /// Adds a block; blocks come in order of their offsets.
    fn add(&mut self, segment: u64, header: &BlockHeader) {
        let (start, end) = (header.offset, header.offset + header.padded_bytes() as u64);
        if self.proof.is_none_or(|(watermark, _)| watermark < header.watermark) {
            self.proof = Some((header.watermark, start));
        }
        self.beyond_first |= start > PAGE as u64;
        let lsns = header.first_lsn..header.first_lsn + u64::from(header.records);
        let goes_on =
            |run: &&mut Run| run.bytes.end == start && run.lsns.end == lsns.start && run.epoch == header.epoch;
        match self.runs.last_mut().filter(goes_on) {
            Some(run) => (run.bytes.end, run.lsns.end) = (end, lsns.end),
            None if header.records == 0 => {}
            None => self.runs.push(Run { segment, aside: None, epoch: header.epoch, bytes: start..end, lsns }),
        }
    }
}

/// A possible block: its header is plausible, and its end has not been reached.
struct Candidate {
    header: BlockHeader,
    /// Checksum of the first page.
    crc: u32,
    /// Checksum that the header states.
    sum: u32,
    /// Running checksum of all pages, at the end of the block's first page.
    then: u32,
    is_whole: Option<bool>,
}

/// Blocks of a segment, read in order.
pub(crate) struct Blocks {
    window: Window,
    pub(crate) number: u64,
    log_id: LogId,
    epoch: u64,
    seed: u32,
    /// Size of the segment in bytes.
    bytes: u64,
    /// Offset of the next block.
    pub(crate) offset: u64,
    /// First record of the next block.
    pub(crate) next_lsn: u64,
}

impl Blocks {
    pub(crate) fn new(mut window: Window, header: &SegmentHeader) -> Blocks {
        window.piece = PIECE_BYTES.min(header.bytes as usize).max(PAGE);
        Blocks {
            window,
            number: header.number,
            log_id: header.log_id,
            epoch: header.epoch,
            seed: seed(&header.log_id, header.number, header.epoch),
            bytes: header.bytes,
            offset: PAGE as u64,
            next_lsn: header.first_lsn(),
        }
    }

    /// The blocks of a run.
    pub(crate) fn of_run(window: Window, control: &Control, run: &Run) -> Blocks {
        let Control { log_id, segment_bytes: bytes, .. } = *control;
        let previous = End { lsn: run.lsns.start - 1, ..End::default() };
        let (number, epoch) = (run.segment, run.epoch);
        let mut blocks = Blocks::new(window, &SegmentHeader { log_id, number, epoch, bytes, watermark: 0, previous });
        blocks.offset = run.bytes.start;
        blocks
    }

    /// Reads ahead, for a caller that reads all blocks.
    pub(crate) fn reading_ahead(mut self) -> Blocks {
        self.window.ahead_max = AHEAD;
        self
    }

    /// Returns the block that continues the last one; None if there is no whole one.
    pub(crate) fn next(&mut self) -> Result<Option<(BlockHeader, &[u8])>> {
        let (offset, lsn, epoch) = (self.offset, self.next_lsn, self.epoch);
        let goes_on = |header: &BlockHeader| header.epoch == epoch && header.first_lsn == lsn;
        let Some(header) = self.whole(offset, epoch, self.seed)?.filter(goes_on) else { return Ok(None) };
        self.offset += header.padded_bytes() as u64;
        self.next_lsn += u64::from(header.records);
        Ok(Some((header, self.window.at(offset, header.padded_bytes())?)))
    }

    fn whole(&mut self, offset: u64, epoch: u64, seed: u32) -> Result<Option<BlockHeader>> {
        let Some(header) = BlockHeader::peek(self.window.at(offset, PAGE)?, offset) else { return Ok(None) };
        let length = header.padded_bytes();
        if header.epoch != epoch || self.bytes.saturating_sub(offset) < length as u64 {
            return Ok(None);
        }
        Ok(header.is_whole(self.window.at(offset, length)?, seed).then_some(header))
    }

    /// Finds whole blocks behind the current offset, among those whose header `may_be` one. Reads
    /// each byte a bounded number of times, whatever the bytes: headers may claim any length, and
    /// possible blocks may overlap.
    pub(crate) fn behind(&mut self, may_be: impl Fn(&BlockHeader) -> bool) -> Result<Behind> {
        let mut found = Behind::default();
        // By offset, numbered from `first` on; candidates leave at the front once they are decided.
        let mut candidates: VecDeque<Candidate> = VecDeque::new();
        let mut first = 0;
        let mut ends: BinaryHeap<Reverse<(u64, u64)>> = BinaryHeap::new();
        // Checksum of all pages since there was a candidate.
        let mut running = 0;
        // Inside a whole block there is no other.
        let mut inside_until = 0;
        let mut offset = self.offset.max(PAGE as u64);
        while offset < self.bytes {
            let page = self.window.at(offset, PAGE)?;
            if page.len() < PAGE {
                break;
            }
            let next = offset + PAGE as u64;
            while let Some(&Reverse((end, number))) = ends.peek().filter(|Reverse((end, _))| *end <= next) {
                ends.pop();
                let Some(candidate) = number.checked_sub(first).and_then(|at| candidates.get_mut(at as usize)) else {
                    continue;
                };
                let middle = offset - (candidate.header.offset + PAGE as u64);
                let crc = checksum_beside(candidate.crc, candidate.then, running, middle);
                candidate.is_whole = Some(checksum(crc, &page[..(end - offset) as usize]) == candidate.sum);
            }
            let header = BlockHeader::peek(page, offset).filter(|header| {
                let fits = self.bytes - offset >= header.padded_bytes() as u64;
                fits && may_be(header)
            });
            if let Some(header) = header.filter(|_| offset >= inside_until) {
                let in_page = (header.end().min(next) - offset) as usize;
                let (crc, sum) = begin_checksum(&page[..in_page], seed(&self.log_id, self.number, header.epoch));
                let is_whole = (header.end() <= next).then_some(crc == sum);
                if is_whole.is_none() {
                    ends.push(Reverse((header.end(), first + candidates.len() as u64)));
                }
                candidates.push_back(Candidate { header, crc, sum, then: checksum(running, page), is_whole });
            }
            running = if candidates.is_empty() { 0 } else { checksum(running, page) };
            first += commit(&mut candidates, false, self.number, &mut inside_until, &mut found);
            offset = next;
        }
        commit(&mut candidates, true, self.number, &mut inside_until, &mut found);
        Ok(found)
    }

    /// True if a page of the next block cannot be read.
    pub(crate) fn is_unreadable(&mut self) -> Result<bool> {
        let offset = self.offset;
        let length =
            BlockHeader::peek(self.window.at(offset, PAGE)?, offset).map_or(PAGE, |header| header.padded_bytes());
        let end = offset.saturating_add(length as u64).min(self.bytes);
        Ok(offset < end && self.window.is_unreadable(offset..end))
    }

    /// The device's error, if that is why the next block, which has been read, is not whole.
    pub(crate) fn read_error(&mut self) -> Option<Error> {
        if !matches!(self.lacks(), Ok(None)) {
            return None;
        }
        match self.is_unreadable() {
            Err(error) => return Some(error),
            Ok(false) => return None,
            Ok(true) => {}
        }
        let Unreadable { path, bytes, what } = self.take_unreadable().pop()?;
        let error = os::error(ErrorOp::Read, ErrorKind::Io, &path);
        Some(error.with_range(bytes.start, bytes.end - bytes.start).with_detail(what))
    }

    /// True if a block of this segment was begun here, though it is not whole. Earlier contents of
    /// a reused file have lower LSNs or another epoch.
    pub(crate) fn is_begun(&mut self) -> Result<bool> {
        let (offset, epoch, lsn) = (self.offset, self.epoch, self.next_lsn);
        let header = BlockHeader::peek(self.window.at(offset, PAGE)?, offset);
        Ok(header.is_some_and(|header| header.epoch == epoch && header.first_lsn == lsn))
    }

    pub(crate) fn take_unreadable(&mut self) -> Vec<Unreadable> {
        self.window.take_unreadable()
    }

    /// Returns the place and length of bytes that [`Blocks::next`] would read from the file; None
    /// if all are in memory.
    pub(crate) fn lacks(&mut self) -> Result<Option<(u64, usize)>> {
        let offset = self.offset;
        if !self.window.has(offset, PAGE) {
            return Ok(Some((offset, PAGE)));
        }
        let epoch = self.epoch;
        let header = BlockHeader::peek(self.window.at(offset, PAGE)?, offset).filter(|header| header.epoch == epoch);
        let length = header.map_or(PAGE, |header| header.padded_bytes());
        let fits = self.bytes.saturating_sub(offset) >= length as u64;
        Ok((fits && !self.window.has(offset, length)).then_some((offset, length)))
    }

    /// Reads bytes that [`Blocks::lacks`] has named.
    pub(crate) fn read(&mut self, (offset, length): (u64, usize)) -> Result<()> {
        self.window.at(offset, length).map(drop)
    }

    /// As [`Blocks::read`], without blocking the thread; some of them may be lacking still.
    pub(crate) fn poll_read(&mut self, (offset, length): (u64, usize), context: &mut Context<'_>) -> Poll<Result<()>> {
        self.window.poll_read(offset, length, context)
    }

    pub(crate) fn bytes_read(&self) -> u64 {
        self.window.bytes_read
    }

    pub(crate) fn forget(&mut self) {
        self.window.forget();
    }
}

/// Takes decided candidates from the front, or at the end all of them: a block that has not ended
/// is not whole. Returns their number.
fn commit(
    candidates: &mut VecDeque<Candidate>,
    at_end: bool,
    segment: u64,
    inside_until: &mut u64,
    found: &mut Behind,
) -> u64 {
    let mut taken = 0;
    while let Some(candidate) = candidates.pop_front() {
        let offset = candidate.header.offset;
        if !at_end && candidate.is_whole.is_none() && offset >= *inside_until {
            candidates.push_front(candidate);
            break;
        }
        taken += 1;
        if candidate.is_whole == Some(true) && offset >= *inside_until {
            *inside_until = offset + candidate.header.padded_bytes() as u64;
            found.add(segment, &candidate.header);
        }
    }
    taken
}
