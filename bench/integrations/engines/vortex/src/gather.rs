//! Vortex's reader of positions, over nowait's gather.

use std::sync::Arc;

use futures::channel::mpsc;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt};
use nowait::File;
use vortex::array::buffer::BufferHandle;
use vortex::buffer::{Alignment, ByteBuffer};
use vortex::error::{VortexError, VortexResult, vortex_err};
use vortex::io::{ReadAtRequest, ReadAtStream, VortexReadAt};

/// A file whose ranges are read as one gather for each batch of Vortex.
pub(crate) struct GatherReadAt(pub(crate) File);

/// Copies a range to where Vortex wants it: ranges of a gather lie one after the other, and Vortex
/// asks for aligned memory.
fn aligned(bytes: &[u8], request: &ReadAtRequest) -> VortexResult<BufferHandle> {
    if bytes.len() < request.length {
        return Err(vortex_err!("{} bytes are there of {request:?}", bytes.len()));
    }
    Ok(BufferHandle::new_host(ByteBuffer::copy_from_aligned(bytes, request.alignment)))
}

fn failed(error: &nowait::Error) -> VortexError {
    VortexError::from(std::io::Error::from(error.clone()))
}

impl VortexReadAt for GatherReadAt {
    /// Ranges that Vortex gives to one gather.
    fn concurrency(&self) -> usize {
        128
    }

    fn size(&self) -> BoxFuture<'static, VortexResult<u64>> {
        let file = self.0.clone();
        Box::pin(async move { Ok(file.metadata().await.map_err(|error| failed(&error))?.len()) })
    }

    fn read_at(
        &self,
        offset: u64,
        length: usize,
        alignment: Alignment,
    ) -> BoxFuture<'static, VortexResult<BufferHandle>> {
        let mut read = self.read_ranges(Arc::new([ReadAtRequest::new(offset, length, alignment)]));
        Box::pin(async move {
            let first = read.next().await;
            first.ok_or_else(|| vortex_err!("no answer to a read at {offset}"))?.1
        })
    }

    /// Yields each range as it completes, as Vortex asks.
    fn read_ranges(&self, requests: Arc<[ReadAtRequest]>) -> ReadAtStream {
        let file = self.0.clone();
        let (send, completed) = mpsc::unbounded();
        let gather = async move {
            let extents: Vec<_> = requests.iter().map(|request| (request.offset, request.length)).collect();
            let each = file.gather(&extents).each(|index, bytes| {
                let request = requests[index];
                let result = bytes.map_err(failed).and_then(|bytes| aligned(bytes, &request));
                // Nobody listens any more when the stream was dropped, and the gather with it.
                let _ = send.unbounded_send((request, result));
            });
            // Errors of single ranges went to them. This one is of the call, before any range.
            let error = each.await.err();
            let unread = error.iter().flat_map(|error| requests.iter().map(|request| (*request, Err(failed(error)))));
            stream::iter(unread.collect::<Vec<_>>())
        };
        stream::select(completed, stream::once(gather).flatten()).boxed()
    }
}
