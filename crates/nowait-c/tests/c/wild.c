/* Calls of all functions with arguments by chance, from two threads: handles that are open, closed, of
 * another kind or none; pointers that are good, NULL or not aligned; lengths, offsets, flags and sizes of
 * any kind. Each call answers with a count or an errno, and nothing is harmed.
 *
 * What C cannot check is kept: a good pointer has as many bytes as the call says. Left out are calls
 * that would wait without end. */

#include <pthread.h>
#include <sys/uio.h>

#include "test.h"

enum { BUFFERS = 512, BUFFER_BYTES = 8192, HANDLES = 16, THREADS = 2, FUNCTIONS = 72 };

static char *folder;
static uint64_t handles[HANDLES];
static uint64_t calls, successes[FUNCTIONS];
/* valgrind runs no other thread during io_uring_enter(2): a read that waits there for another thread's
 * read would hang. */
static int without_waits;

struct chance {
    uint64_t state;
    /* Each operation has one of its own; they come again much later. */
    unsigned char (*buffers)[BUFFER_BYTES];
    unsigned next_buffer;
    char path[4200];
    char to[4200];
};

static uint64_t any(struct chance *chance, uint64_t bound) {
    chance->state ^= chance->state << 13;
    chance->state ^= chance->state >> 7;
    chance->state ^= chance->state << 17;
    return (chance->state >> 11) % bound;
}

static uint64_t handle(struct chance *chance) {
    uint64_t one = __atomic_load_n(&handles[any(chance, HANDLES)], __ATOMIC_RELAXED);
    switch (any(chance, 12)) {
    case 0:
        return any(chance, 3);
    case 1:
        return one ^ ((uint64_t)1 << any(chance, 64));
    case 2:
        return UINT64_MAX - any(chance, 2);
    default:
        return one;
    }
}

/* Of the kind that is asked for, most of the time. */
static uint64_t handle_of(struct chance *chance, uint64_t kind) {
    for (int tries = 0; tries < 20; tries++) {
        uint64_t one = handle(chance);
        if (one >> 56 == kind) {
            return one;
        }
    }
    return handle(chance);
}

enum { INSTANCE = 1, FILE_ = 2, QUEUE = 3, LOG = 4, CACHE = 7, CACHED = 8 };

static void *memory(struct chance *chance) {
    unsigned char *start = chance->buffers[chance->next_buffer++ % BUFFERS];
    return any(chance, 16) == 0 ? NULL : start + any(chance, 2);
}

static size_t length(struct chance *chance) {
    static const size_t lengths[] = {0, 1, 7, 512, 4096, 8191, SIZE_MAX, SIZE_MAX / 2 + 1};
    return lengths[any(chance, sizeof lengths / sizeof *lengths)];
}

static uint64_t offset(struct chance *chance) {
    static const uint64_t offsets[] = {0, 1, 4095, 4096, 100000, 1 << 30, INT64_MAX, (uint64_t)INT64_MAX + 1,
        UINT64_MAX};
    return offsets[any(chance, sizeof offsets / sizeof *offsets)];
}

/* Never as much as a disk could give. */
static uint64_t space(struct chance *chance) {
    static const uint64_t lengths[] = {0, 1, 4096, 100000, (uint64_t)1 << 62, INT64_MAX, UINT64_MAX};
    return lengths[any(chance, sizeof lengths / sizeof *lengths)];
}

static uint32_t flags(struct chance *chance) {
    return any(chance, 8) == 0 ? (uint32_t)chance->state : (uint32_t)any(chance, 8) & (uint32_t)any(chance, 8);
}

static const char *path(struct chance *chance, char *into) {
    static const char *const names[] = {"a", "b", "c", "d", "d/a", "d/b", "none/a", "a/b", ".", "..", "d/", ""};
    if (any(chance, 20) == 0) {
        return any(chance, 2) == 0 ? NULL : "";
    }
    /* Nothing outside of the folder is changed. */
    snprintf(into, 4200, "%s/%s", folder, names[any(chance, sizeof names / sizeof *names)]);
    return into;
}

