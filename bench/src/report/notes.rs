//! Notes of a report: conditions that its reader should know. Each kind of note has a stable code,
//! which `--explain` explains.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    pub code: Code,
    pub text: String,
}

impl Note {
    pub fn new(code: Code, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }
}

macro_rules! codes {
    ($($variant:ident $name:literal $meaning:literal)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        pub enum Code {
            $(#[serde(rename = $name)] $variant,)*
            /// Note of an earlier version with other codes.
            #[serde(other, rename = "earlier")]
            Earlier,
        }

        impl Code {
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* Self::Earlier => "earlier" }
            }

            /// Explains the note and what to do about it.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)* Self::Earlier => "An earlier version wrote this note." }
            }
        }
    };
}

codes! {
    WayLeftOut "way-left-out"
        "This system refuses a way, or the way does not support an option, so it has no rows. The note names the refused call and \
         its error. Other ways are not affected. Install what is missing, or allow the call. io_uring is often forbidden by a \
         container's seccomp filter, or by the sysctl kernel.io_uring_disabled."
    CaseLeftOut "case-left-out"
        "The case needs something that this system lacks; the note names it. The case has no rows; other cases are not affected."
    DirectRefused "direct-refused"
        "The file system refuses O_DIRECT, so the ways that bypass the page cache have no rows. Choose a --dir on a file system \
         that supports it, such as ext4, xfs or btrfs."
    StallSize "stall-size"
        "The amount that each round of the table wrote, and the amount of dirty data at which the kernel blocks writers \
         (vm.dirty_bytes or vm.dirty_ratio). A round that writes less than this limit shows no stalls. In that case, use a larger \
         --stall-size."
    LimitNotLowered "limit-not-lowered"
        "The system's limit of dirty data could not be lowered for the table `stall`. If a round writes less than the limit, the \
         kernel does not block writers, and no stalls occur. Run as root, one run at a time."
    InodesWarm "inodes-warm"
        "The data of the small files was dropped from the page cache, but their inodes and names stayed in memory. Only root can \
         drop these, by /proc/sys/vm/drop_caches, for the whole machine. A program that opens files for the first time after boot \
         waits for more reads than these rounds. Run as root and without --quick, on a machine without other work."
    NotCold "not-cold"
        "Pages of the file stayed in the page cache although the run tried to drop them. Cold cases were not measured; if there are no other cases, the exit code is 6. \
         There are three causes. tmpfs keeps its files in memory. Pages that are mapped, locked or dirty stay. If you neither own \
         the file nor may write it, the kernel reports all its pages as cached. Choose a --dir on a disk, or end the programs that \
         map the file."
    Unwritten "unwritten"
        "A part of the file is a hole, or was allocated but never written. The kernel answers such reads with zeros, without \
         reading the disk, so the disk seems several times as fast as it is. Write the whole file, or omit --file: the run then \
         creates a test file."
    Compressible "compressible"
        "The data that is read or written can be compressed: zeros, text or repeated blocks. Storage that compresses or \
         deduplicates does less work for it than for other data. Omit --file: the run then creates a file of random bytes. If the \
         file system compresses data, measure writes on another one."
    ReadAhead "read-ahead"
        "The device has a large readahead (read_ahead_kb). A sequential reader through the page cache, such as cat, then uses the \
         full queue depth of the disk, but a small sequential read may wait for megabytes. Tables of random reads turn readahead \
         off. Compare with the default: echo 128 > /sys/block/DEVICE/queue/read_ahead_kb."
    UnderLoad "under-load"
        "Other programs used the processors or the device just before the run, or the hypervisor took processor time from the run. \
         Rounds then scatter, and ways that need a second processor or an idle device lose more than others. End those programs, \
         wait until the load average falls, and run again. On a virtual machine, try at another time."
    NotFromDevice "not-from-device"
        "Rounds of cold reads moved fewer bytes at the device than they read. Another layer cached them (below a loop device, \
         in a RAID controller), or the file system stores them compressed. The cold rows are then not the device's speed."
    TwoSpeeds "two-speeds"
        "The rounds of a way in a case form two groups with very different speeds. Typical causes are a cloud disk with a burst \
         limit, and another program that ran for a part of the time. The median then shows which group has more rounds, not the \
         speed of the way. Look at the spread, use more --rounds, and repeat the run when the disk has its burst credit again."
    CachedUnderDirect "cached-under-direct"
        "After a round with direct I/O, pages of the file were in the page cache. Either another program reads the file, or the \
         file system served the direct reads through the cache. Such a round was faster than the disk, or slower because of the \
         cached pages. Measure a file that no other program uses, on a file system that supports direct reads."
    NoSchedulerInfo "no-scheduler-info"
        "The kernel does not report how often its threads ran (/proc/self/schedstat, CONFIG_SCHED_INFO), so requests that io_uring \
         hands to kernel workers are not counted. The columns `punts` and `ring` are empty; `pool` includes the processor time of \
         these workers. Other figures are not affected."
    LoadMissed "load-missed"
        "In the table `load`, a way completed less than 0.95 of the offered rate, so its queue grew during the round. At that rate, \
         its latencies mostly show the length of the round. It was not measured at higher rates. The next lower rate is the highest \
         that it sustains; choose closer --rates for a finer result."
}

impl Code {
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_written_as_its_name_and_is_one_of_a_kind() {
        for (index, &code) in Code::ALL.iter().enumerate() {
            assert_eq!(serde_json::to_value(code).unwrap(), code.name());
            assert_eq!(Code::by_name(code.name()), Some(code));
            assert!(Code::ALL[..index].iter().all(|other| other.name() != code.name()));
            assert!(code.meaning().ends_with('.') && !code.meaning().contains("  "), "{}", code.name());
        }
        assert_eq!(Code::by_name("nothing"), None);
    }
}
