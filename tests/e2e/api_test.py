#!/usr/bin/env python3
"""The HTTP surface over one running stack: chat, completions, streams, tokenizing, bad requests."""
import concurrent.futures
import json
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from harness import BIN, EXACT, GOLDENS, TINY, Stack, Stream, environment, golden, run_program, wait_until

CHAT = {"messages": [{"role": "user", "content": "Why was the signal so distant?"}], "max_tokens": 24, "temperature": 0}
PROMPTS = [f"The {word} crossed the engine near the lantern" for word in ("forest", "river", "signal", "bridge", "mountain", "harbour")]

# path, body, status, what `param` must contain
BAD = [
    ("/v1/completions", b"{not json", 400, None),
    ("/v1/completions", b"", 400, None),
    ("/v1/completions", b"[1, 2]", 400, None),
    ("/v1/completions", {"prompt": "x", "model": "no-such-model"}, 404, "model"),
    ("/v1/completions", {"max_tokens": 5}, 400, "prompt"),
    ("/v1/completions", {"prompt": []}, 400, "prompt"),
    ("/v1/completions", {"prompt": {"a": 1}}, 400, "prompt"),
    ("/v1/completions", {"prompt": "x", "max_tokens": -1}, 400, "max_tokens"),
    ("/v1/completions", {"prompt": "x", "max_tokens": 0}, 400, "max_tokens"),
    ("/v1/completions", {"prompt": "x", "max_tokens": 1e9}, 400, None),
    ("/v1/completions", {"prompt": "x", "max_tokens": "five"}, 400, "max_tokens"),
    ("/v1/completions", {"prompt": "x", "temperature": -0.5}, 400, "temperature"),
    ("/v1/completions", {"prompt": "x", "temperature": 9}, 400, "temperature"),
    ("/v1/completions", {"prompt": "x", "top_p": 1.5}, 400, "top_p"),
    ("/v1/completions", {"prompt": "x", "n": 0}, 400, "n"),
    ("/v1/completions", {"prompt": "x", "logprobs": -1}, 400, "logprobs"),
    ("/v1/completions", {"prompt": "x", "stop": ["x"] * 99}, 400, "stop"),
    ("/v1/completions", {"prompt": "x", "stream": "yes"}, 400, "stream"),
    ("/v1/completions", {"prompt": [1, 2, 999999999]}, 400, "prompt"),
    ("/v1/completions", {"prompt": [-5]}, 400, "prompt"),
    ("/v1/completions", {"prompt": "word " * 60000}, 400, None),
    ("/v1/chat/completions", {"messages": []}, 400, "messages"),
    ("/v1/chat/completions", {"messages": "hello"}, 400, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "nobody", "content": 5}]}, 400, None),
    ("/v1/chat/completions", {"messages": CHAT["messages"], "top_logprobs": 99, "logprobs": True}, 400, "top_logprobs"),
    ("/v1/nothing", {"prompt": "x"}, 404, None),
]


