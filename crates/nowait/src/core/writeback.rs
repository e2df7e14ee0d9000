//! How far the kernel is from throttling writers.
//!
//! A buffered write only dirties pages, until there are too many: then the kernel has the writer
//! sleep in the call (`balance_dirty_pages` in mm/page-writeback.c, 5.10 to 6.18), for up to 200
//! ms. It does so beyond the middle between the two thresholds, the background one and the hard
//! one; in a memory cgroup also beyond the middle of the cgroup's own. Both are looked at here, now
//! and then: a sample allows a part of the distance to be written before the next.
//!
//! One sampler for the process, since the limits are not an instance's.

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::core::available::{current, field, groups, limit};
use crate::sys::{PerProcess, tick_ns};

/// A sample allows this part of the distance to be written,
const SHARE: u64 = 8;
/// but no more than this: others write, too. (A sample takes as long as 200 KiB do.)
const ALLOWANCE_MAX: u64 = 32 << 20;
/// Nearer than this there is no allowance. The counters of `/proc/vmstat` lag behind, by up to half
/// a megabyte per processor.
const MARGIN: u64 = 4 << 20;
/// A sample says nothing for longer than this,
const OLD: Duration = Duration::from_millis(200);
/// and is not taken more often than this once writers would sleep.
const AGAIN: Duration = Duration::from_millis(5);

/// A write that slept all the same is paid for with so many times the time it slept, in which no
/// other is made on a caller's thread: so no thread sleeps for more than a tenth of its time.
const PENANCE: u64 = 10;
const PENANCE_NS_MAX: u64 = 500_000_000;
/// Nearer than this to the limit, a write that took long slept; farther from it, it was
/// interrupted, or waited for a lock.
const NEAR: u64 = 4 * MARGIN;
/// The kernel has a writer sleep for up to 200 ms (`MAX_PAUSE`, mm/page-writeback.c). After so long
/// without any reason to, none does.
const CALM_NS: u64 = 300_000_000;

const PAGE: u64 = 4096;

/// Whether `bytes` can be dirtied now, as far as is known, without being throttled. Takes them off
/// the allowance.
pub(crate) fn allows(bytes: usize) -> bool {
    SAMPLER.get(Sampler::new).allows(bytes, tick_ns())
}

/// Whether no writer is throttled now, as far as is known.
pub(crate) fn is_calm() -> bool {
    SAMPLER.get(Sampler::new).is_calm(tick_ns())
}

/// Records that an allowed write took `elapsed_ns`, which is too long.
pub(crate) fn slept(elapsed_ns: u64) {
    SAMPLER.get(Sampler::new).slept(elapsed_ns, tick_ns());
}

static SAMPLER: PerProcess<Sampler> = PerProcess::new();

struct Sampler {
    /// Bytes that may be written before the next sample.
    allowance: AtomicI64,
    /// When the sample was taken; zero: never.
    sampled_at_ns: AtomicU64,
    /// Nothing is allowed before.
    not_before_ns: AtomicU64,
    /// When it was last near the limit; zero: never.
    near_at_ns: AtomicU64,
    source: Mutex<Source>,
}

impl Sampler {
    fn new() -> Sampler {
        Sampler {
            allowance: AtomicI64::new(0),
            sampled_at_ns: AtomicU64::new(0),
            not_before_ns: AtomicU64::new(0),
            near_at_ns: AtomicU64::new(0),
            source: Mutex::new(Source::find()),
        }
    }

    fn allows(&self, bytes: usize, now_ns: u64) -> bool {
        if now_ns < self.not_before_ns.load(Relaxed) {
            return false;
        }
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let sampled_at = self.sampled_at_ns.load(Relaxed);
        let age = Duration::from_nanos(now_ns.saturating_sub(sampled_at));
        let fresh = sampled_at != 0 && age < OLD;
        if fresh && self.allowance.fetch_sub(bytes, Relaxed) >= bytes {
            return true;
        }
        if fresh && self.allowance.load(Relaxed) < 0 && age < AGAIN {
            return false;
        }
        // One thread samples; the others take the cautious answer.
        let Ok(mut source) = self.source.try_lock() else { return false };
        let distance = source.distance();
        self.note(distance, now_ns);
        let allowance = match distance {
            Some(distance) if distance >= MARGIN => (distance / SHARE).clamp(1, ALLOWANCE_MAX),
            _ => 0,
        };
        let allowance = i64::try_from(allowance).unwrap_or(i64::MAX);
        self.allowance.store(allowance - bytes, Relaxed);
        self.sampled_at_ns.store(now_ns, Relaxed);
        allowance >= bytes
    }

    fn slept(&self, elapsed_ns: u64, now_ns: u64) {
        let Ok(mut source) = self.source.try_lock() else { return };
        if !self.note(source.distance(), now_ns) {
            return;
        }
        self.repent(elapsed_ns, now_ns);
    }

