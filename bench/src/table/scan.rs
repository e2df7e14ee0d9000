//! The table `scan`: blocks in ascending order through the page cache, with the kernel's readahead,
//! by block size, depth and stride.
//!
//! The measured time ends when the last block of a cold file is in the caller's buffer. All ways
//! read the same blocks of the same file, in the same order. The file is opened for each round,
//! without `POSIX_FADV_RANDOM`, since the kernel keeps readahead state per open file. A stride of 4
//! reads every fourth block. Readahead may also read the others, so each row shows how much was
//! read. A way with a file position takes part only in the cases of every block at depth 1.

use super::reads::file_size_of_reads;
use super::*;

pub static SCAN: Table = Table {
    name: "scan",
    about: "A cold file in order, or every fourth block, with the kernel's readahead",
    title: "scan: cold blocks in ascending order, or every fourth, through the page cache with readahead; MiB/s",
    unit: "MiB/s",
    compared: |row| mib(row.bytes_per_s),
    takes: &["depths", "blocks"],
    in_order: true,
    file_size: file_size_of_reads,
    cases: |options| shapes(options).into_iter().map(|shape| shape.case(options)).collect(),
    grids: &[Grid {
        name: "a block",
        is_detail: false,
        columns: &[
            P50,
            P99,
            CPU,
            SWITCHES,
            Column { name: "read/asked", cell: |row| own(row, "pages_read_per_page", 2) },
        ],
    }],
    ..Table::USUAL
};

/// The other stride: every fourth block.
const STRIDE: u64 = 4;

/// The blocks of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ScanShape {
    block: usize,
    depth: usize,
    stride: u64,
}

fn shapes(options: &Options) -> Vec<ScanShape> {
    let blocks = options.or_usual(&options.blocks, &[4 << 10, 128 << 10], &[4 << 10, 16 << 10, 128 << 10]);
    let depths = options.or_usual(&options.depths, &[1, 8], &[1, 8]);
    let mut shapes = Vec::new();
    for stride in [1, STRIDE] {
        // In a quick run, strides are measured only at the first depth.
        for &depth in depths.iter().take(if options.quick && stride > 1 { 1 } else { usize::MAX }) {
            shapes.extend(blocks.iter().map(|&block| ScanShape { block, depth, stride }));
        }
    }
    shapes
}

impl ScanShape {
    fn case(self, options: &Options) -> Case {
        let Self { block, depth, stride } = self;
        let stride = if stride == 1 { String::new() } else { format!("stride={stride} ") };
        let name = format!("{stride}block={} depth={depth}", size_of(block));
        let open = move |ways, _: &mut Run<'_>| Ok(Some(Scan { ways, shape: self, offsets: Vec::new() }));
        Case::new(name, self.suited(ways::scanners(options.roster)), Work::For(options.round_time), open)
    }

    fn suited(self, mut ways: Vec<Part<dyn ReadWay>>) -> Vec<Part<dyn ReadWay>> {
        let in_order = self.stride == 1 && self.depth == 1;
        ways.retain(|way| in_order || !way.keeps_a_place());
        ways
    }

    /// Returns the number of blocks of the file that a scan can read.
    fn places(self, size: u64) -> u64 {
        size.div_ceil(self.block as u64).div_ceil(self.stride)
    }
}

/// One case, ready to be measured.
struct Scan {
    ways: Vec<Part<dyn ReadWay>>,
    shape: ScanShape,
    offsets: Vec<u64>,
}

impl Bench for Scan {
    /// Starts at an offset drawn by seed.
    fn prepare(&mut self, place: &Place<'_>, stage: Stage, operations: usize) -> Result<()> {
        let (size, ScanShape { block, depth, stride }) = (place.file()?.size(), self.shape);
        let mut random = stage.random(place.options.seed);
        let places = self.shape.places(size);
        let blocks = places.min(operations.max(2 * depth) as u64);
        let first = random.below(places - blocks + 1);
        self.offsets = (first..first + blocks).map(|place| place * stride * block as u64).collect();
        // Verification includes the end of the file, where a read may be shorter than a block.
        if stage == Stage::Verify {
            let tail = (size - 1) / block as u64 * block as u64;
            self.offsets.retain(|&offset| offset != tail);
            self.offsets.push(tail);
        }
        Ok(())
    }

    fn turn(&mut self, turn: &Turn<'_>) -> Result<Sample> {
        let file = turn.file()?;
        file.make_cold()?;
        let (path, size) = (file.path(), file.size());
        let opened = File::open(path).map_err(|error| Error::io("open", path, &error))?;
        let target = Target { file: &opened, path, size, direct: false };
        let ScanShape { block, depth, .. } = self.shape;
        let job = Reads { target, block, depth, offsets: &self.offsets, pace: None, cancel: turn.cancel };
        let matches = |offset: u64, bytes: &[u8]| file.matches(offset, bytes);
        let mut buffer = Buffer::new(block * depth);
        let outcome = alone(turn.check(&matches), |round| self.ways[turn.index].reads(&job, buffer.bytes(), round));
        let (mut sample, ()) = turn.complete("reads", job.totals(), outcome)?;
        if !turn.verifies() {
            let asked = sample.bytes.div_ceil(PAGE) as f64;
            sample.tell("pages_read_per_page", Figure::median(file.cached_pages()? as f64 / asked));
        }
        turn.require_sampled(&sample, file)?;
        Ok(sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ways::WAYS;

    #[test]
    fn a_reader_with_a_place_takes_part_where_blocks_follow_each_other_one_at_a_time() {
        let ways = |stride, depth| ScanShape { block: 4096, depth, stride }.suited(ways::scanners(WAYS));
        let has = |stride, depth| ways(stride, depth).iter().any(|way| way.name() == "nowait-stream");
        assert_eq!([has(1, 1), has(1, 8), has(4, 1), has(4, 8)], [true, false, false, false]);
        assert_eq!(ways(1, 1).len(), ways(4, 1).len() + 1);
    }
}
