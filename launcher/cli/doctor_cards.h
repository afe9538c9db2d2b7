// Checks of the network cards: what is there, and which of them NCCL and Gloo would choose.
//
// ChooseForNccl follows NCCL's own rules (ncclFindInterfaces in src/misc/socket.cc). LookAtCards
// reads getifaddrs and /sys; the rest is pure.
#pragma once

#include <string>
#include <vector>

#include "launcher/cli/doctor_finding.h"
#include "launcher/cli/doctor_world.h"

namespace ddprun::doctor {

struct Card {
  std::string name;
  bool up = false;  // up and running
  bool loopback = false;
  std::vector<std::string> ipv4;
  std::vector<std::string> ipv6;  // without link-local ones
  long long speed_mbit = 0;       // 0: not known
  long long mtu = 0;
};

struct InfinibandPort {
  std::string device;  // mlx5_0
  std::string link;    // "InfiniBand" or "Ethernet"
  std::string rate;    // "400 Gb/sec (4X NDR)"
  bool active = false;
};

struct Network {
  std::vector<Card> cards;
  std::vector<InfinibandPort> ports;
  bool peer_memory = false;  // GPUDirect: nvidia_peermem or dma-buf
  bool has_gpus = false;
  std::string default_route;    // card of the default route; "" without one
  std::string socket_ifname;    // NCCL_SOCKET_IFNAME
  std::string gloo_ifname;      // GLOO_SOCKET_IFNAME
  bool infiniband_off = false;  // NCCL_IB_DISABLE=1
};
Network LookAtCards(const World& world);

// Names of the cards that NCCL would use for its sockets, in its order; empty: none.
std::vector<std::string> ChooseForNccl(const std::vector<Card>& cards, const std::string& variable);
std::vector<Finding> JudgeCards(const Network& network);
Outcome CheckCards(const World& world);

}  // namespace ddprun::doctor
