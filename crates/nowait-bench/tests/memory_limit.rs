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
    // Not the way through io_uring: on a slow disk a kernel worker that wrote for it ran out of memory,
    // and had the process killed. It asks for some that it must have while all is under write-back.
    let ways: Vec<_> = ways::overwriters().iter().map(|way| way.name()).filter(|name| *name != "ring").collect();
    assert_eq!(ways.len(), ways::overwriters().len() - 1);
    let options = Options {
        memory_limit: Some(64 << 20),
        rounds: 2,
        ways: ways.iter().map(|way| way.to_string()).collect(),
        ..Options::new(false, 42)
    };
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
    assert!(report.rows.iter().map(|row| row.way.as_str()).eq(ways));
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
