//! Streams with the traits of tokio, futures-io and futures-core. Each family of traits has its own
//! type. So methods of two families never collide on one value, whichever features and traits a
//! program uses.

#[cfg(any(feature = "tokio", feature = "futures-io", feature = "stream"))]
pub(super) use self::polled::Reads;
#[cfg(any(feature = "tokio", feature = "futures-io"))]
pub(super) use self::polled::{Seeks, Writes};

/// Gives tokio's traits to a stream, owned or borrowed (`TokioIo(&mut reader)`). A [`Reader`] has
/// `AsyncRead`, `AsyncBufRead` and `AsyncSeek`; a [`Writer`] has `AsyncWrite`; a [`Cursor`] has all
/// of them. The field is the stream. Flush and shutdown act as [`Writer::finish`].
///
/// ```
/// use nowait::stream::{Reader, TokioIo, Writer};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("table.dat");
/// # let file = nowait::OpenOptions::new().read(true).write(true).create(true).open(&path).wait()?;
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let mut writer = TokioIo(Writer::new(&file, 0));
/// writer.write_all(b"first\nsecond\n").await?;
/// writer.flush().await?;
/// writer.0.sync_data().await?;
///
/// let mut reader = Reader::new(&file, 6);
/// let mut rest = String::new();
/// TokioIo(&mut reader).read_to_string(&mut rest).await?;
/// assert_eq!((rest.as_str(), reader.position()), ("second\n", 13));
/// # Ok(())
/// # })
/// # }
/// ```
///
/// [`Reader`]: super::Reader
/// [`Writer`]: super::Writer
/// [`Writer::finish`]: super::Writer::finish
/// [`Cursor`]: super::Cursor
#[cfg(feature = "tokio")]
#[derive(Debug)]
pub struct TokioIo<S>(pub S);

/// Gives the traits of futures-io to a stream, owned or borrowed (`FuturesIo(&mut reader)`). A
/// [`Reader`] has `AsyncRead`, `AsyncBufRead` and `AsyncSeek`; a [`Writer`] has `AsyncWrite`; a
/// [`Cursor`] has all of them. The field is the stream. Flush and close act as [`Writer::finish`].
///
/// ```
/// use futures::io::AsyncReadExt;
/// use nowait::stream::{FuturesIo, Reader};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("table.dat");
/// # std::fs::write(&path, "first\nsecond\n")?;
/// # let file = nowait::File::open(&path).wait()?;
/// # futures::executor::block_on(async {
/// let mut text = String::new();
/// FuturesIo(Reader::new(&file, 6)).read_to_string(&mut text).await?;
/// assert_eq!(text, "second\n");
/// # Ok(())
/// # })
/// # }
/// ```
///
/// [`Reader`]: super::Reader
/// [`Writer`]: super::Writer
/// [`Writer::finish`]: super::Writer::finish
/// [`Cursor`]: super::Cursor
#[cfg(feature = "futures-io")]
#[derive(Debug)]
pub struct FuturesIo<S>(pub S);

/// Makes a `futures_core::Stream` of a [`Reader`] or [`Cursor`], owned or borrowed, for example for
/// the body of an HTTP response. Each item is a `bytes::Bytes` with the data of one request
/// ([`Reader::chunk`]), without a copy. The stream ends at the end of the file or range. After an
/// error, the next item retries at the same offset.
///
/// ```
/// use futures::TryStreamExt;
/// use nowait::stream::{Chunks, Reader};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("table.dat");
/// # std::fs::write(&path, [7; 10_000])?;
/// # let file = nowait::File::open(&path).wait()?;
/// let body = Chunks(Reader::range(&file, 1000..9000));
/// let pieces: Vec<bytes::Bytes> = futures::executor::block_on(body.try_collect())?;
/// assert_eq!(pieces.concat(), [7; 8000]);
/// # Ok(())
/// # }
/// ```
///
/// [`Reader`]: super::Reader
/// [`Reader::chunk`]: super::Reader::chunk
/// [`Cursor`]: super::Cursor
#[cfg(feature = "stream")]
#[derive(Debug)]
pub struct Chunks<S>(pub S);

/// Streams as tasks poll them.
#[cfg(any(feature = "tokio", feature = "futures-io", feature = "stream"))]
mod polled {
    #[cfg(any(feature = "tokio", feature = "futures-io"))]
    use std::io::SeekFrom;
    use std::task::{Context, Poll};

    use crate::buf::Buf;
    use crate::error::Result;

    pub trait Reads {
        /// Returns the bytes at the position; none at the end.
        fn poll_bytes(&mut self, context: &mut Context<'_>) -> Poll<Result<&[u8]>>;
        fn advance(&mut self, bytes: usize);
        /// Takes these bytes; `None` at the end.
        fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Buf>>>;
    }

    #[cfg(any(feature = "tokio", feature = "futures-io"))]
    pub trait Seeks {
        /// Begins a seek, in place of one that has not ended.
        fn start_seek(&mut self, to: SeekFrom) -> Result<()>;
        /// Returns the position, once the seek has ended.
        fn poll_sought(&mut self, context: &mut Context<'_>) -> Poll<Result<u64>>;
        /// Returns true if this very seek waits for the size.
        fn is_seeking(&self, to: SeekFrom) -> bool;
    }

    #[cfg(any(feature = "tokio", feature = "futures-io"))]
    pub trait Writes {
        /// Accepts as many bytes as there is room for.
        fn poll_accept(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>>;
        fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<Result<()>>;
    }

