/* Sums the bytes of a file by 32 reads in flight, in an epoll loop: epoll FILE */

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/epoll.h>

#include <nowait.h>

enum { IN_FLIGHT = 32, BLOCK_BYTES = 4096 };

static unsigned char blocks[IN_FLIGHT][BLOCK_BYTES];

static int failed(const char *message) {
    fprintf(stderr, "%s\n", message);
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s FILE\n", argv[0]);
        return 2;
    }
    nowait_file file;
    nowait_queue queue;
    uint64_t size;
    if (nowait_file_open(0, argv[1], O_RDONLY, 0, &file) < 0 || nowait_file_size(file, &size) < 0 ||
        nowait_queue_open(&queue) < 0) {
        return failed(nowait_error_message());
    }
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, nowait_queue_descriptor(queue), &event) < 0) {
        return failed("epoll");
    }

    uint64_t next = 0, sum = 0;
    size_t in_flight = 0, ready = 0;
    struct nowait_read reads[IN_FLIGHT];
    for (; ready < IN_FLIGHT && next < size; ready++, next += BLOCK_BYTES) {
        reads[ready] = (struct nowait_read){file, blocks[ready], BLOCK_BYTES, next, blocks[ready], 0};
    }
    while (in_flight + ready > 0) {
        if (nowait_submit_reads(queue, reads, ready) < 0) {
            return failed(nowait_error_message());
        }
        in_flight += ready;
        ready = 0;
        /* It may be interrupted by a completion: then there is something, or nothing, to reap. */
        epoll_wait(epoll, &event, 1, -1);
        struct nowait_completion completions[IN_FLIGHT];
        int count = nowait_reap(queue, completions, IN_FLIGHT, 0);
        if (count < 0) {
            return failed(nowait_error_message());
        }
        for (int i = 0; i < count; i++, in_flight--) {
            if (completions[i].result < 0) {
                return failed(completions[i].message);
            }
            unsigned char *block = completions[i].user;
            for (int64_t at = 0; at < completions[i].result; at++) {
                sum += block[at];
            }
            if (next < size) {
                reads[ready++] = (struct nowait_read){file, block, BLOCK_BYTES, next, block, 0};
                next += BLOCK_BYTES;
            }
        }
    }
    printf("%" PRIu64 "\n", sum);
    nowait_queue_close(queue);
    nowait_file_close(file);
    return 0;
}
