//! The book and the retire list: what is counted, when memory goes, and what happens to plans whose memory went.

mod common;

use std::sync::{Arc, Mutex};

use common::deferred::{Deferred, Log};
use common::{cpu, net, null, one, run_step, spec, threads, token};
use longrun_array::{
    Error, Format, Growth, IN_FLIGHT, Key, Limits, Map, NullDevice, Runtime, State, StateKind,
    Step, TABLES, Tag, Ticket, Usage, Weight,
};
use proptest::prelude::*;

fn limited(buffers: usize, cache_bytes: usize) -> Runtime {
    Runtime::new(Box::new(NullDevice::new()), Limits { buffers, cache_bytes })
}

/// A state of `len` numbers.
fn state(rt: &Runtime, len: usize) -> longrun_array::Result<State> {
    State::new(rt, StateKind::slots(len), 1, 0)
}

fn counts(usage: Usage) -> (usize, usize, usize) {
    (usage.live.buffers, usage.cached.buffers, usage.retired.buffers)
}

/// A runtime on a device behind the host, and what the device saw.
fn deferred(capacity: usize, limits: Limits) -> (Runtime, Arc<Mutex<Log>>) {
    let (device, log) = Deferred::new(capacity);
    (Runtime::new(Box::new(device), limits), log)
}

/// A model of a table and a convolution, whose state is `State` of `COLS`.
const COLS: usize = 4;

fn parts(rt: &Runtime) -> (Weight, Weight, State) {
    let bytes = vec![0; 10 * COLS * 4];
    let table = Weight::matrix(rt, "table", spec(Format::F32, 1, 10, COLS), &bytes).unwrap();
    let taps = Weight::vector(rt, "taps", &[1.0; 2 * COLS]).unwrap();
    (table, taps, state(rt, COLS).unwrap())
}

fn prepare(rt: &mut Runtime, (table, taps, state): &(Weight, Weight, State), keys: &[Key]) {
    let write = |step: Step<'_>| {
        let (y, _) = step.ids().embed(table, 1.0).conv(taps, None, step.open(state), Map::Silu);
        step.emit(y.take_outputs());
    };
    rt.prepare(&net(write), keys, [0; TABLES]).unwrap();
}

fn launch(rt: &mut Runtime) -> longrun_array::Result<Ticket> {
    let mut inputs = rt.inputs();
    inputs.begin(one());
    inputs.push(token(1, 0).input())?;
    rt.launch(&inputs)
}

#[test]
fn buffers_are_counted_by_tag_class_growth_and_peak() {
    let mut rt = null();
    let parts = parts(&rt);
    prepare(&mut rt, &parts, &[one()]);
    let u = rt.usage();
    let buffers = |tag| u.tag(tag).buffers;
    assert_eq!(
        [Tag::Weight, Tag::State, Tag::Arena, Tag::Io, Tag::Lab].map(buffers),
        [2, 1, 1, 4, 0]
    );
    assert_eq!(u.tag(Tag::Weight).bytes, 160 + 32);
    assert_eq!(u.tag(Tag::State).bytes, 16);
    assert_eq!(u.live.buffers, 8);
    assert_eq!(u.live.bytes, u.by_tag.iter().map(|count| count.bytes).sum());
    let (classes, objects): (Vec<_>, Vec<_>) = u.classes().map(|(c, n)| (c, n.buffers)).unzip();
    assert!(
        classes.contains(&16) && classes.contains(&32) && classes.contains(&256),
        "{classes:?}"
    );
    assert_eq!(objects.iter().sum::<usize>(), 8);
    let grown = |growth| u.grown[growth as usize];
    assert_eq!(Growth::ALL.map(grown), [2, 5, 1, 0]);
    drop(parts);
    let extra: Vec<_> = (0..5).map(|_| state(&rt, 1 << 20).unwrap()).collect();
    let u = rt.usage();
    assert_eq!((u.live.buffers, u.peak.buffers), (10, 10));
    drop(extra);
    let after = rt.usage();
    assert_eq!((after.live.buffers, after.peak), (5, u.peak));
}

