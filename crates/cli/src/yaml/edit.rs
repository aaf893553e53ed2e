//! Changes to YAML that leave the rest of the text alone: order, comments and quotes stay as people
//! wrote them. Only block style is edited; what cannot be is for the caller to write anew, and no
//! edit is handed out that does not read back as what was wanted.

use serde_json::Value;

/// The text with `old` turned into `new`, or nothing when that takes a new text.
pub fn edit(text: &str, old: &Value, new: &Value) -> Option<String> {
    let lines: Vec<Line<'_>> = text.lines().map(Line::of).collect();
    let first = lines.iter().position(|line| !line.is_idle())?;
    let root = node(&lines, first, lines[first].indent, lines.len());
    let mut edits = Vec::new();
    change(&root, old, new, &mut edits)?;
    let edited = apply(&lines, edits);
    (super::parse(&edited).ok().as_ref() == Some(new)).then_some(edited)
}

#[derive(Clone, Copy, Debug)]
struct Line<'a> {
    text: &'a str,
    indent: usize,
}

impl<'a> Line<'a> {
    fn of(text: &'a str) -> Self {
        let indent = text.len() - text.trim_start_matches(' ').len();
        Self { text, indent }
    }

    /// Neither blank nor a comment is part of the data.
    fn is_idle(&self) -> bool {
        let content = self.text.trim();
        content.is_empty() || content.starts_with('#')
    }

    fn from(&self, column: usize) -> &'a str {
        self.text.get(column..).unwrap_or_default()
    }
}

/// A part of the text: which lines, and what is in them.
#[derive(Debug)]
struct Node {
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Keys that all begin at this column.
    Map(usize, Vec<(String, Part)>),
    /// Dashes that all stand at this column.
    List(usize, Vec<Part>),
    /// A scalar, or something in flow style.
    Other,
}

/// An entry of a mapping or of a list with its lines; idle lines at its end are not its own.
#[derive(Debug)]
struct Part {
    first: usize,
    end: usize,
    node: Node,
}

