//! `nowait` as most tasks use it: one future, which awaits a read, then the next. `nowait-await`:
//! under `block_on`. `nowait-tokio-await`: a task on tokio's multi-thread runtime.
//!
//! There is never more than one read in flight, and a gather is one call in either case: these ways
//! take part in single reads only.

use std::io;
use std::time::Instant;

use nowait::Nowait;

use super::nowait::{Session, buffer};
use crate::measure::meter::Round;
use crate::measure::work::Reads;
use crate::ways::runtime::{Seen, run_on_the_clock};
use crate::ways::{Does, ReadWay, Way};

pub(crate) struct Await;

pub(crate) struct TokioAwait;

pub(crate) static NOWAIT_AWAIT: Way = Way::new(
    "nowait-await",
    "this library: one future under block_on, which awaits one read after the other",
    &[Does::Reads(&Await), Does::DirectReads(&Await)],
);

pub(crate) static NOWAIT_TOKIO_AWAIT: Way = Way::new(
    "nowait-tokio-await",
    "this library: one task on tokio, which awaits one read after the other",
    &[Does::Reads(&TokioAwait), Does::DirectReads(&TokioAwait)],
);

impl ReadWay for Await {
    fn one_at_a_time(&self) -> bool {
        true
    }

    fn reads(&self, job: &Reads<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let session = Session::reading(Nowait::shared(), job.target)?;
        let mut buffer = buffer(job.block);
        round.start();
        let tally = &mut round.tally;
        let result = nowait::block_on(async {
            for offset in job.each_offset() {
                let started = Instant::now();
                let length;
                (length, buffer) = session.file.read_at(buffer, offset).await?;
                if length != job.len_at(offset) {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                tally.block(offset, &buffer[..length], started, Instant::now());
            }
            io::Result::Ok(())
        });
        round.stop();
        session.report(round);
        result
    }
}

impl ReadWay for TokioAwait {
    fn one_at_a_time(&self) -> bool {
        true
    }

    fn reads(&self, job: &Reads<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let session = Session::reading(Nowait::shared(), job.target)?;
        let reads: Vec<(u64, usize)> = job.each_offset().map(|offset| (offset, job.len_at(offset))).collect();
        let (file, mut buffer, mut seen) = (session.file.clone(), buffer(job.block), Seen::new(&round.tally));
        let task = async move {
            for (offset, expected) in reads {
                let started = Instant::now();
                let length;
                (length, buffer) = file.read_at(buffer, offset).await?;
                if length != expected {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                seen.add(offset, &buffer[..length], started);
            }
            io::Result::Ok(seen)
        };
        run_on_the_clock(vec![task], round)?;
        session.report(round);
        Ok(())
    }
}
