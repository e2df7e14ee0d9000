use super::fixture::{SEGMENT_BYTES, rules, start};
use super::*;
use crate::format::{End, FRAME_BYTES, PAGE};
use nowait::{Error, ErrorKind, ErrorOp};

fn now() -> Instant {
    Instant::now()
}

/// A log whose first segment has its header on disk.
fn state(rules: Rules) -> Pipeline<()> {
    let mut state = Pipeline::new(rules, start());
    assert!(state.put_watermark(false, false, now).is_ok());
    write(&mut state);
    assert!(state.is_quiet());
    state
}

fn append(state: &mut Pipeline<()>, bytes: usize) -> std::result::Result<u64, NoRoom<Refusal>> {
    let record = vec![7; bytes];
    state
        .append(&mut Incoming::Copied(&[record.as_slice().into()]), FRAME_BYTES + bytes, false, now)
        .map(|(lsn, _)| lsn)
}

fn submit(state: &mut Pipeline<()>) -> Option<(u64, u64)> {
    state.submit(false, now).map(|submission| (submission.id, submission.watermark))
}

fn write(state: &mut Pipeline<()>) -> Completed<()> {
    let (id, _) = submit(state).expect("a block");
    state.complete(id, Ok(()), None, now())
}

fn failure() -> Error {
    crate::os::error(ErrorOp::Write, ErrorKind::Io, "/log".as_ref())
}

#[test]
fn durable_is_what_has_everything_before_it() {
    let mut state = state(rules(3));
    let ids: Vec<u64> = (1..=3)
        .map(|lsn| {
            assert!(append(&mut state, 100).is_ok_and(|appended| appended == lsn));
            let (id, watermark) = submit(&mut state).unwrap();
            assert_eq!(watermark, 0, "nothing is durable yet");
            id
        })
        .collect();
    assert!(append(&mut state, 100).is_ok());
    assert!(submit(&mut state).is_none(), "as many are in flight as may be");
    assert!(state.complete(ids[1], Ok(()), None, now()).blocks.is_empty());
    assert_eq!(state.durable, 0);
    assert_eq!(state.complete(ids[0], Ok(()), None, now()).blocks.len(), 2);
    assert_eq!(state.durable, 2);
    assert_eq!(submit(&mut state).unwrap().1, 2, "the next block carries what is durable by now");
    assert_eq!(state.complete(ids[2], Ok(()), None, now()).blocks.len(), 1);
    assert_eq!(state.durable, 3);
}

#[test]
fn a_failure_poisons_everything_after_it() {
    let mut state = state(rules(2));
    append(&mut state, 100).ok().unwrap();
    let (first, _) = submit(&mut state).unwrap();
    append(&mut state, 100).ok().unwrap();
    let (second, _) = submit(&mut state).unwrap();
    append(&mut state, 100).ok().unwrap();
    let failed = state.complete(second, Err(failure()), None, now());
    assert_eq!((failed.blocks.len(), failed.unwritten.len(), failed.is_first_failure), (2, 1, true));
    assert!(failed.ending.groups.len() == 3 && failed.ending.groups.iter().all(|(_, fate)| *fate == Fate::Failed));
    assert_eq!(state.poison.as_ref().unwrap().submitted, 2, "record 3 was not submitted");
    // The first write succeeds, too late.
    assert!(state.complete(first, Ok(()), None, now()).blocks.is_empty());
    assert_eq!(state.durable, 0);
    assert!(matches!(append(&mut state, 1), Err(NoRoom::Refused(Refusal::Poisoned(_)))));
    assert!(submit(&mut state).is_none());
}

