//! Where output goes: stdout for what people pipe on, stderr for what they read, and the symbols
//! and colours of both.

use std::{
    env,
    ffi::OsStr,
    fmt::Display,
    io::{self, IsTerminal, Write},
};

/// Both outputs of a command. Tests give buffers.
pub struct Printer {
    out: Box<dyn Write + Send>,
    err: Box<dyn Write + Send>,
    out_color: bool,
    out_terminal: bool,
}

impl std::fmt::Debug for Printer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Printer")
            .field("out_color", &self.out_color)
            .finish_non_exhaustive()
    }
}

/// The mark in front of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    Ok,
    Warning,
    Failure,
}

impl Mark {
    pub fn symbol(self) -> &'static str {
        match self {
            Self::Ok => "√",
            Self::Warning => "‼",
            Self::Failure => "×",
        }
    }

    fn painted(self, color: bool) -> String {
        let code = match self {
            Self::Ok => "32",
            Self::Warning => "33",
            Self::Failure => "31",
        };
        if color {
            format!("\u{1b}[{code};1m{}\u{1b}[0m", self.symbol())
        } else {
            self.symbol().to_owned()
        }
    }
}

impl Printer {
    /// The process's own outputs; colours on a terminal unless the environment says no.
    pub fn standard() -> Self {
        let wanted = colors(
            env::var_os("NO_COLOR").as_deref(),
            env::var_os("TERM").as_deref(),
        );
        Self {
            out: Box::new(io::BufWriter::new(io::stdout())),
            err: Box::new(io::stderr()),
            out_color: wanted && io::stdout().is_terminal(),
            out_terminal: io::stdout().is_terminal(),
        }
    }

    /// Outputs of a test: no colours.
    pub fn to(out: impl Write + Send + 'static, err: impl Write + Send + 'static) -> Self {
        Self {
            out: Box::new(out),
            err: Box::new(err),
            out_color: false,
            out_terminal: false,
        }
    }

    /// As if stdout were a terminal, with or without colours.
    #[cfg(test)]
    pub(crate) fn terminal(mut self, color: bool) -> Self {
        self.out_terminal = true;
        self.out_color = color;
        self
    }

    /// A line on stdout.
    pub fn out(&mut self, line: impl Display) -> io::Result<()> {
        writeln!(self.out, "{line}")?;
        if self.out_terminal {
            self.out.flush()?;
        }
        Ok(())
    }

    /// Text on stdout as it is.
    pub fn text(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(text.as_bytes())
    }

    /// What a spinner needs: text on stdout at once.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// A line on stderr, after everything written to stdout. A closed stderr is nobody's loss.
    pub fn err(&mut self, line: impl Display) {
        let _ = self.out.flush();
        let _ = writeln!(self.err, "{line}");
    }

    /// The mark with or without colour. Stdout decides for both outputs, once for the process.
    pub fn mark(&self, mark: Mark) -> String {
        mark.painted(self.out_color)
    }

    /// Whether stdout is a terminal in which a spinner may turn.
    pub fn is_terminal(&self) -> bool {
        self.out_terminal
    }
}

/// Whether the environment lets a terminal have colours.
fn colors(no_color: Option<&OsStr>, term: Option<&OsStr>) -> bool {
    no_color.is_none_or(OsStr::is_empty) && term.is_none_or(|term| term != "dumb")
}

impl Drop for Printer {
    fn drop(&mut self) {
        let _ = self.out.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_decides_about_colours() {
        for (no_color, term, expected) in [
            (None, None, true),
            (None, Some("xterm"), true),
            (Some(""), Some("xterm"), true),
            (Some("1"), Some("xterm"), false),
            (None, Some("dumb"), false),
        ] {
            let given = |text: Option<&'static str>| text.map(OsStr::new);
            let wanted = colors(given(no_color), given(term));
            assert_eq!(wanted, expected, "{no_color:?} {term:?}");
        }
    }

    #[test]
    fn marks_are_bold_in_their_colour() {
        let plain = Printer::to(io::sink(), io::sink());
        let painted = Printer::to(io::sink(), io::sink()).terminal(true);
        for (mark, symbol, code) in [
            (Mark::Ok, '\u{221a}', 32),
            (Mark::Warning, '\u{203c}', 33),
            (Mark::Failure, '\u{d7}', 31),
        ] {
            assert_eq!(plain.mark(mark), symbol.to_string());
            let expected = format!("\u{1b}[{code};1m{symbol}\u{1b}[0m");
            assert_eq!(painted.mark(mark), expected, "{mark:?}");
        }
    }
}
