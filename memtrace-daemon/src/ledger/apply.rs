//! Records into the books, one kind at a time.

use memtrace_common::{
    Account, AllocationRecord, Context, FreeReason, FreeRecord, FunctionId, KernelSampleRecord,
    ProcessEntry, Totals, TotalsKey,
};

use super::accounts::{Accepted, Holder, StackSample};
use super::effects::Unfamiliar;
use super::process::ProcessBooks;
use super::space::ClosedCall;
use super::stacks::Need;
use super::{Effects, Ledger};
use crate::record::{Observation, Record, StackKey, StackOrigin};

impl Ledger {
    /// Takes one record in. What is asked for in return is put into `effects`.
    pub fn apply(&mut self, record: &Record, effects: &mut Effects) {
        match record {
            Record::Process { time_ns, entry } => self.process_record(*time_ns, entry, effects),
            Record::Account { time_ns, account } => {
                self.account_record(*time_ns, account);
            }
            Record::KernelSample(sample) => self.sample_record(sample),
            Record::Totals { time_ns: _, key, totals } => self.totals_record(*key, totals),
            Record::Allocation(call) => self.allocation_record(call),
            Record::Failure(call) => self.failure_record(call),
            Record::Free(free) => self.free_record(free),
            Record::Stack(label) => self.stacks.label(label),
            Record::Tick { now_ns } => self.reap(*now_ns, effects),
            Record::Observation { now_ns, observation } => self.observe(*now_ns, observation),
            Record::Duplicate(_) => {}
        }
        let wanted = self.stacks.take_wanted();
        if effects.stacks.is_empty() {
            effects.stacks = wanted;
        } else {
            effects.stacks.extend(wanted);
        }
    }

    fn observe(&mut self, now_ns: u64, observation: &Observation) {
        match observation {
            Observation::ProcessFacts { serial, cmdline, cgroup, rss_bytes, before_attach } => {
                if let Some(process) = self.processes.get_mut(serial) {
                    let facts = &mut process.facts;
                    // A process that ended meanwhile cannot be read any more; what was known stays.
                    facts.cmdline = cmdline.clone().or(facts.cmdline.take());
                    facts.cgroup = cgroup.clone().or(facts.cgroup.take());
                    facts.rss_bytes = facts.rss_bytes.or(*rss_bytes);
                    facts.before_attach |= before_attach;
                }
            }
            Observation::Device { processes, .. } => {
                for process in self.processes.values_mut() {
                    let facts = &mut process.facts;
                    if !facts.before_attach || facts.device_bytes.is_some() {
                        continue;
                    }
                    let pid = process.entry.map_or(0, |entry| entry.key.tgid);
                    facts.device_bytes =
                        processes.iter().find(|(user, _)| *user == pid).map(|(_, bytes)| *bytes);
                }
            }
            Observation::LiveIds { next_id, ids } => self.live_ids(*next_id, ids, now_ns),
            Observation::Slab { .. }
            | Observation::Memory { .. }
            | Observation::Loss(_)
            | Observation::Coverage(_) => {}
        }
    }

    fn process_record(&mut self, time_ns: u64, entry: &ProcessEntry, effects: &mut Effects) {
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
        if entry.space != 0 && self.forgotten_spaces.get(&entry.space).is_none() {
            self.own(entry.space, entry.space_owner, true, time_ns);
        }
        self.close_left(serial, time_ns);
    }

    /// Says whose an address space is; a process record says it for certain, a call's does not.
    fn own(&mut self, id: u32, owner: u32, certain: bool, time_ns: u64) {
        let space = self.spaces.entry(id).or_default();
        if self.forgotten_processes.get(&owner).is_some() {
            space.closed_ns.get_or_insert(time_ns);
            self.closing.push(id);
        } else if space.owner == Some(owner) {
            space.owner_certain |= certain;
        } else if space.owner.is_none() || (certain && !space.owner_certain) {
            let guessed = space.owner.replace(owner);
            space.owner_certain = certain;
            // If a wrong owner's end closed it, it was never closed.
            space.closed_ns = None;
            if let Some(wrong) = guessed.and_then(|serial| self.processes.get_mut(&serial)) {
                wrong.spaces.retain(|space| *space != id);
            }
            let process = self.processes.entry(owner).or_insert_with(|| ProcessBooks::new(owner));
            process.spaces.push(id);
        }
        self.close_left(owner, time_ns);
    }

