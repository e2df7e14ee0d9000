//! The simulated disk that crashes: one test for each rule of its model, and all images against an
//! oracle that enumerates them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Mutex};

use crate::common::rng::Rng;
use crate::common::{Way, assert_settled, contents, poll_once, put, writable};
use nowait::sim::{Faults, Sim, Unsynced};
use nowait::{Advice, Allocate, Engine, ErrorKind, File, Nowait, OpenOptions, Written};

const SECTOR: usize = 512;

fn instance(sim: &Sim) -> Nowait {
    Nowait::builder().engine(Engine::Sim(sim.clone())).build().unwrap()
}

/// A disk with a file "a", opened. It moves only when told to.
fn disk(bytes: &[u8]) -> (Sim, Nowait, File) {
    let sim = Sim::manual(Rng::for_test().next());
    sim.create("a", bytes);
    let nowait = instance(&sim);
    let file = writable(&nowait, "a".as_ref());
    (sim, nowait, file)
}

fn faults(set: impl FnOnce(&mut Faults)) -> Faults {
    let mut faults = Faults::default();
    set(&mut faults);
    faults
}

fn create(nowait: &Nowait, path: &str) -> File {
    OpenOptions::new().read(true).write(true).create(true).open_in(nowait, path).wait().unwrap()
}

/// Returns what is left of "a" when these are kept, of all that is asked for.
fn kept(sim: &Sim, keep: &[usize]) -> Vec<u8> {
    let mut number = 0..;
    sim.crash(|_, _| keep.contains(&number.next().unwrap())).contents("a").unwrap()
}

/// How often a crash asks.
fn questions(sim: &Sim) -> usize {
    sim.unsynced().iter().map(Unsynced::sectors).sum()
}

/// Everything that a crash may leave, as `what` sees it.
fn outcomes<T: Ord>(sim: &Sim, what: impl Fn(&Sim) -> T) -> BTreeSet<T> {
    let questions = questions(sim);
    assert!(questions <= 12, "{:?}", sim.unsynced());
    let outcome = |kept: u32| {
        let mut number = 0;
        let left = sim.crash(|_, _| {
            number += 1;
            kept >> (number - 1) & 1 == 1
        });
        assert_eq!(number, questions, "every sector and name is asked for once");
        assert!(left.unsynced().is_empty());
        what(&left)
    };
    (0..1 << questions).map(outcome).collect()
}

fn images(sim: &Sim) -> BTreeSet<Vec<u8>> {
    outcomes(sim, |left| left.contents("a").unwrap())
}

fn set<T: Ord>(all: impl IntoIterator<Item = T>) -> BTreeSet<T> {
    all.into_iter().collect()
}

fn write(offset: usize, length: usize, complete: bool) -> Unsynced {
    Unsynced::Write { path: "a".into(), offset: offset as u64, length, complete }
}

#[test]
fn each_sector_of_a_write_is_kept_or_lost() {
    let old = contents(3 * SECTOR, 1);
    let (sim, _nowait, file) = disk(&old);
    assert!(sim.unsynced().is_empty());
    // Over two borders: three parts.
    let new = contents(SECTOR + 200, 2);
    file.write_all_at(new.clone(), 400).wait().unwrap();
    assert_eq!((sim.unsynced(), questions(&sim)), (vec![write(400, SECTOR + 200, true)], 3));
    let parts = [400..512, 512..1024, 1024..1112];
    let mut right = BTreeSet::new();
    for keep in 0..8 {
        let mut image = old.clone();
        for (number, part) in parts.iter().enumerate().filter(|(number, _)| keep >> number & 1 == 1) {
            image[part.clone()].copy_from_slice(&new[part.start - 400..part.end - 400]);
            assert_eq!(kept(&sim, &[number])[part.clone()], new[part.start - 400..part.end - 400]);
        }
        right.insert(image);
    }
    assert_eq!(images(&sim), right);
    // Reads never saw anything else than all of it.
    let mut now = old;
    put(&mut now, 400, &new);
    assert!(sim.contents("a").unwrap() == now);
}

