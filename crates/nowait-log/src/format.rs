//! Encodes and decodes a log's control file, segment headers and blocks, without I/O.
//! `docs/log-format.md` describes the layout.
//!
//! Decoding neither panics nor allocates more than its input, whatever the bytes.

#[cfg(test)]
#[path = "format/tests.rs"]
mod tests;

use std::ops::Range;

/// Unit of writes: lengths and offsets are multiples of a page.
pub(crate) const PAGE: usize = 4096;
pub(crate) const VERSION: u32 = 2;
/// Length of the control file: two copies.
pub(crate) const CONTROL_BYTES: usize = 2 * PAGE;
pub(crate) const BLOCK_HEADER_BYTES: usize = 64;
/// Maximum size of a block, unless a single batch is larger. With 256 KiB, 64 records of 4 KiB
/// would need two writes.
pub(crate) const BLOCK_BYTES_MAX: usize = 512 << 10;
/// Bytes of a record's frame: checksum, length, kind.
pub(crate) const FRAME_BYTES: usize = 9;

/// The highest number of a segment, an epoch or a record. Higher numbers are treated as damage, so
/// that increments never overflow.
pub(crate) const NUMBER_MAX: u64 = u64::MAX >> 1;

const CONTROL_MAGIC: &[u8; 8] = b"nwlogctl";
const SEGMENT_MAGIC: &[u8; 8] = b"nwlogseg";
const BLOCK_MAGIC: &[u8; 4] = b"nwbk";
const CLOSED: u32 = 1;
/// Offset of the copy of the segment's header in a watermark block that begins a segment.
const COPY_AT: usize = PAGE / 2;
/// Offset of the list of epochs in the control file, and bytes of an entry.
const EPOCHS_AT: usize = 128;
const EPOCH_BYTES: usize = 16;
/// Maximum number of epochs in the control file.
const EPOCHS_MAX: usize = 120;
/// Offset of the checksum of all frames in a block's header.
const FRAMES_AT: usize = 52;

pub(crate) type LogId = [u8; 16];

/// A place where the log ends, or continues in another segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct End {
    /// Number of the segment; 0 before the first.
    pub(crate) segment: u64,
    pub(crate) offset: u64,
    /// LSN of the last record; the next has the number after it.
    pub(crate) lsn: u64,
    /// If a salvage left out damage, the first lost record: all records from it to `lsn` were lost.
    /// Otherwise 0.
    pub(crate) lost_from: u64,
}

impl End {
    /// Last record that exists.
    pub(crate) fn last_there(&self) -> u64 {
        if self.lost_from == 0 { self.lsn } else { self.lost_from - 1 }
    }

