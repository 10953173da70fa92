// Package admission completes and checks pods before they are stored: it takes a pod and the
// objects that it refers to, and returns the pod as stored, or a refusal with field and reason.
//
// The rules run in the order of kube-apiserver's plugins: priority, tolerations of lost nodes,
// tolerations of the namespace, memory pressure, extended resources, dedicated nodes (Berth's own),
// runtime class; then those that only check: the tolerations that the namespace allows, the
// overhead, the dedicated nodes. Each rule is one file and one table of text cases.
//
// Everything is pure and idempotent: applying it a second time changes nothing, so it can run in
// the API server, behind a webhook, or both. Change and Judge are for these two; for files, Create
// also does what the API server does before and after. Nodes and priority classes have rules of
// their own.
package admission
