#include "base/cache_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace meshnet {
namespace {

// Like mkdir -p, with 0700 for what is made.
int MakeFolders(const std::string& path) {
  for (size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    std::string prefix = path.substr(0, slash);
    if (mkdir(prefix.c_str(), 0700) != 0 && errno != EEXIST) return errno;
    if (slash == std::string::npos) return 0;
  }
}

}  // namespace

std::string CachePath(const std::string& name) {
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  if (xdg != nullptr && xdg[0] == '/') return std::string(xdg) + "/meshnet/" + name;
  const char* home = std::getenv("HOME");
  return home != nullptr && home[0] == '/' ? std::string(home) + "/.cache/meshnet/" + name : "";
}

Result<std::string> CacheFolder(const std::string& name) {
  const std::string path = CachePath(name);
  if (path.empty()) return Failure("no cache folder: neither XDG_CACHE_HOME nor HOME is set to an absolute path");
  int error = MakeFolders(path);
  if (error == 0 && access(path.c_str(), W_OK | X_OK) != 0) error = errno;
  if (error != 0) return Failure("cannot write the cache folder " + path + ": " + std::strerror(error) + "; set XDG_CACHE_HOME to one that can be written");
  return path;
}

}  // namespace meshnet
