#include "launcher/net/credentials.h"

#include <grpc/support/log.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "launcher/net/input_file.h"
#include "launcher/net/limits.h"
#include "launcher/net/text.h"

namespace ddprun::net {
namespace {

constexpr size_t kPemBytesMax = 1024 * 1024;

// A coordinator that starts later is found soon after.
constexpr int kReconnectMillisecondsMin = 200;
constexpr int kReconnectMillisecondsMax = 1000;

template <typename T, void (*Free)(T*)>
struct Freed {
  void operator()(T* pointer) const { Free(pointer); }
};
using Certificate = std::unique_ptr<X509, Freed<X509, X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY, EVP_PKEY_free>>;
using Bio = std::unique_ptr<BIO, Freed<BIO, BIO_free_all>>;

Bio BioOf(const std::string& pem) {
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

// Without it OpenSSL asks the terminal for the passphrase of an encrypted key.
int NoPassphrase(char* /*buffer*/, int /*size*/, int /*writing*/, void* /*data*/) {
  return 0;
}

absl::StatusOr<Certificate> FirstCertificate(const std::string& pem, absl::string_view option,
                                             const std::string& path) {
  Certificate certificate(PEM_read_bio_X509(BioOf(pem).get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  if (certificate != nullptr) return certificate;
  return absl::InvalidArgumentError(absl::StrCat(option, " ", path,
                                                 ": holds no certificate in PEM form (-----BEGIN "
                                                 "CERTIFICATE-----)"));
}

absl::StatusOr<std::string> ReadPem(const std::string& path, absl::string_view option) {
  return ReadInputFile(path, absl::StrCat(option, " ", path), "certificate", kPemBytesMax);
}

absl::Status ReadPair(const std::string& certificate_path, const std::string& key_path,
                      Security* security) {
  absl::StatusOr<std::string> pem = ReadPem(certificate_path, "--tls-cert");
  if (!pem.ok()) return pem.status();
  absl::StatusOr<Certificate> certificate = FirstCertificate(*pem, "--tls-cert", certificate_path);
  if (!certificate.ok()) return certificate.status();
  absl::StatusOr<std::string> key_pem = ReadPrivateFile(key_path, "--tls-key", "key", kPemBytesMax);
  if (!key_pem.ok()) return key_pem.status();
  const Key key(PEM_read_bio_PrivateKey(BioOf(*key_pem).get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  if (key == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--tls-key ", key_path, ": holds no private key in PEM form without a passphrase"));
  }
  const bool fits = X509_check_private_key(certificate->get(), key.get()) == 1;
  ERR_clear_error();
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat("--tls-key ", key_path,
                                                   " is not the key of the certificate --tls-cert ",
                                                   certificate_path));
  }
  if (X509_cmp_current_time(X509_get0_notAfter(certificate->get())) < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tls-cert ", certificate_path, " has expired: make a new one"));
  }
  security->tls_certificate = *std::move(pem);
  security->tls_key = *std::move(key_pem);
  return absl::OkStatus();
}

struct TlsLog {
  std::mutex mutex;
  std::string problem;
  int64_t at_ns = 0;
};
TlsLog& Log() {
  static auto* log = new TlsLog;  // gRPC's threads may log until the very end
  return *log;
}

// What the coordinator's TLS library says of a node, in words that tell what to do there.
std::string Explained(absl::string_view problem) {
  constexpr std::pair<absl::string_view, absl::string_view> kMeanings[] = {
      {"did not return a certificate",
       "it gave no certificate, and this coordinator asks for one: give --tls-cert and --tls-key "
       "there"},
      {"certificate verify failed",
       "its certificate is not of the authority --tls-ca here, or not in its time"},
      {"alert unknown ca",
       "it does not trust the authority of this coordinator's certificate: is --tls-ca there "
       "right?"},
      {"alert certificate expired", "it says that this coordinator's certificate has expired"},
      {"alert bad certificate",
       "it does not accept this coordinator's certificate: is it for the name in --coordinator?"},
  };
  std::string shown = Shown(problem);
  for (const auto& [words, meaning] : kMeanings) {
    if (absl::StrContains(problem, words)) return absl::StrCat(meaning, " (", shown, ")");
  }
  return shown;
}

void KeepTlsProblem(gpr_log_func_args* args) {
  // "Handshake failed with fatal error SSL_ERROR_SSL: error:0A000086:SSL routines::certificate …"
  if (args->message == nullptr || !absl::StrContains(args->message, "Handshake failed")) return;
  absl::string_view text = args->message;
  const size_t last = text.rfind(':');
  if (last != absl::string_view::npos) text.remove_prefix(last + 1);
  std::lock_guard lock(Log().mutex);
  Log().problem = Explained(text.substr(0, text.find_last_not_of(" .\n") + 1));
  Log().at_ns = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

}  // namespace

absl::Status ReadTls(const std::string& certificate_path, const std::string& key_path,
                     const std::string& authority_path, Security* security) {
  if (certificate_path.empty() != key_path.empty()) {
    return absl::InvalidArgumentError(
        certificate_path.empty()
            ? absl::StrCat("--tls-key ", key_path, " needs --tls-cert, the certificate of that key")
            : absl::StrCat("--tls-cert ", certificate_path,
                           " needs --tls-key, the key of that certificate"));
  }
  if (!certificate_path.empty()) {
    absl::Status status = ReadPair(certificate_path, key_path, security);
    if (!status.ok()) return status;
  }
  if (authority_path.empty()) return absl::OkStatus();
  absl::StatusOr<std::string> pem = ReadPem(authority_path, "--tls-ca");
  if (!pem.ok()) return pem.status();
  absl::StatusOr<Certificate> certificate = FirstCertificate(*pem, "--tls-ca", authority_path);
  if (!certificate.ok()) return certificate.status();
  security->tls_authority = *std::move(pem);
  return absl::OkStatus();
}

std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const Security& security) {
  QuietGrpcLog();
  if (!security.TlsServer()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(
      security.tls_authority.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                     : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = security.tls_authority;
  options.pem_key_cert_pairs.push_back({security.tls_key, security.tls_certificate});
  return grpc::SslServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(const Security& security) {
  if (!security.TlsClient()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = security.tls_authority;
  options.pem_private_key = security.tls_key;
  options.pem_cert_chain = security.tls_certificate;
  return grpc::SslCredentials(options);
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target, const Security& security,
                                           const std::string& name) {
  QuietGrpcLog();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMillisecondsMin);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kReconnectMillisecondsMin);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMillisecondsMax);
  // A name may get another address while it is tried (a pod that is made again).
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, kReconnectMillisecondsMax);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // as the coordinator's (server.cc)
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMilliseconds);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMilliseconds);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // as many as it takes
  arguments.SetMaxReceiveMessageSize(kReceiveBytesMax);
  if (security.TlsClient() && !name.empty()) arguments.SetSslTargetNameOverride(name);
  return grpc::CreateCustomChannel(target, ChannelCredentialsOf(security), arguments);
}

void QuietGrpcLog() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (std::getenv("GRPC_VERBOSITY") != nullptr || std::getenv("GRPC_TRACE") != nullptr) return;
    gpr_set_log_function(KeepTlsProblem);
    gpr_set_log_verbosity(GPR_LOG_SEVERITY_INFO);  // failed handshakes are no errors to gRPC
  });
}

std::string LastTlsProblem(int64_t since_ns) {
  std::lock_guard lock(Log().mutex);
  return Log().at_ns >= since_ns ? Log().problem : "";
}

}  // namespace ddprun::net
