//! A request's body, read field by field: what is read acts, and what nobody reads is not passed over in silence.
//!
//! Owns the three kinds of fields. Those that act are those that were taken; those that cannot change an answer are in
//! [`INERT`]; those that ask for something that is not there are in [`UNSUPPORTED`] and refused by name. All others are
//! refused under `--strict` and named in a header otherwise.

use longrun_lm::sample::SamplingParams;
use serde_json::{Map, Value};

use super::error::{ApiError, ApiResult};

/// Fields that are about the client or its account, and cannot change an answer.
const INERT: &[&str] = &[
    "cache_control",
    "cache_prompt",
    "id_slot",
    "include",
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
];

/// Fields that would change an answer, and that are not served, with what to do instead.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("adapters", "start the server with --lora NAME=PATH and name the adapter as `model`"),
    ("audio", "only text comes out"),
    ("background", "stay connected, or stream"),
    ("best_of", "use `n`"),
    ("conversation", "send the whole conversation"),
    ("draft_model", "start the server with --draft"),
    ("function_call", "use `tool_choice`"),
    ("functions", "use `tools`"),
    ("guided_choice", "use `response_format`"),
    ("guided_grammar", "use `response_format`"),
    ("guided_json", "use `response_format`"),
    ("guided_regex", "use `response_format`"),
    ("mcp_servers", "tools run at the client"),
    ("modalities", "only text comes out"),
    ("num_draft_tokens", "start the server with --drafts"),
    ("prediction", "start the server with --draft lookup"),
    ("previous_response_id", "send the whole conversation"),
    ("role_mapping", "the model's template says how roles are written"),
    ("suffix", "send the text with the model's own marks for filling in"),
    ("truncation", "shorten the conversation"),
    ("web_search_options", "the server has no way out"),
];

/// The body of a request.
#[derive(Debug)]
pub(crate) struct Fields {
    map: Map<String, Value>,
    /// What the fields are part of, for messages.
    place: String,
}

impl Fields {
    /// Reads a body.
    pub(crate) fn parse(bytes: &[u8]) -> ApiResult<Self> {
        let value = serde_json::from_slice(bytes)
            .map_err(|e| ApiError::bad(format!("the body is not valid JSON: {e}")))?;
        Self::of(value, "").map_err(|_| ApiError::bad("the body is not a JSON object"))
    }

    /// The fields of an object inside of a body; `place` is its path.
    pub(crate) fn of(value: Value, place: &str) -> ApiResult<Self> {
        match value {
            Value::Object(map) => Ok(Self { map, place: place.to_owned() }),
            other => Err(ApiError::field(place, format!("{} is no object", kind(&other)))),
        }
    }

    /// The path of a field.
    pub(crate) fn path(&self, name: &str) -> String {
        if self.place.is_empty() { name.to_owned() } else { format!("{}.{name}", self.place) }
    }

