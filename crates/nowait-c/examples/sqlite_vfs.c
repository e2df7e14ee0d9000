/* A VFS for SQLite over nowait: all file operations of SQLite. Compile it into a program, call
 * sqlite_vfs_register() once, and open databases by the VFS "nowait":
 *
 *     cc program.c sqlite_vfs.c $(pkg-config --cflags --libs nowait sqlite3)
 *
 * All journal modes work, WAL with its shared memory included. The files and the locks are those of
 * SQLite's own VFS "unix", so that processes with either one may share a database. Within one process
 * open a database by one of them: "unix" loses its locks when this VFS closes a file.
 *
 * Locks belong to the open file (F_OFD_SETLK). So connections of one process exclude each other
 * without a table of the process, which "unix" needs for its record locks.
 *
 * PRAGMA mmap_size has no effect: all reads are calls of the library. */

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nowait.h>
#include <sqlite3.h>

int sqlite_vfs_register(void);

/* Offsets of the locks: beyond any written page (os.h of SQLite). */
enum { PENDING = 0x40000000, RESERVED = PENDING + 1, SHARED_FIRST = PENDING + 2, SHARED_BYTES = 510 };

/* The same in the file of the shared memory: one byte for each of SQLite's locks, after the header of
 * the WAL index (os_unix.c). Whoever uses the memory holds a shared lock of the byte IN_USE. */
enum { SHM_LOCKS = (22 + SQLITE_SHM_NLOCK) * 4, SHM_IN_USE = SHM_LOCKS + SQLITE_SHM_NLOCK };

/* Memory that the connections of a database in WAL mode share: the file with the suffix "-shm". */
struct shared_memory {
    nowait_file file;
    int is_readonly;
    /* No one else uses the memory, and this connection may not initialize it. */
    int is_uninitialized;
    int region_bytes;
    int regions_count;
    void **regions;
    char name[];
};

struct open_file {
    sqlite3_file base;
    nowait_file file;
    struct shared_memory *shared;
    /* Valid while the file is open; NULL for a temporary file. */
    const char *name;
    int level;
    int last_errno;
    /* The database grows by multiples of this; 0 means by pages. */
    int chunk_bytes;
    /* The file was created, and its name may not be durable. */
    int is_name_new;
    int keeps_wal;
    int is_powersafe;
};

/* Puts the library's text into SQLite's log. SQLite asks for errno later (sqlite3_system_errno). */
static int failed(int code, int64_t result) {
    sqlite3_log(code, "%s", nowait_error_message());
    errno = (int)-result;
    return code;
}

static int failed_in(struct open_file *open, int code, int64_t result) {
    open->last_errno = (int)-result;
    return failed(code, result);
}

static int close_shared(struct open_file *open, int removes);

static int close_file(sqlite3_file *base) {
    struct open_file *open = (struct open_file *)base;
    close_shared(open, 0);
    int result = nowait_file_close(open->file);
    return result < 0 ? failed(SQLITE_IOERR_CLOSE, result) : SQLITE_OK;
}

static int read_file(sqlite3_file *base, void *buffer, int length, sqlite3_int64 offset) {
    struct open_file *open = (struct open_file *)base;
    int64_t bytes = nowait_read_at(open->file, buffer, (size_t)length, (uint64_t)offset);
    if (bytes < 0) {
        return failed_in(open, SQLITE_IOERR_READ, bytes);
    }
    if (bytes < length) {
        open->last_errno = 0;
        memset((char *)buffer + bytes, 0, (size_t)(length - bytes));
        return SQLITE_IOERR_SHORT_READ;
    }
    return SQLITE_OK;
}

static int write_file(sqlite3_file *base, const void *buffer, int length, sqlite3_int64 offset) {
    struct open_file *open = (struct open_file *)base;
    for (int64_t done = 0; done < length;) {
        int64_t bytes = nowait_write_at(open->file, (const char *)buffer + done, (size_t)(length - done),
                                        (uint64_t)(offset + done), 0);
        if (bytes <= 0) {
            int is_full = bytes == -ENOSPC || bytes == -EDQUOT;
            return failed_in(open, is_full ? SQLITE_FULL : SQLITE_IOERR_WRITE, bytes);
        }
        done += bytes;
    }
    return SQLITE_OK;
}

