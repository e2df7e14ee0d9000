/* Bad input is an error, and never an accident: pointers, sizes, handles. */

#include <pthread.h>

#include "test.h"

/* Everything that takes a file says -EBADF. */
static void is_no_file(nowait_file file) {
    char byte = 0;
    uint64_t number = 0;
    struct nowait_range range = {0, 1};
    nowait_queue queue = 0;
    EQUAL(nowait_read_at(file, &byte, 1, 0), -EBADF);
    EQUAL(nowait_write_at(file, &byte, 1, 0, 0), -EBADF);
    EQUAL(nowait_write_at(file, &byte, 1, 0, NOWAIT_WRITE_DURABLE), -EBADF);
    EQUAL(nowait_gather(file, &range, 1, &byte, 1, NULL), -EBADF);
    EQUAL(nowait_sync(file, 0), -EBADF);
    EQUAL(nowait_file_size(file, &number), -EBADF);
    EQUAL(nowait_file_descriptor(file), -EBADF);
    EQUAL(nowait_file_acknowledge_sync_failure(file), -EBADF);
    EQUAL(nowait_file_close(file), -EBADF);
    EQUAL(nowait_queue_open(&queue), 0);
    EQUAL(nowait_submit_read(queue, file, &byte, 1, 0, NULL, NULL), -EBADF);
    EQUAL(nowait_submit_write(queue, file, &byte, 1, 0, 0, NULL, NULL), -EBADF);
    EQUAL(nowait_submit_sync(queue, file, 0, NULL, NULL), -EBADF);
    EQUAL(nowait_queue_operations(queue), 0);
    EQUAL(nowait_queue_close(queue), 0);
}

static void handles(char **argv) {
    is_no_file(0);
    SAYS("is 0");
    is_no_file(1);
    is_no_file(UINT64_MAX);
    nowait_file file = make_file(argv, "handles", 10);
    is_no_file(file + 1);
    EQUAL(nowait_file_close(file), 0);
    EQUAL(nowait_file_close(file), -EBADF);
    SAYS("already closed");
    is_no_file(file);

    /* Its place is in use again, under another handle. */
    nowait_file again = make_file(argv, "again", 10);
    CHECK(again != file);
    is_no_file(file);
    char byte = 0;
    EQUAL(nowait_read_at(again, &byte, 1, 0), 1);

    /* Of another kind. */
    nowait_queue queue = 0;
    EQUAL(nowait_queue_open(&queue), 0);
    EQUAL(nowait_read_at(queue, &byte, 1, 0), -EBADF);
    SAYS("to a queue, not to a file");
    struct nowait_completion completion;
    EQUAL(nowait_reap(again, &completion, 1, 0), -EBADF);
    EQUAL(nowait_queue_close(again), -EBADF);
    EQUAL(nowait_queue_close(queue), 0);
    EQUAL(nowait_queue_close(queue), -EBADF);
    EQUAL(nowait_queue_descriptor(queue), -EBADF);
    EQUAL(nowait_queue_operations(queue), -EBADF);
    EQUAL(nowait_reap(queue, &completion, 1, 0), -EBADF);
    EQUAL(nowait_cancel(queue, 1), -EBADF);
    EQUAL(nowait_submit_read(queue, again, &byte, 1, 0, NULL, NULL), -EBADF);

    uint64_t number = 0;
    struct nowait_log_record record;
    struct nowait_log_counters log_stats = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    log_stats.size = sizeof log_stats;
    EQUAL(nowait_log_append(file, &byte, 1, &number), -EBADF);
    EQUAL(nowait_log_wait(file, 1), -EBADF);
    EQUAL(nowait_log_last(file, &number, &number), -EBADF);
    EQUAL(nowait_log_stats(file, &log_stats), -EBADF);
    EQUAL(nowait_log_truncate_before(file, 1), -EBADF);
    EQUAL(nowait_log_truncate_after(file, 1), -EBADF);
    EQUAL(nowait_log_truncate_closed(0, NULL, 1, &number), -EFAULT);
    EQUAL(nowait_log_backup(file, "x"), -EBADF);
    EQUAL(nowait_log_backup(file, NULL), -EFAULT);
    EQUAL(nowait_log_backup_directory(0, NULL, "x"), -EFAULT);
    EQUAL(nowait_log_backup_directory(file, "x", "y"), -EBADF);
    EQUAL(nowait_log_close(file), -EBADF);
    EQUAL(nowait_log_reader_open(file, 1, &number), -EBADF);
    EQUAL(nowait_log_reader_next(file, &record), -EBADF);
    EQUAL(nowait_log_reader_tail(file, &record), -EBADF);
    EQUAL(nowait_log_reader_skip_damage(file, 1), -EBADF);
    EQUAL(nowait_log_reader_close(file), -EBADF);
    EQUAL(nowait_copy_wait(file, NULL), -EBADF);
    EQUAL(nowait_copy_cancel(file), -EBADF);
    EQUAL(nowait_copy_has_ended(file), -EBADF);
    EQUAL(nowait_copy_close(file), -EBADF);
    EQUAL(nowait_instance_close(0), -EBADF);
    EQUAL(nowait_instance_close(file), -EBADF);
    EQUAL(nowait_file_open(file, "x", O_RDONLY, 0, &number), -EBADF);
    EQUAL(nowait_file_close(again), 0);
}

