"""Authorities and the certificates that they sign, made by openssl."""

import os
import subprocess


def openssl(*args):
    subprocess.run(["openssl", *args], check=True, capture_output=True)


def authority(folder, name):
    """A new authority's certificate and key."""
    certificate, key = (os.path.join(folder, f"{name}.{end}") for end in ("pem", "key"))
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out",
            certificate, "-subj", f"/CN={name}", "-days", "2", "-addext", "basicConstraints=critical,CA:TRUE")
    return certificate, key


def signed(folder, name, by, san, days=2):
    """A server's certificate that `by` signed, and its key."""
    certificate, key, request, extensions = (os.path.join(folder, f"{name}.{end}") for end in ("pem", "key", "csr", "ext"))
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", request, "-subj",
            f"/CN={name}")
    with open(extensions, "w", encoding="ascii") as file:
        file.write(f"subjectAltName={san}\n")
    openssl("x509", "-req", "-in", request, "-CA", by[0], "-CAkey", by[1], "-CAcreateserial", "-out", certificate, "-days",
            str(days), "-extfile", extensions)
    return certificate, key
