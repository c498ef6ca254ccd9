#include "net/grpc_reflection.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>

namespace aisp {
namespace {

class Plugins final : public grpc::ServerBuilderOption {
 public:
  explicit Plugins(Reflection wanted) : wanted_(wanted) {}
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    plugins->clear();
    if (wanted_ == Reflection::kOn) {
      plugins->push_back(std::make_unique<grpc::reflection::ProtoServerReflectionPlugin>());
    }
  }

 private:
  const Reflection wanted_;
};

}  // namespace

std::unique_ptr<grpc::ServerBuilderOption> ReflectionOption(Reflection wanted) {
  return std::make_unique<Plugins>(wanted);
}

}  // namespace aisp
