//! Every peer does what its plan asks, on small files: the plan itself compares what was read, written and logged with what should be
//! there, and fails if a byte is wrong or missing.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nowait_bench::ErrorKind;
use nowait_bench::machine::testfile::{SMALLEST, TestFile};
use nowait_bench::measure::meter::{Round, Sample};
use nowait_bench::measure::run::Plan;
use nowait_bench::measure::work::{Buffer, Gather, Range, Reads, Target};
use nowait_bench::report::Report;
use nowait_bench::table::Table;
use nowait_bench::table::{log, writes};
use nowait_bench_peers::peers;

const SEED: u64 = 42;

/// On the disk of the build, because the system's temporary directory may be in memory, where nothing is ever cold.
fn on_disk() -> &'static Path {
    env!("CARGO_TARGET_TMPDIR").as_ref()
}

fn file(size: u64) -> TestFile {
    TestFile::make(on_disk(), size, SEED, &AtomicBool::new(false), |_| {}).unwrap()
}

fn peers_only(way: &str) -> bool {
    peers::meanings().contains_key(way)
}

fn plan(table: Table, direct: bool) -> Plan {
    let ways: Vec<_> = peers::readers(table, direct).into_iter().filter(|way| peers_only(way.name())).collect();
    assert!(ways.len() >= 4);
    Plan {
        tables: vec![table],
        ways,
        depths: vec![1, 16, 300],
        records: vec![1, 64, 512],
        rounds: 1,
        round_time: Duration::from_millis(1),
        rate: None,
        seed: SEED,
    }
}

#[test]
fn reads_and_gathers_are_right_up_to_the_short_block_at_the_end() {
    let file = file(4 * SMALLEST + 1234);
    for table in Table::ALL {
        let (plan, mut report) = (plan(table, false), Report::default());
        match plan.run(&file, &AtomicBool::new(false), &mut (), &mut report) {
            // The build's directory is in memory.
            Err(error) if error.kind() == ErrorKind::NotCold => return,
            other => other.unwrap(),
        }
        assert_eq!(report.rows.len(), plan.cases().len() * plan.ways.len());
    }
}

#[test]
fn direct_reads_are_right_and_leave_nothing_in_the_page_cache() {
    let file = match file(SMALLEST).past_the_cache() {
        // As on tmpfs.
        Err(_) => return println!("skipped: {} refuses O_DIRECT", on_disk().display()),
        Ok(file) => file,
    };
    let (plan, mut report) = (plan(Table::Reads, true), Report::default());
    plan.run(&file, &AtomicBool::new(false), &mut (), &mut report).unwrap();
    assert_eq!(report.rows.len(), plan.cases().len() * plan.ways.len());
    assert_eq!(report.notes, []);
}

#[test]
fn a_file_that_was_cut_short_is_an_error_and_not_a_hang() {
    let path = on_disk().join(format!("cut-short-{}", std::process::id()));
    std::fs::write(&path, vec![7; SMALLEST as usize]).unwrap();
    let file = TestFile::existing(&path).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(SMALLEST / 2).unwrap();
    let (cancel, gate) = (AtomicBool::new(false), std::sync::Barrier::new(1));
    let offsets: Vec<u64> = (0..SMALLEST / 4096).map(|block| block * 4096).collect();
    for way in plan(Table::Gather, false).ways {
        let mut buffer = Buffer::new(8 * 4096);
        let target = Target::of(&file);
        let job = Reads { target, block: 4096, depth: 8, offsets: &offsets, interval: None, cancel: &cancel };
        assert!(way.reads(&job, buffer.bytes(), &mut Round::new(&gate, None)).is_err(), "{}", way.name());
        if way.name() == "glommio-dma" {
            // Its read_many takes a read to be as long as was asked for, and so gives stale bytes; only a comparison notices.
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
    for way in plan(Table::Gather, false).ways {
        let check = |offset: u64, bytes: &[u8]| offset != 4096 && file.matches(offset, bytes);
        let gate = std::sync::Barrier::new(1);
        let mut round = Round::new(&gate, Some(&check));
        let target = Target::of(&file);
        let job = Reads { target, block: 4096, depth: 2, offsets: &offsets, interval: None, cancel: &cancel };
        way.reads(&job, Buffer::new(2 * 4096).bytes(), &mut round).unwrap();
        assert_eq!(Sample::of(&[round]).unwrap().wrong, Some(4096), "{}", way.name());
    }
}

#[test]
fn writes_leave_exactly_their_bytes() {
    let writers: Vec<_> = peers::writers().into_iter().filter(|way| peers_only(way.name())).collect();
    let plan = writes::Plan {
        tables: vec![writes::Table::Writes],
        stallers: Vec::new(),
        overwriters: Vec::new(),
        depths: vec![1, 16],
        rounds: 1,
        bytes: 2 << 20,
        stall_bytes: None,
        memory_limit: None,
        own_file_systems: false,
        lower_dirty_limit: false,
        seed: SEED,
        writers,
    };
    let mut report = Report::default();
    plan.run(on_disk(), &AtomicBool::new(false), &mut (), &mut report).unwrap();
    assert_eq!(report.rows.len(), 2 * plan.writers.len());
    assert_eq!(plan.writers.len(), 5);
}

#[test]
fn a_log_that_was_closed_and_opened_again_has_every_record_and_its_folder_is_gone_afterwards() {
    let ways: Vec<_> = peers::loggers().into_iter().filter(|way| peers_only(way.name())).collect();
    let (writers, sizes) = (vec![1, 8], vec![128, 4096]);
    let round_time = Duration::from_millis(5);
    let plan = log::Plan { ways, writers, sizes, rounds: 1, round_time, seed: SEED };
    let mut report = Report::default();
    let folder = on_disk().join(format!("logs-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let ran = plan.run(&folder, &AtomicBool::new(false), &mut (), &mut report);
    // Fails unless it is empty.
    std::fs::remove_dir(&folder).unwrap();
    ran.unwrap();
    assert_eq!(report.rows.len(), 4 * plan.ways.len());
    assert!(plan.ways.len() >= 3);
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
        let (known, own) = (peers_only(name), nowait_bench::ways::names().any(|own| own == name));
        assert!(known != own, "{name}");
    }
}
