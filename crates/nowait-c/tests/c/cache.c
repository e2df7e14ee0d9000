/* Page caches: leases of cached pages, and of copies. */

#include <pthread.h>
#include <sys/wait.h>

#include "test.h"

enum { PAGE = 4096, FILE_BYTES = 40 * PAGE + 100, THREADS = 8, READS = 3000, HELD = 3 };

static const struct nowait_lease NO_LEASE = {NULL, 0, {0, 0}};

/* Under valgrind it has no rings: valgrind runs no other thread during io_uring_enter(2), so a thread
 * that waits there for a read of another thread would hang. */
static nowait_instance instance = 0;

static void open_instance(void) {
    if (getenv("NOWAIT_TEST_WITHOUT_FORK") != NULL) {
        struct nowait_instance_options options;
        memset(&options, 0, sizeof options);
        options.size = sizeof options;
        options.engine = NOWAIT_ENGINE_POOL;
        EQUAL(nowait_instance_open(&options, &instance), 0);
    }
}

static nowait_file make_file_in(char **argv, const char *name, int flags) {
    EQUAL(nowait_file_close(make_file(argv, name, FILE_BYTES)), 0);
    nowait_file file = 0;
    EQUAL(nowait_file_open(instance, in_folder(argv, name), flags, 0, &file), 0);
    return file;
}

static nowait_cache make_cache(uint64_t pages, uint64_t wait_max_ns) {
    struct nowait_cache_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.capacity_bytes = pages * PAGE;
    options.page_bytes = PAGE;
    options.wait_max_ns = wait_max_ns;
    nowait_cache cache = 0;
    EQUAL(nowait_cache_create(&options, &cache), 0);
    CHECK(cache != 0);
    return cache;
}

static nowait_cached open_cached(nowait_cache cache, nowait_file file, uint32_t access) {
    nowait_cached cached = 0;
    EQUAL(nowait_cache_open(cache, file, access, &cached), 0);
    CHECK(cached != 0);
    return cached;
}

static struct nowait_cache_counters counters(nowait_cache cache) {
    struct nowait_cache_counters stats;
    memset(&stats, 0xff, sizeof stats);
    stats.size = sizeof stats;
    EQUAL(nowait_cache_stats(cache, &stats), 0);
    return stats;
}

static int is_zero(const struct nowait_lease *lease) {
    return memcmp(lease, &NO_LEASE, sizeof *lease) == 0;
}

static void check_lease(const struct nowait_lease *lease, uint64_t offset, size_t length) {
    EQUAL(lease->length, length);
    check_bytes((const unsigned char *)lease->data, length, offset);
}

