//! One call that has the kernel make all pages of a map present. The thread waits in it, and
//! nothing is announced before its end.

use std::fs::File;
use std::io;

use super::watch::{Populated, Watch};
use crate::measure::meter::Round;
use crate::measure::work::Populate;
use crate::sys::{MapAdvice, Mapping, PAGE};
use crate::ways::{PopulateWay, Way};

/// MAP_POPULATE, within `mmap`.
pub(crate) struct MapPopulate;

/// MADV_POPULATE_READ.
pub(crate) struct Madvise;

impl Way for MapPopulate {
    fn name(&self) -> &'static str {
        "map-populate"
    }
}

impl PopulateWay for MapPopulate {
    fn populate(&self, job: &Populate<'_>, round: &mut Round<'_>) -> io::Result<Populated> {
        in_one_call(job, round, || Mapping::populated(job.file, job.size))
    }
}

impl Way for Madvise {
    fn name(&self) -> &'static str {
        "madvise"
    }

    fn refused(&self) -> Option<String> {
        let tried = File::open("/proc/self/exe")
            .and_then(|file| Mapping::new(&file, PAGE)?.advise(0..PAGE, MapAdvice::PopulateRead));
        tried.err().map(|error| format!("madvise(MADV_POPULATE_READ): {error}"))
    }
}

impl PopulateWay for Madvise {
    fn populate(&self, job: &Populate<'_>, round: &mut Round<'_>) -> io::Result<Populated> {
        in_one_call(job, round, || {
            let map = Mapping::new(job.file, job.size)?;
            map.advise(0..job.size, MapAdvice::PopulateRead)?;
            Ok(map)
        })
    }
}

fn in_one_call(
    job: &Populate<'_>,
    round: &mut Round<'_>,
    call: impl FnOnce() -> io::Result<Mapping>,
) -> io::Result<Populated> {
    let mut watch = Watch::start(job, round);
    let map = call()?;
    watch.beat();
    watch.announced(&map, 0..job.size);
    Ok(watch.stop(map))
}
