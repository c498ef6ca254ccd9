#include "kvcache/ucx/library.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace aisp::ucx {

Error UcxError(const std::string& what, ucs_status_t status) {
  return {Code::kUnavailable, fmt::format("{}: UCX: {}", what, ucs_status_string(status))};
}

Result<std::unique_ptr<Worker>> Worker::Open() {
  std::unique_ptr<Worker> self(new Worker);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "aisp-kv";
  ucs_status_t status = ucp_init(&params, nullptr, &self->context_);
  if (status != UCS_OK) return tl::unexpected(UcxError("opening its context", status));
  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  status = ucp_worker_create(self->context_, &worker, &self->worker_);
  if (status != UCS_OK) return tl::unexpected(UcxError("making a worker", status));
  status = ucp_worker_get_efd(self->worker_, &self->fd_);
  if (status != UCS_OK) return tl::unexpected(UcxError("waiting for events", status));
  return self;
}

Worker::~Worker() {
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

bool Worker::Arm() { return ucp_worker_arm(worker_) == UCS_OK; }

bool Worker::Progress() {
  bool any = false;
  while (ucp_worker_progress(worker_) != 0) any = true;
  std::erase_if(closing_, [](void* request) {
    if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
    ucp_request_free(request);
    return true;
  });
  return any;
}

void Worker::Close(ucp_ep_h endpoint) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  ucs_status_ptr_t request = ucp_ep_close_nbx(endpoint, &param);
  if (UCS_PTR_IS_PTR(request)) closing_.push_back(request);
}

Status SendSmall(ucp_ep_h endpoint, unsigned id, const void* header, size_t bytes,
                 std::span<const std::byte> payload) {
  // UCX may read both until the send has completed.
  auto held = std::make_unique<std::vector<std::byte>>(bytes + payload.size());
  std::memcpy(held->data(), header, bytes);
  std::ranges::copy(payload, held->begin() + static_cast<ptrdiff_t>(bytes));
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = kWithReply | UCP_AM_SEND_FLAG_EAGER;
  param.user_data = held.get();
  param.cb.send = [](void* request, ucs_status_t, void* data) {
    const std::unique_ptr<std::vector<std::byte>> sent(static_cast<std::vector<std::byte>*>(data));
    ucp_request_free(request);
  };
  const std::byte* body = payload.empty() ? nullptr : held->data() + bytes;
  ucs_status_ptr_t request =
      ucp_am_send_nbx(endpoint, id, held->data(), bytes, body, payload.size(), &param);
  if (UCS_PTR_IS_PTR(request)) {
    std::ignore = held.release();  // owned by the callback
    return {};
  }
  if (UCS_PTR_IS_ERR(request)) return tl::unexpected(UcxError("sending", UCS_PTR_STATUS(request)));
  return {};
}

}  // namespace aisp::ucx
