/* Many records of one file in one call: gather FILE OFFSET:LENGTH... */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <nowait.h>

/* Reads n ranges of an open file into output, one after the other. All or nothing. */
int gather_reads(int fd, const uint64_t *lengths, const uint64_t *offsets, size_t n, void *output) {
    nowait_file file;
    int result = nowait_file_from_descriptor(0, fd, NULL, &file);
    if (result < 0) return result;
    struct nowait_range *ranges = malloc((n > 0 ? n : 1) * sizeof *ranges);
    size_t bytes = 0;
    for (size_t i = 0; ranges != NULL && i < n; i++) {
        ranges[i] = (struct nowait_range){.offset = offsets[i], .length = lengths[i]};
        bytes += lengths[i];
    }
    result = ranges != NULL ? nowait_gather(file, ranges, n, output, bytes, NULL) : -ENOMEM;
    free(ranges);
    nowait_file_close(file);
    return result;
}

int main(int argc, char **argv) {
    if (argc < 3 || argc > 66) {
        fprintf(stderr, "usage: %s FILE OFFSET:LENGTH... (up to 64)\n", argv[0]);
        return 2;
    }
    uint64_t lengths[64], offsets[64];
    size_t n = (size_t)argc - 2, bytes = 0;
    for (size_t i = 0; i < n; i++) {
        if (sscanf(argv[i + 2], "%" SCNu64 ":%" SCNu64, &offsets[i], &lengths[i]) != 2) {
            fprintf(stderr, "%s: not OFFSET:LENGTH\n", argv[i + 2]);
            return 2;
        }
        bytes += lengths[i];
    }
    int fd = open(argv[1], O_RDONLY);
    char *output = malloc(bytes + 1);
    if (fd < 0 || output == NULL) {
        perror(argv[1]);
        return 1;
    }
    if (gather_reads(fd, lengths, offsets, n, output) < 0) {
        fprintf(stderr, "%s\n", nowait_error_message());
        return 1;
    }
    fwrite(output, 1, bytes, stdout);
    free(output);
    return 0;
}
