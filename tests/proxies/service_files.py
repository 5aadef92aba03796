"""The files of docs/many-machines for systemd, launchd and Kubernetes: each is valid, and gives the server the time that it needs to end."""

import plistlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

FILES = Path(__file__).parent.parent.parent / "docs/many-machines"
# --shutdown-timeout by default, and what aborted answers get to send their last event.
PATIENCE = 30 + 5


def systemd():
    text = (FILES / "mlx.service").read_text()
    assert int(re.search(r"^TimeoutStopSec=(\d+)$", text, re.M)[1]) > PATIENCE
    if not shutil.which("systemd-analyze"):
        print("systemd is not installed: mlx.service was not verified")
        return
    with tempfile.TemporaryDirectory() as folder:
        unit = Path(folder) / "mlx.service"
        # It looks for the program that it starts, and for its page of the manual.
        assert text.count("/usr/local/bin/mlx ") == 1
        unit.write_text(text.replace("/usr/local/bin/mlx ", f"{sys.executable} "))
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    print("mlx.service: systemd-analyze verify finds nothing")


def launchd():
    job = plistlib.loads((FILES / "mlx.plist").read_bytes())
    assert job["ProgramArguments"][1] == "serve" and job["ExitTimeOut"] > PATIENCE
    if shutil.which("plutil"):
        subprocess.run(["plutil", "-lint", FILES / "mlx.plist"], check=True)
    print("mlx.plist: a property list")


def kubernetes():
    check = Path(sys.executable).parent / "kubernetes-validate"
    subprocess.run([check, "--strict", FILES / "kubernetes.yaml"], check=True)
    deployment = next(yaml.safe_load_all((FILES / "kubernetes.yaml").read_text()))
    pod = deployment["spec"]["template"]["spec"]
    container = pod["containers"][0]
    pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] > PATIENCE + pause
    assert container["readinessProbe"]["httpGet"]["path"] == container["startupProbe"]["httpGet"]["path"] == "/ready"
    # The proxies must have noticed before the port is closed.
    ready = container["readinessProbe"]
    assert pause > ready["periodSeconds"] * ready["failureThreshold"]


systemd()
launchd()
kubernetes()
