"""Faults of ranks under load: 32 clients of a model on 2 and 4 ranks get the answers of a run without faults, to the byte.

    python bench/chaos_workers.py [--moments 40] [--seed 0] -- target/debug/mlx

For each number of ranks and each way to divide the model, it starts the workers and the server on this machine. At each moment one rank is killed
or stopped, one worker is killed with its rank, or a connection is cut: that of control, or of MLX's ring. The next moment comes after as many answers
as there are clients: a request that dies too often with few tokens in between fails. The log must name the rank, unless it is rank 0. Connections are
cut only on Linux, by shutting down the socket of the other process."""

import argparse
import atexit
import ctypes
import json
import os
import random
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import chaos

RANKS, WAYS, CLIENTS, TIMEOUT = [2, 4], ["pipeline", "tensor"], 32, 2
KINDS = ["kill", "stop", "worker"] + (["control", "ring"] if sys.platform == "linux" else [])
# The number of the system call pidfd_getfd on every processor.
GET_DESCRIPTOR = 438
ESTABLISHED = "01"


def repeat_layers(folder, count):
    """Repeats the layers of a checkpoint until it has this many."""
    path, config = folder / "config.json", json.loads((folder / "config.json").read_text())
    own = config["num_hidden_layers"]
    path.write_text(json.dumps(config | {"num_hidden_layers": count}))
    file = folder / "model.safetensors"
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    for name, about in list(header.items()):
        if found := re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name):
            start, end = about["data_offsets"]
            for layer in range(int(found[1]) + own, count, own):
                header[f"model.layers.{layer}.{found[2]}"] = about | {"data_offsets": [len(body), len(body) + end - start]}
                body += body[start:end]
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + body)


class Worker:
    """A worker, which is started again on the same port."""

    def __init__(self, command, rank):
        self.command, self.rank, self.port = command, rank, 0
        self.start()

    def start(self):
        self.process = subprocess.Popen([*self.command, "--port", str(self.port)], stderr=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)
        line = self.process.stderr.readline()
        found = re.match(r"listening on 127\.0\.0\.1:(\d+)", line) or sys.exit(f"FAILED: a worker does not listen: {line}")
        self.port = int(found[1])
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def name(self):
        return f"rank {self.rank} (127.0.0.1:{self.port})"


class Cluster:
    """A server and its workers."""

    def __init__(self, program, model, ranks, way):
        folder = model.parent
        self.workers = [Worker([*program, "worker", "-m", str(model)], rank) for rank in range(1, ranks)]
        hosts = [{"ips": ["127.0.0.1"]}] + [{"ips": [f"127.0.0.1:{worker.port}"]} for worker in self.workers]
        (folder / "hosts.json").write_text(json.dumps(hosts))
        options = ["--hostfile", str(folder / "hosts.json"), "--parallel", way, "--worker-timeout", str(TIMEOUT), "--max-running", str(CLIENTS)]
        # Without a rank's name, a cut ring is noticed by this deadline.
        self.server = chaos.Server([*program, "serve"], {"tiny": model}, options, {"MLX_ENGINE_DEADLINE_MS": "2000"})

    def rank(self, rank):
        """Returns the process of a rank."""
        parent = self.workers[rank - 1].process.pid if rank else self.server.process.pid
        return self.server.wait(f"rank {rank} runs", lambda: chaos.children(parent))[0]

    def connections(self, rank, kind):
        """Returns the descriptors of this kind of connection in the process of a rank."""
        process = self.rank(rank)
        inodes = {}
        for line in Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]:
            _, _, remote, state, *_, inode = line.split()[:10]
            if state == ESTABLISHED:
                inodes[inode] = int(remote.split(":")[1], 16)
        ports, found, control = [worker.port for worker in self.workers], {}, os.readlink(f"/proc/{process}/fd/0")
        for descriptor in os.listdir(f"/proc/{process}/fd"):
            target = os.readlink(f"/proc/{process}/fd/{descriptor}")
            if (port := inodes.get(target.removeprefix("socket:[").removesuffix("]"))) is not None:
                is_control = target == control if rank else port in ports
                if is_control == (kind == "control"):
                    found[target] = int(descriptor)
        return process, list(found.values())

    def cut(self, rank, kind, draw):
        """Shuts a connection of a rank down."""
        libc = ctypes.CDLL(None, use_errno=True)

        def descriptors():
            try:
                return self.connections(rank, kind)
            except OSError:  # The process has just ended, or closed a file.
                return 0, []

        process, found = self.server.wait(f"rank {rank} has a connection of {kind}", lambda: (it := descriptors())[1] and it)
        handle = os.pidfd_open(process)
        copy = libc.syscall(GET_DESCRIPTOR, handle, draw.choice(found), 0)
        os.close(handle)
        if copy < 0:
            sys.exit(f"FAILED: the socket of a rank cannot be used: {os.strerror(ctypes.get_errno())}")
        with socket.socket(fileno=copy) as connection:
            connection.shutdown(socket.SHUT_RDWR)

    def harm(self, rank, kind, draw):
        if kind in ("kill", "stop"):
            chaos.signal(self.rank(rank), kind.upper())
        elif kind == "worker":
            worker = self.workers[rank - 1]
            worker.process.kill()
            worker.process.wait()
            worker.start()
        else:
            self.cut(rank, kind, draw)

    def end(self):
        failures = self.server.end()
        for worker in self.workers:
            worker.process.kill()
            worker.process.wait()
        return failures


