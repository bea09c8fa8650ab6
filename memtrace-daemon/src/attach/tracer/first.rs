//! What the kernel side is told before it is loaded, and the first values of its maps.

use aya::{
    Ebpf,
    maps::{Array, MapData},
};
use memtrace_common::{Control, FunctionSpec, Totals, TotalsKey, tunables};

use super::access::{insert, typed_mut};
use crate::{
    attach::{
        btf::KernelLayout, error::TracerError, options::Options, plain::Plain, policy::is_uncounted,
    },
    catalog,
};

/// Values of the kernel side's globals.
pub(super) fn globals(layout: &KernelLayout, options: &Options) -> Vec<(&'static str, u64)> {
    let limit = |entries: u32| u64::from(entries) * tunables::LIVE_FILL_PERCENT / 100;
    let mut globals = layout.globals();
    globals.extend([
        ("SELF_TGID", u64::from(std::process::id())),
        ("ONLY_TRACED", u64::from(options.only_traced)),
        ("EXACT", u64::from(options.exact)),
        ("POLICY_ACTIVE", u64::from(options.policy_active)),
        ("POLICY_DEFAULT_EXCLUDE", u64::from(options.policy_default_exclude)),
        ("SAMPLE_QUANTUM", options.sample_quantum_bytes),
        ("AGE_SHIFT", options.age_shift),
        ("KERNEL_LIVE_LIMIT", limit(options.sizes.kernel_live_entries)),
        ("CALL_LIVE_LIMIT", limit(options.sizes.call_live_entries)),
        ("ACCOUNT_LIMIT", u64::from(options.sizes.accounts)),
        ("COPY_KIB_NS", options.copy_kib_ns()),
        ("COPY_BURST_NS", options.copy_burst_ns()),
        ("RING_WAKEUP_BYTES", u64::from(options.sizes.ring_bytes) / 8),
        ("RING_COPY_BYTES", u64::from(options.sizes.ring_bytes) / 2),
        ("LIVE_BATCH", options.live_batch()),
    ]);
    globals
}

/// First values of the counters, the descriptions of functions, and the rows of totals that
/// take what finds no row.
pub(super) fn first_values(ebpf: &mut Ebpf, options: &Options) -> Result<(), TracerError> {
    let map = |name| move |source| TracerError::Map { name, source };
    let first = Control { next_serial: 1, next_id: 1, next_slot: 1, ..Control::default() };
    let mut control: Array<&mut MapData, Plain<Control>> = typed_mut(ebpf, "mt_control")?;
    control.set(0, Plain(first), 0).map_err(map("mt_control"))?;
    let mut functions: Array<&mut MapData, Plain<FunctionSpec>> = typed_mut(ebpf, "mt_functions")?;
    for function in catalog::booked() {
        let uncounted = u8::from(is_uncounted(function, &options.domains));
        let spec = FunctionSpec { uncounted, ..function.spec };
        functions.set(u32::from(function.id), Plain(spec), 0).map_err(map("mt_functions"))?;
    }
    for function in catalog::booked() {
        let key = TotalsKey { space: 0, function: u32::from(function.id) };
        insert(ebpf, "mt_totals", Plain(key), Plain(Totals::default()))?;
    }
    Ok(())
}
