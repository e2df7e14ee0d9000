//! Windows. Std reports neither the number of a file nor its number of links.

use std::borrow::Cow;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::windows::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Zero, as in `LocalFileSystem`: ETags consist of time and size.
pub(in crate::files) fn inode(_: &Metadata) -> u64 {
    0
}

pub(in crate::files) fn device(_: &Metadata) -> u64 {
    0
}

pub(in crate::files) fn has_links(_: &Metadata) -> bool {
    false
}

/// Returns the later of creation and last modification: a copy keeps the time of modification.
pub(in crate::files) fn changed(metadata: &Metadata) -> SystemTime {
    let time = |time: io::Result<SystemTime>| time.unwrap_or(UNIX_EPOCH);
    time(metadata.modified()).max(time(metadata.created()))
}

pub(in crate::files) fn open(path: &Path) -> io::Result<File> {
    match File::open(path) {
        Err(_) if path.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        opened => opened,
    }
}

pub(in crate::files) fn share_blocks(_: &File, _: &File) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Renames; replaces a file of the new name.
pub(in crate::files) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    Ok(nowait::fs::rename(from, to).wait()?)
}

/// Renames; fails if the new name exists.
pub(in crate::files) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    Ok(nowait::fs::rename_new(from, to).wait()?)
}

/// Removes a file, also one that may only be read: a copy of such an object has its attribute.
pub(in crate::files) fn remove_file(path: &Path) -> io::Result<()> {
    Ok(nowait::fs::remove_file(path).wait()?)
}

/// Removes a staged file, unless it is open for writing or not old. The times in its directory are those of
/// the last close of a writer. Returns whether it was removed.
pub(in crate::files) fn remove_leftover(path: &Path, is_old: impl Fn(&Metadata) -> bool) -> io::Result<bool> {
    const DELETE: u32 = 0x1_0000;
    const FILE_READ_ATTRIBUTES: u32 = 0x80;
    const FILE_SHARE_READ_DELETE: u32 = 1 | 4;
    const FILE_FLAG_OPEN_REPARSE_POINT: u32 = 0x0020_0000;
    const ERROR_SHARING_VIOLATION: i32 = 32;
    let mut options = OpenOptions::new();
    options.access_mode(FILE_READ_ATTRIBUTES | DELETE).share_mode(FILE_SHARE_READ_DELETE);
    // No writer can open the file while this handle is open.
    let file = match options.custom_flags(FILE_FLAG_OPEN_REPARSE_POINT).open(path) {
        Err(error) if error.raw_os_error() == Some(ERROR_SHARING_VIOLATION) => return Ok(false),
        file => file?,
    };
    if !is_old(&file.metadata()?) {
        return Ok(false);
    }
    remove_file(path).map(|()| true)
}

/// Whether a rename failed because the new name exists, or is that of a directory.
pub(in crate::files) fn is_in_the_way(error: &io::Error, to: &Path) -> bool {
    match error.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::IsADirectory => true,
        kind => kind == io::ErrorKind::PermissionDenied && to.is_dir(),
    }
}

/// Makes a file durable.
pub(in crate::files) fn sync(file: &File) -> io::Result<()> {
    file.sync_all()
}

/// Makes the names in a directory durable.
pub(in crate::files) fn sync_dir(dir: &Path) -> io::Result<()> {
    Ok(nowait::fs::sync_dir(dir).wait()?)
}

/// Makes a file durable that was written by another handle. Only a handle that may write can be flushed; there
/// is none for a file with the read-only attribute, which the store flushed when it put the object.
pub(in crate::files) fn sync_file(path: &Path) -> io::Result<()> {
    match File::options().write(true).open(path) {
        Err(_) if fs::metadata(path).is_ok_and(|about| about.permissions().readonly()) => Ok(()),
        file => file?.sync_all(),
    }
}

/// Copies are not hard links. A link has the object's [`changed`], and so would look abandoned.
pub(in crate::files) const LINKS_COPIES: bool = false;

/// Whether both paths lead to one directory.
pub(in crate::files) fn is_one_dir(one: &Path, other: &Path) -> io::Result<bool> {
    Ok(one.canonicalize()? == other.canonicalize()?)
}

/// Returns the path of a location, which has no `.` and `..`. A segment must not contain a backslash, which
/// could lead out of the root. A colon would name a stream or a drive; like `LocalFileSystem`, this writes it
/// as `%3A`. Only in the store of all files may the first segment be a drive. Its paths are not verbatim, so
/// the system drops dots and spaces at the end of a name: that would be another object's.
///
/// # Errors
/// Why there is no such path.
pub(in crate::files) fn below(root: &Path, location: &str) -> Result<PathBuf, &'static str> {
    let is_of_all = root == Path::new("/");
    let mut path = root.to_path_buf();
    for (number, segment) in location.split('/').enumerate() {
        let is_drive = number == 0 && is_of_all && segment.len() == 2 && segment.ends_with(':');
        if segment.contains('\\') {
            return Err("it contains a backslash");
        }
        if is_of_all && segment.ends_with(['.', ' ']) {
            return Err("a name ends in a dot or a space; make the store with a prefix");
        }
        match is_drive {
            true => path.push(format!("{segment}\\")),
            false => path.push(segment.replace(':', "%3A")),
        }
    }
    Ok(path)
}

/// The name of an object whose file has this path below the root. That of a name that is no Unicode is no UTF-8.
pub(crate) fn key(path: &Path) -> Cow<'_, [u8]> {
    let separated = |byte: &u8| if *byte == b'\\' { b'/' } else { *byte };
    Cow::Owned(path.as_os_str().as_encoded_bytes().iter().map(separated).collect())
}

/// There are no modes.
pub(in crate::files) fn set_mode(_: &mut OpenOptions, _: u32) {}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::windows::ffi::OsStringExt;

    use super::*;

    /// Symptom: such a file was listed under a name that it did not have.
    #[test]
    fn the_key_of_a_name_that_is_no_unicode_is_none() {
        assert_eq!(*key(Path::new(r"a\é")), *"a/é".as_bytes());
        let name = OsString::from_wide(&[0x61, 0xd800]);
        assert!(std::str::from_utf8(&key(Path::new(&name))).is_err());
    }
}
