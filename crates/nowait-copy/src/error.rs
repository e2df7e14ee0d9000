//! Failure to copy a file or a part of it: operation, path, cause, and next step.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use nowait::ErrorKind;
use rustix::io::Errno;

/// `Result` with this crate's [`Failure`].
pub type Result<T> = std::result::Result<T, Failure>;

/// Kind of a failure, for programs to match on.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// A system call failed.
    System(ErrorKind),
    /// The arguments contradict each other, or one is not valid.
    Usage,
    /// Source and target are the same file.
    SameFile,
    /// The target lies inside the source.
    IntoItself,
    /// Two names of the source differ only in case, and the target ignores case.
    NameCollision,
    /// The source changed while it was copied: the copy may mix old and new data.
    SourceChanged,
    /// The copy, read back, differs from the data written.
    VerificationFailed,
    /// The file was copied, but the target cannot store some of its metadata.
    MetadataLost,
    /// The copy was cancelled.
    Cancelled,
}

/// Operation that failed; see [`Failure::operation`].
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// The copy as a whole.
    Copy,
    /// Opening a source or a directory.
    Open,
    /// Listing a directory.
    List,
    /// Reading type, size, times, owner or mode.
    Stat,
    /// Creating the temporary file.
    Stage,
    /// Reserving space.
    Allocate,
    /// Sharing blocks with the source.
    Clone,
    /// Reading data.
    Read,
    /// Writing data.
    Write,
    /// Making data or a name durable.
    Sync,
    /// Closing a file that was written.
    Close,
    /// Reading the copy back.
    Verify,
    /// Reading or writing the journal of a resumable copy.
    Journal,
    /// Renaming the finished file to its final name.
    Rename,
    /// Removing a name.
    Remove,
    /// Creating a hard link.
    Link,
    /// Reading or creating a symbolic link.
    Symlink,
    /// Creating a directory.
    CreateDir,
    /// Creating a FIFO, a socket or a device.
    MakeNode,
    /// Setting the owner.
    SetOwner,
    /// Setting the mode.
    SetMode,
    /// Setting times.
    SetTimes,
    /// Reading or setting extended attributes, including ACLs.
    Xattr,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Copy => "copy",
            Operation::Open => "open",
            Operation::List => "list",
            Operation::Stat => "stat",
            Operation::Stage => "make a temporary file for",
            Operation::Allocate => "allocate space for",
            Operation::Clone => "clone to",
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Sync => "sync",
            Operation::Close => "close",
            Operation::Verify => "verify",
            Operation::Journal => "keep the journal of",
            Operation::Rename => "rename to",
            Operation::Remove => "remove",
            Operation::Link => "link",
            Operation::Symlink => "make symbolic link",
            Operation::CreateDir => "make directory",
            Operation::MakeNode => "make node",
            Operation::SetOwner => "set owner of",
            Operation::SetMode => "set mode of",
            Operation::SetTimes => "set times of",
            Operation::Xattr => "copy extended attributes of",
        })
    }
}

/// Error for a file that could not be copied, or warning about a file that was.
#[derive(Clone, Debug)]
pub struct Failure(Box<Details>);

#[derive(Clone, Debug)]
struct Details {
    kind: FailureKind,
    operation: Operation,
    path: PathBuf,
    offset: Option<u64>,
    errno: Option<Errno>,
    detail: Option<Cow<'static, str>>,
    advice: Option<Cow<'static, str>>,
}

impl Failure {
    pub(crate) fn new(operation: Operation, path: &Path, kind: FailureKind) -> Self {
        Failure(Box::new(Details {
            kind,
            operation,
            path: path.to_path_buf(),
            offset: None,
            errno: None,
            detail: None,
            advice: None,
        }))
    }

    /// Makes the failure of a system call.
    pub(crate) fn from_errno(operation: Operation, path: &Path, errno: Errno) -> Self {
        // Uses the library's mapping from errno to kind.
        let known = nowait::Error::from_raw_os_error(nowait::ErrorOp::Copy, errno.raw_os_error());
        let mut failure = Self::new(operation, path, FailureKind::System(known.kind()));
        failure.0.errno = Some(errno);
        let is_refused = makes_name(operation) && matches!(errno, Errno::NOENT | Errno::PERM | Errno::ACCESS);
        match is_refused.then(|| pseudo_file_system(path)).flatten() {
            Some(name) => failure.with_detail(format!("programs cannot create names in {name}")).with_advice(ELSEWHERE),
            None => failure,
        }
    }

