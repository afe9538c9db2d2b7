#include "launcher/cli/doctor_answer.h"

#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "launcher/cli/doctor_lines.h"
#include "launcher/cli/doctor_probe.h"
#include "launcher/net/address.h"

namespace ddprun::doctor {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::seconds kQuietMax{60};
constexpr std::chrono::seconds kConnectMax{3};

std::string TextOf(const Json& question, const char* key) {
  const auto found = question.find(key);
  return found != question.end() && found->is_string() ? found->get<std::string>() : "";
}

int PortOf(const Json& question) {
  const auto found = question.find("port");
  if (found == question.end() || !found->is_number_integer()) return 0;
  const auto port = found->get<int64_t>();
  return port > 0 && port < 65536 ? static_cast<int>(port) : 0;
}

Json Listen(const Json& question, std::unique_ptr<Listener>* listener) {
  if (*listener == nullptr) {
    absl::StatusOr<std::unique_ptr<Listener>> started = Listener::Start();
    if (!started.ok()) return {{"error", std::string(started.status().message())}};
    *listener = *std::move(started);
  }
  absl::StatusOr<std::string> address = net::LocalAddressTowards(TextOf(question, "towards"));
  if (!address.ok()) address = net::ChooseAddress(net::Cards(), "").address;
  return {{"port", (*listener)->port()},
          {"token", (*listener)->token()},
          {"address", *std::move(address)}};
}

Json Answer(const Json& question, const std::function<Report()>& make_report,
            std::unique_ptr<Listener>* listener) {
  const std::string ask = question.is_object() ? TextOf(question, "ask") : "";
  if (ask == "clock") {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return {{"time_ns", std::chrono::duration_cast<std::chrono::nanoseconds>(now).count()}};
  }
  if (ask == "report") return ToJson(make_report());
  if (ask == "listen") return Listen(question, listener);
  if (ask == "connect") {
    return {{"error", TryConnection(TextOf(question, "address"), PortOf(question),
                                    TextOf(question, "token"), kConnectMax)}};
  }
  if (ask == "resolve") {
    const net::Resolution found = net::Resolve(TextOf(question, "name"));
    return {{"addresses", found.addresses}, {"error", found.error}};
  }
  return {{"error", "is no question that this version knows"}};
}

bool WriteAll(int fd, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t wrote = write(fd, text.data() + done, text.size() - done);
    if (wrote <= 0) return false;
    done += static_cast<size_t>(wrote);
  }
  return true;
}

}  // namespace

void AnswerQuestions(int in_fd, int out_fd, const std::function<Report()>& make_report) {
  LineReader lines(in_fd, kAnswerBytesMax);
  std::unique_ptr<Listener> listener;
  for (;;) {
    const auto line = lines.Next(std::chrono::steady_clock::now() + kQuietMax);
    if (!line) return;
    const Json question = Json::parse(*line, nullptr, /*allow_exceptions=*/false);
    const Json answer = Answer(question, make_report, &listener);
    if (!WriteAll(out_fd, answer.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n")) {
      return;
    }
  }
}

}  // namespace ddprun::doctor
