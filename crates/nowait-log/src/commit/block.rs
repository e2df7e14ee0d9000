//! A block: records that become durable together, in one write buffer.

use std::sync::{Arc, Weak};
use std::time::Instant;

use super::group::Group;
use crate::format::{
    self, BLOCK_BYTES_MAX, BLOCK_HEADER_BYTES, BlockHeader, Entry, FRAME_BYTES, LogId, PAGE, SegmentHeader,
    block_bytes, put_frame,
};
use nowait::Buf;

/// Bytes of records in a block, unless a single batch is larger.
const BLOCK_PAYLOAD_MAX: usize = BLOCK_BYTES_MAX - BLOCK_HEADER_BYTES;

/// A segment that is being written, or is ready to be.
#[derive(Clone, Debug)]
pub(crate) struct Live<F> {
    pub(crate) number: u64,
    /// Size of this segment.
    pub(crate) bytes: u64,
    pub(crate) file: F,
    /// Shared by all blocks of the segment: while one of them is in use, the file is neither reused
    /// for another segment nor removed.
    in_use: Arc<()>,
}

impl<F> Live<F> {
    pub(crate) fn new(number: u64, bytes: u64, file: F) -> Live<F> {
        Live { number, bytes, file, in_use: Arc::default() }
    }

    /// Returns a reference that is alive while a block of the segment is in use. It does not keep
    /// the file open.
    pub(crate) fn uses(&self) -> Weak<()> {
        Arc::downgrade(&self.in_use)
    }

    /// Exchanges the file for another one of the same segment.
    pub(crate) fn exchange_file(&mut self, file: F) -> F {
        std::mem::replace(&mut self.file, file)
    }

    /// Releases the file, which this no longer marks as in use.
    pub(crate) fn into_file(self) -> F {
        self.file
    }
}

pub(crate) struct Block<F> {
    pub(crate) live: Live<F>,
    /// Header of the segment, in its first block.
    pub(crate) header: Option<SegmentHeader>,
    /// Offset of the block in the segment; if `header` is set, that of the header.
    pub(crate) offset: u64,
    buffer: Buf,
    /// Minimum size of the buffer, once there is one. A buffer that grows is copied, while appends
    /// wait.
    expected: usize,
    /// Records not copied into the buffer yet, each with its offset in the buffer.
    given: Vec<(usize, Vec<u8>)>,
    pub(crate) payload: usize,
    pub(crate) first_lsn: u64,
    pub(crate) records: u32,
    /// Written even without records, for its watermark.
    is_watermark: bool,
    /// The last block of the log. It is submitted when all earlier blocks are durable, so that its
    /// watermark covers every record.
    pub(crate) is_last: bool,
    /// The block states that the log was closed.
    is_closed: bool,
    pub(crate) group: Arc<Group>,
    pub(crate) opened: Instant,
}

/// Records of one append: all are in one block, or none is.
pub(crate) enum Incoming<'a> {
    /// Copied into the block at once.
    Copied(&'a [Entry<'a>]),
    /// One record, whose memory moves into the block. It is copied when the block is sealed, with
    /// no lock held.
    Given { kind: u8, bytes: &'a mut Vec<u8> },
}

impl Incoming<'_> {
    pub(crate) fn records(&self) -> usize {
        match self {
            Incoming::Copied(records) => records.len(),
            Incoming::Given { .. } => 1,
        }
    }

    /// Bytes of the records, frames included.
    pub(crate) fn payload(&self) -> usize {
        match self {
            Incoming::Copied(records) => records.iter().map(|record| FRAME_BYTES + record.bytes.len()).sum(),
            Incoming::Given { bytes, .. } => FRAME_BYTES + bytes.len(),
        }
    }
}

/// Times in a block's header, in milliseconds since 1970 by the wall clock.
#[derive(Clone, Copy, Default)]
pub(crate) struct Times {
    /// Time when the block was made.
    pub(crate) time_ms: u64,
    /// Time when the last earlier block with records was made; 0 if that is not known.
    pub(crate) previous_time_ms: u64,
}

/// A block whose bytes are final. They are shared, since another thread may write them again.
pub(crate) struct Sealed<F> {
    pub(crate) live: Live<F>,
    pub(crate) bytes: Arc<Buf>,
    pub(crate) offset: u64,
}

impl<F> Block<F> {
    pub(crate) fn new(
        live: Live<F>,
        header: Option<SegmentHeader>,
        offset: u64,
        first_lsn: u64,
        expected: usize,
        now: Instant,
    ) -> Block<F> {
        Block {
            live,
            header,
            offset,
            buffer: Buf::default(),
            expected: expected.min(BLOCK_BYTES_MAX),
            given: Vec::new(),
            payload: 0,
            first_lsn,
            records: 0,
            is_watermark: false,
            is_last: false,
            is_closed: false,
            group: Group::new(),
            opened: now,
        }
    }

    /// Offset of the block in its buffer.
    pub(crate) fn base(&self) -> usize {
        if self.header.is_some() { PAGE } else { 0 }
    }

    /// Bytes on disk.
    pub(crate) fn bytes(&self) -> usize {
        self.base() + block_bytes(self.payload)
    }

    /// True if the block must be written.
    pub(crate) fn is_wanted(&self) -> bool {
        self.records > 0 || self.is_watermark
    }

    pub(crate) fn last_lsn(&self) -> u64 {
        (self.first_lsn + u64::from(self.records)).saturating_sub(1)
    }

    /// True if `payload` more bytes fit into the block, in a segment whose usable part ends at
    /// `end`.
    pub(crate) fn fits(&self, payload: usize, end: u64) -> bool {
        let all = self.payload + payload;
        (all <= BLOCK_PAYLOAD_MAX || self.payload == 0) && self.offset + (self.base() + block_bytes(all)) as u64 <= end
    }

