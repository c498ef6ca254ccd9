#include "loadgen/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "common/strings.h"
#include "loadgen/flag_table.h"
#include "loadgen/text_datasets.h"
#include "net/host_port.h"

namespace aisp::loadgen {
namespace {

bool NeedsFile(const std::string& dataset) {
  return dataset != "random" && dataset != "prefix_repetition" && !IsTextDataset(dataset);
}

Status CheckManyRuns(const Options& o) {
  const int kinds = (o.sweep ? 1 : 0) + (o.sweep_rates.empty() ? 0 : 1) +
                    (o.sweep_concurrency.empty() ? 0 : 1) + (o.ab_url.empty() ? 0 : 1);
  if (kinds > 1) {
    return InvalidArgument("of --sweep, --sweep-rates, --sweep-concurrency and --ab one at a time");
  }
  if (o.sweep && !o.goodput.any()) {
    return InvalidArgument(
        "--sweep looks for the highest rate that keeps limits: give them as --goodput ttft:500 "
        "tpot:50");
  }
  const bool of_rates = o.sweep || !o.sweep_rates.empty();
  if (of_rates && (o.request_rate || !o.ramp_up.empty())) {
    return InvalidArgument("a sweep sets the rate; leave --request-rate and ramps out");
  }
  if (!o.sweep_concurrency.empty() && o.max_concurrency > 0) {
    return InvalidArgument("--sweep-concurrency sets --max-concurrency; leave it out");
  }
  if (kinds > 0 && (!o.compare.empty() || o.save_detailed)) {
    return InvalidArgument("--compare and --save-detailed are of one run, not of a sweep or --ab");
  }
  if (!o.ab_gpus.empty() && o.ab_gpus.size() != 2) {
    return InvalidArgument("--ab-gpus wants two numbers, of A and of B, as 4,4");
  }
  if (o.ab_gpus.size() == 2 && o.ab_gpus[0] != o.ab_gpus[1] && !o.ab_unequal) {
    return InvalidArgument(fmt::format(
        "A has {:g} GPUs and B {:g}: compare at equal GPUs, or take --ab-unequal and read "
        "the rows per GPU",
        o.ab_gpus[0], o.ab_gpus[1]));
  }
  if (o.ab_url.empty()) {
    if (!o.ab_gpus.empty()) return InvalidArgument("--ab-gpus goes with --ab URL");
    return {};
  }
  if (o.kind() == BackendKind::kGrpc) {
    return InvalidArgument("--ab compares over HTTP; leave --backend aisp-grpc out");
  }
  if (!o.csv.empty()) return InvalidArgument("--csv is of one run or a sweep, not of --ab");
  return ParseUrl(o.ab_url) ? Status() : tl::unexpected(ParseUrl(o.ab_url).error());
}

Status CheckTurns(const Options& o) {
  const bool file = o.dataset == "sharegpt" || o.dataset == "custom" || o.dataset == "spec_bench";
  if (o.turns > 1 && o.dataset != "random" && !file) {
    return InvalidArgument(fmt::format(
        "--turns goes with random, sharegpt, custom and spec_bench, not with '{}'", o.dataset));
  }
  if (o.turns == 1 && (o.num_conversations > 0 || o.turn_delay_s > 0)) {
    return InvalidArgument("--num-conversations and --turn-delay need --turns N, at least 2");
  }
  if (o.num_conversations > 0 && o.num_prompts > 0) {
    return InvalidArgument(
        "--num-conversations and --num-prompts say the same thing; leave one of them out");
  }
  if (!o.category.empty() && o.dataset != "custom" && o.dataset != "spec_bench") {
    return InvalidArgument("--category goes with custom and spec_bench");
  }
  return {};
}

Status CheckTls(const Options& o) {
  const bool https = o.base_url.starts_with("https://") || o.ab_url.starts_with("https://");
  if (!https &&
      (!o.tls_ca.empty() || !o.tls_cert.empty() || !o.tls_key.empty() || o.tls_insecure)) {
    return InvalidArgument(
        "--ca, --cert, --key and --insecure go with --base-url https://HOST:PORT");
  }
  if (o.tls_cert.empty() != o.tls_key.empty()) {
    return InvalidArgument("--cert and --key go together");
  }
  if (o.tls_insecure && !o.tls_ca.empty()) {
    return InvalidArgument("--insecure takes any certificate, so --ca says nothing; leave one out");
  }
  return {};
}

Status CheckBackend(const Options& o) {
  const bool chat_endpoint = o.endpoint.ends_with("/chat/completions");
  if (o.kind() == BackendKind::kGrpc) {
    if (o.grpc_address.empty()) {
      return InvalidArgument("--backend aisp-grpc with --base-url needs --grpc-address HOST:PORT");
    }
    if (!o.endpoint.empty() || !o.extra_body.empty() || o.prompt_format == "text") {
      return InvalidArgument(
          "--endpoint, --extra-body and --prompt-format text are of no use with --backend "
          "aisp-grpc");
    }
  } else if (!o.grpc_address.empty()) {
    return InvalidArgument("--grpc-address goes with --backend aisp-grpc");
  }
  if (o.backend == "openai-chat" && !o.endpoint.empty() && !chat_endpoint) {
    return InvalidArgument(fmt::format(
        "--backend openai-chat needs an --endpoint that ends in /chat/completions, not '{}'",
        o.endpoint));
  }
  if ((o.backend == "openai" || o.backend == "vllm") && chat_endpoint) {
    return InvalidArgument(
        fmt::format("--backend {} asks for completions, --endpoint {} for chats; use openai-chat",
                    o.backend, o.endpoint));
  }
  if (o.kind() == BackendKind::kChat && o.prompt_format == "ids") {
    return InvalidArgument("--prompt-format ids: a chat has no token ids, use /v1/completions");
  }
  return {};
}

Status CheckTogether(const Options& o) {
  if (NeedsFile(o.dataset) && o.dataset_path.empty()) {
    return InvalidArgument(fmt::format("--dataset-name {} needs --dataset-path FILE", o.dataset));
  }
  if (!NeedsFile(o.dataset) && !o.dataset_path.empty()) {
    return InvalidArgument(
        fmt::format("--dataset-path goes with a dataset that is a file ({}), not with '{}'",
                    fmt::join(DatasetNames().begin() + kMadeUpDatasets, DatasetNames().end(), ", "),
                    o.dataset));
  }
  if (!o.ramp_up.empty()) {
    if (o.ramp_up_start_rps <= 0 || o.ramp_up_end_rps <= 0) {
      return InvalidArgument("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps");
    }
    if (o.request_rate) {
      return InvalidArgument("--ramp-up-strategy sets the rate; leave --request-rate out");
    }
  } else if (o.ramp_up_start_rps > 0 || o.ramp_up_end_rps > 0) {
    return InvalidArgument("--ramp-up-start-rps and --ramp-up-end-rps need --ramp-up-strategy");
  }
  if (o.cancel_delay_s && o.cancel_rate == 0) {
    return InvalidArgument("--cancel-delay needs --cancel-rate, the share of requests to cancel");
  }
  AISP_RETURN_IF_ERROR(CheckManyRuns(o));
  AISP_RETURN_IF_ERROR(CheckTurns(o));
  AISP_RETURN_IF_ERROR(CheckTls(o));
  if (o.fixed_schedule && !IsTrace(o.dataset)) {
    return InvalidArgument(fmt::format(
        "--fixed-schedule needs a trace with times (mooncake, azure, burstgpt), not '{}'",
        o.dataset));
  }
  if (o.fixed_schedule && (o.request_rate || !o.ramp_up.empty())) {
    return InvalidArgument("--fixed-schedule is the trace's; leave --request-rate and ramps out");
  }
  AISP_RETURN_IF_ERROR(CheckBackend(o));
  if (!o.endpoint.empty() && o.endpoint[0] != '/') {
    return InvalidArgument(
        fmt::format("--endpoint '{}' is no path; write /v1/completions", o.endpoint));
  }
  if (!o.base_url.empty()) AISP_RETURN_IF_ERROR(ParseUrl(o.base_url));
  return {};
}

}  // namespace

bool IsTrace(const std::string& dataset) {
  return dataset == "trace" || dataset.starts_with("mooncake") || dataset == "azure" ||
         dataset == "burstgpt";
}

BackendKind Options::kind() const {
  if (backend == "aisp-grpc") return BackendKind::kGrpc;
  if (backend == "openai-chat" || endpoint.ends_with("/chat/completions")) {
    return BackendKind::kChat;
  }
  return BackendKind::kCompletions;
}

std::string Options::target() const {
  if (!endpoint.empty()) return endpoint;
  return kind() == BackendKind::kChat ? "/v1/chat/completions" : "/v1/completions";
}

std::vector<std::pair<std::string, double>> Goodput::Limits() const {
  std::vector<std::pair<std::string, double>> out;
  if (ttft_ms) out.emplace_back("ttft", *ttft_ms);
  if (tpot_ms) out.emplace_back("tpot", *tpot_ms);
  if (e2el_ms) out.emplace_back("e2el", *e2el_ms);
  return out;
}

std::string Goodput::ToString() const {
  std::string out;
  for (const auto& [name, limit] : Limits()) {
    out += fmt::format("{}{} <= {:g} ms", out.empty() ? "" : ", ", name, limit);
  }
  return out;
}

Result<Goodput> ParseGoodput(const std::vector<std::string>& pairs) {
  Goodput out;
  for (const std::string& text : pairs) {
    const size_t colon = text.find(':');
    const std::string name = text.substr(0, colon);
    std::optional<double>* field = name == "ttft"   ? &out.ttft_ms
                                   : name == "tpot" ? &out.tpot_ms
                                   : name == "e2el" ? &out.e2el_ms
                                                    : nullptr;
    if (field == nullptr || colon == std::string::npos) {
      return InvalidArgument(fmt::format(
          "'{}' is not NAME:MS with NAME one of ttft, tpot, e2el (as ttft:500)", Excerpt(text)));
    }
    AISP_ASSIGN_OR_RETURN(*field, ParseNumber(text.substr(colon + 1), 1e-9, 1e12,
                                              "a positive number of milliseconds"));
  }
  if (!out.any()) return InvalidArgument("no limit is given; write ttft:500 tpot:50");
  return out;
}

Result<Url> ParseUrl(const std::string& url) {
  Url out;
  out.tls = url.starts_with("https://");
  if (!out.tls && !url.starts_with("http://")) {
    return InvalidArgument("'" + Excerpt(url) +
                           "' is no URL of the form http://HOST:PORT or https://HOST:PORT");
  }
  std::string authority = url.substr(out.tls ? 8 : 7);
  const size_t slash = authority.find('/');
  if (slash != std::string::npos) {
    out.prefix = authority.substr(slash);
    while (out.prefix.ends_with('/')) out.prefix.pop_back();
    authority.resize(slash);
  }
  const SplitAddress split = SplitHostPort(authority);
  out.host = WithoutBrackets(split.host);
  const auto port =
      split.port ? ParseIntInRange(*split.port, 1, 65535) : Result<int64_t>(out.tls ? 443 : 80);
  if (!port || out.host.empty()) {
    return InvalidArgument("'" + Excerpt(url) + "' has no host and port; write http://HOST:PORT");
  }
  out.port = static_cast<uint16_t>(*port);
  return out;
}

std::string Url::ToString() const {
  const bool ipv6 = host.find(':') != std::string::npos;
  return fmt::format("{}://{}{}{}:{}{}", tls ? "https" : "http", ipv6 ? "[" : "", host,
                     ipv6 ? "]" : "", port, prefix);
}

Result<Options> ParseOptions(std::span<const std::string> args) {
  Options options;
  const std::vector<FlagGroup> groups = FlagTable(&options);
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    const size_t equals = arg.starts_with("--") ? arg.find('=') : std::string::npos;
    const std::string name = arg.substr(0, equals);
    if (!arg.starts_with('-')) {
      return InvalidArgument(fmt::format("'{}' is no flag; see --help", Excerpt(arg)));
    }
    const Flag* flag = FindFlag(groups, name);
    if (flag == nullptr) {
      return InvalidArgument(
          fmt::format("unknown flag '{}'{}", Excerpt(name), NearestFlag(name, groups)));
    }
    FlagValues values;
    if (equals != std::string::npos) values.push_back(arg.substr(equals + 1));
    if (flag->value.empty()) {
      if (!values.empty()) return InvalidArgument(fmt::format("{} takes no value", name));
    } else if (values.empty()) {
      do {
        if (i + 1 >= args.size() || (args[i + 1].starts_with("--") && !values.empty())) break;
        values.push_back(args[++i]);
      } while (flag->many());
      if (values.empty() || values[0].starts_with("--")) {
        return InvalidArgument(fmt::format("{} wants a value: {}", name, flag->value));
      }
    }
    if (const Status set = flag->set(values); !set) {
      return tl::unexpected(set.error().WithContext(name));
    }
  }
  if (options.help || options.version) return options;
  if (options.save_detailed) options.save_result = true;
  // The server's default: gRPC is one port above HTTP.
  if (options.kind() == BackendKind::kGrpc && options.grpc_address.empty() &&
      options.base_url.empty()) {
    options.grpc_address = fmt::format("{}:{}", options.host, options.port + 1);
  }
  AISP_RETURN_IF_ERROR(CheckTogether(options));
  return options;
}

