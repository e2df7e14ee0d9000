// nowait.hpp: handles close themselves once, and failures are exceptions with their errno and text.

#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>

#include <nowait.hpp>

#include "test.h"

static_assert(!std::is_copy_constructible<nowait::file>::value, "a handle has one owner");
static_assert(std::is_nothrow_move_constructible<nowait::file>::value, "and can be moved");
static_assert(std::is_nothrow_copy_constructible<nowait::error>::value, "an exception is copied without one");
static_assert(sizeof(nowait::file) == sizeof(nowait_file), "it is the number, and nothing else");

template <typename Call> static void throws(int errno_value, const char *text, Call call) {
    try {
        call();
    } catch (const nowait::error &error) {
        EQUAL(error.code().value(), errno_value);
        CHECK(std::strstr(error.what(), text) != nullptr);
        EQUAL(std::strcmp(error.what(), nowait_error_message()), 0);
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

static void changes(char **argv) {
    const std::string one = in_folder(argv, "one"), two = in_folder(argv, "two"), dir = in_folder(argv, "dir");
    nowait::write_atomic(one, "0123");
    auto file = nowait::file::open(one, O_RDWR), other = nowait::file::open(one, O_RDWR);
    file.append("45", 2);
    char bytes[8] = {};
    iovec pieces[2] = {{bytes, 1}, {bytes + 4, 4}};
    EQUAL(file.read_vectored_at(pieces, 2, 2), 4);
    CHECK(bytes[0] == '2' && std::memcmp(bytes + 4, "345", 4) == 0);
    EQUAL(file.write_vectored_at(pieces, 2, 6), 5);
    file.set_length(7);
    file.advise(0, 0, NOWAIT_ADVICE_RANDOM);
    throws(EINVAL, "how is 9", [&] { file.allocate(9, 0, 1); });
    nowait_metadata known = file.metadata();
    EQUAL(known.length, 7);
    CHECK(file.try_lock_range(NOWAIT_LOCK_EXCLUSIVE, 0, 1) && !other.try_lock_range(NOWAIT_LOCK_SHARED, 0, 1));
    file.unlock_range(0, 1);
    CHECK(other.try_lock_range(NOWAIT_LOCK_SHARED, 0, 1));
    CHECK(file.try_lock(NOWAIT_LOCK_EXCLUSIVE) && !other.try_lock(NOWAIT_LOCK_SHARED));
    file.unlock();
    CHECK(other.try_lock(NOWAIT_LOCK_SHARED));
    nowait::create_dir(dir, NOWAIT_NAME_DURABLE);
    nowait::rename(one, two, NOWAIT_RENAME_NEW);
    throws(ENOENT, "/one", [&] { nowait::rename(one, two); });
    EQUAL(nowait::metadata(two).inode, known.inode);
    nowait::sync_dir(two, NOWAIT_SYNC_PARENT);
    nowait::remove_dir(dir);
    nowait::remove_file(two, NOWAIT_NAME_DURABLE);
    throws(ENOENT, "/two", [&] { nowait::metadata(two); });
}

static_assert(!std::is_copy_constructible<nowait::lease>::value, "a lease has one owner");
static_assert(std::is_nothrow_move_assignable<nowait::lease>::value, "and can be moved");
static_assert(sizeof(nowait::lease) == sizeof(nowait_lease), "it is the struct, and nothing else");

static void caches(char **argv) {
    nowait::write_atomic(in_folder(argv, "cached"), "0123456789");
    nowait_cache_options options = {};
    options.page_bytes = 4096;
    options.capacity_bytes = 8 * 4096;
    auto cache = nowait::cache::create(options);
    nowait::lease kept;
    CHECK(!kept && kept.view().empty());
    {
        auto file = nowait::file::open(in_folder(argv, "cached"), O_RDONLY);
        auto cached = cache.open(file);
        CHECK(!cached.try_read(2, 3));
        auto lease = cached.read(2, 3);
        CHECK(lease && lease.view() == "234" && lease.size() == 3);
        auto other = cached.try_read(4, 1);
        CHECK(other.data() == lease.data() + 2);
        kept = std::move(lease);
        CHECK(!lease && kept.view() == "234");
        kept = std::move(other);
        CHECK(kept.view() == "4");
        EQUAL(cache.stats().pinned, 1);
        throws(ENODATA, "/cached", [&] { cached.read(9, 2); });
        throws(EINVAL, "access is 9", [&] { cache.open(file, 9); });
        cached.invalidate(0, 1);
        CHECK(!cached.revalidate() && !cached.try_read(2, 3));
        EQUAL(cache.set_capacity(4096), 4096);
    }
    cache.close();
    CHECK(kept.view() == "4");
    kept.unpin();
    CHECK(!kept);
    kept.unpin();
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
    EQUAL(queue.reap(&completion, 1, -1), 1);
    CHECK(completion.user == bytes && completion.result == 4 && std::memcmp(bytes, "2345", 4) == 0);
    queue.submit_write(file, "x", 1, 0, 0, nullptr);
    /* A close that is refused does not lose the queue. */
    throws(EBUSY, "1 operations", [&] { queue.close(); });
    EQUAL(queue.reap(&completion, 1, -1), 1);
    EQUAL(completion.result, 1);
    CHECK(queue.descriptor() >= 0);
    queue.close();
    CHECK(!queue);
}

static void batches(char **argv) {
    auto queue = nowait::queue::open();
    auto file = nowait::file::open(in_folder(argv, "raii"), O_RDONLY);
    char bytes[3] = {};
    nowait_read reads[3] = {};
    for (int i = 0; i < 3; i++) {
        reads[i].file = file.get();
        reads[i].buffer = bytes + i;
        reads[i].length = 1;
        reads[i].offset = 9 - static_cast<unsigned>(i);
    }
    queue.submit_reads(reads, 3);
    nowait_completion completion = {};
    for (int i = 0; i < 3; i++) {
        EQUAL(queue.reap(&completion, 1, -1), 1);
        EQUAL(completion.result, 1);
    }
    CHECK(std::memcmp(bytes, "987", 3) == 0);
    auto out = nowait::file::open(in_folder(argv, "out"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    nowait_write writes[2] = {};
    for (int i = 0; i < 2; i++) {
        writes[i].file = out.get();
        writes[i].buffer = bytes;
        writes[i].length = 3;
        writes[i].offset = static_cast<unsigned>(i) * 3;
    }
    queue.submit_writes(writes, 2);
    for (int i = 0; i < 2; i++) {
        EQUAL(queue.reap(&completion, 1, -1), 1);
        EQUAL(completion.result, 3);
    }
    queue.submit_append(out, bytes, 1, 0, nullptr);
    EQUAL(queue.reap(&completion, 1, -1), 1);
    EQUAL(completion.result, 1);
    EQUAL(out.size(), 7);
    std::int64_t results[2] = {};
    queue.submit_gather(file, {{5, 1}, {9, 2}}, bytes, 3, results, bytes);
    EQUAL(queue.reap(&completion, 1, -1), 1);
    CHECK(completion.result == -ENODATA && completion.range_index == 1 && completion.user == bytes);
    CHECK(results[0] == 1 && results[1] == 1 && bytes[0] == '5' && bytes[1] == '9');
    const std::string source = in_folder(argv, "raii"), target = in_folder(argv, "copied");
    auto copy = nowait::copy::start({source}, target);
    queue.submit_copy_wait(copy, nullptr);
    EQUAL(queue.reap(&completion, 1, -1), 1);
    EQUAL(completion.result, 0);
    EQUAL(copy.wait().files, 1);
    reads[1].buffer = nullptr;
    throws(EFAULT, "NULL", [&] { queue.submit_reads(reads, 3); });
}

#ifdef NOWAIT_HAS_COROUTINES
struct detached {
    struct promise_type {
        detached get_return_object() { return {}; }
        std::suspend_never initial_suspend() noexcept { return {}; }
        std::suspend_never final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() { throw; }
    };
};

static detached awaits(const nowait::queue &queue, char **argv, int &ended) {
    auto file = nowait::file::open(in_folder(argv, "awaited"), O_RDWR | O_CREAT, 0600);
    EQUAL(co_await queue.write(file, "0123456789", 10, 0), 10);
    EQUAL(co_await queue.sync(file), 0);
    EQUAL(co_await queue.append(file, "", 0), 0);
    EQUAL(co_await queue.write_atomic(in_folder(argv, "whole"), "whole", 5), 0);
    const std::string whole = in_folder(argv, "whole"), renamed = in_folder(argv, "renamed");
    EQUAL(co_await queue.rename(whole, renamed), 0);
    EQUAL(nowait::metadata(renamed).length, 5);
    char bytes[3] = {};
    EQUAL(co_await queue.read(file, bytes, 3, 7), 3);
    CHECK(std::memcmp(bytes, "789", 3) == 0);
    std::vector<nowait_range> ranges = {{4, 1}, {2, 2}};
    EQUAL(co_await queue.gather(file, ranges, bytes, 3), 0);
    CHECK(std::memcmp(bytes, "423", 3) == 0);
    bool failed = false;
    ranges[1].offset = 9;
    try {
        co_await queue.gather(file, ranges, bytes, 3);
    } catch (const nowait::error &error) {
        failed = error.code().value() == ENODATA && std::strstr(error.what(), "range 1") != nullptr;
    }
    CHECK(failed);
    const std::string source = in_folder(argv, "awaited"), target = in_folder(argv, "awaited-copy");
    auto copy = nowait::copy::start({source}, target);
    EQUAL(co_await queue.end(copy), 0);
    auto log = nowait::log::open(in_folder(argv, "log"));
    EQUAL(co_await queue.record(log, log.append("two")), 2);
    ended++;
}

static detached fails(const nowait::queue &queue, const nowait::file &file, int number, int &ended) {
    char byte = 0;
    EQUAL(co_await queue.read(file, &byte, 1, 0), 1);
    ended++;
    throw std::runtime_error(std::to_string(number));
}

/* Waits for a record that never comes, until it is cancelled. */
static detached gives_up(const nowait::queue &queue, const nowait::log &log, const nowait::detail::waiting *&waits,
                         bool &gave_up) {
    auto record = queue.record(log, 1000);
    EQUAL(record.operation(), 0);
    waits = &record;
    try {
        co_await record;
    } catch (const nowait::error &error) {
        gave_up = error.code().value() == ECANCELED;
    }
}

static void coroutines(char **argv) {
    auto queue = nowait::queue::open();
    int ended = 0;
    awaits(queue, argv, ended);
    while (ended == 0) {
        CHECK(queue.resume(-1) > 0);
    }

    /* What one of them lets out does not keep the others from being resumed. */
    auto file = nowait::file::open(in_folder(argv, "raii"), O_RDONLY);
    ended = 0;
    for (int number = 0; number < 5; number++) {
        fails(queue, file, number, ended);
    }
    while (nowait_queue_operations(queue.get()) > 0) {
        try {
            queue.resume(-1);
            CHECK(!"it throws");
        } catch (const std::runtime_error &) {
        }
    }
    EQUAL(ended, 5);

    auto log = nowait::log::open(in_folder(argv, "log"));
    const nowait::detail::waiting *waits = nullptr;
    bool gave_up = false;
    gives_up(queue, log, waits, gave_up);
    EQUAL(queue.resume(0), 0);
    const std::uint64_t operation = waits->operation();
    CHECK(queue.cancel(operation));
    EQUAL(queue.resume(-1), 1);
    CHECK(gave_up && !queue.cancel(operation));
}
#endif

int main(int argc, char **argv) {
    CHECK(argc == 2);
    handles(argv);
    changes(argv);
    caches(argv);
    logs(argv);
    queues(argv);
    batches(argv);
#ifdef NOWAIT_HAS_COROUTINES
    coroutines(argv);
#endif
    return 0;
}
