/* What changes a file beside a write at an offset: appends, vectored transfers, sizes, space, advice.
 * Blocking, and in a queue. And what is known of a file. */

#include <limits.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>

#include "test.h"

enum { PAGE = 4096, MANY = 3000 };

static nowait_queue open_queue(void) {
    nowait_queue queue = 0;
    EQUAL(nowait_queue_open(&queue), 0);
    return queue;
}

/* The result of the only operation of a queue. */
static int64_t only_result(nowait_queue queue) {
    struct nowait_completion completion;
    EQUAL(nowait_reap(queue, &completion, 1, -1), 1);
    CHECK((completion.message == NULL) == (completion.result >= 0));
    EQUAL(nowait_queue_operations(queue), 0);
    return completion.result;
}

static uint64_t size_of(nowait_file file) {
    uint64_t size = 0;
    EQUAL(nowait_file_size(file, &size), 0);
    return size;
}

static void appends(char **argv) {
    nowait_file file = make_file(argv, "appends", 10);
    nowait_queue queue = open_queue();
    unsigned char bytes[64];
    EQUAL(nowait_append(file, "one", 3, 0), 3);
    EQUAL(nowait_append(file, "two", 3, NOWAIT_WRITE_DURABLE), 3);
    EQUAL(nowait_append(file, NULL, 0, 0), 0);
    /* A write at an offset stays one. */
    EQUAL(nowait_write_at(file, "X", 1, 0, 0), 1);
    EQUAL(nowait_submit_append(queue, file, "three", 5, 0, NULL, NULL), 0);
    EQUAL(only_result(queue), 5);
    EQUAL(nowait_submit_append(queue, file, "four", 4, NOWAIT_WRITE_DURABLE, NULL, NULL), 0);
    EQUAL(only_result(queue), 4);
    EQUAL(nowait_read_at(file, bytes, sizeof bytes, 0), 25);
    CHECK(bytes[0] == 'X' && memcmp(bytes + 10, "onetwothreefour", 15) == 0);

    /* In the order in which they were submitted. */
    EQUAL(nowait_file_set_length(file, 0), 0);
    static uint32_t numbers[MANY];
    for (uint32_t i = 0; i < MANY; i++) {
        numbers[i] = i;
        EQUAL(nowait_submit_append(queue, file, &numbers[i], sizeof numbers[i], 0, &numbers[i], NULL), 0);
    }
    struct nowait_completion completion;
    for (int i = 0; i < MANY; i++) {
        EQUAL(nowait_reap(queue, &completion, 1, -1), 1);
        EQUAL(completion.result, sizeof numbers[0]);
    }
    static uint32_t read[MANY + 1];
    EQUAL(nowait_read_at(file, read, sizeof read, 0), sizeof numbers);
    CHECK(memcmp(read, numbers, sizeof numbers) == 0);

    EQUAL(nowait_append(file, "x", 1, 64), -EINVAL);
    EQUAL(nowait_append(file, NULL, 1, 0), -EFAULT);
    EQUAL(nowait_append(file, numbers, SIZE_MAX, 0), -EINVAL);
    EQUAL(nowait_append(0, "x", 1, 0), -EBADF);
    EQUAL(nowait_submit_append(queue, file, "x", 1, 64, NULL, NULL), -EINVAL);
    EQUAL(nowait_submit_append(queue, 0, "x", 1, 0, NULL, NULL), -EBADF);
    EQUAL(nowait_submit_append(0, file, "x", 1, 0, NULL, NULL), -EBADF);
    EQUAL(nowait_file_close(file), 0);
    EQUAL(nowait_file_open(0, in_folder(argv, "appends"), O_RDONLY, 0, &file), 0);
    EQUAL(nowait_append(file, "x", 1, 0), -EACCES);
    SAYS("write");
    SAYS("/appends");
    EQUAL(nowait_submit_append(queue, file, "x", 1, 0, NULL, NULL), 0);
    EQUAL(only_result(queue), -EACCES);
    EQUAL(nowait_file_close(file), 0);
    EQUAL(nowait_queue_close(queue), 0);
}

