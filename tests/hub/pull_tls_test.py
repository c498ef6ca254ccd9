#!/usr/bin/env python3
"""`aisp pull` over https: whose certificates it trusts, and what it says about others.

Usage: pull_tls_test.py BINARY [unittest's arguments]
"""

import os
import time
import unittest

from hub_case import WEIGHTS, HubTest
from hub_certificates import authority, signed
from stub_hub import StubHub


class OverTls(HubTest):
    def setUp(self):
        super().setUp()
        self.right = authority(self.home, "right")
        self.wrong = authority(self.home, "wrong")

    def serve(self, san="IP:127.0.0.1", days=2):
        hub = StubHub({"org/tiny": self.repo}, certificate=signed(self.home, "server", self.right, san, days))
        self.addCleanup(hub.close)
        self.hub = hub

    def assert_not_trusted(self, ran, *words):
        self.assert_refused(ran, "its certificate is not trusted", "SSL_CERT_FILE", *words)
        self.assertEqual(self.hub.seen(), [], "nothing was asked, and no token sent")
        self.assertEqual(self.blobs(), [])

    def test_the_right_authority_is_trusted_here_and_where_the_weights_lie(self):
        self.serve()
        folder = self.assert_pulled(self.pull(SSL_CERT_FILE=self.right[0]))
        with open(os.path.join(folder, WEIGHTS), "rb") as file:
            self.assertEqual(file.read(), self.repo.files[WEIGHTS])
        self.assertTrue(self.hub.seen("GET", "cdn"), "the weights came from the other host, over https")

    def test_another_authority_is_refused_at_once(self):
        self.serve()
        begin = time.monotonic()
        ran = self.pull(SSL_CERT_FILE=self.wrong[0], HF_TOKEN="hf_secret")
        self.assertLess(time.monotonic() - begin, 5, "trying again would not help")
        self.assert_not_trusted(ran, self.hub.endpoint, self.wrong[0])
        self.assertNotIn("hf_secret", ran.stderr)

    def test_the_system_does_not_know_the_authority(self):
        self.serve()
        self.assert_not_trusted(self.pull(), "the system's")

    def test_a_certificate_of_another_host_is_refused(self):
        self.serve(san="DNS:elsewhere.example")
        self.assert_not_trusted(self.pull(SSL_CERT_FILE=self.right[0]), "127.0.0.1")

    def test_a_file_of_authorities_that_is_not_there_is_named(self):
        self.serve()
        self.assert_not_trusted(self.pull(SSL_CERT_FILE="/no/such.pem"), "/no/such.pem")

    def test_https_never_turns_into_http(self):
        self.serve()
        self.hub.scheme = "http"  # where it redirects
        ran = self.pull(SSL_CERT_FILE=self.right[0], HF_ENDPOINT=self.hub.endpoint.replace("http:", "https:"))
        self.assert_refused(ran, "which is not https")


if __name__ == "__main__":
    unittest.main()
