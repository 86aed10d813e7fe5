#!/usr/bin/env python3
"""Make tiny quantised checkpoints, each beside the logits that a reference computes with its weights.

    pip install 'mlx[cpu]==0.32.4' mlx-lm==0.32.2 numpy safetensors
    python make_quantized.py mlx GOLDEN_DIR OUT_DIR [NAME ...]
    pip install torch transformers==5.24.0 safetensors
    python make_quantized.py torch GOLDEN_DIR OUT_DIR [NAME ...]

GOLDEN_DIR holds the folders of ../golden/make_golden.py; their first layers (and experts) are
quantised. `mlx` lets mlx-lm quantise, save and run the model. `torch` quantises here, as the
specification of each format says, and lets transformers run the model with the weights that the codes
stand for, in float32. golden.safetensors has the same tensors as in ../golden, with fewer tokens.
"""
import json, shutil, sys, tempfile
from pathlib import Path
import numpy as np

TOKENS, NEW = 20, 8


def cut(load, folder, layers, experts=None):
    """config and tensors of a golden checkpoint with fewer layers and experts."""
    config = json.loads((folder / "config.json").read_text())
    first = 0
    if "linear_num_key_heads" in config:  # a period ends in the one layer that is not linear
        first = config["layer_types"].index("full_attention") + 1 - layers
        config["full_attention_interval"] = layers
    tensors = {}
    for name, value in load(str(folder / "model.safetensors")).items():
        parts = name.split(".")
        if "layers" in parts:
            number = int(parts[parts.index("layers") + 1]) - first
            if not 0 <= number < layers:
                continue
            parts[parts.index("layers") + 1] = str(number)
            name = ".".join(parts)
        if experts and "experts" in parts:
            number = parts[parts.index("experts") + 1]
            if number.isdigit() and int(number) >= experts:
                continue
        tensors[name] = value
    if experts:
        for name, value in tensors.items():
            stacked = name.endswith(("experts.gate_up_proj", "experts.down_proj", "_proj_bias"))
            if stacked or name.endswith(("mlp.gate.weight", "router.weight", "router.bias")):
                tensors[name] = value[:experts]
        for key in ("num_experts", "num_local_experts"):
            if key in config:
                config[key] = experts
    config["num_hidden_layers"] = layers
    if "_sliding_window_pattern" in config:
        config["_sliding_window_pattern"] = layers
        config["layer_types"] = ["sliding_attention"] * (layers - 1) + ["full_attention"]
    elif "layer_types" in config:
        config["layer_types"] = config["layer_types"][first:first + layers]
    return config, tensors


def prompts(folder):
    from safetensors.numpy import load_file
    ids = load_file(folder / "golden.safetensors")["prompt"][:TOKENS]
    return ids, ids[5:8]


def vectors(golden, forward):
    """`forward`: ids -> float32 logits [T, V], a full pass without a cache."""
    prompt, short = prompts(golden)
    seq, greedy, margins = list(prompt), [], []
    for _ in range(NEW):
        last = forward(np.array(seq))[-1]
        first, second = np.sort(last)[::-1][:2]
        greedy.append(int(last.argmax()))
        margins.append(first - second)
        seq.append(greedy[-1])
    return dict(prompt=prompt.astype(np.int64), logits=forward(prompt), greedy=np.array(greedy, np.int64),
                greedy_margin=np.array(margins, np.float32), short_prompt=short.astype(np.int64),
                short_logits=forward(short))


def write(out, config, golden):
    from safetensors.numpy import save_file
    save_file({k: np.ascontiguousarray(v) for k, v in golden.items()}, out / "golden.safetensors")
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    total = sum(f.stat().st_size for f in out.iterdir())
    print(f"{out.name}: {total / 1000:.0f} kB, greedy {golden['greedy'].tolist()}, "
          f"least margin {golden['greedy_margin'].min():.3f}, largest logit {abs(golden['logits']).max():.2f}")


# ---------------------------------------------------------------------------------------------- MLX

def mixed(path, _):
    """Some modules otherwise, some not at all."""
    if path.endswith("down_proj"):
        return dict(bits=8, group_size=128)
    if path.endswith("v_proj"):
        return dict(bits=6, group_size=32)
    if path.endswith("layers.0.self_attn.o_proj"):
        return dict(bits=4, group_size=32, mode="mxfp4")
    return not path.endswith("layers.1.self_attn.k_proj")


