// Links between the processes of a cluster: only peers with a valid certificate or token are
// admitted.
#include "net/link_security.h"

#include <gmock/gmock.h>

#include <optional>

#include "net/grpc_links.h"
#include "tests/net/link_recorder.h"
#include "tests/net/loop_thread.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_files.h"

namespace aisp {
namespace {

using ::testing::HasSubstr;
using Security = std::shared_ptr<const LinkSecurity>;

class SecureLinks : public ::testing::Test {
 protected:
  void TearDown() override {
    worker_loop_.On([&] { dialer_.reset(); });
    router_loop_.On([&] { server_.reset(); });
    worker_loop_.Stop();
    router_loop_.Stop();
  }
  static Poster PosterOf(LoopThread* loop) {
    return [loop](std::function<void()> fn) { loop->loop().Post(std::move(fn)); };
  }
  void Serve(Security security) {
    router_loop_.On([&] {
      server_.emplace();
      server_->ServeRouterControl(&router_, PosterOf(&router_loop_), {.security = security});
      const Status started = server_->Start("127.0.0.1:0");
      ASSERT_TRUE(started) << started.error().ToString();
    });
  }
  // Whether a worker with this security can send a message to the router.
  bool GetsIn(Security security) {
    const size_t before = router_.log().messages.size();
    const size_t downs = worker_.log().downs.size();
    worker_loop_.On([&] {
      dialer_ = MakeRouterDialer(&worker_, PosterOf(&worker_loop_), {.security = security});
      const LinkId link = dialer_->Dial("127.0.0.1:" + std::to_string(server_->port()));
      dialer_->Send(link, WorkerText("hello"));
    });
    while (true) {
      if (router_.log().messages.size() > before) return true;
      if (worker_.Await([&](const auto& log) { return log.downs.size() > downs; },
                        std::chrono::seconds(1))) {
        return router_.log().messages.size() > before;
      }
    }
  }
  Security WithToken(const std::string& token) {
    const TempFile file("token", token + "\n");
    ClusterOptions options;
    options.token_file = file.path();
    auto security = LinkSecurity::Load(options);
    EXPECT_TRUE(security) << security.error().message;
    return *security;
  }
  Security WithCertificate(const Certificate& own, const Certificate& authority) {
    folder_.Write("cert.pem", own.cert_pem);
    folder_.Write("key.pem", own.key_pem);
    folder_.Write("ca.pem", authority.cert_pem);
    ClusterOptions options;
    options.cert_file = folder_.path() + "/cert.pem";
    options.key_file = folder_.path() + "/key.pem";
    options.ca_file = folder_.path() + "/ca.pem";
    auto security = LinkSecurity::Load(options);
    EXPECT_TRUE(security) << security.error().message;
    return *security;
  }

  LoopThread worker_loop_, router_loop_;
  WorkerRecorder worker_{&worker_loop_.loop()};
  RouterRecorder router_{&router_loop_.loop()};
  std::optional<GrpcServer> server_;
  std::unique_ptr<LinkDialer<v1::WorkerMessage>> dialer_;
  const TempFolder folder_;
};

TEST_F(SecureLinks, WithATokenOnlyWhoSendsItIsHeard) {
  Serve(WithToken("a-token-of-the-cluster"));
  EXPECT_TRUE(GetsIn(WithToken("a-token-of-the-cluster")));
  EXPECT_FALSE(GetsIn(WithToken("a-token-of-another-one")));
  EXPECT_FALSE(GetsIn(nullptr));
  EXPECT_TRUE(router_.log().violations == 0);
}

TEST_F(SecureLinks, WithCertificatesBothSidesCheckTheOther) {
  const Certificate authority = MakeAuthority("cluster");
  const Certificate other = MakeAuthority("another cluster");
  Serve(WithCertificate(MakeCertificate(authority, "aisp"), authority));
  EXPECT_TRUE(GetsIn(WithCertificate(MakeCertificate(authority, "aisp"), authority)));
  EXPECT_FALSE(GetsIn(WithCertificate(MakeCertificate(other, "aisp"), authority)));
  EXPECT_FALSE(GetsIn(WithCertificate(MakeCertificate(authority, "aisp", -1), authority)));
  EXPECT_FALSE(GetsIn(WithCertificate(MakeCertificate(authority, "aisp"), other)));
  EXPECT_FALSE(GetsIn(nullptr));
}

TEST_F(SecureLinks, ARouterWhoseCertificateHasAnotherNameIsNotTrusted) {
  const Certificate authority = MakeAuthority("cluster");
  Serve(WithCertificate(MakeCertificate(authority, "somebody-else"), authority));
  EXPECT_FALSE(GetsIn(WithCertificate(MakeCertificate(authority, "aisp"), authority)));
}

TEST(LinkSecurity, WhatDoesNotFitIsRefusedByNameAndNeverQuoted) {
  const auto error = [](const ClusterOptions& options) {
    const auto security = LinkSecurity::Load(options);
    return security ? "" : security.error().message;
  };
  EXPECT_EQ(*LinkSecurity::Load({}), nullptr);
  const auto with = [&](std::string ClusterOptions::*field, const std::string& value) {
    ClusterOptions options;
    options.*field = value;
    return error(options);
  };
  const TempFile token("short", "secret\n");
  EXPECT_THAT(with(&ClusterOptions::token_file, token.path()), HasSubstr("give it 16 at least"));
  EXPECT_THAT(with(&ClusterOptions::token_file, token.path()), ::testing::Not(HasSubstr("secret")));
  EXPECT_THAT(with(&ClusterOptions::token_file, "/nowhere"), HasSubstr("cluster.token_file"));
  EXPECT_THAT(with(&ClusterOptions::cert_file, token.path()), HasSubstr("is no PEM file"));
  EXPECT_THAT(with(&ClusterOptions::ca_file, token.path()),
              HasSubstr("cluster.tls_cert_file is empty"));
}

}  // namespace
}  // namespace aisp