#[test]
fn a_sync_makes_durable_what_was_complete_before_it_began() {
    for way in [Way::Awaited, Way::Waited] {
        let (sim, nowait, file) = disk(&[0; 2 * SECTOR]);
        file.write_all_at(vec![1; SECTOR], 0).wait().unwrap();
        match way {
            Way::Waited => file.sync_data().wait().unwrap(),
            _ => {
                let mut sync = pin!(file.sync_data());
                assert!(poll_once(sync.as_mut()).is_pending());
                assert_eq!(questions(&sim), 1, "the sync is under way");
                // Complete before the sync is, but after it began.
                file.write_all_at(vec![2; SECTOR], SECTOR as u64).wait().unwrap();
                assert!(sim.step() && poll_once(sync.as_mut()).is_ready());
                assert_eq!(sim.unsynced(), [write(SECTOR, SECTOR, true)]);
                file.sync_all().wait().unwrap();
            }
        }
        assert!(sim.unsynced().is_empty());
        assert_eq!(sim.crash(|_, _| false).contents("a"), sim.contents("a"));
        assert_settled(&nowait);
    }
    // A sync of one file says nothing of another, and one of a range nothing at all.
    let (sim, nowait, file) = disk(&[0; SECTOR]);
    sim.create("b", [0; SECTOR]);
    file.write_all_at(vec![1; SECTOR], 0).wait().unwrap();
    writable(&nowait, "b".as_ref()).sync_data().wait().unwrap();
    file.sync_range(0, 0).wait().unwrap();
    assert_eq!(images(&sim).len(), 2);
}

#[test]
fn a_durable_write_is_durable_when_it_is_complete_and_torn_before() {
    let (sim, _nowait, file) = disk(&[0; 2 * SECTOR]);
    let mut write_durably = pin!(file.write_all_at(vec![1; 2 * SECTOR], 0).durable());
    assert!(poll_once(write_durably.as_mut()).is_pending());
    assert_eq!(sim.unsynced(), [write(0, 2 * SECTOR, false)]);
    assert_eq!(sim.contents("a").unwrap(), [0; 2 * SECTOR], "reads do not see it yet");
    let half = |first: u8, second: u8| [[first; SECTOR], [second; SECTOR]].concat();
    assert_eq!(images(&sim), set([half(0, 0), half(0, 1), half(1, 0), half(1, 1)]));
    assert!(sim.step() && poll_once(write_durably.as_mut()).is_ready());
    assert_eq!(images(&sim), set([half(1, 1)]));
    // It makes nothing else durable, and is undone by nothing that came before it.
    file.write_all_at(vec![2; 2 * SECTOR], 0).wait().unwrap();
    file.write_all_at(vec![3; SECTOR], SECTOR as u64).durable().wait().unwrap();
    assert_eq!(images(&sim), set([half(1, 3), half(2, 3)]));
    file.write_all_at(vec![4; SECTOR], SECTOR as u64).wait().unwrap();
    assert_eq!(images(&sim), set([half(1, 3), half(2, 3), half(1, 4), half(2, 4)]));
}

#[test]
fn a_durable_write_in_parts_is_durable_as_far_as_it_is_complete() {
    let (sim, _nowait, file) = disk(&[0; 4 * SECTOR]);
    sim.set_faults(faults(|faults| faults.short = 1.0));
    let mut write_durably = pin!(file.write_all_at(vec![1; 4 * SECTOR], 0).durable());
    assert!(poll_once(write_durably.as_mut()).is_pending());
    while sim.step() {
        let done = sim.contents("a").unwrap().iter().filter(|byte| **byte == 1).count();
        let lost = sim.crash(|_, _| false).contents("a").unwrap();
        assert!(lost[..done].iter().all(|byte| *byte == 1) && lost[done..].iter().all(|byte| *byte == 0));
        assert_eq!(sim.crash(|_, _| true).contents("a").unwrap(), [1; 4 * SECTOR]);
    }
    assert!(poll_once(write_durably.as_mut()).is_ready());
}

#[cfg(target_os = "linux")]
#[test]
fn every_write_to_a_file_opened_for_it_is_durable() {
    let (sim, nowait, _file) = disk(&[0; SECTOR]);
    for flag in [libc::O_DSYNC, libc::O_SYNC] {
        let mut options = OpenOptions::new();
        let file = options.write(true).custom_flags(flag).open_in(&nowait, "a").wait().unwrap();
        for way in [Way::Waited, Way::Awaited] {
            let mut write = pin!(file.write_all_at(vec![flag as u8; SECTOR], 0));
            match way {
                Way::Waited => file.write_all_from(&[flag as u8; SECTOR], 0).unwrap(),
                _ => {
                    assert!(poll_once(write.as_mut()).is_pending(), "it waits for the device");
                    assert!(sim.step() && poll_once(write.as_mut()).is_ready());
                }
            }
            assert!(sim.unsynced().is_empty());
        }
    }
}