    /// Records that a salvage left out.
    pub(crate) fn lost(&self) -> std::ops::Range<u64> {
        self.last_there() + 1..self.lsn + 1
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Control {
    pub(crate) log_id: LogId,
    pub(crate) segment_bytes: u64,
    /// Code of `Durability`.
    pub(crate) sync: u32,
    /// Code of `Submitter`.
    pub(crate) caller: u32,
    pub(crate) depth: u32,
    pub(crate) direct: bool,
    /// Number of the oldest segment of the log. Older files may have been removed.
    pub(crate) oldest: u64,
    /// Highest number of a segment that existed when this was written; 0 if unknown.
    pub(crate) newest: u64,
    pub(crate) measured: Measured,
    /// Number of the newest segment of the chain, in the last epoch, whose header was durable when
    /// this was written. 0 if unknown.
    pub(crate) head: u64,
    /// LSN up to which all records were durable when this was written.
    pub(crate) watermark: u64,
    pub(crate) epochs: Epochs,
}

/// Epochs in order, each with the last record before it. Records of an older epoch after that
/// record are not valid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Epochs(Vec<(u64, u64)>);

impl Epochs {
    /// Returns the newest epoch; 0 if none is known.
    pub(crate) fn newest(&self) -> u64 {
        self.0.last().map_or(0, |(epoch, _)| *epoch)
    }

    /// Returns the last valid record of `epoch`: the one before the first newer epoch.
    pub(crate) fn last_of(&self, epoch: u64) -> u64 {
        self.0.iter().find(|(newer, _)| *newer > epoch).map_or(u64::MAX, |(_, last_lsn)| *last_lsn)
    }

    /// Adds an epoch that is newer than the others, and begins after record `last_lsn`. It replaces
    /// epochs that do not begin after an earlier record, since its bound on older epochs is
    /// tighter.
    pub(crate) fn begin(&mut self, epoch: u64, last_lsn: u64) {
        self.0.retain(|(_, last)| *last < last_lsn);
        if self.0.len() == EPOCHS_MAX {
            self.0.remove(0);
        }
        self.0.push((epoch, last_lsn));
    }

    /// Drops entries that do not bound segments of epoch `oldest` and later; keeps the newest
    /// entry.
    pub(crate) fn forget_before(&mut self, oldest: u64) {
        let newest = self.newest();
        self.0.retain(|(epoch, _)| *epoch > oldest || *epoch == newest);
    }

    /// Returns true if epochs and records both increase from entry to entry.
    pub(crate) fn are_in_order(&self) -> bool {
        let grows = |pair: &[(u64, u64)]| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1;
        self.0.windows(2).all(grows) && self.0.iter().all(|(epoch, _)| *epoch > 0)
    }
}

/// Measurement by which the strategy was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Measured {
    /// Seconds since 1970; 0 if nothing was measured.
    pub(crate) at: u64,
    /// Device of the log's directory (`st_dev`).
    pub(crate) device: u64,
    /// Nanoseconds until a page is durable, 0 if not measured: by a durable write on the ring, by a
    /// durable write call, and by a write and a sync. The last entry is for two pages in flight, by
    /// the chosen durability.
    pub(crate) page_ns: [u32; 4],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct SegmentHeader {
    pub(crate) log_id: LogId,
    pub(crate) number: u64,
    pub(crate) epoch: u64,
    pub(crate) bytes: u64,
    /// LSN up to which all records were durable when the header was made.
    pub(crate) watermark: u64,
    pub(crate) previous: End,
    /// Number of the oldest segment of the log when the segment began.
    pub(crate) oldest: u64,
    /// Time when the header was made, in milliseconds since 1970 by the wall clock; 0 if not known.
    pub(crate) time_ms: u64,
    /// Time when the last block with records before the segment was made, in the same unit.
    pub(crate) previous_time_ms: u64,
}

/// Record to be appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Type of the record, chosen by the application. The log stores it and does not interpret it.
    pub kind: u8,
    /// Bytes of the record.
    pub bytes: &'a [u8],
}

impl<'a> From<&'a [u8]> for Entry<'a> {
    /// A record of kind 0.
    fn from(bytes: &'a [u8]) -> Entry<'a> {
        Entry { kind: 0, bytes }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockHeader {
    pub(crate) epoch: u64,
    pub(crate) offset: u64,
    pub(crate) first_lsn: u64,
    pub(crate) watermark: u64,
    pub(crate) length: u32,
    pub(crate) records: u32,
    pub(crate) closed: bool,
    /// Time when the block was made, in milliseconds since 1970 by the wall clock; 0 if not known.
    pub(crate) time_ms: u64,
}

/// State of the first page of a segment's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderPage {
    Valid(SegmentHeader),
    /// Zeros.
    Unused,
    /// The header of another segment of the log: of an earlier segment in the same file, or of a
    /// file that has the wrong name.
    Other(SegmentHeader),
    /// Neither: torn or damaged.
    Bad,
}

/// Reason why a control file cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadControl {
    Damaged,
    Version(u32),
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |bytes| u32::from_le_bytes(bytes.try_into().unwrap_or_default()))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()))
}

fn id_at(bytes: &[u8], at: usize) -> LogId {
    bytes.get(at..at + 16).and_then(|bytes| bytes.try_into().ok()).unwrap_or_default()
}

/// Writes fields one after the other.
struct Put<'a>(&'a mut [u8]);

impl Put<'_> {
    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        let (head, rest) = std::mem::take(&mut self.0).split_at_mut(bytes.len());
        head.copy_from_slice(bytes);
        self.0 = rest;
        self
    }

    fn u32(&mut self, number: u32) -> &mut Self {
        self.bytes(&number.to_le_bytes())
    }

    fn u64(&mut self, number: u64) -> &mut Self {
        self.bytes(&number.to_le_bytes())
    }
}

