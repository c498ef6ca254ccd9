// gRPC server reflection of an InferenceServer, under both names
// (grpc.reflection.v1.ServerReflection and v1alpha). It describes only the services of this port.
// It needs no key, so an idle client holds no thread, and a stream without requests is ended. For
// net/ only (it includes gRPC). Any thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "net/open_places.h"
#include "net/rpc_reactor.h"
#include "reflection.grpc.pb.h"

namespace google::protobuf {
class FileDescriptor;
}

namespace aisp {

// The files that describe given services, with their imports.
class ServedFiles {
 public:
  // `services`: full names of services linked into this program.
  explicit ServedFiles(const std::vector<std::string>& services);
  grpc::reflection::v1::ServerReflectionResponse Answer(
      const grpc::reflection::v1::ServerReflectionRequest& request) const;

 private:
  using File = google::protobuf::FileDescriptor;
  void Add(const File* file);
  bool Has(const File* file) const;
  void Describe(const File* file, grpc::reflection::v1::ServerReflectionResponse* out) const;

  const std::vector<std::string> services_;
  std::map<std::string, std::string> files_;  // serialized, by name
};

class ReflectionService final : public grpc::Service {
 public:
  struct Limits {
    size_t streams = 0;    // of all clients; beyond, the oldest of the client with the most ends
    size_t all_calls = 0;  // LiveRpcs's limit for calls without a key
    Duration idle{};       // limit without a request, or with an unread answer
  };
  ReflectionService(std::shared_ptr<LiveRpcs> live, const Limits& limits,
                    const std::vector<std::string>& services);

 private:
  class Stream;
  Stream* Open(grpc::CallbackServerContext* context);

  const std::shared_ptr<LiveRpcs> live_;
  const Limits limits_;
  const std::shared_ptr<const ServedFiles> files_;
  const std::shared_ptr<OpenPlaces> places_;
};

}  // namespace aisp
