#!/usr/bin/env python3
"""Spans as OpenTelemetry's own message definitions read them: a router exports to a collector of this program.

Usage: otlp_test.py BINARY          (run by CTest through tests/e2e/python_test.py)
"""

import concurrent.futures
import json
import queue
import sys
import unittest
import urllib.request

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2

from served import Served, metric

BINARY = None
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = "00f067aa0ba902b7"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self):
        self.requests = queue.Queue()
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(max_workers=2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self.server)
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def Export(self, request, context):
        self.requests.put(request)
        return trace_service_pb2.ExportTraceServiceResponse()

    def spans(self, trace_id, until, timeout_s=30):
        """Spans of one trace, until one of this name is there."""
        found = []
        while not any(span.name == until for span in found):
            request = self.requests.get(timeout=timeout_s)
            for resource in request.resource_spans:
                self.resource = {a.key: a.value.string_value for a in resource.resource.attributes}
                for scope in resource.scope_spans:
                    found += [span for span in scope.spans if span.trace_id.hex() == trace_id]
        return found


def complete(http, **headers):
    body = json.dumps({"prompt": "Once upon a time there was a small duck who", "max_tokens": 4}).encode()
    request = urllib.request.Request(f"http://{http}/v1/completions", body,
                                     {"content-type": "application/json", **headers})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.headers["traceparent"]


class Otlp(unittest.TestCase):
    def serve(self, *flags):
        served = Served(BINARY, *flags)
        self.addCleanup(served.stop)
        return served

    def test_spans_form_one_tree_below_the_caller(self):
        collector = Collector()
        self.addCleanup(collector.server.stop, None)
        served = self.serve(f"--otlp-endpoint=http://127.0.0.1:{collector.port}")
        out = complete(served.http, traceparent=f"00-{TRACE}-{CALLER}-01", tracestate="vendor=7")
        spans = collector.spans(TRACE, "request")
        by_name = {span.name: span for span in spans}
        root = by_name["request"]
        self.assertEqual(root.parent_span_id.hex(), CALLER)
        self.assertEqual(out, f"00-{TRACE}-{root.span_id.hex()}-01")
        self.assertEqual(root.kind, trace_pb2.Span.SPAN_KIND_SERVER)
        self.assertEqual(root.trace_state, "vendor=7")
        for name in ("receive", "prepare", "admit", "route", "queue", "prefill", "decode", "stream"):
            self.assertIn(name, by_name)
        ids = {span.span_id for span in spans}
        self.assertEqual(len(ids), len(spans))
        for span in spans:
            self.assertEqual(len(span.span_id), 8)
            self.assertLessEqual(span.start_time_unix_nano, span.end_time_unix_nano)
            if span is not root:
                self.assertIn(span.parent_span_id, ids)
        self.assertEqual(by_name["chunk"].parent_span_id, by_name["prefill"].span_id)
        self.assertEqual(collector.resource["service.name"], "aisp")

    def test_a_trace_that_its_caller_does_not_sample_is_not_exported(self):
        collector = Collector()
        self.addCleanup(collector.server.stop, None)
        served = self.serve(f"--otlp-endpoint=127.0.0.1:{collector.port}")
        complete(served.http, traceparent=f"00-{TRACE}-{CALLER}-00")
        sampled = complete(served.http)
        # The spans are sent in order, so the first of the two would have arrived before the second.
        spans = collector.spans(sampled.split("-")[1], "request")
        self.assertTrue(spans)
        self.assertTrue(collector.requests.empty())

    def test_a_collector_that_is_away_slows_nobody_down_and_is_counted(self):
        served = self.serve("--otlp-endpoint=127.0.0.1:1")
        for _ in range(20):
            complete(served.http)
        self.assertEqual(metric(served.http, "aisp_trace_spans_exported_total"), 0)
        served.stop()


def main():
    global BINARY
    BINARY = sys.argv.pop(1)
    unittest.main(verbosity=2)


if __name__ == "__main__":
    main()
