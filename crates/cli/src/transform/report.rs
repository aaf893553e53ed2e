//! What `inject` and `uninject` tell on stderr, after the manifests.

use crate::printer::{Mark, Printer};

/// Kinds that can be annotated, whether or not these flags ask for it.
const ANNOTATABLE: [&str; 2] = ["namespace", "service"];

/// What became of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Lower case; empty when the document has none.
    pub kind: String,
    pub name: String,
    pub outcome: Outcome,
    pub host_network: bool,
    pub sidecar: bool,
    pub disabled: bool,
    pub udp: bool,
    pub no_token: bool,
    /// Annotations that were not understood, each with the reason.
    pub ignored: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    Injected,
    Annotated,
    Uninjected,
    #[default]
    Skipped,
}

impl Entry {
    fn place(&self) -> String {
        format!("{}/{}", self.kind, self.name)
    }
}

/// The report of `inject`: warnings, then a line for each object.
pub fn inject(printer: &mut Printer, entries: &[Entry], verbose: bool) {
    let places = |of: fn(&Entry) -> bool| -> Vec<String> {
        entries
            .iter()
            .filter(|entry| of(entry))
            .map(Entry::place)
            .collect()
    };
    printer.err("");
    let mut lines: Vec<(Option<String>, &str)> = Vec::new();
    let some = |places: Vec<String>, text: &dyn Fn(&str) -> String| {
        (!places.is_empty()).then(|| text(&places.join(", ")))
    };
    lines.push((
        some(places(|e| e.host_network), &|places| {
            format!("\"hostNetwork: true\" detected in {places}")
        }),
        "pods do not use host networking",
    ));
    lines.push((
        some(places(|e| e.sidecar), &|places| {
            format!("known 3rd party sidecar detected in {places}")
        }),
        "pods do not have a 3rd party proxy or initContainer already injected",
    ));
    lines.push((
        some(places(|e| e.disabled), &|places| {
            format!("\"linkerd.io/inject: disabled\" annotation set on {places}")
        }),
        "pods are not annotated to disable injection",
    ));
    let usable = |e: &Entry| {
        matches!(e.outcome, Outcome::Injected | Outcome::Annotated)
            || ANNOTATABLE.contains(&e.kind.as_str())
    };
    lines.push((
        (!entries.iter().any(usable)).then(|| "no supported objects found".to_owned()),
        "at least one resource can be injected or annotated",
    ));
    let udp = places(|e| e.udp);
    let verb = if udp.len() > 1 { "use" } else { "uses" };
    lines.push((
        some(udp, &|places| format!("{places} {verb} \"protocol: UDP\"")),
        "pod specs do not include UDP ports",
    ));
    let no_token = entries.iter().any(|e| e.no_token);
    let mut said = verbose;
    for (warning, fine) in lines {
        match warning {
            Some(warning) => {
                let mark = printer.mark(Mark::Warning);
                printer.err(format_args!("{mark} {warning}"));
                said = true;
            }
            None if verbose => {
                let mark = printer.mark(Mark::Ok);
                printer.err(format_args!("{mark} {fine}"));
            }
            None => {}
        }
    }
    for entry in entries {
        for ignored in &entry.ignored {
            let mark = printer.mark(Mark::Warning);
            let place = entry.place();
            printer.err(format_args!(
                "{mark} ignored annotation {ignored} on {place}"
            ));
            said = true;
        }
    }
    if verbose && !no_token {
        let mark = printer.mark(Mark::Ok);
        printer.err(format_args!(
            "{mark} pods do not have automountServiceAccountToken set to \"false\" or service account token projection is enabled"
        ));
    }
    if said {
        printer.err("");
    }
    summary(printer, entries);
}

/// The report of `uninject`.
pub fn uninject(printer: &mut Printer, entries: &[Entry]) {
    printer.err("");
    summary(printer, entries);
}

fn summary(printer: &mut Printer, entries: &[Entry]) {
    for entry in entries {
        if entry.kind.is_empty() {
            printer.err("document missing \"kind\" field, skipped");
            continue;
        }
        let outcome = match entry.outcome {
            Outcome::Injected => "injected",
            Outcome::Annotated => "annotated",
            Outcome::Uninjected => "uninjected",
            Outcome::Skipped => "skipped",
        };
        printer.err(format_args!("{} \"{}\" {outcome}", entry.kind, entry.name));
    }
    printer.err("");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::output::tests::Shared;

    fn said(entries: &[Entry]) -> String {
        let shared = Shared::default();
        let mut printer = Printer::to(std::io::sink(), shared.clone());
        inject(&mut printer, entries, false);
        drop(printer);
        shared.text()
    }

    fn entry(kind: &str, outcome: Outcome) -> Entry {
        Entry {
            kind: kind.to_owned(),
            name: "x".to_owned(),
            outcome,
            ..Entry::default()
        }
    }

    #[test]
    fn annotatable_kinds_are_supported_even_when_nothing_changes() {
        let service = entry("service", Outcome::Skipped);
        assert_eq!(said(&[service]), "\nservice \"x\" skipped\n\n");
        let namespace = entry("namespace", Outcome::Annotated);
        assert_eq!(said(&[namespace]), "\nnamespace \"x\" annotated\n\n");
        let map = entry("configmap", Outcome::Skipped);
        assert_eq!(
            said(&[map]),
            "\n‼ no supported objects found\n\nconfigmap \"x\" skipped\n\n"
        );
    }

    #[test]
    fn annotations_without_effect_are_named() {
        let mut workload = entry("deployment", Outcome::Injected);
        workload.ignored = vec!["config.linkerd.io/proxy-uid: not a number".to_owned()];
        assert_eq!(
            said(&[workload]),
            "\n‼ ignored annotation config.linkerd.io/proxy-uid: not a number on deployment/x\n\ndeployment \"x\" injected\n\n"
        );
    }
}
