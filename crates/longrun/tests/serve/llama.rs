//! llama-server's own endpoints: its clients find the fields that they look for, and the fields that they send act.

use serde_json::{Value, json};

use crate::server::{Server, with};

const COMPLETION: &str = "/completion";

fn go(more: Value) -> Value {
    with(json!({"prompt": "Once upon a time", "n_predict": 16, "temperature": 0}), more)
}

#[test]
fn a_completion_says_how_it_went() {
    let server = Server::demo(&[]);
    let whole = server.post(COMPLETION, &go(json!({}))).ok();
    let count = whole["tokens_evaluated"].as_u64().unwrap();
    assert_eq!(whole["tokens_predicted"], 16);
    assert_eq!(whole["tokens_cached"], count + 15);
    assert_eq!(whole["timings"]["predicted_n"], 16);
    assert_eq!(whole["timings"]["prompt_n"], count - whole["timings"]["cache_n"].as_u64().unwrap());
    let fields = json!({
        "stop": true, "stop_type": "limit", "stopping_word": "", "truncated": false, "tokens": [], "index": 0,
    });
    for (name, value) in fields.as_object().unwrap() {
        assert_eq!(&whole[name], value, "{name}");
    }
    assert_eq!(whole["generation_settings"]["n_predict"], 16);
    assert!(whole["prompt"].as_str().unwrap().ends_with("Once upon a time"));
    let content = whole["content"].as_str().unwrap();
    assert_eq!(whole["has_new_line"], content.contains('\n'));

    let tokens = server.post(COMPLETION, &go(json!({"return_tokens": true}))).ok();
    assert_eq!(tokens["tokens"].as_array().unwrap().len(), 16);
    let text = server.post("/detokenize", &json!({"tokens": tokens["tokens"]})).ok();
    assert_eq!(text["content"], content);
    // Chunks, put together, are the whole.
    let chunks = server.events(COMPLETION, &go(json!({})));
    let (mut streamed, mut ids) = (String::new(), Vec::new());
    for (i, event) in chunks.iter().enumerate() {
        let chunk = event.json();
        assert_eq!(chunk["stop"], i + 1 == chunks.len(), "{chunk}");
        streamed += chunk["content"].as_str().unwrap();
        ids.extend(chunk["tokens"].as_array().unwrap().clone());
    }
    assert_eq!(streamed, content);
    assert_eq!(ids, *tokens["tokens"].as_array().unwrap());
    let last = chunks.last().unwrap().json();
    assert_eq!((&last["stop_type"], &last["tokens_predicted"]), (&json!("limit"), &json!(16)));
    server.idle();
}

#[test]
fn texts_end_for_a_reason() {
    let server = Server::demo(&[]);
    let plain =
        server.post(COMPLETION, &go(json!({}))).ok()["content"].as_str().unwrap().to_owned();
    let word = &plain[5..12];
    let stopped = server.post(COMPLETION, &go(json!({"stop": ["", word]}))).ok();
    assert_eq!((&stopped["stop_type"], &stopped["stopping_word"]), (&json!("word"), &json!(word)));
    assert_eq!(stopped["content"], plain[..plain.find(word).unwrap()]);
    // The prompt alone is read, and found read afterwards.
    let long = "There was a boy called Tom who had a red ball. ".repeat(4);
    let read = server.post(COMPLETION, &go(json!({"prompt": long, "n_predict": 0}))).ok();
    assert_eq!((&read["content"], &read["tokens_predicted"]), (&json!(""), &json!(0)));
    assert_eq!(read["stop_type"], "limit");
    let after = server.post(COMPLETION, &go(json!({"prompt": long}))).ok();
    assert!(after["timings"]["cache_n"].as_u64() > Some(0), "{}", after["timings"]);
    // Without a limit, or with one that does not fit, the context is filled.
    for n in [-1, 5000] {
        let full = go(json!({"prompt": long.repeat(6), "n_predict": n, "ignore_eos": true}));
        let full = server.post(COMPLETION, &full).ok();
        let sum =
            full["tokens_evaluated"].as_u64().unwrap() + full["tokens_predicted"].as_u64().unwrap();
        assert_eq!(
            (sum, &full["truncated"], &full["stop_type"]),
            (1024, &json!(true), &json!("limit"))
        );
    }
    // Time runs out once there is a new line.
    let late =
        go(json!({"prompt": "One\n", "n_predict": -1, "ignore_eos": true, "t_max_predict_ms": 1}));
    let late = server.post(COMPLETION, &late).ok();
    assert_eq!(late["truncated"], !late["has_new_line"].as_bool().unwrap(), "{late}");
    let long = server.post(COMPLETION, &go(json!({"prompt": long.repeat(60)}))).error(400);
    assert!(long["message"].as_str().unwrap().contains("exceeds the available context size"));
    server.idle();
}

