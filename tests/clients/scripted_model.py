"""Makes a model that follows a script: a complete checkpoint for an unmodified server, for tests with real clients.

    python tests/clients/scripted_model.py FOLDER SCRIPT.json

The script is a list of states, of which the first whose condition holds gives the answer:

    [{"when": "results == 0", "say": ["<think>", "Let me look.", "</think>", "<tool_call>\\n{...}\\n</tool_call>"]},
     {"when": "true", "say": ["Done."]}]

A condition is an expression of the chat template. It may use `results` (the number of tool results since the last message of the user),
`asked` (the last text of the user), `all` (the number of tool results of the whole conversation), `said` (all texts of the user), `messages`
and `tools`. Every piece of an answer is a token of its own and may stand in one place of the script only; what lies in a prompt in the
same words is the same token, so that a later prompt begins with the tokens of the answer. Calls are written in Qwen's form. The layer adds nothing: the weights make each
token the successor of one other, and the template ends a prompt with the token of its state."""

import collections
import json
import re
import struct
import sys
from pathlib import Path

SPECIAL = ["<|pad|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
END = 3
HEADS, CONTEXT = 2, 131072
MERGES, WORDS = 500, 1500
# After the results of a turn, the generation prompt tells the state.
TEMPLATE = """{%- set ns = namespace(results=0, all=0, asked='', said='') -%}
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}{% set ns.results = ns.results + 1 %}{% set ns.all = ns.all + 1 %}
{%- elif m.role == 'user' %}{% set ns.results = 0 %}{% set ns.asked = m.content %}{% set ns.said = ns.said + m.content %}{% endif %}<|im_start|>{{ m.role }}
{% if m.role == 'tool' %}<tool_response>{{ m.content }}</tool_response>
{%- else %}
{%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content if m.content else '' }}
{%- for call in m.tool_calls or [] %}
<tool_call>
{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}
{%- endif %}<|im_end|>
{% endfor %}
{%- set results = ns.results -%}{%- set all = ns.all -%}{%- set asked = ns.asked -%}{%- set said = ns.said -%}
{%- if add_generation_prompt %}<|im_start|>assistant
STATES{% endif %}"""


def letters():
    """The letter that stands for each byte in vocabularies of bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + place) for place, byte in enumerate(others)}}


def template(script):
    branches = [f"{{% {'if' if place == 0 else 'elif'} {state['when']} %}}<|s{place}|>" for place, state in enumerate(script)]
    return TEMPLATE.replace("STATES", "".join(branches) + "{% endif %}")


def merges():
    """Pairs of symbols that are often neighbours in this project's documents: prompts of agents have a third of the tokens then."""
    words, spelling = collections.Counter(), letters()
    for document in sorted((Path(__file__).parents[2] / "docs").glob("*.md")):
        words.update(re.findall(r" ?[A-Za-z]+", document.read_text()))
    words = [([spelling[byte] for byte in word.encode()], count) for word, count in words.most_common(WORDS)]
    found = []
    while len(found) < MERGES:
        pairs = collections.Counter()
        for symbols, count in words:
            for pair in zip(symbols, symbols[1:]):
                pairs[pair] += count
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        found.append(best)
        for symbols, _ in words:
            place = 0
            while place + 1 < len(symbols):
                if (symbols[place], symbols[place + 1]) == best:
                    symbols[place : place + 2] = ["".join(best)]
                place += 1
    return found


def tokenizer(added):
    vocabulary = {token: place for place, token in enumerate(SPECIAL)}
    pairs = merges()
    for symbol in [*letters().values(), *("".join(pair) for pair in pairs)]:
        vocabulary.setdefault(symbol, len(vocabulary))
    entry = lambda content, place: {"id": place, "content": content, "special": content in SPECIAL, "normalized": False, "single_word": False, "lstrip": False, "rstrip": False}
    tokens = [entry(token, place) for place, token in enumerate(SPECIAL)]
    tokens += [entry(word, len(vocabulary) + place) for place, word in enumerate(added)]
    levels = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocabulary, "merges": pairs}
    file = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, "normalizer": None, "pre_tokenizer": levels, "post_processor": None, "decoder": levels, "model": model}
    return file, {token["content"]: token["id"] for token in tokens}


def successors(script, ids):
    """Which token follows which."""
    follows = {}
    for place, state in enumerate(script):
        chain = [f"<|s{place}|>", *state["say"]]
        for one, next in zip(chain, [*state["say"], SPECIAL[END]]):
            if one in follows:
                sys.exit(f"{one!r} stands in two places of the script; cut the answers in another way")
            follows[one] = next
    return [(ids[one], ids[next]) for one, next in follows.items()]


def floats(values):
    return struct.pack(f"<{len(values)}f", *values)


def weights(pairs, vocabulary, hidden):
    embedding, head = [0.0] * (vocabulary * hidden), [0.0] * (vocabulary * hidden)
    for place, (one, next) in enumerate(pairs):
        embedding[one * hidden + place] = 1.0
        head[next * hidden + place] = 4.0
    square, layer = [0.0] * (hidden * hidden), "model.layers.0."
    tensors = {"model.embed_tokens.weight": (embedding, [vocabulary, hidden]), "lm_head.weight": (head, [vocabulary, hidden]), "model.norm.weight": ([1.0] * hidden, [hidden])}
    tensors |= {f"{layer}{name}.weight": ([1.0] * hidden, [hidden]) for name in ["input_layernorm", "post_attention_layernorm"]}
    names = [*(f"self_attn.{it}_proj" for it in "qkvo"), *(f"mlp.{it}_proj" for it in ["gate", "up", "down"])]
    return tensors | {f"{layer}{name}.weight": (square, [hidden, hidden]) for name in names}


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (values, shape) in tensors.items():
        bytes = floats(values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(bytes)]}
        data += bytes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def make(folder, script):
    """Writes the checkpoint."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    states = [f"<|s{place}|>" for place in range(len(script))]
    file, ids = tokenizer([*states, *(piece for state in script for piece in state["say"])])
    pairs = successors(script, ids)
    vocabulary = max(ids.values()) + 1
    hidden = -(-len(pairs) // 64) * 64
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": hidden, "intermediate_size": hidden, "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": hidden // HEADS, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "vocab_size": vocabulary, "max_position_embeddings": CONTEXT, "tie_word_embeddings": False, "eos_token_id": END, "torch_dtype": "float32"}
    for name, content in {
        "config.json": config,
        "generation_config.json": {"eos_token_id": END},
        "tokenizer.json": file,
        "tokenizer_config.json": {"eos_token": SPECIAL[END], "pad_token": SPECIAL[0], "chat_template": template(script)},
    }.items():
        (folder / name).write_text(json.dumps(content))
    write_safetensors(folder / "model.safetensors", weights(pairs, vocabulary, hidden))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    make(sys.argv[1], json.loads(Path(sys.argv[2]).read_text()))
