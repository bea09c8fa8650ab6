//! The files that are probed: each once, by device and inode, within limits, and a row of
//! coverage for each that is or should be.
//!
//! Must never attach to what was not inspected through the very descriptor that is attached,
//! and never forget a file that is still mapped: an inode that is mapped cannot be reused.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use memtrace_common::{FunctionId, cookie, cookie_function, usdt_cookie};
use thiserror::Error;

use super::coverage;
use super::deadline::Late;
use super::discover::FileKey;
use super::elf::{self, ElfError, Identity};
use super::inspect::{Inspection, inspect, recognise};
use super::policy::FilePolicy;
use super::probing::{Probed, Prober, Probes, explain, probe};
use super::rest::Resting;
use super::usdt::Place;
use super::users::Known;
use crate::catalog::library_function;
use crate::snapshot::CoverageRow;
use probes::{Fired, cookies, places};

/// Files that could not be attached and have a row of their own; the rest is only remembered.
const MAX_REFUSED_ROWS: usize = 512;

/// What the row of a file says whose probes wait to be asked for.
const ON_DEMAND: &str = "its static probes are attached on demand, to a process whose device memory \
                         is not steady, and for a while ([torch] in the configuration)";

/// Where a file was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Its key in maps, if it was found by a mapping.
    pub key: Option<FileKey>,
    /// Its path, as whoever found it has it.
    pub path: Vec<u8>,
    /// The process that maps it.
    pub pid: Option<u32>,
}

/// Why a file that a person named is not attached.
#[derive(Debug, Error)]
pub enum LibraryError {
    /// It cannot be read, or is no library.
    #[error("{} {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: ElfError,
    },
    /// It has none of the functions.
    #[error("{} has none of the functions that memtrace knows ({})", .path.display(), some(.symbols))]
    NoFunctions {
        /// The file.
        path: PathBuf,
        /// What was looked for.
        symbols: Vec<&'static str>,
    },
    /// It is attached to, or could be, but for this.
    #[error("{} cannot be probed: {reason}", .path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// The first of many symbols, and how many there are: a line, not a page.
fn some(symbols: &[&str]) -> String {
    let mut names: Vec<_> = symbols.iter().take(3).copied().map(str::to_owned).collect();
    if symbols.len() > names.len() {
        names.push(format!("and {} others", symbols.len() - names.len()));
    }
    names.join(", ")
}

