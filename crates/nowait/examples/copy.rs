//! Copies a file past the page cache, reading ahead and writing behind, and replaces the target as
//! a whole: `cargo run --example copy -- FROM TO`.

use nowait::OpenOptions;
use nowait::stream::{AtomicWriter, Reader};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [from, to] = &arguments[..] else { return Err("usage: copy FROM TO".into()) };
    let source = OpenOptions::new().read(true).direct(true).open(from).wait()?;
    let bytes = nowait::block_on(async {
        let mut reader = Reader::new(&source, 0);
        let mut target = AtomicWriter::create(to).await?;
        let mut bytes = 0;
        // A buffer goes from the one to the other as it was read.
        while let Some(chunk) = reader.chunk().await? {
            bytes += chunk.len();
            target.writer().put(chunk).await?;
        }
        // Durable, and only now under its name.
        target.commit().await?;
        nowait::Result::Ok(bytes)
    })?;
    println!("{bytes} bytes");
    Ok(())
}
