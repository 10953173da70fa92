// Package serve provides the endpoints of Berth's components: health, metrics, configuration,
// flags, status and profiles, with the paths and formats of Kubernetes' own components, so that
// probes, scrapers and kubectl get --raw work unchanged.
//
// There are two listeners, either or both: HTTPS like kube-scheduler's (--secure-port), where
// everything except health requires that the API server lets the caller read the path, and plain
// HTTP without authentication (--health-bind-address), for loopback and for probes. What the
// endpoints show is the component's business: see Endpoints.
package serve
