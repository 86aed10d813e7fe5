//! What requests and checkpoints may ask for, and what is refused.

use serde_json::json;

use super::super::{Defaults, Sampler, SamplingOverrides, SamplingParams};
use crate::Kind;

#[test]
fn fields_out_of_range_are_named() {
    type Change = fn(&mut SamplingParams);
    let cases: [(&str, Change); 21] = [
        ("temperature", |p| p.temperature = -0.1),
        ("temperature", |p| p.temperature = f32::NAN),
        ("temperature", |p| p.temperature = f32::INFINITY),
        ("top_p", |p| p.top_p = 1.01),
        ("top_p", |p| p.top_p = f32::NAN),
        ("min_p", |p| p.min_p = -0.01),
        ("min_p", |p| p.min_p = f32::NAN),
        ("min_tokens_to_keep", |p| p.min_tokens_to_keep = 0),
        ("xtc_probability", |p| p.xtc_probability = 1.5),
        ("xtc_threshold", |p| p.xtc_threshold = 0.51),
        ("xtc_threshold", |p| p.xtc_threshold = f32::NAN),
        ("xtc_special_tokens", |p| p.xtc_special_tokens = vec![10]),
        ("repetition_penalty", |p| p.repetition_penalty = -1.0),
        ("repetition_penalty", |p| p.repetition_penalty = f32::INFINITY),
        ("presence_penalty", |p| p.presence_penalty = f32::NAN),
        ("presence_penalty", |p| p.presence_penalty = f32::NEG_INFINITY),
        ("frequency_penalty", |p| p.frequency_penalty = f32::INFINITY),
        ("logit_bias", |p| p.logit_bias = vec![(0, 1.0), (10, 1.0)]),
        ("logit_bias", |p| p.logit_bias = vec![(u32::MAX, 1.0)]),
        ("logit_bias", |p| p.logit_bias = vec![(0, f32::NAN)]),
        ("logit_bias", |p| p.logit_bias = vec![(0, f32::INFINITY)]),
    ];
    for (field, change) in cases {
        let mut params = SamplingParams::default();
        change(&mut params);
        let error = params.validate(10).unwrap_err();
        assert_eq!(error.kind(), Kind::Usage);
        assert!(error.to_string().contains(field), "{field}: {error}");
        assert!(Sampler::new(params, 10).is_err());
    }
    assert!(SamplingParams::default().validate(10).is_ok());
    assert_eq!(Sampler::new(SamplingParams::default(), 0).unwrap_err().kind(), Kind::Usage);
}

#[test]
fn counts_beyond_the_vocabulary_mean_all_of_it() {
    let params = SamplingParams {
        temperature: 1.0,
        top_k: usize::MAX,
        min_p: 0.5,
        min_tokens_to_keep: usize::MAX,
        logprobs: Some(usize::MAX),
        ..Default::default()
    };
    let mut sampler = Sampler::new(params, 6).unwrap();
    let clamped = sampler.params();
    assert_eq!((clamped.top_k, clamped.min_tokens_to_keep, clamped.logprobs), (6, 6, Some(6)));
    let history = sampler.history();
    assert_eq!(sampler.sample(&mut [0.0; 6], &history, 0).unwrap().top.len(), 6);
}

#[test]
fn every_field_moves_the_greedy_token() {
    let base = [1.0f32, 0.9, -5.0];
    let greedy = |params: SamplingParams| {
        let mut sampler = Sampler::new(params, 3).unwrap();
        let mut history = sampler.history();
        history.extend(&[0, 0, 2]);
        sampler.sample(&mut base.clone(), &history, 3).unwrap().id
    };
    assert_eq!(greedy(SamplingParams::default()), 0);
    let default = SamplingParams::default;
    assert_eq!(greedy(SamplingParams { repetition_penalty: 1.5, ..default() }), 1);
    assert_eq!(greedy(SamplingParams { presence_penalty: 0.2, ..default() }), 1);
    assert_eq!(greedy(SamplingParams { frequency_penalty: 0.06, ..default() }), 1);
    assert_eq!(greedy(SamplingParams { logit_bias: vec![(2, 7.0)], ..default() }), 2);
    let short = SamplingParams { repetition_penalty: 1.5, repetition_context: 1, ..default() };
    assert_eq!(greedy(short), 0);
    // A penalty that overflows saturates and is no fault of the device.
    assert_eq!(greedy(SamplingParams { repetition_penalty: 1e-45, ..default() }), 0);
    assert_eq!(greedy(SamplingParams { frequency_penalty: f32::MAX, ..default() }), 1);
}

#[test]
fn generation_configs_are_read() {
    let read = |value| Defaults::from_generation_config(&value).unwrap();
    let nothing = read(json!({"transformers_version": "4.50", "eos_token_id": null}));
    assert_eq!(nothing, Defaults::default());
    let qwen = read(json!({"do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 20,
        "min_p": 0, "repetition_penalty": 1.05, "eos_token_id": [151645, 151643, 151645]}));
    let want = SamplingParams {
        temperature: 0.6,
        top_p: 0.95,
        top_k: 20,
        repetition_penalty: 1.05,
        ..Default::default()
    };
    assert_eq!(qwen, Defaults { params: want, eos: vec![151_645, 151_643] });
    assert_eq!(read(json!({"eos_token_id": 2})).eos, [2]);
    assert_eq!(read(json!({"do_sample": true})).params.temperature, 1.0);
    assert_eq!(read(json!({"temperature": 0.6})).params.temperature, 0.6);
    let greedy = read(json!({"do_sample": false, "temperature": 0.6, "top_k": 5}));
    assert_eq!((greedy.params.temperature, greedy.params.top_k), (0.0, 5));
}

#[test]
fn lying_generation_configs_are_refused() {
    for (field, value) in [
        ("JSON object", json!([1])),
        ("do_sample", json!({"do_sample": 1})),
        ("temperature", json!({"temperature": "hot"})),
        ("temperature", json!({"do_sample": true, "temperature": -1})),
        ("temperature", json!({"do_sample": true, "temperature": 1e300})),
        ("top_p", json!({"top_p": 1.5})),
        ("top_k", json!({"top_k": -1})),
        ("top_k", json!({"top_k": 1.5})),
        ("min_p", json!({"min_p": {}})),
        ("repetition_penalty", json!({"repetition_penalty": -2})),
        ("eos_token_id", json!({"eos_token_id": -1})),
        ("eos_token_id", json!({"eos_token_id": [1, "2"]})),
        ("eos_token_id", json!({"eos_token_id": 4_294_967_296u64})),
    ] {
        let error = Defaults::from_generation_config(&value).unwrap_err();
        assert_eq!(error.kind(), Kind::File);
        assert!(error.to_string().contains(field), "{field}: {error}");
    }
}

#[test]
fn what_the_user_says_wins() {
    let config = json!({"do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 20});
    let defaults = Defaults::from_generation_config(&config).unwrap();
    assert_eq!(SamplingOverrides::default().apply(&defaults), defaults.params);
    let greedy = SamplingOverrides { temperature: Some(0.0), ..Default::default() };
    assert_eq!(greedy.apply(&defaults).temperature, 0.0);
    let overrides = SamplingOverrides {
        top_k: Some(0),
        seed: Some(0),
        logit_bias: Some(vec![(3, -1.0)]),
        ..Default::default()
    };
    let want = SamplingParams {
        temperature: 0.6,
        top_p: 0.95,
        top_k: 0,
        seed: Some(0),
        logit_bias: vec![(3, -1.0)],
        ..Default::default()
    };
    assert_eq!(overrides.apply(&defaults), want);
}