#[test]
fn a_text_ends_where_the_model_ends_it() {
    // A random model that is made to end the text at once, by the id that ends it.
    let server = Server::tiny("qwen3", &[]);
    let end = server.post("/tokenize", &json!({"content": "<|im_end|>"})).ok()["tokens"][0].clone();
    let body = go(json!({"logit_bias": [[end, 1000.0]], "return_tokens": true}));
    let ended = server.post(COMPLETION, &body).ok();
    assert_eq!((&ended["stop_type"], &ended["content"]), (&json!("eos"), &json!("")), "{ended}");
    assert_eq!(ended["tokens"], json!([end]));
    let ignored = server.post(COMPLETION, &with(body, json!({"ignore_eos": true}))).ok();
    assert_eq!(
        (&ignored["stop_type"], &ignored["tokens_predicted"]),
        (&json!("limit"), &json!(16))
    );
    let biases = ignored["generation_settings"]["logit_bias"].as_array().unwrap();
    assert!(biases.contains(&json!({"token": end, "bias": null})), "{biases:?}");
}

#[test]
fn prompts_are_text_ids_and_both() {
    let server = Server::demo(&[]);
    let text = "Once upon a time";
    let add = json!({"content": text, "add_special": true});
    let ids = server.post("/tokenize", &add).ok()["tokens"].clone();
    let alone = server.post(COMPLETION, &go(json!({"prompt": text}))).ok()["content"].clone();
    for prompt in [ids.clone(), json!({"prompt_string": text}), json!([text]), json!([ids])] {
        let whole = server.post(COMPLETION, &go(json!({"prompt": prompt}))).ok();
        assert_eq!(whole["content"], alone, "{prompt}");
    }
    let body = go(json!({"prompt": [ids, text, {"prompt_string": "The cat"}], "n": 2}));
    let many = server.post("/completions", &body).ok();
    let many = many.as_array().unwrap();
    assert_eq!(
        many.iter().map(|one| one["index"].as_u64().unwrap()).collect::<Vec<_>>(),
        [0, 1, 2, 3, 4, 5]
    );
    assert!(many[..4].iter().all(|one| one["content"] == alone));
    let mut streamed = vec![String::new(); 6];
    for event in server.events(COMPLETION, &body) {
        let chunk = event.json();
        let index = chunk["index"].as_u64().unwrap() as usize;
        streamed[index] += chunk["content"].as_str().unwrap();
    }
    let whole: Vec<&str> = many.iter().map(|one| one["content"].as_str().unwrap()).collect();
    assert_eq!(streamed, whole);
    let mixed = server.post(COMPLETION, &go(json!({"prompt": [1, 2, text, 3, text]}))).ok();
    assert!(mixed["content"].is_string());
    for bad in [json!([]), json!({}), json!([-1]), json!([1_000_000]), json!(7.5)] {
        server.post(COMPLETION, &go(json!({"prompt": bad}))).error(400);
    }
    server.idle();
}

