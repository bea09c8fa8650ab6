//! Records into the books, one kind at a time.

use std::borrow::Cow;

use memtrace_common::{Account, Context, KernelSampleRecord};

use super::accounts::{Accepted, Holder, StackSample};
use super::process::ProcessBooks;
use super::stacks::Need;
use super::{Effects, Ledger};
use crate::record::{Observation, Record, StackKey, StackOrigin};
use crate::snapshot::{Taken, TakenBy};

impl Ledger {
    /// Takes one record in. What is asked for in return is put into `effects`.
    pub fn apply(&mut self, record: &Record, effects: &mut Effects) {
        match record {
            Record::Process { time_ns, entry } => self.process_record(*time_ns, entry, effects),
            Record::Account { time_ns, account } => {
                self.account_record(*time_ns, account);
            }
            Record::KernelSample(sample) => self.sample_record(sample),
            Record::Totals { time_ns, key, totals } => {
                self.totals_record(*time_ns, *key, totals);
            }
            Record::Allocation(call) => self.allocation_record(call),
            Record::Failure(call) => self.failure_record(call),
            Record::Free(free) => self.free_record(free),
            Record::Stack(label) => self.stacks.label(label),
            Record::Tick { now_ns } => self.reap(*now_ns, effects),
            Record::Observation { now_ns, observation } => self.observe(*now_ns, observation),
            Record::Duplicate(_) => {}
            Record::AccountAges(ages) => self.accounts.accept_ages(ages),
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
            Observation::Device(device) => {
                for process in self.processes.values_mut() {
                    let facts = &mut process.facts;
                    if !facts.before_attach || facts.device_bytes.is_some() {
                        continue;
                    }
                    let pid = process.entry.map_or(0, |entry| entry.key.tgid);
                    let own = device.processes.iter().find(|(user, _)| *user == pid);
                    facts.device_bytes = own.map(|(_, bytes)| *bytes);
                }
            }
            Observation::LiveIds { next_id, ids } => self.live_ids(*next_id, ids, now_ns),
            Observation::Memory(_)
            | Observation::DeviceLost { .. }
            | Observation::Tracing { .. }
            | Observation::ProcessMemory(_)
            | Observation::UnusedShared(_)
            | Observation::Loss(_)
            | Observation::Latency(_)
            | Observation::Coverage(_) => {}
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
                let taken = Taken::whole(TakenBy::Kernel);
                self.stacks.want(stack, StackOrigin::Kernel, &site, taken, Need::Identity);
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
        let taken = Taken::whole(TakenBy::Kernel);
        if !self.stacks.want(kernel, StackOrigin::Kernel, &stack, taken, need) {
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
        let taken = Taken::whole(TakenBy::FramePointers);
        self.stacks.want(key, origin, frames, taken, Need::Example).then_some(key)
    }
}

/// The used part of a record's array of frames.
fn used(frames: &[u64], count: u32) -> &[u64] {
    let count = usize::try_from(count).unwrap_or(usize::MAX).min(frames.len());
    frames.get(..count).unwrap_or_default()
}

/// A kernel stack from the call site outwards: what lies before is the tracer's own and the
/// allocator's.
fn from_call_site(frames: &[u64], call_site: u64) -> Cow<'_, [u64]> {
    match frames.iter().position(|address| *address == call_site) {
        Some(position) => frames.get(position..).unwrap_or_default().into(),
        // Not in the stack (inlined, or cut): it is still where the allocator returns to.
        None => std::iter::once(call_site).chain(frames.iter().copied()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_stack_begins_at_its_call_site() {
        assert_eq!(*from_call_site(&[1, 2, 3, 4], 3), [3, 4]);
        assert_eq!(*from_call_site(&[1, 2], 9), [9, 1, 2]);
        assert_eq!(*from_call_site(&[], 9), [9]);
    }
}
