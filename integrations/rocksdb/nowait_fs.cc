// The files of a RocksDB database on nowait. RocksDB's own file system still serves names, locks, the info log and
// mapped files.

#include "nowait_fs.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include <fcntl.h>

#include <rocksdb/utilities/object_registry.h>
#include <rocksdb/version.h>

namespace nowait {
namespace {

using namespace rocksdb;

IOStatus status_of(std::int64_t result, const char *message) {
    switch (result) {
    case -ENOSPC:
    case -EDQUOT: {
        // Retryable, so that RocksDB resumes once space is free.
        IOStatus status = IOStatus::NoSpace(message);
        status.SetRetryable(true);
        return status;
    }
    case -ENOENT:
        return IOStatus::PathNotFound(message);
    case -ESTALE:
        return IOStatus::IOError(IOStatus::kStaleFile);
    default:
        return result < 0 ? IOStatus::IOError(message) : IOStatus::OK();
    }
}

// Returns the status of this thread's last call of the library.
IOStatus status_of(std::int64_t result) { return status_of(result, result < 0 ? nowait_error_message() : ""); }

// Reads up to `length` bytes. A short read means the end of the file, and is not an error.
IOStatus read_at(const file &from, std::uint64_t offset, std::size_t length, char *scratch, Slice *result) {
    std::int64_t bytes = nowait_read_at(from.get(), scratch, length, offset);
    *result = Slice(scratch, bytes < 0 ? 0 : static_cast<std::size_t>(bytes));
    return status_of(bytes);
}

IOStatus write_at(const file &to, const Slice &data, std::uint64_t offset) {
    for (std::size_t done = 0; done < data.size();) {
        std::int64_t bytes = nowait_write_at(to.get(), data.data() + done, data.size() - done, offset + done, 0);
        if (bytes < 0) {
            return status_of(bytes);
        }
        done += static_cast<std::size_t>(bytes);
    }
    return IOStatus::OK();
}

IOStatus advise(const file &of, std::uint64_t offset, std::uint64_t length, std::uint32_t advice) {
    return status_of(nowait_file_advise(of.get(), offset, length, advice));
}

// Alignment that RocksDB must use for requests to a file.
struct Alignment {
    explicit Alignment(const file &of) {
        std::size_t memory = 1, offset = 1;
        is_direct = nowait_file_direct(of.get(), &memory, &offset) == 1;
        bytes = is_direct ? std::max(memory, offset) : kDefaultPageSize;
    }

    // False also if direct I/O was requested, but the file system does not support it.
    bool is_direct;
    std::size_t bytes;
};

// Idle queues. A queue serves one caller at a time, since another could reap its completions.
class Queues {
public:
    // Returns an idle or a new queue; an empty handle if the process has no descriptors left.
    queue take() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            if (!idle_.empty()) {
                queue taken = std::move(idle_.back());
                idle_.pop_back();
                return taken;
            }
        }
        nowait_queue number = 0;
        return nowait_queue_open(&number) < 0 ? queue() : queue(number);
    }

    void give_back(queue taken) {
        std::lock_guard<std::mutex> lock(mutex_);
        idle_.push_back(std::move(taken));
    }

private:
    std::mutex mutex_;
    std::vector<queue> idle_;
};

// Waits for completions of operations in flight. Returns the number of completions.
std::size_t reap(const queue &of, nowait_completion *completions, std::size_t count) {
    std::int64_t reaped;
    do {
        reaped = nowait_reap(of.get(), completions, count, -1);
    } while (reaped == -EINTR);
    if (reaped <= 0) {
        // The kernel may still write into memory that the caller would free.
        std::abort();
    }
    return static_cast<std::size_t>(reaped);
}

void complete(FSReadRequest &request, std::int64_t bytes, const char *message) {
    request.result = Slice(request.scratch, bytes < 0 ? 0 : static_cast<std::size_t>(bytes));
    request.status = bytes == -ECANCELED ? IOStatus::Aborted() : status_of(bytes, message);
}

