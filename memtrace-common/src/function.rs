//! Allocator functions as data: how the generic programs read a call.

use bytemuck::{Pod, Zeroable};

use crate::{Domain, assert_size};

/// Index of a function in the catalog and in the map of [`FunctionSpec`]s.
pub type FunctionId = u16;

/// Whether a function gives memory or takes it back.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionKind {
    /// Gives memory.
    Allocate = 1,
    /// Takes memory back.
    Free = 2,
    /// Maps memory that another function gave, which then stays while it is mapped.
    Map = 3,
    /// Takes mappings away.
    Unmap = 4,
    /// Changes the device or the context that its thread is in; [`DeviceRule`] says how.
    Select = 5,
    /// Gives back all that is bound to the primary context of a device.
    Reset = 6,
}

/// What a call says of devices and contexts, with argument `device_argument`.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceRule {
    /// Nothing: it is about the device that its thread is in.
    Current = 0,
    /// The argument is the number of a device.
    Ordinal = 1,
    /// The argument points to the properties of `cuMemCreate`, which name a device.
    Properties = 2,
    /// The argument is the context that the thread is in from then on; none leaves the one on top.
    Context = 3,
    /// The argument is a context that is put on top of the thread's.
    Push = 4,
    /// The context on top is taken away.
    Pop = 5,
}

/// Where the size of an allocation comes from. Arguments count from 0.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeRule {
    /// No size: a free, or what is only counted.
    None = 0,
    /// Argument `a`.
    Argument = 1,
    /// Argument `a` × argument `b`.
    Product = 2,
    /// The 8 bytes that argument `a` points to, read at return, × argument `b`.
    ProductAtReturn = 3,
    /// As of `f(pitched *out, extent)`: the pitch behind the pointer in `*out`, read at return, ×
    /// height × depth of an extent that is passed in memory.
    PitchedExtent = 4,
    /// As of `f(out, channels *, width, height)`: an array by its geometry and its texels. This and
    /// what follows reads the description that argument 1 points to.
    ChannelArray = 5,
    /// As of `f(out, channels *, extent, flags)`, the extent passed in memory.
    ChannelExtent = 6,
    /// As of `f(out, channels *, extent, levels, flags)`.
    ChannelMipmap = 7,
    /// As of `f(out, array_descriptor *)`.
    ArrayDescriptor = 8,
    /// As of `f(out, array3d_descriptor *)`.
    Array3dDescriptor = 9,
    /// As of `f(out, array3d_descriptor *, levels)`.
    MipmapDescriptor = 10,
}

/// Where the pointer is: of what was given, or of what is to be freed.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointerRule {
    /// The return value.
    Return = 1,
    /// The 8 bytes that an argument points to, read at return.
    OutParameter = 2,
    /// An argument itself: of a free, or of memory that its owner already had.
    Argument = 3,
    /// The number of a device, and 1: an argument of 32 bits that may be 0.
    Ordinal = 4,
}

/// What says that a call succeeded.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Success {
    /// A 32-bit status of 0.
    ZeroStatus = 1,
    /// A pointer that is not null.
    NonNull = 2,
    /// The function cannot fail (void).
    Always = 3,
}

/// Pointers of one class live in one name space: a free of the class finds them.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointerClass {
    /// Device and managed memory.
    Device = 1,
    /// Page-locked host memory.
    Pinned = 2,
    /// The malloc family.
    Heap = 3,
    /// Anonymous mappings.
    Mmap = 4,
    /// Host memory that was page-locked where it was.
    Registered = 5,
    /// Arrays and mipmapped arrays, by handle.
    Array = 6,
    /// Device memory of other processes, mapped here. Opened again, it is one more reference.
    Ipc = 7,
    /// Device memory without an address, by handle. Mapped, it has one more reference.
    Physical = 8,
    /// Where such memory is mapped: no memory of its own.
    Mapping = 9,
    /// Contexts that the program has made, by handle.
    Context = 10,
    /// Primary contexts, by the number of their device and 1. Retained again, it is one more
    /// reference.
    Primary = 11,
    /// Streams.
    Stream = 12,
    /// Events.
    Event = 13,
    /// Graphs.
    Graph = 14,
    /// Graphs that can be launched.
    GraphExec = 15,
    /// Pools that memory can be taken from in stream order.
    MemoryPool = 16,
    /// Memory of other interfaces, by handle.
    External = 17,
    /// What libraries make: their handles, descriptors and communicators.
    Object = 18,
    /// Tensors in PyTorch's pool.
    Tensor = 32,
}