/* Rounds up to the size that the file is to have. */
static uint64_t in_chunks(const struct open_file *open, sqlite3_int64 length) {
    uint64_t chunk = open->chunk_bytes > 0 ? (uint64_t)open->chunk_bytes : 1;
    return ((uint64_t)length + chunk - 1) / chunk * chunk;
}

static int truncate_file(sqlite3_file *base, sqlite3_int64 length) {
    struct open_file *open = (struct open_file *)base;
    int result = nowait_file_set_length(open->file, in_chunks(open, length));
    return result < 0 ? failed_in(open, SQLITE_IOERR_TRUNCATE, result) : SQLITE_OK;
}

static int sync_file(sqlite3_file *base, int flags) {
    struct open_file *open = (struct open_file *)base;
    (void)flags;
    int result = nowait_sync(open->file, 0);
    if (result < 0) {
        return failed_in(open, SQLITE_IOERR_FSYNC, result);
    }
    if (open->is_name_new) {
        result = nowait_sync_dir(0, open->name, NOWAIT_SYNC_PARENT);
        if (result < 0) {
            return failed_in(open, SQLITE_IOERR_DIR_FSYNC, result);
        }
    }
    open->is_name_new = 0;
    return SQLITE_OK;
}

static int size_of_file(sqlite3_file *base, sqlite3_int64 *size) {
    struct open_file *open = (struct open_file *)base;
    uint64_t bytes = 0;
    int result = nowait_file_size(open->file, &bytes);
    *size = (sqlite3_int64)bytes;
    return result < 0 ? failed_in(open, SQLITE_IOERR_FSTAT, result) : SQLITE_OK;
}

/* Locks a range; SQLITE_BUSY if another has it. */
static int lock_range(struct open_file *open, uint32_t kind, uint64_t offset, uint64_t length) {
    int result = nowait_file_try_lock_range(open->file, kind, offset, length);
    return result == 1 ? SQLITE_OK : result == 0 ? SQLITE_BUSY : failed_in(open, SQLITE_IOERR_LOCK, result);
}

static int lock_file(sqlite3_file *base, int level) {
    struct open_file *open = (struct open_file *)base;
    int result = SQLITE_OK;
    if (level <= open->level) {
        return SQLITE_OK;
    }
    if (level == SQLITE_LOCK_SHARED) {
        /* A writer that waits for readers holds the pending byte, so that no new reader starts. */
        result = lock_range(open, NOWAIT_LOCK_SHARED, PENDING, 1);
        if (result == SQLITE_OK) {
            result = lock_range(open, NOWAIT_LOCK_SHARED, SHARED_FIRST, SHARED_BYTES);
            int unlocked = nowait_file_unlock_range(open->file, PENDING, 1);
            if (unlocked < 0) {
                return failed_in(open, SQLITE_IOERR_UNLOCK, unlocked);
            }
        }
    } else if (level == SQLITE_LOCK_RESERVED) {
        result = lock_range(open, NOWAIT_LOCK_EXCLUSIVE, RESERVED, 1);
    } else {
        if (open->level < SQLITE_LOCK_PENDING) {
            result = lock_range(open, NOWAIT_LOCK_EXCLUSIVE, PENDING, 1);
            if (result != SQLITE_OK) {
                return result;
            }
            open->level = SQLITE_LOCK_PENDING;
        }
        if (level == SQLITE_LOCK_EXCLUSIVE) {
            result = lock_range(open, NOWAIT_LOCK_EXCLUSIVE, SHARED_FIRST, SHARED_BYTES);
        }
    }
    if (result == SQLITE_OK) {
        open->level = level;
    }
    return result;
}

static int unlock_file(sqlite3_file *base, int level) {
    struct open_file *open = (struct open_file *)base;
    if (level >= open->level) {
        return SQLITE_OK;
    }
    int unlocked = 0;
    if (level == SQLITE_LOCK_SHARED) {
        /* Converts exclusive to shared without unlocking: no other writer can interfere. */
        if (lock_range(open, NOWAIT_LOCK_SHARED, SHARED_FIRST, SHARED_BYTES) != SQLITE_OK) {
            return SQLITE_IOERR_RDLOCK;
        }
        unlocked = nowait_file_unlock_range(open->file, PENDING, 2);
    } else {
        unlocked = nowait_file_unlock_range(open->file, PENDING, 2 + SHARED_BYTES);
    }
    if (unlocked < 0) {
        return failed_in(open, SQLITE_IOERR_UNLOCK, unlocked);
    }
    open->level = level;
    return SQLITE_OK;
}

