//! Networks as resources write them: a CIDR or a single address, less some exceptions.

use ipnet::IpNet;
use linkerd_core::policy::inbound::Network;
use linkerd_k8s::policy as k8s;
use std::net::IpAddr;

/// A network that cannot be read, or does not make sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// Neither a CIDR nor an address.
    #[error("invalid network: {0}")]
    Unparsable(String),
    /// An exception leaves nothing.
    #[error("cidr '{net}' is completely negated by exception '{except}'")]
    Negated {
        /// The network.
        net: IpNet,
        /// What covers it.
        except: IpNet,
    },
    /// An exception of something that is not in the network.
    #[error("cidr '{net}' does not include exception '{except}'")]
    Outside {
        /// The network.
        net: IpNet,
        /// What is not inside.
        except: IpNet,
    },
}

/// Reads a CIDR or a single address.
pub fn parse_net(text: &str) -> Result<IpNet, NetworkError> {
    let net = text.parse::<IpNet>().ok();
    net.or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
        .ok_or_else(|| NetworkError::Unparsable(text.to_owned()))
}

/// Reads a network with its exceptions.
pub fn parse(network: &k8s::Network) -> Result<Network, NetworkError> {
    let except = network
        .except
        .iter()
        .flatten()
        .map(|except| parse_net(except));
    Ok(Network {
        net: parse_net(&network.cidr)?,
        except: except.collect::<Result<_, _>>()?,
    })
}

/// Reads networks with their exceptions.
pub fn parse_all(networks: &[k8s::Network]) -> Result<Vec<Network>, NetworkError> {
    networks.iter().map(parse).collect()
}

/// Whether the exceptions make sense.
pub fn validate(network: &Network) -> Result<(), NetworkError> {
    let net = network.net.trunc();
    for except in network.except.iter().map(IpNet::trunc) {
        if except.contains(&net) {
            return Err(NetworkError::Negated {
                net: network.net,
                except,
            });
        }
        if !net.contains(&except) {
            return Err(NetworkError::Outside {
                net: network.net,
                except,
            });
        }
    }
    Ok(())
}

/// Whether the network, less its exceptions, has the address.
pub fn contains(network: &Network, ip: IpAddr) -> bool {
    network.net.contains(&ip) && !network.except.iter().any(|except| except.contains(&ip))
}

/// Whether the network reaches into `other` where no exception covers it.
pub fn intersects(network: &Network, other: &IpNet) -> bool {
    let (net, other) = (network.net.trunc(), other.trunc());
    let shared = if net.contains(&other) {
        other
    } else if other.contains(&net) {
        net
    } else {
        return false;
    };
    !network
        .except
        .iter()
        .any(|except| except.trunc().contains(&shared))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(cidr: &str, except: &[&str]) -> Network {
        parse(&k8s::Network {
            cidr: cidr.to_owned(),
            except: Some(except.iter().map(|net| (*net).to_owned()).collect()),
        })
        .expect("valid")
    }

    #[test]
    fn exceptions_are_checked() {
        for (name, cidr, except, expected) in [
            ("none", "10.0.0.0/8", vec![], ""),
            ("inside", "10.0.0.0/8", vec!["10.1.0.0/16"], ""),
            ("a bare address", "10.0.0.0/8", vec!["10.1.2.3"], ""),
            (
                "equal",
                "10.0.0.0/8",
                vec!["10.0.0.0/8"],
                "completely negated",
            ),
            (
                "covering",
                "10.0.0.0/8",
                vec!["0.0.0.0/0"],
                "completely negated",
            ),
            (
                "outside",
                "10.0.0.0/8",
                vec!["11.0.0.0/16"],
                "does not include exception",
            ),
            (
                "other family",
                "10.0.0.0/8",
                vec!["fd00::/16"],
                "does not include exception",
            ),
        ] {
            let error = validate(&network(cidr, &except))
                .err()
                .map(|error| error.to_string());
            assert!(error.unwrap_or_default().contains(expected), "{name}");
        }
        assert!(parse_net("10.0.0/8").is_err());
    }

    #[test]
    fn addresses_and_overlaps() {
        let net = network("10.0.0.0/8", &["10.1.0.0/16"]);
        for (ip, expected) in [
            ("10.2.0.1", true),
            ("10.1.0.1", false),
            ("11.0.0.1", false),
            ("::1", false),
        ] {
            assert_eq!(contains(&net, ip.parse().expect("ip")), expected, "{ip}");
        }
        for (name, net, other, expected) in [
            ("apart", network("11.0.0.0/8", &[]), "10.0.0.0/8", false),
            ("inside", network("10.1.0.0/16", &[]), "10.0.0.0/8", true),
            ("around", network("0.0.0.0/0", &[]), "10.0.0.0/8", true),
            (
                "around, excepted",
                network("0.0.0.0/0", &["10.0.0.0/8"]),
                "10.0.0.0/8",
                false,
            ),
            (
                "around, partly excepted",
                network("0.0.0.0/0", &["10.1.0.0/16"]),
                "10.0.0.0/8",
                true,
            ),
            ("other family", network("::/0", &[]), "10.0.0.0/8", false),
        ] {
            assert_eq!(
                intersects(&net, &other.parse().expect("net")),
                expected,
                "{name}"
            );
        }
    }
}
