"""The topics of the benchmark and their programs. The first program of each topic is ours."""

import dataclasses
import json
import pathlib
import platform
from collections.abc import Callable

from turns import Contestant

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = ROOT / "bench/peers"
TINY = ROOT / "tests/golden/models"


@dataclasses.dataclass
class Topic:
    name: str
    title: str
    contestants: list
    turns: int = 3
    # Adds derived figures to the results.
    derive: Callable = lambda results: None
    # True to measure the topic only if it is named.
    named_only: bool = False
    # Names of bench/models.py; by default those of its SIZES.
    models: tuple = ()


@dataclasses.dataclass
class Kit:
    """The paths of the programs."""

    python: pathlib.Path
    models: pathlib.Path
    plain_blas: pathlib.Path | None
    slow_device: pathlib.Path | None
    threads: int

    def ours(self, *arguments, name="ours"):
        return Contestant(name, [ROOT / "target/release/mlx-bench", *arguments])

    def null(self, *arguments):
        """Our program a second time. The distance of its ratio from 1 is noise."""
        return self.ours(*arguments, name="ours again")

    def same_blas(self):
        """Returns the environment that makes a wheel's MLX use our BLAS. On a Mac both use Apple's."""
        if not self.plain_blas:
            return {}
        return {"LD_PRELOAD": str(self.plain_blas), "OPENBLAS_NUM_THREADS": str(self.threads)}

    def peer(self, script, *arguments):
        return Contestant("mlx-lm, same BLAS", [self.python, PEERS / script, *arguments], self.same_blas())

    def installed(self, script, *arguments, name="mlx-lm as installed"):
        return Contestant(name, [self.python, PEERS / script, *arguments])

    def converted(self, model, kind, *command):
        """Returns a command on a model with weights of a given type."""
        return [self.python, ROOT / "bench/weights.py", ROOT / "target/release/mlx", model, kind, *command]

    def model(self, size):
        return self.models / size


def weight_bytes(folder):
    """Returns the bytes of f32 weights that each token reads: all weights except the embedding."""
    config = json.loads((folder / "config.json").read_text())
    width, head = config["hidden_size"], config["head_dim"]
    attention = 2 * width * head * (config["num_attention_heads"] + config["num_key_value_heads"])
    layer = attention + 3 * width * config["intermediate_size"] + 2 * width
    return 4 * (config["num_hidden_layers"] * layer + width + config["vocab_size"] * width)


def shares_of_the_roof(folder):
    """Derives rates as shares of the machine's limits. A token reads every weight once and takes two operations per weight."""

    def derive(results):
        per_token = weight_bytes(folder)
        read, product = (results.of("the machine", figure) for figure in ("reading, GB/s", "product of f32, GFLOP/s"))
        for name in results.names():
            for rate, limit, what, scale in [
                ("answer of 128, tok/s", read, "answer, share of reading", per_token / 1e9),
                ("prompt of 512, tok/s", product, "prompt, share of products", per_token / 2 / 1e9),
            ]:
                for tokens, most in zip(results.of(name, rate), limit):
                    results.add(name, {what: tokens * scale / most})

    return derive


