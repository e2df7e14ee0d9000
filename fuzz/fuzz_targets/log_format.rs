//! Whatever bytes a log's files have, decoding neither panics nor reads beyond them, and what it
//! takes for whole can be walked.
#![no_main]

#[allow(dead_code)]
#[path = "../../crates/nowait-log/src/format.rs"]
mod format;

use format::{BLOCK_HEADER_BYTES, BlockHeader, Control, HeaderPage, PAGE, SegmentHeader, record_at, seed};
use libfuzzer_sys::fuzz_target;

const ID: format::LogId = *b"0123456789abcdef";

fuzz_target!(|bytes: &[u8]| {
    if let Ok(control) = Control::decode(bytes) {
        assert_eq!(Control::decode(&control.encode()), Ok(control));
    }
    if let HeaderPage::Valid(header) = SegmentHeader::decode(bytes, &ID, 7) {
        let mut page = vec![0; PAGE];
        header.encode(&mut page);
        assert_eq!(SegmentHeader::decode(&page, &ID, 7), HeaderPage::Valid(header));
    }
    if let Some(header) = SegmentHeader::decode_copy(bytes, &ID, 7) {
        let mut page = vec![0; PAGE];
        header.put_copy(&mut page);
        assert_eq!(SegmentHeader::decode_copy(&page, &ID, 7), Some(header));
    }
    let mut block = bytes.to_vec();
    let Some(mut header) = BlockHeader::peek(&block, 4096) else { return };
    let seed = seed(&ID, 7, 3);
    check(&header, &block, seed);
    // As if all checksums were right, so that what comes after them is reached.
    let Some(room) = block.len().checked_sub(BLOCK_HEADER_BYTES) else { return };
    header.length = header.length.min(room as u32);
    header.seal(&block[BLOCK_HEADER_BYTES..][..header.length as usize], seed).put(&mut block);
    if let Some(header) = BlockHeader::decode(&block, 4096, |_| seed) {
        check(&header, &block, seed);
    }
});

/// Parts are in order, inside the block, and of the block; a whole block has all its records.
fn check(header: &BlockHeader, block: &[u8], seed: u32) {
    let is_whole = header.is_whole(block, seed);
    let parts = header.whole_records(block, seed);
    let mut before = (header.first_lsn, BLOCK_HEADER_BYTES);
    for part in &parts {
        assert!(before.0 <= part.lsns.start && part.lsns.start < part.lsns.end && part.lsns.end <= header.lsns().end);
        assert!(before.1 <= part.bytes.start && part.bytes.start < part.bytes.end && part.bytes.end <= block.len());
        before = (part.lsns.end, part.bytes.end);
    }
    if !is_whole {
        return;
    }
    assert!(parts.iter().flat_map(|part| part.lsns.clone()).eq(header.lsns()));
    let mut at = BLOCK_HEADER_BYTES;
    for _ in 0..header.records {
        let (start, length) = record_at(block, at).expect("a whole block has its records");
        at = start + length;
    }
    assert_eq!(at, BLOCK_HEADER_BYTES + header.length as usize);
}
