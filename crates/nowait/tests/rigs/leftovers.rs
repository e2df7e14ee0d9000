//! Destructors and `close(2)`s that do not return, and what is left of other files meanwhile.
//!
//! Each test has a process of its own: a child of a process with such a file would close it, too, and
//! hang before it begins.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};

use crate::common::mounts::{self, Frozen, Kind, LoopDevice, Mount};
use crate::common::{Watchdog, assert_settled, child, descriptors_of, eventually};
use crate::isolation::{READS_AT, open_at, other_file, stalling};
use nowait::{Buf, File, Lent, Nowait, OpenOptions};

const PAGE: usize = 4096;
/// More than all threads of a pool.
const MANY: usize = 100;
/// A pool lets go on half of its threads.
const LETTING_GO_MAX: usize = 32;

/// Destructors wait here until it is open: when this is dropped, at the latest.
#[derive(Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Drop for Gate {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}

/// Memory whose destructor counts, and waits if it has a gate.
struct Memory(Vec<u8>, Arc<AtomicUsize>, Option<Arc<(Mutex<bool>, Condvar)>>);

impl AsMut<[u8]> for Memory {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.1.fetch_add(1, SeqCst);
        if let Some(gate) = &self.2 {
            drop(gate.1.wait_while(gate.0.lock().unwrap(), |open| !*open));
        }
    }
}

/// Reads files, and gives up each read and its file.
fn are_let_go(nowait: &Nowait, path: &Path, direct: bool) {
    let (dropped, before) = (Arc::default(), descriptors_of(path));
    for i in 0..MANY {
        let file = OpenOptions::new().read(true).direct(direct).open_in(nowait, path).wait().unwrap();
        let memory = Lent::new(Memory(vec![0; 128 << 10], Arc::clone(&dropped), None));
        let read = file.read_at(memory, (i % 8 * PAGE) as u64).submit();
        drop((read, file));
    }
    let count = || (dropped.load(SeqCst), descriptors_of(path));
    assert!(eventually(|| count() == (MANY, before)), "{:?} of {MANY} buffers, and {before} descriptors", count());
}

/// Symptom: four destructors that did not return ended all letting go in the process: descriptors
/// and memory of all files leaked, and `drain` of other instances hung.
#[test]
fn destructors_that_do_not_return() {
    child::play("destructors");
}

fn hang_destructors() {
    let _watchdog = Watchdog::new("destructors that do not return", 180);
    let Some(mut server) = stalling(0) else { return };
    let Some(device) = mounts::or_skip("a loop device", LoopDevice::over(&server.file(), 512, None)) else { return };
    let (_dir, elsewhere) = other_file();
    let [nowait, other] = [(); 2].map(|()| Nowait::builder().build().unwrap());
    let (gate, begun) = (Gate::default(), Arc::default());
    let file = open_at(&nowait, device.path(), true);
    // They are given up before they end, or this thread would drop their memory: each reads bytes
    // that are not cached behind the device.
    let mut offset = READS_AT;
    let mut hang = |count: usize| {
        server.hang();
        for _ in 0..count {
            let memory = Lent::new(Memory(vec![0; PAGE], Arc::clone(&begun), Some(gate.0.clone())));
            drop(file.read_at(memory, offset).submit());
            offset += 1 << 20;
        }
        server.go_on();
    };
    hang(LETTING_GO_MAX - 1);
    assert!(eventually(|| begun.load(SeqCst) == LETTING_GO_MAX - 1));
    are_let_go(&nowait, device.path(), true);
    // The most that may drop at a time: no leftovers of this device in this instance are dropped now.
    hang(MANY);
    assert!(eventually(|| begun.load(SeqCst) == LETTING_GO_MAX));
    are_let_go(&nowait, &elsewhere, true);
    are_let_go(&other, device.path(), true);
    other.drain();
    drop(file.read_range(0, PAGE).wait().unwrap());
    drop(futures::executor::block_on(file.write_all_at(Buf::zeroed(PAGE), 0)).unwrap());
    drop(gate);
    assert!(eventually(|| begun.load(SeqCst) == LETTING_GO_MAX - 1 + MANY));
    are_let_go(&nowait, &elsewhere, true);
    assert_settled(&nowait);
}

/// Checks what is left of other files beside those that were dropped, whose `close(2)` hangs.
fn others_are_let_go(nowait: &Nowait, direct: bool) {
    let (_dir, path) = other_file();
    are_let_go(nowait, &path, direct);
    let other = Nowait::builder().build().unwrap();
    are_let_go(&other, &path, true);
    other.drain();
}

/// Begins a read of each, and drops both.
fn read_and_drop(files: Vec<File>, offset: u64) {
    for (i, file) in files.into_iter().enumerate() {
        let read = file.read_range(offset, PAGE);
        if i % 2 == 0 { read.on_complete(|page| drop(page.unwrap())) } else { drop(read.submit()) }
    }
}

#[test]
fn closes_that_a_server_does_not_answer() {
    child::play("server");
}

fn hang_closes() {
    let _watchdog = Watchdog::new("closes that a server does not answer", 180);
    let Some(mut server) = stalling(0) else { return };
    for (direct, offset) in [(false, READS_AT), (true, 2 * READS_AT - (1 << 20))] {
        let nowait = Nowait::builder().build().unwrap();
        let hung = (0..MANY).map(|_| open_at(&nowait, &server.file(), direct)).collect();
        // The reads have the files when they end: this thread would close what nothing uses.
        server.hang();
        read_and_drop(hung, offset);
        server.hang_closes();
        others_are_let_go(&nowait, direct);
        assert!(descriptors_of(&server.file()) > 0);
        server.go_on();
        assert!(eventually(|| descriptors_of(&server.file()) == 0));
        assert_settled(&nowait);
    }
}

/// The last close of a file that was removed frees its blocks, which changes the file system.
#[test]
fn closes_of_removed_files_on_a_frozen_file_system() {
    child::play("frozen");
}

fn freeze() {
    let _watchdog = Watchdog::new("closes on a frozen file system", 180);
    for kind in [Kind::Ext4, Kind::Xfs] {
        let Some(mount) = Mount::or_skip(kind) else { return };
        let nowait = Nowait::builder().build().unwrap();
        let open = |number: usize| {
            let path = mount.path().join(number.to_string());
            std::fs::write(&path, [1; 8 * PAGE]).unwrap();
            std::fs::File::open(&path).unwrap().sync_all().unwrap();
            let file = open_at(&nowait, &path, true);
            std::fs::remove_file(&path).unwrap();
            file
        };
        let hung = (0..MANY).map(open).collect();
        let frozen = Frozen::new(&mount);
        let drops = std::thread::spawn(|| read_and_drop(hung, 0));
        others_are_let_go(&nowait, true);
        drop(frozen);
        drops.join().unwrap();
        assert_settled(&nowait);
    }
}

#[test]
fn child() {
    match child::role().as_deref() {
        None => {}
        Some("destructors") => hang_destructors(),
        Some("server") => hang_closes(),
        Some("frozen") => freeze(),
        Some(other) => unreachable!("{other}"),
    }
}
