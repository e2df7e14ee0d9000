//! Parameters of a log, and the reasons why an append has to wait or is refused.

use crate::format::{BLOCK_HEADER_BYTES, FRAME_BYTES, LogId, PAGE, block_bytes};
use nowait::Error;

/// Parameters that stay the same while a log is open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) log_id: LogId,
    /// Maximum segment size; the first segments of each opening are smaller.
    pub(crate) segment_bytes: u64,
    /// Maximum of bytes appended and not yet durable.
    pub(crate) pending_bytes_max: u64,
    /// Bytes of prepared segments reserved for appends from the reserve.
    pub(crate) reserve_bytes: u64,
    /// Maximum bytes of durable blocks kept for readers.
    pub(crate) tail_bytes: u64,
    /// Maximum number of blocks in flight.
    pub(crate) depth: usize,
    /// Maximum bytes of retired segments kept for reuse.
    pub(crate) recycle_bytes: u64,
    /// The strategy may be measured again.
    pub(crate) is_measured: bool,
    /// A maintenance thread prepares segments.
    pub(crate) has_maintenance: bool,
}

/// End of the part for records in a segment of `bytes`. The last page is reserved for the watermark
/// block that closes the log: that block must not need another segment, since the disk may be full.
pub(crate) fn usable_end(bytes: u64) -> u64 {
    bytes - PAGE as u64
}

/// Size of a segment for `payload` bytes, its header, and the page of the last watermark block.
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
    /// `pending_bytes_max` bytes are pending.
    Budget,
    /// The next segment is not ready.
    NoSpare,
    Refused(E),
}

/// Reason why an append is refused.
pub(crate) enum Refusal {
    Poisoned(Error),
    Closed,
    /// No segment can be prepared; `left` bytes remain.
    NoSpace {
        left: u64,
        /// The remaining bytes are reserved, and this append may not use the reserve.
        is_reserved: bool,
        cause: Error,
    },
    NoMemory,
}
