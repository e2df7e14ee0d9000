//! Other work of the machine, which distorts figures: load, stolen time, and other users of the
//! disk.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Share of processor time from which other work is reported.
const NOTICEABLE: f64 = 0.05;
/// Bytes per second of other programs at the device from which they are reported.
const NOTICEABLE_BYTES: f64 = 1e6;
/// Duration of the observation before a run.
const LOOK: Duration = Duration::from_millis(300);
/// The kernel's unit in the statistics of block devices (Documentation/block/stat.rst).
const SECTOR: u64 = 512;

/// Work of other programs before the run, and stolen time during the run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Load {
    /// Tasks that ran or waited for a disk, over the last minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub average: Option<f64>,
    /// Share of all processors that other programs used before the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub others: Option<f64>,
    /// Share of all processors' time that the hypervisor gave to other guests, over the whole run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stolen: Option<f64>,
    /// Bytes per second that other programs read from and wrote to the device before the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_bytes_per_s: Option<f64>,
}

/// Observes the machine from before a run to its end.
#[derive(Debug)]
pub struct Watch {
    begun: Option<Ticks>,
    load: Load,
}

impl Watch {
    /// Begins with an observation of 300 ms, during which this process is idle. `device` is a name
    /// in `/sys/class/block`.
    pub fn begin(device: Option<&str>) -> Watch {
        let counters = || device.and_then(Transfers::of);
        let (ticks, transfers, at) = (Ticks::now(), counters(), Instant::now());
        std::thread::sleep(LOOK);
        let (ticks_after, seconds) = (Ticks::now(), at.elapsed().as_secs_f64());
        let passed = ticks.zip(ticks_after).map(|(before, after)| after.since(before));
        let moved = transfers.zip(counters()).map(|(before, after)| after.bytes().saturating_sub(before.bytes()));
        let load = Load {
            average: load_average(),
            others: passed.and_then(|passed| passed.share(passed.busy)),
            stolen: None,
            device_bytes_per_s: moved.map(|bytes| bytes as f64 / seconds),
        };
        Watch { begun: ticks_after, load }
    }

    /// Returns the load so far.
    pub fn load(&self) -> Load {
        let passed = self.begun.zip(Ticks::now()).map(|(before, after)| after.since(before));
        Load { stolen: passed.and_then(|passed| passed.share(passed.stolen)), ..self.load.clone() }
    }
}

impl Load {
    /// Returns the warning above the figures, if other programs used the machine. The notes repeat
    /// it, and add what was observed during the run.
    pub fn warning(&self) -> Option<String> {
        let told = self.disturbances();
        (!told.is_empty()).then(|| format!("UNDER LOAD: {}. This distorts the figures.", told.join("; ")))
    }

    /// Describes the other work; empty on an idle machine.
    pub fn disturbances(&self) -> Vec<String> {
        let mut told = Vec::new();
        if let Some(others) = self.others.filter(|share| *share >= NOTICEABLE) {
            let average = self.average.map_or_else(String::new, |average| format!(" (load average {average:.2})"));
            told.push(format!("other programs used {:.0} % of the processors before the run{average}", others * 100.0));
        }
        if let Some(stolen) = self.stolen.filter(|share| *share >= NOTICEABLE) {
            told.push(format!("the hypervisor took {:.0} % of the processors' time", stolen * 100.0));
        }
        if let Some(bytes) = self.device_bytes_per_s.filter(|bytes| *bytes >= NOTICEABLE_BYTES) {
            told.push(format!("other programs moved {:.0} MB/s at the device before the run", bytes / 1e6));
        }
        told
    }
}

/// Time of all processors, in ticks (proc_stat(5)).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Ticks {
    all: u64,
    busy: u64,
    stolen: u64,
}

impl Ticks {
    fn now() -> Option<Ticks> {
        Ticks::of(&fs::read_to_string("/proc/stat").ok()?)
    }

    fn of(text: &str) -> Option<Ticks> {
        let fields = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let ticks: Vec<u64> = fields.map(|field| field.parse().ok()).collect::<Option<_>>()?;
        // user nice system idle iowait irq softirq steal; a guest's time is in user's.
        let &[user, nice, system, idle, iowait, irq, softirq, stolen, ..] = ticks.as_slice() else { return None };
        let busy = user + nice + system + irq + softirq;
        Some(Ticks { all: busy + idle + iowait + stolen, busy, stolen })
    }

    fn since(self, before: Ticks) -> Ticks {
        Ticks {
            all: self.all.saturating_sub(before.all),
            busy: self.busy.saturating_sub(before.busy),
            stolen: self.stolen.saturating_sub(before.stolen),
        }
    }

    fn share(self, part: u64) -> Option<f64> {
        (self.all > 0).then(|| part as f64 / self.all as f64)
    }
}

