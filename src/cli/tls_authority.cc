#include "cli/tls_authority.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/system_clock.h"

namespace meshnet::cli {
namespace {

template <auto Free>
struct Freer {
  template <typename T>
  void operator()(T* pointer) const {
    Free(pointer);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freer<X509_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Freer<X509_EXTENSION_free>>;
using Bio = std::unique_ptr<BIO, Freer<BIO_free_all>>;

// Clocks of small machines differ; a certificate that is valid from this very second fails on the next one.
constexpr long kBackdateSeconds = 24 * 3600;

std::string OpensslError() {
  char text[256] = "unknown";
  unsigned long code = ERR_get_error();
  if (code != 0) ERR_error_string_n(code, text, sizeof text);
  ERR_clear_error();
  return text;
}

bool IsAddress(const std::string& name) {
  in6_addr parsed;
  return inet_pton(AF_INET, name.c_str(), &parsed) == 1 || inet_pton(AF_INET6, name.c_str(), &parsed) == 1;
}

bool AddExtension(X509* certificate, X509* issuer, int id, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  Extension extension(X509V3_EXT_conf_nid(nullptr, &context, id, value.c_str()));
  return extension && X509_add_ext(certificate, extension.get(), -1) == 1;
}

// A certificate of `key` with a random serial number; unsigned.
Certificate NewCertificate(EVP_PKEY* key, const std::string& common_name, uint32_t days) {
  Certificate certificate(X509_new());
  if (!certificate) return nullptr;
  uint8_t serial[16];
  FillRandom(serial, sizeof serial);
  serial[0] &= 0x7f;
  std::unique_ptr<BIGNUM, Freer<BN_free>> number(BN_bin2bn(serial, sizeof serial, nullptr));
  X509_NAME* name = X509_get_subject_name(certificate.get());
  bool made = X509_set_version(certificate.get(), 2) == 1 && number && BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate.get())) &&
              X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -kBackdateSeconds) &&
              X509_time_adj_ex(X509_getm_notAfter(certificate.get()), static_cast<int>(days), 0, nullptr) &&
              X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, reinterpret_cast<const unsigned char*>(common_name.data()),
                                         static_cast<int>(common_name.size()), -1, 0) == 1 &&
              X509_set_pubkey(certificate.get(), key) == 1;
  return made ? std::move(certificate) : nullptr;
}

// Under its final name only when whole, and never readable by others before its mode is set.
Status WriteFile(const std::string& path, const std::string& text, mode_t mode) {
  std::string temporary = path + ".tmp";
  unlink(temporary.c_str());
  int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  bool written = fd >= 0 && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && fsync(fd) == 0;
  int error = errno;
  if (fd >= 0) close(fd);
  if (written && rename(temporary.c_str(), path.c_str()) != 0) {
    written = false;
    error = errno;
  }
  if (written) return OkStatus();
  unlink(temporary.c_str());
  return Failure("cannot write " + path + ": " + std::strerror(error));
}

template <typename Write>
std::string ToPem(Write write) {
  Bio memory(BIO_new(BIO_s_mem()));
  if (!memory || write(memory.get()) != 1) return "";
  char* data = nullptr;
  long size = BIO_get_mem_data(memory.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

Status WritePair(const std::string& stem, X509* certificate, EVP_PKEY* key) {
  std::string certificate_text = ToPem([certificate](BIO* out) { return PEM_write_bio_X509(out, certificate); });
  std::string key_text = ToPem([key](BIO* out) { return PEM_write_bio_PrivateKey(out, key, nullptr, nullptr, 0, nullptr, nullptr); });
  if (certificate_text.empty() || key_text.empty()) return Failure("cannot encode " + stem + ": " + OpensslError());
  Status written = WriteFile(stem + ".key", key_text, 0600);
  return written.ok() ? WriteFile(stem + ".pem", certificate_text, 0644) : written;
}

}  // namespace

struct TlsAuthority::Impl {
  std::string folder;
  Key key;
  Certificate certificate;
};

TlsAuthority::TlsAuthority(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TlsAuthority::TlsAuthority(TlsAuthority&&) noexcept = default;
TlsAuthority::~TlsAuthority() = default;

Result<TlsAuthority> TlsAuthority::Open(const std::string& folder, uint32_t days) {
  auto impl = std::make_unique<Impl>();
  impl->folder = folder;
  std::string stem = folder + "/ca";
  bool has_certificate = access((stem + ".pem").c_str(), F_OK) == 0, has_key = access((stem + ".key").c_str(), F_OK) == 0;
  if (has_certificate || has_key) {
    Bio certificate(BIO_new_file((stem + ".pem").c_str(), "r")), key(BIO_new_file((stem + ".key").c_str(), "r"));
    if (certificate) impl->certificate.reset(PEM_read_bio_X509(certificate.get(), nullptr, nullptr, nullptr));
    if (key) impl->key.reset(PEM_read_bio_PrivateKey(key.get(), nullptr, nullptr, nullptr));
    if (!impl->certificate || !impl->key || X509_check_private_key(impl->certificate.get(), impl->key.get()) != 1) {
      ERR_clear_error();
      return BadConfiguration(stem + ".pem and " + stem + ".key are not the certificate and key of one authority; move them away to make a new one");
    }
    return TlsAuthority(std::move(impl));
  }
  impl->key.reset(EVP_EC_gen("P-256"));
  if (impl->key) impl->certificate = NewCertificate(impl->key.get(), "meshnet authority", days);
  X509* certificate = impl->certificate.get();
  if (certificate == nullptr || X509_set_issuer_name(certificate, X509_get_subject_name(certificate)) != 1 ||
      !AddExtension(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
      !AddExtension(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign") ||
      !AddExtension(certificate, certificate, NID_subject_key_identifier, "hash") || X509_sign(certificate, impl->key.get(), EVP_sha256()) == 0) {
    return Failure("cannot make an authority: " + OpensslError());
  }
  Status written = WritePair(stem, certificate, impl->key.get());
  if (!written.ok()) return written;
  return TlsAuthority(std::move(impl));
}

Status TlsAuthority::Issue(const std::vector<std::string>& names, uint32_t days) const {
  std::string alternatives;
  for (const std::string& name : names) alternatives += (alternatives.empty() ? "" : ",") + std::string(IsAddress(name) ? "IP:" : "DNS:") + name;
  Key key(EVP_EC_gen("P-256"));
  Certificate certificate = key ? NewCertificate(key.get(), names.front(), days) : nullptr;
  X509* issuer = impl_->certificate.get();
  if (!certificate || X509_set_issuer_name(certificate.get(), X509_get_subject_name(issuer)) != 1 ||
      !AddExtension(certificate.get(), issuer, NID_basic_constraints, "critical,CA:FALSE") ||
      !AddExtension(certificate.get(), issuer, NID_key_usage, "critical,digitalSignature") ||
      !AddExtension(certificate.get(), issuer, NID_ext_key_usage, "serverAuth,clientAuth") ||
      !AddExtension(certificate.get(), issuer, NID_subject_key_identifier, "hash") ||
      !AddExtension(certificate.get(), issuer, NID_authority_key_identifier, "keyid") ||
      !AddExtension(certificate.get(), issuer, NID_subject_alt_name, alternatives) ||
      X509_sign(certificate.get(), impl_->key.get(), EVP_sha256()) == 0) {
    return Failure("cannot make a certificate for " + names.front() + ": " + OpensslError());
  }
  return WritePair(impl_->folder + "/" + names.front(), certificate.get(), key.get());
}

}  // namespace meshnet::cli
