"""Links and source paths that the documentation names must exist."""
import re

from sources import Finding, ROOT, files_ending, line_of, project_files, read

LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)|!\[[^\]\n]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^[ \t]*(```|~~~).*?^[ \t]*\1[ \t]*$", re.MULTILINE | re.DOTALL)
PATH = re.compile(r"`((?:common|router|gpu_worker|cpu_attention_worker|cli|proto|tests|docs|scripts|deploy|docker|cmake)/[\w./*{},-]*)`")


def slug(heading):
    """The anchor that GitHub gives a heading."""
    text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip().lower())
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(text):
    plain = FENCE.sub("", text)
    return {slug(m[1]) for m in re.finditer(r"^#{1,6}\s+(.+?)\s*#*$", plain, re.MULTILINE)}


def blank_fences(text):
    return FENCE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def link_finding(path, target):
    """What is wrong with a link from `path`, or None."""
    if re.match(r"[a-z][a-z+.-]*:", target):
        return None
    name, _, anchor = target.partition("#")
    base = (ROOT / path).parent / name if name else ROOT / path
    if not base.exists():
        return f"the link to {target} leads nowhere"
    if anchor and base.suffix == ".md" and anchor not in anchors(base.read_text(encoding="utf-8")):
        return f"{name or path} has no heading #{anchor}"
    return None


def expand(text):
    """`a/{b,c}.h` -> [a/b.h, a/c.h]."""
    match = re.search(r"\{([^{}]*)\}", text)
    if not match:
        return [text]
    return [done for part in match[1].split(",") for done in expand(text[:match.start()] + part + text[match.end():])]


def path_exists(name, files):
    """A file or folder, either possibly with `*`, or a file named without its ending (`x/y` for x/y.h)."""
    pattern = re.compile(re.escape(name.rstrip("/")).replace(r"\*", "[^/]*") + r"(?:$|/|\.\w+$)")
    return any(pattern.match(path) for path in files)


def check():
    findings = []
    for path in files_ending(".md"):
        if path.startswith("tests/data/"):
            continue
        text = blank_fences(read(path))
        for match in LINK.finditer(text):
            if message := link_finding(path, match[1] or match[2]):
                findings.append(Finding(path, line_of(text, match.start()), message))
        for match in PATH.finditer(text):
            findings += [Finding(path, line_of(text, match.start()), f"{name} does not exist") for name in expand(match[1])
                         if not path_exists(name, project_files())]
    return findings
