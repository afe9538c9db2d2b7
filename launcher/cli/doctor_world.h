// Where the checks of `ddprun doctor` look, so that tests can give them a bad world.
//
// Each check is a function of a World (and of facts that only system calls tell, which its header
// names as a struct and judges by a pure function). A World is a value; any thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::doctor {

struct World {
  std::string root;  // before /proc, /sys and /dev; "" but in tests
  std::map<std::string, std::string> environment;
  std::string binary_folder;                            // where ddprun and ddp-worker are
  std::string working_dir;                              // absolute
  std::string run_dir;                                  // absolute; may not be there yet
  std::string advertise_address;                        // --advertise-addr
  std::string card;                                     // --iface
  std::string tls_certificate, tls_key, tls_authority;  // paths; "" when not given

  std::string Variable(const std::string& name) const;  // "" when unset
};

// The first bytes of a file of `world` (path with its first slash), without space at the end; ""
// when it cannot be read. Files of /proc and /sys only: it may wait where a file may.
std::string ReadWorldFile(const World& world, const std::string& path);
// Names in a folder of `world`, sorted.
std::vector<std::string> ListWorldFolder(const World& world, const std::string& path);
// Where a program is found on PATH; "" when it is not.
std::string FindOnPath(const World& world, const std::string& program);
// A whole number at the start of a text.
std::optional<long long> LeadingNumber(const std::string& text);

}  // namespace ddprun::doctor
