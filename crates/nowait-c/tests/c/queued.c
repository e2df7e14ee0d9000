/* What queues have beside single operations: many reads at a time, gathers, ends of copies; and
 * operations that nobody reaps. */

#include <poll.h>
#include <sys/stat.h>
#include <time.h>

#include "test.h"

enum { FILE_BYTES = 1 << 20, PAGE = 4096, MANY = 100 };

static nowait_queue open_queue(void) {
    nowait_queue queue = 0;
    EQUAL(nowait_queue_open(&queue), 0);
    return queue;
}

static void make_cold(nowait_file file) {
    int descriptor = nowait_file_descriptor(file);
    CHECK(fdatasync(descriptor) == 0);
    CHECK(posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED) == 0);
}

/* Whether a page has to come from the device. */
static int is_cold(nowait_file file, uint64_t offset) {
    char byte;
    struct iovec one = {&byte, 1};
    return preadv2(nowait_file_descriptor(file), &one, 1, (off_t)offset, RWF_NOWAIT) < 0 && errno == EAGAIN;
}

static void reap_one(nowait_queue queue, struct nowait_completion *completion) {
    EQUAL(nowait_reap(queue, completion, 1, -1), 1);
}

/* Reads that are submitted together complete one by one, cold and cached. */
static void many_reads(char **argv) {
    nowait_file file = make_file(argv, "reads", FILE_BYTES);
    nowait_queue queue = open_queue();
    static unsigned char buffers[MANY][PAGE];
    static struct nowait_read reads[MANY];
    for (int round = 0; round < 2; round++) {
        if (round == 0) {
            make_cold(file);
        }
        for (int i = 0; i < MANY; i++) {
            reads[i].file = file;
            reads[i].buffer = buffers[i];
            reads[i].length = PAGE - (size_t)i;
            reads[i].offset = (uint64_t)(i * 7919) % (FILE_BYTES - PAGE);
            reads[i].user = &reads[i];
            reads[i].operation = 0;
        }
        EQUAL(nowait_submit_reads(queue, reads, MANY), 0);
        EQUAL(nowait_queue_operations(queue), MANY);
        for (int left = MANY; left > 0;) {
            struct nowait_completion completions[7];
            struct pollfd poller = {nowait_queue_descriptor(queue), POLLIN, 0};
            EQUAL(poll(&poller, 1, -1), 1);
            int count = nowait_reap(queue, completions, 7, 0);
            CHECK(count >= 0);
            left -= count;
            for (int i = 0; i < count; i++) {
                struct nowait_read *read = (struct nowait_read *)completions[i].user;
                CHECK(read >= reads && read < reads + MANY && read->operation != 0);
                EQUAL(completions[i].operation, read->operation);
                EQUAL(completions[i].result, read->length);
                check_bytes((unsigned char *)read->buffer, read->length, read->offset);
            }
        }
    }
    /* All or none. */
    reads[50].buffer = NULL;
    EQUAL(nowait_submit_reads(queue, reads, MANY), -EFAULT);
    SAYS("the buffer of a read is NULL");
    reads[50].buffer = buffers[50];
    reads[99].file = 0;
    EQUAL(nowait_submit_reads(queue, reads, MANY), -EBADF);
    EQUAL(nowait_submit_reads(queue, NULL, 1), -EFAULT);
    EQUAL(nowait_submit_reads(queue, reads, SIZE_MAX), -EINVAL);
    EQUAL(nowait_submit_reads(0, reads, 1), -EBADF);
    EQUAL(nowait_queue_operations(queue), 0);
    EQUAL(nowait_submit_reads(queue, NULL, 0), 0);
    /* Errors of their own are in their completions. */
    reads[0].offset = UINT64_MAX;
    EQUAL(nowait_submit_reads(queue, reads, 2), 0);
    for (int i = 0; i < 2; i++) {
        struct nowait_completion completion;
        reap_one(queue, &completion);
        EQUAL(completion.result, completion.user == &reads[0] ? -EOVERFLOW : (long long)reads[1].length);
    }
    EQUAL(nowait_queue_close(queue), 0);
    EQUAL(nowait_file_close(file), 0);
}

