# syntax=docker/dockerfile:1

# The image as `make image` makes it, with Docker. Only `make image` is reproducible.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETARCH VERSION=unknown
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN kubernetes=1$(sed -n 's|^\tk8s.io/client-go v0||p' go.mod) minor=${kubernetes#1.} && \
    echo "-s -w -buildid= -X main.version=$VERSION -X k8s.io/component-base/version.gitVersion=v$kubernetes -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=${minor%%.*}" > /ldflags && \
    CGO_ENABLED=0 GOOS=linux GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -ldflags "$(cat /ldflags)" -o /out/ ./cmd/berth ./cmd/berth-scheduler

# With --target node: the kubelet is in the image, too, to be copied to a machine for `berth agent`.
FROM build AS build-node
RUN cd controlplane && CGO_ENABLED=0 GOOS=linux GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -ldflags "$(cat /ldflags)" -o /out/ k8s.io/kubernetes/cmd/kubelet

FROM scratch AS both
ARG VERSION=unknown REVISION=unknown CREATED=unknown
LABEL org.opencontainers.image.title=berth \
      org.opencontainers.image.description="Scheduling, preemption and eviction for Kubernetes" \
      org.opencontainers.image.source=https://github.com/berth-k8s/berth \
      org.opencontainers.image.documentation=https://github.com/berth-k8s/berth/blob/main/docs/tasks/install.md \
      org.opencontainers.image.licenses=Apache-2.0 \
      org.opencontainers.image.version=$VERSION \
      org.opencontainers.image.revision=$REVISION \
      org.opencontainers.image.created=$CREATED
COPY --from=build /out/berth /out/berth-scheduler /src/LICENSE /
USER 65532:65532
ENTRYPOINT ["/berth"]

# With --target integrations: berth-kueue and berth-expander are in the image, too.
FROM build AS build-integrations
RUN cd integrations && CGO_ENABLED=0 GOOS=linux GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -ldflags "$(cat /ldflags)" -o /out/ ./cmd/berth-kueue ./cmd/berth-expander

FROM both AS integrations
COPY --from=build-integrations /out/berth-kueue /out/berth-expander /

FROM both AS node
COPY --from=build-node /out/kubelet /

FROM both
