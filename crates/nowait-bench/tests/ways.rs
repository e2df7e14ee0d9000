//! Every way returns the right bytes, in every case of every table, on a small file whose last
//! block is short; and every way that writes, copies or logs writes these bytes and no others. Who
//! maps a file has all of it there when it says so.

use std::env;
use std::fs;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use nowait_bench::machine::testfile::{SMALLEST, TestFile};
use nowait_bench::measure::interleave::Progress;
use nowait_bench::measure::meter::{Round, Sample};
use nowait_bench::measure::mixed::{self, BEAT, Layout, Mixture, Neighbour, Plan};
use nowait_bench::measure::options::{Beside, Direction, Logged, Options};
use nowait_bench::measure::pace::Pace;

use nowait_bench::measure::work::{
    Buffer, Commits, Contents, Gather, Populate, Range, Reads, Records, Route, Stream, Target, Writes,
};
use nowait_bench::random::Random;
use nowait_bench::report::Report;
use nowait_bench::sys::{Mapping, PAGE};
use nowait_bench::table::cached::CACHED;
use nowait_bench::table::dd::{self, DD, Dd};
use nowait_bench::table::gather::GATHER;
use nowait_bench::table::log::{self, LOG, Log};
use nowait_bench::table::mixed::{Figures, MIXED, Mixed};
use nowait_bench::table::prefault::{self, PREFAULT, Prefault};
use nowait_bench::table::reading::Readers;
use nowait_bench::table::reads::{self, READS};
use nowait_bench::table::scan::Scan;
use nowait_bench::table::stall::{self, Stall};
use nowait_bench::table::whole::{self, WHOLE};
use nowait_bench::table::writes::{self, WRITES};
use nowait_bench::table::{Phase, Run, Table, new_file};
use nowait_bench::ways::{
    self, LogWay, Mapped, MixedWay, PopulateWay, Populated, ReadWay, RowWay, StreamWay, Way, WriteWay, Written,
};
use nowait_bench::{Error, ErrorKind, Result};

const SIZE: u64 = SMALLEST + 1234;
const SEED: u64 = 42;

/// On the disk of the build, because the system's temporary directory may be in memory, where
/// nothing is ever cold.
fn on_disk() -> &'static str {
    env!("CARGO_TARGET_TMPDIR")
}

fn small_file() -> TestFile {
    TestFile::make(on_disk().as_ref(), SIZE, SEED, &AtomicBool::new(false), |_| {}).unwrap()
}

fn usable() -> impl Iterator<Item = &'static dyn ReadWay> {
    ways::readers().iter().copied().filter(|way| way.refused().is_none())
}

fn target(file: &TestFile) -> Target<'_> {
    Target::of(file)
}

struct Quiet {
    steps: u64,
    done: u64,
    cancel_at: u64,
    cancel: AtomicBool,
}

impl Quiet {
    fn new() -> Self {
        Self { steps: 0, done: 0, cancel_at: u64::MAX, cancel: AtomicBool::new(false) }
    }
}

