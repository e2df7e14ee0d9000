//! Streams over files in a folder: what a reader returns and what a writer leaves, whatever the
//! pieces, the place, the engine and the caller.

use std::io::{BufRead, Read, Seek, SeekFrom, Write};
use std::path::Path as FsPath;

use crate::common::mounts::temp_dir;
use crate::common::rng::Rng;
use crate::common::{Watchdog, Way, assert_settled, contents, expected, put};
use nowait::sim::{Faults, Sim};
use nowait::stream::{Reader, Writer};
use nowait::{Buf, Engine, File, Nowait, OpenOptions};

pub(crate) const MIB: usize = 1 << 20;
pub(crate) const SIZES: [usize; 9] = [0, 1, 4095, 4096, 4097, MIB / 2 - 1, MIB / 2, MIB / 2 + 1, 5 * MIB + 3];

/// Instances: the default, the pool, and libaio where the kernel allows it.
pub(crate) fn instances() -> impl Iterator<Item = Nowait> {
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
pub(crate) fn open(nowait: &Nowait, path: &FsPath, direct: bool) -> File {
    OpenOptions::new().read(true).write(true).create(true).direct(direct).open_in(nowait, path).wait().unwrap()
}

pub(crate) fn buffer(bytes: &[u8]) -> Buf {
    let mut buffer = Buf::zeroed(bytes.len());
    buffer.copy_from_slice(bytes);
    buffer
}

/// Reads a chunk in this way, on a thread with an executor: the caller may be inside `block_on`.
pub(crate) fn chunk(reader: &mut Reader, way: Way) -> nowait::Result<Option<Buf>> {
    match way {
        Way::Waited => reader.chunk().wait(),
        way => way.run_future(reader.chunk()),
    }
}

/// How the rest of a file is read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reading {
    Pieces,
    Buffered,
    Chunks(Way),
    Mixed,
}

pub(crate) const READINGS: [Reading; 6] = [
    Reading::Pieces,
    Reading::Buffered,
    Reading::Chunks(Way::Waited),
    Reading::Chunks(Way::Driven),
    Reading::Chunks(Way::Awaited),
    Reading::Mixed,
];

/// Reads a bit; false at the end of the file.
pub(crate) fn read_some(
    reader: &mut Reader,
    reading: Reading,
    rng: &mut Rng,
    out: &mut Vec<u8>,
) -> std::io::Result<bool> {
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

pub(crate) fn read_rest(reader: &mut Reader, reading: Reading, rng: &mut Rng) -> Vec<u8> {
    let mut out = Vec::new();
    while read_some(reader, reading, rng, &mut out).unwrap() {}
    assert!(!read_some(reader, reading, rng, &mut out).unwrap(), "the end stays");
    out
}

/// Files of all sizes from all places in all ways.
pub(crate) fn reads(nowait: &Nowait, folder: &FsPath, direct: bool, rng: &mut Rng) {
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
pub(crate) fn seeks(nowait: &Nowait, folder: &FsPath, direct: bool, rng: &mut Rng) {
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
pub(crate) fn writes(nowait: &Nowait, folder: &FsPath, direct: bool, rng: &mut Rng) {
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

pub(crate) fn copies(nowait: &Nowait, folder: &FsPath, direct: bool) {
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

pub(crate) fn streams_in(folder: &FsPath) {
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

/// `test` with each instance, buffered and direct, and a path to put a file at.
pub(crate) fn each(name: &str, test: impl Fn(&Nowait, &FsPath, bool)) {
    let folder = temp_dir();
    for nowait in instances() {
        for direct in [false, true] {
            let _watchdog = Watchdog::new(format!("{name}, direct: {direct}"), 60);
            test(&nowait, &folder.path().join("file"), direct);
        }
        assert_settled(&nowait);
    }
}

pub(crate) fn faults(set: impl FnOnce(&mut Faults)) -> Faults {
    let mut faults = Faults::default();
    set(&mut faults);
    faults
}

/// No attempt hits, and every other call fails.
pub(crate) fn nothing_works() -> Faults {
    faults(|faults| (faults.io_error, faults.not_now) = (1.0, 1.0))
}

pub(crate) fn simulated(sim: &Sim, bytes: &[u8]) -> (Nowait, File) {
    sim.create("/sim/file", bytes);
    let nowait = Nowait::builder().engine(Engine::Sim(sim.clone())).build().unwrap();
    let file = OpenOptions::new().read(true).write(true).open_in(&nowait, "/sim/file").wait().unwrap();
    (nowait, file)
}

/// Bytes without end, so that a disk can be filled without memory for all of it: these, again and
/// again.
pub(crate) struct Endless(pub(crate) Vec<u8>);

impl Endless {
    pub(crate) fn piece(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut piece = Vec::with_capacity(len);
        while piece.len() < len {
            let rest = &self.0[(offset + piece.len()) % self.0.len()..];
            piece.extend_from_slice(&rest[..rest.len().min(len - piece.len())]);
        }
        piece
    }

    pub(crate) fn assert_is_in(&self, file: &std::fs::File, range: std::ops::Range<usize>, what: &str) {
        let mut read = vec![0; MIB];
        for at in range.clone().step_by(MIB) {
            let read = &mut read[..MIB.min(range.end - at)];
            (&mut &*file).seek(SeekFrom::Start(at as u64)).unwrap();
            (&mut &*file).read_exact(read).unwrap();
            assert!(*read == self.piece(at, read.len()), "{what}: from {at}");
        }
    }
}
