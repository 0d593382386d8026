#!/usr/bin/env python3
"""One stream over HTTP: meshnet over workers on this machine, one stock llama-server, and llama.cpp RPC with two loopback servers.

All servers are up at once and answer the same prompts, each running in its own slices of time (slices.py). Prints medians and ratios."""
import argparse
import json
import statistics

import servers
import slices


def measure(targets, prompt, tokens, first):
    """Of each target, in slices: seconds to the first token, seconds of the others. `first`: who begins, since that changes with the rounds."""
    times = {}

    def side(target):
        def work(clock):
            times[target.name] = servers.complete(target, prompt, tokens, clock)
        return slices.Side([process.pid for process in target.processes], work)

    first %= len(targets)
    slices.alternate([side(target) for target in targets[first:] + targets[:first]])
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tools", required=True, help="folder printed by scripts/llama-tools llama-server ggml-rpc-server")
    parser.add_argument("--shards", default="2", help="e.g. 2 or 1,2,3")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt-words", type=int, default=256)
    parser.add_argument("--no-rpc", action="store_true")
    parser.add_argument("--exact", action="store_true", help="add meshnet in numerics mode exact")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    targets = [servers.llama_server(arguments.tools, arguments.model, arguments.threads)]
    try:
        for shards in arguments.shards.split(","):
            targets.append(servers.meshnet(arguments.model, arguments.threads, int(shards)))
        if arguments.exact:
            exact = servers.meshnet(arguments.model, arguments.threads, int(arguments.shards.split(",")[0]), "exact")
            exact.name += " exact"
            targets.append(exact)
        if not arguments.no_rpc:
            targets.append(servers.rpc(arguments.tools, arguments.model, arguments.threads))
            targets.append(servers.rpc(arguments.tools, arguments.model, arguments.threads, 10000))
        decode = {t.name: [] for t in targets}
        prefill = {t.name: [] for t in targets}
        for number in range(arguments.rounds + 1):
            short = measure(targets, servers.prompt_of(16, number), arguments.tokens, number)
            long = measure(targets, servers.prompt_of(arguments.prompt_words, 1000 + number), 1, number)
            if number == 0:  # warms up
                continue
            for name in decode:
                decode[name].append((arguments.tokens - 1) / short[name][1])
                prefill[name].append(arguments.prompt_words / long[name][0])
    finally:
        for target in targets:
            target.stop()

    base = targets[0].name
    rows = []
    for target in targets:
        name = target.name
        rows.append({"target": name, "decode_tokens_per_second": statistics.median(decode[name]), "prefill_tokens_per_second": statistics.median(prefill[name]),
                     "decode_ratio": statistics.median(a / b for a, b in zip(decode[name], decode[base])),
                     "prefill_ratio": statistics.median(a / b for a, b in zip(prefill[name], prefill[base]))})
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{'target':40} {'decode t/s':>10} {'ratio':>6} {'prefill t/s':>11} {'ratio':>6}")
    for row in rows:
        print(f"{row['target']:40} {row['decode_tokens_per_second']:10.2f} {row['decode_ratio']:6.3f} {row['prefill_tokens_per_second']:11.2f} {row['prefill_ratio']:6.3f}")


if __name__ == "__main__":
    main()
