"""The project's files, and C++ text without what comments and literals hold."""
import functools
import pathlib
import re
import subprocess
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
CPP = (".cc", ".h", ".cu", ".cuh")
PRODUCTION = ("common/", "router/", "gpu_worker/", "cpu_attention_worker/", "cli/")


class Finding(NamedTuple):
    """A broken rule at a place."""

    path: str
    line: int
    message: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.message}"


@functools.lru_cache(maxsize=None)
def project_files():
    """Paths relative to the root: what git tracks or would track; in an exported tree, everything but build output."""
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, text=True,
                            capture_output=True, check=False)
    if listed.returncode == 0:
        names = listed.stdout.splitlines()
    else:
        names = [str(p.relative_to(ROOT)) for p in ROOT.rglob("*") if p.is_file()]
        names = [n for n in names if not re.match(r"build[-/]|\.cache/|\.git/", n) and "__pycache__" not in n]
    return tuple(sorted(n for n in set(names) if (ROOT / n).is_file()))


def files_ending(*endings, under=("",)):
    return [n for n in project_files() if n.endswith(endings) and n.startswith(tuple(under))]


@functools.lru_cache(maxsize=None)
def read(path):
    return (ROOT / path).read_text(encoding="utf-8", errors="replace")


_LITERAL = re.compile(r'//[^\n]*|/\*.*?\*/|R"(?P<d>[^()\\\s]{0,16})\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"|'
                      r"(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'", re.DOTALL)


def without_literals(text):
    """`text` with comments and the insides of literals blanked, lines and columns kept."""

    def blank(match):
        found = match[0]
        if found.startswith("/"):
            return re.sub(r"[^\n]", " ", found)
        return found[0] + re.sub(r"[^\n]", " ", found[1:-1]) + found[-1]

    return _LITERAL.sub(blank, text)


@functools.lru_cache(maxsize=None)
def code_of(path):
    return without_literals(read(path))


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def matches_in(path, pattern, text=None):
    """(line number, match) of `pattern` in a file's code, or in `text`."""
    body = code_of(path) if text is None else text
    return [(line_of(body, m.start()), m) for m in re.finditer(pattern, body, re.MULTILINE)]
