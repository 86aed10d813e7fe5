//! Checks a checkpoint against reference vectors, in every way that tokens can be fed.
//!
//! Owns the comparison. A vector is a prompt with the logits that a reference computed for each of its tokens, and
//! perhaps its greedy continuation with the margin of each choice. All modes go through [`Executor::run`].

use longrun_array::{BLOCK, Device, Stored, Wanted};
use safetensors::{Dtype, SafeTensors};
use serde::Serialize;

use crate::cache::{Room, Sequence};
use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::executor::{Executor, Setup, Span};
use crate::weights::Source;

/// A greedy choice whose margin is below this may go either way.
pub const NEAR_TIE: f32 = 1e-3;

/// The largest difference allowed by default, relative to the largest logit, for keys and values of type `kv`. That of
/// f32 is the noise of sums. The others hold for models without experts and indexers, whose choices a rounding can turn
/// around; docs/families.md has what was measured.
pub const fn tolerance(kv: Stored) -> f32 {
    match kv {
        Stored::F32 => 1e-4,
        Stored::F16 => 1e-2,
        Stored::BF16 => 5e-2,
        Stored::Q8 => 2e-1,
        Stored::Q4 => 1.0,
    }
}

/// One prompt with what a reference says of it.
pub struct Vector {
    /// Its name in the file.
    pub name: String,
    /// The tokens.
    pub prompt: Vec<u32>,
    /// `[prompt, vocab]`
    pub logits: Vec<f32>,
    /// The greedy continuation, and the margin of each choice.
    pub greedy: Vec<(u32, f32)>,
}

/// How the tokens were fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// All at once.
    OnePass,
    /// Seven at a time.
    Chunks,
    /// One at a time.
    TokenByToken,
    /// In chunks, beside another row.
    Batched,
}

/// What came out for one vector in one mode.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The vector.
    pub vector: String,
    /// How it was fed.
    pub mode: Mode,
    /// Tokens of the prompt.
    pub tokens: usize,
    /// The largest difference of a logit.
    pub max_abs: f32,
    /// The same, relative to the largest logit.
    pub relative: f32,
    /// Positions whose best token is the reference's.
    pub argmax_agreement: f32,
    /// Greedy tokens that agree, up to the first near tie.
    pub greedy_agreed: usize,
    /// Greedy tokens up to the first near tie.
    pub greedy_compared: usize,
    /// The logits have the bits of the first mode.
    pub same_bits: bool,
}

impl Row {
    /// Whether the row is within `tolerance` (relative), with all compared tokens equal.
    pub fn passes(&self, tolerance: f32) -> bool {
        self.relative <= tolerance && self.greedy_agreed == self.greedy_compared
    }
}

/// Reads the vectors of a `golden.safetensors`: `prompt`, `logits`, `greedy`, `greedy_margin`, and the same with a
/// prefix such as `short_`.
///
/// # Errors
/// The file is damaged, or a tensor has the wrong type or shape.
pub fn read_vectors(bytes: &[u8]) -> Result<Vec<Vector>> {
    let file = SafeTensors::deserialize(bytes)
        .map_err(|e| Error::file(format!("not a safetensors file: {e}")))?;
    let mut vectors = Vec::new();
    for name in file.names() {
        let Some(prefix) = name.strip_suffix("prompt") else { continue };
        let prompt = ids(&file, name)?;
        let logits = floats(&file, &format!("{prefix}logits"))?;
        if prompt.is_empty() || !logits.len().is_multiple_of(prompt.len()) {
            let what = format!("{} logits for {} tokens", logits.len(), prompt.len());
            return Err(Error::file(what).at(format!("{prefix}logits")));
        }
        let greedy = format!("{prefix}greedy");
        let greedy = if file.tensor(&greedy).is_ok() {
            let margins = floats(&file, &format!("{greedy}_margin"))?;
            ids(&file, &greedy)?.into_iter().zip(margins).collect()
        } else {
            Vec::new()
        };
        let name = if prefix.is_empty() { "prompt" } else { prefix.trim_end_matches('_') };
        vectors.push(Vector { name: name.to_owned(), prompt, logits, greedy });
    }
    vectors.sort_by_key(|v| std::cmp::Reverse(v.prompt.len()));
    if vectors.is_empty() {
        return Err(Error::file("it has no tensor whose name ends in \"prompt\""));
    }
    Ok(vectors)
}

