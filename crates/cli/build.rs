//! Embeds the charts, so that `linkerd install` renders what Helm would.

use anyhow::{Context, Result};
use std::{
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

fn main() -> Result<()> {
    let charts = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?)
        .join("../../charts")
        .canonicalize()?;
    println!("cargo::rerun-if-changed={}", charts.display());
    let mut table = String::from("pub(crate) static CHARTS: &[(&str, &[(&str, &str)])] = &[\n");
    for chart in sorted(&charts)? {
        let mut files = Vec::new();
        walk(&chart, &mut files)?;
        let name = chart
            .file_name()
            .and_then(|name| name.to_str())
            .context("a chart's name is UTF-8")?;
        writeln!(table, "    ({name:?}, &[")?;
        for file in files {
            let path = file
                .strip_prefix(&chart)?
                .to_str()
                .context("a file's name is UTF-8")?
                .to_owned();
            writeln!(
                table,
                "        ({path:?}, include_str!({:?})),",
                file.display().to_string()
            )?;
        }
        table.push_str("    ]),\n");
    }
    table.push_str("];\n");
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("charts.rs"), table)?;
    Ok(())
}

fn sorted(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut entries = fs::read_dir(dir)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    entries.sort();
    Ok(entries)
}

fn walk(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for path in sorted(dir)? {
        if path.is_dir() {
            walk(&path, files)?;
        } else {
            println!("cargo::rerun-if-changed={}", path.display());
            files.push(path);
        }
    }
    Ok(())
}