/// A caller that waits is never seen from outside in the middle of a call; from inside it is.
#[test]
fn the_watcher_sees_a_write_of_a_caller_that_waits_under_way() {
    let (sim, _nowait, file) = disk(&[0; SECTOR]);
    let seen: Arc<Mutex<Vec<Vec<Unsynced>>>> = Arc::default();
    sim.watch({
        let seen = seen.clone();
        move |sim| {
            assert_eq!(sim.crash(|_, _| true).unsynced(), []);
            seen.lock().unwrap().push(sim.unsynced());
        }
    });
    file.write_all_at(vec![1; 10], 0).durable().wait().unwrap();
    file.write_all_at(vec![1; 10], 20).wait().unwrap();
    drop(file.read_at(vec![0; 10], 0).wait().unwrap());
    file.sync_data().wait().unwrap();
    let right = [vec![write(0, 10, false)], vec![write(20, 10, false)], vec![write(20, 10, true)]];
    assert_eq!(*seen.lock().unwrap(), right);
    assert!(sim.unsynced().is_empty());
}

#[test]
fn an_extension_is_kept_or_lost_and_a_sector_beyond_it_brings_zeros() {
    let (sim, _nowait, file) = disk(&[7; 100]);
    file.write_all_at(vec![1; SECTOR], 2 * SECTOR as u64).wait().unwrap();
    let length = Unsynced::Length { path: "a".into(), from: 100, to: 3 * SECTOR as u64, complete: true };
    assert_eq!(sim.unsynced(), [length, write(2 * SECTOR, SECTOR, true)]);
    let image = |last: u8| [vec![7; 100], vec![0; 2 * SECTOR - 100], vec![last; SECTOR]].concat();
    assert_eq!(images(&sim), set([vec![7; 100], image(0), image(1)]));
    // Under way, the same.
    let mut longer = pin!(file.write_all_at(vec![2; 10], 3 * SECTOR as u64).durable());
    assert!(poll_once(longer.as_mut()).is_pending());
    let lengths: BTreeSet<usize> = images(&sim).iter().map(Vec::len).collect();
    assert_eq!(lengths, set([100, 3 * SECTOR, 3 * SECTOR + 10]));
    assert!(sim.step() && poll_once(longer.as_mut()).is_ready());
    let lengths: BTreeSet<usize> = images(&sim).iter().map(Vec::len).collect();
    assert_eq!(lengths, set([3 * SECTOR + 10]), "its own length is durable with it");
    file.sync_data().wait().unwrap();
    assert_eq!(images(&sim).len(), 1);
}

#[test]
fn a_cut_is_kept_or_lost() {
    let old = contents(1000, 1);
    let (sim, nowait, file) = disk(&old);
    file.set_len(300).wait().unwrap();
    assert_eq!(images(&sim), set([old.clone(), old[..300].to_vec()]));
    // A later extension does not bring back what was cut off.
    file.set_len(400).wait().unwrap();
    let extended = [&old[..300], &[0; 100]].concat();
    assert_eq!(images(&sim), set([old.clone(), old[..300].to_vec(), extended.clone()]));
    file.sync_data().wait().unwrap();
    assert_eq!(images(&sim), set([extended.clone()]));
    OpenOptions::new().write(true).truncate(true).open_in(&nowait, "a").wait().unwrap();
    assert_eq!(images(&sim), set([extended, Vec::new()]));
}

#[test]
fn allocation_extends_and_clears() {
    let (sim, _nowait, file) = disk(&[7; 1000]);
    file.allocate(Allocate::ReserveKeepSize, 0, 5000).wait().unwrap();
    assert!(sim.unsynced().is_empty());
    file.allocate(Allocate::Reserve, 500, 1000).wait().unwrap();
    let extended = [vec![7; 1000], vec![0; 500]].concat();
    assert_eq!(sim.contents("a").unwrap(), extended);
    assert_eq!(images(&sim), set([vec![7; 1000], extended]));
    file.sync_data().wait().unwrap();
    // A cleared range is written.
    file.allocate(Allocate::PunchHole, 0, SECTOR as u64).wait().unwrap();
    assert_eq!(sim.unsynced(), [write(0, SECTOR, true)]);
    file.allocate(Allocate::Zero, 1400, 200).wait().unwrap();
    assert_eq!(file.size().wait().unwrap(), 1600);
    sim.set_faults(faults(|faults| faults.allocate_refused = true));
    assert_eq!(file.allocate(Allocate::Reserve, 0, 5000).wait().unwrap_err().kind(), ErrorKind::Unsupported);
}

