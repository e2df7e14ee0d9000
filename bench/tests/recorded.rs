//! Old reports stay readable: every one under `docs/measurements` is read, and has the same figures
//! when written again.

use std::fs;
use std::path::{Path, PathBuf};

use nowait_bench::report::Report;
use nowait_bench::report::page::page;
use nowait_bench::table;
use serde_json::Value;

/// Tables of earlier versions: their rows are shown by their names.
const DROPPED: [&str; 11] = [
    "whole",
    "zipf",
    "dd",
    "prefault",
    "log-tail",
    "log-retention",
    "log-rate",
    "log-recovery",
    "copy",
    "ranges",
    "readwrite",
];
/// Tables of examples, of `bench/integrations/` and `bench/versions/`: the command has them not.
const OF_EXAMPLES: [&str; 10] = [
    "scaling",
    "stores",
    "datafusion",
    "datafusion-cache",
    "ballista",
    "versions",
    "redb",
    "sqlite",
    "tantivy",
    "openraft",
];
/// Tables of `crates/nowait-c/bench` and of fio. Their rows have figures of their own, which only the page's tables read.
const OF_C: [&str; 4] = ["c-gather", "c-read", "c-epoll", "fio"];

fn reports(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            reports(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "json") {
            found.push(path);
        }
    }
}

/// Without what was told by another name, or not at all, by older versions.
fn comparable(rows: &Value) -> Vec<Value> {
    let of_row = |row: &Value| {
        let mut row = row.clone();
        if let Some(cpu) = row["cpu_us_per_op"].as_object_mut() {
            let pool = cpu.remove("workers").or_else(|| cpu.remove("pool"));
            cpu.insert("pool".to_owned(), pool.unwrap_or(0.0.into()));
        }
        let fields = row.as_object_mut().unwrap();
        fields.retain(|_, value| !value.is_null());
        row
    };
    rows.as_array().unwrap().iter().map(of_row).collect()
}

#[test]
fn every_recorded_report_is_read_with_all_its_figures() {
    let mut paths = Vec::new();
    reports(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/measurements"), &mut paths);
    let mut read = 0;
    for path in &paths {
        let recorded: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        // fio's own figures, of which a page makes its table.
        if recorded.get("rows").is_none() {
            continue;
        }
        let report: Report = serde_json::from_value(recorded.clone()).unwrap();
        assert!(!report.rows.is_empty(), "{}", path.display());
        for name in report.tables() {
            let elsewhere = [&DROPPED[..], &OF_EXAMPLES, &OF_C].concat();
            assert!(table::by_name(name).is_some() != elsewhere.contains(&name), "{}: {name}", path.display());
        }
        if !report.tables().iter().any(|name| OF_C.contains(name)) {
            let again = serde_json::to_value(&report).unwrap();
            assert_eq!(comparable(&recorded["rows"]), comparable(&again["rows"]), "{}", path.display());
        }
        assert!(page(&report).ends_with("</html>\n"));
        read += 1;
    }
    assert!(read >= 33, "{read} of {}", paths.len());
}
