//! Reads one record from the bytes that postcard wrote, as postcard would and with its errors,
//! but a number at a time where postcard goes byte by byte: a stack is nearly all numbers of ten
//! bytes. Knows what records are made of, and no more: signed numbers, fractions and maps are
//! refused, and a record that gets one fails its tests.

use postcard::{Error, Result};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, SeqAccess};
use serde::de::{VariantAccess, Visitor};

/// The bit of a byte that says that another one follows.
const MORE: u8 = 0x80;
/// The same in each byte of a word.
const MORE_OF_ALL: u64 = 0x8080_8080_8080_8080;

/// The value at the beginning of some bytes, and what comes after it.
///
/// # Errors
/// That the bytes are none, or end too soon.
pub(super) fn take<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<(T, &'de [u8])> {
    let mut wire = Wire { rest: bytes };
    Ok((T::deserialize(&mut wire)?, wire.rest))
}

/// What was not read yet.
struct Wire<'de> {
    rest: &'de [u8],
}

impl<'de> Wire<'de> {
    #[inline]
    fn byte(&mut self) -> Result<u8> {
        let (byte, rest) = self.rest.split_first().ok_or(Error::DeserializeUnexpectedEnd)?;
        self.rest = rest;
        Ok(*byte)
    }

    #[inline]
    fn bytes(&mut self) -> Result<&'de [u8]> {
        let length = self.length()?;
        let split = self.rest.split_at_checked(length);
        let (bytes, rest) = split.ok_or(Error::DeserializeUnexpectedEnd)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn text(&mut self) -> Result<&'de str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Error::DeserializeBadUtf8)
    }

    /// The length of what follows.
    #[inline]
    fn length(&mut self) -> Result<usize> {
        let (length, _) = self.number()?;
        usize::try_from(length).map_err(|_| Error::DeserializeBadVarint)
    }

    /// A number of at most so many bits, in sevens.
    #[inline]
    fn number_of(&mut self, bits: u32) -> Result<u64> {
        let (number, bytes) = self.number()?;
        if bytes > bits.div_ceil(7) || number.unbounded_shr(bits) != 0 {
            return Err(Error::DeserializeBadVarint);
        }
        Ok(number)
    }

    /// A number, and how many bytes it had.
    #[inline]
    fn number(&mut self) -> Result<(u64, u32)> {
        match self.rest {
            [byte, rest @ ..] if *byte < MORE => {
                self.rest = rest;
                Ok((u64::from(*byte), 1))
            }
            _ => self.long_number(),
        }
    }

    #[inline]
    fn long_number(&mut self) -> Result<(u64, u32)> {
        let Some((word, after)) = self.rest.split_first_chunk::<8>() else {
            return self.last_number();
        };
        let word = u64::from_le_bytes(*word);
        let ends = !word & MORE_OF_ALL;
        if ends != 0 {
            let bits = ends.trailing_zeros() + 1;
            let bytes = bits / 8;
            self.rest = self.rest.get(bytes as usize..).unwrap_or_default();
            return Ok((sevens(word & (u64::MAX >> (64 - bits))), bytes));
        }
        let low = sevens(word);
        match after {
            [ninth, rest @ ..] if *ninth < MORE => {
                self.rest = rest;
                Ok((low | u64::from(*ninth) << 56, 9))
            }
            // One bit is left of 64.
            [ninth, tenth @ 0..=1, rest @ ..] => {
                self.rest = rest;
                Ok((low | u64::from(ninth & !MORE) << 56 | u64::from(*tenth) << 63, 10))
            }
            [_, _, ..] => Err(Error::DeserializeBadVarint),
            _ => Err(Error::DeserializeUnexpectedEnd),
        }
    }

    /// A number in the last bytes that there are.
    #[cold]
    fn last_number(&mut self) -> Result<(u64, u32)> {
        let (mut number, mut bytes) = (0, 0);
        loop {
            let byte = self.byte()?;
            number |= u64::from(byte & !MORE) << (7 * bytes);
            bytes += 1;
            if byte < MORE {
                return Ok((number, bytes));
            }
        }
    }
}

/// The number whose bits are in the lower seven of each byte.
#[inline]
const fn sevens(word: u64) -> u64 {
    let word = word & !MORE_OF_ALL;
    let word = word & 0x007f_007f_007f_007f | (word & 0x7f00_7f00_7f00_7f00) >> 1;
    let word = word & 0x0000_3fff_0000_3fff | (word & 0x3fff_0000_3fff_0000) >> 2;
    word & 0x0fff_ffff | (word & 0x0fff_ffff_0000_0000) >> 4
}

