//! Models by their name on the hub: `org/name[:QUANT][@revision]`, `org/name/file.gguf[@revision]`.
//!
//! Owns what such a name means and the way from it to files of the cache that other tools share. Refuses to open a
//! model, and to ask the network for what the cache holds whole.

mod cache;
mod choose;
#[cfg(feature = "hub")]
mod download;
#[cfg(feature = "hub")]
mod remote;

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use longrun_lm::{Error, Result};

use cache::Cache;
#[cfg(feature = "hub")]
pub(crate) use remote::certificates;

/// Longest organisation, name or file name.
const MAX_PART: usize = 96;
/// Longest revision and longest path of a file.
const MAX_PATH: usize = 512;

/// A model on the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HubName {
    /// `org/name`
    repo: String,
    /// A branch, a tag or a commit.
    revision: String,
    file: Wanted,
}

/// Which of a repository's weights.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Wanted {
    /// The safetensors, or the only GGUF file.
    Any,
    /// The GGUF file of this quantisation.
    Quant(String),
    /// This GGUF file.
    File(String),
}

impl HubName {
    /// The name, if `text` can be one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (rest, revision) = match text.split_once('@') {
            Some((rest, revision)) => (rest, revision),
            None => (text, "main"),
        };
        let mut parts = rest.splitn(3, '/');
        let (org, name, file) = (parts.next()?, parts.next()?, parts.next());
        let (name, quant) = match name.split_once(':') {
            Some((name, quant)) => (name, Some(quant)),
            None => (name, None),
        };
        let file = match (file, quant) {
            (None, None) => Wanted::Any,
            (None, Some(quant)) if is_part(quant) => Wanted::Quant(quant.to_owned()),
            (Some(file), None) if file.ends_with(".gguf") && is_path(file) => {
                Wanted::File(file.to_owned())
            }
            _ => return None,
        };
        let is_file = name.ends_with(".gguf") || name.ends_with(".safetensors");
        let good = is_repo_part(org) && is_repo_part(name) && !is_file && is_path(revision);
        good.then(|| Self { repo: format!("{org}/{name}"), revision: revision.to_owned(), file })
    }

    /// The model's folder or GGUF file, downloaded first where the cache does not hold it whole.
    ///
    /// # Errors
    /// The hub is out of reach, does not have it or does not give it; it is not a model that can be run; the disk
    /// is full.
    pub(crate) fn find(&self) -> Result<PathBuf> {
        let cache = Cache::from_env().map_err(|e| e.at(self))?;
        let kept = cache.weights(self);
        match kept {
            Some((path, true)) => return Ok(path),
            Some((path, false)) if offline() => return Ok(path),
            None if offline() => {
                return Err(self.absent(&cache, "HF_HUB_OFFLINE is set").at(self));
            }
            _ => {}
        }
        self.fetch(&cache, kept.map(|(path, _)| path)).map_err(|e| e.at(self))
    }

    #[cfg(feature = "hub")]
    fn fetch(&self, cache: &Cache, kept: Option<PathBuf>) -> Result<PathBuf> {
        match (download::fetch(self, cache), kept) {
            (Ok(path), _) | (Err(remote::Failure::Unreachable(_)), Some(path)) => Ok(path),
            (Err(remote::Failure::Unreachable(why)), None) => Err(self.absent(cache, &why)),
            (Err(remote::Failure::Other(error)), _) => Err(error),
        }
    }

    #[cfg(not(feature = "hub"))]
    fn fetch(&self, cache: &Cache, kept: Option<PathBuf>) -> Result<PathBuf> {
        kept.ok_or_else(|| {
            let what = "this build cannot download: it was made without the feature `hub`";
            Error::unsupported(format!("{what} ({})", self.looked_for(cache)))
                .hint(format!("download it with `hf download {}` and name the folder", self.repo))
        })
    }

    /// The error where the network is out of reach and the cache does not do.
    fn absent(&self, cache: &Cache, why: &str) -> Error {
        Error::file(format!("{why}, and {}", self.looked_for(cache))).hint(format!(
            "if a folder was meant, there is none of this name; else download the model where there is a network \
             (`hf download {}`) and copy the cache here, or name the copied folder",
            self.repo
        ))
    }

    fn looked_for(&self, cache: &Cache) -> String {
        let what = match &self.file {
            Wanted::Any => "config.json with all safetensors, or a GGUF file,",
            Wanted::Quant(_) | Wanted::File(_) => "its GGUF file",
        };
        let folder = cache.repo(&self.repo);
        format!("the cache has no whole copy: looked for {what} in {}", folder.display())
    }
}

