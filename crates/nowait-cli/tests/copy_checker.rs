//! The checker of copies finds what other tools lose; a checker that finds nothing proves nothing.

mod copying;

use std::fs;
use std::path::Path;
use std::process::Command;

use copying::mounts::{Kind, Mount};
use copying::{assert_same, can_check, differences, expect, torture, words_as_command};

/// A file system with the tree in it, as `source`; if it can be made and checked here.
fn tortured() -> Option<Mount> {
    let mount = Mount::or_skip(Kind::Ext4)?;
    if !can_check() {
        return None;
    }
    let source = mount.path().join("source");
    fs::create_dir(&source).unwrap();
    torture::make(&source);
    Some(mount)
}

fn shell(dir: &Path, script: &str) {
    expect(0, Command::new("sh").args(["-e", "-c", script]).current_dir(dir));
}

fn found_after(dir: &Path, script: &str) -> String {
    shell(dir, script);
    let found = differences(&dir.join("source"), &dir.join("target"));
    shell(dir, "rm -rf target");
    found
}

#[test]
fn a_copy_by_cp_a_is_the_same() {
    let Some(dir) = tortured() else { return };
    expect(0, words_as_command("cp -a source target").current_dir(dir.path()));
    assert_same(&dir.path().join("source"), &dir.path().join("target"));
}

#[test]
fn what_other_tools_lose_is_found() {
    let Some(dir) = tortured() else { return };
    // Devices and FIFOs come with -r; times, owners, links and attributes do not.
    let found = found_after(dir.path(), "cp -r source target");
    for lost in ["modified", "xattr", "acl", "owner 1", "links 1"] {
        assert!(found.contains(lost), "{lost}: {found}");
    }
    let found =
        found_after(dir.path(), "mkdir target; tar -c --sparse -C source . | tar -xp --atime-preserve -C target");
    assert!(found.contains("xattr"), "{found}");
    let filled = "cp -a source target; cp -a --sparse=never 'source/holes/comb' target/holes/comb";
    let found = found_after(dir.path(), filled);
    assert!(found.contains("data:") && found.contains("extents:"), "{found}");
}

/// All at once, as each says its own file's name.
#[test]
fn each_kind_of_change_is_found() {
    let Some(dir) = tortured() else { return };
    let changes = [
        ("printf x | dd of=sizes/4194304 bs=1 seek=4194000 conv=notrunc status=none", "> ./sizes/4194304 bytes:"),
        ("truncate -s 1048575 sizes/1048576", "> ./sizes/1048576 inode: * size 1048575"),
        ("chmod 755 'modes/file 4755'", r"> ./modes/file\ 4755 inode: kind f, mode 755"),
        ("chown 0 'modes/file 755'", r"> ./modes/file\ 755 inode: kind f, mode 755, owner 0:"),
        ("chown -h 5:6 'links/to nothing'", r"> ./links/to\ nothing inode: * owner 5:6"),
        ("touch -m sizes", "> ./sizes inode: * modified"),
        ("touch -a -h links/up", "> ./links/up inode: * accessed"),
        ("setfattr -x 'user.number 7' attributes/many", "< ./attributes/many xattr: user.number 7"),
        ("setfattr -x user.empty 'attributes/without a value'", r"< ./attributes/without a value xattr: user.empty"),
        ("setfacl -x u:1001 attributes/list", "< ./attributes/list acl: user:1001"),
        (
            "setfacl -k 'attributes/with a list for new files'",
            r"< ./attributes/with a list for new files acl: default:",
        ),
        (
            "setfattr -x security.capability attributes/capability",
            "< ./attributes/capability xattr: security.capability",
        ),
        (
            "cp -a 'links/one of three' x; mv x 'links/another of three'",
            r"> ./links/far/away/third\ of\ three inode: * links 2",
        ),
        ("ln -sfn elsewhere links/ping", "> ./links/ping inode: * target elsewhere"),
        ("fallocate -p -o 0 -l 65536 sizes/zeros", "> ./sizes/zeros extents: 65536-1048576"),
        ("fallocate -o 0 -l 2097152 'holes/at its end'", r"./holes/at\ its\ end takes"),
        (
            "dd if=/dev/zero of='holes/at its start' bs=64K count=1 conv=notrunc status=none",
            r"> ./holes/at\ its\ start data: 0-65536 ",
        ),
        ("rm special/fifo", "< ./special/fifo inode:"),
        (
            "rm 'special/block device'; mknod 'special/block device' b 1 2",
            r"> ./special/block\ device inode: * device 1:2",
        ),
        ("rmdir empty", "< ./empty inode:"),
        ("touch new", "> ./new inode:"),
    ];
    let all = changes.map(|(change, _)| change).join("\n");
    let found = found_after(dir.path(), &format!("cp -a source target; cd target\n{all}"));
    for (change, expected) in changes {
        let (start, then) = expected.split_once(" * ").unwrap_or((expected, ""));
        let tells = |line: &str| line.starts_with(start) && line.contains(then);
        assert!(found.lines().any(tells), "{change}: no {expected:?} in:\n{found}");
    }
}
