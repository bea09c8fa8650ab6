//! How the parts of a record are serialised that serde would not do, or not so that a recording
//! lasts.

use std::fmt;
use std::sync::Arc;

use serde::Deserializer;
use serde::de::{Error, SeqAccess, Visitor};

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

/// Return addresses, without a list that is copied into another: there are some with each call.
pub(super) fn addresses<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Arc<[u64]>, D::Error> {
    /// Most stacks are not deeper.
    const FEW: usize = 64;

    struct Addresses;
    impl<'de> Visitor<'de> for Addresses {
        type Value = Arc<[u64]>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("return addresses")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut few = [0; FEW];
            for (used, place) in few.iter_mut().enumerate() {
                let Some(address) = seq.next_element()? else {
                    return Ok(few.get(..used).unwrap_or_default().into());
                };
                *place = address;
            }
            let mut many = few.to_vec();
            while let Some(address) = seq.next_element()? {
                many.push(address);
            }
            Ok(many.into())
        }
    }
    deserializer.deserialize_seq(Addresses)
}

/// A stack sample without the places for frames that it does not use.
pub(super) mod sample {
    use memtrace_common::{
        Account, KernelSampleRecord, MAX_KERNEL_FRAMES, MAX_USER_FRAMES, RecordHeader,
    };
    use serde::{Deserialize, Serialize, Serializer};

    use super::{Deserializer, Error as _, SeqAccess, Visitor, fmt};

    /// As it is written, and read: frames are a slice there and their places here.
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

    /// Frames in their places, without a list in between.
    struct Frames<const PLACES: usize> {
        places: [u64; PLACES],
        used: u32,
    }

    impl<'de, const PLACES: usize> Deserialize<'de> for Frames<PLACES> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Fill<const PLACES: usize>;
            impl<'de, const PLACES: usize> Visitor<'de> for Fill<PLACES> {
                type Value = Frames<PLACES>;

                fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                    write!(formatter, "at most {PLACES} frames")
                }

                fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                    let mut frames = Frames { places: [0; PLACES], used: 0 };
                    let mut places = frames.places.iter_mut();
                    while let Some(frame) = seq.next_element()? {
                        let place = places.next();
                        let place =
                            place.ok_or_else(|| A::Error::invalid_length(PLACES + 1, &self))?;
                        *place = frame;
                        frames.used += 1;
                    }
                    Ok(frames)
                }
            }
            deserializer.deserialize_seq(Fill)
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
        let Form::<Frames<MAX_KERNEL_FRAMES>, Frames<MAX_USER_FRAMES>> {
            header,
            account,
            weight,
            tgid,
            tid,
            kernel,
            user,
        } = Form::deserialize(deserializer)?;
        Ok(Box::new(KernelSampleRecord {
            header,
            account,
            weight,
            tgid,
            tid,
            kernel_frames: kernel.used,
            user_frames: user.used,
            kernel: kernel.places,
            user: user.places,
        }))
    }

    /// The frames that are used.
    fn used(frames: &[u64], number: u32) -> &[u64] {
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        frames.get(..number).unwrap_or(frames)
    }
}