#[test]
fn a_refusal_names_objects_classes_and_tags() {
    let rt = limited(5, 0);
    let states: Vec<_> = [4, 4, 4, 1000].into_iter().map(|len| state(&rt, len).unwrap()).collect();
    let weight = Weight::vector(&rt, "w", &[0.0; 300]).unwrap();
    let error = state(&rt, 25).err().unwrap();
    let Error::Limit(limit) = &error else { panic!("{error}") };
    assert_eq!((limit.bytes, limit.tag, limit.usage.limit), (100, Tag::State, 5));
    let text = error.to_string();
    for part in [
        "5 live + 0 cached of 5 allowed",
        "these are objects, not bytes",
        "all of them hold 5248 bytes",
        "refused 100 bytes for a state buffer",
        "fullest size classes: <= 16 B: 3",
        "fullest tags: state: 4 weight: 1",
    ] {
        assert!(text.contains(part), "{text} lacks {part}");
    }
    drop(weight);
    let _fits = state(&rt, 25).unwrap();
    drop(states);
}

#[test]
fn freed_buffers_are_reused_by_exact_size_and_given_up_before_anything_is_refused() {
    let rt = limited(3, 200);
    let [a, b, c] = [10, 10, 30].map(|len| state(&rt, len).unwrap());
    drop((a, b, c)); // 40 + 40 + 120 bytes: all fit
    assert_eq!(counts(rt.usage()), (0, 3, 0));
    assert_eq!(rt.usage().cached.bytes, 200);
    let again = state(&rt, 10).unwrap();
    assert_eq!(counts(rt.usage()), (1, 2, 0));
    let other = state(&rt, 11).unwrap(); // the limit is reached: the cache goes
    assert_eq!(counts(rt.usage()), (2, 0, 0));
    let _third = state(&rt, 12).unwrap();
    assert!(matches!(state(&rt, 13), Err(Error::Limit(_))));
    drop((again, other));
    assert_eq!(counts(rt.usage()), (1, 2, 0));
    // 400 bytes are more than the cache may hold.
    drop(state(&limited(3, 200), 100));
    assert_eq!(rt.usage().cached.bytes, 84);
}

#[test]
fn cached_memory_is_given_up_before_a_full_device_refuses() {
    let (rt, log) = deferred(1000, Limits { buffers: 100, cache_bytes: 1000 });
    drop([100, 50].map(|len| state(&rt, len).unwrap()));
    assert_eq!(log.lock().unwrap().bytes(), 600);
    let large = state(&rt, 200).unwrap();
    assert_eq!((counts(rt.usage()), log.lock().unwrap().bytes()), ((1, 0, 0), 800));
    assert!(matches!(state(&rt, 200), Err(Error::Memory { bytes: 800, .. })));
    drop((large, rt));
    assert!(log.lock().unwrap().alive.is_empty());
}

#[test]
fn reused_memory_is_zeroed() {
    let mut rt = Runtime::new(
        Box::new(longrun_array::CpuDevice::new(threads(1))),
        Limits { cache_bytes: 1 << 20, ..Limits::default() },
    );
    let (table, taps, _) = parts(&rt);
    let long = State::new(&rt, StateKind::slots(COLS), 5000, 0).unwrap();
    let ones: Vec<u8> = [1.0_f32; 10 * COLS].iter().flat_map(|x| x.to_le_bytes()).collect();
    let spec = spec(Format::F32, 1, 10, COLS);
    let parts = (Weight::matrix(&rt, "ones", spec, &ones).unwrap(), taps, long);
    drop(table);
    prepare(&mut rt, &parts, &[one()]);
    let row = common::Row { slot: 4999, ..token(1, 0) };
    run_step(&mut rt, one(), &[row], COLS).unwrap();
    assert_eq!(parts.2.read(&rt).unwrap()[4999 * COLS..], [1.0; COLS]);
    drop(parts);
    let again = State::new(&rt, StateKind::slots(COLS), 5000, 0).unwrap();
    assert!(again.read(&rt).unwrap().iter().all(|x| *x == 0.0));
}

