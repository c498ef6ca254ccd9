#!/usr/bin/env python3
"""Writes the files in deploy/ that are generated from others, so that each setting has one source:

deploy/base/10-config.yaml              the ConfigMap, from config/kubernetes-*.yaml
deploy/aisp.yaml                        deploy/base in one file, for `kubectl apply -f deploy/`
deploy/optional/prometheus-rules.yaml   deploy/prometheus/rules/*.yaml as a PrometheusRule

tools/render_deploy.py            writes them
tools/render_deploy.py --check    exit 1 and the names of files that are not up to date
"""

import glob
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def paths(pattern):
    return sorted(os.path.relpath(path, ROOT) for path in glob.glob(os.path.join(ROOT, pattern)))


def indented(text, spaces):
    return "".join(" " * spaces + line + "\n" if line else "\n" for line in text.splitlines())


def config_map():
    out = """# From config/kubernetes-*.yaml, by tools/render_deploy.py: change it there.
apiVersion: v1
kind: ConfigMap
metadata:
  name: aisp-config
  namespace: aisp
  labels: {app.kubernetes.io/name: aisp}
data:
"""
    for path in paths("config/kubernetes-*.yaml"):
        name = os.path.basename(path)[len("kubernetes-"):]
        out += f"  {name}: |\n" + indented(read(path), 4)
    return out


def whole():
    out = "# deploy/base in one file, by tools/render_deploy.py: change it there.\n"
    for path in paths("deploy/base/[0-9]*.yaml"):
        text = config_map() if path.endswith("/10-config.yaml") else read(path)
        out += "---\n" + text
    return out


def prometheus_rules():
    out = """# For the Prometheus operator: deploy/prometheus/rules as a PrometheusRule, by tools/render_deploy.py. Change it there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: aisp
  namespace: aisp
  labels: {app.kubernetes.io/name: aisp}
spec:
  groups:
"""
    for path in paths("deploy/prometheus/rules/*.yaml"):
        body = read(path).split("groups:\n", 1)[1]
        out += indented(body, 2)
    return out


RENDERED = {
    "deploy/base/10-config.yaml": config_map,
    "deploy/aisp.yaml": whole,
    "deploy/optional/prometheus-rules.yaml": prometheus_rules,
}


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    stale = []
    for path, render in RENDERED.items():
        wanted = render()
        full = os.path.join(ROOT, path)
        if os.path.exists(full) and read(path) == wanted:
            continue
        stale.append(path)
        if not check:
            with open(full, "w", encoding="utf-8") as file:
                file.write(wanted)
    if check and stale:
        sys.exit("not up to date; run tools/render_deploy.py: " + ", ".join(stale))
    for path in stale:
        print("wrote", path)


if __name__ == "__main__":
    main()
