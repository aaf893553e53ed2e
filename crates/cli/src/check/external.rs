//! Checks of extensions: the programs `linkerd-NAME` of PATH and the groups built into this CLI are
//! run with `check --output=json`, and their results shown as ours.

use super::{
    engine::{Observer as _, Outcome, Report, turning},
    output::Output,
};
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    ffi::OsStr,
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};
use tokio::{process::Command, time::timeout};

const PREFIX: &str = "linkerd-";
const METADATA: Duration = Duration::from_secs(5);

/// A program that checks an extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extension {
    /// `linkerd-foo`, or `viz` when built in.
    pub name: String,
    pub program: PathBuf,
    /// What stands before `check`.
    pub prefix: Vec<String>,
}

/// What is to be run, and the installed extensions that nothing can check.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Stage {
    pub extensions: Vec<Extension>,
    pub missing: Vec<String>,
}

/// All executables `linkerd-*`; the first directory wins.
pub fn on_path(path: Option<&OsStr>) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    for directory in path.iter().flat_map(|path| env::split_paths(path)) {
        let Ok(files) = fs::read_dir(&directory) else {
            continue;
        };
        for file in files.flatten() {
            let name = file.file_name().to_string_lossy().into_owned();
            if name.starts_with(PREFIX) && is_executable(&file.path()) {
                found.entry(name).or_insert_with(|| file.path());
            }
        }
    }
    found
}

fn is_executable(file: &Path) -> bool {
    file.metadata()
        .is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    checks: String,
}

/// Whether an extension wants to be checked even when it is not installed.
async fn always(name: &str, program: &Path) -> bool {
    let mut command = Command::new(program);
    command
        .arg("_extension-metadata")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let Ok(Ok(output)) = timeout(METADATA, command.output()).await else {
        return false;
    };
    let metadata: Result<Metadata, _> = serde_json::from_slice(&output.stdout);
    metadata.is_ok_and(|about| about.name.eq_ignore_ascii_case(name) && about.checks == "always")
}

/// Chooses what to run for the installed extensions.
pub async fn stage(
    installed: &BTreeSet<String>,
    programs: &BTreeMap<String, PathBuf>,
    builtin: &[&str],
    own: &Path,
) -> Stage {
    let mut stage = Stage::default();
    let mut covered: BTreeSet<&str> = BTreeSet::new();
    for (name, program) in programs {
        let extension = &name[PREFIX.len()..];
        let wanted = installed.contains(extension) && !builtin.contains(&extension);
        if wanted || always(name, program).await {
            covered.insert(extension);
            stage.extensions.push(Extension {
                name: name.clone(),
                program: program.clone(),
                prefix: vec![],
            });
        }
    }
    for extension in builtin {
        if installed.contains(*extension) {
            covered.insert(extension);
            stage.extensions.push(Extension {
                name: (*extension).to_owned(),
                program: own.to_owned(),
                prefix: vec![(*extension).to_owned()],
            });
        }
    }
    let missing = installed
        .iter()
        .filter(|name| !covered.contains(name.as_str()));
    stage.missing = missing.cloned().collect();
    stage
}

/// Runs and shows all of them; whether none failed for good.
pub async fn run(
    stage: &Stage,
    arguments: &[String],
    limit: Duration,
    hints: &str,
    output: &mut Output<'_>,
) -> io::Result<bool> {
    let mut all = true;
    let hint = format!("{hints}extensions");
    for extension in &stage.extensions {
        output.pending(&format!("Running {} extension check", extension.name));
        let asked = ask(extension, arguments, limit, &hint);
        let (success, reports) = turning(asked, output).await?;
        for report in reports {
            output.report(report)?;
        }
        output.end_block(success)?;
        all &= success;
    }
    for name in &stage.missing {
        let program = format!("{PREFIX}{name}");
        output.report(Report {
            category: program.clone(),
            description: format!("Linkerd extension command {program} exists"),
            outcome: Outcome::Warning,
            error: Some(format!(
                "exec: \"{program}\": executable file not found in $PATH"
            )),
            hint: Some(hint.clone()),
        })?;
        output.end_block(true)?;
    }
    Ok(all)
}

#[derive(Deserialize)]
struct Document {
    success: bool,
    categories: Option<Vec<Group>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    category_name: String,
    #[serde(default)]
    checks: Vec<Line>,
}

#[derive(Deserialize)]
struct Line {
    description: String,
    #[serde(default)]
    hint: Option<String>,
    #[serde(default)]
    error: Option<String>,
    result: String,
}

