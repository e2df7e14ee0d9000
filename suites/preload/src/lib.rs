//! Replaces the C library's reads, writes and syncs of files by nowait's (`LD_PRELOAD`), so that
//! test suites of other projects run on it unchanged. For tests only: no program needs it.
//!
//! * Served: `read`, `readv`, `pread`, `preadv`, `write`, `writev`, `pwrite`, `pwritev`, with their
//!   variants of 64 bits and with flags, `fsync` and `fdatasync`, on regular files and block devices. All else
//!   goes to the kernel, as do calls that the C library makes within itself (stdio).
//! * `NOWAIT_PRELOAD_ENGINE`: `auto`, `uring`, `aio`, `pool`, or `strict`, which is `auto` with
//!   strict inline service.
//! * `NOWAIT_PRELOAD_CALLS`: `wait` for calls that block, or `future` for futures under `block_on`
//!   (the default).
//! * `NOWAIT_PRELOAD_REPORT`: a file to which a process that exits appends a line: the numbers of
//!   transfers and of syncs served, and its program.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs;
use std::io::Write as _;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use libc::{c_int, c_void, iovec, off_t, size_t, ssize_t};
use nowait::{Engine, ErrorKind, File, Lent, Moved, Nowait, Operation, Write};

/// An open file that the library adopted, by a duplicate of the descriptor.
struct Adopted {
    file: File,
    appends: bool,
    /// Held by calls that use the file's position, as the kernel holds `f_pos_lock`.
    position: Mutex<()>,
}

/// What is known of a descriptor. One that is no file is asked for again each time: its number may be
/// reused without a call that this library sees.
type Table = HashMap<RawFd, Arc<Adopted>>;

static TABLE: Mutex<Option<Table>> = Mutex::new(None);
static TRANSFERS: AtomicU64 = AtomicU64::new(0);
static SYNCS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Set while this thread is in the library, whose own calls go to the kernel.
    static WITHIN: Cell<bool> = const { Cell::new(false) };
}

fn table() -> MutexGuard<'static, Option<Table>> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn by_futures() -> bool {
    static FUTURES: OnceLock<bool> = OnceLock::new();
    *FUTURES.get_or_init(|| std::env::var_os("NOWAIT_PRELOAD_CALLS").is_none_or(|calls| calls != "wait"))
}

/// Returns the instance. Ends the process if the engine asked for is not available: a suite must not
/// pass without what it tests.
fn instance() -> &'static Nowait {
    static INSTANCE: OnceLock<Nowait> = OnceLock::new();
    INSTANCE.get_or_init(|| {
        let name = std::env::var("NOWAIT_PRELOAD_ENGINE").unwrap_or_else(|_| "auto".into());
        let builder = match name.as_str() {
            "auto" => Nowait::builder(),
            "strict" => Nowait::builder().strict(true),
            "uring" => Nowait::builder().engine(Engine::Uring),
            "aio" => Nowait::builder().engine(Engine::Aio),
            "pool" => Nowait::builder().engine(Engine::Pool),
            _ => give_up(&format!("there is no engine {name}")),
        };
        watch_exit_and_forks();
        builder.build().unwrap_or_else(|error| give_up(&error.to_string()))
    })
}

fn give_up(reason: &str) -> ! {
    eprintln!("nowait-preload: {reason}");
    std::process::abort()
}

/// At exit appends the report. Around a fork holds the table, which a child would else find locked.
fn watch_exit_and_forks() {
    extern "C" fn report() {
        let Some(path) = std::env::var_os("NOWAIT_PRELOAD_REPORT") else { return };
        WITHIN.set(true);
        let program = std::env::args_os().next().unwrap_or_default();
        let program = Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let line = format!("{} {} {program}\n", TRANSFERS.load(Relaxed), SYNCS.load(Relaxed));
        // In one call: processes that exit at once do not mix their lines.
        let report = fs::File::options().append(true).create(true).open(path);
        let _ = report.and_then(|mut file| file.write_all(line.as_bytes()));
    }
    thread_local! {
        static GUARD: Cell<Option<MutexGuard<'static, Option<Table>>>> = const { Cell::new(None) };
    }
    extern "C" fn before_fork() {
        GUARD.set(Some(table()));
    }
    extern "C" fn after_fork() {
        GUARD.set(None);
    }
    extern "C" fn in_child() {
        GUARD.set(None);
        TRANSFERS.store(0, Relaxed);
        SYNCS.store(0, Relaxed);
    }
    // SAFETY: the functions are `extern "C"`, take nothing, and live as long as the process.
    unsafe {
        libc::atexit(report);
        libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child));
    }
}

