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
    let _ = header.is_whole(&block, seed);
    // As if the checksum were right, so that what comes after it is reached.
    let Some(room) = block.len().checked_sub(BLOCK_HEADER_BYTES) else { return };
    header.length = header.length.min(room as u32);
    header.seal(&mut block, seed);
    if !header.is_whole(&block, seed) {
        return;
    }
    let mut at = BLOCK_HEADER_BYTES;
    for _ in 0..header.records {
        let (start, length) = record_at(&block, at).expect("a whole block has its records");
        at = start + length;
    }
    assert_eq!(at, BLOCK_HEADER_BYTES + header.length as usize);
});
