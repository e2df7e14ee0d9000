//! Random operations on one file, against a model that is a `Vec<u8>`: what fsx does, for futures.
//!
//! Some futures are dropped before they are ready. Such a write is in the file in part, by whole
//! pages, from its start; what became of it is found by reading, once nothing is under way, and the
//! model follows.
//!
//! `NOWAIT_MODEL_SECONDS` says how long each instance is worked on.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use crate::common::mounts::{Kind, Mount, temp_dir};
use crate::common::rng::Rng;
use crate::common::{
    Watchdog, Way, assert_settled, cold, contents, expected, kept_of_dropped, poll_once, put, writable,
};
use futures::future::join_all;
use nowait::sim::{Faults, Sim};
use nowait::{Builder, Engine, File, Nowait, OpenOptions, Route};

/// The file stays about as long as this.
const LEN_MAX: usize = 300_000;

/// How long one instance is worked on.
fn time() -> Duration {
    match std::env::var("NOWAIT_MODEL_SECONDS") {
        Ok(text) => Duration::from_secs(text.parse().expect("NOWAIT_MODEL_SECONDS is a number")),
        Err(_) => Duration::from_millis(300),
    }
}

struct Model {
    nowait: Nowait,
    file: File,
    /// The same file, opened for appending.
    log: File,
    bytes: Vec<u8>,
    rng: Rng,
    /// A file system, on which pages are written as a whole; a simulator writes what it likes.
    real: bool,
}

/// Works on a file for a while.
fn work(nowait: Nowait, file: File, real: bool) {
    let time = time();
    let _watchdog = Watchdog::new("model", 60 + 2 * time.as_secs());
    let log = OpenOptions::new().append(true).open_in(&nowait, file.path()).wait().unwrap();
    let mut model = Model { nowait, file, log, bytes: Vec::new(), rng: Rng::for_test(), real };
    let until = Instant::now() + time;
    let mut number = 0;
    // On a slow machine or a busy disk, longer.
    while Instant::now() < until || number <= 10 {
        // The numbers and names tell where a failing run was.
        let name = model.step();
        number += 1;
        if number % 16 == 0 {
            model.check(&format!("{number}: {name}"));
        }
    }
    model.check("the end");
    eprintln!("{number} operations");
    assert_settled(&model.nowait);
}

impl Model {
    fn way(&mut self) -> Way {
        Way::ALL[self.rng.below(3)]
    }

    /// An offset, sometimes at a page or at the end, sometimes beyond.
    fn offset(&mut self) -> u64 {
        let len = self.bytes.len();
        let offset = match self.rng.below(8) {
            0 => len,
            1 => len + self.rng.below(20_000),
            2..4 => self.rng.below(len + 1) / 4096 * 4096,
            _ => self.rng.below(len + 1),
        };
        offset.min(LEN_MAX) as u64
    }

    /// Bytes to write.
    fn data(&mut self) -> Vec<u8> {
        let len = match self.rng.below(8) {
            0 => 0,
            1 => 4096,
            2 => 4096 * self.rng.below(5),
            3 => self.rng.below(40_000),
            _ => self.rng.below(6000),
        };
        contents(len, self.rng.next())
    }

    #[track_caller]
    fn check(&self, when: &str) {
        let mut read = vec![0; self.bytes.len() + 1];
        let n = self.file.read_into(&mut read, 0).unwrap();
        let differs = read.iter().zip(&self.bytes).position(|(a, b)| a != b);
        assert_eq!((n, differs), (self.bytes.len(), None), "length and first difference, after {when}");
        assert_eq!(self.file.size().wait().unwrap(), n as u64, "after {when}");
        if self.real {
            assert!(std::fs::read(self.file.path()).unwrap() == self.bytes, "others read something else after {when}");
        }
    }

