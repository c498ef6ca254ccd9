#include "proto/fingerprint.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

namespace aisp {
namespace {

struct Sides {
  std::string_view own;
  std::string_view peer;

  template <typename T>
  Status Same(const char* field, const T& a, const T& b, std::string_view way_out) const {
    if (a == b) return {};
    return FailedPrecondition(fmt::format("{} differs: {} has \"{}\", {} has \"{}\"; {}", field,
                                          own, a, peer, b, way_out));
  }
  // As Same, but the default value matches anything.
  template <typename T>
  Status SameIfSet(const char* field, const T& a, const T& b, std::string_view way_out) const {
    return a == T{} || b == T{} ? Status() : Same(field, a, b, way_out);
  }
};

constexpr std::string_view kSameModel = "start both with the same model and version";
constexpr std::string_view kSameKv = "start both with the same model, version and KV settings";
constexpr std::string_view kConvertibleDtypes[] = {"f32", "bf16", "fp8_e4m3"};
constexpr uint32_t kUnitTokens = 16;
constexpr uint32_t kMostBlockTokens = 1024;

// The format written by server/arithmetic.h.
bool OnDevice(const v1::Fingerprint& f) {
  return !f.arithmetic().empty() && !f.arithmetic().starts_with("cpu ");
}

// With other block sizes the same rows are in other places.
Status CheckBlocks(const Sides& s, const v1::KvLayoutDesc& a, const v1::KvLayoutDesc& b) {
  const auto sized = [](uint32_t tokens) {
    return tokens == 0 || (tokens % kUnitTokens == 0 && tokens <= kMostBlockTokens);
  };
  if (sized(a.block_tokens()) && sized(b.block_tokens())) return {};
  return s.SameIfSet("kv_layout.block_tokens", a.block_tokens(), b.block_tokens(),
                     "only blocks of a multiple of 16 tokens are converted");
}

Status CheckDtypes(const Sides& s, const v1::Fingerprint& own, const v1::Fingerprint& peer) {
  const std::string& a = own.kv_layout().dtype();
  const std::string& b = peer.kv_layout().dtype();
  const auto known = [](const std::string& dtype) {
    return dtype.empty() ||
           std::ranges::find(kConvertibleDtypes, dtype) != std::ranges::end(kConvertibleDtypes);
  };
  if (!own.mixed_precision()) {
    return s.SameIfSet("kv_layout.dtype", a, b,
                       "start both with the same --kv-dtype, or all with --allow-mixed-precision");
  }
  if (!known(a) || !known(b))
    return s.SameIfSet("kv_layout.dtype", a, b, "KV is converted between f32, bf16 and fp8");
  if (OnDevice(own) || OnDevice(peer))
    return s.SameIfSet(
        "kv_layout.dtype", a, b,
        "KV in a GPU's memory is not converted; start both with the same --kv-dtype");
  return {};
}

constexpr std::string_view kSamePrecision =
    "start both with the same --dtype, --quantization and kind of device, or all with "
    "--allow-mixed-precision";

}  // namespace

Status CheckFingerprints(const v1::Fingerprint& own, std::string_view own_name,
                         const v1::Fingerprint& peer, std::string_view peer_name) {
  const Sides s{own_name, peer_name};
  AISP_RETURN_IF_ERROR(s.Same("protocol_version", own.protocol_version(), peer.protocol_version(),
                              "run the same version of both"));
  AISP_RETURN_IF_ERROR(s.Same("model_name", own.model_name(), peer.model_name(), kSameModel));
  AISP_RETURN_IF_ERROR(
      s.Same("weights_digest", own.weights_digest(), peer.weights_digest(), kSameModel));
  AISP_RETURN_IF_ERROR(
      s.Same("tokenizer_digest", own.tokenizer_digest(), peer.tokenizer_digest(), kSameModel));
  AISP_RETURN_IF_ERROR(
      s.Same("template_digest", own.template_digest(), peer.template_digest(), kSameModel));
  AISP_RETURN_IF_ERROR(s.Same("adapters", own.adapters(), peer.adapters(),
                              "give all processes the same --lora, with the same files"));
  AISP_RETURN_IF_ERROR(s.Same("mixed_precision", own.mixed_precision(), peer.mixed_precision(),
                              "give --allow-mixed-precision to all processes or to none"));
  if (!own.mixed_precision()) {
    AISP_RETURN_IF_ERROR(
        s.SameIfSet("arithmetic", own.arithmetic(), peer.arithmetic(), kSamePrecision));
  }
  const v1::KvLayoutDesc& a = own.kv_layout();
  const v1::KvLayoutDesc& b = peer.kv_layout();
  AISP_RETURN_IF_ERROR(s.Same("kv_layout.num_layers", a.num_layers(), b.num_layers(), kSameKv));
  AISP_RETURN_IF_ERROR(
      s.Same("kv_layout.num_kv_heads", a.num_kv_heads(), b.num_kv_heads(), kSameKv));
  AISP_RETURN_IF_ERROR(s.Same("kv_layout.head_dim", a.head_dim(), b.head_dim(), kSameKv));
  AISP_RETURN_IF_ERROR(CheckBlocks(s, a, b));
  return CheckDtypes(s, own, peer);
}

std::string PrefixDigest(const v1::Fingerprint& fingerprint) {
  const std::string& weights = fingerprint.weights_digest();
  if (fingerprint.mixed_precision()) return weights + ";mixed precision";
  // Without an open device only the dtype is known.
  return weights + ";" +
         (fingerprint.arithmetic().empty() ? "kv " + fingerprint.kv_layout().dtype()
                                           : fingerprint.arithmetic());
}

}  // namespace aisp
