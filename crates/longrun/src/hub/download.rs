//! Files of the hub into the cache.
//!
//! Owns the order of a download, which files it has, and what makes a blob whole: its size, and its hash where the hub
//! names one. Refuses to give a file its name before that.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use longrun_lm::{Error, Result};
use ring::digest::{Context, SHA256};
use ureq::http::{StatusCode, header};

use super::cache::{Cache, shards};
use super::choose;
use super::remote::{Failure, Fetched, Listing, Meta, Remote};
use super::{HubName, Wanted};
use crate::show;

/// Largest file beside the weights, and largest file of weights.
const MAX_SMALL: u64 = 256 << 20;
const MAX_WEIGHTS: u64 = 1 << 42;
/// Times that a connection may break without a byte in between.
const MAX_BREAKS: u32 = 3;
const FIRST_WAIT: Duration = Duration::from_millis(200);
/// Choices that an error lists.
const MAX_LISTED: usize = 24;

/// Downloads what the cache lacks. Gives the folder or the GGUF file.
pub(super) fn fetch(name: &HubName, cache: &Cache) -> Fetched<PathBuf> {
    let remote = Remote::from_env()?;
    let listing = remote.listing(name)?;
    let download = Download { name, cache, remote: &remote, listing: &listing };
    let snapshot = cache.snapshot(&name.repo, &listing.commit);
    let path = match gguf(name, &listing.files)? {
        Some(file) => {
            download.all(&[file], MAX_WEIGHTS)?;
            snapshot.join(file)
        }
        None => {
            download.all(&choose::small(&listing.files), MAX_SMALL)?;
            let weights = download.weights(&snapshot)?;
            download.all(&weights.iter().map(String::as_str).collect::<Vec<_>>(), MAX_WEIGHTS)?;
            snapshot
        }
    };
    cache.set_ref(name, &listing.commit).map_err(|e| disk(&e, &cache.repo(&name.repo)))?;
    Ok(path)
}

/// The GGUF file to take; None where it is safetensors.
fn gguf<'a>(name: &HubName, files: &'a [String]) -> Result<Option<&'a str>> {
    let has = |file: &str| files.iter().any(|f| f == file);
    let safetensors = !choose::safetensors(files).is_empty();
    let all = choose::models(files);
    let found = match &name.file {
        Wanted::Any if safetensors && has("config.json") => return Ok(None),
        Wanted::Any => all.clone(),
        Wanted::Quant(quant) => choose::of_quant(files, quant),
        Wanted::File(file) => files.iter().filter(|f| *f == file).map(String::as_str).collect(),
    };
    match found[..] {
        [one] if !choose::is_split(one) => Ok(Some(one)),
        [] if all.is_empty() => {
            let what = match safetensors {
                true => "the repository has no GGUF files, and safetensors without config.json",
                false => "the repository has neither safetensors nor GGUF files",
            };
            let what = if safetensors && has("config.json") {
                "the repository has no GGUF files"
            } else {
                what
            };
            Err(Error::file(what).hint("look for one that has, or name the model without a file"))
        }
        [first, ..] if choose::is_split(first) && name.file != Wanted::Any => {
            Err(Error::unsupported(format!("{first:?} is one of several parts of a model"))
                .hint("choose one that is a single file, or merge the parts"))
        }
        _ => Err(choices(name, &all, found.is_empty())),
    }
}

/// The error that lists a repository's GGUF files.
fn choices(name: &HubName, all: &[&str], none: bool) -> Error {
    let whole: Vec<&str> = all.iter().copied().filter(|file| !choose::is_split(file)).collect();
    let mut list: Vec<String> =
        whole.iter().take(MAX_LISTED).map(|file| format!("{}/{file}", name.repo)).collect();
    if whole.len() > MAX_LISTED {
        list.push(format!("and {} more", whole.len() - MAX_LISTED));
    }
    let what = if none { "no such GGUF file" } else { "more than one GGUF file fits" };
    Error::usage(format!("{what}; there are: {}", list.join(", ")))
        .hint(format!("name one of them, or its quantisation as in {}:Q8_0", name.repo))
}

/// One download.
struct Download<'a> {
    name: &'a HubName,
    cache: &'a Cache,
    remote: &'a Remote,
    listing: &'a Listing,
}

