//! Writers of streams: errors, what is dropped half-way, and the space that they reserve.

use std::io::Write;
use std::pin::pin;
use std::sync::mpsc;

use crate::common::mounts::temp_dir;
use crate::common::rng::Rng;
use crate::common::{Watchdog, Way, assert_settled, contents, eventually, poll_once, rounds};
use crate::promises::streams::*;
use nowait::sim::{Faults, Sim};
use nowait::stream::Writer;
use nowait::{Engine, Nowait};

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
        assert_eq!((error.offset(), error.raw_os_error()), (Some(0), Some(crate::common::errno::EIO)), "{error}");
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
    let file = crate::common::writable(&nowait, "/sim/file".as_ref());
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

/// The failure is found out while the buffer is filled in part.
#[test]
fn a_write_behind_that_fails_fails_the_next_write() {
    let _watchdog = Watchdog::new("failing writes behind", 60);
    let sim = Sim::manual(1);
    sim.create("/sim/file", b"");
    // Inline it would fail at once.
    let nowait = Nowait::builder().engine(Engine::Sim(sim.clone())).inline_bytes_max(1).build().unwrap();
    let file = crate::common::writable(&nowait, "/sim/file".as_ref());
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

/// Symptom: `sync_data` gave Ok while bytes were only in the writer's memory. Cause: a sync that had
/// been dropped under way was taken for a later one. Each covers all bytes that were given before it.
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

/// A finish that was dropped, as by a timeout, may have begun to truncate the file to its length. Later
/// writes wait for that, and are not cut off. (Space is reserved for direct writes.)
#[cfg(target_os = "linux")]
#[test]
fn what_is_written_after_a_finish_that_was_dropped_stays() {
    let _watchdog = Watchdog::new("dropped finish", 60);
    // Another thread relieves one that is held for a second. On a busy machine that second can pass too early.
    let is_shown = (0..10).any(|_| drops_a_finish_and_goes_on());
    assert!(is_shown, "the pool was relieved in ten attempts");
}

/// Writes after a finish that was dropped while the pool was held. False: the pool was relieved before all was seen.
#[cfg(target_os = "linux")]
fn drops_a_finish_and_goes_on() -> bool {
    use crate::common::is_slow;
    use std::task::Poll;
    use std::time::{Duration, Instant};
    let folder = temp_dir();
    let nowait = Nowait::builder().pool_threads_max(1).inline_bytes_max(4096).build().unwrap();
    let path = folder.path().join("file");
    let file = open(&nowait, &path, true);
    let bytes = contents(64 << 10, 3);
    let pieces: Vec<&[u8]> = bytes.chunks(16 << 10).collect();
    let length = || std::fs::metadata(&path).unwrap().len();
    let is_written = |number: usize| {
        let range = number * (16 << 10)..(number + 1) * (16 << 10);
        std::fs::read(&path).unwrap().get(range).is_some_and(|piece| piece == pieces[number])
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
