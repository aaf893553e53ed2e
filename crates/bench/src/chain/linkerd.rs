//! Our own pair, under a control plane of the test kit.

use std::process::Command;

use anyhow::{Result, bail};

use super::Props;
use crate::plan::Load;
use crate::stage::Stage;

/// What the two proxies ask; ended when dropped.
#[derive(Debug)]
pub(crate) struct ControlPlane;

pub(super) fn commands(
    _stage: &Stage,
    props: &Props,
    _load: Load,
) -> Result<(Command, Command, ControlPlane)> {
    let _ = (&props.authority, &props.root_pem, &props.linkerd);
    bail!("the control plane of the test kit is not there yet")
}
