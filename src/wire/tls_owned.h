// OpenSSL's objects with an owner.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>

namespace meshnet {

template <auto Free>
struct OpensslFree {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Certificate = std::unique_ptr<X509, OpensslFree<X509_free>>;
using CertificateExtension = std::unique_ptr<X509_EXTENSION, OpensslFree<X509_EXTENSION_free>>;
using Key = std::unique_ptr<EVP_PKEY, OpensslFree<EVP_PKEY_free>>;
using Bio = std::unique_ptr<BIO, OpensslFree<BIO_free_all>>;

}  // namespace meshnet
