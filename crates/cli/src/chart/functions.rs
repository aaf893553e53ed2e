//! The functions our charts call, with Helm's meaning. A chart that calls another one fails to
//! parse, and a test renders every chart.

use super::{from_go, to_go};
use crate::yaml;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use gotmpl::{FuncMap, TemplateError, Value as Go, ValueFunc};
use linkerd_tls::issuer::generate::self_signed_server;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::{
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime},
};

type Answer = Result<Go, TemplateError>;

fn error(message: impl Into<String>) -> TemplateError {
    TemplateError::Exec(message.into())
}

fn text(value: &Go) -> String {
    match value {
        Go::Nil => String::new(),
        value => value.to_string(),
    }
}

fn string(value: impl Into<String>) -> Answer {
    Ok(Go::String(value.into().into()))
}

fn arg<'a>(args: &'a [Go], at: usize, function: &str) -> Result<&'a Go, TemplateError> {
    args.get(at).ok_or_else(|| {
        error(format!(
            "{function} needs {} arguments, has {}",
            at + 1,
            args.len()
        ))
    })
}

/// `fail` and `required` leave their message in `refused`, free of the engine's own words.
pub(super) fn all(refused: &Arc<OnceLock<String>>) -> FuncMap {
    let mut map = FuncMap::new();
    let mut add = |name: &str, function: ValueFunc| {
        map.insert(name.to_owned(), function);
    };

    // Texts
    add(
        "quote",
        Arc::new(|args| {
            string(
                args.iter()
                    .map(|arg| format!("{:?}", text(arg)))
                    .collect::<Vec<_>>()
                    .join(" "),
            )
        }),
    );
    add(
        "trim",
        Arc::new(|args| string(text(arg(args, 0, "trim")?).trim())),
    );
    add(
        "trimAll",
        Arc::new(|args| {
            let letters: Vec<char> = text(arg(args, 0, "trimAll")?).chars().collect();
            string(text(arg(args, 1, "trimAll")?).trim_matches(letters.as_slice()))
        }),
    );
    add(
        "trimSuffix",
        Arc::new(|args| {
            let (suffix, whole) = (
                text(arg(args, 0, "trimSuffix")?),
                text(arg(args, 1, "trimSuffix")?),
            );
            string(whole.strip_suffix(&suffix).unwrap_or(&whole))
        }),
    );
    add(
        "toString",
        Arc::new(|args| string(text(arg(args, 0, "toString")?))),
    );
    add(
        "upper",
        Arc::new(|args| string(text(arg(args, 0, "upper")?).to_uppercase())),
    );
    add(
        "snakecase",
        Arc::new(|args| string(snake_case(&text(arg(args, 0, "snakecase")?)))),
    );
    add(
        "b64enc",
        Arc::new(|args| string(STANDARD.encode(text(arg(args, 0, "b64enc")?)))),
    );
    add(
        "sha256sum",
        Arc::new(|args| {
            let digest = Sha256::digest(text(arg(args, 0, "sha256sum")?).as_bytes());
            string(
                digest
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect::<String>(),
            )
        }),
    );
    add("indent", Arc::new(|args| string(indent(args, "indent")?)));
    add(
        "nindent",
        Arc::new(|args| string(format!("\n{}", indent(args, "nindent")?))),
    );
    add(
        "splitList",
        Arc::new(|args| {
            let (separator, whole) = (
                text(arg(args, 0, "splitList")?),
                text(arg(args, 1, "splitList")?),
            );
            let parts = whole.split(separator.as_str());
            Ok(Go::List(
                parts.map(|part| Go::String(part.into())).collect(),
            ))
        }),
    );
    add(
        "join",
        Arc::new(|args| {
            let separator = text(arg(args, 0, "join")?);
            match arg(args, 1, "join")? {
                Go::List(items) => {
                    string(items.iter().map(text).collect::<Vec<_>>().join(&separator))
                }
                single => string(text(single)),
            }
        }),
    );

    // Choices
    add(
        "default",
        Arc::new(|args| {
            let value = args.get(1).filter(|value| value.is_truthy());
            value.map_or_else(|| arg(args, 0, "default"), Ok).cloned()
        }),
    );
    add(
        "ternary",
        Arc::new(|args| {
            let at = if arg(args, 2, "ternary")?.is_truthy() {
                0
            } else {
                1
            };
            Ok(args[at].clone())
        }),
    );
    let message = refused.clone();
    add(
        "fail",
        Arc::new(move |args| Err(refuse(&message, text(arg(args, 0, "fail")?)))),
    );
    let message = refused.clone();
    add(
        "required",
        Arc::new(move |args| {
            let value = args
                .get(1)
                .filter(|value| !matches!(value, Go::Nil) && value.as_str() != Some(""));
            match value {
                Some(value) => Ok(value.clone()),
                None => Err(refuse(&message, text(arg(args, 0, "required")?))),
            }
        }),
    );

    // Numbers
    add(
        "int",
        Arc::new(|args| Ok(Go::Int(whole(arg(args, 0, "int")?)))),
    );

    add(
        "int64",
        Arc::new(|args| Ok(Go::Int(whole(arg(args, 0, "int64")?)))),
    );
    add(
        "add",
        Arc::new(|args| Ok(Go::Int(args.iter().map(whole).fold(0, i64::saturating_add)))),
    );
    add(
        "max",
        Arc::new(|args| Ok(Go::Int(args.iter().map(whole).max().unwrap_or(0)))),
    );
    add(
        "div",
        Arc::new(|args| divided(args, "div", i64::checked_div)),
    );
    add(
        "mod",
        Arc::new(|args| divided(args, "mod", i64::checked_rem)),
    );
    add(
        "mulf",
        Arc::new(|args| Ok(Go::Float(args.iter().map(decimal).product()))),
    );

    // Collections
    add(
        "hasKey",
        Arc::new(|args| {
            let key = text(arg(args, 1, "hasKey")?);
            match arg(args, 0, "hasKey")? {
                Go::Map(map) => Ok(Go::Bool(map.contains_key(key.as_str()))),
                _ => Err(error("hasKey needs a dict")),
            }
        }),
    );
    add("list", Arc::new(|args| Ok(Go::List(args.into()))));
    add(
        "append",
        Arc::new(|args| {
            let Go::List(items) = arg(args, 0, "append")? else {
                return Err(error("append needs a list"));
            };
            let mut items = items.to_vec();
            items.push(arg(args, 1, "append")?.clone());
            Ok(Go::List(items.into()))
        }),
    );
    add(
        "kindIs",
        Arc::new(|args| {
            let kind = match arg(args, 1, "kindIs")? {
                Go::String(_) => "string",
                Go::Map(_) => "map",
                Go::List(_) => "slice",
                Go::Bool(_) => "bool",
                Go::Nil => "invalid",
                _ => "number",
            };
            Ok(Go::Bool(text(arg(args, 0, "kindIs")?) == kind))
        }),
    );
    add(
        "has",
        Arc::new(|args| {
            let needle = from_go(arg(args, 0, "has")?);
            let Go::List(items) = arg(args, 1, "has")? else {
                return Ok(Go::Bool(false));
            };
            Ok(Go::Bool(items.iter().any(|item| from_go(item) == needle)))
        }),
    );
    add(
        "dict",
        Arc::new(|args| {
            let pairs = args.chunks(2).map(|pair| {
                (
                    Arc::from(text(&pair[0])),
                    pair.get(1).cloned().unwrap_or(Go::Nil),
                )
            });
            Ok(Go::Map(Arc::new(pairs.collect())))
        }),
    );
    add(
        "omit",
        Arc::new(|args| {
            let Go::Map(map) = arg(args, 0, "omit")? else {
                return Ok(Go::Nil);
            };
            let omitted: Vec<String> = args[1..].iter().map(text).collect();
            let kept = map
                .iter()
                .filter(|(key, _)| !omitted.iter().any(|name| **name == ***key));
            Ok(Go::Map(Arc::new(
                kept.map(|(key, value)| (key.clone(), value.clone()))
                    .collect(),
            )))
        }),
    );
    add(
        "merge",
        Arc::new(|args| {
            let mut merged = from_go(arg(args, 0, "merge")?);
            args[1..]
                .iter()
                .for_each(|other| fill(&mut merged, from_go(other)));
            Ok(to_go(&merged))
        }),
    );

    // Formats
    add(
        "toYaml",
        Arc::new(|args| string(yaml::write(&from_go(arg(args, 0, "toYaml")?)))),
    );
    add(
        "toJson",
        Arc::new(|args| {
            string(
                serde_json::to_string(&from_go(arg(args, 0, "toJson")?))
                    .map_err(|cause| error(cause.to_string()))?,
            )
        }),
    );

    // Time and certificates
    add(
        "now",
        Arc::new(|_| Ok(Go::Int(jiff::Timestamp::now().as_second()))),
    );
    add(
        "dateModify",
        Arc::new(|args| {
            let span: jiff::SignedDuration = text(arg(args, 0, "dateModify")?)
                .parse()
                .map_err(|cause| error(format!("dateModify: {cause}")))?;
            let at = arg(args, 1, "dateModify")?.as_int().unwrap_or_default();
            Ok(Go::Int(at.saturating_add(span.as_secs())))
        }),
    );
    add("dateInZone", Arc::new(date_in_zone));
    add("genSelfSignedCert", Arc::new(self_signed));
    map
}

