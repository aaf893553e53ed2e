//! `linkerd completion`: a script that completes commands and flags, made from the command tree.

use crate::context::Context;
use anyhow::{Result, bail};
use clap::Command;
use std::fmt::Write as _;

/// Print a shell completion script
///
/// Examples:
///   source <(linkerd completion bash)
///   linkerd completion zsh > "${fpath[1]}/_linkerd"
///   linkerd completion fish > ~/.config/fish/completions/linkerd.fish
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// bash, zsh or fish
    shell: String,
}

pub fn run(context: &mut Context<'_>, args: &Args) -> Result<()> {
    let mut tree = super::tree();
    tree.build();
    let script = match args.shell.as_str() {
        "bash" => bash(&tree, false),
        "zsh" => bash(&tree, true),
        "fish" => fish(&tree),
        other => bail!("unsupported shell type (must be bash, zsh or fish): {other}"),
    };
    context.printer.text(&script)?;
    Ok(())
}

/// A command's words joined by a space, and everything that may follow them.
fn entries(command: &Command, path: &str, out: &mut Vec<(String, Vec<String>)>) {
    let mut words: Vec<String> = Vec::new();
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        words.push(sub.get_name().to_owned());
    }
    for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
        words.extend(arg.get_long().map(|long| format!("--{long}")));
    }
    out.push((path.to_owned(), words));
    for sub in command
        .get_subcommands()
        .filter(|sub| sub.get_name() != "help")
    {
        let path = format!("{path} {}", sub.get_name());
        entries(sub, path.trim_start(), out);
    }
}

fn bash(tree: &Command, zsh: bool) -> String {
    let mut table = Vec::new();
    entries(tree, "", &mut table);
    let mut out = String::new();
    if zsh {
        out += "#compdef linkerd\nautoload -U +X bashcompinit && bashcompinit\n";
    }
    out += "_linkerd_complete() {\n  local current=\"${COMP_WORDS[COMP_CWORD]}\" command=\"\" word words\n";
    out +=
        "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n    case \"$command $word\" in\n";
    for (path, _) in table.iter().filter(|(path, _)| !path.is_empty()) {
        let (parent, word) = path.rsplit_once(' ').unwrap_or(("", path));
        let _ = writeln!(out, "      \"{parent} {word}\") command=\"{path}\" ;;");
    }
    out += "    esac\n  done\n  case \"$command\" in\n";
    for (path, words) in &table {
        let _ = writeln!(out, "    \"{path}\") words=\"{}\" ;;", words.join(" "));
    }
    out += "  esac\n  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n}\n";
    out += "complete -o default -F _linkerd_complete linkerd\n";
    out
}

fn fish(tree: &Command) -> String {
    let mut out = String::from("complete -c linkerd -f\n");
    fish_level(tree, "", &mut out);
    out
}

fn fish_level(command: &Command, path: &str, out: &mut String) {
    let condition = if path.is_empty() {
        "__fish_use_subcommand".to_owned()
    } else {
        format!("__fish_seen_subcommand_from {path}")
    };
    let quoted = |text: String| text.lines().next().unwrap_or_default().replace('\'', "\\'");
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let about = quoted(sub.get_about().map(ToString::to_string).unwrap_or_default());
        let _ = writeln!(
            out,
            "complete -c linkerd -n '{condition}' -a {} -d '{about}'",
            sub.get_name()
        );
    }
    for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
        let Some(long) = arg.get_long() else { continue };
        let about = quoted(arg.get_help().map(ToString::to_string).unwrap_or_default());
        let short = arg
            .get_short()
            .map(|short| format!(" -s {short}"))
            .unwrap_or_default();
        let value = if arg.get_action().takes_values() {
            " -r"
        } else {
            ""
        };
        let _ = writeln!(
            out,
            "complete -c linkerd -n '{condition}' -l {long}{short}{value} -d '{about}'"
        );
    }
    for sub in command
        .get_subcommands()
        .filter(|sub| sub.get_name() != "help")
    {
        fish_level(sub, sub.get_name(), out);
    }
}