#[test]
fn nothing_is_in_flight_beside_a_segments_header() {
    let mut state = state(rules(4));
    state.spares.push_back(Live::new(2, SEGMENT_BYTES, ()));
    append(&mut state, SEGMENT_BYTES as usize - 4 * PAGE).ok().unwrap();
    append(&mut state, 2 * PAGE).ok().unwrap();
    assert_eq!((state.segments.len(), state.numbers.rotations), (2, 1));
    append(&mut state, 1).ok().unwrap();
    let (old, _) = submit(&mut state).unwrap();
    let (first, _) = submit(&mut state).unwrap();
    append(&mut state, 1).ok().unwrap();
    assert!(submit(&mut state).is_none(), "the header is in flight");
    assert_eq!(state.durable_headers(), 1);
    state.complete(old, Ok(()), None, now());
    assert!(submit(&mut state).is_none());
    state.complete(first, Ok(()), None, now());
    assert_eq!(state.durable_headers(), 2);
    assert!(submit(&mut state).is_some());
}

#[test]
fn the_last_watermark_block_leaves_alone_and_always_has_room() {
    let mut state = state(rules(4));
    // Fills the part for records up to its last page.
    append(&mut state, SEGMENT_BYTES as usize - 3 * PAGE - 100).ok().unwrap();
    assert!(matches!(append(&mut state, PAGE), Err(NoRoom::NoSpare)));
    assert!(state.begin_closing(false) && !state.begin_closing(false));
    assert!(matches!(append(&mut state, 1), Err(NoRoom::Refused(Refusal::Closed))));
    assert!(state.put_watermark(true, true, now).is_ok());
    let (records, _) = submit(&mut state).unwrap();
    assert!(submit(&mut state).is_none(), "its watermark has to cover every record");
    state.complete(records, Ok(()), None, now());
    let (last, watermark) = submit(&mut state).unwrap();
    assert_eq!(watermark, 1);
    state.complete(last, Ok(()), None, now());
    assert!(state.is_quiet() && !state.lacks_watermark(1));
}

#[test]
fn appends_wait_for_bytes_and_for_segments() {
    let mut state = state(Rules { pending_bytes_max: 1000, has_maintenance: false, ..rules(1) });
    assert!(append(&mut state, 5000).is_ok(), "one append always fits");
    assert!(matches!(append(&mut state, 1), Err(NoRoom::Budget)));
    assert!(matches!(state.has_room(5, false, now), Err(NoRoom::Budget)));
    write(&mut state);
    let most = SEGMENT_BYTES as usize - 5 * PAGE;
    assert!(matches!(append(&mut state, most), Err(NoRoom::NoSpare)));
    assert_eq!(state.numbers.spares_missed, 1);
    assert!(state.wants_spare() && state.lacks_spare(now()));
    state.spare_failure = Some(SpareFailure { error: failure(), at: now() });
    assert!(!state.lacks_spare(now()) && state.lacks_spare(now() + RETRY));
    assert!(matches!(append(&mut state, most), Err(NoRoom::Refused(Refusal::NoSpace { is_reserved: false, .. }))));
    let later = now() + RETRY;
    assert!(matches!(state.has_room(most, false, || later), Err(NoRoom::NoSpare)), "nothing else tries again");
    state.spare_failure = None;
    state.spares.push_back(Live::new(2, SEGMENT_BYTES, ()));
    assert!(append(&mut state, most).is_ok_and(|lsn| lsn == 2));
}

#[test]
fn a_reserve_is_for_those_that_ask_for_it() {
    let reserve_bytes = SEGMENT_BYTES - 5 * PAGE as u64;
    let mut state = state(Rules { reserve_bytes, ..rules(1) });
    assert!(append(&mut state, 1).is_ok());
    state.spare_failure = Some(SpareFailure { error: failure(), at: now() });
    assert!(matches!(append(&mut state, 2 * PAGE), Err(NoRoom::Refused(Refusal::NoSpace { is_reserved: true, .. }))));
    assert!(matches!(state.has_room(2 * PAGE, false, now), Err(NoRoom::Refused(_))));
    assert!(state.has_room(2 * PAGE, true, now).is_ok());
    assert!(
        state
            .append(&mut Incoming::Copied(&[[7; 2 * PAGE].as_slice().into()]), FRAME_BYTES + 2 * PAGE, true, now)
            .is_ok()
    );
}

