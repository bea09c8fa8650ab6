//! Site counters that are bounded in number and never go back.
//!
//! A series is a set of labels; rows of the books feed it. Invariants, each a property test:
//! a named series, whenever it is exported, is never below what it was before, even if its
//! rows vanish, begin again, or its pid is used anew; it shows the rows' own totals, so it
//! agrees with a dump. `other` is per domain and accumulates what happened to rows while they
//! had no series of their own.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::members::Members;

/// Series of sites that are exported, `other` apart.
pub const SITES: usize = 50;
/// Label sets without rows whose last value is remembered, in case they come back.
const REMEMBERED: usize = 4_096;

/// A process, by pid and start.
pub type Who = (u32, u64);

/// What makes a row of the books the same row at the next update.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowKey {
    /// Whose.
    pub who: Who,
    /// Domain name.
    pub domain: &'static str,
    /// The function as probed.
    pub api: &'static str,
    /// `process`, `interrupt` or `worker`.
    pub context: &'static str,
    /// Site id; `None` while its stack has no name.
    pub site: Option<u64>,
}

/// One row of the books as it is now.
#[derive(Clone, Debug)]
pub struct Row {
    /// Which.
    pub key: RowKey,
    /// The process' name.
    pub comm: Arc<str>,
    /// The user's own frame.
    pub function: Arc<str>,
    /// Live bytes.
    pub live: u64,
    /// Its counters.
    pub counters: Counters,
}

/// The labels of a series.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Labels {
    /// Domain name.
    pub domain: &'static str,
    /// The process' name.
    pub comm: Arc<str>,
    /// Process id.
    pub pid: u32,
    /// Site id.
    pub site: u64,
    /// The user's own frame.
    pub function: Arc<str>,
}

/// Bytes since attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Allocated.
    pub allocated: u64,
    /// Freed.
    pub freed: u64,
}

impl Counters {
    fn zip(self, other: Self, f: impl Fn(u64, u64) -> u64) -> Self {
        Self { allocated: f(self.allocated, other.allocated), freed: f(self.freed, other.freed) }
    }

    fn add(&mut self, other: Self) {
        *self = self.zip(other, u64::saturating_add);
    }

    /// Whether any counter is below what it was: the row began again.
    fn went_back(self, before: Self) -> bool {
        self.allocated < before.allocated || self.freed < before.freed
    }
}

/// What one series shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// Live bytes; goes up and down.
    pub live: u64,
    /// Never goes back.
    pub counters: Counters,
}

/// What a scrape shows of sites.
#[derive(Clone, Debug, Default)]
pub struct SiteSeries {
    /// Series of their own.
    pub named: BTreeMap<Labels, Shown>,
    /// The rest, by domain.
    pub other: BTreeMap<&'static str, Shown>,
}

/// What is remembered from one update to the next.
#[derive(Debug)]
pub struct SiteCounters {
    members: Members<Labels>,
    rows: HashMap<RowKey, Seen>,
    /// What rows that are gone have left in a series that was exported.
    left: HashMap<Labels, Counters>,
    /// Keys of `left`, the one that came first first.
    order: VecDeque<Labels>,
    other: BTreeMap<&'static str, Counters>,
}

/// A row at the last update.
#[derive(Debug)]
struct Seen {
    labels: Option<Labels>,
    counters: Counters,
    /// Whether its series was exported while this row was in it.
    exported: bool,
}

