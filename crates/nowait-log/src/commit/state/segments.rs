//! Segments of an open log: the current one, the next ones, and those that are no longer needed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::rules::{bytes_for, usable_end};
use super::{Block, Live, NoRoom, Pipeline, RETRY, Refusal, SpareFailure};
use crate::dir::{Segment, lsn_by_bytes};
use crate::format::{Control, End, Epochs, PAGE, SegmentHeader};
use crate::options::Calibration;
use crate::stats::LogStats;

/// Initial state of an opened log.
pub(crate) struct Start<F> {
    pub(crate) epoch: u64,
    pub(crate) current: Live<F>,
    pub(crate) segments: Vec<Segment>,
    /// Contents of the control file.
    pub(crate) recorded: Control,
    /// First records of epochs, including the new one.
    pub(crate) epochs: Epochs,
    /// Segments, and the time since the last record of each.
    pub(crate) ages: Vec<(u64, Duration)>,
    pub(crate) now: Instant,
}

/// A segment that is no longer part of the log. Its file will be reused or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retired {
    pub(crate) number: u64,
    pub(crate) bytes: u64,
}

/// State of the maintenance of segments.
pub(crate) struct Upkeep {
    /// Highest segment number whose name is durable.
    pub(crate) newest: u64,
    /// Contents of the control file.
    pub(crate) recorded: Control,
    /// New settings for the control file, from a later measurement.
    pub(crate) settings: Control,
    /// First records of epochs, including one whose first header is not durable yet.
    epochs: Epochs,
    /// A cut began the epoch, and the control file does not contain it yet.
    pub(super) is_unnamed: bool,
    /// Start of the last measurement.
    pub(crate) measured: Option<Instant>,
    /// Time of the last failed replacement of the control file.
    pub(crate) record_failed: Option<Instant>,
    /// Minimum size of the next segment, for an append that does not fit into the prepared one.
    wanted_bytes: u64,
    /// An append has waited since the size of the last prepared segment was decided.
    pub(crate) was_missed: bool,
    /// A segment began, and maintenance was not notified.
    pub(super) has_news: bool,
    /// Segments that the log has left, while their blocks may still be in use.
    out: Vec<(u64, Weak<()>)>,
    /// Records before this LSN are retired as soon as no pin keeps them.
    given_up: u64,
    /// Next records of readers that keep them.
    pins: Vec<Weak<AtomicU64>>,
    /// Ends of segments, if known.
    pub(super) ended: Vec<Ended>,
    /// A segment has ended since retention was last applied.
    pub(crate) has_ended: bool,
    /// Time when retention was last applied.
    pub(crate) applied: Instant,
}

/// End of a segment.
pub(super) struct Ended {
    pub(super) number: u64,
    at: Instant,
    /// Age of the segment's last record at that time.
    age: Duration,
}

impl Ended {
    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.at).saturating_add(self.age)
    }
}

impl Upkeep {
    pub(super) fn new(
        newest: u64,
        recorded: Control,
        epochs: Epochs,
        ages: Vec<(u64, Duration)>,
        now: Instant,
    ) -> Upkeep {
        Upkeep {
            newest,
            settings: recorded.clone(),
            recorded,
            epochs,
            is_unnamed: false,
            measured: None,
            record_failed: None,
            wanted_bytes: 0,
            was_missed: false,
            has_news: false,
            out: Vec::new(),
            given_up: 0,
            pins: Vec::new(),
            ended: ages.into_iter().map(|(number, age)| Ended { number, at: now, age }).collect(),
            has_ended: true,
            applied: now,
        }
    }
}

/// Bytes of a segment available for blocks with records.
fn room(bytes: u64) -> u64 {
    usable_end(bytes) - PAGE as u64
}

impl<F: Clone> Pipeline<F> {
    /// Continues in the next segment.
    pub(super) fn rotate(&mut self, now: Instant) {
        let Some(next) = self.spares.pop_front() else { return };
        let (end, last_lsn) = (self.offset, self.next_lsn - 1);
        if let Some(current) = self.segments.last_mut() {
            (current.end, current.last_lsn) = (end, last_lsn);
        }
        let previous = End { segment: self.current.number, offset: end, lsn: last_lsn, lost_from: 0 };
        self.begin_segment(next, previous, now);
        self.numbers.rotations += 1;
    }

