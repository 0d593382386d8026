#include "wire/tls_credentials_file.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include "wire/tls_owned.h"

namespace meshnet {
namespace {

constexpr size_t kPemBytesMax = 1u << 20;

struct PemFile {
  std::string flag;  // "--tls-cert"
  std::string path;
  std::string text;

  std::string Name() const { return flag + " " + path; }
};

Status ReadPem(PemFile& file) {
  std::ifstream stream(file.path, std::ios::binary);
  if (!stream) return BadConfiguration(file.Name() + ": " + std::strerror(errno));
  // read() reports a folder as a bad stream; an iterator over it would throw.
  file.text.resize(kPemBytesMax + 1);
  stream.read(file.text.data(), static_cast<std::streamsize>(file.text.size()));
  file.text.resize(static_cast<size_t>(stream.gcount()));
  if (stream.bad() || file.text.empty()) return BadConfiguration(file.Name() + ": cannot be read, or is empty");
  if (file.text.size() > kPemBytesMax) return BadConfiguration(file.Name() + ": too large for a PEM file");
  return OkStatus();
}

Bio Open(const std::string& text) { return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

std::vector<Certificate> ParseCertificates(const std::string& text) {
  std::vector<Certificate> certificates;
  Bio bio = Open(text);
  while (X509* certificate = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) certificates.emplace_back(certificate);
  ERR_clear_error();  // the end of the file is an error to OpenSSL
  return certificates;
}

std::string TimeText(const ASN1_TIME* time) {
  Bio bio(BIO_new(BIO_s_mem()));
  if (!ASN1_TIME_print(bio.get(), time)) return "an unreadable time";
  char* data = nullptr;
  long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

Status CheckValidity(const PemFile& file, const X509* certificate) {
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0) {
    return BadConfiguration(file.Name() + ": the certificate expired on " + TimeText(X509_get0_notAfter(certificate)) + "; issue a new one (meshnet certificates)");
  }
  if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0) {
    return BadConfiguration(file.Name() + ": the certificate is valid only from " + TimeText(X509_get0_notBefore(certificate)) + "; check this machine's clock");
  }
  return OkStatus();
}

struct TlsFiles {
  PemFile certificate, key, authority;
};

Status CheckContents(const TlsFiles& files) {
  std::vector<Certificate> chain = ParseCertificates(files.certificate.text);
  if (chain.empty()) return BadConfiguration(files.certificate.Name() + ": holds no PEM certificate");
  if (Status status = CheckValidity(files.certificate, chain.front().get()); !status.ok()) return status;

  // A pass phrase could only be asked on a terminal that a worker does not have.
  auto no_passphrase = [](char*, int, int, void*) { return 0; };
  Bio bio = Open(files.key.text);
  Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_passphrase, nullptr));
  ERR_clear_error();
  if (!key) return BadConfiguration(files.key.Name() + ": holds no PEM private key that can be read without a pass phrase");
  bool match = X509_check_private_key(chain.front().get(), key.get()) == 1;
  ERR_clear_error();
  if (!match) return BadConfiguration(files.key.Name() + ": is not the key of " + files.certificate.path);

  std::vector<Certificate> authorities = ParseCertificates(files.authority.text);
  if (authorities.empty()) return BadConfiguration(files.authority.Name() + ": holds no PEM certificate");
  Status last;
  for (const Certificate& authority : authorities) {
    last = CheckValidity(files.authority, authority.get());
    if (last.ok()) return last;
  }
  return last;  // not one of them is valid today
}

Result<TlsFiles> Load(const TlsOptions& tls) {
  TlsFiles files{{"--tls-cert", tls.certificate_path, ""}, {"--tls-key", tls.key_path, ""}, {"--tls-ca", tls.authority_path, ""}};
  for (const PemFile* file : {&files.certificate, &files.key, &files.authority}) {
    if (file->path.empty()) return BadConfiguration(file->flag + " is missing: mutual TLS needs --tls-cert, --tls-key and --tls-ca together");
  }
  for (PemFile* file : {&files.certificate, &files.key, &files.authority}) {
    if (Status status = ReadPem(*file); !status.ok()) return status;
  }
  if (Status status = CheckContents(files); !status.ok()) return status;
  return files;
}

bool wants_tls(const TlsOptions& tls) { return tls.enabled() || !tls.key_path.empty() || !tls.authority_path.empty(); }

}  // namespace

Status CheckTlsFiles(const TlsOptions& tls) { return wants_tls(tls) ? Load(tls).status() : OkStatus(); }

Result<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentialsOf(const TlsOptions& tls) {
  if (!wants_tls(tls)) return grpc::InsecureChannelCredentials();
  Result<TlsFiles> files = Load(tls);
  if (!files.ok()) return files.status();
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = files->authority.text;
  options.pem_private_key = files->key.text;
  options.pem_cert_chain = files->certificate.text;
  return grpc::SslCredentials(options);
}

Result<std::shared_ptr<grpc::ServerCredentials>> ServerCredentialsOf(const TlsOptions& tls) {
  if (!wants_tls(tls)) return grpc::InsecureServerCredentials();
  Result<TlsFiles> files = Load(tls);
  if (!files.ok()) return files.status();
  grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = files->authority.text;
  options.pem_key_cert_pairs.push_back({files->key.text, files->certificate.text});
  return grpc::SslServerCredentials(options);
}

}  // namespace meshnet
