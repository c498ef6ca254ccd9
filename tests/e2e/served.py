"""One process of the binary under test that does everything, on free ports, for the Python tests."""

import os
import subprocess
import urllib.request


class Served:
    """`http` and `grpc` are host:port. Ready to serve once constructed."""

    def __init__(self, binary, *flags):
        read, write = os.pipe()
        os.set_inheritable(write, True)
        self.process = subprocess.Popen(
            [binary, "serve", "--role=all", "--port=0", "--log-level=warning", f"--announce-fd={write}", *flags],
            pass_fds=[write])
        os.close(write)
        said = {}
        with os.fdopen(read) as lines:
            for line in lines:
                key, _, value = line.strip().partition("=")
                said.setdefault(key, []).append(value)
                if "ready" in said:
                    break
        if "ready" not in said:
            raise RuntimeError(f"the server did not start; it said {said}")
        self.http, self.grpc = said["http"][0], said["grpc"][0]

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def metric(http, name):
    """Sum over all label sets of a metric."""
    with urllib.request.urlopen(f"http://{http}/metrics") as answer:
        text = answer.read().decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
               if line.startswith((name + " ", name + "{")))
