//! BPE from the vocabulary of a GGUF file: byte-level (`tokenizer.ggml.model` = `gpt2`), or over characters with spaces
//! written as SentencePiece does (`gemma4`).
//!
//! Owns the table of pre-tokenizers by their GGUF name. Refuses names that it does not know: a
//! wrong cut would give plausible nonsense.

use tokenizers::models::bpe::{BPE, BpeBuilder, Vocab};
use tokenizers::normalizers::replace::Replace;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, PreTokenizerWrapper, SplitDelimiterBehavior};

use super::hf::{Pipeline, guarded};
use super::tokenizer::{Encoder, Frame, Tokenizer};
use super::vocab::{
    GgufVocab, TYPE_BYTE, TYPE_CONTROL, TYPE_UNKNOWN, TYPE_USER, TokenTable, byte_level_bytes,
    byte_token,
};
use crate::{Error, Result};

/// How spaces are written where tokens are no bytes.
const SPACE: &str = "▁";

/// One way to cut text before merging.
struct Pre {
    /// Values of `tokenizer.ggml.pre` that mean it.
    names: &'static [&'static str],
    /// Patterns applied one after the other; what they match and what lies between are pieces.
    splits: &'static [&'static str],
    /// A piece that is a token as a whole is not merged anew.
    ignore_merges: bool,
    /// Whether a beginning token is added where the file does not say.
    add_bos: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const QWEN35: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const DEEPSEEK3: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"##,
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const GPT4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// Chinese first, then as gpt-4o but without it.
const KIMI_K2: &str = concat!(
    r"\p{Han}+|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const SEED_CODER: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|",
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

const PRES: &[Pre] = &[
    Pre {
        names: &["default"],
        splits: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
        ignore_merges: false,
        add_bos: false,
    },
    Pre {
        names: &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "gigachat",
            "mellum",
            "modern-bert",
            "granite-docling",
            "a.x-4.0",
            "exaone4",
        ],
        splits: &[GPT2],
        ignore_merges: false,
        add_bos: false,
    },
    Pre {
        names: &[
            "starcoder",
            "refact",
            "smollm",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        splits: &[r"\p{N}", GPT2],
        ignore_merges: false,
        add_bos: false,
    },
    Pre {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "lfm2",
            "midm-2.0",
        ],
        splits: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
    },
    Pre {
        names: &["dbrx", "smaug-bpe", "chatglm-bpe"],
        splits: &[LLAMA3],
        ignore_merges: false,
        add_bos: false,
    },
    Pre { names: &["glm4", "glm5"], splits: &[LLAMA3], ignore_merges: true, add_bos: false },
    Pre {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "megrez",
            "kormo",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
            "f2llmv2",
        ],
        splits: &[QWEN2],
        ignore_merges: false,
        add_bos: false,
    },
    Pre { names: &["qwen35"], splits: &[QWEN35], ignore_merges: false, add_bos: false },
    Pre {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        splits: &[r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3],
        ignore_merges: false,
        add_bos: false,
    },
    Pre {
        names: &["falcon"],
        splits: &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"],
        ignore_merges: false,
        add_bos: false,
    },
    Pre {
        names: &["gpt-4o", "llama4", "minimax-m2", "kanana2", "talkie"],
        splits: &[GPT4O],
        ignore_merges: false,
        add_bos: false,
    },
    Pre { names: &["kimi-k2"], splits: &[KIMI_K2], ignore_merges: false, add_bos: false },
    Pre { names: &["seed-coder"], splits: &[SEED_CODER], ignore_merges: false, add_bos: false },
    Pre { names: &["tekken"], splits: &[TEKKEN], ignore_merges: true, add_bos: true },
];

/// Finds a pre-tokenizer; a file that names none gets `default`.
fn pre(name: Option<&str>) -> Result<&'static Pre> {
    let name = name.unwrap_or("default");
    PRES.iter().find(|pre| pre.names.contains(&name)).ok_or_else(|| {
        let known: Vec<&str> = PRES.iter().flat_map(|pre| pre.names).copied().collect();
        Error::unsupported(format!("unknown pre-tokenizer `{name}`")).at("tokenizer.ggml.pre").hint(
            format!(
                "name a folder with the file and the model's tokenizer.json; known here: {}",
                known.join(", ")
            ),
        )
    })
}

