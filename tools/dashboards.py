#!/usr/bin/env python3
"""Writes deploy/grafana/dashboards/*.json from the short descriptions below.

A description holds the queries, unit, legends, and the limits of yellow and red. Grafana's JSON
takes 50 lines a panel, nearly all of them alike.

  tools/dashboards.py            writes them
  tools/dashboards.py --check    exit 1 and the names of files that are not up to date
"""

import json
import os
import sys

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "deploy", "grafana", "dashboards")
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
TOKENS = "suffix: tok/s"
RATE = "[$__rate_interval]"
MODEL = 'model=~"$model"'
WORKER = 'worker=~"$worker"'


class Panel:
    """`queries`: pairs of expression and legend. `limits`: (yellow, red), where each begins; for
    lower values if yellow > red."""

    def __init__(self, title, unit, *queries, limits=None, kind="timeseries", width=8, stack=False, about="", top=None):
        self.title, self.unit, self.queries, self.limits, self.kind = title, unit, queries, limits, kind
        self.width, self.stack, self.about, self.top = width, stack, about, top
        self.height = 4 if kind == "stat" else 8

    def thresholds(self):
        steps = [{"color": "green", "value": None}]
        if self.limits and self.limits[0] > self.limits[1]:
            yellow, red = self.limits
            steps = [{"color": "red", "value": None}, {"color": "yellow", "value": red}, {"color": "green", "value": yellow}]
        elif self.limits:
            steps += [{"color": color, "value": value} for color, value in zip(("yellow", "red"), self.limits)]
        return {"mode": "absolute", "steps": steps}

    def json(self, number, x, y):
        defaults = {"unit": self.unit, "thresholds": self.thresholds(), "min": 0,
                    "color": {"mode": "thresholds" if self.kind == "stat" else "palette-classic"}}
        if self.top is not None:
            defaults["max"] = self.top
        panel = {
            "id": number, "type": self.kind, "title": self.title, "description": self.about, "datasource": DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "fieldConfig": {"defaults": defaults, "overrides": []},
            "targets": [{"refId": chr(65 + i), "datasource": DATASOURCE, "expr": expr, "legendFormat": legend}
                        for i, (expr, legend) in enumerate(self.queries)],
        }
        if self.kind == "stat":
            panel["options"] = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
                                "colorMode": "value", "graphMode": "area", "textMode": "auto"}
        else:
            defaults["custom"] = {"lineWidth": 1, "fillOpacity": 25 if self.stack else 5, "showPoints": "never",
                                  "stacking": {"mode": "normal" if self.stack else "none"},
                                  "thresholdsStyle": {"mode": "line" if self.limits else "off"}}
            panel["options"] = {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
                                "tooltip": {"mode": "multi", "sort": "desc"}}
        return panel


def quantile(q, metric, by="", where=MODEL):
    return f"histogram_quantile({q}, sum by (le{', ' + by if by else ''}) (rate({metric}_bucket{{{where}}}{RATE})))"


def rate(metric, by="", where=MODEL):
    return f"sum{' by (' + by + ')' if by else ''} (rate({metric}{{{where}}}{RATE}))"


def mean(metric, by, where):
    return f"{rate(metric + '_sum', by, where)} / ({rate(metric + '_count', by, where)} > 0)"


def percentiles(metric, *quantiles):
    return [(quantile(q, metric), f"p{round(q * 100)}") for q in quantiles]


def slo(which):
    return (f'sum(rate(aisp_requests_in_slo_total{{{MODEL},slo="{which}"}}{RATE})) / '
            f'(sum(rate(aisp_requests_total{{{MODEL},status=~"ok|error|deadline"}}{RATE})) > 0)')


FAILED = (f'sum(rate(aisp_requests_total{{{MODEL},status=~"error|deadline"}}{RATE})) / '
          f'(sum(rate(aisp_requests_total{{{MODEL},status!="cancelled"}}{RATE})) > 0)')

