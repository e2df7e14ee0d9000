use super::*;

const ID: LogId = *b"0123456789abcdef";

fn control() -> Control {
    let mut epochs = Epochs::default();
    epochs.begin(2, 20);
    epochs.begin(3, 40);
    Control {
        log_id: ID,
        segment_bytes: 1 << 20,
        sync: 1,
        caller: 2,
        depth: 4,
        direct: true,
        oldest: 3,
        newest: 7,
        measured: Measured { at: 1_700_000_000, device: 66, page_ns: [1, 2, 3, 4] },
        head: 6,
        watermark: 41,
        epochs,
    }
}

fn header() -> SegmentHeader {
    let previous = End { segment: 6, offset: 8192, lsn: 41, lost_from: 0 };
    SegmentHeader {
        log_id: ID,
        number: 7,
        epoch: 3,
        bytes: 1 << 20,
        watermark: 40,
        previous,
        oldest: 2,
        time_ms: 1_700_000_000_000,
        previous_time_ms: 1_699_999_999_999,
    }
}

fn seal(header: &BlockHeader, block: &mut [u8], seed: u32) {
    header.seal(&block[BLOCK_HEADER_BYTES..][..header.length as usize], seed).put(block);
}

fn block(payload: &[&[u8]]) -> (BlockHeader, Vec<u8>) {
    let length: usize = payload.iter().map(|record| FRAME_BYTES + record.len()).sum();
    let mut bytes = vec![0; block_bytes(length)];
    let mut at = BLOCK_HEADER_BYTES;
    for (kind, record) in (0..).zip(payload) {
        put_frame(&mut bytes[at..], kind, record.len());
        bytes[at + FRAME_BYTES..][..record.len()].copy_from_slice(record);
        at += FRAME_BYTES + record.len();
    }
    let header = BlockHeader {
        epoch: 3,
        offset: 4096,
        first_lsn: 42,
        watermark: 41,
        length: length as u32,
        records: payload.len() as u32,
        closed: false,
        time_ms: 1_700_000_000_000,
    };
    seal(&header, &mut bytes, seed(&ID, 7, 3));
    (header, bytes)
}

#[test]
fn control_survives_the_loss_of_either_copy() {
    let bytes = control().encode();
    assert_eq!(Control::decode(&bytes), Ok(control()));
    for copy in 0..2 {
        for at in 0..PAGE {
            let mut bytes = bytes.clone();
            bytes[copy * PAGE + at] ^= 0x40;
            assert_eq!(Control::decode(&bytes), Ok(control()), "copy {copy} byte {at}");
        }
    }
    assert_eq!(Control::decode(&bytes[..PAGE]), Ok(control()));
    assert_eq!(Control::decode(&bytes[..PAGE - 1]), Err(BadControl::Damaged));
}

#[test]
fn a_later_version_is_named() {
    let mut bytes = control().encode();
    for page in bytes.chunks_exact_mut(PAGE) {
        page[12] = 9;
        let crc = crc32c::crc32c(&page[12..]);
        page[8..12].copy_from_slice(&crc.to_le_bytes());
    }
    assert_eq!(Control::decode(&bytes), Err(BadControl::Version(9)));
}

#[test]
fn headers_know_whose_they_are() {
    let mut page = vec![0xee; PAGE];
    header().encode(&mut page);
    assert_eq!(SegmentHeader::decode(&page, &ID, 7), HeaderPage::Valid(header()));
    // The same file under a new name.
    assert_eq!(SegmentHeader::decode(&page, &ID, 8), HeaderPage::Other(header()));
    assert_eq!(SegmentHeader::decode(&page, b"another log's id", 7), HeaderPage::Bad);
    assert_eq!(SegmentHeader::decode(&[0; PAGE], &ID, 7), HeaderPage::Unused);
    assert_eq!(SegmentHeader::decode(&page[..100], &ID, 7), HeaderPage::Bad);
    for at in 0..PAGE {
        page[at] ^= 1;
        assert_eq!(SegmentHeader::decode(&page, &ID, 7), HeaderPage::Bad, "byte {at}");
        page[at] ^= 1;
    }
}

