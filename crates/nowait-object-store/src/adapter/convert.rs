//! Locations to paths and back, and the values and errors of a release of `object_store`.

use std::path::PathBuf;

use nowait::{ErrorKind, ErrorOp};

use super::super::e_tag;
use super::super::object_store::path::{self, Path};
use super::super::object_store::{Error, ObjectMeta, Result};
use crate::files::{Files, Stat, is_staged, key};

/// The store's name in errors.
const STORE: &str = "NowaitFileSystem";

/// Returns the path of an object. A location has no empty segment, no `.` and `..`, and no control
/// characters: it is a path as it is, without an encoding.
pub(super) fn file_path(files: &Files, location: &Path) -> Result<PathBuf> {
    match location.filename() {
        Some(name) if !is_staged(name.as_bytes()) => path_of(files, location),
        _ => Err(generic(
            format!(
                "`{location}` is not an object name: it is empty, or ends in `#` and digits, which marks an upload"
            )
            .into(),
        )),
    }
}

/// Returns the path of a location or a prefix; the root if it is empty.
pub(super) fn path_of(files: &Files, prefix: &Path) -> Result<PathBuf> {
    let path = files.path_of(prefix.as_ref());
    path.map_err(|why| generic(format!("`{prefix}` is not a location here: {why}").into()))
}

/// Returns the location of a path below the root.
pub(super) fn location(files: &Files, path: &std::path::Path) -> Result<Path> {
    let path = path.strip_prefix(&files.root).unwrap_or(path);
    let key = key(path);
    let text = std::str::from_utf8(&key).map_err(|source| {
        let path = path.display().to_string();
        path::Error::NonUnicode { path, source }
    })?;
    Ok(Path::parse(text)?)
}

pub(super) fn meta(location: Path, stat: &Stat) -> ObjectMeta {
    ObjectMeta {
        location,
        last_modified: stat.modified.into(),
        size: stat.size,
        e_tag: Some(e_tag(stat)),
        version: None,
    }
}

/// The kind that `LocalFileSystem` gives such an error.
pub(super) fn failed(error: nowait::Error) -> Error {
    let path = error.path().map(|path| path.display().to_string()).unwrap_or_default();
    match (error.kind(), error.operation()) {
        (_, ErrorOp::CreateDir) => generic(error.into()),
        // There are no directories among objects.
        (ErrorKind::NotFound, _) | (ErrorKind::IsADirectory, ErrorOp::Open) => {
            Error::NotFound { path, source: error.into() }
        }
        (ErrorKind::AlreadyExists, _) => Error::AlreadyExists { path, source: error.into() },
        _ => generic(error.into()),
    }
}

pub(super) fn generic(source: Box<dyn std::error::Error + Send + Sync>) -> Error {
    Error::Generic { store: STORE, source }
}

pub(super) fn not_implemented(operation: &str, store: &super::NowaitFileSystem) -> Error {
    Error::NotImplemented { operation: operation.into(), implementer: store.to_string() }
}
