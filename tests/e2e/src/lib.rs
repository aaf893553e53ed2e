//! What the cluster tests share: kubectl on the cluster of KUBECONFIG, a namespace that goes
//! away with the test, and the image of the small program that tests run in pods. Like a
//! test, everything here panics when it fails.

mod cli;
mod helm;
mod image;
mod kubectl;
mod mesh;
mod namespace;
mod port_forward;
mod workspace;

pub use cli::cli;
pub use helm::helm;
pub use image::{house_image, product_image};
pub use kubectl::Kubectl;
pub use mesh::{Mesh, sweep};
pub use namespace::Namespace;
pub use port_forward::PortForward;
