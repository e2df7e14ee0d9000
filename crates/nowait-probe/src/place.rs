//! A file's file system and device, as the kernel reports them. Changes nothing, and omits
//! properties that the kernel does not report.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, StatxFlags};

/// Properties of a file's file system and device, as reported by the kernel.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Place {
    /// Type of the file system, such as `ext4`.
    pub file_system: Option<String>,
    /// Options of the mount, then those of the file system.
    pub mount_options: Option<String>,
    /// Block device of the file system, if it has one.
    pub device: Option<Device>,
    /// Attributes of the file or directory that affect writes.
    pub attributes: Vec<&'static str>,
}

/// Sizes of writes that a power failure leaves complete or not made at all (`RWF_ATOMIC`;
/// `statx(2)`).
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicWrites {
    /// Minimum size in bytes.
    pub bytes_min: u32,
    /// Maximum size in bytes.
    pub bytes_max: u32,
    /// Maximum number of memory segments of one write.
    pub segments_max: u32,
}

/// Block device and its queue.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Device {
    /// Name of the device, such as `nvme0n1p2`.
    pub name: String,
    /// I/O scheduler of its queue.
    pub scheduler: Option<String>,
    /// Number of requests that its queue holds; further submissions sleep.
    pub requests_max: Option<u64>,
    /// Size of the kernel's read-ahead, in bytes.
    pub read_ahead_bytes: Option<u64>,
    /// Write cache: with `write back`, a power failure before a flush loses written data; with
    /// `write through` it does not.
    pub write_cache: Option<String>,
    /// True if completions can be polled (`IORING_SETUP_IOPOLL`).
    pub polls: Option<bool>,
    /// Minimum size of a request, in bytes.
    pub logical_block_bytes: Option<u64>,
    /// Maximum size of a write that the device itself never tears, in bytes.
    pub atomic_write_bytes_max: Option<u64>,
}

/// `STATX_MNT_ID` (5.8) and `STATX_WRITE_ATOMIC` (6.11) of linux/stat.h.
const MOUNT_NUMBER: u32 = 0x1000;
const WRITE_ATOMIC: u32 = 0x1_0000;

impl Place {
    /// Returns the properties of an open file, directory or device; `O_PATH` suffices. Changes
    /// nothing, and needs no privilege. Properties that the system does not report are omitted.
    /// Only [`probe`](super::probe()) sets [`attributes`](Place::attributes).
    pub fn of(file: impl AsFd) -> Place {
        let asked = StatxFlags::BASIC_STATS | StatxFlags::from_bits_retain(MOUNT_NUMBER);
        let Ok(stat) = rustix::fs::statx(&file, "", AtFlags::EMPTY_PATH, asked) else { return Place::default() };
        let is_device = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::BlockDevice;
        if is_device {
            let number = format!("{}:{}", stat.stx_rdev_major, stat.stx_rdev_minor);
            return Place { device: Device::numbered(&number), ..Place::default() };
        }
        let mount = (stat.stx_mask & MOUNT_NUMBER != 0).then(|| Mount::numbered(stat.stx_mnt_id)).flatten();
        let number = format!("{}:{}", stat.stx_dev_major, stat.stx_dev_minor);
        // The number of a file system over several devices belongs to none of them. Then the
        // mount's source names the device.
        let device = Device::numbered(&number).or_else(|| Device::at(&mount.as_ref()?.source));
        Place {
            file_system: mount.as_ref().map(|mount| mount.file_system.clone()),
            mount_options: mount.map(|mount| mount.options),
            device,
            attributes: Vec::new(),
        }
    }
}

impl AtomicWrites {
    /// Returns the sizes that `statx(2)` reports.
    pub(super) fn of(file: impl AsFd) -> Option<AtomicWrites> {
        let asked = StatxFlags::from_bits_retain(WRITE_ATOMIC);
        let stat = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, asked).ok()?;
        // The mask may be set although the sizes are zero (ext4, 6.18).
        (stat.stx_mask & WRITE_ATOMIC != 0 && stat.stx_atomic_write_unit_max > 0).then_some(AtomicWrites {
            bytes_min: stat.stx_atomic_write_unit_min,
            bytes_max: stat.stx_atomic_write_unit_max,
            segments_max: stat.stx_atomic_write_segments_max,
        })
    }
}

impl Device {
    fn numbered(number: &str) -> Option<Device> {
        Device::at(Path::new("/sys/dev/block").join(number))
    }

    /// Finds a device by its directory under /sys, or its node under /dev.
    fn at(path: impl AsRef<Path>) -> Option<Device> {
        let name = fs::canonicalize(path).ok()?.file_name()?.to_str()?.to_owned();
        let folder = fs::canonicalize(Path::new("/sys/class/block").join(&name)).ok()?;
        // A partition uses the queue of its disk.
        let queue = [folder.join("queue"), folder.parent()?.join("queue")].into_iter().find(|queue| queue.is_dir());
        let text = |file: &str| line(queue.as_ref()?.join(file));
        let number = |file: &str| text(file)?.parse::<u64>().ok();
        Some(Device {
            scheduler: text("scheduler").map(|all| chosen(&all).to_owned()),
            requests_max: number("nr_requests"),
            read_ahead_bytes: number("read_ahead_kb").map(|kib| kib << 10),
            write_cache: text("write_cache"),
            polls: number("io_poll").map(|polls| polls != 0),
            logical_block_bytes: number("logical_block_size"),
            atomic_write_bytes_max: number("atomic_write_unit_max_bytes"),
            name,
        })
    }
}

pub(super) fn line(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// Returns the word in brackets: for `none [mq-deadline] kyber`, `mq-deadline`.
fn chosen(all: &str) -> &str {
    all.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or(all, |(name, _)| name)
}

/// One line of `/proc/self/mountinfo`.
#[derive(Debug, PartialEq)]
struct Mount {
    file_system: String,
    source: PathBuf,
    options: String,
}

impl Mount {
    fn numbered(number: u64) -> Option<Mount> {
        let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let number = number.to_string();
        table.lines().find(|line| line.split(' ').next() == Some(&number)).and_then(Mount::parse)
    }

    /// `36 35 98:0 /root /point own-options shared:1 - type source options`
    fn parse(line: &str) -> Option<Mount> {
        let (left, right) = line.split_once(" - ")?;
        let own = left.split(' ').nth(5)?;
        let mut right = right.split(' ');
        let (file_system, source, all) = (right.next()?, right.next()?, right.next()?);
        let options = if own == all { own.to_owned() } else { format!("{own};{all}") };
        Some(Mount { file_system: file_system.to_owned(), source: source.into(), options })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_line_is_parsed() {
        let line = "36 35 98:0 /mnt1 /mnt2 rw,noatime shared:1 master:2 - ext3 /dev/root rw,errors=continue";
        let mount = Mount::parse(line).unwrap();
        let options = "rw,noatime;rw,errors=continue".to_owned();
        assert_eq!(mount, Mount { file_system: "ext3".to_owned(), source: "/dev/root".into(), options });
        assert_eq!(Mount::parse("36 35 98:0 /mnt1"), None);
    }

    #[test]
    fn the_scheduler_in_use_is_the_one_in_brackets() {
        assert_eq!((chosen("none [mq-deadline] kyber"), chosen("none")), ("mq-deadline", "none"));
    }

    #[test]
    fn a_file_is_somewhere() {
        let place = Place::of(fs::File::open(".").unwrap());
        assert!(place.file_system.is_some() && place.mount_options.is_some(), "{place:?}");
        assert_eq!(Place::of(fs::File::open("/proc/self/status").unwrap()).device, None);
    }
}
