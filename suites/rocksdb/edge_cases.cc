// Prints the results of calls that RocksDB's own tests do not make: edge_cases URI FILE.
// An empty URI means RocksDB's own file system, with which the results of others are compared.

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <rocksdb/convenience.h>
#include <rocksdb/file_system.h>

using namespace rocksdb;

static const IOOptions OPTIONS;
static const std::size_t BLOCK = 4096;

static void print(const char *call, const IOStatus &status) {
    std::printf("%s: code %d, subcode %d, retryable %d\n", call, status.code(), status.subcode(),
                status.GetRetryable());
}

static void print(const char *call, const IOStatus &status, const Slice &data) {
    print(call, status);
    std::printf("  %zu bytes: %.20s\n", data.size(), std::string(data.data(), data.size()).c_str());
}

static void print_contents(FileSystem &system, const std::string &name) {
    std::string data;
    IOStatus status = ReadFileToString(&system, name, &data);
    print("contents", status, data);
}

// The same blocks twice, blocks that overlap, and blocks across and after the end.
static void read_many(FSRandomAccessFile &file, char *scratch) {
    FSReadRequest requests[5];
    std::size_t blocks[] = {1, 1, 0, 2, 1000}, at = 0;
    for (FSReadRequest &request : requests) {
        request.offset = blocks[at] * BLOCK;
        request.len = 2 * BLOCK;
        request.scratch = scratch + 2 * BLOCK * at++;
    }
    print("reads", file.MultiRead(requests, 5, OPTIONS, nullptr));
    for (FSReadRequest &request : requests) {
        print("  read", request.status, request.result);
    }
}

static void read_asynchronously(FileSystem &system, FSRandomAccessFile &file, char *scratch, bool polls) {
    FSReadRequest request;
    request.offset = BLOCK;
    request.len = BLOCK;
    request.scratch = scratch;
    void *handle = nullptr;
    IOHandleDeleter deleter;
    request.status = IOStatus::TimedOut();
    auto callback = [&](const FSReadRequest &read, void *) {
        request.status = read.status;
        request.result = read.result;
    };
    IOStatus status = file.ReadAsync(request, OPTIONS, callback, nullptr, &handle, &deleter, nullptr);
    if (status.IsNotSupported()) {
        // RocksDB's own, built without liburing.
        status = file.FSRandomAccessFile::ReadAsync(request, OPTIONS, callback, nullptr, &handle, &deleter, nullptr);
    }
    std::vector<void *> handles(handle != nullptr && polls ? 2 : 0, handle);
    if (!handles.empty() && !system.Poll(handles, 1).ok()) {
        status = IOStatus::Aborted();
    }
    if (handle != nullptr) {
        deleter(handle);
    }
    print("asynchronous read", status);
    if (polls) {
        print("  read", request.status, request.result);
    }
}

static void read(FileSystem &system, const std::string &name, bool is_direct) {
    FileOptions options;
    options.use_direct_reads = is_direct;
    std::unique_ptr<FSRandomAccessFile> file;
    print("open", system.NewRandomAccessFile(name, options, &file, nullptr));
    char *scratch = static_cast<char *>(std::aligned_alloc(BLOCK, 10 * BLOCK));
    auto all = [&] {
        file->InvalidateCache(0, 0).PermitUncheckedError();
        read_many(*file, scratch);
        for (bool polls : {true, false, true}) {
            file->InvalidateCache(0, 0).PermitUncheckedError();
            read_asynchronously(system, *file, scratch, polls);
        }
    };
    all();
    std::fflush(stdout);
    if (pid_t child = fork(); child == 0) {
        all();
        std::fflush(stdout);
        _exit(0);
    }
    int ended = 0;
    wait(&ended);
    std::printf("the child ended with %d\n", ended);
    std::free(scratch);
}

