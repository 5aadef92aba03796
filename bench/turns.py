"""Runs programs in alternation, so that other load of the machine affects all of them. Computes medians, spreads and ratios of their figures."""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import statistics
import subprocess
import time


TAKEN = "taken by the host, share"
UNENDED = "had not ended after, s"


def taken_by_the_host():
    """Returns the seconds of steal time of a virtual machine; 0 if the kernel does not report it."""
    try:
        words = pathlib.Path("/proc/stat").read_text().split(maxsplit=9)
    except OSError:
        return 0
    return int(words[8]) / os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass
class Contestant:
    """A program that prints its figures as JSON in the last line, or a program measured by its wall time. A program that exceeds its limit in
    seconds is stopped and does not run again; the limit is then its figure."""

    name: str
    command: list
    environment: dict = dataclasses.field(default_factory=dict)
    wall: str = ""
    limit: float | None = None

    def run(self):
        begin, taken = time.perf_counter(), taken_by_the_host()
        command = list(map(str, self.command))
        process = subprocess.Popen(command, env=os.environ | self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        try:
            out, errors = process.communicate(timeout=self.limit)
        except subprocess.TimeoutExpired:
            return {UNENDED: self.limit}
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        seconds = time.perf_counter() - begin
        if process.returncode:
            raise RuntimeError(f"{self.name}: `{' '.join(command)}` ended with {process.returncode}\n{errors[-2000:]}")
        figures = {self.wall: seconds} if self.wall else json.loads(out.splitlines()[-1])
        return figures | {TAKEN: (taken_by_the_host() - taken) / seconds / os.cpu_count()}


class Results:
    """The figures of every contestant and turn: by contestant, then by figure."""

    def __init__(self, contestants):
        self.values = {contestant.name: {} for contestant in contestants}

    def add(self, name, figures):
        for figure, value in figures.items():
            self.values[name].setdefault(figure, []).append(value)

    def names(self):
        return list(self.values)

    def figures(self):
        """Returns all figure names in the order of first occurrence; the host's share last."""
        figures = dict.fromkeys(figure for figures in self.values.values() for figure in figures)
        return [figure for figure in figures if figure != TAKEN] + [TAKEN]

    def of(self, name, figure):
        return self.values[name].get(figure, [])

    def ratios(self, figure, name):
        """Returns the first contestant's value divided by this one's, for every turn that both completed."""
        first = self.of(self.names()[0], figure)
        return [mine / theirs for mine, theirs in zip(first, self.of(name, figure)) if theirs]


def compare(contestants, turns, tell):
    results = Results(contestants)
    for turn in range(turns):
        # The order of the programs changes with each turn.
        for contestant in contestants if turn % 2 == 0 else reversed(contestants):
            if results.of(contestant.name, UNENDED):
                continue
            tell(f"  turn {turn + 1}: {contestant.name}")
            results.add(contestant.name, contestant.run())
    return results


def number(value):
    """Formats three digits, which is the precision of a noisy machine."""
    if value and abs(value) < 100:
        return f"{value:.3g}"
    return f"{value:.0f}"


def spread(values):
    if not values:
        return "-"
    middle = number(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({number(min(values))} - {number(max(values))})"


def table(results):
    """Returns a Markdown table: a row per figure, with the ratio of the first contestant after each rival's value."""
    first, *rivals = results.names()
    titles = ["", first] + [title for rival in rivals for title in (rival, "ratio")]
    lines = [f"| {' | '.join(titles)} |", "| " + " | ".join(["---"] * len(titles)) + " |"]
    for figure in results.figures():
        cells = [figure, spread(results.of(first, figure))]
        for rival in rivals:
            cells += [spread(results.of(rival, figure)), spread(results.ratios(figure, rival)) if figure != TAKEN else "-"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