static void gathers(char **argv) {
    enum { COUNT = 700 };
    nowait_file file = make_file(argv, "gathered", FILE_BYTES);
    nowait_queue queue = open_queue();
    static struct nowait_range ranges[COUNT];
    static int64_t results[COUNT];
    size_t total = 0;
    for (int i = 0; i < COUNT; i++) {
        ranges[i].offset = (uint64_t)i * 7919 % (FILE_BYTES - PAGE);
        ranges[i].length = (uint64_t)i * 31 % PAGE;
        total += ranges[i].length;
    }
    struct nowait_completion completion;
    for (int round = 0; round < 3; round++) {
        if (round == 0) {
            make_cold(file);
        }
        unsigned char *output = (unsigned char *)malloc(total + 1);
        CHECK(output != NULL);
        output[total] = 42;
        uint64_t operation = 0;
        /* The ranges are copied, the rest is the library's until the completion. */
        struct nowait_range *passed = (struct nowait_range *)malloc(sizeof ranges);
        CHECK(passed != NULL);
        memcpy(passed, ranges, sizeof ranges);
        EQUAL(nowait_submit_gather(queue, file, passed, COUNT, output, total, round < 2 ? results : NULL, output,
                                   &operation),
              0);
        free(passed);
        reap_one(queue, &completion);
        EQUAL(completion.result, 0);
        EQUAL(completion.range_index, 0);
        CHECK(completion.user == output && completion.operation == operation && completion.message == NULL);
        size_t at = 0;
        for (int i = 0; i < COUNT; i++) {
            check_bytes(output + at, ranges[i].length, ranges[i].offset);
            at += ranges[i].length;
            if (round < 2) {
                EQUAL(results[i], ranges[i].length);
                results[i] = -1;
            }
        }
        EQUAL(output[total], 42);
        free(output);
    }
    /* The first range that is not complete. */
    struct nowait_range odd[4] = {{10, 10}, {FILE_BYTES - 4, 10}, {UINT64_MAX - 5, 10}, {20, 10}};
    unsigned char output[40];
    memset(output, 0xff, sizeof output);
    EQUAL(nowait_submit_gather(queue, file, odd, 4, output, sizeof output, results, NULL, NULL), 0);
    reap_one(queue, &completion);
    EQUAL(completion.result, -ENODATA);
    EQUAL(completion.range_index, 1);
    CHECK(strstr(completion.message, "range 1") && strstr(completion.message, "/gathered"));
    EQUAL(results[0], 10);
    EQUAL(results[1], 4);
    EQUAL(results[2], -EOVERFLOW);
    EQUAL(results[3], 10);
    check_bytes(output, 10, 10);
    check_bytes(output + 10, 4, FILE_BYTES - 4);
    for (int at = 14; at < 30; at++) {
        EQUAL(output[at], 0);
    }
    EQUAL(nowait_submit_gather(queue, file, odd + 2, 2, output, sizeof output, NULL, NULL, NULL), 0);
    reap_one(queue, &completion);
    EQUAL(completion.result, -EOVERFLOW);
    EQUAL(completion.range_index, 0);
    /* Too little room shows in the completion; bad pointers at once. */
    results[0] = 77;
    EQUAL(nowait_submit_gather(queue, file, odd, 2, output, 19, results, NULL, NULL), 0);
    reap_one(queue, &completion);
    EQUAL(completion.result, -ENOBUFS);
    CHECK(strstr(completion.message, "19 bytes, and the ranges need 20") != NULL);
    EQUAL(results[0], 77);
    EQUAL(nowait_submit_gather(queue, file, NULL, 2, output, 20, NULL, NULL, NULL), -EFAULT);
    EQUAL(nowait_submit_gather(queue, file, odd, 2, NULL, 20, NULL, NULL, NULL), -EFAULT);
    EQUAL(nowait_submit_gather(queue, 0, odd, 2, output, 20, NULL, NULL, NULL), -EBADF);
    EQUAL(nowait_submit_gather(0, file, odd, 2, output, 20, NULL, NULL, NULL), -EBADF);
    EQUAL(nowait_submit_gather(queue, file, odd, SIZE_MAX, output, 20, NULL, NULL, NULL), -EINVAL);
    EQUAL(nowait_queue_operations(queue), 0);
    EQUAL(nowait_submit_gather(queue, file, NULL, 0, NULL, 0, NULL, NULL, NULL), 0);
    reap_one(queue, &completion);
    EQUAL(completion.result, 0);
    EQUAL(nowait_queue_close(queue), 0);
    EQUAL(nowait_file_close(file), 0);
}

