// Asynchronous file I/O for Linux (cached data inline, the rest through io_uring or a thread pool), a
// durable log, and copies of files.
//
// Made by cbindgen from crates/nowait-c/src: change it there (tests/header.rs says how).
//
// Errors. Calls return 0, a count or a number of bytes; or a negative errno, and then
// nowait_error_message has a text: operation, path, offset, length, cause, and what to do next.
//
// Handles are numbers; 0 is no handle. Each kind has its own close function. Using a number that was
// closed, is of another kind, or never was a handle, is an error (-EBADF). A closed number stays
// invalid, even if its slot is in use again. A NULL or misaligned pointer is an error (-EFAULT).
//
// Structs that begin with `size` grow: set all to zero, and `size` to the sizeof. A size that no
// version had is an error (-EINVAL). Members of options that the library does not know have to be 0
// (-E2BIG); members of answers that it does not know are 0 afterwards.
//
// Threads. Any thread may make any call at any time, also on the same handles, unless the call says
// otherwise. Closing a handle does not affect calls on it that are in progress. A forked child may
// use files and names, but not queues, logs, readers and copies of its parent (-EINVAL). Do not call
// any function in a signal handler. No function calls back: completions are reaped.
//
// Offsets, lengths and sizes are in bytes; other units are in the name. Strings end with a zero byte;
// paths are bytes of any encoding. Pointers must point to as much memory as the call says; this
// cannot be checked. The caller owns all memory. A call states if it needs memory after its return.


#ifndef NOWAIT_H
#define NOWAIT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

// Version of the interface that this header describes: NOWAIT_VERSION_MAJOR.MINOR.PATCH.
#define NOWAIT_VERSION_MAJOR 0

// See NOWAIT_VERSION_MAJOR.
#define NOWAIT_VERSION_MINOR 1

// See NOWAIT_VERSION_MAJOR.
#define NOWAIT_VERSION_PATCH 0

// io_uring if available; else libaio for direct I/O, if available; else threads of the library.
#define NOWAIT_ENGINE_AUTO 0

// io_uring, or -ENOSYS.
#define NOWAIT_ENGINE_URING 1

// libaio for direct I/O, or -ENOSYS; threads for all else.
#define NOWAIT_ENGINE_AIO 2

// Threads of the library only.
#define NOWAIT_ENGINE_POOL 3

// The write is on stable storage when it ends, with the metadata needed to read it back
// (RWF_DSYNC).
#define NOWAIT_WRITE_DURABLE 1

// The kernel drops the pages once they are on the device (RWF_DONTCACHE, Linux 6.14); -EOPNOTSUPP
// where it cannot.
#define NOWAIT_WRITE_UNCACHED 2

// All or nothing, also across a power failure (RWF_ATOMIC, Linux 6.11); -EOPNOTSUPP where that
// cannot be.
#define NOWAIT_WRITE_ATOMIC 4

// Attributes, such as times, are made durable, too: fsync(2), not fdatasync(2).
#define NOWAIT_SYNC_ALL 1

// Reserves space; the file grows to the end of the range if it is shorter.
#define NOWAIT_ALLOCATE_RESERVE 0

// Reserves space, also beyond the end of the file, and leaves the size unchanged.
#define NOWAIT_ALLOCATE_KEEP_SIZE 1

// Frees the space; the range reads as zeros, and the size is unchanged.
#define NOWAIT_ALLOCATE_PUNCH_HOLE 2

// Zeroes the range, and keeps its space if the file system can. The file grows to the end of the
// range if it is shorter.
#define NOWAIT_ALLOCATE_ZERO 3

// No special treatment.
#define NOWAIT_ADVICE_NORMAL 0

// Random reads: no read-ahead. Applies to the whole file, whatever the range.
#define NOWAIT_ADVICE_RANDOM 1

// Sequential reads: more read-ahead. Applies to the whole file, whatever the range.
#define NOWAIT_ADVICE_SEQUENTIAL 2

// The range will be needed soon: the kernel starts to read it.
#define NOWAIT_ADVICE_WILL_NEED 3

// The range will not be needed soon: its clean pages may be dropped.
#define NOWAIT_ADVICE_DONT_NEED 4

// The range will be needed once.
#define NOWAIT_ADVICE_NO_REUSE 5

// Metadata of a symbolic link itself, not of its target.
#define NOWAIT_METADATA_OF_LINK 1

// Several opens may hold the lock at a time. For a range, the file has to be open for reading.
#define NOWAIT_LOCK_SHARED 1

// Only one open may hold the lock. For a range, the file has to be open for writing.
#define NOWAIT_LOCK_EXCLUSIVE 2

// The change of names is durable when the call ends: the directories are synced.
#define NOWAIT_NAME_DURABLE 1

// nowait_rename replaces nothing: -EEXIST if the new name exists.
#define NOWAIT_RENAME_NEW 2

// nowait_sync_dir syncs the parent directory of `path`.
#define NOWAIT_SYNC_PARENT 2

// Nothing is durable when a copy ends.
#define NOWAIT_COPY_SYNC_NONE 0

// Each file is durable before it gets its name.
#define NOWAIT_COPY_SYNC_FILE 1

// Everything is durable when the copy ends, in one go.
#define NOWAIT_COPY_SYNC_ALL 2

// Leaves no page in the page cache that was not there before.
#define NOWAIT_COPY_CACHE_NEUTRAL 1

// Reads each copy back around the page cache, and compares checksums.
#define NOWAIT_COPY_VERIFY 2

// Keeps what was copied of a file when the copy ends early, and goes on from there the next time.
#define NOWAIT_COPY_RESUME 4

// Counts what there is to copy on a thread of its own, so that the totals are known.
#define NOWAIT_COPY_COUNT_FIRST 8

// Takes the target as the name of the copy, also if it is a directory.
#define NOWAIT_COPY_NO_TARGET_DIRECTORY 16

// Keeps files that exist in the target.
#define NOWAIT_COPY_KEEP 32

// Replaces a file in the target only if that is older.
#define NOWAIT_COPY_KEEP_NEWER 64

// Shares no blocks with the source.
#define NOWAIT_COPY_NO_REFLINK 128

// Makes a hole of every block of zeros.
#define NOWAIT_COPY_SPARSE 256

// Writes every block, holes of the source too.
#define NOWAIT_COPY_NO_HOLES 512

// Requests are made one at a time only, of a page or less: a second instead of some.
#define NOWAIT_PROBE_SHALLOW 1

// The pages of the file may be dropped from the page cache, so that cold reads can be made.
#define NOWAIT_PROBE_EVICT 2

// How an instance is set up. Set all to zero, then `size`, then what is to differ from the default.
struct nowait_instance_options {
    // sizeof(struct nowait_instance_options).
    size_t size;
    // One of NOWAIT_ENGINE_...
    uint32_t engine;
    // 1: only attempts that the kernel promises not to block (RWF_NOWAIT) are made on the thread
    // that submits.
    uint32_t strict;
    // Longest plain call on the thread that submits, where a file has no form that does not block:
    // this, and a nanosecond a byte. 0: 100 us.
    uint64_t stall_budget_ns;
    // Most bytes that a submission copies from the page cache itself. 0: 1 MiB.
    uint64_t inline_bytes_max;
    // Most threads of the pool. 0: 64.
    uint64_t pool_threads_max;
    // Most bytes of submitted writes that have not finished, of one file. 0: 16 MiB.
    uint64_t file_write_bytes_max;
    // The same, of all files. 0: 64 MiB.
    uint64_t write_bytes_max;
};