    /// Closes the spaces that a process has left: by exec, or by its end.
    fn close_left(&mut self, serial: u32, time_ns: u64) {
        let Some(process) = self.processes.get(&serial) else {
            return;
        };
        for id in &process.spaces {
            if process.has_left(*id)
                && let Some(space) = self.spaces.get_mut(id)
                && space.closed_ns.is_none()
            {
                space.closed_ns = Some(time_ns);
                self.closing.push(*id);
            }
        }
    }

    fn account_record(&mut self, time_ns: u64, account: &Account) -> Option<usize> {
        let accepted = self.accounts.accept(time_ns, account);
        self.faults.replaced_live = self.accounts.replaced_live;
        match accepted {
            Accepted::Known(id) | Accepted::Older(id) => Some(id),
            Accepted::Gone => None,
            Accepted::New(id) => {
                self.enter(id, account);
                Some(id)
            }
        }
    }

    /// Puts a new account into somebody's books, and asks for the name of its call site.
    fn enter(&mut self, id: usize, account: &Account) {
        let key = account.key;
        let holder = match (key.serial, key.context()) {
            (0, Some(Context::Interrupt)) => Holder::Interrupt,
            (0, _) => Holder::Unknown,
            (serial, _) => match self.forgotten_processes.get(&serial) {
                Some(folded) => Holder::Folded(*folded),
                None => Holder::Process(serial),
            },
        };
        match holder {
            Holder::Process(serial) => {
                let new = || ProcessBooks::new(serial);
                self.processes.entry(serial).or_insert_with(new).accounts.push(id);
            }
            Holder::Folded(folded) => self.folded.entry(folded).or_default().accounts.push(id),
            Holder::Interrupt => self.interrupt.push(id),
            Holder::Unknown => self.unknown.push(id),
        }
        if let Some(books) = self.accounts.get_mut(id) {
            books.holder = holder;
            if key.call_site != 0 {
                let site = [key.call_site];
                let stack = StackKey::kernel(&site);
                self.stacks.want(stack, StackOrigin::Kernel, &site, Need::Identity);
            }
        }
    }

    fn sample_record(&mut self, sample: &KernelSampleRecord) {
        let account = &sample.account;
        let Some(id) = self.account_record(sample.header.time_ns, account) else {
            return;
        };
        let frames = used(&sample.kernel, sample.kernel_frames);
        let stack = from_call_site(frames, account.key.call_site);
        let exact = account.key.detail != 0;
        let kernel = StackKey::kernel(&stack);
        let need = if exact { Need::Identity } else { Need::Example };
        if !self.stacks.want(kernel, StackOrigin::Kernel, &stack, need) {
            return;
        }
        let user = self.user_example(sample);
        let limit = self.config.max_samples;
        if let Some(books) = self.accounts.get_mut(id) {
            if exact {
                books.stack.get_or_insert(kernel);
            }
            let new = StackSample { kernel, user, weight: sample.weight, count: 1 };
            books.add_sample(new, limit);
        }
    }

    /// The user stack of a sample, unless nobody can say whose addresses it has.
    fn user_example(&mut self, sample: &KernelSampleRecord) -> Option<StackKey> {
        let frames = used(&sample.user, sample.user_frames);
        let entry = self.processes.get(&sample.account.key.serial)?.entry?;
        if frames.is_empty() || entry.space == 0 {
            return None;
        }
        let key = StackKey::user(entry.space, frames);
        let origin =
            StackOrigin::User { tgid: sample.tgid, serial: entry.serial, space: entry.space };
        self.stacks.want(key, origin, frames, Need::Example).then_some(key)
    }

