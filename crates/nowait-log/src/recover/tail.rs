//! Recovery of only the end of a log: reads the segments' headers for the chain, and the blocks
//! that no later watermark covers.

use super::control::missing_behind;
use super::runs::is_of;
use super::scan::{Files, Outcome, Survey};
use super::{Found, Place};
use crate::dir::{Blocks, SEARCHED_AT_END, Segment, Window};
use crate::format::{End, PAGE, SegmentHeader};
use crate::options::Scan;
use nowait::{File, Result};

/// End of the newest segment.
struct LogEnd {
    end: End,
    closed: bool,
    torn: Option<Place>,
    watermark: u64,
    /// Time when the last block with records was made; 0 if it was not read.
    time_ms: u64,
}

impl Survey<'_> {
    /// Reads the end of the log. None if it contains anything that a crash cannot cause: then all
    /// of the log has to be read.
    pub(crate) fn run_tail(&mut self, numbers: &[u64]) -> Result<Option<Found>> {
        let copies = self.from_copy.len();
        let files = self.files(numbers)?;
        let links = self.chain(&files);
        let is_sound = files.bad.is_empty()
            && self.unreadable.is_empty()
            && self.damage.is_empty()
            && self.from_copy.len() == copies
            && links.severed.is_empty()
            && self.lost_head(&files).is_none()
            && self.renamed(&files, &links).is_empty();
        let Some(newest) = links.kept.last().filter(|_| is_sound) else { return Ok(None) };
        if missing_behind(&self.control, numbers, newest.header.number).is_some() {
            return Ok(None);
        }
        if self.any_begun(&files, &newest.header)? {
            return Ok(None);
        }
        let headers = links.kept.iter().map(|link| link.header.watermark);
        let watermark = headers.fold(self.recorded_watermark(&links), u64::max);
        let file = self.file(newest.header.number)?;
        let Some(tail) = self.newest(&newest.header, file.clone(), watermark)? else { return Ok(None) };
        let LogEnd { end, closed, torn, watermark, time_ms } = tail;
        if !closed && file.size().wait()? < newest.header.bytes {
            return Ok(None);
        }
        let mut chain = Vec::new();
        let mut gaps = Vec::new();
        let mut files_read = vec![file];
        for (index, link) in links.kept.iter().enumerate() {
            let place = link.limit.unwrap_or(end);
            let time_ms = links.kept.get(index + 1).map_or(time_ms, |next| next.header.previous_time_ms);
            chain.push(Segment { header: link.header, end: place.offset, last_lsn: place.last_there(), time_ms });
            gaps.extend(Some(place.lost()).filter(|lost| !lost.is_empty()));
        }
        // Earlier segments that the newest one's watermarks do not cover: their last blocks were in
        // flight with its first.
        for link in links.kept.iter().rev().skip(1) {
            let Some(limit) = link.limit else { return Ok(None) };
            if limit.last_there() <= watermark && limit.last_there() >= link.header.first_lsn() {
                break;
            }
            let file = self.file(link.header.number)?;
            if !self.is_whole_to(&link.header, file.clone(), limit, watermark)? {
                return Ok(None);
            }
            files_read.push(file);
        }
        let read = chain.iter().rev().copied().zip(files_read);
        self.to_sync.extend(read);
        self.make_durable(watermark)?;
        let outcome = Outcome { next_lsn: end.lsn + 1, chain, end, closed, torn, gaps, ..Outcome::default() };
        let mut found = self.found(&files, numbers, outcome);
        found.recovery.scan = Scan::Tail;
        Ok(Some(found))
    }

    /// True if a segment newer than the chain, without a header, contains a first block: its header
    /// existed once, or is still being written.
    fn any_begun(&mut self, files: &Files, newest: &SegmentHeader) -> Result<bool> {
        for number in files.unused.iter().copied().filter(|number| *number > newest.number) {
            let mut blocks = self.any_blocks(number, 0)?.searching();
            let first = blocks.first_block()?;
            self.done(blocks);
            if first.is_some_and(|block| block.epoch >= newest.epoch) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Finds the end of the newest segment, and verifies its blocks from the last one that a
    /// watermark covers.
    fn newest(&mut self, header: &SegmentHeader, file: File, watermark: u64) -> Result<Option<LogEnd>> {
        let mut blocks = Blocks::new(Window::past_errors(file), header).searching();
        let mut watermark = watermark;
        let mut closed = false;
        let mut time_ms = 0;
        let mut last_end = PAGE as u64;
        if let Some(last) = blocks.last_header()? {
            watermark = watermark.max(last.watermark);
            last_end = last.padded_end();
            blocks.seek_back(last_end, watermark)?;
        }
        // One read of all bytes that have to be verified.
        let rest = last_end.saturating_sub(blocks.offset).saturating_add(SEARCHED_AT_END).min(2 * SEARCHED_AT_END);
        blocks.read_by(rest as usize);
        while let Some((block, _)) = blocks.next()? {
            watermark = watermark.max(block.watermark);
            closed = block.closed;
            time_ms = if block.records > 0 { block.time_ms } else { time_ms };
        }
        let end = End { segment: header.number, offset: blocks.offset, lsn: blocks.next_lsn - 1, lost_from: 0 };
        let is_begun = blocks.is_begun()?;
        // The search for the last block misses blocks after a damaged header, if that header's
        // block is larger than the range searched for the next one. After the block of a close
        // there is no block to miss.
        if closed && blocks.offset >= last_end {
            blocks.end_at(last_end.saturating_add(SEARCHED_AT_END));
        }
        let behind = blocks.behind(|block| is_of(header, block).then_some(u64::MAX))?;
        let proof = behind.proof.map_or(0, |(watermark, _)| watermark);
        let is_sound = !blocks.is_unreadable()? && watermark.max(proof) <= end.lsn;
        self.done(blocks);
        if !is_sound || !self.unreadable.is_empty() {
            return Ok(None);
        }
        let is_torn = is_begun || behind.proof.is_some();
        let torn = is_torn.then(|| Place { path: self.dir.segment_path(header.number), offset: end.offset });
        Ok(Some(LogEnd { end, closed, torn, watermark, time_ms }))
    }

    /// True if the blocks of a segment are intact, from the last one that a watermark covers to the
    /// place from which the next segment continues.
    fn is_whole_to(&mut self, header: &SegmentHeader, file: File, limit: End, watermark: u64) -> Result<bool> {
        let blocks = Blocks::new(Window::past_errors(file), header).searching();
        let mut blocks = blocks.up_to(limit.last_there());
        blocks.seek_back(limit.offset, watermark)?;
        while blocks.offset < limit.offset && blocks.next()?.is_some() {}
        let is_whole = blocks.offset == limit.offset && blocks.next_lsn > limit.last_there();
        self.done(blocks);
        Ok(is_whole && self.unreadable.is_empty())
    }
}
