//! What the BPF programs write by aya-log, on its way to the log of the daemon. Built only with
//! the feature `bpf-log`: counters and typed records say what a log would.

use std::time::Duration;

use aya::Ebpf;
use aya_log::EbpfLogger;

/// How often what was written is passed on; nobody is woken by it.
const EVERY: Duration = Duration::from_millis(100);

/// Passes on what the programs write for as long as the runtime runs.
pub(super) fn pass_on(ebpf: &mut Ebpf) {
    let (logger, runtime) = (EbpfLogger::init(ebpf), tokio::runtime::Handle::try_current());
    let (mut logger, runtime) = match (logger, runtime) {
        (Ok(logger), Ok(runtime)) => (logger, runtime),
        (Err(error), _) => {
            return tracing::warn!("what the BPF programs write is not seen: {error}");
        }
        (_, Err(error)) => {
            return tracing::warn!("what the BPF programs write is not seen: {error}");
        }
    };
    runtime.spawn(async move {
        let mut timer = tokio::time::interval(EVERY);
        loop {
            timer.tick().await;
            logger.flush();
        }
    });
}