// Deduces the type of the callback, which differs between versions of RocksDB.
template <typename Callback>
Callback callback_of(IOStatus (FSRandomAccessFile::*)(FSReadRequest &, const IOOptions &, Callback, void *, void **,
                                                      IOHandleDeleter *, IODebugContext *));
using ReadCallback = decltype(callback_of(&FSRandomAccessFile::ReadAsync));

// Asynchronous read. RocksDB polls or aborts it before deleting it.
class AsyncRead {
public:
    AsyncRead(const std::shared_ptr<Queues> &queues, queue taken, ReadCallback callback, void *argument)
        : queues_(queues), queue_(std::move(taken)), callback_(std::move(callback)), argument_(argument) {}

    ~AsyncRead() {
        if (operation_ != 0) {
            nowait_completion completion;
            nowait_cancel(queue_.get(), operation_);
            reap(queue_, &completion, 1);
        }
        queues_->give_back(std::move(queue_));
    }

    bool submit(const file &from, const FSReadRequest &request) {
        request_.offset = request.offset;
        request_.len = request.len;
        request_.scratch = request.scratch;
        return nowait_submit_read(queue_.get(), from.get(), request.scratch, request.len, request.offset, nullptr,
                                  &operation_) == 0;
    }

    void cancel() {
        if (operation_ != 0) {
            nowait_cancel(queue_.get(), operation_);
        }
    }

    void wait() {
        if (operation_ == 0) {
            return;
        }
        nowait_completion completion;
        reap(queue_, &completion, 1);
        operation_ = 0;
        complete(request_, completion.result, completion.message);
        callback_(request_, argument_);
    }

private:
    std::shared_ptr<Queues> queues_;
    queue queue_;
    ReadCallback callback_;
    void *argument_;
    FSReadRequest request_;
    // 0 once it has completed.
    std::uint64_t operation_ = 0;
};

class SequentialFile : public FSSequentialFile {
public:
    explicit SequentialFile(file opened) : file_(std::move(opened)), alignment_(file_) {}

    IOStatus Read(std::size_t length, const IOOptions &, Slice *result, char *scratch, IODebugContext *) override {
        IOStatus status = read_at(file_, position_, length, scratch, result);
        position_ += result->size();
        return status;
    }

    IOStatus PositionedRead(std::uint64_t offset, std::size_t length, const IOOptions &, Slice *result, char *scratch,
                            IODebugContext *) override {
        return read_at(file_, offset, length, scratch, result);
    }

    IOStatus Skip(std::uint64_t bytes) override {
        position_ += bytes;
        return IOStatus::OK();
    }

    IOStatus InvalidateCache(std::size_t offset, std::size_t length) override {
        return advise(file_, offset, length, NOWAIT_ADVICE_DONT_NEED);
    }

    bool use_direct_io() const override { return alignment_.is_direct; }
    std::size_t GetRequiredBufferAlignment() const override { return alignment_.bytes; }

private:
    file file_;
    Alignment alignment_;
    std::uint64_t position_ = 0;
};

class RandomAccessFile : public FSRandomAccessFile {
public:
    RandomAccessFile(file opened, std::shared_ptr<Queues> queues)
        : file_(std::move(opened)), alignment_(file_), queues_(std::move(queues)) {}

    IOStatus Read(std::uint64_t offset, std::size_t length, const IOOptions &, Slice *result, char *scratch,
                  IODebugContext *) const override {
        return read_at(file_, offset, length, scratch, result);
    }

    // Copies cached ranges, then reads all others concurrently.
    IOStatus MultiRead(FSReadRequest *requests, std::size_t count, const IOOptions &options,
                       IODebugContext *context) override {
        std::vector<nowait_read> reads;
        for (FSReadRequest *request = requests; request < requests + count; request++) {
            if (!read_cached(*request)) {
                reads.push_back({file_.get(), request->scratch, request->len, request->offset, request, 0});
            }
        }
        if (reads.empty()) {
            return IOStatus::OK();
        }
        queue taken = reads.size() > 1 ? queues_->take() : queue();
        // A queue of the parent is of no use in a forked child.
        if (!taken || nowait_submit_reads(taken.get(), reads.data(), reads.size()) < 0) {
            for (const nowait_read &read : reads) {
                FSReadRequest &request = *static_cast<FSReadRequest *>(read.user);
                request.status =
                    Read(request.offset, request.len, options, &request.result, request.scratch, context);
            }
            return IOStatus::OK();
        }
        for (std::size_t left = reads.size(); left > 0;) {
            nowait_completion completions[32];
            std::size_t reaped = reap(taken, completions, std::min<std::size_t>(left, 32));
            for (const nowait_completion *each = completions; each < completions + reaped; each++) {
                complete(*static_cast<FSReadRequest *>(each->user), each->result, each->message);
            }
            left -= reaped;
        }
        queues_->give_back(std::move(taken));
        return IOStatus::OK();
    }

