//! Streams: what a reader gives and what a writer leaves in its file, whatever the pieces, the
//! place, the file system, the engine and who waits; files that change meanwhile; errors, and what
//! is dropped half-way.

mod common;

use std::io::{BufRead, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path as FsPath;
use std::pin::pin;
use std::sync::mpsc;
use std::task::Poll;
use std::time::{Duration, Instant};

use common::mounts::{self, Kind, Mount, temp_dir};
use common::rng::Rng;
use common::{Watchdog, Way, assert_settled, contents, eventually, expected, is_slow, poll_once, put, rounds};
use nowait::sim::{Faults, Sim};
#[cfg(feature = "futures-io")]
use nowait::stream::FuturesIo;
#[cfg(feature = "tokio")]
use nowait::stream::TokioIo;
use nowait::stream::{Cursor, Reader, Writer};
use nowait::{Buf, Engine, ErrorKind, File, Nowait, OpenOptions};

const MIB: usize = 1 << 20;
const SIZES: [usize; 9] = [0, 1, 4095, 4096, 4097, MIB / 2 - 1, MIB / 2, MIB / 2 + 1, 5 * MIB + 3];

/// The default, the pool, and libaio where it can be had.
fn instances() -> impl Iterator<Item = Nowait> {
    let build = |engine| match Nowait::builder().engine(engine).build() {
        Ok(nowait) => Some(nowait),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    };
    [Engine::Auto, Engine::Pool, Engine::Aio].into_iter().filter_map(build)
}

/// A file for reading and writing, made if there is none. What refuses direct I/O is opened all the
/// same.
fn open(nowait: &Nowait, path: &FsPath, direct: bool) -> File {
    OpenOptions::new().read(true).write(true).create(true).direct(direct).open_in(nowait, path).wait().unwrap()
}

fn buffer(bytes: &[u8]) -> Buf {
    let mut buffer = Buf::zeroed(bytes.len());
    buffer.copy_from_slice(bytes);
    buffer
}

/// By `way`, with an executor of a thread of its own, as it must be for a caller that is inside
/// `block_on`.
fn chunk(reader: &mut Reader, way: Way) -> nowait::Result<Option<Buf>> {
    match way {
        Way::Waited => reader.chunk().wait(),
        way => way.run_future(reader.chunk()),
    }
}

/// How the rest of a file is read.
#[derive(Clone, Copy, Debug)]
enum Reading {
    Pieces,
    Buffered,
    Chunks(Way),
    Mixed,
}

const READINGS: [Reading; 6] = [
    Reading::Pieces,
    Reading::Buffered,
    Reading::Chunks(Way::Waited),
    Reading::Chunks(Way::Driven),
    Reading::Chunks(Way::Awaited),
    Reading::Mixed,
];

/// Reads a bit; false at the end of the file.
fn read_some(reader: &mut Reader, reading: Reading, rng: &mut Rng, out: &mut Vec<u8>) -> std::io::Result<bool> {
    let before = out.len();
    match reading {
        Reading::Pieces => {
            let mut piece = vec![0; 1 + [rng.below(100), rng.below(10_000), rng.below(MIB)][rng.below(3)]];
            let n = reader.read(&mut piece)?;
            out.extend_from_slice(&piece[..n]);
        }
        Reading::Buffered => {
            let there = reader.fill_buf()?;
            let n = if there.is_empty() { 0 } else { 1 + rng.below(there.len()) };
            out.extend_from_slice(&there[..n]);
            reader.consume(n);
        }
        Reading::Chunks(way) => {
            if let Some(chunk) = chunk(reader, way)? {
                assert!(!chunk.is_empty(), "the end is told by None");
                out.extend_from_slice(&chunk);
            }
        }
        Reading::Mixed => return read_some(reader, READINGS[rng.below(5)], rng, out),
    }
    Ok(out.len() > before)
}

fn read_rest(reader: &mut Reader, reading: Reading, rng: &mut Rng) -> Vec<u8> {
    let mut out = Vec::new();
    while read_some(reader, reading, rng, &mut out).unwrap() {}
    assert!(!read_some(reader, reading, rng, &mut out).unwrap(), "the end stays");
    out
}

/// Files of all sizes from all places in all ways.
fn reads(nowait: &Nowait, folder: &FsPath, direct: bool, rng: &mut Rng) {
    for (number, size) in SIZES.into_iter().enumerate() {
        let path = folder.join("read");
        let bytes = contents(size, size as u64);
        std::fs::write(&path, &bytes).unwrap();
        let file = open(nowait, &path, direct);
        for (turn, start) in [0, 1, 4096, 5000, size as u64, size as u64 + 7].into_iter().enumerate() {
            // A large file is read in one way from each place.
            let large = size > MIB;
            let readings = READINGS.into_iter().enumerate().filter(|(i, _)| !large || (turn + number) % 6 == *i);
            for (_, reading) in readings {
                let mut reader = Reader::new(&file, start);
                if turn == 3 {
                    reader = reader.ahead_bytes_max(20_000);
                }
                let read = read_rest(&mut reader, reading, rng);
                assert!(read == expected(&bytes, start, size), "{reading:?} of {size} from {start}, direct: {direct}");
                assert_eq!(reader.position(), start + read.len() as u64);
            }
        }
    }
}

/// Seeks and reads at random against a cursor of std.
fn seeks(nowait: &Nowait, folder: &FsPath, direct: bool, rng: &mut Rng) {
    let bytes = contents(2 * MIB + 777, 3);
    let path = folder.join("seek");
    std::fs::write(&path, &bytes).unwrap();
    let file = open(nowait, &path, direct);
    let mut reader = Reader::new(&file, 0);
    let mut model = std::io::Cursor::new(&bytes);
    for round in 0..200 {
        let far = rng.below(bytes.len() + 5000) as i64;
        let near = rng.below(20_000) as i64 - 10_000;
        let to = match rng.below(6) {
            0 => Some(SeekFrom::Start(far as u64)),
            1 => Some(SeekFrom::End(5000 - far)),
            2 => Some(SeekFrom::Current(near)),
            3 => Some(SeekFrom::Current(0)),
            _ => None,
        };
        if let Some(to) = to {
            let (got, wanted) = (reader.seek(to), model.seek(to));
            assert_eq!(got.is_ok(), wanted.is_ok(), "round {round}: {to:?}");
            if let (Err(got), Err(wanted)) = (&got, &wanted) {
                assert_eq!(got.kind(), wanted.kind(), "round {round}: {to:?}: {got}");
            }
            assert_eq!(reader.position(), model.position(), "round {round}: {to:?}");
        }
        let mut out = Vec::new();
        let place = model.position();
        let more = read_some(&mut reader, Reading::Mixed, rng, &mut out).unwrap();
        assert_eq!(more, place < bytes.len() as u64, "round {round} at {place}");
        assert!(out == expected(&bytes, place, out.len()), "round {round} at {place}");
        model.set_position(place + out.len() as u64);
    }
}

/// Random calls of one writer against a copy in memory; then again in the file that is there.
fn writes(nowait: &Nowait, folder: &FsPath, direct: bool, rng: &mut Rng) {
    let data = contents(4 * MIB, 11);
    for (old, start) in [(0, 0), (0, 1), (0, 5000), (3 * MIB + 17, 4096), (3 * MIB + 17, 3 * MIB + 17), (100, 70_000)] {
        let path = folder.join("written");
        let mut model = contents(old, 12);
        std::fs::write(&path, &model).unwrap();
        let file = open(nowait, &path, direct);
        let mut writer = Writer::new(&file, start as u64);
        let mut place = start as u64;
        for _ in 0..25 {
            let way = Way::ALL[rng.below(3)];
            let from = rng.below(MIB);
            let length = [rng.below(100), rng.below(10_000), 4096 * rng.below(300), rng.below(MIB)][rng.below(4)];
            let piece = &data[from..from + length];
            match rng.below(8) {
                0 => writer.flush().unwrap(),
                1 if way == Way::Waited => writer.finish().wait().unwrap(),
                1 => way.run_future(writer.finish()).unwrap(),
                2 if way == Way::Waited => writer.sync_data().wait().unwrap(),
                2 => way.run_future(writer.sync_data()).unwrap(),
                3 | 4 => writer.write_all(piece).unwrap(),
                _ => {
                    match way {
                        Way::Waited => writer.put(buffer(piece)).wait(),
                        way => way.run_future(writer.put(buffer(piece))),
                    }
                    .unwrap();
                }
            }
            if writer.position() > place {
                assert_eq!(writer.position(), place + length as u64);
                put(&mut model, place, piece);
                place = writer.position();
            }
        }
        writer.finish().wait().unwrap();
        let what = format!("{} bytes from {start} into {old}, direct: {direct}", place - start as u64);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), model.len() as u64, "{what}");
        assert!(std::fs::read(&path).unwrap() == model, "{what}");
        drop(writer);
        assert!(std::fs::read(&path).unwrap() == model, "{what}, dropped");
    }
}

