// Checks of single values against the key table, and the texts that describe them.
#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/config/key_table.h"

namespace ddprun {
namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};

std::string Quoted(absl::string_view text) {
  return absl::StrCat("\"", text, "\"");
}

std::string QuotedList(const std::vector<absl::string_view>& values) {
  return absl::StrJoin(values, ", ", [](std::string* out, absl::string_view value) {
    absl::StrAppend(out, Quoted(value));
  });
}

// Shortest text that reads back as the same number, so that messages show 0.001 and not
// 0.0010000000000000000208.
std::string FormatDouble(double value) {
  for (int digits = 6; digits < 17; ++digits) {
    std::string text = absl::StrFormat("%.*g", digits, value);
    if (std::stod(text) == value) return text;
  }
  return absl::StrFormat("%.17g", value);
}

std::string DescribeFound(const ConfigValue& value) {
  return std::visit(Overloaded{
                        [](const std::string& v) { return absl::StrCat("the string ", Quoted(v)); },
                        [](int64_t v) { return absl::StrCat("the integer ", v); },
                        [](double v) { return absl::StrCat("the number ", FormatDouble(v)); },
                        [](bool v) { return absl::StrCat("the boolean ", v ? "true" : "false"); },
                        [](const std::array<double, 2>&) { return std::string("an array"); },
                        [](const OtherValue& v) { return v.description; },
                    },
                    value);
}

std::string DescribeExpected(const ConfigField& field) {
  return std::visit(
      Overloaded{
          [](std::string TrainConfig::*) { return "a string"; },
          [](int64_t TrainConfig::*) { return "an integer"; },
          [](double TrainConfig::*) { return "a number"; },
          [](bool TrainConfig::*) { return "true or false"; },
          [](std::array<double, 2> TrainConfig::*) { return "an array of two numbers"; },
      },
      field);
}

absl::Status WrongType(const KeySpec& key, const ConfigValue& value) {
  return absl::InvalidArgumentError(
      absl::StrCat("expected ", DescribeExpected(key.field), ", found ", DescribeFound(value)));
}

absl::Status CheckNumber(const KeySpec& key, double number) {
  const bool too_small = key.exclusive_min ? !(number > key.min) : !(number >= key.min);
  if (too_small || !(number <= key.max)) {  // written so that NaN is out of range
    return absl::InvalidArgumentError(
        absl::StrCat(FormatDouble(number), " is out of range; must be ",
                     key.exclusive_min ? "greater than " : "at least ", FormatDouble(key.min),
                     " and at most ", FormatDouble(key.max)));
  }
  if (key.supported_max > 0 && number > key.supported_max) {
    return absl::InvalidArgumentError(absl::StrCat(
        FormatDouble(number), " is not possible in this version yet; supported: up to ",
        FormatDouble(key.supported_max)));
  }
  return absl::OkStatus();
}

absl::Status CheckString(const KeySpec& key, const std::string& text) {
  if (key.supported.empty()) {
    if (text.empty()) return absl::InvalidArgumentError("is empty");
    if (text.find('\0') != std::string::npos) {
      return absl::InvalidArgumentError("holds a zero byte");
    }
    return absl::OkStatus();
  }
  const auto has = [&](const std::vector<absl::string_view>& list) {
    return std::find(list.begin(), list.end(), text) != list.end();
  };
  if (has(key.supported)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Quoted(text),
                   has(key.planned) ? " is not possible in this version yet; supported: "
                                    : " is not a known value; supported: ",
                   QuotedList(key.supported)));
}

}  // namespace

std::string FormatValue(const ConfigValue& value) {
  return std::visit(Overloaded{
                        [](const std::string& v) { return Quoted(v); },
                        [](int64_t v) { return absl::StrCat(v); },
                        [](double v) { return FormatDouble(v); },
                        [](bool v) { return std::string(v ? "true" : "false"); },
                        [](const std::array<double, 2>& v) {
                          return absl::StrCat("[", FormatDouble(v[0]), ", ", FormatDouble(v[1]),
                                              "]");
                        },
                        [](const OtherValue& v) { return v.description; },
                    },
                    value);
}

ConfigValue GetKey(const KeySpec& key, const TrainConfig& config) {
  return std::visit([&](auto member) { return ConfigValue(config.*member); }, key.field);
}

absl::Status SetKey(const KeySpec& key, const ConfigValue& value, TrainConfig* config) {
  return std::visit(Overloaded{
                        [&](std::string TrainConfig::*member) -> absl::Status {
                          const auto* text = std::get_if<std::string>(&value);
                          if (text == nullptr) return WrongType(key, value);
                          if (auto status = CheckString(key, *text); !status.ok()) return status;
                          config->*member = *text;
                          return absl::OkStatus();
                        },
                        [&](int64_t TrainConfig::*member) -> absl::Status {
                          const auto* number = std::get_if<int64_t>(&value);
                          if (number == nullptr) return WrongType(key, value);
                          if (auto status = CheckNumber(key, static_cast<double>(*number));
                              !status.ok()) {
                            return status;
                          }
                          config->*member = *number;
                          return absl::OkStatus();
                        },
                        [&](double TrainConfig::*member) -> absl::Status {
                          double number = 0;
                          if (const auto* real = std::get_if<double>(&value)) {
                            number = *real;
                          } else if (const auto* integer = std::get_if<int64_t>(&value)) {
                            number = static_cast<double>(*integer);
                          } else {
                            return WrongType(key, value);
                          }
                          if (auto status = CheckNumber(key, number); !status.ok()) return status;
                          config->*member = number;
                          return absl::OkStatus();
                        },
                        [&](bool TrainConfig::*member) -> absl::Status {
                          const auto* flag = std::get_if<bool>(&value);
                          if (flag == nullptr) return WrongType(key, value);
                          config->*member = *flag;
                          return absl::OkStatus();
                        },
                        [&](std::array<double, 2> TrainConfig::*member) -> absl::Status {
                          const auto* pair = std::get_if<std::array<double, 2>>(&value);
                          if (pair == nullptr) return WrongType(key, value);
                          for (double number : *pair) {
                            if (auto status = CheckNumber(key, number); !status.ok()) return status;
                          }
                          config->*member = *pair;
                          return absl::OkStatus();
                        },
                    },
                    key.field);
}

}  // namespace ddprun
