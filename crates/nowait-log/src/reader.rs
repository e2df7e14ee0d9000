//! Reading a log: durable records only, in order, from the segments.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::commit::Shared;
use super::dir::{Blocks, LogDir, Run, Segment, Window};
use super::format::{BLOCK_HEADER_BYTES, Control, Part, kind_at, record_at};
use super::os::{self, polled_too_often};
use super::pin::ReaderPin;
use super::recover::{Damage, Found};
use super::ticket::Durable;
use nowait::{Error, ErrorKind, ErrorOp, File, OpenOptions, Operation, Result, Started, turn};

/// A record of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Number of the record.
    pub lsn: u64,
    /// Its kind, as it was appended: see [`Log::append_kind`](super::Log::append_kind).
    pub kind: u8,
    /// Its bytes, as they were appended.
    pub bytes: &'a [u8],
}

/// Reads the durable records of a log in order; see [`Log::reader`](super::Log::reader). Bypasses
/// the page cache where the writer does.
pub struct Reader {
    source: Source,
    next_lsn: u64,
    segment: Option<Open>,
    /// The piece that is being opened, for a caller that does not block.
    opening: Option<(Piece, Started<Result<File>>)>,
    /// Times that the record was not where it should be.
    misses: u32,
    /// The last miss was of a whole file.
    is_gone: bool,
    /// Epoch of the log when it was looked at last.
    epoch: u64,
    pin: Option<ReaderPin>,
}

/// Source of the records.
enum Source {
    /// A log that is open for appending.
    Live(Arc<Shared>),
    /// The findings of a recovery, which do not change.
    Found(Box<Still>),
}

struct Still {
    dir: LogDir,
    control: Control,
    /// Whole pieces of the log, by LSN.
    pieces: Vec<Piece>,
    /// Records between them that a salvage left out.
    gaps: Vec<Range<u64>>,
    damage: Vec<Damage>,
    first_lsn: u64,
    last_lsn: u64,
}

/// Whole blocks without a hole.
#[derive(Clone, PartialEq)]
enum Piece {
    Segment(Segment),
    Run(Run),
}

impl Piece {
    fn number(&self) -> u64 {
        match self {
            Piece::Segment(segment) => segment.header.number,
            Piece::Run(run) => run.segment,
        }
    }

    fn lsns(&self) -> Range<u64> {
        match self {
            Piece::Segment(segment) => segment.header.first_lsn()..segment.last_lsn + 1,
            Piece::Run(run) => run.lsns.clone(),
        }
    }
}

impl Still {
    /// Whole blocks of files that are no longer part of the log.
    fn aside(dir: LogDir, control: Control, runs: Vec<Run>) -> Still {
        let pieces: Vec<Piece> = runs.into_iter().map(Piece::Run).collect();
        let first_lsn = pieces.first().map_or(1, |piece| piece.lsns().start);
        let last_lsn = pieces.last().map_or(0, |piece| piece.lsns().end - 1);
        let everywhere = std::iter::once(0..u64::MAX).collect();
        Still { dir, control, pieces, gaps: everywhere, damage: Vec::new(), first_lsn, last_lsn }
    }

    fn new(dir: LogDir, found: Found) -> Still {
        let Found { control, chain, runs, recovery, end, .. } = found;
        let segments = chain.into_iter().map(Piece::Segment);
        let mut pieces: Vec<Piece> = segments.chain(runs.into_iter().map(Piece::Run)).collect();
        pieces.retain(|piece| !piece.lsns().is_empty());
        pieces.sort_by_key(|piece| piece.lsns().start);
        let last_lsn = if recovery.damage.is_empty() { end.lsn } else { recovery.next_lsn - 1 };
        let first_lsn = pieces.first().map_or(recovery.first_lsn, |piece| piece.lsns().start.min(recovery.first_lsn));
        Still { dir, control, pieces, gaps: recovery.gaps, damage: recovery.damage, first_lsn, last_lsn }
    }

