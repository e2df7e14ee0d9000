//! Promises of writes, syncs and changes of length.
//!
//! The oracle is a `Vec<u8>` that the same was done to. Data is text, so that every kind of buffer
//! can hold it.

use std::sync::Arc;

use nowait::{Allocate, BufferError, BufferResult, Operation, Write, WriteBuffer, Written};

use super::*;
use crate::common::{Way, kept_of_dropped, put};

promises! {
    every_kind_of_buffer_is_written_and_comes_back
    writes_at_random_places_are_read_again
    writes_into_cold_pages_leave_the_rest_of_them
    writes_beyond_the_end_leave_zeros_between
    vectored_writes_take_buffer_after_buffer
    many_writes_at_once_are_all_written
    many_writes_that_continue_each_other_are_one
    of_many_writes_that_overlap_the_last_wins
    many_writes_tell_which_one_failed
    appends_from_many_tasks_are_whole_and_none_is_lost
    records_written_to_a_file_opened_for_appending_are_whole
    blocking_writes_take_borrowed_memory
    a_tried_write_is_whole_or_can_be_made_again
    length_is_cut_and_extended
    syncs_succeed
    syncs_at_the_same_time_all_succeed
    durable_writes_are_read_again
    closed_file_takes_no_writes
    file_opened_for_reading_takes_no_writes
    writes_beyond_the_largest_offset_are_refused
    empty_writes_change_nothing
    allocation_leaves_what_is_written
    many_writes_in_flight_all_arrive
    dropped_writes_leave_old_or_new
    dropped_appends_are_whole_or_not_there
    dropped_changes_are_made_or_not
    many_writes_dropped_half_way_are_each_whole_or_not_there
    large_writes
}

/// Text that tells a wrong offset.
fn text(len: usize, seed: u64) -> Vec<u8> {
    contents(len, seed).iter().map(|byte| b'a' + byte % 26).collect()
}

/// The file holds exactly this, as we read it and as others do.
#[track_caller]
fn assert_holds(ctx: &Ctx, file: &File, bytes: &[u8]) {
    assert_eq!(file.size().wait().unwrap(), bytes.len() as u64, "size");
    let mut read = vec![0; bytes.len() + 1];
    let n = file.read_into(&mut read, 0).unwrap();
    let differs = |there: &[u8]| there.iter().zip(bytes).position(|(a, b)| a != b);
    assert!(read[..n] == *bytes, "{n} of {} bytes are read; first difference: {:?}", bytes.len(), differs(&read[..n]));
    if ctx.folder().is_some() {
        let there = std::fs::read(file.path()).unwrap();
        assert!(there == bytes, "others read {} bytes; first difference: {:?}", there.len(), differs(&there));
    }
}

fn every_kind_of_buffer_is_written_and_comes_back(ctx: &Ctx) {
    fn check<B: WriteBuffer + AsRef<[u8]>>(ctx: &Ctx, make: impl Fn(Vec<u8>) -> B) {
        let mut bytes = text(LEN, 1);
        let file = ctx.writable(&bytes);
        let mut seed = 100;
        for (offset, len) in [(0, 0), (0, 1), (0, 4096), (4096, 4096), (1, 4095), (4095, 2), (5, LEN - 5), (LEN - 1, 1)]
        {
            for way in Way::ALL {
                seed += 1;
                let (offset, data) = (offset as u64, text(len, seed));
                let (n, back) = way.run(file.write_at(make(data.clone()), offset)).map_err(Error::from).unwrap();
                assert!(n == len && back.as_ref() == data, "write_at {offset}, {len}, {way:?}");
                put(&mut bytes, offset, &data);
                assert_holds(ctx, &file, &bytes);
                let data = text(len, seed + 1000);
                let back = way.run(file.write_all_at(make(data.clone()), offset)).map_err(Error::from).unwrap();
                assert!(back.as_ref() == data, "write_all_at {offset}, {len}, {way:?}");
                put(&mut bytes, offset, &data);
                assert_holds(ctx, &file, &bytes);
            }
        }
    }
    check::<Vec<u8>>(ctx, |data| data);
    check::<Box<[u8]>>(ctx, Vec::into_boxed_slice);
    check::<Buf>(ctx, |data| {
        let mut buf = Buf::zeroed(data.len());
        buf.copy_from_slice(&data);
        buf
    });
    check::<Arc<[u8]>>(ctx, Arc::from);
    check::<&'static [u8]>(ctx, |data| data.leak());
    check::<&'static str>(ctx, |data| String::from_utf8(data).unwrap().leak());
    check::<String>(ctx, |data| String::from_utf8(data).unwrap());
    #[cfg(feature = "bytes")]
    check::<bytes::Bytes>(ctx, bytes::Bytes::from);
    #[cfg(feature = "bytes")]
    check::<bytes::BytesMut>(ctx, |data| bytes::BytesMut::from(&data[..]));
    // Spare capacity is not written.
    let file = ctx.writable(&[]);
    let mut vec = Vec::with_capacity(100);
    vec.extend_from_slice(b"ten bytes.");
    assert_eq!(file.write_at(vec, 0).wait().unwrap().0, 10);
    assert_holds(ctx, &file, b"ten bytes.");
}

