//! Promises of `File`, as functions over any instance: they hold whatever the engine, the path or
//! the file system.
//!
//! The oracle is the file's contents, sliced.

// Each test binary uses its own part of this.
#![allow(dead_code)]

use std::cell::Cell;
use std::path::{Path, PathBuf};

use futures::future::{join_all, maybe_done};
use nowait::sim::{Faults, Sim};
use nowait::{Advice, Buf, Builder, Engine, Error, ErrorKind, File, Nowait, OpenOptions, ReadBuffer};
use tempfile::TempDir;

use crate::common::rng::Rng;
use crate::common::{
    Watchdog, assert_settled, cold, contents, eventually, expected, has_memory, mounts, open, poll_once, writable,
};

/// An instance, and a place for files that it can open.
pub(crate) struct Ctx {
    pub(crate) nowait: Nowait,
    store: Store,
    files: Cell<usize>,
    /// Files are opened for direct I/O.
    direct: bool,
    /// A call that may wait may be served in part.
    short_calls: bool,
}

enum Store {
    Folder(TempDir),
    Simulated(Sim),
}

impl Ctx {
    /// Files on the root file system.
    pub(crate) fn new(builder: Builder) -> Ctx {
        Ctx::with(builder.build().unwrap(), mounts::temp_dir())
    }

    /// Files in a given folder.
    pub(crate) fn with(nowait: Nowait, folder: TempDir) -> Ctx {
        Ctx { nowait, store: Store::Folder(folder), files: Cell::new(0), direct: false, short_calls: false }
    }

    /// Files of a simulator with these faults.
    pub(crate) fn simulated(builder: Builder, faults: Faults) -> Ctx {
        let sim = Sim::new(Rng::for_test().next());
        sim.set_faults(faults);
        let nowait = builder.engine(Engine::Sim(sim.clone())).build().unwrap();
        let short_calls = faults.short > 0.0;
        Ctx { nowait, store: Store::Simulated(sim), files: Cell::new(0), direct: false, short_calls }
    }

    /// The same with files past the page cache.
    pub(crate) fn direct(self) -> Ctx {
        Ctx { direct: true, ..self }
    }

    /// A name that nothing has yet.
    pub(crate) fn path(&self) -> PathBuf {
        let number = self.files.replace(self.files.get() + 1);
        self.folder().unwrap_or(Path::new("")).join(format!("file-{number}"))
    }

    /// Makes a file.
    pub(crate) fn create(&self, contents: &[u8]) -> PathBuf {
        let path = self.path();
        match &self.store {
            Store::Folder(_) => std::fs::write(&path, contents).unwrap(),
            Store::Simulated(sim) => sim.create(&path, contents),
        }
        path
    }

    /// Options of a file that is read; past the page cache, where all are.
    pub(crate) fn options(&self) -> OpenOptions {
        let mut options = OpenOptions::new();
        options.read(true).direct(self.direct);
        options
    }

    /// Makes a file and opens it.
    pub(crate) fn file(&self, contents: &[u8]) -> File {
        let path = self.create(contents);
        OpenOptions::new().read(true).direct(self.direct).open_in(&self.nowait, path).wait().unwrap()
    }

    /// Makes a file and opens it for reading and writing.
    pub(crate) fn writable(&self, contents: &[u8]) -> File {
        let path = self.create(contents);
        OpenOptions::new().read(true).write(true).direct(self.direct).open_in(&self.nowait, path).wait().unwrap()
    }

    /// Drops a file's pages from the cache, where there is one.
    pub(crate) fn cool(&self, file: &File) {
        if let Store::Folder(_) = self.store {
            cold::drop_pages(file.path());
        }
    }

    /// The folder; none for a simulator.
    fn folder(&self) -> Option<&Path> {
        match &self.store {
            Store::Folder(folder) => Some(folder.path()),
            Store::Simulated(_) => None,
        }
    }
}

