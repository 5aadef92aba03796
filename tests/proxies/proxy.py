"""The proxies, each with its file of docs/many-machines: only the addresses differ, or the way to choose a replica."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from replicas import free_ports, get, wait_until

FILES = Path(__file__).parent.parent.parent / "docs/many-machines"
FOLDERS = f"{Path(sys.executable).parent}:/usr/sbin:/usr/local/sbin:/opt/homebrew/bin"

# Of each proxy: its file, what to write in place of affinity for round robin, and its arguments.
KINDS = {
    "nginx": ("nginx.conf", ("hash $affinity consistent;", ""), ["-c", "{file}", "-p", "{folder}", "-e", "{folder}/log", "-g", "daemon off; pid {folder}/pid;"]),
    "haproxy": ("haproxy.cfg", ("balance hash var(txn.affinity)", "balance roundrobin"), ["-db", "-f", "{file}"]),
    "envoy": ("envoy.yaml", ("lb_policy: RING_HASH", "lb_policy: ROUND_ROBIN"), ["--log-level", "warning", "--use-dynamic-base-id", "--concurrency", "2", "-c", "{file}"]),
}


def program(kind):
    """The path of a proxy, or None where it is not installed."""
    return shutil.which(kind) or shutil.which(kind, path=FOLDERS)


class Proxy:
    def __init__(self, kind, replicas, round_robin=False):
        self.folder = tempfile.TemporaryDirectory()
        self.port = free_ports(1)[0]
        name, balance, arguments = KINDS[kind]
        text = self.replace((FILES / name).read_text(), "8080", str(self.port))
        for replica, port in zip(replicas, ["8081", "8082", "8083"], strict=True):
            text = self.replace(text, port, str(replica.port))
        if round_robin:
            text = self.replace(text, *balance)
        if kind == "nginx":
            # Its own folders belong to the system's nginx.
            paths = "".join(f"{it}_temp_path {self.folder.name}/{it};" for it in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"])
            text = self.replace(text, "\nhttp {", "\nhttp {" + paths + f"access_log {self.folder.name}/access;")
        file = Path(self.folder.name) / name
        file.write_text(text)
        places = {"file": str(file), "folder": self.folder.name}
        self.process = subprocess.Popen([program(kind), *(it.format(**places) for it in arguments)], cwd=self.folder.name)

    @staticmethod
    def replace(text, old, new):
        assert text.count(old) == 1, f"{old} is {text.count(old)} times in the file"
        return text.replace(old, new)

    def is_ready(self):
        assert self.process.poll() is None, "the proxy has ended"
        answer = get(self.port, "/ready")
        return answer is not None and answer[0] == 200

    def __enter__(self):
        wait_until(self.is_ready, "the proxy is ready")
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(timeout=60)
        self.folder.cleanup()
