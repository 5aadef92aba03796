"""Writes encoders/: tiny random encoders in Hugging Face layout with files of sentence-transformers, and expected.json, their vectors and scores by transformers in f32.

    pip install -r requirements.txt && python encoders.py [NAME...]

A weight comes from PCG64 seeded by the crc32 of "model/tensor". Weights in bf16 and in 4 bits are widened for the reference.
"""
import json, os, re, shutil, sys, zlib
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TRANSFORMERS_VERBOSITY="error")
import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

torch.set_num_threads(1)
HERE = Path(__file__).resolve().parent
OUT = HERE / "encoders"
CORPUS = (HERE / "corpus.txt").read_text(encoding="utf-8")
SENTENCES = [line for line in CORPUS.splitlines() if line.strip()]
TEXTS = ["Bread", "The keeper counts the waves", "On Tuesdays the baker rows over, with two loaves!", " ".join(SENTENCES)[:400]]
PAIRS = [["Who counts the waves?", "The keeper"], ["bread", " ".join(SENTENCES)[:400]], [" ".join(SENTENCES)[:300], "bread"], ["a", "b"]]
SHAPE = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48)
LENGTH = 60  # positions
ST = "sentence_transformers.models."
WORD = re.compile("[a-z]+")


# ------------------------------------------------------------------------------------------------ tokenizers
def framed(tokenizer, before, between, after, types):
    special = [(token, tokenizer.token_to_id(token)) for token in {before, after}]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{before} $A {after}", pair=f"{before}:0 $A:0 {between} $B:{types} {after}:{types}", special_tokens=special)
    return tokenizer


def wordpiece(cls, sep, pad, unk):
    """A hand-made vocabulary: training it is not the same twice."""
    words = sorted({word for line in SENTENCES for word in WORD.findall(line.lower())}, key=lambda word: (-CORPUS.lower().count(word), word))
    letters = sorted(set("".join(SENTENCES).lower()) - {" "})
    ends = ["##" + end for end in ("s", "ed", "ing", "er", "ly", "es")]
    tokens = dict.fromkeys([pad, unk, cls, sep] if pad == "[PAD]" else [cls, pad, sep, unk])
    tokens |= dict.fromkeys(letters + ["##" + letter for letter in letters] + [end for end in ends if len(end) > 3] + words[:60])
    tokenizer = Tokenizer(models.WordPiece({token: place for place, token in enumerate(tokens)}, unk_token=unk))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([cls, sep, pad, unk])
    return tokenizer


def bert():
    return framed(wordpiece("[CLS]", "[SEP]", "[PAD]", "[UNK]"), "[CLS]", "[SEP]:0", "[SEP]", 1)


def mpnet():
    return framed(wordpiece("<s>", "</s>", "<pad>", "[UNK]"), "<s>", "</s>:0 </s>:0", "</s>", 0)


def byte_level(special, before, after, between):
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(SENTENCES, trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    return framed(tokenizer, before, between, after, 0) if before else tokenizer


def unigram():
    """A hand-made Unigram model: training it is not the same twice."""
    words = sorted({word for line in SENTENCES for word in line.split()}, key=lambda word: (-CORPUS.count(word), word))[:60]
    letters = sorted(set("".join(SENTENCES)) - {" "})
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces += [("\u2581" + word, -4.0 - 0.05 * place) for place, word in enumerate(words)]
    pieces += [("\u2581", -3.0)] + [(letter, -6.0 - 0.01 * place) for place, letter in enumerate(letters)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=3))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement="\u2581", prepend_scheme="always")
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    return framed(tokenizer, "<s>", "</s>:0 </s>:0", "</s>", 0)


def roberta():
    return byte_level(["<s>", "<pad>", "</s>", "<unk>"], "<s>", "</s>", "</s>:0 </s>:0")


def modernbert():
    return byte_level(["[CLS]", "[SEP]", "[PAD]", "[UNK]"], "[CLS]", "[SEP]", "[SEP]:0")


def gemma():
    return byte_level(["<pad>", "<eos>", "<bos>"], "<bos>", "<eos>", "<eos>:0")


def qwen():
    tokenizer = byte_level(["<|endoftext|>"], None, None, None)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>", pair="$A $B <|endoftext|>", special_tokens=[("<|endoftext|>", 0)])
    return tokenizer