    fn piece(&self, lsn: u64) -> Option<&Piece> {
        self.pieces.iter().find(|piece| piece.lsns().contains(&lsn))
    }

    /// Returns the first record behind those that are missing at `lsn`, and the damage, unless a
    /// salvage left them out.
    fn behind_hole(&self, lsn: u64) -> Option<(u64, Option<Error>)> {
        if self.piece(lsn).is_some() || lsn < self.first_lsn {
            return None;
        }
        let next = self.pieces.iter().map(|piece| piece.lsns().start).find(|start| *start > lsn);
        let next = next.unwrap_or(self.last_lsn + 1);
        if self.gaps.iter().any(|gap| gap.start <= lsn && next <= gap.end) {
            return Some((next, None));
        }
        let here = |damage: &&Damage| damage.lsns.contains(&lsn);
        let damage = self.damage.iter().find(here).or(self.damage.first())?;
        Some((next, Some(damage.error())))
    }
}

impl Source {
    fn dir(&self) -> &LogDir {
        match self {
            Source::Live(shared) => &shared.dir,
            Source::Found(still) => &still.dir,
        }
    }

    fn control(&self) -> &Control {
        match self {
            Source::Live(shared) => &shared.control,
            Source::Found(still) => &still.control,
        }
    }

    fn last_lsn(&self) -> u64 {
        match self {
            Source::Live(shared) => shared.durable(),
            Source::Found(still) => still.last_lsn,
        }
    }

    /// First record of all.
    fn first_lsn(&self) -> u64 {
        match self {
            Source::Live(shared) => shared.state().segments.first().map_or(1, |segment| segment.header.first_lsn()),
            Source::Found(still) => still.first_lsn,
        }
    }
}

/// A piece that is open.
struct Open {
    blocks: Blocks,
    /// Last record that counts, where that does not change.
    limit: Option<u64>,
    /// The block that is being read.
    block: Vec<u8>,
    /// Its place in the segment.
    offset: u64,
    /// Its whole records, if not all are.
    parts: Option<Vec<Part>>,
    /// Offset of the next record in it.
    at: usize,
    /// Records left in it.
    left: u32,
    /// LSN of the next record of the block.
    block_lsn: u64,
    /// Start and length of the last record that was returned.
    last: (usize, usize),
    /// The next block was not whole, and is being read once more: its page may have been read
    /// before it was written.
    is_second_look: bool,
}

/// Next step of a reader.
enum Step {
    /// Return the record, which is in memory.
    Take,
    /// Nothing: no more records are durable.
    End,
    /// Open the file of a piece.
    Open(Piece),
    /// Read bytes of the open piece.
    Read((u64, usize)),
}

/// Result of a search in an open piece.
enum Search {
    Found,
    Lacks((u64, usize)),
    NotHere,
}

impl Reader {
    pub(super) fn of_live(shared: Arc<Shared>, from_lsn: u64) -> Reader {
        // In a forked child a thread that is not there may hold the lock.
        let epoch = if shared.is_forked() { 0 } else { shared.state().epoch };
        Reader::new(Source::Live(shared), from_lsn, epoch)
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
        Reader { source, next_lsn, segment: None, opening: None, misses: 0, is_gone: false, epoch, pin: None }
    }

    /// LSN of the next record.
    pub fn next_lsn(&self) -> u64 {
        self.next_lsn
    }