/* A gather that was given up has let go of its memory when its completion comes. */
static void cancelled_gathers(char **argv) {
    enum { COUNT = 200, GATHERS = 30, APART = 4999 };
    nowait_file file = make_file(argv, "given-up", FILE_BYTES);
    CHECK(posix_fadvise(nowait_file_descriptor(file), 0, 0, POSIX_FADV_RANDOM) == 0);
    nowait_queue queue = open_queue();
    static struct nowait_range ranges[COUNT];
    for (int i = 0; i < COUNT; i++) {
        ranges[i].offset = (uint64_t)i * APART;
        ranges[i].length = 100;
    }
    make_cold(file);
    const int may_be_cold = is_cold(file, FILE_BYTES / 2);
    int cancelled = 0, rounds = 0;
    /* As often as it takes to catch one under way. */
    for (; rounds < GATHERS || (may_be_cold && cancelled == 0); rounds++) {
        const int i = rounds % GATHERS;
        make_cold(file);
        unsigned char *output = (unsigned char *)malloc(COUNT * 100);
        int64_t *results = (int64_t *)malloc(COUNT * sizeof *results);
        CHECK(output != NULL && results != NULL);
        uint64_t operation = 0;
        EQUAL(nowait_submit_gather(queue, file, ranges, COUNT, output, COUNT * 100, results, NULL, &operation), 0);
        struct timespec some = {0, i * 20000};
        CHECK(nanosleep(&some, NULL) == 0);
        EQUAL(nowait_cancel(queue, operation), 0);
        struct nowait_completion completion;
        reap_one(queue, &completion);
        CHECK(completion.result == 0 || completion.result == -ECANCELED);
        cancelled += completion.result != 0;
        EQUAL(nowait_cancel(queue, operation), -ENOENT);
        /* Under ASan and valgrind: nothing writes to them any more. */
        free(output);
        free(results);
    }
    printf("%d of %d gathers cancelled\n", cancelled, rounds);
    EQUAL(nowait_queue_close(queue), 0);
    EQUAL(nowait_file_close(file), 0);
}