/// Builds the tokenizer; the lengths of the arrays are checked already.
pub(super) fn build(vocab: &GgufVocab) -> Result<Tokenizer> {
    let pre = pre(vocab.pre.as_deref())?;
    let mut inner = tokenizers::Tokenizer::new(model(vocab, pre.ignore_merges)?);
    inner.with_pre_tokenizer(Some(cutter(pre)?));
    let added = added_tokens(vocab);
    guarded("adding special tokens", || {
        inner.add_tokens(&added);
        Ok(())
    })?;

    let mut frame = Frame { bos: vocab.bos, eos: vocab.eos, ..Frame::default() };
    let add_bos = vocab.add_bos.or((pre.add_bos && vocab.bos.is_some()).then_some(true));
    frame.set(add_bos, vocab.add_eos)?;
    let encoder = Encoder::Pipeline(Box::new(Pipeline::new(inner)));
    Ok(Tokenizer { encoder, table: token_table(vocab)?, frame, drops_first_space: false })
}

/// Builds the tokenizer of BPE over characters: a space is `▁`, a character without a token is its bytes.
pub(super) fn build_spaced(vocab: &GgufVocab) -> Result<Tokenizer> {
    let unknown = vocab.unk.and_then(|id| vocab.tokens.get(id as usize)).cloned();
    let builder = merged(vocab)?.byte_fallback(true).fuse_unk(true);
    let builder = match unknown {
        Some(text) => builder.unk_token(text),
        None => builder,
    };
    let model = guarded("building the merges", || builder.build())?;
    let mut inner = tokenizers::Tokenizer::new(model);
    let spaces = guarded("compiling a normalizer", || Replace::new(" ", SPACE))?;
    inner.with_normalizer(Some(spaces));
    let added = added_tokens(vocab);
    guarded("adding special tokens", || {
        inner.add_tokens(&added);
        Ok(())
    })?;
    let mut frame = Frame { bos: vocab.bos, eos: vocab.eos, ..Frame::default() };
    frame.set(vocab.add_bos.or(vocab.bos.map(|_| true)), vocab.add_eos)?;
    let mut table = TokenTable::default();
    for (id, text) in vocab.tokens.iter().enumerate() {
        let special = vocab.is_special(id);
        match byte_token(text).filter(|_| vocab.kind(id) == TYPE_BYTE) {
            Some(byte) => table.push(&[byte], special)?,
            None if special => table.push(text.as_bytes(), true)?,
            None => table.push(text.replace(SPACE, " ").as_bytes(), false)?,
        }
    }
    let encoder = Encoder::Pipeline(Box::new(Pipeline::new(inner)));
    Ok(Tokenizer { encoder, table, frame, drops_first_space: false })
}

fn model(vocab: &GgufVocab, ignore_merges: bool) -> Result<BPE> {
    let builder = merged(vocab)?.ignore_merges(ignore_merges);
    guarded("building the merges", || builder.build())
}

fn merged(vocab: &GgufVocab) -> Result<BpeBuilder> {
    let ids: Vocab = (0u32..).zip(&vocab.tokens).map(|(id, text)| (text.clone(), id)).collect();
    let mut merges = Vec::with_capacity(vocab.merges.len());
    for (rank, merge) in vocab.merges.iter().enumerate() {
        // A token may start with a space: the cut is the first space after its first character.
        let second = merge.chars().next().map_or(0, char::len_utf8);
        let cut = merge[second..].find(' ').map(|at| second + at);
        let pair = cut.map(|cut| (merge[..cut].to_owned(), merge[cut + 1..].to_owned()));
        let known = pair.filter(|(left, right)| {
            [left, right, &format!("{left}{right}")].iter().all(|&text| ids.contains_key(text))
        });
        merges.push(known.ok_or_else(|| {
            Error::file(format!("merge {rank} `{merge}` is no pair of tokens that make a token"))
                .at("tokenizer.ggml.merges")
        })?);
    }
    Ok(BPE::builder().vocab_and_merges(ids, merges))
}

fn cutter(pre: &Pre) -> Result<PreTokenizerWrapper> {
    let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
    for &pattern in pre.splits {
        let split = guarded("compiling a pre-tokenizer", || {
            let pattern = SplitPattern::Regex(pattern.to_owned());
            Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
        })?;
        steps.push(split.into());
    }
    steps.push(ByteLevel::new(false, false, false).into());
    Ok(Sequence::new(steps).into())
}

/// Tokens that are found in the text before it is cut.
fn added_tokens(vocab: &GgufVocab) -> Vec<AddedToken> {
    let added = vocab.tokens.iter().enumerate().filter(|(id, _)| {
        vocab.is_special(*id) || matches!(vocab.kind(*id), TYPE_UNKNOWN | TYPE_CONTROL | TYPE_USER)
    });
    added
        .map(|(id, text)| AddedToken::from(text.as_str(), vocab.is_special(id)).normalized(false))
        .collect()
}