/* Many pieces of odd lengths, more than one readv(2) takes. */
static void vectored(char **argv, int flags) {
    EQUAL(nowait_file_close(make_file(argv, "vectored", 0)), 0);
    nowait_file file = 0;
    EQUAL(nowait_file_open(0, in_folder(argv, "vectored"), O_RDWR | flags, 0, &file), 0);
    nowait_queue queue = open_queue();
    static struct iovec pieces[MANY];
    size_t total = 0;
    for (size_t i = 0; i < MANY; i++) {
        pieces[i].iov_len = i * 7 % 50;
        total += pieces[i].iov_len;
    }
    unsigned char *memory = (unsigned char *)malloc(total + 1);
    unsigned char *read = (unsigned char *)malloc(total + 1);
    CHECK(memory != NULL && read != NULL);
    for (size_t at = 0; at < total; at++) {
        memory[at] = byte_at(at);
    }
    for (int queued = 0; queued < 2; queued++) {
        const uint64_t offset = queued ? 777777 : 5;
        size_t at = 0;
        for (size_t i = 0; i < MANY; i++) {
            pieces[i].iov_base = pieces[i].iov_len == 0 ? NULL : memory + at;
            at += pieces[i].iov_len;
        }
        if (queued) {
            /* The list is copied. */
            struct iovec *list = (struct iovec *)malloc(sizeof pieces);
            CHECK(list != NULL);
            memcpy(list, pieces, sizeof pieces);
            EQUAL(nowait_submit_write_vectored(queue, file, list, MANY, offset, 0, NULL, NULL), 0);
            free(list);
            EQUAL(only_result(queue), total);
        } else {
            EQUAL(nowait_write_vectored_at(file, pieces, MANY, offset, NOWAIT_WRITE_DURABLE), total);
        }
        EQUAL(size_of(file), offset + total);
        /* Back, in other pieces, the last of which is longer than the file. */
        memset(read, 0xee, total + 1);
        at = 0;
        for (size_t i = 0; i < MANY; i++) {
            size_t length = i * 13 % 50;
            pieces[i].iov_base = read + at;
            pieces[i].iov_len = length < total - at ? length : total - at;
            at += pieces[i].iov_len;
        }
        pieces[MANY - 1].iov_len += total + 1 - at;
        if (queued) {
            EQUAL(nowait_submit_read_vectored(queue, file, pieces, MANY, offset, NULL, NULL), 0);
            EQUAL(only_result(queue), total);
        } else {
            EQUAL(nowait_read_vectored_at(file, pieces, MANY, offset), total);
        }
        CHECK(memcmp(memory, read, total) == 0);
        EQUAL(read[total], 0xee);
        for (size_t i = 0; i < MANY; i++) {
            pieces[i].iov_len = i * 7 % 50;
        }
    }
    free(memory);
    free(read);

    unsigned char byte = 0;
    struct iovec bad[2] = {{&byte, 1}, {NULL, 1}};
    EQUAL(nowait_read_vectored_at(file, bad, 2, 0), -EFAULT);
    SAYS("a buffer is NULL");
    EQUAL(nowait_write_vectored_at(file, bad, 2, 0, 0), -EFAULT);
    EQUAL(nowait_submit_read_vectored(queue, file, bad, 2, 0, NULL, NULL), -EFAULT);
    EQUAL(nowait_submit_write_vectored(queue, file, bad, 2, 0, 0, NULL, NULL), -EFAULT);
    bad[1].iov_base = &byte;
    bad[1].iov_len = SIZE_MAX;
    EQUAL(nowait_read_vectored_at(file, bad, 2, 0), -EINVAL);
    bad[0].iov_len = bad[1].iov_len = SSIZE_MAX;
    EQUAL(nowait_write_vectored_at(file, bad, 2, 0, 0), -EINVAL);
    SAYS("sum of the buffers");
    EQUAL(nowait_read_vectored_at(file, NULL, 1, 0), -EFAULT);
    EQUAL(nowait_read_vectored_at(file, bad, SIZE_MAX, 0), -EINVAL);
    EQUAL(nowait_read_vectored_at(0, NULL, 0, 0), -EBADF);
    EQUAL(nowait_read_vectored_at(file, NULL, 0, 0), 0);
    EQUAL(nowait_write_vectored_at(file, NULL, 0, 0, 0), 0);
    EQUAL(nowait_write_vectored_at(file, NULL, 0, 0, 64), -EINVAL);
    bad[0].iov_len = 1;
    EQUAL(nowait_read_vectored_at(file, bad, 1, UINT64_MAX), -EOVERFLOW);
    EQUAL(nowait_submit_read_vectored(queue, file, bad, 1, UINT64_MAX, NULL, NULL), 0);
    EQUAL(only_result(queue), -EOVERFLOW);
    EQUAL(nowait_queue_close(queue), 0);
    EQUAL(nowait_file_close(file), 0);
}

