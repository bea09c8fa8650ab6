//! The live bytes of a snapshot as a tree of names, outermost first: `domain`, `comm-pid`, then
//! the frames. Flame graphs are drawn from it.
//!
//! The domain is the root, as domains are never added to each other. Names are fit for folded
//! stacks: no `;`, no line break, none empty, none that ends like a number.

use std::cmp::Reverse;

use rustc_hash::FxHashMap;

use super::escape::escape;
use super::frames::{UNKNOWN, module, nameless, stack};
use crate::snapshot::{Frame, FrameKind, Snapshot};

/// Tools compute with signed numbers; no host has so much memory.
const MOST: u64 = i64::MAX as u64;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A domain.
    Domain,
    /// A process.
    Process,
    /// Kernel code.
    Kernel,
    /// An allocator's function.
    Allocator,
    /// An inlined function.
    Inlined,
    /// Another function.
    Function,
    /// Memory without a stack.
    Nameless,
}

/// The tree.
#[derive(Debug, Default)]
pub struct Tree {
    names: Vec<(String, Kind)>,
    nodes: Vec<Node>,
    total: u64,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    /// `None` at a domain.
    parent: Option<u32>,
    name: u32,
    /// Live bytes of what ends here.
    own: u64,
    /// The same and all above it.
    whole: u64,
}

impl Tree {
    /// Of a snapshot.
    #[must_use]
    pub fn of(snapshot: &Snapshot) -> Self {
        let mut builder = Builder::default();
        for process in &snapshot.processes {
            let who = builder.name(&format!("{}-{}", process.comm, process.pid), Kind::Process);
            for site in process.sites.iter().filter(|site| site.live_bytes > 0) {
                let domain = builder.name(site.domain, Kind::Domain);
                let domain = builder.node(None, domain);
                let mut node = builder.node(Some(domain), who);
                for frame in stack(site).rev() {
                    let name = builder.frame(frame);
                    node = builder.node(Some(node), name);
                }
                if site.frames.is_empty() {
                    let name = builder.name(&nameless(site), Kind::Nameless);
                    node = builder.node(Some(node), name);
                }
                builder.tree.add(node, site.live_bytes);
            }
        }
        let mut tree = builder.tree;
        tree.sum();
        tree
    }

    /// All live bytes, of all domains: for widths, not to be shown.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// How many frames, roots included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether nothing is live.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Names and what they stand for.
    pub fn names(&self) -> impl Iterator<Item = (&str, Kind)> {
        self.names.iter().map(|(name, kind)| (name.as_str(), *kind))
    }

    /// Domains that have anything live.
    pub fn domains(&self) -> impl Iterator<Item = &str> {
        self.names().filter(|(_, kind)| *kind == Kind::Domain).map(|(name, _)| name)
    }