static int check_reserved_lock(sqlite3_file *base, int *is_reserved) {
    struct open_file *open = (struct open_file *)base;
    if (open->level >= SQLITE_LOCK_RESERVED) {
        *is_reserved = 1;
        return SQLITE_OK;
    }
    int result = nowait_file_is_range_locked(open->file, NOWAIT_LOCK_EXCLUSIVE, RESERVED, 1);
    *is_reserved = result == 1;
    return result < 0 ? failed_in(open, SQLITE_IOERR_CHECKRESERVEDLOCK, result) : SQLITE_OK;
}

/* Makes room for a file of this size, so that a full disk is reported before anything is written. A
 * file system without reservations ignores this. */
static int reserve(struct open_file *open, sqlite3_int64 hint) {
    uint64_t size = 0, wanted = in_chunks(open, hint);
    int result = nowait_file_size(open->file, &size);
    if (result < 0) {
        return failed_in(open, SQLITE_IOERR_FSTAT, result);
    }
    if (wanted <= size) {
        return SQLITE_OK;
    }
    if (open->chunk_bytes > 0) {
        result = nowait_file_allocate(open->file, NOWAIT_ALLOCATE_RESERVE, size, wanted - size);
        if (result == -EOPNOTSUPP) {
            result = nowait_file_set_length(open->file, wanted);
        }
    } else {
        result = nowait_file_allocate(open->file, NOWAIT_ALLOCATE_KEEP_SIZE, size, wanted - size);
    }
    return result == -ENOSPC ? failed_in(open, SQLITE_FULL, result) : SQLITE_OK;
}

/* Whether the name is another file's now, or no file's. */
static int has_moved(struct open_file *open) {
    struct nowait_metadata own = {.size = sizeof own}, named = {.size = sizeof named};
    return open->name != NULL && nowait_file_metadata(open->file, &own) == 0 &&
           (nowait_path_metadata(0, open->name, 0, &named) < 0 || own.device != named.device ||
            own.inode != named.inode);
}

/* Sets a flag, or returns it if the argument is negative. */
static void set_or_get(int *flag, int *argument) {
    if (*argument < 0) {
        *argument = *flag;
    } else {
        *flag = *argument != 0;
    }
}

static char *temporary_name(void);

static int file_control(sqlite3_file *base, int operation, void *argument) {
    struct open_file *open = (struct open_file *)base;
    switch (operation) {
    case SQLITE_FCNTL_LOCKSTATE:
        *(int *)argument = open->level;
        return SQLITE_OK;
    case SQLITE_FCNTL_LAST_ERRNO:
        *(int *)argument = open->last_errno;
        return SQLITE_OK;
    case SQLITE_FCNTL_CHUNK_SIZE:
        open->chunk_bytes = *(int *)argument;
        return SQLITE_OK;
    case SQLITE_FCNTL_SIZE_HINT:
        return reserve(open, *(sqlite3_int64 *)argument);
    case SQLITE_FCNTL_PERSIST_WAL:
        set_or_get(&open->keeps_wal, argument);
        return SQLITE_OK;
    case SQLITE_FCNTL_POWERSAFE_OVERWRITE:
        set_or_get(&open->is_powersafe, argument);
        return SQLITE_OK;
    case SQLITE_FCNTL_VFSNAME:
        *(char **)argument = sqlite3_mprintf("nowait");
        return SQLITE_OK;
    case SQLITE_FCNTL_TEMPFILENAME:
        *(char **)argument = temporary_name();
        return SQLITE_OK;
    case SQLITE_FCNTL_HAS_MOVED:
        *(int *)argument = has_moved(open);
        return SQLITE_OK;
    case SQLITE_FCNTL_MMAP_SIZE:
        /* The size of the map: there is none. */
        *(sqlite3_int64 *)argument = 0;
        return SQLITE_OK;
    default:
        return SQLITE_NOTFOUND;
    }
}

static int sector_bytes(sqlite3_file *base) {
    (void)base;
    return 4096;
}

static int device_characteristics(sqlite3_file *base) {
    struct open_file *open = (struct open_file *)base;
    return open->is_powersafe ? SQLITE_IOCAP_POWERSAFE_OVERWRITE : 0;
}

/* Gives a new file the mode and, if it can, the owner of its database, whatever the umask: whoever may
 * open the database may open what belongs to it. */