/* Each completes once, and those that overlap are made in the order of the list. */
static void many_writes(char **argv, int flags) {
    EQUAL(nowait_file_close(make_file(argv, "writes", 0)), 0);
    nowait_file file = 0;
    EQUAL(nowait_file_open(0, in_folder(argv, "writes"), O_RDWR | flags, 0, &file), 0);
    nowait_queue queue = open_queue();
    enum { COUNT = 300 };
    static unsigned char pages[COUNT][PAGE] __attribute__((aligned(PAGE)));
    static struct nowait_write writes[COUNT];
    static unsigned char expected[COUNT * PAGE], read[COUNT * PAGE + 1];
    memset(expected, 0, sizeof expected);
    memset(writes, 0, sizeof writes);
    for (size_t i = 0; i < COUNT; i++) {
        memset(pages[i], (int)(i % 251) + 1, PAGE);
        writes[i].file = file;
        writes[i].buffer = pages[i];
        writes[i].length = i % 3 == 0 ? (size_t)PAGE : PAGE / 2 + i;
        writes[i].offset = i * 7919 % 100 * (PAGE / 2);
        writes[i].flags = i % 10 == 0 ? NOWAIT_WRITE_DURABLE : 0;
        writes[i].user = &writes[i];
        memcpy(expected + writes[i].offset, pages[i], writes[i].length);
    }
    EQUAL(nowait_submit_writes(queue, writes, COUNT), 0);
    static char is_done[COUNT];
    memset(is_done, 0, sizeof is_done);
    for (int left = COUNT; left > 0; left--) {
        struct nowait_completion completion;
        EQUAL(nowait_reap(queue, &completion, 1, -1), 1);
        ptrdiff_t which = (struct nowait_write *)completion.user - writes;
        CHECK(which >= 0 && which < COUNT && !is_done[which]);
        is_done[which] = 1;
        EQUAL(completion.operation, writes[which].operation);
        EQUAL(completion.result, writes[which].length);
    }
    int64_t bytes = nowait_read_at(file, read, sizeof read, 0);
    EQUAL(bytes, size_of(file));
    CHECK(memcmp(read, expected, (size_t)bytes) == 0);

    /* All or none. */
    writes[50].buffer = NULL;
    EQUAL(nowait_submit_writes(queue, writes, COUNT), -EFAULT);
    SAYS("the buffer of a write is NULL");
    writes[50].buffer = pages[50];
    writes[51].flags = (uint64_t)NOWAIT_WRITE_DURABLE << 32;
    EQUAL(nowait_submit_writes(queue, writes, COUNT), -EINVAL);
    writes[51].flags = 0;
    writes[299].file = 0;
    EQUAL(nowait_submit_writes(queue, writes, COUNT), -EBADF);
    EQUAL(nowait_submit_writes(queue, NULL, 1), -EFAULT);
    EQUAL(nowait_submit_writes(queue, writes, SIZE_MAX), -EINVAL);
    EQUAL(nowait_submit_writes(0, writes, 1), -EBADF);
    EQUAL(nowait_queue_operations(queue), 0);
    EQUAL(nowait_submit_writes(queue, NULL, 0), 0);
    /* Errors of their own are in their completions. */
    writes[0].offset = UINT64_MAX;
    EQUAL(nowait_submit_writes(queue, writes, 2), 0);
    for (int i = 0; i < 2; i++) {
        struct nowait_completion completion;
        EQUAL(nowait_reap(queue, &completion, 1, -1), 1);
        EQUAL(completion.result, completion.user == &writes[0] ? -EOVERFLOW : (long long)writes[1].length);
    }
    EQUAL(nowait_queue_close(queue), 0);
    EQUAL(nowait_file_close(file), 0);
}

