//! `nowait copy` of files that others write to, cut or remove meanwhile: that is told, and the others
//! are copied.

mod copying;

use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use copying::{SOME_NOT, directory, eventually, names, noise, nowait_copy};

/// Copies large files slowly while `meanwhile` works on them; returns what was said, and its code.
fn changed_meanwhile(dir: &Path, meanwhile: impl Fn(&Path) + Send + Sync) -> (Option<i32>, String) {
    let source = dir.join("source");
    fs::create_dir(&source).unwrap();
    for name in ["first", "second", "third"] {
        fs::write(source.join(name), noise(name.len() as u64, 6 << 20)).unwrap();
    }
    let ended = AtomicBool::new(false);
    let output = thread::scope(|scope| {
        scope.spawn(|| {
            let started = Instant::now();
            while !ended.load(Ordering::Relaxed) && started.elapsed() < Duration::from_secs(60) {
                meanwhile(&source);
                thread::sleep(Duration::from_millis(20));
            }
        });
        let output = nowait_copy().args(["--bwlimit=2M", "--jobs=1", "source", "target"]).current_dir(dir).output();
        ended.store(true, Ordering::Relaxed);
        output.unwrap()
    });
    (output.status.code(), copying::said(&output))
}

fn names_the_second(said: &str) -> bool {
    said.lines().any(|line| line.contains("second") && line.contains("; "))
}

#[test]
fn a_file_that_grows_is_told() {
    let dir = directory();
    let (code, said) = changed_meanwhile(dir.path(), |source| {
        use std::io::Write;
        File::options().append(true).open(source.join("second")).unwrap().write_all(b"more").unwrap();
    });
    assert!(names_the_second(&said), "{said}");
    assert_eq!(code, Some(SOME_NOT), "{said}");
    for name in ["first", "third"] {
        assert!(fs::read(dir.path().join("target").join(name)).unwrap() == noise(name.len() as u64, 6 << 20));
    }
    // What was there at the beginning is there.
    let copied = fs::read(dir.path().join("target/second")).unwrap();
    assert!(copied[..6 << 20] == noise(6, 6 << 20), "{said}");
}

#[test]
fn a_file_that_shrinks_is_told() {
    let dir = directory();
    let (code, said) = changed_meanwhile(dir.path(), |source| {
        let file = File::options().write(true).open(source.join("second")).unwrap();
        let len = file.metadata().unwrap().len();
        file.set_len(len.saturating_sub(100)).unwrap();
    });
    assert!(names_the_second(&said), "{said}");
    assert_eq!(code, Some(SOME_NOT), "{said}");
    for name in ["first", "third"] {
        assert!(fs::read(dir.path().join("target").join(name)).unwrap() == noise(name.len() as u64, 6 << 20));
    }
    assert_eq!(names(&dir.path().join("target")).iter().filter(|name| name.starts_with('.')).count(), 0);
}

#[test]
fn a_file_written_in_place_is_told() {
    let dir = directory();
    let (code, said) = changed_meanwhile(dir.path(), |source| {
        use std::os::unix::fs::FileExt;
        File::options().write(true).open(source.join("second")).unwrap().write_all_at(b"other", 1000).unwrap();
    });
    assert!(names_the_second(&said), "{said}");
    assert_eq!(code, Some(SOME_NOT), "{said}");
}

#[test]
fn a_file_that_vanishes_is_told_and_the_others_copied() {
    let dir = directory();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    // Files that are listed long before their turn comes.
    for number in 0..40 {
        fs::write(source.join(format!("file {number:02}")), noise(number, 256 << 10)).unwrap();
    }
    let child = nowait_copy()
        .args(["--bwlimit=512K", "--jobs=1", "source", "target"])
        .current_dir(dir.path())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let target = dir.path().join("target");
    eventually("a file", || (target.is_dir() && !names(&target).is_empty()).then_some(()));
    let gone: Vec<String> = names(&source).into_iter().filter(|name| !target.join(name).exists()).collect();
    assert!(gone.len() > 2, "it was not slowed down");
    // The last of them, whatever the order: none is being read now but one.
    gone.iter().skip(2).for_each(|name| fs::remove_file(source.join(name)).unwrap());
    let output = child.wait_with_output().unwrap();
    let said = copying::said(&output);
    assert_eq!(output.status.code(), Some(SOME_NOT), "{said}");
    for name in names(&source) {
        assert_eq!(fs::read(target.join(&name)).unwrap(), fs::read(source.join(&name)).unwrap(), "{name}");
    }
    for name in gone.iter().skip(2).filter(|name| !target.join(name).exists()) {
        assert!(said.lines().any(|line| line.contains(name.as_str()) && line.contains("; ")), "{name}: {said}");
    }
}