    /// Whether a field is there and not null.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.map.get(name).is_some_and(|value| !value.is_null())
    }

    /// A field as it is, which stays where it is.
    pub(crate) fn peek(&self, name: &str) -> Option<&Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// A field of any type; null counts as absent.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.shift_remove(name).filter(|value| !value.is_null())
    }

    pub(crate) fn required(&mut self, name: &str) -> ApiResult<Value> {
        self.take(name).ok_or_else(|| ApiError::field(&self.path(name), "it is missing"))
    }

    fn typed<T>(
        &mut self,
        name: &str,
        wanted: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> ApiResult<Option<T>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let wrong = || {
            let what = format!("{} where {wanted} is wanted", short(&value));
            ApiError::field(&self.path(name), what)
        };
        read(&value).map(Some).ok_or_else(wrong)
    }

    pub(crate) fn bool(&mut self, name: &str) -> ApiResult<Option<bool>> {
        self.typed(name, "true or false", Value::as_bool)
    }

    pub(crate) fn string(&mut self, name: &str) -> ApiResult<Option<String>> {
        self.typed(name, "a string", |v| v.as_str().map(str::to_owned))
    }

    pub(crate) fn number(&mut self, name: &str) -> ApiResult<Option<f32>> {
        self.typed(name, "a number", |v| v.as_f64().map(|x| x as f32).filter(|x| x.is_finite()))
    }

    /// A number within bounds as it was written: what is so after rounding only is not.
    pub(crate) fn within(&mut self, name: &str, low: f64, high: f64) -> ApiResult<Option<f32>> {
        let outside = |x: &f64| !(low..=high).contains(x);
        if let Some(x) = self.peek(name).and_then(Value::as_f64).filter(outside) {
            let what = if high.is_finite() {
                format!("{x:e} is not a number from {low} to {high}")
            } else {
                format!("{x:e} is less than {low}")
            };
            return Err(ApiError::field(&self.path(name), what));
        }
        self.number(name)
    }

    /// A whole number of at least 0.
    pub(crate) fn count(&mut self, name: &str) -> ApiResult<Option<usize>> {
        self.typed(name, "a whole number of at least 0", |v| {
            let whole =
                |x: f64| (x.fract() == 0.0 && (0.0..=2f64.powi(53)).contains(&x)).then_some(x);
            v.as_u64()
                .or_else(|| v.as_f64().and_then(whole).map(|x| x as u64))
                .and_then(|n| usize::try_from(n).ok())
        })
    }

    /// The same, within bounds.
    pub(crate) fn counted(
        &mut self,
        name: &str,
        low: usize,
        high: usize,
    ) -> ApiResult<Option<usize>> {
        let count = self.count(name)?;
        match count.filter(|n| !(low..=high).contains(n)) {
            Some(n) => {
                Err(ApiError::field(&self.path(name), format!("{n} is not {low} to {high}")))
            }
            None => Ok(count),
        }
    }

    /// A whole number, which may be below 0.
    pub(crate) fn whole(&mut self, name: &str) -> ApiResult<Option<i64>> {
        self.typed(name, "a whole number", whole)
    }

    /// A whole number; below 0 it counts as absent.
    pub(crate) fn seed(&mut self, name: &str) -> ApiResult<Option<u64>> {
        let seed = self.typed(name, "a whole number", |v| {
            v.as_u64().map(Some).or_else(|| whole(v).map(|n| u64::try_from(n).ok()))
        })?;
        Ok(seed.flatten())
    }

    /// A string, or a list of strings.
    pub(crate) fn strings(&mut self, name: &str) -> ApiResult<Vec<String>> {
        let strings = self.typed(name, "a string or a list of strings", |v| match v {
            Value::String(one) => Some(vec![one.clone()]),
            Value::Array(all) => all.iter().map(|v| v.as_str().map(str::to_owned)).collect(),
            _ => None,
        })?;
        Ok(strings.unwrap_or_default())
    }

    pub(crate) fn object(&mut self, name: &str) -> ApiResult<Option<Fields>> {
        let path = self.path(name);
        self.take(name).map(|value| Fields::of(value, &path)).transpose()
    }

    pub(crate) fn list(&mut self, name: &str) -> ApiResult<Option<Vec<Value>>> {
        self.typed(name, "a list", |v| v.as_array().cloned())
    }

    /// What is left, by the name of the whole.
    pub(crate) fn into_rest(self) -> Map<String, Value> {
        self.map
    }

    /// Ends the reading. Gives the fields that nobody knows.
    pub(crate) fn finish(self, strict: bool) -> ApiResult<Vec<String>> {
        let mut unknown = Vec::new();
        for (name, value) in &self.map {
            if value.is_null() || INERT.contains(&name.as_str()) {
                continue;
            }
            let path = self.path(name);
            if let Some((_, instead)) = UNSUPPORTED.iter().find(|(known, _)| known == name) {
                return Err(ApiError::field(&path, format!("not supported; {instead}")));
            }
            if strict {
                return Err(ApiError::field(&path, "no such field is known, and --strict is on"));
            }
            unknown.push(path);
        }
        Ok(unknown)
    }
}

/// As large as a number gets.
pub(crate) const MOST: f64 = f64::INFINITY;

/// Those fields of sampling that are numbers and have one name and one meaning in all wires.
pub(crate) fn sampling_numbers(fields: &mut Fields, params: &mut SamplingParams) -> ApiResult<()> {
    for (name, place, low, high) in [
        ("temperature", &mut params.temperature, 0.0, MOST),
        ("top_p", &mut params.top_p, 0.0, 1.0),
        ("min_p", &mut params.min_p, 0.0, 1.0),
        ("xtc_probability", &mut params.xtc_probability, 0.0, 1.0),
        ("presence_penalty", &mut params.presence_penalty, -MOST, MOST),
        ("frequency_penalty", &mut params.frequency_penalty, -MOST, MOST),
    ] {
        if let Some(x) = fields.within(name, low, high)? {
            *place = x;
        }
    }
    Ok(())
}

/// The fields that say how tokens are chosen, on top of the model's own wishes.
pub(crate) fn sampling(
    fields: &mut Fields,
    mut params: SamplingParams,
) -> ApiResult<SamplingParams> {
    sampling_numbers(fields, &mut params)?;
    if let Some(x) = fields.within("xtc_threshold", 0.0, 0.5)? {
        params.xtc_threshold = x;
    }
    if let Some(x) = fields.within("repetition_penalty", 0.0, MOST)? {
        params.repetition_penalty = x;
    }
    for (name, place) in [
        ("top_k", &mut params.top_k),
        ("repetition_context_size", &mut params.repetition_context),
        ("presence_context_size", &mut params.presence_context),
        ("frequency_context_size", &mut params.frequency_context),
    ] {
        if let Some(n) = fields.count(name)? {
            *place = n;
        }
    }
    if let Some(seed) = fields.seed("seed")? {
        params.seed = Some(seed);
    }
    if let Some(bias) = fields.object("logit_bias")? {
        params.logit_bias = logit_bias(bias)?;
    }
    Ok(params)
}

