//! `nowait copy` where something is missing: descriptors, `/proc`, the right to write to a file, a
//! size that is true; and of a file that is larger than all disks.

mod copying;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use copying::mounts::or_skip;
use copying::{
    COPIED, NOBODY, NOTHING, Nobody, SOME_NOT, child, contents, directory, expect, names, noise, nowait_copy, said,
};

#[test]
fn few_descriptors_are_told_and_nothing_is_half() {
    let dir = directory();
    let source = dir.path().join("source");
    let deepest = source.join("a/b/c/d/e/f/g/h");
    fs::create_dir_all(&deepest).unwrap();
    for number in 0..20 {
        fs::write(source.join(format!("{number}")), noise(number, 100_000)).unwrap();
    }
    fs::write(source.join("large"), noise(99, 9 << 20)).unwrap();
    fs::write(deepest.join("deepest"), "deepest").unwrap();
    let expected = contents(&source);
    for (limit, options) in
        [(10, &[][..]), (16, &[]), (16, &["--cache-neutral"]), (20, &["--resume"]), (64, &["--verify"])]
    {
        let copy = nowait_copy();
        let output = Command::new("bash")
            .args(["-c", &format!("ulimit -Sn {limit}; ulimit -Hn {limit}; exec \"$@\""), "bash"])
            .arg(copy.get_program())
            .args(copy.get_args())
            .args(options)
            .args(["source", "target"])
            .current_dir(dir.path())
            .output()
            .unwrap();
        let text = said(&output);
        let code = output.status.code();
        assert!([Some(COPIED), Some(SOME_NOT), Some(NOTHING)].contains(&code), "{limit}, {options:?}: {text}");
        assert!(!text.contains("panicked"), "{limit}, {options:?}: {text}");
        let target = dir.path().join("target");
        let copied = if target.exists() { contents(&target) } else { BTreeMap::new() };
        for (path, bytes) in &copied {
            let is_kept = path.to_string_lossy().contains(".nowait-");
            assert!(is_kept && options == ["--resume"] || expected.get(path) == Some(bytes), "{limit}: {path:?}");
        }
        if code == Some(COPIED) {
            assert!(copied == expected, "{limit}, {options:?}: not all was copied, and nothing was said");
        } else {
            assert!(text.contains("ulimit -n"), "{limit}, {options:?}: {text}");
        }
        assert!(limit < 64 || code == Some(COPIED), "{limit}: {text}");
        let _ = fs::remove_dir_all(&target);
    }
}

/// Symptom: a file that its owner may not write to was copied through the page cache after all.
#[test]
fn a_read_only_file_of_ones_own_is_copied_past_the_page_cache() {
    let Some(nobody) = Nobody::or_skip() else { return };
    let dir = nobody.dir();
    let ways = [0o644, 0o444].map(|mode| {
        fs::write(dir.join("source"), noise(1, 9 << 20)).unwrap();
        std::os::unix::fs::chown(dir.join("source"), Some(NOBODY), Some(NOBODY)).unwrap();
        fs::set_permissions(dir.join("source"), fs::Permissions::from_mode(mode)).unwrap();
        let mut command = nobody.copy();
        let output = command.args(["-v", "--cache-neutral", "source", "copy"]).current_dir(&dir).output().unwrap();
        assert_eq!(output.status.code(), Some(COPIED), "{}", said(&output));
        assert_eq!(fs::metadata(dir.join("copy")).unwrap().mode() & 0o7777, mode);
        fs::remove_file(dir.join("copy")).unwrap();
        String::from_utf8(output.stdout).unwrap()
    });
    assert_eq!(ways[0], ways[1]);
}

/// Files of `/proc` and `/sys` have a size of zero, or of a page.
#[test]
fn files_of_the_kernel_are_copied_to_their_end() {
    let dir = directory();
    let sources =
        ["/proc/version", "/proc/cpuinfo", "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/kernel/notes"];
    for source in sources.iter().filter(|source| Path::new(source).exists()) {
        for options in [&[][..], &["--cache-neutral"], &["--verify"], &["--resume"], &["--sparse=always"]] {
            let target = dir.path().join("target");
            expect(COPIED, nowait_copy().args(options).arg(source).arg(&target));
            let (copy, file) = (fs::read(&target).unwrap(), fs::read(source).unwrap());
            // Frequencies of processors change.
            let is_same = if source.contains("cpuinfo") { copy.len().abs_diff(file.len()) < 200 } else { copy == file };
            assert!(is_same, "{source}, {options:?}: {} of {} bytes", copy.len(), file.len());
        }
    }
}

