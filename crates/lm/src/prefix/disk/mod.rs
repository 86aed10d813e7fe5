//! Snapshots on disk: what an engine has kept, for the next one of the same model.
//!
//! Owns going through the snapshots, out and in. There is one store for a model in a folder, under the hash of its config
//! and weights; saving puts all that is kept now in its place, whole. Blocks that snapshots share are there once, and are
//! shared again after loading. Loading takes the last used first, until memory is full, and lets nothing go for it.
//! Refuses a store that was not made by this model, with these states, on this kind of device, by this version of the
//! program: it would be wrong in a way that nobody sees. docs/prefixes.md says more.

mod file;
mod store;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::{Place, Prefixes};
use crate::cache::{Facts, Snapshot};
use crate::error::{Error, Kind, Result};
use crate::executor::{Executor, Unit};
use store::{Entry, Store};

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Where.
    pub path: PathBuf,
    /// Snapshots.
    pub snapshots: usize,
    /// Different blocks that they hold.
    pub blocks: usize,
    /// Bytes of the file.
    pub bytes: u64,
}

/// What was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Snapshots that are kept now and were not before.
    pub snapshots: usize,
    /// Blocks that were free before.
    pub blocks: usize,
    /// What was left out.
    pub ignored: Vec<Ignored>,
}

/// Something in a store, or all of it, that was left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ignored {
    /// How many snapshots; `None` for a whole store, which nobody looked into.
    pub snapshots: Option<usize>,
    /// The reason.
    pub why: Why,
}

/// Why something in a store was left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The system said so when it was read.
    Unreadable(String),
    /// It is no store at all.
    NoStore,
    /// It is of another version of this form, which this program does not know.
    Version(u32),
    /// It is of another model: another config, other weights, or another adapter.
    Model,
    /// It is of the same model with other caches or types, on another kind of device, or by another version of this
    /// program.
    Form,
    /// Its checksum is wrong, or its parts do not add up.
    Damaged,
    /// It is longer than this engine's context.
    TooLong,
    /// It was read with an adapter that no slot has now.
    Adapter,
    /// The same ids are kept already.
    Kept,
    /// No block, no slot or no place for a snapshot was free.
    NoRoom,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(error) => write!(f, "it can't be read: {error}"),
            Self::NoStore => f.write_str("it is no store of snapshots"),
            Self::Version(version) => write!(f, "version {version} is not known to this program"),
            Self::Model => f.write_str("it is of another model"),
            Self::Form => f.write_str("other caches, another device or another program made it"),
            Self::Damaged => f.write_str("it is damaged"),
            Self::TooLong => f.write_str("longer than the context"),
            Self::Adapter => f.write_str("of an adapter that is not loaded"),
            Self::Kept => f.write_str("kept already"),
            Self::NoRoom => f.write_str("no memory is free for more"),
        }
    }
}

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.snapshots {
            Some(1) => write!(f, "1 snapshot on disk is ignored: {}", self.why),
            Some(count) => write!(f, "{count} snapshots on disk are ignored: {}", self.why),
            None => write!(f, "the snapshots on disk are ignored: {}", self.why),
        }
    }
}

impl Loaded {
    fn ignore(&mut self, count: usize, why: Why) {
        let same = |i: &&mut Ignored| i.snapshots.is_some() && i.why == why;
        match self.ignored.iter_mut().find(same).and_then(|i| i.snapshots.as_mut()) {
            Some(snapshots) => *snapshots += count,
            None if count > 0 => self.ignored.push(Ignored { snapshots: Some(count), why }),
            None => {}
        }
    }
}

/// Where the store of this executor's model is.
fn path(exec: &Executor, folder: &Path) -> PathBuf {
    folder.join(format!("{:032x}.prefixes", exec.fingerprint().model))
}

/// One unit for each section of a store: of its size are all.
fn sections(exec: &Executor) -> Vec<Unit> {
    let pools = 0..exec.pools().count();
    let slots = exec.pools().has_records().then_some(Unit::Slot(0));
    pools.map(|pool| Unit::Block { pool, block: 0 }).chain(slots).collect()
}

