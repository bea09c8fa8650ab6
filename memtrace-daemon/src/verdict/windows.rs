//! Windows of one tier of a history, oldest first, in as little room as they need: there are 152
//! of them in each of ten thousand histories. Never rounds what a verdict rests on.

use std::collections::VecDeque;

use super::pyramid::{Joined, Rough, Window};

/// Windows that room is made for at a time: a deque that doubles leaves half of its room unused.
const ROOM: usize = 8;

/// The windows.
#[derive(Debug)]
pub(super) struct Windows(Kind);

#[derive(Debug)]
enum Kind {
    /// None has 4 GiB or 65,536 objects: no host has the memory for many subjects that do.
    Narrow(VecDeque<Narrow>),
    /// One had.
    Wide(VecDeque<Window>),
}

/// A window in ten bytes.
#[derive(Clone, Copy, Debug)]
struct Narrow {
    /// Upper and lower half: nothing here is aligned to more than two bytes.
    floor: [u16; 2],
    objects: u16,
    allocations: Rough,
    work: Rough,
}

impl Narrow {
    fn of(window: Window) -> Option<Self> {
        let Window { floor, objects, allocations, work } = window;
        let floor = u32::try_from(floor).ok()?;
        let floor = [u16::try_from(floor >> 16).ok()?, u16::try_from(floor & 0xffff).ok()?];
        Some(Self { floor, objects: u16::try_from(objects).ok()?, allocations, work })
    }

    fn window(self) -> Window {
        let Self { floor: [upper, lower], objects, allocations, work } = self;
        let floor = u64::from(upper) << 16 | u64::from(lower);
        Window { floor, objects: u32::from(objects), allocations, work }
    }
}

impl Windows {
    pub(super) const fn new() -> Self {
        Self(Kind::Narrow(VecDeque::new()))
    }

    pub(super) fn len(&self) -> usize {
        match &self.0 {
            Kind::Narrow(windows) => windows.len(),
            Kind::Wide(windows) => windows.len(),
        }
    }

    pub(super) fn get(&self, at: usize) -> Option<Window> {
        match &self.0 {
            Kind::Narrow(windows) => windows.get(at).map(|window| window.window()),
            Kind::Wide(windows) => windows.get(at).copied(),
        }
    }

    pub(super) fn back(&self) -> Option<Window> {
        self.get(self.len().checked_sub(1)?)
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = Window> {
        (0..self.len()).filter_map(|at| self.get(at))
    }

    pub(super) fn pop_front(&mut self) {
        match &mut self.0 {
            Kind::Narrow(windows) => drop(windows.pop_front()),
            Kind::Wide(windows) => drop(windows.pop_front()),
        }
    }

    /// Adds the newest; there will be `capacity` of them at most.
    pub(super) fn push(&mut self, window: Window, capacity: usize) {
        if let Kind::Narrow(windows) = &mut self.0 {
            if let Some(narrow) = Narrow::of(window) {
                return put(windows, narrow, capacity);
            }
            self.0 = Kind::Wide(windows.iter().map(|window| window.window()).collect());
        }
        if let Kind::Wide(windows) = &mut self.0 {
            put(windows, window, capacity);
        }
    }

    /// Joins neighbours.
    pub(super) fn halve(&mut self) {
        let length = self.len();
        for (to, from) in (0..length).step_by(2).enumerate() {
            let Some(first) = self.get(from).map(Joined::of) else { break };
            let second = self.get(from + 1).map(Joined::of);
            let joined = second.map_or(first, |second| first.join(second)).window();
            match &mut self.0 {
                // The lower of two that are narrow is narrow.
                Kind::Narrow(windows) => {
                    if let (Some(place), Some(joined)) = (windows.get_mut(to), Narrow::of(joined)) {
                        *place = joined;
                    }
                }
                Kind::Wide(windows) => {
                    if let Some(place) = windows.get_mut(to) {
                        *place = joined;
                    }
                }
            }
        }
        match &mut self.0 {
            Kind::Narrow(windows) => windows.truncate(length.div_ceil(2)),
            Kind::Wide(windows) => windows.truncate(length.div_ceil(2)),
        }
    }
}

fn put<T>(windows: &mut VecDeque<T>, window: T, capacity: usize) {
    if windows.len() == windows.capacity() {
        let room = capacity.saturating_sub(windows.len());
        windows.reserve_exact(room.clamp(1, ROOM));
    }
    windows.push_back(window);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(floor: u64, objects: u32) -> Window {
        Window { floor, objects, allocations: Rough::of(3.0), work: Rough::of(1e9) }
    }

    #[test]
    fn what_is_put_in_comes_out_to_the_byte_narrow_or_wide() {
        assert_eq!((size_of::<Narrow>(), size_of::<Window>()), (10, 16));
        let all = [
            window(0, 0),
            window(0x1234_5678, 9),
            window(u64::from(u32::MAX), 0xffff),
            window(1 << 32, 1),
            window(5, 0x1_0000),
        ];
        let mut windows = Windows::new();
        for (number, window) in all.into_iter().enumerate() {
            windows.push(window, 72);
            assert_eq!(windows.iter().collect::<Vec<_>>(), all[..=number]);
            assert_eq!(windows.back(), Some(window));
            assert_eq!(matches!(windows.0, Kind::Narrow(_)), number < 3);
        }
        windows.halve();
        let floors: Vec<u64> = windows.iter().map(|window| window.floor).collect();
        assert_eq!(floors, [0, u64::from(u32::MAX), 5]);
    }

    #[test]
    fn no_more_room_is_taken_than_windows_can_need() {
        let mut windows = Windows::new();
        for number in 0..500 {
            if windows.len() == 20 {
                windows.pop_front();
            }
            windows.push(window(number, 1), 20);
        }
        let Kind::Narrow(deque) = &windows.0 else { panic!("{windows:?}") };
        assert_eq!(deque.capacity(), 20);
    }
}