/// What begins at a column of a line and ends before another line.
fn node(lines: &[Line<'_>], first: usize, column: usize, end: usize) -> Node {
    let content = lines[first].from(column);
    let kind = if content == "-" || content.starts_with("- ") {
        list(lines, first, column, end)
    } else {
        map(lines, first, column, end)
    };
    Node {
        kind: kind.unwrap_or(Kind::Other),
    }
}

fn list(lines: &[Line<'_>], first: usize, column: usize, end: usize) -> Option<Kind> {
    let dashes = starts(lines, first, column, end, |content| {
        content == "-" || content.starts_with("- ")
    })?;
    let mut items = Vec::new();
    for (at, next) in spans(&dashes, end) {
        let content = &lines[at].from(column)[1..];
        let spaces = content.len() - content.trim_start_matches(' ').len();
        let node = if content.trim().is_empty() || content.trim_start().starts_with('#') {
            below(lines, at + 1, next)
        } else {
            node(lines, at, column + 1 + spaces, next)
        };
        items.push(Part {
            first: at,
            end: trimmed(lines, at, next),
            node,
        });
    }
    Some(Kind::List(column, items))
}

fn map(lines: &[Line<'_>], first: usize, column: usize, end: usize) -> Option<Kind> {
    // A list may stand as far left as the key it belongs to.
    let keys = starts(lines, first, column, end, |content| !is_dash(content))?;
    let mut entries = Vec::new();
    for (at, next) in spans(&keys, end) {
        let (key, value) = key(lines[at].from(column))?;
        let node = if value.is_empty() || value.starts_with('#') {
            below(lines, at + 1, next)
        } else {
            Node { kind: Kind::Other }
        };
        entries.push((
            key,
            Part {
                first: at,
                end: trimmed(lines, at, next),
                node,
            },
        ));
    }
    Some(Kind::Map(column, entries))
}

fn is_dash(content: &str) -> bool {
    content == "-" || content.starts_with("- ")
}

/// Lines at which entries begin: the first, and those at its column. Nothing may stand further left.
fn starts(
    lines: &[Line<'_>],
    first: usize,
    column: usize,
    end: usize,
    begins: impl Fn(&str) -> bool,
) -> Option<Vec<usize>> {
    let mut found = vec![first];
    for (at, line) in lines.iter().enumerate().take(end).skip(first + 1) {
        if line.is_idle() || line.indent > column {
            continue;
        }
        if line.indent < column {
            return None;
        }
        if begins(line.from(column)) {
            found.push(at);
        }
    }
    Some(found)
}

fn spans(starts: &[usize], end: usize) -> impl Iterator<Item = (usize, usize)> {
    let ends = starts.iter().skip(1).copied().chain([end]);
    starts.iter().copied().zip(ends)
}

/// The node in the lines below a key or a dash.
fn below(lines: &[Line<'_>], from: usize, end: usize) -> Node {
    match (from..end).find(|at| !lines[*at].is_idle()) {
        Some(at) => node(lines, at, lines[at].indent, end),
        None => Node { kind: Kind::Other },
    }
}

/// Where the entry's own lines end.
fn trimmed(lines: &[Line<'_>], first: usize, end: usize) -> usize {
    let last = (first..end).rev().find(|at| !lines[*at].is_idle());
    last.map_or(end, |at| at + 1)
}

/// A key and what follows its colon.
fn key(content: &str) -> Option<(String, &str)> {
    let (key, rest) = match content.chars().next()? {
        '"' => {
            let end = content[1..].find('"')? + 2;
            let key: String = serde_json::from_str(&content[..end]).ok()?;
            (key, &content[end..])
        }
        '\'' => {
            let end = content[1..].find('\'')? + 1;
            (content[1..end].to_owned(), &content[end + 1..])
        }
        '{' | '[' | '|' | '>' | '&' | '*' | '!' | '?' | '%' | '@' | '`' => return None,
        _ => {
            let colons = content.match_indices(':');
            let ends = |at: usize| matches!(content.as_bytes().get(at + 1), None | Some(b' '));
            let at = colons.map(|(at, _)| at).find(|at| ends(*at))?;
            (content[..at].trim_end().to_owned(), &content[at..])
        }
    };
    let rest = rest.trim_start().strip_prefix(':')?;
    Some((key, rest.trim()))
}

/// Lines from `first` up to `end` become `text`.
#[derive(Debug)]
struct Edit {
    first: usize,
    end: usize,
    text: String,
}

fn change(node: &Node, old: &Value, new: &Value, edits: &mut Vec<Edit>) -> Option<()> {
    if old == new {
        return Some(());
    }
    match (&node.kind, old, new) {
        (Kind::Map(column, entries), Value::Object(was), Value::Object(is)) => {
            let known = entries.iter().all(|(key, _)| was.contains_key(key));
            if !known || entries.len() != was.len() {
                return None;
            }
            for (key, part) in entries {
                match is.get(key) {
                    None => edits.push(Edit {
                        first: part.first,
                        end: part.end,
                        text: String::new(),
                    }),
                    Some(value) if *value == was[key] => {}
                    Some(value) => {
                        let mut inner = Vec::new();
                        match change(&part.node, &was[key], value, &mut inner) {
                            Some(()) => edits.append(&mut inner),
                            None => edits.push(Edit {
                                first: part.first,
                                end: part.end,
                                text: entry(*column, key, value),
                            }),
                        }
                    }
                }
            }
            for (key, value) in is.iter().filter(|(key, _)| !was.contains_key(*key)) {
                // After the last smaller key, as in a sorted mapping; else at its end.
                let before = entries.iter().rev().find(|(other, _)| other < key);
                let (_, part) = before.or_else(|| entries.last())?;
                edits.push(Edit {
                    first: part.end,
                    end: part.end,
                    text: entry(*column, key, value),
                });
            }
            Some(())
        }
        (Kind::List(column, items), Value::Array(was), Value::Array(is)) => {
            if items.len() != was.len() || is.is_empty() {
                return None;
            }
            rows(*column, items, was, is, edits)
        }
        _ => None,
    }
}

/// Walks both lists: what is in both stays, what is only in the new one is put where it belongs.
fn rows(
    column: usize,
    items: &[Part],
    was: &[Value],
    is: &[Value],
    edits: &mut Vec<Edit>,
) -> Option<()> {
    let insert = |at: usize, value: &Value| {
        let line = match items.get(at) {
            Some(part) => part.first,
            None => items.last().map_or(0, |part| part.end),
        };
        Edit {
            first: line,
            end: line,
            text: row(column, value),
        }
    };
    let (mut a, mut b) = (0, 0);
    while a < was.len() || b < is.len() {
        match (was.get(a), is.get(b)) {
            (Some(old), Some(new)) if old == new => (a, b) = (a + 1, b + 1),
            (Some(old), Some(new)) if is[b..].contains(old) => {
                edits.push(insert(a, new));
                b += 1;
            }
            (Some(old), Some(new)) if is_same(old, new) => {
                change(&items[a].node, old, new, edits)?;
                (a, b) = (a + 1, b + 1);
            }
            (Some(_), _) => {
                edits.push(Edit {
                    first: items[a].first,
                    end: items[a].end,
                    text: String::new(),
                });
                a += 1;
            }
            (None, Some(new)) => {
                edits.push(insert(a, new));
                b += 1;
            }
            (None, None) => break,
        }
    }
    Some(())
}

/// Whether two items are one thing that has changed: a container, or an object of a list.
fn is_same(old: &Value, new: &Value) -> bool {
    let names = |item: &Value| (item["name"].clone(), item["metadata"]["name"].clone());
    let (own, object) = names(old);
    (own.is_string() || object.is_string())
        && names(new) == (own, object)
        && old["kind"] == new["kind"]
}

fn entry(column: usize, key: &str, value: &Value) -> String {
    let map = serde_json::Map::from_iter([(key.to_owned(), value.clone())]);
    indented(column, &super::write(&Value::Object(map)))
}

fn row(column: usize, value: &Value) -> String {
    indented(column, &super::write(&Value::Array(vec![value.clone()])))
}

fn indented(column: usize, text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        if !line.is_empty() {
            out.extend(std::iter::repeat_n(' ', column));
        }
        out += line;
        out.push('\n');
    }
    out
}

/// Edits at the same line keep their order.
fn apply(lines: &[Line<'_>], mut edits: Vec<Edit>) -> String {
    edits.sort_by_key(|edit| edit.first);
    let mut out = String::new();
    let mut at = 0;
    for edit in edits {
        for line in &lines[at.min(edit.first)..edit.first] {
            out += line.text;
            out.push('\n');
        }
        out += &edit.text;
        at = edit.end.max(at);
    }
    for line in &lines[at..] {
        out += line.text;
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const DEPLOYMENT: &str = r#"# The shop's front door.
apiVersion: apps/v1
kind: Deployment
metadata:
  name: "web"   # not www
  labels: {app: web}
spec:
  replicas: 2
  template:
    metadata:
      labels:
        app: web
        # added by hand
        tier: 'front'

    # what runs
    spec:
      containers:
      # the server
      - image: web:1
        name: web
        args: ["a", "b"]
      - name: log
        image: log:1
        command:
        - sh
        - |
          # not a comment
          tail -f /x
      volumes:
      - name: data
        emptyDir: {}
# the end
"#;

    fn after(change: impl Fn(&mut Value)) -> Option<String> {
        let old = super::super::parse(DEPLOYMENT).expect("YAML");
        let mut new = old.clone();
        change(&mut new);
        edit(DEPLOYMENT, &old, &new)
    }

    #[test]
    fn a_new_mapping_stands_beside_its_sisters() {
        let text = after(|value| {
            value["spec"]["template"]["metadata"]["annotations"] =
                json!({"linkerd.io/inject": "enabled", "b": "1"});
        });
        let expected = DEPLOYMENT.replace(
            "        tier: 'front'\n",
            "        tier: 'front'\n      annotations:\n        b: \"1\"\n        linkerd.io/inject: enabled\n",
        );
        assert_eq!(text, Some(expected));
    }

    #[test]
    fn list_items_come_and_go() {
        let text = after(|value| {
            let spec = &mut value["spec"]["template"]["spec"];
            let containers = spec["containers"].as_array_mut().expect("a list");
            containers.insert(0, json!({"name": "proxy"}));
            containers.push(json!({"name": "last", "args": ["x"]}));
            containers.remove(2);
            let volumes = spec["volumes"].as_array_mut().expect("a list");
            volumes.push(json!({"name": "more"}));
        });
        let expected = DEPLOYMENT
            .replace(
                "      - image: web:1\n",
                "      - name: proxy\n      - image: web:1\n",
            )
            .replace(
                "      - name: log\n        image: log:1\n        command:\n        - sh\n        - |\n          # not a comment\n          tail -f /x\n",
                "      - args:\n        - x\n        name: last\n",
            )
            .replace("        emptyDir: {}\n", "        emptyDir: {}\n      - name: more\n");
        assert_eq!(text, Some(expected));
    }

    #[test]
    fn scalars_are_replaced_and_keys_removed() {
        let text = after(|value| {
            value["spec"]["replicas"] = json!(3);
            value["metadata"]["labels"] = json!({"app": "shop"});
            let labels = value["spec"]["template"]["metadata"]["labels"].as_object_mut();
            labels.expect("labels").shift_remove("tier");
        });
        let expected = DEPLOYMENT
            .replace("replicas: 2", "replicas: 3")
            .replace("  labels: {app: web}\n", "  labels:\n    app: shop\n")
            .replace("        tier: 'front'\n", "");
        assert_eq!(text, Some(expected));
    }

    #[test]
    fn an_edit_and_its_opposite_are_nothing() {
        let old = super::super::parse(DEPLOYMENT).expect("YAML");
        let mut new = old.clone();
        new["spec"]["template"]["metadata"]["annotations"] = json!({"a": "b"});
        new["spec"]["template"]["spec"]["initContainers"] =
            json!([{"name": "init", "args": ["1"]}]);
        let there = edit(DEPLOYMENT, &old, &new).expect("edited");
        assert_eq!(edit(&there, &new, &old).as_deref(), Some(DEPLOYMENT));
    }

    #[test]
    fn an_object_of_a_list_is_edited_in_place() {
        let text = "apiVersion: v1\nitems:\n- kind: A\n  metadata:\n    name: a # one\n  spec: 25%\n- kind: A\n  metadata:\n    name: b\nkind: List\n";
        let old = super::super::parse(text).expect("YAML");
        let mut new = old.clone();
        for item in new["items"].as_array_mut().expect("a list") {
            item["metadata"]["annotations"] = json!({"x": "y"});
        }
        let expected = text
            .replace(
                "name: a # one\n",
                "name: a # one\n    annotations:\n      x: \"y\"\n",
            )
            .replace("name: b\n", "name: b\n    annotations:\n      x: \"y\"\n");
        assert_eq!(edit(text, &old, &new), Some(expected));
    }

    #[test]
    fn what_is_not_in_block_style_is_left_to_the_caller() {
        for text in [
            "{\"a\": {\"b\": 1}}",
            "a: &x {b: 1}\nc: *x\n",
            "- &x\n  a: 1\n- <<: *x\n  b: 2\n",
            "",
            "just text",
        ] {
            let old = super::super::parse(text).expect("YAML");
            let mut new = old.clone();
            match &mut new {
                Value::Object(map) => map.clear(),
                other => *other = json!({"z": 1}),
            }
            if let Some(edited) = edit(text, &old, &new) {
                assert_eq!(super::super::parse(&edited).expect("YAML"), new, "{text}");
            }
        }
    }
}
