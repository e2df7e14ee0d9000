//! Folders on file systems of our own, made for a test and taken away after it, panic or not.
//!
//! Loop devices are detached at once after mounting: they then go by themselves at the unmount,
//! even if this process is killed. What a killed process leaves mounted, the next one takes away
//! (the folder's name has the maker's process id).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use tempfile::TempDir;

const PREFIX: &str = "nowait-mount-";
const IMAGE_BYTES: u64 = 512 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// ext4 with a journal, which the root file system of a test machine may lack.
    Ext4,
    Xfs,
    Btrfs,
    Tmpfs,
    /// Lower, upper and work folder on the root file system.
    Overlay,
}

/// A test for each file system: calls `$test` with its [`Kind`].
#[allow(unused_macros)]
macro_rules! on_every_file_system {
    ($test:path) => {
        #[test]
        fn ext4_with_a_journal() {
            $test($crate::common::mounts::Kind::Ext4);
        }

        #[test]
        fn xfs() {
            $test($crate::common::mounts::Kind::Xfs);
        }

        #[test]
        fn btrfs() {
            $test($crate::common::mounts::Kind::Btrfs);
        }

        #[test]
        fn tmpfs() {
            $test($crate::common::mounts::Kind::Tmpfs);
        }

        #[test]
        fn overlayfs() {
            $test($crate::common::mounts::Kind::Overlay);
        }
    };
}
#[allow(unused_imports)]
pub(crate) use on_every_file_system;

/// Frees the room of removed files: it is free once the file system's journal, or its transaction,
/// has been written.
#[allow(dead_code)] // Not every test binary fills a disk.
pub(crate) fn free_what_was_removed(folder: &Path) {
    let folder = std::fs::File::open(folder).unwrap();
    // One that is full may say so once more.
    if let Err(errno) = rustix::fs::syncfs(folder) {
        assert!(matches!(errno, rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT), "{errno}");
    }
}

/// A folder on the root file system. (`/tmp` may be a tmpfs.)
pub(crate) fn temp_dir() -> TempDir {
    let parent = if fs::metadata("/var/tmp").is_ok() { "/var/tmp" } else { "/tmp" };
    tempfile::Builder::new().prefix("nowait-test-").tempdir_in(parent).unwrap()
}

/// A mounted file system; unmounted when dropped.
pub(crate) struct Mount {
    point: PathBuf,
    // Both after the unmount in `drop`.
    _below: Option<Box<Mount>>,
    _dir: TempDir,
}

/// A file system for an overlay's folders, where `folder` is in an overlay itself (as in many
/// containers): one takes no other's files to write to.
fn below_an_overlay(folder: &Path) -> Result<Option<Mount>, String> {
    const OVERLAY: rustix::fs::FsWord = 0x794c_7630;
    let system = rustix::fs::statfs(folder).map_err(|error| error.to_string())?;
    if system.f_type == OVERLAY { Mount::new(Kind::Ext4).map(Some) } else { Ok(None) }
}

impl Mount {
    /// Makes one, or says why not.
    pub(crate) fn new(kind: Kind) -> Result<Mount, String> {
        Mount::sized(kind, IMAGE_BYTES)
    }

    /// Makes one of so many bytes; an overlay has none of its own.
    pub(crate) fn sized(kind: Kind, bytes: u64) -> Result<Mount, String> {
        let (dir, point) = folder_and_point()?;
        let mut below = None;
        match kind {
            Kind::Ext4 => on_image(&["mkfs.ext4", "-q", "-O", "has_journal"], dir.path(), &point, bytes)?,
            Kind::Xfs => on_image(&["mkfs.xfs", "-q"], dir.path(), &point, bytes)?,
            Kind::Btrfs => on_image(&["mkfs.btrfs", "-q"], dir.path(), &point, bytes)?,
            Kind::Tmpfs => mount(&["-t", "tmpfs", "-o", &format!("size={bytes}"), "nowait-test"], &point)?,
            Kind::Overlay => {
                below = below_an_overlay(dir.path())?.map(Box::new);
                let base = below.as_ref().map_or(dir.path(), |below| below.path());
                let lower = base.join("lower");
                fs::create_dir(&lower).map_err(|error| error.to_string())?;
                overlay(&lower, base, &point)?;
            }
        }
        Ok(Mount { point, _below: below, _dir: dir })
    }

    /// Makes one; where that cannot be, says so and gives none, or fails if
    /// `NOWAIT_REQUIRE_MOUNTS=1`.
    pub(crate) fn or_skip(kind: Kind) -> Option<Mount> {
        Mount::sized_or_skip(kind, IMAGE_BYTES)
    }

