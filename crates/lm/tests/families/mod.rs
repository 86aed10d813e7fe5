//! Small models of every family, with a boundary of each kind within a few tokens: windows of 8, groups of 4 and of 16,
//! a few chosen entries.

use longrun_lm::config::Config;
use longrun_lm::tiny::{self, TinyShape};
use serde_json::json;

/// Ids of every model.
pub(crate) const VOCAB: usize = 160;

pub(crate) fn config(family: &str) -> Config {
    let shape = TinyShape {
        layers: Some(4),
        interval: Some(2),
        hidden: Some(32),
        experts: Some(4),
        ..TinyShape::default()
    };
    let mut config = tiny::config(family, shape).unwrap();
    let rates = json!({"compressed_sparse_attention": 4, "heavily_compressed_attention": 16});
    for (name, value) in [
        ("sliding_window", json!(8)),
        ("index_topk", json!(if family == "glm5_next" { 8 } else { 5 })),
        ("index_kpool", json!(4)),
        ("compress_rates", rates),
    ] {
        config[name] = value;
    }
    Config::loose(&config).unwrap()
}

/// A test `name` for each family, which calls `run` with its name.
macro_rules! each_family {
    ($run:path) => {
        $crate::families::each_family! { $run: llama mistral qwen2_moe gemma2 gemma3 smollm3 qwen3_next qwen3_moe phi3
            olmo2 olmo3 glm4 glm4_moe ministral3 minimax_m2 gpt_oss lfm2 seed_oss deepseek_v3 deepseek_v32
            mamba2 nemotron_h falcon_h1 granite granitemoehybrid kimi_linear
            gemma4 deepseek_v4 glm5_next }
    };
    ($run:path: $($name:ident)*) => { $(
        #[test]
        fn $name() {
            $run(stringify!($name));
        }
    )* };
}
pub(crate) use each_family;
