//! What is attached of one file: probes on its functions, and its static probes.

use super::{
    AsFd, Attachment, CoverageRow, Inspection, Libraries, Place, Probed, Prober, Probes, cookie,
    io, probe, usdt_cookie,
};

/// Static probes that are attached: their cookies are forgotten after the link is closed.
pub(super) struct Fired<L> {
    pub(super) link: L,
    pub(super) cookies: Vec<u64>,
}

/// What is attached of a file: probes on its functions, where these are, and its static probes.
pub(super) type Attached<L> = (Option<Probes<L>>, Vec<(u64, u64)>, Option<Fired<L>>);

pub(super) fn cookies(places: &[(Place, u64)]) -> Vec<u64> {
    places.iter().map(|(_, cookie)| *cookie).collect()
}

/// Places with their cookies.
pub(super) fn places(id: u32, wanted: &[Place]) -> Vec<(Place, u64)> {
    let numbered = wanted.iter().zip(0_u16..);
    numbered.map(|(place, n)| (*place, usdt_cookie(cookie(id, place.function), n))).collect()
}

impl<P: Prober> Libraries<P> {
    /// Attaches to what a file has: its functions, of which the kernel may refuse some, and its
    /// static probes, all or none.
    pub(super) fn probe(
        &mut self,
        inspection: &Inspection,
        points: Vec<(u64, u64)>,
        places: &[(Place, u64)],
    ) -> io::Result<Attached<P::Link>> {
        let file = inspection.file.as_fd();
        let fired = if places.is_empty() {
            None
        } else {
            let link = self.prober.attach_static(file, places, None)?;
            Some(Fired { link, cookies: cookies(places) })
        };
        if points.is_empty() {
            return Ok((None, points, fired));
        }
        match probe(&self.prober, file, points) {
            Ok(Probed { probes, points }) => Ok((Some(probes), points, fired)),
            Err(error) => {
                if let Some(Fired { link, cookies }) = fired {
                    drop(link);
                    self.prober.forget_static(&cookies);
                }
                Err(error)
            }
        }
    }

    /// Takes the probes of a file away.
    pub(super) fn release(&mut self, id: u32) -> Option<(CoverageRow, Inspection)> {
        let attachment = self.attached.remove(&id)?;
        let Attachment { probes, fired, demanded, inspection, row, .. } = attachment;
        drop(probes);
        if !demanded.is_empty() {
            drop(demanded);
            let cookies = cookies(&places(id, &self.policy.on_demand(&inspection)));
            self.prober.forget_static(&cookies);
        }
        if let Some(Fired { link, cookies }) = fired {
            drop(link);
            self.prober.forget_static(&cookies);
        }
        Some((row, inspection))
    }
}
