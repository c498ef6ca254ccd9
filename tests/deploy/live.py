"""Live processes of the binary under test for the Python tests: a router and workers on free ports of loopback."""

import ctypes
import http.client
import json
import os
import re
import signal
import subprocess
import time
import urllib.request


PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


def end_with_us():
    """In a child before it becomes what it runs: nothing of a test that is killed stays behind."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Process:
    """`aisp serve` with these flags; `said` holds what it announced, once it is up."""

    def __init__(self, binary, flags, until):
        read, write = os.pipe()
        os.set_inheritable(write, True)
        self.process = subprocess.Popen([binary, "serve", "--log-level=warning", f"--announce-fd={write}", *flags],
                                        pass_fds=[write], preexec_fn=end_with_us)
        os.close(write)
        self.said = {}
        self.lines = os.fdopen(read)
        self.read_until(until)

    def read_until(self, key):
        while key not in self.said:
            line = self.lines.readline()
            if not line:
                raise RuntimeError(f"the process ended before it said {key!r}; it said {self.said}")
            name, _, value = line.strip().partition("=")
            self.said[name] = value

    def stop(self, seconds=20):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.lines.close()
        return self.process.returncode


class Cluster:
    """A router, one prefill and one decode worker. Workers find the router by name, as in Kubernetes."""

    def __init__(self, binary, worker_flags=()):
        self.binary = binary
        common = ["--dtype=f32", "--drain-timeout=2s"]
        self.router = Process(binary, ["--role=router", "--port=0", "--router-listen=127.0.0.1:0", *common], "workers")
        port = self.router.said["workers"].rpartition(":")[2]
        self.workers = {}
        for role in ("prefill", "decode"):
            self.workers[role] = Process(binary, [f"--role={role}", f"--worker-id={role}-0", "--transports=tcp",
                                                  f"--routers=dns:localhost:{port}", *common, *worker_flags], "admin")
        for worker in self.workers.values():
            worker.read_until("ready")
        self.http = self.router.said["http"]
        self.targets = {"router": self.http, **{role: worker.said["admin"] for role, worker in self.workers.items()}}

    def stop(self):
        self.router.stop()
        for worker in self.workers.values():
            worker.stop()

    def scrape(self, component):
        return get(self.targets[component], "/metrics")

    def post(self, path, body, headers=None):
        """Status and answer."""
        host, _, port = self.http.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text


def get(address, path):
    with urllib.request.urlopen(f"http://{address}{path}", timeout=20) as answer:
        return answer.read().decode()


class Family:
    def __init__(self, kind):
        self.kind = kind
        self.series = {}  # name with suffix and labels -> value
        self.labels = set()
        self.values = {}  # label -> its values


LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


def families(text):
    """A rendering by family: its kind, series and labels."""
    out = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            out[name] = Family(kind)
        elif line and not line.startswith("#"):
            series, value = line.rsplit(" ", 1)
            name = series.partition("{")[0]
            base = name if name in out else re.sub(r"_(bucket|sum|count)$", "", name)
            family = out[base]
            family.series[series] = float(value)
            for label, content in LABEL.findall(series):
                if label != "le":
                    family.labels.add(label)
                    family.values.setdefault(label, set()).add(content)
    return out


def total(text, name, **labels):
    """Sum over the series of a name that have these labels."""
    found = 0.0
    for line in text.splitlines():
        if not line.startswith((name + " ", name + "{")):
            continue
        series, value = line.rsplit(" ", 1)
        if labels.items() <= dict(LABEL.findall(series)).items():
            found += float(value)
    return found


def eventually(done, seconds=60):
    deadline = time.monotonic() + seconds
    while True:
        answer = done()
        if answer:
            return answer
        if time.monotonic() > deadline:
            return answer
        time.sleep(0.1)
