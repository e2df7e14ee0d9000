//! Objects built on a stream's reader and writer: ranges, a file with one position, a file that is
//! replaced as a whole, bodies of responses. The oracle is a `std::io::Cursor` over the same bytes.

use std::io::{Cursor as Model, Read, Seek, SeekFrom, Write};
use std::path::Path;

use crate::common::mounts::temp_dir;
use crate::common::rng::Rng;
use crate::common::{Watchdog, Way, assert_settled, contents, eventually, is_lacking_in_wine};
use nowait::sim::{Faults, Sim};
use nowait::stream::{AtomicWriter, Cursor, Reader, Writer};
use nowait::{Engine, ErrorKind, ErrorOp, File, Nowait, OpenOptions};

const LEN: usize = 600_000;

/// Calls `test` with each instance, buffered and direct, and a path for a file.
fn each(name: &str, test: impl Fn(&Nowait, &Path, bool)) {
    let folder = temp_dir();
    for engine in [Engine::Auto, Engine::Pool, Engine::Aio] {
        let Ok(nowait) = Nowait::builder().engine(engine).build() else { continue };
        for direct in [false, true] {
            let _watchdog = Watchdog::new(format!("{name}, direct: {direct}"), 60);
            test(&nowait, &folder.path().join("file"), direct);
        }
        nowait.drain();
        assert_settled(&nowait);
    }
}

fn open(nowait: &Nowait, path: &Path, direct: bool) -> File {
    OpenOptions::new().read(true).write(true).create(true).direct(direct).open_in(nowait, path).wait().unwrap()
}

fn place(rng: &mut Rng) -> SeekFrom {
    let (far, near) = (rng.below(LEN + 5000) as i64, rng.below(20_000) as i64 - 10_000);
    match rng.below(3) {
        0 => SeekFrom::Start(far as u64),
        1 => SeekFrom::End(5000 - far),
        _ => SeekFrom::Current(near),
    }
}

#[test]
fn a_range_ends_where_it_is_to_end() {
    each("ranges", |nowait, path, direct| {
        let bytes = contents(LEN, 5);
        std::fs::write(path, &bytes).unwrap();
        let file = open(nowait, path, direct);
        for (start, end) in
            [(0, LEN), (1, 4097), (4096, 8192), (777, 300_001), (500, 500), (LEN - 5, LEN + 900), (9, 3)]
        {
            let wanted = bytes.get(start..end.min(LEN)).unwrap_or_default();
            let reader = || Reader::range(&file, start as u64..end as u64);
            let mut read = Vec::new();
            assert_eq!(reader().read_to_end(&mut read).unwrap(), wanted.len(), "{start}..{end}");
            assert!(read == wanted, "{start}..{end}");
            let mut large = vec![0; LEN];
            let mut whole = reader();
            let n = whole.read(&mut large).unwrap();
            assert!(large[..n] == wanted[..n] && large[n..].iter().all(|byte| *byte == 0), "{start}..{end}");
            for way in [Way::Awaited, Way::Driven] {
                let mut chunks = Vec::new();
                let mut reader = reader();
                way.run_future(async {
                    while let Some(chunk) = reader.chunk().await.unwrap() {
                        chunks.extend_from_slice(&chunk);
                    }
                });
                assert!(chunks == wanted, "{start}..{end}, {way:?}");
                assert_eq!(reader.position(), (start + wanted.len()) as u64);
            }
            if end >= start {
                let mut reader = reader();
                let last = end.min(LEN) as u64;
                assert_eq!(reader.seek(SeekFrom::End(0)).unwrap(), last);
            }
        }
    });
}

