//! A tree of all that copies get wrong.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, FileType, Mode, OFlags, makedev, mkdirat, mknodat, openat};

use super::{child, noise};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Bytes of a path of the tree's deepest file, from the tree's root.
pub(crate) const DEEPEST: usize = 4000;

/// Makes the tree in a directory that is there and empty. What needs root (owners, devices,
/// attributes of the system) is left out elsewhere.
pub(crate) fn make(root: &Path) {
    sizes(&root.join("sizes"));
    holes(&root.join("holes"));
    names(&root.join("names"));
    links(&root.join("links"));
    modes(&root.join("modes"));
    special(&root.join("special"));
    attributes(&root.join("attributes"));
    deep(root, DEEPEST);
    fs::create_dir(root.join("empty")).unwrap();
    age(root);
}

fn write(path: &Path, len: usize) {
    let seed = path.as_os_str().as_bytes().iter().fold(0, |sum: u64, &byte| sum * 31 % 1_000_003 + u64::from(byte));
    fs::write(path, noise(seed, len)).unwrap();
}

fn sizes(dir: &Path) {
    fs::create_dir(dir).unwrap();
    let edges = [4 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, MIB, 4 * MIB];
    for len in [0, 1, 511, 512, 513, 2 * MIB + 5, 9 * MIB + 777] {
        write(&dir.join(len.to_string()), len);
    }
    for len in edges.into_iter().flat_map(|edge| [edge - 1, edge, edge + 1]) {
        write(&dir.join(len.to_string()), len);
    }
    fs::write(dir.join("zeros"), vec![0; MIB]).unwrap();
}

/// A file of this size with data in these ranges.
fn sparse(path: &Path, len: u64, data: &[(u64, usize)]) {
    let file = File::create(path).unwrap();
    file.set_len(len).unwrap();
    for &(offset, len) in data {
        file.write_all_at(&noise(offset + 1, len), offset).unwrap();
    }
}

fn holes(dir: &Path) {
    fs::create_dir(dir).unwrap();
    let (kib, mib) = (KIB as u64, MIB as u64);
    sparse(&dir.join("nothing else"), 3 * mib + 100, &[]);
    sparse(&dir.join("at its start"), 2 * mib, &[(mib, MIB)]);
    sparse(&dir.join("at its end"), 2 * mib, &[(0, MIB)]);
    sparse(&dir.join("at both ends"), 3 * mib, &[(mib, MIB)]);
    sparse(&dir.join("in the middle"), 3 * mib, &[(0, MIB), (2 * mib, MIB)]);
    sparse(&dir.join("end within a block"), 2 * mib + 1234, &[(0, 64 * KIB)]);
    sparse(&dir.join("data within a block"), mib, &[(100 * kib + 100, 100)]);
    let combed: Vec<(u64, usize)> = (0..64).map(|tooth| (tooth * 128 * kib, 64 * KIB)).collect();
    sparse(&dir.join("comb"), 64 * 128 * kib, &combed);
    // A copy that fills it is to fail soon.
    let system = rustix::fs::statvfs(dir).unwrap();
    if system.f_blocks * system.f_frsize < 1 << 30 {
        sparse(&dir.join("larger than the disk"), 1 << 40, &[(1 << 39, 64 * KIB), ((1 << 40) - 4096, 4 * KIB)]);
    }
}

fn names(dir: &Path) {
    fs::create_dir(dir).unwrap();
    let longest = "n".repeat(255);
    let most_letters = "\u{00fc}".repeat(127);
    for name in [
        &b"not \xff\xfe UTF-8"[..],
        b"\xc3",
        b"two\nlines",
        b"-rf",
        b"--help",
        b" blank ",
        b"tab\there",
        b"back\\slash",
        b"quote'\"`$(x)",
        b"star*?[a]",
        b"...",
        b".hidden",
        b"~",
        longest.as_bytes(),
        most_letters.as_bytes(),
    ] {
        write(&dir.join(OsStr::from_bytes(name)), 100 + name.len());
    }
    for name in [&b"folder \xff"[..], &[b'd'; 255]] {
        let below = dir.join(OsStr::from_bytes(name));
        fs::create_dir(&below).unwrap();
        write(&below.join("file"), 10);
    }
    // Differ by case alone.
    fs::create_dir(dir.join("case")).unwrap();
    for name in ["readme", "README", "ReadMe"] {
        write(&dir.join("case").join(name), 30);
    }
}

