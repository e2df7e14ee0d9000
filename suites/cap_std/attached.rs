//! The part of cap_std's interface that its file tests use, on `nowait::fs` and `nowait::File`.
//!
//! SUITE_CALLS selects how the tests call nowait: `wait` blocks, `await` polls futures.

pub struct AmbientAuthority;

pub fn ambient_authority() -> AmbientAuthority {
    AmbientAuthority
}

/// A temporary directory.
pub struct TempDir {
    dir: fs::Dir,
    _folder: tempfile::TempDir,
}

pub fn tmpdir() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    TempDir { dir: fs::Dir::open_ambient_dir(folder.path(), ambient_authority()).unwrap(), _folder: folder }
}

impl std::ops::Deref for TempDir {
    type Target = fs::Dir;
    fn deref(&self) -> &fs::Dir {
        &self.dir
    }
}

pub mod fs {
    use std::ffi::OsString;
    use std::fmt;
    use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
    use std::path::{Path, PathBuf};
    use std::sync::{Arc, Mutex};

    pub use std::fs::{FileType, Metadata, Permissions};
    pub use std::os::unix::fs::{FileExt, PermissionsExt};

    /// Runs an operation in the way that SUITE_CALLS selects.
    macro_rules! run {
        ($operation:expr) => {
            match awaits() {
                true => nowait::block_on($operation).map_err(to_std),
                false => $operation.wait().map_err(to_std),
            }
        };
    }

    fn awaits() -> bool {
        match std::env::var("SUITE_CALLS").as_deref() {
            Ok("await") => true,
            Ok("wait") => false,
            other => panic!("SUITE_CALLS is {other:?}"),
        }
    }

    /// Returns std's error with the same errno: the tests compare its text.
    fn to_std(error: impl Into<nowait::Error>) -> io::Error {
        let error = error.into();
        match error.raw_os_error() {
            // Of std's own checks before the call, without errno.
            Some(22) if error.path().is_some_and(|path| path.as_os_str().as_encoded_bytes().contains(&0)) => {
                error.into()
            }
            Some(errno) => io::Error::from_raw_os_error(errno),
            None if error.kind() == nowait::ErrorKind::InvalidData => {
                io::Error::new(ErrorKind::InvalidData, "stream did not contain valid UTF-8")
            }
            None => error.into(),
        }
    }

