// Batches of messages on a stream: what has gathered in a mailbox goes out as one.
//
// Batch is AgentBatch or CoordinatorBatch, Message what it holds. Thread rule: the one writing
// thread of a stream.
#pragma once

#include <chrono>
#include <optional>
#include <utility>

#include "common/mailbox.h"
#include "launcher/net/limits.h"

namespace ddprun::net {

// Waits for a message (until the deadline, where there is one), then takes what else is there, up
// to kBatchBytesMax. nullopt: the deadline passed, or the mailbox is closed and empty.
template <typename Batch, typename Message>
std::optional<Batch> TakeBatch(
    Mailbox<Message>& mailbox,
    std::optional<std::chrono::steady_clock::time_point> deadline = std::nullopt) {
  std::optional<Message> message = mailbox.Take(deadline);
  if (!message) return std::nullopt;
  Batch batch;
  size_t bytes = 0;
  while (message) {
    bytes += message->ByteSizeLong();
    *batch.add_messages() = *std::move(message);
    if (bytes >= kBatchBytesMax) break;
    message = mailbox.TryTake();
  }
  return batch;
}

}  // namespace ddprun::net
