//! `nowait copy --resume` after somebody, or something, had the journal or the part in hand: the copy
//! is right, and no other file is written to.

mod copying;

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use copying::torture::age;
use copying::{
    COPIED, INTERRUPTED, NOBODY, Nobody, SOME_NOT, assert_same, can_check, child, directory, eventually, expect,
    has_begun, names, noise, nowait_copy, said,
};
use rustix::process::{Pid, Signal};

const BYTES: usize = (16 << 20) + 99;
const PRECIOUS: &[u8] = b"a file of somebody else";

/// A copy that was killed in its middle, and what it left.
struct Left {
    dir: tempfile::TempDir,
    part: PathBuf,
    journal: PathBuf,
    precious: PathBuf,
}

/// What a copy keeps in a directory for the next run.
fn left(dir: &Path, what: &str) -> Option<PathBuf> {
    let name = names(dir).into_iter().find(|name| name.ends_with(&format!(".nowait-{what}")));
    name.map(|name| dir.join(name))
}

/// A slow copy that is in its middle.
fn half_done(dir: &Path, mut copy: Command) -> Child {
    copy.args(["--resume", "--reflink=never", "--bwlimit=4M", "source", "target"]).current_dir(dir);
    let child = copy.stderr(Stdio::null()).spawn().unwrap();
    eventually("half a part", || left(dir, "part").filter(|part| fs::metadata(part).unwrap().len() >= 6 << 20));
    child
}

impl Left {
    fn new() -> Left {
        let dir = directory();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("source"), noise(7, BYTES)).unwrap();
        fs::write(path("target"), "old").unwrap();
        fs::write(path("precious"), PRECIOUS).unwrap();
        let mut child = half_done(dir.path(), nowait_copy());
        child.kill().unwrap();
        child.wait().unwrap();
        let (part, journal) = (left(dir.path(), "part").unwrap(), left(dir.path(), "journal").unwrap());
        let precious = path("precious");
        Left { dir, part, journal, precious }
    }

    fn replace(&self, path: &Path, by: impl FnOnce(&Path)) {
        fs::remove_file(path).unwrap();
        by(path);
    }
}

fn fifo(path: &Path) {
    expect(0, Command::new("mkfifo").arg(path));
}

type Spoil = fn(&Left);

