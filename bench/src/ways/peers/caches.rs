//! General caches with default settings: quick_cache, moka and foyer's cache in memory. A page is a
//! value behind an `Arc`, so that a read copies none of its bytes.
//!
//! The caches of hits have twice the capacity of the set, since a capacity is shared out to parts
//! of a cache, which fill unevenly. The caches of a trace have the capacity of the trace, a page
//! being an entry.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::measure::cache::{HitRate, Hits, PageSet, Trace, not_cached, word_of};
use crate::measure::meter::{Round, Tally};
use crate::sys::PAGE;
use crate::ways::{CacheWay, CachedPages, Does, PolicyWay, Way};

type Page = Arc<[u8; PAGE as usize]>;

/// Reads the pages of a set, and passes each with its number.
fn for_each_page(set: &PageSet<'_>, mut insert: impl FnMut(u64, Page)) -> io::Result<()> {
    set.steps(1).try_for_each(|(page, _)| {
        let mut bytes = [0; PAGE as usize];
        set.target.file.read_exact_at(&mut bytes, page * PAGE)?;
        insert(page, Arc::new(bytes));
        Ok(())
    })
}

/// Declares a way over a cache with `get` and `insert`.
macro_rules! cache {
    ($name:literal $version:literal $way:ident $kind:ident $cache:ty, $new:expr, $entry:ident => $page:expr, $trace:ty) => {
        pub(crate) static $way: Way = Way::new(
            $name,
            concat!($name, " ", env!($version), ": get of a page behind an Arc"),
            &[Does::Hits(&$kind), Does::Copies(&$kind), Does::Policies(&$kind)],
        );

        pub(crate) struct $kind;

        impl CacheWay for $kind {
            fn open(&self, set: &PageSet<'_>) -> io::Result<Box<dyn CachedPages>> {
                let cache: $cache = $new(2 * set.pages as usize);
                for_each_page(set, |number, page| _ = cache.insert(number, page))?;
                Ok(Box::new(cache))
            }
        }

        impl CachedPages for $cache {
            fn words(&self, job: &Hits<'_>, tally: &mut Tally<'_>) -> io::Result<()> {
                job.words(tally, |offset| {
                    let $entry = self.get(&(offset / PAGE)).ok_or_else(not_cached)?;
                    word_of(&$page[..], offset).ok_or_else(not_cached)
                })
            }

            fn copies(&self, job: &Hits<'_>, buffer: &mut [u8], tally: &mut Tally<'_>) -> io::Result<()> {
                job.copies(buffer, tally, |offset, block| {
                    let $entry = self.get(&(offset / PAGE)).ok_or_else(not_cached)?;
                    let start = (offset % PAGE) as usize;
                    block.copy_from_slice($page.get(start..start + block.len()).ok_or_else(not_cached)?);
                    Ok(())
                })
            }
        }

        impl PolicyWay for $kind {
            fn replay(&self, trace: &Trace<'_>, round: &mut Round<'_>) -> io::Result<HitRate> {
                let cache: $trace = $new(trace.capacity);
                trace.replay(round, |page, _| {
                    if cache.get(&page).is_some() {
                        return Ok(true);
                    }
                    cache.insert(page, ());
                    Ok(false)
                })
            }
        }
    };
}

cache! {
    "quick_cache" "VERSION_QUICK_CACHE" QUICK_CACHE QuickCache quick_cache::sync::Cache<u64, Page>,
    quick_cache::sync::Cache::new, page => page, quick_cache::sync::Cache<u64, ()>
}

cache! {
    "moka" "VERSION_MOKA" MOKA Moka moka::sync::Cache<u64, Page>,
    |capacity| moka::sync::Cache::new(capacity as u64), page => page, moka::sync::Cache<u64, ()>
}

cache! {
    "foyer" "VERSION_FOYER_MEMORY" FOYER Foyer foyer_memory::Cache<u64, Page>,
    |capacity| foyer_memory::CacheBuilder::new(capacity).build(), entry => entry.value(), foyer_memory::Cache<u64, ()>
}
