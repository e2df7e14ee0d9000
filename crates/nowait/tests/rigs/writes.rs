//! Writes on each file system: flags that a kernel or a file system may not know, what is written
//! inline, and what is there after a process was killed.

use std::io::{BufRead, BufReader};
use std::path::{Path as FsPath, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::common::mounts::{Kind, Mount, temp_dir};
use crate::common::{
    Sample, Watchdog, Way, assert_settled, child, cold, contents, create, create_direct, page_of, writing_instances,
};
use crate::promises::mix::direct_reads_wait_elsewhere;
use futures::future::join_all;
use nowait::{Buf, BufferError, ErrorKind, File, Nowait, Written};

const PAGE: usize = 4096;

/// A folder on every kind of file system that there is.
fn folders() -> Vec<(Box<dyn std::any::Any>, PathBuf)> {
    let root = temp_dir();
    let path = root.path().to_path_buf();
    let mut folders: Vec<(Box<dyn std::any::Any>, PathBuf)> = vec![(Box::new(root), path)];
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Tmpfs, Kind::Overlay] {
        let Some(mount) = Mount::or_skip(kind) else { continue };
        let path = mount.path().to_path_buf();
        folders.push((Box::new(mount), path));
    }
    folders
}

/// Whether a plain call with this flag of `pwritev2(2)` is taken.
fn takes(file: &File, page: &[u8], flag: u32) -> bool {
    let flags = rustix::io::ReadWriteFlags::from_bits_retain(flag);
    match rustix::io::pwritev2(file.descriptor().unwrap(), &[std::io::IoSlice::new(page)], 0, flags) {
        Ok(n) => n == page.len(),
        Err(_) => false,
    }
}

/// The file is as it was, the buffer is back, and the error says what to do.
#[track_caller]
fn assert_unsupported(error: BufferError<Buf>, file: &File, old: &[u8], offset: u64, words: [&str; 2]) {
    assert!(error.buffer[..] == *page_of(2), "an error gives the buffer back");
    let error = error.error;
    assert_eq!((error.kind(), error.bytes_written()), (ErrorKind::Unsupported, Some(Written::First(0))), "{error}");
    assert_eq!((error.offset(), error.length()), (Some(offset), Some(PAGE as u64)));
    assert!(matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL)), "{error}");
    for part in words.into_iter().chain(["write", "nothing was written", file.path().to_str().unwrap()]) {
        assert!(error.to_string().contains(part), "{part:?} is missing in {error}");
    }
    assert!(std::fs::read(file.path()).unwrap() == old, "nothing was written");
}

const DONTCACHE: u32 = 0x80;
const ATOMIC: u32 = 0x40;

#[test]
fn uncached_writes_leave_the_cache_or_are_refused() {
    for (_mount, folder) in folders() {
        let path = folder.join("uncached");
        let nowait = Nowait::builder().build().unwrap();
        let taken = takes(&create(&nowait, &path), &[1; PAGE], DONTCACHE);
        std::fs::remove_file(&path).unwrap();
        // Where the device's interrupt ends a write-back the kernel leaves the pages in the cache
        // (`folio_end_dropbehind`, mm/filemap.c, 6.18). So not each goes, and perhaps none.
        let goes = taken && is_gone(&nowait, &path, |file| assert!(takes(file, &[2; PAGE], DONTCACHE)));
        for nowait in writing_instances() {
            for way in Way::ALL {
                if taken {
                    let gone = is_gone(&nowait, &path, |file| {
                        assert!(way.run(file.write_all_at(page_of(2), 0).uncached()).unwrap()[..] == *page_of(2));
                    });
                    assert!(gone || !goes, "{folder:?}, {way:?}");
                    continue;
                }
                let file = create(&nowait, &path);
                let write = || file.write_all_at(page_of(2), 0).uncached();
                for write in [write(), write().durable()] {
                    let error = way.run(write).unwrap_err();
                    assert_unsupported(error, &file, &[], 0, ["RWF_DONTCACHE", "without uncached()"]);
                }
                way.run(file.sync_data()).unwrap();
                std::fs::remove_file(&path).unwrap();
            }
            assert_settled(&nowait);
        }
    }
}

/// Whether a page that `write` writes leaves the cache when it is on the device, in one of some new
/// files.
fn is_gone(nowait: &Nowait, path: &FsPath, write: impl Fn(&File)) -> bool {
    (0..20).any(|_| {
        let file = create(nowait, path);
        write(&file);
        file.sync_data().wait().unwrap();
        let gone = (0..20).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            cold::cached_pages(path) == 0
        });
        assert!(std::fs::read(path).unwrap() == [2; PAGE]);
        std::fs::remove_file(path).unwrap();
        gone
    })
}

