"""Compares with mlx-lm in both directions, family by family, and prints a table.

    python interop.py LONGRUN SCRATCH [FAMILY ...]

A model of ../golden is written by `longrun convert` in several modes and computed by mlx-lm, and it is written by mlx-lm
and computed by `longrun`. A cell is the largest difference of a logit over the largest logit, between the two programs
on the same files, with float32 numbers and scales. (That these are the right numbers is shown by the tests that convert and
compare with the reference.) Twelve tokens are read, which no window of these models is shorter
than; the column "long" reads a hundred. The exit code is 1 if a cell is above 1e-3 that is not known to be mlx-lm's own.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map_with_path
from mlx_lm.utils import load_model, quantize_model, save_config, save_model
from safetensors.numpy import load_file, save_file

GOLDEN = Path(__file__).parent.parent / "golden"
TOLERANCE = 1e-3
SHORT = 12

# What mlx-lm 0.32.2 computes otherwise than the reference, from its own reading of the original files too, or can't read:
# the columns that this shows in, and the fault.
ALL = ["float32", "q8", "q4", "mxfp4", "long", "mlx float32", "mlx q4"]
SHORTER = [column for column in ALL if column != "long"]
THEIRS = ["mlx float32", "mlx q4"]
KNOWN = {
    "deepseek_v32": (["long"], "breaks ties of its indexer otherwise"),
    "deepseek_v3_stretch": (ALL, "has no tied head"),
    "deepseek_v3_yarn": (ALL, "has no tied head"),
    "deepseek_v4": (ALL, "has no such family"),
    "deepseek_v4_hash": (ALL, "has no such family"),
    "falcon_h1_before": (ALL, "ignores the groups of the gated norm"),
    "falcon_h1_factors": (ALL, "ignores the groups of the gated norm"),
    "falcon_h1_folded": (ALL, "ignores the groups of the gated norm"),
    "gemma2": (["long"], "has no sliding window"),
    "gemma4": (["mxfp4"], "embeds codes in bfloat16"),
    "gemma4_moe": (["mxfp4"], "embeds codes in bfloat16"),
    "glm5_next": (ALL, "has no such family"),
    "glm5_next_shared": (ALL, "has no such family"),
    "gpt_oss": (ALL, "rounds yarn's range; can't read plain experts as transformers writes them"),
    "granitemoehybrid_dense": (ALL, "ignores the groups of the gated norm"),
    "granitemoeshared": (ALL, "has no such family"),
    "kimi_linear": (THEIRS, "can't read the names of dense layers that transformers writes"),
    "kimi_linear_small": (THEIRS, "can't read the names of dense layers that transformers writes"),
    "mamba2": (ALL, "ignores the groups of the gated norm"),
    "ministral3_growth": (["long"], "does not let queries grow"),
    "mistral": (["long"], "has no sliding window"),
    "mixtral": (ALL, "takes the head size from the width"),
    "olmo2": (["mxfp4"], "embeds codes in bfloat16"),
    "olmo3": (["mxfp4"], "embeds codes in bfloat16"),
    "phi3": (["long"], "has no sliding window"),
    "phi3_longrope": (SHORTER, "takes the factors of long texts for short ones"),
    "qwen3_5_moe": (THEIRS, "can't read experts one by one"),
    "seed_oss": (["mxfp4"], "can't use a quantised embedding as the head"),
}


def run(*args):
    done = subprocess.run([str(a) for a in args], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr.strip()


def logits(folder, ids):
    model, config = load_model(folder)
    return model, config, np.array(model(mx.array(ids)[None])[0].astype(mx.float32))


def checked(longrun, folder, ids, theirs, scratch):
    """The difference of longrun's logits from theirs, on the same folder."""
    vectors = scratch / "vectors.safetensors"
    save_file({"prompt": ids.astype(np.int64), "logits": theirs.astype(np.float32)}, vectors)
    code, out, err = run(
        longrun, "check", "--model", folder, "--against", vectors, "--exact", "--json", "--threads", 1
    )
    if code not in (0, 1):
        raise RuntimeError(err)
    return max(row["relative"] for row in json.loads(out))


