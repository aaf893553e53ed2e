//! Writes the EndpointSlices of ExternalWorkloads.
