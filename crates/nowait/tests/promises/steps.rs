//! Promises of started operations of several steps: gathers, batches of writes, sequences.

use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nowait::{Closed, Started};

use super::*;
use crate::common::Way;

promises! {
    started_gathers_give_what_awaited_ones_give
    started_gathers_call_for_each_range
    started_gathers_report_the_errors_of_ranges_and_of_the_call
    started_batches_write_in_order_of_submission
    started_sequences_give_what_awaited_ones_give
    steps_go_on_while_their_thread_blocks
    dropped_steps_are_given_up_detached_ones_are_made
    panics_in_steps_harm_nobody_else
    a_file_closes_when_its_steps_have_ended
}

const LEN: usize = 256 << 10;

/// Nothing may take as long as this.
const PATIENCE: Duration = Duration::from_secs(50);

/// Unsorted; some touch, some overlap, the last lie at the end of the file and beyond.
fn ranges() -> Vec<(u64, usize)> {
    let mut ranges: Vec<_> =
        (0..60).map(|number| (number * 7919 * 13 % LEN as u64, 1 + number as usize * 37)).collect();
    ranges.extend([(0, 4096), (4096, 100), (LEN as u64 - 10, 20), (LEN as u64 + 5, 7), (3, 0)]);
    ranges
}

fn assert_right(bytes: &[u8], gathered: &nowait::Gathered<Vec<u8>>, which: &str) {
    for (index, (offset, length)) in ranges().into_iter().enumerate() {
        assert!(*gathered.get(index).unwrap() == *expected(bytes, offset, length), "{which}: range {index}");
    }
}

fn started_gathers_give_what_awaited_ones_give(ctx: &Ctx) {
    let bytes = contents(LEN, 41);
    let file = ctx.file(&bytes);
    let total = ranges().iter().map(|range| range.1).sum();
    let gather = || file.gather(ranges()).into_buffer(vec![1; total]);
    for is_cold in [true, false] {
        for way in Way::ALL {
            if is_cold {
                ctx.cool(&file);
            }
            // Several at a time, also from within a `block_on` that does not poll them.
            let mut begun: Vec<Started<_>> = (0..3).map(|_| gather().start()).collect();
            begun.extend(nowait::block_on(async { [gather().start()] }));
            for started in begun {
                assert_right(&bytes, &way.end(started).unwrap(), "started");
            }
        }
        let (send, receive) = channel();
        for _ in 0..3 {
            let send = send.clone();
            gather().on_complete(move |gathered| send.send(gathered).unwrap());
        }
        for _ in 0..3 {
            assert_right(&bytes, &receive.recv_timeout(PATIENCE).unwrap().unwrap(), "called back");
        }
    }
    // One that has been polled goes on where it is.
    for is_cold in [true, false] {
        if is_cold {
            ctx.cool(&file);
        }
        let mut polled = Box::pin(gather());
        if poll_once(polled.as_mut()).is_pending() {
            assert_right(&bytes, &(*std::pin::Pin::into_inner(polled)).start().wait().unwrap(), "polled before");
        }
    }
    // More than a turn's worth.
    let many: Vec<_> = (0..5000).map(|i| (i % 63 * 4096, 100)).collect();
    let gathered = file.gather(&many).start().wait().unwrap();
    assert!(
        many.iter().zip(gathered.iter()).all(|(range, read)| *read.unwrap() == *expected(&bytes, range.0, range.1))
    );
}

fn started_gathers_call_for_each_range(ctx: &Ctx) {
    let bytes = contents(LEN, 42);
    let file = ctx.file(&bytes);
    for is_cold in [true, false] {
        if is_cold {
            ctx.cool(&file);
        }
        let seen = Arc::new(Mutex::new(vec![None; ranges().len()]));
        let for_each = seen.clone();
        let each = file.gather(ranges()).each(move |index, read: Result<&[u8], &Error>| {
            assert!(
                for_each.lock().unwrap()[index].replace(read.unwrap().to_vec()).is_none(),
                "range {index} came twice"
            );
        });
        let (send, receive) = channel();
        if is_cold {
            each.on_complete(move |ended| send.send(ended).unwrap());
            receive.recv_timeout(PATIENCE).unwrap().unwrap();
        } else {
            each.start().wait().unwrap();
        }
        for (index, (offset, length)) in ranges().into_iter().enumerate() {
            let seen = &seen.lock().unwrap()[index];
            assert!(seen.as_deref() == Some(expected(&bytes, offset, length)), "range {index}");
        }
    }
}