#[test]
fn what_was_left_is_believed_only_if_it_is_right() {
    let spoils: [(&str, Spoil); 18] = [
        ("nothing", |_| {}),
        ("journal: noise", |left| fs::write(&left.journal, noise(1, 4096)).unwrap()),
        ("journal: empty", |left| fs::write(&left.journal, "").unwrap()),
        ("journal: spoilt records", |left| {
            let mut bytes = fs::read(&left.journal).unwrap();
            bytes.iter_mut().skip(80).step_by(20).for_each(|byte| *byte ^= 1);
            fs::write(&left.journal, bytes).unwrap();
        }),
        ("journal: cut", |left| {
            let length = fs::metadata(&left.journal).unwrap().len();
            File::options().write(true).open(&left.journal).unwrap().set_len(length - 33).unwrap();
        }),
        ("journal: missing", |left| fs::remove_file(&left.journal).unwrap()),
        ("journal: a directory", |left| left.replace(&left.journal, |path| fs::create_dir(path).unwrap())),
        ("journal: a FIFO", |left| left.replace(&left.journal, fifo)),
        ("journal: a link", |left| left.replace(&left.journal, |path| symlink(&left.precious, path).unwrap())),
        ("journal: a hard link", |left| {
            left.replace(&left.journal, |path| fs::hard_link(&left.precious, path).unwrap())
        }),
        ("part: missing", |left| fs::remove_file(&left.part).unwrap()),
        ("part: a directory", |left| left.replace(&left.part, |path| fs::create_dir(path).unwrap())),
        ("part: a FIFO", |left| left.replace(&left.part, fifo)),
        ("part: a link", |left| left.replace(&left.part, |path| symlink(&left.precious, path).unwrap())),
        ("part: a hard link", |left| left.replace(&left.part, |path| fs::hard_link(&left.precious, path).unwrap())),
        ("part: of another user", |left| {
            if child::is_root() {
                std::os::unix::fs::chown(&left.part, Some(NOBODY), None).unwrap();
            }
        }),
        ("part: cut", |left| File::options().write(true).open(&left.part).unwrap().set_len(5 << 20).unwrap()),
        ("part: spoilt, and longer than the source", |left| {
            let part = File::options().write(true).open(&left.part).unwrap();
            for place in [0, 3 << 20, BYTES as u64 - 10, BYTES as u64 + 5000] {
                part.write_all_at(&noise(place + 9, 5000), place).unwrap();
            }
        }),
    ];
    for (index, (what, spoil)) in spoils.into_iter().enumerate() {
        let options = [&[][..], &["--cache-neutral"]][index % 2];
        let left = Left::new();
        spoil(&left);
        let path = |name: &str| left.dir.path().join(name);
        let mut command = nowait_copy();
        command.args(["--resume", "--reflink=never"]).args(options).args([path("source"), path("target")]);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(COPIED), "{what}, {options:?}: {}", said(&output));
        assert!(fs::read(path("target")).unwrap() == noise(7, BYTES), "{what}, {options:?}: other bytes");
        assert_eq!(fs::read(&left.precious).unwrap(), PRECIOUS, "{what}, {options:?}");
        let is_dir = |name: &String| left.dir.path().join(name).is_dir();
        let mut others: Vec<String> = names(left.dir.path()).into_iter().filter(|name| !is_dir(name)).collect();
        // Nobody may hold the lock of a part without a journal.
        others.retain(|name| what != "journal: a directory" || !name.ends_with(".nowait-part"));
        assert_eq!(others, ["precious", "source", "target"], "{what}, {options:?}");
    }
}

/// Symptom: a copy that was killed after its part had the source's mode could not be gone on with by
/// who is not root.
#[test]
fn a_part_that_may_not_be_written_to_is_gone_on_with() {
    let Some(nobody) = Nobody::or_skip() else { return };
    let dir = nobody.dir();
    fs::write(dir.join("source"), noise(7, BYTES)).unwrap();
    for mode in [0o444, 0o044] {
        let mut child = half_done(&dir, nobody.copy());
        child.kill().unwrap();
        child.wait().unwrap();
        let part = left(&dir, "part").unwrap();
        fs::set_permissions(&part, fs::Permissions::from_mode(mode)).unwrap();
        let inode = fs::metadata(part).unwrap().ino();
        expect(COPIED, nobody.copy().args(["--resume", "--reflink=never", "source", "target"]).current_dir(&dir));
        assert!(fs::read(dir.join("target")).unwrap() == noise(7, BYTES), "{mode:o}");
        assert_eq!(fs::metadata(dir.join("target")).unwrap().ino(), inode, "{mode:o}: it was copied anew");
        fs::remove_file(dir.join("target")).unwrap();
        assert_eq!(names(&dir), ["source"], "{mode:o}");
    }
}