    #[derive(Clone)]
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
        pub fn append(&mut self, yes: bool) -> &mut Self {
            self.0.append(yes);
            self
        }
        pub fn truncate(&mut self, yes: bool) -> &mut Self {
            self.0.truncate(yes);
            self
        }
        pub fn create(&mut self, yes: bool) -> &mut Self {
            self.0.create(yes);
            self
        }
        pub fn create_new(&mut self, yes: bool) -> &mut Self {
            self.0.create_new(yes);
            self
        }
        /// cap_std opens directories only with it, nowait never.
        pub fn maybe_dir(&mut self, _: bool) -> &mut Self {
            self
        }
    }

    /// A file with a position, which clones share.
    #[derive(Debug)]
    pub struct File {
        file: nowait::File,
        position: Arc<Mutex<u64>>,
    }

    impl File {
        pub fn metadata(&self) -> io::Result<Metadata> {
            run!(self.file.metadata())
        }
        pub fn set_permissions(&self, permissions: Permissions) -> io::Result<()> {
            run!(self.file.set_permissions(permissions.clone()))
        }
        pub fn set_len(&self, length: u64) -> io::Result<()> {
            run!(self.file.set_len(length))
        }
        pub fn sync_all(&self) -> io::Result<()> {
            run!(self.file.sync_all())
        }
        pub fn sync_data(&self) -> io::Result<()> {
            run!(self.file.sync_data())
        }
        pub fn try_clone(&self) -> io::Result<File> {
            Ok(File { file: self.file.clone(), position: self.position.clone() })
        }
    }

    impl FileExt for File {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
            if !awaits() {
                return self.file.read_into(buffer, offset).map_err(to_std);
            }
            let (n, bytes) = nowait::block_on(self.file.read_at(vec![0; buffer.len()], offset)).map_err(to_std)?;
            buffer[..n].copy_from_slice(&bytes[..n]);
            Ok(n)
        }

        fn write_at(&self, data: &[u8], offset: u64) -> io::Result<usize> {
            if !awaits() {
                return self.file.write_from(data, offset).map_err(to_std);
            }
            let (n, _) = nowait::block_on(self.file.write_at(data.to_vec(), offset)).map_err(to_std)?;
            Ok(n)
        }
    }

    impl Read for File {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let mut position = self.position.lock().unwrap();
            let n = self.read_at(buffer, *position)?;
            *position += n as u64;
            Ok(n)
        }
    }

    impl Write for File {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            let mut position = self.position.lock().unwrap();
            let n = self.write_at(data, *position)?;
            *position += n as u64;
            Ok(n)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Seek for File {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            let mut position = self.position.lock().unwrap();
            let place = match to {
                SeekFrom::Start(place) => Some(place),
                SeekFrom::Current(by) => position.checked_add_signed(by),
                SeekFrom::End(by) => run!(self.file.size())?.checked_add_signed(by),
            };
            *position = place.ok_or(ErrorKind::InvalidInput)?;
            Ok(*position)
        }
    }

    pub type ReadDir = std::vec::IntoIter<io::Result<DirEntry>>;

    pub struct DirEntry(nowait::fs::DirEntry);

    impl DirEntry {
        pub fn file_name(&self) -> OsString {
            self.0.file_name().to_owned()
        }
        pub fn file_type(&self) -> io::Result<FileType> {
            Ok(self.0.file_type())
        }
        pub fn metadata(&self) -> io::Result<Metadata> {
            run!(self.0.metadata())
        }
    }

    impl fmt::Debug for DirEntry {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.fmt(f)
        }
    }

    /// A directory: by its descriptor where `nowait::fs::Dir` has the call, else by its path.
    #[derive(Clone)]
    pub struct Dir(nowait::fs::Dir);

    impl Dir {
        pub fn open_ambient_dir(path: impl AsRef<Path>, _: super::AmbientAuthority) -> io::Result<Dir> {
            run!(nowait::fs::Dir::open(path.as_ref())).map(Dir)
        }
        fn at(&self, path: impl AsRef<Path>) -> PathBuf {
            self.0.path().join(path)
        }
        pub fn try_clone(&self) -> io::Result<Dir> {
            Ok(self.clone())
        }
        pub fn open_with(&self, path: impl AsRef<Path>, options: &OpenOptions) -> io::Result<File> {
            let file = run!(self.0.open_file(&options.0, path.as_ref()))?;
            Ok(File { file, position: Arc::default() })
        }
        pub fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
            self.open_with(path, OpenOptions::new().read(true))
        }
        pub fn create(&self, path: impl AsRef<Path>) -> io::Result<File> {
            self.open_with(path, OpenOptions::new().write(true).create(true).truncate(true))
        }
        pub fn remove_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
            run!(self.0.remove_file(path.as_ref()))
        }
        pub fn rename(&self, from: impl AsRef<Path>, to_dir: &Dir, to: impl AsRef<Path>) -> io::Result<()> {
            match self.0.path() == to_dir.0.path() {
                true => run!(self.0.rename(from.as_ref(), to.as_ref())),
                false => run!(nowait::fs::rename(self.at(&from), to_dir.at(&to))),
            }
        }
        pub fn create_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
            run!(nowait::fs::create_dir(self.at(&path)))
        }
        pub fn create_dir_all(&self, path: impl AsRef<Path>) -> io::Result<()> {
            run!(nowait::fs::create_dir_all(self.at(&path)))
        }
        pub fn remove_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
            run!(nowait::fs::remove_dir(self.at(&path)))
        }
        pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> io::Result<()> {
            run!(nowait::fs::remove_dir_all(self.at(&path)))
        }
        pub fn entries(&self) -> io::Result<ReadDir> {
            self.read_dir(".")
        }
        pub fn read_dir(&self, path: impl AsRef<Path>) -> io::Result<ReadDir> {
            let entries = run!(nowait::fs::read_dir(self.at(&path)))?;
            let entries: Vec<_> = entries.into_iter().map(|entry| Ok(DirEntry(entry))).collect();
            Ok(entries.into_iter())
        }
        pub fn metadata(&self, path: impl AsRef<Path>) -> io::Result<Metadata> {
            run!(nowait::fs::metadata(self.at(&path)))
        }
        pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> io::Result<Metadata> {
            run!(nowait::fs::symlink_metadata(self.at(&path)))
        }
        pub fn set_permissions(&self, path: impl AsRef<Path>, permissions: Permissions) -> io::Result<()> {
            run!(nowait::fs::set_permissions(self.at(&path), permissions.clone()))
        }
        pub fn exists(&self, path: impl AsRef<Path>) -> bool {
            run!(nowait::fs::exists(self.at(&path))).unwrap_or(false)
        }
        pub fn is_file(&self, path: impl AsRef<Path>) -> bool {
            self.metadata(path).is_ok_and(|metadata| metadata.is_file())
        }
        pub fn is_dir(&self, path: impl AsRef<Path>) -> bool {
            self.metadata(path).is_ok_and(|metadata| metadata.is_dir())
        }
        pub fn read(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
            run!(nowait::fs::read(self.at(&path)))
        }
        pub fn read_to_string(&self, path: impl AsRef<Path>) -> io::Result<String> {
            run!(nowait::fs::read_to_string(self.at(&path)))
        }
        pub fn write(&self, path: impl AsRef<Path>, data: impl AsRef<[u8]>) -> io::Result<()> {
            run!(nowait::fs::write(self.at(&path), data.as_ref().to_vec()))
        }
        pub fn copy(&self, from: impl AsRef<Path>, to_dir: &Dir, to: impl AsRef<Path>) -> io::Result<u64> {
            run!(nowait::fs::copy(self.at(&from), to_dir.at(&to)))
        }
        pub fn hard_link(&self, from: impl AsRef<Path>, to_dir: &Dir, to: impl AsRef<Path>) -> io::Result<()> {
            run!(nowait::fs::hard_link(self.at(&from), to_dir.at(&to)))
        }
        pub fn symlink(&self, target: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
            run!(nowait::fs::symlink(target.as_ref(), self.at(&link)))
        }
        pub fn symlink_contents(&self, target: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
            self.symlink(target, link)
        }
        pub fn read_link_contents(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
            self.read_link(path)
        }
        pub fn read_link(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
            run!(nowait::fs::read_link(self.at(&path)))
        }
        /// Returns a path that is relative to the directory, as cap_std does.
        pub fn canonicalize(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
            let root = run!(nowait::fs::canonicalize(self.0.path()))?;
            let path = run!(nowait::fs::canonicalize(self.at(&path)))?;
            match path.strip_prefix(&root).map_err(io::Error::other)? {
                inside if inside.as_os_str().is_empty() => Ok(PathBuf::from(".")),
                inside => Ok(inside.to_owned()),
            }
        }
    }
}
