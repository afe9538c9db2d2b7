// Which Python modules a program's workers load that are worth loading once for all of a node
// (proto/keeper_protocol.md, "Preloaded start"). Looks at the command and the script's text only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::cli {

struct Preload {
  std::vector<std::string> modules;  // empty: the workers are executed one by one
  uint32_t interpreter_words = 0;    // program[0 … n) is the interpreter with its options
};

// `wished`: --preload (auto, none, or modules); nullopt is auto. `program`: as it will be executed.
Preload ChoosePreload(const std::vector<std::string>& program, const std::string& working_dir,
                      const std::optional<std::string>& wished);

// How many words of the command name a Python interpreter with options that a preloaded worker can
// have as well; 0 where it is none, or what follows is neither a script nor -m module.
uint32_t InterpreterWords(const std::vector<std::string>& program);

// The modules below torch and numpy that the text imports at the beginning of a line. None for a
// text that does not import torch, or that sets a variable which libraries read when they are
// loaded.
std::vector<std::string> HeavyImports(std::string_view text);

}  // namespace ddprun::cli
