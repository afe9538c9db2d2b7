// The list of the files in worker/model/models/, written by CMake.
#pragma once

#include <vector>

#include "worker/model/model.h"

namespace ddprun {

struct RegisteredModel {
  const char* name;
  const ModelEntry* entry;
};
const std::vector<RegisteredModel>& RegisteredModels();

}  // namespace ddprun
