//! Where the files of a checkpoint are: a folder on disk or a table compiled into the program.
//!
//! Owns opening, bounded reading and mapping by plain file name. Refuses names with a path in them
//! and files larger than their stated bound.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::{Deref, Range};
use std::path::{Component, Path, PathBuf};

use longrun_array::mapped::MappedFile;

use crate::{Error, Result};

/// A file compiled into the program: name, contents.
pub type EmbeddedFile = (&'static str, &'static [u8]);

/// Most weight files a folder may hold; the largest public checkpoints have a few hundred.
const MAX_WEIGHT_FILES: usize = 4096;

/// The bytes of one weight file.
#[derive(Debug)]
pub(super) enum Bytes {
    Mapped(MappedFile),
    Static(&'static [u8]),
}

impl Bytes {
    /// Lets go of pages; see [`MappedFile::forget_pages`].
    pub(super) fn forget(&self, range: Range<usize>) {
        if let Self::Mapped(file) = self {
            file.forget_pages(range);
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(file) => file,
            Self::Static(bytes) => bytes,
        }
    }
}

/// A flat set of named files.
#[derive(Debug)]
pub(super) enum Folder {
    Disk(PathBuf),
    Embedded(&'static [EmbeddedFile]),
}

impl Folder {
    /// What messages call it.
    pub(super) fn label(&self) -> String {
        match self {
            Self::Disk(path) => path.display().to_string(),
            Self::Embedded(_) => "embedded model".into(),
        }
    }

    /// The names that end in `.safetensors` or `.gguf`, sorted.
    pub(super) fn weight_files(&self) -> Result<Vec<String>> {
        let is_weight = |name: &str| name.ends_with(".safetensors") || name.ends_with(".gguf");
        let mut names: Vec<String> = Vec::new();
        match self {
            Self::Disk(path) => {
                let entries = fs::read_dir(path).map_err(|e| unreadable(&e).at(self.label()))?;
                for entry in entries {
                    let entry = entry.map_err(|e| unreadable(&e).at(self.label()))?;
                    // A name that is not Unicode is none of ours.
                    let Ok(name) = entry.file_name().into_string() else { continue };
                    if is_weight(&name) {
                        names.push(name);
                    }
                    if names.len() > MAX_WEIGHT_FILES {
                        let what = format!("more than {MAX_WEIGHT_FILES} weight files");
                        return Err(Error::file(what).at(self.label()));
                    }
                }
            }
            Self::Embedded(files) => {
                names.extend(files.iter().map(|f| f.0).filter(|n| is_weight(n)).map(str::to_owned))
            }
        }
        names.sort();
        Ok(names)
    }

    /// Maps a weight file.
    pub(super) fn map(&self, name: &str) -> Result<Bytes> {
        match self {
            Self::Disk(path) => map_file(&path.join(plain_name(name)?)).map_err(|e| e.at(name)),
            Self::Embedded(files) => files
                .iter()
                .find(|file| file.0 == name)
                .map(|file| Bytes::Static(file.1))
                .ok_or_else(|| Error::file("the file is missing").at(name)),
        }
    }

    /// Reads a small file of at most `limit` bytes, or `None` if there is none of that name.
    pub(super) fn read(&self, name: &str, limit: u64) -> Result<Option<Cow<'static, [u8]>>> {
        let bytes = match self {
            Self::Disk(path) => match read_bounded(&path.join(name), limit) {
                Ok(bytes) => Cow::Owned(bytes),
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(e) => return Err(unreadable(&e).at(name)),
            },
            Self::Embedded(files) => match files.iter().find(|file| file.0 == name) {
                Some(file) => Cow::Borrowed(file.1),
                None => return Ok(None),
            },
        };
        if bytes.len() as u64 > limit {
            let what = format!("the file is larger than the {limit} bytes allowed for it");
            return Err(Error::file(what).at(name));
        }
        Ok(Some(bytes))
    }
}

/// Maps the file at `path`, to be packed from front to back.
pub(super) fn map_file(path: &Path) -> Result<Bytes> {
    let file = MappedFile::open(path).map_err(|e| unreadable(&e))?;
    file.advise_sequential();
    Ok(Bytes::Mapped(file))
}

/// `name` itself if it names a file of the same folder and cannot lead out of it.
pub(super) fn plain_name(name: &str) -> Result<&str> {
    let mut parts = Path::new(name).components();
    let plain =
        matches!((parts.next(), parts.next()), (Some(Component::Normal(p)), None) if p == name);
    // The last three are separators or streams on other systems: refuse them on every system.
    if plain && !name.contains(['\\', ':', '\0']) {
        return Ok(name);
    }
    Err(Error::file(format!("{name:?} is not a plain file name"))
        .hint("shards must lie beside their index"))
}

fn unreadable(error: &io::Error) -> Error {
    Error::file(format!("cannot read the file: {error}"))
}

/// At most `limit + 1` bytes, so that the caller can tell a file that is too large.
fn read_bounded(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let meta = fs::metadata(path)?;
    if !meta.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut bytes = Vec::with_capacity(meta.len().min(limit) as usize + 1);
    File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
