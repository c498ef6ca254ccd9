#include "loadgen/flag_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/edit_distance.h"
#include "common/strings.h"

namespace aisp::loadgen {

const std::vector<std::string>& DatasetNames() {
  static const std::vector<std::string> names = {
      "random", "prefix_repetition", "sharegpt", "custom",
      "trace",  "mooncake",          "azure",    "burstgpt"};
  return names;
}

Result<double> ParseNumber(const std::string& text, double min, double max,
                           std::string_view accepted) {
  const auto number = ParseDouble(text);
  if (!number || *number < min || *number > max) {
    return InvalidArgument(fmt::format("'{}' is not {}", Excerpt(text), accepted));
  }
  return *number;
}

namespace {

using Values = FlagValues;

std::function<Status(const Values&)> Text(std::string* field) {
  return [field](const Values& v) -> Status {
    *field = v[0];
    return {};
  };
}
std::function<Status(const Values&)> Choice(std::string* field, Values choices) {
  return [field, choices = std::move(choices)](const Values& v) -> Status {
    if (std::find(choices.begin(), choices.end(), v[0]) == choices.end()) {
      return InvalidArgument(
          fmt::format("'{}' is none of {}", Excerpt(v[0]), fmt::join(choices, ", ")));
    }
    *field = v[0];
    return {};
  };
}
template <typename Field>
std::function<Status(const Values&)> Integer(Field* field, int64_t min,
                                             int64_t max = int64_t{1} << 40) {
  return [field, min, max](const Values& v) -> Status {
    const auto number = ParseIntInRange(v[0], min, max);
    if (!number) {
      return InvalidArgument(
          fmt::format("'{}' is no whole number from {} to {}", Excerpt(v[0]), min, max));
    }
    *field = static_cast<uint64_t>(*number);
    return {};
  };
}
template <typename Field>
std::function<Status(const Values&)> Real(Field* field, double min, double max,
                                          std::string_view accepted) {
  return [=](const Values& v) -> Status {
    AISP_ASSIGN_OR_RETURN(*field, ParseNumber(v[0], min, max, accepted));
    return {};
  };
}
std::function<Status(const Values&)> Switch(bool* field) {
  return [field](const Values&) -> Status {
    *field = true;
    return {};
  };
}
// "a,b" or "a b", with any mix of both.
Values Parts(const Values& values) {
  Values out;
  for (const std::string& value : values) {
    for (const auto part : Split(value, ',')) {
      if (!Trim(part).empty()) out.emplace_back(Trim(part));
    }
  }
  return out;
}
// "name=value" or "name: value".
Result<std::pair<std::string, std::string>> Pair(const std::string& text, char separator) {
  const size_t at = text.find(separator);
  if (at == 0 || at == std::string::npos) {
    return InvalidArgument(
        fmt::format("'{}' is not of the form NAME{}VALUE", Excerpt(text), separator));
  }
  return std::pair(std::string(Trim(text.substr(0, at))), std::string(Trim(text.substr(at + 1))));
}

const Values kMetricNames = {"ttft", "tpot", "itl", "e2el"};

Status SetRate(std::optional<double>* rate, const Values& v) {
  if (v[0] == "inf") {
    *rate = std::numeric_limits<double>::infinity();
    return {};
  }
  AISP_ASSIGN_OR_RETURN(
      const double number,
      ParseNumber(v[0], 1e-9, 1e9, "a positive number of requests per second, or inf"));
  *rate = number;
  return {};
}

Status SetHeader(std::vector<std::pair<std::string, std::string>>* headers, const Values& v) {
  AISP_ASSIGN_OR_RETURN(auto pair, Pair(v[0], v[0].find(':') < v[0].find('=') ? ':' : '='));
  for (const char c : pair.first + pair.second) {
    if (static_cast<unsigned char>(c) < 0x20 && c != '\t') {
      return InvalidArgument(fmt::format("'{}' has a control character", Excerpt(v[0])));
    }
  }
  headers->push_back(std::move(pair));
  return {};
}

Status SetMetrics(std::vector<std::string>* metrics, const Values& v) {
  metrics->clear();
  for (const std::string& name : Parts(v)) {
    if (std::find(kMetricNames.begin(), kMetricNames.end(), name) == kMetricNames.end()) {
      return InvalidArgument(
          fmt::format("'{}' is none of {}", Excerpt(name), fmt::join(kMetricNames, ", ")));
    }
    metrics->push_back(name);
  }
  return {};
}

Status SetPercentiles(std::vector<double>* percentiles, const Values& v) {
  percentiles->clear();
  for (const std::string& text : Parts(v)) {
    AISP_ASSIGN_OR_RETURN(const double p, ParseNumber(text, 0, 100, "a percentile from 0 to 100"));
    percentiles->push_back(p);
  }
  return {};
}

Status SetExtraBody(std::string* field, const Values& v) {
  const auto json = nlohmann::json::parse(v[0], nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return InvalidArgument(fmt::format("'{}' is no JSON object", Excerpt(v[0])));
  }
  *field = json.dump();
  return {};
}

}  // namespace

std::vector<FlagGroup> FlagTable(Options* o) {
  return {
      {"The server",
       {
           {"--base-url",
            {},
            "URL",
            "http://HOST:PORT of the server; instead of --host and --port.",
            Text(&o->base_url)},
           {"--host", {}, "HOST", "Default 127.0.0.1.", Text(&o->host)},
           {"--port", {}, "PORT", "Default 8080.", Integer(&o->port, 1, 65535)},
           {"--endpoint",
            {},
            "PATH",
            "Default /v1/completions; /v1/chat/completions asks for chats.",
            Text(&o->endpoint)},
           {"--backend",
            {"--endpoint-type"},
            "KIND",
            "openai (completions), openai-chat, or aisp-grpc. Default: by --endpoint.",
            Choice(&o->backend, {"openai", "openai-chat", "aisp-grpc", "vllm"})},
           {"--grpc-address",
            {},
            "HOST:PORT",
            "Where aisp-grpc goes. Default: --host and --port + 1, as the server has it.",
            Text(&o->grpc_address)},
           {"--model", {}, "NAME", "Default: the first that /v1/models names.", Text(&o->model)},
           {"--api-key", {}, "KEY", "Sent as 'Authorization: Bearer KEY'.", Text(&o->api_key)},
           {"--header",
            {},
            "NAME=VALUE",
            "One more header for each request; may be repeated.",
            [o](const Values& v) { return SetHeader(&o->headers, v); }},
           {"--wait-ready",
            {"--ready-check-timeout-sec"},
            "S",
            "Wait so many seconds for the server to answer. Default 0.",
            Real(&o->wait_ready_s, 0, 86400, "a number of seconds from 0 to 86400")},
       }},
      {"What is asked",
       {
           {"--dataset-name",
            {"--dataset"},
            "NAME",
            "random, prefix_repetition, sharegpt, custom, mooncake (= trace), azure, burstgpt.",
            Choice(&o->dataset, DatasetNames())},
           {"--dataset-path",
            {},
            "FILE",
            "The file of every dataset but the first two.",
            Text(&o->dataset_path)},
           {"--num-prompts",
            {},
            "N",
            "Requests. Default 1000; of a trace: all it has.",
            Integer(&o->num_prompts, 1, 100'000'000)},
           {"--input-len",
            {"--random-input-len"},
            "N",
            "random: prompt tokens. Default 1024.",
            Integer(&o->input_len, 1)},
           {"--output-len",
            {"--random-output-len", "--sharegpt-output-len", "--custom-output-len",
             "--prefix-repetition-output-len"},
            "N",
            "Tokens to generate. Default: as the dataset says, else 128.",
            Integer(&o->output_len, 1)},
           {"--range-ratio",
            {"--random-range-ratio"},
            "R",
            "random: lengths uniform in [len*(1-R), len*(1+R)]. Default 0.",
            Real(&o->range_ratio, 0, 0.999999, "a number from 0 to below 1")},
           {"--prefix-len",
            {"--random-prefix-len"},
            "N",
            "random: tokens before the prompt that all requests share. Default 0.",
            Integer(&o->prefix_len, 0)},
           {"--prefix-repetition-num-prefixes",
            {"--num-prefixes"},
            "N",
            "Default 10.",
            Integer(&o->num_prefixes, 1)},
           {"--prefix-repetition-prefix-len",
            {},
            "N",
            "Tokens of each. Default 256.",
            Integer(&o->repetition_prefix_len, 1)},
           {"--prefix-repetition-suffix-len",
            {},
            "N",
            "Tokens after it. Default 256.",
            Integer(&o->repetition_suffix_len, 0)},
           {"--time-scale",
            {},
            "F",
            "Times of a trace are multiplied by F: 0.1 plays it 10 times faster.",
            Real(&o->time_scale, 1e-9, 1e9, "a positive number")},
           {"--length-scale",
            {},
            "F",
            "Lengths of a trace are multiplied by F (shared prefixes too), for models with a short "
            "context.",
            Real(&o->length_scale, 1e-6, 1000, "a number from 0.000001 to 1000")},
           {"--prompt-format",
            {},
            "auto|ids|text",
            "Made-up prompts as token ids or as text. auto: ids where the server takes them.",
            Choice(&o->prompt_format, {"auto", "ids", "text"})},
           {"--vocab-size",
            {},
            "N",
            "Token ids below N. Default: ids that the server's /tokenize gives.",
            Integer(&o->vocab_size, 1, 1 << 30)},
           {"--max-model-len",
            {},
            "N",
            "Longer requests are clipped to it, with a note. Default: what /v1/models says.",
            Integer(&o->max_model_len, 2)},
           {"--seed",
            {},
            "N",
            "Of prompts, arrivals and cancels. Default 0.",
            Integer(&o->seed, 0, INT64_MAX)},
           {"--ignore-eos",
            {},
            "",
            "Generate --output-len tokens even past the end token.",
            Switch(&o->ignore_eos)},
           {"--temperature",
            {},
            "T",
            "0 is greedy. Default: the server's.",
            Real(&o->temperature, 0, 100, "a number from 0 to 100")},
           {"--top-p",
            {},
            "P",
            "As in OpenAI's API and vLLM.",
            Real(&o->top_p, 0, 1, "a number from 0 to 1")},
           {"--top-k", {}, "K", "As in OpenAI's API and vLLM.", Integer(&o->top_k, -1)},
           {"--min-p",
            {},
            "P",
            "As in OpenAI's API and vLLM.",
            Real(&o->min_p, 0, 1, "a number from 0 to 1")},
           {"--frequency-penalty",
            {},
            "P",
            "As in OpenAI's API and vLLM.",
            Real(&o->frequency_penalty, -100, 100, "a number from -100 to 100")},
           {"--presence-penalty",
            {},
            "P",
            "As in OpenAI's API and vLLM.",
            Real(&o->presence_penalty, -100, 100, "a number from -100 to 100")},
           {"--repetition-penalty",
            {},
            "P",
            "As in OpenAI's API and vLLM.",
            Real(&o->repetition_penalty, 0, 100, "a number from 0 to 100")},
           {"--extra-body",
            {},
            "JSON",
            "Object whose members go into each request, over all others.",
            [o](const Values& v) { return SetExtraBody(&o->extra_body, v); }},
       }},
      {"When it is asked",
       {
           {"--request-rate",
            {},
            "RPS",
            "Arrivals per second, whatever the answers do (open loop). Default inf: all at once; a "
            "trace has its own times.",
            [o](const Values& v) { return SetRate(&o->request_rate, v); }},
           {"--burstiness",
            {},
            "B",
            "Shape of the gamma-distributed gaps: 1 Poisson, below 1 burstier, above 1 more even, "
            "inf uniform.",
            [o](const Values& v) -> Status {
              if (v[0] == "inf") {
                o->burstiness = std::numeric_limits<double>::infinity();
                return {};
              }
              AISP_ASSIGN_OR_RETURN(o->burstiness,
                                    ParseNumber(v[0], 1e-3, 1e9, "a positive number, or inf"));
              return {};
            }},
           {"--max-concurrency",
            {},
            "N",
            "At most N requests at a time (closed loop with rate inf).",
            Integer(&o->max_concurrency, 1, 1'000'000)},
           {"--ramp-up-strategy",
            {},
            "linear|exponential",
            "The rate grows from --ramp-up-start-rps to --ramp-up-end-rps over the run.",
            Choice(&o->ramp_up, {"linear", "exponential"})},
           {"--ramp-up-start-rps",
            {},
            "RPS",
            "Of the first request.",
            Real(&o->ramp_up_start_rps, 1e-9, 1e9, "a positive number")},
           {"--ramp-up-end-rps",
            {},
            "RPS",
            "Of the last request.",
            Real(&o->ramp_up_end_rps, 1e-9, 1e9, "a positive number")},
           {"--num-warmups",
            {},
            "N",
            "Requests before the run, not counted. Default 0.",
            Integer(&o->num_warmups, 0, 1'000'000)},
           {"--cancel-rate",
            {},
            "SHARE",
            "Share of requests (0 to 1) that are abandoned in mid-stream, each after a random "
            "number of chunks.",
            Real(&o->cancel_rate, 0, 1, "a share from 0 to 1")},
           {"--cancel-delay",
            {},
            "S",
            "Abandon them S seconds after sending instead.",
            Real(&o->cancel_delay_s, 0, 86400, "a number of seconds from 0 to 86400")},
           {"--request-timeout",
            {},
            "S",
            "A request that takes longer has failed. Default 600.",
            Real(&o->request_timeout_s, 1e-3, 86400, "a number of seconds from 0.001 to 86400")},
           {"--retries",
            {},
            "N",
            "Try again so often when no connection comes about or on 503 (honours Retry-After). "
            "Default 0.",
            Integer(&o->retries, 0, 1000)},
           {"--latency-from",
            {},
            "intended|sent",
            "Where latencies start. Default intended: when the request should have been sent.",
            [o](const Values& v) -> Status {
              std::string from;
              AISP_RETURN_IF_ERROR(Choice(&from, {"intended", "sent"})(v));
              o->latency_from_sent = from == "sent";
              return {};
            }},
       }},
      {"What is told",
       {
           {"--percentile-metrics",
            {},
            "LIST",
            "Of ttft,tpot,itl,e2el; default all.",
            [o](const Values& v) { return SetMetrics(&o->percentile_metrics, v); }},
           {"--metric-percentiles",
            {},
            "LIST",
            "Default 99.",
            [o](const Values& v) { return SetPercentiles(&o->percentiles, v); }},
           {"--goodput",
            {},
            "NAME:MS...",
            "Limits a good request keeps, as ttft:500 tpot:50 e2el:4000.",
            [o](const Values& v) -> Status {
              AISP_ASSIGN_OR_RETURN(o->goodput, ParseGoodput(Parts(v)));
              return {};
            }},
           {"--save-result", {}, "", "Write the numbers as JSON.", Switch(&o->save_result)},
           {"--save-detailed",
            {},
            "",
            "Also each request with its text (implies --save-result).",
            Switch(&o->save_detailed)},
           {"--result-dir", {}, "DIR", "Default: the current folder.", Text(&o->result_dir)},
           {"--result-filename",
            {},
            "FILE",
            "Default: by model, rate and time.",
            Text(&o->result_filename)},
           {"--csv", {}, "FILE", "One row for each request.", Text(&o->csv)},
           {"--compare",
            {"--verify"},
            "FILE",
            "A --save-detailed result: exit code 1 when a request's text differs from it "
            "(cancelled ones are left out).",
            Text(&o->compare)},
           {"--label", {}, "TEXT", "Goes into the JSON.", Text(&o->label)},
           {"--metadata",
            {},
            "KEY=VALUE...",
            "Go into the JSON.",
            [o](const Values& v) -> Status {
              for (const std::string& pair : v) {
                AISP_ASSIGN_OR_RETURN(auto read, Pair(pair, '='));
                o->metadata.push_back(std::move(read));
              }
              return {};
            }},
           {"--progress",
            {},
            "",
            "A progress line also where stderr is no terminal.",
            Switch(&o->progress)},
           {"--disable-tqdm", {"--no-progress"}, "", "No progress line.", Switch(&o->no_progress)},
           {"--help", {"-h"}, "", "", Switch(&o->help)},
           {"--version", {}, "", "", Switch(&o->version)},
       }},
  };
}

std::string NearestFlag(std::string_view name, const std::vector<FlagGroup>& groups) {
  std::string_view best;
  size_t best_distance = 5;
  const auto consider = [&](std::string_view candidate) {
    const size_t distance = EditDistance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  };
  for (const FlagGroup& group : groups) {
    for (const Flag& flag : group.flags) {
      consider(flag.name);
      for (const auto alias : flag.aliases) consider(alias);
    }
  }
  return best.empty() ? "; see --help" : fmt::format("; did you mean {}?", best);
}

const Flag* FindFlag(const std::vector<FlagGroup>& groups, std::string_view name) {
  for (const FlagGroup& group : groups) {
    for (const Flag& flag : group.flags) {
      if (flag.name == name ||
          std::find(flag.aliases.begin(), flag.aliases.end(), name) != flag.aliases.end()) {
        return &flag;
      }
    }
  }
  return nullptr;
}

}  // namespace aisp::loadgen
