#!/usr/bin/env python3
"""docker/ and deploy/: the Dockerfile passes hadolint, the Kubernetes resources their schemas, and names agree with each other and with the
programs. Runs in the environment of scripts/install_dependencies.sh. TANDEM_BIN: folder of the programs."""
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

import kubernetes_validate
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
BASE = ROOT / "deploy/kustomize/base"
DOCKERFILE = ROOT / "docker/Dockerfile"
PROGRAMS = ("tandem", "tandem-router", "tandem-gpu-worker", "tandem-cpu-attention-worker")
BIN = pathlib.Path(os.environ.get("TANDEM_BIN", ROOT / "build/bin"))
MODULES = sorted(BIN.parent.glob("lib/*.so"))
METRIC = re.compile(r"\btandem_\w+")


def resources():
    """(file name, resource) of the base."""
    kustomization = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    return [(name, body) for name in kustomization["resources"] for body in yaml.safe_load_all((BASE / name).read_text()) if body]


def containers():
    for name, body in resources():
        if body["kind"] == "Deployment":
            for container in body["spec"]["template"]["spec"]["containers"]:
                yield name, body, container


def help_of(program):
    return subprocess.run([BIN / program, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout


class Image(unittest.TestCase):
    def test_hadolint(self):
        hadolint = pathlib.Path(sys.prefix) / "bin/hadolint"
        done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stdout + done.stderr)

    def test_copies_exist(self):
        ignored = (ROOT / ".dockerignore").read_text().splitlines()
        for line in DOCKERFILE.read_text().splitlines():
            if line.startswith("COPY ") and "--from" not in line:
                for source in line.split()[1:-1]:
                    self.assertTrue((ROOT / source).exists(), f"{source} does not exist")
                    self.assertIn("!" + source.split("/")[0], ignored, f".dockerignore hides {source}")

    def test_every_program_is_copied_and_the_user_is_not_root(self):
        text = DOCKERFILE.read_text()
        for program in PROGRAMS:
            self.assertIn(f"build/bin/{program} ", text)
        # The programs look for modules in lib/ beside their own folder.
        self.assertIn("/src/build/lib/*.so /usr/local/lib/", text)
        self.assertRegex(text.split("FROM ")[-1], r"\nUSER (?!0|root)")

    def test_runtime_packages_cover_the_programs(self):
        listed = set(re.findall(r"^ +(lib[\w.+-]+) \\$", DOCKERFILE.read_text(), re.MULTILINE))
        needed = set()
        for binary in [BIN / program for program in PROGRAMS] + MODULES:
            dynamic = subprocess.run(["readelf", "-d", binary], capture_output=True, text=True, check=True).stdout
            needed |= set(re.findall(r"NEEDED.*\[(.*)\]", dynamic))
        needed -= {module.name for module in MODULES}
        for library in sorted(needed - {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}):
            owner = subprocess.run(["dpkg", "-S", f"*/{library}"], capture_output=True, text=True, check=False).stdout
            owners = set(re.findall(r"^([\w.+-]+)(?::\w+)?: ", owner, re.MULTILINE))
            self.assertTrue(self.installed_with(listed) & owners, f"{library} of {owners}: no package of the image brings it")

    @staticmethod
    def installed_with(packages):
        """The packages and what they depend on, one level deep."""
        found = set(packages)
        for package in packages:
            depends = subprocess.run(["dpkg-query", "-W", "-f", "${Depends}", package], capture_output=True, text=True, check=False).stdout
            found |= {re.split(r"[ :(]", part.strip())[0] for part in re.split(r"[,|]", depends)}
        return found


class Kubernetes(unittest.TestCase):
    def test_schemas(self):
        for name, body in resources():
            with self.subTest(file=name, kind=body["kind"]):
                kubernetes_validate.validate(body, kubernetes_validate.latest_version(), strict=True)

    def test_one_pod_has_both_workers_and_their_socket(self):
        pods = [body for name, body in resources() if body["kind"] == "Deployment" and len(body["spec"]["template"]["spec"]["containers"]) == 2]
        self.assertEqual(len(pods), 1)
        spec = pods[0]["spec"]["template"]["spec"]
        self.assertIn("terminationGracePeriodSeconds", spec)
        shared = [{m["name"] for m in c["volumeMounts"]} for c in spec["containers"]]
        volumes = {v["name"]: v for v in spec["volumes"]}
        self.assertTrue(any("emptyDir" in volumes[name] for name in shared[0] & shared[1]))
        sockets = [arg.split("=")[1] for c in spec["containers"] for arg in c["args"] if "socket=" in arg]
        self.assertEqual(len(sockets), 2)
        self.assertEqual(sockets[0], sockets[1])

    def test_probes_ports_and_selectors(self):
        labels = {}
        for _, body, container in containers():
            ports = {p["name"] for p in container["ports"]}
            for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
                if probe in container:
                    self.assertIn(container[probe]["httpGet"]["port"], ports)
                    self.assertEqual(container[probe]["httpGet"]["path"], "/ready" if probe == "readinessProbe" else "/health")
            self.assertIn("livenessProbe", container)
            self.assertIn("requests", container["resources"])
            template = body["spec"]["template"]["metadata"]["labels"]
            self.assertEqual(body["spec"]["selector"]["matchLabels"].items() & template.items(), body["spec"]["selector"]["matchLabels"].items())
            labels.setdefault(template["app.kubernetes.io/name"], set()).update(ports)
        for _, body in resources():
            if body["kind"] == "Service":
                ports = labels[body["spec"]["selector"]["app.kubernetes.io/name"]]
                self.assertTrue({p["targetPort"] for p in body["spec"]["ports"]} <= ports)

    def test_flags_are_known_to_the_programs(self):
        for _, _, container in containers():
            self.assertIn(container["command"][0], PROGRAMS)
            known = help_of(container["command"][0])
            for arg in container["args"]:
                self.assertRegex(known, rf"{re.escape(arg.split('=')[0])}\b")


class Monitoring(unittest.TestCase):
    def test_prometheus(self):
        config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
        targets = {t for job in config["scrape_configs"] for s in job.get("static_configs", []) for t in s["targets"]}
        self.assertEqual({t.split(":")[1] for t in targets}, {"9310", "9311", "9312"})

    def test_dashboard(self):
        board = json.loads((ROOT / "deploy/grafana/dashboard.json").read_text())
        ids = [panel["id"] for panel in board["panels"]]
        self.assertEqual(len(ids), len(set(ids)))
        for panel in board["panels"]:
            for target in panel.get("targets", []):
                self.assertRegex(target["expr"], METRIC, panel["title"])
                self.assertEqual(target["expr"].count("("), target["expr"].count(")"), panel["title"])


if __name__ == "__main__":
    unittest.main()