    IOStatus ReadAsync(FSReadRequest &request, const IOOptions &options, ReadCallback callback, void *argument,
                       void **handle, IOHandleDeleter *deleter, IODebugContext *context) override {
        if (read_cached(request)) {
            callback(request, argument);
            return IOStatus::OK();
        }
        queue taken = queues_->take();
        auto read = taken ? std::make_unique<AsyncRead>(queues_, std::move(taken), callback, argument) : nullptr;
        if (!read || !read->submit(file_, request)) {
            return FSRandomAccessFile::ReadAsync(request, options, callback, argument, handle, deleter, context);
        }
        *handle = read.release();
        *deleter = [](void *deleted) { delete static_cast<AsyncRead *>(deleted); };
        return IOStatus::OK();
    }

    IOStatus Prefetch(std::uint64_t offset, std::size_t length, const IOOptions &, IODebugContext *) override {
        // Direct reads bypass the page cache: RocksDB then reads ahead into its own buffer.
        return alignment_.is_direct ? IOStatus::NotSupported("Prefetch")
                                    : advise(file_, offset, length, NOWAIT_ADVICE_WILL_NEED);
    }

    void Hint(AccessPattern pattern) override {
        static const std::uint32_t advice[] = {NOWAIT_ADVICE_NORMAL, NOWAIT_ADVICE_RANDOM, NOWAIT_ADVICE_SEQUENTIAL,
                                               NOWAIT_ADVICE_WILL_NEED, NOWAIT_ADVICE_DONT_NEED};
        if (!alignment_.is_direct) {
            advise(file_, 0, 0, advice[pattern]).PermitUncheckedError();
        }
    }

    IOStatus InvalidateCache(std::size_t offset, std::size_t length) override {
        return advise(file_, offset, length, NOWAIT_ADVICE_DONT_NEED);
    }

    bool use_direct_io() const override { return alignment_.is_direct; }
    std::size_t GetRequiredBufferAlignment() const override { return alignment_.bytes; }

private:
    bool read_cached(FSReadRequest &request) const {
        std::int64_t bytes = nowait_try_read_at(file_.get(), request.scratch, request.len, request.offset);
        if (bytes == -EAGAIN) {
            return false;
        }
        complete(request, bytes, bytes < 0 ? nowait_error_message() : "");
        return true;
    }

    file file_;
    Alignment alignment_;
    std::shared_ptr<Queues> queues_;
};

class WritableFile : public FSWritableFile {
public:
    WritableFile(file opened, std::uint64_t size, const FileOptions &options)
        : FSWritableFile(options), file_(std::move(opened)), alignment_(file_), size_(size),
          may_allocate_(options.allow_fallocate),
          allocation_(options.fallocate_with_keep_size ? NOWAIT_ALLOCATE_KEEP_SIZE : NOWAIT_ALLOCATE_RESERVE) {}

    ~WritableFile() override {
        if (file_) {
            WritableFile::Close(IOOptions(), nullptr).PermitUncheckedError();
        }
    }

    using FSWritableFile::Append;
    using FSWritableFile::PositionedAppend;

    IOStatus Append(const Slice &data, const IOOptions &options, IODebugContext *context) override {
        return PositionedAppend(data, size_, options, context);
    }

    IOStatus PositionedAppend(const Slice &data, std::uint64_t offset, const IOOptions &, IODebugContext *) override {
        IOStatus status = write_at(file_, data, offset);
        if (status.ok()) {
            size_ = offset + data.size();
        }
        return status;
    }

