//! Sites: where memory is allocated, with their books and their stacks.

use std::borrow::Cow;

use serde::{Serialize, Serializer};

use super::{Evidence, Frames, Taken, Verdict, site_id};

/// One row of a process' books: (domain, function, site).
#[derive(Clone, Debug, Serialize)]
pub struct Site {
    /// Site id, 16 hex digits; `None` while its stack has no name yet.
    #[serde(serialize_with = "site_id")]
    pub id: Option<u64>,
    /// Domain name.
    pub domain: &'static str,
    /// The function as probed.
    pub api: &'static str,
    /// `process`, `interrupt` or `worker` (kernel domain); `process` elsewhere.
    pub context: &'static str,
    /// Number of the device, as the process counts them, that its memory is on or whose context it
    /// is bound to; `None` where that is not known, has no meaning, or is not one.
    pub device: Option<u8>,
    /// Live bytes; of an ended process' user domains, what it held at its end.
    pub live_bytes: u64,
    /// Live objects.
    pub live_count: u64,
    /// Bytes allocated since attach.
    pub allocated_bytes: u64,
    /// Bytes freed since attach.
    pub freed_bytes: u64,
    /// Objects allocated since attach.
    pub allocations: u64,
    /// Objects freed since attach by frees that were seen.
    pub frees: u64,
    /// Calls that failed.
    pub failures: u64,
    /// Growth of live bytes, bytes a second; `None` while unknown.
    pub growth_bytes_per_second: Option<f64>,
    /// Age of the oldest live object, seconds.
    pub oldest_age_seconds: Option<f64>,
    /// Verdict.
    pub verdict: Verdict,
    /// From 0 to 1.
    pub confidence: Option<f64>,
    /// What the verdict rests on.
    pub evidence: SiteEvidence,
    /// How many allocations one followed allocation stands for; 1 is all.
    pub sampling: f64,
    /// Whether `frames` is a sample among several stacks of this call site.
    pub frames_sampled: bool,
    /// How the stack was taken, and whether it is whole; `None` where there is none.
    pub stack: Option<Taken>,
    /// Frames, innermost first.
    pub frames: Frames,
    /// Stacks seen at this site, heaviest first.
    pub samples: Vec<Sample>,
    /// `"unattributed"` where the stacks of this memory are not known, and similar notes.
    pub note: Option<&'static str>,
}

/// Note of a kernel site that uprobes allocate at: what tracing itself costs the traced process.
/// It is on the books, and it is no news.
pub const OWN_PROBES: &str = "made by uprobes, memtrace's own among them";

/// What the verdict on a site rests on. Most sites hold too little to be watched, and there is one
/// of these with each site in each picture that somebody still reads: so it takes little room where
/// it says little. Serialised it is [`Evidence`] either way.
#[derive(Clone, Debug)]
pub enum SiteEvidence {
    /// All that there is of a site that is not watched.
    Unwatched {
        /// As in [`Evidence`].
        window_seconds: f32,
        /// As in [`Evidence`].
        freed_share: Option<f32>,
        /// As in [`Evidence`].
        process_age_seconds: Option<f32>,
    },
    /// Anything else.
    Watched(Box<Evidence>),
}

impl SiteEvidence {
    /// Notes how old the process is, seconds.
    pub fn of_age(&mut self, seconds: Option<f32>) {
        match self {
            Self::Unwatched { process_age_seconds, .. } => *process_age_seconds = seconds,
            Self::Watched(evidence) => evidence.process_age_seconds = seconds,
        }
    }

    fn whole(&self) -> Cow<'_, Evidence> {
        match self {
            Self::Unwatched { window_seconds, freed_share, process_age_seconds } => {
                Cow::Owned(Evidence {
                    window_seconds: *window_seconds,
                    freed_share: *freed_share,
                    process_age_seconds: *process_age_seconds,
                    ..Evidence::default()
                })
            }
            Self::Watched(evidence) => Cow::Borrowed(evidence),
        }
    }
}

impl From<Evidence> for SiteEvidence {
    fn from(evidence: Evidence) -> Self {
        let Evidence { window_seconds, freed_share, process_age_seconds, .. } = evidence;
        let unwatched = Self::Unwatched { window_seconds, freed_share, process_age_seconds };
        if *unwatched.whole() == evidence { unwatched } else { Self::Watched(Box::new(evidence)) }
    }
}

impl Serialize for SiteEvidence {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.whole().serialize(serializer)
    }
}

/// One stack seen at a sampled site.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// Bytes of growth that this stack stands for.
    pub weight_bytes: u64,
    /// Times taken.
    pub count: u64,
    /// Kernel frames, innermost first.
    pub frames: Frames,
    /// Example of a user stack that called.
    pub user_frames: Frames,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_of_a_site_is_serialised_as_evidence_whether_it_was_watched_or_not() {
        let unwatched = Evidence {
            window_seconds: 10.0,
            freed_share: Some(0.5),
            process_age_seconds: Some(7.0),
            ..Evidence::default()
        };
        let watched = Evidence { unseen_frees: 1, ..unwatched.clone() };
        for (evidence, small) in [(unwatched, true), (watched, false)] {
            let mut of_site = SiteEvidence::from(evidence.clone());
            assert_eq!(matches!(of_site, SiteEvidence::Unwatched { .. }), small);
            let json = |value: serde_json::Result<serde_json::Value>| value.unwrap();
            assert_eq!(json(serde_json::to_value(&of_site)), json(serde_json::to_value(&evidence)));
            of_site.of_age(None);
            let older = Evidence { process_age_seconds: None, ..evidence };
            assert_eq!(json(serde_json::to_value(&of_site)), json(serde_json::to_value(&older)));
        }
    }
}