async fn ask(
    extension: &Extension,
    arguments: &[String],
    limit: Duration,
    hint: &str,
) -> (bool, Vec<Report>) {
    let mut words = vec![extension.program.display().to_string()];
    words.extend(extension.prefix.iter().chain(arguments).cloned());
    let line = words.join(" ");
    let broken = |error: String| {
        let report = Report {
            category: extension.name.clone(),
            description: format!("Running: {line}"),
            outcome: Outcome::Error,
            error: Some(error),
            hint: Some(hint.to_owned()),
        };
        (false, vec![report])
    };
    let mut command = Command::new(&extension.program);
    command
        .args(&words[1..])
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = match timeout(limit, command.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return broken(error.to_string()),
        Err(_) => return broken(format!("no answer in {}s", limit.as_secs())),
    };
    match serde_json::from_slice::<Document>(&output.stdout) {
        Ok(document) => (document.success, reports(document)),
        Err(error) => {
            let said = String::from_utf8_lossy(&output.stderr);
            if !said.trim().is_empty() {
                return broken(said.trim().to_owned());
            }
            let text = String::from_utf8_lossy(&output.stdout);
            broken(format!(
                "invalid extension check output from \"{line}\" (JSON object expected):\n{}\n[{error}]",
                text.trim()
            ))
        }
    }
}

fn reports(document: Document) -> Vec<Report> {
    let mut reports = Vec::new();
    for group in document.categories.unwrap_or_default() {
        for line in group.checks {
            reports.push(Report {
                category: group.category_name.clone(),
                description: line.description,
                outcome: match line.result.as_str() {
                    "success" => Outcome::Success,
                    "warning" => Outcome::Warning,
                    _ => Outcome::Error,
                },
                error: line.error.filter(|text| !text.is_empty()),
                hint: line.hint.filter(|text| !text.is_empty()),
            });
        }
    }
    reports
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Extension {
        Extension {
            name: "linkerd-foo".to_owned(),
            program: PathBuf::from("/bin/sh"),
            prefix: vec!["-c".to_owned(), script.to_owned()],
        }
    }

    async fn asked(script: &str) -> (bool, Vec<Report>) {
        let arguments = ["check".to_owned()];
        ask(&shell(script), &arguments, Duration::from_secs(60), "hint").await
    }

    #[tokio::test]
    async fn results_become_ours() {
        let script = r#"echo '{"success":false,"categories":[{"categoryName":"linkerd-foo","checks":[
            {"description":"a","result":"success"},
            {"description":"b","result":"error","error":"broken","hint":"https://x"}]}]}'; exit 7"#;
        let (success, reports) = asked(script).await;
        assert!(!success);
        let seen: Vec<_> = reports
            .iter()
            .map(|r| (r.description.as_str(), r.outcome))
            .collect();
        assert_eq!(seen, [("a", Outcome::Success), ("b", Outcome::Error)]);
        assert_eq!(reports[1].error.as_deref(), Some("broken"));
    }

    #[tokio::test]
    async fn bad_output_is_a_failure() {
        let (success, reports) = asked("echo oops >&2; exit 1").await;
        assert!(!success);
        assert_eq!(reports[0].error.as_deref(), Some("oops"));
        assert!(reports[0].description.starts_with("Running: /bin/sh -c "));
        let (_, reports) = asked("echo text").await;
        let error = reports[0].error.as_deref().expect("an error");
        assert!(
            error.starts_with("invalid extension check output from \"/bin/sh"),
            "{error}"
        );
        assert!(
            error.contains("(JSON object expected):\ntext\n["),
            "{error}"
        );
    }

    #[tokio::test]
    async fn installed_extensions_are_run_or_missed() {
        let installed = ["foo", "viz", "gone"].map(str::to_owned).into();
        let nowhere = PathBuf::from("/nonexistent/linkerd");
        let programs = ["linkerd-foo", "linkerd-other", "linkerd-viz"]
            .map(|name| (name.to_owned(), nowhere.clone()))
            .into();
        let stage = stage(&installed, &programs, &["viz"], &nowhere).await;
        let names: Vec<&str> = stage.extensions.iter().map(|e| e.name.as_str()).collect();
        assert_eq!(names, ["linkerd-foo", "viz"]);
        assert_eq!(stage.extensions[1].prefix, ["viz"]);
        assert_eq!(stage.missing, ["gone"]);
    }

    #[test]
    fn programs_are_found_on_path() {
        let root = tempfile::tempdir().expect("a directory");
        for (name, mode) in [
            ("linkerd-foo", 0o755),
            ("linkerd-text", 0o644),
            ("other", 0o755),
        ] {
            let file = root.path().join(name);
            fs::write(&file, "").expect("ours");
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("ours");
        }
        let found = on_path(Some(root.path().as_os_str()));
        assert_eq!(found.into_keys().collect::<Vec<_>>(), ["linkerd-foo"]);
        assert!(on_path(None).is_empty());
    }
}