static void make_alike(nowait_file file, const char *name, const struct nowait_metadata *database) {
    struct nowait_metadata own = {.size = sizeof own};
    unsigned int mode = database->mode & 0777;
    if (nowait_file_metadata(file, &own) < 0 || own.length > 0) {
        return;
    }
    int descriptor = nowait_file_descriptor(file);
    int is_changed = (own.mode & 0777) == mode || fchmod(descriptor, mode) == 0;
    if (is_changed && geteuid() == 0 && (own.owner != database->owner || own.group != database->group)) {
        is_changed = fchown(descriptor, database->owner, database->group) == 0;
    }
    if (!is_changed) {
        sqlite3_log(SQLITE_WARNING, "%s has not the mode and owner of its database: %s", name, strerror(errno));
    }
}

/* Joins the users of the shared memory. The first one truncates the file: what a crash left there
 * must not be used. */
static int join(struct open_file *open, struct shared_memory *shared) {
    int is_taken = nowait_file_is_range_locked(shared->file, NOWAIT_LOCK_SHARED, SHM_IN_USE, 1);
    int is_used = is_taken == 0 ? nowait_file_is_range_locked(shared->file, NOWAIT_LOCK_EXCLUSIVE, SHM_IN_USE, 1) : 0;
    if (is_taken < 0 || is_used < 0) {
        return failed_in(open, SQLITE_IOERR_LOCK, is_taken < 0 ? is_taken : is_used);
    }
    if (is_taken) {
        return SQLITE_BUSY;
    }
    shared->is_uninitialized = !is_used && shared->is_readonly;
    if (shared->is_uninitialized) {
        return SQLITE_READONLY_CANTINIT;
    }
    if (!is_used) {
        int result = nowait_file_try_lock_range(shared->file, NOWAIT_LOCK_EXCLUSIVE, SHM_IN_USE, 1);
        if (result <= 0) {
            return result == 0 ? SQLITE_BUSY : failed_in(open, SQLITE_IOERR_LOCK, result);
        }
        result = nowait_file_set_length(shared->file, 0);
        if (result < 0) {
            return failed_in(open, SQLITE_IOERR_SHMOPEN, result);
        }
    }
    int result = nowait_file_try_lock_range(shared->file, NOWAIT_LOCK_SHARED, SHM_IN_USE, 1);
    return result == 1 ? SQLITE_OK : result == 0 ? SQLITE_BUSY : failed_in(open, SQLITE_IOERR_LOCK, result);
}

static int open_shared(struct open_file *open) {
    struct nowait_metadata database = {.size = sizeof database};
    int result = nowait_file_metadata(open->file, &database);
    if (result < 0) {
        return failed_in(open, SQLITE_IOERR_FSTAT, result);
    }
    size_t name_bytes = strlen(open->name) + sizeof "-shm";
    struct shared_memory *shared = sqlite3_malloc64(sizeof *shared + name_bytes);
    if (shared == NULL) {
        return SQLITE_NOMEM;
    }
    memset(shared, 0, sizeof *shared);
    snprintf(shared->name, name_bytes, "%s-shm", open->name);
    unsigned int mode = database.mode & 0777;
    result = -EACCES;
    if (!sqlite3_uri_boolean(open->name, "readonly_shm", 0)) {
        result = nowait_file_open(0, shared->name, O_RDWR | O_CREAT | O_NOFOLLOW, mode, &shared->file);
    }
    if (result < 0) {
        shared->is_readonly = 1;
        result = nowait_file_open(0, shared->name, O_RDONLY | O_NOFOLLOW, 0, &shared->file);
    }
    if (result < 0) {
        sqlite3_free(shared);
        return failed_in(open, SQLITE_CANTOPEN, result);
    }
    make_alike(shared->file, shared->name, &database);
    result = join(open, shared);
    if (result != SQLITE_OK && result != SQLITE_READONLY_CANTINIT) {
        nowait_file_close(shared->file);
        sqlite3_free(shared);
        return result;
    }
    open->shared = shared;
    return result;
}

/* Makes the file of the shared memory this long. Its blocks are allocated: a write to memory of a
 * full disk would be a signal. */
