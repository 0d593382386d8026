#include "wire/tls_authority_file.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "wire/address.h"
#include "wire/tls_owned.h"

namespace meshnet {
namespace {

struct Authority {
  Certificate certificate;
  Key key;
};

Status OpenSslFailure(const std::string& what) {
  char text[256];
  ERR_error_string_n(ERR_get_error(), text, sizeof text);
  ERR_clear_error();
  return Failure(what + ": " + text);
}

std::string SystemText(const std::string& what) { return what + ": " + std::strerror(errno); }

// Under a temporary name, synced, then linked to its own: linking, unlike renaming, never replaces what stands there.
Status WriteNew(const std::string& path, const std::string& text, mode_t mode) {
  const std::string temporary = path + ".tmp" + std::to_string(getpid());
  int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (fd < 0) return BadConfiguration(SystemText(temporary));
  size_t done = 0;
  while (done < text.size()) {
    ssize_t wrote = write(fd, text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) break;
    done += static_cast<size_t>(wrote);
  }
  Status status;
  if (done != text.size() || fsync(fd) != 0) status = Failure(SystemText(temporary));
  close(fd);
  if (status.ok() && link(temporary.c_str(), path.c_str()) != 0) {
    status = errno == EEXIST ? BadConfiguration(path + " exists and is not written over; remove it, or choose another folder") : Failure(SystemText(path));
  }
  unlink(temporary.c_str());
  return status;
}

std::string CertificateText(X509* certificate) {
  Bio bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(bio.get(), certificate);
  char* data = nullptr;
  long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

std::string KeyText(EVP_PKEY* key) {
  Bio bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr);
  char* data = nullptr;
  long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

bool AddExtension(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  CertificateExtension extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  return extension && X509_add_ext(certificate, extension.get(), -1) == 1;
}

// A certificate without extensions and signature: version, random serial number, times, names.
Certificate Blank(const std::string& name, EVP_PKEY* key, int valid_days) {
  Certificate certificate(X509_new());
  unsigned char serial[16];
  if (!certificate || RAND_bytes(serial, sizeof serial) != 1) return nullptr;
  serial[0] &= 0x7f;
  BIGNUM* number = BN_bin2bn(serial, sizeof serial, nullptr);
  BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate.get()));
  BN_free(number);
  X509_set_version(certificate.get(), 2);
  // An hour back, so that a peer whose clock is a little late accepts it.
  constexpr long hour = 3600;
  long end = static_cast<long>(valid_days) * 24 * hour;
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), std::min(-hour, end - hour));
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), end);
  // A common name has at most 64 characters; the alternative names carry the whole one.
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(name.substr(0, 64).c_str()), -1, -1, 0);
  X509_set_pubkey(certificate.get(), key);
  return certificate;
}

