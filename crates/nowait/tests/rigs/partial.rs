//! Calls that meet a limit in their middle: small writes that were combined, batches and large writes,
//! at the end of a disk and at the length that a file may have. Each write reports its own result, and
//! what it reports is on the file.

use std::ops::Range;
use std::path::Path;

use crate::common::mounts::{Kind, Mount, free_what_was_removed, temp_dir};
use crate::common::rng::Rng;
use crate::common::{Watchdog, Way, assert_settled, child, contents, create, eventually, writing_instances};
use futures::future::join_all;
use nowait::{Error, ErrorKind, File, Nowait, Result, Written};

const LIMIT: usize = (1 << 20) + 1234;

/// How they are written: one by one, durably, in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Each,
    Durable,
    Many,
}

impl Call {
    const ALL: [Call; 3] = [Call::Each, Call::Durable, Call::Many];
}

/// Writes the pieces as one batch, which fails.
fn failed_batch(file: &File, data: &[u8], pieces: &[Range<usize>], way: Way) -> Error {
    let writes = pieces.iter().map(|piece| (piece.start as u64, data[piece.clone()].to_vec()));
    let many = file.write_many(writes.collect::<Vec<_>>());
    let result = if way == Way::Waited { many.wait() } else { way.run_future(many) };
    result.unwrap_err().error
}

/// Ranges that follow each other and cover `all`; most are small. In their order, or in another.
fn pieces(all: Range<usize>, rng: &mut Rng) -> Vec<Range<usize>> {
    let mut pieces = Vec::new();
    let mut start = all.start;
    while start < all.end {
        let most = match rng.below(32) {
            0 => 200_000,
            1..8 => 9000,
            8..20 => 4096,
            _ => 100,
        };
        let end = (start + 1 + rng.below(most)).min(all.end);
        pieces.push(start..end);
        start = end;
    }
    if rng.below(2) == 0 {
        (1..pieces.len()).for_each(|i| pieces.swap(i, rng.below(i + 1)));
    }
    pieces
}

/// Writes all of them at the same time, as far as the way allows.
fn write(file: &File, data: &[u8], pieces: &[Range<usize>], way: Way, durable: bool) -> Vec<Result<()>> {
    let write = |piece: &Range<usize>| {
        let write = file.write_all_at(data[piece.clone()].to_vec(), piece.start as u64);
        if durable { write.durable() } else { write }
    };
    let results: Vec<_> = match way {
        Way::Waited => pieces.iter().map(|piece| write(piece).wait()).collect(),
        way => way.run_future(join_all(pieces.iter().map(write))),
    };
    results.into_iter().map(|result| result.map(drop).map_err(Error::from)).collect()
}

/// The part of a piece that its result promises. If it is exact, its other bytes must not be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Promised {
    first: usize,
    exact: bool,
}

fn promised(result: &Result<()>, piece: &Range<usize>, kind: ErrorKind, durable: bool) -> Promised {
    match result {
        Ok(()) => Promised { first: piece.len(), exact: true },
        Err(error) => {
            assert_eq!(error.kind(), kind, "{error}");
            assert_eq!(
                (error.offset(), error.length()),
                (Some(piece.start as u64), Some(piece.len() as u64)),
                "{error}"
            );
            let (n, exact) = match error.bytes_written() {
                Some(Written::First(n)) => (n as usize, true),
                // A durable write's error may be that of its sync.
                Some(Written::AtLeast(n)) if durable => (n as usize, false),
                _ => panic!("{error}"),
            };
            assert!(n < piece.len(), "{error}");
            Promised { first: n, exact }
        }
    }
}

fn assert_on_file(path: &Path, data: &[u8], piece: &Range<usize>, promised: Promised) {
    let now = std::fs::read(path).unwrap();
    let of = |range: Range<usize>| now.get(range.start.min(now.len())..range.end.min(now.len())).unwrap();
    let end = piece.start + promised.first;
    assert!(of(piece.start..end) == &data[piece.start..end], "{piece:?}, {promised:?}");
    assert!(
        !promised.exact || of(end..piece.end).iter().all(|byte| *byte == 0),
        "{piece:?} has more than {promised:?}"
    );
}

/// Instances, one of which leaves every buffered write to a thread.
fn instances() -> Vec<Nowait> {
    let strict = Nowait::builder().strict(true).build().unwrap();
    writing_instances().into_iter().chain([strict]).collect()
}

#[test]
fn writes_across_the_length_that_a_file_may_have() {
    child::play("limit");
}

