//! Shared by the tests of `nowait copy`: the command, the checker, file systems.

#![allow(dead_code)] // Not every test binary uses all of it.

pub(crate) mod fuse;
pub(crate) mod torture;

#[path = "../../../nowait/tests/common/mounts.rs"]
pub(crate) mod mounts;
#[path = "../../../nowait/tests/common/rng.rs"]
pub(crate) mod rng;

/// Asked for by `mounts.rs`.
pub(crate) mod child {
    pub(crate) fn is_root() -> bool {
        rustix::process::geteuid().is_root()
    }
}

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::{env, fs};

use tempfile::TempDir;

/// Exit codes of the command.
pub(crate) const COPIED: i32 = 0;
pub(crate) const SOME_NOT: i32 = 1;
pub(crate) const USAGE: i32 = 2;
pub(crate) const NOTHING: i32 = 3;
pub(crate) const DIFFERS: i32 = 5;
pub(crate) const INTERRUPTED: i32 = 130;

/// `nowait copy`; or what `NOWAIT_COPY_COMMAND` names, to try these tests on another tool: `cp -a`.
pub(crate) fn copy() -> Command {
    match env::var("NOWAIT_COPY_COMMAND") {
        Ok(words) => words_as_command(&words),
        Err(_) => nowait_copy(),
    }
}

/// The command itself, for what no other tool has options for.
pub(crate) fn nowait_copy() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nowait"));
    command.arg("copy");
    command
}

pub(crate) fn words_as_command(words: &str) -> Command {
    let mut words = words.split_whitespace();
    let mut command = Command::new(words.next().expect("a command"));
    command.args(words);
    command
}

/// A whole number from the environment: how often a test repeats what it does.
pub(crate) fn count_from(variable: &str, usual: usize) -> usize {
    match env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable} is a number: {text}")),
        Err(_) => usual,
    }
}

/// Stretches an upper bound on elapsed time by `NOWAIT_TEST_SLOWNESS`. Asked for by `mounts.rs`, too.
pub(crate) fn at_most(usual: Duration) -> Duration {
    usual * count_from("NOWAIT_TEST_SLOWNESS", 1) as u32
}

/// Asks again and again until there is an answer. A deadline only ends a test that would wait without an
/// end: a slow machine does not meet it.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + at_most(Duration::from_secs(60));
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what}: not within the deadline");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until a copy has begun: reads what it says on a piped stderr up to a line of progress with some
/// bytes. Returns what is left to read. The command has `--progress=always`, which prints a line a
/// second, and a rate at which it takes many.
#[track_caller]
pub(crate) fn has_begun(child: &mut Child) -> BufReader<ChildStderr> {
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("/s") || line.starts_with("0 B") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "it has ended before it was seen to be at work");
    }
    said
}

/// On the disk of the build: the system's temporary directory may be in memory.
pub(crate) fn directory() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// All that the command said.
pub(crate) fn said(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{}\n{out}{err}", output.status)
}

/// Runs it; fails the test unless it ends with this code.
#[track_caller]
pub(crate) fn expect(code: i32, command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{command:?}: {}", said(&output));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn checker() -> Command {
    let mut command = Command::new("bash");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/copying/checker.sh"));
    command
}

/// Returns the checker's differences of two trees, a line each; none if they are alike.
pub(crate) fn differences(left: &Path, right: &Path) -> String {
    found_by("compare", left, right)
}

fn found_by(way: &str, left: &Path, right: &Path) -> String {
    let output = checker().arg(way).args([left, right]).output().unwrap();
    let found = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.code() {
        Some(0) => assert!(found.is_empty(), "{found}"),
        Some(1) => assert!(!found.is_empty(), "{}", said(&output)),
        _ => panic!("{}", said(&output)),
    }
    found
}

#[track_caller]
pub(crate) fn assert_same(left: &Path, right: &Path) {
    let found = differences(left, right);
    assert!(found.is_empty(), "{} (<) and {} (>) differ:\n{found}", left.display(), right.display());
}