/* Where an answer goes: for structs, with a size that may be wrong. */
static void *answer(struct chance *chance, size_t size) {
    unsigned char *start = chance->buffers[chance->next_buffer++ % BUFFERS];
    static const size_t sizes[] = {0, 1, 4095, 4096, 4097, SIZE_MAX};
    size_t said = any(chance, 4) == 0 ? sizes[any(chance, 6)] : size;
    memset(start, 0, BUFFER_BYTES);
    memcpy(start, &said, sizeof said);
    switch (any(chance, 10)) {
    case 0:
        return NULL;
    case 1:
        return any(chance, 2) == 0 ? start : start + 1;
    default:
        return start;
    }
}

#define ANSWER(type) (struct type *)answer(c, sizeof(struct type))

/* Syncs take their time: few are made. */
#define UNSYNCED ~(uint32_t)NOWAIT_NAME_DURABLE
#define SELDOM (any(c, 20) == 0)

/* A handle that was opened takes the place of another, which is closed. */
static void keep(struct chance *chance, uint64_t opened) {
    uint64_t old = __atomic_exchange_n(&handles[any(chance, HANDLES)], opened, __ATOMIC_RELAXED);
    switch (old >> 56) {
    case INSTANCE:
        nowait_instance_close(old);
        break;
    case FILE_:
        nowait_file_close(old);
        break;
    case LOG:
        nowait_log_close(old);
        break;
    case CACHE:
        nowait_cache_close(old);
        break;
    case CACHED:
        nowait_cached_close(old);
        break;
    default:
        /* The queue of all stays open. */
        if (old != 0) {
            __atomic_store_n(&handles[0], old, __ATOMIC_RELAXED);
        }
    }
}