/// Whether both descriptors have one open file description. (A number may be reused after a close
/// that this library did not see.)
fn is_same(one: RawFd, other: RawFd) -> bool {
    const KCMP_FILE: c_int = 0;
    // SAFETY: kcmp takes numbers only.
    unsafe {
        let pid = libc::getpid();
        libc::syscall(libc::SYS_kcmp, pid, pid, KCMP_FILE, one, other) == 0
    }
}

/// Whether the descriptor is of procfs or sysfs, or cannot be asked.
fn is_of_the_kernel(fd: RawFd) -> bool {
    let mut status = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: fstatfs fills the memory, which is large enough, if it returns 0.
    unsafe {
        libc::fstatfs(fd, status.as_mut_ptr()) != 0
            || matches!(status.assume_init().f_type, libc::PROC_SUPER_MAGIC | libc::SYSFS_MAGIC)
    }
}

/// Returns what to serve a descriptor with. None: the kernel serves it.
fn adopted(fd: RawFd) -> Option<Arc<Adopted>> {
    if WITHIN.replace(true) {
        return None;
    }
    let found = look_up(fd);
    WITHIN.set(false);
    found
}

fn look_up(fd: RawFd) -> Option<Arc<Adopted>> {
    // Dropped after the table is unlocked.
    let stale;
    {
        let mut table = table();
        let table = table.get_or_insert_default();
        match table.get(&fd) {
            Some(known) if is_same(fd, known.file.descriptor()?.as_raw_fd()) => return Some(known.clone()),
            Some(_) => stale = table.remove(&fd),
            None => stale = None,
        }
    }
    drop(stale);
    let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: fstat fills the memory, which is large enough, if it returns 0.
    let status = unsafe {
        if libc::fstat(fd, status.as_mut_ptr()) != 0 {
            return None;
        }
        status.assume_init()
    };
    if !matches!(status.st_mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFBLK) {
        return None;
    }
    // The library itself reads such files, on threads of its own.
    if is_of_the_kernel(fd) {
        return None;
    }
    // SAFETY: fcntl takes a number.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: fstat succeeded, so the descriptor is open; it is not closed here.
    let own = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().ok()?;
    let file = File::from_std(instance(), own.into(), format!("/proc/self/fd/{fd}")).ok()?;
    let adopted = Arc::new(Adopted { file, appends: flags & libc::O_APPEND != 0, position: Mutex::new(()) });
    table().get_or_insert_default().insert(fd, adopted.clone());
    Some(adopted)
}

/// Makes a call with the library, and returns its result as the C library does.
fn serve(counter: &AtomicU64, call: impl FnOnce() -> nowait::Result<usize>) -> ssize_t {
    WITHIN.set(true);
    let result = call();
    WITHIN.set(false);
    counter.fetch_add(1, Relaxed);
    match result {
        Ok(count) => count as ssize_t,
        Err(error) => fail(error.raw_os_error().unwrap_or(match error.kind() {
            // So the library reports the EBADF of a descriptor that is open, but not for this.
            ErrorKind::PermissionDenied => libc::EBADF,
            _ => libc::EIO,
        })),
    }
}

fn fail(errno: c_int) -> ssize_t {
    // SAFETY: the address is that of this thread's errno.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// Memory of the caller, for a call during which the caller waits.
enum Room {
    One(Lent),
    Many(Vec<Lent>),
}

fn lent(start: *mut c_void, length: size_t) -> Lent {
    let start = NonNull::new(start.cast()).unwrap_or(NonNull::dangling());
    // SAFETY: the caller passed the memory for this call, which waits for the operation.
    unsafe { Lent::from_raw(start, length, ()) }
}

fn one(start: *const c_void, length: size_t) -> Room {
    Room::One(lent(start.cast_mut(), length))
}

/// Returns the memory of a vectored call, or None for a call that the kernel refuses.
///
/// # Safety
/// `parts` is what a caller passes to `readv(2)` or `writev(2)`.
unsafe fn many(parts: *const iovec, count: c_int) -> Option<Room> {
    let count = usize::try_from(count).ok().filter(|count| *count <= 1024)?;
    // SAFETY: as the caller promises.
    let parts = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(parts, count) } };
    let length = parts.iter().try_fold(0, |sum: size_t, part| sum.checked_add(part.iov_len))?;
    isize::try_from(length).ok()?;
    Some(Room::Many(parts.iter().map(|part| lent(part.iov_base, part.iov_len)).collect()))
}

