//! The tables of everyday work: every way of each does what it is asked for, on a small scale, and
//! what it does wrong is noticed.

use std::env;
use std::fs;
use std::sync::Barrier;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nowait_bench::machine::testfile::{SMALLEST, TestFile};
use nowait_bench::measure::interleave::Progress;
use nowait_bench::measure::meter::{Round, Sample};
use nowait_bench::measure::options::Options;
use nowait_bench::measure::work::{Buffer, Reads, Target};
use nowait_bench::report::Report;
use nowait_bench::table::scan::{self, SCAN, Scan};
use nowait_bench::table::{Phase, Run, Table};
use nowait_bench::ways::{self, RowWay, Way};
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

fn usable<W: Way + ?Sized>(ways: &[&'static W]) -> Vec<&'static W> {
    ways.iter().copied().filter(|way| way.refused().is_none()).collect()
}

fn tiny() -> Options {
    Options {
        rounds: 2,
        round_time: Duration::from_millis(1),
        commit_time: Duration::from_millis(5),
        depths: vec![1, 8],
        ..Options::new(false, SEED)
    }
}

#[derive(Default)]
struct Steps {
    begun: u64,
    done: u64,
}

impl Progress for Steps {
    fn begin(&mut self, _: &str, steps: u64) {
        self.begun += steps;
    }
    fn step(&mut self, steps: u64) {
        self.done += steps;
    }
    fn now(&mut self, _: &str) {}
}

/// Measures a table, in the build's directory. None where that is in memory, so that nothing is
/// cold.
fn measure(table: &dyn Table, options: &Options, file: Option<&TestFile>) -> Option<Report> {
    let mut steps = Steps::default();
    match outcome(table, options, file, false, &mut steps) {
        (Err(error), _) if error.kind() == ErrorKind::NotCold => None,
        (result, report) => {
            result.unwrap();
            assert_eq!(steps.done, steps.begun);
            assert!(report.tables().iter().all(|name| *name == table.name()), "{:?}", report.tables());
            Some(report)
        }
    }
}

fn outcome(
    table: &dyn Table,
    options: &Options,
    file: Option<&TestFile>,
    stop: bool,
    progress: &mut dyn Progress,
) -> (Result<()>, Report) {
    let (mut report, cancel) = (Report::default(), AtomicBool::new(stop));
    let (dir, asked) = (on_disk().as_ref(), Vec::new());
    let mut run = Run { options, asked, file, dir, cancel: &cancel, progress, report: &mut report };
    let result = run.measure(&[table], &Phase::ALL);
    (result, report)
}

#[test]
fn scans_are_right_in_order_and_by_strides_up_to_the_short_block_at_the_end() {
    let file = small_file();
    let cancel = AtomicBool::new(false);
    for way in usable(ways::scanners()) {
        for (block, depth, stride) in [(4096, 1, 1), (4096, 8, 4), (16 << 10, 3, 1), (512 << 10, 2, 1)] {
            let offsets: Vec<u64> = (0..SIZE).step_by(block * stride).collect();
            let opened = fs::File::open(file.path()).unwrap();
            let target = Target { file: &opened, path: file.path(), size: SIZE, direct: false };
            let job = Reads { target, block, depth, offsets: &offsets, interval: None, cancel: &cancel };
            let check = |offset, bytes: &[u8]| file.matches(offset, bytes);
            let gate = Barrier::new(1);
            let mut round = Round::new(&gate, Some(&check));
            let mut buffer = Buffer::new(block * depth);
            way.rows(&job, buffer.bytes(), &mut round).unwrap();
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
    assert_eq!(report.rows.len(), 2 * 2 * 2 * usable(ways::scanners()).len());
    for row in &report.rows {
        assert!(row.bytes_per_s > 0.0 && row.rounds.len() == 2, "{row:?}");
        let read = row.figures::<scan::Figures>().pages_read_per_page.unwrap();
        // All that was asked for is there, unless other programs need the memory.
        assert!((0.9..=SIZE as f64 / 4096.0).contains(&read), "{row:?}");
    }
}

/// Reads another block than the one that it is asked for.
struct OffByOne;

impl Way for OffByOne {
    fn name(&self) -> &'static str {
        "off-by-one"
    }
}

impl RowWay for OffByOne {
    fn rows(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> std::io::Result<()> {
        use std::os::unix::fs::FileExt;
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
    let (file, mut steps) = (small_file(), Steps::default());
    let (result, _) = outcome(&Scan { ways: &[&OffByOne] }, &tiny(), Some(&file), false, &mut steps);
    let error = result.unwrap_err();
    let told = error.to_string();
    assert!(error.kind() == ErrorKind::NotCold || told.contains("off-by-one failed in scan"), "{told}");
}

#[test]
fn a_run_of_scans_stops_when_told() {
    let (result, _) = outcome(&SCAN, &tiny(), Some(&small_file()), true, &mut Steps::default());
    assert!([ErrorKind::Interrupted, ErrorKind::NotCold].contains(&result.unwrap_err().kind()));
}
