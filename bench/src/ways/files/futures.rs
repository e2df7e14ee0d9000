//! Tasks: on tokio with `spawn_blocking`, as `tokio::fs::read` does it; and `nowait`, by
//! `nowait::fs::read` and reads of its open files.

use std::cell::RefCell;
use std::fs;
use std::future::Future;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use nowait::{Buf, File, Nowait};

use crate::machine::tree::Tree;
use crate::measure::meter::{Round, Sampled, Tally};
use crate::measure::work::{SmallFiles, Spread};
use crate::random::Random;
use crate::ways::FileWay;
use crate::ways::read::nowait::{Blocking, Tokio};
use crate::ways::read::spawn_blocking::SpawnBlocking;
use crate::ways::runtime::{blocking, finish, runtime};

/// A task has too few reads for a sample among its own. So the places decide, as drawn from them.
const SAMPLED_ONE_IN: u64 = 256;

/// What one task saw. There are thousands of tasks: a histogram for each would take more of the
/// processor's caches than what is measured.
struct Noted {
    seen: Vec<(usize, Instant, Instant)>,
    sampled: Vec<Sampled>,
    /// Where the round checks them.
    bytes: Option<Vec<(u64, Vec<u8>)>>,
}

impl Noted {
    fn new(round: &Tally<'_>, most: usize) -> Self {
        Self { seen: Vec::with_capacity(most), sampled: Vec::new(), bytes: round.verifies().then(Vec::new) }
    }

    fn add(&mut self, place: u64, bytes: &[u8], started: Instant) {
        self.seen.push((bytes.len(), started, Instant::now()));
        if let Some(kept) = &mut self.bytes {
            kept.push((place, bytes.to_vec()));
        } else if Random::at(place, 0).below(SAMPLED_ONE_IN) == 0 {
            self.sampled.push(Sampled::of(place, bytes));
        }
    }

    fn tell(self, tally: &mut Tally<'_>) {
        let kept = self.bytes.into_iter().flatten();
        kept.for_each(|(place, bytes)| tally.verify(place, &bytes));
        let mut sampled = self.sampled.into_iter();
        self.seen.into_iter().for_each(|(len, started, now)| tally.seen(len, sampled.next(), started, now));
    }
}

