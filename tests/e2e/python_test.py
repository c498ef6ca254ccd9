#!/usr/bin/env python3
"""Runs a Python test of this folder against the built binary, in a virtual environment that it makes when it is not there yet.

Usage: python_test.py TEST.py BINARY VENV_FOLDER [REQUIREMENTS]

REQUIREMENTS: requirements.txt, or another file of this folder. Exits 77 (CTest: skipped) with the reason when the packages cannot
be had; trying takes at most AISP_INSTALL_LIMIT_S seconds (120) a step.
"""

import fcntl
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
INSTALL_LIMIT_S = int(os.environ.get("AISP_INSTALL_LIMIT_S", "120"))
TRY_AGAIN_S = 3600
SKIPPED = 77


def skip(reason):
    print("SKIPPED:", reason)
    sys.exit(SKIPPED)


def run(command, what):
    """Runs a step of the installation; why it failed, or None."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=INSTALL_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"{what} took longer than {INSTALL_LIMIT_S} s"
    except OSError as error:
        return f"{what}: {error}"
    last = done.stdout.strip().splitlines()[-1:] or ["no output"]
    return None if done.returncode == 0 else f"{what} failed: {last[0]}"


def install(folder, requirements):
    """Makes the environment unless one for these requirements is there; why not, or None."""
    with open(requirements, encoding="utf-8") as file:
        wanted = file.read()
    for name, use in (("installed", lambda text, age: (text == wanted, None)),
                      ("failed", lambda text, age: (age < TRY_AGAIN_S, text))):
        try:
            path = os.path.join(folder, name)
            with open(path, encoding="utf-8") as file:
                known, answer = use(file.read(), time.time() - os.path.getmtime(path))
            if known:
                return answer
        except OSError:
            pass
    python = os.path.join(folder, "bin", "python")
    why = run([sys.executable, "-m", "venv", "--clear", os.path.join(folder)], "making a virtual environment")
    # uv, because pip takes minutes to choose versions of so many packages.
    why = why or run([python, "-m", "pip", "install", "--quiet", "--only-binary=:all:", "--timeout=10", "--retries=1",
                      "--disable-pip-version-check", "uv"], "installing uv")
    why = why or run([python, "-m", "uv", "pip", "install", "--quiet", "--python", python, "--only-binary=:all:",
                      "-r", requirements], "installing " + os.path.basename(requirements))
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "failed" if why else "installed"), "w", encoding="utf-8") as file:
        file.write(why or wanted)
    return why


def main():
    test, binary, folder = sys.argv[1:4]
    requirements = os.path.join(HERE, sys.argv[4] if len(sys.argv) > 4 else "requirements.txt")
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    with open(folder + ".lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # CTest may run several of these at once
        why = install(folder, requirements)
    if why:
        skip(why)
    python = os.path.join(folder, "bin", "python")
    os.execv(python, [python, os.path.join(HERE, test), binary])


if __name__ == "__main__":
    main()