Result<Authority> CreateAuthority(int valid_days) {
  Authority authority;
  authority.key.reset(EVP_EC_gen("P-256"));
  if (!authority.key) return OpenSslFailure("making a key");
  authority.certificate = Blank("meshnet authority", authority.key.get(), valid_days);
  X509* certificate = authority.certificate.get();
  if (!certificate || X509_set_issuer_name(certificate, X509_get_subject_name(certificate)) != 1 ||
      !AddExtension(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
      !AddExtension(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign") ||
      !AddExtension(certificate, certificate, NID_subject_key_identifier, "hash") ||
      X509_sign(certificate, authority.key.get(), EVP_sha256()) == 0) {
    return OpenSslFailure("making the authority's certificate");
  }
  return authority;
}

// The authority that the folder has already.
Result<Authority> LoadAuthority(const std::string& certificate_path, const std::string& key_path) {
  Authority authority;
  Bio certificate(BIO_new_file(certificate_path.c_str(), "r"));
  if (certificate) authority.certificate.reset(PEM_read_bio_X509(certificate.get(), nullptr, nullptr, nullptr));
  Bio key(BIO_new_file(key_path.c_str(), "r"));
  if (key) authority.key.reset(PEM_read_bio_PrivateKey(key.get(), nullptr, [](char*, int, int, void*) { return 0; }, nullptr));
  ERR_clear_error();
  if (!authority.certificate || !authority.key || X509_check_private_key(authority.certificate.get(), authority.key.get()) != 1) {
    ERR_clear_error();
    return BadConfiguration(certificate_path + " and " + key_path + " must both be there and belong together; move them away to start a new authority");
  }
  return authority;
}

// "DNS:name" or "IP:address" for each of "name,address,…".
Result<std::string> AlternativeNames(const std::string& host) {
  std::string names;
  size_t begin = 0;
  while (begin <= host.size()) {
    size_t comma = std::min(host.find(',', begin), host.size());
    std::string name = host.substr(begin, comma - begin);
    begin = comma + 1;
    Result<Address> address = ParseAddress(name, 0);
    if (!address.ok() || address->kind != Address::Kind::kTcp || address->host != name || name.find('%') != std::string::npos) {
      return Status(StatusCode::kUsage, "\"" + name + "\" is no host name or IP address (without a port)");
    }
    unsigned char bytes[16];
    bool literal = inet_pton(AF_INET, address->host.c_str(), bytes) == 1 || inet_pton(AF_INET6, address->host.c_str(), bytes) == 1;
    names += (names.empty() ? "" : ",") + std::string(literal ? "IP:" : "DNS:") + address->host;
  }
  return names;
}

Result<Authority> IssueOne(const Authority& authority, const std::string& name, const std::string& alternative_names, int valid_days) {
  Authority issued;
  issued.key.reset(EVP_EC_gen("P-256"));
  if (!issued.key) return OpenSslFailure("making a key");
  issued.certificate = Blank(name, issued.key.get(), valid_days);
  X509* certificate = issued.certificate.get();
  X509* issuer = authority.certificate.get();
  if (!certificate || X509_set_issuer_name(certificate, X509_get_subject_name(issuer)) != 1 ||
      !AddExtension(certificate, issuer, NID_basic_constraints, "critical,CA:FALSE") ||
      !AddExtension(certificate, issuer, NID_key_usage, "critical,digitalSignature") ||
      !AddExtension(certificate, issuer, NID_ext_key_usage, "serverAuth,clientAuth") ||
      !AddExtension(certificate, issuer, NID_subject_alt_name, alternative_names) ||
      !AddExtension(certificate, issuer, NID_authority_key_identifier, "keyid") ||
      X509_sign(certificate, authority.key.get(), EVP_sha256()) == 0) {
    return OpenSslFailure("making the certificate of " + name);
  }
  return issued;
}

Result<Authority> LoadOrCreateAuthority(const TlsAuthorityOptions& options, IssuedCertificates& issued) {
  const std::string key_path = options.folder + "/ca.key";
  struct stat info;
  if (stat(issued.authority_path.c_str(), &info) == 0 || stat(key_path.c_str(), &info) == 0) return LoadAuthority(issued.authority_path, key_path);
  Result<Authority> authority = CreateAuthority(options.authority_valid_days);
  if (!authority.ok()) return authority;
  // The key first: an authority without its key could issue nothing and would look finished.
  if (Status status = WriteNew(key_path, KeyText(authority->key.get()), 0600); !status.ok()) return status;
  if (Status status = WriteNew(issued.authority_path, CertificateText(authority->certificate.get()), 0644); !status.ok()) {
    unlink(key_path.c_str());
    return status;
  }
  issued.authority_created = true;
  return authority;
}

Result<IssuedCertificate> IssueTo(const std::string& folder, const Authority& authority, const std::string& host, const std::string& names, int valid_days) {
  std::string name = host.substr(0, host.find(','));
  std::string file = folder + "/" + name;
  std::replace(file.begin() + static_cast<std::ptrdiff_t>(folder.size()), file.end(), ':', '_');  // scp takes a colon for a host
  IssuedCertificate issued{name, file + ".pem", file + ".key"};
  Result<Authority> made = IssueOne(authority, name, names, valid_days);
  if (!made.ok()) return made.status();
  if (Status status = WriteNew(issued.key_path, KeyText(made->key.get()), 0600); !status.ok()) return status;
  if (Status status = WriteNew(issued.certificate_path, CertificateText(made->certificate.get()), 0644); !status.ok()) {
    unlink(issued.key_path.c_str());
    return status;
  }
  return issued;
}

}  // namespace

Result<IssuedCertificates> IssueCertificates(const TlsAuthorityOptions& options) {
  if (options.hosts.empty()) return Status(StatusCode::kUsage, "name at least one host");
  std::vector<std::string> names;
  for (const std::string& host : options.hosts) {
    Result<std::string> alternative = AlternativeNames(host);
    if (!alternative.ok()) return alternative.status();
    if (host.substr(0, host.find(',')) == "ca") return Status(StatusCode::kUsage, "\"ca\" is the authority's own name");
    names.push_back(*alternative);
  }
  std::error_code error;
  std::filesystem::create_directories(options.folder, error);
  if (error) return BadConfiguration(options.folder + ": " + error.message());

  IssuedCertificates issued;
  issued.authority_path = options.folder + "/ca.pem";
  Result<Authority> authority = LoadOrCreateAuthority(options, issued);
  if (!authority.ok()) return authority.status();
  for (size_t i = 0; i < options.hosts.size(); ++i) {
    Result<IssuedCertificate> one = IssueTo(options.folder, *authority, options.hosts[i], names[i], options.valid_days);
    if (!one.ok()) return one.status();
    issued.certificates.push_back(*one);
  }
  return issued;
}

}  // namespace meshnet
