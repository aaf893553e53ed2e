//! `linkerd completion`: a script for a shell. The script asks `linkerd __complete` for the words that
//! may stand at the cursor, so it knows the commands of the program that runs, and the cluster.

use crate::{complete, context::Context};
use anyhow::{Result, bail};

/// Print a shell completion script
///
/// Commands, flags and their values are completed, with namespaces, contexts, pods and other names
/// from the cluster.
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

/// Print what may stand in place of the last word, one candidate per line
#[derive(Debug, clap::Args)]
pub struct Words {
    /// The words after `linkerd`; the last one is being typed
    #[arg(last = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

const BASH: &str = r#"_linkerd_complete() {
  local words=("${COMP_WORDS[@]:1:COMP_CWORD}") current="${COMP_WORDS[COMP_CWORD]}" IFS=$'\n'
  # Bash takes `--flag=value` for three words.
  if [[ "$current" == "=" ]]; then
    current=""
    words=("${COMP_WORDS[@]:1:COMP_CWORD-1}" "")
  elif [[ "${COMP_WORDS[COMP_CWORD-1]}" == "=" ]]; then
    words=("${COMP_WORDS[@]:1:COMP_CWORD-2}" "$current")
  fi
  COMPREPLY=($(compgen -W "$(linkerd __complete -- "${words[@]}" 2>/dev/null | cut -f1)" -- "$current"))
}
complete -o default -F _linkerd_complete linkerd
"#;

const ZSH: &str = r#"#compdef linkerd
_linkerd() {
  local -a found
  local line
  for line in "${(@f)$(linkerd __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
    [[ -n "$line" ]] && found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
  done
  if (( $#found )); then
    _describe linkerd found
  else
    _files
  fi
}
if [[ "${funcstack[1]}" == "_linkerd" ]]; then
  _linkerd "$@"
else
  compdef _linkerd linkerd
fi
"#;

const FISH: &str = r#"function __linkerd_complete
  set -l words (commandline -opc)
  set -l current (commandline -ct)
  set -l found (linkerd __complete -- $words[2..-1] "$current" 2>/dev/null)
  if test (count $found) -gt 0
    printf '%s\n' $found
  else
    __fish_complete_path "$current"
  end
end
complete -c linkerd -f -a '(__linkerd_complete)'
"#;

pub fn run(context: &mut Context<'_>, args: &Args) -> Result<()> {
    let script = match args.shell.as_str() {
        "bash" => BASH,
        "zsh" => ZSH,
        "fish" => FISH,
        other => bail!("unsupported shell type (must be bash, zsh or fish): {other}"),
    };
    context.printer.text(script)?;
    Ok(())
}

/// Prints candidates with what they mean behind a tab. A shell that asks wants no errors.
pub async fn complete(context: &mut Context<'_>, words: &Words) -> Result<()> {
    let mut tree = super::tree();
    tree.build();
    let want = complete::want(&tree, &words.words);
    let current = words.words.last().map_or("", String::as_str);
    for (word, about) in complete::candidates(want, &words.words).await {
        if word.starts_with(current) {
            context.printer.out(format_args!("{word}\t{about}"))?;
        }
    }
    Ok(())
}