static int grow_shared(nowait_file file, uint64_t size, uint64_t wanted) {
    enum { PAGE = 4096 };
    int64_t result = nowait_file_allocate(file, NOWAIT_ALLOCATE_RESERVE, size, wanted - size);
    if (result == -EOPNOTSUPP) {
        for (uint64_t page = size / PAGE; page < wanted / PAGE; page++) {
            result = nowait_write_at(file, "", 1, page * PAGE + PAGE - 1, 0);
            if (result < 0) {
                return (int)result;
            }
        }
        return 0;
    }
    return (int)result;
}

/* A region may begin within a page of the kernel: what of its page is before it. */
static size_t before_region(const struct shared_memory *shared, int region) {
    return (size_t)region * (size_t)shared->region_bytes & ((size_t)sysconf(_SC_PAGESIZE) - 1);
}

static int map_region(struct open_file *open, int region, int extends) {
    struct shared_memory *shared = open->shared;
    uint64_t size = 0, wanted = (uint64_t)(region + 1) * (uint64_t)shared->region_bytes;
    int result = nowait_file_size(shared->file, &size);
    if (result < 0) {
        return failed_in(open, SQLITE_IOERR_SHMSIZE, result);
    }
    if (size < wanted) {
        if (!extends) {
            return SQLITE_OK;
        }
        result = grow_shared(shared->file, size, wanted);
        if (result < 0) {
            return failed_in(open, SQLITE_IOERR_SHMSIZE, result);
        }
    }
    void **regions = sqlite3_realloc64(shared->regions, ((size_t)region + 1) * sizeof *regions);
    if (regions == NULL) {
        return SQLITE_IOERR_NOMEM;
    }
    shared->regions = regions;
    int protection = shared->is_readonly ? PROT_READ : PROT_READ | PROT_WRITE;
    for (; shared->regions_count <= region; shared->regions_count++) {
        int next = shared->regions_count;
        size_t before = before_region(shared, next);
        off_t offset = (off_t)next * shared->region_bytes - (off_t)before;
        char *start = mmap(NULL, (size_t)shared->region_bytes + before, protection, MAP_SHARED,
                           nowait_file_descriptor(shared->file), offset);
        if (start == MAP_FAILED) {
            open->last_errno = errno;
            sqlite3_log(SQLITE_IOERR_SHMMAP, "%s cannot be mapped: %s", shared->name, strerror(errno));
            return SQLITE_IOERR_SHMMAP;
        }
        shared->regions[next] = start + before;
    }
    return SQLITE_OK;
}

static int map_shared(sqlite3_file *base, int region, int region_bytes, int extends, void volatile **start) {
    struct open_file *open = (struct open_file *)base;
    int result = SQLITE_OK;
    *start = NULL;
    if (open->shared == NULL) {
        result = open_shared(open);
    } else if (open->shared->is_uninitialized) {
        result = join(open, open->shared);
    }
    if (result != SQLITE_OK) {
        return result;
    }
    struct shared_memory *shared = open->shared;
    shared->region_bytes = region_bytes;
    if (region >= shared->regions_count) {
        result = map_region(open, region, extends);
    }
    if (region < shared->regions_count) {
        *start = shared->regions[region];
    }
    return result == SQLITE_OK && shared->is_readonly ? SQLITE_READONLY : result;
}

static int lock_shared(sqlite3_file *base, int first, int count, int flags) {
    struct open_file *open = (struct open_file *)base;
    if (open->shared == NULL) {
        return SQLITE_IOERR_SHMLOCK;
    }
    uint64_t offset = (uint64_t)(SHM_LOCKS + first), length = (uint64_t)count;
    if (flags & SQLITE_SHM_UNLOCK) {
        int result = nowait_file_unlock_range(open->shared->file, offset, length);
        return result < 0 ? failed_in(open, SQLITE_IOERR_SHMLOCK, result) : SQLITE_OK;
    }
    uint32_t kind = flags & SQLITE_SHM_SHARED ? NOWAIT_LOCK_SHARED : NOWAIT_LOCK_EXCLUSIVE;
    int result = nowait_file_try_lock_range(open->shared->file, kind, offset, length);
    return result == 1 ? SQLITE_OK : result == 0 ? SQLITE_BUSY : failed_in(open, SQLITE_IOERR_SHMLOCK, result);
}

