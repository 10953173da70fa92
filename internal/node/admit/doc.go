// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package admit decides whether a node admits a pod bound to it. It checks pressure, free
// resources, node affinity, host ports, NoExecute taints and the operating system. Its inputs are
// the pod, the node's newest object, and the pods already admitted. Reasons and messages are the
// kubelet's; a test in test/nodeparity compares them with the kubelet's code.
//
// It is pure, and imports no client.
package admit