OVERVIEW = [
    "Service level",
    Panel("TTFT within the limit", "percentunit", (slo("ttft"), "TTFT"), kind="stat", width=4, limits=(0.99, 0.95), top=1,
          about="Of the requests that were taken, those whose first token came within router.slo_ttft."),
    Panel("TPOT within the limit", "percentunit", (slo("tpot"), "TPOT"), kind="stat", width=4, limits=(0.99, 0.95), top=1,
          about="Those whose tokens came within router.slo_tpot each."),
    Panel("Goodput", "reqps", (rate("aisp_requests_in_slo_total", where=MODEL + ',slo="both"'), "both limits"), kind="stat",
          width=4, about="Requests a second that kept both limits."),
    Panel("Failed", "percentunit", (FAILED, "failed"), kind="stat", width=4, limits=(0.001, 0.01), top=1,
          about="Requests that ended with an error or at their deadline; those that clients gave up are left out."),
    Panel("Waiting", "short", (f"max(aisp_router_requests_waiting{{{MODEL}}})", "sequences"), kind="stat", width=4,
          limits=(8, 32), about="Sequences that wait on decode workers for blocks, a step or KV."),
    Panel("Output", TOKENS, (rate("aisp_generation_tokens_total"), "tokens"), kind="stat", width=4,
          about="Tokens a second given to clients."),
    "Latency",
    Panel("Time to first token", "s", *percentiles("aisp_time_to_first_token_seconds", 0.5, 0.95, 0.99),
          (f'max(aisp_slo_seconds{{{MODEL},slo="ttft"}})', "limit")),
    Panel("Time per output token", "s", *percentiles("aisp_request_time_per_output_token_seconds", 0.5, 0.95, 0.99),
          (f'max(aisp_slo_seconds{{{MODEL},slo="tpot"}})', "limit")),
    Panel("Inter-token latency", "s", *percentiles("aisp_inter_token_latency_seconds", 0.5, 0.95, 0.99)),
    Panel("TTFT by part, mean", "s", (mean("aisp_ttft_part_seconds", "part", MODEL), "{{part}}"), stack=True,
          about="The parts add up to the mean TTFT. queue and prefill: prefill workers; transfer: the lane; first_decode: the "
                "decode worker; link: messages and the router."),
    Panel("End to end", "s", *percentiles("aisp_e2e_request_latency_seconds", 0.5, 0.95, 0.99)),
    Panel("Before the router: JSON, template, tokenizer", "s", *percentiles("aisp_frontend_seconds", 0.5, 0.99), limits=(0.02, 0.1)),
    "Load",
    Panel("Requests by outcome", "reqps", (rate("aisp_requests_total", "status"), "{{status}}"), stack=True),
    Panel("Goodput and all that ended", "reqps",
          (rate("aisp_requests_in_slo_total", where=MODEL + ',slo="both"'), "within both limits"),
          (rate("aisp_requests_total", where=MODEL + ',status!="cancelled"'), "ended")),
    Panel("Rejected by reason", "reqps", (rate("aisp_requests_rejected_total", "reason"), "{{reason}}"), stack=True,
          limits=(0.1, 1)),
    Panel("Tokens", TOKENS, (rate("aisp_prompt_tokens_total"), "prompt"), (rate("aisp_generation_tokens_total"), "output")),
    Panel("Running and waiting", "short", (f"max(aisp_router_requests_running{{{MODEL}}})", "running"),
          (f"max(aisp_router_requests_waiting{{{MODEL}}})", "waiting"), limits=None,
          about="As the decode workers report it; every router sees the same workers."),
    Panel("KV in use", "percentunit", (f"max(aisp_router_kv_usage_ratio{{{MODEL}}})", "all decode workers"), limits=(0.85, 0.95),
          top=1),
]

BUSY = rate("aisp_engine_seconds_total", "worker", WORKER + ',state="busy"')

