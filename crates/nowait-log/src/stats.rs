//! Counters and distributions of a log.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::options::Calibration;

/// Counters of a log since it was opened.
#[non_exhaustive]
#[derive(Clone, Debug, Default)]
pub struct LogStats {
    /// Records in completed blocks.
    pub records: u64,
    /// Blocks written; each is one group commit.
    pub blocks: u64,
    /// Bytes of the records and of their frames, 9 bytes per record.
    pub payload_bytes: u64,
    /// Bytes written in blocks, including headers and padding.
    pub written_bytes: u64,
    /// Bytes of headers and padding in blocks.
    pub padding_bytes: u64,
    /// Zero bytes written to segments before use.
    pub zeroed_bytes: u64,
    /// Bytes of records appended and not yet durable.
    pub pending_bytes: u64,
    /// Records appended and not yet durable.
    pub pending_records: u64,
    /// Blocks that were written twice because their first write took too long, and whose second
    /// write completed first.
    pub rescues: u64,
    /// Blocks whose write is now in flight.
    pub blocks_in_flight: usize,
    /// Appends that waited for room, whether a thread blocked or a future was pending.
    pub stalls: u64,
    /// Total time that these appends waited.
    pub stalled: Duration,
    /// Switches to the next segment.
    pub rotations: u64,
    /// Appends that waited or were refused because the next segment was not ready, or too small.
    pub spares_missed: u64,
    /// Prepared segments.
    pub spares: usize,
    /// Segments that contain the log.
    pub segments: usize,
    /// Segments that are no longer needed and are kept for reuse.
    pub segments_kept: usize,
    /// New segments prepared.
    pub segments_prepared: u64,
    /// Segments prepared by reuse of old ones.
    pub segments_recycled: u64,
    /// Segments removed.
    pub segments_removed: u64,
    /// Steps of the wall clock that retention by age ignored when the log was opened; see
    /// [`Event::ClockDoubted`](crate::Event::ClockDoubted).
    pub clock_doubts: u64,
    /// Watermark blocks written because the log had become idle.
    pub watermark_blocks: u64,
    /// Measurement by which the strategy was chosen; `None` for a fixed strategy.
    pub calibration: Option<Calibration>,
    /// Nanoseconds from the first append of a block to its submission.
    pub queued: Percentiles,
    /// Nanoseconds from the submission of a block to its completion.
    pub written: Percentiles,
    /// Histogram of the times in `written`: pairs of an upper bound in nanoseconds, and the number
    /// of blocks in that bucket. The first bound is 1 µs; each further one is twice its
    /// predecessor.
    pub written_buckets: Vec<(u64, u64)>,
    /// Nanoseconds from the end of a group commit to the wake-up of a waiting thread. The buckets
    /// are powers of two, so a figure is less than twice the true value.
    pub woken: Percentiles,
    /// Records per block.
    pub batch: Percentiles,
    /// Blocks in flight at each submission, including the new one.
    pub in_flight: Percentiles,
}

/// Appends that waited for room, counted without a lock.
#[derive(Default)]
pub(crate) struct Stalls {
    count: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Stalls {
    pub(crate) fn record(&self, time: Duration) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn time(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed))
    }
}

/// Percentiles of a distribution of times in nanoseconds, or of counts.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Percentiles {
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// Maximum.
    pub max: u64,
}

/// Histogram of times by powers of two, to which threads add without a lock.
pub(crate) struct Powers([AtomicU64; 64]);

impl Default for Powers {
    fn default() -> Self {
        Powers([const { AtomicU64::new(0) }; 64])
    }
}

impl Powers {
    pub(crate) fn record(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1);
        self.0[nanoseconds.ilog2() as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns percentiles, each as the upper bound of its bucket.
    pub(crate) fn percentiles(&self) -> Percentiles {
        let counts = self.0.each_ref().map(|count| count.load(Ordering::Relaxed));
        let all: u64 = counts.iter().sum();
        let within = |thousandths: u64| {
            let mut left = (all * thousandths).div_ceil(1000);
            let power = counts.iter().position(|count| {
                left = left.saturating_sub(*count);
                left == 0
            });
            power.filter(|_| all > 0).map_or(0, |power| u64::MAX >> (63 - power))
        };
        Percentiles { p50: within(500), p99: within(990), p999: within(999), max: within(1000) }
    }
}

pub(crate) struct Numbers {
    records: u64,
    blocks: u64,
    payload_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) rotations: u64,
    pub(crate) spares_missed: u64,
    pub(crate) rescues: u64,
    pub(crate) watermark_blocks: u64,
    pub(crate) zeroed_bytes: u64,
    pub(crate) segments_prepared: u64,
    pub(crate) segments_recycled: u64,
    pub(crate) segments_removed: u64,
    pub(crate) clock_doubts: u64,
    queued_ns: Histogram<u32>,
    written_ns: Histogram<u32>,
    batch: Histogram<u32>,
    in_flight: Histogram<u32>,
}

