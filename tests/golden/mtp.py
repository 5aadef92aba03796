#!/usr/bin/env python3
"""Fixtures with a head that predicts the token after the next one, in both layouts: checkpoints of families.py with such a head, and its logits.

The head's layer runs in transformers as a model of one layer whose input is made here, as vLLM makes it: the norms of the token's embedding
and of the last hidden state of the position before it, side by side, through one matrix.
"""
import json, shutil, sys, tempfile
from pathlib import Path

import families, make  # make first sets the environment
import numpy as np
import torch
from safetensors.numpy import load_file

# name: (what a model of one such layer has, the layer's place and the names of the other tensors, whether norms add 1)
QWEN = ("mtp.layers.0.", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm")
DEEPSEEK = ("model.layers.3.", *(f"model.layers.3.{name}" for name in ("enorm", "hnorm", "eh_proj", "shared_head.norm")))
HEADS = {
    "qwen3_5": (dict(num_hidden_layers=1, layer_types=["full_attention"]), QWEN, True),
    "glm4_moe_lite": (dict(num_hidden_layers=1, mlp_layer_types=["sparse"]), DEEPSEEK, False),
}


def small_config(name, changes):
    config = families.config_of(name)
    (config["text_config"] if "text_config" in config else config).update(changes)
    return config


def write(name, source, target):
    changes, (block, embedding_norm, hidden_norm, projection, norm), adds_one = HEADS[name]
    folder, base = source / f"{name}-mtp-f32", source / f"{name}-f32"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base, folder)
    tensors = {key: value for key, value in load_file(base / "model.safetensors").items() if "mtp." not in key}
    small = small_config(name, changes)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        shapes = families.hub_tensors(name, scratch, small)
        width = families.TINY["hidden_size"]
        own = {key.split("layers.0.")[1]: shape for key, shape in shapes.items() if ".layers.0." in key and "vis" not in key}
        head = {block + key: shape for key, shape in own.items()}
        head |= {f"{part}.weight": [width] for part in (embedding_norm, hidden_norm, norm)} | {f"{projection}.weight": [width, 2 * width]}
        head = {key: families.random_tensor(f"{name}-mtp", key, tuple(shape)) for key, shape in sorted(head.items())}
        if name == "glm4_moe_lite":  # copies, as published
            config = json.loads((base / "config.json").read_text()) | dict(num_nextn_predict_layers=1)
            make.write_json(folder / "config.json", config, 1)
            copies = {f"{block}embed_tokens.weight": tensors["model.embed_tokens.weight"], f"{block}shared_head.head.weight": tensors["lm_head.weight"]}
        else:
            copies = {}
        items = sorted((tensors | head | copies).items())
        make.write_safetensors(folder / "model.safetensors", [(key, "F32", value) for key, value in items])
        # The same layer as a model.
        def weight(key):
            if ".layers.0." in key and "vis" not in key:
                return head[block + key.split("layers.0.")[1]]
            return head[f"{norm}.weight"] if key.endswith(("model.norm.weight", "language_model.norm.weight")) else tensors[key]
        make.write_json(scratch / "config.json", small, 1)
        make.write_safetensors(scratch / "model.safetensors", [(key, "F32", weight(key)) for key in sorted(shapes)])
        load = lambda folder: families.auto_class(name).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        whole, layer = load(base), load(scratch)
    ids = make.generator(f"families/{name}-mtp-f32", "ids").integers(8, make.BPE_VOCAB - 2, 40).tolist()

    def normalized(rows, key):
        gain = torch.tensor(head[f"{key}.weight"]) + adds_one
        return rows / torch.sqrt((rows * rows).mean(-1, keepdim=True) + families.TINY["rms_norm_eps"]) * gain
    with torch.no_grad():
        hidden = whole(torch.tensor([ids]), use_cache=False, output_hidden_states=True).hidden_states[-1][0, :-1]
        embedded = whole.get_input_embeddings()(torch.tensor(ids[1:]))
        both = torch.cat([normalized(embedded, embedding_norm), normalized(hidden, hidden_norm)], -1)
        fused = both @ torch.tensor(head[f"{projection}.weight"]).T
        logits = layer(inputs_embeds=fused[None], use_cache=False).logits[0].numpy()
    make.write_safetensors(target / f"{name}-mtp-f32.safetensors", [("tokens", "I32", np.array(ids)), ("logits", "F32", logits)])
    print(f"{name}-mtp: deviation {logits.std():.2f}", flush=True)


def write_all(source, target, names=()):
    for name in names or HEADS:
        write(name, source, target)


if __name__ == "__main__":
    write_all(make.HERE / "models", make.HERE / "expected", sys.argv[1:])