fn random_writes(ctx: &Ctx, file: &File, bytes: &mut Vec<u8>, count: usize) {
    let mut rng = Rng::for_test();
    for number in 0..count {
        let (offset, data) = (rng.below(bytes.len() + 100) as u64, text(rng.below(9000), rng.next()));
        let way = Way::ALL[rng.below(3)];
        let n = match rng.below(3) {
            0 => way.run(file.write_at(data.clone(), offset)).unwrap().0,
            1 => way.run(file.write_all_at(data.clone(), offset)).unwrap().len(),
            _ => file.write_from(&data, offset).unwrap(),
        };
        assert_eq!(n, data.len(), "write {number}");
        put(bytes, offset, &data);
        let read = read(file, offset, data.len());
        assert!(read == data, "write {number} at {offset}, length {}", data.len());
    }
    assert_holds(ctx, file, bytes);
}

fn writes_at_random_places_are_read_again(ctx: &Ctx) {
    let mut bytes = text(200_000, 2);
    let file = ctx.writable(&bytes);
    random_writes(ctx, &file, &mut bytes, 250);
    // Also from nothing.
    let mut bytes = Vec::new();
    random_writes(ctx, &ctx.writable(&[]), &mut bytes, 50);
}

fn writes_into_cold_pages_leave_the_rest_of_them(ctx: &Ctx) {
    let mut bytes = text(1 << 20, 3);
    let file = ctx.writable(&bytes);
    for round in 0..3 {
        ctx.cool(&file);
        for i in 0..40 {
            let (offset, data) = (i * 26_000 + round * 7, text(100 + 131 * i as usize, i));
            Way::ALL[(i + round) as usize % 3].run(file.write_all_at(data.clone(), offset)).unwrap();
            put(&mut bytes, offset, &data);
        }
        assert_holds(ctx, &file, &bytes);
        ctx.cool(&file);
        assert_holds(ctx, &file, &bytes);
    }
}

fn writes_beyond_the_end_leave_zeros_between(ctx: &Ctx) {
    for gap in [0, 1, 4096, 100_000] {
        for way in Way::ALL {
            let mut bytes = text(LEN, 4);
            let file = ctx.writable(&bytes);
            // Over the end, then beyond it, twice.
            for offset in [LEN - 10, LEN + gap, LEN + 3 * gap + 5000] {
                let data = text(50, offset as u64);
                way.run(file.write_all_at(data.clone(), offset as u64)).unwrap();
                put(&mut bytes, offset as u64, &data);
                assert_holds(ctx, &file, &bytes);
            }
        }
    }
}

fn vectored_writes_take_buffer_after_buffer(ctx: &Ctx) {
    let mut rng = Rng::for_test();
    let mut bytes = text(LEN, 5);
    let file = ctx.writable(&bytes);
    // The last has more buffers than a call takes (IOV_MAX).
    let many: Vec<usize> = (0..2000).map(|_| rng.below(8)).collect();
    let sets: [&[usize]; 8] = [&[], &[0], &[100], &[3, 0, 5000], &[0, 0, 7, 0], &[LEN, 1, 1], &[4096; 5], &many];
    for lens in sets {
        for offset in [0, 1, LEN as u64 - 3000, LEN as u64 + 1] {
            for way in Way::ALL {
                let buffers: Vec<Vec<u8>> = lens.iter().map(|len| text(*len, rng.next())).collect();
                let (n, back) = way.run(file.write_vectored_at(buffers.clone(), offset)).unwrap();
                assert_eq!(n, lens.iter().sum::<usize>(), "offset {offset}, {} buffers, {way:?}", lens.len());
                assert!(back == buffers);
                put(&mut bytes, offset, &buffers.concat());
                assert_holds(ctx, &file, &bytes);
            }
        }
    }
}

type Many = Vec<(u64, Vec<u8>)>;

fn write_many(file: &File, writes: Many, way: Way) -> Result<Vec<Vec<u8>>, BufferError<Vec<Vec<u8>>>> {
    match way {
        Way::Waited => file.write_many(writes).wait(),
        way => way.run_future(file.write_many(writes)),
    }
}

/// Writes them all, and checks what comes back.
fn write_all_of(file: &File, bytes: &mut Vec<u8>, writes: &Many, way: Way) {
    let back = write_many(file, writes.clone(), way).unwrap();
    assert!(back.iter().eq(writes.iter().map(|(_, data)| data)), "the buffers come back in the order of the list");
    writes.iter().for_each(|(offset, data)| put(bytes, *offset, data));
}

