//! `nowait copy` where others are at work: names that are replaced under it, another copy to the same
//! place, files that may not be changed, names that are made to do harm.

mod copying;

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use copying::mounts::{Kind, Mount};
use copying::{
    COPIED, NOBODY, NOTHING, Nobody, SOME_NOT, contents, directory, expect, has_begun, names, noise, nowait_copy, said,
};

/// A tree with a file that takes some seconds at a low rate, and directories that come after it.
fn slow_tree(root: &Path) {
    fs::create_dir_all(root.join("later")).unwrap();
    fs::write(root.join("first"), noise(1, 2 << 20)).unwrap();
    fs::write(root.join("later/file"), "inside").unwrap();
}

/// Copies it slowly, has `meanwhile` done in the middle of its first file, and returns the code and
/// what was said.
fn copied_while(dir: &Path, options: &[&str], meanwhile: impl FnOnce()) -> (Option<i32>, String) {
    let mut child = nowait_copy()
        .args(["--bwlimit=400K", "--jobs=1", "--reflink=never", "--progress=always", "-T"])
        .args(options)
        .args(["source", "target"])
        .current_dir(dir)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Both directories are open and listed. The first file takes five seconds.
    let mut rest = has_begun(&mut child);
    meanwhile();
    let mut said = String::new();
    rest.read_to_string(&mut said).unwrap();
    (child.wait().unwrap().code(), said)
}

/// Symptom: the copy went wherever the link led that took its directory's place.
#[test]
fn a_target_directory_that_is_replaced_by_a_link_leads_nowhere_else() {
    for options in [&[][..], &["--sync=file"], &["--sync=all", "--verify"]] {
        let dir = directory();
        let path = |name: &str| dir.path().join(name);
        slow_tree(&path("source"));
        fs::create_dir_all(path("target/later")).unwrap();
        fs::create_dir_all(path("elsewhere/later")).unwrap();
        fs::write(path("elsewhere/first"), "theirs").unwrap();
        let (code, said) = copied_while(dir.path(), options, || {
            fs::rename(path("target"), path("moved")).unwrap();
            symlink("elsewhere", path("target")).unwrap();
        });
        assert_eq!(code, Some(COPIED), "{said}");
        assert_eq!(fs::read(path("elsewhere/first")).unwrap(), b"theirs");
        assert_eq!(names(&path("elsewhere/later")), [""; 0]);
        assert!(fs::read(path("moved/first")).unwrap() == noise(1, 2 << 20));
        assert_eq!(names(&path("moved/later")), ["file"]);

        // One that is met after it was replaced.
        let dir = directory();
        let path = |name: &str| dir.path().join(name);
        slow_tree(&path("source"));
        fs::create_dir_all(path("target/later")).unwrap();
        fs::create_dir(path("elsewhere")).unwrap();
        let (code, said) = copied_while(dir.path(), options, || {
            fs::remove_dir(path("target/later")).unwrap();
            symlink("../elsewhere", path("target/later")).unwrap();
        });
        assert_eq!(code, Some(SOME_NOT), "{said}");
        assert!(said.lines().any(|line| line.contains("target/later") && line.contains("; ")), "{said}");
        assert_eq!(names(&path("elsewhere")), [""; 0]);
    }
}

/// Symptom: a link that took a directory's place had what it leads to copied: a secret, if root
/// copies what others may change.
#[test]
fn a_source_that_is_replaced_by_a_link_is_copied_as_a_link() {
    let dir = directory();
    let path = |name: &str| dir.path().join(name);
    slow_tree(&path("source"));
    fs::create_dir(path("source/another")).unwrap();
    fs::create_dir(path("secret")).unwrap();
    fs::write(path("secret/file"), "secret").unwrap();
    let (code, said) = copied_while(dir.path(), &[], || {
        fs::remove_dir_all(path("source/later")).unwrap();
        symlink("../secret", path("source/later")).unwrap();
        fs::remove_dir(path("source/another")).unwrap();
        // Nobody writes to it: whoever opens it waits.
        expect(0, Command::new("mkfifo").arg(path("source/another")));
    });
    assert!(code == Some(COPIED) || code == Some(SOME_NOT), "{said}");
    assert_eq!(fs::read_link(path("target/later")).unwrap(), Path::new("../secret"));
    assert!(!fs::metadata(path("target/another")).unwrap().is_file());
}

