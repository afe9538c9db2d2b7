#include "launcher/net/diagnose.h"

namespace ddprun::net {

Diagnosis Diagnose(const std::string& /*endpoint*/, const Security& /*security*/,
                   const std::string& /*name*/) {
  return {};
}

}  // namespace ddprun::net
