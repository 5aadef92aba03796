#!/usr/bin/env python3
"""Tiny checkpoints in the formats of other quantization tools, and the logits of transformers in f32 on the dequantized weights.

    python foreign.py [NAME...]

Needs compressed-tensors 0.20.1 beside torch and transformers of requirements.txt. compressed-tensors packs and unpacks its own formats; those
of the other tools are packed here as they publish it. Each folder of `foreign/` has `config.json`, `model.safetensors` and
`expected.safetensors` with `tokens` and `logits`.
"""
import json, sys
from pathlib import Path

import torch
import transformers
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file

HERE = Path(__file__).parent / "foreign"
TINY = dict(
    hidden_size=64, num_hidden_layers=1, intermediate_size=160, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=64,
    rms_norm_eps=1e-5, max_position_embeddings=64, rope_theta=10000.0, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
    attention_bias=False)
DENSE = dict(model_type="llama", **TINY)
EXPERTS = dict(
    model_type="qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, decoder_sparse_step=1, mlp_only_layers=[],
    norm_topk_prob=True, **TINY)
E4M3, BF16, F16, F32 = torch.float8_e4m3fn, torch.bfloat16, torch.float16, torch.float32
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def groups(weight, size):
    """The matrix as [outputs, groups, size]."""
    return weight.reshape(weight.shape[0], -1, size)


def short(scale, bits=7):
    """A scale with few digits, so that products with a zero point are exact in f16."""
    mantissa, exponent = torch.frexp(scale)
    return torch.ldexp(torch.round(mantissa * 2**bits) / 2**bits, exponent)


def compressed(format, args, scales, unpack=None):
    """A format of compressed-tensors. `scales` returns the parameters of a matrix. `unpack` replaces its own function, which may round."""
    args = QuantizationArgs(**args)
    scheme = QuantizationScheme(targets=["Linear"], weights=args, format=format)
    compressor = BaseCompressor.get_value_from_registry(format)

    def pack(weight):
        parts = compressor.compress(dict(weight=weight, **scales(weight)), scheme)
        if unpack:
            return parts, unpack(parts)
        plain = {key: value.to(F32) if value.is_floating_point() and value.dtype in (BF16, F16) else value for key, value in parts.items()}
        return parts, compressor.decompress(plain, scheme)["weight"].to(F32)

    weights = {key: value for key, value in json.loads(args.model_dump_json()).items() if value is not None}
    group = dict(targets=["Linear"], weights=weights, input_activations=None, output_activations=None, format=format)
    config = dict(quant_method="compressed-tensors", format=format, quantization_status="compressed", ignore=["lm_head"], kv_cache_scheme=None,
                  config_groups=dict(group_0=group))
    return pack, config


def integers(bits, size=None, symmetric=True, dtype=BF16, format="pack-quantized"):
    limit = 2 ** (bits - 1)

    def scales(weight):
        parts = groups(weight, size or weight.shape[1])
        low, high = parts.amin(-1), parts.amax(-1)
        if symmetric:
            return dict(weight_scale=(parts.abs().amax(-1) / (limit - 1)).to(dtype))
        scale = short((high - low) / (2 * limit - 1)).to(dtype)
        zero = torch.clamp(torch.round(-limit - low / scale.to(F32)), -limit, limit - 1).to(torch.int8)
        return dict(weight_scale=scale, weight_zero_point=zero)

    args = dict(num_bits=bits, type="int", symmetric=symmetric, strategy="group" if size else "channel")
    return compressed(format, args | (dict(group_size=size) if size else {}), scales)


def floats_by_row(dtype=BF16):
    return compressed("float-quantized", dict(num_bits=8, type="float", symmetric=True, strategy="channel"),
                      lambda weight: dict(weight_scale=(weight.abs().amax(-1, keepdim=True) / 448).to(dtype)))


def floats_of_4_bits():
    def scales(weight):
        world = 448 * 6 / weight.abs().max()
        scale = (groups(weight, 16).abs().amax(-1) / 6 * world).to(E4M3).to(F32)
        return dict(weight_scale=scale, weight_global_scale=world.reshape(1))

    def unpack(parts):  # compressed-tensors would round to bf16
        packed = parts["weight_packed"]
        numbers = unpack_fp4_from_uint8(packed, packed.shape[0], packed.shape[1] * 2, dtype=F32)
        step = parts["weight_scale"].to(F32) / parts["weight_global_scale"]
        return (groups(numbers, 16) * step[..., None]).reshape(numbers.shape)

    args = dict(num_bits=4, type="float", symmetric=True, strategy="tensor_group", group_size=16)
    return compressed("nvfp4-pack-quantized", args, scales, unpack)


def micro_floats():
    def scales(weight):
        exponent = torch.floor(torch.log2(groups(weight, 32).abs().amax(-1))) - 2
        return dict(weight_scale=torch.exp2(exponent))
    return compressed("mxfp4-pack-quantized", dict(num_bits=4, type="float", symmetric=True, strategy="group", group_size=32), scales)


