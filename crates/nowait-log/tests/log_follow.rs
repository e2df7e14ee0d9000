//! Following a log that another process writes.

#[path = "../../nowait/tests/common/mod.rs"]
mod common;

use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use common::{Watchdog, at_most, child, eventually, mounts, overwrite};
use nowait::ErrorKind;
use nowait_log::{Durability, FollowFrom, Followed, Follower, Log, Options, Strategy, Submitter, SyncPolicy, follow};

const SEGMENT_BYTES: u64 = 128 << 10;

fn options() -> Options {
    let strategy = Strategy { durability: Durability::Write, by: Submitter::Call, depth: 2 };
    Options::new().create(true).segment_bytes(SEGMENT_BYTES).sync(SyncPolicy::Fixed(strategy))
}

fn record(lsn: u64) -> Vec<u8> {
    let mut bytes = lsn.to_le_bytes().to_vec();
    bytes.resize(8 + (lsn * 37 % 900) as usize, lsn as u8);
    bytes
}

fn append(log: &Log, count: u64) -> u64 {
    (0..count).fold(0, |_, _| log.append(&record(log.last_lsn() + 1)).wait().unwrap().wait().unwrap())
}

/// An event that holds no borrow.
#[derive(Debug, PartialEq, Eq)]
enum Event {
    Record(u64),
    Missing(std::ops::Range<u64>),
    Cut(u64),
}

fn next(follower: &mut Follower) -> Option<Event> {
    follower.next().unwrap().map(|found| match found {
        Followed::Record { lsn, bytes, .. } => {
            assert_eq!(bytes, record(lsn), "record {lsn}");
            Event::Record(lsn)
        }
        Followed::Missing(lsns) => Event::Missing(lsns),
        Followed::Cut(lsn) => Event::Cut(lsn),
        other => panic!("{other:?}"),
    })
}

