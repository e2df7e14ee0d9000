//! `nowait copy` on a tree of all that copies get wrong, compared with its source, and with the
//! copy that `cp -a` makes, by a script that shares no code with it.

mod copying;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use copying::mounts::{Kind, Mount};
use copying::{assert_same, assert_same_across, can_check, copy, expect, torture, words_as_command};

/// `command source target` for directories in `dir`, by short names: the tree's paths are long.
fn copied(dir: &Path, mut command: Command, target: &str) -> PathBuf {
    expect(0, command.args(["source", target]).current_dir(dir));
    dir.join(target)
}

fn tortured(dir: &Path) -> PathBuf {
    let source = dir.join("source");
    fs::create_dir(&source).unwrap();
    torture::make(&source);
    source
}

/// Copies within a file system: the copy is as the source, and as that of `cp -a`.
fn keeps_all(kind: Kind) {
    let Some(mount) = Mount::or_skip(kind) else { return };
    if !can_check() {
        return;
    }
    let dir = mount.path();
    let source = tortured(dir);
    let reference = copied(dir, words_as_command("cp -a"), "reference");
    assert_same(&source, &reference);
    let target = copied(dir, copy(), "target");
    assert_same(&reference, &target);
    assert_same(&source, &target);
}

mod within {
    use super::{Kind, keeps_all};

    #[test]
    fn ext4() {
        keeps_all(Kind::Ext4);
    }

    #[test]
    fn xfs() {
        keeps_all(Kind::Xfs);
    }

    #[test]
    fn btrfs() {
        keeps_all(Kind::Btrfs);
    }

    #[test]
    fn tmpfs() {
        keeps_all(Kind::Tmpfs);
    }

    #[test]
    fn overlayfs() {
        keeps_all(Kind::Overlay);
    }
}

/// From ext4 to another file system, where nothing can be cloned.
fn keeps_all_across(kind: Kind) {
    let Some(mount) = Mount::or_skip(kind) else { return };
    if !can_check() {
        return;
    }
    let Some(other) = Mount::or_skip(Kind::Ext4) else { return };
    tortured(other.path());
    for (target, mut command) in [("reference", words_as_command("cp -a")), ("target", copy())] {
        expect(0, command.arg("source").arg(mount.path().join(target)).current_dir(other.path()));
    }
    assert_same_across(&mount.path().join("reference"), &mount.path().join("target"));
}

mod from_ext4_to {
    use super::{Kind, keeps_all_across};

    #[test]
    fn xfs() {
        keeps_all_across(Kind::Xfs);
    }

    #[test]
    fn btrfs() {
        keeps_all_across(Kind::Btrfs);
    }

    #[test]
    fn tmpfs() {
        keeps_all_across(Kind::Tmpfs);
    }
}
