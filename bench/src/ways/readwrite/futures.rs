//! Tasks: on tokio with `spawn_blocking`, whose durable write is `pwritev2(RWF_DSYNC)`; and
//! `nowait`, whose write is `.durable()`.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use nowait::{Buf, File, Nowait, OpenOptions};

use crate::measure::meter::{Apart, Round};
use crate::measure::work::{Access, Buffer, ReadsAndWrites, Template};
use crate::ways::ReadWriteWay;
use crate::ways::log::commit::write_durable;
use crate::ways::read::nowait::{Blocking, Tokio};
use crate::ways::read::spawn_blocking::SpawnBlocking;
use crate::ways::runtime::{Seen, blocking, finish, runtime};

/// What is still to be done, for tasks, which cannot borrow the job.
#[derive(Clone)]
struct Left {
    next: Arc<AtomicUsize>,
    accesses: Arc<[Access]>,
    template: Template,
}

impl Left {
    fn of(job: &ReadsAndWrites<'_>) -> Self {
        Self { next: Arc::default(), accesses: job.accesses.clone(), template: job.template() }
    }

    /// The next one; `block` is made if it is to be written.
    fn next(&self, block: &mut [u8]) -> Option<Access> {
        let access = *self.accesses.get(self.next.fetch_add(1, Ordering::Relaxed))?;
        if access.writes {
            self.template.make(block, access.offset);
        }
        Some(access)
    }
}

/// Figures of one task.
struct Told {
    seen: Seen,
    apart: Apart,
}

impl Told {
    fn add(&mut self, access: Access, bytes: &[u8], started: Instant) {
        self.seen.add_access(access, bytes, (started, Instant::now()), &mut self.apart);
    }
}

/// Runs a task for each operation in flight while the clock runs, and then tells what they saw.
fn on_tokio<F>(job: &ReadsAndWrites<'_>, round: &mut Round<'_>, task: impl Fn(Left, Told) -> F) -> io::Result<Apart>
where
    F: Future<Output = io::Result<Told>> + Send + 'static,
{
    let left = Left::of(job);
    let told = |round: &Round<'_>| Told { seen: Seen::new(&round.tally), apart: Apart::default() };
    let tasks: Vec<F> = (0..job.depth).map(|_| task(left.clone(), told(round))).collect();
    round.start();
    let told = finish(tasks.into_iter().map(|task| runtime().spawn(task)).collect());
    round.stop();
    let apart = told?.into_iter().map(|told| {
        told.seen.tell(&mut round.tally);
        told.apart
    });
    Ok(Apart::sum(apart))
}

impl ReadWriteWay for SpawnBlocking {
    fn read_write(&self, job: &ReadsAndWrites<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<Apart> {
        on_tokio(job, round, |left, mut told| {
            let (file, mut buffer) = (job.file.clone(), Buffer::new(job.block));
            async move {
                while let Some(access) = left.next(buffer.bytes()) {
                    let (file, started) = (file.clone(), Instant::now());
                    buffer = blocking(move || {
                        let (block, offset) = (buffer.bytes(), access.offset);
                        let moved = match access.writes {
                            true => write_durable(&file, block, offset),
                            false => file.read_exact_at(block, offset),
                        };
                        moved.map(|()| buffer)
                    })
                    .await?;
                    told.add(access, buffer.bytes(), started);
                }
                Ok(told)
            }
        })
    }
}

/// As a user opens it.
fn open(job: &ReadsAndWrites<'_>) -> io::Result<File> {
    let options = OpenOptions::new().read(true).write(true).direct(job.direct).clone();
    Ok(options.open_in(Nowait::shared(), job.path).wait()?)
}

/// One operation; gives the buffer back.
async fn one(file: &File, access: Access, buffer: Buf) -> nowait::Result<Buf> {
    match access.writes {
        true => Ok(file.write_all_at(buffer, access.offset).durable().await?),
        false => Ok(file.read_exact_at(buffer, access.offset).await?),
    }
}

impl ReadWriteWay for Blocking {
    fn read_write(&self, job: &ReadsAndWrites<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<Apart> {
        let (file, left, mut apart) = (open(job)?, Left::of(job), Apart::default());
        let mut buffers: Vec<Buf> = (0..job.depth).map(|_| Buf::zeroed(job.block)).collect();
        if let (1, Some(mut buffer)) = (job.depth, buffers.pop()) {
            round.start();
            while let Some(access) = left.next(&mut buffer) {
                let started = Instant::now();
                buffer = match access.writes {
                    true => file.write_all_at(buffer, access.offset).durable().wait().map_err(io::Error::from)?,
                    false => file.read_exact_at(buffer, access.offset).wait().map_err(io::Error::from)?,
                };
                apart.tell(access, &buffer, (started, Instant::now()), &mut round.tally);
            }
            round.stop();
            return Ok(apart);
        }
        buffers.resize_with(job.depth, || Buf::zeroed(job.block));
        round.start();
        let told = RefCell::new((&mut apart, &mut round.tally));
        let loops = buffers.into_iter().map(|mut buffer| {
            let (file, left, told) = (&file, &left, &told);
            async move {
                while let Some(access) = left.next(&mut buffer) {
                    let started = Instant::now();
                    buffer = one(file, access, buffer).await?;
                    let (apart, tally) = &mut *told.borrow_mut();
                    apart.tell(access, &buffer, (started, Instant::now()), tally);
                }
                Ok(())
            }
        });
        let result: io::Result<Vec<()>> = nowait::block_on(futures_util::future::join_all(loops)).into_iter().collect();
        round.stop();
        result.map(|_| apart)
    }
}

impl ReadWriteWay for Tokio {
    fn read_write(&self, job: &ReadsAndWrites<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<Apart> {
        let file = open(job)?;
        on_tokio(job, round, |left, mut told| {
            let (file, mut buffer) = (file.clone(), Buf::zeroed(job.block));
            async move {
                while let Some(access) = left.next(&mut buffer) {
                    let started = Instant::now();
                    buffer = one(&file, access, buffer).await?;
                    told.add(access, &buffer, started);
                }
                Ok(told)
            }
        })
    }
}
