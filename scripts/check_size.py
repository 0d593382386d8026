#!/usr/bin/env python3
"""Files near 400 lines (tests 800), functions near 60. What is past that is listed in size_excess.txt and may only shrink.

check_size.py --update rewrites the list with today's figures where they shrank; a new entry is written by hand, with its reason."""
import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXCESS = ROOT / "scripts" / "size_excess.txt"
FILE_LINES = 400
TEST_LINES = 800
FUNCTION_LINES = 60
FOLDERS = ["src", "tests", "sim", "fuzz", "bench"]


def long_functions(lines):
    """(name, length) of function bodies, by indentation: a line that opens a block at depth d and the line that closes it."""
    start = None
    for number, line in enumerate(lines):
        if start is None:
            if re.match(r"^[A-Za-z_].*\)[^;]*\{\s*$", line) and not line.startswith(("namespace", "class", "struct", "enum", "extern")):
                start = number
        elif line.startswith("}"):
            length = number - start + 1
            if length > FUNCTION_LINES:
                match = re.search(r"([A-Za-z_~:]+)\s*\(", lines[start])
                yield (match.group(1) if match else "?"), length
            start = None


def measure():
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")) if (ROOT / folder).is_dir() else []:
            if path.suffix not in (".h", ".cc", ".py"):
                continue
            lines = path.read_text().splitlines()
            name = str(path.relative_to(ROOT))
            is_test = path.stem.endswith("_test") or folder == "tests"
            if len(lines) > (TEST_LINES if is_test else FILE_LINES):
                found[name] = len(lines)
            if path.suffix != ".py" and not is_test:
                for function, length in long_functions(lines):
                    found[f"{name} {function}"] = length
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--update", action="store_true")
    arguments = parser.parse_args()
    allowed = {}
    for line in EXCESS.read_text().splitlines() if EXCESS.exists() else []:
        if line.strip() and not line.startswith("#"):
            key, lines, reason = (part.strip() for part in line.split("|", 2))
            allowed[key] = (int(lines), reason)
    found = measure()
    problems = []
    for key, lines in found.items():
        if key not in allowed:
            problems.append(f"{key}: {lines} lines; what is the second idea in it? (or list it in scripts/size_excess.txt with a reason)")
        elif lines > allowed[key][0]:
            problems.append(f"{key}: grew from {allowed[key][0]} to {lines} lines; old excess may only shrink")
    for key in allowed:
        if key not in found:
            problems.append(f"{key}: no longer too long; take it out of scripts/size_excess.txt")
    if arguments.update:
        header = [line for line in EXCESS.read_text().splitlines() if line.startswith("#")] if EXCESS.exists() else []
        rows = [f"{key} | {min(found[key], lines)} | {reason}" for key, (lines, reason) in sorted(allowed.items()) if key in found]
        EXCESS.write_text("\n".join(header + rows) + "\n")
        return 0
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
