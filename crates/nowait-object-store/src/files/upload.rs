//! Multipart uploads: parts at their places in a staged file, in any order and number at a time.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use nowait::{Error, ErrorKind, ErrorOp, File, OpenOptions, Result};

use super::stage::Staged;
use super::{Files, Stat};
use crate::options::Options;

/// An upload in progress. If it is dropped, no object appears, and its staged file is removed in
/// the background.
#[derive(Debug)]
pub(crate) struct Upload {
    files: Arc<Files>,
    path: PathBuf,
    /// None after it was completed or aborted.
    staged: Option<(File, Staged)>,
    /// Offset of the next part.
    length: u64,
    /// Bytes of the parts that are written.
    written: Arc<AtomicU64>,
}

impl Upload {
    pub(crate) async fn begin(files: &Arc<Files>, path: &Path) -> Result<Upload> {
        let store = files.clone();
        let create = move |path: &Path| {
            let Options { nowait, durable, direct, .. } = &store.options;
            let open = |staged: &Path| {
                let opened = OpenOptions::new().write(true).create_new(true).direct(*direct).open_in(nowait, staged);
                opened.wait().map_err(|error| error.at(path))
            };
            Staged::create(nowait, path, *durable, open)
        };
        let staged = files.blocking(ErrorOp::Write, path, create).await?;
        let (files, path) = (files.clone(), path.to_path_buf());
        Ok(Upload { files, path, staged: Some(staged), length: 0, written: Arc::default() })
    }

    /// Accepts the next part, which is written when the future is polled.
    pub(crate) fn part(&mut self, parts: Vec<Bytes>) -> impl Future<Output = Result<()>> + Send + use<> {
        let begin = self.length;
        let writes = parts.into_iter().map(|part| {
            let offset = self.length;
            self.length += part.len() as u64;
            (offset, part)
        });
        let writes: Vec<_> = writes.collect();
        let length = self.length - begin;
        let file = self.staged.as_ref().map(|(file, _)| file.clone()).ok_or_else(|| self.is_over());
        let (written, path) = (self.written.clone(), self.path.clone());
        async move {
            // The caller knows the object's name only.
            file?.write_many(writes).await.map_err(|error| Error::from(error).at(path))?;
            written.fetch_add(length, Ordering::AcqRel);
            Ok(())
        }
    }

    /// Renames the upload to the object's name if all parts are written. Otherwise, and after an
    /// error, removes the uploaded data.
    pub(crate) async fn complete(&mut self, replace: bool) -> Result<Stat> {
        let written = self.written.load(Ordering::Acquire);
        if self.staged.is_some() && written != self.length {
            let error = Error::new(ErrorOp::Write, ErrorKind::InvalidInput).at(&self.path);
            self.abort().await?;
            return Err(error.with_advice(format!(
                "only {written} of {} bytes are written; await every part, and start again if one failed",
                self.length
            )));
        }
        let (file, staged) = self.staged.take().ok_or_else(|| self.is_over())?;
        let durable = self.files.options.durable;
        if durable {
            if let Err(error) = file.sync_all().await {
                self.staged = Some((file, staged));
                // Returns the first error.
                let _ = self.abort().await;
                return Err(error.at(&self.path));
            }
        }
        let publish = move |path: &Path| {
            // Close first: some file systems commit then, and report failures.
            match file.close().and_then(|_| staged.stat(path)) {
                Ok(stat) => staged.publish(path, replace, durable).map(|()| stat),
                Err(error) => {
                    let _ = staged.remove();
                    Err(error.at(path))
                }
            }
        };
        self.files.blocking(ErrorOp::Rename, &self.path, publish).await
    }

    /// Removes the uploaded data, and frees its space unless a part is still being written.
    pub(crate) async fn abort(&mut self) -> Result<()> {
        let (file, staged) = self.staged.take().ok_or_else(|| self.is_over())?;
        let remove = move |_: &Path| {
            // No data is kept, so the error is irrelevant.
            let _ = file.close();
            staged.remove()
        };
        self.files.blocking(ErrorOp::Remove, &self.path, remove).await
    }

    fn is_over(&self) -> Error {
        let error = Error::new(ErrorOp::Write, ErrorKind::Closed).at(&self.path);
        error.with_advice("the upload was completed or aborted; begin another")
    }
}
