/* Counts the adapter's calls of the library by kind, in the file that ROCKSDB_SUITE_CALLS names. The file is mapped, so
 * the counts survive a process that is killed. The adapter is linked with --wrap for each counted function. */

#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <nowait.h>

enum { READS, BATCHES, WRITES, SYNCS, DIRECTORY_SYNCS, KINDS };

static _Atomic uint64_t unused[KINDS];
static _Atomic uint64_t *calls = unused;

__attribute__((constructor)) static void open_counters(void) {
    const char *name = getenv("ROCKSDB_SUITE_CALLS");
    int descriptor = name == NULL ? -1 : open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0) {
        return;
    }
    if (ftruncate(descriptor, sizeof unused) == 0) {
        void *start = mmap(NULL, sizeof unused, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
        calls = start == MAP_FAILED ? unused : start;
    }
    close(descriptor);
}

#define WRAP(kind, type, name, parameters, arguments)                                                                  \
    type __real_##name parameters;                                                                                     \
    type __wrap_##name parameters;                                                                                     \
    type __wrap_##name parameters {                                                                                    \
        atomic_fetch_add(&calls[kind], 1);                                                                             \
        return __real_##name arguments;                                                                                \
    }

WRAP(READS, int64_t, nowait_read_at, (nowait_file file, void *buffer, size_t length, uint64_t offset),
     (file, buffer, length, offset))
WRAP(READS, int64_t, nowait_try_read_at, (nowait_file file, void *buffer, size_t length, uint64_t offset),
     (file, buffer, length, offset))
WRAP(BATCHES, int, nowait_submit_reads, (nowait_queue queue, struct nowait_read *reads, size_t count),
     (queue, reads, count))
WRAP(BATCHES, int, nowait_submit_read,
     (nowait_queue queue, nowait_file file, void *buffer, size_t length, uint64_t offset, void *user,
      uint64_t *operation),
     (queue, file, buffer, length, offset, user, operation))
WRAP(WRITES, int64_t, nowait_write_at,
     (nowait_file file, const void *buffer, size_t length, uint64_t offset, uint32_t flags),
     (file, buffer, length, offset, flags))
WRAP(SYNCS, int, nowait_sync, (nowait_file file, uint32_t flags), (file, flags))
WRAP(DIRECTORY_SYNCS, int, nowait_sync_dir, (nowait_instance instance, const char *path, uint32_t flags),
     (instance, path, flags))
