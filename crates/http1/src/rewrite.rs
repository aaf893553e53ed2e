//! Writes a parsed head into an output buffer: untouched lines are copied in runs, hop-by-hop lines left out, a few
//! replaced or added. The first body bytes go behind it into the same buffer, so that one write carries both.

use bytes::{BufMut, BytesMut};

use crate::framing::Framing;
use crate::head::{FieldTable, Version};
use crate::name::{Name, NameSet};
use crate::persist::{BodyEdit, Persist, ResponsePlan};
use crate::request::RequestView;
use crate::response::ResponseView;
use crate::target::TargetForm;

/// What the request target becomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TargetEdit<'a> {
    #[default]
    Keep,
    /// `/path`, whatever it was.
    Origin,
    /// `http://authority/path`.
    Absolute(&'a str),
    /// Another path and query in the form there is.
    Path(&'a str),
}

/// What changes in a request head. The default drops hop-by-hop fields and changes nothing else.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestEdit<'a> {
    pub target: TargetEdit<'a>,
    /// The version to write; `None` keeps the client's.
    pub version: Option<Version>,
    /// Replaces or adds `Host`.
    pub host: Option<&'a str>,
    /// Known names to leave out, on top of the hop-by-hop ones.
    pub drop: NameSet,
    /// Other names to leave out, compared without case.
    pub drop_named: &'a [&'a str],
    /// Lines to add behind the others; drop the names first where they replace.
    pub add: &'a [(&'a str, &'a [u8])],
    pub persist: Persist,
    /// Strips an upgrade the proxy does not want to carry.
    pub refuse_upgrade: bool,
}

/// What changes in a response head.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResponseEdit<'a> {
    /// The version to write: the one the client spoke.
    pub version: Version,
    /// Known names to leave out, on top of the hop-by-hop ones.
    pub drop: NameSet,
    /// Other names to leave out, compared without case.
    pub drop_named: &'a [&'a str],
    /// Lines to add behind the others.
    pub add: &'a [(&'a str, &'a [u8])],
    pub persist: Persist,
    pub body: BodyEdit,
}

impl ResponseEdit<'_> {
    /// The edit a plan asks for, in the client's version.
    pub fn planned(version: Version, plan: ResponsePlan) -> Self {
        Self {
            version,
            persist: plan.persist,
            body: plan.body,
            ..Self::default()
        }
    }
}

impl RequestView<'_> {
    /// Appends the edited head to `out`, blank line included.
    pub fn write(&self, edit: &RequestEdit<'_>, out: &mut BytesMut) {
        let upgrade = self.head.upgrade() && !edit.refuse_upgrade;
        let mut drop = NameSet::HOP_BY_HOP.union(edit.drop);
        if upgrade {
            drop = drop.without(Name::Upgrade);
        }
        if edit.host.is_some() {
            drop = drop.with(Name::Host);
        }
        out.reserve(
            self.head.len()
                + added_bytes(edit.add)
                + 64
                + edit.host.map_or(0, str::len)
                + target_bytes(edit.target),
        );
        self.write_line(edit, out);
        if let Some(host) = edit.host {
            put_line(out, b"host", host.as_bytes());
        }
        copy_lines(self.buf, &self.head.fields, drop, edit.drop_named, out);
        if upgrade {
            out.put_slice(b"connection: upgrade\r\n");
        }
        put_end(
            out,
            edit.add,
            if upgrade {
                Persist::Default
            } else {
                edit.persist
            },
        );
    }

    fn write_line(&self, edit: &RequestEdit<'_>, out: &mut BytesMut) {
        let version = edit.version.unwrap_or_else(|| self.head.version());
        if edit.target == TargetEdit::Keep && version == self.head.version() {
            // The line as it came, from the method on.
            let end = self
                .head
                .fields
                .list
                .first()
                .map_or(self.head.len() - 2, |field| field.name.start());
            out.put_slice(&self.buf[self.head.method_span.start()..end]);
            return;
        }
        out.put_slice(self.method().as_bytes());
        out.put_u8(b' ');
        self.write_target(edit.target, out);
        out.put_u8(b' ');
        out.put_slice(version.as_str().as_bytes());
        out.put_slice(b"\r\n");
    }

    fn write_target(&self, edit: TargetEdit<'_>, out: &mut BytesMut) {
        let put_absolute = |out: &mut BytesMut, authority: &str, path: &str| {
            out.put_slice(b"http://");
            out.put_slice(authority.as_bytes());
            out.put_slice(path.as_bytes());
        };
        let rooted = |out: &mut BytesMut, path: &str| {
            if !path.starts_with('/') {
                out.put_u8(b'/');
            }
            out.put_slice(path.as_bytes());
        };
        match (edit, self.head.form()) {
            (TargetEdit::Origin, TargetForm::Absolute | TargetForm::Origin) => {
                rooted(out, self.path_and_query())
            }
            (TargetEdit::Absolute(authority), TargetForm::Absolute | TargetForm::Origin) => {
                put_absolute(out, authority, self.path_and_query());
            }
            (TargetEdit::Path(path), TargetForm::Origin) => rooted(out, path),
            (TargetEdit::Path(path), TargetForm::Absolute) => {
                put_absolute(out, self.authority().unwrap_or_default(), path);
            }
            _ => out.put_slice(self.target().as_bytes()),
        }
    }
}