#[test]
fn who_writes_next() {
    let mut state = state(rules(1));
    let (_, group) =
        state.append(&mut Incoming::Copied(&[b"one".as_slice().into()]), FRAME_BYTES + 3, false, now).ok().unwrap();
    assert!(matches!(state.choose_next(now()), Successor::Nobody), "nothing waits");
    assert!(group.register(&mut None, Waker::noop()));
    assert!(matches!(state.choose_next(now()), Successor::Carry));
    group.announce_sleeper();
    assert!(matches!(state.choose_next(now()), Successor::Leader(leader) if Arc::ptr_eq(&leader, &group)));
    assert!(state.gathering.is_some() && !group.has_sleepers());
    assert!(group.accept() && !group.accept());
    submit(&mut state).unwrap();
    assert!(state.gathering.is_none());
    state.append(&mut Incoming::Copied(&[b"two".as_slice().into()]), FRAME_BYTES + 3, false, now).ok().unwrap();
    assert!(state.watch(9, Waker::noop().clone()).is_none());
    assert!(matches!(state.choose_next(now()), Successor::Nobody), "one is in flight");
}

#[test]
fn a_cut_begins_an_epoch_behind_what_is_left() {
    let mut state = state(rules(1));
    for _ in 0..3 {
        append(&mut state, 100).ok().unwrap();
        write(&mut state);
    }
    state.spares.push_back(Live::new(2, SEGMENT_BYTES, ()));
    let place = End { segment: 1, offset: 3 * PAGE as u64, lsn: 1, lost_from: 0 };
    assert!(state.cut(place, now()).is_empty());
    assert_eq!((state.epoch, state.next_lsn, state.durable), (2, 2, 1));
    assert_eq!(state.cuts, [(2, 1)]);
    assert_eq!((state.segments[0].last_lsn, state.segments[1].header.previous), (1, place));
    state.retire_before(2);
    assert_eq!(state.segments.len(), 2, "the new segment has no durable header");
    assert!(state.put_watermark(false, false, now).is_ok());
    write(&mut state);
    state.retire_before(2);
    assert_eq!(state.segments.len(), 1);
    assert_eq!(state.retired, [Retired { number: 1, bytes: SEGMENT_BYTES }]);
}

/// Symptom: the control file named a head whose header was never written.
#[test]
fn a_segment_whose_header_failed_is_not_named() {
    let mut state = state(rules(1));
    state.upkeep.recorded = state.to_record();
    assert_eq!(state.upkeep.recorded.head, 1);
    state.spares.push_back(Live::new(2, SEGMENT_BYTES, ()));
    append(&mut state, SEGMENT_BYTES as usize - 4 * PAGE).ok().unwrap();
    write(&mut state);
    append(&mut state, SEGMENT_BYTES as usize - 4 * PAGE).ok().unwrap();
    let (id, _) = submit(&mut state).unwrap();
    assert_eq!((state.segments.len(), state.to_record().head), (2, 1), "it is in flight");
    state.complete(id, Err(failure()), None, now());
    assert_eq!(state.to_record().head, 1);
    assert!(!state.is_unrecorded() && !state.lacks_head(now()));
}

/// Symptom: records after a second cut were written before the control file contained that cut.
#[test]
fn a_cut_is_not_named_by_the_one_before() {
    let mut state = state(rules(1));
    for _ in 0..3 {
        append(&mut state, 100).ok().unwrap();
        write(&mut state);
    }
    let mut epochs = Vec::new();
    for lsn in [2, 1] {
        state.spares.push_back(Live::new(4 - lsn, SEGMENT_BYTES, ()));
        state.cut(End { segment: 1, offset: (lsn + 1) * PAGE as u64, lsn, lost_from: 0 }, now());
        assert!(state.put_watermark(false, false, now).is_ok());
        write(&mut state);
        epochs.push(state.epoch);
    }
    append(&mut state, 100).ok().unwrap();
    state.set_named(epochs[0]);
    assert!(!state.may_submit());
    state.set_named(epochs[1]);
    assert!(state.may_submit());
}

