//! Counters and distributions of a log.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;

/// Counters of a log since it was opened.
#[non_exhaustive]
#[derive(Clone, Debug, Default)]
pub struct LogStats {
    /// Records in completed blocks.
    pub records: u64,
    /// Blocks written; each is one commit of the disk.
    pub blocks: u64,
    /// Bytes of the records, plus 4 for each.
    pub payload_bytes: u64,
    /// Bytes written, headers and padding included.
    pub written_bytes: u64,
    /// Changes to the next segment.
    pub rotations: u64,
    /// Appends that waited or were refused because the next segment was not ready.
    pub spares_missed: u64,
    /// Segments that are prepared.
    pub spares: usize,
    /// Watermark blocks written because the log had become idle.
    pub watermark_blocks: u64,
    /// Nanoseconds from the first append of a block to its submission.
    pub queued: Percentiles,
    /// Nanoseconds from the submission of a block to its completion.
    pub written: Percentiles,
    /// Nanoseconds from the end of a group to the wake-up of a thread that waited. By powers of
    /// two: each figure is less than twice the true one.
    pub woken: Percentiles,
    /// Records per block.
    pub batch: Percentiles,
    /// Blocks in flight at each submission, the new one included.
    pub in_flight: Percentiles,
}

/// Percentiles of a distribution: of times in nanoseconds, or of counts.
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

/// Histogram of times by powers of two, which many threads count in without a lock.
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

    /// Returns percentiles, each as the largest time that its power of two counts.
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
    written_bytes: u64,
    pub(crate) rotations: u64,
    pub(crate) spares_missed: u64,
    pub(crate) watermark_blocks: u64,
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
            watermark_blocks: 0,
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
            rotations: self.rotations,
            spares_missed: self.spares_missed,
            spares: 0,
            watermark_blocks: self.watermark_blocks,
            queued: of(&self.queued_ns),
            written: of(&self.written_ns),
            woken: Percentiles::default(),
            batch: of(&self.batch),
            in_flight: of(&self.in_flight),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
