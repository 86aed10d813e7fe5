//! What stands around a model in a folder of sentence-transformers: its modules, in order, each with its config.
//!
//! Owns finding and reading those files, each of a bounded size and inside of the folder. What a module does to hidden
//! states is the business of whoever pools them.

use serde_json::{Map, Value};

use super::source::{Folder, plain_name};
use super::{MAX_CONFIG, read_object};
use crate::{Error, Result};

/// The most modules of a model; those that are public have up to five.
const MOST: usize = 16;

/// A module behind or around the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Module {
    /// The last part of its type: `Transformer`, `Pooling`, `Normalize`, `Dense`, ...
    pub kind: String,
    /// Its config, an object; empty without a file.
    pub config: Value,
}

/// All of them, and what the folder says of all texts.
#[derive(Clone, Debug, PartialEq)]
pub struct Modules {
    /// In the order in which a text goes through them.
    pub list: Vec<Module>,
    /// `config_sentence_transformers.json`, an object; empty without that file.
    pub settings: Value,
}

/// The modules that `modules.json` lists, if there is such a file.
pub(super) fn read(folder: &Folder) -> Result<Option<Modules>> {
    const NAME: &str = "modules.json";
    let Some(bytes) = folder.read(NAME, MAX_CONFIG)? else { return Ok(None) };
    let wrong = |what: String| Error::file(what).at(NAME);
    let listed: Value =
        serde_json::from_slice(&bytes).map_err(|e| wrong(format!("it is not valid JSON: {e}")))?;
    let listed = listed.as_array().ok_or_else(|| wrong("it is not a JSON list".into()))?;
    if listed.len() > MOST {
        return Err(wrong(format!("{} modules are more than {MOST}", listed.len())));
    }
    let mut list = Vec::with_capacity(listed.len());
    for (i, one) in listed.iter().enumerate() {
        let text = |field: &str| {
            let missing = || wrong(format!("module {i} has no {field}"));
            one.get(field).and_then(Value::as_str).ok_or_else(missing)
        };
        let kind = text("type")?;
        let kind = kind.rsplit('.').next().unwrap_or(kind).to_owned();
        // The model itself lies in the folder; its module's file has a name of its own.
        let file = match text("path")? {
            "" => "sentence_bert_config.json".to_owned(),
            path => format!("{}/config.json", plain_name(path).map_err(|e| e.at(NAME))?),
        };
        list.push(Module { kind, config: object(folder, &file)? });
    }
    let settings = object(folder, "config_sentence_transformers.json")?;
    Ok(Some(Modules { list, settings }))
}

fn object(folder: &Folder, name: &str) -> Result<Value> {
    Ok(read_object(folder, name)?.unwrap_or_else(|| Map::new().into()))
}
