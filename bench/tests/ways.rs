//! Every way returns the right bytes, in every case of every table, on a small file whose last
//! block is short; and every way that writes or logs writes these bytes and no others.

use std::env;
use std::fs;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use indicatif::ProgressBar;
use nowait_bench::machine::testfile::{SMALLEST, TestFile};
use nowait_bench::measure::meter::{Round, Sample};
use nowait_bench::measure::mixed::{self, BEAT, Layout, Mixture, Neighbour, Plan};
use nowait_bench::measure::options::{Beside, Logged, Options};
use nowait_bench::measure::pace::Pace;
use nowait_bench::measure::progress::Course;

use nowait_bench::measure::work::{Buffer, Commits, Contents, Gather, Range, Reads, Records, Target, Writes};
use nowait_bench::random::Random;
use nowait_bench::report::Report;
use nowait_bench::sys::PAGE;
use nowait_bench::table::log::{LOG, PIPELINED, TASKS};
use nowait_bench::table::mixed::MIXED;
use nowait_bench::table::reads::{CACHED, GATHER, READS};
use nowait_bench::table::scan::SCAN;
use nowait_bench::table::writes::{self, STALL, WRITES};
use nowait_bench::table::{Phase, Run, Table, plan};
use nowait_bench::ways::{self, Does, LogWay, MixedWay, Part, ReadWay, WAYS, Way, WriteWay};
use nowait_bench::{Error, ErrorKind, Result};

const SIZE: u64 = SMALLEST + 1234;
const SEED: u64 = 42;

/// On the disk of the build, because the system's temporary directory may be in memory, where
/// nothing is ever cold.
fn on_disk() -> &'static str {
    env!("CARGO_TARGET_TMPDIR")
}

fn file_of(size: u64) -> TestFile {
    TestFile::make(on_disk().as_ref(), size, SEED, &AtomicBool::new(false), |_| {}).unwrap()
}

fn small_file() -> TestFile {
    file_of(SIZE)
}

/// Those that this system allows.
fn allowed<W: ?Sized>(ways: Vec<Part<W>>) -> impl Iterator<Item = Part<W>> {
    ways.into_iter().filter(|part| (part.way.refused)().is_none())
}

fn usable() -> impl Iterator<Item = Part<dyn ReadWay>> {
    allowed(ways::readers(WAYS))
}

fn target(file: &TestFile) -> Target<'_> {
    Target::of(file)
}

#[test]
fn reads_are_right_at_every_depth_up_to_the_short_block_at_the_end() {
    let file = small_file();
    let cancel = AtomicBool::new(false);
    let mut offsets: Vec<u64> = (0..SIZE.div_ceil(4096)).map(|block| block * 4096).collect();
    offsets.reverse();
    for way in usable() {
        for depth in [1, 3, 32, 300] {
            let check = |offset, bytes: &[u8]| file.matches(offset, bytes);
            let gate = std::sync::Barrier::new(1);
            let mut round = Round::new(&gate, Some(&check));
            let mut buffer = Buffer::new(depth * 4096);
            let job =
                Reads { target: target(&file), block: 4096, depth, offsets: &offsets, pace: None, cancel: &cancel };
            way.reads(&job, buffer.bytes(), &mut round).unwrap();
            let sample = Sample::of(&[round]).unwrap();
            let seen = (sample.operations, sample.bytes, sample.wrong);
            assert_eq!(seen, (offsets.len() as u64, SIZE, None), "{} depth {depth}", way.name());
            assert_eq!(sample.latencies.len(), sample.operations);
        }
    }
}

#[test]
fn direct_reads_are_right_and_leave_nothing_in_the_page_cache() {
    let file = match small_file().past_the_cache() {
        // As on tmpfs.
        Err(_) => return println!("skipped: {} refuses O_DIRECT", on_disk()),
        Ok(file) => file,
    };
    let cancel = AtomicBool::new(false);
    let offsets: Vec<u64> = (0..file.size() / 4096).rev().map(|block| block * 4096).collect();
    for way in allowed(ways::direct_readers(WAYS)) {
        for depth in [1, 32, 300] {
            file.make_cold().unwrap();
            let check = |offset, bytes: &[u8]| file.matches(offset, bytes);
            let gate = std::sync::Barrier::new(1);
            let mut round = Round::new(&gate, Some(&check));
            let mut buffer = Buffer::new(depth * 4096);
            let target = target(&file);
            let job = Reads { target, block: 4096, depth, offsets: &offsets, pace: None, cancel: &cancel };
            way.reads(&job, buffer.bytes(), &mut round).unwrap();
            let sample = Sample::of(&[round]).unwrap();
            let seen = (sample.operations, sample.bytes, sample.wrong);
            assert_eq!(seen, (offsets.len() as u64, file.size(), None), "{} depth {depth}", way.name());
            assert_eq!(file.cached_pages().unwrap(), 0, "{} depth {depth}", way.name());
        }
    }
}