/// Reads, writes and seeks at random, blocking.
#[test]
fn a_cursor_is_stds_file() {
    each("cursor", |nowait, path, direct| {
        let mut rng = Rng::for_test();
        std::fs::write(path, contents(LEN, 1)).unwrap();
        let file = open(nowait, path, direct);
        let mut model = Model::new(contents(LEN, 1));
        let mut cursor = Cursor::new(&file, 0);
        for round in 0..150 {
            let n = rng.below(30_000);
            match rng.below(4) {
                0 => {
                    let to = place(&mut rng);
                    let (got, wanted) = (cursor.seek(to), model.seek(to));
                    assert_eq!(got.is_ok(), wanted.is_ok(), "round {round}: {to:?}");
                }
                1 => {
                    let data = contents(n, round);
                    cursor.write_all(&data).unwrap();
                    model.write_all(&data).unwrap();
                }
                2 => {
                    let (mut got, mut wanted) = (Vec::new(), Vec::new());
                    Read::by_ref(&mut cursor).take(n as u64).read_to_end(&mut got).unwrap();
                    Read::by_ref(&mut model).take(n as u64).read_to_end(&mut wanted).unwrap();
                    assert!(got == wanted, "round {round}: {n} bytes before {}", model.position());
                }
                _ => {
                    cursor.flush().unwrap();
                    assert!(std::fs::read(path).unwrap() == *model.get_ref(), "round {round}: after a flush");
                }
            }
            assert_eq!(cursor.position(), model.position(), "round {round}");
        }
        cursor.sync_data().wait().unwrap();
        assert!(std::fs::read(path).unwrap() == *model.get_ref());
    });
}

