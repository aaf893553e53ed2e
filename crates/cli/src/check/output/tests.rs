//! The transcripts of the quick start, line by line, and the other two formats.

use super::*;
use std::{
    fs,
    io::Write,
    path::Path,
    sync::{Arc, Mutex},
};

/// A buffer that can be read after the printer took it.
#[derive(Clone, Default)]
pub(crate) struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    pub(crate) fn text(&self) -> String {
        let bytes = self.0.lock().expect("one thread").clone();
        String::from_utf8(bytes).expect("text")
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("one thread").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn printed(format: Format, blocks: &[(bool, Vec<Report>)], success: bool) -> String {
    let shared = Shared::default();
    let mut printer = Printer::to(shared.clone(), io::sink());
    let mut output = Output::new(&mut printer, format);
    for (success, reports) in blocks {
        for report in reports {
            output.report(report.clone()).expect("a buffer");
        }
        output.end_block(*success).expect("a buffer");
    }
    output.status(success).expect("a buffer");
    drop(printer);
    shared.text()
}

/// Reads a transcript back into reports: categories, marks, details and hints.
fn reports(transcript: &str) -> Vec<Report> {
    let mut reports: Vec<Report> = Vec::new();
    let mut category = String::new();
    let lines: Vec<&str> = transcript.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        let under = lines.get(at + 1).copied().unwrap_or_default();
        let mark = [
            ("√ ", Outcome::Success),
            ("‼ ", Outcome::Warning),
            ("× ", Outcome::Error),
        ];
        let marked = mark
            .iter()
            .find_map(|(mark, outcome)| Some((line.strip_prefix(mark)?, *outcome)));
        if under.starts_with("--") && under.chars().all(|c| c == '-') {
            category = (*line).to_owned();
        } else if let Some((description, outcome)) = marked {
            reports.push(Report {
                category: category.clone(),
                description: description.to_owned(),
                outcome,
                error: None,
                hint: None,
            });
        } else if let Some(last) = reports.last_mut().filter(|r| r.outcome != Outcome::Success) {
            let hint = line
                .strip_prefix("    see ")
                .and_then(|l| l.strip_suffix(" for hints"));
            match (hint, &mut last.error) {
                (Some(hint), _) => last.hint = Some(hint.to_owned()),
                (None, Some(error)) if last.hint.is_none() => {
                    error.push('\n');
                    error.push_str(line);
                }
                (None, None) => last.error = line.strip_prefix("    ").map(str::to_owned),
                _ => {}
            }
        }
    }
    reports
}

fn golden(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden/check")
        .join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn assert_golden(name: &str, text: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/golden/check")
            .join(name);
        fs::write(path, text).expect("write the golden file");
    }
    assert_eq!(text, golden(name), "{name}");
}

#[test]
fn the_quick_start_comes_out_line_by_line() {
    for (name, count) in [("pre.txt", 16), ("check.txt", 42), ("proxy.txt", 47)] {
        let expected = golden(name);
        let reports = reports(&expected);
        assert_eq!(reports.len(), count, "{name}");
        let printed = printed(Format::Table, &[(true, reports)], true);
        assert_eq!(printed, expected, "{name}");
    }
}

#[test]
fn an_extension_is_a_block_of_its_own() {
    let expected = golden("viz.txt");
    let (core, viz): (Vec<_>, Vec<_>) = reports(&expected)
        .into_iter()
        .partition(|report| report.category != "linkerd-viz");
    let blocks = [(true, core), (true, viz)];
    assert_eq!(printed(Format::Table, &blocks, true), expected);
}

#[test]
fn short_shows_problems_only() {
    let all = reports(&golden("check.txt"));
    assert_golden(
        "check-short.txt",
        &printed(Format::Short, &[(true, all)], true),
    );
    let fine = reports(&golden("pre.txt"))
        .into_iter()
        .filter(|report| report.outcome == Outcome::Success);
    let printed = printed(Format::Short, &[(true, fine.collect())], true);
    assert_eq!(printed, "Status check results are √\n");
}

