//! Options of `nowait copy` as a user relies on them: patterns, `--update`, `--dry-run`, `--json`,
//! limits and progress.

mod copying;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use copying::fuse::{Faults, Faulty};
use copying::mounts::{Kind, Mount};
use copying::{COPIED, NOTHING, SOME_NOT, USAGE, contents, directory, expect, names, noise, nowait_copy, said};
use serde_json::Value;

/// Makes files with their own names as contents, and the directories above them.
fn make(root: &Path, files: &[&str]) {
    for file in files {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file).unwrap();
    }
}

/// Paths of files below a directory, in order.
fn files(root: &Path) -> Vec<String> {
    let find = Command::new("find").args([".", "!", "-type", "d"]).current_dir(root).output().unwrap();
    let mut files: Vec<String> =
        String::from_utf8(find.stdout).unwrap().lines().map(|line| line.trim_start_matches("./").to_owned()).collect();
    files.sort();
    files
}

/// Everything that a command could change below a directory: names, types, inodes, times, sizes.
fn state(root: &Path) -> String {
    let format = "%p %y %i %s %m %U %T@ %C@\n";
    let find = Command::new("find").args([".", "-printf", format]).current_dir(root).output().unwrap();
    let mut lines: Vec<&str> = std::str::from_utf8(&find.stdout).unwrap().lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

/// The shell examples of pages whose commands are copies run as they are written.
#[test]
fn shell_examples_of_pages_run() {
    let command = Path::new(env!("CARGO_BIN_EXE_nowait")).parent().unwrap().to_str().unwrap();
    let path = format!("{command}:{}", std::env::var("PATH").unwrap());
    for page in ["README.md", "../../docs/guide/copy.md", "../../docs/guide/from-commands.md"] {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap();
        let examples: Vec<_> = text.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
        assert_eq!(examples.len(), 1, "{page}");
        let dir = directory();
        let output =
            Command::new("sh").args(["-euc", examples[0]]).current_dir(dir.path()).env("PATH", &path).output().unwrap();
        assert!(output.status.success(), "{page}: {}", said(&output));
    }
}

fn set_age(path: &Path, hours: u64) {
    let time = SystemTime::now() - Duration::from_secs(hours * 3600);
    File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

/// Runs it with `--json`, expects a code, and returns its events.
#[track_caller]
fn events(code: i32, command: &mut Command) -> Vec<Value> {
    let output = command.arg("--json").output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{command:?}: {}", said(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))).collect()
}

/// A field of all events of a kind.
fn field<'e>(events: &'e [Value], event: &str, name: &str) -> BTreeSet<&'e str> {
    events.iter().filter(|line| line["event"] == event).map(|line| line[name].as_str().unwrap()).collect()
}

#[test]
fn patterns_choose_the_same_files_in_a_dry_run() {
    let dir = directory();
    let all = ["a.o", "a.c", "top", "sub/top", "sub/a.o", "sub/deep/b.c", "sub/deep/x/y.c", "target/debug/deps/z.c"];
    make(&dir.path().join("source"), &all);
    for (options, expected) in [
        (
            &["--exclude=*.o"][..],
            &["a.c", "sub/deep/b.c", "sub/deep/x/y.c", "sub/top", "target/debug/deps/z.c", "top"][..],
        ),
        (&["--include=*.c"], &["a.c", "sub/deep/b.c", "sub/deep/x/y.c", "target/debug/deps/z.c"]),
        (
            &["--include=*.c", "--include=*.o", "--exclude=target/*/deps"],
            &["a.c", "a.o", "sub/a.o", "sub/deep/b.c", "sub/deep/x/y.c"],
        ),
        (&["--include=*.c", "--exclude=a.c"], &["sub/deep/b.c", "sub/deep/x/y.c", "target/debug/deps/z.c"]),
        (
            &["--exclude=/top", "--exclude=/target", "--exclude=sub/deep/x"],
            &["a.c", "a.o", "sub/a.o", "sub/deep/b.c", "sub/top"],
        ),
        (&["--include=sub/deep/**"], &["sub/deep/b.c", "sub/deep/x/y.c"]),
    ] {
        let planned =
            events(COPIED, nowait_copy().args(options).args(["-n", "source", "copy"]).current_dir(dir.path()));
        let planned: Vec<&str> = field(&planned, "planned", "source")
            .into_iter()
            .map(|path| path.strip_prefix("source/").unwrap())
            .collect();
        assert_eq!(planned, expected, "{options:?}, dry run");
        assert!(!dir.path().join("copy").exists());
        expect(COPIED, nowait_copy().args(options).args(["source", "copy"]).current_dir(dir.path()));
        assert_eq!(files(&dir.path().join("copy")), expected, "{options:?}");
        fs::remove_dir_all(dir.path().join("copy")).unwrap();
    }
    let wrong = expect(USAGE, nowait_copy().args(["--exclude=a[", "source", "copy"]).current_dir(dir.path()));
    assert!(wrong.contains("a["), "{wrong}");
}

