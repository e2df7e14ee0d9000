//! Memory that is available to the page cache: in the system, and in the process's memory cgroups.

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes that may be used without anything being swapped out or killed: `MemAvailable` (Linux 3.14,
/// `proc_meminfo(5)`), or what a cgroup has left, cache that can be dropped included. `None` if
/// unknown.
pub(crate) fn available_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let system = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10;
    Some(groups().iter().filter_map(|group| group_available(group)).fold(system, u64::min))
}

fn group_available(group: &Path) -> Option<u64> {
    let stat = fs::read_to_string(group.join("memory.stat")).ok()?;
    let used = current(group)?.saturating_sub(field(&stat, "inactive_file")? + field(&stat, "active_file")?);
    Some(limit(group)?.saturating_sub(used))
}

/// The process's memory cgroup and those above it that have a limit. Version 2 only.
pub(crate) fn groups() -> Vec<PathBuf> {
    let Ok(own) = fs::read_to_string("/proc/self/cgroup") else { return Vec::new() };
    let Some(path) = own.lines().find_map(|line| line.strip_prefix("0::")) else { return Vec::new() };
    let root = PathBuf::from("/sys/fs/cgroup");
    let here = root.join(path.trim_start_matches('/'));
    let limited = |group: &&Path| limit(group).is_some();
    // The root has a limit in a cgroup namespace, as containers have.
    here.ancestors().take_while(|group| group.starts_with(&root)).filter(limited).map(PathBuf::from).collect()
}

/// A cgroup's limit.
pub(crate) fn limit(group: &Path) -> Option<u64> {
    let limit = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    match (limit("memory.max"), limit("memory.high")) {
        (Some(max), Some(high)) => Some(max.min(high)),
        (max, high) => max.or(high),
    }
}

/// A cgroup's use.
pub(crate) fn current(group: &Path) -> Option<u64> {
    fs::read_to_string(group.join("memory.current")).ok()?.trim().parse().ok()
}

/// The number after `name` and a space, at the start of a line.
pub(crate) fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')))?;
    line[name.len()..].trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "nr_dirty_threshold 7\nnr_dirty 5\nnr_dirtied 9\n";
        assert_eq!(
            (field(text, "nr_dirty"), field(text, "nr_dirty_threshold"), field(text, "nr")),
            (Some(5), Some(7), None)
        );
    }

    #[test]
    fn this_system_tells_what_is_available() {
        let available = available_bytes().expect("MemAvailable is there since 3.14");
        assert!(available > 1 << 20 && available < 1 << 46, "{available}");
    }
}
