//! Where to listen, as flags say it: `:8080` for all addresses of both families, or `IP:PORT`.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use tokio::net::TcpListener;

/// An address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddr {
    address: Option<SocketAddr>,
    port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address: expected :PORT or IP:PORT")]
pub struct InvalidAddr(String);

impl ListenAddr {
    /// Binds; without an address IPv6 first (which takes IPv4 too), else IPv4.
    pub async fn bind(self) -> std::io::Result<TcpListener> {
        match self.address {
            Some(address) => TcpListener::bind(address).await,
            None => match TcpListener::bind((Ipv6Addr::UNSPECIFIED, self.port)).await {
                Ok(listener) => Ok(listener),
                Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, self.port)).await,
            },
        }
    }
}

impl FromStr for ListenAddr {
    type Err = InvalidAddr;

    fn from_str(text: &str) -> Result<Self, InvalidAddr> {
        if let Some(port) = text.strip_prefix(':').and_then(|port| port.parse().ok()) {
            return Ok(Self {
                address: None,
                port,
            });
        }
        let address: SocketAddr = text.parse().map_err(|_| InvalidAddr(text.to_owned()))?;
        Ok(Self {
            address: Some(address),
            port: address.port(),
        })
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => address.fmt(f),
            None => write!(f, ":{}", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_flags_say_it() {
        for (text, good) in [
            (":8080", true),
            (":0", true),
            ("127.0.0.1:8080", true),
            ("[::]:8080", true),
            ("8080", false),
            (":", false),
            (":65536", false),
            ("localhost:8080", false),
            ("", false),
        ] {
            let parsed = text.parse::<ListenAddr>();
            assert_eq!(parsed.is_ok(), good, "{text:?}");
            if let Ok(addr) = parsed {
                assert_eq!(addr.to_string(), text);
            }
        }
    }

    #[tokio::test]
    async fn a_port_alone_takes_loopback_too() {
        let any: ListenAddr = ":0".parse().expect("an address");
        let listener = any.bind().await.expect("binds");
        let port = listener.local_addr().expect("bound").port();
        let connected = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await;
        assert!(connected.is_ok(), "{connected:?}");
    }
}