/// The names and contents of the files that are there.
fn files(sim: &Sim) -> Vec<(PathBuf, Vec<u8>)> {
    let names = ["a", "b", "c", "d/a"].map(PathBuf::from);
    names.into_iter().filter_map(|name| sim.contents(&name).map(|contents| (name, contents))).collect()
}

fn there(names: &[(&str, u8)]) -> Vec<(PathBuf, Vec<u8>)> {
    names.iter().map(|(name, byte)| (PathBuf::from(name), vec![*byte])).collect()
}

#[test]
fn names_are_kept_or_lost_until_their_directory_is_synced() {
    let (sim, nowait, _file) = disk(&[1]);
    let file = create(&nowait, "./b");
    file.write_all_at(vec![2], 0).durable().wait().unwrap();
    file.sync_all().wait().unwrap();
    assert_eq!(sim.unsynced(), [Unsynced::Created { path: "b".into() }], "a sync of the file is none of the name");
    nowait.fs().remove_file("a").wait().unwrap();
    assert_eq!(sim.unsynced().last(), Some(&Unsynced::Removed { path: "a".into() }));
    let (a, b) = (("a", 1), ("b", 2));
    assert_eq!(outcomes(&sim, files), set([there(&[a]), there(&[a, b]), there(&[b]), there(&[])]));
    assert_eq!(nowait.fs().sync_dir("d").wait().unwrap_err().kind(), ErrorKind::NotFound);
    sim.create("d/a", [3]);
    nowait.fs().sync_dir("d").wait().unwrap();
    assert_eq!(sim.unsynced().len(), 2, "of another directory");
    // Writes after its beginning are not in it.
    let mut sync = pin!(nowait.fs().sync_dir("."));
    assert!(poll_once(sync.as_mut()).is_pending());
    create(&nowait, "c");
    assert!(sim.step() && poll_once(sync.as_mut()).is_ready());
    assert_eq!(sim.unsynced(), [Unsynced::Created { path: "c".into() }]);
    assert_eq!(files(&sim.crash(|_, _| false)), there(&[b, ("d/a", 3)]));
}

#[test]
fn of_a_rename_old_or_new_is_there() {
    let (sim, nowait, _file) = disk(&[1]);
    sim.create("b", [2]);
    nowait.fs().rename("a", "b").wait().unwrap();
    assert_eq!(sim.unsynced(), [Unsynced::Renamed { from: "a".into(), to: "b".into() }]);
    assert_eq!(outcomes(&sim, files), set([there(&[("a", 1), ("b", 2)]), there(&[("b", 1)])]));
    // Twice: never in two places.
    nowait.fs().rename("b", "c").wait().unwrap();
    let right =
        set([there(&[("a", 1), ("b", 2)]), there(&[("b", 1)]), there(&[("b", 2), ("c", 1)]), there(&[("c", 1)])]);
    assert_eq!(outcomes(&sim, files), right);
    nowait.fs().sync_dir("").wait().unwrap();
    assert_eq!(outcomes(&sim, files), set([there(&[("c", 1)])]));
    // From one directory to another: both have to be synced.
    sim.create("d/x", []);
    nowait.fs().rename("c", "d/a").wait().unwrap();
    for directory in ["d", "."] {
        assert_eq!(outcomes(&sim, files), set([there(&[("c", 1)]), there(&[("d/a", 1)])]));
        nowait.fs().sync_dir(directory).wait().unwrap();
    }
    assert_eq!(outcomes(&sim, files), set([there(&[("d/a", 1)])]));
}

/// The contents of a directory whose own name is lost are lost, durable or not.
#[test]
fn with_a_directory_goes_what_is_in_it() {
    let (sim, nowait, _file) = disk(&[1]);
    nowait.fs().create_dir("d").wait().unwrap();
    create(&nowait, "d/a").write_all_at(vec![4], 0).durable().wait().unwrap();
    nowait.fs().sync_dir("d").wait().unwrap();
    assert_eq!(sim.unsynced(), [Unsynced::Created { path: "d".into() }]);
    assert_eq!(outcomes(&sim, files), set([there(&[("a", 1)]), there(&[("a", 1), ("d/a", 4)])]));
    // Empty, it is there all the same.
    nowait.fs().remove_file("d/a").wait().unwrap();
    nowait.fs().sync_dir("d").wait().unwrap();
    nowait.fs().sync_dir("").wait().unwrap();
    let left = sim.crash(|_, _| false);
    assert!(instance(&left).fs().read_dir_names("d").wait().unwrap().is_empty());
    assert_eq!(instance(&left).fs().read_dir_names(".").wait().unwrap(), ["a", "d"]);
}