def ours(longrun, family, mode, ids, scratch):
    """Written by longrun, computed by both."""
    folder = scratch / "ours"
    shutil.rmtree(folder, ignore_errors=True)
    how = [] if mode == "float32" else ["--quantize", mode]
    code, _, err = run(
        longrun, "convert", "--model", GOLDEN / family, "--out", folder, "--dtype", "float32", *how
    )
    if code:
        raise RuntimeError(err)
    _, _, theirs = logits(folder, ids)
    return checked(longrun, folder, ids, theirs, scratch)


def original(longrun, family, scratch):
    """The original weights with a config that mlx-lm can read: nothing of the weights is ours."""
    folder, written = scratch / "original", scratch / "written"
    for old in (folder, written):
        shutil.rmtree(old, ignore_errors=True)
    code, _, err = run(longrun, "convert", "--model", GOLDEN / family, "--out", written)
    if code:
        raise RuntimeError(err)
    folder.mkdir()
    shutil.copy(GOLDEN / family / "model.safetensors", folder)
    config = json.loads((written / "config.json").read_text())
    source = json.loads((GOLDEN / family / "config.json").read_text())
    # Factors go into weights when mlx-lm reads the original ones.
    config |= {k: v for k, v in source.items() if "multiplier" in k}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def theirs(longrun, family, mode, ids, scratch):
    """Written by mlx-lm, computed by both."""
    folder = scratch / "theirs"
    shutil.rmtree(folder, ignore_errors=True)
    model, config = load_model(original(longrun, family, scratch))
    model.update(
        tree_map_with_path(
            lambda _, x: x.astype(mx.float32) if mx.issubdtype(x.dtype, mx.floating) else x,
            model.parameters(),
        )
    )
    if mode != "float32":
        model, config = quantize_model(model, config, None, {"q4": 4, "q8": 8}[mode])
    save_model(folder, model)
    save_config(config, folder / "config.json")
    _, _, out = logits(folder, ids)
    return checked(longrun, folder, ids, out, scratch)


def cell(compute):
    try:
        return compute(), ""
    except Exception as error:  # a cell says what stopped it
        return None, f"{type(error).__name__}: {error}".split("\n")[0][:160]


def main():
    mx.set_default_device(mx.cpu)
    longrun, scratch = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    scratch.mkdir(parents=True, exist_ok=True)
    families = sys.argv[3:] or sorted(p.name for p in GOLDEN.iterdir() if p.is_dir())
    modes = ["float32", "q8", "q4", "mxfp4"]
    heads = ["family", *modes, "long", "mlx float32", "mlx q4", "note"]
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|", flush=True)
    failed = 0
    for family in families:
        golden = load_file(GOLDEN / family / "golden.safetensors")
        whole = golden["prompt"].astype(np.int32)
        ids = whole[:SHORT]
        cells = [cell(lambda m=m: ours(longrun, family, m, ids, scratch)) for m in modes]
        cells.append(cell(lambda: ours(longrun, family, "float32", whole, scratch)))
        for mode in ("float32", "q4"):
            cells.append(cell(lambda m=mode: theirs(longrun, family, m, ids, scratch)))
        where, note = KNOWN.get(family, ([], ""))
        wrong = [
            name
            for name, (value, _) in zip(heads[1:-1], cells)
            if (value is None or not value <= TOLERANCE) and name not in where
        ]
        why = next((w for _, w in cells if w), "")
        note = note and f"mlx-lm {note}"
        if wrong:
            failed += 1
            note = f"{note} WRONG: {', '.join(wrong)} {why}".strip()
        shown = ["-" if value is None else f"{value:.1e}" for value, _ in cells]
        print("| " + " | ".join([family, *shown, note]) + " |", flush=True)
    print(f"\n{len(families) - failed} of {len(families)} families agree")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