/// Symptom: an interrupted copy gave a directory its source's mode, without the right to write, and no
/// later run of the same user could complete it, with or without --resume.
#[test]
fn a_read_only_directory_of_its_user_is_gone_on_with() {
    let Some(nobody) = Nobody::or_skip() else { return };
    let dir = nobody.dir();
    let path = |name: &str| dir.join(name);
    let mode = |name: &str| fs::metadata(path(name)).unwrap().permissions().mode() & 0o7777;
    fs::create_dir(path("source")).unwrap();
    fs::write(path("source/large"), noise(7, BYTES)).unwrap();
    fs::write(path("source/small"), "small").unwrap();
    fs::set_permissions(path("source"), fs::Permissions::from_mode(0o555)).unwrap();
    for (options, then) in [(&["--resume"][..], 0o555), (&[], 0o111), (&["--resume"], 0o000)] {
        let mut copy = nobody.copy();
        copy.args(["--resume", "--reflink=never", "--bwlimit=1M", "-T", "source", "target"]).current_dir(&dir);
        let mut child = copy.stderr(Stdio::null()).spawn().unwrap();
        eventually("a part", || left_below(&path("target")).filter(|part| fs::metadata(part).unwrap().len() > 0));
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(INTERRUPTED));
        assert_eq!(mode("target"), 0o555);
        fs::set_permissions(path("target"), fs::Permissions::from_mode(then)).unwrap();

        let again = || {
            let mut copy = nobody.copy();
            copy.args(options).args(["--reflink=never", "-T", "source", "target"]).current_dir(&dir);
            copy
        };
        expect(COPIED, &mut again());
        assert!(fs::read(path("target/large")).unwrap() == noise(7, BYTES), "{options:?}");
        assert_eq!((names(&path("target")).len(), mode("target")), (2, 0o555), "{options:?}");
        expect(COPIED, &mut again());
        expect(COPIED, again().arg("--dry-run"));
        fs::remove_dir_all(path("target")).unwrap();
    }
    // A directory of another user is not theirs to open.
    fs::create_dir(path("target")).unwrap();
    fs::set_permissions(path("target"), fs::Permissions::from_mode(0o755)).unwrap();
    let said = expect(SOME_NOT, nobody.copy().args(["-T", "source", "target"]).current_dir(&dir));
    assert!(said.contains("target/small"), "{said}");
    assert_eq!((names(&path("target")).len(), mode("target")), (0, 0o755));
}

/// Symptom: the message after an interruption said neither what was copied nor how to continue. The
/// command that the help names copied a tree into its own half-made copy.
#[test]
fn an_interruption_tells_what_is_complete_and_how_to_continue() {
    let dir = directory();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("large"), noise(7, BYTES)).unwrap();
    fs::write(source.join("small"), "small").unwrap();
    for (options, source, last) in [
        (&[][..], "source", "; the others are unchanged"),
        (&["--resume"], "source", "continue with the same options and -T: `nowait copy --resume -T source target`"),
        (&["--resume", "-T"], "source", "; the same command continues"),
        (&["--resume"], "source/.", "; the same command continues"),
    ] {
        let copy = |options: &[&str]| {
            let mut copy = nowait_copy();
            copy.args(options).args(["--reflink=never", source, "target"]).current_dir(dir.path());
            copy
        };
        let mut slow = copy(options);
        let mut child = slow.args(["--bwlimit=1M", "--progress"]).stderr(Stdio::piped()).spawn().unwrap();
        let mut rest = has_begun(&mut child);
        rustix::process::kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let mut said = String::new();
        rest.read_to_string(&mut said).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(INTERRUPTED), "{options:?}: {said}");
        let line = said.lines().last().unwrap_or_default();
        assert!(line.starts_with("nowait: interrupted: ") && line.ends_with(last), "{options:?}: {said}");
        assert!(line.contains(" of 2 files are complete; "), "{options:?}: {said}");
        if options.contains(&"--resume") {
            let options = if last.contains("-T source") { &["--resume", "-T"] } else { options };
            expect(COPIED, &mut copy(options));
            assert_eq!(names(&dir.path().join("target")), ["large", "small"]);
        }
        fs::remove_dir_all(dir.path().join("target")).unwrap();
    }
}

/// The part of a directory that is there already.
fn left_below(dir: &Path) -> Option<PathBuf> {
    dir.is_dir().then(|| left(dir, "part"))?
}

