# The sample application: one program, a subcommand per role.
# Run in the root of the repository: docker build -f docker/emojivoto.Dockerfile .
FROM rust:1-bookworm AS build
WORKDIR /linkerd
COPY . .
ENV RUSTFLAGS="-C target-feature=+crt-static"
RUN target="$(uname -m)-unknown-linux-gnu" \
    && cargo build --locked --profile control --target "$target" \
        --package linkerd-sample --bin emojivoto \
    && mkdir -p /image/etc /image/usr/lib/linkerd \
    && cp "target/$target/control/emojivoto" /image/emojivoto \
    && printf 'root:x:0:0:root:/:/sbin/nologin\nlinkerd:x:2102:2102:proxy:/:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n' > /image/etc/passwd \
    && printf 'root:x:0:\nlinkerd:x:2102:\nnobody:x:65534:\n' > /image/etc/group \
    && printf 'hosts: files dns\n' > /image/etc/nsswitch.conf \
    && sed -n 's/^version = "\(.*\)"$/edge-\1/p' /linkerd/Cargo.toml > /image/usr/lib/linkerd/version.txt \
    && mkdir -m 1777 /image/tmp

FROM scratch
COPY --from=build /image /
USER 65534
ENTRYPOINT ["/emojivoto"]
