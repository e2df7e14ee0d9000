/* Queues: submit, reap, cancel, and a descriptor to poll. */

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>

#include "test.h"

enum { FILE_BYTES = 1 << 20, DEPTH = 32, READS = 500 };

static nowait_queue open_queue(void) {
    nowait_queue queue = 0;
    EQUAL(nowait_queue_open(&queue), 0);
    return queue;
}

static int is_readable(nowait_queue queue, int timeout_ms) {
    struct pollfd poller = {nowait_queue_descriptor(queue), POLLIN, 0};
    CHECK(poller.fd >= 0);
    return poll(&poller, 1, timeout_ms);
}

/* Drops what the page cache has of a file. */
static void make_cold(nowait_file file) {
    int descriptor = nowait_file_descriptor(file);
    CHECK(fdatasync(descriptor) == 0);
    CHECK(posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED) == 0);
}

struct read {
    uint64_t offset;
    size_t length;
    unsigned char bytes[4096];
};

static uint64_t random_state = 88172645463325252ULL;

static uint64_t random_number(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* 32 reads in flight in an epoll loop; every completion has its own user pointer and bytes. */
static void epoll_loop(char **argv) {
    nowait_file file = make_file(argv, "epoll", FILE_BYTES);
    for (int cold = 0; cold < 2; cold++) {
        if (cold) {
            make_cold(file);
        }
        nowait_queue queue = open_queue();
        EQUAL(is_readable(queue, 0), 0);
        int epoll = epoll_create1(EPOLL_CLOEXEC);
        struct epoll_event event;
        memset(&event, 0, sizeof event);
        event.events = EPOLLIN;
        CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, nowait_queue_descriptor(queue), &event) == 0);

        static struct read reads[DEPTH];
        int submitted = 0, reaped = 0;
        for (; submitted < DEPTH; submitted++) {
            struct read *one = &reads[submitted];
            one->offset = random_number() % FILE_BYTES;
            one->length = random_number() % sizeof one->bytes;
            EQUAL(nowait_submit_read(queue, file, one->bytes, one->length, one->offset, one, NULL), 0);
        }
        EQUAL(nowait_queue_operations(queue), DEPTH);
        EQUAL(nowait_queue_close(queue), -EBUSY);
        while (reaped < READS) {
            /* Interrupted by a completion, at times: see nowait_queue_descriptor. */
            int ready = epoll_wait(epoll, &event, 1, -1);
            CHECK(ready == 1 || (ready < 0 && errno == EINTR));
            struct nowait_completion completions[5];
            int count = nowait_reap(queue, completions, 5, 0);
            CHECK(count >= 0);
            for (int i = 0; i < count; i++, reaped++) {
                struct read *one = (struct read *)completions[i].user;
                CHECK(one >= reads && one < reads + DEPTH);
                size_t left = FILE_BYTES - (size_t)one->offset;
                EQUAL(completions[i].result, one->length < left ? one->length : left);
                CHECK(completions[i].message == NULL && completions[i].operation != 0);
                check_bytes(one->bytes, (size_t)completions[i].result, one->offset);
                if (submitted < READS) {
                    submitted++;
                    one->offset = random_number() % FILE_BYTES;
                    one->length = random_number() % sizeof one->bytes;
                    EQUAL(nowait_submit_read(queue, file, one->bytes, one->length, one->offset, one, NULL),
                          0);
                }
            }
        }
        EQUAL(nowait_queue_operations(queue), 0);
        struct nowait_completion none;
        EQUAL(nowait_reap(queue, &none, 1, 0), 0);
        EQUAL(is_readable(queue, 0), 0);
        EQUAL(nowait_queue_close(queue), 0);
        CHECK(close(epoll) == 0);
    }
    EQUAL(nowait_file_close(file), 0);
}

static void reap_one(nowait_queue queue, struct nowait_completion *completion) {
    EQUAL(nowait_reap(queue, completion, 1, -1), 1);
}