impl PointerClass {
    /// The first name space of pointers that the configuration names; these have no name here.
    pub const FIRST_DECLARED: u8 = 64;
}

/// Groups of functions for folding nested calls; the value is a bit.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// None: calls that are never the same memory as others under another name.
    Alone = 0,
    /// The CUDA runtime library.
    CudaRuntime = 1,
    /// The CUDA driver library.
    CudaDriver = 2,
    /// The malloc family.
    Heap = 4,
    /// Anonymous mappings.
    Mmap = 8,
    /// The HIP runtime library.
    Hip = 16,
    /// Functions that the configuration declares.
    Declared = 32,
    /// Libraries above a runtime library.
    Library = 64,
}

impl Family {
    /// What coverage calls libraries of this family.
    #[must_use]
    pub const fn layer(self) -> &'static str {
        match self {
            Self::Alone => "usdt",
            Self::CudaRuntime => "runtime",
            Self::CudaDriver => "driver",
            Self::Heap => "heap",
            Self::Mmap => "mmap",
            Self::Hip => "hip",
            Self::Declared => "declared",
            Self::Library => "library",
        }
    }
}

/// Memory that leaves the books when its last reference was taken back.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Given again, it is one more reference.
    Given = 1,
    /// Mapped, it is one more reference; given again, it is other memory.
    Mapped = 2,
}

/// How the generic programs read a call of one function.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct FunctionSpec {
    /// [`FunctionKind`]; 0 is an unused row.
    pub kind: u8,
    /// [`Domain`] that an allocation is booked in (of a free: that its own counters go to).
    pub domain: u8,
    /// [`PointerClass`].
    pub class: u8,
    /// [`SizeRule`].
    pub size_rule: u8,
    /// First argument of the size rule.
    pub size_a: u8,
    /// Second argument of the size rule.
    pub size_b: u8,
    /// [`PointerRule`].
    pub pointer_rule: u8,
    /// Argument of the pointer rule.
    pub pointer_argument: u8,
    /// [`Success`].
    pub success: u8,
    /// [`Family`] that the function belongs to.
    pub family: u8,
    /// Families whose calls, nested in a call of this one, fold into it when the pointer is the same.
    pub folds: u8,
    /// [`Counted`]; 0 for memory that is given once and taken back once.
    pub counted: u8,
    /// [`DeviceRule`].
    pub device_rule: u8,
    /// Argument of the device rule.
    pub device_argument: u8,
    /// 1 where what it gives is gone with the context that it was given in.
    pub bound: u8,
    /// 1 where nothing of it is counted: it is followed for what others are bound to.
    pub uncounted: u8,
}
assert_size!(FunctionSpec, 16);

impl FunctionSpec {
    /// The domain.
    #[must_use]
    pub fn domain(&self) -> Option<Domain> {
        Domain::from_u8(self.domain)
    }
}

/// The attach cookie of a probe: which attachment of which function fired.
#[must_use]
pub const fn cookie(attachment: u32, function: FunctionId) -> u64 {
    ((attachment as u64) << 32) | function as u64
}

/// The attachment in a cookie: one per (file, load of the programs).
#[must_use]
pub const fn cookie_attachment(cookie: u64) -> u32 {
    (cookie >> 32) as u32
}

/// The function in a cookie.
#[must_use]
pub const fn cookie_function(cookie: u64) -> FunctionId {
    (cookie & 0xffff) as FunctionId
}

/// The kmalloc family: not attached through the catalog, but on the books like any function.
pub const KMALLOC: FunctionId = 1;
/// Named slab caches.
pub const KMEM_CACHE_ALLOC: FunctionId = 2;
/// The first id of a library function.
pub const FIRST_LIBRARY_FUNCTION: FunctionId = 16;
/// The first id of a static probe.
pub const FIRST_STATIC_PROBE: FunctionId = 448;
/// The first id of a function that the configuration declares. Only the daemon that read it knows
/// what it stands for.
pub const FIRST_DECLARED_FUNCTION: FunctionId = 512;
