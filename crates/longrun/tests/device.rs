//! `--device`: its names, what it refuses, and what is said where a device is not there.

mod common;

use common::longrun;

/// Commands that run a model, each with flags that are enough for it.
const COMMANDS: [&[&str]; 5] = [
    &["generate", "--max-tokens", "2"],
    &["chat"],
    &["serve", "--port", "0"],
    &["check", "--model", "testdata/golden/llama"],
    &["perplexity", "--model", "demo", "--text", "README.md"],
];

#[test]
fn an_unknown_name_is_an_error_with_those_that_there_are() {
    for command in COMMANDS.into_iter().chain([&["soak"][..], &["bench"], &["bench", "streams"]]) {
        let run = longrun(&[command, &["--device", "gpu"]].concat());
        assert_eq!(run.code, 2, "{command:?}: {}", run.stderr);
        assert!(run.stderr.contains("cpu, cuda, cuda:N"), "{command:?}: {}", run.stderr);
    }
}

#[test]
fn a_device_that_is_not_there_is_an_error_that_says_what_to_do() {
    // A machine without a driver has none, one with GPUs has not so many.
    for command in
        [&["generate"][..], &["serve", "--port", "0"], &["soak", "--tokens", "9"], &["bench"]]
    {
        let run = longrun(&[command, &["--device", "cuda:99"]].concat());
        assert_eq!(run.code, 6, "{command:?}: {}", run.stderr);
        let found = ["there is no NVIDIA driver", "there is no CUDA device 99"];
        let says = run.stderr.contains("--device cuda:99: ");
        assert!(says && found.iter().any(|what| run.stderr.contains(what)), "{}", run.stderr);
        assert!(run.stdout.is_empty(), "{}", run.stdout);
    }
}

#[test]
fn flags_of_the_cpu_are_refused_beside_a_gpu_and_choose_the_cpu_alone() {
    for flag in [&["--threads", "1"][..], &["--exact"]] {
        let args = [&["generate", "--max-tokens", "2"], flag].concat();
        let run = longrun(&[&args[..], &["--device", "cuda"]].concat());
        assert_eq!(run.code, 2, "{}", run.stderr);
        assert!(run.stderr.contains(&format!("{}: it is for the CPU", flag[0])), "{}", run.stderr);
        for device in [&[][..], &["--device", "cpu"]] {
            let run = longrun(&[&args[..], device].concat());
            assert_eq!(run.code, 0, "{}", run.stderr);
            assert!(run.stderr.contains("device: cpu ("), "{}", run.stderr);
        }
    }
}

#[test]
fn what_runs_nothing_is_for_soak_and_bench() {
    for command in [&["generate"][..], &["serve", "--port", "0"]] {
        let run = longrun(&[command, &["--device", "null"]].concat());
        assert_eq!(run.code, 2, "{command:?}: {}", run.stderr);
        assert!(run.stderr.contains("runs nothing"), "{}", run.stderr);
    }
    let run = longrun(&["soak", "--tokens", "20", "--device", "null"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stderr.contains("device: null"), "{}", run.stderr);
}
