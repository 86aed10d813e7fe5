//! A conversation put together from small items, as templates read it.
//!
//! Owns which items are one message: what an assistant thought, said and called is, until somebody else speaks. Refuses
//! to know how a format writes items.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::super::error::{ApiError, ApiResult};
use super::super::prompt;

/// A conversation so far.
#[derive(Default)]
pub(super) struct History {
    messages: Vec<Value>,
    open: Option<Assistant>,
    /// Names of called tools by the ids of the calls.
    called: HashMap<String, String>,
}

/// A message of the assistant that is not whole yet.
#[derive(Default)]
struct Assistant {
    reasoning: String,
    content: String,
    calls: Vec<Value>,
}

impl History {
    /// Somebody else than the assistant says something.
    pub(super) fn say(&mut self, role: &str, content: &str) {
        self.end();
        self.messages.push(json!({"role": role, "content": content}));
    }

    /// The user goes on, in the same message if the last one was the user's.
    pub(super) fn user(&mut self, content: &str) {
        self.end();
        match self.messages.last_mut() {
            Some(last) if last["role"] == "user" => {
                let before = last["content"].as_str().unwrap_or_default();
                last["content"] = format!("{before}\n{content}").into();
            }
            _ => self.say("user", content),
        }
    }

    /// The assistant thinks; what it said before was another message.
    pub(super) fn reasoning(&mut self, text: &str) {
        if self.open.as_ref().is_some_and(|open| !open.content.is_empty() || !open.calls.is_empty())
        {
            self.end();
        }
        self.assistant().reasoning += text;
    }

    /// The assistant says something that is a message of its own.
    pub(super) fn message(&mut self, text: &str) {
        if self.open.as_ref().is_some_and(|open| !open.content.is_empty()) {
            self.end();
        }
        self.content(text);
    }

    /// The assistant says something; what it called before was another message.
    pub(super) fn content(&mut self, text: &str) {
        if self.open.as_ref().is_some_and(|open| !open.calls.is_empty()) {
            self.end();
        }
        self.assistant().content += text;
    }

    /// The assistant calls a tool. Arguments are an object or its text.
    pub(super) fn call(&mut self, id: &str, name: &str, arguments: Value) {
        self.called.insert(id.to_owned(), name.to_owned());
        let function = json!({"name": name, "arguments": arguments});
        let call = json!({"id": id, "type": "function", "function": function});
        self.assistant().calls.push(call);
    }

    /// What a call came to. `place` is the path of its id.
    pub(super) fn result(&mut self, id: &str, content: &str, place: &str) -> ApiResult<()> {
        self.end();
        let Some(name) = self.called.get(id) else {
            return Err(ApiError::field(place, format!("no call before it has the id {id:?}")));
        };
        let message = json!({"role": "tool", "tool_call_id": id, "name": name, "content": content});
        self.messages.push(message);
        Ok(())
    }

    /// The assistant has something to say, if only nothing.
    pub(super) fn assistant_speaks(&mut self) {
        self.assistant();
    }

    /// The assistant's message is whole.
    pub(super) fn end(&mut self) {
        let Some(Assistant { reasoning, content, calls }) = self.open.take() else { return };
        let mut message = json!({"role": "assistant", "content": content});
        if !reasoning.is_empty() {
            // Some templates know it by the one name, some by the other, and those do not take it beside content.
            if content.is_empty() || calls.is_empty() {
                message["thinking"] = reasoning.as_str().into();
            }
            message["reasoning_content"] = reasoning.into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        self.messages.push(message);
    }

    /// All messages. `place` is what clients call their list.
    pub(super) fn finish(mut self, place: &str) -> ApiResult<Vec<Value>> {
        self.end();
        if self.messages.iter().all(|message| message["role"] == "system") {
            return Err(ApiError::field(place, "there are none"));
        }
        prompt::messages(self.messages.into())
    }

    fn assistant(&mut self) -> &mut Assistant {
        self.open.get_or_insert_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_of_the_assistant_is_one_message() {
        let mut history = History::default();
        history.say("system", "s");
        history.user("a");
        history.user("b");
        history.reasoning("hm");
        history.content("let me see");
        history.call("1", "f", json!("{\"x\": 1}"));
        history.call("2", "g", json!({}));
        history.result("2", "two", "p").unwrap();
        history.result("1", "one", "p").unwrap();
        history.reasoning("so");
        history.content("it is");
        history.reasoning("again");
        let messages = history.finish("input").unwrap();
        let roles: Vec<_> = messages.iter().map(|m| m["role"].as_str().unwrap()).collect();
        let expected = ["system", "user", "assistant", "tool", "tool", "assistant", "assistant"];
        assert_eq!(roles, expected);
        assert_eq!(messages[1]["content"], "a\nb");
        assert_eq!(messages[2]["reasoning_content"], "hm");
        assert_eq!(messages[2].get("thinking"), None, "not beside content and calls");
        assert_eq!(messages[2]["content"], "let me see");
        assert_eq!(messages[2]["tool_calls"][0]["function"]["arguments"], json!({"x": 1}));
        assert_eq!(messages[3]["name"], "g");
        assert_eq!(messages[5]["thinking"], "so");
        assert_eq!(messages[6]["reasoning_content"], "again");
    }

    #[test]
    fn a_result_belongs_to_a_call_and_a_conversation_is_not_empty() {
        let mut history = History::default();
        let error = history.result("9", "x", "input[0].call_id").unwrap_err();
        assert_eq!(error.param.as_deref(), Some("input[0].call_id"));
        history.say("system", "s");
        assert_eq!(history.finish("input").unwrap_err().param.as_deref(), Some("input"));
    }
}
