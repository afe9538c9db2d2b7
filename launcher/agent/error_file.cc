#include "launcher/agent/error_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <initializer_list>
#include <vector>

namespace ddprun::agent {
namespace {

constexpr int64_t kErrorSecondNs = 1'000'000'000;
constexpr std::string_view kTokenCharacters =
    "+-._0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
constexpr int64_t kTimestampMax = int64_t{1} << 33;  // the year 2242; keeps nanoseconds in range

bool IsContinuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

std::string KeepBeginning(std::string text, size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  while (bytes_max > 0 && IsContinuation(text[bytes_max])) --bytes_max;
  text.resize(bytes_max);
  return text;
}

std::string KeepEnd(std::string text, size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  size_t begin = text.size() - bytes_max;
  while (begin < text.size() && IsContinuation(text[begin])) ++begin;
  return text.substr(begin);
}

void AppendUtf8(uint32_t code, std::string* text) {
  if (code < 0x80) {
    text->push_back(static_cast<char>(code));
    return;
  }
  if (code < 0x800) {
    text->push_back(static_cast<char>(0xC0 | (code >> 6)));
  } else {
    if (code < 0x10000) {
      text->push_back(static_cast<char>(0xE0 | (code >> 12)));
    } else {
      text->push_back(static_cast<char>(0xF0 | (code >> 18)));
      text->push_back(static_cast<char>(0x80 | ((code >> 12) & 0x3F)));
    }
    text->push_back(static_cast<char>(0x80 | ((code >> 6) & 0x3F)));
  }
  text->push_back(static_cast<char>(0x80 | (code & 0x3F)));
}

// Walks through JSON and keeps the few fields that count. It forgives what a JSON library does not:
// an end in the middle, NaN, half a surrogate pair (Python writes one for a byte that is no UTF-8).
class ErrorFileScanner {
 public:
  explicit ErrorFileScanner(std::string_view text) : text_(text) {}

  // False: it is no JSON from here on. What was found before counts all the same.
  bool Value() {
    SkipSpace();
    if (at_ >= text_.size()) return false;
    if (text_[at_] == '{') return Nested('}', /*has_keys=*/true);
    if (text_[at_] == '[') return Nested(']', /*has_keys=*/false);
    std::string value;
    const bool whole = text_[at_] == '"' ? String(&value) : Token(&value);
    Take(std::move(value));
    return whole;
  }

  bool has_message() const { return has_message_; }
  ErrorFileContent TakeContent() { return std::move(content_); }

 private:
  void SkipSpace() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }

  bool Nested(char end, bool has_keys) {
    if (path_.size() >= static_cast<size_t>(kErrorFileDepthMax)) return false;
    ++at_;
    for (bool first = true;; first = false) {
      SkipSpace();
      if (at_ >= text_.size()) return false;
      if (text_[at_] == end) {
        ++at_;
        return true;
      }
      if (!first) {
        if (text_[at_] != ',') return false;
        ++at_;
        SkipSpace();
      }
      std::string key;
      if (has_keys) {
        if (at_ >= text_.size() || text_[at_] != '"' || !String(&key)) return false;
        SkipSpace();
        if (at_ >= text_.size() || text_[at_] != ':') return false;
        ++at_;
      }
      path_.push_back(std::move(key));
      const bool whole = Value();
      path_.pop_back();
      if (!whole) return false;
    }
  }

  // REQUIRES: a quote stands here.
  bool String(std::string* value) {
    for (++at_; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '"') {
        ++at_;
        return true;
      }
      if (c != '\\') {
        value->push_back(c);
        continue;
      }
      if (++at_ >= text_.size()) return false;
      Escape(value);
    }
    return false;
  }

  void Escape(std::string* value) {
    static constexpr std::string_view kNames = "bfnrt";
    static constexpr std::string_view kValues = "\b\f\n\r\t";
    const char c = text_[at_];
    const size_t index = kNames.find(c);
    if (index != std::string_view::npos) {
      value->push_back(kValues[index]);
    } else if (c == 'u') {
      AppendUtf8(CodePoint(), value);
    } else {
      value->push_back(c);
    }
  }

