//! `nowait` for streams: past the page cache (`nowait`) and through it (`nowait-buffered`).

use std::cell::{Cell, RefCell};
use std::io;
use std::time::Instant;

use nowait::{Allocate, Buf, ErrorKind, File, OpenOptions};

use super::StreamWay;
use crate::meter::Round;
use crate::work::Stream;

pub struct Streamed {
    name: &'static str,
    direct: bool,
}

pub const DIRECT: Streamed = Streamed { name: "nowait", direct: true };
pub const BUFFERED: Streamed = Streamed { name: "nowait-buffered", direct: false };

impl StreamWay for Streamed {
    fn name(&self) -> &'static str {
        self.name
    }

    fn direct(&self) -> bool {
        self.direct
    }

    fn has_depth(&self) -> bool {
        true
    }

    fn stream(&self, job: &Stream<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let flags = if self.direct { libc::O_DIRECT } else { 0 };
        let from = OpenOptions::new().read(true).custom_flags(flags).open(job.source).wait()?;
        let to = job.destination.map(|path| OpenOptions::new().write(true).custom_flags(flags).open(path).wait());
        let to = to.transpose()?;
        round.start();
        if let (Some(to), true) = (&to, self.direct) {
            match to.allocate(Allocate::Reserve, 0, job.blocks() * job.block as u64).wait() {
                Err(error) if error.kind() == ErrorKind::Unsupported => {}
                other => other?,
            }
        }
        self.blocks(&from, to.as_ref(), job, round)?;
        if let Some(to) = &to {
            if self.direct {
                to.set_len(job.size).wait()?;
            }
            to.sync_data().wait()?;
        }
        round.stop();
        Ok(())
    }
}

impl Streamed {
    /// Keeps `job.depth` blocks in flight from this thread.
    fn blocks(&self, from: &File, to: Option<&File>, job: &Stream<'_>, round: &mut Round<'_>) -> io::Result<()> {
        let next = Cell::new(0);
        let tally = RefCell::new(&mut round.tally);
        let loops = (0..job.depth).map(|_| {
            let (next, tally) = (&next, &tally);
            let mut buffer = Buf::zeroed(job.block);
            async move {
                while let Some(offset) = job.offset(next.replace(next.get() + 1)) {
                    let started = Instant::now();
                    let (length, wanted) = (job.len_at(offset), job.block);
                    let read;
                    (read, buffer) = from.read_at(buffer, offset).await?;
                    if read != length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    if let Some(to) = to {
                        if !self.direct && length < wanted {
                            buffer.truncate(length);
                        }
                        buffer = to.write_all_at(buffer, offset).await?;
                    }
                    tally.borrow_mut().block(offset, &buffer[..length], started, Instant::now());
                }
                Ok(())
            }
        });
        let all: io::Result<Vec<()>> = nowait::block_on(futures_util::future::join_all(loops)).into_iter().collect();
        all.map(drop)
    }
}
