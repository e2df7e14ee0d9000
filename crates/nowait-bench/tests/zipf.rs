//! The table that runs in a memory cgroup as a whole. Alone in its file: the process moves there
//! and back.

use std::fs;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nowait_bench::measure::options::Options;
use nowait_bench::report::Report;
use nowait_bench::report::notes::Code;
use nowait_bench::table::reading::Hits;
use nowait_bench::table::zipf::ZIPF;
use nowait_bench::table::{Phase, Run};
use nowait_bench::ways;

#[test]
fn popular_pages_are_read_beyond_a_memory_limit_or_there_is_a_note() {
    let groups = || fs::read_to_string("/proc/self/cgroup").unwrap();
    let before = groups();
    let options = Options {
        rounds: 2,
        round_time: Duration::from_millis(20),
        size: Some(64 << 20),
        depths: vec![8],
        ..Options::new(true, 42)
    };
    let (cancel, mut report) = (&AtomicBool::new(false), Report::default());
    let (dir, progress) = (env!("CARGO_TARGET_TMPDIR").as_ref(), &mut ());
    let (asked, file, report_of) = (Vec::new(), None, &mut report);
    let mut run = Run { options: &options, asked, file, dir, cancel, progress, report: report_of };
    run.measure(&[&ZIPF], &Phase::ALL).unwrap();
    assert_eq!(groups(), before);
    if let Some(note) = report.notes.iter().find(|note| note.code == Code::CaseLeftOut) {
        assert!(report.rows.is_empty() && note.text.starts_with("zipf is left out: "), "{}", note.text);
        return eprintln!("skipped: {}", note.text);
    }
    assert!(report.notes.iter().any(|note| note.code == Code::MemoryLimit && note.text.contains("allows 16 MiB")));
    let usable = ways::readers().iter().filter(|way| way.refused().is_none() && !way.one_at_a_time()).count();
    assert_eq!(report.rows.len(), 2 * usable);
    for row in &report.rows {
        assert!(row.ops_per_s > 0.0 && row.rounds.len() == 2, "{row:?}");
        // More than the quarter of all pages would give, and never all.
        if let Some(hits) = row.figures::<Hits>().hit_fraction {
            assert!((0.0..1.0).contains(&hits), "{row:?}");
        }
    }
    let of = |s: &str| {
        let hits = |row: &&nowait_bench::report::Row| row.figures::<Hits>().hit_fraction;
        let rows = report.rows.iter().filter(|row| row.case.starts_with(s));
        rows.filter_map(|row| hits(&row)).fold((0.0, 0.0), |(sum, count), hits| (sum + hits, count + 1.0))
    };
    let ((flat, some), (steep, others)) = (of("s=0.99"), of("s=1.20"));
    if some > 0.0 && others > 0.0 {
        // The steeper the distribution, the more of it is cached.
        assert!(flat / some > 0.25 && steep / others > flat / some, "{flat} of {some}, {steep} of {others}");
    }
}