/// Runs the suite. Each function's name is printed before it runs, so that a failure is found.
pub(crate) fn keeps_every_promise(ctx: &Ctx) {
    // A simulated disk keeps all files in memory.
    if matches!(ctx.store, Store::Simulated(_)) && !has_memory(160 << 20) {
        return;
    }
    keeps_promises(ctx, |_| true);
}

/// Runs the promises whose names are `chosen`; returns how many.
pub(crate) fn keeps_promises(ctx: &Ctx, chosen: impl Fn(&str) -> bool) -> usize {
    let all =
        PROMISES.iter().chain(writes::PROMISES).chain(names::PROMISES).chain(started::PROMISES).chain(steps::PROMISES);
    let mut kept = 0;
    for (name, promise) in all.filter(|(name, _)| chosen(name)) {
        kept += 1;
        eprintln!("promise: {name}");
        let _watchdog = Watchdog::new(*name, 60);
        promise(ctx);
        assert_settled(&ctx.nowait);
    }
    kept
}

/// A function that is not named in its file's `promises!` would never run.
pub(crate) fn are_all_named() {
    let files = [
        (include_str!("mod.rs"), PROMISES),
        (include_str!("writes.rs"), writes::PROMISES),
        (include_str!("names.rs"), names::PROMISES),
        (include_str!("started.rs"), started::PROMISES),
        (include_str!("steps.rs"), steps::PROMISES),
    ];
    for (text, named) in files {
        let functions = text.lines().filter_map(|line| line.strip_prefix("fn ")?.strip_suffix("(ctx: &Ctx) {"));
        for function in functions {
            assert!(named.iter().any(|(name, _)| *name == function), "{function} is not named in `promises!`");
        }
    }
}

macro_rules! promises {
    ($($name:ident)*) => {
        pub(crate) const PROMISES: &[(&str, fn(&Ctx))] = &[$((stringify!($name), $name)),*];
    };
}

promises! {
    read_at_fills_the_first_bytes_of_every_kind_of_buffer
    empty_buffers_are_filled_as_far_as_they_have_room
    read_at_is_short_only_at_the_end_of_the_file
    read_at_gives_what_pread_gives_at_random_ranges
    read_range_gives_all_or_says_how_much_there_is
    vectored_reads_fill_buffer_after_buffer
    blocking_reads_fill_borrowed_memory
    a_tried_read_is_right_or_left_to_others
    size_and_advice
    closed_for_every_clone
    closing_leaves_operations_under_way_alone
    ranges_beyond_the_largest_offset_are_refused
    missing_file_is_not_found
    directory_and_fifo_are_refused_without_waiting
    what_is_no_file_is_not_taken_over
    file_opened_for_writing_cannot_be_read
    cold_and_cached_data_are_the_same
    many_in_flight_complete
    large_reads
}

/// Awaited on an executor that knows nothing of us, waited for, and driven by our own.
macro_rules! three_ways {
    ($operation:expr) => {
        [futures::executor::block_on($operation), $operation.wait(), nowait::block_on($operation)]
    };
}

// Below the macros that they use.
#[cfg(target_os = "linux")]
pub(crate) mod maps;
pub(crate) mod mix;
mod names;
mod started;
mod steps;
pub(crate) mod streams;
mod writes;

const LEN: usize = 10_000;

