// Package webhook gives the rules of package admission to a cluster that
// exists: an HTTPS server that its API servers ask about pods, nodes and
// priority classes (AdmissionReview v1).
//
// It looks after itself. Its certificates are made, kept in a Secret that all
// replicas share, and renewed long before they expire; the API servers are told
// of them by its MutatingWebhookConfiguration and ValidatingWebhookConfiguration,
// which it writes and keeps right. It is ready when it knows the cluster, and
// answers no request before.
//
// It cannot lock a cluster. By default a pod is created without the rules if no
// replica answers; whatever is set, kube-system, its own namespace, pods on
// their way out and nodes do not depend on it.
package webhook
