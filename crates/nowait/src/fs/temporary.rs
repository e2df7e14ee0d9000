//! A file with a temporary name, which replaces another when it is complete.

use std::collections::hash_map::RandomState;
use std::ffi::OsString;
use std::fs::Metadata;
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::buf::WriteBuffer;
use crate::core::instance::Nowait;
use crate::error::{Error, ErrorKind, ErrorOp, Result};
use crate::file::{File, OpenOptions};
use crate::operation::Steps;
use crate::sys::{self, fork_generation};

/// Options for replacing a file as a whole with [`fs::write_atomic`](super::write_atomic) and
/// [`AtomicWriter`](crate::stream::AtomicWriter).
///
/// ```
/// # fn main() -> nowait::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("config");
/// # std::fs::write(&path, "depth = 16\n").unwrap();
/// // The new file keeps the mode and the owner of the old one.
/// nowait::fs::AtomicOptions::new().keep_mode_and_owner(true).write(&path, "depth = 32\n").wait()?;
/// # assert_eq!(nowait::fs::read_to_string(&path).wait()?, "depth = 32\n");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct AtomicOptions {
    keep_mode_and_owner: bool,
    durable: bool,
    sync_directory: bool,
}

impl Default for AtomicOptions {
    fn default() -> Self {
        AtomicOptions::new()
    }
}

impl AtomicOptions {
    /// Returns the defaults: mode and owner of a new file, and durable.
    pub fn new() -> Self {
        AtomicOptions { keep_mode_and_owner: false, durable: true, sync_directory: true }
    }

    /// Keeps mode, owner and group of the replaced regular file, or of a symbolic link's target.
    /// Until mode and owner are set, only this process's user can open the new file. ACLs, extended
    /// attributes and further links are not kept. Default: false, mode 0o666 less the umask.
    pub fn keep_mode_and_owner(&mut self, keep: bool) -> &mut Self {
        self.keep_mode_and_owner = keep;
        self
    }

    /// Syncs the contents before the rename, and the directory afterwards. Default: true. If false,
    /// nothing is durable on completion. While the system runs, readers still see either the old or
    /// the new contents. After a crash of the system the file may contain the old contents, the
    /// new, a part of the new, or nothing.
    pub fn durable(&mut self, durable: bool) -> &mut Self {
        self.durable = durable;
        self
    }

    /// Syncs the directory after the rename. Default: true. If false, the contents are durable on
    /// completion, but the name is durable only after [`fs::sync_dir`](super::sync_dir). After a crash
    /// before that, the file contains the old or the new contents. Has no effect if
    /// [`durable`](AtomicOptions::durable) is false.
    ///
    /// One sync of a directory serves all files that were replaced in it.
    pub fn sync_directory(&mut self, sync: bool) -> &mut Self {
        self.sync_directory = sync;
        self
    }

    /// Replaces a file as [`fs::write_atomic`](super::write_atomic) does, with these options.
    ///
    /// # Errors
    /// As [`fs::write_atomic`](super::write_atomic), and as [`write_in`](AtomicOptions::write_in).
    pub fn write(&self, path: impl AsRef<Path>, data: impl WriteBuffer) -> Steps<Result<()>> {
        self.write_in(Nowait::shared(), path, data)
    }

    /// As [`write`](AtomicOptions::write), on the given instance.
    ///
    /// # Errors
    /// As [`fs::write_atomic`](super::write_atomic). With
    /// [`keep_mode_and_owner`](AtomicOptions::keep_mode_and_owner) also those of `stat(2)` on the
    /// old file, [`ErrorKind::PermissionDenied`] if this process may not set that owner, and
    /// [`ErrorKind::Unsupported`] on a simulator.
    pub fn write_in(&self, nowait: &Nowait, path: impl AsRef<Path>, data: impl WriteBuffer) -> Steps<Result<()>> {
        let (nowait, options, path) = (nowait.clone(), self.clone(), path.as_ref().to_path_buf());
        Steps::new(async move {
            let (file, temporary) = create_beside(&nowait, &path, options).await?;
            let written = file.write_all_at(data, 0).await;
            temporary.replace(file, &path, written.map(drop).map_err(Error::from)).await
        })
    }

