//! Random operations on a cached file of a simulated disk, in flight together on one thread.

use std::future::Future;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use nowait::sim::{Faults, Sim};
use nowait::{Engine, ErrorKind, File, Nowait, OpenOptions, Result};
use nowait_cache::{Access, CachedFile, Lease, PageCache};

use super::Random;
use super::model::{Id, Model, VALUES};

/// Name of the file.
pub(crate) const NAME: &str = "file";

/// Operations in flight.
const TASKS_MAX: usize = 8;

/// Contents in which neighbours and pages differ, of values of the model.
pub(crate) fn contents(length: usize) -> Vec<u8> {
    (0..length).map(|at| ((at / 16 + at / 4096 * 5) as u64 % VALUES) as u8).collect()
}

pub(crate) fn opened(sim: &Sim) -> File {
    // Strict, so that the way of a write does not depend on the time that calls take.
    let nowait = Nowait::builder().strict(true).engine(Engine::Sim(sim.clone())).build().unwrap();
    OpenOptions::new().read(true).write(true).open_in(&nowait, NAME).wait().unwrap()
}

/// Faults of a run: each with a chance of a half.
pub(crate) fn faults(random: &mut Random) -> Faults {
    let mut faults = Faults::default();
    let mut chance = |most: u64| if random.below(2) == 0 { 0.0 } else { random.below(most) as f64 / 1000.0 };
    (faults.short, faults.short_now) = (chance(600), chance(600));
    (faults.interrupted, faults.empty_now) = (chance(300), chance(200));
    (faults.read_error, faults.write_error, faults.no_space) = (chance(300), chance(300), chance(300));
    // Attempts that succeed leave little in flight.
    faults.not_now = [0.3, 0.8, 1.0][random.below(3) as usize];
    faults
}

/// Polls a future, and completes what the disk has in flight, until it is ready.
pub(crate) fn driven<T>(sim: &Sim, future: impl Future<Output = T>) -> T {
    let (mut future, began) = (pin!(future), Instant::now());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
        assert!(sim.step() || began.elapsed() < Duration::from_secs(5), "nothing is in flight");
    }
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Result of an operation.
enum Ended {
    Read(Result<Vec<Lease>>),
    Write(Result<()>),
    Sync(Result<()>),
}

struct Task {
    future: Pin<Box<dyn Future<Output = Ended>>>,
    woken: Arc<Woken>,
    /// Its reads, write or sync in the model.
    ids: Vec<Id>,
    /// Bytes of a write; length of the file that a sync covers.
    length: u64,
    /// The file was cut meanwhile.
    is_cut: bool,
}

pub(crate) struct Run {
    pub(crate) sim: Sim,
    pub(crate) cache: PageCache,
    pub(crate) model: Model,
    pub(crate) random: Random,
    faults: Faults,
    handles: Vec<Rc<CachedFile>>,
    tasks: Vec<Task>,
    leases: Vec<(Lease, Vec<u8>)>,
    frames: u64,
    length_max: u64,
    /// Begins no operation whose pages are counted otherwise: several pages, or one that was given up.
    is_counted: bool,
    /// Pages that were read, and writes whose results are known.
    found: u64,
    writes: (u64, u64),
    has_unknown_writes: bool,
    /// Length of the file when the last sync that succeeded began.
    pub(crate) synced_length: u64,
    value: u8,
}

