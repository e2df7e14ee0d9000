//! Prints a range of a file: `cargo run --example read -- FILE [OFFSET [LENGTH]]`.

use std::io::Write;

use nowait::File;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: read FILE [OFFSET [LENGTH]]")?;
    let offset = arguments.next().map_or(Ok(0), |text| text.parse())?;
    let file = File::open(&path).wait()?;
    let rest = usize::try_from(file.size().wait()?.saturating_sub(offset))?;
    let length = arguments.next().map_or(Ok(rest), |text| text.parse())?;

    // Exactly so many bytes, into a page-aligned buffer of the library's.
    let bytes = file.read_range(offset, length).wait()?;
    Ok(std::io::stdout().write_all(&bytes)?)
}