/// What a store will hold.
struct Contents {
    entries: Vec<Entry>,
    /// By section; the place in the list is the number in the store.
    units: Vec<Vec<Unit>>,
}

impl Contents {
    fn gather(prefixes: &Prefixes, exec: &Executor) -> Result<Self> {
        let mut all = Self { entries: Vec::new(), units: vec![Vec::new(); sections(exec).len()] };
        let mut numbers: BTreeMap<(usize, u32), u32> = BTreeMap::new();
        for (adapter, ids, snapshot) in prefixes.all() {
            let Facts { past: _, logged, stretch } = snapshot.facts();
            let mut blocks = Vec::new();
            for pool in 0..exec.pools().count() {
                let units = &mut all.units[pool];
                let number = |block: &u32| {
                    *numbers.entry((pool, *block)).or_insert_with(|| {
                        units.push(Unit::Block { pool, block: *block });
                        units.len() as u32 - 1
                    })
                };
                blocks.push(needed(exec, snapshot, pool)?.iter().map(number).collect());
            }
            let slots = all.units.last_mut().zip(snapshot.slot());
            slots.into_iter().for_each(|(slots, slot)| slots.push(Unit::Slot(slot)));
            all.entries.push(Entry { adapter, ids, logged: logged as u32, stretch, blocks });
        }
        Ok(all)
    }
}

/// The blocks of a pool that a snapshot has to hold; it may hold some before them.
fn needed<'a>(exec: &Executor, snapshot: &'a Snapshot, pool: usize) -> Result<&'a [u32]> {
    let (first, blocks) = snapshot.blocks(pool);
    let needs = exec.pools().needs(pool, snapshot.past());
    let own = needs.start.checked_sub(first).zip(needs.end.checked_sub(first));
    own.and_then(|(start, end)| blocks.get(start..end)).ok_or_else(|| {
        let what = format!("a snapshot holds blocks {first}.. and needs {needs:?}");
        Error::new(Kind::Bug, what).hint("please report this")
    })
}

/// Writes all snapshots.
///
/// # Errors
/// The folder can't be written to, or the device failed; what was there is as it was.
pub(crate) fn save(prefixes: &Prefixes, exec: &mut Executor, folder: &Path) -> Result<Saved> {
    let Contents { entries, units } = Contents::gather(prefixes, exec)?;
    let counts: Vec<u32> = units.iter().map(|units| units.len() as u32).collect();
    let head = store::head(exec.fingerprint(), &counts, &entries);
    let path = path(exec, folder);
    let bytes = file::replace(&path, |out| {
        out.put(&head)?;
        let mut bytes = Vec::new();
        for (section, units) in units.iter().enumerate() {
            for (number, unit) in (0..).zip(units) {
                bytes.clear();
                exec.read_unit(*unit, &mut bytes)?;
                out.put(&bytes)?;
                out.put(&store::unit_sum(section, number, &bytes))?;
            }
        }
        Ok(())
    })?;
    let blocks = counts[..exec.pools().count()].iter().map(|count| *count as usize).sum();
    Ok(Saved { path, snapshots: entries.len(), blocks, bytes })
}

/// Keeps what the store in `folder` holds, as far as it fits.
///
/// # Errors
/// The device failed; what was loaded before is kept.
pub(crate) fn load(prefixes: &mut Prefixes, exec: &mut Executor, folder: &Path) -> Result<Loaded> {
    let units: Vec<usize> = sections(exec).into_iter().map(|unit| exec.unit_bytes(unit)).collect();
    let has_slots = exec.pools().has_records();
    let mut loaded = Loaded::default();
    let store = Store::open(&path(exec, folder), exec.fingerprint(), &units, has_slots);
    let store = match store {
        Ok(Some(store)) => store,
        Ok(None) => return Ok(loaded),
        Err(why) => {
            loaded.ignored.push(Ignored { snapshots: None, why });
            return Ok(loaded);
        }
    };
    let there = vec![BTreeMap::new(); exec.pools().count()];
    let mut loading = Loading { store, there, bytes: Vec::new() };
    let mut places = Vec::new();
    let done = loading.all(prefixes, exec, &mut loaded, &mut places);
    // The first of them was used last.
    places.iter().rev().for_each(|place| prefixes.touch(place.at()));
    done.map(|()| loaded)
}

