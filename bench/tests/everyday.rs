//! The tables of everyday work: every way of each does what it is asked for, on a small scale, and
//! what it does wrong is noticed.

use std::env;
use std::fs;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use nowait_bench::machine::testfile::{SMALLEST, TestFile};
use nowait_bench::machine::tree::Tree;
use nowait_bench::measure::meter::{Apart, Round, Sample};
use nowait_bench::measure::options::Options;
use nowait_bench::measure::progress::Course;
use nowait_bench::measure::work::{
    Access, Buffer, Contents, Range, Ranges as RangesJob, Reads, ReadsAndWrites, SmallFiles, Spread, Target,
};
use nowait_bench::random::Random;
use nowait_bench::report::Report;
use nowait_bench::report::notes::Code;
use nowait_bench::table::files::FILES;
use nowait_bench::table::ranges::{self, RANGES};
use nowait_bench::table::readwrite::READWRITE;
use nowait_bench::table::scan::SCAN;
use nowait_bench::table::{Phase, Run, Table, plan};
use nowait_bench::ways::{self, Does, FileWay, Part, RangeWay, ReadWay, ReadWriteWay, WAYS, Way};
use nowait_bench::{ErrorKind, Result};

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

fn usable<W: ?Sized>(ways: Vec<Part<W>>) -> Vec<Part<W>> {
    ways.into_iter().filter(|part| (part.way.refused)().is_none()).collect()
}

/// A roster of one way, which lasts as long as the program.
fn only(way: &'static Way) -> ways::Roster {
    vec![way].leak()
}

fn tiny() -> Options {
    Options {
        rounds: Some(2),
        round_time: Duration::from_millis(1),
        commit_time: Duration::from_millis(5),
        depths: vec![1, 8],
        dir: on_disk().into(),
        ..Options::new(false, SEED)
    }
}

/// Measures a table, in the build's directory. None where that is in memory, so that nothing is
/// cold.
fn measure(table: &'static Table, options: &Options, file: Option<&TestFile>) -> Option<Report> {
    match outcome(table, options, file, false) {
        (Err(error), _) if error.kind() == ErrorKind::NotCold => None,
        (result, report) => {
            result.unwrap();
            assert!(report.tables().iter().all(|name| *name == table.name), "{:?}", report.tables());
            Some(report)
        }
    }
}

fn outcome(table: &'static Table, options: &Options, file: Option<&TestFile>, stop: bool) -> (Result<()>, Report) {
    let (mut report, cancel) = (Report::default(), AtomicBool::new(stop));
    let mut course = Course::new(plan(&[table], options, None), ());
    let mut run = Run { options, file, cancel: &cancel, course: &mut course, report: &mut report };
    let result = run.measure(&[table], &Phase::ALL);
    (result, report)
}

#[test]
fn scans_are_right_in_order_and_by_strides_up_to_the_short_block_at_the_end() {
    let file = small_file();
    let cancel = AtomicBool::new(false);
    for way in usable(ways::scanners(WAYS)) {
        for (block, depth, stride) in [(4096, 1, 1), (4096, 8, 4), (16 << 10, 3, 1), (512 << 10, 2, 1)] {
            let offsets: Vec<u64> = (0..SIZE).step_by(block * stride).collect();
            let opened = fs::File::open(file.path()).unwrap();
            let target = Target { file: &opened, path: file.path(), size: SIZE, direct: false };
            let job = Reads { target, block, depth, offsets: &offsets, pace: None, cancel: &cancel };
            let check = |offset, bytes: &[u8]| file.matches(offset, bytes);
            let gate = Barrier::new(1);
            let mut round = Round::new(&gate, Some(&check));
            let mut buffer = Buffer::new(block * depth);
            way.reads(&job, buffer.bytes(), &mut round).unwrap();
            let sample = Sample::of(&[round]).unwrap();
            let bytes = offsets.iter().map(|&offset| job.len_at(offset) as u64).sum();
            let (seen, name) = ((sample.operations, sample.bytes, sample.wrong), way.name());
            assert_eq!(seen, (offsets.len() as u64, bytes, None), "{name} {block} × {depth} / {stride}");
            assert_eq!(sample.latencies.len(), sample.operations, "{name}");
        }
    }
}

