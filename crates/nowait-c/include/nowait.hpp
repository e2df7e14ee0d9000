// nowait for C++17: handles that close themselves, and errors as exceptions. From C++20 on a coroutine
// can await reads, writes, appends, syncs, gathers, renames, atomic replacements, records of a log and
// the end of a copy.
// Everything is inline over nowait.h, which says what each call does, and which threads may make it.
// What has no member here is called there, with the handle that get() returns.

#ifndef NOWAIT_HPP
#define NOWAIT_HPP

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "nowait.h"

#if defined(__cpp_impl_coroutine) && defined(__has_include)
#if __has_include(<coroutine>)
#include <coroutine>
#define NOWAIT_HAS_COROUTINES 1
#endif
#endif

namespace nowait {

// A call that failed: code() has the errno, what() the operation, the path and what to do next.
class error : public std::system_error {
public:
    error(int errno_value, const char *message)
        : std::system_error(errno_value, std::generic_category()), message_(message) {}

    // The message alone: system_error would repeat the errno's text after it.
    const char *what() const noexcept override { return message_.what(); }

private:
    // Its copies do not throw, as those of an exception must not.
    std::runtime_error message_;
};

namespace detail {

// The answer of a call; throws if it is a negative errno.
template <typename Number> Number checked(Number answer) {
    if (answer < 0) {
        throw error(static_cast<int>(-answer), nowait_error_message());
    }
    return answer;
}

// A handle that is closed when this goes. Errors of that close are lost: call close() for them. One
// that is refused (-EBUSY: a queue with operations left) leaves the handle open.
template <int (*Close)(std::uint64_t)> class handle {
public:
    handle() noexcept = default;
    explicit handle(std::uint64_t number) noexcept : number_(number) {}
    handle(handle &&other) noexcept : number_(std::exchange(other.number_, 0)) {}
    handle &operator=(handle &&other) noexcept {
        if (this != &other) {
            reset();
            number_ = std::exchange(other.number_, 0);
        }
        return *this;
    }
    handle(const handle &) = delete;
    handle &operator=(const handle &) = delete;
    ~handle() { reset(); }

    // The handle for nowait.h; 0 if it is none.
    std::uint64_t get() const noexcept { return number_; }
    explicit operator bool() const noexcept { return number_ != 0; }
    std::uint64_t release() noexcept { return std::exchange(number_, 0); }
    void close() {
        int answer = Close(number_);
        if (answer != -EBUSY) {
            number_ = 0;
        }
        checked(answer);
    }

private:
    void reset() noexcept {
        if (number_ != 0) {
            Close(release());
        }
    }

    std::uint64_t number_ = 0;
};

} // namespace detail

// An instance; files are opened in the shared one unless they name another.
class instance : public detail::handle<nowait_instance_close> {
public:
    using handle::handle;

    static instance open(nowait_instance_options options = {}) {
        options.size = sizeof options;
        nowait_instance number = 0;
        detail::checked(nowait_instance_open(&options, &number));
        return instance(number);
    }

    nowait_instance_counters stats() const {
        nowait_instance_counters answer = {};
        answer.size = sizeof answer;
        detail::checked(nowait_instance_stats(get(), &answer));
        return answer;
    }
};

// An open file.
class file : public detail::handle<nowait_file_close> {
public:
    using handle::handle;

    static file open(const std::string &path, int flags, unsigned mode = 0666, nowait_instance in = 0) {
        nowait_file number = 0;
        detail::checked(nowait_file_open(in, path.c_str(), flags, mode, &number));
        return file(number);
    }

    static file from_descriptor(int descriptor, const char *name = nullptr, nowait_instance in = 0) {
        nowait_file number = 0;
        detail::checked(nowait_file_from_descriptor(in, descriptor, name, &number));
        return file(number);
    }

    std::size_t read_at(void *buffer, std::size_t length, std::uint64_t offset) const {
        return static_cast<std::size_t>(detail::checked(nowait_read_at(get(), buffer, length, offset)));
    }

    std::size_t write_at(const void *buffer, std::size_t length, std::uint64_t offset, std::uint32_t flags = 0) const {
        return static_cast<std::size_t>(detail::checked(nowait_write_at(get(), buffer, length, offset, flags)));
    }

