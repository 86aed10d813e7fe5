//! Random requests with and without adapters, in too little memory, while adapters come and go: each is answered as if
//! alone, and a slot changes exactly when nobody uses it.

use std::collections::BTreeMap;

use longrun_lm::adapter::Adapter;
use longrun_lm::cache::Room;
use longrun_lm::engine::{Engine, Event, Request, RowId};

use crate::make::{Layout, ROOM, adapter, executor, golden, prompt};
use crate::serving::say;

const TIGHT: Room = Room { rows: 4, tokens: 160, snapshots: 5, ..ROOM };
const ADAPTERS: usize = 4;
const SLOTS: usize = 2;

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) as usize % n
    }
}

/// A request that is not answered yet.
struct Open {
    request: Request,
    /// Which adapter it has, from 1 on; 0 for none.
    adapter: usize,
    said: Vec<u32>,
}

struct Play {
    random: Random,
    adapters: Vec<Adapter>,
    /// All adapters, each in the slot of its number.
    alone: Engine,
    busy: Engine,
    /// Which adapter is in which slot; none in the first.
    held: [Option<usize>; SLOTS + 1],
    open: BTreeMap<RowId, Open>,
    changed: usize,
    refused: usize,
    answered: usize,
}

impl Play {
    fn new(family: &str) -> Self {
        let all = 1..=ADAPTERS as u64;
        let adapters: Vec<Adapter> =
            all.map(|seed| adapter(family, Layout::Peft, 1 + seed as usize, seed)).collect();
        let files = golden(family);
        let room = Room { rows: 1, snapshots: 0, ..ROOM };
        let mut alone = Engine::new(executor(&files, ADAPTERS, room, false));
        for (slot, adapter) in (1..).zip(&adapters) {
            alone.set_adapter(slot, Some(adapter)).unwrap();
        }
        let busy = Engine::new(executor(&files, SLOTS, TIGHT, false));
        let (random, held) = (Random(family.len() as u64), [Some(0), None, None]);
        let [changed, refused, answered] = [0; 3];
        let open = BTreeMap::new();
        Self { random, adapters, alone, busy, held, open, changed, refused, answered }
    }

    /// Submits a request whose beginning others have, too.
    fn submit(&mut self) {
        let slot = self.random.below(SLOTS + 1);
        let (tail, seed) = (1 + self.random.below(40), self.random.below(3) as u32);
        let ids = prompt(50, 0).into_iter().chain(prompt(tail, seed)).collect();
        let request = Request { adapter: slot, ..Request::new(ids, 1 + self.random.below(60)) };
        let submitted = self.busy.submit(request.clone());
        let Some(adapter) = self.held[slot] else {
            assert!(submitted.is_err(), "slot {slot} is empty");
            return;
        };
        let said = Vec::new();
        self.open.insert(submitted.unwrap(), Open { request, adapter, said });
    }

    /// Puts an adapter into a slot, or takes it out.
    fn change(&mut self) {
        let slot = 1 + self.random.below(SLOTS);
        let new = self.random.below(ADAPTERS + 1).checked_sub(1);
        let used = self.open.values().any(|open| open.request.adapter == slot);
        let done = self.busy.set_adapter(slot, new.map(|i| &self.adapters[i]));
        assert_eq!(done.is_err(), used, "slot {slot}");
        if used {
            self.refused += 1;
        } else {
            self.changed += 1;
            self.held[slot] = new.map(|i| i + 1);
        }
    }

    fn hear(&mut self, event: Event) {
        let row = event.row();
        let open = self.open.get_mut(&row).expect("no event after the last");
        match &event {
            Event::Token { choice, .. } => open.said.push(choice.id),
            Event::Failed { error, .. } => panic!("{error}"),
            _ => {}
        }
        if event.is_last() {
            let Open { request, adapter, said } = self.open.remove(&row).unwrap();
            let want = say(&mut self.alone, Request { adapter, ..request }).1;
            assert_eq!(said, want, "adapter {adapter} after {}", self.answered);
            self.answered += 1;
        }
    }

    fn run(mut self, operations: usize) {
        let (live, mut events) = (self.busy.executor().usage().live, Vec::new());
        for _ in 0..operations {
            match self.random.below(8) {
                0..4 if self.open.len() < 4 => self.submit(),
                4 | 5 => self.change(),
                6 => {
                    let rows: Vec<RowId> = self.open.keys().copied().collect();
                    if let Some(row) = rows.get(self.random.below(12)) {
                        self.busy.cancel(*row);
                        self.open.remove(row);
                    }
                }
                _ => {}
            }
            for _ in 0..self.random.below(12) {
                self.busy.step(&mut events).unwrap();
                events.drain(..).for_each(|event| self.hear(event));
            }
            assert_eq!(self.busy.executor().usage().live, live);
        }
        self.open.keys().for_each(|row| self.busy.cancel(*row));
        (1..=SLOTS).for_each(|slot| self.busy.set_adapter(slot, None).unwrap());
        let stats = self.busy.stats();
        assert!(stats.hits > 0 && stats.preempted > 0 && stats.evicted > 0, "{stats:?}");
        assert!(stats.cancelled > 0, "{stats:?}");
        let Self { changed, refused, answered, .. } = self;
        assert!(changed > 9 && refused > 20 && answered > 50, "{changed} {refused} {answered}");
        self.busy.clear_prefixes();
        assert!(self.busy.executor().all_free());
    }
}

#[test]
fn each_is_answered_as_if_alone_while_adapters_come_and_go() {
    for family in ["llama", "qwen3_next", "deepseek_v3"] {
        Play::new(family).run(400);
    }
}