/// The same, where file systems allocate as they like.
#[track_caller]
pub(crate) fn assert_same_across(left: &Path, right: &Path) {
    let found = found_by("across", left, right);
    assert!(found.is_empty(), "{} (<) and {} (>) differ:\n{found}", left.display(), right.display());
}

/// Whether the tools of the checker are there. If not, says so; or fails with
/// `NOWAIT_REQUIRE_MOUNTS=1`.
pub(crate) fn can_check() -> bool {
    let made = checker().args(["manifest", "/proc/self/fdinfo"]).output().map_err(|error| error.to_string());
    let has_tools = |output: Output| match String::from_utf8_lossy(&output.stderr).contains("there is no") {
        true => Err(said(&output)),
        false => Ok(()),
    };
    mounts::or_skip("the checker", made.and_then(has_tools)).is_some()
}

/// Names in a directory, hidden ones too, in order.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().to_string_lossy().into_owned();
    let mut names: Vec<String> = fs::read_dir(dir).unwrap().map(name).collect();
    names.sort();
    names
}

/// Regular files of a tree, and links to such, by their paths.
pub(crate) fn contents(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut left = vec![root.to_path_buf()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else if path.is_file() {
                found.insert(path.strip_prefix(root).unwrap().to_path_buf(), fs::read(&path).unwrap());
            }
        }
    }
    found
}

/// Bytes that no file system can compress or merge, and that differ with the seed.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = rng::Rng::new(seed);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&rng.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A command that nobody in particular runs, with the binary where they can reach it.
pub(crate) struct Nobody {
    dir: TempDir,
}

pub(crate) const NOBODY: u32 = 65534;

impl Nobody {
    /// `None` where this process cannot become somebody else.
    pub(crate) fn or_skip() -> Option<Self> {
        let made = if child::is_root() { Ok(()) } else { Err("becoming another user needs root".to_owned()) };
        mounts::or_skip("another user", made)?;
        let dir = tempfile::Builder::new().prefix("nowait-nobody-").tempdir_in("/var/tmp").unwrap();
        open_to_all(dir.path());
        // By a process of its own: a child that another test forks while this one has the copy open for
        // writing would keep it open, and nothing could execute it (ETXTBSY).
        let copied = Command::new("cp").args([env!("CARGO_BIN_EXE_nowait").as_ref(), dir.path()]).status().unwrap();
        assert!(copied.success(), "{copied}");
        Some(Self { dir })
    }

    /// A folder that they can enter.
    pub(crate) fn dir(&self) -> PathBuf {
        let dir = self.dir.path().join("work");
        fs::create_dir_all(&dir).unwrap();
        open_to_all(&dir);
        dir
    }

    /// `nowait copy` as nobody.
    pub(crate) fn copy(&self) -> Command {
        let mut command = Command::new("setpriv");
        let who = NOBODY.to_string();
        command.args(["--reuid", &who, "--regid", &who, "--clear-groups", "--"]);
        match env::var("NOWAIT_COPY_COMMAND") {
            Ok(words) => command.args(words.split_whitespace()),
            Err(_) => command.args([self.dir.path().join("nowait").as_os_str(), OsStr::new("copy")]),
        };
        command
    }
}

/// Makes this thread another user's, with root's group. The process's other threads stay as they are.
pub(crate) fn become_another_user_of_roots_group() {
    use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
    set_thread_groups(&[]).unwrap();
    set_thread_res_gid(Some(Gid::ROOT), Some(Gid::ROOT), Some(Gid::ROOT)).unwrap();
    let user = Some(Uid::from_raw(NOBODY));
    set_thread_res_uid(user, user, user).unwrap();
}

/// Sets a flag when it is dropped, so that a thread's loop ends also when an assertion fails.
pub(crate) struct Ends<'a>(pub(crate) &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

pub(crate) fn open_to_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
}
