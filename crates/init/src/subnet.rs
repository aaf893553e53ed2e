//! A CIDR as the user typed it, beside what it means.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::rules::Family;

/// An address and prefix; `text` is what commands and comments show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subnet {
    pub text: String,
    pub addr: IpAddr,
    pub prefix: u8,
}

// === impl Subnet ===

impl Subnet {
    /// Reads `addr/prefix`; the text is kept as given.
    pub fn parse(text: &str) -> Option<Self> {
        let (addr, prefix) = text.split_once('/')?;
        let addr: IpAddr = addr.parse().ok()?;
        if prefix.is_empty() || !prefix.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let prefix: u8 = prefix.parse().ok()?;
        let widest = if addr.is_ipv4() { 32 } else { 128 };
        (prefix <= widest).then(|| Self {
            text: text.to_owned(),
            addr,
            prefix,
        })
    }

    pub fn family(&self) -> Family {
        match self.addr {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        }
    }

    /// The network address: host bits cleared.
    pub fn network(&self) -> IpAddr {
        match self.addr {
            IpAddr::V4(addr) => {
                let mask = u32::MAX
                    .checked_shl(32 - u32::from(self.prefix))
                    .unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(addr.to_bits() & mask))
            }
            IpAddr::V6(addr) => {
                let mask = u128::MAX
                    .checked_shl(128 - u32::from(self.prefix))
                    .unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(addr.to_bits() & mask))
            }
        }
    }

    /// The same subnet as the kernel stores and shows it.
    pub fn canonical(&self) -> Self {
        let addr = self.network();
        Self {
            text: format!("{addr}/{}", self.prefix),
            addr,
            prefix: self.prefix,
        }
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        let ok = [
            ("10.1.2.3/16", "10.1.0.0/16"),
            ("1.1.1.1/24", "1.1.1.0/24"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("1.2.3.4/32", "1.2.3.4/32"),
            ("fd00::1/16", "fd00::/16"),
            ("::/0", "::/0"),
            ("fd00::1/128", "fd00::1/128"),
        ];
        for (text, stored) in ok {
            let subnet = Subnet::parse(text).expect(text);
            assert_eq!(subnet.to_string(), text);
            assert_eq!(subnet.canonical().to_string(), stored);
        }
        for text in [
            "0.0.0.0",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10.0.0.0/-1",
            "fd00::/129",
            "fe80::1%eth0/64",
            "ten/8",
            "",
            "/8",
        ] {
            assert_eq!(Subnet::parse(text), None, "{text}");
        }
    }
}
