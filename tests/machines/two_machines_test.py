#!/usr/bin/env python3
"""Runs the lines of README's section "Two machines" as they stand: hub, a and b are network namespaces joined by a bridge, mutual TLS on.

two_machines_test.py BUILD_BIN TINY_MODEL_WRITER. Exit 77 (skipped) without the right to make network namespaces."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

README = pathlib.Path(__file__).resolve().parents[2] / "README.md"
TAG = f"mn{os.getpid() % 100000}"
MACHINES = {"hub": "10.77.0.1", "a": "10.77.0.2", "b": "10.77.0.3"}


def readme_lines():
    section = README.read_text().split("## Two machines", 1)[1]
    block = re.search(r"```sh\n(.*?)```", section, re.S).group(1)
    machine, lines = None, []
    for line in block.splitlines():
        where = re.fullmatch(r"# on (\w+)", line)
        if where:
            machine = where.group(1)
        elif line.strip():
            lines.append((machine, line))
    return lines


class Network:
    """One namespace a machine, each with an address, all on one bridge in a namespace of its own: nothing of the host is touched."""

    def __init__(self):
        self.names = []

    def up(self):
        switch = self.add("switch")
        self.run(switch, "ip", "link", "add", "br0", "type", "bridge")
        self.run(switch, "ip", "link", "set", "br0", "up")
        for number, (machine, address) in enumerate(MACHINES.items()):
            name = self.add(machine)
            subprocess.run(["ip", "link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", f"p{number}", "netns", switch], check=True)
            self.run(switch, "ip", "link", "set", f"p{number}", "master", "br0", "up")
            self.run(name, "ip", "address", "add", f"{address}/24", "dev", "eth0")
            self.run(name, "ip", "link", "set", "eth0", "up")
            hosts = pathlib.Path("/etc/netns") / name
            hosts.mkdir(parents=True)
            (hosts / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{ip} {host}\n" for host, ip in MACHINES.items()))

    def add(self, machine):
        name = f"{TAG}-{machine}"
        subprocess.run(["ip", "netns", "add", name], check=True, capture_output=True)
        self.names.append(name)
        self.run(name, "ip", "link", "set", "lo", "up")
        return name

    def run(self, name, *command):
        subprocess.run(["ip", "netns", "exec", name, *command], check=True)

    def down(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False)
            shutil.rmtree(pathlib.Path("/etc/netns") / name, ignore_errors=True)


def request(path, body=None):
    """One request from the hub to its own gateway; (status, JSON or text). Status 0: nobody answered."""
    code = ("import json,sys,urllib.request,urllib.error\n"
            "try:\n"
            f" r=urllib.request.urlopen(urllib.request.Request('http://127.0.0.1:8080{path}',data={body!r},headers={{'Content-Type':'application/json'}}),timeout=60)\n"
            " print(r.status);print(r.read().decode())\n"
            "except urllib.error.HTTPError as e: print(e.code);print(e.read().decode())\n"
            "except OSError: print(0)\n")
    output = subprocess.run(["ip", "netns", "exec", f"{TAG}-hub", sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    status, _, text = output.partition("\n")
    return int(status), text


def wait_for(claim, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not claim():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(0.05)


def main():
    build, write_tiny = pathlib.Path(sys.argv[1]), sys.argv[2]
    network = Network()
    try:
        network.up()
    except (subprocess.CalledProcessError, OSError) as error:
        network.down()
        print(f"skipped: cannot make network namespaces here (root and iproute2 are needed): {error}")
        return 77
    running = []
    folder = tempfile.TemporaryDirectory()
    try:
        home = {machine: pathlib.Path(folder.name) / machine for machine in MACHINES}
        for path in home.values():
            path.mkdir()
        subprocess.run([write_tiny, "--layers", "30", str(home["hub"] / "model.gguf")], check=True)
        environment = dict(os.environ, PATH=f"{build}:{os.environ['PATH']}", XDG_CACHE_HOME=str(pathlib.Path(folder.name) / "cache"))
        for machine, line in readme_lines():
            print(f"{machine}$ {line}", flush=True)
            if line.startswith("scp "):
                *sources, target = line.split()[1:]
                for source in sources:
                    shutil.copy(home[machine] / source, home[target.rstrip(":")])
                continue
            command = ["ip", "netns", "exec", f"{TAG}-{machine}", "sh", "-c", f"exec {line}"]
            if re.match(r"meshnet (worker|gateway) ", line):
                running.append(subprocess.Popen(command, cwd=home[machine], env=environment))
            else:
                subprocess.run(command, cwd=home[machine], env=environment, check=True)
        wait_for(lambda: request("/readyz")[0] == 200, "the gateway is ready")

        body = json.dumps({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 24, "temperature": 0}).encode()
        status, first = request("/v1/chat/completions", body)
        assert status == 200, (status, first)
        assert json.loads(first)["usage"]["completion_tokens"] > 0, first
        alone = subprocess.run([build / "meshnet", "run", "model.gguf", "--shards", "1", "-p", "hello", "--max-tokens", "24", "--temp", "0"],
                               cwd=home["hub"], env=environment, check=True, capture_output=True, text=True).stdout
        assert json.loads(first)["choices"][0]["message"]["content"].strip() == alone.strip(), (first, alone)

        # A worker without a certificate of this authority is not talked to, and a stage that is gone turns readiness red.
        running[1].send_signal(signal.SIGKILL)
        wait_for(lambda: request("/readyz")[0] == 503, "readiness turns red when b is gone")
        assert request("/livez")[0] == 200
        print("README's lines work")
        return 0
    finally:
        for process in running:
            with contextlib.suppress(OSError):
                process.terminate()
        for process in running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
        network.down()
        folder.cleanup()


if __name__ == "__main__":
    sys.exit(main())