fn token_table(vocab: &GgufVocab) -> Result<TokenTable> {
    let mut table = TokenTable::default();
    for (id, text) in vocab.tokens.iter().enumerate() {
        let special = vocab.is_special(id);
        let raw = special || vocab.kind(id) == TYPE_USER;
        let mapped = if raw { None } else { byte_level_bytes(text) };
        table.push(mapped.as_deref().unwrap_or(text.as_bytes()), special)?;
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pieces of `text` under a pre-tokenizer, byte-level alphabet undone.
    fn pieces(name: &str, text: &str) -> Vec<String> {
        use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};
        let mut cut = PreTokenizedString::from(text);
        cutter(pre(Some(name)).unwrap()).unwrap().pre_tokenize(&mut cut).unwrap();
        cut.get_splits(OffsetReferential::Normalized, OffsetType::None)
            .iter()
            .map(|split| String::from_utf8(byte_level_bytes(split.0).unwrap()).unwrap())
            .collect()
    }

    #[test]
    fn families_cut_as_their_models_were_trained() {
        let text = "I'M it's 12345  x\n\n a!?";
        let cases: &[(&str, &[&str])] = &[
            ("gpt-2", &["I", "'", "M", " it", "'s", " 12345", " ", " x", "\n\n", " a", "!?"]),
            (
                "smollm",
                &[
                    "I", "'", "M", " it", "'s", " ", "1", "2", "3", "4", "5", " ", " x", "\n\n",
                    " a", "!?",
                ],
            ),
            (
                "llama-bpe",
                &["I", "'M", " it", "'s", " ", "123", "45", " ", " x", "\n\n", " a", "!?"],
            ),
            (
                "qwen2",
                &[
                    "I", "'M", " it", "'s", " ", "1", "2", "3", "4", "5", " ", " x", "\n\n", " a",
                    "!?",
                ],
            ),
            (
                "deepseek-v3",
                &["I", "'M", " it", "'s", " ", "123", "45", " ", " x", "\n\n", " a", "!?"],
            ),
            ("gpt-4o", &["I'M", " it's", " ", "123", "45", " ", " x", "\n\n", " a", "!?"]),
            (
                "default",
                &["I", "'", "M", " it", "'", "s", " ", "123", "45", " ", " x", "\n\n", " a", "!?"],
            ),
        ];
        for (name, wanted) in cases {
            assert_eq!(pieces(name, text), *wanted, "{name}");
        }
        assert_eq!(
            pieces("tekken", "FooBar'll BAZ/\nx"),
            ["Foo", "Bar", "'ll", " BAZ", "/\n", "x"]
        );
        assert_eq!(
            pieces("kimi-k2", "Ab漢字c 1234'LL"),
            ["Ab", "漢字", "c", " ", "123", "4", "'LL"]
        );
        assert_eq!(pieces("gpt-4o", "Ab漢字c"), ["Ab漢字c"]);
        assert_eq!(pieces("seed-coder", "a!\n\n12"), ["a", "!", "\n\n", "1", "2"]);
        assert_eq!(pieces("qwen2", "a!\n\n12"), ["a", "!\n\n", "1", "2"]);
        assert_eq!(pieces("qwen2", "e\u{301}!"), ["e", "\u{301}!"]);
        assert_eq!(pieces("qwen35", "e\u{301}!"), ["e\u{301}", "!"]);
    }

    #[test]
    fn characters_merge_with_spaces_written_out() {
        let tokens =
            ["<unk>", "<bos>", "▁", "a", "b", "ab", "▁ab", "\n", "<0xC3>", "<0xA9>", "<t>"];
        let vocab = GgufVocab {
            model: "gemma4".into(),
            tokens: tokens.map(String::from).into(),
            types: vec![2, 3, 1, 1, 1, 1, 1, 1, 6, 6, 4],
            merges: vec!["a b".into(), "▁ ab".into()],
            bos: Some(1),
            unk: Some(0),
            ..GgufVocab::default()
        };
        let tokenizer = Tokenizer::from_gguf(&vocab).unwrap();
        let ids = tokenizer.encode("ab ab\n é<t>", true).unwrap();
        assert_eq!(ids, [1, 5, 6, 7, 2, 8, 9, 10]);
        assert_eq!(tokenizer.decode(&ids, true), "ab ab\n é<t>");
        assert_eq!(tokenizer.encode("ß", false).unwrap(), [0]);
        assert!(!tokenizer.encode("<bos>", false).unwrap().contains(&1));
    }

    #[test]
    fn every_pattern_compiles_and_keeps_the_text() {
        let text = "Ünï 漢字かな \t\r\n 0123４５ 🙂'LL don't\u{2028}x  ";
        for name in PRES.iter().flat_map(|pre| pre.names) {
            assert_eq!(pieces(name, text).concat(), text, "{name}");
        }
        let error = pre(Some("nonesuch")).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("`nonesuch`") && error.contains("qwen35"), "{error}");
    }
}