#[test]
fn copies_to_one_place_at_a_time_leave_whole_files() {
    let dir = directory();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    for folder in 0..6 {
        fs::create_dir_all(source.join(format!("{folder}"))).unwrap();
        for number in 0..20 {
            let len = if number == 3 { 2 << 20 } else { 1000 * number };
            fs::write(source.join(format!("{folder}/{number}")), noise(folder * 100 + number as u64, len)).unwrap();
        }
    }
    symlink("0/1", source.join("link")).unwrap();
    let expected = contents(&source);
    for is_there in [false, true, true] {
        if !is_there {
            let _ = fs::remove_dir_all(&target);
        }
        let start = |options: &[&str]| {
            let mut command = nowait_copy();
            command.args(options).arg("-T").args([&source, &target]).stderr(Stdio::piped()).stdout(Stdio::piped());
            command.spawn().unwrap()
        };
        let children = [&[][..], &["--sync=all"], &["--resume"], &["--cache-neutral"]].map(start);
        for child in children {
            let output = child.wait_with_output().unwrap();
            // Where the other made a directory first, names in it may be taken: that is told.
            let codes = if is_there { &[COPIED][..] } else { &[COPIED, SOME_NOT] };
            assert!(codes.contains(&output.status.code().unwrap()), "{}", said(&output));
        }
        assert!(contents(&target) == expected, "there: {is_there}");
    }
}

#[test]
fn files_that_may_not_be_changed_are_told() {
    let Some(mount) = Mount::or_skip(Kind::Ext4) else { return };
    let path = |name: &str| mount.path().join(name);
    for name in ["source", "immutable", "append only"] {
        fs::write(path(name), name).unwrap();
    }
    fs::create_dir(path("folder")).unwrap();
    fs::write(path("folder/file"), "old").unwrap();
    fs::write(path("large"), noise(1, 2 << 20)).unwrap();
    let flag = |flag: &str, name: &str| expect(0, Command::new("chattr").arg(flag).arg(path(name)));
    let flags = [("i", "immutable"), ("a", "append only"), ("i", "folder")];
    flags.iter().for_each(|(letter, name)| _ = flag(&format!("+{letter}"), name));
    let before = names(mount.path());
    let outputs: Vec<_> = ["source", "large"]
        .iter()
        .flat_map(|source| ["immutable", "append only", "folder/file", "folder/new"].map(|target| (source, target)))
        .map(|(source, target)| (target, nowait_copy().args([path(source), path(target)]).output().unwrap()))
        .collect();
    let after = names(mount.path());
    // Else it cannot be unmounted and removed.
    flags.iter().for_each(|(letter, name)| _ = flag(&format!("-{letter}"), name));
    for (target, output) in outputs {
        let text = said(&output);
        assert_eq!(output.status.code(), Some(NOTHING), "{target}: {text}");
        assert!(text.lines().any(|line| line.contains(target) && line.contains("immutable")), "{target}: {text}");
    }
    assert_eq!(after, before, "temporary files");
    assert_eq!(fs::read(path("immutable")).unwrap(), b"immutable");
    assert_eq!(names(&path("folder")), ["file"]);
}

#[test]
fn a_read_only_file_is_replaced_and_one_in_a_read_only_directory_is_told() {
    let Some(nobody) = Nobody::or_skip() else { return };
    let dir = nobody.dir();
    let copy = |source: &str, target: &str| {
        let mut command = nobody.copy();
        command.args([source, target]).current_dir(&dir);
        command
    };
    fs::write(dir.join("source"), "new").unwrap();
    fs::write(dir.join("read only"), "old").unwrap();
    fs::set_permissions(dir.join("read only"), fs::Permissions::from_mode(0o444)).unwrap();
    expect(COPIED, &mut copy("source", "read only"));
    assert_eq!(fs::read(dir.join("read only")).unwrap(), b"new");

    // Root's files: what is theirs to read is copied, and is not run in root's name.
    fs::set_permissions(dir.join("source"), fs::Permissions::from_mode(0o4755)).unwrap();
    expect(COPIED, &mut copy("source", "mine"));
    let mine = fs::metadata(dir.join("mine")).unwrap();
    assert_eq!((mine.uid(), mine.mode() & 0o7777), (NOBODY, 0o755));
    assert_eq!(mine.mtime(), fs::metadata(dir.join("source")).unwrap().mtime());
}