/// Runs tasks on tokio while the clock runs, and then tells what they saw.
fn on_tokio<T>(tasks: Vec<T>, round: &mut Round<'_>) -> io::Result<()>
where
    T: Future<Output = io::Result<Noted>> + Send + 'static,
{
    round.start();
    let noted = finish(tasks.into_iter().map(|task| runtime().spawn(task)).collect());
    round.stop();
    noted?.into_iter().for_each(|noted| noted.tell(&mut round.tally));
    Ok(())
}

/// Tasks that each read whole files with `read`.
fn whole_by<R, F, B>(job: &SmallFiles<'_>, round: &mut Round<'_>, read: R) -> io::Result<()>
where
    R: Fn(&Path) -> F + Copy + Send + Sync + 'static,
    F: Future<Output = io::Result<B>> + Send,
    B: AsRef<[u8]> + Send,
{
    let next = Arc::new(AtomicUsize::new(0));
    let most = job.files.len().div_ceil(job.depth) * 2;
    let tasks = (0..job.depth).map(|_| {
        let (files, next, mut noted) = (job.files.clone(), next.clone(), Noted::new(&round.tally, most));
        async move {
            while let Some((number, path)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                let started = Instant::now();
                let bytes = read(path).await?;
                noted.add(Tree::place(*number, 0), bytes.as_ref(), started);
            }
            Ok(noted)
        }
    });
    on_tokio(tasks.collect(), round)
}

/// A task for each read in flight.
fn spread_by<F>(job: &Spread<'_>, round: &mut Round<'_>, task: impl Fn(Places, Noted) -> F) -> io::Result<()>
where
    F: Future<Output = io::Result<Noted>> + Send + 'static,
{
    let places = Places { next: Arc::default(), places: job.places.clone() };
    let most = job.places.len().div_ceil(job.depth) * 2;
    let tasks = (0..job.depth).map(|_| task(places.clone(), Noted::new(&round.tally, most)));
    on_tokio(tasks.collect(), round)
}

/// The reads that are still to be made, for tasks, which cannot borrow the job.
#[derive(Clone)]
struct Places {
    next: Arc<AtomicUsize>,
    places: Arc<[(u32, u64)]>,
}

impl Places {
    /// The file, the offset in it, and both as one number.
    fn next(&self) -> Option<(usize, u64, u64)> {
        let &(file, offset) = self.places.get(self.next.fetch_add(1, Ordering::Relaxed))?;
        Some((file as usize, offset, Tree::place(u64::from(file), offset)))
    }
}

impl FileWay for SpawnBlocking {
    fn whole(&self, job: &SmallFiles<'_>, round: &mut Round<'_>) -> io::Result<()> {
        whole_by(job, round, |path| {
            let path = path.to_owned();
            blocking(move || fs::read(path))
        })
    }

    fn spread(&self, job: &Spread<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let files: Arc<[Arc<fs::File>]> = job.files.into();
        spread_by(job, round, |places, mut noted| {
            let (files, mut buffer) = (files.clone(), vec![0xa5; job.block]);
            async move {
                while let Some((file, offset, place)) = places.next() {
                    let started = Instant::now();
                    let file = files[file].clone();
                    buffer = blocking(move || file.read_exact_at(&mut buffer, offset).map(|()| buffer)).await?;
                    noted.add(place, &buffer, started);
                }
                Ok(noted)
            }
        })
    }
}

/// The open files that the other ways have, as the library's.
fn opened(job: &Spread<'_>) -> io::Result<Arc<[File]>> {
    let open = |file: &Arc<fs::File>| Ok(File::from_std(Nowait::shared(), file.try_clone()?, "of the table")?);
    job.files.iter().map(open).collect()
}

impl FileWay for Blocking {
    fn whole(&self, job: &SmallFiles<'_>, round: &mut Round<'_>) -> io::Result<()> {
        if job.depth == 1 {
            round.start();
            let mut index = 0;
            while let Some((number, path)) = job.file(index) {
                let started = Instant::now();
                let bytes = nowait::fs::read(path).wait()?;
                round.tally.block(Tree::place(number, 0), &bytes, started, Instant::now());
                index += 1;
            }
            round.stop();
            return Ok(());
        }
        let next = AtomicUsize::new(0);
        round.start();
        let tally = RefCell::new(&mut round.tally);
        let loops = (0..job.depth).map(|_| async {
            while let Some((number, path)) = job.file(next.fetch_add(1, Ordering::Relaxed)) {
                let started = Instant::now();
                let bytes = nowait::fs::read(path).await?;
                tally.borrow_mut().block(Tree::place(number, 0), &bytes, started, Instant::now());
            }
            Ok(())
        });
        let result: io::Result<()> = all(loops);
        round.stop();
        result
    }

    fn spread(&self, job: &Spread<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let opened = opened(job)?;
        let next = AtomicUsize::new(0);
        let buffers: Vec<Buf> = (0..job.depth).map(|_| Buf::zeroed(job.block)).collect();
        round.start();
        let tally = RefCell::new(&mut round.tally);
        let loops = buffers.into_iter().map(|mut buffer| {
            let (next, opened, tally) = (&next, &opened, &tally);
            async move {
                while let Some((file, offset)) = job.place(next.fetch_add(1, Ordering::Relaxed)) {
                    let started = Instant::now();
                    buffer = opened[file as usize].read_exact_at(buffer, offset).await?;
                    let place = Tree::place(u64::from(file), offset);
                    tally.borrow_mut().block(place, &buffer, started, Instant::now());
                }
                Ok(())
            }
        });
        let result: io::Result<()> = all(loops);
        round.stop();
        result
    }
}

/// Runs all of these on this thread.
fn all(loops: impl Iterator<Item = impl Future<Output = io::Result<()>>>) -> io::Result<()> {
    nowait::block_on(futures_util::future::join_all(loops)).into_iter().collect()
}

impl FileWay for Tokio {
    fn whole(&self, job: &SmallFiles<'_>, round: &mut Round<'_>) -> io::Result<()> {
        whole_by(job, round, |path| {
            let read = nowait::fs::read(path);
            async { Ok(read.await?) }
        })
    }

    fn spread(&self, job: &Spread<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let opened = opened(job)?;
        spread_by(job, round, |places, mut noted| {
            let (opened, mut buffer) = (opened.clone(), Buf::zeroed(job.block));
            async move {
                while let Some((file, offset, place)) = places.next() {
                    let started = Instant::now();
                    buffer = opened[file].read_exact_at(buffer, offset).await?;
                    noted.add(place, &buffer, started);
                }
                Ok(noted)
            }
        })
    }
}