    /// Whether that is near the limit; remembers it if so.
    fn note(&self, distance: Option<u64>, now_ns: u64) -> bool {
        let near = distance.is_none_or(|distance| distance < NEAR);
        if near {
            self.near_at_ns.store(now_ns, Relaxed);
        }
        near
    }

    fn is_calm(&self, now_ns: u64) -> bool {
        let near_at = self.near_at_ns.load(Relaxed);
        near_at == 0 || now_ns.saturating_sub(near_at) > CALM_NS
    }

    fn repent(&self, elapsed_ns: u64, now_ns: u64) {
        let penance = elapsed_ns.saturating_mul(PENANCE).min(PENANCE_NS_MAX);
        self.not_before_ns.fetch_max(now_ns + penance, Relaxed);
    }
}

/// Where the numbers are.
struct Source {
    vmstat: Option<fs::File>,
    /// Memory cgroups with a limit (of version 1 none: it has no write-back of its own per cgroup,
    /// so that only the system's thresholds count). Found once: processes seldom move.
    groups: Vec<PathBuf>,
    text: String,
}

impl Source {
    fn find() -> Source {
        Source { vmstat: fs::File::open("/proc/vmstat").ok(), groups: groups(), text: String::new() }
    }

    /// Bytes until writers are throttled; zero when they are. None if unknown.
    fn distance(&mut self) -> Option<u64> {
        let system = self.system()?;
        let groups = self.groups.iter().filter_map(|group| group_distance(group)).min();
        Some(groups.map_or(system, |groups| groups.min(system)))
    }

    fn system(&mut self) -> Option<u64> {
        use std::io::{Read, Seek, SeekFrom};
        let file = self.vmstat.as_mut()?;
        self.text.clear();
        file.seek(SeekFrom::Start(0)).ok()?;
        file.read_to_string(&mut self.text).ok()?;
        let pages = |name| field(&self.text, name);
        let dirty = pages("nr_dirty")? + pages("nr_writeback")?;
        let middle = (pages("nr_dirty_threshold")? + pages("nr_dirty_background_threshold")?) / 2;
        Some(middle.saturating_sub(dirty) * PAGE)
    }
}

/// As `domain_dirty_limits` works it out for a cgroup: thresholds are shares of what it has in
/// files and may still take.
fn group_distance(group: &std::path::Path) -> Option<u64> {
    let stat = fs::read_to_string(group.join("memory.stat")).ok()?;
    let available = field(&stat, "file")? + limit(group)?.saturating_sub(current(group)?);
    let share = |name: &str, usual: u64| {
        let text = fs::read_to_string(format!("/proc/sys/vm/{name}")).ok();
        // Zero: given in bytes, for the whole system, which the kernel turns into a share. The
        // usual one is near enough.
        text.and_then(|text| text.trim().parse().ok()).filter(|share| *share > 0).unwrap_or(usual)
    };
    let middle = available * (share("dirty_ratio", 20) + share("dirty_background_ratio", 10)) / 200;
    let dirty = field(&stat, "file_dirty")? + field(&stat, "file_writeback")?;
    Some(middle.saturating_sub(dirty))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_system_tells_its_distance() {
        let distance = Source::find().distance().expect("/proc/vmstat is there since 2.6");
        assert!(distance < 1 << 46, "{distance}");
    }

    #[test]
    fn it_is_calm_a_while_after_the_limit_was_near() {
        let sampler = Sampler::new();
        let now = 1_000_000_000;
        assert!(sampler.is_calm(now) && !sampler.note(Some(NEAR), now) && sampler.is_calm(now));
        assert!(
            sampler.note(Some(NEAR - 1), now) && !sampler.is_calm(now + CALM_NS) && sampler.is_calm(now + CALM_NS + 1)
        );
    }

    #[test]
    fn an_allowance_is_used_up_and_renewed() {
        let sampler = Sampler::new();
        let now = 1_000_000_000;
        sampler.sampled_at_ns.store(now, Relaxed);
        sampler.allowance.store(8192, Relaxed);
        assert!(sampler.allows(4096, now) && sampler.allows(4096, now));
        assert_eq!(sampler.allowance.load(Relaxed), 0);
        sampler.allowance.store(8192, Relaxed);
        sampler.repent(1_000_000, now);
        assert!(!sampler.allows(4096, now + 9_000_000) && sampler.allows(4096, now + 11_000_000));
        sampler.sampled_at_ns.store(now + 11_000_000, Relaxed);
        let now = now + 11_000_000;
        // Used up, and not old enough to be looked at again once it is below zero.
        sampler.allowance.store(-1, Relaxed);
        assert!(!sampler.allows(4096, now + 1_000_000));
        sampler.allows(4096, now + 2 * OLD.as_nanos() as u64);
        assert_ne!(sampler.sampled_at_ns.load(Relaxed), now, "a new sample");
    }
}
