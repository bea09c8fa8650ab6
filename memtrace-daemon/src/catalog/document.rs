//! How functions of the catalog are written: the tables of a TOML document, as they are read.
//!
//! `cuda.toml` says what each key means. Whether what is written makes sense is `check`'s to say.

use memtrace_common::{Family, FunctionId, SizeRule, Success};
use serde::Deserialize;

/// A document of the catalog.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Document {
    pub library: Vec<LibraryRow>,
    pub allocator: Vec<AllocatorRow>,
    pub free: Vec<FreeRow>,
    pub map: Vec<MapRow>,
    pub select: Vec<SelectRow>,
    pub reset: Vec<ResetRow>,
    pub probe: Vec<ProbeRow>,
}

/// A library of memtrace's own catalog.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LibraryRow {
    pub soname: String,
    pub family: FamilyName,
}

/// The families that the catalog's own documents may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FamilyName {
    CudaRuntime,
    CudaDriver,
    Hip,
    Library,
    Alone,
}

impl FamilyName {
    pub(super) const fn family(self) -> Family {
        match self {
            Self::CudaRuntime => Family::CudaRuntime,
            Self::CudaDriver => Family::CudaDriver,
            Self::Hip => Family::Hip,
            Self::Library => Family::Library,
            Self::Alone => Family::Alone,
        }
    }
}

/// A function that gives memory.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllocatorRow {
    /// Its id; of memtrace's own functions alone.
    pub id: Option<FunctionId>,
    /// What the DT_SONAME of its library begins with.
    pub library: String,
    /// Its exported symbol, without version.
    pub symbol: String,
    /// The domain it is booked in.
    pub domain: String,
    /// The name space of its pointers.
    pub pointers: String,
    /// Where its size is.
    pub size: SizeForm,
    /// Where its pointer comes out.
    pub pointer: PointerForm,
    /// What says that it succeeded, where that is not the usual.
    pub success: Option<SuccessForm>,
    /// Whether it gives again what is on the books already, as one more reference.
    #[serde(default)]
    pub again: bool,
    /// Where it says on which device, where that is not the device of its thread.
    pub device: Option<DeviceForm>,
}

/// A function that takes memory back.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FreeRow {
    /// Its id; of memtrace's own functions alone.
    pub id: Option<FunctionId>,
    /// What the DT_SONAME of its library begins with.
    pub library: String,
    /// Its exported symbol, without version.
    pub symbol: String,
    /// The domain that its own counters go to.
    pub domain: String,
    /// The name space of the pointers that it takes.
    pub pointers: String,
    /// The argument that is the pointer.
    #[serde(default)]
    pub argument: u8,
    /// What says that it succeeded, where that is not a status of 0.
    pub success: Option<SuccessForm>,
}

/// A function that maps memory of the name space `physical`, or takes mappings away. Only
/// memtrace's own documents have such.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MapRow {
    pub id: FunctionId,
    pub library: String,
    pub symbol: String,
    /// The argument that is the address.
    pub address: u8,
    /// The argument that is the length.
    pub size: u8,
    /// The argument that is the handle of what is mapped; none for what takes mappings away.
    pub handle: Option<u8>,
}

/// A function that changes the device or the context of its thread. Only memtrace's own documents
/// have such.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SelectRow {
    pub id: FunctionId,
    pub library: String,
    pub symbol: String,
    /// The argument that is the number of a device.
    pub device: Option<u8>,
    /// The argument that is a context.
    pub context: Option<u8>,
    /// The argument that is a context which is put on top of the thread's.
    pub push: Option<u8>,
    /// That the context on top is taken away.
    #[serde(default)]
    pub pop: bool,
}

/// A function that gives back all that is bound to a device. Only memtrace's own documents have
/// such.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ResetRow {
    pub id: FunctionId,
    pub library: String,
    pub symbol: String,
    /// The argument that is the number of the device; none for the device of its thread.
    pub device: Option<u8>,
}