def fp8_blocks(side, ue8m0=False):
    """transformers' `fp8`: one f32 for each block."""
    def pack(weight):
        rows, columns = weight.shape
        tall, wide = -(-rows // side), -(-columns // side)
        padded = torch.zeros(tall * side, wide * side)
        padded[:rows, :columns] = weight
        blocks = padded.reshape(tall, side, wide, side)
        scale = blocks.abs().amax((1, 3)) / 448
        scale = torch.exp2(torch.ceil(torch.log2(scale))) if ue8m0 else scale
        codes = (blocks / scale[:, None, :, None]).to(E4M3)
        whole = (codes.to(F32) * scale[:, None, :, None]).reshape(padded.shape)[:rows, :columns]
        codes = codes.reshape(padded.shape)[:rows, :columns].contiguous()
        # Matrices with several blocks beside each other are computed in bf16, unless the scales are powers of two.
        return dict(weight=codes, weight_scale_inv=scale), whole if ue8m0 or wide == 1 else whole.to(BF16).to(F32)

    config = dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[side, side])
    return pack, config | (dict(scale_fmt="ue8m0") if ue8m0 else {})


def fp8_stack(side=None):
    """transformers' `fp8` for all experts in one tensor: one number for each expert, or for each block."""
    pack, config = fp8_blocks(side or 4096)

    def stack(weight):
        parts, values = zip(*map(pack, weight))
        scales = torch.stack([part["weight_scale_inv"] for part in parts])
        return {"": torch.stack([part["weight"] for part in parts]), "_scale_inv": scales, "_activation_scale": torch.ones(len(parts))}, torch.stack(values)
    return pack, config if side else config | dict(weight_block_size=None, activation_scheme="static"), stack


def fp8_tensor():
    """ModelOpt's FP8: one f32 for the tensor."""
    def pack(weight):
        scale = weight.abs().max() / 448
        codes = (weight / scale).to(E4M3)
        return dict(weight=codes, weight_scale=scale, input_scale=torch.tensor(0.5)), codes.to(F32) * scale
    return pack, dict(quant_method="modelopt", quant_algo="FP8", kv_cache_quant_algo="FP8", producer=dict(name="modelopt"))


def modelopt_nvfp4():
    def pack(weight):
        world = weight.abs().max() / (448 * 6)
        scale = (groups(weight, 16).abs().amax(-1) / 6 / world).to(E4M3)
        step = scale.to(F32)[..., None] * world
        numbers = groups(weight, 16) / step
        codes = (numbers.abs()[..., None] - E2M1).abs().argmin(-1)
        values = torch.where(numbers < 0, -E2M1[codes], E2M1[codes]) * step
        codes = (codes + 8 * (numbers < 0)).reshape(weight.shape).to(torch.uint8)
        packed = codes[:, 0::2] | codes[:, 1::2] << 4
        return dict(weight=packed, weight_scale=scale, weight_scale_2=world, input_scale=torch.tensor(0.5)), values.reshape(weight.shape)
    return pack, dict(quant_method="modelopt", quant_algo="NVFP4", producer=dict(name="modelopt"))


def affine_codes(weight, size, bits):
    """Codes [outputs, inputs], scales and zero points [outputs, groups]."""
    parts = groups(weight, size)
    low, high = parts.amin(-1), parts.amax(-1)
    scale = short((high - low) / (2**bits - 1), 11 - bits).to(F16)
    zero = torch.clamp(torch.round(-low / scale.to(F32)), 1, 2**bits - 1)
    codes = torch.clamp(torch.round(parts / scale.to(F32)[..., None]) + zero[..., None], 0, 2**bits - 1)
    values = (codes - zero[..., None]) * scale.to(F32)[..., None]
    return codes.reshape(weight.shape).long(), scale, zero.long(), values.reshape(weight.shape)


