//! Files that nobody runs: which of them are let go of, and when.
//!
//! Must never let go of what a person named, nor of a file that is mapped by another view of it, but
//! for a deleted one: that view has its turn then.

use std::collections::{BTreeSet, HashMap};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use super::{Attachment, FileKey, Identity, Inspection, Late, Libraries, Prober, State};
use crate::attach::deadline::{self, FILE_DEADLINE};

/// A file that nobody has mapped for so long is let go of. Short programs that are run again and
/// again keep their probes: attached anew, the file would miss the first calls of each.
pub(super) const IDLE_FOR: Duration = Duration::from_secs(600);

impl<P: Prober> Libraries<P> {
    /// Notes that a process maps a file that is known: nobody takes its place before the next
    /// look.
    pub fn mapped_again(&mut self, key: FileKey) {
        let id = self.id_of(key);
        if let Some(attachment) = id.and_then(|id| self.attached.get_mut(&id)) {
            attachment.idle_since = None;
        }
    }

    /// Tells which files are mapped by any process, after a look at all of them; `everybody` says
    /// that there is no process which may not be looked into.
    ///
    /// Forgets what is not mapped any more (its inode can be reused). Lets go of deleted files
    /// that nobody runs (a probe keeps them on disk), and of what nobody has run for long, but
    /// only if everybody was looked into: whose probes are taken away would seem to free nothing.
    pub fn sweep(&mut self, now: Instant, everybody: bool, is_mapped: impl Fn(FileKey) -> bool) {
        self.unread.retain(|key, _| is_mapped(*key));
        let mut mapped: HashMap<Identity, bool> = HashMap::new();
        for (key, identity) in &self.keys {
            *mapped.entry(*identity).or_default() |= is_mapped(*key);
        }
        let is_mapped = |identity: &Identity| mapped.get(identity).copied().unwrap_or(false);
        // What is mapped by another view of it is run all the same.
        let views = self.files.iter().filter_map(|(identity, state)| match state {
            State::Duplicate(of, _) if is_mapped(identity) => Some(*of),
            _ => None,
        });
        let views: BTreeSet<u32> = views.collect();
        let silent = self.attached.values().filter(|attachment| attachment.silent);
        let mut dead: BTreeSet<u64> =
            silent.map(|attachment| attachment.inspection.identity.device).collect();
        let mut gone = Vec::new();
        for (id, attachment) in &mut self.attached {
            let Inspection { identity, searched, .. } = &attachment.inspection;
            let own = is_mapped(identity);
            // An executable that was too slow to be looked at by its mapping has no key to ask by.
            let keyless = *searched && !mapped.contains_key(identity);
            let idle_for = attachment.looked_at(now, own || keyless || views.contains(id));
            if own {
                attachment.silent = false;
            } else if !attachment.named
                && ((everybody && idle_for >= IDLE_FOR) || attachment.is_deleted(&mut dead))
            {
                gone.push(*id);
            }
        }
        for id in gone {
            self.detach(id);
        }
        let attached = &self.attached;
        self.files.retain(|identity, state| match state {
            State::Attached(id) => attached.contains_key(id),
            State::Duplicate(of, _) => attached.contains_key(of) && is_mapped(identity),
            State::Refused { retry, .. } => !*retry && is_mapped(identity),
            State::Foreign | State::Searched => is_mapped(identity),
        });
        let files = &self.files;
        self.keys.retain(|_, identity| files.contains_key(identity));
    }

    /// Why there is no place for one more file, if so. Files that nobody runs give way, those of
    /// the same owner first. Of an owner's places half are kept free of runtimes within other files,
    /// whose calls the driver's probes see as well.
    pub(super) fn no_place(&mut self, inspection: &Inspection) -> Option<String> {
        let uid = inspection.twin.uid;
        let of_uid = |a: &Attachment<P::Link>| !a.named && a.inspection.twin.uid == uid;
        let limit = match inspection.is_within() {
            true => self.policy.max_files_per_uid.div_ceil(2),
            false => self.policy.max_files_per_uid,
        };
        while self.attached.values().filter(|&a| of_uid(a)).count() >= limit {
            if !self.let_one_go(of_uid) {
                return Some(format!("{limit} files of user id {uid} are probed already"));
            }
        }
        (!self.make_room()).then(|| self.full())
    }

    pub(super) fn full(&self) -> String {
        format!("{} files are probed already", self.policy.max_files)
    }

    /// Lets go of a file that nobody runs, if all places are taken. Whether there is a place.
    pub(super) fn make_room(&mut self) -> bool {
        self.attached.len() < self.policy.max_files || self.let_one_go(|_| true)
    }

    /// Lets go of the file that nobody has run for longest. Whether there was any.
    fn let_one_go(&mut self, whose: impl Fn(&Attachment<P::Link>) -> bool) -> bool {
        let all = self.attached.iter();
        let idle = all.filter(|&(_, a)| a.idle_since.is_some() && !a.named && whose(a));
        let longest = idle.min_by_key(|(_, a)| a.idle_since);
        let Some(id) = longest.map(|(id, _)| *id) else { return false };
        self.detach(id);
        true
    }
}

impl<L> Attachment<L> {
    /// Notes whether anybody maps it now. For how long nobody has.
    fn looked_at(&mut self, now: Instant, mapped: bool) -> Duration {
        if mapped {
            self.idle_since = None;
            return Duration::ZERO;
        }
        now.saturating_duration_since(*self.idle_since.get_or_insert(now))
    }

    /// Whether the file has no name any more. A `dead` device, of which a file did not answer, is
    /// not asked again: each question would cost a thread that never comes back.
    fn is_deleted(&mut self, dead: &mut BTreeSet<u64>) -> bool {
        let device = self.inspection.identity.device;
        if dead.contains(&device) {
            return false;
        }
        let Ok(file) = self.inspection.file.try_clone() else { return false };
        match deadline::run(FILE_DEADLINE, move || file.metadata()) {
            Ok(metadata) => metadata.is_ok_and(|metadata| metadata.nlink() == 0),
            Err(Late::Deadline(_)) => {
                dead.insert(device);
                self.silent = true;
                false
            }
            Err(Late::TooManyStuck) => false,
        }
    }
}
