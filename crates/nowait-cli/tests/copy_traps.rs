//! Messages of `nowait copy` about what it cannot copy: what, where, and what to do; and that it copies
//! all the rest.

mod copying;

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use copying::mounts::{Kind, Mount, or_skip};
use copying::{
    COPIED, NOTHING, Nobody, SOME_NOT, USAGE, assert_same, can_check, copy, directory, expect, names, nowait_copy,
    torture,
};

/// Runs it in `dir`; fails unless it ends with `code` and says one line that has all of `words`
/// and, after a semicolon, what to do.
#[track_caller]
fn told(code: i32, dir: &Path, arguments: &[&str], words: &[&str]) -> String {
    complains(code, copy().args(arguments).current_dir(dir), words)
}

#[track_caller]
fn complains(code: i32, command: &mut Command, words: &[&str]) -> String {
    let text = expect(code, command);
    let has_all = |line: &&str| words.iter().all(|word| line.contains(word));
    let line = text.lines().find(has_all);
    let line = line.unwrap_or_else(|| panic!("{command:?}: no line has all of {words:?}: {text}"));
    eprintln!("{line}");
    assert!(line.split_once("; ").is_some_and(|(_, advice)| advice.len() > 5), "{command:?}: no advice: {line}");
    text
}

/// Two files and a folder with one.
fn place() -> tempfile::TempDir {
    let dir = directory();
    fs::write(dir.path().join("one"), "one").unwrap();
    fs::write(dir.path().join("two"), "two").unwrap();
    fs::create_dir(dir.path().join("folder")).unwrap();
    fs::write(dir.path().join("folder/three"), "three").unwrap();
    dir
}

