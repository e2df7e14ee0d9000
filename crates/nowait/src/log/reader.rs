//! Reading a log: durable records only, in order, from the segments.

use std::ops::Range;
use std::sync::Arc;

use super::commit::{Core, Shared};
use super::dir::{Blocks, Folder, Run, Window};
use super::format::{BLOCK_HEADER_BYTES, Control, record_at};
use super::recover::{Damage, Found, Segment};
use crate::error::{Error, ErrorKind, ErrorOp, Result};
use crate::file::{File, OpenOptions};

/// A record of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its number.
    pub lsn: u64,
    /// What was appended.
    pub bytes: &'a [u8],
}

/// Reads the durable records of a log in order; see [`Log::reader`](super::Log::reader). Reads past the page cache where the log is
/// written past it.
pub struct Reader {
    source: Source,
    next_lsn: u64,
    segment: Option<Open>,
    /// Of the log, when it was looked at last.
    epoch: u64,
}

/// Where the records come from.
enum Source {
    /// A log that is open for appending.
    Live(Arc<Shared>),
    /// What was found, and stays as it is.
    Found(Box<Still>),
}

struct Still {
    folder: Folder,
    control: Control,
    /// By LSN.
    pieces: Vec<Piece>,
    /// Records between them that a salvage left out, or that are damaged.
    gaps: Vec<Range<u64>>,
    damage: Vec<Damage>,
    first_lsn: u64,
    last_lsn: u64,
}