/// A file that is renamed before its contents are synced.
#[test]
fn a_name_may_be_durable_before_what_it_names() {
    let (sim, nowait, _file) = disk(&[1]);
    let file = create(&nowait, "b");
    file.write_all_at(vec![2], 0).wait().unwrap();
    nowait.fs().rename("b", "a").wait().unwrap();
    nowait.fs().sync_dir("").wait().unwrap();
    assert_eq!(images(&sim), set([vec![], vec![0], vec![2]]));
    // Written and renamed in the right order it is all or nothing, at every step.
    let (sim, nowait, _file) = disk(&[1; 600]);
    let right = set([vec![1; 600], vec![2; 600]]);
    let mut replace = pin!(nowait.fs().write_atomic("a", vec![2u8; 600]));
    while poll_once(replace.as_mut()).is_pending() {
        assert!(images(&sim).is_subset(&right), "{:?}", sim.unsynced());
        sim.step();
    }
    assert_eq!(images(&sim), set([vec![2; 600]]));
}

#[test]
fn a_removed_file_is_read_through_its_handles_and_comes_back() {
    let (sim, nowait, file) = disk(b"old");
    nowait.fs().remove_file("a").wait().unwrap();
    file.write_all_at(b"new".to_vec(), 0).wait().unwrap();
    assert_eq!(*file.read_range(0, 3).wait().unwrap(), *b"new");
    assert_eq!(sim.contents("a"), None);
    create(&nowait, "a");
    assert_eq!(*file.read_range(0, 3).wait().unwrap(), *b"new");
    let right = set([None, Some(b"old".to_vec()), Some(b"new".to_vec()), Some(Vec::new())]);
    assert_eq!(outcomes(&sim, |left| left.contents("a")), right);
    nowait.fs().sync_dir("").wait().unwrap();
    assert_eq!(outcomes(&sim, |left| left.contents("a")), set([Some(Vec::new())]));
}

#[test]
fn what_is_put_there_is_durable_and_replaces() {
    let (sim, nowait, file) = disk(b"old");
    file.write_all_at(b"new".to_vec(), 0).wait().unwrap();
    nowait.fs().rename("a", "b").wait().unwrap();
    sim.create("b", "damaged");
    assert_eq!(sim.contents("b").unwrap(), b"damaged");
    assert_eq!(outcomes(&sim, |left| left.contents("b")), set([Some(b"damaged".to_vec())]));
}

#[test]
fn a_crash_leaves_the_disk_as_it_was() {
    let work = |crash: bool| {
        let sim = Sim::manual(7);
        sim.create("a", []);
        // Strict: a file that refuses attempts is not written inline, so that the way does not
        // depend on the time that calls take.
        let nowait = Nowait::builder().strict(true).engine(Engine::Sim(sim.clone())).build().unwrap();
        let file = writable(&nowait, "a".as_ref());
        sim.set_faults(faults(|faults| {
            (faults.short, faults.write_error, faults.nowait_refused) = (0.5, 0.2, true);
        }));
        let mut trace = Vec::new();
        for number in 0..100 {
            let mut write = pin!(file.write_at(vec![number; 700], u64::from(number) * 600));
            while poll_once(write.as_mut()).is_pending() {
                if crash {
                    let left = sim.crash_at_random(u64::from(number));
                    // It is a disk of its own.
                    let nowait = instance(&left);
                    writable(&nowait, "a".as_ref()).write_all_at(vec![9; 5000], 0).wait().unwrap();
                }
                sim.step();
            }
            trace.push((sim.contents("a"), sim.unsynced()));
        }
        assert_settled(&nowait);
        trace
    };
    assert!(work(false) == work(true));
}

#[test]
fn crashes_at_random_leave_everything_that_may_be_left() {
    let (sim, _nowait, file) = disk(&[0; 4 * SECTOR]);
    file.write_all_at(vec![1; 3 * SECTOR], 0).wait().unwrap();
    file.write_all_at(vec![2; SECTOR], 3 * SECTOR as u64).wait().unwrap();
    let (mut whole, mut found) = (0, BTreeSet::new());
    for seed in 0..1000 {
        let left = sim.crash_at_random(seed).contents("a").unwrap();
        assert_eq!(Some(&left), sim.crash_at_random(seed).contents("a").as_ref(), "the seed says it all");
        whole += usize::from(left[0] == left[SECTOR] && left[0] == left[2 * SECTOR]);
        found.insert(left);
    }
    assert_eq!(found, images(&sim));
    // By sectors alone it would be less than a half.
    assert!((550..950).contains(&whole), "{whole} of 1000 writes are whole");
}

