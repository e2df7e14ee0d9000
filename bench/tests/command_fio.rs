//! Jobs that fio is given, and its answers; and, when asked for (`make fio-check`), whether both
//! measure the same.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// On the disk of the build: the system's temporary directory may be in memory.
fn directory() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn bench(dir: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nowait-bench")).args(arguments).current_dir(dir).output().unwrap()
}

fn good(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// `None` where it is not installed, which is said.
fn fio(dir: &Path, arguments: &[&str]) -> Option<String> {
    match Command::new("fio").args(arguments).current_dir(dir).output() {
        Ok(output) => Some(good(output)),
        Err(error) => {
            eprintln!("skipped: fio: {error}");
            None
        }
    }
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn fio_takes_the_jobs_and_its_figures_stand_beside_ours() {
    let dir = directory();
    let common = ["reads", "cached", "writes", "--quick", "--size", "2M", "--depths", "1,4"];
    good(bench(dir.path(), &[&common[..], &["--emit-fio", "all.fio"]].concat()));
    if fio(dir.path(), &["--parse-only", "all.fio"]).is_none() {
        return;
    }
    let common = ["reads", "--quick", "--size", "2M", "--depths", "1,4", "--rounds", "1", "--ways", "pread,nowait"];
    good(bench(dir.path(), &[&common[..], &["--emit-fio", "reads.fio"]].concat()));
    fio(dir.path(), &["--output-format=json", "--output=1.json", "reads.fio"]);
    fs::copy(dir.path().join("1.json"), dir.path().join("2.json")).unwrap();
    let text = good(bench(
        dir.path(),
        &[&common[..], &["--with-fio", "1.json", "--with-fio", "2.json", "--json", "run.json"]].concat(),
    ));
    assert!(text.contains("fio-io_uring"), "{text}");
    let report = json(&dir.path().join("run.json"));
    let rows: Vec<&Value> = report["rows"].as_array().unwrap().iter().collect();
    let row = |case: &str, way: &str| rows.iter().find(|row| row["case"] == case && row["way"] == way);
    for (case, way) in [("depth=1", "fio-psync"), ("depth=1", "fio-io_uring"), ("depth=4", "fio-libaio")] {
        let row = row(case, way).unwrap_or_else(|| panic!("{case} {way}: {report}"));
        assert!(row["ops_per_s"].as_f64().unwrap() > 0.0 && row["latency_ns"]["p50"].as_u64().unwrap() > 0, "{row}");
        assert_eq!(row["rounds"].as_array().unwrap().len(), 2);
    }
    assert!(row("depth=4", "fio-psync").is_none(), "one at a time is no depth");
    assert!(report["notes"].as_array().unwrap().iter().any(|note| note["code"] == "fio"));
}

#[test]
fn what_fio_did_not_write_is_5() {
    let dir = directory();
    fs::write(dir.path().join("x"), "{}").unwrap();
    let output = bench(dir.path(), &["--with-fio", "x"]);
    assert_eq!(output.status.code(), Some(5));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--with-fio"));
    let output = bench(dir.path(), &["gather", "--emit-fio", "g.fio"]);
    assert_eq!(output.status.code(), Some(2), "nothing that fio can do");
    assert!(!dir.path().join("g.fio").exists());
}

/// A case, our way, and fio's.
const PAIRS: [(&str, &str, &str, &str); 7] = [
    ("reads", "depth=1", "pread", "fio-psync"),
    ("reads", "depth=1", "ring", "fio-io_uring"),
    ("reads", "depth=32", "ring", "fio-io_uring"),
    ("cached", "threads=1", "pread", "fio-psync"),
    ("cached", "threads=1", "ring", "fio-io_uring"),
    ("writes", "depth=1", "pwrite", "fio-psync"),
    ("writes", "depth=1", "ring", "fio-io_uring"),
];

/// Speed, median latency in µs, and what an operation took besides its latency, at depth 1.
type Figures = Vec<[f64; 3]>;

#[test]
#[ignore = "measures for a minute; make fio-check"]
fn fio_and_we_measure_the_same() {
    let dir = directory();
    let reads = ["reads", "cached", "--file", "data", "--depths", "1,32", "--ways", "pread,ring", "--rounds", "2"];
    let writes = ["writes", "--quick", "--size", "128M", "--depths", "1", "--ways", "pwrite,ring", "--rounds", "1"];
    // Random data, written and synced, as our own test file is.
    let layout =
        ["--name=data", "--filename=data", "--size=64M", "--rw=write", "--bs=1M", "--refill_buffers", "--end_fsync=1"];
    if fio(dir.path(), &layout).is_none() {
        return;
    }
    good(bench(dir.path(), &[&reads[..], &["--emit-fio", "reads.fio"]].concat()));
    good(bench(dir.path(), &[&writes[..], &["--emit-fio", "writes.fio"]].concat()));
    let mut all: BTreeMap<(String, String, String), Figures> = BTreeMap::new();
    for _ in 0..5 {
        for (name, ours) in [("reads", &reads[..]), ("writes", &writes[..])] {
            let jobs = format!("{name}.fio");
            let theirs = [
                &["--output-format=json".to_owned(), "--output=fio.json".to_owned()],
                &*wanted(dir.path(), &jobs),
                &[jobs],
            ]
            .concat();
            fio(dir.path(), &theirs.iter().map(String::as_str).collect::<Vec<_>>());
            good(bench(dir.path(), &[ours, &["--with-fio", "fio.json", "--json", "run.json"]].concat()));
            for row in json(&dir.path().join("run.json"))["rows"].as_array().unwrap() {
                let text = |key: &str| row[key].as_str().unwrap().to_owned();
                let (speed, p50) =
                    (row["ops_per_s"].as_f64().unwrap(), row["latency_ns"]["p50"].as_f64().unwrap() / 1e3);
                let case = text("case").split(' ').next_back().unwrap().to_owned();
                let figures = [speed, p50, (1e6 / speed - p50).max(0.0)];
                all.entry((text("table"), case, text("way"))).or_default().push(figures);
            }
        }
    }
    println!(
        "| case | ours | ops/s (spread) | p50 µs | fio's | ops/s (spread) | p50 µs | fio/ours | |\n|---|---|---|---|---|---|---|---|---|"
    );
    for (table, case, ours, theirs) in PAIRS {
        let of = |way: &str| &all[&(table.to_owned(), case.to_owned(), way.to_owned())];
        let (ours_all, theirs_all) = (of(ours), of(theirs));
        let [speed, other] = [ours_all, theirs_all].map(|figures| median(figures, 0));
        let [p50, other_p50] = [ours_all, theirs_all].map(|figures| median(figures, 1));
        let [rest, other_rest] = [ours_all, theirs_all].map(|figures| median(figures, 2));
        let ratio = other / speed;
        let [spread, other_spread] = [ours_all, theirs_all].map(spread);
        let [all, other_all] = [ours_all, theirs_all].map(|figures| sorted(figures, 0));
        let apart = all[all.len() - 1] < other_all[0] || other_all[other_all.len() - 1] < all[0];
        let why = match (0.9..=1.1).contains(&ratio) {
            true => "within 10 %".to_owned(),
            false if !apart => "the rounds overlap".to_owned(),
            false => {
                format!("beside the median latency, an operation took {rest:.1} µs here and {other_rest:.1} µs in fio")
            }
        };
        println!(
            "| {table} {case} | {ours} | {speed:.0} ({spread}) | {p50:.1} | {theirs} | {other:.0} ({other_spread}) | {other_p50:.1} | \
             {ratio:.2} | {why} |"
        );
    }
}

/// The options by which fio runs the jobs of a file that have a pair here.
fn wanted(dir: &Path, jobs: &str) -> Vec<String> {
    let text = fs::read_to_string(dir.join(jobs)).unwrap();
    let names = text.lines().filter_map(|line| line.strip_prefix('[')?.strip_suffix(']'));
    let paired = |name: &&str| {
        PAIRS.iter().any(|(table, case, _, way)| {
            let engine = way.trim_start_matches("fio-");
            name.starts_with(&format!("{table}: ")) && name.ends_with(&format!("{case}: {engine}"))
        })
    };
    names.filter(paired).map(|name| format!("--section={name}")).collect()
}

fn sorted(figures: &Figures, which: usize) -> Vec<f64> {
    let mut values: Vec<f64> = figures.iter().map(|figures| figures[which]).collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(figures: &Figures, which: usize) -> f64 {
    let values = sorted(figures, which);
    values[values.len() / 2]
}

fn spread(figures: &Figures) -> String {
    let (values, median) = (sorted(figures, 0), median(figures, 0));
    format!("{:.2}–{:.2}", values[0] / median, values[values.len() - 1] / median)
}
