// The files of a data set of pictures: one folder a class, as torchvision's ImageFolder reads them,
// but without folders inside of the classes' ones.
//
//   <split>/<class>/<picture>.{jpg,jpeg,png}     (capital letters too; links are followed)
//
// Classes are numbered in the order of their names (bytes), samples class by class in the order of
// theirs, so every rank has the same numbers. Immutable after List; any thread. Errors are
// INVALID_ARGUMENT, or NOT_FOUND where the split's folder is missing; they name the folder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ddprun {

class ImageFolder {
 public:
  static absl::StatusOr<ImageFolder> List(const std::string& split_dir);
  // Class folders alone, sorted: no look into them.
  static absl::StatusOr<std::vector<std::string>> ListClasses(const std::string& split_dir);

  const std::string& dir() const { return dir_; }
  const std::vector<std::string>& classes() const { return classes_; }
  int64_t size() const { return static_cast<int64_t>(name_begin_.size()) - 1; }
  std::string Path(int64_t sample) const;
  int64_t Class(int64_t sample) const;
  // Of the names of classes and pictures, and which picture is in which class; not of contents.
  uint64_t Digest() const;

  // What lies there and is no picture by its name: how many, and one of them.
  int64_t passed_over() const { return passed_over_; }
  const std::string& passed_over_example() const { return passed_over_example_; }

 private:
  absl::Status AddClass(const std::string& name);
  void PassOver(const std::string& path);

  std::string dir_;
  std::vector<std::string> classes_;
  std::vector<int64_t> class_begin_;  // first sample of each class
  // All file names in one string, without their folders: a million pictures are common.
  std::string names_;
  std::vector<uint64_t> name_begin_ = {0};  // one more than samples
  int64_t passed_over_ = 0;
  std::string passed_over_example_;
};

// Both splits must have the same class folders; the error names those that only one has. Pure.
absl::Status CompareClasses(const std::string& train_dir, const std::vector<std::string>& train,
                            const std::string& test_dir, const std::vector<std::string>& test);

}  // namespace ddprun
