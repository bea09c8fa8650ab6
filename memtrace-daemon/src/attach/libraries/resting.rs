//! Files some of whose functions are not probed for a while, because they fired too often.

use std::os::fd::AsFd;
use std::time::Instant;

use memtrace_common::{cookie, cookie_function};

use super::probes::{Fired, cookies, places};
use super::{Attachment, Libraries};
use crate::attach::probing::{Prober, explain, probe};
use crate::attach::rest::{Rest, Resting};
use crate::catalog::library_function;

impl<P: Prober> Libraries<P> {
    /// All attachments.
    pub(in crate::attach) fn ids(&self) -> Vec<u32> {
        self.attached.keys().copied().collect()
    }

    /// Takes the probes of a class of functions away from a file. Whether it had any.
    pub(in crate::attach) fn rest(&mut self, id: u32, rest: Rest, now: Instant) -> bool {
        let Some(attachment) = self.attached.get_mut(&id) else { return false };
        let (points, static_ones) =
            (&attachment.inspection.points.points, &attachment.inspection.places.places);
        let class = |function| library_function(function).map(|function| function.spec.class);
        let mut functions = (points.iter().map(|(function, _)| *function))
            .chain(static_ones.iter().map(|place| place.function));
        let has = functions.any(|function| class(function) == Some(rest.class));
        if !has || attachment.resting.iter().any(|resting| resting.rest.class == rest.class) {
            return false;
        }
        let until = now.checked_add(rest.pause).unwrap_or(now);
        attachment.resting.push(Resting { rest, until });
        self.probe_again(id);
        true
    }

    /// Brings the probes back whose time is over. Whether there were any.
    pub(in crate::attach) fn wake(&mut self, now: Instant) -> bool {
        let mut woken = Vec::new();
        for (id, attachment) in &mut self.attached {
            let before = attachment.resting.len();
            attachment.resting.retain(|resting| resting.until > now);
            if attachment.resting.len() != before {
                woken.push(*id);
            }
        }
        for id in &woken {
            self.probe_again(*id);
        }
        !woken.is_empty()
    }

    /// Puts probes on what does not rest. What is called between the old ones and the new ones, a
    /// tenth of a second, is not seen: two at a time would make each call two.
    fn probe_again(&mut self, id: u32) {
        let Self { prober, policy, attached, .. } = self;
        let Some(attachment) = attached.get_mut(&id) else { return };
        let Attachment { probes, fired, demanded, rested, resting, inspection, row, .. } =
            attachment;
        drop(probes.take());
        let rests = |function| {
            let class = library_function(function).map(|function| function.spec.class);
            resting.iter().any(|resting| Some(resting.rest.class) == class)
        };
        let wanted = policy.wanted(inspection).into_iter();
        let points: Vec<(u64, u64)> = wanted
            .filter(|(function, _)| !rests(*function))
            .map(|(function, offset)| (offset, cookie(id, function)))
            .collect();
        let mut said: Vec<String> = resting.iter().map(Resting::words).collect();
        let mut functions = Vec::new();
        if !points.is_empty() {
            match probe(prober, inspection.file.as_fd(), points) {
                Ok(probed) => {
                    let ids = probed.points.iter().map(|(_, cookie)| cookie_function(*cookie));
                    functions = ids.filter_map(library_function).collect();
                    *probes = Some(probed.probes);
                }
                Err(error) => said.push(explain(&error, prober.by())),
            }
        }
        // Static probes are taken away with the class of their pointers.
        let waiting = places(id, &policy.on_demand(inspection));
        if waiting.iter().any(|(place, _)| rests(place.function)) {
            if !demanded.is_empty() {
                rested.extend(std::mem::take(demanded).into_keys());
                prober.forget_static(&cookies(&waiting));
            }
        } else {
            for process in std::mem::take(rested) {
                match prober.attach_static(inspection.file.as_fd(), &waiting, Some(process)) {
                    Ok(link) => _ = demanded.insert(process, link),
                    Err(error) => said.push(explain(&error, prober.by())),
                }
            }
        }
        let wanted = policy.wanted_static(inspection);
        if wanted.iter().any(|place| rests(place.function)) {
            if let Some(Fired { link, cookies }) = fired.take() {
                drop(link);
                prober.forget_static(&cookies);
            }
        } else if fired.is_none() && !wanted.is_empty() {
            let places = places(id, &wanted);
            match prober.attach_static(inspection.file.as_fd(), &places, None) {
                Ok(link) => *fired = Some(Fired { link, cookies: cookies(&places) }),
                Err(error) => said.push(explain(&error, prober.by())),
            }
        }
        if fired.is_some() {
            functions.extend(wanted.iter().filter_map(|place| library_function(place.function)));
            functions.dedup();
        }
        row.attached = probes.is_some() || fired.is_some() || !demanded.is_empty();
        row.attached_at = row.attached.then(|| prober.since());
        row.by = row.attached.then(|| prober.by());
        row.functions = functions.iter().map(|function| function.symbol.to_owned()).collect();
        row.reason = (!said.is_empty()).then(|| said.join("; "));
    }
}
