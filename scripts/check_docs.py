#!/usr/bin/env python3
"""Checks that the documents still name what is there: folders, verbs, scripts, environment variables, relative links."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main():
    problems = []
    architecture = (ROOT / "ARCHITECTURE.md").read_text()
    table = set(re.findall(r"^\| `([a-z/]+/)` \|", architecture, re.M))
    folders = {f"src/{p.name}/" for p in (ROOT / "src").iterdir() if p.is_dir()}
    folders |= {f"src/{room}/llama/" for room in ("engine", "text") if (ROOT / "src" / room / "llama").is_dir()}
    folders |= {f"{name}/" for name in ("proto", "tests", "scripts", "docs", "cmake", "fuzz", "bench", "sim", "deploy") if (ROOT / name).is_dir()}
    for folder in sorted(folders - table):
        problems.append(f"ARCHITECTURE.md: its folder table lacks {folder}")
    for folder in sorted(table - folders):
        problems.append(f"ARCHITECTURE.md: its folder table names {folder}, which is not there")

    readme = (ROOT / "README.md").read_text()
    for needed in ("scripts/quickstart", "scripts/test"):
        if needed not in readme:
            problems.append(f"README.md does not name {needed}")
        if not (ROOT / needed).stat().st_mode & 0o100:
            problems.append(f"{needed} is not executable")

    documents = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    text = "\n".join(document.read_text() for document in documents)
    for name in sorted(set(re.findall(r"int (\w+)\(int argc", (ROOT / "src/cli/verbs.h").read_text()))):
        verb = {"ShowStatus": "status", "ProbeShard": None}.get(name, name.lower())
        if verb and f"meshnet {verb}" not in text:
            problems.append(f"no document shows `meshnet {verb}`")
    for name in ("MAX_SESSIONS", "CONTEXT_TOKENS", "BUDGET_TOKENS", "TTL_SECONDS"):
        if f"MESHNET_HOT_KV_{name}" not in text:
            problems.append(f"no document explains MESHNET_HOT_KV_{name}")
    for document in documents:
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text()):
            if not link.startswith(("http", "mailto:")) and not (document.parent / link).exists():
                problems.append(f"{document.relative_to(ROOT)}: broken link {link}")
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
