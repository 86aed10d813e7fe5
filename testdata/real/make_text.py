"""Makes tokenizers.json and templates.json with transformers: MODELS_DIR, which `cargo xtask fetch` fills, and OUT_DIR.

tokenizers.json: texts, their ids by each tokenizer (with special tokens, and as plain data where that differs), and
runs of ids with the text they decode to. Ids of long texts are given by their count and hash.
templates.json: conversations, and for each chat template the hash of each conversation's text; null where the
template refuses it, false where it breaks on it, in which case another program may do better. A hash is FNV-1a of 64 bits, its halves xored; of ids, over their four bytes each, lowest first.
"""
import datetime, json, pathlib, random, sys

import jinja2
import transformers
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

MODELS, OUT = pathlib.Path(sys.argv[1]) / "text", pathlib.Path(sys.argv[2])
NOW = datetime.datetime(2026, 1, 2, 3, 4, 5)


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return f"{value >> 32 ^ value & 0xFFFFFFFF:08x}"


def brief(ids):
    if len(ids) <= 48:
        return ids
    return {"count": len(ids), "hash": fnv(b"".join(i.to_bytes(4, "little") for i in ids))}


TEXTS = [
    "", " ", "  ", "\n", "\n\n", "\r\n", "\t", " \n ", "\n \n", "a", " a", "a ", "Hello, world!", "Hello world ",
    "   leading", "trailing   ", "a  b   c    d     e", "tabs\tand\t\ttabs", "line\nline\n\nline\n\n\nline",
    "dos\r\nlines\r\n\r\n", "\u00a0non-breaking\u00a0space", "\u2003em\u2003space", "\u3000全角\u3000空白", "a\u200bb\u200cc\u200dd",
    "\ufeffbyte order mark", "soft\u00adhyphen", "\u2028line\u2029paragraph", "\x00\x01\x02\x7f\x80\x9f", "\x1b[31mred\x1b[0m",
    "I'm you're we've they'll he'd it's don't", "I'M YOU'RE WE'VE THEY'LL HE'D IT'S", "l'été qu'il d'accord ’s ’t ’re", "'''s't're",
    "0", "1", "12", "123", "1234", "12345", "1234567890", "3.14159", "1,234,567.89", "-1e-10", "0x1F", "0b1010", "2026-11-29T18:00:00Z",
    "١٢٣٤٥٦٧٨٩٠", "१२३४५", "１２３４", "½ ¾ ⅓ ² ³ ₁₂", "Ⅷ Ⅻ ⅷ", "一二三四五六七八九十", "1a2b3c", "v1.2.3-rc4+build5",
    "été naïve façade Ærøskøbing", "e\u0301te\u0301 nai\u0308ve", "Å \u212b A\u030a", "ﬁ ﬂ ﬃ", "ẞ ß ſ", "İ i̇ ı I", "Ǆ ǅ ǆ",
    "Z̸̡̢̛a̵̢̛l̷̨̛g̶̡̛o̸̧̕", "\u0301leading mark", "a\u0301\u0302\u0303\u0304\u0305", "\u1e9b\u0323", "\u0344", "각 가 힣", "한국어 문장입니다.",
    "日本語の文章です。カタカナとひらがな。", "漢字かな交じり文、ＡＢＣ１２３。", "中文分词测试，加拿大、新加坡和人力资源。", "全心全意为人民服务，兢兢业业。",
    "繁體中文與简体中文", "𠀀𠮷𡃁 rare ideographs", "ไทยไม่มีช่องว่าง", "ພາສາລາວ", "မြန်မာဘာသာ", "ភាសាខ្មែរ", "བོད་སྐད", "हिन्दी में वाक्य", "क्षत्रिय ज्ञान",
    "தமிழ் மொழி", "తెలుగు", "ಕನ್ನಡ", "മലയാളം", "বাংলা ভাষা", "ગુજરાતી", "ਪੰਜਾਬੀ", "සිංහල", "አማርኛ", "Ελληνικά ΐΰ", "Русский язык, ёлка", "Українська ґанок",
    "العربية من اليمين إلى اليسار", "שלום עולם", "فارسی با نیم‌فاصله", "اردو زبان", "\u202bRTL\u202c mixed \u200fmarks\u200e", "مَرْحَبًا بِالعَالَم", "שָׁלוֹם",
    "ქართული", "Հայերեն", "ᚠᚢᚦᚨᚱᚲ", "𓀀𓁐𓂀", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝒸𝓊𝓇𝓈𝒾𝓋𝑒", "𐍈𐌰𐌹𐌻𐌰", "Tiếng Việt có dấu", "Türkçe İstanbul'da", "Íslenska þetta",
    "🙂", "😀😃😄😁", "👍🏽 👩🏿", "👨‍👩‍👧‍👦", "🏳️‍🌈 🏴‍☠️", "🇩🇪🇯🇵🇧🇷", "❤️ ❤ ☺️", "1️⃣2️⃣#️⃣", "👩‍❤️‍💋‍👨", "🧑🏻‍🤝‍🧑🏿", "a🙂b 🙂 c🙂", "🙂\u200d", "🫠🫡🪿", "\U000e0067\U000e007f tags",
    "∑ ∫ ∂ √ ∞ ≠ ≤ ⊂ ⊕", "→ ← ⇒ ⟶", "«guillemets» „quotes“ ‚single‘", "— – ‐ ‑ ‒ ―", "…...‥", "© ® ™ € £ ¥ ₿ ₹", "┌─┐│└┘█▓▒░", "\ufffd replacement", "\ufffe\uffff",
    "!!!???", "...,,,;;;:::", "()[]{}<>", "a.b.c.d", "foo_bar_baz", "fooBarBazQUX", "FOO_BAR", "kebab-case-name", "@user #tag $VAR %d &amp; *bold*",
    "http://example.com/path?query=1&b=%20#frag", "user.name+tag@example.co.uk", "C:\\Users\\name\\file.txt", "/usr/local/bin:/bin", "`code` ```block```", "~~strike~~ **bold** __under__",
    "def f(x):\n    if x > 0:\n        return x ** 2\n    else:\n\t\treturn None\n", "for (int i = 0; i < n; ++i) { sum += a[i]; } // done\n",
    "fn main() -> Result<(), Box<dyn Error>> {\n    println!(\"{:?}\", vec![1, 2]);\n    Ok(())\n}\n", "SELECT * FROM t WHERE a >= 10 AND b LIKE '%x%';",
    "<!DOCTYPE html>\n<html><body class=\"x\">&nbsp;</body></html>", "{\"key\": [1, 2.5, null, true], \"nested\": {\"a\": \"\\u00e9\\n\"}}", "x = y if z else w  # comment",
    "#include <stdio.h>\n#define MAX(a,b) ((a)>(b)?(a):(b))\n", "let re = /^\\s*[a-z]+\\d{2,}$/gi;", "\\begin{equation}\\frac{a}{b} = \\sqrt{x^2}\\end{equation}", "$ sudo rm -rf / --no-preserve-root 2>&1 | tee log",
    "key:\n  - item: 1\n    other: |\n      text\n", "diff --git a/x b/x\n@@ -1,2 +1,2 @@\n-old\n+new\n", "AGCTTAGCTAGGCTA", "dGhpcyBpcyBiYXNlNjQ=", "550e8400-e29b-41d4-a716-446655440000",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", "<|endoftext|>", "a<|im_end|>b", "<|im_end", "<|im_end|", "<|im_end|><|im_end|>", " <|im_end|> ", "<|im_start|><|im_start",
    "<think>hm</think>", "<tool_call>\n{\"name\": \"f\"}\n</tool_call>", "<tool_response>x</tool_response>", "<|vision_start|><|image_pad|><|vision_end|>", "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
    "<｜begin▁of▁sentence｜>", "<｜begin▁of▁sentence｜>Hi", "<｜User｜>Hi<｜Assistant｜></think>", "<｜end▁of▁sentence｜>", "<｜tool▁calls▁begin｜>x<｜tool▁calls▁end｜>", "<｜User｜", "｜User｜", "<｜place▁holder▁no▁0｜>", "▁▁", "<|User|>",
    "<|begin_of_text|><|eot_id|>", "<s></s><unk><pad>", "[INST] x [/INST]", "<start_of_turn>user<end_of_turn>", "<0x0A><0xFF>", "Ġhello Ċ Ã©", "ĠĠĠ", "[UNK] [MASK]",
    "The quick brown fox jumps over the lazy dog. " * 3, "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft",
    "pneumonoultramicroscopicsilicovolcanoconiosis", "antidisestablishmentarianism" * 8,
]
LONG = [("a", 5000), (" ", 3000), ("\n", 2000), ("ab", 3000), ("0123456789", 300), ("🙂", 800), ("中文", 1500), ("é", 2000), ("e\u0301", 1500), ("!?", 1500), (" a", 2000), ("\t\n", 800), ("<|im_end|>", 200), ("x\n\n  y", 400), ("क्ष", 600), ("\u0301", 700)]
ALPHABETS = ["abcdefghij ABC .,'\n", "  \t\n\r\u00a0ab", "0123456789.,-+ e", "中文字的 是。，a1\u3040ん", "éàüñ e\u0301a\u0308\u0323'ß", "🙂👍🏽\u200d❤\ufe0f👩🇩🇪 a", "שלאב مرح\u0651\u064e ,.1", "{}[]()<>=+-*/_\"'\\;:#@!&|^~`$% \nab1", "<|>im_startend▁｜ \n"]