static void hits_and_misses(char **argv) {
    nowait_file file = make_file_in(argv, "hits", O_RDWR);
    nowait_cache cache = make_cache(64, 0);
    nowait_cached cached = open_cached(cache, file, NOWAIT_CACHE_IMMUTABLE);
    struct nowait_lease one = NO_LEASE, two = NO_LEASE;

    EQUAL(nowait_cache_try_read(cached, 3 * PAGE + 10, 20, &one), -EAGAIN);
    CHECK(is_zero(&one));
    EQUAL(nowait_unpin(&one), 0);
    EQUAL(counters(cache).reads, 0);

    EQUAL(nowait_cache_read(cached, 3 * PAGE + 10, 20, &one), 0);
    check_lease(&one, 3 * PAGE + 10, 20);
    EQUAL(nowait_cache_try_read(cached, 3 * PAGE + 15, 5, &two), 0);
    check_lease(&two, 3 * PAGE + 15, 5);
    /* The same page, in place. */
    CHECK((const char *)two.data == (const char *)one.data + 5);
    struct nowait_cache_counters stats = counters(cache);
    EQUAL(stats.size, sizeof stats);
    EQUAL(stats.misses, 1);
    EQUAL(stats.hits, 1);
    EQUAL(stats.pinned, 1);
    EQUAL(stats.cached, 1);

    /* The struct is zeros afterwards, so a second call has no effect. */
    EQUAL(nowait_unpin(&two), 0);
    CHECK(is_zero(&two));
    EQUAL(nowait_unpin(&two), 0);
    EQUAL(counters(cache).pinned, 1);
    check_lease(&one, 3 * PAGE + 10, 20);
    EQUAL(nowait_unpin(&one), 0);

    /* Ranges of several pages are copies; the whole file, and nothing. */
    const struct nowait_range ranges[] = {
        {PAGE - 1, 2}, {100, 3 * PAGE}, {FILE_BYTES - 1, 1}, {40 * PAGE, 100}, {0, FILE_BYTES}, {17, 0}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        EQUAL(nowait_cache_read(cached, ranges[i].offset, (size_t)ranges[i].length, &one), 0);
        check_lease(&one, ranges[i].offset, (size_t)ranges[i].length);
        if (ranges[i].length < FILE_BYTES) {
            EQUAL(nowait_cache_try_read(cached, ranges[i].offset, (size_t)ranges[i].length, &two), 0);
            check_lease(&two, ranges[i].offset, (size_t)ranges[i].length);
            EQUAL(nowait_unpin(&two), 0);
        }
        EQUAL(nowait_unpin(&one), 0);
    }
    CHECK(counters(cache).uncached > 0);

    /* Beyond the end of the file. */
    EQUAL(nowait_cache_read(cached, FILE_BYTES - 1, 2, &one), -ENODATA);
    SAYS("/hits");
    CHECK(is_zero(&one));
    EQUAL(nowait_cache_read(cached, FILE_BYTES, 1, &one), -ENODATA);
    EQUAL(nowait_cache_read(cached, INT64_MAX, 1, &one), -ENODATA);
    EQUAL(nowait_cache_read(cached, UINT64_MAX, 1, &one), -EOVERFLOW);
    EQUAL(nowait_cache_read(cached, 1, SIZE_MAX, &one), -EOVERFLOW);
    EQUAL(nowait_cache_read(cached, 0, SIZE_MAX, &one), -ENODATA);
    EQUAL(nowait_cache_try_read(cached, FILE_BYTES - 1, 2, &one), -EAGAIN);
    EQUAL(nowait_cache_try_read(cached, 0, FILE_BYTES + 1, &one), -EAGAIN);
    EQUAL(nowait_cache_try_read(cached, UINT64_MAX, 1, &one), -EOVERFLOW);
    CHECK(is_zero(&one));

    EQUAL(nowait_cached_close(cached), 0);
    EQUAL(nowait_cache_close(cache), 0);
    EQUAL(nowait_file_close(file), 0);
}

static void direct(char **argv) {
    nowait_file file = make_file_in(argv, "direct", O_RDONLY | O_DIRECT);
    nowait_cache cache = 0;
    EQUAL(nowait_cache_create(NULL, &cache), 0);
    nowait_cached cached = open_cached(cache, file, NOWAIT_CACHE_IMMUTABLE);
    struct nowait_lease lease = NO_LEASE;
    for (uint64_t offset = 0; offset + 100 <= FILE_BYTES; offset += 100) {
        EQUAL(nowait_cache_read(cached, offset, 100, &lease), 0);
        check_lease(&lease, offset, 100);
        EQUAL(nowait_unpin(&lease), 0);
    }
    struct nowait_cache_counters stats = counters(cache);
    CHECK(stats.read_ahead > 0 && stats.read_bytes >= FILE_BYTES);
    /* Without the file, cached pages only. */
    EQUAL(nowait_file_close(file), 0);
    EQUAL(nowait_cache_read(cached, 0, 100, &lease), 0);
    EQUAL(nowait_unpin(&lease), 0);
    EQUAL(nowait_cached_invalidate(cached, 0, UINT64_MAX), 0);
    EQUAL(nowait_cache_read(cached, 0, 100, &lease), -EBADF);
    SAYS("closed");
    EQUAL(nowait_cached_close(cached), 0);
    EQUAL(nowait_cache_close(cache), 0);
}

