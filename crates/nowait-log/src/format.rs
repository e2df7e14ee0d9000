//! Bytes of a log: control file, segment headers, blocks. `docs/log-format.md` has the layout. No
//! I/O here.
//!
//! Decoding neither panics nor allocates more than its input, whatever the bytes.

/// Unit of writes: lengths and offsets are multiples of it.
pub(crate) const PAGE: usize = 4096;
pub(crate) const VERSION: u32 = 1;
/// Length of the control file: two copies.
pub(crate) const CONTROL_BYTES: usize = 2 * PAGE;
pub(crate) const BLOCK_HEADER_BYTES: usize = 64;
/// Bytes of a record beside its contents.
pub(crate) const FRAME_BYTES: usize = 4;

/// The highest number of a segment, an epoch or a record. Higher ones are not the log's, so that
/// counting on never overflows.
pub(crate) const NUMBER_MAX: u64 = u64::MAX >> 1;

const CONTROL_MAGIC: &[u8; 8] = b"nwlogctl";
const SEGMENT_MAGIC: &[u8; 8] = b"nwlogseg";
const BLOCK_MAGIC: &[u8; 4] = b"nwbk";
const CLOSED: u32 = 1;
/// Offset of the copy of the segment's header in a watermark block that begins a segment.
const COPY_AT: usize = PAGE / 2;

pub(crate) type LogId = [u8; 16];

/// A place where the log ends, or continues in another segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct End {
    /// Number of the segment; 0 before the first.
    pub(crate) segment: u64,
    pub(crate) offset: u64,
    /// LSN of the last record; the next has the number after it.
    pub(crate) lsn: u64,
    /// Where a salvage left out damage, the first lost record: those from here to `lsn` were lost.
    /// 0 elsewhere.
    pub(crate) lost_from: u64,
}

impl End {
    /// Last record that is there.
    pub(crate) fn last_there(&self) -> u64 {
        if self.lost_from == 0 { self.lsn } else { self.lost_from - 1 }
    }

