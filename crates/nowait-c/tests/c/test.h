/* What the contract programs share. Each gets a folder of its own as its only argument, and ends
 * with 0 if everything is as it says. Written in what C11 and C++17 have in common. */

#ifndef TEST_H
#define TEST_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <nowait.h>

#define CHECK(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            fprintf(stderr, "%s:%d: not so: %s; last message: %s\n", __FILE__, __LINE__,       \
                    #condition, nowait_error_message());                                       \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

#define EQUAL(value, expected)                                                                 \
    do {                                                                                       \
        long long value_ = (long long)(value), expected_ = (long long)(expected);              \
        if (value_ != expected_) {                                                             \
            fprintf(stderr, "%s:%d: %s is %lld, not %lld; last message: %s\n", __FILE__,       \
                    __LINE__, #value, value_, expected_, nowait_error_message());              \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

/* The last message names this. */
#define SAYS(text) CHECK(strstr(nowait_error_message(), (text)) != NULL)

/* What hangs is ended, by SIGALRM. Tests wait without a bound of their own: a machine may be slow. */
__attribute__((constructor)) static void watch_over_test_(void) { alarm(1800); }

static char test_path_[4096];

/* A path in the test's folder; valid until the next call. */
static inline const char *in_folder(char **argv, const char *name) {
    int length = snprintf(test_path_, sizeof test_path_, "%s/%s", argv[1], name);
    CHECK(length > 0 && (size_t)length < sizeof test_path_);
    return test_path_;
}

/* Byte number `at` of every test file. */
static inline unsigned char byte_at(unsigned long long at) {
    return (unsigned char)((at * 2654435761ULL) >> 7);
}

/* Makes a file of so many bytes with plain calls; opens it for reading and writing. */
static inline nowait_file make_file(char **argv, const char *name, size_t bytes) {
    const char *path = in_folder(argv, name);
    FILE *out = fopen(path, "wb");
    CHECK(out != NULL);
    for (size_t at = 0; at < bytes; at++) {
        CHECK(fputc(byte_at(at), out) != EOF);
    }
    CHECK(fclose(out) == 0);
    nowait_file file = 0;
    EQUAL(nowait_file_open(0, path, O_RDWR, 0, &file), 0);
    CHECK(file != 0);
    return file;
}

static inline void check_bytes(const unsigned char *bytes, size_t length, unsigned long long from) {
    for (size_t at = 0; at < length; at++) {
        EQUAL(bytes[at], byte_at(from + at));
    }
}

#endif