/// Segments grow with the log, and after an append that waited. An append does not fit into a small
/// segment: the next segment is made large enough, and smaller appends continue meanwhile.
#[test]
fn segments_grow_as_far_as_they_may_and_for_what_is_large() {
    let mut state = state(Rules { segment_bytes: 4 * SEGMENT_BYTES, ..rules(1) });
    assert_eq!(state.next_bytes(), SEGMENT_BYTES);
    state.rules.reserve_bytes = 1;
    assert_eq!(state.next_bytes(), 2 * SEGMENT_BYTES, "a reserve of few segments");
    state.rules.reserve_bytes = 0;
    state.numbers.written_bytes = 4 * SEGMENT_BYTES;
    assert_eq!(state.next_bytes(), 2 * SEGMENT_BYTES);
    state.spares.push_back(Live::new(2, 2 * SEGMENT_BYTES, ()));
    assert_eq!(state.next_bytes(), 2 * SEGMENT_BYTES, "as large as the one before");
    assert!(!state.wants_spare());
    let large = 3 * SEGMENT_BYTES as usize;
    assert!(matches!(append(&mut state, large), Err(NoRoom::NoSpare)));
    assert_eq!(state.numbers.spares_missed, 1);
    assert!(append(&mut state, 1).is_ok());
    assert!(state.wants_spare());
    assert!(state.upkeep.was_missed);
    let bytes = state.next_bytes();
    let small = state.take_small_spare().unwrap();
    assert_eq!((small.number, bytes, state.spares.len()), (2, 4 * SEGMENT_BYTES, 0));
    state.spares.push_front(Live::new(2, bytes, ()));
    assert!(!state.wants_spare() && state.take_small_spare().is_none());
    assert!(append(&mut state, large).is_ok());
    assert_eq!(state.segments[1].header.bytes, 4 * SEGMENT_BYTES);
    assert_eq!(state.next_bytes(), 4 * SEGMENT_BYTES, "no larger one");
    assert_eq!(state.room_left(), 5 * PAGE as u64, "of its own size");
}

/// A delayed write of a block prevents the reuse of its segment.
#[test]
fn a_segment_is_not_used_again_while_a_block_of_it_is_out() {
    let mut state = state(rules(1));
    append(&mut state, 100).ok().unwrap();
    let held_up = state.submit(false, now).unwrap();
    state.complete(held_up.id, Ok(()), None, now());
    state.spares.push_back(Live::new(2, SEGMENT_BYTES, ()));
    append(&mut state, SEGMENT_BYTES as usize - 4 * PAGE).ok().unwrap();
    write(&mut state);
    state.retire_before(2);
    assert_eq!(state.retired, [Retired { number: 1, bytes: SEGMENT_BYTES }]);
    assert!(state.reusable().is_none() && !state.has_surplus());
    drop(held_up);
    assert!(state.reusable().is_some() && state.has_surplus());
}

fn filled(segments: u64) -> Pipeline<()> {
    let mut state = state(rules(1));
    for number in 2..=segments + 1 {
        append(&mut state, SEGMENT_BYTES as usize - 4 * PAGE).ok().unwrap();
        write(&mut state);
        if number <= segments {
            state.spares.push_back(Live::new(number, SEGMENT_BYTES, ()));
        }
    }
    assert_eq!(state.segments.len() as u64, segments);
    state
}