impl Progress for &mut Quiet {
    fn begin(&mut self, _: &str, steps: u64) {
        self.steps += steps;
    }
    fn step(&mut self, steps: u64) {
        self.done += steps;
        if self.done >= self.cancel_at {
            self.cancel.store(true, Ordering::Relaxed);
        }
    }
    fn now(&mut self, _: &str) {}
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
    for way in ways::direct_readers().iter().filter(|way| way.refused().is_none()) {
        for (depth, pace) in [(1, None), (32, None), (300, None), (8, Some(Pace::Every(Duration::from_micros(100))))] {
            if pace.is_some() && !way.paced() {
                continue;
            }
            file.make_cold().unwrap();
            let check = |offset, bytes: &[u8]| file.matches(offset, bytes);
            let gate = std::sync::Barrier::new(1);
            let mut round = Round::new(&gate, Some(&check));
            let mut buffer = Buffer::new(depth * 4096);
            let (target, pace) = (target(&file), pace.as_ref());
            let job = Reads { target, block: 4096, depth, offsets: &offsets, pace, cancel: &cancel };
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
    for way in usable().filter(|way| way.paced()) {
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
    for way in usable().filter(|way| !way.one_at_a_time()) {
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
        if way.one_at_a_time() {
            continue;
        }
        let ranges: Vec<Range> = offsets.iter().map(|&offset| Range { offset, len: 1000 }).collect();
        let job = Gather::new(target(&file), &ranges, 256, &cancel);
        let mut output = Buffer::new(job.output_len());
        let mut round = Round::new(&gate, None);
        assert!(way.gather(&job, output.bytes(), &mut round).is_err(), "{}", way.name());
    }
    fs::remove_file(path).unwrap();
}

fn tiny() -> Options {
    Options {
        rounds: 3,
        round_time: Duration::from_millis(1),
        commit_time: Duration::from_millis(5),
        depths: vec![1, 16],
        records: vec![1, 64],
        ..Options::new(false, SEED)
    }
}

/// Measures these tables, in the build's directory.
fn measure(
    tables: &[&dyn Table],
    options: &Options,
    file: Option<&TestFile>,
    cancel: &AtomicBool,
) -> (Result<()>, Report, Quiet) {
    let (mut report, mut quiet) = (Report::default(), Quiet::new());
    let (dir, asked, mut progress) = (on_disk().as_ref(), Vec::new(), &mut quiet);
    let mut run = Run { options, asked, file, dir, cancel, progress: &mut progress, report: &mut report };
    let result = run.measure(tables, &Phase::ALL);
    (result, report, quiet)
}

/// The error of a run.
fn fails(tables: &[&dyn Table], options: &Options, file: Option<&TestFile>, stop: bool) -> Error {
    measure(tables, options, file, &AtomicBool::new(stop)).0.unwrap_err()
}

#[test]
fn a_run_fills_a_row_for_each_case_and_way() {
    let (file, go) = (small_file(), AtomicBool::new(false));
    let tables: [&dyn Table; 4] = [&READS, &WHOLE, &CACHED, &GATHER];
    let (result, report, quiet) = measure(&tables, &tiny(), Some(&file), &go);
    match result {
        // The build's directory is in memory.
        Err(error) if error.kind() == ErrorKind::NotCold => return,
        other => other.unwrap(),
    }
    assert_eq!(quiet.done, quiet.steps);
    assert_eq!(report.tables(), ["reads", "whole", "cached", "gather"]);
    let alone = usable().filter(|way| way.one_at_a_time()).count();
    // Of `reads` depth 1, and all of `cached`.
    assert_eq!(report.rows.len(), (2 + 1 + 3 + 4) * (usable().count() - alone) + (1 + 3) * alone);
    let rows_of = |way: &str| report.rows.iter().filter(|row| row.way == way).map(|row| row.case.as_str()).collect();
    for way in ["nowait-await", "nowait-tokio-await"] {
        let cases: Vec<&str> = rows_of(way);
        assert_eq!(cases, ["depth=1", "threads=1", "threads=2", "64K,half"], "{way}");
    }
    for row in &report.rows {
        assert!(row.ops_per_s > 0.0 && row.rounds.len() == 3, "{row:?}");
        let latency = row.latency_ns.unwrap();
        assert!(latency.p50 <= latency.p99 && latency.p99 <= latency.max);
        assert_eq!(row.figures::<whole::Figures>().times_s.is_some(), row.table == "whole");
    }
}

#[test]
fn the_same_file_of_a_user_is_not_modified() {
    let path = format!("{}/users-file-{}", on_disk(), std::process::id());
    let content: Vec<u8> = (0..SIZE).map(|i| (i * i % 251) as u8).collect();
    fs::write(&path, &content).unwrap();
    let file = TestFile::existing(path.as_ref()).unwrap();
    let options = Options { rounds: 1, ..tiny() };
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

fn usable_writers() -> impl Iterator<Item = &'static dyn WriteWay> {
    ways::writers()
        .iter()
        .chain(ways::stallers())
        .chain(ways::overwriters())
        .copied()
        .filter(|way| way.refused().is_none())
}

#[test]
fn writes_leave_exactly_their_bytes_at_every_depth() {
    const BLOCKS: u64 = 333;
    let cancel = AtomicBool::new(false);
    for way in usable_writers() {
        for depth in [1, 3, 16, 400] {
            let (file, path) = empty_file("written");
            let contents = Contents::new(SEED);
            let block = new_file::BLOCK;
            let sequential = Writes {
                file: &file,
                path: &path,
                block,
                depth,
                blocks: BLOCKS,
                order: None,
                contents,
                cancel: &cancel,
            };
            // Over what the first has written, and in another order.
            let again = Contents::new(SEED + 1);
            let order = Random::new(SEED).permutation(BLOCKS);
            for job in [sequential, Writes { order: Some(&order), contents: again, ..sequential }] {
                let mut buffer = Buffer::new(depth * block);
                job.contents.prepare(buffer.bytes(), block);
                let gate = std::sync::Barrier::new(1);
                let mut round = Round::new(&gate, None);
                way.writes(&job, buffer.bytes(), &mut round).unwrap();
                let sample = Sample::of(&[round]).unwrap();
                let seen = (sample.operations, sample.bytes);
                assert_eq!(seen, (BLOCKS, BLOCKS * block as u64), "{} depth {depth}", way.name());
                assert!(!sample.latencies.is_empty(), "{}", way.name());
                let wrong = new_file::first_wrong(&file, job.contents, BLOCKS).unwrap();
                assert_eq!(wrong, None, "{} depth {depth}", way.name());
            }
        }
    }
}

#[test]
fn a_block_that_is_wrong_missing_or_too_many_is_noticed() {
    use std::os::unix::fs::FileExt;
    let (file, path) = empty_file("wrong");
    let (contents, cancel) = (Contents::new(SEED), AtomicBool::new(false));
    let block = new_file::BLOCK;
    let job = Writes { file: &file, path: &path, block, depth: 1, blocks: 8, order: None, contents, cancel: &cancel };
    let mut buffer = Buffer::new(block);
    contents.prepare(buffer.bytes(), block);
    let gate = std::sync::Barrier::new(1);
    ways::writers()[0].writes(&job, buffer.bytes(), &mut Round::new(&gate, None)).unwrap();
    let wrong = |blocks| new_file::first_wrong(&file, contents, blocks).unwrap();
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
        let block = new_file::BLOCK;
        let path = on_disk().as_ref();
        let job = Writes { file: &folder, path, block, depth: 8, blocks: 100, order: None, contents, cancel: &cancel };
        let mut buffer = Buffer::new(8 * block);
        let gate = std::sync::Barrier::new(1);
        assert!(way.writes(&job, buffer.bytes(), &mut Round::new(&gate, None)).is_err(), "{}", way.name());
    }
}

/// Writes, and stalls of writers, without a test file.
const WRITING: [&dyn Table; 2] =
    [&WRITES, &Stall { populators: &[], stallers: ways::stallers(), overwriters: ways::overwriters() }];

fn tiny_writes() -> Options {
    Options { rounds: 2, size: Some(2 << 20), stall_size: Some(2 << 20), ..tiny() }
}

#[test]
fn a_run_that_writes_fills_a_row_for_each_case_and_way() {
    let (result, report, _) = measure(&WRITING, &tiny_writes(), None, &AtomicBool::new(false));
    result.unwrap();
    assert_eq!(report.tables(), ["writes", "stall"]);
    let usable = |ways: &[&dyn WriteWay]| ways.iter().filter(|way| way.refused().is_none()).count();
    // With one in flight there is nothing to merge.
    assert_eq!(report.rows.len(), 2 * usable(ways::writers()) - 1 + usable(ways::stallers()));
    let merging: Vec<_> = report.rows.iter().filter(|row| row.way == "pwritev-16").collect();
    assert!(merging.len() == 1 && merging[0].case.ends_with(" depth=16"), "{merging:?}");
    for row in &report.rows {
        assert!(row.ops_per_s > 0.0 && row.rounds.len() == 2, "{row:?}");
        assert!((row.bytes_per_s / row.ops_per_s - 4096.0).abs() < 1e-6, "{row:?}");
        assert!(row.case.starts_with("dir="), "{row:?}");
        assert_eq!(row.figures::<stall::Figures>().stalled_fraction.is_some(), row.table == "stall");
    }
}

#[test]
fn a_run_that_writes_stops_when_told() {
    assert_eq!(fails(&WRITING, &tiny_writes(), None, true).kind(), ErrorKind::Interrupted);
}

fn usable_streamers() -> impl Iterator<Item = &'static dyn StreamWay> {
    ways::streamers().iter().copied().filter(|way| way.refused().is_none())
}

/// One way, once: the sample, or why there is none.
fn stream(way: &dyn StreamWay, job: &Stream<'_>, file: &TestFile) -> std::io::Result<Sample> {
    let made = matches!(job.route, Route::Write { .. });
    let check = |offset, bytes: &[u8]| made || file.matches(offset, bytes);
    let gate = std::sync::Barrier::new(1);
    let mut round = Round::new(&gate, Some(&check));
    let mut buffer = Buffer::new(job.depth * job.block);
    if let Route::Write { contents, .. } = job.route {
        contents.prepare(buffer.bytes(), job.block);
    }
    way.stream(job, buffer.bytes(), &mut round)?;
    Ok(Sample::of(&[round]).unwrap())
}

/// Block size and depth of a stream.
const SHAPES: [(usize, usize); 5] = [(4096, 1), (16 << 10, 3), (64 << 10, 16), (1 << 20, 4), (4 << 20, 2)];

#[test]
fn streams_are_right_at_every_depth_and_copies_end_where_the_source_does() {
    use std::os::unix::fs::FileExt;
    let file = small_file();
    let cancel = AtomicBool::new(false);
    let mut source = vec![0; SIZE as usize];
    file.open().read_exact_at(&mut source, 0).unwrap();
    let from = file.path();
    for way in usable_streamers() {
        for (block, depth) in SHAPES {
            let (copy, path) = empty_file("copied");
            let routes = [(Direction::Read, Route::Read { from }), (Direction::Copy, Route::Copy { from, to: &path })];
            for (_, route) in routes.into_iter().filter(|(direction, _)| way.suits(*direction)) {
                let job = Stream { route, size: SIZE, block, depth, cancel: &cancel };
                let sample = stream(way, &job, &file).unwrap();
                let seen = (sample.operations, sample.bytes, sample.wrong);
                assert_eq!(seen, (SIZE.div_ceil(block as u64), SIZE, None), "{} {block} × {depth}", way.name());
            }
            assert_eq!(copy.metadata().unwrap().len(), SIZE, "{} {block} × {depth}", way.name());
            let mut copied = vec![0; SIZE as usize];
            copy.read_exact_at(&mut copied, 0).unwrap();
            assert!(copied == source, "{} {block} × {depth}", way.name());
        }
    }
}

#[test]
fn what_is_written_is_what_was_to_be_written_and_ends_where_it_should() {
    use std::os::unix::fs::FileExt;
    let (file, cancel, contents) = (small_file(), AtomicBool::new(false), Contents::new(SEED));
    for way in usable_streamers().filter(|way| way.suits(Direction::Write)) {
        for (block, depth) in SHAPES {
            let (written, path) = empty_file("written");
            let route = Route::Write { contents, to: &path };
            let job = Stream { route, size: SIZE, block, depth, cancel: &cancel };
            let sample = stream(way, &job, &file).unwrap();
            let seen = (sample.operations, sample.bytes);
            assert_eq!(seen, (SIZE.div_ceil(block as u64), SIZE), "{} {block} × {depth}", way.name());
            assert_eq!(written.metadata().unwrap().len(), SIZE, "{} {block} × {depth}", way.name());

            let mut expected = vec![0; (SIZE as usize).next_multiple_of(block)];
            if way.written() == Written::Contents {
                contents.prepare(&mut expected, block);
                let blocks = expected.chunks_mut(block).enumerate();
                blocks.for_each(|(number, bytes)| contents.place(bytes, (number * block) as u64));
            }
            let mut found = vec![0; SIZE as usize];
            written.read_exact_at(&mut found, 0).unwrap();
            assert!(found == expected[..SIZE as usize], "{} {block} × {depth}", way.name());
        }
    }
}

#[test]
fn a_stream_that_is_cut_short_or_cannot_be_written_is_an_error_and_not_a_hang() {
    let path = std::path::PathBuf::from(format!("{}/short-stream-{}", on_disk(), std::process::id()));
    fs::write(&path, vec![7; SMALLEST as usize]).unwrap();
    let file = TestFile::existing(&path).unwrap();
    let cancel = AtomicBool::new(false);
    for way in usable_streamers() {
        // A source that ends too early, and a folder, which no way can write.
        let (from, to, contents) = (path.as_path(), on_disk().as_ref(), Contents::new(SEED));
        let routes = [
            (Direction::Read, 2 * SMALLEST, Route::Read { from }),
            (Direction::Copy, SMALLEST, Route::Copy { from, to }),
            (Direction::Write, SMALLEST, Route::Write { contents, to }),
        ];
        for (_, size, route) in routes.into_iter().filter(|(direction, ..)| way.suits(*direction)) {
            let job = Stream { route, size, block: 64 << 10, depth: 4, cancel: &cancel };
            assert!(stream(way, &job, &file).is_err(), "{}", way.name());
        }
    }
    fs::remove_file(path).unwrap();
}

fn tiny_streams() -> Options {
    Options { rounds: 2, blocks: vec![16 << 10, 1 << 20], depths: vec![1, 4], ..tiny() }
}

#[test]
fn a_run_of_streams_fills_a_row_for_each_case_and_way() {
    let (file, go) = (small_file(), AtomicBool::new(false));
    let (result, report, quiet) = measure(&[&DD], &tiny_streams(), Some(&file), &go);
    match result {
        // The build's directory is in memory.
        Err(error) if error.kind() == ErrorKind::NotCold => return,
        other => other.unwrap(),
    }
    assert_eq!(quiet.done, quiet.steps);
    let of_kind = |kind: Direction| usable_streamers().filter(|way| way.suits(kind)).count();
    assert_eq!(report.rows.len(), 2 * 2 * Direction::ALL.map(of_kind).iter().sum::<usize>());
    assert!(of_kind(Direction::Copy) == usable_streamers().count(), "every way copies");
    let read_only = |way: &&dyn StreamWay| ["cat", "cp-reflink-never", "cp-reflink-auto"].contains(&way.name());
    assert_eq!(of_kind(Direction::Write), usable_streamers().count() - usable_streamers().filter(read_only).count());
    let pages = SIZE.div_ceil(4096) as f64;
    for row in &report.rows {
        assert!(row.bytes_per_s > 0.0 && row.rounds.len() == 2, "{row:?}");
        let figures = row.figures::<dd::Figures>();
        assert!(figures.cpu_ms_per_gib.unwrap() > 0.0, "{row:?}");
        let command = row.way.starts_with("cp-") || ["dd", "cat"].contains(&row.way.as_str());
        assert_eq!(row.latency_ns.is_none(), command, "{row:?}");
        let buffered = ["pread-buffered", "cat", "cp-reflink-never", "nowait-buffered"].contains(&row.way.as_str());
        // Of direct reads a file system may read the short end through the page cache. One that
        // shares blocks reads nothing.
        let right = |cached: f64| match row.way.as_str() {
            "cp-reflink-auto" => cached == 0.0 || cached == pages,
            _ if buffered => cached == pages,
            _ => cached <= 1.0,
        };
        let reads = !row.case.starts_with("write ");
        assert_eq!(figures.source_pages_cached.map(right), reads.then_some(true), "{row:?}");
    }
    let of = |depth: &str| report.rows.iter().find(|row| row.way == "pread" && row.case.ends_with(depth)).unwrap();
    assert_eq!(
        (&of("16K depth=1").rounds, of("depth=4").case.as_str()),
        (&of("16K depth=4").rounds, "read block=16K depth=4")
    );
}

/// Spoils what another way has written.
struct Careless(fn(&fs::File) -> std::io::Result<()>);

impl Way for Careless {
    fn name(&self) -> &'static str {
        "careless"
    }
}

