// nowait.hpp: handles close themselves once, and failures are exceptions with their errno and text.

#include <cstring>
#include <type_traits>

#include <nowait.hpp>

#include "test.h"

static_assert(!std::is_copy_constructible<nowait::file>::value, "a handle has one owner");
static_assert(std::is_nothrow_move_constructible<nowait::file>::value, "and can be moved");
static_assert(sizeof(nowait::file) == sizeof(nowait_file), "it is the number, and nothing else");

template <typename Call> static void throws(int errno_value, const char *text, Call call) {
    try {
        call();
    } catch (const nowait::error &error) {
        EQUAL(error.code().value(), errno_value);
        CHECK(std::strstr(error.what(), text) != nullptr);
        return;
    }
    CHECK(!"it throws");
}

static void handles(char **argv) {
    const std::string path = in_folder(argv, "raii");
    nowait_file number = 0;
    {
        auto file = nowait::file::open(path, O_RDWR | O_CREAT, 0600);
        number = file.get();
        nowait::file moved(std::move(file));
        CHECK(!file && moved && moved.get() == number);
        EQUAL(moved.write_at("0123456789", 10, 0, NOWAIT_WRITE_DURABLE), 10);
        moved.sync();
        EQUAL(moved.size(), 10);
        auto bytes = moved.gather({{7, 2}, {0, 1}});
        CHECK(bytes.size() == 3 && std::memcmp(bytes.data(), "780", 3) == 0);
        throws(ENODATA, "range 1", [&] { moved.gather({{0, 1}, {9, 2}}); });
        auto other = nowait::file::open(path, O_RDONLY);
        nowait_file closed = other.get();
        other = std::move(moved);
        EQUAL(nowait_sync(closed, 0), -EBADF);
        EQUAL(other.get(), number);
    }
    EQUAL(nowait_sync(number, 0), -EBADF);
    throws(ENOENT, "/missing", [&] { nowait::file::open(in_folder(argv, "missing"), O_RDONLY); });
    auto file = nowait::file::open(path, O_RDONLY);
    file.close();
    throws(EBADF, "is 0", [&] { file.close(); });

    nowait_instance_options options = {};
    options.engine = NOWAIT_ENGINE_POOL;
    auto instance = nowait::instance::open(options);
    auto in_it = nowait::file::open(path, O_RDONLY, 0, instance.get());
    char byte = 0;
    EQUAL(in_it.read_at(&byte, 1, 9), 1);
    EQUAL(byte, '9');
    EQUAL(instance.stats().blocking, 2);
}

static void logs(char **argv) {
    nowait_log_options options = {};
    options.create = 1;
    options.segment_bytes = 1 << 20;
    auto log = nowait::log::open(in_folder(argv, "log"), options);
    log.wait(log.append("one"));
    auto reader = nowait::log_reader::open(log);
    nowait_log_record record = {};
    CHECK(reader.next(record) && record.number == 1 && record.length == 3);
    CHECK(!reader.next(record));
    log.close();
    throws(EBADF, "", [&] { log.append("two"); });
}

static void queues(char **argv) {
    auto queue = nowait::queue::open();
    auto file = nowait::file::open(in_folder(argv, "raii"), O_RDWR);
    char bytes[4];
    queue.submit_read(file, bytes, 4, 2, bytes);
    nowait_completion completion = {};
    EQUAL(queue.reap(&completion, 1, 10000), 1);
    CHECK(completion.user == bytes && completion.result == 4 && std::memcmp(bytes, "2345", 4) == 0);
    queue.submit_write(file, "x", 1, 0, 0, nullptr);
    EQUAL(queue.reap(&completion, 1, 10000), 1);
    EQUAL(completion.result, 1);
    CHECK(queue.descriptor() >= 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    handles(argv);
    logs(argv);
    queues(argv);
    return 0;
}
