//! How often each process makes the probes fire, by the totals that the kernel side keeps anyway:
//! whoever costs more than the ceiling is told of, so that the probes are taken away. It is looked
//! at beside the engine, which such a process keeps busy.
//!
//! A call fires twice, at entry and at return; that the runtime calls the driver inside of
//! it is not counted, and frees of NULL and calls that choose a device are in no totals.

use std::time::Duration;

use memtrace_common::{FIRST_STATIC_PROBE, Totals, TotalsKey};
use rustc_hash::FxHashMap;

use crate::catalog;

/// Looks in a row at which a process must be above the ceiling: one may be a burst.
const LOOKS: u32 = 2;

/// From when on probes cost too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CeilingConfig {
    /// Firings a second and process; 0: there is no ceiling. One costs about a microsecond, so a
    /// million take a core.
    pub firings_per_second: u64,
    /// How long the probes are away.
    pub pause: Duration,
}

impl Default for CeilingConfig {
    fn default() -> Self {
        Self { firings_per_second: 1_000_000, pause: Duration::from_secs(60) }
    }
}

/// An address space in which functions of one name space of pointers fire too often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over {
    /// The address space.
    pub space: u32,
    /// Class of the pointers ([`memtrace_common::FunctionSpec::class`]).
    pub class: u8,
    /// Firings a second.
    pub firings: u64,
}

/// Who fires how often.
#[derive(Debug)]
pub struct Ceiling {
    config: CeilingConfig,
    /// Calls by address space and function, cumulative.
    calls: FxHashMap<(u32, u32), u64>,
    /// What came since the last look.
    now: FxHashMap<(u32, u8), Pace>,
    looked_ns: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    firings: u64,
    above: u32,
}

impl Ceiling {
    /// Nothing has fired yet.
    #[must_use]
    pub fn new(config: CeilingConfig) -> Self {
        Self { config, calls: FxHashMap::default(), now: FxHashMap::default(), looked_ns: 0 }
    }

    /// Whether there is a ceiling.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.config.firings_per_second > 0
    }

    /// Takes a row of totals as it is now.
    pub fn observe(&mut self, key: &TotalsKey, totals: &Totals) {
        let function = u16::try_from(key.function).ok().and_then(catalog::library_function);
        let Some(function) = function.filter(|_| self.is_on()) else { return };
        let parts = [
            totals.seen.count,
            totals.freed.count,
            totals.failures,
            totals.failed_frees,
            totals.unknown_frees,
            totals.empty,
            totals.implausible,
        ];
        let calls = parts.into_iter().fold(0, u64::saturating_add);
        let before = self.calls.insert((key.space, key.function), calls).unwrap_or(0);
        let pace = self.now.entry((key.space, function.spec.class)).or_default();
        // A static probe has no return.
        let each = if function.id >= FIRST_STATIC_PROBE { 1 } else { 2 };
        pace.firings =
            pace.firings.saturating_add(calls.saturating_sub(before).saturating_mul(each));
    }

    /// Looks who is above the ceiling. `is_open` says which address spaces there still are.
    pub(super) fn look(&mut self, now_ns: u64, is_open: impl Fn(u32) -> bool) -> Vec<Over> {
        let took_ns = now_ns.saturating_sub(std::mem::replace(&mut self.looked_ns, now_ns));
        let mut all = Vec::new();
        for ((space, class), pace) in &mut self.now {
            let firings = u128::from(std::mem::take(&mut pace.firings));
            let firings = (firings * 1_000_000_000).checked_div(u128::from(took_ns));
            let firings = u64::try_from(firings.unwrap_or(0)).unwrap_or(u64::MAX);
            let above = firings > self.config.firings_per_second;
            pace.above = if above { pace.above + 1 } else { 0 };
            if pace.above >= LOOKS {
                pace.above = 0;
                all.push(Over { space: *space, class: *class, firings });
            }
        }
        self.now.retain(|(space, _), _| is_open(*space));
        self.calls.retain(|(space, _), _| is_open(*space));
        all.sort_unstable_by_key(|over| (over.space, over.class));
        all
    }

    /// How long probes are away.
    #[must_use]
    pub const fn pause(&self) -> Duration {
        self.config.pause
    }
}

#[cfg(test)]
mod tests {
    use memtrace_common::Amount;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn calls(ceiling: &mut Ceiling, space: u32, calls: u64) {
        let malloc = catalog::library_functions()[0];
        let key = TotalsKey { space, function: u32::from(malloc.id) };
        let seen = Amount { count: calls, bytes: 0 };
        ceiling.observe(&key, &Totals { seen, ..Totals::default() });
    }

    #[test]
    fn who_stays_above_the_ceiling_is_told_of_and_nobody_else() {
        let config = CeilingConfig { firings_per_second: 1_000, pause: Duration::from_secs(1) };
        let mut ceiling = Ceiling::new(config);
        ceiling.look(SECOND, |_| true);
        let mut told = Vec::new();
        for second in 2..8_u64 {
            // One above it, one just below, and one whose single burst is no pace.
            calls(&mut ceiling, 1, second * 600);
            calls(&mut ceiling, 2, second * 500);
            calls(&mut ceiling, 3, if second > 4 { 900_000 } else { 0 });
            let over = ceiling.look(second * SECOND, |_| true);
            told.extend(over.into_iter().map(|over| (second, over.space, over.firings)));
        }
        // The first row of 1 is its whole past.
        assert_eq!(told, [(3, 1, 1_200), (5, 1, 1_200), (7, 1, 1_200)]);
    }

    #[test]
    fn without_a_ceiling_nobody_is_told_of() {
        let config = CeilingConfig { firings_per_second: 0, ..CeilingConfig::default() };
        let mut ceiling = Ceiling::new(config);
        assert!(!ceiling.is_on() && Ceiling::new(CeilingConfig::default()).is_on());
        for second in 1..5 {
            calls(&mut ceiling, 1, second * 1_000_000_000);
            assert!(ceiling.look(second * SECOND, |_| true).is_empty());
        }
    }
}
