#include "launcher/agent/node_own.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <sys/socket.h>

#include <array>
#include <memory>

namespace ddprun::agent {
namespace {

std::string NumericOf(const sockaddr* address) {
  const socklen_t size =
      address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  std::array<char, NI_MAXHOST> text = {};
  if (getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
    return "";
  }
  return text.data();
}

}  // namespace

void UseOwn(const NodeOwn& own, v1::StartWorkers* order) {
  v1::JobSpec& spec = *order->mutable_spec();
  if (!own.gpus.empty()) spec.mutable_gpus()->Assign(own.gpus.begin(), own.gpus.end());
  if (!own.environment) return;
  spec.clear_environment();
  for (const auto& [name, value] : *own.environment) (*spec.mutable_environment())[name] = value;
  if (own.environment->contains("OMP_NUM_THREADS")) {
    spec.mutable_launching()->set_choose_omp_threads(false);
  }
}

std::string InterfaceOf(const std::string& address) {
  ifaddrs* list = nullptr;
  if (address.empty() || getifaddrs(&list) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    if (NumericOf(entry->ifa_addr) == address) return entry->ifa_name;
  }
  return "";
}

}  // namespace ddprun::agent