fn tensor<'a>(file: &SafeTensors<'a>, name: &str, dtype: Dtype) -> Result<&'a [u8]> {
    let t = file.tensor(name).map_err(|e| Error::file(e.to_string()).at(name))?;
    if t.dtype() != dtype {
        return Err(Error::file(format!("is {:?}, wants {dtype:?}", t.dtype())).at(name));
    }
    Ok(t.data())
}

fn ids(file: &SafeTensors<'_>, name: &str) -> Result<Vec<u32>> {
    let (words, _) = tensor(file, name, Dtype::I64)?.as_chunks::<8>();
    let id = |w: &[u8; 8]| {
        u32::try_from(i64::from_le_bytes(*w))
            .map_err(|_| Error::file("a token id that can't be").at(name))
    };
    words.iter().map(id).collect()
}

fn floats(file: &SafeTensors<'_>, name: &str) -> Result<Vec<f32>> {
    let (words, _) = tensor(file, name, Dtype::F32)?.as_chunks::<4>();
    Ok(words.iter().map(|w| f32::from_le_bytes(*w)).collect())
}

/// Runs every vector in every mode, with keys and values in f32.
///
/// # Errors
/// As [`check_stored`].
pub fn check(
    device: Box<dyn Device>,
    checkpoint: &Checkpoint,
    vectors: &[Vector],
) -> Result<Vec<Row>> {
    check_stored(device, checkpoint, vectors, Stored::F32)
}

/// Runs every vector in every mode, with keys and values of type `kv`.
///
/// # Errors
/// The model can't be loaded or run, or a vector has another vocabulary.
pub fn check_stored(
    device: Box<dyn Device>,
    checkpoint: &Checkpoint,
    vectors: &[Vector],
    kv: Stored,
) -> Result<Vec<Row>> {
    let config = Config::new(checkpoint.config())?;
    let longest = vectors.iter().map(|v| v.prompt.len() + v.greedy.len()).max().unwrap_or(1);
    let tokens = 2 * (longest + 1).next_multiple_of(BLOCK);
    let room = Room { rows: 2, context: longest + 1, tokens, chunk: 511, snapshots: 0, drafts: 0 };
    let setup = Setup { per_token: true, kv, ..Setup::new(room) };
    let source = Source::Checkpoint(checkpoint);
    let mut exec = Executor::new(device, &config, source, setup, &|_, _| {})?;
    let mut rows = Vec::new();
    for (i, vector) in vectors.iter().enumerate() {
        let (have, want) = (vector.logits.len() / vector.prompt.len(), config.vocab);
        if have != want {
            let what = format!("{have} logits a token, the model has {want}");
            return Err(Error::file(what).at(&vector.name));
        }
        if let Some(id) = vector.prompt.iter().find(|id| **id as usize >= want) {
            let what = format!("token {id} is outside of the vocabulary of {want}");
            return Err(Error::file(what).at(&vector.name));
        }
        let beside = &vectors[(i + 1) % vectors.len()].prompt;
        check_vector(&mut exec, vector, beside, near_tie(vector, kv), &mut rows)?;
    }
    Ok(rows)
}

fn check_vector(
    exec: &mut Executor,
    v: &Vector,
    beside: &[u32],
    near_tie: f32,
    rows: &mut Vec<Row>,
) -> Result<()> {
    let mut first: Option<Vec<f32>> = None;
    for mode in [Mode::OnePass, Mode::Chunks, Mode::TokenByToken, Mode::Batched] {
        let chunk = match mode {
            Mode::OnePass => 511,
            Mode::Chunks | Mode::Batched => 7,
            Mode::TokenByToken => 1,
        };
        let beside = if mode == Mode::Batched { beside } else { &[] };
        // The reference's positions are those of a text as long as the prompt.
        let mut seq = exec.admit(v.prompt.len())?;
        let logits = feed(exec, &mut seq, &v.prompt, chunk, beside)?;
        let agreed = greedy(exec, &mut seq, &logits, (&v.greedy, near_tie))?;
        exec.release(seq);
        let same_bits = first
            .as_ref()
            .is_none_or(|f| f.iter().map(|x| x.to_bits()).eq(logits.iter().map(|x| x.to_bits())));
        rows.push(compare(v, mode, &logits, agreed, same_bits));
        first.get_or_insert(logits);
    }
    Ok(())
}

