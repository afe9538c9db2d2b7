#include "worker/data/image_folder.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <iterator>
#include <memory>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/checksum.h"
#include "common/shown.h"

namespace ddprun {
namespace {

constexpr size_t kClassesNamedMax = 5;  // in an error about many

enum class EntryKind { kFile, kFolder, kDeadLink, kOther };
struct Entry {
  std::string name;
  EntryKind kind;
};

EntryKind KindOf(const std::string& folder, const dirent& entry) {
  if (entry.d_type == DT_REG) return EntryKind::kFile;
  if (entry.d_type == DT_DIR) return EntryKind::kFolder;
  // A link, or a file system that does not say.
  struct stat info;
  const std::string path = absl::StrCat(folder, "/", entry.d_name);
  if (stat(path.c_str(), &info) != 0) {
    const bool link = lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode);
    return link ? EntryKind::kDeadLink : EntryKind::kOther;
  }
  if (S_ISREG(info.st_mode)) return EntryKind::kFile;
  return S_ISDIR(info.st_mode) ? EntryKind::kFolder : EntryKind::kOther;
}

// Everything in the folder, sorted by name.
absl::StatusOr<std::vector<Entry>> ListEntries(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(folder.c_str()), closedir);
  if (dir == nullptr) {
    const int error = errno;
    const char* const advice = error == ENOENT || error == ENOTDIR
                                   ? "; [data] dir must hold the folders train and val (or test), "
                                     "each with a folder of pictures for every class"
                                   : "";
    const std::string message =
        absl::StrCat(Shown(folder, PATH_MAX), ": cannot be listed: ", strerror(error), advice);
    if (error == ENOENT) return absl::NotFoundError(message);
    return absl::InvalidArgumentError(message);
  }
  std::vector<Entry> entries;
  errno = 0;
  while (const dirent* entry = readdir(dir.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") entries.push_back({std::string(name), KindOf(folder, *entry)});
    errno = 0;
  }
  if (errno != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(Shown(folder, PATH_MAX), ": cannot be listed wholly: ", strerror(errno)));
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.name < b.name; });
  return entries;
}

bool NamesPicture(const std::string& name) {
  for (const char* ending : {".jpg", ".jpeg", ".png"}) {
    if (absl::EndsWithIgnoreCase(name, ending)) return true;
  }
  return false;
}

// Left out it would be a picture or a class less, which nobody asked for.
absl::Status DeadLink(const std::string& path) {
  return absl::InvalidArgumentError(
      absl::StrCat(Shown(path, PATH_MAX),
                   ": is a link to what cannot be reached; mount what it leads to, or remove it"));
}

std::string OnlyIn(const std::string& dir, const std::vector<std::string>& has,
                   const std::vector<std::string>& lacks) {
  std::vector<std::string> only;
  std::set_difference(has.begin(), has.end(), lacks.begin(), lacks.end(), std::back_inserter(only));
  if (only.empty()) return "";
  const size_t all = only.size();
  if (all > kClassesNamedMax) only.resize(kClassesNamedMax);
  for (std::string& name : only) name = Shown(name);
  return absl::StrCat(
      "; only in ", dir, ": ", absl::StrJoin(only, ", "),
      all > only.size() ? absl::StrCat(" and ", all - only.size(), " more") : std::string());
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ImageFolder::ListClasses(const std::string& split_dir) {
  const absl::StatusOr<std::vector<Entry>> entries = ListEntries(split_dir);
  if (!entries.ok()) return entries.status();
  std::vector<std::string> classes;
  for (const Entry& entry : *entries) {
    if (entry.kind == EntryKind::kDeadLink) return DeadLink(split_dir + "/" + entry.name);
    if (entry.kind == EntryKind::kFolder) classes.push_back(entry.name);
  }
  if (classes.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(split_dir, " has no class folders; each class needs one with its pictures"));
  }
  return classes;
}

absl::StatusOr<ImageFolder> ImageFolder::List(const std::string& split_dir) {
  absl::StatusOr<std::vector<std::string>> classes = ListClasses(split_dir);
  if (!classes.ok()) return classes.status();
  const absl::StatusOr<std::vector<Entry>> entries = ListEntries(split_dir);
  if (!entries.ok()) return entries.status();
  ImageFolder folder;
  folder.dir_ = split_dir;
  folder.classes_ = *std::move(classes);
  for (const Entry& entry : *entries) {
    if (entry.kind != EntryKind::kFolder) {
      folder.PassOver(absl::StrCat(split_dir, "/", entry.name));
    }
  }
  for (const std::string& name : folder.classes_) {
    absl::Status added = folder.AddClass(name);
    if (!added.ok()) return added;
  }
  return folder;
}

absl::Status ImageFolder::AddClass(const std::string& name) {
  const std::string path = absl::StrCat(dir_, "/", name);
  const absl::StatusOr<std::vector<Entry>> entries = ListEntries(path);
  if (!entries.ok()) return entries.status();
  class_begin_.push_back(size());
  for (const Entry& entry : *entries) {
    if (entry.kind == EntryKind::kDeadLink && NamesPicture(entry.name)) {
      return DeadLink(path + "/" + entry.name);
    }
    if (entry.kind != EntryKind::kFile || !NamesPicture(entry.name)) {
      PassOver(absl::StrCat(path, "/", entry.name));
      continue;
    }
    names_ += entry.name;
    name_begin_.push_back(names_.size());
  }
  if (size() > class_begin_.back()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      Shown(path, PATH_MAX), " has no .jpg, .jpeg or .png file",
      entries->empty() ? " (it is empty)" : "",
      "; a class needs at least one picture: remove the folder, or put pictures in it"));
}

void ImageFolder::PassOver(const std::string& path) {
  if (passed_over_++ == 0) passed_over_example_ = path;
}

uint64_t ImageFolder::Digest() const {
  Xxh3Stream stream;
  for (const std::string& name : classes_) stream.Update(name.c_str(), name.size() + 1);
  stream.Update(class_begin_.data(), class_begin_.size() * sizeof class_begin_[0]);
  stream.Update(names_.data(), names_.size());
  stream.Update(name_begin_.data(), name_begin_.size() * sizeof name_begin_[0]);
  return stream.Finish().low;
}

std::string ImageFolder::Path(int64_t sample) const {
  const auto i = static_cast<size_t>(sample);
  return absl::StrCat(dir_, "/", classes_[static_cast<size_t>(Class(sample))], "/",
                      names_.substr(name_begin_[i], name_begin_[i + 1] - name_begin_[i]));
}

int64_t ImageFolder::Class(int64_t sample) const {
  const auto behind = std::upper_bound(class_begin_.begin(), class_begin_.end(), sample);
  return behind - class_begin_.begin() - 1;
}

absl::Status CompareClasses(const std::string& train_dir, const std::vector<std::string>& train,
                            const std::string& test_dir, const std::vector<std::string>& test) {
  if (train == test) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(train_dir, " and ", test_dir, " must have the same class folders",
                   OnlyIn(train_dir, train, test), OnlyIn(test_dir, test, train)));
}

}  // namespace ddprun
