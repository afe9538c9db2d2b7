// Bounds of what comes from the network, in one place. A reached bound is a named outcome: one line
// that names it, and the connection or message concerned is dropped; the job goes on.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace ddprun::net {

// ---- messages

// One AgentBatch or CoordinatorBatch: what is gathered before it is sent. A single message may be
// larger (a trainer's config, an environment), up to kMessageBytesMax.
constexpr size_t kBatchBytesMax = 256 * 1024;
// What is a little larger is still received, so that it can be said whose it is; the rest is
// gRPC's to refuse. An environment may be 2 MiB (ARG_MAX), a stack report 32 KiB for
// each of a node's workers.
constexpr int kMessageBytesMax = 16 * 1024 * 1024;
constexpr int kReceiveBytesMax = kMessageBytesMax + 1024 * 1024;
// What an agent says before it is known: a Hello with the workers that it still runs.
constexpr size_t kHelloBytesMax = 256 * 1024;
// Of HTTP/2's headers, of which ours have a few hundred bytes.
constexpr int kMetadataBytesMax = 8 * 1024;
// What a node may have on its way to the deciding loop; then its stream is not read any more.
constexpr size_t kIncomingBytesMax = 1024 * 1024;
// What may wait for an agent that does not read; then its stream is cut, and it attaches again.
constexpr size_t kOutgoingBytesMax = 64 * 1024 * 1024;

// ---- handshakes

// From the stream's first message to Welcome, on either side.
constexpr std::chrono::seconds kHandshakeSeconds{5};
// How far a new node's clock may be off: more than NTP ever leaves, less than a replay is worth.
constexpr int64_t kClockSkewNsMax = 300LL * 1'000'000'000;
// Streams that are in their handshake at one moment. 1,000 agents that come at once queue behind
// these for milliseconds.
constexpr int kHandshakesMax = 256;
// A connection carries one Attach, and a second one while the first is being cut.
constexpr int kStreamsPerConnectionMax = 4;

// ---- connections

// Until the first bytes have come, and from then until the secret is proven.
constexpr std::chrono::seconds kFirstBytesSeconds{5};
constexpr std::chrono::seconds kAdmissionSeconds{10};
// In all: more nodes than any job has, and their successors.
constexpr size_t kConnectionsMax = 20000;
// From one address: several agents may share a machine or a router.
constexpr size_t kConnectionsPerPeerMax = 4096;
// Of those that have not proven the secret; the oldest of the same address, or of all, makes room.
constexpr size_t kStrangersMax = 512;
constexpr size_t kStrangersPerPeerMax = 256;
// What one may send until then: a Hello, and what HTTP/2 and TLS put around it. Without a bound a
// header without an end is kept, and looked through again and again, by gRPC.
constexpr size_t kStrangerBytesMax = kHelloBytesMax + 128 * 1024;
// Of all of them together; a new node's Hello has some hundred bytes, and one of a node that comes
// again some for each of its workers.
constexpr size_t kStrangersBytesMax = 8 * 1024 * 1024;
// What the kernel takes in for a connection before it is read, and what gRPC reads of it at once: a
// thousand small frames that are read together cost a hundred times their size.
constexpr int kReceiveBufferBytes = 256 * 1024;
constexpr int kReadBytesMax = 32 * 1024;

// ---- silence

// A connection on which nothing comes is asked after kKeepaliveMilliseconds, and is dead when
// nothing has come kKeepaliveTimeoutMilliseconds later: the other side's machine may have vanished
// without a word. The coordinator counts on leases, and looks only so that dead connections make
// room.
constexpr int kKeepaliveMilliseconds = 5000;
constexpr int kKeepaliveTimeoutMilliseconds = 5000;
constexpr int kServerKeepaliveMilliseconds = 60000;
// Agents may ask as often as this; gRPC would turn away those that ask more than every 5 minutes.
constexpr int kPingIntervalMinMilliseconds = 1000;

}  // namespace ddprun::net