impl ResponseView<'_> {
    /// Appends the edited head to `out`, blank line included.
    pub fn write(&self, edit: &ResponseEdit<'_>, out: &mut BytesMut) {
        let tunnel = self.head.framing() == Framing::Tunnel;
        let mut drop = NameSet::HOP_BY_HOP.union(edit.drop);
        if self.head.status() == 101 {
            drop = drop.without(Name::Upgrade);
        }
        if edit.body != BodyEdit::Keep || tunnel {
            drop = drop.with(Name::ContentLength).with(Name::TransferEncoding);
        }
        if edit.version == Version::Http10 {
            drop = drop.with(Name::TransferEncoding);
        }
        out.reserve(self.head.len() + added_bytes(edit.add) + 64);
        out.put_slice(edit.version.as_str().as_bytes());
        // From the blank before the status to the end of the line.
        let line = &self.buf["HTTP/1.1".len()..self.head.reason.end()];
        out.put_slice(line);
        out.put_slice(b"\r\n");
        copy_lines(self.buf, &self.head.fields, drop, edit.drop_named, out);
        if self.head.status() == 101 {
            out.put_slice(b"connection: upgrade\r\n");
        }
        if edit.body == BodyEdit::Chunked && !tunnel {
            out.put_slice(b"transfer-encoding: chunked\r\n");
        }
        put_end(
            out,
            edit.add,
            if tunnel {
                Persist::Default
            } else {
                edit.persist
            },
        );
    }
}

/// Copies the field lines that stay; neighbours go in one move.
fn copy_lines(
    buf: &[u8],
    fields: &FieldTable,
    drop: NameSet,
    drop_named: &[&str],
    out: &mut BytesMut,
) {
    // Names we know are found by their mark. What frames a message or says where it goes stays.
    let drop = drop_named
        .iter()
        .map(|name| Name::of(name.as_bytes()))
        .filter(|known| {
            !matches!(
                known,
                Name::Other | Name::ContentLength | Name::TransferEncoding | Name::Host
            )
        })
        .fold(drop, NameSet::with);
    let last_line = fields.head_end - 2;
    let Some(first) = fields.list.first() else {
        return;
    };
    let mut run = first.name.start();
    let nothing_else =
        drop_named.is_empty() && !fields.connection.nominates && !fields.repeated_length;
    if nothing_else && !fields.seen.meets(drop) {
        out.put_slice(&buf[run..last_line]);
        return;
    }
    let mut length_written = false;
    for field in &fields.list {
        let stays = if field.known == Name::Other {
            let name = &buf[field.name.range()];
            nothing_else
                || !(drop_named
                    .iter()
                    .any(|dropped| name.eq_ignore_ascii_case(dropped.as_bytes()))
                    || fields.nominated(buf, field))
        } else if drop.contains(field.known) {
            false
        } else if field.known == Name::ContentLength {
            !std::mem::replace(&mut length_written, true)
        } else {
            nothing_else || !fields.nominated(buf, field)
        };
        if !stays {
            out.put_slice(&buf[run..field.name.start()]);
            run = field.line_end as usize;
        }
    }
    out.put_slice(&buf[run..last_line]);
}

fn put_end(out: &mut BytesMut, add: &[(&str, &[u8])], persist: Persist) {
    for (name, value) in add {
        put_line(out, name.as_bytes(), value);
    }
    put_persist(out, persist);
    out.put_slice(b"\r\n");
}

pub(crate) fn put_persist(out: &mut BytesMut, persist: Persist) {
    match persist {
        Persist::Default => {}
        Persist::KeepAlive => out.put_slice(b"connection: keep-alive\r\n"),
        Persist::Close => out.put_slice(b"connection: close\r\n"),
    }
}

/// Appends one field line. Control bytes in a value of ours become blanks, so that no text can split a message.
pub(crate) fn put_line(out: &mut BytesMut, name: &[u8], value: &[u8]) {
    out.reserve(name.len() + value.len() + 4);
    out.put_slice(name);
    out.put_slice(b": ");
    // Without an early exit the compiler looks at many bytes at once.
    if value
        .iter()
        .fold(false, |found, byte| found | forbidden(*byte))
    {
        value
            .iter()
            .for_each(|byte| out.put_u8(if forbidden(*byte) { b' ' } else { *byte }));
    } else {
        out.put_slice(value);
    }
    out.put_slice(b"\r\n");
}

fn forbidden(byte: u8) -> bool {
    (byte < 0x20 && byte != b'\t') || byte == 0x7f
}

fn added_bytes(add: &[(&str, &[u8])]) -> usize {
    add.iter()
        .map(|(name, value)| name.len() + value.len() + 4)
        .sum()
}

fn target_bytes(target: TargetEdit<'_>) -> usize {
    match target {
        TargetEdit::Keep | TargetEdit::Origin => 0,
        TargetEdit::Absolute(text) | TargetEdit::Path(text) => text.len() + 8,
    }
}

#[cfg(test)]
mod tests;
