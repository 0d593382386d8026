"""Starts and stops the servers that the benchmarks compare, and drives them over HTTP. Python's standard library only."""
import contextlib
import http.client
import json
import os
import pathlib
import random
import socket
import subprocess
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
MESHNET = ROOT / "build" / "release" / "bin" / "meshnet"
WORDS = ("river stone light winter garden copper engine paper music harbour yellow quiet market silver forest letter bridge summer "
         "window animal number travel history village carbon planet signal memory orange doctor").split()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def prompt_of(words, seed):
    """About `words` tokens that no cache has seen: one common word is one token in the models used here."""
    source = random.Random(seed)
    return " ".join(source.choice(WORDS) for _ in range(words))


class Server:
    """A process that answers HTTP on `port`, and whatever else it needs, stopped together."""

    def __init__(self, name, command, port, ready_path, environment=None, others=()):
        self.name, self.port = name, port
        self.processes = []
        self.started = time.monotonic()
        env = dict(os.environ, **(environment or {}))
        for other in others:
            self.processes.append(subprocess.Popen(other, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env))
        if others:
            time.sleep(1)  # ggml-rpc-server says nothing when it listens
        self.processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env))
        self.wait_ready(ready_path)

    def wait_ready(self, path, limit=300):
        while time.monotonic() < self.started + limit:
            if self.processes[-1].poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self.processes[-1].returncode}")
            with contextlib.suppress(OSError):
                if urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5).status == 200:
                    return
            time.sleep(0.02)
        raise RuntimeError(f"{self.name} is not ready after {limit} s")

    def stop(self):
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            if process.poll() is None:
                process.kill()


def meshnet(model, threads, shards, numerics="fast", context=4096, sessions=8, more=()):
    port = free_port()
    environment = {"MESHNET_HOT_KV_MAX_SESSIONS": str(sessions), "MESHNET_HOT_KV_CONTEXT_TOKENS": str(context),
                   "MESHNET_HOT_KV_BUDGET_TOKENS": str(context * sessions)}
    command = [str(MESHNET), "serve", model, "--shards", str(shards), "--port", str(port), "--threads", str(threads), "--numerics", numerics, *more]
    return Server(f"meshnet {shards} workers", command, port, "/readyz", environment)


def llama_server(tools, model, threads, context=4096, sessions=1, more=()):
    port = free_port()
    command = [f"{tools}/llama-server", "-m", model, "-t", str(threads), "-tb", str(threads), "-c", str(context * sessions), "-np", str(sessions), "--port", str(port),
               "--host", "127.0.0.1", "-fa", "on", "--no-webui", *more]
    return Server("llama-server", command, port, "/health")


def rpc(tools, model, threads, spin=None):
    """llama-server with every layer on two loopback RPC servers."""
    ports = [free_port(), free_port()]
    others = [[f"{tools}/ggml-rpc-server", "-H", "127.0.0.1", "-p", str(port), "-t", str(threads)] for port in ports]
    port = free_port()
    command = [f"{tools}/llama-server", "-m", model, "-t", str(threads), "-tb", str(threads), "-c", "4096", "-np", "1", "--port", str(port), "--host", "127.0.0.1",
               "-fa", "on", "--no-webui", "-ngl", "99", "--rpc", ",".join(f"127.0.0.1:{p}" for p in ports)]
    name = "llama.cpp RPC" + (f" (GOMP_SPINCOUNT={spin})" if spin else "")
    return Server(name, command, port, "/health", {"GOMP_SPINCOUNT": str(spin)} if spin else None, others)


def complete(server, prompt, tokens, clock=time.monotonic):
    """One streamed greedy completion: (seconds to the first token, seconds of the others)."""
    body = json.dumps({"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True, "ignore_eos": True, "cache_prompt": False}
                      if server.name.startswith("llama") else
                      {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True, "ignore_eos": True})
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    begin = clock()
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    reply = connection.getresponse()
    if reply.status != 200:
        raise RuntimeError(f"{server.name}: {reply.status} {reply.read()[:500]}")
    first = last = None
    for line in reply:
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            if event.get("error"):
                raise RuntimeError(f"{server.name}: {event}")
            last = clock()
            first = first or last
    connection.close()
    return first - begin, last - first