#[test]
fn an_error_of_a_cursor_is_told_once_and_reading_goes_on() {
    let folder = temp_dir();
    let path = folder.path().join("file");
    std::fs::write(&path, "as it was").unwrap();
    let nowait = Nowait::builder().build().unwrap();
    let file = OpenOptions::new().read(true).open_in(&nowait, &path).wait().unwrap();
    let mut cursor = Cursor::new(&file, 0);
    cursor.write_all(b"not to be written").unwrap();
    assert_eq!(cursor.seek(SeekFrom::Start(0)).unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    let mut text = String::new();
    cursor.seek(SeekFrom::Start(0)).unwrap();
    cursor.read_to_string(&mut text).unwrap();
    assert_eq!(text, "as it was");
}

/// Symptom: after a `sync_data` that was dropped under way the next one told of the old sync, and
/// wrote nothing.
#[test]
fn a_sync_of_a_cursor_covers_what_was_written_after_one_that_was_dropped() {
    each("cursor's sync", |nowait, path, direct| {
        let file = open(nowait, path, direct);
        file.set_len(0).wait().unwrap();
        let mut cursor = Cursor::new(&file, 0);
        cursor.write_all(b"first").unwrap();
        for _ in 0..3 {
            let _ = crate::common::poll_once(std::pin::pin!(cursor.sync_data()));
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        cursor.write_all(b"second").unwrap();
        cursor.sync_data().wait().unwrap();
        assert_eq!(std::fs::read(path).unwrap(), b"firstsecond");
    });
}

#[test]
fn debug_shows_the_path_and_the_place() {
    let folder = temp_dir();
    let path = folder.path().join("file");
    let file = open(Nowait::shared(), &path, false);
    let shows = |text: String, parts: &[&str]| {
        let path = format!("{path:?}");
        for part in [path.trim_matches('"')].iter().chain(parts) {
            assert!(text.contains(part), "{part:?} is missing in {text:?}");
        }
    };
    shows(
        format!("{:?}", file.read_range(4096, 512)),
        &["Operation", "offset: 4096", "length: 512", "has_begun: false"],
    );
    shows(format!("{:?}", file.write_all_at(vec![7; 10], 20)), &["Write", "offset: 20", "length: 10"]);
    let write = file.write_all_at(vec![7; 10], 20).start();
    shows(format!("{write:?}"), &["Started"]);
    write.wait().unwrap();
    let mut writer = Writer::new(&file, 30);
    shows(format!("{:?}", writer.put_slice(b"four")), &["PutSlice", "position: 30", "bytes_left: 4"]);
    writer.write_all(b"four").unwrap();
    shows(format!("{writer:?}"), &["Writer", "position: 34"]);
    shows(format!("{:?}", writer.finish()), &["Step", "Writer", "position: 34"]);
    writer.finish().wait().unwrap();
    shows(format!("{:?}", Reader::new(&file, 5)), &["Reader", "position: 5"]);
    shows(format!("{:?}", Cursor::new(&file, 6)), &["Cursor", "position: 6"]);
}

#[test]
fn a_writer_has_one_error_type() {
    each("put_slice", |nowait, path, direct| {
        let bytes = contents(LEN, 2);
        for way in Way::ALL {
            let file = open(nowait, path, direct);
            file.set_len(0).wait().unwrap();
            let write = || -> nowait::Result<()> {
                let mut writer = Writer::new(&file, 0);
                for piece in bytes.chunks(77_777) {
                    match way {
                        Way::Waited => writer.put_slice(piece).wait()?,
                        way => way.run_future(writer.put_slice(piece))?,
                    }
                }
                writer.put_slice(&[]).wait()?;
                writer.finish().wait()
            };
            write().unwrap();
            assert!(std::fs::read(path).unwrap() == bytes, "{way:?}");
        }
    });
}

#[test]
fn a_file_is_replaced_when_it_is_committed_and_not_before() {
    let folder = temp_dir();
    let path = folder.path().join("file");
    let names = || std::fs::read_dir(folder.path()).unwrap().count();
    for engine in [Engine::Auto, Engine::Pool] {
        let nowait = Nowait::builder().engine(engine).build().unwrap();
        for way in [Way::Awaited, Way::Waited, Way::Driven] {
            std::fs::write(&path, "old").unwrap();
            let new = contents(LEN, 3);
            let mut writer = AtomicWriter::create_in(&nowait, &path).wait().unwrap();
            writer.writer().write_all(&new).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"old");
            assert_eq!(names(), 2);
            match way {
                Way::Waited => writer.commit().wait().unwrap(),
                way => way.run_future(writer.commit()).unwrap(),
            }
            assert!(std::fs::read(&path).unwrap() == new);
            assert_eq!(names(), 1);

            // Given up, before and while it is committed.
            let mut writer = AtomicWriter::create_in(&nowait, &path).wait().unwrap();
            writer.writer().write_all(b"given up").unwrap();
            drop(writer);
            let mut writer = AtomicWriter::create_in(&nowait, &path).wait().unwrap();
            writer.writer().write_all(b"given up").unwrap();
            let mut commit = std::pin::pin!(writer.commit());
            assert!(crate::common::poll_once(commit.as_mut()).is_pending());
            // (Pinned here, so dropped at the end of the round.)
        }
        assert!(eventually(|| names() == 1));
        nowait.drain();
    }
    let error = AtomicWriter::create(folder.path().join("missing/file")).wait().err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(AtomicWriter::create("/").wait().err().unwrap().kind(), ErrorKind::InvalidInput);
}

/// Symptom: errors named the temporary file, which the caller does not know. Cause: each step
/// reported its own path. Guarantee: an error of any step names the path that is replaced, and says
/// what to do.
#[test]
fn a_failed_replacement_names_the_path_that_it_was_given() {
    let folder = temp_dir();
    std::fs::write(folder.path().join("file"), "").unwrap();
    std::fs::create_dir(folder.path().join("folder")).unwrap();
    let long = "x".repeat(256);
    for engine in [Engine::Auto, Engine::Pool] {
        let nowait = Nowait::builder().engine(engine).build().unwrap();
        for (name, operation, kind, parts) in [
            ("missing/file", ErrorOp::Open, ErrorKind::NotFound, ["missing does not exist", "create the directory"]),
            #[cfg(unix)]
            ("file/file", ErrorOp::Open, ErrorKind::NotADirectory, ["temporary file in", "check the path"]),
            #[cfg(windows)]
            ("file/file", ErrorOp::Open, ErrorKind::NotFound, ["its directory", "takes no new files"]),
            ("folder", ErrorOp::Rename, ErrorKind::IsADirectory, ["cannot take this name", "name a file"]),
            (&long, ErrorOp::Rename, ErrorKind::InvalidFilename, ["cannot take this name", "shorter"]),
        ] {
            let path = folder.path().join(name);
            let streamed = || AtomicWriter::create_in(&nowait, &path).wait()?.commit().wait();
            for error in [nowait.fs().write_atomic(&path, "new").wait().unwrap_err(), streamed().unwrap_err()] {
                assert_replaces(&error, &path);
                // Wine 8.0 reports that the file does not exist.
                if error.kind() == ErrorKind::NotFound && name == long && is_lacking_in_wine("the error of long names")
                {
                    continue;
                }
                assert_eq!((error.operation(), error.kind()), (operation, kind), "{error}");
                assert!(parts.iter().all(|part| error.to_string().contains(part)), "{error}");
            }
        }
        assert!(eventually(|| std::fs::read_dir(folder.path()).unwrap().count() == 2));
    }
}

fn assert_replaces(error: &nowait::Error, path: &Path) {
    assert_eq!(error.path(), Some(path), "{error}");
    assert!(!error.to_string().contains(".tmp"), "{error}");
}

/// As above, for each step that a disk fails.
#[test]
fn a_replacement_that_the_disk_fails_names_its_path() {
    let path = Path::new("file");
    // Before the named step, or once the file has its new contents.
    let step = |renamed: bool, set: fn(&mut Faults), operation, part: &str| {
        let sim = Sim::manual(1);
        let nowait = Nowait::builder().engine(Engine::Sim(sim.clone())).build().unwrap();
        let mut faults = Faults::default();
        faults.not_now = 1.0;
        set(&mut faults);
        let mut replace = std::pin::pin!(nowait.fs().write_atomic(path, vec![1; 600]));
        while renamed && sim.contents(path).is_none() {
            assert!(crate::common::poll_once(replace.as_mut()).is_pending());
            assert!(sim.step());
        }
        sim.set_faults(faults);
        let replaced = loop {
            match crate::common::poll_once(replace.as_mut()) {
                std::task::Poll::Ready(replaced) => break replaced,
                std::task::Poll::Pending => assert!(sim.step()),
            }
        };
        let error = replaced.unwrap_err();
        assert_replaces(&error, path);
        assert_eq!(error.operation(), operation, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    };
    step(false, |faults| faults.no_space = 1.0, ErrorOp::Open, "temporary file in .");
    step(false, |faults| faults.write_error = 1.0, ErrorOp::Write, "length 600");
    step(false, |faults| faults.sync_error = 1.0, ErrorOp::Sync, "old contents are kept");
    step(false, |faults| faults.close_error = 1.0, ErrorOp::Close, "the device reported an error");
    step(true, |faults| faults.sync_error = 1.0, ErrorOp::Sync, "a crash may undo that");
}

#[cfg(feature = "stream")]
#[test]
fn chunks_of_a_reader_are_a_stream_of_bytes() {
    use futures::TryStreamExt;
    use nowait::stream::Chunks;

    each("stream", |nowait, path, direct| {
        let bytes = contents(LEN, 4);
        std::fs::write(path, &bytes).unwrap();
        let file = open(nowait, path, direct);
        for way in [Way::Awaited, Way::Driven] {
            let pieces: Vec<bytes::Bytes> =
                way.run_future(Chunks(Reader::range(&file, 100..LEN as u64 - 7)).try_collect()).unwrap();
            assert!(pieces.concat() == bytes[100..LEN - 7], "{way:?}");
        }
    });
}

/// The same life as a blocking cursor's, of a task.
#[cfg(feature = "tokio")]
mod with_tokio {
    use std::io::SeekFrom;

    use nowait::stream::{Cursor, Reader, TokioIo};
    use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

    use super::{LEN, Model, contents, each, open, place};
    use crate::common::rng::Rng;

    /// Symptoms: a seek that was dropped while the writer finished was carried out by a later one;
    /// and one that was refused was refused for ever.
    #[test]
    fn a_seek_that_was_dropped_or_refused_is_forgotten() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        each("seeks of tokio", |nowait, path, direct| {
            let file = open(nowait, path, direct);
            file.set_len(0).wait().unwrap();
            runtime.block_on(async {
                let mut cursor = TokioIo(Cursor::new(&file, 0));
                cursor.write_all(b"header--").await.unwrap();
                let _ = crate::common::poll_once(std::pin::pin!(cursor.seek(SeekFrom::Start(0))));
                let at = cursor.0.position();
                cursor.write_all(b"body").await.unwrap();
                assert_eq!(cursor.stream_position().await.unwrap(), at + 4);
                assert!(cursor.seek(SeekFrom::Current(-100)).await.is_err());
                assert_eq!(cursor.seek(SeekFrom::Start(3)).await.unwrap(), 3);
            });
        });
    }

    #[test]
    fn a_cursor_is_tokios_file() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(2).build().unwrap();
        each("cursor of tokio", |nowait, path, direct| {
            std::fs::write(path, contents(LEN, 1)).unwrap();
            let file = open(nowait, path, direct);
            runtime.block_on(async {
                let mut rng = Rng::for_test();
                let mut model = Model::new(contents(LEN, 1));
                let mut cursor = TokioIo(Cursor::new(&file, 0));
                for round in 0..150 {
                    let n = rng.below(30_000);
                    match rng.below(4) {
                        0 => {
                            let to = place(&mut rng);
                            let (got, wanted) = (cursor.seek(to).await, std::io::Seek::seek(&mut model, to));
                            assert_eq!(got.is_ok(), wanted.is_ok(), "round {round}: {to:?}");
                        }
                        1 => {
                            let data = contents(n, round);
                            cursor.write_all(&data).await.unwrap();
                            std::io::Write::write_all(&mut model, &data).unwrap();
                        }
                        2 => {
                            let (mut got, mut wanted) = (Vec::new(), Vec::new());
                            (&mut cursor).take(n as u64).read_to_end(&mut got).await.unwrap();
                            let mut part = std::io::Read::take(&mut model, n as u64);
                            std::io::Read::read_to_end(&mut part, &mut wanted).unwrap();
                            assert!(got == wanted, "round {round}");
                        }
                        _ => {
                            cursor.flush().await.unwrap();
                            assert!(std::fs::read(path).unwrap() == *model.get_ref(), "round {round}: after a flush");
                        }
                    }
                    assert_eq!(cursor.0.position(), model.position(), "round {round}");
                }
                let mut reader = TokioIo(Reader::new(&file, 0));
                cursor.shutdown().await.unwrap();
                assert_eq!(reader.seek(SeekFrom::End(-10)).await.unwrap(), model.get_ref().len() as u64 - 10);
                let mut last = Vec::new();
                reader.read_to_end(&mut last).await.unwrap();
                assert!(model.get_ref().ends_with(&last) && last.len() == 10);
            });
        });
    }
}

