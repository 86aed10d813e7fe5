//! Grammars made ready: within bounds of time and memory, on a stack that is deep enough, and without a panic.
//!
//! Owns the bounds on what a grammar may cost. Refuses to look at what it says.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::thread;

use llguidance::api::{GrammarWithLexer, ParserLimits, TopLevelGrammar};
use llguidance::toktrie::SimpleVob;
use llguidance::{Matcher, panic_utils};

use super::vocabulary::Vocabulary;
use crate::error::{Error, Kind, Result};

/// Bytes of stack for making a grammar ready. Schemas refer to schemas, and expressions hold expressions: what the
/// bounds on a grammar's text admit is less deep than this.
const STACK: usize = 256 << 20;

/// Tokens that are tried when a grammar is made ready: what costs too much mostly does so at once.
const TRIED: usize = 3;

/// What one grammar may cost: a second or two when it is made ready, some 15 ms a token, 60 MB.
pub(super) fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 5_000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_lexer_states: 30_000,
        max_grammar_size: 500_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}

/// Makes a grammar ready.
///
/// # Errors
/// It is broken, unsupported, or costs more than [`limits`].
pub(super) fn compile(vocabulary: &Vocabulary, grammar: GrammarWithLexer) -> Result<Matcher> {
    let make = || {
        let top = TopLevelGrammar::from_grammar(grammar);
        let mut matcher = Matcher::new(vocabulary.factory().create_parser(top));
        // What no text can satisfy shows here and not in the middle of an answer.
        let possible = matcher.compute_mask_or_eos().map_err(|e| e.to_string())?;
        attempt(matcher.deep_clone(), possible)?;
        Ok(matcher)
    };
    let run = || guarded(Kind::Usage, make);
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("grammar".into()).stack_size(STACK);
        let handle = thread
            .spawn_scoped(scope, run)
            .map_err(|e| Error::new(Kind::Limit, format!("no thread for a grammar: {e}")))?;
        handle.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Says a few tokens, the first possible ones.
fn attempt(mut matcher: Matcher, mut possible: SimpleVob) -> std::result::Result<(), String> {
    for _ in 0..TRIED {
        let Some(id) = possible.iter().next().filter(|_| !matcher.is_stopped()) else { break };
        matcher.consume_token(id).map_err(|e| e.to_string())?;
        match matcher.compute_mask_or_eos().map_err(|e| e.to_string()) {
            Ok(next) => possible = next,
            // Letters that the vocabulary lacks may lie behind these tokens and not behind others.
            Err(error) if error.starts_with("NoExtension") => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Runs code of the grammar library. It asserts what a hostile grammar may break, and it has no check without a panic for
/// that: here, where nothing of it outlives the failure, a panic becomes an error of the one request.
///
/// # Errors
/// As `work`, or it panicked.
pub(super) fn guarded<T>(
    kind: Kind,
    work: impl FnOnce() -> std::result::Result<T, String>,
) -> Result<T> {
    let done = panic_utils::catch_unwind(AssertUnwindSafe(|| Ok(work())));
    let done = done.unwrap_or_else(|panic| Err(panic.to_string()));
    done.map_err(|error| Error::new(kind, sentence(&error)))
}

/// What the library says in words that name options of its own, and what that means here.
const REWORDED: [(&str, &str); 3] = [
    ("NoExtension", "no text has this form"),
    (
        "oneOf constraints are not supported",
        "`oneOf` of what may overlap is not supported: say `anyOf`",
    ),
    ("panic: ", "it holds something that is not supported"),
];

/// The first lines of what the library says, as one.
pub(super) fn sentence(text: &str) -> String {
    if let Some((_, words)) = REWORDED.iter().find(|(theirs, _)| text.starts_with(theirs)) {
        return (*words).into();
    }
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let text = lines.take_while(|line| !line.starts_with('<')).collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(300) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
