//! Files that an interrupted copy leaves for the next run: the partial file, under a name that the
//! next run finds, and a journal of finished pieces with their checksums.
//!
//! The journal is used only after three checks. The source is the same (inode, size, times). Each
//! record has a checksum. Each piece of the file, read back, matches the checksum in its record. So
//! no sync is needed: pieces lost in a power failure are copied again.

use std::ffi::{CStr, CString};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, FlockOperation, Stat};
use rustix::io::{Errno, retry_on_intr};

use crate::os::{data, name};

const MAGIC: &[u8; 16] = b"nowait-copy-1\n\0\0";
/// A piece of the target, and the checksum (CRC-32C) of the bytes read for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    pub(crate) offset: u64,
    pub(crate) length: u32,
    pub(crate) crc: u32,
}

impl Check {
    pub(crate) fn range(&self) -> Range<u64> {
        self.offset..self.offset + u64::from(self.length)
    }
}

/// Bytes of a record: offset, length, checksum of the piece, checksum of the record.
const RECORD_BYTES: usize = 20;
/// Number of records per write: 8 MiB of requests.
const RECORDS: usize = 8;
/// Maximum bytes of the target's name in the names of both files, so that these have at most 255
/// bytes.
const NAME_BYTES_MAX: usize = 200;

/// A journal that is being written, locked against other processes.
pub(crate) struct Journal {
    file: OwnedFd,
    end: u64,
    pending: Vec<u8>,
}

/// A resumable copy that an earlier run left.
pub(crate) struct Resumed {
    pub(crate) journal: Journal,
    /// The staged file.
    pub(crate) file: OwnedFd,
    pub(crate) name: CString,
    pub(crate) journal_name: CString,
    /// Finished pieces according to the journal, sorted and disjoint.
    pub(crate) claimed: Vec<Check>,
}

/// Opens the files that an earlier run left, or creates new ones. Returns `None` if another process
/// has them open, or a directory has one of the names.
pub(crate) fn open(directory: BorrowedFd<'_>, target: &CStr, source: &Stat) -> Result<Option<Resumed>, Errno> {
    match open_or_begin(directory, target, source) {
        Err(Errno::ISDIR) => Ok(None),
        opened => opened,
    }
}

fn open_or_begin(directory: BorrowedFd<'_>, target: &CStr, source: &Stat) -> Result<Option<Resumed>, Errno> {
    let (part_name, journal_name) = (beside(target, "part"), beside(target, "journal"));
    let Some(file) = lock(directory, &journal_name)? else { return Ok(None) };
    let header = header(target, source);
    let text = read_all(file.as_fd())?;
    let part = match text.strip_prefix(&*header) {
        Some(_) => open_part(directory, &part_name)?,
        None => None,
    };
    let mut journal = Journal { file, end: header.len() as u64, pending: Vec::new() };
    if let (Some(part), Some(records)) = (part, text.strip_prefix(&*header)) {
        let (claimed, valid_bytes) = parse(records);
        journal.end += valid_bytes as u64;
        return Ok(Some(Resumed { journal, file: part, name: part_name, journal_name, claimed }));
    }
    retry_on_intr(|| rustix::fs::ftruncate(&journal.file, 0))?;
    data::write(journal.file.as_fd(), &header, 0, false).map_err(|(errno, _)| errno)?;
    name::remove(directory, &part_name)?;
    let part = name::create_new(directory, &part_name)?;
    Ok(Some(Resumed { journal, file: part, name: part_name, journal_name, claimed: Vec::new() }))
}

/// Removes the files of an interrupted run after the target is complete, unless another process has
/// them open.
pub(crate) fn discard(directory: BorrowedFd<'_>, target: &CStr) {
    let (part_name, journal_name) = (beside(target, "part"), beside(target, "journal"));
    let Ok(Some(file)) = open_own(directory, &journal_name) else { return };
    if retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)).is_ok() {
        // A failure is harmless: the next run with --resume checks the files.
        let _ = name::remove(directory, &part_name);
        let _ = name::remove(directory, &journal_name);
    }
}