def texts():
    draw = random.Random(1)
    found = list(TEXTS)
    for alphabet in ALPHABETS:
        found += ["".join(draw.choice(alphabet) for _ in range(draw.randint(1, 40))) for _ in range(12)]
    found += ["".join(chr(c) for c in (draw.randrange(0x20, 0x2FFFF) for _ in range(12)) if not 0xD800 <= c < 0xE000) for _ in range(24)]
    return list(dict.fromkeys(found))


def tokenizers():
    names = {"qwen3.6": {"eos_token": "<|im_end|>"}, "deepseek-v4": {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"}}
    every, out, draw = texts(), {"texts": [], "long": LONG, "tokenizers": {}}, random.Random(2)
    out["texts"] = every
    for name, tokens in names.items():
        tok = PreTrainedTokenizerFast(tokenizer_file=str(MODELS / name / "tokenizer.json"), clean_up_tokenization_spaces=False, **tokens)
        inner = tok.backend_tokenizer

        def ids(text, data):
            inner.encode_special_tokens = data
            return inner.encode(text, add_special_tokens=not data).ids

        rows = []
        for text in every + [unit * times for unit, times in LONG]:
            special, data = ids(text, False), ids(text, True)
            rows.append([brief(special)] if special == data else [brief(special), brief(data)])
        runs, size = [], len(tok)
        bytes_only = [i for i in range(size) if len(tok.convert_ids_to_tokens(i) or "xx") == 1]
        added = sorted(tok.added_tokens_decoder)
        for i in range(60):
            pool = [range(size), bytes_only, bytes_only + added[:6] * 4][i % 3]
            run = [draw.choice(pool) for _ in range(draw.randint(1, 24))]
            runs.append([run, tok.decode(run, skip_special_tokens=False), tok.decode(run, skip_special_tokens=True)])
        out["tokenizers"][name] = {"ids": rows, "decoded": runs}
    return out


TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather of a \"city\" <now> & later, 日本.", "parameters": {
        "type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "The city"},
            "unit": {"type": "string", "enum": ["C", "F"]},
            "days": {"type": "integer", "default": 3},
            "at": {"type": "array", "items": {"type": "number"}}}}}},
    {"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}}},
]
USER = {"role": "user", "content": "What's the weather in Zürich & 東京? <b>\"quoted\"</b>\n"}
SYSTEM = {"role": "system", "content": "  Be brief.\n"}
ANSWER = {"role": "assistant", "content": " It is sunny.\n\n"}


