//! A radix tree over token ids: values under exactly the ids that lead to them.
//!
//! Owns the ids, shared as far as texts agree. Refuses to know what its values are.

use std::collections::BTreeMap;

/// A node, by place. Valid until its value is removed.
pub(super) type NodeId = usize;

struct Node<T> {
    parent: NodeId,
    /// The ids between the parent and this node; empty for the root only.
    edge: Vec<u32>,
    /// Ids from the root to the end of the edge.
    end: usize,
    /// By the first id of their edges.
    children: BTreeMap<u32, NodeId>,
    value: Option<T>,
}

/// Values under texts.
pub(super) struct Tree<T> {
    /// `None` where a node has gone.
    nodes: Vec<Option<Node<T>>>,
    free: Vec<NodeId>,
    ids: usize,
}

/// A value whose text has `common` first ids with the text that was asked for.
pub(super) struct Match {
    pub(super) node: NodeId,
    pub(super) common: usize,
}

const ROOT: NodeId = 0;

impl<T> Tree<T> {
    pub(super) fn new() -> Self {
        let root =
            Node { parent: ROOT, edge: Vec::new(), end: 0, children: BTreeMap::new(), value: None };
        Self { nodes: vec![Some(root)], free: Vec::new(), ids: 0 }
    }

    /// Ids that all edges hold.
    pub(super) fn ids(&self) -> usize {
        self.ids
    }

    fn node(&self, id: NodeId) -> &Node<T> {
        self.nodes[id].as_ref().expect("a node that is there")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node<T> {
        self.nodes[id].as_mut().expect("a node that is there")
    }

    pub(super) fn value(&self, id: NodeId) -> Option<&T> {
        self.nodes.get(id)?.as_ref()?.value.as_ref()
    }

    pub(super) fn value_mut(&mut self, id: NodeId) -> Option<&mut T> {
        self.nodes.get_mut(id)?.as_mut()?.value.as_mut()
    }

    /// The ids that lead to a node.
    pub(super) fn text(&self, mut id: NodeId) -> Vec<u32> {
        let mut pieces = Vec::new();
        while id != ROOT {
            let node = self.node(id);
            pieces.push(&node.edge[..]);
            id = node.parent;
        }
        pieces.into_iter().rev().flatten().copied().collect()
    }

    fn add(&mut self, parent: NodeId, edge: Vec<u32>) -> NodeId {
        let end = self.node(parent).end + edge.len();
        let first = edge[0];
        self.ids += edge.len();
        let node = Some(Node { parent, edge, end, children: BTreeMap::new(), value: None });
        let id = match self.free.pop() {
            Some(id) => {
                self.nodes[id] = node;
                id
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        };
        self.node_mut(parent).children.insert(first, id);
        id
    }

    /// The deepest node whose text `ids` begins with; and, if `ids` goes on into an edge below it, the node at the end of
    /// that edge with the number of its ids that agree.
    fn walk(&self, ids: &[u32]) -> (NodeId, Option<(NodeId, usize)>) {
        let mut at = ROOT;
        loop {
            let node = self.node(at);
            let rest = &ids[node.end..];
            let Some(&next) = rest.first().and_then(|id| node.children.get(id)) else {
                return (at, None);
            };
            let edge = &self.node(next).edge;
            let same = edge.iter().zip(rest).take_while(|(a, b)| a == b).count();
            if same < edge.len() {
                return (at, Some((next, same)));
            }
            at = next;
        }
    }

    /// Puts a value under `ids`, which are not empty. Gives the value that was there.
    pub(super) fn insert(&mut self, ids: &[u32], value: T) -> (NodeId, Option<T>) {
        let (mut at, partial) = self.walk(ids);
        if let Some((below, same)) = partial {
            at = self.split(below, same);
        }
        let end = self.node(at).end;
        if end < ids.len() {
            at = self.add(at, ids[end..].to_vec());
        }
        (at, self.node_mut(at).value.replace(value))
    }

    /// Cuts the edge to `below` after `same` ids; the new node stands there.
    fn split(&mut self, below: NodeId, same: usize) -> NodeId {
        let node = self.node_mut(below);
        let parent = node.parent;
        let tail = node.edge.split_off(same);
        let head = std::mem::replace(&mut node.edge, tail);
        let first = node.edge[0];
        self.ids -= head.len();
        let middle = self.add(parent, head);
        self.node_mut(below).parent = middle;
        self.node_mut(middle).children.insert(first, below);
        middle
    }

    /// Takes the value of a node out, and what no value needs any more.
    pub(super) fn remove(&mut self, id: NodeId) -> Option<T> {
        let value = self.nodes.get_mut(id)?.as_mut()?.value.take()?;
        self.tidy(id);
        Some(value)
    }

    /// Drops `id` and its parents as long as they hold nothing, and joins a node with its only child.
    fn tidy(&mut self, mut id: NodeId) {
        while id != ROOT {
            let node = self.node(id);
            if node.value.is_some() || node.children.len() > 1 {
                return;
            }
            let (parent, first) = (node.parent, node.edge[0]);
            if let Some((_, &child)) = node.children.first_key_value() {
                let gone = self.nodes[id].take().expect("a node that is there");
                self.free.push(id);
                let below = self.node_mut(child);
                let tail = std::mem::replace(&mut below.edge, gone.edge);
                below.edge.extend(tail);
                below.parent = parent;
                self.node_mut(parent).children.insert(first, child);
                return;
            }
            let gone = self.nodes[id].take().expect("a node that is there");
            self.ids -= gone.edge.len();
            self.free.push(id);
            self.node_mut(parent).children.remove(&first);
            id = parent;
        }
    }

    /// Values whose texts begin as `ids` does, those with the most in common first; of the texts that leave `ids` at the
    /// deepest point only if `beyond`, and never those that have nothing in common with it. Also how many ids any text
    /// has in common with `ids`.
    pub(super) fn matches(&self, ids: &[u32], beyond: bool) -> (usize, Vec<Match>) {
        let (mut at, partial) = self.walk(ids);
        let (below, same) = partial.map_or((None, 0), |(below, same)| (Some(below), same));
        let common = self.node(at).end + same;
        let mut found = Vec::new();
        let mut open: Vec<NodeId> = match below {
            Some(below) => vec![below],
            None => self.node(at).children.values().copied().collect(),
        };
        while let Some(id) = open.pop().filter(|_| beyond && common > 0) {
            let node = self.node(id);
            found.extend(node.value.as_ref().map(|_| Match { node: id, common }));
            open.extend(node.children.values());
        }
        loop {
            let node = self.node(at);
            found.extend(node.value.as_ref().map(|_| Match { node: at, common: node.end }));
            if at == ROOT {
                return (common, found);
            }
            at = node.parent;
        }
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut ids = 0;
        for (id, node) in self.nodes.iter().enumerate().filter_map(|(i, n)| Some((i, n.as_ref()?)))
        {
            ids += node.edge.len();
            if id != ROOT {
                assert_eq!(self.node(node.parent).children[&node.edge[0]], id);
                assert_eq!(self.node(node.parent).end + node.edge.len(), node.end);
                assert!(
                    node.value.is_some() || node.children.len() > 1,
                    "a node that nobody needs"
                );
            }
        }
        assert_eq!(ids, self.ids);
    }
}