    /// Adds the next step for a directory that is missing.
    pub(crate) fn with_missing(self, dir: &Path, advice: &'static str) -> Self {
        match pseudo_file_system(dir) {
            Some(name) => self.with_advice(format!("programs cannot create it in {name}: {ELSEWHERE}")),
            None => self.with_advice(advice),
        }
    }

    /// Makes the failure of an operation of `nowait`.
    pub(crate) fn from_nowait(operation: Operation, path: &Path, error: &nowait::Error) -> Self {
        let mut failure = Self::new(operation, path, FailureKind::System(error.kind()));
        failure.0.errno = error.raw_os_error().map(Errno::from_raw_os_error);
        failure.0.offset = error.offset();
        if failure.0.errno.is_none() {
            failure.0.detail = Some(error.to_string().into());
        }
        failure
    }

    /// Makes the failure of a call of std.
    pub(crate) fn from_io(operation: Operation, path: &Path, error: &io::Error) -> Self {
        match Errno::from_io_error(error) {
            Some(errno) => Self::from_errno(operation, path, errno),
            None => Self::new(operation, path, FailureKind::System(ErrorKind::Other)).with_detail(error.to_string()),
        }
    }

    /// Changes the kind, and keeps the errno.
    pub(crate) fn of_kind(mut self, kind: FailureKind) -> Self {
        self.0.kind = kind;
        self
    }

    /// Adds the offset in the file.
    pub(crate) fn at(mut self, offset: u64) -> Self {
        self.0.offset = Some(offset);
        self
    }

    /// Adds a description, in place of the errno's text.
    pub(crate) fn with_detail(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        self.0.detail = Some(detail.into());
        self
    }

    /// Adds the next step, in place of the kind's advice.
    pub(crate) fn with_advice(mut self, advice: impl Into<Cow<'static, str>>) -> Self {
        self.0.advice = Some(advice.into());
        self
    }

    /// Returns the kind of the failure.
    pub fn kind(&self) -> FailureKind {
        self.0.kind
    }

    /// Returns the operation that failed.
    pub fn operation(&self) -> Operation {
        self.0.operation
    }

    /// Returns the path of the source or the target, depending on the operation.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Returns the offset in the file in bytes, for operations that have one.
    pub fn offset(&self) -> Option<u64> {
        self.0.offset
    }

    /// Returns the errno, if the kernel reported one.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.0.errno.map(Errno::raw_os_error)
    }

    /// Returns advice on the next step, if known.
    pub fn advice(&self) -> Option<&str> {
        self.0.advice.as_deref().or_else(|| of_name(self)).or_else(|| advice(self.0.kind, self.0.operation))
    }
}

/// File systems of the kernel in which programs cannot create names, by number (`statfs(2)`).
const PSEUDO: [(u32, &str); 2] = [(0x9fa0, "procfs"), (0x6265_6572, "sysfs")];

/// Returns the name of the file system of the path's nearest existing ancestor, if programs cannot
/// create names there.
fn pseudo_file_system(path: &Path) -> Option<&'static str> {
    let stat = path.ancestors().find_map(|ancestor| match ancestor.as_os_str().is_empty() {
        true => rustix::fs::statfs(c".").ok(),
        false => rustix::fs::statfs(ancestor).ok(),
    })?;
    // `f_type` is signed and has 64 bits on some machines; the numbers have 32 bits.
    let number = stat.f_type as u32;
    PSEUDO.iter().find(|(pseudo, _)| *pseudo == number).map(|(_, name)| *name)
}

/// Advice where programs cannot create names.
const ELSEWHERE: &str = "name another target";

fn makes_name(operation: Operation) -> bool {
    matches!(operation, Operation::Rename | Operation::CreateDir | Operation::Stage | Operation::Link)
}

/// Advice on an errno with a special meaning when a name is created or replaced.
fn of_name(failure: &Failure) -> Option<&'static str> {
    let Details { kind, operation, errno, .. } = &*failure.0;
    let makes_name = makes_name(*operation);
    match (kind, errno) {
        (FailureKind::System(_), Some(Errno::PERM)) if makes_name => {
            Some("the file or its directory may be immutable or append-only (`lsattr -d`), or owned by another user")
        }
        (FailureKind::System(_), Some(Errno::BUSY)) if makes_name => {
            Some("it is a mount point (`findmnt`) or in use as swap: unmount it, or write into it with `cp`")
        }
        (FailureKind::System(_), Some(Errno::INVAL)) if makes_name => {
            Some("the target's file system may not allow such a name: rename it")
        }
        _ => None,
    }
}

