"""A server on a model that follows a script, and a proxy before it, for tests with real clients.

    with Server(script) as server, Proxy(server.base) as proxy:
        run_a_client(proxy.base)
        proxy.requests                         # what it sent: (path, body) in their order

The environment variable MLX_SERVER names the program. `scripted_model.py` says what a script is; `context` makes the model's
context smaller. A proxy that is asked to `cut(after)` ends the next stream behind so many events without an end of its own."""

import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parent))
import scripted_model


class Server:
    """The server; its model is called `scripted`."""

    def __init__(self, script, context=None, flags=()):
        self.folder = tempfile.TemporaryDirectory()
        model = Path(self.folder.name) / "model"
        scripted_model.make(model, script)
        if context is not None:
            config = json.loads((model / "config.json").read_text())
            (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": context}))
        command = [os.environ["MLX_SERVER"], "--port", "0", "-m", f"scripted={model}", "--preload", *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.log = []
        for line in self.process.stderr:
            entry = json.loads(line)
            self.log.append(entry)
            if entry.get("message") == "listening":
                break
        self.base = "http://" + self.log[-1]["address"]
        threading.Thread(target=lambda: self.log.extend(map(json.loads, self.process.stderr)), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()


class Proxy:
    """Passes requests on, remembers them, and cuts streams."""

    def __init__(self, target):
        self.target, self.requests, self.answers, self.after = urlsplit(target), [], [], None
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.0"

            def log_message(self, *_):
                pass

            def do_GET(self):
                proxy.forward(self, None)

            do_HEAD = do_DELETE = do_GET

            def do_POST(self):
                proxy.forward(self, self.rfile.read(int(self.headers.get("content-length", 0))))

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def cut(self, after):
        """Cuts the next stream behind this many events."""
        self.after = after

    def forward(self, client, body):
        headers = {name: value for name, value in client.headers.items() if name.lower() not in ("host", "connection", "accept-encoding")}
        request = json.loads(body) if body else None
        self.requests.append((client.path, request))
        after = None
        if request and request.get("stream"):
            after, self.after = self.after, None
        connection = http.client.HTTPConnection(self.target.hostname, self.target.port)
        connection.request(client.command, client.path, body, headers)
        response = connection.getresponse()
        client.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "date"):
                client.send_header(name, value)
        client.end_headers()
        whole = b""
        for line in response:
            whole += line
            client.wfile.write(line)
            client.wfile.flush()
            if after is not None and line == b"\n":
                after -= 1
                if after == 0:
                    break
        self.answers.append((client.path, response.status, whole))
        connection.close()

    def posts(self, path):
        """The bodies that were sent to a path."""
        return [body for sent, body in self.requests if body is not None and urlsplit(sent).path == path]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
