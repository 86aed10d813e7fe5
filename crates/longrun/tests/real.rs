//! Real checkpoints against what another engine made of them: the same prompts, the same greedy ids up to the first
//! near tie, and the same text.

mod common;

use std::sync::Arc;

use common::{ids, longrun, read_json, root};
use longrun_lm::array::{CpuDevice, CpuOptions, Wanted};
use longrun_lm::cache::Room;
use longrun_lm::engine::{Engine, Event, Request};
use longrun_lm::executor::{Executor, Setup, Span};
use longrun_lm::sample::SamplingParams;
use longrun_lm::source::{ModelName, ModelSource};
use longrun_lm::text::{ChatInput, CompletionText};
use serde_json::Value;

/// Log-probability between the two best tokens below which either may win, along a greedy completion.
const NEAR_TIE: f64 = 0.15;
/// The same at every position of the reference's text, and where this engine does not round activations to 8 bits as
/// the reference does: rounding alone moves the margins of so small a model by up to 0.46.
const NEAR_TIE_ANYWHERE: f64 = 0.5;

fn executor(source: &ModelSource, exact: bool) -> Executor {
    let room = Room { rows: 1, context: 512, tokens: 512, chunk: 128, snapshots: 0, drafts: 0 };
    let setup = Setup { per_token: true, ..Setup::new(room) };
    let device = CpuDevice::new(CpuOptions { exact, ..CpuOptions::default() });
    let weights = source.weights(0);
    let exec = Executor::new(Box::new(device), &source.config, weights, setup, &|_, _| {});
    exec.unwrap()
}

/// Reads the reference's own text: at each sure position the best token must be the reference's, ties before it or
/// not. Gives the number of such positions.
fn forced(exec: &mut Executor, case: &Value) -> usize {
    let (prompt, want) = (ids(&case["prompt_ids"]), ids(&case["greedy_ids"]));
    let (all, vocab) = ([&prompt[..], &want].concat(), exec.vocab());
    let mut seq = exec.admit(1).unwrap();
    let span = Span { seq: &mut seq, ids: &all, wanted: Wanted::All, drafts: 0 };
    let logits = exec.run(&mut [span]).unwrap();
    let mut sure = 0;
    let rows = logits.chunks(vocab).skip(prompt.len() - 1);
    for ((row, id), margin) in rows.zip(&want).zip(case["margins"].as_array().unwrap()) {
        if margin.as_f64().unwrap() >= NEAR_TIE_ANYWHERE {
            let best = row.iter().copied().fold(f32::MIN, f32::max);
            assert_eq!(row[*id as usize], best, "{}: {id}, margin {margin}", case["prompt"]);
            sure += 1;
        }
    }
    exec.release(seq);
    sure
}

/// The prompt's ids, through the model's own template if the case is a chat.
fn prompt_ids(source: &ModelSource, case: &Value) -> Vec<u32> {
    let text = match case["prompt"].as_str() {
        Some(prompt) => prompt.to_owned(),
        None => {
            let mut input = ChatInput::new(&case["messages"]);
            input.add_generation_prompt = true;
            let rendered = source.template.as_ref().unwrap().render(&input).unwrap();
            assert_eq!(rendered, case["rendered"].as_str().unwrap());
            rendered
        }
    };
    source.tokenizer.as_ref().unwrap().encode(&text, true).unwrap()
}

/// The greedy continuation: ids and text.
fn complete(
    source: &ModelSource,
    engine: &mut Engine,
    prompt: Vec<u32>,
    max_tokens: usize,
) -> (Vec<u32>, String) {
    let params = SamplingParams::default();
    engine
        .submit(Request {
            params,
            stop_ids: Arc::clone(&source.eos),
            ..Request::new(prompt, max_tokens)
        })
        .unwrap();
    let tokenizer = Arc::clone(source.tokenizer.as_ref().unwrap());
    let mut completion = CompletionText::new(tokenizer, &[]).unwrap();
    let (mut ids, mut text, mut events) = (Vec::new(), String::new(), Vec::new());
    while engine.rows() > 0 {
        engine.step(&mut events).unwrap();
    }
    for event in events {
        match event {
            Event::Token { choice, .. } => {
                ids.push(choice.id);
                text.push_str(completion.push(choice.id).0);
            }
            Event::Failed { error, .. } => panic!("{error}"),
            _ => {}
        }
    }
    text.push_str(&completion.finish());
    (ids, text)
}