    /// Returns the metadata of the file whose mode and owner are kept, if any.
    async fn model(&self, nowait: &Nowait, path: &Path) -> Result<Option<Metadata>> {
        if !self.keep_mode_and_owner {
            return Ok(None);
        }
        match nowait.fs().metadata(path).await {
            Ok(old) => Ok(old.is_file().then_some(old)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Creates a new file with a temporary name in a path's directory.
pub(crate) async fn create_beside(nowait: &Nowait, path: &Path, options: AtomicOptions) -> Result<(File, Temporary)> {
    const TRIES: u32 = 8;
    // The old file's mode may exclude users whom the default mode would let read the new file.
    let mode = if options.model(nowait, path).await?.is_some() { 0o600 } else { 0o666 };
    for last in (0..TRIES).rev() {
        let (directory, temporary) = beside(path)?;
        match OpenOptions::new().write(true).create_new(true).mode(mode).open_in(nowait, &temporary).await {
            Ok(mut file) => {
                // Its errors name the path that the caller knows.
                if let Some(open) = Arc::get_mut(&mut file.open) {
                    open.path = Arc::from(path);
                }
                return Ok((
                    file,
                    Temporary {
                        nowait: nowait.clone(),
                        path: Some(temporary),
                        directory,
                        options,
                        generation: fork_generation(),
                    },
                ));
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists && last > 0 => {}
            Err(error) => return Err(not_created(nowait, error.at(path), &directory).await),
        }
    }
    unreachable!("the last try returns")
}

/// Adds the directory to an error of the temporary file's creation.
async fn not_created(nowait: &Nowait, error: Error, directory: &Path) -> Error {
    let shown = directory.display();
    if error.kind() != ErrorKind::NotFound {
        return error.with_detail(format!("its new contents are first written to a temporary file in {shown}"));
    }
    // The errno is the same where a directory exists but takes no files, as in procfs.
    match nowait.fs().metadata(directory).await {
        Ok(_) => error.with_advice(format!("its directory {shown} takes no new files")),
        Err(missing) if missing.kind() == ErrorKind::NotFound => {
            error.with_advice(format!("its directory {shown} does not exist; create the directory first"))
        }
        Err(_) => error,
    }
}

/// The temporary name of a file that is to replace another. Drop removes it, on a pool thread.
pub(crate) struct Temporary {
    nowait: Nowait,
    /// None once it is gone.
    path: Option<PathBuf>,
    directory: PathBuf,
    options: AtomicOptions,
    /// Fork generation of the process that made it: a forked child must not remove it.
    generation: u64,
}

impl Temporary {
    /// Renames `file` to `path`, as the options say; `written` is the result of writing it. After
    /// an error before the rename the file is removed.
    pub(crate) async fn replace(mut self, file: File, path: &Path, written: Result<()>) -> Result<()> {
        let (nowait, options) = (self.nowait.clone(), self.options.clone());
        let temporary = self.path.clone().unwrap_or_default();
        let renamed = async {
            written?;
            if let Some(old) = options.model(&nowait, path).await? {
                file.set_mode_and_owner(old).await?;
            }
            if options.durable {
                file.sync_all().await?;
            }
            file.close()?;
            let renamed = nowait.fs().rename(&temporary, path).await;
            renamed.map_err(|error| match error.kind() {
                ErrorKind::ResourceBusy => error.at(path).with_advice(sys::advice::NAME_IN_USE),
                _ => error.at(path).with_detail("its new contents cannot take this name"),
            })
        };
        let renamed = renamed.await;
        self.path = None;
        match renamed {
            Ok(()) if !options.durable || !options.sync_directory => Ok(()),
            Ok(()) => nowait.fs().sync_dir(&self.directory).await.map_err(|error| {
                let directory = self.directory.display();
                let text = format!("it has its new contents, but {directory} was not synced: a crash may undo that");
                error.at(path).with_detail(text)
            }),
            Err(error) => {
                let _ = nowait.fs().remove_file(&temporary).submit().finish_on_drop().await;
                Err(match error.kind() {
                    // Its advice is for a file that stays open.
                    ErrorKind::SyncFailed => error.with_advice("the old contents are kept; replace the file again"),
                    _ => error,
                })
            }
        }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(path) = self.path.take().filter(|_| self.generation == fork_generation()) {
            self.nowait.fs().remove_file(path).submit().detach();
        }
    }
}

/// Bytes of the final name that the temporary one has.
const NAME_BYTES_MAX: usize = 200;

/// A path's directory, and a name in it that nothing else uses.
fn beside(path: &Path) -> Result<(PathBuf, PathBuf)> {
    let Some(name) = path.file_name() else {
        let error = Error::new(ErrorOp::Write, ErrorKind::InvalidInput).at(path);
        return Err(error.with_detail("the path names no file"));
    };
    if sys::names_a_stream(name) {
        let error = Error::new(ErrorOp::Write, ErrorKind::InvalidInput).at(path);
        return Err(error.with_detail("the path names a stream of a file, which nothing replaces"));
    }
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_path_buf(),
        _ => PathBuf::from("."),
    };
    let mut temporary = OsString::from(".");
    // The whole has to be a name, of 255 bytes at most.
    temporary.push(sys::start_of_name(name, NAME_BYTES_MAX));
    // Each hasher has random keys. Processes in containers may have the same id, and a directory in
    // common.
    let random = RandomState::new().build_hasher().finish();
    temporary.push(format!(".{random:016x}.tmp"));
    let temporary = directory.join(temporary);
    Ok((directory, temporary))
}
