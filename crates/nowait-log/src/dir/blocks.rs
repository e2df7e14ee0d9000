//! The blocks of a segment: in order, and after a place where no block continues the last.

use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::window::{PIECE_BYTES, Unreadable, Window};
use crate::format::{
    BLOCK_BYTES_MAX, BLOCK_HEADER_BYTES, BlockHeader, Control, End, LogId, PAGE, Part, SegmentHeader, seed,
};
use crate::os;
use nowait::{Error, ErrorKind, ErrorOp, Result};

/// Number of reads in flight while a piece is verified, so that the disk stays busy. With two it
/// was idle at times.
const AHEAD: usize = 4;
/// Bytes of the first read of a search for headers. If it finds none, the next read is four times
/// as long as all before, up to the end, so that the search waits for the device only a few times.
const SEARCH_PIECE: usize = 64 << 10;
const SEARCH_GROWTH: u64 = 4;
/// Bytes without a header after which a search ends: more than a block has, unless a batch is
/// larger.
const SEARCHED: u64 = (BLOCK_BYTES_MAX + PAGE) as u64;
/// Likewise at the end of the log.
pub(crate) const SEARCHED_AT_END: u64 = 1 << 20;

/// A segment of the chain, and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) header: SegmentHeader,
    /// End of the last valid block.
    pub(crate) end: u64,
    pub(crate) last_lsn: u64,
    /// Time when the segment's last block with records was made, in milliseconds since 1970 by the
    /// wall clock of that time; 0 if unknown, or if there is no such block.
    pub(crate) time_ms: u64,
}

impl Segment {
    pub(crate) fn is_empty(&self) -> bool {
        self.last_lsn < self.header.first_lsn()
    }
}

/// Intact records after a place where no block continues the last.
#[derive(Debug, Default)]
pub(crate) struct Orphans {
    /// The highest watermark of a block there, and the block's offset. It is in the block's header,
    /// so the records need not be intact.
    pub(crate) proof: Option<(u64, u64)>,
    /// True if one of the blocks is not the first of the segment.
    pub(crate) beyond_first: bool,
    /// Intact records, by offset.
    pub(crate) runs: Vec<Run>,
}

/// Consecutive records: those of intact blocks, each of which continues the previous one in offset
/// and LSN, or those of one damaged block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) segment: u64,
    /// Name of the file, if a salvage has put it aside.
    pub(crate) aside: Option<Arc<str>>,
    pub(crate) epoch: u64,
    /// Byte range of the blocks; in a damaged block, of the records.
    pub(crate) bytes: Range<u64>,
    pub(crate) lsns: Range<u64>,
    /// Offset of the first block, and its first LSN.
    pub(crate) block: (u64, u64),
    /// Other records of the block are damaged. An interrupted write also leaves such blocks, so
    /// these records count only if a watermark covers them.
    pub(crate) is_part: bool,
}

impl Orphans {
    /// Adds a block up to record `last_lsn`. `parts` are its intact records, if others are damaged.
    /// Call this in the order of the blocks' offsets.
    fn add(&mut self, segment: u64, header: &BlockHeader, parts: Option<Vec<Part>>, last_lsn: u64) {
        let (start, end) = (header.offset, header.padded_end());
        let watermark = header.watermark.min(last_lsn);
        if self.proof.is_none_or(|(known, _)| known < watermark) {
            self.proof = Some((watermark, start));
        }
        self.beyond_first |= start > PAGE as u64;
        let up_to = |lsns: Range<u64>| lsns.start..lsns.end.min(last_lsn.saturating_add(1));
        let (lsns, epoch, block) = (up_to(header.lsns()), header.epoch, (start, header.first_lsn));
        if lsns.is_empty() && header.records > 0 {
            // All records of the block were cut off.
            return;
        }
        let is_part = parts.is_some();
        let run = |bytes: Range<u64>, lsns| Run { segment, aside: None, epoch, bytes, lsns, block, is_part };
        let goes_on =
            |run: &&mut Run| !run.is_part && run.bytes.end == start && run.lsns.end == lsns.start && run.epoch == epoch;
        match (parts, self.runs.last_mut().filter(goes_on)) {
            (Some(parts), _) => self.runs.extend(parts.into_iter().filter_map(|part| {
                let bytes = start + part.bytes.start as u64..start + part.bytes.end as u64;
                Some(run(bytes, up_to(part.lsns))).filter(|run| !run.lsns.is_empty())
            })),
            (None, Some(before)) => (before.bytes.end, before.lsns.end) = (end, lsns.end),
            (None, None) if lsns.is_empty() => {}
            (None, None) => self.runs.push(run(start..end, lsns)),
        }
    }
}