static void sizes_and_space(char **argv) {
    nowait_file file = make_file(argv, "sizes", 10000);
    nowait_queue queue = open_queue();
    unsigned char bytes[64];
    EQUAL(nowait_file_set_length(file, 5000), 0);
    EQUAL(size_of(file), 5000);
    EQUAL(nowait_file_set_length(file, 6000), 0);
    EQUAL(size_of(file), 6000);
    EQUAL(nowait_read_at(file, bytes, 2, 4999), 2);
    CHECK(bytes[0] == byte_at(4999) && bytes[1] == 0);
    EQUAL(nowait_submit_set_length(queue, file, 100, NULL, NULL), 0);
    EQUAL(only_result(queue), 0);
    EQUAL(size_of(file), 100);
    /* A write that was submitted before is cut off, one after it is not. */
    char *block = (char *)calloc(1, 1 << 20);
    CHECK(block != NULL);
    struct nowait_completion completion;
    EQUAL(nowait_submit_write(queue, file, block, 1 << 20, 0, NOWAIT_WRITE_DURABLE, NULL, NULL), 0);
    EQUAL(nowait_submit_set_length(queue, file, 3, NULL, NULL), 0);
    EQUAL(nowait_submit_write(queue, file, "end", 3, 7, 0, NULL, NULL), 0);
    for (int i = 0; i < 3; i++) {
        EQUAL(nowait_reap(queue, &completion, 1, -1), 1);
        CHECK(completion.result >= 0);
    }
    EQUAL(size_of(file), 10);
    free(block);

    EQUAL(nowait_file_set_length(file, UINT64_MAX), -EOVERFLOW);
    SAYS("set length");
    SAYS("/sizes");
    EQUAL(nowait_submit_set_length(queue, file, (uint64_t)INT64_MAX + 1, NULL, NULL), 0);
    EQUAL(only_result(queue), -EOVERFLOW);
    EQUAL(nowait_submit_set_length(queue, 0, 0, NULL, NULL), -EBADF);
    EQUAL(size_of(file), 10);

    struct nowait_metadata known;
    memset(&known, 0, sizeof known);
    known.size = sizeof known;
    EQUAL(nowait_file_set_length(file, 0), 0);
    int result = nowait_file_allocate(file, NOWAIT_ALLOCATE_KEEP_SIZE, 0, 1 << 20);
    if (result == -EOPNOTSUPP) {
        printf("skipped: this file system has no fallocate(2)\n");
    } else {
        EQUAL(result, 0);
        EQUAL(size_of(file), 0);
        EQUAL(nowait_file_metadata(file, &known), 0);
        CHECK(known.allocated_bytes >= 1 << 20);
        EQUAL(nowait_submit_allocate(queue, file, NOWAIT_ALLOCATE_RESERVE, 4096, 8192, NULL, NULL), 0);
        EQUAL(only_result(queue), 0);
        EQUAL(size_of(file), 12288);
        EQUAL(nowait_write_at(file, "data", 4, 4096, 0), 4);
        result = nowait_file_allocate(file, NOWAIT_ALLOCATE_PUNCH_HOLE, 0, 8192);
        if (result != -EOPNOTSUPP) {
            EQUAL(result, 0);
            EQUAL(nowait_read_at(file, bytes, 4, 4096), 4);
            CHECK(memcmp(bytes, "\0\0\0\0", 4) == 0);
        }
        EQUAL(nowait_write_at(file, "data", 4, 0, 0), 4);
        result = nowait_file_allocate(file, NOWAIT_ALLOCATE_ZERO, 0, 4096);
        if (result != -EOPNOTSUPP) {
            EQUAL(result, 0);
            EQUAL(nowait_read_at(file, bytes, 4, 0), 4);
            CHECK(memcmp(bytes, "\0\0\0\0", 4) == 0);
        }
        EQUAL(nowait_file_allocate(file, NOWAIT_ALLOCATE_RESERVE, 0, 0), -EINVAL);
        result = nowait_file_allocate(file, NOWAIT_ALLOCATE_RESERVE, 0, (uint64_t)1 << 62);
        CHECK(result == -EFBIG || result == -ENOSPC);
        SAYS("allocate");
    }
    EQUAL(nowait_file_allocate(file, 4, 0, 1), -EINVAL);
    SAYS("how is 4");
    EQUAL(nowait_file_allocate(file, 0, 1, UINT64_MAX), -EOVERFLOW);
    EQUAL(nowait_file_allocate(0, 0, 0, 1), -EBADF);
    EQUAL(nowait_submit_allocate(queue, file, 4, 0, 1, NULL, NULL), -EINVAL);

    for (uint32_t advice = NOWAIT_ADVICE_NORMAL; advice <= NOWAIT_ADVICE_NO_REUSE; advice++) {
        EQUAL(nowait_file_advise(file, 0, 0, advice), 0);
        EQUAL(nowait_submit_advise(queue, file, 4096, 4096, advice, NULL, NULL), 0);
        EQUAL(only_result(queue), 0);
    }
    EQUAL(nowait_file_advise(file, 0, 0, 6), -EINVAL);
    SAYS("advice is 6");
    EQUAL(nowait_submit_advise(queue, file, 0, 0, 6, NULL, NULL), -EINVAL);
    EQUAL(nowait_file_advise(0, 0, 0, 0), -EBADF);
    EQUAL(nowait_file_close(file), 0);

    EQUAL(nowait_file_open(0, in_folder(argv, "sizes"), O_RDONLY, 0, &file), 0);
    EQUAL(nowait_file_set_length(file, 0), -EACCES);
    SAYS("open it for writing");
    EQUAL(nowait_file_allocate(file, 0, 0, 1), -EACCES);
    EQUAL(nowait_file_close(file), 0);
    EQUAL(nowait_queue_close(queue), 0);
}