    IOStatus Truncate(std::uint64_t size, const IOOptions &, IODebugContext *) override {
        int result = nowait_file_set_length(file_.get(), size);
        if (result == 0) {
            size_ = size;
        }
        return status_of(result);
    }

    IOStatus Close(const IOOptions &, IODebugContext *) override {
        free_unused_space();
        return status_of(nowait_file_close(file_.release()));
    }

    IOStatus Flush(const IOOptions &, IODebugContext *) override { return IOStatus::OK(); }

    IOStatus Sync(const IOOptions &, IODebugContext *) override { return status_of(nowait_sync(file_.get(), 0)); }

    IOStatus Fsync(const IOOptions &, IODebugContext *) override {
        return status_of(nowait_sync(file_.get(), NOWAIT_SYNC_ALL));
    }

    // Starts write-back, whose errors the next sync reports. `strict_bytes_per_sync` also requires a wait for
    // earlier write-back: the base class then calls Sync, since a wait in sync_file_range(2) would consume the
    // kernel's report of a failed write-back.
    IOStatus RangeSync(std::uint64_t offset, std::uint64_t length, const IOOptions &options,
                       IODebugContext *context) override {
        if (!strict_bytes_per_sync_) {
            sync_file_range(nowait_file_descriptor(file_.get()), static_cast<off_t>(offset),
                            static_cast<off_t>(length), SYNC_FILE_RANGE_WRITE);
        }
        return FSWritableFile::RangeSync(offset, length, options, context);
    }

    IOStatus Allocate(std::uint64_t offset, std::uint64_t length, const IOOptions &, IODebugContext *) override {
        return may_allocate_ ? status_of(nowait_file_allocate(file_.get(), allocation_, offset, length))
                             : IOStatus::OK();
    }

    void SetWriteLifeTimeHint(Env::WriteLifeTimeHint hint) override {
        std::uint64_t lifetime = hint;
        if (hint != write_hint_ && fcntl(nowait_file_descriptor(file_.get()), F_SET_RW_HINT, &lifetime) == 0) {
            write_hint_ = hint;
        }
    }

    IOStatus InvalidateCache(std::size_t offset, std::size_t length) override {
        return advise(file_, offset, length, NOWAIT_ADVICE_DONT_NEED);
    }

    std::uint64_t GetFileSize(const IOOptions &, IODebugContext *) override { return size_; }
    bool IsSyncThreadSafe() const override { return true; }
    bool use_direct_io() const override { return alignment_.is_direct; }
    std::size_t GetRequiredBufferAlignment() const override { return alignment_.bytes; }

private:
    // Frees preallocated space beyond the end. Ignores errors, which only leave that space allocated.
    void free_unused_space() {
        std::size_t block_bytes = 0, blocks = 0;
        GetPreallocationStatus(&block_bytes, &blocks);
        if (blocks == 0) {
            return;
        }
        nowait_file_set_length(file_.get(), size_);
        // On some file systems, setting an unchanged size frees nothing.
        struct nowait_metadata known = {};
        known.size = sizeof known;
        std::uint64_t end = static_cast<std::uint64_t>(block_bytes) * blocks;
        if (may_allocate_ && end > size_ && nowait_file_metadata(file_.get(), &known) == 0 &&
            known.allocated_bytes > size_ + known.block_bytes) {
            nowait_file_allocate(file_.get(), NOWAIT_ALLOCATE_PUNCH_HOLE, size_, end - size_);
        }
    }

    file file_;
    Alignment alignment_;
    std::uint64_t size_;
    bool may_allocate_;
    std::uint32_t allocation_;
};

class RandomRWFile : public FSRandomRWFile {
public:
    explicit RandomRWFile(file opened) : file_(std::move(opened)) {}

    IOStatus Write(std::uint64_t offset, const Slice &data, const IOOptions &, IODebugContext *) override {
        return write_at(file_, data, offset);
    }

    IOStatus Read(std::uint64_t offset, std::size_t length, const IOOptions &, Slice *result, char *scratch,
                  IODebugContext *) const override {
        return read_at(file_, offset, length, scratch, result);
    }

