"""mlx-lm on the CPU, to compare with: hybrid models of middle size with random weights, and its speed on them.

    python mlx_hybrid.py make FAMILY DTYPE DIR         writes a model in float32 or bfloat16, as mlx-lm writes models
    python mlx_hybrid.py speed DIR PROMPT GENERATE     prints {"prefill": tokens a second, "decode": tokens a second}

The families are qwen3_next (experts) and qwen3_5 (dense). Three layers of four are linear, heads and states have the
ratios of the published models; vocabulary and widths are smaller. Needs: pip install "mlx[cpu]" mlx-lm
"""

import json
import sys
import time
from pathlib import Path

try:
    import mlx.core as mx
    from mlx.utils import tree_map
    from mlx_lm.generate import generate_step
    from mlx_lm.utils import load_model, save_config, save_model
except ImportError as missing:
    sys.exit(f'mlx_hybrid.py: {missing}; pip install "mlx[cpu]" mlx-lm')

SHARED = {
    "vocab_size": 32768,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "full_attention_interval": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "linear_num_key_heads": 6,
    "linear_num_value_heads": 12,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
}
ROPE = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16}
CONFIGS = {
    "qwen3_next": SHARED
    | {
        "model_type": "qwen3_next",
        "intermediate_size": 2304,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 192,
        "shared_expert_intermediate_size": 192,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "rope_theta": ROPE["rope_theta"],
        "partial_rotary_factor": ROPE["partial_rotary_factor"],
    },
    "qwen3_5": {
        "model_type": "qwen3_5",
        "text_config": SHARED
        | {"model_type": "qwen3_5_text", "intermediate_size": 2304, "rope_parameters": ROPE},
    },
}


def make(family: str, dtype: mx.Dtype, folder: Path) -> None:
    """A folder that is there is whole: it gets its name last."""
    if folder.exists():
        return
    part = folder.with_name(folder.name + ".part")
    part.mkdir(parents=True, exist_ok=True)
    save_config(CONFIGS[family], part / "config.json")
    mx.random.seed(7)
    # Without weights in the folder the model has those that it is made with.
    model, _ = load_model(part, strict=False)
    typed = lambda x: x.astype(dtype) if mx.issubdtype(x.dtype, mx.floating) else x
    model.update(tree_map(typed, model.parameters()))
    save_model(part, model)
    part.rename(folder)


def speed(folder: Path, prompt: int, generate: int) -> None:
    model, config = load_model(folder)
    vocab = config.get("text_config", config)["vocab_size"]
    ids = mx.random.randint(0, vocab, (prompt,))
    mx.eval(ids)
    # The first steps compile.
    for _ in generate_step(ids[:8], model, max_tokens=2):
        pass
    start = time.perf_counter()
    stamps = [time.perf_counter() for _ in generate_step(ids, model, max_tokens=generate + 1)]
    prefill, decode = prompt / (stamps[0] - start), generate / (stamps[-1] - stamps[0])
    print(json.dumps({"prefill": prefill, "decode": decode}))


def main() -> None:
    mx.set_default_device(mx.cpu)
    match sys.argv[1:]:
        case ["make", family, dtype, folder] if family in CONFIGS and dtype in DTYPES:
            make(family, DTYPES[dtype], Path(folder))
        case ["speed", folder, prompt, generate]:
            speed(Path(folder), int(prompt), int(generate))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
