//! Order, where a thread writes in several ways at a time; and progress, where threads wait for
//! each other.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::mounts::temp_dir;
use crate::common::{Watchdog, at_most, poll_once};
use nowait::{Buf, Engine, File, Nowait, OpenOptions};

const PAGE: usize = 4096;

fn page(value: u8) -> Buf {
    let mut page = Buf::zeroed(PAGE);
    page.fill(value);
    page
}

fn file_of(nowait: &Nowait, folder: &std::path::Path, name: &str, direct: bool) -> File {
    let path = folder.join(name);
    std::fs::write(&path, vec![1; 1 << 20]).unwrap();
    OpenOptions::new().read(true).write(true).direct(direct).open_in(nowait, &path).wait().unwrap()
}

// Writes that a thread has collected under `block_on` come before those it begins by
// `try_write_at`.
#[test]
fn try_write_overtakes_collected() {
    let _watchdog = Watchdog::new("r01", 30);
    let nowait = Nowait::builder().build().unwrap();
    let folder = temp_dir();
    let file = file_of(&nowait, folder.path(), "file", false);
    let mut bad = 0;
    nowait::block_on(async {
        for _ in 0..200 {
            let mut write = Box::pin(futures::future::maybe_done(file.write_all_at(page(2), 0)));
            let _ = poll_once(write.as_mut());
            // Refused, it would have to wait for the first.
            match file.try_write_at(page(3), 0) {
                Ok(second) => drop(second.await.unwrap()),
                Err(refused) => drop(file.write_all_at(refused.buffer, 0).await.unwrap()),
            }
            write.await;
            let got = file.read_range(0, PAGE).wait().unwrap();
            bad += usize::from(got[0] != 3);
        }
    });
    assert_eq!(bad, 0, "of 200: the first write is there after the second");
}

// The stream writer beside a collected write.
#[test]
fn stream_writer_overtakes_collected() {
    let _watchdog = Watchdog::new("r02", 30);
    let nowait = Nowait::builder().build().unwrap();
    let folder = temp_dir();
    let file = file_of(&nowait, folder.path(), "file", false);
    let mut bad = 0;
    nowait::block_on(async {
        for _ in 0..50 {
            let mut write = Box::pin(futures::future::maybe_done(file.write_all_at(page(2), 0)));
            let _ = poll_once(write.as_mut());
            let mut writer = nowait::stream::Writer::new(&file, 0);
            writer.put(page(3)).await.unwrap();
            writer.finish().await.unwrap();
            write.await;
            let got = file.read_range(0, PAGE).wait().unwrap();
            bad += usize::from(got[0] != 3);
        }
    });
    assert_eq!(bad, 0, "of 50: the first write is there after the second");
}

/// Returns None on Linux if there is no ring.
fn attached_direct(per_file: u64) -> Option<(tempfile::TempDir, Nowait, File)> {
    let engine = if cfg!(target_os = "linux") { Engine::Uring } else { Engine::Auto };
    let nowait = match Nowait::builder().engine(engine).write_bytes_max(per_file, 64 << 20).build() {
        Err(error) if error.kind() == nowait::ErrorKind::EngineUnavailable => return None,
        built => built.unwrap(),
    };
    let folder = temp_dir();
    let file = file_of(&nowait, folder.path(), "file", true);
    Some((folder, nowait, file))
}

// A future polled once with the waker that does nothing, by a task of a current-thread runtime,
// then moved to a thread that The reactor of an attached runtime notices a completion, which lets
// another thread's write in; then a task of the runtime A pool whose threads all wait, in syncs,
// for durable writes that are in line for a thread.
#[test]
fn syncs_take_every_thread_of_the_pool() {
    let _watchdog = Watchdog::new("r07", 20);
    let nowait = Nowait::builder().engine(Engine::Pool).pool_threads_max(1).build().unwrap();
    let folder = temp_dir();
    let file = file_of(&nowait, folder.path(), "file", true);
    for _ in 0..200 {
        futures::executor::block_on(async {
            let writes = (0..4).map(|i| file.write_all_at(page(2), i * 8192).durable());
            let writes = futures::future::join_all(writes);
            let syncs = futures::future::join_all((0..2).map(|_| file.sync_data()));
            let (writes, syncs) = futures::join!(writes, syncs);
            writes.into_iter().for_each(|write| drop(write.unwrap()));
            syncs.into_iter().for_each(|sync| sync.unwrap());
        });
    }
}

// The same, with as many threads as there are by default, and more files.
#[test]
fn syncs_of_many_files() {
    let _watchdog = Watchdog::new("r08", 60);
    let nowait = Nowait::builder().engine(Engine::Pool).build().unwrap();
    let folder = temp_dir();
    let files: Vec<_> = (0..160).map(|i| file_of(&nowait, folder.path(), &format!("file-{i}"), true)).collect();
    for _ in 0..20 {
        futures::executor::block_on(async {
            let each = files.iter().map(|file| async move {
                let writes = futures::future::join_all((0..4).map(|i| file.write_all_at(page(2), i * 8192).durable()));
                let (writes, sync) = futures::join!(writes, file.sync_data());
                writes.into_iter().for_each(|write| drop(write.unwrap()));
                sync.unwrap();
            });
            futures::future::join_all(each).await;
        });
    }
}

// Nothing but asking for help: how long it takes at most.
#[test]
fn the_slowest_help() {
    let _watchdog = Watchdog::new("r10", 100);
    let Some((_folder, _nowait, file)) = attached_direct(16 << 20) else {
        return eprintln!("skipped: there is no ring");
    };
    let until = Instant::now() + common_time();
    let (mut rounds, mut slowest, mut slow) = (0, Duration::ZERO, 0);
    let done = &AtomicBool::new(false);
    thread::scope(|scope| {
        // Asks all the time, of which half have nothing to do.
        for _ in 0..3 {
            scope.spawn(move || {
                while !done.load(SeqCst) {
                    nowait::block_on(async {
                        let mut read = Box::pin(file_ref().read_range(0, 4096));
                        let _ = poll_once(read.as_mut());
                    });
                    thread::sleep(Duration::from_micros(300));
                }
            });
        }
        while Instant::now() < until {
            let begun = Instant::now();
            nowait::block_on(async {
                let mut write: Pin<Box<dyn Future<Output = _>>> = Box::pin(file.write_all_at(page(2), 0));
                let _ = poll_once(write.as_mut());
                scope
                    .spawn(|| drop(futures::executor::block_on(file.write_all_at(page(3), 0)).unwrap()))
                    .join()
                    .unwrap();
                drop(write);
            });
            let took = begun.elapsed();
            slowest = slowest.max(took);
            slow += u32::from(took > at_most(Duration::from_secs(5)));
            rounds += 1;
        }
        done.store(true, SeqCst);
    });
    eprintln!("{rounds} rounds, the slowest {slowest:?}, {slow} above five seconds");
    assert_eq!(slow, 0);

    fn file_ref() -> &'static File {
        static FILE: std::sync::OnceLock<File> = std::sync::OnceLock::new();
        FILE.get_or_init(|| {
            let (folder, _, file) = attached_direct(16 << 20).expect("there was a ring above");
            std::mem::forget(folder);
            file
        })
    }
}

/// How long what is repeated for luck is repeated.
fn common_time() -> Duration {
    let seconds = std::env::var("NOWAIT_MODEL_SECONDS").map_or(2, |text| text.parse().unwrap());
    Duration::from_secs(seconds)
}
