#!/usr/bin/env python3
"""Write the golden fixtures: tiny random checkpoints with the outputs of mlx-lm and transformers. This file has llama, families.py the others.

    python make.py [OUTPUT]        OUTPUT defaults to this script's folder; models/, expected/ and the folders in pictures/ there are replaced

Nothing here depends on the clock, the network or hash order: two runs write the same bytes.
A weight comes from PCG64 seeded by the crc32 of "model/tensor", so it is the same whatever is made before it.
"""
import json, math, os, shutil, struct, sys, zlib
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TRANSFORMERS_VERBOSITY="error")
import mlx.core as mx
mx.set_default_device(mx.cpu)  # before mlx_lm, which keeps a stream of the default device
import mlx_lm
import numpy as np
import transformers
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model, quantize_model
from mlx.utils import tree_flatten
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).resolve().parent
STEPS, PASS_LENGTH, BPE_VOCAB, SPM_VOCAB = 32, 48, 320, 384
CHUNKS = (0, 17, 18, 40, PASS_LENGTH)  # the chunks of the cached pass: a long one, a single token, two more
CASES = json.loads((HERE / "cases.json").read_text(encoding="utf-8"))

# ------------------------------------------------------------------------------------------------ checkpoints
# name: (changes to the plain config, kind of tokenizer). Models of one stem share their weights.
LLAMA3_ROPE = dict(rope_type="llama3", factor=8.0, low_freq_factor=0.5, high_freq_factor=4.0,  # a wavelength in each
                   original_max_position_embeddings=32)                                         # of the three bands
MODELS = {
    "llama-f32": ({}, "bpe"),
    "llama-f16": ({"torch_dtype": "float16"}, "bpe"),
    "llama-bf16": ({"torch_dtype": "bfloat16"}, "bpe"),
    "llama-rope3-f32": ({"rope_theta": 500000.0, "rope_scaling": LLAMA3_ROPE}, "bpe-bos"),
    "llama-linear-f32": ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "bpe"),
    "llama-tied-f32": ({"tie_word_embeddings": True}, "bpe"),
    "llama-bias-f32": ({"attention_bias": True, "mlp_bias": True}, "bpe"),
    "llama-spm-f32": ({"vocab_size": SPM_VOCAB, "eos_token_id": 2, "pad_token_id": None}, "spm"),
    "llama-mha-sharded-f32": ({"num_key_value_heads": 4, "head_dim": None, "max_position_embeddings": 128}, "bpe"),
}
# (With a width of 68 no greedy step is nearly a tie; `expect_model` checks this.)
WIDE, WIDER = (dict(hidden_size=64, intermediate_size=inner) for inner in (128, 192))  # multiples of the group size 64
QUANTIZED = {  # name: (changes to the plain config, how mlx-lm quantizes it)
    "llama-q4-f16": (WIDE | {"torch_dtype": "float16"}, dict(group_size=64, bits=4)),
    "llama-q8-bf16": (WIDER | {"torch_dtype": "bfloat16", "attention_bias": True}, dict(group_size=32, bits=8)),
    "llama-tied-q4-f32": (WIDE | {"tie_word_embeddings": True}, dict(group_size=32, bits=4)),
    "llama-mixed-f32": (WIDER, dict(group_size=32, bits=4, quant_predicate=lambda path, _: MIXED(path))),
    "llama-mxfp4-bf16": (WIDE | {"torch_dtype": "bfloat16"}, dict(group_size=None, bits=None, mode="mxfp4")),
    "llama-mxfp8-f32": (WIDER | {"tie_word_embeddings": True}, dict(group_size=None, bits=None, mode="mxfp8")),
    "llama-nvfp4-f16": (WIDER | {"torch_dtype": "float16"}, dict(group_size=None, bits=None, mode="nvfp4")),
}
LEFT_ALONE = ["model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj"]


def MIXED(path):
    """More bits for some modules, like mlx-lm's mixed recipes; queries, keys and values of a layer differ."""
    if path in LEFT_ALONE:
        return False
    bits = {"embed_tokens": 3, "lm_head": 6, "v_proj": 6, "down_proj": 5, "gate_proj": 2}.get(path.split(".")[-1])
    return dict(group_size=64 if bits in (3, 6) else 32, bits=bits, mode="affine") if bits else True


SEVERAL_EOS, JINJA_FILE, SHARDED = "llama-f32", "llama-tied-f32", "llama-mha-sharded-f32"


def config_of(name):
    config = dict(
        architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=32, num_hidden_layers=2,
        intermediate_size=68, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=BPE_VOCAB,
        max_position_embeddings=256, rms_norm_eps=1e-5, rope_theta=10000.0, rope_scaling=None, hidden_act="silu",
        attention_bias=False, mlp_bias=False, tie_word_embeddings=False, torch_dtype="float32",
        bos_token_id=1, eos_token_id=4, pad_token_id=0)
    config |= (MODELS.get(name) or QUANTIZED[name])[0]
    if config["head_dim"] is None:
        del config["head_dim"]  # to be derived from hidden_size and the heads
    return config