#[test]
fn a_watermark_block_that_begins_a_segment_has_a_copy_of_its_header() {
    let previous = End { lost_from: 39, ..header().previous };
    assert_eq!((previous.last_there(), previous.lost()), (38, 39..42));
    let header = SegmentHeader { previous, ..header() };
    let mut page = vec![0; PAGE];
    let watermark_block = BlockHeader {
        epoch: 3,
        offset: 4096,
        first_lsn: 42,
        watermark: 41,
        length: 0,
        records: 0,
        closed: false,
        time_ms: 0,
    };
    let seed = seed(&ID, 7, 3);
    seal(&watermark_block, &mut page, seed);
    assert_eq!(SegmentHeader::decode_copy(&page, &ID, 7), None);
    header.put_copy(&mut page);
    assert!(decode(&page, seed).is_some_and(|found| found.is_whole(&page, seed)));
    assert_eq!(SegmentHeader::decode_copy(&page, &ID, 7), Some(header));
    assert_eq!(SegmentHeader::decode_copy(&page, &ID, 8), None);
    assert_eq!(SegmentHeader::decode_copy(&page[..PAGE - 1], &ID, 7), None);
    for at in COPY_AT..PAGE {
        page[at] ^= 1;
        assert_eq!(SegmentHeader::decode_copy(&page, &ID, 7), None, "byte {at}");
        page[at] ^= 1;
    }
}

/// Numbers, epochs and watermarks whose increments would overflow are refused.
#[test]
fn numbers_that_would_overflow_are_not_the_logs() {
    let mut page = vec![0; PAGE];
    let (good, previous) = (header(), header().previous);
    for bad in [
        SegmentHeader { number: u64::MAX, ..good },
        SegmentHeader { epoch: u64::MAX, ..good },
        SegmentHeader { watermark: 42, ..good },
        SegmentHeader { oldest: 8, ..good },
        SegmentHeader { bytes: 4096, ..good },
        SegmentHeader { bytes: (1 << 20) + 1, ..good },
        SegmentHeader { previous: End { lsn: u64::MAX - 1, ..previous }, ..good },
        SegmentHeader { previous: End { lost_from: 43, ..previous }, ..good },
    ] {
        bad.encode(&mut page);
        assert_eq!(SegmentHeader::decode(&page, &ID, bad.number), HeaderPage::Bad, "{bad:?}");
        assert_eq!(SegmentHeader::decode_unknown(&page, bad.number), None, "{bad:?}");
    }
    let (good, mut bytes) = block(&[b"a record"]);
    seal(&good, &mut bytes, 0);
    assert_eq!(decode(&bytes, 0), Some(good));
    for bad in [
        BlockHeader { epoch: u64::MAX, ..good },
        BlockHeader { first_lsn: u64::MAX - 1, ..good },
        BlockHeader { watermark: 42, ..good },
    ] {
        seal(&bad, &mut bytes, 0);
        assert_eq!(decode(&bytes, 0), None, "{bad:?}");
    }
}

fn decode(bytes: &[u8], seed: u32) -> Option<BlockHeader> {
    BlockHeader::decode(bytes, 4096, |_| seed)
}

#[test]
fn a_block_is_whole_if_header_frames_and_records_are() {
    let (header, mut bytes) = block(&[b"first", b"", &[7; 5000]]);
    let seed_here = seed(&ID, 7, 3);
    assert_eq!(decode(&bytes, seed_here), Some(header));
    assert_eq!(bytes.len(), 8192);
    assert!(header.is_whole(&bytes, seed_here));
    assert!(!header.is_whole(&bytes[..5000], seed_here));
    for (segment, epoch) in [(8, 3), (7, 4)] {
        assert_eq!(decode(&bytes, seed(&ID, segment, epoch)), None);
        assert!(!header.is_whole(&bytes, seed(&ID, segment, epoch)));
    }
    assert_eq!(BlockHeader::decode(&bytes, 8192, |_| seed_here), None);
    for at in 0..BLOCK_HEADER_BYTES + header.length as usize {
        bytes[at] ^= 0x80;
        let found = decode(&bytes, seed_here);
        assert_eq!(found.is_some(), at >= BLOCK_HEADER_BYTES, "byte {at}");
        assert!(!found.is_some_and(|found| found.is_whole(&bytes, seed_here)), "byte {at}");
        bytes[at] ^= 0x80;
    }
    assert!(header.is_whole(&bytes, seed_here));
}