    pub(crate) fn sized_or_skip(kind: Kind, bytes: u64) -> Option<Mount> {
        or_skip(&format!("{kind:?}"), Mount::sized(kind, bytes))
    }

    /// Makes a squashfs, which has no direct I/O, of a folder.
    fn squashfs(source: &Path) -> Result<Mount, String> {
        let (dir, point) = folder_and_point()?;
        let image = dir.path().join("image");
        run(&["mksquashfs", text(source), text(&image), "-quiet", "-no-progress"])?;
        mount_image(&image, &point)?;
        Ok(Mount { point, _below: None, _dir: dir })
    }

    /// Makes an overlay over a squashfs of `source`, as live systems and some containers have.
    #[allow(dead_code)] // Not every test binary mounts one.
    pub(crate) fn overlay_over_squashfs(source: &Path) -> Result<Mount, String> {
        let below = Mount::squashfs(source)?;
        let (dir, point) = folder_and_point()?;
        overlay(below.path(), dir.path(), &point)?;
        Ok(Mount { point, _below: Some(Box::new(below)), _dir: dir })
    }

    /// Makes ext4 with blocks of a page in an image that is there already, and leaves it every page
    /// that it has.
    pub(crate) fn ext4_in(image: &Path, journal: bool) -> Result<Mount, String> {
        let (dir, point) = folder_and_point()?;
        let journal = if journal { "has_journal" } else { "^has_journal" };
        run(&["mkfs.ext4", "-q", "-O", journal, "-b", "4096", "-E", "nodiscard,lazy_itable_init=1", text(image)])?;
        mount_image(image, &point)?;
        Ok(Mount { point, _below: None, _dir: dir })
    }

    /// Mounts an image of ext4 that is there already.
    pub(crate) fn of_ext4(image: &Path) -> Result<Mount, String> {
        let (dir, point) = folder_and_point()?;
        mount_image(image, &point)?;
        Ok(Mount { point, _below: None, _dir: dir })
    }

    /// A folder of a btrfs in which anybody may write, and whose files may take `bytes` together
    /// (`btrfs-quota(8)`).
    pub(crate) fn folder_with_quota(&self, bytes: u64) -> Result<PathBuf, String> {
        let folder = self.point.join("quota");
        run(&["btrfs", "quota", "enable", text(&self.point)])?;
        run(&["btrfs", "subvolume", "create", text(&folder)])?;
        run(&["btrfs", "qgroup", "limit", &bytes.to_string(), text(&folder)])?;
        for (path, mode) in [(self._dir.path(), 0o711), (&folder, 0o777)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(|error| error.to_string())?;
        }
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.point
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        unmount(&self.point);
    }
}

/// A file system that takes no change: calls that would make one wait in the kernel until this is
/// dropped, or until the time is up. (A process whose threads wait there cannot end.)
pub(crate) struct Frozen(Option<(mpsc::Sender<()>, JoinHandle<()>)>);

impl Frozen {
    pub(crate) fn new(mount: &Mount) -> Frozen {
        let point = mount.path().to_path_buf();
        run(&["fsfreeze", "--freeze", text(&point)]).unwrap();
        let (thaws, thawed) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let in_time =
                thawed.recv_timeout(super::at_most(Duration::from_secs(20))) != Err(RecvTimeoutError::Timeout);
            run(&["fsfreeze", "--unfreeze", text(&point)]).unwrap();
            assert!(in_time, "it was frozen for too long");
        });
        Frozen(Some((thaws, thread)))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let Some((thaws, thread)) = self.0.take() else { return };
        drop(thaws);
        let thawed = thread.join();
        assert!(thawed.is_ok() || std::thread::panicking(), "a frozen file system");
    }
}

/// A loop device of its own. Detached as soon as it is open, so that it goes when it is closed,
/// panic or not.
pub(crate) struct LoopDevice {
    path: PathBuf,
    _open: fs::File,
    _dir: Option<TempDir>,
}

impl LoopDevice {
    /// Makes one that holds `bytes` in logical blocks of `block_bytes`.
    pub(crate) fn new(bytes: &[u8], block_bytes: u32) -> Result<LoopDevice, String> {
        let (dir, _) = folder_and_point()?;
        let image = dir.path().join("image");
        fs::write(&image, bytes).map_err(|error| error.to_string())?;
        LoopDevice::over(&image, block_bytes, Some(dir))
    }

