// Package webhook applies the rules of package admission to an existing cluster: an HTTPS server
// that API servers call for pods, nodes and priority classes (AdmissionReview v1).
//
// It maintains itself. It creates its certificates, keeps them in a Secret that all replicas share,
// and renews them long before they expire. It writes its MutatingWebhookConfiguration and
// ValidatingWebhookConfiguration, which tell API servers what to trust, and keeps them right. It is
// ready once it knows the cluster, and answers no request before.
//
// It cannot lock a cluster. By default a pod is created without the rules if no replica answers.
// Whatever is configured, kube-system, its own namespace, terminating pods and nodes do not depend
// on it.
package webhook
