//! The chores of the project, so that nobody has to remember a command line: `cargo xtask NAME`.
//!
//! Owns the names of the chores and their flags. Standard library only, so that it builds in a second or two.
#![forbid(unsafe_code)]

mod clients;
mod compare;
mod count;
mod cuda;
mod families;
mod fetch;
mod interop;
mod page;
mod prove;
mod schema;
mod shell;

use std::process::ExitCode;

use shell::{Result, cargo, run};

const USAGE: &str = "\
cargo xtask fetch                     download the small real models and texts that tests use into .cache/models
cargo xtask test [--offline]          fetch, then run every test
cargo xtask prove [--families | --ci] the long proofs: full size into docs/proofs.md, of every other family into
                                      docs/proofs-families.md, or all in CI size to the terminal
cargo xtask compare [--threads N,..] [--rounds N] [--mlx] [--write]
                                      speed, load time and memory beside llama.cpp, which is fetched and built, as ratios;
                                      --mlx adds models with linear layers beside mlx-lm; --write puts the tables into
                                      docs/performance.md. Also [--model FILE]..., [--llama DIR] for one that is built,
                                      [--parts NAME,..] of prefill, decode, depth, rowsN, load, hybrid,
                                      and --short, a tenth of all lengths, to see that it runs
cargo xtask count [--update]          instructions of a step under valgrind, beside those on record; --update records
cargo xtask cuda-check                compiles every CUDA kernel with NVRTC from the Python registry; no GPU is needed
cargo xtask families                  every checkpoint of testdata beside its reference, into docs/families.md
cargo xtask interop [FAMILY]...       files in both directions between this engine and mlx-lm, as a table
cargo xtask page                      the server's page in a headless browser, into docs/page.png
cargo xtask clients [TEST]...         the official clients of OpenAI and Anthropic, and LangChain's, talk to the server
cargo xtask schema [SECONDS [SEED]]   requests made from the server's own document, against a tiny model";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        ["fetch"] => fetch::fetch(),
        ["test"] => test(false),
        ["test", "--offline"] => test(true),
        ["prove"] => prove::full(),
        ["prove", "--families"] => prove::families(),
        ["prove", "--ci"] => prove::small(),
        ["families"] => families::families(),
        ["count"] => count::count(false),
        ["count", "--update"] => count::count(true),
        ["cuda-check"] => cuda::check(),
        ["compare", rest @ ..] => compare::compare(rest),
        ["interop", rest @ ..] => interop::interop(rest),
        ["page"] => page::page(),
        ["clients", rest @ ..] => clients::clients(rest),
        ["schema", rest @ ..] => schema::schema(rest),
        [] | ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => Err(format!("xtask does not know {args:?}\n\n{USAGE}")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Every test. Offline, the tests on real models run only if the models are there.
fn test(offline: bool) -> Result<()> {
    if !offline {
        fetch::fetch()?;
    }
    let real = fetch::present();
    if !real {
        eprintln!("xtask: real models are not in .cache/models: their tests are left out");
    }
    let tests = |args: &[&str]| {
        let mut command = cargo();
        command.arg("test").args(offline.then_some("--offline")).args(args);
        run(&mut command)
    };
    tests(&["--workspace"])?;
    if real {
        let real = [
            "--package",
            "longrun",
            "--test",
            "real",
            "--test",
            "real_text",
            "--test",
            "real_answers",
            "--test",
            "real_shapes",
        ];
        tests(&[&real[..], &["--", "--ignored"]].concat())?;
        tests(&["--package", "longrun-lm", "--test", "grammar", "--", "--ignored"])?;
    }
    tests(&["--package", "longrun", "--no-default-features", "--test", "no_hub"])?;
    // Last, because the feature makes other binaries of the same names.
    tests(&["--package", "longrun-array", "--package", "longrun", "--features", "longrun/leak-lab"])
}
