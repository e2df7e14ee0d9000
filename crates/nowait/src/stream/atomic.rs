//! Replaces a file by a stream of writes, atomically.

use std::fmt;
use std::path::{Path, PathBuf};

use super::Writer;
use crate::core::instance::Nowait;
use crate::error::Result;
use crate::file::File;
use crate::fs::{AtomicOptions, Temporary, create_beside};
use crate::operation::Steps;

/// Stream that replaces a file's contents, or creates the file. Readers see either the old or the
/// new contents, even after a crash. [`writer`](AtomicWriter::writer) takes the new contents.
/// [`fs::write_atomic`](crate::fs::write_atomic) does the same for contents in one buffer.
/// [`AtomicOptions`] can keep mode and owner of the old file, or omit the syncs.
///
/// [`commit`](AtomicWriter::commit) replaces the file. If dropped without it, the old contents
/// stay, and a pool thread removes the temporary file. A crash, or dropping `create` early, may
/// leave the temporary file. Its name begins with a dot and ends in `.tmp`.
///
/// ```
/// use std::io::Write;
///
/// # fn main() -> std::io::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("table");
/// let mut new = nowait::stream::AtomicWriter::create(&path).wait()?;
/// for row in 0..1000 {
///     writeln!(new.writer(), "row {row}")?;
/// }
/// new.commit().wait()?;
/// # assert_eq!(std::fs::read_to_string(&path)?.lines().count(), 1000);
/// # Ok(())
/// # }
/// ```
#[must_use = "the file is not replaced until `commit`"]
pub struct AtomicWriter {
    writer: Writer,
    file: File,
    temporary: Temporary,
    path: PathBuf,
}

impl fmt::Debug for AtomicWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtomicWriter")
            .field("path", &self.path)
            .field("position", &self.writer.position())
            .finish_non_exhaustive()
    }
}

impl AtomicWriter {
    /// Creates the temporary file, in the directory of `path`.
    ///
    /// # Errors
    /// Those of [`OpenOptions::open`](crate::OpenOptions::open), of a new file in that directory. They
    /// name `path`, not the temporary file.
    pub fn create(path: impl AsRef<Path>) -> Steps<Result<AtomicWriter>> {
        AtomicOptions::new().create(path)
    }

    /// As [`create`](AtomicWriter::create), on the given instance.
    ///
    /// # Errors
    /// As [`create`](AtomicWriter::create).
    pub fn create_in(nowait: &Nowait, path: impl AsRef<Path>) -> Steps<Result<AtomicWriter>> {
        AtomicOptions::new().create_in(nowait, path)
    }

    /// Returns the writer of the new contents, for threads and tasks.
    pub fn writer(&mut self) -> &mut Writer {
        &mut self.writer
    }

    /// Returns the new file, which has a temporary name. Its `path`, and its errors, are of the final
    /// name.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Syncs the temporary file, renames it to the final name, and syncs the directory. Omits both
    /// syncs if [`AtomicOptions::durable`] was set to false.
    ///
    /// # Errors
    /// Those of the writes and of the steps. If a step before the final sync of the directory
    /// fails, the old contents are untouched, and the temporary file is removed.
    pub fn commit(self) -> Steps<Result<()>> {
        let AtomicWriter { mut writer, file, temporary, path } = self;
        Steps::new(async move {
            let written = writer.finish().await;
            // The writer holds a reference to the file.
            drop(writer);
            temporary.replace(file, &path, written).await
        })
    }
}

impl AtomicOptions {
    /// Creates the temporary file, as [`AtomicWriter::create`], with these options.
    ///
    /// # Errors
    /// As [`AtomicWriter::create`], and as [`write_in`](AtomicOptions::write_in).
    pub fn create(&self, path: impl AsRef<Path>) -> Steps<Result<AtomicWriter>> {
        self.create_in(Nowait::shared(), path)
    }

    /// As [`create`](AtomicOptions::create), on the given instance.
    ///
    /// # Errors
    /// As [`create`](AtomicOptions::create).
    pub fn create_in(&self, nowait: &Nowait, path: impl AsRef<Path>) -> Steps<Result<AtomicWriter>> {
        let (nowait, options, path) = (nowait.clone(), self.clone(), path.as_ref().to_path_buf());
        Steps::new(async move {
            let (file, temporary) = create_beside(&nowait, &path, options).await?;
            let mut writer = Writer::new(&file, 0);
            writer.is_disposable = true;
            Ok(AtomicWriter { writer, file, temporary, path })
        })
    }
}