/// Result of a search for the next intact header.
pub(crate) enum Sought {
    Found(BlockHeader),
    /// These bytes must be read first.
    Lacks((u64, usize)),
    Nothing,
}

/// A block that continues the log and has damaged records.
#[derive(Clone, Debug)]
pub(crate) struct Broken {
    pub(crate) header: BlockHeader,
    /// First damaged record of the block, and its offset in the segment.
    pub(crate) whole_until: (u64, u64),
}

/// A block with its intact records.
pub(crate) type InPart<'b> = (BlockHeader, &'b [u8], Vec<Part>);

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
    /// First record that the segment can hold.
    first_lsn: u64,
    /// Last valid record. The last block may contain more, if the log was cut or continues after
    /// damage.
    last_lsn: u64,
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
            first_lsn: header.first_lsn(),
            last_lsn: u64::MAX,
        }
    }

    /// Treats a block as intact if its records up to `last_lsn` are.
    pub(crate) fn up_to(mut self, last_lsn: u64) -> Blocks {
        self.last_lsn = last_lsn;
        self
    }

    pub(crate) fn of_run(window: Window, control: &Control, run: &Run) -> Blocks {
        let Control { log_id, segment_bytes: bytes, .. } = *control;
        let (offset, first_lsn) = run.block;
        let previous = End { lsn: first_lsn - 1, ..End::default() };
        let (number, epoch) = (run.segment, run.epoch);
        let header = SegmentHeader { log_id, number, epoch, bytes, previous, ..SegmentHeader::default() };
        let mut blocks = Blocks::new(window, &header);
        blocks.offset = offset;
        blocks
    }

    /// Continues at the block at `offset`, whose first record is `lsn`.
    pub(crate) fn go_to(&mut self, offset: u64, lsn: u64) {
        (self.offset, self.next_lsn) = (offset, lsn);
    }

    /// Continues at the segment's first block.
    pub(crate) fn go_to_first(&mut self) {
        self.go_to(PAGE as u64, self.first_lsn);
    }

    /// Sets the size of a reader's next read, for a reader that needs `bytes`.
    pub(crate) fn read_first(&mut self, bytes: u64) {
        self.window.read_first(bytes);
    }

    /// Limits read-ahead to bytes before `end`.
    pub(crate) fn read_up_to(&mut self, end: u64) {
        self.window.limit = end;
    }

    /// Reads ahead, for a caller that reads all blocks.
    pub(crate) fn reading_ahead(mut self) -> Blocks {
        self.window.ahead_max = AHEAD;
        self
    }

    /// Returns the block that continues the last one; None if there is none, or it is damaged.
    pub(crate) fn next(&mut self) -> Result<Option<(BlockHeader, &[u8])>> {
        let (seed, last_lsn) = (self.seed, self.last_lsn);
        let Some((header, block)) = self.continuing()? else { return Ok(None) };
        let counts = |part: &Part| part.lsns.start == header.first_lsn && part.lsns.end > last_lsn;
        let is_whole = header.is_whole(block, seed)
            || (header.lsns().end > last_lsn && header.whole_records(block, seed).first().is_some_and(counts));
        if is_whole { self.advance(header).map(Some) } else { Ok(None) }
    }

    /// As [`Blocks::next`], but also for a damaged block. Returns the intact records, too.
    pub(crate) fn next_in_part(&mut self) -> Result<Option<InPart<'_>>> {
        let seed = self.seed;
        let Some((header, block)) = self.continuing()? else { return Ok(None) };
        let parts = header.whole_records(block, seed);
        let (header, block) = self.advance(header)?;
        Ok(Some((header, block, parts)))
    }

    fn advance(&mut self, header: BlockHeader) -> Result<(BlockHeader, &[u8])> {
        let offset = self.offset;
        self.offset += header.padded_bytes() as u64;
        self.next_lsn = header.lsns().end;
        Ok((header, self.window.at(offset, header.padded_bytes())?))
    }

    /// Returns the next block's bytes, if its header is intact and continues the last block.
    fn continuing(&mut self) -> Result<Option<(BlockHeader, &[u8])>> {
        let (offset, epoch, lsn) = (self.offset, self.epoch, self.next_lsn);
        let goes_on = |header: &BlockHeader| header.epoch == epoch && header.first_lsn == lsn;
        let Some(header) = self.header(offset)?.filter(goes_on) else { return Ok(None) };
        Ok(Some((header, self.window.at(offset, header.padded_bytes())?)))
    }

    /// Returns the intact header at `offset`, of any epoch, if there is one and the block fits.
    fn header(&mut self, offset: u64) -> Result<Option<BlockHeader>> {
        let (number, log_id, epoch, ours) = (self.number, self.log_id, self.epoch, self.seed);
        let seed = |of: u64| if of == epoch { ours } else { seed(&log_id, number, of) };
        let room = self.bytes.saturating_sub(offset);
        let header = BlockHeader::decode(self.window.at(offset, PAGE)?, offset, seed);
        Ok(header.filter(|header| header.padded_bytes() as u64 <= room))
    }

    /// Returns the header of the segment's first block, of any epoch, if it is intact.
    pub(crate) fn first_block(&mut self) -> Result<Option<BlockHeader>> {
        self.header(PAGE as u64)
    }

    /// Returns the next block if it continues the log and is damaged.
    pub(crate) fn broken(&mut self) -> Result<Option<Broken>> {
        let (offset, seed) = (self.offset, self.seed);
        let Some((header, block)) = self.continuing()? else { return Ok(None) };
        let parts = header.whole_records(block, seed);
        let first = parts.first().filter(|part| part.lsns.start == header.first_lsn);
        let whole_until = first.map_or((header.first_lsn, offset + BLOCK_HEADER_BYTES as u64), |part| {
            (part.lsns.end, offset + part.bytes.end as u64)
        });
        Ok(Some(Broken { header, whole_until }))
    }

    /// Finds intact records after the current offset. `counts` returns the last valid record of a
    /// block, or none if the block is not valid. An intact header locates the next block; without
    /// one, each page is examined. So each byte is read once, whatever the contents.
    pub(crate) fn behind(&mut self, counts: impl Fn(&BlockHeader) -> Option<u64>) -> Result<Orphans> {
        let mut found = Orphans::default();
        let (number, log_id) = (self.number, self.log_id);
        let mut offset = self.offset.max(PAGE as u64);
        while offset < self.bytes {
            let header = self.header(offset)?;
            let Some((header, last_lsn)) = header.and_then(|header| Some((header, counts(&header)?))) else {
                if self.window.at(offset, PAGE)?.len() < PAGE {
                    break;
                }
                offset += PAGE as u64;
                continue;
            };
            let block = self.window.at(offset, header.padded_bytes())?;
            let seed = seed(&log_id, number, header.epoch);
            let parts = (!header.is_whole(block, seed)).then(|| header.whole_records(block, seed));
            found.add(number, &header, parts, last_lsn);
            offset = header.padded_end();
        }
        Ok(found)
    }

    /// Makes reads small, for a caller that searches.
    pub(crate) fn searching(mut self) -> Blocks {
        self.read_by(SEARCH_PIECE);
        self
    }

    /// Sets the size of a read.
    pub(crate) fn read_by(&mut self, bytes: usize) {
        self.window.piece = bytes.min(self.bytes as usize).max(PAGE);
    }

    /// Returns the first intact header of the segment in `range`.
    pub(crate) fn first_header(&mut self, range: Range<u64>) -> Result<Option<BlockHeader>> {
        let piece = self.window.piece;
        let found = self.search(range);
        self.window.piece = piece;
        found
    }

    fn search(&mut self, range: Range<u64>) -> Result<Option<BlockHeader>> {
        let (epoch, first_lsn) = (self.epoch, self.first_lsn);
        let (mut at, end) = (range.start, range.end.min(self.bytes));
        while at < end {
            if !self.window.has(at, PAGE) {
                let piece = (SEARCH_GROWTH * (at - range.start)).max(SEARCH_PIECE as u64).min(end - at);
                self.window.piece = piece as usize;
            }
            let header = self.header(at)?;
            if header.is_some_and(|header| header.epoch == epoch && header.first_lsn >= first_lsn) {
                return Ok(header);
            }
            if self.window.at(at, PAGE)?.len() < PAGE {
                break;
            }
            at += PAGE as u64;
        }
        Ok(None)
    }

    /// Searches `range` for the next intact header, page by page, in the bytes in memory. Shortens
    /// the range to the part not searched yet.
    pub(crate) fn seek_header(&mut self, range: &mut Range<u64>) -> Result<Sought> {
        let (epoch, lsn) = (self.epoch, self.next_lsn);
        while range.start < range.end {
            let at = range.start;
            if !self.window.has(at, PAGE) {
                return Ok(Sought::Lacks((at, PAGE)));
            }
            let header = self.header(at)?;
            let is_next = |header: &BlockHeader| header.epoch == epoch && header.first_lsn >= lsn;
            if let Some(header) = header.filter(is_next).filter(|header| header.padded_end() <= range.end) {
                return Ok(Sought::Found(header));
            }
            range.start += PAGE as u64;
        }
        Ok(Sought::Nothing)
    }

    /// Finds the last intact header of the segment: first by bisection, since blocks are
    /// contiguous, then in order.
    pub(crate) fn last_header(&mut self) -> Result<Option<BlockHeader>> {
        let first = PAGE as u64;
        let Some(mut last) = self.first_header(first..first + SEARCHED_AT_END)? else { return Ok(None) };
        loop {
            // No header was found after it.
            let mut high = self.bytes;
            while high.saturating_sub(last.padded_end()) > SEARCHED {
                let middle = last.padded_end() + (high - last.padded_end()) / 2;
                let middle = middle - middle % PAGE as u64;
                match self.first_header(middle..middle + SEARCHED)? {
                    Some(header) => last = header,
                    None => high = middle,
                }
            }
            // A block may be larger than the searched range.
            loop {
                let end = last.padded_end();
                let Some(next) = self.first_header(end..end + SEARCHED_AT_END)? else { return Ok(Some(last)) };
                last = next;
                if last.offset >= high {
                    break;
                }
            }
        }
    }

    /// Moves back from `end`, the end of a block, to a block that begins at or before record `lsn`;
    /// to the segment's first block if there is none.
    pub(crate) fn seek_back(&mut self, end: u64, lsn: u64) -> Result<()> {
        let first = PAGE as u64;
        let mut back = SEARCH_PIECE as u64;
        loop {
            let from = end.saturating_sub(back).max(first);
            if from == first {
                self.go_to_first();
                return Ok(());
            }
            if let Some(header) = self.first_header(from..end)?.filter(|header| header.first_lsn <= lsn) {
                self.go_to(header.offset, header.first_lsn);
                return Ok(());
            }
            back *= 2;
        }
    }

    /// Ends the segment at `end`.
    pub(crate) fn end_at(&mut self, end: u64) {
        self.bytes = self.bytes.min(end);
    }

    /// True if a page of the next block cannot be read.
    pub(crate) fn is_unreadable(&mut self) -> Result<bool> {
        let offset = self.offset;
        let length = self.header(offset)?.map_or(PAGE, |header| header.padded_bytes());
        let end = offset.saturating_add(length as u64).min(self.bytes);
        Ok(offset < end && self.window.is_unreadable(offset..end))
    }

    /// The device's error, if it is the cause of the damage to the next block. That block must have
    /// been read.
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

    /// True if a block of this segment begins here, even if it is incomplete. Earlier contents of a
    /// reused file have lower LSNs or another epoch.
    pub(crate) fn is_begun(&mut self) -> Result<bool> {
        let (offset, epoch, lsn) = (self.offset, self.epoch, self.next_lsn);
        let header = BlockHeader::peek(self.window.at(offset, PAGE)?, offset);
        Ok(header.is_some_and(|header| header.epoch == epoch && header.first_lsn == lsn))
    }

    /// The page after the last block, as last read; None if a block begins there.
    pub(crate) fn idle_page(&mut self) -> Result<Option<Vec<u8>>> {
        if self.is_begun()? {
            return Ok(None);
        }
        self.window.at(self.offset, PAGE).map(|page| Some(page.to_vec()))
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
        let header = self.header(offset)?.filter(|header| header.epoch == epoch);
        let length = header.map_or(PAGE, |header| header.padded_bytes());
        Ok((!self.window.has(offset, length)).then_some((offset, length)))
    }

    /// Reads bytes that [`Blocks::lacks`] returned.
    pub(crate) fn read(&mut self, (offset, length): (u64, usize)) -> Result<()> {
        self.window.read(offset, length)
    }

    /// As [`Blocks::read`], without blocking the thread. Some of the bytes may still be missing
    /// afterwards.
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
