#!/usr/bin/env python3
"""Runs the bundle as its container image would, on machines without a container engine.

It runs in a fresh read-only root file system, in its own mount, network, PID, IPC and host-name
namespaces, as the image's user, without any capability. The program, its user and its folder come
from deploy/container/Containerfile.

  tools/container_check.py BUNDLE.tar.gz              a root of this machine's glibc and nothing else: seconds
  tools/container_check.py BUNDLE.tar.gz --debian     Debian 12 as mmdebstrap makes it (minbase), as the image's base is

Checks that the payload is small (below 60 MB unpacked, without what the base image has already);
that `aisp pull` trusts exactly the authorities in the image's certificates; that aisp starts as PID
1, finds its model and answers; that it has no capability and cannot write to its root; that it
reads its configuration from a mounted file; and that on SIGTERM it finishes a running stream and
exits with 0. Exit code 77 where namespaces cannot be made (not root, or forbidden).
"""

import glob
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIMIT_BYTES = 35 * 1000 * 1000  # compressed
UNPACKED_LIMIT_BYTES = 60 * 1000 * 1000
# Packages that every Debian 12 has, because apt and dpkg need them; --debian verifies this.
BASE_PACKAGES = ("libgnutls30", "libunistring2", "libp11-kit0", "libstdc++6", "libgcc-s1", "libzstd1", "libgmp10", "libnettle8",
                 "libhogweed6", "libidn2-0", "libpcre2-8-0", "libxxhash0", "zlib1g", "libtasn1-6", "libffi8")
LIBRARIES = "usr/lib/x86_64-linux-gnu"
CLIENT = r"""
import http.client, json, sys
connection = http.client.HTTPConnection("127.0.0.1", 8080, timeout=60)
method, path, body = sys.argv[1:4]
connection.request(method, path, body or None, {"content-type": "application/json"})
answer = connection.getresponse()
print(answer.status)
print(answer.read().decode())
"""


def containerfile():
    """User, folder, entry point, command and certificates of the image's last stage."""
    with open(os.path.join(ROOT, "deploy", "container", "Containerfile"), encoding="utf-8") as file:
        stage = file.read().rsplit("\nFROM ", 1)[1]
    word = lambda name: re.search(rf"^{name} (.*)$", stage, re.M).group(1)
    return {"user": word("USER"), "folder": word("WORKDIR"), "command": json.loads(word("ENTRYPOINT")) + json.loads(word("CMD")),
            "target": re.search(r"^COPY --from=build /out (\S+)$", stage, re.M).group(1),
            "certificates": re.search(r"^COPY --from=build \S+\.crt (\S+)$", stage, re.M).group(1)}


def minimal_root(root):
    """glibc, the libraries of Debian's package manager, and the few files that every image has."""
    for folder in ("lib64", LIBRARIES, "etc", "proc", "tmp", "dev", "sys"):
        os.makedirs(os.path.join(root, folder))
    os.symlink("usr/lib", os.path.join(root, "lib"))
    for package in BASE_PACKAGES:
        files = subprocess.run(["dpkg", "-L", package], capture_output=True, text=True, check=True).stdout.split()
        for path in files:
            if re.fullmatch(r"(/usr)?/lib/x86_64-linux-gnu/[^/]+\.so\.[^/]+", path):
                shutil.copy(path, os.path.join(root, LIBRARIES))
    for name in ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libresolv.so.2", "libnss_files.so.2",
                 "libnss_dns.so.2", "libanl.so.1", "libutil.so.1"):
        for path in glob.glob(f"/lib/x86_64-linux-gnu/{name}"):
            shutil.copy(path, os.path.join(root, "lib/x86_64-linux-gnu"))
    shutil.copy("/lib64/ld-linux-x86-64.so.2", os.path.join(root, "lib64"))
    for name, text in (("passwd", "root:x:0:0::/:/\n"), ("hosts", "127.0.0.1 localhost\n"), ("nsswitch.conf", "hosts: files dns\n")):
        with open(os.path.join(root, "etc", name), "w", encoding="utf-8") as file:
            file.write(text)


def debian_root(root):
    if not shutil.which("mmdebstrap"):
        sys.exit("container_check.py: --debian wants mmdebstrap (apt-get install mmdebstrap)")
    subprocess.run(["mmdebstrap", "--variant=minbase", "--mode=root", "bookworm", root], check=True)


def payload_bytes(folder):
    return sum(os.lstat(os.path.join(path, name)).st_size for path, _, names in os.walk(folder) for name in names)


def layer_bytes(folder):
    """The compressed layer's size: what a registry keeps and a node pulls."""
    packed = subprocess.Popen(["tar", "-C", folder, "-cz", "."], stdout=subprocess.PIPE)
    size = 0
    while chunk := packed.stdout.read(1 << 20):
        size += len(chunk)
    packed.stdout.close()
    assert packed.wait() == 0
    return size