/// Busy time of the machine's processors, in microseconds: programs, the kernel's own threads and
/// interrupts. The kernel counts it in ticks of some milliseconds. `None` if it does not report it.
pub fn busy_us() -> Option<f64> {
    Ticks::now().map(|ticks| ticks.busy as f64 * 1e6 / rustix::param::clock_ticks_per_second() as f64)
}

/// Transfers of a block device since its creation (Documentation/block/stat.rst).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Transfers {
    pub reads: u64,
    pub read_bytes: u64,
    /// Linux counts a flush of the device's cache after a write as a write of 0 bytes.
    pub writes: u64,
    pub written_bytes: u64,
    /// Sum of the durations of reads. Divided by a period, it is the mean number of reads in
    /// flight.
    pub read_time: Duration,
}

impl Transfers {
    /// Returns the counts of the device with this name in `/sys/class/block`; `None` if it does not
    /// count.
    pub fn of(device: &str) -> Option<Transfers> {
        let folder = Path::new("/sys/class/block").join(device);
        // A partition uses the queue of its disk.
        let counts = ["queue/iostats", "../queue/iostats"].iter().find_map(|file| fs::read(folder.join(file)).ok());
        if counts.is_some_and(|counts| counts.starts_with(b"0")) {
            return None;
        }
        Transfers::parse(&fs::read_to_string(folder.join("stat")).ok()?)
    }

    fn parse(text: &str) -> Option<Transfers> {
        let fields: Vec<u64> = text.split_whitespace().map(|field| field.parse().ok()).collect::<Option<_>>()?;
        let &[reads, _, read_sectors, read_ms, writes, _, written_sectors, ..] = fields.as_slice() else { return None };
        Some(Transfers {
            reads,
            read_bytes: read_sectors * SECTOR,
            writes,
            written_bytes: written_sectors * SECTOR,
            read_time: Duration::from_millis(read_ms),
        })
    }

    pub fn since(self, before: Transfers) -> Transfers {
        Transfers {
            reads: self.reads.saturating_sub(before.reads),
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            writes: self.writes.saturating_sub(before.writes),
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
            read_time: self.read_time.saturating_sub(before.read_time),
        }
    }

    fn bytes(&self) -> u64 {
        self.read_bytes + self.written_bytes
    }
}

/// Returns the name of this file's device in `/sys/class/block`. `None` if the file system is on no
/// device, or on several.
pub fn device_under(file: &File) -> Option<String> {
    let device = file.metadata().ok()?.dev();
    let folder = format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    Some(fs::canonicalize(folder).ok()?.file_name()?.to_str()?.to_owned())
}

fn load_average() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Usage;

    #[test]
    fn ticks_and_transfers_are_read_as_documented() {
        let ticks = Ticks::of("cpu  10 1 20 60 5 2 3 7 4 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n").unwrap();
        assert_eq!(ticks, Ticks { all: 108, busy: 36, stolen: 7 });
        assert_eq!(ticks.since(Ticks::default()).share(36), Some(36.0 / 108.0));
        assert_eq!((Ticks::of("cpu 1 2"), Ticks::default().share(0)), (None, None));
        let text = "  100  5  2048  40  7  0  16  3  0  50  43  0 0 0 0 0 0\n";
        let read_time = Duration::from_millis(40);
        let expected = Transfers { reads: 100, read_bytes: 1 << 20, writes: 7, written_bytes: 8192, read_time };
        assert_eq!(Transfers::parse(text), Some(expected));
        assert_eq!(Transfers::parse("1 2 x"), None);
    }

    #[test]
    fn a_busy_machine_is_not_an_idle_one() {
        let (before, own) = (busy_us().unwrap(), Usage::of_process());
        while Usage::of_process().since(&own).cpu_us() < 100_000.0 {}
        let busy_us = busy_us().unwrap() - before;
        // Stolen time counts in only one of the two figures.
        assert!(busy_us >= 10_000.0, "{busy_us}");
    }

    #[test]
    fn an_idle_machine_is_not_worth_a_word() {
        let idle = Load { average: Some(0.3), others: Some(0.01), stolen: Some(0.0), device_bytes_per_s: Some(4096.0) };
        assert!(idle.disturbances().is_empty() && Load::default().disturbances().is_empty());
        let busy = Load { average: Some(3.0), others: Some(0.5), stolen: Some(0.2), device_bytes_per_s: Some(30e6) };
        let told = busy.disturbances().join("; ");
        assert_eq!(
            told,
            "other programs used 50 % of the processors before the run (load average 3.00); the hypervisor took 20 % of the \
             processors' time; other programs moved 30 MB/s at the device before the run"
        );
    }

    #[test]
    fn this_machine_tells() {
        let watch = Watch::begin(None);
        // Waits until the tick counters have advanced.
        std::thread::sleep(LOOK);
        let load = watch.load();
        assert!((0.0..=1.0).contains(&load.others.unwrap()) && (0.0..=1.0).contains(&load.stolen.unwrap()), "{load:?}");
        assert_eq!(load.device_bytes_per_s, None);
    }
}