fn many_writes_at_once_are_all_written(ctx: &Ctx) {
    let mut rng = Rng::for_test();
    let mut bytes = text(500_000, 6);
    let file = ctx.writable(&bytes);
    for way in Way::ALL {
        for count in [0, 1, 2, 100] {
            ctx.cool(&file);
            let writes: Many = (0..count)
                .map(|i| (i * 5000 + rng.below(100) as u64, text([0, 1, 700, 4096, 4900][rng.below(5)], rng.next())))
                .collect();
            write_all_of(&file, &mut bytes, &writes, way);
            assert_holds(ctx, &file, &bytes);
        }
    }
}

fn many_writes_that_continue_each_other_are_one(ctx: &Ctx) {
    let mut bytes = text(LEN, 7);
    let file = ctx.writable(&bytes);
    for way in Way::ALL {
        let mut offset = 77;
        let mut writes = Many::new();
        for i in 0..20 {
            let data = text([500, 0, 4096, 1][i % 4], 70 + i as u64);
            writes.push((offset, data.clone()));
            offset += data.len() as u64;
        }
        let before = ctx.nowait.stats().started;
        write_all_of(&file, &mut bytes, &writes, way);
        assert_eq!(ctx.nowait.stats().started - before, 1, "{way:?}");
        assert_holds(ctx, &file, &bytes);
    }
}

fn of_many_writes_that_overlap_the_last_wins(ctx: &Ctx) {
    // A simulated disk completes in any order, as one behind O_DIRECT may.
    let Some(_) = ctx.folder() else { return };
    let mut rng = Rng::for_test();
    let mut bytes = text(100_000, 8);
    let file = ctx.writable(&bytes);
    for round in 0..30 {
        if round % 10 == 0 {
            ctx.cool(&file);
        }
        let writes: Many = (0..30).map(|_| (rng.below(20_000) as u64, text(1 + rng.below(8000), rng.next()))).collect();
        write_all_of(&file, &mut bytes, &writes, Way::ALL[round % 3]);
        assert_holds(ctx, &file, &bytes);
    }
}

fn many_writes_tell_which_one_failed(ctx: &Ctx) {
    for way in Way::ALL {
        let mut bytes = text(LEN, 9);
        let file = ctx.writable(&bytes);
        let largest = i64::MAX as u64;
        let writes: Many = vec![
            (100, text(50, 1)),
            (150, text(50, 2)),
            (largest - 10, text(50, 3)),
            (7000, text(50, 4)),
            (u64::MAX, text(50, 5)),
        ];
        let error = write_many(&file, writes.clone(), way).unwrap_err();
        assert!(error.buffer.iter().eq(writes.iter().map(|(_, data)| data)), "{way:?}: the error carries all buffers");
        let error = error.error;
        assert_eq!((error.kind(), error.range_index()), (ErrorKind::InvalidRange, Some(2)), "{way:?}");
        assert_eq!((error.offset(), error.length()), (Some(largest - 10), Some(50)));
        assert_eq!(error.bytes_written(), Some(Written::First(0)));
        assert_names(&error, &["write", &file.path().display().to_string(), &format!("offset {}", largest - 10)]);
        // The others were written all the same.
        [0, 1, 3].iter().for_each(|i: &usize| put(&mut bytes, writes[*i].0, &writes[*i].1));
        assert_holds(ctx, &file, &bytes);
    }
}

fn appends_from_many_tasks_are_whole_and_none_is_lost(ctx: &Ctx) {
    check_records(ctx, &ctx.writable(&[]), |file, record, _| file.append(record));
}

/// Symptom: with `O_APPEND`, a non-blocking attempt wrote a first part and a pool thread the rest,
/// with another's record between; and the simulator wrote at the offset. The offset is ignored, and
/// a record is one call.
fn records_written_to_a_file_opened_for_appending_are_whole(ctx: &Ctx) {
    let path = ctx.create(&[]);
    let mut options = OpenOptions::new();
    options.read(true).append(true).direct(ctx.direct);
    let file = options.open_in(&ctx.nowait, path).wait().unwrap();
    check_records(ctx, &file, |file, record, number| match number % 3 {
        0 => file.append(record),
        _ => file.write_all_at(record, number as u64 * 1000),
    });
    // Neither do writes that continue each other by their offsets, made in one turn or as one
    // batch.
    let mut bytes = read(&file, 0, 1 << 20);
    let parts: Many = (0..10).map(|part| (part * 700, text(700, part))).collect();
    for way in Way::ALL {
        let all = join_all(parts.iter().map(|(offset, data)| file.write_all_at(data.clone(), *offset)));
        way.run_future(all).into_iter().for_each(|written| drop(written.unwrap()));
        let mut there: Vec<_> = read(&file, bytes.len() as u64, 7001).chunks(700).map(<[u8]>::to_vec).collect();
        let mut right: Vec<_> = parts.iter().map(|(_, data)| data.clone()).collect();
        if !ctx.short_calls {
            there.sort_unstable();
            right.sort_unstable();
            assert!(there == right, "{way:?}: each is there once, and whole");
        }
        bytes = read(&file, 0, 1 << 20);
        drop(write_many(&file, parts.clone(), way).unwrap());
        parts.iter().for_each(|(_, data)| bytes.extend_from_slice(data));
        assert_holds(ctx, &file, &bytes);
    }
}

