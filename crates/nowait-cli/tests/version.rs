//! Parts that a package of the command needs: version, manual pages, completions. Also the end of wrong usage.

use std::process::Command;

#[test]
fn the_version_is_that_of_the_command_and_its_commit() {
    let output = Command::new(env!("CARGO_BIN_EXE_nowait")).arg("--version").output().unwrap();
    let version = String::from_utf8_lossy(&output.stdout);
    assert!(version.starts_with(concat!("nowait ", env!("CARGO_PKG_VERSION"))), "{version}");
    assert_eq!(version.contains('('), option_env!("NOWAIT_COMMIT").is_some(), "{version}");
}

/// A package, or a user, installs these.
#[test]
fn manual_pages_and_completions_name_the_subcommands() {
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man1");
    let nowait = || Command::new(env!("CARGO_BIN_EXE_nowait"));
    assert!(nowait().arg("man").arg(&pages).status().unwrap().success());
    for page in ["nowait.1", "nowait-copy.1", "nowait-probe.1", "nowait-log.1", "nowait-log-tail.1"] {
        let text = std::fs::read_to_string(pages.join(page)).unwrap();
        assert!(text.contains(".TH "), "{page}: {text}");
    }
    assert!(!pages.join("nowait-log-torture-writer.1").exists());
    let output = nowait().arg("man").arg("/proc/none").output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    for shell in ["bash", "zsh", "fish"] {
        let output = nowait().args(["completions", shell]).output().unwrap();
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && script.contains("cache-neutral"), "{shell}: {script}");
    }
}

#[test]
fn a_copy_without_a_target_is_wrong_usage() {
    let output = Command::new(env!("CARGO_BIN_EXE_nowait")).args(["copy", "/etc/hosts"]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    for part in ["error: ", "<DST>", "Usage: nowait copy [OPTIONS] <SRC>... <DST>", "--help"] {
        assert!(told.contains(part), "{part:?} is missing: {told}");
    }
}
