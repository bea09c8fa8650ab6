//! Frames of stacks, shared between the stacks that have them in common.

use std::ops::Index;
use std::sync::Arc;

use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The frames of a stack, innermost first. Shared: a clone costs nothing, and stacks that have
/// frames in common hold them once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frames(Arc<[Arc<Frame>]>);

impl Frames {
    /// Frames in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Frame> + ExactSizeIterator {
        self.0.iter().map(AsRef::as_ref)
    }

    /// The frame at a position.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&Frame> {
        self.0.get(index).map(AsRef::as_ref)
    }

    /// Whether anybody else holds the same frames.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Where the user's own frames begin: at the first that is not the allocator's. If all are
    /// the allocator's, at the innermost.
    #[must_use]
    pub fn own(&self) -> usize {
        self.iter().position(|frame| !frame.allocator).unwrap_or(0)
    }

    /// The innermost frame.
    #[must_use]
    pub fn first(&self) -> Option<&Frame> {
        self.get(0)
    }

    /// How many frames.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Default for Frames {
    fn default() -> Self {
        Self(Arc::from([]))
    }
}

impl FromIterator<Arc<Frame>> for Frames {
    fn from_iter<I: IntoIterator<Item = Arc<Frame>>>(frames: I) -> Self {
        Self(frames.into_iter().collect())
    }
}

impl FromIterator<Frame> for Frames {
    fn from_iter<I: IntoIterator<Item = Frame>>(frames: I) -> Self {
        Self(frames.into_iter().map(Arc::new).collect())
    }
}

impl From<Vec<Frame>> for Frames {
    fn from(frames: Vec<Frame>) -> Self {
        frames.into_iter().collect()
    }
}

impl<'a> IntoIterator for &'a Frames {
    type Item = &'a Frame;
    type IntoIter =
        std::iter::Map<std::slice::Iter<'a, Arc<Frame>>, fn(&'a Arc<Frame>) -> &'a Frame>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter().map(AsRef::as_ref)
    }
}

impl Index<usize> for Frames {
    type Output = Frame;

    #[expect(clippy::indexing_slicing, reason = "this is what indexing means; callers are linted")]
    fn index(&self, index: usize) -> &Frame {
        &self.0[index]
    }
}

impl Serialize for Frames {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self)
    }
}

/// One frame of a stack. Its texts are shared: a program's frames have few files, modules and
/// functions among them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Frame {
    /// `kernel`, `native` or `python`.
    pub kind: FrameKind,
    /// Function name, demangled.
    pub symbol: Option<Arc<str>>,
    /// File that holds the code, or the kernel module.
    pub module: Option<Arc<str>>,
    /// Build id of the module, hex.
    pub build_id: Option<Arc<str>>,
    /// Native: offset in the file; kernel: offset in the symbol. Bytes.
    pub offset: Option<u64>,
    /// Source file.
    pub file: Option<Arc<str>>,
    /// Source line.
    pub line: Option<u32>,
    /// Whether the function is inlined into the next frame.
    pub inlined: bool,
    /// Whether the frame belongs to an allocator rather than to its user.
    pub allocator: bool,
    /// Why the frame has no name.
    pub reason: Option<Arc<str>>,
}

impl Frame {
    /// What a headline calls it: its function, else where it is in its file. An outer function
    /// that does have a name is not it.
    #[must_use]
    pub fn title(&self) -> Option<String> {
        let in_module = || {
            let module = self.module.as_deref()?;
            let file = module.rsplit('/').next().unwrap_or(module);
            Some(self.offset.map_or_else(|| file.into(), |offset| format!("{file}+{offset:#x}")))
        };
        self.symbol.as_deref().map(str::to_owned).or_else(in_module)
    }
}

/// Which kind of code a frame is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FrameKind {
    /// Kernel code.
    Kernel,
    /// Compiled user code.
    #[default]
    Native,
    /// An interpreter's frame.
    Python,
}

/// How a stack was taken, and whether it is all of it. Serialised as `taken`, `complete` and
/// `reason`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Taken {
    /// How.
    pub by: TakenBy,
    /// Why frames may be missing; `None` where the stack is whole.
    pub incomplete: Option<Arc<str>>,
}

impl Taken {
    /// Taken in this way, and whole.
    #[must_use]
    pub const fn whole(by: TakenBy) -> Self {
        Self { by, incomplete: None }
    }
}

impl Serialize for Taken {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { by, incomplete } = self;
        let mut form = serializer.serialize_struct("Taken", 3)?;
        form.serialize_field("taken", by)?;
        form.serialize_field("complete", &incomplete.is_none())?;
        form.serialize_field("reason", incomplete)?;
        form.end()
    }
}

impl<'de> Deserialize<'de> for Taken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename = "Taken")]
        struct Form {
            taken: TakenBy,
            // Follows from the reason.
            #[serde(rename = "complete")]
            _complete: bool,
            reason: Option<Arc<str>>,
        }
        let Form { taken, _complete, reason } = Form::deserialize(deserializer)?;
        Ok(Self { by: taken, incomplete: reason })
    }
}

/// How a stack was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TakenBy {
    /// By the kernel, its own frames.
    #[default]
    Kernel,
    /// A copy of the user stack, unwound by the files' unwind information.
    Copy,
    /// A walk in the kernel over steps that were learned from copies.
    Walk,
    /// A walk by frame pointers; functions without one are skipped or end it.
    FramePointers,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_headline_is_the_first_frame_that_is_not_the_allocators() {
        let frame = |symbol: Option<&str>, allocator| Frame {
            symbol: symbol.map(Into::into),
            module: Some("/usr/lib/libapp.so".into()),
            offset: Some(0x1f0),
            allocator,
            ..Frame::default()
        };
        let headline = |frames: Vec<Frame>| {
            let frames = Frames::from(frames);
            frames.get(frames.own()).and_then(Frame::title)
        };
        let malloc = || frame(Some("malloc"), true);
        let main = || frame(Some("main"), false);
        assert_eq!(headline(vec![malloc(), main()]).as_deref(), Some("main"));
        // A name farther out is not where the memory was asked for.
        let stripped = headline(vec![malloc(), frame(None, false), main()]);
        assert_eq!(stripped.as_deref(), Some("libapp.so+0x1f0"));
        assert_eq!(headline(vec![malloc(), malloc()]).as_deref(), Some("malloc"));
        assert_eq!(headline(vec![malloc(), Frame::default(), main()]), None);
        assert_eq!(headline(vec![]), None);
    }
}