static void shared_barrier(sqlite3_file *base) {
    (void)base;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static int close_shared(struct open_file *open, int removes) {
    struct shared_memory *shared = open->shared;
    if (shared == NULL) {
        return SQLITE_OK;
    }
    for (int region = 0; region < shared->regions_count; region++) {
        size_t before = before_region(shared, region);
        munmap((char *)shared->regions[region] - before, (size_t)shared->region_bytes + before);
    }
    if (removes) {
        nowait_remove_file(0, shared->name, 0);
    }
    nowait_file_close(shared->file);
    sqlite3_free(shared->regions);
    sqlite3_free(shared);
    open->shared = NULL;
    return SQLITE_OK;
}

static int unmap_shared(sqlite3_file *base, int removes) { return close_shared((struct open_file *)base, removes); }

static const sqlite3_io_methods METHODS = {
    .iVersion = 2,
    .xClose = close_file,
    .xRead = read_file,
    .xWrite = write_file,
    .xTruncate = truncate_file,
    .xSync = sync_file,
    .xFileSize = size_of_file,
    .xLock = lock_file,
    .xUnlock = unlock_file,
    .xCheckReservedLock = check_reserved_lock,
    .xFileControl = file_control,
    .xSectorSize = sector_bytes,
    .xDeviceCharacteristics = device_characteristics,
    .xShmMap = map_shared,
    .xShmLock = lock_shared,
    .xShmBarrier = shared_barrier,
    .xShmUnmap = unmap_shared,
};

/* The mode and owner of a new file. What belongs to a database has its pages, and is for those alone
 * who may open that. Returns 1 if the file is to have exactly these, whatever the umask. */
static int belongs_to(const char *name, int flags, struct nowait_metadata *database) {
    const char *other = NULL;
    if (flags & (SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_WAL)) {
        other = sqlite3_filename_database(name);
    } else if (flags & SQLITE_OPEN_URI) {
        other = sqlite3_uri_parameter(name, "modeof");
    }
    if (other != NULL && nowait_path_metadata(0, other, 0, database) == 0) {
        return 1;
    }
    /* A journal of several databases has their names. */
    database->mode = other != NULL || flags & (SQLITE_OPEN_DELETEONCLOSE | SQLITE_OPEN_SUPER_JOURNAL) ? 0600 : 0644;
    return 0;
}

/* The folder of temporary files, as SQLite documents it. */
static const char *temporary_folder(void) {
    const char *folders[] = {sqlite3_temp_directory, getenv("SQLITE_TMPDIR"), getenv("TMPDIR"), "/var/tmp",
                             "/usr/tmp", "/tmp", "."};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        struct nowait_metadata known = {.size = sizeof known};
        if (folders[i] != NULL && nowait_path_metadata(0, folders[i], 0, &known) == 0 && S_ISDIR(known.mode) &&
            access(folders[i], W_OK | X_OK) == 0) {
            return folders[i];
        }
    }
    return NULL;
}

/* Programs that clean up know SQLite's files by this prefix. */
static char *temporary_name(void) {
    const char *folder = temporary_folder();
    uint64_t random = 0;
    sqlite3_randomness(sizeof random, &random);
    return folder == NULL ? NULL : sqlite3_mprintf("%s/etilqs_%016llx", folder, random);
}

/* Opens a file that has no name: it exists while it is open, and a crash does not leave it behind. */
static int open_temporary(int how, nowait_file *file) {
    int result = -EEXIST;
    for (int tries = 0; result == -EEXIST && tries < 10; tries++) {
        char *name = temporary_name();
        if (name == NULL) {
            return temporary_folder() == NULL ? SQLITE_IOERR_GETTEMPPATH : SQLITE_NOMEM;
        }
        result = nowait_file_open(0, name, how | O_EXCL, 0600, file);
        if (result == 0 && (result = nowait_remove_file(0, name, 0)) < 0) {
            nowait_file_close(*file);
        }
        sqlite3_free(name);
    }
    return result < 0 ? failed(SQLITE_CANTOPEN, result) : SQLITE_OK;
}

