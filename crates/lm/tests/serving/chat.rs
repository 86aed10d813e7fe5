//! Prefix reuse: what a later text reads again, and why.

use longrun_array::BLOCK;
use longrun_lm::cache::Room;
use longrun_lm::engine::{Engine, Request};
use longrun_lm::prefix::Miss;
use longrun_lm::sample::SamplingParams;

use crate::answers::{CONTEXT, ROOMY, Random, answer, asked, engine};

/// Families of every kind of state: pages, windows, latent keys, records, compressed entries.
const FAMILIES: [&str; 8] = [
    "llama",
    "gemma3",
    "deepseek_v3",
    "qwen3_next",
    "kimi_linear",
    "nemotron_h",
    "deepseek_v4",
    "glm5_next",
];

/// The turns of a chat: what is read again is what the next text does not share, and at most a chunk.
#[test]
fn a_chat_reads_only_what_is_new() {
    for family in FAMILIES {
        let mut warm = engine(family, ROOMY);
        let mut cold = engine(family, Room { rows: 1, tokens: CONTEXT, snapshots: 0, ..ROOMY });
        let exact = warm.executor().pools().is_exact();
        let mut random = Random(5);
        let first = random.ids(150);
        let mut ask = |request: Request, cached: &dyn Fn(usize) -> bool, what: &str| {
            let cold = answer(&mut cold, request.clone());
            let warm = answer(&mut warm, request);
            assert_eq!(warm.said(), cold.said(), "{family}: {what}");
            assert!(cached(warm.cached), "{family}: {what}: {} cached", warm.cached);
            assert_eq!(warm.miss.is_none(), warm.cached > 0);
            warm
        };
        let turn1 = ask(asked(&first, 20), &|n| n == 0, "the first turn");
        assert_eq!(turn1.miss, Some(Miss::Unknown));
        // The same prompt again, three times: all but its last token is known.
        for _ in 0..3 {
            ask(asked(&first, 20), &|n| n == 149, "an identical prompt");
        }
        // The next turn goes on from the very end: of what was generated, the last token was not read.
        let mut second = first.clone();
        second.extend(&turn1.ids);
        second.extend(random.ids(30));
        let turn2 = ask(asked(&second, 20), &|n| n == 169, "the second turn");
        // Reasoning is dropped: the text leaves the old one where the answer began.
        let mut dropped = first.clone();
        dropped.extend(&turn1.ids[15..]);
        dropped.extend(random.ids(30));
        let known = |n: usize| if exact { n == 149 } else { n == 150 };
        ask(asked(&dropped, 5), &known, "dropped reasoning");
        // The last message is edited in its middle.
        let mut edited = second[..180].to_vec();
        edited.extend(random.ids(40));
        let known = |n: usize| if exact { n == 169 } else { n == 180 };
        ask(asked(&edited, 5), &known, "an edited message");
        // Regenerated: the same prompt with another seed.
        let params =
            SamplingParams { temperature: 1.0, seed: Some(1), ..SamplingParams::default() };
        ask(Request { params, ..asked(&second, 20) }, &|n| n == second.len() - 1, "regenerate");
        // Chat goes on from the second turn.
        let mut third = second.clone();
        third.extend(&turn2.ids);
        third.extend(random.ids(9));
        ask(asked(&third, 5), &|n| n == second.len() + 19, "the third turn");
    }
}

/// A long prompt that is edited anywhere reads at most as much again as lies behind the edit, and a chunk or two.
#[test]
fn an_edit_far_back_finds_an_older_snapshot() {
    for family in ["gemma3", "qwen3_next", "deepseek_v4"] {
        let mut engine = engine(family, ROOMY);
        let mut random = Random(8);
        let text = random.ids(640);
        answer(&mut engine, asked(&text, 1));
        for at in [600, 500, 300, 100] {
            let mut edited = text[..at].to_vec();
            edited.extend(random.ids(20));
            let found = answer(&mut engine, asked(&edited, 1));
            let again = at - found.cached;
            assert!(again <= (640 - at).max(64) + 64, "{family}: {} of {at} cached", found.cached);
        }
    }
}

#[test]
fn a_beginning_is_not_pushed_out_by_who_shares_it() {
    for family in ["llama", "qwen3_next"] {
        let mut engine = engine(family, ROOMY);
        let mut random = Random(2);
        let header = random.ids(100);
        let mut texts = Vec::new();
        for _ in 0..3 {
            let mut text = header.clone();
            text.extend(random.ids(20));
            let boundaries = vec![100];
            answer(&mut engine, Request { boundaries, ..asked(&text, 4) });
            texts.push(text);
        }
        for text in texts {
            assert_eq!(answer(&mut engine, asked(&text, 4)).cached, text.len() - 1);
        }
    }
}

#[test]
fn misses_say_why() {
    let mut off = engine("qwen3_next", Room { snapshots: 0, ..ROOMY });
    let prompt = Random(4).ids(40);
    assert_eq!(answer(&mut off, asked(&prompt, 2)).miss, Some(Miss::Off));
    let mut on = engine("qwen3_next", ROOMY);
    assert_eq!(answer(&mut on, asked(&prompt, 2)).miss, Some(Miss::Unknown));
    assert_eq!(
        answer(&mut on, asked(&prompt[..20], 2)).miss,
        Some(Miss::NoSnapshot { common: 19 })
    );
    assert_eq!(on.stats().misses.iter().sum::<u64>(), 2);
}

/// Rows that are cancelled in the middle leave what they read.
#[test]
fn what_a_cancelled_row_has_read_is_kept() {
    for family in FAMILIES {
        let mut engine = engine(family, ROOMY);
        let prompt = Random(6).ids(300);
        let row = engine.submit(asked(&prompt, 50)).unwrap();
        let mut events = Vec::new();
        (0..3).for_each(|_| engine.step(&mut events).unwrap());
        engine.cancel(row);
        assert_eq!(answer(&mut engine, asked(&prompt, 2)).cached, 3 * 64, "{family}");
    }
}

#[test]
fn blocks_of_a_shared_beginning_are_held_once() {
    let mut engine = engine("llama", ROOMY);
    let header = Random(1).ids(10 * BLOCK as u64);
    let free = |engine: &Engine| engine.executor().pools().paged().0;
    answer(&mut engine, asked(&header, 1));
    let before = free(&engine);
    for i in 0..5 {
        let mut text = header.clone();
        text.push(i);
        answer(&mut engine, asked(&text, 1));
    }
    // Five texts of 320 shared tokens take a block each for what is their own.
    assert!(before - free(&engine) <= 5, "{} blocks", before - free(&engine));
}
