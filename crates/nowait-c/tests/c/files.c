/* Files: what nowait_read_at and the like promise. */

#include "test.h"

enum { FILE_BYTES = 100000 };

static void reads(char **argv) {
    nowait_file file = make_file(argv, "reads", FILE_BYTES);
    static unsigned char bytes[FILE_BYTES + 1];

    EQUAL(nowait_read_at(file, bytes, 4096, 8192), 4096);
    check_bytes(bytes, 4096, 8192);
    /* Short at the end of the file only. */
    EQUAL(nowait_read_at(file, bytes, sizeof bytes, 0), FILE_BYTES);
    check_bytes(bytes, FILE_BYTES, 0);
    EQUAL(nowait_read_at(file, bytes, 10, FILE_BYTES - 3), 3);
    EQUAL(nowait_read_at(file, bytes, 10, FILE_BYTES), 0);
    EQUAL(nowait_read_at(file, bytes, 10, FILE_BYTES + 1000000), 0);
    /* Nothing asked for: the pointer is not looked at. */
    EQUAL(nowait_read_at(file, NULL, 0, 0), 0);
    EQUAL(nowait_read_at(file, bytes, 10, UINT64_MAX - 3), -EOVERFLOW);
    SAYS("read");
    SAYS("/reads");

    uint64_t size = 0;
    EQUAL(nowait_file_size(file, &size), 0);
    EQUAL(size, FILE_BYTES);
    CHECK(fcntl(nowait_file_descriptor(file), F_GETFD) >= 0);
    EQUAL(nowait_file_close(file), 0);
}

/* A try that would wait is no failure: it is made by a call that may. */
static void tries(char **argv) {
    nowait_file file = make_file(argv, "tries", FILE_BYTES);
    static unsigned char bytes[FILE_BYTES];
    int64_t read = nowait_try_read_at(file, bytes, 4096, 8192);
    if (read == -EAGAIN) {
        read = nowait_read_at(file, bytes, 4096, 8192);
    }
    EQUAL(read, 4096);
    check_bytes(bytes, 4096, 8192);
    int64_t written = nowait_try_write_at(file, bytes, 4096, 0);
    if (written == -EAGAIN) {
        written = nowait_write_at(file, bytes, 4096, 0, 0);
    }
    EQUAL(written, 4096);
    EQUAL(nowait_read_at(file, bytes, 4096, 0), 4096);
    check_bytes(bytes, 4096, 8192);
    EQUAL(nowait_try_read_at(file, bytes, 10, UINT64_MAX - 3), -EOVERFLOW);
    SAYS("/tries");
    EQUAL(nowait_try_write_at(file, NULL, 10, 0), -EFAULT);
    EQUAL(nowait_file_close(file), 0);
    EQUAL(nowait_try_read_at(file, bytes, 10, 0), -EBADF);
    EQUAL(nowait_try_write_at(file, bytes, 10, 0), -EBADF);
}

static void writes(char **argv) {
    const char *path = in_folder(argv, "writes");
    nowait_file file = 0;
    EQUAL(nowait_file_open(0, path, O_RDWR | O_CREAT | O_EXCL, 0600, &file), 0);
    EQUAL(nowait_write_at(file, "one", 3, 0, 0), 3);
    EQUAL(nowait_write_at(file, "two", 3, 5, NOWAIT_WRITE_DURABLE), 3);
    EQUAL(nowait_write_at(file, NULL, 0, 0, NOWAIT_WRITE_DURABLE), 0);
    EQUAL(nowait_sync(file, 0), 0);
    EQUAL(nowait_sync(file, NOWAIT_SYNC_ALL), 0);
    EQUAL(nowait_file_acknowledge_sync_failure(file), 0);
    char bytes[16];
    EQUAL(nowait_read_at(file, bytes, sizeof bytes, 0), 8);
    CHECK(memcmp(bytes, "one\0\0two", 8) == 0);
    EQUAL(nowait_write_at(file, "x", 1, 0, 64), -EINVAL);
    EQUAL(nowait_sync(file, 64), -EINVAL);
    EQUAL(nowait_file_close(file), 0);

    /* O_EXCL, O_TRUNC and O_APPEND mean what they mean. */
    EQUAL(nowait_file_open(0, path, O_RDWR | O_CREAT | O_EXCL, 0600, &file), -EEXIST);
    SAYS("open");
    SAYS("/writes");
    EQUAL(nowait_file_open(0, path, O_RDWR | O_APPEND, 0, &file), 0);
    EQUAL(nowait_write_at(file, "three", 5, 0, 0), 5);
    EQUAL(nowait_read_at(file, bytes, sizeof bytes, 0), 13);
    CHECK(memcmp(bytes, "one\0\0twothree", 13) == 0);
    EQUAL(nowait_file_close(file), 0);
    EQUAL(nowait_file_open(0, path, O_RDWR | O_TRUNC, 0, &file), 0);
    EQUAL(nowait_read_at(file, bytes, sizeof bytes, 0), 0);
    EQUAL(nowait_file_close(file), 0);

    /* What the file was not opened for. */
    EQUAL(nowait_file_open(0, path, O_RDONLY, 0, &file), 0);
    EQUAL(nowait_write_at(file, "x", 1, 0, 0), -EACCES);
    SAYS("write");
    EQUAL(nowait_file_close(file), 0);
    EQUAL(nowait_file_open(0, path, O_WRONLY, 0, &file), 0);
    EQUAL(nowait_read_at(file, bytes, 1, 0), -EACCES);
    EQUAL(nowait_file_close(file), 0);
}