fn copies(nowait: &Nowait, folder: &FsPath, direct: bool) {
    for size in [0, 1, 5 * MIB + 3] {
        let (from, to) = (folder.join("from"), folder.join("to"));
        let bytes = contents(size, 5);
        std::fs::write(&from, &bytes).unwrap();
        std::fs::write(&to, b"").unwrap();
        let mut reader = Reader::new(&open(nowait, &from, direct), 0);
        let mut writer = Writer::new(&open(nowait, &to, direct), 0);
        assert_eq!(std::io::copy(&mut reader, &mut writer).unwrap(), size as u64);
        writer.sync_data().wait().unwrap();
        assert!(std::fs::read(&to).unwrap() == bytes, "{size}, direct: {direct}");
    }
}

fn streams_in(folder: &FsPath) {
    let mut rng = Rng::for_test();
    for nowait in instances() {
        for direct in [false, true] {
            let _watchdog = Watchdog::new(format!("streams in {}, direct: {direct}", folder.display()), 120);
            reads(&nowait, folder, direct, &mut rng);
            seeks(&nowait, folder, direct, &mut rng);
            writes(&nowait, folder, direct, &mut rng);
            copies(&nowait, folder, direct);
        }
        assert_settled(&nowait);
    }
}

fn on(kind: Kind) {
    // On tmpfs the files are memory, too.
    if !common::has_memory(128 << 20) {
        return;
    }
    let Some(mount) = Mount::or_skip(kind) else { return };
    streams_in(mount.path());
}