impl Download<'_> {
    /// The safetensors of the model; the index lies in the snapshot where there is one.
    fn weights(&self, snapshot: &Path) -> Result<Vec<String>> {
        let files = &self.listing.files;
        let has = |file: &str| files.iter().any(|f| f == file);
        if has(choose::SINGLE) {
            return Ok(vec![choose::SINGLE.to_owned()]);
        }
        if !has(choose::INDEX) {
            return Ok(choose::safetensors(files).into_iter().map(str::to_owned).collect());
        }
        let shards = shards(&snapshot.join(choose::INDEX))?;
        match shards.iter().find(|shard| !has(shard)) {
            Some(shard) => {
                Err(Error::file(format!("the index names {shard:?}, which the hub does not have")))
            }
            None => Ok(shards),
        }
    }

    /// Downloads those files that the snapshot lacks.
    fn all(&self, files: &[&str], limit: u64) -> Fetched<()> {
        let (repo, commit) = (&self.name.repo, &self.listing.commit);
        let snapshot = self.cache.snapshot(repo, commit);
        let mut missing = Vec::new();
        for file in files.iter().filter(|file| !snapshot.join(file).is_file()) {
            let meta = self.remote.meta(self.name, commit, file)?;
            if meta.size > limit {
                let what = format!("{}, more than the {limit} allowed for it", meta.size);
                return Err(Error::file(what).at(file).into());
            }
            missing.push((*file, meta));
        }
        let size: u64 = missing.iter().map(|(_, meta)| meta.size).sum();
        if limit == MAX_WEIGHTS && size > 0 {
            let (size, to) = (show::bytes(size), self.cache.repo(repo));
            show::note(&format!(
                "longrun: downloading {}: {size} into {}",
                self.name,
                to.display()
            ));
        }
        let bar = bar(size);
        let mut before = 0;
        for (file, meta) in &missing {
            bar.set_message((*file).to_owned());
            self.blob(file, meta, &|bytes| bar.set_position(before + bytes))?;
            self.cache
                .link(repo, commit, file, &meta.etag)
                .map_err(|e| disk(&e, &snapshot.join(file)))?;
            before += meta.size;
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Sees to it that a blob is whole.
    fn blob(&self, file: &str, meta: &Meta, seen: &dyn Fn(u64)) -> Fetched<()> {
        let repo = &self.name.repo;
        let blob = self.cache.blob(repo, &meta.etag);
        let lock = self.cache.lock(repo, &meta.etag);
        for path in [&blob, &lock] {
            let folder = path.parent().unwrap_or(path);
            fs::create_dir_all(folder).map_err(|e| disk(&e, folder))?;
        }
        let held = File::create(&lock).map_err(|e| disk(&e, &lock))?;
        if let Err(fs::TryLockError::WouldBlock) = held.try_lock() {
            show::note(&format!("longrun: waiting for another download of {file}"));
            held.lock().map_err(|e| disk(&e, &lock))?;
        }
        if fs::metadata(&blob).is_ok_and(|found| found.len() == meta.size) {
            return Ok(());
        }
        let path = blob.with_file_name(format!("{}.incomplete", meta.etag));
        let mut part = Part::open(&path, meta).map_err(|e| disk(&e, &path))?;
        let resumed = part.length > 0;
        self.fill(file, &mut part, seen)?;
        if !part.is_right() && resumed {
            // The start was another's, and wrong.
            part.restart().map_err(|e| disk(&e, &path))?;
            self.fill(file, &mut part, seen)?;
        }
        if !part.is_right() {
            let _ = fs::remove_file(&path);
            let what = "what came is not what the hub says it should be: its SHA-256 differs";
            return Err(Error::file(what).at(file).hint("try again").into());
        }
        part.file.sync_all().map_err(|e| disk(&e, &path))?;
        Ok(fs::rename(&path, &blob).map_err(|e| disk(&e, &blob))?)
    }

    /// Downloads the rest of a file, over broken connections.
    fn fill(&self, file: &str, part: &mut Part, seen: &dyn Fn(u64)) -> Fetched<()> {
        let (mut breaks, mut furthest) = (0, part.length);
        while part.length < part.size {
            let Some(why) = self.pour(file, part, seen)? else { return Ok(()) };
            breaks = if part.length > furthest { 1 } else { breaks + 1 };
            furthest = furthest.max(part.length);
            if breaks > MAX_BREAKS {
                let (had, all) = (show::bytes(part.length), show::bytes(part.size));
                let what = format!("the download broke after {had} of {all} ({why})");
                let hint = "run it again, and it goes on from there";
                return Err(Error::file(what).at(file).hint(hint).into());
            }
            sleep(FIRST_WAIT * 4_u32.pow(breaks - 1));
        }
        Ok(())
    }

    /// One connection. Gives the reason if it broke.
    fn pour(&self, file: &str, part: &mut Part, seen: &dyn Fn(u64)) -> Fetched<Option<String>> {
        let wrong = |e: io::Error| Failure::Other(disk(&e, Path::new(file)));
        let url = self.remote.url(self.name, &self.listing.commit, file);
        let response = match self.remote.get(&url, part.length) {
            Ok(response) => response,
            Err(why) => return Ok(Some(why)),
        };
        let range = response.headers().get(header::CONTENT_RANGE).and_then(|r| r.to_str().ok());
        let goes_on = range.is_some_and(|r| r.starts_with(&format!("bytes {}-", part.length)));
        match response.status() {
            StatusCode::PARTIAL_CONTENT if goes_on => {}
            StatusCode::OK => part.restart().map_err(wrong)?,
            StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => {
                part.restart().map_err(wrong)?;
                return Ok(Some("the hub does not know where it was".into()));
            }
            _ => match self.remote.refused(self.name, &response, Some(file)) {
                Failure::Unreachable(why) => return Ok(Some(why)),
                refused => return Err(refused),
            },
        }
        let mut body = response.into_body().into_reader();
        let mut buffer = vec![0; 1 << 16];
        loop {
            let read = match body.read(&mut buffer) {
                Ok(0) if part.length == part.size => return Ok(None),
                Ok(0) => return Ok(Some("it ended too early".into())),
                Ok(read) => read,
                Err(e) => return Ok(Some(e.to_string())),
            };
            if read as u64 > part.size - part.length {
                part.restart().map_err(wrong)?;
                return Ok(Some("more came than the hub had said".into()));
            }
            part.take(&buffer[..read]).map_err(wrong)?;
            seen(part.length);
        }
    }
}

/// A file that is not whole yet.
struct Part {
    file: File,
    size: u64,
    length: u64,
    /// The hash to meet, and that of what is there.
    hash: Option<(String, Context)>,
}

impl Part {
    /// What an earlier download left is kept if its hash can be checked in the end.
    fn open(path: &Path, meta: &Meta) -> io::Result<Self> {
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let is_sha256 = meta.etag.len() == 64 && meta.etag.bytes().all(|b| b.is_ascii_hexdigit());
        let mut hash = is_sha256.then(|| (meta.etag.to_ascii_lowercase(), Context::new(&SHA256)));
        let mut length = 0;
        match &mut hash {
            Some((_, hash)) if file.metadata()?.len() <= meta.size => {
                let mut buffer = vec![0; 1 << 16];
                loop {
                    let read = file.read(&mut buffer)?;
                    if read == 0 {
                        break;
                    }
                    hash.update(&buffer[..read]);
                    length += read as u64;
                }
            }
            _ => file.set_len(0)?,
        }
        Ok(Self { file, size: meta.size, length, hash })
    }

    fn restart(&mut self) -> io::Result<()> {
        self.length = 0;
        if let Some((_, hash)) = &mut self.hash {
            *hash = Context::new(&SHA256);
        }
        self.file.seek(SeekFrom::Start(0))?;
        self.file.set_len(0)
    }

    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.length += bytes.len() as u64;
        if let Some((_, hash)) = &mut self.hash {
            hash.update(bytes);
        }
        Ok(())
    }

    fn is_right(&self) -> bool {
        let right = self.hash.as_ref().is_none_or(|(wanted, hash)| {
            let bytes = hash.clone().finish();
            let hex: String = bytes.as_ref().iter().map(|b| format!("{b:02x}")).collect();
            hex == *wanted
        });
        right && self.length == self.size
    }
}

fn disk(error: &io::Error, path: &Path) -> Error {
    let hint = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free some, or set HF_HUB_CACHE to a folder with more; the download goes on from there"
        }
        _ => "HF_HUB_CACHE names the folder where models are kept",
    };
    Error::file(format!("can't be written: {error}")).at(path.display()).hint(hint)
}

/// A bar over bytes.
fn bar(size: u64) -> ProgressBar {
    let bar = show::bar("downloading");
    let style = ProgressStyle::with_template(
        "{msg} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} {eta}",
    );
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_length(size);
    bar
}