impl Run {
    /// A run with pages of this size.
    pub(crate) fn new(seed: u64, page: u64) -> Run {
        let mut random = Random(seed);
        (0..4).for_each(|_| _ = random.below(1));
        // The larger the pages, the fewer, so that a comparison of the file takes the same time.
        let frames = 4 + random.below(if page > 4 << 10 { 3 } else { 13 });
        let length_max = (frames + 3 + random.below(4)) * page;
        let bytes = contents(random.below(length_max * 3 / 4) as usize);
        let sim = Sim::manual(seed);
        sim.create(NAME, bytes.clone());
        let cache = PageCache::builder()
            .capacity_bytes(frames * page)
            .page_bytes(page as usize)
            .read_ahead_bytes_max(random.below(2) as usize * 4 * page as usize)
            .build()
            .unwrap();
        let files = [opened(&sim), opened(&sim)];
        let handles = files.iter().map(|file| Rc::new(cache.open(file, Access::Exclusive).unwrap())).collect();
        let (faults, is_counted) = (faults(&mut random), random.below(4) == 0);
        sim.set_faults(faults);
        sim.set_depth([1, 3, 64][random.below(3) as usize]);
        Run {
            model: Model::new(&bytes, length_max as usize),
            faults,
            is_counted: is_counted && faults.read_error == 0.0,
            synced_length: bytes.len() as u64,
            tasks: Vec::new(),
            leases: Vec::new(),
            found: 0,
            writes: (0, 0),
            has_unknown_writes: false,
            value: 0,
            sim,
            cache,
            random,
            handles,
            frames,
            length_max,
        }
    }

    pub(crate) fn file(&self) -> &Rc<CachedFile> {
        &self.handles[0]
    }

    fn handle(&mut self) -> Rc<CachedFile> {
        self.handles[self.random.below(self.handles.len() as u64) as usize].clone()
    }

    fn page(&self) -> u64 {
        self.cache.page_bytes() as u64
    }

    /// A range before `end`, in which the bounds of pages are likely; empty if `end` is zero.
    fn range(&mut self, end: u64) -> Range<u64> {
        let page = self.page();
        let most = [10, 600, page, 3 * page][self.random.below(4) as usize];
        let (mut start, length) = (self.random.below(end), 1 + self.random.below(most));
        let mut stop = start + length;
        match self.random.below(3) {
            0 => (start, stop) = (start / page * page, (start / page * page + length).next_multiple_of(page)),
            1 => stop = stop.min((start / page + 1) * page),
            _ => {}
        }
        start..stop.min(end)
    }

    /// A range to be read. A counted one is in a page.
    fn read_range(&mut self) -> Range<u64> {
        let (size, page) = (self.file().size(), self.page());
        let range = self.range(size);
        let end = if self.is_counted { range.end.min((range.start / page + 1) * page) } else { range.end };
        range.start..end
    }

    fn begin(&mut self, ids: Vec<Id>, length: u64, future: impl Future<Output = Ended> + 'static) {
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        self.tasks.push(Task { future: Box::pin(future), woken, ids, length, is_cut: false });
        self.poll();
    }

    /// Polls all tasks that were woken.
    pub(crate) fn poll(&mut self) {
        let mut index = 0;
        while index < self.tasks.len() {
            let task = &mut self.tasks[index];
            index += 1;
            if !task.woken.0.swap(false, Ordering::Acquire) {
                continue;
            }
            let waker = Waker::from(task.woken.clone());
            // Other tasks of the thread have used a part of the turn, so it may end at any part of a read.
            nowait::embed::turn::copied(self.random.below(2) as usize * 40_000);
            if let Poll::Ready(ended) = task.future.as_mut().poll(&mut Context::from_waker(&waker)) {
                index -= 1;
                let task = self.tasks.swap_remove(index);
                self.end(task, ended);
            }
        }
    }