#[test]
fn update_replaces_what_it_says() {
    let dir = directory();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    for (options, replaced) in [
        (&[][..], &["equal", "newer", "older"][..]),
        (&["--update=all"], &["equal", "newer", "older"]),
        (&["--update"], &["older"]),
        (&["-u"], &["older"]),
        (&["--update=older"], &["older"]),
        (&["--update=none"], &[]),
    ] {
        make(&source, &["equal", "newer", "older", "missing"]);
        fs::create_dir_all(&target).unwrap();
        for (name, hours) in [("equal", 5), ("newer", 1), ("older", 9)] {
            set_age(&source.join(name), 5);
            fs::write(target.join(name), "old").unwrap();
            set_age(&target.join(name), hours);
        }
        let time = fs::metadata(source.join("equal")).unwrap().modified().unwrap();
        File::options().write(true).open(target.join("equal")).unwrap().set_modified(time).unwrap();
        let planned = events(COPIED, nowait_copy().args(options).arg("-nT").args([&source, &target]));
        let told = events(COPIED, nowait_copy().args(options).arg("-T").args([&source, &target]));
        for name in ["equal", "newer", "older"] {
            let bytes = fs::read_to_string(target.join(name)).unwrap();
            assert_eq!(bytes == name, replaced.contains(&name), "{options:?}: {name} is {bytes}");
        }
        assert_eq!(fs::read_to_string(target.join("missing")).unwrap(), "missing");
        let copied = field(&told, "copied", "target");
        assert_eq!(copied.len(), replaced.len() + 1, "{options:?}: {copied:?}");
        assert_eq!(field(&planned, "planned", "target"), copied, "{options:?}: the dry run said otherwise");
        assert_eq!(field(&told, "skipped", "source").len(), 3 - replaced.len(), "{options:?}");
        fs::remove_dir_all(&target).unwrap();
    }
}

/// Symptom: where one name of a file was there already, as after an interruption, the others became
/// files of their own.
#[test]
fn names_of_one_file_are_linked_to_the_copy_that_is_there() {
    let dir = directory();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    make(&source, &["a", "alone"]);
    for name in ["b", "c"] {
        fs::hard_link(source.join("a"), source.join(name)).unwrap();
    }
    let names = ["a", "b", "c"];
    let inodes = || names.map(|name| fs::metadata(target.join(name)).unwrap().ino());
    for option in ["--resume", "--update", "--update=none"] {
        for there in 1..8 {
            expect(COPIED, nowait_copy().arg("-T").args([&source, &target]));
            for (index, name) in names.iter().enumerate() {
                let path = target.join(name);
                fs::remove_file(&path).unwrap();
                if there >> index & 1 == 1 {
                    // A copy of its own.
                    expect(COPIED, nowait_copy().args([source.join(name), path]));
                }
            }
            let kept = if option == "--update=none" { inodes_there(&target, &names) } else { Vec::new() };
            expect(COPIED, nowait_copy().args([option, "-T"]).args([&source, &target]));
            let now = inodes();
            match option {
                "--update=none" => assert!(kept.iter().all(|inode| now.contains(inode)), "{there:b}"),
                _ => assert!(now[0] == now[1] && now[1] == now[2], "{option}, {there:b}: {now:?}"),
            }
            let told = events(COPIED, nowait_copy().args([option, "-T"]).args([&source, &target]));
            assert_eq!(field(&told, "skipped", "source").len(), 4, "{option}, {there:b}: {told:?}");
            assert_eq!(inodes(), now, "{option}, {there:b}");
            fs::remove_dir_all(&target).unwrap();
        }
    }
}

fn inodes_there(dir: &Path, names: &[&str]) -> Vec<u64> {
    names.iter().filter_map(|name| fs::metadata(dir.join(name)).ok()).map(|stat| stat.ino()).collect()
}

