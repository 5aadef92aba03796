"""Writes the figures into the marked places of docs/quality.md: after `<!-- begin NAME -->`, up to `<!-- end -->`."""

import re
import statistics

from quality.perplexity import CACHE_BITS, FORMATS, key, perplexity

NAMES = {"smollm2": "SmolLM2", "gemma3": "Gemma 3"}
TITLES = ("notes", "licence")
BASE = "f32"
FORMAT_NAMES = {"gguf": "GGUF, unchanged", "converted": "converted, same quantization", "f32": "f32, dequantized by `gguf`"}


def filled(text, values):
    """Returns the page with new figures. Sections without figures stay unchanged."""
    for name, section in SECTIONS.items():
        pattern = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not pattern.search(text):
            raise SystemExit(f"docs/quality.md: the marker `<!-- begin {name} -->` is missing")
        new = section(values)
        if new is not None:
            text = pattern.sub(lambda found: f"{found[1]}{new}\n{found[2]}", text)
    return text


def table(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def models(values, job):
    """Returns the measured models, and their results of a job."""
    return [(NAMES[name], values[f"{name} {job}"]) for name in NAMES if f"{name} {job}" in values]


def run(values):
    """The program, the machine and the day."""
    return f"{values['run']['program']}; {values['run']['machine']}; {values['run']['day']}."


def references(values):
    header = ["", "equal ids of prompts", "equal texts", "margins at the other forks", "log-probabilities", "mean difference", "largest"]
    found = [(f"{name}, {kind}", it) for kind, job in (("GGUF", "references"), ("f32", "f32 references")) for name, it in models(values, job)]
    return table(header, [[name, f"{it['same ids']} of {it['texts']}", *agreement(it, it["texts"])] for name, it in found])


def agreement(it, texts):
    margins = it["margins of forks"]
    forks = ", ".join(f"{margin:.2g}" for margin in sorted(margins)) or "-"
    return [f"{texts - len(margins)} of {texts}", forks, it["tokens"], f"{it['mean difference']:.1e}", f"{it['largest difference']:.1e}"]


def parts(values, model, *names):
    """Returns the totals of both texts, or None."""
    keys = [key(model, *names, title) for title in TITLES]
    return [values[it] for it in keys] if all(it in values for it in keys) else None


def loss(values, model, found):
    base = parts(values, model, BASE)
    if not base:
        return "-"
    ratio = perplexity(*found) / perplexity(*base) - 1
    if ratio > 1:
        return f"{1 + ratio:.3g} x" if ratio < 99 else f"{1 + ratio:.0f} x"
    return f"{100 * ratio:+.2f} %" if abs(ratio) < 0.1 else f"{100 * ratio:+.0f} %"


def cells(values, model, found, size):
    """Returns a model's cells of a row: size, perplexity of each text, and the loss."""
    if not found:
        return ["-"] * 4
    megabytes = f"{size / 1e6:.0f}" if size else "-"
    return [megabytes, *(rounded_perplexity(part) for part in found), loss(values, model, found)]


def rounded_perplexity(part):
    value = perplexity(part)
    return f"{value:.2f}" if value < 1000 else f"{value:.0f}"


def scored(values):
    """Returns the models with a perplexity."""
    return [model for model in NAMES if parts(values, model, "gguf")]


def formats(values):
    rows = []
    for format in ["gguf", *FORMATS["smollm2"]]:
        if not any(parts(values, model, format) for model in scored(values)):
            continue
        row = [FORMAT_NAMES.get(format, f"affine {format} bits" if format.isdecimal() else format)]
        for model in scored(values):
            row += cells(values, model, parts(values, model, format), values.get(f"{model} sizes", {}).get(format))
        rows.append(row)
    header = [cell for model in scored(values) for cell in (f"{NAMES[model]}, MB", *TITLES, "loss")]
    return table(["weights", *header], rows)


def cache(values):
    rows = []
    for flags in [(), *(("--kv-bits", str(bits)) for bits in CACHE_BITS)]:
        if not any(parts(values, model, "gguf", *flags) for model in scored(values)):
            continue
        row = [f"`{' '.join(flags)}`" if flags else "f32"]
        for model in scored(values):
            row += cells(values, model, parts(values, model, "gguf", *flags), 0)[1:]
        rows.append(row)
    header = [cell for model in scored(values) for cell in (f"{NAMES[model]}, {TITLES[0]}", *TITLES[1:], "loss")]
    return table(["cache", *header], rows)


def questions(values):
    rows = values.get("smollm2 questions")
    if not rows:
        return None
    right = {way: sum(row[f"{way} is right"] for row in rows) for way in ("sampled", "greedy")}
    short = lambda text: (text if len(text) <= 60 else text[:57] + "...").replace("\n", " ").replace("|", "\\|")  # noqa: E731
    mark = lambda row: "yes" if row["sampled is right"] else "no"  # noqa: E731
    counts = f"Right: {right['sampled']} of {len(rows)} with the sampling of the terminal (seed 1), {right['greedy']} of {len(rows)} greedily.\n\n"
    return counts + table(["question", "sampled answer", "right"], [[row["question"], short(row["sampled"]), mark(row)] for row in rows])


def schemas(values):
    rows = values.get("smollm2 schemas")
    if not rows:
        return None
    fields = sum(len(row["facts"]) for row in rows)
    lines = []
    for way, title in (("enforced", "`response_format` with the schema"), ("asked", "only asked for in the prompt")):
        kept, right = (sum(row[way][figure] for row in rows) for figure in ("kept", "right"))
        whole = sum(row[way]["right"] == len(row["facts"]) for row in rows)
        lines.append([title, f"{kept} of {len(rows)}", f"{right} of {fields}", f"{whole} of {len(rows)}"])
    return table(["", "answers that keep the schema", "right values", "answers with all values right"], lines)


def drafts(values):
    if "smollm2 drafts" not in values:
        return None
    rows = []
    for row in values["smollm2 drafts"]:
        off, lookup = row["off"], row["lookup"]
        share = f"{lookup['accepted']} of {lookup['drafted']}" if lookup["drafted"] else "-"
        per_pass = lookup["tokens"] / (lookup["tokens"] - lookup["accepted"])
        same = "yes" if off["text"] == lookup["text"] else "no"
        rows.append([row["task"], lookup["tokens"], share, f"{per_pass:.2f}", f"{off['seconds'] / lookup['seconds']:.2f}", same])
    return table(["task", "tokens", "accepted drafts", "tokens per pass", "time, off over lookup", "same text"], rows)


def speed(values):
    figures = list(dict.fromkeys(figure for _, it in models(values, "speed") for figure in it))
    if not figures:
        return None
    rows = [[figure, *(rounded(it[figure]) for _, it in models(values, "speed"))] for figure in figures]
    sizes = [f"{values[f'{name} sizes']['gguf'] / 1e6:.0f}" for name in NAMES]
    return table(["", *(name for name, _ in models(values, "speed"))], [["file, MB", *sizes], *rows])


def rounded(value):
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def llama_cpp(values):
    measured = [(model, name) for model, name in NAMES.items() if f"{model} beside llama.cpp" in values]
    if not measured:
        return None
    rows = []
    for model, name in measured:
        it = values[f"{model} beside llama.cpp"]
        theirs = [it["perplexity"][title] for title in TITLES]
        ours = values[f"{model} references"]
        base = parts(values, model, "gguf")
        rows.append([f"{name}, ours", *(f"{perplexity(part):.3f}" for part in base), *agreement(ours, ours["texts"])])
        rows.append([f"{name}, llama.cpp", *(f"{perplexity(part):.3f}" for part in theirs), *agreement(it, ours["texts"])])
    header = ["", *TITLES, "equal texts", "margins at the other forks", "log-probabilities", "mean difference", "largest"]
    return table(header, rows)


def tokens(values):
    found = models(values, "tokens")
    if not found:
        return None
    return table(["", "texts", "other ids than llama.cpp's"], [[name, it["texts"], len(it["different"])] for name, it in found])


def speeds(values):
    found = models(values, "speeds beside llama.cpp")
    if not found:
        return None
    rows = []
    for name, it in found:
        for figure in ("prompt of 512, tok/s", "answer of 128, tok/s"):
            ours, again, theirs = (it[who][figure] for who in ("ours", "noise", "llama.cpp"))
            rows.append([f"{name}, {figure}", middle(ours), middle_ratio(ours, again), middle(theirs), middle_ratio(ours, theirs)])
        start = [it["ours"]["start to first token, s"], it["llama.cpp"]["load and first token, s"]]
        rows.append([f"{name}, start to first token, s", middle(start[0]), middle_ratio(start[0], it["noise"]["start to first token, s"]), middle(start[1]), middle_ratio(*start)])
        memory = [it[who]["resident, MB"] for who in ("ours", "llama.cpp")]
        rows.append([f"{name}, resident, MB", middle(memory[0]), middle_ratio(memory[0], it["noise"]["resident, MB"]), middle(memory[1]), middle_ratio(*memory)])
    return table(["", "ours", "noise", "llama.cpp", "ratio"], rows)


def middle(values):
    return rounded(statistics.median(values))


def middle_ratio(ours, theirs):
    return f"{statistics.median(one / other for one, other in zip(ours, theirs)):.2f}"


SECTIONS = {
    "run": run, "references": references, "formats": formats, "cache": cache, "questions": questions, "schemas": schemas,
    "drafts": drafts, "speed": speed, "llama.cpp": llama_cpp, "tokens": tokens, "speeds": speeds,
}  # fmt: skip
