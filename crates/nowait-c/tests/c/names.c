/* Names: renames, removals, directories, and files that are replaced as a whole. */

#include <dirent.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "test.h"

static char one[4200], two[4200], missing[4200], dir[4200];

static nowait_queue open_queue(void) {
    nowait_queue queue = 0;
    EQUAL(nowait_queue_open(&queue), 0);
    return queue;
}

static int64_t only_result(nowait_queue queue, const char *says) {
    struct nowait_completion completion;
    EQUAL(nowait_reap(queue, &completion, 1, -1), 1);
    CHECK((completion.message == NULL) == (completion.result >= 0));
    if (completion.result < 0) {
        CHECK(says != NULL && strstr(completion.message, says) != NULL);
    }
    return completion.result;
}

static int is_there(const char *path) {
    struct stat stat_;
    return lstat(path, &stat_) == 0;
}

static void put(const char *path, const char *text) {
    FILE *out = fopen(path, "wb");
    CHECK(out != NULL && fputs(text, out) >= 0 && fclose(out) == 0);
}

static void holds(const char *path, const char *text) {
    char bytes[64] = "";
    FILE *in = fopen(path, "rb");
    CHECK(in != NULL);
    size_t length = fread(bytes, 1, sizeof bytes - 1, in);
    CHECK(fclose(in) == 0);
    CHECK(length == strlen(text) && strcmp(bytes, text) == 0);
}

/* How many names a directory has beside "." and "..". */
static int names_in(const char *path) {
    DIR *open = opendir(path);
    CHECK(open != NULL);
    int count = -2;
    while (readdir(open) != NULL) {
        count++;
    }
    CHECK(closedir(open) == 0);
    return count;
}

static void renames(nowait_queue queue) {
    const uint32_t flags[] = {0, NOWAIT_NAME_DURABLE};
    for (int i = 0; i < 2; i++) {
        put(one, "one");
        put(two, "two");
        EQUAL(nowait_rename(0, one, two, flags[i] | NOWAIT_RENAME_NEW), -EEXIST);
        SAYS("rename");
        SAYS("/two");
        EQUAL(nowait_rename(0, one, two, flags[i]), 0);
        CHECK(!is_there(one));
        holds(two, "one");
        EQUAL(nowait_rename(0, two, one, flags[i] | NOWAIT_RENAME_NEW), 0);
        EQUAL(nowait_rename(0, two, one, flags[i]), -ENOENT);

        put(two, "two");
        EQUAL(nowait_submit_rename(queue, 0, one, two, flags[i] | NOWAIT_RENAME_NEW, NULL, NULL), 0);
        EQUAL(only_result(queue, "/two"), -EEXIST);
        EQUAL(nowait_submit_rename(queue, 0, one, two, flags[i], NULL, NULL), 0);
        EQUAL(only_result(queue, NULL), 0);
        holds(two, "one");

        EQUAL(nowait_remove_file(0, two, flags[i]), 0);
        EQUAL(nowait_remove_file(0, two, flags[i]), -ENOENT);
        SAYS("remove");
        put(two, "two");
        EQUAL(nowait_submit_remove_file(queue, 0, two, flags[i], NULL, NULL), 0);
        EQUAL(only_result(queue, NULL), 0);
        EQUAL(nowait_submit_remove_file(queue, 0, two, flags[i], NULL, NULL), 0);
        EQUAL(only_result(queue, "/two"), -ENOENT);

        EQUAL(nowait_create_dir(0, dir, flags[i]), 0);
        EQUAL(nowait_create_dir(0, dir, flags[i]), -EEXIST);
        EQUAL(nowait_remove_file(0, dir, flags[i]), -EISDIR);
        put(one, "one");
        char within[4300];
        snprintf(within, sizeof within, "%s/one", dir);
        EQUAL(nowait_rename(0, one, within, flags[i]), 0);
        EQUAL(nowait_remove_dir(0, dir, flags[i]), -ENOTEMPTY);
        EQUAL(nowait_rename(0, within, one, flags[i]), 0);
        EQUAL(nowait_remove_dir(0, dir, flags[i]), 0);
        EQUAL(nowait_remove_dir(0, one, flags[i]), -ENOTDIR);
        EQUAL(nowait_submit_create_dir(queue, 0, dir, flags[i], NULL, NULL), 0);
        EQUAL(only_result(queue, NULL), 0);
        EQUAL(nowait_submit_create_dir(queue, 0, dir, flags[i], NULL, NULL), 0);
        EQUAL(only_result(queue, "/dir"), -EEXIST);
        EQUAL(nowait_submit_remove_dir(queue, 0, dir, flags[i], NULL, NULL), 0);
        EQUAL(only_result(queue, NULL), 0);
        EQUAL(nowait_submit_remove_dir(queue, 0, dir, flags[i], NULL, NULL), 0);
        EQUAL(only_result(queue, "/dir"), -ENOENT);
    }
}

