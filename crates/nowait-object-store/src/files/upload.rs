//! Multipart uploads: parts at their places in a staged file, in any order and number at a time.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use nowait::{Error, ErrorKind, ErrorOp, File, OpenOptions, Result};

use super::stage::Staged;
use super::{Files, Stat};
use crate::options::Options;

/// An upload under way. Dropped, or if its process forgets it, nothing of it is seen; its staged
/// file is removed in the background.
#[derive(Debug)]
pub(crate) struct Upload {
    files: Arc<Files>,
    path: PathBuf,
    /// None after it was completed or aborted.
    staged: Option<(File, Staged)>,
    /// Where the next part begins.
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
                OpenOptions::new().write(true).create_new(true).direct(*direct).open_in(nowait, staged).wait()
            };
            Staged::create(nowait, path, *durable, open)
        };
        let staged = files.blocking(ErrorOp::Write, path, create).await?;
        let (files, path) = (files.clone(), path.to_path_buf());
        Ok(Upload { files, path, staged: Some(staged), length: 0, written: Arc::default() })
    }

    /// Takes the next part. It is written when the future is polled.
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
        let written = self.written.clone();
        async move {
            file?.write_many(writes).await?;
            written.fetch_add(length, Ordering::AcqRel);
            Ok(())
        }
    }

    /// Gives the object its name, if all of its parts are written. If some are not, or after an error,
    /// what was uploaded is removed.
    pub(crate) async fn complete(&mut self, replace: bool) -> Result<Stat> {
        let written = self.written.load(Ordering::Acquire);
        if self.staged.is_some() && written != self.length {
            let error = Error::new(ErrorOp::Write, ErrorKind::InvalidInput).at(&Arc::from(&*self.path));
            self.abort().await?;
            return Err(error.with_advice(format!(
                "only {written} of {} bytes are written; await every part, and start again if one failed",
                self.length
            )));
        }
        let (file, staged) = self.staged.take().ok_or_else(|| self.is_over())?;
        let durable = self.files.options.durable;
        let finished = async {
            if durable {
                file.sync_all().await?;
            }
            Ok(Stat::of(&file.metadata().await?))
        };
        let stat = match finished.await {
            Ok(stat) => stat,
            Err(error) => {
                self.staged = Some((file, staged));
                // What failed first is told.
                let _ = self.abort().await;
                return Err(error);
            }
        };
        let publish = move |path: &Path| {
            // Closed before: some file systems commit then, and tell what failed.
            match file.close() {
                Ok(_) => staged.publish(path, replace, durable),
                Err(error) => {
                    let _ = staged.remove();
                    Err(error)
                }
            }
        };
        self.files.blocking(ErrorOp::Rename, &self.path, publish).await?;
        Ok(stat)
    }

    /// Removes what was uploaded. Its space is free then, unless a part is still being written.
    pub(crate) async fn abort(&mut self) -> Result<()> {
        let (file, staged) = self.staged.take().ok_or_else(|| self.is_over())?;
        let remove = move |_: &Path| {
            // Nothing is kept, so its error tells nothing.
            let _ = file.close();
            staged.remove()
        };
        self.files.blocking(ErrorOp::Remove, &self.path, remove).await
    }

    fn is_over(&self) -> Error {
        let error = Error::new(ErrorOp::Write, ErrorKind::Closed).at(&Arc::from(&*self.path));
        error.with_advice("the upload was completed or aborted; begin another")
    }
}
