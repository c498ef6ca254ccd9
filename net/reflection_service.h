// gRPC's server reflection of an InferenceServer, under both of its names
// (grpc.reflection.v1.ServerReflection and v1alpha). It tells of the services that the port has,
// and of nothing else that the process knows. Needs no key, so it holds no thread while a client is
// silent, and a stream that asks nothing for a while ends. Inside net/ only (it brings gRPC). Any
// thread.
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

// The files that describe some services, and what these import.
class ServedFiles {
 public:
  // `services`: full names of such that are linked into this program.
  explicit ServedFiles(const std::vector<std::string>& services);
  grpc::reflection::v1::ServerReflectionResponse Answer(
      const grpc::reflection::v1::ServerReflectionRequest& request) const;

 private:
  using File = google::protobuf::FileDescriptor;
  void Add(const File* file);
  bool Has(const File* file) const;
  void Describe(const File* file, grpc::reflection::v1::ServerReflectionResponse* out) const;

  const std::vector<std::string> services_;
  std::map<std::string, std::string> files_;  // by name, serialized
};

class ReflectionService final : public grpc::Service {
 public:
  struct Limits {
    size_t streams = 0;    // of all clients; the oldest of who has most ends
    size_t all_calls = 0;  // that LiveRpcs may have of those that nobody waits for
    Duration idle{};       // without a request, or with an answer that is not taken
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
