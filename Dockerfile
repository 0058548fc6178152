# packgate in a container. The default image holds the program and nothing to start a shell with:
#
#   docker build --tag packgate:0.1.0 .
#   docker run --volume ./packgate.yaml:/etc/packgate/packgate.yaml:ro --publish 8080:8080 packgate:0.1.0
#
# With git and a shell, where packgate is to run git itself (`upstream: {cgi: ...}`):
#
#   docker build --target full --tag packgate:0.1.0-full .
#
# What the build stage does is done by a test without an engine (integration-tests/tests/image.rs), so its steps stay below
# its WORKDIR.

# The compiler of rust-toolchain.toml, on the Debian that the full image is made of.
ARG RUST=1.95.0
ARG DEBIAN=bookworm

FROM rust:${RUST}-slim-${DEBIAN} AS build
# zlib-ng, which pingora links, is built with cmake.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates cmake make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# Static, so that it runs where there is no libc. Symbols stay, for the traces of panics; line tables would be ten times as much.
# Neither the registry nor what is compiled becomes a layer: both are kept by the builder from one build to the next.
ENV CARGO_TARGET_DIR=/target \
    CARGO_PROFILE_RELEASE_DEBUG=false \
    RUSTFLAGS="-C target-feature=+crt-static"
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/target \
    target="$(uname -m)-unknown-linux-gnu" \
    && cargo build --release --locked --package packgate --target "$target" \
    && install -D -m 755 "$CARGO_TARGET_DIR/$target/release/packgate" image/usr/local/bin/packgate
# Whom a server behind https:// is believed by, and a name for the user.
RUN install -D -m 644 /etc/ssl/certs/ca-certificates.crt image/etc/ssl/certs/ca-certificates.crt \
    && echo 'packgate:x:65532:65532:packgate:/nonexistent:/nonexistent' >image/etc/passwd \
    && echo 'packgate:x:65532:' >image/etc/group

FROM debian:${DEBIAN}-slim AS full
LABEL org.opencontainers.image.title="packgate" \
      org.opencontainers.image.description="A gate in front of a git server, with git and a shell" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates git \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 65532 packgate \
    && useradd --uid 65532 --gid 65532 --home-dir /nonexistent --no-create-home --shell /usr/sbin/nologin packgate
COPY --from=build /src/image/usr/local/bin/packgate /usr/local/bin/packgate
USER 65532:65532
EXPOSE 8080 9902
ENTRYPOINT ["/usr/local/bin/packgate"]
CMD ["serve", "--config", "/etc/packgate/packgate.yaml"]

FROM scratch AS slim
LABEL org.opencontainers.image.title="packgate" \
      org.opencontainers.image.description="A gate in front of a git server" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /src/image/ /
USER 65532:65532
EXPOSE 8080 9902
ENTRYPOINT ["/usr/local/bin/packgate"]
CMD ["serve", "--config", "/etc/packgate/packgate.yaml"]
