#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "launcher/keeper/worker_start.h"

namespace ddprun::keeper {
namespace {

// strerror without the locale files.
std::string ErrorText(int error) {
  const char* text = strerrordesc_np(error);
  return text != nullptr ? text : "error " + std::to_string(error);
}

std::string DescribeExecFailure(const WorkerSpec& spec, int error) {
  const std::string program = spec.arguments[0];
  const std::string start = "cannot run '" + program + "': ";
  const bool is_path = program.find('/') != std::string::npos;
  struct stat status {};
  const bool in_directory = spec.directory != nullptr && program[0] != '/';
  const std::string path = in_directory ? std::string(spec.directory) + "/" + program : program;
  const bool exists = is_path && stat(path.c_str(), &status) == 0;
  switch (error) {
    case ENOENT:
      if (exists) {
        return start + "the file is there, but the interpreter or loader that it names is missing";
      }
      return start + (is_path ? "there is no such file; give its full path"
                              : "no such program in the worker's PATH; give its path");
    case EACCES:
      if (exists && S_ISDIR(status.st_mode)) return start + "it is a folder, not a program";
      return start + "it is not executable; try: chmod +x " + path;
    case ENOEXEC:
      return start + "not a program for this machine";
    case E2BIG:
      return start + "arguments and environment are too long (one string may have 128 KiB)";
    default:
      return start + ErrorText(error);
  }
}

}  // namespace

std::string DescribeStartFailure(const WorkerSpec& spec, const StartFailure& failure) {
  const std::string why = ": " + ErrorText(failure.error);
  switch (failure.stage) {
    case StartStage::kLog:
      return "cannot open the log file '" + std::string(spec.log) + "' for writing" + why;
    case StartStage::kPipe:
      return "cannot make a pipe for its output" + why;
    case StartStage::kSocket:
      return "cannot make its socket" + why;
    case StartStage::kPage:
      return "cannot make its step page (memfd)" + why;
    case StartStage::kFork:
      return "cannot fork" + why + "; look at the limits of processes and memory (ulimit -u)";
    case StartStage::kPidfd:
      return "cannot watch it (pidfd_open, needs Linux 5.3)" + why;
    case StartStage::kDirectory:
      return "cannot enter the working directory '" + std::string(spec.directory) + "'" + why;
    case StartStage::kDescriptors:
      return "cannot arrange its descriptors" + why;
    case StartStage::kExec:
      return DescribeExecFailure(spec, failure.error);
  }
  return "unknown stage" + why;
}

}  // namespace ddprun::keeper