    fn step(&mut self) -> &'static str {
        match self.rng.below(24) {
            0..3 => self.read(),
            3 => self.gather(),
            4..9 => self.write(),
            9 => self.vectored(),
            10..12 => self.write_many(),
            12..15 => self.append(),
            15 => self.set_len(),
            16 => self.sync(),
            17..20 => self.batch(),
            20..23 => self.dropped(),
            _ => self.cool(),
        }
    }

    fn read(&mut self) -> &'static str {
        let (offset, len, way) = (self.offset(), self.rng.below(20_000), self.way());
        let (n, buffer) = way.run(self.file.read_at(vec![0; len], offset)).unwrap();
        assert!(buffer[..n] == *expected(&self.bytes, offset, len), "read of {len} bytes at {offset}, {way:?}");
        "read"
    }

    fn gather(&mut self) -> &'static str {
        let ranges: Vec<(u64, usize)> =
            (0..self.rng.below(20)).map(|_| (self.offset(), self.rng.below(5000))).collect();
        let rows = match self.way() {
            Way::Waited => self.file.gather(&ranges).wait(),
            way => way.run_future(self.file.gather(&ranges)),
        };
        for (row, (offset, len)) in rows.unwrap().iter().zip(&ranges) {
            let right = expected(&self.bytes, *offset, *len);
            match row {
                Ok(row) => assert!(row == right, "gather of {len} bytes at {offset}"),
                Err(error) => assert!(right.len() < *len, "{error}"),
            }
        }
        "gather"
    }

    fn write(&mut self) -> &'static str {
        let (offset, data, way) = (self.offset(), self.data(), self.way());
        let n = match self.rng.below(6) {
            0 => self.file.write_from(&data, offset).unwrap(),
            1 => way.run(self.file.write_at(data.clone(), offset).durable()).unwrap().0,
            2 => way.run(self.file.write_all_at(data.clone(), offset)).unwrap().len(),
            3 => match self.file.try_write_at(data.clone(), offset) {
                Ok(write) => way.end(write).unwrap().len(),
                Err(error) => panic!("nothing else is under way: {error}"),
            },
            _ => way.run(self.file.write_at(data.clone(), offset)).unwrap().0,
        };
        assert_eq!(n, data.len());
        put(&mut self.bytes, offset, &data);
        "write"
    }

    fn vectored(&mut self) -> &'static str {
        let (offset, way) = (self.offset(), self.way());
        let buffers: Vec<_> = (0..self.rng.below(5)).map(|_| self.data()).collect();
        let (n, back) = way.run(self.file.write_vectored_at(buffers.clone(), offset)).unwrap();
        assert!(n == buffers.concat().len() && back == buffers);
        put(&mut self.bytes, offset, &buffers.concat());
        "vectored write"
    }

    fn write_many(&mut self) -> &'static str {
        let mut writes: Vec<(u64, Vec<u8>)> = Vec::new();
        for _ in 0..self.rng.below(12) {
            let data = self.data();
            let offset = match writes.last() {
                Some((offset, before)) if self.rng.below(2) == 0 => offset + before.len() as u64,
                _ => self.offset(),
            };
            // A simulated disk completes in any order.
            let overlaps = |(other, there): &(u64, Vec<u8>)| {
                offset < other + there.len() as u64 && *other < offset + data.len() as u64
            };
            if self.real || !writes.iter().any(overlaps) {
                writes.push((offset, data));
            }
        }
        writes.iter().for_each(|(offset, data)| put(&mut self.bytes, *offset, data));
        let way = self.way();
        let many = self.file.write_many(writes);
        match way {
            Way::Waited => drop(many.wait().unwrap()),
            way => drop(way.run_future(many).unwrap()),
        }
        "many writes"
    }

    fn append(&mut self) -> &'static str {
        let (data, way) = (self.data(), self.way());
        if self.bytes.len() + data.len() <= 2 * LEN_MAX {
            match self.rng.below(4) {
                0 => {
                    let offset = self.offset();
                    way.run(self.log.write_all_at(data.clone(), offset)).unwrap()
                }
                1 => way.run(self.log.append(data.clone())).unwrap(),
                _ => way.run(self.file.append(data.clone())).unwrap(),
            };
            self.bytes.extend_from_slice(&data);
        }
        "append"
    }

    fn set_len(&mut self) -> &'static str {
        let (len, way) = (self.offset(), self.way());
        way.run(self.file.set_len(len)).unwrap();
        self.bytes.resize(len as usize, 0);
        "set_len"
    }

    fn sync(&mut self) -> &'static str {
        let (offset, way) = (self.offset(), self.way());
        match self.rng.below(4) {
            0 => way.run(self.file.sync_all()).unwrap(),
            1 => way.run(self.file.sync_data()).unwrap(),
            _ => way.run(self.file.sync_range(offset, 10_000)).unwrap(),
        }
        "sync"
    }

    /// Writes that do not touch each other.
    fn disjoint(&mut self) -> Vec<(u64, Vec<u8>)> {
        let mut offset = self.offset();
        let mut writes: Vec<(u64, Vec<u8>)> = (0..1 + self.rng.below(30))
            .map(|_| {
                let data = self.data();
                let start = offset + [0, self.rng.below(5000) as u64][self.rng.below(2)];
                offset = start + data.len() as u64;
                (start, data)
            })
            .collect();
        (1..writes.len()).for_each(|i| writes.swap(i, self.rng.below(i + 1)));
        writes
    }

    fn batch(&mut self) -> &'static str {
        let (writes, syncs, own) = (self.disjoint(), self.rng.below(3), self.rng.below(2) == 0);
        let file = &self.file;
        let task = async {
            let under_way = join_all(writes.iter().map(|(offset, data)| file.write_all_at(data.clone(), *offset)));
            let syncs = join_all((0..syncs).map(|_| file.sync_data()));
            let (written, synced) = futures::future::join(under_way, syncs).await;
            written.into_iter().for_each(|write| drop(write.unwrap()));
            synced.into_iter().for_each(|sync| sync.unwrap());
        };
        if own {
            nowait::block_on(task)
        } else {
            futures::executor::block_on(task)
        }
        writes.iter().for_each(|(offset, data)| put(&mut self.bytes, *offset, data));
        "batch"
    }

    /// Some are dropped after their first poll; then what they did is found out.
    fn dropped(&mut self) -> &'static str {
        let writes = self.disjoint();
        let mut kept: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
        let mut fates = Vec::new();
        for (offset, data) in &writes {
            let write = self.file.write_all_at(data.clone(), *offset);
            let mut write: Pin<Box<dyn Future<Output = ()> + '_>> = Box::pin(async { drop(write.await.unwrap()) });
            let drops = self.rng.below(2) == 0;
            let ready = poll_once(write.as_mut()).is_ready();
            if !ready && !drops {
                kept.push(write);
            }
            fates.push(ready || !drops);
        }
        futures::executor::block_on(join_all(kept));
        self.nowait.drain();
        let mut now = vec![0; 4 * LEN_MAX];
        let n = self.file.read_into(&mut now, 0).unwrap();
        now.truncate(n);
        // The length says how far those beyond the end came.
        let mut right = self.bytes.clone();
        for ((offset, data), whole) in writes.iter().zip(&fates) {
            let (start, len) = (*offset as usize, data.len());
            let mut old = expected(&self.bytes, *offset, len).to_vec();
            old.resize(len, 0);
            let there = expected(&now, *offset, len);
            let mut padded = there.to_vec();
            padded.resize(len, 0);
            let kept = kept_of_dropped(&old, data, &padded, *offset, self.real);
            let kept = kept.unwrap_or_else(|| panic!("a write of {len} bytes at {start} is neither old nor new"));
            let kept = kept.min(there.len());
            assert!(kept == len || !whole, "a write of {len} bytes at {start} is there only up to {kept}");
            put(&mut right, *offset, &data[..kept]);
        }
        assert_eq!(right.len(), now.len(), "length after dropped writes");
        assert!(right == now, "something else was written to");
        self.bytes = right;
        "dropped writes"
    }

    fn cool(&mut self) -> &'static str {
        if self.real {
            cold::drop_pages(self.file.path());
        }
        "cool"
    }
}

