//! CUDA's runtime and driver libraries.
//!
//! Prototypes: CUDA Runtime API and CUDA Driver API reference, "Memory Management".

use memtrace_common::{Domain, Family, PointerClass};

use super::Library;
use super::row::{Form, Row};

const RUNTIME: Library = Library { name: "libcudart", soname_prefix: "libcudart.so" };
const DRIVER: Library = Library { name: "libcuda", soname_prefix: "libcuda.so" };

/// The libraries of this file.
pub(super) const LIBRARIES: [Library; 2] = [RUNTIME, DRIVER];

/// All rows.
pub(super) fn rows() -> Vec<Row> {
    use Domain::{Cuda, Managed, Pinned};
    use Form::{Free, OutPitched, OutPointer};
    use PointerClass::{Device, Pinned as Host};
    vec![
        runtime("cudaMalloc", Cuda, Device, OutPointer { size: 1 }),
        runtime("cudaMallocManaged", Managed, Device, OutPointer { size: 1 }),
        runtime("cudaMallocPitch", Cuda, Device, OutPitched { pitch: 1, height: 3 }),
        runtime("cudaFree", Cuda, Device, Free),
        runtime("cudaMallocHost", Pinned, Host, OutPointer { size: 1 }),
        runtime("cudaHostAlloc", Pinned, Host, OutPointer { size: 1 }),
        runtime("cudaFreeHost", Pinned, Host, Free),
        driver("cuMemAlloc_v2", Cuda, Device, OutPointer { size: 1 }),
        driver("cuMemAllocManaged", Managed, Device, OutPointer { size: 1 }),
        driver("cuMemFree_v2", Cuda, Device, Free),
        driver("cuMemAllocHost_v2", Pinned, Host, OutPointer { size: 1 }),
        driver("cuMemHostAlloc", Pinned, Host, OutPointer { size: 1 }),
        driver("cuMemFreeHost", Pinned, Host, Free),
    ]
}

const fn runtime(symbol: &'static str, domain: Domain, class: PointerClass, form: Form) -> Row {
    Row { library: RUNTIME, symbol, domain, class, family: Family::CudaRuntime, form }
}

const fn driver(symbol: &'static str, domain: Domain, class: PointerClass, form: Form) -> Row {
    Row { library: DRIVER, symbol, domain, class, family: Family::CudaDriver, form }
}
