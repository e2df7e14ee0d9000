//! Parameters of a log, and the reasons why an append finds no room.

use crate::format::{BLOCK_HEADER_BYTES, FRAME_BYTES, LogId, PAGE, block_bytes};
use nowait::Error;

/// Parameters that stay the same while a log is open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) log_id: LogId,
    /// Size of the largest segment; the first one of each opening is smaller.
    pub(crate) segment_bytes: u64,
    /// Most bytes that are appended and not durable.
    pub(crate) pending_bytes_max: u64,
    /// Room reserved for appends from the reserve if no more space is available.
    pub(crate) reserve_bytes: u64,
    /// Most bytes of durable blocks that are kept for readers.
    pub(crate) tail_bytes: u64,
    /// Most blocks in flight.
    pub(crate) depth: usize,
    /// Most bytes of segments that are no longer needed and kept to be used again.
    pub(crate) recycle_bytes: u64,
    /// The strategy may be measured again.
    pub(crate) is_measured: bool,
    /// A maintenance thread prepares segments.
    pub(crate) has_maintenance: bool,
}

/// End of the part of a segment of `bytes` that is for records. The last page is for the watermark
/// block that closes the log: it must not need another segment, which the disk may have no room for.
pub(crate) fn usable_end(bytes: u64) -> u64 {
    bytes - PAGE as u64
}

/// Size of a segment that has room for `payload` beside its header and the page kept for the last
/// watermark block.
pub(crate) fn bytes_for(payload: usize) -> u64 {
    2 * PAGE as u64 + block_bytes(payload) as u64
}

impl Rules {
    /// True if `payload` fits into the largest segment.
    pub(crate) fn fits_segment(&self, payload: usize) -> bool {
        payload <= self.payload_max()
    }

    fn payload_max(&self) -> usize {
        (self.segment_bytes as usize - 2 * PAGE - BLOCK_HEADER_BYTES).min(u32::MAX as usize / 2)
    }

    /// Size of the largest record that fits.
    pub(crate) fn record_bytes_max(&self) -> usize {
        self.payload_max() - FRAME_BYTES
    }
}

/// Reason why an append has to wait (`Budget`, `NoSpare`) or is refused.
pub(crate) enum NoRoom<E> {
    /// `pending_bytes_max` bytes wait to become durable.
    Budget,
    /// The next segment is not ready.
    NoSpare,
    Refused(E),
}

/// Reason why an append is refused.
pub(crate) enum Refusal {
    Poisoned(Error),
    Closed,
    /// No segment can be prepared; `left` bytes of room are left.
    NoSpace {
        left: u64,
        /// The rest is reserved, and not for this append.
        is_reserved: bool,
        cause: Error,
    },
    NoMemory,
}