fn links(dir: &Path) {
    fs::create_dir_all(dir.join("far/away")).unwrap();
    write(&dir.join("one of three"), 70_000);
    fs::hard_link(dir.join("one of three"), dir.join("another of three")).unwrap();
    fs::hard_link(dir.join("one of three"), dir.join("far/away/third of three")).unwrap();
    write(&dir.join("far/empty, first"), 0);
    fs::hard_link(dir.join("far/empty, first"), dir.join("empty, second")).unwrap();

    symlink("one of three", dir.join("to a file")).unwrap();
    symlink("far", dir.join("to a directory")).unwrap();
    symlink("/nonexistent/place", dir.join("to nothing")).unwrap();
    symlink("to itself", dir.join("to itself")).unwrap();
    symlink("pong", dir.join("ping")).unwrap();
    symlink("ping", dir.join("pong")).unwrap();
    symlink("..", dir.join("up")).unwrap();
    symlink(OsStr::from_bytes(b"not \xff UTF-8"), dir.join("to no text")).unwrap();
    symlink("t".repeat(1000), dir.join("to a long name")).unwrap();
    fs::hard_link(dir.join("to nothing"), dir.join("to nothing, too")).unwrap();
}

fn modes(dir: &Path) {
    fs::create_dir(dir).unwrap();
    for mode in [0o000, 0o400, 0o444, 0o600, 0o644, 0o755, 0o777, 0o1644, 0o2755, 0o4711, 0o4755, 0o6755] {
        let (file, below) = (dir.join(format!("file {mode:o}")), dir.join(format!("folder {mode:o}")));
        write(&file, 200);
        fs::create_dir(&below).unwrap();
        write(&below.join("in it"), 20);
        if child::is_root() {
            let (owner, group) = (1000 + mode, 2000 + mode);
            chown(&file, Some(owner), Some(group)).unwrap();
            chown(&below, Some(owner), Some(group)).unwrap();
        }
        // The owner's bits stay for those who are not root: they could not copy the file.
        let mode = if child::is_root() { mode } else { mode | 0o700 };
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        fs::set_permissions(&below, fs::Permissions::from_mode(mode)).unwrap();
    }
    if child::is_root() {
        symlink("owner", dir.join("link of somebody")).unwrap();
        std::os::unix::fs::lchown(dir.join("link of somebody"), Some(1234), Some(4321)).unwrap();
    }
}

fn special(dir: &Path) {
    fs::create_dir(dir).unwrap();
    let mode = Mode::from_raw_mode(0o640);
    let make = |name: &str, kind, device| mknodat(CWD, dir.join(name), kind, mode, device).unwrap();
    make("fifo", FileType::Fifo, 0);
    fs::hard_link(dir.join("fifo"), dir.join("same fifo")).unwrap();
    let _ = drop_socket(&dir.join("socket"));
    if child::is_root() {
        make("character device", FileType::CharacterDevice, makedev(1, 3));
        make("block device", FileType::BlockDevice, makedev(250, 77));
        chown(dir.join("fifo"), Some(7), Some(8)).unwrap();
        fs::set_permissions(dir.join("character device"), fs::Permissions::from_mode(0o4666)).unwrap();
    }
}

/// Binds it by a short name: an address holds 107 bytes.
fn drop_socket(path: &Path) -> std::io::Result<()> {
    let short = tempfile::tempdir()?;
    symlink(path.parent().unwrap(), short.path().join("d"))?;
    drop(UnixListener::bind(short.path().join("d").join(path.file_name().unwrap()))?);
    Ok(())
}

