#!/usr/bin/env python3
"""Runs the lines of README's section "Two machines" as they stand: hub, a and b are network namespaces joined by a bridge, mutual TLS on. Then what
must not work does not, and a worker that comes back at another address is found by its name.

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
            (pathlib.Path("/etc/netns") / name).mkdir(parents=True)
        self.name_machines(MACHINES)

    def name_machines(self, addresses):
        """What every machine's hosts file says; running programs see the change, since the file is written in place."""
        for machine in MACHINES:
            hosts = pathlib.Path("/etc/netns") / f"{TAG}-{machine}" / "hosts"
            hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{ip} {host}\n" for host, ip in addresses.items()))

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


class Machines:
    """The three machines' folders, and commands on them as README writes them."""

    def __init__(self, folder, build):
        self.home = {machine: folder / machine for machine in MACHINES}
        for path in self.home.values():
            path.mkdir()
        self.environment = dict(os.environ, PATH=f"{build}:{os.environ['PATH']}", XDG_CACHE_HOME=str(folder / "cache"))
        self.running = {}  # by the command's line

    def command(self, machine, line):
        return ["ip", "netns", "exec", f"{TAG}-{machine}", "sh", "-c", f"exec {line}"]

    def start(self, machine, line):
        self.running[line] = subprocess.Popen(self.command(machine, line), cwd=self.home[machine], env=self.environment)
        return self.running[line]

    def finish(self, machine, line, **more):
        return subprocess.run(self.command(machine, line), cwd=self.home[machine], env=self.environment, **more)

    def kill(self, line):
        self.running[line].send_signal(signal.SIGKILL)
        self.running.pop(line).wait()

    def stop(self):
        for process in self.running.values():
            with contextlib.suppress(OSError):
                process.terminate()
        for process in self.running.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()

    def run_readme(self):
        """The line that started the worker on b."""
        worker = None
        for machine, line in readme_lines():
            print(f"{machine}$ {line}", flush=True)
            if line.startswith("scp "):
                *sources, target = line.split()[1:]
                for source in sources:
                    shutil.copy(self.home[machine] / source, self.home[target.rstrip(":")])
            elif re.match(r"meshnet (worker|gateway) ", line):
                self.start(machine, line)
                worker = line if machine == "b" else worker
            else:
                self.finish(machine, line, check=True)
        return worker


def answer(session):
    """In a session of its own, so that each is computed in the same steps."""
    body = json.dumps({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 24, "temperature": 0, "prompt_cache_key": session}).encode()
    status, text = request("/v1/chat/completions", body)
    assert status == 200, (status, text)
    assert json.loads(text)["usage"]["completion_tokens"] > 0, text
    return json.loads(text)["choices"][0]["message"]["content"].strip()


def check_strangers(machines, worker):
    """b's worker is gone: one with a certificate of another authority takes its place and is not talked to; nor does a worker talk to a stranger."""
    machines.finish("b", "meshnet certificates -o foreign b", check=True)
    stranger = machines.start("b", worker.replace("b.pem", "foreign/b.pem").replace("b.key", "foreign/b.key"))
    wait_for(lambda: "was not issued by tls/ca.pem" in request("/readyz")[1], "readiness names the foreign certificate")
    assert stranger.poll() is None and request("/readyz")[0] == 503
    machines.kill(next(line for line, process in machines.running.items() if process is stranger))
    for flags, says in (("--insecure", "needs --tls-cert"),
                        ("--tls-cert foreign/b.pem --tls-key foreign/b.key --tls-ca ca.pem", "does not accept our certificate")):
        gateway = machines.finish("b", f"meshnet gateway --route a:7070 --vocab tail.gguf --listen 127.0.0.1:0 --connect-timeout 2 {flags}",
                                  capture_output=True, text=True)
        assert gateway.returncode == 4 and says in gateway.stderr, (flags, gateway.returncode, gateway.stderr)


def check_moved_worker(machines, network, worker):
    """b comes back at another address: the name is looked up again."""
    b = f"{TAG}-b"
    network.run(b, "ip", "address", "del", f"{MACHINES['b']}/24", "dev", "eth0")
    network.run(b, "ip", "address", "add", "10.77.0.4/24", "dev", "eth0")
    network.name_machines(dict(MACHINES, b="10.77.0.4"))
    machines.start("b", worker)
    wait_for(lambda: request("/readyz")[0] == 200, "the worker is found at its new address")


def main():
    build, write_tiny = pathlib.Path(sys.argv[1]), sys.argv[2]
    network = Network()
    try:
        network.up()
    except (subprocess.CalledProcessError, OSError) as error:
        network.down()
        print(f"skipped: cannot make network namespaces here (root and iproute2 are needed): {error}")
        return 77
    folder = tempfile.TemporaryDirectory()
    machines = Machines(pathlib.Path(folder.name), build)
    try:
        subprocess.run([write_tiny, "--layers", "30", str(machines.home["hub"] / "model.gguf")], check=True)
        worker = machines.run_readme()
        wait_for(lambda: request("/readyz")[0] == 200, "the gateway is ready")
        first = answer("before")
        alone = machines.finish("hub", "meshnet run model.gguf --shards 1 -p hello --max-tokens 24 --temp 0", check=True, capture_output=True, text=True).stdout
        assert first == alone.strip(), (first, alone)

        machines.kill(worker)
        wait_for(lambda: request("/readyz")[0] == 503, "readiness turns red when b is gone")
        assert request("/livez")[0] == 200
        check_strangers(machines, worker)
        check_moved_worker(machines, network, worker)
        assert answer("after") == first
        print("README's lines work; strangers are refused; a worker that moved is found")
        return 0
    finally:
        machines.stop()
        network.down()
        folder.cleanup()


if __name__ == "__main__":
    sys.exit(main())
