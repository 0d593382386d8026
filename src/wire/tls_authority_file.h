// A small certificate authority in a folder, for mutual TLS between machines of one owner: the verb `meshnet certificates`.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace meshnet {

struct TlsAuthorityOptions {
  std::string folder;
  // One certificate each: "worker1" or "worker1,worker1.lan,10.0.0.5" for one machine with several names and addresses.
  std::vector<std::string> hosts;
  int valid_days = 825;          // of a host's certificate; negative: expired already, for tests
  int authority_valid_days = 3650;
};

struct IssuedCertificate {
  std::string host;
  std::string certificate_path;
  std::string key_path;
};
struct IssuedCertificates {
  std::string authority_path;
  bool authority_created = false;  // false: the folder had one, which went on issuing
  std::vector<IssuedCertificate> certificates;
};

// Writes FOLDER/ca.pem and ca.key (made at the first call, used again later) and FOLDER/HOST.pem and HOST.key for each host, good for both
// sides of a connection. Keys are readable by their owner only. Each file appears whole or not at all; an existing host's file is refused
// (kBadConfiguration), never written over.
Result<IssuedCertificates> IssueCertificates(const TlsAuthorityOptions& options);

}  // namespace meshnet
