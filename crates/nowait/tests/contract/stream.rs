//! Streams: what a reader gives and what a writer leaves in its file, whatever the pieces, the
//! place, the file system, the engine and who waits; files that change meanwhile; errors, and what
//! is dropped half-way.

use std::io::{BufRead, Read, Seek, SeekFrom, Write};
use std::pin::pin;

use crate::common::mounts::temp_dir;
use crate::common::rng::Rng;
use crate::common::{Watchdog, Way, assert_settled, contents, descriptors_of, eventually, poll_once, put};
use crate::promises::streams::*;
use nowait::sim::{Faults, Sim};
#[cfg(feature = "futures-io")]
use nowait::stream::FuturesIo;
#[cfg(feature = "tokio")]
use nowait::stream::TokioIo;
use nowait::stream::{Cursor, Reader, Writer};
use nowait::{ErrorKind, OpenOptions};

#[test]
fn on_the_root_file_system() {
    streams_in(temp_dir().path());
}

#[test]
fn lines_are_those_of_the_file() {
    each("lines", |nowait, path, direct| {
        let text: String = (0..60_000).map(|i| format!("{i} {}\n", "x".repeat(i % 50))).collect();
        std::fs::write(path, &text).unwrap();
        let reader = Reader::new(&open(nowait, path, direct), 0);
        assert!(reader.lines().map(Result::unwrap).eq(text.lines()));
    });
}

#[test]
fn a_file_that_has_grown_goes_on_where_it_ended() {
    each("growth", |nowait, path, direct| {
        let bytes = contents(2 * MIB, 1);
        let mut rng = Rng::for_test();
        for reading in READINGS {
            std::fs::write(path, b"").unwrap();
            let mut other = std::fs::OpenOptions::new().append(true).open(path).unwrap();
            let mut reader = Reader::new(&open(nowait, path, direct), 0);
            let mut end = 0;
            for more in [0, 1, 4095, 100_000, MIB, 4096] {
                other.write_all(&bytes[end..end + more]).unwrap();
                let read = read_rest(&mut reader, reading, &mut rng);
                assert!(read == bytes[end..end + more], "{reading:?}, direct: {direct}, {more} more from {end}");
                end += more;
            }
        }
    });
}

/// Bytes that are cut while they are read ahead are given or not, but nothing else in their place.
#[test]
fn a_file_that_is_cut_gives_nothing_but_what_was_in_it() {
    each("truncation", |nowait, path, direct| {
        let bytes = contents(6 * MIB, 2);
        let mut rng = Rng::for_test();
        for (round, reading) in READINGS.into_iter().cycle().take(24).enumerate() {
            std::fs::write(path, &bytes).unwrap();
            let mut reader = Reader::new(&open(nowait, path, direct), 0);
            let mut out = Vec::new();
            for _ in 0..1 + round % 3 {
                read_some(&mut reader, reading, &mut rng, &mut out).unwrap();
            }
            let cut = rng.below(bytes.len());
            std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(cut as u64).unwrap();
            while read_some(&mut reader, reading, &mut rng, &mut out).unwrap() {}
            assert!(out.len() >= cut, "{reading:?}, direct: {direct}: {} of {cut} bytes", out.len());
            assert!(out == bytes[..out.len()], "{reading:?}, direct: {direct}, cut to {cut}");
        }
    });
}

/// The kernel reads ahead of a stream up to `read_ahead_kb`, and must not take a range for one. It may
/// where it sees a read end before the next begins, so one of several ranges is enough.
#[cfg(target_os = "linux")]
#[test]
fn a_range_is_read_without_what_follows_it() {
    const LENGTH: usize = 512 << 10;
    let dir = temp_dir();
    let path = dir.path().join("range");
    std::fs::write(&path, contents(16 * MIB, 1)).unwrap();
    if crate::common::cold::is_in_memory(&path) {
        return;
    }
    let file = nowait::File::open(&path).wait().unwrap();
    let pages: Vec<usize> = (1..12)
        .map(|place| {
            crate::common::cold::drop_pages(&path);
            let start = (place * MIB) as u64;
            let mut reader = Reader::range(&file, start..start + LENGTH as u64);
            let mut length = 0;
            while let Some(chunk) = nowait::block_on(async { reader.chunk().await }).unwrap() {
                length += chunk.len();
            }
            assert_eq!(length, LENGTH);
            crate::common::cold::cached_pages(&path)
        })
        .collect();
    assert!(pages.contains(&(LENGTH / 4096)), "pages cached after each range: {pages:?}");
}