#[test]
fn a_dry_run_changes_nothing_and_names_what_the_copy_makes() {
    let dir = directory();
    make(&dir.path().join("source"), &["a", "b/c", "b/d/e", "taken/f"]);
    symlink("a", dir.path().join("source/link")).unwrap();
    fs::hard_link(dir.path().join("source/a"), dir.path().join("source/b/also a")).unwrap();
    make(&dir.path().join("target"), &["a", "b/c", "taken", "theirs"]);
    let before = state(dir.path());
    let command = |options: &[&str]| {
        let mut command = nowait_copy();
        command.args(options).args(["-T", "source", "target"]).current_dir(dir.path());
        command
    };
    let planned = events(SOME_NOT, &mut command(&["-n"]));
    assert_eq!(state(dir.path()), before, "a dry run changed something");
    let text = command(&["--dry-run"]).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.lines().any(|line| line == "would copy: 1 bytes, source/a -> target/a"), "{text}");
    assert_eq!(state(dir.path()), before);

    let told = events(SOME_NOT, &mut command(&[]));
    assert_eq!(field(&planned, "planned", "target"), field(&told, "copied", "target"));
    assert_eq!(field(&planned, "failed", "path"), field(&told, "failed", "path"));
    assert_eq!(field(&told, "failed", "path"), BTreeSet::from(["target/taken"]));
    expect(NOTHING, nowait_copy().args(["-n", "missing", "target"]).current_dir(dir.path()));
}

/// What a program that reads the events relies on.
#[test]
fn json_has_an_event_a_line_and_a_sum_at_the_end() {
    let dir = directory();
    let source = dir.path().join("source");
    make(&source, &["plain", "sub/two\nlines", "left out", "taken/file"]);
    fs::write(source.join(OsStr::from_bytes(b"not \xff UTF-8")), "bytes").unwrap();
    symlink("plain", source.join("link")).unwrap();
    fs::hard_link(source.join("plain"), source.join("sub/same")).unwrap();
    make(&dir.path().join("target"), &["taken"]);
    let mut command = nowait_copy();
    command.args(["-T", "--exclude=left out", "source", "target"]).current_dir(dir.path());
    let told = events(SOME_NOT, &mut command);

    let (end, others) = told.split_last().unwrap();
    let count = |event: &str| others.iter().filter(|line| line["event"] == event).count() as u64;
    assert_eq!(end["event"], "finished");
    for (name, expected) in
        [("files", 3), ("directories", 2), ("nodes", 1), ("hard_links", 1), ("skipped", 1), ("failures", 1)]
    {
        assert_eq!(end[name], expected, "{name}: {end}");
    }
    assert_eq!(count("copied"), 5, "{told:?}");
    assert_eq!((count("directory"), count("skipped"), count("failed"), count("warning")), (2, 1, 1, 0), "{told:?}");
    let bytes: u64 = others.iter().filter_map(|line| line["bytes"].as_u64()).sum();
    assert_eq!(end["bytes"], bytes);
    assert!(end["elapsed_ns"].as_u64().unwrap() > 0 && end["is_cancelled"] == false);
    let of = |name: &str, value: &str| {
        let found = others.iter().find(|line| line[name] == value);
        found.unwrap_or_else(|| panic!("{name} {value:?}: {told:?}"))
    };
    assert_eq!(of("target", "target/sub/two\nlines")["bytes"], 13);
    assert_eq!(of("source_hex", "736f757263652f6e6f7420ff205554462d38")["bytes"], 5);
    assert_eq!(of("way", "hard link")["bytes"], 0);
    assert_eq!(of("way", "node")["source"], "source/link");
    let failed = of("event", "failed");
    assert_eq!((&failed["path"], &failed["operation"]), (&Value::from("target/taken"), &Value::from("make directory")));
    assert!(failed["message"].as_str().unwrap().contains("; "), "{failed}");
}

