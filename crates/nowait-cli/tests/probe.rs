//! `nowait probe` as a user meets it: exit codes, what is said, and what is left behind.

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nowait")).arg("probe").args(arguments).output().unwrap()
}

/// On the disk of the build: the system's temporary directory may be in memory.
fn directory() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Where io_uring is refused, or nothing can be told of it, says so.
fn is_told(output: &Output) -> bool {
    let code = output.status.code();
    if matches!(code, Some(10 | 11)) {
        eprintln!("skipped: {}", text(&output.stderr));
    }
    !matches!(code, Some(10 | 11))
}

#[test]
fn a_folder_and_a_file_are_probed_and_nothing_is_left() {
    let dir = directory();
    let file = dir.path().join("data");
    fs::write(&file, vec![7; 200_000]).unwrap();
    let (path, file_path) = (dir.path().to_str().unwrap(), file.to_str().unwrap());
    let output = run(&[path, file_path, "--requests", "8", "--explain", "--shallow"]);
    let said = text(&output.stdout);
    if is_told(&output) {
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert!(said.contains("controls hold") && said.contains("always by a worker"), "{said}");
        assert!(said.contains("one in flight, one size: only one request at a time was asked for"), "{said}");
        // Confirmed, or the next step to that.
        let is_confirmed = said.contains("confirmed by the kernel's tracepoints for ");
        let steps = ["mount -t tracefs", "run as root", "take one that is built with", "probe again", "kernel log"];
        let next_step = steps.iter().any(|step| said.contains(step));
        assert!(is_confirmed != (said.contains("UNCONFIRMED") && next_step), "{said}");
    }
    for words in [
        "a directory on ",
        "a file on ",
        "io_uring ",
        "scratch files",
        "the file itself",
        "cold-read",
        "sync",
        "  summary ",
    ] {
        assert!(said.contains(words), "{words:?} is missing:\n{said}");
    }
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["data"]);
    assert!(fs::read(&file).unwrap() == vec![7; 200_000]);
}

#[test]
fn json_is_a_list_with_an_object_for_each_path() {
    let dir = directory();
    let path = dir.path().to_str().unwrap();
    let output = run(&[path, path, "--requests", "4", "--json", "--shallow"]);
    let reports: Value = serde_json::from_slice(&output.stdout).unwrap();
    let reports = reports.as_array().unwrap();
    assert_eq!(reports.len(), 2);
    for report in reports {
        assert_eq!((report["path"].as_str(), report["subject"].as_str()), (Some(path), Some("directory")));
        let rows = report["scratch"].as_array().unwrap();
        assert_eq!(rows.len(), 12);
        let sync = rows.iter().find(|row| row["case"] == "sync").unwrap();
        assert_eq!(sync["nowait"]["requests"], 4);
        assert_eq!(sync["nowait"]["pool"], 4);
        assert!(report["summary"].as_str().unwrap().contains("syncs"), "{report}");
        if is_told(&output) {
            assert_eq!((&sync["ring"]["outcome"], &sync["ring"]["worker"]), (&"seen".into(), &4.into()));
            assert_eq!(report["controls"]["hold"], true);
            assert_eq!(report["confirmed"], report["unconfirmed"].is_null());
        }
    }
}

#[test]
fn json_has_each_depth_and_size() {
    let dir = directory();
    let output = run(&[dir.path().to_str().unwrap(), "--requests", "4", "--json"]);
    let reports: Value = serde_json::from_slice(&output.stdout).unwrap();
    if !is_told(&output) {
        return;
    }
    let report = &reports[0];
    if let Some(why) = report["steps_missing"].as_str() {
        return eprintln!("skipped: {why}");
    }
    let rows = report["scratch"].as_array().unwrap();
    let row = rows.iter().find(|row| row["case"] == "cached-read").unwrap();
    let steps = row["steps"].as_array().unwrap();
    for (depth, bytes) in
        [(32, 4096), (256, 4096), (1024, 4096), (1, 1 << 17), (32, 1 << 17), (1, 1 << 20), (32, 1 << 20)]
    {
        let step = steps.iter().find(|step| step["depth"] == depth && step["bytes"] == bytes).unwrap();
        let ring = &step["ring"];
        let count = |name: &str| ring[name].as_u64().unwrap();
        assert_eq!(ring["outcome"], "seen", "{step}");
        assert_eq!(count("requests"), count("submissions") * depth, "{step}");
        assert_eq!(count("inline") + count("async") + count("worker") + count("unclear"), count("requests"), "{step}");
        assert!(ring["verdict"].is_string() && ring["sleeps"].is_boolean(), "{step}");
        assert_eq!(ring["traced"].is_null(), ring["confirmed"].is_null(), "{step}");
    }
    assert!(row["changes"].is_array());
    let said = text(&run(&[dir.path().to_str().unwrap(), "--requests", "4"]).stdout);
    assert!(said.contains("with 1 to 1024 in flight, and 4 KiB to 1 MiB:\n"), "{said}");
}

