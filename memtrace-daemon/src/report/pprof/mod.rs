//! pprof: a gzipped profile that `pprof` and profile stores read, one sample a row of the books.
//!
//! Invariant: the samples add up to the sites of the snapshot, in each of the four values. What
//! has no stack is under a function in brackets, never left out.

mod comments;
mod proto;
mod tables;
#[cfg(test)]
mod tests;

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use self::proto::{Label, Profile, Sample, ValueType};
use self::tables::Tables;
use super::filter::Filter;
use crate::snapshot::{Process, Site, Snapshot};

/// The four values of a sample, in this order, and their units.
const VALUES: [(&str, &str); 4] = [
    ("live_space", "bytes"),
    ("live_objects", "count"),
    ("alloc_space", "bytes"),
    ("alloc_objects", "count"),
];

/// Writes the profile. `filter` is what the snapshot was narrowed by, for the comments.
///
/// # Errors
///
/// What came back from writing.
pub fn write(snapshot: &Snapshot, filter: &Filter, out: &mut dyn Write) -> io::Result<()> {
    let profile = profile(snapshot, filter);
    let mut out = GzEncoder::new(io::BufWriter::new(out), Compression::fast());
    out.write_all(&profile.encode_to_vec())?;
    out.finish()?.flush()
}

fn profile(snapshot: &Snapshot, filter: &Filter) -> Profile {
    let mut tables = Tables::default();
    let sample_type = VALUES.map(|(name, unit)| ValueType {
        r#type: tables.strings.id(name),
        unit: tables.strings.id(unit),
    });
    let comments = comments::lines(snapshot, filter);
    let comment = comments.iter().map(|line| tables.strings.id(line)).collect();
    let mut sample = Vec::new();
    for process in &snapshot.processes {
        let whose = Whose::of(process, &mut tables);
        sample.extend(process.sites.iter().map(|site| whose.sample(site, &mut tables)));
    }
    let duration = snapshot.generated_at.duration_since(snapshot.attached_at);
    Profile {
        sample_type: sample_type.to_vec(),
        sample,
        // As Go's heap profiles have it: stores file a profile under the moment that it shows.
        time_nanos: nanoseconds(snapshot.generated_at.as_nanosecond()),
        duration_nanos: nanoseconds(duration.as_nanos()),
        period_type: Some(ValueType {
            r#type: tables.strings.id("space"),
            unit: tables.strings.id("bytes"),
        }),
        // Every byte counts: what is not followed is in the comments.
        period: 1,
        comment,
        default_sample_type: tables.strings.id("live_space"),
        ..tables.finish()
    }
}

/// Labels that the samples of a process have in common.
struct Whose {
    comm: Option<Label>,
    pid: Label,
}

impl Whose {
    fn of(process: &Process, tables: &mut Tables) -> Self {
        let pid = Label { key: tables.strings.id("pid"), str: 0, num: i64::from(process.pid) };
        Self { comm: word(tables, "comm", &process.comm), pid }
    }

    fn sample(&self, site: &Site, tables: &mut Tables) -> Sample {
        let id = site.id.map(|id| format!("{id:016x}"));
        let labels = [
            word(tables, "domain", site.domain),
            self.comm,
            Some(self.pid),
            word(tables, "site", id.as_deref().unwrap_or("")),
            word(tables, "api", site.api),
            word(tables, "verdict", site.verdict.name()),
        ];
        Sample {
            location_id: tables.stack(site),
            value: values(site).map(|value| i64::try_from(value).unwrap_or(i64::MAX)).to_vec(),
            label: labels.into_iter().flatten().collect(),
        }
    }
}

fn values(site: &Site) -> [u64; 4] {
    [site.live_bytes, site.live_count, site.allocated_bytes, site.allocations]
}

/// A label; none for an empty word, which the format cannot tell from no word.
fn word(tables: &mut Tables, key: &str, word: &str) -> Option<Label> {
    let str = tables.strings.id(word);
    (str != 0).then(|| Label { key: tables.strings.id(key), str, num: 0 })
}

fn nanoseconds(ns: i128) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}
