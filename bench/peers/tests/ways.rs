//! Every peer does what its plan asks, on small files: the plan itself compares what was read,
//! written and logged with what should be there, and fails if a byte is wrong or missing.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nowait_bench::ErrorKind;
use nowait_bench::Result;
use nowait_bench::machine::testfile::{SMALLEST, TestFile};
use nowait_bench::measure::meter::{Round, Sample};
use nowait_bench::measure::options::Options;
use nowait_bench::measure::work::{Buffer, Gather, Range, Reads, Target};
use nowait_bench::report::Report;
use nowait_bench::table::{Phase, Run, Table};
use nowait_bench::ways::ReadWay;
use nowait_bench_peers::peers;

const SEED: u64 = 42;

/// On the disk of the build, because the system's temporary directory may be in memory, where
/// nothing is ever cold.
fn on_disk() -> &'static Path {
    env!("CARGO_TARGET_TMPDIR").as_ref()
}

fn file(size: u64) -> TestFile {
    TestFile::make(on_disk(), size, SEED, &AtomicBool::new(false), |_| {}).unwrap()
}

fn peers_only(way: &str) -> bool {
    peers::meanings().contains_key(way)
}

/// A table with the peers alone, which are at least so many.
fn table(name: &str, direct: bool, fewest: usize) -> &'static dyn Table {
    let tables = peers::tables(direct, peers_only);
    let table = tables.into_iter().find(|table| table.name() == name).unwrap();
    assert!(table.ways().len() >= fewest, "{name}");
    table
}

fn options() -> Options {
    Options {
        rounds: 1,
        round_time: Duration::from_millis(1),
        commit_time: Duration::from_millis(5),
        size: Some(2 << 20),
        records: vec![1, 64, 512],
        writers: vec![1, 8],
        sizes: vec![128, 4096],
        ..Options::new(false, SEED)
    }
}

fn measure(table: &dyn Table, options: &Options, file: Option<&TestFile>, dir: &Path) -> (Result<()>, Report) {
    let (cancel, mut report) = (AtomicBool::new(false), Report::default());
    let (asked, progress) = (Vec::new(), &mut ());
    let mut run = Run { options, asked, file, dir, cancel: &cancel, progress, report: &mut report };
    (run.measure(&[table], &Phase::ALL), report)
}

fn gatherers() -> impl Iterator<Item = &'static dyn ReadWay> {
    peers::gatherers().into_iter().filter(|way| peers_only(way.name()))
}

#[test]
fn reads_and_gathers_are_right_up_to_the_short_block_at_the_end() {
    let file = file(4 * SMALLEST + 1234);
    // Depths, and the states of cached blocks; batches, cold and cached.
    for (name, cases) in [("reads", 3), ("cached", 3), ("gather", 6)] {
        let table = table(name, false, 4);
        let options = Options { depths: vec![1, 16, 300], ..options() };
        let (result, report) = measure(table, &options, Some(&file), on_disk());
        match result {
            // The build's directory is in memory.
            Err(error) if error.kind() == ErrorKind::NotCold => return,
            other => other.unwrap(),
        }
        assert_eq!(report.rows.len(), cases * table.ways().len());
    }
}

#[test]
fn direct_reads_are_right_and_leave_nothing_in_the_page_cache() {
    let file = match file(SMALLEST).past_the_cache() {
        // As on tmpfs.
        Err(_) => return println!("skipped: {} refuses O_DIRECT", on_disk().display()),
        Ok(file) => file,
    };
    for (name, cases) in [("reads", 3), ("whole", 1)] {
        let table = table(name, true, 4);
        let options = Options { depths: vec![1, 16, 300], direct: true, ..options() };
        let (result, report) = measure(table, &options, Some(&file), on_disk());
        result.unwrap();
        assert_eq!(report.rows.len(), cases * table.ways().len());
        assert_eq!(report.notes, []);
    }
}