fn started_gathers_report_the_errors_of_ranges_and_of_the_call(ctx: &Ctx) {
    let bytes = contents(LEN, 43);
    let file = ctx.file(&bytes);
    let ranges = [(0, 100), (i64::MAX as u64, 10), (50, 100)];
    ctx.cool(&file);
    let (send, receive) = channel();
    file.gather(ranges).on_complete(move |gathered| send.send(gathered).unwrap());
    for gathered in [file.gather(ranges).start().wait(), receive.recv_timeout(PATIENCE).unwrap()] {
        let gathered = gathered.unwrap();
        assert_eq!(gathered.errors().iter().map(Error::range_index).collect::<Vec<_>>(), [Some(1)]);
        assert!(*gathered.get(2).unwrap() == *expected(&bytes, 50, 100));
    }
    let error = file.gather_exact(ranges).start().wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidRange);
    // The call as a whole gives the buffer back.
    let small = || file.gather([(0, 100)]).into_buffer(vec![0; 99]);
    let (send, receive) = channel();
    small().on_complete(move |refused| send.send(refused).unwrap());
    for refused in [small().start().wait(), receive.recv_timeout(PATIENCE).unwrap()] {
        let refused = refused.unwrap_err();
        assert_eq!((refused.error.kind(), refused.buffer.len()), (ErrorKind::BufferTooSmall, 99));
    }
    let other = file.clone();
    file.close().unwrap();
    assert_eq!(other.gather([(0, 1)]).start().wait().unwrap_err().error.kind(), ErrorKind::Closed);
}

fn started_batches_write_in_order_of_submission(ctx: &Ctx) {
    let file = ctx.writable(&vec![0; LEN]);
    let batch = |byte: u8| (0..20).map(|page| (page * 4096, vec![byte; 4096])).collect::<Vec<_>>();
    for round in 0..10 {
        let first = file.write_many(batch(2 * round + 1)).start();
        let (send, receive) = channel();
        file.write_many(batch(2 * round + 2)).on_complete(move |written| send.send(written).unwrap());
        let last = file.write_all_at(vec![255; 100], 4096).start();
        assert_eq!(first.wait().unwrap().len(), 20);
        assert_eq!(receive.recv_timeout(PATIENCE).unwrap().unwrap(), vec![vec![2 * round + 2; 4096]; 20]);
        last.wait().unwrap();
        let read = file.read_range(0, 20 * 4096).wait().unwrap();
        let is_right = |(at, byte): (usize, &u8)| *byte == if (4096..4196).contains(&at) { 255 } else { 2 * round + 2 };
        assert!(read.iter().enumerate().all(is_right), "round {round}");
    }
    let beyond = file.write_many(vec![(0, vec![1]), (i64::MAX as u64, vec![1, 2])]).start().wait().unwrap_err();
    assert_eq!((beyond.error.range_index(), beyond.buffer.len()), (Some(1), 2));
}

fn started_sequences_give_what_awaited_ones_give(ctx: &Ctx) {
    let bytes = contents(LEN, 44);
    for way in Way::ALL {
        let path = ctx.path();
        way.end(ctx.nowait.fs().write(&path, bytes.clone()).start()).unwrap();
        assert!(way.end(ctx.nowait.fs().read(&path).start()).unwrap() == bytes);
        way.end(ctx.nowait.fs().write_atomic(&path, b"replaced".to_vec()).start()).unwrap();
        let (send, receive) = channel();
        ctx.nowait.fs().read(&path).on_complete(move |read| send.send(read).unwrap());
        assert_eq!(receive.recv_timeout(PATIENCE).unwrap().unwrap(), b"replaced");
        let file = open(&ctx.nowait, &path);
        assert_eq!(*way.end(file.gather_exact([(2, 3), (0, 1)]).start()).unwrap().into_buffer(), *b"plar");
        assert_eq!(way.end(ctx.nowait.fs().read(ctx.path()).start()).unwrap_err().kind(), ErrorKind::NotFound);
    }
}