static void copies(char **argv) {
    EQUAL(nowait_file_close(make_file(argv, "copied", FILE_BYTES)), 0);
    char source[4200], target[4200], missing[4200];
    snprintf(source, sizeof source, "%s/copied", argv[1]);
    snprintf(target, sizeof target, "%s/copy", argv[1]);
    snprintf(missing, sizeof missing, "%s/missing", argv[1]);
    const char *sources[] = {source}, *none[] = {missing};
    nowait_queue queue = open_queue(), other = open_queue();
    struct nowait_completion completion;
    struct nowait_copy_report report;
    memset(&report, 0, sizeof report);
    report.size = sizeof report;
    nowait_copy copy = 0;
    EQUAL(nowait_copy_start(sources, 1, target, NULL, &copy), 0);
    /* Several may wait, and again when it has ended. */
    EQUAL(nowait_submit_copy_wait(queue, copy, source, NULL), 0);
    EQUAL(nowait_submit_copy_wait(other, copy, target, NULL), 0);
    struct pollfd poller = {nowait_queue_descriptor(queue), POLLIN, 0};
    EQUAL(poll(&poller, 1, -1), 1);
    reap_one(queue, &completion);
    CHECK(completion.result == 0 && completion.user == source);
    EQUAL(nowait_copy_has_ended(copy), 1);
    reap_one(other, &completion);
    CHECK(completion.result == 0 && completion.user == target);
    EQUAL(nowait_submit_copy_wait(queue, copy, NULL, NULL), 0);
    reap_one(queue, &completion);
    EQUAL(completion.result, 0);
    EQUAL(nowait_copy_wait(copy, &report), 0);
    EQUAL(report.files, 1);
    EQUAL(report.bytes, FILE_BYTES);
    EQUAL(nowait_copy_close(copy), 0);
    EQUAL(nowait_submit_copy_wait(queue, copy, NULL, NULL), -EBADF);
    SAYS("copy");

    /* Failures come with the completion. */
    EQUAL(nowait_copy_start(none, 1, target, NULL, &copy), 0);
    EQUAL(nowait_submit_copy_wait(queue, copy, NULL, NULL), 0);
    /* Its handle may be closed meanwhile. */
    EQUAL(nowait_copy_close(copy), 0);
    reap_one(queue, &completion);
    EQUAL(completion.result, -ENOENT);
    CHECK(strstr(completion.message, "/missing") != NULL);

    /* Cancelled; and the wait given up alone. */
    struct nowait_copy_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.bytes_per_second_max = 1000;
    options.flags = NOWAIT_COPY_NO_REFLINK;
    snprintf(target, sizeof target, "%s/slow", argv[1]);
    EQUAL(nowait_copy_start(sources, 1, target, &options, &copy), 0);
    uint64_t operation = 0;
    EQUAL(nowait_submit_copy_wait(queue, copy, NULL, &operation), 0);
    EQUAL(nowait_reap(queue, &completion, 1, 50), 0);
    EQUAL(nowait_cancel(queue, operation), 0);
    reap_one(queue, &completion);
    EQUAL(completion.result, -ECANCELED);
    EQUAL(nowait_copy_has_ended(copy), 0);
    EQUAL(nowait_submit_copy_wait(queue, copy, NULL, NULL), 0);
    EQUAL(nowait_copy_cancel(copy), 0);
    reap_one(queue, &completion);
    EQUAL(completion.result, -ECANCELED);
    EQUAL(nowait_copy_wait(copy, NULL), -ECANCELED);
    EQUAL(nowait_copy_close(copy), 0);
    struct stat stat_;
    CHECK(stat(target, &stat_) < 0 && errno == ENOENT);
    EQUAL(nowait_queue_close(queue), 0);
    EQUAL(nowait_queue_close(other), 0);
}

/* What waits for an operation of a queue goes on, although nobody reaps. */
static void nobody_reaps(char **argv) {
    EQUAL(nowait_file_close(make_file(argv, "not-reaped", FILE_BYTES)), 0);
    nowait_file file = 0;
    EQUAL(nowait_file_open(0, in_folder(argv, "not-reaped"), O_RDWR | O_DIRECT, 0, &file), 0);
    nowait_queue queue = open_queue();
    static unsigned char pages[3][PAGE] __attribute__((aligned(PAGE)));
    for (int round = 0; round < 20; round++) {
        memset(pages[0], 1 + round, PAGE);
        memset(pages[1], 100 + round, PAGE);
        EQUAL(nowait_submit_write(queue, file, pages[0], PAGE, 0, 0, NULL, NULL), 0);
        EQUAL(nowait_write_at(file, pages[1], PAGE, 0, 0), PAGE);
        EQUAL(nowait_sync(file, 0), 0);
        EQUAL(nowait_read_at(file, pages[2], PAGE, 0), PAGE);
        CHECK(memcmp(pages[1], pages[2], PAGE) == 0);
        struct nowait_completion completion;
        reap_one(queue, &completion);
        EQUAL(completion.result, PAGE);
    }
    EQUAL(nowait_queue_close(queue), 0);
    EQUAL(nowait_file_close(file), 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    many_reads(argv);
    gathers(argv);
    cancelled_gathers(argv);
    copies(argv);
    nobody_reaps(argv);
    return 0;
}