impl StreamWay for Careless {
    fn direct(&self) -> bool {
        false
    }

    fn has_depth(&self) -> bool {
        false
    }

    fn stream(&self, job: &Stream<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> std::io::Result<()> {
        let honest = ways::streamers().iter().find(|way| way.name() == "pread-buffered").unwrap();
        honest.stream(job, buffer, round)?;
        let options = fs::OpenOptions::new().read(true).write(true).open(job.destination().unwrap());
        options.and_then(|file| (self.0)(&file))
    }
}

#[test]
fn what_a_stream_writes_wrong_is_noticed() {
    use std::os::unix::fs::FileExt;
    static CARELESS: [(Careless, u64); 4] = [
        (Careless(|file| file.write_all_at(&[0; 512], 65536)), 65536),
        (Careless(|file| file.set_len(SIZE - 1)), SIZE - 1),
        (Careless(|file| file.set_len(SIZE + 1)), SIZE),
        // The page before, once more.
        (
            Careless(|file| {
                let mut page = [0; 4096];
                file.read_exact_at(&mut page, 40960)?;
                file.write_all_at(&page, 45056)
            }),
            32768,
        ),
    ];
    let file = small_file();
    for kind in [Direction::Copy, Direction::Write] {
        for (way, wrong) in &CARELESS {
            let (options, table) = (tiny_streams(), Dd { ways: vec![way as &dyn StreamWay].leak() });
            let options = Options { streams: vec![kind], blocks: vec![16 << 10], ..options };
            let error = fails(&[&table], &options, Some(&file), false);
            if kind == Direction::Copy && error.kind() == ErrorKind::NotCold {
                continue;
            }
            assert!(error.to_string().contains(&format!("wrong from byte {wrong};")), "{kind:?}: {error}");
        }
    }
}

/// Reads what it says while bytes are compared; in rounds that are timed, one block only.
struct Dozer;

impl Way for Dozer {
    fn name(&self) -> &'static str {
        "dozer"
    }
}

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

    fn gather(&self, _: &Gather<'_>, _: &mut [u8], _: &mut Round<'_>) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

