//! Reads records that lie all over a file, in one call:
//! `cargo run --example gather -- FILE RECORDS BYTES`.

use std::time::Instant;

use nowait::File;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, records, bytes] = &arguments[..] else { return Err("usage: gather FILE RECORDS BYTES".into()) };
    let (records, bytes): (u64, usize) = (records.parse()?, bytes.parse()?);
    let file = File::open(path).wait()?;
    let size = file.size().wait()?;
    let last = size.checked_sub(bytes as u64).ok_or("the file is shorter than a record")?;

    // A permutation of places, spread over the file.
    let ranges: Vec<(u64, usize)> =
        (0..records).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (last + 1), bytes)).collect();
    let begun = Instant::now();
    let gathered = file.gather(&ranges).gap_bytes(4096).wait()?;
    let elapsed = begun.elapsed();
    for error in gathered.errors() {
        eprintln!("{error}");
    }
    let sum: u64 = gathered.iter().flatten().flatten().map(|byte| u64::from(*byte)).sum();
    println!("{records} records in {elapsed:?}; their bytes add up to {sum}");
    println!("{:?}", file_ways());
    Ok(())
}

/// Which ways the operations took.
fn file_ways() -> nowait::Stats {
    nowait::Nowait::shared().stats()
}
