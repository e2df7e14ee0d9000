//! Promises of operations that have begun and borrow nothing.

use std::panic::panic_any;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nowait::{Closed, Started};

use super::*;
use crate::common::Way;

promises! {
    started_operations_give_what_awaited_ones_give
    what_has_begun_goes_on_with_nobody_to_poll_it
    dropped_ones_are_abandoned_detached_ones_are_made
    callbacks_get_the_result_once
    a_callback_that_panics_harms_nobody
    a_callback_runs_outside_the_call_that_takes_it
    what_is_refused_at_once_is_told_too
    a_file_closes_when_its_last_result_was_taken
    a_callback_may_come_later_and_outlives_the_file
}

const LEN: usize = 64 << 10;

/// Nobody may look at what is in flight as long as this takes.
const PATIENCE: Duration = Duration::from_secs(50);

fn is_send_and_static<T: Send + 'static>(_: &T) {}

/// Begins at a place that has page boundaries on its way, and ends before them.
fn places() -> impl Iterator<Item = (u64, usize)> {
    (0..40).map(|number| (number * 1531, 1 + number as usize * 97))
}

fn started_operations_give_what_awaited_ones_give(ctx: &Ctx) {
    let bytes = contents(LEN, 31);
    let file = ctx.file(&bytes);
    for submits in [false, true] {
        for way in Way::ALL {
            let begin = |(offset, length): (u64, usize)| {
                let read = file.read_at(vec![0; length], offset);
                if submits { read.submit() } else { read.start() }
            };
            let begun: Vec<_> = places().map(begin).collect();
            begun.iter().for_each(is_send_and_static);
            for ((offset, length), read) in places().zip(begun) {
                let (n, read) = way.end(read).unwrap();
                assert!(read[..n] == *expected(&bytes, offset, length), "{way:?} at {offset}");
            }
        }
    }
    let path = ctx.create(&bytes);
    let opened = OpenOptions::new().read(true).open_in(&ctx.nowait, &path).start().wait().unwrap();
    assert_eq!(opened.size().submit().wait().unwrap(), LEN as u64);
}

fn what_has_begun_goes_on_with_nobody_to_poll_it(ctx: &Ctx) {
    let bytes = contents(LEN, 32);
    let file = ctx.file(&bytes);
    let ended = || ctx.nowait.stats().ended();
    let before = ended();
    // Also under a `block_on` that does not look at them.
    let mut begun: Vec<Started<_>> =
        places().map(|(offset, length)| file.read_range(offset, length).submit()).collect();
    begun.extend(nowait::block_on(async {
        places().map(|(offset, length)| file.read_range(offset, length).submit()).collect::<Vec<_>>()
    }));
    assert!(eventually(|| ended() == before + 80), "{:?}", ctx.nowait.stats());
    // They are awaited on another thread.
    let read = std::thread::spawn(|| futures::executor::block_on(join_all(begun))).join().unwrap();
    for ((offset, length), read) in places().chain(places()).zip(read) {
        assert!(read.unwrap()[..] == *expected(&bytes, offset, length));
    }
}

fn dropped_ones_are_abandoned_detached_ones_are_made(ctx: &Ctx) {
    let file = ctx.writable(&vec![0; LEN]);
    let write = |page: usize| file.write_all_at(vec![page as u8 + 1; 4096], page as u64 * 4096).submit();
    write(0).detach();
    drop(write(1).finish_on_drop());
    drop(write(2));
    let kept = write(3).finish_on_drop();
    assert_eq!(kept.wait().unwrap()[0], 4);
    assert_settled(&ctx.nowait);
    let read = file.read_range(0, 5 * 4096).wait().unwrap();
    for (page, bytes) in read.chunks(4096).enumerate() {
        let number = page as u8 + 1;
        match page {
            0 | 1 | 3 => assert!(bytes.iter().all(|byte| *byte == number), "page {page}"),
            // All of it, nothing, or what a short write has moved before it was given up.
            2 => {
                let kept = bytes.iter().take_while(|byte| **byte == number).count();
                assert!(bytes[kept..].iter().all(|byte| *byte == 0), "page {page}: {kept} bytes, and others");
            }
            _ => assert!(bytes.iter().all(|byte| *byte == 0), "page {page}"),
        }
    }
}

fn callbacks_get_the_result_once(ctx: &Ctx) {
    let bytes = contents(LEN, 33);
    let file = ctx.file(&bytes);
    let (send, receive) = channel();
    let ask = |number: usize, (offset, length): (u64, usize)| {
        let send = send.clone();
        file.read_range(offset, length).on_complete(move |read| send.send((number, read)).unwrap());
    };
    places().enumerate().for_each(|(number, place)| ask(number, place));
    // Before it looks at anything.
    nowait::block_on(async { places().enumerate().for_each(|(number, place)| ask(40 + number, place)) });
    let mut seen = vec![0; 80];
    for _ in 0..80 {
        let (number, read) = receive.recv_timeout(PATIENCE).unwrap();
        let (offset, length) = places().nth(number % 40).unwrap();
        assert!(read.unwrap()[..] == *expected(&bytes, offset, length));
        seen[number] += 1;
    }
    assert_eq!(seen, [1; 80]);
    // One begins the next.
    fn chain(file: File, left: usize, done: std::sync::mpsc::Sender<()>) {
        let next = file.clone();
        file.read_range(left as u64 * 16, 16).on_complete(move |read| {
            read.unwrap();
            if left > 0 { chain(next, left - 1, done) } else { done.send(()).unwrap() }
        });
    }
    let (done, ended) = channel();
    chain(file, 100, done);
    ended.recv_timeout(PATIENCE).unwrap();
}