    /// Makes `next` the current segment. Its header names `previous` as the place that it
    /// continues.
    fn begin_segment(&mut self, next: Live<F>, previous: End, now: Instant) {
        let header = SegmentHeader {
            log_id: self.rules.log_id,
            number: next.number,
            epoch: self.epoch,
            bytes: next.bytes,
            previous,
            oldest: self.segments.first().map_or(next.number, |oldest| oldest.header.number),
            // Watermark and times are set when the header is written.
            ..SegmentHeader::default()
        };
        self.segments.push(Segment { header, end: u64::MAX, last_lsn: u64::MAX, time_ms: 0 });
        let left = std::mem::replace(&mut self.current, next);
        self.upkeep.out.retain(|(_, uses)| uses.strong_count() > 0);
        self.upkeep.out.push((left.number, left.uses()));
        self.left.push(left.into_file());
        self.offset = 0;
        self.upkeep.ended.push(Ended { number: previous.segment, at: now, age: Duration::ZERO });
        (self.upkeep.wanted_bytes, self.upkeep.has_news, self.upkeep.has_ended) = (0, true, true);
    }

    /// Cuts the log after `place` and continues in a new segment of a new epoch. The caller has
    /// checked that nothing is pending and that a spare exists. Returns the segments that were cut
    /// off; they are part of the log until the new segment's header is durable.
    pub(crate) fn cut(&mut self, place: End, now: Instant) -> Vec<Retired> {
        let Some(next) = self.spares.pop_front() else { return Vec::new() };
        let mut cut_off = Vec::new();
        while self.segments.len() > 1
            && self.segments.last().is_some_and(|segment| segment.header.number > place.segment)
        {
            cut_off.extend(self.segments.pop().as_ref().map(Retired::of));
        }
        if let Some(last) = self.segments.last_mut() {
            (last.end, last.last_lsn) = (place.offset, place.last_there());
        }
        self.epoch += 1;
        self.upkeep.epochs.begin(self.epoch, place.last_there());
        self.upkeep.is_unnamed = true;
        self.begin_segment(next, place, now);
        self.upkeep.given_up = self.upkeep.given_up.min(place.lsn + 1);
        self.next_lsn = place.lsn + 1;
        (self.submitted, self.watermark, self.durable) = (place.lsn, place.lsn, place.lsn);
        self.cuts.push((self.epoch, place.lsn));
        cut_off.reverse();
        cut_off
    }

    /// Retires segments that contain only durable records before `lsn`.
    pub(crate) fn retire_before(&mut self, lsn: u64) -> bool {
        self.upkeep.given_up = self.upkeep.given_up.max(lsn.min(self.durable + 1));
        self.retire()
    }

    /// Retires segments that were given up and that no reader's pin keeps any more. False if there
    /// are none.
    pub(crate) fn retire(&mut self) -> bool {
        let before = self.retired.len();
        let lsn = self.upkeep.given_up.min(self.pinned());
        // The last segment with a durable header stays: without it, a crash would leave a log
        // without records whose LSNs start again from 1.
        while self.segments.get(1).is_some_and(|next| next.header.first_lsn() <= lsn.min(self.durable + 1))
            && self.durable_headers() > 1
            && self.check_open().is_ok()
        {
            let gone = self.segments.remove(0);
            self.upkeep.ended.retain(|ended| ended.number != gone.header.number);
            self.retired.push(Retired::of(&gone));
        }
        self.retired.len() > before
    }

    /// First pinned record.
    fn pinned(&mut self) -> u64 {
        self.upkeep.pins.retain(|pin| pin.strong_count() > 0);
        let pins = self.upkeep.pins.iter().filter_map(Weak::upgrade);
        pins.map(|next_lsn| next_lsn.load(Ordering::Relaxed)).min().unwrap_or(u64::MAX)
    }

    /// Keeps the segment of record `lsn` and later ones while the returned pin lives; its value may
    /// be advanced. If the record was removed, returns the first record as an error.
    pub(crate) fn pin(&mut self, lsn: u64) -> std::result::Result<Arc<AtomicU64>, u64> {
        let first = self.first_lsn();
        if lsn < first {
            return Err(first);
        }
        let pin = Arc::new(AtomicU64::new(lsn));
        self.upkeep.pins.push(Arc::downgrade(&pin));
        Ok(pin)
    }

    /// First record of the segments that contain the last `bytes`.
    pub(crate) fn lsn_by_bytes(&self, bytes: u64) -> u64 {
        let Some((current, older)) = self.segments.split_last() else { return 0 };
        lsn_by_bytes(older, self.offset, bytes).unwrap_or(current.header.first_lsn())
    }

    /// Returns the first record that retention by `age` keeps. It is the first of the oldest
    /// segment whose last record is younger than `age` or of unknown age. The last segment with
    /// records stays.
    pub(crate) fn lsn_by_age(&self, age: Duration, now: Instant) -> u64 {
        let is_old = |number: u64| self.ended(number).is_some_and(|ended| ended.age(now) >= age);
        let kept = self.segments.iter().find(|segment| !is_old(segment.header.number));
        kept.map_or(0, |oldest| oldest.header.first_lsn()).min(self.first_of_last())
    }

