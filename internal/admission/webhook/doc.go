// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package webhook applies the rules of package admission to an existing cluster: an HTTPS server
// called by API servers for pods, nodes and priority classes (AdmissionReview v1).
//
// It maintains itself. It creates its certificates, keeps them in a Secret shared by all replicas,
// and renews them long before they expire. It writes its MutatingWebhookConfiguration and
// ValidatingWebhookConfiguration, with the CA bundle for API servers, and keeps them up to date. It
// becomes ready when its caches are filled, and serves no requests before that.
//
// It cannot lock a cluster. By default a pod is created without the rules if no replica responds.
// Regardless of the configuration, kube-system, the webhook's own namespace, terminating pods and
// nodes do not depend on it.
package webhook
