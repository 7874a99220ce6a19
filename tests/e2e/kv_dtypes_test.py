#!/usr/bin/env python3
"""KV cache types of the CPU tier through the three processes: golden answers within each type's reach, in every block size; sizes and bytes read."""
import concurrent.futures
import json
import pathlib
import random
import tempfile
import unittest

from harness import GOLDENS, Stack, golden, run_program

# Compute type, KV type of the CPU pool, whose tolerance of the goldens holds, and how many times it. No reference says what fp8_e4m3
# does: it gets three times int8's (its steps are up to 16 times as wide where a row's values are of one size).
KINDS = (
    ("bfloat16", "bfloat16", "bf16 weights and activations", 1),
    ("float32", "bfloat16", "f32, bf16 KV", 1),
    ("float32", "int8", "f32, int8 KV", 1),
    ("bfloat16", "int8", "bf16, int8 KV", 1),
    ("float32", "fp8_e4m3", "f32, int8 KV", 3),
    ("bfloat16", "fp8_e4m3", "bf16, int8 KV", 3),
)
BYTES = {"float32": 4, "bfloat16": 2, "int8": 1, "fp8_e4m3": 1}
# Of the model llama3-like.
LAYERS, KV_HEADS, HEAD_DIM, CPU_BLOCK = 2, 2, 128, 128


def token_bytes(kv):
    """Of one token in one layer: K and V of every head, with int8's scales."""
    return 2 * KV_HEADS * (HEAD_DIM * BYTES[kv] + (4 if kv == "int8" else 0))


def reach_of(shown, times):
    """How far below the best logit another may rise."""
    return 2 * times * max(shown["max_abs_logprob_diff"], shown["max_abs_top5_logprob_diff"])