impl StreamWay for Dozer {
    fn direct(&self) -> bool {
        false
    }

    fn has_depth(&self) -> bool {
        false
    }

    fn stream(&self, job: &Stream<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> std::io::Result<()> {
        use std::os::unix::fs::FileExt;
        let source = fs::File::open(job.source().unwrap())?;
        round.start();
        for (index, offset) in job.each_offset().enumerate() {
            let (block, now) = (&mut buffer[..job.len_at(offset)], std::time::Instant::now());
            if index == 0 || round.tally.verifies() {
                source.read_exact_at(block, offset)?;
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
    let options = Options { round_time: Duration::from_millis(50), rows: Some(1000), ..tiny() };
    let streams = Options { streams: vec![Direction::Read], blocks: vec![16 << 10], ..options.clone() };
    let readers: &'static [&'static dyn ReadWay] = &[&Dozer];
    let tables: [(&dyn Table, &Options); 4] = [
        (&reads::Reads(Readers { through_the_cache: readers, past_the_cache: readers }), &options),
        (&Scan { ways: &[&Dozer] }, &options),
        (&Prefault { populators: &[], indexers: &[&Dozer] }, &options),
        (&Dd { ways: &[&Dozer] }, &streams),
    ];
    for (table, options) in tables {
        let error = fails(&[table], options, Some(&file_of(4 << 20)), false);
        let told = error.to_string();
        let found = told.contains("dozer") && told.contains("a timed round returned wrong bytes");
        assert!(found || error.kind() == ErrorKind::NotCold, "{}: {told}", table.name());
    }
}

/// Writes honestly while bytes are compared, and a block of others in its place later.
struct Forgetful;

impl Way for Forgetful {
    fn name(&self) -> &'static str {
        "forgetful"
    }
}

impl StreamWay for Forgetful {
    fn direct(&self) -> bool {
        false
    }

    fn has_depth(&self) -> bool {
        false
    }

    fn stream(&self, job: &Stream<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> std::io::Result<()> {
        use std::os::unix::fs::FileExt;
        static TURNS: AtomicUsize = AtomicUsize::new(0);
        let honest = ways::streamers().iter().find(|way| way.name() == "pread-buffered").unwrap();
        honest.stream(job, buffer, round)?;
        // The first is the verification.
        if TURNS.fetch_add(1, Ordering::Relaxed) > 0 {
            let file = fs::OpenOptions::new().write(true).open(job.destination().unwrap())?;
            file.write_all_at(&vec![0; 16 << 10], 16 << 10)?;
        }
        Ok(())
    }
}

#[test]
fn what_a_stream_writes_wrong_in_a_timed_round_is_noticed() {
    let options = Options { streams: vec![Direction::Write], blocks: vec![16 << 10], ..tiny_streams() };
    let error = fails(&[&Dd { ways: &[&Forgetful] }], &options, Some(&small_file()), false);
    assert!(error.to_string().contains("forgetful failed in dd"), "{error}");
    assert!(error.to_string().contains("wrong from byte 16384;"), "{error}");
}

#[test]
fn a_run_of_streams_stops_when_told_and_says_when_there_is_no_room() {
    let file = small_file();
    let stopped = fails(&[&DD], &tiny_streams(), Some(&file), true);
    assert!([ErrorKind::Interrupted, ErrorKind::NotCold].contains(&stopped.kind()));
    // No disk has room for a block of this size.
    let error = fails(&[&DD], &Options { blocks: vec![1 << 60], ..tiny_streams() }, Some(&file), false);
    assert!(error.kind() == ErrorKind::NoRoom && error.to_string().contains("--size"), "{error}");
}

fn usable_loggers() -> impl Iterator<Item = &'static dyn LogWay> {
    ways::loggers().iter().copied().filter(|way| way.refused().is_none())
}

#[test]
fn every_record_of_every_writer_is_where_the_way_says() {
    const COMMITS: u64 = 20;
    let cancel = AtomicBool::new(false);
    let more = ways::pipeliners().iter().chain(ways::task_loggers()).copied();
    for way in usable_loggers().chain(more) {
        for (writers, size, in_flight) in
            [(1, 16, 1), (1, 5000, 7), (3, 128, 1), (2, 128, 32), (8, 4096, 1), (64, 100, 1)]
        {
            if way.alone() && writers > 1 {
                continue;
            }
            let in_flight = if way.pipelines() { in_flight } else { 1 };
            let (file, path) = empty_file("log");
            let all = writers as u64 * COMMITS;
            file.set_len(all * way.room(size) as u64).unwrap();
            let (records, folder) = (Records::new(SEED), on_disk().as_ref());
            let (file, path, commits) = (&*file, &*path, COMMITS);
            let job = Commits { file, path, folder, writers, in_flight, size, commits, records, cancel: &cancel };
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
        let writers = if way.alone() { 1 } else { 8 };
        let (in_flight, size, commits, records) = (1, 128, 10, Records::new(SEED));
        let job = Commits { file, path, folder, writers, in_flight, size, commits, records, cancel };
        let gate = std::sync::Barrier::new(1);
        assert!(way.commits(&job, &mut Round::new(&gate, None)).is_err(), "{}", way.name());
    }
}

fn tiny_logs() -> Options {
    Options { rounds: 2, writers: vec![1, 8], sizes: vec![128, 4096], ..tiny() }
}

#[test]
fn a_run_of_logs_fills_a_row_for_each_case_and_way() {
    let (result, report, quiet) = measure(&[&LOG], &tiny_logs(), None, &AtomicBool::new(false));
    result.unwrap();
    assert_eq!(quiet.done, quiet.steps);
    let direct_is_refused = report.notes.iter().any(|note| note.text.contains("O_DIRECT"));
    let usable: Vec<_> = usable_loggers().filter(|way| !(way.direct() && direct_is_refused)).collect();
    let shared = usable.iter().filter(|way| !way.alone()).count();
    assert_eq!(report.rows.len(), 2 * usable.len() + 2 * shared);
    for row in &report.rows {
        assert!(row.ops_per_s > 0.0 && row.rounds.len() == 2 && row.table == LOG.name(), "{row:?}");
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
        assert!(wanted.contains(&row.figures::<log::Figures>().file_bytes_per_byte.unwrap()), "{row:?}");
        let latency = row.latency_ns.unwrap();
        assert!(latency.p50 <= latency.p999 && latency.p999 <= latency.max, "{row:?}");
    }
}

#[test]
fn every_kind_of_work_with_a_log_fills_a_row_for_each_case_and_way() {
    let tables: [(&dyn Table, usize); 6] = [
        (&log::pipelined::PIPELINED, 1),
        (&log::pipelined::TASKS, 1),
        (&log::steady::TAIL, 1),
        (&log::steady::RETENTION, 1),
        (&log::rate::RATE, 3),
        (&log::recovery::RECOVERY, 1),
    ];
    let (writers, in_flight, sizes) = (vec![2], vec![8], vec![4096]);
    let (rounds, load_time, logs) = (2, Duration::from_millis(20), Logged::ALL.into());
    let options = Options { quick: true, rounds, load_time, writers, in_flight, sizes, logs, ..tiny() };
    for (table, cases) in tables {
        let (result, report, _) = measure(&[table], &options, None, &AtomicBool::new(false));
        match result {
            // The build's directory is in memory.
            Err(error) if error.kind() == ErrorKind::NotCold => continue,
            other => other.unwrap(),
        }
        let direct_is_refused = report.notes.iter().any(|note| note.text.contains("O_DIRECT"));
        let is_left_out = |way: &&str| direct_is_refused && way.contains("direct");
        let ways: Vec<_> = table.ways().into_iter().filter(|way| !is_left_out(way)).collect();
        assert_eq!(report.rows.len(), cases * ways.len(), "{}", table.name());
        for row in &report.rows {
            assert!(row.ops_per_s > 0.0 && row.rounds.len() == 2 && row.table == table.name(), "{row:?}");
            let figures = row.figures::<log::steady::Figures>();
            assert_eq!(figures.lag_ns.is_some(), row.way == "nowait-tailed", "{row:?}");
            // Zeros of segments to come are written, too.
            let written = figures.written_bytes_per_file_byte;
            assert!(row.table != "log-retention" || written.is_none_or(|written| written >= 1.0), "{row:?}");
            // A byte of a record takes what fills up its block, too.
            let device = figures.device_bytes_per_byte.zip(figures.device_bytes_per_file_byte);
            assert!(device.is_none_or(|(logged, file)| logged >= file), "{row:?}");
        }
        assert!(fails(&[table], &options, None, true).kind() == ErrorKind::Interrupted, "{}", table.name());
    }
}

/// One that says it is done and has written nothing.
struct Liar;

impl Way for Liar {
    fn name(&self) -> &'static str {
        "liar"
    }
}

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
    for (writers, says) in [(1, "record 0 of writer 0"), (8, "found 0 of its 256")] {
        let options = Options { writers: vec![writers], ..tiny_logs() };
        let error = fails(&[&Log { ways: &[&Liar] }], &options, None, false);
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

impl Way for Lazy {
    fn name(&self) -> &'static str {
        "lazy"
    }
}

impl Lazy {
    fn is_honest(&self) -> bool {
        self.turns.fetch_add(1, Ordering::Relaxed) == 0
    }
}

impl WriteWay for Lazy {
    fn writes(&self, job: &Writes<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> std::io::Result<()> {
        if self.is_honest() {
            return ways::writers().iter().find(|way| way.name() == "pwrite").unwrap().writes(job, buffer, round);
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
    for way in [&SHORT, &EMPTY] {
        let options = Options { size: Some(1 << 20), depths: vec![1], ..tiny() };
        let error =
            fails(&[&writes::Writes { ways: vec![way as &'static dyn WriteWay].leak() }], &options, None, false);
        assert!(error.to_string().contains("lazy failed in writes"), "{error}");
        assert!(error.to_string().contains("the file is wrong from byte"), "{error}");
    }
    for (way, says) in [(&SHORT, "found none of its records"), (&EMPTY, "record 0 of writer 0")] {
        way.turns.store(0, Ordering::Relaxed);
        let options = Options { writers: vec![1], ..tiny_logs() };
        let error = fails(&[&Log { ways: vec![way as &'static dyn LogWay].leak() }], &options, None, false);
        assert!(error.to_string().contains("lazy failed in log") && error.to_string().contains(says), "{error}");
    }
}

fn usable_populators() -> impl Iterator<Item = &'static dyn PopulateWay> {
    ways::populators().iter().copied().filter(|way| way.refused().is_none())
}

fn usable_indexers() -> impl Iterator<Item = &'static dyn RowWay> {
    ways::indexers().iter().copied().filter(|way| way.refused().is_none())
}

#[test]
fn a_populated_map_has_the_file_s_bytes_and_its_samples_were_touched() {
    let cancel = AtomicBool::new(false);
    for size in [SMALLEST, 2 * Populate::CHUNK, 2 * Populate::CHUNK + 1234] {
        let file = TestFile::make(on_disk().as_ref(), size, SEED, &cancel, |_| {}).unwrap();
        let readahead = fs::File::open(file.path()).unwrap();
        let samples: Vec<u64> = (0..size).step_by(Populate::CHUNK as usize).collect();
        for way in usable_populators() {
            let path = file.path();
            let job = Populate { file: &readahead, path, size, samples: &samples, cancel: &cancel };
            let gate = std::sync::Barrier::new(1);
            let mut round = Round::new(&gate, None);
            let Populated { map, first_chunk, touches } = way.populate(&job, &mut round).unwrap();
            let sample = Sample::of(&[round]).unwrap();
            let name = way.name();
            assert_eq!((sample.operations, sample.bytes), (size.div_ceil(PAGE), size), "{name}");
            assert_eq!(touches.len(), samples.len() as u64, "{name}");
            assert!(!first_chunk.is_zero() && first_chunk.as_secs_f64() <= sample.seconds, "{name}");
            assert!(!sample.latencies.is_empty(), "{name}");
            let mut bytes = vec![0; size as usize];
            map.copy(0, &mut bytes);
            assert!(file.matches(0, &bytes), "{name}");
            assert_eq!(map.touch(size - 1), bytes[size as usize - 1], "{name}");
        }
    }
}

#[test]
fn rows_are_right_up_to_the_short_one_at_the_end() {
    let file = small_file();
    let cancel = AtomicBool::new(false);
    let mut offsets: Vec<u64> = (0..SIZE.div_ceil(PAGE)).map(|page| page * PAGE).collect();
    offsets.reverse();
    for way in usable_indexers() {
        let check = |offset, bytes: &[u8]| file.matches(offset, bytes);
        let gate = std::sync::Barrier::new(1);
        let mut round = Round::new(&gate, Some(&check));
        let mut buffer = Buffer::new(32 * PAGE as usize);
        let job = Reads {
            target: target(&file),
            block: PAGE as usize,
            depth: 32,
            offsets: &offsets,
            pace: None,
            cancel: &cancel,
        };
        way.rows(&job, buffer.bytes(), &mut round).unwrap();
        let sample = Sample::of(&[round]).unwrap();
        let seen = (sample.operations, sample.bytes, sample.wrong);
        assert_eq!(seen, (offsets.len() as u64, SIZE, None), "{}", way.name());
        assert_eq!(sample.latencies.len(), sample.operations, "{}", way.name());
    }
}

/// Maps, and stalls of those that populate one.
const MAPPING: [&dyn Table; 2] =
    [&PREFAULT, &Stall { populators: ways::populators(), stallers: &[], overwriters: &[] }];

fn tiny_maps() -> Options {
    Options { rows: Some(100), ..tiny() }
}

fn file_of(size: u64) -> TestFile {
    TestFile::make(on_disk().as_ref(), size, SEED, &AtomicBool::new(false), |_| {}).unwrap()
}

#[test]
fn a_run_of_maps_fills_a_row_for_each_case_and_way() {
    let size = 3 * Populate::CHUNK + 1234;
    let (result, report, quiet) = measure(&MAPPING, &tiny_maps(), Some(&file_of(size)), &AtomicBool::new(false));
    match result {
        // The build's directory is in memory.
        Err(error) if error.kind() == ErrorKind::NotCold => return,
        other => other.unwrap(),
    }
    assert_eq!(quiet.done, quiet.steps);
    assert_eq!(report.tables(), ["prefault", "stall"]);
    assert_eq!(report.rows.len(), 2 * usable_populators().count() + usable_indexers().count());
    for row in &report.rows {
        assert!(row.ops_per_s > 0.0 && row.rounds.len() == 3, "{row:?}");
        let latency = row.latency_ns.unwrap();
        assert!(latency.p50 <= latency.p99 && latency.p99 <= latency.max, "{row:?}");
        let (populates, stall) = (row.case == "populate", row.table == "stall");
        assert!(populates != (row.case == "rows=100"), "{row:?}");
        let figures = row.figures::<prefault::Figures>();
        let stalled = row.figures::<stall::Figures>().stalled_fraction;
        assert_eq!((stalled.is_some(), figures.populate.is_some()), (stall, populates && !stall), "{row:?}");
        assert_eq!(figures.cpu_ms_per_gib.is_some(), figures.populate.is_some(), "{row:?}");
        let Some(populate) = figures.populate else { continue };
        assert!(0.0 < populate.first_chunk_ms && populate.first_chunk_ms <= populate.all_ms, "{row:?}");
        assert!(0.0 < populate.longest_gap_ms && populate.longest_gap_ms <= populate.all_ms * 1.02, "{row:?}");
        assert!(populate.idle_gap_ms > 0.0, "{row:?}");
        assert!(populate.announced_touch_ns.p99 > 0 && populate.warm_touch_ns.p99 > 0, "{row:?}");
    }
    // Nothing is announced before the one call returns.
    let blocked = report.rows.iter().find(|row| row.way == "map-populate").unwrap();
    let populate = blocked.figures::<prefault::Figures>().populate.unwrap();
    assert!(populate.longest_gap_ms > populate.all_ms / 2.0, "{blocked:?}");
}

/// Has the bytes of an honest way in its first turn, which is the verification, and no others later.
struct Forger;

struct Forged(Box<dyn Mapped>);

impl Mapped for Forged {
    fn touch(&self, offset: u64) -> u8 {
        self.0.touch(offset)
    }

    fn copy(&self, _: u64, to: &mut [u8]) {
        to.fill(0);
    }
}

impl Way for Forger {
    fn name(&self) -> &'static str {
        "forger"
    }
}

impl PopulateWay for Forger {
    fn populate(&self, job: &Populate<'_>, round: &mut Round<'_>) -> std::io::Result<Populated> {
        static TURNS: AtomicUsize = AtomicUsize::new(0);
        let honest = usable_populators().find(|way| way.name() == "touch").unwrap();
        let populated = honest.populate(job, round)?;
        let map =
            if TURNS.fetch_add(1, Ordering::Relaxed) > 0 { Box::new(Forged(populated.map)) } else { populated.map };
        Ok(Populated { map, ..populated })
    }
}

#[test]
fn a_populated_map_with_wrong_bytes_is_noticed_in_a_timed_round() {
    let forged = Prefault { populators: &[&Forger], indexers: &[] };
    let error = fails(&[&forged], &tiny_maps(), Some(&file_of(Populate::CHUNK)), false);
    let found = error.to_string().contains("forger failed in prefault populate: its map is wrong from byte");
    assert!(found || error.kind() == ErrorKind::NotCold, "{error}");
}

/// Maps the file and says that all is there.
struct Idler {
    announces: bool,
    /// The pages are in the cache, and not in the map.
    reads: bool,
}

impl Way for Idler {
    fn name(&self) -> &'static str {
        "idler"
    }
}

impl PopulateWay for Idler {
    fn populate(&self, job: &Populate<'_>, round: &mut Round<'_>) -> std::io::Result<Populated> {
        let mut touches = nowait_bench::measure::meter::latencies();
        round.start();
        if self.announces {
            touches.record_n(1, job.samples.len() as u32).unwrap();
        }
        if self.reads {
            fs::read(job.path)?;
        }
        round.stop();
        round.tally.moved_elsewhere(job.pages(), job.size);
        let map = Box::new(Mapping::new(job.file, job.size)?);
        Ok(Populated { map, first_chunk: Duration::ZERO, touches })
    }
}

#[test]
fn a_way_that_has_not_populated_its_map_is_found_out() {
    static IDLERS: [(Idler, &str); 3] = [
        (Idler { announces: false, reads: true }, "announced 0 of 3 chunks"),
        (Idler { announces: true, reads: false }, "are not there"),
        (Idler { announces: true, reads: true }, "faults"),
    ];
    for (idler, says) in &IDLERS {
        let table = Prefault { populators: vec![idler as &dyn PopulateWay].leak(), indexers: ways::indexers() };
        let error = fails(&[&table], &tiny_maps(), Some(&file_of(3 * Populate::CHUNK)), false);
        if error.kind() != ErrorKind::NotCold {
            assert!(error.to_string().contains(says) && error.to_string().contains("idler"), "{error}");
        }
    }
}

#[test]
fn a_run_of_maps_stops_when_told() {
    let error = fails(&MAPPING, &tiny_maps(), Some(&small_file()), true);
    assert!([ErrorKind::Interrupted, ErrorKind::NotCold].contains(&error.kind()), "{error}");
}

fn usable_mixers() -> impl Iterator<Item = &'static dyn MixedWay> {
    ways::mixers().iter().copied().filter(|way| way.refused().is_none())
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
                let (sample, told, read) = mix(way, &job, &file).unwrap();
                let name = format!("{} {tasks} tasks {workers} workers {hot} %", way.name());
                let all = plan.reads();
                assert_eq!((sample.operations, sample.bytes, sample.wrong), (all, all * PAGE, None), "{name}");
                assert_eq!((told.cold.len(), told.hot.len()), (plan.cold, all - plan.cold), "{name}");
                assert_eq!(sample.latencies.len(), all, "{name}");
                let mut planned = std::collections::HashMap::new();
                let reads = plan.tasks.iter().flat_map(|reads| reads.iter());
                reads.for_each(|read| *planned.entry(read.offset()).or_insert(0) += 1);
                assert_eq!(read, planned, "{name}");
                // Every beat that was due is told of. A thread in `block_on` has a heart of its
                // own, until its tasks are through.
                let due = (sample.seconds / BEAT.as_secs_f64()) as u64;
                let (beats, of_threads) = (told.late.len(), way.name() == ways::OURS);
                let least = if of_threads { 0 } else { due.saturating_sub(2) };
                assert!((least..=(due + 2) * workers as u64).contains(&beats), "{name}: {beats} of {due}");
                assert!(!matches!(beside, Neighbour::Nobody) || told.beside == 0, "{name}");
            }
        }
    }
    // A round that is long enough for them has beats, writes and records.
    let plan = Plan::new(layout, 16, 20_000, 100, &mut Random::new(SEED));
    let job = |beside| mixed::Mixed { target: target(&file), marks: file.marks(), plan: &plan, workers: 2, beside };
    for way in usable_mixers() {
        let (_, told, _) = mix(way, &job(Neighbour::Nobody), &file).unwrap();
        assert!(told.late.len() > 1, "{}", way.name());
    }
    for beside in &others[1..] {
        let (_, told, _) = mix(ways::mixers()[0], &job(*beside), &file).unwrap();
        assert!(told.beside > 0);
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
        rounds: 2,
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
    let (result, report, quiet) = measure(&[&MIXED], &tiny_mixture(), Some(&file_of(4 << 20)), &AtomicBool::new(false));
    match result {
        // The build's directory is in memory.
        Err(error) if error.kind() == ErrorKind::NotCold => return,
        other => other.unwrap(),
    }
    assert_eq!(quiet.done, quiet.steps);
    assert_eq!(report.rows.len(), 2 * 3 * usable_mixers().count());
    for row in &report.rows {
        assert!(row.ops_per_s > 0.0 && row.rounds.len() == 2 && row.table == "mixed", "{row:?}");
        let figures = row.figures::<Figures>();
        let hot = figures.hot_latency_ns.unwrap();
        assert!(hot.p50 <= hot.p999 && hot.p999 <= hot.max, "{row:?}");
        assert_eq!(figures.cold_latency_ns.is_some(), row.case.starts_with("hot=75 "), "{row:?}");
        assert_eq!(figures.beside_per_s.is_some(), row.case.contains(" beside="), "{row:?}");
        assert_eq!(figures.beats.is_some(), figures.late_ns.is_some(), "{row:?}");
        assert_eq!(row.inline_fraction.is_some(), row.way.starts_with("nowait"), "{row:?}");
        let json = serde_json::to_value(row).unwrap();
        assert_eq!(json["hot_latency_ns"]["p99"], hot.p99, "{json}");
    }
    // A slow round has beats; the whole of a run has.
    assert!(report.rows.iter().any(|row| row.figures::<Figures>().beats.is_some_and(|beats| beats > 1)));
    // What it is to be shown by is there.
    assert!(nowait_bench::report::page::page(&report).contains("mixed latencies"));
}

/// Reads nothing and says that it has.
struct Dreamer;

impl Way for Dreamer {
    fn name(&self) -> &'static str {
        "dreamer"
    }
}

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
    let error = fails(&[&Mixed { ways: &[&Dreamer] }], &tiny_mixture(), Some(&file), false);
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
