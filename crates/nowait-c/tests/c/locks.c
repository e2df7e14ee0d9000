/* Locks of files and of ranges: who is excluded, who shares them, and when they end. */

#include <sys/wait.h>

#include "test.h"

static nowait_file open_file(char **argv, int flags) {
    nowait_file file = 0;
    EQUAL(nowait_file_open(0, in_folder(argv, "locked"), flags, 0, &file), 0);
    return file;
}

static void whole_files(char **argv) {
    nowait_file one = open_file(argv, O_RDWR), two = open_file(argv, O_RDONLY);
    EQUAL(nowait_file_try_lock(one, NOWAIT_LOCK_EXCLUSIVE), 1);
    EQUAL(nowait_file_try_lock(one, NOWAIT_LOCK_EXCLUSIVE), 1);
    EQUAL(nowait_file_try_lock(two, NOWAIT_LOCK_SHARED), 0);
    EQUAL(nowait_file_try_lock(two, NOWAIT_LOCK_EXCLUSIVE), 0);
    EQUAL(nowait_file_unlock(two), 0);
    EQUAL(nowait_file_try_lock(two, NOWAIT_LOCK_SHARED), 0);
    EQUAL(nowait_file_unlock(one), 0);
    EQUAL(nowait_file_try_lock(two, NOWAIT_LOCK_SHARED), 1);
    EQUAL(nowait_file_try_lock(one, NOWAIT_LOCK_SHARED), 1);
    EQUAL(nowait_file_try_lock(one, NOWAIT_LOCK_EXCLUSIVE), 0);
    EQUAL(nowait_file_close(two), 0);
    EQUAL(nowait_file_try_lock(one, NOWAIT_LOCK_EXCLUSIVE), 1);
    EQUAL(nowait_file_close(one), 0);
}

static void ranges(char **argv) {
    nowait_file one = open_file(argv, O_RDWR), two = open_file(argv, O_RDWR), reader = open_file(argv, O_RDONLY);
    EQUAL(nowait_file_try_lock_range(one, NOWAIT_LOCK_EXCLUSIVE, 1 << 30, 10), 1);
    EQUAL(nowait_file_try_lock_range(two, NOWAIT_LOCK_EXCLUSIVE, 1 << 30, 1), 0);
    EQUAL(nowait_file_try_lock_range(two, NOWAIT_LOCK_SHARED, 0, 0), 0);
    EQUAL(nowait_file_try_lock_range(two, NOWAIT_LOCK_EXCLUSIVE, 0, 1 << 30), 1);
    EQUAL(nowait_file_try_lock_range(two, NOWAIT_LOCK_EXCLUSIVE, (1 << 30) + 10, 0), 1);
    EQUAL(nowait_file_is_range_locked(two, NOWAIT_LOCK_SHARED, 1 << 30, 1), 1);
    EQUAL(nowait_file_is_range_locked(one, NOWAIT_LOCK_EXCLUSIVE, 1 << 30, 10), 0);
    EQUAL(nowait_file_is_range_locked(reader, NOWAIT_LOCK_EXCLUSIVE, 0, 0), 1);
    /* Reads, writes, and locks of the whole file go on. */
    char byte = 'x';
    EQUAL(nowait_write_at(one, &byte, 1, 0, 0), 1);
    EQUAL(nowait_file_try_lock(reader, NOWAIT_LOCK_EXCLUSIVE), 1);
    /* What is locked changes its kind. */
    EQUAL(nowait_file_try_lock_range(one, NOWAIT_LOCK_SHARED, 1 << 30, 10), 1);
    EQUAL(nowait_file_try_lock_range(reader, NOWAIT_LOCK_SHARED, 1 << 30, 10), 1);
    EQUAL(nowait_file_try_lock_range(one, NOWAIT_LOCK_EXCLUSIVE, 1 << 30, 10), 0);
    EQUAL(nowait_file_try_lock_range(two, NOWAIT_LOCK_EXCLUSIVE, 1 << 30, 10), 0);
    EQUAL(nowait_file_unlock_range(reader, 0, 0), 0);
    EQUAL(nowait_file_try_lock_range(one, NOWAIT_LOCK_EXCLUSIVE, 1 << 30, 10), 1);

    EQUAL(nowait_file_try_lock_range(reader, NOWAIT_LOCK_EXCLUSIVE, 5, 1), -EACCES);
    SAYS("lock");
    SAYS("/locked");
    SAYS("open it for writing");

    /* The close of another open, or of a descriptor of the caller's, leaves them. */
    EQUAL(nowait_file_close(open_file(argv, O_RDWR)), 0);
    CHECK(close(open(in_folder(argv, "locked"), O_RDONLY)) == 0);
    EQUAL(nowait_append(one, &byte, 1, 0), 1);
    EQUAL(nowait_file_is_range_locked(reader, NOWAIT_LOCK_SHARED, 1 << 30, 10), 1);
    /* Record locks are in the way, and these in theirs. */
    int descriptor = open(in_folder(argv, "locked"), O_RDWR);
    CHECK(descriptor >= 0);
    struct flock record;
    memset(&record, 0, sizeof record);
    record.l_type = F_WRLCK;
    record.l_whence = SEEK_SET;
    record.l_start = 1 << 30;
    record.l_len = 1;
    CHECK(fcntl(descriptor, F_SETLK, &record) < 0 && errno == EAGAIN);
    EQUAL(nowait_file_unlock_range(one, 1 << 30, 1), 0);
    CHECK(fcntl(descriptor, F_SETLK, &record) == 0);
    EQUAL(nowait_file_try_lock_range(one, NOWAIT_LOCK_SHARED, 1 << 30, 1), 0);
    CHECK(close(descriptor) == 0);
    EQUAL(nowait_file_try_lock_range(one, NOWAIT_LOCK_SHARED, 1 << 30, 1), 1);

    /* They end with the open. */
    EQUAL(nowait_file_close(one), 0);
    EQUAL(nowait_file_try_lock_range(reader, NOWAIT_LOCK_SHARED, 1 << 30, 10), 1);
    EQUAL(nowait_file_close(two), 0);
    EQUAL(nowait_file_try_lock_range(reader, NOWAIT_LOCK_SHARED, 0, 0), 1);
    EQUAL(nowait_file_close(reader), 0);
}