fn advice(kind: FailureKind, operation: Operation) -> Option<&'static str> {
    let kind = match kind {
        FailureKind::System(kind) => kind,
        FailureKind::Usage => return Some("see `nowait copy --help`"),
        FailureKind::SameFile => return Some("name another target"),
        FailureKind::IntoItself => return Some("choose a target outside the source"),
        FailureKind::NameCollision => return Some("rename one of the two, or copy to a case-sensitive file system"),
        FailureKind::SourceChanged => return Some("copy it again while no process writes to it"),
        FailureKind::VerificationFailed => return Some("check the device and the memory, and copy it again"),
        FailureKind::MetadataLost => return Some("the data were copied"),
        FailureKind::Cancelled => return None,
    };
    Some(match kind {
        ErrorKind::NotFound if operation == Operation::Rename => "the target directory was removed: copy again",
        ErrorKind::NotFound => "check the path; the file may have been removed meanwhile",
        ErrorKind::PermissionDenied => match operation {
            Operation::Open | Operation::List | Operation::Read => {
                "check its permissions, or copy as its owner or root"
            }
            Operation::SetOwner | Operation::MakeNode => "copy as root to keep it",
            _ => "check the permissions of the target directory",
        },
        ErrorKind::ReadOnlyFilesystem => "copy elsewhere, or mount it for writing",
        ErrorKind::NoSpace => "make room (or raise the quota), then copy again",
        ErrorKind::IsADirectory => "remove the directory, or name another target",
        ErrorKind::NotADirectory => "check the path: one of its parts is not a directory",
        ErrorKind::AlreadyExists => "remove it, or name another target",
        ErrorKind::FilesystemLoop => "too many symbolic links: check where they lead",
        ErrorKind::InvalidFilename => "the target's file system does not allow names of this length: rename it",
        ErrorKind::FileTooLarge => "the target's file system or `ulimit -f` does not allow files of this size",
        ErrorKind::TooManyFiles => "raise the limit of open files (`ulimit -n`), or use fewer threads",
        ErrorKind::Io => "check the device and the kernel log (`dmesg`)",
        ErrorKind::SyncFailed => "the device lost data: check it (`dmesg`), and copy again",
        ErrorKind::StaleNetworkFileHandle => "the server replaced it: copy it again",
        ErrorKind::TooManyLinks => "the file system does not allow this many hard links",
        ErrorKind::Unsupported => "the file system cannot do this",
        _ => return None,
    })
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Details { kind, operation, path, offset, errno, detail, .. } = &*self.0;
        write!(f, "{operation} {}", Shown(path))?;
        if let Some(offset) = offset {
            write!(f, " at byte {offset}")?;
        }
        match (detail, errno, kind) {
            (Some(detail), Some(errno), _) => write!(f, ": {detail} ({})", words(*errno))?,
            (Some(detail), None, _) => write!(f, ": {detail}")?,
            (None, Some(errno), _) => write!(f, ": {}", words(*errno))?,
            (None, None, FailureKind::SameFile) => write!(f, ": source and target are the same file")?,
            (None, None, FailureKind::IntoItself) => write!(f, ": the target lies inside the source")?,
            (None, None, FailureKind::SourceChanged) => write!(f, ": it changed while it was copied")?,
            (None, None, FailureKind::Cancelled) => write!(f, ": interrupted")?,
            (None, None, FailureKind::VerificationFailed) => write!(f, ": the copy differs from what was written")?,
            (None, None, _) => {}
        }
        match self.advice() {
            Some(advice) => write!(f, "; {advice}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}

/// Returns the kernel's text for an errno, without std's `(os error N)`.
pub(crate) fn words(errno: Errno) -> String {
    let text = io::Error::from(errno).to_string();
    match text.split_once(" (os error") {
        Some((words, _)) => words.to_string(),
        None => text,
    }
}

/// Formats a path as one line of text for a terminal; escapes control characters and bytes that are
/// not UTF-8.
pub fn shown(path: &Path) -> impl fmt::Display + '_ {
    Shown(path)
}

struct Shown<'a>(&'a Path);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use std::os::unix::ffi::OsStrExt;
        for chunk in self.0.as_os_str().as_bytes().utf8_chunks() {
            for char in chunk.valid().chars() {
                if char.is_control() { write!(f, "{}", char.escape_default())? } else { write!(f, "{char}")? }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}