    /// Keeps the next record, and all after it, from being given up until this reader has read
    /// them or is dropped. So neither [`Log::truncate_prefix`](super::Log::truncate_prefix) nor
    /// [`Options::retain`](super::Options::retain) removes what it has not read, however long that
    /// takes: the log grows meanwhile. Does nothing for a reader of a log that is not open.
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchRecord`] when the next record was given up already.
    pub fn pin(&mut self) -> Result<()> {
        if let Source::Live(shared) = &self.source {
            self.pin = Some(ReaderPin::new(shared, self.next_lsn)?);
        }
        Ok(())
    }

    /// Gives the next durable record; None if there is none yet: a later call may find one.
    ///
    /// Skips records that a salvage left out: see [`Recovery::gaps`](super::Recovery::gaps), and
    /// [`Record::lsn`].
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchRecord`] when the record has been cut off the log's beginning, or its
    /// end. [`ErrorKind::Damaged`] when it was durable and cannot be read. Those of reads. A reader
    /// of [`read`](super::read) reports each damage once: the next call returns the first whole
    /// record behind it.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Next<'_> {
        Next { reader: Some(self) }
    }

    /// Reads on, on this thread, until the next record is in memory; false if it is not durable
    /// yet.
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

    /// Gives the next record, and waits until it is durable.
    ///
    /// # Errors
    /// As [`Reader::next`]; [`ErrorKind::Closed`] when the log is closed before, or was not opened
    /// for appending, and [`ErrorKind::Poisoned`] when it has failed.
    pub fn tail(&mut self) -> Tail<'_> {
        Tail { reader: Some(self), durable: None }
    }

    /// Returns the wait for the next record, where it may still come.
    fn durable(&self) -> Result<Option<Durable>> {
        match &self.source {
            Source::Live(shared) => Ok(Some(Durable::new(shared, self.next_lsn))),
            Source::Found(still) if self.next_lsn > still.last_lsn => {
                Err(os::error(ErrorOp::Read, ErrorKind::Closed, &still.dir.path))
            }
            Source::Found(_) => Ok(None),
        }
    }

    /// Notices that the end of the log was cut: it goes on with other records of the same numbers.
    fn follow(&mut self) -> Result<()> {
        let Source::Live(shared) = &self.source else { return Ok(()) };
        if shared.is_forked() {
            return Err(shared.forked());
        }
        let state = shared.state();
        if state.epoch == self.epoch {
            return Ok(());
        }
        let since = state.cuts.iter().filter(|(epoch, _)| *epoch > self.epoch);
        let left = since.map(|(_, lsn)| *lsn).min().unwrap_or(u64::MAX);
        if left.saturating_add(1) < self.next_lsn {
            let text =
                format!("the log was cut off after record {left}, and others may have come since; read on from there");
            return Err(shared.error(ErrorOp::Read, ErrorKind::NoSuchRecord, text));
        }
        (self.epoch, self.segment) = (state.epoch, None);
        Ok(())
    }

    /// Decides what to do next; does nothing that may block.
    fn step(&mut self) -> Result<Step> {
        self.follow()?;
        loop {
            if self.next_lsn > self.source.last_lsn() {
                return Ok(Step::End);
            }
            let (lsn, limit) = (self.next_lsn, self.limit());
            let search = match &mut self.segment {
                Some(_) if limit.is_some_and(|limit| lsn > limit) => Search::NotHere,
                Some(open) => open.search(lsn)?,
                None => match self.piece() {
                    Some(piece) => return Ok(Step::Open(piece)),
                    None => {
                        self.missed(true)?;
                        continue;
                    }
                },
            };
            match search {
                Search::Found => {
                    self.misses = 0;
                    return Ok(Step::Take);
                }
                Search::Lacks(place) => return Ok(Step::Read(place)),
                Search::NotHere => self.missed(false)?,
            }
        }
    }

    /// Goes on after the next record was not where it should be: looks once more where it is now,
    /// since its segment may have ended, or have been cut off; then goes on behind the hole.
    fn missed(&mut self, is_gone: bool) -> Result<()> {
        self.is_gone = is_gone;
        self.misses += 1;
        if self.misses == 1 {
            self.segment = None;
            return Ok(());
        }
        self.misses = 0;
        match self.behind_hole() {
            Some((next, error)) => {
                self.next_lsn = next;
                error.map_or(Ok(()), Err)
            }
            None => {
                let error = self.segment.as_mut().and_then(|open| open.blocks.read_error());
                Err(error.unwrap_or_else(|| self.unreadable()))
            }
        }
    }

    /// Returns the record that [`Step::Take`] stands for.
    fn take(&mut self) -> Result<Record<'_>> {
        let lsn = self.next_lsn;
        let taken = self.segment.as_mut().and_then(Open::skip).is_some();
        match &self.segment {
            Some(open) if taken => {
                self.next_lsn += 1;
                self.pin.as_ref().inspect(|pin| pin.follow(self.next_lsn));
                let (kind, bytes) = open.last();
                Ok(Record { lsn, kind, bytes })
            }
            _ => Err(self.unreadable()),
        }
    }

    /// As [`Reader::take`], for a task, which is charged for it.
    fn take_in_turn(&mut self) -> Result<Record<'_>> {
        let taken = self.take();
        turn::copied(taken.as_ref().map_or(0, |record| record.bytes.len()));
        taken
    }

    /// Last record of the open segment that counts, once it has an end.
    fn limit(&self) -> Option<u64> {
        let open = self.segment.as_ref()?;
        let Source::Live(shared) = &self.source else { return open.limit };
        let state = shared.state();
        let here = state.segments.iter().find(|segment| segment.header.number == open.blocks.number);
        // A segment that is gone has none.
        Some(here.map_or(0, |segment| segment.last_lsn))
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
            // Removed since.
            Err(error) if error.kind() == ErrorKind::NotFound => return self.missed(true),
            file => Window::past_errors(file?),
        };
        let blocks = match piece {
            Piece::Segment(segment) => Blocks::new(window, &segment.header),
            Piece::Run(run) => Blocks::of_run(window, self.source.control(), run),
        };
        let limit = match &self.source {
            Source::Live(_) => None,
            Source::Found(_) => Some(piece.lsns().end - 1),
        };
        self.segment = Some(Open {
            block: Vec::new(),
            offset: 0,
            parts: None,
            at: 0,
            left: 0,
            block_lsn: blocks.next_lsn,
            last: (0, 0),
            limit,
            blocks,
            is_second_look: false,
        });
        Ok(())
    }

    /// Returns the first record behind those that are missing, and the damage if it is to be
    /// reported.
    fn behind_hole(&self) -> Option<(u64, Option<Error>)> {
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
            return gone(format!("record {lsn} was cut off the log, whose first one is {first}"));
        }
        let number = self.piece().as_ref().map_or(0, Piece::number);
        if self.is_gone {
            return gone(format!("record {lsn} was cut off the log while it was read; look at the log again"));
        }
        let (offset, what) = match &self.segment {
            Some(open) if open.parts.is_some() => (open.offset + open.at as u64, "its bytes are not what was written"),
            open => (open.as_ref().map_or(0, |open| open.blocks.offset), "no whole block is here"),
        };
        dir.damage(number, offset, 0, format!("record {lsn} was durable and cannot be read: {what}"))
    }
}

