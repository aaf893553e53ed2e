# The CNI plugin and its installer.
# Run in the root of the repository: docker build -f docker/cni-plugin.Dockerfile .
FROM rust:1-bookworm AS build
WORKDIR /linkerd
COPY . .
ENV RUSTFLAGS="-C target-feature=+crt-static"
RUN target="$(uname -m)-unknown-linux-gnu" \
    && cargo build --locked --profile control --target "$target" --package linkerd-cni \
    && mkdir -p /image/usr/lib/linkerd /image/opt/cni/bin \
    && cp "target/$target/control/linkerd-cni" /image/opt/cni/bin/linkerd-cni \
    && cp "target/$target/control/linkerd-cni-install" /image/usr/lib/linkerd/linkerd-cni-install \
    && sed -n 's/^version = "\(.*\)"$/edge-\1/p' /linkerd/Cargo.toml > /image/usr/lib/linkerd/version.txt

FROM scratch
COPY --from=build /image /
USER 0
ENTRYPOINT ["/usr/lib/linkerd/linkerd-cni-install"]