    IOStatus Flush(const IOOptions &, IODebugContext *) override { return IOStatus::OK(); }
    IOStatus Sync(const IOOptions &, IODebugContext *) override { return status_of(nowait_sync(file_.get(), 0)); }

    IOStatus Fsync(const IOOptions &, IODebugContext *) override {
        return status_of(nowait_sync(file_.get(), NOWAIT_SYNC_ALL));
    }

    IOStatus Close(const IOOptions &, IODebugContext *) override {
        return status_of(nowait_file_close(file_.release()));
    }

private:
    file file_;
};

class Directory : public FSDirectoryWrapper {
public:
    Directory(std::unique_ptr<FSDirectory> target, std::string name, nowait_instance in)
        : FSDirectoryWrapper(std::move(target)), name_(std::move(name)), instance_(in) {}

    IOStatus Fsync(const IOOptions &, IODebugContext *) override {
        return status_of(nowait_sync_dir(instance_, name_.c_str(), 0));
    }

    IOStatus FsyncWithDirOptions(const IOOptions &options, IODebugContext *context, const DirFsyncOptions &) override {
        return Fsync(options, context);
    }

private:
    std::string name_;
    nowait_instance instance_;
};

class NowaitFileSystem : public FileSystemWrapper {
public:
    explicit NowaitFileSystem(instance in)
        : FileSystemWrapper(FileSystem::Default()), instance_(std::move(in)), queues_(std::make_shared<Queues>()) {}

    static const char *kClassName() { return "NowaitFileSystem"; }
    const char *Name() const override { return kClassName(); }
    const char *NickName() const override { return "nowait"; }

    IOStatus NewSequentialFile(const std::string &name, const FileOptions &options,
                               std::unique_ptr<FSSequentialFile> *result, IODebugContext *) override {
        file opened;
        IOStatus status = open(name, O_RDONLY, options.use_direct_reads, &opened);
        result->reset(status.ok() ? new SequentialFile(std::move(opened)) : nullptr);
        return status;
    }

    IOStatus NewRandomAccessFile(const std::string &name, const FileOptions &options,
                                 std::unique_ptr<FSRandomAccessFile> *result, IODebugContext *context) override {
        if (options.use_mmap_reads) {
            return target_->NewRandomAccessFile(name, options, result, context);
        }
        file opened;
        IOStatus status = open(name, O_RDONLY, options.use_direct_reads, &opened);
        result->reset(status.ok() ? new RandomAccessFile(std::move(opened), queues_) : nullptr);
        return status;
    }

    IOStatus NewWritableFile(const std::string &name, const FileOptions &options,
                             std::unique_ptr<FSWritableFile> *result, IODebugContext *context) override {
        if (options.use_mmap_writes) {
            return target_->NewWritableFile(name, options, result, context);
        }
        return open_writable(name, O_CREAT | O_TRUNC, options, result);
    }

    IOStatus ReopenWritableFile(const std::string &name, const FileOptions &options,
                                std::unique_ptr<FSWritableFile> *result, IODebugContext *context) override {
        if (options.use_mmap_writes) {
            return target_->ReopenWritableFile(name, options, result, context);
        }
        return open_writable(name, O_CREAT, options, result);
    }

    IOStatus ReuseWritableFile(const std::string &name, const std::string &old_name, const FileOptions &options,
                               std::unique_ptr<FSWritableFile> *result, IODebugContext *context) override {
        if (options.use_mmap_writes) {
            return target_->ReuseWritableFile(name, old_name, options, result, context);
        }
        result->reset();
        file opened;
        IOStatus status = open(old_name, O_WRONLY, options.use_direct_writes, &opened);
        if (status.ok()) {
            status = target_->RenameFile(old_name, name, options.io_options, context);
        }
        if (status.ok()) {
            // The old contents are overwritten in place.
            result->reset(new WritableFile(std::move(opened), 0, options));
        }
        return status;
    }

    IOStatus NewRandomRWFile(const std::string &name, const FileOptions &, std::unique_ptr<FSRandomRWFile> *result,
                             IODebugContext *) override {
        file opened;
        IOStatus status = open(name, O_RDWR, false, &opened);
        result->reset(status.ok() ? new RandomRWFile(std::move(opened)) : nullptr);
        return status;
    }