# ------------------------------------------------------------------------------------------------ models
BERT = dict(model_type="bert", architectures=["BertModel"], max_position_embeddings=LENGTH, type_vocab_size=2, hidden_act="gelu", layer_norm_eps=1e-12)
ROBERTA = BERT | dict(model_type="roberta", architectures=["RobertaModel"], max_position_embeddings=LENGTH + 2, type_vocab_size=1, pad_token_id=1, layer_norm_eps=1e-5)
XLM = ROBERTA | dict(model_type="xlm-roberta", architectures=["XLMRobertaModel"])
MODERN = dict(model_type="modernbert", architectures=["ModernBertModel"], max_position_embeddings=LENGTH, local_attention=8, global_attn_every_n_layers=3,
              global_rope_theta=160000.0, local_rope_theta=10000.0, pad_token_id=2, bos_token_id=0, eos_token_id=1, cls_token_id=0, sep_token_id=1)
DECODER = dict(num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6, max_position_embeddings=LENGTH, bos_token_id=0, eos_token_id=0, pad_token_id=0)
WIDE = dict(hidden_size=64, num_attention_heads=4, intermediate_size=128)
LABEL = dict(id2label={"0": "LABEL_0"}, label2id={"LABEL_0": 0})

# name: (config, tokenizer, pooling, more)
MODELS = {
    "bert-f32": (BERT, bert, "cls", {}),
    "bert-bf16": (BERT, bert, "mean", dict(dtype="bf16")),
    "bert-q4": (BERT | WIDE, bert, "mean", dict(bits=4)),
    "bert-q8-f16": (BERT | WIDE, bert, ["cls", "mean", "max"], dict(bits=8, dtype="f16")),
    "roberta-f32": (ROBERTA, roberta, "mean", {}),
    "xlm-roberta-f32": (XLM, unigram, "cls", dict(prefix="roberta.")),
    "mpnet-f32": (ROBERTA | dict(model_type="mpnet", architectures=["MPNetModel"]), mpnet, "mean", {}),
    "distilbert-f32": (dict(model_type="distilbert", architectures=["DistilBertModel"], dim=32, n_layers=3, n_heads=4, hidden_dim=48,
                            max_position_embeddings=LENGTH, activation="gelu"), bert, "mean", {}),
    "nomic_bert-f32": (BERT | dict(model_type="nomic_bert", architectures=["NomicBertModel"], hidden_act="silu", rope_parameters=dict(
        rope_type="default", rope_theta=1000.0)), bert, "mean", {}),
    "nomic_bert-old-f32": (BERT | dict(model_type="nomic_bert", architectures=["NomicBertModel"], hidden_act="silu", rope_parameters=dict(
        rope_type="default", rope_theta=1000.0)), bert, "mean", dict(nomic=True)),
    "nomic_bert-heads-f32": (BERT | dict(model_type="nomic_bert", architectures=["NomicBertModel"], hidden_act="silu", head_dim=16,
        rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=1000.0)), bert, "mean", {}),
    "modernbert-f32": (MODERN, modernbert, "cls", {}),
    "modernbert-rope-f32": (MODERN | dict(rope_scaling=dict(rope_type="linear", factor=4.0)), modernbert, "cls", {}),
    "gemma3_text-f32": (DECODER | dict(model_type="gemma3_text", architectures=["Gemma3TextModel"], use_bidirectional_attention=True, sliding_window=8,
                        query_pre_attn_scalar=16, rope_theta=1e6, rope_local_base_freq=10000.0, sliding_window_pattern=3, eos_token_id=1, bos_token_id=2,
                        hidden_activation="gelu_pytorch_tanh"), gemma, "mean", dict(dense=True)),
    "qwen2-two-way-f32": (DECODER | dict(model_type="qwen2", architectures=["Qwen2ForCausalLM"], is_causal=False, rope_theta=10000.0,
                          use_sliding_window=False, tie_word_embeddings=False), qwen, "lasttoken", dict(two_way=True)),
    "bert-classify-f32": (BERT | LABEL | dict(architectures=["BertForSequenceClassification"], sentence_transformers=dict(
        activation_fn="torch.nn.modules.linear.Identity")), bert, None, {}),
    "xlm-roberta-classify-f32": (XLM | LABEL | dict(architectures=["XLMRobertaForSequenceClassification"]), unigram, None, {}),
    "modernbert-classify-f32": (MODERN | LABEL | dict(architectures=["ModernBertForSequenceClassification"], classifier_pooling="mean",
                                classifier_bias=True), modernbert, None, {}),
}


def seeded(name, tensor, shape):
    random = np.random.Generator(np.random.PCG64(zlib.crc32(f"{name}/{tensor}".encode())))
    scale = 0.3 if "embed" in tensor.lower() else 0.25
    values = random.standard_normal(shape) * scale
    if "norm" in tensor.lower() and tensor.endswith("weight"):
        values = 1 + values * 0.3
    return torch.tensor(values, dtype=torch.float32)


