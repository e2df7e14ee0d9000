//! `nowait copy` under interruptions, for a set time. Each round copies a tree of difficult entries
//! to a file system that its seed chooses. It ends copies at random moments and resumes them until
//! one completes, then compares the copy with one by `cp -a`. Throughout, another user tries to read
//! files that the source denies that user.
//!
//! Ignored by default, since its duration is set by the clock:
//!
//!     NOWAIT_SOAK_SECONDS=120 cargo test --release -p nowait-cli --test copy_soak -- --ignored --nocapture
//!
//! `NOWAIT_SOAK_SECONDS`: time in which new rounds begin (default 60). `NOWAIT_TEST_SEED`: seed of
//! the first round. Each round prints its seed; to repeat a round, pass its seed.

mod copying;

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use copying::mounts::{Kind, Mount, or_skip};
use copying::rng::Rng;
use copying::{
    COPIED, Ends, INTERRUPTED, assert_same_across, become_another_user_of_roots_group, can_check, child, count_from,
    expect, names, noise, nowait_copy, said, torture, words_as_command,
};
use rustix::fs::{Dir, Mode, OFlags, openat};
use rustix::process::{Pid, Signal, kill_process};

const SECONDS: usize = 60;
/// Maximum number of copies that a round interrupts.
const ENDS_MAX: usize = 4;

/// Options that change how data and names are written.
const WAYS: [&[&str]; 9] = [
    &[],
    &["--sync=file"],
    &["--sync=all"],
    &["--cache-neutral"],
    &["--reflink=never", "--jobs=1"],
    &["--resume"],
    &["--resume", "--cache-neutral"],
    &["--verify"],
    &["--update"],
];

const SECRET: &[u8] = b"SECRET";
const PUBLIC: &[u8] = b"PUBLIC";
/// Directory of the tree with the files that the other user may not read.
const SECRETS: &str = "secrets";

/// Makes files that another user of root's group may not read, for several reasons, and a public
/// file.
fn secrets(dir: &Path) {
    fs::create_dir(dir).unwrap();
    let closed = dir.join("closed");
    fs::create_dir(&closed).unwrap();
    for number in 0..30_usize {
        // A short file that replaces another is staged under a temporary name. `--resume` keeps the
        // part of a long one.
        let len = if number < 5 { 9 << 20 } else { [100, 20_000, 900_000][number % 3] };
        let (dir, list, mode) = match number % 5 {
            // The mode's group bits are the mask of the ACL.
            0 => (dir, Some("u::rw-,u:1000:r--,g::---,m::r--,o::---"), 0o640),
            1 => (dir, Some("u::rw-,u:65534:---,g::r--,m::r--,o::r--"), 0o644),
            2 => (dir, None, 0o600),
            3 => (dir, None, 0o000),
            _ => (&*closed, None, 0o666),
        };
        let path = dir.join(format!("{number}"));
        fs::write(&path, [SECRET, &noise(number as u64, len)].concat()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        list.iter().for_each(|list| _ = expect(0, Command::new("setfacl").args(["--set", list]).arg(&path)));
    }
    fs::write(dir.join("public"), PUBLIC).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
}

/// Secrets that the other user read, and counts of its attempts.
#[derive(Default)]
struct Spied {
    secrets: Mutex<Vec<String>>,
    public: AtomicU64,
    tries: AtomicU64,
    has_ended: AtomicBool,
}

/// Reads every file that it can open below these directories, as another user of root's group.
fn spy(roots: &[&File], spied: &Spied) {
    become_another_user_of_roots_group();
    while !spied.has_ended.load(Relaxed) {
        for root in roots {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            if let Ok(target) = openat(root, format!("target/{SECRETS}"), flags, Mode::empty()) {
                look_into(target.as_fd(), spied);
            }
        }
    }
}

fn look_into(dir: BorrowedFd<'_>, spied: &Spied) {
    let Ok(entries) = Dir::read_from(dir) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_name() != c"." && entry.file_name() != c"..") {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        spied.tries.fetch_add(1, Relaxed);
        let Ok(opened) = openat(dir, entry.file_name(), flags, Mode::empty()) else { continue };
        if entry.file_type().is_dir() {
            look_into(opened.as_fd(), spied);
            continue;
        }
        let mut bytes = [0; 6];
        match rustix::io::pread(&opened, &mut bytes, 0) {
            Ok(_) if bytes == SECRET => {
                let stat = rustix::fs::fstat(&opened).unwrap();
                let name = entry.file_name().to_string_lossy();
                spied.secrets.lock().unwrap().push(format!("{name}, mode {:o}", stat.st_mode & 0o7777));
            }
            Ok(_) if bytes == PUBLIC => _ = spied.public.fetch_add(1, Relaxed),
            _ => {}
        }
    }
}

/// A file system to copy to.
struct Place {
    kind: Kind,
    mount: Mount,
    root: File,
    /// Duration of a copy without interruption.
    whole: Duration,
}

impl Place {
    fn new(kind: Kind, source: &Path) -> Option<Place> {
        let mount = Mount::or_skip(kind)?;
        let root = File::open(mount.path()).unwrap();
        let place = Place { kind, mount, root, whole: Duration::ZERO };
        expect(COPIED, words_as_command("cp -a").args([source, &place.reference()]));
        let began = Instant::now();
        expect(COPIED, &mut place.copy(source, &[]));
        let whole = began.elapsed();
        fs::remove_dir_all(place.target()).unwrap();
        Some(Place { whole, ..place })
    }

    /// Copy by `cp -a`: the metadata that this file system can keep.
    fn reference(&self) -> PathBuf {
        self.mount.path().join("reference")
    }

