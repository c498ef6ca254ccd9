#!/usr/bin/env python3
"""deploy/ against the schemas of two Kubernetes versions, against itself, and against the binary that it starts.

Usage: manifests_test.py BINARY          (run by CTest through tests/e2e/python_test.py)
"""

import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

import kubernetes_validate
import yaml

import kustomize

BINARY = None
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEPLOY = os.path.join(ROOT, "deploy")
VERSIONS = ["1.36", "1.34"]
VARIANTS = sorted(os.path.basename(os.path.dirname(path)) for path in glob.glob(os.path.join(DEPLOY, "*", "kustomization.yaml"))
                  if yaml.safe_load(kustomize.read(path))["kind"] == "Kustomization")
WORKLOADS = ("Deployment", "StatefulSet")


def plain_files():
    return sorted(glob.glob(os.path.join(DEPLOY, "*.yaml")))


def applied():
    """What `kubectl apply -f deploy/` creates, in its order."""
    return [document for path in plain_files() for document in kustomize.documents(kustomize.read(path))]


def every_set():
    yield "deploy/*.yaml", applied()
    for variant in VARIANTS:
        yield variant, kustomize.build(os.path.join(DEPLOY, variant))


def seconds(text):
    number, unit = re.fullmatch(r"([0-9.]+)(ms|s|m|h)", text).groups()
    return float(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit]


def selects(selector, labels):
    """Whether a selector (or a Service's map) picks a pod with these labels."""
    if "matchLabels" not in selector and "matchExpressions" not in selector:
        return all(labels.get(key) == value for key, value in selector.items())
    return (all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and
            all(labels.get(e["key"]) in e["values"] for e in selector.get("matchExpressions", []) if e["operator"] == "In"))