    /// Gives each stack, its frames joined by `;`, with what ends there, in an order that has
    /// equal beginnings side by side. Of more than `most` frames the heaviest are shown, and
    /// what is above them ends at the last frame shown: sums stay what they are.
    ///
    /// # Errors
    ///
    /// The first that `each` gives.
    pub fn each_stack<E>(
        &self,
        most: usize,
        mut each: impl FnMut(&str, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let shown = self.shown(most);
        let children = self.children();
        let of = |parent: Option<u32>| {
            let begin = children.partition_point(|(of, _, _)| *of < parent);
            let rest = children.get(begin..).unwrap_or_default();
            rest.iter().take_while(move |(of, _, _)| *of == parent).map(|(_, _, node)| *node)
        };
        let mut path = String::new();
        // (node, length of the path to its parent), the next one last.
        let mut open: Vec<(u32, usize)> = Vec::new();
        let push = |open: &mut Vec<(u32, usize)>, parent, length| {
            let from = open.len();
            let mut cut = 0;
            for child in of(parent) {
                match shown.get(child as usize) {
                    Some(true) => open.push((child, length)),
                    _ => cut += self.nodes.get(child as usize).map_or(0, |node| node.whole),
                }
            }
            open.get_mut(from..).unwrap_or_default().reverse();
            cut
        };
        push(&mut open, None, 0);
        while let Some((id, length)) = open.pop() {
            path.truncate(length);
            if length > 0 {
                path.push(';');
            }
            let Some(node) = self.nodes.get(id as usize) else { continue };
            path.push_str(self.names.get(node.name as usize).map_or(UNKNOWN, |(name, _)| name));
            let bytes = node.own + push(&mut open, Some(id), path.len());
            if bytes > 0 {
                each(&path, bytes)?;
            }
        }
        Ok(())
    }

    /// Which nodes are among the heaviest. No child is heavier than its parent, and parents
    /// come first, so the parents of those shown are shown.
    fn shown(&self, most: usize) -> Vec<bool> {
        if self.nodes.len() <= most {
            return vec![true; self.nodes.len()];
        }
        let mut heaviest: Vec<(Reverse<u64>, usize)> =
            self.nodes.iter().enumerate().map(|(id, node)| (Reverse(node.whole), id)).collect();
        heaviest.sort_unstable();
        let mut shown = vec![false; self.nodes.len()];
        for (_, id) in heaviest.into_iter().take(most) {
            if let Some(shown) = shown.get_mut(id) {
                *shown = true;
            }
        }
        shown
    }

    /// (parent, name, node), sorted.
    fn children(&self) -> Vec<(Option<u32>, &str, u32)> {
        let name = |node: &Node| self.names.get(node.name as usize).map_or("", |(name, _)| name);
        let mut children: Vec<_> =
            (0..).zip(&self.nodes).map(|(id, node)| (node.parent, name(node), id)).collect();
        children.sort_unstable();
        children
    }

    fn add(&mut self, node: u32, bytes: u64) {
        let bytes = bytes.min(MOST - self.total);
        self.total += bytes;
        if let Some(node) = self.nodes.get_mut(node as usize) {
            node.own += bytes;
        }
    }

    /// Children have been made after their parents.
    fn sum(&mut self) {
        for id in (0..self.nodes.len()).rev() {
            let Some(node) = self.nodes.get_mut(id) else { continue };
            node.whole += node.own;
            let (parent, whole) = (node.parent, node.whole);
            if let Some(parent) = parent.and_then(|id| self.nodes.get_mut(id as usize)) {
                parent.whole += whole;
            }
        }
    }
}

#[derive(Default)]
struct Builder {
    tree: Tree,
    names: FxHashMap<String, u32>,
    /// Frames that stacks have in common lie in memory once.
    frames: FxHashMap<*const Frame, u32>,
    nodes: FxHashMap<(Option<u32>, u32), u32>,
}

impl Builder {
    fn frame(&mut self, frame: &Frame) -> u32 {
        let at = std::ptr::from_ref(frame);
        if let Some(name) = self.frames.get(&at) {
            return *name;
        }
        let kind = match frame {
            Frame { allocator: true, .. } => Kind::Allocator,
            Frame { kind: FrameKind::Kernel, .. } => Kind::Kernel,
            Frame { inlined: true, .. } => Kind::Inlined,
            _ => Kind::Function,
        };
        let name = self.name(&folded_name(frame), kind);
        self.frames.insert(at, name);
        name
    }

    fn name(&mut self, name: &str, kind: Kind) -> u32 {
        let name = part(name);
        let next = next(self.tree.names.len());
        let id = *self.names.entry(name.clone()).or_insert(next);
        if id == next {
            self.tree.names.push((name, kind));
        }
        id
    }

