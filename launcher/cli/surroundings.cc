// The machine and process that a plan depends on.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/files.h"
#include "launcher/cli/preflight.h"

namespace ddprun::cli {

std::string Surroundings::Variable(const std::string& name) const {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

std::map<std::string, std::string> EnvironmentOfThisProcess() {
  std::map<std::string, std::string> environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos && equals > 0) {
      environment.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return environment;
}

namespace {

// Workers and whatever else is started must not have it.
std::optional<std::string> TakeOut(const char* name, std::map<std::string, std::string>* from) {
  unsetenv(name);
  const auto found = from->find(name);
  if (found == from->end()) return std::nullopt;
  std::optional<std::string> value = std::move(found->second);
  from->erase(found);
  return value;
}

}  // namespace

Surroundings LookAround(const std::vector<std::string>& command_line) {
  Surroundings here;
  here.environment = EnvironmentOfThisProcess();
  here.secret = TakeOut("DDPRUN_SECRET", &here.environment);
  here.secret_file = TakeOut("DDPRUN_SECRET_FILE", &here.environment);
  std::error_code error;
  here.working_dir = std::filesystem::current_path(error).string();
  if (error) here.working_dir = std::string("/");
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  here.binary_folder = ParentPath(error ? command_line[0] : self.string());
  here.command_line = absl::StrJoin(command_line, " ");
  here.version = DDPRUN_VERSION;
  const auto visible = here.environment.find("CUDA_VISIBLE_DEVICES");
  here.machine = placement::LookAtMachine("",
                                          visible == here.environment.end()
                                              ? std::nullopt
                                              : std::optional<std::string>(visible->second),
                                          here.Variable("CUDA_DEVICE_ORDER"));
  here.gpus = SummarizeGpus(here.machine);
  here.cores = placement::CoresOf(here.machine);
  return here;
}

}  // namespace ddprun::cli