static void changes(char **argv) {
    nowait_file file = make_file_in(argv, "changes", O_RDWR);
    nowait_cache cache = make_cache(64, 0);
    nowait_cached cached = open_cached(cache, file, NOWAIT_CACHE_EXCLUSIVE);
    struct nowait_lease old = NO_LEASE, young = NO_LEASE;
    EQUAL(nowait_cache_read(cached, 5 * PAGE, PAGE, &old), 0);
    EQUAL(nowait_write_at(file, "new", 3, 5 * PAGE, 0), 3);
    EQUAL(nowait_cached_invalidate(cached, 5 * PAGE, 0), 0);
    EQUAL(nowait_cache_try_read(cached, 5 * PAGE, 1, &young), 0);
    EQUAL(nowait_unpin(&young), 0);
    EQUAL(nowait_cached_invalidate(cached, 5 * PAGE + 2, 1), 0);
    EQUAL(nowait_cache_try_read(cached, 5 * PAGE, 3, &young), -EAGAIN);
    EQUAL(nowait_cache_read(cached, 5 * PAGE, 3, &young), 0);
    CHECK(memcmp(young.data, "new", 3) == 0);
    /* A lease keeps its bytes. */
    check_lease(&old, 5 * PAGE, PAGE);
    EQUAL(nowait_unpin(&young), 0);
    EQUAL(nowait_unpin(&old), 0);
    EQUAL(nowait_cached_invalidate(cached, 1, UINT64_MAX), 0);
    EQUAL(counters(cache).cached, 0);

    /* A write changes the file and the cached page. A write beyond the end extends the file. */
    EQUAL(nowait_cache_read(cached, 5 * PAGE, 10, &old), 0);
    EQUAL(nowait_cached_write(cached, "written", 7, 5 * PAGE), 7);
    EQUAL(nowait_cache_try_read(cached, 5 * PAGE, 7, &young), 0);
    CHECK(memcmp(young.data, "written", 7) == 0 && memcmp(old.data, "new", 3) == 0);
    EQUAL(nowait_unpin(&young), 0);
    EQUAL(nowait_unpin(&old), 0);
    char bytes[8] = {0};
    EQUAL(nowait_read_at(file, bytes, 7, 5 * PAGE), 7);
    CHECK(memcmp(bytes, "written", 7) == 0);
    EQUAL(nowait_cached_write(cached, "beyond", 6, FILE_BYTES + 100), 6);
    EQUAL(nowait_cache_read(cached, FILE_BYTES + 90, 16, &young), 0);
    CHECK(memcmp(young.data, "\0\0\0\0\0\0\0\0\0\0beyond", 16) == 0);
    EQUAL(nowait_unpin(&young), 0);
    EQUAL(nowait_cached_write(cached, NULL, 1, 0), -EFAULT);
    EQUAL(nowait_cached_write(0, "x", 1, 0), -EBADF);
    EQUAL(counters(cache).writes, 2);
    EQUAL(counters(cache).written_bytes, 13);
    EQUAL(nowait_file_set_length(file, FILE_BYTES), 0);
    EQUAL(nowait_cached_revalidate(cached), 1);
    EQUAL(nowait_cached_close(cached), 0);

    cached = open_cached(cache, file, NOWAIT_CACHE_REVALIDATE);
    EQUAL(nowait_cached_write(cached, "x", 1, 0), -EINVAL);
    SAYS("Exclusive");
    EQUAL(nowait_file_set_length(file, FILE_BYTES + 10), 0);
    EQUAL(nowait_cache_read(cached, FILE_BYTES, 10, &old), -ENODATA);
    SAYS("revalidate");
    EQUAL(nowait_cached_revalidate(cached), 1);
    EQUAL(nowait_cache_read(cached, FILE_BYTES, 10, &old), 0);
    CHECK(memcmp(old.data, "\0\0\0\0\0\0\0\0\0\0", 10) == 0);
    EQUAL(nowait_unpin(&old), 0);
    EQUAL(nowait_cached_close(cached), 0);
    EQUAL(nowait_cache_close(cache), 0);
    EQUAL(nowait_file_close(file), 0);
}

static void *unpins(void *lease) {
    EQUAL(nowait_unpin((struct nowait_lease *)lease), 0);
    return NULL;
}