    fn node(&mut self, parent: Option<u32>, name: u32) -> u32 {
        let next = next(self.tree.nodes.len());
        let id = *self.nodes.entry((parent, name)).or_insert(next);
        if id == next {
            self.tree.nodes.push(Node { parent, name, own: 0, whole: 0 });
        }
        id
    }
}

/// 10,000 sites of 128 frames are far from the end of this.
fn next(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// A frame's function, with the marks that flame graph tools know: `_[k]` kernel, `_[i]` inlined.
fn folded_name(frame: &Frame) -> String {
    let mut name = match (&frame.symbol, &frame.module, frame.offset) {
        (Some(symbol), _, _) => symbol.to_string(),
        (None, Some(_), Some(offset)) => format!("{}+{offset:#x}", module(frame)),
        (None, Some(_), None) => module(frame),
        (None, None, _) => UNKNOWN.into(),
    };
    match (frame.kind, &frame.module) {
        (FrameKind::Kernel, Some(module)) => name.push_str(&format!(" [{module}]_[k]")),
        (FrameKind::Kernel, None) => name.push_str("_[k]"),
        _ if frame.inlined => name.push_str("_[i]"),
        _ => {}
    }
    name
}

/// A name that is one frame to tools that read folded stacks.
fn part(name: &str) -> String {
    let mut name = escape(name.trim()).replace(';', ":");
    if name.is_empty() {
        return UNKNOWN.into();
    }
    // `f 12` before the weight would be read as two weights.
    if let Some((rest, last)) = name.rsplit_once(' ')
        && last.chars().all(|c| c.is_ascii_digit() || c == '.')
    {
        name = format!("{rest}_{last}");
    }
    name
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;
    use crate::report::fixture::{amount, empty, frame, process, site};
    use crate::snapshot::Site;

    fn stacks(tree: &Tree, most: usize) -> Vec<(String, u64)> {
        let mut all = vec![];
        let Ok(()) = tree.each_stack::<Infallible>(most, |path, bytes| {
            all.push((path.to_owned(), bytes));
            Ok(())
        });
        all
    }

    #[test]
    fn names_are_one_frame_each() {
        for (name, expected) in [
            ("[u8; 8]", "[u8: 8]"),
            ("f 12", "f_12"),
            ("f 1.5", "f_1.5"),
            ("operator new(unsigned long)", "operator new(unsigned long)"),
            (" ", "[unknown]"),
            ("a\nb", "a\\nb"),
        ] {
            assert_eq!(part(name), expected);
        }
    }

    proptest! {
        #[test]
        fn whatever_is_left_out_sums_stay_and_beginnings_are_together(
            sites in prop::collection::vec((prop::collection::vec("[ab ;-]{0,2}", 0..5), 0u64..90), 0..40),
            most in 0usize..60,
        ) {
            let total: u64 = sites.iter().map(|(_, bytes)| bytes).sum();
            let sites = sites.into_iter().map(|(names, bytes)| Site {
                frames: names.iter().map(|name| frame(name, "/m", "f.c", 1)).collect(),
                ..site(7, "cuda", "cudaMalloc", amount(bytes, 1))
            });
            let mut snapshot = empty();
            snapshot.processes = vec![process(1, "one", sites.collect())];
            let tree = Tree::of(&snapshot);
            let shown = stacks(&tree, most);
            if most > 0 {
                prop_assert_eq!(shown.iter().map(|(_, bytes)| bytes).sum::<u64>(), total);
            }
            let mut frames = std::collections::BTreeSet::new();
            for (path, _) in &shown {
                let ends = path.match_indices(';').map(|(at, _)| at).chain([path.len()]);
                frames.extend(ends.map(|end| path[..end].to_owned()));
            }
            prop_assert!(frames.len() <= most, "{} frames", frames.len());
            // A flame graph draws a frame again when another one came between.
            for frame in &frames {
                let below = |path: &str| {
                    path == frame || path.starts_with(&format!("{frame};"))
                };
                let mut runs: Vec<bool> = shown.iter().map(|(path, _)| below(path)).collect();
                runs.dedup();
                prop_assert!(runs.iter().filter(|below| **below).count() <= 1, "{frame} twice");
            }
        }
    }
}