fn read_at(adopted: &Adopted, room: Room, offset: u64) -> ssize_t {
    fn done<B>(read: Operation<'_, Moved<B>>) -> nowait::Result<usize> {
        let done = if by_futures() { nowait::block_on(read) } else { read.wait() };
        done.map(|(count, _)| count).map_err(Into::into)
    }
    serve(&TRANSFERS, || match room {
        Room::One(buffer) => done(adopted.file.read_at(buffer, offset)),
        Room::Many(buffers) => done(adopted.file.read_vectored_at(buffers, offset)),
    })
}

fn write_at(adopted: &Adopted, room: Room, offset: u64, is_durable: bool) -> ssize_t {
    fn done<B>(write: Write<'_, Moved<B>>, is_durable: bool) -> nowait::Result<usize> {
        let write = if is_durable { write.durable() } else { write };
        let done = if by_futures() { nowait::block_on(write) } else { write.wait() };
        done.map(|(count, _)| count).map_err(Into::into)
    }
    serve(&TRANSFERS, || match room {
        Room::One(buffer) => done(adopted.file.write_at(buffer, offset), is_durable),
        Room::Many(buffers) => done(adopted.file.write_vectored_at(buffers, offset), is_durable),
    })
}

/// Returns the descriptor's position. The descriptor and its duplicate share it.
fn position(fd: RawFd) -> Result<u64, ssize_t> {
    // SAFETY: lseek takes numbers.
    let position = unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) };
    u64::try_from(position).map_err(|_| -1)
}

fn advance(fd: RawFd, count: ssize_t, whence: c_int) {
    if count > 0 {
        // SAFETY: lseek takes numbers.
        unsafe { libc::lseek(fd, if whence == libc::SEEK_END { 0 } else { count as off_t }, whence) };
    }
}

fn read_here(fd: RawFd, adopted: &Adopted, room: Room) -> ssize_t {
    let _held = adopted.position.lock().unwrap_or_else(PoisonError::into_inner);
    let offset = match position(fd) {
        Ok(offset) => offset,
        Err(failed) => return failed,
    };
    let count = read_at(adopted, room, offset);
    advance(fd, count, libc::SEEK_CUR);
    count
}

fn write_here(fd: RawFd, adopted: &Adopted, room: Room, is_durable: bool) -> ssize_t {
    let _held = adopted.position.lock().unwrap_or_else(PoisonError::into_inner);
    let offset = match position(fd) {
        Ok(offset) => offset,
        Err(failed) => return failed,
    };
    let count = write_at(adopted, room, offset, is_durable);
    advance(fd, count, if adopted.appends { libc::SEEK_END } else { libc::SEEK_CUR });
    count
}

/// The kernel checks an offset before anything else.
fn checked(offset: off_t) -> Result<u64, ssize_t> {
    u64::try_from(offset).map_err(|_| fail(libc::EINVAL))
}

/// The call of the kernel, as the C library makes it.
macro_rules! kernel {
    ($number:ident, $($argument:expr),*) => {
        // SAFETY: these are the arguments that the caller passed to this very call.
        unsafe { libc::syscall(libc::$number, $($argument),*) as ssize_t }
    };
}

/// # Safety
/// As `read(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, start: *mut c_void, length: size_t) -> ssize_t {
    match adopted(fd) {
        Some(adopted) => read_here(fd, &adopted, one(start, length)),
        None => kernel!(SYS_read, fd, start, length),
    }
}

/// # Safety
/// As `write(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, start: *const c_void, length: size_t) -> ssize_t {
    match adopted(fd) {
        Some(adopted) => write_here(fd, &adopted, one(start, length), false),
        None => kernel!(SYS_write, fd, start, length),
    }
}

/// # Safety
/// As `readv(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(fd: c_int, start: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: as the caller promises.
    match (adopted(fd), unsafe { many(start, count) }) {
        (Some(adopted), Some(room)) => read_here(fd, &adopted, room),
        _ => kernel!(SYS_readv, fd, start, count),
    }
}

/// # Safety
/// As `writev(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: c_int, start: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: as the caller promises.
    match (adopted(fd), unsafe { many(start, count) }) {
        (Some(adopted), Some(room)) => write_here(fd, &adopted, room, false),
        _ => kernel!(SYS_writev, fd, start, count),
    }
}