    fn end(&mut self, task: Task, ended: Ended) {
        match ended {
            Ended::Read(Ok(leases)) => {
                assert_eq!(leases.len(), task.ids.len());
                for (id, lease) in task.ids.into_iter().zip(leases) {
                    self.found += u64::from(!lease.is_empty());
                    self.model.end_read(id, &lease).unwrap();
                    if self.random.below(3) == 0 && self.leases.len() as u64 + 2 < self.frames {
                        let bytes = lease.to_vec();
                        self.leases.push((lease, bytes));
                    }
                }
            }
            Ended::Read(Err(error)) => {
                let is_cut = error.kind() == ErrorKind::UnexpectedEof && task.is_cut;
                assert!(is_cut || error.kind() == ErrorKind::Io && self.faults.read_error > 0.0, "{error}");
                task.ids.into_iter().for_each(|id| self.model.drop_read(id));
            }
            Ended::Write(written) => {
                if let Err(error) = &written {
                    let is_full = error.kind() == ErrorKind::NoSpace && self.faults.no_space > 0.0;
                    let has_failed = error.kind() == ErrorKind::Io && self.faults.write_error > 0.0;
                    assert!(is_full || has_failed, "{error}");
                } else {
                    self.writes = (self.writes.0 + 1, self.writes.1 + task.length);
                }
                self.model.end_write(task.ids[0], written.is_ok());
            }
            Ended::Sync(synced) => {
                self.model.end_sync(task.ids[0], synced.is_ok());
                if synced.is_ok() {
                    self.synced_length = self.synced_length.max(task.length);
                }
            }
        }
    }

    /// Does one thing at random.
    pub(crate) fn step(&mut self) {
        let file = self.handle();
        match self.random.below(26) {
            0..=5 if self.tasks.len() < TASKS_MAX => {
                let range = self.read_range();
                let ids = vec![self.model.begin(&range)];
                let read = async move { Ended::Read(file.get(range).await.map(|lease| vec![lease])) };
                self.begin(ids, 0, read);
            }
            6..=7 if self.tasks.len() < TASKS_MAX && !self.is_counted => {
                let ranges: Vec<_> = (0..self.random.below(5)).map(|_| self.read_range()).collect();
                let ids = ranges.iter().map(|range| self.model.begin(range)).collect();
                self.begin(ids, 0, async move { Ended::Read(file.gather(&ranges).await) });
            }
            8..=11 if self.tasks.len() < TASKS_MAX => {
                let range = self.range((file.size() + self.page()).min(self.length_max));
                self.value = (self.value + 1) % VALUES as u8;
                let (id, length) = (self.model.begin_write(&range, self.value), range.end - range.start);
                let bytes = vec![self.value; length as usize];
                let write = async move { file.write_all_at(bytes, range.start).await };
                self.begin(vec![id], length, async {
                    Ended::Write(write.await.map(drop).map_err(|error| error.error))
                });
            }
            12..=13 => {
                let range = self.read_range();
                let id = self.model.begin(&range);
                match file.try_get(range) {
                    Some(lease) => {
                        self.found += 1;
                        self.model.end_read(id, &lease).unwrap();
                    }
                    None => self.model.drop_read(id),
                }
            }
            14 => file.invalidate(self.read_range()),
            15 if !self.is_counted && !self.tasks.is_empty() => {
                let dropped = self.random.below(self.tasks.len() as u64) as usize;
                self.give_up(dropped);
            }
            16 if self.tasks.len() < TASKS_MAX => self.sync(),
            17 => {
                // Leases leave two frames.
                let frames = 2 + self.leases.len() as u64 + self.random.below(self.frames);
                self.cache.set_capacity_bytes(frames * self.page());
            }
            18..=19 => drop(self.leases.pop()),
            20 if self.handles.len() < 4 => self.handles.push(Rc::new(CachedFile::clone(&file))),
            21 if !self.is_counted && self.random.below(4) == 0 => {
                let length = self.random.below(self.length_max);
                self.set_len(length);
            }
            22 if self.random.below(2) == 0 => _ = file.revalidate().unwrap(),
            _ => {
                for _ in 0..1 + self.random.below(4) {
                    self.sim.step();
                }
            }
        }
        self.poll();
        assert!(self.leases.iter().all(|(lease, bytes)| lease[..] == bytes[..]), "a lease has changed");
        let stats = self.cache.stats();
        assert!(stats.cached * self.page() <= self.cache.capacity_bytes() && stats.pinned <= self.frames, "{stats:?}");
    }

