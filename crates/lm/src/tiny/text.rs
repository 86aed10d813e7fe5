//! A tokenizer and a chat template for tiny models: a token for each byte, and the marks of ChatML.
//!
//! Owns the words that a random model is spoken to with, so that all that is about text can be tried with every family.

use crate::error::Result;
use crate::text::{ChatTemplate, GgufVocab, Tokenizer};

/// The marks, whose ids follow the bytes; the first two frame a message.
const MARKS: [(&str, bool); 6] = [
    ("<|im_start|>", true),
    ("<|im_end|>", true),
    ("<think>", false),
    ("</think>", false),
    ("<tool_call>", false),
    ("</tool_call>", false),
];

/// Tokens of the vocabulary: bytes, marks, and ids without a token.
pub(super) const VOCAB: usize = 288;

/// The id that ends a message.
pub(super) const END: u32 = 257;

const CHATML: &str = r#"{%- if tools %}
{{- '<|im_start|>system\n# Tools\n\n<tools>' }}
{%- for tool in tools %}
{{- '\n' + (tool | tojson) }}
{%- endfor %}
{{- '\n</tools>\n\nFor each call, return a JSON object within <tool_call></tool_call> XML tags:\n' }}
{{- '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' + message.content.split('</think>')[-1] }}
{%- for call in message.tool_calls or [] %}
{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined %}
{{- '<think>\n' if enable_thinking else '<think>\n\n</think>\n\n' }}
{%- endif %}
{%- endif %}"#;

/// The character that stands for a byte in byte-level vocabularies.
fn character(byte: u8) -> char {
    let code = match byte {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => u32::from(byte),
        0x00..=0x20 => 0x100 + u32::from(byte),
        0x7F..=0xA0 => 0x121 + u32::from(byte - 0x7F),
        0xAD => 0x143,
    };
    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// A token for each byte, and the marks.
pub(super) fn tokenizer() -> Result<Tokenizer> {
    let bytes = (0..=u8::MAX).map(|byte| (character(byte).to_string(), 1));
    let marks = MARKS.iter().map(|&(text, control)| (text.to_owned(), if control { 3 } else { 4 }));
    let (tokens, types) = bytes.chain(marks).unzip();
    Tokenizer::from_gguf(&GgufVocab {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        tokens,
        types,
        eos: Some(END),
        ..GgufVocab::default()
    })
}

/// ChatML with reasoning and calls.
pub(super) fn template() -> Result<ChatTemplate> {
    ChatTemplate::new(CHATML)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::answer::{Format, starts_in_reasoning};
    use crate::text::ChatInput;

    #[test]
    fn every_byte_is_a_token_and_marks_are_one_each() {
        let tokenizer = tokenizer().unwrap();
        let text = "a\u{e9}\0\n\u{1f600} b";
        let ids = tokenizer.encode(text, true).unwrap();
        assert_eq!(ids, text.bytes().map(u32::from).collect::<Vec<_>>());
        assert_eq!(tokenizer.decode(&ids, true), text);
        for (i, (mark, control)) in MARKS.iter().enumerate() {
            let id = 256 + i as u32;
            assert_eq!(tokenizer.encode(mark, true).unwrap(), [id], "{mark}");
            assert_eq!(tokenizer.token_id(mark), Some(id));
            assert_eq!(tokenizer.is_special(id), *control, "{mark}");
        }
        assert_eq!(tokenizer.eos(), Some(END));
    }

    #[test]
    fn a_conversation_is_framed() {
        let messages = json!([{"role": "user", "content": "Hi"}]);
        let text = template().unwrap().render(&ChatInput::new(&messages)).unwrap();
        assert_eq!(text, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    }
    #[test]
    fn an_answer_may_begin_inside_of_reasoning() {
        let (tokenizer, template) = (tokenizer().unwrap(), template().unwrap());
        let has = |text: &str| tokenizer.token_id(text).is_some();
        let format = Format::detect(Some(template.text()), &has, "llama");
        assert_eq!(format.reasoning_end(), Some("</think>"));
        let messages = json!([{"role": "user", "content": "Hi"}]);
        let begins_inside = |extra: serde_json::Value| {
            let extra = extra.as_object().unwrap();
            let input = ChatInput { extra: Some(extra), ..ChatInput::new(&messages) };
            starts_in_reasoning(&format, &template.render(&input).unwrap())
        };
        assert!(begins_inside(json!({"enable_thinking": true})));
        assert!(!begins_inside(json!({"enable_thinking": false})));
        assert!(!begins_inside(json!({})));
    }
}
