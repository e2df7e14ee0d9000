//! The operations of a task, chosen by its generator.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{Either, select};
use nowait::{Advice, Allocate, Result, Started};
use tokio::sync::oneshot;

use crate::common::rng::Rng;
use crate::world::{Executor, FRAME, REGION, REGIONS, Shared, World, lock};

/// An operation is chosen by this number of them.
const KINDS: usize = 21;
/// Appends of a run, so that their file fits a small disk: some 90 MB.
const APPENDS_MAX: u64 = 20_000;

/// Runs operations until the world stops.
pub(crate) async fn run(world: Arc<World>, executor: Executor, number: usize, rng: Rng) {
    let mut task = Task { world: world.clone(), executor, number, rng };
    while !world.stop.load(Relaxed) {
        task.step().await;
        world.ends(number);
        if task.one_in(50) {
            let pause = Duration::from_micros(task.rng.below(2000) as u64);
            task.pause(pause).await;
        }
        yield_now().await;
    }
}

async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|context: &mut Context<'_>| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

struct Task {
    world: Arc<World>,
    executor: Executor,
    number: usize,
    rng: Rng,
}

/// The bytes of a region that an operation concerns.
#[derive(Clone, Copy)]
struct Place<'w> {
    shared: &'w Shared,
    region: usize,
    at: usize,
    length: usize,
}

impl Place<'_> {
    fn offset(&self) -> u64 {
        (self.region * REGION + self.at) as u64
    }
}

/// The end of an operation; none if it was given up.
type Ended<T> = Option<Result<T>>;

impl Task {
    fn one_in(&mut self, count: usize) -> bool {
        self.rng.below(count) == 0
    }

    /// Lets other tasks of the executor run.
    fn pause(&self, pause: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        match self.executor {
            Executor::Tokio | Executor::CurrentThread => Box::pin(tokio::time::sleep(pause)),
            Executor::Other | Executor::Alone => Box::pin(async move { _ = smol::Timer::after(pause).await }),
        }
    }

    /// Whether this task may block its thread: tasks beside it on a current-thread runtime wait.
    fn may_block(&mut self) -> bool {
        self.executor != Executor::CurrentThread && self.one_in(4)
    }

    /// Polls a future to its end, a few times, or for a while.
    async fn perhaps<T>(&mut self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        let while_us = match self.rng.below(4) {
            0 => {
                for _ in 0..1 + self.rng.below(3) {
                    if let Poll::Ready(ended) = futures::poll!(future.as_mut()) {
                        return Some(ended);
                    }
                    if self.one_in(2) {
                        yield_now().await;
                    }
                }
                return None;
            }
            1 => self.rng.below(300),
            2 => self.rng.below(5000),
            _ => return Some(future.await),
        };
        match select(future, self.pause(Duration::from_micros(while_us as u64))).await {
            Either::Left((ended, _)) => Some(ended),
            Either::Right(_) => None,
        }
    }