def unpack(bundle, root, target):
    """Unpacks as the Containerfile does: the bundle without its documents and without libraries
    that the base has."""
    os.makedirs(target)
    subprocess.run(["tar", "-xzf", bundle, "-C", target, "--strip-components=1", "--no-same-owner"], check=True)
    for name in ("docs", "deploy", "proto"):
        shutil.rmtree(os.path.join(target, name))
    for path in glob.glob(os.path.join(target, "*.md")):
        os.remove(path)
    for name in os.listdir(os.path.join(root, LIBRARIES)):
        if os.path.lexists(path := os.path.join(target, "lib", name)):
            os.remove(path)


class Container:
    """The image's command in its own namespaces. `mounts`: folders that are mounted read-only.
    `network`: a namespace of its own."""

    def __init__(self, root, image, command, mounts=(), environment=None, network=True):
        user, _, group = image["user"].partition(":")
        binds = "".join(f"mount --bind {source} {root}{target} && mount -o remount,bind,ro {root}{target}\n"
                        for source, target in mounts)
        script = f"""set -e
mount --make-rprivate /
{"ip link set lo up" if network else ""}
mount --bind {root} {root}
{binds}mount -t proc proc {root}/proc
mount -t tmpfs -o size=64m,mode=1777 tmpfs {root}/tmp
mount -t tmpfs -o size=64k,mode=755 tmpfs {root}/dev
for device in null zero urandom; do : > {root}/dev/$device; mount --bind /dev/$device {root}/dev/$device; done
ln -s /proc/self/fd {root}/dev/fd
mount -o remount,bind,ro {root}
"""
        # Drops all privileges, and every way to get one (prctl 38: no new privileges).
        inner = ("import os, sys, ctypes; libc = ctypes.CDLL(None); os.chroot(sys.argv[1]); os.chdir(sys.argv[2]); os.setgroups([]); "
                 f"os.setgid({group}); os.setuid({user}); "
                 "libc.prctl(38, 1, 0, 0, 0); "
                 f"os.execve(sys.argv[3], sys.argv[3:], {{'PATH': sys.argv[3].rsplit('/', 1)[0], **{environment or {}!r}}})")
        script += shlex.join(["exec", sys.executable, "-c", inner, root, image["folder"], *command])
        self.log = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen(["unshare", "--mount", *(["--net"] if network else []), "--pid", "--ipc", "--uts", "--fork", "--kill-child", "sh", "-c",
                                         script], stdout=self.log, stderr=self.log)

    def pid(self):
        """The process id of the program outside its namespace: the child of unshare."""
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children", encoding="ascii") as file:
            children = file.read().split()
        return int(children[0]) if children else None

    def ask(self, method, path, body=""):
        """Status and text of a request that is sent from inside its network."""
        done = subprocess.run(["nsenter", f"--net=/proc/{self.pid()}/ns/net", sys.executable, "-c", CLIENT, method, path, body],
                              capture_output=True, text=True, check=False)
        status, _, text = done.stdout.partition("\n")
        return int(status or 0), text

    def await_ready(self, seconds=60):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            if self.pid() and self.ask("GET", "/ready")[0] == 200:
                return
            time.sleep(0.3)
        raise AssertionError("it was never ready:\n" + self.said())

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def stop(self, seconds=30):
        """Sends SIGTERM to the program; returns its exit code."""
        os.kill(self.pid(), 15)
        return self.process.wait(timeout=seconds)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.log.close()


def status_of(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)


