#include "common/idx.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace ddprun {
namespace {

constexpr size_t kChunkBytes = 256 * 1024;
// Deflate cannot shrink data more than about 1,032 times; a header that claims more is damaged.
constexpr int64_t kDeflateRatioMax = 1100;

absl::Status Bad(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

// Bytes of a file, decompressed when it is gzip. One thread.
class ByteSource {
 public:
  explicit ByteSource(std::string path) : path_(std::move(path)), buffer_(kChunkBytes) {}
  ~ByteSource() {
    if (gzip_) inflateEnd(&stream_);
    if (fd_ >= 0) close(fd_);
  }
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  absl::Status Open();
  // Reads exactly `size` bytes, or says that the file ends before them.
  absl::Status ReadExactly(void* out, size_t size);
  // OK when nothing follows. For gzip this is where checksum and length of the stream are checked.
  absl::Status ExpectEnd();
  int64_t file_bytes() const { return file_bytes_; }
  bool gzip() const { return gzip_; }

 private:
  absl::StatusOr<size_t> ReadRaw(uint8_t* out, size_t size);
  absl::StatusOr<size_t> ReadSome(uint8_t* out, size_t size);  // 0: end
  absl::Status Refill();

  const std::string path_;
  int fd_ = -1;
  int64_t file_bytes_ = 0;
  int64_t delivered_ = 0;
  bool gzip_ = false;
  bool member_done_ = false;
  bool file_done_ = false;
  z_stream stream_ = {};
  std::vector<uint8_t> buffer_;
};

absl::Status ByteSource::Open() {
  // Without O_NONBLOCK a named pipe would be waited for, maybe for ever.
  fd_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) return Bad(path_, absl::StrCat("cannot open the data file: ", strerror(errno)));
  struct stat info;
  if (fstat(fd_, &info) != 0) return Bad(path_, absl::StrCat("cannot stat: ", strerror(errno)));
  if (!S_ISREG(info.st_mode)) return Bad(path_, "not a regular file");
  file_bytes_ = info.st_size;
  std::array<uint8_t, 2> magic = {};
  const ssize_t count = pread(fd_, magic.data(), magic.size(), 0);
  if (count < 0) return Bad(path_, absl::StrCat("cannot read: ", strerror(errno)));
  gzip_ = count == 2 && magic[0] == 0x1f && magic[1] == 0x8b;
  if (!gzip_ && absl::EndsWith(path_, ".gz")) {
    return Bad(path_,
               absl::StrFormat("not a gzip file though its name ends in .gz (%d bytes, begins with "
                               "%02x %02x); copy the file again, or rename it if it is plain IDX",
                               file_bytes_, magic[0], magic[1]));
  }
  if (gzip_ && inflateInit2(&stream_, 15 + 16) != Z_OK) {
    gzip_ = false;
    return absl::ResourceExhaustedError(absl::StrCat(path_, ": no memory to decompress"));
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> ByteSource::ReadRaw(uint8_t* out, size_t size) {
  while (true) {
    const ssize_t count = read(fd_, out, size);
    if (count >= 0) return static_cast<size_t>(count);
    if (errno != EINTR) return Bad(path_, absl::StrCat("cannot read: ", strerror(errno)));
  }
}

absl::Status ByteSource::Refill() {
  if (stream_.avail_in > 0 || file_done_) return absl::OkStatus();
  absl::StatusOr<size_t> count = ReadRaw(buffer_.data(), buffer_.size());
  if (!count.ok()) return count.status();
  file_done_ = *count == 0;
  stream_.next_in = buffer_.data();
  stream_.avail_in = static_cast<uInt>(*count);
  return absl::OkStatus();
}

absl::StatusOr<size_t> ByteSource::ReadSome(uint8_t* out, size_t size) {
  if (!gzip_) return ReadRaw(out, size);
  constexpr size_t kPieceMax = size_t{1} << 30;  // zlib counts in 32 bits
  stream_.next_out = out;
  stream_.avail_out = static_cast<uInt>(std::min(size, kPieceMax));
  const size_t wanted = stream_.avail_out;
  while (stream_.avail_out == wanted) {
    if (absl::Status status = Refill(); !status.ok()) return status;
    if (stream_.avail_in == 0 && file_done_) {
      if (member_done_) return size_t{0};
      return Bad(path_, absl::StrCat("truncated: the gzip stream breaks off after ", delivered_,
                                     " decompressed bytes; copy the file again"));
    }
    if (member_done_) {  // gzip allows several members one after the other
      inflateReset(&stream_);
      member_done_ = false;
    }
    const int result = inflate(&stream_, Z_NO_FLUSH);
    if (result == Z_STREAM_END) {
      member_done_ = true;
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      return Bad(
          path_,
          absl::StrCat("damaged gzip data (", stream_.msg != nullptr ? stream_.msg : "zlib error",
                       ") after ", delivered_, " decompressed bytes; copy the file again"));
    }
  }
  return wanted - stream_.avail_out;
}

absl::Status ByteSource::ReadExactly(void* out, size_t size) {
  auto* bytes = static_cast<uint8_t*>(out);
  while (size > 0) {
    absl::StatusOr<size_t> count = ReadSome(bytes, size);
    if (!count.ok()) return count.status();
    if (*count == 0) {
      return Bad(path_, absl::StrCat("truncated: ends after ", delivered_, " bytes, ", size,
                                     " more were expected; copy the file again"));
    }
    bytes += *count;
    size -= *count;
    delivered_ += static_cast<int64_t>(*count);
  }
  return absl::OkStatus();
}

absl::Status ByteSource::ExpectEnd() {
  uint8_t extra = 0;
  absl::StatusOr<size_t> count = ReadSome(&extra, 1);
  if (!count.ok()) return count.status();
  if (*count == 0) return absl::OkStatus();
  return Bad(path_, absl::StrCat("has bytes after the ", delivered_,
                                 " that its IDX header announces; the file is damaged"));
}

uint32_t BigEndian(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

absl::StatusOr<std::vector<int64_t>> ReadHeader(const std::string& path, int dimensions,
                                                ByteSource* source) {
  std::array<uint8_t, 4> magic;
  if (absl::Status status = source->ReadExactly(magic.data(), 4); !status.ok()) return status;
  if (magic[0] != 0 || magic[1] != 0) {
    return Bad(path, absl::StrFormat(
                         "not an IDX file: begins with %02x %02x %02x %02x, expected 00 00 08 %02x",
                         magic[0], magic[1], magic[2], magic[3], dimensions));
  }
  if (magic[2] != 0x08) {
    return Bad(path,
               absl::StrFormat("IDX element type 0x%02x; only unsigned bytes (0x08) can be read",
                               magic[2]));
  }
  if (magic[3] != dimensions) {
    return Bad(path,
               absl::StrFormat("has %d dimensions, expected %d; are images and labels mixed up?",
                               magic[3], dimensions));
  }
  std::vector<int64_t> shape;
  int64_t bytes = 1;
  for (int i = 0; i < dimensions; ++i) {
    std::array<uint8_t, 4> field;
    if (absl::Status status = source->ReadExactly(field.data(), 4); !status.ok()) return status;
    shape.push_back(BigEndian(field.data()));
    if (shape.back() > 0 && bytes > kIdxBytesMax / shape.back()) {
      return Bad(path, absl::StrCat("IDX header announces more than ", kIdxBytesMax,
                                    " bytes; the file is damaged, or too large for this reader"));
    }
    bytes *= shape.back();
  }
  const int64_t limit =
      source->gzip() ? source->file_bytes() * kDeflateRatioMax : source->file_bytes();
  if (bytes > limit) {
    return Bad(path, absl::StrCat("truncated: its IDX header announces ", bytes, " bytes (",
                                  absl::StrJoin(shape, " x "), "), but the file has only ",
                                  source->file_bytes(), "; copy the file again"));
  }
  return shape;
}

}  // namespace

absl::StatusOr<IdxArray> ReadIdx(const std::string& path, int dimensions) {
  ByteSource source(path);
  if (absl::Status status = source.Open(); !status.ok()) return status;
  absl::StatusOr<std::vector<int64_t>> shape = ReadHeader(path, dimensions, &source);
  if (!shape.ok()) return shape.status();
  size_t bytes = 1;
  for (int64_t extent : *shape) bytes *= static_cast<size_t>(extent);
  IdxArray array{*std::move(shape), std::vector<uint8_t>(bytes)};
  if (absl::Status status = source.ReadExactly(array.data.data(), bytes); !status.ok())
    return status;
  if (absl::Status status = source.ExpectEnd(); !status.ok()) return status;
  return array;
}

absl::StatusOr<IdxFiles> FindIdxFiles(const std::string& dir, Split split) {
  const auto find = [&](const std::string& name) -> absl::StatusOr<std::string> {
    for (const char* suffix : {".gz", ""}) {
      std::string path = absl::StrCat(dir, "/", name, suffix);
      if (access(path.c_str(), F_OK) == 0) return path;
    }
    return absl::NotFoundError(absl::StrCat(
        dir, "/", name,
        "[.gz]: no such data file; data.dir must hold the four IDX files of the data set",
        " (Fashion-MNIST: install the Debian package dataset-fashion-mnist)"));
  };
  const std::string prefix = split == Split::kTrain ? "train" : "t10k";
  absl::StatusOr<std::string> images = find(prefix + "-images-idx3-ubyte");
  if (!images.ok()) return images.status();
  absl::StatusOr<std::string> labels = find(prefix + "-labels-idx1-ubyte");
  if (!labels.ok()) return labels.status();
  return IdxFiles{*std::move(images), *std::move(labels)};
}

absl::StatusOr<IdxSplit> ReadIdxSplit(const IdxFiles& files) {
  absl::StatusOr<IdxArray> labels = ReadIdx(files.labels, 1);
  if (!labels.ok()) return labels.status();
  absl::StatusOr<IdxArray> images = ReadIdx(files.images, 3);
  if (!images.ok()) return images.status();
  if (images->shape[0] != labels->shape[0]) {
    return Bad(files.images,
               absl::StrCat("holds ", images->shape[0], " images, but ", files.labels, " holds ",
                            labels->shape[0], " labels; the two files do not belong together"));
  }
  if (images->data.empty()) return Bad(files.images, "holds no samples");
  return IdxSplit{*std::move(images), *std::move(labels)};
}

}  // namespace ddprun
