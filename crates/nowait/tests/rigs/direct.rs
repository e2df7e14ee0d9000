//! Direct I/O at any place, of any length, to and from any memory: on files of every file system
//! and on block devices.
//!
//! The oracle is a copy of the contents in memory, sliced.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use crate::common::mounts::{Kind, LoopDevice, Mount, Zram, or_skip, temp_dir};
use crate::common::rng::Rng;
use crate::common::{Watchdog, Way, assert_settled, contents, expected, put};
use futures::future::join_all;
use nowait::{Buf, DirectIo, Engine, ErrorKind, File, Nowait, OpenOptions, Written};

const PAGE: usize = 4096;

/// Both sides of each place where something ends.
const SIZES: [usize; 14] =
    [0, 1, 511, 512, 513, 4095, 4096, 4097, 8191, 8192, 8193, (1 << 20) - 1, 1 << 20, (1 << 20) + 1];
const LENGTHS: [usize; 7] = [1, 511, 512, 513, 4095, 4096, 4097];

/// Where the tests of files run: a folder of the root file system, or of one mounted for it.
fn in_every_folder(test: impl Fn(&Path)) {
    let root = temp_dir();
    test(root.path());
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Tmpfs, Kind::Overlay] {
        if let Some(mount) = Mount::or_skip(kind) {
            eprintln!("on {kind:?}");
            test(mount.path());
        }
    }
}

/// Block devices with these bytes, and the size of their blocks.
fn on_every_device(bytes: &[u8], test: impl Fn(&Path, usize)) {
    for block_bytes in [512, PAGE] {
        let made = LoopDevice::new(bytes, block_bytes as u32);
        if let Some(device) = or_skip(&format!("a device with blocks of {block_bytes} bytes"), made) {
            eprintln!("on a device with blocks of {block_bytes} bytes");
            test(device.path(), block_bytes);
        }
    }
}

/// One for each way in which direct I/O can be served.
fn instances() -> Vec<Nowait> {
    let made = [Engine::Auto, Engine::Aio, Engine::Pool].map(|engine| Nowait::builder().engine(engine).build());
    made.into_iter().filter_map(|made| made.inspect_err(|error| eprintln!("skipped: {error}")).ok()).collect()
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).direct(true);
    options
}

fn open(nowait: &Nowait, path: &Path) -> File {
    options().open_in(nowait, path).wait().unwrap()
}

/// Both sides of the first sectors' ends, of the end of the file, and of a page behind it.
fn offsets(size: usize) -> BTreeSet<u64> {
    let ends = (0..3 * PAGE / 512).map(|i| i * 512).chain([size, size + PAGE]);
    ends.flat_map(|end| [end.saturating_sub(1), end, end + 1]).map(|offset| offset as u64).collect()
}

/// Lengths that end inside a block, with it, behind it; and on both sides of the end of the file.
fn lengths(size: usize, offset: u64) -> BTreeSet<usize> {
    let rest = size.saturating_sub(offset as usize);
    LENGTHS.into_iter().chain([rest.saturating_sub(1), rest, rest + 1]).collect()
}

const FILLER: u8 = 0xaa;
/// Lies as no device likes it.
const PIECES: [usize; 3] = [1, 3, 511];

/// `length` bytes in pieces.
fn pieces<T>(length: usize, piece: impl FnMut(std::ops::Range<usize>) -> T) -> Vec<T> {
    let ends: Vec<usize> = PIECES.iter().scan(0, |end, piece| Some(std::mem::replace(end, *end + piece))).collect();
    let ends: Vec<usize> = ends.into_iter().chain([PIECES.iter().sum(), length]).map(|end| end.min(length)).collect();
    ends.windows(2).map(|pair| pair[0]..pair[1]).map(piece).collect()
}

/// One read, into memory of some kind; what it gave, and the whole of that memory.
fn read_somehow(file: &File, offset: u64, length: usize, rng: &mut Rng) -> (usize, Vec<u8>, String) {
    let way = Way::ALL[rng.below(3)];
    let (kind, n, memory) = match rng.below(4) {
        0 => {
            let mut memory = vec![FILLER; length + 2];
            let odd = (memory.as_ptr() as usize + 1) % 2;
            let n = file.read_into(&mut memory[odd..odd + length], offset).unwrap();
            let mut beside = memory[..odd].iter().chain(&memory[odd + length..]);
            assert!(beside.all(|byte| *byte == FILLER), "beside the slice: offset {offset}, length {length}");
            ("an odd slice", n, memory[odd..odd + length].to_vec())
        }
        1 => {
            let (n, memory) = way.run(file.read_at(vec![FILLER; length], offset)).unwrap();
            ("Vec", n, memory)
        }
        2 => {
            let mut buffer = Buf::zeroed(length);
            buffer.fill(FILLER);
            let (n, memory) = way.run(file.read_at(buffer, offset)).unwrap();
            ("Buf", n, memory.to_vec())
        }
        _ => {
            let buffers = pieces(length, |range| vec![FILLER; range.len()]);
            let (n, buffers) = way.run(file.read_vectored_at(buffers, offset)).unwrap();
            ("pieces", n, buffers.concat())
        }
    };
    (n, memory, format!("{kind}, {way:?}: offset {offset}, length {length}"))
}

