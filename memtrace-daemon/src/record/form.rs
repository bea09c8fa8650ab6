//! How the parts of a record are serialised that serde would not do, or not so that a recording
//! lasts.

/// A value with the names of its fields and variants, as JSON within the bytes around it: fields
/// and variants can be added without making older recordings unreadable. For what is rare.
pub(super) mod named {
    use serde::de::{DeserializeOwned, Error as _};
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<T: Serialize, S: Serializer>(
        value: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&serde_json::to_vec(value).map_err(S::Error::custom)?)
    }

    pub fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        let bytes = <&[u8]>::deserialize(deserializer)?;
        serde_json::from_slice(bytes).map_err(D::Error::custom)
    }
}

/// Return addresses as their bytes, little-endian: in numbers of seven bits each of them would
/// take ten bytes, and longer to read than all that is around it.
pub(super) mod addresses {
    use memtrace_common::bytemuck::cast_slice;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// What a record is made for has no other order.
    const _: () = assert!(cfg!(target_endian = "little"));

    pub fn serialize<S: Serializer>(addresses: &[u64], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(cast_slice(addresses))
    }

    pub fn deserialize<'de, D: Deserializer<'de>, A: FromIterator<u64>>(
        deserializer: D,
    ) -> Result<A, D::Error> {
        let (addresses, rest) = <&[u8]>::deserialize(deserializer)?.as_chunks();
        if rest.is_empty() {
            Ok(addresses.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect())
        } else {
            Err(D::Error::custom("the last return address is cut off"))
        }
    }
}

/// A stack sample without the places for frames that it does not use.
pub(super) mod sample {
    use bytemuck::allocation::zeroed_box;
    use memtrace_common::{Account, KernelSampleRecord, RecordHeader};
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::addresses;

    /// As it is written, and read.
    #[derive(Serialize, Deserialize)]
    struct Form<K, U> {
        header: RecordHeader,
        account: Account,
        weight: u64,
        tgid: u32,
        tid: u32,
        kernel: K,
        user: U,
    }

    /// Frames to be written.
    struct Used<'a>(&'a [u64]);

    impl Serialize for Used<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            addresses::serialize(self.0, serializer)
        }
    }

    pub fn serialize<S: Serializer>(
        sample: &KernelSampleRecord,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let KernelSampleRecord {
            header,
            account,
            weight,
            tgid,
            tid,
            kernel_frames,
            user_frames,
            kernel,
            user,
        } = sample;
        Form {
            header: *header,
            account: *account,
            weight: *weight,
            tgid: *tgid,
            tid: *tid,
            kernel: used(kernel, *kernel_frames),
            user: used(user, *user_frames),
        }
        .serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Box<KernelSampleRecord>, D::Error> {
        let Form { header, account, weight, tgid, tid, kernel, user } =
            Form::<&[u8], &[u8]>::deserialize(deserializer)?;
        // In its place from the start: it is a kilobyte.
        let mut sample = zeroed_box::<KernelSampleRecord>();
        (sample.header, sample.account) = (header, account);
        (sample.weight, sample.tgid, sample.tid) = (weight, tgid, tid);
        let frames = fill(&mut sample.kernel, kernel).zip(fill(&mut sample.user, user));
        let refused = || D::Error::custom("there are more frames than places for them");
        (sample.kernel_frames, sample.user_frames) = frames.ok_or_else(refused)?;
        Ok(sample)
    }

    /// The frames that are used.
    fn used(frames: &[u64], number: u32) -> Used<'_> {
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        Used(frames.get(..number).unwrap_or(frames))
    }

    /// Puts frames into their places; how many.
    fn fill(places: &mut [u64], bytes: &[u8]) -> Option<u32> {
        let (frames, rest) = bytes.as_chunks();
        let places = places.get_mut(..frames.len()).filter(|_| rest.is_empty())?;
        for (place, frame) in places.iter_mut().zip(frames) {
            *place = u64::from_le_bytes(*frame);
        }
        u32::try_from(frames.len()).ok()
    }
}
