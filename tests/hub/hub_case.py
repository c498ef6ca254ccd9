"""What the tests of models by name share: a home, a stub of the hub, and ways to run the binary against it."""

import concurrent.futures
import os
import subprocess
import sys
import tempfile
import threading
import unittest

from stub_hub import Repo, StubHub, tiny_llama

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WEIGHTS = "model.safetensors"
BINARY = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else ""


class HubTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = folder.name
        self.cache = os.path.join(self.home, "hub")
        self.repo = Repo(tiny_llama())
        self.hub = StubHub({"org/tiny": self.repo})
        self.addCleanup(self.hub.close)

    def environment(self, **more):
        env = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING", "SSL_CERT_"))}
        env.update({"HF_HOME": self.home, "HF_ENDPOINT": self.hub.endpoint, "no_proxy": "127.0.0.1", **more})
        return env

    def run_aisp(self, *args, cwd=None, timeout=60, **env):
        return subprocess.run([BINARY, *args], capture_output=True, text=True, timeout=timeout, env=self.environment(**env),
                              check=False, cwd=cwd)

    def pull(self, *args, **env):
        return self.run_aisp("pull", *(args or ("org/tiny",)), **env)

    def assert_pulled(self, ran):
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return ran.stdout.strip()

    def assert_refused(self, ran, *words):
        self.assertEqual(ran.returncode, 1, ran.stderr + ran.stdout)
        for word in words:
            self.assertIn(word, ran.stderr)

    def model_folder(self, repo="org/tiny"):
        return os.path.join(self.cache, "models--" + repo.replace("/", "--"))

    def blobs(self, repo="org/tiny"):
        folder = os.path.join(self.model_folder(repo), "blobs")
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []

    def fault(self, times=None, **which):
        """A fault for requests of a kind; for so many of them."""
        fault = which.pop("fault")
        left = [times]
        lock = threading.Lock()

        def ask(request):
            if any(getattr(request, key) != value for key, value in which.items()):
                return None
            with lock:
                if left[0] is None:
                    return fault
                left[0] -= 1
                return fault if left[0] >= 0 else None

        self.hub.faults.append(ask)


def run_together(most=4):
    """Runs the tests of the program, `most` at a time in processes of their own, since they wait far more than they compute. With
    names of tests as arguments only those, one by one. Ends the program."""
    module = sys.modules["__main__"]
    if len(sys.argv) > 1:
        unittest.main(module=module)
    names = [".".join(test.id().split(".")[-2:]) for case in unittest.defaultTestLoader.loadTestsFromModule(module) for test in case]

    def run(name):
        return name, subprocess.run([sys.executable, module.__file__, BINARY, name], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                    stderr=subprocess.STDOUT, text=True, check=False)

    with concurrent.futures.ThreadPoolExecutor(most) as pool:
        failed = [name for name, done in pool.map(run, names) if done.returncode != 0 and print(done.stdout) is None]
    print(f"{len(names)} tests, failed: {', '.join(failed) or 'none'}")
    sys.exit(1 if failed or not names else 0)
