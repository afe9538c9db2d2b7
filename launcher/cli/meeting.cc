#include "launcher/cli/meeting.h"

#include "absl/strings/str_cat.h"
#include "launcher/net/address.h"
#include "launcher/net/host_text.h"

namespace ddprun::cli {
namespace {

// torchrun's own.
constexpr uint16_t kRendezvousPort = 29400;
constexpr uint16_t kMasterPort = 29500;

// torchrun's static rendezvous goes by the rank; its c10d by who owns the address.
std::optional<bool> HostsByTorchrun(const Options& o) {
  const TorchrunOptions& t = o.torchrun;
  if (t.is_host) return t.is_host;
  if (!o.node_rank) return std::nullopt;
  if (*o.node_rank == 0) return true;
  if (t.rdzv_backend.value_or("static") == "static") return false;
  return std::nullopt;
}

absl::Status NothingTyped(const Options& o) {
  const std::string nodes = NodesText(o);
  return absl::InvalidArgumentError(absl::StrCat(
      "--nnodes ", nodes, ": the nodes have to know where to meet; type on each of them\n",
      "  ddprun --nnodes ", nodes, " --coordinator HOST:29400 --nproc N …\n",
      "HOST being one of them; or start all from here by ssh: --hosts a,b; or by srun"));
}

absl::Status CheckLoopback(const Options& o, const Meeting& meeting) {
  if (!net::NamesLoopback(meeting.host)) return absl::OkStatus();
  const std::string advertised =
      o.advertise_address.value_or(o.torchrun.local_address.value_or(""));
  if (net::NamesLoopback(advertised)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      meeting.Typed(), ": only this machine reaches ", meeting.host, ", and the job has ",
      NodesText(o),
      " nodes; give the name or address of one of them that all of them reach, or "
      "--advertise-addr ",
      meeting.host == "::1" ? "::1" : "127.0.0.1", " as well if all nodes are on this machine"));
}

}  // namespace

// Each node would take such an address for its own, and host a job of its own.
absl::Status CheckSomebodys(const Meeting& meeting) {
  const std::string why = net::WhyNobodysAddress(meeting.host);
  if (why.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(meeting.Typed(), ": ", meeting.host, " ", why,
                   "; give the name or address of the node that hosts the coordinator"));
}

std::string Meeting::Endpoint() const {
  return net::JoinEndpoint(host, port);
}

std::string Meeting::Typed() const {
  return absl::StrCat(option, " ", Endpoint());
}

bool SeveralNodes(const Options& o) {
  if (o.command == Command::kCoordinator || o.hosts) return true;
  if (o.nodes_max) return *o.nodes_max > 1;
  return o.resume && !o.coordinator.empty();
}

std::string NodesText(const Options& o) {
  if (!o.nodes_max) return "several";
  const uint32_t min = o.nodes_min.value_or(1);
  return min == *o.nodes_max ? absl::StrCat(min) : absl::StrCat(min, ":", *o.nodes_max);
}

absl::StatusOr<Meeting> MeetingOf(const Options& o) {
  const TorchrunOptions& t = o.torchrun;
  Meeting meeting;
  if (!o.coordinator.empty()) {
    const net::Endpoint endpoint = net::SplitEndpoint(o.coordinator);
    meeting = {"--coordinator", endpoint.host, endpoint.port, t.is_host};
  } else if (t.rdzv_endpoint) {
    const net::Endpoint endpoint = net::SplitEndpoint(*t.rdzv_endpoint);
    meeting = {"--rdzv-endpoint", endpoint.host,
               endpoint.port != 0 ? endpoint.port : kRendezvousPort, HostsByTorchrun(o)};
  } else if (t.master_address) {
    const auto port = static_cast<uint16_t>(t.master_port.value_or(0));
    meeting = {"--master-addr", *t.master_address, port != 0 ? port : kMasterPort,
               HostsByTorchrun(o)};
  } else {
    return NothingTyped(o);
  }
  absl::Status status = CheckSomebodys(meeting);
  if (status.ok()) status = CheckLoopback(o, meeting);
  if (!status.ok()) return status;
  return meeting;
}

}  // namespace ddprun::cli
