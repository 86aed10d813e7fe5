//! Which files of a repository a text model needs.
//!
//! Owns the choice, over names alone. Refuses pickled weights: reading one can run code.

pub(super) const SINGLE: &str = "model.safetensors";
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// The GGUF files that are language models: a vision projector lies beside its model and is not one.
pub(super) fn models(files: &[String]) -> Vec<&str> {
    let is_model = |file: &&str| {
        let name = file.rsplit('/').next().unwrap_or(file).to_ascii_lowercase();
        name.ends_with(".gguf") && !name.starts_with("mmproj") && !name.contains("imatrix")
    };
    files.iter().map(String::as_str).filter(is_model).collect()
}

/// The GGUF models of a quantisation: their names end in it.
pub(super) fn of_quant<'a>(files: &'a [String], quant: &str) -> Vec<&'a str> {
    let quant = quant.to_ascii_lowercase();
    let matches = |file: &&str| {
        let stem = stem(file).to_ascii_lowercase();
        stem.strip_suffix(&quant)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with(['-', '.', '_', '/']))
    };
    let mut found: Vec<&str> = models(files).into_iter().filter(matches).collect();
    // `Q8_0` is the plain one where there is a `UD-Q8_0`, too.
    let shortest = found.iter().map(|file| file.len()).min();
    let plain = |file: &&str| Some(file.len()) == shortest;
    if found.iter().filter(|file| plain(file)).count() == 1 && !found.iter().any(|f| is_split(f)) {
        found.retain(plain);
    }
    found
}

/// A GGUF file's name without its ending and its number among parts.
fn stem(file: &str) -> &str {
    let stem = file.strip_suffix(".gguf").unwrap_or(file);
    split(stem).map_or(stem, |(stem, _)| stem)
}

/// `name-00001-of-00003`: the name, and how many parts.
fn split(stem: &str) -> Option<(&str, u32)> {
    let number = |text: &str| (text.len() == 5).then(|| text.parse().ok()).flatten();
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (stem, at) = rest.rsplit_once('-')?;
    number(at).and(number(count)).map(|count: u32| (stem, count))
}

/// Whether a GGUF file is one of several parts.
pub(super) fn is_split(file: &str) -> bool {
    split(file.strip_suffix(".gguf").unwrap_or(file)).is_some_and(|(_, count)| count > 1)
}

/// The small files beside the weights, in the order of a download: the weights come last.
#[cfg(feature = "hub")]
pub(super) fn small(files: &[String]) -> Vec<&str> {
    let wanted = |file: &&str| {
        let known = [
            "config.json",
            "generation_config.json",
            "special_tokens_map.json",
            "added_tokens.json",
            INDEX,
        ];
        let text = file.ends_with(".json") || file.ends_with(".jinja") || file.ends_with(".model");
        let named = file.starts_with("tokenizer") || file.starts_with("chat_template");
        known.contains(file) || (text && named)
    };
    files.iter().map(String::as_str).filter(|file| !file.contains('/')).filter(wanted).collect()
}

/// The safetensors that belong to the model.
#[cfg(feature = "hub")]
pub(super) fn safetensors(files: &[String]) -> Vec<&str> {
    let names = files.iter().map(String::as_str).filter(|file| !file.contains('/'));
    names.filter(|file| file.starts_with("model") && file.ends_with(".safetensors")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantisation_names_one_file() {
        let files =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let all = files(&[
            "m-Q4_K.gguf",
            "m-Q4_K_M.gguf",
            "m-Q8_0.gguf",
            "m-UD-Q8_0.gguf",
            "mmproj-Q8_0.gguf",
            "x.Q5_0.gguf",
            "F16/m-F16-00001-of-00002.gguf",
            "F16/m-F16-00002-of-00002.gguf",
            "README.md",
        ]);
        let one = |quant: &str| of_quant(&all, quant).join(" ");
        assert_eq!(one("Q4_K_M"), "m-Q4_K_M.gguf");
        assert_eq!(one("q4_k"), "m-Q4_K.gguf");
        assert_eq!(one("Q8_0"), "m-Q8_0.gguf");
        assert_eq!(one("UD-Q8_0"), "m-UD-Q8_0.gguf");
        assert_eq!(one("Q5_0"), "x.Q5_0.gguf");
        assert_eq!(one("K_M"), "m-Q4_K_M.gguf");
        assert_eq!(one("4_K_M"), "");
        assert_eq!(of_quant(&all, "F16").len(), 2);
        assert!(is_split("F16/m-F16-00001-of-00002.gguf") && !is_split("m-00001-of-00001.gguf"));
        assert_eq!(models(&all).len(), 7);
        let two = files(&["a-Q8_0.gguf", "b-Q8_0.gguf"]);
        assert_eq!(of_quant(&two, "Q8_0").len(), 2, "neither is plainer");
    }
}
