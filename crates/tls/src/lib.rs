//! Certificates, trust anchors and rustls configurations of the mesh.