#[test]
fn a_paced_way_begins_no_read_before_its_moment_and_counts_from_there() {
    let file = small_file();
    let cancel = AtomicBool::new(false);
    let offsets: Vec<u64> = (0..200).map(|block| block * 4096).collect();
    let pace = Pace::Every(Duration::from_millis(1));
    let pace = Some(&pace);
    let mut paced = 0;
    for way in allowed(ways::load_readers(WAYS)) {
        paced += 1;
        for depth in [1, 8] {
            let check = |offset, bytes: &[u8]| file.matches(offset, bytes);
            let gate = std::sync::Barrier::new(1);
            let mut round = Round::new(&gate, Some(&check));
            let mut buffer = Buffer::new(depth * 4096);
            let target = target(&file);
            let job = Reads { target, block: 4096, depth, offsets: &offsets, pace, cancel: &cancel };
            way.reads(&job, buffer.bytes(), &mut round).unwrap();
            let sample = Sample::of(&[round]).unwrap();
            assert_eq!((sample.operations, sample.wrong), (200, None), "{} depth {depth}", way.name());
            // The last one is to begin after 199 ms; a busy machine is late, none is early.
            assert!(sample.seconds >= 0.199, "{} depth {depth}: {}", way.name(), sample.seconds);
            // Counted from when the round began, or from when the last was complete, latencies
            // would have the round's length.
            let median = sample.latencies.value_at_quantile(0.5);
            assert!(median < 100_000_000, "{} depth {depth}: {median}", way.name());
        }
    }
    assert!(paced >= 5, "{paced}");
}

#[test]
fn gathers_are_right_also_beyond_a_queue_s_size_and_with_empty_records() {
    let file = small_file();
    let cancel = AtomicBool::new(false);
    let mut ranges: Vec<Range> =
        (0..700).map(|i| Range { offset: i * 1500 % (SIZE - 4096), len: (i * 37 % 4097) as u32 }).collect();
    ranges.push(Range { offset: SIZE - 7, len: 7 });
    for way in allowed(ways::gatherers(WAYS)) {
        for records in [1, 8, 700, 5000] {
            let check = |offset, bytes: &[u8]| file.matches(offset, bytes);
            let gate = std::sync::Barrier::new(1);
            let mut round = Round::new(&gate, Some(&check));
            let job = Gather::new(target(&file), &ranges, records, &cancel);
            let mut output = Buffer::new(job.output_len());
            way.gather(&job, output.bytes(), &mut round).unwrap();
            let sample = Sample::of(&[round]).unwrap();
            assert_eq!((sample.operations, sample.wrong), (701, None), "{} records {records}", way.name());
        }
    }
}

#[test]
fn a_file_that_was_cut_short_is_an_error_and_not_a_hang() {
    let path = format!("{}/cut-short-{}", on_disk(), std::process::id());
    fs::write(&path, vec![7; SMALLEST as usize]).unwrap();
    let file = TestFile::existing(path.as_ref()).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(SMALLEST / 2).unwrap();
    let cancel = AtomicBool::new(false);
    let offsets: Vec<u64> = (0..SMALLEST / 4096).map(|block| block * 4096).collect();
    for way in usable() {
        let gate = std::sync::Barrier::new(1);
        let mut round = Round::new(&gate, None);
        let mut buffer = Buffer::new(8 * 4096);
        let job =
            Reads { target: target(&file), block: 4096, depth: 8, offsets: &offsets, pace: None, cancel: &cancel };
        assert!(way.reads(&job, buffer.bytes(), &mut round).is_err(), "{}", way.name());
    }
    for way in allowed(ways::gatherers(WAYS)) {
        let gate = std::sync::Barrier::new(1);
        let ranges: Vec<Range> = offsets.iter().map(|&offset| Range { offset, len: 1000 }).collect();
        let job = Gather::new(target(&file), &ranges, 256, &cancel);
        let mut output = Buffer::new(job.output_len());
        let mut round = Round::new(&gate, None);
        assert!(way.gather(&job, output.bytes(), &mut round).is_err(), "{}", way.name());
    }
    fs::remove_file(path).unwrap();
}

/// A roster of one way, which lasts as long as the program.
fn only(way: &'static Way) -> ways::Roster {
    vec![way].leak()
}

fn tiny() -> Options {
    Options {
        rounds: Some(3),
        round_time: Duration::from_millis(1),
        commit_time: Duration::from_millis(5),
        depths: vec![1, 16],
        records: vec![1, 64],
        dir: on_disk().into(),
        ..Options::new(false, SEED)
    }
}

