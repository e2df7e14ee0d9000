//! Multipart uploads.

use async_trait::async_trait;
use futures_util::FutureExt;

use super::super::object_store::{MultipartUpload, PutPayload, PutResult, Result, UploadPart};
use super::super::{e_tag, put_result};
use super::convert::failed;
use crate::files::Upload;

#[derive(Debug)]
pub(super) struct Multipart(pub(super) Upload);

#[async_trait]
impl MultipartUpload for Multipart {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.0.part(data.into_iter().collect()).map(|written| written.map_err(failed)).boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let stat = self.0.complete(true).await.map_err(failed)?;
        Ok(put_result(e_tag(&stat)))
    }

    async fn abort(&mut self) -> Result<()> {
        self.0.abort().await.map_err(failed)
    }
}
