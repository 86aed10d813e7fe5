//! Kernels, compiled at first use and kept on disk.
//!
//! Owns the cache: one file for each source, architecture and version of the compiler. A file is written beside its place
//! and renamed into it, so that processes that start at the same time see a whole one or none. A cache that can't be
//! read or written costs time and nothing else.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::driver::Context;
use super::kernel::{Function, Module};
use super::nvrtc::{Nvrtc, Text};
use super::sources::{Family, headers};

/// The kernels of a device.
pub(super) struct Kernels {
    nvrtc: Nvrtc,
    architecture: String,
    headers: Vec<Text>,
    folder: Option<PathBuf>,
    functions: HashMap<(Family, &'static str), Function>,
    modules: HashMap<Family, Module>,
}

/// The architecture of a compute capability, with the instructions that only it has.
pub(super) fn architecture((major, minor): (u32, u32)) -> String {
    let own = if major >= 9 { "a" } else { "" };
    format!("sm_{major}{minor}{own}")
}

impl Kernels {
    /// # Errors
    /// There is no compiler.
    pub(super) fn new(context: &Context) -> Result<Self, String> {
        Ok(Self {
            nvrtc: Nvrtc::find()?,
            architecture: architecture(context.capability),
            headers: headers(),
            folder: cache_folder(),
            functions: HashMap::new(),
            modules: HashMap::new(),
        })
    }

    /// The architecture that kernels are compiled for.
    pub(super) fn architecture(&self) -> &str {
        &self.architecture
    }

    /// A kernel of a family, which is compiled and loaded if it is the first.
    ///
    /// # Errors
    /// It does not compile, or does not load.
    pub(super) fn get(&mut self, family: Family, name: &'static str) -> Result<Function, String> {
        if let Some(function) = self.functions.get(&(family, name)) {
            return Ok(*function);
        }
        if !self.modules.contains_key(&family) {
            let module = self.load(family)?;
            self.modules.insert(family, module);
        }
        let function = self.modules[&family].function(name)?;
        self.functions.insert((family, name), function);
        Ok(function)
    }

    fn load(&self, family: Family) -> Result<Module, String> {
        let source = family.source();
        let file = self.folder.as_ref().map(|folder| {
            let (major, minor) = self.nvrtc.version();
            let hash = hash(&source, &self.headers);
            let name = source.name.trim_end_matches(".cu");
            let architecture = &self.architecture;
            folder.join(format!("{name}-{architecture}-{major}.{minor}-{hash:032x}.cubin"))
        });
        let kept = file.as_ref().and_then(|file| fs::read(file).ok());
        if let Some(Ok(module)) = kept.map(|cubin| Module::new(&cubin)) {
            return Ok(module);
        }
        let cubin = self.nvrtc.compile(&source, &self.headers, &self.architecture)?;
        if let Some(file) = file {
            // A cache is a favour: without it the next process compiles again.
            let _ = keep(&file, &cubin);
        }
        Module::new(&cubin)
    }
}

/// Where cubins are kept; `None` without a home.
fn cache_folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(base.join("longrun").join("cuda"))
}

/// Writes a file that others see whole or not at all.
fn keep(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    let beside = file.with_extension(format!("{}.tmp", std::process::id()));
    let written = fs::write(&beside, bytes).and_then(|()| fs::rename(&beside, file));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

/// FNV-1a of 128 bits over all that a cubin is made from.
fn hash(source: &Text, headers: &[Text]) -> u128 {
    let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for text in std::iter::once(source).chain(headers) {
        for byte in text.name.bytes().chain([0]).chain(text.text.bytes()).chain([0]) {
            hash = (hash ^ u128::from(byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b);
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    /// Compiles every family for every architecture that the compiler knows of these. With `LONGRUN_NVRTC` set, a missing
    /// compiler is a failure.
    #[test]
    fn every_kernel_compiles() {
        let nvrtc = match Nvrtc::find() {
            Ok(nvrtc) => nvrtc,
            Err(error) if std::env::var_os("LONGRUN_NVRTC").is_none() => {
                return eprintln!("kernels were not compiled: {error}");
            }
            Err(error) => panic!("{error}"),
        };
        for capability in [(8, 0), (9, 0), (10, 0)] {
            if capability.0 >= 10 && nvrtc.version() < (12, 8) {
                continue;
            }
            for family in Family::ALL {
                let architecture = architecture(capability);
                let cubin = nvrtc.compile(&family.source(), &headers(), &architecture);
                assert!(cubin.unwrap_or_else(|error| panic!("{error}")).starts_with(b"\x7fELF"));
            }
        }
    }

    #[test]
    fn what_is_kept_depends_on_names_and_texts() {
        let text = |name, text| Text { name, text: Cow::Borrowed(text) };
        let all = [
            hash(&text("a", "b"), &[]),
            hash(&text("ab", ""), &[]),
            hash(&text("a", "b"), &[text("c", "")]),
            hash(&text("a", "bc"), &[]),
        ];
        assert!((1..all.len()).all(|i| !all[..i].contains(&all[i])));
    }

    #[test]
    fn a_file_is_kept_whole() {
        let folder = std::env::temp_dir().join(format!("longrun-cuda-{}", std::process::id()));
        let file = folder.join("deep").join("x.cubin");
        keep(&file, b"one").unwrap();
        keep(&file, b"two").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"two");
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
        fs::remove_dir_all(folder).unwrap();
    }
}