# name: (family, layers, experts, settings of quantize_model, type of scales and biases in the file)
MLX = {
    "mlx-affine1": ("llama", 2, None, dict(bits=1, group_size=64), "float16"),
    "mlx-affine2": ("llama", 2, None, dict(bits=2, group_size=32), "bfloat16"),
    "mlx-affine3": ("llama", 2, None, dict(bits=3, group_size=64), "float32"),
    "mlx-affine4": ("llama", 2, None, dict(bits=4, group_size=64), "bfloat16"),
    "mlx-affine4-wide": ("llama", 2, None, dict(bits=4, group_size=32), "float32"),
    "mlx-affine5": ("qwen3", 1, None, dict(bits=5, group_size=32), "float16"),
    "mlx-affine6": ("llama", 1, None, dict(bits=6, group_size=64), "bfloat16"),
    "mlx-affine8": ("llama", 1, None, dict(bits=8, group_size=64), "bfloat16"),
    "mlx-gemma3": ("gemma3", 2, None, dict(bits=4, group_size=64), "bfloat16"),
    "mlx-mixed": ("llama", 2, None, dict(bits=4, group_size=64, quant_predicate=mixed), "bfloat16"),
    "mlx-mxfp4": ("llama", 2, None, dict(mode="mxfp4"), None),
    "mlx-mxfp8": ("llama", 1, None, dict(mode="mxfp8"), None),
    "mlx-nvfp4": ("qwen3", 2, None, dict(mode="nvfp4"), None),
    "mlx-moe": ("qwen3_moe", 2, 4, dict(bits=4, group_size=32), "bfloat16"),
    "mlx-moe-nvfp4": ("qwen3_moe", 1, 4, dict(mode="nvfp4", global_scale=True), None),
    "mlx-gpt-oss": ("gpt_oss", 2, 2, dict(bits=8, group_size=64), "bfloat16"),
    "mlx-hybrid": ("qwen3_next", 2, 4, dict(bits=4, group_size=32), "bfloat16"),
}


def mlx_config(config):
    """The keys that mlx-lm reads under other names."""
    rope = config.get("rope_parameters", {})
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in rope:
            config[key] = rope[key]
    if "_sliding_window_pattern" in config:
        config["sliding_window_pattern"] = config["_sliding_window_pattern"]
    if rope.get("rope_type") == "yarn":
        rope["truncate"] = True  # mlx-lm does not read it and rounds always
        config["rope_scaling"] = rope
    if "num_local_experts" in config and config["model_type"] != "gpt_oss":
        config["num_experts"] = config.pop("num_local_experts")
    return config


