//! Engines of tiny models, and what they say: ids and the bits of all logits that led to them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use longrun_array::{CpuDevice, CpuOptions};
use longrun_lm::Result;
use longrun_lm::cache::Room;
use longrun_lm::config::Config;
use longrun_lm::engine::{Engine, Event, Mask, Request, RowId, TokenMask};
use longrun_lm::executor::{Executor, Setup};
use longrun_lm::tiny::{self, TinyShape};
use longrun_lm::weights::Source;
use serde_json::json;

/// Blocks of entries that 16 tokens share are for 512 tokens; each snapshot may hold one alone.
pub(crate) const ROOM: Room =
    Room { rows: 2, context: 256, tokens: 1 << 14, chunk: 24, snapshots: 24, drafts: 0 };

#[derive(Clone, Copy)]
pub(crate) struct Model {
    pub(crate) family: &'static str,
    pub(crate) seed: u64,
    pub(crate) eps: f64,
    pub(crate) threads: usize,
}

impl Model {
    pub(crate) fn new(family: &'static str) -> Self {
        Self { family, seed: 3, eps: 1e-6, threads: 1 }
    }
}

pub(crate) fn engine(model: Model, room: Room) -> Engine {
    engine_on(model, room, CpuOptions::default())
}

pub(crate) fn engine_on(model: Model, room: Room, options: CpuOptions) -> Engine {
    let shape = TinyShape {
        layers: Some(3),
        interval: Some(3),
        hidden: Some(32),
        experts: Some(4),
        ..TinyShape::default()
    };
    let mut config = tiny::config(model.family, shape).unwrap();
    config["sliding_window"] = json!(40);
    config["rms_norm_eps"] = json!(model.eps);
    let config = Config::loose(&config).unwrap();
    let device = CpuDevice::new(CpuOptions { threads: model.threads, ..options });
    let setup = Setup::new(room);
    let source = Source::Seed(model.seed);
    Engine::new(Executor::new(Box::new(device), &config, source, setup, &|_, _| {}).unwrap())
}

/// Hears all logits of a row and changes none.
struct Listener(Arc<Mutex<Vec<u32>>>);

impl TokenMask for Listener {
    fn apply(&mut self, logits: &mut [f32]) -> Result<()> {
        self.0.lock().unwrap().extend(logits.iter().map(|x| x.to_bits()));
        Ok(())
    }

    fn accept(&mut self, _: u32) -> Result<()> {
        Ok(())
    }

    fn fork(&self) -> Box<dyn TokenMask> {
        Box::new(Self(self.0.clone()))
    }
}

pub(crate) type Heard = Arc<Mutex<Vec<u32>>>;

/// What a row said.
#[derive(PartialEq)]
pub(crate) struct Said {
    pub(crate) cached: usize,
    pub(crate) ids: Vec<u32>,
    pub(crate) bits: Vec<u32>,
}

impl Said {
    /// Steps until nothing is left to do.
    pub(crate) fn until_idle(
        engine: &mut Engine,
        row: RowId,
        mut events: Vec<Event>,
        heard: &Heard,
    ) -> Self {
        while engine.rows() > 0 {
            engine.step(&mut events).unwrap();
        }
        let (mut cached, mut ids) = (usize::MAX, Vec::new());
        for event in &events {
            match event {
                Event::Started { row: who, cached: n, .. } if *who == row => cached = *n,
                Event::Token { row: who, choice } if *who == row => ids.push(choice.id),
                Event::Failed { error, .. } => panic!("{error}"),
                _ => {}
            }
        }
        Self { cached, ids, bits: std::mem::take(&mut *heard.lock().unwrap()) }
    }
}

/// How much a row says.
const SAYS: usize = 12;

pub(crate) fn submit(engine: &mut Engine, prompt: &[u32]) -> (RowId, Heard) {
    let heard = Heard::default();
    let mask = Some(Mask(Box::new(Listener(heard.clone()))));
    // Where the beginning ends that all texts share.
    let boundaries = vec![COMMON];
    let request = Request { mask, boundaries, ..Request::new(prompt.to_vec(), SAYS) };
    (engine.submit(request).unwrap(), heard)
}

pub(crate) fn say(engine: &mut Engine, prompt: &[u32]) -> Said {
    let (row, heard) = submit(engine, prompt);
    Said::until_idle(engine, row, Vec::new(), &heard)
}

/// What an engine says that knows nothing.
pub(crate) fn cold(model: Model, prompt: &[u32]) -> Said {
    say(&mut engine(model, Room { snapshots: 0, ..ROOM }), prompt)
}

/// Tokens with which all texts begin.
const COMMON: usize = 70;

/// Beginnings of conversations.
pub(crate) fn texts() -> [Vec<u32>; 3] {
    [(0, 25), (1, 40), (2, 62)].map(|(number, more)| {
        let common = (0..COMMON as u32).map(|i| (i * 37 + 11) % 160);
        common.chain((0..more).map(|i| (i * (41 + 2 * number) + 5 * number) % 160)).collect()
    })
}

/// First turns of conversations; gives the second ones.
pub(crate) fn talk(engine: &mut Engine) -> Vec<Vec<u32>> {
    let turn = |text: Vec<u32>| {
        let said = say(engine, &text).ids;
        text.into_iter().chain(said).chain((0..20).map(|i| (i * 3 + 50) % 160)).collect()
    };
    texts().into_iter().map(turn).collect()
}

/// A folder that goes with its test.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("stores-{name}"));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