fn run(program: &str, arguments: &[&str], path: &Path) {
    let output = Command::new(program).args(arguments).arg("--").arg(path).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Whether attributes of users can be set here: ramfs has none, and a kernel may lack them on
/// tmpfs.
fn has_attributes(dir: &Path) -> bool {
    let set = |name| Command::new("setfattr").args(["-n", name, "-v", "1"]).arg(dir).output();
    set("user.try").is_ok_and(|output| output.status.success())
        && Command::new("setfattr").args(["-x", "user.try"]).arg(dir).status().unwrap().success()
}

fn attributes(dir: &Path) {
    fs::create_dir(dir).unwrap();
    if !has_attributes(dir) {
        return;
    }
    let file = |name: &str| {
        let path = dir.join(name);
        write(&path, 1000);
        path
    };
    let many = file("many");
    for number in 0..20 {
        run("setfattr", &["-n", &format!("user.number {number}"), "-v", &format!("value {number}")], &many);
    }
    run("setfattr", &["-n", "user.empty"], &file("without a value"));
    run("setfattr", &["-n", "user.bytes", "-v", "0x00ff0a0d00"], &file("bytes"));
    run("setfattr", &["-n", "user.large", "-v", &"v".repeat(3000)], &file("large"));
    run("setfattr", &["-n", "user.of a directory", "-v", "x"], dir);

    let listed = file("list");
    run("setfacl", &["-m", "u:1001:r--,g:1002:rwx,m::rw-"], &listed);
    let listed = file("list and setuid");
    if child::is_root() {
        chown(&listed, Some(1001), Some(1001)).unwrap();
    }
    fs::set_permissions(&listed, fs::Permissions::from_mode(0o4750)).unwrap();
    run("setfacl", &["-m", "u:1003:r-x"], &listed);
    let folder = dir.join("with a list for new files");
    fs::create_dir(&folder).unwrap();
    // Files that are created in it get the list: those of the source lack it, so copies must, too.
    write(&folder.join("before"), 10);
    run("setfacl", &["-d", "-m", "u:1004:rwx,g::---,o::---"], &folder);
    write(&folder.join("after"), 10);
    fs::create_dir(folder.join("below")).unwrap();
    let folder = dir.join("group of the folder");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o2775)).unwrap();
    write(&folder.join("file"), 10);

    if child::is_root() {
        chown(&folder, Some(0), Some(555)).unwrap();
        run("setfattr", &["-n", "trusted.mark", "-v", "t"], &file("trusted"));
        // cap_net_raw=p. A later change of the owner would take it away.
        let capable = file("capability");
        chown(&capable, Some(1005), Some(1005)).unwrap();
        let capability = "0x0100000200200000000000000000000000000000";
        run("setfattr", &["-n", "security.capability", "-v", capability], &capable);
    }
}

/// Directories in each other until a file in the last has a path of so many bytes below `root`;
/// made by descriptors, as no path of the whole can be longer than `PATH_MAX`.
pub(crate) fn deep(root: &Path, bytes: usize) {
    const NAME: usize = 99;
    let file = "deepest file";
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let mut dir = openat(CWD, root, flags, Mode::empty()).unwrap();
    let mut left = bytes - file.len();
    while left > 0 {
        // Each takes a slash, too. The last name may be as short as one letter.
        let take = if left > 2 * (NAME + 1) { NAME } else { (left - 1).min(NAME + left % 2).min(255) };
        let take = if left - (take + 1) == 1 { take - 1 } else { take };
        let name = "p".repeat(take);
        mkdirat(&dir, &*name, Mode::from_raw_mode(0o755)).unwrap();
        dir = openat(&dir, &*name, flags, Mode::empty()).unwrap();
        left -= take + 1;
    }
    let created = openat(&dir, file, OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::from_raw_mode(0o644));
    File::from(created.unwrap()).write_all_at(&noise(7, 5000), 0).unwrap();
}

/// Times of all that no copy made just now could have. Access is later than all else: a look at a
/// file then changes none (`relatime`).
pub(crate) fn age(root: &Path) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let later = now + Duration::from_secs(1800);
    let mut number = 0;
    // By names from `find`, which knows paths of any length, without following links.
    let list = Command::new("find").args([".", "-depth", "-print0"]).current_dir(root).output().unwrap();
    assert!(list.status.success());
    for name in list.stdout.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        number += 1;
        let time = |seconds: Duration, nanos: u32| rustix::fs::Timespec {
            tv_sec: i64::try_from(seconds.as_secs()).unwrap(),
            tv_nsec: nanos.into(),
        };
        let times = rustix::fs::Timestamps {
            last_access: time(later, 7 * number),
            last_modification: time(
                Duration::from_secs(1_000_000_000 + u64::from(number) * 86_400),
                999_999_999 - number,
            ),
        };
        let path: PathBuf = [Path::new("."), Path::new(OsStr::from_bytes(name))].iter().collect();
        let dir = openat(CWD, root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        rustix::fs::utimensat(&dir, &path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}