/* Leases outlive the cached file, the cache and the file; another thread may end them. */
static void leases_last(char **argv) {
    nowait_file file = make_file_in(argv, "last", O_RDWR);
    nowait_cache cache = make_cache(8, 0);
    nowait_cached cached = open_cached(cache, file, NOWAIT_CACHE_IMMUTABLE);
    struct nowait_lease page = NO_LEASE, copied = NO_LEASE;
    EQUAL(nowait_cache_read(cached, PAGE, PAGE, &page), 0);
    EQUAL(nowait_cache_read(cached, PAGE / 2, PAGE, &copied), 0);
    EQUAL(nowait_cached_close(cached), 0);
    EQUAL(nowait_cache_close(cache), 0);
    EQUAL(nowait_file_close(file), 0);
    struct nowait_lease moved = page;
    page = NO_LEASE;
    check_lease(&moved, PAGE, PAGE);
    check_lease(&copied, PAGE / 2, PAGE);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, unpins, &moved) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(is_zero(&moved));
    EQUAL(nowait_unpin(&copied), 0);
}

static void all_pages_pinned(char **argv) {
    nowait_file file = make_file_in(argv, "pinned", O_RDWR);
    nowait_cache cache = make_cache(4, 50000000);
    nowait_cached cached = open_cached(cache, file, NOWAIT_CACHE_IMMUTABLE);
    EQUAL(nowait_cache_set_capacity(cache, 2 * PAGE + 1), 2 * PAGE);
    struct nowait_lease leases[2] = {NO_LEASE, NO_LEASE}, third = NO_LEASE;
    EQUAL(nowait_cache_read(cached, 0, 1, &leases[0]), 0);
    EQUAL(nowait_cache_read(cached, 7 * PAGE, 1, &leases[1]), 0);
    EQUAL(nowait_cache_read(cached, 9 * PAGE, 1, &third), -ETIMEDOUT);
    SAYS("leases pin all");
    CHECK(is_zero(&third));
    EQUAL(nowait_unpin(&leases[0]), 0);
    EQUAL(nowait_cache_read(cached, 9 * PAGE, 1, &third), 0);
    EQUAL(nowait_unpin(&third), 0);
    EQUAL(nowait_unpin(&leases[1]), 0);
    EQUAL(nowait_cache_set_capacity(cache, UINT64_MAX), 4 * PAGE);
    EQUAL(nowait_cache_set_capacity(cache, 0), PAGE);
    EQUAL(nowait_cached_close(cached), 0);
    EQUAL(nowait_cache_close(cache), 0);
    EQUAL(nowait_file_close(file), 0);
}

static void is_no_cache(nowait_cache cache, nowait_file file) {
    struct nowait_cache_counters stats;
    memset(&stats, 0, sizeof stats);
    stats.size = sizeof stats;
    nowait_cached cached = 77;
    EQUAL(nowait_cache_open(cache, file, NOWAIT_CACHE_IMMUTABLE, &cached), -EBADF);
    EQUAL(cached, 77);
    EQUAL(nowait_cache_stats(cache, &stats), -EBADF);
    EQUAL(nowait_cache_set_capacity(cache, 1), -EBADF);
    EQUAL(nowait_cache_close(cache), -EBADF);
}

static void is_not_cached(nowait_cached cached) {
    struct nowait_lease lease;
    memset(&lease, 0xff, sizeof lease);
    EQUAL(nowait_cache_read(cached, 0, 1, &lease), -EBADF);
    /* Zeros also after this error. */
    CHECK(is_zero(&lease));
    memset(&lease, 0xff, sizeof lease);
    EQUAL(nowait_cache_try_read(cached, 0, 1, &lease), -EBADF);
    CHECK(is_zero(&lease));
    EQUAL(nowait_cached_invalidate(cached, 0, 1), -EBADF);
    EQUAL(nowait_cached_revalidate(cached), -EBADF);
    EQUAL(nowait_cached_close(cached), -EBADF);
}