/// Why a mapped file could not be looked at.
#[derive(Debug, Error)]
pub enum NotInspected {
    /// It cannot be read, or is no ELF file.
    #[error(transparent)]
    File(#[from] ElfError),
    /// Reading it takes too long.
    #[error(transparent)]
    Late(#[from] Late),
}

/// A file that is attached. Dropping it detaches.
pub(super) struct Attachment<L> {
    /// Dropped first, and in this order. None while all of them rest.
    pub(super) probes: Option<Probes<L>>,
    fired: Option<Fired<L>>,
    /// Static probes that are attached to single processes, when that is asked for.
    demanded: BTreeMap<u32, L>,
    /// Processes whose static probes come back when their rest is over.
    rested: BTreeSet<u32>,
    /// What is not probed for a while.
    pub(super) resting: Vec<Resting>,
    pub(super) inspection: Inspection,
    named: bool,
    /// When it was first seen that nobody maps it; none while somebody does, and before the
    /// first look.
    idle_since: Option<Instant>,
    /// It did not answer when it was asked whether it is deleted.
    silent: bool,
    pub(super) row: CoverageRow,
}

/// What is known of a file.
enum State {
    /// Attached, with this id.
    Attached(u32),
    /// Another view of an attached file.
    Duplicate(u32, Box<CoverageRow>),
    /// A library of the catalog that is not attached; `retry` says that it may be later.
    Refused { row: Box<CoverageRow>, retry: bool },
    /// Nothing to attach to.
    Foreign,
    /// The same, its own symbols included.
    Searched,
}

/// All files that are known, and the probes on them.
pub struct Libraries<P: Prober> {
    pub(super) prober: P,
    pub(super) policy: FilePolicy,
    pub(super) attached: BTreeMap<u32, Attachment<P::Link>>,
    files: HashMap<Identity, State>,
    keys: HashMap<FileKey, Identity>,
    /// Mapped files that could not be looked at, some with a row.
    unread: HashMap<FileKey, Option<Box<CoverageRow>>>,
    next: u32,
}

impl<P: Prober> Libraries<P> {
    /// No files yet.
    pub fn new(prober: P, policy: FilePolicy) -> Self {
        Self {
            prober,
            policy,
            attached: BTreeMap::new(),
            files: HashMap::new(),
            keys: HashMap::new(),
            unread: HashMap::new(),
            next: 1,
        }
    }

    /// Whether a mapped file was never looked at.
    #[must_use]
    pub fn is_new(&self, key: FileKey) -> bool {
        !self.keys.contains_key(&key) && !self.unread.contains_key(&key)
    }

    /// Files attached.
    #[must_use]
    pub fn attached(&self) -> usize {
        self.attached.len()
    }

    /// Takes a file that was looked at, and attaches to it if it is a library of the catalog, or
    /// has a runtime in itself, and is not attached yet. The attachment, if it is attached now.
    pub fn admit(&mut self, found: &Found, inspection: Inspection) -> Option<u32> {
        let identity = inspection.identity;
        let id = self.take(found, inspection);
        if let Some(key) = found.key {
            self.keys.insert(key, identity);
        }
        id
    }

    fn take(&mut self, found: &Found, inspection: Inspection) -> Option<u32> {
        let identity = inspection.identity;
        match self.files.get(&identity) {
            Some(State::Attached(id)) => {
                let id = *id;
                if let Some(attachment) = self.attached.get_mut(&id) {
                    if found.pid.is_some() {
                        attachment.idle_since = None;
                    }
                    attachment.row.pid = attachment.row.pid.or(found.pid);
                }
                return Some(id);
            }
            None => {}
            Some(State::Foreign) if inspection.searched => {}
            Some(_) => return None,
        }
        if inspection.library.is_none() && inspection.points.points.is_empty() {
            let state = if inspection.searched { State::Searched } else { State::Foreign };
            self.files.insert(identity, state);
            return None;
        }
        let row = coverage::row(found, &inspection);
        if let Some(reason) = self.policy.refusal(&found.path, &inspection) {
            self.refuse(identity, row, reason, false);
            return None;
        }
        if let Some(reason) = self.no_place(&inspection) {
            // To look through a file each time that places are looked for is too much.
            self.refuse(identity, row, reason, !inspection.is_within());
            return None;
        }
        self.attach(inspection, row, false).ok()
    }

    /// Whether a file was looked through for a runtime, or is known for something else.
    #[must_use]
    pub fn is_searched(&self, identity: Identity) -> bool {
        !matches!(self.files.get(&identity), None | Some(State::Foreign))
    }

    /// Whether a mapped file is none of the catalog's, and was not looked through for a runtime.
    #[must_use]
    pub fn may_hide(&self, key: FileKey) -> bool {
        let identity = self.keys.get(&key).filter(|_| !self.unread.contains_key(&key));
        identity.is_some_and(|identity| !self.is_searched(*identity))
    }

    /// The attachment of a mapped file.
    pub(super) fn id_of(&self, key: FileKey) -> Option<u32> {
        match self.files.get(self.keys.get(&key)?)? {
            State::Attached(id) | State::Duplicate(id, _) => Some(*id),
            State::Refused { .. } | State::Foreign | State::Searched => None,
        }
    }

    /// What is known of a mapped file of which there is something to say.
    pub(super) fn known(&self, key: FileKey) -> Option<Known<'_>> {
        let row = match self.keys.get(&key).map(|identity| self.files.get(identity)) {
            None => self.unread.get(&key)?.as_deref()?,
            Some(Some(State::Attached(id) | State::Duplicate(id, _))) => {
                &self.attached.get(id)?.row
            }
            Some(Some(State::Refused { row, .. })) => row,
            Some(Some(State::Foreign | State::Searched) | None) => return None,
        };
        Some(Known { row, driver: row.layers.iter().any(|layer| layer == "driver") })
    }

    /// Remembers a mapped file that could not be looked at, so that it is not tried at every
    /// mapping. One that is named like a library of the catalog gets a row.
    pub fn not_inspected(&mut self, found: &Found, why: &NotInspected) {
        let Some(key) = found.key else { return };
        match why {
            // Its process has ended, or the path leads elsewhere: the next mapping may do.
            NotInspected::File(ElfError::Io(error))
                if !matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)) =>
            {
                return;
            }
            NotInspected::Late(Late::TooManyStuck) => return,
            NotInspected::File(_) | NotInspected::Late(Late::Deadline(_)) => {}
        }
        let name = found.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let library = std::str::from_utf8(name).ok().and_then(recognise);
        let row = library.map(|library| Box::new(coverage::unread(found, library.name, why)));
        self.unread.insert(key, row);
    }

    /// Attaches to a file that a person named, whatever it says it is.
    ///
    /// # Errors
    /// That it cannot be read, has none of the functions, or cannot be probed.
    pub fn add_named(&mut self, path: &Path) -> Result<u32, LibraryError> {
        let in_file = |source| LibraryError::File { path: path.to_owned(), source };
        let refused = |reason| LibraryError::Refused { path: path.to_owned(), reason };
        let inspection = elf::open(path).and_then(|file| inspect(file, true)).map_err(in_file)?;
        if inspection.description.go {
            let reason = "it was made by the Go linker, whose functions must not be probed";
            return Err(refused(reason.to_owned()));
        }
        if inspection.points.points.is_empty() && inspection.places.places.is_empty() {
            return Err(LibraryError::NoFunctions {
                path: path.to_owned(),
                symbols: inspection.points.missing,
            });
        }
        if let Some(State::Attached(id)) = self.files.get(&inspection.identity) {
            let id = *id;
            if self.attached.get(&id).is_some_and(|attachment| attachment.named) {
                return Ok(id);
            }
            // Found by itself before: now with all functions.
            self.detach(id);
        }
        let found =
            Found { key: None, path: path.as_os_str().as_encoded_bytes().to_vec(), pid: None };
        let row = coverage::row(&found, &inspection);
        if !self.make_room() {
            return Err(refused(self.full()));
        }
        self.attach(inspection, row, true).map_err(refused)
    }

    /// A row for each library of the catalog that was seen.
    #[must_use]
    pub fn coverage(&self) -> Vec<CoverageRow> {
        let refused = self.files.values().filter_map(|state| match state {
            State::Refused { row, .. } | State::Duplicate(_, row) => Some(&**row),
            State::Attached(_) | State::Foreign | State::Searched => None,
        });
        let unread = self.unread.values().flatten().map(|row| &**row);
        let attached = self.attached.values().map(|attachment| &attachment.row);
        let mut rows: Vec<CoverageRow> = attached.chain(refused).chain(unread).cloned().collect();
        rows.sort_by(|a, b| (&b.attached, &a.path, &a.file).cmp(&(&a.attached, &b.path, &b.file)));
        rows
    }

    /// Detaches from everything and forgets all files.
    pub fn detach_all(&mut self) {
        for id in self.attached.keys().copied().collect::<Vec<_>>() {
            self.release(id);
        }
        self.files.clear();
        self.keys.clear();
        self.unread.clear();
    }

    fn attach(
        &mut self,
        inspection: Inspection,
        row: CoverageRow,
        named: bool,
    ) -> Result<u32, String> {
        let identity = inspection.identity;
        let id = self.next;
        let points: Vec<(u64, u64)> = self
            .policy
            .wanted(&inspection)
            .into_iter()
            .map(|(function, offset)| (offset, cookie(id, function)))
            .collect();
        let places = places(id, &self.policy.wanted_static(&inspection));
        let waits = !self.policy.on_demand(&inspection).is_empty();
        if points.is_empty() && places.is_empty() && !waits {
            return Err("its domains are off".to_owned());
        }
        let attached = self.probe(&inspection, points, &places);
        let (probes, points, fired) = match attached {
            Ok(attached) => attached,
            Err(error) => {
                let reason = explain(&error, self.prober.by());
                self.refuse(identity, row, reason.clone(), true);
                return Err(reason);
            }
        };
        self.next += 1;
        let mut functions: Vec<FunctionId> = points
            .iter()
            .map(|(_, cookie)| cookie_function(*cookie))
            .chain(inspection.points.aliases.iter().copied())
            .chain(places.iter().map(|(place, _)| place.function))
            .collect();
        // A static probe has several places.
        functions.dedup();
        let refused = self
            .policy
            .wanted(&inspection)
            .into_iter()
            .filter(|(function, _)| !functions.contains(function))
            .filter_map(|(function, _)| library_function(function))
            .map(|function| function.symbol)
            .collect::<Vec<_>>();
        let mut row = if functions.is_empty() {
            coverage::refused(row, ON_DEMAND.to_owned())
        } else {
            coverage::attached(row, self.prober.since(), self.prober.by(), &functions)
        };
        if !refused.is_empty() {
            row.reason = Some(format!("the kernel refused probes on {}", refused.join(", ")));
        }
        self.files.insert(identity, State::Attached(id));
        let attachment = Attachment {
            probes,
            fired,
            demanded: BTreeMap::new(),
            rested: BTreeSet::new(),
            resting: Vec::new(),
            inspection,
            named,
            idle_since: None,
            silent: false,
            row,
        };
        self.attached.insert(id, attachment);
        Ok(id)
    }

    fn refuse(&mut self, identity: Identity, row: CoverageRow, reason: String, retry: bool) {
        let refused = |state: &&State| matches!(state, State::Refused { .. });
        let state = if self.files.values().filter(refused).count() < MAX_REFUSED_ROWS {
            State::Refused { row: Box::new(coverage::refused(row, reason)), retry }
        } else {
            State::Searched
        };
        self.files.insert(identity, state);
    }

    /// Detaches from one file and forgets it and its other views, so that they are looked at
    /// again.
    fn detach(&mut self, id: u32) {
        self.release(id);
        self.files.retain(|_, state| match state {
            State::Attached(of) | State::Duplicate(of, _) => *of != id,
            State::Refused { .. } | State::Foreign | State::Searched => true,
        });
        let files = &self.files;
        self.keys.retain(|_, identity| files.contains_key(identity));
    }
}

mod demand;
mod duplicates;
mod idle;
mod probes;
mod resting;
#[cfg(test)]
mod tests;
