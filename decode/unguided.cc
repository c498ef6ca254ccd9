// Constrained requests before the engine knows them: their guide may first be compiled on another
// thread while steps continue.
#include <utility>

#include "common/log.h"
#include "decode/decode_role_impl.h"
#include "proto/wire_time.h"

namespace aisp {

void DecodeRole::Impl::AwaitGuide(LinkId link, const v1::GenerateRequest& wire) {
  const Instant now = deps.clock->Now();
  if (!options.guides) {
    return Refuse(link, wire, Unimplemented("this worker constrains no answers").value(),
                  /*handed_back=*/false);
  }
  const RouterRequestId id{link, wire.request_id()};
  const uint64_t turn = ++last_turn;
  auto guide = options.guides(
      wire, [weak = std::weak_ptr(self), id, turn](Result<std::shared_ptr<DrawGuide>> compiled) {
        if (const auto alive = weak.lock()) (*alive)->OnGuide(id, turn, std::move(compiled));
      });
  if (!guide) return Refuse(link, wire, guide.error(), /*handed_back=*/false);
  if (*guide) return Begin(link, wire, now, std::move(*guide));
  const Duration timeout = MillisFromWire(wire.timeout_ms());
  const Instant deadline = now + (timeout.count() > 0 ? timeout : options.default_timeout);
  unguided.emplace(id, Unguided{wire, now, deadline, turn});
}

void DecodeRole::Impl::OnGuide(const RouterRequestId& id, uint64_t turn,
                               Result<std::shared_ptr<DrawGuide>> guide) {
  const auto it = unguided.find(id);
  if (it == unguided.end() || it->second.turn != turn) return;  // cancelled, late, or placed again
  Unguided waited = std::move(it->second);
  unguided.erase(it);
  if (guide) {
    // Another request with its key may have been faster.
    if (SayAgain(id.first, &waited.wire)) return NoteDrained();
    Begin(id.first, waited.wire, waited.received, std::move(*guide));
  } else {
    Refuse(id.first, waited.wire, guide.error(), /*handed_back=*/false);
  }
  NoteDrained();
}

void DecodeRole::Impl::ExpireUnguided(Instant now) {
  for (auto it = unguided.begin(); it != unguided.end();) {
    if (now < it->second.deadline) {
      ++it;
      continue;
    }
    const auto late = unguided.extract(it++);
    Refuse(late.key().first, late.mapped().wire,
           Error{Code::kDeadlineExceeded,
                 "the request's time was over before its constraint was compiled; allow more"},
           /*handed_back=*/false);
  }
}

}  // namespace aisp
