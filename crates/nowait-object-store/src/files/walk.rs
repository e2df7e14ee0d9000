//! Lists: walks of directories, in batches of one blocking call each.

use std::collections::VecDeque;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use futures_util::stream::{self, BoxStream, StreamExt};
use nowait::{Error, ErrorKind, ErrorOp, Result};
use walkdir::{IntoIter, WalkDir};

use super::stage::is_staged;
use super::{Files, Stat, failed, system};

/// Entries of one call.
const BATCH: usize = 1024;

/// An object or directory that a walk has found.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) path: PathBuf,
    /// None for a directory.
    pub(crate) stat: Option<Stat>,
}

/// Walks the objects below `dir`; if `after` is given, only those whose paths follow it. Symbolic
/// links are followed. A directory that does not exist has no objects.
pub(crate) fn list(files: Arc<Files>, dir: PathBuf, after: Option<String>) -> BoxStream<'static, Result<Entry>> {
    let walk = Walk {
        root: files.root.clone(),
        after,
        entries: WalkDir::new(&dir).min_depth(1).follow_links(true).into_iter(),
    };
    let state = (Some(walk), VecDeque::new());
    stream::unfold(state, move |(mut walk, mut batch)| {
        let (files, dir) = (files.clone(), dir.clone());
        async move {
            if batch.is_empty() {
                let mut next = walk.take()?;
                let call = move |_: &Path| {
                    let batch = next.batch();
                    Ok((next, batch))
                };
                match files.blocking(ErrorOp::List, &dir, call).await {
                    Ok((next, more)) => (walk, batch) = (Some(next), more),
                    Err(error) => return Some((Err(error), (None, batch))),
                }
            }
            batch.pop_front().map(|entry| (entry, (walk, batch)))
        }
    })
    .boxed()
}

impl Files {
    /// Lists the objects and directories in one directory.
    pub(crate) async fn entries(&self, dir: &Path) -> Result<Vec<Entry>> {
        let call = |dir: &Path| {
            let entries = WalkDir::new(dir).min_depth(1).max_depth(1).follow_links(true).into_iter();
            entries.filter_map(|entry| convert(entry, dir).transpose()).collect()
        };
        self.blocking(ErrorOp::List, dir, call).await
    }
}

impl Files {
    /// Removes staged files below `dir` that were last changed before `unchanged_since`. Returns
    /// the number of removed files.
    pub(crate) async fn remove_leftovers(&self, dir: &Path, unchanged_since: SystemTime) -> Result<u64> {
        let remove = move |dir: &Path| {
            // Compare ctime, not mtime: the staged file of a copy may be a hard link, which has the
            // mtime of its object.
            let is_old = |metadata: &Metadata| system::changed(metadata) < unchanged_since;
            let mut removed = 0;
            for entry in WalkDir::new(dir).min_depth(1) {
                let Some(entry) = found(entry, dir)? else { continue };
                if !entry.file_type().is_file() || !is_staged(entry.file_name().as_encoded_bytes()) {
                    continue;
                }
                let Some(metadata) = found(entry.metadata(), dir)? else { continue };
                if !is_old(&metadata) {
                    continue;
                }
                match system::remove_leftover(entry.path(), is_old) {
                    Ok(is_removed) => removed += u64::from(is_removed),
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                    Err(error) => return Err(failed(ErrorOp::Remove, entry.path())(error)),
                }
            }
            Ok(removed)
        };
        self.blocking(ErrorOp::Remove, dir, remove).await
    }
}

struct Walk {
    root: PathBuf,
    after: Option<String>,
    entries: IntoIter,
}

impl Walk {
    /// Returns the next objects; none at the end.
    fn batch(&mut self) -> VecDeque<Result<Entry>> {
        let mut batch = VecDeque::new();
        while batch.len() < BATCH {
            let Some(entry) = self.entries.next() else { break };
            // Before its metadata are asked for.
            if entry.as_ref().is_ok_and(|entry| !self.is_after(entry.path())) {
                continue;
            }
            match convert(entry, &self.root) {
                Ok(None | Some(Entry { stat: None, .. })) => {}
                Ok(Some(entry)) => batch.push_back(Ok(entry)),
                Err(error) => batch.push_back(Err(error)),
            }
        }
        batch
    }

    fn is_after(&self, path: &Path) -> bool {
        let (Some(after), Ok(path)) = (&self.after, path.strip_prefix(&self.root)) else { return true };
        *system::key(path) > *after.as_bytes()
    }
}

/// `None` for entries that are not objects: broken links, special files, staged files, removed
/// files.
fn convert(entry: walkdir::Result<walkdir::DirEntry>, dir: &Path) -> Result<Option<Entry>> {
    let Some(entry) = found(entry, dir)? else { return Ok(None) };
    let kind = entry.file_type();
    if kind.is_dir() {
        return Ok(Some(Entry { path: entry.into_path(), stat: None }));
    }
    if !kind.is_file() || is_staged(entry.file_name().as_encoded_bytes()) {
        return Ok(None);
    }
    let metadata = found(entry.metadata(), dir)?;
    Ok(metadata.map(|metadata| Entry { path: entry.into_path(), stat: Some(Stat::of(&metadata)) }))
}

/// `None` if the entry was removed.
fn found<T>(answer: walkdir::Result<T>, dir: &Path) -> Result<Option<T>> {
    let error = match answer {
        Ok(answer) => return Ok(Some(answer)),
        Err(error) => error,
    };
    let path = error.path().unwrap_or(dir).to_path_buf();
    if error.loop_ancestor().is_some() {
        let circle = Error::new(ErrorOp::List, ErrorKind::FilesystemLoop).at(&path);
        return Err(circle.with_detail(error.to_string()));
    }
    let error = error.into_io_error().unwrap_or_else(|| std::io::Error::other("the walk failed"));
    match error.kind() {
        std::io::ErrorKind::NotFound => Ok(None),
        _ => Err(failed(ErrorOp::List, &path)(error)),
    }
}
