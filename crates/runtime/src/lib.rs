//! What every daemon has: logs, metrics, admin server, readiness, drain, signals, version.