    IOStatus NewDirectory(const std::string &name, const IOOptions &options, std::unique_ptr<FSDirectory> *result,
                          IODebugContext *context) override {
        IOStatus status = target_->NewDirectory(name, options, result, context);
        if (status.ok()) {
            result->reset(new Directory(std::move(*result), name, instance_.get()));
        }
        return status;
    }

    IOStatus Poll(std::vector<void *> &handles, std::size_t) override {
        for (void *handle : handles) {
            static_cast<AsyncRead *>(handle)->wait();
        }
        return IOStatus::OK();
    }

    IOStatus AbortIO(std::vector<void *> &handles) override {
        for (void *handle : handles) {
            static_cast<AsyncRead *>(handle)->cancel();
        }
        return Poll(handles, handles.size());
    }

#if ROCKSDB_MAJOR > 8 || (ROCKSDB_MAJOR == 8 && ROCKSDB_MINOR >= 4)
    void SupportedOps(int64_t &supported) override {
        target_->SupportedOps(supported);
        supported |= 1 << FSSupportedOps::kAsyncIO;
    }
#endif

private:
    IOStatus open(const std::string &name, int flags, bool is_direct, file *opened) {
        // All users may read new files, as with RocksDB's own file system.
        const unsigned mode = 0644;
        nowait_file number = 0;
        int result = nowait_file_open(instance_.get(), name.c_str(), flags | (is_direct ? O_DIRECT : 0), mode, &number);
        *opened = file(number);
        return status_of(result);
    }

    IOStatus open_writable(const std::string &name, int flags, const FileOptions &options,
                           std::unique_ptr<FSWritableFile> *result) {
        file opened;
        std::uint64_t size = 0;
        IOStatus status = open(name, O_WRONLY | flags, options.use_direct_writes, &opened);
        if (status.ok()) {
            status = status_of(nowait_file_size(opened.get(), &size));
        }
        result->reset(status.ok() ? new WritableFile(std::move(opened), size, options) : nullptr);
        return status;
    }

    instance instance_;
    std::shared_ptr<Queues> queues_;
};

// Opens the instance for `name`, the text after "nowait://". An empty name means the shared instance.
int open_instance(const std::string &name, instance *opened) {
    nowait_instance_options options = {};
    options.size = sizeof options;
    if (name == "uring") {
        options.engine = NOWAIT_ENGINE_URING;
    } else if (name == "aio") {
        options.engine = NOWAIT_ENGINE_AIO;
    } else if (name == "pool") {
        options.engine = NOWAIT_ENGINE_POOL;
    } else if (name == "strict") {
        options.strict = 1;
    } else {
        return name.empty() ? 0 : -EINVAL;
    }
    nowait_instance number = 0;
    int result = nowait_instance_open(&options, &number);
    *opened = instance(number);
    return result;
}

const std::string SCHEME = "://";

FileSystem *create(const std::string &uri, std::unique_ptr<FileSystem> *guard, std::string *message) {
    instance opened;
    std::size_t scheme = uri.find(SCHEME);
    int result = open_instance(scheme == std::string::npos ? "" : uri.substr(scheme + SCHEME.size()), &opened);
    if (result < 0) {
        *message = result == -EINVAL ? uri + ": the engines are uring, aio, pool and strict" : nowait_error_message();
        return nullptr;
    }
    guard->reset(new NowaitFileSystem(std::move(opened)));
    return guard->get();
}

// Registers `create`, which RocksDB calls for URIs such as those of --fs_uri.
[[maybe_unused]] const FactoryFunc<FileSystem> REGISTERED = ObjectLibrary::Default()->AddFactory<FileSystem>(
    ObjectLibrary::PatternEntry("nowait").AddSeparator(SCHEME, false), create);

} // namespace

std::shared_ptr<rocksdb::FileSystem> new_rocksdb_file_system(instance in) {
    return std::make_shared<NowaitFileSystem>(std::move(in));
}

} // namespace nowait
