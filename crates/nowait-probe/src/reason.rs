//! Reasons why io_uring does not serve a kind of request inline.

use std::fmt;

use crate::abilities::Abilities;
use crate::case::Case;
use crate::place::Place;
use crate::report::Rates;

/// Reason why io_uring gives requests to a worker, or sleeps in their submission.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// io_uring gives every one of these to a worker.
    Always,
    /// The request asked for a worker (`IOSQE_ASYNC`).
    Forced,
    /// The file refuses non-blocking requests (`RWF_NOWAIT`).
    NoNowait,
    /// The file refuses non-blocking buffered writes.
    NoNowaitWrites,
    /// The device refuses non-blocking requests.
    Device,
    /// Overwritten data moves to new blocks.
    CopyOnWrite,
    /// The write allocates blocks, or marks them as written.
    Grows,
    /// A partial write first reads the rest of its pages or blocks.
    ReadsFirst,
    /// The first write after a clock tick updates the file's timestamps.
    Times,
}

impl Reason {
    pub(crate) fn of(case: Case, rates: &Rates, abilities: &Abilities, place: &Place) -> Option<Reason> {
        if case == Case::ForcedRead {
            return Some(Reason::Forced);
        }
        let mostly = |count: u32| count * 2 > rates.requests;
        if !mostly(rates.worker) {
            return match case {
                Case::ColdPartialWrite if mostly(rates.slept) => Some(Reason::ReadsFirst),
                case if rates.worker > 0 && !case.is_read() => Some(Reason::Times),
                _ => None,
            };
        }
        let refuses = |ability: Option<bool>| ability == Some(false);
        let copies_on_write = place.file_system.as_deref() == Some("btrfs") && abilities.copies_on_write;
        let is_device = place.file_system.is_none();
        Some(match case {
            Case::Sync => Reason::Always,
            _ if refuses(abilities.nowait_reads) && !is_device => Reason::NoNowait,
            case if case.is_direct() && refuses(abilities.nowait_direct_reads) => Reason::Device,
            case if !case.is_direct() && !case.is_read() && refuses(abilities.nowait_writes) => Reason::NoNowaitWrites,
            case if !case.is_read() && copies_on_write => Reason::CopyOnWrite,
            Case::ColdPartialWrite => Reason::ReadsFirst,
            case if case.grows() => Reason::Grows,
            _ => return None,
        })
    }

    /// Returns the reason in a few words.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Always => "always by a worker",
            Reason::Forced => "a control",
            Reason::NoNowait => "no non-blocking requests",
            Reason::NoNowaitWrites => "no non-blocking buffered writes",
            Reason::Device => "the device blocks in submission",
            Reason::CopyOnWrite => "copy-on-write",
            Reason::Grows => "allocates blocks",
            Reason::ReadsFirst => "reads the page first",
            Reason::Times => "timestamps, once a tick",
        }
    }

    /// Returns the reason as a full explanation.
    pub fn explanation(self) -> &'static str {
        match self {
            Reason::Always => {
                "io_uring gives every sync to a kernel worker, whatever the file system. This library uses a pool thread, and syncs of \
                 one file at the same time share one call."
            }
            Reason::Forced => "These reads were forced on a kernel worker, to check that a worker is seen.",
            Reason::NoNowait => {
                "The file refuses RWF_NOWAIT (EOPNOTSUPP), as on overlayfs, tmpfs and most FUSE file systems. io_uring gives each request \
                 to a kernel worker, cached or not. This library makes plain calls while they are quick, and otherwise uses a pool \
                 thread. A volume that is bound into a container is not on its overlay."
            }
            Reason::NoNowaitWrites => {
                "The file system refuses non-blocking buffered writes (EOPNOTSUPP), so io_uring gives each to a kernel worker. This \
                 library makes a plain call where it should not block."
            }
            Reason::Device => {
                "The device serves requests in their submission, or one of its parts does (RAM disks, zram, some device-mapper targets). \
                 It refuses non-blocking requests, and io_uring gives each to a kernel worker."
            }
            Reason::CopyOnWrite => {
                "btrfs writes data to a new place, and reserves it first. Files with the attribute C are overwritten in place (chattr +C, \
                 on an empty file or on the directory), as are files with preallocated space."
            }
            Reason::Grows => {
                "The write allocates blocks, or turns preallocated space into data. The file system changes its metadata for that, which \
                 may block. Overwriting a file that was once written in full, with zeros for instance, does not."
            }
            Reason::ReadsFirst => {
                "Part of a page is written, and the page is not cached: the rest is read from the device first."
            }
            Reason::Times => {
                "A write updates the file's timestamps at most once a clock tick. The first one after a tick cannot do that without \
                 blocking, and goes to a kernel worker."
            }
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