static int64_t call(struct chance *c, uint64_t function) {
    uint64_t number = 0;
    uint64_t *out = any(c, 10) == 0 ? NULL : &number;
    const uint64_t file = handle_of(c, FILE_), other = handle_of(c, FILE_), queue = handle_of(c, QUEUE);
    const uint64_t instance = any(c, 2) ? 0 : handle_of(c, INSTANCE);
    struct iovec pieces[3];
    for (int i = 0; i < 3; i++) {
        pieces[i].iov_base = memory(c);
        pieces[i].iov_len = length(c);
    }
    const size_t count = any(c, 8) == 0 ? SIZE_MAX / 8 : any(c, 4);
    const size_t few = any(c, 8) == 0 ? SIZE_MAX : any(c, 3);
    struct iovec *list = any(c, 8) == 0 ? NULL : pieces;
    int64_t result;
    switch (function) {
    case 0: {
        struct nowait_instance_options *options = ANSWER(nowait_instance_options);
        result = nowait_instance_open(options, out);
        if (result == 0) {
            keep(c, number);
        }
        return result;
    }
    case 1:
        return nowait_instance_stats(instance, ANSWER(nowait_instance_counters));
    case 2:
        return nowait_instance_has_ring(instance);
    case 3:
    case 4:
    case 5: {
        static const int ways[] = {O_RDWR, O_RDONLY, O_WRONLY, O_RDWR | O_CREAT,
                                   O_RDWR | O_EXCL | O_CREAT, O_RDWR | O_APPEND, O_RDWR | O_CREAT | O_DIRECT,
                                   O_RDWR | O_TRUNC, O_PATH, O_DIRECTORY};
        result = nowait_file_open(instance, path(c, c->path), ways[any(c, sizeof ways / sizeof *ways)], 0600,
            out);
        if (result == 0) {
            keep(c, number);
        }
        return result;
    }
    case 6:
        /* Its own, or one that is not open. */
        result = any(c, 2) ? nowait_file_descriptor(file) : -1 - (int)any(c, 1000);
        result = result >= 0 && SELDOM ? 100000 : result;
        result = nowait_file_from_descriptor(instance, (int)result, any(c, 2) ? NULL : "name", out);
        if (result == 0) {
            keep(c, number);
        }
        return result;
    case 7:
        return any(c, 8) == 0 ? nowait_file_close(file) : nowait_file_descriptor(file);
    case 8:
        return nowait_file_size(file, out);
    case 9:
        return nowait_read_at(file, memory(c), length(c), offset(c));
    case 10:
        return nowait_write_at(file, memory(c), length(c), offset(c), flags(c));
    case 11:
        return nowait_append(file, memory(c), length(c), flags(c));
    case 12:
        return SELDOM ? nowait_sync(file, flags(c)) : nowait_sync(file, 2 + flags(c) * 4);
    case 13:
        return nowait_file_acknowledge_sync_failure(file);
    case 14:
        return nowait_read_vectored_at(file, list, count, offset(c));
    case 15:
        return nowait_write_vectored_at(file, list, count, offset(c), flags(c));
    case 16:
        return nowait_file_set_length(file, offset(c));
    case 17:
        return nowait_file_allocate(file, flags(c), space(c), space(c));
    case 18:
        return nowait_file_advise(file, offset(c), offset(c), flags(c));
    case 19:
        return nowait_file_metadata(file, ANSWER(nowait_metadata));
    case 20:
        return nowait_path_metadata(instance, path(c, c->path), flags(c), ANSWER(nowait_metadata));
    case 21:
        return nowait_file_try_lock(file, flags(c));
    case 22:
        return nowait_file_unlock(file);
    case 23:
        return nowait_file_try_lock_range(file, flags(c), offset(c), offset(c));
    case 24:
        return nowait_file_unlock_range(file, offset(c), offset(c));
    case 25:
        return nowait_file_is_range_locked(file, flags(c), offset(c), offset(c));
    case 26:
        return nowait_rename(instance, path(c, c->path), path(c, c->to), flags(c) & UNSYNCED);
    case 27:
        return nowait_remove_file(instance, path(c, c->path), flags(c) & UNSYNCED);
    case 28:
        return nowait_create_dir(instance, path(c, c->path), flags(c) & UNSYNCED);
    case 29:
        return nowait_remove_dir(instance, path(c, c->path), flags(c) & UNSYNCED);
    case 30:
        return SELDOM ? nowait_sync_dir(instance, path(c, c->path), flags(c)) : nowait_sync_dir(0, NULL, 0);
    case 31:
        return SELDOM ? nowait_write_atomic(instance, path(c, c->path), memory(c), length(c), flags(c))
                      : nowait_write_atomic(instance, NULL, NULL, 0, 0);
    case 32: {
        struct nowait_range ranges[2] = {{offset(c), offset(c)}, {offset(c), any(c, 5000)}};
        return nowait_gather(file, any(c, 8) ? ranges : NULL, few, memory(c), length(c), any(c,
                             2) ? NULL : (int64_t *)answer(c, 0));
    }
    case 33: {
        struct nowait_log_options *options = ANSWER(nowait_log_options);
        if (options != NULL && (uintptr_t)options % 8 == 0 && options->size == sizeof *options) {
            options->create = 1;
            options->first_segment_bytes = options->segment_bytes = 65536;
        }
        result = nowait_log_open(instance, path(c, c->path), options, out, ANSWER(nowait_log_recovery));
        if (result == 0) {
            keep(c, number);
        }
        return result;
    }
    case 34:
        return nowait_log_append(handle_of(c, LOG), memory(c), length(c), out);
    case 35:
        return nowait_log_append_batch(handle_of(c, LOG), (const struct nowait_bytes *)list, count, out);
    case 36:
        return nowait_log_last(handle_of(c, LOG), out, NULL);
    case 37:
        return nowait_log_stats(handle_of(c, LOG), ANSWER(nowait_log_counters));
    case 38:
        return nowait_log_wait(any(c, 2) ? any(c, 3) : UINT64_MAX, offset(c));
    case 39:
        return nowait_log_reader_tail(file, (struct nowait_log_record *)answer(c, 0));
    case 40:
        return nowait_copy_start(any(c, 2) ? NULL : (const char *const *)list, 0, path(c, c->path),
                                 ANSWER(nowait_copy_options), out);
    case 41:
        return nowait_copy_wait(file, ANSWER(nowait_copy_report));
    case 42:
        return nowait_probe(NULL, flags(c), (char **)answer(c, 0));
    case 43:
        return nowait_queue_operations(queue);
    case 44:
        return nowait_cancel(queue, any(c, 2) ? any(c, 1000) | (uint64_t)any(c, 1000) << 32 : UINT64_MAX);
    case 45:
        return nowait_submit_read(queue, file, memory(c), length(c), offset(c), NULL, out);
    case 46:
        return nowait_submit_write(queue, file, memory(c), length(c), offset(c), flags(c), NULL, out);
    case 47:
        return nowait_submit_append(queue, file, memory(c), length(c), flags(c), NULL, out);
    case 48:
        return nowait_submit_read_vectored(queue, file, list, count, offset(c), NULL, out);
    case 49:
        return nowait_submit_write_vectored(queue, file, list, count, offset(c), flags(c), NULL, out);
    case 50: {
        struct nowait_read reads[2] = {{file, memory(c), length(c), offset(c), NULL, 0},
                                       {other, memory(c), length(c), offset(c), NULL, 0}};
        return nowait_submit_reads(queue, any(c, 8) ? reads : NULL, few);
    }
    case 51: {
        struct nowait_write writes[2] = {{file, memory(c), length(c), offset(c), flags(c), NULL, 0},
                                         {other, memory(c), length(c), offset(c), flags(c), NULL, 0}};
        writes[1].flags <<= any(c, 40);
        return nowait_submit_writes(queue, any(c, 8) ? writes : NULL, few);
    }
    case 52: {
        struct nowait_range ranges[2] = {{offset(c), offset(c)}, {offset(c), any(c, 5000)}};
        return nowait_submit_gather(queue, file, any(c, 8) ? ranges : NULL, few, memory(c), length(c), any(c,
                                    2) ? NULL : (int64_t *)answer(c, 0), NULL, out);
    }
    case 53:
        return nowait_submit_sync(queue, file, SELDOM ? 0 : 2 + flags(c), NULL, out);
    case 54:
        return nowait_submit_set_length(queue, file, offset(c), NULL, out);
    case 55:
        return nowait_submit_allocate(queue, file, flags(c), space(c), space(c), NULL, out);
    case 56:
        return nowait_submit_advise(queue, file, offset(c), offset(c), flags(c), NULL, out);
    case 57:
        return nowait_submit_rename(queue, instance, path(c, c->path), path(c, c->to), flags(c) & UNSYNCED,
                                    NULL, out);
    case 58:
        return nowait_submit_remove_file(queue, instance, path(c, c->path), flags(c) & UNSYNCED, NULL, out);
    case 59:
        return any(c, 2)
                   ? nowait_submit_create_dir(queue, instance, path(c, c->path), flags(c) & UNSYNCED, NULL, out)
                   : nowait_submit_remove_dir(queue, instance, path(c, c->path), flags(c) & UNSYNCED, NULL, out);
    case 60:
        return SELDOM ? nowait_submit_sync_dir(queue, instance, path(c, c->path), flags(c), NULL, out)
                      : nowait_submit_sync_dir(queue, file, NULL, 0, NULL, out);
    case 61:
        return SELDOM ? nowait_submit_write_atomic(queue, instance, path(c, c->path), memory(c), length(c),
                                                   flags(c), NULL, out)
                      : nowait_submit_write_atomic(queue, file, NULL, NULL, 0, 1, NULL, out);
    case 62:
        return nowait_submit_log_wait(queue, any(c, 3), 1, NULL, out);
    case 63: {
        struct nowait_cache_options *options = ANSWER(nowait_cache_options);
        if (options != NULL && (uintptr_t)options % 8 == 0 && options->size == sizeof *options) {
            static const uint64_t pages[] = {0, 4096, 8192, 65536, 5000, UINT64_MAX};
            options->page_bytes = pages[any(c, sizeof pages / sizeof *pages)];
            options->capacity_bytes = any(c, 4) * 500000;
        }
        result = nowait_cache_create(options, out);
        if (result == 0) {
            keep(c, number);
        }
        return result;
    }
    case 64:
        result = nowait_cache_open(handle_of(c, CACHE), file, flags(c), out);
        if (result == 0) {
            keep(c, number);
        }
        return result;
    case 65:
    case 66: {
        struct nowait_lease *lease = (struct nowait_lease *)answer(c, 0);
        const uint64_t cached = handle_of(c, CACHED);
        const size_t bytes = length(c);
        result = function == 65 && !without_waits ? nowait_cache_read(cached, offset(c), bytes, lease)
                                                  : nowait_cache_try_read(cached, offset(c), bytes, lease);
        if (result == 0) {
            CHECK(lease->length == bytes);
            memcpy(c->buffers[c->next_buffer++ % BUFFERS], lease->data, bytes);
        }
        /* A struct that is good is a lease or zeros. */
        const int unpinned = nowait_unpin(lease);
        CHECK(unpinned == 0 || (result < 0 && unpinned == -EFAULT));
        return result;
    }
    case 67:
        return nowait_cached_invalidate(handle_of(c, CACHED), offset(c), offset(c));
    case 68:
        return nowait_cached_revalidate(handle_of(c, CACHED));
    case 69:
        return any(c, 2) ? nowait_cache_stats(handle_of(c, CACHE), ANSWER(nowait_cache_counters))
                         : nowait_cache_set_capacity(handle_of(c, CACHE), offset(c));
    case 70:
        return nowait_cached_write(handle_of(c, CACHED), memory(c), length(c), offset(c));
    default: {
        struct nowait_completion *completions = (struct nowait_completion *)answer(c, 0);
        return nowait_reap(queue, completions, any(c, 20), 0);
    }
    }
}

