//! The service's file I/O by `nowait` and `nowait-log`.

use std::fmt::Write;
use std::io;
use std::ops::Range;
use std::path::Path;

use bytes::Bytes;
use futures_util::stream::{StreamExt, TryStreamExt};
use nowait::stream::{AtomicWriter, Chunks as ReaderChunks, Reader};
use nowait::{File, Nowait};
use nowait_log::{Log, Options};

use crate::service::{Chunks, Storage};

#[derive(Clone)]
pub(crate) struct WithNowait {
    log: Log,
}

impl WithNowait {
    /// Attaches the runtime, and opens the log in `dir`. Call it on the runtime that serves.
    pub(crate) async fn new(dir: &Path) -> io::Result<WithNowait> {
        Nowait::shared().attach_tokio()?;
        let (log, _recovery) = Log::open(dir.join("log"), &Options::new().create(true)).await?;
        Ok(WithNowait { log })
    }
}

impl Storage for WithNowait {
    type File = File;

    async fn open(&self, path: &Path) -> io::Result<(File, u64)> {
        let file = File::open(path).await?;
        let size = file.size().await?;
        Ok((file, size))
    }

    async fn read(&self, file: File, range: Range<u64>) -> io::Result<Bytes> {
        Ok(file.read_range(range.start, (range.end - range.start) as usize).await?.into())
    }

    async fn stream(&self, file: File, range: Range<u64>) -> io::Result<Chunks> {
        Ok(ReaderChunks(Reader::range(&file, range)).map_err(io::Error::from).boxed())
    }

    async fn replace(&self, path: &Path, mut content: Chunks) -> io::Result<()> {
        let mut new = AtomicWriter::create(path).await?;
        while let Some(chunk) = content.try_next().await? {
            new.writer().put(chunk).await?;
        }
        Ok(new.commit().await?)
    }

    async fn append(&self, record: Bytes) -> io::Result<u64> {
        Ok(self.log.append(&record).await?.await?)
    }

    fn metrics(&self) -> String {
        let (io, log) = (Nowait::shared().stats(), self.log.stats());
        let mut text = String::from("# TYPE nowait_operations_total counter\n");
        let routes = [("inline", io.inline), ("ring", io.ring), ("pool", io.pool), ("failed", io.failed)];
        for (route, operations) in routes {
            _ = writeln!(text, "nowait_operations_total{{route=\"{route}\"}} {operations}");
        }
        for (name, count) in [("queued", io.queued), ("stalls", io.stalls), ("throttled", io.throttled)] {
            _ = writeln!(text, "# TYPE nowait_{name}_total counter\nnowait_{name}_total {count}");
        }
        _ = writeln!(text, "# TYPE log_records_total counter\nlog_records_total {}", log.records);
        text
    }

    async fn close(self) -> io::Result<()> {
        self.log.close().await?;
        // What clients have dropped ends in the background.
        tokio::task::spawn_blocking(|| Nowait::shared().drain()).await.map_err(io::Error::other)
    }
}
