//! Room on a file system: what is free, and how its lack is told.

use std::path::Path;

use rustix::fs::fstatvfs;

use crate::error::{Error, ErrorKind, Result};
use crate::machine::testfile::create_nameless;
use crate::report::figures::whole_size_of;

pub fn free_bytes(dir: &Path) -> Result<u64> {
    // One that cannot be written to says so.
    let probe = create_nameless(dir)?;
    let about = fstatvfs(probe).map_err(|error| Error::io("statvfs", dir, &error.into()))?;
    Ok(about.f_bavail.saturating_mul(about.f_frsize))
}

/// Refuses what does not fit. `option` makes it need less.
pub fn require_room(bytes: u64, option: &str, dir: &Path) -> Result<()> {
    let free = free_bytes(dir)?;
    if bytes <= free { Ok(()) } else { Err(no_room(bytes, option, dir, &format!("{} are free", whole_size_of(free)))) }
}

pub fn no_room(bytes: u64, option: &str, dir: &Path, why: &str) -> Error {
    let (size, dir) = (whole_size_of(bytes), dir.display());
    let text = format!("no room to write {size} in {dir}: {why}; use a smaller {option} or another --dir");
    Error::new(ErrorKind::NoRoom, text)
}
