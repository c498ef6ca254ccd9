#!/usr/bin/env python3
"""`aisp top` on a terminal of this test's own: what the screen shows is worked out by a terminal emulator from what was written.

Usage: top_test.py BINARY          (run by CTest through tests/e2e/python_test.py)
"""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import unittest
import urllib.request

import pyte

from served import House

BINARY = None
HOUSE = None


class Terminal:
    """`aisp top` on a pseudo-terminal, and the screen that a person would see."""

    def __init__(self, http, *flags, rows=24, columns=100):
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        self.written = b""
        self.master, slave = pty.openpty()
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.set_size(rows, columns)
        self.process = subprocess.Popen([BINARY, "top", "--router", f"http://{http}", *flags], stdin=slave, stdout=slave,
                                        stderr=slave, start_new_session=True,
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))

    def set_size(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(rows, columns)

    def read(self, seconds):
        """Feeds the screen with what comes within this time; whether anything came."""
        ready, _, _ = select.select([self.master], [], [], seconds)
        if not ready:
            return False
        try:
            data = os.read(self.master, 65536)
        except OSError:
            return False
        self.written += data
        self.stream.feed(data)
        return bool(data)

    def text(self):
        return "\n".join(line.rstrip() for line in self.screen.display)

    def await_true(self, condition, what, seconds=60):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"never {what}:\n{self.text()}")
            self.read(0.2)

    def await_text(self, pattern, seconds=60):
        self.await_true(lambda: re.search(pattern, self.text()), f"shown: {pattern}", seconds)

    def press(self, keys):
        os.write(self.master, keys.encode())

    def looks(self):
        """How often the screen was drawn."""
        return self.written.count(b"\x1b[H")

    def end(self, seconds=60):
        """Its exit code, once it has ended by itself."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            if time.monotonic() > deadline:
                raise AssertionError("it goes on:\n" + self.text())
            self.read(0.1)
        while self.read(0):
            pass
        return self.process.returncode

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


def complete(http, tokens):
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": tokens, "ignore_eos": True}).encode()
    urllib.request.urlopen(urllib.request.Request(f"http://{http}/v1/completions", body,
                                                  {"content-type": "application/json"}), timeout=60).read()


class Top(unittest.TestCase):
    def watch(self, *flags, **options):
        terminal = Terminal(HOUSE.admin, *flags, **options)
        self.addCleanup(terminal.close)
        terminal.await_text("q quits")
        return terminal

    def assert_given_back(self, terminal):
        self.assertTrue(terminal.written.rstrip().endswith(b"\x1b[?25h\x1b[?1049l"), terminal.written[-80:])
        self.assertEqual(termios.tcgetattr(terminal.slave), terminal.before)

    def test_shows_workers_queues_and_latencies_and_draws_again(self):
        terminal = self.watch("--interval=100")
        for pattern in (r"^aisp .* ready", r"tokens/s", r"TTFT p50", r"decode-0 +decode +ready", r"prefill-0 +prefill +ready"):
            self.assertRegex(terminal.text(), re.compile(pattern, re.M))
        self.assertIn(b"\x1b[?1049h", terminal.written)
        drawn = terminal.looks()
        terminal.await_true(lambda: terminal.looks() >= drawn + 3, "drawn again")
        complete(HOUSE.http, 40)
        terminal.await_text(r"last 10 s: [1-9][0-9.]* tokens/s")
        terminal.press("q")
        self.assertEqual(terminal.end(), 0)
        self.assert_given_back(terminal)

    def test_escape_and_the_signals_of_the_keyboard_end_it(self):
        for keys in ("\x1b", "\x03", "\x04"):  # Escape, Ctrl-C, Ctrl-D
            with self.subTest(keys):
                terminal = self.watch()
                terminal.press(keys)
                self.assertEqual(terminal.end(), 0)
                self.assert_given_back(terminal)

    def test_an_arrow_key_ctrl_z_and_other_keys_do_not_end_it(self):
        terminal = self.watch("--interval=3600000")
        for keys in ("\x1b[A", "x", "\x1a"):
            drawn = terminal.looks()
            terminal.press(keys)
            if keys != "\x1a":
                terminal.await_true(lambda: terminal.looks() > drawn, "drawn after a key")
        terminal.press("+")
        terminal.await_text(r"every 1800000 ms")
        self.assertIsNone(terminal.process.poll())

    def test_pace_and_pause(self):
        terminal = self.watch("--interval=400")
        terminal.press("+")
        terminal.await_text(r"every 200 ms")
        terminal.press("-")
        terminal.await_text(r"every 400 ms")
        terminal.press(" ")
        terminal.await_text(r"paused")
        self.assertFalse(terminal.read(1.5), "paused, and drawn again")
        terminal.press(" ")
        drawn = terminal.looks()
        terminal.await_true(lambda: terminal.looks() > drawn + 2, "going on")

    def test_a_new_size_is_used_at_once(self):
        terminal = self.watch("--interval=3600000", rows=30, columns=120)
        self.assertRegex(terminal.text(), r"KV in use +pid")
        terminal.set_size(6, 40)
        terminal.await_text(r"\d+ more lines")
        self.assertRegex(terminal.screen.display[0], r"^aisp ", "the first line is still there")
        self.assertRegex(terminal.screen.display[5], r"more lines")
        terminal.set_size(30, 120)
        terminal.await_text(r"KV in use +pid")
        self.assertNotIn("more lines", terminal.text())

    def test_sigterm_gives_the_terminal_back(self):
        terminal = self.watch("--interval=100")
        terminal.process.send_signal(signal.SIGTERM)
        self.assertEqual(terminal.end(), 0)
        self.assert_given_back(terminal)

    def test_it_ends_with_its_terminal(self):
        terminal = self.watch("--interval=100")
        process = terminal.process
        os.close(terminal.slave)
        os.close(terminal.master)
        terminal.master, terminal.slave = (os.open("/dev/null", os.O_RDWR) for _ in range(2))
        process.wait(timeout=20)


class Piped(unittest.TestCase):
    """Where the output is no terminal: plain text, one look after the other."""

    def test_plain_text(self):
        ran = subprocess.run([BINARY, "top", "--router", f"http://{HOUSE.admin}", "--count=3", "--interval=50"],
                             capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertNotIn("\x1b", ran.stdout)
        self.assertNotIn("q quits", ran.stdout)
        self.assertEqual(len(re.findall(r"^aisp .* ready", ran.stdout, re.M)), 3)

    def test_it_ends_when_nobody_reads_any_more(self):
        process = subprocess.Popen([BINARY, "top", "--router", f"http://{HOUSE.admin}", "--interval=50"], stdout=subprocess.PIPE)
        self.assertIn(b"aisp", process.stdout.readline())
        process.stdout.close()
        try:
            self.assertEqual(process.wait(timeout=30), 0)
        finally:
            process.kill()
            process.wait()


class Gone(unittest.TestCase):
    def test_a_router_that_ends_is_said(self):
        house = House(BINARY)
        terminal = Terminal(house.admin, "--interval=100")
        self.addCleanup(terminal.close)
        terminal.await_text(r"decode-0 +decode")
        house.stop()
        terminal.await_text(re.escape(house.admin))
        self.assertNotIn("decode-0", terminal.text())
        terminal.press("q")
        self.assertEqual(terminal.end(), 1, "what was last seen is trouble")


def main():
    global BINARY, HOUSE
    BINARY = os.path.abspath(sys.argv[1])
    HOUSE = House(BINARY)
    try:
        done = unittest.main(argv=sys.argv[:1], verbosity=2, exit=False)
    finally:
        HOUSE.stop()
    sys.exit(0 if done.result.wasSuccessful() else 1)


if __name__ == "__main__":
    main()
