//! `nowait copy` ended at random moments: by SIGKILL, after which no code of its own runs, and by
//! SIGINT, which it hears.
//!
//! `NOWAIT_COPY_KILLS`: number of kills (8 without it); `NOWAIT_TEST_SEED`: when they come.

mod copying;

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use copying::rng::Rng;
use copying::{
    COPIED, INTERRUPTED, assert_same, can_check, copy, count_from, directory, eventually, expect, has_begun, names,
    noise, torture,
};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

const KILLS: usize = 8;
/// Long enough to be hit, with an end within a block.
const BYTES: usize = (48 << 20) + 1234;
const OLD_BYTES: usize = 1 << 20;
/// Bytes of a part, at the rate of an interrupted copy, of which the journal has more than half.
const CLAIMED_BYTES: u64 = 2 << 20;

/// Options that change how bytes and names come to the disk.
const WAYS: [&[&str]; 6] = [
    &[],
    &["--sync=file"],
    &["--cache-neutral"],
    &["--reflink=never"],
    &["--resume"],
    &["--resume", "--cache-neutral"],
];

/// A source and an older file at the target's place, alone in their directory.
struct Place {
    dir: tempfile::TempDir,
    old: Vec<u8>,
    new: Vec<u8>,
}

impl Place {
    fn new() -> Self {
        let place = Self { dir: directory(), old: noise(1, OLD_BYTES), new: noise(2, BYTES) };
        fs::write(place.source(), &place.new).unwrap();
        fs::set_permissions(place.source(), fs::Permissions::from_mode(0o640)).unwrap();
        let years_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_234_567_890);
        fs::File::options().write(true).open(place.source()).unwrap().set_modified(years_ago).unwrap();
        place.put_old_back();
        place
    }

    fn source(&self) -> PathBuf {
        self.dir.path().join("source")
    }

    fn target(&self) -> PathBuf {
        self.dir.path().join("target")
    }

    /// Nothing but the two files, and the target is the old one.
    fn put_old_back(&self) {
        for name in names(self.dir.path()).iter().filter(|name| *name != "source") {
            fs::remove_file(self.dir.path().join(name)).unwrap();
        }
        fs::write(self.target(), &self.old).unwrap();
        fs::set_permissions(self.target(), fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn command(&self, options: &[&str]) -> Command {
        let mut command = copy();
        command.args(options).arg(self.source()).arg(self.target()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Whether the target is the new file; fails the test if it is neither, or new with other
    /// metadata.
    #[track_caller]
    fn is_new(&self, about: &str) -> bool {
        let bytes = fs::read(self.target()).unwrap_or_else(|error| panic!("{about}: the old file is gone: {error}"));
        let metadata = fs::metadata(self.target()).unwrap();
        if bytes == self.old {
            assert_eq!(metadata.mode() & 0o7777, 0o600, "{about}: the old file with another mode");
            return false;
        }
        if bytes != self.new {
            let same = bytes.iter().zip(&self.new).take_while(|(one, other)| one == other).count();
            let len = bytes.len();
            panic!("{about}: neither the old nor the new file: {len} bytes, of which the first {same} are new");
        }
        let source = fs::metadata(self.source()).unwrap();
        let facts =
            |metadata: &fs::Metadata| (metadata.mode(), metadata.mtime(), metadata.mtime_nsec(), metadata.uid());
        assert_eq!(facts(&metadata), facts(&source), "{about}: the new bytes without the new metadata");
        true
    }

    /// What an interrupted copy left of the target for a later one.
    fn part(&self) -> Option<PathBuf> {
        let name = names(self.dir.path()).into_iter().find(|name| name.ends_with(".nowait-part"))?;
        Some(self.dir.path().join(name))
    }

    /// Other names in the directory: the command's temporary files.
    fn others(&self) -> Vec<String> {
        names(self.dir.path()).into_iter().filter(|name| !["source", "target"].contains(&name.as_str())).collect()
    }
}

/// Runs to its end and returns how long that took.
fn timed(mut command: Command) -> Duration {
    let started = Instant::now();
    assert_eq!(command.status().unwrap().code(), Some(COPIED), "{command:?}");
    started.elapsed()
}

/// A moment from before it does anything until after its end.
fn moment(rng: &mut Rng, whole: Duration) -> Duration {
    Duration::from_micros(rng.below(whole.as_micros() as usize * 11 / 10 + 1) as u64)
}

#[test]
fn a_file_is_old_or_new_and_resume_completes_it() {
    let (place, mut rng) = (Place::new(), Rng::for_test());
    let whole = WAYS.map(|options| {
        let time = timed(place.command(options));
        assert!(place.is_new("not killed"));
        assert_eq!(place.others(), [""; 0], "{options:?}: left behind by a copy that was not killed");
        place.put_old_back();
        time
    });
    let kills = count_from("NOWAIT_COPY_KILLS", KILLS);
    let mut seen = [0; 2];
    for kill in 0..kills {
        let way = rng.below(WAYS.len());
        let (options, after) = (WAYS[way], moment(&mut rng, whole[way]));
        let about = format!("kill {kill} after {after:?} of {:?}, {options:?}", whole[way]);
        let mut child = place.command(options).spawn().unwrap();
        thread::sleep(after);
        child.kill().unwrap();
        child.wait().unwrap();
        seen[usize::from(place.is_new(&about))] += 1;

        let left = place.others();
        assert!(left.iter().all(|name| name.starts_with('.')), "{about}: {left:?}");
        let resumes = options.contains(&"--resume");
        timed(place.command(&[options, if resumes { &[] } else { &["--resume"] }].concat()));
        assert!(place.is_new(&about), "{about}: not copied by --resume");
        if resumes {
            assert_eq!(place.others(), [""; 0], "{about}: left behind by --resume");
        }
        place.put_old_back();
    }
    eprintln!("{kills} kills: the old file {} times, the new one {}", seen[0], seen[1]);
}

/// Files of a tree by their number: most are small, a few are not.
fn tree_of(root: &Path, seed: u64) {
    for folder in 0..8 {
        let dir = root.join(format!("folder {folder}"));
        fs::create_dir_all(&dir).unwrap();
        for number in 0..25 {
            let len = if number == 7 { 3 << 20 } else { 1 + (number * 977 + folder * 331) % 30_000 };
            fs::write(dir.join(format!("file {number}")), noise(seed + (folder * 100 + number) as u64, len)).unwrap();
        }
    }
    torture::age(root);
}

/// Paths of files and their bytes, in order; without the command's temporary files.
fn files_of(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for folder in names(root) {
        for file in names(&root.join(&folder)) {
            let path = Path::new(&folder).join(&file);
            if !file.starts_with('.') {
                let bytes = fs::read(root.join(&path)).unwrap();
                files.push((path, bytes));
            }
        }
    }
    files
}

fn temporary_names(root: &Path) -> Vec<PathBuf> {
    let of = |folder: String| {
        let folder = root.join(folder);
        names(&folder).into_iter().filter(|name| name.starts_with('.')).map(move |name| folder.join(name))
    };
    names(root).into_iter().flat_map(of).collect()
}

#[test]
fn every_file_of_a_tree_is_old_or_new_and_resume_completes_it() {
    if !can_check() {
        return;
    }
    let (dir, mut rng) = (directory(), Rng::for_test());
    let (source, target, old) = (dir.path().join("source"), dir.path().join("target"), dir.path().join("old"));
    tree_of(&source, 10_000);
    // Of another time: a file of the same size and time is the same to --resume.
    tree_of(&old, 20_000);
    expect(
        0,
        Command::new("find").arg(&old).args(["-type", "f", "-exec", "touch", "-m", "-d", "2001-01-01", "{}", "+"]),
    );
    // Half of the files are new to the target.
    for folder in 0..8 {
        (0..25).step_by(2).for_each(|number| {
            fs::remove_file(old.join(format!("folder {folder}/file {number}"))).unwrap();
        });
    }
    let (new_files, old_files) = (files_of(&source), files_of(&old));
    let put_old_back = || {
        let _ = fs::remove_dir_all(&target);
        expect(0, Command::new("cp").arg("-a").args([&old, &target]));
    };
    let command = |options: &[&str]| {
        let mut command = copy();
        command.args(options).args(["-T"]).args([&source, &target]).stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    put_old_back();
    let whole = timed(command(&[]));
    assert_same(&source, &target);

    let (kills, mut with_names_left) = (count_from("NOWAIT_COPY_KILLS", KILLS), 0);
    for kill in 0..kills {
        put_old_back();
        let options: &[&str] = [&[][..], &["--resume"], &["--sync=file"]][rng.below(3)];
        let after = moment(&mut rng, whole);
        let about = format!("kill {kill} after {after:?} of {whole:?}, {options:?}");
        let mut child = command(options).spawn().unwrap();
        thread::sleep(after);
        child.kill().unwrap();
        child.wait().unwrap();
        for (path, bytes) in files_of(&target) {
            let is = |files: &[(PathBuf, Vec<u8>)]| files.iter().any(|file| file.0 == path && file.1 == bytes);
            assert!(is(&old_files) || is(&new_files), "{about}: {} is neither old nor new", path.display());
        }
        timed(command(&["--resume"]));
        assert!(files_of(&target) == new_files, "{about}: other bytes after --resume");
        let left = temporary_names(&target);
        with_names_left += usize::from(!left.is_empty());
        if kill == kills - 1 {
            // A process that is killed cannot take them away. This changes times of directories.
            left.iter().for_each(|path| fs::remove_file(path).unwrap());
            timed(command(&["--resume"]));
            assert_same(&source, &target);
        }
    }
    eprintln!("{kills} kills: temporary names were left by {with_names_left}");
}

/// Interrupts a copy by this signal in its middle: at this rate it takes half a minute.
fn interrupted(place: &Place, options: &[&str], signal: Signal) {
    let mut command = place.command(options);
    command.args(["--bwlimit=1600K", "--progress=always"]).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut rest = has_begun(&mut child);
    if options.contains(&"--resume") {
        // The journal has records.
        eventually("a part", || place.part().filter(|part| fs::metadata(part).unwrap().len() > CLAIMED_BYTES));
    }
    kill_process(Pid::from_child(&child), signal).unwrap();
    let mut said = String::new();
    rest.read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(INTERRUPTED), "{options:?}: {said}");
    assert!(said.lines().any(|line| line.starts_with("nowait: interrupted")), "{options:?}: {said}");
}

/// Bytes that a process has written by system calls on files, until it has ended.
fn written_bytes(mut command: Command) -> u64 {
    let mut child = command.spawn().unwrap();
    // It stays to be read from until it is waited for.
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(Pid::from_child(&child)), options).unwrap();
    let io = fs::read_to_string(format!("/proc/{}/io", child.id())).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(COPIED), "{command:?}");
    io.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap().parse().unwrap()
}

#[test]
fn an_interrupt_ends_it_within_a_block_and_leaves_nothing_or_what_resume_takes_up() {
    let place = Place::new();
    for signal in [Signal::INT, Signal::TERM] {
        for options in [&[][..], &["--cache-neutral"]] {
            interrupted(&place, options, signal);
            assert!(!place.is_new("interrupted"), "{options:?}, {signal:?}: it went on to the end of the file");
            assert_eq!(place.others(), [""; 0], "{options:?}");
        }
    }
    interrupted(&place, &["--resume"], Signal::INT);
    assert!(!place.is_new("interrupted with --resume"));
    // In the page cache: it is copied by reads and writes, which are counted.
    fs::read(place.source()).unwrap();
    let written = written_bytes(place.command(&["--resume"]));
    assert!(place.is_new("resumed"));
    assert!(written < BYTES as u64 - CLAIMED_BYTES / 2, "all was copied again: {written} bytes");
    assert_eq!(place.others(), [""; 0]);
}

/// A journal, or a part, that is no longer true is not believed.
#[test]
fn resume_starts_over_when_the_source_has_changed() {
    let mut place = Place::new();
    interrupted(&place, &["--resume"], Signal::INT);
    // As long as before, and with other bytes where the copy was already.
    place.new[..4096].copy_from_slice(&noise(99, 4096));
    fs::write(place.source(), &place.new).unwrap();
    timed(place.command(&["--resume"]));
    assert!(place.is_new("resumed with another source"));
    assert_eq!(place.others(), [""; 0]);
}

/// What was copied is spoilt on the disk while nobody looks.
#[test]
fn resume_checks_what_it_goes_on_from() {
    let place = Place::new();
    interrupted(&place, &["--resume"], Signal::INT);
    let left = place.others();
    assert!(!left.is_empty(), "nothing to go on from");
    for name in &left {
        let path = place.dir.path().join(name);
        let file = fs::File::options().write(true).open(path).unwrap();
        if file.metadata().unwrap().len() > 1 << 20 {
            use std::os::unix::fs::FileExt;
            file.write_all_at(&noise(5, 4096), 64 << 10).unwrap();
        }
    }
    timed(place.command(&["--resume"]));
    assert!(place.is_new("resumed from a part that was spoilt"));
}
