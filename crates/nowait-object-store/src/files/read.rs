//! Gets: many ranges as one gather, small objects as one piece, large ones as a stream that is read
//! ahead.

use std::ops::Range;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, Stream, StreamExt};
use nowait::{Error, ErrorKind, ErrorOp, File, OpenOptions, Result, stream::Chunks, stream::Reader};

use super::{Files, Stat};
use crate::options::Options;

/// Read-ahead of a stream is left as it is by a budget of this or more: it takes no more in any case.
const READ_AHEAD_BYTES_MAX: u64 = 2 << 20;

impl Files {
    async fn open(&self, path: &Path, direct: bool) -> Result<File> {
        OpenOptions::new().read(true).direct(direct).open_in(self.nowait(), path).await
    }

    /// Opens an object to read it, or only its metadata for a `head`.
    pub(crate) async fn open_object(&self, path: &Path, head: bool) -> Result<(File, Stat)> {
        let file = self.open(path, self.reads_direct() && !head).await?;
        let mut stat = Stat::of(&file.metadata().await?);
        if stat.size == 0 && stat.is_regular && !head {
            stat.size = bytes_held(&file).await?;
        }
        Ok((file, stat))
    }

    /// Reads many ranges of an object into one allocation, all or nothing.
    pub(crate) async fn ranges(&self, path: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let file = self.open(path, self.reads_direct()).await?;
        gather(&self.options, &file, ranges, self.options.gap_bytes).await
    }

    #[cfg(feature = "cache")]
    fn reads_direct(&self) -> bool {
        self.options.direct || self.options.cache.is_some()
    }

    #[cfg(not(feature = "cache"))]
    fn reads_direct(&self) -> bool {
        self.options.direct
    }

    /// Returns the bytes of a range, which lies within the size at the open.
    pub(crate) fn contents(&self, file: File, range: Range<u64>) -> BoxStream<'static, Result<Bytes>> {
        let length = range.end - range.start;
        if length == 0 {
            return stream::empty().boxed();
        }
        if length <= self.options.piece_bytes_max {
            let options = self.options.clone();
            let piece = async move { gather(&options, &file, &[range], 0).await.map(|mut pieces| pieces.remove(0)) };
            return stream::once(piece).boxed();
        }
        let mut reader = Reader::range(&file, range.clone());
        if self.options.piece_bytes_max < READ_AHEAD_BYTES_MAX {
            reader = reader.ahead_bytes_max(self.options.piece_bytes_max as usize);
        }
        Pieces { chunks: Chunks(reader), path: Arc::from(file.path()), range, ended: false }.boxed()
    }
}

/// Counts the bytes of a file that reports a size of zero, by reading it.
async fn bytes_held(file: &File) -> Result<u64> {
    let mut reader = Reader::new(file, 0);
    while reader.chunk().await?.is_some() {}
    Ok(reader.position())
}

/// Gathers ranges, through the cache if there is one.
#[cfg_attr(not(feature = "cache"), expect(unused_variables))]
async fn gather(options: &Options, file: &File, ranges: &[Range<u64>], gap_bytes: u64) -> Result<Vec<Bytes>> {
    #[cfg(feature = "cache")]
    if let Some(Ok(cached)) = options.cache.as_ref().map(|cache| cache.open(file, nowait_cache::Access::Revalidate)) {
        // The plain gather reports ranges that do not lie within the file.
        if ranges.iter().all(|range| range.start <= range.end && range.end <= cached.size()) {
            return Ok(cached.gather(ranges).await?.into_iter().map(Bytes::from).collect());
        }
    }
    let extents = ranges.iter().enumerate().map(|(index, range)| {
        let length = range.end.checked_sub(range.start).and_then(|length| usize::try_from(length).ok());
        let length = length.ok_or_else(|| {
            let error = Error::new(ErrorOp::Gather, ErrorKind::InvalidRange).at(file.path()).with_index(index);
            error.with_detail(format!("the range {}..{} ends before it begins", range.start, range.end))
        })?;
        Ok((range.start, length))
    });
    let extents = extents.collect::<Result<Vec<_>>>()?;
    let gathered = file.gather(&extents).gap_bytes(gap_bytes).await?;
    if let Some(error) = gathered.errors().first() {
        return Err(error.clone());
    }
    if let Some(&(index, there)) = gathered.exceptions().short().first() {
        let (offset, length) = extents[index];
        let error = Error::new(ErrorOp::Gather, ErrorKind::UnexpectedEof).at(file.path()).with_index(index);
        return Err(error
            .with_range(offset, length as u64)
            .with_detail(format!("the object contains only {there} bytes of it")));
    }
    gathered.into_bytes()
}

/// Stream of a range, read ahead. It ends with an error if the object became shorter.
struct Pieces {
    chunks: Chunks<Reader>,
    path: Arc<Path>,
    range: Range<u64>,
    ended: bool,
}

impl Stream for Pieces {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let piece = ready!(Pin::new(&mut self.chunks).poll_next(context));
        self.ended = !matches!(piece, Some(Ok(_)));
        let position = self.chunks.0.position();
        if piece.is_none() && position < self.range.end {
            let error = Error::new(ErrorOp::Read, ErrorKind::UnexpectedEof).at(&self.path);
            let error = error.with_range(position, self.range.end - position);
            return Poll::Ready(Some(Err(error.with_detail("the object became shorter after it was opened"))));
        }
        Poll::Ready(piece)
    }
}
