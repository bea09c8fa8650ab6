//! Static probes that are attached to single processes when that is asked for: each firing costs
//! the process a trap, so that they are there for a while and not for ever.

use jiff::Timestamp;

use super::{
    AsFd, Attachment, FunctionId, Libraries, ON_DEMAND, Prober, cookies, coverage, explain, places,
};

impl<P: Prober> Libraries<P> {
    /// Attaches static probes that wait for it to one process, by its thread group id, or takes
    /// them away again. Whether coverage has changed.
    pub fn demand(&mut self, process: u32, wanted: bool) -> bool {
        let mut changed = false;
        for id in self.attached.keys().copied().collect::<Vec<_>>() {
            changed |= self.demand_of(id, process, wanted);
        }
        changed
    }

    fn demand_of(&mut self, id: u32, process: u32, wanted: bool) -> bool {
        let Self { policy, prober, attached, .. } = self;
        let Some(attachment) = attached.get_mut(&id) else { return false };
        let waiting = policy.on_demand(&attachment.inspection);
        // Perf events cannot leave other processes alone, and nobody asked for those.
        let told_apart = prober.by() == "uprobe_multi";
        let there = attachment.demanded.contains_key(&process);
        if waiting.is_empty() || there == wanted || !told_apart {
            return false;
        }
        let places = places(id, &waiting);
        let mut refused = None;
        if wanted {
            let file = attachment.inspection.file.as_fd();
            match prober.attach_static(file, &places, Some(process)) {
                Ok(link) => _ = attachment.demanded.insert(process, link),
                Err(error) => refused = Some(explain(&error, prober.by())),
            }
        } else {
            drop(attachment.demanded.remove(&process));
            attachment.rested.remove(&process);
            if !attachment.any() {
                prober.forget_static(&cookies(&places));
            }
        }
        attachment.tell(prober.by(), prober.since(), refused);
        true
    }
}

impl<L> Attachment<L> {
    fn any(&self) -> bool {
        !self.demanded.is_empty()
    }

    /// Says in the file's row who is watched.
    fn tell(&mut self, by: &'static str, since: Timestamp, refused: Option<String>) {
        if self.fired.is_some() || self.probes.is_some() {
            return;
        }
        let row = std::mem::replace(&mut self.row, coverage::process(0, String::new()));
        let pids: Vec<String> = self.demanded.keys().map(u32::to_string).collect();
        self.row = if pids.is_empty() {
            coverage::refused(row, refused.unwrap_or_else(|| ON_DEMAND.to_owned()))
        } else {
            let mut functions: Vec<FunctionId> =
                self.inspection.places.places.iter().map(|place| place.function).collect();
            functions.dedup();
            let at = row.attached_at.unwrap_or(since);
            let mut row = coverage::attached(row, at, by, &functions);
            row.pid = self.demanded.keys().next().copied();
            row.reason = Some(format!(
                "on demand, in pid {} alone, whose device memory is not steady",
                pids.join(", ")
            ));
            row
        };
    }
}
