#!/usr/bin/env python3
"""Does the simulation notice when a promise is broken? Breaks one at a time and runs seeds until one fails.

A mutant is a product source with a few lines exchanged: it is compiled with the flags of the build, linked in front of the
libraries and run; nothing of the tree or of the build changes. A mutant that no seed catches is a hole in the simulation: exits 1.
A text that is not found once is an error too: say the mutant in the words of the source as it is.

Usage: mutants.py --build DIR [--seeds N] [--jobs N] [--sample N] [--list] [NAME ...]
  --jobs N: cores; two for each mutant, so that several are made and run at a time.
  --sample N: N of them, others each day, for CI.
"""

import argparse
import concurrent.futures
import datetime
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

# (name, the promise, source, text, its replacement)
MUTANTS = [
    ("reuse-before-acknowledgement", "granted blocks are not reused before their writer acknowledged or is dead",
     "decode/fencing.cc",
     "  if (lease->writer.transport->RevokeEpoch(epoch)) {\n",
     "  if (lease->writer.transport->RevokeEpoch(epoch) || true) {\n"),
    ("fetches-end-at-once", "blocks that our side still fetches into are not reused",
     "decode/fencing.cc",
     "  if (lease->writer.transport->RevokeEpoch(epoch)) {\n",
     "  const bool copies = lease->writer.transport->capabilities().owner_copies;\n"
     "  if (lease->writer.transport->RevokeEpoch(epoch) || copies) {\n"),
    ("silence-is-death", "a writer that says nothing is not taken for dead",
     "decode/fencing.cc",
     "    if (lease.writer.watch->Dead()) {\n",
     "    if (true) {\n"),
    ("done-before-written", "PrefillDone follows the last remote completion",
     "prefill/kv_pusher.cc",
     "  if (!push.failure || push.stopped || !Idle(id)) return false;\n",
     "  if (!push.failure || push.stopped) return false;\n"),
    ("fallen-lane-is-kept", "a lane that fell is replaced",
     "prefill/prefill_role.cc",
     "    if (error.code == Code::kUnavailable) {\n",
     "    if (false) {\n"),
    ("spoiled-blocks-are-read", "a block that is not what was written is not read",
     "decode/remote_prefill.cc",
     "  arrived ? verified.Add(static_cast<double>(pushed)) : corrupt.Add();\n",
     "  arrived = Status();\n"),
    ("pins-leak", "every block comes back",
     "prefill/kv_pusher.cc",
     "  for (const PendingWrite& write : push.pending) LetGo(write);\n",
     ""),
    ("no-word-on-unknown-grants", "a grant that nobody uses any more comes back",
     "prefill/prefill_readers.cc",
     "    reader.last_epoch = std::max(reader.last_epoch, epoch.value);\n    SendFence(reader.id, epoch);\n",
     "    reader.last_epoch = std::max(reader.last_epoch, epoch.value);\n"),
    ("prefill-goes-on-after-cancel", "cancelling a stream ends all of it",
     "decode/remote_prefill.cc",
     "    message.mutable_cancel()->set_transfer_id(request.transfer_id);\n",
     "    message.mutable_cancel()->set_transfer_id(request.transfer_id + 1000000);\n"),
    ("takeover-draws-anew", "a takeover goes on with the tokens that would have come",
     "router/router_generate.cc",
     "  *out.mutable_sampling() = spec.sampling;\n",
     "  *out.mutable_sampling() = spec.sampling;\n"
     "  out.mutable_sampling()->set_seed(spec.sampling.seed() + static_cast<uint64_t>(request.placements));\n"),
    ("takeover-counts-anew", "max_new_tokens and penalties hold over a takeover",
     "decode/codec.cc",
     "wire.prompt_tokens() > 0 ? wire.prompt_tokens() : request.tokens.size());\n",
     "request.tokens.size());\n"),
    ("choices-draw-alike", "each choice draws its own tokens",
     "router/router_generate.cc",
     "  out.set_choice(spec.choice);\n",
     "  out.set_choice(0);\n"),
    ("answer-ends-with-its-first-choice", "an answer over HTTP is whole",
     "frontend/generation_job.cc",
     "  if (closed_ || ended_ < prepared_.choices()) return;\n",
     "  if (closed_ || ended_ == 0) return;\n"),
    ("client-left-unnoticed", "what is computed for a client that left is cancelled",
     "frontend/generation_job.cc",
     "  for (auto& choice : choices_) {\n    if (choice->request != RequestId{})\n",
     "  for (auto& choice : choices_) {\n    if (false)\n"),
    ("error-without-an-end", "a stream that fails says so, and ends",
     "frontend/http_answer.cc",
     "[error](AnswerEncoder* encoder, std::string* out) { encoder->Fail(error, out); });\n",
     "[](AnswerEncoder* /*encoder*/, std::string* /*out*/) {});\n"),
    ("text-of-a-stop-string", "the text ends before a stop string",
     "frontend/choice_stream.cc",
     "  text_ += safe.text;\n  if (safe.stopped)",
     "  text_ += text;\n  if (safe.stopped)"),
    ("first-token-untold", "a first token that came with the KV is told, and an end with it",
     "decode/remote_prefill.cc",
     "  Deliver({&*first, 1});\n",
     ""),
    ("first-token-of-another-count", "penalties hold where a prefill worker draws",
     "worker/sampling_codec.cc",
     "  request->prompt_tokens = static_cast<int32_t>(wire.prompt_tokens());\n",
     "  request->prompt_tokens = static_cast<int32_t>(request->tokens.size());\n"),
    ("stops-before-its-time", "a stop token is not drawn before min_new_tokens, wherever it is drawn",
     "decode/codec.cc",
     "  request.min_new_tokens = static_cast<int32_t>(wire.min_new_tokens());\n",
     ""),
    ("one-prompt-for-all", "a shared prompt is the prompt of its request",
     "proto/shared_prompts.cc",
     "ids_.try_emplace(prompt.identity(), last_id_ + 1);\n",
     "ids_.try_emplace(nullptr, last_id_ + 1);\n"),
    ("standing-by-is-deaf", "a role that stands by still pays its peers what it owes",
     "prefill/prefill_readers.cc",
     "void PrefillRole::Impl::OnRevoke(Reader& reader, Epoch epoch) {\n",
     "void PrefillRole::Impl::OnRevoke(Reader& reader, Epoch epoch) {\n  if (standing_by) return;\n"),
    ("role-laid-down-with-work", "a role is laid down when its work is done",
     "worker/role_switch.cc",
     "  if (to_ == kNone || !active().Drained()) return;\n",
     "  if (to_ == kNone) return;\n"),
    ("called-off-and-stranded", "a worker whose change of roles was called off serves on",
     "worker/role_switch.cc",
     "  active().CallOffDrain();\n}\n\nvoid RoleSwitch::BeginDrain",
     "}\n\nvoid RoleSwitch::BeginDrain"),
    ("called-off-without-a-word", "routers hear that a drain was called off",
     "worker/worker_shell.cc",
     "  routers_.Broadcast(message);\n  Report();\n  return true;\n",
     "  Report();\n  return true;\n"),
    ("gives-the-last-decode-away", "a change of roles leaves a decode worker",
     "router/router_roles.cc",
     "  if (!worker.decode() || to == v1::ROLE_DECODE) return {};\n",
     "  if (true) return {};\n"),
    ("deadlines-pass", "a request ends by its deadline and the router's grace",
     "router/router_placement.cc",
     "  request_timers.Set(request.id.value, request.deadline + options.deadline_grace);\n",
     "  request_timers.Set(request.id.value, request.deadline + options.deadline_grace * 1000);\n"),
    ("blind-for-good", "a router knows what every worker's prefix cache holds",
     "worker/worker_shell.cc",
     "void WorkerShell::SendSnapshot(LinkId link) {\n",
     "void WorkerShell::SendSnapshot(LinkId link) {\n  if (link.value != 0) return;\n"),
    ("router-leaves-silently", "workers find the successor of a router that drains",
     "router/router_links.cc",
     "  for (const auto& [id, worker] : workers) sender->Send(worker.link, message);\n",
     ""),
    ("a-bad-step-ends-all", "an error that one request caused ends that request only",
     "engine/admission.cc",
     "    const bool culprit = alone && error.code != Code::kResourceExhausted;\n    if (alone || !last) {\n",
     "    const bool culprit = error.code != Code::kResourceExhausted;\n    if (true) {\n"),
    ("long-steps-are-silent", "a worker in a long step says that it moves",
     "worker/pulse.cc",
     "  if (steps_.empty() || links_.empty()) return std::nullopt;\n",
     "  if (true) return std::nullopt;\n"),
    ("a-bad-request-goes-on", "a request that fails its steps is not tried elsewhere",
     "engine/admission.cc",
     "EndWith(s, FinishReason::kError, failure, culprit ? Fault::kRequest : Fault::kStep);\n",
     "EndWith(s, FinishReason::kError, failure, Fault::kStep);\n"),
    ("tier-faults-are-read", "what a tier failed to bring is a miss",
     "kvcache/tiers/kv_tiers.cc",
     "  p.filled[job.block] = done.status.has_value();\n",
     "  p.filled[job.block] = true;\n"),
    ("given-up-pulls-are-over", "blocks of a pull that is given up are not reused before its holder acknowledged or is dead",
     "decode/prefix_puller.cc",
     "    deps_.listener->GiveUpLease(pull.epoch);\n",
     "    deps_.leases->Close(pull.epoch);\n    deps_.engine->EndLease(pull.epoch);\n"),
    ("prefixes-are-found-before-they-came", "a pulled prefix is published when it has come",
     "engine/pulled.cc",
     "  blocks.BeginLease(grant.epoch, grant.blocks);\n",
     "  blocks.BeginLease(grant.epoch, grant.blocks);\n"
     "  blocks.Publish(root, prefix.tokens, prefix.blocks, prefix.matched);\n"),
    ("asked-back-while-promoted", "a grant that is asked back while its prefix comes up from a tier is not written",
     "prefill/prefix_holder.cc",
     "    if (Granted(push)) deps_.host->SendFence(push.reader, push.epoch);\n    return Erase(key);\n",
     "    if (!Granted(push)) return Erase(key);\n    push.until = push.promoted_by = kNever;\n"
     "    return deps_.host->SendFence(push.reader, push.epoch);\n"),
    ("poison-goes-round", "a request that ends workers is refused after two of them",
     "router/router_poison.cc",
     "  RefusePoison(id);\n  return true;\n",
     "  return false;\n"),
    ("poison-takes-all-prefills", "a request that ends prefill workers is judged after two of them",
     "decode/lost_prefill.cc",
     "    if (request.lost.size() >= kMostLost) {\n",
     "    if (false) {\n"),
    ("who-is-left-did-it", "nobody is refused for what another request did",
     "router/router_poison.cc",
     "Different(suspects) + end.others == 1;\n",
     "true;\n"),
    ("rows-that-are-wanted-come-as-kv", "where outputs of every position are wanted, no prefill worker computes the prompt",
     "decode/decode_role.cc",
     "!wire.has_prefill() || WantsEveryRow(wire)) return targets;\n",
     "!wire.has_prefill()) return targets;\n"),
    ("zombies-displace", "a resumed process never displaces its successor",
     "router/router_names.cc",
     "  return std::find(ousted.begin(), ousted.end(), r.incarnation()) != ousted.end();\n",
     "  return false;\n"),
]


