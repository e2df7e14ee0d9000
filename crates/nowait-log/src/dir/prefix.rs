//! Retention by age and bytes, and removal of the oldest segments of a log that is not open.

use std::time::Duration;

use super::{LogDir, Segment};
use crate::format::Control;
use nowait::Result;

/// Largest step between two successive times of a log. A larger step shows that the clock was set.
const STEP_MAX_MS: u64 = 366 * 86_400_000;

/// Time since the last record of each segment, from the times in its blocks.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Ages {
    /// Numbers of segments, and the age of each.
    pub(crate) segments: Vec<(u64, Duration)>,
    /// Number of steps between successive times, or to now, that show that the clock was set. They
    /// count as zero.
    pub(crate) doubts: u64,
}

impl Ages {
    /// Returns the ages of segments, oldest first, at `now_ms` by the wall clock. An age is the
    /// time from the segment's last record until now, but at most the sum of the steps between
    /// them. So setting the clock, now or earlier, makes no record older.
    pub(crate) fn of(segments: &[Segment], now_ms: u64) -> Ages {
        let mut ages = Ages::default();
        let (mut later_ms, mut steps_ms) = (now_ms, 0_u64);
        for segment in segments.iter().rev() {
            // A segment of unknown time gets the age of the next segment.
            if segment.time_ms > 0 {
                match later_ms.checked_sub(segment.time_ms).filter(|step_ms| *step_ms <= STEP_MAX_MS) {
                    Some(step_ms) => steps_ms = steps_ms.saturating_add(step_ms),
                    None => ages.doubts += 1,
                }
                later_ms = segment.time_ms;
            }
            let age_ms = now_ms.saturating_sub(later_ms).min(steps_ms);
            ages.segments.insert(0, (segment.header.number, Duration::from_millis(age_ms)));
        }
        ages
    }

    /// Returns the first record of the oldest segment that is younger than `age`, or of unknown
    /// age.
    pub(crate) fn lsn_by_age(&self, segments: &[Segment], age: Duration) -> u64 {
        let is_old = |number: u64| self.segments.iter().any(|(known, known_age)| *known == number && *known_age >= age);
        let kept = segments.iter().find(|segment| !is_old(segment.header.number));
        kept.map_or(u64::MAX, |oldest| oldest.header.first_lsn())
    }
}

/// Returns the first record of the segments that hold the last `bytes` of blocks. The segment after
/// `segments` contains `newest` bytes of them.
pub(crate) fn lsn_by_bytes(segments: &[Segment], newest: u64, bytes: u64) -> Option<u64> {
    let mut kept = newest;
    let needed = segments.iter().rev().take_while(|segment| {
        let is_needed = kept < bytes;
        kept = kept.saturating_add(segment.end);
        is_needed
    });
    needed.last().map(|oldest| oldest.header.first_lsn())
}

impl LogDir {
    /// Removes segments that contain only records before `lsn`, but never the last one with
    /// records. The log must be locked and not open. Needs no free space. Returns false if there is
    /// no such segment.
    pub(crate) fn give_up_before(&self, lsn: u64, control: &mut Control, chain: &mut Vec<Segment>) -> Result<bool> {
        let last = chain.iter().rposition(|segment| !segment.is_empty()).unwrap_or(0);
        let starts = chain.iter().skip(1).take(last);
        let count = starts.take_while(|next| next.header.first_lsn() <= lsn).count();
        let Some(oldest) = chain.get(count).filter(|_| count > 0) else { return Ok(false) };
        let (oldest, epoch) = (oldest.header.number, oldest.header.epoch);
        let mut given_up = Control { oldest, newest: control.newest.max(oldest), ..control.clone() };
        given_up.epochs.forget_before(epoch);
        // The control file first: recovery treats a missing segment after the recorded oldest one
        // as damage.
        self.write_control(&given_up)?;
        *control = given_up;
        for gone in chain.drain(..count) {
            self.remove(gone.header.number)?;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::SegmentHeader;

    const DAY: u64 = 86_400_000;
    const NOW: u64 = 1_800_000_000_000;

    /// Returns ages in days, and doubts, of segments with these times.
    fn ages(times_ms: &[u64], now_ms: u64) -> (Vec<u64>, u64) {
        let segments = times_ms.iter().map(|time_ms| Segment {
            header: SegmentHeader::default(),
            end: 0,
            last_lsn: 0,
            time_ms: *time_ms,
        });
        let Ages { segments, doubts } = Ages::of(&segments.collect::<Vec<_>>(), now_ms);
        (segments.iter().map(|(_, age)| age.as_millis() as u64 / DAY).collect(), doubts)
    }

    #[test]
    fn a_clock_that_is_set_makes_no_record_older() {
        let days_ago = |days: u64| NOW - days * DAY;
        assert_eq!(ages(&[days_ago(9), days_ago(5), days_ago(1)], NOW), (vec![9, 5, 1], 0));
        assert_eq!(ages(&[days_ago(9), 0, days_ago(1), 0], NOW), (vec![9, 1, 1, 0], 0), "unknown");
        // Records with times in 1970: the clock was not set yet.
        assert_eq!(ages(&[DAY, 3 * DAY, days_ago(1)], NOW), (vec![3, 1, 1], 1));
        assert_eq!(ages(&[DAY, 3 * DAY], NOW), (vec![2, 0], 1));
        // The clock is now at 1970, or years ahead.
        assert_eq!(ages(&[days_ago(9), days_ago(5)], DAY), (vec![0, 0], 1));
        assert_eq!(ages(&[days_ago(9), days_ago(5)], NOW + 9000 * DAY), (vec![4, 0], 1));
        // The clock was ahead for a while.
        assert_eq!(ages(&[days_ago(9), NOW + 300 * DAY, days_ago(5)], NOW), (vec![9, 0, 5], 1));
        assert_eq!(ages(&[days_ago(9), NOW + 900 * DAY, days_ago(5)], NOW), (vec![5, 0, 5], 2));
        assert_eq!(ages(&[], NOW), (vec![], 0));
    }
}