/// Symptom: root's copy took the part of another user's away, and half of root's got the name.
#[test]
fn a_part_that_another_user_is_at_is_left_alone() {
    let Some(nobody) = Nobody::or_skip() else { return };
    let dir = nobody.dir();
    fs::write(dir.join("source"), noise(7, BYTES)).unwrap();
    for first_is_root in [false, true] {
        let (mut first, mut second) = (nobody.copy(), nowait_copy());
        if first_is_root {
            std::mem::swap(&mut first, &mut second);
        }
        let mut first = half_done(&dir, first);
        let inode = fs::metadata(left(&dir, "part").unwrap()).unwrap().ino();
        expect(COPIED, second.args(["--resume", "--reflink=never", "source", "target"]).current_dir(&dir));
        assert!(fs::read(dir.join("target")).unwrap() == noise(7, BYTES));
        assert_eq!(first.wait().unwrap().code(), Some(COPIED));
        assert_eq!(fs::metadata(dir.join("target")).unwrap().ino(), inode, "the first has it");
        assert!(fs::read(dir.join("target")).unwrap() == noise(7, BYTES));
        fs::remove_file(dir.join("target")).unwrap();
        assert_eq!(names(&dir), ["source"]);
    }
}

/// Symptom: attributes, lists and rights that had changed since the first copy stayed as they were.
#[test]
fn a_finished_file_gets_the_metadata_that_changed() {
    if !can_check() {
        return;
    }
    let dir = directory();
    let path = |name: &str| dir.path().join(name);
    fs::create_dir(path("source")).unwrap();
    let (source, target) = (path("source/file"), path("target/file"));
    fs::write(&source, "bytes").unwrap();
    age(&path("source"));
    let run = |program: &str, arguments: &[&str], path: &Path| {
        expect(0, Command::new(program).args(arguments).arg(path));
    };
    let copy = || {
        let output = nowait_copy().args(["--resume", "-v", "-T", "source", "target"]).current_dir(dir.path()).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(COPIED), "{}", said(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    run("setfattr", &["-n", "user.gone", "-v", "old"], &source);
    copy();
    let inode = || fs::metadata(&target).unwrap().ino();
    let first = inode();
    let mut changes: Vec<(&str, &[&str])> = vec![
        ("setfattr", &["-n", "user.new", "-v", "new"]),
        ("setfattr", &["-x", "user.gone"]),
        ("setfacl", &["-m", "u:1000:rw,g::---,m::rw"]),
        ("chmod", &["0750"]),
        ("setfacl", &["-b"]),
        ("chmod", &["0400"]),
    ];
    if child::is_root() {
        changes.extend([("chown", &["1234:2345"][..]), ("chmod", &["4755"]), ("chown", &["0:0"])]);
    }
    for (program, arguments) in changes {
        run(program, arguments, &source);
        let told = copy();
        assert!(told.contains("it is complete except for its metadata"), "{program} {arguments:?}: {told}");
        assert_same(&path("source"), &path("target"));
        assert_eq!(inode(), first, "{program} {arguments:?}: it was copied anew");
        let told = copy();
        assert!(told.contains("(it is complete)"), "{program} {arguments:?}: {told}");
    }

    // Another name of the target, as snapshots have it, keeps what it has.
    fs::hard_link(&target, path("snapshot")).unwrap();
    run("chmod", &["0604"], &source);
    copy();
    assert_same(&path("source"), &path("target"));
    assert!(inode() != first && fs::metadata(path("snapshot")).unwrap().ino() == first);
    assert_ne!(fs::metadata(path("snapshot")).unwrap().mode() & 0o7777, 0o604);
}

/// The same size and times are no proof.
#[test]
fn a_finished_file_is_compared() {
    let dir = directory();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    for length in [3000, BYTES] {
        fs::write(&source, noise(7, length)).unwrap();
        expect(COPIED, nowait_copy().args([&source, &target]));
        let output = nowait_copy().args(["--resume", "--explain"]).args([&source, &target]).output().unwrap();
        assert!(String::from_utf8_lossy(&output.stdout).starts_with("left out: "), "{}", said(&output));
        let time = fs::metadata(&source).unwrap().modified().unwrap();
        let file = File::options().write(true).open(&target).unwrap();
        file.write_all_at(b"x", length as u64 - 7).unwrap();
        file.set_modified(time).unwrap();
        expect(COPIED, nowait_copy().arg("--resume").args([&source, &target]));
        assert!(fs::read(&target).unwrap() == noise(7, length));
    }
}
