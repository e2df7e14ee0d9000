/* A VFS for SQLite over nowait: all file operations of SQLite. Compile it into a program, call
 * sqlite_vfs_register() once, and open databases by the VFS "nowait":
 *
 *     cc program.c sqlite_vfs.c $(pkg-config --cflags --libs nowait sqlite3)
 *
 * Any journal mode will do; WAL needs PRAGMA locking_mode=EXCLUSIVE, since there is no shared memory
 * here. Locks are byte ranges at the places where SQLite's own VFS has them, so that programs with
 * either one exclude each other. They belong to the open file: two connections of one process need no
 * more than that, where SQLite's own has to share record locks out among them. */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <nowait.h>
#include <sqlite3.h>

int sqlite_vfs_register(void);

/* Offsets of the locks: beyond any written page (os.h of SQLite). */
enum { PENDING = 0x40000000, RESERVED = PENDING + 1, SHARED_FIRST = PENDING + 2, SHARED_BYTES = 510 };

struct open_file {
    sqlite3_file base;
    nowait_file file;
    int level;
    /* The file was created, and its name may not be durable. `name` stays valid while it is open. */
    const char *new_name;
};

/* Puts the library's text into SQLite's log. */
static int failed(int code) {
    sqlite3_log(code, "%s", nowait_error_message());
    return code;
}

static int close_file(sqlite3_file *base) {
    struct open_file *open = (struct open_file *)base;
    return nowait_file_close(open->file) < 0 ? failed(SQLITE_IOERR_CLOSE) : SQLITE_OK;
}

static int read_file(sqlite3_file *base, void *buffer, int length, sqlite3_int64 offset) {
    struct open_file *open = (struct open_file *)base;
    int64_t bytes = nowait_read_at(open->file, buffer, (size_t)length, (uint64_t)offset);
    if (bytes < 0) {
        return failed(SQLITE_IOERR_READ);
    }
    if (bytes < length) {
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
            return failed(bytes == -ENOSPC || bytes == -EDQUOT ? SQLITE_FULL : SQLITE_IOERR_WRITE);
        }
        done += bytes;
    }
    return SQLITE_OK;
}

static int truncate_file(sqlite3_file *base, sqlite3_int64 length) {
    struct open_file *open = (struct open_file *)base;
    return nowait_file_set_length(open->file, (uint64_t)length) < 0 ? failed(SQLITE_IOERR_TRUNCATE) : SQLITE_OK;
}

static int sync_file(sqlite3_file *base, int flags) {
    struct open_file *open = (struct open_file *)base;
    (void)flags;
    if (nowait_sync(open->file, 0) < 0) {
        return failed(SQLITE_IOERR_FSYNC);
    }
    if (open->new_name != NULL && nowait_sync_dir(0, open->new_name, NOWAIT_SYNC_PARENT) < 0) {
        return failed(SQLITE_IOERR_DIR_FSYNC);
    }
    open->new_name = NULL;
    return SQLITE_OK;
}

static int size_of_file(sqlite3_file *base, sqlite3_int64 *size) {
    struct open_file *open = (struct open_file *)base;
    uint64_t bytes = 0;
    int result = nowait_file_size(open->file, &bytes);
    *size = (sqlite3_int64)bytes;
    return result < 0 ? failed(SQLITE_IOERR_FSTAT) : SQLITE_OK;
}