    /// Waits for an operation that has started: here or on another thread, as a future, by a
    /// callback, or blocked.
    async fn finish<T: Send + 'static>(&mut self, mut started: Started<T>) -> T {
        let (sender, receiver) = oneshot::channel();
        let may_spawn = self.world.may_spawn.load(Relaxed);
        match self.rng.below(5) {
            0 if self.executor != Executor::CurrentThread => return started.wait(),
            1 => started.on_complete(move |ended| drop(sender.send(ended))),
            2 if may_spawn => drop(std::thread::spawn(move || sender.send(started.wait()))),
            3 if may_spawn => {
                // Its waker changes under way.
                if let Poll::Ready(ended) = futures::poll!(&mut started) {
                    return ended;
                }
                std::thread::spawn(move || sender.send(futures::executor::block_on(started)));
            }
            _ => return started.await,
        }
        receiver.await.expect("a started operation ends")
    }

    async fn step(&mut self) {
        let world = self.world.clone();
        let shared = &world.files[self.rng.below(world.files.len())];
        if self.one_in(400) {
            return self.cut(shared).await;
        }
        let _others_may = shared.gate.read().await;
        let region = self.rng.below(REGIONS);
        if std::mem::replace(&mut shared.region(region).is_taken, true) {
            return;
        }
        for _ in 0..1 + self.rng.below(5) {
            let (at, length) = if self.one_in(2) {
                let at = self.rng.below(REGION);
                (at, 1 + self.rng.below(REGION - at))
            } else {
                let page = self.rng.below(REGION / 4096);
                (page * 4096, (1 + self.rng.below(REGION / 4096 - page)) * 4096)
            };
            self.operate(Place { shared, region, at, length }).await;
        }
        shared.region(region).is_taken = false;
    }

    /// Cuts the file and makes it as long as before, with nothing else under way.
    async fn cut(&mut self, shared: &Shared) {
        self.world.begins(self.number, "cut", shared.name.clone());
        let _alone = shared.gate.write().await;
        shared.file.settled().await;
        let kept = self.rng.below(REGIONS + 1);
        let length = (kept * REGION) as u64;
        let ended = match self.one_in(2) {
            true => shared.file.set_len(length).await,
            false => self.finish(shared.file.set_len(length).submit()).await,
        };
        ended.unwrap();
        let size = shared.file.size().await.unwrap();
        if size != length {
            self.world.fault(format!("{} has {size} bytes after it was cut to {length}", shared.name));
        }
        shared.file.set_len((REGIONS * REGION) as u64).await.unwrap();
        for index in kept..REGIONS {
            shared.region(index).settle(&[0; REGION]);
        }
    }

    async fn operate(&mut self, place: Place<'_>) {
        let kind = self.rng.below(KINDS);
        match kind {
            0..6 => self.read(kind, place).await,
            6..16 => self.change(kind, place).await,
            16 => self.sync(place).await,
            17 => self.settle(place).await,
            18 => {
                self.begins("advise", place);
                let _ = place.shared.file.advise(place.offset(), place.length as u64, Advice::DontNeed).await;
            }
            _ => self.append(place).await,
        }
    }

    fn begins(&self, kind: &'static str, place: Place<'_>) {
        let Place { shared, region, at, length } = place;
        let executor = self.executor;
        let place = format!("{}, region {region}, {at}..{}, {executor:?}", shared.name, at + length);
        self.world.begins(self.number, kind, place);
    }

    fn check(&self, place: Place<'_>, kind: &str, read: &[u8]) {
        let Place { shared, region, at, length } = place;
        if read.len() != length {
            self.world.fault(format!("{kind}, {}: {} of {length} bytes", shared.name, read.len()));
        }
        if let Some(fault) = shared.region(region).fault(at, read) {
            self.world.fault(format!("{kind}, {}, region {region}: {fault}", shared.name));
        }
    }

    async fn read(&mut self, kind: usize, place: Place<'_>) {
        let (file, offset, length) = (&place.shared.file, place.offset(), place.length);
        let (name, ended): (_, Ended<Vec<u8>>) = match kind {
            0 => {
                self.begins("read_range", place);
                ("read_range", self.perhaps(file.read_range(offset, length)).await.map(|read| Ok(read?.to_vec())))
            }
            1 => {
                self.begins("read_at", place);
                let read = self.perhaps(file.read_at(vec![0; length], offset)).await;
                let whole = |(n, mut bytes): (usize, Vec<u8>)| {
                    bytes.truncate(n);
                    bytes
                };
                ("read_at", read.map(|read| read.map(whole).map_err(|error| error.error)))
            }
            2 => {
                self.begins("started read", place);
                let read = file.read_range(offset, length);
                let started = if self.one_in(2) { read.submit() } else { read.start() };
                let ended = match self.one_in(4) {
                    true => None,
                    false => Some(self.finish(started).await.map(|read| read.to_vec())),
                };
                ("started read", ended)
            }
            3 => {
                self.begins("read_into", place);
                let mut bytes = vec![0; length];
                let read = file.read_into(&mut bytes, offset);
                bytes.truncate(*read.as_ref().unwrap_or(&0));
                ("read_into", Some(read.map(|_| bytes)))
            }
            4 => {
                self.begins("waited read", place);
                let read = if self.may_block() { file.read_range(offset, length).wait() } else { return };
                ("waited read", Some(read.map(|read| read.to_vec())))
            }
            _ => return self.gather(place).await,
        };
        match ended {
            Some(Ok(read)) => self.check(place, name, &read),
            Some(Err(error)) => self.world.fault(format!("{name}: {error}")),
            None => {}
        }
    }

    async fn gather(&mut self, place: Place<'_>) {
        self.begins("gather", place);
        let Place { shared, region, .. } = place;
        let mut range = || {
            let at = self.rng.below(REGION);
            (at, self.rng.below((REGION - at + 1).min(5000)))
        };
        let ranges: Vec<_> = (0..20).map(|_| range()).collect();
        let count = 1 + self.rng.below(ranges.len());
        let extents = ranges[..count].iter().map(|(at, length)| ((region * REGION + at) as u64, *length));
        let gather = shared.file.gather(extents.collect::<Vec<_>>()).gap_bytes(self.rng.below(3) as u64 * 4096);
        let gathered = if self.may_block() { Some(gather.wait()) } else { self.perhaps(gather).await };
        match gathered {
            Some(Ok(gathered)) => {
                for (index, (at, length)) in ranges[..count].iter().enumerate() {
                    match gathered.get(index) {
                        Ok(read) => self.check(Place { at: *at, length: *length, ..place }, "gather", read),
                        Err(error) => self.world.fault(format!("gather: {error}")),
                    }
                }
            }
            Some(Err(error)) => self.world.fault(format!("gather: {}", error.error)),
            None => {}
        }
    }

    async fn change(&mut self, kind: usize, place: Place<'_>) {
        let (file, offset, length) = (&place.shared.file, place.offset(), place.length);
        let mut bytes = vec![1 + self.rng.below(255) as u8; length];
        let write = || file.write_all_at(bytes.clone(), offset);
        fn ended<T, B>(result: std::result::Result<T, nowait::BufferError<B>>) -> Result<()> {
            result.map(drop).map_err(|error| error.error)
        }
        let (name, ended): (_, Ended<()>) = match kind {
            6 | 7 => {
                self.begins("write", place);
                ("write", self.perhaps(write()).await.map(ended))
            }
            8 => {
                self.begins("durable write", place);
                ("durable write", self.perhaps(write().durable()).await.map(ended))
            }
            9 => {
                self.begins("vectored write", place);
                let (first, second) = bytes.split_at(self.rng.below(length + 1));
                let parts = vec![first.to_vec(), second.to_vec(), Vec::new()];
                let written = self.perhaps(file.write_vectored_at(parts, offset)).await;
                let short = |(n, _): &&(usize, _)| *n != length;
                if let Some((n, _)) = written.as_ref().and_then(|written| written.as_ref().ok()).filter(short) {
                    self.world.fault(format!("vectored write: {n} of {length} bytes"));
                }
                ("vectored write", written.map(ended))
            }
            10 => {
                self.begins("started write", place);
                let write = write();
                let write = if self.one_in(4) { write.durable() } else { write };
                let started = if self.one_in(2) { write.submit() } else { write.start() };
                let done = match self.rng.below(5) {
                    0 => None,
                    1 => {
                        started.detach();
                        file.settled().await;
                        Some(Ok(()))
                    }
                    _ => Some(ended(self.finish(started).await)),
                };
                ("started write", done)
            }
            11 => {
                self.begins("waited write", place);
                if self.executor == Executor::CurrentThread {
                    return;
                }
                ("waited write", Some(ended(write().wait())))
            }
            12 => {
                self.begins("write_all_from", place);
                ("write_all_from", Some(file.write_all_from(&bytes, offset)))
            }
            13 => {
                self.begins("write_many", place);
                let (mut writes, mut at) = (Vec::new(), 0);
                while at < length {
                    let part = (1 + self.rng.below(6000)).min(length - at);
                    bytes[at..at + part].fill(1 + self.rng.below(255) as u8);
                    writes.push((offset + at as u64, bytes[at..at + part].to_vec()));
                    at += part;
                }
                ("write_many", self.perhaps(file.write_many(writes)).await.map(ended))
            }
            14 => {
                self.begins("try_write_at", place);
                let Ok(started) = file.try_write_at(bytes.clone(), offset) else { return };
                ("try_write_at", Some(ended(self.finish(started).await)))
            }
            _ => {
                self.begins("allocate", place);
                let how = if self.one_in(2) { Allocate::PunchHole } else { Allocate::Zero };
                bytes.fill(0);
                let done = match self.perhaps(file.allocate(how, offset, length as u64)).await {
                    Some(Err(error)) if error.kind() == nowait::ErrorKind::Unsupported => return,
                    other => other,
                };
                ("allocate", done)
            }
        };
        let mut region = place.shared.region(place.region);
        match ended {
            Some(Ok(())) => region.wrote(place.at, &bytes),
            Some(Err(error)) => self.world.fault(format!("{name}, {}: {error}", place.shared.name)),
            None => {
                self.world.given_up.fetch_add(1, Relaxed);
                region.gave_up(place.at, &bytes);
            }
        }
    }

    async fn sync(&mut self, place: Place<'_>) {
        self.begins("sync", place);
        let file = &place.shared.file;
        let sync = match self.rng.below(3) {
            0 => file.sync_all(),
            1 => file.sync_data(),
            _ => file.sync_range(place.offset(), place.length as u64),
        };
        let ended = if self.may_block() { Some(sync.wait()) } else { self.perhaps(sync).await };
        if let Some(Err(error)) = ended {
            self.world.fault(format!("sync: {error}"));
        }
    }

    /// What is read after `settled` is read again later.
    async fn settle(&mut self, place: Place<'_>) {
        self.begins("settled", place);
        let Place { shared, region, .. } = place;
        let whole = Place { at: 0, length: REGION, ..place };
        shared.file.settled().await;
        for _ in 0..2 {
            match shared.file.read_range(whole.offset(), REGION).await {
                Ok(read) => {
                    self.check(whole, "read after settled", &read);
                    shared.region(region).settle(&read);
                }
                Err(error) => self.world.fault(format!("read after settled: {error}")),
            }
            for _ in 0..self.rng.below(3) {
                yield_now().await;
            }
        }
    }

    async fn append(&mut self, place: Place<'_>) {
        let number = self.world.records.fetch_add(1, Relaxed);
        if number >= APPENDS_MAX {
            return;
        }
        self.begins("append", place);
        let length = FRAME + self.rng.below(9000);
        let mut record = Vec::with_capacity(length);
        record.extend_from_slice(&number.to_le_bytes());
        record.extend_from_slice(&(length as u32).to_le_bytes());
        record.resize(length, number as u8);
        let world = self.world.clone();
        let append = world.appended.append(record);
        let ended = if self.may_block() { Some(append.wait()) } else { self.perhaps(append).await };
        match ended {
            Some(Ok(_)) => lock(&world.acknowledged).push(number),
            Some(Err(error)) => world.fault(format!("append: {}", error.error)),
            None => {}
        }
    }
}
