"""Writes the checkpoints that are measured. Weights are random, with a fixed seed.

    python bench/models.py FOLDER [NAME...]

toy and deep: llamas with 2 and 28 layers of width 64, for figures that do not depend on the weights. 25m and 150m: llamas with that many parameters.
Each has a tokenizer and a chat template, so servers accept text. A chain continues predictably: its head makes each token of the chain likeliest after
the one before it. All chains are equal.

These are written only if they are named: 1b and 8b with the shapes of Llama 3.2 1B and Llama 3.1 8B, qwen3_5 with three gated delta layers to one of
attention. 1b is in f32; names that end in -bf16 and -4bit give the others.
"""

import json
import pathlib
import string
import sys

import numpy as np
from safetensors import TensorSpec, serialize_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SIZES = {
    "toy": dict(hidden_size=64, num_hidden_layers=2, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=512),
    "25m": dict(hidden_size=512, num_hidden_layers=6, intermediate_size=1408, num_attention_heads=8, num_key_value_heads=4, head_dim=64, vocab_size=8192),
    "150m": dict(hidden_size=768, num_hidden_layers=12, intermediate_size=3072, num_attention_heads=12, num_key_value_heads=4, head_dim=64, vocab_size=32000),
}
# Many tiny layers: a step is almost only host work.
SIZES |= {"deep": dict(SIZES["toy"], num_hidden_layers=28)}
SIZES |= {f"{size}-chain": SIZES[size] for size in ("25m", "150m")}
# mlx-lm supports pipeline parallelism for it, but only tensor parallelism for a llama.
SIZES |= {"150m-qwen2": dict(SIZES["150m"], architectures=["Qwen2ForCausalLM"], model_type="qwen2", attention_bias=True)}
LARGE = {
    "1b": dict(hidden_size=2048, num_hidden_layers=16, intermediate_size=8192, num_attention_heads=32, num_key_value_heads=8, head_dim=64, vocab_size=128256, tie_word_embeddings=True),
    "8b": dict(hidden_size=4096, num_hidden_layers=32, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8, head_dim=128, vocab_size=128256),
    "qwen3_5": dict(
        architectures=["Qwen3_5ForCausalLM"], model_type="qwen3_5_text", hidden_size=2560, num_hidden_layers=32, intermediate_size=9216, num_attention_heads=16,
        num_key_value_heads=4, head_dim=256, vocab_size=248320, tie_word_embeddings=True, linear_num_key_heads=16, linear_num_value_heads=32,
        linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4, full_attention_interval=4,
        rope_parameters=dict(rope_type="default", rope_theta=10000000.0, partial_rotary_factor=0.25),
    ),
}
GROUP = 64
CHAIN, FIRST = 2048, 5
SPECIAL = ["<|pad|>", "<|begin|>", "<|start|>", "<|role|>", "<|end|>"]
TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}<|role|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|role|>{% endif %}"
)


def config(size):
    name, _, kind = size.partition("-")
    own = SIZES[size] if size in SIZES else LARGE[name]
    if kind == "4bit":
        own = own | dict(quantization=dict(group_size=GROUP, bits=4, mode="affine"))
    if kind in ("4bit", "bf16"):
        own = own | dict(torch_dtype="bfloat16")
    return dict(
        architectures=["LlamaForCausalLM"], model_type="llama", max_position_embeddings=65536, rms_norm_eps=1e-6, rope_theta=10000.0,
        tie_word_embeddings=False, bos_token_id=1, eos_token_id=4, pad_token_id=0, hidden_act="silu", attention_bias=False, torch_dtype="float32",
    ) | own


def outer(config):
    """Returns the content of config.json. mlx-lm reads a qwen3_5 only as the text model of one with images."""
    if config["model_type"] != "qwen3_5_text":
        return config
    shared = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings", "torch_dtype", "quantization") if name in config}
    return dict(architectures=["Qwen3_5ForConditionalGeneration"], model_type="qwen3_5", text_config=config) | shared


def shapes(config):
    """Yields the name and shape of every tensor. The shape of a norm has one dimension."""
    root = "language_model." if config["model_type"] == "qwen3_5_text" else ""
    for name, shape in layers_and_ends(config):
        yield root + name, shape


