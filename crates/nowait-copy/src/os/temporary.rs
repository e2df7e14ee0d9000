//! Names of temporary files, and the removal of names that killed copies left.
//!
//! A copy that creates such names in a directory holds a shared lock on the directory (`flock(2)`),
//! which ends with the process. A copy that gets an exclusive lock knows that no other copy is
//! running there: all such names were left by killed copies. The lock is tried and never waited
//! for. If it is refused, or does not exclude all others (a directory that other machines write
//! to), names are of a second kind, which is never removed.
//!
//! A name ends in a checksum of the name, so that no user's file is mistaken for one. Files of
//! other users are never removed.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RawDir};
use rustix::io::{Errno, retry_on_intr};

use super::name;

const PREFIX: &str = ".nowait-copy-";
/// Number of hexadecimal digits of a copy's token, and maximum digits of a file's number.
const TOKEN_DIGITS: usize = 16;
/// Length of a hyphen and the hexadecimal checksum of all bytes before it.
const CHECK_BYTES: usize = 9;
/// Marks a name that no lock guards.
const UNGUARDED: char = 'u';
/// Maximum number of entries searched for such names, so that the copy of one file into a directory
/// of millions is quick.
const ENTRIES_MAX: usize = 1 << 16;
/// Buffer size for the entries of one call.
const BUFFER_BYTES: usize = 32 << 10;

/// Returns the name for the copy with this token and the file with this number.
pub(crate) fn name(token: u64, number: u64, is_guarded: bool) -> CString {
    let mut name = format!("{PREFIX}{token:016x}-{number:x}");
    name.push_str(&check(name.as_bytes()));
    if !is_guarded {
        name.push(UNGUARDED);
    }
    // The name contains no zero byte.
    CString::new(name).unwrap_or_default()
}

fn check(text: &[u8]) -> String {
    format!("-{:08x}", crc32c::crc32c(text))
}

/// True for the names that [`name`] returns.
pub(crate) fn is_temporary(name: &CStr) -> bool {
    is_guarded(name) || name.to_bytes().strip_suffix(&[UNGUARDED as u8]).is_some_and(is_guarded_text)
}

fn is_guarded(name: &CStr) -> bool {
    is_guarded_text(name.to_bytes())
}

fn is_guarded_text(name: &[u8]) -> bool {
    let is_hexadecimal = |text: &[u8]| text.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    // Ordinary names fail here, without a checksum.
    let Some(rest) = name.strip_prefix(PREFIX.as_bytes()) else { return false };
    rest.split_at_checked(rest.len().saturating_sub(CHECK_BYTES))
        .filter(|(_, end)| check(&name[..name.len() - CHECK_BYTES]).as_bytes() == *end)
        .and_then(|(rest, _)| rest.split_at_checked(TOKEN_DIGITS))
        .and_then(|(token, rest)| Some((token, rest.strip_prefix(b"-")?)))
        .is_some_and(|(token, number)| {
            is_hexadecimal(token) && (1..=TOKEN_DIGITS).contains(&number.len()) && is_hexadecimal(number)
        })
}

/// Locks a directory while its descriptor is open, and removes the names that killed copies left in
/// it. Returns false if names in it cannot be guarded.
pub(crate) fn guard(directory: BorrowedFd<'_>) -> bool {
    let lock = |operation| retry_on_intr(|| rustix::fs::flock(directory, operation)).is_ok();
    if lock(FlockOperation::NonBlockingLockExclusive) {
        // If this fails, the next copy tries again.
        _ = sweep(directory);
    }
    lock(FlockOperation::NonBlockingLockShared)
}

/// Removes guarded names; the caller holds the exclusive lock.
fn sweep(directory: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // Opened again, for a separate position.
    let listed = retry_on_intr(|| rustix::fs::openat(directory, c".", flags, Mode::empty()))?;
    let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
    let mut entries = RawDir::new(&listed, &mut buffer);
    let mut left = Vec::new();
    for _ in 0..ENTRIES_MAX {
        let Some(entry) = entries.next() else { break };
        let entry = entry?;
        if is_guarded(entry.file_name()) {
            left.push(entry.file_name().to_owned());
        }
    }
    // The call does not remove directories, which are never temporary files.
    left.iter().filter(|name| is_own(directory, name)).for_each(|name| _ = name::remove(directory, name));
    Ok(())
}