#[test]
fn fields_act_or_are_refused_by_name() {
    let server = Server::demo(&["--strict"]);
    let text = |more: Value| {
        let whole = server.post(COMPLETION, &go(more)).ok();
        whole["content"].as_str().unwrap().to_owned()
    };
    let plain = text(json!({}));
    let [a, b, c] = [3, 3, 4].map(|seed| text(json!({"temperature": 1.5, "seed": seed})));
    assert!(a == b && a != c);
    assert_eq!(text(json!({"temperature": 1.5, "seed": 3, "top_k": -1})), a);
    assert_eq!(text(json!({"temperature": 1.5, "top_k": 1})), plain);
    assert_eq!(
        text(
            json!({"temperature": 1.5, "seed": 3, "top_k": 1, "samplers": ["top_p", "temperature"]})
        ),
        a
    );
    assert_ne!(text(json!({"repeat_penalty": 50.0})), plain);
    assert_eq!(text(json!({"repeat_penalty": 50.0, "repeat_last_n": 0})), plain);
    let seeds = [(); 2].map(|()| {
        let whole = server.post(COMPLETION, &go(json!({"seed": -1, "temperature": 2.0}))).ok();
        whole["generation_settings"]["seed"].as_u64().unwrap()
    });
    assert_ne!(seeds[0], seeds[1]);
    // The first token is made impossible, in every way to say so.
    let probable = server.post(COMPLETION, &go(json!({"n_probs": 5}))).ok();
    let entries = probable["completion_probabilities"].as_array().unwrap();
    assert_eq!(entries.len(), 16);
    assert!(entries.iter().all(|entry| entry["top_logprobs"].as_array().unwrap().len() == 5));
    let (id, token) = (entries[0]["id"].clone(), entries[0]["token"].as_str().unwrap());
    let mut banned = [
        json!([[id, false]]),
        json!([[id, -1000]]),
        json!({id.to_string(): false}),
        json!({id.to_string(): -1000.0}),
        json!([[token, false]]),
        json!({token: -1000}),
    ];
    let banned = banned.each_mut().map(|bias| text(json!({"logit_bias": bias})));
    assert_ne!(banned[0], plain);
    assert!(banned[..4].iter().all(|one| *one == banned[0]), "{banned:?}");
    assert!(banned[4..].iter().all(|one| !one.starts_with(token)), "{banned:?}");

    for (field, neutral, acting) in [
        ("mirostat", json!(0), json!(2)),
        ("dynatemp_range", json!(0.0), json!(0.5)),
        ("dry_multiplier", json!(0), json!(0.8)),
        ("typical_p", json!(1.0), json!(0.5)),
        ("top_n_sigma", json!(-1), json!(1.5)),
        ("adaptive_target", json!(-1.0), json!(0.5)),
        ("n_indent", json!(0), json!(4)),
        ("min_keep", json!(0), json!(3)),
        ("post_sampling_probs", json!(false), json!(true)),
        ("lora", json!([]), json!([{"id": 0, "scale": 0.5}])),
        ("grammar_lazy", json!(false), json!("x")),
        ("samplers", json!(["top_k", "temperature"]), json!(["temperature", "penalties"])),
    ] {
        let body = go(json!({"repeat_penalty": 1.3, "temperature": 0.5}));
        server.post(COMPLETION, &with(body.clone(), json!({field: neutral}))).ok();
        let error = server.post(COMPLETION, &with(body, json!({field: acting}))).error(400);
        assert_eq!(error["param"], field, "{error}");
    }
    let inert = json!({"cache_prompt": false, "id_slot": 0, "mirostat_tau": 5.0, "n_keep": 3, "dry_base": 1.75});
    assert_eq!(text(inert), plain);
    let some = json!({"response_fields": ["content", "generation_settings/n_predict", "no/such"]});
    let some = server.post(COMPLETION, &go(some)).ok();
    assert_eq!(some, json!({"content": plain, "generation_settings/n_predict": 16}));
    assert_eq!(
        server.post(COMPLETION, &go(json!({"frobnicate": 1}))).error(400)["param"],
        "frobnicate"
    );
    server.idle();
}

#[test]
fn streams_tell_of_progress_and_probabilities() {
    let server = Server::demo(&["--chunk", "32"]);
    let long = "There was a boy called Tom who had a red ball. ".repeat(6);
    let more =
        json!({"prompt": long, "return_progress": true, "timings_per_token": true, "n_probs": 2});
    let events = server.events(COMPLETION, &go(more));
    let chunks: Vec<Value> = events.iter().map(|event| event.json()).collect();
    let (progress, texts): (Vec<_>, Vec<_>) =
        chunks.iter().partition(|chunk| !chunk["prompt_progress"].is_null());
    assert!(progress.len() > 1);
    let last = &progress.last().unwrap()["prompt_progress"];
    assert_eq!(last["total"], last["processed"]);
    assert_eq!(texts.len(), 17);
    for (i, chunk) in texts[..16].iter().enumerate() {
        assert_eq!(chunk["completion_probabilities"].as_array().unwrap().len(), 1);
        assert_eq!(chunk["timings"]["predicted_n"], i + 1);
    }
}

