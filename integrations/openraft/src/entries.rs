//! Maps indexes of the Raft log to records of the durable log.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Entries with consecutive indexes, in consecutive records.
#[derive(Debug, PartialEq)]
struct Run {
    index: u64,
    lsn: u64,
    count: u64,
}

/// Place of an entry. Includes its record if the record was not durable at the last check.
#[derive(Debug, PartialEq)]
pub(crate) struct Place {
    pub(crate) index: u64,
    pub(crate) lsn: u64,
    pub(crate) record: Option<Arc<[u8]>>,
}

/// Places of all entries. Indexes ascend, and so do LSNs: appending an entry removes those at and
/// after its index. Indexes may have gaps: openraft's log has none, but its test suite appends
/// entries with gaps.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    runs: VecDeque<Run>,
    /// The last entries, beginning with the first that may not be durable. A reader of the log
    /// returns only durable records.
    pending: VecDeque<Place>,
}

impl Entries {
    /// Adds an entry that was read from the log.
    pub(crate) fn add(&mut self, index: u64, lsn: u64) {
        self.truncate(index);
        match self.runs.back_mut() {
            Some(run) if (run.index + run.count, run.lsn + run.count) == (index, lsn) => run.count += 1,
            _ => self.runs.push_back(Run { index, lsn, count: 1 }),
        }
    }

    /// Adds an entry that was appended to the log. Drops kept records up to `durable_lsn`.
    pub(crate) fn append(&mut self, index: u64, lsn: u64, record: Arc<[u8]>, durable_lsn: u64) {
        self.add(index, lsn);
        while self.pending.front().is_some_and(|place| place.lsn <= durable_lsn) {
            self.pending.pop_front();
        }
        self.pending.push_back(Place { index, lsn, record: Some(record) });
    }

    /// Removes the entries at and after `index`.
    pub(crate) fn truncate(&mut self, index: u64) {
        while self.pending.back().is_some_and(|place| place.index >= index) {
            self.pending.pop_back();
        }
        while let Some(run) = self.runs.back_mut() {
            if run.index < index {
                run.count = run.count.min(index - run.index);
                break;
            }
            self.runs.pop_back();
        }
    }

    /// Removes the entries up to and including `index`.
    pub(crate) fn purge(&mut self, index: u64) {
        while self.pending.front().is_some_and(|place| place.index <= index) {
            self.pending.pop_front();
        }
        while let Some(run) = self.runs.front_mut().filter(|run| run.index <= index) {
            let removed = (index - run.index).saturating_add(1);
            if removed < run.count {
                *run = Run { index: run.index + removed, lsn: run.lsn + removed, count: run.count - removed };
                break;
            }
            self.runs.pop_front();
        }
    }

    /// Returns the LSN of the first entry. Earlier records hold none of the entries.
    pub(crate) fn first_lsn(&self) -> Option<u64> {
        self.runs.front().map(|run| run.lsn)
    }

    /// Returns the index of the last entry.
    pub(crate) fn last_index(&self) -> Option<u64> {
        self.runs.back().map(|run| run.index + run.count - 1)
    }

    /// Returns the places of the first `count_max` entries in a range of indexes.
    pub(crate) fn places(&self, indexes: Range<u64>, count_max: usize) -> Vec<Place> {
        let first = self.runs.partition_point(|run| run.index + run.count <= indexes.start);
        let runs = self.runs.range(first..).take_while(|run| run.index < indexes.end);
        let mut places: Vec<_> = runs
            .flat_map(|run| {
                let (from, to) = (run.index.max(indexes.start), indexes.end.min(run.index + run.count));
                (from..to).map(|index| Place { index, lsn: run.lsn + (index - run.index), record: None })
            })
            .take(count_max)
            .collect();
        let from = self.pending.partition_point(|place| place.index < indexes.start);
        let mut pending = self.pending.range(from..).peekable();
        for place in &mut places {
            if let Some(kept) = pending.next_if(|kept| kept.index == place.index) {
                place.record.clone_from(&kept.record);
            }
        }
        places
    }

    /// Returns the LSN of the entry with this index.
    pub(crate) fn lsn(&self, index: u64) -> Option<u64> {
        self.places(index..index.saturating_add(1), 1).first().map(|place| place.lsn)
    }
}

#[cfg(test)]
mod tests {
    use super::{Entries, Place};
    use std::sync::Arc;

    fn lsns(entries: &Entries) -> Vec<(u64, u64)> {
        entries.places(0..u64::MAX, usize::MAX).iter().map(|place| (place.index, place.lsn)).collect()
    }

    #[test]
    fn runs_follow_the_records() {
        let mut entries = Entries::default();
        // Record 4 holds no entry.
        for (index, lsn) in [(5, 1), (6, 2), (7, 3), (8, 5), (9, 6)] {
            entries.add(index, lsn);
        }
        assert_eq!(entries.runs.len(), 2);
        assert_eq!(lsns(&entries), [(5, 1), (6, 2), (7, 3), (8, 5), (9, 6)]);
        assert_eq!((entries.first_lsn(), entries.last_index()), (Some(1), Some(9)));
        let middle: Vec<_> = entries.places(7..9, 9).iter().map(|place| place.lsn).collect();
        assert_eq!(middle, [3, 5]);
        let first: Vec<_> = entries.places(0..9, 4).iter().map(|place| place.lsn).collect();
        assert_eq!(first, [1, 2, 3, 5]);
        assert_eq!((entries.lsn(4), entries.lsn(8), entries.lsn(10)), (None, Some(5), None));
        assert_eq!(entries.places(3..5, 9), []);
        assert_eq!(entries.places(10..20, 9), []);
        assert_eq!(entries.places(7..7, 9), []);
    }

    #[test]
    fn truncation_and_purge_cut_runs() {
        let mut entries = Entries::default();
        (1..=10).for_each(|index| entries.add(index, index + 100));
        entries.truncate(11);
        entries.truncate(8);
        entries.purge(0);
        entries.purge(2);
        assert_eq!(lsns(&entries), [(3, 103), (4, 104), (5, 105), (6, 106), (7, 107)]);
        entries.add(5, 120);
        assert_eq!(lsns(&entries), [(3, 103), (4, 104), (5, 120)]);
        entries.purge(u64::MAX);
        assert_eq!((entries.first_lsn(), entries.last_index()), (None, None));
        entries.add(3, 130);
        entries.truncate(0);
        assert_eq!(lsns(&entries), []);
    }

    #[test]
    fn records_are_kept_until_they_are_durable() {
        let record = |byte: u8| -> Arc<[u8]> { Arc::new([byte]) };
        let mut entries = Entries::default();
        entries.append(1, 1, record(1), 0);
        entries.append(2, 2, record(2), 0);
        entries.append(3, 4, record(3), 1);
        let kept = |entries: &Entries, from, to| -> Vec<Option<u8>> {
            entries
                .places(from..to, 9)
                .iter()
                .map(|place: &Place| place.record.as_ref().map(|record| record[0]))
                .collect()
        };
        assert_eq!(kept(&entries, 0, 9), [None, Some(2), Some(3)]);
        assert_eq!(kept(&entries, 0, 3), [None, Some(2)]);
        assert_eq!(kept(&entries, 0, 2), [None]);
        assert_eq!(kept(&entries, 3, 4), [Some(3)]);
        entries.append(2, 5, record(4), 4);
        assert_eq!(kept(&entries, 0, 9), [None, Some(4)]);
        entries.purge(2);
        assert_eq!(kept(&entries, 0, 9), []);
        assert!(entries.pending.is_empty());
    }
}
