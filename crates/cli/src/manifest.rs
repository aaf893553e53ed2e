//! Manifests as people keep them: files, folders, stdin or URLs with several YAML or JSON documents
//! each. A document that cannot be read is named by its number and line.

use crate::{commands::Format, fetch, printer::Printer, yaml};
use anyhow::{Context as _, Result, anyhow};
use serde_json::Value;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// One document: its text as it was, and what it says.
#[derive(Clone, Debug)]
pub struct Document {
    pub text: String,
    pub value: Value,
}

/// Documents of a YAML stream with the number of lines before each.
pub fn split(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut starts = vec![(0, 0, 0)];
    let (mut offset, mut line) = (0, 0);
    for row in text.split_inclusive('\n') {
        offset += row.len();
        line += 1;
        if is_separator(row) {
            starts.push((offset, line, offset - row.len()));
        }
    }
    let ends: Vec<usize> = starts
        .iter()
        .skip(1)
        .map(|start| start.2)
        .chain([text.len()])
        .collect();
    starts
        .into_iter()
        .zip(ends)
        .map(move |((from, line, _), to)| (line, &text[from..to]))
}

fn is_separator(row: &str) -> bool {
    let Some(rest) = row.strip_prefix("---") else {
        return false;
    };
    let rest = rest.trim();
    rest.is_empty() || rest.starts_with('#')
}

/// Reads the documents of one text; those without content are left out.
pub fn documents(place: &str, text: &str) -> Result<Vec<Document>> {
    let mut out = Vec::new();
    let mut number = 0;
    for (before, text) in split(text) {
        let content = text
            .lines()
            .map(str::trim)
            .any(|line| !line.is_empty() && !line.starts_with('#'));
        if !content {
            continue;
        }
        if let Some(objects) = json_stream(text) {
            number += objects.len();
            out.extend(objects);
            continue;
        }
        number += 1;
        let value = yaml::parse(text).map_err(|error| {
            // The same text where it stands in the file gives the file's own line numbers.
            let placed = format!("{}{text}", "\n".repeat(before));
            let error = yaml::parse(&placed).err().unwrap_or(error);
            anyhow!("{place}: document {number} is not valid YAML: {error}")
        })?;
        out.push(Document {
            text: text.trim_end().to_owned(),
            value,
        });
    }
    Ok(out)
}

/// JSON objects one after another, as `-o json` prints them; nothing when it is not that.
fn json_stream(text: &str) -> Option<Vec<Document>> {
    let text = text.trim();
    if !text.starts_with('{') {
        return None;
    }
    let mut out = Vec::new();
    let mut objects = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let mut from = 0;
    while let Some(value) = objects.next() {
        let value = value.ok()?;
        let to = objects.byte_offset();
        out.push(Document {
            text: text[from..to].trim().to_owned(),
            value,
        });
        from = to;
    }
    Some(out)
}

/// Reads what an argument names: `-`, an https URL, a file, or every file of a folder in lexical
/// order.
pub async fn read(place: &str) -> Result<Vec<Document>> {
    if place != "-" && !fetch::is_url(place) {
        let path = Path::new(place);
        let about = fs::metadata(path).with_context(|| format!("cannot read {place}"))?;
        if about.is_dir() {
            let mut files = Vec::new();
            walk(path, &mut files).with_context(|| format!("cannot read {place}"))?;
            let mut out = Vec::new();
            for file in files {
                let file = file.display().to_string();
                out.extend(documents(&file, &fetch::text(&file).await?)?);
            }
            return Ok(out);
        }
    }
    let name = if place == "-" { "stdin" } else { place };
    documents(name, &fetch::text(place).await?)
}

fn walk(dir: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    let mut entries = fs::read_dir(dir)?
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<Vec<_>>>()?;
    entries.sort();
    for path in entries {
        if path.is_dir() {
            walk(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

/// Prints documents: YAML each followed by `---`, JSON one per line.
pub fn print(printer: &mut Printer, documents: &[Document], format: Format) -> io::Result<()> {
    for document in documents {
        match format {
            Format::Yaml => {
                printer.out(document.text.trim_start_matches('\n'))?;
                printer.out("---")?;
            }
            Format::Json => printer.out(&document.value)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_split() {
        for (name, text, expected) in [
            ("one", "a: 1\n", vec!["a: 1"]),
            ("two", "a: 1\n---\nb: 2", vec!["a: 1", "b: 2"]),
            ("marked start", "---\na: 1\n---\n", vec!["a: 1"]),
            (
                "comments between",
                "# x\n--- # next\n# y\na: 1\n",
                vec!["# y\na: 1"],
            ),
            (
                "a scalar that looks so",
                "a: |\n  ---\nb: 1\n",
                vec!["a: |\n  ---\nb: 1"],
            ),
            ("json", "{\"a\": 1}\n", vec!["{\"a\": 1}"]),
            (
                "json after json",
                "{\"a\": 1}\n{\"b\":\n 2}{}\n",
                vec!["{\"a\": 1}", "{\"b\":\n 2}", "{}"],
            ),
            (
                "json, then yaml",
                "{\"a\": 1} {\"b\": 2}\n---\nc: 3\n",
                vec!["{\"a\": 1}", "{\"b\": 2}", "c: 3"],
            ),
            ("yaml in braces", "{a: 1}\n", vec!["{a: 1}"]),
            ("none", "", vec![]),
        ] {
            let documents = documents("f", text).expect(name);
            let texts: Vec<&str> = documents.iter().map(|d| d.text.as_str()).collect();
            assert_eq!(texts, expected, "{name}");
        }
    }

    #[test]
    fn a_malformed_document_is_named_with_its_line() {
        let text = "a: 1\n---\nb: 2\n---\nkind: X\nc: [1\n---\nd: 4\n---\ne: 5\n";
        let error = documents("stdin", text).expect_err("broken").to_string();
        assert!(
            error.starts_with("stdin: document 3 is not valid YAML: "),
            "{error}"
        );
        assert!(error.contains("at line 6 column 4"), "{error}");
    }
}
