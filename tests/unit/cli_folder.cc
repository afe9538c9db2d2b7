#include "tests/unit/cli_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace ddprun::cli {
namespace {

namespace fs = std::filesystem;

void AppendBigEndian(std::string* out, uint32_t number) {
  for (int shift = 24; shift >= 0; shift -= 8) out->push_back(static_cast<char>(number >> shift));
}

std::string Idx(const std::vector<uint32_t>& shape) {
  std::string bytes = {0, 0, 8, static_cast<char>(shape.size())};
  size_t count = 1;
  for (uint32_t size : shape) {
    AppendBigEndian(&bytes, size);
    count *= size;
  }
  for (size_t i = 0; i < count; ++i) bytes.push_back(static_cast<char>(i % 10));
  return bytes;
}

}  // namespace

Folder::Folder() {
  std::string name = testing::TempDir() + "ddprun-cli-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "no temporary folder";
  path_ = fs::canonical(name).string();
}

Folder::~Folder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void Folder::Write(const std::string& name, const std::string& text, int mode) {
  const fs::path path = *this / name;
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
  chmod(path.c_str(), static_cast<mode_t>(mode));
}

std::string Folder::Read(const std::string& name) const {
  std::ifstream file(*this / name, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> Folder::All() const {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(path_)) {
    names.push_back(fs::relative(entry.path(), path_).string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

void WriteTinyJob(Folder& folder) {
  folder.Write("data/train-images-idx3-ubyte", Idx({64, 28, 28}));
  folder.Write("data/train-labels-idx1-ubyte", Idx({64}));
  folder.Write("data/t10k-images-idx3-ubyte", Idx({16, 28, 28}));
  folder.Write("data/t10k-labels-idx1-ubyte", Idx({16}));
  folder.Write("train.cfg", R"([model]
name = "simple_cnn"
[data]
kind = "idx"
dir = "data"
batch_size = 4
[train]
epochs = 2
)");
}

}  // namespace ddprun::cli