/// Writes magic, version and checksum into a page or half a page.
fn seal_page(page: &mut [u8], magic: &[u8; 8]) {
    Put(&mut page[12..]).u32(VERSION);
    let crc = crc32c::crc32c(&page[12..]);
    Put(page).bytes(magic).u32(crc);
}

fn is_sealed(page: &[u8], magic: &[u8; 8]) -> bool {
    page.starts_with(magic) && page.get(12..).is_some_and(|rest| crc32c::crc32c(rest) == u32_at(page, 8))
}

impl Control {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; CONTROL_BYTES];
        let (first, second) = bytes.split_at_mut(PAGE);
        Put(&mut first[16..])
            .bytes(&self.log_id)
            .u64(self.segment_bytes)
            .u32(self.sync)
            .u32(self.caller)
            .u32(self.depth)
            .u32(self.direct.into())
            .u64(self.oldest)
            .u64(self.newest)
            .u64(self.measured.at)
            .u64(self.measured.device);
        for (index, page_ns) in self.measured.page_ns.into_iter().enumerate() {
            Put(&mut first[88 + 4 * index..]).u32(page_ns);
        }
        Put(&mut first[104..]).u64(self.head).u64(self.watermark).u64(self.epochs.0.len() as u64);
        for (index, (epoch, last_lsn)) in self.epochs.0.iter().enumerate() {
            Put(&mut first[EPOCHS_AT + EPOCH_BYTES * index..]).u64(*epoch).u64(*last_lsn);
        }
        seal_page(first, CONTROL_MAGIC);
        second.copy_from_slice(first);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Control, BadControl> {
        let mut pages = bytes.chunks_exact(PAGE).take(CONTROL_BYTES / PAGE);
        let page = pages.find(|page| is_sealed(page, CONTROL_MAGIC)).ok_or(BadControl::Damaged)?;
        match u32_at(page, 12) {
            VERSION => {}
            other => return Err(BadControl::Version(other)),
        }
        let count = usize::try_from(u64_at(page, 120)).unwrap_or(EPOCHS_MAX).min(EPOCHS_MAX);
        let epoch =
            |index| (u64_at(page, EPOCHS_AT + EPOCH_BYTES * index), u64_at(page, EPOCHS_AT + EPOCH_BYTES * index + 8));
        let epochs = Epochs((0..count).map(epoch).collect());
        Ok(Control {
            log_id: id_at(page, 16),
            segment_bytes: u64_at(page, 32),
            sync: u32_at(page, 40),
            caller: u32_at(page, 44),
            depth: u32_at(page, 48),
            direct: u32_at(page, 52) == 1,
            oldest: u64_at(page, 56),
            newest: u64_at(page, 64),
            measured: Measured {
                at: u64_at(page, 72),
                device: u64_at(page, 80),
                page_ns: [88, 92, 96, 100].map(|at| u32_at(page, at)),
            },
            head: u64_at(page, 104),
            watermark: u64_at(page, 112),
            epochs,
        })
    }

    /// Offset of the first damaged copy.
    pub(crate) fn bad_copy(bytes: &[u8]) -> Option<u64> {
        let mut copies = (0..CONTROL_BYTES).step_by(PAGE);
        let is_bad = |at: &usize| !bytes.get(*at..at + PAGE).is_some_and(|page| is_sealed(page, CONTROL_MAGIC));
        copies.find(is_bad).map(|at| at as u64)
    }
}

impl SegmentHeader {
    /// Fills a page, or half of one.
    pub(crate) fn encode(&self, page: &mut [u8]) {
        page.fill(0);
        Put(&mut page[16..])
            .bytes(&self.log_id)
            .u64(self.number)
            .u64(self.epoch)
            .u64(self.bytes)
            .u64(self.previous.lsn + 1)
            .u64(self.watermark)
            .u64(self.previous.segment)
            .u64(self.previous.offset)
            .u64(self.previous.lsn)
            .u64(self.previous.lost_from)
            .u64(self.oldest)
            .u64(self.time_ms)
            .u64(self.previous_time_ms);
        seal_page(page, SEGMENT_MAGIC);
    }

    /// Writes a copy into the second half of the watermark block that begins the segment, so that
    /// damage to one page does not lose the place where the log continues.
    pub(crate) fn put_copy(&self, block: &mut [u8]) {
        self.encode(&mut block[COPY_AT..PAGE]);
    }