/// Measures these tables, in the build's directory. Returns the share that was done, too.
fn measure(
    tables: &[&'static Table],
    options: &Options,
    file: Option<&TestFile>,
    cancel: &AtomicBool,
) -> (Result<()>, Report, f64) {
    let (mut report, bar) = (Report::default(), ProgressBar::hidden());
    let mut course = Course::new(plan(tables, options, None), bar.clone());
    let mut run = Run { options, file, cancel, course: &mut course, report: &mut report };
    let result = run.measure(tables, &Phase::ALL);
    (result, report, bar.position() as f64 / 1000.0)
}

/// The error of a run.
fn fails(tables: &[&'static Table], options: &Options, file: Option<&TestFile>, stop: bool) -> Error {
    measure(tables, options, file, &AtomicBool::new(stop)).0.unwrap_err()
}

#[test]
fn a_run_fills_a_row_for_each_case_and_way() {
    let (file, go) = (small_file(), AtomicBool::new(false));
    let tables: [&'static Table; 3] = [&READS, &CACHED, &GATHER];
    let (result, report, done) = measure(&tables, &tiny(), Some(&file), &go);
    match result {
        // The build's directory is in memory.
        Err(error) if error.kind() == ErrorKind::NotCold => return,
        other => other.unwrap(),
    }
    assert!(done > 0.999, "{done}");
    assert_eq!(report.tables(), ["reads", "cached", "gather"]);
    let alone = usable().filter(|way| way.one_at_a_time()).count();
    // Of `reads` depth 1, and all of `cached`.
    assert_eq!(report.rows.len(), (2 + 3 + 4) * (usable().count() - alone) + (1 + 3) * alone);
    let rows_of = |way: &str| report.rows.iter().filter(|row| row.way == way).map(|row| row.case.as_str()).collect();
    let cases: Vec<&str> = rows_of("nowait-await");
    assert_eq!(cases, ["depth=1", "threads=1", "threads=2", "64K,half"]);
    for row in &report.rows {
        assert!(row.ops_per_s > 0.0 && row.rounds.len() == 3, "{row:?}");
        let latency = row.latency_ns.unwrap();
        assert!(latency.p50 <= latency.p99 && latency.p99 <= latency.max);
    }
}

#[test]
fn the_same_file_of_a_user_is_not_modified() {
    let path = format!("{}/users-file-{}", on_disk(), std::process::id());
    let content: Vec<u8> = (0..SIZE).map(|i| (i * i % 251) as u8).collect();
    fs::write(&path, &content).unwrap();
    let file = TestFile::existing(path.as_ref()).unwrap();
    let options = Options { rounds: Some(1), ..tiny() };
    let result = measure(&[&CACHED], &options, Some(&file), &AtomicBool::new(false)).0;
    assert_eq!(fs::read(&path).unwrap(), content);
    fs::remove_file(path).unwrap();
    if let Err(error) = result {
        assert_eq!(error.kind(), ErrorKind::NotCold, "{error}");
    }
}

/// A new file in the build's directory.
fn empty_file(name: &str) -> (Arc<fs::File>, std::path::PathBuf) {
    // Tests that run side by side in this process use the same names.
    static FILES: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let number = FILES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path = std::path::PathBuf::from(format!("{}/{name}-{}-{number}", on_disk(), std::process::id()));
    let file = fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let path = format!("/proc/self/fd/{}", file.as_raw_fd()).into();
    (Arc::new(file), path)
}

fn usable_writers() -> impl Iterator<Item = Part<dyn WriteWay>> {
    allowed([ways::writers(WAYS), ways::stallers(WAYS)].concat())
}

#[test]
fn writes_leave_exactly_their_bytes_at_every_depth() {
    const BLOCKS: u64 = 333;
    let cancel = AtomicBool::new(false);
    for way in usable_writers() {
        for depth in [1, 3, 16, 400] {
            let (file, path) = empty_file("written");
            let contents = Contents::new(SEED);
            let (block, path) = (writes::BLOCK, &*path);
            let job = Writes { file: &file, path, block, depth, blocks: BLOCKS, contents, cancel: &cancel };
            let mut buffer = Buffer::new(depth * block);
            job.contents.prepare(buffer.bytes(), block);
            let gate = std::sync::Barrier::new(1);
            let mut round = Round::new(&gate, None);
            way.writes(&job, buffer.bytes(), &mut round).unwrap();
            let sample = Sample::of(&[round]).unwrap();
            let seen = (sample.operations, sample.bytes);
            assert_eq!(seen, (BLOCKS, BLOCKS * block as u64), "{} depth {depth}", way.name());
            assert!(!sample.latencies.is_empty(), "{}", way.name());
            let wrong = writes::first_wrong(&file, job.contents, BLOCKS, 0..BLOCKS).unwrap();
            assert_eq!(wrong, None, "{} depth {depth}", way.name());
        }
    }
}

#[test]
fn a_block_that_is_wrong_missing_or_too_many_is_noticed() {
    use std::os::unix::fs::FileExt;
    let (file, path) = empty_file("wrong");
    let (contents, cancel) = (Contents::new(SEED), AtomicBool::new(false));
    let block = writes::BLOCK;
    let job = Writes { file: &file, path: &path, block, depth: 1, blocks: 8, contents, cancel: &cancel };
    let mut buffer = Buffer::new(block);
    contents.prepare(buffer.bytes(), block);
    let gate = std::sync::Barrier::new(1);
    ways::writers(WAYS)[0].writes(&job, buffer.bytes(), &mut Round::new(&gate, None)).unwrap();
    let wrong = |blocks| writes::first_wrong(&file, contents, blocks, 0..blocks).unwrap();
    assert_eq!((wrong(8), wrong(7), wrong(9)), (None, Some(7 * 4096), Some(8 * 4096)));
    file.write_all_at(&[0], 5000).unwrap();
    assert_eq!(wrong(8), Some(4096));
}

#[test]
fn a_file_that_may_not_be_written_is_an_error_and_not_a_hang() {
    // A folder can be written by no way, whoever asks.
    let folder = Arc::new(fs::File::open(on_disk()).unwrap());
    let (contents, cancel) = (Contents::new(SEED), AtomicBool::new(false));
    for way in usable_writers() {
        let block = writes::BLOCK;
        let path = on_disk().as_ref();
        let job = Writes { file: &folder, path, block, depth: 8, blocks: 100, contents, cancel: &cancel };
        let mut buffer = Buffer::new(8 * block);
        let gate = std::sync::Barrier::new(1);
        assert!(way.writes(&job, buffer.bytes(), &mut Round::new(&gate, None)).is_err(), "{}", way.name());
    }
}

/// Writes, and stalls of writers, without a test file.
const WRITING: [&Table; 2] = [&WRITES, &STALL];

fn tiny_writes() -> Options {
    Options { rounds: Some(2), size: Some(2 << 20), stall_size: Some(2 << 20), ..tiny() }
}

#[test]
fn a_run_that_writes_fills_a_row_for_each_case_and_way() {
    let (result, report, _) = measure(&WRITING, &tiny_writes(), None, &AtomicBool::new(false));
    result.unwrap();
    assert_eq!(report.tables(), ["writes", "stall"]);
    let usable = |ways: Vec<Part<dyn WriteWay>>| allowed(ways).count();
    // With one in flight there is nothing to merge.
    assert_eq!(report.rows.len(), 2 * usable(ways::writers(WAYS)) - 1 + usable(ways::stallers(WAYS)));
    let merging: Vec<_> = report.rows.iter().filter(|row| row.way == "pwritev-16").collect();
    assert!(merging.len() == 1 && merging[0].case.ends_with(" depth=16"), "{merging:?}");
    for row in &report.rows {
        assert!(row.ops_per_s > 0.0 && row.rounds.len() == 2, "{row:?}");
        assert!((row.bytes_per_s / row.ops_per_s - 4096.0).abs() < 1e-6, "{row:?}");
        assert!(row.case.starts_with("dir="), "{row:?}");
        assert_eq!(row.figure("stalled_fraction").is_some(), row.table == "stall");
    }
}

#[test]
fn a_run_that_writes_stops_when_told() {
    assert_eq!(fails(&WRITING, &tiny_writes(), None, true).kind(), ErrorKind::Interrupted);
}

/// Reads what it says while bytes are compared; in rounds that are timed, one block only.
struct Dozer;

impl ReadWay for Dozer {
    fn reads(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> std::io::Result<()> {
        use std::os::unix::fs::FileExt;
        round.start();
        for (index, offset) in job.each_offset().enumerate() {
            let (block, now) = (&mut buffer[..job.len_at(offset)], std::time::Instant::now());
            if index == 0 || round.tally.verifies() {
                job.target.file.read_exact_at(block, offset)?;
            }
            round.tally.block(offset, block, now, now);
        }
        round.stop();
        Ok(())
    }
}

#[test]
fn a_way_that_tells_of_bytes_that_it_has_not_read_fails_in_a_timed_round() {
    // Rounds of at least some MiB, of which one block in each is sampled.
    static DOZER: Way = Way::new("dozer", "", &[Does::Reads(&Dozer), Does::Scans(&Dozer)]);
    let options = Options { round_time: Duration::from_millis(50), roster: only(&DOZER), ..tiny() };
    for table in [&READS, &SCAN] {
        let error = fails(&[table], &options, Some(&file_of(4 << 20)), false);
        let told = error.to_string();
        let found = told.contains("dozer") && told.contains("a timed round returned wrong bytes");
        assert!(found || error.kind() == ErrorKind::NotCold, "{}: {told}", table.name);
    }
}

fn usable_loggers() -> impl Iterator<Item = Part<dyn LogWay>> {
    allowed(ways::loggers(WAYS))
}

#[test]
fn every_record_of_every_writer_is_where_the_way_says() {
    const COMMITS: u64 = 20;
    let cancel = AtomicBool::new(false);
    let more = [ways::pipeliners(WAYS), ways::task_loggers(WAYS)].concat();
    for way in usable_loggers().chain(more) {
        for (writers, size, in_flight) in
            [(1, 16, 1), (1, 5000, 7), (3, 128, 1), (2, 128, 32), (8, 4096, 1), (64, 100, 1)]
        {
            let in_flight = if way.pipelines() { in_flight } else { 1 };
            let (file, path) = empty_file("log");
            let all = writers as u64 * COMMITS;
            file.set_len(all * way.room(size) as u64).unwrap();
            let (records, folder) = (Records::new(SEED), on_disk().as_ref());
            let (file, path, commits) = (&*file, &*path, COMMITS);
            let job =
                Commits { file, path, folder, writers, in_flight, size, commits, pace: None, records, cancel: &cancel };
            let found = std::sync::Mutex::new(std::collections::HashSet::new());
            let check = |number, record: &[u8]| {
                found.lock().unwrap().insert(number);
                records.holds(number, record)
            };
            let gate = std::sync::Barrier::new(1);
            let mut round = Round::new(&gate, Some(&check));
            let bytes = way.commits(&job, &mut round).unwrap().unwrap();
            let sample = Sample::of(&[round]).unwrap();
            let (name, logged) = (way.name(), all * size as u64);
            let seen = (sample.operations, sample.bytes, sample.wrong);
            assert_eq!(seen, (all, logged, None), "{name} {writers} × {size}");
            assert_eq!(sample.latencies.len(), all);
            // One that makes files of its own has headers and watermark blocks in them, as many as
            // time brings.
            let most = if way.room(size) == 0 { u64::MAX } else { all * way.room(size) as u64 };
            assert!((logged..=most).contains(&bytes), "{name} {writers} × {size}: {bytes}");
            let found = found.into_inner().unwrap();
            let expected = (0..writers).flat_map(|writer| (0..COMMITS).map(move |n| Records::number(writer, n)));
            assert_eq!(found, expected.collect(), "{name} {writers} × {size}");
        }
    }
}

#[test]
fn a_log_that_may_not_be_written_is_an_error_and_not_a_hang() {
    // A folder can be written by no way, whoever asks.
    let file = &fs::File::open(on_disk()).unwrap();
    let (path, folder, cancel) = (on_disk().as_ref(), "/proc/self".as_ref(), &AtomicBool::new(false));
    for way in usable_loggers() {
        let (writers, in_flight, size, commits, records) = (8, 1, 128, 10, Records::new(SEED));
        let job = Commits { file, path, folder, writers, in_flight, size, commits, pace: None, records, cancel };
        let gate = std::sync::Barrier::new(1);
        assert!(way.commits(&job, &mut Round::new(&gate, None)).is_err(), "{}", way.name());
    }
}

fn tiny_logs() -> Options {
    Options { rounds: Some(2), writers: vec![1, 8], sizes: vec![128, 4096], ..tiny() }
}

#[test]
fn a_run_of_logs_fills_a_row_for_each_case_and_way() {
    let (result, report, done) = measure(&[&LOG], &tiny_logs(), None, &AtomicBool::new(false));
    result.unwrap();
    assert!(done > 0.999, "{done}");
    let direct_is_refused = report.notes.iter().any(|note| note.text.contains("O_DIRECT"));
    let usable: Vec<_> = usable_loggers().filter(|way| !(way.direct() && direct_is_refused)).collect();
    assert_eq!(report.rows.len(), 4 * usable.len());
    for row in &report.rows {
        assert!(row.ops_per_s > 0.0 && row.rounds.len() == 2 && row.table == LOG.name, "{row:?}");
        let size = if row.case.ends_with("size=4K") { 4096.0 } else { 128.0 };
        assert!((row.bytes_per_s / row.ops_per_s - size).abs() < 1e-6, "{row:?}");
        let wanted = if ["direct-dsync", "ring-dsync"].contains(&&*row.way) {
            4096.0 / size..=4096.0 / size
        } else if row.way.starts_with("nowait") {
            // Whole pages, with a header in each block, and watermark blocks, as many as time
            // brings.
            1.0..=f64::INFINITY
        } else {
            1.0..=4096.0 / size
        };
        assert!(wanted.contains(&row.figure("file_bytes_per_byte").unwrap()), "{row:?}");
        // Where the device counts.
        let on_device = row.figure("device_bytes_per_byte").zip(row.figure("device_writes_per_op"));
        assert!(on_device.is_none_or(|(bytes, writes)| bytes >= 1.0 && writes > 0.0), "{row:?}");
        let latency = row.latency_ns.unwrap();
        assert!(latency.p50 <= latency.p999 && latency.p999 <= latency.max, "{row:?}");
    }
}

#[test]
fn every_kind_of_work_with_a_log_fills_a_row_for_each_case_and_way() {
    let (writers, in_flight, sizes) = (vec![2], vec![8], vec![4096]);
    let options = Options {
        quick: true,
        rounds: Some(2),
        writers,
        in_flight,
        sizes,
        logs: Logged::value_variants().into(),
        ..tiny()
    };
    for table in [&PIPELINED, &TASKS] {
        let (result, report, _) = measure(&[table], &options, None, &AtomicBool::new(false));
        result.unwrap();
        let direct_is_refused = report.notes.iter().any(|note| note.text.contains("O_DIRECT"));
        let is_left_out = |way: &&str| direct_is_refused && way.contains("direct");
        let ways: Vec<_> = table.ways(&options).into_iter().filter(|way| !is_left_out(way)).collect();
        assert_eq!(report.rows.len(), ways.len(), "{}", table.name);
        for row in &report.rows {
            assert!(row.ops_per_s > 0.0 && row.rounds.len() == 2 && row.table == table.name, "{row:?}");
        }
        assert!(fails(&[table], &options, None, true).kind() == ErrorKind::Interrupted, "{}", table.name);
    }
}

/// One that says it is done and has written nothing.
struct Liar;

impl LogWay for Liar {
    fn direct(&self) -> bool {
        false
    }

    fn room(&self, size: usize) -> usize {
        size
    }

    fn commits(&self, job: &Commits<'_>, round: &mut Round<'_>) -> std::io::Result<Option<u64>> {
        round.start();
        let now = std::time::Instant::now();
        (0..job.commits * job.writers as u64).for_each(|_| round.tally.committed(job.size, now, now));
        round.stop();
        // Shows what it has not written, and the second time nothing.
        if job.writers == 1 {
            (0..job.commits).for_each(|n| round.tally.verify(Records::number(0, n), &vec![0; job.size]));
        }
        Ok(None)
    }
}

#[test]
fn a_way_that_has_not_written_its_records_is_found_out() {
    static LIAR: Way = Way::new("liar", "", &[Does::Commits(&Liar)]);
    for (writers, says) in [(1, "record 0 of writer 0"), (8, "found 0 of its 256")] {
        let options = Options { writers: vec![writers], roster: only(&LIAR), ..tiny_logs() };
        let error = fails(&[&LOG], &options, None, false);
        assert!(error.to_string().contains(says) && error.to_string().contains("liar"), "{error}");
    }
}

#[test]
fn a_run_of_logs_stops_when_told_and_says_when_there_is_no_room() {
    assert_eq!(fails(&[&LOG], &tiny_logs(), None, true).kind(), ErrorKind::Interrupted);
    // No disk has room for a record of this size.
    let error = fails(&[&LOG], &Options { sizes: vec![1 << 50], ..tiny_logs() }, None, false);
    assert!(error.kind() == ErrorKind::NoRoom && error.to_string().contains("--sizes"), "{error}");
}

/// Writes honestly in its first turn, which is the verification, and nothing later.
struct Lazy {
    /// The file is as long as it should be.
    grows: bool,
    turns: AtomicUsize,
}

impl Lazy {
    fn is_honest(&self) -> bool {
        self.turns.fetch_add(1, Ordering::Relaxed) == 0
    }
}

impl WriteWay for Lazy {
    fn writes(&self, job: &Writes<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> std::io::Result<()> {
        if self.is_honest() {
            return ways::writers(WAYS).iter().find(|way| way.name() == "pwrite").unwrap().writes(job, buffer, round);
        }
        round.start();
        let now = std::time::Instant::now();
        job.each_offset().for_each(|offset| round.tally.block(offset, &buffer[..job.block], now, now));
        if self.grows {
            job.file.set_len(job.blocks * job.block as u64)?;
        }
        round.stop();
        Ok(())
    }
}

impl LogWay for Lazy {
    fn direct(&self) -> bool {
        false
    }

    fn room(&self, size: usize) -> usize {
        size
    }

    fn commits(&self, job: &Commits<'_>, round: &mut Round<'_>) -> std::io::Result<Option<u64>> {
        if self.is_honest() {
            return usable_loggers().find(|way| way.name() == "append-fdatasync").unwrap().commits(job, round);
        }
        round.start();
        let now = std::time::Instant::now();
        (0..job.commits).for_each(|_| round.tally.committed(job.size, now, now));
        round.stop();
        if self.grows {
            (0..job.commits).for_each(|n| round.tally.found(Records::number(0, n), &vec![0; job.size]));
        }
        Ok(None)
    }
}

#[test]
fn what_is_not_written_in_a_timed_round_is_noticed() {
    static SHORT: Lazy = Lazy { grows: false, turns: AtomicUsize::new(0) };
    static EMPTY: Lazy = Lazy { grows: true, turns: AtomicUsize::new(0) };
    static SHORT_WAY: Way = Way::new("lazy", "", &[Does::Writes(&SHORT), Does::Commits(&SHORT)]);
    static EMPTY_WAY: Way = Way::new("lazy", "", &[Does::Writes(&EMPTY), Does::Commits(&EMPTY)]);
    let rosters: [(&Lazy, ways::Roster, &str); 2] =
        [(&SHORT, only(&SHORT_WAY), "found none of its records"), (&EMPTY, only(&EMPTY_WAY), "record 0 of writer 0")];
    for (way, ways, says) in rosters {
        let options = Options { size: Some(1 << 20), depths: vec![1], roster: ways, ..tiny() };
        let error = fails(&[&WRITES], &options, None, false);
        assert!(error.to_string().contains("lazy failed in writes"), "{error}");
        assert!(error.to_string().contains("the file is wrong from byte"), "{error}");
        way.turns.store(0, Ordering::Relaxed);
        let options = Options { writers: vec![1], roster: ways, ..tiny_logs() };
        let error = fails(&[&LOG], &options, None, false);
        assert!(error.to_string().contains("lazy failed in log") && error.to_string().contains(says), "{error}");
    }
}

fn usable_mixers() -> impl Iterator<Item = Part<dyn MixedWay>> {
    allowed(ways::mixers(WAYS))
}

/// One way, once: the sample and what it told, with each read's bytes compared, and how often each
/// page was read.
fn mix(
    way: &dyn MixedWay,
    job: &mixed::Mixed<'_>,
    file: &TestFile,
) -> std::io::Result<(Sample, Mixture, std::collections::HashMap<u64, u64>)> {
    let read = std::sync::Mutex::new(std::collections::HashMap::new());
    let check = |offset, bytes: &[u8]| {
        *read.lock().unwrap().entry(offset).or_insert(0) += 1;
        bytes.len() == 4096 && file.matches(offset, bytes)
    };
    let gate = std::sync::Barrier::new(1);
    let mut round = Round::new(&gate, Some(&check));
    let told = way.mixed(job, &mut round)?;
    let sample = Sample::of(&[round]).unwrap();
    Ok((sample, told, read.into_inner().unwrap()))
}

#[test]
fn tasks_read_what_the_plan_says_beside_a_heartbeat_and_others() {
    let file = file_of(4 << 20);
    let layout = Layout::of(file.size());
    let (written, path) = empty_file("beside");
    let folder = format!("{}/beside-log-{}", on_disk(), std::process::id());
    fs::create_dir(&folder).unwrap();
    let options = nowait_log::Options::new().create(true).segment_bytes(1 << 20);
    let (log, _) = nowait_log::Log::open(&folder, &options).wait().unwrap();
    let others = [Neighbour::Nobody, Neighbour::Writer { file: &written, path: &path }, Neighbour::Log(&log)];
    for way in usable_mixers() {
        for (tasks, workers, hot) in [(1, 1, 90), (1, 2, 50), (7, 1, 0), (64, 1, 90), (64, 2, 90), (40, 3, 100)] {
            for beside in others {
                let plan = Plan::new(layout, tasks, 320, hot, &mut Random::new(SEED));
                let (target, marks) = (target(&file), file.marks());
                let job = mixed::Mixed { target, marks, plan: &plan, workers, beside };
                let (sample, told, read) = mix(way.work, &job, &file).unwrap();
                let name = format!("{} {tasks} tasks {workers} workers {hot} %", way.name());
                let all = plan.reads();
                assert_eq!((sample.operations, sample.bytes, sample.wrong), (all, all * PAGE, None), "{name}");
                assert_eq!((told.cold.len(), told.hot.len()), (plan.cold, all - plan.cold), "{name}");
                assert_eq!(sample.latencies.len(), all, "{name}");
                let mut planned = std::collections::HashMap::new();
                let reads = plan.tasks.iter().flat_map(|reads| reads.iter());
                reads.for_each(|read| *planned.entry(read.offset()).or_insert(0) += 1);
                assert_eq!(read, planned, "{name}");
                // The round records every beat that was due. A beat that waits for a processor at the
                // end is missing. A thread in `block_on` has a separate heart, which ends with its tasks.
                let of_threads = way.name() == ways::OURS;
                let beats = |sample: &Sample, told: &Mixture| {
                    let due = (sample.seconds / BEAT.as_secs_f64()) as u64;
                    let least = if of_threads { 0 } else { due.saturating_sub(2) };
                    (least..=(due + 2) * workers as u64).contains(&told.late.len())
                };
                let again = |_| {
                    let (sample, told, _) = mix(way.work, &job, &file).unwrap();
                    beats(&sample, &told)
                };
                assert!(beats(&sample, &told) || (0..10).any(again), "{name}: {} beats", told.late.len());
                assert!(!matches!(beside, Neighbour::Nobody) || told.beside == 0, "{name}");
            }
        }
    }
    // A round that is long enough for them has beats, writes and records.
    let plan = Plan::new(layout, 16, 20_000, 100, &mut Random::new(SEED));
    let job = |beside| mixed::Mixed { target: target(&file), marks: file.marks(), plan: &plan, workers: 2, beside };
    for way in usable_mixers() {
        let (_, told, _) = mix(way.work, &job(Neighbour::Nobody), &file).unwrap();
        assert!(told.late.len() > 1, "{}", way.name());
    }
    for beside in &others[1..] {
        // On a busy disk the first record may not be stable before a round ends.
        let works = |_| mix(ways::mixers(WAYS)[0].work, &job(*beside), &file).unwrap().1.beside > 0;
        assert!((0..100).any(works));
    }
    let mut block = vec![0; 4096];
    std::os::unix::fs::FileExt::read_exact_at(&*written, &mut block, 0).unwrap();
    assert_eq!(block, vec![0xa5; 4096]);
    log.close().wait().unwrap();
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_mixed_load_on_a_file_that_was_cut_short_is_an_error_and_not_a_hang() {
    let path = format!("{}/mixed-cut-short-{}", on_disk(), std::process::id());
    fs::write(&path, vec![7; SMALLEST as usize]).unwrap();
    let file = TestFile::existing(path.as_ref()).unwrap();
    let plan = Plan::new(Layout::of(SMALLEST), 8, 400, 50, &mut Random::new(SEED));
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(SMALLEST / 2).unwrap();
    for way in usable_mixers() {
        for workers in [1, 2] {
            let target = target(&file);
            let job = mixed::Mixed { target, marks: file.marks(), plan: &plan, workers, beside: Neighbour::Nobody };
            let gate = std::sync::Barrier::new(1);
            assert!(way.mixed(&job, &mut Round::new(&gate, None)).is_err(), "{}", way.name());
        }
    }
    fs::remove_file(path).unwrap();
}

fn tiny_mixture() -> Options {
    Options {
        rounds: Some(2),
        mixed_time: Duration::from_millis(5),
        hot: vec![75, 100],
        tasks: vec![4],
        workers: vec![2],
        beside: vec![Beside::Nobody, Beside::Writes, Beside::Log],
        ..tiny()
    }
}

#[test]
fn a_run_of_mixed_loads_fills_a_row_for_each_case_and_way() {
    let (result, report, done) = measure(&[&MIXED], &tiny_mixture(), Some(&file_of(4 << 20)), &AtomicBool::new(false));
    match result {
        // The build's directory is in memory.
        Err(error) if error.kind() == ErrorKind::NotCold => return,
        other => other.unwrap(),
    }
    assert!(done > 0.999, "{done}");
    assert_eq!(report.rows.len(), 2 * 3 * usable_mixers().count());
    for row in &report.rows {
        assert!(row.ops_per_s > 0.0 && row.rounds.len() == 2 && row.table == "mixed", "{row:?}");
        let has = |name: &str| row.own.contains_key(name);
        let hot = row.own_latency("hot_latency_ns").unwrap();
        assert!(hot.p50 <= hot.p999 && hot.p999 <= hot.max, "{row:?}");
        assert_eq!(has("cold_latency_ns"), row.case.starts_with("hot=75 "), "{row:?}");
        assert_eq!(has("beside_per_s"), row.case.contains(" beside="), "{row:?}");
        assert_eq!(has("beats"), has("late_ns"), "{row:?}");
        assert_eq!(row.inline_fraction.is_some(), row.way.starts_with("nowait"), "{row:?}");
        let json = serde_json::to_value(row).unwrap();
        assert_eq!(json["hot_latency_ns"]["p99"], hot.p99, "{json}");
    }
    // A slow round has beats; the whole of a run has.
    assert!(report.rows.iter().any(|row| row.figure("beats").is_some_and(|beats| beats > 1.0)));
    // What it is to be shown by is there.
    assert!(nowait_bench::report::page::page(&report).contains("mixed latencies"));
}

/// Reads nothing and says that it has.
struct Dreamer;

impl MixedWay for Dreamer {
    fn mixed(&self, job: &mixed::Mixed<'_>, round: &mut Round<'_>) -> std::io::Result<Mixture> {
        round.start();
        let mut seen = Vec::new();
        for reads in &job.plan.tasks {
            let mut of_task = mixed::Seen::new(reads, job.marks, &round.tally);
            reads.iter().for_each(|read| of_task.add(read.offset(), &[0xa5; 4096], std::time::Instant::now()));
            seen.push(of_task);
        }
        round.stop();
        let late = nowait_bench::measure::meter::latencies();
        Ok(Mixture::tell(job, seen, late, 0, &mut round.tally))
    }
}

#[test]
fn a_way_that_has_not_read_its_pages_is_found_out_also_on_the_clock() {
    let file = file_of(1 << 20);
    let plan = Plan::new(Layout::of(file.size()), 4, 40, 75, &mut Random::new(SEED));
    let job =
        mixed::Mixed { target: target(&file), marks: file.marks(), plan: &plan, workers: 1, beside: Neighbour::Nobody };
    let gate = std::sync::Barrier::new(1);
    let mut round = Round::new(&gate, None);
    Dreamer.mixed(&job, &mut round).unwrap();
    assert!(Sample::of(&[round]).unwrap().wrong.is_some());
    static DREAMER: Way = Way::new("dreamer", "", &[Does::Mixed(&Dreamer)]);
    let options = Options { roster: only(&DREAMER), ..tiny_mixture() };
    let error = fails(&[&MIXED], &options, Some(&file), false);
    assert!(error.kind() == ErrorKind::NotCold || error.to_string().contains("wrong bytes"), "{error}");
}

#[test]
fn a_run_of_mixed_loads_stops_when_told() {
    let error = fails(&[&MIXED], &tiny_mixture(), Some(&file_of(1 << 20)), true);
    assert!([ErrorKind::Interrupted, ErrorKind::NotCold].contains(&error.kind()), "{error}");
}

#[test]
fn hot_pages_are_cached_and_cold_ones_are_not_whatever_was_before() {
    // Written in steps of a megabyte, it may lie in the cache in folios larger than a run.
    let file = file_of((16 << 20) + 1234);
    let layout = Layout::of(file.size());
    let cached = || nowait_bench::sys::residency(file.through_the_cache(), file.size()).unwrap();
    let befores: [fn(&TestFile) -> Result<()>; 3] = [|_| Ok(()), TestFile::make_cold, TestFile::make_warm];
    for before in befores {
        match before(&file).and_then(|()| file.make_mixed(layout.runs())) {
            // The build's directory is in memory.
            Err(error) if error.kind() == ErrorKind::NotCold => return,
            other => other.unwrap(),
        }
        let pages = cached();
        for (run, hot) in layout.runs() {
            assert!(run.clone().all(|page| pages[page as usize] == hot), "{run:?}");
        }
        // One cold page that a round has read is as many as there may be of the next round's plan.
        let (cold, _) = layout.runs().find(|(_, hot)| !hot).unwrap();
        let offset = cold.start * PAGE;
        std::os::unix::fs::FileExt::read_exact_at(file.open(), &mut [0; 4096], offset).unwrap();
        file.make_mixed(layout.runs()).unwrap();
        assert!(!cached()[cold.start as usize]);
    }
}