def topics(kit):
    toy, small, large = (kit.model(size) for size in ("toy", "25m", "150m"))
    linux = platform.system() == "Linux"
    families = [folder for folder in sorted(TINY.iterdir()) if (folder / "config.json").exists()]
    lengths = "1000,2000,4000,8000,16000,32000"
    yield from [single(kit, model, f"single-{model.name}") for model in (small, large)]
    for model, streams in [(small, "1,4,8,16,32"), (large, "1,8,16")]:
        contestants = [kit.ours("throughput", model, streams), kit.null("throughput", model, streams), kit.peer("mlx_lm_throughput.py", model, streams)]
        if linux and model == small:
            contestants.append(kit.installed("mlx_lm_throughput.py", model, "1,8"))
        yield Topic(f"throughput-{model.name}", f"Many sequences at once, {model.name}", contestants)
    pair = [kit.ours("throughput", toy, "1"), kit.null("throughput", toy, "1"), kit.peer("mlx_lm_throughput.py", toy, "1")]
    yield Topic("toy", "A toy of two layers", pair, turns=5)
    yield Topic("host", "Where a token's time goes on the host", [kit.ours("host", toy), kit.null("host", toy)], turns=5)
    yield Topic("off", "Features that are off", [kit.ours("off", small, toy)], turns=1)
    # These rounds give thousands of gaps, because few of them may be undisturbed on a shared machine.
    for streams, rounds in ((1, 3), (4, 1)):
        title = f"Streams beside long prompts: {streams}"
        yield Topic(f"gaps-{streams}", title, [kit.ours("gaps", small, streams, rounds), kit.peer("mlx_lm_gaps.py", small, streams)], turns=1)
    yield Topic("first-tokens", "Short requests beside streams", [kit.ours("first-tokens", toy), kit.peer("mlx_lm_gaps.py", toy, "first-tokens")])
    together = ["together", small, "8", "24"]
    yield Topic("together", "Short prompts that arrive together", [kit.ours(*together), kit.null(*together)])
    yield Topic("prefixes", "Turns of a chat", [kit.ours("prefixes", small)], turns=1)
    yield Topic("growth", "Growth with the context", [kit.ours("growth", toy, lengths)], turns=1)
    yield Topic("sampling", "Sampling", [kit.ours("sampling"), kit.null("sampling"), kit.peer("mlx_lm_sampling.py")])
    yield Topic("history", "Penalties, by length of the history", [kit.ours("history")])
    yield Topic("graph", "Operations a layer", [kit.ours("graph", *families), kit.peer("mlx_lm_graph.py", *families)], turns=1)
    if kit.slow_device:
        yield from ahead(kit)
    yield from speculation(kit)
    yield from [weights(kit, name, size) for name, size in (("weights-150m", "150m"), ("weights-1b", "1b"))]
    yield from throughput_in_4_bits(kit, large)
    yield resident(kit, "150m", ["4 bits", "bf16"])
    yield resident(kit, "1b", ["4 bits", "8 bits", "bf16"], named_only=True)
    yield resident(kit, "8b-4bit", ["as written"], named_only=True, limit=16)
    yield from [ranks(kit, processes) for processes in (2, 4)]
    yield start(kit)
    yield served(kit, small)
    yield apart(kit, large)
    yield greedy(kit, small)
    yield served_in_4_bits(kit, large)
    yield from gpu(kit)
    yield Topic("slide", "Text that slides", [kit.ours("slide", ROOT / "crates/guide/model")], turns=1)


# The smallest come first: a run that is stopped early has their figures. Their files take 26 GB together.
ON_A_GPU = ("1b-4bit", "1b-bf16", "qwen3_5-4bit", "8b-4bit", "8b-bf16")


def gpu(kit):
    """Streams on a GPU, beside mlx-lm's BatchGenerator on the same one."""
    for size in ON_A_GPU:
        load = [kit.model(size), "1,8,32"]
        peer = kit.installed("mlx_lm_throughput.py", *load, name="mlx-lm")
        contestants = [kit.ours("throughput", *load), kit.null("throughput", *load), peer]
        yield Topic(f"gpu-{size}", f"Many sequences at once on a GPU, {size}", contestants, turns=2, named_only=True, models=(size,))


