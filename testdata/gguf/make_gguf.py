"""Writes testdata/gguf/FAMILY.pieces for folders of testdata/golden, by way of llama.cpp's converter.

Usage: python make_gguf.py LLAMA_CPP [--keep FOLDER] [FAMILY ...]

LLAMA_CPP is a checkout of llama.cpp; its converter wants torch, transformers and safetensors. The folders have no
tokenizer, so that each file gets a vocabulary of made-up tokens. Numbers stay bf16, or become f32 where the converter
wants them so or multiplies them.

A GGUF file holds the numbers of its golden folder in another order. FAMILY.pieces says where they come from, so that
the repository has them once: "PIECES\\0\\0", then pieces until the end of the file, each an offset and a length (u64,
little-endian). A piece with offset 2^64 - 1 is followed by that many bytes; any other is copied out of the folder's
model.safetensors. --keep writes the whole GGUF files, too.
"""

import json
import logging
import struct
import sys
import tempfile
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden"
WINDOW = 16
LITERAL = 2**64 - 1


def vocabulary(model):
    """One made-up token for each row of the embedding."""
    config = {**model.hparams, **model.hparams.get("text_config", {})}
    count = config["vocab_size"]
    writer = model.gguf_writer
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"t{i}" for i in range(count)])
    writer.add_token_types([1] * count)
    writer.add_token_merges(["t 0"])
    writer.add_eos_token_id(2)


def words(config, before, after, key):
    config[key] = [after if kind == before else kind for kind in config[key]]


def as_published(family, config, tensors):
    """Gives config and tensors the words of published checkpoints where transformers has new ones."""
    kind = config["model_type"]
    if kind == "granitemoehybrid":
        words(config, "linear_attention", "mamba", "layer_types")
        words(config, "full_attention", "attention", "layer_types")
    if kind == "minimax_m2":
        partial = config["rope_parameters"].get("partial_rotary_factor", 1.0)
        config["rotary_dim"] = int(config["head_dim"] * partial)
    if kind in ("deepseek_v3", "deepseek_v32"):
        config["scoring_func"] = "sigmoid"
    if kind == "kimi_linear":
        config["moe_router_activation_func"] = "sigmoid"
        dense = "model.layers.0.block_sparse_moe."
        for name in [n for n in tensors if n.startswith(dense)]:
            tensors["model.layers.0.mlp." + name.removeprefix(dense)] = tensors.pop(name)
        own = config["linear_attn_config"]
        for name in [n for n in tensors if n.endswith("A_log")]:
            tensors[name] = tensors[name].reshape(1, 1, own["num_heads"], 1)


    if kind == "deepseek_v4":
        deepseek_v4(config, tensors)
    if kind == "glm5_next":
        text = config["text_config"]
        text["linear_attn_config"] = {
            "num_heads": text["linear_num_heads"],
            "head_dim": text["linear_head_dim"],
            "short_conv_kernel_size": text["linear_conv_kernel_dim"],
            "gate_lower_bound": text["linear_lower_bound"],
        }
        text |= {"mla_use_nope": True, "first_k_dense_replace": 1, "scoring_func": "sigmoid"}


def deepseek_v4(config, tensors):
    """transformers has the original names, but for a few."""
    for name in list(tensors):
        old = name.removeprefix("model.").replace("embed_tokens", "embed").replace("hc_head.hc_", "hc_head_")
        tensors[old.replace("attn.norm.", "attn.kv_norm.")] = tensors.pop(name)
    rates = config["compress_rates"] | {"sliding_attention": 0}
    config["compress_ratios"] = [rates[kind] for kind in config["layer_types"]]
    config["num_hash_layers"] = config.get("mlp_layer_types", []).count("hash_moe")
    stretched = config["rope_parameters"]["compress"] | {"rope_theta": config["rope_theta"]}
    config["rope_scaling"] = {name: x for name, x in stretched.items() if name != "attention_factor"}
    config["num_nextn_predict_layers"] = 0


def plain_experts(model, layer, projection, key):
    """In place of the converter's own: golden experts are no codes."""
    import gguf
    import torch

    count = model.hparams["n_routed_experts"]
    names = [f"layers.{layer}.ffn.experts.{e}.{projection}.weight" for e in range(count)]
    stack = torch.stack([model.model_tensors[name]() for name in names])
    stack = type(stack).to_eager(stack) if hasattr(type(stack), "to_eager") else stack
    data = stack.contiguous().view(torch.uint8).numpy()
    model.gguf_writer.add_tensor(model.format_tensor_name(key, layer), data, raw_dtype=gguf.GGMLQuantizationType.BF16)
    return names