    // All ranges, one after the other; all or nothing.
    std::vector<std::byte> gather(const std::vector<nowait_range> &ranges) const {
        std::size_t total = 0;
        for (const nowait_range &range : ranges) {
            total += static_cast<std::size_t>(range.length);
        }
        std::vector<std::byte> output(total);
        detail::checked(nowait_gather(get(), ranges.data(), ranges.size(), output.data(), total, nullptr));
        return output;
    }

    std::size_t read_vectored_at(const iovec *buffers, std::size_t count, std::uint64_t offset) const {
        return static_cast<std::size_t>(detail::checked(nowait_read_vectored_at(get(), buffers, count, offset)));
    }

    std::size_t write_vectored_at(const iovec *buffers, std::size_t count, std::uint64_t offset,
                                  std::uint32_t flags = 0) const {
        return static_cast<std::size_t>(
            detail::checked(nowait_write_vectored_at(get(), buffers, count, offset, flags)));
    }

    void append(const void *buffer, std::size_t length, std::uint32_t flags = 0) const {
        detail::checked(nowait_append(get(), buffer, length, flags));
    }

    void sync(std::uint32_t flags = 0) const { detail::checked(nowait_sync(get(), flags)); }

    std::uint64_t size() const {
        std::uint64_t answer = 0;
        detail::checked(nowait_file_size(get(), &answer));
        return answer;
    }

    void set_length(std::uint64_t length) const { detail::checked(nowait_file_set_length(get(), length)); }

    void allocate(std::uint32_t how, std::uint64_t offset, std::uint64_t length) const {
        detail::checked(nowait_file_allocate(get(), how, offset, length));
    }

    void advise(std::uint64_t offset, std::uint64_t length, std::uint32_t advice) const {
        detail::checked(nowait_file_advise(get(), offset, length, advice));
    }

    nowait_metadata metadata() const {
        nowait_metadata answer = {};
        answer.size = sizeof answer;
        detail::checked(nowait_file_metadata(get(), &answer));
        return answer;
    }

    // Returns false if another open of the file holds a conflicting lock.
    bool try_lock(std::uint32_t kind) const { return detail::checked(nowait_file_try_lock(get(), kind)) == 1; }
    void unlock() const { detail::checked(nowait_file_unlock(get())); }

    bool try_lock_range(std::uint32_t kind, std::uint64_t offset, std::uint64_t length) const {
        return detail::checked(nowait_file_try_lock_range(get(), kind, offset, length)) == 1;
    }

    void unlock_range(std::uint64_t offset, std::uint64_t length) const {
        detail::checked(nowait_file_unlock_range(get(), offset, length));
    }
};

// Changes of names, on the instance that the process shares.
inline void rename(const std::string &from, const std::string &to, std::uint32_t flags = 0) {
    detail::checked(nowait_rename(0, from.c_str(), to.c_str(), flags));
}

inline void remove_file(const std::string &path, std::uint32_t flags = 0) {
    detail::checked(nowait_remove_file(0, path.c_str(), flags));
}

inline void create_dir(const std::string &path, std::uint32_t flags = 0) {
    detail::checked(nowait_create_dir(0, path.c_str(), flags));
}

inline void remove_dir(const std::string &path, std::uint32_t flags = 0) {
    detail::checked(nowait_remove_dir(0, path.c_str(), flags));
}

inline void sync_dir(const std::string &path, std::uint32_t flags = 0) {
    detail::checked(nowait_sync_dir(0, path.c_str(), flags));
}

// Replaces a file atomically and durably.
inline void write_atomic(const std::string &path, std::string_view bytes) {
    detail::checked(nowait_write_atomic(0, path.c_str(), bytes.data(), bytes.size(), 0));
}

inline nowait_metadata metadata(const std::string &path, std::uint32_t flags = 0) {
    nowait_metadata answer = {};
    answer.size = sizeof answer;
    detail::checked(nowait_path_metadata(0, path.c_str(), flags, &answer));
    return answer;
}

// Owner of a lease: bytes of a file that stay valid until it is destroyed or unpinned. May be empty.
class lease {
public:
    lease() noexcept = default;
    // Takes over a lease of nowait.h.
    explicit lease(const nowait_lease &held) noexcept : held_(held) {}
    lease(lease &&other) noexcept : held_(std::exchange(other.held_, nowait_lease{})) {}
    lease &operator=(lease &&other) noexcept {
        if (this != &other) {
            unpin();
            held_ = std::exchange(other.held_, nowait_lease{});
        }
        return *this;
    }
    lease(const lease &) = delete;
    lease &operator=(const lease &) = delete;
    ~lease() { unpin(); }

