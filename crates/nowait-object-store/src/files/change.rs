//! Puts, copies, renames and deletes: one blocking call for each.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use nowait::{Error, ErrorKind, ErrorOp, File, Result};

use super::stage::Staged;
use super::{Files, Stat, Upload, failed, is_a_directory, stage, system};

/// Mode of a new object, less the umask.
const MODE: u32 = 0o666;
/// Mode of a copy until its contents are complete and it gets the object's mode. With a wider one,
/// users who may not read the object could read the copy.
const COPY_MODE: u32 = 0o600;

impl Files {
    /// Writes an object under a staged name, and renames it in one step. If dropped early, it takes
    /// effect completely or not at all.
    pub(crate) async fn put(self: &Arc<Self>, path: &Path, parts: Vec<Bytes>, replace: bool) -> Result<Stat> {
        if self.options.direct {
            let mut upload = Upload::begin(self, path).await?;
            if let Err(error) = upload.part(parts).await {
                // Returns the first error.
                let _ = upload.abort().await;
                return Err(error);
            }
            return upload.complete(replace).await;
        }
        let files = self.clone();
        let put = move |path: &Path| {
            let (file, staged) = files.create_staged(path, MODE)?;
            match files.write(file, &parts, path).and_then(|()| staged.stat(path)) {
                Ok(stat) => staged.publish(path, replace, files.options.durable).map(|()| stat),
                Err(error) => {
                    let _ = staged.remove();
                    Err(error)
                }
            }
        };
        self.blocking(ErrorOp::Write, path, put).await
    }

    /// Copies an object: by sharing its blocks if possible, otherwise by a hard link, as
    /// `LocalFileSystem` does, otherwise by copying its bytes.
    pub(crate) async fn copy(self: &Arc<Self>, from: &Path, to: PathBuf, replace: bool) -> Result<()> {
        let files = self.clone();
        let copy = move |from: &Path| {
            let staged = files.copy_staged(from, &to)?;
            let name = staged.path();
            staged.publish(&to, replace, files.options.durable)?;
            // A rename to another link of the same file leaves both.
            let _ = system::remove_file(&name);
            Ok(())
        };
        self.blocking(ErrorOp::Copy, from, copy).await
    }

    /// Creates the file that becomes the object at `path`, with this mode less the umask. Blocks.
    fn create_staged(&self, path: &Path, mode: u32) -> Result<(fs::File, Staged)> {
        let mut options = fs::File::options();
        options.write(true).create_new(true);
        system::set_mode(&mut options, mode);
        let create = |staged: &Path| options.open(staged).map_err(failed(ErrorOp::Write, path));
        Staged::create(self.nowait(), path, self.options.durable, create)
    }

    /// Writes a new file's contents, which are to become the object at `path`.
    fn write(&self, mut file: fs::File, parts: &[Bytes], path: &Path) -> Result<()> {
        parts.iter().try_for_each(|part| file.write_all(part)).map_err(failed(ErrorOp::Write, path))?;
        self.finish(file, path)
    }

    /// Makes a file durable if requested, and closes it: some file systems write, and report
    /// failures, only then.
    fn finish(&self, file: fs::File, path: &Path) -> Result<()> {
        if self.options.durable {
            system::sync(&file).map_err(failed(ErrorOp::Sync, path))?;
        }
        File::from_std(self.nowait(), file, path)?.close().map(|_| ())
    }

