#include "router/fingerprint.h"

#include <fmt/format.h>

namespace aisp {
namespace {

template <typename T>
Status Same(const char* field, const T& expected, const T& actual) {
  if (expected == actual) return {};
  return FailedPrecondition(
      fmt::format("{} differs: the router has \"{}\", the worker has \"{}\"; start both with the "
                  "same model and version",
                  field, expected, actual));
}

}  // namespace

Status CheckFingerprint(const v1::Fingerprint& expected, const v1::Fingerprint& actual) {
  AISP_RETURN_IF_ERROR(
      Same("protocol_version", expected.protocol_version(), actual.protocol_version()));
  AISP_RETURN_IF_ERROR(Same("model_name", expected.model_name(), actual.model_name()));
  AISP_RETURN_IF_ERROR(Same("weights_digest", expected.weights_digest(), actual.weights_digest()));
  AISP_RETURN_IF_ERROR(
      Same("tokenizer_digest", expected.tokenizer_digest(), actual.tokenizer_digest()));
  AISP_RETURN_IF_ERROR(
      Same("template_digest", expected.template_digest(), actual.template_digest()));
  const v1::KvLayoutDesc& a = expected.kv_layout();
  const v1::KvLayoutDesc& b = actual.kv_layout();
  AISP_RETURN_IF_ERROR(Same("kv_layout.num_layers", a.num_layers(), b.num_layers()));
  AISP_RETURN_IF_ERROR(Same("kv_layout.num_kv_heads", a.num_kv_heads(), b.num_kv_heads()));
  AISP_RETURN_IF_ERROR(Same("kv_layout.head_dim", a.head_dim(), b.head_dim()));
  AISP_RETURN_IF_ERROR(Same("kv_layout.block_tokens", a.block_tokens(), b.block_tokens()));
  AISP_RETURN_IF_ERROR(Same("kv_layout.dtype", a.dtype(), b.dtype()));
  return {};
}

}  // namespace aisp
