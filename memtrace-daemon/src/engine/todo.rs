//! What the books ask for, done: stacks named, processes described, the kernel's maps cleared
//! of what has ended.
//!
//! Must never change the books but by records.

use std::collections::HashMap;

use super::{Core, policy::CgroupPolicy};
use crate::{
    attach::{error::TracerError, tracer::Tracer},
    host::{self, Host, ProcessAsk},
    intake::recording::Recorder,
    ledger::{AccountBooks, Effects},
    record::{Anchor, Observation, Record, StackLabel},
    stacks::Stacks,
};

/// What is needed to do what the books ask for.
pub(super) struct Todo<'a> {
    pub(super) tracer: &'a mut Tracer,
    pub(super) stacks: &'a Stacks,
    pub(super) host: &'a Host,
    pub(super) unfamiliar: &'a mut HashMap<u32, ProcessAsk>,
    /// Closed address spaces whose mappings are known as long as stacks wait for their names.
    pub(super) leaving: &'a mut Vec<u32>,
    pub(super) policy: &'a CgroupPolicy,
    pub(super) exact_sites: &'a [String],
    pub(super) attached_at: &'a Anchor,
    pub(super) recorder: &'a mut Option<Recorder>,
}

impl Todo<'_> {
    /// Takes a record in, and does what the books ask for then.
    pub(super) fn apply(&mut self, core: &mut Core, record: &Record) {
        match record {
            // Before stacks of the process are asked for.
            Record::Process { entry, .. } => self.stacks.process(entry),
            Record::Observation { observation, .. } => self.described(core, observation),
            _ => {}
        }
        if let Some(recorder) = self.recorder {
            recorder.record(record);
        }
        let effects = core.apply(record);
        if !effects.is_empty() {
            self.carry_out(core, effects);
        }
        if let Record::Stack(label) = record
            && !self.exact_sites.is_empty()
        {
            self.promote(core, label);
        }
    }

    /// A call site has its name: it may be one that is to be followed exactly from now on.
    fn promote(&mut self, core: &Core, label: &StackLabel) {
        let [frame] = &*label.frames else { return };
        let Some(symbol) = &frame.symbol else { return };
        if !self.exact_sites.iter().any(|site| **site == **symbol) {
            return;
        }
        let netted = |books: &&AccountBooks| {
            books.account.key.detail == 0 && books.identity() == Some(label.key)
        };
        let named = core.ledger().accounts().find(netted);
        if let Some(books) = named {
            let call_site = books.account.key.call_site;
            report("follow a call site exactly", self.tracer.promote(call_site));
        }
    }

    /// Facts about a process have come: its cgroup may decide whether it is booked.
    fn described(&mut self, core: &Core, observation: &Observation) {
        let Observation::ProcessFacts { serial, cgroup, .. } = observation else { return };
        self.unfamiliar.remove(serial);
        let entry = core.ledger().process(*serial).and_then(|process| process.entry);
        if let (Some(entry), Some(cgroup)) = (entry, cgroup)
            && !self.policy.is_empty()
        {
            let include = self.policy.says(cgroup);
            let set = self.tracer.set_process_policy(entry.key, include);
            report("set the policy of a process", set);
        }
    }

    fn carry_out(&mut self, core: &mut Core, effects: Effects) {
        let Effects {
            stacks,
            unfamiliar,
            delete_accounts,
            settle_spaces,
            sweep_spaces,
            forget_processes,
        } = effects;
        for stack in stacks {
            // A stack that finds no room is asked for again.
            let _ = self.stacks.request(stack);
        }
        for process in unfamiliar {
            let entry = core.ledger().process(process.serial).and_then(|process| process.entry);
            let start_ns = entry.map(|entry| entry.key.start_ns);
            let ask = ProcessAsk {
                serial: process.serial,
                tgid: process.tgid,
                start_ns,
                before_attach: start_ns.is_some_and(|start| start < self.attached_at.boot_ns),
            };
            self.unfamiliar.insert(process.serial, ask);
            // One that finds no room is asked for again.
            let _ = self.host.ask(ask);
        }
        let time_ns = host::clock::monotonic_ns();
        for (slot, key) in delete_accounts {
            match self.tracer.delete_account(slot, &key) {
                Ok(Some(account)) => self.apply(core, &Record::Account { time_ns, account }),
                Ok(None) => {}
                Err(error) => report("delete an account", Err(error)),
            }
        }
        self.settle(core, &settle_spaces);
        self.leaving.extend(settle_spaces);
        for space in sweep_spaces {
            report("sweep a closed address space", self.tracer.sweep(space));
        }
        for (key, _) in forget_processes {
            report("forget a process", self.tracer.forget_process(&key));
        }
    }

    /// Takes the last counters of closed address spaces in, and deletes them in the kernel.
    fn settle(&mut self, core: &mut Core, spaces: &[u32]) {
        if spaces.is_empty() {
            return;
        }
        let time_ns = host::clock::monotonic_ns();
        match self.tracer.delete_totals(spaces) {
            Ok(rows) => {
                for (key, totals) in rows {
                    self.apply(core, &Record::Totals { time_ns, key, totals });
                }
            }
            Err(error) => report("settle closed address spaces", Err(error)),
        }
    }
}

/// Says what failed. The books stay right: what was not done is asked for again or stays.
pub(super) fn report(what: &str, result: Result<(), TracerError>) {
    if let Err(error) = result {
        tracing::warn!("cannot {what}: {error}");
    }
}
