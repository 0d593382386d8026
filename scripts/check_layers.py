#!/usr/bin/env python3
"""Checks that an include goes to a strictly lower row, and that the outside world stays in files whose name says so."""
import pathlib
import re
import sys

ROWS = [
    ["base"],
    ["protocol", "grammar"],
    ["gguf", "kv"],
    ["plan"],
    ["engine", "wire", "text"],
    ["session"],
    ["worker", "gateway"],
    ["cli"],
]
ROW = {room: number for number, rooms in enumerate(ROWS) for room in rooms}
LLAMA_ROOMS = {"engine/llama", "text/llama"}
# Header prefix -> rooms that may include it, and what the file's name must contain (anything when None).
OUTSIDE = [
    (r"(llama|ggml|gguf|ggml-.*|llama-cpp|common|chat|sampling|server-.*|json-schema-to-grammar|mtmd.*)\.h$", LLAMA_ROOMS, None),
    (r"grpcpp/|grpc/", {"wire", "worker"}, r"grpc|service|client|tls|stream|server"),
    (r"meshnet/shard/v1/", {"wire", "worker"}, None),
    (r"(cpp-httplib/)?httplib\.h$", {"gateway", "cli"}, r"http"),
    (r"openssl/", {"base", "wire", "gateway"}, r"sha256|system|tls|http"),
    (r"(thread|mutex|condition_variable|atomic|fstream|filesystem)$", {"base", "gguf", "engine", "engine/llama", "wire", "text", "text/llama", "session", "worker", "gateway", "cli"}, None),
]


def room_of(path):
    parts = path.parts
    return "/".join(parts[:2]) if "/".join(parts[:2]) in LLAMA_ROOMS else parts[0]


def main():
    source = pathlib.Path(__file__).resolve().parent.parent / "src"
    problems = []
    for path in sorted(source.rglob("*")):
        if path.suffix not in (".h", ".cc"):
            continue
        relative = path.relative_to(source)
        room = room_of(relative)
        top = room.split("/")[0]
        is_test = path.stem.endswith("_test")
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
            if not match:
                continue
            header = match.group(2)
            target = header.split("/")[0]
            where = f"src/{relative}:{number}"
            if match.group(1) == '"' and target in ROW and "/" in header:
                target_room = room_of(pathlib.Path(header))
                own = target_room == room or (room in LLAMA_ROOMS and target == top)
                if not own and ROW[target] >= ROW[top]:
                    problems.append(f"{where}: {room} (row {ROW[top]}) includes {header} (row {ROW[target]}): only lower rows")
                if target_room in LLAMA_ROOMS and room not in LLAMA_ROOMS and top != "cli":
                    problems.append(f"{where}: only cli wires {target_room}")
                continue
            if is_test:
                continue
            for pattern, rooms, name in OUTSIDE:
                if not re.match(pattern, header):
                    continue
                if room not in rooms:
                    problems.append(f"{where}: <{header}> does not belong in room {room}")
                elif name and not re.search(name, path.stem):
                    problems.append(f"{where}: a file that includes <{header}> says so in its name ({name})")
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
