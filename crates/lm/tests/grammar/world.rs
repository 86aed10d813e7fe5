//! Vocabularies, and models that say anything.

use std::sync::{Arc, LazyLock};

use longrun_lm::engine::Mask;
use longrun_lm::grammar::{Grammar, GrammarFactory};
use longrun_lm::sample::{Sampler, SamplingParams};
use longrun_lm::text::{GgufVocab, Tokenizer};

use crate::answers::Random;

/// A vocabulary with its grammars.
pub(crate) struct World {
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) grammars: GrammarFactory,
    pub(crate) size: usize,
    /// The ids that end a text.
    pub(crate) ends: Vec<u32>,
    /// How much models like each id.
    likes: Vec<f32>,
}

impl World {
    pub(crate) fn new(tokenizer: Tokenizer, size: usize, ends: &[u32]) -> Self {
        let tokenizer = Arc::new(tokenizer);
        let grammars = GrammarFactory::new(tokenizer.clone(), size, ends);
        let closes = |b: &&u8| b"\"]}".contains(b);
        let like = |id: u32| match tokenizer.token_bytes(id) {
            _ if ends.contains(&id) => 6.0,
            Some(bytes) => 2.0 * bytes.iter().filter(closes).take(3).count() as f32,
            None => 0.0,
        };
        let likes = (0..size as u32).map(like).collect();
        Self { tokenizer, grammars, size, ends: ends.to_vec(), likes }
    }

    pub(crate) fn mask(&self, grammar: &Grammar) -> Mask {
        self.grammars.compile(grammar).unwrap_or_else(|e| panic!("{grammar:?}: {e}")).mask()
    }

    /// The bytes of ids, without those that end a text.
    pub(crate) fn text(&self, ids: &[u32]) -> String {
        let ids: Vec<u32> = ids.iter().copied().filter(|id| !self.ends.contains(id)).collect();
        self.tokenizer.decode(&ids, false)
    }

    /// The ids of a text, without one that begins it.
    pub(crate) fn ids(&self, text: &str) -> Vec<u32> {
        let mut ids = self.tokenizer.encode(text, true).unwrap();
        let bos = self.tokenizer.bos();
        ids.drain(..usize::from(bos.is_some() && ids.first().copied() == bos));
        ids
    }

    /// Whether a mask lets this text be said, to its end.
    pub(crate) fn admits(&self, mask: &Mask, text: &str) -> bool {
        let mut mask = mask.clone();
        let said = self.ids(text).into_iter().all(|id| self.say(&mut mask, id));
        said && (mask.0.is_done() || self.ends.iter().any(|&id| self.say(&mut mask.clone(), id)))
    }

    /// Says one token if it is possible.
    pub(crate) fn say(&self, mask: &mut Mask, id: u32) -> bool {
        let mut logits = vec![0.0; self.size];
        let possible = mask.0.apply(&mut logits).is_ok() && logits[id as usize] == 0.0;
        possible && mask.0.accept(id).is_ok()
    }

    /// What a model says that likes any token, and those that close something best: its ids, and whether it has come to
    /// an end of its own.
    pub(crate) fn walk(&self, mask: &mut Mask, seed: u64, most: usize) -> (Vec<u32>, bool) {
        let params = SamplingParams { temperature: 1.0, seed: Some(seed), ..Default::default() };
        let mut sampler = Sampler::new(params, self.size).unwrap();
        let (history, mut ids) = (sampler.history(), Vec::new());
        let mut random = Random(seed);
        for position in 0..most {
            let mut logits = self.likes.clone();
            logits.iter_mut().for_each(|l| *l += random.below(4000) as f32 / 1000.0);
            mask.0.apply(&mut logits).unwrap();
            let id = sampler.sample(&mut logits, &history, position as u64).unwrap().id;
            mask.0.accept(id).unwrap();
            ids.push(id);
            if mask.0.is_done() || self.ends.contains(&id) {
                return (ids, true);
            }
        }
        (ids, false)
    }
}

/// The demo model's vocabulary: 3573 tokens of bytes, and logits for some more.
pub(crate) static DEMO: LazyLock<World> = LazyLock::new(|| {
    let file = include_bytes!("../../../../models/demo/tokenizer.json");
    let config = include_bytes!("../../../../models/demo/tokenizer_config.json");
    let config = serde_json::from_slice(config).unwrap();
    let tokenizer = Tokenizer::from_json(file, Some(&config)).unwrap();
    World::new(tokenizer, 3584, &[1])
});

/// What is special in [`small`].
pub(crate) const SPECIAL: [&str; 5] =
    ["<|end|>", "<tool_call>", "</tool_call>", "<think>", "</think>"];

/// A vocabulary of the tiny models' 160 ids: special tokens, ASCII, a line break, the bytes of one letter, and what JSON
/// and tags are made of.
pub(crate) fn small(ends: &[u32]) -> World {
    let mut tokens: Vec<String> = SPECIAL.map(String::from).to_vec();
    tokens.extend(
        (0x20..0x7f_u8).map(|b| if b == b' ' { "Ġ".into() } else { char::from(b).to_string() }),
    );
    tokens.extend(["Ċ", "Ã", "©"].map(String::from));
    let pieces = r#"{" "} ": ", "," ":" [" "] }, }] {} [] true false null name arguments Ġa ab abc 12 0. -1"#;
    tokens.extend(pieces.split(' ').map(String::from));
    tokens.extend((0..).map(|i| format!("z{i}")).take(160 - tokens.len()));
    let types = (0..160).map(|i| if i < SPECIAL.len() { 3 } else { 1 }).collect();
    let vocab = GgufVocab {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        tokens,
        types,
        ..GgufVocab::default()
    };
    World::new(Tokenizer::from_gguf(&vocab).unwrap(), 160, ends)
}
