//! Copies in the kernel or on the server, by `copy_file_range(2)`.

use rustix::io::Errno;

use super::extents::Extents;
use super::pass::{Done, Pass};
use crate::error::{Operation, Result, words};
use crate::os::data;
use crate::shared::Ability;

/// Bytes per call, which bound the delay of a cancellation.
const CALL_BYTES: u64 = 16 << 20;

pub(crate) fn copy(pass: &mut Pass<'_>, extents: &Extents) -> Result<Done> {
    let ends = pass.ends;
    let (Some(source), Some(target)) = (ends.source.fd(), ends.target.fd()) else {
        return Ok(Done::Refused("an instance's operations do not include it".into()));
    };
    for piece in extents.pieces(pass.shared.meter.block(CALL_BYTES)) {
        let mut offset = piece.start;
        pass.admit(piece.end - piece.start)?;
        while offset < piece.end {
            let n = match data::copy_range(source, target, offset, piece.end - offset) {
                // Some file systems copy nothing, or stop early, without an error: only a read
                // shows the end.
                Ok(0) => return Ok(Done::Refused("copy_file_range stopped early".into())),
                Ok(n) => n as u64,
                Err(errno) if data::is_refused(errno) => {
                    if data::is_refused_for_good(errno) {
                        pass.shared.learned.refuse(Ability::KernelCopy, (ends.source.device, ends.target.device));
                    }
                    return Ok(Done::Refused(format!("copy_file_range is refused ({})", words(errno)).into()));
                }
                // The error may concern either file; reading and writing shows which.
                Err(Errno::IO) => return Ok(Done::Refused("copy_file_range returned an I/O error".into())),
                Err(errno) => return Err(ends.target.failure(Operation::Write, errno).at(offset)),
            };
            pass.count(n);
            pass.target_end = pass.target_end.max(offset + n);
            pass.dirtied(&(offset..offset + n))?;
            offset += n;
        }
    }
    Ok(Done::All)
}
