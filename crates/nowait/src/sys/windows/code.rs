//! Errors and flags, under the POSIX names that the rest of the library uses.

use std::fmt;
use std::io;
use std::ops::{BitAnd, BitOr, Sub};

/// Error of the system (`GetLastError`). A POSIX name without a Windows code gets one with bit 29, which
/// Windows reserves for applications.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Errno(i32);

macro_rules! codes {
    ($($name:ident = $code:expr,)*) => {
        #[allow(dead_code)]
        impl Errno {
            $(pub(crate) const $name: Errno = Errno($code);)*
        }
    };
}

/// Code of an error that only this library reports.
const fn own(number: i32) -> i32 {
    1 << 29 | number
}

codes! {
    NOENT = 2,         // ERROR_FILE_NOT_FOUND
    MFILE = 4,         // ERROR_TOO_MANY_OPEN_FILES
    ACCESS = 5,        // ERROR_ACCESS_DENIED
    BADF = 6,          // ERROR_INVALID_HANDLE
    NOMEM = 8,         // ERROR_NOT_ENOUGH_MEMORY
    XDEV = 17,         // ERROR_NOT_SAME_DEVICE
    ROFS = 19,         // ERROR_WRITE_PROTECT
    BUSY = 32,         // ERROR_SHARING_VIOLATION
    AGAIN = 33,        // ERROR_LOCK_VIOLATION
    OPNOTSUPP = 50,    // ERROR_NOT_SUPPORTED
    INVAL = 87,        // ERROR_INVALID_PARAMETER
    NOSPC = 112,       // ERROR_DISK_FULL
    NOSYS = 120,       // ERROR_CALL_NOT_IMPLEMENTED
    TIMEDOUT = 121,    // ERROR_SEM_TIMEOUT
    NOTEMPTY = 145,    // ERROR_DIR_NOT_EMPTY
    EXIST = 183,       // ERROR_ALREADY_EXISTS
    NAMETOOLONG = 206, // ERROR_FILENAME_EXCED_RANGE
    FBIG = 223,        // ERROR_FILE_TOO_LARGE
    NOTDIR = 267,      // ERROR_DIRECTORY
    CANCELED = 995,    // ERROR_OPERATION_ABORTED
    IO = 1117,         // ERROR_IO_DEVICE
    DEADLK = 1131,     // ERROR_POSSIBLE_DEADLOCK
    MLINK = 1142,      // ERROR_TOO_MANY_LINKS
    DQUOT = 1295,      // ERROR_DISK_QUOTA_EXCEEDED
    LOOP = 1921,       // ERROR_CANT_RESOLVE_FILENAME
    ISDIR = own(1),
    OVERFLOW = own(2),
    SPIPE = own(3),
    INTR = own(4),
    FAULT = own(5),
    PERM = own(6),
    NFILE = own(7),
    NXIO = own(8),
    NOBUFS = own(9),
    STALE = own(10),
    TXTBSY = own(11),
    TIME = own(12),
    NODEV = own(13),
}

impl Errno {
    pub(crate) fn from_raw_os_error(code: i32) -> Errno {
        Errno(code)
    }

    pub(crate) fn raw_os_error(self) -> i32 {
        self.0
    }

    pub(crate) fn from_io_error(error: &io::Error) -> Option<Errno> {
        error.raw_os_error().map(Errno)
    }

