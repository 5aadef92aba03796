"""Replicas of one server, on ports that they keep when they start again."""

import http.client
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

CHECKPOINT = Path(__file__).parent.parent / "golden/models/llama-f32"
POSITIONS = 4096


def free_ports(count):
    """Ports that no program has, as far as one can know."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [it.getsockname()[1] for it in sockets]
    for it in sockets:
        it.close()
    return ports


def wait_until(is_done, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not is_done():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.02)


def get(port, path):
    """The status and the body of a GET, or None if nothing answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


class Replica:
    def __init__(self, model, port):
        self.model, self.port = model, port
        self.start()

    def start(self):
        command = [os.environ["MLX_SERVER"], "--port", str(self.port), "-m", f"tiny={self.model}", "--preload", "--log", "json"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        # Read to the end, so that the server does not block on a full pipe.
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def is_ready(self):
        assert self.process.poll() is None, "a replica has ended"
        answer = get(self.port, "/ready")
        return answer is not None and answer[0] == 200

    def requests(self):
        """How many requests it has answered since its start."""
        answer = get(self.port, "/metrics")
        lines = answer[1].splitlines() if answer else []
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("mlx_http_responses_total") and "/v1/" in line)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def drain(self):
        """Ends it by SIGTERM. Returns its exit status."""
        self.process.terminate()
        return self.process.wait(timeout=60)


class Replicas:
    """Three of them, with a checkpoint whose context is longer than that of the fixture."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        model = Path(self.folder.name) / "tiny"
        shutil.copytree(CHECKPOINT, model)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": POSITIONS}))
        self.all = [Replica(model, port) for port in free_ports(3)]

    def __enter__(self):
        self.wait()
        return self

    def wait(self):
        for replica in self.all:
            wait_until(replica.is_ready, "a replica is ready")

    def __exit__(self, *_):
        for replica in self.all:
            replica.kill()
        self.folder.cleanup()