def tensors(config):
    """Every tensor of a checkpoint as (name, shape, scale); a scale of None marks a norm."""
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head_dim = config.get("head_dim", hidden // config["num_attention_heads"])
    queries, keys = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    tied, to_logits = config["tie_word_embeddings"], 2.8 / math.sqrt(hidden)  # a standard deviation of 2.8 gives clear margins
    yield "model.embed_tokens.weight", (vocab, hidden), to_logits if tied else 1.0
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        linears = [("self_attn.q", queries, hidden), ("self_attn.k", keys, hidden), ("self_attn.v", keys, hidden),
                   ("self_attn.o", hidden, queries), ("mlp.gate", inner, hidden), ("mlp.up", inner, hidden),
                   ("mlp.down", hidden, inner)]
        for part, rows, columns in linears:
            yield f"{prefix}{part}_proj.weight", (rows, columns), 1.6 / math.sqrt(columns)
            if config["mlp_bias" if part.startswith("mlp") else "attention_bias"]:
                yield f"{prefix}{part}_proj.bias", (rows,), 0.3
        yield prefix + "input_layernorm.weight", (hidden,), None
        yield prefix + "post_attention_layernorm.weight", (hidden,), None
    yield "model.norm.weight", (hidden,), None
    if not tied:
        yield "lm_head.weight", (vocab, hidden), to_logits


def generator(name, key):
    """A seed per model (equal for f32, f16 and bf16) and key."""
    stem = name.removesuffix("-f32").removesuffix("-f16").removesuffix("-bf16")
    return np.random.Generator(np.random.PCG64(zlib.crc32(f"{stem}/{key}".encode())))


def encode_tensor(values, dtype):
    """Little-endian bytes of f32 values rounded to the nearest (ties to even) f32, f16 or bf16."""
    if dtype == "BF16":
        bits = values.astype("<f4").view("<u4")
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    return values.astype({"F32": "<f4", "F16": "<f2", "I32": "<i4", "U32": "<u4", "U8": "u1"}[dtype]).tobytes()


def write_safetensors(path, items):
    """`items` is a list of (name, dtype, values)."""
    header, blobs, offset = {"__metadata__": {"format": "pt"}}, [], 0
    for name, dtype, values in items:
        blobs.append(encode_tensor(values, dtype))
        header[name] = dict(dtype=dtype, shape=list(values.shape), data_offsets=[offset, offset + len(blobs[-1])])
        offset += len(blobs[-1])
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def write_json(path, value, indent=None):
    path.write_text(json.dumps(value, ensure_ascii=False, indent=indent) + "\n", encoding="utf-8")


def write_weights(folder, name, config):
    dtype = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}[config["torch_dtype"]]
    items = []
    for tensor, shape, scale in tensors(config):
        noise = generator(name, tensor).standard_normal(shape, dtype=np.float32)
        items.append((tensor, dtype, 1 + np.float32(0.1) * noise if scale is None else np.float32(scale) * noise))
    if name != SHARDED:
        return write_safetensors(folder / "model.safetensors", items)
    half, weight_map = len(items) // 2, {}
    for number, shard in enumerate((items[:half], items[half:]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        write_safetensors(folder / file, shard)
        weight_map |= {tensor: file for tensor, _, _ in shard}
    total = sum(4 * values.size for _, _, values in items)
    write_json(folder / "model.safetensors.index.json", dict(metadata=dict(total_size=total), weight_map=weight_map), 1)


def quantize(folder, config, recipe):
    """Replaces the weights in `folder` like mlx-lm's `convert -q`; returns the config that it writes."""
    model, _ = load_model(folder)
    model, config = quantize_model(model, config, **recipe)
    if "quant_predicate" in recipe:
        config["quantization"] |= dict.fromkeys(LEFT_ALONE, False)  # as in some configs of mlx-community
    config["quantization_config"] = config["quantization"]
    dtypes = {mx.float32: "F32", mx.float16: "F16", mx.bfloat16: "BF16", mx.uint32: "U32", mx.uint8: "U8"}
    plain = lambda array: np.array(array.astype(mx.float32) if mx.issubdtype(array.dtype, mx.floating) else array)
    items = [(name, dtypes[array.dtype], plain(array)) for name, array in sorted(tree_flatten(model.parameters()))]
    write_safetensors(folder / "model.safetensors", items)
    return config


# ------------------------------------------------------------------------------------------------ tokenizers
BPE_SPECIALS = ["<|pad|>", "<|bos|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LLAMA3_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
                r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def starting_with_bos(token):
    return processors.TemplateProcessing(single=[token, "$A"], special_tokens=[(token, 1)])


def byte_level_tokenizer(corpus, bos):
    """Byte-level BPE over a Llama-3-like split; with `bos`, the post-processor puts one in front."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3_SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([corpus], trainers.BpeTrainer(
        vocab_size=BPE_VOCAB, special_tokens=BPE_SPECIALS, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.post_processor = starting_with_bos("<|bos|>") if bos else processors.ByteLevel(trim_offsets=False)
    return json.loads(tokenizer.to_str())


def sentencepiece_tokenizer(corpus):
    """The Llama 2 format: ▁ for spaces with one in front, byte fallback, <s> first."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()  # for training: no token spans two words
    lines = ["".join(c for c in line if c < "\x7f" or c in "éüñ").strip() for line in corpus.splitlines()]
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=SPM_VOCAB - 2, show_progress=False,
        special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]))
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = starting_with_bos("<s>")
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    data = json.loads(tokenizer.to_str())  # byte tokens must be ordinary entries, or decoding would drop them
    data["added_tokens"] = [token for token in data["added_tokens"] if not token["content"].startswith("<0x")]
    return data


