//! File systems of our own to write on, made for a run and gone after it, however it ends.
//!
//! Nothing is attached to the tree of folders: `fsmount(2)` (Linux 5.2) gives a descriptor for the
//! root of a mount that has no place, and closing it unmounts. The image under it has lost its name
//! before it is formatted, and the loop device is detached as soon as it is mounted, so that it
//! goes with the mount. A process that is killed leaves nothing behind, but for the folder of an
//! overlay.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen};

use crate::machine::testfile;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// With a journal, which growing and syncing a file pay for.
    Ext4,
    Xfs,
    /// Copy on write, with checksums.
    Btrfs,
    /// btrfs with `chattr +C`: neither of the two.
    BtrfsNocow,
    Tmpfs,
    /// Over folders on the disk that is measured.
    Overlay,
}

impl Kind {
    pub const ALL: [Self; 6] = [Self::Ext4, Self::Xfs, Self::Btrfs, Self::BtrfsNocow, Self::Tmpfs, Self::Overlay];

    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::BtrfsNocow => "btrfs-nocow",
            Self::Tmpfs => "tmpfs",
            Self::Overlay => "overlayfs",
        }
    }
}

/// A mounted file system. Unmounted when it is dropped and its files are closed.
#[derive(Debug)]
pub struct Mount {
    /// Leads through this process's descriptor, as the mount has no path of its own.
    folder: PathBuf,
    _root: OwnedFd,
    /// Removed after the mount above it.
    _folders: Option<Folders>,
}

impl Mount {
    /// Makes one for files of `bytes` in all, its image (if it has one) in `dir`; or says why it
    /// cannot be had.
    pub fn new(kind: Kind, dir: &Path, bytes: u64) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("to mount takes root".to_owned());
        }
        let on_image = |filesystem: &str, mkfs: &[&str]| Self::on_image(filesystem, mkfs, dir, bytes);
        match kind {
            // All tables at once: a thread that writes them later would disturb the measuring.
            Kind::Ext4 => on_image("ext4", &["mkfs.ext4", "-q", "-F", "-O", "has_journal", "-E", "lazy_itable_init=0"]),
            Kind::Xfs => on_image("xfs", &["mkfs.xfs", "-q", "-f"]),
            Kind::Btrfs => on_image("btrfs", &["mkfs.btrfs", "-q", "-f"]),
            Kind::BtrfsNocow => {
                let mount = on_image("btrfs", &["mkfs.btrfs", "-q", "-f"])?;
                without_copy_on_write(&mount.folder)?;
                Ok(mount)
            }
            Kind::Tmpfs => Self::with_options("tmpfs", &[("size", &(bytes + (16 << 20)).to_string())], None),
            Kind::Overlay => {
                let folders = Folders::new(dir)?;
                let [lower, upper, work] = ["lower", "upper", "work"].map(|name| folders.make(name));
                let options = [("lowerdir", &*lower?), ("upperdir", &*upper?), ("workdir", &*work?)];
                Self::with_options("overlay", &options, Some(folders))
            }
        }
    }

    /// The folder to write in.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn on_image(filesystem: &str, mkfs: &[&str], dir: &Path, bytes: u64) -> Result<Self, String> {
        let image = testfile::create_nameless(dir).map_err(|error| error.to_string())?;
        image.set_len(image_bytes(bytes)).map_err(|error| format!("the image in {}: {error}", dir.display()))?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), image.as_raw_fd());
        run(&[mkfs, &[&path]].concat())?;
        let device = attach(&path)?;
        let mounted = Self::with_options(filesystem, &[("source", &device)], None);
        // One that is mounted goes with the mount, one that is not goes now.
        let detached = run(&["losetup", "--detach", &device]);
        mounted.and_then(|mount| detached.map(|_| mount))
    }

    fn with_options(filesystem: &str, options: &[(&str, &str)], folders: Option<Folders>) -> Result<Self, String> {
        let failed = |error: rustix::io::Errno| format!("mounting {filesystem}: {error}");
        let context = fsopen(filesystem, FsOpenFlags::FSOPEN_CLOEXEC).map_err(failed)?;
        for &(key, value) in options {
            fsconfig_set_string(context.as_fd(), key, value).map_err(failed)?;
        }
        fsconfig_create(context.as_fd()).map_err(failed)?;
        let root = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).map_err(failed)?;
        let folder = PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd()));
        Ok(Self { folder, _root: root, _folders: folders })
    }
}

/// Sparse, and large enough that no file system runs short of free space, which would slow it down.
fn image_bytes(bytes: u64) -> u64 {
    (2 * bytes + (1 << 30)).next_multiple_of(1 << 20)
}

/// A loop device over the file, past the page cache where that can be: else everything is cached
/// twice.
fn attach(path: &str) -> Result<String, String> {
    let direct = run(&["losetup", "--find", "--show", "--direct-io=on", path]);
    direct.or_else(|_| run(&["losetup", "--find", "--show", path]))
}

/// New files of a folder inherit it.
fn without_copy_on_write(folder: &Path) -> Result<(), String> {
    let open = File::open(folder).map_err(|error| error.to_string())?;
    let set = ioctl_getflags(&open).and_then(|flags| ioctl_setflags(&open, flags | IFlags::NOCOW));
    set.map_err(|error| format!("chattr +C: {error}"))
}

/// Folders of our own below `dir`, removed when dropped.
#[derive(Debug)]
struct Folders(PathBuf);

impl Folders {
    fn new(dir: &Path) -> Result<Self, String> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = dir.join(format!(".nowait-bench-{}-folders-{number}", std::process::id()));
        fs::create_dir(&path).map_err(|error| format!("create {}: {error}", path.display()))?;
        Ok(Self(path))
    }

    fn make(&self, name: &str) -> Result<String, String> {
        let path = self.0.join(name);
        fs::create_dir(&path).map_err(|error| format!("create {}: {error}", path.display()))?;
        let path = path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))?;
        path.into_os_string().into_string().map_err(|path| format!("{} is not UTF-8", Path::new(&path).display()))
    }
}

impl Drop for Folders {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the output of the command, or why it failed.
fn run(command: &[&str]) -> Result<String, String> {
    let (name, arguments) = command.split_first().ok_or("no command")?;
    let output = Command::new(OsStr::new(name)).args(arguments).output();
    let output = output.map_err(|error| format!("{name}: {error}; install it, or put its folder into PATH"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    // The last line says most, and notes are of one line.
    let message = String::from_utf8_lossy(&output.stderr);
    let last = message.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no message");
    Err(format!("{name}: {}: {last}", output.status))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn each_file_system_can_be_written_and_leaves_nothing() {
        let dir = PathBuf::from(format!("/var/tmp/nowait-bench-mounts-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        for kind in Kind::ALL {
            match Mount::new(kind, &dir, 1 << 20) {
                Ok(mount) => {
                    let file = testfile::create_nameless(mount.folder()).unwrap();
                    file.write_all_at(&[7; 4096], 0).unwrap();
                    file.sync_all().unwrap();
                }
                Err(why) => eprintln!("skipped: {}: {why}", kind.name()),
            }
            assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "{}", kind.name());
        }
        fs::remove_dir(&dir).unwrap();
    }
}