    /// Decodes a header of any log and number.
    fn read(page: &[u8]) -> Option<SegmentHeader> {
        if !is_sealed(page, SEGMENT_MAGIC) {
            return None;
        }
        let previous = End {
            segment: u64_at(page, 72),
            offset: u64_at(page, 80),
            lsn: u64_at(page, 88),
            lost_from: u64_at(page, 96),
        };
        Some(SegmentHeader {
            log_id: id_at(page, 16),
            number: u64_at(page, 32),
            epoch: u64_at(page, 40),
            bytes: u64_at(page, 48),
            watermark: u64_at(page, 64),
            previous,
            oldest: u64_at(page, 104),
            time_ms: u64_at(page, 112),
            previous_time_ms: u64_at(page, 120),
        })
    }

    fn is_sound(&self, page: &[u8]) -> bool {
        let End { segment, lsn, lost_from, .. } = self.previous;
        u32_at(page, 12) == VERSION
            && self.number.max(self.epoch).max(lsn) <= NUMBER_MAX
            && segment < self.number
            && self.oldest <= self.number
            && self.bytes >= 2 * PAGE as u64
            && self.bytes % PAGE as u64 == 0
            && lsn + 1 == u64_at(page, 56)
            && lost_from <= lsn + 1
            // Records that were durable when the segment began are in earlier segments.
            && self.watermark <= lsn
    }

    /// Decodes the first page of segment `number`.
    pub(crate) fn decode(page: &[u8], log_id: &LogId, number: u64) -> HeaderPage {
        let Some(page) = page.get(..PAGE) else { return HeaderPage::Bad };
        match SegmentHeader::read(page) {
            None if page.iter().all(|byte| *byte == 0) => HeaderPage::Unused,
            Some(header) if header.log_id != *log_id || !header.is_sound(page) => HeaderPage::Bad,
            Some(header) if header.number != number => HeaderPage::Other(header),
            Some(header) => HeaderPage::Valid(header),
            None => HeaderPage::Bad,
        }
    }

    /// Decodes the copy of the header in the second page of segment `number`, if there is one.
    pub(crate) fn decode_copy(page: &[u8], log_id: &LogId, number: u64) -> Option<SegmentHeader> {
        let copy = page.get(COPY_AT..PAGE)?;
        let is_ours = |header: &SegmentHeader| header.log_id == *log_id && header.number == number;
        SegmentHeader::read(copy).filter(|header| is_ours(header) && header.is_sound(copy))
    }

    /// Decodes the header of segment `number` of an unknown log.
    pub(crate) fn decode_unknown(page: &[u8], number: u64) -> Option<SegmentHeader> {
        let page = page.get(..PAGE)?;
        SegmentHeader::read(page).filter(|header| header.number == number && header.is_sound(page))
    }

    /// LSN of the first record that the segment can hold.
    pub(crate) fn first_lsn(&self) -> u64 {
        self.previous.lsn + 1
    }
}

/// Seed of the checksums of a segment's blocks.
pub(crate) fn seed(log_id: &LogId, segment: u64, epoch: u64) -> u32 {
    let crc = crc32c::crc32c(log_id);
    let crc = crc32c::crc32c_append(crc, &segment.to_le_bytes());
    crc32c::crc32c_append(crc, &epoch.to_le_bytes())
}

/// Length of a block with `payload` bytes of records, in whole pages.
pub(crate) fn block_bytes(payload: usize) -> usize {
    (BLOCK_HEADER_BYTES + payload).next_multiple_of(PAGE)
}

impl BlockHeader {
    /// Computes the header of a block with these records, and the checksums of their frames.
    /// [`Seal::put`] writes both into the block.
    pub(crate) fn seal(&self, records: &[u8], seed: u32) -> Seal {
        let mut checksums = Vec::with_capacity(self.records as usize);
        let (mut at, mut lsn, mut frames) = (0, self.first_lsn, Frames::default());
        while let Some((start, length)) = record_at(records, at) {
            let end = start + length;
            let crc = record_checksum(&records[at..end], seed, lsn);
            let mut frame = [0; FRAME_BYTES];
            Put(&mut frame).u32(crc).bytes(&records[at + 4..start]);
            frames.add(&frame);
            checksums.push(crc);
            (at, lsn) = (end, lsn + 1);
        }
        let mut header = [0; BLOCK_HEADER_BYTES];
        Put(&mut header[8..])
            .u64(self.epoch)
            .u64(self.offset)
            .u64(self.first_lsn)
            .u64(self.watermark)
            .u32(self.length)
            .u32(self.records)
            .u32(if self.closed { CLOSED } else { 0 })
            .u32(frames.checksum())
            .u64(self.time_ms);
        let crc = crc32c::crc32c_append(seed, &header[8..]);
        Put(&mut header).bytes(BLOCK_MAGIC).u32(crc);
        Seal { header, checksums }
    }