/// Tasks and threads append records by `write`, which is given each one's number; then what is
/// there.
fn check_records<'f>(
    ctx: &Ctx,
    file: &'f File,
    write: impl Fn(&'f File, Vec<u8>, usize) -> Write<'f, BufferResult<Vec<u8>>> + Copy + Send + Sync,
) {
    const TASKS: usize = 8;
    const RECORDS: usize = 25;
    /// Number, length, and as many bytes that repeat the number.
    fn record(number: usize) -> Vec<u8> {
        let len = 1 + number * 7919 % 3000;
        let mut record = [(number as u16).to_le_bytes(), (len as u16).to_le_bytes()].concat();
        record.resize(4 + len, number as u8);
        record
    }
    let task = |task: usize| async move {
        for i in 0..RECORDS {
            let number = task * RECORDS + i;
            assert!(write(file, record(number), number).await.unwrap() == record(number));
        }
    };
    std::thread::scope(|scope| {
        let task = &task;
        scope.spawn(move || futures::executor::block_on(join_all((0..TASKS / 4).map(task))));
        scope.spawn(move || nowait::block_on(join_all((TASKS / 4..TASKS / 2).map(task))));
        for number in TASKS / 2..TASKS {
            let numbers = number * RECORDS..(number + 1) * RECORDS;
            scope.spawn(move || numbers.for_each(|number| drop(write(file, record(number), number).wait().unwrap())));
        }
    });
    let bytes = file.read_range(0, file.size().wait().unwrap() as usize).wait().unwrap();
    let mut all: Vec<Vec<u8>> = (0..TASKS * RECORDS).map(record).collect();
    let mut found = Vec::new();
    if ctx.short_calls {
        // A simulated disk may take a record in two parts.
        let sorted = |mut bytes: Vec<u8>| {
            bytes.sort_unstable();
            bytes
        };
        return assert!(sorted(bytes.to_vec()) == sorted(all.concat()), "no byte is lost");
    }
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let len = 4 + u16::from_le_bytes([rest[2], rest[3]]) as usize;
        assert!(len <= rest.len(), "a whole record at {}", bytes.len() - rest.len());
        found.push(rest[..len].to_vec());
        rest = &rest[len..];
    }
    found.sort_unstable();
    all.sort_unstable();
    assert!(found == all, "every record is there once, and whole");
}

fn blocking_writes_take_borrowed_memory(ctx: &Ctx) {
    let mut bytes = text(LEN, 10);
    let file = ctx.writable(&bytes);
    for (offset, len) in [(0, 0), (0, LEN), (5, 100), (LEN as u64 - 10, 11), (2 * LEN as u64, 1)] {
        let data = text(len, offset + 1);
        assert_eq!(file.write_from(&data, offset).unwrap(), len);
        put(&mut bytes, offset, &data);
        assert_holds(ctx, &file, &bytes);
        let data = text(len, offset + 2);
        file.write_all_from(&data, offset).unwrap();
        put(&mut bytes, offset, &data);
        assert_holds(ctx, &file, &bytes);
    }
}

fn a_tried_write_is_whole_or_can_be_made_again(ctx: &Ctx) {
    let mut bytes = text(LEN, 10);
    let file = ctx.writable(&bytes);
    for (offset, len) in [(0, 0), (0, LEN), (5, 100), (LEN as u64 - 10, 11), (2 * LEN as u64, 1)] {
        let data = text(len, offset + 1);
        match file.try_write_from(&data, offset) {
            Some(written) => assert_eq!(written.unwrap(), len),
            None => file.write_all_from(&data, offset).unwrap(),
        }
        put(&mut bytes, offset, &data);
        assert_holds(ctx, &file, &bytes);
    }
}

fn length_is_cut_and_extended(ctx: &Ctx) {
    for way in Way::ALL {
        let mut bytes = text(LEN, 11);
        let file = ctx.writable(&bytes);
        for len in [LEN, 5000, 4096, 4097, 3 * LEN, LEN, 0, 1, 100_000, 10] {
            way.run(file.set_len(len as u64)).unwrap();
            bytes.resize(len, 0);
            assert_holds(ctx, &file, &bytes);
            // At the new end, wherever what is remembered of the file puts it.
            let data = text(20, len as u64);
            way.run(file.write_all_at(data.clone(), len as u64)).unwrap();
            put(&mut bytes, len as u64, &data);
            assert_holds(ctx, &file, &bytes);
        }
    }
}

