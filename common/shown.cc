#include "common/shown.h"

#include "absl/strings/str_cat.h"

namespace ddprun {
namespace {

// Bytes of the UTF-8 character that begins here; 0: none does, or it is one that moves the cursor
// or turns the writing around.
size_t CharacterBytes(absl::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first >= 0x20 && first < 0x7f) return 1;
  const size_t bytes = first >= 0xf0 && first <= 0xf4   ? 4
                       : first >= 0xe0 && first <= 0xef ? 3
                       : first >= 0xc2 && first <= 0xdf ? 2
                                                        : 0;
  if (bytes == 0 || text.size() < bytes) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return 0;
  }
  const auto second = static_cast<unsigned char>(text[1]);
  if (first == 0xc2 && second < 0xa0) return 0;  // C1 controls
  if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second >= 0xa0) ||
      (first == 0xf0 && second < 0x90) || (first == 0xf4 && second >= 0x90)) {
    return 0;
  }
  // Marks of direction, separators of lines and invisible characters: U+200B–U+200F,
  // U+2028–U+202F, U+2060–U+206F.
  const auto third = static_cast<unsigned char>(bytes > 2 ? text[2] : '\0');
  const bool marks = first == 0xe2 && second == 0x80 &&
                     ((third >= 0x8b && third <= 0x8f) || (third >= 0xa8 && third <= 0xaf));
  if (marks || (first == 0xe2 && second == 0x81 && third >= 0xa0)) return 0;
  return bytes;
}

}  // namespace

std::string Shown(absl::string_view bytes, size_t bytes_max) {
  std::string text;
  while (!bytes.empty()) {
    if (text.size() >= bytes_max) return text + "…";
    const size_t character = CharacterBytes(bytes);
    if (character == 0) {
      absl::StrAppend(&text, "\\x",
                      absl::Hex(static_cast<unsigned char>(bytes[0]), absl::kZeroPad2));
      bytes.remove_prefix(1);
    } else {
      text.append(bytes.data(), character);
      bytes.remove_prefix(character);
    }
  }
  return text;
}

}  // namespace ddprun