    /// Records that a salvage left out.
    pub(crate) fn lost(&self) -> std::ops::Range<u64> {
        self.last_there() + 1..self.lsn + 1
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Control {
    pub(crate) log_id: LogId,
    pub(crate) segment_bytes: u64,
    /// Code of `Durability`.
    pub(crate) sync: u32,
    /// Code of `Submitter`.
    pub(crate) caller: u32,
    pub(crate) depth: u32,
    pub(crate) direct: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) log_id: LogId,
    pub(crate) number: u64,
    pub(crate) epoch: u64,
    pub(crate) bytes: u64,
    /// Every record up to this one was durable when the header was made.
    pub(crate) watermark: u64,
    pub(crate) previous: End,
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
}

/// State of the first page of a segment's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderPage {
    Valid(SegmentHeader),
    /// Zeros, or the header of an earlier segment in the same file.
    Unused,
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

/// Puts magic, checksum of the rest and version into a page, or half a page.
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
            .u32(self.direct.into());
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
        Ok(Control {
            log_id: id_at(page, 16),
            segment_bytes: u64_at(page, 32),
            sync: u32_at(page, 40),
            caller: u32_at(page, 44),
            depth: u32_at(page, 48),
            direct: u32_at(page, 52) == 1,
        })
    }

    /// Offset of the first copy that is not whole.
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
            .u64(self.previous.lost_from);
        seal_page(page, SEGMENT_MAGIC);
    }

    /// Puts a copy into the second half of the watermark block that begins the segment, so that no
    /// single page decides where the log continues.
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
        })
    }

    fn is_sound(&self, page: &[u8]) -> bool {
        let End { segment, lsn, lost_from, .. } = self.previous;
        u32_at(page, 12) == VERSION
            && self.number.max(self.epoch).max(lsn) <= NUMBER_MAX
            && segment < self.number
            && lsn + 1 == u64_at(page, 56)
            && lost_from <= lsn + 1
            // Records that are durable when a segment begins are in those before.
            && self.watermark <= lsn
    }

    /// Decodes the first page of segment `number`.
    pub(crate) fn decode(page: &[u8], log_id: &LogId, number: u64) -> HeaderPage {
        let Some(page) = page.get(..PAGE) else { return HeaderPage::Bad };
        match SegmentHeader::read(page) {
            None if page.iter().all(|byte| *byte == 0) => HeaderPage::Unused,
            Some(header) if header.log_id == *log_id && header.number != number => HeaderPage::Unused,
            Some(header) if header.log_id == *log_id && header.is_sound(page) => HeaderPage::Valid(header),
            _ => HeaderPage::Bad,
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
    /// Puts the header before the records, which are in place already.
    pub(crate) fn seal(&self, block: &mut [u8], seed: u32) {
        let end = BLOCK_HEADER_BYTES + self.length as usize;
        block[..BLOCK_HEADER_BYTES].fill(0);
        Put(&mut block[8..])
            .u64(self.epoch)
            .u64(self.offset)
            .u64(self.first_lsn)
            .u64(self.watermark)
            .u32(self.length)
            .u32(self.records)
            .u32(if self.closed { CLOSED } else { 0 });
        let crc = crc32c::crc32c_append(seed, &block[8..end]);
        Put(block).bytes(BLOCK_MAGIC).u32(crc);
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
        };
        let sound = header.epoch.max(header.first_lsn) <= NUMBER_MAX
            // The header was made before its own records were durable.
            && header.watermark < header.first_lsn;
        sound.then_some(header)
    }

    /// End of the records in the segment, without padding.
    pub(crate) fn end(&self) -> u64 {
        self.offset + BLOCK_HEADER_BYTES as u64 + u64::from(self.length)
    }

    /// Length of the block on disk.
    pub(crate) fn padded_bytes(&self) -> usize {
        block_bytes(self.length as usize)
    }

    /// Verifies `block`, at least as long as the header says: its checksum, and the frames of its
    /// records.
    pub(crate) fn is_whole(&self, block: &[u8], seed: u32) -> bool {
        block
            .get(8..BLOCK_HEADER_BYTES + self.length as usize)
            .is_some_and(|bytes| crc32c::crc32c_append(seed, bytes) == u32_at(block, 4))
            && records(block, self).is_some()
    }
}

/// Begins the checksum of a block with its first page, or less if it is shorter; returns it with
/// the checksum that the header states.
pub(crate) fn begin_checksum(block: &[u8], seed: u32) -> (u32, u32) {
    (crc32c::crc32c_append(seed, block.get(8..).unwrap_or_default()), u32_at(block, 4))
}

/// Continues a checksum.
pub(crate) fn checksum(before: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(before, bytes)
}

/// Continues `crc` over `length` bytes by way of another checksum, which went from `then` to `now`
/// over the same bytes. CRCs are linear: the bytes need not be read again.
pub(crate) fn checksum_beside(crc: u32, then: u32, now: u32, length: u64) -> u32 {
    if length == 0 { crc } else { crc32c::crc32c_combine(crc ^ then, now, length as usize) }
}

/// Puts a record into `out`, which has room for it.
pub(crate) fn put_record(out: &mut [u8], record: &[u8]) {
    Put(out).u32(record.len() as u32).bytes(record);
}

/// Verifies the frames of a block's records; None if they do not add up to its length.
fn records(block: &[u8], header: &BlockHeader) -> Option<()> {
    let mut at = BLOCK_HEADER_BYTES;
    let end = at + header.length as usize;
    for _ in 0..header.records {
        let (start, length) = record_at(block, at)?;
        at = start + length;
        if at > end {
            return None;
        }
    }
    (at == end).then_some(())
}

