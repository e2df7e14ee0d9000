//! Why io_uring does not serve a kind of request inline.

use std::fmt;

use crate::abilities::Abilities;
use crate::case::Case;
use crate::place::Place;
use crate::report::Rates;

/// Why io_uring gives requests to a worker, or sleeps in their submission.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// io_uring gives every one of these to a worker.
    Always,
    /// It was asked to.
    Forced,
    /// The file takes no requests that do not wait.
    NoNowait,
    /// It takes no writes through the page cache that do not wait.
    NoNowaitWrites,
    /// The device takes no requests that do not wait.
    Device,
    /// Overwritten data gets a new place.
    CopyOnWrite,
    /// The file gains blocks, or notes that they are in use.
    Grows,
    /// The rest of its pages or blocks has to be read first.
    ReadsFirst,
    /// Once a clock tick the file's times change.
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

    /// In a few words.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Always => "always by a worker",
            Reason::Forced => "a control",
            Reason::NoNowait => "no requests that do not wait",
            Reason::NoNowaitWrites => "no writes that do not wait",
            Reason::Device => "the device waits",
            Reason::CopyOnWrite => "copy-on-write",
            Reason::Grows => "the file gains blocks",
            Reason::ReadsFirst => "reads the page first",
            Reason::Times => "the file's times, once a tick",
        }
    }

    /// In full.
    pub fn explanation(self) -> &'static str {
        match self {
            Reason::Always => {
                "io_uring gives every sync to a kernel worker, whatever the file system. This library takes a thread of its own, and \
                 syncs at the same time share one call."
            }
            Reason::Forced => "These reads were forced on a kernel worker, to see that one can be seen.",
            Reason::NoNowait => {
                "The file refuses RWF_NOWAIT (EOPNOTSUPP): overlayfs, tmpfs and FUSE have no requests that do not wait, so that io_uring \
                 gives each to a kernel worker, cached or not. This library makes plain calls while they are quick, and else takes a \
                 thread of its own. A volume that is bound into a container is not under its overlay."
            }
            Reason::NoNowaitWrites => {
                "The file system has no writes through the page cache that do not wait (EOPNOTSUPP), so that io_uring gives each to a \
                 kernel worker. This library makes a plain call where that is not expected to wait."
            }
            Reason::Device => {
                "The device works on requests in their submission, or is made of parts of which one does (RAM disks, zram, some of device \
                 mapper): it takes none that do not wait, and io_uring gives each to a kernel worker."
            }
            Reason::CopyOnWrite => {
                "btrfs writes data to a new place, and has to reserve it first. Files with the attribute C (chattr +C, on an empty file or \
                 on the directory), or that had space allocated, are overwritten in place."
            }
            Reason::Grows => {
                "The file gains blocks, or space that was allocated becomes data: the file system changes its own records for that, which \
                 may wait. Files that were written once, with zeros, do not."
            }
            Reason::ReadsFirst => {
                "A part of a page is written, and the page is not cached: the rest of it is read from the device first."
            }
            Reason::Times => {
                "A write changes the file's times, at most once a clock tick. The first one after a tick cannot do that without waiting, and \
                 goes to a kernel worker."
            }
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