fn under_a_limit() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let _watchdog = Watchdog::new("writes across a limit", 120);
    let limit = Some(LIMIT as u64);
    setrlimit(Resource::Fsize, Rlimit { current: limit, maximum: limit }).unwrap();
    let (folder, mut rng) = (temp_dir(), Rng::for_test());
    let path = folder.path().join("file");
    let data = contents(LIMIT + 100_000, 3);
    for nowait in instances() {
        for (way, call) in Way::ALL.into_iter().flat_map(|way| Call::ALL.map(|call| (way, call))) {
            for _ in 0..if call == Call::Durable { 1 } else { 4 } {
                let file = create(&nowait, &path);
                let pieces = pieces(LIMIT - 300_000..data.len(), &mut rng);
                let right = |piece: &Range<usize>| LIMIT.clamp(piece.start, piece.end) - piece.start;
                let durable = call == Call::Durable;
                if call == Call::Many {
                    let error = failed_batch(&file, &data, &pieces, way);
                    let first = pieces.iter().position(|piece| right(piece) < piece.len()).unwrap();
                    assert_eq!((error.kind(), error.range_index()), (ErrorKind::FileTooLarge, Some(first)), "{error}");
                    assert_eq!(error.bytes_written(), Some(Written::First(right(&pieces[first]) as u64)), "{error}");
                } else {
                    let results = write(&file, &data, &pieces, way, durable);
                    for (piece, result) in pieces.iter().zip(&results) {
                        let promised = promised(result, piece, ErrorKind::FileTooLarge, durable);
                        assert_eq!(promised.first, right(piece), "{piece:?}, {way:?}, {call:?}");
                    }
                }
                let now = std::fs::read(&path).unwrap();
                assert!(
                    now.len() == LIMIT && now[LIMIT - 300_000..] == data[LIMIT - 300_000..LIMIT],
                    "{way:?}, {call:?}"
                );
                drop(file);
                std::fs::remove_file(&path).unwrap();
            }
        }
        assert_settled(&nowait);
    }
}

#[test]
fn writes_across_the_end_of_a_disk() {
    let _watchdog = Watchdog::new("writes across the end of a disk", 180);
    if !crate::common::has_memory(80 << 20) {
        return;
    }
    let mut rng = Rng::for_test();
    let data = contents(1 << 20, 4);
    for kind in [Kind::Tmpfs, Kind::Ext4] {
        let Some(mount) = Mount::sized_or_skip(kind, 24 << 20) else { continue };
        let (ballast, path) = (mount.path().join("ballast"), mount.path().join("file"));
        for nowait in instances() {
            for (way, call) in Way::ALL.into_iter().flat_map(|way| Call::ALL.map(|call| (way, call))) {
                if (way, call) == (Way::Waited, Call::Durable) {
                    // Hundreds of syncs, one after the other.
                    continue;
                }
                free_what_was_removed(mount.path());
                leave_room(&ballast, 400_000);
                let file = create(&nowait, &path);
                let pieces = pieces(0..data.len(), &mut rng);
                let durable = call == Call::Durable;
                if call == Call::Many {
                    let error = failed_batch(&file, &data, &pieces, way);
                    let index = error.range_index().unwrap();
                    // The first that is not there.
                    let whole = |piece: &Range<usize>| Promised { first: piece.len(), exact: true };
                    pieces[..index].iter().for_each(|piece| assert_on_file(&path, &data, piece, whole(piece)));
                    let there = promised(&Err(error), &pieces[index], ErrorKind::NoSpace, false);
                    assert_on_file(&path, &data, &pieces[index], there);
                } else {
                    let results = write(&file, &data, &pieces, way, durable);
                    // A failed sync fails all durable writes until it is acknowledged.
                    let whole = results.iter().filter(|result| result.is_ok()).count();
                    assert!(
                        (usize::from(!durable)..pieces.len()).contains(&whole),
                        "{whole} of {}: {kind:?}, {way:?}, {call:?}",
                        pieces.len()
                    );
                    for (piece, result) in pieces.iter().zip(&results) {
                        assert_on_file(&path, &data, piece, promised(result, piece, ErrorKind::NoSpace, durable));
                    }
                }
                // There is room again.
                std::fs::remove_file(&ballast).unwrap();
                assert!(eventually(|| write(&file, &data, &pieces, way, durable).iter().all(Result::is_ok)));
                assert!(std::fs::read(&path).unwrap() == data);
                if durable {
                    // Their errors were those of syncs, and all is written again.
                    file.acknowledge_sync_failure();
                }
                file.sync_all().wait().unwrap();
                drop(file);
                std::fs::remove_file(&path).unwrap();
            }
            assert_settled(&nowait);
        }
    }
}

/// Fills the disk, but for so many bytes, give or take some blocks.
fn leave_room(ballast: &Path, bytes: u64) {
    let file = std::fs::File::create(ballast).unwrap();
    let (mut length, mut more) = (0, 16 << 20);
    while more >= 4096 {
        match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), length, more) {
            Ok(()) => length += more,
            Err(_) => more /= 2,
        }
    }
    let free = || rustix::fs::fstatvfs(&file).map(|statistics| statistics.f_bfree * statistics.f_frsize).unwrap();
    let before = free();
    file.set_len(length - bytes).unwrap();
    free_what_was_removed(ballast.parent().unwrap());
    // The journal gives them back late.
    assert!(eventually(|| free() >= before + bytes / 2));
}

#[test]
fn child() {
    if child::role().as_deref() == Some("limit") {
        under_a_limit();
    }
}