/// Reads on both sides of all that ends. Of memory behind what was read, the kernel clears some,
/// and a device fills the rest of the last block with what is `behind` the end (btrfs). Nothing
/// else gets there.
fn reads_are_right(file: &File, bytes: &[u8], behind: &[u8], rng: &mut Rng) {
    for offset in offsets(bytes.len()) {
        for length in lengths(bytes.len(), offset) {
            let (n, memory, what) = read_somehow(file, offset, length, rng);
            let right = expected(bytes, offset, length);
            assert_eq!((n, memory.len()), (right.len(), length), "{what} of {}", bytes.len());
            assert!(memory[..n] == *right, "{what} of {}", bytes.len());
            let last_block = bytes.len().next_multiple_of(PAGE);
            let is_known = |(place, byte): (usize, &u8)| {
                let is_behind = place < last_block && behind.get(place - bytes.len()) == Some(byte);
                *byte == FILLER || is_behind || *byte == 0 && (offset as usize) < last_block
            };
            assert!(
                (offset as usize + n..).zip(&memory[n..]).all(is_known),
                "behind the end: {what} of {}",
                bytes.len()
            );
        }
    }
}

#[test]
fn reads_of_files_at_any_place_give_what_is_there() {
    let _watchdog = Watchdog::new("reads of files", 300);
    let rng = &mut Rng::for_test();
    let seed = rng.next();
    in_every_folder(|folder| {
        let mut rng = Rng::new(seed);
        for nowait in instances() {
            for size in SIZES {
                // Bytes that were cut off lie behind the end, in the last block.
                let path = folder.join(format!("read-{size}"));
                let all = contents(size + PAGE, size as u64);
                std::fs::write(&path, &all).unwrap();
                let cut = std::fs::File::options().write(true).open(&path).unwrap();
                cut.sync_all().unwrap();
                cut.set_len(size as u64).unwrap();
                reads_are_right(&open(&nowait, &path), &all[..size], &all[size..], &mut rng);
            }
            assert_settled(&nowait);
        }
    });
}

#[test]
fn reads_of_devices_at_any_place_give_what_is_there() {
    let _watchdog = Watchdog::new("reads of devices", 120);
    let seed = Rng::for_test().next();
    let bytes = contents(1 << 20, 1);
    on_every_device(&bytes, |path, block_bytes| {
        let mut rng = Rng::new(seed);
        for nowait in instances() {
            let file = open(&nowait, path);
            assert!(
                matches!(file.direct(), DirectIo::Granted { offset_alignment, .. } if offset_alignment == block_bytes)
            );
            assert_eq!(file.size().wait().unwrap(), bytes.len() as u64);
            reads_are_right(&file, &bytes, &[], &mut rng);
            assert_settled(&nowait);
        }
    });
}

/// Returns a file's contents as others see them, through the page cache, and as we do.
#[track_caller]
fn assert_holds(file: &File, bytes: &[u8], what: &str) {
    assert_eq!(file.size().wait().unwrap(), bytes.len() as u64, "size after {what}");
    let differs = |there: &[u8]| there.iter().zip(bytes).position(|(a, b)| a != b);
    let cached = std::fs::read(file.path()).unwrap();
    assert!(cached == bytes, "others differ at {:?} after {what}", differs(&cached));
    let mut direct = vec![FILLER; bytes.len() + 1];
    let n = file.read_into(&mut direct, 0).unwrap();
    assert!(direct[..n] == *bytes, "{n} bytes, which differ at {:?}, after {what}", differs(&direct[..n]));
}

/// One write, of memory of some kind, durable or not.
fn write_somehow(file: &File, data: &[u8], offset: u64, rng: &mut Rng) -> String {
    let way = Way::ALL[rng.below(3)];
    let durable = rng.below(6) == 0;
    let length = data.len();
    let kind = match rng.below(4) {
        0 => {
            let mut memory = vec![FILLER; length + 2];
            let odd = (memory.as_ptr() as usize + 1) % 2;
            memory[odd..odd + length].copy_from_slice(data);
            assert_eq!(file.write_from(&memory[odd..odd + length], offset).unwrap(), length);
            "an odd slice"
        }
        1 => {
            let write = file.write_all_at(data.to_vec(), offset);
            assert!(way.run(if durable { write.durable() } else { write }).unwrap() == data);
            "Vec"
        }
        2 => {
            let mut buffer = Buf::zeroed(length);
            buffer.copy_from_slice(data);
            let write = file.write_all_at(buffer, offset);
            assert!(*way.run(if durable { write.durable() } else { write }).unwrap() == *data);
            "Buf"
        }
        _ => {
            let write = file.write_vectored_at(pieces(length, |range| data[range].to_vec()), offset);
            let (n, back) = way.run(if durable { write.durable() } else { write }).unwrap();
            assert!(n == length && back.concat() == data);
            "pieces"
        }
    };
    format!("{kind}, {way:?}, durable {durable}: offset {offset}, length {length}")
}