def make_mlx(root, out, only):
    import mlx.core as mx
    from mlx.utils import tree_map_with_path
    from mlx_lm import utils
    from mlx_lm.models.switch_layers import SwitchLinear

    def gpt_oss_blocks(config, tensors):
        """mlx-lm reads this family with experts in mxfp4 only."""
        config["quantization_config"] = dict(quant_method="mxfp4")
        result = {}
        for key, value in tensors.items():
            if key.endswith(("experts.gate_up_proj", "experts.down_proj")):
                words, scales = mx.quantize(value.astype(mx.float32).swapaxes(1, 2), mode="mxfp4")
                result[key + "_blocks"] = words.view(mx.uint8).reshape(*scales.shape, 16)
                result[key + "_scales"] = scales
            else:
                result[key] = value
        return result

    def dequantise_global(model):
        """The CPU has no products with experts that have a scale of their own."""
        for _, mlp in model.named_modules():
            for key in ("gate_proj", "up_proj", "down_proj"):
                layer = mlp.get(key) if hasattr(mlp, "get") else None
                if layer is None or layer.get("global_scale") is None:
                    continue
                parts = zip(layer["weight"], layer["scales"], layer["global_scale"])
                weights = [mx.dequantize(w, s, group_size=16, bits=4, mode="nvfp4", global_scale=g, dtype=mx.float32)
                           for w, s, g in parts]
                plain = SwitchLinear(weights[0].shape[1], weights[0].shape[0], len(weights), bias=False)
                plain.weight = mx.stack(weights)
                mlp[key] = plain

    def forward(model):
        return lambda ids: np.array(model(mx.array(ids)[None])[0].astype(mx.float32))

    for name, (family, layers, experts, settings, scales) in MLX.items():
        if only and name not in only:
            continue
        with tempfile.TemporaryDirectory() as tmp:
            tmp = Path(tmp)
            config, tensors = cut(mx.load, root / family, layers, experts)
            config = mlx_config(config)
            if family == "gpt_oss":
                tensors = gpt_oss_blocks(config, tensors)
            mx.save_safetensors(str(tmp / "model.safetensors"), 
                                {k: v if v.dtype == mx.uint8 else v.astype(mx.float32) for k, v in tensors.items()})
            (tmp / "config.json").write_text(json.dumps(config))
            model, config = utils.load_model(tmp)
            model.set_dtype(mx.float32)
            model, config = utils.quantize_model(model, config, settings.get("group_size"), settings.get("bits"),
                                                 **{k: v for k, v in settings.items() if k not in ("group_size", "bits")})

            def is_scale(path):
                return scales and path.endswith((".scales", ".biases"))

            def rounded(path, x):
                return x.astype(getattr(mx, scales)) if is_scale(path) and x.dtype != mx.uint8 else x

            # What is not quantised came from bfloat16 and goes back to it without loss; norms that mlx-lm shifted do not.
            def short(path, x):
                again = x.astype(mx.bfloat16)
                same = x.dtype == mx.float32 and not is_scale(path) and mx.all(again.astype(mx.float32) == x)
                return again if same else x

            def long(path, x):
                return x.astype(mx.float32) if mx.issubdtype(x.dtype, mx.floating) else x

            folder = out / name
            shutil.rmtree(folder, ignore_errors=True)
            model.update(tree_map_with_path(lambda path, x: short(path, rounded(path, x)), model.parameters()))
            utils.save_model(folder, model)
            model.update(tree_map_with_path(long, model.parameters()))
            dequantise_global(model)
            golden = vectors(root / family, forward(model))
            for key in ("_name_or_path", "transformers_version"):
                config.pop(key, None)
            write(folder, config, golden)


# -------------------------------------------------------------------------------------------- torch

BLOCK = (48, 32)  # smaller than usual, so that tiny weights have several, the last of them cut off
E2M1 = [0, .5, 1, 1.5, 2, 3, 4, 6]


