// libddprun as users get it: nothing but libc is needed, nothing but ddprun_* is seen.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>

namespace {

std::string Library(const char* name) {
  return std::filesystem::path(getenv("DDPRUN_BIN")).parent_path() / "lib" / name;
}

std::string Shell(const std::string& command) {
  FILE* const pipe = popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  std::string text;
  char buffer[4096];
  while (fgets(buffer, sizeof buffer, pipe) != nullptr) text += buffer;
  EXPECT_EQ(pclose(pipe), 0) << command;
  return text;
}

TEST(ClientLibrary, ExportsOnlyTheFunctionsOfItsHeader) {
  std::istringstream lines(Shell("nm -D --defined-only " + Library("libddprun.so")));
  std::set<std::string> names;
  std::string address, type, name;
  while (lines >> address >> type >> name) {
    EXPECT_TRUE(name.starts_with("ddprun_")) << name;
    EXPECT_EQ(type, "T") << name;
    names.insert(name);
  }
  // Each function that the header declares is there, and none besides.
  std::istringstream header(Shell("grep -o 'ddprun_[a-z_]*(' " +
                                  std::string(getenv("DDPRUN_SOURCE")) +
                                  "/worker/client/ddprun.h | tr -d '(' | sort -u"));
  std::set<std::string> declared;
  while (header >> name) declared.insert(name);
  EXPECT_EQ(names, declared);
}

TEST(ClientLibrary, NeedsNothingButLibc) {
  std::istringstream lines(Shell("objdump -p " + Library("libddprun.so")));
  int libraries = 0;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string key, value;
    words >> key >> value;
    if (key == "SONAME") {
      EXPECT_EQ(value, "libddprun.so.0");
    }
    if (key != "NEEDED") continue;
    ++libraries;
    // The loader is libc's own (thread-local storage); sanitizers are this build's.
    EXPECT_TRUE(value == "libc.so.6" || value.starts_with("ld-linux") ||
                value.find("san.so") != std::string::npos)
        << value;
  }
  EXPECT_GE(libraries, 1);
}

TEST(ClientLibrary, TheStaticLibraryIsOneFile) {
  // Undefined in one member and defined in none of them: only libc's names may be left.
  const std::string undefined =
      Shell("nm " + Library("libddprun.a") +
            " 2>/dev/null | awk '$1 == \"U\" { u[$2] } $2 ~ /[TDBR]/ { d[$3] }"
            " END { for (n in u) if (!(n in d)) print n }'");
  EXPECT_EQ(undefined.find("ddprun"), std::string::npos) << undefined;
  EXPECT_EQ(undefined.find("XXH"), std::string::npos) << undefined;
  EXPECT_NE(undefined.find("pthread_create"), std::string::npos) << undefined;
}

}  // namespace