#[test]
fn a_write_that_fails_has_written_some_of_its_sectors() {
    let mut found = BTreeSet::new();
    for seed in 0..200 {
        let sim = Sim::new(seed);
        sim.create("a", [0; 2 * SECTOR]);
        let nowait = instance(&sim);
        let file = writable(&nowait, "a".as_ref());
        sim.set_faults(faults(|faults| (faults.write_error, faults.not_now) = (1.0, 1.0)));
        let write = file.write_all_at(vec![1; 2 * SECTOR], 0);
        let error = Way::ALL[seed as usize % 3].run(if seed % 2 == 0 { write } else { write.durable() }).unwrap_err();
        assert_eq!(error.error.raw_os_error(), Some(crate::common::errno::EIO));
        let now = sim.contents("a").unwrap();
        assert!(images(&sim).contains(&[0; 2 * SECTOR][..]), "none of it is durable");
        assert!(images(&sim).contains(&now));
        found.insert((now[0], now[SECTOR]));
        drop(file.read_range(0, SECTOR).wait().unwrap());
    }
    assert_eq!(found, set([(0, 0), (0, 1), (1, 0), (1, 1)]));
}

#[test]
fn a_file_has_an_identity_and_a_version() {
    let (sim, nowait, file) = disk(&[0; SECTOR]);
    sim.create("b", [0; 10]);
    let other = create(&nowait, "b");
    let stat = |file: &File| file.simulated().unwrap();
    let (before, others) = (stat(&file), stat(&other));
    assert_eq!((before.size, others.size, before.disk), (SECTOR as u64, 10, others.disk));
    assert_ne!(before.inode, others.inode);
    file.write_all_at(vec![1; 10], SECTOR as u64).wait().unwrap();
    file.read_range(0, 1).wait().unwrap();
    let after = stat(&file);
    assert!(after.version > before.version && after.size == SECTOR as u64 + 10, "{after:?}");
    assert_eq!((after.inode, stat(&other)), (before.inode, others));
    // A rename keeps it, a file in its place has another one, and so has a disk after a crash.
    nowait.fs().rename("a", "c").wait().unwrap();
    sim.create("a", [0; SECTOR]);
    let [replaced, renamed] = ["a", "c"].map(|path| stat(&writable(&nowait, path.as_ref())));
    assert!(renamed == after && replaced.inode != before.inode, "{renamed:?}, {replaced:?}");
    #[cfg(unix)]
    assert_eq!(renamed.flags & libc::O_ACCMODE, libc::O_RDWR);
    let crashed = sim.crash(|_, _| true);
    assert_ne!(stat(&writable(&instance(&crashed), "b".as_ref())).disk, before.disk);
    let path = tempfile::NamedTempFile::new().unwrap();
    assert_eq!(File::open(path.path()).wait().unwrap().simulated(), None);
}

#[test]
fn reads_fail_alone() {
    let (sim, _nowait, file) = disk(&[0; SECTOR]);
    sim.set_faults(faults(|faults| faults.read_error = 1.0));
    assert_eq!(file.read_range(0, 1).wait().unwrap_err().kind(), ErrorKind::Io);
    file.write_all_at(vec![1; 10], 0).wait().unwrap();
}

