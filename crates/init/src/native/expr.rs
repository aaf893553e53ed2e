//! Rules as the kernel's nf_tables expressions, both ways: [`write`] for the transaction,
//! [`read`] for what a dump brings back (foreign bytes). Named and bounded by the rule kinds we make.

use super::wire::{Attr, Attrs, attrs, find};
use crate::ports::PortRange;
use crate::rules::{Chain, Family, Then, When};
use crate::subnet::Subnet;

/// Comments are kept in the rule's user data, which nft limits to this.
pub const COMMENT_MAX: usize = 127;

const REGISTER: u32 = 1;
const VERDICT_REGISTER: u32 = 0;
const META_OIFNAME: u32 = 7;
const META_SKUID: u32 = 10;
const META_SKGID: u32 = 11;
const META_L4PROTO: u32 = 16;
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
const DEST_PORT: (u32, u32) = (2, 2);
const TCP: u8 = 6;
const RETURN: i32 = -5;
const JUMP: i32 = -3;
const IFNAME: usize = 16;

/// The expressions we know, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Expr {
    Counter,
    Meta(u32),
    Payload { base: u32, offset: u32, len: u32 },
    Mask(Vec<u8>),
    Equals(Vec<u8>),
    InSet(String),
    Value(Vec<u8>),
    Redirect,
    Verdict(i32, Option<String>),
}

/// What a rule's expressions say; the ports of a set are still to be looked up by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meaning {
    Known(When, Then),
    TcpInSet(String, Then),
}

/// How a port list is matched.
#[derive(Clone, Copy, Debug)]
pub enum Ports<'a> {
    None,
    Single(u16),
    /// The set made in the same transaction under this id and name.
    Set {
        id: u32,
        name: &'a str,
    },
}

/// Writes the expression list of one rule.
pub fn write(list: &mut Attrs<'_>, family: Family, when: &When, ports: Ports<'_>, then: Then) {
    match when {
        When::Any => {}
        When::Tcp | When::TcpPorts(_) | When::TcpPort(_) => {
            meta(list, META_L4PROTO);
            equals(list, &[TCP]);
        }
        When::Uid(uid) => {
            meta(list, META_SKUID);
            equals(list, &uid.to_ne_bytes());
        }
        When::Gid(gid) => {
            meta(list, META_SKGID);
            equals(list, &gid.to_ne_bytes());
        }
        When::Loopback => {
            meta(list, META_OIFNAME);
            equals(list, &loopback());
        }
        When::From(subnet) => address(list, source_field(family), subnet),
        When::To(subnet) => address(list, dest_field(family), subnet),
    }
    match ports {
        Ports::None => {}
        Ports::Single(port) => {
            payload(list, TRANSPORT_HEADER, DEST_PORT);
            equals(list, &port.to_be_bytes());
        }
        Ports::Set { id, name } => {
            payload(list, TRANSPORT_HEADER, DEST_PORT);
            expr(list, "lookup", |data| {
                data.text(1, name);
                data.u32(2, REGISTER);
                data.u32(4, id);
            });
        }
    }
    expr(list, "counter", |_| {});
    match then {
        Then::Return => verdict(list, RETURN, None),
        Then::Jump(chain) => verdict(list, JUMP, Some(chain.name())),
        Then::Redirect(port) => {
            expr(list, "immediate", |data| {
                data.u32(1, REGISTER);
                data.nest(2, |value| value.put(1, &port.to_be_bytes()));
            });
            expr(list, "redir", |data| data.u32(1, REGISTER));
        }
    }
}

/// Writes a comment the way nft reads it.
pub fn comment(text: &str) -> Vec<u8> {
    let text = text.as_bytes();
    let text = &text[..text.len().min(COMMENT_MAX)];
    let len = u8::try_from(text.len() + 1).expect("a comment is at most 127 bytes");
    let mut data = vec![0, len];
    data.extend_from_slice(text);
    data.push(0);
    data
}

/// Reads a comment back from user data: entries of type, length, bytes.
pub fn read_comment(mut data: &[u8]) -> Option<String> {
    while let [kind, len, rest @ ..] = data {
        let value = rest.get(..usize::from(*len))?;
        if *kind == 0 {
            let end = value.iter().position(|b| *b == 0).unwrap_or(value.len());
            return std::str::from_utf8(&value[..end]).ok().map(str::to_owned);
        }
        data = &rest[usize::from(*len)..];
    }
    None
}