static void append_too_much(FSWritableFile &file) {
    struct rlimit limit = {};
    getrlimit(RLIMIT_FSIZE, &limit);
    struct rlimit small = {15, limit.rlim_max};
    // Only now: the limit is also that of the file with these lines.
    std::fflush(stdout);
    setrlimit(RLIMIT_FSIZE, &small);
    IOStatus status = file.Append("0123456789", OPTIONS, nullptr);
    setrlimit(RLIMIT_FSIZE, &limit);
    print("append too much", status);
}

static void write(FileSystem &system, const std::string &name) {
    std::unique_ptr<FSWritableFile> file;
    auto print_size = [&] {
        std::printf("  size %llu\n", static_cast<unsigned long long>(file->GetFileSize(OPTIONS, nullptr)));
    };
    print("open", system.NewWritableFile(name, FileOptions(), &file, nullptr));
    file->SetPreallocationBlockSize(1 << 20);
    file->PrepareWrite(0, 10, OPTIONS, nullptr);
    print("append nothing", file->Append(Slice(), OPTIONS, nullptr));
    print("append", file->Append("0123456789", OPTIONS, nullptr));
    append_too_much(*file);
    print_size();
    print("close", file->Close(OPTIONS, nullptr));
    print("close again", file->Close(OPTIONS, nullptr));
    print("append after the close", file->Append("x", OPTIONS, nullptr));
    print("sync after the close", file->Sync(OPTIONS, nullptr));
    print_contents(system, name);
    print("reopen", system.ReopenWritableFile(name, FileOptions(), &file, nullptr));
    print("append", file->Append("abc", OPTIONS, nullptr));
    print("extend", file->Truncate(20, OPTIONS, nullptr));
    print_size();
    print("truncate", file->Truncate(12, OPTIONS, nullptr));
    file.reset();
    print_contents(system, name);
    print("reuse none", system.ReuseWritableFile(name + ".new", name + ".none", FileOptions(), &file, nullptr));
    print("reuse as none", system.ReuseWritableFile(name + "/new", name, FileOptions(), &file, nullptr));
    print_contents(system, name);
    print("reuse", system.ReuseWritableFile(name + ".new", name, FileOptions(), &file, nullptr));
    print("append", file->Append("XY", OPTIONS, nullptr));
    print_size();
    file.reset();
    print_contents(system, name + ".new");
    print("old name", system.FileExists(name, OPTIONS, nullptr));
    print("open a directory", system.NewWritableFile(name + "/..", FileOptions(), &file, nullptr));

    std::unique_ptr<FSRandomRWFile> both;
    print("open none", system.NewRandomRWFile(name, FileOptions(), &both, nullptr));
    print("open", system.NewRandomRWFile(name + ".new", FileOptions(), &both, nullptr));
    print("write", both->Write(14, "z", OPTIONS, nullptr));
    char scratch[100];
    Slice data;
    IOStatus status = both->Read(10, 100, OPTIONS, &data, scratch, nullptr);
    print("read", status, data);
    print("close", both->Close(OPTIONS, nullptr));
    print("close again", both->Close(OPTIONS, nullptr));

    std::unique_ptr<FSSequentialFile> sequential;
    print("open", system.NewSequentialFile(name + ".new", FileOptions(), &sequential, nullptr));
    for (int skipped : {1, 1000}) {
        print("skip", sequential->Skip(skipped));
        status = sequential->Read(4, OPTIONS, &data, scratch, nullptr);
        print("read", status, data);
    }
    std::unique_ptr<FSDirectory> directory;
    print("no directory", system.NewDirectory(name + ".none", OPTIONS, &directory, nullptr));
}

int main(int, char **arguments) {
    std::shared_ptr<FileSystem> system = FileSystem::Default();
    if (*arguments[1] != 0) {
        Status created = FileSystem::CreateFromString(ConfigOptions(), arguments[1], &system);
        if (!created.ok()) {
            std::puts(created.ToString().c_str());
            return 1;
        }
    }
    std::signal(SIGXFSZ, SIG_IGN);
    std::string name = arguments[2];
    print("write", WriteStringToFile(system.get(), std::string(BLOCK, 'a') + std::string(BLOCK, 'b') + "end", name));
    read(*system, name, false);
    read(*system, name, true);
    write(*system, name);
}
