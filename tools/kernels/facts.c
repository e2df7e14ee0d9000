// Kernel facts on which nowait relies, without nowait. Usage: facts FOLDER...
// For each folder, whether appends go to the end: by RWF_APPEND through the page cache and past it, and by O_APPEND.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/uio.h>
#include <unistd.h>

enum { BLOCK = 4096 };

// Writes a block of A at 0, appends a block of B, and says what the file is then.
static void append(const char *folder, const char *how, int open_flags, int write_flags) {
    char path[4096];
    snprintf(path, sizeof path, "%s/facts", folder);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC | open_flags, 0600);
    if (file < 0) {
        printf("@ fact append %s, %s: cannot open: %s\n", folder, how, strerror(errno));
        return;
    }
    void *memory;
    if (posix_memalign(&memory, BLOCK, BLOCK) != 0)
        abort();
    memset(memory, 'A', BLOCK);
    struct iovec block = {memory, BLOCK};
    if (pwritev2(file, &block, 1, 0, 0) != BLOCK)
        printf("@ fact append %s, %s: cannot write: %s\n", folder, how, strerror(errno));
    memset(memory, 'B', BLOCK);
    ssize_t n = pwritev2(file, &block, 1, 0, write_flags);
    int failed = errno;
    struct stat state = {0};
    char first = 0;
    int reader = open(path, O_RDONLY);
    if (fstat(file, &state) != 0 || pread(reader, &first, 1, 0) != 1)
        printf("@ fact append %s, %s: cannot look: %s\n", folder, how, strerror(errno));
    close(reader);
    close(file);
    unlink(path);
    free(memory);
    const char *verdict = state.st_size == 2 * BLOCK && first == 'A' ? "right"
                          : n == BLOCK                               ? "WRONG: overwritten, and said to be done"
                                                                     : "refused";
    printf("@ fact append %s, %s: %s (answer %zd%s%s)\n", folder, how, verdict, n, n < 0 ? ", " : "",
           n < 0 ? strerror(failed) : "");
}

// What file system a device's descriptor claims to be on, and whether it takes direct I/O.
static void device(const char *path) {
    struct statfs system;
    int file = open(path, O_RDONLY | O_DIRECT);
    if (file < 0 || fstatfs(file, &system) != 0)
        printf("@ fact device %s: %s\n", path, strerror(errno));
    else
        printf("@ fact device %s: opens with O_DIRECT, and claims the file system 0x%lx%s\n", path, (long)system.f_type,
               system.f_type == 0x01021994 ? " (tmpfs)" : "");
    if (file >= 0)
        close(file);
}

int main(int count, char **arguments) {
    for (int i = 1; i < count; i++) {
        if (strncmp(arguments[i], "/dev/", 5) == 0) {
            device(arguments[i]);
            continue;
        }
        append(arguments[i], "RWF_APPEND", 0, RWF_APPEND);
        append(arguments[i], "RWF_APPEND and O_DIRECT", O_DIRECT, RWF_APPEND);
        append(arguments[i], "O_APPEND", O_APPEND, 0);
    }
    return 0;
}
