#include "launcher/cli/preload.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/files.h"

namespace ddprun::cli {
namespace {

constexpr uint64_t kScriptBytesMax = 4u << 20;

bool IsModuleName(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '.';
  });
}

// python, python3, python3.11
bool IsPython(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  return absl::StartsWith(name, "python") && std::all_of(name.begin() + 6, name.end(), [](char c) {
           return absl::ascii_isdigit(c) || c == '.';
         });
}

bool IsHeavy(std::string_view module) {
  const std::string_view root = module.substr(0, module.find('.'));
  return IsModuleName(module) && (root == "torch" || root == "numpy");
}

// The names behind `import` or `from` in one line: a, b.c as d
std::vector<std::string> ImportsOf(absl::string_view line) {
  std::vector<std::string> names;
  if (absl::ConsumePrefix(&line, "from ")) {
    names.emplace_back(absl::StripAsciiWhitespace(line.substr(0, line.find(" import"))));
  } else if (absl::ConsumePrefix(&line, "import ")) {
    for (absl::string_view part : absl::StrSplit(line.substr(0, line.find('#')), ',')) {
      part = absl::StripAsciiWhitespace(part);
      names.emplace_back(part.substr(0, part.find(' ')));
    }
  }
  return names;
}

// os.environ["OMP_NUM_THREADS"] = "1", setdefault and putenv: libraries read such variables when
// they are loaded, so that they would be set too late.
bool SetsLoadVariable(absl::string_view line) {
  if (!absl::StrContains(line, "environ") && !absl::StrContains(line, "putenv(")) return false;
  for (const char* prefix :
       {"OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "NPY_", "TORCH", "PYTORCH_"}) {
    for (const char* quote : {"\"", "'"}) {
      const size_t at = line.find(absl::StrCat(quote, prefix));
      if (at == absl::string_view::npos) continue;
      if (absl::StrContains(line.substr(0, at), "setdefault(")) return true;
      if (absl::StrContains(line.substr(0, at), "putenv(")) return true;
      absl::string_view rest = line.substr(std::min(line.find(']', at), line.size()));
      absl::ConsumePrefix(&rest, "]");
      rest = absl::StripLeadingAsciiWhitespace(rest);
      if (absl::ConsumePrefix(&rest, "=") && !absl::StartsWith(rest, "=")) return true;
    }
  }
  return false;
}

std::string ScriptText(const std::vector<std::string>& rest, const std::string& working_dir) {
  std::vector<std::string> candidates;
  if (rest[0] == "-m") {
    if (rest.size() < 2 || !IsModuleName(rest[1])) return "";
    const std::string path = JoinPath(working_dir, absl::StrReplaceAll(rest[1], {{".", "/"}}));
    candidates = {path + ".py", path + "/__main__.py"};
  } else {
    candidates = {rest[0][0] == '/' ? rest[0] : JoinPath(working_dir, rest[0])};
  }
  for (const std::string& path : candidates) {
    const absl::StatusOr<uint64_t> bytes = PosixFileSystem().FileBytes(path);
    if (!bytes.ok() || *bytes > kScriptBytesMax) continue;
    absl::StatusOr<std::string> text = PosixFileSystem().ReadFile(path);
    if (text.ok()) return *std::move(text);
  }
  return "";
}

}  // namespace

uint32_t InterpreterWords(const std::vector<std::string>& program) {
  if (program.empty() || !IsPython(program[0])) return 0;
  size_t i = 1;
  while (i < program.size() && program[i][0] == '-' && program[i] != "-m") {
    // Others change what a script sees (-I, -P), are not for scripts (-c, -i), or take a value.
    static const std::set<std::string> kKnown = {"-u", "-B", "-O", "-OO", "-s", "-S", "-E", "-q"};
    if (!kKnown.contains(program[i])) return 0;
    ++i;
  }
  const bool module = i + 1 < program.size() && program[i] == "-m";
  const bool script = i < program.size() && absl::EndsWith(program[i], ".py");
  return module || script ? static_cast<uint32_t>(i) : 0;
}

std::vector<std::string> HeavyImports(std::string_view text) {
  std::vector<std::string> modules;
  bool torch = false;
  for (absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    if (SetsLoadVariable(line)) return {};
    for (const std::string& name : ImportsOf(line)) {
      if (!IsHeavy(name) || std::find(modules.begin(), modules.end(), name) != modules.end()) {
        continue;
      }
      torch = torch || absl::StartsWith(name, "torch");
      modules.push_back(name);
    }
  }
  return torch ? modules : std::vector<std::string>{};
}

Preload ChoosePreload(const std::vector<std::string>& program, const std::string& working_dir,
                      const std::optional<std::string>& wished) {
  Preload preload;
  if (wished == "none") return preload;
  const uint32_t words = InterpreterWords(program);
  if (words == 0) return preload;
  if (wished && wished != "auto") {
    preload.modules = absl::StrSplit(*wished, ',');
  } else {
    preload.modules =
        HeavyImports(ScriptText({program.begin() + words, program.end()}, working_dir));
  }
  preload.interpreter_words = words;
  return preload;
}

}  // namespace ddprun::cli
