"""The network: a small llama with grouped-query attention, and its Hugging Face files.

Rope rotates the halves of a head (x[: d/2] with x[d/2 :]), as in transformers and mlx-lm.
"""
import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn


@dataclass
class Shape:
    vocab: int = 2048
    hidden: int = 192
    layers: int = 6
    heads: int = 6
    key_heads: int = 2
    inner: int = 512
    context: int = 1024
    rope_base: float = 10000.0
    eps: float = 1e-5

    @property
    def head(self):
        return self.hidden // self.heads


class Norm(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(shape.hidden)), shape.eps

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def turn(x, cos, sin):
    """Applies rope to halves. x is (batch, heads, length, head)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape, width = shape, shape.key_heads * shape.head
        self.q_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.k_proj = nn.Linear(shape.hidden, width, bias=False)
        self.v_proj = nn.Linear(shape.hidden, width, bias=False)
        self.o_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)

    def forward(self, x, cos, sin, cache):
        rows, length, _ = x.shape
        heads = lambda y: y.view(rows, length, -1, self.shape.head).transpose(1, 2)
        q, k, v = turn(heads(self.q_proj(x)), cos, sin), turn(heads(self.k_proj(x)), cos, sin), heads(self.v_proj(x))
        first = cache is None or not cache
        if cache is not None:
            if not first:
                k, v = torch.cat((cache[0], k), dim=2), torch.cat((cache[1], v), dim=2)
            cache[:] = [k, v]
        share = self.shape.heads // self.shape.key_heads
        k, v = k.repeat_interleave(share, dim=1), v.repeat_interleave(share, dim=1)
        # With a filled cache there is one new position, which attends to all others.
        y = F.scaled_dot_product_attention(q, k, v, is_causal=first)
        return self.o_proj(y.transpose(1, 2).reshape(rows, length, -1))


class FeedForward(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.down_proj = nn.Linear(shape.inner, shape.hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.self_attn, self.mlp = Attention(shape), FeedForward(shape)
        self.input_layernorm, self.post_attention_layernorm = Norm(shape), Norm(shape)

    def forward(self, x, cos, sin, cache):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """The model. Its parameters have the names of the checkpoint without the leading "model."."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape)
        rates = shape.rope_base ** (-torch.arange(0, shape.head, 2).float() / shape.head)
        angles = torch.outer(torch.arange(shape.context).float(), rates)
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                narrow = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=0.5 * shape.hidden**-0.5 / ((2 * shape.layers) ** 0.5 if narrow else 1))

    def forward(self, ids, start=0, caches=None):
        """Returns hidden states. `caches` has a list per layer, empty at first, and `start` is the position of the first id."""
        cos, sin = self.cos[start : start + ids.shape[1]], self.sin[start : start + ids.shape[1]]
        x = self.embed_tokens(ids)
        for index, layer in enumerate(self.layers):
            x = layer(x, cos, sin, None if caches is None else caches[index])
        return self.norm(x)

    def logits(self, hidden):
        return hidden @ self.embed_tokens.weight.T

    @torch.no_grad()
    def greedy(self, prompts, end, most):
        """Returns answers to prompts of equal length: lists of ids without `end`, and the probability of the least likely token of each."""
        caches = [[] for _ in self.layers]
        ids, start, answers, least = torch.tensor(prompts), 0, [[] for _ in prompts], [1.0] * len(prompts)
        running = set(range(len(prompts)))
        for _ in range(min(most, self.shape.context - len(prompts[0]))):
            likely, newest = self.logits(self(ids, start, caches)[:, -1]).softmax(dim=-1).max(dim=-1)
            for row in list(running):
                least[row] = min(least[row], float(likely[row]))
                if newest[row] == end:
                    running.remove(row)
                else:
                    answers[row].append(int(newest[row]))
            if not running:
                break
            start, ids = start + ids.shape[1], newest[:, None]
        return answers, least


def export(model, folder, bos, eos):
    """Writes config.json, generation_config.json and model.safetensors. The embedding is also the output head."""
    shape = model.shape
    config = dict(
        architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=shape.vocab, hidden_size=shape.hidden,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.key_heads,
        head_dim=shape.head, intermediate_size=shape.inner, max_position_embeddings=shape.context,
        rms_norm_eps=shape.eps, rope_theta=shape.rope_base, rope_scaling=None, hidden_act="silu", attention_bias=False,
        mlp_bias=False, tie_word_embeddings=True, torch_dtype="float16", bos_token_id=bos, eos_token_id=eos)
    generation = dict(bos_token_id=bos, eos_token_id=eos, do_sample=False)
    for name, content in [("config.json", config), ("generation_config.json", generation)]:
        (Path(folder) / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    weights = {f"model.{name}": weight.half().contiguous() for name, weight in model.state_dict().items()}
    file = Path(folder) / "model.safetensors"
    save_file(weights, file, metadata={"format": "pt"})
    file.chmod(0o644)


def load(folder):
    """Loads the exported model with its weights in f32."""
    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    model = Llama(Shape(
        config["vocab_size"], config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"],
        config["num_key_value_heads"], config["intermediate_size"], config["max_position_embeddings"],
        config["rope_theta"], config["rms_norm_eps"]))
    weights = load_file(Path(folder) / "model.safetensors")
    model.load_state_dict({name.removeprefix("model."): weight.float() for name, weight in weights.items()})
    return model.eval()
