"""clang-format leaves the C++ files as they are."""
import re
import shutil
import subprocess

from sources import CPP, Finding, ROOT, files_ending

VERSION = "14"  # other versions format some things differently


def check():
    program = shutil.which("clang-format")
    if program is None:
        print("formatting: left out, there is no clang-format")
        return []
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    if not re.search(rf"version {VERSION}\.", shown):
        print(f"formatting: left out, it needs clang-format {VERSION}, there is {shown.strip()}")
        return []
    done = subprocess.run([program, "--dry-run", "--ferror-limit=1", *files_ending(*CPP)], cwd=ROOT, capture_output=True, text=True, check=False)
    return [Finding(match[1], int(match[2]), "not as clang-format writes it (make format)")
            for match in re.finditer(r"^(\S+?):(\d+):\d+: (?:warning|error): code should be clang-formatted", done.stderr, re.MULTILINE)]