impl fmt::Display for HubName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repo)?;
        match &self.file {
            Wanted::Any => {}
            Wanted::Quant(quant) => write!(f, ":{quant}")?,
            Wanted::File(file) => write!(f, "/{file}")?,
        }
        write!(f, "@{}", self.revision)
    }
}

/// A variable of the environment that is set to something.
fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// Whether the user forbade the network, in the way that other tools understand, too.
fn offline() -> bool {
    let yes = |value: OsString| {
        let value = value.to_string_lossy().to_ascii_lowercase();
        ["1", "on", "yes", "true"].contains(&value.as_str())
    };
    variable("HF_HUB_OFFLINE").or_else(|| variable("TRANSFORMERS_OFFLINE")).is_some_and(yes)
}

/// Whether `text` can be one part of a path on every system, and leads nowhere else.
fn is_part(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-+=, ()".contains(c);
    (1..=MAX_PART * 2).contains(&text.len())
        && text.chars().all(plain)
        && !text.starts_with('.')
        && !text.ends_with([' ', '.'])
}

/// Whether `text` is parts with `/` between them.
fn is_path(text: &str) -> bool {
    text.len() <= MAX_PATH && text.split('/').all(is_part)
}

/// Whether `text` can be an organisation or a model; the hub knows no others.
fn is_repo_part(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let edge = |c: char| ".-".contains(c);
    (1..=MAX_PART).contains(&text.len())
        && text.chars().all(plain)
        && !text.starts_with(edge)
        && !text.ends_with(edge)
        && !text.contains("..")
        && !text.contains("--")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_paths() {
        let name = |text: &str| HubName::parse(text).map(|name| name.to_string());
        for (text, wants) in [
            ("Qwen/Qwen3.5-0.8B", "Qwen/Qwen3.5-0.8B@main"),
            ("a/b@refs/pr/1", "a/b@refs/pr/1"),
            ("a/b:Q4_K_M", "a/b:Q4_K_M@main"),
            ("a/b:Q4_K_M@v1.0", "a/b:Q4_K_M@v1.0"),
            ("a/b/c.gguf", "a/b/c.gguf@main"),
            ("a/b/Q8_0/c d.gguf@v1", "a/b/Q8_0/c d.gguf@v1"),
        ] {
            assert_eq!(name(text).as_deref(), Some(wants));
        }
        for text in [
            "",
            "demo",
            "gpt2",
            "/a/b",
            "a/",
            "./a",
            "../a",
            "a/..",
            "~/a",
            "a/b/c",
            "a/b/",
            "a//b",
            "a\\b",
            "a/b.gguf",
            "models/x.safetensors",
            "a/b@",
            "a/b@../x",
            "a/b@x/../y",
            "a/b@/x",
            "a/b:",
            "a/b:x/y",
            "a/b/../c.gguf",
            "a/b/.gguf",
            "a/b/c.gguf:Q",
            "a--b/c",
            "a/-b",
            "a/b\0",
            "a/é",
            "a/b:Q4/c.gguf",
        ] {
            assert_eq!(name(text), None, "{text:?}");
        }
        let long = format!("a/{}", "b".repeat(MAX_PART + 1));
        assert_eq!(name(&long), None);
    }
}
