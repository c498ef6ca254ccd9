// What libaisp_ucx.so exports.
#include "kvcache/ucx/transport.h"

#define AISP_EXPORT extern "C" __attribute__((visibility("default")))

AISP_EXPORT int32_t aisp_ucx_abi() { return aisp::kUcxAbi; }

AISP_EXPORT void aisp_ucx_open(const aisp::UcxOptions* options,
                               aisp::Result<std::unique_ptr<aisp::KvTransport>>* transport) {
  *transport = aisp::ucx::UcxTransport::Open(*options);
}
