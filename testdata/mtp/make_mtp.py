#!/usr/bin/env python3
"""Make the vectors of heads that guess one token further (MTP): tensors beside a folder of ../golden, and logits.

    pip install torch transformers==5.24.0 safetensors
    python make_mtp.py GOLDEN_DIR OUT_DIR [FAMILY ...]

OUT_DIR/FAMILY/head.safetensors has the head's tensors under the names of published checkpoints, in bfloat16 and with
random numbers; OUT_DIR/FAMILY/vectors.safetensors has, in float32 on a CPU:
    ids               [T + 1]    int64    the beginning of the folder's prompt; the last token is the one after it
    logits            [T, V]     float32  of the head, for the hidden state of token i and the embedding of token i + 1
    chain             [N]        int64    its best guess after ids, and those by its own hidden states
    chain_logits      [N, V]     float32  the logits that each of them is the best of
The model's hidden states, the head's frame (MtpLayer) and its block are the library's.
"""
import os, sys
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import MtpLayer

T, N = 40, 4
QWEN = dict(enorm="pre_fc_norm_embedding", hnorm="pre_fc_norm_hidden", eh_proj="fc", post_norm="norm")
DEEPSEEK = dict(enorm="enorm", hnorm="hnorm", eh_proj="eh_proj", post_norm="shared_head.norm")
# Of each: names, layer whose kind the block has, experts one by one as published, embedding and head of its own.
FAMILIES = {
    "qwen3_next": (QWEN, 3, True, False),
    "qwen3_5": (QWEN, 3, False, False),
    "qwen3_5_moe": (QWEN, 3, False, False),
    "deepseek_v3": (DEEPSEEK, 3, True, True),
}


def randomize(module, g):
    """Every parameter matters, and is exact in bfloat16."""
    for key, p in [*module.named_parameters(), *module.named_buffers()]:
        if p.ndim <= 1:
            p.add_(torch.randn(p.shape, generator=g) * 0.1)
        else:
            p.copy_(torch.randn(p.shape, generator=g) * (1.2 / p.shape[-1] ** 0.5))
        p.copy_(p.to(torch.bfloat16).float())


def published(layer, names, layers, one_by_one):
    """The tensors of the head under the names of published checkpoints."""
    top, block = ("mtp.", "mtp.layers.0.") if names is QWEN else (f"model.layers.{layers}.",) * 2
    out = {}
    for key, p in layer.state_dict().items():
        first, rest = key.split(".", 1)
        if first != "mtp_block":
            out[f"{top}{names[first]}.{rest}"] = p
        elif one_by_one and "experts." in rest and p.ndim == 3:
            place, kind = rest.rsplit(".", 1)
            for i, expert in enumerate(p):
                parts = expert.chunk(2) if kind == "gate_up_proj" else [expert]
                for name, part in zip(["gate_proj", "up_proj"] if len(parts) == 2 else [kind], parts):
                    out[f"{block}{place}.{i}.{name}.weight"] = part
        else:
            out[block + rest] = p
    return out


@torch.no_grad()
def make(family, golden, out_dir):
    names, kind, one_by_one, own = FAMILIES[family]
    model = AutoModelForCausalLM.from_pretrained(os.path.join(golden, family), dtype=torch.float32,
                                                 attn_implementation="eager").eval()
    base, config = model.model, model.config
    norm = type(base.norm)
    layer = MtpLayer(config, type(base.layers[kind]), norm, kind).float().eval()
    g = torch.Generator().manual_seed(29)
    randomize(layer, g)
    tensors = published(layer, names, config.num_hidden_layers, one_by_one)
    embedding, head = base.embed_tokens.weight, model.lm_head.weight
    if own:
        embedding, head = (torch.randn(w.shape, generator=g).mul(s).to(torch.bfloat16).float()
                           for w, s in ((embedding, 1.0), (head, 1.2 / config.hidden_size ** 0.5)))
        at = f"model.layers.{config.num_hidden_layers}"
        tensors |= {f"{at}.embed_tokens.weight": embedding, f"{at}.shared_head.head.weight": head}

    def run(ids, hidden):
        """Of tokens and the hidden states before them: the head's own hidden states. Positions are the tokens'."""
        positions = torch.arange(1, ids.shape[1] + 1)[None]
        x = torch.nn.functional.embedding(ids, embedding)
        mask = create_causal_mask(config=config, inputs_embeds=x, attention_mask=None, cache=None, position_ids=None)
        return layer(x, hidden, base.rotary_emb(x, positions), mask, positions, None)

    vectors = load_file(os.path.join(golden, family, "golden.safetensors"))
    ids = vectors["prompt"][None, :T + 1]
    hidden = base(ids[:, :T], use_cache=False).last_hidden_state
    own_hidden = run(ids[:, 1:], hidden)
    logits = (own_hidden @ head.T)[0]
    chain, chain_logits = [], []
    after = ids[:, 1:]
    for _ in range(N):
        last = (own_hidden @ head.T)[0, -1]
        chain_logits.append(last)
        chain.append(last.argmax())
        after = torch.cat([after, chain[-1][None, None]], dim=1)
        hidden = torch.cat([hidden, own_hidden[:, -1:]], dim=1)
        own_hidden = run(after, hidden)
    folder = os.path.join(out_dir, family)
    os.makedirs(folder, exist_ok=True)
    save_file({k: v.to(torch.bfloat16).contiguous() for k, v in tensors.items()}, os.path.join(folder, "head.safetensors"))
    save_file(dict(ids=ids[0].contiguous(), logits=logits.contiguous(), chain=torch.stack(chain),
                   chain_logits=torch.stack(chain_logits)), os.path.join(folder, "vectors.safetensors"))
    print(f"{family}: |logits| {logits.abs().mean():.2f}, chain {[int(c) for c in chain]}")


for family in sys.argv[3:] or FAMILIES:
    make(family, sys.argv[1], sys.argv[2])