def check_image(root, image):
    """The image's own command."""
    box = Container(root, image, image["command"])
    try:
        box.await_ready()
        status = status_of(box.pid())
        user = image["user"].partition(":")[0]
        assert set(status["Uid"].split()) == {user}, status["Uid"]
        assert int(status["CapEff"], 16) == 0 and status["NoNewPrivs"] == "1", status
        assert status["NSpid"].split()[-1] == "1", "it is PID 1 in there"
        writable = subprocess.run(["nsenter", f"--mount=/proc/{box.pid()}/ns/mnt", "sh", "-c", f"touch {root}/opt/x"],
                                  capture_output=True, text=True, check=False)
        assert writable.returncode != 0 and "Read-only" in writable.stderr, writable
        code, text = box.ask("POST", "/v1/completions", json.dumps({"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0}))
        assert code == 200 and json.loads(text)["usage"]["completion_tokens"] == 16, text
        answers = []
        body = json.dumps({"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "stream": True})
        client = threading.Thread(target=lambda: answers.append(box.ask("POST", "/v1/completions", body)))
        client.start()
        deadline = time.monotonic() + 20
        while "aisp_num_requests_running{" not in (metrics := box.ask("GET", "/metrics")[1]) or not re.search(
                r"^aisp_num_requests_running\{.*\} [1-9]", metrics, re.M):
            assert time.monotonic() < deadline, "the stream never ran"
        assert box.stop() == 0, box.said()
        client.join()
        code, text = answers[0]
        assert code == 200 and text.rstrip().endswith("data: [DONE]"), "the stream was cut by SIGTERM: ..." + text[-200:]
    finally:
        box.kill()


def check_supervisor(root, image):
    """`aisp up` as PID 1, as in deploy/gpu-node: several processes, one SIGTERM."""
    box = Container(root, image, [image["command"][0], "up", "--host=0.0.0.0", "--port=8080", "--prefill=1", "--decode=1"])
    try:
        box.await_ready()
        inside = subprocess.run(["nsenter", f"--pid=/proc/{box.pid()}/ns/pid", f"--mount=/proc/{box.pid()}/ns/mnt", "sh", "-c",
                                 f"ls {root}/proc | grep -c '^[0-9]'"], capture_output=True, text=True, check=False)
        assert int(inside.stdout) >= 4, f"router, two workers and the supervisor: {inside.stdout}"
        code, text = box.ask("POST", "/v1/completions", json.dumps({"prompt": "Once upon a time", "max_tokens": 8}))
        assert code == 200, text
        assert box.stop() == 0, box.said()
    finally:
        box.kill()


def check_mounted_configuration(root, image):
    """Runs it as a pod: config/kubernetes-*.yaml mounted at /etc/aisp, and a worker's flags from
    the pod's own fields."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        for path in glob.glob(os.path.join(ROOT, "config", "kubernetes-*.yaml")):
            shutil.copy(path, os.path.join(folder, os.path.basename(path)[len("kubernetes-"):]))
        os.makedirs(os.path.join(root, "etc/aisp"), exist_ok=True)
        box = Container(root, image, [image["command"][0], "serve", "--config=/etc/aisp/router.yaml"], [(folder, "/etc/aisp")])
        try:
            deadline = time.monotonic() + 30
            while not (box.pid() and box.ask("GET", "/health")[0] == 200):
                assert time.monotonic() < deadline and box.process.poll() is None, box.said()
                time.sleep(0.1)
            assert box.ask("GET", "/ready")[0] == 503, "no worker has registered"
            assert box.stop() == 0, box.said()
        finally:
            box.kill()


def check_certificates(root, image):
    """aisp uses exactly the image's certificate file: a hub that none of its authorities signed is
    refused."""
    sys.path.insert(0, os.path.join(ROOT, "tests", "hub"))
    from hub_certificates import authority, signed
    from stub_hub import Repo, StubHub, tiny_llama
    path = root + image["certificates"]
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open("/etc/ssl/certs/ca-certificates.crt", encoding="ascii") as file:
        system = file.read()
    with tempfile.TemporaryDirectory() as folder:
        ours = authority(folder, "ours")
        hub = StubHub({"org/tiny": Repo(tiny_llama())}, certificate=signed(folder, "server", ours, "IP:127.0.0.1"))
        with open(ours[0], encoding="ascii") as file:
            cases = ((system, 1, "its certificate is not trusted"), (system + file.read(), 0, "snapshots"))
        for trusted, code, words in cases:
            with open(path, "w", encoding="ascii") as file:
                file.write(trusted)
            box = Container(root, image, [image["command"][0], "pull", "org/tiny"], network=False,
                            environment={"HF_ENDPOINT": hub.endpoint, "HF_HOME": "/tmp/hf"})
            try:
                assert box.process.wait(timeout=60) == code and words in box.said(), box.said()
            finally:
                box.kill()
        hub.close()
    with open(path, "w", encoding="ascii") as file:
        file.write(system)


def main():
    arguments = [a for a in sys.argv[1:] if a != "--debian"]
    if len(arguments) != 1:
        sys.exit(__doc__)
    probe = subprocess.run(["unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "ip", "link", "set", "lo", "up"],
                           capture_output=True, text=True, check=False) if os.geteuid() == 0 else None
    if probe is None or probe.returncode != 0:
        print("SKIPPED: no namespaces here:", "not root" if probe is None else probe.stderr.strip())
        sys.exit(77)
    image = containerfile()
    with tempfile.TemporaryDirectory(prefix="aisp_root_") as folder:
        os.chmod(folder, 0o755)
        root = os.path.join(folder, "root")
        os.mkdir(root, 0o755)
        debian_root(root) if "--debian" in sys.argv else minimal_root(root)
        target = root + image["target"]
        unpack(arguments[0], root, target)
        size, unpacked = layer_bytes(target), payload_bytes(target)
        print(f"payload of the image: {size / 1e6:.1f} MB as it is pulled (compressed), {unpacked / 1e6:.1f} MB unpacked")
        assert size < LIMIT_BYTES, f"more than {LIMIT_BYTES / 1e6:.0f} MB to pull"
        assert unpacked < UNPACKED_LIMIT_BYTES, f"more than {UNPACKED_LIMIT_BYTES / 1e6:.0f} MB unpacked"
        check_certificates(root, image)
        print("aisp pull: trusts over https whom the image's certificates name, and nobody else")
        check_image(root, image)
        print(f"{' '.join(image['command'])}: served, and stopped on SIGTERM after its last stream")
        check_supervisor(root, image)
        print("aisp up: served with a process for each role, and stopped on SIGTERM")
        check_mounted_configuration(root, image)
        print("a mounted configuration is found")


if __name__ == "__main__":
    main()