#[test]
fn atomic_writes_are_whole_or_are_refused() {
    let old = contents(4 * PAGE, 1);
    for (_mount, folder) in folders() {
        for nowait in writing_instances() {
            for (way, direct) in Way::ALL.into_iter().flat_map(|way| [(way, false), (way, true)]) {
                let path = folder.join("atomic");
                let file = if direct { create_direct(&nowait, &path) } else { Some(create(&nowait, &path)) };
                let Some(file) = file else { continue };
                std::fs::write(&path, &old).unwrap();
                std::fs::File::open(&path).unwrap().sync_all().unwrap();
                let mut first = Buf::zeroed(PAGE);
                first.copy_from_slice(&old[..PAGE]);
                let taken = takes(&file, &first, ATOMIC);
                assert!(direct || !taken, "the page cache knows no atomic writes");
                let words = ["RWF_ATOMIC", "without atomic()"];
                let mut now = old.clone();
                match way.run(file.write_all_at(page_of(2), PAGE as u64).atomic()) {
                    Ok(back) => {
                        assert!(taken && back[..] == *page_of(2));
                        now[PAGE..2 * PAGE].fill(2);
                    }
                    Err(error) => {
                        assert!(!taken, "{error}");
                        assert_unsupported(error, &file, &old, PAGE as u64, words);
                    }
                }
                assert!(std::fs::read(&path).unwrap() == now);
                // Not aligned to its own size.
                let error = way.run(file.write_all_at(page_of(2), 512).atomic()).unwrap_err();
                assert_unsupported(error, &file, &now, 512, words);
                way.run(file.sync_data()).unwrap();
                drop(file);
                std::fs::remove_file(&path).unwrap();
            }
            assert_settled(&nowait);
        }
    }
}

/// Alone in a process: what is dirty is sampled by one thread at a time, and others take the
/// cautious answer meanwhile.
#[test]
fn sequential_pages_are_written_inline() {
    // With less, the kernel lets a writer do so much without waiting only now and then.
    if crate::common::has_memory(160 << 20) {
        child::play("inline");
    }
}

fn inline() {
    const WRITES: u64 = 500;
    let folder = temp_dir();
    let on_path = |path: &FsPath| {
        // A machine with other work may take its time; that is not what is tested.
        let nowait = Nowait::builder().stall_budget(Duration::from_secs(10)).build().unwrap();
        let file = create(&nowait, &path.join("file"));
        // Until a plain call of the device has returned soon, threads of the pool make them.
        assert!(crate::common::eventually(|| {
            drop(futures::executor::block_on(file.write_all_at(vec![0; PAGE], 0)).unwrap());
            nowait.stats().inline > 0
        }));
        let before = nowait.stats();
        for i in 0..WRITES {
            drop(futures::executor::block_on(file.write_all_at(vec![i as u8; PAGE], i * PAGE as u64)).unwrap());
        }
        // And once more, over what is cached.
        for i in 0..WRITES {
            drop(nowait::block_on(file.write_all_at(vec![!i as u8; PAGE], i * PAGE as u64)).unwrap());
        }
        let stats = nowait.stats();
        assert_eq!(stats.inline - before.inline, 2 * WRITES, "{path:?}: {stats:?}");
        let right = |(i, page): (usize, &[u8])| page == [!i as u8; PAGE];
        assert!(std::fs::read(file.path()).unwrap().chunks(PAGE).enumerate().all(right));
        stats
    };
    on_path(folder.path());
    for kind in [Kind::Ext4, Kind::Tmpfs] {
        let Some(mount) = Mount::or_skip(kind) else { continue };
        let stats = on_path(mount.path());
        assert!(stats.attempts <= 1, "what refuses attempts is asked once: {stats:?}");
    }
}

const KILLED: &str = "killed";
const RECORD: u64 = 1000;

fn record(number: u64) -> Vec<u8> {
    contents(RECORD as usize, number)
}

#[test]
fn what_a_killed_process_was_told_is_durable_is_there() {
    for _ in 0..3 {
        let folder = temp_dir();
        let path = folder.path().join("file");
        let mut command = child::command_at(KILLED, &path);
        let mut writer = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut synced = 0;
        let mut killed = false;
        for line in BufReader::new(writer.stdout.take().unwrap()).lines() {
            let Some(number) = line.as_deref().unwrap().strip_prefix("synced ").map(|text| text.parse().unwrap())
            else {
                continue;
            };
            synced = number;
            if synced > 500 && !killed {
                writer.kill().unwrap();
                killed = true;
            }
        }
        assert!(!writer.wait().unwrap().success() && synced > 500, "killed after {synced} records");
        let bytes = std::fs::read(&path).unwrap();
        for number in 0..synced {
            let start = (number * RECORD) as usize;
            assert!(bytes[start..start + RECORD as usize] == record(number), "record {number} of {synced}");
        }
    }
}

/// Writes records, many at a time, and tells how many are durable, until it is killed.
fn until_killed() {
    let _watchdog = Watchdog::new(KILLED, 60);
    let file = create(Nowait::shared(), &child::path());
    for number in (0..).step_by(32) {
        let writes = (number..number + 32).map(|number| file.write_all_at(record(number), number * RECORD));
        futures::executor::block_on(async {
            join_all(writes).await.into_iter().for_each(|write| drop(write.unwrap()));
            file.sync_data().await.unwrap();
        });
        println!("synced {}", number + 32);
    }
}

#[test]
fn child() {
    match child::role().as_deref() {
        None => {}
        Some("inline") => inline(),
        Some(KILLED) => until_killed(),
        Some(role) => panic!("nobody knows {role:?}"),
    }
}

/// Symptom: overlayfs refuses `RWF_NOWAIT`; files that do were taken to lie in memory, and direct
/// reads held up the caller until the stall budget was spent.
#[test]
fn direct_reads_of_files_that_refuse_attempts_are_never_inline() {
    if let Some(mount) = crate::common::mounts::Mount::or_skip(crate::common::mounts::Kind::Overlay) {
        direct_reads_wait_elsewhere(Sample::new_in(mount.path(), 4 << 20));
    }
}
