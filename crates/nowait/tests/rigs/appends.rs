//! Records at the end of a file, on every file system: whole, in order, never over what is there.
//! Promises that hold on every engine are in `promises/writes.rs`.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::mounts::{self, Kind, LoopDevice, Mount, or_skip, temp_dir};
use crate::common::{Watchdog, Way, assert_settled, child, contents};
use futures::future::join_all;
use nowait::stream::Writer;
use nowait::{Buf, Engine, ErrorKind, File, Nowait, OpenOptions, Written};

fn instances() -> Vec<Nowait> {
    let builders = [Nowait::builder(), Nowait::builder().strict(true), Nowait::builder().engine(Engine::Pool)];
    builders.map(|builder| builder.build().unwrap()).into()
}

fn open(nowait: &Nowait, path: &Path, append: bool, direct: bool) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).append(append).create(true).direct(direct);
    options.open_in(nowait, path).wait().unwrap()
}

/// How many descriptors of this process lead to a file.
fn descriptors(path: &Path) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    links.filter(|link| std::fs::read_link(link.path()).is_ok_and(|to| to == path)).count()
}

/// Symptom: overlayfs of 5.10 and 6.1 ignores `RWF_APPEND`, so that an append overwrote the start
/// of the file. An append leaves what is there, however the file was opened, also of a file that
/// has no name any more.
fn append_leaves_what_is_there(kind: Kind) {
    let Some(mount) = Mount::or_skip(kind) else { return };
    let _watchdog = Watchdog::new(format!("appends on {kind:?}"), 120);
    let path = mount.path().join("file");
    for nowait in instances() {
        for (append, direct) in [(false, false), (true, false), (false, true), (true, true)] {
            for way in Way::ALL {
                let what = format!("append {append}, direct {direct}, {way:?}");
                let mut bytes = contents(10_000, 1);
                std::fs::write(&path, &bytes).unwrap();
                let file = open(&nowait, &path, append, direct);
                for (seed, length) in [(2, 4096), (3, 100), (4, 70_000)] {
                    let record = contents(length, seed);
                    way.run(file.append(record.clone())).unwrap();
                    bytes.extend_from_slice(&record);
                    way.run(file.append(record.clone()).durable()).unwrap();
                    bytes.extend_from_slice(&record);
                    assert!(std::fs::read(&path).unwrap() == bytes, "{what}");
                }
                // A name is not needed: through /proc a file is found without.
                let nameless = open(&nowait, &path, append, direct);
                std::fs::remove_file(&path).unwrap();
                way.run(nameless.append(contents(500, 5))).unwrap();
                bytes.extend_from_slice(&contents(500, 5));
                let mut read = vec![0; bytes.len() + 1];
                let n = nameless.read_into(&mut read, 0).unwrap();
                assert!(read[..n] == bytes, "{what}");
            }
        }
        assert_settled(&nowait);
    }
}

mounts::on_every_file_system!(append_leaves_what_is_there);

/// Where `RWF_APPEND` is not trusted there is one more descriptor, which goes with the file.
#[test]
fn overlayfs_has_a_second_descriptor_for_appends() {
    let Some(mount) = Mount::or_skip(Kind::Overlay) else { return };
    let path = mount.path().join("file");
    let nowait = Nowait::builder().build().unwrap();
    for (append, expected) in [(false, 2), (true, 1)] {
        let file = open(&nowait, &path, append, false);
        file.write_all_at(b"start".to_vec(), 0).wait().unwrap();
        assert_eq!(descriptors(&path), 1);
        (0..3).for_each(|_| drop(file.append(b"record".to_vec()).wait().unwrap()));
        assert_eq!(descriptors(&path), expected, "append {append}");
        file.close().unwrap();
        assert_eq!(descriptors(&path), 0);
    }
}

/// Where that descriptor cannot be had, nothing is written, and the error says what to do.
#[test]
fn append_that_might_overwrite_is_refused() {
    let Some(mount) = Mount::or_skip(Kind::Overlay) else { return };
    let folder = mount.path().join("folder");
    std::fs::create_dir(&folder).unwrap();
    for path in [&folder, mount.path().parent().unwrap(), mount.path()].into_iter().rev() {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
    }
    child::play_at("no second descriptor", &folder);
}