    fn copy_staged(&self, from: &Path, to: &Path) -> Result<Staged> {
        let durable = self.options.durable;
        let failed = failed(ErrorOp::Copy, from);
        let (mut source, metadata) = open(from)?;
        let finish = |file: fs::File| {
            file.set_permissions(metadata.permissions()).map_err(&failed)?;
            self.finish(file, to)
        };
        let device = system::device(&metadata);
        if self.may_clone(device) {
            let (file, staged) = self.create_staged(to, COPY_MODE)?;
            let cloned = system::share_blocks(&file, &source).map_err(&failed);
            match cloned.and_then(|()| finish(file)) {
                Ok(()) => return Ok(staged),
                Err(_) => drop(staged.remove()),
            }
            self.cannot_clone(device);
        }
        // A link to a symbolic link would lead elsewhere from another directory.
        let is_link = fs::symlink_metadata(from).map_err(&failed)?.is_symlink();
        if system::LINKS_COPIES && !is_link {
            if durable {
                system::sync_file(from).map_err(&failed)?;
            }
            let link = |staged: &Path| fs::hard_link(from, staged).map_err(&failed);
            if let Ok(((), staged)) = Staged::create(self.nowait(), to, durable, link) {
                return Ok(staged);
            }
        }
        let (mut file, staged) = self.create_staged(to, COPY_MODE)?;
        match io::copy(&mut source, &mut file).map_err(&failed).and_then(|_| finish(file)) {
            Ok(()) => Ok(staged),
            Err(error) => {
                let _ = staged.remove();
                Err(error)
            }
        }
    }

    /// Renames an object.
    pub(crate) async fn rename(&self, from: &Path, to: PathBuf, replace: bool) -> Result<()> {
        let durable = self.options.durable;
        let rename = move |from: &Path| {
            let failed = failed(ErrorOp::Rename, from);
            let metadata = fs::symlink_metadata(from).map_err(&failed)?;
            if metadata.is_dir() {
                return Err(is_a_directory(from));
            }
            // The writer of the file may not have synced it.
            if durable && metadata.is_file() {
                system::sync_file(from).map_err(super::failed(ErrorOp::Sync, from))?;
            }
            stage::with_parents(&to, durable, || {
                stage::rename(from, &to, replace).map_err(|error| {
                    // Named for what is in the way.
                    let is_there = error.kind() == io::ErrorKind::AlreadyExists;
                    super::failed(ErrorOp::Rename, if is_there { &to } else { from })(error)
                })
            })?;
            // A copy may be another link to the same file: of those `rename(2)` leaves both. Two
            // paths of one name are none of them: to remove one would remove the object.
            if replace && system::has_links(&metadata) {
                let left =
                    fs::symlink_metadata(from).is_ok_and(|left| system::inode(&left) == system::inode(&metadata));
                if left && !stage::is_one_name(from, &to).map_err(&failed)? {
                    system::remove_file(from).map_err(&failed)?;
                }
            }
            if durable {
                stage::sync_name(&to)?;
                if from.parent() != to.parent() {
                    stage::sync_name(from)?;
                }
            }
            Ok(())
        };
        self.blocking(ErrorOp::Rename, from, rename).await
    }

    /// Deletes an object; of a symbolic link, deletes only the link.
    pub(crate) async fn remove(&self, path: &Path) -> Result<()> {
        let root = self.options.automatic_cleanup.then(|| self.root.clone());
        let remove = move |path: &Path| {
            system::remove_file(path).map_err(failed(ErrorOp::Remove, path))?;
            let Some(root) = root else { return Ok(()) };
            let mut above = path.ancestors().skip(1).take_while(|dir| **dir != root);
            // The first that is not empty ends it.
            while above.next().is_some_and(|dir| fs::remove_dir(dir).is_ok()) {}
            Ok(())
        };
        self.blocking(ErrorOp::Remove, path, remove).await
    }
}

/// Opens an object to copy it. The open does not wait for a FIFO, which is not an object.
fn open(path: &Path) -> Result<(fs::File, fs::Metadata)> {
    let failed = failed(ErrorOp::Copy, path);
    let file = match system::open(path) {
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => return Err(is_a_directory(path)),
        opened => opened.map_err(&failed)?,
    };
    let metadata = file.metadata().map_err(&failed)?;
    if metadata.is_dir() {
        return Err(is_a_directory(path));
    }
    if !metadata.is_file() {
        let error = Error::new(ErrorOp::Copy, ErrorKind::InvalidInput).at(path);
        return Err(error.with_detail("it is a special file, not an object"));
    }
    Ok((file, metadata))
}
