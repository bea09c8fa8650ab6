//! Which functions are the allocator (or the tracer) rather than its user, as data. A headline
//! names the first frame that is not one of these.

use crate::snapshot::FrameKind;

/// Kernel symbols. A `*` at the end stands for anything.
const KERNEL: &[&str] = &[
    // The kmalloc family and what only passes a request on to it.
    "__kmalloc*",
    "kmalloc_*",
    "__kmem_cache_alloc*",
    "kmem_cache_alloc*",
    "___slab_alloc*",
    "__slab_alloc*",
    "slab_alloc*",
    "allocate_slab*",
    "new_slab*",
    "krealloc*",
    "kcalloc*",
    "kvmalloc*",
    "kvrealloc*",
    "__kvmalloc*",
    "kmemdup*",
    "__kmemdup*",
    "kvmemdup*",
    "kstrdup*",
    "kstrndup*",
    "kasprintf*",
    "kvasprintf*",
    "memdup_user*",
    "vmemdup_user*",
    "devm_kmalloc*",
    "devm_kmemdup*",
    // The tracer's own way in.
    "__traceiter_*",
    "__bpf_trace_*",
    "bpf_trace_run*",
    "bpf_trampoline_*",
    "bpf_prog_*",
];

/// User symbols, demangled. A `*` at the end stands for anything.
const NATIVE: &[&str] = &[
    // C.
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "memalign",
    "aligned_alloc",
    "posix_memalign",
    "valloc",
    "pvalloc",
    "strdup",
    "strndup",
    "__strdup",
    "__strndup",
    "__libc_malloc",
    "__libc_calloc",
    "__libc_realloc",
    "__libc_memalign",
    "__GI___libc_*alloc",
    "_int_malloc",
    "_int_realloc",
    "_int_memalign",
    "_mid_memalign",
    "sysmalloc*",
    "je_*alloc*",
    "mi_*alloc*",
    "tc_*alloc*",
    // C++ and Rust.
    "operator new*",
    "alloc::alloc::*",
    "alloc::raw_vec::*",
    "__rust_alloc*",
    "__rdl_alloc*",
    "__rg_alloc*",
    // CUDA's runtime and driver.
    "cudaMalloc*",
    "cudaHostAlloc*",
    "cudaHostRegister*",
    "cuMemAlloc*",
    "cuMemHostAlloc*",
    "cuMemHostRegister*",
    "cuMemCreate*",
    "cuArrayCreate*",
    "cuArray3DCreate*",
    "cuMipmappedArrayCreate*",
    // Pools: "the pool grew here" is not "this frame keeps it".
    "c10::cuda::CUDACachingAllocator::*",
    "c10::CachingHostAllocator*",
    "at::cuda::CachingHostAllocator*",
    "c10::alloc_cpu*",
    "c10::DefaultCPUAllocator::*",
    "rmm::mr::*",
    // CPython.
    "PyMem_*",
    "_PyMem_*",
    "PyObject_Malloc",
    "_PyObject_Malloc*",
    "PyObject_Realloc",
    "PyObject_Calloc",
    "pymalloc_alloc",
];

/// Says of a symbol whether it belongs to an allocator.
#[derive(Clone, Debug, Default)]
pub struct Allocators {
    extra: Vec<String>,
}

impl Allocators {
    /// The built-in list and patterns of one's own, for kernel and user symbols alike; a `*`
    /// stands for anything.
    #[must_use]
    pub fn with(extra: Vec<String>) -> Self {
        Self { extra }
    }

    /// Whether this symbol is an allocator's.
    #[must_use]
    pub fn holds(&self, kind: FrameKind, symbol: &str) -> bool {
        let list = if kind == FrameKind::Kernel { KERNEL } else { NATIVE };
        list.iter().any(|pattern| fits(pattern, symbol))
            || self.extra.iter().any(|pattern| fits(pattern, symbol))
    }
}

/// Whether a pattern with any number of `*` fits a whole text.
fn fits(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some((_, behind)) = rest.split_once(part) else { return false };
        rest = behind;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocators_are_told_from_their_users() {
        let list = Allocators::default();
        for symbol in ["__kmalloc_noprof", "kmalloc_trace", "kmem_cache_alloc_noprof"] {
            assert!(list.holds(FrameKind::Kernel, symbol), "{symbol}");
        }
        for symbol in ["alloc_msg", "load_msg", "kmem_cache_create", "malloc"] {
            assert!(!list.holds(FrameKind::Kernel, symbol), "{symbol}");
        }
        for symbol in ["malloc", "operator new(unsigned long)", "cudaMallocManaged", "je_malloc"] {
            assert!(list.holds(FrameKind::Native, symbol), "{symbol}");
        }
        for symbol in ["malloc_trim", "encode_prompt", "cudaLaunchKernel", "__kmalloc_noprof"] {
            assert!(!list.holds(FrameKind::Native, symbol), "{symbol}");
        }
    }

    #[test]
    fn patterns_of_ones_own_are_added() {
        let list = Allocators::with(vec!["our::*::pool".into()]);
        assert!(list.holds(FrameKind::Native, "our::big::pool"));
        assert!(!list.holds(FrameKind::Native, "our::big::pool2"));
        assert!(list.holds(FrameKind::Native, "calloc"));
    }
}
