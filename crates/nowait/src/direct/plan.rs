//! Which whole blocks a read takes, and in whose memory.

use super::device::Alignment;

/// How a read of `length` bytes at `offset` is made of whole blocks: bytes to a first edge, to the
/// caller's memory, and to a last edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Where the first block begins.
    pub(crate) start: u64,
    pub(crate) first: usize,
    pub(crate) middle: usize,
    pub(crate) last: usize,
}

impl Plan {
    /// `address` is that of the caller's memory, if it is one piece. None when the place is beyond
    /// what a file can have.
    pub(crate) fn new(alignment: Alignment, offset: u64, length: usize, address: Option<usize>) -> Option<Plan> {
        let end = offset.checked_add(length as u64)?;
        // Less than a block before the largest place it may be asked for, but not read: the kernel
        // refuses a block that ends beyond. (xfs alone has such files.)
        let limit = alignment.down(i64::MAX as u64);
        if end > limit {
            let start = alignment.down(offset).min(limit - u64::from(alignment.offset));
            return Some(Plan { start, first: usize::try_from(limit - start).ok()?, middle: 0, last: 0 });
        }
        let start = alignment.down(offset);
        let stop = alignment.up(end);
        let (from, to) = (alignment.up(offset), alignment.down(end));
        let whole = usize::try_from(stop - start).ok()?;
        let in_place = address.is_some_and(|address| {
            from < to && (address.wrapping_add((from - offset) as usize)) % alignment.memory as usize == 0
        });
        Some(if in_place {
            let (first, middle, last) = ((from - start) as usize, (to - from) as usize, (stop - to) as usize);
            Plan { start, first, middle, last }
        } else {
            Plan { start, first: whole, middle: 0, last: 0 }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECTOR: Alignment = Alignment { memory: 4, offset: 512 };

    #[test]
    fn a_plan_covers_what_was_asked_for_with_whole_blocks() {
        for offset in [0, 1, 511, 512, 513, 1024] {
            for length in [1, 2, 510, 511, 512, 513, 1023, 1024, 1025, 5000] {
                for address in [None, Some(4096), Some(4097), Some(4100)] {
                    let plan = Plan::new(SECTOR, offset, length, address).expect("it is small");
                    let total = plan.first + plan.middle + plan.last;
                    assert!(plan.start <= offset && plan.start + 512 > offset, "{plan:?}");
                    let stop = plan.start + total as u64;
                    assert!(stop >= offset + length as u64 && stop < offset + length as u64 + 512, "{plan:?}");
                    for part in [plan.start as usize, plan.first, plan.middle, plan.last] {
                        assert_eq!(part % 512, 0, "{plan:?}");
                    }
                    let moved = (plan.start as usize + plan.first).wrapping_sub(offset as usize);
                    let straight = address.is_some_and(|address| address.wrapping_add(moved) % 4 == 0);
                    assert!(plan.middle == 0 || straight, "{plan:?}");
                }
            }
        }
        let aligned = Plan::new(SECTOR, 1024, 2048, Some(64)).expect("it is small");
        assert_eq!(aligned, Plan { start: 1024, first: 0, middle: 2048, last: 0 });
        // Where no file can have bytes, blocks that can be asked for.
        let last = (i64::MAX as u64 + 1) - 1024;
        let beyond = Plan::new(SECTOR, i64::MAX as u64 - 4, 4, None);
        assert_eq!(beyond, Some(Plan { start: last, first: 512, middle: 0, last: 0 }));
        assert_eq!(Plan::new(SECTOR, u64::MAX - 2, 4, None), None);
    }
}
