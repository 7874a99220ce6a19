#!/usr/bin/env python3
"""Style and dependency rules of the project: prints file:line of what breaks one; exit status 1 if anything does."""
import argparse
import sys
import time

import docs
import formatting
import layering
import layout
import sizes
import words

CHECKS = {module.__name__: module for module in (layout, sizes, layering, words, docs, formatting)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, epilog="; ".join(f"{n}: {m.__doc__.splitlines()[0]}" for n, m in CHECKS.items()))
    parser.add_argument("--only", action="append", choices=sorted(CHECKS), help="this check only (may repeat)")
    args = parser.parse_args()
    total = 0
    for name, module in CHECKS.items():
        if args.only and name not in args.only:
            continue
        started = time.monotonic()
        findings = sorted(module.check())
        for finding in findings:
            print(f"{finding} [{name}]")
        print(f"{name}: {len(findings)} findings ({time.monotonic() - started:.1f} s)", flush=True)
        total += len(findings)
    print(f"tidy: {total} findings")
    sys.exit(1 if total else 0)


if __name__ == "__main__":
    main()
