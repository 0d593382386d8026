#include <nlohmann/json.hpp>

#include "cli/arguments.h"
#include "cli/report.h"
#include "cli/verbs.h"
#include "wire/tls_authority_file.h"

namespace meshnet::cli {

int Certificates(int argc, char** argv) {
  TlsAuthorityOptions options;
  uint32_t days = static_cast<uint32_t>(options.valid_days);
  bool json = false, expired = false;
  Arguments arguments("certificates",
                      "Makes a small certificate authority (ca.pem, ca.key) and one certificate per machine, for --tls-cert, --tls-key and --tls-ca. "
                      "An authority that is in the folder already signs the new ones too; keep ca.key to yourself.");
  arguments.Positionals("NAME", &options.hosts, "host name or address; further ones after commas: a,a.lan,10.0.0.2 makes a.pem and a.key");
  arguments.LocalText("-o,--output", &options.folder, "folder for the files");
  arguments.Number("--days", &days, 1, 36500, "days the certificates are valid");
  arguments.Switch("--json", &json, "one JSON object on stdout");
  arguments.HiddenSwitch("--expired", &expired);  // for tests of what refuses them
  if (std::optional<int> code = arguments.Parse(argc, argv)) return *code;
  if (options.folder.empty()) return arguments.Usage("-o DIR is needed");
  options.valid_days = expired ? -1 : static_cast<int>(days);
  Result<IssuedCertificates> issued = IssueCertificates(options);
  if (!issued.ok()) return issued.status().code() == StatusCode::kUsage ? arguments.Usage(issued.status().message()) : Report(issued.status());

  nlohmann::ordered_json certificates = nlohmann::ordered_json::array();
  for (const IssuedCertificate& certificate : issued->certificates) {
    certificates.push_back({{"host", certificate.host}, {"certificate", certificate.certificate_path}, {"key", certificate.key_path}});
    if (!json) Print(certificate.certificate_path + "\n" + certificate.key_path + "\n");
  }
  if (json) Print(nlohmann::ordered_json({{"authority", issued->authority_path}, {"certificates", certificates}}).dump(2) + "\n");
  return 0;
}

}  // namespace meshnet::cli
