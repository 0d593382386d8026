#!/usr/bin/env python3
"""Checks that the documents still name what is there: folders, verbs, flags, scripts, exit codes, environment variables, headings, relative links."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = sorted(path for folder in ("src", "tests", "fuzz", "sim", "proto") for path in (ROOT / folder).rglob("*")
                 if path.suffix in (".h", ".cc", ".py", ".proto"))
# Set by others, or for people at tests only.
FOREIGN_VARIABLES = {"HOME"}


def check_folders():
    table = set(re.findall(r"^\| `([a-z/]+/)` \|", (ROOT / "ARCHITECTURE.md").read_text(), re.M))
    folders = {f"src/{p.name}/" for p in (ROOT / "src").iterdir() if p.is_dir()}
    folders |= {f"src/{room}/llama/" for room in ("engine", "text") if (ROOT / "src" / room / "llama").is_dir()}
    folders |= {f"{name}/" for name in ("proto", "tests", "scripts", "docs", "cmake", "fuzz", "bench", "sim", "deploy") if (ROOT / name).is_dir()}
    for folder in sorted(folders - table):
        yield f"ARCHITECTURE.md: its folder table lacks {folder}"
    for folder in sorted(table - folders):
        yield f"ARCHITECTURE.md: its folder table names {folder}, which is not there"
    testing = (ROOT / "docs/testing.md").read_text()
    for folder in sorted(p.name for p in (ROOT / "tests").iterdir() if p.is_dir()):
        if f"`tests/{folder}/" not in testing:
            yield f"docs/testing.md: no row for tests/{folder}/"


def check_scripts(text):
    readme = (ROOT / "README.md").read_text()
    for needed in ("scripts/quickstart", "scripts/test"):
        if needed not in readme:
            yield f"README.md does not name {needed}"
    for script in [*(ROOT / "scripts").iterdir(), *(ROOT / "bench").glob("*.py")]:
        name = str(script.relative_to(ROOT))
        is_program = script.read_text().startswith("#!")
        if is_program and f"`{name}" not in text and f" {name}" not in text:
            yield f"no document names {name}"
        if is_program and script.parent.name == "scripts" and not script.stat().st_mode & 0o100:
            yield f"{name} is not executable"


def check_command_line(text):
    operating = (ROOT / "docs/operating.md").read_text()
    for name in sorted(set(re.findall(r"int (\w+)\(int argc", (ROOT / "src/cli/verbs.h").read_text()))):
        verb = {"ShowStatus": "status"}.get(name, name.lower())
        if f"meshnet {verb}" not in text:
            yield f"no document shows `meshnet {verb}`"
    for source in (ROOT / "src/cli").glob("*.[ch]*"):
        for names in re.findall(r"arguments\.(?!Hidden|Usage)[A-Z]\w*\(\"(-[^\"]+)\"", source.read_text()):
            flag = next(name for name in names.split(",") if name.startswith("--"))
            shown = "--hot-kv-" if flag.startswith("--hot-kv-") else flag
            if not re.search(re.escape(shown) + r"(?![a-z])" if shown == flag else re.escape(shown), operating):
                yield f"docs/operating.md: no word of {flag} ({source.name})"
    codes = (ROOT / "src/base/status.h").read_text()
    contract = (ROOT / "docs/contract.md").read_text()
    for code in re.findall(r"k\w+ = (\d+),", codes):
        if not re.search(rf"^\| {code} \|", contract, re.M):
            yield f"docs/contract.md: no row for exit code {code}"


def check_variables(text):
    names = {"MESHNET_HOT_KV_MAX_SESSIONS", "MESHNET_HOT_KV_CONTEXT_TOKENS", "MESHNET_HOT_KV_BUDGET_TOKENS", "MESHNET_HOT_KV_TTL_SECONDS"}
    for source in SOURCES:
        if source.relative_to(ROOT).parts[0] == "src" and not source.name.endswith("_test.cc"):
            names |= set(re.findall(r"getenv\(\"(\w+)\"", source.read_text()))
    for name in sorted(names - FOREIGN_VARIABLES):
        if f"`{name}`" not in text:
            yield f"no document explains {name}"


def check_references():
    """Documents that comments and other documents point at, with the heading behind a comma ("docs/engine.md, Calls")."""
    for source in SOURCES:
        for name, heading in re.findall(r"(docs/[\w-]+\.md)(?:, ([A-Z]\w+))?", source.read_text()):
            if not (ROOT / name).exists():
                yield f"{source.relative_to(ROOT)}: there is no {name}"
            elif heading and not re.search(rf"^#+ {heading}|^\| {heading} \|", (ROOT / name).read_text(), re.M):
                yield f"{source.relative_to(ROOT)}: {name} has no \"{heading}\""
    for document in DOCUMENTS:
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text()):
            if not link.startswith(("http", "mailto:")) and not (document.parent / link).exists():
                yield f"{document.relative_to(ROOT)}: broken link {link}"


def main():
    text = "\n".join(document.read_text() for document in DOCUMENTS)
    problems = [*check_folders(), *check_scripts(text), *check_command_line(text), *check_variables(text), *check_references()]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
