// Flags in the order of --help: timing, multiple runs, output, and the replay server.
#include "loadgen/flag_table.h"
#include "loadgen/flag_values.h"

namespace aisp::loadgen {

// Long: a table of flags, one entry after the other.
std::vector<FlagGroup> WhenFlags(Options* o) {
  return {
      {"When it is asked",
       {
           {"--request-rate",
            {},
            "RPS",
            "Arrivals per second, whatever the answers do (open loop). Default inf: all at once; a "
            "trace has its own times.",
            SetRate(&o->request_rate)},
           {"--burstiness",
            {},
            "B",
            "Shape of the gamma-distributed gaps: 1 Poisson, below 1 burstier, above 1 more even, "
            "inf uniform.",
            [o](const FlagValues& v) -> Status {
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
            SetInteger(&o->max_concurrency, 1, 1'000'000)},
           {"--ramp-up-strategy",
            {},
            "linear|exponential",
            "The rate grows from --ramp-up-start-rps to --ramp-up-end-rps over the run.",
            SetChoice(&o->ramp_up, {"linear", "exponential"})},
           {"--ramp-up-start-rps",
            {},
            "RPS",
            "Of the first request.",
            SetReal(&o->ramp_up_start_rps, 1e-9, 1e9, "a positive number")},
           {"--ramp-up-end-rps",
            {},
            "RPS",
            "Of the last request.",
            SetReal(&o->ramp_up_end_rps, 1e-9, 1e9, "a positive number")},
           {"--num-warmups",
            {},
            "N",
            "Requests before the run, not counted. Default 0.",
            SetInteger(&o->num_warmups, 0, 1'000'000)},
           {"--cancel-rate",
            {},
            "SHARE",
            "Share of requests (0 to 1) that are abandoned in mid-stream, each after a random "
            "number of chunks.",
            SetReal(&o->cancel_rate, 0, 1, "a share from 0 to 1")},
           {"--cancel-delay",
            {},
            "S",
            "Abandon them S seconds after sending instead.",
            SetReal(&o->cancel_delay_s, 0, 86400, "a number of seconds from 0 to 86400")},
           {"--request-timeout",
            {},
            "S",
            "A request that takes longer has failed. Default 600.",
            SetReal(&o->request_timeout_s, 1e-3, 86400, "a number of seconds from 0.001 to 86400")},
           {"--retries",
            {},
            "N",
            "Try again so often when no connection comes about or on 503 (honours Retry-After). "
            "Default 0.",
            SetInteger(&o->retries, 0, 1000)},
           {"--latency-from",
            {},
            "intended|sent",
            "Where latencies start. Default intended: when the request should have been sent.",
            [o](const FlagValues& v) -> Status {
              std::string from;
              AISP_RETURN_IF_ERROR(SetChoice(&from, {"intended", "sent"})(v));
              o->latency_from_sent = from == "sent";
              return {};
            }},
           {"--fixed-schedule",
            {},
            "",
            "Send when the trace says, which is what traces do anyway; an error for other "
            "datasets.",
            SetSwitch(&o->fixed_schedule)},
       }},
  };
}

// Long: a table of flags, one entry after the other.
std::vector<FlagGroup> RunFlags(Options* o) {
  return {
      {"Many runs",
       {
           {"--sweep",
            {"--find-max-rate"},
            "",
            "Find the highest --request-rate at which --slo-attainment of the requests keep "
            "--goodput: "
            "doubling, then halving the interval.",
            SetSwitch(&o->sweep)},
           {"--sweep-rates",
            {},
            "LIST",
            "Run at these rates instead, as 1,2,4,8.",
            SetNumbers(&o->sweep_rates, 1e-9, 1e9, "a positive number of requests per second")},
           {"--sweep-concurrency",
            {},
            "LIST",
            "Run at these --max-concurrency instead, as 1,2,4,8.",
            SetNumbers(&o->sweep_concurrency, 1, 1e6, "a number of requests from 1 to 1000000")},
           {"--sweep-duration",
            {},
            "S",
            "Seconds of arrivals of each run. Default 30; --num-prompts sets the number of "
            "requests "
            "instead.",
            SetReal(&o->sweep_duration_s, 0.1, 86400, "a number of seconds from 0.1 to 86400")},
           {"--sweep-start",
            {},
            "RPS",
            "Where --sweep begins. Default 1.",
            SetReal(&o->sweep_start, 1e-6, 1e9, "a positive number")},
           {"--sweep-precision",
            {},
            "P",
            "--sweep ends when the interval is this part of the rate. Default 0.05.",
            SetReal(&o->sweep_precision, 0.001, 1, "a number from 0.001 to 1")},
           {"--slo-attainment",
            {},
            "SHARE",
            "Of the requests sent, so many must be good. Default 0.9.",
            SetReal(&o->slo_attainment, 0.01, 1, "a number from 0.01 to 1")},
           {"--ab",
            {"--versus"},
            "URL",
            "A second server, B; the first is A. Both get the same prompts, in rounds by turns.",
            SetText(&o->ab_url)},
           {"--ab-rounds",
            {},
            "N",
            "Runs on each of them. Default 4.",
            SetInteger(&o->ab_rounds, 1, 1000)},
           {"--ab-gpus",
            {},
            "A,B",
            "GPUs of each, which must be equal unless --ab-unequal; throughput is also told per "
            "GPU.",
            SetNumbers(&o->ab_gpus, 1, 1e6, "a number of GPUs")},
           {"--ab-unequal",
            {},
            "",
            "Compare though the GPUs are not equal, per GPU.",
            SetSwitch(&o->ab_unequal)},
       }},
      {"A server to measure this client against",
       {
           {"--serve-replay",
            {},
            "",
            "Be a server that computes nothing and answers at a given pace; --host and --port say "
            "where.",
            SetSwitch(&o->serve_replay)},
           {"--replay-ttft-ms",
            {},
            "MS",
            "From a request to its first token. Default 0.",
            SetReal(&o->replay_ttft_ms, 0, 1e7, "a number of milliseconds")},
           {"--replay-tpot-ms",
            {},
            "MS",
            "Between tokens. Default 0: as fast as they are read.",
            SetReal(&o->replay_tpot_ms, 0, 1e7, "a number of milliseconds")},
           {"--replay-chunk-tokens",
            {},
            "N",
            "Tokens of an event. Default 1.",
            SetInteger(&o->replay_chunk_tokens, 1, 100000)},
           {"--replay-max-streams",
            {},
            "N",
            "Answer N requests at a time, the others wait: a server with a known capacity.",
            SetInteger(&o->replay_max_streams, 1, 1'000'000)},
           {"--replay-file",
            {},
            "FILE",
            "A --save-detailed result: answer at the pace of its requests, one by one.",
            SetText(&o->replay_file)},
           {"--replay-cut-after",
            {},
            "N",
            "Cut each stream after N tokens, to see how clients take it.",
            SetInteger(&o->replay_cut_after, 1)},
       }},
  };
}

// Long: a table of flags, one entry after the other.
std::vector<FlagGroup> ToldFlags(Options* o) {
  return {
      {"What is told",
       {
           {"--percentile-metrics",
            {},
            "LIST",
            "Of ttft,tpot,itl,e2el; default all.",
            SetMetrics(&o->percentile_metrics)},
           {"--metric-percentiles",
            {},
            "LIST",
            "Default 99.",
            SetNumbers(&o->percentiles, 0, 100, "a percentile from 0 to 100")},
           {"--goodput",
            {},
            "NAME:MS...",
            "Limits a good request keeps, as ttft:500 tpot:50 e2el:4000.",
            [o](const FlagValues& v) -> Status {
              AISP_ASSIGN_OR_RETURN(o->goodput, ParseGoodput(FlagParts(v)));
              return {};
            }},
           {"--save-result", {}, "", "Write the numbers as JSON.", SetSwitch(&o->save_result)},
           {"--save-detailed",
            {},
            "",
            "Also each request with its text (implies --save-result).",
            SetSwitch(&o->save_detailed)},
           {"--result-dir", {}, "DIR", "Default: the current folder.", SetText(&o->result_dir)},
           {"--result-filename",
            {},
            "FILE",
            "Default: by model, rate and time.",
            SetText(&o->result_filename)},
           {"--csv", {}, "FILE", "One row for each request.", SetText(&o->csv)},
           {"--html",
            {"--report"},
            "FILE",
            "One page with tables and charts, without anything from outside.",
            SetText(&o->html)},
           {"--compare",
            {"--verify"},
            "FILE",
            "A --save-detailed result: exit code 1 when a request's text differs from it "
            "(cancelled ones are left out).",
            SetText(&o->compare)},
           {"--label", {}, "TEXT", "Goes into the JSON.", SetText(&o->label)},
           {"--metadata",
            {},
            "KEY=VALUE...",
            "Go into the JSON.",
            [o](const FlagValues& v) -> Status {
              for (const std::string& pair : v) {
                AISP_ASSIGN_OR_RETURN(auto read, FlagPair(pair, '='));
                o->metadata.push_back(std::move(read));
              }
              return {};
            }},
           {"--progress",
            {},
            "",
            "A progress line also where stderr is no terminal.",
            SetSwitch(&o->progress)},
           {"--disable-tqdm",
            {"--no-progress"},
            "",
            "No progress line.",
            SetSwitch(&o->no_progress)},
           {"--help", {"-h"}, "", "", SetSwitch(&o->help)},
           {"--version", {}, "", "", SetSwitch(&o->version)},
       }},
  };
}

}  // namespace aisp::loadgen