// An instance: engines, policy and counters, which its files share. 0 is the instance that the
// process shares; it is made when it is first used, and needs no close.
typedef uint64_t nowait_instance;

// Counters of an instance since it was made. Each operation that has started ends in exactly one of
// served_inline, blocking, ring, aio, pool, cancelled, failed.
struct nowait_instance_counters {
    // sizeof(struct nowait_instance_counters).
    size_t size;
    // Operations that were started. A gather counts each request that it makes.
    uint64_t started;
    // Served on the thread that submitted, without waiting.
    uint64_t served_inline;
    // Served by a plain system call of a caller that waits: nowait_read_at, for instance.
    uint64_t blocking;
    // Completed by io_uring.
    uint64_t ring;
    // Completed by libaio.
    uint64_t aio;
    // Completed by a thread of the pool.
    uint64_t pool;
    // Cancelled before the engine was through.
    uint64_t cancelled;
    // Ended in an error.
    uint64_t failed;
    // Non-blocking attempts (RWF_NOWAIT).
    uint64_t attempts;
    // Attempts that found nothing cached.
    uint64_t misses;
    // Plain calls on the thread that submitted that took longer than the stall budget.
    uint64_t stalls;
    // Operations that waited for a place in a full queue.
    uint64_t queued;
    // Writes that waited because too many bytes were on their way.
    uint64_t throttled;
    // Bytes that direct reads moved beyond what was asked for.
    uint64_t widened_bytes;
};

// An open file. 0 is none.
typedef uint64_t nowait_file;

// Metadata of a file (statx(2)). Times are in nanoseconds since 1970, negative before.
struct nowait_metadata {
    // sizeof(struct nowait_metadata).
    size_t size;
    // Length of the file in bytes; 0 for a block device (use nowait_file_size).
    uint64_t length;
    // Bytes of allocated storage: fewer than `length` with holes, more with reservations.
    uint64_t allocated_bytes;
    // Device number of the file system (makedev(3)).
    uint64_t device;
    // Inode number. Two names with the same `device` and `inode` are one file.
    uint64_t inode;
    // Number of names (hard links). 0: the file was removed, and exists while it is open.
    uint64_t links;
    // Type and permissions, as st_mode: S_ISREG(mode), mode & 07777.
    uint32_t mode;
    // User id of the owner.
    uint32_t owner;
    // Group id.
    uint32_t group;
    // Preferred request size of the file system in bytes.
    uint32_t block_bytes;
    // Time of the last read; file systems seldom keep it up to date (relatime, noatime).
    int64_t accessed_ns;
    // Time of the last change of the contents.
    int64_t modified_ns;
    // Time of the last change of the contents or the metadata.
    int64_t changed_ns;
    // Time of creation; INT64_MIN if the file system does not keep it.
    int64_t created_ns;
};

// A range of a file, in bytes. Its layout is fixed.
struct nowait_range {
    // Where it begins in the file.
    uint64_t offset;
    // How long it is.
    uint64_t length;
};

// How a log is opened. Set all to zero, then `size`, then what is to differ from the default.
struct nowait_log_options {
    // sizeof(struct nowait_log_options).
    size_t size;
    // 1: makes a log where there is none, in a directory that is new or empty.
    uint32_t create;
    // 1: opens a damaged log, too, which then goes on after the last record before the damage.
    uint32_t salvage;
    // 1: reads the end of the log only when it is opened, not all of it.
    uint32_t scan_tail;
    // Has to be 0 (-E2BIG).
    uint32_t reserved;
    // Size of the largest segments of a log that is made: a multiple of 4096, at least 16 KiB. A
    // record has to fit into one. 0: 64 MiB.
    uint64_t segment_bytes;
    // Size of the first segment of each opening. 0: 1 MiB.
    uint64_t first_segment_bytes;
    // Bytes that are appended and not durable from which on appends wait. 0: 16 MiB.
    uint64_t pending_bytes_max;
    // Bytes of the last blocks that are kept in memory for readers. 0: 4 MiB.
    uint64_t tail_bytes;
};

// A log that is open for appending. 0 is none.
typedef uint64_t nowait_log;

// Findings when a log was opened.
struct nowait_log_recovery {
    // sizeof(struct nowait_log_recovery).
    size_t size;
    // Number of the oldest record; one more than `last_record` if there is none.
    uint64_t first_record;
    // Number of the last record; 0 in a log that never had one.
    uint64_t last_record;
    // Number that the next record will get.
    uint64_t next_record;
    // Places where records that were durable cannot be read. Not 0 after a salvage only.
    uint64_t damaged_places;
    // 1: there was no log, and this call made one.
    uint32_t was_created;
    // 1: it had been closed.
    uint32_t was_closed;
    // 1: a write had been cut off before it was acknowledged.
    uint32_t was_torn;
    // 1: its blocks go past the page cache.
    uint32_t is_direct;
};

// Bytes of one record of a batch. Its layout is fixed, and that of struct iovec.
struct nowait_bytes {
    // Where they are.
    const void *bytes;
    // How many.
    size_t length;
};

// Counters of a log since it was opened.
struct nowait_log_counters {
    // sizeof(struct nowait_log_counters).
    size_t size;
    // Records that were written.
    uint64_t records;
    // Blocks that were written; each is one commit of the disk.
    uint64_t blocks;
    // Bytes of the records, and 9 for each.
    uint64_t payload_bytes;
    // Bytes written in blocks, headers and padding included.
    uint64_t written_bytes;
    // Records that were appended and are not durable yet.
    uint64_t pending_records;
    // Appends that waited for room.
    uint64_t stalls;
    // Segments that hold the log.
    uint64_t segments;
    // Nanoseconds from the submission of a block to its completion: median.
    uint64_t written_median_ns;
    // The same: of a hundred blocks 99 took no longer.
    uint64_t written_p99_ns;
};

// A reader of a log. 0 is none.
typedef uint64_t nowait_log_reader;

// A record. Its layout is fixed.
struct nowait_log_record {
    // Its number.
    uint64_t number;
    // Its bytes; valid until the next call with this reader.
    const void *bytes;
    // How many.
    size_t length;
};

// How files are copied. Set all to zero, then `size`, then what is to differ from the default.
struct nowait_copy_options {
    // sizeof(struct nowait_copy_options).
    size_t size;
    // One of NOWAIT_COPY_SYNC_...
    uint32_t sync;
    // The other NOWAIT_COPY_..., or'ed.
    uint32_t flags;
    // Most bytes in a second. 0: as many as possible.
    uint64_t bytes_per_second_max;
    // Most bytes of this copy in the page cache that are not on the device. 0: as the system has it.
    uint64_t dirty_bytes_max;
};

// A copy that runs, or has ended; nowait_submit_copy_wait brings its end into a queue. 0 is none.
typedef uint64_t nowait_copy;

