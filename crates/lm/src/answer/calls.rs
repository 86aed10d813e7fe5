//! One place in an answer where calls stand: what opens it, the calls, what closes it.
//!
//! Owns the order of those, and what becomes of calls that are none. Refuses to know how a single call is written.

use super::literal::Style;
use super::named::{Named, Pick, is_name};
use super::objects::{Keys, Objects};
use super::pythonic::Expressions;
use super::sink::{Flow, Sink};
use super::tagged::{Tagged, Tags};
use super::window::{Found, Marker, Seen, Window};

/// How a format writes calls.
#[derive(Clone, Debug)]
pub(super) struct Syntax {
    /// None: calls are what an answer begins with, and nothing says so but the name of a tool.
    pub(super) open: Option<Marker>,
    /// May stand before each call.
    pub(super) item_open: Option<Marker>,
    /// The first of these whose start stands there reads the call.
    pub(super) bodies: Vec<Body>,
    /// One of these may stand behind each call.
    pub(super) item_closes: Vec<Marker>,
    /// Without one, one item is all.
    pub(super) close: Option<Marker>,
    /// A call ends the reasoning that it stands in.
    pub(super) ends_reasoning: bool,
}

/// How a single call is written.
#[derive(Clone, Debug)]
pub(super) enum Body {
    Objects(Keys),
    Named { separators: Vec<Marker>, ends: Vec<Marker>, pick: Pick },
    Tagged(Box<Tags>),
    Expressions(Style),
}

impl Body {
    /// Whether a call may begin `from` bytes behind the head.
    pub(super) fn starts(&self, window: &Window, from: usize) -> Seen {
        let Some(c) = window.rest()[from..].chars().next() else {
            return if window.ended { Seen::No } else { Seen::Maybe };
        };
        let says = |starts: bool| if starts { Seen::Yes } else { Seen::No };
        match self {
            Self::Objects(_) => says(c == '{' || c == '['),
            Self::Named { separators, .. } => {
                let first = separators.iter().fold(Seen::No, |s, m| s.or(window.sees(from, m)));
                first.or(says(is_name(c)))
            }
            Self::Tagged(tags) if tags.name_open.text.is_empty() => says(is_name(c)),
            Self::Tagged(tags) => window.sees(from, &tags.name_open),
            Self::Expressions(Style::Python) => says(c == '[' || c == '`' || is_name(c)),
            Self::Expressions(Style::Marked(_)) => says(c == 'c'),
        }
    }

    fn machine(&self, bare: bool) -> Box<Machine> {
        Box::new(match self {
            Self::Objects(keys) => Machine::Objects(Objects::new(*keys, bare)),
            Self::Named { separators, ends, pick } => {
                Machine::Named(Named::new(separators, ends, *pick))
            }
            Self::Tagged(tags) => Machine::Tagged(Tagged::new(tags)),
            Self::Expressions(style) => Machine::Expressions(Expressions::new(*style, bare)),
        })
    }

    /// What ends a call that is broken, beside the markers of the syntax.
    fn closes(&self) -> Option<&Marker> {
        match self {
            Self::Tagged(tags) => Some(&tags.call_close),
            Self::Objects(_) | Self::Named { .. } | Self::Expressions(_) => None,
        }
    }
}

#[derive(Clone, Debug)]
enum Machine {
    Objects(Objects),
    Named(Named),
    Tagged(Tagged),
    Expressions(Expressions),
}

impl Machine {
    fn step(&mut self, window: &mut Window, sink: &mut Sink<'_>) -> Flow {
        match self {
            Self::Objects(machine) => machine.step(window, sink),
            Self::Named(machine) => machine.step(window, sink),
            Self::Tagged(machine) => machine.step(window, sink),
            Self::Expressions(machine) => machine.step(window, sink),
        }
    }
}

#[derive(Clone, Debug)]
enum At {
    /// Before a call or the closing marker.
    Between,
    Item {
        machine: Box<Machine>,
        body: usize,
        from: usize,
        calls: usize,
    },
    /// Behind a call, before what may close it.
    Tail(usize),
    /// Within a call that goes on in no known way.
    Broken(usize),
}

/// Reads what follows an opening marker.
#[derive(Clone, Debug)]
pub(super) struct Section {
    at: At,
    /// Calls of the answer before this section.
    before: usize,
}

impl Section {
    pub(super) fn new(before: usize) -> Self {
        Self { at: At::Between, before }
    }

    /// `Done` or `Bad` in the end, never `Broken`.
    pub(super) fn step(
        &mut self,
        syntax: &Syntax,
        window: &mut Window,
        sink: &mut Sink<'_>,
    ) -> Flow {
        loop {
            let flow = match &mut self.at {
                At::Between => self.between(syntax, window, sink),
                At::Item { machine, .. } => match machine.step(window, sink) {
                    Flow::More => Some(Flow::More),
                    flow => self.item_ends(flow, syntax, window, sink),
                },
                At::Tail(body) => {
                    let body = *body;
                    self.tail(syntax, body, window, sink)
                }
                At::Broken(body) => {
                    let body = *body;
                    self.broken(syntax, body, window, sink)
                }
            };
            if let Some(flow) = flow {
                return flow;
            }
        }
    }

