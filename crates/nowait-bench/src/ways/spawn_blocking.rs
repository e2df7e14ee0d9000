//! `pwrite` on tokio's blocking threads, a closure for each write: what `tokio::fs` does, without its own copy of the data.
//! `depth` tasks, each with one write at a time.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use tokio::task;

use super::WriteWay;
use super::runtime::{Blocks, Seen, run_on_the_clock};
use crate::meter::Round;
use crate::work::Writes;

pub struct SpawnBlocking;

impl WriteWay for SpawnBlocking {
    fn name(&self) -> &'static str {
        "tokio"
    }

    fn writes(&self, job: &Writes<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let blocks = Blocks::of(job);
        let tasks: Vec<_> = job
            .buffers()
            .into_iter()
            .map(|mut buffer| {
                let (file, blocks) = (job.file.clone(), blocks.clone());
                let mut seen = Seen::new(&round.tally);
                async move {
                    while let Some(offset) = blocks.next(&mut buffer) {
                        let started = Instant::now();
                        buffer = write_all_at(&file, buffer, offset).await?;
                        seen.add(offset, &buffer, started);
                    }
                    io::Result::Ok(seen)
                }
            })
            .collect();
        run_on_the_clock(tasks, round)
    }
}

/// Gives the buffer back.
pub(super) async fn write_all_at(file: &Arc<File>, buffer: Vec<u8>, offset: u64) -> io::Result<Vec<u8>> {
    let file = file.clone();
    let written = task::spawn_blocking(move || file.write_all_at(&buffer, offset).map(|()| buffer));
    written.await.map_err(io::Error::other)?
}