static void bad_input(char **argv) {
    nowait_file file = make_file_in(argv, "bad", O_RDWR);
    nowait_cache cache = 0;
    struct nowait_cache_options options;
    memset(&options, 0, sizeof options);
    EQUAL(nowait_cache_create(&options, &cache), -EINVAL);
    SAYS("member size of options");
    options.size = sizeof options;
    EQUAL(nowait_cache_create(&options, NULL), -EFAULT);
    const uint64_t pages[] = {1, 4095, 5000, 2048, 1 << 21, UINT64_MAX};
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        options.page_bytes = pages[i];
        EQUAL(nowait_cache_create(&options, &cache), -EINVAL);
        SAYS("page_bytes must be a power of two");
    }
    options.page_bytes = 8192;
    options.capacity_bytes = 8191;
    EQUAL(nowait_cache_create(&options, &cache), -EINVAL);
    SAYS("capacity_bytes");
    options.capacity_bytes = UINT64_MAX;
    EQUAL(nowait_cache_create(&options, &cache), -EINVAL);
    EQUAL(cache, 0);
    options.capacity_bytes = 8192;
    options.wait_max_ns = UINT64_MAX;
    options.read_ahead_bytes_max = UINT64_MAX;
    EQUAL(nowait_cache_create(&options, &cache), 0);

    nowait_cached cached = 0;
    EQUAL(nowait_cache_open(cache, file, NOWAIT_CACHE_IMMUTABLE, NULL), -EFAULT);
    EQUAL(nowait_cache_open(cache, file, 3, &cached), -EINVAL);
    SAYS("access is 3");
    EQUAL(nowait_cache_open(cache, 0, NOWAIT_CACHE_IMMUTABLE, &cached), -EBADF);
    EQUAL(nowait_cache_open(cache, cache, NOWAIT_CACHE_IMMUTABLE, &cached), -EBADF);
    SAYS("to a cache, not to a file");
    nowait_file writer = 0;
    EQUAL(nowait_file_open(0, in_folder(argv, "bad"), O_WRONLY, 0, &writer), 0);
    EQUAL(nowait_cache_open(cache, writer, NOWAIT_CACHE_IMMUTABLE, &cached), -EACCES);
    EQUAL(nowait_file_close(writer), 0);
    EQUAL(nowait_file_open(0, "/dev/zero", O_RDONLY, 0, &writer), 0);
    EQUAL(nowait_cache_open(cache, writer, NOWAIT_CACHE_IMMUTABLE, &cached), -EOPNOTSUPP);
    EQUAL(nowait_file_close(writer), 0);
    EQUAL(cached, 0);
    cached = open_cached(cache, file, NOWAIT_CACHE_IMMUTABLE);

    uint64_t words[5] = {0, 0, 0, 0, 0};
    struct nowait_lease *odd = (struct nowait_lease *)(void *)((char *)words + 1);
    EQUAL(nowait_cache_read(cached, 0, 1, NULL), -EFAULT);
    SAYS("lease is NULL");
    EQUAL(nowait_cache_read(cached, 0, 1, odd), -EFAULT);
    SAYS("not aligned");
    EQUAL(nowait_cache_try_read(cached, 0, 1, NULL), -EFAULT);
    EQUAL(nowait_cache_try_read(cached, 0, 1, odd), -EFAULT);
    EQUAL(nowait_unpin(NULL), -EFAULT);
    EQUAL(nowait_unpin(odd), -EFAULT);
    EQUAL(nowait_cache_stats(cache, NULL), -EFAULT);

    is_no_cache(0, file);
    is_no_cache(file, file);
    is_no_cache(cached, file);
    SAYS("to a cached file, not to a cache");
    is_no_cache(UINT64_MAX, file);
    is_not_cached(0);
    is_not_cached(file);
    is_not_cached(cache);
    is_not_cached(cached + 1);
    EQUAL(nowait_cached_close(cached), 0);
    is_not_cached(cached);
    SAYS("already closed");
    EQUAL(nowait_cache_close(cache), 0);
    is_no_cache(cache, file);
    EQUAL(nowait_file_close(file), 0);
}

struct reader {
    nowait_cached cached;
    uint64_t state;
};

/* Reads by chance, holds the last leases, and unpins some of them twice. */
static void *reads(void *argument) {
    struct reader *reader = (struct reader *)argument;
    struct nowait_lease held[HELD] = {NO_LEASE, NO_LEASE, NO_LEASE};
    uint64_t offsets[HELD] = {0, 0, 0};
    for (int round = 0; round < READS; round++) {
        reader->state = reader->state * 6364136223846793005ULL + 1442695040888963407ULL;
        const uint64_t chance = reader->state >> 33;
        const int at = round % HELD;
        check_lease(&held[at], offsets[at], held[at].length);
        EQUAL(nowait_unpin(&held[at]), 0);
        if (chance % 3 == 0) {
            EQUAL(nowait_unpin(&held[at]), 0);
        }
        const size_t length = chance % 16 == 0 ? 2 * PAGE : 1 + chance % 60;
        offsets[at] = chance % (FILE_BYTES - length);
        int result = nowait_cache_try_read(reader->cached, offsets[at], length, &held[at]);
        if (result == -EAGAIN) {
            result = nowait_cache_read(reader->cached, offsets[at], length, &held[at]);
        }
        EQUAL(result, 0);
        EQUAL(held[at].length, length);
    }
    for (int at = 0; at < HELD; at++) {
        check_lease(&held[at], offsets[at], held[at].length);
        EQUAL(nowait_unpin(&held[at]), 0);
    }
    return NULL;
}