#[test]
fn a_reader_that_is_dropped_lets_go_of_its_file() {
    each("a dropped reader", |nowait, path, direct| {
        std::fs::write(path, contents(8 * MIB, 1)).unwrap();
        for way in Way::ALL {
            for chunks in [0, 1, 5] {
                let mut reader = Reader::new(&open(nowait, path, direct), 1);
                for _ in 0..chunks {
                    chunk(&mut reader, way).unwrap().unwrap();
                }
                let _ = poll_once(pin!(reader.chunk()));
            }
            assert!(eventually(|| descriptors_of(path) == 0), "{way:?}, direct: {direct}");
        }
    });
}

/// A reader that has requests in the ring of a thread may go to another, and that thread may sleep.
#[test]
fn a_stream_goes_on_on_another_thread() {
    each("another thread", |nowait, path, direct| {
        let bytes = contents(6 * MIB + 5, 1);
        std::fs::write(path, &bytes).unwrap();
        let mut reader = Reader::new(&open(nowait, path, direct), 0);
        let copy = path.with_extension("copy");
        std::fs::write(&copy, b"").unwrap();
        let mut writer = Writer::new(&open(nowait, &copy, direct), 0);
        nowait::block_on(async {
            let chunk = reader.chunk().await.unwrap().unwrap();
            writer.put(chunk).await.unwrap();
        });
        let on_another = || {
            std::io::copy(&mut reader, &mut writer).unwrap();
            // Inside of a future that blocks its thread, too.
            nowait::block_on(async { writer.flush().unwrap() });
        };
        std::thread::scope(|scope| scope.spawn(on_another).join().unwrap());
        assert!(std::fs::read(&copy).unwrap() == bytes, "direct: {direct}");
    });
}

