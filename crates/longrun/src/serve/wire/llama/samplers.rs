//! The order of samplers: there is one here, and a list can only leave some of them out.
//!
//! Owns the names and letters. Refuses a list that would have those that act in another order.

use longrun_lm::sample::SamplingParams;
use serde_json::Value;

use super::super::super::error::{ApiError, ApiResult};
use super::super::super::fields::{Fields, kind};

/// The order in which samplers act.
pub(super) const ORDER: [&str; 6] = ["penalties", "top_p", "min_p", "xtc", "top_k", "temperature"];

/// Those that do nothing as long as their own fields are neutral, and these are refused otherwise.
const IDLE: [&str; 4] = ["dry", "typ_p", "top_n_sigma", "adaptive_p"];

/// Names, other names, and letters.
const NAMES: [(&str, &[&str], char); 10] = [
    ("penalties", &[], 'e'),
    ("top_p", &["top-p", "nucleus"], 'p'),
    ("min_p", &["min-p"], 'm'),
    ("xtc", &[], 'x'),
    ("top_k", &["top-k"], 'k'),
    ("temperature", &["temp"], 't'),
    ("dry", &[], 'd'),
    ("typ_p", &["typical_p", "typical-p", "typ-p", "typ", "typical"], 'y'),
    ("top_n_sigma", &["top-n-sigma"], 's'),
    ("adaptive_p", &["adaptive-p"], 'a'),
];

/// The names and other names, for the document.
pub(crate) fn names_of_all() -> Vec<&'static str> {
    let all = NAMES.into_iter();
    all.flat_map(|(name, others, _)| [&[name], others].concat()).collect()
}

pub(super) fn without_penalties(params: &mut SamplingParams) {
    params.repetition_penalty = 0.0;
    params.presence_penalty = 0.0;
    params.frequency_penalty = 0.0;
}

/// Reads `samplers`: those that are not in it are off.
pub(super) fn choose(fields: &mut Fields, params: &mut SamplingParams) -> ApiResult<()> {
    let Some(value) = fields.take("samplers") else { return Ok(()) };
    let names = names(&value)?;
    let has = |name: &str| names.contains(&name);
    if !has("penalties") {
        without_penalties(params);
    }
    if !has("top_p") {
        params.top_p = 0.0;
    }
    if !has("min_p") {
        params.min_p = 0.0;
    }
    if !has("xtc") {
        params.xtc_probability = 0.0;
    }
    if !has("top_k") {
        params.top_k = 0;
    }
    if !has("temperature") {
        params.temperature = 1.0;
    }
    let acting = names.iter().filter(|name| acts(name, params));
    let places = acting.filter_map(|name| ORDER.iter().position(|known| known == name));
    if !places.is_sorted_by(|a, b| a < b) {
        let what = format!("only the order {} is supported", ORDER.join(", "));
        return Err(ApiError::field("samplers", what));
    }
    Ok(())
}

fn names(value: &Value) -> ApiResult<Vec<&'static str>> {
    let wrong = |what: String| ApiError::field("samplers", what);
    let known = |text: &str| {
        let found = NAMES.iter().find(|(name, others, _)| *name == text || others.contains(&text));
        found.map(|(name, ..)| *name).ok_or_else(|| wrong(format!("there is no {text:?}")))
    };
    match value {
        Value::String(letters) => {
            let letter = |letter: char| {
                let found = NAMES.iter().find(|(.., known)| *known == letter);
                found
                    .map(|(name, ..)| *name)
                    .ok_or_else(|| wrong(format!("there is no {letter:?}")))
            };
            letters.chars().map(letter).collect()
        }
        Value::Array(all) => {
            let text = |v: &Value| match v {
                Value::String(text) => known(text),
                other => Err(wrong(format!("{} is no name", kind(other)))),
            };
            all.iter().map(text).collect()
        }
        other => Err(wrong(format!("{} is no list of names", kind(other)))),
    }
}

/// Whether a sampler changes anything under `params`.
fn acts(name: &str, params: &SamplingParams) -> bool {
    let p = params;
    let drawn = p.temperature > 0.0;
    match name {
        "penalties" => {
            let off = p.repetition_penalty == 0.0 || p.repetition_penalty == 1.0;
            !off || p.presence_penalty != 0.0 || p.frequency_penalty != 0.0
        }
        "top_p" => drawn && 0.0 < p.top_p && p.top_p < 1.0,
        "min_p" => drawn && p.min_p > 0.0,
        "xtc" => drawn && p.xtc_probability > 0.0,
        "top_k" => drawn && p.top_k > 0,
        "temperature" => p.temperature != 1.0,
        idle => !IDLE.contains(&idle),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn chosen(samplers: Value, params: SamplingParams) -> ApiResult<SamplingParams> {
        let mut params = params;
        let mut fields = Fields::of(json!({"samplers": samplers}), "")?;
        choose(&mut fields, &mut params).map(|()| params)
    }

    #[test]
    fn a_list_leaves_out_and_never_sorts() {
        let all = SamplingParams {
            temperature: 0.8,
            top_p: 0.9,
            min_p: 0.1,
            top_k: 40,
            repetition_penalty: 1.1,
            ..SamplingParams::default()
        };
        assert_eq!(chosen(json!(ORDER), all.clone()).unwrap(), all);
        assert_eq!(chosen(json!("edypmxkt"), all.clone()).unwrap(), all);
        let few = chosen(json!(["min_p", "temp"]), all.clone()).unwrap();
        assert_eq!((few.top_p, few.min_p, few.top_k), (0.0, 0.1, 0));
        assert_eq!((few.temperature, few.repetition_penalty), (0.8, 0.0));
        assert_eq!(chosen(json!([]), all.clone()).unwrap().temperature, 1.0);
        // What the other engine does if nothing is said: top-k goes before top-p.
        for other in [json!("edkypmxt"), json!(["temperature", "top_k"]), json!(["top_k", "top_k"])]
        {
            let error = chosen(other, all.clone()).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("samplers"));
        }
        // The same order where top-p is off.
        let some = SamplingParams { top_p: 1.0, min_p: 0.0, ..all.clone() };
        assert_eq!(chosen(json!("edkypmxt"), some.clone()).unwrap(), some);
        for bad in [json!(["x"]), json!("?"), json!(5), json!([5]), json!({}), json!(["infill"])] {
            assert!(chosen(bad, all.clone()).is_err());
        }
    }
}
