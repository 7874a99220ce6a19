#!/usr/bin/env python3
"""The pages at / and /docs in a headless Chromium (Debian's package chromium), driven over its debugging pipe. Skipped where there is none."""
import base64
import json
import os
import shutil
import subprocess
import tempfile
import unittest

from harness import DEMO_MODEL, EXACT, TINY, Stack, TokenStream, wait_until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SCREENSHOT = os.environ.get("TANDEM_PAGE_SCREENSHOT")  # a file to put a picture of the page into


class Browser:
    """One page of a headless Chromium; a context manager."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self.commands = os.pipe()
        self.answers, from_browser = os.pipe()

        def use_3_and_4():
            os.dup2(to_browser, 13), os.dup2(from_browser, 14)
            os.dup2(13, 3), os.dup2(14, 4)

        self.process = subprocess.Popen(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe", "--window-size=1280,800",
             f"--user-data-dir={self.folder.name}"], preexec_fn=use_3_and_4, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser), os.close(from_browser)
        self.held = b""
        self.loads = []
        self.last_id = 0
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Network.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.commands), os.close(self.answers)
        self.folder.cleanup()

    def call(self, method, **params):
        self.last_id += 1
        message = {"id": self.last_id, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.held:
                piece = os.read(self.answers, 1 << 16)
                if not piece:
                    raise AssertionError("the browser ended")
                self.held += piece
            line, self.held = self.held.split(b"\0", 1)
            answer = json.loads(line)
            if answer.get("method") == "Network.requestWillBeSent":
                self.loads.append(answer["params"]["request"]["url"])
            if answer.get("id") == self.last_id:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]

    def evaluate(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    @property
    def requested(self):
        self.evaluate("1")  # takes what came meanwhile
        return self.loads


@unittest.skipUnless(CHROMIUM, "there is no program chromium (scripts/install_dependencies.sh --browser installs it)")
class Pages(unittest.TestCase):
    def test_chat_and_plots(self):
        with Stack(TINY, *EXACT) as stack, Browser() as browser:
            browser.call("Page.navigate", url=stack.endpoints["http"] + "/")
            wait_until(lambda: browser.evaluate("document.querySelectorAll('#model option').length") == 1, "the model is listed")
            browser.evaluate("document.getElementById('text').value = 'Why was the signal so distant?';"
                             "document.getElementById('form').requestSubmit()")
            wait_until(lambda: browser.evaluate("document.querySelectorAll('.turn.assistant').length === 1 && "
                                                "document.getElementById('send').textContent === 'Send'"), "the answer is complete")
            self.assertTrue(browser.evaluate("document.querySelector('.turn.assistant').textContent"))
            self.assertEqual(browser.evaluate("document.querySelectorAll('.turn.error').length"), 0)
            # The plots: after a few polls something is drawn.
            wait_until(lambda: "/" in (browser.evaluate("document.getElementById('blocks-now').textContent") or ""), "the plots have values")
            wait_until(lambda: browser.evaluate(
                "(() => { const c = document.getElementById('tokens');"
                "return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v > 0); })()"), "a curve is drawn")
            self.assertEqual([u for u in browser.requested if not u.startswith(stack.endpoints["http"])], [], "nothing is loaded from elsewhere")

    def test_documentation(self):
        with Stack(TINY, *EXACT) as stack, Browser() as browser:
            browser.call("Page.navigate", url=stack.endpoints["http"] + "/docs")
            wait_until(lambda: browser.evaluate("document.querySelectorAll('details').length") >= 10, "the operations are listed")
            self.assertIn("temperature", browser.evaluate("document.getElementById('list').textContent"))

    @unittest.skipUnless(SCREENSHOT, "TANDEM_PAGE_SCREENSHOT names no file")
    def test_picture(self):
        flags = ("--num-gpu-blocks-override", "48", "--cpu-kv-size", "256MiB", "--max-model-len", "1024")
        with Stack(DEMO_MODEL, *flags) as stack, Browser() as browser:
            browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
            browser.call("Page.navigate", url=stack.endpoints["http"] + "/")
            wait_until(lambda: browser.evaluate("document.querySelectorAll('#model option').length") == 1, "the model is listed")
            streams = [TokenStream(stack, f"{thing} is", 600) for thing in ("The sea", "A bridge", "My house", "The moon", "An island", "A violin")]
            browser.evaluate("document.getElementById('text').value = 'What is the capital of France?';"
                             "document.getElementById('form').requestSubmit()")
            wait_until(lambda: browser.evaluate("document.getElementById('send').textContent === 'Send'"), "the answer is complete", 120)
            streams[0].wait_more(300)
            with open(SCREENSHOT, "wb") as file:
                file.write(base64.b64decode(browser.call("Page.captureScreenshot", format="png")["data"]))


if __name__ == "__main__":
    unittest.main(verbosity=2)
