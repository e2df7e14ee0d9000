/* Copies, with progress; and the probe. */

#include <sys/stat.h>

#include <sys/wait.h>

#include "test.h"

enum { FILES = 20, FILE_BYTES = 300000 };

static struct nowait_copy_options copy_options(void) {
    struct nowait_copy_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    return options;
}

static void tree(char **argv) {
    char source[4200], target[4200], name[4300];
    snprintf(source, sizeof source, "%s/source", argv[1]);
    snprintf(target, sizeof target, "%s/target", argv[1]);
    CHECK(mkdir(source, 0755) == 0);
    for (int i = 0; i < FILES; i++) {
        snprintf(name, sizeof name, "source/%d", i);
        EQUAL(nowait_file_close(make_file(argv, name, FILE_BYTES)), 0);
    }
    struct nowait_copy_options options = copy_options();
    options.sync = NOWAIT_COPY_SYNC_ALL;
    options.flags = NOWAIT_COPY_VERIFY | NOWAIT_COPY_COUNT_FIRST;
    const char *sources[] = {source};
    nowait_copy copy = 0;
    EQUAL(nowait_copy_start(sources, 1, target, &options, &copy), 0);
    struct nowait_copy_report report;
    memset(&report, 0, sizeof report);
    report.size = sizeof report;
    EQUAL(nowait_copy_wait(copy, &report), 0);
    EQUAL(nowait_copy_has_ended(copy), 1);
    EQUAL(nowait_copy_wait(copy, NULL), 0);
    EQUAL(report.files, FILES);
    EQUAL(report.directories, 1);
    EQUAL(report.bytes, (long long)FILES * FILE_BYTES);
    EQUAL(report.verified, FILES);
    EQUAL(report.failures + report.warnings + report.is_cancelled, 0);
    struct nowait_copy_state state;
    memset(&state, 0, sizeof state);
    state.size = sizeof state;
    EQUAL(nowait_copy_progress(copy, &state), 0);
    EQUAL(state.files, FILES);
    EQUAL(state.bytes, (long long)FILES * FILE_BYTES);
    EQUAL(state.is_walked, 1);
    EQUAL(nowait_copy_close(copy), 0);
    EQUAL(nowait_copy_close(copy), -EBADF);

    static unsigned char bytes[FILE_BYTES + 1];
    for (int i = 0; i < FILES; i++) {
        nowait_file file = 0;
        snprintf(name, sizeof name, "%s/%d", target, i);
        EQUAL(nowait_file_open(0, name, O_RDONLY, 0, &file), 0);
        EQUAL(nowait_read_at(file, bytes, sizeof bytes, 0), FILE_BYTES);
        check_bytes(bytes, FILE_BYTES, 0);
        EQUAL(nowait_file_close(file), 0);
    }
}

static void failures(char **argv) {
    char missing[4200], into[4300];
    snprintf(missing, sizeof missing, "%s/missing", argv[1]);
    snprintf(into, sizeof into, "%s/source/inside", argv[1]);
    const char *sources[] = {missing};
    nowait_copy copy = 0;
    EQUAL(nowait_copy_start(sources, 1, in_folder(argv, "x"), NULL, &copy), 0);
    struct nowait_copy_report report;
    memset(&report, 0, sizeof report);
    report.size = sizeof report;
    EQUAL(nowait_copy_wait(copy, &report), -ENOENT);
    SAYS("/missing");
    EQUAL(report.failures, 1);
    EQUAL(report.files, 0);
    EQUAL(nowait_copy_close(copy), 0);

    struct nowait_copy_options options = copy_options();
    options.sync = 9;
    EQUAL(nowait_copy_start(sources, 1, "x", &options, &copy), -EINVAL);
    options.sync = 0;
    options.flags = 1U << 31;
    EQUAL(nowait_copy_start(sources, 1, "x", &options, &copy), -EINVAL);
    options.flags = 0;
    options.size = 12;
    EQUAL(nowait_copy_start(sources, 1, "x", &options, &copy), -EINVAL);
}

/* A copy that may not be done soon is cancelled. */
static void cancels(char **argv) {
    char source[4200];
    snprintf(source, sizeof source, "%s/source", argv[1]);
    const char *sources[] = {source};
    struct nowait_copy_options options = copy_options();
    options.bytes_per_second_max = 1000;
    options.flags = NOWAIT_COPY_NO_REFLINK;
    nowait_copy copy = 0;
    EQUAL(nowait_copy_start(sources, 1, in_folder(argv, "cancelled"), &options, &copy), 0);
    EQUAL(nowait_copy_cancel(copy), 0);
    EQUAL(nowait_copy_wait(copy, NULL), -ECANCELED);
    EQUAL(nowait_copy_close(copy), 0);
}

/* A child has none of the threads of its parent's copy: it is told so, and waits for none. */
static void forks(char **argv) {
    char source[4200];
    snprintf(source, sizeof source, "%s/source", argv[1]);
    const char *sources[] = {source};
    struct nowait_copy_options options = copy_options();
    options.bytes_per_second_max = 1000;
    options.flags = NOWAIT_COPY_NO_REFLINK;
    nowait_copy copy = 0;
    EQUAL(nowait_copy_start(sources, 1, in_folder(argv, "forked"), &options, &copy), 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        nowait_queue queue = 0;
        EQUAL(nowait_queue_open(&queue), 0);
        EQUAL(nowait_submit_copy_wait(queue, copy, NULL, NULL), -EINVAL);
        SAYS("belongs to the parent");
        EQUAL(nowait_copy_wait(copy, NULL), -EINVAL);
        EQUAL(nowait_copy_cancel(copy), -EINVAL);
        EQUAL(nowait_copy_has_ended(copy), -EINVAL);
        EQUAL(nowait_copy_close(copy), 0);
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    EQUAL(status, 0);
    EQUAL(nowait_copy_cancel(copy), 0);
    EQUAL(nowait_copy_wait(copy, NULL), -ECANCELED);
    EQUAL(nowait_copy_close(copy), 0);
}

static void probes(char **argv) {
    char *json = NULL;
    EQUAL(nowait_probe(argv[1], NOWAIT_PROBE_SHALLOW, &json), 0);
    CHECK(json != NULL && json[0] == '{' && json[strlen(json) - 1] == '}');
    CHECK(strstr(json, "\"io_uring\"") && strstr(json, "\"scratch\"") && strstr(json, argv[1]));
    nowait_text_free(json);
    EQUAL(nowait_probe(in_folder(argv, "missing"), 0, &json), -ENOENT);
    SAYS("probe");
    EQUAL(nowait_probe(argv[1], 64, &json), -EINVAL);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    tree(argv);
    failures(argv);
    cancels(argv);
    /* As in queue.c. */
    if (getenv("NOWAIT_TEST_WITHOUT_FORK") == NULL) {
        forks(argv);
    }
    probes(argv);
    return 0;
}