static int open_named(const char *name, int how, int *flags, nowait_file *file) {
    struct nowait_metadata database = {.size = sizeof database};
    int is_new_journal = *flags & SQLITE_OPEN_CREATE &&
                         *flags & (SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_SUPER_JOURNAL | SQLITE_OPEN_WAL);
    int is_exact = *flags & SQLITE_OPEN_CREATE && belongs_to(name, *flags, &database);
    int result = nowait_file_open(0, name, how, database.mode & 0777, file);
    if (result == -EACCES && is_new_journal && access(name, F_OK) != 0) {
        return failed(SQLITE_READONLY_DIRECTORY, result);
    }
    if (result < 0 && result != -EISDIR && *flags & SQLITE_OPEN_READWRITE && !(*flags & SQLITE_OPEN_EXCLUSIVE)) {
        *flags = (*flags & ~(SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE)) | SQLITE_OPEN_READONLY;
        is_exact = 0;
        result = nowait_file_open(0, name, O_RDONLY | O_NOFOLLOW, 0, file);
    }
    if (result < 0) {
        return failed(SQLITE_CANTOPEN, result);
    }
    if (is_exact) {
        make_alike(*file, name, &database);
    }
    if (*flags & SQLITE_OPEN_DELETEONCLOSE && (result = nowait_remove_file(0, name, 0)) < 0) {
        nowait_file_close(*file);
        return failed(SQLITE_IOERR_DELETE, result);
    }
    return SQLITE_OK;
}

static int open_file(sqlite3_vfs *vfs, sqlite3_filename name, sqlite3_file *base, int flags, int *opened) {
    struct open_file *open = (struct open_file *)base;
    int how = (flags & SQLITE_OPEN_READWRITE ? O_RDWR : O_RDONLY) | (flags & SQLITE_OPEN_CREATE ? O_CREAT : 0) |
              (flags & SQLITE_OPEN_EXCLUSIVE ? O_EXCL : 0) | O_NOFOLLOW;
    (void)vfs;
    memset(open, 0, sizeof *open);
    int result = name == NULL ? open_temporary(how, &open->file) : open_named(name, how, &flags, &open->file);
    if (result != SQLITE_OK) {
        return result;
    }
    const int journals = SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_SUPER_JOURNAL | SQLITE_OPEN_WAL;
    open->name = name;
    open->is_name_new = flags & SQLITE_OPEN_CREATE && flags & journals;
    open->is_powersafe = !(flags & SQLITE_OPEN_URI) || sqlite3_uri_boolean(name, "psow", 1);
    open->base.pMethods = &METHODS;
    if (opened != NULL) {
        *opened = flags;
    }
    return SQLITE_OK;
}

static int delete_file(sqlite3_vfs *vfs, const char *name, int sync) {
    (void)vfs;
    int result = nowait_remove_file(0, name, sync ? NOWAIT_NAME_DURABLE : 0);
    if (result == -ENOENT) {
        return SQLITE_IOERR_DELETE_NOENT;
    }
    return result < 0 ? failed(SQLITE_IOERR_DELETE, result) : SQLITE_OK;
}

static int is_accessible(sqlite3_vfs *vfs, const char *name, int how, int *answer) {
    (void)vfs;
    if (how == SQLITE_ACCESS_EXISTS) {
        /* An empty journal counts as no journal. Each transaction asks for one, and usually there is none,
         * for which nowait_path_metadata would make a text. */
        struct stat known;
        int is_known = stat(name, &known) == 0;
        *answer = is_known && (!S_ISREG(known.st_mode) || known.st_size > 0);
        if (is_known || errno == ENOENT || errno == ENOTDIR) {
            return SQLITE_OK;
        }
        sqlite3_log(SQLITE_IOERR_ACCESS, "%s: %s", name, strerror(errno));
        return SQLITE_IOERR_ACCESS;
    }
    *answer = access(name, how == SQLITE_ACCESS_READWRITE ? R_OK | W_OK : R_OK) == 0;
    return SQLITE_OK;
}

/* Registers the VFS "nowait", not as the default. Returns SQLITE_OK, or an error of SQLite's. */
int sqlite_vfs_register(void) {
    static sqlite3_vfs vfs;
    const sqlite3_vfs *unix_vfs = sqlite3_vfs_find("unix");
    if (unix_vfs == NULL) {
        return SQLITE_ERROR;
    }
    if (sqlite3_vfs_find("nowait") == &vfs) {
        return SQLITE_OK;
    }
    /* Full paths, random numbers, times and extensions are SQLite's own. */
    vfs = *unix_vfs;
    /* The third version has the system calls of "unix". */
    vfs.iVersion = 2;
    vfs.szOsFile = sizeof(struct open_file);
    vfs.pNext = NULL;
    vfs.zName = "nowait";
    vfs.xOpen = open_file;
    vfs.xDelete = delete_file;
    vfs.xAccess = is_accessible;
    return sqlite3_vfs_register(&vfs, 0);
}