fn one_of<T: Copy + Ord>(set: BTreeSet<T>, rng: &mut Rng) -> T {
    *set.iter().nth(rng.below(set.len())).unwrap()
}

#[test]
fn writes_of_files_at_any_place_change_that_and_nothing_else() {
    const WRITES: usize = 15;
    let _watchdog = Watchdog::new("writes of files", 400);
    let seed = Rng::for_test().next();
    in_every_folder(|folder| {
        let mut rng = Rng::new(seed);
        for nowait in instances() {
            for size in SIZES {
                let path = folder.join(format!("write-{size}"));
                let mut bytes = contents(size, size as u64);
                std::fs::write(&path, &bytes).unwrap();
                let file = open(&nowait, &path);
                for _ in 0..WRITES {
                    let offset = one_of(offsets(size), &mut rng);
                    let data = contents(one_of(lengths(size, offset), &mut rng), rng.next());
                    let what = write_somehow(&file, &data, offset, &mut rng);
                    put(&mut bytes, offset, &data);
                    assert_holds(&file, &bytes, &what);
                }
            }
            assert_settled(&nowait);
        }
    });
}

#[test]
fn appends_go_to_the_end() {
    let _watchdog = Watchdog::new("appends", 200);
    let seed = Rng::for_test().next();
    in_every_folder(|folder| {
        let mut rng = Rng::new(seed);
        for nowait in instances() {
            for size in [0, 1, 512, 4095, 4096, 8193] {
                let path = folder.join("append");
                let mut bytes = contents(size, size as u64);
                std::fs::write(&path, &bytes).unwrap();
                let positioned = open(&nowait, &path);
                // (The kernel ignores the offset of what is written by one that was opened so.)
                let opened = options().append(true).open_in(&nowait, &path).wait().unwrap();
                for number in 0..12 {
                    let data = contents(LENGTHS[rng.below(LENGTHS.len())], rng.next());
                    let way = Way::ALL[rng.below(3)];
                    let what = match number % 4 {
                        0 => {
                            way.run(positioned.append(data.clone())).unwrap();
                            "append".to_string()
                        }
                        1 => {
                            way.run(opened.append(data.clone()).durable()).unwrap();
                            "append to a file opened for it".to_string()
                        }
                        _ => write_somehow(&opened, &data, rng.below(2 * PAGE) as u64, &mut rng),
                    };
                    bytes.extend_from_slice(&data);
                    assert_holds(&positioned, &bytes, &format!("{what}, {} bytes, {way:?}", data.len()));
                }
            }
            assert_settled(&nowait);
        }
    });
}

#[test]
fn writes_of_devices_at_any_place_change_that_and_nothing_else() {
    const SIZE: usize = 128 << 10;
    let _watchdog = Watchdog::new("writes of devices", 120);
    let seed = Rng::for_test().next();
    on_every_device(&contents(SIZE, 1), |path, _| {
        let mut rng = Rng::new(seed);
        let mut bytes = contents(SIZE, 1);
        for nowait in instances() {
            let file = open(&nowait, path);
            for _ in 0..80 {
                let offset = one_of(offsets(SIZE).range(..SIZE as u64).copied().collect(), &mut rng);
                let length = one_of(lengths(SIZE, offset), &mut rng).min(SIZE - offset as usize);
                let data = contents(length, rng.next());
                let what = write_somehow(&file, &data, offset, &mut rng);
                put(&mut bytes, offset, &data);
                assert_holds(&file, &bytes, &what);
            }
            // A device does not grow.
            for way in Way::ALL {
                let data = contents(2 * PAGE, rng.next());
                let offset = (SIZE - 700) as u64;
                let written = match way.run(file.write_at(data.clone(), offset)) {
                    Ok((n, back)) => {
                        assert!(back == data);
                        n
                    }
                    Err(error) => {
                        assert_eq!(error.error.kind(), ErrorKind::NoSpace, "{error}");
                        assert!(error.buffer == data);
                        0
                    }
                };
                assert!(written <= 700, "{written}");
                let there = file.read_range(offset, 700).wait().unwrap();
                assert!(there[..written] == data[..written]);
                bytes[offset as usize..].copy_from_slice(&there);
                assert_holds(&file, &bytes, &format!("a write over the end of a device, {way:?}"));
            }
            assert_settled(&nowait);
        }
    });
}

