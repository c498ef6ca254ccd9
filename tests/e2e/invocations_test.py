"""What somebody who mistypes a command reads: one line that names the value and the way out, and an exit code that is not 0.

Usage: invocations_test.py BINARY. Python's own library alone.
"""

import os
import socket
import subprocess
import sys
import tempfile
import unittest

BINARY = sys.argv.pop(1)
WRONG_USE = 2
FAILED = 1


def run(*args):
    return subprocess.run([BINARY, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)


class Invocations(unittest.TestCase):
    def assert_refused(self, code, args, *parts):
        """`args` end with `code` and say one line, with all of `parts` in it."""
        ran = run(*args)
        self.assertEqual(ran.returncode, code, ran)
        said = ran.stderr.strip().splitlines()
        self.assertEqual(len(said), 1, said)
        for part in parts:
            self.assertIn(part, said[0])

    def test_without_a_command_the_commands_are_listed(self):
        ran = run()
        self.assertEqual(ran.returncode, WRONG_USE)
        self.assertIn("aisp serve", ran.stderr + ran.stdout)
        self.assertEqual(run("--help").returncode, 0)

    def test_names_that_are_not_known(self):
        self.assert_refused(WRONG_USE, ["sevre"], "aisp: unknown command 'sevre'", "serve", "aisp --help")
        self.assert_refused(WRONG_USE, ["serve", "--modle", "x"], "'--modle'", "did you mean --model.path (--model)?")
        self.assert_refused(WRONG_USE, ["up", "--nope"], "'--nope'", "--help lists")
        self.assert_refused(WRONG_USE, ["serve", "--role", "both"], "'both'", "all, split, router, prefill, decode")
        self.assert_refused(WRONG_USE, ["generate"], "one prompt", "aisp generate")

    def test_output_that_cannot_be_written_is_a_failure_and_a_reader_that_leaves_is_none(self):
        for args in (["--help"], ["info"], ["serve", "--print-config"], ["generate", "Tell me a story.", "--max-tokens", "3"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                ran = subprocess.run([BINARY, *args], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
            self.assertEqual(ran.returncode, FAILED, (args, ran))
            self.assertIn("the output could not be written whole", ran.stderr)
            reader, writer = os.pipe()
            os.close(reader)
            ran = subprocess.run([BINARY, *args], stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
            os.close(writer)
            self.assertEqual((ran.returncode, ran.stderr), (0, ""), args)

    def test_values_out_of_their_range(self):
        self.assert_refused(WRONG_USE, ["serve", "--port", "99999"], "99999", "0 to 65535")
        self.assert_refused(WRONG_USE, ["serve", "--port", "abc"], "'abc'", "whole number")
        self.assert_refused(WRONG_USE, ["serve", "--port"], "--port wants a value")

    def test_config_files(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "aisp.yaml")
            for text, part in (("http:\n  prot: 1\n", "did you mean http.port"), ("foo: 1\n", "unknown key 'foo'"), ("port: [", "end of sequence")):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                self.assert_refused(WRONG_USE, ["serve", "--config", path], path, part)
            self.assert_refused(WRONG_USE, ["serve", "--config", path + "x"], path + "x", "No such file")
            self.assert_refused(WRONG_USE, ["serve", "--config", folder], folder, "directory")
            with open(path, "w", encoding="utf-8"):
                pass
            self.assertEqual(run("serve", "--config", path, "--print-config").returncode, 0, "an empty file is all defaults")

    def test_a_folder_without_a_model(self):
        with tempfile.TemporaryDirectory() as folder:
            # `up` prints it once, not through each of its processes.
            for command in (["serve", "--port=0"], ["up", "--port=0"], ["generate", "hello"], ["info"]):
                self.assert_refused(FAILED, [*command, "--model=" + folder], folder, "--model", "config.json: No such file")
            self.assert_refused(FAILED, ["serve", "--port=0", "--model=" + folder + "/none"], folder + "/none", "is not a folder")

    def test_a_shipped_model_is_known_by_its_name(self):
        for command in (["info", "story-7m"], ["info", "--model=story-7m"]):
            ran = run(*command)
            self.assertEqual(ran.returncode, 0, ran)
            self.assertTrue(ran.stdout.startswith("story-7m ("), ran.stdout)
        self.assert_refused(FAILED, ["info", "story-8m"], "'story-8m' is not a folder", "story-7m")
        self.assert_refused(FAILED, ["info", "../models"], "'../models' is not a folder")

    def test_a_port_that_another_program_has(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            for command in ("serve", "up"):
                ran = run(command, f"--port={port}")
                self.assertEqual(ran.returncode, FAILED, ran)
                last = ran.stderr.strip().splitlines()[-1]
                self.assertIn(f"127.0.0.1:{port}: Address already in use", last)
                self.assertIn("--port N, or 0 for a free one", last)


if __name__ == "__main__":
    unittest.main()