static void writes_and_syncs(char **argv) {
    nowait_file file = make_file(argv, "queued", 0);
    nowait_queue queue = open_queue();
    struct nowait_completion completion;
    char first[100], second[100], bytes[200];
    memset(first, 1, sizeof first);
    memset(second, 2, sizeof second);
    /* In the order in which they were submitted. */
    EQUAL(nowait_submit_write(queue, file, first, sizeof first, 0, 0, first, NULL), 0);
    EQUAL(nowait_submit_write(queue, file, second, sizeof second, 50, NOWAIT_WRITE_DURABLE, second, NULL), 0);
    int seen = 0;
    for (int i = 0; i < 2; i++) {
        reap_one(queue, &completion);
        EQUAL(completion.result, 100);
        seen |= completion.user == first ? 1 : completion.user == second ? 2 : 4;
    }
    EQUAL(seen, 3);
    EQUAL(nowait_submit_sync(queue, file, 0, NULL, NULL), 0);
    reap_one(queue, &completion);
    EQUAL(completion.result, 0);
    EQUAL(nowait_submit_sync(queue, file, NOWAIT_SYNC_ALL, NULL, NULL), 0);
    reap_one(queue, &completion);
    EQUAL(completion.result, 0);
    EQUAL(nowait_read_at(file, bytes, sizeof bytes, 0), 150);
    CHECK(bytes[49] == 1 && bytes[50] == 2 && bytes[149] == 2);

    /* Closed while operations are in flight: they end. */
    EQUAL(nowait_submit_read(queue, file, bytes, 10, 0, NULL, NULL), 0);
    EQUAL(nowait_file_close(file), 0);
    reap_one(queue, &completion);
    EQUAL(completion.result, 10);

    /* Errors come with the completion, each with its text. */
    EQUAL(nowait_file_open(0, in_folder(argv, "queued"), O_RDONLY, 0, &file), 0);
    EQUAL(nowait_submit_write(queue, file, first, 10, 7, 0, NULL, NULL), 0);
    EQUAL(nowait_submit_read(queue, file, bytes, 10, UINT64_MAX, NULL, NULL), 0);
    EQUAL(nowait_submit_read(queue, file, NULL, 0, 0, NULL, NULL), 0);
    struct nowait_completion three[3];
    int count = 0;
    while (count < 3) {
        int more = nowait_reap(queue, three + count, (size_t)(3 - count), -1);
        CHECK(more > 0);
        for (int i = count; i < count + more; i++) {
            CHECK((three[i].message == NULL) == (three[i].result == 0));
            if (three[i].result == -EACCES) {
                CHECK(strstr(three[i].message, "write") && strstr(three[i].message, "/queued") &&
                      strstr(three[i].message, "offset 7, length 10"));
            } else if (three[i].result != 0) {
                EQUAL(three[i].result, -EOVERFLOW);
                CHECK(strstr(three[i].message, "read"));
            }
        }
        count += more;
    }
    EQUAL(nowait_file_close(file), 0);
    EQUAL(nowait_queue_close(queue), 0);
}

/* Whether a page has to come from the device. */
static int is_cold(nowait_file file, uint64_t offset) {
    char byte;
    struct iovec one = {&byte, 1};
    return preadv2(nowait_file_descriptor(file), &one, 1, (off_t)offset, RWF_NOWAIT) < 0 && errno == EAGAIN;
}

