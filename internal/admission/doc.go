// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package admission completes and checks pods before they are stored: it takes a pod and its
// referenced objects, and returns the pod as stored, or a refusal with field and reason.
//
// The rules run in the order of kube-apiserver's plugins: priority, tolerations of lost nodes,
// tolerations of the namespace, memory pressure, extended resources, dedicated nodes (Berth's own),
// runtime class. Rules that only check a pod follow: the tolerations allowed by the namespace, the
// overhead, the dedicated nodes. Each rule is one file and one table of text cases.
//
// All rules are pure and idempotent: a second application changes nothing, so they can run in the
// API server, behind a webhook, or both, by calling Change and Judge. For files, Create also
// performs the API server's steps before and after admission. Nodes and priority classes have
// separate rules.
package admission