impl Journal {
    /// Records a finished piece of the file.
    pub(crate) fn note(&mut self, check: Check) -> Result<(), Errno> {
        self.pending.extend_from_slice(&record(check));
        if self.pending.len() >= RECORDS * RECORD_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Errno> {
        data::write(self.file.as_fd(), &self.pending, self.end, false).map_err(|(errno, _)| errno)?;
        self.end += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // Unrecorded pieces are copied again.
        let _ = self.flush();
    }
}

/// Opens and locks the journal, or creates it. Returns `None` if another process has it open, or
/// may have it open.
fn lock(directory: BorrowedFd<'_>, name: &CStr) -> Result<Option<OwnedFd>, Errno> {
    const TRIES: u32 = 8;
    for _ in 0..TRIES {
        let file = match name::open_or_create(directory, name) {
            // The name is a link or a socket.
            Err(Errno::LOOP | Errno::NXIO) => {
                name::remove(directory, name)?;
                continue;
            }
            // The file belongs to another user, or the directory refuses access; creating the file
            // reports the latter.
            Err(Errno::ACCESS) => return Ok(None),
            opened => opened?,
        };
        match retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        let stat = retry_on_intr(|| rustix::fs::fstat(&file))?;
        // Another process may have finished and removed it before it was locked here.
        if stat.st_nlink == 0 {
            continue;
        }
        if is_own(&stat) {
            return Ok(Some(file));
        }
        // Another program created the file, and may write to it.
        name::remove(directory, name)?;
    }
    Ok(None)
}

/// Opens the staged file of an earlier run, and sets the staged mode (owner only) again. A file
/// that lacked only its final name has its final mode, which may admit others or exclude even its
/// owner.
fn open_part(directory: BorrowedFd<'_>, name: &CStr) -> Result<Option<OwnedFd>, Errno> {
    let file = match open_own(directory, name) {
        Err(Errno::ACCESS) => {
            let place = name::open_place(directory, name)?;
            if !is_own(&retry_on_intr(|| rustix::fs::fstat(&place))?) {
                return Ok(None);
            }
            name::set_mode(place.as_fd(), name::STAGED)?;
            open_own(directory, name)?
        }
        opened => opened?,
    };
    if let Some(file) = &file {
        // Clearing the group bits also clears the mask of an ACL.
        retry_on_intr(|| rustix::fs::fchmod(file, name::STAGED))?;
    }
    Ok(file)
}

/// Opens a file of an earlier run, if it exists and only this user can have created it.
fn open_own(directory: BorrowedFd<'_>, name: &CStr) -> Result<Option<OwnedFd>, Errno> {
    let file = match name::open_existing(directory, name) {
        Ok(file) => file,
        Err(Errno::NOENT | Errno::LOOP | Errno::ISDIR | Errno::NXIO) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    Ok(is_own(&retry_on_intr(|| rustix::fs::fstat(&file))?).then_some(file))
}

fn is_own(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        && stat.st_uid == rustix::process::geteuid().as_raw()
        && stat.st_nlink <= 1
}

/// Returns a name beside the target that each run can derive.
fn beside(target: &CStr, what: &str) -> CString {
    let name = target.to_bytes();
    let mut beside = b".".to_vec();
    beside.extend_from_slice(&name[..name.len().min(NAME_BYTES_MAX)]);
    beside.extend_from_slice(format!(".{:08x}.nowait-{what}", crc32c::crc32c(name)).as_bytes());
    // Neither part has a zero byte.
    CString::new(beside).unwrap_or_default()
}

/// Returns a journal's header, which must match before the journal is used.
fn header(target: &CStr, source: &Stat) -> Vec<u8> {
    let mut header = MAGIC.to_vec();
    let fields = [
        source.st_ino,
        source.st_size as u64,
        source.st_mtime as u64,
        source.st_mtime_nsec,
        source.st_ctime as u64,
        source.st_ctime_nsec,
    ];
    fields.iter().for_each(|field| header.extend_from_slice(&field.to_le_bytes()));
    header.extend_from_slice(&(target.to_bytes().len() as u64).to_le_bytes());
    header.extend_from_slice(target.to_bytes());
    header
}

fn record(check: Check) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[..8].copy_from_slice(&check.offset.to_le_bytes());
    record[8..12].copy_from_slice(&check.length.to_le_bytes());
    record[12..16].copy_from_slice(&check.crc.to_le_bytes());
    let own = crc32c::crc32c(&record[..16]);
    record[16..].copy_from_slice(&own.to_le_bytes());
    record
}

/// Returns the pieces of the records before the first damaged one, sorted and disjoint, and the
/// bytes of these records.
fn parse(records: &[u8]) -> (Vec<Check>, usize) {
    let mut checks = Vec::new();
    let mut valid_bytes = 0;
    for record in records.chunks_exact(RECORD_BYTES) {
        let word = |at: usize| u32::from_le_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
        if word(16) != crc32c::crc32c(&record[..16]) {
            break;
        }
        let offset = u64::from(word(0)) | u64::from(word(4)) << 32;
        if offset.checked_add(u64::from(word(8))).is_none() {
            break;
        }
        checks.push(Check { offset, length: word(8), crc: word(12) });
        valid_bytes += RECORD_BYTES;
    }
    // The last record for an offset is valid: an earlier run may have recorded a piece that did not
    // match.
    checks.reverse();
    checks.sort_by_key(|check| check.offset);
    let mut apart: Vec<Check> = Vec::with_capacity(checks.len());
    for check in checks {
        if apart.last().is_none_or(|last| last.range().end <= check.offset) && check.length > 0 {
            apart.push(check);
        }
    }
    (apart, valid_bytes)
}

fn read_all(fd: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    loop {
        match data::read(fd, &mut part, bytes.len() as u64, false)? {
            0 => return Ok(bytes),
            n => bytes.extend_from_slice(&part[..n]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(offset: u64, length: u32) -> Check {
        Check { offset, length, crc: offset as u32 ^ length }
    }

    #[test]
    fn records_are_read_up_to_the_first_that_is_not_whole() {
        let checks = [check(8192, 4096), check(0, 4096), check(u64::MAX - 1, 1)];
        let bytes: Vec<u8> = checks.iter().flat_map(|check| record(*check)).collect();
        assert_eq!(parse(&bytes), (vec![checks[1], checks[0], checks[2]], 60));
        assert_eq!(parse(&bytes[..59]), (vec![checks[1], checks[0]], 40));
        for place in 0..RECORD_BYTES {
            let mut spoilt = bytes.clone();
            spoilt[RECORD_BYTES + place] ^= 1;
            assert_eq!(parse(&spoilt), (vec![checks[0]], 20), "byte {place} of the second");
        }
        assert_eq!(parse(&[]), (vec![], 0));
    }

    #[test]
    fn the_last_record_of_a_place_counts() {
        let old = Check { crc: 1, ..check(4096, 4096) };
        let new = Check { crc: 2, ..old };
        let wide = check(0, 4096 + 1);
        let bytes: Vec<u8> = [old, new].iter().flat_map(|check| record(*check)).collect();
        assert_eq!(parse(&bytes).0, [new]);
        let bytes: Vec<u8> = [old, wide].iter().flat_map(|check| record(*check)).collect();
        assert_eq!(parse(&bytes).0, [wide], "ranges that overlap are not both believed");
    }

    #[test]
    fn names_fit_and_differ() {
        let long = |last: u8| CString::new([[b'n'; 254].as_slice(), &[last]].concat()).unwrap();
        let (one, other) = (beside(&long(b'1'), "journal"), beside(&long(b'2'), "journal"));
        assert!(one.as_bytes().len() <= 255);
        assert_ne!(one, other);
        assert_eq!(beside(c"name", "part"), beside(c"name", "part"));
    }
}
