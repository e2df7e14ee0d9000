//! Every peer does what it is asked, on small files: a run compares what was read, written and logged with
//! what should be there, and fails if a byte is wrong or missing.

#![cfg(feature = "peers")]

use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;

use nowait_bench::machine::testfile::{SMALLEST, TestFile};
use nowait_bench::measure::meter::{Round, Sample};
use nowait_bench::measure::work::{Buffer, Gather, Range, Reads, Target};
use nowait_bench::ways::{self, Part, ReadWay};

const SEED: u64 = 42;
const RUNTIMES: &str = "tokio-fs,tokio-uring,compio,monoio,glommio";
const LOGS: &str = "okaywal,raft-engine,fjall,fsys";

/// On the disk of the build, because the system's temporary directory may be in memory, where
/// nothing is ever cold.
fn on_disk() -> &'static Path {
    env!("CARGO_TARGET_TMPDIR").as_ref()
}

fn file(size: u64) -> TestFile {
    TestFile::make(on_disk(), size, SEED, &AtomicBool::new(false), |_| {}).unwrap()
}

fn peers() -> impl Iterator<Item = Part<dyn ReadWay>> {
    let names: Vec<&str> = RUNTIMES.split(',').chain(["glommio-dma"]).collect();
    ways::gatherers(ways::WAYS).into_iter().filter(move |way| names.contains(&way.name()))
}

/// Runs these tables with these ways. Each has a row in each case, of which there are so many.
fn measures(arguments: &[&str], ways: &str, cases: usize) {
    let dir = tempfile::tempdir_in(on_disk()).unwrap();
    let command = Command::new(env!("CARGO_BIN_EXE_nowait-bench"))
        .args(arguments)
        .args(["--quick", "--rounds", "1", "--json", "-", "--ways", ways, "--dir"])
        .arg(dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&command.stderr);
    if command.status.code() == Some(6) {
        return println!("skipped: {said}");
    }
    assert!(command.status.success(), "{said}");
    let report: serde_json::Value = serde_json::from_slice(&command.stdout).unwrap();
    for way in ways.split(',') {
        let rows = report["rows"].as_array().unwrap().iter().filter(|row| row["way"] == way);
        assert_eq!(rows.count(), cases, "{way}: {said}");
    }
}

#[test]
fn reads_and_writes_are_right() {
    measures(&["reads", "--size", "2M", "--depths", "1,16,300"], RUNTIMES, 3);
    measures(&["cached", "--size", "2M"], RUNTIMES, 3);
    measures(&["gather", "--size", "2M", "--records", "1,64"], &format!("{RUNTIMES},glommio-dma"), 4);
    measures(&["writes", "--size", "2M", "--depths", "1,16"], RUNTIMES, 2);
}

#[test]
fn caches_have_the_right_pages_and_hit_rates() {
    // Cases of hits in place, and of traces.
    measures(&["cache", "--size", "2M"], "quick_cache,moka,foyer", 2 + 4);
}

#[test]
fn direct_reads_are_right() {
    let arguments = ["reads", "--direct", "--size", "2M", "--depths", "1,16"];
    measures(&arguments, "tokio-uring,compio,monoio,glommio-dma", 2);
}

#[test]
fn logs_have_every_record_after_they_were_opened_again() {
    let arguments = ["log", "--logs", "threads", "--writers", "1,8", "--sizes", "128,4K"];
    measures(&arguments, LOGS, 4);
    let arguments = ["log", "--logs", "pipelined", "--writers", "1", "--in-flight", "8", "--sizes", "128"];
    measures(&arguments, "okaywal,raft-engine", 1);
}

#[test]
fn a_file_that_was_cut_short_is_an_error_and_not_a_hang() {
    let path = on_disk().join(format!("cut-short-{}", std::process::id()));
    std::fs::write(&path, vec![7; SMALLEST as usize]).unwrap();
    let file = TestFile::existing(&path).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(SMALLEST / 2).unwrap();
    let (cancel, gate) = (AtomicBool::new(false), std::sync::Barrier::new(1));
    let offsets: Vec<u64> = (0..SMALLEST / 4096).map(|block| block * 4096).collect();
    for way in peers() {
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
    for way in peers() {
        let check = |offset: u64, bytes: &[u8]| offset != 4096 && file.matches(offset, bytes);
        let gate = std::sync::Barrier::new(1);
        let mut round = Round::new(&gate, Some(&check));
        let target = Target::of(&file);
        let job = Reads { target, block: 4096, depth: 2, offsets: &offsets, pace: None, cancel: &cancel };
        way.reads(&job, Buffer::new(2 * 4096).bytes(), &mut round).unwrap();
        assert_eq!(Sample::of(&[round]).unwrap().wrong, Some(4096), "{}", way.name());
    }
}
