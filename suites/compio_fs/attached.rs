//! The part of compio-fs that its tests use, on `nowait::fs` and `nowait::File`. compio's runtime polls the
//! futures, and compio's traits read and write the files.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use compio_buf::{BufResult, IoBuf, IoBufMut};
use compio_io::{AsyncReadAt, AsyncWriteAt};

/// nowait has no pipes: these are the tested crate's own.
pub use stock::pipe;

pub struct OpenOptions(nowait::OpenOptions);

impl OpenOptions {
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        OpenOptions(nowait::OpenOptions::new())
    }
    pub fn read(&mut self, yes: bool) -> &mut Self {
        self.0.read(yes);
        self
    }
    pub fn write(&mut self, yes: bool) -> &mut Self {
        self.0.write(yes);
        self
    }
    pub async fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        Ok(File(self.0.open(path).await?))
    }
}

#[derive(Clone, Debug)]
pub struct File(nowait::File);

impl File {
    pub async fn open(path: impl AsRef<Path>) -> io::Result<File> {
        Ok(File(nowait::File::open(path).await?))
    }
    pub async fn create(path: impl AsRef<Path>) -> io::Result<File> {
        Ok(File(nowait::File::create(path).await?))
    }
    pub async fn metadata(&self) -> io::Result<Metadata> {
        Ok(self.0.metadata().await?)
    }
    pub async fn set_len(&self, length: u64) -> io::Result<()> {
        Ok(self.0.set_len(length).await?)
    }
    pub async fn sync_all(&self) -> io::Result<()> {
        Ok(self.0.sync_all().await?)
    }
}

impl AsyncReadAt for File {
    async fn read_at<T: IoBufMut>(&self, mut buffer: T, offset: u64) -> BufResult<usize, T> {
        let room = vec![0; buffer.as_uninit().len()];
        match self.0.read_at(room, offset).await {
            Ok((n, bytes)) => {
                for (to, from) in buffer.as_uninit().iter_mut().zip(&bytes[..n]) {
                    to.write(*from);
                }
                // SAFETY: the first `n` bytes were written above.
                unsafe { buffer.advance_to(n) };
                BufResult(Ok(n), buffer)
            }
            Err(failed) => BufResult(Err(failed.into()), buffer),
        }
    }
}

impl AsyncWriteAt for File {
    async fn write_at<T: IoBuf>(&mut self, buffer: T, offset: u64) -> BufResult<usize, T> {
        let written = self.0.write_at(buffer.as_init().to_vec(), offset).await;
        BufResult(written.map(|(n, _)| n).map_err(io::Error::from), buffer)
    }
}

/// Uses `nowait::fs` with a joined path for the calls that `nowait::fs::Dir` lacks.
pub struct Dir(nowait::fs::Dir);

impl Dir {
    pub async fn open(path: impl AsRef<Path>) -> io::Result<Dir> {
        Ok(Dir(nowait::fs::Dir::open(path).await?))
    }
    fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.0.path().join(path)
    }
    pub async fn dir_metadata(&self) -> io::Result<Metadata> {
        metadata(self.0.path()).await
    }
    pub async fn open_dir(&self, path: impl AsRef<Path>) -> io::Result<Dir> {
        Dir::open(self.at(path)).await
    }
    pub async fn open_file(&self, path: impl AsRef<Path>) -> io::Result<File> {
        Ok(File(self.0.open_file(nowait::OpenOptions::new().read(true), path).await?))
    }
    pub async fn read(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        read(self.at(path)).await
    }
    pub async fn create_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
        create_dir(self.at(path)).await
    }
    pub async fn remove_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
        remove_dir(self.at(path)).await
    }
    pub async fn rename(&self, from: impl AsRef<Path>, to_dir: &Dir, to: impl AsRef<Path>) -> io::Result<()> {
        Ok(nowait::fs::rename(self.at(from), to_dir.at(to)).await?)
    }
}

/// nowait creates directories with the default mode; a mode is set afterwards.
#[derive(Default)]
pub struct DirBuilder {
    recursive: bool,
    mode: Option<u32>,
}

impl DirBuilder {
    pub fn new() -> Self {
        DirBuilder::default()
    }
    pub fn recursive(&mut self, yes: bool) -> &mut Self {
        self.recursive = yes;
        self
    }
    pub async fn create(&self, path: impl AsRef<Path>) -> io::Result<()> {
        match self.recursive {
            true => nowait::fs::create_dir_all(&path).await?,
            false => nowait::fs::create_dir(&path).await?,
        }
        if let Some(mode) = self.mode {
            nowait::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).await?;
        }
        Ok(())
    }
}

impl std::os::unix::fs::DirBuilderExt for DirBuilder {
    fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = Some(mode);
        self
    }
}

macro_rules! functions {
    ($($name:ident($($input:ident: $type:ty),*) -> $output:ty;)*) => {
        $(pub async fn $name($($input: $type),*) -> io::Result<$output> {
            Ok(nowait::fs::$name($($input),*).await?)
        })*
    };
}

functions! {
    create_dir(path: impl AsRef<Path>) -> ();
    create_dir_all(path: impl AsRef<Path>) -> ();
    hard_link(from: impl AsRef<Path>, to: impl AsRef<Path>) -> ();
    metadata(path: impl AsRef<Path>) -> Metadata;
    read(path: impl AsRef<Path>) -> Vec<u8>;
    remove_dir(path: impl AsRef<Path>) -> ();
    symlink(from: impl AsRef<Path>, to: impl AsRef<Path>) -> ();
    symlink_metadata(path: impl AsRef<Path>) -> Metadata;
}

pub async fn write(path: impl AsRef<Path>, data: impl AsRef<[u8]>) -> io::Result<()> {
    Ok(nowait::fs::write(path, data.as_ref().to_vec()).await?)
}
