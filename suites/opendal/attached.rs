//! An operator of OpenDAL on the library's object store.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use nowait_object_store::Options;
use nowait_object_store::v0_14::NowaitFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, RenameOptions, Result,
};
use object_store_opendal::ObjectStoreBuilder;
use opendal::Operator;

/// Stands for `opendal::tests::init_test_service`. Objects are in a new folder of `TMPDIR`.
pub fn init_test_service() -> opendal::Result<Option<Operator>> {
    let dir = tempfile::tempdir().expect("TMPDIR is a directory").keep();
    let store = NowaitFileSystem::with_prefix(dir, Options::new()).expect("the folder was just made");
    Operator::new(ObjectStoreBuilder::new(Arc::new(WithoutAttributes(store)))).map(Some)
}

/// Drops the attributes of puts. The service notes the size of each object in one, and stores of
/// local files refuse all of them.
#[derive(Debug)]
struct WithoutAttributes(NowaitFileSystem);

impl fmt::Display for WithoutAttributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for WithoutAttributes {
    async fn put_opts(&self, location: &Path, payload: PutPayload, mut options: PutOptions) -> Result<PutResult> {
        options.attributes = Default::default();
        self.0.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        mut options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        options.attributes = Default::default();
        self.0.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.0.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.0.get_ranges(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.0.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(prefix)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.0.rename_opts(from, to, options).await
    }
}
