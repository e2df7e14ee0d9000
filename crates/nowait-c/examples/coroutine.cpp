// Counts the lines of files, all at the same time, on one thread: coroutine FILE... (C++20)

#include <cstdio>
#include <exception>
#include <fcntl.h>
#include <vector>

#include <nowait.hpp>

// A coroutine that runs to its end by itself.
struct detached {
    struct promise_type {
        detached get_return_object() { return {}; }
        std::suspend_never initial_suspend() noexcept { return {}; }
        std::suspend_never final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() { std::terminate(); }
    };
};

static detached count_lines(const nowait::queue &queue, const char *path, int &left, int &failures) {
    try {
        auto file = nowait::file::open(path, O_RDONLY);
        std::vector<char> block(1 << 16);
        std::uint64_t offset = 0, lines = 0;
        while (auto bytes = co_await queue.read(file, block.data(), block.size(), offset)) {
            for (std::int64_t at = 0; at < bytes; at++) {
                lines += block[static_cast<std::size_t>(at)] == '\n';
            }
            offset += static_cast<std::uint64_t>(bytes);
        }
        std::printf("%s: %llu\n", path, static_cast<unsigned long long>(lines));
    } catch (const nowait::error &error) {
        std::fprintf(stderr, "%s\n", error.what());
        failures++;
    }
    left--;
}

int main(int argc, char **argv) {
    auto queue = nowait::queue::open();
    int left = argc - 1, failures = 0;
    for (int i = 1; i < argc; i++) {
        count_lines(queue, argv[i], left, failures);
    }
    while (left > 0) {
        queue.resume(-1);
    }
    return failures > 0;
}
