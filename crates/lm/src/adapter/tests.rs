use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize};
use serde_json::{Value, json};

use super::{Adapter, Delta};
use crate::error::Result;

/// Opens an adapter with these settings and matrices of f32, all numbers being `fill`.
fn open(
    name: &str,
    file: &str,
    config: &Value,
    tensors: &[(&str, &[usize])],
    fill: f32,
) -> Result<Adapter> {
    let folder = scratch(name);
    let data: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(_, shape)| fill.to_le_bytes().repeat(shape.iter().product()))
        .collect();
    let views = tensors.iter().zip(&data).map(|((name, shape), data)| {
        (*name, TensorView::new(Dtype::F32, shape.to_vec(), data).unwrap())
    });
    fs::write(folder.join(file), serialize(views, None).unwrap()).unwrap();
    fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
    let opened = Adapter::open(&folder);
    fs::remove_dir_all(&folder).unwrap();
    opened
}

fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("longrun-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

const MLX: &str = "adapters.safetensors";
const PEFT: &str = "adapter_model.safetensors";

fn mlx(rank: impl Into<Value>, scale: impl Into<Value>) -> Value {
    let (rank, scale): (Value, Value) = (rank.into(), scale.into());
    json!({ "fine_tune_type": "lora", "lora_parameters": { "rank": rank, "scale": scale } })
}

fn peft(field: &str, value: impl Into<Value>) -> Value {
    let mut config = json!({ "peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none" });
    config[field] = value.into();
    config
}

#[test]
fn both_layouts_mean_the_same() {
    let q = "model.layers.0.self_attn.q_proj";
    let (a, b) = (format!("{q}.lora_a"), format!("{q}.lora_b"));
    let one = open("same-mlx", MLX, &mlx(2, 2.0), &[(&a, &[6, 2]), (&b, &[2, 4])], 0.5).unwrap();
    let [a, b] = ["A", "B"].map(|m| format!("base_model.model.{q}.lora_{m}.weight"));
    let tensors: [(&str, &[usize]); 2] = [(&a, &[2, 6]), (&b, &[4, 2])];
    let two = open("same-peft", PEFT, &peft("r", 2), &tensors, 0.5).unwrap();
    assert_eq!(one.deltas, two.deltas);
    let delta = one.delta(&format!("draft.{q}.weight"));
    assert!(delta.is_none());
    let delta = one.delta(&format!("{q}.weight")).unwrap();
    assert_eq!([delta.rows, delta.cols, delta.rank], [4, 6, 2]);
    let mut numbers = [1.0; 12];
    delta.add_to(&mut numbers, 2, [4, 6]).unwrap();
    // Two products of 1/2 and 1/2 times 2.
    assert_eq!(numbers, [2.0; 12]);
    assert!(delta.add_to(&mut numbers, 0, [4, 5]).is_err());
}

#[test]
fn settings_that_are_no_plain_lora_are_refused_by_name() {
    let tensors: [(&str, &[usize]); 2] =
        [("x.q.lora_A.weight", &[2, 6]), ("x.q.lora_B.weight", &[4, 2])];
    let refused = [
        ("use_dora", json!(true)),
        ("bias", json!("all")),
        ("modules_to_save", json!(["lm_head"])),
        ("target_parameters", json!(["experts.gate_up_proj"])),
        ("peft_type", json!("IA3")),
        ("rank_pattern", json!({ "^q.*": 2 })),
        ("fan_in_fan_out", json!(true)),
        ("r", json!(0)),
        ("r", json!(3)),
        ("r", json!("x")),
        ("lora_alpha", json!(null)),
        ("lora_alpha", json!(1e300)),
        ("rank_pattern", json!({ "q": -1 })),
    ];
    for (i, (field, value)) in refused.into_iter().enumerate() {
        let name = format!("refused-{i}");
        let error = open(&name, PEFT, &peft(field, value), &tensors, 1.0).unwrap_err().to_string();
        let rank = error.contains("ranks") || error.contains("scale");
        assert!(error.contains(field) || rank, "{field}: {error}");
    }
    assert!(open("kept", PEFT, &peft("use_rslora", true), &tensors, 1.0).is_ok());
    for kind in ["dora", "full"] {
        let mut config = mlx(2, 1.0);
        config["fine_tune_type"] = kind.into();
        let error = open(kind, MLX, &config, &tensors, 1.0).unwrap_err().to_string();
        assert!(error.contains(kind), "{error}");
    }
}

#[test]
fn hostile_matrices_are_refused() {
    type Tensors<'a> = &'a [(&'a str, &'a [usize])];
    let good: Tensors<'_> = &[("q.lora_a", &[6, 2]), ("q.lora_b", &[2, 4])];
    let cases: [(Value, Tensors<'_>, f32, &str); 10] = [
        (mlx(3, 1.0), good, 1.0, "ranks"),
        (mlx(2, json!(null)), good, 1.0, "scale"),
        (mlx(2, "NaN"), good, 1.0, "scale"),
        (mlx(1_u64 << 40, 1.0), good, 1.0, "rank"),
        (mlx(2, 1.0), good, f32::NAN, "finite"),
        (mlx(2, 1e39), good, 1.0, "out of range"),
        (mlx(2, 1.0), &[("q.lora_a", &[6, 2])], 1.0, "lora_b"),
        (mlx(2, 1.0), &[("q.lora_b", &[2, 4])], 1.0, "lora_a"),
        (mlx(2, 1.0), &[("e.lora_a", &[8, 2, 6]), ("e.lora_b", &[8, 4, 2])], 1.0, "experts"),
        (mlx(2, 1.0), &[("q.lora_a", &[0, 2]), ("q.lora_b", &[2, 4])], 1.0, "[0, 2]"),
    ];
    for (i, (config, tensors, fill, says)) in cases.into_iter().enumerate() {
        let error = open(&format!("hostile-{i}"), MLX, &config, tensors, fill).unwrap_err();
        assert!(error.to_string().contains(says), "{i}: {error}");
    }
    assert!(open("none", MLX, &mlx(2, 1.0), &[], 1.0).is_err());
    assert!(Adapter::open(&PathBuf::from("/nonexistent")).is_err());
}

proptest! {
    /// No bytes make it panic or take more memory than they are.
    #[test]
    fn any_bytes_are_an_adapter_or_an_error(
        cut in 0_usize..200,
        at in 0_usize..200,
        to: u8,
        json in "\\PC{0,40}",
    ) {
        let data = [0; 48];
        let view = |shape: Vec<usize>| TensorView::new(Dtype::F32, shape, &data).unwrap();
        let views = [("q.lora_a", view(vec![6, 2])), ("q.lora_b", view(vec![2, 6]))];
        let mut bytes = serialize(views, None).unwrap();
        bytes.truncate(bytes.len().saturating_sub(cut));
        if let Some(byte) = bytes.get_mut(at) {
            *byte = to;
        }
        let folder = scratch(&format!("any-{cut}-{at}-{to}"));
        fs::write(folder.join(MLX), &bytes).unwrap();
        let config = mlx(2, 1.0).to_string();
        let config = if cut == 0 { json } else { config };
        fs::write(folder.join("adapter_config.json"), config).unwrap();
        let _ = Adapter::open(&folder);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_sum_is_that_of_the_products(rank in 1_usize..4, rows in 1_usize..5, cols in 1_usize..6) {
        let a: Vec<f32> = (0..rank * cols).map(|i| i as f32 - 3.0).collect();
        let b: Vec<f32> = (0..rows * rank).map(|i| 0.5 * i as f32 - 1.0).collect();
        let delta = Delta { a: a.clone(), b: b.clone(), rank, rows, cols };
        let mut numbers = vec![0.0; rows * cols];
        delta.add_to(&mut numbers, 0, [rows, cols]).unwrap();
        for (i, x) in numbers.iter().enumerate() {
            let product = |r: usize| b[i / cols * rank + r] * a[r * cols + i % cols];
            prop_assert_eq!(*x, (0..rank).map(product).sum::<f32>());
        }
    }
}