/// Writes under way at a time, of which no two share a byte but many a page, lose nothing of each
/// other: one that does not suit the device goes through the page cache, and would otherwise bring
/// back what another writes directly beside it.
fn disjoint_writes_all_arrive(file: &File, nowait: &Nowait, mut bytes: Vec<u8>, rounds: usize, rng: &mut Rng) {
    for round in 0..rounds {
        let mut writes: [Vec<(u64, Vec<u8>)>; 5] = Default::default();
        let mut start = 0;
        while start < bytes.len() {
            // Whole sectors, as many sectors as end a page, or anything.
            let length = match rng.below(4) {
                0 if start % 512 == 0 => 512,
                1 if start % 512 == 0 => PAGE - start % PAGE,
                2 => 512 - start % 512,
                _ => 1 + rng.below(600),
            };
            let length = length.min(bytes.len() - start);
            let data = contents(length, rng.next());
            put(&mut bytes, start as u64, &data);
            writes[rng.below(5)].push((start as u64, data));
            start += length;
        }
        let [first, second, third, fourth, fifth] = &writes;
        let aligned = |data: &[u8]| {
            let mut buffer = Buf::zeroed(data.len());
            buffer.copy_from_slice(data);
            buffer
        };
        let all = |writes: &'_ [(u64, Vec<u8>)]| {
            join_all(writes.iter().map(|(offset, data)| file.write_all_at(aligned(data), *offset)).collect::<Vec<_>>())
        };
        std::thread::scope(|scope| {
            for waited in [first, second] {
                scope.spawn(move || {
                    waited
                        .iter()
                        .for_each(|(offset, data)| drop(file.write_all_at(aligned(data), *offset).wait().unwrap()));
                });
            }
            scope.spawn(move || {
                third.iter().for_each(|(offset, data)| file.write_all_from(&aligned(data), *offset).unwrap())
            });
            scope.spawn(|| nowait::block_on(all(fourth)).into_iter().for_each(|written| drop(written.unwrap())));
            scope.spawn(|| {
                futures::executor::block_on(all(fifth)).into_iter().for_each(|written| drop(written.unwrap()));
            });
        });
        assert_settled(nowait);
        let mut there = vec![0; bytes.len()];
        file.read_exact_into(&mut there, 0).unwrap();
        let differs = |there: &[u8]| there.iter().zip(&bytes).position(|(a, b)| a != b);
        assert_eq!(differs(&there), None, "round {round}");
        let others = std::fs::File::open(file.path()).unwrap();
        others.read_exact_at(&mut there, 0).unwrap();
        assert_eq!(differs(&there), None, "others, in round {round}");
    }
}

#[test]
fn disjoint_writes_of_the_same_pages_all_arrive() {
    const SIZE: usize = 6 * PAGE;
    const ROUNDS: usize = 5;
    let _watchdog = Watchdog::new("disjoint writes", 300);
    let seed = Rng::for_test().next();
    let bytes = contents(SIZE, 1);
    in_every_folder(|folder| {
        let path = folder.join("disjoint");
        std::fs::write(&path, &bytes).unwrap();
        for nowait in instances() {
            disjoint_writes_all_arrive(&open(&nowait, &path), &nowait, bytes.clone(), ROUNDS, &mut Rng::new(seed));
        }
    });
    on_every_device(&bytes, |path, _| {
        for nowait in instances() {
            disjoint_writes_all_arrive(&open(&nowait, path), &nowait, bytes.clone(), ROUNDS, &mut Rng::new(seed));
        }
    });
}

#[test]
fn reads_beside_truncation_give_the_file_or_zeros() {
    const SIZE: usize = 64 << 10;
    const READS: usize = 1500;
    let _watchdog = Watchdog::new("reads beside truncation", 200);
    let seed = Rng::for_test().next();
    // No byte is zero.
    let bytes: Vec<u8> = contents(SIZE, 1).into_iter().map(|byte| byte | 1).collect();
    in_every_folder(|folder| {
        for nowait in instances() {
            let path = folder.join("cut");
            std::fs::write(&path, &bytes).unwrap();
            let file = open(&nowait, &path);
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut rng = Rng::new(seed);
                    let other = std::fs::File::options().write(true).open(&path).unwrap();
                    while !done.load(SeqCst) {
                        other.set_len(rng.below(SIZE) as u64).unwrap();
                        other.set_len((SIZE - rng.below(2) * rng.below(SIZE)) as u64).unwrap();
                        if rng.below(4) == 0 {
                            other.write_all_at(&bytes, 0).unwrap();
                        }
                    }
                });
                let mut rng = Rng::new(seed + 1);
                let reads = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    for _ in 0..READS {
                        let (offset, length) = (rng.below(SIZE), 1 + rng.below(3 * PAGE));
                        let (n, memory, what) = read_somehow(&file, offset as u64, length, &mut rng);
                        let right = &bytes[offset..];
                        assert!(n <= right.len(), "{n} bytes: {what}");
                        let is_right = |(byte, right): (&u8, &u8)| byte == right || *byte == 0;
                        assert!(memory[..n].iter().zip(right).all(is_right), "{what}");
                    }
                }));
                done.store(true, SeqCst);
                reads.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            });
            assert_settled(&nowait);
        }
    });
}

