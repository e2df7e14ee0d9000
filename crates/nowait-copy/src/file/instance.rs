//! A copy that uses only operations of an instance, for a simulator: by paths, without metadata.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nowait::{ErrorKind, File, OpenOptions};

use super::FileOutcome;
use super::ends::{Endpoint, Ends};
use super::fill::{self, Filled, Size};
use crate::error::{Failure, Operation, Result};
use crate::options::SyncPolicy;
use crate::shared::Shared;

/// Copies a file by its path. With `SyncPolicy::File` and `SyncPolicy::All`, the copy is durable
/// before it gets its name, and the name is durable when this returns.
pub(crate) fn copy_by_instance(shared: &Shared, source_path: &Path, target_path: &Path) -> Result<FileOutcome> {
    let instance = &shared.instance;
    let failed = |operation, path: &Path, error: &nowait::Error| Failure::from_nowait(operation, path, error);
    let source = OpenOptions::new().read(true).open_in(instance, source_path).wait();
    let source = source.map_err(|error| failed(Operation::Open, source_path, &error))?;
    let bytes = source.size().wait().map_err(|error| failed(Operation::Stat, source_path, &error))?;
    let directory = match target_path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_path_buf(),
        _ => PathBuf::from("."),
    };
    let temporary = directory.join(OsStr::from_bytes(shared.temporary_name(false).as_bytes()));
    let staged = OpenOptions::new().read(true).write(true).create_new(true).open_in(instance, &temporary).wait();
    let staged = staged.map_err(|error| failed(Operation::Stage, target_path, &error))?;
    let named = fill_and_name(shared, (&source, source_path), (staged, target_path), &temporary, bytes);
    let Filled { way, why, bytes, resumed_bytes, is_verified } = match named {
        Ok(filled) => filled,
        Err(failure) => {
            // The file may already have its final name. Only the first failure is reported.
            let _ = instance.fs().remove_file(&temporary).wait();
            return Err(failure);
        }
    };
    shared.meter.file_done();
    if shared.options.sync != SyncPolicy::None {
        let synced = instance.fs().sync_dir(&directory).wait();
        synced.map_err(|error| failed(Operation::Sync, target_path, &error))?;
    }
    Ok(FileOutcome { way, why, bytes, resumed_bytes, is_verified, warnings: Vec::new() })
}

fn fill_and_name(
    shared: &Shared,
    (source, source_path): (&File, &Path),
    (staged, target_path): (File, &Path),
    temporary: &Path,
    bytes: u64,
) -> Result<Filled> {
    let instance = &shared.instance;
    let ends = Ends {
        source: Endpoint::of_file(source_path, source, instance),
        target: Endpoint::of_file(target_path, &staged, instance),
    };
    let filled = fill::fill(shared, &ends, Size { bytes, stored_bytes: None }, None, Vec::new())?;
    if shared.options.sync != SyncPolicy::None {
        ends.target.sync()?;
    }
    drop(ends);
    let closed = staged.close();
    closed.map_err(|error| Failure::from_nowait(Operation::Write, target_path, &error))?;
    let renamed = instance.fs().rename(temporary, target_path).wait();
    renamed.map_err(|error| {
        let failure = Failure::from_nowait(Operation::Rename, target_path, &error);
        match error.kind() {
            ErrorKind::IsADirectory => failure.with_advice("name a file"),
            _ => failure,
        }
    })?;
    Ok(filled)
}