fn syncs_succeed(ctx: &Ctx) {
    let bytes = text(LEN, 12);
    let file = ctx.writable(&[]);
    for way in Way::ALL {
        way.run(file.write_all_at(bytes.clone(), 0)).unwrap();
        way.run(file.sync_range(0, 4096)).unwrap();
        way.run(file.sync_range(1, 0)).unwrap();
        way.run(file.sync_data()).unwrap();
        way.run(file.sync_all()).unwrap();
    }
    assert!(file.acknowledge_sync_failure().is_none());
    assert_holds(ctx, &file, &bytes);
    // Not only for those who write.
    open(&ctx.nowait, file.path()).sync_data().wait().unwrap();
}

fn syncs_at_the_same_time_all_succeed(ctx: &Ctx) {
    let bytes = text(LEN, 13);
    let file = ctx.writable(&bytes);
    let syncs = || {
        join_all((0..40).map(|i| {
            let file = file.clone();
            async move {
                file.write_all_at(vec![b'z'; 10], i * 100).await.unwrap();
                if i % 2 == 0 { file.sync_data().await } else { file.sync_all().await }
            }
        }))
    };
    std::thread::scope(|scope| {
        scope.spawn(|| futures::executor::block_on(syncs()).into_iter().for_each(|result| result.unwrap()));
        scope.spawn(|| nowait::block_on(syncs()).into_iter().for_each(|result| result.unwrap()));
        scope.spawn(|| (0..10).for_each(|_| file.sync_data().wait().unwrap()));
    });
}

fn durable_writes_are_read_again(ctx: &Ctx) {
    let mut bytes = text(LEN, 14);
    let file = ctx.writable(&bytes);
    for (i, way) in (1..).zip(Way::ALL) {
        let data = text(5000, i);
        let (n, _) = way.run(file.write_at(data.clone(), i * 1000).durable()).unwrap();
        assert_eq!(n, 5000);
        put(&mut bytes, i * 1000, &data);
        way.run(file.append(data.clone()).durable()).unwrap();
        bytes.extend_from_slice(&data);
        assert_holds(ctx, &file, &bytes);
    }
    // Those that continue each other may become one call.
    let data: Vec<Vec<u8>> = (0..8).map(|i| text(3000, i)).collect();
    let writes = data.iter().zip(0..).map(|(data, i)| file.write_all_at(data.clone(), i * 3000).durable());
    futures::executor::block_on(join_all(writes)).into_iter().for_each(|result| drop(result.unwrap()));
    put(&mut bytes, 0, &data.concat());
    assert_holds(ctx, &file, &bytes);
}

/// A write that did nothing gives its buffer back, and says so.
#[track_caller]
fn assert_refused<T>(result: Result<T, BufferError<Vec<u8>>>, buffer: &[u8], kind: ErrorKind) -> Error {
    let Err(BufferError { error, buffer: back, .. }) = result else { panic!("a write that cannot be succeeded") };
    assert!(back == buffer, "an error gives the buffer back unchanged");
    assert_eq!((error.kind(), error.bytes_written()), (kind, Some(Written::First(0))), "{error}");
    assert_eq!(error.length(), Some(buffer.len() as u64));
    assert_names(&error, &["write", "nothing was written"]);
    error
}

fn closed_file_takes_no_writes(ctx: &Ctx) {
    use ErrorKind::Closed;
    let bytes = text(LEN, 15);
    let path = ctx.create(&bytes);
    let file = writable(&ctx.nowait, &path);
    let clone = file.clone();
    file.close().unwrap();
    for way in Way::ALL {
        for data in [text(9, 1), Vec::new()] {
            assert_refused(way.run(clone.write_at(data.clone(), 3)), &data, Closed);
            assert_refused(way.run(clone.write_all_at(data.clone(), 3)), &data, Closed);
            assert_refused(way.run(clone.write_at(data.clone(), 3).durable()), &data, Closed);
            assert_refused(way.run(clone.append(data.clone())), &data, Closed);
            assert_eq!(way.run(clone.write_vectored_at(vec![data.clone()], 0)).unwrap_err().error.kind(), Closed);
            assert_eq!(clone.write_from(&data, 0).unwrap_err().kind(), Closed);
            assert_eq!(clone.write_all_from(&data, 0).unwrap_err().kind(), Closed);
        }
        let error = write_many(&clone, vec![(0, text(9, 1)), (100, text(9, 2))], way).unwrap_err();
        assert_eq!((error.error.kind(), error.error.range_index()), (Closed, Some(0)));
        assert_eq!(error.buffer, [text(9, 1), text(9, 2)]);
        let changes = [
            clone.set_len(0),
            clone.allocate(Allocate::Reserve, 0, 1),
            clone.sync_data(),
            clone.sync_all(),
            clone.sync_range(0, 0),
        ];
        changes.into_iter().for_each(|change| assert_eq!(way.run(change).unwrap_err().kind(), Closed));
    }
    assert_holds(ctx, &open(&ctx.nowait, &path), &bytes);
}

