//! What copies that were killed leave in a directory, and what takes it away; and signals that a copy
//! does not hear.

mod copying;

use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use copying::mounts::{Kind, Mount};
use copying::{COPIED, INTERRUPTED, Nobody, directory, eventually, expect, has_begun, names, noise, nowait_copy, said};
use rustix::process::{Pid, Signal, kill_process};

/// As short as files are that have a temporary name from the start, where they replace others.
const SHORT_BYTES: usize = 900 << 10;

fn temporary_names(dir: &Path) -> Vec<String> {
    names(dir).into_iter().filter(|name| name.starts_with(".nowait-")).collect()
}

/// A copy that is at work for some seconds, and has a temporary name in the target.
fn slow_copy(source: &Path, target: &Path) -> Child {
    let dir = target.parent().unwrap();
    let before = temporary_names(dir);
    let mut command = nowait_copy();
    let child = command.args(["--bwlimit=64K", "--reflink=never"]).args([source, target]).spawn().unwrap();
    eventually("a temporary name", || temporary_names(dir).into_iter().find(|name| !before.contains(name)));
    child
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Symptom: each copy that was killed left a file for ever.
fn what_killed_copies_left_goes_with_the_next(kind: Kind) {
    let Some(mount) = Mount::or_skip(kind) else { return };
    let dir = mount.path().join("target");
    fs::create_dir(&dir).unwrap();
    let (source, other) = (mount.path().join("source"), mount.path().join("other"));
    fs::write(&source, noise(1, SHORT_BYTES)).unwrap();
    fs::write(&other, "other").unwrap();
    let (one, two) = (dir.join("one"), dir.join("two"));
    for target in [&one, &two] {
        fs::write(target, "old").unwrap();
    }
    // Not from here, however much they look like it.
    let users = [
        ".nowait-copy-",
        ".nowait-copy-0123456789abcdef-1",
        ".nowait-copy-0123456789abcdef-1-89abcdef",
        ".nowait-copy-0123456789abcdef-1.bak",
        ".nowait-copying",
    ];
    users.iter().for_each(|name| fs::write(dir.join(name), "users").unwrap());
    let others = |dir: &Path| {
        let is_users = |name: &String| users.contains(&name.as_str());
        temporary_names(dir).into_iter().filter(|name| !is_users(name)).collect::<Vec<_>>()
    };

    kill(slow_copy(&source, &one));
    let first = others(&dir);
    assert_eq!(first.len(), 1, "{first:?}");
    assert_eq!(fs::read(&one).unwrap(), b"old");

    // A copy of another file to the directory takes it away, while it is at work itself.
    let live = slow_copy(&source, &two);
    let second = others(&dir);
    assert!(second.len() == 1 && second != first, "{first:?}, then {second:?}");
    // What is written now stays, whoever comes: copies of files, links and trees.
    symlink("nowhere", mount.path().join("link")).unwrap();
    fs::write(dir.join("link"), "old").unwrap();
    for source in [&other, &mount.path().join("link")] {
        expect(COPIED, nowait_copy().args([source, &dir]));
        expect(COPIED, nowait_copy().args([source, &dir]));
    }
    fs::create_dir_all(mount.path().join("tree")).unwrap();
    fs::write(mount.path().join("tree/one"), "newer").unwrap();
    expect(COPIED, nowait_copy().arg("-T").args([mount.path().join("tree"), dir.clone()]));
    assert_eq!(others(&dir), second, "another copy took away what a live one writes");
    assert_eq!(fs::read(&one).unwrap(), b"newer");

    kill(live);
    assert_eq!(others(&dir), second);
    expect(COPIED, nowait_copy().args([&source, &two]));
    assert_eq!(others(&dir), [""; 0]);
    assert!(fs::read(&two).unwrap() == noise(1, SHORT_BYTES));
    assert!(users.iter().all(|name| fs::read(dir.join(name)).unwrap() == b"users"));
}

#[test]
fn killed_copies_on_ext4() {
    what_killed_copies_left_goes_with_the_next(Kind::Ext4);
}

#[test]
fn killed_copies_on_tmpfs() {
    what_killed_copies_left_goes_with_the_next(Kind::Tmpfs);
}

/// What another user's copy left is theirs to remove; and a name that looks like a temporary one, and is
/// not, is copied as any other.
#[test]
fn what_belongs_to_another_user_stays() {
    let Some(nobody) = Nobody::or_skip() else { return };
    let dir = nobody.dir();
    fs::write(dir.join("source"), noise(1, SHORT_BYTES)).unwrap();
    fs::write(dir.join("target"), "old").unwrap();
    kill(slow_copy(&dir.join("source"), &dir.join("target")));
    let left = temporary_names(&dir);
    assert_eq!(left.len(), 1);
    expect(COPIED, nobody.copy().args(["source", "target"]).current_dir(&dir));
    assert_eq!(temporary_names(&dir), left, "root's was removed by another user");
    // Root may have given a file away already.
    std::os::unix::fs::chown(dir.join(&left[0]), Some(1234), None).unwrap();
    expect(COPIED, nowait_copy().args(["source", "target"]).current_dir(&dir));
    assert_eq!(temporary_names(&dir), [""; 0]);

    let alike = ".nowait-copy-0123456789abcdef-1";
    fs::create_dir(dir.join("tree")).unwrap();
    fs::write(dir.join("tree").join(alike), "precious").unwrap();
    expect(COPIED, nowait_copy().args(["tree", "copy"]).current_dir(&dir));
    assert_eq!(names(&dir.join("copy")), [alike]);
}

/// A source that was a target of a copy that was killed: nobody wants half a file.
#[test]
fn temporary_files_are_not_copied() {
    let Some(mount) = Mount::or_skip(Kind::Tmpfs) else { return };
    let (source, tree) = (mount.path().join("source"), mount.path().join("tree"));
    fs::write(&source, noise(1, SHORT_BYTES)).unwrap();
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "old").unwrap();
    kill(slow_copy(&source, &tree.join("file")));
    assert_eq!(names(&tree).len(), 2);
    let output = nowait_copy().arg("--explain").args([&tree, &mount.path().join("copy")]).output().unwrap();
    assert_eq!(output.status.code(), Some(COPIED), "{}", said(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("left out: "), "{}", said(&output));
    assert_eq!(names(&mount.path().join("copy")), ["file"]);
}

/// An interrupted copy with --resume, and the next without it: nothing is left to go on with.
#[test]
fn a_copy_without_resume_takes_away_what_one_with_it_left() {
    let dir = directory();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    fs::write(&source, noise(1, 16 << 20)).unwrap();
    fs::write(&target, "old").unwrap();
    let start = || {
        let mut command = nowait_copy();
        command.args(["--resume", "--bwlimit=1M"]).args([&source, &target]).stderr(Stdio::null()).spawn().unwrap()
    };
    let part_bytes = || {
        let part = names(dir.path()).into_iter().find(|name| name.ends_with(".nowait-part"))?;
        Some(fs::metadata(dir.path().join(part)).unwrap().len())
    };
    let child = start();
    eventually("a part", || part_bytes().filter(|bytes| *bytes > 0));
    kill(child);
    assert_eq!(names(dir.path()).len(), 4, "{:?}", names(dir.path()));
    // Of a copy that is at work they stay.
    let (before, live) = (part_bytes(), start());
    eventually("a part that grows", || (part_bytes() > before).then_some(()));
    expect(COPIED, nowait_copy().args([&source, &target]));
    assert_eq!(names(dir.path()).len(), 4, "{:?}", names(dir.path()));
    kill(live);
    fs::write(&target, "old").unwrap();
    expect(COPIED, nowait_copy().args([&source, &target]));
    assert_eq!(names(dir.path()), ["source", "target"]);
    assert!(fs::read(&target).unwrap() == noise(1, 16 << 20));
}

/// A copy of some seconds under a shell that ignores these signals.
fn ignoring(signals: &str, dir: &Path) -> Child {
    fs::write(dir.join("source"), noise(1, 3 << 20)).unwrap();
    let copy = nowait_copy();
    let program: Vec<PathBuf> = std::iter::once(copy.get_program()).chain(copy.get_args()).map(PathBuf::from).collect();
    Command::new("sh")
        .args(["-c", &format!("trap '' {signals}; exec \"$@\""), "sh"])
        .args(program)
        .args(["--bwlimit=512K", "--progress=always", "--json", "source", "target"])
        .current_dir(dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn signalled(mut child: Child, signal: Signal) -> std::process::Output {
    let mut rest = has_begun(&mut child);
    kill_process(Pid::from_child(&child), signal).unwrap();
    let mut stderr = Vec::new();
    rest.read_to_end(&mut stderr).unwrap();
    std::process::Output { stderr, ..child.wait_with_output().unwrap() }
}

/// Symptom: a copy under `nohup` ended when its terminal was closed.
#[test]
fn a_hangup_that_is_ignored_stays_ignored() {
    let dir = directory();
    let output = signalled(ignoring("HUP", dir.path()), Signal::HUP);
    assert_eq!(output.status.code(), Some(COPIED), "{}", said(&output));
    assert!(fs::read(dir.path().join("target")).unwrap() == noise(1, 3 << 20));
    for (ignored, signal) in [("HUP", Signal::INT), ("INT", Signal::INT), ("HUP", Signal::TERM)] {
        let dir = directory();
        let output = signalled(ignoring(ignored, dir.path()), signal);
        assert_eq!(output.status.code(), Some(INTERRUPTED), "{}", said(&output));
        assert_eq!(names(dir.path()), ["source"]);
        // Programs are told, too.
        let last = String::from_utf8_lossy(&output.stdout).lines().last().map(str::to_owned).unwrap_or_default();
        let last: serde_json::Value = serde_json::from_str(&last).unwrap();
        assert!(last["event"] == "finished" && last["is_cancelled"] == true && last["files"] == 0, "{last}");
    }
}