    /// Adds all of `records` to the block, or none of them. None if memory is short.
    pub(crate) fn put(&mut self, records: &mut Incoming<'_>) -> Option<()> {
        let end = self.base() + BLOCK_HEADER_BYTES + self.payload + records.payload();
        self.make_room(end)?;
        match records {
            Incoming::Copied(records) => {
                for record in *records {
                    let start = self.put_frame(record.kind, record.bytes.len());
                    self.buffer[start..start + record.bytes.len()].copy_from_slice(record.bytes);
                }
            }
            Incoming::Given { kind, bytes } => {
                self.given.try_reserve(1).ok()?;
                let start = self.put_frame(*kind, bytes.len());
                self.given.push((start, std::mem::take(bytes)));
            }
        }
        Some(())
    }

    /// Adds a record without its bytes; the caller has checked the room. Returns the offset for the
    /// bytes.
    fn put_frame(&mut self, kind: u8, length: usize) -> usize {
        let at = self.base() + BLOCK_HEADER_BYTES + self.payload;
        let start = at + FRAME_BYTES;
        put_frame(&mut self.buffer[at..start], kind, length);
        self.payload += FRAME_BYTES + length;
        self.records += 1;
        start
    }

    fn make_room(&mut self, bytes: usize) -> Option<()> {
        if bytes > self.buffer.len() {
            let of = |bytes: usize| Buf::uncleared(bytes.next_power_of_two().max(PAGE));
            let mut larger = of(bytes.max(self.expected)).or_else(|| of(bytes))?;
            let used = self.base() + BLOCK_HEADER_BYTES + self.payload;
            let used = used.min(self.buffer.len());
            larger[..used].copy_from_slice(&self.buffer[..used]);
            self.buffer = larger;
        }
        Some(())
    }

    /// Makes this a watermark block. None if memory is short.
    pub(crate) fn make_watermark(&mut self, is_last: bool, is_closed: bool) -> Option<()> {
        self.make_room(self.bytes())?;
        (self.is_watermark, self.is_last, self.is_closed) = (true, is_last, is_closed);
        Some(())
    }

    /// Copies the records in `given` into the buffer, and writes headers and checksums. The thread
    /// that writes the block calls it, with no lock held.
    pub(crate) fn seal(mut self, log_id: &LogId, epoch: u64, watermark: u64, times: Times) -> Sealed<F> {
        let (base, bytes) = (self.base(), self.bytes());
        for (start, record) in std::mem::take(&mut self.given) {
            self.buffer[start..start + record.len()].copy_from_slice(&record);
        }
        let Times { time_ms, previous_time_ms } = times;
        let segment = self.header.map(|header| SegmentHeader { watermark, time_ms, previous_time_ms, ..header });
        if let Some(segment) = segment {
            segment.encode(&mut self.buffer[..PAGE]);
        }
        let header = BlockHeader {
            epoch,
            offset: self.offset + base as u64,
            first_lsn: self.first_lsn,
            watermark,
            length: self.payload as u32,
            records: self.records,
            closed: self.is_closed,
            time_ms,
        };
        self.buffer[base + BLOCK_HEADER_BYTES + self.payload..bytes].fill(0);
        let records = base + BLOCK_HEADER_BYTES;
        let records = &self.buffer[records..records + self.payload];
        header.seal(records, format::seed(log_id, self.live.number, epoch)).put(&mut self.buffer[base..bytes]);
        if let (Some(segment), 0) = (segment, self.payload) {
            segment.put_copy(&mut self.buffer[base..bytes]);
        }
        self.buffer.truncate(bytes);
        let bytes = Arc::new(self.buffer);
        self.group.set_sealed(bytes.clone());
        Sealed { live: self.live, bytes, offset: self.offset }
    }
}

#[cfg(all(test, not(nowait_log_loom)))]
mod tests {
    use super::*;

    /// A block of given records has the same bytes as one of copied records: mixed with copied
    /// records, in a buffer that grows, and in a segment's first block. Given memory is not copied
    /// before the block is sealed.
    #[test]
    fn a_record_that_is_given_is_copied_when_the_block_is_sealed() {
        let header = crate::commit::state::fixture::start().segments[0].header;
        let now = Instant::now();
        for header in [None, Some(header)] {
            let block = || Block::new(Live::new(1, 1 << 20, ()), header, 0, 1, 0, now);
            let (mut given, mut copied) = (block(), block());
            for (kind, length) in [(0, 10), (1, 3 * PAGE), (2, 0), (3, 1), (4, 40 * PAGE)] {
                let record = vec![kind + 1; length];
                let one = [Entry { kind, bytes: &record }];
                copied.put(&mut Incoming::Copied(&one)).unwrap();
                if kind % 2 == 0 {
                    given.put(&mut Incoming::Copied(&one)).unwrap();
                    continue;
                }
                let mut memory = record.clone();
                let at = memory.as_ptr();
                given.put(&mut Incoming::Given { kind, bytes: &mut memory }).unwrap();
                assert!(memory.is_empty(), "the block has its own copy");
                let (_, taken) = given.given.last().unwrap();
                assert!(taken.as_ptr() == at && *taken == record);
            }
            assert_eq!((given.bytes(), given.last_lsn()), (copied.bytes(), 5));
            let [given, copied] = [given, copied].map(|block| block.seal(b"0123456789abcdef", 1, 0, Times::default()));
            assert!(given.bytes[..] == copied.bytes[..], "with a header: {}", header.is_some());
        }
    }
}
