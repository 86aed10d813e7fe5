"""Makes the LoRA adapters beside this file, with the logits of the adapted models in float32.

    pip install "mlx[cpu]==0.32.4" mlx-lm==0.32.2 && python make_adapters.py mlx
    pip install torch transformers==5.24.0 safetensors && python make_adapters.py peft

The bases are in ../golden. MLX's are made and run by mlx-lm itself; PEFT's are laid out by hand and merged into the
weights of transformers, which is what an adapter means.
"""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden"
TOKENS = 20


def prompt(family):
    return load_file(GOLDEN / family / "golden.safetensors")["prompt"][:TOKENS].astype(np.int64)


def save(name, tensors, file, config, ids, logits):
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / file)
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file({"prompt": ids, "logits": logits.astype(np.float32)}, folder / "golden.safetensors")


def mlx(name, family, keys, rank, scale, layers, seed):
    import mlx.core as mx
    from mlx.utils import tree_flatten, tree_map
    from mlx_lm.tuner.utils import linear_to_lora_layers
    from mlx_lm.utils import load_model

    mx.set_default_device(mx.cpu)
    mx.random.seed(seed)
    model, _ = load_model(GOLDEN / family)
    model.update(tree_map(lambda x: x.astype(mx.float32), model.parameters()))
    settings = {"rank": rank, "scale": scale, "dropout": 0.0, "keys": keys}
    model.freeze()
    linear_to_lora_layers(model, layers, settings)
    for path, module in model.named_modules():
        if hasattr(module, "lora_b"):
            module.lora_b = 0.1 * mx.random.normal(module.lora_b.shape)
    model.eval()
    ids = prompt(family)
    logits = np.array(model(mx.array(ids.astype(np.int32))[None])[0])
    tensors = {k: np.array(v) for k, v in tree_flatten(model.trainable_parameters())}
    config = {"fine_tune_type": "lora", "num_layers": layers, "lora_parameters": settings}
    save(name, tensors, "adapters.safetensors", config, ids, logits)


def peft(name, family, rank_of, alpha_of, seed, **settings):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        GOLDEN / family, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    rng = np.random.default_rng(seed)
    tensors, targets = {}, []
    for path, module in model.named_modules():
        rank = rank_of(path)
        if not rank:
            continue
        rows, cols = module.weight.shape
        a = (rng.standard_normal((rank, cols)) / cols**0.5).astype(np.float32)
        b = (0.1 * rng.standard_normal((rows, rank))).astype(np.float32)
        tensors[f"base_model.model.{path}.lora_A.weight"] = a
        tensors[f"base_model.model.{path}.lora_B.weight"] = b
        by = rank**0.5 if settings.get("use_rslora") else rank
        with torch.no_grad():
            module.weight += torch.tensor(alpha_of(path) / by * (b @ a))
        targets.append(path.rsplit(".", 1)[-1])
    ids = prompt(family)
    with torch.no_grad():
        logits = model(torch.tensor(ids)[None]).logits[0].numpy()
    config = {"peft_type": "LORA", "bias": "none", "target_modules": sorted(set(targets))} | settings
    save(name, tensors, "adapter_model.safetensors", config, ids, logits)


def ends(*names):
    return lambda path: any(path.endswith(name) for name in names)


if __name__ == "__main__":
    if sys.argv[1:] == ["mlx"]:
        mlx("mlx-llama", "llama", ["self_attn.q_proj", "self_attn.v_proj"], 4, 20.0, 2, 1)
        mlx("mlx-qwen3", "qwen3", ["self_attn.k_proj", "self_attn.o_proj", "mlp.down_proj"], 3, 2.5, 3, 2)
    elif sys.argv[1:] == ["peft"]:
        some = ends("q_proj", "up_proj", "lm_head")
        more = ends("1.self_attn.q_proj")
        peft(
            "peft-qwen3_yarn",
            "qwen3_yarn",
            lambda path: 5 if more(path) else 2 if some(path) else 0,
            lambda path: 12 if path.endswith("up_proj") else 6,
            3,
            r=2,
            lora_alpha=6,
            use_rslora=True,
            rank_pattern={"layers.1.self_attn.q_proj": 5},
            alpha_pattern={"up_proj": 12},
        )
        mixed = ends("3.self_attn.q_proj", "0.linear_attn.in_proj_qkvz", "1.linear_attn.in_proj_ba")
        peft("peft-qwen3_next", "qwen3_next", lambda p: 2 if mixed(p) else 0, lambda p: 8, 4, r=2, lora_alpha=8)
    else:
        sys.exit(__doc__)