/* Locks a range; SQLITE_BUSY if another has it. */
static int lock_range(struct open_file *open, uint32_t kind, uint64_t offset, uint64_t length) {
    int result = nowait_file_try_lock_range(open->file, kind, offset, length);
    return result == 1 ? SQLITE_OK : result == 0 ? SQLITE_BUSY : failed(SQLITE_IOERR_LOCK);
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
            if (nowait_file_unlock_range(open->file, PENDING, 1) < 0) {
                return failed(SQLITE_IOERR_UNLOCK);
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
    if (level == SQLITE_LOCK_SHARED) {
        /* Converts exclusive to shared without unlocking: no other writer can interfere. */
        if (lock_range(open, NOWAIT_LOCK_SHARED, SHARED_FIRST, SHARED_BYTES) != SQLITE_OK) {
            return SQLITE_IOERR_RDLOCK;
        }
        if (nowait_file_unlock_range(open->file, PENDING, 2) < 0) {
            return failed(SQLITE_IOERR_UNLOCK);
        }
    } else if (nowait_file_unlock_range(open->file, PENDING, 2 + SHARED_BYTES) < 0) {
        return failed(SQLITE_IOERR_UNLOCK);
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
    return result < 0 ? failed(SQLITE_IOERR_CHECKRESERVEDLOCK) : SQLITE_OK;
}

static int file_control(sqlite3_file *base, int operation, void *argument) {
    struct open_file *open = (struct open_file *)base;
    switch (operation) {
    case SQLITE_FCNTL_LOCKSTATE:
        *(int *)argument = open->level;
        return SQLITE_OK;
    case SQLITE_FCNTL_SIZE_HINT: {
        /* The expected size of the file. A full disk is reported here, before anything is written. A
         * file system without reservations ignores this. */
        uint64_t size = 0, hint = (uint64_t) * (sqlite3_int64 *)argument;
        if (nowait_file_size(open->file, &size) < 0) {
            return failed(SQLITE_IOERR_FSTAT);
        }
        int result = hint <= size ? 0
                                  : nowait_file_allocate(open->file, NOWAIT_ALLOCATE_KEEP_SIZE, size, hint - size);
        return result == -ENOSPC ? failed(SQLITE_FULL) : SQLITE_OK;
    }
    default:
        return SQLITE_NOTFOUND;
    }
}

static int sector_bytes(sqlite3_file *base) {
    (void)base;
    return 4096;
}

static int device_characteristics(sqlite3_file *base) {
    (void)base;
    return SQLITE_IOCAP_POWERSAFE_OVERWRITE;
}

static const sqlite3_io_methods METHODS = {
    .iVersion = 1,
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
};

/* The mode of a new file. What belongs to a database has its pages, and is for those alone who may open
 * that. */
static unsigned int mode_of_new(const char *name, int flags) {
    struct nowait_metadata known = {.size = sizeof known};
    if (flags & SQLITE_OPEN_DELETEONCLOSE) {
        return 0600;
    }
    if (flags & (SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_WAL)) {
        int result = nowait_path_metadata(0, sqlite3_filename_database(name), 0, &known);
        return result == 0 ? known.mode & 0777 : 0600;
    }
    /* A journal of several databases has their names. */
    return flags & SQLITE_OPEN_SUPER_JOURNAL ? 0600 : 0644;
}

static int open_file(sqlite3_vfs *vfs, sqlite3_filename name, sqlite3_file *base, int flags, int *opened) {
    struct open_file *open = (struct open_file *)base;
    char temporary[80];
    uint64_t random = 0;
    int how = (flags & SQLITE_OPEN_READWRITE ? O_RDWR : O_RDONLY) | (flags & SQLITE_OPEN_CREATE ? O_CREAT : 0) |
              (flags & SQLITE_OPEN_EXCLUSIVE ? O_EXCL | O_NOFOLLOW : 0);
    const char *path = name;
    memset(open, 0, sizeof *open);
    if (path == NULL) {
        vfs->xRandomness(vfs, sizeof random, (char *)&random);
        snprintf(temporary, sizeof temporary, "/var/tmp/sqlite-nowait-%016llx", (unsigned long long)random);
        path = temporary;
        how |= O_EXCL;
    }
    int result = nowait_file_open(0, path, how, mode_of_new(name, flags), &open->file);
    if (result == -EACCES && flags & SQLITE_OPEN_READWRITE && !(flags & SQLITE_OPEN_EXCLUSIVE)) {
        flags = (flags & ~(SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE)) | SQLITE_OPEN_READONLY;
        result = nowait_file_open(0, path, O_RDONLY, 0, &open->file);
    }
    if (result < 0) {
        return failed(SQLITE_CANTOPEN);
    }
    /* The file exists while it is open, and a crash does not leave it behind. */
    if (flags & SQLITE_OPEN_DELETEONCLOSE && nowait_remove_file(0, path, 0) < 0) {
        nowait_file_close(open->file);
        return failed(SQLITE_IOERR_DELETE);
    }
    const int journals = SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_SUPER_JOURNAL | SQLITE_OPEN_WAL;
    if (flags & SQLITE_OPEN_CREATE && flags & journals) {
        open->new_name = name;
    }
    open->base.pMethods = &METHODS;
    if (opened != NULL) {
        *opened = flags;
    }
    return SQLITE_OK;
}

static int delete_file(sqlite3_vfs *vfs, const char *name, int sync) {
    (void)vfs;
    int result = nowait_remove_file(0, name, sync ? NOWAIT_NAME_DURABLE : 0);
    return result == -ENOENT ? SQLITE_IOERR_DELETE_NOENT : result < 0 ? failed(SQLITE_IOERR_DELETE) : SQLITE_OK;
}

static int is_accessible(sqlite3_vfs *vfs, const char *name, int how, int *answer) {
    (void)vfs;
    if (how == SQLITE_ACCESS_EXISTS) {
        /* An empty journal counts as no journal. */
        struct nowait_metadata known = {.size = sizeof known};
        int result = nowait_path_metadata(0, name, 0, &known);
        *answer = result == 0 && known.length > 0;
        return result == 0 || result == -ENOENT || result == -ENOTDIR ? SQLITE_OK : failed(SQLITE_IOERR_ACCESS);
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
    /* Full paths, random numbers, times and extensions are SQLite's own. */
    vfs = *unix_vfs;
    vfs.iVersion = 1;
    vfs.szOsFile = sizeof(struct open_file);
    vfs.pNext = NULL;
    vfs.zName = "nowait";
    vfs.xOpen = open_file;
    vfs.xDelete = delete_file;
    vfs.xAccess = is_accessible;
    return sqlite3_vfs_register(&vfs, 0);
}
