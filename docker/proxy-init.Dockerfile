# The init program with Debian's iptables, legacy and nft.
# Run in the root of the repository: docker build -f docker/proxy-init.Dockerfile .
FROM rust:1-bookworm AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libcap2-bin \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /linkerd
COPY . .
ENV RUSTFLAGS="-C target-feature=+crt-static"
RUN target="$(uname -m)-unknown-linux-gnu" \
    && cargo build --locked --release --target "$target" \
        --package linkerd-init --bin linkerd-init \
    && mkdir -p /image/usr/lib/linkerd \
    && cp "target/$target/release/linkerd-init" /image/usr/lib/linkerd/linkerd2-proxy-init \
    && sed -n 's/^version = "\(.*\)"$/edge-\1/p' /linkerd/Cargo.toml > /image/usr/lib/linkerd/version.txt \
    && setcap cap_net_admin,cap_net_raw+eip /image/usr/lib/linkerd/linkerd2-proxy-init

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends iptables libcap2-bin \
    && setcap cap_net_admin,cap_net_raw+eip /usr/sbin/xtables-legacy-multi \
    && setcap cap_net_admin,cap_net_raw+eip /usr/sbin/xtables-nft-multi \
    && touch /run/xtables.lock \
    && chmod 0666 /run/xtables.lock \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /image /
USER 65534
ENTRYPOINT ["/usr/lib/linkerd/linkerd2-proxy-init"]
