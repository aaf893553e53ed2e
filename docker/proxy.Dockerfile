# The data plane: proxy with its bootstrap and await, network validator, init program.
# Run in the root of the repository: docker build -f docker/proxy.Dockerfile .
FROM rust:1-bookworm AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends cmake libcap2-bin \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /linkerd
COPY . .
ENV RUSTFLAGS="-C target-feature=+crt-static"
RUN target="$(uname -m)-unknown-linux-gnu" \
    && cargo build --locked --release --target "$target" \
        --package linkerd-proxy --bin linkerd-proxy \
        --package linkerd-init --bin linkerd-init --bin linkerd-network-validator \
        --package linkerd-runtime --bin linkerd-sleep \
    && mkdir -p /image/usr/lib/linkerd /image/etc /image/bin \
    && cd "target/$target/release" \
    && cp linkerd-proxy /image/usr/lib/linkerd/linkerd2-proxy \
    && cp linkerd-init /image/usr/lib/linkerd/linkerd2-proxy-init \
    && cp linkerd-network-validator /image/usr/lib/linkerd/linkerd2-network-validator \
    && cp linkerd-sleep /image/bin/sleep \
    && setcap cap_net_admin,cap_net_raw+eip /image/usr/lib/linkerd/linkerd2-proxy-init \
    && ln -s linkerd2-proxy /image/usr/lib/linkerd/linkerd2-proxy-identity \
    && ln -s linkerd2-proxy /image/usr/lib/linkerd/linkerd-await \
    && printf 'root:x:0:0:root:/:/sbin/nologin\nlinkerd:x:2102:2102:proxy:/:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n' > /image/etc/passwd \
    && printf 'root:x:0:\nlinkerd:x:2102:\nnobody:x:65534:\n' > /image/etc/group \
    && printf 'hosts: files dns\n' > /image/etc/nsswitch.conf \
    && sed -n 's/^version = "\(.*\)"$/edge-\1/p' /linkerd/Cargo.toml > /image/usr/lib/linkerd/version.txt \
    && mkdir -m 1777 /image/tmp

FROM scratch
COPY --from=build /image /
USER 2102
ENTRYPOINT ["/usr/lib/linkerd/linkerd2-proxy-identity"]