/// Everything that comes until `is_last` says so, or for ten seconds.
fn until_one(follower: &mut Follower, is_last: impl Fn(&Event) -> bool) -> Vec<Event> {
    let end = Instant::now() + at_most(Duration::from_secs(10));
    let mut events = Vec::new();
    while Instant::now() < end {
        match next(follower) {
            Some(event) => {
                events.push(event);
                if events.last().is_some_and(&is_last) {
                    break;
                }
            }
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    events
}

/// Everything that comes until record `last`.
fn until(follower: &mut Follower, last: u64) -> Vec<Event> {
    until_one(follower, |event| *event == Event::Record(last))
}

fn records(lsns: std::ops::RangeInclusive<u64>) -> Vec<Event> {
    lsns.map(Event::Record).collect()
}

fn begin(path: &Path, from: FollowFrom) -> Follower {
    follow(path, from).wait().unwrap()
}

/// Role of the other process: appends, says what is durable, and does what it is told.
fn write_for(path: &Path) {
    let (mut log, _) = Log::open(path, &options()).wait().unwrap();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (what, number) = line.split_once(' ').unwrap();
        let number: u64 = number.parse().unwrap();
        match what {
            "append" => drop(append(&log, number)),
            "truncate" => log.truncate_prefix(number),
            "cut" => log.truncate_suffix(number).wait().unwrap(),
            "reopen" => {
                log.close().wait().unwrap();
                log = Log::open(path, &options()).wait().unwrap().0;
            }
            other => panic!("{other}"),
        }
        println!("did {}", log.durable_lsn());
        std::io::stdout().flush().unwrap();
    }
}

#[test]
fn child() {
    match child::role().as_deref() {
        None => {}
        Some("writer") => write_for(&child::path()),
        Some(other) => panic!("{other}"),
    }
}

/// The other process.
struct Writer {
    process: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Writer {
    fn new(path: &Path) -> Writer {
        let mut command = child::command_at("writer", path);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap());
        Writer { process, lines }
    }

    /// Has it do something; gives the last durable record.
    fn tell(&mut self, what: &str, number: u64) -> u64 {
        writeln!(self.process.stdin.as_mut().unwrap(), "{what} {number}").unwrap();
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the writer ended");
            // The test harness of the child prints lines of its own.
            if let Some((_, lsn)) = line.trim().split_once("did ") {
                return lsn.parse().unwrap();
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn records_of_another_process_come_as_they_become_durable_through_segments_and_epochs() {
    let _watchdog = Watchdog::new("a follower", 120);
    let dir = mounts::temp_dir();
    let path = dir.path().join("log");
    let mut writer = Writer::new(&path);
    assert_eq!(writer.tell("append", 3), 3);
    let mut follower = begin(&path, FollowFrom::Lsn(1));
    assert_eq!(until(&mut follower, 3), records(1..=3));
    // Through several segments.
    assert_eq!(writer.tell("append", 900), 903);
    assert_eq!(until(&mut follower, 903), records(4..=903));
    writer.tell("reopen", 0);
    assert_eq!(next(&mut follower), None);
    assert_eq!(writer.tell("append", 5), 908);
    assert_eq!(until(&mut follower, 908), records(904..=908));
    // Killed, and so without a watermark of its own; then opened again.
    writer.tell("append", 1);
    drop(writer);
    assert_eq!(until(&mut follower, 909), records(909..=909));
    let mut writer = Writer::new(&path);
    assert_eq!(writer.tell("append", 2), 911);
    assert_eq!(until(&mut follower, 911), records(910..=911));
}

#[test]
fn what_retention_removed_is_told_and_the_rest_follows() {
    let _watchdog = Watchdog::new("a follower", 120);
    let dir = mounts::temp_dir();
    let path = dir.path().join("log");
    let mut writer = Writer::new(&path);
    writer.tell("append", 3);
    let mut follower = begin(&path, FollowFrom::Lsn(1));
    assert_eq!(until(&mut follower, 3), records(1..=3));
    // The segment that is being read goes, and is used again.
    let last = writer.tell("append", 1000);
    writer.tell("truncate", last - 10);
    let last = writer.tell("append", 1000);
    writer.tell("truncate", last - 10);
    let last = writer.tell("append", 600);
    let events = until(&mut follower, last);
    // Retention may remove a further segment while the follower reads.
    let (mut expected, mut gaps) = (4, 0);
    for event in events {
        match event {
            Event::Record(lsn) if lsn == expected => expected += 1,
            Event::Missing(lsns) if lsns.start == expected && lsns.end > expected && lsns.end <= last - 600 => {
                (expected, gaps) = (lsns.end, gaps + 1);
            }
            event => panic!("{event:?} follows {}", expected - 1),
        }
    }
    assert!(gaps > 0 && expected == last + 1, "{gaps} gaps, up to {expected}");
}

#[test]
fn a_cut_end_is_told_and_the_records_that_took_its_numbers_follow() {
    let _watchdog = Watchdog::new("a follower", 120);
    let dir = mounts::temp_dir();
    let path = dir.path().join("log");
    let mut writer = Writer::new(&path);
    writer.tell("append", 20);
    let mut follower = begin(&path, FollowFrom::Lsn(1));
    assert_eq!(until(&mut follower, 20), records(1..=20));
    writer.tell("cut", 15);
    assert_eq!(writer.tell("append", 3), 18);
    let mut expected = vec![Event::Cut(15)];
    expected.extend(records(16..=18));
    assert_eq!(until(&mut follower, 18), expected);
    // Into an earlier segment, and before the follower has read that far.
    writer.tell("append", 700);
    let mut late = begin(&path, FollowFrom::Lsn(1));
    writer.tell("cut", 30);
    assert_eq!(writer.tell("append", 2), 32);
    // It may have read what was cut off since, before it finds the cut.
    let mut events = until(&mut late, 32);
    while let Some(event) = next(&mut late) {
        events.push(event);
    }
    if !events.contains(&Event::Cut(30)) && events.len() > 32 {
        events.extend(until_one(&mut late, |event| *event == Event::Cut(30)));
        events.extend(until(&mut late, 32));
    }
    match events.iter().position(|event| *event == Event::Cut(30)) {
        Some(cut) => assert_eq!(events[cut + 1..], records(31..=32)),
        None => assert_eq!(events, records(1..=32)),
    }
    assert_eq!(late.next_lsn(), 33);
    assert_eq!(until_one(&mut follower, |event| *event == Event::Record(32)).last(), Some(&Event::Record(32)));
}

/// Symptom: before the first `next` it settled nothing, and the record was not found.
#[test]
fn a_follower_settles_before_its_first_record() {
    let dir = mounts::temp_dir();
    let path = dir.path().join("log");
    let (log, _) = Log::open(&path, &options().maintenance(false)).wait().unwrap();
    append(&log, 1);
    for from in [FollowFrom::Last(10), FollowFrom::Lsn(1)] {
        let mut follower = begin(&path, from);
        follower.settle().unwrap();
        assert_eq!((next(&mut follower), next(&mut follower)), (Some(Event::Record(1)), None));
    }
}

#[test]
fn the_last_records_are_found_without_reading_the_whole_log() {
    let dir = mounts::temp_dir();
    let path = dir.path().join("log");
    let (log, _) = Log::open(&path, &options()).wait().unwrap();
    append(&log, 2000);
    let bytes: u64 = log.stats().written_bytes;
    let mut follower = begin(&path, FollowFrom::Last(10));
    assert_eq!(follower.next_lsn(), 1991);
    follower.settle().unwrap();
    assert_eq!(until(&mut follower, 2000), records(1991..=2000));
    assert!(follower.bytes_read() < 6 * SEGMENT_BYTES && follower.bytes_read() < bytes, "{}", follower.bytes_read());
    // One that finds nothing reads little.
    let before = follower.bytes_read();
    for _ in 0..50 {
        assert_eq!(next(&mut follower), None);
    }
    assert!(follower.bytes_read() - before <= 50 * (16 << 10), "{}", follower.bytes_read() - before);
    let mut all = begin(&path, FollowFrom::Last(5000));
    assert_eq!(until(&mut all, 2000), records(1..=2000));
    log.close().wait().unwrap();
    let mut closed = begin(&path, FollowFrom::Last(2));
    assert_eq!(until(&mut closed, 2000), records(1999..=2000));
}

/// The writer's watermark comes some milliseconds after its last record; until then only a sync shows
/// that a whole block is durable.
#[test]
fn a_whole_block_counts_only_when_it_is_known_durable() {
    let dir = mounts::temp_dir();
    let path = dir.path().join("log");
    // Without maintenance no watermark block is written.
    let (log, _) = Log::open(&path, &options().maintenance(false)).wait().unwrap();
    append(&log, 3);
    let mut follower = begin(&path, FollowFrom::Lsn(1));
    let first: Vec<Event> = std::iter::from_fn(|| next(&mut follower)).collect();
    // The last block is covered by nothing.
    assert!(first.len() < 3 && first == records(1..=first.len() as u64), "{first:?}");
    follower.settle().unwrap();
    let rest: Vec<Event> = std::iter::from_fn(|| next(&mut follower)).collect();
    assert_eq!(rest, records(first.len() as u64 + 1..=3));
    // By itself it syncs after a while.
    append(&log, 1);
    assert_eq!(until(&mut follower, 4), records(4..=4));
    log.close().wait().unwrap();
}

#[test]
fn where_there_is_no_log_there_is_nothing_to_follow() {
    let dir = mounts::temp_dir();
    let error = follow(dir.path().join("none"), FollowFrom::Lsn(1)).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let error = follow(dir.path(), FollowFrom::Last(1)).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

/// Symptom: a record that was written between two looks at its page was never found.
#[test]
fn no_record_is_missed_that_is_written_while_its_page_is_looked_at() {
    let _watchdog = Watchdog::new("a follower that never waits", 120);
    const RECORDS: u64 = 1500;
    let dir = mounts::temp_dir();
    let path = dir.path().join("log");
    let (log, _) = Log::open(&path, &options().segment_bytes(16 << 20)).wait().unwrap();
    append(&log, 1);
    let mut follower = begin(&path, FollowFrom::Lsn(1));
    std::thread::scope(|scope| {
        scope.spawn(|| append(&log, RECORDS - 1));
        for lsn in 1..=RECORDS {
            let end = Instant::now() + at_most(Duration::from_secs(10));
            let found = loop {
                match next(&mut follower) {
                    Some(found) => break Some(found),
                    None if Instant::now() > end => break None,
                    None => {}
                }
            };
            assert_eq!(found, Some(Event::Record(lsn)));
        }
    });
}

#[test]
fn a_control_file_that_is_damaged_or_missing_is_told() {
    let dir = mounts::temp_dir();
    let path = dir.path().join("log");
    Log::open(&path, &options()).wait().unwrap().0.close().wait().unwrap();
    let refused = || follow(&path, FollowFrom::Lsn(1)).wait().unwrap_err().kind();
    std::fs::write(path.join("control"), [0; 8192]).unwrap();
    assert_eq!(refused(), ErrorKind::Damaged);
    std::fs::remove_file(path.join("control")).unwrap();
    assert_eq!(refused(), ErrorKind::NotFound);
}

/// Flips a bit of a record's block, in its header or in the record, in the file that holds it.
fn damage(path: &Path, victim: u64, at: usize) {
    for entry in fs::read_dir(path).unwrap() {
        let file = entry.unwrap().path();
        // A segment that is being prepared gets another name.
        let Ok(bytes) = fs::read(&file) else { continue };
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let is_it = |at: &usize| {
            let records = || u64::from(u32::from_le_bytes(bytes[at + 44..at + 48].try_into().unwrap()));
            bytes[*at..].starts_with(b"nwbk") && (number(at + 24)..number(at + 24) + records()).contains(&victim)
        };
        if let Some(block) = (0..bytes.len()).step_by(4096).find(is_it) {
            return overwrite(&file, (block + at) as u64, &[bytes[block + at] ^ 1]);
        }
    }
    panic!("record {victim} is in no file");
}

/// Symptom: a follower stayed at a damaged block: in the newest segment without an error, in an
/// older segment with the same error at each call.
#[test]
fn damage_is_reported_once_and_passed_where_asked_to() {
    const LAST: u64 = 400;
    for victim in [1, 77, 250, LAST - 3] {
        for at in [24, 72] {
            let dir = mounts::temp_dir();
            let path = dir.path().join("log");
            let (log, _) = Log::open(&path, &options()).wait().unwrap();
            append(&log, LAST);
            damage(&path, victim, at);
            let mut follower = begin(&path, FollowFrom::Lsn(1));
            follower.settle().unwrap();
            let mut expected = records(1..=victim - 1);
            let mut found = Vec::new();
            let mut told = 0;
            let end = Instant::now() + at_most(Duration::from_secs(20));
            while found.last() != Some(&Event::Record(LAST)) {
                assert!(Instant::now() < end, "{victim} {at}: {:?}", found.last());
                match follower.next() {
                    Ok(Some(Followed::Record { lsn, bytes, .. })) => {
                        assert_eq!(bytes, record(lsn));
                        found.push(Event::Record(lsn));
                    }
                    Ok(Some(other)) => panic!("{other:?}"),
                    Ok(None) => follower.settle().unwrap(),
                    Err(error) => {
                        assert!(error.kind() == ErrorKind::Damaged, "{error}");
                        assert_eq!(found, expected, "{victim} {at}: {error}");
                        let damage = follower.damage().unwrap();
                        assert_eq!(damage.lsns, victim..victim + 1, "{damage}");
                        told += 1;
                        // It stays, until it is asked to go on.
                        follower.skip_damage(told >= 3);
                        assert!(told <= 4);
                    }
                }
            }
            expected.extend(records(victim + 1..=LAST));
            assert!(found == expected && told == 4, "{victim} {at}: {told}");
            // What comes is followed, too.
            append(&log, 1);
            assert_eq!(until(&mut follower, LAST + 1), records(LAST + 1..=LAST + 1));
            log.close().wait().unwrap();
        }
    }
}

/// Damage at the end of a log that is being written, which nobody asks to settle: of a small record,
/// and of one that is larger than most searches.
#[test]
fn damage_in_the_segment_that_is_written_is_noticed() {
    for length in [100, 3 << 20] {
        let dir = mounts::temp_dir();
        let path = dir.path().join("log");
        let options = options().segment_bytes(32 << 20).first_segment_bytes(32 << 20);
        let (log, _) = Log::open(&path, &options).wait().unwrap();
        append(&log, 3);
        let mut follower = begin(&path, FollowFrom::Lsn(1));
        assert_eq!(until(&mut follower, 3), records(1..=3));
        append(&log, 1);
        log.append(&vec![5; length]).wait().unwrap().wait().unwrap();
        damage(&path, 5, 24);
        append(&log, 3);
        assert_eq!(until(&mut follower, 4), records(4..=4));
        let shared = RefCell::new(&mut follower);
        assert!(eventually(|| shared.borrow_mut().next().is_err()));
        let error = follower.next().unwrap_err();
        assert!(error.kind() == ErrorKind::Damaged && error.to_string().contains("record 5 is lost"), "{error}");
        assert_eq!(follower.next_lsn(), 5);
        follower.skip_damage(true);
        assert!(follower.next().is_err());
        assert_eq!(until(&mut follower, 8), records(6..=8));
        log.close().wait().unwrap();
    }
}

#[test]
fn a_follower_knows_whether_its_log_is_in_place() {
    let dir = mounts::temp_dir();
    let (path, other) = (dir.path().join("log"), dir.path().join("other"));
    let (log, _) = Log::open(&path, &options()).wait().unwrap();
    let follower = begin(&path, FollowFrom::Lsn(1));
    assert!(follower.is_in_place().unwrap());
    log.close().wait().unwrap();
    fs::rename(&path, &other).unwrap();
    assert!(!follower.is_in_place().unwrap());
    Log::open(&path, &options()).wait().unwrap().0.close().wait().unwrap();
    assert!(!follower.is_in_place().unwrap(), "another directory");
    fs::remove_dir_all(&path).unwrap();
    fs::rename(&other, &path).unwrap();
    assert!(follower.is_in_place().unwrap(), "renamed back");
    fs::remove_file(path.join("control")).unwrap();
    assert!(!follower.is_in_place().unwrap(), "no log any more");
}