class Api(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = Stack(TINY, *EXACT)
        cls.addClassCleanup(cls.stack.__exit__, None, None, None)

    def test_chat(self):
        reply = self.stack.post("/v1/chat/completions", CHAT, headers={"X-Request-Id": "mine-1"})
        self.assertEqual(reply.status, 200, reply.body)
        self.assertEqual(reply.headers.get("x-request-id"), "mine-1")
        self.assertEqual(reply.body["object"], "chat.completion")
        message = reply.body["choices"][0]["message"]
        self.assertEqual(message["role"], "assistant")
        self.assertTrue(message["content"])
        usage = reply.body["usage"]
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])
        stream = Stream(self.stack, "/v1/chat/completions", {**CHAT, "stream_options": {"include_usage": True}})
        self.assertTrue(stream.response.getheader("Content-Type").startswith("text/event-stream"))
        events = list(stream)
        self.assertTrue(stream.done)
        self.assertEqual(events[0]["choices"][0]["delta"]["role"], "assistant")
        self.assertEqual("".join(c["delta"].get("content") or "" for e in events for c in e["choices"]), message["content"])
        self.assertEqual([c["finish_reason"] for e in events for c in e["choices"]][-1], reply.body["choices"][0]["finish_reason"])
        self.assertEqual((events[-1]["choices"], events[-1]["usage"]), ([], usage))

    def test_completion_stream_equals_the_whole(self):
        body = {"prompt": PROMPTS[0], "max_tokens": 40, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        whole = self.stack.complete(**body)["choices"][0]
        stream = Stream(self.stack, "/v1/completions", body)
        events = list(stream)
        self.assertTrue(stream.done)
        self.assertGreater(len(events), 5, "the stream came in one piece")
        choices = [c for e in events for c in e["choices"]]
        self.assertEqual("".join(c["text"] for c in choices), whole["text"])
        self.assertEqual([t for c in choices for t in c.get("token_ids") or []], whole["token_ids"])

    def test_concurrent_streams_do_not_mix(self):
        alone = [self.stack.greedy(prompt, 32) for prompt in PROMPTS]
        self.assertEqual(len({tuple(tokens) for tokens in alone}), len(PROMPTS), "the prompts give different answers")
        self.assertEqual(self.stack.greedy_together(PROMPTS * 3, 32), alone * 3)

    def test_several_prompts_and_choices(self):
        out = self.stack.complete(prompt=PROMPTS[:3], n=2, temperature=1.0, seed=5, max_tokens=12)
        self.assertEqual([c["index"] for c in out["choices"]], list(range(6)))
        again = self.stack.complete(prompt=PROMPTS[:3], n=2, temperature=1.0, seed=5, max_tokens=12)
        self.assertEqual([c["text"] for c in out["choices"]], [c["text"] for c in again["choices"]])
        self.assertNotEqual(out["choices"][0]["text"], out["choices"][1]["text"])

    def test_a_seeded_sample_does_not_depend_on_its_company(self):
        def sample(seed):
            return self.stack.complete(prompt=PROMPTS[0], temperature=1.0, top_p=0.9, seed=seed, max_tokens=24)["choices"][0]["text"]

        alone = [sample(seed) for seed in range(6)]
        self.assertGreater(len(set(alone)), 1)
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            self.assertEqual(list(pool.map(sample, list(range(6)) * 2)), alone * 2)

    def test_stop_strings(self):
        whole = self.stack.complete(prompt=PROMPTS[1], max_tokens=40, temperature=0, ignore_eos=True)["choices"][0]["text"]
        stop = whole[10:14]
        body = {"prompt": PROMPTS[1], "max_tokens": 40, "temperature": 0, "ignore_eos": True, "stop": [stop, "never there"]}
        cut = self.stack.complete(**body)["choices"][0]
        self.assertEqual((cut["text"], cut["finish_reason"]), (whole[:whole.index(stop)], "stop"))
        self.assertEqual("".join(c["text"] for e in Stream(self.stack, "/v1/completions", body) for c in e["choices"]), cut["text"])
        kept = self.stack.complete(**body, include_stop_str_in_output=True)["choices"][0]
        self.assertEqual(kept["text"], whole[:whole.index(stop) + len(stop)])

    def test_stop_token_and_min_tokens(self):
        tokens = self.stack.greedy(PROMPTS[2], 20)
        stop = tokens[6]
        first = tokens.index(stop)
        out = self.stack.complete(prompt=PROMPTS[2], max_tokens=20, temperature=0, ignore_eos=True, stop_token_ids=[stop], return_token_ids=True)
        self.assertEqual(out["choices"][0]["token_ids"], tokens[:first + 1])
        self.assertEqual(out["choices"][0]["finish_reason"], "stop")
        out = self.stack.complete(prompt=PROMPTS[2], max_tokens=20, temperature=0, ignore_eos=True, stop_token_ids=[stop],
                                  min_tokens=first + 2, return_token_ids=True)
        self.assertGreaterEqual(len(out["choices"][0]["token_ids"]), first + 2)

    def test_tokenize_and_back(self):
        for sample in ("Hello, world!", "  two  spaces\n\n\ttab", "naïve café 日本語 👩‍👩‍👧"):
            reply = self.stack.post("/tokenize", {"prompt": sample, "add_special_tokens": False})
            self.assertEqual(reply.body["count"], len(reply.body["tokens"]))
            self.assertEqual(self.stack.post("/detokenize", {"tokens": reply.body["tokens"]}).body["prompt"], sample)

    def test_special_tokens_are_text_in_messages(self):
        name = "<|eot_id|>"
        plain = self.stack.post("/tokenize", {"prompt": name, "add_special_tokens": False}).body["tokens"]
        self.assertEqual(len(plain), 1)
        chat = [self.stack.post("/tokenize", {"messages": [{"role": "user", "content": text}]}).body["tokens"] for text in ("x", "x" + name)]
        self.assertEqual(chat[0].count(plain[0]), chat[1].count(plain[0]))

    def test_information(self):
        listed = self.stack.get("/v1/models").body["data"]
        self.assertEqual([m["id"] for m in listed], [TINY.name])
        self.assertEqual(listed[0]["max_model_len"], 4096)
        for path in ("/health", "/ready", "/version", "/metrics"):
            self.assertEqual(self.stack.get(path).status, 200, path)
        for process in self.stack.endpoints["metrics"]:
            address = self.stack.endpoints["metrics"][process].split("/")[2]
            for path in ("/health", "/ready"):
                self.assertEqual(self.stack.request("GET", path, address=address).status, 200, f"{process} {path}")

    def test_bad_requests(self):
        for path, body, status, param in BAD:
            with self.subTest(path=path, body=str(body)[:80]):
                reply = self.stack.post(path, body)
                self.assertEqual(reply.status, status, reply.body)
                self.assertEqual(set(reply.body["error"]), {"message", "type", "param", "code"})
                self.assertEqual(reply.body["error"]["type"], "invalid_request_error")
                self.assertIn("x-request-id", reply.headers)
                if param is not None:
                    self.assertIn(param, str(reply.body["error"]["param"]))
        self.assertEqual(self.stack.get("/v1/completions").status, 405)
        long = self.stack.post("/v1/completions", {"prompt": [5] * 4097, "max_tokens": 1})
        self.assertEqual((long.status, long.body["error"]["code"]), (400, "context_length_exceeded"))
        self.assertEqual(self.stack.post("/v1/completions", {"prompt": "x", "max_tokens": 2, "brand_new_field": 1}).status, 200)
        self.assertEqual(self.stack.post("/v1/completions", {"prompt": "x", "model": "no-such-model"}).body["error"]["code"], "model_not_found")

    def test_dialects(self):
        whole = self.stack.post("/v1/chat/completions", CHAT).body["choices"][0]["message"]["content"]
        response = self.stack.post("/v1/responses", {"input": CHAT["messages"], "max_output_tokens": 24, "temperature": 0}).body
        self.assertEqual(response["output"][0]["content"][0]["text"], whole)
        message = self.stack.post("/v1/messages", CHAT).body
        self.assertEqual(message["content"][0]["text"], whole)
        self.assertEqual(self.stack.post("/v1/messages/count_tokens", CHAT).body["input_tokens"], message["usage"]["input_tokens"])

    def test_pages_and_statistics(self):
        self.assertIn("<html", self.stack.get("/").body)
        self.assertEqual(self.stack.get("/openapi.json").body["openapi"], "3.1.0")
        before = self.stack.get("/stats").body
        self.stack.complete(prompt=PROMPTS[0], max_tokens=20, temperature=0, ignore_eos=True)
        after = wait_until(lambda: (s := self.stack.get("/stats").body)["decode_tokens"]["gpu"] > before["decode_tokens"]["gpu"] and s, "counted")
        self.assertGreater(after["kv_blocks"]["gpu_total"], 0)
        self.assertGreater(after["kv_blocks"]["cpu_total"], 0)
        self.assertEqual(after["requests"], [])

    def test_chat_in_the_terminal(self):
        done = subprocess.run([BIN / "tandem", "chat", "--url", self.stack.endpoints["http"], "--max-tokens", "12", "--temperature", "0"],
                              input="Hello there\n/retry\n/clear\nHello there\n/exit\n", capture_output=True, text=True, timeout=60, check=False,
                              env=environment())
        self.assertEqual(done.returncode, 0, done.stderr)
        answer = self.stack.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 12,
                                                          "temperature": 0}).body["choices"][0]["message"]["content"]
        self.assertEqual(done.stdout, (answer + "\n") * 3)
        self.assertEqual(run_program("tandem", "chat", "--url", "http://127.0.0.1:1")[0], 1)
        self.assertEqual(run_program("tandem", "chat", "--url", "ftp://x")[0], 2)

    def test_large_bodies_are_refused(self):
        reply = self.stack.request("POST", "/v1/completions", None, headers={"Content-Length": str(1 << 40)})
        self.assertEqual(reply.status, 413)