#[test]
fn on_the_root_file_system() {
    streams_in(temp_dir().path());
}

mounts::on_every_file_system!(on);

/// `test` with each instance, buffered and direct, and a path to put a file at.
fn each(name: &str, test: impl Fn(&Nowait, &FsPath, bool)) {
    let folder = temp_dir();
    for nowait in instances() {
        for direct in [false, true] {
            let _watchdog = Watchdog::new(format!("{name}, direct: {direct}"), 60);
            test(&nowait, &folder.path().join("file"), direct);
        }
        assert_settled(&nowait);
    }
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

/// Descriptors of this process that are open for `path`.
fn descriptors(path: &FsPath) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    all.filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|to| to == path)).count()
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
            assert!(eventually(|| descriptors(path) == 0), "{way:?}, direct: {direct}");
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

fn faults(set: impl FnOnce(&mut Faults)) -> Faults {
    let mut faults = Faults::default();
    set(&mut faults);
    faults
}

/// No attempt hits, and every other call fails.
fn nothing_works() -> Faults {
    faults(|faults| (faults.io_error, faults.not_now) = (1.0, 1.0))
}

fn simulated(sim: &Sim, bytes: &[u8]) -> (Nowait, File) {
    sim.create("/sim/file", bytes);
    let nowait = Nowait::builder().engine(Engine::Sim(sim.clone())).build().unwrap();
    let file = OpenOptions::new().read(true).write(true).open_in(&nowait, "/sim/file").wait().unwrap();
    (nowait, file)
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
        assert_eq!((inside.offset(), inside.raw_os_error()), (Some(reader.position()), Some(libc::EIO)), "{error}");
        let error = reader.chunk().wait().unwrap_err();
        assert_eq!((error.offset(), error.raw_os_error()), (Some(reader.position()), Some(libc::EIO)), "{error}");
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
fn a_write_that_fails_fails_all_that_follow() {
    let data = contents(2 * MIB, 1);
    for way in Way::ALL {
        let _watchdog = Watchdog::new(format!("failing writes, {way:?}"), 60);
        let sim = Sim::new(1);
        let (nowait, file) = simulated(&sim, b"");
        let mut writer = Writer::new(&file, 0);
        writer.write_all(&data[..1000]).unwrap();
        sim.set_faults(nothing_works());
        let finish = |writer: &mut Writer| match way {
            Way::Waited => writer.finish().wait(),
            way => way.run_future(writer.finish()),
        };
        let error = finish(&mut writer).unwrap_err();
        assert_eq!((error.offset(), error.raw_os_error()), (Some(0), Some(libc::EIO)), "{error}");
        sim.set_faults(Faults::default());
        for _ in 0..3 {
            for length in [1, 1000, 100_000] {
                assert!(writer.write(&data[..length]).is_err(), "{way:?}: {length}");
            }
            assert!(writer.put(buffer(&data[..4096])).wait().is_err());
            assert!(writer.flush().is_err());
            assert!(finish(&mut writer).is_err());
            assert!(writer.sync_data().wait().is_err());
        }
        drop(writer);
        assert_settled(&nowait);
        assert_eq!(file.size().wait().unwrap(), 0);
    }
}

/// Buffers of many types and lengths, after each other and after copied bytes.
#[test]
fn every_buffer_is_put() {
    let mut rng = Rng::for_test();
    let folder = temp_dir();
    for nowait in instances() {
        for direct in [false, true] {
            for way in Way::ALL {
                let _watchdog = Watchdog::new(format!("puts, direct: {direct}, {way:?}"), 60);
                let path = folder.path().join("file");
                let file = open(&nowait, &path, direct);
                let mut writer = Writer::new(&file, 0);
                let mut right = Vec::new();
                for round in 0..60 {
                    let length = [0, 1, 4096, 5000, 65_536, 70_001, MIB][rng.below(7)];
                    let data = contents(length, round);
                    right.extend_from_slice(&data);
                    let put = match rng.below(6) {
                        0 => writer.put(buffer(&data)),
                        1 => writer.put(data),
                        2 => writer.put(std::sync::Arc::<[u8]>::from(data)),
                        3 => writer.put(nowait::Lent::new(data)),
                        #[cfg(feature = "bytes")]
                        4 => writer.put(bytes::Bytes::from(data)),
                        _ => {
                            writer.write_all(&data).unwrap();
                            continue;
                        }
                    };
                    if way == Way::Waited { put.wait() } else { way.run_future(put) }.unwrap();
                    assert_eq!(writer.position(), right.len() as u64);
                }
                writer.finish().wait().unwrap();
                assert!(std::fs::read(&path).unwrap() == right, "direct: {direct}, {way:?}");
                drop(writer);
                assert_settled(&nowait);
                std::fs::remove_file(&path).unwrap();
            }
        }
    }
}

/// A buffer is held, and not copied, until it is written.
#[test]
fn a_put_does_not_copy() {
    let _watchdog = Watchdog::new("puts without copies", 60);
    let sim = Sim::manual(1);
    sim.create("/sim/file", b"");
    let nowait = Nowait::builder().engine(Engine::Sim(sim.clone())).inline_bytes_max(1).build().unwrap();
    let file = common::writable(&nowait, "/sim/file".as_ref());
    let mut writer = Writer::new(&file, 0);
    let (whole, odd) = (std::sync::Arc::new(contents(70_001, 1)), std::sync::Arc::new(contents(70_001, 2)));
    let short = std::sync::Arc::new(contents(100, 3));
    for buffer in [&whole, &odd, &short] {
        futures::executor::block_on(writer.put(buffer.clone())).unwrap();
    }
    let holders = [&whole, &odd, &short].map(std::sync::Arc::strong_count);
    assert_eq!(holders, [2, 2, 1], "long ones are held, a short one at an odd place is copied");
    let _ = poll_once(pin!(writer.finish()));
    while sim.step() {}
    futures::executor::block_on(async {
        let mut finish = pin!(writer.finish());
        std::future::poll_fn(|context| {
            while sim.step() {}
            finish.as_mut().poll(context)
        })
        .await
    })
    .unwrap();
    assert_eq!([&whole, &odd, &short].map(std::sync::Arc::strong_count), [1; 3]);
    assert!(sim.contents("/sim/file").unwrap() == [&whole[..], &odd[..], &short[..]].concat());
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
            assert_eq!((error.offset(), error.raw_os_error()), (Some(100), Some(libc::EIO)), "{error}");
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

/// The failure is found out while the buffer is filled in part.
#[test]
fn a_write_behind_that_fails_fails_the_next_write() {
    let _watchdog = Watchdog::new("failing writes behind", 60);
    let sim = Sim::manual(1);
    sim.create("/sim/file", b"");
    // Inline it would fail at once.
    let nowait = Nowait::builder().engine(Engine::Sim(sim.clone())).inline_bytes_max(1).build().unwrap();
    let file = common::writable(&nowait, "/sim/file".as_ref());
    let mut writer = Writer::new(&file, 0);
    sim.set_faults(nothing_works());
    assert!(futures::executor::block_on(writer.put(buffer(&[1; 4096]))).is_ok());
    assert!(futures::executor::block_on(writer.put(buffer(&[2; 4096]))).is_ok());
    assert!(futures::executor::block_on(writer.put(buffer(&[3; 100]))).is_ok());
    // On its way by now, or failed.
    let _ = poll_once(pin!(writer.finish()));
    while sim.step() {}
    let finished = poll_once(pin!(writer.finish()));
    assert!(matches!(finished, std::task::Poll::Ready(Err(_))), "{finished:?}");
    assert!(writer.write(b"more").is_err());
}

/// Symptom: `sync_data` gave Ok while bytes were in nobody's hands but the writer's. Cause: a sync
/// that had been dropped under way was taken for the one that was asked for later. Now each covers
/// all that was given before it was made.
#[test]
fn a_sync_covers_what_was_written_after_one_that_was_dropped() {
    let _watchdog = Watchdog::new("dropped syncs", 60);
    let sim = Sim::manual(1);
    let (_nowait, file) = simulated(&sim, b"");
    let mut writer = Writer::new(&file, 0);
    writer.write_all(&[1; 1000]).unwrap();
    {
        let mut sync = pin!(writer.sync_data());
        assert!(poll_once(sync.as_mut()).is_pending());
        while file.size().wait().unwrap() == 0 {
            assert!(sim.step());
        }
        assert!(poll_once(sync.as_mut()).is_pending(), "the sync is under way");
    }
    writer.write_all(&[2; 1000]).unwrap();
    let mut sync = pin!(writer.sync_data());
    while poll_once(sync.as_mut()).is_pending() {
        sim.step();
    }
    assert_eq!(file.size().wait().unwrap(), 2000);
}

/// A finish that was dropped under way, as by a timeout, may have begun to cut the file to its
/// length: what is written next waits for that, and is not cut off.
#[test]
fn what_is_written_after_a_finish_that_was_dropped_stays() {
    let _watchdog = Watchdog::new("dropped finish", 60);
    // Another thread relieves one that is held for a second. On a busy machine that second can pass too early.
    let is_shown = (0..10).any(|_| drops_a_finish_and_goes_on());
    assert!(is_shown, "the pool was relieved in ten attempts");
}

/// Writes after a finish that was dropped while the pool was held. False: the pool was relieved before all was seen.
fn drops_a_finish_and_goes_on() -> bool {
    let folder = temp_dir();
    let nowait = Nowait::builder().pool_threads_max(1).inline_bytes_max(4096).build().unwrap();
    let path = folder.path().join("file");
    let file = open(&nowait, &path, true);
    let bytes = contents(64 << 10, 3);
    let pieces: Vec<&[u8]> = bytes.chunks(16 << 10).collect();
    let length = || std::fs::metadata(&path).unwrap().len();
    let is_written = |number: usize| {
        let mut piece = [0; 16 << 10];
        let offset = (number * piece.len()) as u64;
        std::fs::File::open(&path).unwrap().read_exact_at(&mut piece, offset).is_ok() && piece == *pieces[number]
    };
    let mut writer = Writer::new(&file, 0);
    writer.put(buffer(pieces[0])).wait().unwrap();
    // Has space reserved for the first piece, which is written.
    writer.put(buffer(pieces[1])).wait().unwrap();
    assert!(eventually(|| is_written(0)));
    // The only thread of the device's pool is held, and the file is to be cut to its length after
    // that.
    let (begun, begins) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let beside = open(&nowait, &folder.path().join("beside"), false);
    beside.sync_data().on_complete(move |_| {
        begun.send(()).unwrap();
        let _ = released.recv();
    });
    let held = Instant::now();
    begins.recv().unwrap();
    let is_relieved = || is_slow() || held.elapsed() > Duration::from_millis(900);
    let mut is_shown = true;
    let mut expect = |is_so: bool, what: &str| {
        is_shown &= is_so;
        assert!(is_so || is_relieved(), "{what}");
    };
    for _ in 0..2 {
        expect(poll_once(pin!(writer.finish())).is_pending(), "it waits for the pool");
        assert!(eventually(|| is_written(1)));
    }
    expect(length() > 1 << 20, "space is reserved");
    {
        let mut put = pin!(writer.put(buffer(pieces[2])));
        let polled = poll_once(put.as_mut());
        expect(polled.is_pending(), "it waits until the file has its length");
        release.send(()).unwrap();
        match polled {
            Poll::Pending => futures::executor::block_on(put).unwrap(),
            Poll::Ready(put) => put.unwrap(),
        }
    }
    futures::executor::block_on(writer.put(buffer(pieces[3]))).unwrap();
    writer.finish().wait().unwrap();
    assert!(std::fs::read(&path).unwrap() == bytes);
    is_shown || is_slow()
}

/// Symptom: a writer that a task had begun to fill, and a thread went on with, did not wait in its drop.
#[test]
fn a_writer_that_a_thread_used_last_has_written_when_it_is_dropped() {
    let folder = temp_dir();
    let nowait = Nowait::builder().engine(Engine::Pool).pool_threads_max(1).build().unwrap();
    let file = open(&nowait, &folder.path().join("file"), false);
    let (end, ended) = mpsc::channel::<()>();
    let busy = nowait::embed::blocking(&nowait, nowait::ErrorOp::Read, "", move |_| ended.recv()).submit();
    let mut writer = Writer::new(&file, 0);
    nowait::block_on(writer.put_slice(b"one, ")).unwrap();
    writer.write_all(b"two").unwrap();
    drop(writer);
    // Not by the pool, which has no thread for it.
    assert_eq!(std::fs::read(folder.path().join("file")).unwrap(), b"one, two");
    drop(end);
    busy.wait().unwrap().unwrap_err();
    assert_settled(&nowait);
}

#[test]
fn a_writer_that_is_dropped_still_writes_all_it_was_given() {
    let data = contents(3 * MIB + 77, 3);
    each("dropped writers", |nowait, path, direct| {
        for (round, way) in Way::ALL.into_iter().cycle().take(12).enumerate() {
            std::fs::write(path, b"old").unwrap();
            let file = open(nowait, path, direct);
            let mut writer = Writer::new(&file, 3);
            let given = &data[..[1000, MIB, 2 * MIB + 1, data.len()][round % 4]];
            match way {
                Way::Waited => writer.write_all(given).unwrap(),
                way => way.run_future(async { writer.put(buffer(given)).await.unwrap() }),
            }
            if round % 3 == 0 {
                let _ = poll_once(pin!(writer.finish()));
            }
            drop(writer);
            if way == Way::Waited && round % 3 != 0 {
                // The process may end next, as after a drop of std's `BufWriter`.
                let now = std::fs::read(path).unwrap();
                assert!(now == [b"old", given].concat(), "{} bytes, direct: {direct}", given.len());
            }
            let all_there = || std::fs::read(path).unwrap() == [b"old", given].concat();
            assert!(eventually(all_there), "{way:?}, {} bytes, direct: {direct}", given.len());
        }
    });
}

/// Symptom: after a task was aborted during a reservation, its file ended in up to 66 MiB of zeros.
#[test]
fn a_writer_that_is_dropped_at_any_time_leaves_the_file_no_longer_than_it_wrote() {
    let _watchdog = Watchdog::new("writers that are dropped", 120);
    let folder = temp_dir();
    let path = folder.path().join("file");
    let data = contents(24 * MIB, 5);
    let mut rng = Rng::for_test();
    for nowait in instances() {
        for round in 0..rounds(60) {
            std::fs::write(&path, b"").unwrap();
            let file = open(&nowait, &path, true);
            let mut writer = Writer::new(&file, 0);
            let polls = rng.below(64);
            {
                let mut put = pin!(writer.put_slice(&data[..rng.below(data.len())]));
                for _ in 0..polls {
                    if poll_once(put.as_mut()).is_ready() {
                        break;
                    }
                }
            }
            if round % 4 == 0 {
                let _ = poll_once(pin!(writer.finish()));
            }
            let taken = writer.position() as usize;
            drop(writer);
            file.settled().wait();
            let now = std::fs::read(&path).unwrap();
            let what = format!("{} bytes after {polls} polls, not {taken}", now.len());
            assert!(now.len() == taken && now == data[..taken], "{what}");
        }
        assert_settled(&nowait);
    }
}

/// Giving back the space of one writer cuts off no bytes that others have written or have in flight
/// there, and no length that was set on purpose.
#[test]
fn a_writer_cuts_off_nothing_that_others_wrote() {
    const AT: u64 = 8 << 20;
    let _watchdog = Watchdog::new("writers of one file", 120);
    let folder = temp_dir();
    let path = folder.path().join("file");
    let data = contents(MIB, 6);
    let length = || std::fs::metadata(&path).unwrap().len();
    for nowait in instances() {
        for (what, finishes) in (0..7).flat_map(|what| [(what, false), (what, true)]) {
            std::fs::write(&path, b"").unwrap();
            let file = open(&nowait, &path, true);
            let mut writer = Writer::new(&file, 0);
            let mut put = || futures::executor::block_on(writer.put(buffer(&data))).unwrap();
            put();
            put();
            file.settled().wait();
            if length() != 16 << 20 {
                return eprintln!("skipped: no direct I/O here, or no space ahead: {} bytes", length());
            }
            let mut other = Writer::new(&file, AT);
            let clone = file.clone();
            let mut under_way = pin!(clone.write_all_at(buffer(&data), AT));
            let expected = match what {
                0 => {
                    futures::executor::block_on(async {
                        other.put(buffer(&data)).await.unwrap();
                        other.finish().await.unwrap();
                    });
                    AT + data.len() as u64
                }
                1 => {
                    futures::executor::block_on(other.put(buffer(&data))).unwrap();
                    drop(other);
                    AT + data.len() as u64
                }
                2 => {
                    let _ = poll_once(under_way.as_mut());
                    AT + data.len() as u64
                }
                3 => {
                    clone.write_all_from(&data[..1000], AT).unwrap();
                    AT + 1000
                }
                4 => {
                    clone.set_len(12 << 20).wait().unwrap();
                    12 << 20
                }
                5 => {
                    clone.allocate(nowait::Allocate::Reserve, AT, 1000).wait().unwrap();
                    AT + 1000
                }
                // By those whom the file knows nothing of.
                _ => {
                    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(20 << 20).unwrap();
                    20 << 20
                }
            };
            if finishes {
                writer.finish().wait().unwrap();
            }
            drop(writer);
            file.settled().wait();
            assert_eq!(length(), expected, "case {what}, finishes: {finishes}");
            let now = std::fs::read(&path).unwrap();
            assert!(now[..data.len()] == data && now[data.len()..2 * data.len()] == data);
            if what < 4 {
                let there = &now[AT as usize..];
                assert!(data.starts_with(there), "case {what}");
            }
        }
        assert_settled(&nowait);
    }
}

/// Bytes without end, so that a disk can be filled without memory for all of it: these, again and
/// again.
struct Endless(Vec<u8>);

impl Endless {
    fn piece(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut piece = Vec::with_capacity(len);
        while piece.len() < len {
            let rest = &self.0[(offset + piece.len()) % self.0.len()..];
            piece.extend_from_slice(&rest[..rest.len().min(len - piece.len())]);
        }
        piece
    }

    fn assert_is_in(&self, file: &std::fs::File, range: std::ops::Range<usize>, what: &str) {
        let mut read = vec![0; MIB];
        for at in range.clone().step_by(MIB) {
            let read = &mut read[..MIB.min(range.end - at)];
            std::os::unix::fs::FileExt::read_exact_at(file, read, at as u64).unwrap();
            assert!(*read == self.piece(at, read.len()), "{what}: from {at}");
        }
    }
}

/// The end of a file whose disk is full is the end of what was written: no space that was reserved
/// ahead, in whole or (ext4) in part, and none for what failed.
#[test]
fn a_full_disk_is_an_error_and_leaves_no_tail() {
    let data = Endless(contents(MIB + 8, 4));
    for (kind, bytes) in [(Kind::Ext4, 48 << 20), (Kind::Tmpfs, 24 << 20), (Kind::Btrfs, 160 << 20)] {
        let Some(mount) = Mount::sized_or_skip(kind, bytes) else { continue };
        for nowait in instances() {
            for (round, direct) in [false, true, true].into_iter().enumerate() {
                let _watchdog = Watchdog::new(format!("{kind:?} that is full, direct: {direct}"), 120);
                let path = mount.path().join("file");
                let file = open(&nowait, &path, direct);
                let mut writer = Writer::new(&file, 0);
                let mut pieces = (0..200 * MIB).step_by(100_000).map(|at| data.piece(at, 100_000));
                let mut put = |piece: &[u8]| match round {
                    2 => futures::executor::block_on(writer.put(buffer(piece))).map_err(std::io::Error::from),
                    _ => writer.write_all(piece),
                };
                let error = pieces.find_map(|piece| put(&piece).err());
                // Less than the disk has room for may fail when it gets there.
                assert!(error.is_some(), "{kind:?}, direct: {direct}");
                for _ in 0..2 {
                    assert!(writer.write(b"more").is_err());
                    let error = writer.finish().wait().unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                    let now = std::fs::File::open(&path).unwrap();
                    let (len, sound) = (now.metadata().unwrap().len() as usize, error.offset().unwrap() as usize);
                    let what = format!("{kind:?}, direct: {direct}, {len} bytes, sound up to {sound}");
                    assert!(sound > 1 << 20 && len >= sound, "{what}");
                    data.assert_is_in(&now, 0..sound, &what);
                    data.assert_is_in(&now, len - 512..len, &what);
                }
                drop((writer, file));
                assert_settled(&nowait);
                std::fs::remove_file(&path).unwrap();
                mounts::free_what_was_removed(mount.path());
            }
        }
    }
}

/// The same for a writer that is dropped while its writes fail, as by an aborted task.
#[test]
fn a_full_disk_leaves_no_tail_of_a_writer_that_is_dropped() {
    let data = Endless(contents(MIB + 8, 4));
    let Some(mount) = Mount::sized_or_skip(Kind::Ext4, 48 << 20) else { return };
    for nowait in instances() {
        let _watchdog = Watchdog::new("a full disk and a writer that is dropped", 120);
        let path = mount.path().join("file");
        let file = open(&nowait, &path, true);
        let mut writer = Writer::new(&file, 0);
        let mut pieces = (0..200 * MIB).step_by(MIB).map(|at| data.piece(at, MIB));
        let failed = pieces.any(|piece| futures::executor::block_on(writer.put(buffer(&piece))).is_err());
        assert!(failed, "the disk is full");
        drop(writer);
        file.settled().wait();
        let now = std::fs::File::open(&path).unwrap();
        let len = now.metadata().unwrap().len() as usize;
        data.assert_is_in(&now, len - 512..len, &format!("{len} bytes"));
        drop(file);
        assert_settled(&nowait);
        std::fs::remove_file(&path).unwrap();
        mounts::free_what_was_removed(mount.path());
    }
}

/// Each reservation has the device idle: a file gets its space in few steps, each at most four
/// times the one before, and gives the rest back.
#[test]
fn a_growing_file_is_given_its_space_in_few_steps() {
    let folder = temp_dir();
    let path = folder.path().join("grows");
    let nowait = Nowait::builder().build().unwrap();
    let file = open(&nowait, &path, true);
    let length = || std::fs::metadata(&path).unwrap().len() as usize;
    let (data, mut seen) = (contents(MIB, 3), vec![0]);
    let mut writer = Writer::new(&file, 0);
    for written in 1..=100 {
        writer.put(buffer(&data)).wait().unwrap();
        let now = length();
        if *seen.last().unwrap() != now {
            seen.push(now);
        }
        // One that is under way is seen in part.
        assert!(now <= 16 * MIB + 4 * written * MIB + 16 * MIB, "{now} bytes for {written} MiB");
    }
    writer.finish().wait().unwrap();
    assert_eq!(length(), 100 * MIB);
    if seen[1] != 16 * MIB {
        return eprintln!("skipped: no direct I/O here, or no space ahead: {seen:?}");
    }
    let whole = [0, 16 * MIB, 80 * MIB, 336 * MIB];
    let steps = seen.iter().filter(|length| whole.contains(length)).count();
    assert!(steps >= 3 && *seen.last().unwrap() == 336 * MIB, "{seen:?}");
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
        if !super::common::has_memory(128 << 20) {
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