/// Symptom: a name with an escape sequence in it did to the terminal what it liked.
#[test]
fn names_do_nothing_to_a_terminal() {
    let dir = directory();
    let evil = OsStr::from_bytes(b"two\nlines \x1b[31m\x07 \xff");
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    for root in [&source, &target] {
        fs::create_dir(root).unwrap();
    }
    fs::write(source.join(evil), "a file").unwrap();
    fs::create_dir(target.join(evil)).unwrap();
    fs::write(dir.path().join(evil), "outside").unwrap();
    fs::hard_link(dir.path().join(evil), dir.path().join("same")).unwrap();
    let evil_path = dir.path().join(evil);
    for (code, arguments) in [
        (SOME_NOT, vec!["-T".as_ref(), source.as_os_str(), target.as_os_str()]),
        (NOTHING, vec![evil_path.as_os_str(), "same".as_ref()]),
        (NOTHING, vec!["same".as_ref(), evil_path.as_os_str()]),
        (NOTHING, vec![dir.path().as_os_str(), target.as_os_str()]),
        (NOTHING, vec!["none".as_ref(), evil]),
    ] {
        let text = expect(code, nowait_copy().args(&arguments).current_dir(dir.path()));
        assert!(text.chars().all(|char| char == '\n' || !char.is_control()), "{arguments:?}: {text:?}");
        assert!(text.lines().all(|line| line.starts_with("nowait: ")), "{arguments:?}: {text:?}");
    }
    for option in ["--explain", "--dry-run"] {
        let output =
            nowait_copy().arg(option).args([evil_path.as_os_str(), "new".as_ref()]).current_dir(dir.path()).output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        assert!(
            text.lines().count() == 1 && text.contains("two\\nlines \\u{1b}[31m\\u{7} \\xff"),
            "{option}: {text:?}"
        );
    }
}

/// Each file of the target is the file of the source: a copy must not truncate either.
#[test]
fn a_tree_of_hard_links_to_its_source_is_left_alone() {
    let dir = directory();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    for root in [&source, &target] {
        fs::create_dir(root).unwrap();
    }
    for number in 0..10 {
        let name = format!("{number}");
        fs::write(source.join(&name), noise(number, 50_000)).unwrap();
        fs::hard_link(source.join(&name), target.join(&name)).unwrap();
    }
    let expected = contents(&source);
    let said = expect(SOME_NOT, nowait_copy().arg("-T").args([&source, &target]));
    assert_eq!(said.lines().filter(|line| line.contains("same file")).count(), 10, "{said}");
    assert!(contents(&source) == expected && contents(&target) == expected);
}

#[test]
fn sources_of_one_name_do_not_replace_each_other() {
    let dir = directory();
    for (root, bytes) in [("a", "one"), ("b", "two")] {
        fs::create_dir_all(dir.path().join(root).join("tree")).unwrap();
        fs::write(dir.path().join(root).join("tree/file"), bytes).unwrap();
    }
    fs::create_dir(dir.path().join("target")).unwrap();
    for sources in [["a/tree", "b/tree"], ["a/.", "b/."]] {
        let said = expect(SOME_NOT, nowait_copy().args(sources).arg("target").current_dir(dir.path()));
        assert!(
            said.lines().any(|line| line.contains(sources[1].trim_end_matches("/.")) && line.contains("; ")),
            "{said}"
        );
        assert_eq!(fs::read(dir.path().join("target/tree/file")).unwrap(), b"one");
    }
}