#[test]
fn what_is_freed_in_flight_is_retired_counted_and_released_by_the_wait() {
    let (mut rt, log) = deferred(1 << 20, Limits::default());
    let parts = parts(&rt);
    prepare(&mut rt, &parts, &[one()]);
    let live = rt.usage().live.buffers;
    let first = launch(&mut rt).unwrap();
    let second = launch(&mut rt).unwrap();
    drop(parts);
    assert_eq!(counts(rt.usage()), (live, 0, 3));
    rt.wait(first, &mut []).unwrap();
    assert_eq!(counts(rt.usage()), (live, 0, 3), "the second step may still use them");
    rt.wait(second, &mut []).unwrap();
    assert_eq!(counts(rt.usage()), (live - 3, 0, 0));
    assert!(matches!(launch(&mut rt), Err(Error::Freed)));
    assert_eq!(log.lock().unwrap().faults, [""; 0]);
}

/// A step that was launched after its memory was freed would run when that memory is gone.
#[test]
fn no_step_is_launched_on_retired_memory() {
    let (mut rt, log) = deferred(1 << 20, Limits::default());
    let parts = parts(&rt);
    prepare(&mut rt, &parts, &[one()]);
    let first = launch(&mut rt).unwrap();
    drop(parts);
    assert!(matches!(launch(&mut rt), Err(Error::Freed)));
    rt.wait(first, &mut []).unwrap();
    drop(rt);
    assert_eq!(log.lock().unwrap().faults, [""; 0]);
}

#[test]
fn steps_in_flight_are_bounded_and_tickets_are_good_once() {
    let (mut rt, log) = deferred(1 << 20, Limits::default());
    let parts = parts(&rt);
    prepare(&mut rt, &parts, &[one()]);
    let tickets: Vec<_> = (0..IN_FLIGHT).map(|_| launch(&mut rt).unwrap()).collect();
    assert!(matches!(launch(&mut rt), Err(Error::Ticket { .. })));
    assert!(matches!(rt.wait(Ticket(99), &mut []), Err(Error::Ticket { ticket: 99 })));
    for ticket in tickets {
        rt.wait(ticket, &mut [0.0; COLS]).unwrap();
        assert!(matches!(rt.wait(ticket, &mut []), Err(Error::Ticket { .. })));
    }
    let ticket = launch(&mut rt).unwrap();
    // More numbers than the step made: refused, and the step is over all the same.
    assert!(matches!(rt.wait(ticket, &mut [0.0; COLS + 1]), Err(Error::Inputs(_))));
    assert!(matches!(rt.wait(ticket, &mut []), Err(Error::Ticket { .. })));
    let log = log.lock().unwrap();
    assert_eq!((log.most_in_flight, log.faults.len()), (IN_FLIGHT, 0));
}

