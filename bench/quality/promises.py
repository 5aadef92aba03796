"""The promises of docs/quality.md that a run checks."""

from quality.page import BASE, parts
from quality.perplexity import perplexity

# Packed weights that are read exactly, and floats, differ from the reference by rounding alone. Gemma's file has Q6_K, which is rounded once more.
LARGEST = {"smollm2": 1e-2, "gemma3": 5e-2}
LARGEST_OF_FLOATS = 1e-4
# Greedy texts may part where the reference's best two tokens are this close, in units of the largest difference.
MARGIN = 2
# Perplexity of a file beside that of its dequantized weights.
LOSS = 1e-2


def broken(values, models):
    """Returns a sentence for each broken promise."""
    found = []
    for model in models:
        found += references(f"{model} references", values, LARGEST[model])
        found += references(f"{model} f32 references", values, LARGEST_OF_FLOATS)
        found += losses(model, values)
    kept = [row["enforced"]["kept"] for row in values["smollm2 schemas"]]
    if not all(kept):
        found.append(f"{kept.count(False)} of {len(kept)} answers do not keep an enforced schema")
    return found


def references(job, values, largest):
    it = values[job]
    if it["same ids"] < it["texts"]:
        yield f"{job}: only {it['same ids']} of {it['texts']} prompts have the reference's ids"
    if it["largest difference"] > largest:
        yield f"{job}: a log-probability differs by {it['largest difference']:.1e}, more than {largest:.0e}"
    for margin in it["margins of forks"]:
        if margin > MARGIN * largest:
            yield f"{job}: a greedy text parts where the reference's margin is {margin:.2g}"


def losses(model, values):
    base = parts(values, model, BASE)
    for format in ("gguf", "converted"):
        if found := parts(values, model, format):
            loss = perplexity(*found) / perplexity(*base) - 1
            if abs(loss) > LOSS:
                yield f"{model}, {format}: the perplexity differs by {100 * loss:.1f} % from that of the dequantized weights"
