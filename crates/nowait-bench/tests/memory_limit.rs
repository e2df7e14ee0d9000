//! The case that runs in a memory cgroup. Alone in its file: the whole process moves there and
//! back.

use std::fs;
use std::sync::atomic::AtomicBool;

use nowait_bench::measure::options::Options;
use nowait_bench::report::Report;
use nowait_bench::table::stall::{Figures, Stall};
use nowait_bench::table::{Phase, Run};
use nowait_bench::ways;

#[test]
fn overwriting_beyond_a_memory_limit_has_a_case_of_its_own_or_a_note() {
    let groups = || fs::read_to_string("/proc/self/cgroup").unwrap();
    let before = groups();
    let table = Stall { populators: &[], stallers: &[], overwriters: ways::overwriters() };
    // With 16 MiB a kernel worker that wrote for io_uring ran out of memory, now and then, on a slow
    // disk: all of it was pages under write-back.
    let options = Options { memory_limit: Some(64 << 20), rounds: 2, ..Options::new(false, 42) };
    let (cancel, mut report) = (&AtomicBool::new(false), Report::default());
    let (dir, progress) = (env!("CARGO_TARGET_TMPDIR").as_ref(), &mut ());
    let (asked, file, report_of) = (Vec::new(), None, &mut report);
    let mut run = Run { options: &options, asked, file, dir, cancel, progress, report: report_of };
    run.measure(&[&table], &Phase::ALL).unwrap();
    assert_eq!(groups(), before);
    let note = report.notes.iter().find(|note| note.text.starts_with("stall: overwrite memory=64M")).unwrap();
    if note.text.contains("left out") {
        assert!(report.rows.is_empty());
        return eprintln!("skipped: {}", note.text);
    }
    let usable = ways::overwriters().iter().filter(|way| way.refused().is_none());
    assert!(report.rows.iter().map(|row| row.way.as_str()).eq(usable.map(|way| way.name())));
    for row in &report.rows {
        assert_eq!((row.table.as_str(), row.case.as_str(), row.rounds.len()), ("stall", "overwrite memory=64M", 2));
        assert!(
            row.ops_per_s > 0.0
                && row.latency_ns.is_some_and(|latency| latency.max > 0)
                && row.figures::<Figures>().stalled_fraction.is_some(),
            "{row:?}"
        );
    }
}