def write_gguf(family, out, kind):
    import gguf
    import torch
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
    from safetensors.torch import load_file, save_file

    config = json.loads((GOLDEN / family / "config.json").read_text())
    tensors = load_file(GOLDEN / family / "model.safetensors")
    as_published(family, config, tensors)
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        folder = Path(folder)
        (folder / "config.json").write_text(json.dumps(config))
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        vocab = config.get("text_config", config)["vocab_size"]
        words = {"model": {"vocab": {f"t{i}": i for i in range(vocab)}}, "added_tokens": []}
        (folder / "tokenizer.json").write_text(json.dumps(words))
        hparams = ModelBase.load_hparams(folder, False)
        converter = get_model_class(get_model_architecture(hparams, ModelType.TEXT), mmproj=False)
        converter.set_vocab = vocabulary
        # The golden folders have no layers that guess further tokens.
        converter.no_mtp = True
        if hasattr(converter, "_write_mxfp4_expert_tensor"):
            converter._write_mxfp4_expert_tensor = plain_experts
        kind = getattr(gguf.LlamaFileType, kind)
        converter(folder, kind, out, model_name=family).write()


def pieces(source, target):
    """(offset, bytes) with offset into source or LITERAL."""
    places = {}
    for at in range(0, len(source) - WINDOW + 1, 2):
        places.setdefault(source[at : at + WINDOW], at)
    literal, at = bytearray(), 0
    while at < len(target):
        found = places.get(target[at : at + WINDOW])
        if found is None:
            literal += target[at : at + 2]
            at += 2
            continue
        length = WINDOW
        while at + length < len(target) and target[at + length : at + length + 1] == source[found + length : found + length + 1]:
            length += 1
        length -= length % 2
        if length < 2 * WINDOW:
            literal += target[at : at + length]
        else:
            if literal:
                yield LITERAL, bytes(literal)
                literal = bytearray()
            yield found, target[at : at + length]
        at += length
    if literal:
        yield LITERAL, bytes(literal)


def write_pieces(family, whole):
    source, target = (GOLDEN / family / "model.safetensors").read_bytes(), whole.read_bytes()
    out = b"PIECES\0\0"
    for offset, data in pieces(source, target):
        out += struct.pack("<QQ", offset, len(data)) + (data if offset == LITERAL else b"")
    (HERE / f"{family}.pieces").write_bytes(out)
    return len(target), len(out)


# Those whose numbers the converter multiplies.
F32 = {"falcon_h1_folded"}
# What GGUF has no words for: windows of mistral and ministral, dynamic positions, single layers without experts, two
# unequal stretches of scores, a gate after a norm, positions of a hybrid; and biases that the converter does not take.
CANNOT = {
    "mistral",
    "ministral3_growth",
    "llama_dynamic",
    "qwen3_moe",
    "deepseek_v3_yarn",
    "falcon_h1_before",
    "granitemoehybrid_dense",
    "falcon_h1_factors",
    # No more than glm5_next_shared, and large.
    "glm5_next",
}


def main():
    args = sys.argv[1:]
    llama = Path(args.pop(0)).resolve()
    sys.path[:0] = [str(llama / "gguf-py"), str(llama)]
    keep = None
    if args and args[0] == "--keep":
        keep, args = Path(args[1]), args[2:]
    logging.basicConfig(level=logging.ERROR)
    everything = sorted(p.name for p in GOLDEN.iterdir() if (p / "config.json").exists())
    for family in args or [f for f in everything if f not in CANNOT]:
        with tempfile.TemporaryDirectory() as folder:
            whole = (keep or Path(folder)) / f"{family}.gguf"
            try:
                write_gguf(family, whole, "ALL_F32" if family in F32 else "MOSTLY_BF16")
                print("%s: %d bytes in pieces of %d" % (family, *write_pieces(family, whole)), flush=True)
            except Exception as e:
                traceback.print_exc(limit=-3)
                print(f"{family}: {type(e).__name__}: {e}", flush=True)


main()
