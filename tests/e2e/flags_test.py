#!/usr/bin/env python3
"""Command lines: help and version, where a value comes from, and errors that name the flag."""
import json
import os
import pathlib
import tempfile
import unittest

from harness import TINY, run_program

PROGRAMS = ("tandem", "tandem-router", "tandem-gpu-worker", "tandem-cpu-attention-worker")
SERVE = ("tandem", "serve", str(TINY))
# arguments, what stderr must name
BAD = [
    ((*SERVE, "--no-such-flag", "1"), "no-such-flag"),
    ((*SERVE, "--offload", "sometimes"), "offload"),
    ((*SERVE, "--port", "99999"), "port"),
    ((*SERVE, "--port", "eighty"), "port"),
    ((*SERVE, "--block-size", "17"), "block-size"),
    ((*SERVE, "--dtype", "float8"), "dtype"),
    ((*SERVE, "--cpu-kv-size", "lots"), "cpu-kv-size"),
    ((*SERVE, "--max-num-seqs", "0"), "max-num-seqs"),
    ((*SERVE, "--port"), "port"),
    ((*SERVE, "--metrics-host", "nowhere"), "metrics-host"),
    (("tandem", "serve"), "MODEL"),
    (("tandem", "no-such-command"), "no-such-command"),
    (("tandem-router", "--listen", "127.0.0.1:0"), "worker"),
    (("tandem-router", "--listen", "nowhere", "--worker", "127.0.0.1:1"), "listen"),
    (("tandem-router", "--listen", "127.0.0.1:0", "--worker", "nowhere"), "--worker"),
    (("tandem-router", "--worker", "127.0.0.1:1", "--grpc-listen", "nowhere"), "--grpc-listen"),
    (("tandem-router", "--worker", "127.0.0.1:1", "--idle-timeout", "0x10"), "--idle-timeout"),
    (("tandem-gpu-worker", "--listen", "127.0.0.1:0"), "model"),
    (("tandem-cpu-attention-worker", "--isa", "mmx"), "isa"),
    (("tandem-gpu-worker", "--model", str(TINY), "--cpu-attention-socket", "/tmp/a,b.sock"), "--cpu-attention-socket"),
]
# Right flags, but a start that cannot be: not 2, not a crash, and a message that names what is wrong.
UNUSABLE = [
    (("tandem", "serve", "/no/such/model.gguf"), "/no/such/model.gguf"),
    (("tandem", "serve", "/etc/passwd"), "/etc/passwd"),
    ((*SERVE, "--cpu-kv-size", "900TiB"), "cpu-kv-size"),
]


class Help(unittest.TestCase):
    def test_help_and_version(self):
        for program in PROGRAMS:
            status, out, _ = run_program(program, "--help")
            self.assertEqual(status, 0)
            self.assertIn("--help", out)
            status, out, _ = run_program(program, "--version")
            self.assertEqual(status, 0)
            self.assertRegex(out, r"\d+\.\d+\.\d+")

    def test_serve_help_names_the_flags(self):
        _, out, _ = run_program("tandem", "serve", "--help")
        for flag in ("host", "port", "run-dir", "served-model-name", "device", "dtype", "max-model-len", "max-num-seqs", "max-num-batched-tokens",
                     "gpu-memory-utilization", "num-gpu-blocks-override", "cpu-kv-size", "cpu-kv-dtype", "offload", "cpu-attention-threads", "numa-node",
                     "block-size", "load-format", "seed", "api-key", "log-level", "log-format", "router-metrics-port", "worker-metrics-port",
                     "cpu-attention-metrics-port", "config", "print-config"):
            self.assertIn(f"--{flag}", out)


class Errors(unittest.TestCase):
    def test_bad_flags(self):
        for args, named in BAD:
            with self.subTest(" ".join(args[1:])):
                status, out, err = run_program(*args)
                self.assertEqual((status, out), (2, ""), err)
                self.assertIn(named, err)

    def test_unusable_values(self):
        for args, named in UNUSABLE:
            with self.subTest(" ".join(args[1:])), tempfile.TemporaryDirectory() as run_dir:
                status, _, err = run_program(*args, "--run-dir", run_dir, "--port", "0", "--router-metrics-port", "0", "--worker-metrics-port", "0",
                                             "--cpu-attention-metrics-port", "0")
                self.assertGreater(status, 0, err)
                self.assertIn(named, err)


class Sources(unittest.TestCase):
    def shown(self, *flags, env=None):
        status, out, err = run_program(*SERVE, *flags, "--print-config", env=env)
        self.assertEqual(status, 0, err)
        return out, err

    def line(self, out, name):
        found = [line for line in out.splitlines() if name in line]
        self.assertEqual(len(found), 1, out)
        return found[0]

    def test_precedence(self):
        with tempfile.TemporaryDirectory() as folder:
            config = pathlib.Path(folder) / "config.yaml"
            config.write_text("max-num-seqs: 33\nblock-size: 32\n")
            out, _ = self.shown("--config", str(config))
            self.assertRegex(self.line(out, "max-num-seqs"), r"33.*file")
            out, _ = self.shown("--config", str(config), env={"TANDEM_MAX_NUM_SEQS": "44"})
            self.assertRegex(self.line(out, "max-num-seqs"), r"44.*environment")
            out, _ = self.shown("--config", str(config), "--max-num-seqs", "55", env={"TANDEM_MAX_NUM_SEQS": "44"})
            self.assertRegex(self.line(out, "max-num-seqs"), r"55.*flag")
            self.assertRegex(self.line(out, "block-size"), r"32.*file")
            self.assertRegex(self.line(out, "max-num-batched-tokens"), r"2048.*default")
            config.with_suffix(".json").write_text(json.dumps({"max-num-seqs": 34}))
            out, _ = self.shown("--config", str(config.with_suffix(".json")))
            self.assertRegex(self.line(out, "max-num-seqs"), r"34.*file")

    def test_bad_values_elsewhere(self):
        status, _, err = run_program(*SERVE, "--print-config", env={"TANDEM_OFFLOAD": "sometimes"})
        self.assertEqual(status, 2)
        self.assertIn("TANDEM_OFFLOAD", err)
        status, _, err = run_program(*SERVE, "--print-config", "--config", os.devnull + "/none.yaml")
        self.assertEqual(status, 2)
        self.assertIn("none.yaml", err)

    def test_an_unknown_variable_is_a_warning(self):
        status, _, err = run_program("tandem", "serve", "/no/such/model.gguf", env={"TANDEM_OFLOAD": "off"})
        self.assertNotEqual(status, 0)
        self.assertRegex(err, "warning.*TANDEM_OFLOAD")
        self.assertNotIn("TANDEM_OFLOAD", run_program("tandem", "serve", "/no/such/model.gguf")[2])


if __name__ == "__main__":
    unittest.main(verbosity=2)
