//! `nowait bench` as a user meets it: exit codes, messages, what is written and what is left
//! behind.

use std::fs;
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

fn nowait(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nowait-bench"));
    command.args(arguments).env_remove("NO_COLOR");
    command
}

fn run(arguments: &[&str]) -> Output {
    nowait(arguments).output().unwrap()
}

/// On the disk of the build: the system's temporary directory may be in memory.
fn directory() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Output besides the estimate of the run's time.
fn complaints(stderr: &[u8]) -> String {
    let said = text(stderr);
    said.split_inclusive('\n').filter(|line| !line.starts_with("nowait bench: about ")).collect()
}

/// One line that names the path and says what to do.
fn assert_fails(output: &Output, code: i32, words: &[&str]) {
    let message = complaints(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{message}");
    assert!(message.starts_with("nowait bench: ") && message.lines().count() == 1, "{message}");
    assert!(words.iter().all(|word| message.contains(word)), "{message}");
}

fn assert_empty(directory: &Path) {
    let left: Vec<_> = fs::read_dir(directory).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_small_run_prints_tables_and_writes_json() {
    let dir = directory();
    let path = dir.path().to_str().unwrap();
    let json = dir.path().join("result.json");
    fs::write(&json, "an older and much longer result".repeat(1000)).unwrap();
    let ways = "pread,threads";
    let output = run(&[
        "cached",
        "--quick",
        "--rounds",
        "1",
        "--size",
        "4M",
        "--dir",
        path,
        "--ways",
        ways,
        "--seed",
        "5",
        "--json",
        json.to_str().unwrap(),
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let tables = text(&output.stdout);
    for words in ["kernel ", "device ", "seed     5", "threads=2", "Where each way is worst"] {
        assert!(tables.contains(words), "{tables}");
    }
    assert!(!tables.contains('\x1b') && tables.lines().all(|line| line.chars().count() <= 200));
    assert!(complaints(&output.stderr).is_empty(), "a progress bar without a terminal: {}", text(&output.stderr));

    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(report["environment"]["seed"], 5);
    let command = report["environment"]["command"].as_str().unwrap();
    assert!(command.contains(" cached --quick --rounds 1 --size 4M --dir "), "{command}");
    assert_eq!(report.get("partial"), None);
    assert_eq!(report["rows"].as_array().unwrap().len(), 3 * 2);
    assert!(report["rows"][0]["ops_per_s"].as_f64().unwrap() > 0.0);
    fs::remove_file(json).unwrap();
    assert_empty(dir.path());
}

#[test]
fn notes_are_explained_by_their_code_and_after_a_run() {
    let explained = run(&["--explain", "not-cold"]);
    assert_eq!(explained.status.code(), Some(0));
    assert!(text(&explained.stdout).starts_with("not-cold\n  Pages of the file"), "{}", text(&explained.stdout));
    assert_eq!(run(&["--explain", "nothing"]).status.code(), Some(2));
    let dir = directory();
    let file = dir.path().join("zeros");
    fs::write(&file, vec![0; 2 << 20]).unwrap();
    let arguments = ["cached", "--quick", "--rounds", "1", "--ways", "pread", "--explain", "--file"];
    let output = run(&[&arguments[..], &[file.to_str().unwrap()]].concat());
    let text = text(&output.stdout);
    assert!(text.contains("(compressible)\n") && text.contains("compressible\n  The data that is read"), "{text}");
}

#[test]
fn a_run_that_is_worse_than_another_is_12() {
    let dir = directory();
    let made = |name: &str, speeds: [f64; 3]| {
        let path = dir.path().join(name);
        let rows = serde_json::json!([{"table": "reads", "case": "depth=1", "way": "pread", "ops_per_s": speeds[1], "rounds": speeds}]);
        fs::write(&path, serde_json::json!({ "rows": rows }).to_string()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (old, new) = (made("old.json", [100.0, 100.1, 100.2]), made("new.json", [50.0, 50.1, 50.2]));
    let other = dir.path().join("other.json");
    fs::write(&other, fs::read_to_string(&old).unwrap().replace("reads", "writes")).unwrap();
    let compare = |from: &str, against: &str| run(&["--from", from, "--against", against]);
    let worse = compare(&new, &old);
    assert_fails(&worse, 12, &["old.json", "1 rows"]);
    assert!(text(&worse.stdout).contains("WORSE"), "{}", text(&worse.stdout));
    assert_eq!(compare(&old, &new).status.code(), Some(0));
    assert_fails(&compare(&new, other.to_str().unwrap()), 5, &["no row is in both", "other.json"]);
    assert_eq!(run(&["--against", &old]).status.code(), Some(2));
}

#[test]
fn json_on_stdout_moves_the_tables_to_stderr() {
    let dir = directory();
    let path = dir.path().to_str().unwrap();
    let file = dir.path().join("data");
    fs::write(&file, vec![1; 3 << 20]).unwrap();
    let output = run(&[
        "reads",
        "--quick",
        "--rounds",
        "1",
        "--depths",
        "2",
        "--ways",
        "pread",
        "--file",
        file.to_str().unwrap(),
        "--json",
        "-",
    ]);
    assert_eq!(output.status.code(), Some(0), "{path}: {}", text(&output.stderr));
    assert!(text(&output.stderr).contains("depth=2"));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["rows"][0]["case"], "depth=2");
}

#[test]
fn direct_reads_are_a_table_of_their_own() {
    let dir = directory();
    let file = dir.path().join("data");
    // Its last page is short, which past the page cache is left alone.
    fs::write(&file, vec![1; (2 << 20) + 100]).unwrap();
    let file = file.to_str().unwrap();
    let run = |ways: &str| {
        let common = ["--direct", "--quick", "--rounds", "1", "--depths", "1,8", "--file", file, "--json", "-"];
        run(&[&common[..], &["--ways", ways]].concat())
    };
    let output = run("pread,ring,nowait,nowait-aio");
    let message = text(&output.stderr);
    if message.contains("omit --direct") {
        return eprintln!("skipped: {message}");
    }
    assert_eq!(output.status.code(), Some(0), "{message}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["environment"]["file_origin"].as_str().unwrap().ends_with("past the page cache"));
    let rows = report["rows"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["way"] == "nowait-aio" || message.contains("nowait-aio is left out")));
    assert!(rows.iter().all(|row| row["table"] == "reads"));
    assert_fails(&run("willneed"), 2, &["none of --ways is in the table reads", "nowait-aio"]);
}

#[test]
fn wrong_usage_is_2() {
    for arguments in [
        &["--ways", "magic"][..],
        &["nothing"],
        &["--size", "12X"],
        &["--rounds", "0"],
        &["--depths", "0"],
        &["gather", "--records", "0"],
        &["--file", "x", "--size", "1G"],
        &["cached", "--direct"],
        &["writes", "--direct"],
        &["scan", "--blocks", "1000"],
        &["scan", "--blocks", "128M"],
        &["scan", "--blocks", "0"],
        &["log", "--sizes", "15"],
        &["log", "--sizes", "2M"],
        &["log", "--writers", "0"],
        &["mixed", "--hot", "101"],
        &["mixed", "--tasks", "0"],
        &["mixed", "--workers", "0"],
        &["mixed", "--beside", "everything"],
        &["mixed", "--direct"],
        &["load", "--rates", "0"],
        &["load", "--loads", "writes"],
        &["--from", "run.json", "--hot", "90"],
        &["--from", "run.json", "--stall-size", "8M"],
        &["--from", "run.json", "--time", "9"],
    ] {
        assert_eq!(run(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let help = run(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    let help = text(&help.stdout);
    assert!(help.contains("130  interrupted") && help.contains("vm.dirty_bytes"), "{help}");
}

#[test]
fn a_directory_that_cannot_be_written_is_4() {
    // Not even root can make a file in sysfs.
    assert_fails(&run(&["--dir", "/sys"]), 4, &["/sys", "--dir"]);
}

#[test]
fn a_directory_that_is_missing_is_5() {
    for table in ["reads", "files", "writes", "log"] {
        for dir in ["/nonexistent/dir", "/etc/passwd"] {
            assert_fails(&run(&[table, "--dir", dir]), 5, &[dir, "--dir"]);
        }
    }
}

#[test]
fn the_exit_code_tells_where_nobody_reads_the_error() {
    let mut child = nowait(&["--file", "/nonexistent"]).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(5));
}

#[test]
fn a_limit_of_a_file_s_size_is_an_error_and_leaves_nothing() {
    let dir = directory();
    let limited = format!(
        "ulimit -f 1000; exec {} writes --quick --dir {}",
        env!("CARGO_BIN_EXE_nowait-bench"),
        dir.path().display()
    );
    let output = Command::new("sh").args(["-c", &limited]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("too large"), "{output:?}");
    assert_empty(dir.path());
}

#[test]
fn a_file_that_cannot_be_measured_is_5() {
    let dir = directory();
    let small = dir.path().join("small");
    fs::write(&small, "x").unwrap();
    for file in ["/nonexistent", "/tmp", "/dev/null", small.to_str().unwrap()] {
        assert_fails(&run(&["--file", file]), 5, &[file, "regular file"]);
    }
}

#[test]
fn a_json_path_that_cannot_be_written_is_noticed_before_the_work() {
    let dir = directory();
    let output = run(&["--dir", dir.path().to_str().unwrap(), "--json", "/nonexistent/x.json"]);
    assert_fails(&output, 5, &["/nonexistent/x.json", "--json"]);
    // Nothing was measured, nor a file made.
    assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
    assert_empty(dir.path());
}

#[test]
fn a_small_run_of_writes_prints_tables_and_writes_json() {
    let dir = directory();
    let json = dir.path().join("result.json");
    let output = run(&[
        "writes",
        "stall",
        "--quick",
        "--rounds",
        "1",
        "--size",
        "2M",
        "--stall-size",
        "2M",
        "--depths",
        "1,4",
        "--ways",
        "pwrite,nowait",
        "--dir",
        dir.path().to_str().unwrap(),
        "--json",
        json.to_str().unwrap(),
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let tables = text(&output.stdout);
    for words in ["writes: ", "depth=4", "stall: ", "longest", "Where each way is worst"] {
        assert!(tables.contains(words), "{tables}");
    }
    assert!(complaints(&output.stderr).is_empty(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 2 + 2);
    assert!(rows.iter().all(|row| row["ops_per_s"].as_f64().unwrap() > 0.0));
    assert_eq!(report["environment"]["stall_bytes"], 2 << 20);
    fs::remove_file(json).unwrap();
    assert_empty(dir.path());
}

#[test]
fn ways_that_do_not_do_it_and_files_that_are_only_read_are_2() {
    assert_fails(&run(&["writes", "--ways", "pread"]), 2, &["writes", "pwrite"]);
    assert_fails(&run(&["reads", "--ways", "pwrite"]), 2, &["pread"]);
    assert_fails(&run(&["writes", "--file", "/etc/passwd"]), 2, &["--file"]);
    assert_fails(&run(&["reads", "--blocks", "1M"]), 2, &["--blocks", "scan"]);
    assert_fails(&run(&["scan", "--ways", "pwrite"]), 2, &["table scan", "nowait-stream"]);
    assert_fails(&run(&["files", "--file", "/etc/passwd"]), 2, &["--file", "files"]);
    assert_fails(&run(&["files", "--ways", "pwrite"]), 2, &["table files", "ring"]);
    assert_fails(&run(&["log", "--ways", "pwrite"]), 2, &["table log", "thread-batch"]);
    assert_fails(&run(&["log", "--file", "/etc/passwd"]), 2, &["--file"]);
    assert_fails(&run(&["writes", "--writers", "8"]), 2, &["--writers", "log"]);
    assert_fails(&run(&["reads", "--hot", "90"]), 2, &["--hot", "mixed"]);
    assert_fails(&run(&["log", "--beside", "log"]), 2, &["--beside", "mixed"]);
    assert_fails(&run(&["mixed", "--ways", "pwrite"]), 2, &["table mixed", "nowait-tokio"]);
    assert_fails(&run(&["load", "--ways", "pread"]), 2, &["table load", "thread-batch"]);
    assert_fails(&run(&["load", "--quick", "--ways", "thread-batch"]), 2, &["table load", "nowait-tokio"]);
    assert_fails(&run(&["load", "--loads", "log", "--file", "/etc/passwd"]), 2, &["--file", "load"]);
    assert_fails(&run(&["reads", "--rates", "100"]), 2, &["--rates", "load"]);
    assert_fails(&run(&["stall", "--quick", "--ways", "pread"]), 2, &["table stall", "tokio", "pwrite"]);
    assert_fails(&run(&["reads", "--records", "8"]), 2, &["--records", "gather"]);
    assert_fails(&run(&["cached", "--depths", "8"]), 2, &["--depths", "reads"]);
    assert_fails(&run(&["writes", "--stall-size", "8M"]), 2, &["--stall-size", "stall"]);
    let dir = directory();
    let twice = dir.path().join("result");
    let twice = twice.to_str().unwrap();
    assert_fails(&run(&["cached", "--json", twice, "--report", twice]), 2, &["--report", "same file"]);
    assert_empty(dir.path());
}

#[test]
fn small_runs_of_everyday_work_print_tables_and_write_json() {
    let dir = directory();
    let json = dir.path().join("result.json");
    let tables = ["scan", "files", "--quick", "--rounds", "1", "--size", "2M", "--depths", "2"];
    let ways = ["--blocks", "16K", "--ways", "threads,nowait", "--dir", dir.path().to_str().unwrap()];
    let output = run(&[&tables[..], &ways, &["--json", json.to_str().unwrap()]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let tables = text(&output.stdout);
    let words = ["scan: ", "block=16K depth=2", "stride=4 block=16K", "read/asked", "files: ", "data-cold depth=2"];
    for words in words.into_iter().chain(["(inodes-warm)"]) {
        assert!(tables.contains(words), "{words}: {tables}");
    }
    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    for row in report["rows"].as_array().unwrap() {
        assert!(row["ops_per_s"].as_f64().unwrap() > 0.0, "{row}");
        let of = |table: &str| row["table"] == table;
        assert_eq!(row["pages_read_per_page"].is_f64(), of("scan"), "{row}");
    }
    fs::remove_file(json).unwrap();
    assert_empty(dir.path());
}

#[test]
fn a_small_run_of_mixed_prints_tables_and_writes_json() {
    let dir = directory();
    let json = dir.path().join("result.json");
    let output = run(&[
        "mixed",
        "--quick",
        "--rounds",
        "1",
        "--size",
        "4M",
        "--hot",
        "100,90",
        "--tasks",
        "8",
        "--workers",
        "1",
        "--beside",
        "nobody,log",
        "--ways",
        "plain,nowait,nowait-tokio",
        "--dir",
        dir.path().to_str().unwrap(),
        "--json",
        json.to_str().unwrap(),
    ]);
    if output.status.code() == Some(6) {
        return eprintln!("skipped: {}", text(&output.stderr));
    }
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let tables = text(&output.stdout);
    for words in ["mixed: ", "hot=90 tasks=8 workers=1 beside=log", "cold p50", "late p50 ms", "beside/s"] {
        assert!(tables.contains(words), "{tables}");
    }
    assert!(tables.lines().filter(|line| line.starts_with("  ")).all(|line| line.chars().count() <= 100), "{tables}");
    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4 * 3);
    for row in rows {
        let case = row["case"].as_str().unwrap();
        assert!(row["ops_per_s"].as_f64().unwrap() > 0.0 && row["hot_latency_ns"]["p99"].is_u64(), "{row}");
        assert_eq!(row["cold_latency_ns"]["p50"].is_u64(), case.starts_with("hot=90 "), "{row}");
        assert_eq!(row["beside_per_s"].is_f64(), case.ends_with("beside=log"), "{row}");
        assert!(row["beats"].as_u64().is_none_or(|beats| beats > 0 && row["late_ns"]["max"].is_u64()), "{row}");
    }
    fs::remove_file(json).unwrap();
    assert_empty(dir.path());
}

#[test]
fn a_small_run_of_load_prints_tables_and_writes_json_and_curves() {
    let dir = directory();
    let [json, page] = ["result.json", "result.html"].map(|name| dir.path().join(name));
    let output = run(&[
        "load",
        "--quick",
        "--rounds",
        "1",
        "--size",
        "4M",
        "--rates",
        "200,400",
        "--loads",
        "reads,log",
        "--dir",
        dir.path().to_str().unwrap(),
        "--json",
        json.to_str().unwrap(),
        "--report",
        page.to_str().unwrap(),
    ]);
    if output.status.code() == Some(6) {
        return eprintln!("skipped: {}", text(&output.stderr));
    }
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let tables = text(&output.stdout);
    for words in ["load: ", "reads rate=200", "log rate=200", "offered/s", "achieved/s", "kept", "load reads: "] {
        assert!(tables.contains(words), "{tables}");
    }
    assert!(!tables.contains("is the quickest"), "{tables}");
    assert!(tables.lines().filter(|line| line.starts_with("  ")).all(|line| line.chars().count() <= 100), "{tables}");
    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["way"] == "thread-batch") && rows.iter().any(|row| row["way"] == "ring"));
    for row in rows {
        let rate: f64 = row["case"].as_str().unwrap().split_once("rate=").unwrap().1.parse().unwrap();
        assert!(row["offered_per_s"].as_f64() == Some(rate) && row["latency_ns"]["p99"].is_u64(), "{row}");
        assert!(row["cpu_us_per_op"]["total"].is_f64() && row["ops_per_s"].as_f64().unwrap() > 0.0, "{row}");
    }
    let drawn = fs::read_to_string(&page).unwrap();
    for words in ["load by rate: reads", "load by rate: log", "p50 latency from arrival", "p99 latency from arrival"] {
        assert!(drawn.contains(words), "{words}");
    }
    fs::remove_file(json).unwrap();
    fs::remove_file(page).unwrap();
    assert_empty(dir.path());
}

#[test]
fn a_small_run_of_log_prints_tables_and_writes_json() {
    let dir = directory();
    let json = dir.path().join("result.json");
    let output = run(&[
        "log",
        "--quick",
        "--rounds",
        "1",
        "--writers",
        "8,1,8",
        "--sizes",
        "4K,128",
        "--ways",
        "append-fdatasync,direct-dsync,thread-batch",
        "--dir",
        dir.path().to_str().unwrap(),
        "--json",
        json.to_str().unwrap(),
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let tables = text(&output.stdout);
    for words in ["log: ", "writers=8 size=4K", "p99.9", "Where each way is worst", "filled with zeros"] {
        assert!(tables.contains(words), "{tables}");
    }
    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let cases: Vec<_> = rows.iter().map(|row| row["case"].as_str().unwrap()).collect();
    let alone = cases.iter().filter(|case| case.starts_with("writers=1 ")).count();
    // A build's directory in memory may refuse direct I/O.
    assert!((cases.len() - alone, alone) == (6, 6) || (cases.len() - alone, alone) == (4, 4), "{cases:?}");
    for row in rows {
        assert!(row["table"] == "log" && row["ops_per_s"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["file_bytes_per_byte"].as_f64().unwrap() >= 1.0, "{row}");
    }
    fs::remove_file(json).unwrap();
    assert_empty(dir.path());
}

/// A tmpfs of its own, unmounted also when a test fails. `None` for who may not mount.
struct Tmpfs(TempDir);

impl Tmpfs {
    fn new(options: &str, flags: MountFlags) -> Option<Self> {
        let dir = directory();
        let options = std::ffi::CString::new(options).unwrap();
        mount("tmpfs", dir.path(), "tmpfs", flags, Some(options.as_c_str())).ok()?;
        Some(Self(dir))
    }

    fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

#[test]
fn a_full_disk_is_3_and_leaves_nothing() {
    let Some(disk) = Tmpfs::new("size=4m", MountFlags::empty()) else { return };
    assert_fails(&run(&["--dir", disk.path(), "--size", "64M"]), 3, &[disk.path(), "--size"]);
    assert_empty(disk.0.path());
    assert_fails(&run(&["writes", "--quick", "--dir", disk.path(), "--size", "64M"]), 3, &[disk.path(), "--size"]);
    assert_fails(&run(&["stall", "--quick", "--dir", disk.path()]), 3, &[disk.path(), "--stall-size"]);
    assert_fails(&run(&["log", "--dir", disk.path(), "--sizes", "1M"]), 3, &[disk.path(), "--sizes"]);
    assert_empty(disk.0.path());
}

#[test]
fn a_disk_that_fills_up_meanwhile_is_3_and_leaves_nothing() {
    let Some(disk) = Tmpfs::new("size=8m", MountFlags::empty()) else { return };
    let mut command = nowait(&["writes", "--quick", "--rounds", "1000", "--size", "6M", "--dir", disk.path()]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    // Of a round's file and this one, either may be the one that does not fit. Tried until this one
    // is there.
    let mut other = fs::File::create(disk.0.path().join("other")).unwrap();
    let began = Instant::now();
    while other.metadata().unwrap().len() < 4 << 20 && began.elapsed() < Duration::from_secs(20) {
        let _ = other.write(&[1; 4096]);
    }
    assert_fails(&child.wait_with_output().unwrap(), 3, &["no room", "--size"]);
    fs::remove_file(disk.0.path().join("other")).unwrap();
    assert_empty(disk.0.path());
}

#[test]
fn a_read_only_disk_is_4() {
    let Some(disk) = Tmpfs::new("size=4m", MountFlags::RDONLY) else { return };
    assert_fails(&run(&["--dir", disk.path()]), 4, &[disk.path(), "Read-only"]);
    assert_fails(&run(&["writes", "--dir", disk.path()]), 4, &[disk.path(), "Read-only"]);
    assert_fails(&run(&["log", "--dir", disk.path()]), 4, &[disk.path(), "Read-only"]);
}

#[test]
fn a_file_in_memory_cannot_be_cold_which_is_6_and_no_cold_row_is_printed() {
    let Some(disk) = Tmpfs::new("size=16m", MountFlags::empty()) else { return };
    let output = run(&["reads", "--quick", "--dir", disk.path(), "--size", "4M"]);
    assert_fails(&output, 6, &["cold", "pages still cached", "--dir"]);
    assert!(!text(&output.stdout).contains("depth="));
}

#[test]
fn an_interrupt_stops_at_once_and_leaves_nothing() {
    let (dir, results) = (directory(), directory());
    let json = results.path().join("result.json");
    fs::write(&json, "an older result").unwrap();
    // More rounds than fit, so that no case is complete.
    let arguments = ["reads", "--rounds", "1000", "--dir", dir.path().to_str().unwrap(), "--size", "64M", "--json"];
    let arguments = [&arguments[..], &[json.to_str().unwrap()]].concat();
    let mut child = nowait(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It has begun to measure, however busy the machine is.
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let began = Instant::now();
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT).unwrap();
    let status = child.wait().unwrap();
    // A thousand rounds take many minutes.
    assert!(began.elapsed() < Duration::from_secs(60));
    assert_eq!(status.code(), Some(130));
    let mut message = String::new();
    child.stderr.take().unwrap().read_to_string(&mut message).unwrap();
    assert!(message.contains("interrupted"), "{message}");
    assert!(message.contains(&format!("{} is left as it was", json.display())), "{message}");
    assert_eq!(fs::read_to_string(&json).unwrap(), "an older result");
    assert_empty(dir.path());
}

#[test]
fn an_interrupt_leaves_what_is_complete_and_says_so() {
    let dir = directory();
    let json = dir.path().join("result.json");
    let mut tables = tempfile::tempfile().unwrap();
    // An interrupt before the first of three cases is complete leaves no result, one after the last has
    // nothing to interrupt. A pause between the two is searched for: a busy machine takes longer.
    let (mut early_ms, mut late_ms) = (0, None);
    while !json.exists() {
        let pause_ms = late_ms.map_or(early_ms.max(4000) * 3 / 2, |late_ms| (early_ms + late_ms) / 2);
        assert!(pause_ms < 600_000, "no case is ever complete");
        let arguments = ["cached", "--quick", "--rounds", "12", "--ways", "pread,threads", "--size", "2M", "--dir"];
        let mut command = nowait(&arguments);
        command.arg(dir.path()).arg("--json").arg(&json).stdout(tables.try_clone().unwrap()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(pause_ms));
        let child_id = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(child_id, rustix::process::Signal::TERM).unwrap();
        match child.wait().unwrap().code() {
            Some(130) => early_ms = pause_ms,
            Some(0) => {
                fs::remove_file(&json).unwrap();
                tables.set_len(0).unwrap();
                tables.rewind().unwrap();
                late_ms = Some(pause_ms);
                // The machine may have become faster.
                early_ms = early_ms.min(pause_ms / 2);
            }
            code => panic!("{code:?} after an interrupt at {pause_ms} ms"),
        }
    }
    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(report["partial"], "interrupted");
    let mut printed = String::new();
    tables.rewind().unwrap();
    tables.read_to_string(&mut printed).unwrap();
    assert!(printed.contains("PARTIAL: interrupted"), "{printed}");
    let rows = report["rows"].as_array().unwrap();
    assert!(rows.len() == 2 || rows.len() == 4, "whole cases only: {}", rows.len());
    assert!(rows.iter().all(|row| row["rounds"].as_array().unwrap().len() == 12));
}

/// As root this lowers the limit of dirty data, which concerns the whole machine.
#[test]
fn an_interrupt_undoes_what_the_tables_that_write_have_changed() {
    let limits = || {
        let names = ["dirty_bytes", "dirty_ratio", "dirty_background_bytes", "dirty_background_ratio"];
        names.map(|name| fs::read_to_string(format!("/proc/sys/vm/{name}")).unwrap())
    };
    let before = limits();
    for (table, ways, pause) in [
        ("writes", "pwrite,nowait", 1500),
        ("stall", "pwrite", 700),
        ("stall", "ring,nowait", 2500),
        ("log", "append-fdatasync,thread-batch", 1500),
    ] {
        let dir = directory();
        let arguments = [table, "--rounds", "1000", "--dir", dir.path().to_str().unwrap(), "--ways", ways];
        let child = nowait(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(pause));
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{table} {ways}: {}", text(&output.stderr));
        assert_empty(dir.path());
    }
    assert_eq!(limits(), before);
}

/// A terminal that is closed, or a session that is lost.
#[test]
fn a_hangup_ends_a_run_in_order_and_leaves_nothing() {
    let dir = directory();
    // Under nohup, too, where a hangup is ignored.
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP", env!("CARGO_BIN_EXE_nowait-bench"), "log", "--rounds", "1000"]);
    command.args(["--ways", "nowait", "--dir"]).arg(dir.path());
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    while !fs::read_dir(dir.path()).unwrap().flatten().any(|entry| entry.path().is_dir()) {
        assert!(began.elapsed() < Duration::from_secs(60), "it makes no log");
        std::thread::sleep(Duration::from_millis(5));
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::HUP).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{:?}: {}", output.status, text(&output.stderr));
    assert_empty(dir.path());
}

#[test]
fn a_run_removes_what_a_killed_one_left_and_nothing_else() {
    let dir = directory();
    for left in [".nowait-bench-log-4294967294-x7", ".nowait-bench-files-4294967294-0"] {
        fs::create_dir_all(dir.path().join(left).join("0")).unwrap();
    }
    let others = [format!(".nowait-bench-log-{}-x7", std::process::id()), ".nowait-bench-mine".to_owned()];
    others.iter().for_each(|other| fs::create_dir(dir.path().join(other)).unwrap());
    let arguments = ["cached", "--quick", "--rounds", "1", "--size", "1M", "--ways", "pread", "--dir"];
    assert!(nowait(&arguments).arg(dir.path()).output().unwrap().status.success());
    others.iter().for_each(|other| fs::remove_dir(dir.path().join(other)).unwrap());
    assert_empty(dir.path());
}

/// Each way writes a part of a call up to the limit first.
#[test]
fn a_way_that_cannot_write_on_says_why() {
    for way in ["pwrite", "pwritev-16", "threads"] {
        let dir = directory();
        let script = r#"ulimit -f 1001; exec "$0" writes --quick --rounds 1 --depths 16 --ways "$1" --dir "$2""#;
        let mut command = Command::new("sh");
        command.args(["-c", script, env!("CARGO_BIN_EXE_nowait-bench"), way]).arg(dir.path());
        assert_fails(&command.output().unwrap(), 1, &[way, "File too large"]);
    }
}

#[test]
fn threads_that_cannot_be_started_are_an_error_and_hold_nobody_up() {
    let dir = directory();
    // Their stacks do not fit.
    let script = r#"ulimit -v 1500000; exec timeout 100 "$0" writes --quick --rounds 1 --depths 1024 --ways threads \
        --dir "$1""#;
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_nowait-bench")]).arg(dir.path());
    assert_fails(&command.output().unwrap(), 1, &["threads failed in writes", "start a thread"]);
}

#[test]
fn figures_are_kept_where_they_cannot_be_printed() {
    let (dir, json) = (directory(), directory());
    let json = json.path().join("run.json");
    let mut command = nowait(&["--time", "15", "--size", "1M", "--dir"]);
    command.arg(dir.path()).arg("--json").arg(&json).stdout(fs::File::create("/dev/full").unwrap());
    assert_fails(&command.output().unwrap(), 1, &["cannot print the result", "No space left"]);
    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert!(!report["rows"].as_array().unwrap().is_empty());
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let dir = directory();
    let arguments = ["cached", "--quick", "--rounds", "1", "--size", "2M", "--ways", "pread", "--dir"];
    let mut command = nowait(&arguments);
    let mut child = command.arg(dir.path()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), complaints(&output.stderr)), (Some(0), String::new()));
}

#[test]
fn text_is_ascii_where_the_locale_is_not_utf_8() {
    let record = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/measurements/2026-11-28-reads/reads.json");
    let shown = |locale: &str| text(&nowait(&["--from", record]).env("LC_ALL", locale).output().unwrap().stdout);
    let (plain, full) = (shown("C"), shown("C.UTF-8"));
    assert!(plain.is_ascii() && plain.contains(" x pread"), "{plain}");
    assert!(full.contains(" × pread") && full.contains('▼'), "{full}");
    assert_eq!(plain.lines().count(), full.lines().count());
}