#[test]
fn a_file_that_may_not_be_read_or_written_says_so_at_every_call() {
    each("permission", |nowait, path, direct| {
        std::fs::write(path, b"abc").unwrap();
        let opened =
            |read| OpenOptions::new().read(read).write(!read).direct(direct).open_in(nowait, path).wait().unwrap();
        let mut reader = Reader::new(&opened(false), 0);
        let mut writer = Writer::new(&opened(true), 0);
        for _ in 0..2 {
            let error = reader.chunk().wait().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
            let error = reader.read(&mut [0; 10]).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{error}");
            let error = writer.write(b"d").and_then(|_| writer.flush()).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{error}");
        }
        assert_eq!(std::fs::read(path).unwrap(), b"abc");
        let file = open(nowait, path, direct);
        let (mut reader, mut writer) = (Reader::new(&file, 0), Writer::new(&file, 0));
        file.close().unwrap();
        assert_eq!(reader.chunk().wait().unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(
            writer.put(buffer(b"d")).wait().and_then(|()| writer.finish().wait()).unwrap_err().kind(),
            ErrorKind::Closed
        );
    });
}

#[test]
fn places_that_no_file_has_are_refused() {
    each("places", |nowait, path, direct| {
        std::fs::write(path, b"abc").unwrap();
        let file = open(nowait, path, direct);
        for place in [i64::MAX as u64 + 1, u64::MAX - 1, u64::MAX] {
            assert_eq!(Reader::new(&file, place).chunk().wait().unwrap_err().kind(), ErrorKind::InvalidRange);
            let mut writer = Writer::new(&file, place);
            assert!(writer.write(b"d").and_then(|_| writer.flush()).is_err());
        }
        assert_eq!(std::fs::read(path).unwrap(), b"abc");
    });
}

#[test]
fn a_read_that_fails_is_tried_again_at_the_same_place() {
    let bytes = contents(3 * MIB + 5, 1);
    let mut rng = Rng::for_test();
    for reading in READINGS {
        let _watchdog = Watchdog::new(format!("failing reads, {reading:?}"), 60);
        let sim = Sim::new(rng.next());
        let (nowait, file) = simulated(&sim, &bytes);
        let mut reader = Reader::new(&file, 3);
        let mut out = Vec::new();
        read_some(&mut reader, reading, &mut rng, &mut out).unwrap();
        sim.set_faults(nothing_works());
        // Bytes that were read before the fault are given.
        let error = loop {
            match read_some(&mut reader, reading, &mut rng, &mut out) {
                Ok(more) => assert!(more, "the file does not end here"),
                Err(error) => break error,
            }
        };
        assert_eq!(reader.position(), 3 + out.len() as u64);
        let inside = nowait::Error::inside(&error).unwrap();
        assert_eq!(
            (inside.offset(), inside.raw_os_error()),
            (Some(reader.position()), Some(crate::common::errno::EIO)),
            "{error}"
        );
        let error = reader.chunk().wait().unwrap_err();
        assert_eq!(
            (error.offset(), error.raw_os_error()),
            (Some(reader.position()), Some(crate::common::errno::EIO)),
            "{error}"
        );
        assert!(error.to_string().contains("/sim/file"), "{error}");
        sim.set_faults(faults(|faults| {
            (faults.io_error, faults.interrupted, faults.short) = (0.1, 0.2, 0.3);
            (faults.not_now, faults.empty_now, faults.short_now) = (0.5, 0.1, 0.3);
        }));
        let mut failures = 0;
        loop {
            match read_some(&mut reader, reading, &mut rng, &mut out) {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => failures += 1,
            }
        }
        assert!(out == bytes[3..], "{reading:?}, {failures} failures");
        drop(reader);
        assert_settled(&nowait);
    }
}

#[test]
fn streams_set_the_length_and_sync_all() {
    let folder = temp_dir();
    for nowait in instances() {
        for direct in [false, true] {
            for way in Way::ALL {
                let _watchdog = Watchdog::new(format!("lengths, direct: {direct}, {way:?}"), 60);
                let path = folder.path().join("file");
                let file = open(&nowait, &path, direct);
                macro_rules! end {
                    ($step:expr) => {
                        match way {
                            Way::Waited => $step.wait(),
                            way => way.run_future($step),
                        }
                    };
                }
                let mut right = contents(3 * MIB + 5, 1);
                let mut writer = Writer::new(&file, 0);
                assert_eq!(writer.file().path(), path);
                writer.write_all(&right).unwrap();
                end!(writer.set_len(2 * MIB as u64 + 7)).unwrap();
                right.truncate(2 * MIB + 7);
                assert!(std::fs::read(&path).unwrap() == right, "shorter");
                // The position stays.
                writer.write_all(b"after a hole").unwrap();
                put(&mut right, 3 * MIB as u64 + 5, b"after a hole");
                end!(writer.sync_all()).unwrap();
                assert!(std::fs::read(&path).unwrap() == right, "with a hole");
                end!(writer.set_len(4 * MIB as u64)).unwrap();
                right.resize(4 * MIB, 0);
                drop(writer);
                assert!(std::fs::read(&path).unwrap() == right, "longer");

                let mut cursor = Cursor::new(&file, 0);
                cursor.read_exact(&mut [0; 10]).unwrap();
                cursor.write_all(b"ten").unwrap();
                end!(cursor.set_len(12)).unwrap();
                right.truncate(12);
                put(&mut right, 10, b"ten");
                right.truncate(12);
                assert_eq!(cursor.position(), 13);
                assert!(cursor.read(&mut [0; 10]).unwrap() == 0);
                cursor.seek(SeekFrom::Start(0)).unwrap();
                let mut read = Vec::new();
                cursor.read_to_end(&mut read).unwrap();
                assert!(read == right);
                end!(cursor.sync_all()).unwrap();
                drop(cursor);
                assert_eq!(Reader::new(&file, 0).file().path(), path);
                assert_settled(&nowait);
                std::fs::remove_file(&path).unwrap();
            }
        }
    }
}

/// What a cursor does to a position: each way of its traits.
#[derive(Clone, Copy, Debug)]
enum Seeking {
    Std,
    #[cfg(feature = "tokio")]
    Tokio,
    #[cfg(feature = "futures-io")]
    Futures,
    Reading,
}

impl Seeking {
    const ALL: &[Seeking] = &[
        Seeking::Std,
        #[cfg(feature = "tokio")]
        Seeking::Tokio,
        #[cfg(feature = "futures-io")]
        Seeking::Futures,
        Seeking::Reading,
    ];

    fn seek(self, cursor: &mut Cursor) -> std::io::Result<u64> {
        match self {
            Seeking::Std => cursor.seek(SeekFrom::Start(0)),
            #[cfg(feature = "tokio")]
            Seeking::Tokio => {
                futures::executor::block_on(tokio::io::AsyncSeekExt::seek(&mut TokioIo(cursor), SeekFrom::Start(0)))
            }
            #[cfg(feature = "futures-io")]
            Seeking::Futures => {
                futures::executor::block_on(futures::io::AsyncSeekExt::seek(&mut FuturesIo(cursor), SeekFrom::Start(0)))
            }
            Seeking::Reading => cursor.read(&mut [0; 10]).map(|n| n as u64),
        }
    }
}

/// Symptom: a cursor reported the failure of a write behind only to the next seek. Later flushes
/// and syncs succeeded, although accepted bytes were lost.
#[test]
fn a_failed_write_of_a_cursor_outlives_a_seek() {
    let data = contents(2 * MIB, 1);
    for seeking in Seeking::ALL {
        let _watchdog = Watchdog::new(format!("failing cursor, {seeking:?}"), 60);
        let sim = Sim::new(1);
        let (nowait, file) = simulated(&sim, b"0123456789");
        let mut cursor = Cursor::new(&file, 100);
        cursor.write_all(&data[..1000]).unwrap();
        sim.set_faults(nothing_works());
        assert!(seeking.seek(&mut cursor).is_err(), "{seeking:?}: the write that it waits for fails");
        sim.set_faults(Faults::default());
        for _ in 0..2 {
            // The file can be read.
            cursor.seek(SeekFrom::Start(3)).unwrap();
            let mut read = [0; 4];
            cursor.read_exact(&mut read).unwrap();
            assert_eq!(&read, b"3456");
            // Accepted bytes are lost: every later write, flush and sync fails.
            assert!(cursor.flush().is_err(), "{seeking:?}");
            let error = cursor.sync_data().wait().unwrap_err();
            assert_eq!((error.offset(), error.raw_os_error()), (Some(100), Some(crate::common::errno::EIO)), "{error}");
            assert!(cursor.write(&data[..10]).is_err(), "{seeking:?}");
            #[cfg(feature = "tokio")]
            {
                assert!(
                    futures::executor::block_on(tokio::io::AsyncWriteExt::flush(&mut TokioIo(&mut cursor))).is_err()
                );
                assert!(
                    futures::executor::block_on(tokio::io::AsyncWriteExt::shutdown(&mut TokioIo(&mut cursor))).is_err()
                );
            }
            #[cfg(feature = "futures-io")]
            {
                assert!(
                    futures::executor::block_on(futures::io::AsyncWriteExt::flush(&mut FuturesIo(&mut cursor)))
                        .is_err()
                );
                assert!(
                    futures::executor::block_on(futures::io::AsyncWriteExt::close(&mut FuturesIo(&mut cursor)))
                        .is_err()
                );
            }
        }
        drop(cursor);
        assert_settled(&nowait);
        assert_eq!(file.size().wait().unwrap(), 10);
    }
}

/// Symptom: a reader less than one request before the largest offset failed with "the range ends
/// beyond", and did not read the bytes up to there.
#[cfg(target_os = "linux")]
#[test]
fn readers_reach_the_largest_offset() {
    const MAX: u64 = i64::MAX as u64;
    // The largest files are those of tmpfs.
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    for nowait in instances() {
        let file = open(&nowait, &folder.path().join("file"), false);
        let bytes = contents(8000, 3);
        if let Err(error) = file.write_all_at(bytes.clone(), MAX - 8000).wait() {
            return eprintln!("skipped: /dev/shm has no files of 2^63 - 1 bytes: {error}");
        }
        for (start, wanted) in [(MAX - 8000, &bytes[..]), (MAX - 1, &bytes[7999..]), (MAX, &[])] {
            let mut read = Vec::new();
            Reader::new(&file, start).read_to_end(&mut read).unwrap();
            assert!(read == *wanted, "blocking, from {start}");
            let mut large = vec![0; MIB];
            let n = Reader::new(&file, start).read(&mut large).unwrap();
            assert!(large[..n] == *wanted, "one large read, from {start}");
            for way in [Way::Awaited, Way::Driven] {
                let mut reader = Reader::range(&file, start..u64::MAX);
                let mut read = Vec::new();
                while let Some(chunk) = way.run_future(reader.chunk()).unwrap() {
                    read.extend_from_slice(&chunk);
                }
                assert!(read == *wanted, "{way:?}, from {start}");
                assert_eq!(reader.position(), MAX);
            }
        }
        let mut reader = Reader::new(&file, 0);
        assert_eq!(reader.seek(SeekFrom::End(-5)).unwrap(), MAX - 5);
        assert_eq!(reader.seek(SeekFrom::Current(5)).unwrap(), MAX);
        for beyond in [SeekFrom::Start(MAX + 1), SeekFrom::Start(u64::MAX), SeekFrom::Current(1), SeekFrom::End(1)] {
            assert_eq!(reader.seek(beyond).unwrap_err().kind(), std::io::ErrorKind::InvalidInput, "{beyond:?}");
            assert_eq!(reader.position(), MAX);
        }
        for start in [MAX + 1, u64::MAX - 5, u64::MAX] {
            for way in Way::ALL {
                let error = chunk(&mut Reader::new(&file, start), way).unwrap_err();
                assert_eq!((error.kind(), error.offset()), (ErrorKind::InvalidRange, Some(start)), "{way:?}");
            }
            assert!(Reader::new(&file, start).read(&mut vec![0; MIB]).is_err());
            for way in Way::ALL {
                let mut writer = Writer::new(&file, start - 1);
                let put = writer.put_slice(b"some");
                if way == Way::Waited { put.wait() } else { way.run_future(put) }.unwrap();
                let error = writer.finish().wait().unwrap_err();
                assert_eq!((error.kind(), error.offset()), (ErrorKind::InvalidRange, Some(start - 1)), "{way:?}");
            }
        }
        file.set_len(0).wait().unwrap();
    }
}

#[cfg(feature = "tokio")]
mod with_tokio {
    use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
    use tokio::runtime::{Builder, Runtime};

    use nowait::stream::TokioIo;

    use super::{MIB, Reader, Rng, Writer, contents, each, open};

    fn runtimes() -> [Runtime; 2] {
        let build = |mut builder: Builder| builder.enable_all().build().unwrap();
        [build(Builder::new_current_thread()), build(Builder::new_multi_thread())]
    }

    #[test]
    fn readers_and_writers_are_tokios() {
        if !crate::common::has_memory(128 << 20) {
            return;
        }
        each("tokio", |nowait, path, direct| {
            let bytes = contents(5 * MIB + 3, 8);
            for runtime in runtimes() {
                std::fs::write(path, b"").unwrap();
                let file = open(nowait, path, direct);
                let given = bytes.clone();
                let task = async move {
                    let mut rng = Rng::for_test();
                    let mut writer = TokioIo(Writer::new(&file, 0));
                    let mut rest = &given[..];
                    while !rest.is_empty() {
                        let n = rest.len().min(1 + rng.below(300_000));
                        writer.write_all(&rest[..n]).await.unwrap();
                        rest = &rest[n..];
                        if rng.below(8) == 0 {
                            writer.flush().await.unwrap();
                            assert_eq!(file.size().await.unwrap(), writer.0.position());
                        }
                    }
                    writer.shutdown().await.unwrap();

                    let mut out = Vec::new();
                    TokioIo(Reader::new(&file, 1)).read_to_end(&mut out).await.unwrap();
                    assert!(out == given[1..]);
                    let mut reader = TokioIo(Reader::new(&file, 0));
                    out.clear();
                    while out.len() < given.len() {
                        let mut piece = vec![0; 1 + rng.below(300_000)];
                        let n = reader.read(&mut piece).await.unwrap();
                        assert!(n > 0);
                        out.extend_from_slice(&piece[..n]);
                    }
                    assert!(out == given);
                    let (mut reader, mut line) = (TokioIo(Reader::new(&file, 0)), Vec::new());
                    for wanted in given.split_inclusive(|byte| *byte == 0).take(100) {
                        line.clear();
                        reader.read_until(0, &mut line).await.unwrap();
                        assert!(line == wanted);
                    }
                };
                runtime.block_on(async { tokio::spawn(task).await.unwrap() });
                assert!(std::fs::read(path).unwrap() == bytes, "direct: {direct}");
            }
        });
    }
}

#[cfg(feature = "futures-io")]
mod with_futures_io {
    use futures::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};

    use nowait::stream::FuturesIo;

    use super::{MIB, Reader, Way, Writer, contents, each, open};

    #[test]
    fn readers_and_writers_are_those_of_futures_io() {
        each("futures-io", |nowait, path, direct| {
            let bytes = contents(5 * MIB + 3, 8);
            for way in [Way::Awaited, Way::Driven] {
                std::fs::write(path, b"").unwrap();
                let file = open(nowait, path, direct);
                way.run_future(async {
                    let mut writer = FuturesIo(Writer::new(&file, 0));
                    for piece in bytes.chunks(123_457) {
                        writer.write_all(piece).await.unwrap();
                    }
                    writer.close().await.unwrap();
                    let mut out = Vec::new();
                    FuturesIo(Reader::new(&file, 5)).read_to_end(&mut out).await.unwrap();
                    assert!(out == bytes[5..]);
                    let (mut reader, mut line) = (FuturesIo(Reader::new(&file, 0)), Vec::new());
                    for wanted in bytes.split_inclusive(|byte| *byte == 0).take(100) {
                        line.clear();
                        reader.read_until(0, &mut line).await.unwrap();
                        assert!(line == wanted);
                    }
                });
                assert!(std::fs::read(path).unwrap() == bytes, "direct: {direct}");
            }
        });
    }
}
