//! Keeps lines durably, and prints those that are there:
//! `some-program | cargo run -p nowait-log --example log -- DIR`.

use std::io::BufRead;

use nowait_log::{Log, Options};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args().nth(1).ok_or("usage: log DIR")?;
    let (log, recovery) = Log::open(&dir, &Options::new().create(true)).wait()?;
    eprintln!("last record: {}", recovery.last_lsn);
    let mut reader = log.reader(recovery.first_lsn.max(1));
    while let Some(record) = reader.next().wait()? {
        println!("{:>8} {}", record.lsn, String::from_utf8_lossy(record.bytes));
    }
    let mut last = None;
    for line in std::io::stdin().lock().lines() {
        // Appended, and not yet durable: records that come close together share a write.
        last = Some(log.append(line?.as_bytes()).wait()?);
    }
    if let Some(last) = last {
        // Durable, with all before it.
        eprintln!("record {} is durable", last.wait()?);
    }
    log.close().wait()?;
    Ok(())
}
