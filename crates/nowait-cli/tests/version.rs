//! Output of `nowait --version`.

use std::process::Command;

#[test]
fn the_version_is_that_of_the_command_and_its_commit() {
    let output = Command::new(env!("CARGO_BIN_EXE_nowait")).arg("--version").output().unwrap();
    let version = String::from_utf8_lossy(&output.stdout);
    assert!(version.starts_with(concat!("nowait ", env!("CARGO_PKG_VERSION"))), "{version}");
    assert_eq!(version.contains('('), option_env!("NOWAIT_COMMIT").is_some(), "{version}");
}