#[test]
fn what_is_retained_by_bytes_and_by_age() {
    let mut state = filled(4);
    let firsts: Vec<u64> = state.segments.iter().map(|segment| segment.header.first_lsn()).collect();
    let each = state.segments[2].end;
    assert_eq!(state.lsn_by_bytes(0), firsts[3], "the segment that is written stays");
    assert_eq!(state.lsn_by_bytes(state.offset), firsts[3]);
    assert_eq!(state.lsn_by_bytes(state.offset + 1), firsts[2]);
    assert_eq!(state.lsn_by_bytes(state.offset + each), firsts[2]);
    assert_eq!(state.lsn_by_bytes(u64::MAX), firsts[0]);
    let age = Duration::from_secs(60);
    assert_eq!(state.lsn_by_age(age, now()), firsts[0]);
    assert!(state.next_expiry(age, now()).is_some_and(|left| left <= age && left > age / 2));
    assert_eq!(state.lsn_by_age(age, now() + age), firsts[3]);
    state.upkeep.ended.retain(|ended| ended.number == 1);
    assert_eq!(state.lsn_by_age(age, now() + age), firsts[1], "the age of the others is not known");
}

#[test]
fn what_is_pinned_goes_when_it_was_read() {
    let mut state = filled(4);
    let second = state.segments[1].header.first_lsn();
    let pin = state.pin(second).unwrap();
    state.retire_before(u64::MAX);
    assert_eq!(state.retired.iter().map(|retired| retired.number).collect::<Vec<_>>(), [1]);
    assert_eq!(state.pin(second - 1).unwrap_err(), second);
    pin.store(second + 1, std::sync::atomic::Ordering::Relaxed);
    assert!(state.retire());
    assert_eq!(state.retired.len(), 2);
    drop(pin);
    assert!(state.retire() && !state.retire());
    assert_eq!((state.retired.len(), state.segments.len()), (3, 1));
}

/// A slow device must not write every block twice.
#[test]
fn patience_follows_the_slowest_write() {
    let mut state = state(rules(1));
    let began = now();
    let at = |milliseconds| began + Duration::from_millis(milliseconds);
    let rewrite = |state: &mut Pipeline<()>, now| matches!(state.rescue(now), Some(Rescue::Rewrite(_)));
    // The first write has ended, and its waiters are not all notified.
    let Some(Rescue::End(ending)) = state.rescue(at(10_000)) else { panic!("it is overdue") };
    ending.set_over();
    for took in [100, 10] {
        append(&mut state, 100).ok().unwrap();
        let submission = state.submit(false, || began).unwrap();
        submission.block.group.set_sealed(Arc::default());
        state.complete(submission.id, Ok(()), None, at(took)).ending.set_over();
    }
    append(&mut state, 100).ok().unwrap();
    let submission = state.submit(false, || began).unwrap();
    assert!(!rewrite(&mut state, at(10_000)), "it is not sealed");
    submission.block.group.set_sealed(Arc::default());
    let due = state.in_flight[0].due;
    assert!(!rewrite(&mut state, due - Duration::from_millis(1)));
    assert!(rewrite(&mut state, due) && !rewrite(&mut state, due), "once, and then not for long");
    assert!(due > at(10_000 + 4 * 90), "four times the slowest of late");
    // The stalled thread took long, the device did not.
    let slowest = state.slowest;
    state.complete(submission.id, Ok(()), None, at(100_000)).ending.set_over();
    assert_eq!(state.slowest, slowest);
    assert!(state.rescue(at(1_000_000)).is_none());
}

/// A served block behind a block that was opened before, and for which no caller waits.
#[test]
fn the_writer_writes_what_was_left_to_it_behind_blocks_without_waiters() {
    let mut state = state(rules(1));
    assert!(matches!(state.serve(now), WriterTurn::Sleep));
    state.waiters = 20;
    // Two full blocks without waiters (fire and forget).
    for _ in 0..2 {
        append(&mut state, 100).ok().unwrap();
        state.close_block();
    }
    // `turn` of a thread, or `carry_all`: the thread is engaged, and then opens a block.
    assert_eq!(state.leave_to_writer(now), Some(true));
    let record = vec![7; 100];
    let (_, group) =
        state.append(&mut Incoming::Copied(&[record.as_slice().into()]), FRAME_BYTES + 100, false, now).ok().unwrap();
    assert!(group.is_served(), "its waiter sleeps without being counted");
    while let WriterTurn::Write(submission) = state.serve(now) {
        state.complete(submission.id, Ok(()), None, now());
    }
    assert!(state.is_quiet(), "the served block is pending, nothing is in flight, and its waiters sleep");
}

