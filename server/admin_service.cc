#include "server/admin_service.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "api/error.h"
#include "common/log.h"
#include "common/threads.h"
#include "frontend/frontend.h"
#include "net/host_port.h"

namespace aisp {
namespace {

HttpServerOptions OptionsOf(const Config& config) {
  HttpServerOptions o;
  o.address = config.worker.admin_address;
  o.port = static_cast<uint16_t>(config.worker.admin_port);
  // Only probes and scrapers connect here.
  o.max_connections = 64;
  o.max_body_bytes = 4096;
  o.error_body = [](const HttpServerOptions::Refused&, int status, std::string_view message) {
    return ErrorBody(status, message);
  };
  return o;
}

class AdminServiceImpl final : public AdminService {
 public:
  AdminServiceImpl(const Config& config, const Metrics* metrics, std::function<Status()> ready)
      : address_(config.worker.admin_address),
        metrics_(metrics),
        http_(&loop_, OptionsOf(config),
              [this, ready = std::move(ready)](const std::shared_ptr<HttpExchange>& exchange) {
                if (!AnswerAdmin(*exchange, ready, &metrics_, clock_)) AnswerUnknown(*exchange, {});
              }) {}
  ~AdminServiceImpl() override { Stop(); }

  Status Bind() {
    AISP_RETURN_IF_ERROR(http_.Start());
    thread_ = Thread("admin", [this] { loop_.Run(); });
    return {};
  }
  std::string address() const override { return HostPort(address_, http_.port()); }
  void Stop() override {
    if (!thread_.joinable()) return;
    loop_.Stop();
    thread_.Join();
  }

 private:
  const std::string address_;
  const SteadyClock clock_;
  MetricsPage metrics_;
  IoLoop loop_;
  HttpServer http_;
  Thread thread_;
};

}  // namespace

std::string AdvertisedAdminUrl(const Config& config, const std::string& address) {
  const SplitAddress split = SplitHostPort(address);
  std::string host(split.host);
  if (host == "0.0.0.0" || host == "::" || host == "[::]") {
    host = SplitHostPort(config.worker.kv_advertise).host;
    std::array<char, 256> name{};
    if (host.empty() && gethostname(name.data(), name.size() - 1) == 0) host = name.data();
  }
  return fmt::format("http://{}:{}", host, split.port.value_or(""));
}

Result<std::unique_ptr<AdminService>> AdminService::Start(const Config& config,
                                                          const Metrics* metrics,
                                                          std::function<Status()> ready) {
  auto service = std::make_unique<AdminServiceImpl>(config, metrics, std::move(ready));
  AISP_RETURN_IF_ERROR(service->Bind());
  LogInfo("admin endpoint", {{"url", "http://" + service->address()}});
  return service;
}

}  // namespace aisp