#[test]
fn a_file_in_memory_is_served_through_the_page_cache() {
    let Some(mount) = Mount::or_skip(Kind::Tmpfs) else { return };
    let bytes = contents(3 * PAGE + 5, 1);
    for nowait in instances() {
        let path = mount.path().join("file");
        std::fs::write(&path, &bytes).unwrap();
        let file = open(&nowait, &path);
        assert_eq!(file.direct(), DirectIo::Refused);
        assert!(*file.read_range(1, 3 * PAGE).wait().unwrap() == bytes[1..1 + 3 * PAGE]);
        assert_eq!(nowait.stats().widened_bytes, 0);
        let plain = OpenOptions::new().read(true).open_in(&nowait, &path).wait().unwrap();
        assert_eq!(plain.direct(), DirectIo::NotAsked);
    }
}

/// How many of this process's descriptors are of the file.
fn descriptors(path: &Path) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    links.filter(|link| std::fs::read_link(link.as_ref().unwrap().path()).is_ok_and(|to| to == path)).count()
}

#[test]
fn what_a_descriptor_may_not_do_is_not_done_by_another() {
    let folder = temp_dir();
    let path = folder.path().join("file");
    let bytes = contents(3 * PAGE + 100, 1);
    std::fs::write(&path, &bytes).unwrap();
    for nowait in instances() {
        let file = OpenOptions::new().read(true).direct(true).open_in(&nowait, &path).wait().unwrap();
        for (offset, length) in [(0, PAGE), (PAGE, 2 * PAGE), (1, 5), (100, 2 * PAGE), (3 * PAGE + 100, 1)] {
            let mut data = Buf::zeroed(length);
            data.fill(FILLER);
            for way in Way::ALL {
                let error = way.run(file.write_all_at(data, offset as u64)).unwrap_err();
                assert_eq!(error.error.kind(), ErrorKind::PermissionDenied, "{error}");
                assert_eq!(error.error.bytes_written(), Some(Written::First(0)), "{error}");
                assert!(error.buffer.iter().all(|byte| *byte == FILLER));
                data = error.buffer;
            }
            let error = file.write_from(&data, offset as u64).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        }
        assert_eq!(file.append(vec![1; 9]).wait().unwrap_err().error.kind(), ErrorKind::PermissionDenied);
        assert!(std::fs::read(&path).unwrap() == bytes);
        assert_eq!(descriptors(&path), 1);
        file.close().unwrap();
        assert!(crate::common::eventually(|| descriptors(&path) == 0));
    }
}

#[test]
fn the_page_cache_has_a_descriptor_of_its_own_only_once_it_is_needed() {
    let folder = temp_dir();
    let path = folder.path().join("file");
    std::fs::write(&path, contents(3 * PAGE, 1)).unwrap();
    for nowait in instances() {
        let file = open(&nowait, &path);
        if file.direct() == DirectIo::Refused {
            eprintln!("skipped: {} has no direct I/O", path.display());
            return;
        }
        for way in Way::ALL {
            way.run(file.write_all_at(Buf::zeroed(PAGE), PAGE as u64)).unwrap();
            way.run(file.write_all_at(vec![1; 2 * PAGE + 1][1..].to_vec(), 0)).unwrap();
            way.run(file.read_at(vec![0; 5], 7)).unwrap();
        }
        file.write_from(&[3; PAGE + 1][1..], 0).unwrap();
        assert_eq!(descriptors(&path), 1);
        file.write_from(&[3; 10], 0).unwrap();
        assert_eq!(descriptors(&path), 2);
        file.close().unwrap();
        assert!(crate::common::eventually(|| descriptors(&path) == 0));
    }
}

/// Takes all the room that there is. What was promised to pages is only then known.
fn fill(path: &Path) {
    /// The smallest block that a file system has.
    const BLOCK: usize = 1024;
    let filler = std::fs::File::create(path).unwrap();
    let mut place = 0;
    for _ in 0..3 {
        while filler.write_all_at(&[1; BLOCK], place).is_ok() {
            place += BLOCK as u64;
        }
        let _ = filler.sync_all();
    }
}

