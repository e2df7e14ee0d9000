//! A thread that sleeps uninterruptibly in the kernel, with operations in flight in its own ring for
//! others: these end only as their thread wakes. So no call that blocks sleeps there, and which calls
//! of futures may.

use std::sync::mpsc;

use crate::common::fuse::Stalling;
use crate::common::mounts::{self, Frozen, Kind, LoopDevice, Mount};
use crate::common::{Watchdog, assert_settled, child, eventually};
use crate::isolation::{Hung, READS_AT, ends, open_at, other_file, stalling};
use nowait::{Buf, File, Nowait};

/// Whether a thread of this process sleeps, in any way.
fn sleeps(thread: rustix::thread::Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().unwrap_or_default().starts_with(['D', 'S'])
}

/// A healthy device, which answers when it is told to.
struct Slow {
    nowait: Nowait,
    strict: bool,
    file: File,
    /// On a disk.
    quick: File,
    _dir: tempfile::TempDir,
    _device: LoopDevice,
    server: Stalling,
    reads: u64,
}

impl Slow {
    fn or_skip(strict: bool) -> Option<Slow> {
        let server = stalling(0)?;
        let device = mounts::or_skip("a loop device", LoopDevice::over(&server.file(), 512, None))?;
        let nowait = Nowait::builder().strict(strict).build().unwrap();
        let file = open_at(&nowait, device.path(), true);
        let (_dir, quick) = other_file();
        let quick = open_at(&nowait, &quick, true);
        Some(Slow { nowait, strict, file, quick, _dir, _device: device, server, reads: 0 })
    }

    /// Opens a server's file. Its plain reads have returned soon, and run inline by now unless the
    /// instance is strict.
    fn open_quick(&self, server: &Stalling) -> File {
        let file = open_at(&self.nowait, &server.file(), false);
        let reads_inline = || {
            let before = self.nowait.stats().inline;
            (0..20).for_each(|_| drop(futures::executor::block_on(file.read_range(0, 4096)).unwrap()));
            self.strict || self.nowait.stats().inline == before + 20
        };
        assert!(eventually(reads_inline));
        file
    }

    /// Begins a read in the ring of a thread, which then makes `call` and sleeps in it until `go_on`.
    /// Returns whether the read ends before that.
    fn ends_beside(&mut self, call: impl FnOnce() + Send + 'static, go_on: impl FnOnce()) -> bool {
        self.reads += 1;
        let (file, quick, offset) = (self.file.clone(), self.quick.clone(), READS_AT + (self.reads << 24));
        self.server.hang();
        let (send, receive) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            nowait::block_on(async {
                let read = file.read_range(offset, 4096).submit();
                // The thread's next visit of its ring gives it to the kernel.
                drop(quick.read_range(0, 4096).await.unwrap());
                send.send((read, rustix::thread::gettid())).unwrap();
                call();
            });
        });
        let (read, id) = receive.recv().unwrap();
        let mut read: Hung<'static> = Box::pin(async move { drop(read.await.unwrap()) });
        // Not for a moment only, as before the call.
        assert!(eventually(|| (0..100).all(|_| sleeps(id))), "it does not wait");
        self.server.go_on();
        // The device has answered.
        drop(self.file.read_range(offset + (8 << 20), 4096).wait().unwrap());
        let ended = ends(&mut read);
        go_on();
        thread.join().unwrap();
        futures::executor::block_on(async {
            if !ended {
                read.await;
            }
        });
        ended
    }
}

type Call = fn(File, u64);

/// Symptom: a read in a thread's ring did not end while that thread slept uninterruptibly, in a
/// plain call for another device.
#[test]
fn a_thread_that_waits_for_a_device_that_stalls() {
    let calls: [(&str, bool, Call); 8] = [
        ("read", false, |file, offset| drop(file.read_range(offset, 4096).wait().unwrap())),
        ("direct read", true, |file, offset| drop(file.read_range(offset, 4096).wait().unwrap())),
        ("read_into", false, |file, offset| assert_eq!(file.read_into(&mut [1; 4096], offset).unwrap(), 4096)),
        ("direct read_into", true, |file, offset| assert_eq!(file.read_into(&mut [1; 512], offset).unwrap(), 512)),
        ("gather_into", false, |file, offset| drop(file.gather_into(&[(offset, 4096)], &mut [1; 4096]).unwrap())),
        ("gather", false, |file, offset| drop(file.gather([(offset, 4096), (offset + 8192, 100)]).wait().unwrap())),
        ("direct write", true, |file, offset| drop(file.write_all_at(Buf::zeroed(4096), offset).wait().unwrap())),
        ("write_all_from", true, |file, offset| file.write_all_from(&[1; 4096], offset).unwrap()),
    ];
    let _watchdog = Watchdog::new("a thread that waits for a device", 180);
    let (Some(mut hangs), Some(mut slow)) = (stalling(0), Slow::or_skip(false)) else { return };
    let device = LoopDevice::over(&hangs.file(), 512, None);
    let Some(device) = mounts::or_skip("a loop device", device) else { return };
    for (round, (name, direct, call)) in calls.into_iter().enumerate() {
        let file = open_at(&slow.nowait, device.path(), direct);
        hangs.hang();
        let offset = READS_AT + ((round as u64) << 24);
        assert!(slow.ends_beside(move || call(file, offset), || hangs.go_on()), "{name}");
    }
    assert_settled(&slow.nowait);
}

