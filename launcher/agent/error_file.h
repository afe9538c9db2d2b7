// The error file of a worker (TORCHELASTIC_ERROR_FILE), as PyTorch's @record and programs that
// imitate it write it:
//   {"message": "text", "timestamp": 1700000000}
//   {"message": {"message": "text", "extraInfo": {"py_callstack": "text", "timestamp": "170…"}}}
//
// It comes from a program that has just failed, so it may be cut off, hold any bytes or be no JSON
// at all: what can be read of it is read, and nothing in it makes the reading fail in a way other
// than saying so. Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun::agent {

inline constexpr size_t kErrorFileBytesMax = size_t{1} << 20;  // what lies behind is not read
inline constexpr size_t kErrorMessageBytesMax = 4096;          // its beginning is kept
inline constexpr size_t kErrorTracebackBytesMax = 16384;       // its end is kept
inline constexpr int kErrorFileDepthMax = 64;

struct ErrorFileContent {
  std::string message;
  std::string traceback;
  int64_t timestamp_seconds = 0;  // since the epoch; 0: none, or none that makes sense
};

// nullopt and one sentence in *problem when there is no message to be found. Pure.
std::optional<ErrorFileContent> ParseErrorFile(std::string_view bytes, std::string* problem);

// When the error was: the file's own time where it agrees with the timestamp (whole seconds, which
// order nothing), else the timestamp. Pure.
int64_t ErrorTimeNs(int64_t timestamp_seconds, int64_t file_time_ns);

struct ErrorFile {
  ErrorFileContent content;
  int64_t time_ns = 0;  // ErrorTimeNs of it
};
// nullopt without a problem: there is no such file.
std::optional<ErrorFile> ReadErrorFile(const std::string& path, std::string* problem);

}  // namespace ddprun::agent