/// Symptom: the holes of a file larger than any disk here were read, or written.
#[test]
fn a_file_of_terabytes_of_holes_takes_no_time() {
    let dir = directory();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    let (size, places) = (4_u64 << 40, [0, 1 << 40, (4 << 40) - 5000]);
    let file = File::create(&source).unwrap();
    file.set_len(size).unwrap();
    for place in places {
        file.write_all_at(&noise(place + 1, 5000), place).unwrap();
    }
    // The second run compares.
    for options in [
        &[][..],
        &["--reflink=never"],
        &["--cache-neutral"],
        &["--verify"],
        &["--sparse=always"],
        &["--resume"],
        &["--resume"],
    ] {
        let began = Instant::now();
        expect(COPIED, nowait_copy().args(options).args([&source, &target]));
        // To read them takes longer on any machine.
        let took = began.elapsed();
        assert!(took < Duration::from_secs(300), "{options:?}: {took:?}");
        let (copy, stat) = (File::open(&target).unwrap(), fs::metadata(&target).unwrap());
        assert!(stat.len() == size && stat.blocks() * 512 < 1 << 20, "{options:?}: {} blocks", stat.blocks());
        for place in places {
            let mut bytes = [0; 5000];
            copy.read_exact_at(&mut bytes, place).unwrap();
            assert!(bytes == noise(place + 1, 5000)[..], "{options:?}: at {place}");
        }
    }
}

/// A small container, or a chroot.
#[test]
fn a_copy_needs_no_proc() {
    let without = "mount -t tmpfs none /proc && exec \"$@\"";
    let made = match child::is_root() {
        true => Command::new("unshare").args(["-m", "sh", "-c", without, "sh", "true"]).output(),
        false => return eprintln!("skipped: a mount namespace needs root"),
    };
    let made = made.map_err(|error| error.to_string()).and_then(|output| match output.status.success() {
        true => Ok(()),
        false => Err(said(&output)),
    });
    if or_skip("a mount namespace", made).is_none() {
        return;
    }
    let Some(nobody) = Nobody::or_skip() else { return };
    let dir = nobody.dir();
    fs::create_dir(dir.join("source")).unwrap();
    for (name, len) in [("short", 1000), ("long", 9 << 20)] {
        fs::write(dir.join("source").join(name), noise(len as u64, len)).unwrap();
    }
    symlink("short", dir.join("source/link")).unwrap();
    expect(0, Command::new("mkfifo").arg(dir.join("source/fifo")));
    let copied = |copy: &Command, options: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", without, "sh"]).arg(copy.get_program()).args(copy.get_args());
        command.args(options).args(["-T", "source", "target"]).current_dir(&dir).output().unwrap()
    };
    for options in [&[][..], &["--cache-neutral"], &["--resume"]] {
        for is_root in [true, false] {
            let copy = if is_root { nowait_copy() } else { nobody.copy() };
            for round in 0..2 {
                let output = copied(&copy, options);
                let text = said(&output);
                let about = format!("{options:?}, root: {is_root}, round {round}: {text}");
                assert!([Some(COPIED), Some(SOME_NOT)].contains(&output.status.code()), "{about}");
                for (name, len) in [("short", 1000), ("long", 9 << 20)] {
                    assert!(fs::read(dir.join("target").join(name)).unwrap() == noise(len as u64, len), "{about}");
                }
                assert_eq!(names(&dir.join("target")), ["fifo", "link", "long", "short"], "{about}");
            }
            fs::remove_dir_all(dir.join("target")).unwrap();
        }
    }
    let text = said(&copied(&nowait_copy(), &["--verify"]));
    assert!(text.lines().any(|line| line.contains("target/long") && line.contains("mount /proc")), "{text}");
    assert_eq!(names(&dir.join("target")), ["fifo", "link"], "{text}");
}
