// The log files of a generation's folder: which ranks, which rotated files, and where in them to
// begin. Stateless; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::logs {

// The log of one rank: <path>.<number> for each number, in this order, then <path>.
struct RankFiles {
  std::string path;
  std::vector<uint64_t> numbers;  // of rotated files, ascending
};

// `logs/g<N>` folders of a run folder, ascending.
std::vector<uint64_t> ListGenerations(const std::string& run_dir);
std::string GenerationFolder(const std::string& run_dir, uint64_t generation);

// The ranks whose logs are in the folder.
std::map<uint32_t, RankFiles> ListRanks(const std::string& folder);

// A place in a rank's log: number of the file (0: the current one) and offset in it.
struct Place {
  uint64_t number = 0;
  uint64_t offset = 0;
};
std::string PathOf(const RankFiles& files, uint64_t number);
Place Beginning(const RankFiles& files);
// Where the last `lines` lines begin.
Place TailPlace(const RankFiles& files, uint64_t lines);
// Where the first line begins that was written at `time_ns` or later. A file without an index
// counts as a whole, by the time of its last change.
Place SincePlace(const RankFiles& files, int64_t time_ns);
// The later of two.
Place Later(const Place& a, const Place& b);

}  // namespace ddprun::logs
