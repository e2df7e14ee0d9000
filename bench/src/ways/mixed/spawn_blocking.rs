//! `pread(2)` on tokio's blocking threads, a closure for each read: what `tokio::fs` does.

use std::fs::File;
use std::io;
use std::sync::Arc;

use super::{Handle, Other, tokio};
use crate::measure::meter::Round;
use crate::measure::mixed::{BLOCK, Mixed, Mixture};
use crate::ways::MixedWay;
use crate::ways::read::spawn_blocking;

pub(in crate::ways) struct SpawnBlocking;

impl MixedWay for SpawnBlocking {
    fn mixed(&self, job: &Mixed<'_>, round: &mut Round<'_>) -> io::Result<Mixture> {
        let file = Closures(Arc::new(job.target.file.try_clone()?));
        tokio::run(&file, Other::of(job, |file, _| Ok(Closures(file.clone())))?, job, round)
    }
}

#[derive(Clone)]
struct Closures(Arc<File>);

impl Handle for Closures {
    type Buffer = Vec<u8>;

    fn buffer(&self) -> Vec<u8> {
        vec![0xa5; BLOCK]
    }

    async fn read(&self, buffer: Vec<u8>, offset: u64) -> io::Result<Vec<u8>> {
        spawn_blocking::read_exact_at(&self.0, buffer, BLOCK, offset).await
    }

    async fn write(&self, buffer: Vec<u8>, offset: u64) -> io::Result<Vec<u8>> {
        spawn_blocking::write_all_at(&self.0, buffer, offset).await
    }
}
