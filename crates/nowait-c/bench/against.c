/* The C interface beside what C programs write by hand: plain calls, and loops over liburing.
 *
 *     against --dir DIR --json FILE [--size BYTES] [--rounds N] [--environment JSON]
 *
 * `bench/measure c` builds and runs it. Ways take turns within each round, in rotating order, at the
 * same offsets of the same file; what is cold was dropped from the page cache before each turn, which
 * is verified. The JSON is of the form that `nowait bench --json` writes, so that `make docs` reads
 * it. liburing is linked here and nowhere else. */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <nowait.h>

enum { PAGE = 4096, DEPTH = 128, IN_FLIGHT = 32, ROUNDS_MAX = 101, COLD_READS = 4096, CACHED_READS = 200000 };

struct record {
    uint64_t offset;
    uint32_t length;
};

/* What all ways share. */
struct bench {
    const char *path;
    uint64_t pages;
    int fd;
    nowait_file file;
    struct io_uring ring, ring_epoll;
    nowait_queue queue;
    int epoll_ring, epoll_queue, event;
    unsigned char *memory;
    struct record *records;
    size_t records_count;
};

static void fail(const char *what) {
    fprintf(stderr, "%s: %s (%s)\n", what, strerror(errno), nowait_error_message());
    exit(1);
}

#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) fail(#condition);                                                        \
    } while (0)

static uint64_t random_state = 0x9e3779b97f4a7c15ULL;