/* Each operation completes once: cancelled, or with its result. Its memory is then the caller's. */
static void cancels(char **argv, nowait_instance instance) {
    enum { COUNT = 200, APART = 16384 };
    EQUAL(nowait_file_close(make_file(argv, "cancels", COUNT * APART)), 0);
    nowait_file file = 0;
    EQUAL(nowait_file_open(instance, in_folder(argv, "cancels"), O_RDWR, 0, &file), 0);
    CHECK(posix_fadvise(nowait_file_descriptor(file), 0, 0, POSIX_FADV_RANDOM) == 0);
    make_cold(file);
    int was_cold = is_cold(file, COUNT / 2 * APART);
    nowait_queue queue = open_queue();
    static uint64_t operations[COUNT];
    static char is_done[COUNT];
    memset(is_done, 0, sizeof is_done);
    unsigned char *buffers[COUNT];
    for (int i = 0; i < COUNT; i++) {
        buffers[i] = (unsigned char *)malloc(4096);
        CHECK(buffers[i] != NULL);
        uint64_t offset = (uint64_t)i * APART;
        EQUAL(nowait_submit_read(queue, file, buffers[i], 4096, offset, is_done + i, &operations[i]), 0);
        if (i % 2 == 0) {
            EQUAL(nowait_cancel(queue, operations[i]), 0);
            EQUAL(nowait_cancel(queue, operations[i]), 0);
        }
    }
    int cancelled = 0;
    for (int left = COUNT; left > 0;) {
        struct nowait_completion completions[16];
        int count = nowait_reap(queue, completions, 16, -1);
        CHECK(count > 0);
        left -= count;
        for (int i = 0; i < count; i++) {
            ptrdiff_t which = (char *)completions[i].user - is_done;
            CHECK(which >= 0 && which < COUNT);
            EQUAL(is_done[which], 0);
            is_done[which] = 1;
            EQUAL(completions[i].operation, operations[which]);
            if (completions[i].result == -ECANCELED) {
                EQUAL(which % 2, 0);
                CHECK(completions[i].message != NULL);
                cancelled++;
            } else {
                EQUAL(completions[i].result, 4096);
                check_bytes(buffers[which], 4096, (unsigned long long)which * APART);
            }
            /* Under ASan and valgrind: nothing writes to it any more. */
            memset(buffers[which], 0xee, 4096);
            free(buffers[which]);
        }
    }
    printf("%d of %d cancelled, %s\n", cancelled, COUNT / 2, was_cold ? "cold" : "cached");
    CHECK(!was_cold || cancelled > 0);
    EQUAL(nowait_cancel(queue, operations[0]), -ENOENT);
    EQUAL(nowait_cancel(queue, 0), -ENOENT);
    EQUAL(nowait_cancel(queue, UINT64_MAX), -ENOENT);
    /* A sync has no memory; it is answered at once. */
    uint64_t operation = 0;
    struct nowait_completion completion;
    EQUAL(nowait_submit_sync(queue, file, 0, NULL, &operation), 0);
    EQUAL(nowait_cancel(queue, operation), 0);
    reap_one(queue, &completion);
    CHECK(completion.result == 0 || completion.result == -ECANCELED);
    EQUAL(nowait_queue_operations(queue), 0);
    EQUAL(nowait_queue_close(queue), 0);
    EQUAL(nowait_file_close(file), 0);
}

enum { THREADS = 4, EACH = 2000, RECORD = 64 };

struct shared {
    nowait_queue queue;
    nowait_file file;
    int submitted, reaped;
    unsigned char bytes[THREADS * EACH][RECORD];
};

static void *submits_and_reaps(void *argument) {
    struct shared *shared = (struct shared *)argument;
    for (int i = 0; i < EACH; i++) {
        int number = __atomic_fetch_add(&shared->submitted, 1, __ATOMIC_RELAXED);
        unsigned char *bytes = shared->bytes[number];
        uint64_t offset = (uint64_t)number * 17;
        EQUAL(nowait_submit_read(shared->queue, shared->file, bytes, RECORD, offset, bytes, NULL), 0);
        /* Its own, or another thread's. */
        struct nowait_completion completion;
        EQUAL(nowait_reap(shared->queue, &completion, 1, -1), 1);
        EQUAL(completion.result, RECORD);
        unsigned char *read = (unsigned char *)completion.user;
        size_t which = (size_t)(read - shared->bytes[0]) / RECORD;
        check_bytes(read, RECORD, which * 17);
        EQUAL(__atomic_fetch_add(&shared->reaped, 1, __ATOMIC_RELAXED) < THREADS * EACH, 1);
    }
    return NULL;
}

/* One queue for many threads: as many are reaped as are submitted, and none waits for ever. */
static void threads(char **argv) {
    static struct shared shared;
    shared.queue = open_queue();
    shared.file = make_file(argv, "threads", 1 << 18);
    pthread_t others[THREADS];
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&others[i], NULL, submits_and_reaps, &shared) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(others[i], NULL) == 0);
    }
    EQUAL(shared.reaped, THREADS * EACH);
    EQUAL(nowait_queue_close(shared.queue), 0);
    EQUAL(nowait_file_close(shared.file), 0);
}

