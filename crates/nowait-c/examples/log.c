/* Appends the lines of its input to a durable log, then prints all that the log has: log DIRECTORY */

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <nowait.h>

static int failed(void) {
    fprintf(stderr, "%s\n", nowait_error_message());
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
        return 2;
    }
    struct nowait_log_options options = {.size = sizeof options, .create = 1, .segment_bytes = 1 << 20};
    nowait_log log;
    if (nowait_log_open(0, argv[1], &options, &log, NULL) < 0) {
        return failed();
    }
    char line[4096];
    uint64_t last = 0;
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (nowait_log_append(log, line, strlen(line), &last) < 0) {
            return failed();
        }
    }
    /* One wait for all of them: a record is durable with everything before it. */
    if (last > 0 && nowait_log_wait(log, last) < 0) {
        return failed();
    }

    nowait_log_reader reader;
    struct nowait_log_record record;
    if (nowait_log_reader_open(log, 1, &reader) < 0) {
        return failed();
    }
    int found;
    while ((found = nowait_log_reader_next(reader, &record)) == 1) {
        printf("%" PRIu64 ": %.*s", record.number, (int)record.length, (const char *)record.bytes);
    }
    nowait_log_reader_close(reader);
    if (found < 0 || nowait_log_close(log) < 0) {
        return failed();
    }
    return 0;
}
