//! Notes of a report: what its reader should know besides the figures. Each kind of note has a code
//! that does not change, by which it can be looked up.

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
            /// Note of an earlier version, which had other codes.
            #[serde(other, rename = "earlier")]
            Earlier,
        }

        impl Code {
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* Self::Earlier => "earlier" }
            }

            /// Explains the note, and says what to do.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)* Self::Earlier => "An earlier version said so." }
            }
        }
    };
}

codes! {
    WayLeftOut "way-left-out"
        "This system refuses a way, or the way cannot do what was asked for, so it has no rows. The note names the refused call and its \
         error. Other ways are not affected. Install what is missing, or allow the call; io_uring is often forbidden by a container's seccomp filter or by \
         the sysctl kernel.io_uring_disabled."
    CaseLeftOut "case-left-out"
        "The case needs what this system lacks; the note says what. Its rows are missing; other cases are not affected."
    DirectRefused "direct-refused"
        "The file system refuses O_DIRECT, so the ways that go past the page cache have no rows. Choose a --dir on a file system \
         that allows it; ext4, xfs and btrfs do."
    StallSize "stall-size"
        "How much each round of the table wrote, and from how much dirty data on the kernel puts writers to sleep \
         (vm.dirty_bytes, or vm.dirty_ratio). A round that writes less than that limit shows no stalls; use a larger --stall-size."
    LimitNotLowered "limit-not-lowered"
        "The system's limit of dirty data could not be lowered for the table of stalls. With a limit larger than what a round writes, \
         writers are not put to sleep and there is nothing to see. Run as root, one run at a time."
    InodesWarm "inodes-warm"
        "The bytes of small files were dropped from the page cache, and their inodes and names stayed in memory: to drop these takes \
         /proc/sys/vm/drop_caches, which root may write, and which drops the caches of the whole machine. A program that opens files for \
         the first time since the machine started waits for more reads. Run as root and without --quick, where nothing else runs."
    NotCold "not-cold"
        "Pages of the file stayed in the page cache when they were to be dropped, so nothing may be called cold and nothing cold was \
         measured (exit code 6). tmpfs keeps its files in memory; a page that is mapped, locked or dirty stays; and the kernel answers \"all cached\" to one who neither owns a \
         file nor may write it. Choose a --dir on a disk, or end the programs that map the file."
    Unwritten "unwritten"
        "A part of the file has been allocated, or skipped, and never written. The kernel answers such reads with zeros and does not ask \
         the disk, which looks several times as fast as it is. Write the file in full, or give no --file and let one be made."
    Compressible "compressible"
        "What is read, or written, can be compressed: zeros, text or repeated blocks. Storage that compresses or shares blocks does less work for it than for data of another kind. Give no --file: \
         the file that is made is of random bytes. On a file system that compresses, measure the writes on another."
    ReadAhead "read-ahead"
        "The device reads far ahead (read_ahead_kb). A sequential reader through the page cache, such as cat, gets the disk's full \
         depth; a small sequential read may wait for megabytes. Tables of random reads turn readahead off. \
         Compare with 128, the usual value: echo 128 > /sys/block/DEVICE/queue/read_ahead_kb."
    UnderLoad "under-load"
        "Other programs used the processors or the device just before the run, or the hypervisor took time from it. Ways that need a \
         second processor, or a calm device, then lose more than the others, and rounds scatter. End those programs, wait for the load \
         average to fall, and run again; in a virtual machine, choose another hour."
    NotFromDevice "not-from-device"
        "Rounds that were to read from the device moved fewer bytes there than they read: another layer had them (the device of a loop, \
         a RAID's cache), or the file system holds them compressed. Cold rows are then not the device's."
    TwoSpeeds "two-speeds"
        "Rounds of the same way in the same case fall into two groups that are far apart, as behind a limit that a cloud's disk has for \
         bursts, or beside another program that came and went. The median then tells which group had more rounds, not the speed of the way. \
         Look at the spread, use more --rounds, and come back when the disk's credit has been refilled."
    CachedUnderDirect "cached-under-direct"
        "After a round past the page cache the file had pages in it: another program reads it, or the file system took the direct reads \
         through the cache. Such a round was quicker than the disk, or slower, since cached pages must be dealt with first. Measure a \
         file that nobody else uses, on a file system that reads directly."
    NoSchedulerInfo "no-scheduler-info"
        "The kernel does not tell how often its threads ran (/proc/self/schedstat; CONFIG_SCHED_INFO), so requests that io_uring hands to \
         workers cannot be counted. The column punts is empty, and so is that of the workers' processor time, which is in the pool's; the \
         other figures are not concerned."
    LoadMissed "load-missed"
        "In the table load a way did less than 0.95 of what was offered, and fell behind more and more. At that rate its latencies mostly tell \
         the length of the round; at higher rates it was not measured. The rate before is the highest that it keeps, or choose finer --rates."
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