fn a_callback_that_panics_harms_nobody(ctx: &Ctx) {
    let file = ctx.file(&contents(LEN, 34));
    for _ in 0..20 {
        file.read_range(0, 100).on_complete(|_| panic_any("on purpose"));
    }
    let (send, receive) = channel();
    for _ in 0..20 {
        let send = send.clone();
        file.read_range(100, 100).on_complete(move |read| send.send(read.is_ok()).unwrap());
    }
    for _ in 0..20 {
        assert!(receive.recv_timeout(PATIENCE).unwrap());
    }
}

/// Symptom: a caller waited for ever for a lock that it held, in the callback of a cached read.
fn a_callback_runs_outside_the_call_that_takes_it(ctx: &Ctx) {
    let bytes = contents(LEN, 35);
    let file = ctx.writable(&bytes);
    let path = ctx.create(b"opened");
    file.read_range(0, LEN).wait().unwrap();
    let caller = std::thread::current().id();
    let (send, receive) = channel();
    let lock = Arc::new(Mutex::new(()));
    let called = |kind: &'static str| {
        let (lock, send) = (lock.clone(), send.clone());
        move || {
            let thread = std::thread::current().id();
            if thread != caller {
                drop(lock.lock().unwrap());
            }
            send.send((kind, thread)).unwrap();
        }
    };
    for _ in 0..20 {
        let ended = [file.read_range(0, 4096).start(), file.read_range(0, 4096).submit()];
        assert_settled(&ctx.nowait);
        let gathered = file.gather([(0, 10), (LEN as u64 / 2, 10)]).start();
        let held = lock.lock().unwrap();
        let mut kinds = Vec::new();
        let mut tell = |kind| {
            kinds.push(kind);
            called(kind)
        };
        macro_rules! each {
            ($($kind:literal: $operation:expr)*) => {
                $({
                    let tell = tell($kind);
                    $operation.on_complete(move |result| (result.unwrap(), tell()).1);
                })*
            };
        }
        each! {
            "read": file.read_range(4096, 4096)
            "vectored read": file.read_vectored_at(vec![vec![0; 100], vec![0; 100]], 0)
            "write": file.write_all_at(bytes[..100].to_vec(), 0)
            "size": file.size()
            "sync": file.sync_data()
            "open": ctx.options().open_in(&ctx.nowait, &path)
            "gather": file.gather([(0, 10), (LEN as u64 / 2, 10)])
            "writes": file.write_many(vec![(0, bytes[..10].to_vec()), (4096, bytes[4096..4106].to_vec())])
            "steps": ctx.nowait.fs().read(&path)
            "started gather": gathered
        }
        for read in ended {
            each!("started": read);
        }
        let refused = tell("refused");
        file.read_at(vec![0; 10], i64::MAX as u64).on_complete(move |read| (read.unwrap_err(), refused()).1);
        drop(held);
        let mut seen: Vec<_> = kinds.iter().map(|_| receive.recv_timeout(PATIENCE).unwrap()).collect();
        assert!(seen.iter().all(|(_, thread)| *thread != caller), "{seen:?} on {caller:?}");
        seen.sort_by_key(|(kind, _)| *kind);
        kinds.sort();
        assert!(seen.iter().map(|(kind, _)| *kind).eq(kinds));
    }
}

fn what_is_refused_at_once_is_told_too(ctx: &Ctx) {
    let file = ctx.file(b"bytes");
    let beyond = || file.read_at(vec![0; 10], i64::MAX as u64);
    for error in [beyond().start().wait().unwrap_err(), beyond().submit().wait().unwrap_err()] {
        assert_eq!((error.error.kind(), error.buffer.len()), (ErrorKind::InvalidRange, 10));
    }
    let (send, receive) = channel();
    beyond().on_complete(move |read| send.send(read.unwrap_err().error.kind()).unwrap());
    assert_eq!(receive.recv_timeout(PATIENCE).unwrap(), ErrorKind::InvalidRange);
}

fn a_file_closes_when_its_last_result_was_taken(ctx: &Ctx) {
    for round in 0..20 {
        let file = ctx.file(b"bytes");
        let read = file.read_range(0, 5).submit();
        read.wait().unwrap();
        assert_eq!(file.close().unwrap(), Closed::Now, "waited for, round {round}");
        let file = ctx.file(b"bytes");
        let (send, receive) = channel();
        file.read_range(0, 5).on_complete(move |read| send.send(read).unwrap());
        receive.recv_timeout(PATIENCE).unwrap().unwrap();
        assert_eq!(file.close().unwrap(), Closed::Now, "called back, round {round}");
    }
}

fn a_callback_may_come_later_and_outlives_the_file(ctx: &Ctx) {
    let bytes = contents(LEN, 35);
    let (send, receive) = channel();
    for (offset, length) in places() {
        let file = ctx.file(&bytes);
        let begun = file.read_range(offset, length).submit();
        let never_polled = file.read_range(offset, length);
        let mut polled = Box::pin(file.read_range(offset, length));
        let is_pending = poll_once(polled.as_mut()).is_pending();
        let tell = || {
            let send = send.clone();
            move |read: nowait::Result<Buf>| send.send(read).unwrap()
        };
        never_polled.on_complete(tell());
        if is_pending {
            (*std::pin::Pin::into_inner(polled)).on_complete(tell());
        } else {
            send.send(file.read_range(offset, length).wait()).unwrap();
        }
        drop(file);
        begun.on_complete(tell());
        for _ in 0..3 {
            let read = receive.recv_timeout(PATIENCE).unwrap().unwrap();
            assert!(read[..] == *expected(&bytes, offset, length), "{offset}");
        }
    }
}
