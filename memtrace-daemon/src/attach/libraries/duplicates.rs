//! Two attachments that are one file, seen twice: overlay mounts show it on several devices.

use super::{Libraries, Prober, State, coverage};

impl<P: Prober> Libraries<P> {
    /// Takes one of two attachments away that fire for the same call: two views of one file.
    /// Whether one was taken away.
    ///
    /// The kernel side cannot tell this from a process that maps a copy where another library
    /// was, so both must agree in owner, size, time of change, build id and offsets.
    pub fn duplicate(&mut self, first: u32, second: u32) -> bool {
        let (Some(one), Some(other)) = (self.attached.get(&first), self.attached.get(&second))
        else {
            return false;
        };
        let twins = one.inspection.twin == other.inspection.twin
            && one.inspection.description.build_id == other.inspection.description.build_id
            && one.inspection.points.points == other.inspection.points.points
            && one.inspection.places == other.inspection.places;
        // One that a person named stays.
        let (keep, drop) =
            if other.named && !one.named { (second, first) } else { (first, second) };
        let kept = self.attached.get(&keep).and_then(|kept| kept.row.path.clone());
        if !twins || first == second {
            return false;
        }
        let Some((row, inspection)) = self.release(drop) else { return false };
        let reason = format!("the same file as {}, probed there", kept.unwrap_or_default());
        let row = coverage::refused(row, reason);
        self.files.insert(inspection.identity, State::Duplicate(keep, Box::new(row)));
        true
    }
}
