//! Frequencies against numbers worked out by other means, and what is refused.

use super::*;
use serde_json::json;

#[test]
fn llama3_keeps_fast_and_divides_slow_frequencies() {
    let json = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192});
    let rope = RopeSpec::new(Some(&json), 128, 500_000.0, 1.0).unwrap();
    let plain = RopeSpec::new(None, 128, 500_000.0, 1.0).unwrap().frequencies();
    let scaled = rope.frequencies();
    assert_eq!(scaled[0], plain[0]);
    assert!((scaled[63] * 8.0 / plain[63] - 1.0).abs() < 1e-6);
}

#[test]
fn proportional_turns_the_first_pairs_as_in_a_whole_head() {
    let json = json!({"rope_type": "proportional", "partial_rotary_factor": 0.25, "factor": 2.0});
    let rope = RopeSpec::new(Some(&json), 64, 1e6, 1.0).unwrap();
    let plain = RopeSpec::new(None, 64, 1e6, 1.0).unwrap().frequencies();
    assert_eq!(rope.rotary, 64);
    for (i, f) in rope.frequencies().iter().enumerate() {
        assert_eq!(*f, if i < 8 { plain[i] / 2.0 } else { 0.0 });
    }
}

#[test]
fn dynamic_grows_from_the_context_on() {
    let json = json!({"rope_type": "dynamic", "factor": 4.0, "max_position_embeddings": 32});
    let rope = RopeSpec::new(Some(&json), 32, 1e4, 1.0).unwrap();
    assert_eq!(rope.kind_of_stretch(), Stretch::Power);
    assert_eq!([1, 31, 32].map(|n| rope.stretch(n)), [1.0; 3]);
    // 4 * 64 / 32 - 3
    assert_eq!(rope.stretch(64), 5.0);
    assert!(rope.stretch(33) > 1.0);
    // The base to which a length of 64 leads, and what the kernel makes of it.
    let base = 1e4 * 5f64.powf(32.0 / 30.0);
    for (i, f) in rope.frequencies().iter().enumerate() {
        let kernel = f64::from(*f) * 5f64.powf(-2.0 * i as f64 / 30.0);
        assert!((kernel * base.powf(2.0 * i as f64 / 32.0) - 1.0).abs() < 1e-6);
    }
}

#[test]
fn longrope_has_two_sets_and_one_factor() {
    let json = json!({"rope_type": "longrope", "short_factor": [1.0, 2.0], "long_factor": [4.0, 8.0],
        "original_max_position_embeddings": 16, "max_position_embeddings": 64});
    let rope = RopeSpec::new(Some(&json), 4, 1e4, 1.0).unwrap();
    assert_eq!(rope.kind_of_stretch(), Stretch::Choice);
    assert_eq!(rope.frequencies(), [1.0, 0.005, 0.25, 0.00125]);
    assert!(rope.stretch(16) <= 1.0 && rope.stretch(17) > 1.0);
    assert!((rope.attention_factor() - 1.5f32.sqrt()).abs() < 1e-6);
    for wrong in [json!([1.0]), json!([1.0, 0.0]), json!([1.0, "a"]), json!(null)] {
        let mut json = json.clone();
        json["long_factor"] = wrong;
        let e = RopeSpec::new(Some(&json), 4, 1e4, 1.0).unwrap_err().to_string();
        assert!(e.contains("long_factor"), "{e}");
    }
}

#[test]
fn what_is_not_known_is_refused_by_name() {
    for (json, name) in [
        (json!({"rope_type": "spiral"}), "spiral"),
        (json!({"rope_type": "linear"}), "factor"),
        (json!({"rope_type": "dynamic", "factor": 2.0}), "max_position_embeddings"),
        (json!({"rope_type": "default", "short_mscale": 1.1}), "short_mscale"),
        (json!({"rope_type": "yarn", "factor": 2.0}), "original_max_position_embeddings"),
    ] {
        let e = RopeSpec::new(Some(&json), 128, 1e4, 1.0).unwrap_err().to_string();
        assert!(e.contains(name), "{e}");
    }
}
