// A temporary folder for the tests of the command line, removed at the end.
#pragma once

#include <string>
#include <vector>

namespace ddprun::cli {

class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  // Writes a file and the folders above it.
  void Write(const std::string& name, const std::string& text, int mode = 0644);
  std::string Read(const std::string& name) const;
  // Every file and folder in it, relative, sorted.
  std::vector<std::string> All() const;

 private:
  std::string path_;
};

// A train.cfg on two small IDX files that the folder gets, too: 64 training and 16 test images.
void WriteTinyJob(Folder& folder);

}  // namespace ddprun::cli