/* A cache of fewer pages than the file, and one handle for two threads. */
static void threads(char **argv) {
    nowait_file file = make_file_in(argv, "threads", O_RDWR);
    nowait_cache cache = make_cache(THREADS * (HELD + 1), 0);
    struct reader readers[THREADS];
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        readers[i].cached = i % 2 == 1 ? readers[i - 1].cached : open_cached(cache, file, NOWAIT_CACHE_IMMUTABLE);
        readers[i].state = (uint64_t)i + 1;
        CHECK(pthread_create(&threads[i], NULL, reads, &readers[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    struct nowait_cache_counters stats = counters(cache);
    CHECK(stats.hits > 0 && stats.misses > 0 && stats.evictions > 0);
    CHECK(stats.cached <= THREADS * (HELD + 1));
    EQUAL(stats.failures, 0);
    for (int i = 0; i < THREADS; i += 2) {
        EQUAL(nowait_cached_close(readers[i].cached), 0);
    }
    EQUAL(nowait_cache_close(cache), 0);
    EQUAL(nowait_file_close(file), 0);
}

static void forks(char **argv) {
    nowait_file file = make_file_in(argv, "forks", O_RDWR);
    nowait_cache cache = make_cache(8, 0);
    nowait_cached cached = open_cached(cache, file, NOWAIT_CACHE_IMMUTABLE);
    struct nowait_lease page = NO_LEASE, copied = NO_LEASE, other = NO_LEASE;
    EQUAL(nowait_cache_read(cached, 1, 3, &page), 0);
    EQUAL(nowait_cache_read(cached, PAGE - 1, 3, &copied), 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(60);
        EQUAL(nowait_cache_read(cached, 1, 3, &other), -EINVAL);
        SAYS("fork");
        EQUAL(nowait_cache_try_read(cached, 1, 3, &other), -EINVAL);
        EQUAL(nowait_cached_invalidate(cached, 1, 3), -EINVAL);
        EQUAL(nowait_cached_revalidate(cached), -EINVAL);
        EQUAL(nowait_cache_set_capacity(cache, 1), -EINVAL);
        nowait_cached opened = 0;
        EQUAL(nowait_cache_open(cache, file, NOWAIT_CACHE_IMMUTABLE, &opened), -EINVAL);
        CHECK(memcmp(page.data, "\0\0\0", 3) == 0);
        check_lease(&copied, PAGE - 1, 3);
        EQUAL(nowait_unpin(&page), 0);
        EQUAL(nowait_unpin(&copied), 0);
        EQUAL(nowait_cached_close(cached), 0);
        EQUAL(nowait_cache_close(cache), 0);
        /* Its own. */
        cache = make_cache(8, 0);
        cached = open_cached(cache, file, NOWAIT_CACHE_IMMUTABLE);
        EQUAL(nowait_cache_read(cached, 1, 3, &other), 0);
        check_lease(&other, 1, 3);
        _exit(0);
    }
    int ended = -1;
    CHECK(waitpid(child, &ended, 0) == child);
    EQUAL(ended, 0);
    check_lease(&page, 1, 3);
    EQUAL(nowait_unpin(&page), 0);
    EQUAL(nowait_unpin(&copied), 0);
    EQUAL(nowait_cached_close(cached), 0);
    EQUAL(nowait_cache_close(cache), 0);
    EQUAL(nowait_file_close(file), 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    open_instance();
    hits_and_misses(argv);
    direct(argv);
    changes(argv);
    leases_last(argv);
    all_pages_pinned(argv);
    bad_input(argv);
    threads(argv);
    if (getenv("NOWAIT_TEST_WITHOUT_FORK") == NULL) {
        forks(argv);
    }
    return 0;
}
