//! Replays: they leave the live count alone, survive a kernel that panics, and a planted leak does not get past the nets.

mod common;

use common::small::{BLOCKS, COLS, at, blocks, prepared};
use common::{Row, cpu, one, run_step, threads};
use longrun_array::{BLOCK, Error, Head, Key, Outputs};

#[test]
fn a_kernel_that_panics_is_an_error_and_the_next_launch_works() {
    let prompt = Key::fit(64, 1, Outputs::PerRow, Head::Logits).unwrap();
    for n in [1, 2, 3] {
        let (mut rt, _m) = prepared(cpu(threads(n)), &[one(), prompt]);
        let want = run_step(&mut rt, one(), &[at(0)], COLS).unwrap();
        let usage = rt.usage();
        let outside = [vec![BLOCKS as u32; BLOCKS], vec![], vec![], vec![]];
        let huge = [vec![u32::MAX; BLOCKS], vec![], vec![], vec![]];
        for tables in [outside, huge] {
            let short = Row { tables: tables.clone(), ..at(0) };
            let long = Row { ids: vec![3; 64], tables, ..at(0) };
            for (key, row) in [(one(), short), (prompt, long)] {
                let error = run_step(&mut rt, key, &[row], COLS).unwrap_err();
                assert!(matches!(error, Error::Device(_)), "{error}");
                assert!(error.to_string().contains("panicked"), "{error}");
                assert_eq!(rt.usage(), usage);
                assert_eq!(run_step(&mut rt, one(), &[at(0)], COLS).unwrap(), want);
            }
        }
    }
}

/// A table shorter than the row's positions must not show the blocks of an earlier step's row.
#[test]
fn a_short_table_is_refused() {
    let (mut rt, _m) = prepared(cpu(threads(1)), &[one()]);
    let mut inputs = rt.inputs();
    for (tables, good) in [(blocks(), true), (vec![0], false)] {
        let row = Row { tables: [tables, vec![], vec![], vec![]], ..at(3 * BLOCK) };
        inputs.begin(one());
        inputs.push(row.input()).unwrap();
        let ticket = rt.launch(&inputs);
        assert_eq!(ticket.is_ok(), good, "{ticket:?}");
        if let Ok(ticket) = ticket {
            rt.wait(ticket, &mut []).unwrap();
        }
    }
}

#[cfg(feature = "leak-lab")]
mod lab {
    use longrun_array::lab::Leak;
    use longrun_array::{Limits, NullDevice, Runtime, Tag};

    use super::*;
    use crate::common::small::Small;

    fn limited(buffers: usize) -> (Runtime, Small) {
        let limits = Limits { buffers, cache_bytes: 0 };
        prepared(Runtime::new(Box::new(NullDevice::new()), limits), &[one()])
    }

    const LEAK: Leak = Leak { chains: 3, link_bytes: 512, every: 1 };

    #[test]
    fn the_strict_check_fails_at_the_first_step() {
        let (mut rt, _m) = limited(1000);
        run_step(&mut rt, one(), &[at(0)], COLS).unwrap();
        let live = rt.usage().live.buffers;
        rt.plant(LEAK, true);
        let error = run_step(&mut rt, one(), &[at(1)], COLS).unwrap_err();
        let Error::LiveCount { before, after } = error else { panic!("{error}") };
        assert_eq!((before, after), (live, live + 3));
        assert_eq!(rt.first_flagged_step(), Some(1));
        // Healed, the same runtime goes on.
        rt.heal();
        assert_eq!(rt.usage().live.buffers, live);
        rt.plant(Leak { chains: 0, ..LEAK }, true);
        (2..20).for_each(|past| drop(run_step(&mut rt, one(), &[at(past)], COLS).unwrap()));
    }

    #[test]
    fn the_report_names_the_first_step_and_the_limit_refuses_where_it_was_predicted() {
        for (limit, chains, link_bytes) in [(100, 1, 4), (1000, 23, 512), (300, 7, 1 << 20)] {
            let (mut rt, _m) = limited(limit);
            let live = rt.usage().live.buffers;
            rt.plant(Leak { chains, link_bytes, every: 1 }, false);
            assert_eq!(rt.first_flagged_step(), None);
            let predicted = (limit - live) / chains + 1;
            for step in 1..predicted {
                run_step(&mut rt, one(), &[at(step)], COLS).unwrap();
                assert_eq!(rt.first_flagged_step(), Some(1));
                assert_eq!(rt.usage().tag(Tag::Lab).buffers, step * chains);
            }
            let error = run_step(&mut rt, one(), &[at(predicted)], COLS).unwrap_err();
            let Error::Limit(refusal) = &error else { panic!("{error}") };
            assert_eq!((refusal.tag, refusal.bytes), (Tag::Lab, link_bytes));
            assert!(error.to_string().contains("fullest tags: lab: "), "{error}");
            rt.heal();
            assert_eq!(rt.usage().live.buffers, live);
            run_step(&mut rt, one(), &[at(0)], COLS).unwrap();
        }
    }

    #[test]
    fn a_leak_of_every_tenth_step_is_flagged_there() {
        let (mut rt, _m) = limited(1000);
        rt.plant(Leak { every: 10, ..LEAK }, false);
        (0..9).for_each(|past| drop(run_step(&mut rt, one(), &[at(past)], COLS).unwrap()));
        assert_eq!(rt.first_flagged_step(), None);
        run_step(&mut rt, one(), &[at(9)], COLS).unwrap();
        assert_eq!(rt.first_flagged_step(), Some(10));
    }

    /// Both nets off: nothing else stops it, so it is the nets that do.
    #[test]
    fn without_the_nets_a_leak_runs_on() {
        let (mut rt, _m) = limited(usize::MAX);
        let live = rt.usage().live.buffers;
        rt.plant(LEAK, false);
        let predicted = (1000 - live) / LEAK.chains + 1;
        let steps = 3 * predicted;
        (0..steps).for_each(|past| drop(run_step(&mut rt, one(), &[at(past)], COLS).unwrap()));
        assert_eq!(rt.usage().live.buffers, live + steps * LEAK.chains);
    }
}
