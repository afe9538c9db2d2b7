// How HeartbeatAnswer.waiting begins where it says that the node itself is a spare: that is said
// once, and not again and again.
#pragma once

namespace ddprun::net {

inline constexpr char kSpareText[] = "this node is a spare: ";

}  // namespace ddprun::net
