// Credentials with real processes: the cluster's token, expired keys, exhausted quotas, TLS.
#include <gmock/gmock.h>

#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_files.h"

namespace aisp::e2e {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Security, AWorkerWithoutTheClustersTokenIsRefused) {
  const TempFile token("token", "a-token-of-this-cluster\n");
  const TempFile wrong("wrong_token", "a-token-of-another-cluster\n");
  Cluster cluster({.prefill = 1, .flags = {"--cluster-token-file=" + token.path()}});
  ASSERT_TRUE(cluster.AwaitReady());
  EXPECT_EQ(Complete(cluster.http(), Prose(80, 1), 4, "remote").status, 200);
  const std::string workers = cluster.router->Await("workers");
  const TempFile log("token.log");
  Process odd({"serve", "--role=decode", "--worker-id=odd", "--routers=" + workers,
               "--cluster-token-file=" + wrong.path()},
              log.path());
  const std::string admin = odd.Await("admin");
  ASSERT_NE(admin, "");
  ASSERT_TRUE(Eventually([&] {
    const auto ready = Connect(admin).Request("GET", "/ready");
    return ready->status == 503 && ready->body.find("router") != std::string::npos;
  }));
  EXPECT_THAT(Connect(cluster.router->Await("admin")).Request("GET", "/admin/workers")->body,
              Not(HasSubstr("\"odd\"")));
  EXPECT_THAT(log.Read(), Not(HasSubstr("a-token-of")));
}

TEST(Security, WithCertificatesAWholeClusterTalksTlsAndServesHttps) {
  const Certificate authority = MakeAuthority("e2e");
  const Certificate own = MakeCertificate(authority, "aisp");
  const Certificate server = MakeCertificate(authority, "localhost");
  const TempFolder folder;
  folder.Write("ca.pem", authority.cert_pem);
  folder.Write("own.pem", own.cert_pem);
  folder.Write("own.key", own.key_pem);
  folder.Write("server.pem", server.cert_pem);
  folder.Write("server.key", server.key_pem);
  const auto in = [&](const char* name) { return folder.path() + "/" + name; };
  Cluster cluster(
      {.prefill = 1,
       .flags = {"--cluster-tls-cert=" + in("own.pem"), "--cluster-tls-key=" + in("own.key"),
                 "--cluster-tls-ca=" + in("ca.pem")},
       .router_flags = {"--tls-cert=" + in("server.pem"), "--tls-key=" + in("server.key")}});
  ASSERT_TRUE(cluster.AwaitReady());
  const std::string port = cluster.http().substr(cluster.http().rfind(':') + 1);
  const TempFile answer("https.out");
  const std::string curl = "curl -sS --cacert " + in("ca.pem") + " https://localhost:" + port;
  const std::string body = R"({"prompt": "Once upon a time", "max_tokens": 8, "stream": true})";
  ASSERT_TRUE(Eventually([&] {
    return std::system((curl + "/ready > " + answer.path() + " 2>&1").c_str()) == 0 &&
           answer.Read().find("\"ready\"") != std::string::npos;
  })) << answer.Read();
  EXPECT_EQ(std::system((curl + "/v1/completions -H 'x-aisp-prefill: remote' -d '" + body + "' > " +
                         answer.path() + " 2>&1")
                            .c_str()),
            0);
  EXPECT_THAT(answer.Read(), HasSubstr("data: [DONE]"));
}

TEST(Security, ASpentQuotaIs429WithTheTimeToWaitAndAnExpiredKey401) {
  const TempFile keys("quota_keys",
                      "fox:sk-fox tokens=5/h\nowl:sk-owl requests=1/h\nold:sk-old "
                      "expires=2020-01-31\n");
  const TempFile log("quota.log");
  Process server({"serve", "--role=all", "--port=0", "--no-grpc", "--api-keys-file=" + keys.path()},
                 log.path());
  const std::string http = server.Await("http");
  ASSERT_NE(http, "");
  ASSERT_TRUE(Eventually([&] { return Connect(http).Request("GET", "/ready")->status == 200; }));
  const auto ask = [&](const std::string& key) {
    return *Connect(http).Request("POST", "/v1/completions",
                                  R"({"prompt": "Once upon a time", "max_tokens": 8})",
                                  {{"authorization", "Bearer " + key}});
  };
  for (const char* key : {"sk-fox", "sk-owl"}) {
    EXPECT_EQ(ask(key).status, 200) << key;
    const HttpAnswer refused = ask(key);
    EXPECT_EQ(refused.status, 429) << key;
    EXPECT_THAT(refused.body, HasSubstr("rate_limit"));
    const int wait_s = std::stoi(std::string(refused.Header("retry-after")));
    EXPECT_GT(wait_s, 3400);
    EXPECT_LE(wait_s, 3600);
  }
  const HttpAnswer expired = ask("sk-old");
  EXPECT_EQ(expired.status, 401);
  EXPECT_THAT(expired.body, HasSubstr("expired (2020-01-31)"));
  EXPECT_THAT(log.Read(), Not(HasSubstr("sk-")));
}

}  // namespace
}  // namespace aisp::e2e
