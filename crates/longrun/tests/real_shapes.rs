//! What published templates show of calls: how many of them say how calls are written.
//!
//! Needs the files that `cargo xtask fetch` brings.

mod common;

use std::sync::Arc;

use common::{read_json, root};
use longrun_lm::answer::Format;
use longrun_lm::grammar::CallShape;
use longrun_lm::text::ChatTemplate;

#[test]
#[ignore = "needs models: cargo xtask test"]
fn calls_can_be_forced_as_templates_show_them() {
    let sources = read_json(&root(".cache/models/text/templates.json"));
    let (mut with, mut without) = (0, Vec::new());
    for (name, source) in sources.as_object().unwrap() {
        let source = source.as_str().unwrap();
        let Ok(template) = ChatTemplate::new(source) else { continue };
        let template = template.with_token("bos_token", "<s>").with_token("eos_token", "</s>");
        let format = Arc::new(Format::detect(Some(source), &|_| true, ""));
        if !format.has_calls() {
            continue;
        }
        // A shape is one only if calls that are written so are read as those calls again.
        match CallShape::shown_by(&template, &format) {
            Some(_) => with += 1,
            None => without.push(name.as_str()),
        }
    }
    println!("{with} with a shape, {} without: {}", without.len(), without.join(", "));
    assert!(with >= 230, "only {with} have a shape; without: {}", without.join(", "));
}
