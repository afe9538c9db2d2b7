#include "launcher/agent/exchange_fanout.h"

namespace ddprun::agent {

ExchangeFanout::Answer ExchangeFanout::Await(const v1::Await& await,
                                             v1::CoordinatorMessage* value) {
  const Key key{await.group(), await.name()};
  const auto known = values_.find(key);
  if (known != values_.end()) {
    v1::Value& told = *value->mutable_value();
    told.set_generation(await.generation());
    told.set_rank(await.rank());
    told.set_group(await.group());
    told.set_name(await.name());
    told.set_value(known->second);
    return Answer::kHere;
  }
  std::set<uint32_t>& ranks = waiting_[key];
  ranks.insert(await.rank());
  return ranks.size() == 1 ? Answer::kAsk : Answer::kWait;
}

std::vector<v1::CoordinatorMessage> ExchangeFanout::Spread(const v1::CoordinatorMessage& message) {
  const bool refused = message.has_exchange_refused();
  if (!message.has_value() && !refused) return {message};
  const Key key = refused
                      ? Key{message.exchange_refused().group(), message.exchange_refused().name()}
                      : Key{message.value().group(), message.value().name()};
  const uint32_t asker = refused ? message.exchange_refused().rank() : message.value().rank();
  std::set<uint32_t> ranks = {asker};
  const auto waiting = waiting_.find(key);
  // What somebody has published may be refused too: that concerns nobody else.
  if (waiting != waiting_.end() && (!refused || waiting->second.contains(asker))) {
    ranks.insert(waiting->second.begin(), waiting->second.end());
    waiting_.erase(waiting);
  }
  if (!refused && bytes_ + message.value().value().size() <= kBytesMax &&
      values_.emplace(key, message.value().value()).second) {
    bytes_ += message.value().value().size();
  }
  std::vector<v1::CoordinatorMessage> told;
  told.reserve(ranks.size());
  for (uint32_t rank : ranks) {
    v1::CoordinatorMessage one = message;
    if (refused) {
      one.mutable_exchange_refused()->set_rank(rank);
    } else {
      one.mutable_value()->set_rank(rank);
    }
    told.push_back(std::move(one));
  }
  return told;
}

}  // namespace ddprun::agent
