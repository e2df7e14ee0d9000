//! What the reader of a report should know besides the figures. Each kind of note has a code that does not change, by which it can be
//! looked up.

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
        }

        impl Code {
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// What it means, and what to do.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning),* }
            }
        }
    };
}

codes! {
    WayLeftOut "way-left-out"
        "This system refuses a way, or the way cannot do what was asked for, so it has no rows. The note says which call was refused and \
         how. The other ways are not concerned. Install what is missing, or allow the call; io_uring is often forbidden by a container's seccomp filter or by \
         the sysctl kernel.io_uring_disabled."
    FileSystemLeftOut "file-system-left-out"
        "A file system of our own could not be made or mounted, so it has no rows. It takes root, a loop device, and the mkfs.* \
         command that the note names."
    CaseLeftOut "case-left-out"
        "What the case needs cannot be had here; the note says what. Its rows are missing, the others are not concerned."
    DirectRefused "direct-refused"
        "The file system refuses O_DIRECT, so the ways that go past the page cache have no rows. Choose a --dir on a file system \
         that allows it; ext4, xfs and btrfs do."
    OneWriter "one-writer"
        "The way has no idea of more than one writer. It is measured where there is one, and has no rows elsewhere."
    StallSize "stall-size"
        "How much each round of the table wrote, and from how much dirty data on the kernel puts writers to sleep \
         (vm.dirty_bytes, or vm.dirty_ratio). A round that writes less than that limit shows no stalls; use a larger --stall-size."
    OverwriteSize "overwrite-size"
        "How large the file was that was overwritten at random in a memory cgroup that allows half as much."
    LimitNotLowered "limit-not-lowered"
        "The system's limit of dirty data could not be lowered for the table of stalls. With a limit larger than what a round writes, \
         writers are not put to sleep and there is nothing to see. Run as root, one run at a time."
    NotCold "not-cold"
        "Pages of the file stayed in the page cache when they were to be dropped, so nothing may be called cold and nothing cold was \
         measured (exit code 6). tmpfs keeps its files in memory; a page that is mapped, locked or dirty stays; and who neither owns a \
         file nor may write it is told that all is cached. Choose a --dir on a disk, or end the programs that map the file."
    Unwritten "unwritten"
        "A part of the file has been allocated, or skipped, and never written. The kernel answers such reads with zeros and does not ask \
         the disk, which looks several times as fast as it is. Write the file in full, or give no --file and let one be made."
    ExtentsUnknown "extents-unknown"
        "The file system does not tell where the file lies (FIEMAP), so that nobody can say whether all of it has been written. Trust the \
         cold rows if you know that it has."
    Compressible "compressible"
        "What is read, or written, has less in it than its length: zeros, text, blocks that are the same, or extents that the file system \
         holds compressed. Storage that compresses or shares blocks does less work for it than for data of another kind. Give no --file: \
         the file that is made is of random bytes. On a file system that compresses, measure the writes on another."
    ReadAhead "read-ahead"
        "The device reads far ahead (read_ahead_kb). Whoever reads a file in order through the page cache, as cat does, has the disk's full \
         depth for it; a small read in order may wait for megabytes. The tables of random reads are not concerned: they turn it off. \
         Compare with 128, the usual value: echo 128 > /sys/block/DEVICE/queue/read_ahead_kb."
    TwoSpeeds "two-speeds"
        "Rounds of the same way in the same case fall into two groups that are far apart, as behind a limit that a cloud's disk has for \
         bursts, or beside another program that came and went. A median then says which group had more rounds, not how fast the way is. \
         Look at the spread, use more --rounds, and come back when the disk's credit has been refilled."
    CachedUnderDirect "cached-under-direct"
        "After a round past the page cache the file had pages in it: another program reads it, or the file system took the direct reads \
         through the cache. Such a round was quicker than the disk, or slower, since cached pages must be dealt with first. Measure a \
         file that nobody else uses, on a file system that reads directly."
    NoSchedulerInfo "no-scheduler-info"
        "The kernel does not tell how often its threads ran (/proc/self/schedstat; CONFIG_SCHED_INFO), so requests that io_uring hands to \
         workers cannot be counted. The column punts is empty, and so is that of the workers' processor time, which is in the pool's; the \
         other figures are not concerned."
    Rate "rate"
        "Reads began at fixed moments (--rate), and their latency counts from these: one that waits behind a slow one is slow, too. The \
         speeds are those that were asked for; compare the latencies, and the processor time. Each way waits for the next moment as its \
         kind does: a thread sleeps, a ring's wait has a time-out, a future is woken by another thread. What that takes is in the figures."
    RateMissed "rate-missed"
        "A way could not begin as many reads as it was to (--rate), fell behind more and more, and its latencies say mostly how long the \
         round was. Ask for less, or for more --depths."
    Fio "fio"
        "Rows named fio-… are fio's own, read from its JSON. They were measured on the same machine and not interleaved with ours, so a \
         disk that drifts shows in them. fio counts the processor time of the thread that submits only: what its requests cost in kernel \
         workers is missing. Its own bookkeeping between two operations, some tenths of a microsecond, shows where operations are short."
    FioUnmatched "fio-unmatched"
        "A job of fio has another name than any case here, or ended with an error, and is not shown. Take the job file that --emit-fio \
         writes with the same tables and options as the run beside which it is shown."
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