fn expr(list: &mut Attrs<'_>, name: &str, fill: impl FnOnce(&mut Attrs<'_>)) {
    list.nest(1, |elem| {
        elem.text(1, name);
        elem.nest(2, fill);
    });
}

fn meta(list: &mut Attrs<'_>, key: u32) {
    expr(list, "meta", |data| {
        data.u32(1, REGISTER);
        data.u32(2, key);
    });
}

fn payload(list: &mut Attrs<'_>, base: u32, (offset, len): (u32, u32)) {
    expr(list, "payload", |data| {
        data.u32(1, REGISTER);
        data.u32(2, base);
        data.u32(3, offset);
        data.u32(4, len);
    });
}

fn equals(list: &mut Attrs<'_>, value: &[u8]) {
    expr(list, "cmp", |data| {
        data.u32(1, REGISTER);
        data.u32(2, 0);
        data.nest(3, |inner| inner.put(1, value));
    });
}

fn verdict(list: &mut Attrs<'_>, code: i32, chain: Option<&str>) {
    expr(list, "immediate", |data| {
        data.u32(1, VERDICT_REGISTER);
        data.nest(2, |value| {
            value.nest(2, |verdict| {
                verdict.put(1, &code.to_be_bytes());
                if let Some(chain) = chain {
                    verdict.text(2, chain);
                }
            });
        });
    });
}

/// A prefix of 0 matches everything: no expression.
fn address(list: &mut Attrs<'_>, field: (u32, u32), subnet: &Subnet) {
    if subnet.prefix == 0 {
        return;
    }
    payload(list, NETWORK_HEADER, field);
    let mask = mask(subnet.prefix, field.1);
    expr(list, "bitwise", |data| {
        data.u32(1, REGISTER);
        data.u32(2, REGISTER);
        data.u32(3, field.1);
        data.nest(4, |inner| inner.put(1, &mask));
        data.nest(5, |inner| inner.put(1, &vec![0; mask.len()]));
    });
    match subnet.network() {
        std::net::IpAddr::V4(addr) => equals(list, &addr.octets()),
        std::net::IpAddr::V6(addr) => equals(list, &addr.octets()),
    }
}

/// Offset and length in the network header.
fn source_field(family: Family) -> (u32, u32) {
    match family {
        Family::V4 => (12, 4),
        Family::V6 => (8, 16),
    }
}

fn dest_field(family: Family) -> (u32, u32) {
    match family {
        Family::V4 => (16, 4),
        Family::V6 => (24, 16),
    }
}

fn mask(prefix: u8, len: u32) -> Vec<u8> {
    let bits = u128::MAX
        .checked_shl(128 - u32::from(prefix))
        .unwrap_or(0)
        .to_be_bytes();
    bits.into_iter().take(len as usize).collect()
}

fn loopback() -> [u8; IFNAME] {
    let mut name = [0; IFNAME];
    name[..2].copy_from_slice(b"lo");
    name
}