    pub(crate) fn sync(&mut self) {
        let (file, length) = (self.handle(), self.length());
        let id = self.model.begin(&(0..self.length_max));
        self.begin(vec![id], length, async move { Ended::Sync(file.file().sync_data().await) });
    }

    /// Drops a task in flight.
    fn give_up(&mut self, index: usize) {
        let task = self.tasks.swap_remove(index);
        match (task.length, &task.ids[..]) {
            (0, ids) => ids.iter().for_each(|id| self.model.drop_read(*id)),
            // A write may still be made.
            (_, [id]) if self.model.is_write(*id) => self.has_unknown_writes = true,
            (_, ids) => ids.iter().for_each(|id| self.model.end_sync(*id, false)),
        }
    }

    fn length(&self) -> u64 {
        self.file().file().simulated().unwrap().size
    }

    /// Ends all that is in flight.
    fn drive(&mut self) {
        let began = Instant::now();
        loop {
            self.poll();
            self.leases.clear();
            if !self.sim.step() && self.sim.pending() == 0 && self.tasks.is_empty() {
                return;
            }
            // The thread of the cache may have to wake one that waits for a frame.
            assert!(began.elapsed() < Duration::from_secs(5), "{} tasks were not woken", self.tasks.len());
        }
    }

    /// Ends all that is in flight, and compares file, cache and model.
    pub(crate) fn settle(&mut self) {
        self.drive();
        self.sim.set_faults(Faults::default());
        let contents = self.sim.contents(NAME).unwrap();
        self.model.settle(&contents).unwrap();
        assert_eq!(self.file().size(), contents.len() as u64);
        let mut offset = 0;
        while offset < contents.len() as u64 {
            let range = offset..(offset + self.page()).min(contents.len() as u64);
            let expected = &contents[offset as usize..range.end as usize];
            if let Some(lease) = self.file().try_get(range.clone()) {
                self.found += 1;
                assert!(lease[..] == *expected, "cached bytes {range:?} are not those of the file");
            }
            let lease = driven(&self.sim, self.file().get(range.clone())).unwrap();
            self.found += 1;
            assert!(lease[..] == *expected, "bytes {range:?} are not those of the file");
            offset += self.page();
        }
        self.sim.set_faults(self.faults);
    }

    /// Changes the length by another way than the cache.
    fn set_len(&mut self, length: u64) {
        let file = self.handle();
        // Ordered after overlapping writes in flight.
        driven(&self.sim, file.file().set_len(length)).unwrap();
        file.revalidate().unwrap();
        assert_eq!(file.size(), self.length());
        for task in &mut self.tasks {
            task.is_cut = true;
            let is_write = task.ids.first().is_some_and(|id| self.model.is_write(*id));
            task.length = if is_write { task.length } else { task.length.min(length) };
        }
        self.model.set_len(length);
        self.synced_length = self.synced_length.min(length);
    }

    /// Ends the run: nothing is pinned or lost, and the counters are right.
    pub(crate) fn finish(mut self) {
        self.settle();
        let stats = self.cache.stats();
        assert_eq!(stats.pinned, 0, "{stats:?}");
        if self.is_counted {
            let read_ahead_is_no_miss = stats.hits + stats.joins + stats.misses;
            assert_eq!((read_ahead_is_no_miss, stats.failures, stats.uncached), (self.found, 0, 0), "{stats:?}");
        }
        if !self.has_unknown_writes {
            assert_eq!((stats.writes, stats.written_bytes), self.writes, "{stats:?}");
        }
        self.sim.set_faults(Faults::default());
        self.set_len(self.length_max);
        self.cache.set_capacity_bytes(u64::MAX);
        let page = self.page();
        let first_of = |number: u64| number * page..number * page + 1;
        let leases: Vec<_> =
            (0..self.frames).map(|page| driven(&self.sim, self.file().get(first_of(page))).unwrap()).collect();
        assert_eq!(self.cache.stats().pinned, self.frames, "each frame is leased once");
        drop(leases);
        assert_eq!(self.cache.stats().pinned, 0);
    }
}