    impl<S: Reads> Reads for &mut S {
        fn poll_bytes(&mut self, context: &mut Context<'_>) -> Poll<Result<&[u8]>> {
            (**self).poll_bytes(context)
        }

        fn advance(&mut self, bytes: usize) {
            (**self).advance(bytes);
        }

        fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Buf>>> {
            (**self).poll_chunk(context)
        }
    }

    #[cfg(any(feature = "tokio", feature = "futures-io"))]
    impl<S: Seeks> Seeks for &mut S {
        fn start_seek(&mut self, to: SeekFrom) -> Result<()> {
            (**self).start_seek(to)
        }

        fn poll_sought(&mut self, context: &mut Context<'_>) -> Poll<Result<u64>> {
            (**self).poll_sought(context)
        }

        fn is_seeking(&self, to: SeekFrom) -> bool {
            (**self).is_seeking(to)
        }
    }

    #[cfg(any(feature = "tokio", feature = "futures-io"))]
    impl<S: Writes> Writes for &mut S {
        fn poll_accept(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
            (**self).poll_accept(context, bytes)
        }

        fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
            (**self).poll_end(context)
        }
    }
}

#[cfg(feature = "tokio")]
mod tokio_io {
    use std::io::{Error, Result, SeekFrom};
    use std::pin::Pin;
    use std::task::{Context, Poll, ready};

    use tokio::io::{AsyncBufRead, AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};

    use super::{Reads, Seeks, TokioIo, Writes};
    use crate::turn;

    impl<S: Reads + Unpin> AsyncRead for TokioIo<S> {
        fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<Result<()>> {
            let bytes = ready!(self.0.poll_bytes(context))?;
            let n = bytes.len().min(out.remaining());
            out.put_slice(&bytes[..n]);
            turn::copied(n);
            self.0.advance(n);
            Poll::Ready(Ok(()))
        }
    }

    impl<S: Reads + Unpin> AsyncBufRead for TokioIo<S> {
        fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<&[u8]>> {
            self.get_mut().0.poll_bytes(context).map_err(Error::from)
        }

        fn consume(mut self: Pin<&mut Self>, bytes: usize) {
            self.0.advance(bytes);
        }
    }

    impl<S: Seeks + Unpin> AsyncSeek for TokioIo<S> {
        fn start_seek(mut self: Pin<&mut Self>, to: SeekFrom) -> Result<()> {
            Ok(self.0.start_seek(to)?)
        }

        fn poll_complete(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<u64>> {
            self.0.poll_sought(context).map_err(Error::from)
        }
    }

    impl<S: Writes + Unpin> AsyncWrite for TokioIo<S> {
        fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
            self.0.poll_accept(context, bytes).map_err(Error::from)
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
            self.0.poll_end(context).map_err(Error::from)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
            self.0.poll_end(context).map_err(Error::from)
        }
    }
}

#[cfg(feature = "futures-io")]
mod futures_traits {
    use std::io::{Error, Result, SeekFrom};
    use std::pin::Pin;
    use std::task::{Context, Poll, ready};

    use futures_io::{AsyncBufRead, AsyncRead, AsyncSeek, AsyncWrite};

    use super::{FuturesIo, Reads, Seeks, Writes};
    use crate::turn;

    impl<S: Reads + Unpin> AsyncRead for FuturesIo<S> {
        fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut [u8]) -> Poll<Result<usize>> {
            let bytes = ready!(self.0.poll_bytes(context))?;
            let n = bytes.len().min(out.len());
            out[..n].copy_from_slice(&bytes[..n]);
            turn::copied(n);
            self.0.advance(n);
            Poll::Ready(Ok(n))
        }
    }

    impl<S: Reads + Unpin> AsyncBufRead for FuturesIo<S> {
        fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<&[u8]>> {
            self.get_mut().0.poll_bytes(context).map_err(Error::from)
        }

        fn consume(mut self: Pin<&mut Self>, bytes: usize) {
            self.0.advance(bytes);
        }
    }

    impl<S: Seeks + Unpin> AsyncSeek for FuturesIo<S> {
        fn poll_seek(mut self: Pin<&mut Self>, context: &mut Context<'_>, to: SeekFrom) -> Poll<Result<u64>> {
            // A seek that waits for the size is polled again: it is the same seek, and the size is
            // queried once.
            if !self.0.is_seeking(to) {
                self.0.start_seek(to)?;
            }
            self.0.poll_sought(context).map_err(Error::from)
        }
    }

    impl<S: Writes + Unpin> AsyncWrite for FuturesIo<S> {
        fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
            self.0.poll_accept(context, bytes).map_err(Error::from)
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
            self.0.poll_end(context).map_err(Error::from)
        }

        fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
            self.0.poll_end(context).map_err(Error::from)
        }
    }
}

#[cfg(feature = "stream")]
mod futures_stream {
    use std::pin::Pin;
    use std::task::{Context, Poll, ready};

    use bytes::Bytes;
    use futures_core::Stream;

    use super::{Chunks, Reads};
    use crate::error::Result;

    impl<S: Reads + Unpin> Stream for Chunks<S> {
        type Item = Result<Bytes>;

        fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            let chunk = ready!(self.0.poll_chunk(context))?;
            Poll::Ready(chunk.map(|chunk| Ok(chunk.into())))
        }
    }
}