/// The part of a write that a full file system has taken is there, the buffer comes back, and the
/// rest of the file is as it was.
#[test]
fn a_full_file_system_is_told() {
    let Some(mount) = Mount::sized_or_skip(Kind::Ext4, 16 << 20) else { return };
    let _watchdog = Watchdog::new("a full file system", 60);
    let (path, filler) = (mount.path().join("file"), mount.path().join("filler"));
    let bytes = contents(2 * PAGE, 1);
    for nowait in instances() {
        for (offset, length) in
            [(2 * PAGE, 64 * PAGE), (2 * PAGE, PAGE), (2 * PAGE - 100, 64 * PAGE), (2 * PAGE + 1, 100)]
        {
            for way in Way::ALL {
                std::fs::write(&path, &bytes).unwrap();
                fill(&filler);
                let file = open(&nowait, &path);
                let mut data = Buf::zeroed(length);
                data.copy_from_slice(&contents(length, 9));
                let error = way.run(file.write_all_at(data, offset as u64)).unwrap_err();
                assert_eq!(error.error.kind(), ErrorKind::NoSpace, "{error}");
                assert!(*error.buffer == contents(length, 9), "the buffer comes back");
                let Some(Written::First(n) | Written::AtLeast(n)) = error.error.bytes_written() else {
                    panic!("how much is not told: {error}");
                };
                assert!((n as usize) < length, "{error}");
                let mut right = bytes.clone();
                put(&mut right, offset as u64, &error.buffer[..n as usize]);
                let there = std::fs::read(&path).unwrap();
                assert!(there.starts_with(&right), "{error}: {} bytes", there.len());
                assert!(there.len() < offset + length, "{error}: {} bytes", there.len());
                drop(file);
                std::fs::remove_file(&filler).unwrap();
            }
        }
        assert_settled(&nowait);
    }
}

#[test]
fn gathers_take_any_ranges() {
    let _watchdog = Watchdog::new("gathers", 200);
    let seed = Rng::for_test().next();
    in_every_folder(|folder| {
        let mut rng = Rng::new(seed);
        for nowait in instances() {
            for size in [1, 4095, 100_001] {
                let path = folder.join("gather");
                let all = contents(size + PAGE, 3);
                std::fs::write(&path, &all).unwrap();
                let cut = std::fs::File::options().write(true).open(&path).unwrap();
                cut.sync_all().unwrap();
                cut.set_len(size as u64).unwrap();
                let bytes = &all[..size];
                let file = open(&nowait, &path);
                for _ in 0..20 {
                    // Unaligned, aligned, overlapping, over the end and beyond it.
                    let mut ranges: Vec<(u64, usize)> = (0..30)
                        .map(|_| (rng.below(size + 100) as u64, LENGTHS[rng.below(LENGTHS.len())]))
                        .chain([(0, PAGE), (size as u64, 10), (size as u64 - 1, 2 * PAGE), (1 << 40, 3)])
                        .collect();
                    ranges.push(((size / PAGE * PAGE) as u64, PAGE));
                    let before = nowait.stats().widened_bytes;
                    let total: usize = ranges.iter().map(|range| range.1).sum();
                    let mut packed = Vec::new();
                    let mut end = 0;
                    for (offset, length) in &ranges {
                        packed.extend_from_slice(expected(bytes, *offset, *length));
                        end += length;
                        packed.resize(end, 0);
                    }
                    let gathered = [
                        file.gather(&ranges).wait().unwrap(),
                        nowait::block_on(file.gather(&ranges)).unwrap(),
                        futures::executor::block_on(file.gather(&ranges)).unwrap(),
                    ];
                    for gathered in gathered {
                        for (i, (offset, length)) in ranges.iter().enumerate() {
                            let right = expected(bytes, *offset, *length);
                            assert!(*gathered.get(i).unwrap() == *right, "{length} bytes at {offset} of {size}");
                        }
                        assert!(*gathered.into_buffer() == packed[..], "zero where the file has nothing, of {size}");
                    }
                    let mut output = vec![FILLER; total];
                    let short = file.gather_into(&ranges, &mut output).unwrap();
                    assert!(short.errors().is_empty() && output == packed, "of {size}");
                    // Two edges a range at the most, four times.
                    let widened = nowait.stats().widened_bytes - before;
                    assert!(widened <= (4 * ranges.len() * 2 * PAGE) as u64, "{widened}");
                }
            }
            assert_settled(&nowait);
        }
    });
}

/// A device in memory refuses `RWF_NOWAIT`: a ring would hand each read to a kernel worker. Who is
/// not to wait has it done by a thread, or in no time.
#[test]
fn a_device_that_refuses_attempts_is_no_rings_business() {
    const SIZE: usize = 1 << 20;
    let Some(device) = or_skip("zram", Zram::new(SIZE as u64)) else { return };
    let mut bytes = contents(SIZE, 1);
    std::fs::File::options().write(true).open(device.path()).unwrap().write_all_at(&bytes, 0).unwrap();
    for nowait in instances() {
        let file = open(&nowait, device.path());
        // It says 512, and writes to the memory before (seen on 6.18).
        assert_eq!(file.direct(), DirectIo::Granted { memory_alignment: PAGE, offset_alignment: PAGE });
        assert_eq!(file.nowait_reads(), Some(false));
        reads_are_right(&file, &bytes, &[], &mut Rng::for_test());
        let rng = &mut Rng::for_test();
        for _ in 0..20 {
            let offset = one_of(offsets(SIZE).range(..SIZE as u64).copied().collect(), rng);
            let length = one_of(lengths(SIZE, offset), rng).min(SIZE - offset as usize);
            let data = contents(length, rng.next());
            let what = write_somehow(&file, &data, offset, rng);
            put(&mut bytes, offset, &data);
            assert_holds(&file, &bytes, &what);
        }
        assert_settled(&nowait);
        let stats = nowait.stats();
        assert_eq!((stats.ring, stats.aio, stats.handed_on), (0, 0, 0), "{stats:?}");
        assert!(stats.inline + stats.pool > 0, "{stats:?}");
    }
}