static void *make_calls(void *argument) {
    struct chance *chance = (struct chance *)argument;
    const uint64_t mine = __atomic_load_n(&calls, __ATOMIC_RELAXED);
    for (uint64_t i = 0; i < mine; i++) {
        uint64_t function = any(chance, FUNCTIONS);
        int64_t result = call(chance, function);
        /* No defect of the library, no errno that there is not. */
        if (result < 0) {
            CHECK(result > -4096 && result != -ENOTRECOVERABLE);
            CHECK(strlen(nowait_error_message()) > 5);
        } else {
            __atomic_fetch_add(&successes[function], 1, __ATOMIC_RELAXED);
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    folder = argv[1];
    const char *seed = getenv("NOWAIT_TEST_SEED"), *count = getenv("NOWAIT_TEST_CALLS");
    uint64_t state = seed != NULL ? strtoull(seed, NULL, 0) : (uint64_t)getpid() * 2654435761u;
    without_waits = getenv("NOWAIT_TEST_WITHOUT_FORK") != NULL;
    calls = count != NULL ? strtoull(count, NULL, 0) : 15000;
    printf("NOWAIT_TEST_SEED=%llu\n", (unsigned long long)state);
    fflush(stdout);
    nowait_queue queue = 0;
    EQUAL(nowait_queue_open(&queue), 0);
    handles[0] = queue;
    EQUAL(nowait_file_open(0, in_folder(argv, "a"), O_RDWR | O_CREAT, 0600, &handles[1]), 0);
    pthread_t threads[THREADS];
    static struct chance chances[THREADS];
    for (int i = 0; i < THREADS; i++) {
        chances[i].state = (state + (uint64_t)i + 1) * 0x9e3779b97f4a7c15ULL | 1;
        chances[i].buffers = (unsigned char(*)[BUFFER_BYTES])calloc(BUFFERS, BUFFER_BYTES);
        CHECK(chances[i].buffers != NULL);
        CHECK(pthread_create(&threads[i], NULL, make_calls, &chances[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    /* All that was submitted comes to its end, and nothing is left. */
    struct nowait_completion completions[64];
    while (nowait_queue_operations(queue) > 0) {
        int reaped = nowait_reap(queue, completions, 64, -1);
        CHECK(reaped > 0);
        for (int i = 0; i < reaped; i++) {
            CHECK(completions[i].result != -ENOTRECOVERABLE);
        }
    }
    EQUAL(nowait_queue_close(queue), 0);
    for (int i = 0; i < THREADS; i++) {
        free(chances[i].buffers);
    }
    int rarely = 0;
    for (int i = 0; i < FUNCTIONS; i++) {
        rarely += successes[i] == 0;
    }
    printf("%d of %d functions never succeeded\n", rarely, FUNCTIONS);
    CHECK(rarely < FUNCTIONS / 4);
    return 0;
}
