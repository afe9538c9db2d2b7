// Checks of what keeps others out: the job's secret, and TLS files. Shows neither.
#pragma once

#include <string>
#include <vector>

#include "launcher/cli/doctor_finding.h"
#include "launcher/cli/doctor_world.h"

namespace ddprun::doctor {

// DDPRUN_SECRET and DDPRUN_SECRET_FILE, and the files of --tls-cert, --tls-key and --tls-ca.
Outcome CheckSecrets(const World& world);

}  // namespace ddprun::doctor
