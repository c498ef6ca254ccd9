// The implementation of PrefillRole; for prefill/*.cc only. Split over prefill_role.cc (the loop,
// routers, compute), prefill_readers.cc (messages of decode workers), prefill_done.cc (the final
// message), fetching.cc (prefixes from other workers' caches) and draining.cc.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <unordered_map>

#include "prefill/kv_pusher.h"
#include "prefill/prefill_role.h"
#include "prefill/prefix_holder.h"
#include "prefill/readers.h"
#include "prefill/transfer.h"
#include "worker/worker_shell.h"

namespace aisp {

struct PrefillRole::Impl final : public LinkHandler<v1::DecodeToPrefill>,
                                 public LayerSink,
                                 public PrefixHolder::Host {
  explicit Impl(const PrefillOptions& opts) : options(opts) {}

  // --- LinkHandler: decode workers (prefill_readers.cc) ---
  void OnLinkUp(LinkId link, const std::string& peer_address) override;
  void OnMessage(LinkId link, v1::DecodeToPrefill message) override;
  void OnLinkDown(LinkId link, const Error& why) override;
  void OnHello(Reader& reader, const v1::KvHello& hello);
  // The connection to its pool succeeded or failed.
  void OnPool(ReaderId id, bool same_host, const KvConversion& conversion, Result<PeerPool> pool);
  void RefuseReader(Reader& reader, const std::string& reason);
  void OnPrefill(Reader& reader, const v1::PrefillRequest& request);
  void Take(Reader& reader, const v1::PrefillRequest& request);
  // Whether blocks would be requested for it now.
  bool RunsSoon(const Transfer& transfer) const;
  Status MayTake(const Reader& reader) const;
  Result<SequenceRequest> MakeSequence(const Reader& reader,
                                       const v1::PrefillRequest& request) const;
  void OnGrant(Reader& reader, const v1::Grant& grant);
  void OnGrantRefused(Reader& reader, const v1::GrantRefused& refused);
  void OnCancel(Reader& reader, uint64_t transfer_id);
  void OnRevoke(Reader& reader, Epoch epoch);
  // Ends everything of that reader; waits for started writes before its pool is released.
  void DropReader(Reader& reader);
  void ReleaseIfIdle(ReaderId id);
  Status CheckGrant(const Reader& reader, const Transfer& transfer, const v1::Grant& grant) const;

  // --- LayerSink ---
  void OnLayer(int32_t layer, std::span<const LayerSlice> slices) override;

  void AddMetrics(Metrics& metrics);
  // The conversion from our pool to the described one; an error if there is none.
  Result<KvConversion> PlanFor(const v1::KvLayoutDesc& peer) const;

  // --- transfers (prefill_role.cc) ---
  Transfer* FindTransfer(ReaderId reader, uint64_t transfer_id);
  Transfer* FindEpoch(const Reader& reader, Epoch epoch);
  void SendToReader(ReaderId id, v1::PrefillToDecode message) override;
  void SendFailed(ReaderId reader, uint64_t transfer_id, const Error& error, bool retryable);
  void SendFence(ReaderId reader, Epoch epoch) override;
  // Starts fetching the prefix, if the reader said who holds it.
  void StartFetch(TransferKey key, const v1::PrefillRequest& request,
                  std::span<const TokenId> tokens);
  void AbandonFetch(Transfer& transfer);
  // Requests blocks for transfers that run soon.
  void AskForBlocks();
  void NoteOvertaken(const Transfer& granted);
  void StartPushing(Transfer& transfer);
  // Handles what a sequence outputs besides KV: a failure, or its first token.
  void OnOutput(const TokenOutput& output);
  void OnComputed(SequenceId sequence);
  void PushEverything(Transfer& transfer);
  // Handles completions and failures of pushes.
  void Settle();
  void SettleTransfer(Transfer& transfer);
  void FinishTransfer(Transfer& transfer);
  void SendDone(ReaderId id, v1::PrefillToDecode message);
  void LeaveNote(ReaderId id, const v1::PrefillToDecode& done) override;
  void AddBlockChecks(const Transfer& transfer, v1::PrefillDone* done);
  // Tells the reader, then Abandon.
  void FailTransfer(Transfer& transfer, const Error& error, bool retryable);
  // The reader's pool cannot be written any more: fails all its transfers and closes the link, so
  // that it connects anew.
  void FailReader(ReaderId id, const Error& error) override;
  // Ends it, sending only FenceAck. The reference is invalid afterwards.
  void Abandon(Transfer& transfer);
  void EraseTransfer(Transfer& transfer);
  void OnTransferOver(ReaderId id) override;
  void OnEngineFailed(const Error& error);
  void BeginDrain();
  // Tells readers that it drains, or (`over`) accepts work again.
  void NotifyReadersOfDrain(bool over);
  bool Drained() const;
  void NoteDrained();
  void AfterStep();
  Instant NextTimer() const;
  void OnTimer(Instant now);

  const PrefillOptions options;
  PrefillDeps deps;
  std::optional<WorkerShell> shell;
  std::optional<KvPusher> pusher;
  Readers readers;
  std::optional<PrefixHolder> holder;  // serves cached prefixes to decode workers

  std::map<TransferKey, Transfer> transfers;  // ordered by arrival
  uint64_t last_transfer = 0;
  bool stop_wanted = false;
  bool told_drained = false;
  bool metrics_added = false;
  // In another role or not started: refuses new transfers.
  bool standing_by = true;
  std::unordered_map<SequenceId, TransferKey> by_sequence;
  std::unordered_map<PushId, TransferKey> by_push;
  std::map<std::pair<ReaderId, uint64_t>, TransferKey> by_wire_id;

  Counter transfers_done;
  Counter transfers_failed;
  Counter first_tokens;
  Counter feature_bytes;
  Counter grants_refused;
  Counter leases_expired;
};

}  // namespace aisp
