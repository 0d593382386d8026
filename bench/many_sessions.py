#!/usr/bin/env python3
"""Many sessions at once over meshnet's workers against one llama.cpp process (llama-batched-bench), and against one session.

Both sides run at once, in turn (slices.py). Each round starts both anew, because two starts of the same processes differ too. A rate is
all tokens, prompt and generated, over a side's own time."""
import argparse
import json
import re
import selectors
import signal
import socket
import statistics
import subprocess
import time

import servers
import slices


def burst(server, sessions, prompt, generated, seed):
    """Streams `sessions` completions at once, to their last byte. One thread that hardly looks at what it reads: a client that
    parses each event would take several percent of the machine away from the side it measures."""
    selector = selectors.DefaultSelector()
    received = {}
    for number in range(sessions):
        body = json.dumps({"prompt": servers.prompt_of(prompt, seed * 1000 + number), "max_tokens": generated, "temperature": 0,
                           "stream": True, "ignore_eos": True}).encode()
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
                           + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        selector.register(connection, selectors.EVENT_READ)
        received[connection] = bytearray()
    while selector.get_map():
        for key, _ in selector.select():
            block = key.fileobj.recv(65536)
            received[key.fileobj] += block
            if not block:
                selector.unregister(key.fileobj)
                key.fileobj.close()
    for answer in received.values():
        if b"data: [DONE]" not in answer or b'"finish_reason":"length"' not in answer:
            raise RuntimeError(f"an answer ended early: {bytes(answer[-500:])}")


def start_batched_bench(tools, model, threads, sessions, prompt, generated, rows):
    """The process, its model loaded and its first decode at hand."""
    command = ["stdbuf", "-oL", f"{tools}/llama-batched-bench", "-m", model, "-t", str(threads), "-tb", str(threads), "-c",
               str(sessions * (prompt + generated + 64)), "-npp", str(prompt), "-ntg", str(generated), "-npl", str(sessions), "-fa", "on", "-b", str(rows), "-ub", str(rows)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for line in process.stdout:
        if line.startswith("|--"):  # the rule under the table's head
            return process
    raise RuntimeError("llama-batched-bench ended before its table")


def wait_for_row(process):
    for line in process.stdout:
        if re.match(r"\|\s+\d+", line):
            return
    raise RuntimeError("llama-batched-bench ended without a figure")


def compare(arguments, sessions, round_number):
    """Tokens a second of meshnet and of one process, in slices, and of one meshnet session alone."""
    prompt, generated = arguments.prompt, arguments.generated
    server = bench = None

    def start_bench():
        process = start_batched_bench(arguments.tools, arguments.model, arguments.threads, sessions, prompt, generated, arguments.ubatch)
        process.send_signal(signal.SIGSTOP)
        return process

    try:
        # Who starts first gets better pages: a few percent, so the rounds take turns.
        if round_number % 2 == 0:
            bench = start_bench()
        server = servers.meshnet(arguments.model, arguments.threads, arguments.shards, context=(prompt + generated + 64 + 255) // 256 * 256,
                                 sessions=sessions, more=("-ub", str(arguments.ubatch)))
        burst(server, 1, prompt, 8, 0)
        begin = time.monotonic()
        burst(server, 1, prompt, generated, 500 + round_number)
        single = (prompt + generated) / (time.monotonic() - begin)
        bench = bench or start_bench()
        ours = slices.Side([server.processes[-1].pid], lambda clock: burst(server, sessions, prompt, generated, round_number))
        theirs = slices.Side([bench.pid], lambda clock: wait_for_row(bench))
        slices.alternate([ours, theirs])
        tokens = sessions * (prompt + generated)
        return tokens / ours.clock(), tokens / theirs.clock(), single
    finally:
        if bench:
            bench.kill()
            bench.wait()
        if server:
            server.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tools", required=True, help="folder printed by scripts/llama-tools llama-batched-bench")
    parser.add_argument("--sessions", default="16,64")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ubatch", type=int, default=512, help="-ub of both sides: rows of one chunk")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--generated", type=int, default=64)
    arguments = parser.parse_args()

    print(f"{'sessions':>8} {'meshnet t/s':>12} {'one process t/s':>16} {'ratio':>6} {'one session t/s':>16}")
    for count in (int(count) for count in arguments.sessions.split(",")):
        rows = []
        for number in range(1, arguments.rounds + 1):
            ours, theirs, single = compare(arguments, count, number)
            rows.append((ours, theirs, ours / theirs, single))
            print(f"{count:8} {ours:12.2f} {theirs:16.2f} {ours / theirs:6.3f} {single:16.2f}  round {number}", flush=True)
        print(f"{count:8} " + "{:12.2f} {:16.2f} {:6.3f} {:16.2f}  median".format(*map(statistics.median, zip(*rows))), flush=True)


if __name__ == "__main__":
    main()