/// What a dumped expression list says; `None` when it is not of a kind we make.
pub fn read(family: Family, list: Attr<'_>) -> Option<Meaning> {
    let mut exprs: Vec<Expr> = list.nested().map(decode).collect::<Option<_>>()?;
    // Counts are not part of a rule's meaning.
    exprs.retain(|expr| *expr != Expr::Counter);
    let (then, conditions) = match exprs.as_slice() {
        [rest @ .., Expr::Value(port), Expr::Redirect] => {
            let port = u16::from_be_bytes(port.as_slice().try_into().ok()?);
            (Then::Redirect(port), rest)
        }
        [rest @ .., Expr::Verdict(RETURN, None)] => (Then::Return, rest),
        [rest @ .., Expr::Verdict(JUMP, Some(chain))] => {
            (Then::Jump(Chain::from_name(chain)?), rest)
        }
        _ => return None,
    };
    let port_field = Expr::Payload {
        base: TRANSPORT_HEADER,
        offset: DEST_PORT.0,
        len: DEST_PORT.1,
    };
    let when = match conditions {
        [] => When::Any,
        [Expr::Meta(META_L4PROTO), Expr::Equals(proto)] if proto == &[TCP] => When::Tcp,
        [Expr::Meta(META_L4PROTO), Expr::Equals(proto), field, last]
            if proto == &[TCP] && field == &port_field =>
        {
            match last {
                Expr::InSet(name) => return Some(Meaning::TcpInSet(name.clone(), then)),
                Expr::Equals(port) => {
                    let port = u16::from_be_bytes(port.as_slice().try_into().ok()?);
                    When::TcpPorts(vec![PortRange::single(port)])
                }
                _ => return None,
            }
        }
        [Expr::Meta(META_SKUID), Expr::Equals(id)] => {
            When::Uid(u32::from_ne_bytes(id.as_slice().try_into().ok()?))
        }
        [Expr::Meta(META_SKGID), Expr::Equals(id)] => {
            When::Gid(u32::from_ne_bytes(id.as_slice().try_into().ok()?))
        }
        [Expr::Meta(META_OIFNAME), Expr::Equals(name)] if name == &loopback() => When::Loopback,
        // A whole address is compared without a mask.
        [Expr::Payload { base, offset, len }, Expr::Equals(value)] if *base == NETWORK_HEADER => {
            subnet_condition(family, (*offset, *len), &vec![255; value.len()], value)?
        }
        [
            Expr::Payload { base, offset, len },
            Expr::Mask(mask),
            Expr::Equals(value),
        ] if *base == NETWORK_HEADER => subnet_condition(family, (*offset, *len), mask, value)?,
        _ => return None,
    };
    Some(Meaning::Known(when, then))
}

fn subnet_condition(
    family: Family,
    field: (u32, u32),
    mask_bytes: &[u8],
    value: &[u8],
) -> Option<When> {
    let ones: u32 = mask_bytes.iter().map(|byte| byte.count_ones()).sum();
    let prefix = u8::try_from(ones).ok()?;
    if mask(prefix, field.1) != mask_bytes {
        return None;
    }
    let addr = match family {
        Family::V4 => std::net::IpAddr::from(<[u8; 4]>::try_from(value).ok()?),
        Family::V6 => std::net::IpAddr::from(<[u8; 16]>::try_from(value).ok()?),
    };
    let subnet = Subnet::parse(&format!("{addr}/{prefix}"))?;
    if field == source_field(family) {
        Some(When::From(subnet))
    } else if field == dest_field(family) {
        Some(When::To(subnet))
    } else {
        None
    }
}

/// The chain a rule jumps to, whoever wrote the rule.
pub fn jump_target(list: Attr<'_>) -> Option<String> {
    list.nested().find_map(|elem| match decode(elem) {
        Some(Expr::Verdict(JUMP, chain)) => chain,
        _ => None,
    })
}