impl<'de> Deserializer<'de> for &mut Wire<'de> {
    type Error = Error;

    fn is_human_readable(&self) -> bool {
        false
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value> {
        Err(Error::WontImplement)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.byte()? {
            0 => visitor.visit_bool(false),
            1 => visitor.visit_bool(true),
            _ => Err(Error::DeserializeBadBool),
        }
    }

    #[inline]
    fn deserialize_u8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_u8(self.byte()?)
    }

    #[inline]
    fn deserialize_u16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        // It has no more bits.
        visitor.visit_u16(self.number_of(u16::BITS)? as u16)
    }

    #[inline]
    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        // It has no more bits.
        visitor.visit_u32(self.number_of(u32::BITS)? as u32)
    }

    #[inline]
    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let (number, _) = self.number()?;
        visitor.visit_u64(number)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_borrowed_str(self.text()?)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_borrowed_str(self.text()?)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_borrowed_bytes(self.bytes()?)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_borrowed_bytes(self.bytes()?)
    }

    #[inline]
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.byte()? {
            0 => visitor.visit_none(),
            1 => visitor.visit_some(self),
            _ => Err(Error::DeserializeBadOption),
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value> {
        visitor.visit_unit()
    }

    #[inline]
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value> {
        visitor.visit_newtype_struct(self)
    }

    #[inline]
    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let left = self.length()?;
        visitor.visit_seq(Elements { wire: self, left })
    }

    #[inline]
    fn deserialize_tuple<V: Visitor<'de>>(self, left: usize, visitor: V) -> Result<V::Value> {
        visitor.visit_seq(Elements { wire: self, left })
    }

    #[inline]
    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        left: usize,
        visitor: V,
    ) -> Result<V::Value> {
        visitor.visit_seq(Elements { wire: self, left })
    }

    #[inline]
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        visitor.visit_seq(Elements { wire: self, left: fields.len() })
    }

    #[inline]
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        visitor.visit_enum(self)
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u128 f32 f64 char map identifier ignored_any
    }
}

/// What is made of a known number of elements.
struct Elements<'a, 'de> {
    wire: &'a mut Wire<'de>,
    left: usize,
}

impl<'de> SeqAccess<'de> for Elements<'_, 'de> {
    type Error = Error;

    #[inline]
    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        seed.deserialize(&mut *self.wire).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        // Each has a byte at least: a length that was made up asks for no room.
        Some(self.left).filter(|left| *left <= self.wire.rest.len())
    }
}

impl<'de> EnumAccess<'de> for &mut Wire<'de> {
    type Error = Error;
    type Variant = Self;

    #[inline]
    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self)> {
        let variant = self.number_of(u32::BITS)? as u32;
        Ok((seed.deserialize(variant.into_deserializer())?, self))
    }
}

impl<'de> VariantAccess<'de> for &mut Wire<'de> {
    type Error = Error;

    fn unit_variant(self) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, left: usize, visitor: V) -> Result<V::Value> {
        visitor.visit_seq(Elements { wire: self, left })
    }

    #[inline]
    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        visitor.visit_seq(Elements { wire: self, left: fields.len() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_are_read_as_postcard_reads_them(
            bytes in prop::collection::vec(prop_oneof![0..4_u8, 0x7e..0x82_u8, any::<u8>()], 0..24),
        ) {
            let own = take::<Vec<u64>>(&bytes).ok();
            prop_assert_eq!(own, postcard::take_from_bytes(&bytes).ok());
            let own = take::<(u32, u16, u64, bool)>(&bytes).ok();
            prop_assert_eq!(own, postcard::take_from_bytes(&bytes).ok());
            let own = take::<(Option<u16>, String)>(&bytes).ok();
            prop_assert_eq!(own, postcard::take_from_bytes(&bytes).ok());
        }

        #[test]
        fn what_postcard_writes_is_read(number in any::<u64>(), shift in 0..64_u32) {
            let number = number >> shift;
            let value = (number, number as u32, number as u16, Some(format!("{number}")));
            let mut bytes = postcard::to_stdvec(&value).unwrap();
            prop_assert_eq!(take(&bytes).unwrap(), (value.clone(), &[][..]));
            bytes.extend([7; 9]);
            prop_assert_eq!(take(&bytes).unwrap(), (value, &[7; 9][..]));
        }
    }
}
