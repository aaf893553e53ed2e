//! Helm's `--set` language: `a.b=1,c[0]=x,d={p,q}`, with a backslash before a comma, dot, equals
//! sign, brace or bracket that is meant literally.

use serde_json::{Map, Value};

/// Lists may not grow beyond this through an index.
const MAX_INDEX: usize = 65_536;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("key {0:?} has no value")]
    NoValue(String),
    #[error("a key is empty")]
    EmptyKey,
    #[error("{0:?} is not an index")]
    Index(String),
    #[error("a list has no closing brace")]
    OpenList,
}

/// Whether values that look like numbers, booleans and null become those.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Typed,
    Text,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(usize),
}

/// Writes every `key=value` of the text into the tree.
pub fn apply(tree: &mut Value, text: &str, kind: Kind) -> Result<(), Error> {
    for pair in split(text, ',') {
        let (key, value) = halves(&pair)?;
        let value = value_of(value, kind)?;
        place(tree, &path(key)?, value);
    }
    Ok(())
}

/// `key=value` pairs with the value as it is written.
pub fn pairs(text: &str) -> Result<Vec<(String, String)>, Error> {
    split(text, ',')
        .iter()
        .map(|pair| halves(pair).map(|(key, value)| (key.to_owned(), unescape(value))))
        .collect()
}

/// Writes a text at a key in `--set` notation.
pub fn put_text(tree: &mut Value, key: &str, text: String) -> Result<(), Error> {
    place(tree, &path(key)?, Value::from(text));
    Ok(())
}

fn halves(pair: &str) -> Result<(&str, &str), Error> {
    let mut escaped = false;
    for (at, c) in pair.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '=' => return Ok((&pair[..at], &pair[at + 1..])),
            _ => {}
        }
    }
    Err(Error::NoValue(pair.to_owned()))
}

/// Parts between separators that are neither escaped nor inside braces.
fn split(text: &str, separator: char) -> Vec<String> {
    let mut parts = vec![String::new()];
    let (mut escaped, mut depth) = (false, 0_usize);
    for c in text.chars() {
        if c == separator && !escaped && depth == 0 {
            parts.push(String::new());
            continue;
        }
        if !escaped {
            match c {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        escaped = c == '\\' && !escaped;
        if let Some(last) = parts.last_mut() {
            last.push(c);
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut escaped = false;
    for c in text.chars() {
        if c == '\\' && !escaped {
            escaped = true;
            continue;
        }
        escaped = false;
        out.push(c);
    }
    out
}

fn path(key: &str) -> Result<Vec<Step>, Error> {
    let mut steps = Vec::new();
    for part in split(key, '.') {
        let open = part
            .find('[')
            .filter(|at| *at == 0 || !part[..*at].ends_with('\\'));
        let (name, mut indexes) = part.split_at(open.unwrap_or(part.len()));
        if !name.is_empty() {
            steps.push(Step::Key(unescape(name.trim())));
        }
        while let Some(rest) = indexes.strip_prefix('[') {
            let wrong = || Error::Index(rest.to_owned());
            let (number, after) = rest.split_once(']').ok_or_else(wrong)?;
            let number = number.parse().map_err(|_| wrong())?;
            if number > MAX_INDEX {
                return Err(wrong());
            }
            steps.push(Step::Index(number));
            indexes = after;
        }
    }
    if steps.is_empty() {
        return Err(Error::EmptyKey);
    }
    Ok(steps)
}

fn value_of(text: &str, kind: Kind) -> Result<Value, Error> {
    if let Some(inner) = text.strip_prefix('{') {
        let inner = inner.strip_suffix('}').ok_or(Error::OpenList)?;
        return Ok(split(inner, ',')
            .iter()
            .map(|item| scalar(item, kind))
            .collect());
    }
    Ok(scalar(text, kind))
}

fn scalar(text: &str, kind: Kind) -> Value {
    let text = unescape(text);
    if kind == Kind::Text {
        return Value::from(text);
    }
    match text.as_str() {
        "true" => true.into(),
        "false" => false.into(),
        "null" => Value::Null,
        "0" => 0.into(),
        // A leading zero makes it a text, as in an account number.
        number if number.starts_with('0') => Value::from(text),
        number => number
            .parse::<i64>()
            .map_or_else(|_| Value::from(text.as_str()), Value::from),
    }
}

fn place(tree: &mut Value, steps: &[Step], value: Value) {
    let mut at = tree;
    for step in steps {
        at = match step {
            Step::Key(key) => {
                if !at.is_object() {
                    *at = Value::Object(Map::new());
                }
                &mut at[key.as_str()]
            }
            Step::Index(index) => {
                if !at.is_array() {
                    *at = Value::Array(Vec::new());
                }
                let Value::Array(items) = at else {
                    return;
                };
                while items.len() <= *index {
                    items.push(Value::Null);
                }
                &mut items[*index]
            }
        };
    }
    *at = value;
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_language() {
        for (name, text, expected) in [
            (
                "typed",
                "a=1,b=true,c=null,d=x,e=0123,f=0",
                json!({"a": 1, "b": true, "c": null, "d": "x", "e": "0123", "f": 0}),
            ),
            (
                "nested",
                "a.b.c=1,a.b.d=2",
                json!({"a": {"b": {"c": 1, "d": 2}}}),
            ),
            (
                "escaped dot",
                r"nodeSelector.kubernetes\.io/os=linux",
                json!({"nodeSelector": {"kubernetes.io/os": "linux"}}),
            ),
            ("escaped comma", r"a=1\,2,b=3", json!({"a": "1,2", "b": 3})),
            ("list", "a={x,1,true}", json!({"a": ["x", 1, true]})),
            ("empty list", "a={}", json!({"a": []})),
            (
                "index",
                "a[0].k=v,a[2]=x",
                json!({"a": [{"k": "v"}, null, "x"]}),
            ),
            ("value with equals", "a=b=c", json!({"a": "b=c"})),
            ("empty value", "a=", json!({"a": ""})),
        ] {
            let mut tree = json!({});
            apply(&mut tree, text, Kind::Typed).expect(name);
            assert_eq!(tree, expected, "{name}");
        }
        let mut tree = json!({});
        apply(&mut tree, "a=1,b={2}", Kind::Text).expect("texts");
        assert_eq!(tree, json!({"a": "1", "b": ["2"]}));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, expected) in [
            ("a", Error::NoValue("a".into())),
            ("=1", Error::EmptyKey),
            ("a[x]=1", Error::Index("x]".into())),
            ("a[99999999]=1", Error::Index("99999999]".into())),
            ("a={1", Error::OpenList),
        ] {
            assert_eq!(
                apply(&mut json!({}), text, Kind::Typed),
                Err(expected),
                "{text}"
            );
        }
    }
}