    fn target(&self) -> PathBuf {
        self.mount.path().join("target")
    }

    fn copy(&self, source: &Path, options: &[&str]) -> Command {
        let mut command = nowait_copy();
        command.args(options).arg("-T").args([source, &self.target()]).stdout(Stdio::null());
        command
    }

    /// Removes files that killed copies left; returns whether it found any.
    fn remove_left(&self) -> bool {
        let pattern = ["-name", ".nowait-copy-*", "-o", "-name", ".*.nowait-part", "-o", "-name", ".*.nowait-journal"];
        let mut find = Command::new("find");
        let found =
            find.arg(self.target()).args(["("]).args(pattern).args([")", "-print", "-delete"]).output().unwrap();
        assert!(found.status.success(), "{}", said(&found));
        !found.stdout.is_empty()
    }

    fn round(&self, source: &Path, rng: &mut Rng) {
        let sizes = self.target().join("sizes");
        // Files that replace others are staged under names, which the other user can try to open.
        fs::create_dir(self.target()).unwrap();
        for _ in 0..3 {
            let mut copy = nowait_copy();
            copy.args(WAYS[rng.below(WAYS.len())]).args(["--bwlimit=40M", "-T"]).arg(source.join(SECRETS));
            expect(COPIED, copy.arg(self.target().join(SECRETS)));
        }
        if rng.below(2) == 0 {
            // Half of the files exist with older contents.
            fs::create_dir_all(&sizes).unwrap();
            for name in names(&source.join("sizes")).iter().step_by(2) {
                fs::write(sizes.join(name), "old").unwrap();
                let long_ago = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(900_000_000);
                File::options().write(true).open(sizes.join(name)).unwrap().set_modified(long_ago).unwrap();
            }
        }
        for _ in 0..rng.below(ENDS_MAX + 1) {
            let options = WAYS[rng.below(WAYS.len())];
            let after = Duration::from_micros(rng.below(self.whole.as_micros() as usize * 11 / 10 + 1) as u64);
            let signal = [Signal::KILL, Signal::KILL, Signal::INT, Signal::TERM][rng.below(4)];
            let about = format!("{:?}, {options:?}, {signal:?} after {after:?} of {:?}", self.kind, self.whole);
            let child = self.copy(source, options).stderr(Stdio::piped()).spawn().unwrap();
            thread::sleep(after);
            kill_process(Pid::from_child(&child), signal).unwrap();
            let output = child.wait_with_output().unwrap();
            // None if a signal ended it: SIGKILL, or one that arrived before its handler was set.
            assert!(
                [None, Some(COPIED), Some(INTERRUPTED)].contains(&output.status.code()),
                "{about}: {}",
                said(&output)
            );
            for name in names(&source.join("sizes")) {
                let Ok(bytes) = fs::read(sizes.join(&name)) else { continue };
                let is_whole = bytes == b"old" || bytes == fs::read(source.join("sizes").join(&name)).unwrap();
                assert!(is_whole, "{about}: {name} is neither old nor new");
            }
        }
        let verify: &[&str] = if rng.below(3) == 0 { &["--verify"] } else { &[] };
        expect(COPIED, self.copy(source, &["--resume"]).args(verify));
        if self.remove_left() {
            // Removing files changes the times of their directories.
            expect(COPIED, &mut self.copy(source, &["--resume"]));
        }
        assert_same_across(&self.reference(), &self.target());
        fs::remove_dir_all(self.target()).unwrap();
    }
}

#[test]
#[ignore = "ends by the clock: NOWAIT_SOAK_SECONDS"]
fn copies_are_whole_and_private_however_often_they_are_ended() {
    let is_root = if child::is_root() { Ok(()) } else { Err("other users and mounts need root".to_owned()) };
    if or_skip("root", is_root).is_none() || !can_check() {
        return;
    }
    let Some(origin) = Mount::or_skip(Kind::Ext4) else { return };
    let source = origin.path().join("source");
    fs::create_dir(&source).unwrap();
    torture::make(&source);
    secrets(&source.join(SECRETS));
    torture::age(&source);
    let kinds = [Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Tmpfs, Kind::Overlay];
    let places: Vec<Place> = kinds.into_iter().filter_map(|kind| Place::new(kind, &source)).collect();
    assert!(!places.is_empty());
    let roots: Vec<&File> = places.iter().map(|place| &place.root).collect();
    let (spied, mut seeds) = (Spied::default(), Rng::for_test());
    let seconds = count_from("NOWAIT_SOAK_SECONDS", SECONDS);
    let (began, mut rounds) = (Instant::now(), 0_u64);
    let mut seed = match std::env::var("NOWAIT_TEST_SEED") {
        Ok(text) => text.parse().unwrap(),
        Err(_) => seeds.next(),
    };
    thread::scope(|scope| {
        scope.spawn(|| spy(&roots, &spied));
        let _ends = Ends(&spied.has_ended);
        while rounds == 0 || began.elapsed() < Duration::from_secs(seconds as u64) {
            eprintln!("round {rounds}: NOWAIT_TEST_SEED={seed}");
            let mut rng = Rng::new(seed);
            let place = &places[rng.below(places.len())];
            place.round(&source, &mut rng);
            let read = spied.secrets.lock().unwrap();
            assert!(read.is_empty(), "{:?}: another user read {read:?}", place.kind);
            drop(read);
            rounds += 1;
            seed = seeds.next();
        }
    });
    let (tries, public) = (spied.tries.load(Relaxed), spied.public.load(Relaxed));
    assert!(public > 0, "the other user did not read the public file either, in {tries} tries");
    eprintln!("{rounds} rounds; another user tried {tries} times, and read the public file {public} times");
}