/// A number as Go makes it of anything.
fn whole(value: &Go) -> i64 {
    match value {
        Go::Int(int) => *int,
        Go::Uint(int) => i64::try_from(*int).unwrap_or(i64::MAX),
        #[expect(clippy::cast_possible_truncation, reason = "Go truncates too")]
        Go::Float(float) => *float as i64,
        Go::Bool(value) => i64::from(*value),
        other => text(other).trim().parse().unwrap_or(0),
    }
}

fn decimal(value: &Go) -> f64 {
    match value {
        Go::Float(float) => *float,
        other => text(other).trim().parse().unwrap_or(0.0),
    }
}

fn divided(args: &[Go], function: &str, by: fn(i64, i64) -> Option<i64>) -> Answer {
    let (left, right) = (arg(args, 0, function)?, arg(args, 1, function)?);
    by(whole(left), whole(right))
        .map(Go::Int)
        .ok_or_else(|| error(format!("{function} by zero")))
}

fn refuse(message: &OnceLock<String>, text: String) -> TemplateError {
    message.get_or_init(|| text.clone());
    error(text)
}

fn snake_case(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 4);
    for (at, c) in name.char_indices() {
        if c.is_ascii_uppercase() && at > 0 {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

fn indent(args: &[Go], function: &str) -> Result<String, TemplateError> {
    let width = arg(args, 0, function)?
        .as_int()
        .and_then(|width| usize::try_from(width).ok())
        .unwrap_or_default();
    let pad = " ".repeat(width);
    Ok(format!(
        "{pad}{}",
        text(arg(args, 1, function)?).replace('\n', &format!("\n{pad}"))
    ))
}

/// Keys of `other` that `target` lacks, at every depth.
fn fill(target: &mut Value, other: Value) {
    let (Value::Object(target), Value::Object(other)) = (target, other) else {
        return;
    };
    for (key, value) in other {
        match target.get_mut(&key) {
            Some(existing) => fill(existing, value),
            None => {
                target.insert(key, value);
            }
        }
    }
}

/// The one layout our chart asks for: minute and hour, in UTC.
fn date_in_zone(args: &[Go]) -> Answer {
    let (layout, zone) = (
        text(arg(args, 0, "dateInZone")?),
        text(arg(args, 2, "dateInZone")?),
    );
    if (layout.as_str(), zone.as_str()) != ("04 15", "UTC") {
        return Err(error(format!(
            "dateInZone: layout {layout:?} in {zone:?} is not supported"
        )));
    }
    let seconds = arg(args, 1, "dateInZone")?.as_int().unwrap_or_default();
    let at = jiff::Timestamp::from_second(seconds).map_err(|cause| error(cause.to_string()))?;
    string(at.strftime("%M %H").to_string())
}

/// A server certificate that is its own authority, for a webhook; days are counted from now.
fn self_signed(args: &[Go]) -> Answer {
    let host = text(arg(args, 0, "genSelfSignedCert")?);
    let days = arg(args, 3, "genSelfSignedCert")?
        .as_int()
        .and_then(|days| u64::try_from(days).ok())
        .unwrap_or(365);
    let now = SystemTime::now();
    let validity = (
        now - Duration::from_secs(10),
        now + Duration::from_secs(days * 86_400),
    );
    let failed = |cause: &dyn std::fmt::Display| error(format!("genSelfSignedCert: {cause}"));
    let (certificate, key) = self_signed_server(&host, validity).map_err(|cause| failed(&cause))?;
    let key = key.to_sec1_pem().map_err(|cause| failed(&cause))?;
    Ok(to_go(
        &serde_json::json!({"Cert": certificate.to_pem(), "Key": key}),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn merge_fills_what_is_missing() {
        let mut target = json!({"a": {"x": 1}, "b": null});
        fill(&mut target, json!({"a": {"x": 2, "y": 3}, "b": 4, "c": 5}));
        assert_eq!(target, json!({"a": {"x": 1, "y": 3}, "b": null, "c": 5}));
    }

    #[test]
    fn indentation_reaches_every_line() {
        let rendered =
            indent(&[Go::Int(2), Go::String("a\nb".into())], "indent").expect("indented");
        assert_eq!(rendered, "  a\n  b");
    }
}
