// Package serve is the endpoints of Berth's parts: health, metrics,
// configuration, flags, status and profiles, by the paths and in the shapes of
// Kubernetes' own components, so that probes, scrapers and kubectl get --raw
// work unchanged.
//
// Two listeners, either or both: HTTPS as kube-scheduler's (--secure-port),
// where everything but health asks the API server whether the caller may read
// the path, and plain HTTP (--health-bind-address), for loopback and for
// probes, which asks nobody. What the endpoints tell is the part's business:
// see Endpoints.
package serve
