//! The ways of tasks that share a runtime: an open file ([`Handle`]), and the runtime. A task gives
//! way when its reads, or its executor, have it do so.
//!
//! `plain`: `pread(2)` called inside the task, on the worker: what is cheapest for cached pages, and
//! keeps the worker from all its tasks for as long as the device takes. The call awaits nothing, so
//! the task gives way after each (`tokio::task::yield_now`), as tokio advises. `tokio`: a closure on
//! its blocking threads for each read, as `tokio::fs` does. `nowait`, `nowait-tokio`, `nowait-smol`:
//! the library as its users call it, `file.read_at(…).await` in a loop, under three executors.

use std::fs::File;
use std::io;
use std::sync::Arc;

use ::nowait::{Buf, Nowait};

use super::{Other, block_on, smol, tokio};
use crate::measure::meter::Round;
use crate::measure::mixed::{Mixed, Mixture};
use crate::ways::drive::{Handle, Operation};
use crate::ways::nowait::{Library, Session};
use crate::ways::plain::one;
use crate::ways::tokio::Closures;
use crate::ways::{Does, MixedWay, Way};

pub(in crate::ways) struct Plain;
pub(in crate::ways) struct SpawnBlocking;
pub(in crate::ways) struct BlockOn;
pub(in crate::ways) struct OnTokio;
pub(in crate::ways) struct OnSmol;

pub(in crate::ways) static PLAIN: Way = Way::new(
    "plain",
    "pread inside the task, on tokio's worker, which it keeps until the device is through",
    &[Does::Mixed(&Plain)],
)
.hue(0);

pub(in crate::ways) static NOWAIT_SMOL: Way =
    Way::new("nowait-smol", "this library, on smol's executor", &[Does::Mixed(&OnSmol)]);

#[derive(Clone)]
struct Calls(Arc<File>);

impl Handle for Calls {
    async fn one(&self, operation: Operation, mut buffer: Buf) -> io::Result<Buf> {
        one(&self.0, operation, &mut buffer[..operation.len])?;
        Ok(buffer)
    }

    async fn give_way(&self) {
        ::tokio::task::yield_now().await;
    }
}

impl MixedWay for Plain {
    fn mixed(&self, job: &Mixed<'_>, round: &mut Round<'_>) -> io::Result<Mixture> {
        let file = Calls(Arc::new(job.target.file.try_clone()?));
        tokio::run(&file, Other::of(job, |file, _| Ok(Calls(file.clone())))?, job, round)
    }
}

impl MixedWay for SpawnBlocking {
    fn mixed(&self, job: &Mixed<'_>, round: &mut Round<'_>) -> io::Result<Mixture> {
        let file = |file: Arc<File>| Closures([file].into());
        let other = Other::of(job, |other, _| Ok(file(other.clone())))?;
        tokio::run(&file(Arc::new(job.target.file.try_clone()?)), other, job, round)
    }
}

impl MixedWay for BlockOn {
    fn mixed(&self, job: &Mixed<'_>, round: &mut Round<'_>) -> io::Result<Mixture> {
        on(block_on::run, job, round)
    }
}

impl MixedWay for OnTokio {
    fn mixed(&self, job: &Mixed<'_>, round: &mut Round<'_>) -> io::Result<Mixture> {
        on(tokio::run, job, round)
    }
}

impl MixedWay for OnSmol {
    fn mixed(&self, job: &Mixed<'_>, round: &mut Round<'_>) -> io::Result<Mixture> {
        on(smol::run, job, round)
    }
}

/// The share served inline is that of all operations of the process's instance: those of the
/// neighbour count, too.
fn on(
    runtime: impl FnOnce(&Library, Other<Library>, &Mixed<'_>, &mut Round<'_>) -> io::Result<Mixture>,
    job: &Mixed<'_>,
    round: &mut Round<'_>,
) -> io::Result<Mixture> {
    let library = |session: &Session| Library([session.file.clone()].into());
    let session = Session::reading(Nowait::shared(), job.target)?;
    let other = Other::of(job, |_, path| Ok(library(&Session::writing(Nowait::shared(), path)?)))?;
    let told = runtime(&library(&session), other, job, round)?;
    session.report(round);
    Ok(told)
}