    const std::byte *data() const noexcept { return static_cast<const std::byte *>(held_.data); }
    std::size_t size() const noexcept { return held_.length; }
    std::string_view view() const noexcept { return {static_cast<const char *>(held_.data), held_.length}; }
    explicit operator bool() const noexcept { return held_.data != nullptr; }
    void unpin() noexcept { nowait_unpin(&held_); }

private:
    nowait_lease held_ = {};
};

// A file that is read through a cache. Each object is a separate reader, for readahead.
class cached_file : public detail::handle<nowait_cached_close> {
public:
    using handle::handle;

    lease read(std::uint64_t offset, std::size_t length) const {
        nowait_lease held = {};
        detail::checked(nowait_cache_read(get(), offset, length, &held));
        return lease(held);
    }

    // An empty lease if the range is not cached.
    lease try_read(std::uint64_t offset, std::size_t length) const {
        nowait_lease held = {};
        int answer = nowait_cache_try_read(get(), offset, length, &held);
        if (answer != -EAGAIN) {
            detail::checked(answer);
        }
        return lease(held);
    }

    // Writes to the file and to its cached pages.
    void write(const void *buffer, std::size_t length, std::uint64_t offset) const {
        detail::checked(nowait_cached_write(get(), buffer, length, offset));
    }

    void invalidate(std::uint64_t offset, std::uint64_t length) const {
        detail::checked(nowait_cached_invalidate(get(), offset, length));
    }

    // Returns true if the pages were dropped.
    bool revalidate() const { return detail::checked(nowait_cached_revalidate(get())) == 1; }
};

// A page cache.
class cache : public detail::handle<nowait_cache_close> {
public:
    using handle::handle;

    static cache create(nowait_cache_options options = {}) {
        options.size = sizeof options;
        nowait_cache number = 0;
        detail::checked(nowait_cache_create(&options, &number));
        return cache(number);
    }

    // The file has to stay open while the cached file is used.
    cached_file open(const file &from, std::uint32_t access = NOWAIT_CACHE_IMMUTABLE) const {
        nowait_cached number = 0;
        detail::checked(nowait_cache_open(get(), from.get(), access, &number));
        return cached_file(number);
    }

    // Returns the new capacity.
    std::uint64_t set_capacity(std::uint64_t bytes) const {
        return static_cast<std::uint64_t>(detail::checked(nowait_cache_set_capacity(get(), bytes)));
    }

    nowait_cache_counters stats() const {
        nowait_cache_counters answer = {};
        answer.size = sizeof answer;
        detail::checked(nowait_cache_stats(get(), &answer));
        return answer;
    }
};

// A log that is open for appending.
class log : public detail::handle<nowait_log_close> {
public:
    using handle::handle;

    static log open(const std::string &directory, nowait_log_options options = {}, nowait_instance in = 0) {
        options.size = sizeof options;
        nowait_log number = 0;
        detail::checked(nowait_log_open(in, directory.c_str(), &options, &number, nullptr));
        return log(number);
    }

    // Returns the record's number.
    std::uint64_t append(std::string_view bytes) const {
        std::uint64_t record = 0;
        detail::checked(nowait_log_append(get(), bytes.data(), bytes.size(), &record));
        return record;
    }

    void wait(std::uint64_t record) const { detail::checked(nowait_log_wait(get(), record)); }
};

// A reader of a log.
class log_reader : public detail::handle<nowait_log_reader_close> {
public:
    using handle::handle;

    static log_reader open(const log &of, std::uint64_t record = 1) {
        nowait_log_reader number = 0;
        detail::checked(nowait_log_reader_open(of.get(), record, &number));
        return log_reader(number);
    }

    // False if there is no further record yet. The bytes are valid until the next call.
    bool next(nowait_log_record &record) const {
        return detail::checked(nowait_log_reader_next(get(), &record)) == 1;
    }
};

// A copy that runs; given up, it runs on.
class copy : public detail::handle<nowait_copy_close> {
public:
    using handle::handle;