impl Default for Numbers {
    fn default() -> Self {
        // Two significant digits up to a minute: 14 KiB.
        let histogram = || Histogram::new_with_max(60_000_000_000, 2).expect("bounds that the crate takes");
        Numbers {
            records: 0,
            blocks: 0,
            payload_bytes: 0,
            written_bytes: 0,
            rotations: 0,
            spares_missed: 0,
            rescues: 0,
            watermark_blocks: 0,
            zeroed_bytes: 0,
            segments_prepared: 0,
            segments_recycled: 0,
            segments_removed: 0,
            clock_doubts: 0,
            queued_ns: histogram(),
            written_ns: histogram(),
            batch: histogram(),
            in_flight: histogram(),
        }
    }
}

impl Numbers {
    pub(crate) fn submitted(&mut self, in_flight: usize) {
        self.in_flight.saturating_record(in_flight as u64);
    }

    pub(crate) fn completed(&mut self, queued: Duration, written: Duration, records: u32, payload: usize, bytes: u64) {
        self.blocks += 1;
        self.written_bytes += bytes;
        self.payload_bytes += payload as u64;
        self.records += u64::from(records);
        if records > 0 {
            self.queued_ns.saturating_record(queued.as_nanos() as u64);
            self.batch.saturating_record(records.into());
        }
        self.written_ns.saturating_record(written.as_nanos() as u64);
    }

    pub(crate) fn stats(&self) -> LogStats {
        let of = |histogram: &Histogram<u32>| Percentiles {
            p50: histogram.value_at_quantile(0.5),
            p99: histogram.value_at_quantile(0.99),
            p999: histogram.value_at_quantile(0.999),
            max: histogram.max(),
        };
        LogStats {
            records: self.records,
            blocks: self.blocks,
            payload_bytes: self.payload_bytes,
            written_bytes: self.written_bytes,
            padding_bytes: self.written_bytes.saturating_sub(self.payload_bytes),
            zeroed_bytes: self.zeroed_bytes,
            segments_prepared: self.segments_prepared,
            segments_recycled: self.segments_recycled,
            segments_removed: self.segments_removed,
            clock_doubts: self.clock_doubts,
            written_buckets: buckets(&self.written_ns),
            rotations: self.rotations,
            spares_missed: self.spares_missed,
            rescues: self.rescues,
            watermark_blocks: self.watermark_blocks,
            queued: of(&self.queued_ns),
            written: of(&self.written_ns),
            batch: of(&self.batch),
            in_flight: of(&self.in_flight),
            ..LogStats::default()
        }
    }
}

fn buckets(histogram: &Histogram<u32>) -> Vec<(u64, u64)> {
    let steps = histogram.iter_log(1000, 2.0);
    steps.map(|step| (step.value_iterated_to(), step.count_since_last_iteration())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_all_that_was_counted() {
        let mut numbers = Numbers::default();
        for time in [1, 900, 30_000, 31_000, 2_000_000] {
            numbers.completed(Duration::ZERO, Duration::from_nanos(time), 1, 10, 4096);
        }
        let stats = numbers.stats();
        let counted = |range: std::ops::Range<u64>| -> u64 {
            let inside = stats.written_buckets.iter().filter(|(bound, _)| range.contains(bound));
            inside.map(|(_, count)| count).sum()
        };
        assert_eq!((counted(0..1100), counted(31_000..70_000), counted(0..u64::MAX)), (2, 2, 5));
        assert_eq!(stats.padding_bytes, 5 * 4086);
    }

    #[test]
    fn powers_of_two_are_counted() {
        let powers = Powers::default();
        assert_eq!(powers.percentiles(), Percentiles::default());
        (0..98).for_each(|_| powers.record(Duration::from_nanos(1000)));
        powers.record(Duration::ZERO);
        powers.record(Duration::from_nanos(5000));
        assert_eq!(powers.percentiles(), Percentiles { p50: 1023, p99: 1023, p999: 8191, max: 8191 });
    }
}
