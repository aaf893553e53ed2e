//! How a command ends when it does not succeed. Any other error is printed as `Error: …` with exit
//! code 1.

/// Everything has been said already; only the exit code is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("exit status {0}")]
pub struct ExitStatus(pub u8);

/// A message printed on stderr as it is, without `Error:`; exit code 1.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Stop(pub String);

/// Ends the command with that message.
pub fn stop(message: impl Into<String>) -> anyhow::Error {
    Stop(message.into()).into()
}

/// An error and its causes in one line, each said once.
pub fn line(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let said = cause.to_string();
        if text.is_empty() {
            text = said;
        } else if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
    }
    text
}