    static copy start(const std::vector<std::string> &sources, const std::string &target,
                      nowait_copy_options options = {}) {
        options.size = sizeof options;
        std::vector<const char *> names;
        names.reserve(sources.size());
        for (const std::string &source : sources) {
            names.push_back(source.c_str());
        }
        nowait_copy number = 0;
        detail::checked(nowait_copy_start(names.data(), names.size(), target.c_str(), &options, &number));
        return copy(number);
    }

    nowait_copy_state progress() const {
        nowait_copy_state answer = {};
        answer.size = sizeof answer;
        detail::checked(nowait_copy_progress(get(), &answer));
        return answer;
    }

    // Throws if something could not be copied as asked.
    nowait_copy_report wait() const {
        nowait_copy_report report = {};
        report.size = sizeof report;
        detail::checked(nowait_copy_wait(get(), &report));
        return report;
    }

    void cancel() const { detail::checked(nowait_copy_cancel(get())); }
};

#ifdef NOWAIT_HAS_COROUTINES
namespace detail {

// A coroutine that waits for an operation, and the operation's result.
class waiting {
public:
    std::coroutine_handle<> ended(const nowait_completion &completion) {
        result_ = completion.result;
        if (completion.message != nullptr) {
            message_ = completion.message;
        }
        return coroutine_;
    }

    std::int64_t await_resume() const {
        if (result_ < 0) {
            throw error(static_cast<int>(-result_), message_.c_str());
        }
        return result_;
    }

    // The operation's number, for queue::cancel; 0 until it is awaited.
    std::uint64_t operation() const noexcept { return operation_; }

protected:
    std::coroutine_handle<> coroutine_;
    std::uint64_t operation_ = 0;

private:
    std::int64_t result_ = 0;
    std::string message_;
};

// An operation to be awaited once: `co_await` gives its result, or throws. The memory has to stay
// until then, so a coroutine that waits must not be destroyed: cancel the operation, and let it be
// resumed.
template <typename Submit> class awaitable : public waiting {
public:
    explicit awaitable(Submit submit) : submit_(std::move(submit)) {}

    bool await_ready() const noexcept { return false; }

    void await_suspend(std::coroutine_handle<> coroutine) {
        coroutine_ = coroutine;
        checked(submit_(static_cast<waiting *>(this), &operation_));
    }

private:
    Submit submit_;
};

} // namespace detail
#endif

// A queue of operations and their completions.
class queue : public detail::handle<nowait_queue_close> {
public:
    using handle::handle;

    static queue open() {
        nowait_queue number = 0;
        detail::checked(nowait_queue_open(&number));
        return queue(number);
    }

    int descriptor() const { return detail::checked(nowait_queue_descriptor(get())); }

    std::uint64_t submit_read(const file &from, void *buffer, std::size_t length, std::uint64_t offset, void *user) const {
        std::uint64_t operation = 0;
        detail::checked(nowait_submit_read(get(), from.get(), buffer, length, offset, user, &operation));
        return operation;
    }

    std::uint64_t submit_write(const file &to, const void *buffer, std::size_t length, std::uint64_t offset,
                               std::uint32_t flags, void *user) const {
        std::uint64_t operation = 0;
        detail::checked(nowait_submit_write(get(), to.get(), buffer, length, offset, flags, user, &operation));
        return operation;
    }

    // All or none; those for the device in one system call.
    void submit_reads(nowait_read *reads, std::size_t count) const {
        detail::checked(nowait_submit_reads(get(), reads, count));
    }

    void submit_writes(nowait_write *writes, std::size_t count) const {
        detail::checked(nowait_submit_writes(get(), writes, count));
    }

    std::uint64_t submit_append(const file &to, const void *buffer, std::size_t length, std::uint32_t flags,
                                void *user) const {
        std::uint64_t operation = 0;
        detail::checked(nowait_submit_append(get(), to.get(), buffer, length, flags, user, &operation));
        return operation;
    }

    std::uint64_t submit_gather(const file &from, const std::vector<nowait_range> &ranges, void *output,
                                std::size_t output_bytes, std::int64_t *results, void *user) const {
        std::uint64_t operation = 0;
        detail::checked(nowait_submit_gather(get(), from.get(), ranges.data(), ranges.size(), output, output_bytes,
                                             results, user, &operation));
        return operation;
    }

    std::uint64_t submit_copy_wait(const copy &of, void *user) const {
        std::uint64_t operation = 0;
        detail::checked(nowait_submit_copy_wait(get(), of.get(), user, &operation));
        return operation;
    }