/// Logits of every token of `ids`, fed `chunk` at a time; `beside` is another row, fed three at a time, over and over.
fn feed(
    exec: &mut Executor,
    seq: &mut Sequence,
    ids: &[u32],
    chunk: usize,
    beside: &[u32],
) -> Result<Vec<f32>> {
    let vocab = exec.vocab();
    let mut all = Vec::with_capacity(ids.len() * vocab);
    let mut other = if beside.is_empty() { None } else { Some(exec.admit(beside.len())?) };
    let mut result = Ok(());
    for ids in ids.chunks(chunk) {
        let span = Span { seq: &mut *seq, ids, wanted: Wanted::All, drafts: 0 };
        let logits = match &mut other {
            None => exec.run(&mut [span]),
            Some(other) => {
                let at = other.past % beside.len();
                let neighbour = &beside[at..(at + 3).min(beside.len())];
                let neighbour =
                    Span { seq: other, ids: neighbour, wanted: Wanted::Last, drafts: 0 };
                // The neighbour comes first, so that the row is not where it is alone.
                exec.run(&mut [neighbour, span]).map(|logits| &mut logits[vocab..])
            }
        };
        match logits {
            Ok(logits) => all.extend_from_slice(logits),
            Err(e) => {
                result = Err(e);
                break;
            }
        }
    }
    if let Some(other) = other {
        exec.release(other);
    }
    result.map(|()| all)
}

/// The margin below which a greedy choice may go either way: with rounded keys and values one that two logits at the ends
/// of what is allowed could turn around.
fn near_tie(v: &Vector, kv: Stored) -> f32 {
    if kv == Stored::F32 { NEAR_TIE } else { NEAR_TIE.max(2.0 * tolerance(kv) * largest(v)) }
}

fn largest(v: &Vector) -> f32 {
    v.logits.iter().fold(0.0, |m, x| m.max(x.abs()))
}

/// (greedy tokens equal to the reference's, tokens compared), up to the first near tie.
fn greedy(
    exec: &mut Executor,
    seq: &mut Sequence,
    logits: &[f32],
    (want, near_tie): (&[(u32, f32)], f32),
) -> Result<(usize, usize)> {
    let vocab = exec.vocab();
    let sure = want.iter().take_while(|(_, margin)| *margin >= near_tie).count();
    let mut next = best(&logits[logits.len() - vocab..]);
    for (i, (id, _)) in want[..sure].iter().enumerate() {
        if next != *id {
            return Ok((i, sure));
        }
        next =
            best(exec.run(&mut [Span { seq, ids: &[next], wanted: Wanted::Last, drafts: 0 }])?);
    }
    Ok((sure, sure))
}

/// The id of the largest logit, the first of equals.
fn best(logits: &[f32]) -> u32 {
    let better = |best: usize, i: usize| if logits[i] > logits[best] { i } else { best };
    (0..logits.len()).reduce(better).unwrap_or(0) as u32
}

fn compare(v: &Vector, mode: Mode, logits: &[f32], agreed: (usize, usize), same: bool) -> Row {
    let n = v.prompt.len();
    let vocab = logits.len() / n;
    let diff = |(a, b): (&f32, &f32)| (a - b).abs();
    // A NaN must not hide: it counts as infinitely far.
    let worst = |m: f32, d: f32| if d.is_nan() { f32::INFINITY } else { m.max(d) };
    let max_abs = logits.iter().zip(&v.logits).map(diff).fold(0.0, worst);
    let pairs = logits.chunks(vocab).zip(v.logits.chunks(vocab));
    let equal = pairs.filter(|(a, b)| best(a) == best(b)).count();
    Row {
        vector: v.name.clone(),
        mode,
        tokens: n,
        max_abs,
        relative: max_abs / largest(v),
        argmax_agreement: equal as f32 / n as f32,
        greedy_agreed: agreed.0,
        greedy_compared: agreed.1,
        same_bits: same,
    }
}
