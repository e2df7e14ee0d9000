//! Maps of files in a folder: what they contain, and which pages are in memory.

use std::ops::Range;
use std::path::Path;

use crate::common::cold::{cached_pages, drop_pages};
use crate::common::rng::Rng;
use crate::common::{contents, open};
use nowait::map::{Map, Mechanism, Paging};
use nowait::{File, Nowait};

pub(crate) const PAGE: usize = 4096;
pub(crate) const LENGTH: usize = (9 << 20) + 1234;

pub(crate) fn map(file: &File, range: impl std::ops::RangeBounds<u64>) -> nowait::Result<Map> {
    // SAFETY: the tests' files are theirs, and no slice is looked at while they change.
    unsafe { Map::new(file, range) }
}

pub(crate) fn sample(dir: &Path, length: usize) -> (std::path::PathBuf, Vec<u8>) {
    let path = dir.join("sample");
    let bytes = contents(length, 7);
    std::fs::write(&path, &bytes).unwrap();
    drop_pages(&path);
    (path, bytes)
}

pub(crate) fn works_in(nowait: &Nowait, dir: &Path) {
    let (path, bytes) = sample(dir, LENGTH);
    let file = open(nowait, &path);
    let mut random = Rng::new(3);
    for mechanism in [Mechanism::Auto, Mechanism::Read] {
        for round in 0..8 {
            drop_pages(&path);
            let start = if round == 0 { 0 } else { random.below(LENGTH) };
            let end = if round == 0 { LENGTH } else { start + random.below(LENGTH - start + 1) };
            let map = map(&file, start as u64..end as u64).unwrap();
            assert_eq!((map.len(), map.offset()), (end - start, start as u64));
            let inner = random.below(map.len() + 1);
            let populated = map.populate(inner..).mechanism(mechanism).chunk_bytes(1 << 20).wait().unwrap();
            assert_eq!((populated.bytes, populated.stopped), ((map.len() - inner) as u64, None));
            if map.len() > inner {
                let pages = end.div_ceil(PAGE) - (start + inner) / PAGE;
                assert!(cached_pages(&path) >= pages, "{mechanism:?}: {} of {pages}", cached_pages(&path));
            }
            assert!(*map == bytes[start..end], "{mechanism:?} {start}..{end}");
            let mut buffer = vec![0; 5000];
            let at = random.below(map.len() + 2);
            let n = map.read_at(&mut buffer, at).unwrap();
            let expected = crate::common::expected(&bytes[start..end], at as u64, 5000);
            assert_eq!(&buffer[..n], expected);
            map.advise(.., Paging::Random).unwrap();
        }
    }
    drop_pages(&path);
    let map = map(&file, ..).unwrap();
    let rows: Vec<Range<usize>> = (0..100)
        .map(|_| (random.below(LENGTH), random.below(3 * PAGE)))
        .map(|(start, length)| start..(start + length).min(LENGTH))
        .collect();
    map.gather(rows.clone()).wait().unwrap();
    nowait::block_on(map.gather(rows.clone())).unwrap();
    futures::executor::block_on(map.gather(rows.clone())).unwrap();
    rows.iter().for_each(|row| assert!(map[row.clone()] == bytes[row.clone()]));
}