// How far a copy is.
struct nowait_copy_state {
    // sizeof(struct nowait_copy_state).
    size_t size;
    // Bytes copied so far.
    uint64_t bytes;
    // Files finished so far.
    uint64_t files;
    // Bytes found so far in files to copy.
    uint64_t bytes_found;
    // Files found so far.
    uint64_t files_found;
    // 1: all sources are walked, and what was found is the total.
    uint64_t is_walked;
    // Time since the start.
    uint64_t elapsed_ns;
};

// Result of a copy.
struct nowait_copy_report {
    // sizeof(struct nowait_copy_report).
    size_t size;
    // Regular files copied.
    uint64_t files;
    // Directories made, or found in the target.
    uint64_t directories;
    // Symbolic links, FIFOs, sockets and devices made.
    uint64_t nodes;
    // Hard links made.
    uint64_t hard_links;
    // Bytes of data in the files copied, holes left out.
    uint64_t bytes;
    // Files left out, since they exist in the target.
    uint64_t skipped;
    // Files whose copy was read back and found right.
    uint64_t verified;
    // Files and directories that could not be copied.
    uint64_t failures;
    // Those that were copied, but changed meanwhile, or lost some of their metadata.
    uint64_t warnings;
    // 1: it was cancelled before its end.
    uint64_t is_cancelled;
    // Time that it took.
    uint64_t elapsed_ns;
};

// A queue of operations and their completions. 0 is none.
typedef uint64_t nowait_queue;

// A completion. Its layout is fixed.
struct nowait_completion {
    // As it was submitted.
    void *user;
    // The number that its submission gave.
    uint64_t operation;
    // For a read, write or append, the number of bytes. For a wait on a log, the last durable
    // record. Otherwise 0. Or a negative errno, as the blocking call returns it. -ECANCELED after
    // nowait_cancel.
    int64_t result;
    // Index of the first range of a gather that is not complete, if the result is negative; else 0.
    uint64_t range_index;
    // NULL if the result is not negative. Else the text for people, as nowait_error_message; valid
    // until this thread calls nowait_reap again, or ends.
    const char *message;
};

// A write of nowait_submit_writes. Its layout is fixed.
struct nowait_write {
    // The file to write.
    nowait_file file;
    // Start of the bytes.
    const void *buffer;
    // Number of bytes.
    size_t length;
    // Offset in the file.
    uint64_t offset;
    // NOWAIT_WRITE_..., or'ed, or 0.
    uint64_t flags;
    // Returned with the completion.
    void *user;
    // Gets the operation's number, for nowait_cancel.
    uint64_t operation;
};