fn on(builder: Builder, folder: &std::path::Path) {
    let folder = tempfile::tempdir_in(folder).unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, []).unwrap();
    let nowait = builder.build().unwrap();
    let file = writable(&nowait, &path);
    work(nowait, file, true);
}

fn simulated(builder: Builder, set: impl FnOnce(&mut Faults)) {
    let mut faults = Faults::default();
    set(&mut faults);
    let sim = Sim::new(Rng::for_test().next());
    sim.set_faults(faults);
    sim.create("file", []);
    let nowait = builder.engine(Engine::Sim(sim)).build().unwrap();
    let file = writable(&nowait, "file".as_ref());
    work(nowait, file, false);
}

#[test]
fn every_engine_and_path() {
    let folder = temp_dir();
    for (name, builder) in [
        ("auto", Nowait::builder()),
        ("strict", Nowait::builder().strict(true)),
        ("pool", Nowait::builder().engine(Engine::Pool)),
        ("pool of one thread", Nowait::builder().engine(Engine::Pool).route(Some(Route::Pool)).pool_threads_max(1)),
        ("inline", Nowait::builder().route(Some(Route::Inline))),
        ("for the pool", Nowait::builder().route(Some(Route::Pool))),
        ("for the ring", Nowait::builder().route(Some(Route::Ring))),
        ("little inline", Nowait::builder().inline_bytes_max(3000)),
    ] {
        eprintln!("{name}");
        on(builder, folder.path());
    }
}

#[test]
fn simulator() {
    for route in [None, Some(Route::Inline), Some(Route::Pool)] {
        simulated(Nowait::builder().route(route), |_| {});
        simulated(Nowait::builder().route(route), |faults| {
            (faults.not_now, faults.empty_now, faults.short_now) = (0.3, 0.3, 0.3);
            (faults.short, faults.interrupted) = (0.3, 0.3);
        });
        simulated(Nowait::builder().route(route).strict(true), |faults| {
            (faults.nowait_refused, faults.short) = (true, 0.3);
        });
    }
}

fn on_mount(kind: Kind) {
    let Some(mount) = Mount::or_skip(kind) else { return };
    for builder in [Nowait::builder(), Nowait::builder().strict(true), Nowait::builder().route(Some(Route::Pool))] {
        on(builder, mount.path());
    }
}

#[test]
fn ext4_with_a_journal() {
    on_mount(Kind::Ext4);
}

#[test]
fn xfs() {
    on_mount(Kind::Xfs);
}

#[test]
fn btrfs() {
    on_mount(Kind::Btrfs);
}

#[test]
fn tmpfs() {
    on_mount(Kind::Tmpfs);
}

#[test]
fn overlayfs() {
    on_mount(Kind::Overlay);
}
