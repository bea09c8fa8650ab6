//! Which functions are the allocator (or the tracer) rather than its user, as data. A headline
//! names the first frame that is not one of these.

use crate::snapshot::{Frame, FrameKind};

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

/// User symbols, demangled. A `*` stands for anything. Only what hands memory on to its caller:
/// a function that decides to need memory is the user's, whichever library it is in.
const NATIVE: &[&str] = &[
    // C, and what glibc has inside.
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
    "asprintf",
    "vasprintf",
    "__strdup",
    "__strndup",
    "__vasprintf_internal",
    "__posix_memalign",
    "__libc_malloc*",
    "__libc_calloc*",
    "__libc_realloc*",
    "__libc_memalign*",
    "__libc_valloc",
    "__libc_pvalloc",
    "__libc_reallocarray",
    "__GI___*alloc*",
    "__GI___*strdup",
    "__GI___*memalign",
    "_int_malloc*",
    "_int_realloc*",
    "_int_memalign*",
    "_mid_memalign*",
    "sysmalloc*",
    "tcache_*",
    "malloc_hook_ini",
    "malloc_consolidate",
    "arena_get2*",
    "new_heap",
    // jemalloc (also as Rust links it), mimalloc, tcmalloc.
    "je_*",
    "_rjem_*",
    "mi_*",
    "_mi_*",
    "tc_*alloc*",
    "tc_memalign*",
    "tc_new*",
    "tcmalloc::*",
    "(anonymous namespace)::do_*alloc*",
    // C++.
    "operator new*",
    "std::allocator<*",
    "std::allocator_traits<*",
    "std::__new_allocator<*",
    "std::__allocate*",
    "std::__detail::_Hashtable_alloc<*",
    "std::pmr::*",
    "std::*::_M_*alloc*",
    "std::*::_M_*append*",
    "std::*::_M_*assign*",
    "std::*::_M_*create*",
    "std::*::_M_*insert*",
    "__gnu_cxx::*allocator<*",
    // Rust.
    "alloc::alloc::*",
    "<alloc::alloc::Global as *",
    "alloc::raw_vec::*",
    "<alloc::raw_vec::*",
    "alloc::vec::from_elem*",
    "<T as alloc::vec::spec_from_elem::*",
    "alloc::vec::Vec<*>::with_capacity*",
    "alloc::vec::Vec<*>::reserve*",
    "alloc::boxed::Box<*>::new*",
    "hashbrown::raw::*",
    "std::alloc::*",
    "<std::alloc::System as *",
    "std::sys::alloc::*",
    "__rust_alloc*",
    "__rust_realloc*",
    "__rustc*::__rust_*alloc*",
    "__rdl_*alloc*",
    "__rg_*alloc*",
    // CUDA's runtime, with what it has inside, and driver; HIP.
    "cudaMalloc*",
    "cudaHostAlloc*",
    "cudaHostRegister*",
    "cudart::*",
    "__cudart*",
    "libcudart_static_*",
    "cuMemAlloc*",
    "cuMemHostAlloc*",
    "cuMemHostRegister*",
    "cuMemCreate*",
    "cuArrayCreate*",
    "cuArray3DCreate*",
    "cuMipmappedArrayCreate*",
    "hipMalloc*",
    "hipHostMalloc*",
    "hipHostAlloc*",
    "hipHostRegister*",
    "hipMemAlloc*",
    "hipMemCreate*",
    "hipArrayCreate*",
    "hipArray3DCreate*",
    "hipMipmappedArrayCreate*",
    // Pools: "the pool grew here" is not "this frame keeps it". PyTorch's, with the way from an
    // operator to an empty tensor; the operator itself is the user.
    "c10::cuda::CUDACachingAllocator::*",
    "c10::cuda::CUDAMallocAsync*",
    "c10::CachingDeviceAllocator*",
    "c10::CachingHostAllocator*",
    "c10::Allocator::*",
    "c10::StorageImpl::*",
    "c10::alloc_cpu*",
    "c10::DefaultCPUAllocator::*",
    "c10::DefaultMobileCPUAllocator::*",
    "at::cuda::CachingHostAllocator*",
    "at::CachingHostAllocator*",
    "at::detail::empty_*",
    "at::detail::_empty_*",
    "*at::detail::_empty_*",
    "at::native::empty*",
    "at::empty*",
    "at::_ops::empty*",
    "at::(anonymous namespace)::*empty*",
    "at::native::zeros*",
    "at::zeros*",
    "at::_ops::zeros*",
    "c10::impl::wrap_kernel_functor_*",
    "c10::Dispatcher::*",
    "c10::KernelFunction::*",
    // RAPIDS and CuPy (written in Cython).
    "rmm::mr::*",
    "rmm::device_buffer::*",
    "rmm::device_uvector<*",
    "rmm::_detail::*",
    "__pyx_*4cupy_4cuda_6memory*",
    "__pyx_*3rmm_*memory_resource*",
    // CUB and Thrust, whose namespaces carry versions.
    "cub::*CachingDeviceAllocator::*",
    "thrust::*::mr::*",
    "thrust::mr::*",
    "thrust::*allocator*",
    "thrust::*malloc*",
    // NCCL, whose templates are written with the type that they return.
    "*ncclCudaMalloc*",
    "*ncclCudaCalloc*",
    "*ncclCudaHostCalloc*",
    "*ncclCalloc*",
    "*ncclRealloc*",
    "*ncclCuMemAlloc*",
    "*ncclCuMemHostAlloc*",
    // onnxruntime, TensorFlow (tsl) and XLA's executor, ggml.
    "onnxruntime::BFCArena::*",
    "onnxruntime::StreamAwareArena::*",
    "onnxruntime::StreamAwareBFCArena::*",
    "onnxruntime::CUDA*Allocator::*",
    "onnxruntime::CPUAllocator::*",
    "onnxruntime::IAllocator::*",
    "onnxruntime::AllocatorDefaultAlloc*",
    "onnxruntime::Tensor::Tensor*",
    "onnxruntime::Tensor::InitOrtValue*",
    "*::BFCAllocator::*",
    "*::GPUBFCAllocator::*",
    "*::GpuCudaMallocAsyncAllocator::*",
    "tsl::*SubAllocator::*",
    "tensorflow::*SubAllocator::*",
    "tensorflow::OpKernelContext::allocate_*",
    "stream_executor::*::Allocate*",
    "stream_executor::*::HostMemoryAllocate*",
    "stream_executor::*::DeviceAllocate*",
    "ggml_aligned_malloc*",
    "ggml_backend_*alloc_buffer*",
    "ggml_backend_alloc_*",
    "ggml_cuda_device_malloc*",
    "ggml_cuda_pool*::alloc*",
    "ggml_gallocr_*",
    // CPython.
    "PyMem_*",
    "_PyMem_*",
    "PyObject_Malloc",
    "_PyObject_Malloc*",
    "PyObject_Realloc",
    "_PyObject_Realloc*",
    "PyObject_Calloc",
    "_PyObject_Calloc*",
    "_PyObject_New*",
    "_PyObject_GC_New*",
    "_PyObject_GC_Resize",
    "PyType_GenericAlloc",
    "_PyType_AllocNoTrack",
    "gc_alloc",
    "pymalloc_alloc",
];