/* Any offset, length and memory will do. */
static void direct(char **argv) {
    EQUAL(nowait_file_close(make_file(argv, "direct", FILE_BYTES)), 0);
    nowait_file file = 0;
    EQUAL(nowait_file_open(0, in_folder(argv, "direct"), O_RDWR | O_DIRECT, 0, &file), 0);
    size_t memory = 0, offset = 0;
    int is_direct = nowait_file_direct(file, &memory, &offset);
    CHECK(is_direct == 1 ? memory > 0 && offset > 0 : is_direct == 0 && memory == 1 && offset == 1);
    EQUAL(nowait_file_direct(file, NULL, NULL), is_direct);
    EQUAL(nowait_file_direct(file, (size_t *)(void *)((char *)&memory + 1), NULL), -EFAULT);
    static unsigned char bytes[FILE_BYTES + 1];
    EQUAL(nowait_read_at(file, bytes + 1, 777, 5001), 777);
    check_bytes(bytes + 1, 777, 5001);
    EQUAL(nowait_write_at(file, "direct", 6, 4093, NOWAIT_WRITE_DURABLE), 6);
    EQUAL(nowait_read_at(file, bytes, 8, 4092), 8);
    CHECK(bytes[0] == byte_at(4092) && memcmp(bytes + 1, "direct", 6) == 0 && bytes[7] == byte_at(4099));
    EQUAL(nowait_file_close(file), 0);
    EQUAL(nowait_file_direct(file, NULL, NULL), -EBADF);
    file = make_file(argv, "cached", 10);
    EQUAL(nowait_file_direct(file, &memory, &offset), 0);
    CHECK(memory == 1 && offset == 1);
    EQUAL(nowait_file_close(file), 0);
}

static void descriptors(char **argv) {
    EQUAL(nowait_file_close(make_file(argv, "descriptors", 100)), 0);
    int descriptor = open(in_folder(argv, "descriptors"), O_RDONLY);
    CHECK(descriptor >= 0);
    nowait_file file = 0;
    EQUAL(nowait_file_from_descriptor(0, descriptor, "a name", &file), 0);
    /* The library has one of its own. */
    CHECK(close(descriptor) == 0);
    unsigned char bytes[100];
    EQUAL(nowait_read_at(file, bytes, 100, 0), 100);
    check_bytes(bytes, 100, 0);
    EQUAL(nowait_write_at(file, bytes, 1, 0, 0), -EACCES);
    SAYS("a name");
    EQUAL(nowait_file_close(file), 0);

    EQUAL(nowait_file_from_descriptor(0, descriptor, NULL, &file), -EBADF);
    EQUAL(nowait_file_from_descriptor(0, -1, NULL, &file), -EBADF);
    int ends[2];
    CHECK(pipe(ends) == 0);
    EQUAL(nowait_file_from_descriptor(0, ends[0], NULL, &file), -ESPIPE);
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
}

static void failures(char **argv) {
    nowait_file file = 7;
    EQUAL(nowait_file_open(0, in_folder(argv, "none"), O_RDONLY, 0, &file), -ENOENT);
    SAYS("open");
    SAYS("/none");
    SAYS("check the path");
    EQUAL(file, 7);
    EQUAL(nowait_file_open(0, argv[1], O_RDONLY, 0, &file), -EISDIR);
    EQUAL(nowait_file_open(0, "", O_RDONLY, 0, &file), -ENOENT);
    /* A call that succeeds leaves the message as it is. */
    EQUAL(nowait_file_close(make_file(argv, "other", 1)), 0);
    SAYS("open");
}

static void instances(char **argv) {
    struct nowait_instance_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.engine = NOWAIT_ENGINE_POOL;
    nowait_instance instance = 0;
    EQUAL(nowait_instance_open(&options, &instance), 0);
    EQUAL(nowait_instance_has_ring(instance), 0);
    nowait_file file = 0;
    EQUAL(nowait_file_close(make_file(argv, "instances", 5000)), 0);
    EQUAL(nowait_file_open(instance, in_folder(argv, "instances"), O_RDONLY, 0, &file), 0);
    unsigned char bytes[5000];
    for (int round = 0; round < 10; round++) {
        EQUAL(nowait_read_at(file, bytes, sizeof bytes, 0), 5000);
    }
    struct nowait_instance_counters stats;
    memset(&stats, 0xff, sizeof stats);
    stats.size = sizeof stats;
    EQUAL(nowait_instance_stats(instance, &stats), 0);
    EQUAL(stats.size, sizeof stats);
    /* The open, and the reads. */
    EQUAL(stats.blocking, 11);
    EQUAL(stats.started, stats.served_inline + stats.blocking + stats.ring + stats.aio + stats.pool +
                             stats.cancelled + stats.failed);
    /* Its files outlive it. */
    EQUAL(nowait_instance_close(instance), 0);
    EQUAL(nowait_read_at(file, bytes, sizeof bytes, 0), 5000);
    EQUAL(nowait_file_close(file), 0);
    EQUAL(nowait_instance_open(NULL, &instance), 0);
    EQUAL(nowait_instance_close(instance), 0);
    stats.size = sizeof stats;
    EQUAL(nowait_instance_stats(0, &stats), 0);
    CHECK(stats.started > 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", NOWAIT_VERSION_MAJOR, NOWAIT_VERSION_MINOR,
             NOWAIT_VERSION_PATCH);
    CHECK(strcmp(nowait_version(), version) == 0);
    CHECK(strcmp(nowait_error_message(), "") == 0);
    reads(argv);
    tries(argv);
    writes(argv);
    direct(argv);
    descriptors(argv);
    failures(argv);
    instances(argv);
    return 0;
}
