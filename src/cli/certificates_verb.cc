#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "cli/arguments.h"
#include "cli/report.h"
#include "cli/tls_authority.h"
#include "cli/verbs.h"

namespace meshnet::cli {
namespace {

using nlohmann::ordered_json;

// "a,10.0.0.2" into its names; empty when one is no host name or address, or would not do as a file name.
std::vector<std::string> SplitNames(const std::string& text) {
  std::vector<std::string> names;
  size_t begin = 0;
  while (begin <= text.size()) {
    size_t end = std::min(text.find(',', begin), text.size());
    names.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  auto is_bad = [](const std::string& name) {
    return name.empty() || name.size() > 253 || name.front() == '-' || name.front() == '.' ||
           name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._:*") != std::string::npos;
  };
  if (std::any_of(names.begin(), names.end(), is_bad) || names.front() == "ca" || names.front().find('*') != std::string::npos) return {};
  return names;
}

}  // namespace

int Certificates(int argc, char** argv) {
  std::string folder;
  std::vector<std::string> hosts;
  uint32_t days = 825;
  bool json = false;
  Arguments arguments("certificates",
                      "Makes a small certificate authority (ca.pem, ca.key) and one certificate per machine, for --tls-cert, --tls-key and --tls-ca. "
                      "An authority that is in the folder already signs the new ones too; keep ca.key to yourself.");
  arguments.Positionals("NAME", &hosts, "host name or address, with further ones after commas: a,a.lan,10.0.0.2 makes a.pem and a.key");
  arguments.LocalText("-o,--output", &folder, "folder for the files");
  arguments.Number("--days", &days, 1, 36500, "days the certificates are valid");
  arguments.Switch("--json", &json, "one JSON object on stdout");
  if (std::optional<int> code = arguments.Parse(argc, argv)) return *code;
  if (folder.empty()) return arguments.Usage("-o DIR is needed");
  std::vector<std::vector<std::string>> wanted;
  for (const std::string& host : hosts) {
    wanted.push_back(SplitNames(host));
    if (wanted.back().empty()) return arguments.Usage(host + ": not a host name or address, or a list of them");
  }
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return Report(Failure("cannot make the folder " + folder + ": " + std::strerror(errno)));
  Result<TlsAuthority> authority = TlsAuthority::Open(folder, days * 2);
  if (!authority.ok()) return Report(authority.status());
  ordered_json certificates = ordered_json::array();
  for (const std::vector<std::string>& names : wanted) {
    Status issued = authority->Issue(names, days);
    if (!issued.ok()) return Report(issued);
    std::string stem = folder + "/" + names.front();
    certificates.push_back({{"names", names}, {"certificate", stem + ".pem"}, {"key", stem + ".key"}});
    if (!json) Print(stem + ".pem\n" + stem + ".key\n");
  }
  if (json) Print(ordered_json({{"authority", folder + "/ca.pem"}, {"certificates", certificates}}).dump(2) + "\n");
  return 0;
}

}  // namespace meshnet::cli
