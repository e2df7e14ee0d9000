/* Logs: append, wait, read back, and what a reopened log has. */

#include <dirent.h>
#include <poll.h>
#include <sys/stat.h>

#include "test.h"

static struct nowait_log_options log_options(void) {
    struct nowait_log_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.create = 1;
    options.segment_bytes = 1 << 20;
    return options;
}

/* Flips a bit of the text in the log's file that holds it. */
static int flip(const char *directory, const char *text) {
    static char bytes[2 << 20];
    int flipped = 0;
    DIR *entries = opendir(directory);
    CHECK(entries != NULL);
    for (struct dirent *entry = readdir(entries); entry != NULL; entry = readdir(entries)) {
        static char path[8192];
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        int file = open(path, O_RDWR | O_CLOEXEC);
        if (file < 0)
            continue;
        ssize_t length = read(file, bytes, sizeof bytes);
        for (ssize_t at = 0; at + (ssize_t)strlen(text) <= length; at++) {
            if (memcmp(bytes + at, text, strlen(text)) == 0) {
                bytes[at] ^= 1;
                EQUAL(pwrite(file, bytes + at, 1, at), 1);
                flipped++;
                break;
            }
        }
        close(file);
    }
    closedir(entries);
    return flipped;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    const char *directory = in_folder(argv, "log");
    struct nowait_log_options options = log_options();
    struct nowait_log_recovery recovery;
    memset(&recovery, 0xff, sizeof recovery);
    recovery.size = sizeof recovery;
    nowait_log log = 0;

    /* A log is made only when that is asked for. */
    EQUAL(nowait_log_open(0, directory, NULL, &log, NULL), -ENOENT);
    SAYS("/log");
    recovery.size = 1;
    EQUAL(nowait_log_open(0, directory, &options, &log, &recovery), -EINVAL);
    CHECK(access(directory, F_OK) != 0);
    recovery.size = sizeof recovery;
    options.mode = S_IFDIR | 0750;
    EQUAL(nowait_log_open(0, directory, &options, &log, NULL), -EINVAL);
    SAYS("the mode is 0o40750");
    CHECK(access(directory, F_OK) != 0);
    options.mode = 0750;
    EQUAL(nowait_log_open(0, directory, &options, &log, &recovery), 0);
    struct stat about;
    EQUAL(stat(directory, &about), 0);
    EQUAL(about.st_mode & 07777, 0750);
    EQUAL(recovery.was_created, 1);
    EQUAL(recovery.last_record, 0);
    EQUAL(recovery.next_record, 1);
    nowait_log second = 0;
    EQUAL(nowait_log_open(0, directory, &options, &second, NULL), -EBUSY);

    uint64_t number = 0, durable = 0, appended = 0;
    EQUAL(nowait_log_append(log, "first", 5, &number), 0);
    EQUAL(number, 1);
    EQUAL(nowait_log_append(log, NULL, 0, NULL), 0);
    struct nowait_bytes batch[2] = {{"a", 1}, {"bc", 2}};
    EQUAL(nowait_log_append_batch(log, batch, 2, &number), 0);
    EQUAL(number, 4);
    EQUAL(nowait_log_append_batch(log, batch, 0, &number), -EINVAL);
    batch[1].bytes = NULL;
    EQUAL(nowait_log_append_batch(log, batch, 2, &number), -EFAULT);
    EQUAL(nowait_log_wait(log, 4), 0);
    EQUAL(nowait_log_last(log, &durable, &appended), 0);
    EQUAL(durable, 4);
    EQUAL(appended, 4);
    EQUAL(nowait_log_last(log, NULL, NULL), 0);

    /* By a descriptor: two records, waited for in the opposite order. */
    nowait_queue queue = 0;
    EQUAL(nowait_queue_open(&queue), 0);
    int users[3];
    uint64_t operation = 0;
    EQUAL(nowait_submit_log_wait(queue, log, 6, users + 1, NULL), 0);
    EQUAL(nowait_submit_log_wait(queue, log, 1000, users + 2, &operation), 0);
    EQUAL(nowait_log_append(log, "fifth", 5, &number), 0);
    EQUAL(nowait_submit_log_wait(queue, log, number, users, NULL), 0);
    EQUAL(nowait_log_append(log, "sixth", 5, &number), 0);
    EQUAL(number, 6);
    struct nowait_completion completions[4];
    int seen = 0;
    while (seen != 3) {
        struct pollfd poller = {nowait_queue_descriptor(queue), POLLIN, 0};
        EQUAL(poll(&poller, 1, -1), 1);
        int count = nowait_reap(queue, completions, 4, 0);
        for (int i = 0; i < count; i++) {
            CHECK(completions[i].result >= (completions[i].user == users ? 5 : 6));
            seen |= completions[i].user == users ? 1 : completions[i].user == users + 1 ? 2 : 4;
        }
    }
    EQUAL(nowait_cancel(queue, operation), 0);
    EQUAL(nowait_reap(queue, completions, 4, -1), 1);
    EQUAL(completions[0].result, -ECANCELED);
    CHECK(completions[0].user == users + 2);

    /* Read back while the log is open. */
    nowait_log_reader reader = 0;
    struct nowait_log_record record;
    EQUAL(nowait_log_reader_open(log, 1, &reader), 0);
    const char *expected[] = {"first", "", "a", "bc", "fifth", "sixth"};
    for (uint64_t i = 0; i < 6; i++) {
        EQUAL(nowait_log_reader_next(reader, &record), 1);
        EQUAL(record.number, i + 1);
        EQUAL(record.length, strlen(expected[i]));
        CHECK(memcmp(record.bytes, expected[i], record.length) == 0);
    }
    EQUAL(nowait_log_reader_next(reader, &record), 0);
    EQUAL(nowait_log_append(log, "seventh", 7, &number), 0);
    EQUAL(nowait_log_reader_tail(reader, &record), 0);
    EQUAL(record.number, 7);
    CHECK(record.length == 7 && memcmp(record.bytes, "seventh", 7) == 0);

    EQUAL(nowait_log_truncate_after(log, 4), 0);
    EQUAL(nowait_log_truncate_after(log, 6), -ENODATA);
    EQUAL(nowait_log_append(log, "new fifth", 9, &number), 0);
    EQUAL(number, 5);
    EQUAL(nowait_log_truncate_before(log, 2), 0);
    static char large[2 << 20];
    EQUAL(nowait_log_append(log, large, sizeof large, &number), -EINVAL);
    SAYS("append to");

    struct nowait_log_counters stats;
    memset(&stats, 0, sizeof stats);
    stats.size = sizeof stats;
    EQUAL(nowait_log_wait(log, 5), 0);
    EQUAL(nowait_log_stats(log, &stats), 0);
    CHECK(stats.records >= 8 && stats.blocks > 0 && stats.written_bytes > stats.payload_bytes);

    /* What waits for a record that does not come ends with the log. */
    EQUAL(nowait_submit_log_wait(queue, log, 1000, NULL, NULL), 0);
    EQUAL(nowait_log_close(log), 0);
    EQUAL(nowait_log_close(log), -EBADF);
    EQUAL(nowait_log_append(log, "x", 1, NULL), -EBADF);
    EQUAL(nowait_reap(queue, completions, 4, -1), 1);
    EQUAL(completions[0].result, -EBADF);
    EQUAL(nowait_log_reader_close(reader), 0);
    EQUAL(nowait_queue_close(queue), 0);

    options.create = 0;
    options.scan_tail = 1;
    EQUAL(nowait_log_open(0, directory, &options, &log, &recovery), 0);
    EQUAL(recovery.was_created, 0);
    EQUAL(recovery.was_closed, 1);
    EQUAL(recovery.last_record, 5);
    EQUAL(recovery.damaged_places, 0);
    EQUAL(nowait_log_reader_open(log, 5, &reader), 0);
    EQUAL(nowait_log_reader_next(reader, &record), 1);
    CHECK(record.length == 9 && memcmp(record.bytes, "new fifth", 9) == 0);
    EQUAL(nowait_log_reader_close(reader), 0);

    /* What is given up of a log that is not open. */
    EQUAL(nowait_log_truncate_closed(0, directory, 3, &number), -EBUSY);
    EQUAL(nowait_log_close(log), 0);
    number = 0;
    EQUAL(nowait_log_truncate_closed(0, directory, 3, &number), 0);
    CHECK(number >= 1 && number <= 3);
    EQUAL(nowait_log_truncate_closed(0, directory, 1, NULL), 0);
    EQUAL(nowait_log_truncate_closed(0, "/nowhere/at/all", 3, &number), -ENOENT);
    EQUAL(nowait_log_open(0, directory, &options, &log, &recovery), 0);
    EQUAL(recovery.last_record, 5);

    /* A copy of an open log has what is durable, whoever makes it. */
    static char copied[8192], other[8192], third[8192];
    snprintf(copied, sizeof copied, "%s/copied", argv[1]);
    snprintf(other, sizeof other, "%s/other", argv[1]);
    snprintf(third, sizeof third, "%s/third", argv[1]);
    EQUAL(nowait_log_backup(log, copied), 0);
    EQUAL(nowait_log_backup(log, copied), -EINVAL);
    SAYS("/copied");
    EQUAL(nowait_log_backup_directory(0, directory, other), 0);
    EQUAL(nowait_log_backup_directory(0, third, third), -ENOENT);
    CHECK(access(third, F_OK) != 0);
    for (int which = 0; which < 2; which++) {
        nowait_log copy = 0;
        EQUAL(nowait_log_open(0, which == 0 ? copied : other, NULL, &copy, &recovery), 0);
        EQUAL(recovery.last_record, 5);
        EQUAL(nowait_log_close(copy), 0);
    }

    /* A reader of an open log goes on behind damage where it is asked to. */
    EQUAL(nowait_log_append(log, "behind", 6, &number), 0);
    EQUAL(nowait_log_wait(log, number), 0);
    EQUAL(flip(directory, "new fifth"), 1);
    EQUAL(nowait_log_reader_open(log, 5, &reader), 0);
    EQUAL(nowait_log_reader_next(reader, &record), -EUCLEAN);
    EQUAL(nowait_log_reader_next(reader, &record), -EUCLEAN);
    EQUAL(nowait_log_reader_skip_damage(reader, 1), 0);
    EQUAL(nowait_log_reader_next(reader, &record), -EUCLEAN);
    SAYS("record 5 is lost");
    EQUAL(nowait_log_reader_next(reader, &record), 1);
    EQUAL(record.number, 6);
    CHECK(record.length == 6 && memcmp(record.bytes, "behind", 6) == 0);
    EQUAL(nowait_log_reader_close(reader), 0);
    EQUAL(nowait_log_backup(log, third), -EUCLEAN);
    CHECK(access(third, F_OK) != 0);
    EQUAL(nowait_log_close(log), 0);
    return 0;
}