    /// Replaces a code by its synonym that has a name here.
    pub(crate) fn named(self) -> Errno {
        match self.0 {
            // ERROR_PATH_NOT_FOUND, ERROR_INVALID_DRIVE, ERROR_BAD_NETPATH, ERROR_BAD_NET_NAME.
            3 | 15 | 53 | 67 => Errno::NOENT,
            // ERROR_OUTOFMEMORY, ERROR_COMMITMENT_LIMIT, ERROR_NO_SYSTEM_RESOURCES.
            14 | 1455 | 1450 => Errno::NOMEM,
            // ERROR_CRC, ERROR_SEEK, ERROR_SECTOR_NOT_FOUND, ERROR_WRITE_FAULT, ERROR_READ_FAULT,
            // ERROR_GEN_FAILURE, ERROR_DATA_CHECKSUM_ERROR, ERROR_DEVICE_HARDWARE_ERROR,
            // ERROR_DISK_OPERATION_FAILED, ERROR_FILE_CORRUPT, ERROR_DISK_CORRUPT.
            23 | 25 | 27 | 29 | 30 | 31 | 323 | 483 | 1127 | 1392 | 1393 => Errno::IO,
            // ERROR_HANDLE_DISK_FULL.
            39 => Errno::NOSPC,
            // ERROR_FILE_EXISTS.
            80 => Errno::EXIST,
            // ERROR_INVALID_NAME, ERROR_BAD_PATHNAME: as in std.
            123 | 161 => Errno::NAMETOOLONG,
            // ERROR_INVALID_FUNCTION.
            1 => Errno::OPNOTSUPP,
            // ERROR_PRIVILEGE_NOT_HELD.
            1314 => Errno::ACCESS,
            // ERROR_USER_MAPPED_FILE.
            1224 => Errno::BUSY,
            _ => self,
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "os error {}", self.0)
    }
}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> io::Error {
        match errno {
            Errno::ISDIR => io::ErrorKind::IsADirectory.into(),
            Errno::SPIPE => io::ErrorKind::NotSeekable.into(),
            errno if errno.0 & own(0) != 0 => io::ErrorKind::Other.into(),
            errno => io::Error::from_raw_os_error(errno.0),
        }
    }
}

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct OFlags(u32);

#[allow(dead_code)]
impl OFlags {
    pub(crate) const RDONLY: OFlags = OFlags(0);
    pub(crate) const WRONLY: OFlags = OFlags(1);
    pub(crate) const RDWR: OFlags = OFlags(2);
    pub(crate) const RWMODE: OFlags = OFlags(3);
    pub(crate) const APPEND: OFlags = OFlags(1 << 2);
    pub(crate) const CREATE: OFlags = OFlags(1 << 3);
    pub(crate) const EXCL: OFlags = OFlags(1 << 4);
    pub(crate) const TRUNC: OFlags = OFlags(1 << 5);
    /// Each write is durable (`FILE_FLAG_WRITE_THROUGH`).
    pub(crate) const DSYNC: OFlags = OFlags(1 << 6);
    /// Handles are never inherited.
    pub(crate) const CLOEXEC: OFlags = OFlags(0);
    pub(crate) const NONBLOCK: OFlags = OFlags(0);

    pub(crate) const fn empty() -> OFlags {
        OFlags(0)
    }

    /// Ignores `custom_flags`.
    pub(crate) const fn from_bits_retain(_bits: u32) -> OFlags {
        OFlags(0)
    }

    pub(crate) const fn bits(self) -> u32 {
        self.0
    }

    pub(crate) const fn contains(self, other: OFlags) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) const fn intersects(self, other: OFlags) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) const fn union(self, other: OFlags) -> OFlags {
        OFlags(self.0 | other.0)
    }
}

impl BitOr for OFlags {
    type Output = OFlags;

    fn bitor(self, other: OFlags) -> OFlags {
        self.union(other)
    }
}

impl BitAnd for OFlags {
    type Output = OFlags;

    fn bitand(self, other: OFlags) -> OFlags {
        OFlags(self.0 & other.0)
    }
}

impl Sub for OFlags {
    type Output = OFlags;

    fn sub(self, other: OFlags) -> OFlags {
        OFlags(self.0 & !other.0)
    }
}

/// Permissions of a new file: Windows has no POSIX permissions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mode;

impl Mode {
    pub(crate) const fn empty() -> Mode {
        Mode
    }

    pub(crate) const fn from_raw_mode(_mode: u32) -> Mode {
        Mode
    }
}