#[test]
fn a_file_that_was_cut_short_is_an_error_and_not_a_hang() {
    let path = on_disk().join(format!("cut-short-{}", std::process::id()));
    std::fs::write(&path, vec![7; SMALLEST as usize]).unwrap();
    let file = TestFile::existing(&path).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(SMALLEST / 2).unwrap();
    let (cancel, gate) = (AtomicBool::new(false), std::sync::Barrier::new(1));
    let offsets: Vec<u64> = (0..SMALLEST / 4096).map(|block| block * 4096).collect();
    for way in gatherers() {
        let mut buffer = Buffer::new(8 * 4096);
        let target = Target::of(&file);
        let job = Reads { target, block: 4096, depth: 8, offsets: &offsets, pace: None, cancel: &cancel };
        assert!(way.reads(&job, buffer.bytes(), &mut Round::new(&gate, None)).is_err(), "{}", way.name());
        if way.name() == "glommio-dma" {
            // Its read_many takes a read to be as long as was asked for, and so gives stale bytes;
            // only a comparison notices.
            continue;
        }
        let ranges: Vec<Range> = offsets.iter().map(|&offset| Range { offset, len: 1000 }).collect();
        let job = Gather::new(target, &ranges, 256, &cancel);
        let mut output = Buffer::new(job.output_len());
        assert!(way.gather(&job, output.bytes(), &mut Round::new(&gate, None)).is_err(), "{}", way.name());
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn wrong_bytes_are_noticed_in_every_way() {
    let file = file(SMALLEST);
    let cancel = AtomicBool::new(false);
    let offsets = [0, 4096, 8192];
    for way in gatherers() {
        let check = |offset: u64, bytes: &[u8]| offset != 4096 && file.matches(offset, bytes);
        let gate = std::sync::Barrier::new(1);
        let mut round = Round::new(&gate, Some(&check));
        let target = Target::of(&file);
        let job = Reads { target, block: 4096, depth: 2, offsets: &offsets, pace: None, cancel: &cancel };
        way.reads(&job, Buffer::new(2 * 4096).bytes(), &mut round).unwrap();
        assert_eq!(Sample::of(&[round]).unwrap().wrong, Some(4096), "{}", way.name());
    }
}

#[test]
fn writes_leave_exactly_their_bytes() {
    let table = table("writes", false, 5);
    let (result, report) = measure(table, &Options { depths: vec![1, 16], ..options() }, None, on_disk());
    result.unwrap();
    assert_eq!(report.rows.len(), 2 * table.ways().len());
    assert_eq!(table.ways().len(), 5);
}

#[test]
fn a_log_that_was_closed_and_opened_again_has_every_record_and_its_folder_is_gone_afterwards() {
    let table = table("log", false, 3);
    let folder = on_disk().join(format!("logs-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let (ran, report) = measure(table, &options(), None, &folder);
    // Fails unless it is empty.
    std::fs::remove_dir(&folder).unwrap();
    ran.unwrap();
    assert_eq!(report.rows.len(), 4 * table.ways().len());
}

#[test]
fn a_peer_has_a_thread_for_each_record_in_flight() {
    for name in ["log-pipelined", "log-tokio"] {
        let table = table(name, false, 2);
        let options = Options { writers: vec![2], in_flight: vec![8], tasks: vec![16], sizes: vec![128], ..options() };
        let (ran, report) = measure(table, &options, None, on_disk());
        ran.unwrap();
        assert_eq!(report.rows.len(), table.ways().len());
        assert!(report.rows.iter().all(|row| row.context_switches_per_op > 0.0), "{:?}", report.rows);
    }
}

#[test]
fn a_log_that_may_not_be_written_is_an_error_and_not_a_hang() {
    let round_time = Duration::from_millis(5);
    for way in peers::loggers().into_iter().filter(|way| peers_only(way.name())) {
        let (cancel, gate) = (AtomicBool::new(false), std::sync::Barrier::new(1));
        let file = &std::fs::File::open(on_disk()).unwrap();
        let (path, folder, records) =
            (on_disk(), "/proc/self".as_ref(), nowait_bench::measure::work::Records::new(SEED));
        let (writers, size, commits) = (8, 128, round_time.as_millis() as u64);
        let job = nowait_bench::measure::work::Commits {
            file,
            path,
            folder,
            writers,
            in_flight: 1,
            size,
            commits,
            records,
            cancel: &cancel,
        };
        assert!(way.commits(&job, &mut Round::new(&gate, None)).is_err(), "{}", way.name());
    }
}

#[test]
fn every_way_that_is_not_the_library_s_own_says_what_it_is() {
    for name in peers::names() {
        let (known, own) = (peers_only(name), nowait_bench::table::way_names().contains(&name));
        assert!(known != own, "{name}");
    }
}
