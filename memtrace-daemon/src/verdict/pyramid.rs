//! What is remembered of one subject: the floors of its windows, fine for minutes, coarser for
//! hours and days, in bounded memory.

use super::windows::Windows;

/// Windows of the finest tier: 12 minutes of 10 s each.
const FINE: usize = 72;
/// Entries of each coarser tier.
const COARSE: usize = 40;
/// Windows in one entry of the second tier, and in one entry of the third before it widens.
const WIDTHS: [u32; 3] = [1, 8, 64];

/// One window, or several that were joined.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Window {
    /// Lowest live bytes.
    pub(super) floor: u64,
    /// Lowest number of live objects; saturates.
    pub(super) objects: u32,
    /// Allocations.
    pub(super) allocations: Rough,
    /// What else the process did meanwhile: allocations at other sites.
    pub(super) work: Rough,
}

/// A count to within half a percent, in two bytes: the upper half of an IEEE 754 single.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rough(u16);

impl Rough {
    pub(super) fn of(count: f32) -> Self {
        // Rounded to the nearest: counts are far from the largest single.
        let bits = count.to_bits().saturating_add(0x7fff) >> 16;
        Self(u16::try_from(bits).unwrap_or(u16::MAX))
    }

    pub(super) fn get(self) -> f64 {
        f64::from(self.value())
    }

    fn value(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}

/// Windows that are being joined; not rough yet, or many small counts would be lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joined {
    floor: u64,
    objects: u32,
    allocations: f32,
    work: f32,
}

impl Joined {
    pub(super) fn of(window: Window) -> Self {
        let Window { floor, objects, allocations, work } = window;
        Self { floor, objects, allocations: allocations.value(), work: work.value() }
    }

    pub(super) fn join(self, later: Self) -> Self {
        Self {
            floor: self.floor.min(later.floor),
            objects: self.objects.min(later.objects),
            allocations: self.allocations + later.allocations,
            work: self.work + later.work,
        }
    }

    pub(super) fn window(self) -> Window {
        let Self { floor, objects, allocations, work } = self;
        Window { floor, objects, allocations: Rough::of(allocations), work: Rough::of(work) }
    }
}

/// Windows of one width, oldest first.
#[derive(Debug)]
pub(super) struct Tier {
    pub(super) windows: Windows,
    /// Base windows in one entry.
    pub(super) width: u32,
    pending: Option<Joined>,
    pending_windows: u32,
}

impl Tier {
    const fn new(width: u32) -> Self {
        Self { windows: Windows::new(), width, pending: None, pending_windows: 0 }
    }

    fn push(&mut self, window: Window, capacity: usize, widens: bool) {
        let window = Joined::of(window);
        let pending = self.pending.map_or(window, |pending| pending.join(window));
        self.pending_windows += 1;
        if self.pending_windows < self.width {
            self.pending = Some(pending);
            return;
        }
        if self.windows.len() >= capacity {
            if widens {
                self.widen();
                if self.pending_windows < self.width {
                    self.pending = Some(pending);
                    return;
                }
            } else {
                self.windows.pop_front();
            }
        }
        self.pending = None;
        self.pending_windows = 0;
        self.windows.push(pending.window(), capacity);
    }

    /// Joins neighbours, so that the whole life stays.
    fn widen(&mut self) {
        self.windows.halve();
        self.width = self.width.saturating_mul(2);
    }
}

/// All tiers of one subject.
#[derive(Debug)]
pub(super) struct Pyramid {
    pub(super) tiers: [Tier; 3],
}

impl Pyramid {
    pub(super) const fn new() -> Self {
        let [fine, middle, coarse] = WIDTHS;
        Self { tiers: [Tier::new(fine), Tier::new(middle), Tier::new(coarse)] }
    }

    /// Adds a base window.
    pub(super) fn push(&mut self, window: Window) {
        let [fine, middle, coarse] = &mut self.tiers;
        fine.push(window, FINE, false);
        middle.push(window, COARSE, false);
        coarse.push(window, COARSE, true);
    }

    /// The highest floor of the finest tier.
    pub(super) fn highest(&self) -> u64 {
        let [fine, ..] = &self.tiers;
        fine.windows.iter().map(|window| window.floor).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(floor: u64) -> Window {
        Window { floor, objects: 1, allocations: Rough::of(2.0), work: Rough::of(0.0) }
    }

    #[test]
    fn minutes_are_fine_and_days_are_whole() {
        let mut pyramid = Pyramid::new();
        for floor in 0..100_000 {
            pyramid.push(window(floor));
        }
        let [fine, middle, coarse] = &pyramid.tiers;
        assert_eq!(fine.windows.len(), FINE);
        assert_eq!(fine.windows.back().map(|window| window.floor), Some(99_999));
        assert_eq!(middle.windows.len(), COARSE);
        assert_eq!(middle.windows.back().map(|window| window.floor), Some(99_992));
        assert_eq!(coarse.windows.get(0).map(|window| window.floor), Some(0), "the beginning");
        assert!(coarse.windows.len() * coarse.width as usize > 90_000);
        let sum: f64 = coarse.windows.iter().map(|window| window.allocations.get()).sum();
        assert!((sum / 200_000.0 - 1.0).abs() < 0.1, "{sum}");
        assert!(size_of::<Window>() == 16);
    }

    #[test]
    fn a_rough_count_is_within_half_a_percent() {
        for count in [0.0_f32, 1.0, 3.0, 127.0, 1_000.0, 123_456.0, 4e9] {
            let error = (Rough::of(count).get() - f64::from(count)).abs();
            assert!(error <= f64::from(count) * 0.005, "{count}: {error}");
        }
    }
}