    // Gives an operation up, whose completion comes all the same. False if that was reaped.
    bool cancel(std::uint64_t operation) const {
        int answer = nowait_cancel(get(), operation);
        return answer != -ENOENT && detail::checked(answer) == 0;
    }

    // Returns how many there were; throws EINTR if it waits and a signal comes first.
    int reap(nowait_completion *completions, std::size_t count, int timeout_ms) const {
        return detail::checked(nowait_reap(get(), completions, count, timeout_ms));
    }

#ifdef NOWAIT_HAS_COROUTINES
    // Each begins where it is awaited. Ranges and memory have to stay until it has ended.
    auto read(const file &from, void *buffer, std::size_t length, std::uint64_t offset) const {
        return awaited([=, in = get(), on = from.get()](void *user, std::uint64_t *operation) {
            return nowait_submit_read(in, on, buffer, length, offset, user, operation);
        });
    }

    auto write(const file &to, const void *buffer, std::size_t length, std::uint64_t offset,
               std::uint32_t flags = 0) const {
        return awaited([=, in = get(), on = to.get()](void *user, std::uint64_t *operation) {
            return nowait_submit_write(in, on, buffer, length, offset, flags, user, operation);
        });
    }

    auto append(const file &to, const void *buffer, std::size_t length, std::uint32_t flags = 0) const {
        return awaited([=, in = get(), on = to.get()](void *user, std::uint64_t *operation) {
            return nowait_submit_append(in, on, buffer, length, flags, user, operation);
        });
    }

    auto rename(const std::string &from, const std::string &to, std::uint32_t flags = 0) const {
        return awaited([from, to, flags, in = get()](void *user, std::uint64_t *operation) {
            return nowait_submit_rename(in, 0, from.c_str(), to.c_str(), flags, user, operation);
        });
    }

    auto write_atomic(const std::string &path, const void *buffer, std::size_t length) const {
        return awaited([path, buffer, length, in = get()](void *user, std::uint64_t *operation) {
            return nowait_submit_write_atomic(in, 0, path.c_str(), buffer, length, 0, user, operation);
        });
    }

    auto sync(const file &of, std::uint32_t flags = 0) const {
        return awaited([=, in = get(), on = of.get()](void *user, std::uint64_t *operation) {
            return nowait_submit_sync(in, on, flags, user, operation);
        });
    }

    auto gather(const file &from, const std::vector<nowait_range> &ranges, void *output,
                std::size_t output_bytes) const {
        return awaited([=, in = get(), on = from.get(), first = ranges.data(),
                        count = ranges.size()](void *user, std::uint64_t *operation) {
            return nowait_submit_gather(in, on, first, count, output, output_bytes, nullptr, user, operation);
        });
    }

    auto record(const log &of, std::uint64_t record) const {
        return awaited([=, in = get(), on = of.get()](void *user, std::uint64_t *operation) {
            return nowait_submit_log_wait(in, on, record, user, operation);
        });
    }

    auto end(const copy &of) const {
        return awaited([in = get(), on = of.get()](void *user, std::uint64_t *operation) {
            return nowait_submit_copy_wait(in, on, user, operation);
        });
    }

    // Reaps, and resumes the coroutines that wait, on this thread; returns how many, or throws as
    // reap. Everything in this queue has to be awaited. With an event loop: with 0, when
    // descriptor() is readable. The first exception that a coroutine lets out is thrown when all of
    // them were resumed.
    int resume(int timeout_ms) const {
        nowait_completion completions[32];
        int count = reap(completions, 32, timeout_ms);
        std::coroutine_handle<> ready[32];
        // All texts first: a coroutine may reap, too.
        for (int i = 0; i < count; i++) {
            ready[i] = static_cast<detail::waiting *>(completions[i].user)->ended(completions[i]);
        }
        std::exception_ptr thrown;
        for (int i = 0; i < count; i++) {
            try {
                ready[i].resume();
            } catch (...) {
                thrown = thrown ? thrown : std::current_exception();
            }
        }
        if (thrown) {
            std::rethrow_exception(thrown);
        }
        return count;
    }

private:
    template <typename Submit> static detail::awaitable<Submit> awaited(Submit submit) {
        return detail::awaitable<Submit>(std::move(submit));
    }
#endif
};

} // namespace nowait

#endif