class Workload:
    """A Deployment with its one container."""

    def __init__(self, thing):
        self.thing = thing
        self.name = thing["metadata"]["name"]
        self.template = thing["spec"]["template"]
        self.labels = self.template["metadata"]["labels"]
        self.pod = self.template["spec"]
        (self.container,) = self.pod["containers"]
        self.ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        self.command, self.flags = self.container["args"][0], self.container["args"][1:]

    def settings(self, config_map):
        """What the binary makes of the arguments and the mounted files, as its own --print-config."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in config_map.get("data", {}).items():
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(text)
            args = [flag.replace("$(POD_NAME)", "pod-7").replace("$(POD_IP)", "10.1.2.3").replace("/etc/aisp", folder)
                    for flag in self.flags]
            left = [flag for flag in args if "$(" in flag]
            assert not left, left
            ran = subprocess.run([BINARY, self.command, *args, "--print-config"], capture_output=True, text=True, check=False)
            assert ran.returncode == 0, f"{self.name}: {ran.stderr}"
            return yaml.safe_load(ran.stdout)


def workloads(things):
    return [Workload(thing) for thing in things if thing["kind"] in WORKLOADS]


def config_map(things):
    return next((thing for thing in things if thing["kind"] == "ConfigMap" and thing["metadata"]["name"] == "aisp-config"), {})


class Manifests(unittest.TestCase):
    def test_what_is_rendered_is_up_to_date(self):
        ran = subprocess.run([sys.executable, os.path.join(ROOT, "tools", "render_deploy.py"), "--check"],
                             capture_output=True, text=True, check=False)
        self.assertEqual(ran.returncode, 0, ran.stderr)

    def test_only_plain_manifests_lie_in_the_folder_that_is_applied(self):
        for name in os.listdir(DEPLOY):
            if os.path.isdir(os.path.join(DEPLOY, name)) or name.endswith(".md"):
                continue
            self.assertTrue(name.endswith(".yaml"), name)
            self.assertNotIn("kustomization", name.lower())
        things = applied()
        self.assertEqual(things[0]["kind"], "Namespace", "the others need it")
        for thing in things:
            group = thing["apiVersion"].rpartition("/")[0]
            self.assertIn(group, ("", "apps", "policy", "networking.k8s.io"), f"{thing['kind']} would need a CRD")

    def test_schemas_of_two_versions(self):
        for where, things in every_set():
            for thing in things:
                for version in VERSIONS:
                    with self.subTest(f"{where} {thing['kind']} {thing['metadata']['name']} {version}"):
                        self.assertEqual(kubernetes_validate.validate(thing, version, strict=True), version)

    def test_a_field_that_is_not_there_is_found(self):
        thing = workloads(applied())[0].thing
        thing["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(thing, VERSIONS[0], strict=True)

    def test_kubectl_builds_the_same_variants(self):
        try:
            version = subprocess.run(["kubectl", "version", "--client", "--output=json"], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            self.skipTest("no kubectl here; the variants were built by tests/deploy/kustomize.py alone")
        if "kustomizeVersion" not in json.loads(version.stdout):
            self.skipTest("this kubectl is older than 1.24")
        for variant in VARIANTS:
            built = subprocess.run(["kubectl", "kustomize", os.path.join(DEPLOY, variant)], capture_output=True, text=True,
                                   check=False)
            self.assertEqual(built.returncode, 0, f"{variant}: {built.stderr}")
            self.assertEqual(built.stderr, "", variant)
            key = lambda thing: (thing["kind"], thing["metadata"]["name"])
            self.assertEqual(sorted(kustomize.documents(built.stdout), key=key),
                             sorted(kustomize.build(os.path.join(DEPLOY, variant)), key=key), variant)


class Pods(unittest.TestCase):
    """What has to hold for every pod of every variant."""

    def each(self):
        for where, things in every_set():
            for workload in workloads(things):
                with self.subTest(f"{where} {workload.name}"):
                    yield things, workload

    def test_no_privilege(self):
        for _, w in self.each():
            self.assertTrue(w.pod["securityContext"]["runAsNonRoot"])
            self.assertGreater(w.pod["securityContext"]["runAsUser"], 0)
            self.assertEqual(w.pod["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
            self.assertFalse(w.pod["automountServiceAccountToken"])
            for forbidden in ("hostNetwork", "hostPID", "hostIPC"):
                self.assertNotIn(forbidden, w.pod)
            for container in w.pod["containers"] + w.pod.get("initContainers", []):
                security = container["securityContext"]
                self.assertTrue(security["readOnlyRootFilesystem"])
                self.assertFalse(security["allowPrivilegeEscalation"])
                self.assertEqual(security["capabilities"], {"drop": ["ALL"]})

    def test_resources_probes_and_scraping(self):
        for _, w in self.each():
            for kind in ("requests", "limits"):
                self.assertLessEqual({"cpu", "memory"}, set(w.container["resources"][kind]))
            for probe, path in (("startupProbe", "/health"), ("livenessProbe", "/health"), ("readinessProbe", "/ready")):
                self.assertEqual(w.container[probe]["httpGet"]["path"], path)
                self.assertIn(w.container[probe]["httpGet"]["port"], w.ports)
            notes = w.template["metadata"]["annotations"]
            self.assertEqual(notes["prometheus.io/scrape"], "true")
            self.assertEqual(notes["prometheus.io/path"], "/metrics")
            self.assertEqual(int(notes["prometheus.io/port"]), w.ports[w.container["readinessProbe"]["httpGet"]["port"]])

    def test_one_image_for_all(self):
        for where, things in every_set():
            images = {c["image"] for w in workloads(things) for c in w.pod["containers"] + w.pod.get("initContainers", [])}
            self.assertLessEqual(len(images), 1, where)

    def test_selectors_meet_their_pods(self):
        for where, things in every_set():
            pods = workloads(things)
            for w in pods:
                self.assertTrue(selects(w.thing["spec"]["selector"], w.labels), w.name)
            for thing in things:
                with self.subTest(f"{where} {thing['kind']} {thing['metadata']['name']}"):
                    if thing["kind"] == "Service":
                        found = [w for w in pods if selects(thing["spec"]["selector"], w.labels)]
                        self.assertEqual(len(found), 1)
                        for port in thing["spec"]["ports"]:
                            self.assertIn(port["targetPort"], found[0].ports)
                    elif thing["kind"] == "PodDisruptionBudget":
                        found = [w for w in pods if selects(thing["spec"]["selector"], w.labels)]
                        self.assertEqual(len(found), 1)
                        least = thing["spec"].get("minAvailable", 0)
                        self.assertLess(least, found[0].thing["spec"]["replicas"], "or no node could ever be drained")

    def test_routers_are_found_before_they_are_ready(self):
        services = {t["metadata"]["name"]: t["spec"] for t in applied() if t["kind"] == "Service"}
        found = [name for name, spec in services.items() if spec.get("clusterIP") == "None" and spec.get("publishNotReadyAddresses")]
        self.assertEqual(found, ["aisp-routers"])


class Network(unittest.TestCase):
    """NetworkPolicies let through what the workers do, and nothing else."""

    def setUp(self):
        self.things = applied()
        self.policies = [t["spec"] for t in self.things if t["kind"] == "NetworkPolicy"]
        self.pods = {w.labels["app.kubernetes.io/component"]: w for w in workloads(self.things)}

    def allowed(self, source, target, port):
        """Whether a pod of this namespace (by component) or one elsewhere ("outside", "monitoring") gets through."""
        labels = self.pods[target].labels
        ingress = [p for p in self.policies if selects(p["podSelector"], labels) and "Ingress" in p["policyTypes"]]
        self.assertTrue(ingress, target)
        if not any(self.rule_allows(rule.get("from"), source, rule.get("ports"), port)
                   for p in ingress for rule in p.get("ingress", [])):
            return False
        if source not in self.pods:
            return True
        egress = [p for p in self.policies if selects(p["podSelector"], self.pods[source].labels) and "Egress" in p["policyTypes"]]
        return not egress or any(self.rule_allows(rule.get("to"), target, rule.get("ports"), port)
                                 for p in egress for rule in p.get("egress", []))

    def rule_allows(self, peers, who, ports, port):
        if ports is not None and not any(p["port"] == port and p.get("protocol") == "TCP" for p in ports):
            return False
        return peers is None or any(self.is_peer(peer, who) for peer in peers)

    def is_peer(self, peer, who):
        if "podSelector" in peer:
            return "namespaceSelector" not in peer and who in self.pods and selects(peer["podSelector"], self.pods[who].labels)
        namespace = {"kubernetes.io/metadata.name": who if who not in self.pods else "aisp"}
        return selects(peer["namespaceSelector"], namespace)

    def test_who_reaches_whom(self):
        ports = {name: w.ports for name, w in self.pods.items()}
        yes = [("outside", "router", ports["router"]["http"]), ("outside", "router", ports["router"]["grpc"]),
               ("prefill", "router", ports["router"]["workers"]), ("decode", "router", ports["router"]["workers"]),
               ("decode", "prefill", ports["prefill"]["kv"]), ("prefill", "decode", ports["decode"]["kv-data"]),
               ("router", "decode", ports["decode"]["admin"]), ("router", "prefill", ports["prefill"]["admin"]),
               ("monitoring", "decode", ports["decode"]["admin"]),
               ("monitoring", "prefill", ports["prefill"]["admin"]), ("monitoring", "router", ports["router"]["http"])]
        for source, target, port in yes:
            self.assertTrue(self.allowed(source, target, port), f"{source} -> {target}:{port}")
        for source in ("outside", "monitoring", "router", "prefill", "decode"):
            for target in self.pods:
                for port in ports[target].values():
                    if (source, target, port) in yes or (target == "router" and port in (8080, 8081)):
                        continue
                    self.assertFalse(self.allowed(source, target, port), f"{source} -> {target}:{port}")


class Binary(unittest.TestCase):
    """Everything that the manifests say about the program is what the program says about itself."""

    def each(self):
        for where, things in every_set():
            for workload in workloads(things):
                with self.subTest(f"{where} {workload.name}"):
                    yield things, workload, workload.settings(config_map(things))

    def test_config_maps_are_the_files_of_the_config_folder(self):
        data = config_map(applied())["data"]
        for name, text in data.items():
            self.assertEqual(text, kustomize.read(os.path.join(ROOT, "config", f"kubernetes-{name}")))

    def test_the_programs_ports_are_the_containers(self):
        for _, w, settings in self.each():
            port = lambda text: int(str(text).rpartition(":")[2])
            said = {"http": port(settings["http"]["port"]), "grpc": port(settings["http"]["grpc_port"]),
                    "workers": port(settings["router"]["listen"]), "admin": settings["worker"]["admin_port"],
                    "kv": port(settings["worker"]["kv_listen"]), "kv-data": settings["worker"]["data_port"]}
            for name, number in w.ports.items():
                self.assertEqual(number, said[name], name)
            # Every port that is listened on must be reachable from other pods.
            if "http" in w.ports:
                self.assertEqual(settings["http"]["address"], "0.0.0.0")
            if "workers" in w.ports:
                self.assertTrue(settings["router"]["listen"].startswith("0.0.0.0:"))
            if "admin" in w.ports:
                self.assertEqual(settings["worker"]["admin_address"], "0.0.0.0")
            if "kv" in w.ports:
                self.assertTrue(settings["worker"]["kv_listen"].startswith("0.0.0.0:"))
                self.assertEqual(settings["worker"]["kv_advertise"], f"10.1.2.3:{w.ports['kv']}")
            if "kv-data" in w.ports:
                self.assertEqual(settings["worker"]["data_address"], "0.0.0.0")
                self.assertEqual(settings["worker"]["data_advertise"], "10.1.2.3")

    def test_workers_dial_the_headless_service(self):
        for things, w, settings in self.each():
            if w.labels["app.kubernetes.io/component"] not in ("prefill", "decode"):
                continue
            self.assertEqual(settings["role"], w.labels["app.kubernetes.io/component"])
            self.assertEqual(settings["worker"]["id"], "pod-7")
            (router,) = settings["worker"]["routers"]
            scheme, name, port = router.split(":")
            service = next(t for t in things if t["kind"] == "Service" and t["metadata"]["name"] == name)
            self.assertEqual((scheme, service["spec"]["clusterIP"]), ("dns", "None"))
            self.assertIn(int(port), [p["port"] for p in service["spec"]["ports"]])

    def test_no_stream_is_cut_when_a_pod_goes(self):
        for _, w, settings in self.each():
            drain, longest = seconds(settings["drain_timeout"]), seconds(settings["router"]["default_timeout"])
            grace = w.pod["terminationGracePeriodSeconds"]
            if "http" in w.ports:
                self.assertGreaterEqual(drain, longest, "a router that drains cuts what is left after its drain_timeout")
                asleep = w.container["lifecycle"]["preStop"]["sleep"]["seconds"]
                self.assertGreater(grace, asleep + drain)
            else:
                self.assertGreater(grace, drain + longest, "what nobody else takes is finished here")

    def test_gpus_are_asked_for_where_they_are_used(self):
        for _, w, settings in self.each():
            gpus = int(w.container["resources"]["limits"].get("nvidia.com/gpu", 0))
            if w.command == "up":
                self.assertEqual(gpus, len(settings["up"]["devices"]))
                self.assertEqual(gpus, settings["up"]["prefill_workers"] + settings["up"]["decode_workers"])
            elif settings["role"] != "router":
                self.assertEqual(gpus, 1 if settings["model"]["device"].startswith("cuda") else 0)

    def test_init_containers_bring_the_model_that_is_served(self):
        found = 0
        for _, w, settings in self.each():
            for init in w.pod.get("initContainers", []):
                found += 1
                self.assertEqual(init["args"][0], "pull")
                ran = subprocess.run([BINARY, *init["args"], "--print-config"], capture_output=True, text=True, check=False)
                self.assertEqual(ran.returncode, 0, ran.stderr)
                self.assertEqual(yaml.safe_load(ran.stdout)["model"]["path"], settings["model"]["path"])
                self.assertRegex(settings["model"]["path"], r"^[^/.~]+/[^/]+$")
                env = {e["name"]: e.get("value") for e in init["env"]}
                served = {e["name"]: e.get("value") for e in w.container["env"]}
                self.assertEqual(env["HF_HOME"], served["HF_HOME"])
                self.assertEqual(served["HF_HUB_OFFLINE"], "1")
                self.assertNotIn("HF_TOKEN", served)
                volumes = {v["name"] for v in w.pod["volumes"]}
                for container, read_only in ((init, False), (w.container, True)):
                    (mount,) = [m for m in container["volumeMounts"] if m["mountPath"] == env["HF_HOME"]]
                    self.assertIn(mount["name"], volumes)
                    self.assertEqual(mount.get("readOnly", False), read_only)
        self.assertEqual(found, 3, "those of deploy/gpu-hub")

    def test_a_flag_that_the_program_does_not_know_is_found(self):
        w = workloads(applied())[0]
        w.flags = w.flags + ["--no-such-flag=1"]
        with self.assertRaises(AssertionError):
            w.settings(config_map(applied()))


class Optional(unittest.TestCase):
    """What needs CRDs: it names ports, pods and objects that exist. Its metric names are held against live processes by
    observability_test.py."""

    def documents(self):
        for path in sorted(glob.glob(os.path.join(DEPLOY, "optional", "*.yaml"))):
            for document in kustomize.documents(kustomize.read(path)):
                with self.subTest(f"{os.path.basename(path)} {document['kind']} {document['metadata']['name']}"):
                    yield document

    def test_targets_exist(self):
        pods = workloads(applied())
        names = {w.name for w in pods}
        kinds = set()
        for thing in self.documents():
            kinds.add(thing["kind"])
            spec = thing["spec"]
            if "scaleTargetRef" in spec:
                self.assertIn(spec["scaleTargetRef"]["name"], names)
                least = spec.get("minReplicaCount", spec.get("minReplicas"))
                (target,) = [w for w in pods if w.name == spec["scaleTargetRef"]["name"]]
                self.assertEqual(least, target.thing["spec"]["replicas"])
            if thing["kind"] in ("PodMonitor", "InferencePool"):
                found = [w for w in pods if selects(spec["selector"], w.labels)]
                self.assertTrue(found)
                for w in found:
                    for endpoint in spec.get("podMetricsEndpoints", []):
                        self.assertIn(endpoint["port"], w.ports)
                    for port in spec.get("targetPorts", []):
                        self.assertEqual(port["number"], w.ports["http"])
        self.assertLessEqual({"PodMonitor", "PrometheusRule", "ScaledObject", "HorizontalPodAutoscaler", "InferencePool",
                              "HTTPRoute"}, kinds)


if __name__ == "__main__":
    BINARY = os.path.abspath(sys.argv.pop())
    unittest.main()