impl SiteCounters {
    /// Nothing seen yet; at most `limit` named series.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            members: Members::new(limit),
            rows: HashMap::new(),
            left: HashMap::new(),
            order: VecDeque::new(),
            other: BTreeMap::new(),
        }
    }

    /// Takes the rows of now. `domains` have an `other` even if nothing is in it.
    pub fn update(
        &mut self,
        rows: Vec<Row>,
        domains: impl IntoIterator<Item = &'static str>,
    ) -> SiteSeries {
        let rows: Vec<(Row, Option<Labels>)> = rows
            .into_iter()
            .map(|row| {
                let labels = self.labels(&row);
                (row, labels)
            })
            .collect();
        let mut sizes = BTreeMap::<Labels, u64>::new();
        for (row, labels) in rows.iter().filter_map(|(row, labels)| Some((row, labels.as_ref()?))) {
            let size = sizes.entry(labels.clone()).or_default();
            *size = size.saturating_add(row.live);
        }
        self.members.update(&sizes);
        let growths = self.settle(&rows);

        let mut shown = SiteSeries::default();
        for domain in domains {
            self.other.entry(domain).or_default();
        }
        for ((row, labels), growth) in rows.into_iter().zip(growths) {
            let member = labels.as_ref().filter(|labels| self.members.contains(labels));
            let exported = member.is_some();
            let (series, counters) = if let Some(labels) = member {
                let left = self.left.get(labels).copied().unwrap_or_default();
                let new = Shown { live: 0, counters: left };
                (shown.named.entry(labels.clone()).or_insert(new), row.counters)
            } else {
                self.other.entry(row.key.domain).or_default().add(growth);
                // The accumulated counters are put in below.
                (shown.other.entry(row.key.domain).or_default(), Counters::default())
            };
            series.live = series.live.saturating_add(row.live);
            series.counters.add(counters);
            let seen = self.rows.entry(row.key).or_insert_with(|| Seen {
                labels: None,
                counters: Counters::default(),
                exported: false,
            });
            seen.exported |= exported;
            seen.labels = labels;
            seen.counters = row.counters;
        }
        for (domain, counters) in &self.other {
            shown.other.entry(domain).or_default().counters = *counters;
        }
        shown
    }

    /// Says what happened to each row since the last update. What is gone, began again or
    /// moved to another series leaves its last value in the series that it was in.
    fn settle(&mut self, rows: &[(Row, Option<Labels>)]) -> Vec<Counters> {
        let mut renamed = self.renamed(rows);
        let mut before = std::mem::take(&mut self.rows);
        let mut growths = Vec::with_capacity(rows.len());
        for (row, labels) in rows {
            let seen = before.remove(&row.key);
            growths.push(growth(row, seen.as_ref(), &mut renamed));
            match seen {
                Some(seen) if row.counters.went_back(seen.counters) || seen.labels != *labels => {
                    self.leave(seen);
                }
                Some(seen) => drop(self.rows.insert(row.key.clone(), seen)),
                None => {}
            }
        }
        for (_, gone) in before {
            self.leave(gone);
        }
        growths
    }

    /// The labels of a row; its function keeps the name that it had first, as the heaviest
    /// sample of a call site can change.
    fn labels(&self, row: &Row) -> Option<Labels> {
        let site = row.key.site?;
        let first = self.rows.get(&row.key).and_then(|seen| seen.labels.as_ref());
        let function = first.map_or(&row.function, |labels| &labels.function);
        Some(Labels {
            domain: row.key.domain,
            comm: row.comm.clone(),
            pid: row.key.who.0,
            site,
            function: function.clone(),
        })
    }

    /// By how much rows without a name have shrunk: their stacks have got names, so the same
    /// bytes appear in named rows and must not be taken for growth.
    fn renamed(&self, rows: &[(Row, Option<Labels>)]) -> HashMap<RowKey, Counters> {
        let now: HashMap<&RowKey, Counters> = rows
            .iter()
            .filter(|(row, _)| row.key.site.is_none())
            .map(|(row, _)| (&row.key, row.counters))
            .collect();
        self.rows
            .iter()
            .filter(|(key, _)| key.site.is_none())
            .map(|(key, seen)| {
                let now = now.get(key).copied().unwrap_or_default();
                (key.clone(), seen.counters.zip(now, u64::saturating_sub))
            })
            .collect()
    }

    /// Keeps what a row contributed to a series that was exported.
    fn leave(&mut self, seen: Seen) {
        let Seen { labels: Some(labels), counters, exported: true } = seen else { return };
        if !self.left.contains_key(&labels) {
            self.order.push_back(labels.clone());
        }
        self.left.entry(labels).or_default().add(counters);
        if self.order.len() > REMEMBERED {
            // Not one that is exported now: its value would go back.
            if let Some(oldest) = self.order.pop_front() {
                if self.members.contains(&oldest) {
                    self.order.push_back(oldest);
                } else {
                    self.left.remove(&oldest);
                }
            }
        }
    }
}

/// What happened to a row since the last update.
fn growth(row: &Row, seen: Option<&Seen>, renamed: &mut HashMap<RowKey, Counters>) -> Counters {
    let before = seen.map(|seen| seen.counters).unwrap_or_default();
    if row.key.site.is_none() {
        return row.counters.zip(before, u64::saturating_sub);
    }
    let mut growth = if row.counters.went_back(before) {
        row.counters
    } else {
        row.counters.zip(before, u64::saturating_sub)
    };
    if let Some(renamed) = renamed.get_mut(&RowKey { site: None, ..row.key.clone() }) {
        let taken = growth.zip(*renamed, u64::min);
        growth = growth.zip(taken, u64::saturating_sub);
        *renamed = renamed.zip(taken, u64::saturating_sub);
    }
    growth
}

#[cfg(test)]
mod tests;