    fn totals_record(&mut self, key: TotalsKey, totals: &Totals) {
        let Ok(function) = FunctionId::try_from(key.function) else {
            return;
        };
        if self.forgotten_spaces.get(&key.space).is_some() {
            return;
        }
        let space = self.spaces.entry(key.space).or_default();
        space.accept(function, totals);
        if space.closed_ns.is_some() && !space.swept && space.holds() {
            self.closing.push(key.space);
        }
    }

    /// Finds the space and the stack of a call; `None` where they are not kept.
    fn place(&mut self, call: &AllocationRecord) -> Option<(FunctionId, StackKey)> {
        let function = FunctionId::try_from(call.function).ok()?;
        let swept = self.spaces.get(&call.space).is_some_and(|space| space.swept);
        if swept || self.forgotten_spaces.get(&call.space).is_some() {
            return None;
        }
        let known = self.spaces.get(&call.space).is_some_and(|space| space.owner.is_some());
        if !known && call.serial != 0 {
            self.own(call.space, call.serial, false, call.header.time_ns);
        }
        let frames = used(&call.user, call.user_frames);
        let stack = StackKey::user(call.space, frames);
        let origin = StackOrigin::User { tgid: call.tgid, serial: call.serial, space: call.space };
        self.stacks.want(stack, origin, frames, Need::Identity).then_some((function, stack))
    }

    fn allocation_record(&mut self, call: &AllocationRecord) {
        let early = match self.closed_calls.get(&call.id) {
            Some(ClosedCall::Booked) => return,
            Some(ClosedCall::Early(reason)) => Some(*reason),
            None => None,
        };
        let Some((function, stack)) = self.place(call) else {
            return;
        };
        let space = self.spaces.entry(call.space).or_default();
        let new = space.allocate(call.id, function, stack, call.bytes, call.header.time_ns);
        if let (true, Some(reason)) = (new, early) {
            space.free(call.id, reason);
            self.closed_calls.insert(call.id, ClosedCall::Booked);
        }
    }

    fn failure_record(&mut self, call: &AllocationRecord) {
        if let Some((function, stack)) = self.place(call) {
            let space = self.spaces.entry(call.space).or_default();
            space.fail(function, stack, call.header.time_ns);
        }
    }

    fn free_record(&mut self, free: &FreeRecord) {
        let reason = match free.reason {
            reason if reason == FreeReason::FreedUnseen as u32 => FreeReason::FreedUnseen,
            _ => FreeReason::Freed,
        };
        let booked =
            self.spaces.get_mut(&free.space).is_some_and(|space| space.free(free.id, reason));
        if booked {
            self.closed_calls.insert(free.id, ClosedCall::Booked);
        } else if self.closed_calls.get(&free.id).is_none() {
            self.closed_calls.insert(free.id, ClosedCall::Early(reason));
        }
    }

    /// After a loss: what the kernel's live map does not have was freed unheard.
    fn live_ids(&mut self, next_id: u64, ids: &[u64], read_ns: u64) {
        // A swept space's allocations are not in the map because the sweep took them.
        for space in self.spaces.values_mut().filter(|space| !space.swept) {
            for id in space.missing(next_id, ids, read_ns) {
                space.free(id, FreeReason::Freed);
                self.closed_calls.insert(id, ClosedCall::Booked);
            }
        }
    }
}

/// The used part of a record's array of frames.
fn used(frames: &[u64], count: u32) -> &[u64] {
    let count = usize::try_from(count).unwrap_or(usize::MAX).min(frames.len());
    frames.get(..count).unwrap_or_default()
}

/// A kernel stack from the call site outwards: what lies before is the tracer's own and the
/// allocator's.
fn from_call_site(frames: &[u64], call_site: u64) -> Vec<u64> {
    match frames.iter().position(|address| *address == call_site) {
        Some(position) => frames.get(position..).unwrap_or_default().to_vec(),
        // Not in the stack (inlined, or cut): it is still where the allocator returns to.
        None => std::iter::once(call_site).chain(frames.iter().copied()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_stack_begins_at_its_call_site() {
        assert_eq!(from_call_site(&[1, 2, 3, 4], 3), [3, 4]);
        assert_eq!(from_call_site(&[1, 2], 9), [9, 1, 2]);
        assert_eq!(from_call_site(&[], 9), [9]);
    }
}
