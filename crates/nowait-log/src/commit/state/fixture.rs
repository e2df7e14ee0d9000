//! State of a log without files, for tests.

#[cfg(nowait_log_loom)]
use std::time::Duration;
use std::time::Instant;

#[cfg(nowait_log_loom)]
use super::Pipeline;
use super::{Rules, Start};
use crate::commit::Live;
use crate::dir::Segment;
use crate::format::{Control, Epochs, Measured, PAGE, SegmentHeader};

pub(crate) const SEGMENT_BYTES: u64 = 8 * PAGE as u64;

pub(crate) fn rules(depth: usize) -> Rules {
    Rules {
        log_id: *b"0123456789abcdef",
        segment_bytes: SEGMENT_BYTES,
        pending_bytes_max: 1 << 20,
        reserve_bytes: 0,
        recycle_bytes: 0,
        tail_bytes: 0,
        is_measured: false,
        depth,
        has_maintenance: true,
    }
}

#[cfg(nowait_log_loom)]
impl<F> Pipeline<F> {
    /// Behaves as if the last write had taken a millisecond and had served `tasks` tasks.
    pub(crate) fn expect_tasks(&mut self, tasks: u32) {
        (self.waiters, self.tasks) = (tasks, tasks);
        self.gathers.wrote(Duration::from_millis(1));
    }
}

/// The first segment of a new log, whose header is not written.
pub(crate) fn start() -> Start<()> {
    let header = SegmentHeader {
        log_id: *b"0123456789abcdef",
        number: 1,
        epoch: 1,
        bytes: SEGMENT_BYTES,
        oldest: 1,
        ..SegmentHeader::default()
    };
    let segments = vec![Segment { header, end: u64::MAX, last_lsn: u64::MAX, time_ms: 0 }];
    let recorded = Control {
        log_id: *b"0123456789abcdef",
        segment_bytes: SEGMENT_BYTES,
        sync: 1,
        caller: 2,
        depth: 1,
        direct: true,
        oldest: 1,
        newest: 1,
        measured: Measured::default(),
        head: 0,
        watermark: 0,
        epochs: Epochs::default(),
    };
    let mut epochs = Epochs::default();
    epochs.begin(1, 0);
    Start {
        epoch: 1,
        current: Live::new(1, SEGMENT_BYTES, ()),
        segments,
        recorded,
        epochs,
        ages: Vec::new(),
        now: Instant::now(),
    }
}
