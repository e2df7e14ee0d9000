//! `nowait bench`, as the command has it: the run is that of `bench/`, which has its tests.

#![cfg(feature = "bench")]

use std::process::{Command, Output};

fn nowait(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nowait")).args(arguments).output().unwrap()
}

#[test]
fn a_small_run_prints_figures_and_names_the_commit() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().to_str().unwrap();
    let small =
        ["bench", "cached", "--quick", "--rounds", "1", "--size", "1M", "--ways", "pread,nowait", "--json", "-"];
    let output = nowait(&[&small[..], &["--dir", path]].concat());
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["rows"].as_array().unwrap().iter().any(|row| row["way"] == "nowait"), "{report}");
    assert_eq!(report["environment"]["commit"].as_str(), option_env!("NOWAIT_COMMIT"));
    assert_eq!(std::fs::read_dir(path).unwrap().count(), 0);
}

#[test]
fn without_a_table_it_is_one_screen() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = nowait(&["bench", "--time", "15", "--size", "4M", "--dir", dir.path().to_str().unwrap()]);
    let told = String::from_utf8(output.stderr).unwrap();
    // A debug build on a busy machine.
    let is_late = output.status.code() == Some(2) && told.contains("no time was left");
    assert!(output.status.success() || is_late, "{told}");
    let screen = String::from_utf8(output.stdout).unwrap();
    assert!(screen.contains("operations per second"), "{screen}");
    assert!(screen.lines().count() <= 24 || is_late, "{screen}");
    assert!(told.starts_with("nowait bench: about "), "{told}");
}

#[test]
fn errors_have_the_exit_codes_of_the_command() {
    assert_eq!(nowait(&["bench", "--file", "/nonexistent"]).status.code(), Some(5));
    assert_eq!(nowait(&["bench", "no-such-table"]).status.code(), Some(2));
}
