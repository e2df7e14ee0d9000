//! The environment of a figure: kernel, file system, device and limits. Without them a figure
//! cannot be compared.
//!
//! This code only reads. Unknown values are omitted, not guessed.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use nowait_probe::Place;
use serde::{Deserialize, Serialize};

use crate::machine::load::Load;
use crate::sys::number_of;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Environment {
    pub version: String,
    /// Commit from which the program was built, if known.
    pub commit: Option<String>,
    /// The command line, quoted for a shell.
    pub command: String,
    pub date: String,
    pub kernel: String,
    pub io_uring: String,
    pub path: String,
    pub filesystem: Option<String>,
    pub mount_options: Option<String>,
    /// Only for ext4. Without a journal, growing and syncing a file is unusually cheap.
    pub journal: Option<bool>,
    pub device: Option<String>,
    pub scheduler: Option<String>,
    pub read_ahead_kb: Option<u64>,
    pub nr_requests: Option<u64>,
    pub cpus: usize,
    pub cpu_model: Option<String>,
    pub governor: Option<String>,
    pub memory_bytes: u64,
    pub cgroup_memory_max: Option<u64>,
    /// Number of processors whose time a cgroup allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_quota: Option<f64>,
    /// Use of huge pages for anonymous memory: `always`, `madvise` or `never`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub huge_pages: Option<String>,
    pub load: Load,
    /// In the table of stalls: the dirty bytes at which writers are throttled, and the bytes that a
    /// round wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dirty_limit_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall_bytes: Option<u64>,
    pub file_bytes: u64,
    pub file_origin: String,
    pub seed: u64,
}

impl Environment {
    /// Describes the file system of `path`. The caller adds facts about the file.
    pub fn of(path: &Path) -> Self {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let place = File::open(&path).map_or_else(|_| Place::default(), |opened| Place::of(&opened));
        let on_ext4 = place.file_system.as_ref().is_some_and(|name| name == "ext4");
        let journal = place.device.as_ref().filter(|_| on_ext4).map(|device| has_journal(&device.name));
        let device = place.device.unwrap_or_default();
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command: command(std::env::args_os()),
            date: utc(SystemTime::now()),
            kernel: kernel(),
            path: path.display().to_string(),
            journal,
            filesystem: place.file_system,
            mount_options: place.mount_options,
            scheduler: device.scheduler,
            read_ahead_kb: device.read_ahead_bytes.map(|bytes| bytes >> 10),
            nr_requests: device.requests_max,
            device: Some(device.name).filter(|name| !name.is_empty()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            cpu_model: cpu_model(),
            governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            memory_bytes: memory("MemTotal:"),
            cgroup_memory_max: cgroup_memory_max(),
            cpu_quota: cpu_quota(),
            huge_pages: line("/sys/kernel/mm/transparent_hugepage/enabled").and_then(|text| chosen(&text)),
            ..Self::default()
        }
    }

    /// Returns the lines to print before the tables, as (name, value).
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
        let commit = self.commit.as_ref().map(|commit| format!("commit {commit}"));
        let journal = self.journal.map(|journal| if journal { "journal" } else { "NO journal" }.to_owned());
        let cpu = joined([Some(format!("{} ×", self.cpus)), self.cpu_model.clone()], " ");
        let cpu = [
            Some(cpu),
            self.governor.as_ref().map(|governor| format!("governor {governor}")),
            self.cpu_quota.map(|quota| format!("cgroup allows {quota:.2}")),
            self.load.average.map(|average| format!("load average {average:.2}")),
        ];
        let memory = [
            Some(mib(self.memory_bytes)),
            self.cgroup_memory_max.map(|max| format!("cgroup allows {}", mib(max))),
            self.huge_pages.as_ref().map(|huge_pages| format!("huge pages {huge_pages}")),
        ];
        let device = [
            self.device.clone(),
            self.scheduler.as_ref().map(|value| format!("scheduler {value}")),
            self.nr_requests.map(|value| format!("nr_requests {value}")),
            self.read_ahead_kb.map(|value| format!("read_ahead_kb {value}")),
        ];
        vec![
            ("nowait", joined([Some(self.version.clone()), commit, Some(self.date.clone())], ", ")),
            ("kernel", format!("{}, io_uring: {}", self.kernel, self.io_uring)),
            ("cpu", joined(cpu, ", ")),
            ("memory", joined(memory, ", ")),
            ("file", format!("{} in {}: {}", mib(self.file_bytes), self.path, self.file_origin)),
            ("mount", joined([self.filesystem.clone(), self.mount_options.clone(), journal], ", ")),
            ("device", joined(device, ", ")),
            ("seed", self.seed.to_string()),
        ]
    }
}

