//! Memory that is free for the page cache.

use std::fs;

/// Bytes that can be had without writing anything to swap: of the system, and of the process's
/// control group (version 2). None if the system does not tell.
pub(crate) fn available_bytes() -> Option<u64> {
    let system = field(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")?;
    Some(group_bytes().map_or(system, |group| group.min(system)))
}

fn group_bytes() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let directory = format!("/sys/fs/cgroup{group}");
    let number = |file: &str| fs::read_to_string(format!("{directory}/{file}")).ok()?.trim().parse::<u64>().ok();
    // Without a limit it says "max", which is no number.
    let (max, current) = (number("memory.max")?, number("memory.current")?);
    let stat = fs::read_to_string(format!("{directory}/memory.stat")).unwrap_or_default();
    let inactive = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.parse::<u64>().ok());
    Some(max.saturating_sub(current).saturating_add(inactive.unwrap_or(0)))
}

/// Reads a field of `/proc/meminfo`, in bytes.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_field_in_bytes() {
        let text = "MemTotal:       24684716 kB\nMemAvailable:   23966004 kB\n";
        assert_eq!(field(text, "MemAvailable:"), Some(23_966_004 * 1024));
        assert_eq!(field(text, "MemFree:"), None);
        assert_eq!(field("MemAvailable: many kB", "MemAvailable:"), None);
    }
}