#[test]
fn what_is_required_decides_the_exit_code() {
    let dir = directory();
    let path = dir.path().to_str().unwrap();
    // Every sync is a kernel worker's, on every file system; the first path that fails decides.
    let output = run(&[path, path, "--requests", "4", "--shallow", "--require", "sync"]);
    if is_told(&output) {
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(9), "{message}");
        assert!(message.starts_with("nowait: ") && message.lines().count() == 1, "{message}");
        assert!(message.contains(path) && message.contains("sync") && message.contains("4 of 4"), "{message}");
    }
    for wrong in [
        &["--require", "magic", path][..],
        &[],
        &["--requests", "0", path],
        &["--pid", "1", path],
        &["--seconds", "1", path],
        &["--pid", "1", "--shallow"],
    ] {
        assert_eq!(run(wrong).status.code(), Some(2), "{wrong:?}");
    }
    let output = run(&["/nonexistent/file", path, "--requests", "4", "--shallow"]);
    assert_eq!(output.status.code(), Some(5));
    assert!(text(&output.stderr).contains("/nonexistent/file") && text(&output.stdout).contains("scratch files"));
}

/// Symptom: a panic, and exit code 101.
#[test]
fn a_directory_that_takes_no_files_is_told_as_one() {
    let output = run(&["/proc", "--requests", "1"]);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{message}");
    assert!(
        message.contains("no scratch file") && message.contains("name a directory that takes new files"),
        "{message}"
    );
    assert!(text(&output.stdout).starts_with("/proc: a directory on proc"));
}

#[test]
fn a_reader_that_goes_away_is_no_error_and_a_full_disk_is() {
    let dir = directory();
    let probe = |to: &str| {
        let script =
            format!("exec {} probe --requests 4 --shallow {} {to}", env!("CARGO_BIN_EXE_nowait"), dir.path().display());
        Command::new("sh").args(["-c", &script]).output().unwrap()
    };
    let full = probe("> /dev/full");
    assert_eq!(full.status.code(), Some(1), "{}", text(&full.stderr));
    assert!(text(&full.stderr).starts_with("nowait: cannot print the result"), "{}", text(&full.stderr));
    let script = format!(
        "({} probe --requests 4 --shallow {}; echo $? >&2) | true",
        env!("CARGO_BIN_EXE_nowait"),
        dir.path().display()
    );
    let gone = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(["0\n", "10\n", "11\n"].iter().any(|code| text(&gone.stderr).ends_with(code)), "{}", text(&gone.stderr));
}

/// In a pid namespace a thread does not know the number that its workers' names end in.
#[test]
fn in_a_container() {
    let dir = directory();
    let mut command = Command::new("unshare");
    command.args([
        "--pid",
        "--fork",
        "--mount-proc",
        env!("CARGO_BIN_EXE_nowait"),
        "probe",
        "--requests",
        "8",
        "--shallow",
        "--json",
    ]);
    match command.arg(dir.path()).output() {
        Ok(output) if !text(&output.stderr).starts_with("unshare") => match output.status.code() {
            Some(10) => eprintln!("skipped: {}", text(&output.stderr)),
            code => assert_eq!(code, Some(0), "{}", text(&output.stderr)),
        },
        Ok(output) => eprintln!("skipped: {}", text(&output.stderr)),
        Err(error) => eprintln!("skipped: unshare: {error}"),
    }
}

/// In a mount namespace of its own.
#[test]
fn a_machine_without_proc_is_told_to_mount_it() {
    let dir = directory();
    let script = "mount --make-rprivate / && umount -l /proc && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_nowait"), "probe", "--shallow"]);
    let output = command.arg(dir.path()).output().unwrap();
    let told = text(&output.stderr);
    if told.starts_with("unshare:") || told.starts_with("mount:") || told.starts_with("umount:") {
        return eprintln!("skipped: {told}");
    }
    assert!(told.contains("/proc is not mounted") && told.contains("mount -t proc"), "{told}");
    assert!(text(&output.stdout).contains("cached-read"), "{told}");
}

#[test]
fn a_process_is_watched() {
    let own = std::process::id().to_string();
    let output = run(&["--pid", &own, "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let watched: Value = serde_json::from_slice(&output.stdout).unwrap();
    // This process has no ring.
    assert_eq!((&watched["process"], &watched["threads"]), (&std::process::id().into(), &Value::Array(Vec::new())));
    assert!(watched["elapsed_ns"].as_u64().unwrap() >= 1_000_000_000);
    assert!(text(&run(&["--pid", &own]).stdout).contains("no kernel workers"));
    assert_eq!(run(&["--pid", "4294967295"]).status.code(), Some(5));
}