def layers_and_ends(config):
    width, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    yield "model.embed_tokens.weight", (vocabulary, width)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        recurrent = "full_attention_interval" in config and (layer + 1) % config["full_attention_interval"]
        yield from gated_delta(config, f"{prefix}linear_attn.") if recurrent else attention(config, f"{prefix}self_attn.")
        for name, rows, columns in [("gate", inner, width), ("up", inner, width), ("down", width, inner)]:
            yield f"{prefix}mlp.{name}_proj.weight", (rows, columns)
        yield f"{prefix}input_layernorm.weight", (width,)
        yield f"{prefix}post_attention_layernorm.weight", (width,)
    yield "model.norm.weight", (width,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (vocabulary, width)


def attention(config, prefix):
    gated = config["model_type"] == "qwen3_5_text"
    width, head = config["hidden_size"], config["head_dim"]
    queries, keys = (config[heads] * head for heads in ("num_attention_heads", "num_key_value_heads"))
    for name, rows, columns in [("q", 2 * queries if gated else queries, width), ("k", keys, width), ("v", keys, width), ("o", width, queries)]:
        yield f"{prefix}{name}_proj.weight", (rows, columns)
        if config["attention_bias"] and name != "o":
            yield f"{prefix}{name}_proj.bias", (rows,)
    if gated:
        yield f"{prefix}q_norm.weight", (head,)
        yield f"{prefix}k_norm.weight", (head,)


def gated_delta(config, prefix):
    width, heads = config["hidden_size"], config["linear_num_value_heads"]
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = heads * config["linear_value_head_dim"]
    channels = 2 * keys + values
    for name, rows in [("qkv", channels), ("z", values), ("a", heads), ("b", heads)]:
        yield f"{prefix}in_proj_{name}.weight", (rows, width)
    yield f"{prefix}out_proj.weight", (width, values)
    yield f"{prefix}conv1d.weight", (channels, 1, config["linear_conv_kernel_dim"])
    for name, size in [("A_log", heads), ("dt_bias", heads), ("norm.weight", config["linear_value_head_dim"])]:
        yield f"{prefix}{name}", (size,)


def spread(shape, name):
    return 1.0 if "embed" in name else (2.8 if "lm_head" in name else 1.6) / np.sqrt(shape[-1])


def tensor(draw, shape, name):
    """Draws random numbers with a spread that keeps hidden states and logits in a realistic range."""
    if len(shape) == 1:
        return (1 + 0.1 * draw.standard_normal(shape)).astype(np.float32)
    return draw.standard_normal(shape, dtype=np.float32) * np.float32(spread(shape, name))


def packed(draw, shape, name):
    """Draws a matrix of the same distribution in MLX's 4-bit format. It draws codes instead of quantizing floats."""
    rows, columns = shape
    words = draw.integers(0, 1 << 32, (rows, columns // 8), dtype=np.uint32)
    # Codes from 0 to 15 have a mean of 7.5 and a standard deviation of 4.6.
    step = spread(shape, name) / 4.6
    module = name.removesuffix(".weight")
    groups = np.ones((rows, columns // GROUP), dtype=np.float32)
    return {name: words, f"{module}.scales": bf16(step * groups), f"{module}.biases": bf16(-7.5 * step * groups)}


class Bf16(np.ndarray):
    """The bits of bf16 numbers, which NumPy has no type for."""


def bf16(numbers):
    return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(Bf16)


def drawn_bf16(draw, shape, name):
    """Draws bits, since eight billion normal numbers take minutes: one exponent, random signs and fractions."""
    exponent = 127 + int(np.floor(np.log2(spread(shape, name) / 1.5)))
    bits = draw.integers(0, 1 << 16, shape, dtype=np.uint16)
    bits &= 0x807F
    bits |= exponent << 7
    return bits.view(Bf16)


def small_tensor(draw, shape, name):
    """Norms, kernels of convolutions and decays, which no checkpoint packs."""
    if name.endswith("conv1d.weight"):
        return bf16(0.5 * draw.standard_normal(shape))
    return bf16(1 + 0.1 * draw.standard_normal(shape))


def chain(tensors):
    """Makes each token's successor the most likely one: the embedding outweighs the layers, and the head maps it to the successor."""
    embedding = tensors["model.embed_tokens.weight"]
    vocabulary, width = embedding.shape
    head = np.random.default_rng(8).standard_normal((vocabulary, width), dtype=np.float32)
    successors = FIRST + (np.arange(vocabulary) - FIRST + 1) % CHAIN
    head[FIRST : FIRST + CHAIN] = 0
    np.add.at(head, successors, embedding)
    tensors["lm_head.weight"] = 0.1 * head
    tensors["model.embed_tokens.weight"] = 100 * embedding


def write_tokenizer(folder, vocabulary):
    """Writes a tokenizer of bytes and merged letters that fill the vocabulary. The merges are arbitrary; most tokens only have to be text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = list(string.ascii_letters)
    pairs = [(left, right) for left in letters for right in letters]
    threes = [(left + right, third) for left, right in pairs for third in letters]
    # The largest vocabularies exceed the available merges, so their last tokens have no text.
    merges = (pairs + threes)[: vocabulary - len(alphabet) - len(SPECIAL)]
    tokens = SPECIAL + alphabet + [left + right for left, right in merges]
    ids = {token: place for place, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    described = dict(tokenizer_class="PreTrainedTokenizerFast", bos_token="<|begin|>", eos_token="<|end|>", pad_token="<|pad|>", chat_template=TEMPLATE)
    (folder / "tokenizer_config.json").write_text(json.dumps(described))


def tensors_of(described):
    draw = np.random.default_rng(7)
    tensors = {}
    for name, shape in shapes(described):
        if described["torch_dtype"] == "float32":
            tensors[name] = tensor(draw, shape, name)
        elif len(shape) != 2:
            tensors[name] = small_tensor(draw, shape, name)
        elif "quantization" in described:
            tensors |= packed(draw, shape, name)
        else:
            tensors[name] = drawn_bf16(draw, shape, name)
    return tensors


def save(tensors, path):
    def spec(array):
        dtype = "bfloat16" if isinstance(array, Bf16) else array.dtype.name
        return TensorSpec(dtype=dtype, shape=array.shape, data_ptr=array.ctypes.data, data_len=array.nbytes)

    serialize_file({name: spec(array) for name, array in tensors.items()}, path, metadata={"format": "pt"})


def write(folder, size):
    folder.mkdir(parents=True, exist_ok=True)
    described = config(size)
    tensors = tensors_of(described)
    if size.endswith("-chain"):
        chain(tensors)
    save(tensors, folder / "model.safetensors")
    # mlx-lm needs it for a model on several machines.
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(tensors, "model.safetensors")}))
    write_tokenizer(folder, described["vocab_size"])
    # Written last: its presence means that the folder is complete.
    (folder / "config.json").write_text(json.dumps(outer(described)))


def main():
    for size in sys.argv[2:] or SIZES:
        folder = pathlib.Path(sys.argv[1]) / size
        if not (folder / "config.json").exists():
            write(folder, size)


if __name__ == "__main__":
    main()
