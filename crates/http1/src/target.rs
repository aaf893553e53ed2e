//! Request targets: the four forms of RFC 9112 3.2, and what may stand in an authority.

use crate::error::HeadError;
use crate::head::Span;

/// The form a request target was written in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TargetForm {
    /// `/path?query`
    #[default]
    Origin,
    /// `http://authority/path?query`
    Absolute,
    /// `host:port`, CONNECT only
    Authority,
    /// `*`, OPTIONS only
    Asterisk,
}

/// A target taken apart; spans are relative to the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) form: TargetForm,
    pub(crate) authority: Span,
    /// Path and query; empty when an absolute form has no path.
    pub(crate) path: Span,
}

/// Bytes that may stand in a path or query: what the strictest peer accepts. Some that RFC 3986 wants escaped (`|`, `{`, `"`)
/// are seen bare in the wild and read alike by everyone; a `#`, non-ASCII and control bytes are not.
const PATH: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0x21u8;
    while byte < 0x7f {
        table[byte as usize] = !matches!(byte, b'#' | b'<' | b'>' | b'`');
        byte += 1;
    }
    table
};

/// Bytes of a registered name or address, without the brackets and the colon before a port.
const HOST: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0x21u8;
    while byte < 0x7f {
        table[byte as usize] = byte.is_ascii_alphanumeric()
            || matches!(
                byte,
                b'-' | b'.'
                    | b'_'
                    | b'~'
                    | b'!'
                    | b'$'
                    | b'&'
                    | b'\''
                    | b'('
                    | b')'
                    | b'*'
                    | b'+'
                    | b';'
                    | b'='
            );
        byte += 1;
    }
    table
};

/// Takes a target apart for a method. `connect` and `options` are the two methods with forms of their own.
pub(crate) fn parse(target: &[u8], connect: bool, options: bool) -> Result<Target, HeadError> {
    if connect {
        let port = authority(target).map_err(|_| HeadError::Connect)?;
        if port == Port::Absent {
            return Err(HeadError::Connect);
        }
        return Ok(Target {
            form: TargetForm::Authority,
            authority: Span::new(0, target.len()),
            path: Span::default(),
        });
    }
    if target.first() == Some(&b'/') {
        path(target)?;
        return Ok(Target {
            form: TargetForm::Origin,
            authority: Span::default(),
            path: Span::new(0, target.len()),
        });
    }
    if target == b"*" {
        if !options {
            return Err(HeadError::Target);
        }
        return Ok(Target {
            form: TargetForm::Asterisk,
            authority: Span::default(),
            path: Span::new(0, 1),
        });
    }
    let scheme = ["http://", "https://"]
        .into_iter()
        .find(|scheme| {
            target
                .get(..scheme.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(scheme.as_bytes()))
        })
        .ok_or(HeadError::Target)?;
    let rest = &target[scheme.len()..];
    let end = rest
        .iter()
        .position(|byte| matches!(byte, b'/' | b'?'))
        .unwrap_or(rest.len());
    authority(&rest[..end]).map_err(|_| HeadError::Target)?;
    path(&rest[end..])?;
    Ok(Target {
        form: TargetForm::Absolute,
        authority: Span::new(scheme.len(), scheme.len() + end),
        path: Span::new(scheme.len() + end, target.len()),
    })
}