fn read_at_fills_the_first_bytes_of_every_kind_of_buffer(ctx: &Ctx) {
    fn check<B: ReadBuffer + AsRef<[u8]>>(ctx: &Ctx, make: impl Fn(usize) -> B) {
        let bytes = contents(LEN, 1);
        let file = ctx.file(&bytes);
        let filler = make(1).as_ref()[0];
        for len in [0, 1, 4095, 4096, LEN - 1, LEN, LEN + 1, 2 * LEN] {
            for offset in [0, 1, 4096, LEN - 1, LEN, LEN + 1, 1 << 40] {
                let offset = offset as u64;
                let right = expected(&bytes, offset, len);
                for result in three_ways!(file.read_at(make(len), offset)) {
                    let (n, buffer) = result.map_err(Error::from).unwrap();
                    let buffer = buffer.as_ref();
                    assert_eq!((n, buffer.len()), (right.len(), len), "offset {offset}");
                    assert!(buffer[..n] == *right, "offset {offset}, length {len}");
                    // A device fills whole blocks, and the kernel clears what lies behind the end
                    // of the file.
                    let rest = if ctx.direct { &[] } else { &buffer[n..] };
                    assert!(rest.iter().all(|byte| *byte == filler), "offset {offset}, length {len}");
                }
            }
        }
    }
    check(ctx, |len| vec![0xaa; len]);
    check(ctx, |len| vec![0xaa; len].into_boxed_slice());
    check(ctx, Buf::zeroed);
    #[cfg(feature = "bytes")]
    check(ctx, bytes::BytesMut::zeroed);
    // Spare capacity of a buffer with bytes in it is not used.
    let mut vec = Vec::with_capacity(100);
    vec.resize(10, 0);
    let (n, vec) = ctx.file(&contents(50, 1)).read_at(vec, 0).wait().unwrap();
    assert_eq!((n, vec.len()), (10, 10));
}

/// Symptom: a read into `Vec::with_capacity(n)` gave 0, which is the end of the file.
fn empty_buffers_are_filled_as_far_as_they_have_room(ctx: &Ctx) {
    fn check<B: ReadBuffer>(ctx: &Ctx, make: impl Fn(usize) -> B, capacity: impl Fn(&B) -> usize) {
        let bytes = contents(LEN, 14);
        let file = ctx.file(&bytes);
        for wanted in [1, 100, 4096, 5000, LEN, 2 * LEN] {
            let room = capacity(&make(wanted));
            for offset in [0, 1, 4096, LEN as u64 - 7, LEN as u64, 1 << 40] {
                let right = expected(&bytes, offset, room);
                for result in three_ways!(file.read_at(make(wanted), offset)) {
                    let (n, buffer) = result.map_err(Error::from).unwrap();
                    assert_eq!((n, capacity(&buffer)), (right.len(), room), "offset {offset}, room for {room}");
                    assert!(buffer.as_ref() == right, "offset {offset}, room for {room}: {}", buffer.as_ref().len());
                }
            }
            for result in three_ways!(file.read_at(make(wanted), i64::MAX as u64)) {
                let error = result.map(drop).unwrap_err();
                assert_eq!(error.error.kind(), ErrorKind::InvalidRange);
                assert_eq!((error.buffer.as_ref().len(), capacity(&error.buffer)), (0, room), "as it was given");
            }
        }
        let sizes = [100, 3, 5000];
        let rooms = sizes.map(|size| capacity(&make(size)));
        for offset in [0, 17, LEN as u64 - 101, LEN as u64] {
            for result in three_ways!(file.read_vectored_at(Vec::from(sizes.map(&make)), offset)) {
                let (n, buffers) = result.map_err(Error::from).unwrap();
                let mut place = offset;
                for (buffer, room) in buffers.iter().zip(rooms) {
                    assert!(buffer.as_ref() == expected(&bytes, place, room), "offset {offset}");
                    place += buffer.as_ref().len() as u64;
                }
                assert_eq!(place - offset, n as u64);
            }
        }
    }
    check(ctx, Vec::with_capacity, Vec::capacity);
    #[cfg(feature = "bytes")]
    check(ctx, bytes::BytesMut::with_capacity, bytes::BytesMut::capacity);
    // With others beside them, and such that have no room.
    let bytes = contents(LEN, 15);
    let file = ctx.file(&bytes);
    for result in three_ways!(file.read_vectored_at(vec![vec![0; 10], Vec::with_capacity(50), Vec::new()], 5)) {
        let (n, buffers) = result.unwrap();
        let room = buffers[1].capacity();
        assert_eq!((n, buffers.iter().map(Vec::len).collect::<Vec<_>>()), (10 + room, vec![10, room, 0]));
        assert!(buffers.concat() == expected(&bytes, 5, n));
    }
    for result in three_ways!(file.read_at(Vec::new(), 0)) {
        assert_eq!(result.unwrap(), (0, Vec::new()), "no room: nothing is asked for");
    }
    for result in three_ways!(file.read_at(Buf::zeroed(0), 0)) {
        let (n, buffer) = result.unwrap();
        assert_eq!((n, buffer.len()), (0, 0));
    }
}