def words(codes, bits, order):
    """Packs the last axis: number `order[i]` of each word has the bits from `i * bits`."""
    parts = codes.reshape(*codes.shape[:-1], -1, 32 // bits)
    packed = sum(parts[..., number] << (place * bits) for place, number in enumerate(order))
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


def awq(size=32):
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def pack(weight):
        codes, scale, zero, values = affine_codes(weight, size, 4)
        return dict(qweight=words(codes.T, 4, order), qzeros=words(zero.T, 4, order), scales=scale.T.contiguous()), values
    return pack, dict(quant_method="awq", bits=4, group_size=size, version="gemm", zero_point=True)


def gptq(bits, size):
    order = range(32 // bits)

    def pack(weight):
        codes, scale, zero, values = affine_codes(weight, size if size > 0 else weight.shape[1], bits)
        indices = torch.arange(weight.shape[1], dtype=torch.int32) // (size if size > 0 else weight.shape[1])
        return dict(qweight=words(codes, bits, order).T.contiguous(), qzeros=words(zero.T - 1, bits, order), scales=scale.T.contiguous(),
                    g_idx=indices, bias=torch.zeros(weight.shape[0], dtype=F16)), values
    return pack, dict(quant_method="gptq", bits=bits, group_size=size, desc_act=False, sym=False, checkpoint_format="gptq")


def one_bit(size):
    """MLX's packing, the lowest bit first."""
    def pack(weight):
        parts = groups(weight, size)
        bias = parts.amin(-1).to(F16)
        scale = (parts.mean(-1) - bias.to(F32)).to(F16) * 2
        codes = (parts > parts.mean(-1, keepdim=True)).long()
        values = (codes * scale.to(F32)[..., None] + bias.to(F32)[..., None]).reshape(weight.shape)
        return dict(weight=words(codes.reshape(weight.shape), 1, range(32)).view(torch.uint32), scales=scale, biases=bias), values
    return pack, dict(bits=1, group_size=size)


CASES = {  # name: (model, float type, format)
    "one-bit": (DENSE, F16, one_bit(32)),
    "w4a16": (DENSE, BF16, integers(4, 32)),
    "w4a16-zeros": (DENSE, F16, integers(4, 32, symmetric=False, dtype=F16)),
    "w4a16-experts": (EXPERTS, BF16, integers(4, 64)),
    "w3a16": (DENSE, BF16, integers(3, 32)),
    "w8a16-rows": (DENSE, BF16, integers(8)),
    "w8a8-rows": (DENSE, BF16, integers(8, format="int-quantized")),
    "fp8-rows": (DENSE, BF16, floats_by_row()),
    "fp8-tensor-experts": (EXPERTS, BF16, fp8_tensor()),
    "fp8-blocks": (DENSE, BF16, fp8_blocks(128)),
    "fp8-blocks-experts": (EXPERTS, BF16, fp8_blocks(32)),
    "fp8-stacks": (EXPERTS, BF16, fp8_stack()),
    "fp8-stacks-blocks": (EXPERTS, BF16, fp8_stack(32)),
    "fp8-ue8m0": (DENSE, BF16, fp8_blocks(32, ue8m0=True)),
    "nvfp4": (DENSE, BF16, floats_of_4_bits()),
    "nvfp4-modelopt-experts": (EXPERTS, BF16, modelopt_nvfp4()),
    "mxfp4": (DENSE, BF16, micro_floats()),
    "awq": (DENSE, F16, awq()),
    "gptq": (DENSE, F16, gptq(4, 32)),
    "gptq-rows": (DENSE, F16, gptq(8, -1)),
}


def is_quantized(name):
    return name.endswith("_proj.weight")


def write(name):
    config, dtype, (pack, quantization, *stack) = CASES[name]
    torch.manual_seed(sum(name.encode()))
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config)).to(F32).eval()
    published = {}
    for key, value in model.state_dict().items():
        if config is EXPERTS and ".experts." in key and not stack:  # transformers stores all experts in one tensor
            prefix, part = key.rsplit(".", 1)
            for index, expert in enumerate(value):
                names = ["gate_proj", "up_proj"] if part == "gate_up_proj" else ["down_proj"]
                published |= {f"{prefix}.{index}.{one}.weight": rows for one, rows in zip(names, expert.chunk(len(names)))}
        else:
            published[key] = value
    spread = {key: 1.0 if "norm" in key else 0.0 for key in published}
    tensors, dequantized = {}, {}
    for key, value in published.items():
        value = spread[key] + torch.randn(value.shape) * (0.1 if "norm" in key else 0.5 if "embed" in key else 0.15)
        if ".experts." in key and stack:
            parts, dequantized[key] = stack[0](value)
            tensors |= {key + part: number for part, number in parts.items()}
        elif is_quantized(key):
            module = key.removesuffix("weight")
            parts, dequantized[key] = pack(value)
            tensors |= {module + part: number.contiguous() for part, number in parts.items()}
        else:
            tensors[key] = value.to(dtype)
            dequantized[key] = tensors[key].to(F32)
    if quantization.get("kv_cache_quant_algo"):
        tensors |= {f"model.layers.0.self_attn.{part}_proj.{part}_scale": torch.tensor(1.0) for part in "kv"}
    state = {}
    for key in model.state_dict():
        if key in dequantized:
            state[key] = dequantized[key]
            continue
        prefix, part = key.rsplit(".", 1)
        names = ["gate_proj", "up_proj"] if part == "gate_up_proj" else ["down_proj"]
        state[key] = torch.stack([torch.cat([dequantized[f"{prefix}.{index}.{one}.weight"] for one in names]) for index in range(config["num_experts"])])
    model.load_state_dict(state)
    tokens = torch.randint(0, config["vocab_size"], (24,))
    with torch.no_grad():
        logits = model(tokens[None]).logits[0]
    folder = HERE / name
    folder.mkdir(parents=True, exist_ok=True)
    key = "quantization" if "quant_method" not in quantization else "quantization_config"
    config = config | dict(torch_dtype=str(dtype).removeprefix("torch.")) | {key: quantization}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file(tensors, str(folder / "model.safetensors"))
    save_file(dict(tokens=tokens.to(torch.int32), logits=logits.contiguous()), str(folder / "expected.safetensors"))
    print(name, sum(value.numel() * value.element_size() for value in tensors.values()) >> 10, "KiB")


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        write(name)
