//! Programs and maps by name, with the type that they are known to have.

use aya::{
    Ebpf, Pod,
    maps::{HashMap, Map, MapData, MapError},
    programs::Program,
};

use crate::attach::error::TracerError;

/// The loaded program of this name and type.
pub(super) fn program<'a, P>(
    ebpf: &'a mut Ebpf,
    name: &'static str,
) -> Result<&'a mut P, TracerError>
where
    &'a mut P: TryFrom<&'a mut Program>,
{
    ebpf.program_mut(name)
        .and_then(|program| program.try_into().ok())
        .ok_or(TracerError::Absent(name))
}

/// A map, to be read.
pub(super) fn typed<'a, M>(ebpf: &'a Ebpf, name: &'static str) -> Result<M, TracerError>
where
    M: TryFrom<&'a Map, Error = MapError>,
{
    let map = ebpf.map(name).ok_or(TracerError::Absent(name))?;
    M::try_from(map).map_err(|source| TracerError::Map { name, source })
}

/// A map, to be written.
pub(super) fn typed_mut<'a, M>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<M, TracerError>
where
    M: TryFrom<&'a mut Map, Error = MapError>,
{
    let map = ebpf.map_mut(name).ok_or(TracerError::Absent(name))?;
    M::try_from(map).map_err(|source| TracerError::Map { name, source })
}

pub(super) fn insert<K: Pod, V: Pod>(
    ebpf: &mut Ebpf,
    name: &'static str,
    key: K,
    value: V,
) -> Result<(), TracerError> {
    let mut map: HashMap<&mut MapData, K, V> = typed_mut(ebpf, name)?;
    map.insert(key, value, 0).map_err(|source| TracerError::Map { name, source })
}

/// Removes a key; that it is gone already is no error.
pub(super) fn remove<K: Pod, V: Pod>(
    ebpf: &mut Ebpf,
    name: &'static str,
    key: K,
) -> Result<(), TracerError> {
    let mut map: HashMap<&mut MapData, K, V> = typed_mut(ebpf, name)?;
    match map.remove(&key) {
        Ok(()) | Err(MapError::KeyNotFound) => Ok(()),
        Err(MapError::SyscallError(error))
            if error.io_error.raw_os_error() == Some(libc::ENOENT) =>
        {
            Ok(())
        }
        Err(source) => Err(TracerError::Map { name, source }),
    }
}

/// What is behind a map of any type that memtrace has.
pub(super) const fn map_data(map: &Map) -> Option<&MapData> {
    match map {
        Map::Array(data)
        | Map::HashMap(data)
        | Map::PerCpuArray(data)
        | Map::Queue(data)
        | Map::RingBuf(data)
        | Map::Unsupported(data) => Some(data),
        _ => None,
    }
}