static void times(void) {
    nowait_queue queue = open_queue();
    struct nowait_completion completion;
    EQUAL(nowait_reap(queue, &completion, 1, 0), 0);
    EQUAL(nowait_reap(queue, &completion, 1, 20), 0);
    EQUAL(nowait_queue_close(queue), 0);
}

struct waiter {
    nowait_queue queue;
    pthread_t thread;
    pid_t number;
};

static void *waits_for_nothing(void *argument) {
    struct waiter *waiter = (struct waiter *)argument;
    struct nowait_completion completion;
    __atomic_store_n(&waiter->number, gettid(), __ATOMIC_RELEASE);
    EQUAL(nowait_reap(waiter->queue, &completion, 1, -1), -EBADF);
    SAYS("closed");
    return NULL;
}

static int is_asleep(const struct waiter *waiter) {
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)__atomic_load_n(&waiter->number, __ATOMIC_ACQUIRE));
    FILE *stat = fopen(path, "r");
    if (stat != NULL) {
        CHECK(fscanf(stat, "%*d %*s %c", &state) == 1);
        CHECK(fclose(stat) == 0);
    }
    return state == 'S';
}

/* Threads that wait for completions do not wait for ever when the queue is closed. */
static void closed_meanwhile(void) {
    nowait_queue queue = open_queue();
    struct waiter waiters[2] = {{queue, 0, 0}, {queue, 0, 0}};
    for (int i = 0; i < 2; i++) {
        CHECK(pthread_create(&waiters[i].thread, NULL, waits_for_nothing, &waiters[i]) == 0);
    }
    while (!is_asleep(&waiters[0]) || !is_asleep(&waiters[1])) {
        sched_yield();
    }
    EQUAL(nowait_queue_close(queue), 0);
    for (int i = 0; i < 2; i++) {
        CHECK(pthread_join(waiters[i].thread, NULL) == 0);
    }
}

/* A child's queue is its own; files are shared. */
static void forks(char **argv) {
    nowait_file file = make_file(argv, "forks", 100);
    nowait_queue queue = open_queue();
    struct nowait_completion completion;
    char bytes[100];
    EQUAL(nowait_submit_read(queue, file, bytes, 100, 0, NULL, NULL), 0);
    reap_one(queue, &completion);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        EQUAL(nowait_reap(queue, &completion, 1, 0), -EINVAL);
        SAYS("fork");
        EQUAL(nowait_queue_operations(queue), -EINVAL);
        EQUAL(nowait_submit_read(queue, file, bytes, 100, 0, NULL, NULL), -EINVAL);
        EQUAL(nowait_queue_close(queue), 0);
        EQUAL(nowait_read_at(file, bytes, 100, 0), 100);
        nowait_queue own = open_queue();
        EQUAL(nowait_submit_read(own, file, bytes, 100, 0, NULL, NULL), 0);
        reap_one(own, &completion);
        EQUAL(completion.result, 100);
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    EQUAL(status, 0);
    EQUAL(nowait_submit_read(queue, file, bytes, 100, 0, NULL, NULL), 0);
    reap_one(queue, &completion);
    EQUAL(completion.result, 100);
    EQUAL(nowait_queue_close(queue), 0);
    EQUAL(nowait_file_close(file), 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    epoll_loop(argv);
    writes_and_syncs(argv);
    cancels(argv, 0);
    struct nowait_instance_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.engine = NOWAIT_ENGINE_POOL;
    options.pool_threads_max = 1;
    nowait_instance instance = 0;
    EQUAL(nowait_instance_open(&options, &instance), 0);
    cancels(argv, instance);
    EQUAL(nowait_instance_close(instance), 0);
    threads(argv);
    times();
    closed_meanwhile();
    /* valgrind's own set-up of rings fails in a child (3.19). */
    if (getenv("NOWAIT_TEST_WITHOUT_FORK") == NULL) {
        forks(argv);
    }
    return 0;
}