#[test]
fn the_server_tells_of_itself() {
    let server = Server::demo(&["--max-rows", "3", "--alias", "demo"]);
    let props = server.get("/props").ok();
    assert_eq!((&props["total_slots"], &props["model_alias"]), (&json!(3), &json!("demo")));
    let settings = &props["default_generation_settings"];
    assert_eq!(settings["n_ctx"], 1024);
    assert_eq!(settings["params"]["n_predict"], -1);
    assert!(!props["chat_template"].as_str().unwrap().is_empty());
    assert_eq!(server.post("/props", &json!({})).error(501)["type"], "not_supported_error");
    let busy = || {
        let slots = server.get("/slots").ok();
        let slots = slots.as_array().unwrap().clone();
        assert_eq!(
            slots.iter().map(|slot| slot["id"].as_u64().unwrap()).collect::<Vec<_>>(),
            [0, 1, 2]
        );
        assert!(slots.iter().all(|slot| slot["n_ctx"] == 1024));
        slots.iter().filter(|slot| slot["is_processing"] == true).count()
    };
    assert_eq!(busy(), 0);
    let body = go(json!({"n_predict": -1, "ignore_eos": true}));
    let mut stream = server.stream(COMPLETION, &body);
    assert!(stream.next().is_some());
    assert_eq!(busy(), 1);
    drop(stream);
    server.idle();
    assert_eq!(busy(), 0);
    for path in ["/health", "/v1/health"] {
        assert_eq!(server.get(path).ok(), json!({"status": "ok"}));
    }
    assert_eq!(server.get("/models").ok(), server.get("/v1/models").ok());
    for path in ["/infill", "/rerank", "/v1/rerank"] {
        server.post(path, &json!({})).error(501);
    }
    let error = server.post("/v1/embeddings", &json!({"input": "x"})).error(400);
    assert_eq!(error["code"], "no_embeddings");
}

#[test]
fn text_becomes_ids_and_text_again() {
    let server = Server::tiny("qwen3", &[]);
    let content = "Straße 媽 🤗 <|im_end|>";
    let ids = |more: Value| {
        let answer = server.post("/tokenize", &with(json!({"content": content}), more)).ok();
        assert_eq!(answer["count"], answer["tokens"].as_array().unwrap().len());
        answer["tokens"].clone()
    };
    let marks = ids(json!({}));
    let plain = ids(json!({"parse_special": false}));
    assert!(marks.as_array().unwrap().len() < plain.as_array().unwrap().len());
    for tokens in [&marks, &plain] {
        let text = server.post("/detokenize", &json!({"tokens": tokens})).ok();
        assert_eq!((&text["content"], &text["prompt"]), (&json!(content), &json!(content)));
    }
    let pieces = ids(json!({"with_pieces": true}));
    let mut bytes = Vec::new();
    for (piece, id) in pieces.as_array().unwrap().iter().zip(marks.as_array().unwrap()) {
        assert_eq!(piece["id"], *id);
        match &piece["piece"] {
            Value::String(text) => bytes.extend(text.as_bytes()),
            list => {
                bytes.extend(list.as_array().unwrap().iter().map(|b| b.as_u64().unwrap() as u8))
            }
        }
    }
    assert_eq!(String::from_utf8(bytes).unwrap(), content);
    // The other spelling, and a conversation.
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let prompt =
        server.post("/apply-template", &json!({"messages": messages})).ok()["prompt"].clone();
    assert_eq!(prompt, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    let closed = json!({"messages": messages, "add_generation_prompt": false});
    let closed = server.post("/apply-template", &closed).ok();
    assert_eq!(closed["prompt"], "<|im_start|>user\nHi<|im_end|>\n");
    let of = |body: Value| server.post("/v1/tokenize", &body).ok();
    let by_prompt =
        of(json!({"prompt": prompt, "add_special_tokens": false, "return_token_strs": true}));
    assert_eq!(by_prompt["tokens"], of(json!({"messages": messages}))["tokens"]);
    assert_eq!(by_prompt["max_model_len"], 4096);
    assert_eq!(by_prompt["token_strs"][0], "<|im_start|>");
    let mixed = of(json!({"content": [65, "b", 67]}));
    assert_eq!(mixed["tokens"], json!([65, 98, 67]));
    for (path, bad) in [
        ("/tokenize", json!({})),
        ("/tokenize", json!({"content": {"x": 1}})),
        ("/tokenize", json!({"content": [[1]]})),
        ("/detokenize", json!({})),
        ("/detokenize", json!({"tokens": ["x"]})),
        ("/apply-template", json!({"messages": []})),
    ] {
        server.post(path, &bad).error(400);
    }
}

#[test]
fn answers_of_openai_have_timings_too() {
    let server = Server::demo(&[]);
    let ask = json!({"messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi", "max_tokens": 4, "temperature": 0});
    for path in ["/v1/chat/completions", "/v1/completions"] {
        let whole = server.post(path, &ask).ok();
        assert_eq!(whole["timings"]["predicted_n"], whole["usage"]["completion_tokens"]);
        assert!(whole["timings"]["prompt_per_second"].as_f64() > Some(0.0));
    }
}