fn path(bytes: &[u8]) -> Result<(), HeadError> {
    let valid = bytes.iter().all(|byte| PATH[usize::from(*byte)])
        // A bare quote is passed in a path but not in a query, as `http::Uri` has it.
        && memchr::memchr(b'?', bytes).is_none_or(|query| memchr::memchr(b'"', &bytes[query..]).is_none());
    if valid {
        Ok(())
    } else {
        Err(HeadError::Target)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    Absent,
    Given,
}

/// Checks `host[:port]`: a name, an IPv4 address or an IPv6 literal; never empty, never with user information.
pub(crate) fn authority(bytes: &[u8]) -> Result<Port, HeadError> {
    let (host_end, literal) = if bytes.first() == Some(&b'[') {
        let close = memchr::memchr(b']', bytes).ok_or(HeadError::Host)?;
        (close + 1, true)
    } else {
        (memchr::memchr(b':', bytes).unwrap_or(bytes.len()), false)
    };
    let host = &bytes[..host_end];
    let valid = if literal {
        let inside = &host[1..host_end - 1];
        inside.len() >= 2
            && inside
                .iter()
                .all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.'))
    } else {
        is_name(host)
    };
    if !valid {
        return Err(HeadError::Host);
    }
    let Some((colon, port)) = bytes[host_end..].split_first() else {
        return Ok(Port::Absent);
    };
    let digits = (1..=5).contains(&port.len()) && port.iter().all(u8::is_ascii_digit);
    let number = port
        .iter()
        .take(5)
        .fold(0u32, |sum, byte| sum * 10 + u32::from(byte & 15));
    if *colon == b':' && digits && number <= 65_535 {
        Ok(Port::Given)
    } else {
        Err(HeadError::Host)
    }
}

/// The host of a checked `host:port`.
pub(crate) fn without_port(authority: &[u8]) -> &[u8] {
    let end = memchr::memrchr(b':', authority).unwrap_or(authority.len());
    &authority[..end]
}

/// Name bytes only, and no empty label in front or in between: nginx refuses two dots in a row.
fn is_name(host: &[u8]) -> bool {
    let mut previous = b'.';
    for byte in host {
        if !HOST[usize::from(*byte)] || (*byte == b'.' && previous == b'.') {
            return false;
        }
        previous = *byte;
    }
    !host.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities() {
        let good = [
            "a",
            "a.b",
            "a.b.",
            "a:80",
            "10.0.0.1:8080",
            "[::1]",
            "[::1]:80",
            "web_1.ns.svc.cluster.local",
            "a:0",
        ];
        for case in good {
            assert!(authority(case.as_bytes()).is_ok(), "{case:?}");
        }
        let bad = [
            "",
            ":80",
            "a:",
            "a:b",
            "a:80:80",
            "a:65536",
            "a:000080",
            "a:99999999999999999999",
            "a@b",
            "a b",
            "a/b",
            "a?b",
            "a#b",
            "a,b",
            "a..b",
            ".a",
            "[]",
            "[::1",
            "[::1]80",
            "::1",
            "a[::1]",
            "[::g]",
            "a%00",
            "ä",
            "a\\b",
            "a\"b",
        ];
        for case in bad {
            assert!(authority(case.as_bytes()).is_err(), "{case:?}");
        }
    }

    #[test]
    fn forms() {
        use TargetForm::{Absolute, Asterisk, Authority, Origin};
        // method kind: g = GET, c = CONNECT, o = OPTIONS
        type Parts = Option<(TargetForm, &'static str, &'static str)>;
        let cases: &[(char, &str, Parts)] = &[
            ('g', "/", Some((Origin, "", "/"))),
            ('g', "/a?b=c&d=%20", Some((Origin, "", "/a?b=c&d=%20"))),
            ('g', "//double/slash", Some((Origin, "", "//double/slash"))),
            ('g', "http://a/b", Some((Absolute, "a", "/b"))),
            ('g', "HTTP://a:80/b?c", Some((Absolute, "a:80", "/b?c"))),
            ('g', "https://[::1]:1", Some((Absolute, "[::1]:1", ""))),
            ('g', "http://a?b", Some((Absolute, "a", "?b"))),
            ('o', "*", Some((Asterisk, "", "*"))),
            ('c', "a:443", Some((Authority, "a:443", ""))),
            ('g', "*", None),
            ('g', "", None),
            ('g', "a", None),
            ('g', "a:80", None),
            ('g', "?q", None),
            ('g', "ftp://a/b", None),
            ('g', "http:///b", None),
            ('g', "http://u:p@a/b", None),
            ('g', "http:/a", None),
            ('g', "/a#b", None),
            ('g', "/a<b>", None),
            ('g', "/\u{e4}", None),
            ('g', "/a\u{7f}", None),
            ('c', "a", None),
            ('c', "/", None),
            ('c', "http://a:80/", None),
            ('c', "*", None),
        ];
        for (method, text, want) in cases {
            let got = parse(text.as_bytes(), *method == 'c', *method == 'o').ok();
            let got = got.map(|t| (t.form, &text[t.authority.range()], &text[t.path.range()]));
            assert_eq!(got, *want, "{method} {text:?}");
        }
    }
}
