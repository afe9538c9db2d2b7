#include "launcher/keeper/worker.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "common/packet.h"
#include "common/wire.h"
#include "launcher/keeper/clock.h"
#include "launcher/keeper/signal_fate.h"
#include "launcher/keeper/worker_ends.h"
#include "launcher/keeper/worker_packet.h"

namespace ddprun::keeper {
namespace {

constexpr uint64_t kVoidPacketsToldMax = 10;  // then they are only counted
constexpr uint64_t kLogNewsToldMax = 20;      // a disk may be full and not full very often

std::string Line(int64_t rank, const std::string& text) {
  return "ddprun-keeper: rank " + std::to_string(rank) + ": " + text + "\n";
}

struct WorkerDatagram {
  enum class Kind { kPacket, kEmpty, kClosed };
  Kind kind = Kind::kEmpty;
  std::string_view bytes;
  pid_t sender = 0;
  bool cut = false;
};

// The next packet of the socket. `bytes` points into a buffer of its own until the next call.
WorkerDatagram ReceiveFromWorker(int fd) {
  static char buffer[kDdprunPacketBytesMax];
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(ucred))];
  WorkerDatagram datagram;
  for (;;) {
    iovec piece{buffer, sizeof buffer};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t size = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    // The worker closed while our packets lay unread at its side; what it sent before still comes.
    if (size < 0 && (errno == ECONNRESET || errno == EINTR)) continue;
    if (size < 0) {
      const bool empty = errno == EAGAIN;
      datagram.kind = empty ? WorkerDatagram::Kind::kEmpty : WorkerDatagram::Kind::kClosed;
      return datagram;
    }
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    const bool has_sender = header != nullptr && header->cmsg_level == SOL_SOCKET &&
                            header->cmsg_type == SCM_CREDENTIALS;
    if (!has_sender) {  // a packet, even an empty one, always has it: this is the end of file
      datagram.kind = WorkerDatagram::Kind::kClosed;
      return datagram;
    }
    ucred credentials{};
    memcpy(&credentials, CMSG_DATA(header), sizeof credentials);
    datagram.kind = WorkerDatagram::Kind::kPacket;
    datagram.sender = credentials.pid;
    datagram.bytes = std::string_view(buffer, static_cast<size_t>(size));
    datagram.cut = (message.msg_flags & MSG_TRUNC) != 0;
    return datagram;
  }
}

}  // namespace

void AddPage(const StepPageContent& page, PacketWriter* packet) {
  packet->Unsigned("PHASE", page.phase)
      .Unsigned("STEP", page.step)
      .Text("TEXT", page.text)
      .Text("COLLECTIVE", page.collective)
      .Unsigned("COLLECTIVE_STARTED", page.collective_started)
      .Unsigned("COLLECTIVE_FINISHED", page.collective_finished);
}

bool Worker::Start(const StartContext& context, AgentLink* agent) {
  StartFailure failure;
  alive_ = StartWorker(*spec_, context, &process_, &failure);
  if (!alive_) {
    TellStartFailed(agent, failure);
    return false;
  }
  Watch();
  return true;
}

bool Worker::Ask(const StartContext& context, const Preloader& preloader) {
  ChildEnds ends;
  StartFailure failure;
  return OpenEnds(*spec_, context, &process_, &ends, &failure) &&
         preloader.Ask(*spec_, ends, process_);
}

bool Worker::AwaitPreloaded(int64_t deadline_boot_ns) {
  StartFailure failure;
  alive_ = Preloader::AwaitPid(&process_, deadline_boot_ns) && HoldProcess(&process_, &failure);
  return alive_;
}

void Worker::Forget() {
  process_ = StartedWorker{};
  alive_ = false;
}