/// Returns true if this process's user may have created the file. Always true for root, which may
/// have changed the owner already.
fn is_own(directory: BorrowedFd<'_>, name: &CStr) -> bool {
    let user = rustix::process::geteuid();
    let stat = retry_on_intr(|| rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW));
    user.is_root() || stat.is_ok_and(|stat| stat.st_uid == user.as_raw())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::fd::AsFd;
    use std::path::Path;

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn text(name: &CStr) -> String {
        name.to_str().unwrap().to_owned()
    }

    #[test]
    fn names_are_told_from_those_of_users() {
        for (token, number) in [(0, 0), (u64::MAX, u64::MAX), (0xabc, 0x10)] {
            let (guarded, unguarded) = (name(token, number, true), name(token, number, false));
            assert!(is_guarded(&guarded) && is_temporary(&guarded), "{guarded:?}");
            assert!(!is_guarded(&unguarded) && is_temporary(&unguarded), "{unguarded:?}");
        }
        for users in [
            c".nowait-copy-",
            c".nowait-copy-0123456789abcdef",
            c".nowait-copy-0123456789abcdef-",
            c".nowait-copy-0123456789abcdef-1",
            c".nowait-copy-0123456789abcdef-1-00000000",
            c".nowait-copy-0123456789abcdef-1.txt",
            c".nowait-copy-0123456789abcdef-1uu",
            c".nowait-copy-0123456789abcdeg-1",
            c".nowait-copy-0123456789ABCDEF-1",
            c".nowait-copy-0123456789abcdef-12345678123456780",
            c"nowait-copy-0123456789abcdef-1",
        ] {
            assert!(!is_temporary(users), "{users:?}");
        }
        let name = text(&name(0x0123_4567_89ab_cdef, 1, true));
        for at in 0..name.len() {
            let mut changed = name.clone().into_bytes();
            changed[at] ^= 1;
            assert!(!is_temporary(&CString::new(changed).unwrap()), "{name}, byte {at}");
        }
    }

    /// Symptom: no copy removed the file that a killed copy had left; or a copy removed a file that
    /// another one was writing.
    #[test]
    fn only_what_nobody_guards_is_removed() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = |name: &CStr| dir.path().join(text(name));
        let (left, unguarded, users) = (name(1, 0, true), name(1, 1, false), ".nowait-copy-mine");
        let open = || File::open(dir.path()).unwrap();
        fs::write(path(&left), "left").unwrap();
        std::os::unix::fs::symlink("nowhere", path(&name(1, 2, true))).unwrap();
        fs::write(path(&unguarded), "of another machine").unwrap();
        fs::write(dir.path().join(users), "users").unwrap();
        fs::create_dir(path(&name(2, 0, true))).unwrap();
        let kept = [text(&name(2, 0, true)), text(&unguarded), users.to_owned()];

        let first = open();
        assert!(guard(first.as_fd()));
        let mut expected = kept.to_vec();
        expected.sort();
        assert_eq!(names(dir.path()), expected);

        // While the first copy runs, the second removes nothing.
        fs::write(path(&name(3, 0, true)), "of the first").unwrap();
        let second = open();
        assert!(guard(second.as_fd()));
        assert!(path(&name(3, 0, true)).exists());
        drop(first);
        assert!(guard(open().as_fd()), "the second is still there: a shared lock");
        assert!(path(&name(3, 0, true)).exists());
        drop(second);
        assert!(guard(open().as_fd()));
        assert!(!path(&name(3, 0, true)).exists());
    }

    #[test]
    fn where_another_program_has_the_lock_names_are_unguarded() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let (other, own) = (File::open(dir.path()).unwrap(), File::open(dir.path()).unwrap());
        rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(!guard(own.as_fd()));
        drop(other);
        assert!(guard(own.as_fd()));
        let place = rustix::fs::open(dir.path(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        assert!(!guard(place.as_fd()), "a directory that may not be read");
    }
}
