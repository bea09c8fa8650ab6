//! The identity of a site: the same in every process, on every machine and after a restart.
//!
//! Never made of addresses or of anything else that depends on where code was loaded.

use twox_hash::XxHash3_64;

/// A stack's identity in 64 bits, made of its identity strings.
///
/// The hash is XXH3, whose values are fixed by its specification; each string goes in with its
/// length, so that ("ab", "c") and ("a", "bc") differ.
#[must_use]
pub fn digest<S: AsRef<str>>(identity: &[S]) -> u64 {
    let mut bytes = Vec::with_capacity(identity.len() * 48);
    for part in identity {
        put(&mut bytes, part.as_ref());
    }
    XxHash3_64::oneshot(&bytes)
}

/// The id of a site: domain, function and the digest of the stack's identity.
#[must_use]
pub fn site_id(domain: &str, function: &str, digest: u64) -> u64 {
    let mut bytes = Vec::with_capacity(64);
    put(&mut bytes, domain);
    put(&mut bytes, function);
    bytes.extend_from_slice(&digest.to_le_bytes());
    XxHash3_64::oneshot(&bytes)
}

fn put(bytes: &mut Vec<u8>, part: &str) {
    bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
    bytes.extend_from_slice(part.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_is_the_same_for_ever() {
        // Written down on purpose: dashboards and baselines hold these ids across releases.
        let id = site_id("kernel", "kmalloc", digest(&["load_msg+0x5c"]));
        assert_eq!(format!("{id:016x}"), "PENDING");
    }

    #[test]
    fn every_part_counts() {
        let base = site_id("cuda", "cudaMalloc", digest(&["aa+1", "bb+2"]));
        for other in [
            site_id("managed", "cudaMalloc", digest(&["aa+1", "bb+2"])),
            site_id("cuda", "cudaMallocPitch", digest(&["aa+1", "bb+2"])),
            site_id("cuda", "cudaMalloc", digest(&["bb+2", "aa+1"])),
            site_id("cuda", "cudaMalloc", digest(&["aa+1bb+2"])),
            site_id("cudac", "udaMalloc", digest(&["aa+1", "bb+2"])),
        ] {
            assert_ne!(base, other);
        }
    }
}
