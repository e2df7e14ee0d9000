// A file system for RocksDB that reads, writes and syncs through nowait. See README.md.

#ifndef NOWAIT_FS_H
#define NOWAIT_FS_H

#include <memory>

#include <nowait.hpp>
#include <rocksdb/file_system.h>

namespace nowait {

// Returns a file system whose files are opened in `in`, or in the shared instance of the process.
// The file system keeps the instance open: nowait_instance_stats(in.get(), ...) counts its operations.
std::shared_ptr<rocksdb::FileSystem> new_rocksdb_file_system(instance in = {});

} // namespace nowait

#endif