    /// Returns the first record of the last segment with durable records; 0 if there is none.
    fn first_of_last(&self) -> u64 {
        let firsts = self.segments.iter().rev().map(|segment| segment.header.first_lsn());
        firsts.into_iter().find(|first| *first <= self.durable).unwrap_or(0)
    }

    /// Returns the time until the oldest segment is `age` old; None if it stays regardless of age.
    pub(crate) fn next_expiry(&self, age: Duration, now: Instant) -> Option<Duration> {
        let next = self.segments.get(1)?;
        let oldest = self.segments.first().filter(|_| next.header.first_lsn() <= self.first_of_last())?;
        self.ended(oldest.header.number).map(|ended| age.saturating_sub(ended.age(now)))
    }

    fn ended(&self, number: u64) -> Option<&Ended> {
        self.upkeep.ended.iter().find(|ended| ended.number == number)
    }

    /// Counts the segments, from the oldest on, whose header is durable. The log must keep one of
    /// them: recovery starts from the header of the newest segment, and continues its numbers.
    pub(super) fn durable_headers(&self) -> usize {
        let in_flight = self.in_flight.iter().filter(|block| block.is_first).count();
        let ready = self.ready.iter().filter(|block: &&Block<F>| block.header.is_some()).count();
        let current = usize::from(self.offset == 0);
        self.segments.len().saturating_sub(in_flight + ready + current)
    }

    // Next segments.

    /// True if the next segment is ready, and large enough for `payload`.
    pub(super) fn has_spare_for(&self, payload: usize) -> bool {
        self.spares.front().is_some_and(|next| bytes_for(payload) <= next.bytes)
    }

    /// Makes the next segment large enough for `payload`.
    pub(super) fn want_segment_for(&mut self, payload: usize) {
        self.upkeep.wanted_bytes = self.upkeep.wanted_bytes.max(bytes_for(payload));
    }

    /// True if a segment must be prepared or made larger: the next one, or one of the reserve.
    pub(crate) fn wants_spare(&self) -> bool {
        let reserved: u64 = self.spares.iter().skip(1).map(|spare| room(spare.bytes)).sum();
        let has_next = self.spares.front().is_some_and(|next| next.bytes >= self.upkeep.wanted_bytes);
        !has_next || reserved < self.rules.reserve_bytes
    }

    /// Returns the size of the next segment: that of the newest one, or twice that if the log has
    /// written four times as much, or if an append did not find a segment. So few zeros are written
    /// ahead of need, compared with the log. A reserve is made of segments that double.
    pub(crate) fn next_bytes(&self) -> u64 {
        let before = self.spares.back().map_or(self.current.bytes, |spare| spare.bytes);
        let is_large = self.numbers.written_bytes >= 4 * before;
        let grows = is_large || self.upkeep.was_missed || self.rules.reserve_bytes > 0;
        let bytes = if grows { 2 * before } else { before };
        bytes.max(self.upkeep.wanted_bytes).min(self.rules.segment_bytes)
    }

    /// Takes the next segment if it is too small for a waiting append.
    pub(crate) fn take_small_spare(&mut self) -> Option<Live<F>> {
        let is_small = self.spares.front().is_some_and(|next| next.bytes < self.upkeep.wanted_bytes);
        if is_small { self.spares.pop_front() } else { None }
    }

    /// True if a segment must be prepared, and a try is allowed now.
    pub(crate) fn lacks_spare(&self, now: Instant) -> bool {
        self.wants_spare() && self.may_retry_spare(now)
    }

    /// True unless a preparation failed less than [`RETRY`] ago.
    fn may_retry_spare(&self, now: Instant) -> bool {
        self.spare_failure.as_ref().is_none_or(|failure| now.saturating_duration_since(failure.at) >= RETRY)
    }

    #[cold]
    pub(super) fn no_spare(&self, left: u64, is_reserved: bool, now: impl Fn() -> Instant) -> NoRoom<Refusal> {
        let Some(SpareFailure { error, .. }) = &self.spare_failure else { return NoRoom::NoSpare };
        if !self.rules.has_maintenance && self.may_retry_spare(now()) {
            // No other thread prepares it.
            return NoRoom::NoSpare;
        }
        NoRoom::Refused(Refusal::NoSpace { left, is_reserved, cause: error.clone() })
    }

    /// Returns the bytes, in pages of blocks, that are left for appends.
    pub(crate) fn room_left(&self) -> u64 {
        let used = self.offset_behind_open().max(PAGE as u64);
        let spares: u64 = self.spares.iter().map(|spare| room(spare.bytes)).sum();
        usable_end(self.current.bytes).saturating_sub(used) + spares
    }