impl Open {
    /// Advances to record `lsn`, as far as the blocks are in memory.
    fn search(&mut self, lsn: u64) -> Result<Search> {
        while self.block_lsn + u64::from(self.left) <= lsn {
            if let Some(place) = self.blocks.lacks()? {
                return Ok(Search::Lacks(place));
            }
            let (header, block, parts) = match self.blocks.next()? {
                Some((header, block)) => (header, block, None),
                None if !self.is_second_look => {
                    self.blocks.forget();
                    self.is_second_look = true;
                    continue;
                }
                // Damage costs no more than the records that it hit.
                None => match self.blocks.next_in_part()? {
                    Some((header, block, parts)) => (header, block, Some(parts)),
                    None => return Ok(Search::NotHere),
                },
            };
            self.block.clear();
            self.block.extend_from_slice(block.get(..BLOCK_HEADER_BYTES + header.length as usize).unwrap_or(block));
            (self.at, self.left, self.block_lsn) = (BLOCK_HEADER_BYTES, header.records, header.first_lsn);
            (self.offset, self.parts, self.is_second_look) = (header.offset, parts, false);
        }
        while self.block_lsn < lsn {
            if self.skip().is_none() {
                return Ok(Search::NotHere);
            }
        }
        let is_whole = |parts: &Vec<Part>| parts.iter().any(|part| part.lsns.contains(&lsn));
        if !self.parts.as_ref().is_none_or(is_whole) {
            return Ok(Search::NotHere);
        }
        Ok(Search::Found)
    }

