// Nodes: who takes part, how they find each other, what becomes of the job when one is lost;
// security; ddprun doctor.
#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "launcher/cli/option_rows.h"
#include "launcher/cli/torchrun_values.h"
#include "launcher/cli/values.h"

namespace ddprun::cli {
namespace {

absl::Status SetNodes(OptionText text, Options* o) {
  const auto nodes = ParseNodes(text);
  if (!nodes.ok()) return nodes.status();
  o->nodes_min = nodes->first;
  o->nodes_max = nodes->second;
  return absl::OkStatus();
}

absl::Status SetNodeRank(OptionText text, Options* o) {
  const auto rank = ParseCount(text, 0, kNodesMax - 1);
  if (!rank.ok()) return rank.status();
  o->node_rank = static_cast<int32_t>(*rank);
  return absl::OkStatus();
}

absl::Status SetNodeLoss(OptionText text, Options* o) {
  if (text != "shrink" && text != "wait") {
    return absl::InvalidArgumentError(
        "give shrink (go on with the others) or wait (for another node)");
  }
  o->wait_for_replacement = text == "wait";
  return absl::OkStatus();
}

// As the kernel has names of network cards.
absl::Status SetInterface(OptionText text, Options* o) {
  constexpr size_t kCardNameBytesMax = 15;
  const bool odd = std::any_of(text.begin(), text.end(), [](char c) {
    return c == '/' || !absl::ascii_isgraph(static_cast<unsigned char>(c));
  });
  if (text.size() > kCardNameBytesMax || odd) {
    return absl::InvalidArgumentError(
        "give the name of a network card, for example eth0 (ip link lists them)");
  }
  return KeepText(text, &o->interface);
}

absl::Status SetPeers(OptionText text, Options* o) {
  o->doctor.peers.clear();
  for (absl::string_view peer : absl::StrSplit(text, ',')) {
    const absl::string_view name = absl::StripAsciiWhitespace(peer);
    if (name.empty() || name[0] == '-') {
      return absl::InvalidArgumentError("give hosts, for example node1,node2");
    }
    o->doctor.peers.emplace_back(name);
  }
  return absl::OkStatus();
}

}  // namespace

OptionRowList NodeRows() {
  return {
      {"--nnodes", "N|MIN:MAX", kJobCommands | kForPlan, kGroupNodes,
       "Number of nodes. Default 1. More: the same command with --coordinator on each node, or "
       "--hosts, or srun",
       [](OptionText v, Options* o) { return SetNodes(v, o); }, "NNODES"},
      {"--coordinator", "HOST:PORT", kForRun | kForAgent, kGroupNodes,
       "The coordinator's address. The node that owns it hosts the coordinator, the others join",
       [](OptionText v, Options* o) {
         return StoreOption(ParseAddress(v, false), &o->coordinator);
       }},
      {"--listen", "HOST:PORT", kForCoordinator, kGroupNodes,
       "Where agents reach this coordinator; port 0 lets the system choose (required)",
       [](OptionText v, Options* o) { return StoreOption(ParseAddress(v, true), &o->listen); }},
      {"--node", "NAME", kForRun | kForAgent, kGroupNodes,
       "Name of this node; each node needs another. Default: the host's name",
       [](OptionText v, Options* o) { return StoreOption(ParseNodeName(v), &o->node); }},
      {"--node-rank", "N", kForRun | kForAgent, kGroupNodes,
       "Wished place of this node among all, from 0. Default: in the order of coming",
       [](OptionText v, Options* o) { return SetNodeRank(v, o); }, "NODE_RANK"},
      {"--join-timeout", "TIME", kAllCommands, kGroupNodes,
       "How long to wait for enough nodes, or for the coordinator. Default 600",
       [](OptionText v, Options* o) {
         return StoreOption(ParseSeconds(v), &o->join_timeout_seconds);
       }},
      {"--advertise-addr", "ADDR", kForRun | kForAgent | kForDoctor, kGroupNodes,
       "Address at which the other nodes reach this one. Default: that of the route to the "
       "coordinator",
       [](OptionText v, Options* o) { return StoreOption(ParseHost(v), &o->advertise_address); }},
      {"--iface", "NAME", kForRun | kForAgent | kForDoctor, kGroupNodes,
       "Network card whose address the other nodes use",
       [](OptionText v, Options* o) { return SetInterface(v, o); }},
  };
}

OptionRowList ClusterRows() {
  return {
      {"--on-node-loss", "shrink|wait", kJobCommands, kGroupNodes,
       "Without a spare for a lost node: go on with the others (not less than MIN), or wait for "
       "one. Default shrink",
       [](OptionText v, Options* o) { return SetNodeLoss(v, o); }},
      {"--keep-size", "", kJobCommands, kGroupNodes,
       "A node that comes later stays a spare; without it, the job grows up to MAX nodes. Needs "
       "--nnodes MIN:MAX",
       [](OptionText, Options* o) {
         o->keep_size = true;
         return absl::OkStatus();
       }},
      {"--hosts", "LIST", kForRun, kGroupNodes,
       "Starts an agent on each host by ssh: a,b:4,user@c, or @FILE with one host a line",
       [](OptionText v, Options* o) { return KeepText(v, &o->hosts); }},
      {"--ssh", "COMMAND", kForRun | kForDoctor, kGroupNodes,
       "The ssh to use, with its options, for example 'ssh -p 2222'. Default ssh",
       [](OptionText v, Options* o) { return KeepText(v, &o->ssh_command); }},
      {"--requeue", "", kForRun, kGroupNodes,
       "Under Slurm: a job that is stopped by SIGTERM is queued again, and goes on",
       [](OptionText, Options* o) {
         o->requeue = true;
         return absl::OkStatus();
       }},
      // Of the agents that --hosts starts.
      {"--tether", "", kForAgent, "",
       "The secret is the first line of standard input; the agent ends when that ends",
       [](OptionText, Options* o) {
         o->tether = true;
         return absl::OkStatus();
       }},
  };
}

OptionRowList SecurityRows() {
  return {
      {"--tls-cert", "FILE", kAllCommands | kForDoctor, kGroupSecurity,
       "Certificate of this node (PEM); what nodes say to each other is encrypted",
       [](OptionText v, Options* o) { return KeepText(v, &o->tls_certificate); }},
      {"--tls-key", "FILE", kAllCommands | kForDoctor, kGroupSecurity,
       "Private key of --tls-cert (PEM)",
       [](OptionText v, Options* o) { return KeepText(v, &o->tls_key); }},
      {"--tls-ca", "FILE", kAllCommands | kForDoctor, kGroupSecurity,
       "Certificates that the other side's must be signed by (PEM)",
       [](OptionText v, Options* o) { return KeepText(v, &o->tls_ca); }},
  };
}

OptionRowList DoctorRows() {
  return {
      {"--peers", "LIST", kForDoctor, kGroupDoctor,
       "Hosts to compare this machine with, by ssh: a,b",
       [](OptionText v, Options* o) { return SetPeers(v, o); }},
      {"--json", "", kForDoctor | kForPlan, kGroupDoctor, "Prints JSON, one object",
       [](OptionText, Options* o) {
         o->json = true;
         return absl::OkStatus();
       }},
      // What --peers starts on the other hosts.
      {"--answer", "", kForDoctor, "", "Answers questions on standard input",
       [](OptionText, Options* o) {
         o->doctor.answer = true;
         return absl::OkStatus();
       }},
  };
}

}  // namespace ddprun::cli
