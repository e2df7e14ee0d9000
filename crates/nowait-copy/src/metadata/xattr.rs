//! Copies extended attributes, including ACLs and capabilities, in their stored form.

use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::error::{Failure, FailureKind, Operation, shown};

const ACCESS_ACL: &CStr = c"system.posix_acl_access";
const DEFAULT_ACL: &CStr = c"system.posix_acl_default";

/// Maximum length of a list of names and of a value in the kernel.
const LONGEST: usize = 64 << 10;

/// Format of a stored ACL (`linux/posix_acl_xattr.h`): a version, then entries of tag, rights and
/// user or group.
const ACL_VERSION: [u8; 4] = 2_u32.to_le_bytes();
const ENTRY_BYTES: usize = 8;
const USER: u16 = 0x02;
const GROUP_OWNER: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

thread_local! {
    /// Buffers for a list of names and for a value.
    static BUFFERS: RefCell<(Vec<u8>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// An entry with attributes.
#[derive(Clone, Copy)]
pub(super) enum Node<'a> {
    /// An open file.
    File(BorrowedFd<'a>),
    /// An entry that may be a symbolic link, by a path through /proc.
    Link(&'a Path),
    /// An entry opened with `O_PATH`, by the path of its descriptor in /proc.
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

    /// Removes an attribute. A missing attribute is no error.
    fn remove(self, name: &CStr) -> Result<(), Errno> {
        let removed = match self {
            Node::File(file) => rustix::fs::fremovexattr(file, name),
            Node::Link(path) => rustix::fs::lremovexattr(path, name),
            Node::Descriptor(path) => rustix::fs::removexattr(path, name),
        };
        let is_missing = |errno| matches!(errno, Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS);
        match removed {
            Err(errno) if is_missing(errno) => Ok(()),
            // On an immutable file, or another user's, the kernel refuses the call before it looks
            // for the attribute.
            Err(_) if self.get(name, &mut [0; 1]).is_err_and(is_missing) => Ok(()),
            removed => removed,
        }
    }
}

/// Bits of a mode without the rights of group and others.
pub(super) const OWNER_RIGHTS: u32 = !0o077;

/// Outcome for the attributes of a file.
pub(super) struct Copied {
    /// True if the source has an access ACL, and the target now has it, too.
    pub has_acl: bool,
    /// True if the same holds for the default ACL of a directory.
    pub has_default_acl: bool,
    /// Mask of mode bits that grant no user more rights than the source's ACL. It contains all bits
    /// unless the ACL was lost.
    pub rights: u32,
    /// First attribute that could not be copied.
    pub lost: Option<Failure>,
}

impl Default for Copied {
    fn default() -> Self {
        Copied { has_acl: false, has_default_acl: false, rights: !0, lost: None }
    }
}

pub(super) fn copy(source: Node<'_>, target: Node<'_>, target_path: &Path) -> Copied {
    BUFFERS.with_borrow_mut(|(names, value)| match list(source, names) {
        Ok(0) => Copied::default(),
        Ok(length) => copy_named(source, target, target_path, &names[..length], value),
        // The attributes may include an ACL.
        Err(errno) => Copied {
            rights: OWNER_RIGHTS,
            lost: Some(lost(target_path, errno, "the source's attributes, which cannot be listed")),
            ..Copied::default()
        },
    })
}

/// Lists names of attributes, each with its NUL; returns their bytes.
fn list(node: Node<'_>, names: &mut Vec<u8>) -> Result<usize, Errno> {
    if names.is_empty() {
        names.resize(1024, 0);
    }
    let listed = match node.list(names) {
        Err(Errno::RANGE) => {
            names.resize(LONGEST, 0);
            node.list(names)
        }
        listed => listed,
    };
    match listed {
        // The file system has no attributes.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(0),
        listed => listed,
    }
}

/// Returns the names of a node's attributes that a copy shares with its source. Omits attributes
/// that the system sets.
fn names_to_keep(node: Node<'_>) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    let length = list(node, &mut names)?;
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    // The names contain no NUL, since they were split at NULs.
    let names = names.filter_map(|name| CString::new(name).ok());
    Ok(names.filter(|name| !name.as_bytes().starts_with(b"security.") || is_capability(name)).collect())
}

/// Returns true if a copy has its source's attributes and no others.
pub(super) fn is_alike(source: Node<'_>, target: Node<'_>) -> bool {
    let (Ok(mut from), Ok(mut to)) = (names_to_keep(source), names_to_keep(target)) else { return false };
    if from.is_empty() && to.is_empty() {
        return true;
    }
    from.sort();
    to.sort();
    let (mut one, mut other) = (vec![0; LONGEST], vec![0; LONGEST]);
    from == to
        && from.iter().all(|name| match (source.get(name, &mut one), target.get(name, &mut other)) {
            (Ok(length), Ok(same)) => one[..length] == other[..same],
            _ => false,
        })
}

/// Removes attributes that a copy has and its source lacks; ACLs are left to the caller.
pub(super) fn remove_others(source: Node<'_>, target: Node<'_>) {
    let (Ok(from), Ok(to)) = (names_to_keep(source), names_to_keep(target)) else { return };
    let is_users = |name: &CStr| name.to_bytes().starts_with(b"user.") || is_capability(name);
    for name in to.iter().filter(|name| is_users(name) && !from.contains(name)) {
        // If this fails, the copy keeps an attribute that it had before.
        _ = target.remove(name);
    }
}

fn is_capability(name: &CStr) -> bool {
    name == c"security.capability"
}

fn copy_named(source: Node<'_>, target: Node<'_>, path: &Path, mut names: &[u8], value: &mut Vec<u8>) -> Copied {
    let mut copied = Copied::default();
    while let Ok(name) = CStr::from_bytes_until_nul(names) {
        names = &names[name.count_bytes() + 1..];
        if value.is_empty() {
            value.resize(LONGEST, 0);
        }
        let mut rights = OWNER_RIGHTS;
        let done = source.get(name, value).and_then(|length| {
            let value = &value[..length];
            if name != ACCESS_ACL {
                return target.set(name, value);
            }
            set_access_acl(target, value).inspect_err(|_| rights = rights_of_all(value))
        });
        match done {
            Ok(()) => {
                copied.has_acl |= name == ACCESS_ACL;
                copied.has_default_acl |= name == DEFAULT_ACL;
            }
            // The attribute was removed meanwhile.
            Err(Errno::NODATA) => {}
            Err(_) if is_privileged(name) => {}
            Err(errno) => {
                if name == ACCESS_ACL {
                    copied.rights = rights;
                }
                copied.lost.get_or_insert_with(|| {
                    lost(path, errno, &shown(Path::new(OsStr::from_bytes(name.to_bytes()))).to_string())
                });
            }
        }
    }
    copied
}

/// Attributes that the system sets, or only root may set. Like `cp -a`, the copy ignores a failure
/// to set them.
fn is_privileged(name: &CStr) -> bool {
    (name.to_bytes().starts_with(b"security.") && !is_capability(name)) || name.to_bytes().starts_with(b"trusted.")
}

fn lost(path: &Path, errno: Errno, what: &str) -> Failure {
    let failure = Failure::from_errno(Operation::Xattr, path, errno).of_kind(FailureKind::MetadataLost);
    match errno {
        Errno::OPNOTSUPP => failure
            .with_detail(format!("the target's file system does not store {what}"))
            .with_advice("the data were copied; to keep the attributes, copy to a file system that stores them"),
        Errno::NOSPC | Errno::DQUOT | Errno::RANGE | Errno::TOOBIG => failure
            .with_detail(format!("no room for {what}"))
            .with_advice("the data were copied; the target's file system stores fewer bytes of attributes"),
        _ => failure.with_detail(what.to_string()),
    }
}

/// True if new entries of a directory inherit an ACL.
pub(super) fn has_default_acl(dir: BorrowedFd<'_>) -> bool {
    let mut value = [0_u8; 1];
    // If the value does not fit, it exists. If the directory is open with `O_PATH`, it may exist.
    matches!(rustix::fs::fgetxattr(dir, DEFAULT_ACL, &mut value[..]), Ok(_) | Err(Errno::RANGE | Errno::BADF))
}

pub(super) fn remove_default_acl(directory: Node<'_>) -> Result<(), Errno> {
    directory.remove(DEFAULT_ACL)
}

/// Removes the ACL of an entry. The mode, which is set afterwards, then defines all rights.
pub(super) fn remove_access_acl(node: Node<'_>) -> Result<(), Errno> {
    node.remove(ACCESS_ACL)
}

/// Returns a mask of mode bits that grant no user more rights than the file's ACL, if it has one.
pub(super) fn rights(file: BorrowedFd<'_>) -> u32 {
    let mut value = [0; LONGEST];
    match Node::File(file).get(ACCESS_ACL, &mut value) {
        Ok(length) => rights_of_all(&value[..length]),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => !0,
        Err(_) => OWNER_RIGHTS,
    }
}

/// Sets an access ACL in two steps, since the call also sets the mode and need not do both at once:
/// btrfs and tmpfs set the mode first. A user whom only the ACL denies could open the file before
/// the ACL is stored. The first step stores the entries with a mask that denies all of them, and a
/// mode for the owner only. The second step may set the mode first: the entries are in force.
fn set_access_acl(target: Node<'_>, acl: &[u8]) -> Result<(), Errno> {
    if let Some(closed) = for_owner_only(acl) {
        target.set(ACCESS_ACL, &closed)?;
    }
    target.set(ACCESS_ACL, acl)
}

/// Returns the ACL with no rights in its mask and for others. None without a mask: such an ACL names
/// no users or groups, and is the same as a mode.
fn for_owner_only(acl: &[u8]) -> Option<Vec<u8>> {
    entries(acl)?.find(|(tag, _)| *tag == MASK)?;
    let mut closed = acl.to_vec();
    for entry in closed[ACL_VERSION.len()..].chunks_exact_mut(ENTRY_BYTES) {
        if [MASK, OTHERS].contains(&u16::from_le_bytes([entry[0], entry[1]])) {
            entry[2..4].fill(0);
        }
    }
    Some(closed)
}

/// Returns the mode bits that remain safe without this ACL: those bits of group and others that
/// each user and group named in the ACL has, too.
fn rights_of_all(acl: &[u8]) -> u32 {
    let Some(entries) = entries(acl) else { return OWNER_RIGHTS };
    let (mut group, mut others, mut named) = (0o7, 0, 0o7);
    for (tag, rights) in entries {
        match tag {
            USER | GROUP => named &= rights,
            GROUP_OWNER | MASK => group &= rights,
            OTHERS => others = rights,
            _ => {}
        }
    }
    OWNER_RIGHTS | (group & named) << 3 | others & named
}

/// Returns tag and rights of each entry of a stored ACL; none if its format is unknown.
fn entries(acl: &[u8]) -> Option<impl Iterator<Item = (u16, u32)>> {
    let entries = acl.strip_prefix(&ACL_VERSION).filter(|entries| entries.len() % ENTRY_BYTES == 0)?;
    let word = |entry: &[u8], at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
    Some(entries.chunks_exact(ENTRY_BYTES).map(move |entry| (word(entry, 0), u32::from(word(entry, 2)) & 0o7)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes tags and rights as the kernel stores an ACL.
    fn acl(entries: &[(u16, u16)]) -> Vec<u8> {
        let mut bytes = 2_u32.to_le_bytes().to_vec();
        for (tag, rights) in entries {
            bytes.extend([tag.to_le_bytes(), rights.to_le_bytes()].concat());
            bytes.extend(u32::MAX.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn an_acl_is_first_stored_with_rights_for_the_owner_only() {
        let full = [(1, 6), (2, 0), (2, 6), (4, 4), (8, 5), (0x10, 6), (0x20, 4)];
        let closed = [(1, 6), (2, 0), (2, 6), (4, 4), (8, 5), (0x10, 0), (0x20, 0)];
        assert_eq!(for_owner_only(&acl(&full)), Some(acl(&closed)));
        assert_eq!(for_owner_only(&acl(&[(1, 6), (4, 4), (0x20, 4)])), None, "the same as mode 644");
        for broken in [&[][..], &[2, 0, 0, 0, 1], &[3, 0, 0, 0]] {
            assert_eq!(for_owner_only(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn a_mode_without_its_acl_gives_no_user_more() {
        let rights = |entries: &[(u16, u16)]| rights_of_all(&acl(entries)) & 0o777;
        // u::rwx, u:1000:r, g::-, m::r, o::-
        assert_eq!(rights(&[(1, 7), (2, 4), (4, 0), (0x10, 4), (0x20, 0)]), 0o700);
        // Without the ACL, a user whom it denies gets the rights of others.
        assert_eq!(rights(&[(1, 7), (2, 0), (4, 4), (0x10, 4), (0x20, 4)]), 0o700);
        assert_eq!(rights(&[(1, 7), (2, 7), (4, 5), (0x10, 7), (0x20, 4)]), 0o754);
        assert_eq!(rights(&[(1, 7), (8, 7), (4, 7), (0x10, 5), (0x20, 1)]), 0o751);
        assert_eq!(rights(&[(1, 7), (4, 6), (0x20, 4)]), 0o764);
        for broken in [&[][..], &[2, 0, 0, 0, 1], &[3, 0, 0, 0]] {
            assert_eq!(rights_of_all(broken) & 0o777, 0o700, "{broken:?}");
        }
    }
}