def call(arguments):
    return {"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}


ARGUMENTS = {"city": "Zürich", "days": 2, "at": [1.5, 2], "unit": None, "deep": {"a": True, "b": "<x>'\""}}
RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": "{\"temp\": 21.5}"}
CASES = [
    {"messages": [USER]},
    {"messages": [USER], "add_generation_prompt": False},
    {"messages": [SYSTEM, USER]},
    {"messages": [SYSTEM, USER, ANSWER, {"role": "user", "content": "Thanks"}]},
    {"messages": [USER, ANSWER], "add_generation_prompt": False},
    {"messages": [USER, {**ANSWER, "reasoning_content": "Hm.\nLet me see."}, {"role": "user", "content": "And?"}]},
    {"messages": [USER, {**ANSWER, "content": "<think>\nHm.\n</think>\n\nSunny."}, {"role": "user", "content": "And?"}]},
    {"messages": [USER], "extra": {"enable_thinking": False, "thinking": False}},
    {"messages": [SYSTEM, USER], "extra": {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}},
    {"messages": [USER], "tools": TOOLS},
    {"messages": [SYSTEM, USER], "tools": TOOLS, "extra": {"enable_thinking": False, "thinking": False}},
    {"messages": [SYSTEM, USER, {"role": "assistant", "content": "", "tool_calls": [call(ARGUMENTS)]}, RESULT], "tools": TOOLS},
    {"messages": [USER, {"role": "assistant", "content": "Let me look.", "reasoning_content": "I need the tool.", "tool_calls": [call({"city": "Bern"}), call({})]}, RESULT, RESULT, ANSWER, {"role": "user", "content": "ok"}], "tools": TOOLS[:1]},
    {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [call("{\"city\": \"Bern\", \"n\": 1}")]}, RESULT], "tools": TOOLS},
    {"messages": [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}, {"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": " two"}]}]},
    {"messages": [USER, {"role": "user", "content": "again"}]},
    {"messages": [{"role": "developer", "content": "Be exact."}, USER]},
    {"messages": []},
]


