"""The binary under test, on free ports, for the Python tests."""

import os
import subprocess
import sys
import threading
import time
import urllib.request


class Log:
    """What the processes under test log, as events: whatever they do that others see stands there in a line. Warnings go on to
    our stderr."""

    def __init__(self):
        self.changed = threading.Condition()
        self.lines = self.answered = 0

    def follow(self, stream):
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream):
        with stream:
            for line in stream:
                if line.split(" ")[1:2] not in (["I"], ["D"]):
                    sys.stderr.write(line)
                with self.changed:
                    # Asking brings such lines too, so only who waits for them is woken by them.
                    if "request answered" in line:
                        self.answered += 1
                    else:
                        self.lines += 1
                    self.changed.notify_all()

    def await_(self, done, answers=False, seconds=60):
        """True once done(); asked at first and after every line, of answers only with `answers`. False after `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            with self.changed:
                seen = (self.lines, self.answered if answers else 0)
            if done():
                return True
            with self.changed:
                news = self.changed.wait_for(lambda s=seen: (self.lines, self.answered if answers else 0) != s,
                                             deadline - time.monotonic())
            if not news:
                return False


LOG = Log()


class Running:
    """A process of the binary under test; `said`: what it has announced when it has announced `until`."""

    def __init__(self, binary, *arguments, until):
        read, write = os.pipe()
        os.set_inheritable(write, True)
        self.process = subprocess.Popen(
            [binary, *arguments, "--port=0", "--log-level=info", f"--announce-fd={write}"], pass_fds=[write],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        os.close(write)
        LOG.follow(self.process.stdout)
        said = {}
        with os.fdopen(read) as lines:
            for line in lines:
                key, _, value = line.strip().partition("=")
                said.setdefault(key, []).append(value)
                if until in said:
                    break
        if until not in said:
            raise RuntimeError(f"the server did not start; it said {said}")
        self.said = said

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Served(Running):
    """`http` and `grpc` are host:port. Ready to serve once constructed."""

    def __init__(self, binary, *flags):
        super().__init__(binary, "serve", "--role=all", *flags, until="ready")
        self.http, self.grpc, self.admin = (self.said[key][0] for key in ("http", "grpc", "admin"))


class Router(Running):
    """A router alone; `workers`: where workers attach."""

    def __init__(self, binary, *flags):
        super().__init__(binary, "serve", "--role=router", *flags, until="asked-by")
        self.http, self.admin, self.workers = (self.said[key][0] for key in ("http", "admin", "workers"))


class Worker(Running):
    """A prefill or decode worker; registered with a router once constructed."""

    def __init__(self, binary, role, name, routers, *flags):
        super().__init__(binary, "serve", f"--role={role}", f"--worker-id={name}", f"--routers={routers}", *flags, until="ready")

    def kill(self):
        self.process.kill()
        self.process.wait()


class House(Running):
    """`aisp up`: router, one prefill and one decode worker as processes. All are registered once constructed."""

    def __init__(self, binary, *flags):
        super().__init__(binary, "up", *flags, until="http")
        self.http, self.admin = self.said["http"][0], self.said["admin"][0]


def metric(http, name):
    """Sum over all label sets of a metric."""
    with urllib.request.urlopen(f"http://{http}/metrics") as answer:
        text = answer.read().decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
               if line.startswith((name + " ", name + "{")))
