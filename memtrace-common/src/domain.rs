//! Domains: kinds of memory, each with books of its own that are never added to another's.

/// One kind of memory. The discriminant is what maps and records carry.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Domain {
    /// Slab memory: kmalloc and, where asked for, named caches. Bytes the slab really gave.
    Kernel = 0,
    /// Device memory. Requested bytes; pitched allocations by pitch × height.
    Cuda = 1,
    /// Memory that migrates between host and device. Requested bytes.
    Managed = 2,
    /// Page-locked host memory. Requested bytes.
    Pinned = 3,
    /// Device memory opened from another process: borrowed, never in anybody's sum.
    CudaIpc = 4,
    /// Tensors inside PyTorch's pool: a view into `Cuda`.
    Torch = 5,
    /// Streams, events, contexts, …: counts only.
    Handles = 6,
    /// The malloc family. Requested bytes.
    Heap = 7,
    /// Anonymous mappings. Bytes in whole pages.
    Mmap = 8,
}

impl Domain {
    /// All domains, in the order of their discriminants.
    pub const ALL: [Self; 9] = [
        Self::Kernel,
        Self::Cuda,
        Self::Managed,
        Self::Pinned,
        Self::CudaIpc,
        Self::Torch,
        Self::Handles,
        Self::Heap,
        Self::Mmap,
    ];

    /// The name that the command line, JSON and metrics use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Cuda => "cuda",
            Self::Managed => "managed",
            Self::Pinned => "pinned",
            Self::CudaIpc => "cuda_ipc",
            Self::Torch => "torch",
            Self::Handles => "handles",
            Self::Heap => "heap",
            Self::Mmap => "mmap",
        }
    }

    /// Whether its books are numbers of objects alone, without bytes.
    #[must_use]
    pub const fn is_counted(self) -> bool {
        matches!(self, Self::CudaIpc | Self::Handles)
    }

    /// The domain with this discriminant.
    #[must_use]
    pub fn from_u8(value: u8) -> Option<Self> {
        Self::ALL.get(usize::from(value)).copied()
    }

    /// The domain of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|domain| domain.name() == name)
    }
}