def write_text_files(folder, name, kind, tokenizer):
    spm = kind == "spm"
    write_json(folder / "tokenizer.json", tokenizer)
    config = dict(tokenizer_class="PreTrainedTokenizerFast", bos_token="<s>" if spm else "<|bos|>",
                  eos_token="</s>" if spm else "<|im_end|>", clean_up_tokenization_spaces=False)
    config |= dict(unk_token="<unk>") if spm else dict(pad_token="<|pad|>")
    if name == JINJA_FILE:
        shutil.copyfile(HERE / "blocks.jinja", folder / "chat_template.jinja")
    else:  # a tokenizer that adds a BOS has a template that writes it too: a chat must not get two
        chatml = (HERE / "chatml.jinja").read_text(encoding="utf-8")
        config["chat_template"] = chatml if kind == "bpe" else "{{- bos_token }}" + chatml
    write_json(folder / "tokenizer_config.json", config, 1)
    eos = [4, 2] if name == SEVERAL_EOS else config_of(name)["eos_token_id"]
    write_json(folder / "generation_config.json", dict(bos_token_id=1, eos_token_id=eos), 1)


# ------------------------------------------------------------------------------------------------ expected values
def spread_error(got, want):
    """The largest difference, relative to the standard deviation of its row."""
    return float((np.abs(got - want) / np.ptp(want, axis=-1, keepdims=True)).max())


def full_pass(model, ids):
    return np.array(model(mx.array([ids]))[0].astype(mx.float32))


def cached_pass(model, ids):
    cache = make_prompt_cache(model)
    pieces = [model(mx.array([ids[a:b]]), cache=cache)[0] for a, b in zip(CHUNKS, CHUNKS[1:])]
    return np.array(mx.concatenate(pieces).astype(mx.float32))


def greedy(model, ids):
    """STEPS tokens, also after an end token, each with its row of log-probabilities."""
    pairs = list(generate_step(mx.array(ids), model, max_tokens=STEPS))
    return [int(token) for token, _ in pairs], np.stack([np.array(row.astype(mx.float32)) for _, row in pairs])


def greedy_case(model, text, ids):
    tokens, rows = greedy(model, ids)
    order = np.argsort(-rows, axis=-1, kind="stable")[:, :5]
    best = np.take_along_axis(rows, order, axis=-1).astype(np.float64)
    assert order[:, 0].tolist() == tokens
    again = full_pass(model, ids + tokens[:-1])[len(ids) - 1:]  # step by step == all at once
    assert again.argmax(axis=-1).tolist() == tokens
    again -= np.log(np.exp(again.astype(np.float64)).sum(axis=-1, keepdims=True))
    assert spread_error(again, rows) < 1e-5
    return dict(prompt=text, prompt_ids=ids, tokens=tokens, logprobs=best[:, 0].round(6).tolist(),
                top=[list(map(list, zip(i, l))) for i, l in zip(order.tolist(), best.round(6).tolist())],
                margins=(best[:, 0] - best[:, 1]).round(6).tolist())