fn file_opened_for_reading_takes_no_writes(ctx: &Ctx) {
    // A simulator does not look at what a file was opened for.
    let Some(_) = ctx.folder() else { return };
    let bytes = text(LEN, 16);
    let file = ctx.file(&bytes);
    let data = text(4096, 1);
    let names_it = |error: &Error| {
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert_names(error, &["not opened for writing", &file.path().display().to_string()]);
    };
    for way in Way::ALL {
        names_it(&assert_refused(way.run(file.write_at(data.clone(), 0)), &data, ErrorKind::PermissionDenied));
        names_it(&assert_refused(way.run(file.write_all_at(data.clone(), 5)), &data, ErrorKind::PermissionDenied));
        names_it(&assert_refused(way.run(file.append(data.clone())), &data, ErrorKind::PermissionDenied));
        let durable = file.write_at(data.clone(), 0).durable();
        names_it(&assert_refused(way.run(durable), &data, ErrorKind::PermissionDenied));
        names_it(&way.run(file.write_vectored_at(vec![data.clone(); 2], 0)).unwrap_err().error);
        names_it(&write_many(&file, vec![(0, data.clone())], way).unwrap_err().error);
    }
    names_it(&file.write_from(&data, 0).unwrap_err());
    names_it(&file.write_all_from(&data, 0).unwrap_err());
    assert_holds(ctx, &file, &bytes);
}

fn writes_beyond_the_largest_offset_are_refused(ctx: &Ctx) {
    use ErrorKind::InvalidRange;
    let bytes = text(LEN, 17);
    let file = ctx.writable(&bytes);
    let largest = i64::MAX as u64;
    for (offset, len) in [(largest - 9, 10), (largest, 1), (largest + 1, 0), (u64::MAX, 10), (u64::MAX, 0)] {
        let data = text(len, 1);
        let in_range = |error: &Error| {
            assert_eq!((error.offset(), error.length()), (Some(offset), Some(len as u64)));
            assert_names(error, &[&file.path().display().to_string(), &format!("offset {offset}")]);
        };
        for way in Way::ALL {
            in_range(&assert_refused(way.run(file.write_at(data.clone(), offset)), &data, InvalidRange));
            in_range(&assert_refused(way.run(file.write_all_at(data.clone(), offset)), &data, InvalidRange));
            let error = way.run(file.write_vectored_at(vec![data.clone()], offset)).unwrap_err();
            assert_eq!((error.error.kind(), error.buffer), (InvalidRange, vec![data.clone()]));
        }
        let error = file.write_from(&data, offset).unwrap_err();
        assert_eq!((error.kind(), error.bytes_written()), (InvalidRange, Some(Written::First(0))));
        in_range(&error);
        assert_eq!(file.write_all_from(&data, offset).unwrap_err().kind(), InvalidRange);
    }
    for way in Way::ALL {
        assert_eq!(way.run(file.set_len(largest + 1)).unwrap_err().kind(), InvalidRange);
        assert_eq!(way.run(file.set_len(u64::MAX)).unwrap_err().kind(), InvalidRange);
        assert_eq!(way.run(file.allocate(Allocate::Reserve, largest, 1)).unwrap_err().kind(), InvalidRange);
        assert_eq!(way.run(file.sync_range(largest, 1)).unwrap_err().kind(), InvalidRange);
    }
    assert_holds(ctx, &file, &bytes);
}

fn empty_writes_change_nothing(ctx: &Ctx) {
    let bytes = text(LEN, 18);
    let file = ctx.writable(&bytes);
    for way in Way::ALL {
        for offset in [0, 5, LEN as u64, 3 * LEN as u64, i64::MAX as u64] {
            assert_eq!(way.run(file.write_at(Vec::new(), offset)).unwrap(), (0, Vec::new()));
            assert_eq!(way.run(file.write_all_at(String::new(), offset)).unwrap(), "");
            assert_eq!(way.run(file.write_at(Vec::new(), offset).durable()).unwrap().0, 0);
            assert_eq!(way.run(file.write_vectored_at(vec![Vec::new(); 3], offset)).unwrap(), (0, vec![Vec::new(); 3]));
            assert_eq!(write_many(&file, vec![(offset, Vec::new()); 3], way).unwrap().len(), 3);
            assert_eq!(file.write_from(&[], offset).unwrap(), 0);
            file.write_all_from(&[], offset).unwrap();
        }
        assert_eq!(way.run(file.append(Vec::new())).unwrap(), []);
        assert!(write_many(&file, Vec::new(), way).unwrap().is_empty());
    }
    assert_holds(ctx, &file, &bytes);
}

