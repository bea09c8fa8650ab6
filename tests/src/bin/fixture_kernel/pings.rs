//! ICMP echo over loopback: the request is made by the process, the answer by the interrupt
//! that takes the request in.

use std::io::{Read, Write};

use anyhow::{Context, ensure};
use rustix::net::{AddressFamily, SocketType, ipproto, socket};
use serde_json::json;

use crate::Arguments;

/// Echo request and echo reply, RFC 792.
const REQUEST: u8 = 8;
const REPLY: u8 = 0;
/// Head of an IPv4 packet without options, and of an ICMP message, bytes.
const IP_HEAD: usize = 20;
const ICMP_HEAD: usize = 8;

/// `pings N SIZE`: sends N requests of SIZE bytes to oneself, one at a time, and takes the
/// answers. Needs root.
pub fn pings(arguments: &Arguments) -> anyhow::Result<()> {
    let (number, size) = (arguments.number(0)?, arguments.size(1)?);
    let raw = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP))
        .context("a raw socket, which needs root")?;
    rustix::net::connect(&raw, &std::net::SocketAddr::from(([127, 0, 0, 1], 0)))
        .context("connecting to oneself")?;
    let mut raw = std::fs::File::from(raw);
    let own = std::process::id().to_ne_bytes();
    let mut packet = vec![0; IP_HEAD + ICMP_HEAD + size];
    for _ in 0..number {
        let mut request = vec![0; ICMP_HEAD + size];
        if let [kind, _, _, _, first, second, ..] = &mut request[..] {
            (*kind, *first, *second) = (REQUEST, own[0], own[1]);
        }
        let sum = checksum(&request);
        if let [_, _, high, low, ..] = &mut request[..] {
            [*high, *low] = sum.to_be_bytes();
        }
        ensure!(raw.write(&request).context("sending")? == request.len(), "sent in part");
        // The socket hears the request as well.
        loop {
            let length = raw.read(&mut packet).context("receiving")?;
            let message = packet.get(IP_HEAD..length).unwrap_or_default();
            if message.first() == Some(&REPLY) && message.get(4..6) == own.get(..2) {
                break;
            }
        }
    }
    arguments.checkpoint(json!({ "pings": number }))
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| match pair {
        [high, low] => u32::from(u16::from_be_bytes([*high, *low])),
        [high] => u32::from(*high) << 8,
        _ => 0,
    });
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(u16::MAX)
}