/// The same for plain calls that returned soon before: they may run inline.
#[test]
fn a_thread_that_waits_for_a_server_that_was_quick() {
    // A child of a process with a file whose `close(2)` hangs would hang, too.
    child::play("server");
}

fn wait_for_server() {
    let calls: [(&str, Call); 4] = [
        ("read", |file, offset| drop(file.read_range(offset, 4096).wait().unwrap())),
        ("gather_into", |file, offset| {
            drop(file.gather_into(&[(offset, 4096), (offset + 8192, 100)], &mut [1; 8192]).unwrap());
        }),
        ("gather", |file, offset| drop(file.gather([(offset, 4096), (offset + 8192, 100)]).wait().unwrap())),
        ("write_many", |file, offset| drop(file.write_many(vec![(offset, vec![1; 4096])]).wait().unwrap())),
    ];
    let _watchdog = Watchdog::new("a thread that waits for a server", 180);
    let (Some(mut hangs), Some(mut slow)) = (stalling(0), Slow::or_skip(false)) else { return };
    for (round, (name, call)) in calls.into_iter().enumerate() {
        let file = slow.open_quick(&hangs);
        hangs.hang();
        let offset = READS_AT + ((round as u64) << 24);
        assert!(slow.ends_beside(move || call(file, offset), || hangs.go_on()), "{name}");
    }
    let file = slow.open_quick(&hangs);
    hangs.hang_closes();
    assert!(slow.ends_beside(move || assert_eq!(file.close().unwrap(), nowait::Closed::Now), || hangs.go_on()));
    assert_settled(&slow.nowait);
}

/// The same for xfs and ext4 that are frozen. The former also holds a non-blocking attempt at a write.
#[test]
fn a_thread_that_waits_for_a_frozen_file_system() {
    let calls: [(&str, Call); 3] = [
        ("write", |file, _| drop(file.write_all_at(vec![2; 4096], 0).wait().unwrap())),
        ("write_all_from", |file, _| file.write_all_from(&[2; 4096], 0).unwrap()),
        ("write_many", |file, _| drop(file.write_many(vec![(0, vec![2; 4096])]).wait().unwrap())),
    ];
    let _watchdog = Watchdog::new("a thread that waits for a frozen file system", 180);
    for kind in [Kind::Ext4, Kind::Xfs] {
        let (Some(mount), Some(mut slow)) = (Mount::or_skip(kind), Slow::or_skip(false)) else { return };
        for (name, call) in calls {
            let path = mount.path().join(name);
            std::fs::write(&path, vec![1; 1 << 20]).unwrap();
            std::fs::File::open(&path).unwrap().sync_all().unwrap();
            let file = open_at(&slow.nowait, &path, false);
            for _ in 0..20 {
                drop(futures::executor::block_on(file.write_all_at(vec![1; 4096], 0)).unwrap());
            }
            let frozen = Frozen::new(&mount);
            assert!(slow.ends_beside(move || call(file, 0), || drop(frozen)), "{name}, {kind:?}");
        }
        assert_settled(&slow.nowait);
    }
}

/// The limit that docs/guide/limits.md states: a future that is polled may make a plain call, which
/// keeps its thread's ring. A strict instance makes none.
#[test]
fn a_plain_call_of_a_future_keeps_the_ring_of_its_thread() {
    let _watchdog = Watchdog::new("a plain call of a future", 180);
    for strict in [false, true] {
        let (Some(mut hangs), Some(mut slow)) = (stalling(0), Slow::or_skip(strict)) else { return };
        let file = slow.open_quick(&hangs);
        hangs.hang();
        let call = move || drop(futures::executor::block_on(file.read_range(READS_AT, 4096)).unwrap());
        assert_eq!(slow.ends_beside(call, || hangs.go_on()), strict);
        assert_settled(&slow.nowait);
    }
}

#[test]
fn child() {
    match child::role().as_deref() {
        None => {}
        Some("server") => wait_for_server(),
        Some(other) => unreachable!("{other}"),
    }
}