fn allocation_leaves_what_is_written(ctx: &Ctx) {
    use Allocate::{PunchHole, Reserve, ReserveKeepSize, Zero};
    for way in Way::ALL {
        for (how, offset, len) in [
            (Reserve, 0, 5000),
            (Reserve, 8000, 50_000),
            (ReserveKeepSize, 8000, 50_000),
            (PunchHole, 4000, 5000),
            (Zero, 100, 9000),
        ] {
            let mut bytes = text(LEN, 19);
            let file = ctx.writable(&bytes);
            match way.run(file.allocate(how, offset as u64, len as u64)) {
                Ok(()) => match how {
                    Reserve => bytes.resize(LEN.max(offset + len), 0),
                    PunchHole | Zero => bytes[offset..offset + len].fill(0),
                    _ => {}
                },
                Err(error) => {
                    eprintln!("skipped: {how:?}: {error}");
                    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                    assert_eq!((error.offset(), error.length()), (Some(offset as u64), Some(len as u64)));
                }
            }
            assert_holds(ctx, &file, &bytes);
            // The remembered end of the file still serves.
            let data = text(100, 3);
            way.run(file.append(data.clone())).unwrap();
            bytes.extend_from_slice(&data);
            assert_holds(ctx, &file, &bytes);
        }
    }
}

fn many_writes_in_flight_all_arrive(ctx: &Ctx) {
    /// Twice: with each executor.
    const WRITES: usize = 250;
    const STRIDE: usize = 20_000;
    let mut rng = Rng::for_test();
    for own in [false, true] {
        // The second half lies beyond the end.
        let mut bytes = text(WRITES * STRIDE / 2, 20);
        let file = ctx.writable(&bytes);
        ctx.cool(&file);
        let mut places: Vec<usize> = (0..WRITES).collect();
        (1..WRITES).for_each(|i| places.swap(i, rng.below(i + 1)));
        let mut write = |place: usize| {
            let before = rng.below(STRIDE / 2);
            let data = text(1 + rng.below(STRIDE - before), rng.next());
            ((place * STRIDE + before) as u64, data)
        };
        let writes: Many = places.into_iter().map(&mut write).collect();
        let under_way = join_all(writes.iter().map(|(offset, data)| file.write_all_at(data.clone(), *offset)));
        let results = if own { nowait::block_on(under_way) } else { futures::executor::block_on(under_way) };
        for (result, (offset, data)) in results.into_iter().zip(&writes) {
            assert!(result.unwrap() == *data);
            put(&mut bytes, *offset, data);
        }
        assert_holds(ctx, &file, &bytes);
    }
}

fn dropped_writes_leave_old_or_new(ctx: &Ctx) {
    const STRIDE: usize = 20_000;
    let mut rng = Rng::for_test();
    for _ in 0..2 {
        let bytes = text(100 * STRIDE, 21);
        let file = ctx.writable(&bytes);
        ctx.cool(&file);
        let mut writes = Vec::new();
        for place in 0..100 {
            let data = text(1 + rng.below(STRIDE), rng.next());
            let mut write = Box::pin(maybe_done(file.write_all_at(data.clone(), (place * STRIDE) as u64)));
            let _ = poll_once(write.as_mut());
            writes.push((place * STRIDE, data, (rng.below(3) == 0).then_some(write)));
        }
        let kept: Vec<_> = writes.iter_mut().filter_map(|(.., write)| write.take()).collect();
        futures::executor::block_on(join_all(kept));
        ctx.nowait.drain();
        let now = file.read_range(0, bytes.len()).wait().unwrap();
        for (start, data, _) in &writes {
            let place = *start..start + data.len();
            let kept = kept_of_dropped(
                &bytes[place.clone()],
                data,
                &now[place.clone()],
                *start as u64,
                ctx.folder().is_some(),
            );
            assert!(kept.is_some(), "the write at {place:?}");
            // Nothing beyond it.
            assert!(now[place.end..start + STRIDE] == bytes[place.end..start + STRIDE]);
        }
    }
}

fn dropped_appends_are_whole_or_not_there(ctx: &Ctx) {
    for round in 0..20 {
        let mut bytes = text(LEN, 23);
        let file = ctx.writable(&bytes);
        ctx.cool(&file);
        let data = text(1 + round * 997, 24);
        drop(file.append(data.clone()));
        drop(file.write_all_at(data.clone(), 0));
        ctx.nowait.drain();
        assert_holds(ctx, &file, &bytes);

        let mut append = Box::pin(maybe_done(file.append(data.clone())));
        let _ = poll_once(append.as_mut());
        drop(append);
        assert_settled(&ctx.nowait);
        let size = file.size().wait().unwrap() as usize;
        let kept = size - LEN;
        // A simulated disk may have taken a part.
        assert!(kept == 0 || kept == data.len() || ctx.folder().is_none(), "{kept} of {} bytes", data.len());
        bytes.extend_from_slice(&data[..kept]);
        assert_holds(ctx, &file, &bytes);
        // Whoever comes next finds the end.
        file.append(data.clone()).wait().unwrap();
        bytes.extend_from_slice(&data);
        assert_holds(ctx, &file, &bytes);
    }
}