#[test]
fn a_run_of_scans_fills_a_row_for_each_case_and_way() {
    let file = small_file();
    let options = Options { blocks: vec![4096, 16384], ..tiny() };
    let Some(report) = measure(&SCAN, &options, Some(&file)) else { return };
    let rows = |at_a_place| {
        let cases = if at_a_place { 2 } else { 2 * 2 * 2 };
        cases * usable(ways::scanners(WAYS)).iter().filter(|way| way.keeps_a_place() == at_a_place).count()
    };
    assert_eq!(report.rows.len(), rows(true) + rows(false));
    for row in &report.rows {
        assert!(row.bytes_per_s > 0.0 && row.rounds.len() == 2, "{row:?}");
        let read = row.figure("pages_read_per_page").unwrap();
        // All that was asked for is there, unless other programs need the memory.
        assert!((0.9..=SIZE as f64 / 4096.0).contains(&read), "{row:?}");
    }
}

/// Reads another block than the one that it is asked for.
struct OffByOne;

impl ReadWay for OffByOne {
    fn reads(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> std::io::Result<()> {
        round.start();
        for offset in job.each_offset() {
            let (block, now) = (&mut buffer[..job.len_at(offset)], std::time::Instant::now());
            job.target.file.read_exact_at(block, offset.saturating_sub(4096))?;
            round.tally.block(offset, block, now, now);
        }
        round.stop();
        Ok(())
    }
}

#[test]
fn a_scan_that_reads_other_blocks_is_found_out() {
    static OFF_BY_ONE: Way = Way::new("off-by-one", "", &[Does::Scans(&OffByOne)]);
    let file = small_file();
    let (result, _) = outcome(&SCAN, &Options { roster: only(&OFF_BY_ONE), ..tiny() }, Some(&file), false);
    let error = result.unwrap_err();
    let told = error.to_string();
    assert!(error.kind() == ErrorKind::NotCold || told.contains("off-by-one failed in scan"), "{told}");
}

/// The sample of a way's work on these ranges of a file.
fn ranged(way: Part<dyn RangeWay>, file: &TestFile, tasks: usize, ranges: &Arc<[Range]>) -> std::io::Result<Sample> {
    let opened = fs::File::open(file.path())?;
    let target = Target { file: &opened, path: file.path(), size: file.size(), direct: way.direct() };
    let check = |offset, bytes: &[u8]| file.matches(offset, bytes);
    let gate = Barrier::new(1);
    let mut round = Round::new(&gate, Some(&check));
    way.ranges(&RangesJob { target, ranges, tasks }, &mut round)?;
    Ok(Sample::of(&[round]).unwrap())
}

#[test]
fn ranges_are_right_wherever_they_lie_up_to_the_last_byte() {
    let file = small_file();
    let edges = [(0, 1), (4095, 2), (4096, 4096), (SIZE - 1, 1), (SIZE - 5000, 5000), (1, 400_000)];
    let edges = edges.map(|(offset, len)| Range { offset, len });
    let ranges: Arc<[Range]> = ranges::chunks(SIZE, SEED).into_iter().chain(edges).collect();
    let bytes = ranges.iter().map(|range| u64::from(range.len)).sum();
    for way in usable(ways::rangers(WAYS)) {
        for tasks in [1, 32] {
            let sample = match ranged(way, &file, tasks, &ranges) {
                Err(error) if way.direct() && error.kind() == std::io::ErrorKind::InvalidInput => {
                    eprintln!("skipped: O_DIRECT");
                    continue;
                }
                sample => sample.unwrap(),
            };
            let seen = (sample.operations, sample.bytes, sample.wrong);
            assert_eq!(seen, (ranges.len() as u64, bytes, None), "{} {tasks}", way.name());
        }
    }
}

#[test]
fn a_range_behind_the_end_is_an_error_and_not_a_hang() {
    let file = small_file();
    let ranges: Arc<[Range]> =
        [(0, 100), (SIZE - 10, 11), (100, 100)].map(|(offset, len)| Range { offset, len }).into();
    // A map has no such range: its user has to look.
    for way in usable(ways::rangers(WAYS)).into_iter().filter(|way| !way.name().starts_with("mmap")) {
        assert!(ranged(way, &file, 2, &ranges).is_err(), "{}", way.name());
    }
}

#[test]
fn a_run_of_ranges_fills_a_row_for_each_way_with_what_it_took() {
    let file = small_file();
    let Some(report) = measure(&RANGES, &Options { tasks: vec![3], ..tiny() }, Some(&file)) else { return };
    let left_out = report.notes.iter().any(|note| note.code == Code::DirectRefused);
    assert_eq!(report.rows.len(), ways::rangers(WAYS).iter().filter(|way| !(left_out && way.direct())).count());
    for row in &report.rows {
        let (seconds, asked) = (row.figure("seconds").unwrap(), row.figure("asked_bytes").unwrap());
        let ranges = ranges::chunks(SIZE, SEED).len() as f64;
        let of_rounds: f64 = row.rounds.iter().map(|speed| ranges / speed / row.rounds.len() as f64).sum();
        // Of two rounds the median is the mean.
        assert!((seconds / of_rounds - 1.0).abs() < 1e-6, "{row:?}");
        assert!(row.figure("peak_memory_bytes").is_none_or(|bytes| bytes > asked), "{row:?}");
        assert!(row.figure("storage_bytes").is_none_or(|bytes| bytes > 0.5 * asked), "{row:?}");
    }
}

/// Reads each range a byte late.
struct ByteLate;

impl RangeWay for ByteLate {
    fn ranges(&self, job: &RangesJob<'_>, round: &mut Round<'_>) -> std::io::Result<()> {
        round.start();
        for range in job.ranges.iter() {
            let (mut bytes, now) = (vec![0; range.len as usize], std::time::Instant::now());
            job.target.file.read_exact_at(&mut bytes, range.offset.saturating_sub(1))?;
            round.tally.block(range.offset, &bytes, now, now);
        }
        round.stop();
        Ok(())
    }
}

#[test]
fn a_way_that_reads_other_ranges_is_found_out() {
    static BYTE_LATE: Way = Way::new("byte-late", "", &[Does::Ranges(&ByteLate)]);
    let file = small_file();
    let (result, _) = outcome(&RANGES, &Options { roster: only(&BYTE_LATE), ..tiny() }, Some(&file), false);
    let error = result.unwrap_err();
    assert!(error.kind() == ErrorKind::NotCold || error.to_string().contains("byte-late failed in ranges"), "{error}");
}

/// The sample of a way's work on a file of its own, and the file.
fn mixed(
    way: Part<dyn ReadWriteWay>,
    direct: bool,
    depth: usize,
    accesses: &Arc<[Access]>,
) -> std::io::Result<(Sample, TestFile)> {
    let file = small_file();
    let flags = if direct { libc::O_DIRECT } else { 0 };
    let open = fs::OpenOptions::new().read(true).write(true).custom_flags(flags).open(file.path());
    let (opened, cancel) = (Arc::new(open?), AtomicBool::new(false));
    let (path, contents) = (file.path(), Contents::new(SEED));
    let job = ReadsAndWrites { file: &opened, path, direct, block: 4096, depth, accesses, contents, cancel: &cancel };
    let check = |offset, bytes: &[u8]| file.matches(offset, bytes);
    let gate = Barrier::new(1);
    let mut round = Round::new(&gate, Some(&check));
    let apart = way.read_write(&job, Buffer::new(4096 * depth).bytes(), &mut round)?;
    let sample = Sample::of(&[round]).unwrap();
    let writes = accesses.iter().filter(|access| access.writes).count() as u64;
    assert_eq!((apart.writes.len(), apart.reads.len() + writes), (writes, sample.operations), "{}", way.name());
    Ok((sample, file))
}

#[test]
fn reads_beside_durable_writes_are_right_and_so_is_the_file_at_every_depth() {
    const BLOCKS: u64 = 90;
    let places = Random::new(SEED).permutation(SMALLEST / 4096).into_iter().take(BLOCKS as usize).enumerate();
    let access = |(index, place): (usize, u64)| Access { offset: place * 4096, writes: index % 3 == 0 };
    let accesses: Arc<[Access]> = places.map(access).collect();
    let refused = fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(small_file().path()).is_err();
    for way in usable(ways::readwriters(WAYS)) {
        for (direct, depth) in [(false, 1), (false, 7), (true, 1), (true, 300)] {
            if direct && (refused) {
                eprintln!("skipped: O_DIRECT");
                continue;
            }
            let (sample, file) = mixed(way, direct, depth, &accesses).unwrap();
            let seen = (sample.operations, sample.bytes, sample.wrong);
            assert_eq!(seen, (BLOCKS, BLOCKS * 4096, None), "{} depth {depth}", way.name());
            let (mut expected, mut found) = (vec![0; 4096], vec![0; 4096]);
            let contents = Contents::new(SEED);
            contents.prepare(&mut expected, 4096);
            for &Access { offset, writes } in accesses.iter() {
                file.through_the_cache().read_exact_at(&mut found, offset).unwrap();
                contents.place(&mut expected, offset);
                let right = if writes { found == expected } else { file.matches(offset, &found) };
                assert!(right, "{} depth {depth} at {offset}", way.name());
            }
        }
    }
}

#[test]
fn a_read_behind_the_end_beside_writes_is_an_error_and_not_a_hang() {
    let access = |at: u64| Access { offset: at * 4096, writes: at % 2 == 0 };
    let accesses: Arc<[Access]> = (0..20).map(access).chain([Access { offset: 2 * SIZE, writes: false }]).collect();
    for way in usable(ways::readwriters(WAYS)) {
        for depth in [1, 4] {
            assert!(mixed(way, false, depth, &accesses).is_err(), "{} depth {depth}", way.name());
        }
    }
}

#[test]
fn a_run_of_reads_and_writes_fills_a_row_for_each_case_and_way() {
    let options = Options { size: Some(2 << 20), ..tiny() };
    let Some(report) = measure(&READWRITE, &options, None) else { return };
    let kinds = if report.notes.iter().any(|note| note.code == Code::DirectRefused) { 1 } else { 2 };
    assert_eq!(report.rows.len(), kinds * 2 * usable(ways::readwriters(WAYS)).len());
    for row in &report.rows {
        let (reads, writes) = (row.figure("reads_per_s").unwrap(), row.figure("durable_writes_per_s").unwrap());
        // All operations by all time lie between the speeds of the rounds.
        let (least, most) = row.spread();
        let all = (reads + writes) / row.ops_per_s;
        assert!(all > least - 1e-6 && all < most + 1e-6 && writes > 0.0, "{row:?}");
        // 70 to 30, by chance.
        assert!((0.4..0.95).contains(&(reads / (reads + writes))), "{row:?}");
        let of = |name: &str| row.own_latency(name).unwrap();
        let (read, write) = (of("read_latency_ns"), of("write_latency_ns"));
        assert!(read.p50 > 0 && write.p50 > 0 && row.latency_ns.unwrap().max == read.max.max(write.max), "{row:?}");
    }
}

/// Says of every write that it is complete, and reads as asked.
struct Lazy;

impl ReadWriteWay for Lazy {
    fn read_write(&self, job: &ReadsAndWrites<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> std::io::Result<Apart> {
        let mut apart = Apart::default();
        round.start();
        for access in job.accesses.iter() {
            let now = std::time::Instant::now();
            job.file.read_exact_at(&mut buffer[..job.block], access.offset)?;
            apart.tell(*access, &buffer[..job.block], (now, now), &mut round.tally);
        }
        round.stop();
        Ok(apart)
    }
}

#[test]
fn a_way_that_has_not_written_is_found_out() {
    static LAZY: Way = Way::new("lazy", "", &[Does::ReadsAndWrites(&Lazy)]);
    let options = Options { size: Some(2 << 20), roster: only(&LAZY), ..tiny() };
    let (result, _) = outcome(&READWRITE, &options, None, false);
    let error = result.unwrap_err();
    let told = error.to_string();
    assert!(error.kind() == ErrorKind::NotCold || told.contains("after its writes"), "{told}");
}

#[test]
fn a_run_of_reads_and_writes_stops_when_told() {
    let options = Options { size: Some(2 << 20), ..tiny() };
    let (result, _) = outcome(&READWRITE, &options, None, true);
    assert!([ErrorKind::Interrupted, ErrorKind::NotCold].contains(&result.unwrap_err().kind()));
}

fn tree(files: u64, lengths: std::ops::RangeInclusive<u64>) -> Tree {
    Tree::make(on_disk().as_ref(), files, lengths, SEED, &AtomicBool::new(false), |_| {}).unwrap()
}

/// The sample of work that is checked against these files.
fn checked(
    tree: &Tree,
    whole: bool,
    work: impl FnOnce(&mut Round<'_>) -> std::io::Result<()>,
) -> std::io::Result<(u64, u64, Option<u64>)> {
    let check = |place, bytes: &[u8]| tree.matches(place, bytes, whole);
    let gate = Barrier::new(1);
    let mut round = Round::new(&gate, Some(&check));
    work(&mut round)?;
    let sample = Sample::of(&[round]).unwrap();
    assert_eq!(sample.latencies.len(), sample.operations);
    Ok((sample.operations, sample.bytes, sample.wrong))
}

#[test]
fn every_small_file_is_read_to_its_end_whatever_its_length() {
    let tree = tree(70, 0..=9000);
    let files: Arc<[(u64, PathBuf)]> = (0..70).rev().map(|number| (number, tree.path(number))).collect();
    let bytes = (0..70).map(|number| tree.len_of(number)).sum();
    for way in usable(ways::filers(WAYS)) {
        for depth in [1, 7, 100] {
            let job = SmallFiles { files: &files, len_max: 9000, depth, cancel: &AtomicBool::new(false) };
            let seen = checked(&tree, true, |round| way.whole(&job, round)).unwrap();
            assert_eq!(seen, (70, bytes, None), "{} depth {depth}", way.name());
        }
    }
}

#[test]
fn open_files_are_read_where_they_should_be_at_every_depth() {
    let tree = tree(12, 40960..=40960);
    let open: Vec<Arc<fs::File>> = (0..12).map(|number| Arc::new(tree.open(number).unwrap())).collect();
    let places = Random::new(SEED).permutation(12 * 10);
    let places: Arc<[(u32, u64)]> = places.into_iter().map(|at| ((at / 10) as u32, at % 10 * 4096)).collect();
    for way in usable(ways::filers(WAYS)) {
        for depth in [1, 5, 300] {
            let cancel = AtomicBool::new(false);
            let job = Spread { files: &open, places: &places, block: 4096, depth, cancel: &cancel };
            let mut buffer = Buffer::new(4096 * depth);
            let seen = checked(&tree, false, |round| way.spread(&job, buffer.bytes(), round)).unwrap();
            assert_eq!(seen, (120, 120 * 4096, None), "{} depth {depth}", way.name());
        }
    }
}

#[test]
fn a_file_that_is_gone_or_cut_short_is_an_error_and_not_a_hang() {
    let tree = tree(20, 8192..=8192);
    let open: Vec<Arc<fs::File>> = (0..20).map(|number| Arc::new(tree.open(number).unwrap())).collect();
    let files: Arc<[(u64, PathBuf)]> = (0..20).map(|number| (number, tree.path(number))).collect();
    let places: Arc<[(u32, u64)]> = (0..20).map(|file| (file, 4096)).collect();
    fs::OpenOptions::new().write(true).open(tree.path(11)).unwrap().set_len(5000).unwrap();
    fs::remove_file(tree.path(5)).unwrap();
    let cancel = &AtomicBool::new(false);
    for way in usable(ways::filers(WAYS)) {
        let job = SmallFiles { files: &files, len_max: 8192, depth: 4, cancel };
        let error = checked(&tree, true, |round| way.whole(&job, round)).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{}: {error}", way.name());
        let job = Spread { files: &open, places: &places, block: 4096, depth: 4, cancel };
        let mut buffer = Buffer::new(4 * 4096);
        let error = checked(&tree, false, |round| way.spread(&job, buffer.bytes(), round)).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof, "{}: {error}", way.name());
    }
}

/// Small enough for a test.
fn few_files() -> Options {
    Options { quick: true, files: Some(300), ..tiny() }
}

#[test]
fn a_run_of_files_fills_a_row_for_each_case_and_way_and_leaves_nothing() {
    let report = measure(&FILES, &few_files(), None).unwrap();
    let inodes = report.notes.iter().any(|note| note.code == Code::InodesWarm);
    let cold = report.rows.iter().any(|row| row.case == "data-cold depth=8");
    assert!(inodes && report.rows.iter().any(|row| row.case == "hot depth=8"));
    // In memory, where nothing is cold, there are hot cases only.
    let cases = if cold { 6 } else { 3 };
    assert_eq!(report.rows.len(), cases * usable(ways::filers(WAYS)).len());
    assert!(report.rows.iter().all(|row| row.ops_per_s > 0.0 && row.rounds.len() == 2));
    assert!(report.rows.iter().any(|row| row.case == "open=128 hot depth=300"));
    let own = format!(".nowait-bench-files-{}-", std::process::id());
    let left = |entry: &fs::DirEntry| fs::read_dir(entry.path()).is_ok_and(|files| files.flatten().count() > 0);
    let here = fs::read_dir(on_disk()).unwrap().flatten();
    // Other tests of this process have theirs, of 70 files at most.
    let ours = here.filter(|entry| entry.file_name().to_string_lossy().starts_with(&own) && left(entry));
    assert!(ours.into_iter().all(|entry| !entry.path().join("0/299").exists()));
}

/// Skips the last byte of each file, and the place of each block.
struct Hasty;

impl FileWay for Hasty {
    fn whole(&self, job: &SmallFiles<'_>, round: &mut Round<'_>) -> std::io::Result<()> {
        round.start();
        for (number, path) in job.files.iter() {
            let (bytes, now) = (fs::read(path)?, std::time::Instant::now());
            round.tally.block(Tree::place(*number, 0), &bytes[..bytes.len() - 1], now, now);
        }
        round.stop();
        Ok(())
    }

    fn spread(&self, _: &Spread<'_>, _: &mut [u8], _: &mut Round<'_>) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_way_that_does_not_read_a_file_to_its_end_is_found_out() {
    static HASTY: Way = Way::new("hasty", "", &[Does::Files(&Hasty)]);
    let (result, _) = outcome(&FILES, &Options { roster: only(&HASTY), ..few_files() }, None, false);
    let told = result.unwrap_err().to_string();
    assert!(told.contains("hasty failed in files") && told.contains("wrong bytes of file"), "{told}");
}

#[test]
fn a_run_of_files_stops_when_told() {
    let (result, _) = outcome(&FILES, &few_files(), None, true);
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Interrupted);
}

#[test]
fn a_run_of_scans_stops_when_told() {
    let (result, _) = outcome(&SCAN, &tiny(), Some(&small_file()), true);
    assert!([ErrorKind::Interrupted, ErrorKind::NotCold].contains(&result.unwrap_err().kind()));
}
