//! Follows a log that another process writes. No memory is shared, so the follower reads the end of
//! the log again.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::blocking::Blocking;
use super::dir::{Blocks, CONTROL, LogDir, SEARCHED_AT_END, Window, is_direct};
use super::format::{
    BLOCK_HEADER_BYTES, CONTROL_BYTES, Control, End, HeaderPage, PAGE, SegmentHeader, kind_at, record_at,
};
use super::open::{no_log, open_dir};
use super::os;
use super::recover::{Damage, read_control};
use nowait::{Advice, Error, ErrorKind, ErrorOp, File, Nowait, OpenOptions, Result, block_on};

/// Time after which complete blocks without a covering watermark are synced. An idle log writes its
/// watermark block in a fifth of this time.
const SYNC_AFTER: Duration = Duration::from_millis(100);
/// If no block follows the last one for this time, although the newest segment was written, the
/// segment is searched.
const SEARCH_AFTER: Duration = Duration::from_millis(500);
/// Maximum number of blocks read ahead of the watermark. The writer has far fewer in flight.
const PENDING_MAX: usize = 64;

/// First record that a [`Follower`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowFrom {
    /// This record, or the oldest one in the log if this one was removed.
    Lsn(u64),
    /// The first of the last `n` records that the log contains now.
    Last(u64),
}

/// Next result of a [`Follower`].
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Followed<'a> {
    /// A durable record.
    #[non_exhaustive]
    Record {
        /// LSN of the record.
        lsn: u64,
        /// Kind of the record, as appended.
        kind: u8,
        /// Bytes of the record, as appended.
        bytes: &'a [u8],
    },
    /// These records were removed before they were read, or were lost to damage and left out by a
    /// salvage. The follower continues after them.
    Missing(Range<u64>),
    /// All records after this one were truncated, although the follower had returned them. New
    /// records may have the same LSNs.
    Cut(u64),
}

/// Reader of a log that another process may write. It returns records as they become durable. See
/// [`follow`].
pub struct Follower {
    dir: LogDir,
    control: Control,
    /// Headers by segment number. A number is never reused.
    headers: BTreeMap<u64, SegmentHeader>,
    current: Option<Current>,
    /// Blocks whose records were not all returned, in order.
    pending: VecDeque<Pending>,
    /// Time when the first block not known to be durable was read.
    pending_since: Option<Instant>,
    /// LSN up to which all records are durable.
    durable: u64,
    /// Next record to be returned.
    next_lsn: u64,
    bytes_read: u64,
    /// Place in the newest segment where no block follows.
    stuck: Option<Stuck>,
    skips_damage: bool,
    /// Damage that the last error reported.
    damage: Option<Damage>,
}

/// A place in the newest segment where no block follows.
struct Stuck {
    segment: u64,
    offset: u64,
    since: Instant,
    /// Last change of the file before the search for blocks after the place.
    searched: Option<SystemTime>,
    /// Search again at this time, since a later change may not have changed the file's time.
    again: Option<Instant>,
}

/// The segment being read.
struct Current {
    header: SegmentHeader,
    file: File,
    blocks: Blocks,
    /// Place from which the next segment continues, once there is one.
    limit: Option<End>,
    /// The page after the last block, as read when no block began there.
    idle: Option<Vec<u8>>,
    is_direct: bool,
}

/// An intact block, consecutive records of a block, or damage between them.
struct Pending {
    block: Vec<u8>,
    /// Offset of the next record's frame, the LSN of that record, and the last valid LSN.
    at: usize,
    lsn: u64,
    last_lsn: u64,
    /// The lost records, if this is damage; `block` is empty then.
    damage: Option<Damage>,
}

impl Pending {
    fn of_damage(damage: Damage) -> Pending {
        let (lsn, last_lsn) = (damage.lsns.end, damage.lsns.end - 1);
        Pending { block: Vec::new(), at: 0, lsn, last_lsn, damage: Some(damage) }
    }
}

/// Follows the log in `dir`, which another process may write. The follower returns records from
/// `from` on, including later ones. It changes nothing.
///
/// The follower returns a record only if it is known to be durable. Either a later watermark of the
/// writer covers it, or the follower has synced the segment, as [`inspect`](super::inspect()) does.
/// It syncs if a complete block is not covered by a watermark for 100 ms, and in
/// [`Follower::settle`].
///
/// # Errors
/// [`ErrorKind::NotFound`] if `dir` contains no log; [`ErrorKind::Damaged`] if its control file
/// cannot be read; [`ErrorKind::Unsupported`] for a later version of the format; those of files.
pub fn follow(dir: impl AsRef<Path>, from: FollowFrom) -> Blocking<Follower> {
    follow_in(Nowait::shared(), dir, from)
}