static int64_t in_ns(struct timespec time) {
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void metadata(char **argv) {
    nowait_file file = make_file(argv, "known", 5000);
    char link[4200], path[4200];
    snprintf(link, sizeof link, "%s/link", argv[1]);
    snprintf(path, sizeof path, "%s/known", argv[1]);
    CHECK(symlink(path, link) == 0);
    struct timespec times[2] = {{1234567890, 123456789}, {-5, 1}};
    CHECK(utimensat(AT_FDCWD, path, times, 0) == 0);
    CHECK(chmod(path, 0640) == 0);
    struct stat stat_;
    CHECK(stat(path, &stat_) == 0);
    struct {
        struct nowait_metadata known;
        uint64_t more[2];
    } answers[3];
    memset(answers, 0xff, sizeof answers);
    for (int i = 0; i < 3; i++) {
        answers[i].known.size = sizeof answers[i];
    }
    EQUAL(nowait_file_metadata(file, &answers[0].known), 0);
    EQUAL(nowait_path_metadata(0, path, 0, &answers[1].known), 0);
    EQUAL(nowait_path_metadata(0, link, 0, &answers[2].known), 0);
    for (int i = 0; i < 3; i++) {
        struct nowait_metadata *known = &answers[i].known;
        EQUAL(known->size, sizeof answers[i]);
        EQUAL(known->length, 5000);
        EQUAL(known->allocated_bytes, stat_.st_blocks * 512);
        EQUAL(known->device, stat_.st_dev);
        EQUAL(known->inode, stat_.st_ino);
        EQUAL(known->links, 1);
        EQUAL(known->mode, stat_.st_mode);
        EQUAL(known->owner, stat_.st_uid);
        EQUAL(known->group, stat_.st_gid);
        EQUAL(known->block_bytes, stat_.st_blksize);
        EQUAL(known->accessed_ns, in_ns(stat_.st_atim));
        EQUAL(known->modified_ns, in_ns(stat_.st_mtim));
        EQUAL(known->changed_ns, in_ns(stat_.st_ctim));
        CHECK(known->created_ns == INT64_MIN || known->created_ns <= known->changed_ns);
        CHECK(answers[i].more[0] == 0 && answers[i].more[1] == 0);
    }
    struct nowait_metadata *known = &answers[0].known;
    EQUAL(known->modified_ns, -4999999999LL);
    EQUAL(nowait_path_metadata(0, link, NOWAIT_METADATA_OF_LINK, known), 0);
    CHECK(S_ISLNK(known->mode));
    EQUAL(nowait_path_metadata(0, argv[1], 0, known), 0);
    CHECK(S_ISDIR(known->mode));
    CHECK(unlink(path) == 0);
    EQUAL(nowait_file_metadata(file, known), 0);
    EQUAL(known->links, 0);
    EQUAL(nowait_path_metadata(0, link, 0, known), -ENOENT);
    SAYS("metadata");
    SAYS("/link");
    EQUAL(nowait_path_metadata(0, NULL, 0, known), -EFAULT);
    EQUAL(nowait_path_metadata(0, path, 2, known), -EINVAL);
    EQUAL(nowait_path_metadata(file, path, 0, known), -EBADF);
    EQUAL(nowait_path_metadata(0, argv[1], 0, NULL), -EFAULT);
    EQUAL(nowait_file_metadata(file, NULL), -EFAULT);
    EQUAL(nowait_file_metadata(0, known), -EBADF);
    known->size = 8;
    EQUAL(nowait_file_metadata(file, known), -EINVAL);
    SAYS("member size of metadata");
    EQUAL(nowait_path_metadata(0, argv[1], 0, known), -EINVAL);
    EQUAL(nowait_file_close(file), 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    appends(argv);
    vectored(argv, 0);
    vectored(argv, O_DIRECT);
    many_writes(argv, 0);
    many_writes(argv, O_DIRECT);
    sizes_and_space(argv);
    metadata(argv);
    return 0;
}
