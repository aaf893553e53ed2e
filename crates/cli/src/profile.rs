//! ServiceProfiles written from what describes a service: an OpenAPI document (2 or 3) or a
//! protobuf file.

use serde_json::{Map, Value, json};

/// The order in which the methods of a path become routes.
const METHODS: [&str; 7] = ["delete", "get", "head", "options", "patch", "post", "put"];

pub fn object(name: &str, namespace: &str, routes: Vec<Value>) -> Value {
    json!({
        "apiVersion": "linkerd.io/v1alpha2",
        "kind": "ServiceProfile",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"routes": routes},
    })
}

/// Routes of an OpenAPI document.
pub fn openapi(document: &Value) -> Vec<Value> {
    let base = base_path(document);
    let mut paths: Vec<(&String, &Value)> = document["paths"]
        .as_object()
        .into_iter()
        .flatten()
        .collect();
    paths.sort_by_key(|(path, _)| *path);
    let mut routes = Vec::new();
    for (path, item) in paths {
        let path = format!(
            "{}/{}",
            base.trim_end_matches('/'),
            path.trim_start_matches('/')
        );
        for method in METHODS {
            let Some(operation) = item.get(method).filter(|operation| operation.is_object()) else {
                continue;
            };
            let method = method.to_uppercase();
            let mut route = Map::new();
            route.insert("name".to_owned(), format!("{method} {path}").into());
            route.insert(
                "condition".to_owned(),
                json!({"method": method, "pathRegex": path_regex(&path)}),
            );
            if operation["x-linkerd-retryable"] == Value::Bool(true) {
                route.insert("isRetryable".to_owned(), true.into());
            }
            if let Some(timeout) = operation["x-linkerd-timeout"].as_str() {
                route.insert("timeout".to_owned(), timeout.into());
            }
            let classes = response_classes(&operation["responses"]);
            if !classes.is_empty() {
                route.insert("responseClasses".to_owned(), classes.into());
            }
            routes.push(Value::Object(route));
        }
    }
    routes
}

/// `basePath` of version 2; the path of the first server in version 3.
fn base_path(document: &Value) -> String {
    if let Some(base) = document["basePath"].as_str() {
        return base.to_owned();
    }
    let url = document["servers"][0]["url"].as_str().unwrap_or_default();
    let path = url
        .split_once("://")
        .map_or(url, |(_, rest)| rest.find('/').map_or("", |at| &rest[at..]));
    path.to_owned()
}

fn response_classes(responses: &Value) -> Vec<Value> {
    let mut statuses: Vec<u16> = responses
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(status, _)| status.parse().ok())
        .collect();
    statuses.sort_unstable();
    let class = |status: u16| {
        let mut class = json!({"condition": {"status": {"min": status, "max": status}}});
        if status >= 500 {
            class["isFailure"] = true.into();
        }
        class
    };
    statuses.into_iter().map(class).collect()
}