class KvDtypes(unittest.TestCase):
    def follow(self, stack, data, shown, times):
        """Greedy runs of all cases at once: the golden tokens, and logprobs near theirs, up to a step where the type's reach exceeds the
        margin and the run takes another way. Returns the number of steps compared and the mean difference of logprobs."""
        reach, limit = reach_of(shown, times), 2.5 * times * shown["max_abs_logprob_diff"]

        def run(case):
            want = case["token_ids"]
            choice = stack.complete(prompt=case["prompt_token_ids"], max_tokens=len(want), temperature=0, logprobs=1,
                                    ignore_eos=data["ignore_eos"], return_token_ids=True)["choices"][0]
            got = choice["token_ids"]
            parted = next((i for i, (a, b) in enumerate(zip(got, want, strict=True)) if a != b), None)
            self.assertTrue(parted is None or case["margins"][parted] < reach, f"{case['name']} parts at {parted}")
            differences = [abs(a - b) for a, b in zip(choice["logprobs"]["token_logprobs"][:parted], case["logprobs"])]
            self.assertLessEqual(max(differences, default=0), limit, case["name"])
            return differences

        with concurrent.futures.ThreadPoolExecutor(len(data["cases"])) as pool:
            differences = [d for case in pool.map(run, data["cases"]) for d in case]
        self.assertGreater(len(differences), len(data["cases"]) * (10 if times == 1 else 3))
        return len(differences), sum(differences) / len(differences)

    def test_every_decode_on_the_cpu(self):
        for name in ("llama3-like", "qwen2-like"):
            data = golden(name)
            for dtype, kv, kind, times in KINDS:
                flags = ("--dtype", dtype, "--cpu-kv-dtype", kv, "--cpu-kv-size", "64MiB", "--offload", "all-cpu", "--max-num-batched-tokens", "100")
                with self.subTest(name=name, dtype=dtype, kv=kv), Stack(GOLDENS / name, *flags) as stack:
                    count, mean = self.follow(stack, data, data["tolerance"][kind], times)
                    print(f"{name} {dtype} over {kv}: {count} steps, mean difference {mean:.4f}", flush=True)
                    self.assertLessEqual(mean, 2 * times * data["tolerance"][kind]["mean_abs_logprob_diff"] + 1e-3)
                    self.assertGreater(stack.metric("tandem_worker_decode_tokens_total", tier="cpu"), 0)
                    stack.wait_no_blocks()

    def test_every_block_size_with_moves(self):
        """A device pool of 1,536 tokens for eight sequences: some move to and fro, in pieces that end anywhere."""
        data = golden("llama3-like")
        tolerance = {"float32": ("f32, bf16 KV", 1), "bfloat16": ("f32, bf16 KV", 1), "int8": ("f32, int8 KV", 1), "fp8_e4m3": ("f32, int8 KV", 3)}
        for i, block in enumerate((16, 32, 64, 128)):
            for j, (kv, (kind, times)) in enumerate(tolerance.items()):
                offload = ("auto", "asymmetric")[(i + j) % 2]
                flags = ("--dtype", "float32", "--cpu-kv-dtype", kv, "--cpu-kv-size", "64MiB", "--block-size", str(block),
                         "--num-gpu-blocks-override", str(1536 // block), "--max-num-batched-tokens", "70", "--offload", offload)
                with self.subTest(block=block, kv=kv, offload=offload), Stack(GOLDENS / "llama3-like", *flags) as stack:
                    self.follow(stack, data, data["tolerance"][kind], times)
                    stack.wait_no_blocks()
                    if offload == "asymmetric":
                        self.assertGreater(stack.metric("tandem_worker_decode_tokens_total", tier="cpu"), 0)

    def test_odd_shapes(self):
        """Random weights: what the CPU tier says to a prompt in small pieces and to its first decodes is what the device alone says, exactly in
        float32, nearly with rounded KV. q and k are normalised, so that scores are of size 1 and wrong keys are seen."""
        prompt = random.Random(5).choices(range(8, 500), k=203)
        for q_heads, kv_heads, head_dim in ((7, 1, 80), (14, 2, 96), (2, 2, 256), (15, 3, 16)):
            config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 512, "hidden_size": 448, "intermediate_size": 256,
                      "num_hidden_layers": 2, "num_attention_heads": q_heads, "num_key_value_heads": kv_heads, "head_dim": head_dim,
                      "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False}
            with tempfile.TemporaryDirectory() as folder:
                (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
                want = self.logprobs_of(folder, prompt, "--offload", "off")
                for kv, least, most in (("float32", 0, 1e-4), ("bfloat16", 1e-7, 0.01), ("int8", 1e-7, 0.03), ("fp8_e4m3", 1e-7, 0.12)):
                    with self.subTest(heads=(q_heads, kv_heads, head_dim), kv=kv):
                        got = self.logprobs_of(folder, prompt, "--offload", "all-cpu", "--cpu-kv-dtype", kv, "--max-num-batched-tokens", "37")
                        worst = max(abs(a - b) for a, b in zip(got, want, strict=True))
                        print(f"{q_heads}/{kv_heads}/{head_dim} {kv}: off by {worst:.1e}", flush=True)
                        self.assertTrue(least <= worst <= most, worst)

    def logprobs_of(self, folder, prompt, *flags):
        with Stack(folder, "--load-format", "dummy", "--dtype", "float32", "--cpu-kv-size", "64MiB", *flags) as stack:
            # Every step gives the same token its bonus, so that all runs decode the same text.
            choice = stack.complete(prompt=prompt, max_tokens=5, temperature=0, ignore_eos=True, prompt_logprobs=0, logprobs=0, logit_bias={"77": 100},
                                    return_token_ids=True)["choices"][0]
            self.assertEqual(choice["token_ids"], [77] * 5)
            entries = [next(iter(entry.values()))["logprob"] for entry in choice["prompt_logprobs"][1:]]
            return entries + choice["logprobs"]["token_logprobs"]

    def test_sizes_and_bytes_read(self):
        prompt, output = golden("llama3-like")["cases"][5]["prompt_token_ids"], 12
        for kv in BYTES:
            with self.subTest(kv=kv), Stack(GOLDENS / "llama3-like", "--dtype", "float32", "--cpu-kv-dtype", kv, "--cpu-kv-size", "16MiB",
                                            "--offload", "all-cpu") as stack:
                blocks = (16 << 20) // (LAYERS * CPU_BLOCK * token_bytes(kv))
                self.assertEqual(stack.metric("tandem_worker_kv_blocks", pool="cpu"), blocks)
                stack.greedy(prompt, output)
                # The first token comes from the prompt's last row; each decode reads its own token, too.
                tokens = sum(len(prompt) + i for i in range(1, output))
                self.assertEqual(stack.metric("tandem_cpu_attention_read_bytes_total", "cpu_attention_worker"), LAYERS * tokens * token_bytes(kv))

    def test_other_types_are_refused(self):
        for program in (("tandem", "serve", str(GOLDENS / "llama3-like")), ("tandem-gpu-worker",), ("tandem-cpu-attention-worker",)):
            status, _, message = run_program(*program, "--cpu-kv-dtype", "int4")
            self.assertEqual(status, 2, message)
            for word in ("cpu-kv-dtype", "int8", "fp8_e4m3"):
                self.assertIn(word, message)


if __name__ == "__main__":
    unittest.main(verbosity=2)