def expect_model(source, target, name):
    """A half-precision checkpoint runs in its own type (as users of mlx-lm run it) and in f32 (as we run it on a CPU)."""
    model, tokenizer, config = mlx_lm.load(str(source / name), return_config=True)
    ids = generator(name, "ids").integers(8, config["vocab_size"] - 2, PASS_LENGTH).tolist()
    prompts = [(CASES["prompt"], tokenizer.encode(CASES["prompt"])), (None, ids[:40]), (None, [config["bos_token_id"]])]
    items = [("tokens", "I32", np.array(ids)), ("logits", "F32", full_pass(model, ids))]
    extra = [{} for _ in prompts]
    if config["torch_dtype"] != "float32":
        extra = [dict(tokens_half=greedy(model, prompt)[0]) for _, prompt in prompts]
        model.set_dtype(mx.float32)
        items.append(("logits_f32", "F32", full_pass(model, ids)))
    logits = items[-1][2]
    assert (cached := spread_error(cached_pass(model, ids), logits)) < 1e-5, f"{name}: cached pass differs: {cached}"
    cases = [greedy_case(model, text, prompt) | more for (text, prompt), more in zip(prompts, extra)]
    margin = min(min(case["margins"]) for case in cases)
    assert margin > 2e-4 * np.ptp(logits, axis=-1).mean(), f"{name}: two tokens are within {margin}"
    print(f"{name:22} logits' deviation {logits.std():.2f}, smallest margin {margin:.4f}, cached pass {cached:.0e}, "
          f"in its own type {spread_error(items[1][2], logits):.0e}")
    write_json(target / f"{name}.json", dict(mlx=mx.__version__, mlx_lm=mlx_lm.__version__, cases=cases))
    write_safetensors(target / f"{name}.safetensors", items)


def expect_text(source, target):
    """The output of transformers; the tokenizers library alone, which the Rust code uses, must agree."""
    result = dict(transformers=transformers.__version__, tokenizers={}, chat=[])
    for name in ("llama-f32", "llama-rope3-f32", "llama-spm-f32"):
        tokenizer, cases = transformers.AutoTokenizer.from_pretrained(source / name), []
        bare = Tokenizer.from_file(str(source / name / "tokenizer.json"))
        for text in CASES["texts"]:
            ids, with_specials = (tokenizer.encode(text, add_special_tokens=add) for add in (False, True))
            assert ids == bare.encode(text, add_special_tokens=False).ids and with_specials == bare.encode(text).ids
            cases.append(dict(text=text, ids=ids, ids_with_specials=with_specials))
        for number in range(12):  # mostly invalid UTF-8; every third one of byte tokens alone
            first, end = (5, 5 + 254) if number % 3 == 0 else (0, len(tokenizer))
            cases.append(dict(text=None, ids=generator("text", number).integers(first, end, 24).tolist()))
        emoji = cases[len(CASES["texts"]) - 1]["ids"]
        cases += [dict(text=None, ids=emoji[:-cut]) for cut in (1, 2, 3)]  # ends within a character
        for case in cases:
            full = case.get("ids_with_specials", case["ids"])
            for key, ids, skip in (("decoded", case["ids"], False), ("decoded_skipping_specials", full, True)):
                case[key] = tokenizer.decode(ids, skip_special_tokens=skip)
                assert case[key] == bare.decode(ids, skip_special_tokens=skip)
        result["tokenizers"][name] = cases
    for name in ("llama-f32", JINJA_FILE, "llama-spm-f32"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(source / name)
        for messages in CASES["chats"]:
            for tools, prompt in ((None, True), (None, False), ([CASES["tool"]], True)):
                options = dict(tools=tools, add_generation_prompt=prompt)
                text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
                ids = tokenizer.apply_chat_template(messages, return_dict=False, **options)
                result["chat"].append(dict(model=name, messages=messages, **options, text=text, ids=ids))
    write_json(target / "text.json", result)


def main():
    output = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else HERE
    source, target = output / "models", output / "expected"
    for folder in (source, target):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    corpus = (HERE / "corpus.txt").read_text(encoding="utf-8")
    tokenizers = {"bpe": byte_level_tokenizer(corpus, False), "bpe-bos": byte_level_tokenizer(corpus, True),
                  "spm": sentencepiece_tokenizer(corpus)}
    for name, (_, kind) in MODELS.items():
        folder, config = source / name, config_of(name)
        folder.mkdir()
        assert len(tokenizers[kind]["model"]["vocab"]) + 2 * (kind == "spm") == config["vocab_size"]
        write_json(folder / "config.json", config, 1)
        write_weights(folder, name, config)
        write_text_files(folder, name, kind, tokenizers[kind])
        expect_model(source, target, name)
    for name, (_, recipe) in QUANTIZED.items():
        folder, config = source / name, config_of(name)
        folder.mkdir()
        write_json(folder / "config.json", config, 1)
        write_weights(folder, name, config)
        write_json(folder / "config.json", quantize(folder, config, recipe), 1)
        write_text_files(folder, name, "bpe", tokenizers["bpe"])
        expect_model(source, target, name)
    expect_text(source, target)
    import families  # imported late, since it uses this module
    families.write_all(source, target, tokenizers["bpe"])
    import mtp
    mtp.write_all(source, target)
    import convert
    convert.write(target)
    import adapters
    adapters.write(target)
    import pictures
    pictures.write_all(output)
    import gguf_files
    gguf_files.write_all(output)


if __name__ == "__main__":
    main()