/// The path with parameters as `[^/]*` and everything else literal.
pub fn path_regex(path: &str) -> String {
    let mut out = String::new();
    let mut rest = path;
    while let Some(open) = rest.find('{') {
        let Some(close) = rest[open..].find('}') else {
            break;
        };
        out += &escape(&rest[..open]);
        out += "[^/]*";
        rest = &rest[open + close + 1..];
    }
    out + &escape(rest)
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if r"\.+*?()|[]{}^$".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// Routes of a protobuf file: one for each rpc.
pub fn proto(text: &str) -> Result<Vec<Value>, String> {
    let tokens = tokens(text);
    let mut package = String::new();
    let mut routes = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        match tokens[at].as_str() {
            "package" => package = tokens.get(at + 1).cloned().unwrap_or_default(),
            "service" if tokens.get(at + 2).is_some_and(|token| token == "{") => {
                let service = &tokens[at + 1];
                let full = if package.is_empty() {
                    service.clone()
                } else {
                    format!("{package}.{service}")
                };
                at = rpcs(&tokens, at + 3, &full, &mut routes)?;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    Ok(routes)
}

/// The rpcs of a service from its opening brace on; the answer is where it ends.
fn rpcs(
    tokens: &[String],
    mut at: usize,
    service: &str,
    routes: &mut Vec<Value>,
) -> Result<usize, String> {
    let mut depth = 1_usize;
    while at < tokens.len() {
        match tokens[at].as_str() {
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                if depth == 0 {
                    return Ok(at + 1);
                }
            }
            "rpc" if depth == 1 => {
                let name = tokens.get(at + 1).ok_or("an rpc has no name")?;
                let path = escape(&format!("/{service}/{name}"));
                routes.push(
                    json!({"name": name, "condition": {"method": "POST", "pathRegex": path}}),
                );
            }
            "idempotency_level" => {
                let level = tokens.get(at + 2).map(String::as_str);
                if matches!(level, Some("IDEMPOTENT" | "NO_SIDE_EFFECTS"))
                    && let Some(route) = routes.last_mut()
                {
                    route["isRetryable"] = true.into();
                }
            }
            _ => {}
        }
        at += 1;
    }
    Err(format!("service {service} has no closing brace"))
}

/// Words and signs, without comments and strings.
fn tokens(text: &str) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut word = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let skip = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if c == '"' || c == '\'' {
            rest[1..].find(c).map_or(rest.len(), |end| end + 2)
        } else if c.is_alphanumeric() || c == '_' || c == '.' {
            word.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        } else {
            0
        };
        if !word.is_empty() {
            out.push(std::mem::take(&mut word));
        }
        if skip > 0 {
            rest = &rest[skip..];
        } else {
            if !c.is_whitespace() {
                out.push(c.to_string());
            }
            rest = &rest[c.len_utf8()..];
        }
    }
    if !word.is_empty() {
        out.push(word);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openapi_routes() {
        let document = json!({
            "basePath": "/api/",
            "paths": {
                "/b.x/{id}": {"post": {"responses": {"500": {}, "200": {}, "default": {}}, "x-linkerd-timeout": "1s"},
                    "get": {"x-linkerd-retryable": true}},
                "/a": {"get": {}, "parameters": []},
            },
        });
        let routes = openapi(&document);
        let names: Vec<&str> = routes
            .iter()
            .filter_map(|route| route["name"].as_str())
            .collect();
        assert_eq!(
            names,
            ["GET /api/a", "GET /api/b.x/{id}", "POST /api/b.x/{id}"]
        );
        assert_eq!(routes[1]["isRetryable"], true);
        assert_eq!(
            routes[2]["condition"],
            json!({"method": "POST", "pathRegex": r"/api/b\.x/[^/]*"})
        );
        assert_eq!(routes[2]["timeout"], "1s");
        assert_eq!(
            routes[2]["responseClasses"],
            json!([
                {"condition": {"status": {"min": 200, "max": 200}}},
                {"condition": {"status": {"min": 500, "max": 500}}, "isFailure": true},
            ])
        );
    }

    #[test]
    fn servers_of_version_3() {
        for (url, expected) in [
            ("https://x.org/v1", "/v1"),
            ("/v2", "/v2"),
            ("https://x.org", ""),
        ] {
            assert_eq!(
                base_path(&json!({"servers": [{"url": url}]})),
                expected,
                "{url}"
            );
        }
    }

    #[test]
    fn proto_routes() {
        let text = r#"
            syntax = "proto3"; // service Not { rpc A }
            package emoji.v1;
            /* service Neither {} */
            service Emoji {
                rpc List (Req) returns (stream Res) {}
                rpc Find (Req) returns (Res) { option idempotency_level = NO_SIDE_EFFECTS; }
                rpc Put (Req) returns (Res);
            }
            message rpc { string x = 1; }
        "#;
        let routes = proto(text).expect("routes");
        assert_eq!(
            routes,
            [
                json!({"name": "List", "condition": {"method": "POST", "pathRegex": r"/emoji\.v1\.Emoji/List"}}),
                json!({"name": "Find", "condition": {"method": "POST", "pathRegex": r"/emoji\.v1\.Emoji/Find"}, "isRetryable": true}),
                json!({"name": "Put", "condition": {"method": "POST", "pathRegex": r"/emoji\.v1\.Emoji/Put"}}),
            ]
        );
        proto("service X {").expect_err("open");
    }
}
