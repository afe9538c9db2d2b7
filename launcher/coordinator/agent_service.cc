#include "launcher/coordinator/agent_service.h"

#include "launcher/net/limits.h"

namespace ddprun::coordinator {
namespace {

// Agents that are known as such; when there are more, their clocks are looked at again.
constexpr size_t kKnownMax = 65536;

grpc::Status NoJob() {
  return grpc::Status(grpc::StatusCode::UNAVAILABLE, "this coordinator has no job yet");
}

}  // namespace

void AgentService::Register(grpc::ServerBuilder& builder) {
  builder.RegisterService(&grpc_);
  queue_ = builder.AddCompletionQueue();
}

void AgentService::Start() {
  AwaitNext();
  thread_ = std::thread([this] { Loop(); });
}

void AgentService::Open(Admission admission) {
  std::vector<std::shared_ptr<AgentStream>> waiting;
  std::shared_ptr<const Admission> shared = std::make_shared<const Admission>(std::move(admission));
  {
    std::lock_guard lock(mutex_);
    admission_ = shared;
    waiting.swap(waiting_);
  }
  for (const auto& stream : waiting) stream->Begin(shared);
}

void AgentService::Close() {
  std::vector<std::shared_ptr<AgentStream>> waiting;
  std::map<Key, std::shared_ptr<AgentStream>> streams;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    waiting.swap(waiting_);
    streams = streams_;
  }
  for (const auto& stream : waiting) stream->End(NoJob());
  for (const auto& [key, stream] : streams) stream->Close(false);
}

void AgentService::Stop() {
  if (!thread_.joinable()) return;
  {
    // What is begun on a queue that is shut down would be an error.
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return living_ == 0; });
  }
  queue_->Shutdown();
  thread_.join();
}

void AgentService::Send(const std::string& node, const std::string& incarnation,
                        std::vector<v1::CoordinatorMessage> messages) {
  if (auto stream = Find(node, incarnation)) stream->Send(std::move(messages));
}

void AgentService::CloseStream(const std::string& node, const std::string& incarnation, bool cut) {
  if (auto stream = Find(node, incarnation)) stream->Close(cut);
}

int64_t AgentService::count() {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(streams_.size());
}

std::shared_ptr<AgentStream> AgentService::Find(const std::string& node,
                                                const std::string& incarnation) {
  std::lock_guard lock(mutex_);
  auto found = streams_.find({node, incarnation});
  return found == streams_.end() ? nullptr : found->second;
}

void AgentService::AwaitNext() {
  std::make_shared<AgentStream>(*this)->AwaitArrival(grpc_, queue_.get());
}

void AgentService::Arrived(const std::shared_ptr<AgentStream>& stream) {
  const bool crowded = ++handshakes_ > net::kHandshakesMax;
  bool waits = false;
  std::shared_ptr<const Admission> admission;
  {
    std::lock_guard lock(mutex_);
    ++living_;
    if (!closed_) AwaitNext();  // later the server is shut down
    admission = admission_;
    waits = !crowded && !closed_ && admission == nullptr;
    if (waits) waiting_.push_back(stream);
  }
  if (crowded) {
    return stream->End(
        grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many agents come at once"));
  }
  if (admission == nullptr && !waits) return stream->End(NoJob());
  young_.push_back(stream);
  if (admission != nullptr) stream->Begin(std::move(admission));
}

bool AgentService::IsKnown(const v1::Hello& hello) const {
  return known_.contains({hello.node(), hello.incarnation()});
}

uint64_t AgentService::Admit(const v1::Hello& hello, const std::string& grpc_peer,
                             std::shared_ptr<AgentStream> stream) {
  if (known_.size() >= kKnownMax) known_.clear();
  known_.emplace(hello.node(), hello.incarnation());
  LeaveHandshake(*stream);
  handlers_.admitted(grpc_peer);
  std::lock_guard lock(mutex_);
  streams_[{hello.node(), hello.incarnation()}] = std::move(stream);
  return ++streams_made_;
}

void AgentService::LeaveHandshake(AgentStream& stream) {
  if (stream.LeaveHandshake()) --handshakes_;
}

bool AgentService::Remove(const std::string& node, const std::string& incarnation,
                          const AgentStream* stream) {
  std::lock_guard lock(mutex_);
  auto found = streams_.find({node, incarnation});
  if (found == streams_.end() || found->second.get() != stream) return false;
  streams_.erase(found);
  return true;
}

void AgentService::Ended() {
  {
    std::lock_guard lock(mutex_);
    --living_;
  }
  changed_.notify_all();
}

gpr_timespec AgentService::EndOverdue() {
  while (!young_.empty()) {
    AgentStream& stream = *young_.front();
    const auto left = stream.deadline() - AgentStream::Clock::now();
    if (!stream.answered() && left > left.zero()) {
      return gpr_time_add(
          gpr_now(GPR_CLOCK_MONOTONIC),
          gpr_time_from_nanos(std::chrono::nanoseconds(left).count(), GPR_TIMESPAN));
    }
    if (!stream.answered()) {
      bool waits = false;
      {
        std::lock_guard lock(mutex_);
        waits = std::erase(waiting_, young_.front()) > 0;
      }
      // It waits for a job, which would be there within moments, or the core has not answered.
      waits ? stream.End(NoJob()) : stream.Cut();
    }
    young_.pop_front();
  }
  return gpr_inf_future(GPR_CLOCK_MONOTONIC);
}

void AgentService::Loop() {
  while (true) {
    void* pending = nullptr;
    bool ok = false;
    const auto next = queue_->AsyncNext(&pending, &ok, EndOverdue());
    if (next == grpc::CompletionQueue::SHUTDOWN) return;
    if (next == grpc::CompletionQueue::TIMEOUT) continue;
    auto* operation = static_cast<AgentStream::Operation*>(pending);
    const std::shared_ptr<AgentStream> stream = std::move(operation->stream);
    ((*stream).*(operation->done))(ok);
  }
}

}  // namespace ddprun::coordinator
