//! Reads the durable records of a log in order. The last records of an open log come from memory,
//! others from the segments.

mod block;
mod next;
mod piece;
mod source;
#[cfg(all(test, not(nowait_log_loom)))]
mod tests;

use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::commit::{BlockPlace, Shared};
use super::dir::{Blocks, LogDir, Run, Segment, Window};
use super::format::Control;
use super::os;
use super::pin::ReaderPin;
use super::recover::{Damage, Found};
use super::ticket::Durable;
use nowait::embed::turn;
use nowait::{Error, ErrorKind, ErrorOp, File, OpenOptions, Operation, Result, Started};

pub use next::{Next, Tail};

use block::{BlockCursor, Lookup};
use piece::{Advance, Hole, OpenPiece, Passed};
use source::{Piece, Source, Still};

/// Record of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// LSN of the record: its number in the log, from 1.
    pub lsn: u64,
    /// Kind of the record, as appended; see [`Log::append_kind`](super::Log::append_kind).
    pub kind: u8,
    /// Bytes of the record, as appended.
    pub bytes: &'a [u8],
}

/// Reader of the durable records of a log, in order; see [`Log::reader`](super::Log::reader). It
/// bypasses the page cache if the writer does.
pub struct Reader {
    source: Source,
    next_lsn: u64,
    block: BlockCursor,
    segment: Option<OpenPiece>,
    /// Place after the last block from memory.
    behind: Option<BlockPlace>,
    /// The piece being opened, for a non-blocking caller.
    opening: Option<(Piece, Started<Result<File>>)>,
    /// Number of times that the next record was not found at its place.
    misses: u32,
    /// At the last miss, the segment's file was missing.
    is_gone: bool,
    /// Epoch of the log at the last check.
    epoch: u64,
    pin: Option<ReaderPin>,
    skips_damage: bool,
    /// Damage that the last error reported.
    damage: Option<Damage>,
    _tail: Option<TailUse>,
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = match &self.source {
            Source::Live(shared) => &shared.dir.path,
            Source::Found(still) => &still.dir.path,
        };
        f.debug_struct("Reader").field("path", path).field("next_lsn", &self.next_lsn).finish_non_exhaustive()
    }
}

/// Makes the log keep its last blocks in memory while it exists.
struct TailUse(Arc<Shared>);

impl TailUse {
    fn new(shared: &Arc<Shared>) -> Option<TailUse> {
        // In a forked child, a thread that does not exist there may hold the lock.
        if shared.is_forked() {
            return None;
        }
        shared.handover.tail.add_reader();
        Some(TailUse(shared.clone()))
    }
}

impl Drop for TailUse {
    fn drop(&mut self) {
        if !self.0.is_forked() {
            drop(self.0.handover.tail.remove_reader());
        }
    }
}

/// Next step of a reader.
enum Step {
    /// Returns the record, which is in memory.
    Take,
    /// Returns none: no further record is durable.
    End,
    /// Opens the file of a piece.
    Open(Piece),
    /// Reads bytes of the open piece.
    Read((u64, usize)),
}

impl Reader {
    pub(super) fn of_live(shared: Arc<Shared>, from_lsn: u64) -> Reader {
        let epoch = shared.epoch();
        let tail = TailUse::new(&shared);
        Reader { _tail: tail, ..Reader::new(Source::Live(shared), from_lsn, epoch) }
    }

    pub(super) fn of_found(dir: LogDir, found: Found, from_lsn: u64) -> Reader {
        Reader::new(Source::Found(Box::new(Still::new(dir, found))), from_lsn, 0)
    }

    pub(super) fn of_aside(dir: LogDir, control: Control, runs: Vec<Run>) -> Reader {
        let still = Still::aside(dir, control, runs);
        let from_lsn = still.first_lsn;
        Reader::new(Source::Found(Box::new(still)), from_lsn, 0)
    }

    fn new(source: Source, from_lsn: u64, epoch: u64) -> Reader {
        let next_lsn = from_lsn.max(1);
        Reader {
            source,
            next_lsn,
            block: BlockCursor::default(),
            segment: None,
            behind: None,
            opening: None,
            misses: 0,
            is_gone: false,
            epoch,
            pin: None,
            skips_damage: false,
            damage: None,
            _tail: None,
        }
    }

    /// Returns the LSN of the next record.
    pub fn next_lsn(&self) -> u64 {
        self.next_lsn
    }