/// Follows a log as [`follow`] does, on the given instance.
///
/// # Errors
/// As [`follow`].
pub fn follow_in(instance: &Nowait, dir: impl AsRef<Path>, from: FollowFrom) -> Blocking<Follower> {
    let (instance, dir): (Nowait, Arc<Path>) = (instance.clone(), dir.as_ref().into());
    Blocking::new(os::RECOVER, &dir.clone(), move || Follower::new(&instance, &dir, from))
}

impl Follower {
    fn new(instance: &Nowait, dir: &Path, from: FollowFrom) -> Result<Follower> {
        let dir = open_dir(instance, dir)?;
        let control = control(&dir)?;
        let mut follower = Follower {
            dir,
            control,
            headers: BTreeMap::new(),
            current: None,
            pending: VecDeque::new(),
            pending_since: None,
            durable: 0,
            next_lsn: 1,
            bytes_read: 0,
            stuck: None,
            skips_damage: false,
            damage: None,
        };
        follower.look()?;
        follower.next_lsn = match from {
            FollowFrom::Lsn(lsn) => lsn.max(1),
            FollowFrom::Last(count) => follower.end()?.saturating_sub(count).max(follower.oldest()),
        };
        Ok(follower)
    }

    /// Returns the LSN of the next record to be returned.
    pub fn next_lsn(&self) -> u64 {
        self.next_lsn
    }