/// `None` for anything unknown.
fn decode(elem: Attr<'_>) -> Option<Expr> {
    let name = find(elem.nested(), 1)?.text()?;
    let data = find(elem.nested(), 2).map_or(&[][..], |attr| attr.value);
    let get = |kind: u16| find(attrs(data), kind);
    let number = |kind: u16| get(kind).and_then(Attr::u32);
    let on_register = |kind: u16| (number(kind) == Some(REGISTER)).then_some(());
    let value =
        |kind: u16| -> Option<Vec<u8>> { Some(find(get(kind)?.nested(), 1)?.value.to_vec()) };
    Some(match name {
        "counter" => Expr::Counter,
        "meta" => {
            on_register(1)?;
            Expr::Meta(number(2)?)
        }
        "payload" => {
            on_register(1)?;
            Expr::Payload {
                base: number(2)?,
                offset: number(3)?,
                len: number(4)?,
            }
        }
        "bitwise" => {
            on_register(1)?;
            on_register(2)?;
            if number(6).unwrap_or(0) != 0 || value(5)?.iter().any(|byte| *byte != 0) {
                return None;
            }
            Expr::Mask(value(4)?)
        }
        "cmp" => {
            on_register(1)?;
            if number(2)? != 0 {
                return None;
            }
            Expr::Equals(value(3)?)
        }
        "lookup" => {
            on_register(2)?;
            if number(5).unwrap_or(0) != 0 {
                return None;
            }
            Expr::InSet(get(1)?.text()?.to_owned())
        }
        "immediate" if number(1)? == VERDICT_REGISTER => {
            let verdict = find(get(2)?.nested(), 2)?;
            let code = find(verdict.nested(), 1)?.u32()?.cast_signed();
            let chain = find(verdict.nested(), 2).and_then(Attr::text);
            Expr::Verdict(code, chain.map(str::to_owned))
        }
        "immediate" => {
            on_register(1)?;
            Expr::Value(value(2)?)
        }
        "redir" => {
            on_register(1)?;
            Expr::Redirect
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::wire::{Writer, messages, nft};
    use super::*;

    fn round_trip(family: Family, when: &When, ports: Ports<'_>, then: Then) -> Option<Meaning> {
        let mut writer = Writer::default();
        writer.nft(nft::NEW_RULE, 2, 0, 1, |message| {
            message.nest(4, |list| write(list, family, when, ports, then));
        });
        let message = messages(writer.bytes()).next().expect("one message");
        read(family, message.attrs().next().expect("one attribute"))
    }

    #[test]
    fn every_kind_of_rule_comes_back() {
        let v4 = |text: &str| Subnet::parse(text).expect("a subnet").canonical();
        let cases = [
            (Family::V4, When::Any, Then::Jump(Chain::ProxyOutput)),
            (Family::V4, When::Tcp, Then::Redirect(4140)),
            (Family::V6, When::Uid(2102), Then::Return),
            (Family::V6, When::Gid(7), Then::Return),
            (Family::V4, When::Loopback, Then::Return),
            (Family::V4, When::From(v4("10.1.2.3/16")), Then::Return),
            (Family::V4, When::From(v4("10.1.2.3/32")), Then::Return),
            (Family::V4, When::To(v4("10.0.0.0/7")), Then::Return),
            (Family::V6, When::From(v4("fd00::/8")), Then::Return),
            (Family::V6, When::To(v4("fd00::1/128")), Then::Return),
        ];
        for (family, when, then) in cases {
            let meaning = round_trip(family, &when, Ports::None, then);
            assert_eq!(
                meaning,
                Some(Meaning::Known(when.clone(), then)),
                "{when:?}"
            );
        }
        let listed = round_trip(
            Family::V4,
            &When::TcpPort(9090),
            Ports::Single(9090),
            Then::Redirect(1),
        );
        let ports = When::TcpPorts(vec![PortRange::single(9090)]);
        assert_eq!(listed, Some(Meaning::Known(ports, Then::Redirect(1))));
        let set = Ports::Set {
            id: 3,
            name: "__set%d",
        };
        let meaning = round_trip(Family::V4, &When::TcpPorts(vec![]), set, Then::Return);
        assert_eq!(
            meaning,
            Some(Meaning::TcpInSet("__set%d".to_owned(), Then::Return))
        );
    }

    #[test]
    fn comments() {
        assert_eq!(
            read_comment(&comment("proxy-init/x")),
            Some("proxy-init/x".to_owned())
        );
        let long = "p".repeat(400);
        assert_eq!(read_comment(&comment(&long)), Some("p".repeat(COMMENT_MAX)));
        assert_eq!(read_comment(&[]), None);
        assert_eq!(read_comment(&[0]), None);
        assert_eq!(read_comment(&[0, 9, b'x']), None);
        assert_eq!(
            read_comment(&[5, 1, 1, 0, 2, b'x', 0]),
            Some("x".to_owned())
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let list = Attr { kind: 4, value: &bytes };
            let _ = read(Family::V4, list);
            let _ = read(Family::V6, list);
            let _ = jump_target(list);
            let _ = read_comment(&bytes);
        }

        // Valid rules with a few bytes changed reach deeper than noise does.
        #[test]
        fn damaged_rules_are_an_answer(at in 0usize..200, byte in any::<u8>(), cut in 0usize..200) {
            let mut writer = Writer::default();
            let subnet = Subnet::parse("10.1.0.0/16").expect("a subnet");
            writer.nft(nft::NEW_RULE, 2, 0, 1, |message| {
                message.nest(4, |list| {
                    write(list, Family::V4, &When::From(subnet), Ports::None, Then::Redirect(1));
                });
            });
            let mut bytes = writer.bytes().to_vec();
            if let Some(target) = bytes.get_mut(at) {
                *target = byte;
            }
            bytes.truncate(bytes.len().saturating_sub(cut));
            for message in messages(&bytes) {
                for attr in message.attrs() {
                    let _ = read(Family::V4, attr);
                }
            }
        }
    }
}
