"""Records the program in a terminal of 90x24 and writes what the screen showed as an animated SVG, without script or fonts.

    python docs/recording/record.py target/release/mlx MODEL docs/recording/mlx.svg

`cargo xtask recording` runs it with a small trained model. The shell runs in a pseudo-terminal, in the folder of the model; SCENE is typed into
it key by key. All output is the program's own.
"""
import fcntl
import os
import pty
import select
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path

import pyte

from svg import write

COLUMNS, ROWS = 90, 24
# What is typed, and what the screen must show before it goes on; "$ " is the shell's prompt, "> " that of the chat.
SCENE = [
    ("mlx chat MODEL --exact --temperature 0.6 --seed 7", "> "),
    ("Write a Python function is_even(n).", "> "),
    ("/tokens", "> "),
    ("What is the capital of France?", "> "),
    ("/retry", "> "),
    ("/new", "> "),
    ("/set temperature=0", "> "),
    ("Write a table of three planets.", "> "),
    ("/quit", "$ "),
    ("clear", "$ "),
    ("mlx generate MODEL 'Name three colors.' --exact --logprobs 0 --json | mlx replay", "$ "),
    ("mlx ask 'how do I save a conversation?'", "$ "),
]
KEY, THINK, SETTLE, PATIENCE = 0.05, 0.7, 0.6, 120.0


class Terminal:
    """A shell in a pseudo-terminal, and the screens that it has shown: (seconds, rows of cells)."""

    def __init__(self, program, folder, home):
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self.stream = pyte.ByteStream(self.screen)
        self.frames, self.begin, self.last = [], time.monotonic(), time.monotonic()
        # A home of its own: no history, no default model, nothing downloaded.
        environment = dict(os.environ, TERM="xterm-256color", PS1="$ ", HOME=home, HISTFILE="")
        environment["PATH"] = f"{Path(program).resolve().parent}:{environment['PATH']}"
        for name in ("NO_COLOR", "MLX_MODEL", "MLX_LOG", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
            environment.pop(name, None)
        self.child, self.terminal = pty.fork()
        if self.child == 0:
            os.chdir(folder)
            os.execvpe("bash", ["bash", "--norc", "--noprofile"], environment)
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))

    def read(self, seconds):
        """Reads what comes within that time; each piece is a frame."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not select.select([self.terminal], [], [], left)[0]:
                return
            try:
                self.stream.feed(os.read(self.terminal, 65536))
            except OSError:
                return
            self.last = time.monotonic()
            self.keep()

    def keep(self):
        rows = [tuple(self.screen.buffer[row][column] for column in range(COLUMNS)) for row in range(ROWS)]
        if not self.frames or self.frames[-1][1] != rows:
            self.frames.append((time.monotonic() - self.begin, rows))

    def wait(self, prompt):
        """Until the line of the cursor is the prompt and nothing has come for a while."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            self.read(0.1)
            line = self.screen.display[self.screen.cursor.y]
            if line.rstrip() == prompt.rstrip() and time.monotonic() - self.last > SETTLE:
                return
        raise SystemExit(f"the prompt {prompt!r} did not come; the screen shows:\n" + "\n".join(self.screen.display))

    def type(self, text):
        for key in text:
            os.write(self.terminal, key.encode())
            self.read(KEY)
        self.read(THINK / 2)
        os.write(self.terminal, b"\r")
        self.last = time.monotonic()


def main():
    program, model, target = sys.argv[1:]
    model = Path(model)
    with tempfile.TemporaryDirectory() as home:
        terminal = Terminal(program, model.parent, home)
        terminal.wait("$ ")
        for text, prompt in SCENE:
            terminal.read(THINK)
            terminal.type(text.replace("MODEL", model.name))
            terminal.read(0.3)
            terminal.wait(prompt)
        os.close(terminal.terminal)
        os.waitpid(terminal.child, 0)
    size = write(terminal.frames, COLUMNS, ROWS, Path(target))
    print(f"{target}: {len(terminal.frames)} frames, {size} bytes")


if __name__ == "__main__":
    main()