    /// Moves to record `lsn`, which the next call returns. As a new reader from there, but cheaper:
    /// keeps the file of its segment open, and the part of the segment in memory. Ends the
    /// reader's pin.
    pub fn seek(&mut self, lsn: u64) {
        self.next_lsn = lsn.max(1);
        (self.pin, self.behind, self.misses, self.is_gone) = (None, None, 0, false);
        self.block.forget();
        let open = self.segment.take();
        let Source::Live(shared) = &self.source else { return };
        if shared.is_forked() {
            return;
        }
        let epoch = shared.epoch();
        let is_same = epoch == self.epoch;
        self.epoch = epoch;
        let (Some(OpenPiece { mut blocks, .. }), Some(piece)) = (open.filter(|_| is_same), self.piece()) else {
            return;
        };
        if blocks.number == piece.number() {
            blocks.go_to_first();
            self.begin(blocks, piece.last_lsn());
        }
    }

    /// Pins the next record and all later ones, until this reader has read them or is dropped.
    /// Neither [`Log::truncate_prefix`](super::Log::truncate_prefix) nor
    /// [`Options::retain`](super::Options::retain) removes pinned records, so the log may grow
    /// without bound meanwhile. Has no effect for a reader of a log that is not open.
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchRecord`] if the next record was already removed.
    pub fn pin(&mut self) -> Result<()> {
        if let Source::Live(shared) = &self.source {
            self.pin = Some(ReaderPin::new(shared, self.next_lsn)?);
        }
        Ok(())
    }

    /// Sets whether the reader of an open log continues after damage. If true, it reports each
    /// damage once, by an error, and the next call returns the first intact record after it. The
    /// reader's pin then releases the lost records. If false (the default), it stays at the damage,
    /// and returns the error again. (A reader of [`read`](super::read) always continues.)
    pub fn skip_damage(&mut self, skips: bool) {
        self.skips_damage = skips;
    }

    /// Returns the damage that the last [`Damaged`](ErrorKind::Damaged) error of this reader
    /// reported. Its [`lsns`](Damage::lsns) are the records that cannot be read.
    pub fn damage(&self) -> Option<&Damage> {
        self.damage.as_ref()
    }

    /// Returns the next durable record, or `None` if no further record is durable yet.
    ///
    /// Skips records that a salvage left out (see [`Recovery::gaps`](super::Recovery::gaps));
    /// [`Record::lsn`] then jumps.
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchRecord`] if the record was truncated from the log's start or end.
    /// [`ErrorKind::Damaged`] if it was durable and cannot be read: see [`Reader::damage`], and
    /// [`Reader::skip_damage`] to continue after it. Errors of reads. A reader of
    /// [`read`](super::read) reports each damage once: the next call returns the first intact
    /// record after it.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Next<'_> {
        Next { reader: Some(self) }
    }

    /// Reads on this thread until the next record is in memory; false if it is not durable yet.
    fn load(&mut self) -> Result<bool> {
        self.opening = None;
        loop {
            match self.step()? {
                Step::Take => return Ok(true),
                Step::End => return Ok(false),
                Step::Open(piece) => {
                    let file = self.opening(&piece).wait();
                    self.opened(&piece, file)?;
                }
                Step::Read(place) => self.segment.as_mut().map_or(Ok(()), |open| open.blocks.read(place))?,
            }
        }
    }

    /// As [`Reader::load`], without blocking the thread.
    fn poll_load(&mut self, context: &mut Context<'_>) -> Poll<Result<bool>> {
        if turn::ends(context) {
            return Poll::Pending;
        }
        loop {
            match self.step()? {
                Step::Take => return Poll::Ready(Ok(true)),
                Step::End => return Poll::Ready(Ok(false)),
                Step::Open(piece) => {
                    let begun = self.opening.take().filter(|(begun, _)| *begun == piece);
                    let (_, mut opening) = begun.unwrap_or_else(|| (piece.clone(), self.opening(&piece).submit()));
                    match Pin::new(&mut opening).poll(context) {
                        Poll::Ready(file) => self.opened(&piece, file)?,
                        Poll::Pending => {
                            self.opening = Some((piece, opening));
                            return Poll::Pending;
                        }
                    }
                }
                Step::Read(place) => {
                    let Some(open) = &mut self.segment else { continue };
                    ready!(open.blocks.poll_read(place, context))?;
                }
            }
        }
    }

    /// Waits until the next record is durable, and returns it.
    ///
    /// # Errors
    /// As [`Reader::next`]. [`ErrorKind::Closed`] if the log is closed before, or was not opened
    /// for appending. [`ErrorKind::Poisoned`] if the log has failed.
    pub fn tail(&mut self) -> Tail<'_> {
        Tail { reader: Some(self), durable: None }
    }

    /// Returns a future for the durability of the next record; None if a recovered log contains it.
    fn durable(&self) -> Result<Option<Durable>> {
        match &self.source {
            Source::Live(shared) => Ok(Some(Durable::new(shared, self.next_lsn))),
            Source::Found(still) if self.next_lsn > still.last_lsn => {
                Err(os::error(ErrorOp::Read, ErrorKind::Closed, &still.dir.path))
            }
            Source::Found(_) => Ok(None),
        }
    }

    /// Detects a cut of the log's end, after which new records reuse LSNs.
    fn follow(&mut self) -> Result<()> {
        let Source::Live(shared) = &self.source else { return Ok(()) };
        if shared.is_forked() {
            return Err(shared.forked());
        }
        if shared.epoch() == self.epoch {
            return Ok(());
        }
        let state = shared.state();
        let since = state.cuts.iter().filter(|(epoch, _)| *epoch > self.epoch);
        let left = since.map(|(_, lsn)| *lsn).min().unwrap_or(u64::MAX);
        if left.saturating_add(1) < self.next_lsn {
            let text = format!(
                "the log was cut off after record {left}, and others may have been appended since; continue from there"
            );
            return Err(shared.error(ErrorOp::Read, ErrorKind::NoSuchRecord, text));
        }
        (self.epoch, self.segment, self.behind) = (state.epoch, None, None);
        self.block.forget();
        Ok(())
    }

    /// Returns the next step, without blocking. Locks the state if a piece must be opened or read.
    fn step(&mut self) -> Result<Step> {
        loop {
            // Before `follow`, which reads the epoch: see `Handover::epoch`.
            let last_lsn = self.source.last_lsn();
            self.follow()?;
            let lsn = self.next_lsn;
            if lsn > last_lsn {
                return Ok(Step::End);
            }
            match self.block.search(lsn) {
                Lookup::Found => {
                    self.misses = 0;
                    return Ok(Step::Take);
                }
                Lookup::NotHere => {
                    self.missed(false)?;
                    continue;
                }
                Lookup::Behind if matches!(self.source, Source::Live(_)) && lsn < self.source.first_lsn() => {
                    return Err(self.unreadable());
                }
                Lookup::Behind if self.has_in_memory(lsn) => continue,
                Lookup::Behind => {}
            }
            if let Some(passed) = self.segment.as_mut().map_or(Ok(None), OpenPiece::pass_hole)? {
                match passed {
                    Passed::Lacks(place) => return Ok(Step::Read(place)),
                    Passed::Hole(Hole { bytes, end_lsn, error }) => {
                        let number = self.piece().as_ref().map_or(0, Piece::number);
                        let what = "no intact block is here, but its records were durable";
                        self.lose(number, bytes, end_lsn, what, error)?;
                    }
                }
                continue;
            }
            let next = match &mut self.segment {
                Some(open) if lsn > open.limit => Advance::NotHere,
                Some(open) => open.next(&mut self.block)?,
                None => match self.piece() {
                    Some(piece) => return Ok(Step::Open(piece)),
                    None => {
                        self.missed(true)?;
                        continue;
                    }
                },
            };
            match next {
                Advance::Loaded => self.leave_mark(),
                Advance::Lacks(place) => match self.segment_holds(lsn) {
                    true => return Ok(Step::Read(place)),
                    false => self.missed(false)?,
                },
                Advance::NotHere => self.missed(false)?,
            }
        }
    }

    /// Moves to the block of record `lsn`, if it is in memory. Returns true if the caller must
    /// check again.
    fn has_in_memory(&mut self, lsn: u64) -> bool {
        let Source::Live(shared) = &self.source else { return false };
        let Some(kept) = shared.handover.tail.find(lsn) else { return false };
        if kept.epoch > self.epoch {
            // The end was cut since the last check.
            return true;
        }
        self.behind =
            Some(BlockPlace { segment: kept.segment, offset: kept.end, lsn: kept.first_lsn + u64::from(kept.records) });
        // The open segment continues with this block, which needs no read.
        self.segment = None;
        self.opening = None;
        self.block.share(kept);
        true
    }

    /// False if the log continues outside of the open segment. Limits reads of the segment to
    /// durable bytes.
    fn segment_holds(&mut self, lsn: u64) -> bool {
        let (Source::Live(shared), Some(open)) = (&self.source, &mut self.segment) else { return true };
        let state = shared.state();
        let here = state.segments.iter().find(|segment| segment.header.number == open.blocks.number);
        // A removed segment contains no valid record.
        open.limit = here.map_or(0, |segment| segment.last_lsn);
        open.blocks.read_up_to(state.durable_end(open.blocks.number).unwrap_or(u64::MAX));
        lsn <= open.limit
    }

    /// Continues after a miss of the next record. The first miss makes the reader locate the record
    /// again, since its segment may have ended or been cut off. The second miss makes it continue
    /// after the hole.
    fn missed(&mut self, is_gone: bool) -> Result<()> {
        self.is_gone = is_gone;
        self.misses += 1;
        if self.misses == 1 {
            (self.segment, self.behind) = (None, None);
            self.block.forget();
            return Ok(());
        }
        self.misses = 0;
        match self.behind_hole() {
            Some((next, damage)) => {
                let lsn = std::mem::replace(&mut self.next_lsn, next);
                let error = damage.as_ref().map(Damage::error);
                self.damage = damage.map(|damage| Damage { lsns: lsn..next, ..damage }).or(self.damage.take());
                error.map_or(Ok(()), Err)
            }
            None => self.begin_search(),
        }
    }

    /// Begins a search for the end of damage, after a record of an open log could not be read.
    fn begin_search(&mut self) -> Result<()> {
        let (lsn, gone) = (self.next_lsn, self.is_gone);
        let Source::Live(shared) = &self.source else { return Err(self.unreadable()) };
        let state = shared.state();
        let here = state.segments.iter().rfind(|segment| segment.header.first_lsn() <= lsn).copied();
        let (durable, end) = (state.durable, here.and_then(|here| state.durable_end(here.header.number)));
        drop(state);
        let (Some(Segment { header, last_lsn, .. }), Some(end)) = (here, end) else { return Err(self.unreadable()) };
        let end_lsn = last_lsn.min(durable).saturating_add(1);
        if let Some(next) = self.block.whole_behind(lsn) {
            let place = self.block.place();
            let error = self.segment.as_mut().and_then(|open| open.blocks.read_error());
            let what = "bytes of a durable record differ from what was written";
            return self.lose(header.number, place..place, next.min(end_lsn), what, error);
        }
        match &mut self.segment {
            Some(open) if open.blocks.number == header.number => {
                open.begin_search(end, end_lsn);
                Ok(())
            }
            None if gone => self.lose(header.number, 0..0, end_lsn, "the segment was durable and is missing", None),
            _ => Err(self.unreadable()),
        }
    }

    /// Reports that records before `end_lsn` cannot be read.
    fn lose(&mut self, number: u64, bytes: Range<u64>, end_lsn: u64, what: &str, error: Option<Error>) -> Result<()> {
        let lsns = self.next_lsn..end_lsn;
        if lsns.is_empty() {
            // No record is lost: only a watermark block is damaged, or records before the next one.
            self.misses = 1;
            return Ok(());
        }
        let path = self.source.dir().segment_path(number);
        let damage = Damage { path, bytes, lsns, what: what.to_owned() };
        let error = error.unwrap_or_else(|| damage.error());
        self.damage = Some(damage);
        if self.skips_damage {
            self.next_lsn = end_lsn;
            self.pin.as_ref().inspect(|pin| pin.follow(end_lsn));
        } else {
            // The next call searches again.
            self.segment = None;
            self.block.forget();
        }
        Err(error)
    }

    /// Returns the record of [`Step::Take`].
    fn take(&mut self) -> Result<Record<'_>> {
        let lsn = self.next_lsn;
        if self.block.skip().is_none() {
            return Err(self.unreadable());
        }
        self.next_lsn += 1;
        self.pin.as_ref().inspect(|pin| pin.follow(self.next_lsn));
        let (kind, bytes) = self.block.last();
        Ok(Record { lsn, kind, bytes })
    }

    /// As [`Reader::take`], and charges the task's turn for it.
    fn take_in_turn(&mut self) -> Result<Record<'_>> {
        let taken = self.take();
        turn::copied(taken.as_ref().map_or(0, |record| record.bytes.len()));
        taken
    }

    /// Returns the piece that should hold the next record.
    fn piece(&self) -> Option<Piece> {
        let lsn = self.next_lsn;
        match &self.source {
            Source::Live(shared) => {
                let state = shared.state();
                let here = state.segments.iter().rev().find(|segment| segment.header.first_lsn() <= lsn);
                here.copied().map(Piece::Segment)
            }
            Source::Found(still) => still.piece(lsn).cloned(),
        }
    }

    fn opening(&self, piece: &Piece) -> Operation<'_, Result<File>> {
        let dir = self.source.dir();
        match piece {
            Piece::Run(Run { aside: Some(name), .. }) => dir.opening_file(OpenOptions::new().read(true), name),
            _ => dir.opening(piece.number(), self.source.control().direct),
        }
    }

    fn opened(&mut self, piece: &Piece, file: Result<File>) -> Result<()> {
        let window = match file {
            // The segment was removed.
            Err(error) if error.kind() == ErrorKind::NotFound => return self.missed(true),
            file => Window::past_errors(file?),
        };
        let blocks = match piece {
            Piece::Segment(segment) => Blocks::new(window, &segment.header),
            Piece::Run(run) => Blocks::of_run(window, self.source.control(), run),
        };
        self.begin(blocks, piece.last_lsn());
        Ok(())
    }

    /// Begins to read a piece, near the next record.
    fn begin(&mut self, mut blocks: Blocks, limit: u64) {
        match self.behind.take().filter(|behind| behind.segment == blocks.number) {
            Some(behind) => blocks.go_to(behind.offset, behind.lsn),
            None => self.go_to_mark(&mut blocks),
        }
        self.block.forget();
        self.segment = Some(OpenPiece::new(blocks, limit));
    }

    /// Moves to the last mark before the next record, unless the record was not found from there.
    fn go_to_mark(&self, blocks: &mut Blocks) {
        let Source::Live(shared) = &self.source else { return };
        let found = shared.marks.find(blocks.number, self.next_lsn).filter(|_| self.misses == 0);
        let Some((mark, bytes)) = found else { return };
        blocks.go_to(mark.offset, mark.lsn);
        // The record's block begins before the next mark.
        blocks.read_first(bytes);
    }

    /// Marks the block that was loaded, for other readers.
    fn leave_mark(&self) {
        let (Source::Live(shared), Some(open), false) = (&self.source, &self.segment, self.block.is_broken()) else {
            return;
        };
        let (offset, lsn) = self.block.begin();
        let place = BlockPlace { segment: open.blocks.number, lsn, offset };
        shared.marks.add(place, open.blocks.offset, shared.handover.first());
    }

    /// Returns the first record after the missing ones, and the damage to report, if any.
    fn behind_hole(&self) -> Option<(u64, Option<Damage>)> {
        match &self.source {
            Source::Live(shared) => {
                let state = shared.state();
                let is_left_out = |segment: &&Segment| segment.header.previous.lost().contains(&self.next_lsn);
                state.segments.iter().skip(1).find(is_left_out).map(|segment| (segment.header.first_lsn(), None))
            }
            Source::Found(still) => still.behind_hole(self.next_lsn),
        }
    }

    fn unreadable(&self) -> Error {
        let (lsn, first) = (self.next_lsn, self.source.first_lsn());
        let dir = self.source.dir();
        let gone = |text: String| os::error(ErrorOp::Read, ErrorKind::NoSuchRecord, &dir.path).with_advice(text);
        if lsn < first {
            return gone(format!("record {lsn} was cut off the log; the first record is {first}"));
        }
        let number = self.piece().as_ref().map_or(0, Piece::number);
        if self.is_gone {
            return gone(format!("record {lsn} was cut off the log while it was being read; read the log again"));
        }
        let (offset, what) = match &self.segment {
            Some(_) if self.block.is_broken() => (self.block.place(), "its bytes differ from what was written"),
            open => (open.as_ref().map_or(0, |open| open.blocks.offset), "no intact block is here"),
        };
        dir.damage(number, offset, 0, format!("record {lsn} was durable and cannot be read: {what}"))
    }
}
