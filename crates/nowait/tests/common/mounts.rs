//! Folders on file systems of our own, made for a test and taken away after it, panic or not.
//!
//! Loop devices are detached at once after mounting: they then go by themselves at the unmount, even if this process is
//! killed. What a killed process leaves mounted, the next one takes away (the folder's name has the maker's process id).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
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

/// A folder on the root file system. (`/tmp` may be a tmpfs.)
pub(crate) fn temp_dir() -> TempDir {
    let parent = if fs::metadata("/var/tmp").is_ok() { "/var/tmp" } else { "/tmp" };
    tempfile::Builder::new().prefix("nowait-test-").tempdir_in(parent).unwrap()
}

/// A mounted file system; unmounted when dropped.
pub(crate) struct Mount {
    point: PathBuf,
    // Removed after the unmount in `drop`.
    _dir: TempDir,
}

impl Mount {
    /// Makes one, or says why not.
    pub(crate) fn new(kind: Kind) -> Result<Mount, String> {
        Mount::sized(kind, IMAGE_BYTES)
    }

    /// Makes one of so many bytes; an overlay has none of its own.
    pub(crate) fn sized(kind: Kind, bytes: u64) -> Result<Mount, String> {
        if !super::child::is_root() {
            return Err("mounting needs root".into());
        }
        sweep();
        let prefix = format!("{PREFIX}{}-", std::process::id());
        let dir = tempfile::Builder::new().prefix(&prefix).tempdir_in("/var/tmp").map_err(|error| error.to_string())?;
        let [point, lower, upper, work] = ["point", "lower", "upper", "work"].map(|name| dir.path().join(name));
        for folder in [&point, &lower, &upper, &work] {
            fs::create_dir(folder).map_err(|error| error.to_string())?;
        }
        match kind {
            Kind::Ext4 => on_loop(&["mkfs.ext4", "-q", "-O", "has_journal"], dir.path(), &point, bytes)?,
            Kind::Xfs => on_loop(&["mkfs.xfs", "-q"], dir.path(), &point, bytes)?,
            Kind::Btrfs => on_loop(&["mkfs.btrfs", "-q"], dir.path(), &point, bytes)?,
            Kind::Tmpfs => mount(&["-t", "tmpfs", "-o", &format!("size={bytes}"), "nowait-test"], &point)?,
            Kind::Overlay => {
                let [lower, upper, work] = [lower, upper, work].map(|path| path.display().to_string());
                let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
                mount(&["-t", "overlay", "-o", &options, "overlay"], &point)?;
            }
        }
        Ok(Mount { point, _dir: dir })
    }

    /// Makes one; where that cannot be, says so and gives none, or fails if `NOWAIT_REQUIRE_MOUNTS=1`.
    pub(crate) fn or_skip(kind: Kind) -> Option<Mount> {
        Mount::sized_or_skip(kind, IMAGE_BYTES)
    }

    pub(crate) fn sized_or_skip(kind: Kind, bytes: u64) -> Option<Mount> {
        match Mount::sized(kind, bytes) {
            Ok(mount) => Some(mount),
            Err(reason) if std::env::var("NOWAIT_REQUIRE_MOUNTS").is_ok_and(|value| value == "1") => {
                panic!("{kind:?}: {reason}")
            }
            Err(reason) => {
                eprintln!("skipped: {kind:?}: {reason}");
                None
            }
        }
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

fn on_loop(mkfs: &[&str], dir: &Path, point: &Path, bytes: u64) -> Result<(), String> {
    let image = dir.join("image");
    let sparse = fs::File::create(&image).and_then(|file| file.set_len(bytes));
    sparse.map_err(|error| error.to_string())?;
    run(&[mkfs, &[text(&image)]].concat())?;
    let device = run(&["losetup", "--find", "--show", text(&image)])?;
    let mounted = mount(&[&device], point);
    // A mounted device is let go at the unmount, one that is not now.
    let detached = run(&["losetup", "--detach", &device]);
    mounted.and(detached.map(drop))
}

fn unmount(point: &Path) {
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
