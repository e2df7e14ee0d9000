//! A block: records that become durable together, in the buffer that is written.

use std::sync::{Arc, Weak};
use std::time::Instant;

use super::group::Group;
use crate::format::{
    self, BLOCK_BYTES_MAX, BLOCK_HEADER_BYTES, BlockHeader, Entry, FRAME_BYTES, LogId, PAGE, SegmentHeader,
    block_bytes, put_record,
};
use nowait::Buf;

/// Bytes of records in a block, unless a single batch is larger.
const BLOCK_PAYLOAD_MAX: usize = BLOCK_BYTES_MAX - BLOCK_HEADER_BYTES;

/// A segment that is written, or will be.
#[derive(Clone, Debug)]
pub(crate) struct Live<F> {
    pub(crate) number: u64,
    /// Size of this segment.
    pub(crate) bytes: u64,
    pub(crate) file: F,
    /// Shared by all blocks of the segment: while one of them is out, the file is neither used for
    /// another segment nor removed.
    in_use: Arc<()>,
}

impl<F> Live<F> {
    pub(crate) fn new(number: u64, bytes: u64, file: F) -> Live<F> {
        Live { number, bytes, file, in_use: Arc::default() }
    }

    /// Tells whether a block of the segment is out, without keeping the file open.
    pub(crate) fn uses(&self) -> Weak<()> {
        Arc::downgrade(&self.in_use)
    }

    /// Exchanges the file for another one of the same segment.
    pub(crate) fn exchange_file(&mut self, file: F) -> F {
        std::mem::replace(&mut self.file, file)
    }

    /// Gives the file up: it no longer counts as in use.
    pub(crate) fn into_file(self) -> F {
        self.file
    }
}

pub(crate) struct Block<F> {
    pub(crate) live: Live<F>,
    /// Header of the segment, in its first block.
    pub(crate) header: Option<SegmentHeader>,
    /// Offset in the segment: of the header if there is one.
    pub(crate) offset: u64,
    buffer: Buf,
    pub(crate) payload: usize,
    pub(crate) first_lsn: u64,
    pub(crate) records: u32,
    /// Written even without records, for its watermark.
    is_watermark: bool,
    /// The last block of the log: it leaves when all before it is durable, so that its watermark
    /// covers every record.
    pub(crate) is_last: bool,
    /// States that the log was closed.
    is_closed: bool,
    pub(crate) group: Arc<Group>,
    pub(crate) opened: Instant,
}

/// A block as it is written. Its bytes do not change any more, and are shared: another thread may
/// write them again.
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
        now: Instant,
    ) -> Block<F> {
        Block {
            live,
            header,
            offset,
            buffer: Buf::default(),
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

    /// True if the block is to be written.
    pub(crate) fn is_wanted(&self) -> bool {
        self.records > 0 || self.is_watermark
    }

    pub(crate) fn last_lsn(&self) -> u64 {
        (self.first_lsn + u64::from(self.records)).saturating_sub(1)
    }

    /// True if `payload` more bytes fit, in a segment that may be used up to `end`.
    pub(crate) fn fits(&self, payload: usize, end: u64) -> bool {
        let all = self.payload + payload;
        (all <= BLOCK_PAYLOAD_MAX || self.payload == 0) && self.offset + (self.base() + block_bytes(all)) as u64 <= end
    }

    /// Copies all of `records` into the block, or none of them; None without memory.
    pub(crate) fn put(&mut self, records: &[Entry<'_>]) -> Option<()> {
        let before = (self.payload, self.records);
        for record in records {
            if self.put_one(*record).is_none() {
                (self.payload, self.records) = before;
                return None;
            }
        }
        Some(())
    }

    fn put_one(&mut self, record: Entry<'_>) -> Option<()> {
        let at = self.base() + BLOCK_HEADER_BYTES + self.payload;
        let end = at + FRAME_BYTES + record.bytes.len();
        self.make_room(end)?;
        put_record(&mut self.buffer[at..end], record);
        self.payload += FRAME_BYTES + record.bytes.len();
        self.records += 1;
        Some(())
    }

    fn make_room(&mut self, bytes: usize) -> Option<()> {
        if bytes > self.buffer.len() {
            let mut larger = Buf::uncleared(bytes.next_power_of_two().max(PAGE))?;
            let used = self.base() + BLOCK_HEADER_BYTES + self.payload;
            let used = used.min(self.buffer.len());
            larger[..used].copy_from_slice(&self.buffer[..used]);
            self.buffer = larger;
        }
        Some(())
    }

    /// Makes this a watermark block; None without memory.
    pub(crate) fn make_watermark(&mut self, is_last: bool, is_closed: bool) -> Option<()> {
        self.make_room(self.bytes())?;
        (self.is_watermark, self.is_last, self.is_closed) = (true, is_last, is_closed);
        Some(())
    }

    /// Puts headers and checksums in place: the records' too, by the thread that writes the block,
    /// with nothing locked.
    pub(crate) fn seal(mut self, log_id: &LogId, epoch: u64, watermark: u64) -> Sealed<F> {
        let (base, bytes) = (self.base(), self.bytes());
        let segment = self.header.map(|header| SegmentHeader { watermark, ..header });
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
