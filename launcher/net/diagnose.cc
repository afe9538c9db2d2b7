#include "launcher/net/diagnose.h"

#include <netdb.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "launcher/net/address.h"
#include "launcher/net/first_bytes.h"
#include "launcher/net/text.h"

namespace ddprun::net {
namespace {

using Clock = std::chrono::steady_clock;

// A rendezvous must not wait long for what a second try may show.
constexpr std::chrono::milliseconds kConnectPatience{500};
constexpr std::chrono::milliseconds kAnswerPatience{1500};
constexpr size_t kAnswerBytesMax = 1024;

template <typename T, void (*Free)(T*)>
struct Freed {
  void operator()(T* pointer) const { Free(pointer); }
};
using Context = std::unique_ptr<SSL_CTX, Freed<SSL_CTX, SSL_CTX_free>>;
using Session = std::unique_ptr<SSL, Freed<SSL, SSL_free>>;
using Bio = std::unique_ptr<BIO, Freed<BIO, BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Freed<X509, X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY, EVP_PKEY_free>>;

bool Await(int fd, short events, Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  pollfd wait = {fd, events, 0};
  return left > 0 && poll(&wait, 1, static_cast<int>(left)) == 1;
}

// A connected socket, or -1 and the reason. `address`: the last one that was tried.
int ConnectTo(const Endpoint& endpoint, std::string* address, std::string* reason) {
  const Resolution found = Resolve(endpoint.host);
  if (found.addresses.empty()) {
    *reason = found.error;
    return -1;
  }
  for (const std::string& candidate : found.addresses) {
    *address = JoinEndpoint(candidate, endpoint.port);
    addrinfo hints = {};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    addrinfo* results = nullptr;
    if (getaddrinfo(candidate.c_str(), std::to_string(endpoint.port).c_str(), &hints, &results) !=
        0) {
      continue;
    }
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(results, freeaddrinfo);
    const int fd = socket(results->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) continue;
    int error = connect(fd, results->ai_addr, results->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      socklen_t bytes = sizeof error;
      if (!Await(fd, POLLOUT, Clock::now() + kConnectPatience)) {
        error = ETIMEDOUT;
      } else {
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
      }
    }
    if (error == 0) return fd;
    *reason = strerrordesc_np(error);
    close(fd);
  }
  return -1;
}

// What the other side says to the beginning of HTTP/2 in plain text; empty: nothing in time.
std::string AnswerToHttp2(int fd, bool* closed) {
  const std::string hello = absl::StrCat(kHttp2Preface, std::string("\0\0\0\4\0\0\0\0\0", 9));
  if (send(fd, hello.data(), hello.size(), MSG_NOSIGNAL) < 0) return "";
  const Clock::time_point deadline = Clock::now() + kAnswerPatience;
  std::string answer;
  while (answer.size() < kAnswerBytesMax && Await(fd, POLLIN, deadline)) {
    std::array<char, 512> bytes;
    const ssize_t got = recv(fd, bytes.data(), bytes.size(), 0);
    if (got <= 0) {
      *closed = true;
      break;
    }
    answer.append(bytes.data(), static_cast<size_t>(got));
    // A server of ours that is content says its SETTINGS and waits.
    if (answer.size() >= 9 && answer[0] == '\0' && GoodbyeOf(answer).empty() &&
        !Await(fd, POLLIN, Clock::now() + std::chrono::milliseconds(50))) {
      break;
    }
  }
  return answer;
}

Diagnosis OfPlainText(int fd, const std::string& where) {
  bool closed = false;
  const std::string answer = AnswerToHttp2(fd, &closed);
  if (!answer.empty() && (answer[0] == 0x15 || answer[0] == 0x16)) {
    return {true, absl::StrCat(where, " speaks TLS, and this node plain text: give it --tls-ca")};
  }
  if (answer.size() >= 9 && answer[0] == '\0') {
    const std::string goodbye = GoodbyeOf(answer);
    if (absl::StrContains(goodbye, "TLS")) {
      return {true, absl::StrCat(where, " speaks TLS, and this node plain text: give it --tls-ca")};
    }
    return {};
  }
  if (!answer.empty()) {
    return {true, absl::StrCat("what listens at ", where, " is no ddprun coordinator (it says \"",
                               Shown(answer.substr(0, answer.find_first_of("\r\n")), 60), "\")")};
  }
  if (closed) {
    return {false, absl::StrCat(where,
                                " ends the connection without a word: is it a ddprun "
                                "coordinator, and does it speak TLS (--tls-ca)?")};
  }
  // Ours says its SETTINGS at once.
  return {false, absl::StrCat(where, " says nothing: is it a ddprun coordinator?")};
}

Context MakeContext(const Security& security) {
  Context context(SSL_CTX_new(TLS_client_method()));
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  const Bio authority(BIO_new_mem_buf(security.tls_authority.data(),
                                      static_cast<int>(security.tls_authority.size())));
  while (true) {
    const Certificate certificate(PEM_read_bio_X509(authority.get(), nullptr, nullptr, nullptr));
    if (certificate == nullptr) break;
    X509_STORE_add_cert(SSL_CTX_get_cert_store(context.get()), certificate.get());
  }
  if (security.TlsServer()) {
    const Bio chain(BIO_new_mem_buf(security.tls_certificate.data(),
                                    static_cast<int>(security.tls_certificate.size())));
    const Certificate own(PEM_read_bio_X509(chain.get(), nullptr, nullptr, nullptr));
    const Bio key_text(
        BIO_new_mem_buf(security.tls_key.data(), static_cast<int>(security.tls_key.size())));
    const Key key(PEM_read_bio_PrivateKey(key_text.get(), nullptr, nullptr, nullptr));
    SSL_CTX_use_certificate(context.get(), own.get());
    SSL_CTX_use_PrivateKey(context.get(), key.get());
  }
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  constexpr std::array<unsigned char, 3> kAlpn = {2, 'h', '2'};
  SSL_CTX_set_alpn_protos(context.get(), kAlpn.data(), kAlpn.size());
  ERR_clear_error();
  return context;
}

// Drives one TLS operation until it is done, failed or late. True: done.
template <typename Operation>
bool Drive(SSL* session, int fd, const Operation& operation, std::string* problem) {
  const Clock::time_point deadline = Clock::now() + kAnswerPatience;
  while (true) {
    const int result = operation();
    if (result > 0) return true;
    const int error = SSL_get_error(session, result);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
      if (Await(fd, error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, deadline)) continue;
      return false;
    }
    const char* text = ERR_reason_error_string(ERR_peek_error());
    *problem = text != nullptr ? text : "the connection ended";
    ERR_clear_error();
    return false;
  }
}

Diagnosis OfTls(int fd, const std::string& where, const std::string& name,
                const Security& security) {
  const Context context = MakeContext(security);
  const Session session(SSL_new(context.get()));
  SSL_set_fd(session.get(), fd);
  if (IsNumeric(name)) {
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(session.get()), name.c_str());
  } else {
    SSL_set1_host(session.get(), name.c_str());
    SSL_set_tlsext_host_name(session.get(), name.c_str());
  }
  std::string problem;
  if (Drive(
          session.get(), fd, [&] { return SSL_connect(session.get()); }, &problem)) {
    // With TLS 1.3 a server says only now that it does not like the client's certificate, by an
    // alert or by ending the connection; one that is content says its SETTINGS.
    std::array<char, 64> bytes;
    Drive(
        session.get(), fd,
        [&] { return SSL_read(session.get(), bytes.data(), static_cast<int>(bytes.size())); },
        &problem);
    if (problem.empty()) return {};
    return {true, absl::StrCat(where, " does not accept this node's certificate (", problem, "): ",
                               security.TlsServer()
                                   ? "are --tls-cert and --tls-key of its authority, and valid?"
                                   : "it asks for one: give --tls-cert and --tls-key")};
  }
  const long verdict = SSL_get_verify_result(session.get());
  if (verdict == X509_V_ERR_HOSTNAME_MISMATCH || verdict == X509_V_ERR_IP_ADDRESS_MISMATCH) {
    return {true, absl::StrCat("the certificate of ", where, " is not for ", name,
                               ": use the name it is for, or one made for this name")};
  }
  if (verdict != X509_V_OK) {
    return {true, absl::StrCat("the certificate of ", where,
                               " is not trusted: ", X509_verify_cert_error_string(verdict),
                               ": is --tls-ca its authority's, and the clock right?")};
  }
  if (problem == "wrong version number" || absl::StrContains(problem, "http request")) {
    return {true, absl::StrCat(where,
                               " speaks plain text, and this node TLS: leave --tls-ca out, "
                               "or give the coordinator --tls-cert and --tls-key")};
  }
  if (absl::StrContains(problem, "alert")) {
    return {true, absl::StrCat(where, " refuses TLS: ", problem)};
  }
  if (problem.empty()) return {false, absl::StrCat(where, " does not answer")};
  return {false, absl::StrCat("TLS with ", where, " failed: ", problem)};
}

}  // namespace

Diagnosis Diagnose(const std::string& endpoint, const Security& security, const std::string& name) {
  const Endpoint parts = SplitEndpoint(endpoint);
  std::string address;
  std::string reason;
  const int fd = ConnectTo(parts, &address, &reason);
  if (fd < 0) {
    return {
        false,
        absl::StrCat("no coordinator answers at ", endpoint,
                     address.empty() || address == endpoint ? "" : absl::StrCat(" (", address, ")"),
                     ": ", reason)};
  }
  absl::Cleanup close_fd = [fd] { close(fd); };
  const std::string where = absl::StrCat("the coordinator ", endpoint);
  return security.TlsClient() ? OfTls(fd, where, name.empty() ? parts.host : name, security)
                              : OfPlainText(fd, where);
}

}  // namespace ddprun::net
