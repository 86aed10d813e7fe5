//! Prompts that are scored: `echo` with `logprobs`, as OpenAI's older endpoint has it and as evaluations read it.

use serde_json::{Value, json};

use crate::server::{Server, with};

const PATH: &str = "/v1/completions";
const LISTS: [&str; 4] = ["tokens", "token_logprobs", "top_logprobs", "text_offset"];

fn body(prompt: &Value, max_tokens: usize, logprobs: usize) -> Value {
    json!({"prompt": prompt, "max_tokens": max_tokens, "logprobs": logprobs, "echo": true, "temperature": 0})
}

fn ids(server: &Server, text: &str) -> Vec<u64> {
    let reply = server.post("/tokenize", &json!({"content": text})).ok();
    reply["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

fn lists(choice: &Value) -> [Vec<Value>; 4] {
    LISTS.map(|list| choice["logprobs"][list].as_array().unwrap().clone())
}

#[test]
fn every_token_of_prompt_and_answer_is_there() {
    let server = Server::demo(&[]);
    let prompt = "Once upon a time, there was a café 🐢 called “Zoë”.";
    let whole = server.post(PATH, &body(&json!(prompt), 6, 2)).ok();
    let choice = &whole["choices"][0];
    let text: Vec<char> = choice["text"].as_str().unwrap().chars().collect();
    assert!(choice["text"].as_str().unwrap().starts_with(prompt));
    let [tokens, logprobs, top, offsets] = lists(choice);
    let usage = &whole["usage"];
    let read = usage["prompt_tokens"].as_u64().unwrap() as usize;
    assert_eq!(usage["completion_tokens"], 6);
    for list in [&tokens, &logprobs, &top, &offsets] {
        assert_eq!(list.len(), read + 6);
    }
    assert_eq!((&logprobs[0], &top[0], &offsets[0]), (&Value::Null, &Value::Null, &json!(0)));
    let offsets: Vec<usize> = offsets.iter().map(|o| o.as_u64().unwrap() as usize).collect();
    assert!(offsets.is_sorted() && offsets[read] == prompt.chars().count(), "{offsets:?}");
    let mut said = 0;
    for (i, token) in tokens.iter().map(|token| token.as_str().unwrap()).enumerate() {
        let end = offsets.get(i + 1).copied().unwrap_or(text.len());
        let part: String = text[offsets[i]..end].iter().collect();
        // Tokens that are a part of a character have no text of their own.
        if !token.contains('\u{fffd}') && !part.is_empty() {
            assert_eq!(part, token, "token {i}");
            said += 1;
        }
    }
    assert!(said > 12, "{said}");
    for (logprob, top) in logprobs.iter().zip(&top).skip(1) {
        let (own, top) = (logprob.as_f64().unwrap(), top.as_object().unwrap());
        assert!((2..=3).contains(&top.len()) && own <= 0.0, "{top:?}");
        let best = top.values().map(|p| p.as_f64().unwrap()).fold(f64::MIN, f64::max);
        assert!(top.values().any(|p| p == logprob) && best >= own, "the token itself is there");
    }
    server.idle();
}

#[test]
fn a_prompt_has_the_scores_that_its_tokens_had_when_they_were_chosen() {
    for server in [Server::demo(&[]), Server::tiny("qwen3_next", &["--strict"])] {
        let start = ids(&server, "Once upon a time there was");
        let body_of = |ids: &[u64], max: usize| body(&json!(ids), max, 1);
        let first = server.post(PATH, &with(body_of(&start, 9), json!({"seed": 1234}))).ok();
        let [tokens, logprobs, top, _] = lists(&first["choices"][0]);
        // The ids that were chosen, from llama-server's endpoint.
        let chosen =
            json!({"prompt": start, "n_predict": 9, "temperature": 0, "return_tokens": true});
        let chosen = server.post("/completion", &chosen).ok()["tokens"].as_array().unwrap().clone();
        let mut all = start.clone();
        all.extend(chosen.iter().map(|id| id.as_u64().unwrap()));
        for _ in 0..2 {
            let again = server.post(PATH, &body_of(&all, 0)).ok();
            let choice = &again["choices"][0];
            let [its_tokens, its_logprobs, its_top, _] = lists(choice);
            assert_eq!((&its_tokens, &its_logprobs), (&tokens, &logprobs));
            assert_eq!(its_top, top);
            assert_eq!(choice["text"], first["choices"][0]["text"]);
            assert_eq!(choice["finish_reason"], "length");
            assert_eq!(again["usage"]["completion_tokens"], 0);
        }
        server.idle();
    }
}

/// What lm-evaluation-harness sends and reads: the one token that is generated is cut off.
#[test]
fn batches_of_ids_are_scored_as_evaluations_ask() {
    let server = Server::demo(&[]);
    let texts = ["The cat sat on the mat.", "Lily had a red ball. She", "A"];
    let prompts: Vec<Vec<u64>> = texts.iter().map(|text| ids(&server, text)).collect();
    let request = json!({"model": "default", "prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1,
        "seed": 1234, "echo": true});
    let whole = server.post(PATH, &request).ok();
    let choices = whole["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    for (i, (choice, prompt)) in choices.iter().zip(&prompts).enumerate() {
        assert_eq!(choice["index"], i);
        let [_, logprobs, top, _] = lists(choice);
        assert_eq!(logprobs.len(), prompt.len() + 1);
        let own = logprobs[1..prompt.len()].iter().map(|p| p.as_f64().unwrap());
        assert!(own.sum::<f64>() < 0.0 || prompt.len() == 1);
        assert!(top[1..].iter().all(|top| !top.as_object().unwrap().is_empty()));
        let alone = server.post(PATH, &body(&json!(prompt), 1, 1)).ok();
        assert_eq!(alone["choices"][0]["logprobs"], choice["logprobs"], "the same alone");
    }
    server.idle();
}

#[test]
fn streams_and_choices_say_the_same() {
    let server = Server::demo(&[]);
    for max_tokens in [0, 5] {
        let prompt = json!("Tom and his dog went to the");
        let body = with(body(&prompt, max_tokens, 2), json!({"n": 2}));
        let whole = server.post(PATH, &body).ok();
        let events = server.events(PATH, &body);
        for index in 0..2 {
            let want = &whole["choices"][index];
            assert_eq!(want["logprobs"], whole["choices"][0]["logprobs"]);
            let (mut text, mut got) = (String::new(), [const { Vec::new() }; 4]);
            for event in events.iter().filter(|event| event.data != "[DONE]") {
                for choice in event.json()["choices"].as_array().unwrap() {
                    if choice["index"] == index {
                        text += choice["text"].as_str().unwrap();
                        let new = lists(choice);
                        got.iter_mut().zip(new).for_each(|(all, new)| all.extend(new));
                    }
                }
            }
            assert_eq!(text, want["text"].as_str().unwrap());
            assert_eq!(got, lists(want));
        }
    }
    server.idle();
}

#[test]
fn a_prompt_may_fill_the_context_and_scores_have_a_limit() {
    let server = Server::demo(&["--context", "256"]);
    let long = vec![json!(300); 256];
    let whole = server.post(PATH, &body(&json!(long), 0, 0)).ok();
    assert_eq!(lists(&whole["choices"][0])[1].len(), 256);
    assert_eq!(
        server.post(PATH, &body(&json!(long), 1, 0)).error(400)["code"],
        "context_length_exceeded"
    );
    let longer = vec![json!(300); 257];
    assert_eq!(
        server.post(PATH, &body(&json!(longer), 0, 0)).error(400)["code"],
        "context_length_exceeded"
    );
    let one = server.post(PATH, &body(&json!([300]), 0, 3)).ok();
    assert_eq!(lists(&one["choices"][0])[1], [Value::Null]);
    let many = json!({"prompt": vec![json!(long); 64], "n": 64});
    let error = server.post(PATH, &with(body(&json!("x"), 0, 5), many)).error(400);
    assert_eq!(error["param"], "logprobs");
    assert!(error["message"].as_str().unwrap().contains("ask for fewer"), "{error}");
    server.post(PATH, &body(&json!("x"), 0, 21)).error(400);
    server.idle();
}