/// Start and length of the record whose frame is at `at`.
pub(crate) fn record_at(block: &[u8], at: usize) -> Option<(usize, usize)> {
    let start = at.checked_add(FRAME_BYTES)?;
    let length = u32_at(block.get(..start)?, at) as usize;
    (start.checked_add(length)? <= block.len()).then_some((start, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: LogId = *b"0123456789abcdef";

    fn control() -> Control {
        Control { log_id: ID, segment_bytes: 1 << 20, sync: 1, caller: 2, depth: 4, direct: true }
    }

    fn header() -> SegmentHeader {
        let previous = End { segment: 6, offset: 8192, lsn: 41, lost_from: 0 };
        SegmentHeader { log_id: ID, number: 7, epoch: 3, bytes: 1 << 20, watermark: 40, previous }
    }

    fn block(payload: &[&[u8]]) -> (BlockHeader, Vec<u8>) {
        let length: usize = payload.iter().map(|record| FRAME_BYTES + record.len()).sum();
        let mut bytes = vec![0; block_bytes(length)];
        let mut at = BLOCK_HEADER_BYTES;
        for record in payload {
            put_record(&mut bytes[at..], record);
            at += FRAME_BYTES + record.len();
        }
        let header = BlockHeader {
            epoch: 3,
            offset: 4096,
            first_lsn: 42,
            watermark: 41,
            length: length as u32,
            records: payload.len() as u32,
            closed: false,
        };
        header.seal(&mut bytes, seed(&ID, 7, 3));
        (header, bytes)
    }

    #[test]
    fn control_survives_the_loss_of_either_copy() {
        let bytes = control().encode();
        assert_eq!(Control::decode(&bytes), Ok(control()));
        for copy in 0..2 {
            for at in 0..PAGE {
                let mut bytes = bytes.clone();
                bytes[copy * PAGE + at] ^= 0x40;
                assert_eq!(Control::decode(&bytes), Ok(control()), "copy {copy} byte {at}");
            }
        }
        assert_eq!(Control::decode(&bytes[..PAGE]), Ok(control()));
        assert_eq!(Control::decode(&bytes[..PAGE - 1]), Err(BadControl::Damaged));
    }

    #[test]
    fn a_later_version_is_named() {
        let mut bytes = control().encode();
        for page in bytes.chunks_exact_mut(PAGE) {
            page[12] = 9;
            let crc = crc32c::crc32c(&page[12..]);
            page[8..12].copy_from_slice(&crc.to_le_bytes());
        }
        assert_eq!(Control::decode(&bytes), Err(BadControl::Version(9)));
    }

    #[test]
    fn headers_know_whose_they_are() {
        let mut page = vec![0xee; PAGE];
        header().encode(&mut page);
        assert_eq!(SegmentHeader::decode(&page, &ID, 7), HeaderPage::Valid(header()));
        // The same file under a new name.
        assert_eq!(SegmentHeader::decode(&page, &ID, 8), HeaderPage::Unused);
        assert_eq!(SegmentHeader::decode(&page, b"another log's id", 7), HeaderPage::Bad);
        assert_eq!(SegmentHeader::decode(&[0; PAGE], &ID, 7), HeaderPage::Unused);
        assert_eq!(SegmentHeader::decode(&page[..100], &ID, 7), HeaderPage::Bad);
        for at in 0..PAGE {
            page[at] ^= 1;
            assert_eq!(SegmentHeader::decode(&page, &ID, 7), HeaderPage::Bad, "byte {at}");
            page[at] ^= 1;
        }
    }

    #[test]
    fn a_watermark_block_that_begins_a_segment_has_a_copy_of_its_header() {
        let previous = End { lost_from: 39, ..header().previous };
        assert_eq!((previous.last_there(), previous.lost()), (38, 39..42));
        let header = SegmentHeader { previous, ..header() };
        let mut page = vec![0; PAGE];
        let watermark_block =
            BlockHeader { epoch: 3, offset: 4096, first_lsn: 42, watermark: 41, length: 0, records: 0, closed: false };
        let seed = seed(&ID, 7, 3);
        watermark_block.seal(&mut page, seed);
        assert_eq!(SegmentHeader::decode_copy(&page, &ID, 7), None);
        header.put_copy(&mut page);
        assert!(BlockHeader::peek(&page, 4096).is_some_and(|found| found.is_whole(&page, seed)));
        assert_eq!(SegmentHeader::decode_copy(&page, &ID, 7), Some(header));
        assert_eq!(SegmentHeader::decode_copy(&page, &ID, 8), None);
        assert_eq!(SegmentHeader::decode_copy(&page[..PAGE - 1], &ID, 7), None);
        for at in COPY_AT..PAGE {
            page[at] ^= 1;
            assert_eq!(SegmentHeader::decode_copy(&page, &ID, 7), None, "byte {at}");
            page[at] ^= 1;
        }
    }

    /// Numbers, epochs and watermarks are counted on from: those that would overflow are refused.
    #[test]
    fn numbers_that_would_overflow_are_not_the_logs() {
        let mut page = vec![0; PAGE];
        let (good, previous) = (header(), header().previous);
        for bad in [
            SegmentHeader { number: u64::MAX, ..good },
            SegmentHeader { epoch: u64::MAX, ..good },
            SegmentHeader { watermark: 42, ..good },
            SegmentHeader { previous: End { lsn: u64::MAX - 1, ..previous }, ..good },
            SegmentHeader { previous: End { lost_from: 43, ..previous }, ..good },
        ] {
            bad.encode(&mut page);
            assert_eq!(SegmentHeader::decode(&page, &ID, bad.number), HeaderPage::Bad, "{bad:?}");
            assert_eq!(SegmentHeader::decode_unknown(&page, bad.number), None, "{bad:?}");
        }
        let (good, mut bytes) = block(&[b"a record"]);
        for bad in [
            BlockHeader { epoch: u64::MAX, ..good },
            BlockHeader { first_lsn: u64::MAX - 1, ..good },
            BlockHeader { watermark: 42, ..good },
        ] {
            bad.seal(&mut bytes, 0);
            assert_eq!(BlockHeader::peek(&bytes, 4096), None, "{bad:?}");
        }
    }

    #[test]
    fn a_checksum_beside_another_is_the_one_that_goes_over_the_bytes() {
        let bytes: Vec<u8> = (0..3 * PAGE).map(|at| (at * 31 / 7) as u8).collect();
        for (from, to) in [(0, 0), (1, 2), (100, 5000), (0, 3 * PAGE)] {
            let then = checksum(7, &bytes[..from]);
            let now = checksum(then, &bytes[from..to]);
            assert_eq!(checksum_beside(99, then, now, (to - from) as u64), checksum(99, &bytes[from..to]));
        }
    }

    #[test]
    fn a_block_counts_as_a_whole() {
        let (header, mut bytes) = block(&[b"first", b"", &[7; 5000]]);
        let seed_here = seed(&ID, 7, 3);
        assert_eq!(BlockHeader::peek(&bytes, 4096), Some(header));
        assert_eq!(bytes.len(), 8192);
        assert!(header.is_whole(&bytes, seed_here));
        for (segment, epoch) in [(8, 3), (7, 4)] {
            assert!(!header.is_whole(&bytes, seed(&ID, segment, epoch)));
        }
        assert_eq!(BlockHeader::peek(&bytes, 8192), None);
        for at in 0..BLOCK_HEADER_BYTES + header.length as usize {
            bytes[at] ^= 0x80;
            let found = BlockHeader::peek(&bytes, 4096);
            assert!(!found.is_some_and(|found| found.is_whole(&bytes, seed_here)), "byte {at}");
            bytes[at] ^= 0x80;
        }
        assert!(header.is_whole(&bytes, seed_here));
    }

    #[test]
    fn whatever_the_bytes_nothing_panics() {
        let (_, good) = block(&[b"a record", b"and another"]);
        let mut random = 1u64;
        let mut next = || {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) as usize
        };
        for _ in 0..20_000 {
            let mut bytes = good.clone();
            for _ in 0..1 + next() % 8 {
                let at = next() % 96;
                bytes[at] = next() as u8;
            }
            bytes.truncate(next() % (bytes.len() + 1));
            bytes.splice(..4.min(bytes.len()), BLOCK_MAGIC.iter().copied());
            if let Some(header) = BlockHeader::peek(&bytes, 4096) {
                let _ = header.padded_bytes();
                // As if the checksum were right.
                let _ = (header.is_whole(&bytes, 0), records(&bytes, &header));
            }
            let _ = SegmentHeader::decode(&bytes, &ID, next() as u64);
            let _ = Control::decode(&bytes);
        }
    }
}