/// Code that only carries a call from one language into another: nobody's own, like an
/// allocator. libffi, ctypes and cffi.
const GLUE: &[&str] = &[
    "ffi_call*",
    "ffi_closure_*",
    "_ctypes_callproc",
    "_call_function_pointer",
    "PyCFuncPtr_call",
    "cdata_call",
];

/// How CPython gets from a Python function to one in C. It is the nearest that a stack has to
/// the user's code where Python functions have no names, and stands in their way where they do.
const INTERPRETER: &[&str] = &[
    "_PyEval_*",
    "PyEval_*",
    "_PyObject_MakeTpCall*",
    "_PyObject_*Call*",
    "PyObject_*Call*",
    "PyObject_Vectorcall*",
    "_PyObject_Vectorcall*",
    "_PyVectorcall*",
    "PyVectorcall*",
    "_PyFunction_Vectorcall*",
    "_PyCFunction_*",
    "cfunction_*",
    "method_vectorcall*",
    "builtin_*",
    "object_vacall",
    "py_trampoline_evaluator",
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
            || kind == FrameKind::Native && GLUE.iter().any(|pattern| fits(pattern, symbol))
            || self.extra.iter().any(|pattern| fits(pattern, symbol))
    }
}

/// Marks what lies between an allocator and the Python function that called it, where there is
/// one, so that the function is the headline and not the interpreter. Innermost first.
pub fn mark_interpreter(frames: &mut [Frame]) {
    let Some(python) = frames.iter().position(|frame| frame.kind == FrameKind::Python) else {
        return;
    };
    let own = |frame: &Frame| {
        let symbol = frame.symbol.as_deref().unwrap_or_default();
        !frame.allocator && !INTERPRETER.iter().any(|pattern| fits(pattern, symbol))
    };
    let inside = frames.get_mut(..python).unwrap_or_default();
    if !inside.iter().any(own) {
        inside.iter_mut().for_each(|frame| frame.allocator = true);
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
        for symbol in [
            "__GI___libc_malloc",
            "_rjem_je_arena_tcache_fill_small",
            "std::vector<int, std::allocator<int> >::_M_realloc_insert<int const&>",
            "<alloc::alloc::Global as core::alloc::Allocator>::allocate",
            "__rustc[1a2b]::__rust_alloc",
            "cudart::cudaApiMalloc(void**, unsigned long)",
            "c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::malloc(void**)",
            "at::native::empty_cuda(c10::ArrayRef<long>)",
            "__pyx_f_4cupy_4cuda_6memory_16SingleDeviceMemoryPool__malloc",
            "cub::CUB_200200_500_NS::CachingDeviceAllocator::DeviceAllocate(int)",
            "ncclResult_t ncclCudaCallocDebug<char>(char**, unsigned long)",
            "tsl::BFCAllocator::Extend(unsigned long, unsigned long)",
            "onnxruntime::CUDAPinnedAllocator::Alloc(unsigned long)",
            "ffi_call_unix64",
        ] {
            assert!(list.holds(FrameKind::Native, symbol), "{symbol}");
        }
        for symbol in [
            "malloc_trim",
            "encode_prompt",
            "cudaLaunchKernel",
            "__kmalloc_noprof",
            "at::native::convolution(at::Tensor const&)",
            "ncclCommInitRank",
            "onnxruntime::InferenceSession::Initialize()",
            "std::thread::_State_impl<main>::_M_run()",
            "_PyEval_EvalFrameDefault",
            "rmm_user",
            "ours::empty",
        ] {
            assert!(!list.holds(FrameKind::Native, symbol), "{symbol}");
        }
    }

    #[test]
    fn the_interpreter_is_passed_over_only_on_the_way_to_a_python_function() {
        let native = |symbol: &str| Frame { symbol: Some(symbol.into()), ..Frame::default() };
        let python = Frame { kind: FrameKind::Python, ..native("load") };
        let marks = |frames: &[Frame]| {
            let mut frames = frames.to_vec();
            mark_interpreter(&mut frames);
            frames.iter().map(|frame| frame.allocator).collect::<Vec<_>>()
        };
        let (call, eval) = (native("_PyObject_MakeTpCall"), native("_PyEval_EvalFrameDefault"));
        let ffi = Frame { allocator: true, ..native("ffi_call_int") };
        let way = [ffi.clone(), call, eval.clone(), python.clone(), eval.clone(), python.clone()];
        assert_eq!(marks(&way), [true, true, true, false, false, false]);
        assert_eq!(marks(&[ffi.clone(), eval.clone()]), [true, false]);
        // An extension's own function is the user's.
        assert_eq!(marks(&[ffi, native("encode"), eval, python])[1..], [false; 3]);
    }

    #[test]
    fn patterns_of_ones_own_are_added() {
        let list = Allocators::with(vec!["our::*::pool".into()]);
        assert!(list.holds(FrameKind::Native, "our::big::pool"));
        assert!(!list.holds(FrameKind::Native, "our::big::pool2"));
        assert!(list.holds(FrameKind::Native, "calloc"));
    }
}