fn text(path: impl AsRef<Path>) -> String {
    String::from_utf8(fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_directory_is_not_copied_into_itself() {
    let dir = place();
    for target in ["folder/copy", "folder/./copy", "folder", "link/copy"] {
        if target.starts_with("link") {
            symlink("folder", dir.path().join("link")).unwrap();
        }
        told(NOTHING, dir.path(), &["folder", target], &["folder"]);
        assert_eq!(names(&dir.path().join("folder")), ["three"], "{target}");
    }
    // It said that the other entries were copied.
    told(NOTHING, dir.path(), &["folder/.", "folder"], &["are the same directory"]);
    // The other way round the copy would replace what it is copied from.
    fs::create_dir_all(dir.path().join("a/b/a")).unwrap();
    fs::write(dir.path().join("a/b/a/file"), "deep").unwrap();
    expect(COPIED, copy().args(["-T", "a/b/a", "a"]).current_dir(dir.path()));
    assert_eq!((text(dir.path().join("a/file")), text(dir.path().join("a/b/a/file"))), ("deep".into(), "deep".into()));
}

#[test]
fn a_target_that_is_a_directory_takes_the_file() {
    let dir = place();
    expect(COPIED, copy().args(["one", "two", "folder"]).current_dir(dir.path()));
    assert_eq!(names(&dir.path().join("folder")), ["one", "three", "two"]);
    for target in ["folder", "folder/", "folder/.", "."] {
        told(NOTHING, dir.path(), &["-T", "one", target], &["the target is a directory"]);
    }
    told(NOTHING, dir.path(), &["-T", "folder", "one"], &["one"]);
    assert_eq!(text(dir.path().join("one")), "one");
    // A directory in the place of a file of a tree, and a file in that of a directory.
    fs::create_dir_all(dir.path().join("tree/sub")).unwrap();
    fs::write(dir.path().join("tree/sub/file"), "x").unwrap();
    fs::write(dir.path().join("tree/other"), "y").unwrap();
    fs::create_dir_all(dir.path().join("taken/other")).unwrap();
    fs::write(dir.path().join("taken/sub"), "in the way").unwrap();
    let said = told(SOME_NOT, dir.path(), &["-T", "tree", "taken"], &["taken/other"]);
    assert!(said.contains("taken/sub"), "{said}");
    assert_eq!(text(dir.path().join("taken/sub")), "in the way");
}

#[test]
fn a_target_that_is_missing_is_told() {
    let dir = place();
    told(NOTHING, dir.path(), &["one", "missing/file"], &["missing"]);
    told(NOTHING, dir.path(), &["one", "missing/"], &["missing"]);
    told(NOTHING, dir.path(), &["one/", "new"], &["one"]);
    let output = copy().args(["one", "two", "missing"]).current_dir(dir.path()).output().unwrap();
    assert!([Some(USAGE), Some(NOTHING)].contains(&output.status.code()), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("missing"), "{output:?}");
    assert_eq!(names(dir.path()), ["folder", "one", "two"]);
}

/// Symptom: for `/proc/new` the cause was "No such file or directory", and the advice "create it
/// first" or "the file may have been removed meanwhile".
#[test]
fn a_target_where_nothing_can_be_created_is_told() {
    let dir = place();
    for source in ["one", "folder"] {
        for (target, words) in [
            ("/proc/new", "programs cannot create names in procfs"),
            ("/sys/new", "programs cannot create names in sysfs"),
            ("/proc/new/sub", "programs cannot create it in procfs"),
        ] {
            let said = told(NOTHING, dir.path(), &[source, target], &[words, "name another target"]);
            assert!(!said.contains("create it first") && !said.contains("removed"), "{said}");
        }
    }
    told(NOTHING, dir.path(), &["one", "/proc/new/"], &["no such directory", "cannot create it in procfs"]);
    // Elsewhere the directory can be created.
    told(NOTHING, dir.path(), &["one", "missing/file"], &["create it first"]);
}

#[test]
fn the_same_file_under_another_name_is_left_alone() {
    let dir = place();
    fs::hard_link(dir.path().join("one"), dir.path().join("hard link")).unwrap();
    symlink("one", dir.path().join("link")).unwrap();
    symlink(".", dir.path().join("here")).unwrap();
    for (source, target) in [
        ("one", "one"),
        ("one", "./folder/../one"),
        ("one", "hard link"),
        ("one", "link"),
        ("here/one", "one"),
        ("one", "."),
    ] {
        told(NOTHING, dir.path(), &[source, target], &["same"]);
        assert_eq!(text(dir.path().join("one")), "one", "{source} {target}");
        assert_eq!(fs::metadata(dir.path().join("one")).unwrap().nlink(), 2, "{source} {target}");
    }
}

/// Symptom: in a directory, the link was replaced, where `cp` refuses it as the same file.
#[test]
fn a_link_in_the_target_that_leads_to_the_source_is_left_alone() {
    let dir = place();
    let path = |name: &str| dir.path().join(name);
    fs::create_dir(path("backup")).unwrap();
    symlink("../folder/three", path("backup/three")).unwrap();
    symlink("folder/three", path("link")).unwrap();
    for arguments in [
        &["folder/three", "backup"][..],
        &["folder/three", "backup/three"],
        &["-T", "folder", "backup"],
        &["-L", "link", "."],
    ] {
        let output = copy().args(arguments).current_dir(dir.path()).output().unwrap();
        assert_ne!(output.status.code(), Some(COPIED), "{arguments:?}: {}", copying::said(&output));
        assert!(copying::said(&output).contains("the same file"), "{}", copying::said(&output));
        assert!(path("backup/three").is_symlink() && path("link").is_symlink(), "{arguments:?}");
        assert_eq!(text(path("folder/three")), "three");
    }
    // A file that is kept is no failure.
    expect(COPIED, nowait_copy().args(["--update=none", "folder/three", "backup"]).current_dir(dir.path()));
    expect(COPIED, copy().args(["--remove-destination", "-T", "folder", "backup"]).current_dir(dir.path()));
    assert!(!path("backup/three").is_symlink());
    assert_eq!((text(path("backup/three")), text(path("folder/three"))), ("three".into(), "three".into()));
}

/// Symptom: "the same file", where `cp --remove-destination` makes a copy in the place of a hard link.
#[test]
fn a_hard_link_to_the_source_is_replaced_where_that_is_asked() {
    let dir = place();
    let path = |name: &str| dir.path().join(name);
    let inode = |name: &str| path(name).symlink_metadata().unwrap().ino();
    fs::hard_link(path("one"), path("other name")).unwrap();
    fs::create_dir_all(path("links")).unwrap();
    fs::hard_link(path("folder/three"), path("links/three")).unwrap();
    symlink("folder", path("here")).unwrap();
    symlink("one", path("link")).unwrap();
    let command = |arguments: &[&str]| {
        let mut command = copy();
        command.arg("--remove-destination").args(arguments).current_dir(dir.path());
        command
    };
    expect(COPIED, &mut command(&["one", "other name"]));
    expect(COPIED, &mut command(&["-T", "folder", "links"]));
    for (source, target) in [("one", "other name"), ("folder/three", "links/three")] {
        assert_ne!(inode(source), inode(target));
        assert_eq!(text(path(source)), text(path(target)));
    }
    // These are one name, or the file that the source leads to.
    fs::hard_link(path("one"), path("second")).unwrap();
    let refused = [
        &["one", "./one"][..],
        &["here/three", "folder/three"],
        &["-L", "link", "one"],
        &["-P", "link", "one"],
        &["one", "."],
    ];
    for arguments in refused {
        let said = complains(NOTHING, &mut command(arguments), &[]);
        assert!(said.contains("the same file as") || said.contains("is a symbolic link to it"), "{said}");
        assert_eq!((text(path("one")), text(path("folder/three"))), ("one".into(), "three".into()), "{arguments:?}");
        assert_eq!(inode("one"), inode("second"), "{arguments:?}");
    }
}

/// As `cp`: a symbolic link has no data that could be lost.
#[test]
fn another_name_of_a_symbolic_link_is_replaced() {
    let dir = place();
    symlink("one", dir.path().join("link")).unwrap();
    fs::hard_link(dir.path().join("link"), dir.path().join("same link")).unwrap();
    expect(COPIED, copy().args(["-P", "link", "same link"]).current_dir(dir.path()));
    for name in ["link", "same link"] {
        assert_eq!(fs::read_link(dir.path().join(name)).unwrap(), Path::new("one"));
    }
    told(NOTHING, dir.path(), &["-P", "link", "link"], &["same file"]);
    assert_eq!(fs::read_link(dir.path().join("link")).unwrap(), Path::new("one"));
}

#[test]
fn files_that_are_missing_are_named_and_the_others_copied() {
    let dir = place();
    // Symptom: "it may have been removed meanwhile", of a name that was misspelt.
    for source in ["none", "folder/none", "missing/none"] {
        told(NOTHING, dir.path(), &[source, "target"], &[source, "the source does not exist", "check the path"]);
    }
    symlink("nowhere", dir.path().join("broken")).unwrap();
    told(NOTHING, dir.path(), &["-L", "broken", "target"], &["broken", "the target of this symbolic link"]);
    fs::remove_file(dir.path().join("broken")).unwrap();
    told(SOME_NOT, dir.path(), &["one", "none", "two", "folder"], &["none"]);
    assert_eq!(names(&dir.path().join("folder")), ["one", "three", "two"]);
    // Two sources of one name: the second must not replace the first.
    fs::create_dir_all(dir.path().join("other")).unwrap();
    fs::write(dir.path().join("other/one"), "other").unwrap();
    fs::create_dir(dir.path().join("target")).unwrap();
    told(SOME_NOT, dir.path(), &["one", "other/one", "target"], &["one"]);
    assert_eq!(text(dir.path().join("target/one")), "one");
}

#[test]
fn who_may_not_read_or_write_is_told() {
    let Some(nobody) = Nobody::or_skip() else { return };
    let dir = nobody.dir();
    fs::create_dir(dir.join("tree")).unwrap();
    for name in ["a", "secret", "z"] {
        fs::write(dir.join("tree").join(name), name).unwrap();
    }
    fs::set_permissions(dir.join("tree/secret"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(dir.join("tree/closed")).unwrap();
    fs::set_permissions(dir.join("tree/closed"), fs::Permissions::from_mode(0o700)).unwrap();
    let said = complains(SOME_NOT, nobody.copy().args(["tree", "copy"]).current_dir(&dir), &["tree/secret"]);
    assert!(said.contains("tree/closed"), "{said}");
    assert_eq!((text(dir.join("copy/a")), text(dir.join("copy/z"))), ("a".into(), "z".into()));
    assert!(!dir.join("copy/secret").exists());
    complains(NOTHING, nobody.copy().args(["tree/secret", "x"]).current_dir(&dir), &["tree/secret"]);

    fs::create_dir(dir.join("roots")).unwrap();
    complains(NOTHING, nobody.copy().args(["tree/a", "roots"]).current_dir(&dir), &["roots"]);
    // What they own, in a directory that they may not write to.
    fs::write(dir.join("roots/theirs"), "old").unwrap();
    std::os::unix::fs::chown(dir.join("roots/theirs"), Some(copying::NOBODY), None).unwrap();
    complains(NOTHING, nobody.copy().args(["tree/a", "roots/theirs"]).current_dir(&dir), &["roots"]);
    assert_eq!(text(dir.join("roots/theirs")), "old");
}

/// Directories without the right to write, in a tree of one's own: their mode comes last.
#[test]
fn directories_that_are_read_only_are_filled_by_who_is_not_root() {
    let Some(nobody) = Nobody::or_skip() else { return };
    if !can_check() {
        return;
    }
    let dir = nobody.dir();
    // Later than all other times: who reads it does not change it (`relatime`).
    let make = "mkdir -p tree/sealed/below; echo x > tree/sealed/below/file; echo y > tree/sealed/file
        chmod 400 tree/sealed/file; chmod -R a-w tree/sealed; find tree -depth -exec touch -a -d '+30 minutes' {} +";
    let made = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-ec", make])
        .current_dir(&dir)
        .status();
    assert!(made.unwrap().success());
    expect(COPIED, nobody.copy().args(["tree", "copy"]).current_dir(&dir));
    assert_same(&dir.join("tree"), &dir.join("copy"));
}

/// Symptom: with a umask that is meant for secret files, such as 177, whoever is not root could not
/// copy a tree into the directory that had just been made for it.
#[test]
fn a_umask_does_not_shut_the_owner_out() {
    let Some(nobody) = Nobody::or_skip() else { return };
    let dir = nobody.dir();
    let make = "mkdir -p tree/below && echo x > tree/below/file && chmod -R go-w tree";
    expect(0, Command::new("sh").args(["-ec", make]).current_dir(&dir));
    for umask in ["177", "277", "777"] {
        let mut copy = Command::new("sh");
        copy.args(["-c", &format!("umask {umask}; exec \"$@\""), "sh"]).arg(nobody.copy().get_program());
        copy.args(nobody.copy().get_args()).args(["tree", umask]).current_dir(&dir);
        expect(COPIED, &mut copy);
        let mode = |path: &Path| fs::metadata(path).unwrap().mode();
        let modes = |tree: &str| ["", "below", "below/file"].map(|name| mode(&dir.join(tree).join(name)));
        assert_eq!(modes(umask), modes("tree"), "{umask}");
        assert_eq!(text(dir.join(umask).join("below/file")), "x\n");
    }
}

/// A file gets its mode at its creation if the umask permits that. A new owner clears setuid bits.
#[test]
fn modes_are_kept_under_any_umask() {
    let dir = place();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for mode in [0o666, 0o644, 0o640, 0o600, 0o444, 0o400, 0o755, 0o4755, 0o2755, 0o1644] {
        for (name, owner) in [("mine", None), ("theirs", Some(copying::NOBODY))] {
            let path = tree.join(format!("{name} {mode:o}"));
            fs::write(&path, "x").unwrap();
            // Only root may do this.
            _ = std::os::unix::fs::chown(&path, owner, owner);
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
    }
    for umask in ["000", "022", "077", "177"] {
        let mut copy = Command::new("sh");
        copy.args(["-c", &format!("umask {umask}; exec \"$@\""), "sh"]).arg(nowait_copy().get_program());
        copy.args(nowait_copy().get_args()).args(["tree", umask]).current_dir(dir.path());
        expect(COPIED, &mut copy);
        for name in names(&tree) {
            let of = |dir: &Path| fs::metadata(dir.join(&name)).map(|it| (it.mode(), it.uid(), it.gid())).unwrap();
            assert_eq!(of(&dir.path().join(umask)), of(&tree), "{umask}: {name}");
        }
    }
}

/// A directory of more than 65,536 names is listed in parts.
#[test]
fn a_directory_of_many_names_is_copied_whole() {
    let Some(mount) = Mount::or_skip(Kind::Tmpfs) else { return };
    let tree = mount.path().join("tree");
    for number in 0..3 {
        fs::create_dir_all(tree.join(format!("folder {number}"))).unwrap();
    }
    for number in 0..140_000 {
        symlink("nowhere", tree.join(number.to_string())).unwrap();
    }
    expect(COPIED, nowait_copy().args(["-T", "tree", "copy"]).current_dir(mount.path()));
    let copy = mount.path().join("copy");
    assert_eq!(names(&copy), names(&tree));
    // The directory's time is set after the last part.
    let modified = |path: &Path| fs::metadata(path).and_then(|it| it.modified()).unwrap();
    assert_eq!(modified(&copy), modified(&tree));
}

#[test]
fn a_read_only_file_system_is_told() {
    let Some(mount) = Mount::or_skip(Kind::Tmpfs) else { return };
    let dir = place();
    fs::write(mount.path().join("old"), "old").unwrap();
    expect(0, Command::new("mount").args(["-o", "remount,ro"]).arg(mount.path()));
    for name in ["old", "new", ""] {
        let target = mount.path().join(name).display().to_string();
        told(NOTHING, dir.path(), &["one", &target], &[mount.path().to_str().unwrap()]);
    }
    assert_eq!(text(mount.path().join("old")), "old");
}

#[test]
fn names_that_are_too_long_are_told() {
    let dir = place();
    let long = "x".repeat(256);
    told(NOTHING, dir.path(), &["one", &long], &["too long"]);
    // As long as it may be: a temporary name with something added to it is not possible.
    let longest = "x".repeat(255);
    expect(COPIED, copy().args(["one", &longest]).current_dir(dir.path()));
    expect(COPIED, copy().args(["two", &longest]).current_dir(dir.path()));
    fs::write(dir.path().join("one"), "longer").unwrap();
    expect(COPIED, copy().args(["--resume", "one", &longest]).current_dir(dir.path()));
    assert_eq!(text(dir.path().join(&longest)), "longer");
    assert_eq!(names(dir.path()).len(), 4);
}

#[test]
fn symbolic_links_in_a_circle_are_told() {
    let dir = place();
    symlink("pong", dir.path().join("ping")).unwrap();
    symlink("ping", dir.path().join("pong")).unwrap();
    told(NOTHING, dir.path(), &["ping/file", "target"], &["ping"]);
    told(NOTHING, dir.path(), &["one", "ping/file"], &["ping"]);
    told(NOTHING, dir.path(), &["one", "ping/"], &["ping"]);
    // A link is a thing that can be copied, wherever it leads.
    expect(COPIED, copy().args(["ping", "folder"]).current_dir(dir.path()));
    assert_eq!(fs::read_link(dir.path().join("folder/ping")).unwrap(), Path::new("pong"));
    // As DST itself it leads to no file, so it is replaced, as by `cp -f`.
    expect(COPIED, copy().args(["-f", "one", "ping"]).current_dir(dir.path()));
    assert!(!dir.path().join("ping").is_symlink());
    assert_eq!(text(dir.path().join("ping")), "one");
}

/// Symptom: "Device or resource busy", and nothing about what to do.
#[test]
fn a_file_that_is_mounted_over_is_told() {
    let Some(mount) = Mount::or_skip(Kind::Tmpfs) else { return };
    for name in ["one", "target"] {
        fs::write(mount.path().join(name), name).unwrap();
    }
    let target = mount.path().join("target");
    expect(0, Command::new("mount").arg("--bind").args([&target, &target]));
    let output = nowait_copy().args(["one", "target"]).current_dir(mount.path()).output().unwrap();
    expect(0, Command::new("umount").arg(&target));
    let said = copying::said(&output);
    assert_eq!(output.status.code(), Some(NOTHING), "{said}");
    assert!(said.contains("target") && said.contains("; it is a mount point"), "{said}");
    assert_eq!(text(&target), "target");
    assert_eq!(names(mount.path()), ["one", "target"]);
}

/// Symptom: "the target's file system does not store this", of a directory of another user's.
#[test]
fn metadata_that_may_not_be_set_are_told_with_the_reason() {
    let Some(nobody) = Nobody::or_skip() else { return };
    let dir = nobody.dir();
    fs::create_dir_all(dir.join("tree/sub")).unwrap();
    fs::create_dir_all(dir.join("target/sub")).unwrap();
    copying::open_to_all(&dir.join("target/sub"));
    let mut copy = nobody.copy();
    copy.args(["-T", "tree/sub", "target/sub"]).current_dir(&dir);
    let said = complains(SOME_NOT, &mut copy, &["set mode of target/sub", "another user owns it"]);
    assert!(said.contains("the entries were copied") && !said.contains("file system"), "{said}");
    // Neither has an ACL: none is missed.
    assert!(!said.contains("extended attributes"), "{said}");

    let Some(mount) = Mount::or_skip(Kind::Ext4) else { return };
    fs::create_dir_all(mount.path().join("tree")).unwrap();
    fs::create_dir_all(mount.path().join("target")).unwrap();
    expect(0, Command::new("chattr").arg("+a").arg(mount.path().join("target")));
    let output = nowait_copy().args(["-T", "tree", "target"]).current_dir(mount.path()).output().unwrap();
    expect(0, Command::new("chattr").arg("-a").arg(mount.path().join("target")));
    let said = copying::said(&output);
    assert!(said.contains("set times of target") && said.contains("append-only (`lsattr -d`)"), "{said}");
    assert!(!said.contains("extended attributes") && !said.contains("set mode"), "{said}");
}

/// As `cp`: the file that the link leads to is the one that is replaced.
#[test]
fn a_target_that_is_a_link_stays_one() {
    let dir = place();
    symlink("folder/three", dir.path().join("link")).unwrap();
    expect(COPIED, copy().args(["one", "link"]).current_dir(dir.path()));
    assert!(dir.path().join("link").is_symlink(), "the link was replaced");
    assert_eq!(text(dir.path().join("folder/three")), "one");
    assert_eq!(names(&dir.path().join("folder")), ["three"]);
}

/// Symptom: the file became a link to itself, and its data was lost.
#[test]
fn a_link_does_not_replace_the_file_that_it_leads_to() {
    let dir = place();
    let path = |name: &str| dir.path().join(name);
    symlink("one", path("link")).unwrap();
    symlink("link", path("second")).unwrap();
    fs::create_dir_all(path("links")).unwrap();
    symlink("../folder/three", path("links/three")).unwrap();
    let three = text(path("folder/three"));
    for arguments in [&["-P", "link", "one"][..], &["-P", "second", "one"], &["-T", "links", "folder"]] {
        let output = copy().args(arguments).current_dir(dir.path()).output().unwrap();
        assert_ne!(output.status.code(), Some(COPIED), "{arguments:?}: {}", copying::said(&output));
        assert!(copying::said(&output).contains("is a symbolic link to it"), "{}", copying::said(&output));
        assert_eq!(text(path("one")), "one");
        assert!(!path("folder/three").is_symlink());
        assert_eq!(text(path("folder/three")), three);
    }
    // A link takes the place of a link, and of another file.
    symlink("elsewhere", path("other")).unwrap();
    expect(COPIED, copy().args(["-P", "--remove-destination", "link", "other"]).current_dir(dir.path()));
    assert_eq!(fs::read_link(path("other")).unwrap(), Path::new("one"));
}

#[test]
fn blocks_that_must_be_shared_leave_no_choice_of_holes() {
    let dir = place();
    for sparse in ["always", "never"] {
        let sparse = format!("--sparse={sparse}");
        let output = copy().args(["--reflink=always", &sparse, "one", "new"]).current_dir(dir.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(USAGE), "{}", copying::said(&output));
        assert!(!dir.path().join("new").exists());
    }
}

/// Symptom: the option of `cp` was accepted, and the file that the link referred to was replaced.
#[test]
fn a_target_that_is_a_link_is_replaced_where_that_is_asked() {
    let dir = place();
    for (link, leads_to) in [("link", "folder/three"), ("broken", "missing"), ("circle", "circle")] {
        symlink(leads_to, dir.path().join(link)).unwrap();
        expect(COPIED, copy().args(["--remove-destination", "one", link]).current_dir(dir.path()));
        assert!(dir.path().join(link).symlink_metadata().unwrap().is_file(), "{link}");
        assert_eq!(text(dir.path().join(link)), "one");
    }
    assert_eq!(text(dir.path().join("folder/three")), "three");
    assert!(!dir.path().join("missing").exists());
}

#[test]
fn attributes_that_the_target_cannot_keep_are_told_and_the_bytes_copied() {
    let Some(mount) = Mount::or_skip(Kind::Ext4) else { return };
    let point = mount.path().join("ramfs");
    fs::create_dir(&point).unwrap();
    // ramfs has no attributes of users.
    let ramfs = Command::new("mount").args(["-t", "ramfs", "none"]).arg(&point).output();
    let mounted =
        ramfs.map_err(|error: io::Error| error.to_string()).and_then(|output| match output.status.success() {
            true => Ok(()),
            false => Err(copying::said(&output)),
        });
    if or_skip("ramfs", mounted).is_none() {
        return;
    }
    let source = mount.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("plain"), "plain").unwrap();
    fs::write(source.join("marked"), "marked").unwrap();
    fs::write(source.join("listed"), "listed").unwrap();
    expect(0, Command::new("setfattr").args(["-n", "user.mark", "-v", "1"]).arg(source.join("marked")));
    expect(0, Command::new("setfacl").args(["-m", "u:1001:r"]).arg(source.join("listed")));
    let output = copy().args([&source, &point.join("copy")]).output().unwrap();
    let said = copying::said(&output);
    let copied: Vec<String> = ["plain", "marked", "listed"].map(|name| text(point.join("copy").join(name))).into();
    let left = names(&point.join("copy"));
    expect(0, Command::new("umount").arg(&point));
    assert_eq!(copied, ["plain", "marked", "listed"], "{said}");
    assert_eq!(left, ["listed", "marked", "plain"]);
    for name in ["marked", "listed"] {
        assert!(said.lines().any(|line| line.contains(name) && line.contains("; ")), "{name}: {said}");
    }
    assert!(!said.contains("plain:"), "{said}");
    assert_eq!(output.status.code(), Some(SOME_NOT), "{said}");
}

#[test]
fn names_that_differ_by_case_alone_do_not_replace_each_other() {
    let Some(mount) = Mount::or_skip(Kind::Tmpfs) else { return };
    let folding = mount.path().join("folding");
    fs::create_dir(&folding).unwrap();
    let output = Command::new("mount").args(["-t", "tmpfs", "-o", "casefold", "none"]).arg(&folding).output().unwrap();
    // A kernel without tables of letters (CONFIG_UNICODE) is no fault of the machine.
    if !output.status.success() {
        eprintln!("skipped: {}", copying::said(&output));
        return;
    }
    let fold = Command::new("chattr").arg("+F").arg(&folding).output().unwrap();
    let source = mount.path().join("source");
    fs::create_dir(&source).unwrap();
    for (name, bytes) in [("readme", "small"), ("README", "large"), ("other", "other")] {
        fs::write(source.join(name), bytes).unwrap();
    }
    let output = copy().arg("-T").args([&source, &folding]).output().unwrap();
    let said = copying::said(&output);
    let left = names(&folding);
    let other = fs::read(folding.join("other"));
    expect(0, Command::new("umount").arg(&folding));
    if !fold.status.success() {
        eprintln!("skipped: {}", copying::said(&fold));
        return;
    }
    assert_eq!(left.len(), 2, "{left:?}");
    assert_eq!(other.unwrap(), b"other");
    assert_eq!(output.status.code(), Some(SOME_NOT), "{said}");
    assert!(said.lines().any(|line| line.to_lowercase().contains("readme") && line.contains("; ")), "{said}");
}

/// A path longer than any call takes: it can be copied by descriptors alone.
#[test]
fn a_tree_deeper_than_a_path_may_be_is_copied() {
    let dir = directory();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    torture::deep(&source, 12_000);
    fs::write(source.join("z"), "z").unwrap();
    expect(COPIED, nowait_copy().args(["source", "target"]).current_dir(dir.path()));
    let count = |root: &str| {
        let output =
            Command::new("find").args([root, "-type", "f", "-printf", "%f %s\n"]).current_dir(dir.path()).output();
        let mut lines: Vec<String> = text_of(&output.unwrap().stdout).lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(count("source"), ["deepest file 5000", "z 1"]);
    assert_eq!(count("target"), count("source"));
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn wrong_options_are_usage() {
    let dir = place();
    for arguments in [
        &[][..],
        &["one"],
        &["--sync=often", "one", "new"],
        &["--bwlimit=fast", "one", "new"],
        &["--depth=0", "one", "new"],
        &["-T", "one", "two", "folder"],
        &["one", "-v"],
        &["", "new"],
        &["one", ""],
    ] {
        let said = expect(USAGE, nowait_copy().args(arguments).current_dir(dir.path()));
        assert!(!said.is_empty(), "{arguments:?}");
    }
    assert_eq!(names(dir.path()), ["folder", "one", "two"]);
}

#[test]
fn names_that_begin_with_a_dash_are_names_behind_two() {
    let dir = place();
    fs::write(dir.path().join("--help"), "help").unwrap();
    for arguments in [&["--", "one", "-a"][..], &["--", "--help", "-b"], &["-v", "--", "--help", "one", "folder"]] {
        expect(COPIED, copy().args(arguments).current_dir(dir.path()));
    }
    assert_eq!((text(dir.path().join("-a")), text(dir.path().join("-b"))), ("one".into(), "help".into()));
    assert_eq!(names(&dir.path().join("folder")), ["--help", "one", "three"]);
    // Options behind names, as with `cp`.
    expect(COPIED, copy().args(["one", "two", "folder", "-v"]).current_dir(dir.path()));
    expect(COPIED, copy().args(["one", "-v", "two", "folder"]).current_dir(dir.path()));
}

/// Symptom: `/dev/null` was a file afterwards.
#[test]
fn a_device_or_a_fifo_is_not_replaced_by_a_file() {
    let dir = place();
    expect(0, Command::new("mkfifo").arg(dir.path().join("fifo")));
    let mut special = vec!["fifo"];
    if copying::child::is_root() {
        expect(0, Command::new("mknod").arg(dir.path().join("null")).args(["c", "1", "3"]));
        symlink("null", dir.path().join("link")).unwrap();
        special.extend(["null", "link"]);
    }
    for name in special {
        let before = fs::symlink_metadata(dir.path().join(name)).unwrap().ino();
        let said = told(NOTHING, dir.path(), &["one", name], &["a device, a FIFO or a socket"]);
        assert!(said.contains("dd of="), "{said}");
        assert_eq!(fs::symlink_metadata(dir.path().join(name)).unwrap().ino(), before);
    }
    // A FIFO takes the place of a FIFO.
    expect(0, Command::new("mkfifo").arg(dir.path().join("other")));
    expect(COPIED, copy().args(["other", "fifo"]).current_dir(dir.path()));
}
