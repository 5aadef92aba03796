"""Writes the measured checkpoints: llamas and a qwen2 with random but reproducible weights.

    python bench/models.py FOLDER [NAME...]

toy and deep have 2 and 28 layers of width 64, for measurements that do not depend on the weights. 25m and 150m are named for their parameters.
Each has a tokenizer and a chat template, so that servers accept text. The answers of a chain model are known: a token of the chain is
followed by the next one, and any other token by one of the chain. All chain models share one chain. Two models are written only if named: 1b
has the shape of Llama 3.2 1B; 8b-4bit has that of Llama 3.1 8B, packed in 4 bits.
"""

import json
import pathlib
import string
import sys

import numpy as np
from safetensors.numpy import save_file
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
    "8b-4bit": dict(hidden_size=4096, num_hidden_layers=32, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8, head_dim=128, vocab_size=128256),
}
GROUP = 64
CHAIN, FIRST = 2048, 5
SPECIAL = ["<|pad|>", "<|begin|>", "<|start|>", "<|role|>", "<|end|>"]
TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}<|role|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|role|>{% endif %}"
)


def config(size):
    return dict(
        architectures=["LlamaForCausalLM"], model_type="llama", max_position_embeddings=65536, rms_norm_eps=1e-6, rope_theta=10000.0,
        tie_word_embeddings=False, bos_token_id=1, eos_token_id=4, pad_token_id=0, hidden_act="silu", attention_bias=False, torch_dtype="float32",
    ) | (SIZES | LARGE)[size] | (dict(quantization=dict(group_size=GROUP, bits=4, mode="affine")) if size.endswith("-4bit") else {})


def shapes(config):
    """Yields the name and shape of every tensor. The shape of a norm has one dimension."""
    width, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    queries, keys = (config[heads] * config["head_dim"] for heads in ("num_attention_heads", "num_key_value_heads"))
    yield "model.embed_tokens.weight", (vocabulary, width)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, rows, columns in [("q", queries, width), ("k", keys, width), ("v", keys, width), ("o", width, queries)]:
            yield f"{prefix}self_attn.{name}_proj.weight", (rows, columns)
            if config["attention_bias"] and name != "o":
                yield f"{prefix}self_attn.{name}_proj.bias", (rows,)
        for name, rows, columns in [("gate", inner, width), ("up", inner, width), ("down", width, inner)]:
            yield f"{prefix}mlp.{name}_proj.weight", (rows, columns)
        yield f"{prefix}input_layernorm.weight", (width,)
        yield f"{prefix}post_attention_layernorm.weight", (width,)
    yield "model.norm.weight", (width,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (vocabulary, width)


def tensor(draw, shape, name):
    """Draws random numbers with a spread that keeps hidden states and logits in a realistic range."""
    if len(shape) == 1:
        return (1 + 0.1 * draw.standard_normal(shape)).astype(np.float32)
    spread = 1.0 if "embed" in name else (2.8 if "lm_head" in name else 1.6) / np.sqrt(shape[-1])
    return draw.standard_normal(shape, dtype=np.float32) * np.float32(spread)


def packed(draw, shape, name):
    """Draws a matrix of the same distribution in MLX's 4-bit format. It draws codes instead of quantizing floats."""
    rows, columns = shape
    words = draw.integers(0, 1 << 32, (rows, columns // 8), dtype=np.uint32)
    # Codes from 0 to 15 have a mean of 7.5 and a standard deviation of 4.6.
    step = (1.0 if "embed" in name else 1.6 / np.sqrt(columns)) / 4.6
    module = name.removesuffix(".weight")
    groups = np.ones((rows, columns // GROUP), dtype=np.float16)
    return {name: words, f"{module}.scales": np.float16(step) * groups, f"{module}.biases": np.float16(-7.5 * step) * groups}


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


def write(folder, size):
    folder.mkdir(parents=True, exist_ok=True)
    described = config(size)
    draw = np.random.default_rng(7)
    tensors = {}
    for name, shape in shapes(described):
        tensors |= packed(draw, shape, name) if "quantization" in described and len(shape) == 2 else {name: tensor(draw, shape, name)}
    if size.endswith("-chain"):
        chain(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    # mlx-lm needs it for a model on several machines.
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(tensors, "model.safetensors")}))
    write_tokenizer(folder, described["vocab_size"])
    # Written last: its presence means that the folder is complete.
    (folder / "config.json").write_text(json.dumps(described))


def main():
    for size in sys.argv[2:] or SIZES:
        folder = pathlib.Path(sys.argv[1]) / size
        if not (folder / "config.json").exists():
            write(folder, size)


if __name__ == "__main__":
    main()