def fail(message):
    print(f"mutants: {message}", file=sys.stderr)
    sys.exit(2)


class Build:
    def __init__(self, folder):
        self.folder = os.path.abspath(folder)
        try:
            with open(os.path.join(self.folder, "compile_commands.json"), encoding="utf-8") as f:
                entries = json.load(f)
        except OSError as error:
            fail(f"{error}; configure the build first")
        self.commands = {entry["file"]: entry["command"] for entry in entries}
        # For a source compiled together with others (AISP_UNITY): the file that includes all of
        # them.
        self.groups = {}
        for path in self.commands:
            if os.path.basename(path).startswith("unity_") and os.path.exists(path):
                with open(path, encoding="utf-8") as f:
                    self.groups.update((included, path) for included in re.findall(r'#include "([^"]+)"', f.read()))
        with open(os.path.join(self.folder, "CMakeCache.txt"), encoding="utf-8") as f:
            self.root = re.search(r"^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$", f.read(), re.M).group(1)
        listed = subprocess.run(["ninja", "-C", self.folder, "-t", "commands", "bin/aisp_sim"],
                                capture_output=True, text=True, check=True).stdout.splitlines()
        self.link = re.sub(r"^: && (.*) && :$", r"\1", listed[-1])

    def check(self, source, text):
        """The source, which says `text` once."""
        with open(os.path.join(self.root, source), encoding="utf-8") as f:
            original = f.read()
        if original.count(text) != 1:
            fail(f"{source} says this {original.count(text)} times, not once: {text.strip()}")
        return original

    def make(self, source, text, instead, scratch):
        """The simulation with the mutant in it."""
        path = os.path.join(self.root, source)
        original = self.check(source, text)
        mutant = os.path.join(scratch, "mutant.cc")
        with open(mutant, "w", encoding="utf-8") as f:
            f.write(original.replace(text, instead))
        command, compiled = self.commands.get(path), mutant
        if command is None:
            # Replaces its whole group, so that nothing of the library's object is linked.
            command, compiled = self.commands[self.groups[path]], os.path.join(scratch, "group.cc")
            with open(self.groups[path], encoding="utf-8") as f, open(compiled, "w", encoding="utf-8") as out:
                out.write(f.read().replace(f'"{path}"', f'"{mutant}"'))
        compile_ = shlex.split(command)
        compile_[compile_.index("-c") + 1] = compiled
        compile_[compile_.index("-o") + 1] = mutant + ".o"
        subprocess.run(compile_ + ["-w"], cwd=self.folder, check=True)
        link = shlex.split(self.link)
        program = os.path.join(scratch, "aisp_sim")
        link[link.index("-o") + 1] = program
        link.insert(link.index("-o"), mutant + ".o")
        subprocess.run(link, cwd=self.folder, check=True)
        return program