#[test]
fn what_needs_an_idle_device_is_refused_in_flight() {
    let (mut rt, log) = deferred(1 << 20, Limits::default());
    let parts = parts(&rt);
    prepare(&mut rt, &parts, &[one()]);
    let ticket = launch(&mut rt).unwrap();
    let nothing = net(|_: Step<'_>| {});
    let error = rt.prepare(&nothing, &[], [0; TABLES]).unwrap_err();
    assert!(matches!(error, Error::InFlight { steps: 1 }), "{error}");
    assert!(matches!(parts.2.read(&rt), Err(Error::InFlight { steps: 1 })));
    rt.wait(ticket, &mut [0.0; COLS]).unwrap();
    assert_eq!(parts.2.read(&rt).unwrap(), [0.0; COLS]);
    rt.prepare(&nothing, &[], [0; TABLES]).unwrap();
    assert_eq!(rt.plans(), 0);
    assert!(log.lock().unwrap().faults.is_empty());
}

#[test]
fn a_step_without_a_plan_is_refused() {
    for mut rt in [null(), cpu(threads(1))] {
        assert!(matches!(launch(&mut rt), Err(Error::Inputs(_))), "no plan, no room for inputs");
        let parts = parts(&rt);
        let large = Key { tokens: longrun_array::Tokens::T16, ..one() };
        prepare(&mut rt, &parts, &[large, large]);
        assert_eq!((rt.plans(), rt.has_plan(one())), (1, false));
        let error = launch(&mut rt).unwrap_err();
        assert!(matches!(error, Error::NotPrepared(key) if key == one()), "{error}");
        assert_eq!(rt.usage().live.buffers, 8);
    }
}

#[test]
fn a_plan_whose_memory_was_freed_fails_and_never_reads_another_owner_s() {
    for cache_bytes in [0, 1 << 20] {
        let limits = Limits { cache_bytes, ..Limits::default() };
        let devices: [Box<dyn longrun_array::Device>; 2] =
            [Box::new(NullDevice::new()), Box::new(longrun_array::CpuDevice::new(threads(2)))];
        for device in devices {
            let mut rt = Runtime::new(device, limits);
            let (table, taps, state) = parts(&rt);
            let parts = (table, taps.clone(), state);
            prepare(&mut rt, &parts, &[one()]);
            run_step(&mut rt, one(), &[token(1, 0)], COLS).unwrap();
            drop((parts.0, parts.1)); // a clone of the taps lives on
            assert!(matches!(launch(&mut rt), Err(Error::Freed)));
            // Another owner of memory of the same size must not be taken for the first.
            let bytes = vec![0; 10 * COLS * 4];
            let spec = spec(Format::F32, 1, 10, COLS);
            let table = Weight::matrix(&rt, "other", spec, &bytes).unwrap();
            assert!(matches!(launch(&mut rt), Err(Error::Freed)), "{}", rt.device_name());
            let parts = (table, taps, parts.2);
            prepare(&mut rt, &parts, &[one()]);
            launch(&mut rt).unwrap();
        }
    }
}

#[test]
fn a_model_that_fails_to_record_leaves_no_plan_and_no_buffer() {
    let mut rt = null();
    let parts = parts(&rt);
    prepare(&mut rt, &parts, &[one()]);
    let wrong = net(|step| step.emit(step.ids().embed(&parts.1, 1.0)));
    assert!(matches!(rt.prepare(&wrong, &[one()], [0; TABLES]), Err(Error::Record { .. })));
    assert_eq!((rt.plans(), rt.usage().live.buffers), (0, 3));
    let keys = [one(); 257];
    let many = rt.prepare(&wrong, &keys, [0; TABLES]);
    assert!(matches!(many, Err(Error::TooManyPlans { asked: 257, most: 256 })));
}

#[test]
fn owners_and_the_runtime_may_go_in_any_order() {
    for order in 0..6 {
        let (mut rt, log) = deferred(1 << 20, Limits { cache_bytes: 100, ..Limits::default() });
        let ledger = rt.ledger();
        let (table, taps, state) = parts(&rt);
        let copy = taps.clone();
        let parts = (table, taps, state);
        prepare(&mut rt, &parts, &[one()]);
        launch(&mut rt).unwrap(); // never waited for
        let (table, taps, state) = parts;
        let mut owners: Vec<Box<dyn std::any::Any>> =
            vec![Box::new(rt), Box::new((table, taps)), Box::new((state, copy))];
        owners.swap(0, order % 3);
        owners.swap(1, 1 + order / 3);
        owners.into_iter().for_each(drop);
        assert_eq!(counts(ledger.usage()), (0, 0, 0), "order {order}");
        let log = log.lock().unwrap();
        assert!(log.alive.is_empty() && log.faults.is_empty(), "{order}: {:?}", log.faults);
    }
}

#[test]
fn a_state_is_read_by_its_own_runtime_only() {
    let (a, b) = (null(), null());
    let state = state(&a, 3).unwrap();
    assert_eq!(state.read(&a).unwrap(), [0.0; 3]);
    assert!(matches!(state.read(&b), Err(Error::Device(_))));
}

/// What a random life of a runtime is made of.
#[derive(Clone, Copy, Debug)]
enum Act {
    Make(usize),
    Free(usize),
    Launch,
    Wait,
    Prepare,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (1..6_usize).prop_map(Act::Make),
        3 => (0..8_usize).prop_map(Act::Free),
        3 => Just(Act::Launch),
        3 => Just(Act::Wait),
        1 => Just(Act::Prepare),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Live is what owners hold plus what is retired; the device holds that plus the cache; all returns to zero.
    #[test]
    fn the_book_is_true_at_every_moment(
        acts in proptest::collection::vec(act(), 1..80), cache in 0..200_usize,
    ) {
        let (mut rt, log) = deferred(1 << 20, Limits { buffers: 1000, cache_bytes: cache });
        let ledger = rt.ledger();
        let mut states: Vec<State> = Vec::new();
        let mut flying: Vec<Ticket> = Vec::new();
        let (parts, mut made) = (parts(&rt), 0);
        prepare(&mut rt, &parts, &[one()]);
        let base = rt.usage().live.buffers;
        for act in acts {
            match act {
                Act::Make(len) => states.push(state(&rt, 4 * len).unwrap()),
                Act::Free(i) if i < states.len() => drop(states.swap_remove(i)),
                Act::Free(_) => {}
                Act::Launch => match launch(&mut rt) {
                    Ok(ticket) => flying.push(ticket),
                    Err(error) => {
                        prop_assert!(matches!(error, Error::Ticket { .. }), "{error}");
                        prop_assert_eq!(flying.len(), IN_FLIGHT);
                    }
                },
                Act::Wait if flying.is_empty() => {}
                Act::Wait => rt.wait(flying.remove(0), &mut [0.0; COLS]).unwrap(),
                Act::Prepare if flying.is_empty() => prepare(&mut rt, &parts, &[one()]),
                Act::Prepare => {}
            }
            made = made.max(rt.usage().live.buffers);
            let (u, log) = (rt.usage(), log.lock().unwrap());
            prop_assert_eq!(u.live.buffers, base + states.len() + u.retired.buffers);
            prop_assert!(u.retired.buffers == 0 || !flying.is_empty());
            prop_assert_eq!(log.alive.len(), u.live.buffers + u.cached.buffers);
            prop_assert_eq!(log.bytes(), u.live.bytes + u.cached.bytes);
            prop_assert!(u.cached.bytes <= cache && u.peak.buffers >= made);
            prop_assert_eq!(u.by_tag.iter().map(|c| c.buffers).sum::<usize>(), u.live.buffers);
            prop_assert_eq!(u.by_class.iter().map(|c| c.bytes).sum::<usize>(), u.live.bytes);
        }
        drop((rt, states, parts));
        prop_assert_eq!(counts(ledger.usage()), (0, 0, 0));
        let log = log.lock().unwrap();
        prop_assert!(log.alive.is_empty() && log.faults.is_empty(), "{:?}", log.faults);
    }
}

#[test]
fn units_of_a_state_are_copied_read_and_written() {
    let mut rt = cpu(threads(1));
    let state = State::new(&rt, StateKind::slots(3), 4, 0).unwrap();
    let live = rt.usage().live;
    let numbers: Vec<u8> = [1.0f32, -2.0, 3.5].iter().flat_map(|x| x.to_le_bytes()).collect();
    rt.write_unit(&state, 1, &numbers).unwrap();
    rt.copy_unit(&state, 1, 3).unwrap();
    rt.copy_unit(&state, 0, 1).unwrap();
    rt.copy_unit(&state, 3, 3).unwrap();
    let mut bytes = vec![7];
    rt.read_unit(&state, 3, &mut bytes).unwrap();
    assert_eq!((bytes[0], &bytes[1..]), (7, &numbers[..]));
    assert_eq!(state.read(&rt).unwrap()[..9], [0.0; 9]);
    assert_eq!(rt.usage().live, live);

    assert!(rt.copy_unit(&state, 0, 4).is_err());
    assert!(rt.copy_unit(&state, 4, 0).is_err());
    assert!(rt.write_unit(&state, 0, &numbers[1..]).is_err());
    assert!(rt.read_unit(&state, 9, &mut bytes).is_err());
    let mut other = Runtime::new(Box::new(NullDevice::new()), Limits::default());
    assert!(other.copy_unit(&state, 0, 1).is_err());
    assert!(other.write_unit(&state, 0, &numbers).is_err());
}

#[test]
fn a_unit_is_not_read_under_a_step_in_flight() {
    let (mut rt, _) = deferred(1 << 20, Limits::default());
    let parts = parts(&rt);
    prepare(&mut rt, &parts, &[one()]);
    let ticket = launch(&mut rt).unwrap();
    let mut bytes = Vec::new();
    assert!(matches!(rt.read_unit(&parts.2, 0, &mut bytes), Err(Error::InFlight { .. })));
    assert!(rt.write_unit(&parts.2, 0, &[0; COLS * 4]).is_err());
    rt.wait(ticket, &mut []).unwrap();
    rt.read_unit(&parts.2, 0, &mut bytes).unwrap();
}