/// Whoever reads the events goes away: the copy goes on. The disk that they go to is full: the copy
/// goes on, and its exit code says that not all was told.
#[test]
fn json_that_cannot_be_printed_does_not_end_the_copy() {
    let dir = directory();
    let all: Vec<String> = (0..50).map(|number| format!("{number:02}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    make(&dir.path().join("source"), &all);
    let mut child = nowait_copy()
        .args(["--json", "source", "one"])
        .current_dir(dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(COPIED), "{}", said(&output));
    assert_eq!(files(&dir.path().join("one")), all);

    let full = File::options().write(true).open("/dev/full").unwrap();
    let text = expect(SOME_NOT, nowait_copy().args(["--json", "source", "two"]).current_dir(dir.path()).stdout(full));
    assert!(text.contains("cannot print"), "{text}");
    assert_eq!(files(&dir.path().join("two")), all);
    assert!(names(&dir.path().join("two")).iter().all(|name| !name.starts_with('.')));
}

#[test]
fn a_rate_is_kept_and_progress_is_shown() {
    let dir = directory();
    fs::create_dir(dir.path().join("source")).unwrap();
    for name in ["one", "two", "three"] {
        fs::write(dir.path().join("source").join(name), noise(1, 4 << 20)).unwrap();
    }
    for options in [&[][..], &["--cache-neutral"]] {
        let began = Instant::now();
        let mut command = nowait_copy();
        command
            .args(options)
            .args(["--bwlimit=4M", "--progress=always", "-T", "source", "copy"])
            .current_dir(dir.path());
        let shown = expect(COPIED, &mut command);
        let took = began.elapsed();
        // Each of several threads may be a block ahead.
        assert!(took > Duration::from_millis(2200), "{options:?}: {took:?}");
        let lines: Vec<&str> = shown.lines().collect();
        let line = lines.iter().find(|line| line.contains(" left")).unwrap_or_else(|| panic!("{shown}"));
        assert!(line.contains(" of 12 MiB, ") && line.contains(" of 3 files, "), "{line}");
        assert!(line.contains("/s (limit 4.0 MiB/s), "), "{line}");
        assert!(lines.len() as u64 <= took.as_secs() + 3, "more than a line a second: {shown}");
        fs::remove_dir_all(dir.path().join("copy")).unwrap();
    }
    // Of one file the size is known, too.
    let mut command = nowait_copy();
    command.args(["--bwlimit=2M", "--progress=always", "source/one", "copy"]).current_dir(dir.path());
    let shown = expect(COPIED, &mut command);
    assert!(
        shown.lines().any(|line| line.contains(" of 4.0 MiB, 0 of 1 files, ") && line.contains(" left")),
        "{shown}"
    );
    let silent = expect(COPIED, nowait_copy().args(["--bwlimit=8M", "source/one", "copy"]).current_dir(dir.path()));
    assert_eq!(silent, "", "stderr is no terminal");
}

/// Symptom: `--progress=always` printed nothing of a copy that ended within half a second.
#[test]
fn the_totals_are_shown_at_the_end() {
    let dir = directory();
    make(&dir.path().join("source"), &["one", "two", "three"]);
    for option in ["--progress", "--progress=always"] {
        let shown = expect(COPIED, nowait_copy().args([option, "-T", "source", "copy"]).current_dir(dir.path()));
        let last = shown.lines().last().unwrap_or_default();
        assert!(last.starts_with("11 B in 3 files, ") && last.ends_with(" s in all"), "{option}: {shown}");
    }
    let shown = expect(COPIED, nowait_copy().args(["-n", "--progress", "source", "new"]).current_dir(dir.path()));
    assert!(!shown.contains(" in all"), "nothing was copied: {shown}");
}

/// Symptoms: a tree whose blocks cannot be shared printed the same failure for each file, with the
/// library's spelling of the option; and `--reflink` without a value was refused.
#[test]
fn similar_failures_are_counted() {
    let dir = directory();
    let names: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    make(&dir.path().join("source"), &names.iter().map(String::as_str).collect::<Vec<_>>());
    // Another file system, which has no reflinks.
    let Ok(other) = tempfile::tempdir_in("/dev/shm") else { return println!("skipped: there is no /dev/shm") };
    for option in ["--reflink", "--reflink=always"] {
        let mut command = nowait_copy();
        command.args([option, "-T", "source"]).arg(other.path().join("copy")).current_dir(dir.path());
        let said = expect(SOME_NOT, &mut command);
        let failures = said.lines().filter(|line| line.contains("cannot share blocks")).count();
        assert_eq!(failures, 20, "{said}");
        assert!(said.contains("(--reflink=auto)") && !said.contains("(reflink: auto)"), "{said}");
        assert!(said.contains("nowait: clone to 80 more files: the same; --json lists all\n"), "{said}");
        let told = events(SOME_NOT, &mut command);
        assert_eq!(told.iter().filter(|event| event["event"] == "failed").count(), 100);
    }
}

/// Bytes of a file that are in the page cache alone: no place on the device is chosen for them yet.
fn unwritten_bytes(path: &Path) -> u64 {
    let output = Command::new("filefrag").args(["-v", "-b4096"]).arg(path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lengths = text.lines().filter(|line| line.contains("delalloc")).map(|line| {
        // Number, first and last logical, first and last physical, length.
        line.split(':').nth(3).and_then(|length| length.trim().parse::<u64>().ok()).unwrap_or_else(|| panic!("{text}"))
    });
    lengths.sum::<u64>() * 4096
}

#[test]
fn no_more_is_dirty_than_may_be() {
    let Some(mount) = Mount::or_skip(Kind::Ext4) else { return };
    if Command::new("filefrag").output().is_err() {
        return eprintln!("skipped: there is no filefrag");
    }
    let (source, target) = (mount.path().join("source"), mount.path().join("target"));
    let mib = 1 << 20;
    fs::write(&source, noise(1, 64 * mib)).unwrap();
    expect(COPIED, nowait_copy().args([&source, &target]));
    let free = unwritten_bytes(&target);
    if free < 16 * mib as u64 {
        return eprintln!("skipped: the kernel wrote back on its own, {free} bytes are left");
    }
    expect(COPIED, nowait_copy().arg("--max-dirty=8M").args([&source, &target]));
    let limited = unwritten_bytes(&target);
    assert!(limited <= 8 * mib as u64, "{limited} bytes are dirty");
    assert!(fs::read(&target).unwrap() == noise(1, 64 * mib));
}

#[test]
fn explain_names_the_way_of_each_file() {
    let dir = directory();
    make(&dir.path().join("source"), &["file", "left out"]);
    File::create(dir.path().join("source/empty")).unwrap();
    let output = nowait_copy()
        .args(["-av", "--reflink=never", "--exclude=left*", "source", "copy"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(COPIED), "{}", said(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let has = |start: &str, end: &str| text.lines().any(|line| line.starts_with(start) && line.ends_with(end));
    assert!(has("plain: 4 bytes, source/file -> copy/file (", ")"), "{text}");
    assert!(has("empty: 0 bytes, source/empty -> copy/empty (", ")"), "{text}");
    assert!(has("left out: source/left out (", ")"), "{text}");
}

/// The access time of the source, which a backup must not change.
#[test]
fn the_source_keeps_its_access_time() {
    let dir = directory();
    for (length, options) in [(100, &[][..]), (100 << 10, &[]), (9 << 20, &[]), (9 << 20, &["--cache-neutral"])] {
        let source = dir.path().join("source");
        fs::write(&source, noise(1, length)).unwrap();
        // Earlier than its modification: whatever reads it would change it (`relatime`).
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        File::options()
            .write(true)
            .open(&source)
            .unwrap()
            .set_times(fs::FileTimes::new().set_accessed(long_ago))
            .unwrap();
        expect(COPIED, nowait_copy().args(options).args(["source", "copy"]).current_dir(dir.path()));
        let (after, copy) = (fs::metadata(&source).unwrap(), fs::metadata(dir.path().join("copy")).unwrap());
        assert_eq!(after.atime(), 1_000_000_000, "{length} bytes, {options:?}");
        assert_eq!((copy.atime(), copy.mtime()), (after.atime(), after.mtime()), "{length} bytes, {options:?}");
    }
}

#[test]
fn links_are_followed_where_that_is_asked() {
    let dir = directory();
    let root = dir.path();
    make(root, &["real/file", "source/own"]);
    symlink("../real", root.join("source/to folder")).unwrap();
    symlink("../real/file", root.join("source/to file")).unwrap();
    symlink("..", root.join("source/up")).unwrap();
    symlink("source", root.join("named")).unwrap();
    let copied = |code: i32, options: &[&str]| -> (String, PathBuf) {
        let _ = fs::remove_dir_all(root.join("copy"));
        let said = expect(code, nowait_copy().args(options).args(["-T", "named", "copy"]).current_dir(root));
        (said, root.join("copy"))
    };
    for options in [&[][..], &["-P"], &["-L", "-P"]] {
        assert!(copied(COPIED, options).1.is_symlink(), "{options:?}");
        fs::remove_file(root.join("copy")).unwrap();
    }
    let (_, copy) = copied(COPIED, &["-H"]);
    assert!(copy.is_dir() && !copy.is_symlink());
    assert_eq!(fs::read_link(copy.join("to file")).unwrap(), Path::new("../real/file"));

    // `up` leads to a directory above: to where the copy goes, too.
    let (said, copy) = copied(SOME_NOT, &["-L"]);
    assert_eq!(fs::read_to_string(copy.join("to folder/file")).unwrap(), "real/file");
    assert!(!copy.join("to folder").is_symlink() && !copy.join("to file").is_symlink());
    assert_eq!(fs::read_to_string(copy.join("to file")).unwrap(), "real/file");
    assert!(said.lines().any(|line| line.contains("named/up") && line.contains("; ")), "{said}");

    // A circle that does not lead to the copy.
    fs::remove_file(root.join("source/up")).unwrap();
    symlink(".", root.join("source/here")).unwrap();
    symlink("nowhere", root.join("source/broken")).unwrap();
    symlink("ping", root.join("source/ping")).unwrap();
    let (said, copy) = copied(SOME_NOT, &["--dereference"]);
    for (name, word) in [("here", "above"), ("broken", ""), ("ping", "symbolic links")] {
        let line = said.lines().find(|line| line.contains(&format!("named/{name}"))).unwrap_or_default();
        assert!(line.contains(word) && line.contains("; "), "{name}: {said}");
    }
    assert_eq!(names(&copy), ["own", "to file", "to folder"]);
}

/// Symptom: each symbolic link that was followed became a separate file, unlike with `cp -aL`.
#[test]
fn names_that_lead_to_one_file_are_linked_in_the_copy() {
    let dir = directory();
    let root = dir.path();
    make(root, &["tree/file", "tree/other"]);
    fs::create_dir(root.join("tree/sub")).unwrap();
    symlink("../file", root.join("tree/sub/link")).unwrap();
    symlink("sub/link", root.join("tree/second")).unwrap();
    symlink("tree/file", root.join("named")).unwrap();
    let inode = |path: &str| fs::symlink_metadata(root.join(path)).unwrap().ino();
    // The second copy finds all there.
    for options in [&["-L"][..], &["-L", "--resume"]] {
        expect(COPIED, nowait_copy().args(options).args(["-T", "tree", "copy"]).current_dir(root));
        assert_eq!(inode("copy/file"), inode("copy/sub/link"), "{options:?}");
        assert_eq!(inode("copy/file"), inode("copy/second"), "{options:?}");
        assert_eq!(fs::metadata(root.join("copy/other")).unwrap().nlink(), 1);
    }
    for option in ["-H", "-L"] {
        let target = root.join("into").join(option);
        fs::create_dir_all(&target).unwrap();
        expect(COPIED, nowait_copy().args([option, "named", "tree/file"]).arg(&target).current_dir(root));
        let inode = |name: &str| fs::symlink_metadata(target.join(name)).unwrap().ino();
        assert_eq!(inode("named"), inode("file"), "{option}");
    }
}

/// Times as FAT keeps them, in steps of two seconds. Symptom: each copy with --update or --resume copied
/// all anew; and where times are exact, what was written within a second of the target was left out.
#[test]
fn what_is_newer_is_told_by_times_as_the_target_keeps_them() {
    let Some(coarse) = Faulty::or_skip() else { return };
    coarse.set(Faults { time_step_seconds: Some(2), ..Faults::default() });
    let dir = directory();
    let source = dir.path().join("source");
    make(&source, &["file"]);
    let set = |path: &Path, nanoseconds: u64| {
        let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(1_600_000_001_500_000_000 + nanoseconds);
        File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    };
    let copied = |options: &[&str], target: &Path| {
        let told = events(COPIED, nowait_copy().args(options).arg(source.join("file")).arg(target));
        told.iter().filter(|event| event["event"] == "copied" || event["event"] == "planned").count()
    };
    set(&source.join("file"), 0);
    let target = coarse.path().join("file");
    assert_eq!(copied(&[], &target), 1);
    for options in [&["--update"][..], &["--resume"], &["--update", "-n"]] {
        assert_eq!(copied(options, &target), 0, "{options:?}");
    }
    assert_eq!(coarse.names(), ["file"]);
    set(&source.join("file"), 1_000_000_000);
    for (options, expected) in [(&["--update", "-n"][..], 1), (&["--update"], 1), (&["--update"], 0)] {
        assert_eq!(copied(options, &target), expected, "{options:?}");
    }

    // Here times are exact, and one in whole seconds is an exact one, too.
    let exact = dir.path().join("target");
    fs::write(&exact, "older").unwrap();
    set(&exact, 500_000_000);
    for (later, expected) in [(500_000_000, 0), (500_000_001, 1), (1_400_000_000, 1)] {
        set(&source.join("file"), later);
        assert_eq!(copied(&["--update", "-n"], &exact), expected, "{later} ns");
    }
}

/// Symptom: `-x / /mnt/new`, the clone of a system to a disk that is mounted in it, was refused.
#[test]
fn a_target_on_another_file_system_below_the_source_takes_what_is_outside_of_it() {
    let (Some(mount), Some(other)) = (Mount::or_skip(Kind::Tmpfs), Mount::or_skip(Kind::Tmpfs)) else { return };
    let source = mount.path().join("source");
    make(&source, &["own", "sub/file", "mounted/hidden"]);
    let point = source.join("mounted");
    expect(0, Command::new("mount").arg("--bind").args([other.path(), &point]));
    for (sources, target) in [("source/.", "cp"), ("source/.", "contents"), ("source", "named")] {
        let is_cp = target == "cp";
        fs::create_dir(point.join(target)).unwrap();
        let mut command = if is_cp { Command::new("cp") } else { nowait_copy() };
        command.arg(if is_cp { "-ax" } else { "-x" });
        if target == "named" {
            command.arg("-T");
        }
        let code = command.args([sources, &format!("source/mounted/{target}")]).current_dir(mount.path()).status();
        assert_eq!(code.unwrap().code(), Some(COPIED), "{command:?}");
    }
    // Without -x, and to the source's own file system, there is no end.
    let endless = [&["source/.", "source/mounted/cp"][..], &["-x", "source", "source/sub"]]
        .map(|arguments| nowait_copy().args(arguments).current_dir(mount.path()).status().unwrap().code());
    let trees = ["cp", "contents", "named"].map(|target| {
        (files(&point.join(target)), names(&point.join(target)), names(&point.join(target).join("mounted")))
    });
    expect(0, Command::new("umount").arg(&point));
    assert_eq!(trees[0].0, ["own", "sub/file"]);
    assert!(trees[1] == trees[0] && trees[2] == trees[0], "{trees:?}");
    assert_eq!(endless, [Some(NOTHING); 2]);
}

/// As `cp -a`, which is the judge: directories of one name are merged, and no file replaces one that
/// the same copy made. (`cp` sees to the latter for files that were named, and not for those below.)
#[test]
fn sources_that_go_to_one_directory_are_merged() {
    let dir = directory();
    make(dir.path(), &["a/d/x", "a/top", "b/d/y", "b/d/deep/z", "b/other", "c/d/x", "c/d/w", "d/v"]);
    for (code, sources) in [
        (COPIED, &["a/.", "b/."][..]),
        (COPIED, &["a/d", "b/d"]),
        (COPIED, &["a/d", "b/d", "d"]),
        (COPIED, &["a/.", "b/d", "d"]),
        (COPIED, &["b/d", "a/.", "d"]),
        (SOME_NOT, &["a/d/x", "c/d/x", "c/d/w"]),
        (COPIED, &["a/d/x", "a/d/x"]),
        (COPIED, &["a/d", "b/d", "a/d/"]),
    ] {
        let [judge, own] = [("judge", Command::new("cp")), ("own", nowait_copy())].map(|(target, mut command)| {
            let target = dir.path().join(target);
            let _ = fs::remove_dir_all(&target);
            fs::create_dir(&target).unwrap();
            expect(code, command.arg("-a").args(sources).arg(&target).current_dir(dir.path()));
            contents(&target)
        });
        assert!(!own.is_empty() && own == judge, "{sources:?}: {:?}, not {:?}", own.keys(), judge.keys());
    }
    for sources in [&["a/d", "b/d", "c/d"][..], &["a/.", "b/.", "c/."]] {
        let target = dir.path().join("own");
        fs::remove_dir_all(&target).unwrap();
        fs::create_dir(&target).unwrap();
        let said = expect(SOME_NOT, nowait_copy().args(sources).arg(&target).current_dir(dir.path()));
        assert!(said.contains("d/x: this copy already wrote ") && said.contains("from another source; "), "{said}");
        assert_eq!(fs::read_to_string(target.join("d/x")).unwrap(), "a/d/x", "the first that was named");
        assert_eq!(fs::read_to_string(target.join("d/w")).unwrap(), "c/d/w");
    }
}

/// As rsync and tar: a pattern reaches what was named, too. Symptom: `--exclude '*.o' a.o` copied it,
/// and `--exclude build/` left out files of that name.
#[test]
fn patterns_reach_what_was_named_and_a_slash_at_the_end_means_directories() {
    let dir = directory();
    make(dir.path(), &["a.o", "a.c", "src/build", "src/sub/build/x", "src/sub/a.o", "build/y"]);
    symlink("sub", dir.path().join("src/link")).unwrap();
    for (arguments, expected) in [
        (&["--exclude=*.o", "a.o", "a.c", "src"][..], &["a.c", "src/build", "src/link", "src/sub/build/x"][..]),
        (&["--include=*.c", "a.o", "a.c", "src"], &["a.c", "src/link"]),
        (&["--exclude=build/", "src/", "build"], &["src/build", "src/link", "src/sub/a.o"]),
        (&["--exclude=link/", "--exclude=*.o", "src/."], &["build", "link", "sub/build/x"]),
        (&["--exclude=/sub/build/", "src"], &["src/build", "src/link", "src/sub/a.o"]),
        (&["--exclude=/src", "--exclude=sub", "src"], &["src/build", "src/link"]),
    ] {
        let target = dir.path().join("target");
        let _ = fs::remove_dir_all(&target);
        fs::create_dir(&target).unwrap();
        expect(COPIED, nowait_copy().args(arguments).arg(&target).current_dir(dir.path()));
        let mut expected: Vec<&str> = expected.to_vec();
        // A link is no file to a pattern of what is copied, as before.
        if arguments[0].starts_with("--include") {
            expected.retain(|name| *name != "src/link");
        }
        assert_eq!(files(&target), expected, "{arguments:?}");
    }
    let said = expect(COPIED, nowait_copy().args(["--exclude=build/", "build", "new"]).current_dir(dir.path()));
    assert!(said.contains("nothing was copied: the patterns exclude all files"), "{said}");
    let wrong = expect(USAGE, nowait_copy().args(["--include=src/", "src", "new"]).current_dir(dir.path()));
    assert!(wrong.contains("; to copy the files in them, include **/src/**"), "{wrong}");
}

/// As rsync: a bare number is in KiB. Symptom: it was in bytes, and a copy took a thousand times longer.
#[test]
fn a_bare_rate_is_in_kib() {
    let dir = directory();
    fs::write(dir.path().join("source"), noise(1, 600 << 10)).unwrap();
    let limit = |rate: &str| {
        let mut command = nowait_copy();
        command.args([&format!("--bwlimit={rate}"), "--progress=always", "source", "copy"]).current_dir(dir.path());
        expect(COPIED, &mut command)
    };
    for rate in ["500", "500K"] {
        let shown = limit(rate);
        assert!(shown.lines().any(|line| line.contains("/s (limit 500 KiB/s)")), "{rate}: {shown}");
    }
    assert!(!limit("0").contains("limit"));
    for rate in ["2_000", "2000.0", "2e3", "1.5", "1.5M", ""] {
        let mut command = nowait_copy();
        expect(USAGE, command.args([&format!("--bwlimit={rate}"), "source", "copy"]).current_dir(dir.path()));
    }
    let help = nowait_copy().arg("--help").output().unwrap();
    let help = String::from_utf8_lossy(&help.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("A bare number is in KiB, as with rsync"), "{help}");
}

/// Options that hands know from `cp`: they do what they do there, or say what does.
#[test]
fn options_of_cp_are_taken_or_say_what_to_use() {
    let dir = directory();
    make(dir.path(), &["one", "two", "folder/three"]);
    let run = |code: i32, arguments: &[&str]| expect(code, nowait_copy().args(arguments).current_dir(dir.path()));
    for option in
        ["-p", "-f", "-d", "-a", "-r", "-dpR", "--preserve", "--preserve=mode,xattr", "--force", "--remove-destination"]
    {
        run(COPIED, &[option, "one", "copy"]);
        assert_eq!(fs::read_to_string(dir.path().join("copy")).unwrap(), "one");
        fs::remove_file(dir.path().join("copy")).unwrap();
    }
    for arguments in [&["-t", "folder", "one", "two"][..], &["one", "--target-directory=folder"], &["-tfolder", "one"]]
    {
        run(COPIED, arguments);
        assert!(names(&dir.path().join("folder")).contains(&"one".to_owned()));
        fs::remove_file(dir.path().join("folder/one")).unwrap();
    }
    for wrong in [&["-t", "missing", "one"][..], &["-t", "two", "one"], &["-T", "-t", "folder", "one"]] {
        run(USAGE, wrong);
    }
    run(USAGE, &["--preserve=color", "one", "copy"]);
    for option in [
        "-i",
        "--interactive",
        "--no-clobber",
        "-l",
        "--symbolic-link",
        "-b",
        "--backup=numbered",
        "--parents",
        "--no-preserve=mode",
        "--delete",
    ] {
        let said = run(USAGE, &[option, "one", "copy"]);
        assert!(said.starts_with("nowait: copy has no -") && said.contains("; use "), "{option}: {said}");
    }
    assert!(!dir.path().join("copy").exists());
}

#[test]
fn another_file_system_is_left_out_where_that_is_asked() {
    let Some(mount) = Mount::or_skip(Kind::Tmpfs) else { return };
    let dir = directory();
    let (source, point) = (mount.path().join("source"), mount.path().join("source/mounted"));
    make(&source, &["own", "sub/file", "mounted/hidden"]);
    expect(0, Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&point));
    fs::write(point.join("theirs"), "theirs").unwrap();
    let outputs = [&["-x"][..], &["--one-file-system"], &[]].map(|options| {
        let target = dir.path().join(format!("copy {}", options.len()));
        let _ = fs::remove_dir_all(&target);
        let output = nowait_copy().args(options).arg("-T").args([&source, &target]).output().unwrap();
        (output, files(&target), target.join("mounted").is_dir())
    });
    // A mount point may be a source itself.
    let itself = nowait_copy().arg("-x").args([&point, &dir.path().join("itself")]).output();
    expect(0, Command::new("umount").arg(&point));
    for (output, files, has_point) in &outputs {
        assert_eq!(output.status.code(), Some(COPIED), "{}", said(output));
        assert!(has_point, "the directory itself is copied");
        assert!(files.contains(&"sub/file".to_owned()));
    }
    assert_eq!(outputs.map(|(_, files, _)| files.contains(&"mounted/theirs".to_owned())), [false, false, true]);
    assert_eq!(itself.unwrap().status.code(), Some(COPIED));
    assert_eq!(files(&dir.path().join("itself")), ["theirs"]);
}