    /// Decodes a plausible header at the start of `bytes`; its checksum is not verified.
    pub(crate) fn peek(bytes: &[u8], offset: u64) -> Option<BlockHeader> {
        if bytes.len() < BLOCK_HEADER_BYTES || !bytes.starts_with(BLOCK_MAGIC) || u64_at(bytes, 16) != offset {
            return None;
        }
        let header = BlockHeader {
            epoch: u64_at(bytes, 8),
            offset,
            first_lsn: u64_at(bytes, 24),
            watermark: u64_at(bytes, 32),
            length: u32_at(bytes, 40),
            records: u32_at(bytes, 44),
            closed: u32_at(bytes, 48) == CLOSED,
            time_ms: u64_at(bytes, 56),
        };
        let sound = header.epoch.max(header.first_lsn) <= NUMBER_MAX
            // The header was made before the block's records were durable.
            && header.watermark < header.first_lsn
            && u64::from(header.records) * FRAME_BYTES as u64 <= header.length.into();
        sound.then_some(header)
    }

    /// Decodes a header and verifies its checksum. `seed` returns the segment's seed for the
    /// header's epoch.
    pub(crate) fn decode(bytes: &[u8], offset: u64, seed: impl FnOnce(u64) -> u32) -> Option<BlockHeader> {
        let header = BlockHeader::peek(bytes, offset)?;
        let crc = crc32c::crc32c_append(seed(header.epoch), &bytes[8..BLOCK_HEADER_BYTES]);
        (crc == u32_at(bytes, 4)).then_some(header)
    }

    /// Length of the block on disk.
    pub(crate) fn padded_bytes(&self) -> usize {
        block_bytes(self.length as usize)
    }

    /// Offset of the end of the block in its segment.
    pub(crate) fn padded_end(&self) -> u64 {
        self.offset + self.padded_bytes() as u64
    }

    /// LSNs of the records.
    pub(crate) fn lsns(&self) -> Range<u64> {
        self.first_lsn..self.first_lsn + u64::from(self.records)
    }

    /// Verifies the records of `block`, which is at least as long as the header says.
    pub(crate) fn is_whole(&self, block: &[u8], seed: u32) -> bool {
        let mut walk = Walk::new(self, block, seed);
        walk.all(|record| record.is_whole) && walk.is_complete()
    }

    /// Finds the intact records of a damaged block. If the offsets of its frames are known, these
    /// are all records with a valid checksum. Otherwise they are the records before the first
    /// invalid checksum, since the offsets of later frames are unknown.
    pub(crate) fn whole_records(&self, block: &[u8], seed: u32) -> Vec<Part> {
        let mut walk = Walk::new(self, block, seed);
        let (mut parts, mut any_bad) = (Vec::<Part>::new(), false);
        for Walked { lsn, bytes, is_whole } in walk.by_ref() {
            match parts.last_mut().filter(|part| part.lsns.end == lsn) {
                _ if !is_whole => any_bad = true,
                Some(part) => (part.lsns.end, part.bytes.end) = (lsn + 1, bytes.end),
                None => parts.push(Part { lsns: lsn..lsn + 1, bytes }),
            }
        }
        if !walk.is_complete() {
            let is_known = any_bad || walk.left > 0;
            parts.retain(|part| is_known && part.lsns.start == self.first_lsn);
        }
        parts
    }
}

/// Header and checksums that sealing adds to a block.
pub(crate) struct Seal {
    header: [u8; BLOCK_HEADER_BYTES],
    /// Checksums of the records, in order.
    checksums: Vec<u32>,
}

/// Intact records of a damaged block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) lsns: Range<u64>,
    /// Byte range of their frames and contents in the block.
    pub(crate) bytes: Range<usize>,
}

/// Number of frames checksummed in one call: a checksum of few bytes takes as long as one of many.
const FRAMES_AT_ONCE: usize = 64;