fn no_second_descriptor() {
    child::become_nobody();
    let path = child::path().join("file");
    for nowait in instances() {
        for way in Way::ALL {
            std::fs::write(&path, b"what is there").unwrap();
            let [file, log] = [false, true].map(|append| open(&nowait, &path, append, false));
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o000)).unwrap();
            let error = way.run(file.append(b"record".to_vec())).unwrap_err();
            assert_eq!(error.buffer, b"record");
            let error = error.error;
            assert_eq!((error.kind(), error.bytes_written()), (ErrorKind::Unsupported, Some(Written::First(0))));
            assert!(error.to_string().contains("open it with append(true)"), "{error}");
            way.run(log.append(b", and more".to_vec())).unwrap();
            assert_eq!(file.read_range(0, 23).wait().unwrap()[..], *b"what is there, and more");
            assert_eq!(file.size().wait().unwrap(), 23);
            std::fs::remove_file(&path).unwrap();
        }
    }
}

/// Symptom: an append to a block device, which has no end that moves, overwrote its start.
#[test]
fn append_to_a_block_device_is_refused() {
    let old = contents(1 << 20, 1);
    let Some(device) = or_skip("a loop device", LoopDevice::new(&old, 512)) else { return };
    for nowait in instances() {
        for direct in [false, true] {
            for way in Way::ALL {
                let mut options = OpenOptions::new();
                let file =
                    options.read(true).write(true).direct(direct).open_in(&nowait, device.path()).wait().unwrap();
                let error = way.run(file.append(vec![9; 4096])).unwrap_err().error;
                assert_eq!((error.kind(), error.bytes_written()), (ErrorKind::Unsupported, Some(Written::First(0))));
                assert!(error.to_string().contains("write at an offset"), "{error}");
                assert!(*file.read_range(0, old.len()).wait().unwrap() == *old, "nothing was written");
                // With `O_APPEND`, which devices ignore, the offset counts.
                let file = options.append(true).open_in(&nowait, device.path()).wait().unwrap();
                way.run(file.write_all_at(old[8192..12288].to_vec(), 8192)).unwrap();
                assert!(*file.read_range(0, old.len()).wait().unwrap() == *old);
            }
        }
        assert_settled(&nowait);
    }
}

/// Symptom: an append made on the caller's thread overtook others of its task that were queued
/// before it.
#[test]
fn appends_of_one_task_keep_their_order() {
    let _watchdog = Watchdog::new("appends in order", 60);
    let folder = temp_dir();
    let path = folder.path().join("file");
    // Longer ones are queued.
    let nowait = Nowait::builder().inline_bytes_max(3000).build().unwrap();
    for append in [false, true] {
        for way in [Way::Awaited, Way::Driven] {
            for round in 0..50 {
                std::fs::write(&path, []).unwrap();
                let file = open(&nowait, &path, append, false);
                let length = |number: u64| if number % 3 == 0 { 8000 } else { 10 };
                let records: Vec<_> = (0..8).map(|number| contents(length(number + round), number)).collect();
                let appends = join_all(records.iter().map(|record| file.append(record.clone())));
                way.run_future(appends).into_iter().for_each(|appended| drop(appended.unwrap()));
                assert!(std::fs::read(&path).unwrap() == records.concat(), "append {append}, {way:?}, round {round}");
            }
        }
    }
}

/// Symptom: past the page cache a stream reserved space ahead, and then appended behind that.
#[test]
fn a_stream_into_a_file_opened_for_appending_goes_on_at_its_end() {
    let _watchdog = Watchdog::new("a stream that appends", 60);
    let folder = temp_dir();
    let path = folder.path().join("file");
    for nowait in instances() {
        for direct in [false, true] {
            for way in Way::ALL {
                let mut bytes = contents(5000, 1);
                std::fs::write(&path, &bytes).unwrap();
                let mut writer = Writer::new(&open(&nowait, &path, true, direct), 0);
                let piece = contents(3 << 20, 2);
                match way {
                    Way::Waited => std::io::Write::write_all(&mut writer, &piece).unwrap(),
                    way => piece.chunks(512 << 10).for_each(|chunk| {
                        let mut buffer = Buf::zeroed(chunk.len());
                        buffer.copy_from_slice(chunk);
                        way.run_future(writer.put(buffer)).unwrap();
                    }),
                }
                way.run_future(writer.finish()).unwrap();
                bytes.extend_from_slice(&piece);
                assert!(std::fs::read(&path).unwrap() == bytes, "direct {direct}, {way:?}");
            }
        }
        assert_settled(&nowait);
    }
}

#[test]
fn child() {
    match child::role().as_deref() {
        Some("no second descriptor") => no_second_descriptor(),
        Some(other) => panic!("no such role: {other}"),
        None => {}
    }
}
