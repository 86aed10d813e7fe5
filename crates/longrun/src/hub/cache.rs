//! The folder of downloaded models that other tools share: blobs, refs, snapshots.
//!
//! Owns where things are in it and what counts as whole. Refuses to write a snapshot's file other than as a link to a
//! blob, and to trust a file of the cache for a path.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use longrun_lm::{Error, Result};
use serde::Deserialize;

use super::{HubName, Wanted, choose, is_part, variable};

/// Largest `model.safetensors.index.json`.
const MAX_INDEX: u64 = 64 << 20;
/// Folders below a snapshot that are searched for GGUF files, and files looked at.
const MAX_DEPTH: usize = 3;
const MAX_FILES: usize = 10_000;

/// The cache.
#[derive(Debug)]
pub(super) struct Cache {
    root: PathBuf,
}

impl Cache {
    /// Where the environment says it is, by the rules of the hub's own tools.
    pub(super) fn from_env() -> Result<Self> {
        let root = variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE"));
        if let Some(root) = root {
            return Ok(Self { root: root.into() });
        }
        Ok(Self { root: home()?.join("hub") })
    }

    /// The folder of a model.
    pub(super) fn repo(&self, repo: &str) -> PathBuf {
        self.root.join(folder_name(repo))
    }

    /// The commit that a revision stands for, as far as the cache knows.
    fn commit(&self, name: &HubName) -> Option<String> {
        let repo = self.repo(&name.repo);
        if is_commit(&name.revision) && repo.join("snapshots").join(&name.revision).is_dir() {
            return Some(name.revision.clone());
        }
        let mut text = String::new();
        let file = fs::File::open(repo.join("refs").join(&name.revision)).ok()?;
        file.take(128).read_to_string(&mut text).ok()?;
        Some(text.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    /// The weights in the cache, and whether they come with all that a model needs.
    pub(super) fn weights(&self, name: &HubName) -> Option<(PathBuf, bool)> {
        let snapshot = self.snapshot(&name.repo, &self.commit(name)?);
        match &name.file {
            Wanted::File(file) => {
                Some(snapshot.join(file)).filter(|p| p.is_file()).map(|p| (p, true))
            }
            Wanted::Quant(quant) => {
                let files = gguf_files(&snapshot);
                let [one] = choose::of_quant(&files, quant)[..] else { return None };
                Some((snapshot.join(one), true))
            }
            Wanted::Any if is_whole(&snapshot) => {
                let tokenizer = snapshot.join("tokenizer.json").is_file();
                Some((snapshot, tokenizer))
            }
            Wanted::Any => {
                // Whether the hub has others is not known.
                let files = gguf_files(&snapshot);
                let [one] = choose::models(&files)[..] else { return None };
                Some((snapshot.join(one), false))
            }
        }
    }

    /// The folder of a commit's files.
    pub(super) fn snapshot(&self, repo: &str, commit: &str) -> PathBuf {
        self.repo(repo).join("snapshots").join(commit)
    }
}

#[cfg(feature = "hub")]
impl Cache {
    /// The file of a blob.
    pub(super) fn blob(&self, repo: &str, etag: &str) -> PathBuf {
        self.repo(repo).join("blobs").join(etag)
    }

    /// The lock that other tools take, too, while they write a blob.
    pub(super) fn lock(&self, repo: &str, etag: &str) -> PathBuf {
        self.root.join(".locks").join(folder_name(repo)).join(format!("{etag}.lock"))
    }

    /// Makes `file` of a snapshot a link to a blob.
    pub(super) fn link(&self, repo: &str, commit: &str, file: &str, etag: &str) -> io::Result<()> {
        let at = self.snapshot(repo, commit).join(file);
        fs::create_dir_all(at.parent().unwrap_or(&at))?;
        let up = "../".repeat(2 + file.matches('/').count());
        let to = PathBuf::from(format!("{up}blobs/{etag}"));
        if fs::read_link(&at).is_ok_and(|link| link == to) {
            return Ok(());
        }
        let new = fresh(&at);
        let _ = fs::remove_file(&new);
        #[cfg(unix)]
        std::os::unix::fs::symlink(to, &new)?;
        // A link of another kind needs rights there that people do not have.
        #[cfg(not(unix))]
        fs::hard_link(self.blob(repo, etag), &new)?;
        fs::rename(&new, &at)
    }

    /// Lets a revision stand for a commit. Last of all: a revision leads to whole snapshots only.
    pub(super) fn set_ref(&self, name: &HubName, commit: &str) -> io::Result<()> {
        if name.revision == commit {
            return Ok(());
        }
        let path = self.repo(&name.repo).join("refs").join(&name.revision);
        fs::create_dir_all(path.parent().unwrap_or(&path))?;
        let new = fresh(&path);
        fs::write(&new, commit)?;
        fs::rename(&new, &path)
    }
}

/// A name beside `path` that no other process uses.
#[cfg(feature = "hub")]
fn fresh(path: &Path) -> PathBuf {
    path.with_file_name(format!(".{}.new", std::process::id()))
}

/// Where the tools of the hub keep what is theirs.
pub(super) fn home() -> Result<PathBuf> {
    if let Some(home) = variable("HF_HOME") {
        return Ok(home.into());
    }
    let cache = variable("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(std::env::home_dir()?.join(".cache")));
    cache.map(|cache| cache.join("huggingface")).ok_or_else(|| {
        Error::file("there is no home directory to keep models in").hint("set HF_HOME to a folder")
    })
}

fn folder_name(repo: &str) -> String {
    format!("models--{}", repo.replace('/', "--"))
}

/// Whether `text` is the full name of a commit.
pub(super) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// The part of an index that names files.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The files that an index names, each once.
///
/// # Errors
/// It is no index, or names a file that is not beside it.
pub(super) fn shards(index: &Path) -> Result<Vec<String>> {
    let bad = |what: String| Error::file(what).at(index.display());
    let file = fs::File::open(index).map_err(|e| bad(format!("can't be read: {e}")))?;
    let index: Index = serde_json::from_reader(io::BufReader::new(file.take(MAX_INDEX)))
        .map_err(|e| bad(format!("it is no valid index: {e}")))?;
    let mut names: Vec<String> = index.weight_map.into_values().collect();
    names.sort_unstable();
    names.dedup();
    match names.iter().find(|name| !(is_part(name) && name.ends_with(".safetensors"))) {
        Some(name) => Err(bad(format!("{name:?} is not the name of a file beside it"))),
        None => Ok(names),
    }
}

/// Whether a folder has a config and all safetensors, as far as its own files tell.
fn is_whole(folder: &Path) -> bool {
    let has = |file: &str| folder.join(file).is_file();
    has("config.json")
        && (has(choose::SINGLE)
            || shards(&folder.join(choose::INDEX))
                .is_ok_and(|shards| !shards.is_empty() && shards.iter().all(|shard| has(shard))))
}

/// The GGUF files below a folder, as paths with `/`, sorted.
fn gguf_files(folder: &Path) -> Vec<String> {
    let mut files = Vec::new();
    let mut folders = vec![(folder.to_owned(), String::new(), 0)];
    while let Some((folder, prefix, depth)) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Some(name) = entry.file_name().to_str().map(|name| format!("{prefix}{name}"))
            else {
                continue;
            };
            let path = entry.path();
            if path.is_dir() && depth < MAX_DEPTH {
                folders.push((path, format!("{name}/"), depth + 1));
            } else if name.ends_with(".gguf") && path.is_file() && files.len() < MAX_FILES {
                files.push(name);
            }
        }
    }
    files.sort_unstable();
    files
}
