//! Our HTTP/1 engine: strict parsing, framing and pass-through, with no I/O of its own.