def make_torch(root, out, only):
    import torch
    import transformers
    from safetensors.torch import load_file, save_file

    def pack(codes, bits, dim=-1):
        """Codes along `dim` into int32 words, lowest bits first; the last word may be partly used."""
        codes = codes.movedim(dim, -1).to(torch.int64)
        per = 32 // bits
        codes = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % per))
        words = (codes.reshape(*codes.shape[:-1], -1, per) << (torch.arange(per) * bits)).sum(-1)
        words = torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)
        return words.movedim(-1, dim).contiguous()

    def groups(w, group):
        return w.reshape(*w.shape[:-1], -1, group)

    def asymmetric(w, bits, group, scale_type=torch.float16):
        """codes [rows, cols], scales and zero points [rows, groups], and the weight that they stand for."""
        g, top = groups(w, group), 2 ** bits - 1
        low, high = g.amin(-1).clamp(max=0), g.amax(-1).clamp(min=0)
        scale = ((high - low) / top).to(scale_type).float()
        zero = (-low / scale).round().clamp(0, top)
        codes = (g / scale[..., None] + zero[..., None]).round().clamp(0, top)
        return codes.reshape(w.shape), scale, zero, ((codes - zero[..., None]) * scale[..., None]).reshape(w.shape)

    def symmetric(w, bits, group, scale_type=torch.float16):
        g, top = groups(w, group), 2 ** (bits - 1)
        scale = (g.abs().amax(-1) / (top - 0.5)).to(scale_type).float()
        signed = (g / scale[..., None]).round().clamp(-top, top - 1)
        return (signed + top).reshape(w.shape), scale, (signed * scale[..., None]).reshape(w.shape)

    def fp8(w, scale):
        """`scale` has the shape of `w`."""
        codes = (w / scale).to(torch.float8_e4m3fn)
        return codes, codes.float() * scale

    def spread(scale, block, shape):
        return scale.repeat_interleave(block[0], -2).repeat_interleave(block[1], -1)[..., :shape[-2], :shape[-1]]

    def block_max(w, block):
        pad = torch.nn.functional.pad(w, (0, -w.shape[-1] % block[1], 0, -w.shape[-2] % block[0])).abs()
        return pad.reshape(*w.shape[:-2], pad.shape[-2] // block[0], block[0], -1, block[1]).amax((-3, -1))

    def fp4(w, scale, group):
        """Two codes in a byte, the first one low, and the weight that they stand for."""
        g = groups(w, group) / scale[..., None]
        codes = (g.abs()[..., None] - torch.tensor(E2M1)).abs().argmin(-1)
        value = torch.tensor(E2M1)[codes] * g.sign()
        codes = (codes | ((g < 0).long() << 3)).reshape(w.shape)
        packed = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
        return packed, (value * scale[..., None]).reshape(w.shape)

    def e8m0(largest, top):
        """Bytes of exponents with which `largest` is about `top`."""
        exponent = (largest / top).log2().ceil().clamp(-127, 127)
        return (exponent + 127).to(torch.uint8), 2.0 ** exponent

    # Each takes a weight [.., rows, cols], gives the tensors that stand in its place and what they mean.
    def fp8_block(w, x):
        scale = block_max(w, BLOCK) / 448
        codes, value = fp8(w, spread(scale, BLOCK, w.shape))
        return {x + ".weight": codes, x + ".weight_scale_inv": scale}, value

    def fp8_fused(w, x):
        scale = block_max(w, BLOCK) / 448
        codes, value = fp8(w, spread(scale, BLOCK, w.shape))
        return {x: codes, x + "_scale_inv": scale}, value

    def fp8_tensor(w, x):
        scale = (w.abs().max() / 448).to(torch.bfloat16).float()
        codes, value = fp8(w, scale)
        return {x + ".weight": codes, x + ".weight_scale": scale.to(torch.bfloat16).reshape(1)}, value

    def fp8_channel(w, x):
        scale = w.abs().amax(-1, keepdim=True) / 448
        codes, value = fp8(w, scale)
        return {x + ".weight": codes, x + ".weight_scale": scale}, value

    def fp8_ue8m0(w, x):
        exponent, scale = e8m0(block_max(w, (32, 32)), 448)
        codes, value = fp8(w, spread(scale, (32, 32), w.shape))
        return {x + ".weight": codes, x + ".weight_scale_inv": exponent.view(torch.float8_e8m0fnu)}, value

    def mxfp8(w, x):
        exponent, scale = e8m0(groups(w, 32).abs().amax(-1), 448)
        codes, value = fp8(w, scale.repeat_interleave(32, -1))
        return {x + ".weight": codes, x + ".weight_scale": exponent}, value

    def int8_channel(w, x):
        codes, scale, value = symmetric(w, 8, w.shape[-1], torch.bfloat16)
        return {x + ".weight": (codes - 128).to(torch.int8), x + ".weight_scale": scale.to(torch.bfloat16)}, value

    def ct_int4(w, x):
        codes, scale, value = symmetric(w, 4, 32, torch.bfloat16)
        return {x + ".weight_packed": pack(codes, 4), x + ".weight_scale": scale.to(torch.bfloat16),
                x + ".weight_shape": torch.tensor(w.shape)}, value

    def ct_int4_zero(w, x):
        codes, scale, zero, value = asymmetric(w, 4, 64)
        return {x + ".weight_packed": pack(codes, 4), x + ".weight_scale": scale.half(),
                x + ".weight_zero_point": pack(zero, 4, 0), x + ".weight_shape": torch.tensor(w.shape)}, value

    def ct_int8_channel(w, x):
        codes, scale, value = symmetric(w, 8, w.shape[-1], torch.bfloat16)
        return {x + ".weight_packed": pack(codes, 8), x + ".weight_scale": scale.to(torch.bfloat16),
                x + ".weight_shape": torch.tensor(w.shape)}, value

    def nvfp4_parts(w):
        """codes, scales in e4m3, and the number that these were multiplied with."""
        over = 6 * 448 / w.abs().max()
        scale = (groups(w, 16).abs().amax(-1) / 6 * over).to(torch.float8_e4m3fn)
        packed, value = fp4(w, scale.float() / over, 16)
        return packed, scale, over.reshape(1), value

    def ct_nvfp4(w, x):
        packed, scale, over, value = nvfp4_parts(w)
        return {x + ".weight_packed": packed, x + ".weight_scale": scale, x + ".weight_global_scale": over}, value

    def modelopt_nvfp4(w, x):
        packed, scale, over, value = nvfp4_parts(w)
        return {x + ".weight": packed, x + ".weight_scale": scale, x + ".weight_scale_2": (1 / over).reshape(()),
                x + ".input_scale": torch.tensor(1.0)}, value

    def ct_mxfp4(w, x):
        exponent, scale = e8m0(groups(w, 32).abs().amax(-1), 6)
        packed, value = fp4(w, scale, 32)
        return {x + ".weight_packed": packed, x + ".weight_scale": exponent}, value

    def awq(w, x):
        codes, scale, zero, value = asymmetric(w, 4, 32)
        order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
        turned = lambda t: pack(t.T.reshape(t.shape[1], -1, 8)[..., order].reshape(t.shape[1], -1), 4)
        return {x + ".qweight": turned(codes), x + ".qzeros": turned(zero), x + ".scales": scale.half().T.contiguous()}, value

    def gptq(bits, group, less_one, even=False):
        def quantise(w, x):
            if even:
                codes, scale, value = symmetric(w, bits, group)
                zero = torch.full_like(scale, 2 ** (bits - 1))
            else:
                codes, scale, zero, value = asymmetric(w, bits, group)
            zeros = pack(zero.T, bits)
            if less_one:
                # In whole words, as the writers do: a zero of 0 borrows from its neighbour.
                ones = sum(1 << i for i in range(0, 32, bits))
                words = (zeros.to(torch.int64) - ones) & 0xffffffff
                zeros = torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)
            g_idx = (torch.arange(w.shape[1]) // group).to(torch.int32)
            return {x + ".qweight": pack(codes.T, bits, 0), x + ".qzeros": zeros, x + ".g_idx": g_idx,
                    x + ".scales": scale.half().T.contiguous(), x + ".bias": torch.zeros(len(w), dtype=torch.half)}, value
        return quantise

    def ct(format, **weights):
        return dict(quant_method="compressed-tensors", format=format, quantization_status="compressed",
                    ignore=["lm_head"], config_groups=dict(group_0=dict(targets=["Linear"], weights=weights)))

    # name: (family, layers, experts, quantise, quantization_config)
    formats = {
        "fp8-block": ("llama", 1, None, fp8_block, dict(quant_method="fp8", weight_block_size=BLOCK)),
        "fp8-ue8m0": ("llama", 1, None, fp8_ue8m0, dict(quant_method="fp8", weight_block_size=[32, 32], scale_fmt="ue8m0")),
        "fp8-moe": ("qwen3_moe", 1, 4, fp8_block, dict(quant_method="fp8", weight_block_size=BLOCK)),
        "fp8-moe-fused": ("qwen3_moe", 1, 4, fp8_block, dict(quant_method="fp8", weight_block_size=BLOCK)),
        "ct-fp8-tensor": ("llama", 1, None, fp8_tensor, ct("float-quantized", num_bits=8, type="float", strategy="tensor")),
        "ct-fp8-channel": ("llama", 1, None, fp8_channel, ct("float-quantized", num_bits=8, type="float", strategy="channel")),
        "ct-mxfp8": ("llama", 1, None, mxfp8, ct("mxfp8-quantized", num_bits=8, type="float", strategy="group", group_size=32)),
        "ct-int8": ("llama", 1, None, int8_channel, ct("int-quantized", num_bits=8, type="int", strategy="channel")),
        "ct-int4": ("llama", 2, None, ct_int4, ct("pack-quantized", num_bits=4, type="int", strategy="group", group_size=32)),
        "ct-int4-zero": ("llama", 2, None, ct_int4_zero,
                         ct("pack-quantized", num_bits=4, type="int", strategy="group", group_size=64, symmetric=False)),
        "ct-int8-channel": ("llama", 1, None, ct_int8_channel, ct("pack-quantized", num_bits=8, type="int", strategy="channel")),
        "ct-nvfp4": ("llama", 2, None, ct_nvfp4, ct("nvfp4-pack-quantized", num_bits=4, type="float", group_size=16)),
        "ct-mxfp4": ("llama", 2, None, ct_mxfp4, ct("mxfp4-pack-quantized", num_bits=4, type="float", group_size=32)),
        "modelopt-nvfp4": ("llama", 2, None, modelopt_nvfp4, dict(quant_method="modelopt", quant_algo="NVFP4")),
        "awq": ("llama", 2, None, awq, dict(quant_method="awq", bits=4, group_size=32, version="gemm", zero_point=True)),
        "gptq4": ("llama", 2, None, gptq(4, 32, True), dict(quant_method="gptq", bits=4, group_size=32, desc_act=False, sym=False)),
        "gptq4-v2": ("llama", 2, None, gptq(4, 64, False),
                     dict(quant_method="gptq", bits=4, group_size=64, desc_act=False, sym=False, checkpoint_format="gptq_v2")),
        "gptq8": ("llama", 1, None, gptq(8, 64, True, True), dict(quant_method="gptq", bits=8, group_size=64, desc_act=False, sym=True)),
    }

    def run(config, tensors):
        config = transformers.AutoConfig.for_model(**config)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
        own = model.state_dict()
        if any(".experts.0." in name for name in tensors):
            tensors = stack_experts(tensors)
        if config.tie_word_embeddings:
            tensors = dict(tensors, **{"lm_head.weight": tensors["model.embed_tokens.weight"]})
        assert set(own) == set(tensors), set(own) ^ set(tensors)
        model.load_state_dict(tensors)
        return torch.no_grad()(lambda ids: model(torch.tensor(ids)[None], use_cache=False).logits[0].numpy())

    def stack_experts(tensors):
        """The library keeps `experts.E.gate_proj` and so on of all experts in two tensors."""
        import re
        found = {}
        rest = {}
        for name, value in tensors.items():
            match = re.fullmatch(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight", name)
            if match:
                found.setdefault(match[1], {}).setdefault(match[3], {})[int(match[2])] = value
            else:
                rest[name] = value
        for base, parts in found.items():
            stacked = {k: torch.stack([v[i] for i in range(len(v))]) for k, v in parts.items()}
            rest[base + ".gate_up_proj"] = torch.cat([stacked["gate"], stacked["up"]], 1)
            rest[base + ".down_proj"] = stacked["down"]
        return rest

    def finish(name, family, config, stored, meaning, settings):
        golden = vectors(root / family, run(dict(config), {k: v.float() for k, v in meaning.items()}))
        folder = out / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        save_file(stored, folder / "model.safetensors", metadata=dict(format="pt"))
        for key in ("transformers_version", "quantization_config"):
            config.pop(key, None)
        write(folder, dict(config, quantization_config=settings), golden)

    for name, (family, layers, experts, quantise, settings) in formats.items():
        if only and name not in only:
            continue
        config, tensors = cut(load_file, root / family, layers, experts)
        stored, meaning = {}, {}
        if name.endswith("fused"):
            tensors = stack_experts(tensors)
        for key, value in tensors.items():
            linear = key.endswith("_proj.weight")
            if value.dim() == 3:
                parts, meaning[key] = fp8_fused(value.float(), key)
                stored.update(parts)
                continue
            if not linear:
                stored[key] = meaning[key] = value
                continue
            parts, weight = quantise(value.float(), key.removesuffix(".weight"))
            stored.update(parts)
            meaning[key] = weight
        finish(name, family, config, stored, meaning, settings)

    if not only or "gpt-oss" in only:
        config, tensors = cut(load_file, root / "gpt_oss", 1, 2)
        stored, meaning = {}, {}
        for key, value in tensors.items():
            if not key.endswith(("experts.gate_up_proj", "experts.down_proj")):
                stored[key] = meaning[key] = value
                continue
            w = value.float().transpose(1, 2)  # [experts, rows, cols]; the file keeps plain weights turned
            exponent, scale = e8m0(groups(w, 32).abs().amax(-1), 6)
            packed, weight = fp4(w, scale, 32)
            stored[key + "_blocks"] = packed.reshape(*exponent.shape, 16)
            stored[key + "_scales"] = exponent
            meaning[key] = weight.transpose(1, 2).contiguous()
        finish("gpt-oss", "gpt_oss", config, stored, meaning,
               dict(quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router"]))


if __name__ == "__main__":
    kind, root, out, *only = sys.argv[1:]
    dict(mlx=make_mlx, torch=make_torch)[kind](Path(root), Path(out), only)