static void pointers(char **argv) {
    nowait_file file = make_file(argv, "pointers", 10);
    uint64_t numbers[2];
    uint64_t *odd = (uint64_t *)(void *)((char *)numbers + 1);
    EQUAL(nowait_file_open(0, NULL, O_RDONLY, 0, numbers), -EFAULT);
    SAYS("path is NULL");
    EQUAL(nowait_file_open(0, "x", O_RDONLY, 0, NULL), -EFAULT);
    SAYS("file is NULL");
    EQUAL(nowait_file_open(0, "x", O_RDONLY, 0, odd), -EFAULT);
    SAYS("not aligned to 8 bytes");
    EQUAL(nowait_read_at(file, NULL, 1, 0), -EFAULT);
    SAYS("buffer is NULL");
    EQUAL(nowait_write_at(file, NULL, 1, 0, 0), -EFAULT);
    EQUAL(nowait_read_at(file, numbers, SIZE_MAX, 0), -EINVAL);
    EQUAL(nowait_file_size(file, NULL), -EFAULT);
    EQUAL(nowait_file_size(file, odd), -EFAULT);
    EQUAL(nowait_queue_open(NULL), -EFAULT);
    EQUAL(nowait_instance_open(NULL, NULL), -EFAULT);
    EQUAL(nowait_log_open(0, NULL, NULL, numbers, NULL), -EFAULT);
    EQUAL(nowait_log_open(0, argv[1], NULL, NULL, NULL), -EFAULT);
    EQUAL(nowait_copy_start(NULL, 1, "x", NULL, numbers), -EFAULT);
    const char *sources[2] = {"x", NULL};
    EQUAL(nowait_copy_start(sources, 2, argv[1], NULL, numbers), -EFAULT);
    SAYS("a source is NULL");
    EQUAL(nowait_copy_start(sources, 0, argv[1], NULL, numbers), -EINVAL);
    EQUAL(nowait_copy_start(sources, 1, NULL, NULL, numbers), -EFAULT);
    EQUAL(nowait_probe(NULL, 0, NULL), -EFAULT);
    nowait_text_free(NULL);

    nowait_queue queue = 0;
    EQUAL(nowait_queue_open(&queue), 0);
    EQUAL(nowait_reap(queue, NULL, 1, 0), -EFAULT);
    struct nowait_completion completion;
    EQUAL(nowait_reap(queue, &completion, 0, 0), -EINVAL);
    EQUAL(nowait_submit_read(queue, file, NULL, 1, 0, NULL, NULL), -EFAULT);
    EQUAL(nowait_submit_read(queue, file, numbers, 1, 0, NULL, odd), -EFAULT);
    EQUAL(nowait_submit_write(queue, file, numbers, 1, 0, 64, NULL, NULL), -EINVAL);
    EQUAL(nowait_submit_sync(queue, file, 64, NULL, NULL), -EINVAL);
    EQUAL(nowait_queue_operations(queue), 0);
    EQUAL(nowait_queue_close(queue), 0);
    EQUAL(nowait_file_close(file), 0);
}

/* Structs that grow. */
static void sizes(void) {
    struct {
        struct nowait_instance_options known;
        uint64_t more[2];
    } options;
    nowait_instance instance = 0;
    memset(&options, 0, sizeof options);
    const size_t bad[] = {0, 1, 8, sizeof options.known - 1, 5000, SIZE_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        options.known.size = bad[i];
        EQUAL(nowait_instance_open(&options.known, &instance), -EINVAL);
        SAYS("member size of options");
    }
    /* A newer caller: all right while it asks for nothing that is not known. */
    options.known.size = sizeof options;
    EQUAL(nowait_instance_open(&options.known, &instance), 0);
    EQUAL(nowait_instance_close(instance), 0);
    options.more[1] = 1;
    EQUAL(nowait_instance_open(&options.known, &instance), -E2BIG);
    options.known.size = sizeof options.known;
    EQUAL(nowait_instance_open(&options.known, &instance), 0);
    EQUAL(nowait_instance_close(instance), 0);
    options.known.engine = 99;
    EQUAL(nowait_instance_open(&options.known, &instance), -EINVAL);
    SAYS("engine is 99");

    struct {
        struct nowait_instance_counters known;
        uint64_t more[2];
    } stats;
    memset(&stats, 0xff, sizeof stats);
    stats.known.size = sizeof stats;
    EQUAL(nowait_instance_stats(0, &stats.known), 0);
    EQUAL(stats.known.size, sizeof stats);
    CHECK(stats.known.widened_bytes != UINT64_MAX);
    CHECK(stats.more[0] == 0 && stats.more[1] == 0);
    stats.known.size = 8;
    EQUAL(nowait_instance_stats(0, &stats.known), -EINVAL);
    EQUAL(nowait_instance_stats(0, NULL), -EFAULT);
}

static void *fails(void *unused) {
    CHECK(strcmp(nowait_error_message(), "") == 0);
    EQUAL(nowait_queue_open(NULL), -EFAULT);
    return unused;
}

/* Each thread has its own message. */
static void messages(void) {
    EQUAL(nowait_sync(0, 0), -EBADF);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, fails, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    SAYS("file handle is 0");
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    handles(argv);
    pointers(argv);
    sizes();
    messages();
    return 0;
}
