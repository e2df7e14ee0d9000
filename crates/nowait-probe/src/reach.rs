//! Availability of io_uring, its operations, and advice if it is not available.

use std::fs;

use io_uring::{IoUring, Probe};

use super::place::line;
use nowait::{Nowait, Refusal};

/// State of io_uring for this process.
#[non_exhaustive]
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// Reason why io_uring is not available; `None` if it is.
    pub refusal: Option<Refusal>,
    /// Advice if io_uring is not available.
    pub remedy: Option<String>,
    /// Sysctl `kernel.io_uring_disabled` (Linux 6.6): 1 restricts io_uring to a group, 2 disables
    /// it.
    pub disabled: Option<u32>,
    /// Sysctl `kernel.io_uring_group`; -1 means no group.
    pub group: Option<i64>,
    /// Number of seccomp filters on this process.
    pub seccomp_filters: Option<u32>,
    /// `RLIMIT_MEMLOCK` in bytes, which limits a ring's memory without CAP_IPC_LOCK; `None` means
    /// no limit.
    pub locked_memory_bytes_max: Option<u64>,
    /// True if the ring can defer completions until they are requested
    /// (`IORING_SETUP_DEFER_TASKRUN`, Linux 6.1). Otherwise a request that the device completes
    /// before its submission returns looks inline.
    pub defers: bool,
    /// io_uring operations on files, each with whether this kernel supports it.
    pub operations: Vec<(&'static str, bool)>,
}

/// Opcodes of linux/io_uring.h.
const OPERATIONS: [(&str, u8); 12] = [
    ("READV", 1),
    ("WRITEV", 2),
    ("FSYNC", 3),
    ("FALLOCATE", 17),
    ("OPENAT", 18),
    ("STATX", 21),
    ("READ", 22),
    ("WRITE", 23),
    ("RENAMEAT", 35),
    ("UNLINKAT", 36),
    ("FTRUNCATE", 55),
    ("READV_FIXED", 58),
];

impl Reach {
    pub(super) fn of(nowait: &Nowait) -> Reach {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mut reach = Reach {
            refusal: nowait.ring_refusal().cloned(),
            disabled: line("/proc/sys/kernel/io_uring_disabled").and_then(|value| value.parse().ok()),
            group: line("/proc/sys/kernel/io_uring_group").and_then(|value| value.parse().ok()),
            seccomp_filters: filters(&status),
            locked_memory_bytes_max: rustix::process::getrlimit(rustix::process::Resource::Memlock).current,
            ..Reach::default()
        };
        if let Some(refusal) = &reach.refusal {
            reach.remedy = Some(remedy(refusal.raw_os_error(), &reach, modules().as_deref()));
            return reach;
        }
        if let Ok(ring) = IoUring::new(2) {
            let mut probe = Probe::new();
            if ring.submitter().register_probe(&mut probe).is_ok() {
                reach.operations = OPERATIONS.map(|(name, code)| (name, probe.is_supported(code))).to_vec();
            }
        }
        reach
    }
}

/// Number of seccomp filters on this process. If the kernel reports only the mode, 2 means at least
/// one filter (`proc_pid_status(5)`).
fn filters(status: &str) -> Option<u32> {
    let field = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        value.trim().parse::<u32>().ok()
    };
    field("Seccomp_filters").or_else(|| Some(u32::from(field("Seccomp")? == 2)))
}

/// Active security modules.
fn modules() -> Option<String> {
    line("/sys/kernel/security/lsm")
}

/// Returns advice. Several causes may apply at a time; the sysctl comes first, since the kernel
/// checks it first.
fn remedy(errno: i32, reach: &Reach, modules: Option<&str>) -> String {
    match (errno, reach.disabled) {
        (libc::EPERM, Some(2)) => "switch it on: sysctl kernel.io_uring_disabled=0".to_owned(),
        (libc::EPERM, Some(1)) => match reach.group {
            Some(group) if group >= 0 => {
                format!("add the user to group {group} (kernel.io_uring_group), or: sysctl kernel.io_uring_disabled=0")
            }
            _ => "give a group to sysctl kernel.io_uring_group, or: sysctl kernel.io_uring_disabled=0".to_owned(),
        },
        (libc::ENOMEM, _) => "raise the limit on locked memory (ulimit -l, LimitMEMLOCK=), or close rings".to_owned(),
        (libc::EMFILE | libc::ENFILE, _) => "raise the limit on open files (ulimit -n)".to_owned(),
        _ if reach.seccomp_filters.is_some_and(|filters| filters > 0) => {
            "a seccomp filter is active: allow io_uring_setup, io_uring_enter and io_uring_register in the container's profile"
                .to_owned()
        }
        (libc::ENOSYS, _) => "take a kernel that is built with CONFIG_IO_URING".to_owned(),
        _ => match modules {
            Some(modules) => format!("look into the rules of the security modules ({modules}), and the kernel log"),
            None => "check the kernel log".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_has_its_remedy() {
        let reach = |disabled, group, filters| Reach {
            disabled: Some(disabled),
            group: Some(group),
            seccomp_filters: Some(filters),
            ..Reach::default()
        };
        let cases = [
            (libc::EPERM, reach(2, -1, 1), "io_uring_disabled=0"),
            (libc::EPERM, reach(1, 77, 0), "group 77"),
            (libc::EPERM, reach(1, -1, 0), "give a group"),
            (libc::EPERM, reach(0, -1, 1), "seccomp"),
            (libc::ENOSYS, reach(0, -1, 1), "seccomp"),
            (libc::ENOSYS, reach(0, -1, 0), "CONFIG_IO_URING"),
            (libc::ENOMEM, reach(0, -1, 1), "ulimit -l"),
            (libc::EACCES, reach(0, -1, 0), "selinux"),
        ];
        for (errno, reach, word) in cases {
            let remedy = remedy(errno, &reach, Some("capability,selinux"));
            assert!(remedy.contains(word), "{errno}: {remedy}");
        }
    }

    #[test]
    fn filters_are_counted() {
        assert_eq!(filters("Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t3\n"), Some(3));
        assert_eq!(filters("Seccomp:\t2\n"), Some(1));
        assert_eq!(filters("Seccomp:\t0\n"), Some(0));
        assert_eq!(filters(""), None);
    }
}