#[cfg(feature = "futures-io")]
mod with_futures_io {
    use std::io::SeekFrom;

    use futures::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
    use nowait::stream::{Cursor, FuturesIo, Reader};

    use super::{LEN, Way, contents, each, open};

    #[test]
    fn a_cursor_has_the_traits_of_futures_io() {
        each("cursor of futures-io", |nowait, path, direct| {
            std::fs::write(path, contents(LEN, 1)).unwrap();
            let file = open(nowait, path, direct);
            for way in [Way::Awaited, Way::Driven] {
                way.run_future(async {
                    let mut cursor = FuturesIo(Cursor::new(&file, 10));
                    cursor.write_all(b"ten bytes.").await.unwrap();
                    assert_eq!(cursor.seek(SeekFrom::End(-5)).await.unwrap(), LEN as u64 - 5);
                    let mut last = Vec::new();
                    cursor.read_to_end(&mut last).await.unwrap();
                    assert_eq!(last, contents(LEN, 1)[LEN - 5..]);
                    assert_eq!(cursor.seek(SeekFrom::Current(-1)).await.unwrap(), LEN as u64 - 1);
                    assert_eq!(cursor.seek(SeekFrom::Start(10)).await.unwrap(), 10);
                    let mut there = [0; 10];
                    cursor.read_exact(&mut there).await.unwrap();
                    assert_eq!(&there, b"ten bytes.");
                    cursor.close().await.unwrap();
                    let mut reader = FuturesIo(Reader::range(&file, 0..20));
                    assert_eq!(reader.seek(SeekFrom::End(-10)).await.unwrap(), 10);
                    reader.read_exact(&mut there).await.unwrap();
                    assert_eq!(&there, b"ten bytes.");
                    assert_eq!(reader.read(&mut there).await.unwrap(), 0);
                });
            }
        });
    }
}