def disturb(cluster, load, moments, draw):
    """Has the faults happen. Returns the seconds from each fault to the next token by kind, and the faults whose rank the log does not name."""
    server, pauses, unnamed = cluster.server, {kind: [] for kind in KINDS}, []
    for moment in range(moments):
        load.wait_for_answers(CLIENTS)
        time.sleep(draw.uniform(0, 0.8))
        kind = KINDS[moment % len(KINDS)] if moment < len(KINDS) else draw.choice(KINDS)
        rank = draw.randrange(1 if kind in ("worker", "control") else 0, len(cluster.workers) + 1)
        before, lines, begin = server.restarts(), len(server.log), time.monotonic()
        cluster.harm(rank, kind, draw)
        server.wait(f"{kind} of rank {rank} is noticed", lambda before=before: server.died(before))
        seen = time.monotonic()
        server.wait(f"a token after {kind} of rank {rank}", lambda seen=seen: load.tokens["tiny"] > seen)
        pauses[kind].append(load.tokens["tiny"] - begin)
        causes = [found[1] for line in server.log[lines:] if (found := re.search(r'"cause":"([^"]*)', line))]
        # A neighbor in the ring names a rank without its address.
        names = [cluster.workers[rank - 1].name(), f"rank {rank} in the ring"] if rank else []
        if rank and not any(name in cause for name in names for cause in causes):
            unnamed.append((kind, rank))
            print(f"not named: {kind} of rank {rank}: {causes}", flush=True)
    return pauses, unnamed


def run(arguments, ranks, way):
    """Returns the number of failures with this number of ranks."""
    with tempfile.TemporaryDirectory() as folder:
        model = chaos.copy_model(folder)
        repeat_layers(model, 4)
        cluster = Cluster(arguments.command, model, ranks, way)
        load, begin = chaos.Load(cluster.server, b""), time.monotonic()
        load.learn()
        end_clients = load.clients(CLIENTS, arguments.seed)
        pauses, unnamed = disturb(cluster, load, arguments.moments, random.Random(f"{arguments.seed} {ranks} {way}"))
        end_clients()
        print(f"\n{ranks} ranks, {way}:", end="")
        chaos.report(pauses, load, begin)
        return len(load.wrong) + len(unnamed) + cluster.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moments", type=int, default=40, help="the number of faults for each number of ranks and each way")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("command", nargs="+", help="the program mlx, after --")
    arguments = parser.parse_args()
    chaos.verdict(sum(run(arguments, ranks, way) for ranks in RANKS for way in WAYS))


if __name__ == "__main__":
    main()
