//! What can go wrong outside a step, said so that a person can act on it: what, where, what next.
//!
//! Owns the one error type of this crate. Refuses to carry tensors, lifetimes or backtraces.

use std::fmt;

/// The result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// The class of an error; the command line maps it to an exit code and a server to a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The caller asked for something that makes no sense (flag, request field, prompt length).
    Usage,
    /// A file is missing, unreadable, truncated or lies about its contents.
    File,
    /// A well-formed file or request needs something that this build does not have.
    Unsupported,
    /// A stated limit (objects, bytes, context) would be passed.
    Limit,
    /// The device refused or failed.
    Device,
    /// A promise of this program was broken; please report it.
    Bug,
}

/// An error: `at: what; hint`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: Kind,
    what: String,
    at: Vec<String>,
    hint: Option<String>,
}

impl Error {
    /// An error of `kind`; `what` is a full clause without a final stop.
    pub fn new(kind: Kind, what: impl Into<String>) -> Self {
        Self { kind, what: what.into(), at: Vec::new(), hint: None }
    }

    /// A bad argument or request.
    pub fn usage(what: impl Into<String>) -> Self {
        Self::new(Kind::Usage, what)
    }

    /// A bad file.
    pub fn file(what: impl Into<String>) -> Self {
        Self::new(Kind::File, what)
    }

    /// Something this build cannot do.
    pub fn unsupported(what: impl Into<String>) -> Self {
        Self::new(Kind::Unsupported, what)
    }

    /// Says where: a path, a field, a tensor name. Call from the inside out; the outermost is printed first.
    #[must_use]
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.at.push(place.to_string());
        self
    }

    /// Says what to do next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The class of the error.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for place in self.at.iter().rev() {
            write!(f, "{place}: ")?;
        }
        f.write_str(&self.what)?;
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

impl From<longrun_array::Error> for Error {
    fn from(e: longrun_array::Error) -> Self {
        use longrun_array::Error as E;
        let kind = match e {
            E::Limit(_) => Kind::Limit,
            E::Weight { .. } => Kind::File,
            E::Device(_) | E::Memory { .. } => Kind::Device,
            _ => Kind::Bug,
        };
        Self::new(kind, e.to_string())
    }
}