def caught_by(program, seeds, jobs):
    """How the first seed that fails says so, or None. Runs growing ranges, so that most end at once."""
    first, count = 1, 25
    while first <= seeds:
        last = min(seeds, first + count - 1)
        try:
            run = subprocess.run([program, f"--seeds={first}..{last}", f"--jobs={jobs}"], capture_output=True,
                                 text=True, timeout=300, check=False)
        except subprocess.TimeoutExpired:
            return f"seeds {first} to {last} do not end"
        if run.returncode != 0:
            said = [line for line in (run.stdout + run.stderr).splitlines() if "seed" in line]
            return said[0][:150] if said else f"exit code {run.returncode}"
        first, count = last + 1, count * 2
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if not options.names or m[0] in options.names]
    if unknown := set(options.names) - {m[0] for m in MUTANTS}:
        fail(f"no mutant is called {', '.join(sorted(unknown))}; see --list")
    if options.list:
        for name, promise, source, _, _ in chosen:
            print(f"{name:<30} {source:<28} {promise}")
        return 0
    build = Build(options.build)
    if options.sample > 0:
        start = datetime.date.today().toordinal() * options.sample
        chosen = [chosen[(start + i) % len(chosen)] for i in range(min(options.sample, len(chosen)))]
    at_a_time = max(1, options.jobs // 2)
    # Check all texts, even if few mutants are run, so that a changed source is noticed the same
    # day.
    for _, _, source, text, _ in MUTANTS:
        build.check(source, text)

    def try_one(mutant):
        name, promise, source, text, instead = mutant
        with tempfile.TemporaryDirectory() as scratch:
            how = caught_by(build.make(source, text, instead, scratch), options.seeds, min(2, options.jobs))
        print(f"{'caught' if how else 'MISSED':<7} {name:<30} {how or promise}", flush=True)
        return how is None

    with concurrent.futures.ThreadPoolExecutor(at_a_time) as pool:
        missed = sum(pool.map(try_one, chosen))
    print(f"{len(chosen) - missed} of {len(chosen)} mutants caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