    /// Makes one of a file that is there.
    pub(crate) fn over(image: &Path, block_bytes: u32, dir: Option<TempDir>) -> Result<LoopDevice, String> {
        let block = block_bytes.to_string();
        let path = PathBuf::from(run(&["losetup", "--find", "--show", "--sector-size", &block, text(image)])?);
        let open = fs::File::open(&path);
        run(&["losetup", "--detach", text(&path)])?;
        Ok(LoopDevice { path, _open: open.map_err(|error| error.to_string())?, _dir: dir })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// A compressed disk in memory; removed when dropped.
pub(crate) struct Zram {
    path: PathBuf,
    number: String,
}

impl Zram {
    pub(crate) fn new(bytes: u64) -> Result<Zram, String> {
        if !super::child::is_root() {
            return Err("a device needs root".into());
        }
        let number = fs::read_to_string("/sys/class/zram-control/hot_add").map_err(|error| error.to_string())?;
        let number = number.trim().to_string();
        let zram = Zram { path: PathBuf::from(format!("/dev/zram{number}")), number };
        let size = format!("/sys/block/zram{}/disksize", zram.number);
        fs::write(size, bytes.to_string()).map_err(|error| error.to_string())?;
        Ok(zram)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        for _ in 0..50 {
            if fs::write("/sys/class/zram-control/hot_remove", &self.number).is_ok() {
                return;
            }
            // Reads that were abandoned a moment ago may still hold it open.
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("{} stays", self.path.display());
    }
}

/// Returns what was made. Where it could not be made, says so and returns none, or fails with
/// `NOWAIT_REQUIRE_MOUNTS=1`.
pub(crate) fn or_skip<T>(what: &str, made: Result<T, String>) -> Option<T> {
    match made {
        Ok(made) => Some(made),
        Err(reason) if std::env::var("NOWAIT_REQUIRE_MOUNTS").is_ok_and(|value| value == "1") => {
            panic!("{what}: {reason}")
        }
        Err(reason) => {
            eprintln!("skipped: {what}: {reason}");
            None
        }
    }
}

pub(crate) fn folder_and_point() -> Result<(TempDir, PathBuf), String> {
    if !super::child::is_root() {
        return Err("mounting needs root".into());
    }
    sweep();
    let prefix = format!("{PREFIX}{}-", std::process::id());
    let dir = tempfile::Builder::new().prefix(&prefix).tempdir_in("/var/tmp").map_err(|error| error.to_string())?;
    let point = dir.path().join("point");
    fs::create_dir(&point).map_err(|error| error.to_string())?;
    Ok((dir, point))
}

fn run(command: &[&str]) -> Result<String, String> {
    let output =
        Command::new(command[0]).args(&command[1..]).output().map_err(|error| format!("{}: {error}", command[0]))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_string());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary folders have plain names")
}

fn mount(what: &[&str], point: &Path) -> Result<(), String> {
    run(&[&["mount"], what, &[text(point)]].concat()).map(drop)
}

/// Mounts an overlay over `lower`, whose other folders are made in `base`.
fn overlay(lower: &Path, base: &Path, point: &Path) -> Result<(), String> {
    let [upper, work] = ["upper", "work"].map(|name| base.join(name));
    for folder in [&upper, &work] {
        fs::create_dir(folder).map_err(|error| error.to_string())?;
    }
    let options = format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    mount(&["-t", "overlay", "-o", &options, "overlay"], point)
}

fn on_image(mkfs: &[&str], dir: &Path, point: &Path, bytes: u64) -> Result<(), String> {
    let image = dir.join("image");
    let sparse = fs::File::create(&image).and_then(|file| file.set_len(bytes));
    sparse.map_err(|error| error.to_string())?;
    run(&[mkfs, &[text(&image)]].concat())?;
    mount_image(&image, point)
}

fn mount_image(image: &Path, point: &Path) -> Result<(), String> {
    let device = run(&["losetup", "--find", "--show", text(image)])?;
    let mounted = mount(&[&device], point);
    // A mounted device is let go at the unmount, one that is not now.
    let detached = run(&["losetup", "--detach", &device]);
    mounted.and(detached.map(drop))
}

pub(crate) fn unmount(point: &Path) {
    for _ in 0..50 {
        if run(&["umount", text(point)]).is_ok() {
            return;
        }
        // Reads that were abandoned a moment ago may still hold a file open.
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = run(&["umount", "--lazy", text(point)]);
}

/// Takes away what processes that no longer exist left mounted.
fn sweep() {
    for entry in fs::read_dir("/var/tmp").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let maker = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next()?.parse::<u32>().ok());
        if maker.is_some_and(|maker| !Path::new(&format!("/proc/{maker}")).exists()) {
            let point = entry.path().join("point");
            let _ = run(&["umount", "--lazy", text(&point)]);
            // Not through a mount that would not go.
            let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
            if !mounts.contains(text(&point)) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}