/// btrfs copies on write, and a ring has a kernel worker do it: one write of a file after the
/// other.
#[test]
fn overwrites_that_only_kernel_workers_could_do_go_to_threads() {
    const WRITERS: usize = 16;
    const BLOCKS_OF_EACH: usize = 4;
    const WRITES: usize = 3200;
    for (kind, by_threads) in [(Kind::Btrfs, true), (Kind::Ext4, false), (Kind::Xfs, false)] {
        let Some(mount) = Mount::or_skip(kind) else { continue };
        let nowait = Nowait::builder().build().unwrap();
        if nowait.ring_refusal().is_some() {
            return eprintln!("skipped: io_uring is refused");
        }
        let path = mount.path().join("data");
        std::fs::write(&path, vec![0; WRITERS * BLOCKS_OF_EACH * PAGE]).unwrap();
        let file = open(&nowait, &path);
        if !matches!(file.direct(), DirectIo::Granted { .. }) {
            eprintln!("skipped: {kind:?} refuses direct I/O");
            continue;
        }
        // Each has blocks of its own, and so an order.
        let writer = async |writer: usize| {
            let mut block = Buf::zeroed(PAGE);
            for number in 0..WRITES / WRITERS {
                block.fill(number as u8);
                let place = writer + WRITERS * (number % BLOCKS_OF_EACH);
                block = file.write_all_at(block, (place * PAGE) as u64).await.unwrap();
            }
        };
        nowait::block_on(join_all((0..WRITERS).map(writer)));
        let stats = nowait.stats();
        let told = format!("{kind:?}: {stats:?}");
        assert_eq!(stats.ring + stats.pool, WRITES as u64, "{told}");
        // xfs answers "not now" once a clock tick, when the file's times are to change: as often as
        // it is asked, by a slow machine.
        if !crate::common::is_slow() {
            assert_eq!(stats.pool > WRITES as u64 / 2, by_threads, "{told}");
        }
        let held = std::fs::read(&path).unwrap();
        for (place, block) in held.chunks(PAGE).enumerate() {
            let (own, rounds) = (place / WRITERS, WRITES / WRITERS);
            let last = (rounds - 1 - own) / BLOCKS_OF_EACH * BLOCKS_OF_EACH + own;
            assert!(block.iter().all(|&byte| byte == last as u8), "{told}: block {place} holds {}", block[0]);
        }
    }
}

/// Symptom: a bound of `u64::MAX` overflowed where a write that goes alone had asked for all of the
/// bound.
#[test]
fn no_bound_on_bytes_still_lets_a_write_go_alone() {
    let _watchdog = Watchdog::new("no bound", 60);
    let folder = temp_dir();
    let path = folder.path().join("file");
    let bytes = contents(4 * PAGE, 1);
    std::fs::write(&path, &bytes).unwrap();
    let nowait = Nowait::builder().write_bytes_max(u64::MAX, u64::MAX).build().unwrap();
    disjoint_writes_all_arrive(&open(&nowait, &path), &nowait, bytes, 5, &mut Rng::for_test());
}

/// Symptom: the first blocks of an atomic write that does not suit the device were made, and then
/// the rest refused.
#[test]
fn an_atomic_write_that_does_not_suit_the_device_changes_nothing() {
    let folder = temp_dir();
    let path = folder.path().join("file");
    let bytes = contents(3 * PAGE, 1);
    std::fs::write(&path, &bytes).unwrap();
    for nowait in instances() {
        let file = open(&nowait, &path);
        for way in Way::ALL {
            let error = way.run(file.write_all_at(vec![7; PAGE + 100], 0).atomic()).unwrap_err();
            assert_eq!(error.error.kind(), ErrorKind::Unsupported, "{}", error.error);
            assert_eq!(error.error.bytes_written(), Some(Written::First(0)));
            assert_holds(&file, &bytes, "a refused write");
        }
    }
}

/// A file that is created is created once, also where it then has no direct I/O.
#[test]
fn creating_what_cannot_be_direct() {
    let Some(mount) = Mount::or_skip(Kind::Tmpfs) else { return };
    let path = mount.path().join("new");
    let mut create = options();
    create.create_new(true);
    let file = create.open(&path).wait().unwrap();
    assert_eq!(file.direct(), DirectIo::Refused);
    assert_eq!(create.open(&path).wait().unwrap_err().kind(), ErrorKind::AlreadyExists);
}