#[test]
fn json_is_one_document_per_block() {
    let mut reports = reports(&golden("pre.txt"));
    reports.push(Report {
        category: "linkerd-version".to_owned(),
        description: "a <b> & c".to_owned(),
        outcome: Outcome::Error,
        error: Some("broken".to_owned()),
        hint: Some("https://linkerd.io/2/checks/#x".to_owned()),
    });
    assert_golden(
        "pre.json",
        &printed(Format::Json, &[(false, reports)], false),
    );
    let empty = printed(Format::Json, &[(true, vec![])], true);
    assert_eq!(
        empty,
        "{\n  \"success\": true,\n  \"categories\": null\n}\n"
    );
}

#[test]
fn failures_end_with_a_cross() {
    let report = Report {
        category: "kubernetes-api".to_owned(),
        description: "can query the Kubernetes API".to_owned(),
        outcome: Outcome::Error,
        error: Some("first\n\tsecond".to_owned()),
        hint: Some("https://linkerd.io/2/checks/#k8s-api".to_owned()),
    };
    let expected = "kubernetes-api\n--------------\n× can query the Kubernetes API\n    first\n\tsecond\n    see https://linkerd.io/2/checks/#k8s-api for hints\n\nStatus check results are ×\n";
    assert_eq!(
        printed(Format::Table, &[(false, vec![report])], false),
        expected
    );
}

/// In a log or behind a pipe nothing was seen until the end of the run.
#[test]
fn every_result_is_written_when_it_is_known() {
    let shared = Shared::default();
    let mut printer = Printer::to(io::BufWriter::new(shared.clone()), io::sink());
    let mut output = Output::new(&mut printer, Format::Table);
    output
        .waiting("linkerd-existence", "pods are starting")
        .expect("a buffer");
    let heading = "linkerd-existence\n-----------------\n";
    assert_eq!(shared.text(), heading);
    output
        .report(report("linkerd-existence"))
        .expect("a buffer");
    assert_eq!(shared.text(), format!("{heading}√ works\n"));
}

fn report(category: &str) -> Report {
    Report {
        category: category.to_owned(),
        description: "works".to_owned(),
        outcome: Outcome::Success,
        error: None,
        hint: None,
    }
}

#[test]
fn merged_json_is_one_document_of_all_blocks() {
    let blocks = [
        (
            true,
            vec![report("kubernetes-api"), report("linkerd-version")],
        ),
        (false, vec![report("linkerd-viz")]),
        (true, vec![report("linkerd-foo")]),
    ];
    let text = printed(Format::JsonMerged, &blocks, false);
    let document: Value = serde_json::from_str(&text).expect("one document");
    assert_eq!(document["success"], false);
    let categories = document["categories"].as_array().expect("categories");
    let names: Vec<&Value> = categories.iter().map(|c| &c["categoryName"]).collect();
    let expected = [
        "kubernetes-api",
        "linkerd-version",
        "linkerd-viz",
        "linkerd-foo",
    ];
    assert_eq!(names, expected);
}

/// Each frame erases the one before, and a result erases the last.
#[test]
fn the_spinner_turns_on_a_terminal_only() {
    let spun = |terminal: bool, format: Format| {
        let shared = Shared::default();
        let mut printer = Printer::to(shared.clone(), io::sink());
        if terminal {
            printer = printer.terminal(false);
        }
        let mut output = Output::new(&mut printer, format);
        output.pending("Running linkerd-foo extension check\nand more");
        for _ in 0..5 {
            output.tick().expect("a buffer");
        }
        output.report(report("linkerd-foo")).expect("a buffer");
        output.tick().expect("a buffer");
        drop(printer);
        shared.text()
    };
    let frame =
        |c: char| format!("{ERASE}\u{1b}[1m{c} Running linkerd-foo extension check\u{1b}[0m");
    let frames: String = ['/', '-', '\\', '|', '/'].map(frame).concat();
    let result = "linkerd-foo\n-----------\n√ works\n";
    let turned = spun(true, Format::Table);
    assert_eq!(turned, format!("{frames}{ERASE}{result}"));
    assert_eq!(spun(false, Format::Table), result);
    assert_eq!(spun(true, Format::Json), "");
}