// A read of nowait_submit_reads. Its layout is fixed.
struct nowait_read {
    // The file to read.
    nowait_file file;
    // Where the bytes go.
    void *buffer;
    // How many.
    size_t length;
    // Where they begin in the file.
    uint64_t offset;
    // Comes back with the completion.
    void *user;
    // Gets the operation's number, for nowait_cancel.
    uint64_t operation;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Says why the last call of this thread that failed did: operation, path, offset, length, cause,
// and what to do next; "" if none has failed. It is valid until another call of this thread fails,
// or the thread ends. Call it after the call that failed, not as an argument beside it: C does not
// say which argument comes first.
const char *nowait_error_message(void);

// Returns the version of the library that runs, "0.1.0" for instance. It may be newer than the
// header that the program was built with. Threads: any.
const char *nowait_version(void);

// Makes an instance with engines, policy and counters of its own. `options` may be NULL. Threads:
// any.
//
// Returns 0, or a negative errno: -ENOSYS if the engine is not available here.
// `options` is NULL or points to as many bytes as its size says; `instance` to a handle.
int nowait_instance_open(const struct nowait_instance_options *options, nowait_instance *instance);

// Gives an instance up. Files that were opened in it, and operations in flight, are not affected.
// Threads: any.
//
// Returns 0, or -EBADF if the handle is not open.
int nowait_instance_close(nowait_instance instance);

// Fills in the counters of an instance. They are no consistent cut while operations are under way.
// Threads: any.
//
// Returns 0, or a negative errno.
// `stats` points to as many bytes as its size says.
int nowait_instance_stats(nowait_instance instance, struct nowait_instance_counters *stats);

// Whether slow operations can go to io_uring: 1 or 0, or -EBADF. Threads: any.
int nowait_instance_has_ring(nowait_instance instance);

// Opens a file, as open(2) does: `flags` are O_RDONLY, O_WRONLY or O_RDWR, with O_CREAT and the
// like; `mode` has the permissions of a new file. `instance` may be 0.
//
// O_CLOEXEC is always set, O_NONBLOCK never. With O_DIRECT reads and writes go past the page cache
// where the file system can, and any offset, length and memory will do; where it cannot they go
// through the page cache.
//
// Returns 0, or a negative errno: those of open(2); -EISDIR for a directory; -ESPIPE for what has no
// offsets, such as a pipe. Threads: any.
// `path` is a string, `file` points to a handle.
int nowait_file_open(nowait_instance instance,
                     const char *path,
                     int flags,
                     unsigned int mode,
                     nowait_file *file);

// Makes a file of a descriptor. The library uses a duplicate of it: `descriptor` stays the
// caller's, to be closed by the caller. `name` is for messages; if it is NULL they have the path
// that /proc knows. `instance` may be 0.
//
// O_NONBLOCK, which has no meaning for files, is taken off the open file.
//
// Returns 0, or a negative errno: -EBADF; -EISDIR; -ESPIPE for what has no offsets. Threads: any.
// `name` is NULL or a string, `file` points to a handle.
int nowait_file_from_descriptor(nowait_instance instance,
                                int descriptor,
                                const char *name,
                                nowait_file *file);

// Closes a file. Operations in flight, and calls of other threads, end as if it were open; the last
// of them closes the descriptor. Nothing becomes durable: see nowait_sync.
//
// Returns 0, or a negative errno: -EBADF if the handle is not open; those of close(2), after which
// the handle is closed, too. Threads: any.
int nowait_file_close(nowait_file file);

// Returns the descriptor of a file, for fstat(2) and the like; it is closed with the file. Or
// -EBADF. Threads: any.
int nowait_file_descriptor(nowait_file file);

// Returns 1 if reads and writes bypass the page cache; 0 if the file was not opened with O_DIRECT,
// or its file system has no direct I/O; or -EBADF. Requests may have any offset, length and
// memory. Requests whose offset and length are multiples of `offset_alignment`, and whose memory
// address is a multiple of `memory_alignment`, go to the device unchanged. Other requests are
// copied, or read more than was asked for. Both alignments are in bytes, and 1 if the result is 0.
// They may grow at the first request, if the device reported less than it needs. Threads: any.
// Each pointer is NULL or points to a number.
int nowait_file_direct(nowait_file file, size_t *memory_alignment, size_t *offset_alignment);

// Puts the size in bytes, of a file or a block device, into `size`. Returns 0, or a negative errno.
// Threads: any.
// `size` points to a number.
int nowait_file_size(nowait_file file, uint64_t *size);

// Reads up to `length` bytes at `offset` into `buffer`, and waits for them. It is short only at the
// end of the file: short reads and signals are handled here.
//
// Returns the number of bytes, 0 at the end of the file, or a negative errno: -EBADF if the handle
// is not open; -EACCES if the file was not opened for reading; -EOVERFLOW beyond INT64_MAX; those of
// pread(2). Threads: any.
// `length` bytes at `buffer` are valid for writes, and nothing else uses them during the call.
int64_t nowait_read_at(nowait_file file,
                       void *buffer,
                       size_t length,
                       uint64_t offset);

// Writes `length` bytes from `buffer` at `offset`, and waits for that; at the end of the file if it
// was opened with O_APPEND. `flags` are NOWAIT_WRITE_... or 0. Without NOWAIT_WRITE_DURABLE the
// bytes are in the page cache when it returns, and durable after a later nowait_sync.
//
// Returns the number of bytes, fewer only if the file system took no more: the next write says why.
// Or a negative errno; the message says how much was written: -ENOSPC, -EFBIG, -EOVERFLOW, -EBADF,
// -EACCES if the file was not opened for writing, those of pwrite(2). Threads: any; the order of
// writes that overlap at a time is not defined.
// `length` bytes at `buffer` are valid for reads, and nothing changes them during the call.
int64_t nowait_write_at(nowait_file file,
                        const void *buffer,
                        size_t length,
                        uint64_t offset,
                        uint32_t flags);

// Reads as nowait_read_at, if that should not wait: without a queue, for data that is likely cached.
//
// Returns the number of bytes, fewer if the file ends within the range; -EAGAIN, without a message,
// if it may wait, for direct I/O, and perhaps at the end of the file; or a negative errno, as
// nowait_read_at. After -EAGAIN the bytes at `buffer` are undefined: submit the read. Threads: any.
// As nowait_read_at.
int64_t nowait_try_read_at(nowait_file file,
                           void *buffer,
                           size_t length,
                           uint64_t offset);

// Writes as nowait_write_at without flags, if that should not wait: without a queue.
//
// Returns the number of bytes; -EAGAIN, without a message, if it may wait, or for direct I/O; or a
// negative errno, as nowait_write_at. After -EAGAIN some of the bytes may have been written: submit
// the write of all. It overtakes no write that was submitted and overlaps. Threads: any.
// As nowait_write_at.
int64_t nowait_try_write_at(nowait_file file, const void *buffer, size_t length, uint64_t offset);

// Writes `length` bytes from `buffer` at the current end of the file, and waits until they are
// written (RWF_APPEND). `flags` are NOWAIT_WRITE_... or 0; durability is that of nowait_write_at.
// Each append is one write: no other append, in any process, mixes with its bytes or overwrites
// them. The exception is a write that the file system takes in two parts (a full disk, more than 2
// GiB).
//
// The kernel does not report the offset. If the program needs it, use nowait_write_at with an
// offset that the program keeps.
//
// Returns `length`; or a negative errno, as nowait_write_at: the message says how much was
// written. An append that is written only in part is an error, too (-ENOSPC). -EOPNOTSUPP, and
// nothing is written, for a block device, and if the file system may ignore RWF_APPEND and /proc
// is not mounted: then open the file with O_APPEND. Threads: any; appends of one thread are in
// order.
// As nowait_write_at.
int64_t nowait_append(nowait_file file, const void *buffer, size_t length, uint32_t flags);

// Makes every write that was complete at the call durable, and waits for that. `flags` is 0
// (fdatasync(2): data, the size, and what is needed to read it back) or NOWAIT_SYNC_ALL. The name of
// a new file is not covered: sync its directory.
//
// Returns 0, or a negative errno. -EIO when a write-back failed: written data may be lost, although
// reads still show it. From then on every sync of this file fails, until
// nowait_file_acknowledge_sync_failure. Threads: any; syncs of one file share.
int nowait_sync(nowait_file file,
                uint32_t flags);

// Acknowledges a failed write-back, so that syncs may succeed again: when everything since the last
// sync that succeeded has been written anew, or given up. Returns 1 if there was a failure, 0 if
// there was none, or -EBADF. Threads: any.
int nowait_file_acknowledge_sync_failure(nowait_file file);

// Reads from `offset` on into `buffers`, one after the other. Otherwise as nowait_read_at of their
// total length. Any number of buffers is allowed, also empty ones. More than 1,024 buffers, or 2
// GiB, take several system calls (readv(2)): a write of the same range may come between them.
// `buffers` points to `buffers_count` elements, and each points to as many bytes as it says. The
// buffers do not overlap, and nothing else uses them during the call.
int64_t nowait_read_vectored_at(nowait_file file,
                                const struct iovec *buffers,
                                size_t buffers_count,
                                uint64_t offset);

// Writes `buffers`, one after the other, at `offset`. Otherwise as nowait_write_at of their total
// length. Any number of buffers is allowed. A reader may see the first buffers and not yet the
// last.
// `buffers` points to `buffers_count` elements, and each points to as many bytes as it says.
// Nothing changes these bytes during the call.
int64_t nowait_write_vectored_at(nowait_file file,
                                 const struct iovec *buffers,
                                 size_t buffers_count,
                                 uint64_t offset,
                                 uint32_t flags);

// Cuts the file to `length` bytes, or extends it with a hole, which reads as zeros (ftruncate(2)).
// Durable after a later nowait_sync.
//
// Returns 0, or a negative errno: -EBADF if the handle is not open; -EACCES if the file was not
// opened for writing; -EOVERFLOW beyond INT64_MAX; -EFBIG, -EIO, and others of ftruncate(2).
// Threads: any. The call waits for earlier submitted writes beyond `length`, and later ones wait
// for the call.
int nowait_file_set_length(nowait_file file, uint64_t length);

// Reserves, punches or zeroes `length` bytes from `offset` on, without writing them (fallocate(2)).
// `how` is one of NOWAIT_ALLOCATE_... After a reservation, writes of the range do not fail for want of
// space. Durable after a later nowait_sync.
//
// Returns 0, or a negative errno: -EOPNOTSUPP where the file system cannot do it, and nothing is
// changed; -EINVAL for a length of 0, or if `how` is not known; -ENOSPC; -EBADF; -EACCES if the file
// was not opened for writing; -EOVERFLOW beyond INT64_MAX; and others of fallocate(2). Threads: as
// nowait_file_set_length.
int nowait_file_allocate(nowait_file file,
                         uint32_t how,
                         uint64_t offset,
                         uint64_t length);

// Advises the page cache about `length` bytes from `offset` on; a length of 0 means to the end of the
// file (posix_fadvise(2)). `advice` is one of NOWAIT_ADVICE_... It changes only the speed.
//
// Returns 0, or a negative errno: -EINVAL if `advice` is not known; -EBADF; -EOVERFLOW beyond
// INT64_MAX. Threads: any. NOWAIT_ADVICE_WILL_NEED does not wait for the data. It may wait for
// metadata that map the file's blocks.
int nowait_file_advise(nowait_file file,
                       uint64_t offset,
                       uint64_t length,
                       uint32_t advice);

// Fills in the metadata of an open file. Returns 0, or a negative errno: -EBADF, those of
// statx(2). Threads: any.
// `metadata` points to as many bytes as its size says.
int nowait_file_metadata(nowait_file file, struct nowait_metadata *metadata);

// Fills in the metadata of a path: a file, a directory or anything else. `flags` is 0 or
// NOWAIT_METADATA_OF_LINK; `instance` may be 0. It needs no permission on the file itself.
//
// Returns 0, or a negative errno: -ENOENT if there is no such name; -EINVAL if the flags are not
// known; those of statx(2). Threads: any.
// `path` is a string, `metadata` points to as many bytes as its size says.
int nowait_path_metadata(nowait_instance instance,
                         const char *path,
                         uint32_t flags,
                         struct nowait_metadata *metadata);

// Tries to lock the whole file (flock(2)). `kind` is one of NOWAIT_LOCK_... If this open has a
// lock of the other kind, the call converts it. A conversion that fails because of another open
// may lose the lock.
//
// The lock belongs to this open of the file. It excludes whole-file locks through other opens, in
// this process or another. It does not exclude reads, writes and locks of ranges. Duplicates of
// the descriptor and forked children share it: each may unlock it, and it ends when the last of
// them is closed. So a child that outlives its parent keeps it.
//
// Returns 1 if the file is locked now; 0 if another open holds a conflicting lock: try again
// later; or a negative errno: -EINVAL if `kind` is not known; -EBADF; -ENOLCK. Threads: any. The
// call does not wait for the lock; on a network file system it asks the server.
int nowait_file_try_lock(nowait_file file, uint32_t kind);

// Unlocks the whole file, for all descriptors and processes that share this open. Returns 0, also
// if it was not locked, or a negative errno. Threads: any.
int nowait_file_unlock(nowait_file file);

// Tries to lock `length` bytes from `offset` on; a length of 0 means everything from there on,
// however far the file grows. The bytes need not exist. `kind` is one of NOWAIT_LOCK_... Bytes
// that this open has locked already change their kind, without being unlocked in between. If
// another open holds a conflicting lock, existing locks stay unchanged.
//
// The lock belongs to this open of the file (F_OFD_SETLK, fcntl(2)). It excludes locks through
// other opens, in this process or another, and record locks by F_SETLK, including those of this
// process. It does not exclude reads, writes and nowait_file_try_lock. Threads that use this
// handle share it, as do duplicates of the descriptor and forked children: each may unlock it, and
// it ends when the last of them is closed. Closing another open of the file does not release it.
// (Record locks end when any descriptor of the file is closed. Do not set any through
// nowait_file_descriptor, since the library may close a second descriptor.)
//
// Returns 1 if the range is locked now; 0 if another open holds a conflicting lock: try again
// later; or a negative errno: -EINVAL if `kind` is not known; -EACCES if the file is not open for
// reading (shared) or writing (exclusive); -EOVERFLOW beyond INT64_MAX; -ENOLCK; -EBADF. Threads:
// any. The call does not wait for the lock; on a network file system it asks the server.
int nowait_file_try_lock_range(nowait_file file, uint32_t kind, uint64_t offset, uint64_t length);

// Unlocks `length` bytes from `offset` on, for all descriptors and processes that share this open;
// a length of 0 means everything from there on. The parts of a longer lock outside the range stay
// locked. Returns 0, also if nothing was locked, or a negative errno: -EOVERFLOW beyond INT64_MAX;
// -EBADF. Threads: any.
int nowait_file_unlock_range(nowait_file file, uint64_t offset, uint64_t length);

// Returns 1 if a lock of another open would make nowait_file_try_lock_range fail, 0 if not; or a
// negative errno, as that call, except -EACCES. It takes no lock, and ignores locks of this open.
// Threads: any.
int nowait_file_is_range_locked(nowait_file file, uint32_t kind, uint64_t offset, uint64_t length);

// Renames a file or directory to `to`. Replaces a file, or an empty directory, of that name
// (rename(2)). At any time `to` leads to the old entry or to the new one. `flags` are
// NOWAIT_NAME_DURABLE and NOWAIT_RENAME_NEW, or'ed, or 0; `instance` may be 0.
//
// The new name is durable after a nowait_sync_dir of both directories, or with NOWAIT_NAME_DURABLE
// when the call ends. This does not make the contents durable: call nowait_sync before.
//
// Returns 0, or a negative errno: those of rename(2): -ENOENT, -EXDEV between file systems,
// -EEXIST, -EACCES and so on; -EINVAL if the flags are not known. If the error message names a
// sync, the name was changed, and a crash may undo the change. Threads: any, also in a forked
// child.
// `from` and `to` are strings.
int nowait_rename(nowait_instance instance, const char *from, const char *to, uint32_t flags);

// Removes the name of a file, or of anything but a directory (unlink(2)). The file exists while it
// is open, or has other names. `flags` is 0 or NOWAIT_NAME_DURABLE; `instance` may be 0.
//
// Returns 0, or a negative errno: those of unlink(2): -ENOENT, -EISDIR and so on; otherwise as
// nowait_rename. The call may take long for a large file. Threads: any.
// `path` is a string.
int nowait_remove_file(nowait_instance instance, const char *path, uint32_t flags);

// Creates a directory, with the permissions 0777 less the umask (mkdir(2)). `flags` is 0 or
// NOWAIT_NAME_DURABLE; `instance` may be 0.
//
// Returns 0, or a negative errno: those of mkdir(2): -EEXIST, -ENOENT if the parent is missing and
// so on; otherwise as nowait_rename. Threads: any.
// `path` is a string.
int nowait_create_dir(nowait_instance instance, const char *path, uint32_t flags);

// Removes an empty directory (rmdir(2)). `flags` is 0 or NOWAIT_NAME_DURABLE; `instance` may be 0.
//
// Returns 0, or a negative errno: those of rmdir(2): -ENOTEMPTY, -ENOENT, -ENOTDIR and so on;
// otherwise as nowait_rename. Threads: any.
// `path` is a string.
int nowait_remove_dir(nowait_instance instance, const char *path, uint32_t flags);

// Makes the names in the directory `path` durable: those of files that were created, renamed or
// removed there. If `flags` is NOWAIT_SYNC_PARENT, the directory is the parent of `path`: use it
// with "data/table", for instance, after nowait_file_open created that file. Otherwise `flags` is
// 0. The call covers neither the files' contents nor names in directories below. `instance` may be
// 0.
//
// Returns 0, or a negative errno: those of open(2) and fsync(2); -ENOTDIR; -EINVAL if the flags are
// not known. Threads: any, also in a forked child.
// `path` is a string.
int nowait_sync_dir(nowait_instance instance, const char *path, uint32_t flags);

// Replaces the contents of a file by `length` bytes, or creates the file. Readers see all of the
// old contents or all of the new, even after a crash. Durable when it returns. `flags` is 0;
// `instance` may be 0. (NOWAIT_WRITE_ATOMIC concerns one write within a file.)
//
// The bytes go to a file with a temporary name in the same directory. The file is synced and
// renamed; then the directory is synced. The result is a new file with the permissions 0666 less
// the umask. It has no other names, and replaces a symbolic link itself.
//
// Returns 0, or the negative errno of the step that failed; the message names the step. If a step
// before the sync of the directory fails, the old file is unchanged, and the temporary file is
// removed. (A crash leaves it: a name that begins with a dot and ends in ".tmp".) -EINVAL if
// `flags` is not 0, or the path names no file. Threads: any, also in a forked child. If several
// calls replace one file, the last rename determines the contents.
// `path` is a string; `length` bytes at `buffer` are valid for reads, and nothing changes them during
// the call.
int nowait_write_atomic(nowait_instance instance,
                        const char *path,
                        const void *buffer,
                        size_t length,
                        uint32_t flags);

// Reads `ranges_count` ranges into `output`, one after the other in the order in which they are
// listed, and waits for all: range i begins at the sum of the lengths before it. Ranges may be
// unsorted, overlap, or be empty. Cached ones are copied; of the others many are in flight at a
// time, neighbours read as one.
//
// `results` may be NULL. Else it gets for each range the number of bytes read, fewer than asked for
// if the file ends in it, or a negative errno. Bytes of `output` that were not read are zero.
//
// Returns 0 if every range is complete. Else the negative errno of the first that is not, -ENODATA
// if the file ends in it: the others were read all the same. -ENOBUFS if `output_bytes` is less
// than the sum of the lengths, -EBADF, -EFAULT, -EINVAL: then nothing was read, and `results` is
// as it was. Threads: any.
// `ranges` points to `ranges_count` ranges, `output` to `output_bytes` bytes, `results` is NULL or
// points to `ranges_count` numbers; nothing else uses the last two during the call.
int nowait_gather(nowait_file file,
                  const struct nowait_range *ranges,
                  size_t ranges_count,
                  void *output,
                  size_t output_bytes,
                  int64_t *results);

// Opens the log in a directory for appending; with `options->create` makes one. `instance` may be
// 0, `options` NULL, and `recovery`, which tells what was found, too. To read what the log has: a
// reader from `recovery->first_record` on.
//
// Returns 0, or a negative errno: -ENOENT if there is no log; -EBUSY if it is open, here or
// elsewhere; -EUCLEAN if something that was durable cannot be read; -ENOSPC (see
// nowait_log_truncate_closed); -EINVAL; -E2BIG; those of files. Threads: any.
// `directory` is a string; `options` and `recovery` are NULL or point to as many bytes as their size
// says; `log` points to a handle.
int nowait_log_open(nowait_instance instance,
                    const char *directory,
                    const struct nowait_log_options *options,
                    nowait_log *log,
                    struct nowait_log_recovery *recovery);

// Appends a record: copies it into the log, and puts its number into `record`, which may be NULL. It
// is durable when nowait_log_wait for that number has returned 0: until then a crash may keep it or
// not. It is written when something waits for it, or after some milliseconds. Records are numbered
// from 1 on, one after the other.
//
// Waits only while too many bytes are not durable, or the next segment is not ready. Returns 0; or a
// negative errno, and the record is not in the log: -ENOSPC; -ENOTRECOVERABLE after a write failed;
// -EINVAL if it does not fit into a segment; -EBADF. Threads: any.
// `length` bytes at `bytes` are valid for reads; `record` is NULL or points to a number.
int nowait_log_append(nowait_log log,
                      const void *bytes,
                      size_t length,
                      uint64_t *record);

// Appends records as a batch, which a crash keeps as a whole or not at all. `record` gets the number
// of the last. Else as nowait_log_append; -EINVAL for an empty batch.
// `records` points to `records_count` elements, each of which to as many bytes as it says; `record`
// is NULL or points to a number.
int nowait_log_append_batch(nowait_log log,
                            const struct nowait_bytes *records,
                            size_t records_count,
                            uint64_t *record);

// Waits until a record, and so every record before it, is durable: neither the process nor the
// machine can lose it any more. It may be appended later, by another thread. The thread that waits
// writes what all have appended, in one write. See nowait_submit_log_wait for event loops.
//
// Returns 0, or a negative errno: -EIO if the log failed while the record was in flight, which may
// be on disk or not; -ENOTRECOVERABLE if it had failed before; -EBADF if it is closed before.
// Threads: any.
int nowait_log_wait(nowait_log log, uint64_t record);

// Puts the number of the last record that is durable into `durable`, and of the last that was
// appended into `appended`; either may be NULL. 0 stands for none. Returns 0 or a negative errno.
// Threads: any.
// Both are NULL or point to numbers.
int nowait_log_last(nowait_log log, uint64_t *durable, uint64_t *appended);

// Gives up the records before `record`: segments that hold no others are reused or removed, in the
// background. Returns 0 or a negative errno. Threads: any.
int nowait_log_truncate_before(nowait_log log, uint64_t record);

// Removes records before `record` from a log that is not open. It removes whole segments with only
// such records, but never the last segment that holds records. It needs no free space, so that a
// log that has filled its disk can be opened again. `instance` may be 0. `first` gets the number
// of the oldest remaining record, unless it is NULL.
//
// Returns 0, or a negative errno: -ENOENT if there is no log; -EBUSY if it is open, here or
// elsewhere; -EUCLEAN if something that was durable cannot be read; -EINVAL; those of files. Threads:
// any.
// `directory` is a string; `first` is NULL or points to a number.
int nowait_log_truncate_closed(nowait_instance instance,
                               const char *directory,
                               uint64_t record,
                               uint64_t *first);

// Gives up all records after `record`, durably: the next to be appended is `record + 1`. Waits until
// that is so. Returns 0, or a negative errno: -ENODATA if the log has no such record; -ENOSPC; those
// of writes. Threads: any; appends wait meanwhile.
int nowait_log_truncate_after(nowait_log log,
                              uint64_t record);

// Fills in the counters of a log. Returns 0 or a negative errno. Threads: any.
// `stats` points to as many bytes as its size says.
int nowait_log_stats(nowait_log log, struct nowait_log_counters *stats);

// Writes what was appended, and closes the log: it can be opened again then. Readers of it end.
//
// Returns 0, or a negative errno, after which the handle is closed, too: -EBADF if it was; those of
// writes, and of a log that has failed before. Threads: any; calls of others in this moment end,
// appends of theirs with -EBADF.
int nowait_log_close(nowait_log log);

// Opens a reader of the durable records from number `record` on, while the log is written. 0 is as 1.
// A number that the log no longer has, or does not have yet, is no error here: see
// nowait_log_reader_next. Returns 0 or a negative errno. Threads: any.
// `reader` points to a handle.
int nowait_log_reader_open(nowait_log log,
                           uint64_t record,
                           nowait_log_reader *reader);

// Puts the next durable record into `record`. Waits for the device, and not for records to come: see
// nowait_log_reader_tail.
//
// Returns 1; 0 if there is no further record yet; or a negative errno: -ENODATA if the record was
// given up; -EUCLEAN if it was durable and cannot be read; those of reads. Threads: any, one after
// the other: the bytes of a record are valid until the next call with this reader.
// `record` points to a record, and no other thread uses the bytes of the one before.
int nowait_log_reader_next(nowait_log_reader reader,
                           struct nowait_log_record *record);

// Puts the next record into `record`, and waits until it is durable. Returns 0, or a negative errno:
// as nowait_log_reader_next; -EBADF when the log is closed before. Threads: as
// nowait_log_reader_next.
// As nowait_log_reader_next.
int nowait_log_reader_tail(nowait_log_reader reader,
                           struct nowait_log_record *record);

// Sets whether a reader continues behind damage. If `skips` is not 0, the reader reports each
// damage once, by -EUCLEAN and a message that names the lost records. The next call returns the
// first whole record behind it. If 0 (the default), the reader stays at the damage. Returns 0 or
// -EBADF. Threads: as nowait_log_reader_next.
int nowait_log_reader_skip_damage(nowait_log_reader reader, int skips);

// Closes a reader. Returns 0 or -EBADF. Threads: any; the bytes of its last record are gone.
int nowait_log_reader_close(nowait_log_reader reader);

// Starts to copy files and trees, on threads of their own, with all that `cp -a` keeps. A target that
// is a directory gets the copies under the sources' names. A name in the target has the old file or
// the whole new one. `options` may be NULL.
//
// Returns 0; or a negative errno, and nothing was begun: the arguments make no sense together.
// The copy goes on where an entry cannot be copied: see nowait_copy_wait. Threads: any.
// `sources` points to `sources_count` strings; `target` is a string; `options` is NULL or points to
// as many bytes as its size says; `copy` points to a handle.
int nowait_copy_start(const char *const *sources,
                      size_t sources_count,
                      const char *target,
                      const struct nowait_copy_options *options,
                      nowait_copy *copy);

// Tells how far a copy is; makes no system call. Returns 0 or a negative errno. Threads: any.
// `progress` points to as many bytes as its size says.
int nowait_copy_progress(nowait_copy copy, struct nowait_copy_state *progress);

// Whether a copy has ended, so that nowait_copy_wait need not wait: 1 or 0, or -EBADF. Threads: any.
int nowait_copy_has_ended(nowait_copy copy);

// Ends a copy early: each file within a block, which leaves its target as it was. Returns 0 at once,
// or -EBADF; nowait_copy_wait returns when it is over. Threads: any.
int nowait_copy_cancel(nowait_copy copy);

// Waits for the end of a copy. `report`, if it is not NULL, tells what it did. May be called again.
//
// Returns 0 if everything was copied. Else the negative errno of the first failure, or warning, whose
// text nowait_error_message has, or -ECANCELED; the rest was copied. Threads: any, several too.
// `report` is NULL or points to as many bytes as its size says.
int nowait_copy_wait(nowait_copy copy,
                     struct nowait_copy_report *report);

// Gives up the handle of a copy, which runs on if it has not ended. Returns 0 or -EBADF. Threads:
// any.
int nowait_copy_close(nowait_copy copy);

// Makes a queue, with a descriptor. A thread usually has one, or a program one for all its threads.
// Threads: any.
//
// Returns 0, or a negative errno: -EMFILE, -ENFILE, -ENOMEM.
// `queue` points to a handle.
int nowait_queue_open(nowait_queue *queue);

// Closes a queue whose completions were all reaped. Threads: any; those that wait in nowait_reap
// return with -EBADF.
//
// Returns 0, -EBUSY if operations are left, or -EBADF.
int nowait_queue_close(nowait_queue queue);

// Returns the queue's descriptor, for poll(2), epoll(7) and event loops: it is readable (POLLIN)
// when there may be completions to reap. Do nothing else with it; it is closed with the queue. Or
// -EBADF. Threads: any.
//
// In a thread that submits, epoll_wait(2) may fail with EINTR although no signal came: the kernel
// completes a read of io_uring in the thread that submitted it. Call it again; poll(2) does so by
// itself.
int nowait_queue_descriptor(nowait_queue queue);

// Returns the number of operations whose completions were not reaped, or -EBADF. Threads: any.
int64_t nowait_queue_operations(nowait_queue queue);

// Gives an operation up. Its completion comes all the same, with -ECANCELED or, if it had ended,
// its result, and the memory is the library's until then: the kernel does not give back what a
// device works on. What has not begun is left out. A cancelled write may have taken effect or not.
//
// Returns 0; -ENOENT if the completion was reaped, or there was none; -EBADF. Threads: any.
int nowait_cancel(nowait_queue queue, uint64_t operation);

// Reaps up to `completions_count` completions. Waits for the first up to `timeout_ms` milliseconds:
// 0 does not wait, -1 without limit. With an event loop: 0, when the descriptor is readable; if all
// of `completions_count` came there may be more, and the descriptor is still readable.
//
// Returns their number, 0 if none came in time; or a negative errno: -EINTR if a signal came first,
// -EBADF, also when the queue is closed meanwhile; -EFAULT; -EINVAL if there is no room for one.
// Threads: any; each completion goes to one of the threads that reap.
// `completions` points to as many completions, and nothing else uses them during the call.
int nowait_reap(nowait_queue queue,
                struct nowait_completion *completions,
                size_t completions_count,
                int timeout_ms);

// Starts a write, as nowait_write_at. Otherwise as nowait_submit_read. Writes of one file that
// overlap are made in the order in which they were submitted. -EINVAL if the flags are not known.
// Until the completion is reaped, `length` bytes at `buffer` are valid for reads and nothing changes
// them. `operation` is NULL or points to a number.
int nowait_submit_write(nowait_queue queue,
                        nowait_file file,
                        const void *buffer,
                        size_t length,
                        uint64_t offset,
                        uint32_t flags,
                        void *user,
                        uint64_t *operation);

// Starts writes, each as nowait_submit_write, in the order in which they are listed; those for a
// device (O_DIRECT) in one system call. Each has its own completion.
//
// Returns 0; or a negative errno, and none of them was started: -EBADF, -EFAULT, -EINVAL. Threads:
// any.
// As nowait_submit_write, for each; `writes` points to `writes_count` of them, and nothing else uses
// these during the call.
int nowait_submit_writes(nowait_queue queue,
                         struct nowait_write *writes,
                         size_t writes_count);

// Starts a write of several buffers, as nowait_write_vectored_at. Otherwise as
// nowait_submit_write.
// During the call `buffers` points to `buffers_count` elements. Until the completion is reaped each of
// these points to as many bytes as it says, and nothing changes them. `operation` is NULL or points to
// a number.
int nowait_submit_write_vectored(nowait_queue queue,
                                 nowait_file file,
                                 const struct iovec *buffers,
                                 size_t buffers_count,
                                 uint64_t offset,
                                 uint32_t flags,
                                 void *user,
                                 uint64_t *operation);

// Starts an append, as nowait_append. Otherwise as nowait_submit_write. Appends to one file are
// made in the order in which they were submitted. Appends and writes at offsets have no order:
// reap one before submitting the other.
// As nowait_submit_write.
int nowait_submit_append(nowait_queue queue,
                         nowait_file file,
                         const void *buffer,
                         size_t length,
                         uint32_t flags,
                         void *user,
                         uint64_t *operation);

// Starts a sync, as nowait_sync. It covers the writes whose completions could be reaped before
// this call. Otherwise as nowait_submit_read. -EINVAL if the flags are not known.
// `operation` is NULL or points to a number.
int nowait_submit_sync(nowait_queue queue,
                       nowait_file file,
                       uint32_t flags,
                       void *user,
                       uint64_t *operation);

// Starts to cut or extend a file, as nowait_file_set_length. Otherwise as nowait_submit_read. It
// keeps the order of submission relative to appends, and to writes that reach beyond `length`.
// `operation` is NULL or points to a number.
int nowait_submit_set_length(nowait_queue queue,
                             nowait_file file,
                             uint64_t length,
                             void *user,
                             uint64_t *operation);

// Starts to reserve, punch or zero a range, as nowait_file_allocate. Otherwise as
// nowait_submit_set_length. -EINVAL if `how` is not known.
// `operation` is NULL or points to a number.
int nowait_submit_allocate(nowait_queue queue,
                           nowait_file file,
                           uint32_t how,
                           uint64_t offset,
                           uint64_t length,
                           void *user,
                           uint64_t *operation);

// Starts advice about a range, as nowait_file_advise. Otherwise as nowait_submit_read. -EINVAL if
// `advice` is not known.
// `operation` is NULL or points to a number.
int nowait_submit_advise(nowait_queue queue,
                         nowait_file file,
                         uint64_t offset,
                         uint64_t length,
                         uint32_t advice,
                         void *user,
                         uint64_t *operation);

// Starts a rename, as nowait_rename. Otherwise as nowait_submit_read. Changes of names have no
// order: if one depends on another, submit it after the other's completion was reaped. The strings
// are copied.
// `from` and `to` are strings; `operation` is NULL or points to a number.
int nowait_submit_rename(nowait_queue queue,
                         nowait_instance instance,
                         const char *from,
                         const char *to,
                         uint32_t flags,
                         void *user,
                         uint64_t *operation);

// Starts to remove a file, as nowait_remove_file. Otherwise as nowait_submit_rename.
// `path` is a string; `operation` is NULL or points to a number.
int nowait_submit_remove_file(nowait_queue queue,
                              nowait_instance instance,
                              const char *path,
                              uint32_t flags,
                              void *user,
                              uint64_t *operation);

// Starts to create a directory, as nowait_create_dir. Otherwise as nowait_submit_rename.
// As nowait_submit_remove_file.
int nowait_submit_create_dir(nowait_queue queue,
                             nowait_instance instance,
                             const char *path,
                             uint32_t flags,
                             void *user,
                             uint64_t *operation);

// Starts to remove an empty directory, as nowait_remove_dir. Otherwise as nowait_submit_rename.
// As nowait_submit_remove_file.
int nowait_submit_remove_dir(nowait_queue queue,
                             nowait_instance instance,
                             const char *path,
                             uint32_t flags,
                             void *user,
                             uint64_t *operation);

// Starts to make the names in a directory durable, as nowait_sync_dir. It covers the changes whose
// completions could be reaped before this call. Otherwise as nowait_submit_rename.
// As nowait_submit_remove_file.
int nowait_submit_sync_dir(nowait_queue queue,
                           nowait_instance instance,
                           const char *path,
                           uint32_t flags,
                           void *user,
                           uint64_t *operation);

// Starts to replace a file atomically, as nowait_write_atomic. Otherwise as nowait_submit_rename.
// If cancelled before its rename, it keeps the old file, and removes the temporary one. A thread
// of the library drives it.
// `path` is a string. Until the completion is reaped, `length` bytes at `buffer` are valid for reads
// and nothing changes them. `operation` is NULL or points to a number.
int nowait_submit_write_atomic(nowait_queue queue,
                               nowait_instance instance,
                               const char *path,
                               const void *buffer,
                               size_t length,
                               uint32_t flags,
                               void *user,
                               uint64_t *operation);

// Starts a read, as nowait_read_at. What is cached is copied at once; else the device has it when
// this returns. `user` comes back with the completion; `operation`, if it is not NULL, gets the
// operation's number, for nowait_cancel. The file may be closed meanwhile.
//
// Returns 0, and one completion will come; or a negative errno, and none will: -EBADF, -EFAULT.
// Other errors are in the completion. Threads: any.
// Until the completion is reaped, `length` bytes at `buffer` are valid for writes and nobody else
// uses them. `operation` is NULL or points to a number.
int nowait_submit_read(nowait_queue queue,
                       nowait_file file,
                       void *buffer,
                       size_t length,
                       uint64_t offset,
                       void *user,
                       uint64_t *operation);

// Starts reads, each as nowait_submit_read; those for the device in one system call. Each has its own
// completion.
//
// Returns 0; or a negative errno, and none of them was started: -EBADF, -EFAULT, -EINVAL. Threads:
// any.
// As nowait_submit_read, for each; `reads` points to `reads_count` of them, and nothing else uses
// these during the call.
int nowait_submit_reads(nowait_queue queue,
                        struct nowait_read *reads,
                        size_t reads_count);

// Starts a read into several buffers, as nowait_read_vectored_at. Otherwise as nowait_submit_read.
// During the call `buffers` points to `buffers_count` elements. Until the completion is reaped each of
// these points to as many bytes as it says, they do not overlap, and nothing else uses them.
// `operation` is NULL or points to a number.
int nowait_submit_read_vectored(nowait_queue queue,
                                nowait_file file,
                                const struct iovec *buffers,
                                size_t buffers_count,
                                uint64_t offset,
                                void *user,
                                uint64_t *operation);

// Starts a gather, as nowait_gather. Otherwise as nowait_submit_read. All ranges share one
// completion. Its result is 0 if each range is complete. Otherwise it is the errno of the first
// incomplete range, whose index is `range_index`. A thread of the library drives the gather.
// Until the completion is reaped, `output` points to `output_bytes` bytes, `results` is NULL or
// points to `ranges_count` numbers, and nothing else uses these. During the call `ranges` points to
// `ranges_count` ranges. `operation` is NULL or points to a number.
int nowait_submit_gather(nowait_queue queue,
                         nowait_file file,
                         const struct nowait_range *ranges,
                         size_t ranges_count,
                         void *output,
                         size_t output_bytes,
                         int64_t *results,
                         void *user,
                         uint64_t *operation);

// Starts to wait until a log's record is durable, as nowait_log_wait. Otherwise as
// nowait_submit_read.
// `operation` is NULL or points to a number.
int nowait_submit_log_wait(nowait_queue queue,
                           nowait_log log,
                           uint64_t record,
                           void *user,
                           uint64_t *operation);

// Starts to wait until a copy has ended, as nowait_copy_wait, which has the report then; else as
// nowait_submit_read. nowait_cancel gives up the wait, nowait_copy_cancel the copy.
// `operation` is NULL or points to a number.
int nowait_submit_copy_wait(nowait_queue queue, nowait_copy copy, void *user, uint64_t *operation);

// Finds out how files are served at `path`, a file, a directory or a block device: by io_uring,
// request by request, and by this library. `json` gets a text, as `nowait probe --json` prints it
// for one path; give it back to nowait_text_free. `flags` are NOWAIT_PROBE_... or 0.
//
// Takes some seconds, makes scratch files beside `path`, and reads some pages of it. Returns 0, or a
// negative errno: those of stat(2) and open(2); -ESPIPE for what has no offsets. Threads: any.
// `path` is a string, `json` points to a pointer.
int nowait_probe(const char *path,
                 uint32_t flags,
                 char **json);

// Frees a text of the library. NULL is nothing to free. Threads: any.
// `text` is NULL, or comes from a call of this library that says so, and was not freed.
void nowait_text_free(char *text);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NOWAIT_H */