  // The code point of the \u at whose 'u' we stand; stays on its last character.
  uint32_t CodePoint() {
    constexpr uint32_t kReplacement = 0xFFFD;
    const uint32_t high = Hex4(at_ + 1);
    if (high > 0xFFFF) return kReplacement;
    at_ += 4;
    if (high < 0xD800 || high > 0xDFFF) return high;
    const bool pair = high < 0xDC00 && text_.substr(std::min(at_ + 1, text_.size()), 2) == "\\u";
    const uint32_t low = pair ? Hex4(at_ + 3) : 0;
    if (low < 0xDC00 || low > 0xDFFF) return kReplacement;
    at_ += 6;
    return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
  }

  // Above 0xFFFF where no four hexadecimal digits stand.
  uint32_t Hex4(size_t at) const {
    uint32_t code = 0;
    const std::string_view digits = text_.substr(std::min(at, text_.size()), 4);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    return digits.size() == 4 && error == std::errc() && end == digits.data() + 4 ? code : 0x10000;
  }

  // A number, true, null, NaN.
  bool Token(std::string* value) {
    const size_t begin = at_;
    at_ = std::min(text_.find_first_not_of(kTokenCharacters, at_), text_.size());
    *value = text_.substr(begin, at_ - begin);
    return at_ > begin;
  }

  bool At(std::initializer_list<std::string_view> path) const {
    return std::equal(path_.begin(), path_.end(), path.begin(), path.end());
  }

  void Take(std::string value) {
    if (At({"message"}) || At({"message", "message"})) {
      content_.message = KeepBeginning(std::move(value), kErrorMessageBytesMax);
      has_message_ = true;
    } else if (At({"message", "extraInfo", "py_callstack"})) {
      content_.traceback = KeepEnd(std::move(value), kErrorTracebackBytesMax);
      has_message_ = true;
    } else if (At({"timestamp"}) || At({"message", "extraInfo", "timestamp"})) {
      int64_t seconds = 0;
      // A fraction, as in 1700000000.25, is left aside.
      const auto result = std::from_chars(value.data(), value.data() + value.size(), seconds);
      const bool good = result.ec == std::errc() && seconds > 0 && seconds < kTimestampMax;
      if (good) content_.timestamp_seconds = seconds;
    }
  }

  std::string_view text_;
  size_t at_ = 0;
  std::vector<std::string> path_;  // keys of the objects that we are in; "" for a list
  bool has_message_ = false;
  ErrorFileContent content_;
};

}  // namespace

std::optional<ErrorFileContent> ParseErrorFile(std::string_view bytes, std::string* problem) {
  ErrorFileScanner scanner(bytes.substr(0, kErrorFileBytesMax));
  const bool whole = scanner.Value();
  if (scanner.has_message()) return scanner.TakeContent();
  *problem = bytes.empty() ? "it is empty"
             : whole       ? "it is JSON without a 'message'"
                           : "it is not the JSON that PyTorch writes there";
  return std::nullopt;
}

int64_t ErrorTimeNs(int64_t timestamp_seconds, int64_t file_time_ns) {
  if (timestamp_seconds <= 0) return file_time_ns;
  const int64_t begin = timestamp_seconds * kErrorSecondNs;
  // The timestamp is rounded down, so its second lasts until the next one begins.
  const bool agrees =
      file_time_ns >= begin - kErrorSecondNs && file_time_ns < begin + 2 * kErrorSecondNs;
  return agrees ? file_time_ns : begin;
}

std::optional<ErrorFile> ReadErrorFile(const std::string& path, std::string* problem) {
  // Not blocking: it may be anything, even a pipe.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) {
    if (errno != ENOENT) *problem = std::string("it cannot be opened: ") + strerrordesc_np(errno);
    return std::nullopt;
  }
  struct stat info = {};
  std::string bytes(kErrorFileBytesMax, '\0');
  size_t size = 0;
  const bool regular = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  while (regular && size < bytes.size()) {
    const ssize_t got = read(fd, bytes.data() + size, bytes.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    size += static_cast<size_t>(got);
  }
  close(fd);
  if (!regular) {
    *problem = "it is not a regular file";
    return std::nullopt;
  }
  const std::optional<ErrorFileContent> content =
      ParseErrorFile(std::string_view(bytes.data(), size), problem);
  if (!content) return std::nullopt;
  const int64_t file_time_ns = info.st_mtim.tv_sec * kErrorSecondNs + info.st_mtim.tv_nsec;
  return ErrorFile{*content, ErrorTimeNs(content->timestamp_seconds, file_time_ns)};
}

}  // namespace ddprun::agent