/// Checksum of all frames of a block, in order.
struct Frames {
    crc: u32,
    /// Frames that are not in the checksum yet.
    bytes: [u8; FRAMES_AT_ONCE * FRAME_BYTES],
    filled: usize,
}

impl Default for Frames {
    fn default() -> Frames {
        Frames { crc: 0, bytes: [0; FRAMES_AT_ONCE * FRAME_BYTES], filled: 0 }
    }
}

impl Frames {
    #[inline]
    fn add(&mut self, frame: &[u8; FRAME_BYTES]) {
        self.bytes[self.filled..self.filled + FRAME_BYTES].copy_from_slice(frame);
        self.filled += FRAME_BYTES;
        if self.filled == self.bytes.len() {
            (self.crc, self.filled) = (self.checksum(), 0);
        }
    }

    fn checksum(&self) -> u32 {
        crc32c::crc32c_append(self.crc, &self.bytes[..self.filled])
    }
}

/// Iterates over the records of a block. The lengths in earlier frames determine the offset of
/// each.
struct Walk<'b> {
    /// Header and records.
    block: &'b [u8],
    at: usize,
    /// Number of records not returned yet.
    left: u32,
    lsn: u64,
    seed: u32,
    /// Frames so far.
    frames: Frames,
}

struct Walked {
    lsn: u64,
    bytes: Range<usize>,
    is_whole: bool,
}

impl<'b> Walk<'b> {
    fn new(header: &BlockHeader, block: &'b [u8], seed: u32) -> Walk<'b> {
        // A truncated block has no records.
        let block = block.get(..BLOCK_HEADER_BYTES + header.length as usize).unwrap_or_default();
        let (left, lsn, frames) = (header.records, header.first_lsn, Frames::default());
        Walk { block, at: BLOCK_HEADER_BYTES, left, lsn, seed, frames }
    }

    /// True if all records were returned, and the frames match the header.
    fn is_complete(&self) -> bool {
        self.left == 0 && self.at == self.block.len() && self.frames.checksum() == u32_at(self.block, FRAMES_AT)
    }
}

impl Iterator for Walk<'_> {
    type Item = Walked;

    #[inline]
    fn next(&mut self) -> Option<Walked> {
        let (at, lsn) = (self.at, self.lsn);
        let (start, length) = if self.left == 0 { None } else { record_at(self.block, at) }?;
        self.frames.add(self.block.get(at..start)?.first_chunk()?);
        self.at = start + length;
        (self.left, self.lsn) = (self.left - 1, lsn + 1);
        let is_whole = record_checksum(&self.block[at..self.at], self.seed, lsn) == u32_at(self.block, at);
        Some(Walked { lsn, bytes: at..self.at, is_whole })
    }
}

/// Checksum of a record with its frame. It depends on the segment and on the LSN, so that no record
/// is mistaken for another.
#[inline]
fn record_checksum(record: &[u8], seed: u32, lsn: u64) -> u32 {
    crc32c::crc32c_append(seed ^ lsn as u32, &record[4..])
}

impl Seal {
    /// Writes header and checksums into the block.
    pub(crate) fn put(&self, block: &mut [u8]) {
        let mut at = BLOCK_HEADER_BYTES;
        for crc in &self.checksums {
            let Some((start, length)) = record_at(block, at) else { break };
            Put(&mut block[at..]).u32(*crc);
            at = start + length;
        }
        Put(block).bytes(&self.header);
    }
}

/// Writes the frame of a record into `out`, which has room for it. [`Seal::put`] writes its
/// checksum.
pub(crate) fn put_frame(out: &mut [u8], kind: u8, length: usize) {
    Put(out).u32(0).u32(length as u32).bytes(&[kind]);
}

/// Start and length of the record whose frame is at `at`.
pub(crate) fn record_at(block: &[u8], at: usize) -> Option<(usize, usize)> {
    let start = at.checked_add(FRAME_BYTES)?;
    let length = u32_at(block.get(..start)?, at + 4) as usize;
    (start.checked_add(length)? <= block.len()).then_some((start, length))
}

/// Kind of the record whose bytes begin at `start`.
pub(crate) fn kind_at(block: &[u8], start: usize) -> u8 {
    start.checked_sub(1).and_then(|at| block.get(at)).copied().unwrap_or_default()
}