/// Quotes arguments for a shell.
fn command(arguments: impl Iterator<Item = OsString>) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+,./:@%".contains(c);
    let quoted = |argument: OsString| {
        let argument = argument.to_string_lossy();
        if !argument.is_empty() && argument.chars().all(plain) {
            return argument.into_owned();
        }
        format!("'{}'", argument.replace('\'', r"'\''"))
    };
    arguments.map(quoted).collect::<Vec<_>>().join(" ")
}

fn joined<const N: usize>(parts: [Option<String>; N], separator: &str) -> String {
    let known: Vec<String> = parts.into_iter().flatten().collect();
    if known.is_empty() { "unknown".to_owned() } else { known.join(separator) }
}

fn line(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn kernel() -> String {
    let names = rustix::system::uname();
    format!("{} {}", names.release().to_string_lossy(), names.machine().to_string_lossy())
}

fn cpu_model() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let model = info.lines().find(|line| line.starts_with("model name"))?;
    Some(model.split_once(':')?.1.trim().to_owned())
}

/// Returns the bytes of a field of `/proc/meminfo`.
fn memory(field: &str) -> u64 {
    number_of("/proc/meminfo", field).unwrap_or(0) << 10
}

/// Returns the lowest `memory.max` of this process's cgroup (version 2) and its ancestors.
fn cgroup_memory_max() -> Option<u64> {
    cgroups().iter().filter_map(|group| line(group.join("memory.max"))?.parse().ok()).min()
}

/// Returns the lowest `cpu.max` of this process's cgroup (version 2) and its ancestors, as a number
/// of processors.
fn cpu_quota() -> Option<f64> {
    let quotas = cgroups().into_iter().filter_map(|group| quota(&line(group.join("cpu.max"))?));
    quotas.min_by(f64::total_cmp)
}

/// Parses a `cpu.max`: microseconds in each period, or `max`.
fn quota(text: &str) -> Option<f64> {
    let (quota, period) = text.split_once(' ')?;
    Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
}

/// Returns this process's cgroup (version 2) and its ancestors.
fn cgroups() -> Vec<PathBuf> {
    const ROOT: &str = "/sys/fs/cgroup";
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let Some(own) = groups.lines().find_map(|line| line.strip_prefix("0::/")) else { return Vec::new() };
    let own = Path::new(ROOT).join(own);
    own.ancestors().take_while(|group| group.starts_with(ROOT)).map(Path::to_owned).collect()
}

/// Returns the choice in brackets: for `always [madvise] never`, `madvise`.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

/// Returns whether an ext4 has a journal.
fn has_journal(device: &str) -> bool {
    let prefix = format!("{device}-");
    let journals = fs::read_dir("/proc/fs/jbd2").into_iter().flatten().flatten();
    journals.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
}

/// Formats as `2025-01-31T12:34:56Z`, by Howard Hinnant's `civil_from_days`.
fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86400, seconds % 86400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_are_right_around_leap_days() {
        let at = |seconds| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_709_251_199), "2024-02-29T23:59:59Z");
        assert_eq!(at(1_735_689_600), "2025-01-01T00:00:00Z");
    }

    #[test]
    fn a_command_can_be_typed_again() {
        let arguments = ["nowait", "bench", "--dir=/a b", "it's", "", "--ways", "ring,pread"];
        let typed = command(arguments.into_iter().map(OsString::from));
        assert_eq!(typed, r"nowait bench '--dir=/a b' 'it'\''s' '' --ways ring,pread");
    }

    #[test]
    fn choices_and_quotas_are_read() {
        assert_eq!(chosen("always [madvise] never").as_deref(), Some("madvise"));
        assert_eq!((chosen("never"), quota("max 100000"), quota("150000 100000")), (None, None, Some(1.5)));
    }

    #[test]
    fn this_machine_has_an_environment() {
        let environment = Environment::of(Path::new("."));
        assert!(environment.memory_bytes > 0 && environment.cpus > 0);
        assert!(environment.filesystem.is_some());
    }
}
