//! The beginning of a log: what it still needs, and giving up the rest of one that is not open.

use std::time::Duration;

use super::{LogDir, Segment};
use crate::format::Control;
use nowait::Result;

/// Most by which the wall clock may advance from one time of a log to the next: more is a clock
/// that was set.
const STEP_MAX_MS: u64 = 366 * 86_400_000;

/// Times since the last records of segments, by the times that these state.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Ages {
    /// Numbers of segments, and the age of each.
    pub(crate) segments: Vec<(u64, Duration)>,
    /// Steps from one time to the next, or to now, that are of a clock that was set: they count as
    /// nothing.
    pub(crate) doubts: u64,
}

impl Ages {
    /// Ages of segments, oldest first, at `now_ms` by the wall clock. An age is the time from the
    /// segment's last record until now, and no more than the steps between make: a clock that is
    /// set, now or once, makes no record older.
    pub(crate) fn of(segments: &[Segment], now_ms: u64) -> Ages {
        let mut ages = Ages::default();
        let (mut later_ms, mut steps_ms) = (now_ms, 0_u64);
        for segment in segments.iter().rev() {
            // Where the time is not known, the segment is not younger than the one behind it.
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

    /// First record of the oldest segment that is younger than `age`, or of unknown age.
    pub(crate) fn lsn_by_age(&self, segments: &[Segment], age: Duration) -> u64 {
        let is_old = |number: u64| self.segments.iter().any(|(known, known_age)| *known == number && *known_age >= age);
        let kept = segments.iter().find(|segment| !is_old(segment.header.number));
        kept.map_or(u64::MAX, |oldest| oldest.header.first_lsn())
    }
}

/// Returns the first record of the segments that hold the last `bytes` of blocks: `newest` are in
/// the segment behind these.
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
    /// Gives up segments of a log that is locked and not open, if they hold only records before
    /// `lsn`; never the last one that holds records. Needs no room on the disk. False if there is none.
    pub(crate) fn give_up_before(&self, lsn: u64, control: &mut Control, chain: &mut Vec<Segment>) -> Result<bool> {
        let last = chain.iter().rposition(|segment| !segment.is_empty()).unwrap_or(0);
        let starts = chain.iter().skip(1).take(last);
        let count = starts.take_while(|next| next.header.first_lsn() <= lsn).count();
        let Some(oldest) = chain.get(count).filter(|_| count > 0) else { return Ok(false) };
        let (oldest, epoch) = (oldest.header.number, oldest.header.epoch);
        let mut given_up = Control { oldest, newest: control.newest.max(oldest), ..control.clone() };
        given_up.epochs.forget_before(epoch);
        // First: recovery takes what is missing behind the oldest for damage.
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

    /// Ages in days, and doubts, of segments with these times.
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
        // Records of 1970, of a clock that was not set yet.
        assert_eq!(ages(&[DAY, 3 * DAY, days_ago(1)], NOW), (vec![3, 1, 1], 1));
        assert_eq!(ages(&[DAY, 3 * DAY], NOW), (vec![2, 0], 1));
        // The clock is not set now, or years ahead.
        assert_eq!(ages(&[days_ago(9), days_ago(5)], DAY), (vec![0, 0], 1));
        assert_eq!(ages(&[days_ago(9), days_ago(5)], NOW + 9000 * DAY), (vec![4, 0], 1));
        // It was ahead for a while.
        assert_eq!(ages(&[days_ago(9), NOW + 300 * DAY, days_ago(5)], NOW), (vec![9, 0, 5], 1));
        assert_eq!(ages(&[days_ago(9), NOW + 900 * DAY, days_ago(5)], NOW), (vec![5, 0, 5], 2));
        assert_eq!(ages(&[], NOW), (vec![], 0));
    }
}
