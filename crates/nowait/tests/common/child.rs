//! Tests that need a process of their own: the test binary runs itself again with a role to play.
//!
//! A file that calls this has a test named `child`, which plays the role or, without one, does
//! nothing. For files in `common`, the binary's root has that test.

use std::panic::Location;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const ROLE: &str = "NOWAIT_TEST_ROLE";
const PATH: &str = "NOWAIT_TEST_PATH";

/// The role of this process, if it is a child.
pub(crate) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Path that this child works on.
pub(crate) fn path() -> PathBuf {
    std::env::var_os(PATH).unwrap().into()
}

/// This binary in `role`, not started yet. A file that it would grow too far is an error to it, not
/// its end (`SIGXFSZ`).
#[cfg(unix)]
#[track_caller]
pub(crate) fn command(role: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", r#"trap "" XFSZ; exec "$0" "$@""#]).arg(std::env::current_exe().unwrap());
    in_role(command, role)
}

/// This binary in `role`, not started yet.
#[cfg(not(unix))]
#[track_caller]
pub(crate) fn command(role: &str) -> Command {
    mortal(role)
}

/// As [`command`], where such a file is the end of the process.
#[track_caller]
pub(crate) fn mortal(role: &str) -> Command {
    in_role(Command::new(std::env::current_exe().unwrap()), role)
}

#[track_caller]
fn in_role(mut command: Command, role: &str) -> Command {
    let test = test_in(Path::new(Location::caller().file()));
    command.args([&test, "--exact", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command
}

/// Name of the test that plays the roles of a file.
fn test_in(file: &Path) -> String {
    let folder = file.parent().and_then(Path::file_name).unwrap_or_default();
    let module = file.file_stem().and_then(|stem| stem.to_str()).expect("files of tests have plain names");
    // A file below `tests` is a binary's root; `common` belongs to all.
    if folder == "tests" || folder == "common" || module == "main" {
        return "child".to_string();
    }
    format!("{module}::child")
}

/// This binary in `role`, to work on `path`.
#[track_caller]
pub(crate) fn command_at(role: &str, path: &Path) -> Command {
    let mut command = command(role);
    command.env(PATH, path);
    command
}

/// Runs this binary again in `role`; panics with what it printed when it fails.
#[track_caller]
pub(crate) fn play(role: &str) {
    finish(role, command(role));
}

#[track_caller]
pub(crate) fn play_at(role: &str, path: &Path) {
    finish(role, command_at(role, path));
}

/// Runs `command`, which plays `role`.
pub(crate) fn finish(role: &str, mut command: Command) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "child {role:?} ended with {status}:\n{text}");
    assert!(text.contains("1 passed"), "no test plays {role:?}:\n{text}");
    // Skips, seeds and what a soak did, for whoever reads the log.
    let is_shown =
        |line: &&str| ["skipped:", "NOWAIT_TEST_SEED=", " operations, "].iter().any(|word| line.contains(word));
    text.lines().filter(is_shown).for_each(|line| eprintln!("{line}"));
}

/// Gives up root for good, all threads at once.
#[cfg(target_os = "linux")]
pub(crate) fn become_nobody() {
    const NOBODY: u32 = 65534;
    // SAFETY: no memory is involved; libc applies it to every thread.
    let result = unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) };
    assert_eq!(result, 0, "setresuid: {}", std::io::Error::last_os_error());
}

#[cfg(unix)]
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