/// One read of `len` bytes, awaited.
fn read(file: &File, offset: u64, len: usize) -> Vec<u8> {
    let (n, mut buffer) = futures::executor::block_on(file.read_at(vec![0; len], offset)).unwrap();
    buffer.truncate(n);
    buffer
}

fn read_at_is_short_only_at_the_end_of_the_file(ctx: &Ctx) {
    let bytes = contents(LEN, 2);
    let file = ctx.file(&bytes);
    for offset in LEN as u64 - 40..LEN as u64 + 3 {
        for len in 0..45 {
            assert!(read(&file, offset, len) == expected(&bytes, offset, len), "offset {offset}, length {len}");
        }
    }
    assert!(read(&ctx.file(&[]), 0, 10).is_empty());
}

fn read_at_gives_what_pread_gives_at_random_ranges(ctx: &Ctx) {
    let mut rng = Rng::for_test();
    let bytes = contents(200_000, 3);
    let file = ctx.file(&bytes);
    for _ in 0..2000 {
        let (offset, len) = (rng.below(bytes.len() + 100) as u64, rng.below(9000));
        assert!(read(&file, offset, len) == expected(&bytes, offset, len), "offset {offset}, length {len}");
    }
}

fn read_range_gives_all_or_says_how_much_there_is(ctx: &Ctx) {
    let bytes = contents(LEN, 4);
    let file = ctx.file(&bytes);
    for (offset, len) in [(0, LEN), (0, 0), (17, 4096), (LEN as u64 - 1, 1), (LEN as u64, 0), (LEN as u64 + 9, 0)] {
        for result in three_ways!(file.read_range(offset, len)) {
            assert!(*result.unwrap() == *expected(&bytes, offset, len), "offset {offset}, length {len}");
        }
    }
    for (offset, len) in [(0, LEN + 1), (LEN as u64 - 5, 6), (LEN as u64, 1), (1 << 40, 100)] {
        for result in three_ways!(file.read_range(offset, len)) {
            let error = result.unwrap_err();
            let there = expected(&bytes, offset, len).len();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
            assert_names(&error, &["read", &format!("{there} bytes"), &format!("offset {offset}")]);
            assert_names(&error, &[&file.path().display().to_string()]);
        }
    }
}

fn assert_names(error: &Error, parts: &[&str]) {
    let text = error.to_string();
    parts.iter().for_each(|part| assert!(text.contains(part), "{part:?} is missing in {text:?}"));
}

fn vectored_reads_fill_buffer_after_buffer(ctx: &Ctx) {
    let mut rng = Rng::for_test();
    let bytes = contents(LEN, 5);
    let file = ctx.file(&bytes);
    let many: Vec<usize> = (0..2000).map(|_| rng.below(8)).collect();
    let sets: [&[usize]; 8] = [&[], &[0], &[100], &[3, 0, 5000], &[0, 0, 7, 0], &[LEN, 1, 1], &[4096; 5], &many];
    for lens in sets {
        for offset in [0, 1, LEN as u64 - 3000, LEN as u64 - 2, LEN as u64 + 1] {
            let right = expected(&bytes, offset, lens.iter().sum());
            let buffers = || lens.iter().map(|len| vec![0u8; *len]).collect::<Vec<_>>();
            for result in three_ways!(file.read_vectored_at(buffers(), offset)) {
                let (n, buffers) = result.unwrap();
                assert_eq!(n, right.len());
                assert!(buffers.iter().map(Vec::len).eq(lens.iter().copied()));
                assert!(buffers.concat()[..n] == *right, "offset {offset}, {} buffers", lens.len());
            }
        }
    }
}

