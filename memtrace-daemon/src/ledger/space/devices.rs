//! Which device the live memory of an address space is on.

use std::collections::BTreeMap;

use memtrace_common::{Amount, Domain};

use super::Space;
use crate::catalog;

impl Space {
    /// Live device memory by the number of its device. What is not known to be on one, what waits
    /// for its stack and what no site explains is under `None`: all together is what is live.
    #[must_use]
    pub fn devices(&self) -> BTreeMap<Option<u8>, Amount> {
        let is_device = |function| {
            catalog::name_and_domain(function).is_some_and(|(_, domain)| domain == Domain::Cuda)
        };
        let wanted: Vec<bool> = self.sites.iter().map(|site| is_device(site.function)).collect();
        let mut devices = BTreeMap::new();
        let mut known = Amount::default();
        for call in self.live.values() {
            let is_device = wanted.get(call.site as usize).copied().unwrap_or(false);
            if let (true, Some(device)) = (is_device, call.device) {
                let one = Amount { count: 1, bytes: call.bytes };
                let sum: &mut Amount = devices.entry(Some(device)).or_default();
                *sum = sum.saturating_add(one);
                known = known.saturating_add(one);
            }
        }
        let totals = self.totals().filter(|(function, _)| is_device(*function));
        let live =
            totals.fold(Amount::default(), |sum, (_, totals)| sum.saturating_add(totals.live()));
        let rest = live.saturating_sub(known);
        if !rest.is_zero() {
            devices.insert(None, rest);
        }
        devices
    }
}