void Worker::Go() {
  // One that has gone meanwhile is seen as any worker's end is.
  [[maybe_unused]] const ssize_t sent =
      send(process_.socket.get(), "go", 2, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void Worker::Watch() {
  poller_->Watch(process_.pidfd.get(), Source::kExit, index_);
  poller_->Watch(process_.start_pipe.get(), Source::kStartPipe, index_);
  poller_->Watch(process_.socket.get(), Source::kSocket, index_);
  poller_->Watch(process_.log.pipe()->get(), Source::kLog, index_);
}

void Worker::ReadStartPipe(AgentLink* agent, int64_t time_ns) {
  if (!process_.start_pipe.valid()) return;
  StartFailure failure;
  const ssize_t size = read(process_.start_pipe.get(), &failure, sizeof failure);
  if (size < 0 && errno == EAGAIN) return;  // exec is still under way
  poller_->Close(&process_.start_pipe);
  if (size == static_cast<ssize_t>(sizeof failure)) {
    TellStartFailed(agent, failure);
    return;
  }
  agent->Send(PacketWriter("Started")
                  .Integer("RANK", rank())
                  .Integer("PID", pid())
                  .Integer("TIME_NS", time_ns)
                  .Finish());
}

void Worker::TellStartFailed(AgentLink* agent, const StartFailure& failure) {
  start_failed_ = true;
  agent->Send(PacketWriter("StartFailed")
                  .Integer("RANK", rank())
                  .Integer("ERRNO", failure.error)
                  .Text("REASON", DescribeStartFailure(*spec_, failure))
                  .Finish());
}

bool Worker::ReadPackets(AgentLink* agent, int packets_max) {
  const bool said_hello_before = said_hello_;
  for (int i = 0; i < packets_max && process_.socket.valid(); ++i) {
    const WorkerDatagram datagram = ReceiveFromWorker(process_.socket.get());
    if (datagram.kind == WorkerDatagram::Kind::kEmpty) break;
    if (datagram.kind == WorkerDatagram::Kind::kClosed) {  // says nothing about its life
      poller_->Close(&process_.socket);
      queue_.Clear();
      break;
    }
    if (datagram.sender != pid()) continue;  // a child that inherited the socket
    if (!budget_.Take(datagram.bytes.size(), BootNs())) {
      TellFlood(agent);
      continue;
    }
    if (datagram.cut) {
      TellVoidPacket(agent, "longer than 65536 bytes");
      continue;
    }
    const WorkerPacketCheck check = CheckWorkerPacket(datagram.bytes, pid(), said_hello_);
    if (!check.problem.empty()) {
      TellVoidPacket(agent, check.problem);
      continue;
    }
    said_hello_ = said_hello_ || check.is_hello;
    agent->Send(PacketWriter("Packet").Integer("RANK", rank()).FinishWithBody(datagram.bytes));
  }
  return said_hello_ && !said_hello_before;
}

void Worker::TellVoidPacket(AgentLink* agent, const std::string& problem) {
  ++void_packets_;
  if (void_packets_ > kVoidPacketsToldMax) return;
  const std::string text = Line(rank(), "a packet is void: " + problem);
  agent->SendConsoleAlways(rank(), text, &console_dropped_);
}

void Worker::TellFlood(AgentLink* agent) {
  ++void_packets_;
  if (std::exchange(told_flood_, true)) return;
  const std::string text =
      Line(rank(), "it sends more than " + std::to_string(PacketBudget::kPacketsPerSecond) +
                       " packets or " + std::to_string(PacketBudget::kBytesPerSecond >> 20) +
                       " MiB a second; what is above that is dropped");
  agent->SendConsoleAlways(rank(), text, &console_dropped_);
}

void Worker::PumpLog(AgentLink* agent, size_t bytes_max) {
  size_t pumped = 0;
  while (pumped < bytes_max) {
    std::string_view chunk;
    size_t size = 0;
    // What the console could not take anyway is not copied for it.
    const bool show = spec_->console && agent->TakesConsole(kLogChunkBytes);
    const LogPump::Outcome outcome = process_.log.PumpOnce(bytes_max - pumped, show, &chunk, &size);
    if (outcome == LogPump::Outcome::kEnd) poller_->Close(process_.log.pipe());
    if (outcome != LogPump::Outcome::kData) return;
    pumped += size;
    output_bytes_ += size;
    if (show) {
      agent->SendConsoleAlways(rank(), chunk, &console_dropped_);
      console_in_line_ = chunk.back() != '\n';
    } else if (spec_->console) {
      console_dropped_ += size;
    }
    TellLogNews(agent);
  }
}

void Worker::TellLogNews(AgentLink* agent) {
  const LogPump::News news = process_.log.TakeNews();
  if (news == LogPump::News::kNone || ++log_news_told_ > kLogNewsToldMax) return;
  const std::string log = std::string("'") + spec_->log + "'";
  const char* why = strerrordesc_np(process_.log.last_error());
  std::string text;
  switch (news) {
    case LogPump::News::kNone:
      break;
    case LogPump::News::kCannotWrite:
      text =
          "cannot write " + log + ": " + why + "; its output is dropped until there is room again";
      break;
    case LogPump::News::kWritesAgain:
      text = log + " can be written again; " + std::to_string(process_.log.bytes_lost()) +
             " bytes of its output are missing there";
      break;
    case LogPump::News::kCannotRotate:
      text = "cannot rotate " + log + ": " + why + "; it grows beyond its limit until that works";
      break;
  }
  SayLine(agent, text);
}

void Worker::SayLine(AgentLink* agent, const std::string& text) {
  // On a line of its own, also where the worker is in the middle of one.
  std::string line = std::exchange(console_in_line_, false) ? "\n" : "";
  line += Line(rank(), text);
  agent->SendConsoleAlways(rank(), line, &console_dropped_);
}

void Worker::ReapAndTell(AgentLink* agent, int64_t time_ns) {
  siginfo_t info{};
  while (waitid(P_PIDFD, static_cast<id_t>(process_.pidfd.get()), &info, WEXITED) != 0 &&
         errno == EINTR) {
  }
  alive_ = false;
  if (!start_failed_) {
    if (console_dropped_ > 0) agent->SendConsoleAlways(rank(), "", &console_dropped_);
    agent->Send(ExitedPacket(info, time_ns));
  }
  poller_->Close(&process_.pidfd);
  poller_->Close(&process_.socket);
  queue_.Clear();
}

std::string Worker::ExitedPacket(const siginfo_t& info, int64_t time_ns) const {
  PacketWriter packet("Exited");
  packet.Integer("RANK", rank()).Integer("PID", pid()).Integer("TIME_NS", time_ns);
  packet.Integer(info.si_code == CLD_EXITED ? "CODE" : "SIGNAL", info.si_status);
  packet.Integer("CORE", info.si_code == CLD_DUMPED ? 1 : 0);
  if (const std::optional<StepPageContent> page = process_.page.Read()) {
    AddPage(*page, &packet);
  }
  if (void_packets_ > 0) packet.Unsigned("VOID_PACKETS", void_packets_);
  if (packets_dropped_ > 0) packet.Unsigned("PACKETS_DROPPED", packets_dropped_);
  return packet.Finish();
}

void Worker::CloseLog(AgentLink* agent) {
  DrainLog(agent);
  poller_->Close(process_.log.pipe());
  const uint64_t lost = process_.log.bytes_lost();
  if (lost > 0) {
    SayLine(agent, std::to_string(lost) + " bytes of its output are not in '" +
                       std::string(spec_->log) + "', which could not be written");
  } else if (console_dropped_ > 0) {
    agent->SendConsoleAlways(rank(), "", &console_dropped_);
  }
}

void Worker::Send(std::string packet) {
  if (!process_.socket.valid()) return;
  // Closed by the worker: seen and dealt with when the loop reads it.
  const PacketQueue::Outcome outcome = queue_.Push(process_.socket.get(), std::move(packet));
  if (outcome != PacketQueue::Outcome::kOk) ++packets_dropped_;
}

void Worker::FlushPackets() {
  if (!process_.socket.valid()) return;
  if (queue_.Flush(process_.socket.get()) == PacketQueue::Outcome::kClosed) queue_.Clear();
}

void Worker::UpdateInterest() {
  if (!process_.socket.valid() || wants_write_ == !queue_.empty()) return;
  wants_write_ = !queue_.empty();
  poller_->WantWrite(process_.socket.get(), Source::kSocket, index_, wants_write_);
}

void Worker::Signal(int number) const {
  if (alive_) kill(pid(), number);  // not reaped yet, so the pid is still its own
}

void Worker::PassSignal(AgentLink* agent, int number) {
  const bool tells = number == SIGUSR1 || number == SIGUSR2;
  if (!tells || (runs() && Expects(pid(), number))) return Signal(number);
  // One that says Hello is asked by packets.
  if (!alive_ || said_hello_ || std::exchange(told_signal_, true)) return;
  SayLine(agent, std::string("SIG") + sigabbrev_np(number) +
                     " was not passed on: this program has no handler for it (yet), and would die");
}

}  // namespace ddprun::keeper
