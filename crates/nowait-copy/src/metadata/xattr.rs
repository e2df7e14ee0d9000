//! Extended attributes, ACLs and capabilities among them, as they are stored.

use std::cell::RefCell;
use std::ffi::{CStr, OsStr};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::error::{Failure, FailureKind, Operation, shown};

const ACCESS_ACL: &CStr = c"system.posix_acl_access";
const DEFAULT_ACL: &CStr = c"system.posix_acl_default";

/// Longest list of names, and longest value, that the kernel has.
const LONGEST: usize = 64 << 10;

thread_local! {
    /// List of names, and a value.
    static BUFFERS: RefCell<(Vec<u8>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// Something that has attributes.
#[derive(Clone, Copy)]
pub(super) enum Node<'a> {
    /// An open file.
    File(BorrowedFd<'a>),
    /// An entry that may be a symbolic link, by a path through /proc.
    Link(&'a Path),
    /// A place (`O_PATH`), by its descriptor's path in /proc.
    Descriptor(&'a Path),
}

impl Node<'_> {
    fn list(self, names: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Node::File(file) => rustix::fs::flistxattr(file, names),
            Node::Link(path) => rustix::fs::llistxattr(path, names),
            Node::Descriptor(path) => rustix::fs::listxattr(path, names),
        }
    }

    fn get(self, name: &CStr, value: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Node::File(file) => rustix::fs::fgetxattr(file, name, value),
            Node::Link(path) => rustix::fs::lgetxattr(path, name, value),
            Node::Descriptor(path) => rustix::fs::getxattr(path, name, value),
        }
    }

    fn set(self, name: &CStr, value: &[u8]) -> Result<(), Errno> {
        match self {
            Node::File(file) => rustix::fs::fsetxattr(file, name, value, XattrFlags::empty()),
            Node::Link(path) => rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()),
            Node::Descriptor(path) => rustix::fs::setxattr(path, name, value, XattrFlags::empty()),
        }
    }
}

/// Outcome for the attributes of a file.
#[derive(Default)]
pub(super) struct Copied {
    /// The source has an access ACL, and the target too now.
    pub has_acl: bool,
    /// The same for the default ACL of a directory.
    pub has_default_acl: bool,
    /// One that could not be kept.
    pub lost: Option<Failure>,
}

/// Copies the attributes of `source` to `target`.
pub(super) fn copy(source: Node<'_>, target: Node<'_>, target_path: &Path) -> Copied {
    BUFFERS.with_borrow_mut(|(names, value)| {
        if names.is_empty() {
            names.resize(1024, 0);
        }
        let length = match source.list(names) {
            Err(Errno::RANGE) => {
                names.resize(LONGEST, 0);
                source.list(names)
            }
            listed => listed,
        };
        match length {
            Ok(0) => Copied::default(),
            Ok(length) => copy_named(source, target, target_path, &names[..length], value),
            // The source's file system has none.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Copied::default(),
            Err(errno) => {
                Copied { lost: Some(lost(target_path, errno, "the source's cannot be listed")), ..Copied::default() }
            }
        }
    })
}

fn copy_named(source: Node<'_>, target: Node<'_>, path: &Path, mut names: &[u8], value: &mut Vec<u8>) -> Copied {
    let mut copied = Copied::default();
    while let Ok(name) = CStr::from_bytes_until_nul(names) {
        names = &names[name.count_bytes() + 1..];
        if value.is_empty() {
            value.resize(LONGEST, 0);
        }
        let done = source.get(name, value).and_then(|length| target.set(name, &value[..length]));
        match done {
            Ok(()) => {
                copied.has_acl |= name == ACCESS_ACL;
                copied.has_default_acl |= name == DEFAULT_ACL;
            }
            // Removed meanwhile.
            Err(Errno::NODATA) => {}
            Err(_) if is_privileged(name) => {}
            Err(errno) => {
                copied.lost.get_or_insert_with(|| {
                    lost(path, errno, &shown(Path::new(OsStr::from_bytes(name.to_bytes()))).to_string())
                });
            }
        }
    }
    copied
}

/// Attributes that the system sets itself, or that only root may: like `cp -a`, copied where that
/// works.
fn is_privileged(name: &CStr) -> bool {
    let name = name.to_bytes();
    (name.starts_with(b"security.") && name != b"security.capability") || name.starts_with(b"trusted.")
}

fn lost(path: &Path, errno: Errno, what: &str) -> Failure {
    let failure = Failure::from_errno(Operation::Xattr, path, errno).of_kind(FailureKind::MetadataLost);
    match errno {
        Errno::OPNOTSUPP => failure
            .with_detail(format!("its file system does not keep {what}"))
            .with_advice("its data were copied; copy to a file system with extended attributes to keep them"),
        Errno::NOSPC | Errno::DQUOT | Errno::RANGE | Errno::TOOBIG => failure
            .with_detail(format!("no room for {what}"))
            .with_advice("its data were copied; the target's file system keeps fewer bytes of attributes"),
        _ => failure.with_detail(what.to_string()),
    }
}

/// True if new entries of a directory inherit an ACL.
pub(super) fn has_default_acl(dir: BorrowedFd<'_>) -> bool {
    let mut value = [0_u8; 1];
    // A longer one does not fit: it is there. It may be there where the directory is open as a place
    // only (`O_PATH`).
    matches!(rustix::fs::fgetxattr(dir, DEFAULT_ACL, &mut value[..]), Ok(_) | Err(Errno::RANGE | Errno::BADF))
}

/// Removes the default ACL that a new directory inherited.
pub(crate) fn remove_default_acl(dir: BorrowedFd<'_>) {
    // Nothing depends on it: the directory's own attributes follow at the end.
    _ = rustix::fs::fremovexattr(dir, DEFAULT_ACL);
}

/// Removes the ACL that a new file inherited.
pub(super) fn remove_access_acl(file: BorrowedFd<'_>) {
    // There may be none; the mode, which is set after this, then says all.
    _ = rustix::fs::fremovexattr(file, ACCESS_ACL);
}
