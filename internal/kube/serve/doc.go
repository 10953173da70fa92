// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package serve provides the endpoints of Berth's components: health, metrics, configuration,
// flags, status and profiles, with the paths and formats of Kubernetes' own components, so that
// probes, scrapers and kubectl get --raw work unchanged.
//
// There are two optional listeners. The HTTPS listener (--secure-port) is like that of
// kube-scheduler: all paths except for health checks require permission to read the path, as
// determined by the API server. The plain HTTP listener (--health-bind-address) has no
// authentication; it is for loopback addresses and for probes. The component supplies the content;
// see Endpoints.
package serve
