//! Multipart uploads: parts at their places in a staged file, in any order and number at a time.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use nowait::{Error, ErrorKind, ErrorOp, File, Nowait, OpenOptions, Result, fork_generation};

use super::{Files, Stat, failed, stage};

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
        const TRIES: u32 = 8;
        let (durable, direct) = (files.options.durable, files.options.direct);
        let mut tries = 0;
        let (file, staged) = loop {
            let staged = stage::staged(path);
            let created =
                OpenOptions::new().write(true).create_new(true).direct(direct).open_in(files.nowait(), &staged);
            tries += 1;
            match created.await {
                Ok(file) => break (file, staged),
                Err(error) if error.kind() == ErrorKind::AlreadyExists && tries < TRIES => {}
                Err(error) if error.kind() == ErrorKind::NotFound && tries < TRIES => {
                    files.blocking(ErrorOp::CreateDir, path, move |path| stage::create_parents(path, durable)).await?;
                }
                Err(error) => return Err(error),
            }
        };
        let staged = Staged { nowait: files.nowait().clone(), path: Some(staged), generation: fork_generation() };
        let (files, path) = (files.clone(), path.to_path_buf());
        Ok(Upload { files, path, staged: Some((file, staged)), length: 0, written: Arc::default() })
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

    /// Gives the object its name, if all of its parts are written.
    pub(crate) async fn complete(&mut self, replace: bool) -> Result<Stat> {
        let (file, mut staged) = self.staged.take().ok_or_else(|| self.is_over())?;
        let written = self.written.load(Ordering::Acquire);
        if written != self.length {
            let error = Error::new(ErrorOp::Write, ErrorKind::InvalidInput).at(&Arc::from(&*self.path));
            return Err(error.with_advice(format!(
                "{written} of {} bytes are written: await every part, and upload anew if one has failed",
                self.length
            )));
        }
        if self.files.options.durable {
            file.sync_all().await?;
        }
        let stat = Stat::of(&file.metadata().await?);
        let Some(from) = staged.path.clone() else { return Err(self.is_over()) };
        let durable = self.files.options.durable;
        let publish = move |path: &Path| {
            // Closed before: some file systems commit then, and tell what failed.
            if let Err(error) = file.close() {
                let _ = std::fs::remove_file(&from);
                return Err(error);
            }
            stage::publish(&from, path, replace, durable)
        };
        self.files.blocking(ErrorOp::Rename, &self.path, publish).await?;
        staged.path = None;
        Ok(stat)
    }

    /// Removes what was uploaded.
    pub(crate) async fn abort(&mut self) -> Result<()> {
        let (_, mut staged) = self.staged.take().ok_or_else(|| self.is_over())?;
        let Some(path) = staged.path.take() else { return Ok(()) };
        let remove = |path: &Path| std::fs::remove_file(path).map_err(failed(ErrorOp::Remove, path));
        self.files.blocking(ErrorOp::Remove, &path, remove).await
    }

    fn is_over(&self) -> Error {
        let error = Error::new(ErrorOp::Write, ErrorKind::Closed).at(&Arc::from(&*self.path));
        error.with_advice("the upload is completed or aborted: begin another")
    }
}

/// A staged file's name. Dropped, the file is removed by a thread of the pool.
#[derive(Debug)]
struct Staged {
    nowait: Nowait,
    path: Option<PathBuf>,
    /// Fork generation of the process that made it: a forked child must not remove it.
    generation: u64,
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Some(path) = self.path.take().filter(|_| self.generation == fork_generation()) {
            self.nowait.remove_file(path).submit().detach();
        }
    }
}