static void syncs(nowait_queue queue, char **argv) {
    put(one, "one");
    EQUAL(nowait_sync_dir(0, argv[1], 0), 0);
    EQUAL(nowait_sync_dir(0, one, NOWAIT_SYNC_PARENT), 0);
    /* The name need not be there: it may have been removed. */
    EQUAL(nowait_sync_dir(0, missing, NOWAIT_SYNC_PARENT), 0);
    EQUAL(nowait_sync_dir(0, one, 0), -ENOTDIR);
    SAYS("sync");
    EQUAL(nowait_sync_dir(0, missing, 0), -ENOENT);
    EQUAL(nowait_submit_sync_dir(queue, 0, argv[1], 0, NULL, NULL), 0);
    EQUAL(only_result(queue, NULL), 0);
    EQUAL(nowait_submit_sync_dir(queue, 0, one, NOWAIT_SYNC_PARENT, NULL, NULL), 0);
    EQUAL(only_result(queue, NULL), 0);
    EQUAL(nowait_submit_sync_dir(queue, 0, one, 0, NULL, NULL), 0);
    EQUAL(only_result(queue, "/one"), -ENOTDIR);
    EQUAL(nowait_sync_dir(0, "/", NOWAIT_SYNC_PARENT), 0);
    /* Of a name without a directory it is the working one. */
    CHECK(chdir(argv[1]) == 0);
    EQUAL(nowait_sync_dir(0, "one", NOWAIT_SYNC_PARENT), 0);
    EQUAL(nowait_rename(0, "one", "two", NOWAIT_NAME_DURABLE), 0);
    EQUAL(nowait_write_atomic(0, "three", "3", 1, 0), 0);
    EQUAL(nowait_remove_file(0, "three", NOWAIT_NAME_DURABLE), 0);
    EQUAL(nowait_remove_file(0, "two", NOWAIT_NAME_DURABLE), 0);
}

static void whole_files(nowait_queue queue, char **argv) {
    EQUAL(names_in(argv[1]), 0);
    EQUAL(nowait_write_atomic(0, one, "first", 5, 0), 0);
    holds(one, "first");
    nowait_file file = 0;
    char bytes[16];
    EQUAL(nowait_file_open(0, one, O_RDONLY, 0, &file), 0);
    EQUAL(nowait_write_atomic(0, one, "second", 6, 0), 0);
    holds(one, "second");
    /* Those who have the old one open keep it. */
    EQUAL(nowait_read_at(file, bytes, sizeof bytes, 0), 5);
    EQUAL(nowait_file_close(file), 0);
    EQUAL(nowait_write_atomic(0, one, NULL, 0, 0), 0);
    holds(one, "");
    char *third = strdup("third");
    CHECK(third != NULL);
    EQUAL(nowait_submit_write_atomic(queue, 0, one, third, 5, 0, third, NULL), 0);
    EQUAL(only_result(queue, NULL), 0);
    free(third);
    holds(one, "third");
    EQUAL(names_in(argv[1]), 1);

    EQUAL(nowait_write_atomic(0, missing, "x", 1, 0), -ENOENT);
    SAYS("open");
    SAYS(missing);
    SAYS("create the directory");
    EQUAL(nowait_create_dir(0, dir, 0), 0);
    EQUAL(nowait_write_atomic(0, dir, "x", 1, 0), -EISDIR);
    SAYS("rename");
    SAYS("name a file");
    SAYS("cannot take this name");
    EQUAL(nowait_submit_write_atomic(queue, 0, dir, "x", 1, 0, NULL, NULL), 0);
    EQUAL(only_result(queue, "rename"), -EISDIR);
    EQUAL(nowait_remove_dir(0, dir, 0), 0);
    EQUAL(nowait_write_atomic(0, "/", "x", 1, 0), -EINVAL);
    SAYS("names no file");
    EQUAL(nowait_write_atomic(0, one, "x", 1, 1), -EINVAL);
    EQUAL(nowait_write_atomic(0, one, NULL, 1, 0), -EFAULT);
    EQUAL(nowait_write_atomic(0, NULL, "x", 1, 0), -EFAULT);
    EQUAL(nowait_write_atomic(queue, one, "x", 1, 0), -EBADF);

    /* Given up at any moment: the old contents or the new, and the memory is ours again. */
    put(one, "old");
    enum { LENGTH = 3 << 20 };
    int cancelled = 0;
    for (int i = 0; i < 20; i++) {
        char *bytes_ = (char *)calloc(1, LENGTH);
        CHECK(bytes_ != NULL);
        uint64_t operation = 0;
        EQUAL(nowait_submit_write_atomic(queue, 0, two, bytes_, LENGTH, 0, NULL, &operation), 0);
        EQUAL(nowait_cancel(queue, operation), 0);
        int64_t result = only_result(queue, "cancelled");
        CHECK(result == 0 || result == -ECANCELED);
        cancelled += result != 0;
        memset(bytes_, 0xee, LENGTH);
        free(bytes_);
        struct stat stat_;
        CHECK(stat(two, &stat_) < 0 || stat_.st_size == LENGTH);
    }
    printf("%d of 20 cancelled\n", cancelled);
}