def quantized(weight, bits, dtype, group=64):
    """MLX's affine packing of `[rows, columns]`: the tensors, and the floats that they stand for."""
    rows, columns = weight.shape
    groups = weight.reshape(rows, columns // group, group).double()
    low, high = groups.amin(-1), groups.amax(-1)
    scales = ((high - low).clamp(min=1e-7) / (2 ** bits - 1)).to(dtype)
    biases = low.to(dtype)
    codes = ((groups - biases.double()[..., None]) / scales.double()[..., None]).round().clamp(0, 2 ** bits - 1).long()
    floats = (codes * scales.double()[..., None] + biases.double()[..., None]).float().reshape(rows, columns)
    each = 32 // bits
    words = (codes.reshape(rows, columns // each, each) << (torch.arange(each) * bits)).sum(-1)
    packed = torch.tensor(words.numpy().astype(np.uint32))
    return dict(weight=packed, scales=scales, biases=biases), floats


def old_nomic(config, tensors):
    """The layout of the published checkpoints."""
    names = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "intermediate_size": "n_inner",
             "max_position_embeddings": "n_positions", "layer_norm_eps": "layer_norm_epsilon"}
    config = {names.get(key, key): value for key, value in config.items() if key not in ("rope_parameters", "hidden_act")}
    config |= dict(rotary_emb_base=1000, rotary_emb_fraction=1.0, activation_function="swiglu", qkv_proj_bias=False, mlp_fc1_bias=False,
                   mlp_fc2_bias=False, prenorm=False, use_rms_norm=False, rotary_emb_interleaved=False, rotary_scaling_factor=None)
    renamed = {}
    for name, tensor in tensors.items():
        for one, other in [("layers.", "encoder.layers."), ("embeddings.LayerNorm", "emb_ln"), ("self_attn.o_proj", "attn.out_proj"), ("up_proj", "fc11"),
                           ("gate_proj", "fc12"), ("down_proj", "fc2"), ("post_attention_layernorm", "norm1"), ("post_mlp_layernorm", "norm2")]:
            name = name.replace(one, other)
        renamed[name] = tensor
    for layer in range(config["n_layer"]):
        parts = [renamed.pop(f"encoder.layers.{layer}.self_attn.{part}_proj.weight") for part in "qkv"]
        renamed[f"encoder.layers.{layer}.attn.Wqkv.weight"] = torch.cat(parts)
    return config, renamed


def write(folder, name, content):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def make(name):
    changes, tokenizer, pooling, more = MODELS[name]
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tokenizer = tokenizer()
    # Stored truncation and padding have no part in a text's tokens.
    tokenizer.enable_truncation(max_length=7)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer.no_truncation(), tokenizer.no_padding()
    write(folder, "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1000000000000000019884624838656})
    config = (SHAPE if changes["model_type"] != "distilbert" else {}) | changes | dict(vocab_size=tokenizer.get_vocab_size(), torch_dtype="float32")
    given = {key: value for key, value in config.items() if key not in ("model_type", "architectures", "torch_dtype")}
    kind = getattr(transformers, {"distilbert": "DistilBertConfig", "bert": "BertConfig", "roberta": "RobertaConfig", "xlm-roberta": "XLMRobertaConfig",
        "mpnet": "MPNetConfig", "nomic_bert": "NomicBertConfig", "modernbert": "ModernBertConfig", "gemma3_text": "Gemma3TextConfig",
        "qwen2": "Qwen2Config"}[config["model_type"]])
    architecture = config["architectures"][0]
    reference = kind(**{**given, "attn_implementation": "eager"})
    kind_of_model = {"Qwen2ForCausalLM": "Qwen2Model"}.get(architecture, architecture)
    model = getattr(transformers, kind_of_model)(reference).eval()
    dtype = dict(bf16=torch.bfloat16, f16=torch.float16).get(more.get("dtype"), torch.float32)
    stored, widened = {}, {}
    for tensor, value in model.state_dict().items():
        if "position_ids" in tensor or "token_type_ids" in tensor or "inv_freq" in tensor:
            continue
        numbers = seeded(name, tensor, tuple(value.shape)).to(dtype)
        widened[tensor] = numbers.float()
        module = tensor.removesuffix(".weight")
        if more.get("bits") and value.dim() == 2 and value.shape[1] % 64 == 0:
            packed, widened[tensor] = quantized(numbers.float(), more["bits"], dtype)
            stored |= {f"{module}.{part}": array for part, array in packed.items()}
        else:
            stored[tensor] = numbers
    if model.load_state_dict(widened, strict=False).unexpected_keys:
        raise SystemExit(f"{name}: tensors that the reference does not have")
    if more.get("bits"):
        config["quantization"] = dict(group_size=64, bits=more["bits"])
    if more.get("nomic"):
        config, stored = old_nomic(config, stored)
    if config["model_type"] in ("bert", "roberta"):
        stored["embeddings.position_ids" if "Model" in architecture else "bert.embeddings.position_ids"] = torch.arange(4)
    stored = {more.get("prefix", "") + tensor: value.contiguous() for tensor, value in stored.items()}
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    write(folder, "config.json", config)
    longest = 48
    write(folder, "sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": False})
    ids = lambda *texts: cut(tokenizer, texts, longest)
    with torch.no_grad():
        if pooling is None:
            write(folder, "modules.json", [dict(idx=0, name="0", path="", type="sentence_transformers.base.modules.transformer.Transformer")])
            encodings = [ids(*pair) for pair in PAIRS]
            rows = [dict(ids=it.ids, types=it.type_ids, numbers=scores(model, it)) for it in encodings]
        else:
            sentence_transformers(folder, name, config, pooling, more)
            encodings = [ids(text) for text in TEXTS]
            rows = [dict(ids=it.ids, numbers=vector(folder, model, it, pooling, more)) for it in encodings]
    return dict(pooling=pooling, rows=rows)


def cut(tokenizer, texts, longest):
    tokenizer.enable_truncation(max_length=longest)
    encoding = tokenizer.encode(*texts)
    tokenizer.no_truncation()
    return encoding


def inputs(encoding):
    return dict(input_ids=torch.tensor([encoding.ids]), attention_mask=torch.ones(1, len(encoding.ids), dtype=torch.long))


def scores(model, encoding):
    given = inputs(encoding)
    if any(encoding.type_ids):
        given["token_type_ids"] = torch.tensor([encoding.type_ids])
    return model(**given).logits[0].tolist()


def sentence_transformers(folder, name, config, pooling, more):
    dense = [f"{place}_Dense" for place in (2, 3)] if more.get("dense") else []
    modules = ["Transformer", "Pooling", *["Dense" for _ in dense], "Normalize"]
    paths = ["", "1_Pooling", *dense, f"{2 + len(dense)}_Normalize"]
    write(folder, "modules.json", [dict(idx=place, name=str(place), path=path, type=ST + kind) for place, (kind, path) in enumerate(zip(modules, paths))])
    write(folder, "1_Pooling/config.json", dict(word_embedding_dimension=config.get("hidden_size", 32), pooling_mode=pooling))
    for path, (inputs, outputs) in zip(dense, [(32, 48), (48, 32)]):
        write(folder, f"{path}/config.json", dict(in_features=inputs, out_features=outputs, bias=False, activation_function="torch.nn.modules.linear.Identity"))
        save_file({"linear.weight": seeded(name, path, (outputs, inputs))}, folder / path / "model.safetensors", {"format": "pt"})


def vector(folder, model, encoding, pooling, more):
    given = inputs(encoding)
    if more.get("two_way"):
        length = len(encoding.ids)
        given["attention_mask"] = torch.zeros(1, 1, length, length)
    hidden = model(**given).last_hidden_state[0].double()
    modes = [pooling] if isinstance(pooling, str) else pooling
    pooled = torch.cat([dict(cls=hidden[0], mean=hidden.mean(0), max=hidden.amax(0), lasttoken=hidden[-1])[mode]
                        for mode in sorted(modes, key=["cls", "max", "mean", "lasttoken"].index)])
    if more.get("dense"):
        from safetensors.torch import load_file
        for place in (2, 3):
            pooled = load_file(folder / f"{place}_Dense" / "model.safetensors")["linear.weight"].double() @ pooled
    return (pooled / pooled.norm()).tolist()


def main():
    names = sys.argv[1:] or list(MODELS)
    path = OUT / "expected.json"
    expected = json.loads(path.read_text(encoding="utf-8"))["models"] if path.exists() and sys.argv[1:] else {}
    for name in names:
        expected[name] = make(name)
        for row in expected[name]["rows"]:
            row["numbers"] = [float(f"{number:.8g}") for number in row["numbers"]]
    models = {name: expected[name] for name in MODELS if name in expected}
    path.write_text(json.dumps(dict(texts=TEXTS, pairs=PAIRS, models=models)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
