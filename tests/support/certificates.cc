#include "tests/support/certificates.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <memory>
#include <random>

#include "common/check.h"

namespace aisp {
namespace {

constexpr int64_t kDayS = 86'400;

using KeyPtr = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using CertPtr = std::unique_ptr<X509, decltype(&X509_free)>;
using BioPtr = std::unique_ptr<BIO, decltype(&BIO_free)>;

std::string Contents(BIO* bio) {
  char* data = nullptr;
  const auto size = BIO_get_mem_data(bio, &data);
  return {data, static_cast<size_t>(size)};
}

void Extend(X509* cert, X509* issuer, int what, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, cert, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, what, value.c_str());
  AISP_CHECK(extension != nullptr);
  X509_add_ext(cert, extension, -1);
  X509_EXTENSION_free(extension);
}

CertPtr Blank(EVP_PKEY* key, const std::string& name, int64_t days) {
  CertPtr cert(X509_new(), X509_free);
  X509_set_version(cert.get(), 2);
  std::random_device random;
  ASN1_INTEGER_set(X509_get_serialNumber(cert.get()), static_cast<long>(random() >> 1));
  X509_gmtime_adj(X509_getm_notBefore(cert.get()), -20 * kDayS);
  X509_gmtime_adj(X509_getm_notAfter(cert.get()), days * kDayS);
  X509_set_pubkey(cert.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(cert.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  return cert;
}

Certificate Written(X509* cert, EVP_PKEY* key) {
  const BioPtr a(BIO_new(BIO_s_mem()), BIO_free), b(BIO_new(BIO_s_mem()), BIO_free);
  PEM_write_bio_X509(a.get(), cert);
  PEM_write_bio_PrivateKey(b.get(), key, nullptr, nullptr, 0, nullptr, nullptr);
  return {Contents(a.get()), Contents(b.get())};
}

}  // namespace

Certificate MakeAuthority(const std::string& name, int64_t days) {
  const KeyPtr key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const CertPtr cert = Blank(key.get(), name, days);
  X509_set_issuer_name(cert.get(), X509_get_subject_name(cert.get()));
  Extend(cert.get(), cert.get(), NID_basic_constraints, "critical,CA:TRUE");
  Extend(cert.get(), cert.get(), NID_key_usage, "critical,keyCertSign,cRLSign");
  AISP_CHECK(X509_sign(cert.get(), key.get(), EVP_sha256()) > 0);
  return Written(cert.get(), key.get());
}

Certificate MakeCertificate(const Certificate& authority, const std::string& dns_name,
                            int64_t days) {
  const BioPtr ca_bio(BIO_new_mem_buf(authority.cert_pem.data(), -1), BIO_free);
  const BioPtr key_bio(BIO_new_mem_buf(authority.key_pem.data(), -1), BIO_free);
  const CertPtr ca(PEM_read_bio_X509(ca_bio.get(), nullptr, nullptr, nullptr), X509_free);
  const KeyPtr ca_key(PEM_read_bio_PrivateKey(key_bio.get(), nullptr, nullptr, nullptr),
                      EVP_PKEY_free);
  const KeyPtr key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const CertPtr cert = Blank(key.get(), dns_name, days);
  X509_set_issuer_name(cert.get(), X509_get_subject_name(ca.get()));
  Extend(cert.get(), ca.get(), NID_subject_alt_name, "DNS:" + dns_name + ",IP:127.0.0.1");
  AISP_CHECK(X509_sign(cert.get(), ca_key.get(), EVP_sha256()) > 0);
  return Written(cert.get(), key.get());
}

}  // namespace aisp
