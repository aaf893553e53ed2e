//! A word that is no command of ours: the program `linkerd-WORD` on PATH runs in our place. Without
//! one, the user hears what was probably meant.

use crate::printer::Printer;
use clap::Command;
use std::{
    env,
    os::unix::{fs::PermissionsExt as _, process::ExitStatusExt as _},
    path::{Path, PathBuf},
    process,
};

/// Commands of older releases and what does their work today.
const MOVED: [(&str, &str); 13] = [
    ("alpha", "linkerd viz"),
    ("dashboard", "linkerd viz dashboard"),
    ("edges", "linkerd viz edges"),
    ("endpoints", "linkerd diagnostics endpoints"),
    ("get", "kubectl get"),
    ("install-sp", "linkerd install"),
    ("logs", "kubectl logs --container linkerd-proxy"),
    ("metrics", "linkerd diagnostics proxy-metrics"),
    ("repair", "linkerd upgrade"),
    ("routes", "linkerd viz routes"),
    ("stat", "linkerd viz stat"),
    ("tap", "linkerd viz tap"),
    ("top", "linkerd viz top"),
];

/// Groups of Linkerd that may not be part of a build, and what helps meanwhile.
const NOT_YET: [(&str, &str); 3] = [
    (
        "jaeger",
        "Proxies export traces by themselves: set proxy.tracing.enabled and proxy.tracing.collector at `linkerd install`.",
    ),
    (
        "multicluster",
        "Clusters can be meshed one by one; nothing joins them.",
    ),
    (
        "viz",
        "The proxies' own figures are in `linkerd diagnostics proxy-metrics`, and any Prometheus can scrape them: `linkerd install --set podMonitor.enabled=true`.",
    ),
];

/// Runs the extension with everything after its name and passes its exit code on.
pub fn run(
    tree: &Command,
    words: &[String],
    word: &str,
    rest: &[String],
    printer: &mut Printer,
) -> u8 {
    let Some(program) = find(word, env::var_os("PATH").as_deref()) else {
        printer.err(unknown(tree, word));
        return 1;
    };
    if words.first().is_some_and(|first| first.starts_with('-')) {
        printer.err("Cannot accept flags before Linkerd extension name");
        return 1;
    }
    match process::Command::new(&program).args(rest).status() {
        Ok(status) => status
            .code()
            .or_else(|| Some(128 + status.signal()?))
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or(1),
        Err(error) => {
            printer.err(format_args!(
                "Error: cannot run {}: {error}",
                program.display()
            ));
            1
        }
    }
}

/// The executable `linkerd-WORD`; the first directory of PATH wins.
fn find(word: &str, path: Option<&std::ffi::OsStr>) -> Option<PathBuf> {
    if word.contains('/') {
        return None;
    }
    let name = format!("linkerd-{word}");
    env::split_paths(path?)
        .map(|dir| dir.join(&name))
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    file.metadata()
        .is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
}

fn unknown(tree: &Command, word: &str) -> String {
    let missing = |group: &str| {
        let known = NOT_YET.iter().find(|(name, _)| *name == group);
        known.filter(|_| tree.find_subcommand(group).is_none())
    };
    if let Some((group, meanwhile)) = missing(word) {
        return format!("Error: `linkerd {group}` is not in this build yet.\n\n{meanwhile}");
    }
    let mut text = format!("Error: unknown command \"{word}\" for \"linkerd\"\n");
    if let Some((_, successor)) = MOVED.iter().find(|(old, _)| *old == word) {
        text += &format!("\nIt is called `{successor}` now.\n");
        let group = successor.split(' ').nth(1).unwrap_or_default();
        if let Some((group, meanwhile)) = missing(group) {
            text += &format!("`linkerd {group}` is not in this build yet. {meanwhile}\n");
        }
    } else {
        let names = tree
            .get_subcommands()
            .filter(|command| !command.is_hide_set());
        let near: Vec<&str> = names
            .map(Command::get_name)
            .filter(|name| distance(name, word) <= 2 || (word.len() > 2 && name.starts_with(word)))
            .collect();
        if !near.is_empty() {
            text += &format!("\nDid you mean this?\n\t{}\n", near.join("\n\t"));
        }
    }
    text + "\nRun 'linkerd --help' for usage."
}

/// Single-letter edits between two words.
pub(crate) fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_in_a_build_is_said() {
        let without = Command::new("linkerd").subcommand(Command::new("install"));
        let with = without.clone().subcommand(Command::new("viz"));
        assert_eq!(
            unknown(&with, "stat"),
            "Error: unknown command \"stat\" for \"linkerd\"\n\nIt is called `linkerd viz stat` now.\n\nRun 'linkerd --help' for usage."
        );
        let text = unknown(&without, "stat");
        assert!(text.contains("`linkerd viz stat` now.\n`linkerd viz` is not in this build yet. "));
        for group in ["viz", "multicluster", "jaeger"] {
            let text = unknown(&without, group);
            let start = format!("Error: `linkerd {group}` is not in this build yet.\n\n");
            assert!(text.starts_with(&start), "{text}");
        }
        for (old, successor) in [("get", "kubectl get"), ("logs", "kubectl logs")] {
            assert!(unknown(&without, old).contains(successor), "{old}");
        }
    }

    #[test]
    fn edits_are_counted() {
        for (a, b, expected) in [
            ("install", "install", 0),
            ("install", "instal", 1),
            ("check", "chekc", 2),
            ("", "ab", 2),
        ] {
            assert_eq!(distance(a, b), expected, "{a} {b}");
        }
    }

    #[test]
    fn the_first_directory_wins() {
        let root = tempfile::tempdir().expect("a directory");
        for (dir, mode) in [("plain", 0o644), ("one", 0o755), ("two", 0o755)] {
            let dir = root.path().join(dir);
            std::fs::create_dir(&dir).expect("ours");
            let file = dir.join("linkerd-foo");
            std::fs::write(&file, "").expect("ours");
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("ours");
        }
        let path = env::join_paths(["plain", "one", "two"].map(|dir| root.path().join(dir)))
            .expect("a path");
        assert_eq!(
            find("foo", Some(&path)),
            Some(root.path().join("one/linkerd-foo"))
        );
        assert_eq!(find("bar", Some(&path)), None);
        assert_eq!(find("../one/linkerd-foo", Some(&path)), None);
    }
}
