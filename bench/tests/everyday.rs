//! The tables of everyday work: every way of each does what it is asked for, on a small scale, and
//! what it does wrong is noticed.

use std::env;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use nowait_bench::machine::testfile::{SMALLEST, TestFile};
use nowait_bench::machine::tree::Tree;
use nowait_bench::measure::meter::{Round, Sample};
use nowait_bench::measure::options::Options;
use nowait_bench::measure::progress::Course;
use nowait_bench::measure::work::{Buffer, Reads, SmallFiles, Target};
use nowait_bench::report::Report;
use nowait_bench::report::notes::Code;
use nowait_bench::table::files::FILES;
use nowait_bench::table::scan::SCAN;
use nowait_bench::table::{Phase, Run, Table, plan};
use nowait_bench::ways::{self, Does, FileWay, Part, ReadWay, WAYS, Way};
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
    let mut course = Course::new(plan(&[table], options, None), indicatif::ProgressBar::hidden());
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

fn tree(files: u64, lengths: std::ops::RangeInclusive<u64>) -> Tree {
    Tree::make(on_disk().as_ref(), files, lengths, SEED, &AtomicBool::new(false), |_| {}).unwrap()
}

/// The sample of work that is checked against these files.
fn checked(
    tree: &Tree,
    work: impl FnOnce(&mut Round<'_>) -> std::io::Result<()>,
) -> std::io::Result<(u64, u64, Option<u64>)> {
    let check = |place, bytes: &[u8]| tree.matches(place, bytes);
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
            let seen = checked(&tree, |round| way.whole(&job, round)).unwrap();
            assert_eq!(seen, (70, bytes, None), "{} depth {depth}", way.name());
        }
    }
}

#[test]
fn a_file_that_is_gone_is_an_error_and_not_a_hang() {
    let tree = tree(20, 8192..=8192);
    let files: Arc<[(u64, PathBuf)]> = (0..20).map(|number| (number, tree.path(number))).collect();
    fs::remove_file(tree.path(5)).unwrap();
    let cancel = &AtomicBool::new(false);
    for way in usable(ways::filers(WAYS)) {
        let job = SmallFiles { files: &files, len_max: 8192, depth: 4, cancel };
        let error = checked(&tree, |round| way.whole(&job, round)).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{}: {error}", way.name());
    }
}

/// Small enough for a test.
fn few_files() -> Options {
    Options { quick: true, files: Some(300), ..tiny() }
}

#[test]
fn a_run_of_files_fills_a_row_for_each_case_and_way_and_leaves_nothing() {
    // One file more than in the other tests of this process, which run at the same time.
    let files = few_files().files.unwrap() + 1;
    let report = measure(&FILES, &Options { files: Some(files), ..few_files() }, None).unwrap();
    let inodes = report.notes.iter().any(|note| note.code == Code::InodesWarm);
    let cold = report.rows.iter().any(|row| row.case == "data-cold depth=8");
    assert!(inodes && report.rows.iter().any(|row| row.case == "hot depth=8"));
    // In memory, where nothing is cold, there are hot cases only.
    let cases = if cold { 4 } else { 2 };
    assert_eq!(report.rows.len(), cases * usable(ways::filers(WAYS)).len());
    assert!(report.rows.iter().all(|row| row.ops_per_s > 0.0 && row.rounds.len() == 2));
    let own = format!(".nowait-bench-files-{}-", std::process::id());
    let here = fs::read_dir(on_disk()).unwrap().flatten();
    let ours = here.filter(|entry| entry.file_name().to_string_lossy().starts_with(&own));
    let last = format!("0/{}", files - 1);
    assert!(ours.into_iter().all(|entry| !entry.path().join(&last).exists()));
}

/// Skips the last byte of each file.
struct Hasty;

impl FileWay for Hasty {
    fn whole(&self, job: &SmallFiles<'_>, round: &mut Round<'_>) -> std::io::Result<()> {
        round.start();
        for (number, path) in job.files.iter() {
            let (bytes, now) = (fs::read(path)?, std::time::Instant::now());
            round.tally.block(Tree::place(*number), &bytes[..bytes.len() - 1], now, now);
        }
        round.stop();
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
