// Runs one function as N forked ranks over Gloo. The parent computes nothing before: LibTorch's
// threads do not survive a fork.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/unit/shared_exchange.h"
#include "worker/comm/communicator.h"

namespace ddprun {

// The body returns "" or what went wrong.
inline std::vector<std::string> RunOverGloo(int size,
                                            const std::function<std::string(Communicator&)>& body) {
  SharedExchange exchange;
  return RunProcesses(size, [&](int rank) -> std::string {
    at::set_num_threads(1);
    CommunicatorOptions options;
    options.rank = rank;
    options.size = size;
    options.timeout_seconds = 20;
    auto communicator = CreateGlooCommunicator(options, exchange.Get());
    if (!communicator.ok()) return communicator.status().ToString();
    try {
      return body(**communicator);
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    } catch (const std::exception& error) {
      return error.what();
    }
  });
}

}  // namespace ddprun
