//! `pwrite` on tokio's blocking threads, a closure for each write: what `tokio::fs` does, without its own copy of the data.
//! `depth` tasks, each with one write at a time.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio::task;

use super::WriteWay;
use super::runtime::{Seen, finish, runtime};
use crate::meter::Round;
use crate::work::Writes;

pub struct SpawnBlocking;

impl WriteWay for SpawnBlocking {
    fn name(&self) -> &'static str {
        "tokio"
    }

    fn writes(&self, job: &Writes<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let next = Arc::new(AtomicU64::new(0));
        let (blocks, contents) = (job.blocks, job.contents);
        let tasks: Vec<_> = job
            .buffers()
            .into_iter()
            .map(|mut buffer| {
                let (file, next) = (job.file.clone(), next.clone());
                let mut seen = Seen::new(&round.tally);
                async move {
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        if index >= blocks {
                            return io::Result::Ok(seen);
                        }
                        let offset = index * buffer.len() as u64;
                        contents.place(&mut buffer, offset);
                        let started = Instant::now();
                        buffer = write_all_at(&file, buffer, offset).await?;
                        seen.add(offset, &buffer, started);
                    }
                }
            })
            .collect();
        round.start();
        let tasks: Vec<_> = tasks.into_iter().map(|task| runtime().spawn(task)).collect();
        let seen = finish(tasks);
        round.stop();
        seen?.into_iter().for_each(|seen| seen.tell(&mut round.tally));
        Ok(())
    }
}

/// Gives the buffer back.
pub(super) async fn write_all_at(file: &Arc<File>, buffer: Vec<u8>, offset: u64) -> io::Result<Vec<u8>> {
    let file = file.clone();
    let written = task::spawn_blocking(move || file.write_all_at(&buffer, offset).map(|()| buffer));
    written.await.map_err(io::Error::other)?
}
