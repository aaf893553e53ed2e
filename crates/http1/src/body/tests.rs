//! Tables of bodies, each fed whole and byte by byte, passed through and decoded.

use super::*;

/// Decodes `bytes` in pieces of `piece`; gives the payload and how many bytes belonged to the body.
fn decode(
    framing: Framing,
    bytes: &[u8],
    piece: usize,
) -> Result<(Vec<u8>, usize, Body), BodyError> {
    let mut body = Body::new(framing);
    let (mut at, mut end, mut data) = (0, 0, Vec::new());
    while !body.is_done() && at < bytes.len() {
        end = (end + piece).min(bytes.len());
        while at < end && !body.is_done() {
            let step = body.decode(&bytes[at..end])?;
            data.extend_from_slice(&bytes[at..end][step.data]);
            at += step.take;
        }
    }
    Ok((data, at, body))
}

#[test]
fn chunked_accepted() {
    let cases: &[(&str, &str, &str)] = &[
        ("empty", "0\r\n\r\n", ""),
        ("one", "5\r\nhello\r\n0\r\n\r\n", "hello"),
        (
            "upper and lower case",
            "a\r\n0123456789\r\nB\r\n0123456789a\r\n0\r\n\r\n",
            "01234567890123456789a",
        ),
        ("leading zeros", "0005\r\nhello\r\n00\r\n\r\n", "hello"),
        ("extension", "5;a=b\r\nhello\r\n0;c\r\n\r\n", "hello"),
        (
            "quoted extension",
            "5 ; a=\"b c\"\r\nhello\r\n0\r\n\r\n",
            "hello",
        ),
        ("padding", "5  \r\nhello\r\n0\r\n\r\n", "hello"),
        (
            "trailers",
            "5\r\nhello\r\n0\r\nGrpc-Status: 0\r\nX: y\r\n\r\n",
            "hello",
        ),
        ("CRLF as data", "4\r\n\r\n\r\n\r\n0\r\n\r\n", "\r\n\r\n"),
    ];
    for (name, text, want) in cases {
        let with_more = format!("{text}GET /");
        for piece in [1, 2, 3, 7, 1000] {
            let (data, took, body) = decode(Framing::Chunked, with_more.as_bytes(), piece)
                .unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(
                (data.as_slice(), took, body.is_done()),
                (want.as_bytes(), text.len(), true),
                "{name} by {piece}"
            );
        }
        let mut body = Body::new(Framing::Chunked);
        assert_eq!(
            body.consume(with_more.as_bytes()),
            Ok(Progress {
                take: text.len(),
                done: true
            }),
            "{name}"
        );
        assert_eq!(body.close(), Ok(()), "{name}");
    }
}

