// Files that tests exchange with Python.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "worker/model/model.h"

namespace ddprun {

// Writes a safetensors file.
void WriteTensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                  const std::map<std::string, std::string>& metadata = {});

// Runs $DDPRUN_PYTHON with a script of tests/python/ and arguments; what it printed, and its exit
// code at the end of the first line: "exit 0\n…".
std::string RunPython(const std::string& script, const std::string& arguments);

}  // namespace ddprun
