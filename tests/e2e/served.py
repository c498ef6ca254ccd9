"""The binary under test, on free ports, for the Python tests."""

import os
import subprocess
import urllib.request


class Running:
    """A process of the binary under test; `said`: what it has announced when it has announced `until`."""

    def __init__(self, binary, *arguments, until):
        read, write = os.pipe()
        os.set_inheritable(write, True)
        self.process = subprocess.Popen(
            [binary, *arguments, "--port=0", "--log-level=warning", f"--announce-fd={write}"], pass_fds=[write])
        os.close(write)
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
