//! `nowait` as its users call it, `file.read_exact_at(…).await` in a loop, under three executors.
//! A task gives way when the library, or the executor's budget, has it do so.

use std::io;

use ::nowait::{Buf, File, Nowait};

use super::{Handle, Other, block_on, smol, tokio};
use crate::measure::meter::Round;
use crate::measure::mixed::{BLOCK, Mixed, Mixture};
use crate::ways::read::nowait::Session;
use crate::ways::{Does, MixedWay, Way};

pub(in crate::ways) struct BlockOn;
pub(in crate::ways) struct OnTokio;
pub(in crate::ways) struct OnSmol;

pub(crate) static NOWAIT_SMOL: Way =
    Way::new("nowait-smol", "this library, on smol's executor", &[Does::Mixed(&OnSmol)]);

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
    runtime: impl FnOnce(&Futures, Other<Futures>, &Mixed<'_>, &mut Round<'_>) -> io::Result<Mixture>,
    job: &Mixed<'_>,
    round: &mut Round<'_>,
) -> io::Result<Mixture> {
    let session = Session::reading(Nowait::shared(), job.target)?;
    let other = Other::of(job, |_, path| Ok(Futures(Session::writing(Nowait::shared(), path)?.file)))?;
    let told = runtime(&Futures(session.file.clone()), other, job, round)?;
    session.report(round);
    Ok(told)
}

#[derive(Clone)]
struct Futures(File);

impl Handle for Futures {
    type Buffer = Buf;

    fn buffer(&self) -> Buf {
        let mut buffer = Buf::zeroed(BLOCK);
        buffer.fill(0xa5);
        buffer
    }

    async fn read(&self, buffer: Buf, offset: u64) -> io::Result<Buf> {
        Ok(self.0.read_exact_at(buffer, offset).await?)
    }

    async fn write(&self, buffer: Vec<u8>, offset: u64) -> io::Result<Vec<u8>> {
        Ok(self.0.write_all_at(buffer, offset).await?)
    }
}
