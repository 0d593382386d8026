#!/usr/bin/env python3
"""Many sessions at once over meshnet's workers against one llama.cpp process (llama-batched-bench), and against one session.

The two sides alternate; a rate is all tokens, prompt and generated, over the whole time."""
import argparse
import re
import statistics
import subprocess
import threading
import time

import servers


def batched_bench(tools, model, threads, sessions, prompt, generated):
    command = [f"{tools}/llama-batched-bench", "-m", model, "-t", str(threads), "-tb", str(threads), "-c", str(sessions * (prompt + generated + 64)),
               "-npp", str(prompt), "-ntg", str(generated), "-npl", str(sessions), "-fa", "on", "-b", "512", "-ub", "512"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for line in output.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 10 and re.fullmatch(r"\d+", cells[1]):
            return float(cells[10])  # S t/s
    raise RuntimeError(f"no figure in: {output[-500:]}")


def burst(server, sessions, prompt, generated, seed):
    failures = []

    def one(number):
        try:
            servers.complete(server, servers.prompt_of(prompt, seed * 1000 + number), generated)
        except Exception as error:  # reported below: a failed answer must not pass as a fast one
            failures.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(sessions)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return sessions * (prompt + generated) / (time.monotonic() - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tools", required=True)
    parser.add_argument("--sessions", default="16,64")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--generated", type=int, default=64)
    arguments = parser.parse_args()

    counts = [int(count) for count in arguments.sessions.split(",")]
    context = (arguments.prompt + arguments.generated + 64 + 255) // 256 * 256
    print(f"{'sessions':>8} {'meshnet t/s':>12} {'one process t/s':>16} {'ratio':>6} {'one session t/s':>16}")
    for count in counts:
        server = servers.meshnet(arguments.model, arguments.threads, arguments.shards, context=context, sessions=count)
        try:
            ours, theirs, single = [], [], []
            burst(server, 1, arguments.prompt, 8, 0)
            for number in range(1, arguments.rounds + 1):
                ours.append(burst(server, count, arguments.prompt, arguments.generated, number))
                theirs.append(batched_bench(arguments.tools, arguments.model, arguments.threads, count, arguments.prompt, arguments.generated))
                single.append(burst(server, 1, arguments.prompt, arguments.generated, 500 + number))
        finally:
            server.stop()
        ratio = statistics.median(a / b for a, b in zip(ours, theirs))
        print(f"{count:8} {statistics.median(ours):12.2f} {statistics.median(theirs):16.2f} {ratio:6.3f} {statistics.median(single):16.2f}", flush=True)


if __name__ == "__main__":
    main()