WORKERS = [
    "Engines",
    Panel("Fit for traffic", "short", (f"aisp_worker_ready{{{WORKER}}}", "{{worker}}"), top=1, limits=(1, 0.5)),
    Panel("Engine busy", "percentunit",
          (f'{BUSY} / '
           f'({rate("aisp_engine_seconds_total", "worker", WORKER)} > 0)', "{{worker}}"), limits=(0.8, 0.95), top=1,
          about="Part of the time in which a step ran. Prefill workers near 1 leave prompts waiting."),
    Panel("Steps", "ops", (rate("aisp_steps_total", "worker", WORKER), "{{worker}}")),
    Panel("Step time, median", "s", (quantile(0.5, "aisp_step_seconds", "worker", WORKER), "{{worker}}")),
    Panel("Step time, p99", "s", (quantile(0.99, "aisp_step_seconds", "worker", WORKER), "{{worker}}")),
    Panel("Step time outside the device, mean", "s", (mean("aisp_step_overhead_seconds", "worker", WORKER), "{{worker}}"),
          limits=(0.002, 0.01), about="Planning and bookkeeping of a step on the host."),
    "Work",
    Panel("Running", "short", (f"aisp_num_requests_running{{{WORKER}}}", "{{worker}}")),
    Panel("Waiting", "short", (f"aisp_num_requests_waiting{{{WORKER}}}", "{{worker}}"),
          (f"aisp_num_requests_awaiting_kv{{{WORKER}}}", "{{worker}} for KV"), limits=(8, 32)),
    Panel("Prompt tokens that wait", "short", (f"aisp_queued_prefill_tokens{{{WORKER}}}", "{{worker}}")),
    Panel("Prompt tokens computed", TOKENS, (rate("aisp_prefill_tokens_total", "worker", WORKER), "{{worker}}")),
    Panel("Tokens drawn", TOKENS, (rate("aisp_tokens_generated_total", "worker", WORKER), "{{worker}}")),
    Panel("Decode rows in a step, mean", "short",
          (f'{rate("aisp_decode_rows_total", "worker", WORKER)} / ({rate("aisp_steps_total", "worker", WORKER)} > 0)', "{{worker}}")),
    Panel("TTFT by part and decode worker, mean", "s",
          (mean("aisp_worker_ttft_part_seconds", "worker, part", WORKER), "{{worker}} {{part}}"), width=16),
    Panel("Preemptions", "ops", (rate("aisp_num_preemptions_total", "worker", WORKER), "{{worker}}"), limits=(0.01, 0.1)),
    "Processes",
    Panel("CPU cores in use", "short", ("rate(process_cpu_seconds_total{job=\"aisp\"}[$__rate_interval])", "{{instance}} {{component}}")),
    Panel("Memory", "bytes", ("process_resident_memory_bytes{job=\"aisp\"}", "{{instance}} {{component}}")),
    Panel("Open files", "short", ("process_open_fds{job=\"aisp\"} / process_max_fds", "{{instance}} {{component}}"), limits=(0.7, 0.9)),
    "GPUs",
    Panel("GPU memory in use", "bytes", ("aisp_gpu_memory_used_bytes", "{{instance}} gpu {{gpu}}"),
          ("aisp_gpu_memory_total_bytes", "{{instance}} gpu {{gpu}} in all")),
    Panel("GPU clock", "hertz", ("aisp_gpu_sm_clock_hertz", "{{instance}} gpu {{gpu}}"),
          ("aisp_gpu_sm_clock_max_hertz", "{{instance}} gpu {{gpu}} at most"), ("aisp_gpu_memory_clock_hertz", "{{instance}} gpu {{gpu}} memory")),
    Panel("GPU busy", "percentunit", ("aisp_gpu_utilization_ratio", "{{instance}} gpu {{gpu}}"), top=1),
    Panel("GPU power", "watt", ("aisp_gpu_power_watts", "{{instance}} gpu {{gpu}}"), width=12),
    Panel("GPU temperature", "celsius", ("aisp_gpu_temperature_celsius", "{{instance}} gpu {{gpu}}"), limits=(80, 87), width=12),
]

