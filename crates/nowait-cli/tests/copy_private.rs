//! `nowait copy` of files with restricted access: no user can read more of a copy than of its
//! source, while the copy is made, and if its ACL cannot be kept.

mod copying;

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use copying::mounts::{Kind, Mount, or_skip};
use copying::{
    COPIED, Ends, Nobody, SOME_NOT, assert_same, become_another_user_of_roots_group, can_check, child, directory,
    eventually, expect, names, noise, nowait_copy, said,
};
use rustix::fs::{OFlags, openat};

/// The list gives user 1000 the right to read, and the owner's group none. The mode has the list's mask
/// in the group's place: `rw-r-----`.
const LIST: &str = "u::rw-,u:1000:r--,g::---,m::r--,o::---";

fn set_list(path: &Path, list: &str) {
    expect(0, Command::new("setfacl").args(["-m", list]).arg(path));
}

/// Returns the list as it is stored.
fn access_list(path: &Path) -> Vec<u8> {
    let mut list = vec![0; 1024];
    let length = rustix::fs::getxattr(path, "system.posix_acl_access", &mut list).unwrap();
    list.truncate(length);
    list
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn secret(path: &Path, len: usize) {
    fs::write(path, noise(1, len)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    set_list(path, LIST);
    assert_eq!(mode(path), 0o640);
}

fn start(dir: &Path, options: &[&str]) -> Child {
    let mut command = nowait_copy();
    command.args(options).args(["--bwlimit=64K", "--reflink=never", "source", "target"]).current_dir(dir);
    command.stderr(Stdio::null()).spawn().unwrap()
}

/// A name in the directory that is neither the source's nor the target's, and has data.
fn staged(dir: &Path) -> Option<PathBuf> {
    let is_staged = |name: &String| name.starts_with(".nowait-copy-") || name.ends_with(".nowait-part");
    let path = dir.join(names(dir).into_iter().find(is_staged)?);
    fs::metadata(&path).is_ok_and(|stat| stat.len() > 0).then_some(path)
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Symptom: the group of a file, which its list gives no rights, could read the copy until the list was
/// set; a part that an interrupted copy left, for as long as that lay there.
#[test]
fn a_file_with_a_list_is_its_makers_alone_until_it_has_the_list() {
    for (options, len) in [(&[][..], 900 << 10), (&["--resume"], 9 << 20)] {
        let dir = directory();
        secret(&dir.path().join("source"), len);
        fs::write(dir.path().join("target"), "old").unwrap();
        let copy = start(dir.path(), options);
        let path = eventually("a staged file", || staged(dir.path()));
        let found = mode(&path);
        kill(copy);
        assert_eq!(found, 0o600, "{options:?}: {}", path.display());

        // One that an earlier copy left wider is closed before anything is added to it.
        if options.is_empty() {
            continue;
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let copy = start(dir.path(), options);
        eventually("a part for its maker alone", || (mode(&path) == 0o600).then_some(()));
        kill(copy);
        expect(COPIED, nowait_copy().args(options).args(["source", "target"]).current_dir(dir.path()));
        assert_eq!(mode(&dir.path().join("target")), 0o640);
    }
}

/// Every call that makes something asks for its maker's rights alone, whatever the source's mode, its
/// list and the umask are; and what has several steps to its metadata has its mode last.
#[test]
fn nothing_is_made_for_others() {
    if Command::new("strace").args(["-qq", "-o", "/dev/null", "true"]).status().is_err() {
        return eprintln!("skipped: there is no strace");
    }
    let dir = directory();
    let path = |name: &str| dir.path().join(name);
    fs::create_dir_all(path("source/open/below")).unwrap();
    fs::create_dir_all(path("target/open")).unwrap();
    for name in ["short", "open/below/long"] {
        fs::write(path("source").join(name), noise(2, if name == "short" { 10 } else { 2 << 20 })).unwrap();
        fs::set_permissions(path("source").join(name), fs::Permissions::from_mode(0o666)).unwrap();
    }
    secret(&path("source/open/secret"), 5000);
    fs::write(path("target/open/secret"), "old").unwrap();
    set_list(&path("source/open"), "u:1000:rx,g::---");
    expect(0, Command::new("mkfifo").args(["-m", "666"]).arg(path("source/open/fifo")));
    for options in ["", "--resume --cache-neutral"] {
        let copy = nowait_copy();
        let mut command = Command::new("sh");
        command.args(["-c", "umask 0; exec \"$@\"", "sh", "strace", "-f", "-qq", "-o", "trace"]);
        command
            .args(["-e", "trace=openat,mkdirat,mknodat,linkat,fchown,fchmod,fsetxattr"])
            .arg(copy.get_program())
            .args(copy.get_args());
        command.args(options.split_whitespace()).args(["-T", "source", "target"]);
        expect(COPIED, command.current_dir(dir.path()));
        let trace = fs::read_to_string(path("trace")).unwrap();
        let makes = |line: &&str| {
            ["O_CREAT", "O_TMPFILE", "mkdirat", "mknodat"].iter().any(|word| line.contains(word))
                // The second half of a line, and files of the program itself.
                && !line.contains("resumed>")
                && !line.contains("AT_FDCWD")
        };
        let made: Vec<&str> = trace.lines().filter(makes).collect();
        assert!(made.len() >= 5, "{trace}");
        for line in made {
            // Others cannot open a file without a name. Names in the tree have no digits.
            let is_unnamed = line.contains("O_TMPFILE");
            assert!(is_unnamed || ["0600", "0700"].iter().any(|mode| line.contains(mode)), "{options:?}: {line}");
        }
        assert_nothing_is_set_after_the_link(&trace);
        fs::remove_dir_all(path("target/open/below")).unwrap();
    }
}

/// Fails if owner, mode or ACL of an unnamed file are set after it got its name.
fn assert_nothing_is_set_after_the_link(trace: &str) {
    let mut linked = HashSet::new();
    for line in trace.lines() {
        let descriptor_of =
            |call: &str| line.split_once(&format!(" {call}(")).and_then(|(_, rest)| rest.split_once(','));
        if let Some((file, _)) = descriptor_of("linkat") {
            linked.insert(file);
        }
        // A later file may get the same descriptor.
        if let Some((_, opened)) = line.rsplit_once(" = ").filter(|_| line.contains("openat")) {
            linked.remove(opened);
        }
        for call in ["fchown", "fchmod", "fsetxattr"] {
            let set = descriptor_of(call).is_some_and(|(file, _)| linked.contains(file));
            assert!(!set, "{line}\n{trace}");
        }
    }
    assert!(trace.contains(" linkat("), "{trace}");
}

/// Symptom: if an ACL could not be kept, the copy's mode had the ACL's mask as its group bits, so
/// that the group could read a copy of a file that it may not read.
#[test]
fn a_list_that_is_lost_leaves_nobody_more_rights() {
    let Some(mount) = Mount::or_skip(Kind::Ext4) else { return };
    let point = mount.path().join("ramfs");
    fs::create_dir(&point).unwrap();
    // ramfs has no lists.
    let mounted = Command::new("mount").args(["-t", "ramfs", "none"]).arg(&point).output().unwrap();
    let mounted = if mounted.status.success() { Ok(()) } else { Err(said(&mounted)) };
    if or_skip("ramfs", mounted).is_none() {
        return;
    }
    let source = mount.path().join("source");
    fs::create_dir(&source).unwrap();
    let lists = [
        ("masked", LIST, 0o600),
        ("denied", "u::rw-,u:1000:---,g::r--,m::r--,o::r--", 0o600),
        ("wider", "u::rwx,u:1000:rwx,g::r-x,m::rwx,o::r--", 0o754),
        ("group", "u::rw-,g:1000:r--,g::rw-,m::r--,o::---", 0o640),
    ];
    for (name, list, _) in lists {
        fs::write(source.join(name), name).unwrap();
        expect(0, Command::new("setfacl").args(["--set", list]).arg(source.join(name)));
    }
    let output = nowait_copy().args([&source, &point.join("copy")]).output().unwrap();
    let modes = lists.map(|(name, ..)| mode(&point.join("copy").join(name)));
    expect(0, Command::new("umount").arg(&point));
    assert_eq!(output.status.code(), Some(SOME_NOT), "{}", said(&output));
    assert_eq!(modes, lists.map(|(.., expected)| expected), "{}", said(&output));
}

/// Symptom: on btrfs and tmpfs another user could open a file, or a directory, that its ACL denies
/// them, while the ACL was set: these file systems set the mode before they store the ACL.
#[test]
fn a_user_whom_an_acl_denies_cannot_open_a_copy_while_the_acl_is_set() {
    const COPIES: usize = 40;
    let is_root = if child::is_root() { Ok(()) } else { Err("becoming another user needs root".to_owned()) };
    if or_skip("another user", is_root).is_none() {
        return;
    }
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Tmpfs, Kind::Overlay] {
        let Some(mount) = Mount::or_skip(kind) else { continue };
        let path = |name: &str| mount.path().join(name);
        fs::create_dir(path("directory")).unwrap();
        fs::write(path("file"), "secret").unwrap();
        for source in ["directory", "file"] {
            let list = if source == "file" {
                "u::rw-,u:65534:---,g::r--,m::r--,o::r--"
            } else {
                "u::rwx,u:65534:---,g::r-x,m::r-x,o::r-x"
            };
            expect(0, Command::new("setfacl").args(["--set", list]).arg(path(source)));
            let copy = || expect(COPIED, nowait_copy().args(["--resume", "-T"]).args([path(source), path("target")]));
            let remove_list = || rustix::fs::removexattr(path("target"), "system.posix_acl_access").unwrap();
            let set_mode = |mode| fs::set_permissions(path("target"), fs::Permissions::from_mode(mode)).unwrap();
            copy();
            let root = File::open(mount.path()).unwrap();
            let (opened, has_ended) = (AtomicU64::new(0), AtomicBool::new(false));
            thread::scope(|scope| {
                scope.spawn(|| {
                    become_another_user_of_roots_group();
                    while !has_ended.load(Relaxed) {
                        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
                        let is_open = openat(&root, "target", flags, rustix::fs::Mode::empty()).is_ok();
                        opened.fetch_add(u64::from(is_open), Relaxed);
                    }
                });
                let _ends = Ends(&has_ended);
                for _ in 0..COPIES {
                    // The name and the contents stay: only owner, mode and ACL are copied again.
                    set_mode(0o700);
                    remove_list();
                    copy();
                    assert_eq!(access_list(&path(source)), access_list(&path("target")), "{kind:?}, {source}");
                }
                assert_eq!(opened.load(Relaxed), 0, "{kind:?}: another user opened the {source}");
                remove_list();
                set_mode(0o755);
                eventually("the other user opens what all may open", || (opened.load(Relaxed) > 0).then_some(()));
            });
            _ = (fs::remove_dir(path("target")), fs::remove_file(path("target")));
        }
    }
}

/// Symptom: a FIFO or a device in a directory whose new entries inherit a list kept that list.
#[test]
fn nothing_keeps_a_list_that_it_inherits() {
    if !can_check() {
        return;
    }
    let dir = directory();
    let path = |name: &str| dir.path().join(name);
    fs::create_dir_all(path("source/sub")).unwrap();
    fs::write(path("source/file"), "x").unwrap();
    expect(0, Command::new("mkfifo").args(["-m", "660"]).arg(path("source/fifo")));
    if child::is_root() {
        expect(0, Command::new("mknod").arg(path("source/device")).args(["c", "1", "3"]));
    }
    copying::torture::age(&path("source"));
    fs::create_dir(path("target")).unwrap();
    set_list(&path("target"), "d:u:1000:rwx,d:g::rwx,d:o::rwx");
    expect(COPIED, nowait_copy().args(["-T", "source", "target"]).current_dir(dir.path()));
    assert_same(&path("source"), &path("target"));
}

/// Symptom: files that a closed directory of the source hides could be read in a directory of the
/// target that was there and open, until its mode was set at the end.
#[test]
fn a_directory_that_is_there_is_closed_before_it_is_filled() {
    let dir = directory();
    let path = |name: &str| dir.path().join(name);
    for (name, list, expected) in [("mode", None, 0o700), ("list", Some("u:1000:rx,g::---,m::rx,o::---"), 0o700)] {
        let _ = (fs::remove_dir_all(path("source")), fs::remove_dir_all(path("target")));
        fs::create_dir(path("source")).unwrap();
        fs::write(path("source/file"), noise(1, 900 << 10)).unwrap();
        fs::set_permissions(path("source"), fs::Permissions::from_mode(0o700)).unwrap();
        list.iter().for_each(|list| set_list(&path("source"), list));
        fs::create_dir(path("target")).unwrap();
        fs::write(path("target/file"), "old").unwrap();
        let copy = start(dir.path(), &["-T"]);
        eventually("a staged file", || staged(&path("target")));
        let found = mode(&path("target"));
        kill(copy);
        assert_eq!(found, expected, "{name}");
    }
}

/// A file of another user's, with rights for others than its owner: until its owner is right, only who
/// copies it may read it.
#[test]
fn a_file_of_another_user_is_given_away_before_it_is_opened_to_others() {
    let Some(nobody) = Nobody::or_skip() else { return };
    let dir = nobody.dir();
    let source = dir.join("source");
    fs::write(&source, noise(1, 900 << 10)).unwrap();
    std::os::unix::fs::chown(&source, Some(1234), Some(copying::NOBODY)).unwrap();
    fs::set_permissions(&source, fs::Permissions::from_mode(0o4770)).unwrap();
    fs::write(dir.join("target"), "old").unwrap();
    let copy = start(&dir, &[]);
    let path = eventually("a staged file", || staged(&dir));
    let stat = File::open(&path).unwrap().metadata().unwrap();
    kill(copy);
    assert_eq!((stat.uid(), stat.mode() & 0o7777), (0, 0o600));
    expect(COPIED, nowait_copy().args(["source", "target"]).current_dir(&dir));
    let stat = fs::metadata(dir.join("target")).unwrap();
    assert_eq!((stat.uid(), stat.gid(), stat.mode() & 0o7777), (1234, copying::NOBODY, 0o4770));
}