/// Another thread wrote the block of the log's own thread again: that thread is known to be stalled.
#[test]
fn others_write_once_a_block_of_the_writer_was_rewritten() {
    let mut state = state(rules(1));
    assert!(matches!(state.serve(now), WriterTurn::Sleep));
    state.waiters = 20;
    append(&mut state, 100).ok().unwrap();
    assert_eq!(state.leave_to_writer(now), Some(true));
    let WriterTurn::Write(submission) = state.serve(now) else { panic!() };
    submission.block.group.set_sealed(std::sync::Arc::new(nowait::Buf::from(vec![0u8; 4096])));
    for _ in 0..20 {
        append(&mut state, 100).ok().unwrap();
    }
    let late = now() + Duration::from_secs(1);
    state.ending.clear();
    assert!(matches!(state.rescue(late), Some(Rescue::Rewrite(_))));
    let done = state.complete(submission.id, Ok(()), Some(Rewritten { began: late, file: () }), late);
    done.ending.set_over();
    let next = done.ending.next();
    assert!(!matches!(next, Successor::Nobody), "pending records wait for the stalled thread");
}

/// A log whose own thread writes for 32 tasks, of which none has appended again.
fn served(write: Duration) -> Pipeline<()> {
    let mut state = state(rules(1));
    (state.waiters, state.tasks) = (32, 32);
    state.writer = Writer::Active(now());
    state.gathers.wrote(write);
    state
}

#[test]
fn the_writer_gathers_tasks_for_less_than_a_write() {
    let mut state = served(Duration::from_micros(100));
    assert_eq!(state.gather_time(), Some(Duration::from_nanos(62_500)));
    // Not for long beside a slow device, and not for threads, of which one can write.
    assert_eq!(served(Duration::from_secs(5)).gather_time(), Some(Duration::from_micros(500)));
    state.tasks = 8;
    assert_eq!(state.gather_time(), None);
    state.tasks = 32;
    (0..28).for_each(|_| assert!(append(&mut state, 10).is_ok()));
    assert!(state.ends_gathering(), "most suffice");
    assert_eq!(state.gather_time(), None);
}

#[test]
fn attempts_to_gather_that_fail_become_rare() {
    const TIME: Duration = Duration::from_micros(75);
    let mut state = served(Duration::from_micros(100));
    let late = |time| time + Duration::from_nanos(1);
    let attempt = |state: &mut Pipeline<()>| state.gather_time().map(|time| state.gathered(late(time), time)).is_some();
    let attempts = (0..1000).filter(|_| attempt(&mut state)).count();
    assert!((8..16).contains(&attempts), "{attempts}");
    // A yield took as long as ten writes.
    state.gathered(Duration::from_millis(1), TIME);
    assert_eq!((0..1000).position(|_| state.gather_time().is_some()), Some(640));
    state.gathers = Gathers::default();
    // Appends wait for the write of the open block.
    state.gathers.wrote(Duration::from_micros(100));
    state.appends_wait = 1;
    assert!(state.ends_gathering() && state.gather_time().is_none());
    state.appends_wait = 0;
    (0..28).for_each(|_| assert!(append(&mut state, 10).is_ok()));
    state.gathered(3 * TIME, TIME);
    assert_eq!(state.gathers.penalty, 256);
    // Successes bring attempts back.
    (0..9).for_each(|_| state.gathered(TIME, TIME));
    assert_eq!(state.gathers.penalty, 0);
}