fn blocking_reads_fill_borrowed_memory(ctx: &Ctx) {
    let bytes = contents(LEN, 6);
    let file = ctx.file(&bytes);
    for (offset, len) in [(0, 0), (0, LEN), (5, 100), (LEN as u64 - 10, 10), (LEN as u64 - 10, 11), (1 << 40, 1)] {
        let right = expected(&bytes, offset, len);
        let mut memory = vec![0; len];
        assert_eq!(file.read_into(&mut memory, offset).unwrap(), right.len());
        assert!(memory[..right.len()] == *right);
        let exact = file.read_exact_into(&mut memory, offset);
        match right.len() == len {
            true => exact.unwrap(),
            false => {
                let error = exact.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
                assert_names(&error, &[&format!("{} bytes", right.len())]);
            }
        }
    }
}

fn a_tried_read_is_right_or_left_to_others(ctx: &Ctx) {
    let bytes = contents(LEN, 6);
    let file = ctx.file(&bytes);
    for (offset, len) in [(0, 0), (0, LEN), (5, 100), (LEN as u64 - 10, 10), (LEN as u64 - 10, 11), (1 << 40, 1)] {
        let right = expected(&bytes, offset, len);
        let mut memory = vec![0; len];
        if let Some(read) = file.try_read_into(&mut memory, offset) {
            assert_eq!(read.unwrap(), right.len());
            assert!(memory[..right.len()] == *right);
        }
    }
    assert_eq!(file.try_read_into(&mut [], 5).unwrap().unwrap(), 0);
    let error = file.try_read_into(&mut [0; 10], u64::MAX).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidRange);
}

fn size_and_advice(ctx: &Ctx) {
    for len in [0, 1, LEN] {
        let file = ctx.file(&contents(len, 7));
        for result in three_ways!(file.size()) {
            assert_eq!(result.unwrap(), len as u64);
        }
        use Advice::{DontNeed, NoReuse, Normal, Random, Sequential, WillNeed};
        for advice in [Normal, Random, Sequential, WillNeed, DontNeed, NoReuse] {
            for result in three_ways!(file.advise(0, 0, advice)) {
                match result {
                    Ok(()) => file.advise(4096, 4096, advice).wait().unwrap(),
                    Err(error) => {
                        eprintln!("skipped: {error}");
                        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                    }
                }
            }
        }
    }
}

fn closed_for_every_clone(ctx: &Ctx) {
    let file = ctx.file(&contents(LEN, 8));
    let clone = file.clone();
    assert_eq!(file.close().unwrap(), nowait::Closed::Later);
    let closed = |error: &Error| {
        assert_eq!(error.kind(), ErrorKind::Closed);
        assert_names(error, &[&clone.path().display().to_string()]);
    };
    for result in three_ways!(clone.read_at(vec![1; 9], 0)) {
        let error = result.unwrap_err();
        assert_eq!(error.buffer, [1; 9], "an error gives the buffer back");
        closed(&error.error);
    }
    three_ways!(clone.read_range(0, 9)).into_iter().for_each(|result| closed(&result.unwrap_err()));
    three_ways!(clone.size()).into_iter().for_each(|result| closed(&result.unwrap_err()));
    three_ways!(clone.advise(0, 0, Advice::Random)).into_iter().for_each(|result| closed(&result.unwrap_err()));
    closed(&clone.read_into(&mut [0; 9], 0).unwrap_err());
    assert_eq!(clone.close().unwrap(), nowait::Closed::Now);
}