/// Symptom: an overlay takes `O_DIRECT` by fcntl(2) whatever its lower layer is, and then every call
/// on the file fails with EINVAL, `close` included. open(2) asks the layer, and so does a read that
/// may wait.
#[test]
fn a_layer_without_direct_io_is_served_through_the_page_cache() {
    let _watchdog = Watchdog::new("an overlay over squashfs", 60);
    let (source, bytes) = (temp_dir(), contents(3 << 20, 11));
    std::fs::write(source.path().join("file"), &bytes).unwrap();
    let made = Mount::overlay_over_squashfs(source.path());
    let Some(mount) = or_skip("an overlay over squashfs", made) else { return };
    let path = mount.path().join("file");
    for nowait in instances() {
        for way in Way::ALL {
            let asked = way.run(OpenOptions::new().read(true).direct(true).open_in(&nowait, &path)).unwrap();
            assert_eq!(asked.direct(), DirectIo::Refused);
            read_and_close(asked, &bytes, way);
            // Nothing was tried yet: the first request detects it, for all clones.
            let late = way.run(OpenOptions::new().read(true).open_in(&nowait, &path)).unwrap().into_std().unwrap();
            let flags = rustix::fs::fcntl_getfl(&late).unwrap();
            rustix::fs::fcntl_setfl(&late, flags | rustix::fs::OFlags::DIRECT).unwrap();
            let late = File::from_std(&nowait, late, &path).unwrap();
            assert!(matches!(late.direct(), DirectIo::Granted { .. }), "{:?}", late.direct());
            let twin = late.clone();
            read_and_close(late, &bytes, way);
            assert_eq!(twin.direct(), DirectIo::Refused);
        }
        assert_settled(&nowait);
    }
    // A sync may be the first request that fails.
    let nowait = Nowait::builder().build().unwrap();
    let file = std::fs::File::open(&path).unwrap();
    let flags = rustix::fs::fcntl_getfl(&file).unwrap();
    rustix::fs::fcntl_setfl(&file, flags | rustix::fs::OFlags::DIRECT).unwrap();
    let file = File::from_std(&nowait, file, &path).unwrap();
    file.sync_data().wait().unwrap();
    read_and_close(file, &bytes, Way::Waited);
    // A write copies the file to the upper layer, which has direct I/O.
    let file = open(&nowait, &path);
    file.write_all_at(vec![7; 5000], 100).wait().unwrap();
    assert!(*file.read_range(0, 6000).wait().unwrap() == *[&bytes[..100], &[7; 5000], &bytes[5100..6000]].concat());
    drop(file);
}

fn read_and_close(file: File, bytes: &[u8], way: Way) {
    let ranges: Vec<_> = (0..100).map(|i| (i * 30_011, 4096)).collect();
    let reads = || join_all(ranges.iter().map(|(offset, length)| file.read_range(*offset, *length)));
    let read = match way {
        Way::Driven => nowait::block_on(reads()),
        _ => futures::executor::block_on(reads()),
    };
    for ((offset, length), read) in ranges.iter().zip(read) {
        assert!(*read.unwrap() == *expected(bytes, *offset, *length), "{way:?}: {offset}");
    }
    let rows = file.gather(&ranges).wait().unwrap();
    for (index, (offset, length)) in ranges.iter().enumerate() {
        assert!(*rows.get(index).unwrap() == *expected(bytes, *offset, *length), "{way:?}: range {index}");
    }
    let mut streamed = Vec::new();
    std::io::Read::read_to_end(&mut nowait::stream::Reader::new(&file, 0), &mut streamed).unwrap();
    assert!(streamed == bytes, "{way:?}");
    file.close().unwrap();
}

/// Symptom: a write of the last bytes that a file can have succeeded, but returned EINVAL: the
/// range to write back ended beyond them. (xfs of 6.18 loses whole blocks there.)
#[test]
fn the_last_bytes_that_a_file_can_have_are_written() {
    const MAX: u64 = i64::MAX as u64;
    let Some(mount) = Mount::or_skip(Kind::Xfs) else { return };
    for nowait in instances() {
        for way in Way::ALL {
            let path = mount.path().join("file");
            std::fs::write(&path, b"").unwrap();
            let file = open(&nowait, &path);
            let mut data = contents(500, 3);
            way.run(file.write_all_at(data.clone(), MAX - 500)).unwrap();
            way.run(file.write_all_at(vec![1; 20], MAX - 20).durable()).unwrap();
            data[480..].fill(1);
            file.write_all_from(&[2; 10], MAX - 10).unwrap();
            data[490..].fill(2);
            way.run(file.sync_range(MAX - 500, 500)).unwrap();
            way.run(file.sync_data()).unwrap();
            let mut there = vec![0; 500];
            std::fs::File::open(&path).unwrap().read_exact_at(&mut there, MAX - 500).unwrap();
            assert!(there == data, "{way:?}");
            let error = way.run(file.append(vec![1])).unwrap_err().error;
            assert_eq!((error.kind(), error.bytes_written()), (ErrorKind::FileTooLarge, Some(Written::First(0))));
        }
        assert_settled(&nowait);
    }
}