/// A store that is being read.
struct Loading {
    store: Store,
    /// Of each pool, the blocks that hold those of the store.
    there: Vec<BTreeMap<u32, u32>>,
    bytes: Vec<u8>,
}

/// Why one snapshot is not there: only that, or all is over.
enum Stop {
    Ignored(Why),
    Failed(Error),
}

impl From<Why> for Stop {
    fn from(why: Why) -> Self {
        Self::Ignored(why)
    }
}

impl Loading {
    fn all(
        &mut self,
        prefixes: &mut Prefixes,
        exec: &mut Executor,
        loaded: &mut Loaded,
        places: &mut Vec<Place>,
    ) -> Result<()> {
        let total = self.store.snapshots();
        for number in 0..total {
            let pools = exec.pools();
            let needs = |past| (0..pools.count()).map(|i| pools.needs(i, past).len()).collect();
            let rest = (total - number) as usize;
            let entry = match self.store.next(needs) {
                Ok(entry) => entry,
                Err(why) => {
                    // Where the next one begins nobody knows.
                    loaded.ignore(rest, why);
                    return Ok(());
                }
            };
            match self.one(prefixes, exec, number, &entry) {
                Ok((snapshot, blocks)) => {
                    places.push(prefixes.put(exec, (entry.adapter, &entry.ids), snapshot));
                    loaded.snapshots += 1;
                    loaded.blocks += blocks;
                }
                Err(Stop::Ignored(Why::NoRoom)) => {
                    loaded.ignore(rest, Why::NoRoom);
                    return Ok(());
                }
                Err(Stop::Ignored(why)) => loaded.ignore(1, why),
                Err(Stop::Failed(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// A snapshot with all that it holds, and how many blocks are new.
    fn one(
        &mut self,
        prefixes: &Prefixes,
        exec: &mut Executor,
        number: u32,
        entry: &Entry,
    ) -> std::result::Result<(Snapshot, usize), Stop> {
        let past = entry.ids.len();
        if past > exec.room().context {
            return Err(Why::TooLong.into());
        }
        if !exec.has_adapter(entry.adapter) {
            return Err(Why::Adapter.into());
        }
        if prefixes.has(entry.adapter, &entry.ids) {
            return Err(Why::Kept.into());
        }
        let lists = entry.blocks.iter().zip(&self.there);
        let lists = lists.map(|(list, there)| list.iter().map(|n| there.get(n).copied()).collect());
        let lists: Vec<Vec<Option<u32>>> = lists.collect();
        let (logged, stretch) = (entry.logged as usize, entry.stretch);
        if logged > past.min(exec.room().drafts) {
            return Err(Why::Damaged.into());
        }
        let facts = Facts { past, logged, stretch };
        let snapshot = exec.adopt(facts, &lists).ok_or(Why::NoRoom)?;
        let mut new: Vec<(usize, u32, Unit)> = Vec::new();
        for (pool, list) in lists.iter().enumerate() {
            let blocks = list.iter().zip(&entry.blocks[pool]).zip(snapshot.blocks(pool).1);
            let blocks = blocks.filter(|((shared, _), _)| shared.is_none());
            new.extend(
                blocks.map(|((_, n), block)| (pool, *n, Unit::Block { pool, block: *block })),
            );
        }
        let blocks = new.len();
        new.extend(snapshot.slot().map(|slot| (lists.len(), number, Unit::Slot(slot))));
        for (section, number, unit) in &new {
            if let Err(stop) = self.fill(exec, *section, *number, *unit) {
                exec.forget(snapshot);
                return Err(stop);
            }
        }
        for (section, number, unit) in new {
            if let Unit::Block { block, .. } = unit {
                self.there[section].insert(number, block);
            }
        }
        Ok((snapshot, blocks))
    }

    fn fill(
        &mut self,
        exec: &mut Executor,
        section: usize,
        number: u32,
        unit: Unit,
    ) -> std::result::Result<(), Stop> {
        self.store.unit(section, number, &mut self.bytes)?;
        exec.write_unit(unit, &self.bytes).map_err(Stop::Failed)
    }
}