#[test]
fn what_a_failed_sync_has_lost_no_later_one_brings_back() {
    let mut found = BTreeSet::new();
    for seed in 0..200 {
        let sim = Sim::manual(seed);
        sim.create("a", [0; 2 * SECTOR]);
        let nowait = instance(&sim);
        let file = writable(&nowait, "a".as_ref());
        file.write_all_at(vec![1; 2 * SECTOR], 0).wait().unwrap();
        sim.set_faults(faults(|faults| faults.sync_error = 1.0));
        assert_eq!(file.sync_data().wait().unwrap_err().kind(), ErrorKind::SyncFailed);
        sim.set_faults(Faults::default());
        file.acknowledge_sync_failure().unwrap();
        file.sync_data().wait().unwrap();
        assert_eq!(sim.contents("a").unwrap(), [1; 2 * SECTOR], "it is read all the same");
        let left = sim.crash(|_, _| true).contents("a").unwrap();
        found.insert((left[0], left[SECTOR]));
        file.advise(0, 0, Advice::DontNeed).wait().unwrap();
        assert_eq!(sim.contents("a").unwrap(), left, "until the cache is dropped");
        // A second write is durable.
        file.write_all_at(vec![2; 2 * SECTOR], 0).wait().unwrap();
        file.sync_data().wait().unwrap();
        assert_eq!(images(&sim), set([vec![2; 2 * SECTOR]]));
    }
    assert_eq!(found, set([(0, 0), (0, 1), (1, 0), (1, 1)]));
    let (sim, nowait, _file) = disk(&[]);
    create(&nowait, "b");
    sim.set_faults(faults(|faults| faults.sync_error = 1.0));
    assert_eq!(nowait.fs().sync_dir("").wait().unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(sim.unsynced().len(), 1);
}

#[test]
fn no_space_is_for_what_grows() {
    let sim = Sim::new(1);
    sim.create("a", [0; 1000]);
    let nowait = instance(&sim);
    let file = writable(&nowait, "a".as_ref());
    sim.set_faults(faults(|faults| faults.no_space = 1.0));
    for way in Way::ALL {
        way.run(file.write_all_at(vec![1; 1000], 0)).unwrap();
        for write in
            [file.write_all_at(vec![1; 1], 1000), file.write_all_at(vec![2; 501], 500), file.append(vec![1; 1])]
        {
            let error = way.run(write).unwrap_err().error;
            assert_eq!((error.kind(), error.bytes_written()), (ErrorKind::NoSpace, Some(Written::First(0))), "{way:?}");
        }
    }
    assert_eq!(file.allocate(Allocate::Reserve, 0, 1).wait().unwrap_err().kind(), ErrorKind::NoSpace);
    let mut options = OpenOptions::new();
    options.write(true).create(true);
    assert_eq!(options.open_in(&nowait, "b").wait().unwrap_err().kind(), ErrorKind::NoSpace);
    options.open_in(&nowait, "a").wait().unwrap();
    assert_eq!(sim.contents("a").unwrap(), [1; 1000]);
}

#[test]
fn a_full_disk_takes_what_fits_and_removal_frees() {
    let (sim, nowait, file) = disk(&[0; 1000]);
    sim.create("b", [0; 500]);
    sim.set_capacity(2000);
    assert_eq!(file.write_at(vec![1; 1000], 900).wait().unwrap().0, 600);
    assert_eq!(file.write_at(vec![2; 10], 1500).wait().unwrap_err().error.kind(), ErrorKind::NoSpace);
    assert_eq!(file.write_at(vec![2; 10], 1600).wait().unwrap_err().error.kind(), ErrorKind::NoSpace);
    assert_eq!(file.set_len(1501).wait().unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(file.allocate(Allocate::Reserve, 1500, 1).wait().unwrap_err().kind(), ErrorKind::NoSpace);
    file.write_all_at(vec![3; 1500], 0).durable().wait().unwrap();
    create(&nowait, "c");
    // So is the disk after a crash.
    let left = sim.crash(|_, _| true);
    let error = writable(&instance(&left), "a".as_ref()).append(vec![1]).wait().unwrap_err();
    assert_eq!(error.error.kind(), ErrorKind::NoSpace);
    nowait.fs().remove_file("b").wait().unwrap();
    file.append(vec![4; 500]).wait().unwrap();
    assert_eq!(file.append(vec![4]).wait().unwrap_err().error.kind(), ErrorKind::NoSpace);
    file.set_len(10).wait().unwrap();
    file.append(vec![4; 1990]).wait().unwrap();
}

/// An operation dropped before the disk had done it is not done, and is not left by a crash.
#[test]
fn a_write_that_was_dropped_may_be_there_until_it_is_discarded() {
    let (sim, nowait, file) = disk(&[0; SECTOR]);
    {
        let mut write = pin!(file.write_all_at(vec![1; SECTOR], 0).durable());
        assert!(poll_once(write.as_mut()).is_pending());
    }
    assert_eq!(images(&sim).len(), 2);
    assert!(sim.step() && !sim.step());
    assert_eq!(images(&sim), set([vec![0; SECTOR]]));
    assert_settled(&nowait);
}

/// The model, at its plainest: a set of images, and what each change may make of each.
struct Allowed {
    now: Vec<u8>,
    /// Changes since the last sync, and whether they cannot be lost.
    changes: Vec<(usize, Vec<u8>, bool)>,
    durable: Vec<u8>,
}

impl Allowed {
    fn images(&self) -> BTreeSet<Vec<u8>> {
        let mut images = set([self.durable.clone()]);
        let mut length = self.durable.len();
        for (offset, data, durable) in &self.changes {
            let end = offset + data.len();
            // Bytes, and where they are; none of them makes a file longer all the same.
            let mut steps: Vec<(usize, &[u8])> = Vec::new();
            if end > length {
                length = end;
                steps.push((end, &[]));
            }
            for sector in 0..=end / SECTOR {
                let mut bytes = (*offset..end).filter(|place| place / SECTOR == sector);
                if let Some(first) = bytes.next() {
                    let last = bytes.next_back().unwrap_or(first);
                    steps.push((first, &data[first - offset..=last - offset]));
                }
            }
            for (start, bytes) in steps {
                let with = images.iter().cloned().map(|mut image| {
                    image.resize(image.len().max(start + bytes.len()), 0);
                    image[start..start + bytes.len()].copy_from_slice(bytes);
                    image
                });
                let with: BTreeSet<Vec<u8>> = with.collect();
                if *durable {
                    images = with;
                } else {
                    images.extend(with);
                }
            }
        }
        images
    }
}

#[test]
fn a_crash_leaves_what_is_allowed_and_all_that_is() {
    let mut rng = Rng::for_test();
    let mut most = 0;
    for _ in 0..300 {
        let bytes = contents(rng.below(3 * SECTOR), rng.next());
        let (sim, _nowait, file) = disk(&bytes);
        let mut model = Allowed { now: bytes.clone(), changes: Vec::new(), durable: bytes };
        for number in 0..rng.below(6) {
            if rng.below(5) == 0 {
                file.sync_data().wait().unwrap();
                model.durable = model.now.clone();
                model.changes.clear();
                continue;
            }
            let offset = [0, SECTOR, rng.below(3 * SECTOR)][rng.below(3)];
            let length = [SECTOR, 1 + rng.below(2 * SECTOR)][rng.below(2)];
            let durable = rng.below(3) == 0;
            let data = contents(length, rng.next());
            let write = file.write_all_at(data.clone(), offset as u64);
            if questions(&sim) + 4 > 10 {
                continue;
            }
            match rng.below(4) {
                // The last one may be left under way.
                0 => {
                    let mut write = pin!(write.durable());
                    assert!(poll_once(write.as_mut()).is_pending());
                    model.changes.push((offset, data.clone(), false));
                    assert_eq!(images(&sim), model.images(), "{:?}", sim.unsynced());
                    model.changes.pop();
                    assert!(sim.step() && poll_once(write.as_mut()).is_ready());
                    model.changes.push((offset, data.clone(), true));
                }
                _ if durable => {
                    write.durable().wait().unwrap();
                    model.changes.push((offset, data.clone(), true));
                }
                _ => {
                    write.wait().unwrap();
                    model.changes.push((offset, data.clone(), false));
                }
            }
            put(&mut model.now, offset as u64, &data);
            let images = images(&sim);
            assert_eq!(images, model.images(), "{number}: {:?}", sim.unsynced());
            assert!(images.contains(&model.now));
            most = most.max(images.len());
        }
        assert!(sim.contents("a").unwrap() == model.now);
    }
    assert!(most > 30, "{most} images at most");
}

/// A disk that moves by itself crashes too.
#[test]
fn crashes_while_the_disk_works() {
    let sim = Sim::new(1);
    sim.set_faults(faults(|faults| (faults.short, faults.not_now) = (0.3, 1.0)));
    sim.create("a", []);
    let nowait = instance(&sim);
    let file = writable(&nowait, "a".as_ref());
    let done = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..300 {
                let write = file.write_all_at(vec![number as u8; 1000], number * 1000).durable();
                futures::executor::block_on(write).unwrap();
                done.store(number as usize + 1, std::sync::atomic::Ordering::SeqCst);
            }
        });
        for seed in 0.. {
            let before = done.load(std::sync::atomic::Ordering::SeqCst);
            let left = sim.crash_at_random(seed).contents("a").unwrap();
            let right = (0..before).flat_map(|number| vec![number as u8; 1000]);
            assert!(left[..before * 1000].iter().copied().eq(right), "{before} writes are durable");
            assert!(left.len() <= 300_000);
            if before == 300 {
                break;
            }
        }
    });
    assert_settled(&nowait);
}
