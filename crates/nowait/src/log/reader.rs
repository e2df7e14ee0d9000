//! Reading a log: durable records only, in order, from the segments.

use std::sync::Arc;

use super::folder::{Blocks, Folder};
use super::format::{BLOCK_HEADER_BYTES, Control, HeaderPage, record_at};
use super::recover::{Found, Segment};
use super::writer::Shared;
use crate::error::{Error, ErrorKind, Operation as Name, Result};

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
    segments: Vec<Segment>,
    last_lsn: u64,
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

    fn look<T>(&self, look: impl FnOnce(&[Segment]) -> T) -> T {
        match self {
            Source::Live(shared) => look(&shared.core().segments),
            Source::Found(still) => look(&still.segments),
        }
    }
}

struct Open {
    blocks: Blocks,
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
        let epoch = shared.core().epoch;
        Reader { source: Source::Live(shared), next_lsn: from_lsn.max(1), segment: None, epoch }
    }

    pub(super) fn of_found(folder: Folder, found: Found, from_lsn: u64) -> Reader {
        let Found { control, chain: segments, end, .. } = found;
        let still = Still { folder, control, segments, last_lsn: end.lsn };
        Reader { source: Source::Found(Box::new(still)), next_lsn: from_lsn.max(1), segment: None, epoch: 0 }
    }

    /// LSN of the record that comes next.
    pub fn next_lsn(&self) -> u64 {
        self.next_lsn
    }

    /// The next record that is durable; None if there is none yet: a later call may find one. Blocks for reads.
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchRecord`] when the record has been cut off the log's beginning, or its end. [`ErrorKind::Damaged`] when it cannot be read
    /// although it was durable. Those of reads.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Record<'_>>> {
        self.follow()?;
        if self.next_lsn > self.source.last_lsn() {
            return Ok(None);
        }
        if !self.seek()? {
            // The segment that was read is at its end, or was taken from the log's beginning.
            self.segment = None;
            if !self.seek()? {
                return Err(self.unreadable());
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
        match &self.source {
            Source::Live(shared) => drop(super::durable(shared, self.next_lsn).await?),
            Source::Found(still) if self.next_lsn > still.last_lsn => {
                return Err(Error::new(Name::Read, ErrorKind::Closed).at(&still.folder.path));
            }
            Source::Found(_) => {}
        }
        if let Some(open) = &mut self.segment {
            if open.left == 0 {
                // An executor's thread does not wait for the disk.
                open.blocks.load().await?;
            }
        }
        match self.next()? {
            // The borrow checker does not see that the first answer is not used any more.
            Some(Record { lsn, .. }) => {
                let Some(open) = &self.segment else { return Err(self.unreadable()) };
                Ok(Record { lsn, bytes: open.last() })
            }
            None => Err(self.unreadable()),
        }
    }

    /// A log whose end was cut off goes on with other records of the same numbers.
    fn follow(&mut self) -> Result<()> {
        let Source::Live(shared) = &self.source else { return Ok(()) };
        let core = shared.core();
        if core.epoch == self.epoch {
            return Ok(());
        }
        let since = core.cuts.iter().filter(|(epoch, _)| *epoch > self.epoch);
        let left = since.map(|(_, lsn)| *lsn).min().unwrap_or(u64::MAX);
        if left.saturating_add(1) < self.next_lsn {
            let text =
                format!("the log was cut off after record {left}, and others may have come since; read on from there");
            return Err(shared.error(Name::Read, ErrorKind::NoSuchRecord, text));
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
        let number = self.segment.as_ref()?.blocks.number;
        let find = |segments: &[Segment]| {
            // One that is not there any more has none.
            segments.iter().find(|segment| segment.header.number == number).map_or(0, |segment| segment.last_lsn)
        };
        Some(self.source.look(find))
    }

    /// The segment that has `next_lsn`, and the first record of all.
    fn place(&self) -> (Option<Segment>, u64) {
        self.source.look(|segments| {
            let here = segments.iter().rev().find(|segment| segment.header.first_lsn() <= self.next_lsn);
            (here.copied(), segments.first().map_or(1, |segment| segment.header.first_lsn()))
        })
    }

    fn open(&self) -> Result<Option<Open>> {
        let Some(segment) = self.place().0 else { return Ok(None) };
        let control = self.source.control();
        let number = segment.header.number;
        let file = match self.source.folder().open(number, false, control.direct) {
            // Cut off since.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let (page, window) = Blocks::header(file, &control.log_id, number)?;
        let HeaderPage::Valid(header) = page else { return Ok(None) };
        let blocks = Blocks::new(window, &header);
        Ok(Some(Open { block: Vec::new(), at: 0, left: 0, block_lsn: blocks.next_lsn, last: (0, 0), blocks }))
    }

    fn unreadable(&self) -> Error {
        let (segment, first) = self.place();
        if self.next_lsn < first {
            let text = format!("record {} was cut off the log, whose first one is {first}", self.next_lsn);
            let error = Error::new(Name::Read, ErrorKind::NoSuchRecord).at(&self.source.folder().path);
            return error.explained(text);
        }
        let (offset, what) = match &self.segment {
            Some(open) => (open.blocks.offset, "no whole block is here"),
            None => (0, "the segment has no valid header"),
        };
        let text = format!("record {} was durable and cannot be read: {what}", self.next_lsn);
        self.source.folder().damage(segment.map_or(0, |segment| segment.header.number), offset, 0, text)
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