fn closing_leaves_operations_under_way_alone(ctx: &Ctx) {
    let bytes = contents(1 << 20, 9);
    let file = ctx.file(&bytes);
    ctx.cool(&file);
    let clones: Vec<File> = (0..32).map(|_| file.clone()).collect();
    let offset = |i: usize| i as u64 * 32_768 + 5;
    let reads = clones.iter().enumerate().map(|(i, clone)| clone.read_at(vec![0; 4096], offset(i)));
    let mut reads: Vec<_> = reads.map(|read| Box::pin(maybe_done(read))).collect();
    for read in &mut reads {
        let _ = poll_once(read.as_mut());
    }
    file.close().unwrap();
    futures::executor::block_on(join_all(reads.iter_mut().map(|read| read.as_mut())));
    for (i, mut read) in reads.into_iter().enumerate() {
        let (n, buffer) = read.as_mut().take_output().unwrap().unwrap();
        assert!(n == 4096 && buffer == expected(&bytes, offset(i), 4096), "read {i}");
    }
}

fn ranges_beyond_the_largest_offset_are_refused(ctx: &Ctx) {
    let file = ctx.file(&contents(LEN, 10));
    let largest = i64::MAX as u64;
    assert!(read(&file, largest - 10, 10).is_empty());
    for (offset, len) in [(largest - 9, 10), (largest, 1), (largest + 1, 0), (u64::MAX, 10), (u64::MAX, 0)] {
        let refused = |error: &Error| {
            assert_eq!(error.kind(), ErrorKind::InvalidRange);
            assert_names(error, &["read", &file.path().display().to_string(), &format!("offset {offset}")]);
            assert_eq!((error.offset(), error.length()), (Some(offset), Some(len as u64)));
        };
        for result in three_ways!(file.read_at(vec![3; len], offset)) {
            let error = result.unwrap_err();
            assert_eq!(error.buffer, vec![3; len], "an error gives the buffer back");
            refused(&error.error);
        }
        for result in three_ways!(file.read_vectored_at(vec![vec![3; len]; 1], offset)) {
            let error = result.unwrap_err();
            assert_eq!(error.buffer, vec![vec![3; len]]);
            refused(&error.error);
        }
        three_ways!(file.read_range(offset, len)).into_iter().for_each(|result| refused(&result.unwrap_err()));
        refused(&file.read_into(&mut vec![0; len], offset).unwrap_err());
    }
    // Before memory is asked for.
    assert_eq!(file.read_range(1, usize::MAX).wait().unwrap_err().kind(), ErrorKind::InvalidRange);
}

/// Opening fails in this way, whoever waits for it.
fn assert_open_fails(ctx: &Ctx, path: &Path, kind: ErrorKind) {
    for result in three_ways!(OpenOptions::new().read(true).open_in(&ctx.nowait, path)) {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), kind);
        assert_names(&error, &["open", &path.display().to_string()]);
    }
}

fn missing_file_is_not_found(ctx: &Ctx) {
    let path = ctx.folder().unwrap_or(Path::new("")).join("missing");
    assert_open_fails(ctx, &path, ErrorKind::NotFound);
}

fn directory_and_fifo_are_refused_without_waiting(ctx: &Ctx) {
    let Some(folder) = ctx.folder() else { return };
    assert_open_fails(ctx, folder, ErrorKind::IsADirectory);
    #[cfg(target_os = "linux")]
    assert_open_fails(ctx, &fifo(folder, "fifo"), ErrorKind::NotSeekable);
}

#[cfg(target_os = "linux")]
fn fifo(folder: &Path, name: &str) -> PathBuf {
    let fifo = folder.join(name);
    if !fifo.exists() {
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    }
    fifo
}

/// Symptom: an eventfd was taken for a file, and a read of it never ended.
fn what_is_no_file_is_not_taken_over(ctx: &Ctx) {
    let Some(_folder) = ctx.folder() else { return };
    let path = ctx.create(b"words");
    #[cfg(target_os = "linux")]
    for (name, file, kind, advice) in no_files(_folder, &path) {
        let error = File::from_std(&ctx.nowait, file, name).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert_names(&error, &["open", name, advice]);
    }
    let taken = File::from_std(&ctx.nowait, std::fs::File::open(&path).unwrap(), &path).unwrap();
    for result in three_ways!(taken.read_range(0, 5)) {
        assert_eq!(result.unwrap()[..], *b"words");
    }
}