/// What is whole without a hole.
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
    /// What is whole in files that are not part of the log any more.
    fn aside(folder: Folder, control: Control, runs: Vec<Run>) -> Still {
        let pieces: Vec<Piece> = runs.into_iter().map(Piece::Run).collect();
        let first_lsn = pieces.first().map_or(1, |piece| piece.lsns().start);
        let last_lsn = pieces.last().map_or(0, |piece| piece.lsns().end - 1);
        let everywhere = std::iter::once(0..u64::MAX).collect();
        Still { folder, control, pieces, gaps: everywhere, damage: Vec::new(), first_lsn, last_lsn }
    }

    fn new(folder: Folder, found: Found) -> Still {
        let Found { control, chain, runs, recovery, end, .. } = found;
        let segments = chain.into_iter().map(Piece::Segment);
        let mut pieces: Vec<Piece> = segments.chain(runs.into_iter().map(Piece::Run)).collect();
        pieces.retain(|piece| !piece.lsns().is_empty());
        pieces.sort_by_key(|piece| piece.lsns().start);
        let last_lsn = if recovery.damage.is_empty() { end.lsn } else { recovery.next_lsn - 1 };
        let first_lsn = pieces.first().map_or(recovery.first_lsn, |piece| piece.lsns().start.min(recovery.first_lsn));
        Still { folder, control, pieces, gaps: recovery.gaps, damage: recovery.damage, first_lsn, last_lsn }
    }

    fn piece(&self, lsn: u64) -> Option<&Piece> {
        self.pieces.iter().find(|piece| piece.lsns().contains(&lsn))
    }

    /// The first record behind those that are missing at `lsn`, and what is missing if that has not been told.
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
    fn folder(&self) -> &Folder {
        match self {
            Source::Live(shared) => &shared.folder,
            Source::Found(still) => &still.folder,
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

    /// The first record of all.
    fn first_lsn(&self) -> u64 {
        match self {
            Source::Live(shared) => shared.core().segments.first().map_or(1, |segment| segment.header.first_lsn()),
            Source::Found(still) => still.first_lsn,
        }
    }
}

struct Open {
    blocks: Blocks,
    /// The last record of it that counts, where that does not change.
    limit: Option<u64>,
    /// The block that is being read, without its header, and where the next record is.
    block: Vec<u8>,
    at: usize,
    left: u32,
    /// LSN of the next record of the block.
    block_lsn: u64,
    /// Start and length of the record before.
    last: (usize, usize),
}

impl Reader {
    pub(super) fn of_live(shared: Arc<Shared>, from_lsn: u64) -> Reader {
        // The lock may have been held by a thread that is not there, in the child of a fork.
        let epoch = if shared.is_forked() { 0 } else { shared.core().epoch };
        Reader { source: Source::Live(shared), next_lsn: from_lsn.max(1), segment: None, epoch }
    }

    pub(super) fn of_found(folder: Folder, found: Found, from_lsn: u64) -> Reader {
        let source = Source::Found(Box::new(Still::new(folder, found)));
        Reader { source, next_lsn: from_lsn.max(1), segment: None, epoch: 0 }
    }

    pub(super) fn of_aside(folder: Folder, control: Control, runs: Vec<Run>) -> Reader {
        let still = Still::aside(folder, control, runs);
        Reader { next_lsn: still.first_lsn, source: Source::Found(Box::new(still)), segment: None, epoch: 0 }
    }

    /// LSN of the record that comes next.
    pub fn next_lsn(&self) -> u64 {
        self.next_lsn
    }

    /// The next record that is durable; None if there is none yet: a later call may find one. Blocks for reads.
    ///
    /// Records that a salvage left out are passed over: see [`Recovery::gaps`](super::Recovery::gaps), and [`Record::lsn`].
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchRecord`] when the record has been cut off the log's beginning, or its end. [`ErrorKind::Damaged`] when it cannot be read
    /// although it was durable. Those of reads. A reader of [`read`](super::read) tells of each damage once: the next call gives
    /// the first whole record behind it.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Record<'_>>> {
        self.follow()?;
        loop {
            if self.next_lsn > self.source.last_lsn() {
                return Ok(None);
            }
            if self.seek()? {
                break;
            }
            // The segment that was read is at its end, or was taken from the log's beginning.
            self.segment = None;
            if self.seek()? {
                break;
            }
            match self.behind_hole() {
                Some((next, error)) => {
                    self.next_lsn = next;
                    error.map_or(Ok(()), Err)?;
                }
                None => {
                    let error = self.segment.as_mut().and_then(|open| open.blocks.read_error());
                    return Err(error.unwrap_or_else(|| self.unreadable()));
                }
            }
        }
        self.take()
    }

    /// The next record, also when it is not durable yet: waits for it. Works on any executor.
    ///
    /// # Errors
    /// As [`Reader::next`]; [`ErrorKind::Closed`] when the log is closed before, or was not opened for appending, and
    /// [`ErrorKind::Poisoned`] when it has failed.
    pub async fn tail(&mut self) -> Result<Record<'_>> {
        loop {
            match &self.source {
                Source::Live(shared) => drop(super::durable(shared, self.next_lsn).await?),
                Source::Found(still) if self.next_lsn > still.last_lsn => {
                    return Err(Error::new(ErrorOp::Read, ErrorKind::Closed).at(&still.folder.path));
                }
                Source::Found(_) => {}
            }
            if let Some(open) = &mut self.segment {
                if open.left == 0 {
                    // An executor's thread does not wait for the disk.
                    open.blocks.load().await?;
                }
            }
            // None where records were passed over that a salvage left out.
            if let Some(Record { lsn, .. }) = self.next()? {
                // The borrow checker does not see that the first answer is not used any more.
                let Some(open) = &self.segment else { return Err(self.unreadable()) };
                return Ok(Record { lsn, bytes: open.last() });
            }
        }
    }

    /// A log whose end was cut off goes on with other records of the same numbers.
    fn follow(&mut self) -> Result<()> {
        let Source::Live(shared) = &self.source else { return Ok(()) };
        if shared.is_forked() {
            return Err(shared.forked());
        }
        let core = shared.core();
        if core.epoch == self.epoch {
            return Ok(());
        }
        let since = core.cuts.iter().filter(|(epoch, _)| *epoch > self.epoch);
        let left = since.map(|(_, lsn)| *lsn).min().unwrap_or(u64::MAX);
        if left.saturating_add(1) < self.next_lsn {
            let text =
                format!("the log was cut off after record {left}, and others may have come since; read on from there");
            return Err(shared.error(ErrorOp::Read, ErrorKind::NoSuchRecord, text));
        }
        (self.epoch, self.segment) = (core.epoch, None);
        Ok(())
    }

    /// Makes `next_lsn` the record that is taken next; false when the open segment has it not.
    fn seek(&mut self) -> Result<bool> {
        if self.segment.is_none() {
            self.segment = self.open()?;
        }
        let (lsn, limit) = (self.next_lsn, self.limit());
        let Some(open) = &mut self.segment else { return Ok(false) };
        if limit.is_some_and(|limit| lsn > limit) {
            return Ok(false);
        }
        let mut is_fresh = false;
        while open.block_lsn + u64::from(open.left) <= lsn {
            match open.blocks.next()? {
                Some((header, block)) => {
                    open.block.clear();
                    open.block.extend_from_slice(&block[..BLOCK_HEADER_BYTES + header.length as usize]);
                    (open.at, open.left, open.block_lsn) = (BLOCK_HEADER_BYTES, header.records, header.first_lsn);
                }
                None if is_fresh => return Ok(false),
                // It may have been read before it was written.
                None => {
                    open.blocks.forget();
                    is_fresh = true;
                }
            }
        }
        while open.block_lsn < lsn {
            if open.skip().is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn take(&mut self) -> Result<Option<Record<'_>>> {
        let lsn = self.next_lsn;
        let taken = self.segment.as_mut().and_then(Open::skip).is_some();
        match &self.segment {
            Some(open) if taken => {
                self.next_lsn += 1;
                Ok(Some(Record { lsn, bytes: open.last() }))
            }
            _ => Err(self.unreadable()),
        }
    }

    /// The last record of the open segment that counts, once it has an end.
    fn limit(&self) -> Option<u64> {
        let open = self.segment.as_ref()?;
        let Source::Live(shared) = &self.source else { return open.limit };
        let core = shared.core();
        let here = core.segments.iter().find(|segment| segment.header.number == open.blocks.number);
        // One that is not there any more has none.
        Some(here.map_or(0, |segment| segment.last_lsn))
    }

    fn open(&self) -> Result<Option<Open>> {
        let lsn = self.next_lsn;
        let window = |file: Result<File>| match file {
            // Cut off since.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            other => other.map(|file| Some(Window::past_errors(file))),
        };
        let open = |number| window(self.source.folder().open(number, false, self.source.control().direct));
        let (blocks, limit) = match &self.source {
            Source::Live(shared) => {
                let place =
                    |core: &Core| core.segments.iter().rev().find(|segment| segment.header.first_lsn() <= lsn).copied();
                let Some(segment) = place(&shared.core()) else { return Ok(None) };
                let Some(window) = open(segment.header.number)? else { return Ok(None) };
                (Blocks::new(window, &segment.header), None)
            }
            Source::Found(still) => {
                let Some(piece) = still.piece(lsn) else { return Ok(None) };
                let window = match piece {
                    Piece::Run(Run { aside: Some(name), .. }) => {
                        window(still.folder.open_file(OpenOptions::new().read(true), name))?
                    }
                    _ => open(piece.number())?,
                };
                let Some(window) = window else { return Ok(None) };
                let blocks = match piece {
                    Piece::Segment(segment) => Blocks::new(window, &segment.header),
                    Piece::Run(run) => Blocks::of_run(window, &still.control, run),
                };
                (blocks, Some(piece.lsns().end - 1))
            }
        };
        Ok(Some(Open { block: Vec::new(), at: 0, left: 0, block_lsn: blocks.next_lsn, last: (0, 0), limit, blocks }))
    }

    /// The first record behind those that are not there, and why, if that is to be told.
    fn behind_hole(&self) -> Option<(u64, Option<Error>)> {
        match &self.source {
            Source::Live(shared) => {
                let core = shared.core();
                let is_left_out = |segment: &&Segment| segment.header.previous.lost().contains(&self.next_lsn);
                core.segments.iter().skip(1).find(is_left_out).map(|segment| (segment.header.first_lsn(), None))
            }
            Source::Found(still) => still.behind_hole(self.next_lsn),
        }
    }

    fn unreadable(&self) -> Error {
        let (lsn, first) = (self.next_lsn, self.source.first_lsn());
        let folder = self.source.folder();
        let gone = |text: String| Error::new(ErrorOp::Read, ErrorKind::NoSuchRecord).at(&folder.path).explained(text);
        if lsn < first {
            return gone(format!("record {lsn} was cut off the log, whose first one is {first}"));
        }
        let number = match &self.source {
            Source::Live(shared) => {
                let core = shared.core();
                let here = core.segments.iter().rev().find(|segment| segment.header.first_lsn() <= lsn);
                here.map_or(0, |segment| segment.header.number)
            }
            Source::Found(still) => still.piece(lsn).map_or(0, Piece::number),
        };
        if folder.open(number, false, false).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            return gone(format!("record {lsn} was cut off the log while it was read; look at the log again"));
        }
        let offset = self.segment.as_ref().map_or(0, |open| open.blocks.offset);
        let text = format!("record {lsn} was durable and cannot be read: no whole block is here");
        folder.damage(number, offset, 0, text)
    }
}

impl Open {
    /// Goes to the record after the next.
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

    fn last(&self) -> &[u8] {
        let (start, length) = self.last;
        self.block.get(start..start + length).unwrap_or_default()
    }
}
