/* nowait_gather: many ranges in one call. */

#include "test.h"

enum { FILE_BYTES = 1000000, COUNT = 700 };

static void many(nowait_file file) {
    static struct nowait_range ranges[COUNT];
    static int64_t results[COUNT];
    size_t total = 0;
    for (int i = 0; i < COUNT; i++) {
        ranges[i].offset = (uint64_t)i * 7919 % (FILE_BYTES - 4096);
        ranges[i].length = (uint64_t)i * 31 % 4096;
        total += ranges[i].length;
    }
    unsigned char *output = (unsigned char *)malloc(total + 1);
    CHECK(output != NULL);
    output[total] = 42;
    for (int with_results = 0; with_results < 2; with_results++) {
        memset(output, 0, total);
        EQUAL(nowait_gather(file, ranges, COUNT, output, total, with_results ? results : NULL), 0);
        size_t at = 0;
        for (int i = 0; i < COUNT; i++) {
            check_bytes(output + at, ranges[i].length, ranges[i].offset);
            at += ranges[i].length;
            if (with_results) {
                EQUAL(results[i], ranges[i].length);
            }
        }
    }
    EQUAL(output[total], 42);
    free(output);
}

static void incomplete(nowait_file file) {
    struct nowait_range ranges[5] = {
        {10, 10}, {FILE_BYTES - 4, 10}, {20, 10}, {UINT64_MAX - 5, 10}, {FILE_BYTES + 5, 10}};
    int64_t results[5] = {-1, -1, -1, -1, -1};
    unsigned char output[50];
    memset(output, 0xff, sizeof output);
    EQUAL(nowait_gather(file, ranges, 5, output, sizeof output, results), -ENODATA);
    SAYS("range 1");
    SAYS("/gather");
    EQUAL(results[0], 10);
    EQUAL(results[1], 4);
    EQUAL(results[2], 10);
    EQUAL(results[3], -EOVERFLOW);
    EQUAL(results[4], 0);
    check_bytes(output, 10, 10);
    check_bytes(output + 10, 4, FILE_BYTES - 4);
    check_bytes(output + 20, 10, 20);
    for (int at = 14; at < 20; at++) {
        EQUAL(output[at], 0);
    }
    for (int at = 30; at < 50; at++) {
        EQUAL(output[at], 0);
    }
    /* The first that is not complete gives the answer. */
    EQUAL(nowait_gather(file, ranges + 2, 2, output, sizeof output, NULL), -EOVERFLOW);
    SAYS("range 1");
}

static void refused(nowait_file file) {
    struct nowait_range ranges[2] = {{0, 10}, {0, 10}};
    unsigned char output[20];
    int64_t results[2] = {77, 77};
    EQUAL(nowait_gather(file, ranges, 2, output, 19, results), -ENOBUFS);
    SAYS("19 bytes, and the ranges need 20");
    EQUAL(results[0], 77);
    EQUAL(nowait_gather(file, ranges, 2, NULL, 20, results), -EFAULT);
    SAYS("output is NULL");
    EQUAL(nowait_gather(file, NULL, 2, output, 20, results), -EFAULT);
    SAYS("ranges is NULL");
    EQUAL(nowait_gather(file, (struct nowait_range *)(void *)((char *)ranges + 1), 1, output, 20, NULL),
          -EFAULT);
    SAYS("not aligned");
    EQUAL(nowait_gather(file, ranges, SIZE_MAX / 8, output, 20, NULL), -EINVAL);
    EQUAL(nowait_gather(file, ranges, 1, output, SIZE_MAX, NULL), -EINVAL);
    ranges[1].length = UINT64_MAX;
    EQUAL(nowait_gather(file, ranges, 2, output, 20, NULL), -EOVERFLOW);
    EQUAL(nowait_gather(file, NULL, 0, NULL, 0, NULL), 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    nowait_file file = make_file(argv, "gather", FILE_BYTES);
    many(file);
    incomplete(file);
    refused(file);
    EQUAL(nowait_file_close(file), 0);
    return 0;
}
