/* For SQLite's own tests: makes examples/sqlite_vfs.c the default VFS of a testfixture, with the
 * counters and simulated faults that the tests expect of one (os_common.h of SQLite).
 *
 * The VFS is compiled with these functions in the place of the library's (see suite.py), so that a
 * simulated fault comes from the library as a real one would. SUITE_VFS=nowait in the environment
 * turns this on; a process that exits appends to the file SUITE_REPORT what the library served. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <nowait.h>
#include <sqlite3.h>

int sqlite_vfs_register(void);
int suite_init(const char *unused);

extern int sqlite3_io_error_hit, sqlite3_io_error_hardhit, sqlite3_io_error_pending, sqlite3_io_error_persist,
    sqlite3_io_error_benign, sqlite3_diskfull_pending, sqlite3_diskfull, sqlite3_open_file_count, sqlite3_sync_count,
    sqlite3_fullsync_count, sqlite3PendingByte;

static void count_fault(void) {
    sqlite3_io_error_hit++;
    sqlite3_io_error_hardhit += !sqlite3_io_error_benign;
}

/* Whether the test wants this operation to fail. */
static int fails(void) {
    int now = (sqlite3_io_error_persist && sqlite3_io_error_hit) || sqlite3_io_error_pending-- == 1;
    if (now) {
        count_fault();
    }
    return now;
}

static int disk_is_full(void) {
    if (sqlite3_diskfull_pending == 1) {
        count_fault();
        sqlite3_diskfull = 1;
        sqlite3_io_error_hit = 1;
        return 1;
    }
    sqlite3_diskfull_pending -= sqlite3_diskfull_pending != 0;
    return 0;
}

int64_t suite_read_at(nowait_file file, void *buffer, size_t length, uint64_t offset) {
    int64_t result = nowait_read_at(file, buffer, length, offset);
    return fails() ? -EIO : result;
}

int64_t suite_write_at(nowait_file file, const void *buffer, size_t length, uint64_t offset, uint32_t flags) {
    int64_t result = nowait_write_at(file, buffer, length, offset, flags);
    if (fails()) {
        return -EIO;
    }
    return disk_is_full() ? -ENOSPC : result;
}

int suite_sync(nowait_file file, uint32_t flags) {
    sqlite3_sync_count++;
    int result = nowait_sync(file, flags);
    return fails() ? -EIO : result;
}

int suite_sync_dir(nowait_instance instance, const char *path, uint32_t flags) {
    sqlite3_sync_count++;
    return nowait_sync_dir(instance, path, flags);
}

int suite_file_set_length(nowait_file file, uint64_t length) {
    return fails() ? -EIO : nowait_file_set_length(file, length);
}

int suite_file_size(nowait_file file, uint64_t *size) {
    int result = nowait_file_size(file, size);
    return fails() ? -EIO : result;
}

/* The tests move the locks of a database from 1 GiB to a smaller offset. The VFS has constants. */
static uint64_t moved(uint64_t offset) {
    const uint64_t constant = 0x40000000;
    return offset < constant ? offset : offset - constant + (uint64_t)sqlite3PendingByte;
}

int suite_file_try_lock_range(nowait_file file, uint32_t kind, uint64_t offset, uint64_t length) {
    return nowait_file_try_lock_range(file, kind, moved(offset), length);
}

int suite_file_unlock_range(nowait_file file, uint64_t offset, uint64_t length) {
    return nowait_file_unlock_range(file, moved(offset), length);
}

int suite_file_is_range_locked(nowait_file file, uint32_t kind, uint64_t offset, uint64_t length) {
    return fails() ? -EIO : nowait_file_is_range_locked(file, kind, moved(offset), length);
}

int suite_remove_file(nowait_instance instance, const char *path, uint32_t flags) {
    if (fails()) {
        return -EIO;
    }
    int result = nowait_remove_file(instance, path, flags);
    sqlite3_sync_count += result == 0 && flags & NOWAIT_NAME_DURABLE;
    return result;
}

/* The methods of the VFS, and those that are put in their place. */
static sqlite3_io_methods own, hooked;
static int (*own_open)(sqlite3_vfs *, sqlite3_filename, sqlite3_file *, int, int *);
static int (*own_access)(sqlite3_vfs *, const char *, int, int *);

static int close_file(sqlite3_file *file) {
    sqlite3_open_file_count--;
    return own.xClose(file);
}

static int sync_file(sqlite3_file *file, int flags) {
    if (disk_is_full()) {
        return SQLITE_FULL;
    }
    sqlite3_fullsync_count += (flags & 0x0F) == SQLITE_SYNC_FULL;
    return own.xSync(file, flags);
}

/* SQLite ignores a size hint that fails, and a file of shared memory that stays. */
static int file_control(sqlite3_file *file, int operation, void *argument) {
    int was = sqlite3_io_error_benign;
    sqlite3_io_error_benign = was || operation == SQLITE_FCNTL_SIZE_HINT;
    int result = own.xFileControl(file, operation, argument);
    sqlite3_io_error_benign = was;
    return result;
}

static int unmap_shared(sqlite3_file *file, int removes) {
    int was = sqlite3_io_error_benign;
    sqlite3_io_error_benign = 1;
    int result = own.xShmUnmap(file, removes);
    sqlite3_io_error_benign = was;
    return result;
}

static int open_file(sqlite3_vfs *vfs, sqlite3_filename name, sqlite3_file *file, int flags, int *opened) {
    if (name == NULL && fails()) {
        return SQLITE_IOERR;
    }
    int result = own_open(vfs, name, file, flags, opened);
    if (result == SQLITE_OK) {
        own = hooked = *file->pMethods;
        hooked.xClose = close_file;
        hooked.xSync = sync_file;
        hooked.xFileControl = file_control;
        hooked.xShmUnmap = unmap_shared;
        file->pMethods = &hooked;
        sqlite3_open_file_count++;
    }
    return result;
}

static int is_accessible(sqlite3_vfs *vfs, const char *name, int how, int *answer) {
    return fails() ? SQLITE_IOERR_ACCESS : own_access(vfs, name, how, answer);
}

static void report(void) {
    struct nowait_instance_counters served = {.size = sizeof served};
    const char *path = getenv("SUITE_REPORT");
    FILE *file = path != NULL && nowait_instance_stats(0, &served) == 0 ? fopen(path, "a") : NULL;
    if (file != NULL) {
        uint64_t calls = served.blocking + served.served_inline + served.pool + served.ring;
        fprintf(file, "%llu\n", (unsigned long long)calls);
        fclose(file);
    }
}

/* Called by each sqlite3_initialize (SQLITE_EXTRA_INIT). */
int suite_init(const char *unused) {
    static sqlite3_vfs *vfs;
    const char *wanted = getenv("SUITE_VFS");
    (void)unused;
    if (wanted == NULL || wanted[0] != 'n') {
        return SQLITE_OK;
    }
    int result = sqlite_vfs_register();
    if (result != SQLITE_OK) {
        return result;
    }
    if (vfs == NULL) {
        vfs = sqlite3_vfs_find("nowait");
        own_open = vfs->xOpen;
        own_access = vfs->xAccess;
        vfs->xOpen = open_file;
        vfs->xAccess = is_accessible;
        /* Tests install faulty system calls, and end the run if there is no place for them. */
        vfs->iVersion = 3;
        atexit(report);
    }
    return sqlite3_vfs_register(vfs, 1);
}
