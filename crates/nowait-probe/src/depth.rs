//! The same requests at other depths and sizes. A file that serves single requests well may serve
//! batches or long requests worse.
//!
//! Sizes are probed by single requests and at one depth; depths are probed at one size. If the
//! verdict changes between two depths, depths between them are probed, too.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::IFlags;

use super::kernel::PAGE;
use super::verdict::{TOGETHER, Verdict};
use super::{Case, Eye, Tested, twin};
use crate::report::{Outcome, Row, Step};

/// Numbers of requests per submission, besides one.
const DEPTHS: [u32; 3] = [TOGETHER, 256, DEPTH_MAX];
/// Maximum number of requests of one submission.
pub(super) const DEPTH_MAX: u32 = 1024;
/// Sizes of requests, besides a page.
const SIZES: [u32; 2] = [128 << 10, 1 << 20];
/// Number of submissions, by the maximum of their total bytes: fewer if they are long.
const SUBMISSIONS: [(u32, u32); 3] = [(1 << 20, 3), (8 << 20, 2), (u32::MAX, 1)];
const SUBMISSIONS_ALONE: u32 = 6;
/// Maximum number of depths between those above, for one kind of request.
const BETWEEN_MAX: usize = 6;
/// Minimum of free disk space and memory for these steps, which need 33 MiB at a time.
const ROOM_BYTES: u64 = 256 << 20;

/// Makes the file of a step, and the offsets of its requests. Arguments: case, bytes of a request,
/// number of submissions, and requests per submission.
type Make<'a> = dyn Fn(Case, u32, u32, u32) -> io::Result<Option<Tested>> + 'a;

/// Adds steps on scratch files to the observed rows; returns the reason if some or all are missing.
pub(super) fn of_scratch(dir: &Path, attributes: IFlags, eye: &mut Eye, rows: &mut [Row]) -> Option<String> {
    if let Some(why) = no_room(dir) {
        return Some(why);
    }
    let (bytes, depth) = (SIZES[SIZES.len() - 1], TOGETHER);
    let length = u64::from(depth) * u64::from(bytes + PAGE as u32);
    let data = match twin::make_data(dir, attributes, length) {
        Ok(data) => data,
        Err(error) => return Some(format!("no file for them can be made: {error}")),
    };
    steps(eye, rows, &|case, bytes, submissions, depth| {
        let count = submissions * depth;
        match case.grows() {
            true => twin::make_growing(dir, attributes, case, bytes, count).map(Some),
            false => {
                twin::cool(&data, case, length)?;
                twin::within(&data, case, bytes, count).map(Some)
            }
        }
    })
}

/// Adds steps on the file itself, by direct reads only: others would fill the page cache.
pub(super) fn of_file(file: &File, size: u64, eye: &mut Eye, rows: &mut [Row]) -> Option<String> {
    let row = rows.iter_mut().find(|row| row.case == Case::DirectRead)?;
    steps(eye, std::slice::from_mut(row), &|case, bytes, submissions, depth| {
        let one = u64::from(depth) * u64::from(bytes + PAGE as u32);
        // A short file allows fewer submissions.
        let submissions = u64::from(submissions).min(size / one) as u32;
        (submissions > 0).then(|| twin::within(file, case, bytes, submissions * depth)).transpose()
    })
}

