//! `pread(2)` called inside the task, on the worker: what is cheapest for cached pages, and keeps
//! the worker from all its tasks for as long as the device takes. The call awaits nothing, so the
//! task gives way after each (`tokio::task::yield_now`), as tokio advises.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::{Handle, Other, tokio};
use crate::measure::meter::Round;
use crate::measure::mixed::{BLOCK, Mixed, Mixture};
use crate::ways::{Does, MixedWay, Way};

pub(in crate::ways) struct Plain;

pub(crate) static PLAIN: Way = Way::new(
    "plain",
    "pread inside the task, on tokio's worker, which it keeps until the device is through",
    &[Does::Mixed(&Plain)],
)
.hue(0);

impl MixedWay for Plain {
    fn mixed(&self, job: &Mixed<'_>, round: &mut Round<'_>) -> io::Result<Mixture> {
        let file = Calls(Arc::new(job.target.file.try_clone()?));
        tokio::run(&file, Other::of(job, |file, _| Ok(Calls(file.clone())))?, job, round)
    }
}

#[derive(Clone)]
struct Calls(Arc<File>);

impl Handle for Calls {
    type Buffer = Vec<u8>;

    fn buffer(&self) -> Vec<u8> {
        vec![0xa5; BLOCK]
    }

    async fn read(&self, mut buffer: Vec<u8>, offset: u64) -> io::Result<Vec<u8>> {
        self.0.read_exact_at(&mut buffer, offset)?;
        Ok(buffer)
    }

    async fn write(&self, buffer: Vec<u8>, offset: u64) -> io::Result<Vec<u8>> {
        self.0.write_all_at(&buffer, offset)?;
        Ok(buffer)
    }

    async fn give_way(&self) {
        ::tokio::task::yield_now().await;
    }
}
