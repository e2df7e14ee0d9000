//! The same file I/O by `tokio::fs`, made by hand as well as it allows.

use std::fs;
use std::io::{self, SeekFrom};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{StreamExt, TryStreamExt};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio_util::io::ReaderStream;

use crate::service::{Chunks, Storage};

/// Bytes of each piece of a body.
const PIECE_BYTES: usize = 256 << 10;
/// Records that one write may contain.
const BATCH_RECORDS: usize = 1024;

#[derive(Clone)]
pub(crate) struct WithTokio {
    log: mpsc::Sender<Append>,
}

/// A record, and the sender of its number.
type Append = (Bytes, oneshot::Sender<u64>);

impl WithTokio {
    /// Opens the log in `dir`, and starts its task.
    pub(crate) async fn new(dir: &Path) -> io::Result<WithTokio> {
        let file = tokio::fs::OpenOptions::new().create(true).append(true).open(dir.join("hand-made.log")).await?;
        let (log, appends) = mpsc::channel(BATCH_RECORDS);
        tokio::spawn(write_log(file, appends));
        Ok(WithTokio { log })
    }
}

/// Writes all records that are waiting, then syncs, then answers; until all senders are gone.
async fn write_log(mut file: File, mut appends: mpsc::Receiver<Append>) {
    let (mut waiting, mut bytes, mut number) = (Vec::new(), Vec::new(), 0);
    while appends.recv_many(&mut waiting, BATCH_RECORDS).await > 0 {
        bytes.clear();
        for (record, _) in &waiting {
            bytes.extend_from_slice(&(record.len() as u32).to_le_bytes());
            bytes.extend_from_slice(record);
        }
        let written = async {
            file.write_all(&bytes).await?;
            file.flush().await?;
            file.sync_data().await
        };
        if let Err(error) = written.await {
            // Nothing is known to be durable any more: without their task all appends fail.
            return eprintln!("the log has failed: {error}");
        }
        for (_, durable) in waiting.drain(..) {
            number += 1;
            _ = durable.send(number);
        }
    }
}

impl Storage for WithTokio {
    /// One that all requests share: a `tokio::fs::File` has one position, and no positioned read.
    type File = Arc<fs::File>;

    async fn open(&self, path: &Path) -> io::Result<(Arc<fs::File>, u64)> {
        let path = path.to_path_buf();
        blocking(move || {
            let file = fs::File::open(path)?;
            let size = file.metadata()?.len();
            Ok((Arc::new(file), size))
        })
        .await
    }

    async fn read(&self, file: Arc<fs::File>, range: Range<u64>) -> io::Result<Bytes> {
        blocking(move || {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            file.read_exact_at(&mut bytes, range.start)?;
            Ok(bytes.into())
        })
        .await
    }

    async fn stream(&self, file: Arc<fs::File>, range: Range<u64>) -> io::Result<Chunks> {
        // The same file with a position for this request, also if the name is another's by now.
        let mut file = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).await?;
        file.seek(SeekFrom::Start(range.start)).await?;
        Ok(ReaderStream::with_capacity(file.take(range.end - range.start), PIECE_BYTES).boxed())
    }

    async fn replace(&self, path: &Path, mut content: Chunks) -> io::Result<()> {
        let dir = path.parent().unwrap_or(Path::new(".")).to_path_buf();
        let place = dir.clone();
        let (file, name) =
            blocking(move || Ok(tempfile::Builder::new().prefix(".").suffix(".tmp").tempfile_in(place)?.into_parts()))
                .await?;
        let mut file = File::from_std(file);
        while let Some(chunk) = content.try_next().await? {
            file.write_all(&chunk).await?;
        }
        file.flush().await?;
        file.sync_all().await?;
        let path = path.to_path_buf();
        blocking(move || {
            name.persist(path)?;
            fs::File::open(dir)?.sync_all()
        })
        .await
    }

    async fn append(&self, record: Bytes) -> io::Result<u64> {
        let (durable, number) = oneshot::channel();
        self.log.send((record, durable)).await.map_err(io::Error::other)?;
        number.await.map_err(io::Error::other)
    }

    fn metrics(&self) -> String {
        let tasks = Handle::current().metrics().num_alive_tasks();
        format!("# TYPE tokio_alive_tasks gauge\ntokio_alive_tasks {tasks}\n")
    }

    async fn close(self) -> io::Result<()> {
        // Every append that was answered is durable.
        Ok(())
    }
}

async fn blocking<T: Send + 'static>(call: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    spawn_blocking(call).await.map_err(io::Error::other)?
}
