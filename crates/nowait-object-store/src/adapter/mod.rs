//! The store, as one release of `object_store` wants it. The module above names the release, and
//! makes the few values that differ: this file is compiled once for each.

mod convert;
mod upload;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use url::Url;

use self::convert::{failed, file_path, location, meta, not_implemented, path_of};
use self::upload::Multipart;
use super::object_store::path::Path;
use super::object_store::{
    CopyMode, CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, RenameTargetMode,
    Result,
};
use super::{e_tag, get_result, list_result, put_result};
use crate::files::{Files, Upload, list};
use crate::options::Options;

/// Store of local files; see the [crate's text](crate). Cheap to clone.
#[derive(Clone, Debug)]
pub struct NowaitFileSystem {
    files: Arc<Files>,
}

impl NowaitFileSystem {
    /// Makes a store of all files; a location is the path from the root of the file system.
    pub fn new(options: Options) -> NowaitFileSystem {
        NowaitFileSystem { files: Arc::new(Files::new("/".into(), options)) }
    }

    /// Makes a store of the files in a directory, which must exist. Blocks to resolve the path.
    ///
    /// # Errors
    /// Those of `realpath(3)`.
    pub fn with_prefix(prefix: impl AsRef<std::path::Path>, options: Options) -> Result<NowaitFileSystem> {
        let root = nowait::fs::canonicalize(prefix).wait().map_err(failed)?;
        Ok(NowaitFileSystem { files: Arc::new(Files::new(root, options)) })
    }

    /// Calls `register` with a store of [all files](NowaitFileSystem::new), once for `file:///` and
    /// once for `nowait:///`:
    ///
    /// ```ignore
    /// NowaitFileSystem::register(Options::new(), |url, store| {
    ///     context.register_object_store(url, store); // of DataFusion's SessionContext or RuntimeEnv
    /// });
    /// ```
    pub fn register(options: Options, mut register: impl FnMut(&Url, Arc<dyn ObjectStore>)) {
        let store = NowaitFileSystem::new(options);
        for url in ["file:///", "nowait:///"].into_iter().filter_map(|url| Url::parse(url).ok()) {
            register(&url, Arc::new(store.clone()));
        }
    }

    /// Returns the path of an object's file.
    ///
    /// # Errors
    /// For a location that is not an object name: the root, or the hidden name of an upload, which
    /// ends in `#` and digits.
    pub fn path_to_filesystem(&self, location: &Path) -> Result<std::path::PathBuf> {
        file_path(&self.files, location)
    }

    /// Removes files that puts and uploads of killed processes left below a prefix. It removes
    /// every file with a hidden name of uploads (`name#123`) and a last change (ctime) before
    /// `unchanged_since`, whoever owns it. Returns the number of removed files.
    ///
    /// Choose a time that is older than any pause of an upload in progress: an upload whose file is
    /// removed cannot be completed. Dropping the future does not stop the removal.
    ///
    /// # Errors
    /// Errors of reading directories and removing files. Files removed before the error stay
    /// removed.
    pub async fn remove_leftovers(&self, prefix: Option<&Path>, unchanged_since: SystemTime) -> Result<u64> {
        let dir = path_of(&self.files, prefix.unwrap_or(&Path::default()))?;
        self.files.remove_leftovers(&dir, unchanged_since).await.map_err(failed)
    }

    async fn list_entries(&self, prefix: &Path) -> Result<ListResult> {
        let dir = path_of(&self.files, prefix)?;
        let (mut common_prefixes, mut objects) = (Vec::new(), Vec::new());
        for entry in self.files.entries(&dir).await.map_err(failed)? {
            let location = location(&self.files, &entry.path)?;
            match &entry.stat {
                Some(stat) => objects.push(meta(location, stat)),
                None => common_prefixes.push(location),
            }
        }
        common_prefixes.sort_unstable();
        Ok(list_result(common_prefixes, objects))
    }

    fn list_after(&self, prefix: Option<&Path>, offset: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let dir = match path_of(&self.files, prefix.unwrap_or(&Path::default())) {
            Ok(dir) => dir,
            Err(error) => return stream::once(std::future::ready(Err(error))).boxed(),
        };
        let files = self.files.clone();
        list(self.files.clone(), dir, offset.map(|offset| offset.to_string()))
            .filter_map(move |entry| {
                let object = entry.map_err(failed).and_then(|entry| {
                    entry.stat.map(|stat| Ok(meta(location(&files, &entry.path)?, &stat))).transpose()
                });
                std::future::ready(object.transpose())
            })
            .boxed()
    }
}

impl fmt::Display for NowaitFileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NowaitFileSystem({})", self.files.root.display())
    }
}

#[async_trait]
impl ObjectStore for NowaitFileSystem {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let replace = match options.mode {
            PutMode::Overwrite => true,
            PutMode::Create => false,
            PutMode::Update(_) => return Err(not_implemented("`put_opts` with mode `PutMode::Update`", self)),
        };
        if !options.attributes.is_empty() {
            return Err(not_implemented("`put_opts` with attributes", self));
        }
        let path = self.path_to_filesystem(location)?;
        let parts = payload.into_iter().collect();
        let stat = self.files.put(&path, parts, replace).await.map_err(failed)?;
        Ok(put_result(e_tag(&stat)))
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        if !options.attributes.is_empty() {
            return Err(not_implemented("`put_multipart_opts` with attributes", self));
        }
        let path = self.path_to_filesystem(location)?;
        Ok(Box::new(Multipart(Upload::begin(&self.files, &path).await.map_err(failed)?)))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let path = self.path_to_filesystem(location)?;
        let (file, stat) = self.files.open_object(&path, options.head).await.map_err(failed)?;
        let meta = meta(location.clone(), &stat);
        options.check_preconditions(&meta)?;
        let range = match &options.range {
            Some(range) => range.as_range(meta.size).map_err(|error| convert::generic(error.into()))?,
            None => 0..meta.size,
        };
        let contents = match options.head {
            true => stream::empty().boxed(),
            false => self.files.contents(file, range.clone()).map(|piece| piece.map_err(failed)).boxed(),
        };
        Ok(get_result(GetResultPayload::Stream(contents), meta, range))
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let path = self.path_to_filesystem(location)?;
        self.files.ranges(&path, ranges).await.map_err(failed)
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        /// Deletes under way at a time, as with `LocalFileSystem`.
        const DELETES: usize = 10;
        let store = self.clone();
        locations
            .map(move |location| {
                let store = store.clone();
                async move {
                    let location = location?;
                    let path = store.path_to_filesystem(&location)?;
                    store.files.remove(&path).await.map_err(failed)?;
                    Ok(location)
                }
            })
            .buffered(DELETES)
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.list_after(prefix, None)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.list_after(prefix, Some(offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.list_entries(prefix.unwrap_or(&Path::default())).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let (from, to) = (self.path_to_filesystem(from)?, self.path_to_filesystem(to)?);
        let replace = matches!(options.mode, CopyMode::Overwrite);
        self.files.copy(&from, to, replace).await.map_err(failed)
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let (from, to) = (self.path_to_filesystem(from)?, self.path_to_filesystem(to)?);
        let replace = matches!(options.target_mode, RenameTargetMode::Overwrite);
        self.files.rename(&from, to, replace).await.map_err(failed)
    }
}
