//! How the parts of a record are serialised that serde would not do, or not so that a recording
//! lasts.

/// A value with the names of its fields and variants, as JSON within the bytes around it: fields
/// and variants can be added without making older recordings unreadable. For what is rare.
pub(super) mod named {
    use serde::de::{DeserializeOwned, Error as _, Visitor};
    use serde::ser::Error as _;
    use serde::{Deserializer, Serialize, Serializer};

    pub fn serialize<T: Serialize, S: Serializer>(
        value: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&serde_json::to_vec(value).map_err(S::Error::custom)?)
    }

    pub fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        struct Json;
        impl<'de> Visitor<'de> for Json {
            type Value = &'de [u8];

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("bytes of JSON")
            }

            fn visit_borrowed_bytes<E>(self, bytes: &'de [u8]) -> Result<&'de [u8], E> {
                Ok(bytes)
            }
        }
        let bytes = deserializer.deserialize_bytes(Json)?;
        serde_json::from_slice(bytes).map_err(D::Error::custom)
    }
}

/// A stack sample without the places for frames that it does not use.
pub(super) mod sample {
    use std::borrow::Cow;

    use memtrace_common::bytemuck::Zeroable;
    use memtrace_common::{Account, KernelSampleRecord, RecordHeader};
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Form<'a> {
        header: RecordHeader,
        account: Account,
        weight: u64,
        tgid: u32,
        tid: u32,
        kernel: Cow<'a, [u64]>,
        user: Cow<'a, [u64]>,
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
            kernel: Cow::Borrowed(used(kernel, *kernel_frames)),
            user: Cow::Borrowed(used(user, *user_frames)),
        }
        .serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Box<KernelSampleRecord>, D::Error> {
        let Form { header, account, weight, tgid, tid, kernel, user } =
            Form::deserialize(deserializer)?;
        let mut sample = Box::new(KernelSampleRecord {
            header,
            account,
            weight,
            tgid,
            tid,
            ..KernelSampleRecord::zeroed()
        });
        sample.kernel_frames = fill(&mut sample.kernel, &kernel).map_err(D::Error::custom)?;
        sample.user_frames = fill(&mut sample.user, &user).map_err(D::Error::custom)?;
        Ok(sample)
    }

    /// The frames that are used.
    fn used(frames: &[u64], number: u32) -> &[u64] {
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        frames.get(..number).unwrap_or(frames)
    }

    /// Puts frames into their places; their number.
    fn fill(places: &mut [u64], frames: &[u64]) -> Result<u32, String> {
        let deepest = places.len();
        let places = places
            .get_mut(..frames.len())
            .ok_or_else(|| format!("{} frames, and {deepest} at most", frames.len()))?;
        places.copy_from_slice(frames);
        u32::try_from(frames.len()).map_err(|error| error.to_string())
    }
}