static void refused(nowait_queue queue) {
    EQUAL(nowait_rename(0, NULL, two, 0), -EFAULT);
    SAYS("from is NULL");
    EQUAL(nowait_rename(0, one, NULL, 0), -EFAULT);
    EQUAL(nowait_rename(0, one, two, 4), -EINVAL);
    EQUAL(nowait_rename(7, one, two, 0), -EBADF);
    EQUAL(nowait_rename(0, "", "", 0), -ENOENT);
    EQUAL(nowait_rename(0, missing, two, NOWAIT_NAME_DURABLE), -ENOENT);
    EQUAL(nowait_remove_file(0, NULL, 0), -EFAULT);
    EQUAL(nowait_remove_file(0, one, NOWAIT_RENAME_NEW), -EINVAL);
    EQUAL(nowait_create_dir(0, NULL, 0), -EFAULT);
    EQUAL(nowait_create_dir(0, one, 8), -EINVAL);
    EQUAL(nowait_remove_dir(0, NULL, 0), -EFAULT);
    EQUAL(nowait_sync_dir(0, NULL, 0), -EFAULT);
    EQUAL(nowait_sync_dir(0, one, 1), -EINVAL);
    EQUAL(nowait_sync_dir(0, "", NOWAIT_SYNC_PARENT), -ENOENT);
    EQUAL(nowait_submit_rename(queue, 0, one, NULL, 0, NULL, NULL), -EFAULT);
    EQUAL(nowait_submit_rename(0, 0, one, two, 0, NULL, NULL), -EBADF);
    EQUAL(nowait_submit_remove_file(queue, 0, one, 64, NULL, NULL), -EINVAL);
    EQUAL(nowait_submit_create_dir(queue, 0, NULL, 0, NULL, NULL), -EFAULT);
    EQUAL(nowait_submit_sync_dir(queue, 0, NULL, 0, NULL, NULL), -EFAULT);
    EQUAL(nowait_submit_write_atomic(queue, 0, one, NULL, 1, 0, NULL, NULL), -EFAULT);
    EQUAL(nowait_submit_write_atomic(0, 0, one, "x", 1, 0, NULL, NULL), -EBADF);
    EQUAL(nowait_queue_operations(queue), 0);
}

/* A child changes names, with a queue of its own. */
static void forks(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        EQUAL(nowait_write_atomic(0, one, "child's", 7, 0), 0);
        EQUAL(nowait_rename(0, one, two, NOWAIT_NAME_DURABLE), 0);
        nowait_queue queue = open_queue();
        EQUAL(nowait_submit_rename(queue, 0, two, one, NOWAIT_NAME_DURABLE, NULL, NULL), 0);
        EQUAL(only_result(queue, NULL), 0);
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    EQUAL(status, 0);
    holds(one, "child's");
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    snprintf(one, sizeof one, "%s/one", argv[1]);
    snprintf(two, sizeof two, "%s/two", argv[1]);
    snprintf(dir, sizeof dir, "%s/dir", argv[1]);
    snprintf(missing, sizeof missing, "%s/missing/name", argv[1]);
    /* The directory of this one is missing too; of that one, only the name. */
    nowait_queue queue = open_queue();
    refused(queue);
    renames(queue);
    EQUAL(nowait_remove_file(0, one, 0), 0);
    snprintf(missing, sizeof missing, "%s/missing", argv[1]);
    syncs(queue, argv);
    snprintf(missing, sizeof missing, "%s/missing/name", argv[1]);
    whole_files(queue, argv);
    if (getenv("NOWAIT_TEST_WITHOUT_FORK") == NULL) {
        forks();
    }
    EQUAL(nowait_queue_close(queue), 0);
    return 0;
}