/// Where a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "a device is the number of an argument, or { properties = a }")]
pub enum DeviceForm {
    /// An argument is its number.
    Argument(u8),
    /// An argument points to properties that name it.
    Properties(PropertiesForm),
}

/// The argument that points to the properties of `cuMemCreate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PropertiesForm {
    /// Points to them.
    pub properties: u8,
}

/// A static probe. Only memtrace's own documents have such.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProbeRow {
    pub id: FunctionId,
    pub library: String,
    /// Who named it.
    pub provider: String,
    /// Its name.
    pub name: String,
    /// The domain it is booked in.
    pub domain: String,
    /// The name space of its pointers.
    pub pointers: String,
    /// The argument that is the pointer.
    pub pointer: u8,
    /// The argument that is the size; none for what takes memory back.
    pub size: Option<u8>,
}

/// Where a size is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(
    untagged,
    expecting = "a size is the number of an argument, [a, b], { pitch = a, height = b } or \"none\""
)]
pub enum SizeForm {
    /// An argument.
    Argument(u8),
    /// The product of two.
    Product([u8; 2]),
    /// What one argument points to at return, times another.
    Pitched(PitchedForm),
    /// None, or one that lies in memory in a known way.
    Named(NamedSize),
}

/// The words for a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NamedSize {
    /// Counted only.
    None,
    /// [`SizeRule::PitchedExtent`].
    PitchedExtent,
    /// [`SizeRule::ChannelArray`].
    ChannelArray,
    /// [`SizeRule::ChannelExtent`].
    ChannelExtent,
    /// [`SizeRule::ChannelMipmap`].
    ChannelMipmap,
    /// [`SizeRule::ArrayDescriptor`].
    ArrayDescriptor,
    /// [`SizeRule::Array3dDescriptor`].
    Array3dDescriptor,
    /// [`SizeRule::MipmapDescriptor`].
    MipmapDescriptor,
}

impl NamedSize {
    pub(super) const fn rule(self) -> SizeRule {
        match self {
            Self::None => SizeRule::None,
            Self::PitchedExtent => SizeRule::PitchedExtent,
            Self::ChannelArray => SizeRule::ChannelArray,
            Self::ChannelExtent => SizeRule::ChannelExtent,
            Self::ChannelMipmap => SizeRule::ChannelMipmap,
            Self::ArrayDescriptor => SizeRule::ArrayDescriptor,
            Self::Array3dDescriptor => SizeRule::Array3dDescriptor,
            Self::MipmapDescriptor => SizeRule::MipmapDescriptor,
        }
    }
}

/// The arguments of a pitched size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PitchedForm {
    /// Points to the pitch.
    pub pitch: u8,
    /// Is the height.
    pub height: u8,
}

/// Where a pointer comes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "a pointer is \"return\", { out = a } or { argument = a }")]
pub enum PointerForm {
    /// The return value.
    Named(ReturnForm),
    /// What an argument points to.
    Out(OutForm),
    /// An argument itself.
    Argument(ArgumentForm),
    /// The number of a device.
    Ordinal(OrdinalForm),
}

/// The word for the return value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReturnForm {
    /// It.
    Return,
}

/// The argument of an out-parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutForm {
    /// Points to the pointer.
    pub out: u8,
}

/// The argument that is the pointer of memory that was there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArgumentForm {
    /// Is the pointer.
    pub argument: u8,
}

/// The argument that is the number of a device, which is the pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrdinalForm {
    /// Is the number.
    pub ordinal: u8,
}

/// What says that a call succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SuccessForm {
    /// A status of 0.
    Zero,
    /// A pointer that is not null.
    NotNull,
    /// It cannot fail.
    Always,
}

impl SuccessForm {
    pub(super) const fn success(self) -> Success {
        match self {
            Self::Zero => Success::ZeroStatus,
            Self::NotNull => Success::NonNull,
            Self::Always => Success::Always,
        }
    }
}
