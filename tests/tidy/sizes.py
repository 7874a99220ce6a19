"""Sizes: files, functions and parameter lists. exceptions.json names what is over; it may only shrink."""
import json

from functions import cpp_functions, python_functions
from sources import CPP, Finding, ROOT, files_ending, read

FILE_LINES = 500
FILE_LINES_HARD = 800
FUNCTION_LINES = 70
PARAMETERS = 5
EXCEPTIONS = "tests/tidy/exceptions.json"


class Exceptions:
    """The excused sizes. A size above its entry is a finding; so is an entry that is higher than needed or no longer needed."""

    def __init__(self, table):
        self.table = table
        self.seen = set()

    def over(self, kind, key, size, limit):
        """Returns the message for a `size` that no entry covers, or None."""
        allowed = self.table.get(kind, {}).get(key)
        if size <= limit:
            return None
        if allowed is None:
            return f"{size}, the limit is {limit}"
        self.seen.add((kind, key))
        if size > allowed:
            return f"{size}, over its exception of {allowed}"
        if size < allowed:
            return f"{size}, so lower its exception of {allowed} in {EXCEPTIONS}"
        return None

    def unused(self):
        return [f"{kind} of {key} is within the limit: remove its exception" for kind, entries in self.table.items()
                for key in entries if (kind, key) not in self.seen]


def functions_of(path):
    return python_functions(read(path)) if path.endswith(".py") else cpp_functions(read(path))


def check_file(path, functions, line_count, exceptions):
    findings = []
    if line_count > FILE_LINES_HARD:
        findings.append(Finding(path, FILE_LINES_HARD, f"file of {line_count} lines, never more than {FILE_LINES_HARD}"))
    elif message := exceptions.over("file_lines", path, line_count, FILE_LINES):
        findings.append(Finding(path, 1, f"lines in file: {message}"))
    for function in functions:
        key = f"{path}:{function.name}"
        if message := exceptions.over("function_lines", key, function.lines, FUNCTION_LINES):
            findings.append(Finding(path, function.first_line, f"lines in {function.name}: {message}"))
        if message := exceptions.over("parameters", key, function.parameters, PARAMETERS):
            findings.append(Finding(path, function.first_line, f"parameters of {function.name}: {message}"))
    return findings


def check():
    exceptions = Exceptions(json.loads((ROOT / EXCEPTIONS).read_text()))
    findings = []
    for path in files_ending(*CPP, ".py"):
        findings += check_file(path, functions_of(path), read(path).count("\n"), exceptions)
    for path in files_ending(".proto", ".cmake", ".sh", "CMakeLists.txt"):
        findings += check_file(path, [], read(path).count("\n"), exceptions)
    findings += [Finding(EXCEPTIONS, 1, message) for message in exceptions.unused()]
    return findings
