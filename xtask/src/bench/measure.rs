//! Times of runs, their minima, and the table that is printed. Pure: no clock, no processes.

use std::collections::BTreeMap;

use super::tracer::Tracer;

/// Nanoseconds an iteration, of every run.
#[derive(Debug, Default)]
pub struct Samples(BTreeMap<(&'static str, Tracer), Vec<f64>>);

/// What is held against what, and how high it may be.
#[derive(Clone, Copy, Debug)]
pub struct Bar {
    /// Divided by this one's minimum.
    pub base: Tracer,
    /// The highest ratio that passes.
    pub ratio: f64,
}

impl Samples {
    /// One run: its time and its iterations.
    pub fn add(&mut self, name: &'static str, tracer: Tracer, nanoseconds: u64, iterations: u32) {
        // Times are far below 2^53 ns.
        let each = nanoseconds as f64 / f64::from(iterations);
        self.0.entry((name, tracer)).or_default().push(each);
    }

    fn minimum(&self, name: &'static str, tracer: Tracer) -> Option<f64> {
        self.0.get(&(name, tracer))?.iter().copied().reduce(f64::min)
    }

    fn loops(&self) -> Vec<&'static str> {
        let mut names: Vec<_> = self.0.keys().map(|(name, _)| *name).collect();
        names.dedup();
        names
    }

    /// The table: for each loop the minimum under each tracer, in nanoseconds and as a ratio to
    /// the base; and what is over the bar, in words.
    pub fn report(&self, tracers: &[Tracer], bar: Bar) -> (String, Vec<String>) {
        let mut lines = vec![format!(
            "minima, ns an iteration and ratio to {}; bar for memtrace ×{:.2}",
            bar.base.name(),
            bar.ratio
        )];
        let names = tracers.iter().map(|tracer| format!("{:>15}", tracer.name()));
        lines.push(format!("{:8}{:>5}{}", "loop", "runs", names.collect::<String>()));
        let mut over = Vec::new();
        for name in self.loops() {
            let base = self.minimum(name, bar.base);
            let cell = |tracer: &Tracer| match (self.minimum(name, *tracer), base) {
                (Some(time), Some(base)) => {
                    format!("{:>15}", format!("{time:.0} ×{:.2}", time / base))
                }
                _ => format!("{:>15}", "-"),
            };
            let cells: String = tracers.iter().map(cell).collect();
            let runs = self.0.iter().filter(|((own, _), _)| *own == name);
            let fewest = runs.map(|(_, times)| times.len()).min().unwrap_or(0);
            let ratio =
                self.minimum(name, Tracer::Memtrace).zip(base).map(|(time, base)| time / base);
            let word = match ratio {
                Some(ratio) if ratio <= bar.ratio => "holds",
                Some(ratio) => {
                    over.push(format!(
                        "{name}: memtrace costs ×{ratio:.3} of {}, the bar is ×{:.2}",
                        bar.base.name(),
                        bar.ratio
                    ));
                    "OVER"
                }
                None => {
                    over.push(format!("{name}: no run under memtrace or its base"));
                    "?"
                }
            };
            lines.push(format!("{name:8}{fewest:>5}{cells}  {word}"));
        }
        (lines.join("\n"), over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAR: Bar = Bar { base: Tracer::Untraced, ratio: 1.5 };
    const TRACERS: [Tracer; 2] = [Tracer::Untraced, Tracer::Memtrace];

    fn samples(traced: u64) -> Samples {
        let mut samples = Samples::default();
        for (tracer, time) in [(Tracer::Untraced, 1_000), (Tracer::Memtrace, traced)] {
            // The minimum counts, wherever it stands.
            for extra in [700, 0, 300] {
                samples.add("loop", tracer, time + extra, 1);
            }
        }
        samples
    }

    #[test]
    fn minima_are_compared_and_the_bar_itself_holds() {
        let (table, over) = samples(1_500).report(&TRACERS, BAR);
        assert!(over.is_empty(), "{over:?}");
        assert!(table.contains("×1.50  holds"), "{table}");
    }

    #[test]
    fn over_the_bar_is_told() {
        let (table, over) = samples(1_501).report(&TRACERS, BAR);
        assert_eq!(over.len(), 1, "{over:?}");
        assert!(table.contains("OVER"), "{table}");
    }

    #[test]
    fn a_loop_that_never_ran_under_memtrace_does_not_pass() {
        let mut samples = Samples::default();
        samples.add("loop", Tracer::Untraced, 1_000, 1);
        assert_eq!(samples.report(&TRACERS, BAR).1.len(), 1);
    }
}
