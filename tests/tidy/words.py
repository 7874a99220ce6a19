"""Words that must not stay in the tree, and tests that are switched off or sleep."""
import re

from sources import CPP, Finding, files_ending, matches_in, read

# Written in pieces, so that the rules do not find themselves.
UNFINISHED = r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b|not imple" r"mented|unimple" r"mented|\bplace" r"holder\b"
MACHINE_PATHS = r"(?<![\w.}~-])/(?:(?:wo" r"rk|fa" r"rm|ro" r"ot)/|ho" r"me/\w)|\.\./sha" r"red\b"
SWITCHED_OFF = r"\bDISA" r"BLED_|\bGTEST_" r"SKIP\(\)(?!\s*<<)|@unittest\.skip\(|\bsleep_" r"for\s*\(|\bSleep" r"For\s*\(|\b(?:u|nano)sleep\s*\("
REASON = re.compile(r"reason:", re.IGNORECASE)
TEXT = CPP + (".py", ".sh", ".md", ".txt", ".cmake", ".json", ".yml", ".yaml", ".proto", "Makefile", "Dockerfile", "run")


def _findings(path, pattern, message, excused=None):
    lines = read(path).splitlines()
    found = []
    for line, match in matches_in(path, pattern, read(path)):
        near = lines[max(0, line - 3):line]
        if excused is None or not any(excused.search(text) for text in near):
            found.append(Finding(path, line, f"{match[0].strip()}: {message}"))
    return found


def check():
    findings = []
    for path in files_ending(*CPP, ".proto", ".py", ".sh"):
        if not path.startswith("tests/fakes/"):
            findings += _findings(path, UNFINISHED, "finish it, or make it a clear error")
    for path in files_ending(*TEXT):
        if not path.startswith("tests/data/"):
            findings += _findings(path, MACHINE_PATHS, "a path of one machine")
    for path in files_ending(*CPP, ".py", under=("tests/",)):
        findings += _findings(path, SWITCHED_OFF, "off or asleep; say why: GTEST_" "SKIP() << ..., or a comment 'reason: ...' on the line or the two before", REASON)
    return findings
