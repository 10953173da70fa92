// Package admission is what is written into a pod before it exists: from a
// pod and the objects that it names to the pod as it is stored, or a refusal
// with field and reason.
//
// The rules run in the order of kube-apiserver's plugins: priority, tolerations
// of lost nodes, tolerations of the namespace, memory pressure, extended
// resources, dedicated nodes (Berth's own), runtime class; then what may refuse
// the whole: the tolerations that the namespace allows, the overhead, the
// dedicated nodes. Each rule is one file and one table of text cases.
//
// All is pure and idempotent: applied twice, the second time changes nothing,
// so it can run in the API server, behind a webhook, or both. Change and Judge
// are for these two; Create does for files what the API server does around
// them, too. Nodes and priority classes have rules of their own.
package admission