    /// True if the strategy may be measured again.
    pub(crate) fn is_measured(&self) -> bool {
        self.rules.is_measured
    }

    // Segments that are no longer needed.

    /// Oldest retired segment, if its file may be reused or removed: no block of it is in use.
    pub(crate) fn reusable(&self) -> Option<Retired> {
        self.retired.first().filter(|oldest| !self.is_in_use(oldest.number)).copied()
    }

    /// True if a block of the segment is in use.
    fn is_in_use(&self, number: u64) -> bool {
        self.upkeep.out.iter().any(|(out, uses)| *out == number && uses.strong_count() > 0)
    }

    /// True if more segments are kept for reuse than allowed, and one can be removed.
    pub(crate) fn has_surplus(&self) -> bool {
        let kept: u64 = self.retired.iter().map(|retired| retired.bytes).sum();
        kept > self.rules.recycle_bytes && self.reusable().is_some()
    }

    /// Returns counters and current figures.
    pub(crate) fn stats(&self) -> LogStats {
        LogStats {
            pending_bytes: self.pending_bytes,
            pending_records: (self.next_lsn - 1).saturating_sub(self.durable),
            blocks_in_flight: self.in_flight.len(),
            spares: self.spares.len(),
            segments: self.segments.len(),
            segments_kept: self.retired.len(),
            calibration: Calibration::of(&self.upkeep.settings).filter(|_| self.rules.is_measured),
            ..self.numbers.stats()
        }
    }

    /// Returns the contents that the control file should have: the segments that exist, and those
    /// that contain the log.
    pub(crate) fn to_record(&self) -> Control {
        let oldest = self.segments.first().map(|oldest| oldest.header);
        let (number, epoch) = oldest.map_or((self.current.number, self.epoch), |oldest| (oldest.number, oldest.epoch));
        let recorded = &self.upkeep.recorded;
        let (head, epochs) = match self.durable_head() {
            Some(head) => {
                let mut epochs = self.upkeep.epochs.clone();
                epochs.forget_before(epoch);
                (head, epochs)
            }
            // No header of this epoch is durable yet.
            None => (recorded.head, recorded.epochs.clone()),
        };
        let (newest, watermark) = (self.upkeep.newest, self.durable);
        Control { oldest: number, newest, head, watermark, epochs, ..self.upkeep.settings.clone() }
    }

    /// Returns the number of the newest segment of this epoch whose header is durable.
    fn durable_head(&self) -> Option<u64> {
        if self.poison.is_some() {
            // A failed block is no longer in flight, and may have contained the header.
            return None;
        }
        let head = self.segments.get(self.durable_headers().checked_sub(1)?)?;
        (head.header.epoch == self.epoch).then_some(head.header.number)
    }

    /// Returns true if the control file's list of segments is outdated. (The watermark is ignored:
    /// it is always outdated while the log is open.)
    pub(crate) fn is_unrecorded(&self) -> bool {
        let Control { watermark, .. } = self.upkeep.recorded;
        self.upkeep.recorded != Control { watermark, ..self.to_record() }
    }

    /// Returns true if the control file's list of segments or its watermark is outdated.
    pub(crate) fn is_end_unrecorded(&self) -> bool {
        self.poison.is_none() && self.upkeep.recorded != self.to_record()
    }

    /// Returns true if the head in the control file is outdated, and the file may be replaced now.
    pub(crate) fn lacks_head(&self, now: Instant) -> bool {
        self.durable_head().is_some_and(|head| head != self.upkeep.recorded.head) && self.may_record(now)
    }

    /// True if the file of segment `number` must stay until the control file states that the log
    /// begins after the segment, or continues elsewhere.
    pub(crate) fn is_named(&self, number: u64) -> bool {
        let recorded = &self.upkeep.recorded;
        (recorded.oldest..self.to_record().oldest).contains(&number) || number == recorded.head
    }

    /// Allows the submission of blocks of an epoch that a cut began: the control file contains the
    /// epoch, or cannot be replaced. Does nothing if a later cut has begun another epoch.
    pub(crate) fn set_named(&mut self, epoch: u64) {
        self.upkeep.is_unnamed &= self.epoch != epoch;
    }

    /// Returns true if the control file must be replaced, and may be replaced now.
    pub(crate) fn lacks_record(&self, now: Instant) -> bool {
        self.is_unrecorded() && self.may_record(now)
    }

    fn may_record(&self, now: Instant) -> bool {
        let may_retry = |failed: Instant| now.saturating_duration_since(failed) >= RETRY;
        self.upkeep.record_failed.is_none_or(may_retry)
    }
}

impl Retired {
    fn of(segment: &Segment) -> Retired {
        Retired { number: segment.header.number, bytes: segment.header.bytes }
    }
}