/* A child shares the locks of the parent's opens: it may unlock them, and keeps them when the parent
 * closes. */
static void forks(char **argv) {
    nowait_file file = open_file(argv, O_RDWR), other = open_file(argv, O_RDWR);
    EQUAL(nowait_file_try_lock_range(file, NOWAIT_LOCK_EXCLUSIVE, 0, 10), 1);
    EQUAL(nowait_file_try_lock(file, NOWAIT_LOCK_EXCLUSIVE), 1);
    int up[2], down[2];
    CHECK(pipe(up) == 0 && pipe(down) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    char byte = 0;
    if (child == 0) {
        CHECK(close(down[1]) == 0);
        EQUAL(nowait_file_try_lock_range(file, NOWAIT_LOCK_EXCLUSIVE, 0, 10), 1);
        EQUAL(nowait_file_try_lock_range(other, NOWAIT_LOCK_EXCLUSIVE, 0, 1), 0);
        EQUAL(nowait_file_unlock_range(file, 0, 5), 0);
        nowait_file own = open_file(argv, O_RDWR);
        EQUAL(nowait_file_try_lock_range(own, NOWAIT_LOCK_EXCLUSIVE, 0, 6), 0);
        EQUAL(nowait_file_close(own), 0);
        CHECK(write(up[1], &byte, 1) == 1);
        /* Until the parent has seen that its close left them. */
        CHECK(read(down[0], &byte, 1) == 1);
        _exit(0);
    }
    CHECK(read(up[0], &byte, 1) == 1);
    EQUAL(nowait_file_try_lock_range(other, NOWAIT_LOCK_EXCLUSIVE, 0, 5), 1);
    EQUAL(nowait_file_close(file), 0);
    EQUAL(nowait_file_try_lock_range(other, NOWAIT_LOCK_EXCLUSIVE, 5, 1), 0);
    EQUAL(nowait_file_try_lock(other, NOWAIT_LOCK_SHARED), 0);
    CHECK(write(down[1], &byte, 1) == 1);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    EQUAL(status, 0);
    EQUAL(nowait_file_try_lock_range(other, NOWAIT_LOCK_EXCLUSIVE, 5, 1), 1);
    EQUAL(nowait_file_try_lock(other, NOWAIT_LOCK_SHARED), 1);
    EQUAL(nowait_file_close(other), 0);
    CHECK(close(up[0]) == 0 && close(up[1]) == 0 && close(down[0]) == 0 && close(down[1]) == 0);
}

static void refused(char **argv) {
    nowait_file file = open_file(argv, O_RDWR);
    const uint32_t kinds[] = {0, 3, UINT32_MAX};
    for (int i = 0; i < 3; i++) {
        EQUAL(nowait_file_try_lock(file, kinds[i]), -EINVAL);
        SAYS("give NOWAIT_LOCK_SHARED or");
        EQUAL(nowait_file_try_lock_range(file, kinds[i], 0, 1), -EINVAL);
        EQUAL(nowait_file_is_range_locked(file, kinds[i], 0, 1), -EINVAL);
    }
    const uint64_t beyond[][2] = {{UINT64_MAX, 1}, {1, UINT64_MAX}, {(uint64_t)1 << 63, 0}, {INT64_MAX, 1}};
    for (int i = 0; i < 4; i++) {
        EQUAL(nowait_file_try_lock_range(file, NOWAIT_LOCK_SHARED, beyond[i][0], beyond[i][1]), -EOVERFLOW);
        EQUAL(nowait_file_unlock_range(file, beyond[i][0], beyond[i][1]), -EOVERFLOW);
        EQUAL(nowait_file_is_range_locked(file, NOWAIT_LOCK_SHARED, beyond[i][0], beyond[i][1]), -EOVERFLOW);
    }
    EQUAL(nowait_file_close(file), 0);
    EQUAL(nowait_file_try_lock(file, NOWAIT_LOCK_SHARED), -EBADF);
    EQUAL(nowait_file_unlock(file), -EBADF);
    EQUAL(nowait_file_try_lock_range(file, NOWAIT_LOCK_SHARED, 0, 1), -EBADF);
    EQUAL(nowait_file_unlock_range(file, 0, 1), -EBADF);
    EQUAL(nowait_file_is_range_locked(file, NOWAIT_LOCK_SHARED, 0, 1), -EBADF);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    EQUAL(nowait_file_close(make_file(argv, "locked", 10)), 0);
    whole_files(argv);
    ranges(argv);
    if (getenv("NOWAIT_TEST_WITHOUT_FORK") == NULL) {
        forks(argv);
    }
    refused(argv);
    return 0;
}
