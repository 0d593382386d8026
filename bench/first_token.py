#!/usr/bin/env python3
"""Start to first token: from starting the process to the first streamed token, meshnet serve with warm shards against llama-server, in turn.

Both sides hold the same KV (sessions of 4096 tokens): llama.cpp clears all of it at the start, which is a good part of the time."""
import argparse
import statistics
import time

import servers


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tools", required=True)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sessions", type=int, default=1)
    arguments = parser.parse_args()

    def measure(start):
        begin = time.monotonic()
        server = start()
        try:
            servers.complete(server, "The capital of France is", 1)
            return time.monotonic() - begin
        finally:
            server.stop()

    starts = {"meshnet": lambda: servers.meshnet(arguments.model, arguments.threads, arguments.shards, sessions=arguments.sessions),
              "llama-server": lambda: servers.llama_server(arguments.tools, arguments.model, arguments.threads, sessions=arguments.sessions)}
    for start in starts.values():
        measure(start)  # cuts the shards, fills the page cache
    times = {name: [] for name in starts}
    for _ in range(arguments.rounds):
        for name, start in starts.items():
            times[name].append(measure(start))
    for name, values in times.items():
        print(f"{name:14} {statistics.median(values):6.3f} s (min {min(values):.3f}, max {max(values):.3f})")
    print(f"ratio {statistics.median(a / b for a, b in zip(times['meshnet'], times['llama-server'])):.3f}")


if __name__ == "__main__":
    main()
