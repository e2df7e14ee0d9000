//! Changes of a file's size and space, and advice to the page cache.

use std::ffi::c_int;

use nowait::{Advice, Allocate};

use crate::border::status;
use crate::failure::{Failure, Result};
use crate::file::{FILES, FileHandle};

/// Reserves space; the file grows to the end of the range if it is shorter.
pub const NOWAIT_ALLOCATE_RESERVE: u32 = 0;
/// Reserves space, also beyond the end of the file, and leaves the size unchanged.
pub const NOWAIT_ALLOCATE_KEEP_SIZE: u32 = 1;
/// Frees the space; the range reads as zeros, and the size is unchanged.
pub const NOWAIT_ALLOCATE_PUNCH_HOLE: u32 = 2;
/// Zeroes the range, and keeps its space if the file system can. The file grows to the end of the
/// range if it is shorter.
pub const NOWAIT_ALLOCATE_ZERO: u32 = 3;

/// No special treatment.
pub const NOWAIT_ADVICE_NORMAL: u32 = 0;
/// Reads will be random: disables read-ahead for the whole file, whatever the range.
pub const NOWAIT_ADVICE_RANDOM: u32 = 1;
/// Reads will be sequential: increases read-ahead for the whole file, whatever the range.
pub const NOWAIT_ADVICE_SEQUENTIAL: u32 = 2;
/// The range will be needed soon: the kernel starts to read it.
pub const NOWAIT_ADVICE_WILL_NEED: u32 = 3;
/// The range will not be needed soon: its clean pages may be dropped.
pub const NOWAIT_ADVICE_DONT_NEED: u32 = 4;
/// The range will be needed once.
pub const NOWAIT_ADVICE_NO_REUSE: u32 = 5;

/// Cuts the file to `length` bytes, or extends it with a hole, which reads as zeros (ftruncate(2)).
/// The change is durable after a later nowait_sync.
///
/// Returns 0, or a negative errno: -EBADF if the handle is not open; -EACCES if the file was not
/// opened for writing; -EOVERFLOW beyond INT64_MAX; -EFBIG, -EIO, and others of ftruncate(2).
/// Threads: any. The call waits for earlier submitted writes beyond `length`, and later ones wait
/// for the call.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_file_set_length(file: FileHandle, length: u64) -> c_int {
    status(|| Ok(FILES.get(file)?.set_len(length).wait()?))
}

/// Reserves, punches or zeroes `length` bytes from `offset` on, without writing them
/// (fallocate(2)). `how` is one of NOWAIT_ALLOCATE_... After a reservation, writes to the range do
/// not fail with -ENOSPC. The change is durable after a later nowait_sync.
///
/// Returns 0, or a negative errno: -EOPNOTSUPP if the file system does not support it, and nothing
/// is changed; -EINVAL for a length of 0 or an unknown `how`; -ENOSPC; -EBADF; -EACCES if the file
/// was not opened for writing; -EOVERFLOW beyond INT64_MAX; and others of fallocate(2). Threads: as
/// nowait_file_set_length.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_file_allocate(file: FileHandle, how: u32, offset: u64, length: u64) -> c_int {
    status(|| {
        let how = allocation(how)?;
        Ok(FILES.get(file)?.allocate(how, offset, length).wait()?)
    })
}

pub(crate) fn allocation(how: u32) -> Result<Allocate> {
    match how {
        NOWAIT_ALLOCATE_RESERVE => Ok(Allocate::Reserve),
        NOWAIT_ALLOCATE_KEEP_SIZE => Ok(Allocate::ReserveKeepSize),
        NOWAIT_ALLOCATE_PUNCH_HOLE => Ok(Allocate::PunchHole),
        NOWAIT_ALLOCATE_ZERO => Ok(Allocate::Zero),
        _ => Err(Failure::new(libc::EINVAL, format!("how is {how}; give a NOWAIT_ALLOCATE_..."))),
    }
}

/// Advises the page cache about `length` bytes from `offset` on; a length of 0 means to the end of
/// the file (posix_fadvise(2)). `advice` is one of NOWAIT_ADVICE_... Advice affects only speed.
///
/// Returns 0, or a negative errno: -EINVAL for unknown `advice`; -EBADF; -EOVERFLOW beyond
/// INT64_MAX. Threads: any. NOWAIT_ADVICE_WILL_NEED does not wait for the data. It may wait for
/// metadata that map the file's blocks.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_file_advise(file: FileHandle, offset: u64, length: u64, advice: u32) -> c_int {
    status(|| {
        let advice = advised(advice)?;
        Ok(FILES.get(file)?.advise(offset, length, advice).wait()?)
    })
}

pub(crate) fn advised(advice: u32) -> Result<Advice> {
    match advice {
        NOWAIT_ADVICE_NORMAL => Ok(Advice::Normal),
        NOWAIT_ADVICE_RANDOM => Ok(Advice::Random),
        NOWAIT_ADVICE_SEQUENTIAL => Ok(Advice::Sequential),
        NOWAIT_ADVICE_WILL_NEED => Ok(Advice::WillNeed),
        NOWAIT_ADVICE_DONT_NEED => Ok(Advice::DontNeed),
        NOWAIT_ADVICE_NO_REUSE => Ok(Advice::NoReuse),
        _ => Err(Failure::new(libc::EINVAL, format!("advice is {advice}; give a NOWAIT_ADVICE_..."))),
    }
}