    /// Advances to the next record.
    fn skip(&mut self) -> Option<()> {
        if self.left == 0 {
            return None;
        }
        let (start, length) = record_at(&self.block, self.at)?;
        self.at = start + length;
        self.left -= 1;
        self.block_lsn += 1;
        self.last = (start, length);
        Some(())
    }

    /// Kind and bytes of the last record that was returned.
    fn last(&self) -> (u8, &[u8]) {
        let (start, length) = self.last;
        (kind_at(&self.block, start), self.block.get(start..start + length).unwrap_or_default())
    }
}

/// The next record of a [`Reader`]: await it on any executor, or [`wait`](Next::wait) for it.
/// Dropped before it is ready, it leaves the reader where it was.
#[must_use = "nothing is read until it is awaited or waited for"]
pub struct Next<'r> {
    reader: Option<&'r mut Reader>,
}

impl<'r> Next<'r> {
    /// Reads on this thread.
    ///
    /// # Errors
    /// As [`Reader::next`].
    #[inline]
    pub fn wait(mut self) -> Result<Option<Record<'r>>> {
        let Some(reader) = self.reader.take() else { polled_too_often() };
        if reader.load()? { reader.take().map(Some) } else { Ok(None) }
    }
}

impl<'r> Future for Next<'r> {
    type Output = Result<Option<Record<'r>>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(reader) = self.reader.take() else { polled_too_often() };
        match reader.poll_load(context) {
            Poll::Ready(Ok(true)) => Poll::Ready(reader.take_in_turn().map(Some)),
            Poll::Ready(Ok(false)) => Poll::Ready(Ok(None)),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                self.reader = Some(reader);
                Poll::Pending
            }
        }
    }
}

/// The next record of a [`Reader`], once it is durable: await it on any executor, or
/// [`wait`](Tail::wait) for it. Dropped before it is ready, it leaves the reader where it was.
#[must_use = "nothing is read until it is awaited or waited for"]
pub struct Tail<'r> {
    reader: Option<&'r mut Reader>,
    durable: Option<Durable>,
}

impl<'r> Tail<'r> {
    /// Waits, and reads, on this thread.
    ///
    /// # Errors
    /// As [`Reader::tail`].
    pub fn wait(mut self) -> Result<Record<'r>> {
        let Some(reader) = self.reader.take() else { polled_too_often() };
        loop {
            if let Some(durable) = reader.durable()? {
                durable.wait()?;
            }
            // False where it skipped records that a salvage left out.
            if reader.load()? {
                return reader.take();
            }
        }
    }

    fn poll_record(&mut self, reader: &mut Reader, context: &mut Context<'_>) -> Poll<Result<()>> {
        loop {
            if self.durable.is_none() {
                self.durable = reader.durable()?;
            }
            if let Some(durable) = &mut self.durable {
                ready!(Pin::new(durable).poll(context))?;
                self.durable = None;
            }
            if ready!(reader.poll_load(context))? {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<'r> Future for Tail<'r> {
    type Output = Result<Record<'r>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(reader) = self.reader.take() else { polled_too_often() };
        match self.poll_record(reader, context) {
            Poll::Ready(Ok(())) => Poll::Ready(reader.take_in_turn()),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                self.reader = Some(reader);
                Poll::Pending
            }
        }
    }
}
