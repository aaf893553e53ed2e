//! How results are shown: `table` as people read it, `short` with problems only, `json` for programs,
//! one document per block, and `json-merged` as one document for all of them.

use super::engine::{Observer, Outcome, Report};
use crate::printer::{Mark, Printer};
use serde_json::{Value, json};
use std::io;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Table,
    Short,
    Json,
    /// All blocks, extensions too, in one document.
    JsonMerged,
}

impl Format {
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "table" => Some(Self::Table),
            "short" => Some(Self::Short),
            "json" => Some(Self::Json),
            "json-merged" => Some(Self::JsonMerged),
            _ => None,
        }
    }

    fn is_json(self) -> bool {
        matches!(self, Self::Json | Self::JsonMerged)
    }
}

const FRAMES: [char; 4] = ['|', '/', '-', '\\'];
const ERASE: &str = "\r\u{1b}[2K";

/// Shows results as they come.
#[derive(Debug)]
pub struct Output<'p> {
    printer: &'p mut Printer,
    format: Format,
    /// Heading printed last in this block.
    heading: Option<String>,
    pending: Option<String>,
    frame: usize,
    reports: Vec<Report>,
}

impl<'p> Output<'p> {
    pub fn new(printer: &'p mut Printer, format: Format) -> Self {
        Self {
            printer,
            format,
            heading: None,
            pending: None,
            frame: 0,
            reports: Vec::new(),
        }
    }

    /// Ends a block: that of the core checks or of one extension.
    pub fn end_block(&mut self, success: bool) -> io::Result<()> {
        self.erase()?;
        self.pending = None;
        let printed = self.heading.take().is_some();
        match self.format {
            Format::Table => self.printer.out(""),
            Format::Short if printed => self.printer.out(""),
            Format::Short | Format::JsonMerged => Ok(()),
            Format::Json => {
                let reports = std::mem::take(&mut self.reports);
                self.printer.out(document(success, &reports))
            }
        }
    }

    /// The last line.
    pub fn status(&mut self, success: bool) -> io::Result<()> {
        match self.format {
            Format::Json => return Ok(()),
            Format::JsonMerged => {
                let reports = std::mem::take(&mut self.reports);
                return self.printer.out(document(success, &reports));
            }
            Format::Table | Format::Short => {}
        }
        let mark = self
            .printer
            .mark(if success { Mark::Ok } else { Mark::Failure });
        self.printer
            .out(format_args!("Status check results are {mark}"))
    }

    /// A text beside the spinner, until the next result.
    pub fn pending(&mut self, text: &str) {
        if self.printer.is_terminal() && !self.format.is_json() {
            self.pending = Some(text.lines().next().unwrap_or_default().to_owned());
        }
    }

    fn heading(&mut self, category: &str) -> io::Result<()> {
        if self.heading.as_deref() == Some(category) {
            return Ok(());
        }
        if self.heading.is_some() {
            self.printer.out("")?;
        }
        self.printer.out(category)?;
        self.printer.out("-".repeat(category.chars().count()))?;
        self.heading = Some(category.to_owned());
        Ok(())
    }

    fn erase(&mut self) -> io::Result<()> {
        if self.pending.is_some() && self.printer.is_terminal() {
            self.printer.text(ERASE)?;
        }
        Ok(())
    }
}

impl Observer for Output<'_> {
    fn report(&mut self, report: Report) -> io::Result<()> {
        self.erase()?;
        self.pending = None;
        match self.format {
            Format::Json | Format::JsonMerged => {
                self.reports.push(report);
                return Ok(());
            }
            Format::Short if report.outcome == Outcome::Success => return Ok(()),
            Format::Table | Format::Short => {}
        }
        self.heading(&report.category)?;
        let mark = self.printer.mark(match report.outcome {
            Outcome::Success => Mark::Ok,
            Outcome::Warning => Mark::Warning,
            Outcome::Error => Mark::Failure,
        });
        self.printer
            .out(format_args!("{mark} {}", report.description))?;
        if let Some(error) = &report.error {
            self.printer.out(format_args!("    {error}"))?;
        }
        if let Some(hint) = &report.hint {
            self.printer.out(format_args!("    see {hint} for hints"))?;
        }
        // Whoever follows a log, or ends the run half way, has every result so far.
        self.printer.flush()
    }

    fn waiting(&mut self, category: &str, text: &str) -> io::Result<()> {
        self.erase()?;
        if self.format == Format::Table {
            self.heading(category)?;
        }
        self.pending(text);
        self.printer.flush()
    }

    fn tick(&mut self) -> io::Result<()> {
        let Some(text) = &self.pending else {
            return Ok(());
        };
        self.frame = (self.frame + 1) % FRAMES.len();
        let frame = FRAMES[self.frame];
        self.printer
            .text(&format!("{ERASE}\u{1b}[1m{frame} {text}\u{1b}[0m"))?;
        self.printer.flush()
    }
}

/// The JSON of one block, with the characters escaped that HTML cares about.
fn document(success: bool, reports: &[Report]) -> String {
    let mut categories: Vec<(&str, Vec<Value>)> = Vec::new();
    for report in reports {
        if categories
            .last()
            .is_none_or(|(name, _)| *name != report.category)
        {
            categories.push((&report.category, Vec::new()));
        }
        let mut check = json!({"description": report.description});
        for (key, text) in [("hint", &report.hint), ("error", &report.error)] {
            if let Some(text) = text {
                check[key] = json!(text);
            }
        }
        check["result"] = json!(match report.outcome {
            Outcome::Success => "success",
            Outcome::Warning => "warning",
            Outcome::Error => "error",
        });
        if let Some((_, checks)) = categories.last_mut() {
            checks.push(check);
        }
    }
    let categories: Vec<Value> = categories
        .into_iter()
        .map(|(name, checks)| json!({"categoryName": name, "checks": checks}))
        .collect();
    let categories = if categories.is_empty() {
        Value::Null
    } else {
        Value::Array(categories)
    };
    let document = json!({"success": success, "categories": categories});
    format!("{document:#}")
        .replace('&', "\\u0026")
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
}

#[cfg(test)]
pub(crate) mod tests;