/// Descriptors that are not those of files, each with its error and advice.
#[cfg(target_os = "linux")]
fn no_files(folder: &Path, path: &Path) -> [(&'static str, std::fs::File, ErrorKind, &'static str); 7] {
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::OpenOptionsExt;
    let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let pipe = std::fs::File::options().read(true).write(true).open(fifo(folder, "fifo to take over")).unwrap();
    let file = |descriptor: OwnedFd| std::fs::File::from(descriptor);
    [
        ("eventfd", file(eventfd), ErrorKind::NotSeekable, "AsyncFd"),
        ("epoll", file(epoll), ErrorKind::NotSeekable, "AsyncFd"),
        ("socket", file(socket.into()), ErrorKind::NotSeekable, "AsyncFd"),
        ("pipe", pipe, ErrorKind::NotSeekable, "AsyncFd"),
        ("terminal", std::fs::File::open("/dev/ptmx").unwrap(), ErrorKind::NotSeekable, "AsyncFd"),
        ("directory", std::fs::File::open(folder).unwrap(), ErrorKind::IsADirectory, "name a file"),
        (
            "path",
            std::fs::File::options().read(true).custom_flags(libc::O_PATH).open(path).unwrap(),
            ErrorKind::InvalidInput,
            "O_PATH",
        ),
    ]
}

fn file_opened_for_writing_cannot_be_read(ctx: &Ctx) {
    let Some(_) = ctx.folder() else { return };
    let path = ctx.create(b"words");
    let file = OpenOptions::new().write(true).direct(ctx.direct).open_in(&ctx.nowait, &path).wait().unwrap();
    for result in three_ways!(file.read_at(vec![7; 5], 0)) {
        let error = result.unwrap_err();
        assert_eq!(error.error.kind(), ErrorKind::PermissionDenied);
        assert_names(&error.error, &["not opened for reading"]);
        assert_eq!(error.buffer, [7; 5], "an error gives the buffer back");
    }
}

fn cold_and_cached_data_are_the_same(ctx: &Ctx) {
    let bytes = contents(1 << 20, 11);
    let file = ctx.file(&bytes);
    for _ in 0..3 {
        ctx.cool(&file);
        // The second read finds cached what the first one brought in.
        for i in 0..32 {
            let offset = i * 31_013;
            for result in three_ways!(file.read_range(offset, 5000)) {
                assert!(*result.unwrap() == *expected(&bytes, offset, 5000), "offset {offset}");
            }
        }
    }
}

fn many_in_flight_complete(ctx: &Ctx) {
    /// More than a ring's depth.
    const READS: usize = 500;
    let bytes = contents(4 << 20, 12);
    let file = ctx.file(&bytes);
    let offset = |i: usize| (i * 7919 * 4096 + i) as u64 % (4 << 20);
    let reads = || {
        ctx.cool(&file);
        join_all((0..READS).map(|i| file.read_at(vec![0; 3000], offset(i))))
    };
    for results in [futures::executor::block_on(reads()), nowait::block_on(reads())] {
        for (i, result) in results.into_iter().enumerate() {
            let (n, buffer) = result.unwrap();
            assert!(buffer[..n] == *expected(&bytes, offset(i), 3000), "read {i}");
        }
    }
}

fn large_reads(ctx: &Ctx) {
    let bytes = contents(5 << 20, 13);
    let file = ctx.file(&bytes);
    for cold in [true, false] {
        if cold {
            ctx.cool(&file);
        }
        for result in three_ways!(file.read_range(12_345, 3 << 20)) {
            assert!(*result.unwrap() == *expected(&bytes, 12_345, 3 << 20));
        }
    }
}