/// # Safety
/// As `pread(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pread(fd: c_int, start: *mut c_void, length: size_t, offset: off_t) -> ssize_t {
    match (adopted(fd), checked(offset)) {
        (None, _) => kernel!(SYS_pread64, fd, start, length, offset),
        (Some(_), Err(failed)) => failed,
        (Some(adopted), Ok(offset)) => read_at(&adopted, one(start, length), offset),
    }
}

/// # Safety
/// As `pwrite(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite(fd: c_int, start: *const c_void, length: size_t, offset: off_t) -> ssize_t {
    match (adopted(fd), checked(offset)) {
        (None, _) => kernel!(SYS_pwrite64, fd, start, length, offset),
        (Some(_), Err(failed)) => failed,
        (Some(adopted), Ok(offset)) => write_at(&adopted, one(start, length), offset, false),
    }
}

/// # Safety
/// As `preadv2(2)`. Flags other than zero go to the kernel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn preadv2(fd: c_int, start: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
    // SAFETY: as the caller promises.
    match (adopted(fd), unsafe { many(start, count) }) {
        (Some(adopted), Some(room)) if flags == 0 && offset >= -1 => match u64::try_from(offset) {
            Ok(offset) => read_at(&adopted, room, offset),
            Err(_) => read_here(fd, &adopted, room),
        },
        // The offset is passed in two halves, of which the kernel uses the first on 64 bits.
        _ => kernel!(SYS_preadv2, fd, start, count, offset, 0, flags),
    }
}

/// # Safety
/// As `pwritev2(2)`. Flags other than `RWF_DSYNC` go to the kernel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwritev2(
    fd: c_int,
    start: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    let is_durable = flags == libc::RWF_DSYNC;
    // SAFETY: as the caller promises.
    match (adopted(fd), unsafe { many(start, count) }) {
        (Some(adopted), Some(room)) if (flags == 0 || is_durable) && offset >= -1 => match u64::try_from(offset) {
            Ok(offset) => write_at(&adopted, room, offset, is_durable),
            Err(_) => write_here(fd, &adopted, room, is_durable),
        },
        _ => kernel!(SYS_pwritev2, fd, start, count, offset, 0, flags),
    }
}

/// # Safety
/// As `preadv(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn preadv(fd: c_int, start: *const iovec, count: c_int, offset: off_t) -> ssize_t {
    if offset < 0 {
        return fail(libc::EINVAL);
    }
    // SAFETY: as the caller promises.
    unsafe { preadv2(fd, start, count, offset, 0) }
}

/// # Safety
/// As `pwritev(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwritev(fd: c_int, start: *const iovec, count: c_int, offset: off_t) -> ssize_t {
    if offset < 0 {
        return fail(libc::EINVAL);
    }
    // SAFETY: as the caller promises.
    unsafe { pwritev2(fd, start, count, offset, 0) }
}

/// # Safety
/// As `fsync(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fsync(fd: c_int) -> c_int {
    match adopted(fd) {
        Some(adopted) => serve(&SYNCS, || adopted.file.sync_all().wait().map(|()| 0)) as c_int,
        None => kernel!(SYS_fsync, fd) as c_int,
    }
}

/// # Safety
/// As `fdatasync(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdatasync(fd: c_int) -> c_int {
    match adopted(fd) {
        Some(adopted) => serve(&SYNCS, || adopted.file.sync_data().wait().map(|()| 0)) as c_int,
        None => kernel!(SYS_fdatasync, fd) as c_int,
    }
}

/// Lets go of the file, and closes the descriptor.
///
/// # Safety
/// As `close(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if !WITHIN.replace(true) {
        let known = table().as_mut().and_then(|table| table.remove(&fd));
        // The last reference closes the duplicate.
        drop(known);
        WITHIN.set(false);
    }
    kernel!(SYS_close, fd) as c_int
}

/// Makes a name of 64 bits the same function.
macro_rules! same {
    ($($name:ident = $function:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        /// # Safety
        /// As the function without the suffix.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            // SAFETY: as the caller promises.
            unsafe { $function($($argument),*) }
        }
    )*};
}

same! {
    pread64 = pread(fd: c_int, start: *mut c_void, length: size_t, offset: off_t) -> ssize_t;
    pwrite64 = pwrite(fd: c_int, start: *const c_void, length: size_t, offset: off_t) -> ssize_t;
    preadv64 = preadv(fd: c_int, start: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    pwritev64 = pwritev(fd: c_int, start: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    preadv64v2 = preadv2(fd: c_int, start: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    pwritev64v2 = pwritev2(fd: c_int, start: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
}
