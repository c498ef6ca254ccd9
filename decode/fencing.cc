// How granted blocks return: the writer's acknowledgement, a transport that fences on our side, or
// the writer's proven death.
#include <algorithm>

#include "common/log.h"
#include "decode/decode_role_impl.h"

namespace aisp {

void DecodeRole::Impl::SendRevoke(const Lease& lease) {
  // Only the process that got the grant may acknowledge it. Another one at the same address never
  // wrote, so its acknowledgement proves nothing.
  const Writer* up = peers->Up(lease.writer.address);
  if (up == nullptr || up->incarnation != lease.writer.incarnation) return;
  v1::DecodeToPrefill message;
  message.mutable_revoke()->set_epoch(lease.epoch.value);
  peers->Send(lease.writer.address, std::move(message));
}

void DecodeRole::Impl::GiveUpLease(Epoch epoch) {
  Lease* lease = leases.Find(epoch);
  if (lease == nullptr || lease->revoked) return;
  lease->revoked = true;
  lease->revoked_at = deps.clock->Now();
  SendRevoke(*lease);
  if (lease->writer.transport->RevokeEpoch(epoch)) {
    EndLease(*lease);
    return;
  }
  next_fence_poll = std::min(next_fence_poll, lease->revoked_at + options.fence_poll_interval);
}

void DecodeRole::Impl::EndLease(Lease& lease) {
  const Epoch epoch = lease.epoch;
  leases.Close(epoch);
  deps.engine->EndLease(epoch);
}

void DecodeRole::Impl::OnFence(const std::string& address, Epoch epoch) {
  Lease* lease = leases.Find(epoch);
  const Writer* writer = peers->Up(address);
  if (lease == nullptr || writer == nullptr) return;  // a repeated acknowledgement
  if (lease->writer.address != address || lease->writer.incarnation != writer->incarnation) {
    LogError("a prefill worker acknowledged another's grant",
             {{"address", address}, {"epoch", epoch.value}});
    return;
  }
  // Not revoked yet: the writer gave up by itself.
  if (!lease->revoked && puller->OnGivenBack(lease->transfer_id)) {
    lease = leases.Find(epoch);
    if (lease == nullptr) return;
  }
  if (DecodeRequest* request =
          lease->revoked ? nullptr : FindTransfer(address, lease->transfer_id)) {
    if (request->granted_early) {
      TakeBackGrant(*request);
    } else {
      FailRemote(*request, "the prefill worker gave the grant back");
    }
    lease = leases.Find(epoch);
    if (lease == nullptr) return;
  }
  const bool fenced = lease->writer.transport->RevokeEpoch(epoch);
  // If our side copies, only our side knows when its copies have ended.
  if (!fenced && lease->writer.transport->capabilities().owner_copies) {
    GiveUpLease(epoch);
    return;
  }
  EndLease(*lease);
}

void DecodeRole::Impl::PollFences(Instant now) {
  if (now < next_fence_poll) return;
  next_fence_poll = kNever;
  for (const Epoch epoch : leases.Revoked()) {
    Lease& lease = *leases.Find(epoch);
    const bool ours = lease.writer.transport->capabilities().owner_copies;
    if (ours && lease.writer.transport->RevokeEpoch(epoch)) {
      EndLease(lease);
      continue;
    }
    if (lease.writer.watch->Dead()) {
      LogInfo("a prefill worker is dead; its grant comes back",
              {{"address", lease.writer.address}, {"epoch", epoch.value}});
      EndLease(lease);
      continue;
    }
    // The writer may be alive with its connection gone, and cannot acknowledge without one. Want()
    // applies the backoff.
    if (!ours && peers->Up(lease.writer.address) == nullptr)
      static_cast<void>(peers->Want(lease.writer.address));
    next_fence_poll = now + options.fence_poll_interval;
  }
}

}  // namespace aisp