# These mark text as safe, and the library then escapes all that is added to it for HTML, which nobody meant.
ESCAPED = {"meetkai-functionary-medium-v3.1", "SvalTek-Q3-CharThink-9B-temp"}


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def render(source, case):
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    chat = chat_template_utils._normalize_chat_messages(case["messages"])
    text, _ = chat_template_utils.render_jinja_template(
        [chat], tools=case.get("tools"), chat_template=source,
        add_generation_prompt=case.get("add_generation_prompt", True), **tokens, **case.get("extra", {}))
    return text[0]


def templates():
    chat_template_utils.datetime = Clock
    sources = json.loads((MODELS / "templates.json").read_text())
    whole, hashes = {}, {}
    for name, source in sources.items():
        if name in ESCAPED:
            continue
        texts = []
        for case in CASES:
            try:
                texts.append(render(source, case))
            except Exception as error:
                # What `raise_exception` raises is of this very type.
                texts.append(None if type(error) is jinja2.TemplateError else False)
                whole[f"{name} {len(texts) - 1} error"] = repr(error)
        whole[name] = texts
        hashes[name] = [fnv(text.encode()) if isinstance(text, str) else text for text in texts]
    return {"clock": 1767323045, "cases": CASES, "templates": hashes}, whole


def write(path, value):
    rows = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    path.write_text(rows.replace('],"', '],\n"') + "\n")


assert transformers.__version__ == "5.24.0", transformers.__version__
write(OUT / "tokenizers.json", tokenizers())
compact, whole = templates()
write(OUT / "templates.json", compact)
if len(sys.argv) > 3:
    # For people: the texts behind the hashes.
    pathlib.Path(sys.argv[3]).write_text(json.dumps(whole, ensure_ascii=False))
