//! Times one gather of 4 KiB blocks, as a reference for bindings: `timed_gather FILE < OFFSETS`, an
//! offset a line. The file is dropped from the page cache before. Prints the seconds that it took.

use std::io::BufRead;
use std::time::Instant;

use nowait::{Advice, File};

const BLOCK: usize = 4096;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: timed_gather FILE < OFFSETS")?;
    let file = File::open(path).wait()?;
    let lines = std::io::stdin().lock().lines().collect::<Result<Vec<_>, _>>()?;
    let extents = lines
        .iter()
        .map(|line| Ok((line.parse::<u64>()?, BLOCK)))
        .collect::<Result<Vec<_>, std::num::ParseIntError>>()?;
    let mut output = vec![0; extents.len() * BLOCK];
    // The first time the memory is new, and the file unknown.
    for is_timed in [false, true] {
        file.advise(0, 0, Advice::DontNeed).wait()?;
        let began = Instant::now();
        let incomplete = file.gather_into(&extents, &mut output)?;
        if is_timed {
            println!("{}", began.elapsed().as_secs_f64());
        }
        if let Some(error) = incomplete.errors().first() {
            return Err(error.clone().into());
        }
    }
    Ok(())
}
