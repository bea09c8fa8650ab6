//! Texts of frames, each held once: the frames of ten thousand places have a few hundred files
//! and functions among them, and whoever keeps a frame keeps its texts. Bounded.

use std::sync::Arc;

use rustc_hash::FxHashSet;

/// Most texts known at a time. Beyond, those that no frame has any more are let go, and where
/// that does not help, all: then a text is held twice, which costs memory and nothing else.
const MAX_TEXTS: usize = 16_384;

/// The texts known.
#[derive(Debug, Default)]
pub struct Names {
    known: FxHashSet<Arc<str>>,
}

impl Names {
    /// The one copy of a text.
    pub fn one(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.known.get(text) {
            return Arc::clone(known);
        }
        if self.known.len() >= MAX_TEXTS {
            self.forget_unused();
            if self.known.len() >= MAX_TEXTS / 4 * 3 {
                self.known = FxHashSet::default();
            }
        }
        let text: Arc<str> = text.into();
        self.known.insert(Arc::clone(&text));
        text
    }

    /// Lets go of the texts that nobody else holds.
    pub fn forget_unused(&mut self) {
        self.known.retain(|text| Arc::strong_count(text) > 1);
        self.known.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_held_once_and_the_table_is_bounded() {
        let mut names = Names::default();
        let first = names.one("encode_prompt");
        assert!(Arc::ptr_eq(&first, &names.one("encode_prompt")));
        for number in 0..MAX_TEXTS {
            names.one(&number.to_string());
        }
        // Nobody holds the numbers.
        assert!(names.known.len() < MAX_TEXTS / 2, "{}", names.known.len());
        assert!(Arc::ptr_eq(&first, &names.one("encode_prompt")));
        let held: Vec<_> =
            (0..3 * MAX_TEXTS).map(|number| names.one(&format!("{number}"))).collect();
        assert!(names.known.len() <= MAX_TEXTS && held.len() == 3 * MAX_TEXTS);
    }
}