std::string HelpText() {
  Options defaults;
  std::string out =
      "aisp-loadgen: load and latency of a server with OpenAI's API (or aisp's gRPC)\n\n"
      "  aisp-loadgen --num-prompts 200 --request-rate 10 --input-len 512 --output-len 128 "
      "--ignore-eos\n"
      "  aisp-loadgen --endpoint /v1/chat/completions --max-concurrency 32 --dataset-name sharegpt "
      "\\\n"
      "               --dataset-path sharegpt.json --goodput ttft:500 tpot:50 --save-result\n"
      "  aisp-loadgen --dataset-name mooncake --dataset-path conversation_trace.jsonl --time-scale "
      "0.5\n";
  for (const FlagGroup& group : FlagTable(&defaults)) {
    out += fmt::format("\n{}\n", group.title);
    for (const Flag& flag : group.flags) {
      std::string help(flag.help);
      if (!flag.aliases.empty()) {
        help += fmt::format("{}Also {}.", help.empty() ? "" : " ", fmt::join(flag.aliases, ", "));
      }
      const std::string usage =
          flag.value.empty() ? std::string(flag.name) : fmt::format("{} {}", flag.name, flag.value);
      if (usage.size() > 34) {
        out += fmt::format("  {}\n{:38}{}\n", usage, "", help);
      } else {
        out += fmt::format("  {:<34}  {}\n", usage, help);
      }
    }
  }
  out +=
      "\nExit codes: 0 every request completed or was cancelled on purpose; 1 some failed, a text "
      "differed from "
      "--compare, or\nthe run could not be made; 2 the command line is wrong; 130 interrupted.\n";
  return out;
}

}  // namespace aisp::loadgen