KV = [
    "Blocks",
    Panel("In use", "percentunit", (f"aisp_kv_cache_usage_perc{{{WORKER}}}", "{{worker}}"), limits=(0.85, 0.95), top=1),
    Panel("Blocks by state", "short", (f"sum by (tier, state) (aisp_kv_blocks{{{WORKER}}})", "{{tier}} {{state}}"), stack=True),
    Panel("Bytes pinned", "bytes", (f'sum by (worker) (aisp_kv_blocks{{{WORKER},state="pinned"}}) * on (worker) '
                                    f"max by (worker) (aisp_kv_block_bytes{{{WORKER}}})", "{{worker}}")),
    Panel("Free or evictable", "short", (f"aisp_kv_blocks_available{{{WORKER}}}", "{{worker}}")),
    Panel("In quarantine", "short", (f"aisp_kv_blocks_quarantined{{{WORKER}}}", "{{worker}}"), limits=(1, 64),
          about="Given up, and a prefill worker has not said yet that it will not write there any more."),
    Panel("Evicted from the prefix cache", "ops", (rate("aisp_kv_evictions_total", "worker", WORKER), "{{worker}}")),
    "Prefix cache",
    Panel("Hit rate", "percentunit",
          (f'{rate("aisp_prefix_cache_hits_total", "role", WORKER)} / ({rate("aisp_prefix_cache_queries_total", "role", WORKER)} > 0)',
           "{{role}}"), top=1, about="Prompt tokens found, of those looked up. Every request is looked up once on its decode worker."),
    Panel("Looked up", TOKENS, (rate("aisp_prefix_cache_queries_total", "worker", WORKER), "{{worker}}")),
    Panel("Found", TOKENS, (rate("aisp_prefix_cache_hits_total", "worker", WORKER), "{{worker}}")),
    "Blocks on the move",
    Panel("Transferred", "Bps", (rate("aisp_kv_transfer_bytes_total", "lane", WORKER), "{{lane}}")),
    Panel("Bandwidth of a lane while it writes", "Bps",
          (f'{rate("aisp_kv_transfer_bytes_total", "lane", WORKER)} / ({rate("aisp_kv_transfer_busy_seconds_total", "lane", WORKER)} > 0)',
           "{{lane}}")),
    Panel("One write, p99", "s", (quantile(0.99, "aisp_kv_write_seconds", "lane", WORKER), "{{lane}}")),
    Panel("Prompts delivered and failed", "ops", (rate("aisp_prefill_transfers_done_total", "worker", WORKER), "{{worker}} delivered"),
          (rate("aisp_prefill_transfers_failed_total", "worker", WORKER), "{{worker}} failed"),
          (rate("aisp_kv_write_failures_total", "lane", WORKER), "writes failed, {{lane}}"), limits=None),
    Panel("Grants of blocks", "ops", (rate("aisp_kv_grants_total", "worker", WORKER), "{{worker}} granted"),
          (rate("aisp_kv_grants_refused_total", "worker", WORKER), "{{worker}} refused"),
          (rate("aisp_prefill_grants_refused_total", "worker", WORKER), "{{worker}} was refused")),
    Panel("Remote prefill", "ops", (rate("aisp_remote_prefills_total", "worker", WORKER), "{{worker}} done"),
          (rate("aisp_remote_prefill_failures_total", "worker", WORKER), "{{worker}} failed"),
          (rate("aisp_remote_prefill_fallbacks_total", "worker", WORKER), "{{worker}} computed here instead")),
    Panel("What must not happen", "short", (f"sum(increase(aisp_kv_data_loss_total{{{WORKER}}}[1h]))", "wrong epoch or length"),
          (f"sum(increase(aisp_prefill_leases_expired_total{{{WORKER}}}[1h]))", "lease over before the KV was complete"),
          limits=(1, 10), width=24, about="In the last hour."),
]

ROUTER = [
    "Placement",
    Panel("Decisions by reason", "ops", (rate("aisp_route_decisions_total", "reason"), "{{reason}}"), stack=True),
    Panel("TTFT: predicted against measured", "s", *percentiles("aisp_router_ttft_prediction_error_seconds", 0.5, 0.95),
          limits=(0.1, 1), about="The size of the error."),
    Panel("Predictions: error as a part of what was measured", "percentunit",
          *[(quantile(q, f"aisp_router_{what}_prediction_error_ratio"), f"{what.upper()} p{q * 100:.0f}")
            for what in ("ttft", "tpot") for q in (0.5, 0.9)],
          limits=(0.15, 0.5), about="Half of the requests are off by less than p50, nine of ten by less than p90."),
    Panel("Requests on workers", "short", (f"sum by (worker) (aisp_router_worker_streams{{{MODEL}}})", "{{worker}}"), stack=True),
    Panel("Cached tokens that the router counts on", "percentunit",
          (f'{rate("aisp_router_cached_tokens_total")} / ({rate("aisp_router_lookup_tokens_total")} > 0)', "expected"), top=1),
    Panel("The view of caches", "short", (f"sum(increase(aisp_router_prefix_gaps_total{{{MODEL}}}[5m]))", "gaps in events"),
          (f"sum(increase(aisp_router_prefix_snapshots_asked_total{{{MODEL}}}[5m]))", "snapshots asked"),
          (f"sum(increase(aisp_router_prefix_units_dropped_total{{{MODEL}}}[5m]))", "units not remembered"),
          (f"sum(aisp_router_prefix_view_blind{{{MODEL}}})", "workers not known")),
    Panel("Active requests", "short", (f"sum by (instance) (aisp_active_requests{{{MODEL}}})", "{{instance}}"),
          (f"sum(aisp_pending_takeovers{{{MODEL}}})", "waiting for another worker")),
    "Workers",
    Panel("Registered", "short", (f"max by (worker_role) (aisp_router_workers{{{MODEL}}})", "{{worker_role}}"),
          (f"max by (worker_role) (aisp_router_workers_ready{{{MODEL}}})", "{{worker_role}} ready")),
    Panel("Forgotten, by cause", "short", (f"sum by (cause) (increase(aisp_workers_forgotten_total{{{MODEL}}}[5m]))", "{{cause}}"),
          about="drained and replaced were meant to go; link, silent and fault were not."),
    Panel("Refused registrations", "short", (f"sum(increase(aisp_registrations_refused_total{{{MODEL}}}[5m]))", "refused"),
          (f"sum(aisp_router_draining{{{MODEL}}})", "routers that drain"), limits=(1, 10)),
    Panel("Requests that moved", "ops", (rate("aisp_takeovers_total"), "worker lost or refused"),
          (rate("aisp_request_moves_total"), "worker drains")),
    "Clients",
    Panel("HTTP answers", "reqps", ('sum by (code) (rate(aisp_http_requests_total[$__rate_interval]))', "{{code}}"), stack=True),
    Panel("HTTP by path", "reqps", ('sum by (path) (rate(aisp_http_requests_total[$__rate_interval]))', "{{path}}"), stack=True),
    Panel("Clients that went away", "reqps", (rate("aisp_disconnected_clients_total"), "cut"),
          (rate("aisp_cancelled_requests_total"), "requests cancelled")),
    Panel("Finished by reason", "reqps", (rate("aisp_request_success_total", "finished_reason"), "{{finished_reason}}"), stack=True),
    Panel("Router CPU", "short", ('rate(process_cpu_seconds_total{job="aisp",component="router"}[$__rate_interval])', "{{instance}}"),
          limits=(0.7, 0.9), about="One core is one event loop: near 1 add replicas."),
]