/// Makes all steps of all rows. Single requests come first: batches leave many idle workers, which
/// end one by one.
fn steps(eye: &mut Eye, rows: &mut [Row], make: &Make<'_>) -> Option<String> {
    let depth_max = eye.depth_max();
    let is_seen = |row: &&mut Row| matches!(row.ring, Outcome::Seen(_)) && row.case.has_depths();
    for row in rows.iter_mut().filter(|row| is_seen(row) && row.case.has_sizes()) {
        for bytes in SIZES {
            row.steps.extend(step(eye, row.case, 1, bytes, make));
        }
    }
    for row in rows.iter_mut().filter(is_seen) {
        let Some(bytes) = row.case.bytes() else { continue };
        for depth in DEPTHS.into_iter().filter(|depth| *depth <= depth_max) {
            row.steps.extend(step(eye, row.case, depth, bytes, make));
        }
        for _ in 0..BETWEEN_MAX {
            let verdicts = row.verdicts();
            let by_depth =
                verdicts.iter().filter(|(_, of, _)| *of == bytes).map(|(depth, _, verdict)| (*depth, *verdict));
            let Some(depth) = between(by_depth.collect()) else { break };
            let Some(step) = step(eye, row.case, depth, bytes, make) else { break };
            let is_seen = matches!(step.ring, Outcome::Seen(_));
            row.steps.push(step);
            if !is_seen {
                break;
            }
        }
        for bytes in SIZES.into_iter().filter(|_| row.case.has_sizes() && TOGETHER <= depth_max) {
            row.steps.extend(step(eye, row.case, TOGETHER, bytes, make));
        }
        row.steps.sort_by_key(|step| (step.bytes, step.depth));
    }
    (depth_max < DEPTH_MAX && depth_max > 0).then(|| {
        format!("a ring takes {depth_max} entries at most: raise the limit on locked memory (ulimit -l, LimitMEMLOCK=)")
    })
}

/// Makes one step. `None` if the file is too short.
fn step(eye: &mut Eye, case: Case, depth: u32, bytes: u32, make: &Make<'_>) -> Option<Step> {
    let together = depth.saturating_mul(bytes);
    let submissions = match depth {
        1 => SUBMISSIONS_ALONE,
        _ => SUBMISSIONS.into_iter().find(|(most, _)| together <= *most).map_or(1, |(_, submissions)| submissions),
    };
    let ring = match make(case, bytes, submissions, depth) {
        Ok(tested) => eye.look(case, &tested?, depth),
        Err(error) => Outcome::CannotTell(format!("its file cannot be prepared: {error}")),
    };
    Some(Step { depth, bytes, ring })
}

/// Returns the next depth to probe: a multiple by a power of two between two depths with different
/// verdicts. `None` if there is none.
fn between(mut by_depth: Vec<(u32, Verdict)>) -> Option<u32> {
    by_depth.sort_by_key(|(depth, _)| *depth);
    by_depth.windows(2).find_map(|pair| {
        let [(low, before), (high, after)] = [pair[0], pair[1]];
        let doublings = (high / low).ilog2();
        (doublings > 1 && !before.is_like(after)).then(|| low << (doublings / 2))
    })
}

/// Returns the reason why scratch files of this size should not be created here.
fn no_room(dir: &Path) -> Option<String> {
    let mib = |bytes: u64| bytes >> 20;
    let free = rustix::fs::statvfs(dir).map_or(u64::MAX, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
    // A file system without blocks (FUSE) reports none.
    if (1..ROOM_BYTES).contains(&free) {
        return Some(format!("{} MiB are free there, {} MiB are asked for", mib(free), mib(ROOM_BYTES)));
    }
    let memory = nowait::embed::available_bytes()?;
    (memory < ROOM_BYTES)
        .then(|| format!("{} MiB of memory are available, {} MiB are asked for", mib(memory), mib(ROOM_BYTES)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Way;

    #[test]
    fn the_depth_where_the_verdict_changes_is_searched_for() {
        let at = |depth: u32, sleeps: bool| (depth, Verdict { way: Way::Async, sleeps });
        // Submissions sleep from depth `first` on.
        let search = |first: u32| {
            let mut known: Vec<_> = [1, 32, 256, 1024].map(|depth| at(depth, depth >= first)).to_vec();
            for _ in 0..BETWEEN_MAX {
                let Some(depth) = between(known.clone()) else { break };
                assert!(depth.is_power_of_two() && known.iter().all(|(other, _)| *other != depth), "{depth}");
                known.push(at(depth, depth >= first));
            }
            known.sort_by_key(|(depth, _)| *depth);
            known.into_iter().find(|(_, verdict)| verdict.sleeps).map(|(depth, _)| depth)
        };
        for first in [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024] {
            assert_eq!(search(first), Some(first));
        }
        assert_eq!((search(2000), search(200), search(1)), (None, Some(256), Some(1)));
    }
}
