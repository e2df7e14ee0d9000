//! Requests of FUSE's kernel side, and their answers, as bytes (linux/fuse.h).

use std::fs::File;
use std::io::Write;
use std::path::Path;

pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const BATCH_FORGET: u32 = 42;
}

/// Flags that a server may ask for.
pub(crate) const ASYNC_READ: u32 = 1 << 0;
pub(crate) const BIG_WRITES: u32 = 1 << 5;
pub(crate) const ASYNC_DIO: u32 = 1 << 15;

/// Bytes of a request before what is the operation's own.
pub(crate) const IN_HEADER: usize = 40;
pub(crate) const WRITE_BYTES_MAX: u32 = 128 << 10;

/// False, and says so, on a kernel without FUSE.
pub(crate) fn is_there() -> bool {
    let is_there = Path::new("/dev/fuse").exists();
    if !is_there {
        eprintln!("skipped: there is no /dev/fuse");
    }
    is_there
}

pub(crate) fn word(request: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(request[at..at + 4].try_into().unwrap())
}

pub(crate) fn long(request: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(request[at..at + 8].try_into().unwrap())
}

pub(crate) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

pub(crate) fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|long| long.to_ne_bytes()).collect()
}

/// Answers a request: with bytes, or an errno.
pub(crate) fn reply(mut device: &File, request: &[u8], answer: Result<Vec<u8>, i32>) {
    let (errno, body) = answer.map_or_else(|errno| (errno, Vec::new()), |body| (0, body));
    let mut out = (16 + body.len() as u32).to_ne_bytes().to_vec();
    out.extend((-errno).to_ne_bytes());
    out.extend(long(request, 8).to_ne_bytes());
    out.extend(body);
    // One that was given up meanwhile is not known any more.
    let _ = device.write_all(&out);
}

/// Answer to INIT: of what the kernel offers, `flags`.
pub(crate) fn init(request: &[u8], flags: u32, background_max: u32) -> Vec<u8> {
    let (read_ahead_max, offered) = (word(request, IN_HEADER + 8), word(request, IN_HEADER + 12));
    let background = background_max | background_max << 16;
    let mut out = words(&[7, 31, read_ahead_max, offered & flags, background, WRITE_BYTES_MAX, 1]);
    out.resize(64, 0);
    out
}

/// Answer to STATFS: blocks, free ones, those free for users, files, and free ones.
pub(crate) fn statistics(counts: &[u64; 5]) -> Vec<u8> {
    let mut out = longs(counts);
    out.extend(words(&[4096, 255, 4096]));
    out.resize(80, 0);
    out
}
