#!/usr/bin/env python3
"""The router's page in headless Chromium, driven by chromedriver over plain HTTP, against a live house.

Usage: page_test.py BINARY [SCREENSHOT.png]
Exits 77 (CTest: skipped) where chromium or chromedriver is not installed; tools/install_deps.sh --dev installs both.
"""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import unittest
import urllib.error
import urllib.request

from served import House

BINARY = None
SCREENSHOT = None
HOUSE = None
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # WebDriver's name for a reference


class Browser:
    """A session of headless Chromium; `call` is WebDriver's HTTP interface."""

    def __init__(self, dark=False, size=(1200, 900)):
        self.driver = subprocess.Popen([shutil.which("chromedriver"), "--port=0"], stdout=subprocess.PIPE, text=True)
        for line in self.driver.stdout:
            found = re.search(r"on port (\d+)", line)
            if found and found[1] != "0":
                self.base = f"http://127.0.0.1:{found[1]}"
                break
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                     f"--window-size={size[0]},{size[1]}"]
        if dark:
            arguments.append("--blink-settings=preferredColorScheme=0")
        options = {"binary": shutil.which("chromium"), "args": arguments}
        answer = self.raw("POST", "/session", {"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}})
        self.session = f"/session/{answer['sessionId']}"

    def raw(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"content-type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from error

    def call(self, method, path, body=None):
        return self.raw(method, self.session + path, body)

    def open(self, url):
        self.call("POST", "/url", {"url": url})

    def run(self, script, *arguments):
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, element_id):
        return self.run("return document.getElementById(arguments[0]).textContent", element_id)

    def await_true(self, script, seconds=60):
        deadline = time.monotonic() + seconds
        while not self.run(script):
            if time.monotonic() > deadline:
                raise AssertionError(f"never true: {script}\n{self.run('return document.body.innerText')}")
            time.sleep(0.05)

    def keys(self, text):
        active = self.call("GET", "/element/active")[ELEMENT]
        self.call("POST", f"/element/{active}/value", {"text": text})

    def errors(self):
        return [entry["message"] for entry in self.call("POST", "/se/log", {"type": "browser"})
                if entry["level"] == "SEVERE"]

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("GET", "/screenshot")))

    def close(self):
        try:
            self.call("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait(timeout=20)
            self.driver.stdout.close()


WORKERS_ARE_THERE = "return document.querySelectorAll('#workers tbody th').length === 2"
ANSWERED = "return !document.getElementById('facts').hidden && document.getElementById('spans').children.length > 0"


def put_load_on(http, seconds):
    """Something to see in a picture: prompts of many lengths from three clients."""
    end = time.monotonic() + seconds

    def client(number):
        turn = 0
        while time.monotonic() < end:
            turn += 1
            prompt = f"Story {number} {turn}. " + "A fox met a duck on the old bridge. " * (1 + 7 * turn % 30)
            body = {"prompt": prompt, "max_tokens": 20 + 11 * turn % 90, "ignore_eos": True}
            request = urllib.request.Request(f"http://{http}/v1/completions", json.dumps(body).encode(),
                                             {"content-type": "application/json",
                                              **({"x-aisp-prefill": "remote"} if number == 0 else {})})
            urllib.request.urlopen(request, timeout=60).read()

    clients = [threading.Thread(target=client, args=(n,)) for n in range(3)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()


class Page(unittest.TestCase):
    def browse(self, **options):
        browser = Browser(**options)
        self.addCleanup(browser.close)
        browser.open(f"http://{HOUSE.admin}/")
        return browser

    def test_shows_workers_and_streams_a_completion_with_its_parts(self):
        browser = self.browse(size=(1200, 1800 if SCREENSHOT else 1500))
        browser.await_true(WORKERS_ARE_THERE)
        self.assertEqual(browser.text("state"), "ready")
        self.assertIn("prefill-0", browser.text("workers"))
        browser.run("document.getElementById('prefill').value = 'remote'; document.getElementById('send').click()")
        browser.await_true("return document.getElementById('answer').textContent.length > 0")
        browser.await_true(ANSWERED, 60)
        self.assertIn("reason=forced-remote", browser.text("fact-route"))
        self.assertIn("prefill=prefill-0", browser.text("fact-taken"))
        widths = browser.run("return [...document.querySelectorAll('#parts span')].map(b => parseFloat(b.style.width))")
        self.assertEqual(len(widths), 5)
        self.assertAlmostEqual(sum(widths), 100, delta=1)
        spans = browser.text("spans")
        for name in ("receive", "route", "prefill", "chunk", "transfer", "decode", "stream"):
            self.assertIn(name, spans)
        browser.await_true("return document.getElementById('moves').textContent.includes('decode-0')")
        browser.await_true("return parseFloat(document.getElementById('now-tokens').textContent) > 0")
        browser.await_true("return document.querySelector('#chart-tokens path').getAttribute('d').length > 100")
        self.assertEqual(browser.errors(), [])
        if SCREENSHOT:
            put_load_on(HOUSE.http, seconds=100)
            # A different message: the first one's prompt is cached by now, so it would need no
            # hand-off.
            browser.run("document.getElementById('prompt').value = 'Tell me a story about a duck, a kite and a kind old goat.';"
                        "document.getElementById('send').click()")
            browser.await_true("return document.getElementById('send').disabled")
            browser.await_true(ANSWERED, 60)
            browser.screenshot(SCREENSHOT)

    def test_asks_nobody_but_its_own_router(self):
        browser = self.browse()
        browser.await_true(WORKERS_ARE_THERE)
        names = browser.run("return performance.getEntriesByType('resource').map(e => e.name)")
        self.assertTrue(names)
        for name in names:
            self.assertTrue(name.startswith(f"http://{HOUSE.admin}/"), name)

    def test_works_by_keyboard_alone(self):
        browser = self.browse()
        browser.await_true(WORKERS_ARE_THERE)
        focus = "return document.activeElement.id || document.activeElement.className"
        seen = []
        for _ in range(12):
            browser.keys("\ue004")  # Tab
            seen.append(browser.run(focus))
            if seen[-1] == "send":
                break
        for wanted in ("skip", "prompt", "endpoint", "max-tokens", "temperature", "send"):
            self.assertIn(wanted, seen)
        browser.run("document.getElementById('max-tokens').value = 8")
        browser.keys("\ue007")  # Enter
        browser.await_true(ANSWERED, 60)

    def test_every_control_and_picture_has_a_name(self):
        browser = self.browse()
        browser.await_true(WORKERS_ARE_THERE)
        nameless = browser.run("""
            return [...document.querySelectorAll('input, select, textarea, button, svg[role=img], meter')]
              .filter(e => !(e.getAttribute('aria-label') || (e.labels && e.labels.length) || e.textContent.trim()))
              .map(e => e.outerHTML)""")
        self.assertEqual(nameless, [])
        self.assertEqual(browser.run("return document.documentElement.lang"), "en")
        self.assertEqual(browser.run("return document.querySelectorAll('h1').length"), 1)
        self.assertEqual(browser.run("return document.getElementById('answer').getAttribute('aria-live')"), "polite")

    def test_fits_a_phone(self):
        browser = self.browse(size=(500, 900))
        browser.call("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": {
            "width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}})
        browser.open(f"http://{HOUSE.admin}/")
        browser.await_true(WORKERS_ARE_THERE)
        self.assertEqual(browser.run("return window.innerWidth"), 360)
        self.assertLessEqual(browser.run("return document.documentElement.scrollWidth"), 360)

    def test_light_and_dark_are_readable(self):
        browser = self.browse()
        backs = []
        for scheme in ("light", "dark"):
            browser.call("POST", "/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {
                "features": [{"name": "prefers-color-scheme", "value": scheme}]}})
            contrasts = browser.run("""
                const probe = document.createElement('canvas').getContext('2d');
                const luminance = (color) => {
                  probe.fillStyle = color; probe.fillRect(0, 0, 1, 1);
                  const [r, g, b] = [...probe.getImageData(0, 0, 1, 1).data].map(v => v / 255)
                    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
                  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
                };
                const style = getComputedStyle(document.documentElement);
                const back = luminance(style.getPropertyValue('--panel'));
                return ['--text', '--quiet', '--a', '--b', '--good', '--bad', '--wait'].map(name => {
                  const front = luminance(style.getPropertyValue(name));
                  return [name, (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05)];
                }).concat([['back', back]])""")
            backs.append(contrasts.pop()[1])
            for name, contrast in contrasts:
                self.assertGreaterEqual(contrast, 4.5, f"{name} in {scheme}")
        self.assertGreater(backs[0], 0.8)
        self.assertLess(backs[1], 0.1)

    def test_an_error_of_the_server_is_shown(self):
        browser = self.browse()
        browser.await_true(WORKERS_ARE_THERE)
        browser.run("document.getElementById('max-tokens').value = 99999; document.getElementById('send').click()")
        browser.await_true("return document.getElementById('answer').classList.contains('error')")
        self.assertIn("99999", browser.text("answer"))


class PageWithKey(unittest.TestCase):
    def test_workers_are_shown_to_who_has_the_key(self):
        key = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"aisp-page-key-{os.getpid()}")
        with open(key, "w", encoding="utf-8") as file:
            file.write("sesame\n")
        self.addCleanup(os.unlink, key)
        house = House(BINARY, "--admin=key", f"--admin-key-file={key}")
        self.addCleanup(house.stop)
        browser = Browser()
        self.addCleanup(browser.close)
        browser.open(f"http://{house.admin}/")
        browser.await_true("return !document.getElementById('key-form').hidden")
        self.assertEqual(browser.run("return document.querySelectorAll('#workers tbody th').length"), 0)
        browser.run("document.getElementById('admin-key').focus()")
        browser.keys("sesame\ue007")
        browser.await_true(WORKERS_ARE_THERE)
        self.assertTrue(browser.run("return document.getElementById('key-form').hidden"))


def main():
    global BINARY, SCREENSHOT, HOUSE
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            print(f"SKIPPED: {program} is not installed (tools/install_deps.sh --dev)")
            sys.exit(77)
    BINARY = sys.argv[1]
    SCREENSHOT = sys.argv[2] if len(sys.argv) > 2 else None
    HOUSE = House(BINARY)
    try:
        done = unittest.main(argv=sys.argv[:1], verbosity=2, exit=False)
    finally:
        HOUSE.stop()
    sys.exit(0 if done.result.wasSuccessful() else 1)


if __name__ == "__main__":
    main()
