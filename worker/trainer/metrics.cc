#include "worker/trainer/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

namespace ddprun {
namespace {

// Six digits are what a person and a plot need.
double Rounded(double value) {
  if (!std::isfinite(value) || value == 0) return value;
  const double scale = std::pow(10.0, 5 - std::floor(std::log10(std::fabs(value))));
  return std::round(value * scale) / scale;
}

}  // namespace

std::optional<double> Utilization(double data_wait_s, double compute_s, double comm_wait_s) {
  const double all = data_wait_s + compute_s + comm_wait_s;
  if (!(all > 0)) return std::nullopt;
  return compute_s / all;
}

std::string MetricsText(const MetricsLine& line) {
  nlohmann::ordered_json json = {{"step", line.step},
                                 {"epoch", line.epoch},
                                 {"loss", line.loss},  // null when it is not finite
                                 {"lr", line.lr},
                                 {"samples_per_s", Rounded(line.samples_per_s)},
                                 {"data_wait_s", Rounded(line.data_wait_s)},
                                 {"compute_s", Rounded(line.compute_s)},
                                 {"comm_wait_s", Rounded(line.comm_wait_s)}};
  const auto utilization = Utilization(line.data_wait_s, line.compute_s, line.comm_wait_s);
  if (utilization) json["utilization"] = Rounded(*utilization);
  if (line.loss_scale) json["loss_scale"] = *line.loss_scale;
  if (line.grad_norm) json["grad_norm"] = *line.grad_norm;
  return json.dump() + "\n";
}

std::string EvaluationText(const EvaluationLine& line) {
  nlohmann::ordered_json json = {{"step", line.step}, {"epoch", line.epoch}};
  json["test_loss"] = line.evaluation.loss();
  if (line.evaluation.classifies) json["test_accuracy"] = line.evaluation.accuracy();
  if (line.averaged) {
    json["ema_test_loss"] = line.averaged->loss();
    if (line.averaged->classifies) json["ema_test_accuracy"] = line.averaged->accuracy();
  }
  return json.dump() + "\n";
}

LineFile::LineFile(const std::string& run_dir, const std::string& name) {
  if (run_dir.empty()) return;
  path_ = run_dir + "/" + name;
  fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0)
    fprintf(stderr, "%s: cannot open: %s; its lines are not kept\n", path_.c_str(),
            strerror(errno));
}

LineFile::~LineFile() {
  if (fd_ >= 0) close(fd_);
}

void LineFile::Append(const std::string& line) {
  if (fd_ < 0) return;
  if (write(fd_, line.data(), line.size()) == static_cast<ssize_t>(line.size()) || complained_)
    return;
  complained_ = true;
  fprintf(stderr, "%s: cannot write: %s; lines are missing in it\n", path_.c_str(),
          strerror(errno));
}

}  // namespace ddprun
