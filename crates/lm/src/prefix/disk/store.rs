//! The form of a store of snapshots in one file: head, manifest, sections of units.
//!
//! Owns bytes and their checks. Refuses whatever does not add up, and to take memory for what the file cannot hold.
//!
//! All numbers are little-endian. The head is `[magic 8, version 4, model 16, form 16, manifest length 8,
//! checksum 16]`; its checksum is of all before it and of the manifest. The manifest is the number of snapshots, the
//! number of units in each section, then each snapshot, the last used first: its length, log, stretch, adapter 16, ids,
//! and for each pool the numbers of its blocks in that pool's section. There is a section for each pool, and one for
//! slots where sequences have records, with as many units as there are snapshots. A unit is its bytes and their
//! checksum, seeded with its place.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use twox_hash::XxHash3_128;

use super::Why;
use crate::adapter::Identity;
use crate::executor::Fingerprint;

const MAGIC: [u8; 8] = *b"LRprefix";
/// Raised with every change of what a store means.
const VERSION: u32 = 2;
const HEAD: usize = 52;
/// Bytes of a checksum.
pub(super) const SUM: usize = 16;
/// The most bytes of a manifest.
const MOST_MANIFEST: u64 = 1 << 30;

/// A snapshot in a manifest.
pub(super) struct Entry {
    /// What it was read with.
    pub(super) adapter: Identity,
    pub(super) ids: Vec<u32>,
    /// How many of the last ones are in the log of its record.
    pub(super) logged: u32,
    pub(super) stretch: f32,
    /// Its blocks of each pool, by their numbers in that pool's section.
    pub(super) blocks: Vec<Vec<u32>>,
}

/// Head and manifest of a store.
pub(super) fn head(fingerprint: Fingerprint, sections: &[u32], entries: &[Entry]) -> Vec<u8> {
    let mut manifest = Vec::new();
    let mut word = |word: u32| manifest.extend_from_slice(&word.to_le_bytes());
    word(entries.len() as u32);
    sections.iter().for_each(|units| word(*units));
    for entry in entries {
        word(entry.ids.len() as u32);
        word(entry.logged);
        word(entry.stretch.to_bits());
        (0..4).for_each(|i| word((entry.adapter.0 >> (32 * i)) as u32));
        entry.ids.iter().chain(entry.blocks.iter().flatten()).for_each(|n| word(*n));
    }
    let mut all = Vec::with_capacity(HEAD + SUM + manifest.len());
    all.extend_from_slice(&MAGIC);
    all.extend_from_slice(&VERSION.to_le_bytes());
    all.extend_from_slice(&fingerprint.model.to_le_bytes());
    all.extend_from_slice(&fingerprint.form.to_le_bytes());
    all.extend_from_slice(&(manifest.len() as u64).to_le_bytes());
    let sum = head_sum(&all, &manifest);
    all.extend_from_slice(&sum);
    all.append(&mut manifest);
    all
}

fn head_sum(head: &[u8], manifest: &[u8]) -> [u8; SUM] {
    let mut hasher = XxHash3_128::new();
    hasher.write(head);
    hasher.write(manifest);
    hasher.finish_128().to_le_bytes()
}

/// The checksum of unit `number` of a section.
pub(super) fn unit_sum(section: usize, number: u32, bytes: &[u8]) -> [u8; SUM] {
    let seed = (section as u64) << 32 | u64::from(number);
    XxHash3_128::oneshot_with_seed(seed, bytes).to_le_bytes()
}

/// Units of one size behind each other.
struct Section {
    at: u64,
    units: u32,
    /// Bytes of a unit, without its checksum.
    bytes: usize,
}

/// An opened store of this model and form.
pub(super) struct Store {
    file: File,
    manifest: Vec<u8>,
    /// Where the next snapshot starts in the manifest.
    at: usize,
    sections: Vec<Section>,
    snapshots: u32,
}