fn agrees(model: &str, reference: &str) {
    let path = root(".cache/models").join(model);
    let source = ModelSource::open(ModelName::Path(&path)).unwrap();
    let reference = read_json(&root("testdata/real").join(reference));
    let cases = reference["cases"].as_array().unwrap();
    assert!(!cases.is_empty());
    let (mut whole, mut compared) = (0, 0);
    for (exact, near_tie) in [(false, NEAR_TIE), (true, NEAR_TIE_ANYWHERE)] {
        let mut exec = executor(&source, exact);
        compared += cases.iter().map(|case| forced(&mut exec, case)).sum::<usize>();
        let mut engine = Engine::new(exec);
        for case in cases {
            let name = format!("exact {exact}: {} {}", case["prompt"], case["messages"]);
            let prompt = prompt_ids(&source, case);
            assert_eq!(prompt, ids(&case["prompt_ids"]), "{name}");
            let want = ids(&case["greedy_ids"]);
            let (got, text) = complete(&source, &mut engine, prompt, want.len());
            let margins = case["margins"].as_array().unwrap().iter();
            let sure = margins.take_while(|m| m.as_f64().unwrap() >= near_tie).count();
            let agreed = got.iter().zip(&want).take_while(|(a, b)| a == b).count();
            assert!(agreed >= sure, "{name}: {agreed} of {sure} ids agree");
            if got == want {
                assert_eq!(text, case["text"].as_str().unwrap(), "{name}");
                whole += 1;
            }
        }
    }
    println!("{model}: {compared} ids compared, {whole} of {} texts whole", 2 * cases.len());
    assert!(compared >= 50 * cases.len() && whole > 0, "the cases show something");
}

#[test]
#[ignore = "needs models: cargo xtask test"]
fn smollm2_agrees() {
    agrees("smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-instruct-q4_1.json");
}

/// The two best tokens of six positions and their log-probabilities, from an evaluation of the same file in 64-bit
/// arithmetic that shares no code with this engine.
#[test]
#[ignore = "needs models: cargo xtask test"]
fn exact_smollm2_agrees_with_64_bit_arithmetic() {
    let want = [
        [(7042, -0.258), (260, -2.741)],
        [(30, -0.380), (28, -1.659)],
        [(198, -1.009), (378, -2.436)],
        [(198, -0.879), (29, -2.217)],
        [(504, -1.936), (1348, -2.775)],
        [(2988, -3.209), (1797, -3.429)],
    ];
    let path = root(".cache/models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf");
    let flags = ["--prompt", "The capital of France is", "--max-tokens", "6", "--temp", "0"];
    let more = ["--model", path.to_str().unwrap(), "--raw", "--exact", "--json", "--logprobs", "2"];
    let got = longrun(&[&["generate"], &flags[..], &more].concat()).json();
    let rows = got["logprobs"].as_array().unwrap();
    assert_eq!(rows.len(), want.len());
    for (row, want) in rows.iter().zip(want) {
        for (top, (id, logprob)) in row["top"].as_array().unwrap().iter().zip(want) {
            assert_eq!(top["id"], id, "{row}");
            assert!((top["logprob"].as_f64().unwrap() - logprob).abs() < 2e-3, "{row}");
        }
    }
}

#[test]
#[ignore = "needs models: cargo xtask test"]
fn gemma3_agrees() {
    agrees("gemma3/gemma-3-270m-q4_k_m.gguf", "gemma-3-270m-q4_k_m.json");
}
