//! Raw stacks and their names: each is asked for once, held once, and shared by whoever has it.
//!
//! Never unwinds and never symbolizes; names come in as records.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::site;
use crate::record::{RawStack, StackKey, StackLabel, StackOrigin};
use crate::snapshot::{Frame, FrameKind, Frames, Taken};

/// The table of stacks.
#[derive(Debug)]
pub struct Stacks {
    table: FxHashMap<StackKey, Stack>,
    /// Frames are held once: a thousand stacks of one program differ in few of them.
    frames: FxHashSet<Arc<Frame>>,
    /// Whole stacks with the same frames, which many processes of one program have.
    whole: FxHashSet<Frames>,
    wanted: Vec<RawStack>,
    unnamed_kernel: Frames,
    unnamed_native: Frames,
    limit: usize,
    refused: u64,
}

#[derive(Debug)]
enum Stack {
    Asked(RawStack),
    Named { digest: u64, frames: Frames, taken: Taken },
}

/// Why a stack has fewer frames than addresses.
const CUT: &str = "an address lies in no mapping that is known";

/// Why a stack is kept: where room is short, samples go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// It is the identity of a site.
    Identity,
    /// It is an example.
    Example,
}

impl Stacks {
    pub(super) fn new(limit: usize) -> Self {
        let unnamed = |kind| {
            let reason = Some("not resolved yet".into());
            Frames::from(vec![Frame { kind, reason, ..Frame::default() }])
        };
        Self {
            table: FxHashMap::default(),
            frames: FxHashSet::default(),
            whole: FxHashSet::default(),
            wanted: Vec::new(),
            unnamed_kernel: unnamed(FrameKind::Kernel),
            unnamed_native: unnamed(FrameKind::Native),
            limit,
            refused: 0,
        }
    }

    /// Keeps a stack and asks for its name, unless it is known; false where there is no room.
    pub(super) fn want(
        &mut self,
        key: StackKey,
        origin: StackOrigin,
        addresses: &[u64],
        taken: Taken,
        need: Need,
    ) -> bool {
        if self.table.contains_key(&key) {
            return true;
        }
        let limit = match need {
            Need::Identity => self.limit,
            Need::Example => self.limit / 4 * 3,
        };
        if self.table.len() >= limit {
            self.refused += u64::from(need == Need::Identity);
            return false;
        }
        let raw = RawStack { key, origin, addresses: Arc::from(addresses), taken };
        self.wanted.push(raw.clone());
        self.table.insert(key, Stack::Asked(raw));
        true
    }

    /// Whether a stack is kept.
    pub(super) fn holds(&self, key: StackKey) -> bool {
        self.table.contains_key(&key)
    }

    /// Counts a stack that is not kept for want of room.
    pub(super) fn refuse(&mut self) {
        self.refused += 1;
    }

    /// Names a stack; a stack that nobody keeps any more is ignored.
    pub(super) fn label(&mut self, label: &StackLabel) {
        let taken = match self.table.get(&label.key) {
            // What lies in nothing known has no place, and what is behind it is no stack.
            Some(Stack::Asked(raw)) if label.identity.len() < raw.addresses.len() => Taken {
                incomplete: raw.taken.incomplete.clone().or_else(|| Some(CUT.into())),
                ..raw.taken
            },
            Some(Stack::Asked(raw)) => raw.taken.clone(),
            Some(Stack::Named { taken, .. }) => taken.clone(),
            None => return,
        };
        let frames: Frames = label.frames.iter().map(|frame| self.intern(frame)).collect();
        let frames = match self.whole.get(&frames) {
            Some(known) => known.clone(),
            None => {
                self.whole.insert(frames.clone());
                frames
            }
        };
        let digest = site::digest(&label.identity);
        self.table.insert(label.key, Stack::Named { digest, frames, taken });
    }

    fn intern(&mut self, frame: &Frame) -> Arc<Frame> {
        if let Some(known) = self.frames.get(frame) {
            return Arc::clone(known);
        }
        let frame = Arc::new(frame.clone());
        self.frames.insert(Arc::clone(&frame));
        frame
    }

    /// The identity of a stack, once it has a name.
    #[must_use]
    pub fn digest(&self, key: StackKey) -> Option<u64> {
        match self.table.get(&key) {
            Some(Stack::Named { digest, .. }) => Some(*digest),
            _ => None,
        }
    }

    /// The frames of a stack; one that says so where it has no name yet.
    #[must_use]
    pub fn frames(&self, key: StackKey, kind: FrameKind) -> Frames {
        match self.table.get(&key) {
            Some(Stack::Named { frames, .. }) => frames.clone(),
            _ if kind == FrameKind::Kernel => self.unnamed_kernel.clone(),
            _ => self.unnamed_native.clone(),
        }
    }

    /// The innermost frame of a stack, once it has a name.
    #[must_use]
    pub fn innermost(&self, key: StackKey) -> Option<&Frame> {
        match self.table.get(&key)? {
            Stack::Named { frames, .. } => frames.first(),
            Stack::Asked(_) => None,
        }
    }

    /// How a stack was taken.
    #[must_use]
    pub fn taken(&self, key: StackKey) -> Option<Taken> {
        match self.table.get(&key)? {
            Stack::Asked(raw) => Some(raw.taken.clone()),
            Stack::Named { taken, .. } => Some(taken.clone()),
        }
    }

    /// Stacks that still have no name, to be asked for again.
    pub fn unnamed(&self) -> impl Iterator<Item = &RawStack> {
        self.table.values().filter_map(|stack| match stack {
            Stack::Asked(raw) => Some(raw),
            Stack::Named { .. } => None,
        })
    }

    /// How many stacks are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether none is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    pub(super) fn take_wanted(&mut self) -> Vec<RawStack> {
        std::mem::take(&mut self.wanted)
    }

    /// Lets go of stacks that no books refer to, and of frames that no stack has.
    pub(super) fn retain(&mut self, used: &FxHashSet<StackKey>) {
        self.table.retain(|key, _| used.contains(key));
        self.whole.retain(Frames::is_shared);
        self.frames.retain(|frame| Arc::strong_count(frame) > 1);
    }
}