/// Nothing of a started operation needs the thread that started it, under `block_on` neither.
fn steps_go_on_while_their_thread_blocks(ctx: &Ctx) {
    let bytes = contents(LEN, 45);
    let file = ctx.writable(&bytes);
    let path = ctx.path();
    let blocks = || {
        ctx.cool(&file);
        let (send, receive) = channel();
        let tell = || {
            let send = send.clone();
            move || send.send(()).unwrap()
        };
        let (gathered, written, wrote) = (tell(), tell(), tell());
        let started = file.gather(ranges()).start();
        file.gather(ranges()).on_complete(move |result| (result.unwrap(), gathered()).1);
        started.on_complete(move |result| (result.unwrap(), written()).1);
        ctx.nowait.fs().write(&path, b"others".to_vec()).on_complete(move |result| (result.unwrap(), wrote()).1);
        let (batch, many) = (tell(), (0..20).map(|page| (page * 8192, bytes[..4096].to_vec())).collect());
        file.write_many(many).start().on_complete(move |result| (result.unwrap(), batch()).1);
        for _ in 0..4 {
            receive.recv_timeout(PATIENCE).unwrap();
        }
    };
    blocks();
    nowait::block_on(async { blocks() });
    futures::executor::block_on(async { blocks() });
}

fn dropped_steps_are_given_up_detached_ones_are_made(ctx: &Ctx) {
    let file = ctx.writable(&vec![0; LEN]);
    ctx.cool(&file);
    for _ in 0..20 {
        drop(file.gather(ranges()).start());
        drop(file.gather(ranges()).each(|_, _| ()).start());
    }
    let many = |byte: u8| (0..10).map(|page| (page * 8192, vec![byte; 4096])).collect::<Vec<_>>();
    file.write_many(many(1)).start().detach();
    assert!(eventually(|| file.read_range(9 * 8192, 4096).wait().unwrap()[..] == [1; 4096]));
    let (first, second) = (ctx.path(), ctx.path());
    ctx.nowait.fs().write(&first, b"detached".to_vec()).start().detach();
    drop(ctx.nowait.fs().write(&second, b"finished".to_vec()).start().finish_on_drop());
    let is_there = |path: &Path, bytes: &[u8]| ctx.nowait.fs().read(path).wait().is_ok_and(|read| read == bytes);
    assert!(eventually(|| is_there(&first, b"detached") && is_there(&second, b"finished")));
}

fn panics_in_steps_harm_nobody_else(ctx: &Ctx) {
    let bytes = contents(LEN, 46);
    let file = ctx.file(&bytes);
    let (send, receive) = channel();
    for _ in 0..10 {
        ctx.cool(&file);
        file.gather(ranges()).on_complete(|_| panic_any("on purpose"));
        let panics = file.gather(ranges()).each(|_, _: Result<&[u8], &Error>| panic_any("on purpose"));
        let uncalled = send.clone();
        panics.on_complete(move |_| uncalled.send(false).unwrap());
        let sound = send.clone();
        file.gather(ranges()).on_complete(move |gathered| sound.send(gathered.is_ok()).unwrap());
    }
    drop(send);
    let ended: Vec<_> = std::iter::from_fn(|| receive.recv_timeout(PATIENCE).ok()).collect();
    assert_eq!(ended, [true; 10]);
    // The waiter has the panic of its own operation: it was begun on this thread, or on the driver.
    let panics = || {
        let each = file.gather(ranges()).each(|_, _: Result<&[u8], &Error>| panic_any("on purpose"));
        each.start().wait()
    };
    for _ in 0..3 {
        let payload = catch_unwind(AssertUnwindSafe(panics)).unwrap_err();
        assert_eq!(payload.downcast_ref(), Some(&"on purpose"));
        ctx.cool(&file);
    }
}

fn a_file_closes_when_its_steps_have_ended(ctx: &Ctx) {
    for round in 0..20 {
        let file = ctx.writable(&[1; 8192]);
        ctx.cool(&file);
        file.gather([(4096, 5)]).start().wait().unwrap();
        let (send, receive) = channel();
        file.gather([(0, 5)]).on_complete(move |read| send.send(read).unwrap());
        receive.recv_timeout(PATIENCE).unwrap().unwrap();
        file.write_many(vec![(0, vec![2; 100]), (4096, vec![3; 4096])]).start().wait().unwrap();
        assert_eq!(file.close().unwrap(), Closed::Now, "round {round}");
    }
}