impl Store {
    /// Opens the store at `path`, whose sections have units of these sizes; `None` if there is none.
    pub(super) fn open(
        path: &Path,
        fingerprint: Fingerprint,
        units: &[usize],
        has_slots: bool,
    ) -> Result<Option<Self>, Why> {
        let unreadable = |e: io::Error| Why::Unreadable(e.to_string());
        let meta = match fs::metadata(path) {
            Ok(meta) => meta,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(unreadable(e)),
        };
        if !meta.is_file() {
            return Err(Why::NoStore);
        }
        let mut file = File::open(path).map_err(unreadable)?;
        let length = file.metadata().map_err(unreadable)?.len();
        let mut head = [0; HEAD + SUM];
        file.read_exact(&mut head).map_err(|_| Why::NoStore)?;
        let (head, sum) = head.split_at(HEAD);
        let bytes = manifest_length(head, fingerprint)?;
        if bytes > MOST_MANIFEST.min(length.saturating_sub((HEAD + SUM) as u64)) {
            return Err(Why::Damaged);
        }
        let mut manifest = Vec::new();
        file.by_ref().take(bytes).read_to_end(&mut manifest).map_err(unreadable)?;
        if manifest.len() as u64 != bytes || sum != head_sum(head, &manifest) {
            return Err(Why::Damaged);
        }
        let start = (HEAD + SUM) as u64 + bytes;
        let mut store = Self { file, manifest, at: 0, sections: Vec::new(), snapshots: 0 };
        let end = store.lay_out(start, units, has_slots);
        if end == Some(length) { Ok(Some(store)) } else { Err(Why::Damaged) }
    }

    /// Finds the sections, the first at `start`; gives the end of the last.
    fn lay_out(&mut self, start: u64, units: &[usize], has_slots: bool) -> Option<u64> {
        self.snapshots = self.word()?;
        let mut at = start;
        for &bytes in units {
            let units = self.word()?;
            self.sections.push(Section { at, units, bytes });
            let size = u64::from(units).checked_mul((bytes + SUM) as u64)?;
            at = at.checked_add(size)?;
        }
        let slots = self.sections.last().filter(|_| has_slots).map(|slots| slots.units);
        (slots.unwrap_or(self.snapshots) == self.snapshots).then_some(at)
    }

    fn word(&mut self) -> Option<u32> {
        self.words(1)?.next()
    }

    /// The next words of the manifest, if it has so many.
    fn words(&mut self, count: usize) -> Option<impl Iterator<Item = u32> + use<'_>> {
        let words = self.manifest.get(self.at..)?.get(..count.checked_mul(4)?)?;
        self.at += words.len();
        Some(words.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)))
    }

    /// Snapshots in it.
    pub(super) fn snapshots(&self) -> u32 {
        self.snapshots
    }

    /// The next snapshot, where `needs` says how many blocks of each pool one of this length has.
    pub(super) fn next(&mut self, needs: impl Fn(usize) -> Vec<usize>) -> Result<Entry, Why> {
        self.read_entry(needs).ok_or(Why::Damaged)
    }

    fn read_entry(&mut self, needs: impl Fn(usize) -> Vec<usize>) -> Option<Entry> {
        let length = self.word()? as usize;
        let logged = self.word()?;
        let stretch = f32::from_bits(self.word()?);
        let words = self.words(4)?.zip(0..);
        let adapter = Identity(words.map(|(word, i)| u128::from(word) << (32 * i)).sum());
        let ids: Vec<u32> = self.words(length)?.collect();
        let mut blocks = Vec::new();
        for (i, count) in needs(length).into_iter().enumerate() {
            let numbers: Vec<u32> = self.words(count)?.collect();
            if numbers.iter().any(|number| *number >= self.sections[i].units) {
                return None;
            }
            blocks.push(numbers);
        }
        (length > 0).then_some(Entry { adapter, ids, logged, stretch, blocks })
    }

    /// Reads unit `number` of a section into `bytes`, in place of what is there.
    pub(super) fn unit(
        &mut self,
        section: usize,
        number: u32,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Why> {
        let of = &self.sections[section];
        let at = of.at + u64::from(number) * (of.bytes + SUM) as u64;
        bytes.resize(of.bytes + SUM, 0);
        let read = self.file.seek(SeekFrom::Start(at)).and_then(|_| self.file.read_exact(bytes));
        read.map_err(|e| Why::Unreadable(e.to_string()))?;
        let sum = bytes.split_off(of.bytes);
        if sum == unit_sum(section, number, bytes) { Ok(()) } else { Err(Why::Damaged) }
    }
}

/// The length of the manifest, if the head is of a store of this version, model and form.
fn manifest_length(head: &[u8], fingerprint: Fingerprint) -> Result<u64, Why> {
    let field = |at: usize, bytes: usize| {
        let mut field = [0; 16];
        field[..bytes].copy_from_slice(&head[at..at + bytes]);
        u128::from_le_bytes(field)
    };
    if head[..8] != MAGIC {
        return Err(Why::NoStore);
    }
    let version = field(8, 4) as u32;
    if version != VERSION {
        return Err(Why::Version(version));
    }
    if field(12, 16) != fingerprint.model {
        return Err(Why::Model);
    }
    if field(28, 16) != fingerprint.form {
        return Err(Why::Form);
    }
    Ok(field(44, 8) as u64)
}
