// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package serve provides the endpoints of Berth's components: health, metrics, configuration,
// flags, status and profiles, with the paths and formats of Kubernetes' own components, so that
// probes, scrapers and kubectl get --raw work unchanged.
//
// There are two listeners, either or both: HTTPS like kube-scheduler's (--secure-port), on which
// everything except health requires the API server's permission to read the path, and plain HTTP
// without authentication (--health-bind-address), for loopback and for probes. The component
// supplies the content: see Endpoints.
package serve