fn dropped_changes_are_made_or_not(ctx: &Ctx) {
    use Allocate::{PunchHole, Reserve, Zero};
    let bytes = text(LEN, 25);
    /// Begins it, drops it, and gives the file when nobody works on it any more.
    fn dropped<'f, T>(ctx: &Ctx, file: &'f File, change: Operation<'f, T>) -> Vec<u8> {
        let mut change = Box::pin(maybe_done(change));
        let _ = poll_once(change.as_mut());
        drop(change);
        assert_settled(&ctx.nowait);
        read(file, 0, 10 * LEN)
    }
    for len in [0, 1, LEN - 1, LEN, 3 * LEN] {
        let file = ctx.writable(&bytes);
        drop(file.set_len(len as u64));
        drop(file.allocate(Zero, 0, LEN as u64));
        ctx.nowait.drain();
        assert_holds(ctx, &file, &bytes);
        let now = dropped(ctx, &file, file.set_len(len as u64));
        let mut cut = bytes.clone();
        cut.resize(len, 0);
        assert!(now == bytes || now == cut, "length {len}: {} bytes", now.len());
        assert_holds(ctx, &file, &now);
        // The remembered end of the file still serves.
        let (mut now, data) = (now, text(100, 26));
        for offset in [len, 2 * LEN + 7] {
            futures::executor::block_on(file.write_all_at(data.clone(), offset as u64)).unwrap();
            put(&mut now, offset as u64, &data);
            assert_holds(ctx, &file, &now);
        }
    }
    for (how, offset, len) in [(Reserve, 0, 3 * LEN), (PunchHole, 4000, 5000), (Zero, 100, 9000)] {
        let file = ctx.writable(&bytes);
        let now = dropped(ctx, &file, file.allocate(how, offset as u64, len as u64));
        let mut made = bytes.clone();
        match how {
            Reserve => made.resize(offset + len, 0),
            _ => made[offset..offset + len].fill(0),
        }
        assert!(now == bytes || now == made, "{how:?}: {} bytes", now.len());
        assert_holds(ctx, &file, &now);
    }
}

fn many_writes_dropped_half_way_are_each_whole_or_not_there(ctx: &Ctx) {
    /// More than is written inline in one turn.
    const RUNS: usize = 200;
    const STRIDE: usize = 20_000;
    const PART: usize = 4096;
    let bytes = text(RUNS * STRIDE, 27);
    let file = ctx.writable(&bytes);
    ctx.cool(&file);
    // Each of three that continue each other, over whole pages: neither is to be seen apart.
    let run = |i: usize| (0..3).map(move |part| ((i * STRIDE / PART + part) * PART, text(PART, (i * 3 + part) as u64)));
    let writes: Many = (0..RUNS).flat_map(run).map(|(offset, data)| (offset as u64, data)).collect();
    let mut many = Box::pin(maybe_done(file.write_many(writes)));
    let _ = poll_once(many.as_mut());
    drop(many);
    assert_settled(&ctx.nowait);
    let mut expected = bytes.clone();
    for i in 0..RUNS {
        let data: Vec<u8> = run(i).flat_map(|(_, data)| data).collect();
        let start = i * STRIDE / PART * PART;
        let place = start..start + data.len();
        let now = file.read_range(start as u64, data.len()).wait().unwrap();
        let whole = ctx.folder().is_some();
        match kept_of_dropped(&bytes[place.clone()], &data, &now, start as u64, whole) {
            Some(kept) if kept == 0 || kept == data.len() || !whole => {
                expected[start..start + kept].copy_from_slice(&data[..kept]);
            }
            kept => panic!("run {i} at {place:?}: {kept:?} of {} bytes", data.len()),
        }
    }
    assert_holds(ctx, &file, &expected);
}

fn large_writes(ctx: &Ctx) {
    let mut bytes = text(5 << 20, 22);
    let file = ctx.writable(&bytes);
    for (i, way) in (0..).zip(Way::ALL) {
        ctx.cool(&file);
        let (offset, data) = (12_345 + i * 1_000_003, text(3 << 20, i));
        way.run(file.write_all_at(data.clone(), offset)).unwrap();
        put(&mut bytes, offset, &data);
        assert_holds(ctx, &file, &bytes);
    }
}
