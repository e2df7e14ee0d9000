//! `nowait` for streams: past the page cache (`nowait`) and through it (`nowait-buffered`). A
//! stream chooses the size and the number of its requests itself: the block is what its user takes
//! or gives at a time, and the depth means nothing to it. A file that is written without being read
//! begins empty, and nothing about its size is said; what gives it its space is on the clock.
//!
//! A reader is asked for `chunk`, and a copy `put`s it: the guide's calls for who needs no trait of
//! std's. No block is copied, and none has a size that the bench chose.
//!
//! Blocks of a scan (`nowait-stream`) have a size, and lie where the caller wants them: there the
//! reader is asked as any reader of std's is (`read_exact`).

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::time::Instant;

use nowait::stream::{Reader, Writer};
use nowait::{Nowait, OpenOptions};

use crate::measure::meter::Round;
use crate::measure::work::{Contents, Reads, Route, Stream};
use crate::ways::read::nowait::Session;
use crate::ways::{RowWay, StreamWay, Way};

pub(crate) struct Streamed {
    name: &'static str,
    direct: bool,
}

pub(crate) const DIRECT: Streamed = Streamed { name: "nowait", direct: true };
pub(crate) const BUFFERED: Streamed = Streamed { name: "nowait-buffered", direct: false };

impl Way for Streamed {
    fn name(&self) -> &'static str {
        self.name
    }
}

impl StreamWay for Streamed {
    fn direct(&self) -> bool {
        self.direct
    }

    fn has_depth(&self) -> bool {
        false
    }

    fn stream(&self, job: &Stream<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let source = |path| OpenOptions::new().read(true).direct(self.direct).open(path).wait();
        let destination = |path| OpenOptions::new().write(true).direct(self.direct).open(path).wait();
        let mut reader = job.source().map(source).transpose()?.map(|file| Reader::new(&file, 0));
        let mut writer = job.destination().map(destination).transpose()?.map(|file| Writer::new(&file, 0));
        round.start();
        if let Some(reader) = &mut reader {
            chunks(reader, writer.as_mut(), job, round)?;
        }
        if let (Route::Write { contents, .. }, Some(writer)) = (job.route, &mut writer) {
            made(contents, writer, job, buffer, round)?;
        }
        if let Some(writer) = &mut writer {
            writer.sync_data().wait()?;
        }
        round.stop();
        Ok(())
    }
}

/// Blocks in order, by a reader.
pub(crate) struct Blocks;

impl Way for Blocks {
    fn name(&self) -> &'static str {
        "nowait-stream"
    }
}

impl RowWay for Blocks {
    fn keeps_a_place(&self) -> bool {
        true
    }

    fn rows(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let session = Session::reading(Nowait::shared(), job.target)?;
        let mut reader = Reader::new(&session.file, job.offset(0).unwrap_or(0));
        round.start();
        for offset in job.each_offset() {
            let block = &mut buffer[..job.len_at(offset)];
            let started = Instant::now();
            if reader.position() != offset {
                reader.seek(SeekFrom::Start(offset))?;
            }
            reader.read_exact(block)?;
            round.tally.block(offset, block, started, Instant::now());
        }
        round.stop();
        session.report(round);
        Ok(())
    }
}

/// Makes each block where the one before was: the writer has copied it.
fn made(
    contents: Contents,
    writer: &mut Writer,
    job: &Stream<'_>,
    buffer: &mut [u8],
    round: &mut Round<'_>,
) -> io::Result<()> {
    for offset in job.each_offset() {
        contents.place(&mut buffer[..job.block], offset);
        let block = &buffer[..job.len_at(offset)];
        let started = Instant::now();
        writer.write_all(block)?;
        round.tally.block(offset, block, started, Instant::now());
    }
    Ok(())
}

/// Takes, and hands on, what is read as it was read, without a copy.
fn chunks(
    reader: &mut Reader,
    mut writer: Option<&mut Writer>,
    job: &Stream<'_>,
    round: &mut Round<'_>,
) -> io::Result<()> {
    while reader.position() < job.size && job.offset(reader.position() / job.block as u64).is_some() {
        let started = Instant::now();
        let start = reader.position();
        let Some(chunk) = reader.chunk().wait()? else { return Err(io::ErrorKind::UnexpectedEof.into()) };
        let (now, mut done) = (Instant::now(), 0);
        while done < chunk.len() {
            let offset = start + done as u64;
            let inside = offset % job.block as u64;
            let left = job.len_at(offset - inside) - inside as usize;
            let bytes = &chunk[done..(done + left).min(chunk.len())];
            if bytes.len() == left {
                round.tally.block(offset, bytes, started, now);
            } else {
                round.tally.part(offset, bytes);
            }
            done += bytes.len();
        }
        if let Some(writer) = &mut writer {
            writer.put(chunk).wait()?;
        }
    }
    Ok(())
}