/// A flipped bit in a record's bytes loses that record; one in a frame loses later records, too.
#[test]
fn a_bit_costs_its_record_or_those_behind_its_frame() {
    let records: [&[u8]; 4] = [b"first", b"", &[7; 500], b"last"];
    let (header, mut bytes) = block(&records);
    let seed = seed(&ID, 7, 3);
    let mut at = BLOCK_HEADER_BYTES;
    for (index, record) in (0u64..).zip(records) {
        for bit in 0..8 * (FRAME_BYTES + record.len()) {
            bytes[at + bit / 8] ^= 1 << (bit % 8);
            let parts = header.whole_records(&bytes, seed);
            let whole = parts.iter().flat_map(|part| part.lsns.clone());
            let is_frame = bit < 8 * FRAME_BYTES;
            let left = (42..46).filter(|lsn| *lsn < 42 + index || (*lsn > 42 + index && !is_frame));
            assert!(whole.eq(left), "record {index}, bit {bit}: {parts:?}");
            if let Some(first) = parts.first().filter(|_| index > 0) {
                assert_eq!(first.bytes, BLOCK_HEADER_BYTES..at);
            }
            bytes[at + bit / 8] ^= 1 << (bit % 8);
        }
        at += FRAME_BYTES + record.len();
    }
}

/// Records with valid checksums that were not written at this place are not accepted.
#[test]
fn records_of_another_place_are_not_whole() {
    let seed = seed(&ID, 7, 3);
    let (header, mut bytes) = block(&[b"aaaa", b"bbbb", b"cccc"]);
    let length = FRAME_BYTES + 4;
    // Two records exchanged: each has the LSN of the other.
    let mut exchanged = bytes.clone();
    exchanged[BLOCK_HEADER_BYTES..][..2 * length].rotate_left(length);
    assert!(header.whole_records(&exchanged, seed).is_empty());
    // Sealed again in the new order: the header differs.
    let anew = header.seal(&exchanged[BLOCK_HEADER_BYTES..][..3 * length], seed);
    Seal { header: exchanged[..BLOCK_HEADER_BYTES].try_into().unwrap(), ..anew }.put(&mut exchanged);
    assert!(!header.is_whole(&exchanged, seed) && header.whole_records(&exchanged, seed).is_empty());
    let fewer = BlockHeader { records: 2, ..header };
    assert!(!fewer.is_whole(&bytes, seed) && fewer.whole_records(&bytes, seed).is_empty());
    bytes.truncate(BLOCK_HEADER_BYTES + length);
    assert!(header.whole_records(&bytes, seed).is_empty());
}

#[test]
fn whatever_the_bytes_nothing_panics() {
    let (_, good) = block(&[b"a record", b"and another"]);
    let mut random = 1u64;
    let mut next = || {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) as usize
    };
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..1 + next() % 8 {
            let at = next() % 96;
            bytes[at] = next() as u8;
        }
        bytes.truncate(next() % (bytes.len() + 1));
        bytes.splice(..4.min(bytes.len()), BLOCK_MAGIC.iter().copied());
        if let Some(header) = BlockHeader::peek(&bytes, 4096) {
            let _ = header.padded_bytes();
            // The header is used without verifying its checksum.
            let _ = (header.is_whole(&bytes, 0), header.whole_records(&bytes, 0));
        }
        let _ = SegmentHeader::decode(&bytes, &ID, next() as u64);
        let _ = Control::decode(&bytes);
    }
}

/// A cut bounds all older epochs. If the list is full, the newest entries are kept.
#[test]
fn epochs_count_up_to_the_first_newer_one_that_began() {
    let mut epochs = Epochs::default();
    assert_eq!((epochs.newest(), epochs.last_of(0)), (0, u64::MAX));
    for (epoch, last_lsn) in [(1, 0), (2, 10), (3, 20), (4, 5), (5, 30)] {
        epochs.begin(epoch, last_lsn);
        assert!(epochs.are_in_order());
    }
    assert_eq!([0, 1, 2, 3, 4, 5].map(|epoch| epochs.last_of(epoch)), [0, 5, 5, 5, 30, u64::MAX]);
    epochs.forget_before(4);
    assert_eq!([3, 4, 5].map(|epoch| epochs.last_of(epoch)), [30, 30, u64::MAX]);
    epochs.forget_before(9);
    assert_eq!(epochs.newest(), 5);
    for more in 1..=2 * EPOCHS_MAX as u64 {
        epochs.begin(5 + more, 30 + more);
    }
    let control = Control { epochs, ..control() };
    assert_eq!(Control::decode(&control.encode()), Ok(control.clone()));
    let newest = control.epochs.newest();
    assert_eq!(control.epochs.last_of(newest - 1), 30 + 2 * EPOCHS_MAX as u64);
    assert_eq!(control.epochs.last_of(0), 31 + EPOCHS_MAX as u64);
}