static uint64_t random_number(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static uint64_t now_ns(void) {
    struct timespec now;
    MUST(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Processor time of the process, threads and kernel workers included. */
static uint64_t cpu_ns(void) {
    struct rusage usage;
    MUST(getrusage(RUSAGE_SELF, &usage) == 0);
    return ((uint64_t)usage.ru_utime.tv_sec + (uint64_t)usage.ru_stime.tv_sec) * 1000000000u +
           ((uint64_t)usage.ru_utime.tv_usec + (uint64_t)usage.ru_stime.tv_usec) * 1000u;
}

/* Drops the file from the page cache; verifies that at most one page in a hundred stayed. */
static void make_cold(struct bench *bench) {
    MUST(posix_fadvise(bench->fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
    void *map = mmap(NULL, bench->pages * PAGE, PROT_READ, MAP_SHARED, bench->fd, 0);
    MUST(map != MAP_FAILED);
    unsigned char *resident = malloc(bench->pages);
    MUST(resident != NULL && mincore(map, bench->pages * PAGE, resident) == 0);
    uint64_t stayed = 0;
    for (uint64_t page = 0; page < bench->pages; page++) stayed += resident[page] & 1;
    free(resident);
    MUST(munmap(map, bench->pages * PAGE) == 0);
    if (stayed * 100 > bench->pages) {
        fprintf(stderr, "%" PRIu64 " of %" PRIu64 " pages stay in the page cache: cold reads cannot be made\n", stayed,
                bench->pages);
        exit(1);
    }
}

/* Records of 1 to 4 KiB, each in a page of its own, in random order. */
static void draw_records(struct bench *bench, size_t count) {
    MUST(count * 2 <= bench->pages);
    static unsigned char *taken;
    if (taken == NULL) taken = malloc(bench->pages);
    MUST(taken != NULL);
    memset(taken, 0, bench->pages);
    for (size_t i = 0; i < count; i++) {
        uint64_t page;
        do page = random_number() % bench->pages;
        while (taken[page]);
        taken[page] = 1;
        bench->records[i] = (struct record){page * PAGE, 1024 + (uint32_t)(random_number() % 3073)};
    }
    bench->records_count = count;
}

/* Gathers: `count` records into memory, one after the other. */

static void gather_by_pread(struct bench *bench, const struct record *records, size_t count) {
    unsigned char *to = bench->memory;
    for (size_t i = 0; i < count; to += records[i].length, i++) {
        MUST(pread(bench->fd, to, records[i].length, (off_t)records[i].offset) == (ssize_t)records[i].length);
    }
}

static void gather_by_liburing(struct bench *bench, const struct record *records, size_t count) {
    unsigned char *to = bench->memory;
    size_t submitted = 0, done = 0;
    while (done < count) {
        for (; submitted < count && submitted - done < DEPTH; to += records[submitted].length, submitted++) {
            struct io_uring_sqe *sqe = io_uring_get_sqe(&bench->ring);
            io_uring_prep_read(sqe, bench->fd, to, records[submitted].length, records[submitted].offset);
            io_uring_sqe_set_data64(sqe, records[submitted].length);
        }
        MUST(io_uring_submit_and_wait(&bench->ring, 1) >= 0);
        struct io_uring_cqe *cqe;
        unsigned head, seen = 0;
        io_uring_for_each_cqe(&bench->ring, head, cqe) {
            MUST(cqe->res == (int)cqe->user_data);
            seen++;
        }
        io_uring_cq_advance(&bench->ring, seen);
        done += seen;
    }
}

static void gather_by_nowait(struct bench *bench, const struct record *records, size_t count) {
    struct nowait_range ranges[1024];
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        ranges[i] = (struct nowait_range){records[i].offset, records[i].length};
        bytes += records[i].length;
    }
    MUST(nowait_gather(bench->file, ranges, count, bench->memory, bytes, NULL) == 0);
}

/* Single cached reads of a page. */

static void reads_by_pread(struct bench *bench) {
    for (size_t i = 0; i < bench->records_count; i++) {
        MUST(pread(bench->fd, bench->memory, PAGE, (off_t)bench->records[i].offset) == PAGE);
    }
}

static void reads_by_nowait(struct bench *bench) {
    for (size_t i = 0; i < bench->records_count; i++) {
        MUST(nowait_read_at(bench->file, bench->memory, PAGE, bench->records[i].offset) == PAGE);
    }
}

/* Reads of a page, IN_FLIGHT at a time, in an epoll loop. */

/* The kernel completes a read in the thread that submitted it, whose epoll_wait may end with EINTR. */
static void wait_for(int epoll) {
    struct epoll_event event;
    int ready;
    do ready = epoll_wait(epoll, &event, 1, -1);
    while (ready < 0 && errno == EINTR);
    MUST(ready == 1);
}

static void prepare(struct bench *bench, unsigned char *to, size_t which) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(&bench->ring_epoll);
    io_uring_prep_read(sqe, bench->fd, to, PAGE, bench->records[which].offset);
    io_uring_sqe_set_data(sqe, to);
}

static void epoll_by_liburing(struct bench *bench) {
    size_t next = 0, done = 0;
    for (; next < IN_FLIGHT; next++) prepare(bench, bench->memory + next * PAGE, next);
    MUST(io_uring_submit(&bench->ring_epoll) == IN_FLIGHT);
    while (done < bench->records_count) {
        wait_for(bench->epoll_ring);
        uint64_t count;
        MUST(read(bench->event, &count, sizeof count) == sizeof count);
        struct io_uring_cqe *cqe;
        unsigned head, seen = 0, prepared = 0;
        io_uring_for_each_cqe(&bench->ring_epoll, head, cqe) {
            MUST(cqe->res == PAGE);
            seen++;
            if (next < bench->records_count) {
                prepare(bench, io_uring_cqe_get_data(cqe), next++);
                prepared++;
            }
        }
        io_uring_cq_advance(&bench->ring_epoll, seen);
        done += seen;
        if (prepared > 0) MUST(io_uring_submit(&bench->ring_epoll) == (int)prepared);
    }
}

static struct nowait_read read_of(struct bench *bench, unsigned char *to, size_t which) {
    return (struct nowait_read){
        .file = bench->file, .buffer = to, .length = PAGE, .offset = bench->records[which].offset, .user = to};
}

/* Those that follow on a round of completions are submitted together. */
static void epoll_by_nowait(struct bench *bench) {
    size_t next = 0, done = 0;
    struct nowait_read reads[IN_FLIGHT];
    for (; next < IN_FLIGHT; next++) reads[next] = read_of(bench, bench->memory + next * PAGE, next);
    MUST(nowait_submit_reads(bench->queue, reads, IN_FLIGHT) == 0);
    while (done < bench->records_count) {
        wait_for(bench->epoll_queue);
        struct nowait_completion completions[IN_FLIGHT];
        int count = nowait_reap(bench->queue, completions, IN_FLIGHT, 0);
        MUST(count >= 0);
        size_t prepared = 0;
        for (int i = 0; i < count; i++) {
            MUST(completions[i].result == PAGE);
            if (next < bench->records_count) reads[prepared++] = read_of(bench, completions[i].user, next++);
        }
        done += (size_t)count;
        MUST(nowait_submit_reads(bench->queue, reads, prepared) == 0);
    }
}

/* Each is submitted by itself. */
static void epoll_by_nowait_singly(struct bench *bench) {
    size_t next = 0, done = 0;
    for (; next < IN_FLIGHT; next++) {
        unsigned char *to = bench->memory + next * PAGE;
        MUST(nowait_submit_read(bench->queue, bench->file, to, PAGE, bench->records[next].offset, to, NULL) == 0);
    }
    while (done < bench->records_count) {
        wait_for(bench->epoll_queue);
        struct nowait_completion completions[IN_FLIGHT];
        int count = nowait_reap(bench->queue, completions, IN_FLIGHT, 0);
        MUST(count >= 0);
        for (int i = 0; i < count; i++) {
            MUST(completions[i].result == PAGE);
            if (next < bench->records_count) {
                unsigned char *to = completions[i].user;
                uint64_t offset = bench->records[next++].offset;
                MUST(nowait_submit_read(bench->queue, bench->file, to, PAGE, offset, to, NULL) == 0);
            }
        }
        done += (size_t)count;
    }
}

/* A way of a case: one turn. */
struct way {
    const char *name;
    void (*gathers)(struct bench *, const struct record *, size_t);
    void (*all)(struct bench *);
};

struct single {
    const char *table, *name;
    int cold;
    size_t reads;
    /* Records of one gather; 0 if it is none. */
    size_t records;
    struct way ways[3];
};

static const struct single CASES[] = {
    {"c-gather", "cold records=64", 1, COLD_READS, 64,
     {{"pread-loop", gather_by_pread, NULL}, {"liburing-loop", gather_by_liburing, NULL}, {"nowait", gather_by_nowait, NULL}}},
    {"c-gather", "cold records=1024", 1, COLD_READS, 1024,
     {{"pread-loop", gather_by_pread, NULL}, {"liburing-loop", gather_by_liburing, NULL}, {"nowait", gather_by_nowait, NULL}}},
    {"c-gather", "cached records=64", 0, CACHED_READS, 64,
     {{"pread-loop", gather_by_pread, NULL}, {"liburing-loop", gather_by_liburing, NULL}, {"nowait", gather_by_nowait, NULL}}},
    {"c-gather", "cached records=1024", 0, CACHED_READS, 1024,
     {{"pread-loop", gather_by_pread, NULL}, {"liburing-loop", gather_by_liburing, NULL}, {"nowait", gather_by_nowait, NULL}}},
    {"c-read", "cached", 0, CACHED_READS, 0, {{"pread", NULL, reads_by_pread}, {"nowait", NULL, reads_by_nowait}}},
    {"c-epoll", "cold in-flight=32", 1, COLD_READS, 0,
     {{"liburing-epoll", NULL, epoll_by_liburing},
      {"nowait", NULL, epoll_by_nowait},
      {"nowait-singly", NULL, epoll_by_nowait_singly}}},
    {"c-epoll", "cached in-flight=32", 0, CACHED_READS, 0,
     {{"liburing-epoll", NULL, epoll_by_liburing},
      {"nowait", NULL, epoll_by_nowait},
      {"nowait-singly", NULL, epoll_by_nowait_singly}}},
};

static void turn(struct bench *bench, const struct single *one, const struct way *way) {
    if (way->all != NULL) {
        way->all(bench);
        return;
    }
    for (size_t at = 0; at + one->records <= bench->records_count; at += one->records) {
        way->gathers(bench, bench->records + at, one->records);
    }
}

static int ascending(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static double quantile(const double *values, int count, double share) {
    double sorted[ROUNDS_MAX];
    memcpy(sorted, values, (size_t)count * sizeof *values);
    qsort(sorted, (size_t)count, sizeof *sorted, ascending);
    double at = share * (count - 1);
    int below = (int)at;
    int above = below + 1 < count ? below + 1 : below;
    return sorted[below] + (at - below) * (sorted[above] - sorted[below]);
}

static void measure(struct bench *bench, const struct single *one, int rounds, FILE *json, int is_first) {
    int ways = 0;
    while (ways < 3 && one->ways[ways].name != NULL) ways++;
    double ns[3][ROUNDS_MAX], cpu[3][ROUNDS_MAX];
    for (int round = -1; round < rounds; round++) {
        /* Cached: a file's worth of pages, read again and again. */
        size_t drawn = one->reads * 2 < bench->pages ? one->reads : bench->pages / 2;
        if (one->records > 0) drawn -= drawn % one->records;
        draw_records(bench, drawn);
        for (int place = 0; place < ways; place++) {
            int which = (place + round + 1) % ways;
            if (one->cold) make_cold(bench);
            else gather_by_pread(bench, bench->records, 1), reads_by_pread(bench);
            uint64_t cpu_before = cpu_ns(), before = now_ns();
            turn(bench, one, &one->ways[which]);
            uint64_t elapsed = now_ns() - before, used = cpu_ns() - cpu_before;
            /* The first round warms up. */
            if (round >= 0) {
                ns[which][round] = (double)elapsed / (double)drawn;
                cpu[which][round] = (double)used / (double)drawn;
            }
        }
    }
    for (int which = 0; which < ways; which++) {
        double per_op = quantile(ns[which], rounds, 0.5), over[ROUNDS_MAX];
        fprintf(json, "%s\n{\"table\":\"%s\",\"case\":\"%s\",\"way\":\"%s\",\"ops_per_s\":%.1f,\"ns_per_op\":%.1f,",
                is_first && which == 0 ? "" : ",", one->table, one->name, one->ways[which].name, 1e9 / per_op, per_op);
        fprintf(json, "\"cpu_us_per_op\":{\"total\":%.4f},", quantile(cpu[which], rounds, 0.5) / 1e3);
        for (int round = 0; round < rounds; round++) over[round] = ns[which][round] - ns[0][round];
        fprintf(json, "\"over_first_ns\":{\"p50\":%.1f,\"p25\":%.1f,\"p75\":%.1f},\"rounds\":[", quantile(over, rounds, 0.5),
                quantile(over, rounds, 0.25), quantile(over, rounds, 0.75));
        for (int round = 0; round < rounds; round++) fprintf(json, "%s%.1f", round > 0 ? "," : "", 1e9 / ns[which][round]);
        fprintf(json, "]}");
        printf("%-10s %-22s %-15s %9.1f ns (%.1f to %.1f), against %s %.3f, %+.1f ns\n", one->table, one->name,
               one->ways[which].name, per_op, quantile(ns[which], rounds, 0), quantile(ns[which], rounds, 1),
               one->ways[0].name, quantile(ns[0], rounds, 0.5) / per_op, quantile(over, rounds, 0.5));
        fflush(stdout);
    }
}

static void make_file(struct bench *bench, uint64_t bytes) {
    FILE *out = fopen(bench->path, "wb");
    MUST(out != NULL);
    uint64_t words[PAGE / 8];
    for (uint64_t at = 0; at < bytes; at += PAGE) {
        for (size_t i = 0; i < PAGE / 8; i++) words[i] = random_number();
        MUST(fwrite(words, PAGE, 1, out) == 1);
    }
    MUST(fflush(out) == 0 && fsync(fileno(out)) == 0 && fclose(out) == 0);
    bench->pages = bytes / PAGE;
}

static void set_up(struct bench *bench) {
    bench->fd = open(bench->path, O_RDONLY | O_CLOEXEC);
    MUST(bench->fd >= 0);
    MUST(nowait_file_open(0, bench->path, O_RDONLY, 0, &bench->file) == 0);
    struct io_uring_params params = {.flags = IORING_SETUP_COOP_TASKRUN | IORING_SETUP_SINGLE_ISSUER};
    MUST(io_uring_queue_init_params(2 * DEPTH, &bench->ring, &params) == 0);
    MUST(io_uring_queue_init(DEPTH, &bench->ring_epoll, 0) == 0);
    MUST(nowait_queue_open(&bench->queue) == 0);
    bench->event = eventfd(0, EFD_CLOEXEC);
    bench->epoll_ring = epoll_create1(EPOLL_CLOEXEC);
    bench->epoll_queue = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    MUST(bench->event >= 0 && bench->epoll_ring >= 0 && bench->epoll_queue >= 0);
    MUST(io_uring_register_eventfd(&bench->ring_epoll, bench->event) == 0);
    MUST(epoll_ctl(bench->epoll_ring, EPOLL_CTL_ADD, bench->event, &event) == 0);
    MUST(epoll_ctl(bench->epoll_queue, EPOLL_CTL_ADD, nowait_queue_descriptor(bench->queue), &event) == 0);
    bench->memory = aligned_alloc(PAGE, 1024 * PAGE);
    bench->records = malloc(CACHED_READS * sizeof *bench->records);
    MUST(bench->memory != NULL && bench->records != NULL);
    memset(bench->memory, 0, 1024 * PAGE);
}

int main(int argc, char **argv) {
    const char *dir = "/var/tmp", *json_path = NULL, *environment = "{}";
    uint64_t bytes = 256u << 20;
    int rounds = 11;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--dir") == 0) dir = argv[i + 1];
        else if (strcmp(argv[i], "--json") == 0) json_path = argv[i + 1];
        else if (strcmp(argv[i], "--size") == 0) bytes = strtoull(argv[i + 1], NULL, 10) / PAGE * PAGE;
        else if (strcmp(argv[i], "--rounds") == 0) rounds = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--environment") == 0) environment = argv[i + 1];
        else argc = 0;
    }
    if (argc % 2 == 0 || json_path == NULL || rounds < 1 || rounds > ROUNDS_MAX || bytes < (64u << 20)) {
        fprintf(stderr, "usage: %s --json FILE [--dir DIR] [--size BYTES, 64 MiB at least] [--rounds N] [--environment JSON]\n",
                argv[0]);
        return 2;
    }
    static struct bench bench;
    char path[4096];
    MUST(snprintf(path, sizeof path, "%s/nowait-against-%d", dir, getpid()) < (int)sizeof path);
    bench.path = path;
    make_file(&bench, bytes);
    set_up(&bench);
    /* What is open stays; nothing is left behind, however this ends. */
    MUST(unlink(path) == 0);
    FILE *json = fopen(json_path, "w");
    MUST(json != NULL);
    fprintf(json, "{\"environment\":%s,\"notes\":[],\"controls\":[],\"rows\":[", environment);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) measure(&bench, &CASES[i], rounds, json, i == 0);
    fprintf(json, "\n]}\n");
    MUST(fclose(json) == 0);
    return 0;
}
