"""Writes screens of a terminal as an animated SVG: each text of a row is there once and shown while it was on the screen."""
from html import escape

WIDTH, HEIGHT, MARGIN = 8.4, 18, 12
LONGEST_PAUSE, LAST_PAUSE, SHORTEST_FRAME = 1.6, 4.0, 0.06
BACKGROUND, FOREGROUND = "#16181d", "#d8dce4"
COLORS = dict(
    black="#6b7280", red="#f07178", green="#9ece6a", brown="#e0af68", blue="#7aa2f7", magenta="#c39af0", cyan="#7dcfff",
    white="#d8dce4", brightblack="#7c8494", default=FOREGROUND)


def color(name):
    if name in COLORS:
        return COLORS[name]
    if len(name) == 6 and all(digit in "0123456789abcdef" for digit in name.lower()):
        return f"#{name}"
    return COLORS.get(name.removeprefix("bright"), FOREGROUND)


def paced(frames):
    """The frames with pauses cut, and those that are replaced at once left out."""
    times, now = [], 0.0
    for index, (at, _) in enumerate(frames):
        now += min(LONGEST_PAUSE, at - frames[index - 1][0]) if index else 0.0
        times.append(now)
    kept = [(at, rows) for at, (_, rows), after in zip(times, frames, [*times[1:], now + LAST_PAUSE]) if after - at >= SHORTEST_FRAME]
    return kept, now + LAST_PAUSE


def spans(cells):
    """The cells of a row as tspans, one for each style."""
    text = "".join(cell.data for cell in cells).rstrip()
    made, at = [], 0
    while at < len(text):
        style, end = cells[at][1:], at
        while end < len(text) and cells[end][1:] == style:
            end += 1
        piece = "".join(cell.data for cell in cells[at:end])
        if piece.strip():
            made.append(span(piece, at, cells[at]))
        at = end
    return "".join(made)


def span(piece, at, cell):
    begin = at + len(piece) - len(piece.lstrip())
    foreground, background = (cell.bg, cell.fg) if cell.reverse else (cell.fg, cell.bg)
    fill = color(foreground) if background in ("default",) or not cell.reverse else BACKGROUND
    style = "" if fill == FOREGROUND else f' fill="{fill}"'
    style += ' font-weight="bold"' if cell.bold else ""
    style += ' font-style="italic"' if cell.italics else ""
    style += ' text-decoration="underline"' if cell.underscore else ""
    length = f' textLength="{len(piece.strip()) * WIDTH:.1f}"' if len(piece.strip()) > 1 else ""
    return f'<tspan x="{begin * WIDTH:.1f}"{length}{style}>{escape(piece.strip())}</tspan>'


def write(frames, columns, rows, target):
    """Writes the file; the bytes that it has."""
    frames, duration = paced(frames)
    texts, shown = {}, []
    for row in range(rows):
        begin, current = 0.0, ""
        for at, screen in [*frames, (duration, None)]:
            text = spans(screen[row]) if screen else None
            if text != current:
                if current:
                    shown.append((texts.setdefault(current, len(texts)), row, begin, at))
                begin, current = at, text
    percent = lambda seconds: f"{100 * seconds / duration:.2f}%"
    steps = lambda begin, end: f"{percent(begin)}{{opacity:1}}" + ("" if end >= duration else f"{percent(end)}{{opacity:0}}")
    times = {}
    for _, _, begin, end in shown:
        times.setdefault((begin, end), f"k{len(times)}")
    width, height = columns * WIDTH + 2 * MARGIN, rows * HEIGHT + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}" role="img">',
        "<title>mlx in a terminal: a chat, the probabilities of its tokens, and the same answer twice for the same seed</title>",
        f"<style>text{{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:{FOREGROUND};white-space:pre}}",
        f"use{{opacity:0;animation-duration:{duration:.2f}s;animation-timing-function:step-end;animation-iteration-count:infinite}}",
        *(f"@keyframes {name}{{{steps(begin, end)}}}.{name}{{animation-name:{name}}}" for (begin, end), name in times.items()),
        f'</style><rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/><defs>',
        *(f'<text id="t{name}">{text}</text>' for text, name in texts.items()),
        f'</defs><g transform="translate({MARGIN} {MARGIN + 13})">',
        *(f'<use href="#t{text}" y="{row * HEIGHT}" class="{times[begin, end]}"/>' for text, row, begin, end in shown),
        "</g></svg>\n"]
    content = "\n".join(parts).encode()
    target.write_bytes(content)
    return len(content)