class Keys(unittest.TestCase):
    def test_every_path_but_health_needs_the_key(self):
        with Stack(GOLDENS / "qwen3-like", *EXACT, "--api-key", "secret-1") as stack:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret-1"}):
                reply = stack.get("/v1/models", headers=headers)
                self.assertEqual(reply.status, 401)
                self.assertEqual(reply.body["error"]["type"], "authentication_error")
            self.assertEqual(stack.get("/v1/models", headers={"Authorization": "Bearer secret-1"}).status, 200)
            self.assertEqual(stack.get("/health").status, 200)
            self.assertEqual(stack.get("/ready").status, 200)
            self.assertEqual(stack.get("/metrics").status, 401)


class ChatTemplates(unittest.TestCase):
    def test_another_template(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
            file.write("{% for m in messages %}[{{ m.content }}]{% endfor %}")
            file.flush()
            with Stack(TINY, *EXACT, "--chat-template", file.name) as stack:
                tokens = stack.post("/tokenize", {"messages": [{"role": "user", "content": "x"}]}).body["tokens"]
                self.assertEqual(stack.post("/detokenize", {"tokens": tokens}).body["prompt"], "[x]")

    def test_one_that_cannot_be_used_ends_the_start(self):
        for text, cause in (("a\n{% for %}", "line 2"), ("{{ x | nothing }}", "nothing"), ("", "empty")):
            with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
                file.write(text)
                file.flush()
                status, _, errors = run_program("tandem", "serve", str(TINY), "--port", "0", "--chat-template", file.name)
                self.assertEqual(status, 2, errors)
                self.assertIn("--chat-template", errors)
                self.assertIn(cause, errors)


class BrokenModelTemplate(unittest.TestCase):
    def test_it_shows_at_the_start(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(TINY, folder, dirs_exist_ok=True)
            (pathlib.Path(folder) / "chat_template.jinja").write_text("a\n{{ messages | nothing }}")
            with Stack(folder, *EXACT) as stack:
                shown = (stack.run_dir / "serve.out").read_text()
                self.assertIn("line 2", shown)
                self.assertIn("nothing", shown)
                error = stack.post("/v1/chat/completions", CHAT)
                self.assertEqual(error.status, 400)
                self.assertIn("line 2", error.body["error"]["message"])
                self.assertTrue(stack.complete(prompt="x", max_tokens=2)["choices"])


class EndOfText(unittest.TestCase):
    def test_the_tokenizer_alone_names_it(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            shutil.copytree(TINY, folder, dirs_exist_ok=True)
            config = json.loads((folder / "config.json").read_text())
            end = config.pop("eos_token_id")[0]
            (folder / "config.json").write_text(json.dumps(config))
            (folder / "generation_config.json").unlink()
            with Stack(folder, *EXACT) as stack:
                choice = stack.complete(prompt=[5, 6], max_tokens=4, temperature=0, logit_bias={str(end): 100})["choices"][0]
                self.assertEqual(choice["finish_reason"], "stop", choice)


class ServedNames(unittest.TestCase):
    def test_names_and_length(self):
        with Stack(TINY, *EXACT, "--served-model-name", "first", "--served-model-name", "second", "--max-model-len", "300") as stack:
            self.assertEqual({m["id"]: m["max_model_len"] for m in stack.get("/v1/models").body["data"]}, {"first": 300, "second": 300})
            case = golden("llama3-like")["cases"][1]
            for name in ("first", "second"):
                out = stack.complete(model=name, prompt=case["prompt_token_ids"], max_tokens=8, temperature=0, return_token_ids=True)
                self.assertEqual(out["model"], name)
                self.assertEqual(out["choices"][0]["token_ids"], case["token_ids"][:8])
            self.assertEqual(stack.post("/v1/completions", {"model": "first", "prompt": [5] * 290, "max_tokens": 11}).status, 400)


if __name__ == "__main__":
    unittest.main(verbosity=2)
