#include "worker/data/idx_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/checksum.h"
#include "worker/data/mapped_ranges.h"
#include "worker/data/pixel_statistics.h"

namespace ddprun {
namespace {

constexpr char kMagic[8] = {'d', 'd', 'p', 'i', 'd', 'x', '0', '1'};

absl::Status SystemError(const std::string& what, const std::string& path) {
  return absl::UnavailableError(absl::StrCat("cannot ", what, " ", path, ": ", strerror(errno)));
}

absl::Status DescribeSource(const std::string& path, IdxCacheHeader::Source* source) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return SystemError("stat", path);
  if (path.size() >= sizeof(source->path)) {
    return absl::UnavailableError(absl::StrCat("path too long for the data cache: ", path));
  }
  source->bytes = static_cast<uint64_t>(info.st_size);
  source->modified_ns = info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec;
  std::strncpy(source->path, path.c_str(), sizeof(source->path) - 1);
  return absl::OkStatus();
}

uint64_t HeaderHash(const IdxCacheHeader& header) {
  return Xxh3(&header, offsetof(IdxCacheHeader, header_hash_low)).low;
}

absl::Status WriteAll(int fd, const void* data, size_t size, const std::string& path) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  while (size > 0) {
    const ssize_t count = write(fd, bytes, size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return SystemError("write", path);
    bytes += count;
    size -= static_cast<size_t>(count);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const IdxStore>> IdxCache::ReadPrivate(const IdxFiles& files) {
  absl::StatusOr<IdxSplit> split = ReadIdxSplit(files);
  if (!split.ok()) return split.status();
  std::shared_ptr<IdxStore> store(new IdxStore());
  store->owned_ = *std::move(split);
  store->samples_ = store->owned_.images.shape[0];
  store->rows_ = store->owned_.images.shape[1];
  store->columns_ = store->owned_.images.shape[2];
  store->images_ = store->owned_.images.data.data();
  store->labels_ = store->owned_.labels.data.data();
  const PixelStatistics statistics =
      ComputePixelStatistics(store->images_, store->owned_.images.data.size());
  store->mean_ = statistics.mean;
  store->deviation_ = statistics.deviation;
  return store;
}

absl::StatusOr<std::shared_ptr<const IdxStore>> IdxCache::Map(const std::string& path,
                                                              const IdxCacheHeader& expected) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return SystemError("open", path);
  absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat info;
  if (fstat(fd, &info) != 0) return SystemError("stat", path);
  const auto bad = [&](const char* what) {
    return absl::DataLossError(absl::StrCat(path, ": ", what));
  };
  IdxCacheHeader header;
  if (info.st_size < static_cast<off_t>(kIdxCacheHeaderBytes) ||
      pread(fd, &header, sizeof(header), 0) != static_cast<ssize_t>(sizeof(header))) {
    return bad("cut short");
  }
  if (memcmp(header.magic, kMagic, sizeof(kMagic)) != 0 ||
      header.header_hash_low != HeaderHash(header)) {
    return bad("its header is damaged");
  }
  if (memcmp(&header.images, &expected.images, sizeof(header.images)) != 0 ||
      memcmp(&header.labels, &expected.labels, sizeof(header.labels)) != 0) {
    return bad("made from other data files");
  }
  const uint64_t payload = header.samples * header.rows * header.columns + header.samples;
  if (static_cast<uint64_t>(info.st_size) != kIdxCacheHeaderBytes + payload)
    return bad("has a wrong size");
  std::shared_ptr<IdxStore> store(new IdxStore());
  void* map =
      mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (map == MAP_FAILED) return SystemError("map", path);
  store->map_ = map;
  store->map_bytes_ = static_cast<size_t>(info.st_size);
  RememberMapped(map, store->map_bytes_, path);
  store->images_ = static_cast<const uint8_t*>(map) + kIdxCacheHeaderBytes;
  store->labels_ = store->images_ + header.samples * header.rows * header.columns;
  if (Xxh3(store->images_, payload) != Hash128{header.payload_hash_high, header.payload_hash_low}) {
    return bad("its checksum does not match");
  }
  store->samples_ = static_cast<int64_t>(header.samples);
  store->rows_ = static_cast<int64_t>(header.rows);
  store->columns_ = static_cast<int64_t>(header.columns);
  store->mean_ = header.mean;
  store->deviation_ = header.deviation;
  return store;
}

absl::Status IdxCache::Make(const IdxFiles& files, const std::string& path, IdxCacheHeader header) {
  absl::StatusOr<std::shared_ptr<const IdxStore>> store = ReadPrivate(files);
  if (!store.ok()) return store.status();
  const IdxStore& data = **store;
  const size_t image_bytes = static_cast<size_t>(data.samples() * data.pixels());
  memcpy(header.magic, kMagic, sizeof(kMagic));
  header.samples = static_cast<uint64_t>(data.samples());
  header.rows = static_cast<uint64_t>(data.rows());
  header.columns = static_cast<uint64_t>(data.columns());
  header.mean = data.mean();
  header.deviation = data.deviation();
  Xxh3Stream stream;
  stream.Update(data.images(), image_bytes);
  stream.Update(data.labels(), static_cast<size_t>(data.samples()));
  const Hash128 hash = stream.Finish();
  header.payload_hash_high = hash.high;
  header.payload_hash_low = hash.low;
  header.header_hash_low = HeaderHash(header);

  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return SystemError("create", temporary);
  std::vector<uint8_t> page(kIdxCacheHeaderBytes, 0);
  memcpy(page.data(), &header, sizeof(header));
  absl::Status status = WriteAll(fd, page.data(), page.size(), temporary);
  if (status.ok()) status = WriteAll(fd, data.images(), image_bytes, temporary);
  if (status.ok())
    status = WriteAll(fd, data.labels(), static_cast<size_t>(data.samples()), temporary);
  // No fsync: the checksum finds what a power failure leaves, and the cache can be made again.
  if (close(fd) != 0 && status.ok()) status = SystemError("close", temporary);
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0)
    status = SystemError("rename", temporary);
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

absl::StatusOr<std::shared_ptr<const IdxStore>> IdxCache::OpenOrMake(const IdxFiles& files,
                                                                     const std::string& dir) {
  IdxCacheHeader expected;
  memset(&expected, 0, sizeof(expected));  // compared and hashed as bytes
  if (absl::Status status = DescribeSource(files.images, &expected.images); !status.ok())
    return status;
  if (absl::Status status = DescribeSource(files.labels, &expected.labels); !status.ok())
    return status;
  Xxh3Stream stream;
  stream.Update(&expected.images, sizeof(expected.images));
  stream.Update(&expected.labels, sizeof(expected.labels));
  const std::string path = absl::StrFormat("%s/idx-%016x", dir, stream.Finish().low);
  if (auto store = Map(path, expected); store.ok()) return store;

  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error)
    return absl::UnavailableError(absl::StrCat("cannot make ", dir, ": ", error.message()));
  const std::string lock_path = path + ".lock";
  const int lock = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock < 0) return SystemError("create", lock_path);
  absl::Cleanup unlock = [lock] { close(lock); };  // a rank that dies lets go of the lock too
  while (flock(lock, LOCK_EX) != 0) {
    if (errno != EINTR) return SystemError("lock", lock_path);
  }
  if (auto store = Map(path, expected); store.ok()) return store;  // another rank made it meanwhile
  if (absl::Status status = Make(files, path, expected); !status.ok()) return status;
  return Map(path, expected);
}

}  // namespace ddprun