#[test]
fn chunked_refused() {
    use BodyError as E;
    let long_extension = format!("5;{}\r\nhello\r\n0\r\n\r\n", "x".repeat(5000));
    let many_extensions = "1;aaaaaaaa\r\nx\r\n".repeat(600);
    let long_trailer = format!("0\r\nA: {}\r\n\r\n", "x".repeat(9000));
    let many_trailers = format!("0\r\n{}\r\n", "a: b\r\n".repeat(100));
    let cases: &[(&str, &str, BodyError)] = &[
        ("no size", "\r\nhello", E::ChunkSize),
        ("no digit before an extension", ";a\r\n", E::ChunkSize),
        ("negative", "-1\r\n", E::ChunkSize),
        ("hex prefix", "0x5\r\nhello\r\n", E::ChunkSize),
        ("blank in front", " 5\r\nhello\r\n", E::ChunkSize),
        ("digit after padding", "5 5\r\nhello\r\n", E::ChunkSize),
        ("vertical tab", "5\u{b}\r\nhello\r\n", E::ChunkSize),
        ("overflow", "fffffffffffffffff\r\n", E::ChunkSize),
        (
            "many zeros",
            "00000000000000000000005\r\nhello\r\n",
            E::ChunkSize,
        ),
        ("bare LF after the size", "5\nhello\r\n", E::ChunkSize),
        ("CR without LF after the size", "5\rhello\r\n", E::ChunkSize),
        (
            "bare LF in an extension",
            "5;a\nhello\r\n",
            E::ChunkExtension,
        ),
        (
            "NUL in an extension",
            "5;a\0\r\nhello\r\n",
            E::ChunkExtension,
        ),
        ("CR in an extension", "5;a\rb\r\nhello\r\n", E::ChunkSize),
        ("long extension", &long_extension, E::ChunkExtension),
        ("many extensions", &many_extensions, E::ChunkExtension),
        (
            "data longer than its size",
            "5\r\nhello!\r\n0\r\n\r\n",
            E::ChunkEnd,
        ),
        ("bare LF after data", "5\r\nhello\n0\r\n\r\n", E::ChunkEnd),
        ("CR without LF after data", "5\r\nhello\rX", E::ChunkEnd),
        (
            "bare LF in a trailer",
            "0\r\nA: b\nC: d\r\n\r\n",
            E::Trailer,
        ),
        ("bare LF at the end", "0\r\n\n", E::Trailer),
        ("CR without LF at the end", "0\r\n\rX", E::Trailer),
        ("folded trailer", "0\r\nA: b\r\n c\r\n\r\n", E::Trailer),
        (
            "trailer with a blank name",
            "0\r\nA : b\r\n\r\n",
            E::Trailer,
        ),
        (
            "trailer without a colon",
            "0\r\nGET / HTTP/1.1\r\n\r\n",
            E::Trailer,
        ),
        (
            "length as a trailer",
            "0\r\nContent-Length: 5\r\n\r\n",
            E::Trailer,
        ),
        (
            "coding as a trailer",
            "0\r\nTransfer-Encoding: chunked\r\n\r\n",
            E::Trailer,
        ),
        ("host as a trailer", "0\r\nHost: a\r\n\r\n", E::Trailer),
        ("long trailer", &long_trailer, E::TrailerTooLarge),
        ("many trailers", &many_trailers, E::Trailer),
    ];
    for (name, text, want) in cases {
        for piece in [1, 3, 10_000] {
            let got = decode(Framing::Chunked, text.as_bytes(), piece)
                .map(|(data, took, _)| (data, took));
            assert_eq!(got, Err(*want), "{name} by {piece}");
        }
        assert_eq!(
            Body::new(Framing::Chunked).consume(text.as_bytes()),
            Err(*want),
            "{name}"
        );
    }
}

#[test]
fn trailers_become_a_map() {
    let (_, _, body) =
        decode(Framing::Chunked, b"0\r\nA: 1\r\nB: 2\r\nA: 3\r\n\r\n", 4).expect("good chunks");
    let map = body.trailers().expect("trailers");
    let all: Vec<_> = map.get_all("a").iter().map(HeaderValue::as_bytes).collect();
    assert_eq!(all, [b"1", b"3"]);
    assert_eq!(map["b"].as_bytes(), b"2");
    let (_, _, body) = decode(Framing::Chunked, b"0\r\n\r\n", 4).expect("good chunks");
    assert!(body.trailers().is_none());
}

#[test]
fn other_framings() {
    let mut body = Body::new(Framing::Length(5));
    assert_eq!(
        body.consume(b"abc"),
        Ok(Progress {
            take: 3,
            done: false
        })
    );
    assert_eq!(
        (body.remaining(), body.close()),
        (Some(2), Err(BodyError::Incomplete))
    );
    assert_eq!(
        body.consume(b"deGET"),
        Ok(Progress {
            take: 2,
            done: true
        })
    );
    assert_eq!(
        body.consume(b"GET"),
        Ok(Progress {
            take: 0,
            done: true
        })
    );

    let mut body = Body::new(Framing::UntilClose);
    assert_eq!(
        body.consume(b"abc"),
        Ok(Progress {
            take: 3,
            done: false
        })
    );
    assert_eq!((body.close(), body.is_done()), (Ok(()), true));

    for framing in [Framing::None, Framing::Length(0), Framing::Tunnel] {
        assert_eq!(
            Body::new(framing).consume(b"x"),
            Ok(Progress {
                take: 0,
                done: true
            }),
            "{framing:?}"
        );
    }
    assert_eq!(
        Body::new(Framing::Chunked).close(),
        Err(BodyError::Incomplete)
    );
}