def ahead(kit):
    """Measures steps that start before the previous tokens are drawn, on a slow device."""
    one_row = [(milliseconds, 1, 64, sampling) for sampling in ("greedy", "penalized") for milliseconds in (3, 5, 10)]
    more = [(5, 1, 64, "random"), (10, 1, 4000, "greedy"), (10, 1, 4000, "penalized"), (10, 8, 64, "greedy"), (10, 8, 64, "penalized")]
    cases = one_row + more
    for milliseconds, rows, position, sampling in cases:
        program = [kit.python, ROOT / "bench/ahead.py", ROOT / "target/release/mlx-bench", kit.slow_device, milliseconds, rows, position, sampling]
        arms = [("ours", "auto"), ("off", "off"), ("off again", "off")]
        contestants = [Contestant(name, [*program, pipeline, kit.model("deep")]) for name, pipeline in arms]
        title = f"Running ahead: {milliseconds} ms a step, {rows} rows at {position}, {sampling}"
        yield Topic(f"ahead-{milliseconds}-{rows}-{position}-{sampling}", title, contestants, turns=5)


def speculation(kit):
    """Measures speculation on repetitive and on unpredictable texts, with and without drafts."""
    for model, most in (("25m", 16), ("150m", 4)):
        for streams in [streams for streams in (1, 4, 16) if streams <= most]:
            rounds = kit.ours("speculation", kit.model(model), "free", streams, "rounds", max(5, 15 // streams))
            yield Topic(f"speculation-{model}-free-{streams}", f"Speculation: free on {model}, {streams} at once", [rounds], turns=1)
    cases = [("25m-chain", "copy", 16), ("25m-chain", "edit", 16), ("150m-chain", "copy", 4), ("150m-chain", "edit", 4), ("25m", "json", 4)]
    for model, text, most in cases:
        for streams in [streams for streams in (1, 4, 16) if streams <= most]:
            work = ["speculation", kit.model(model), text, streams]
            contestants = [kit.ours(*work, "auto"), kit.ours(*work, "off", name="off"), kit.ours(*work, "off", name="off again")]
            if model == "150m-chain":
                contestants.append(kit.ours(*work, "draft", kit.model("25m-chain"), name="draft model"))
            if text == "copy" and streams == 1:
                contestants += copied(kit, model)
            yield Topic(f"speculation-{model}-{text}-{streams}", f"Speculation: {text} on {model}, {streams} at once", contestants, turns=5)


def copied(kit, model):
    """Measures the drafters of other programs: a draft model, and prompt lookup."""
    folder, draft, script = kit.model(model), kit.model("25m-chain"), "mlx_lm_speculation.py"
    yield dataclasses.replace(kit.peer(script, folder, "copy"), name="mlx-lm, same BLAS, off")
    if model != draft.name:
        yield dataclasses.replace(kit.peer(script, folder, "copy", draft), name="mlx-lm, same BLAS, draft model")
    for arguments, name in [([], "llama.cpp, off"), (["lookup"], "llama.cpp, prompt lookup")]:
        yield Contestant(name, [kit.python, PEERS / "llama_cpp_speculation.py", folder, kit.threads, *arguments])


def single(kit, model, name):
    contestants = [
        kit.ours("single", model),
        kit.null("single", model),
        kit.peer("mlx_lm_single.py", model),
        Contestant("llama.cpp", [kit.python, PEERS / "llama_cpp_single.py", model, kit.threads]),
        kit.ours("limits", name="the machine"),
    ]
    # A wheel's own BLAS takes minutes for the large model and shows the same result.
    if platform.system() == "Linux" and model.name != "150m":
        contestants.insert(3, kit.installed("mlx_lm_single.py", model))
    return Topic(name, f"One stream, {model.name}", contestants, derive=shares_of_the_roof(model))


# Bits per weight, including scales and biases.
BITS = {"f32": 32, "bf16": 16, "f16": 16, "8 bits": 8.5, "6 bits": 6.5, "4 bits": 4.5, "3 bits": 3.5, "2 bits": 2.5, "mxfp4": 4.25, "mxfp8": 8.25}
BITS_OF_LLAMA_CPP = {"F32": 32, "BF16": 16, "F16": 16, "Q8_0": 8.5, "Q6_K": 6.5625, "Q4_0": 4.5}


def shares_of_reading(folder):
    """Derives the rate at which decoding reads weights, as a share of the rate of a read-only program."""

    def derive(results):
        read = results.of("the machine", "reading, GB/s")
        for name in results.names():
            bits = BITS.get(name.removesuffix(" again")) or BITS_OF_LLAMA_CPP.get(name.removeprefix("llama.cpp "))
            for tokens, most in zip(results.of(name, "answer of 128, tok/s"), read):
                results.add(name, {"answer, share of reading": tokens * weight_bytes(folder) / 32 * bits / 1e9 / most})

    return derive


def weights(kit, name, size):
    """Measures one stream with packed or half weights, in our types and those of llama.cpp."""
    model = kit.model(size)
    # The first contestant writes the model.
    kinds = ["f32", "f32 again", *list(BITS)[1:]]
    mine = [Contestant(kind, kit.converted(model, kind.removesuffix(" again"), ROOT / "target/release/mlx-bench", "single", "{model}")) for kind in kinds]
    program = [kit.python, PEERS / "llama_cpp_single.py", model, kit.threads]
    theirs = [Contestant(f"llama.cpp {kind}", [*program, *([] if kind == "F32" else [kind])]) for kind in BITS_OF_LLAMA_CPP]
    machine = kit.ours("limits", name="the machine")
    # The conversions of the large model take 30 GB.
    title = f"Weights as they are in the files, {size}"
    return Topic(name, title, [*mine, machine, *theirs], turns=2, derive=shares_of_reading(model), named_only=size == "1b")


def throughput_in_4_bits(kit, model):
    """Measures many sequences with packed weights. mlx-lm takes over 15 minutes for eight of them, so its load is shorter."""
    load = kit.converted(model, "4 bits", ROOT / "target/release/mlx-bench", "throughput", "{model}", "8,16")
    title = "Many sequences at once, weights in 4 bits"
    yield Topic("throughput-4-bits", title, [Contestant("ours", load), Contestant("ours again", load)], turns=2)
    short = [*load, "sampling", "8", "8"]
    theirs = kit.converted(model, "4 bits", kit.python, PEERS / "mlx_lm_throughput.py", "{model}", "8,16", "8", "8")
    contestants = [Contestant("ours", short), Contestant("ours again", short), Contestant("mlx-lm as installed", theirs, limit=900)]
    yield Topic("throughput-4-bits-short", f"{title}, 8 tokens behind 8", contestants, turns=1)


def resident(kit, size, kinds, named_only=False, limit=None):
    """Measures a server's memory without its files, and its startup time; optionally within a limit in GiB."""
    program = [kit.python, ROOT / "bench/resident.py", *(["--limit", limit] if limit else []), "{model}", "--"]
    program += [ROOT / "target/release/mlx", "serve", "-m", "lm={model}", "--port", "{port}", "--preload"]
    contestants = [Contestant(kind, kit.converted(kit.model(size), kind, *program)) for kind in kinds]
    within = f", within {limit} GiB" if limit else ""
    return Topic(f"resident-{size}", f"Memory beside the files, {size}{within}", contestants, turns=2, named_only=named_only)


def ranks(kit, processes):
    """Measures one model in several processes over loopback, in pipeline and tensor mode. mlx-lm supports both, too."""
    model = kit.model("150m-qwen2")
    # With more BLAS threads than cores, the threads wait for each other and a token takes seconds.
    environment = kit.same_blas() | {"OPENBLAS_NUM_THREADS": str(max(1, kit.threads // processes))}
    program = [kit.python, PEERS / "mlx_lm_ranks.py", model]
    # In tensor mode, and under mlx.launch, four processes on two cores exceed the time limit.
    load = [32, 8, 1] if processes > 2 else []
    peers = [Contestant(f"mlx-lm, same BLAS, {how}", [*program, how, processes, *load], environment, limit=120) for how in ("pipeline", "tensor")]
    launch = [kit.python.with_name("mlx.launch"), "-n", processes, "--backend", "ring", "--python", kit.python, "--"]
    launched = Contestant("mlx.launch, pipeline", [*launch, *peers[0].command[1:]], environment, limit=120)
    arms = [kit.ours("ranks", model, processes), kit.null("ranks", model, processes), kit.ours("ranks", model, processes, "tensor", name="ours, tensor")]
    arms.append(kit.ours("ranks", model, 1, name="one process"))
    return Topic(f"ranks-{processes}", f"One model in {processes} processes", [*arms, *peers, launched], turns=2)


def start(kit):
    """Measures the time from process start to the first token."""
    model, wall = ROOT / "crates/guide/model", "start to first token, s"
    mine = [ROOT / "target/release/mlx", "generate", "-m", model, "-p", "hello", "-n", "1"]
    theirs = [kit.python, "-m", "mlx_lm", "generate", "--model", model, "--prompt", "hello", "-m", "1"]
    contestants = [Contestant("ours", mine, wall=wall), Contestant("ours again", mine, wall=wall), Contestant("mlx-lm, same BLAS", theirs, kit.same_blas(), wall)]
    return Topic("start", "From start to the first token", contestants, turns=5)


def served(kit, model):
    clients = [kit.python, ROOT / "bench/load.py", "--clients", "1,4,8,16", "--"]
    mine = [*clients, ROOT / "target/release/mlx-server", "-m", f"lm={model}", "--port", "{port}", "--preload"]
    theirs = [*clients, kit.python, "-m", "mlx_lm", "server", "--model", model, "--port", "{port}"]
    contestants = [Contestant("ours", mine), Contestant("ours again", mine), Contestant("mlx_lm.server, same BLAS", theirs, kit.same_blas())]
    return Topic("server", "The server", contestants)


def apart(kit, model):
    """Measures the cost of an engine in a child process, and the time from its death to the next token."""
    clients = [kit.python, ROOT / "bench/load.py", "--clients", "1,8,16", "--requests", "2"]
    command = ["--", ROOT / "target/release/mlx-server", "-m", f"lm={model}", "--port", "{port}", "--preload"]
    within = [*clients, *command, "--in-process"]
    contestants = [Contestant("child process", [*clients, "--deaths", "3", *command]), Contestant("in process", within), Contestant("in process again", within)]

    def derive(results):
        between = "1 clients, between tokens p50, ms"
        for name in results.names()[:2]:
            for mine, null in zip(results.of(name, between), results.of(results.names()[2], between)):
                results.add(name, {"us a token beside in process again": 1000 * (mine - null)})

    return Topic("engine-process", "An engine in a child process", contestants, derive=derive)


def served_in_4_bits(kit, model):
    """Measures many streams with packed weights, compared with llama-server with as many slots. MLX's own packed product takes more than five
    minutes on a CPU for eight prompts."""
    clients = [kit.python, ROOT / "bench/load.py", "--clients", "8,16", "--"]
    mine = kit.converted(model, "4 bits", *clients, ROOT / "target/release/mlx-server", "-m", "lm={model}", "--port", "{port}", "--preload")
    slots = ["-np", "16", "-c", "16384", "-t", kit.threads, "-ctk", "f32", "-ctv", "f32"]
    theirs = [*clients, "{llama-server}", "-m", "{model}", "--port", "{port}", *slots]
    theirs = [kit.python, PEERS / "llama_server.py", ROOT / "target/bench", kit.python, PEERS / "gguf_files.py", model, "Q4_0", *theirs]
    contestants = [Contestant("ours", mine), Contestant("ours again", mine), Contestant("llama-server, Q4_0", theirs)]
    return Topic("server-4-bits", "The server, weights in 4 bits", contestants, turns=2)


def greedy(kit, model):
    mine = [kit.python, ROOT / "bench/greedy.py", "--", ROOT / "target/release/mlx-server", "-m", f"lm={model}", "--port", "{port}", "--preload"]
    return Topic("greedy", "Small requests beside greedy clients", [Contestant("ours", mine)], turns=1)
