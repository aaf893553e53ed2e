//! YAML as Kubernetes tools read it. Writing: keys sorted, and every text quoted that an older YAML
//! reader would take for a boolean, a number or a date. Reading: anchors and merge keys resolved.

mod edit;

pub use edit::edit;

use serde_json::Value;
use std::fmt::Write as _;

/// Reads one document as a tree.
pub fn parse(text: &str) -> Result<Value, serde_yaml::Error> {
    let mut yaml: serde_yaml::Value = serde_yaml::from_str(text)?;
    yaml.apply_merge()?;
    serde_yaml::from_value(yaml)
}

/// Writes a tree, without a newline at the end.
pub fn write(value: &Value) -> String {
    let mut out = String::new();
    node(&mut out, value, 0);
    out.trim_end_matches('\n').to_owned()
}

/// A value at the start of a line that is already indented.
fn node(out: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by(|a, b| a.0.cmp(b.0));
            for (at, (key, value)) in entries.into_iter().enumerate() {
                if at > 0 {
                    indent(out, depth);
                }
                out.push_str(&scalar(key));
                out.push(':');
                match value {
                    Value::Object(map) if !map.is_empty() => {
                        out.push('\n');
                        indent(out, depth + 1);
                        node(out, value, depth + 1);
                    }
                    Value::Array(items) if !items.is_empty() => {
                        out.push('\n');
                        indent(out, depth);
                        node(out, value, depth);
                    }
                    value => {
                        out.push(' ');
                        leaf(out, value, depth + 1);
                    }
                }
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    indent(out, depth);
                }
                out.push_str("- ");
                node(out, item, depth + 1);
            }
        }
        value => leaf(out, value, depth),
    }
}

fn indent(out: &mut String, depth: usize) {
    for _ in 0..depth {
        out.push_str("  ");
    }
}

fn leaf(out: &mut String, value: &Value, depth: usize) {
    match value {
        Value::String(text) if is_block(text) => block(out, text, depth),
        Value::String(text) => out.push_str(&scalar(text)),
        Value::Object(_) => out.push_str("{}"),
        Value::Array(_) => out.push_str("[]"),
        other => {
            let _ = write!(out, "{other}");
        }
    }
    if !out.ends_with('\n') {
        out.push('\n');
    }
}

/// Several lines that a literal block can hold as they are.
fn is_block(text: &str) -> bool {
    text.trim_end_matches('\n').contains('\n')
        && !text.starts_with([' ', '\n', '\t'])
        && text.chars().all(|c| c == '\n' || !c.is_control())
        && !text.contains(" \n")
}

fn block(out: &mut String, text: &str, depth: usize) {
    let body = text.trim_end_matches('\n');
    let newlines = text.len() - body.len();
    out.push_str(match newlines {
        0 => "|-\n",
        1 => "|\n",
        _ => "|+\n",
    });
    for line in body.split('\n') {
        if !line.is_empty() {
            indent(out, depth);
        }
        out.push_str(line);
        out.push('\n');
    }
    for _ in 1..newlines {
        out.push('\n');
    }
}

fn scalar(text: &str) -> String {
    if is_plain(text) {
        text.to_owned()
    } else {
        Value::from(text).to_string()
    }
}

/// Whether every reader takes the bare text for a text.
fn is_plain(text: &str) -> bool {
    let Some(first) = text.chars().next() else {
        return false;
    };
    if !(first.is_ascii_alphabetic() || matches!(first, '/' | '_' | '$') || dotted(text)) {
        return false;
    }
    if text.ends_with([' ', ':']) || text.contains(": ") || text.contains(" #") {
        return false;
    }
    if !text
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || " _-./:()+*=@%$~,;<>".contains(c))
    {
        return false;
    }
    let words = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
    !words.contains(&text.to_ascii_lowercase().as_str())
}

/// Versions and addresses such as `1.2.3` or `10.0.0.0/8`, which no reader takes for a number.
fn dotted(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
        && text.matches('.').count() > 1
        && !text.contains(':')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Kubernetes reads YAML 1.1, where a bare `off` is a boolean, `12:30` and `1_000` are numbers.
    #[test]
    fn texts_that_look_like_something_else_are_quoted() {
        for text in [
            "off",
            "on",
            "Yes",
            "no",
            "y",
            "N",
            "true",
            "null",
            "~",
            "1e3",
            "0x1f",
            "010",
            "1_000",
            "12:30",
            "",
            "-",
            "a: b",
            "a #b",
            "2026-01-01",
            "*x",
            "&x",
            "{a}",
            "[",
            "é",
        ] {
            let yaml = write(&json!({"key": text}));
            assert!(yaml.starts_with("key: \""), "{yaml}");
        }
        for text in [
            "linkerd/cli edge-25.10.7",
            "10.0.0.0/8",
            "$(_pod_ns)",
            "IfNotPresent",
            "warn,linkerd=info",
        ] {
            assert_eq!(write(&json!({"key": text})), format!("key: {text}"));
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        let value = json!({
            "b": {"list": [1, "two", {"x": [], "y": {}}, ["nested", [true]], null], "empty": {}},
            "a": "first\nsecond\n\n  indented\n",
            "chomped": "one\ntwo",
            "kept": "one\ntwo\n\n\n",
            "tab": "\tx\ny",
            "trailing": "x \ny",
            "off": 1.5,
            "": "empty key",
        });
        assert_eq!(
            parse(&write(&value)).expect("YAML"),
            value,
            "{}",
            write(&value)
        );
    }
}
