//! Typical calls of streams with the traits of several libraries in scope: each compiles, and calls
//! the method that its text suggests.
use std::io::SeekFrom;

use nowait::stream::{Chunks, Cursor, FuturesIo, Reader, TokioIo, Writer};
use nowait::{File, OpenOptions};

const TEXT: &str = "first\nsecond\nthird\n";

fn file() -> (tempfile::TempDir, File) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, TEXT).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).wait().unwrap();
    (folder, file)
}

/// Blocking calls of threads, with the traits of both async libraries and of streams in scope, by
/// name and as preludes.
mod threads {
    use std::io::{BufRead, Read, Seek, Write};

    #[allow(unused_imports, reason = "must not be chosen")]
    use futures::prelude::*;
    #[allow(unused_imports, reason = "must not be chosen")]
    use futures::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _, StreamExt as _};
    #[allow(unused_imports, reason = "must not be chosen")]
    use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _};

    use super::*;

    #[test]
    fn a_reader_reads() {
        let (_folder, file) = file();
        let mut reader = Reader::new(&file, 0);
        let (mut bytes, mut text) = ([0; 6], String::new());
        assert_eq!(reader.read(&mut bytes[..2]).unwrap(), 2);
        reader.read_exact(&mut bytes[2..]).unwrap();
        assert_eq!(&bytes, b"first\n");
        assert_eq!(reader.read_line(&mut text).unwrap(), 7);
        assert_eq!(reader.by_ref().take(3).bytes().count(), 3);
        assert_eq!(reader.stream_position().unwrap(), 16);
        assert_eq!(reader.seek(SeekFrom::End(-6)).unwrap(), 13);
        reader.rewind().unwrap();
        assert_eq!(reader.fill_buf().unwrap().first(), Some(&b'f'));
        reader.consume(6);
        assert_eq!(reader.by_ref().lines().next().unwrap().unwrap(), "second");
        assert_eq!(reader.chain(&b"end"[..]).read_to_string(&mut text).unwrap(), 9);
        assert_eq!(text, "second\nthird\nend");
    }

    #[test]
    fn a_writer_writes() {
        let (_folder, file) = file();
        let mut writer = Writer::new(&file, 0);
        assert_eq!(writer.write(b"F").unwrap(), 1);
        writer.write_all(b"IRST").unwrap();
        writeln!(writer).unwrap();
        writer.flush().unwrap();
        let mut cursor = Cursor::new(&file, 0);
        let mut text = String::new();
        cursor.read_to_string(&mut text).unwrap();
        assert_eq!(text, TEXT.replace("first", "FIRST"));
        cursor.rewind().unwrap();
        cursor.write_all(b"f").unwrap();
        cursor.flush().unwrap();
        assert_eq!(cursor.seek(SeekFrom::Current(-1)).unwrap(), 0);
        text.clear();
        cursor.read_line(&mut text).unwrap();
        assert_eq!(text, "fIRST\n");
    }
}

/// Tasks on tokio that also have the traits of std and of futures-io in scope.
mod tasks_of_tokio {
    #[allow(unused_imports, reason = "must not be chosen")]
    use std::io::{BufRead as _, Read as _, Seek as _, Write as _};

    #[allow(unused_imports, reason = "must not be chosen")]
    use futures::prelude::*;
    use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn views_read_and_write() {
        let (_folder, file) = file();
        let mut reader = Reader::new(&file, 0);
        let mut view = TokioIo(&mut reader);
        let (mut bytes, mut text) = ([0; 6], String::new());
        assert_eq!(view.read(&mut bytes[..2]).await.unwrap(), 2);
        view.read_exact(&mut bytes[2..]).await.unwrap();
        assert_eq!(&bytes, b"first\n");
        assert_eq!(view.read_line(&mut text).await.unwrap(), 7);
        assert_eq!(view.seek(SeekFrom::End(-6)).await.unwrap(), 13);
        assert_eq!((&mut view).take(2).read_to_string(&mut text).await.unwrap(), 2);
        assert_eq!(text, "second\nth");
        assert_eq!(reader.position(), 15);

        let mut writer = TokioIo(Writer::new(&file, 0));
        assert_eq!(writer.write(b"F").await.unwrap(), 1);
        writer.write_all(b"IRST").await.unwrap();
        writer.flush().await.unwrap();
        writer.0.sync_data().await.unwrap();
        writer.shutdown().await.unwrap();

        let mut cursor = TokioIo(Cursor::new(&file, 0));
        let mut lines = (&mut cursor).lines();
        assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("FIRST"));
        cursor.rewind().await.unwrap();
        cursor.write_all(b"f").await.unwrap();
        cursor.flush().await.unwrap();
        let mut out = Vec::new();
        tokio::io::copy(&mut TokioIo(Reader::new(&file, 0)), &mut out).await.unwrap();
        assert_eq!(out, TEXT.replace("first", "fIRST").as_bytes());
    }
}

/// Tasks with the traits of futures-io, beside those of std and tokio.
mod tasks_of_futures_io {
    #[allow(unused_imports, reason = "must not be chosen")]
    use std::io::{BufRead as _, Read as _, Seek as _, Write as _};

    use futures::{AsyncBufReadExt, AsyncReadExt, AsyncSeekExt, AsyncWriteExt, TryStreamExt};
    #[allow(unused_imports, reason = "must not be chosen")]
    use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _};

    use super::*;

    #[test]
    fn views_read_and_write() {
        let (_folder, file) = file();
        nowait::block_on(async {
            let mut reader = Reader::new(&file, 0);
            let mut view = FuturesIo(&mut reader);
            let (mut bytes, mut text) = ([0; 6], String::new());
            assert_eq!(view.read(&mut bytes[..2]).await.unwrap(), 2);
            view.read_exact(&mut bytes[2..]).await.unwrap();
            assert_eq!(&bytes, b"first\n");
            assert_eq!(view.read_line(&mut text).await.unwrap(), 7);
            assert_eq!(view.seek(SeekFrom::End(-6)).await.unwrap(), 13);
            assert_eq!((&mut view).take(2).read_to_string(&mut text).await.unwrap(), 2);
            assert_eq!((text.as_str(), reader.position()), ("second\nth", 15));

            let mut cursor = FuturesIo(Cursor::new(&file, 0));
            assert_eq!((&mut cursor).lines().try_next().await.unwrap().as_deref(), Some("first"));
            cursor.seek(SeekFrom::Start(0)).await.unwrap();
            cursor.write_all(b"F").await.unwrap();
            cursor.flush().await.unwrap();
            cursor.close().await.unwrap();
            let mut writer = FuturesIo(Writer::new(&file, 1));
            assert_eq!(writer.write(b"IRST").await.unwrap(), 4);
            writer.flush().await.unwrap();
            writer.close().await.unwrap();

            let mut reader = Reader::new(&file, 6);
            let all: Vec<bytes::Bytes> = Chunks(&mut reader).try_collect().await.unwrap();
            assert_eq!(all.concat(), TEXT.as_bytes()[6..]);
            assert!(reader.chunk().await.unwrap().is_none());
            assert_eq!(&file.read_range(0, 6).await.unwrap()[..], b"FIRST\n");
        });
    }
}
