//! The table of copies: commands copy what they are asked to, on a small scale, and a copy that is
//! wrong is noticed.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;

use nowait_bench::measure::options::{Copied, Options};
use nowait_bench::measure::progress::{Course, Plan};
use nowait_bench::measure::work::CopyJob;
use nowait_bench::report::Report;
use nowait_bench::report::notes::Code;
use nowait_bench::table::copy::COPY;
use nowait_bench::table::{Phase, Run};
use nowait_bench::ways::{CopyWay, Does, Roster, WAYS, Way};
use nowait_bench::{ErrorKind, Result};

const BYTES: u64 = (2 << 20) + 77;
const FILES: u64 = 30;

/// A directory of the test's own on the disk of the build.
struct Place(std::path::PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-copy-{}-{name}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        Self(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn measure(ways: Roster, copies: &[Copied], place: &Place, stop: bool) -> (Result<()>, Report) {
    let (rounds, copies, dir) = (Some(2), copies.to_vec(), place.0.clone());
    let (size, files, roster) = (Some(BYTES), Some(FILES), ways);
    let options = Options { rounds, copies, dir, size, files, roster, ..Options::new(true, 42) };
    let (mut report, cancel) = (Report::default(), AtomicBool::new(stop));
    let mut course = Course::new(Plan::default(), ());
    let mut run = Run { options: &options, file: None, cancel: &cancel, course: &mut course, report: &mut report };
    let (result, dir) = (run.measure(&[&COPY], &Phase::ALL), &options.dir);
    assert!(fs::read_dir(dir).unwrap().next().is_none(), "something is left in {}", dir.display());
    (result, report)
}

#[test]
fn every_command_that_is_there_has_a_row_in_each_case() {
    let place = Place::new("rows");
    let (result, report) = measure(WAYS, &Copied::ALL, &place, false);
    result.unwrap();
    let refused = |way: &str| report.notes.iter().any(|note| note.text.contains(&format!("{way} is left out")));
    let has = |case: &str, way: &str| report.rows.iter().any(|row| row.case.starts_with(case) && row.way == way);
    for way in ["cp", "dd", "rsync", "xcp", "fcp", "cpz", "nowait"] {
        assert!(refused(way) || has(if way == "dd" { "big " } else { "tree " }, way) || has("reflink ", way), "{way}");
    }
    assert!(has("big ", "cp") && has("big-neutral ", "dd") && has("tree ", "cp") && !has("tree ", "dd"));
    let shares = report.rows.iter().any(|row| row.case.starts_with("reflink "));
    assert_ne!(shares, report.notes.iter().any(|note| note.code == Code::CaseLeftOut), "{:?}", report.notes);
    for row in &report.rows {
        let figure = |name: &str| row.figure(name).unwrap();
        assert!(row.bytes_per_s > 0.0 && row.rounds.len() == 2, "{row:?}");
        assert!(figure("returned_ms") <= figure("copy_ms") && figure("cpu_ms") > 0.0, "{row:?}");
        if row.way == "cp" {
            assert_eq!(row.own["keeps_metadata"], true, "{row:?}");
        }
        if row.way == "dd" {
            assert_eq!(row.own["keeps_metadata"], false, "{row:?}");
            // Through the cache: what is copied stays there, unless other programs need the memory.
            let pages = figure("copy_pages_cached");
            assert!(row.case.starts_with("big-neutral") || pages > (BYTES / 4096 / 2) as f64, "{row:?}");
        }
    }
}

/// A command of the test's own.
struct Script {
    script: &'static str,
}

impl CopyWay for Script {
    fn command(&self, job: &CopyJob<'_>) -> Command {
        let mut command = Command::new("sh");
        command.args(["-ec", self.script, "sh"]).args([job.from, job.to]);
        command
    }
}

#[test]
fn a_copy_that_is_wrong_is_found_out() {
    let cases = [
        ("short", r#"head -c 2097152 "$1" > "$2""#, Copied::Big, "wrong from byte 2097152"),
        (
            "other",
            r#"cp "$1" "$2"; printf x | dd of="$2" bs=1 seek=1234567 conv=notrunc"#,
            Copied::BigNeutral,
            "wrong from byte 1048576",
        ),
        ("fails", "echo no way >&2; exit 7", Copied::Big, "no way"),
        ("nothing", ":", Copied::Big, "No such file"),
        ("less", r#"cp -r "$1" "$2"; rm "$2/0/17""#, Copied::Tree, "No such file"),
    ];
    let place = Place::new("wrong");
    for (name, script, copied, expected) in cases {
        // Ways live as long as the program.
        let work: &'static dyn CopyWay = Box::leak(Box::new(Script { script }));
        let way: &'static Way = Box::leak(Box::new(Way::new(name, "", vec![Does::Copies(work)].leak())));
        let (result, report) = measure(vec![way].leak(), &[copied], &place, false);
        let told = result.unwrap_err().to_string();
        assert!(told.contains(expected), "{name}: {told}");
        assert!(report.rows.is_empty(), "{name}");
    }
}

#[test]
fn a_run_of_copies_stops_when_told() {
    let place = Place::new("stop");
    let (result, _) = measure(WAYS, &Copied::ALL, &place, true);
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Interrupted);
}
