//! Reasoning before an answer: the grammar waits for its end, and it ends where it must.

use longrun_lm::engine::Mask;
use longrun_lm::grammar::{Grammar, Reasoning};

use crate::world::{World, small};

const THINK: u32 = 3;
const CLOSE: u32 = 4;

fn reasoning(close: &[u32], most: Option<usize>) -> Reasoning {
    Reasoning { open: None, close: close.into(), most, forbidden: [0].into() }
}

/// The ids that are possible next; the logits of those are what they were.
fn possible(world: &World, mask: &mut Mask) -> Vec<u32> {
    let mut logits: Vec<f32> = (0..world.size).map(|i| i as f32 - 80.0).collect();
    mask.0.apply(&mut logits).unwrap();
    let same = |id: &u32| logits[*id as usize].to_bits() == (*id as f32 - 80.0).to_bits();
    let kept: Vec<u32> = (0..world.size as u32).filter(same).collect();
    let gone = logits.iter().filter(|l| **l == f32::NEG_INFINITY).count();
    assert_eq!(kept.len() + gone, world.size);
    kept
}

fn say(mask: &mut Mask, ids: &[u32]) {
    ids.iter().for_each(|id| mask.0.accept(*id).unwrap());
}

#[test]
fn the_grammar_begins_behind_the_reasoning() {
    let world = small(&[0]);
    let answer = world.mask(&Grammar::regex("ab"));
    let mut mask = reasoning(&[CLOSE], None).mask(Some(answer));
    let [a, b] = world.ids("ab")[..] else { panic!() };
    // Anything but the end, and nothing of it is the grammar's.
    let free: Vec<u32> = (1..160).collect();
    for id in [b, b, THINK, a, 99] {
        assert_eq!(possible(&world, &mut mask), free);
        mask.0.accept(id).unwrap();
    }
    let mut fork = mask.clone();
    mask.0.accept(CLOSE).unwrap();
    assert!(possible(&world, &mut mask).contains(&a) && !possible(&world, &mut mask).contains(&b));
    assert!(!mask.0.is_done());
    mask.0.accept(a).unwrap();
    assert_eq!(possible(&world, &mut mask), [b]);
    mask.0.accept(b).unwrap();
    assert_eq!(possible(&world, &mut mask), [0], "nothing but the end");
    mask.0.accept(0).unwrap();
    assert!(mask.0.is_done());
    assert_eq!(possible(&world, &mut fork), free, "the fork is where it was");
}

#[test]
fn a_budget_forces_the_end_id_by_id() {
    let world = small(&[0]);
    let close = [10, CLOSE, 11];
    for most in [0, 1, 7] {
        let mut mask = reasoning(&close, Some(most)).mask(None);
        for _ in 0..most {
            assert_eq!(possible(&world, &mut mask).len(), 159);
            mask.0.accept(50).unwrap();
        }
        for id in close {
            assert_eq!(possible(&world, &mut mask), [id]);
            mask.0.accept(id).unwrap();
        }
        // Without a grammar the answer is free, its end too.
        assert_eq!(possible(&world, &mut mask).len(), 160);
        mask.0.accept(0).unwrap();
        assert!(!mask.0.is_done());
    }
    // An end that is under way when the budget is spent goes on from where it is.
    let mut mask = reasoning(&close, Some(3)).mask(None);
    say(&mut mask, &[50, 10, CLOSE]);
    assert_eq!(possible(&world, &mut mask), [11]);
    // One that comes early by itself is one.
    let mut mask = reasoning(&close, Some(9)).mask(None);
    say(&mut mask, &[10, 10, CLOSE, 11]);
    assert_eq!(possible(&world, &mut mask).len(), 160);
}

#[test]
fn a_row_may_reason_or_not() {
    let world = small(&[0]);
    let rules = Reasoning { open: Some(THINK), ..reasoning(&[CLOSE], Some(2)) };
    let mask = rules.mask(Some(world.mask(&Grammar::regex("ab"))));
    let [a, b] = world.ids("ab")[..] else { panic!() };
    let first = possible(&world, &mut mask.clone());
    assert!(first.contains(&a) && first.contains(&THINK) && !first.contains(&b));
    let mut at_once = mask.clone();
    at_once.0.accept(a).unwrap();
    assert_eq!(possible(&world, &mut at_once), [b]);
    let mut later = mask.clone();
    say(&mut later, &[THINK, b, b]);
    assert_eq!(possible(&world, &mut later), [CLOSE]);
    later.0.accept(CLOSE).unwrap();
    assert!(possible(&world, &mut later).contains(&a));
    assert!(!possible(&world, &mut later).contains(&THINK));
}
