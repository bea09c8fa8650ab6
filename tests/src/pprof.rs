//! Profiles as an independent reader has them: google's pprof, which is the format's own. Nothing
//! of memtrace reads here.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::process;

/// A sample.
#[derive(Clone, Debug)]
pub struct Sample {
    /// One for each of the profile's types.
    pub values: Vec<u64>,
    /// Ids of its locations, innermost first.
    pub locations: Vec<u64>,
    /// Labels, words and numbers.
    pub labels: BTreeMap<String, String>,
}

/// A mapping.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// Path.
    pub path: String,
    /// What stands behind it: build id and marks such as `[FN]`.
    pub rest: String,
}

/// What `pprof -raw` says of a profile.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// Types with units, such as `live_space/bytes`.
    pub types: Vec<String>,
    /// Samples.
    pub samples: Vec<Sample>,
    /// Functions of locations, each with its file and line, inlined ones first.
    pub locations: BTreeMap<u64, Vec<String>>,
    /// Mappings.
    pub mappings: Vec<Mapping>,
    /// Comments.
    pub comments: Vec<String>,
}

/// Runs pprof with these arguments on a profile; `symbols` is where it may look for
/// files by build id.
///
/// # Errors
///
/// When it is not there or refuses the profile.
pub fn pprof(profile: &Path, arguments: &[&str], symbols: Option<&Path>) -> anyhow::Result<String> {
    let mut command = Command::new(crate::paths::pprof()?);
    command.args(arguments).arg(profile);
    if let Some(symbols) = symbols {
        command.env("PPROF_BINARY_PATH", symbols);
    }
    Ok(process::run(&mut command, Duration::from_secs(60))?.expect_status(0)?.stdout)
}

impl Profile {
    /// Reads a profile as it is, without names that are not in it.
    ///
    /// # Errors
    ///
    /// When pprof refuses it.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        Self::parse(&pprof(path, &["-raw", "-symbolize=none"], None)?)
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let mut profile = Self::default();
        let mut section = "";
        let mut last = 0;
        for line in text.lines() {
            if let "Samples:" | "Locations" | "Mappings" = line {
                section = line;
                continue;
            }
            match section {
                "" => profile.comments.extend(line.strip_prefix("Comment: ").map(str::to_owned)),
                "Samples:" => profile.sample(line).with_context(|| format!("sample {line:?}"))?,
                "Locations" => match line.trim_start().split_once(": 0x") {
                    Some((id, rest)) => {
                        last = id.parse()?;
                        // Address, perhaps mapping, perhaps a function.
                        let rest = rest.split_once(' ').map_or("", |(_, rest)| rest);
                        let function = match rest.strip_prefix("M=") {
                            Some(rest) => rest.split_once(' ').map_or("", |(_, rest)| rest),
                            None => rest,
                        };
                        let functions = Some(function.trim()).filter(|text| !text.is_empty());
                        let functions = functions.map(str::to_owned).into_iter().collect();
                        profile.locations.insert(last, functions);
                    }
                    None => {
                        let inlined_into = line.trim().to_owned();
                        profile.locations.entry(last).or_default().push(inlined_into);
                    }
                },
                _ => {
                    let (_, place) = line.split_once(": ").context(line.to_owned())?;
                    let mut words = place.splitn(3, ' ').skip(1);
                    let path = words.next().unwrap_or_default().to_owned();
                    let rest = words.next().unwrap_or_default().to_owned();
                    profile.mappings.push(Mapping { path, rest });
                }
            }
        }
        ensure!(!profile.types.is_empty(), "no sample types in {text}");
        Ok(profile)
    }

    fn sample(&mut self, line: &str) -> anyhow::Result<()> {
        if self.types.is_empty() {
            self.types = line.split_whitespace().map(str::to_owned).collect();
            return Ok(());
        }
        if let Some((values, locations)) = line.split_once(':')
            && values.trim_start().starts_with(|first: char| first.is_ascii_digit())
        {
            self.samples.push(Sample {
                values: values.split_whitespace().map(str::parse).collect::<Result<_, _>>()?,
                locations: locations
                    .split_whitespace()
                    .map(str::parse)
                    .collect::<Result<_, _>>()?,
                labels: BTreeMap::new(),
            });
            return Ok(());
        }
        // `key:[value] key:[value]`
        let sample = self.samples.last_mut().context("labels before a sample")?;
        for label in line.trim().split("] ").filter(|label| !label.is_empty()) {
            let (key, value) = label.split_once(":[").context("no label")?;
            sample.labels.insert(key.into(), value.trim_end_matches(']').into());
        }
        Ok(())
    }

    /// Sums of the samples with this label, or of all, in the order of the types.
    #[must_use]
    pub fn sums(&self, label: Option<(&str, &str)>) -> Vec<u64> {
        let has = |sample: &&Sample| {
            label.is_none_or(|(key, value)| sample.labels.get(key).is_some_and(|own| own == value))
        };
        let mut sums = vec![0; self.types.len()];
        for sample in self.samples.iter().filter(has) {
            for (sum, value) in sums.iter_mut().zip(&sample.values) {
                *sum += value;
            }
        }
        sums
    }

    /// The functions of a sample, innermost first, each with file and line.
    #[must_use]
    pub fn stack(&self, sample: &Sample) -> Vec<&str> {
        let lines = sample.locations.iter().filter_map(|id| self.locations.get(id));
        lines.flatten().map(String::as_str).collect()
    }

    /// The mapping of a file.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn mapping(&self, path: &Path) -> anyhow::Result<&Mapping> {
        let mapping = self.mappings.iter().find(|one| Path::new(&one.path) == path);
        mapping.with_context(|| format!("no {} in {:?}", path.display(), self.mappings))
    }
}

/// The build id of a file, as binutils read it.
///
/// # Errors
///
/// When it has none.
pub fn build_id(file: &Path) -> anyhow::Result<String> {
    let mut command = Command::new("readelf");
    let said = process::run(command.arg("-n").arg(file), Duration::from_secs(30))?;
    let line = said.stdout.lines().find_map(|line| line.trim().strip_prefix("Build ID: "));
    Ok(line.with_context(|| format!("no build id: {said:?}"))?.to_owned())
}
