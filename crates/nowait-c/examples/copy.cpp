// Copies a file or a tree, and tells how far it is: copy SOURCE TARGET

#include <cinttypes>
#include <cstdio>

#include <nowait.hpp>

int main(int argc, char **argv) try {
    if (argc != 3) {
        std::fprintf(stderr, "usage: %s SOURCE TARGET\n", argv[0]);
        return 2;
    }
    nowait_copy_options options = {};
    options.sync = NOWAIT_COPY_SYNC_ALL;
    auto copy = nowait::copy::start({argv[1]}, argv[2], options);
    // An event loop would poll the queue's descriptor.
    auto queue = nowait::queue::open();
    queue.submit_copy_wait(copy, nullptr);
    nowait_completion end;
    while (queue.reap(&end, 1, 100) == 0) {
        std::fprintf(stderr, "%" PRIu64 " bytes\r", copy.progress().bytes);
    }
    auto report = copy.wait();
    std::printf("%" PRIu64 " files, %" PRIu64 " bytes\n", report.files, report.bytes);
    return 0;
} catch (const nowait::error &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