DASHBOARDS = {
    "overview": ("aisp / Overview", OVERVIEW, ["model"]),
    "workers": ("aisp / Workers", WORKERS, ["worker"]),
    "kv": ("aisp / KV cache", KV, ["worker"]),
    "router": ("aisp / Router", ROUTER, ["model"]),
}
VARIABLES = {"model": "aisp_requests_total", "worker": "aisp_steps_total"}


def variables(names):
    out = [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source", "hide": 0}]
    for name in names:
        query = f"label_values({VARIABLES[name]}, {name})"
        out.append({"name": name, "type": "query", "label": name.capitalize(), "datasource": DATASOURCE, "definition": query,
                    "query": {"query": query, "refId": name}, "refresh": 2, "includeAll": True, "allValue": ".*",
                    "multi": True, "current": {"text": "All", "value": "$__all"}, "sort": 1, "hide": 0})
    return out


def place(items):
    """Places panels from left to right in rows of 24 columns; a string begins a titled row."""
    out, x, y, tallest = [], 0, 0, 0
    for number, item in enumerate(items, 1):
        width = 24 if isinstance(item, str) else item.width
        if isinstance(item, str) or x + width > 24:
            x, y, tallest = 0, y + tallest, 0
        if isinstance(item, str):
            out.append({"id": number, "type": "row", "title": item, "collapsed": False, "panels": [],
                        "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}})
            y += 1
            continue
        out.append(item.json(number, x, y))
        x, tallest = x + width, max(tallest, item.height)
    return out


def dashboard(name):
    title, items, names = DASHBOARDS[name]
    return {
        "uid": f"aisp-{name}", "title": title, "tags": ["aisp"], "schemaVersion": 38, "version": 1, "editable": True,
        "timezone": "browser", "refresh": "10s", "time": {"from": "now-1h", "to": "now"}, "graphTooltip": 1,
        "templating": {"list": variables(names)}, "annotations": {"list": []},
        "links": [{"type": "dashboards", "title": "aisp", "tags": ["aisp"], "asDropdown": False, "includeVars": True,
                   "keepTime": True}],
        "panels": place(items),
    }


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    stale = []
    for name in DASHBOARDS:
        path = os.path.join(FOLDER, name + ".json")
        wanted = json.dumps(dashboard(name), indent=1) + "\n"
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                if file.read() == wanted:
                    continue
        stale.append(name)
        if not check:
            with open(path, "w", encoding="utf-8") as file:
                file.write(wanted)
    if check and stale:
        sys.exit("not up to date; run tools/dashboards.py: " + ", ".join(stale))


if __name__ == "__main__":
    main()
