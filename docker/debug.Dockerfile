# Network tools for `config.linkerd.io/enable-debug-sidecar`; starts with a capture on all interfaces.
# Run in the root of the repository: docker build -f docker/debug.Dockerfile .
FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
        tcpdump tshark iproute2 conntrack curl jq dnsutils nghttp2-client lsof iptables procps \
    && rm -rf /var/lib/apt/lists/*
ENTRYPOINT ["/usr/bin/tcpdump", "-Z", "root", "-i", "any", "-nn", "-l"]