fn logit_bias(fields: Fields) -> ApiResult<Vec<(u32, f32)>> {
    let mut all = Vec::new();
    for (id, bias) in fields.into_rest() {
        let place = "logit_bias";
        let is_id = id.len() < 10 && id.bytes().all(|byte| byte.is_ascii_digit());
        let number = Some(&id).filter(|_| is_id).and_then(|id| id.parse().ok());
        let number = number.ok_or_else(|| {
            ApiError::field(place, format!("{} is no token id", short(&Value::from(id.as_str()))))
        })?;
        let wrong = || ApiError::field(place, format!("the bias of token {number} is no number"));
        all.push((number, float(&bias).ok_or_else(wrong)?));
    }
    Ok(all)
}

/// A number that an f32 can hold.
pub(crate) fn float(value: &Value) -> Option<f32> {
    let most = f64::from(f32::MAX);
    value.as_f64().filter(|x| x.abs() <= most).map(|x| x as f32)
}

/// A whole number, which may be written with a fraction of zero.
fn whole(value: &Value) -> Option<i64> {
    let exact = |x: &f64| x.fract() == 0.0 && x.abs() <= 2f64.powi(53);
    value.as_i64().or_else(|| value.as_f64().filter(exact).map(|x| x as i64))
}

/// A token id.
pub(crate) fn id(value: &Value) -> Option<u32> {
    whole(value).and_then(|id| u32::try_from(id).ok())
}

/// The type of a value in words.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// A value for a message: itself if it is short.
fn short(value: &Value) -> String {
    let text = value.to_string();
    if text.len() <= 40 { text } else { kind(value).to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(json: &str) -> Fields {
        Fields::parse(json.as_bytes()).unwrap()
    }

    #[test]
    fn a_field_acts_or_is_inert_or_is_refused_or_is_named() {
        let mut read = fields(r#"{"n": 2, "user": "u", "foo": 1, "bar": null}"#);
        assert_eq!(read.count("n").unwrap(), Some(2));
        assert_eq!(read.finish(false).unwrap(), ["foo"]);
        let error = fields(r#"{"foo": 1}"#).finish(true).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("foo"));
        for (name, _) in UNSUPPORTED {
            let error = fields(&format!(r#"{{"{name}": 1}}"#)).finish(false).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(*name));
            assert!(fields(&format!(r#"{{"{name}": null}}"#)).finish(true).unwrap().is_empty());
        }
        for name in INERT {
            assert!(fields(&format!(r#"{{"{name}": 1}}"#)).finish(true).unwrap().is_empty());
        }
    }

    #[test]
    fn wrong_types_name_the_field() {
        let json = r#"{"a": "x", "b": 1.5, "c": -1, "d": [1], "e": 1e300, "f": {"g": true}}"#;
        let mut read = fields(json);
        assert_eq!(read.bool("a").unwrap_err().param.as_deref(), Some("a"));
        assert!(read.count("b").is_err());
        assert!(read.count("c").is_err());
        assert!(read.strings("d").is_err());
        assert!(read.number("e").is_err());
        let mut inner = read.object("f").unwrap().unwrap();
        assert_eq!(inner.number("g").unwrap_err().param.as_deref(), Some("f.g"));
        assert!(Fields::parse(b"[]").is_err());
        assert!(Fields::parse(b"{").is_err());
    }

    #[test]
    fn sampling_takes_what_the_request_says_and_leaves_the_rest() {
        let base = SamplingParams { top_k: 7, ..SamplingParams::default() };
        let mut read = fields(
            r#"{"temperature": 0.5, "seed": 0, "logit_bias": {"3": -100}, "top_k": null, "min_p": 1}"#,
        );
        let params = sampling(&mut read, base).unwrap();
        assert_eq!((params.temperature, params.top_k, params.min_p), (0.5, 7, 1.0));
        assert_eq!((params.seed, params.logit_bias), (Some(0), vec![(3, -100.0)]));
        let whole = sampling(&mut fields(r#"{"seed": 94.0}"#), SamplingParams::default());
        assert_eq!(whole.unwrap().seed, Some(94));
        let negative = sampling(&mut fields(r#"{"seed": -1}"#), SamplingParams::default());
        assert_eq!(negative.unwrap().seed, None);
        for bad in [
            r#"{"logit_bias": {"x": 1}}"#,
            r#"{"logit_bias": {"+1": 1}}"#,
            r#"{"logit_bias": {"1": "x"}}"#,
            r#"{"seed": 1.5}"#,
            // As an f32 they are 1 and 0.
            r#"{"top_p": 1.0000000000000002}"#,
            r#"{"min_p": -1e-300}"#,
        ] {
            assert!(sampling(&mut fields(bad), SamplingParams::default()).is_err(), "{bad}");
        }
    }
}