    fn item_ends(
        &mut self,
        flow: Flow,
        syntax: &Syntax,
        window: &mut Window,
        sink: &mut Sink<'_>,
    ) -> Option<Flow> {
        let At::Item { body, from, calls, .. } = self.at else { return None };
        let said = sink.tally.started > calls;
        match flow {
            Flow::Done if said => self.at = At::Tail(body),
            Flow::Broken => {
                sink.arguments(window.raw());
                window.commit();
                self.at = At::Broken(body);
            }
            // Another body may read it, as long as nothing was said.
            Flow::Bad | Flow::Done if !said => {
                let (bad, tried) = (window.raw().len(), body + 1);
                window.rewind(from);
                let mut others = syntax.bodies.iter().enumerate().skip(tried);
                match others.find(|(_, body)| body.starts(window, 0) == Seen::Yes) {
                    Some((index, body)) => {
                        let machine = body.machine(syntax.open.is_none());
                        self.at = At::Item { machine, body: index, from, calls };
                    }
                    None => {
                        window.rewind(bad);
                        return Some(Flow::Bad);
                    }
                }
            }
            flow => return Some(flow),
        }
        None
    }

    fn between(
        &mut self,
        syntax: &Syntax,
        window: &mut Window,
        sink: &mut Sink<'_>,
    ) -> Option<Flow> {
        let said = sink.tally.started > self.before;
        let blank = window.blank(0);
        let close = syntax.close.as_ref().map_or(Seen::No, |close| window.sees(blank, close));
        // A place without a call in it is text.
        let close_bytes = syntax.close.as_ref().map_or(0, |close| close.text.len());
        if close == Seen::Yes {
            window.skip(blank + close_bytes);
            if !said {
                return Some(Flow::Bad);
            }
            window.commit();
            return Some(Flow::Done);
        }
        let open = syntax.item_open.as_ref().map(|open| window.sees(blank, open));
        let bytes = match open {
            Some(Seen::Yes) => syntax.item_open.as_ref().map_or(0, |open| open.text.len()),
            Some(Seen::Maybe) => return Some(Flow::More),
            Some(Seen::No) | None => 0,
        };
        let from = blank + bytes + window.blank(blank + bytes);
        let mut seen = close;
        for (index, body) in syntax.bodies.iter().enumerate() {
            match body.starts(window, from) {
                Seen::Yes => {
                    window.skip(from);
                    let machine = body.machine(syntax.open.is_none());
                    let (from, calls) = (window.raw().len(), sink.tally.started);
                    self.at = At::Item { machine, body: index, from, calls };
                    return None;
                }
                other => seen = seen.or(other),
            }
        }
        if seen == Seen::Maybe { Some(Flow::More) } else { Some(Self::none(said)) }
    }

    /// Nothing that is known stands here.
    fn none(said: bool) -> Flow {
        if said { Flow::Done } else { Flow::Bad }
    }

    fn tail(
        &mut self,
        syntax: &Syntax,
        body: usize,
        window: &mut Window,
        sink: &Sink<'_>,
    ) -> Option<Flow> {
        let blank = window.blank(0);
        match window.first(blank, &syntax.item_closes) {
            (Seen::Maybe, _) => return Some(Flow::More),
            (_, Some(close)) => window.take(blank + close.text.len()),
            (_, None) => {}
        }
        let closed = syntax.bodies.get(body).and_then(Body::closes);
        if sink.tally.started > self.before && closed.is_some() && closed == syntax.close.as_ref() {
            return Some(Flow::Done);
        }
        match &syntax.close {
            Some(_) => self.at = At::Between,
            None if syntax.open.is_some() => return Some(Flow::Done),
            None => return self.bare_tail(syntax, window),
        }
        None
    }

    /// Behind a call without markers, another may follow.
    fn bare_tail(&mut self, syntax: &Syntax, window: &mut Window) -> Option<Flow> {
        let blank = window.blank(0);
        let sign = usize::from(window.rest()[blank..].starts_with(';'));
        let from = blank + sign + window.blank(blank + sign);
        match window.rest()[from..].chars().next() {
            None if !window.ended => Some(Flow::More),
            Some('{' | '[')
                if syntax.bodies.iter().any(|b| b.starts(window, from) == Seen::Yes) =>
            {
                window.skip(blank + sign);
                self.at = At::Between;
                None
            }
            _ => Some(Flow::Done),
        }
    }

    /// What cannot be read is arguments as it stands, up to what closes the call.
    fn broken(
        &mut self,
        syntax: &Syntax,
        body: usize,
        window: &mut Window,
        sink: &mut Sink<'_>,
    ) -> Option<Flow> {
        let own = syntax.bodies.get(body).and_then(Body::closes);
        let closes: Vec<&Marker> =
            own.into_iter().chain(&syntax.item_closes).chain(&syntax.close).collect();
        match window.find(0, &closes) {
            Found::Free(bytes) => {
                sink.arguments(&window.rest()[..bytes]);
                window.take(bytes);
                Some(Flow::More)
            }
            Found::At(bytes, index) => {
                let is_own = closes.get(index).copied() == own;
                sink.arguments(&window.rest()[..bytes]);
                let own = if is_own { closes[index].text.len() } else { 0 };
                window.take(bytes + own);
                sink.end(false);
                self.at = At::Tail(body);
                None
            }
        }
    }
}
