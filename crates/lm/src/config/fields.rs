//! Reading single fields of a config.
//!
//! Owns the checks of type and range, messages that name the field, and the memory of which fields were read.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::Value;

use crate::error::{Error, Result};

/// The most that a dimension may be: above it is a lie, and products of three stay below 2^64.
const MOST: usize = 1 << 20;

/// The fields of a config: those of the text part first, then the outer ones.
pub(crate) struct Fields<'a> {
    pub(super) text: &'a Value,
    pub(super) outer: &'a Value,
    read: RefCell<BTreeSet<String>>,
}

impl<'a> Fields<'a> {
    /// The fields of a `config.json`; a vision checkpoint's text part comes first.
    pub(crate) fn of(json: &'a Value) -> Self {
        let text = json.get("text_config").filter(|t| t.is_object()).unwrap_or(json);
        Self::new(text, json)
    }

    pub(super) fn new(text: &'a Value, outer: &'a Value) -> Self {
        Self { text, outer, read: RefCell::default() }
    }

    /// Whether anybody has asked for this field.
    pub(super) fn was_read(&self, name: &str) -> bool {
        self.read.borrow().contains(name)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        if !self.was_read(name) {
            self.read.borrow_mut().insert(name.to_owned());
        }
        let value = self.text.get(name).or_else(|| self.outer.get(name));
        value.filter(|v| !v.is_null())
    }

    pub(crate) fn missing(&self, name: &str) -> Error {
        Error::file("this field is missing").at(name)
    }

    pub(crate) fn wrong(name: &str, value: &Value, want: &str) -> Error {
        let mut shown = value.to_string();
        shown.truncate(shown.floor_char_boundary(60));
        Error::file(format!("{shown} is not {want}")).at(name)
    }

    pub(crate) fn size_up_to(&self, name: &str, most: usize) -> Result<Option<usize>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let n = value.as_u64().and_then(|n| usize::try_from(n).ok());
        match n.filter(|&n| n > 0 && n <= most) {
            Some(n) => Ok(Some(n)),
            None => Err(Self::wrong(name, value, "a positive size that can be")),
        }
    }

    /// A size that may be 0.
    pub(crate) fn count(&self, name: &str) -> Result<Option<usize>> {
        match self.get(name) {
            Some(value) if value.as_u64() == Some(0) => Ok(Some(0)),
            _ => self.size_opt(name),
        }
    }

    pub(crate) fn size_opt(&self, name: &str) -> Result<Option<usize>> {
        self.size_up_to(name, MOST)
    }

    pub(crate) fn size(&self, name: &str) -> Result<usize> {
        self.size_opt(name)?.ok_or_else(|| self.missing(name))
    }

    pub(crate) fn size_or(&self, name: &str, default: usize) -> Result<usize> {
        Ok(self.size_opt(name)?.unwrap_or(default))
    }

    pub(crate) fn number(&self, name: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_f64().filter(|x| x.is_finite()) {
            Some(x) => Ok(Some(x)),
            None => Err(Self::wrong(name, value, "a number")),
        }
    }

    /// A number above 0 that single precision holds.
    pub(crate) fn positive(&self, name: &str) -> Result<Option<f32>> {
        let Some(x) = self.number(name)? else { return Ok(None) };
        match (x as f32).is_normal() && x > 0.0 {
            true => Ok(Some(x as f32)),
            false => Err(Error::file(format!("{x} is not a number above 0")).at(name)),
        }
    }

    pub(crate) fn list(&self, name: &str) -> Result<Option<&'a Vec<Value>>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(other) => Err(Self::wrong(name, other, "a list")),
        }
    }

    pub(crate) fn bool_or(&self, name: &str, default: bool) -> Result<bool> {
        match self.get(name) {
            None => Ok(default),
            Some(Value::Bool(b)) => Ok(*b),
            Some(other) => Err(Self::wrong(name, other, "true or false")),
        }
    }

    pub(crate) fn str(&self, name: &str) -> Result<Option<&'a str>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(other) => Err(Self::wrong(name, other, "a string")),
        }
    }
}
