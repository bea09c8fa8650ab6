//! Lives of processes: starts, execs and ends, and whose an address space is.
//!
//! A process record carries the whole process, so that the last one wins, but what lay between
//! two of them may never be told: an address space can be heard of before its owner, or only
//! after its owner has left it.

use memtrace_common::ProcessEntry;

use super::effects::Unfamiliar;
use super::process::ProcessBooks;
use super::space::Space;
use super::{Effects, Ledger};

impl Ledger {
    /// Takes in a process as it is now.
    pub(super) fn process_record(
        &mut self,
        time_ns: u64,
        entry: &ProcessEntry,
        effects: &mut Effects,
    ) {
        let serial = entry.serial;
        if serial == 0 || self.forgotten_processes.get(&serial).is_some() {
            return;
        }
        let process = self.processes.entry(serial).or_insert_with(|| ProcessBooks::new(serial));
        let known = process.entry;
        if known.is_some_and(|known| known.version > entry.version) {
            return;
        }
        process.entry = Some(*entry);
        let changed = known.is_none_or(|known| known.space != entry.space);
        if changed && !entry.ended() {
            effects.unfamiliar.push(Unfamiliar { serial, tgid: entry.key.tgid });
        }
        let just_ended = entry.ended() && process.ended_ns.is_none();
        if just_ended {
            process.ended_ns = Some(time_ns);
            self.ended.push_back(serial);
        }
        self.share(entry, 1, time_ns);
        if entry.space != 0 && self.forgotten_spaces.get(&entry.space).is_none() {
            self.own(entry.space, entry.space_owner, true, time_ns);
        }
        if let Some(known) = known {
            self.share(&known, -1, time_ns);
            self.close_left(known.space_owner, time_ns);
        }
        self.close_left(serial, time_ns);
    }

    /// Counts a running process into, or out of, the space that it shares with another.
    fn share(&mut self, entry: &ProcessEntry, change: i32, time_ns: u64) {
        let shares = !entry.ended() && entry.space != 0 && entry.space_owner != entry.serial;
        if shares && self.forgotten_spaces.get(&entry.space).is_none() {
            let window_ns = self.config.window_ns;
            let new = || Space::new(time_ns, window_ns);
            let space = self.spaces.entry(entry.space).or_insert_with(new);
            space.sharers = space.sharers.saturating_add_signed(change);
            if space.sharers > 0 && !space.swept {
                // Heard of late: its owner's end did not end it.
                space.closed_ns = None;
            }
        }
    }

    /// Says whose an address space is; a process record says it for certain, a call's does not.
    pub(super) fn own(&mut self, id: u32, owner: u32, certain: bool, time_ns: u64) {
        let window_ns = self.config.window_ns;
        let space = self.spaces.entry(id).or_insert_with(|| Space::new(time_ns, window_ns));
        if self.forgotten_processes.get(&owner).is_some() {
            // It ended, and was let go, before this space was heard of.
            space.closed_ns.get_or_insert(time_ns);
            self.closing.push(id);
            self.ownerless.push(id);
        } else if space.owner == Some(owner) {
            space.owner_certain |= certain;
        } else if space.owner.is_none() || (certain && !space.owner_certain) {
            let guessed = space.owner.replace(owner);
            space.owner_certain = certain;
            if !space.swept {
                // If a wrong owner's end closed it, it was never closed.
                space.closed_ns = None;
            }
            if let Some(wrong) = guessed.and_then(|serial| self.processes.get_mut(&serial)) {
                wrong.spaces.retain(|space| *space != id);
            }
            let process = self.processes.entry(owner).or_insert_with(|| ProcessBooks::new(owner));
            process.spaces.push(id);
        }
        self.close_left(owner, time_ns);
    }

    /// Closes the spaces that a process has left, by exec or by its end, unless another process
    /// still runs in them.
    fn close_left(&mut self, serial: u32, time_ns: u64) {
        let Some(process) = self.processes.get(&serial) else {
            return;
        };
        for id in &process.spaces {
            if process.has_left(*id)
                && let Some(space) = self.spaces.get_mut(id)
                && space.sharers == 0
                && space.closed_ns.is_none()
            {
                space.closed_ns = Some(time_ns);
                self.closing.push(*id);
            }
        }
    }
}
