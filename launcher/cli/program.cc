#include "launcher/cli/program.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/files.h"

namespace ddprun::cli {
namespace {

enum class Kind { kMissing, kFolder, kNotExecutable, kExecutable };

Kind Look(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return Kind::kMissing;
  if (S_ISDIR(info.st_mode)) return Kind::kFolder;
  return access(path.c_str(), X_OK) == 0 ? Kind::kExecutable : Kind::kNotExecutable;
}

std::string From(const std::string& working_dir, const std::string& path) {
  return path[0] == '/' ? path : JoinPath(working_dir, path);
}

absl::Status NotExecutable(const std::string& path) {
  if (absl::EndsWith(path, ".py")) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, ": is not executable; write -- python3 ", path, ", or leave -- away"));
  }
  return absl::PermissionDeniedError(absl::StrCat(path, ": is not executable; chmod +x ", path,
                                                  ", or name its interpreter before it"));
}

// A script whose interpreter is not there would fail on every rank, and only say "no such file".
absl::Status CheckInterpreter(const std::string& path) {
  char line[256] = "";  // the kernel reads no more of the first line either
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::OkStatus();  // executable, but not readable: the kernel decides
  const ssize_t got = read(fd, line, sizeof line - 1);
  close(fd);
  if (got < 2 || line[0] != '#' || line[1] != '!') return absl::OkStatus();
  std::string interpreter = line + 2;
  interpreter = interpreter.substr(0, interpreter.find('\n'));
  interpreter.erase(0, interpreter.find_first_not_of(" \t"));
  interpreter = interpreter.substr(0, interpreter.find_first_of(" \t\r"));
  if (interpreter.empty() || interpreter[0] != '/' || access(interpreter.c_str(), X_OK) == 0) {
    return absl::OkStatus();
  }
  return absl::NotFoundError(absl::StrCat(path, ": its first line names the interpreter ",
                                          interpreter,
                                          ", which is not there; install it, or name another one "
                                          "before the script"));
}

// The script finds itself in sys.argv[0], as a program of its own does.
constexpr char kRunPathProgram[] =
    "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')";

absl::StatusOr<std::string> FindPython(const std::string& python_exec, const std::string& program,
                                       const std::string& path_variable,
                                       const std::string& working_dir) {
  if (!python_exec.empty()) {
    const absl::StatusOr<std::string> found = FindProgram(python_exec, path_variable, working_dir);
    if (found.ok()) return python_exec;
    return absl::NotFoundError(
        absl::StrCat("PYTHON_EXEC=", python_exec, " (environment): ", found.status().message()));
  }
  for (const char* python : {"python3", "python"}) {
    if (FindProgram(python, path_variable, working_dir).ok()) return python;
  }
  return absl::NotFoundError(
      absl::StrCat(program, ": needs Python, but there is neither python3 nor python in PATH (",
                   path_variable, ")"));
}

}  // namespace

absl::StatusOr<std::string> FindProgram(const std::string& name, const std::string& path_variable,
                                        const std::string& working_dir) {
  if (absl::StrContains(name, '/')) {
    std::string path = From(working_dir, name);
    switch (Look(path)) {
      case Kind::kExecutable:
        if (absl::Status status = CheckInterpreter(path); !status.ok()) return status;
        return path;
      case Kind::kNotExecutable:
        return NotExecutable(name);
      case Kind::kFolder:
        return absl::NotFoundError(absl::StrCat(name, ": is a folder, not a program"));
      case Kind::kMissing:
        return absl::NotFoundError(absl::StrCat(name, ": no such file (looked for ", path, ")"));
    }
  }
  std::string not_executable;
  for (absl::string_view folder : absl::StrSplit(path_variable, ':')) {
    // An empty entry of PATH means the working directory.
    std::string path = folder.empty() ? From(working_dir, name)
                                      : From(working_dir, JoinPath(std::string(folder), name));
    const Kind kind = Look(path);
    if (kind == Kind::kExecutable) return path;
    if (kind == Kind::kNotExecutable && not_executable.empty()) not_executable = path;
  }
  if (!not_executable.empty()) return NotExecutable(not_executable);
  const bool here = Look(From(working_dir, name)) != Kind::kMissing;
  std::string hint = here ? absl::StrCat("; the file in this folder is ./", name) : "";
  if (here && absl::EndsWith(name, ".py")) {
    // Behind -- or with --no-python; without them Python would have been looked for.
    hint = absl::StrCat("; to have Python run it, leave -- and --no-python away, or write python3 ",
                        name);
  } else if (name == "log") {
    hint = "; did you mean ddprun logs?";
  }
  return absl::NotFoundError(absl::StrCat(
      name, ": no such program in PATH (", path_variable, ")", hint,
      "; a configuration ends in .cfg, a program of your own is named with its folder or found in "
      "PATH"));
}

absl::StatusOr<std::vector<std::string>> InTorchrunsWay(const std::vector<std::string>& program,
                                                        PythonUse use,
                                                        const std::string& python_exec,
                                                        const std::string& path_variable,
                                                        const std::string& working_dir) {
  const bool python_file = absl::EndsWith(program[0], ".py");
  if (use == PythonUse::kNever || (use == PythonUse::kByName && !python_file)) return program;
  if (use == PythonUse::kModule && absl::StrContains(program[0], '/')) {
    return absl::InvalidArgumentError(
        absl::StrCat("--module ", program[0],
                     ": a module is named with dots, for example package.train; for a file leave "
                     "--module away"));
  }
  const std::string path = From(working_dir, program[0]);
  const bool readable = access(path.c_str(), R_OK) == 0 && Look(path) != Kind::kFolder;
  if (use != PythonUse::kModule && !readable) {
    return absl::NotFoundError(
        absl::StrCat(program[0], ": no such Python file, or not readable (looked for ", path, ")"));
  }
  absl::StatusOr<std::string> python =
      FindPython(python_exec, program[0], path_variable, working_dir);
  if (!python.ok()) return python.status();
  std::vector<std::string> whole = {*python, "-u"};
  if (use == PythonUse::kModule) whole.emplace_back("-m");
  if (use == PythonUse::kRunPath) whole.insert(whole.end(), {"-c", kRunPathProgram});
  whole.insert(whole.end(), program.begin(), program.end());
  return whole;
}

}  // namespace ddprun::cli
