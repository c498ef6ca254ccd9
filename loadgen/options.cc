#include "loadgen/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "common/strings.h"
#include "loadgen/flag_table.h"

namespace aisp::loadgen {
namespace {

bool NeedsFile(const std::string& dataset) {
  return dataset != "random" && dataset != "prefix_repetition";
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
  if (!o.endpoint.empty() && o.endpoint[0] != '/') {
    return InvalidArgument(
        fmt::format("--endpoint '{}' is no path; write /v1/completions", o.endpoint));
  }
  if (!o.base_url.empty()) AISP_RETURN_IF_ERROR(ParseUrl(o.base_url));
  return {};
}

}  // namespace

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
  constexpr std::string_view kScheme = "http://";
  if (url.starts_with("https://")) {
    return InvalidArgument("'" + Excerpt(url) +
                           "': https is not supported; go through a local TLS proxy");
  }
  if (!url.starts_with(kScheme)) {
    return InvalidArgument("'" + Excerpt(url) + "' is no URL of the form http://HOST:PORT");
  }
  Url out;
  std::string authority = url.substr(kScheme.size());
  const size_t slash = authority.find('/');
  if (slash != std::string::npos) {
    out.prefix = authority.substr(slash);
    while (out.prefix.ends_with('/')) out.prefix.pop_back();
    authority.resize(slash);
  }
  const size_t bracket = authority.find(']');
  const size_t colon = authority.rfind(':');
  const bool has_port =
      colon != std::string::npos && (bracket == std::string::npos || colon > bracket);
  out.host = authority.substr(0, has_port ? colon : std::string::npos);
  if (out.host.starts_with('[') && out.host.ends_with(']')) {
    out.host = out.host.substr(1, out.host.size() - 2);
  }
  const auto port = has_port ? ParseIntInRange(authority.substr(colon + 1), 1, 65535) : 80;
  if (!port || out.host.empty()) {
    return InvalidArgument("'" + Excerpt(url) + "' has no host and port; write http://HOST:PORT");
  }
  out.port = static_cast<uint16_t>(*port);
  return out;
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
  // The server's own default: gRPC is one port above HTTP.
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