    /// Returns the number of bytes of segments read so far.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read + self.current.as_ref().map_or(0, |current| current.blocks.bytes_read())
    }

    /// Sets whether the follower continues after damage. If true, it reports each damage once, by
    /// an error, and the next call returns the first intact record after it. If false (the
    /// default), it stays at the damage, and returns the error again.
    pub fn skip_damage(&mut self, skips: bool) {
        self.skips_damage = skips;
    }

    /// Returns the damage that the last [`Damaged`](ErrorKind::Damaged) error of this follower
    /// reported. Its [`lsns`](Damage::lsns) are the records that cannot be read.
    pub fn damage(&self) -> Option<&Damage> {
        self.damage.as_ref()
    }

    /// Returns true if the followed log is still at its path. Returns false after the directory was
    /// removed, renamed or replaced, or another log was created in it. The call blocks this thread
    /// to examine the path and the control file. A follower continues in a directory that was
    /// renamed; it finds no more records in a directory that was removed. On Windows, only the log's control
    /// file shows that another directory has the path.
    ///
    /// # Errors
    /// Errors of files.
    pub fn is_in_place(&self) -> Result<bool> {
        let Some(here) = self.dir.descriptor() else { return Ok(true) };
        let is_at = os::is_at(here, &self.dir.path);
        let is_at = is_at.map_err(|error| os::system_error(ErrorOp::Metadata, &error, &self.dir.path))?;
        if is_at != Some(true) {
            return Ok(false);
        }
        match control(&self.dir) {
            Ok(control) => Ok(control.log_id == self.control.log_id),
            // `next` reports the damage.
            Err(error) => Ok(error.kind() != ErrorKind::NotFound),
        }
    }

    /// Returns the next result, or `None` if no further record is known to be durable yet. Blocks
    /// this thread for reads, but not for later records. A call that returns `None` reads one page,
    /// and the directory.
    ///
    /// A follower that is behind may return truncated records before it detects the truncation.
    /// Damage at the end of a log in use is detected after 0.5 s, or by [`Follower::settle`].
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`] if a durable record cannot be read: see [`Follower::damage`], and
    /// [`Follower::skip_damage`] to continue after it. Errors of files.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Followed<'_>>> {
        loop {
            if self.pending.front().is_some_and(|pending| pending.lsn > pending.last_lsn) {
                self.pass_first()?;
                continue;
            }
            if let Some(pending) = self.pending.front() {
                let (from, last) = (self.next_lsn, pending.last_lsn);
                if last <= self.durable {
                    if pending.lsn > from {
                        return Ok(Some(self.missing(pending.lsn)));
                    }
                    return self.take().map(Some);
                }
            }
            if self.pending.len() < PENDING_MAX && self.read_block()? {
                continue;
            }
            match self.go_on()? {
                Continuation::Event(event) => return Ok(Some(event)),
                Continuation::Again => continue,
                Continuation::End => {}
            }
            let waits = self.pending.back().is_some_and(|pending| pending.last_lsn > self.durable);
            if !waits {
                self.pending_since = None;
                if self.pass_proven(false)? {
                    continue;
                }
                return Ok(None);
            }
            let since = *self.pending_since.get_or_insert_with(Instant::now);
            if self.pending.len() < PENDING_MAX && since.elapsed() < SYNC_AFTER {
                return Ok(None);
            }
            match self.sync() {
                // Windows syncs only through a handle that may write. Without permission for one, the follower
                // waits for the writer's watermark.
                Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::WouldBlock) => {
                    return Ok(None);
                }
                synced => synced?,
            }
        }
    }

    /// Syncs the current segment, so that [`Follower::next`] returns all of its complete blocks
    /// without waiting for the writer's watermark. Before the first `next`, the current segment is
    /// the one that contains the first record to return. Call it again after `next` returned
    /// `None`: the follower may have moved to a later segment.
    ///
    /// # Errors
    /// As [`Follower::next`].
    pub fn settle(&mut self) -> Result<()> {
        if self.current.is_none() {
            // Enters the segment before the first `next`.
            self.go_on()?;
        }
        loop {
            while self.pending.len() < PENDING_MAX && self.read_block()? {}
            if self.pending.len() >= PENDING_MAX || !self.pass_proven(true)? {
                break;
            }
        }
        if self.pending.back().is_some_and(|pending| pending.last_lsn > self.durable) { self.sync() } else { Ok(()) }
    }

    /// Syncs the segment, which makes all complete blocks read before durable.
    fn sync(&mut self) -> Result<()> {
        let (Some(current), Some(last)) = (&self.current, self.pending.back()) else { return Ok(()) };
        match current.file.sync_data().wait() {
            // A read-only file system has no dirty pages.
            Err(error) if error.kind() == ErrorKind::ReadOnlyFilesystem => {}
            other => other?,
        }
        if !current.is_direct && os::DROPS_PAGES {
            // After a failed write-back the page cache may hold data the disk never got.
            current.file.advise(0, 0, Advice::DontNeed).wait()?;
        }
        // All segments before it were durable when its header was written.
        self.durable = self.durable.max(last.last_lsn);
        self.pending_since = None;
        Ok(())
    }

    /// Drops the first pending block, whose records were all returned. If it is damage, reports it.
    fn pass_first(&mut self) -> Result<()> {
        let damage = self.pending.front().and_then(|first| first.damage.clone());
        let damage = damage.filter(|damage| damage.lsns.end > self.next_lsn);
        if damage.is_none() || self.skips_damage {
            self.pending.pop_front();
        }
        let Some(damage) = damage else { return Ok(()) };
        let lsns = self.next_lsn.max(damage.lsns.start)..damage.lsns.end;
        if self.skips_damage {
            self.next_lsn = lsns.end;
        }
        let damage = self.damage.insert(Damage { lsns, ..damage });
        Err(damage.error())
    }

    /// Continues after the last block of the newest segment, if a later block's watermark proves
    /// that records between them were durable. Returns false otherwise. Unless `at_once`, searches
    /// only if no block followed for a while, and the file was changed since the last search.
    fn pass_proven(&mut self, at_once: bool) -> Result<bool> {
        let Some(current) = self.current.as_mut().filter(|current| current.limit.is_none()) else { return Ok(false) };
        let (segment, offset, lsn) = (current.header.number, current.blocks.offset, current.blocks.next_lsn);
        let is_here = |stuck: &Stuck| (stuck.segment, stuck.offset) == (segment, offset);
        let here = self.stuck.take().filter(is_here);
        let stuck = self.stuck.insert(match here {
            Some(here) => here,
            None => Stuck { segment, offset, since: Instant::now(), searched: None, again: None },
        });
        if !at_once && stuck.since.elapsed() < SEARCH_AFTER {
            return Ok(false);
        }
        let changed = current.file.metadata().wait().ok().and_then(|metadata| metadata.modified().ok());
        let is_searched = changed.is_some() && stuck.searched == changed;
        if !at_once && is_searched && stuck.again.is_none_or(|again| Instant::now() < again) {
            return Ok(false);
        }
        stuck.searched = changed;
        let is_recent = |time: &SystemTime| time.elapsed().is_ok_and(|age| age < os::FILE_TIME_TICK);
        stuck.again = changed.filter(is_recent).map(|_| Instant::now() + os::FILE_TIME_TICK);
        let blocks = &mut current.blocks;
        blocks.forget();
        // Searches the whole segment if the writer has continued.
        let end = if at_once { offset.saturating_add(SEARCHED_AT_END) } else { current.header.bytes };
        let mut at = offset + PAGE as u64;
        let mut proof = None;
        while at < end && proof.is_none() {
            let until = end.min(at + SEARCHED_AT_END);
            let header = blocks.first_header(at..until)?;
            at = header.map_or(until, |header| header.padded_end());
            proof = header.filter(|header| header.watermark >= lsn);
        }
        blocks.forget();
        let Some(header) = proof else { return Ok(false) };
        self.pass_damage(header.padded_end(), header.first_lsn)?;
        Ok(true)
    }

    /// Continues after a damaged durable block: with its intact records, or with the next block
    /// before `end`. The first record after `end` is `end_lsn`.
    fn pass_damage(&mut self, end: u64, end_lsn: u64) -> Result<()> {
        let Some(current) = &mut self.current else { return Ok(()) };
        let (number, from, lsn) = (current.header.number, current.blocks.offset, current.blocks.next_lsn);
        let path = self.dir.segment_path(number);
        let damage = |bytes, lsns, what: &str| Damage { path: path.clone(), bytes, lsns, what: what.to_owned() };
        let mut found = Vec::new();
        current.blocks.forget();
        if let Some((header, block, parts)) = current.blocks.next_in_part()? {
            let what = "bytes of durable records differ from what was written";
            let (mut at, mut next) = (BLOCK_HEADER_BYTES, lsn);
            let limit = current.limit.map_or(u64::MAX, |limit| limit.last_there());
            let end = header.lsns().end.min(limit.saturating_add(1));
            for part in parts {
                let lsns = part.lsns.start..part.lsns.end.min(end);
                if next < lsns.start.min(end) {
                    let place = from + at as u64..from + part.bytes.start as u64;
                    found.push(Pending::of_damage(damage(place, next..lsns.start.min(end), what)));
                }
                (at, next) = (part.bytes.end, part.lsns.end);
                if !lsns.is_empty() && lsns.end > self.next_lsn {
                    let (at, last_lsn) = (part.bytes.start, lsns.end - 1);
                    found.push(Pending { block: block.to_vec(), at, lsn: lsns.start, last_lsn, damage: None });
                }
            }
            if next < end {
                let place = from + at as u64..header.padded_end();
                found.push(Pending::of_damage(damage(place, next..end, what)));
            }
        } else {
            let header = current.blocks.first_header(from + PAGE as u64..end)?.filter(|header| header.first_lsn >= lsn);
            let (at, next) = header.map_or((end, end_lsn), |header| (header.offset, header.first_lsn));
            current.blocks.go_to(at, next);
            if lsn < next {
                let what = "no intact block is here, but its records were durable";
                found.push(Pending::of_damage(damage(from..at, lsn..next, what)));
            }
        }
        current.idle = None;
        current.blocks.forget();
        self.pending.extend(found);
        Ok(())
    }

    /// Skips to record `lsn`.
    fn missing(&mut self, lsn: u64) -> Followed<'static> {
        let missing = self.next_lsn..lsn;
        self.next_lsn = lsn;
        Followed::Missing(missing)
    }

    /// Returns the next record of the first block.
    fn take(&mut self) -> Result<Followed<'_>> {
        let lsn = self.next_lsn;
        let Some(pending) = self.pending.front_mut() else { return Err(self.damaged()) };
        loop {
            let found = record_at(&pending.block, pending.at).filter(|_| pending.lsn <= pending.last_lsn);
            let Some((start, length)) = found else { break };
            pending.at = start + length;
            pending.lsn += 1;
            if pending.lsn > lsn {
                self.next_lsn = pending.lsn;
                let block = self.pending.front().map_or(&[][..], |pending| &pending.block);
                let (kind, bytes) = (kind_at(block, start), block.get(start..start + length).unwrap_or_default());
                return Ok(Followed::Record { lsn, kind, bytes });
            }
        }
        Err(self.damaged())
    }

    /// Reads the next block of the current segment; false if there is none yet.
    fn read_block(&mut self) -> Result<bool> {
        let Some(current) = &mut self.current else { return Ok(false) };
        let Some((watermark, pending)) = current.read_block(self.next_lsn)? else { return Ok(false) };
        self.durable = self.durable.max(watermark);
        self.pending.extend(pending);
        Ok(true)
    }

    /// Reads headers of new segments, and drops those of removed ones.
    fn look(&mut self) -> Result<()> {
        let numbers = self.dir.contents()?.numbers;
        self.headers.retain(|number, _| numbers.binary_search(number).is_ok());
        for number in numbers {
            if self.headers.contains_key(&number) {
                continue;
            }
            let mut window = match self.dir.open(number, false, self.control.direct) {
                // The file was removed or renamed.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                file => Window::new(file?).by_page(),
            };
            let mut page = SegmentHeader::decode(window.at(0, PAGE)?, &self.control.log_id, number);
            if !matches!(page, HeaderPage::Valid(_)) {
                let copy = SegmentHeader::decode_copy(window.at(PAGE as u64, PAGE)?, &self.control.log_id, number);
                page = copy.map_or(page, HeaderPage::Valid);
            }
            self.bytes_read += window.bytes_read;
            if let HeaderPage::Valid(header) = page {
                self.headers.insert(number, header);
            }
        }
        Ok(())
    }

    /// The chain: the newest segment and the existing segments that it continues, oldest first.
    fn chain(&self) -> Vec<SegmentHeader> {
        let head = self.headers.values().max_by_key(|header| (header.epoch, header.number));
        let before = |header: &SegmentHeader| self.headers.get(&header.previous.segment).copied();
        let mut chain: Vec<SegmentHeader> = std::iter::successors(head.copied(), before).collect();
        chain.reverse();
        chain
    }

    /// First record of the oldest existing segment.
    fn oldest(&self) -> u64 {
        self.chain().first().map_or(1, SegmentHeader::first_lsn)
    }

    /// Returns the LSN after the last record of a complete block.
    fn end(&mut self) -> Result<u64> {
        let Some(head) = self.chain().last().copied() else { return Ok(1) };
        let Some(mut current) = self.open(&head, None)? else { return Ok(head.first_lsn()) };
        while current.read_block(u64::MAX)?.is_some() {}
        self.bytes_read += current.blocks.bytes_read();
        Ok(current.blocks.next_lsn)
    }

    fn open(&self, header: &SegmentHeader, limit: Option<End>) -> Result<Option<Current>> {
        let file = match self.dir.open(header.number, false, self.control.direct) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let is_direct = self.control.direct && is_direct(&file);
        let blocks = Blocks::new(Window::new(file.clone()), header);
        Ok(Some(Current { header: *header, file, blocks, limit, idle: None, is_direct }))
    }

    /// Begins to read a segment of the chain.
    fn enter(&mut self, header: &SegmentHeader, chain: &[SegmentHeader]) -> Result<Continuation> {
        let limit = chain.iter().find(|next| next.previous.segment == header.number).map(|next| next.previous);
        let opened = self.open(header, limit)?;
        // Only watermarks of the chain are valid: others may cover records that were cut off.
        self.durable = chain.iter().map(|header| header.watermark).fold(self.durable, u64::max);
        self.bytes_read += self.current.take().map_or(0, |current| current.blocks.bytes_read());
        self.current = opened;
        // The segment was removed: the next call finds another.
        Ok(if self.current.is_some() { Continuation::Again } else { Continuation::End })
    }

    /// Checks whether the log continues elsewhere, after the end of the current segment.
    fn go_on(&mut self) -> Result<Continuation> {
        self.look()?;
        let chain = self.chain();
        let Some(current) = &mut self.current else {
            // The segment that contains the record, else the oldest.
            let next_lsn = self.next_lsn;
            let holds = chain.iter().rev().find(|header| header.first_lsn() <= next_lsn).or(chain.first());
            return holds.copied().map_or(Ok(Continuation::End), |header| self.enter(&header, &chain));
        };
        let number = current.header.number;
        let here = chain.iter().position(|header| header.number == number);
        let next = match here {
            Some(at) => chain.get(at + 1),
            None => chain.iter().find(|header| header.number > number),
        };
        let Some(next) = next.copied() else { return Ok(Continuation::End) };
        let previous = next.previous;
        if here.is_some() && current.limit.is_none() && current.blocks.offset < previous.offset {
            // Its last blocks may have been written after the last read.
            current.limit = Some(previous);
            (current.idle, _) = (None, current.blocks.forget());
            return Ok(Continuation::Again);
        }
        if here.is_some() && current.blocks.offset < previous.offset {
            self.pass_damage(previous.offset, previous.last_there() + 1)?;
            return Ok(Continuation::Again);
        }
        // Blocks after the place where the log continues elsewhere are not valid.
        let last = if here.is_some() { previous.last_there() } else { next.first_lsn() - 1 };
        for pending in &mut self.pending {
            pending.last_lsn = pending.last_lsn.min(last);
            if let Some(damage) = &mut pending.damage {
                damage.lsns.end = damage.lsns.end.min(last + 1);
            }
        }
        let holds = |damage: &Damage| !damage.lsns.is_empty();
        self.pending.retain(|pending| pending.damage.as_ref().map_or(pending.lsn <= pending.last_lsn, holds));
        self.durable = self.durable.max(next.watermark);
        if !self.pending.is_empty() {
            // The next segment's header proves that the pending records are durable; `next` returns
            // them first.
            self.durable = self.durable.max(last);
            return Ok(Continuation::Again);
        }
        if self.next_lsn > next.first_lsn() {
            self.next_lsn = next.first_lsn();
            self.durable = next.watermark;
            self.enter(&next, &chain)?;
            return Ok(Continuation::Event(Followed::Cut(next.first_lsn() - 1)));
        }
        self.enter(&next, &chain)
    }

    fn damaged(&self) -> Error {
        let (number, offset) =
            self.current.as_ref().map_or((0, 0), |current| (current.header.number, current.blocks.offset));
        let text = format!(
            "record {} was durable and cannot be read: no intact block is here; see `nowait log verify`",
            self.next_lsn
        );
        self.dir.damage(number, offset, 0, "").with_advice(text)
    }
}

/// Result of the search for the place where the log continues.
enum Continuation {
    Event(Followed<'static>),
    Again,
    End,
}

impl Current {
    /// Reads the next block. Returns its watermark, and the block unless all its records are before
    /// `from`.
    fn read_block(&mut self, from: u64) -> Result<Option<(u64, Option<Pending>)>> {
        if self.limit.is_some_and(|limit| self.blocks.offset >= limit.offset) {
            return Ok(None);
        }
        for is_second_look in [false, true] {
            if is_second_look {
                // The bytes in memory may have been read before they were written.
                if self.is_idle()? {
                    return Ok(None);
                }
                self.blocks.forget();
            }
            while let Some(place) = self.blocks.lacks()? {
                block_on(poll_fn(|context| self.blocks.poll_read(place, context)))?;
            }
            let Some((header, block)) = self.blocks.next()? else { continue };
            let last_lsn = (header.first_lsn + u64::from(header.records)).saturating_sub(1);
            let last_lsn = self.limit.map_or(last_lsn, |limit| last_lsn.min(limit.last_there()));
            let holds = header.records > 0 && last_lsn >= from && last_lsn >= header.first_lsn;
            let pending = holds.then(|| Pending {
                block: block.get(..BLOCK_HEADER_BYTES + header.length as usize).unwrap_or(block).to_vec(),
                at: BLOCK_HEADER_BYTES,
                lsn: header.first_lsn,
                last_lsn,
                damage: None,
            });
            self.idle = None;
            return Ok(Some((header.watermark, pending)));
        }
        // The page without a block; a later read may find one there.
        self.idle = self.blocks.idle_page()?;
        Ok(None)
    }

    /// True if the page after the last block has not changed since it contained no block.
    fn is_idle(&self) -> Result<bool> {
        let Some(idle) = &self.idle else { return Ok(false) };
        Ok(Window::new(self.file.clone()).by_page().at(self.blocks.offset, PAGE)? == idle)
    }
}

impl std::fmt::Debug for Follower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follower").field("path", &self.dir.path).field("next_lsn", &self.next_lsn).finish()
    }
}

fn control(dir: &LogDir) -> Result<Control> {
    let read = read_control(dir)?;
    if let Some(control) = read.control {
        return Ok(control);
    }
    let path = dir.join(CONTROL);
    match dir.open_file(OpenOptions::new().read(true), CONTROL) {
        Err(error) if error.kind() == ErrorKind::NotFound => Err(no_log(&dir.path)),
        _ => {
            let error = os::error(os::RECOVER, ErrorKind::Damaged, &path).with_range(0, CONTROL_BYTES as u64);
            Err(error.with_advice("the control file cannot be read; see `nowait log verify`"))
        }
    }
}
